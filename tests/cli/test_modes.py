"""Whatever the umask: what we create can be written to by its owner alone."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from cli.calls import SETTINGS, Call
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.tiered import Manifest, PosixBackend
from tiered.offload import offload

LOG = Path("commitlog") / ("0" * 20)


@pytest.fixture(autouse=True)
def _umask_of_nothing() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(root: Path) -> list[str]:
    paths = [root, *root.rglob("*")]
    return [
        f"{path.relative_to(root)} {stat.filemode(path.lstat().st_mode)}"
        for path in paths
        if not path.is_symlink() and path.lstat().st_mode & 0o022
    ]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Every kind of file that a store has."""
    root = tmp_path / "above" / "store"
    with stratalog.open(
        root, **SETTINGS, enable_consume_queue_ext=True, enable_lmq=True, enable_multi_dispatch=True
    ) as opened:
        opened.create_topic("batch", queues=1, queue_type="BatchCQ")
        for number in range(20):
            opened.put("plain", b"body %d" % number, keys=f"k{number}", queue_id=number % 2)
        opened.queue("batch", 0).put_batch([b"one", b"two"], unique_key="u")
        opened.put("plain", b"light", properties={MULTI_DISPATCH: "%LMQ%a"})
    return root


def test_a_store_its_repaired_copy_and_what_is_rebuilt(store: Path, tmp_path: Path, call: Call) -> None:
    assert len(list(store.rglob("*"))) > 20
    assert not open_to_others(store.parent)
    with (store / LOG).open("r+b") as file:
        file.seek(600)
        file.write(b"\xff" * 300)
    (store / "abort").touch(0o644)
    copy = tmp_path / "below" / "copy"
    assert call("repair", store, "--to", copy, "--yes").exit_code in (0, 1)
    assert not open_to_others(copy.parent)
    assert call("repair", store, "--in-place", "--yes").exit_code in (0, 1)
    assert any((store / "stratalog-quarantine").iterdir())
    assert not open_to_others(store)
    for part in ("index", "consumequeue", "checkpoint"):
        shutil.rmtree(store / part) if (store / part).is_dir() else (store / part).unlink()
    assert call("rebuild", store, "--yes").exit_code == 0, call("rebuild", store, "--yes").output
    assert not open_to_others(store)


def test_a_tier(small_store: Path, tmp_path: Path) -> None:
    backend = PosixBackend(tmp_path / "deep" / "tier")
    with stratalog.open(small_store, mode="r", **SETTINGS) as opened:
        offload(opened, backend, Manifest(backend, "c", "b"))
    backend.close()
    assert len(list(backend.root.rglob("*"))) > 10
    assert not open_to_others(backend.root.parent)


def test_the_command_line_takes_the_right_from_its_own_umask() -> None:
    """So reports, demo data and what Spark's processes write are covered, too."""
    program = (
        "import contextlib, os, sys; from stratalog.cli.main import main; sys.argv = ['stratalog', '--version']\n"
        "with contextlib.suppress(SystemExit): main()\nprint(oct(os.umask(0)))"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()[-1] == "0o22"
