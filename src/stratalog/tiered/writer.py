"""Writing a batch of messages into the tier's segments.

    writer = TierWriter(backend, state)                     # one a task; nothing is committed by it
    writer.append(topic, queue_id, units, window=window, first_queue_offset=…, topic_id=…)
    batch = writer.finish()                                 # everything durable; what the manifest entry needs
    manifest.commit(ManifestEntry(queues=batch.queues, index_runs=batch.index_runs), state)

Bytes and borders of segments are a pure function of a queue's state and its messages, and every write goes to an
absolute position: doing a batch again, or twice at once, writes the same bytes to the same places. Nothing written is
readable before the manifest says so.
"""

import uuid
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import ConfigurationError, CorruptData
from stratalog.kernels.crc32 import crc32
from stratalog.kernels.gather import GatherStatus, gather
from stratalog.kernels.tierkeys import KEYS_MAX, RADIX_SCRATCH, check_units, put_items, sort_items, store_times
from stratalog.layout.message import FIXED_SIZE_V1
from stratalog.layout.queue import UNIT
from stratalog.layout.tier import (
    COMMIT_LOG_MAX_SIZE,
    CONSUME_QUEUE_MAX_SIZE,
    NEVER_WRITTEN,
    OWN_DIRECTORY,
    RUN_HEADER,
    RUN_ITEM,
    RUN_MAGIC,
    RUN_VERSION,
    UNIT_SIZE,
    SegmentType,
    cluster_directory,
)
from stratalog.tiered.chunk import address_of
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import IndexRun, QueueCommit, QueueName, QueueState, Segment, Segments, TierState

BUFFER_SIZE = 2 * 1024 * 1024
"""Records gathered at once: checked, indexed and written while they are in the CPU's cache."""
RUN_ITEMS_MAX = 4 * 1024 * 1024
"""Index items held before they become a run: 150 MB, twice that while they are sorted."""
_LOG = SegmentType.COMMIT_LOG


