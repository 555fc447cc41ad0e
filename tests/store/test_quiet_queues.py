"""A queue whose messages went with the log's oldest files: its units alone, and the snapshot, tell its next offset."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from store.kinds import (
    BATCH,
    EXTENDED,
    KINDS,
    PLAIN,
    QUEUE_FILE_UNITS,
    SIZES,
    Content,
    Kind,
    Known,
    read_on,
)
from store.test_recreated_topics import settings_of
from stratalog.errors import CorruptData
from stratalog.layout.message import HEAD
from stratalog.layout.names import ABORT, BATCH_CONSUME_QUEUE, CHECKPOINT, LOCK, OWN_MARK, SNAPSHOT
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.store import snapshot
from stratalog.store.message_store import MessageStore
from stratalog.tools import rebuild as rebuilding
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

QUIET_PUTS, BUSY_PUTS = range(1, 80, 6), range(0, 600, 6)
"""Numbers of messages for the second queue of a kind alone, and for the first one alone."""


def zero(files: list[Path]) -> None:
    for path in files:
        path.write_bytes(bytes(path.stat().st_size))


def zero_newest(files: list[Path]) -> None:
    """The newest unit only."""
    size = BATCH_UNIT.size if files[0].parents[2].name == BATCH_CONSUME_QUEUE else UNIT.size
    for path in reversed(files):
        stored = path.read_bytes()
        if count := len(stored.rstrip(b"\0")):
            begin = (count - 1) // size * size
            path.write_bytes(stored[:begin] + bytes(size) + stored[begin + size :])
            return


def cut(files: list[Path]) -> None:
    os.truncate(files[-1], files[-1].stat().st_size // 2)


def empty(files: list[Path]) -> None:
    for path in files:
        path.write_bytes(b"")


def lose(files: list[Path]) -> None:
    for path in files:
        path.unlink()


DAMAGES = {
    "zeroed": zero,
    "newest zeroed": zero_newest,
    "cut": cut,
    "empty": empty,
    "lost": lose,
    "directory": lambda f: shutil.rmtree(f[0].parent),
}


def copied(root: Path) -> Path:
    repair(plan_repair(root), to=root.with_name("copy"))
    return root.with_name("copy")


ROADS: dict[str, Callable[[Path], object]] = {
    "open": lambda root: root,
    "rebuild": rebuild,
    "repair": lambda root: repair(plan_repair(root)),
    "copy": copied,
    "repair, rebuild": lambda root: (repair(plan_repair(root)), rebuild(root)),
}


FEW = ("newest zeroed", "cut", "lost")
STOPS = ("clean", "killed while opening", "killed later")


def filled(kind: Kind, root: Path, content: Content, *, other: bool = False) -> int:
    """A store, closed properly, in which the kind's second queue is quiet; returns that queue's end."""
    with kind.open(root) as store:
        for number in [*QUIET_PUTS, *BUSY_PUTS]:
            kind.put(store, number, content)
        if other:
            store.put("other", b"x")
    sorted((root / "commitlog").iterdir())[0].unlink()
    with kind.open(root) as store:
        kind.put(store, 0, content)
        quiet = store.queue(*kind.queues[1])
        end = quiet.max_offset
        assert end == quiet.min_offset == len(content.queues[kind.queues[1]])
    return end


@pytest.mark.one_in(324)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(
    ("damage", "road"), [(damage, road) for damage in DAMAGES for road in ROADS if road == "open" or damage in FEW]
)
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside a plain queue"])
def test_its_offsets_are_never_given_again(
    kind: Kind, damage: str, road: str, stop: str, other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if other:
        monkeypatch.setattr(snapshot, "TICK_NS", 0)  # the snapshot of plain queues holds then
    root, content = tmp_path / "store", Content()
    end = filled(kind, root, content, other=other)
    assert verify(root).ok

    if stop == "killed while opening":  # before it had changed anything
        (root / ABORT).write_bytes(OWN_MARK)
    elif stop == "killed later":
        live = root.rename(tmp_path / "live")
        with kind.open(live) as store:
            kind.put(store, 0, content)
            store._flush_all()
            shutil.copytree(live, root)
    DAMAGES[damage](kind.files(root, kind.queues[1]))
    used = ROADS[road](root)
    used = used if isinstance(used, Path) else root
    if damage == "cut" and road == "open":
        with pytest.raises(CorruptData, match="stratalog repair"):
            kind.open(root)
        repair(plan_repair(root))
    for number in range(2):
        with kind.open(used) as store:
            quiet = store.queue(*kind.queues[1])
            assert quiet.max_offset == end
            assert list(store.queue(*kind.queues[0]).read())
            if number:
                kind.put(store, 1, content)
                assert next(quiet.read()).queue_offset == end
    assert verify(used).ok


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
@pytest.mark.parametrize("road", ["open", "rebuild", "repair"])
@pytest.mark.parametrize("stop", STOPS[:2])
def test_a_sibling_s_file_in_the_place_of_its_own_does_not_give_its_offsets_again(
    kind: Kind, road: str, stop: str, tmp_path: Path
) -> None:
    root, content = tmp_path / "store", Content()
    end = filled(kind, root, content)
    if stop != "clean":
        (root / ABORT).write_bytes(OWN_MARK)
    for path in kind.files(root, kind.queues[1]):
        path.write_bytes(kind.files(root, kind.queues[0])[-1].read_bytes())
    ROADS[road](root)
    for _ in range(2):
        with kind.open(root) as store:
            assert store.queue(*kind.queues[1]).max_offset >= end
            assert list(store.queue(*kind.queues[0]).read())


def max_offset(kind: Kind, root: Path) -> int:
    with kind.open(root) as store:
        assert list(store.queue(*kind.queues[0]).read())
        return store.queue(*kind.queues[1]).max_offset


@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
@pytest.mark.parametrize(("damage", "road"), [("lost", "rebuild"), ("zeroed", "repair"), ("lost", "copy")])
def test_rebuild_and_repair_write_its_end_into_its_files(kind: Kind, damage: str, road: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    end = filled(kind, root, Content())
    DAMAGES[damage](kind.files(root, kind.queues[1]))
    if damage == "lost":
        report = verify(root)
        assert any(str(kind.directory(root, kind.queues[1])) == problem.path for problem in report.problems)
    used = ROADS[road](root)
    used = used if isinstance(used, Path) else root
    assert verify(used).ok
    (used / SNAPSHOT).unlink()
    assert max_offset(kind, used) == end


@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
@pytest.mark.parametrize(("damage", "road"), [("lost", "open"), ("zeroed", "open"), ("directory", "rebuild")])
def test_its_end_is_known_without_the_checkpoint(kind: Kind, damage: str, road: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    end = filled(kind, root, Content())
    DAMAGES[damage](kind.files(root, kind.queues[1]))
    (root / CHECKPOINT).unlink()
    ROADS[road](root)
    assert max_offset(kind, root) == end


class Killed(BaseException):
    pass


def test_a_killed_rebuild_of_a_store_that_rocketmq_had_revives_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    filled(PLAIN, root, Content())
    (root / LOCK).write_bytes(b"lock")  # as RocketMQ leaves it, after the topic was deleted
    DAMAGES["directory"](PLAIN.files(root, PLAIN.queues[1]))

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(rebuilding, "exchange", kill)
        with pytest.raises(Killed):
            rebuild(root)
    rebuild(root)
    assert max_offset(PLAIN, root) == 0


UNIT_DAMAGES = {"zeros": None, "far ahead": 1 << 40, "into the log": 1 << 15, "ahead": 1 << 13, "negative": -1 << 63}
"""What is changed in a unit's log offset; None: the whole unit is zeros."""


