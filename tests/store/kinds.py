"""Every kind of queue as one thing: how a store of it is filled, what it must hold, and how one reads over damage.

A `Kind` fills two queues with messages that are known by heart; `Content` is that knowledge. Files are so small that
each queue has several.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stratalog
from store.model import QUIET, Clock
from stratalog.errors import CorruptData
from stratalog.layout.batch import INNER_BASE, INNER_NUM
from stratalog.layout.light import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, CONSUME_QUEUE_EXT
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import BATCH_UNIT, EXTENSION_UNIT, UNIT
from stratalog.layout.record import Layout
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue

Key = tuple[str, int]
QUEUE_FILE_UNITS = 8
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": QUEUE_FILE_UNITS * UNIT.size,
    "mapper_file_size_batch_consume_queue": QUEUE_FILE_UNITS * BATCH_UNIT.size,
    "mapped_file_size_consume_queue_ext": 10 * EXTENSION_UNIT.size + 4,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
PUTS = 40
_OF_PLACE = (INNER_NUM, INNER_BASE, MULTI_DISPATCH, MULTI_QUEUE_OFFSET)
"""Properties that a store adds, or that tell of a record's place."""


@dataclass(frozen=True)
class Known:
    """One message as its reader must see it."""

    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    store_timestamp: int
    commit_log_offset: int

    @classmethod
    def of(cls, message: Message) -> "Known":
        return cls(
            message.body, message.tags, tuple(message.keys), message.store_timestamp, message.commit_log_offset
        )  # fmt: skip


@dataclass
class Content:
    """What the queues of a kind hold, by queue and queue offset; and which topic has the index's keys."""

    queues: dict[Key, dict[int, Known]] = field(default_factory=dict)

    def add(self, key: Key, known: Known) -> None:
        queue = self.queues.setdefault(key, {})
        queue[len(queue)] = known


@dataclass(frozen=True)
class Kind:
    """A kind of queue. `put` puts the messages of a number and tells the content of them."""

    name: str
    queues: tuple[Key, Key]
    tree: str
    layout: Layout
    put: Callable[[MessageStore, int, Content], None]
    settings: dict[str, Any] = field(default_factory=dict)

    def open(self, root: Path, **given: Any) -> MessageStore:
        return stratalog.open(root, **{**SIZES, **QUIET, **self.settings, **given})

    def fill(self, store: MessageStore, content: Content, *, begin: int = 0, count: int = PUTS) -> None:
        for number in range(begin, begin + count):
            self.put(store, number, content)

    def made(self, root: Path, *, count: int = PUTS, **given: Any) -> Content:
        """A store, closed properly."""
        content, clock = Content(), Clock()
        with self.open(root, clock_ns=clock, **given) as store:
            for number in range(count):
                clock.now_ms += number % 3
                self.put(store, number, content)
        return content

    def directory(self, root: Path, key: Key) -> Path:
        return root / self.tree / key[0] / str(key[1])

    def files(self, root: Path, key: Key) -> list[Path]:
        return sorted(self.directory(root, key).iterdir())

    def __str__(self) -> str:
        return self.name


def _body(number: int, member: int = 0) -> bytes:
    return b"%03d.%d" % (number, member) * (1 + number * 5 % 13)


def _text(number: int, member: int = 0, **more: str) -> bytes:
    return encode_properties({"TAGS": _tags(number), "KEYS": f"k{number} m{number}-{member} {_group(number)}", **more})


def _group(number: int) -> str:
    """A key that many messages share."""
    return f"g{number % 4}"


def _tags(number: int) -> str:
    return "ab"[number % 2]


def _known(receipt: Any, number: int, member: int = 0) -> Known:
    keys = (f"k{number}", f"m{number}-{member}", _group(number))
    return Known(_body(number, member), _tags(number), keys, receipt.store_timestamp, receipt.commit_log_offset)


def _put_plain(store: MessageStore, number: int, content: Content) -> None:
    key = ("topic", number % 2)
    receipt = store.queue(*key).put_raw(_body(number), _text(number))
    content.add(key, _known(receipt, number))


