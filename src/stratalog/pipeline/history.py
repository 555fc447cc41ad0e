"""What a scan reads from: a local store or a tier, behind one small face.

Both are opened where they are needed, by path or URL: while planning to learn what is there, in a task to read a part
of it. Nothing of them travels between processes but names and numbers.
"""

import mmap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import NotAStore
from stratalog.layout.queue import FILLER_SIZE, UNIT
from stratalog.layout.tier import SegmentType
from stratalog.pipeline.options import ReadOptions
from stratalog.pipeline.ranges import QueueExtent, QueueRange
from stratalog.tiered.segment import PosixBackend, SegmentBackend
from stratalog.tiered.state import TierState

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.store.message_store import MessageStore

LOCAL, TIER = "local", "tier"

BATCH_SIZE = 4 << 20
"""Bytes of records in an Arrow batch. Transport to the JVM is fastest from 1 to 16 MB."""
BATCH_ROWS_MAX = 1 << 14
"""Rows in an Arrow batch: more of them fall out of the CPU's cache while the JVM turns columns into rows."""
_BULKY = frozenset({"body", "properties"})
"""Columns that make a batch large; the others take a few bytes a row."""
_SLAB_UNITS = 1 << 16
_SPECIAL_ROWS = 1 << 10
_SAMPLES = 16


