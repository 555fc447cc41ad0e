"""What takes the place of a damaged range of the log, so that RocketMQ reads on after it and no offset moves.

RocketMQ's recovery and dispatch end at the first bytes that are no record. So a range is covered exactly with whole
records. Each has `flag` = LOST_FLAG in its head, whatever else there is room for:

- a *placeholder* for each message that is known to be lost: same topic, queue and queue offset, so that the queue keeps
  its numbers, whoever builds it. It is an inner batch of no messages, compressed: a Java client unwraps it to nothing,
  and a reader that does not unwrap batches finds an empty body. In a batch topic it takes as many offsets as the lost
  batch did; it stands in the light queues that the lost message stood in. A lost delayed message's placeholder is an
  ordinary record, which the broker delivers to FILLER_TOPIC when its time has come: an inner batch it would try to
  deliver for ever.
- a *filler* for the rest: a rolled back transaction's record, which enters no queue and no index.

Where there is room they carry the property `STRATALOG_LOST`, the name under which the bytes were set aside. A message
whose record was too small for a placeholder gets none: its offset stays empty. Where the range goes to the file's end,
a blank record closes the file as usual. A range of less than a record's smallest size cannot be covered; the caller
widens it.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, pairwise, takewhile

from stratalog.errors import CorruptData
from stratalog.layout.batch import INNER_BASE, INNER_NUM, PLACEHOLDER_FLAGS
from stratalog.layout.light import LIGHT_QUEUE_ID, MULTI_DISPATCH, MULTI_QUEUE_OFFSET, Place, joined_offsets
from stratalog.layout.message import (
    BLANK,
    FIXED_SIZE_V1,
    LOST_FLAG,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_CHARS_MAX_V1,
    Record,
)
from stratalog.layout.names import SCHEDULE_TOPIC
from stratalog.layout.properties import DELAY, REAL_QUEUE_ID, REAL_TOPIC, encode_properties
from stratalog.layout.queue import BATCH_SIZE_MAX
from stratalog.layout.recordcrc import CRC_ROOM, reserve_record_crc, seal_record_crc
from stratalog.layout.sysflag import Transaction

LOST_PROPERTY = "STRATALOG_LOST"
FILLER_TOPIC = b"rmq_sys_stratalog_lost"
PIECE_SIZE_MAX = 1 << 20
"""Largest record that is made: readers allocate a record's size."""
SMALLEST = FIXED_SIZE_V1
_NOTHING = zlib.compress(b"")


@dataclass(frozen=True, slots=True, order=True)
class LostMessage:
    """A message, or a batch of a batch topic, whose record cannot be read."""

    topic: str
    queue_id: int
    queue_offset: int
    batch_size: int = 0
    """Messages of the batch; 0 in an ordinary queue."""
    places: tuple[Place, ...] = ()
    """Where it stood in light queues."""

    @property
    def message_count(self) -> int:
        return self.batch_size or 1

    @property
    def all_places(self) -> list[tuple[str, int, int, int]]:
        """Topic, queue and offsets [first, end) of it in its own queue, then in light queues."""
        light = [(name, LIGHT_QUEUE_ID, number, number + 1) for name, number in self.places]
        return [(self.topic, self.queue_id, self.queue_offset, self.end), *light]

    @property
    def end(self) -> int:
        """Queue offset after it."""
        return self.queue_offset + self.message_count

    @property
    def room(self) -> int:
        """Bytes that its placeholder takes at least."""
        return placeholder(self, {}).total_size


