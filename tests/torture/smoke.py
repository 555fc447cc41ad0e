"""A short life of a store that makes every kind of system call, for faults at the n-th one.

Three openings of one store: a new one, one after a clean stop, and one after a crash that left half a record and stale
queues. Puts come in every way; log, queues and index roll. One thread: the order of the calls is always the same.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

import stratalog
from store.model import QUIET, Clock, check, log_files
from stratalog.errors import DiskFull, StoreFailed, StratalogError
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import UNIT
from stratalog.store.message_store import MessageStore
from torture.report import Lost, WrongPrefix

SETTINGS: dict[str, Any] = QUIET | {
    "mapped_file_size_commit_log": 8 * 1024,
    "mapped_file_size_consume_queue": 12 * UNIT.size,
    "max_hash_slot_num": 20,
    "max_index_num": 40,
    "flush": "sync",
}
ROUNDS = 7
"""Rounds of puts in each opening; one puts eight messages."""
GARBAGE = b"\x00\x00\x01\x00\xaa\x55 half a record"


def body_of(number: int) -> bytes:
    return b"%04d" % number * (1 + number * 13 % 60)


class Diary:
    """What was put: `begun` in order as (queue id, number), and how many of them were acknowledged."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.acknowledged = 0
        self.error: StratalogError | None = None

    @contextmanager
    def putting(self, queue_id: int, count: int) -> Iterator[list[int]]:
        """Numbers for the next `count` messages; they are acknowledged when the block ends without an error."""
        first = len(self.begun)
        numbers = list(range(first, first + count))
        self.begun += [(queue_id, number) for number in numbers]
        try:
            yield numbers
        except StratalogError:
            raise
        self.acknowledged = len(self.begun)

    def refused(self) -> None:
        """What was begun last was refused with nothing written: it never was."""
        del self.begun[self.acknowledged :]

    def expected(self, queue_id: int) -> tuple[list[bytes], int]:
        """Bodies of the queue in the order they were put, and how many of them must be there."""
        bodies = [body_of(number) for queue, number in self.begun if queue == queue_id]
        return bodies, sum(queue == queue_id for queue, _ in self.begun[: self.acknowledged])

    def compare(self, store: MessageStore, *, behind: bool = False) -> None:
        """What can be read is a prefix of what was put, with everything acknowledged (unless queues may be behind)."""
        for queue_id in (0, 1):
            bodies, needed = self.expected(queue_id)
            read: list[bytes] = []
            with suppress(DiskFull, StoreFailed) if behind else nullcontext():
                read.extend(message.body for message in store.queue("t", queue_id).read())
            if read != bodies[: len(read)]:
                raise WrongPrefix(f"queue {queue_id} holds other messages than were put")
            if len(read) < needed and not behind:
                raise Lost(f"queue {queue_id} holds {len(read)} messages, {needed} were acknowledged")


Attempt = Callable[[MessageStore, Callable[[], None]], None]
"""Runs one round of puts; may catch what it raises and try again."""


def plainly(store: MessageStore, put: Callable[[], None]) -> None:
    put()


def live(root: Path, diary: Diary, attempt: Attempt = plainly, *, in_one_thread: bool = False) -> None:
    """The whole life. Raises what the store raises. `in_one_thread` leaves out what is flushed by a thread."""
    ways = [way for way in WAYS if way is not _put_async or not in_one_thread]
    clock = Clock()
    for opening in range(3):
        if opening == 2:
            leave_as_crashed(root)
        with stratalog.open(root, clock_ns=clock, **SETTINGS) as store:
            for round_number in range(ROUNDS):
                for way in ways:
                    attempt(store, lambda way=way, store=store: way(store, diary))  # type: ignore[misc]
                clock.now_ms += 1000
                if round_number % 3 == 1:
                    assert store.queue("t", 0).max_offset


def _put(store: MessageStore, diary: Diary) -> None:
    with diary.putting(0, 1) as (number,):
        store.put("t", body_of(number), keys=[f"k{number}"], tags="a")


def _put_list(store: MessageStore, diary: Diary) -> None:
    with diary.putting(1, 3) as numbers:
        texts = [encode_properties({"KEYS": f"k{number}"}) for number in numbers]
        store.put_many("t", [*map(body_of, numbers)], texts, queue_id=1)


def _put_arrow(store: MessageStore, diary: Diary) -> None:
    with diary.putting(0, 2) as numbers:
        columns = {"body": [*map(body_of, numbers)], "keys": [f"k{number}" for number in numbers]}
        store.append(pa.record_batch(columns), topic="t", queue_id=0)


def _put_async(store: MessageStore, diary: Diary) -> None:
    with diary.putting(1, 1) as (number,):
        asyncio.run(store.put_async("t", body_of(number), queue_id=1, keys=[f"k{number}"]))


WAYS = (_put, _put_list, _put_arrow, _put_async)


def leave_as_crashed(root: Path) -> None:
    """Make a store that was closed look killed: half a record behind the end, and the mark of an unclean stop."""
    last = log_files(root)[-1]
    data = bytearray(last.read_bytes())
    end = len(data.rstrip(b"\0"))
    if data[end - 1 : end] != b"\x02":  # only where the last record ends with its properties is the end known
        return
    if end + len(GARBAGE) < len(data):
        data[end : end + len(GARBAGE)] = GARBAGE
        last.write_bytes(data)
    (root / "abort").write_text("1")


def compare_reopened(root: Path, diary: Diary) -> None:
    """Open twice, and put in between: recovery's work must last, and offsets go on."""
    for opening in range(2):
        with stratalog.open(root, clock_ns=Clock(), **SETTINGS) as store:
            check(store)
            diary.compare(store)
            known = sum(len([*store.queue("t", queue_id).read()]) for queue_id in (0, 1))
            del diary.begun[known:]  # what was not acknowledged may be gone, and stays gone then
            diary.acknowledged = known
            for _, number in diary.begun[-10:]:
                if [message.body for message in store.query("t", key=f"k{number}")] != [body_of(number)]:
                    raise WrongPrefix(f"message {number} is not found by its key")
            if not opening:
                _put_list(store, diary)
