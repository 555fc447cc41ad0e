"""What opening refuses, `verify` reports with the command that mends it. (`torture.steps` tries every file.)"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.damage import change as damage_log
from store.kinds import BATCH, EXTENDED, PLAIN, SIZES, Kind
from store.model import QUIET
from store.test_refusals import refusal_of
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.names import ABORT, CONSUME_QUEUE_EXT, INDEX, LOCK, SNAPSHOT
from stratalog.layout.names import SIZES as NOTE
from stratalog.tools.own_files import OWN_NAMES
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from torture.steps import CHANGES, Change, directory, judge


@pytest.mark.one_in(27)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (EXTENDED, "consumequeue_ext/topic/0"), (EXTENDED, "consumequeue/topic/0"), (PLAIN, "consumequeue/topic/1"),
        (BATCH, "batchconsumequeue/batches/1"), (PLAIN, "index"), (PLAIN, "commitlog"), (PLAIN, "checkpoint"),
        (PLAIN, "lock"), (PLAIN, "file-sizes.json"), (PLAIN, "queues.snapshot"),
    ],
    ids=str,
)  # fmt: skip
def test_a_store_that_opening_refuses_is_mended_by_the_command_that_verify_names(
    kind: Kind, place: str, change: Change, tmp_path: Path
) -> None:
    for is_crashed in (False, True):
        root = tmp_path / f"store-{is_crashed}"
        kind.made(root)
        if is_crashed:
            (root / ABORT).touch()
        path = max((root / place).iterdir()) if (root / place).is_dir() else root / place
        change(path)
        judge(root, StoreSettings.make(QUIET | kind.settings), tmp_path / "opened")


@pytest.mark.one_in(27)
@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, Path.touch], ids=["directory", "fifo", "file"])
@pytest.mark.parametrize("name", OWN_NAMES)
def test_repair_and_rebuild_do_all_or_nothing_where_something_else_is_in_the_place_of_a_file_or_directory(
    name: str, make: Callable[[Path], None], is_damaged: bool, tmp_path: Path
) -> None:
    root, copy = tmp_path / "store", tmp_path / "copy"
    PLAIN.made(root)
    if is_damaged:
        damage_log(next((root / "commitlog").iterdir()), 300, b"damage")
    if (root / name).is_dir():
        shutil.rmtree(root / name)
    (root / name).unlink(missing_ok=True)
    make(root / name)
    before = contents(root)
    for call in (
        lambda: repair(plan_repair(root), to=copy),
        lambda: repair(plan_repair(root)),
        lambda: rebuild(root),
    ):
        refusal = refusal_of(call)
        if refusal:
            assert (str(root) in str(refusal), str(copy) in str(refusal)) == (True, False)
            assert not copy.exists()
            assert contents(root) == before
        else:
            shutil.rmtree(copy, ignore_errors=True)
            before = contents(root)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("tree", ["commitlog", "consumequeue/topic/0", "index"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "fifo"])
@pytest.mark.parametrize("is_copied", [True, False], ids=["to a copy", "in place"])
def test_what_is_no_file_is_moved_away_or_left_out(
    is_copied: bool, make: Callable[[Path], None], tree: str, tmp_path: Path
) -> None:
    PLAIN.made(tmp_path / "store", count=200)
    path = max((tmp_path / "store" / tree).iterdir())
    path.unlink()
    make(path)
    assert repair(plan_repair(tmp_path / "store"), to=tmp_path / "copy" if is_copied else None).ok


def contents(root: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in root.rglob("*") if path.name != LOCK}


@pytest.mark.parametrize("size", [0, 700, 5000])
@pytest.mark.parametrize("given", [{}, SIZES], ids=["found", "given"])
def test_verify_reports_a_file_of_an_extension_of_another_size(
    size: int, given: dict[str, int], tmp_path: Path
) -> None:
    EXTENDED.made(tmp_path, count=4)
    for path in (tmp_path / CONSUME_QUEUE_EXT / "topic/0").iterdir():
        os.truncate(path, size)
    settings = StoreSettings.make(given | {"enable_consume_queue_ext": True})
    report = verify(tmp_path, settings=settings)
    assert not report.ok
    assert "stratalog repair" in report.problems[0].next_step
    assert [action.kind for action in plan_repair(tmp_path, settings=settings).actions] == ["rebuild"]


def test_a_directory_in_a_queue_file_s_place_is_reported_while_its_units_may_still_come(tmp_path: Path) -> None:
    PLAIN.made(tmp_path)
    (tmp_path / ABORT).touch()
    (tmp_path / SNAPSHOT).unlink()
    directory(max((tmp_path / "consumequeue/topic/0").iterdir()))
    [problem] = verify(tmp_path).problems
    assert problem.found == "a directory"


def test_a_plan_is_refused_before_anything_is_done_where_nothing_tells_the_index_s_sizes(tmp_path: Path) -> None:
    with PLAIN.open(tmp_path, max_hash_slot_num=50, max_index_num=101) as store:
        offset = store.put("topic", b"one", keys=["k"]).commit_log_offset
        store.put("topic", b"two", keys=["k"])
    (tmp_path / NOTE).unlink()
    (index,) = (tmp_path / INDEX).iterdir()
    index.write_bytes(bytes(index.stat().st_size))
    (tmp_path / ABORT).touch()
    damage_log(next((tmp_path / "commitlog").iterdir()), offset + 88, b"O")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(CorruptData, match=r"do not tell how many slots.*420,000,040 bytes"):
        plan_repair(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert plan_repair(tmp_path, settings=StoreSettings(max_hash_slot_num=50, max_index_num=101)).actions