@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
@pytest.mark.parametrize(
    ("damage", "stop", "number"),
    [
        ("zeros", "crash", 3),
        ("ahead", "crash", 10),
        ("into the log", "closed", 3),
        ("far ahead", "rebuilt", 3),
        ("zeros", "rebuilt", 10),
    ],
)
def test_units_after_a_damaged_one_tell_its_end(
    kind: Kind, damage: str, stop: str, number: int, tmp_path: Path
) -> None:
    root, size = tmp_path / "store", kind.layout.size
    end = filled(kind, root, Content())
    (root / LOCK).write_bytes(b"lock")  # RocketMQ had it
    (root / CHECKPOINT).unlink()
    if stop == "crash":
        (root / ABORT).write_bytes(b"1")
    path = kind.files(root, kind.queues[1])[number // QUEUE_FILE_UNITS]
    data, at = bytearray(path.read_bytes()), number % QUEUE_FILE_UNITS * size
    unit = int.from_bytes(data[at : at + 8], "big", signed=True)
    assert any(data[at + size :])
    change = UNIT_DAMAGES[damage]
    data[at : at + size] = (
        bytes(size) if change is None else (unit ^ change).to_bytes(8, "big", signed=True) + data[at + 8 : at + size]
    )
    path.write_bytes(data)
    if stop == "rebuilt":
        rebuild(root)
        assert verify(root).ok
    for _ in range(2):
        assert max_offset(kind, root) == end
    assert verify(root).ok


@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
@pytest.mark.parametrize("gone", ["units of expired messages", "all units of the quiet queue"])
def test_log_files_that_are_put_back_are_served_again(kind: Kind, gone: str, tmp_path: Path) -> None:
    root, content = tmp_path / "store", Content()
    with kind.open(root) as store:
        for number in [*QUIET_PUTS, *BUSY_PUTS]:
            kind.put(store, number, content)
    oldest = sorted((root / "commitlog").iterdir())[0]
    backup = oldest.rename(tmp_path / oldest.name)
    if gone == "units of expired messages":  # RocketMQ removes them with the log's file
        kind.files(root, kind.queues[0])[0].unlink()
    else:
        lose(kind.files(root, kind.queues[1]))
    with kind.open(root) as store:
        kind.put(store, 0, content)
    shutil.copy(backup, oldest)
    for _ in range(2):
        with kind.open(root) as store:
            for key in kind.queues:
                assert {m.queue_offset: Known.of(m) for m in store.queue(*key).read()} == content.queues[key]
    assert verify(root).ok


@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_a_unit_that_only_tells_its_end_survives_a_crash(kind: Kind, tmp_path: Path) -> None:
    root = tmp_path / "store"
    end = filled(kind, root, Content())
    lose(kind.files(root, kind.queues[1]))
    assert max_offset(kind, root) == end
    (root / LOCK).write_bytes(b"lock")  # RocketMQ had it
    (root / ABORT).write_bytes(b"1")
    (root / CHECKPOINT).unlink()
    for _ in range(2):
        assert max_offset(kind, root) == end


def taken_by_rocketmq(root: Path) -> None:
    (root / LOCK).write_bytes(b"lock")
    for name in (SNAPSHOT, CHECKPOINT):
        (root / name).unlink(missing_ok=True)


@pytest.mark.one_in(27)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
@pytest.mark.parametrize("road", ["open", "rebuild", "repair"])
@pytest.mark.parametrize(("field", "bit"), [("commit_log_offset", 63), ("commit_log_offset", 40), ("size", 31)])
@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "RocketMQ's"])
def test_a_damaged_newest_unit_tells_its_end(
    kind: Kind, road: str, field: str, bit: int, is_ours: bool, tmp_path: Path
) -> None:
    root, size = tmp_path / "store", kind.layout.size
    end = filled(kind, root, Content())
    if not is_ours:
        taken_by_rocketmq(root)
    path = kind.files(root, kind.queues[1])[-1]
    data = bytearray(path.read_bytes())
    at = (len(bytes(data).rstrip(b"\0")) - 1) // size * size + kind.layout.position(field)
    data[at + 7 * (field != "size") + 3 * (field == "size") - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    assert any(str(path.parent) in problem.path for problem in verify(root).problems)
    ROADS[road](root)
    for _ in range(2):
        assert max_offset(kind, root) == end
        assert verify(root).ok


@pytest.mark.one_in(27)
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
@pytest.mark.parametrize("road", ["open", "rebuild", "repair"])
@pytest.mark.parametrize("older_count", [0, 1, 6])
@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "RocketMQ's"])
def test_the_offset_of_an_only_message_that_names_another_queue_is_not_given_again(
    kind: Kind, road: str, older_count: int, is_ours: bool, tmp_path: Path
) -> None:
    root, content = tmp_path / "store", Content()
    with kind.open(root) as store:
        for number in [*[1] * older_count, *BUSY_PUTS, *BUSY_PUTS]:
            kind.put(store, number, content)
        kind.put(store, 1, content)
        for number in BUSY_PUTS[:30]:
            kind.put(store, number, content)
    messages = content.queues[kind.queues[1]]
    if older_count:
        sorted((root / "commitlog").iterdir())[0].unlink()
    if not is_ours:
        taken_by_rocketmq(root)
    at = messages[len(messages) - 1].commit_log_offset
    path = root / "commitlog" / f"{at - at % SIZES['mapped_file_size_commit_log']:020d}"
    data = bytearray(path.read_bytes())
    data[at % len(data) + HEAD.position("queue_id") + 3] ^= 4
    path.write_bytes(data)
    ROADS[road](root)
    assert max_offset(kind, root) == len(messages)
    if road != "open":
        assert verify(root).ok
        assert not plan_repair(root).actions


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
@pytest.mark.parametrize("more", [False, True], ids=["quiet", "two more"])
@pytest.mark.parametrize("then", ["killed", "a block lost"])
def test_messages_that_expired_are_not_taken_for_lost(kind: Kind, more: bool, then: str, tmp_path: Path) -> None:
    """A queue that got its end back says by one unit that its messages are gone, not that they were damaged."""
    root = tmp_path / "store"
    end = filled(kind, root, content := Content())
    lose(kind.files(root, kind.queues[1]))
    with kind.open(root) as store:
        before = len(content.queues[kind.queues[1]])
        for number in [*[1] * (2 * more), *BUSY_PUTS, *BUSY_PUTS]:
            kind.put(store, number, content)
        end += len(content.queues[kind.queues[1]]) - before
        if then == "killed":
            shutil.copytree(root, tmp_path / "copy")
    if then == "killed":
        root = tmp_path / "copy"
    for path in sorted((root / "commitlog").iterdir())[:-2]:
        path.unlink()
    if then != "killed":
        path = sorted((root / "commitlog").iterdir())[0]
        data = bytearray(path.read_bytes())
        data[4096:8192] = bytes(4096)
        path.write_bytes(data)
    plan = plan_repair(root)
    assert {(one.topic, one.queue_id) for one in plan.lost} <= {kind.queues[0]}
    repair(plan)
    with kind.open(root) as store:
        queue = store.queue(*kind.queues[1])
        assert queue.min_offset == queue.max_offset == end


