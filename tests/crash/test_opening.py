"""Opening what is in an unusual state: mixed up, half built, with few descriptors, or much to read."""

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash import test_faults
from crash.test_power_cut import TINY, body_of
from crash.test_recovery import LOG_FILE, expected, filled, open_tiny, place
from store.kinds import BATCH, EXTENDED, PLAIN, Kind, Known
from store.model import bodies, check, crash_copy, flip, index_files, log_files, queue_files, walk
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, StoreFailed, StoreUnavailable
from stratalog.layout.index import HEADER, ITEM, SLOT, items_position, slots_position
from stratalog.layout.message import HEAD
from stratalog.layout.queue import UNIT
from stratalog.store import index_file, log_scan, message_store, rederive
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk, OpenFile
from stratalog.store.index_file import Index
from stratalog.store.message_store import MessageStore
from stratalog.store.rederive import Progress
from stratalog.store.topics import QueueType
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of a few KiB is recovered as one of many GiB is: in pieces, side by side, kept on the way."""
    monkeypatch.setattr(log_scan, "_PIECE_SIZE", 700)
    monkeypatch.setattr(rederive, "_LONG_SIZE", 0)
    monkeypatch.setattr(rederive, "_KEEP_SIZE", 3000)
    monkeypatch.setattr(index_file, "_BULK_RECORDS", 1)
    monkeypatch.setattr(message_store, "_KEEPS_PER_INDEX_HEADER", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)


# -- much to read ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("victims", [(), (0,), (7, 8, 9), (25, 31, 58), (59,)])
def test_a_log_checked_in_pieces_loses_what_is_damaged_and_no_more(victims: tuple[int, ...], folder: Path) -> None:
    root = folder / "store"
    offsets = filled(root, clean=False)
    (root / "checkpoint").unlink()
    for victim in victims:
        path, position = place(root, offsets[victim])
        flip(path, position + HEAD.size)
    for _ in range(2):
        with open_tiny(root) as store:
            check(store)
            lost = {*victims} - {59}  # the last one is a torn tail
            assert bodies(store) == expected(n for n in range(60 - (59 in victims)) if n not in lost)


@pytest.mark.usefixtures("in_pieces")
def test_a_body_that_holds_records_does_not_lead_a_piece_astray(folder: Path) -> None:
    """Copies of the log in a body say that they stand elsewhere, unless the body is where the log would have been."""
    store = open_tiny(folder / "running")
    first = [store.put("t", body_of(number)) for number in range(20)]
    copied = log_files(folder / "running")[0].read_bytes()[: first[-1].end_offset]
    store.put("t", copied)
    for number in range(20):
        store.put("t", body_of(number))
    crash_copy(store, folder / "store")
    store.close()
    (folder / "store" / "checkpoint").unlink(missing_ok=True)
    with open_tiny(folder / "store") as store:
        check(store)
        assert [len(found) for found in bodies(store).values()] == [41]


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("derived", [True, False], ids=["killed", "only the log"])
def test_the_same_is_built_in_bulk_as_one_by_one(derived: bool, folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=True)
    whole = {path.relative_to(root): path.read_bytes() for path in root.glob("consumequeue/**/*") if path.is_file()}
    indexed = [path.read_bytes() for path in index_files(root)]
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    if not derived:
        shutil.rmtree(root / "consumequeue")
        shutil.rmtree(root / "index")
    with open_tiny(root) as store:
        check(store)
    assert {path: (root / path).read_bytes() for path in whole} == whole
    assert [path.read_bytes() for path in index_files(root)] == indexed


@pytest.mark.usefixtures("in_pieces")
def test_nothing_is_indexed_behind_records_whose_indexing_failed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder / "store"
    filled(root, clean=False)
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    (root / "checkpoint").unlink(missing_ok=True)
    put, calls, is_ahead = Index.put, [], threading.Event()
    told: list[Progress] = []

    def count(progress: Progress) -> None:
        if progress.step == "building queues and index":
            told.append(progress)
            if len(told) == 4:
                is_ahead.set()

    def failing(self: Index, *args: Any) -> None:
        calls.append(args)
        if len(calls) == 3:
            is_ahead.wait(10)
            raise OSError(errno.EIO, "unplugged")
        put(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Index, "put", failing)
        with pytest.raises(StoreUnavailable, match="unplugged"):
            open_tiny(root, progress=count)
    assert len(calls) == 3
    with open_tiny(root) as store:
        check(store)


@pytest.mark.usefixtures("in_pieces")
def test_recovery_in_pieces_ends_the_same_when_it_is_interrupted_at_any_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_faults.test_recovery_that_is_interrupted_at_any_call_ends_the_same_when_run_again(folder, monkeypatch)


@pytest.mark.usefixtures("in_pieces")
def test_a_killed_recovery_goes_on_where_it_was(folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=False)
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)
    (root / "checkpoint").unlink()

    class Killed(BaseException):
        pass

    def kill(progress: Progress) -> None:
        if progress.step == "building queues and index" and progress.done > progress.total * 3 // 4:
            raise Killed

    with pytest.raises(Killed):
        open_tiny(root, progress=kill)
    with open_tiny(root, mode="r") as store:
        assert store.recovery.scanned_from > walk(root).end // 3
        check(store)
    with open_tiny(root) as store:
        check(store)
        assert bodies(store) == expected(range(60))


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize(
    ("vouched", "steps"),
    [(True, ["checking the log", "building queues and index"]), (False, ["building queues and index"])],
)
def test_progress_is_told_by_step_with_rate_and_time_left(vouched: bool, steps: list[str], folder: Path) -> None:
    """Where nothing vouches for what is derived, it follows the walk over the log in one step."""
    killed_behind_a_checkpoint(folder / "store", 60)
    if not vouched:
        (folder / "store" / "checkpoint").unlink()
    told: list[Progress] = []
    now = iter(range(0, 10**12, 10**9))
    with open_tiny(folder / "store", progress=told.append, clock_ns=lambda: 1_700_000_000 * 10**9 + next(now)) as store:
        assert store.log.end_offset > 60 * 800
    assert list(dict.fromkeys(p.step for p in told)) == steps
    for step in steps:
        found = [p for p in told if p.step == step]
        assert [p.done for p in found] == sorted(p.done for p in found)
        assert len(found) > 3
        assert all(p.rate > 0 and p.seconds_left is not None and p.seconds_left >= 0 for p in found if p.done)
    assert told[-1].done == told[-1].total > 0


@pytest.mark.usefixtures("in_pieces")
def test_what_is_refused_at_the_end_is_refused_before_a_byte_is_changed(folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=False, count=200)
    shutil.rmtree(root / "consumequeue" / "t" / "1")
    for path in log_files(root)[-2:]:
        path.unlink()
    vouched = Checkpoint.load(root, Disk())
    assert vouched.seal is not None
    (root / "checkpoint").write_bytes(
        replace(vouched, seal=replace(vouched.seal, log_end_offset=walk(root).end + 1)).encode()
    )
    before = {
        path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name not in ("lock", "abort")
    }
    for mode in ("r", "w"):
        with pytest.raises(CorruptData, match="once held messages up to"):
            open_tiny(root, mode=mode)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("derived", [True, False], ids=["killed", "only the log"])
def test_an_end_presumed_within_a_body_is_found_wrong_and_all_is_done_again(derived: bool, folder: Path) -> None:
    """The last body holds records that say they stand where they stand, and goes on behind them."""
    store = open_tiny(folder / "running", mapped_file_size_commit_log=1 << 16)
    first = [store.put("t", body_of(number), keys="k") for number in range(20)]
    inner = bytearray(log_files(folder / "running")[0].read_bytes()[: first[-1].end_offset])
    begin = store.log.end_offset + HEAD.size
    for receipt in first:
        position = receipt.commit_log_offset + HEAD.position("commit_log_offset")
        inner[position : position + 8] = (begin + receipt.commit_log_offset).to_bytes(8, "big")
    last = store.put("t", bytes(inner) + b"x" * 300, keys="k")
    store.dispatch()
    crash_copy(store, folder / "store")
    store.close()
    (folder / "store" / "checkpoint").unlink(missing_ok=True)
    if not derived:
        shutil.rmtree(folder / "store" / "consumequeue")
    with open_tiny(folder / "store", mapped_file_size_commit_log=1 << 16) as store:
        assert store.log.end_offset == store.recovery.end_offset == last.end_offset
        check(store)
        assert [len(found) for found in bodies(store).values()] == [21]
        assert len(store.query("t", key="k")) == 21


@pytest.mark.usefixtures("in_pieces")
def test_queues_that_follow_the_walk_are_vouched_for_only_with_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder / "store"
    offsets = filled(root, clean=False)
    (root / "checkpoint").unlink()
    calls = recorded(root, monkeypatch)
    with open_tiny(root):
        pass
    synced = {at for name, at in calls.calls[: vouching(calls)] if name == "fdatasync"}
    assert {str(place(root, offset)[0]) for offset in offsets} <= synced


@pytest.mark.usefixtures("in_pieces")
def test_what_was_built_of_much_log_is_vouched_for_at_dispatch_s_first_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rederive, "_KEEP_SIZE", 1 << 30)
    root = folder / "store"
    filled(root, clean=False)
    (root / "checkpoint").unlink()
    with open_tiny(root, flush_interval_consume_queue=3_600_000) as store:
        assert store.durable_offset == store.log.end_offset
        assert not (root / "checkpoint").exists()
        store._keep_when_due()
        seal = Checkpoint.load(root, Disk()).seal
        assert seal is not None
        assert (seal.log_end_offset, seal.unit_count) == (store.log.end_offset, 60)


# -- the index after a crash -----------------------------------------------------------------------------------------

ONE_INDEX = {"max_hash_slot_num": 20, "max_index_num": 5000}


def kept_index(root: Path, *, has_checkpoint: bool = False) -> bytes:
    """A killed store whose index header was stored in the middle; returns what stood in the file at that time."""
    store = open_tiny(root.with_name(root.name + "-running"), **ONE_INDEX)
    for number in range(60):
        store.put("t", body_of(number), queue_id=number % 2, keys=[f"k{number}", "all"], tags="a")
        if number == 40:
            store._flush_all()
            store.index.keep()
            kept = index_files(store.root)[0].read_bytes()
    store.dispatch()
    crash_copy(store, root)
    store.close()
    if not has_checkpoint:
        (root / "checkpoint").unlink()
    return kept


def test_items_below_the_stored_header_are_kept_and_the_slots_made_again(folder: Path) -> None:
    root = folder / "store"
    kept = kept_index(root)
    header = HEADER.unpack(kept)
    assert header.next_item == 1 + 41 * 3
    (path,) = index_files(root)
    before = path.stat().st_ino
    data = bytearray(path.read_bytes())
    slots, items = slots_position(), items_position(ONE_INDEX["max_hash_slot_num"])
    data[slots:items] = os.urandom(items - slots)  # they led to items that never reached the disk
    torn = items + 20 * header.next_item
    data[torn:] = os.urandom(len(data) - torn)
    path.write_bytes(data)
    for mode in ("r", "w"):
        with open_tiny(root, mode=mode, **ONE_INDEX) as store:
            assert index_files(root)[0].stat().st_ino == before
            check(store)
            for number in (0, 40, 41, 59):
                assert [m.body for m in store.query("t", key=f"k{number}")] == [body_of(number)]
            assert len(store.query("t", key="all")) == 60


@pytest.mark.parametrize("has_seal", [True, False])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_an_index_that_rocketmq_went_on_with_after_a_crash_is_built_again(
    folder: Path, *, has_seal: bool, clean: bool
) -> None:
    """It takes the header's count, but the slots as they are: those that lead to later items count as empty, and the
    items before are in no chain any more."""
    root = folder / "store"
    kept = HEADER.unpack(kept_index(root, has_checkpoint=has_seal))
    (path,) = index_files(root)
    data, slot_count = bytearray(path.read_bytes()), ONE_INDEX["max_hash_slot_num"]
    for number in range(kept.next_item, 1 + 60 * 3):
        at = items_position(slot_count) + number * ITEM.size
        item = ITEM.unpack(data, at)
        slot = slots_position() + item.key_hash % slot_count * SLOT.size
        newest = SLOT.unpack(data, slot).newest_item
        item = item._replace(previous_item=newest if newest < number else 0)
        data[at : at + ITEM.size], data[slot : slot + SLOT.size] = ITEM.pack(*item), SLOT.pack(number)
    header = kept._replace(end_commit_log_offset=item.commit_log_offset, next_item=1 + 60 * 3)
    data[: HEADER.size] = HEADER.pack(*header)
    path.write_bytes(data)
    if clean:
        (root / "abort").unlink()
    for mode in ("r", "w"):
        with open_tiny(root, mode=mode, **ONE_INDEX) as store:
            check(store)
            assert len(store.query("t", key="all")) == 60
            assert all(len(store.query("t", key=f"k{number}")) == 1 for number in range(60))


@pytest.mark.parametrize("number", [1, 2, 60, 123])
@pytest.mark.parametrize("at", [0, 4, 16])
def test_an_item_below_the_header_that_cannot_be_has_the_index_built_again(number: int, at: int, folder: Path) -> None:
    root = folder / "store"
    kept_index(root)
    path = index_files(root)[0]
    flip(path, items_position(ONE_INDEX["max_hash_slot_num"]) + 20 * number + at, 0x80)
    with open_tiny(root, **ONE_INDEX) as store:
        check(store)


@pytest.mark.parametrize("count", [-(2**31), -1, 0, 1, 4999, 5000, 5001, 2**31 - 1])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_wild_count_in_the_index_header_has_the_index_built_again(count: int, clean: bool, folder: Path) -> None:
    root = folder / "store"
    kept_index(root)
    if clean:
        open_tiny(root, **ONE_INDEX).close()
    path = index_files(root)[0]
    data = bytearray(path.read_bytes())
    fields = HEADER.unpack(bytes(data))._asdict() | {"next_item": count}
    data[: HEADER.size] = HEADER.pack(*fields.values())
    path.write_bytes(data)
    with open_tiny(root, **ONE_INDEX) as store:
        check(store)
        assert len(store.query("t", key="all")) == 60


def test_the_checkpoint_vouches_for_the_index_as_far_as_its_header(folder: Path) -> None:
    """RocketMQ removes, after a crash, an index file that ends behind the checkpoint's index time."""
    from stratalog.store.checkpoint import Checkpoint

    store = open_tiny(folder / "store", **ONE_INDEX)
    store.put("t", b"one", keys="k")
    store._flush_all()
    store.index.keep()
    store.put("t", b"two", keys="k")
    store._flush_all()
    header = HEADER.unpack(index_files(store.root)[0].read_bytes())
    assert header.next_item == 2
    assert Checkpoint.load(store.root, Disk()).index_msg_timestamp == header.end_timestamp > 0
    store.close()