class History(Protocol):
    """Messages of many queues, as they are at the moment of opening."""

    origin: str

    def extents(self) -> list[QueueExtent]:
        """What is held, queue by queue."""

    def offset_at(self, extent: QueueExtent, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at or after the time; the extent's end when there is none."""

    def batches(self, part: QueueRange, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        """The messages of a range, in order, in batches of about BATCH_SIZE bytes of records."""


class LocalHistory:
    """A local store, opened without touching a byte: beside a running broker it is the store of that moment."""

    origin = LOCAL

    def __init__(self, path: str) -> None:
        self._store = open_local(path)

    def extents(self) -> list[QueueExtent]:
        return [
            QueueExtent(LOCAL, topic, queue_id, queue.min_offset, queue.max_offset, self._record_size(topic, queue_id))
            for topic, queue_id in self._store.queues()
            for queue in [self._store.queue(topic, queue_id)]
        ]

    def offset_at(self, extent: QueueExtent, timestamp_ms: int) -> int:
        return self._store.queue(extent.topic, extent.queue_id).offset_at_ms(timestamp_ms)

    def batches(self, part: QueueRange, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        from stratalog.kernels.columns import decode_arrow
        from stratalog.store.batch_queue import BatchQueue

        queue, window = self._store.queue(part.topic, part.queue_id), self._store.log.window()
        log = (window.addresses, window.first_offset, window.file_size)
        first, end = part.first, part.first + part.count
        stored = self._store.units_of(queue)
        if queue.is_special or isinstance(stored, BatchQueue):  # inner batches, light queues: not by the kernels
            for begin in range(first, end, _SPECIAL_ROWS):
                yield queue.read_arrow(begin, count=min(_SPECIAL_ROWS, end - begin), columns=columns)
            return
        while first < end:
            units = memoryview(stored.units(first, min(end - first, _SLAB_UNITS)))
            if not units:
                return
            for piece in cut(units, columns):
                yield decode_arrow(piece, log, list(columns), topic=part.topic, broker_name=self._store.broker_name)
            first += len(units) // UNIT.size

    def _record_size(self, topic: str, queue_id: int) -> int:
        """Average record of a queue, from a few of its units."""
        queue = self._store.queue(topic, queue_id)
        first, end = queue.min_offset, queue.max_offset
        step, units = max(1, (end - first) // _SAMPLES), self._store.units_of(queue)
        sizes = [units.unit(offset)[1] for offset in range(first, end, step)]
        real = [size for size in sizes if size != FILLER_SIZE]
        return max(1, sum(real) // len(real)) if real else 1


class TierHistory:
    """One broker's part of a tier, as committed at the moment of opening."""

    origin = TIER

    def __init__(self, url: str, cluster: str, broker: str) -> None:
        from stratalog.tiered.tiered_store import open_tier

        self._tier = open_tier(url, cluster=cluster or None, broker=broker or None)
        self._views: dict[str, NDArray[np.uint8]] = {}

    @property
    def state(self) -> TierState:
        """The committed state that is read."""
        return self._tier.state

    @property
    def backend(self) -> SegmentBackend:
        return self._tier.backend

    def extents(self) -> list[QueueExtent]:
        found = []
        for topic, queue_id in self._tier.queues():
            queue = self._tier.queue(topic, queue_id)
            count = queue.max_offset - queue.min_offset
            size = queue.log.end_offset - queue.log.min_offset
            found.append(
                QueueExtent(TIER, topic, queue_id, queue.min_offset, queue.max_offset, max(1, size // max(1, count)))
            )
        return found

    def offset_at(self, extent: QueueExtent, timestamp_ms: int) -> int:
        return self._tier.queue(extent.topic, extent.queue_id).offset_at_ms(timestamp_ms)

    def batches(self, part: QueueRange, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        """Bodies are read with every check there is; without them, the rest is taken from the mapped segments."""
        done = 0
        if not _BULKY.intersection(columns) and isinstance(self.backend, PosixBackend):
            for batch in self._mapped_batches(part, columns):
                done += batch.num_rows
                yield batch
        if done < part.count:
            yield from self._checked_batches(replace(part, first=part.first + done, count=part.count - done), columns)

    def _checked_batches(self, part: QueueRange, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        from stratalog.kernels.columns import decode_arrow

        queue = self._tier.queue(part.topic, part.queue_id)
        end = part.first + part.count
        for chunk in queue.chunks(part.first, count=part.count, size_first=BATCH_SIZE):
            log = (np.array([chunk.address], np.int64), chunk.data_offset, max(1, len(chunk.data)))
            units = memoryview(chunk.exact_units())[: (end - chunk.first_queue_offset) * UNIT.size]
            for piece in cut(units, columns):
                yield decode_arrow(piece, log, list(columns), topic=part.topic, broker_name=queue.broker)
            if chunk.end_queue_offset >= end:
                return

    def _mapped_batches(self, part: QueueRange, columns: Sequence[str]) -> "Iterator[pa.RecordBatch]":
        """As many batches as the segments give without a surprise: a gap, a coda of old, or damage ends it."""
        from stratalog.kernels.columns import decode_arrow

        queue = self._tier.queue(part.topic, part.queue_id)
        bases = np.array([segment.base_offset for segment in queue.state.commit_log], np.int64)
        names = list(dict.fromkeys([*columns, "queueOffset"]))
        first, end = part.first, part.first + part.count
        while first < end and (units := memoryview(queue.units(first, min(end - first, _SLAB_UNITS)))):
            offsets = np.frombuffer(units, UNIT.dtype)["commit_log_offset"].astype(np.int64)
            numbers = np.searchsorted(bases, offsets, "right") - 1
            edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for low, high in pairwise(edges):
                log = self._mapped(part, int(numbers[low]))
                if log is None:
                    return
                for piece in cut(units[low * UNIT.size : high * UNIT.size], columns):
                    batch = decode_arrow(piece, log, names, topic=part.topic, broker_name=queue.broker)
                    count = len(piece) // UNIT.size
                    if not np.array_equal(batch.column("queueOffset"), np.arange(first, first + count)):
                        return
                    yield batch
                    first += count

    def _mapped(self, part: QueueRange, number: int) -> "tuple[NDArray[np.int64], int, int] | None":
        """A segment's committed bytes as a log for kernels; None when they are not all there. Lives as long as this."""
        queue = self._tier.queue(part.topic, part.queue_id)
        if number < 0:
            return None
        segment = queue.state.commit_log[number]
        path = self.state.path(part.topic, part.queue_id, SegmentType.COMMIT_LOG, segment.base_offset)
        if path not in self._views:
            assert isinstance(self.backend, PosixBackend)
            if (self.backend.size(path) or 0) < segment.size:
                return None
            with open(self.backend.root / path, "rb") as file:
                self._views[path] = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        return np.array([self._views[path].ctypes.data], np.int64), segment.base_offset, segment.size


def histories(options: ReadOptions, origins: Collection[str] = (LOCAL, TIER)) -> list[History]:
    """The places that the options name, opened. Raises `NotAStore`, `CorruptData`."""
    found: list[History] = []
    if options.tier and TIER in origins:
        found.append(TierHistory(options.tier, options.cluster, options.broker))
    if options.path and LOCAL in origins:
        found.append(LocalHistory(options.path))
    return found


def joined_extents(places: Iterable[History]) -> list[QueueExtent]:
    """What the places hold together, without overlap: a message that is in the tier is read from there."""
    extents = [extent for place in places for extent in place.extents()]
    ends = {(extent.topic, extent.queue_id): extent.end_offset for extent in extents if extent.origin == TIER}
    joined = []
    for extent in extents:
        first = extent.first_offset
        if extent.origin != TIER:
            first = max(first, ends.get((extent.topic, extent.queue_id), first))
        joined.append(replace(extent, first_offset=min(first, extent.end_offset)))
    return joined


def cut(units: memoryview, columns: Collection[str]) -> Iterator[memoryview]:
    """Units in pieces that make one Arrow batch each."""
    sizes = np.frombuffer(units, UNIT.dtype)["size"].astype(np.int64)
    sizes[sizes == FILLER_SIZE] = 0
    ends = np.cumsum(sizes if _BULKY.intersection(columns) else np.zeros_like(sizes))
    first = done = 0
    while first < len(sizes):
        last = max(int(np.searchsorted(ends, done + BATCH_SIZE, "right")), first + 1)
        last = min(last, first + BATCH_ROWS_MAX)
        yield units[first * UNIT.size : last * UNIT.size]
        first, done = last, int(ends[last - 1])


def open_local(path: str) -> "MessageStore":
    """The store in a directory (or `file://` URL), read-only. Raises `NotAStore`."""
    from stratalog.store.opening import open_store

    place = Path(local_path(path))
    if not place.exists():
        raise NotAStore(f"{place} does not exist; check the path")
    return open_store(place, mode="r", message_index_enable=False)


def local_path(path: str) -> str:
    """A path from a path or a `file://` URL, which is what Spark makes of one now and then."""
    scheme, separator, rest = path.partition(":")
    return "/" + rest.lstrip("/") if separator and scheme == "file" else path