def placeholder(message: LostMessage, named: dict[str, str], *, with_record_crc: bool = False) -> Record:
    """The record that stands for a message; `named` are properties beside those that give it its place."""
    topic = message.topic.encode("utf-8", "surrogateescape")
    properties = dict(named)
    if message.batch_size:
        properties |= {INNER_NUM: str(message.batch_size), INNER_BASE: str(message.queue_offset)}
    if message.places:
        properties[MULTI_DISPATCH] = ",".join(name for name, _ in message.places)
        properties[MULTI_QUEUE_OFFSET] = joined_offsets([offset for _, offset in message.places])
    is_delayed = message.topic == SCHEDULE_TOPIC
    if is_delayed:
        properties |= {DELAY: "1", REAL_TOPIC: FILLER_TOPIC.decode(), REAL_QUEUE_ID: "0"}
    stored = encode_properties(properties)
    return Record(
        topic=topic, body=b"" if is_delayed else _NOTHING, queue_id=message.queue_id, flag=LOST_FLAG,
        properties=reserve_record_crc(stored) if with_record_crc else stored, queue_offset=message.queue_offset,
        sys_flag=0 if is_delayed else PLACEHOLDER_FLAGS,
        magic=MAGIC_V2 if len(topic) > TOPIC_CHARS_MAX_V1 else MAGIC_V1,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cover:
    """How `size` bytes of one file from log offset `begin` are covered; `name` is that of the bytes set aside."""

    begin: int
    size: int
    name: str
    store_timestamp: int
    closes_file: bool
    with_record_crc: bool = False

    def pieces(self, lost: Sequence[LostMessage]) -> Iterator[tuple[int, bytes]]:
        """Log offset and bytes of each record, in order. Those of `lost` that there is no room for get none.

        In a range that is closed by a blank record nothing is written after that. Raises `CorruptData` for a range
        that no record fits into.
        """
        blank_size = BLANK.size if self.closes_file else 0
        if self.size < (BLANK.size if self.closes_file else SMALLEST):
            raise CorruptData(f"{self.size} bytes at log offset {self.begin:,} are too few for a record")
        records = self._placeholders(lost, self.size - blank_size)
        rest = self.size - sum(record.total_size for record in records)
        offset = self.begin
        if not self.closes_file and records and (rest < SMALLEST or rest + records[-1].total_size <= PIECE_SIZE_MAX):
            records[-1] = replace(records[-1], body=records[-1].body + bytes(rest))
            rest = 0
        for record in records:
            yield offset, self._encoded(record, offset)
            offset += record.total_size
        if self.closes_file:
            yield offset, BLANK.pack(rest, MAGIC_BLANK)
            return
        for size in _sizes(rest):
            yield offset, self._encoded(self._filler(size), offset)
            offset += size

    def fitting(self, lost: Sequence[LostMessage]) -> list[LostMessage]:
        """Those that there is room for, in order."""
        left, found = self._room, []
        for message in lost:
            size = placeholder(message, {}, with_record_crc=self.with_record_crc).total_size
            if size <= left:
                found.append(message)
                left -= size
        return found

    def first_fitting(self, lost: Sequence[LostMessage]) -> list[LostMessage]:
        """Those in front of the first that there is no room for."""
        records = (placeholder(message, {}, with_record_crc=self.with_record_crc) for message in lost)
        return list(lost[: self._count(records, self._room)])

    def fitting_named(self, lost: Sequence[LostMessage]) -> list[LostMessage]:
        """As many as there is room for with all properties, in order."""
        return list(lost[: self._count(map(self._placeholder, lost), self.size)])

    @staticmethod
    def _count(records: Iterable[Record], room: int) -> int:
        """How many records there is room for, in order. Those after them are not made."""
        sizes = accumulate(record.total_size for record in records)
        return sum(1 for _ in takewhile(lambda size: size <= room, sizes))

    @property
    def _room(self) -> int:
        return self.size - (BLANK.size if self.closes_file else 0)

    def least_size(self, lost: Sequence[LostMessage]) -> int:
        """Bytes that placeholders with all properties take."""
        return sum(self._placeholder(message).total_size for message in lost)

    def _placeholders(self, lost: Sequence[LostMessage], room: int) -> list[Record]:
        lost = self.fitting(lost)
        if self.least_size(lost) <= room:
            return [self._placeholder(message) for message in lost]
        return [placeholder(message, {}, with_record_crc=self.with_record_crc) for message in lost]

    def _placeholder(self, message: LostMessage) -> Record:
        return placeholder(message, {LOST_PROPERTY: self.name}, with_record_crc=self.with_record_crc)

    def _filler(self, size: int) -> Record:
        crc = CRC_ROOM if self.with_record_crc else b""  # without, RocketMQ can be set to end the log there
        named = encode_properties({LOST_PROPERTY: self.name}) + crc
        for topic, properties in ((FILLER_TOPIC, named), (b"", crc), (b"", b"")):
            record = Record(
                topic=topic, body=b"", properties=properties, flag=LOST_FLAG, sys_flag=int(Transaction.ROLLBACK)
            )
            if record.total_size <= size:
                break
        return replace(record, body=bytes(size - record.total_size))

    def _encoded(self, record: Record, offset: int) -> bytes:
        stored = replace(
            record, commit_log_offset=offset, store_timestamp=self.store_timestamp, born_timestamp=self.store_timestamp
        ).encode()  # fmt: skip
        return seal_record_crc(stored) if self.with_record_crc and record.properties else stored


def in_log_order(lost: Iterable[LostMessage]) -> list[LostMessage]:
    """Lost messages in an order in which each queue has its offsets, light queues among them. Where what units say of
    them contradicts itself, messages of the light queues alone stand in these."""
    messages = sorted(set(lost))
    queues: dict[tuple[str, int], list[tuple[int, LostMessage]]] = defaultdict(list)
    for message in messages:
        for topic, queue_id, first, _ in message.all_places:
            queues[topic, queue_id].append((first, message))
    sorter: TopologicalSorter[LostMessage] = TopologicalSorter(dict.fromkeys(messages, ()))
    for found in queues.values():
        for (_, before), (_, after) in pairwise(sorted(found)):
            sorter.add(after, before)
    try:
        return list(sorter.static_order())
    except CycleError:
        light = [LostMessage(name, LIGHT_QUEUE_ID, number) for one in messages for name, number in one.places]
        return in_log_order([*(replace(one, places=()) for one in messages), *light])


def gap_messages(topic: str, queue_id: int, first: int, end: int) -> list[LostMessage]:
    """Offsets [first, end) of a batch queue, of which nobody knows how they were batched."""
    return [
        LostMessage(topic, queue_id, low, min(BATCH_SIZE_MAX, end - low)) for low in range(first, end, BATCH_SIZE_MAX)
    ]


def _sizes(rest: int) -> Iterator[int]:
    """Sizes of records that cover `rest` bytes, none too large and none too small."""
    while rest > PIECE_SIZE_MAX:
        size = PIECE_SIZE_MAX if rest - PIECE_SIZE_MAX >= SMALLEST else PIECE_SIZE_MAX - SMALLEST
        yield size
        rest -= size
    if rest:
        yield rest
