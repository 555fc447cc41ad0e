"""What is put after a repair stays where it was acknowledged, whatever is run after a crash."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store.kinds import BATCH, EXTENDED, KINDS, PLAIN, SIZES, Content, Kind, read_on
from store.model import Clock, crash_copy
from store.test_recreated_topics import killed, settings_of, walked, zeroed
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

ONES = b"\xff"
COMMANDS: dict[str, Callable[[Kind, Path], object]] = {
    "open": lambda kind, root: kind.open(root).close(),
    "rebuild": lambda kind, root: rebuild(root, settings=settings_of(kind)),
    "repair": lambda kind, root: repair(plan_repair(root, settings=settings_of(kind))),
}


def lose(root: Path, offsets: set[int]) -> None:
    """Overwrite the heads of these records of the log's first file."""
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset : offset + 40] = ONES * 40
    path.write_bytes(data)


def put_crash_and_check(kind: Kind, live: Path, root: Path, end: int, command: str, *, is_dispatched: bool) -> None:
    """What is put to the first queue, which ends there, is served by the copy of the crashed store after a command."""
    key = kind.queues[0]
    with kind.open(live, clock_ns=Clock()) as store:
        receipt = store.queue(*key).put(b"new")
        assert receipt.queue_offset == end
        if is_dispatched:
            store.dispatch()
        crash_copy(store, root)
    COMMANDS[command](kind, root)
    with kind.open(root) as store:
        found = read_on(store.queue(*key))[0]
        assert (found[end].body, found[end].commit_log_offset) == (b"new", receipt.commit_log_offset)
    assert not plan_repair(root, settings=settings_of(kind)).actions


@pytest.mark.one_in(144)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("is_dispatched", [True, False])
@pytest.mark.parametrize("lost", ["all", "all and the units", "first", "newest"])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("body", [b"x", b"room for a placeholder" * 4])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_a_message_put_after_a_repair_stays_in_its_place(
    kind: Kind, body: bytes, count: int, lost: str, is_dispatched: bool, command: str, tmp_path: Path
) -> None:
    """The topic's other queue ends where this one does: the message would fit in there, too."""
    root, live, (key, other) = tmp_path / "store", tmp_path / "live", kind.queues
    with kind.open(live, clock_ns=Clock()) as store:
        kind.put(store, 3, Content())
        assert store.put("other", b"other").queue_offset == 0
        places = [store.queue(*key).put(body).commit_log_offset for _ in range(count)]
        while store.queue(*other).max_offset < store.queue(*key).max_offset:
            store.queue(*other).put(body)
        end = store.queue(*key).max_offset
        store.put("other", b"behind")
    lose(live, set({"first": places[:1], "newest": places[-1:]}.get(lost, places)))
    if lost.endswith("units"):
        shutil.rmtree(kind.directory(live, key))
    repair(plan_repair(live, settings=settings_of(kind)))
    put_crash_and_check(kind, live, root, end, command, is_dispatched=is_dispatched)


