"""The newest log files are missing: no queue offset is given again, and no deleted message comes back."""

import random
import shutil
from pathlib import Path

import pytest

import stratalog
from store.kinds import BATCH, EXTENDED, LIGHT_EXTENDED, LIGHT_KIND, PLAIN, SIZES, Content, Kind, read_on
from store.model import QUIET, Clock
from store.test_recreated_topics import STATES, delete, settings_of
from stratalog.errors import CorruptData
from stratalog.layout import names
from stratalog.store.evidence import UNCOUNTED
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify


@pytest.mark.one_in(36)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ"])
@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("count", [30, 41, 60, 90])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_opening_refuses_and_repair_keeps_the_offsets(
    kind: Kind, count: int, gone: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kind.settings, "mapped_file_size_commit_log", 2048)
    content = kind.made(tmp_path, count=count)
    ends = {key: len(queue) for key, queue in content.queues.items()}
    STATES[state](tmp_path)
    files = [path for path in sorted((tmp_path / "commitlog").iterdir()) if any(path.read_bytes())]
    for path in sorted((tmp_path / "commitlog").iterdir()):
        if path >= files[-gone]:
            path.unlink()
    end = int(files[-gone].name)
    lost = {one.commit_log_offset for queue in content.queues.values() for one in queue.values()} - set(range(end))
    if len(lost) < 2:
        pytest.skip("one unit alone: it may be damaged")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    for _ in range(2):
        with pytest.raises(CorruptData, match=r"stratalog repair .*keeps the queue offsets"):
            kind.open(tmp_path)
    assert before == {path: path.read_bytes() for path in before}
    plan = plan_repair(tmp_path, settings=settings_of(kind))
    assert plan.lost_count > 0 or plan.missing
    assert repair(plan).ok
    with kind.open(tmp_path) as store:
        for key, queue in content.queues.items():
            there = {number: known for number, known in queue.items() if known.commit_log_offset < end}
            assert read_on(store.queue(*key))[0] == there
            assert store.queue(*key).max_offset == ends[key]
        kind.put(store, 100 + random.randrange(2), Content())
    assert not plan_repair(tmp_path, settings=settings_of(kind)).actions


@pytest.mark.one_in(162)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("gone", [1, 2, 3])
@pytest.mark.parametrize("new_count", [3, 8, 20])
@pytest.mark.parametrize("deleted", [(0, 0), (6, 0), (6, 2)], ids=str)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_queues_may_begin_there_after_deleted_messages(
    kind: Kind, deleted: tuple[int, int], new_count: int, gone: int, is_opened: bool, state: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """`deleted` are some before the last files and some that may be in them, right before the first new message."""
    monkeypatch.setitem(kind.settings, "mapped_file_size_commit_log", 2048)
    content, numbers = Content(), iter(range(1000))
    with kind.open(tmp_path, clock_ns=Clock()) as store:
        for _ in range(deleted[0]):
            kind.put(store, next(numbers), Content())
        while store.put("other", bytes(100)).commit_log_offset < 4 * 2048:
            pass
        for _ in range(deleted[1]):
            kind.put(store, next(numbers), Content())
        if deleted[0]:
            delete(store, kind)
        for _ in range(new_count):
            store.put("other", bytes(60))
            kind.put(store, next(numbers), content)
        store.put("other", b"last")
    STATES[state](tmp_path)
    files = [path for path in sorted((tmp_path / "commitlog").iterdir()) if any(path.read_bytes())]
    for path in sorted((tmp_path / "commitlog").iterdir()):
        if path >= files[-gone]:
            path.unlink()
    kept = {
        key: {number: one for number, one in queue.items() if one.commit_log_offset < int(files[-gone].name)}
        for key, queue in content.queues.items()
    }
    is_refused = False
    if is_opened:
        try:
            kind.open(tmp_path).close()
        except CorruptData:
            is_refused = True
    plan = plan_repair(tmp_path, settings=settings_of(kind))
    assert repair(plan).ok
    assert not plan_repair(tmp_path, settings=settings_of(kind)).actions
    with kind.open(tmp_path) as store:
        for key, queue in content.queues.items():
            assert read_on(store.queue(*key))[0] == kept[key]
            if is_refused or not is_opened:  # else opening said that offsets may be given again
                lost = {(*key, number) for number in queue.keys() - kept[key].keys()}
                assert {(*one, number) for *one, first, end in plan.lost_ranges for number in range(first, end)} >= lost
                assert store.queue(*key).max_offset == len(queue)


def test_a_lost_newest_file_that_nothing_refers_to_is_noted(tmp_path: Path) -> None:
    """Nothing that is derived knows of its messages, as after a kill between puts and their dispatch."""
    live, root = tmp_path / "live", tmp_path / "store"
    with stratalog.open(live, **SIZES, **QUIET) as store:
        while len(store.log.files) < 2:
            store.put("t", b"x" * 100)
        shutil.copytree(live, root)
    for path in (root / names.CHECKPOINT, root / names.SNAPSHOT):
        path.unlink(missing_ok=True)
    with stratalog.open(shutil.copytree(root, tmp_path / "whole"), **SIZES, **QUIET) as store:
        assert UNCOUNTED not in store.recovery.notes
    max((root / names.COMMIT_LOG).iterdir()).unlink()
    assert any(UNCOUNTED in note for note in verify(root).notes)
    with stratalog.open(root, **SIZES, **QUIET) as store:
        assert UNCOUNTED in store.recovery.notes
