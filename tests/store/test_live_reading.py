"""Reading a store that another process writes: what is seen is one state of it, whatever changes meanwhile."""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.model import QUIET, SMALL, crash_copy
from stratalog.errors import OffsetOutOfRange, StoreClosed
from stratalog.layout import names
from stratalog.store import log_scan
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import PrivateDisk
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.tools.verify import verify

BODY_SIZE = 900
COUNTED = frozenset({"files", "directories", "map", "open", "read", "exists", "stamp"})


class InterruptedDisk(PrivateDisk):
    """A reader's disk: just before its `number`-th look at the files something happens to them."""

    def __init__(self, number: int, event: Callable[[], None]) -> None:
        super().__init__()
        self.looks = 0
        self._number, self._event = number, event

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in COUNTED:
            self.looks += 1
            if self.looks == self._number:
                self._event()
        return found


def put_some(store: MessageStore, count: int) -> None:
    """The n-th message of all says so, and which queue it is in."""
    for _ in range(count):
        queue = store.queue("t", 0)
        queue.put(b"%d" % queue.next_offset + bytes(BODY_SIZE), keys=["k"])


def seen(store: MessageStore) -> range:
    """Offsets of the messages of queue t/0, each checked to be the one that was put there."""
    queue = store.queue("t", 0)
    messages = list(queue.read())
    assert [message.body for message in messages] == [b"%d" % m.queue_offset + bytes(BODY_SIZE) for m in messages]
    offsets = [message.queue_offset for message in messages]
    found = range(queue.min_offset, queue.max_offset)
    assert offsets == list(found)
    return found


class Writer:
    """The other process, as far as the files can tell."""

    def __init__(self, root: Path, *, count: int = 150) -> None:
        self.root = root
        self.store = self.open()
        put_some(self.store, count)  # 64 KiB hold some 60
        self.store._flush_all()

    def open(self) -> MessageStore:
        return stratalog.open(self.root, **(SMALL | QUIET))

    def roll(self) -> None:
        put_some(self.store, 200)
        self.store._flush_all()

    def put(self) -> None:
        put_some(self.store, 1)

    def begin_a_queue(self) -> None:
        self.store.put("new", b"x", keys=["k"])
        self.roll()

    def close(self) -> None:
        self.roll()
        self.store.close()

    def open_again(self) -> None:
        self.store = self.open()
        self.roll()

    def retain(self) -> None:
        """What a broker does with its oldest files."""
        self.roll()
        for path in sorted((self.root / names.COMMIT_LOG).iterdir())[:3]:
            path.unlink()
        for path in sorted((self.root / names.CONSUME_QUEUE / "t" / "0").iterdir())[:2]:
            path.unlink()


EVENTS = ["put", "roll", "begin_a_queue", "close", "open_again", "retain"]


@pytest.mark.parametrize("event", EVENTS)
def test_whatever_happens_between_two_looks_at_the_files_one_state_is_seen(event: str, tmp_path: Path) -> None:
    for number in itertools.count(1):
        root = tmp_path / str(number)
        writer = Writer(root)
        if event == "open_again":
            writer.store.close()
        disk = InterruptedDisk(number, getattr(writer, event))
        with stratalog.open(root, mode="r", disk=disk, **(SMALL | QUIET)) as reader:
            assert not reader.recovery.quarantined
            found = seen(reader)
            assert found.start == 0 or event == "retain"
            assert found.stop >= 150
        writer.store.close()
        shutil.rmtree(root)
        if disk.looks < number:
            break


