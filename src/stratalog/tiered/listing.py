"""Rebuilding a tier's state from nothing but its files: names, sizes, and the messages at the segments' ends.

The last resort, when manifest and metadata are gone: it reads every consume queue once and a record a segment.
"""

from collections import defaultdict
from itertools import pairwise

import msgspec
import numpy as np

from stratalog.errors import CorruptData
from stratalog.layout.index import index_key
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.names import queue_id_of
from stratalog.layout.queue import UNIT
from stratalog.layout.tier import (
    COMPACTED_ITEM,
    INDEX_HEADER,
    INDEX_TOPIC,
    OWN_DIRECTORY,
    UNIT_SIZE,
    SegmentType,
    cluster_directory,
    segment_base,
)
from stratalog.tiered.index import keys_of
from stratalog.tiered.queue import TieredQueue
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import IndexSegment, QueueName, QueueState, Segment, TierState, TopicState

_Files = dict[SegmentType, list[Segment]]
_SAMPLES = 16
"""Items of an index file that are looked up to learn which topic an id belongs to."""


def state_from_listing(backend: SegmentBackend, *, cluster: str, broker: str) -> TierState:
    """The state that a tier's files show.

    A queue ends at its last unit whose record is whole; what a crash left behind is not taken in. Topic ids come from
    the index, where one knows the topic, else they are given in alphabetical order. Raises `CorruptData` when segments
    in the middle of a commit log are missing.
    """
    found = _find(backend, f"{cluster_directory(cluster)}/{broker}/")
    index = found.pop(QueueName(INDEX_TOPIC, 0), {}).get(SegmentType.INDEX, [])
    state = TierState(cluster, broker)
    index_segments = tuple(_index_segment(backend, state, file) for file in index)
    queues = {name: _rebuilt(backend, state, name, files) for name, files in sorted(found.items())}
    state = msgspec.structs.replace(state, index_segments=index_segments, queues=queues)
    topics = _topic_ids(backend, state)
    queues = {
        name: msgspec.structs.replace(queue, topic_id=topics[name.topic].topic_id) for name, queue in queues.items()
    }
    last = max((topic.topic_id for topic in topics.values()), default=-1)
    return msgspec.structs.replace(state, queues=queues, topics=topics, last_topic_id=last)


def _find(backend: SegmentBackend, prefix: str) -> dict[QueueName, _Files]:
    found: dict[QueueName, _Files] = defaultdict(lambda: defaultdict(list))
    for path in backend.list(prefix):
        parts = path[len(prefix) :].split("/")
        if len(parts) != 4 or parts[0] == OWN_DIRECTORY:
            continue
        topic, queue, kind, name = parts
        base, queue_id = segment_base(name), queue_id_of(queue)
        if base is not None and queue_id is not None and kind in SegmentType.__members__:
            found[QueueName(topic, queue_id)][SegmentType[kind]].append(Segment(base, backend.size(path) or 0))
    for files in found.values():
        for segments in files.values():
            segments.sort(key=lambda segment: segment.base_offset)
    return found


def _rebuilt(backend: SegmentBackend, tier: TierState, name: QueueName, files: _Files) -> QueueState:
    log = tuple(files[SegmentType.COMMIT_LOG])
    units = tuple(
        Segment(segment.base_offset, segment.size - segment.size % UNIT_SIZE)
        for segment in files[SegmentType.CONSUME_QUEUE]
    )
    for before, after in pairwise(log):
        if before.end_offset != after.base_offset:
            path = tier.path(name.topic, name.queue_id, SegmentType.COMMIT_LOG, before.base_offset)
            raise CorruptData(
                f"the segment ends at log offset {before.end_offset}, the next begins at {after.base_offset}; "
                "restore the missing segment",
                path=path,
            )
    end = units[-1].end_offset // UNIT_SIZE if units else 0
    queue = QueueState(name.topic, name.queue_id, -1, end, log[-1].end_offset if log else 0, log, units)
    reader = TieredQueue(backend, tier, queue)
    while queue.consume_queue and not _is_whole(reader, queue.end_queue_offset - 1):
        queue = _without_last(queue)
        reader = TieredQueue(backend, tier, queue)
    return _with_times(reader, queue)


def _is_whole(reader: TieredQueue, queue_offset: int) -> bool:
    try:
        return reader.get(queue_offset).message is not None
    except CorruptData:
        return False


def _without_last(queue: QueueState) -> QueueState:
    """The queue without its last unit."""
    *before, last = queue.consume_queue
    shorter = msgspec.structs.replace(last, size=last.size - UNIT_SIZE)
    units = (*before, shorter) if shorter.size > 0 else tuple(before)
    end = units[-1].end_offset // UNIT_SIZE if units else 0
    return msgspec.structs.replace(queue, consume_queue=units, end_queue_offset=end)


