"""What takes the place of a damaged range of the log, so that RocketMQ reads on behind it and no offset moves.

RocketMQ's recovery and dispatch end at the first bytes that are no record. So a range is covered exactly with whole
records, of two kinds:

- a *placeholder* for each message that is known to be lost: same topic, queue and queue offset, so that the queue keeps
  its numbers, whoever builds it. It is an inner batch of no messages, compressed: a Java client unwraps it to nothing,
  and a reader that does not unwrap batches finds an empty body.
- a *filler* for the rest: a rolled back transaction's record, which enters no queue and no index.

Both carry the property `STRATALOG_LOST`, the name under which the bytes were set aside. Where the range goes to the
file's end, a blank record closes the file as usual. A range of less than a record's smallest size cannot be covered;
the caller widens it.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from stratalog.errors import CorruptData
from stratalog.layout.message import (
    BLANK,
    FIXED_SIZE_V1,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    TOPIC_CHARS_MAX_V1,
    Record,
)
from stratalog.layout.properties import encode_properties
from stratalog.layout.recordcrc import reserve_record_crc, seal_record_crc
from stratalog.layout.sysflag import Compression, SysFlag, Transaction

LOST_PROPERTY = "STRATALOG_LOST"
FILLER_TOPIC = b"rmq_sys_stratalog_lost"
PIECE_SIZE_MAX = 1 << 20
"""Largest record that is made: readers allocate a record's size."""
SMALLEST = FIXED_SIZE_V1
_PLACEHOLDER_FLAGS = int(SysFlag.COMPRESSED | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP) | int(Compression.ZLIB)
_NOTHING = zlib.compress(b"")
_ROOM_FOR_REST = 80
"""For the body, the property and the record CRC of a placeholder."""


@dataclass(frozen=True, slots=True, order=True)
class LostMessage:
    """A message whose record cannot be read. Where its unit still stands, that says where the record was."""

    topic: str
    queue_id: int
    queue_offset: int


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

        In a range that is closed by a blank record nothing is written behind that. Raises `CorruptData` for a range
        that no record fits into.
        """
        blank_size = BLANK.size if self.closes_file else 0
        if self.size < (BLANK.size if self.closes_file else SMALLEST):
            raise CorruptData(f"{self.size} bytes at log offset {self.begin:,} are too few for a record")
        records = [self._placeholder(message) for message in lost]
        for shrunk in (_unnamed, _smallest):
            if sum(record.total_size for record in records) + blank_size > self.size:
                records = [shrunk(record, self.with_record_crc) for record in records]
        while records and sum(record.total_size for record in records) + blank_size > self.size:
            records.pop()
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

    @staticmethod
    def room_for(message: LostMessage) -> int:
        """Bytes that a placeholder takes at most where nothing has to be filled up."""
        return SMALLEST + len(message.topic.encode()) + _ROOM_FOR_REST

    def least_size(self, lost: Sequence[LostMessage]) -> int:
        """Bytes that placeholders take where nothing has to be filled up."""
        return sum(self._placeholder(message).total_size for message in lost)

    def _placeholder(self, message: LostMessage) -> Record:
        topic = message.topic.encode()
        return Record(
            topic=topic, body=_NOTHING, properties=self._properties(), queue_id=message.queue_id,
            queue_offset=message.queue_offset, sys_flag=_PLACEHOLDER_FLAGS,
            magic=MAGIC_V2 if len(topic) > TOPIC_CHARS_MAX_V1 else MAGIC_V1,
        )  # fmt: skip

    def _filler(self, size: int) -> Record:
        record = Record(
            topic=FILLER_TOPIC, body=b"", properties=self._properties(), sys_flag=int(Transaction.ROLLBACK)
        )  # fmt: skip
        if record.total_size > size:
            record = replace(record, topic=b"", properties=b"")
        return replace(record, body=bytes(size - record.total_size))

    def _properties(self) -> bytes:
        stored = encode_properties({LOST_PROPERTY: self.name})
        return reserve_record_crc(stored) if self.with_record_crc else stored

    def _encoded(self, record: Record, offset: int) -> bytes:
        stored = replace(
            record, commit_log_offset=offset, store_timestamp=self.store_timestamp, born_timestamp=self.store_timestamp
        ).encode()  # fmt: skip
        return seal_record_crc(stored) if self.with_record_crc and record.properties else stored


def _unnamed(record: Record, with_record_crc: bool) -> Record:
    """A placeholder that does not say where the bytes are."""
    return replace(record, properties=reserve_record_crc(b"") if with_record_crc else b"")


def _smallest(record: Record, with_record_crc: bool) -> Record:
    """A placeholder that fits where a message without body and properties stood: it is one itself."""
    return replace(_unnamed(record, with_record_crc), body=b"", sys_flag=0)


def _sizes(rest: int) -> Iterator[int]:
    """Sizes of records that cover `rest` bytes, none too large and none too small."""
    while rest > PIECE_SIZE_MAX:
        size = PIECE_SIZE_MAX if rest - PIECE_SIZE_MAX >= SMALLEST else PIECE_SIZE_MAX - SMALLEST
        yield size
        rest -= size
    if rest:
        yield rest