def test_what_is_put_while_the_log_is_walked_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk finds nothing at the end; when it looks for a later record, there is one, and one in front of it."""
    writer = Writer(tmp_path)
    while writer.store.log.end_offset % 4096 > 1000:  # pages that were never written are not looked at
        put_some(writer.store, 1)
    end = writer.store.queue("t", 0).max_offset
    find = log_scan._next_record
    counts = iter([3])

    def find_later(log: CommitLog, offset: int) -> int | None:
        put_some(writer.store, next(counts, 0))
        return find(log, offset)

    monkeypatch.setattr(log_scan, "_next_record", find_later)
    with stratalog.open(tmp_path, mode="r", **(SMALL | QUIET)) as reader:
        assert not reader.recovery.quarantined
        assert seen(reader).stop > end
    assert next(counts, None) is None
    monkeypatch.undo()
    writer.store.close()


# -- following -------------------------------------------------------------------------------------------------------


def taken(messages: Iterator[Message], count: int) -> list[bytes]:
    return [message.body.rstrip(b"\0") for message in itertools.islice(messages, count)]


def numbered(begin: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, stop)]


def test_a_reader_follows_a_writer_that_rolls_closes_opens_crashes_and_deletes(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    with stratalog.open(writer.root, mode="r", **(SMALL | QUIET)) as reader:
        followed = reader.queue("t", 0).read(follow=True)
        assert taken(followed, 150) == numbered(0, 150)
        writer.put()
        assert taken(followed, 1) == numbered(150, 151)
        writer.roll()
        assert taken(followed, 200) == numbered(151, 351)
        writer.close()
        writer.open_again()
        assert taken(followed, 400) == numbered(351, 751)
        writer.retain()
        assert taken(followed, 200) == numbered(751, 951)
        crash_copy(writer.store, tmp_path / "crashed")
        followed.close()  # type: ignore[attr-defined]
        writer.store.close()
    writer = Writer(tmp_path / "crashed", count=0)
    assert not writer.store.recovery.clean
    with stratalog.open(writer.root, mode="r", **(SMALL | QUIET)) as reader:
        followed = reader.queue("t", 0).read(940, follow=True)
        assert taken(followed, 11) == numbered(940, 951)
        writer.roll()
        assert taken(followed, 200) == numbered(951, 1151)
    with pytest.raises(StoreClosed):
        next(followed)
    writer.store.close()


def test_following_begins_before_the_first_message_and_sees_every_kind_of_queue(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL) as store:
        store.create_topic("b", queue_type="BatchCQ")
        with stratalog.open(tmp_path, mode="r") as reader:
            followed = {topic: reader.queue(topic, 0).read(follow=True) for topic in "tb"}
            for number in range(3):
                store.put("t", b"%d" % (3 * number))
                store.queue("b", 0).put_batch([b"%d" % (3 * number + n) for n in range(3)], unique_key=f"u{number}")
                assert taken(followed["t"], 1) == [b"%d" % (3 * number)]
                assert taken(followed["b"], 3) == numbered(3 * number, 3 * number + 3)
                store.flush()
            assert list(reader.queue("t", 0).read(count=0, follow=True)) == []


def test_a_follower_is_told_what_was_deleted_before_it_read_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    with stratalog.open(tmp_path, mode="r", **(SMALL | QUIET)) as reader:
        followed = reader.queue("t", 0).read(follow=True)
        assert taken(followed, 150) == numbered(0, 150)
        writer.roll()
        writer.retain()
        with pytest.raises(OffsetOutOfRange, match="from 150 on were deleted") as raised:
            next(followed)
        assert taken(reader.fresh_view().queue("t", 0).read(raised.value.next_offset), 1) == [
            b"%d" % raised.value.next_offset
        ]
    writer.store.close()


WRITER = """
import sys, stratalog
with stratalog.open(sys.argv[1], mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=1000,
                    max_hash_slot_num=100, max_index_num=400, flush_interval_consume_queue=20) as store:
    queue = store.queue("t", 0)
    print("ready", flush=True)
    number = 0
    while True:
        queue.put(b"%d" % number + bytes(900), keys=["k"])
        number += 1
"""


@pytest.fixture
def rolling(tmp_path: Path) -> Iterator[Path]:
    """A store that another process puts to as fast as it can: a log file is full after some 70 messages."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield tmp_path
        process.kill()


def test_a_store_whose_writer_rolls_all_the_time_can_always_be_opened(rolling: Path) -> None:
    stop = 0
    for _ in range(25):
        with stratalog.open(rolling, mode="r", **SMALL) as reader:
            assert not reader.recovery.quarantined
            found = range(reader.queue("t", 0).max_offset)
            assert found.stop >= stop
            newest = list(reader.queue("t", 0).read(max(0, found.stop - 100)))
            assert [message.body for message in newest] == [b"%d" % m.queue_offset + bytes(900) for m in newest]
            stop = found.stop
        if stop > 60_000:  # a gigabyte is in nobody's interest
            break
    assert stop


def test_a_follower_keeps_up_with_another_process(rolling: Path) -> None:
    with stratalog.open(rolling, mode="r", **SMALL) as reader:
        assert taken(reader.queue("t", 0).read(follow=True), 5000) == numbered(0, 5000)


def test_opening_beside_a_process_that_keeps_putting(tmp_path: Path) -> None:
    """What comes after the log's end grows while it is looked at."""
    program = f"""
import stratalog, time
with stratalog.open({str(tmp_path / "s")!r}, small=True) as store:
    store.put("t", b"first")
    print("begun", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for _ in range(40):
            store.put("t", b"x" * 200)
        time.sleep(0.0005)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"begun\n"
        try:
            for _ in range(25):
                with stratalog.open(tmp_path / "s", mode="r") as reader:
                    assert next(iter(reader.queue("t").read())).body == b"first"
                assert verify(tmp_path / "s").is_live
        finally:
            writer.kill()
