"""Whatever makes opening refuse a store: `verify` reports it with the command that mends it, and that command does."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stratalog
from store.kinds import KINDS, SIZES, Kind
from store.model import QUIET, scratch_folder
from stratalog.config.settings import StoreSettings
from stratalog.errors import StratalogError
from stratalog.layout.light import is_light
from stratalog.layout.names import ABORT, COMMIT_LOG, SNAPSHOT
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

COMMAND = re.compile(r"stratalog rebuild(?: --checkpoint)?|stratalog repair|^remove it|^restore commitlog/")
PUTS = 130


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: tuple[Callable[[Path], None], ...] = (missing, empty, shorter, longer, directory)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Kind, Path]]:
    with scratch_folder() as folder:
        request.param.made(folder / "store", count=PUTS)
        yield request.param, folder / "store"


@pytest.mark.parametrize("is_crashed", [False, True], ids=["closed", "crashed"])
@pytest.mark.parametrize("is_given", [False, True], ids=["sizes found", "sizes given"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_store_that_opening_refuses_is_mended_by_the_command_that_verify_names(
    change: Callable[[Path], None], is_given: bool, is_crashed: bool, made: tuple[Kind, Path], tmp_path: Path
) -> None:
    kind, source = made
    sizes = SIZES if is_given else {}
    settings = StoreSettings(**QUIET, **sizes, **kind.settings)
    faults = []
    root = tmp_path / "store"
    for path in sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file()):
        shutil.rmtree(tmp_path)
        shutil.copytree(source, root)
        if is_crashed:
            (root / ABORT).touch()
            (root / SNAPSHOT).unlink(missing_ok=True)
        if (root / path).exists():
            change(root / path)
            fault = _fault(kind, settings, root, tmp_path / "opened")
            if fault:
                faults.append(f"{path}: {fault}")
    assert not faults, "\n".join(faults)


def _fault(kind: Kind, settings: StoreSettings, root: Path, copy: Path) -> str:
    """What is wrong with what `verify` says; empty when nothing is."""
    refusal = _refusal(settings, root, copy)
    if not refusal:
        return ""
    try:
        report = verify(root, settings=settings)
    except StratalogError as error:
        return f"opening: {refusal}; verify: {error}"
    steps = [(match[0], Path(one.path)) for one in report.problems for match in COMMAND.finditer(one.next_step)]
    if not steps:
        return f"opening: {refusal}; verify: {report.problems[:1]}"
    command, place = steps[0]
    if command.startswith("restore"):
        return "" if is_log_gone(root) else f"the log is there; verify: {report.problems[0]}"
    try:
        _run(command, settings, root, place)
    except (StratalogError, OSError) as error:
        return f"opening: {refusal}; {command}: {error!r}"
    left = _refusal(settings, root, copy)
    return f"after {command}: {left}" if left else ""


def is_log_gone(root: Path) -> bool:
    return not any(path.is_file() and path.stat().st_size for path in (root / COMMIT_LOG).iterdir())


def _refusal(settings: StoreSettings, root: Path, copy: Path) -> str:
    """Why opening and putting are refused."""
    for mode in ("r", "w"):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        try:
            with stratalog.open(copy, mode=mode, settings=settings) as store:
                keys = store.queues()
                for key in keys:
                    store.queue(*key)
                for key in [key for key in keys if mode == "w" and not is_light(key[0])]:
                    store.queue(*key).put(b"one")
        except (StratalogError, OSError) as error:
            return f"{mode}: {error}"
    return ""


def _run(command: str, settings: StoreSettings, root: Path, place: Path) -> None:
    if command == "remove it":
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    elif command == "stratalog repair":
        repair(plan_repair(root, settings=settings))
    elif command == "stratalog rebuild":
        rebuild(root, settings=settings)
    else:
        rebuild(root, settings=settings, parts=("checkpoint",))
