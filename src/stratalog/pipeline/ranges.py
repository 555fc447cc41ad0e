"""From queues and wishes to partitions: which messages a scan reads, and in how many tasks.

Pure functions over plain values; the histories (a local store, a tier) say what they hold as `QueueExtent`s.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stratalog.errors import ConfigurationError, OffsetOutOfRange
from stratalog.pipeline.filters import Pruning
from stratalog.pipeline.options import EARLIEST, LATEST, ReadOptions

PARTITION_SIZE = 192 << 20
"""Bytes of log a task reads. A Python task costs 20 ms whatever it does: 128 to 512 MB make that invisible."""
PARTITION_SIZE_MIN = 32 << 20
"""Below this, more tasks than cores cost more than they bring."""
_SLIVER_SIZE = 1 << 20
"""A queue is not split for less."""


@dataclass(frozen=True, slots=True)
class QueueExtent:
    """The messages of a queue that a history holds: queue offsets [first, end).

    `record_size` is their average in bytes, for planning only.
    """

    origin: str
    topic: str
    queue_id: int
    first_offset: int
    end_offset: int
    record_size: int


@dataclass(frozen=True, slots=True)
class QueueRange:
    """`count` messages of a queue from queue offset `first` on, in the history called `origin`."""

    origin: str
    topic: str
    queue_id: int
    first: int
    count: int
    record_size: int

    @property
    def size(self) -> int:
        """Bytes of log it covers, by the average."""
        return self.count * self.record_size


OffsetAt = Callable[[QueueExtent, int], int]
"""Queue offset of the first message of an extent stored at or after a time in ms; its end when there is none."""


def wanted_ranges(
    extents: Iterable[QueueExtent], options: ReadOptions, pruning: Pruning, offset_at: OffsetAt
) -> list[QueueRange]:
    """The messages that options and filters leave.

    A queue may have several extents (tier, then local), in order. Raises `ConfigurationError` for a topic or queue that
    is asked for by name and not there, `OffsetOutOfRange` for offsets that are gone, unless `failOnDataLoss` is false.
    """
    queues: dict[tuple[str, int], list[QueueExtent]] = {}
    for extent in extents:
        queues.setdefault((extent.topic, extent.queue_id), []).append(extent)
    if options.fail_on_data_loss:
        _check_names(options, queues.keys())
    ranges = []
    for (topic, queue_id), parts in sorted(queues.items()):
        if not options.selects(topic, queue_id):
            continue
        first, end = parts[0].first_offset, parts[-1].end_offset
        begin = _resolved(options, options.starting_offsets.of(topic, queue_id), topic, queue_id, first, end)
        stop = _resolved(options, options.ending_offsets.of(topic, queue_id), topic, queue_id, first, end)
        if not pruning.admits(topic, queue_id):
            continue
        begin = max(begin, pruning.queue_offsets.low)
        stop = min(stop, pruning.queue_offsets.high + 1)
        for extent in parts:
            low, high = max(begin, extent.first_offset), min(stop, extent.end_offset)
            if low < high:
                low, high = _cut_by_time(extent, low, high, options, pruning, offset_at)
            if low < high:
                ranges.append(QueueRange(extent.origin, topic, queue_id, low, high - low, extent.record_size))
    return ranges


def _check_names(options: ReadOptions, there: Iterable[tuple[str, int]]) -> None:
    queues = set(there)
    topics = {topic for topic, _ in queues}
    missing = [topic for topic in sorted(options.subscribe) if topic not in topics]
    missing += [f"{topic}/{queue_id}" for topic, queue_id in sorted(options.assign) if (topic, queue_id) not in queues]
    if missing:
        known = ", ".join(sorted(topics)[:20]) or "none"
        raise ConfigurationError(
            f"{', '.join(missing)} asked for and not there (topics are: {known}); correct the name, or set "
            "failOnDataLoss=false to read what there is"
        )


def _resolved(options: ReadOptions, offset: int, topic: str, queue_id: int, first: int, end: int) -> int:
    if offset == EARLIEST:
        return first
    if offset == LATEST:
        return end
    if options.fail_on_data_loss and not first <= offset <= end:
        raise OffsetOutOfRange(
            f"{topic}/{queue_id} holds offsets [{first}, {end}), asked for is {offset}: messages were lost or expired; "
            "correct the offset, or set failOnDataLoss=false to read what there is",
            next_offset=first if offset < first else end,
        )
    return min(max(offset, first), end)


def _cut_by_time(
    extent: QueueExtent, low: int, high: int, options: ReadOptions, pruning: Pruning, offset_at: OffsetAt
) -> tuple[int, int]:
    starts = [options.starting_timestamp, pruning.store_timestamps.low]
    ends = [options.ending_timestamp, pruning.store_timestamps.high + 1]
    start = max((at for at in starts if at is not None), default=0)
    end = min((at for at in ends if at is not None), default=2**63)
    if start > 0:
        low = max(low, offset_at(extent, start))
    if end < 2**63 - 1:
        high = min(high, offset_at(extent, max(end, 0)))
    return low, high


def packed(ranges: Sequence[QueueRange], *, min_partitions: int = 1) -> list[list[QueueRange]]:
    """The ranges dealt into partitions of about equal size: large queues are split, small ones share a partition."""
    total = sum(part.size for part in ranges)
    cores = len(os.sched_getaffinity(0))
    by_size = -(-total // PARTITION_SIZE)
    count = max(by_size, min(cores, total // PARTITION_SIZE_MIN), min_partitions, 1)
    return list(_dealt(ranges, max(1, -(-total // count))))


def _dealt(ranges: Iterable[QueueRange], target: int) -> Iterator[list[QueueRange]]:
    sliver = min(_SLIVER_SIZE, target // 8)
    held: list[QueueRange] = []
    room = target
    for part in ranges:
        while part.count > 1 and part.size > room + sliver:
            if room > sliver or not held:
                count = min(-(-room // part.record_size), part.count - 1)
                held.append(replace(part, count=count))
                part = replace(part, first=part.first + count, count=part.count - count)
            yield held
            held, room = [], target
        held.append(part)
        room -= part.size
    if held:
        yield held