def _with_times(reader: TieredQueue, queue: QueueState) -> QueueState:
    """Begin and end times of all segments, from the first and last record in each; the log is cut after the last."""
    ends = np.array([segment.end_offset for segment in queue.commit_log], np.int64)
    spans: dict[int, tuple[int, int]] = {}
    units: list[Segment] = []
    log_end = 0
    for segment in (segment for segment in queue.consume_queue if segment.size):
        rows = np.frombuffer(reader.units(segment.base_offset // UNIT_SIZE, segment.size // UNIT_SIZE), UNIT.dtype)
        rows = rows[rows["commit_log_offset"] >= reader.log.min_offset]  # the records of older units have expired
        if len(rows):
            offsets = rows["commit_log_offset"].astype(np.int64)
            numbers = np.searchsorted(ends, offsets, "right")
            for number in np.unique(numbers).tolist():
                inside = offsets[numbers == number]
                spans[number] = (spans.get(number, (int(inside[0]),))[0], int(inside[-1]))
            segment = _timed(reader, segment, (int(offsets[0]), int(offsets[-1])))
            log_end = int(offsets[-1]) + int(rows[-1]["size"])
        units.append(segment)
    log = [
        _timed(
            reader, msgspec.structs.replace(segment, size=min(segment.end_offset, log_end) - segment.base_offset), span
        )
        for number, segment in enumerate(queue.commit_log)
        if (span := spans.get(number)) is not None
    ]
    return msgspec.structs.replace(
        queue, commit_log=tuple(log), consume_queue=tuple(units), commit_log_end=log[-1].end_offset if log else 0
    )


def _timed(reader: TieredQueue, segment: Segment, span: tuple[int, int]) -> Segment:
    """A segment with the store times of the records at two log offsets."""
    begin, end = (reader.store_timestamp_at(offset) for offset in span)
    return msgspec.structs.replace(segment, begin_timestamp=begin, end_timestamp=end)


def _index_segment(backend: SegmentBackend, tier: TierState, file: Segment) -> IndexSegment:
    index = IndexSegment(file.base_offset, file.size, 0, 0, item_count=0)
    if file.size < INDEX_HEADER.size:
        return index
    header = INDEX_HEADER.unpack(backend.read(tier.index_path(index), 0, INDEX_HEADER.size))
    return msgspec.structs.replace(
        index,
        begin_timestamp=header.begin_timestamp,
        end_timestamp=header.end_timestamp,
        item_count=header.item_count,
    )


def _topic_ids(backend: SegmentBackend, state: TierState) -> dict[str, TopicState]:
    """Id of each topic: an index item names an id and a place; the record there names topic and keys."""
    ids: dict[str, int] = {}
    for topic_id, samples in _samples(backend, state).items():
        for topic in sorted({name.topic for name in state.queues} - ids.keys()):
            if any(_is_of(backend, state, topic, *sample) for sample in samples):
                ids[topic] = topic_id
                break
    following = max(ids.values(), default=-1) + 1
    for topic in sorted({name.topic for name in state.queues} - ids.keys()):
        ids[topic] = following
        following += 1
    return {topic: TopicState(topic_id) for topic, topic_id in ids.items()}


_Sample = tuple[int, int, int, int]


def _samples(backend: SegmentBackend, state: TierState) -> dict[int, list[_Sample]]:
    """Some items (key hash, queue id, log offset, size) of each topic id."""
    samples: dict[int, list[_Sample]] = defaultdict(list)
    for segment in state.index_segments:
        size = COMPACTED_ITEM.size * segment.item_count
        if size <= 0 or size > segment.size:
            continue
        data = backend.read(state.index_path(segment), segment.size - size, size)
        items = np.frombuffer(data, COMPACTED_ITEM.dtype)
        for topic_id in np.unique(items["topic_id"]).tolist():
            chosen = items[items["topic_id"] == topic_id][:_SAMPLES]
            samples[topic_id] += [(item[0], *item[2:5]) for item in chosen.tolist()]
    return samples


def _is_of(
    backend: SegmentBackend,
    state: TierState,
    topic: str,
    key_hash: int,
    queue_id: int,
    commit_log_offset: int,
    size: int,
) -> bool:
    """Whether an index item's record lies in that topic and has a key of that hash."""
    queue = state.queues.get(QueueName(topic, queue_id))
    if queue is None:
        return False
    try:
        message = TieredQueue(backend, state, queue).message_at_log_offset(commit_log_offset, size)
    except CorruptData:
        return False
    if message is None:
        return False
    return key_hash in {index_key_hash(string_hash(index_key(topic, key))) for key in keys_of(message)}