@pytest.mark.one_in(54)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("is_dispatched", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_a_message_put_after_all_others_expired_stays_in_its_place(
    kind: Kind, count: int, is_dispatched: bool, command: str, tmp_path: Path
) -> None:
    root, live, (key, other) = tmp_path / "store", tmp_path / "live", kind.queues
    begin = SIZES["mapped_file_size_commit_log"]
    with kind.open(live, clock_ns=Clock()) as store:
        kind.put(store, 3, Content())
        for _ in range(count):
            store.queue(*key).put(b"expires")
        while store.put("other", b"to the next log file" * 20).commit_log_offset < begin:
            pass
        while store.queue(*other).max_offset < store.queue(*key).max_offset:
            store.queue(*other).put(b"stays")
    (live / "commitlog" / f"{0:020d}").unlink()
    put_crash_and_check(kind, live, root, count, command, is_dispatched=is_dispatched)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("body", [b"x", b"room for a placeholder" * 4])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_queues_that_begin_with_a_placeholder_are_built_again(
    kind: Kind, body: bytes, count: int, tmp_path: Path
) -> None:  # fmt: skip
    key = kind.queues[0]
    with kind.open(tmp_path, clock_ns=Clock()) as store:
        kind.put(store, 3, Content())
        places = [store.queue(*key).put(body).commit_log_offset for _ in range(count)]
    lose(tmp_path, {places[0]})
    repair(plan_repair(tmp_path, settings=settings_of(kind)))
    for _ in range(2):
        assert not rebuild(tmp_path, settings=settings_of(kind)).left_out
        assert verify(tmp_path, settings=settings_of(kind)).ok
    with kind.open(tmp_path, mode="r") as store:
        found = read_on(store.queue(*key))[0]
        assert [found[number].commit_log_offset for number in range(1, count)] == places[1:]


@pytest.mark.one_in(216)
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("first", [100, 101, 102])
@pytest.mark.parametrize("block", [bytes(512), ONES * 512], ids=["zeros", "ones"])
@pytest.mark.parametrize("put_count", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_messages_lost_in_front_of_a_put_are_counted(
    kind: Kind, count: int, put_count: int, block: bytes, first: int, road: str, tmp_path: Path
) -> None:
    """All that the log held was damaged, and more was put before the repair."""
    root, content = tmp_path / "store", Content()
    with kind.open(root, clock_ns=Clock()) as store:
        kind.fill(store, content, count=count)
        store.put("other", b"other")
        count = -(-store.flush() // len(block))
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(block * count + path.read_bytes()[len(block) * count :])
    with kind.open(root, clock_ns=Clock()) as store:
        for number in range(first, first + put_count):
            kind.put(store, number, Content())
    reports = walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        for key, expected in content.queues.items():
            found = read_on(store.queue(*key))[0]
            assert not found.keys() & expected.keys()
            assert {(key, number) for number in expected} <= reports.stated


@pytest.mark.parametrize("road", ["open", "rebuild", "repair"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_after_a_crash_it_is_said_that_offsets_of_messages_nobody_knows_may_be_given_again(
    kind: Kind, road: str, tmp_path: Path
) -> None:
    """The newest messages are damaged, their units were not written yet, and another queue's message follows."""
    live, root = tmp_path / "live", tmp_path / "store"
    with kind.open(live, clock_ns=Clock()) as store:
        kind.fill(store, Content(), count=8)
        store.put("other", b"")
        store.dispatch()
        begin = store.log.end_offset
        kind.fill(store, Content(), begin=8, count=4)
        end = store.put("other", b"").commit_log_offset
        shutil.copytree(live, root)
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
    text = "their queue offsets may be given again"
    assert any(text in note for note in verify(root, settings=settings_of(kind)).notes)
    if road == "repair":
        assert any(text in note for note in plan_repair(root, settings=settings_of(kind)).report.notes)
    elif road == "rebuild":
        assert any(text in note for note in rebuild(root, settings=settings_of(kind)).notes)
    else:
        with kind.open(root) as store:
            assert any(text in note for note in store.recovery.notes)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_after_a_crash_it_is_said_that_the_index_knows_messages_after_the_logs_end(kind: Kind, tmp_path: Path) -> None:
    """The newest units were never written."""
    content = Content()
    with kind.open(tmp_path, clock_ns=Clock()) as store:
        kind.fill(store, content, count=12)
    killed(tmp_path)
    begin = min(list(queue.values())[-2].commit_log_offset for queue in content.queues.values())
    zeroed(tmp_path, begin)
    for path in (tmp_path / kind.tree).glob("*/*/*"):
        units = np.frombuffer(path.read_bytes(), kind.layout.dtype).copy()
        units[units["commit_log_offset"] >= begin] = 0
        path.write_bytes(units.tobytes().ljust(path.stat().st_size, b"\0"))
    with kind.open(tmp_path) as store:
        assert any("their queue offsets may be given again" in note for note in store.recovery.notes)
