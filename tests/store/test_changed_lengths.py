"""A file of another length: the first command that `verify` names mends the store, and `verify` finds nothing then."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import BATCH, EXTENDED, LIGHT_KIND, PLAIN, Kind
from store.model import QUIET
from stratalog.config.settings import StoreSettings
from stratalog.layout.names import ABORT, SNAPSHOT
from stratalog.layout.names import SIZES as NOTE
from stratalog.tools.verify import verify
from torture.steps import COMMAND, run

REMOVE_INDEX = "remove the directory"
COMMAND_OR_INDEX = re.compile(f"{COMMAND.pattern}|{REMOVE_INDEX}")


def lengthened(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(100))


def shortened(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(max(0, path.stat().st_size - 7))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.one_in(54)
@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("change", [lengthened, shortened, emptied, Path.unlink], ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_verify_finds_nothing_after_the_first_command_that_it_named(
    kind: Kind, change: Callable[[Path], object], is_closed: bool, is_noted: bool, tmp_path: Path
) -> None:
    original = tmp_path / "store"
    kind.made(original, count=130)
    if not is_closed:
        (original / ABORT).touch()
        (original / SNAPSHOT).unlink(missing_ok=True)
    if not is_noted:
        (original / NOTE).unlink(missing_ok=True)
    settings = StoreSettings.make(QUIET | kind.settings)
    folders = {path.parent for path in original.rglob("*") if path.is_file()}
    for folder in sorted(folders):
        files = sorted(path for path in folder.iterdir() if path.is_file())
        for path in files if folder.name in ("store", "config") else files[-1:]:
            root = tmp_path / "changed"
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(original, root)
            change(root / path.relative_to(original))
            report = verify(root, settings=settings)
            if report.ok:
                continue
            steps = [(one.path, one.next_step) for one in report.problems]
            path, command = next((path, found[0]) for path, step in steps for found in COMMAND_OR_INDEX.finditer(step))
            if command.startswith("restore"):
                assert not any(file.stat().st_size for file in (root / "commitlog").iterdir())
                continue
            if command == REMOVE_INDEX:
                shutil.rmtree(root / "index")
                kind.open(root).close()
            else:
                run(command, settings, root, Path(path))
            left = verify(root, settings=settings).problems
            assert not left, (change.__name__, path, command, left[:2])


@pytest.mark.parametrize("change", [lengthened, shortened])
def test_an_index_file_of_another_length_is_for_repair_where_the_sizes_are_noted(
    change: Callable[[Path], object], tmp_path: Path
) -> None:
    PLAIN.made(tmp_path, count=20)
    change(max((tmp_path / "index").iterdir()))
    report = verify(tmp_path)
    (note, *others) = report.problems
    assert Path(note.path).name == NOTE
    assert note.next_step.startswith("if it is right, let `stratalog repair")
    assert note.next_step.endswith("if it is wrong, remove it")
    assert others
    assert all(one.next_step.startswith("let `stratalog repair") for one in others)
