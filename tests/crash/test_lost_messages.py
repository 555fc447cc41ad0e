"""Messages that damage took: their offsets stay, nothing else goes, whoever reads the queue."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.test_power_cut import TINY, body_of
from store.model import check, crash_copy, flip, log_files, queue_files, scratch_folder
from stratalog.errors import CorruptData
from stratalog.layout.message import HEAD
from stratalog.layout.queue import FILLER, FILLER_SIZE, LOST_TAGS_CODE, UNIT, hide_lost
from stratalog.tiered import Manifest, PosixBackend
from stratalog.tiered.writer import TierWriter
from stratalog.tools.dump_files import dump_queue
from stratalog.tools.map import map_store
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_fill import LostMessage
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

COUNT = 60
MIDDLE = (20, 21, 22, 40)
END = (58, 59)
FRONT = (0, 1)
OTHER = "other"
"""A topic with messages behind all the damage: without one the damage would be a torn tail."""
LOST_QUEUE = "lost"
"""A topic whose one message is damaged: none of its queue is left."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


def damaged(folder: Path, *lost: int, **settings: Any) -> Path:
    """A store as a crash leaves it, in which these messages of one queue are damaged."""
    with stratalog.open(folder / "running", **TINY | settings) as store:
        offsets = [store.put("t", body_of(n), keys=[f"k{n}"], tags="a").commit_log_offset for n in range(COUNT)]
        offsets.append(store.put(LOST_QUEUE, b"the only one").commit_log_offset)
        for number in range(5):
            store.put(OTHER, body_of(number))
        store.dispatch()
        crash_copy(store, folder / "store")
    for number in lost:
        file, position = divmod(offsets[number], TINY["mapped_file_size_commit_log"])
        flip(log_files(folder / "store")[file], position + HEAD.position("magic"))
    (folder / "store" / "checkpoint").unlink()
    return folder / "store"


def units_of(root: Path) -> list[tuple[int, int, int]]:
    data = b"".join(path.read_bytes() for path in queue_files(root, "t", 0))
    return [unit for unit in UNIT.struct.iter_unpack(data) if unit[1]]


def left(*lost: int) -> list[int]:
    return [number for number in range(COUNT) if number not in lost]


@pytest.mark.parametrize(
    "lost", [MIDDLE, END, FRONT, FRONT + MIDDLE + END], ids=["middle", "end", "front", "all three"]
)
def test_every_reader_gives_each_message_that_is_left_once(lost: tuple[int, ...], folder: Path) -> None:
    root = damaged(folder, *lost)
    for _ in range(2):  # as recovered, and as opened after a clean stop
        with stratalog.open(root, **TINY) as store:
            check(store)
            queue, there = store.queue("t"), left(*lost)
            assert queue.max_offset == COUNT
            assert [(m.queue_offset, m.body) for m in queue.read()] == [(n, body_of(n)) for n in there]
            assert queue.read_arrow(columns=["queueOffset"])["queueOffset"].to_pylist() == there
            for first in range(queue.min_offset, COUNT):  # wherever a chunk of units begins or ends
                assert [m.queue_offset for m in queue.read(first, count=3)] == [n for n in there if first <= n][:3]
            assert queue.estimate_count(tags="a") == len(there)
            times = {m.store_timestamp: m.queue_offset for m in reversed(list(queue.read()))}
            for time, number in times.items():
                assert store.queue("t").offset_at(time) <= number
                assert next(iter(queue.read(queue.offset_at(time)))).store_timestamp == time
            assert queue.min_offset == there[0]
            (seen,) = [found for found in map_store(root).queues if found.topic == "t"]
            assert (seen.min_offset, seen.max_offset) == (there[0], COUNT)


