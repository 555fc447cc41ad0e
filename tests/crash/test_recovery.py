"""Opening what a crash, a bad sector or a careless hand left: one test for each state the files can be in."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.test_power_cut import TINY, body_of
from store.kinds import KINDS, Key, Kind
from store.model import Clock, bodies, check, crash_copy, flip, index_files, log_files, queue_files, walk
from store.test_recreated_topics import STATES
from stratalog.errors import CorruptData
from stratalog.layout.message import BLANK, HEAD, MAGIC_BLANK
from stratalog.layout.queue import UNIT
from stratalog.store.message_store import MessageStore
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

LOG_FILE = TINY["mapped_file_size_commit_log"]


def open_tiny(root: Path, **given: Any) -> MessageStore:
    return stratalog.open(root, **(TINY | {"clock_ns": Clock()} | given))


def filled(root: Path, *, clean: bool, count: int = 60) -> list[int]:
    """A store of `count` messages in two queues, closed or as a kill leaves it; returns the records' log offsets."""
    store = open_tiny(root if clean else root.with_name(root.name + "-running"))
    offsets = []
    for number in range(count):
        receipt = store.put("t", body_of(number), queue_id=number % 2, keys=[f"k{number}", "all"], tags="a")
        offsets.append(receipt.commit_log_offset)
        if number == count // 2:
            store._flush_all()
    store.dispatch()
    if not clean:
        crash_copy(store, root)
    store.close()
    return offsets


def expected(numbers: Iterable[int]) -> dict[tuple[str, int], list[bytes]]:
    numbers = list(numbers)
    return {("t", queue_id): [body_of(n) for n in numbers if n % 2 == queue_id] for queue_id in (0, 1)}


def place(root: Path, commit_log_offset: int) -> tuple[Path, int]:
    number, position = divmod(commit_log_offset, LOG_FILE)
    return log_files(root)[number], position


# -- torn tail -------------------------------------------------------------------------------------------------------


def test_a_tail_torn_at_any_byte_leaves_exactly_the_whole_records(folder: Path) -> None:
    offsets = filled(folder / "crashed", clean=False, count=26)
    last, end = offsets[-1], walk(folder / "crashed").end
    path, position = place(folder / "crashed", last)
    whole = path.read_bytes()
    size = end - last
    properties = size - len("KEYS\x01k25 all\x02TAGS\x01a\x02")
    for kept in range(size):
        for garbage in (b"\0", b"\xa5"):
            if garbage != b"\0" and (kept >= properties or kept % 8):
                continue  # no checksum covers properties: that they are cut is seen, that they are others is not
            torn = whole[: position + kept] + garbage * (size - kept) + whole[position + size :]
            root = folder / "torn"
            shutil.copytree(folder / "crashed", root)
            place(root, last)[0].write_bytes(torn)
            check_torn(root, last, end, same=torn == whole)
            shutil.rmtree(root)


def check_torn(root: Path, last: int, end: int, *, same: bool) -> None:
    with open_tiny(root) as store:
        check(store)
        if same:  # the cut took zeros only
            assert store.log.end_offset == end
            return
        assert store.log.end_offset == last
        assert bodies(store) == expected(range(25))
        path, position = place(root, last)
        assert not any(path.read_bytes()[position:]), "the tail is not zeroed"
        assert store.put("t", b"new", queue_id=0).queue_offset == 13
    with open_tiny(root) as store:
        check(store)
        assert bodies(store)["t", 0] == [*expected(range(25))["t", 0], b"new"]


def test_an_old_record_behind_the_end_does_not_rise_again(folder: Path) -> None:
    """Records of equal size: a new record in the place of the torn one lines up with the old one behind it."""
    store = open_tiny(folder / "running")
    receipts = [store.put("t", b"%04d" % number * 10) for number in range(6)]
    crash_copy(store, folder / "store")
    store.close()
    for receipt in receipts[3:]:
        flip(log_files(folder / "store")[0], receipt.commit_log_offset + HEAD.size)
    with open_tiny(folder / "store") as store:
        assert store.log.end_offset == receipts[3].commit_log_offset
        store.put("t", b"newx" * 10)
        crash_copy(store, folder / "again")
    flip(log_files(folder / "again")[0], receipts[5].commit_log_offset + HEAD.size)  # as it was put
    with open_tiny(folder / "again") as store:
        check(store)
        assert [message.body for message in store.queue("t").read()] == [
            *(b"%04d" % number * 10 for number in range(3)),
            b"newx" * 10,
        ]


