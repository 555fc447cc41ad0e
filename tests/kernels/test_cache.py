"""Compiled code is loaded only from where nobody else can have put it: it holds pickles."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.kernels.cache import distrust

PROGRAM = """
import os, sys, warnings
os.umask(0)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from stratalog.kernels import jit
from stratalog.layout import names
print(jit.CACHE_DIRECTORY, len([w for w in told if "kernels" in str(w.message)]))
if "compile" in sys.argv:
    from stratalog.kernels.crc32 import crc32
    crc32(0, 0)
"""


def cache_of(cache: Path, home: Path, *arguments: str) -> tuple[str, int]:
    """Where a new process of umask 0 keeps compiled code, and how often it warned."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(home)}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    directory, _, count = subprocess.check_output(command, env=environment, text=True).strip().rpartition(" ")
    return directory, int(count)


def open_to_all(cache: Path) -> None:
    cache.chmod(0o777)


def open_file(cache: Path) -> None:
    directory = next(cache.glob("kernels-*"))
    directory.chmod(0o755)
    next(path for path in directory.rglob("*") if path.is_file()).chmod(0o666)


def link(cache: Path) -> None:
    (next(cache.glob("kernels-*")) / "scan.nbi").symlink_to("/etc/hostname")


def foreign_file(cache: Path) -> None:
    file = next(path for path in cache.rglob("*") if path.is_file())
    os.chown(file, 12345, 12345)


def foreign_directory(cache: Path) -> None:
    os.chown(next(cache.glob("kernels-*")), 12345, 12345)


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a compiled kernel in it, written under umask 0."""
    cache = tmp_path_factory.mktemp("cache") / "numba"
    directory, warned = cache_of(cache, cache.parent / "home", "compile")
    assert (Path(directory).parent, warned) == (cache, 0)
    assert any(path.suffix == ".nbc" for path in cache.rglob("*"))
    assert cache.stat().st_mode & 0o777 == Path(directory).stat().st_mode & 0o777 == 0o700
    return cache


def test_a_cache_written_under_any_umask_is_used_again(kept: Path) -> None:
    assert cache_of(kept, kept.parent / "home") == (str(next(kept.glob("kernels-*"))), 0)


@pytest.mark.parametrize(
    "tamper",
    [
        open_to_all, open_file, link,
        pytest.param(foreign_file, marks=needs_root), pytest.param(foreign_directory, marks=needs_root),
    ],
)  # fmt: skip
def test_a_cache_that_others_may_write_to_is_not_loaded(
    tamper: Callable[[Path], None], kept: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "numba"
    subprocess.run(["cp", "-a", kept, cache], check=True)
    tamper(cache)
    assert distrust(next(cache.glob("kernels-*")))
    directory, warned = cache_of(cache, tmp_path / "home")
    assert (Path(directory).parent, warned) == (tmp_path / "home" / "stratalog", 1)
    (tmp_path / "home" / "stratalog").chmod(0o777)
    assert cache_of(cache, tmp_path / "home") == ("", 1)


def test_a_link_above_is_resolved_once_and_its_target_judged(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    directory, warned = cache_of(tmp_path / "link", tmp_path / "home")
    assert (Path(directory).parent, warned) == (tmp_path / "home" / "stratalog", 1)


def test_a_directory_that_cannot_be_made_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in distrust(tmp_path / "file" / "kernels")