class Window(Protocol):
    """The source log as kernels see it (`stratalog.store.commit_log.LogWindow`): byte b stands at
    `addresses[(b - first_offset) // file_size] + (b - first_offset) % file_size`; address 0 = the file is gone."""

    @property
    def addresses(self) -> NDArray[np.int64]: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def file_size(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """Names follow upstream's keys. Changing the sizes moves later borders only; what is written stays readable."""

    commit_log_max_size: int = COMMIT_LOG_MAX_SIZE
    consume_queue_max_size: int = CONSUME_QUEUE_MAX_SIZE
    index: bool = True
    buffer_size: int = BUFFER_SIZE


class WrittenBatch(NamedTuple):
    """What a writer made durable, for one manifest entry."""

    queues: tuple[QueueCommit, ...]
    index_runs: tuple[IndexRun, ...]
    message_count: int
    commit_log_size: int


class TierWriter:
    """Writes the messages of one batch. For one thread; throw it away after `finish` or an error.

    Order on the disk: commit logs, sync, consume queues, sync, index runs. So a Java broker that opens the tier after a
    crash never finds a unit without its record.
    """

    def __init__(
        self, backend: SegmentBackend, state: TierState, *, settings: WriterSettings | None = None, attempt: str = ""
    ) -> None:
        """`attempt` makes the names of index runs unique to this attempt; empty = a random one."""
        self._backend = backend
        self._state = state
        self._settings = settings or WriterSettings()
        self._attempt = attempt or uuid.uuid4().hex
        self._queues: dict[QueueName, _QueueWriter] = {}
        self._buffer = np.empty(self._settings.buffer_size, np.uint8)
        self._index = _IndexItems(backend, state, self._attempt)

    def append(
        self,
        topic: str,
        queue_id: int,
        units: bytes | memoryview,
        *,
        window: Window,
        first_queue_offset: int,
        topic_id: int,
    ) -> int:
        """Copy the records of consecutive 20-byte units (source log offsets), the first of `first_queue_offset`.

        Continues the queue where the state, or an earlier call, ends; offsets beyond that are recorded as a gap, those
        before it were copied already and are passed over. Returns the number of messages copied. Raises `CorruptData`
        when a unit does not point to a whole record of this queue, `DiskFull`.
        """
        name = QueueName(topic, queue_id)
        writer = self._queues.get(name)
        if writer is None:
            writer = self._queues[name] = _QueueWriter(self._backend, self._state, name, topic_id, self._settings)
        source = memoryview(units)[writer.begin_at(first_queue_offset) * UNIT_SIZE :]
        done, count = 0, len(source) // UNIT_SIZE
        while done < count:
            done += self._copy(writer, source[done * UNIT_SIZE :], window)
        return count

    def finish(self) -> WrittenBatch:
        """Make everything durable and say what was written."""
        written = [writer for writer in self._queues.values() if writer.message_count]
        self._backend.sync([path for writer in written for path in writer.log.paths])
        for writer in written:
            writer.write_units()
        self._backend.sync([path for writer in written for path in writer.units.paths])
        runs = self._index.finish()
        return WrittenBatch(
            tuple(writer.commit() for writer in written),
            runs,
            sum(writer.message_count for writer in written),
            sum(writer.log.end - writer.log.begin for writer in written),
        )

    def _copy(self, writer: "_QueueWriter", units: memoryview, window: Window) -> int:
        """Copy as many records as one buffer and the current segment take; returns how many, at least one."""
        count = min(len(units) // UNIT_SIZE, self._buffer.size // FIXED_SIZE_V1 + 1)
        source = np.frombuffer(units, np.uint8, count * UNIT_SIZE)
        tier_units = np.empty(count * UNIT_SIZE, np.uint8)
        room = min(self._buffer.size, writer.log.room)
        done, size, status = gather(
            source.ctypes.data, count, window.addresses, window.first_offset, window.file_size,
            self._buffer.ctypes.data, room, writer.log.end, tier_units.ctypes.data,
        )  # fmt: skip
        if done == 0:
            unit = UNIT.unpack(units)
            if status == GatherStatus.MISSING:
                raise self._damaged(writer, unit, "the log has no such place: its file is gone, or the unit is damaged")
            if unit.size > self._buffer.size:
                self._buffer = np.empty(unit.size, np.uint8)
            if unit.size > writer.log.room:
                writer.log.roll(unit.size)
            return 0
        self._check(writer, tier_units, done, size, source)
        if self._settings.index:
            self._index.add(writer, tier_units, done, self._buffer)
        times = np.empty(done, np.int64)
        store_times(tier_units.ctypes.data, done, self._buffer.ctypes.data, writer.log.end, times)
        writer.take(self._buffer[:size], tier_units[: done * UNIT_SIZE], times)
        return done

    def _check(
        self, writer: "_QueueWriter", tier_units: NDArray[np.uint8], count: int, size: int, source: NDArray[np.uint8]
    ) -> None:
        """Every copied record is whole and the one its unit stands for; a damaged one never enters the tier."""
        positions = np.empty(count, np.int64)
        topic = writer.name.topic.encode()
        good = check_units(
            tier_units.ctypes.data, count, self._buffer.ctypes.data, size, writer.log.end,
            address_of(topic), len(topic), writer.name.queue_id, writer.end, positions,
        )  # fmt: skip
        begins = tier_units[: count * UNIT_SIZE].view(UNIT.dtype)["commit_log_offset"] - writer.log.end
        good = min(good, int(np.argmin(np.append(positions[:good] == begins[:good], False))))  # no coda is a record
        if good < count:
            unit = UNIT.unpack(source.data, good * UNIT_SIZE)
            raise self._damaged(writer, unit, f"no whole record of queue offset {writer.end + good} stands there")

    def _damaged(self, writer: "_QueueWriter", unit: NamedTuple, reason: str) -> CorruptData:
        topic, queue_id = writer.name
        return CorruptData(
            f"queue {topic}/{queue_id} cannot be copied past queue offset {writer.end}: its unit says {unit}, but "
            f"{reason}; run `stratalog verify STORE` and repair the store. Nothing of this batch was committed"
        )


class _FlatWriter:
    """Appends to one flat file and splits it into segments as upstream does (FlatAppendFile).

    A segment is full when the next piece would exceed its maximum; the next segment begins where it ends.
    """

    def __init__(
        self, backend: SegmentBackend, state: TierState, name: QueueName, kind: SegmentType, begin: int, size_max: int
    ) -> None:
        self._backend = backend
        self._state, self._name, self._kind = state, name, kind
        self._size_max = size_max
        self._limit = size_max
        queue = state.queues.get(name)
        before: Segments = () if queue is None else queue.commit_log if kind is _LOG else queue.consume_queue
        self._segment = before[-1] if before and before[-1].end_offset == begin else Segment(begin, 0)
        self.begin = self.end = begin
        self.written: list[Segment] = []

    @property
    def room(self) -> int:
        """Bytes left in the current segment."""
        return max(0, self._limit - self._segment.size)

    @property
    def paths(self) -> list[str]:
        return [self._path(segment) for segment in self.written]

    def _path(self, segment: Segment) -> str:
        return self._state.path(*self._name, self._kind, segment.base_offset)

    def roll(self, size: int) -> None:
        """Make room for a piece of that size: in a new segment, which is larger than the maximum if the piece is."""
        if self._segment.size:
            self._segment = Segment(self.end, 0)
        self._limit = max(self._size_max, size)

    def write(self, data: NDArray[np.uint8], begin_timestamp: int, end_timestamp: int) -> None:
        """Append bytes that fit the current segment, of messages stored between these times."""
        before = self._segment
        self._backend.write(self._path(before), before.size, data.data)
        is_first = before.begin_timestamp == NEVER_WRITTEN
        self._segment = Segment(
            before.base_offset,
            before.size + len(data),
            begin_timestamp if is_first else min(before.begin_timestamp, begin_timestamp),
            end_timestamp if is_first else max(before.end_timestamp, end_timestamp),
        )
        if self.written and self.written[-1].base_offset == before.base_offset:
            self.written.pop()
        self.written.append(self._segment)
        self.end += len(data)


class _QueueWriter:
    """One queue's part of a batch: its log is written at once, its units are held until the log is durable."""

    def __init__(
        self, backend: SegmentBackend, state: TierState, name: QueueName, topic_id: int, settings: WriterSettings
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.message_count = 0
        self._backend, self._state, self._settings = backend, state, settings
        self._before: QueueState | None = state.queues.get(name)
        log_end = self._before.commit_log_end if self._before else 0
        self.log = _FlatWriter(backend, state, name, _LOG, log_end, settings.commit_log_max_size)
        self._held: list[tuple[NDArray[np.uint8], NDArray[np.int64]]] = []
        self._skipped = 0
        self._first = -1

    @property
    def end(self) -> int:
        """Queue offset of the next message."""
        return self._first + self.message_count

    def begin_at(self, queue_offset: int) -> int:
        """Go on at this queue offset: returns how many messages from it on are in the tier already."""
        if self._first < 0:
            committed = self._before.end_queue_offset if self._before and self._before.consume_queue else queue_offset
            self._skipped = max(0, queue_offset - committed)
            self._first = committed + self._skipped
            self.units = _FlatWriter(
                self._backend, self._state, self.name, SegmentType.CONSUME_QUEUE, self._first * UNIT_SIZE,
                self._settings.consume_queue_max_size,
            )  # fmt: skip
        if queue_offset > self.end:
            raise ConfigurationError(
                f"{self.name.topic}/{self.name.queue_id}: the batch is at queue offset {self.end}, the next messages "
                f"begin at {queue_offset}; a gap needs a batch of its own"
            )
        return self.end - queue_offset

    def take(self, data: NDArray[np.uint8], units: NDArray[np.uint8], times: NDArray[np.int64]) -> None:
        self.log.write(data, int(times.min()), int(times.max()))
        self._held.append((units, times))
        self.message_count += len(times)

    def write_units(self) -> None:
        """Write the held units, split into segments at whole units."""
        units = np.concatenate([held for held, _ in self._held])
        times = np.concatenate([held for _, held in self._held])
        self._held.clear()
        self._begin_timestamp, self._end_timestamp = int(times.min()), int(times.max())
        while len(times):
            count = min(self.units.room // UNIT_SIZE, len(times))
            if count == 0:
                self.units.roll(UNIT_SIZE)
                continue
            self.units.write(units[: count * UNIT_SIZE], int(times[:count].min()), int(times[:count].max()))
            units, times = units[count * UNIT_SIZE :], times[count:]

    def commit(self) -> QueueCommit:
        return QueueCommit(
            *self.name,
            self.topic_id,
            from_queue_offset=self._first,
            to_queue_offset=self.end,
            from_commit_log_offset=self.log.begin,
            to_commit_log_offset=self.log.end,
            begin_timestamp=self._begin_timestamp,
            end_timestamp=self._end_timestamp,
            commit_log=tuple(self.log.written),
            consume_queue=tuple(self.units.written),
            skipped=self._skipped,
        )


class _IndexItems:
    """Collects a batch's index items and writes them as runs, sorted by hash."""

    def __init__(self, backend: SegmentBackend, state: TierState, attempt: str) -> None:
        self._backend = backend
        self._stem = f"{cluster_directory(state.cluster)}/{state.broker}/{OWN_DIRECTORY}/index/{attempt}"
        self._items = np.empty(0, np.uint8)
        self._count = 0
        self._hashes = np.empty(KEYS_MAX + 1, np.int32)
        self._runs: list[IndexRun] = []

    def add(self, writer: _QueueWriter, units: NDArray[np.uint8], count: int, data: NDArray[np.uint8]) -> None:
        """Add the keys of records that stand in `data` and will be written at the log's end."""
        done = 0
        while True:
            done, self._count = put_items(
                units.ctypes.data, done, count, data.ctypes.data, writer.log.end, writer.topic_id, writer.name.queue_id,
                self._items.ctypes.data, self._count, self._items.size // RUN_ITEM.size, self._hashes,
            )  # fmt: skip
            if done == count:
                return
            if self._count >= RUN_ITEMS_MAX:
                self._write_run()
            else:
                self._grow(2 * count)

    def finish(self) -> tuple[IndexRun, ...]:
        if self._count:
            self._write_run()
        return tuple(self._runs)

    def _grow(self, more: int) -> None:
        capacity = max(2 * self._items.size // RUN_ITEM.size, self._count + max(more, KEYS_MAX + 1))
        grown = np.empty(capacity * RUN_ITEM.size, np.uint8)
        used = self._count * RUN_ITEM.size
        grown[:used] = self._items[:used]
        self._items = grown

    def _write_run(self) -> None:
        count = self._count
        run = np.empty(RUN_HEADER.size + RUN_ITEM.size * count, np.uint8)
        run[: RUN_HEADER.size] = np.frombuffer(RUN_HEADER.pack(RUN_MAGIC, RUN_VERSION, count), np.uint8)
        order, spare = np.empty(count, np.int32), np.empty(count, np.int32)
        digits = np.empty(RADIX_SCRATCH, np.int64)
        sort_items(self._items.ctypes.data, count, run.ctypes.data + RUN_HEADER.size, order, spare, digits)
        times = run[RUN_HEADER.size :].view(RUN_ITEM.dtype)["store_timestamp"]
        path = f"{self._stem}-{len(self._runs):04d}.run"
        if not self._backend.put_if_absent(path, run.data):
            raise ConfigurationError(f"{path} exists already: the attempt's name is not unique to it")
        checksum = crc32(run.ctypes.data, run.size)
        self._runs.append(IndexRun(path, count, int(times.min()), int(times.max()), checksum))
        self._count = 0