# -- mixed up --------------------------------------------------------------------------------------------------------


def other_store(root: Path, *, topic: str = "t", clean: bool = True) -> Path:
    """A store of the same shape with other messages."""
    with open_tiny(root) as store:
        for number in range(80):
            store.put(topic, b"other" * (23 + number % 7), queue_id=number % 2, keys=f"o{number}")
    if not clean:
        (root / "abort").touch()
    return root


@pytest.mark.parametrize("topic", ["t", "u"], ids=["the same queues", "other queues"])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_log_file_of_another_store_is_refused(number: int, clean: bool, topic: str, folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=True)
    (root / "queues.snapshot").unlink(missing_ok=True)  # it vouches for older log files
    if not clean:
        (root / "abort").touch()
    path = log_files(root)[number]
    shutil.copy(log_files(other_store(folder / "other", topic=topic))[number], path)
    before = {
        path: path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name not in ("lock", "abort")
    }
    for mode in ("r", "w"):
        with pytest.raises(CorruptData, match=rf"{path.name}.*of another store.*exchange them back"):
            open_tiny(root, mode=mode)
    assert {path: path.read_bytes() for path in before} == before
    assert (root / "abort").exists() != clean


def test_a_log_file_of_which_a_power_cut_tore_the_first_records_is_no_other_store_s(folder: Path) -> None:
    store = open_tiny(folder / "running", mapped_file_size_commit_log=4 * LOG_FILE)
    given = [store.put("t", bytes([1 + number]) * 9000, queue_id=int(number % 3 > 0)) for number in range(6)]
    store.dispatch()
    crash_copy(store, folder / "crashed")
    store.close()
    for count in range(1, 6):
        for torn in combinations(range(6), count):
            root = folder / "torn"
            shutil.copytree(folder / "crashed", root)
            for number in torn:
                middle = (given[number].commit_log_offset + given[number].end_offset) // 2
                with log_files(root)[0].open("r+b") as file:
                    file.seek(middle - middle % 4096)
                    file.write(bytes(4096))
            left = [number for number in range(6) if number not in torn]
            wanted = {queue_id: [1 + n for n in left if int(n % 3 > 0) == queue_id] for queue_id in (0, 1)}
            for mode in ("r", "w"):
                with open_tiny(root, mode=mode, mapped_file_size_commit_log=4 * LOG_FILE) as store:
                    found = {key[1]: [body[0] for body in bodies] for key, bodies in intact(store).items()}
                    assert {queue_id: found.get(queue_id, []) for queue_id in (0, 1)} == wanted, (torn, mode)
            shutil.rmtree(root)


