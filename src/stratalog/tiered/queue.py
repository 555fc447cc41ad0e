"""One queue in the tier as its readers see it."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stratalog.errors import ConfigurationError, CorruptData, OffsetOutOfRange
from stratalog.layout.message import HEAD, HEADS, MAGIC_V1, MAGIC_V2, decode_record
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import HOSTS_MASK
from stratalog.layout.tier import UNIT_SIZE, SegmentType
from stratalog.store.arguments import Moment, check_bound, exact_count, exact_int, milliseconds
from stratalog.store.message import Message, message_at
from stratalog.store.uncopied import Uncopied
from stratalog.tiered.chunk import CHUNK_SIZE_MAX, FIRST_CHUNK_SIZE, Chunk, ChunkReader
from stratalog.tiered.flat_file import FlatFile
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import QueueState, TierState

if TYPE_CHECKING:
    import pyarrow as pa

_HEAD_SIZE_MAX = max(layout.size for layout in HEADS.values())
_PROBE_SIZE = 256 * 1024
"""A time search ends with one read of the records that are left, once they take no more than this."""


class GetStatus(Enum):
    """Answer to a request for one offset (GetMessageStatus); the name is upstream's."""

    FOUND = "the message"
    NO_MESSAGE_IN_QUEUE = "the queue holds nothing"
    OFFSET_TOO_SMALL = "older than the oldest message, or in a gap: go on at the next offset"
    OFFSET_OVERFLOW_ONE = "the offset the next message will get"
    OFFSET_OVERFLOW_BADLY = "beyond the end"