@pytest.mark.parametrize("lost", [MIDDLE, END, FRONT], ids=["middle", "end", "front"])
def test_the_unit_of_a_lost_message_leads_to_its_neighbour_and_says_so(lost: tuple[int, ...], folder: Path) -> None:
    root = damaged(folder, *lost)
    stratalog.open(root, **TINY).close()
    units = units_of(root)
    for number in lost:
        neighbour = max((n for n in left(*lost) if n < number), default=left(*lost)[0])
        assert units[number] == (*units[neighbour][:2], LOST_TAGS_CODE)
    told = {item.values["queue_offset"]: item.values["count"] for path in queue_files(root, "t", 0)
            for item in dump_queue(path) if item.kind == "lost"}  # fmt: skip
    assert sum(told.values()) == len(lost)
    assert told.keys() <= set(lost)


def test_a_queue_that_lost_all_it_had_leads_nowhere_and_goes_on(folder: Path) -> None:
    root = damaged(folder, COUNT)
    with stratalog.open(root, **TINY) as store:
        queue = store.queue(LOST_QUEUE)
        assert (queue.min_offset, queue.max_offset, list(queue.read())) == (1, 1, [])
        newest = int(log_files(root)[-1].name)
        data = queue_files(root, LOST_QUEUE, 0)[0].read_bytes()
        assert UNIT.unpack(data) == (newest - 1, 3, LOST_TAGS_CODE)  # over the end of the file before
        assert store.put(LOST_QUEUE, b"next").queue_offset == 1
        assert [message.queue_offset for message in queue.read()] == [1]


@pytest.mark.parametrize("lost", [MIDDLE, END], ids=["middle", "end"])
def test_the_unit_of_a_lost_message_has_no_extension(lost: tuple[int, ...], folder: Path) -> None:
    root = damaged(folder, *lost, enable_consume_queue_ext=True)
    for is_clean in (False, True):
        with stratalog.open(root, **TINY, enable_consume_queue_ext=True) as store:
            assert not (is_clean and store.recovery.rebuilt)
            queue = store.queue("t")
            assert [message.queue_offset for message in queue.read()] == left(*lost)
            assert queue.estimate_count(tags="a") == len(left(*lost))
    assert {units_of(root)[number][2] for number in lost} == {LOST_TAGS_CODE}


def test_batches_lost_at_the_end_keep_their_offsets(folder: Path) -> None:
    with stratalog.open(folder / "running", **TINY) as store:
        store.create_topic("batches", queues=1, queue_type="BatchCQ")
        queue = store.queue("batches", 0)
        offsets = [queue.put_batch([b"one", b"two"], unique_key=f"{n}").commit_log_offset for n in range(10)]
        store.put(OTHER, b"behind")
        store.dispatch()
        crash_copy(store, folder / "store")
    root = folder / "store"
    for number in (4, 8, 9):
        flip(log_files(root)[0], offsets[number] + HEAD.position("magic"))
    (root / "checkpoint").unlink()
    there = [offset for offset in range(16) if offset not in (8, 9)]
    for more in range(3):
        with stratalog.open(root, **TINY) as store:
            queue = store.queue("batches", 0)
            assert [message.queue_offset for message in queue.read()] == [*there, *range(20, 20 + more)]
            assert queue.put(b"next").queue_offset == 20 + more


def test_offsets_lost_at_the_end_are_given_to_nobody_and_messages_behind_are_read(folder: Path) -> None:
    root = damaged(folder, *END)
    with stratalog.open(root, **TINY) as store:
        assert store.put("t", b"next").queue_offset == COUNT
        crash_copy(store, folder / "again")
    for again in (root, folder / "again"):
        with stratalog.open(again, **TINY) as store:
            check(store)
            assert [message.queue_offset for message in store.queue("t").read()] == [*left(*END), COUNT]


def test_what_dispatch_made_around_lost_messages_is_what_a_rebuild_makes(folder: Path) -> None:
    root = damaged(folder, *FRONT, *MIDDLE, *END)
    with stratalog.open(root, **TINY) as store:
        store.put("t", b"next")
    made = units_of(root)
    report = verify(root)
    assert not [problem for problem in report.problems if problem.part == "queue"]
    shutil.copytree(root, folder / "copy")
    rebuild(root)
    assert units_of(root) == made
    with stratalog.open(root, **TINY) as store:
        assert store.recovery.clean
        assert not store.recovery.rebuilt