@pytest.mark.parametrize("has_checkpoint", [True, False])
@pytest.mark.parametrize("how", ["replaced", "exchanged", "all exchanged"])
def test_whole_files_after_the_logs_end_are_named_and_not_cut_off(folder: Path, how: str, has_checkpoint: bool) -> None:
    """A file that begins with a record of another place is another file: nothing of it goes, though neither queues nor
    checkpoint know that messages were there."""
    root = folder / "store"
    store = open_tiny(folder / "running")
    for number in range(60):
        store.put("t", body_of(number), queue_id=number % 2)
    crash_copy(store, root)
    store.close()
    for name in ("consumequeue", "index", *(() if has_checkpoint else ("checkpoint",))):
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink(missing_ok=True)
    files = [path for path in log_files(root) if path.read_bytes().strip(b"\0")]
    whole = [path.read_bytes() for path in files]
    after = {
        "replaced": [*whole[:-1], whole[-2]],
        "exchanged": [*whole[:-2], whole[-1], whole[-2]],
        "all exchanged": whole[::-1],
    }[how]
    for path, data in zip(files, after, strict=True):
        path.write_bytes(data)
    report = verify(root)
    assert not report.ok
    assert report.problems[0].next_step in refusal(root)
    before = {path.name: path.read_bytes() for path in log_files(root)}
    for open_it in (open_tiny, rebuild, plan_repair):
        with pytest.raises(CorruptData, match="its records are those of") as refused:
            open_it(root)
    assert ("Put the right file back" in str(refused.value)) == (how == "replaced")
    with stratalog.open(root, mode="r", **TINY) as store:
        assert store.recovery.quarantined
    assert {path.name: path.read_bytes() for path in log_files(root)} == before
    while "mv -n" in (step := refusal(root)):
        subprocess.run(step.split("`")[1], shell=True, check=True)
    assert repair(plan_repair(root)).ok
    with open_tiny(root) as store:
        check(store)
        if how != "replaced":
            assert sum(len(list(store.queue(*key).read())) for key in store.queues()) == 60


def refusal(root: Path) -> str:
    try:
        plan_repair(root)
    except CorruptData as refused:
        return str(refused)
    return ""