class GetResult(msgspec.Struct, frozen=True):
    """`message` is set for FOUND only; reading goes on at `next_offset`."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    message: Message | None = None


class TieredQueue(Uncopied):
    """A queue of a tier, as of the state it was made from. Any thread may use it.

    Offsets are queue offsets: `min_offset ≤ offset < max_offset` can be read, but for gaps that are stepped over.
    """

    def __init__(self, backend: SegmentBackend, tier: TierState, state: QueueState) -> None:
        self.topic = state.topic
        self.queue_id = state.queue_id
        self.state = state
        self.broker = tier.broker
        self._min_offset = state.min_queue_offset

        def flat_file(kind: SegmentType) -> FlatFile:
            segments = state.commit_log if kind is SegmentType.COMMIT_LOG else state.consume_queue
            return FlatFile(backend, segments, lambda base: tier.path(state.topic, state.queue_id, kind, base))

        self.log = flat_file(SegmentType.COMMIT_LOG)
        self._units = flat_file(SegmentType.CONSUME_QUEUE)
        messages = max(1, self._units.end_offset // UNIT_SIZE - self._units.min_offset // UNIT_SIZE)
        self._record_size = max(1, (self.log.end_offset - self.log.min_offset) // messages)
        self._chunks = ChunkReader(state.topic, state.queue_id, self._units, self.log, record_size=self._record_size)

    def __repr__(self) -> str:
        return f"<TieredQueue {self.topic}/{self.queue_id}>"

    @property
    def max_offset(self) -> int:
        """Queue offset after the newest committed message."""
        return self.state.end_queue_offset

    @property
    def min_offset(self) -> int:
        """Queue offset of the oldest message whose unit and record are both there.

        Known from the manifest; in a tier without one, the first record is read once (FlatMessageFile).
        """
        if self._min_offset < 0:
            self._min_offset = max(self._units.min_offset // UNIT_SIZE, self._first_record_offset())
        return self._min_offset

    def units(self, first: int, count: int) -> bytes:
        """Raw 20-byte units [first, first + count) as stored, cut at `max_offset` and at a gap.

        Their offsets count bytes in this queue's own log.
        """
        first, count = exact_count("first", first), exact_count("count", count)
        begin, end = self._units.contiguous_from(first * UNIT_SIZE)
        if begin != first * UNIT_SIZE:
            return b""
        return self._units.read(begin, min(end - begin, count * UNIT_SIZE))

    def chunks(
        self, first: int | None = None, *, count: int | None = None, size_first: int = CHUNK_SIZE_MAX
    ) -> Iterator[Chunk]:
        """Messages in bulk, checked: for what handles bytes. Range and errors as `read`."""
        start, count = self._start(first), count if count is None else exact_count("count", count)
        return self._chunks.chunks(start, self._end(start, count), size_first=size_first)

    def read(self, first: int | None = None, *, count: int | None = None) -> Iterator[Message]:
        """Messages from queue offset `first` (default: the oldest) on, at most `count`.

        Read ahead in chunks of up to 16 MiB: one read of units and one of records each. Raises `OffsetOutOfRange`
        outside [min_offset, max_offset], and `CorruptData` when it reaches a message that is damaged or missing.
        """
        chunks = self.chunks(first, count=count, size_first=FIRST_CHUNK_SIZE)
        return (message for chunk in chunks for message in self._decode(chunk))

    def read_arrow(
        self, first: int | None = None, *, count: int = 1 << 20, columns: Sequence[str] | None = None
    ) -> "pa.RecordBatch":
        """Up to `count` messages, as many as 16 MiB of log hold, as an Arrow batch in the columns of the Spark source.

        No rows = `first` is `max_offset`. Errors as `read`.
        """
        chunk = next(self.chunks(first, count=exact_count("count", count)), None)
        return self.decode_arrow(chunk, columns)

    def decode_arrow(self, chunk: Chunk | None, columns: Sequence[str] | None = None) -> "pa.RecordBatch":
        """A chunk of this queue as an Arrow batch; None gives a batch without rows."""
        import numpy as np

        from stratalog.kernels.columns import decode_arrow
        from stratalog.layout.columns import ARROW_SCHEMA

        units, size, start = (chunk.exact_units(), len(chunk.data), chunk.data_offset) if chunk else (b"", 1, 0)
        log = (np.array([chunk.address if chunk else 0], np.int64), start, max(1, size))
        names = ARROW_SCHEMA.names if columns is None else columns
        return decode_arrow(units, log, names, topic=self.topic, broker_name=self.broker)

    def get(self, offset: int) -> GetResult:
        """One message by its queue offset, with two reads, or why there is none (MessageStoreFetcherImpl)."""
        offset = exact_int("offset", offset, ConfigurationError)
        low, high = self.min_offset, self.max_offset
        if high <= 0 or not self.state.consume_queue:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, offset, low, high)
        if offset >= high:
            beyond = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(beyond, high, low, high)
        there = self._units.contiguous_from(max(offset, low) * UNIT_SIZE)[0] // UNIT_SIZE
        if there != offset:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, there, low, high)
        message = next(self._decode(self._chunks.fetch(offset, 1)))
        return GetResult(GetStatus.FOUND, offset + 1, low, high, message)

    def offset_at(self, time: Moment, *, bound: Literal["lower", "upper"] = "lower") -> int:
        """Queue offset by store time: of an aware datetime, or of milliseconds since 1970.

        Both bounds: the first message stored after the time when none has exactly that time (max_offset when there is
        none). Of messages with exactly that time, `lower` is the first and `upper` the last, wherever segments end.
        Costs two reads a halving of the range, down to 256 KiB of records, which are read at once. Raises
        `ConfigurationError` for what looks like seconds.
        """
        return self.offset_at_ms(milliseconds("time", time), check_bound(bound))

    def offset_at_ms(self, timestamp_ms: int, bound: Literal["lower", "upper"] = "lower") -> int:
        """The same of any number of milliseconds."""
        first = self._first_not_before(timestamp_ms)
        if bound == "lower":
            return first
        return max(first, self._first_not_before(timestamp_ms + 1) - 1)

    def earliest_time(self) -> int | None:
        """Store time of the oldest message in ms; None in an empty queue."""
        if not self.state.consume_queue or self.min_offset >= self.max_offset:
            return None
        return self._store_timestamp(self.min_offset)

    def store_timestamp_at(self, commit_log_offset: int) -> int:
        """Store time (ms) of the record at a log offset that a unit names, with one read. Raises `CorruptData`."""
        left = self.log.contiguous_from(commit_log_offset)[1] - commit_log_offset
        head = _head(self.log.read(commit_log_offset, min(left, _HEAD_SIZE_MAX)))
        if head is None:
            path, position = self.log.place(commit_log_offset)
            raise CorruptData("no message record begins here; restore the segment", path=path, position=position)
        return int(head.store_timestamp)

    def message_at_log_offset(self, commit_log_offset: int, size: int) -> Message | None:
        """The record that an index item points to, with one read; None outside the log. Raises `CorruptData`."""
        if not self.log.min_offset <= commit_log_offset <= self.log.end_offset - size:
            return None
        data = self.log.read(commit_log_offset, size)
        try:
            record = decode_record(data)
            if record.commit_log_offset != commit_log_offset or record.topic != self.topic.encode():
                raise CorruptData(f"a record of log offset {record.commit_log_offset} and topic {record.topic!r}")
        except CorruptData as error:
            path, position = self.log.place(commit_log_offset)
            raise CorruptData(
                f"an index item points here, but there is {error}; verify the tier, or restore the segment",
                path=path,
                position=position,
            ) from None
        return message_at(data, 0)

    def _decode(self, chunk: Chunk) -> Iterator[Message]:
        data, topic = chunk.data, self.topic
        for position in chunk.positions.tolist():
            yield message_at(data, position, topic)

    def _start(self, first: int | None) -> int:
        low, high = self.min_offset, self.max_offset
        start = low if first is None else exact_int("first", first, ConfigurationError)
        if not low <= start <= high:
            raise OffsetOutOfRange(
                f"{self.topic}/{self.queue_id} holds offsets [{low}, {high}) in the tier, not {start}",
                next_offset=low if start < low else high,
            )
        return start

    def _end(self, start: int, count: int | None) -> int:
        """Queue offset after `count` messages from `start` on; those in gaps do not count."""
        if count is None:
            return self.max_offset
        end = start
        for begin, stop in self._runs(start):
            end = min(stop, begin + count)
            count -= end - begin
            if count == 0:
                break
        return end

    def _runs(self, start: int) -> Iterator[tuple[int, int]]:
        """Ranges of queue offsets from `start` on between gaps; mostly one."""
        while True:
            begin, stop = (byte // UNIT_SIZE for byte in self._units.contiguous_from(start * UNIT_SIZE))
            if begin == stop:
                return
            yield begin, stop
            start = stop

    def _first_record_offset(self) -> int:
        """Queue offset in the first record of the log; 0 while the log is empty."""
        size = min(_HEAD_SIZE_MAX, self.log.end_offset - self.log.min_offset)
        return int(HEAD.unpack(self.log.read(self.log.min_offset, size)).queue_offset) if size >= HEAD.size else 0

    def _first_not_before(self, timestamp_ms: int) -> int:
        """First queue offset whose message was stored at that time or later; max_offset when there is none."""
        for low, high in self._runs(self.min_offset):
            if self._store_timestamp(high - 1) >= timestamp_ms:
                return self._first_in_run(low, high, timestamp_ms)
        return self.max_offset

    def _first_in_run(self, low: int, high: int, timestamp_ms: int) -> int:
        """Halve [low, high), whose last message is late enough, until one read takes the rest."""
        probe = max(1, _PROBE_SIZE // self._record_size)
        while high - low > probe:
            middle = (low + high) // 2
            if self._store_timestamp(middle) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        for chunk in self._chunks.chunks(low, high):
            for number, position in enumerate(chunk.positions.tolist()):
                if message_at(chunk.data, position, self.topic).store_timestamp >= timestamp_ms:
                    return chunk.first_queue_offset + number
        return high

    def _store_timestamp(self, queue_offset: int) -> int:
        """Store time of one message, from its unit and the head of its record."""
        unit = UNIT.unpack(self._units.read(queue_offset * UNIT_SIZE, UNIT_SIZE))
        size = min(unit.size, _HEAD_SIZE_MAX)
        if size >= HEAD.size and self.log.holds(unit.commit_log_offset, size):
            head = _head(self.log.read(unit.commit_log_offset, size))
            if head is not None and head.queue_offset == queue_offset:
                return int(head.store_timestamp)
        return next(self._decode(self._chunks.fetch(queue_offset, 1))).store_timestamp


def _head(data: bytes) -> Any:
    """Head of the record that these bytes begin; None when it is no record's."""
    head = HEAD.unpack(data)
    layout = HEADS[head.sys_flag & HOSTS_MASK]
    return layout.unpack(data) if head.magic in (MAGIC_V1, MAGIC_V2) and len(data) >= layout.size else None