@pytest.mark.one_in(54)
@pytest.mark.parametrize("is_new_snapshot", [False, True], ids=["", "closed again"])
@pytest.mark.parametrize("is_copy", [False, True], ids=["in place", "copied store"])
@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize(
    ("siblings", "gone", "left"), [(1, 1, 1), (2, 1, 1), (2, 1, 2), (5, 1, 1), (3, 2, 2), (2, 0, 3)]
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_file_of_expired_messages_in_the_place_of_its_own_hides_no_message(
    kind: Kind, siblings: int, gone: int, left: int, mode: Literal["r", "w"], is_copy: bool, is_new_snapshot: bool,
    tmp_path: Path,
) -> None:  # fmt: skip
    root, content, (quiet, own) = tmp_path / "store", Content(), kind.queues

    def put(store: MessageStore, number: int, count: int) -> None:
        for _ in range(count):
            kind.put(store, number, content)

    with kind.open(root) as store:
        put(store, 6, siblings)
        put(store, 7, gone)
        while store.put("other", b"to the next log file" * 20).commit_log_offset < SIZES["mapped_file_size_commit_log"]:
            pass
        put(store, 7, left)
    sorted((root / "commitlog").iterdir())[0].unlink()
    if is_new_snapshot:
        kind.open(root).close()
    shutil.copyfile(kind.files(root, quiet)[0], kind.files(root, own)[0])
    if is_copy:
        root = shutil.copytree(root, tmp_path / "copy")
    begin = int(sorted((root / "commitlog").iterdir())[0].name)
    expected = {number: known for number, known in content.queues[own].items() if known.commit_log_offset >= begin}
    with kind.open(root, mode=mode) as store:
        found, *_ = read_on(store.queue(*own))
        assert found == expected
        assert store.queue(*own).max_offset == len(content.queues[own])
        assert any("files were replaced" in note or "built again" in note for note in store.recovery.notes)
    if mode == "w":
        assert not plan_repair(root, settings=settings_of(kind)).actions