def intact(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    """Bodies of all messages that can be read, by queue."""
    found: dict[tuple[str, int], list[bytes]] = {}
    for topic, queue_id in store.queues():
        queue, read = store.queue(topic, queue_id), found.setdefault((topic, queue_id), [])
        begin = queue.min_offset
        while True:
            try:
                for message in queue.read(begin):
                    read.append(message.body)
                    begin = message.queue_offset + 1
                break
            except CorruptData as error:
                begin = error.next_offset
    return found


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_log_files_in_each_other_s_place_are_refused_and_kept(clean: bool, folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=True, count=200)
    if not clean:
        (root / "abort").touch()
    paths = log_files(root)
    stored = [path.read_bytes() for path in paths]
    for one, other in combinations(range(len(paths)), 2):
        paths[one].write_bytes(stored[other])
        paths[other].write_bytes(stored[one])
        assert not verify(root, settings=StoreSettings(**TINY)).ok
        with contextlib.suppress(CorruptData):
            open_tiny(root).close()
        assert paths[one].read_bytes() == stored[other]
        assert paths[other].read_bytes() == stored[one]
        paths[one].write_bytes(stored[one])
        paths[other].write_bytes(stored[other])
        with open_tiny(root) as store:
            check(store)
            assert bodies(store) == expected(range(200))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("more", [1, 3, 100, 5000])
@pytest.mark.parametrize("kept", [0, 5, 10, 11])
def test_a_wrong_offset_that_the_next_message_belies_hides_no_other_message(kept: int, more: int, folder: Path) -> None:
    filled(folder / "store", clean=False, count=48)
    root, victim = folder / "store", 20  # offset 10 of queue 0; its unit is the last that is kept, or not
    offsets = [record.commit_log_offset for record in walk(root).records]
    for name in ("checkpoint", "queues.snapshot"):
        (root / name).unlink(missing_ok=True)
    units = queue_files(root, "t", 0)[0]
    units.write_bytes(units.read_bytes()[: kept * UNIT.size].ljust(units.stat().st_size, b"\0"))
    path, position = place(root, offsets[victim])
    stored = bytearray(path.read_bytes())
    at = position + HEAD.position("queue_offset")
    stored[at : at + 8] = (10 + more).to_bytes(8)
    path.write_bytes(stored)
    for mode, is_told in (("r", True), ("w", True), ("w", False)):
        with open_tiny(root, mode=mode) as store:
            told = f"log offset {offsets[victim]:,}: offset {10 + more:,} in t/0"
            assert any(told in note for note in store.recovery.notes) == is_told
            assert intact(store)["t", 0] == [body_of(n) for n in range(0, 48, 2) if n != victim]
    assert not verify(root, settings=StoreSettings(**TINY)).ok
    assert repair(plan_repair(root, settings=StoreSettings(**TINY))).ok
    with open_tiny(root) as store:
        assert intact(store)["t", 0] == [body_of(n) for n in range(0, 48, 2)]


@pytest.mark.parametrize("number", [0, 3, -1])
def test_an_offset_that_no_record_has_is_told_where_no_damage_explains_it(number: int, folder: Path) -> None:
    root = folder / "store"
    offsets = filled(root, clean=True)
    shutil.rmtree(root / "consumequeue")
    path, position = place(root, offsets[20])
    stored = bytearray(path.read_bytes())
    at = position + HEAD.position("queue_offset")
    stored[at : at + 8] = number.to_bytes(8, signed=True)
    path.write_bytes(stored)
    with open_tiny(root) as store:
        behind, gap, made = store.recovery.notes
        assert made.startswith("queues without a directory, built again from the messages in the log: ")
        assert behind.startswith(f"log offset {offsets[20]:,}: offset {number} in t/0 cannot be")
        assert gap == "t/0: no record of the log has offset 10"
        assert [one.commit_log_offset for one in store.recovery.left_out] == [offsets[20]]
        assert intact(store)["t", 0] == [body_of(n) for n in range(0, 60, 2) if n != 20]
    assert not verify(root, settings=StoreSettings(**TINY)).ok


@pytest.mark.parametrize("more", [1, 100])
def test_a_message_that_is_left_out_is_counted_once_after_crashes(more: int, folder: Path) -> None:
    root = folder / "store"
    offsets = filled(root, clean=True)
    with open_tiny(root) as store:
        store.put("u", b"not in the index, which goes on at the message before")
    path, position = place(root, offsets[-1])
    flip(path, position + HEAD.position("queue_offset"), 1)
    (root / "queues.snapshot").unlink()
    for number in range(5):
        with open_tiny(root) as store:
            assert [one.commit_log_offset for one in store.recovery.left_out] == [offsets[-1]]
        store = open_tiny(root)
        for _ in range(more):
            store.put("u", b"more")
        root = crash_copy(store, folder / f"copy-{number}")
        store.close()


@pytest.mark.parametrize("number", [-1, -2, -3])
def test_an_offset_is_not_given_again_where_damage_moves_the_newest_message(number: int, folder: Path) -> None:
    root = folder / "store"
    offsets = filled(root, clean=True)
    path, position = place(root, offsets[number])
    flip(path, position + HEAD.position("queue_id") + 3, 4)
    for _ in range(2):
        with open_tiny(root) as store:
            assert [store.queue("t", queue_id).max_offset for queue_id in (0, 1)] == [30, 30]


def test_a_crashed_store_without_its_abort_file_keeps_its_index_whole(folder: Path) -> None:
    with open_tiny(folder / "running") as store:
        store.put("t", b"closed", keys=["first"])
    store = open_tiny(folder / "running")
    for number in range(20):
        store.put("t", b"crashed", keys=[f"k{number}"])
    store.dispatch()
    root = crash_copy(store, folder / "store")
    store.close()
    (root / "abort").unlink()
    with open_tiny(root) as store:
        store.put("t", b"new", keys=["new"])
    assert verify(root, settings=StoreSettings(**TINY)).ok


@pytest.mark.parametrize("topic", ["t", "u"])
def test_queues_of_another_store_are_built_again(topic: str, folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=True)
    other = other_store(folder / "other", topic=topic)
    shutil.rmtree(root / "consumequeue" / "t" / "0")
    shutil.copytree(other / "consumequeue" / topic / "0", root / "consumequeue" / "t" / "0")
    with open_tiny(root) as store:
        check(store)
        assert bodies(store) == expected(range(60))


def test_queues_ahead_of_the_log_are_cut(folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=True)
    shutil.copytree(root, folder / "longer")
    with open_tiny(folder / "longer") as store:
        for number in range(60, 90):
            store.put("t", body_of(number), queue_id=number % 2)
    shutil.rmtree(root / "consumequeue")
    shutil.copytree(folder / "longer" / "consumequeue", root / "consumequeue")
    with open_tiny(root) as store:
        check(store)
        assert bodies(store) == expected(range(60))


def test_a_log_file_missing_in_the_middle_is_named(folder: Path) -> None:
    filled(folder / "store", clean=True, count=200)
    missing = log_files(folder / "store")[1]
    missing.unlink()
    for mode in ("r", "w"):
        with pytest.raises(CorruptData, match=rf"{missing.name}.*missing in the middle.*Restore it"):
            open_tiny(folder / "store", mode=mode)


def test_a_log_or_queue_file_of_another_size_is_named(folder: Path) -> None:
    filled(folder / "store", clean=True)
    path = queue_files(folder / "store", "t", 0)[0]
    os.truncate(path, path.stat().st_size + UNIT.size)
    with pytest.raises(CorruptData, match=str(path)):
        open_tiny(folder / "store")
    os.truncate(path, path.stat().st_size - UNIT.size)
    path = log_files(folder / "store")[0]
    os.truncate(path, LOG_FILE - 1)
    with pytest.raises(CorruptData, match=str(path)):
        open_tiny(folder / "store")


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_log_file_of_zeros_at_the_end_was_not_begun(clean: bool, folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=clean)
    last = log_files(root)[-1]
    last.with_name(f"{int(last.name) + LOG_FILE:020d}").write_bytes(bytes(LOG_FILE))
    for _ in range(2):
        with open_tiny(root) as store:
            check(store)
            assert bodies(store) == expected(range(60))
            assert store.recovery.torn_size == 0


# -- descriptors -----------------------------------------------------------------------------------------------------


class Narrow(Disk):
    """A process that may have that many queue files open at a time."""

    def __init__(self, count_max: int) -> None:
        self.count, self.count_max, self.refused = 0, count_max, 0

    def open(self, path: Path) -> OpenFile:
        if self.count >= self.count_max:
            self.refused += 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        self.count += 1
        disk, file = self, super().open(path)

        class Counted(OpenFile):
            def close(self) -> None:
                disk.count -= 1
                super().close()

        return Counted(file.path, file._file, file.process)


@pytest.mark.parametrize("count_max", [1, 2, 5])
def test_with_few_descriptors_fewer_queue_files_stay_open(count_max: int, folder: Path) -> None:
    disk = Narrow(count_max)
    with open_tiny(folder / "store", disk=disk) as store:
        for number in range(100):
            store.put("t", body_of(number), queue_id=number % 10)
        check(store)
        store._flush_all()
        assert disk.refused
        assert sum(map(len, bodies(store).values())) == 100
    with open_tiny(folder / "store", disk=Narrow(count_max)) as store:
        check(store)


def test_without_a_descriptor_to_open_with_nothing_is_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(folder / "store", clean=True)

    def none_left(disk: Disk, path: Path) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(Disk, "map", none_left)
    before = {path: path.read_bytes() for path in (folder / "store").rglob("*") if path.is_file()}
    with pytest.raises(StoreUnavailable, match=r"Too many open files.*more than [\d,]+ \(ulimit -n\)"):
        open_tiny(folder / "store")
    assert {path: path.read_bytes() for path in (folder / "store").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("mode", ["r", "w"])
def test_full_files_of_log_and_index_take_no_descriptors(mode: str, folder: Path) -> None:
    filled(folder / "store", clean=True, count=400)
    files = len(log_files(folder / "store")) + len(index_files(folder / "store"))
    assert files > 20
    before = len(os.listdir("/proc/self/fd"))
    with open_tiny(folder / "store", mode=mode):
        assert len(os.listdir("/proc/self/fd")) - before < 10
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_more_than_so_many_queue_files_are_open(folder: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with open_tiny(folder / "store") as store:
        for number in range(300):
            store.put("t", b"x", queue_id=number)
        store._flush_all()
        assert len(os.listdir("/proc/self/fd")) - before < 150


# -- promises whose breach went unnoticed once -----------------------------------------------------------------------


class Failing(Disk):
    """Queue files whose next flush fails; the one after would succeed."""

    def __init__(self) -> None:
        self.fails, self.synced = False, 0

    def open(self, path: Path) -> OpenFile:
        disk, file = self, super().open(path)

        class File(OpenFile):
            def sync(self) -> None:
                if disk.fails:
                    disk.fails = False
                    raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
                disk.synced += 1
                super().sync()

        return File(file.path, file._file, file.process)


@pytest.mark.parametrize("evicted", [False, True], ids=["in the flush", "when its file is closed"])
def test_a_failed_flush_of_queues_is_never_tried_again(
    evicted: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Failing()
    store = open_tiny(folder / "store", disk=disk)
    store.put("t", b"one")
    store._flush_all()
    checkpoint = (store.root / "checkpoint").read_bytes()
    store.put("t", b"two")
    store.dispatch()
    disk.fails, disk.synced = True, 0
    if evicted:
        monkeypatch.setattr(store._dispatcher.files, "_count_max", 1)
        store.put("t", b"three", queue_id=1)
    for _ in range(3):
        with pytest.raises(StoreFailed):
            store._flush_all()
    assert disk.synced == 0
    with pytest.raises(StoreFailed):
        store.put("t", b"four")
    store.close()
    assert (store.root / "checkpoint").read_bytes() == checkpoint
    assert (store.root / "abort").exists(), "the stop counts as clean"
    with open_tiny(store.root) as store:
        check(store)


EVICTIONS: dict[str, Callable[[MessageStore], object]] = {
    "a reader": lambda store: list(store.queue("old", 0).read()),
    "a search by time": lambda store: store.queue("old", 0).offset_at(0),
    "a bulk reader": lambda store: store.queue("old", 0).read_arrow(0),
    "dispatch": lambda store: (store.put("old", b"more"), store.dispatch()),
    "a new queue": lambda store: (store.put("new", b"x"), store.dispatch()),
    "a tool's look": lambda store: store.queue("old", 0).units(0, 1),
}


@pytest.mark.parametrize("queue_type", ["SimpleCQ", "BatchCQ"])
@pytest.mark.parametrize("who", EVICTIONS)
def test_a_flush_that_fails_while_a_file_is_closed_fails_the_store_whoever_asked(
    who: str, queue_type: QueueType, folder: Path
) -> None:
    """The kernel reports a lost page once: who passed over that report would vouch for units that are not on disk."""
    disk = Failing()
    store = open_tiny(folder / "store", disk=disk)
    store.create_topic("t", queue_type=queue_type)
    store.put("old", b"one")
    store._flush_all()
    checkpoint = (store.root / "checkpoint").read_bytes()
    store._dispatcher.files._count_max = 1
    if queue_type == "BatchCQ":
        store.queue("t").put_batch([b"two", b"three"], unique_key="u")
    else:
        store.put_many("t", [b"two", b"three"])
    store.dispatch()
    disk.fails, disk.synced = True, 0
    is_reader = who not in ("dispatch", "a new queue")
    with contextlib.nullcontext() if is_reader else pytest.raises(StoreFailed):
        EVICTIONS[who](store)
    assert not disk.fails, "nothing was evicted"
    for refused in (lambda: store.put("t", b"four"), store.flush, store._flush_all):
        with pytest.raises(StoreFailed, match=r"flush of .*t/0.*Input/output error"):
            refused()
    assert disk.synced == 0
    assert [message.body for message in store.queue("t").read(count=2)] == [b"two", b"three"], "reads go on"
    store.close()
    assert (store.root / "checkpoint").read_bytes() == checkpoint
    assert (store.root / "abort").exists(), "the stop counts as clean"
    for path in store.root.glob("*consumequeue/t/0/*"):
        path.write_bytes(bytes(path.stat().st_size))  # what the failed flush may have left
    with open_tiny(store.root) as store:
        assert [message.body for message in store.queue("t").read()] == [b"two", b"three"]


Calls = list[tuple[str, str]]


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from crash.faults import install

    return install(monkeypatch, folder)


def killed_behind_a_checkpoint(root: Path, more: int) -> list[int]:
    """A killed store with `more` records behind its last checkpoint; returns their log offsets."""
    store = open_tiny(root.with_name("running"), flush="async")
    for number in range(10):
        store.put("t", body_of(number))
    store._flush_all()
    offsets = [store.put("t", bytes(800) + body_of(number)).commit_log_offset for number in range(more)]
    crash_copy(store, root)
    store.close()
    return offsets


def vouching(calls: Any) -> int:
    """Number of the call that made the first checkpoint the valid one."""
    return next(n for n, (name, at) in enumerate(calls.calls) if name == "rename" and "checkpoint" in at)


def test_a_tail_is_synced_after_it_was_zeroed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder / "store"
    (torn,) = killed_behind_a_checkpoint(root, 1)
    path, position = place(root, torn)
    flip(path, position + HEAD.size + 100)
    calls = recorded(root, monkeypatch)
    seen: list[bytes] = []
    calls.watch = lambda: seen.append(path.read_bytes()[position:])
    with open_tiny(root) as store:
        assert store.log.end_offset == torn
    zeroed = next(number for number, tail in enumerate(seen) if not any(tail))
    assert ("fdatasync", str(path)) in calls.calls[zeroed : vouching(calls)]


def test_what_a_kill_left_is_made_durable_before_a_checkpoint_vouches_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there to be read, but a power cut now would take it, and the log would end before what was vouched for."""
    root = folder / "store"
    offsets = killed_behind_a_checkpoint(root, 60)
    calls = recorded(root, monkeypatch)
    with open_tiny(root) as store:
        assert store.log.end_offset > offsets[-1]
    synced = {at for name, at in calls.calls[: vouching(calls)] if name == "fdatasync"}
    assert {str(place(root, offset)[0]) for offset in offsets} <= synced
    assert len(synced) > 2


def test_the_checkpoint_vouches_for_what_was_there_before_the_flush(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is dispatched while the flush runs is not in it."""
    from stratalog.store.checkpoint import Checkpoint

    store = open_tiny(folder / "store")
    first = store.put("t", b"one")
    store.dispatch()
    sync = store._dispatcher.files.sync

    def meanwhile() -> None:
        sync()
        store.put("t", b"two")
        store.flush()
        store.dispatch()

    monkeypatch.setattr(store._dispatcher.files, "sync", meanwhile)
    store._flush_all()
    checkpoint = Checkpoint.load(store.root, Disk())
    assert checkpoint.logics_commit_log_offset == first.commit_log_offset
    assert checkpoint.seal is not None
    assert (checkpoint.seal.log_end_offset, checkpoint.seal.unit_count) == (first.end_offset, 1)
    monkeypatch.undo()
    store.close()


@pytest.mark.parametrize("name", ["checkpoint", "abort", "queues.snapshot"])
def test_a_small_file_is_synced_before_it_takes_its_name(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder / "store"
    root.mkdir()
    calls = recorded(root, monkeypatch)
    with open_tiny(root) as store:
        store.put("t", b"one")
    temporary = str(root / f"{name}.tmp")
    renames = [n for n, call in enumerate(calls.calls) if call == ("rename", temporary)]
    assert renames
    for number in renames:
        assert calls.calls[number - 1] == ("fsync", temporary)
        assert calls.calls[number + 1] == ("fsync", str(root)), "the name is not durable"


def test_new_queue_files_are_durable_before_a_checkpoint_vouches_for_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = folder / "store"
    root.mkdir()
    calls = recorded(root, monkeypatch)
    store = open_tiny(root)
    store.put("t", b"one", queue_id=3)
    store.dispatch()
    calls.calls.clear()
    store._flush_all()
    vouched = calls.calls.index(("rename", str(root / "checkpoint.tmp")))
    queue = root / "consumequeue" / "t" / "3"
    before = calls.calls[:vouched]
    assert ("fdatasync", str(queue_files(root, "t", 3)[0])) in before
    for directory in (queue, queue.parent, queue.parent.parent, root):
        assert ("fsync", str(directory)) in before
    store.close()


@pytest.mark.parametrize("state", ["missing", "empty"])
def test_a_queue_file_that_a_power_cut_took_is_derived_again(state: str, folder: Path) -> None:
    """It was created after the last checkpoint: neither its name nor its length was durable."""
    store = open_tiny(folder / "running")
    for number in range(40):
        if number == 20:
            store._flush_all()
        store.put("t", body_of(number), queue_id=number % 2 + (2 if number >= 20 else 0))
    store.dispatch()
    crash_copy(store, folder / "store")
    store.close()
    for queue_id in (2, 3):
        path = queue_files(folder / "store", "t", queue_id)[0]
        path.unlink() if state == "missing" else os.truncate(path, 0)
    with open_tiny(folder / "store") as store:
        check(store)
        assert not store.recovery.rebuilt
        assert sum(map(len, bodies(store).values())) == 40


def test_a_clean_stop_vouches_for_the_whole_index(folder: Path) -> None:
    """RocketMQ removes, after a crash of its own, index files that end behind what the checkpoint vouches for."""
    filled(folder, clean=True)
    header = HEADER.unpack(index_files(folder)[-1].read_bytes())
    assert Checkpoint.load(folder, Disk()).index_msg_timestamp == header.end_timestamp > 0


def _without_seal(root: Path) -> None:
    """As RocketMQ leaves it."""
    replace(Checkpoint.load(root, Disk()), seal=None).store(root, Disk())
    (root / "queues.snapshot").unlink(missing_ok=True)


@pytest.mark.parametrize("checkpoint", ["sealed", "RocketMQ's", "gone"])
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "crashed"])
def test_whichever_index_files_are_gone_every_key_is_found(checkpoint: str, clean: bool, folder: Path) -> None:
    settings = TINY | {"max_hash_slot_num": 20, "max_index_num": 50}
    with stratalog.open(folder / "whole", **settings) as store:
        for number in range(200):
            store.put("orders", b"x", keys=[f"k{number}"] if number < 190 else None, tags="t")
    names = [path.name for path in index_files(folder / "whole")]
    assert len(names) > 3
    for gone in ([0], [1], [0, 2], [len(names) - 1], list(range(len(names)))):
        root = folder / "store"
        shutil.copytree(folder / "whole", root)
        for number in gone:
            (root / "index" / names[number]).unlink()
        if checkpoint == "gone":
            (root / "checkpoint").unlink()
        elif checkpoint == "RocketMQ's":
            _without_seal(root)
        if not clean:
            (root / "abort").touch()
        with stratalog.open(root, **settings) as store:
            found = [number for number in range(190) if store.query("orders", key=f"k{number}", limit=None)]
            assert len(found) == 190, gone
        assert verify(root, settings=StoreSettings(**settings)).ok
        shutil.rmtree(root)


@pytest.mark.parametrize("change", ["renamed", "renumbered", "swapped"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_a_queue_of_one_message_whose_directory_got_another_name_is_built_again(
    kind: Kind, change: str, tmp_path: Path
) -> None:
    """Units and records contradict each other, and the records are right."""
    content = kind.made(tmp_path, count=2)
    topic = kind.queues[0][0]
    directory = tmp_path / kind.tree / topic
    if change == "renamed":
        directory.rename(directory.with_name("other"))
    else:
        (directory / "0").rename(directory / "2")
    if change == "swapped":
        if kind is BATCH:
            pytest.skip("the queues have different ends, and each keeps the larger one")
        (directory / "1").rename(directory / "0")
        (directory / "2").rename(directory / "1")
    for _ in range(2):
        with kind.open(tmp_path) as store:
            assert not store.recovery.quarantined
            for key, known in content.queues.items():
                assert {message.queue_offset: Known.of(message) for message in store.queue(*key).read()} == known
                assert store.queue(*key).max_offset == len(known)