def _put_batch(store: MessageStore, number: int, content: Content) -> None:
    """One record of one to four messages; every third one is no inner batch."""
    if "batches" not in store.topic_configs:
        store.create_topic("batches", queues=2, queue_type="BatchCQ")
    key = ("batches", number % 2)
    if number % 3 == 2:
        content.add(key, _known(store.queue(*key).put_raw(_body(number), _text(number)), number))
        return
    members = range(1 + number % 4)
    receipt = store.queue(*key).put_batch(
        [_body(number, member) for member in members],
        [_text(number, member) for member in members],
        unique_key=f"u{number}",
        tags=_tags(number),
        keys=[f"k{number}", *(f"m{number}-{member}" for member in members), _group(number)],
    )
    for member in members:
        content.add(key, _known(receipt, number, member))


LIGHT = (("%LMQ%a", 0), ("%LMQ%b", 0))


def _put_light(store: MessageStore, number: int, content: Content) -> None:
    """A message in one light queue or both."""
    into = [LIGHT[0]] if number % 3 == 0 else [LIGHT[1]] if number % 3 == 1 else list(LIGHT)
    names = ",".join(topic for topic, _ in into)
    receipt = store.queue("parent", number % 2).put_raw(_body(number), _text(number, INNER_MULTI_DISPATCH=names))
    for key in into:
        content.add(key, _known(receipt, number))


_LIGHT_SETTINGS = {"enable_lmq": True, "enable_multi_dispatch": True}
PLAIN = Kind("plain", (("topic", 0), ("topic", 1)), CONSUME_QUEUE, UNIT, _put_plain)
EXTENDED = Kind("extended", PLAIN.queues, CONSUME_QUEUE, UNIT, _put_plain, {"enable_consume_queue_ext": True})
BATCH = Kind("batch", (("batches", 0), ("batches", 1)), BATCH_CONSUME_QUEUE, BATCH_UNIT, _put_batch)
LIGHT_KIND = Kind("light", LIGHT, CONSUME_QUEUE, UNIT, _put_light, _LIGHT_SETTINGS)
LIGHT_EXTENDED = Kind(
    "light beside extended", LIGHT, CONSUME_QUEUE, UNIT, _put_light,
    {**_LIGHT_SETTINGS, "enable_consume_queue_ext": True},
)  # fmt: skip
KINDS = (PLAIN, EXTENDED, BATCH, LIGHT_KIND, LIGHT_EXTENDED)
TREES = (CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT)


def trees(root: Path) -> dict[str, bytes]:
    """Every file of every queue."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for tree in TREES
        for path in sorted((root / tree).rglob("*"))
        if path.is_file()
    }


def pages(queue: Queue, start: int) -> Iterator[int]:
    """Offsets of the rows that `read_arrow` gives, seven at a time."""
    while start < queue.max_offset:
        rows = queue.read_arrow(start, count=7, columns=["queueOffset"])["queueOffset"].to_pylist()
        yield from rows
        start += 7


def read_on(queue: Queue) -> tuple[dict[int, Known], list[CorruptData], set[int]]:
    """Everything that can be read, going on where errors say; the errors, and the offsets that they say are passed
    over. Asserts that each gets further."""
    start, end = queue.min_offset, queue.max_offset
    assert 0 <= start <= end
    found: dict[int, Known] = {}
    errors: list[CorruptData] = []
    named: set[int] = set()
    while True:
        try:
            for message in queue.read(start):
                assert start <= message.queue_offset < end
                assert (message.topic, message.queue_id) == (queue.topic, queue.queue_id)
                found[message.queue_offset] = Known.of(message)
                start = message.queue_offset + 1
            return found, errors, named
        except CorruptData as error:
            errors.append(error)
        following = errors[-1].next_offset
        assert start < following <= end, f"asked for {start} of [.., {end}): {errors[-1]}"
        named |= set(range(start, following))
        start = following