def test_any_number_of_records_in_several_files_may_be_unfinished(folder: Path) -> None:
    """Under async flush a power cut can take a page of each: here their heads."""
    root = folder / "store"
    store = open_tiny(folder / "running")
    places = [store.put("t", body_of(number)).commit_log_offset for number in range(60)]
    crash_copy(store, root)
    store.close()
    for tree in ("consumequeue", "index"):
        shutil.rmtree(root / tree, ignore_errors=True)
    (root / "checkpoint").unlink(missing_ok=True)
    for offset in places[20:]:
        path = root / "commitlog" / f"{offset - offset % LOG_FILE:020d}"
        with path.open("r+b") as file:
            file.seek(offset % LOG_FILE)
            file.write(bytes(HEAD.size))
    with open_tiny(root) as store:
        assert [message.body for message in store.queue("t").read()] == [body_of(number) for number in range(20)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_records_that_rocketmqs_recovery_dropped_may_stand_after_a_blank_record(folder: Path, is_clean: bool) -> None:
    """It ends the log at damage, zeroes nothing, goes on there and rolls: what it dropped is whole and in its place."""
    dropped, root = folder / "dropped", folder / "store"
    for path, count in ((dropped, 30), (root, 5)):
        with open_tiny(path) as store:
            for number in range(count):
                store.put("t", body_of(number))
    with open_tiny(root, clock_ns=time.time_ns) as store:
        end = store.put("t", b"after the recovery").end_offset
        rolled = store.put("t", bytes(LOG_FILE - end))
        assert rolled.commit_log_offset == LOG_FILE
        expected = [message.body for message in store.queue("t").read()]
    old, new = log_files(dropped)[0].read_bytes(), bytearray(log_files(root)[0].read_bytes())
    new[end + BLANK.size :] = old[end + BLANK.size :]
    log_files(root)[0].write_bytes(new)
    if not is_clean:
        (root / "abort").touch()
        (root / "checkpoint").unlink()
    assert verify(root).ok
    rebuild(root)
    assert not plan_repair(root).actions
    with open_tiny(root) as store:
        assert [message.body for message in store.queue("t").read()] == expected


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("named", [{"keys": ["k"]}, {"tags": "a"}, {}], ids=["keys", "tags", "nothing"])
def test_after_a_crash_damage_is_looked_for_in_the_log_files_that_rocketmq_reads(
    folder: Path, named: dict[str, Any], *, reopened: bool
) -> None:
    """Queues and index may be complete up to the checkpoint: the log is read all the same."""
    store = open_tiny(folder / "running")
    places = [store.put("t", body_of(number), queue_id=number % 2, **named).commit_log_offset for number in range(60)]
    store._flush_all()
    if reopened:
        store.close()
        store = open_tiny(folder / "running")
        store.put("t", body_of(60), **named)
        store._flush_all()
    crash_copy(store, folder / "crashed")
    store.close()
    first = (walk(folder / "crashed").end - 1) // LOG_FILE - 2  # of the last three files
    begin = next(number for number, offset in enumerate(places) if offset >= first * LOG_FILE)
    for number in (begin, begin + 7, 58):
        root = folder / f"store{number}"
        shutil.copytree(folder / "crashed", root)
        path, position = place(root, places[number])
        flip(path, position + HEAD.size)
        for mode in ("r", "w"):
            with open_tiny(root, mode=mode) as opened:
                assert [damage.begin for damage in opened.recovery.quarantined] == [places[number]]
                assert bool(opened.recovery.warning) == (mode == "w")
                queue = opened.queue("t", number % 2)
                with pytest.raises(CorruptData) as hidden:
                    list(queue.read())
                assert hidden.value.next_offset == number // 2 + 1
                after = [message.body for message in queue.read(number // 2 + 1)]
                assert after == [body_of(n) for n in range(number + 2, 61 if reopened else 60, 2)]


def test_a_body_that_holds_records_may_be_torn(folder: Path) -> None:
    """Records in an unfinished record's body are no records of the log."""
    store = open_tiny(folder / "running", mapped_file_size_commit_log=1 << 14)
    store.put("t", b"one")
    inner = log_files(folder / "running")[0].read_bytes().rstrip(b"\0")
    receipt = store.put("t", b"body " + inner)
    crash_copy(store, folder / "store")
    store.close()
    path = log_files(folder / "store")[0]
    data = bytearray(path.read_bytes())
    data[receipt.end_offset - 9 : receipt.end_offset] = bytes(9)
    path.write_bytes(data)
    assert verify(folder / "store").ok
    with open_tiny(folder / "store", mapped_file_size_commit_log=1 << 14) as store:
        assert bodies(store) == {("t", 0): [b"one"]}


def test_a_log_that_ends_with_a_file_that_was_closed_goes_on_in_the_next(folder: Path) -> None:
    """The process ended between closing a file and the first record of the next one."""
    for clean in (True, False):
        offsets = filled(folder / f"store{clean}", clean=clean)
        root = folder / f"store{clean}"
        first_of_last = next(n for n, offset in enumerate(offsets) if offset // LOG_FILE == offsets[-1] // LOG_FILE)
        last = log_files(root)[-1]
        last.write_bytes(bytes(LOG_FILE))
        (root / "checkpoint").unlink()
        for with_file in (True, False):
            copy = folder / f"copy{clean}{with_file}"
            shutil.copytree(root, copy)
            if not with_file:
                log_files(copy)[-1].unlink()
            if clean and not with_file:  # no crash: the file was lost
                with pytest.raises(CorruptData, match="restore the newest files of commitlog/"):
                    open_tiny(copy)
                continue
            with open_tiny(copy) as store:
                check(store)
                assert bodies(store) == expected(range(first_of_last))
                store.put("t", b"after", queue_id=0)
                store.put_many("t", [b"list"], queue_id=0)
            with open_tiny(copy) as store:
                check(store)
                assert bodies(store)["t", 0][-2:] == [b"after", b"list"]


def test_a_last_file_with_less_room_than_a_record_takes_ends_with_its_last_record(folder: Path) -> None:
    for left in (8, 9, 50, 90):
        root = folder / f"store{left}"
        with open_tiny(folder / f"running{left}") as store:
            overhead = store.put("t", b"").store_size
            last = store.put("t", b"x" * (LOG_FILE - 2 * overhead - left))
            assert last.end_offset == LOG_FILE - left
            store._flush_all()
            crash_copy(store, root)
        for again in (root, folder / f"running{left}"):
            with open_tiny(again) as store:
                check(store)
                assert store.recovery.quarantined == []
                assert store.log.end_offset == last.end_offset
                store.put("t", b"next")
            assert log_files(again)[0].read_bytes()[-left:][4:8] == BLANK.pack(left, MAGIC_BLANK)[4:]


# -- damage ----------------------------------------------------------------------------------------------------------


def test_a_blank_mark_in_front_of_whole_records_is_quarantined_like_other_damage(folder: Path) -> None:
    root = folder / "store"
    offsets = filled(root, clean=False)
    path, position = place(root, offsets[3])
    with path.open("r+b") as file:
        file.seek(position)
        file.write(BLANK.pack(path.stat().st_size - position, MAGIC_BLANK))
    (root / "checkpoint").unlink()
    shutil.rmtree(root / "consumequeue")
    for _ in range(2):
        with open_tiny(root) as store:
            assert [(damage.begin, damage.reason) for damage in store.recovery.quarantined] == [(offsets[3], "BLANK")]
            assert sum(len(found) for found in bodies(store).values()) == len(offsets) - 1


@pytest.mark.parametrize("victim", [0, 7, 25, 31, 58])
@pytest.mark.parametrize("at", ["body", "magic", "total_size", "commit_log_offset", "queue_id"])
def test_a_damaged_record_in_the_middle_is_quarantined_and_later_ones_are_served(
    victim: int, at: str, folder: Path
) -> None:
    root = folder / "store"
    offsets = filled(root, clean=False)
    path, position = place(root, offsets[victim])
    flip(path, position + (HEAD.size if at == "body" else HEAD.position(at)), 0x40)
    (root / "checkpoint").unlink()
    changed = victim if at != "queue_id" else None  # no checksum covers the head: the record changes its queue
    for _ in range(3):
        with open_tiny(root) as store:
            if changed is None:  # its unit stays, and says what is missing
                with pytest.raises(CorruptData, match=rf"offset {victim // 2} .* belongs to another message"):
                    bodies(store)
                return
            check(store)
            assert bodies(store) == expected(n for n in range(60) if n != victim)
            assert [message.queue_offset for message in store.queue("t", victim % 2).read()] == [
                n // 2 for n in range(victim % 2, 60, 2) if n != victim
            ]
            for number in (3, 26, 59):
                assert [message.body for message in store.query("t", key=f"k{number}")] == [body_of(number)]
            assert store.queue("t", victim % 2).min_offset == (1 if victim == 0 else 0)
            crashed = crash_copy(store, folder / "crashed")
        shutil.rmtree(root)
        shutil.move(crashed, root)


def test_what_recovery_quarantined_is_reported_with_its_place(folder: Path) -> None:
    offsets = filled(folder / "store", clean=False)
    path, position = place(folder / "store", offsets[40])
    flip(path, position + HEAD.size)
    with open_tiny(folder / "store") as store:
        (damage,) = store.recovery.quarantined
        assert (damage.begin, damage.end, damage.reason) == (offsets[40], offsets[41], "BAD_CRC")


def test_time_lookups_pass_over_lost_messages(folder: Path) -> None:
    clock = Clock()
    store = open_tiny(folder / "running", clock_ns=clock)
    offsets, start = [], clock.now_ms
    for number in range(20):
        offsets.append(store.put("t", body_of(number)).commit_log_offset)
        clock.now_ms += 10
    crash_copy(store, folder / "store")
    store.close()
    for lost in (5, 6, 7, 11):
        path, position = place(folder / "store", offsets[lost])
        flip(path, position + HEAD.position("magic"))
    with open_tiny(folder / "store") as store:
        check(store)
        queue = store.queue("t")
        for number in range(20):
            found = next(queue.read(queue.offset_at(start + 10 * number), count=1), None)
            following = min(n for n in range(number, 20) if n not in (5, 6, 7, 11))
            messages = list(queue.read(queue.offset_at(start + 10 * number)))
            assert messages[0].body == body_of(following), (number, found)


def test_the_newest_message_of_a_queue_is_lost_and_its_offset_is_not_given_again(folder: Path) -> None:
    for clean in (True, False):
        root = folder / f"store{clean}"
        store = open_tiny(root if clean else folder / "running")
        first = store.put("t", b"first", queue_id=1)
        for number in range(5):
            store.put("t", body_of(number), queue_id=0)
        store._flush_all()
        if not clean:
            crash_copy(store, root)
        store.close()
        last = walk(root).records[-1]
        for offset in (first.commit_log_offset, last.commit_log_offset):
            path, position = place(root, offset)
            flip(path, position + HEAD.size)
        (root / "abort").write_text("1")
        for _ in range(2):
            with open_tiny(root) as store:
                check(store)
                assert store.queue("t", 0).max_offset == 5
                assert [message.body for message in store.queue("t", 0).read()] == [body_of(n) for n in range(4)]
        with open_tiny(root) as store:
            assert store.put("t", b"new", queue_id=0).queue_offset == 5


def test_a_damaged_last_record_that_was_durable_is_kept_for_repair(folder: Path) -> None:
    offsets = filled(folder / "store", clean=True)
    path, position = place(folder / "store", offsets[-1])
    flip(path, position + HEAD.size)
    damaged = path.read_bytes()[position:]
    with open_tiny(folder / "store") as store:
        assert len(store.recovery.quarantined) == 1
        assert bodies(store) == expected(range(59))
    assert path.read_bytes()[position:] == damaged
    flip(path, position + HEAD.size)
    (folder / "store" / "checkpoint").unlink()
    (folder / "store" / "abort").write_text("1")
    with open_tiny(folder / "store") as store:
        assert bodies(store) == expected(range(60))


# -- derived files ---------------------------------------------------------------------------------------------------


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


DERIVED: dict[str, Callable[[Path], list[Path]]] = {
    "all queues": lambda root: [root / "consumequeue"],
    "one topic": lambda root: [root / "consumequeue" / "t"],
    "one queue": lambda root: [root / "consumequeue" / "t" / "0"],
    "a queue's first file": lambda root: [queue_files(root, "t", 1)[0]],
    "a queue's middle file": lambda root: [queue_files(root, "t", 1)[1]],
    "a queue's last file": lambda root: [queue_files(root, "t", 1)[-1]],
    "the index": lambda root: [root / "index"],
    "the first index file": lambda root: [index_files(root)[0]],
    "a middle index file": lambda root: [index_files(root)[1]],
    "the last index file": lambda root: [index_files(root)[-1]],
    "the checkpoint": lambda root: [root / "checkpoint"],
    "everything": lambda root: [root / "consumequeue", root / "index", root / "checkpoint"],
}
SMALL_QUEUES = {"mapped_file_size_consume_queue": 12 * UNIT.size}


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("victims", DERIVED.values(), ids=DERIVED.keys())
def test_a_derived_file_that_was_removed_is_built_again_as_it_was(
    victims: Callable[[Path], list[Path]], clean: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TINY, "mapped_file_size_consume_queue", SMALL_QUEUES["mapped_file_size_consume_queue"])
    root = folder / "store"
    filled(root, clean=clean)
    with open_tiny(root, mode="r") as store:
        whole = bodies(store)
    for victim in victims(root):
        remove(victim)
    with open_tiny(root, mode="r") as store:
        check(store)
        assert bodies(store) == whole == expected(range(60))
    with open_tiny(root) as store:
        check(store)
        assert bodies(store) == whole
        assert store.put("t", b"after", queue_id=1).queue_offset == 30
    with open_tiny(root) as store:
        check(store)
        assert store.recovery.clean
        assert not store.recovery.rebuilt
        assert len(store.query("t", key="all")) == 60


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_queue_whose_end_was_zeroed_is_built_again(clean: bool, folder: Path) -> None:
    root = folder / "store"
    filled(root, clean=clean)
    path = queue_files(root, "t", 0)[0]
    for kept in (0, 1, 7, 20, 29):
        data = path.read_bytes()
        path.write_bytes(data[: kept * UNIT.size] + bytes(len(data) - kept * UNIT.size))
        with open_tiny(root) as store:
            check(store)
            assert bodies(store) == expected(range(60))


def test_a_checkpoint_of_garbage_is_as_good_as_none(folder: Path) -> None:
    for number, garbage in enumerate(
        (b"", b"\xff" * 4096, b"\x7f" * 4096, bytes(4096), b"short", b"\0" * 40 + b"\1" * 4056)
    ):
        root = folder / f"store{number}"
        filled(root, clean=number % 2 == 0)
        (root / "checkpoint").write_bytes(garbage)
        with open_tiny(root) as store:
            check(store)
            assert bodies(store) == expected(range(60))


def test_a_checkpoint_of_another_time_costs_no_message(folder: Path) -> None:
    """Restored from a backup: older, or from a store that was longer."""
    for clean in (True, False):
        store = open_tiny(folder / f"long{clean}")
        kept = []
        for number in range(60):
            store.put("t", body_of(number), queue_id=number % 2, keys=[f"k{number}"])
            if number in (10, 59):
                store._flush_all()
                kept.append((folder / f"long{clean}" / "checkpoint").read_bytes())
        store.close()
        root = folder / f"store{clean}"
        filled(root, clean=clean)
        (root / "checkpoint").write_bytes(kept[0])
        with open_tiny(root) as store:
            check(store)
            assert bodies(store) == expected(range(60))


def test_an_offset_that_cannot_be_is_told_and_costs_no_time_and_no_room(folder: Path) -> None:
    """One flipped bit in a record without record CRC; filling the queue up to there would take exabytes."""
    offsets = filled(folder / "store", clean=True)
    path, position = place(folder / "store", offsets[40])
    flip(path, position + HEAD.position("queue_offset"))
    report = verify(folder / "store")
    assert any((problem.path, problem.position) == (str(path), position) for problem in report.problems)
    shutil.rmtree(folder / "store" / "consumequeue")
    with open_tiny(folder / "store", mode="r") as store:
        assert bodies(store) == expected(number for number in range(60) if number != 40)


def test_keys_behind_the_last_full_index_file_are_found_though_an_opening_ended_after_removing_theirs(
    folder: Path,
) -> None:
    """The checkpoint is newer than the full index files: the log from there on alone would not bring the keys back."""
    store = open_tiny(folder / "running")
    for number in range(55):
        store.put("t", body_of(number), queue_id=number % 2, keys=[f"k{number}", "all"], tags="a")
    store._flush_all()
    crash_copy(store, folder / "store")
    store.close()
    assert len(index_files(folder / "store")) > 1
    index_files(folder / "store")[-1].unlink()
    with open_tiny(folder / "store") as store:
        check(store)
        assert len(store.query("t", key="all")) == 55


@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_store_gives_back_every_descriptor_whatever_it_was_opened_on(mode: Any, folder: Path) -> None:
    """A disk cannot be unmounted while one is open, and a process has only so many."""
    filled(folder / "crashed", clean=False)
    shutil.copytree(folder / "crashed", folder / "store")
    before = os.listdir("/proc/self/fd")
    open_tiny(folder / "store", mode=mode).close()
    assert os.listdir("/proc/self/fd") == before


def test_a_unit_that_points_to_another_record_is_refused_not_served(folder: Path) -> None:
    filled(folder / "store", clean=True)
    path = queue_files(folder / "store", "t", 0)[0]
    data, other = bytearray(path.read_bytes()), queue_files(folder / "store", "t", 1)[0].read_bytes()
    data[5 * UNIT.size : 6 * UNIT.size] = other[5 * UNIT.size : 6 * UNIT.size]  # the order in the log is kept
    path.write_bytes(data)
    with open_tiny(folder / "store", mode="r") as store:
        reading = store.queue("t", 0).read()
        assert [next(reading).body for _ in range(5)] == expected(range(10))["t", 0]
        with pytest.raises(CorruptData, match=r"t/0 offset 5 .*stratalog verify"):
            next(reading)


def test_after_a_crash_it_is_noted_which_messages_only_the_queues_knew(folder: Path) -> None:
    with open_tiny(folder / "store") as store:
        for number in range(20):
            store.put("topic", b"%d" % number)
        end = store.log.end_offset
        store.dispatch()
        crash_copy(store, folder / "crashed")
    (path,) = log_files(folder / "crashed")
    data = path.read_bytes()
    path.write_bytes(data[: end - 100].ljust(len(data), b"\0"))
    with open_tiny(folder / "crashed") as store:
        given = store.queue("topic").max_offset
        assert given < 20
        assert [note for note in store.recovery.notes if "topic/0 up to offset 19" in note]


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("damage", ["middle file", "first file", "zeros", "wild", "checkpoint"])
def test_offsets_of_damaged_messages_are_not_given_again_whatever_units_are_lost_before(
    clean: bool, damage: str, folder: Path
) -> None:
    root = folder / "store"
    with open_tiny(root, mapped_file_size_consume_queue=10 * UNIT.size) as store:
        receipts = [store.put("t", b"%d" % number * 9) for number in range(35)]
        for _ in range(5):
            store.put("u", b"after")
    for receipt in receipts[-3:]:
        flip(*place(root, receipt.commit_log_offset + HEAD.size))
    files = sorted(path for path in (root / "consumequeue" / "t" / "0").iterdir() if any(path.read_bytes()))
    if damage == "checkpoint":
        (root / "checkpoint").unlink()
    elif damage.endswith("file"):
        files[damage.startswith("middle")].unlink()
    else:
        data = bytearray(files[0].read_bytes())
        data[5 * UNIT.size : 5 * UNIT.size + 8] = bytes(8) if damage == "zeros" else b"\x00\x11" * 4
        files[0].write_bytes(data)
    (root / "queues.snapshot").unlink(missing_ok=True)
    if not clean:
        (root / "abort").touch()
    with open_tiny(root, mapped_file_size_consume_queue=10 * UNIT.size) as store:
        assert store.put("t", b"new").queue_offset == 35


@pytest.mark.parametrize("state", ["killed", "killed with a seal"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_log_whose_only_file_has_no_record_after_retention_can_be_opened_again(
    kind: Kind, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kind.settings, "mapped_file_size_commit_log", 4096)
    kind.made(tmp_path, count=60)
    STATES[state](tmp_path)
    used = [path for path in sorted((tmp_path / "commitlog").iterdir()) if any(path.read_bytes())]
    for path in used[:-1]:
        path.unlink()
    used[-1].write_bytes(bytes(4096))
    ends = list[dict[Key, int]]()
    for _ in range(3):
        with kind.open(tmp_path) as store:
            ends.append({key: store.queue(*key).max_offset for key in kind.queues})
            assert store.log.first_offset == int(used[-1].name)
    assert ends[0] == ends[1] == ends[2]
    assert min(ends[0].values()) > 0