@pytest.mark.parametrize("lost", [MIDDLE, END], ids=["middle", "end"])
def test_repair_knows_whose_messages_were_lost_after_recovery_passed_them(lost: tuple[int, ...], folder: Path) -> None:
    root = damaged(folder, *lost)
    for number in lost:  # with its body intact a message would be restored
        path = next(path for path in log_files(root) if body_of(number) in path.read_bytes())
        path.write_bytes(path.read_bytes().replace(body_of(number), bytes(len(body_of(number)))))
    stratalog.open(root, **TINY).close()
    plan = plan_repair(root)
    assert plan.lost == [LostMessage("t", 0, number) for number in lost]
    assert repair(plan).ok
    with stratalog.open(root, **TINY) as store:
        assert store.queue("t").max_offset == COUNT
        assert [message.queue_offset for message in store.queue("t").read()] == left(*lost)
        assert not [unit for unit in units_of(root) if unit[2] == LOST_TAGS_CODE]


def test_a_tier_gets_no_message_twice(folder: Path) -> None:
    root = damaged(folder, *MIDDLE, *END)
    backend = PosixBackend(folder / "tier")
    manifest = Manifest(backend, "cluster", "broker")
    with stratalog.open(root, **TINY) as store:
        queue = store.queue("t")
        writer = TierWriter(backend, manifest.load())

        def copy(first: int, count: int) -> None:
            units = queue.units(first, count)
            writer.append("t", 0, units, window=store.log.window(), first_queue_offset=first, topic_id=0)

        copy(0, 20)
        with pytest.raises(CorruptData, match="queue offset 20"):
            copy(20, 1)
        # A writer that is handed a unit as it is stored notices by the record.
        stored = UNIT.pack(*units_of(root)[20])
        assert stored != hide_lost(stored)
        with pytest.raises(CorruptData, match="queue offset 20"):
            writer.append("t", 0, stored, window=store.log.window(), first_queue_offset=20, topic_id=0)


def test_a_unit_misdirected_to_its_neighbour_is_damage_and_is_built_again(folder: Path) -> None:
    root = damaged(folder, 40)
    stratalog.open(root, **TINY).close()
    path = queue_files(root, "t", 0)[0]
    data = bytearray(path.read_bytes())
    data[UNIT.size * 5 : UNIT.size * 6] = data[UNIT.size * 4 : UNIT.size * 5]
    path.write_bytes(data)
    assert [problem for problem in verify(root).problems if problem.part == "queue"]
    with stratalog.open(root, mode="r", **TINY) as store:
        assert [message.queue_offset for message in store.queue("t").read()] == left(40)


def test_fillers_of_an_earlier_version_are_passed_over(folder: Path) -> None:
    """They had no place, but a log offset between their neighbours'."""
    root = damaged(folder, *MIDDLE)
    stratalog.open(root, **TINY).close()
    units = units_of(root)
    for number in MIDDLE:
        path = queue_files(root, "t", 0)[number * UNIT.size // TINY["mapped_file_size_consume_queue"]]
        position = number * UNIT.size % TINY["mapped_file_size_consume_queue"]
        data = bytearray(path.read_bytes())
        data[position : position + UNIT.size] = UNIT.pack(units[number + 1][0] - 1, FILLER_SIZE, 0)
        path.write_bytes(data)
    with stratalog.open(root, mode="r", **TINY) as store:
        assert [message.queue_offset for message in store.queue("t").read()] == left(*MIDDLE)


def test_units_of_lost_messages_are_hidden_wherever_they_stand() -> None:
    real, lost = UNIT.pack(500, 100, 7), UNIT.pack(500, 100, LOST_TAGS_CODE)
    hidden = UNIT.pack(500, FILLER_SIZE, LOST_TAGS_CODE)
    for units in ([real], [], [FILLER, real], [lost], [real, lost, lost], [lost, real], [real, lost, real]):
        expected = [hidden if unit == lost else unit for unit in units]
        assert hide_lost(b"".join(units)) == b"".join(expected)
