"""`tieredStoreMetadata.json` (DefaultMetadataStore): upstream's list of topics, queues and segments.

Read, so that a tier which a Java broker wrote can be opened; written, so that a Java broker can open ours.
"""

from typing import Any, TypeVar

import msgspec

from stratalog.errors import CorruptData
from stratalog.layout.loosejson import Release, decode_loose_json, encode_loose_json
from stratalog.layout.tier import INDEX_TOPIC, UNIT_SIZE, SegmentType, flat_file_path
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import (
    Count,
    IndexSegment,
    Int32,
    Offset,
    QueueName,
    QueueState,
    Segment,
    Segments,
    TierState,
    Time,
    TopicState,
)

FILE_NAME = "tieredStoreMetadata.json"


class _FileRecord(msgspec.Struct, rename="camel"):
    path: str
    type: int
    base_offset: Offset
    size: Offset
    begin_timestamp: Time
    end_timestamp: Time
    create_timestamp: int = 0
    status: int = 0
    seal_timestamp: int = 0


class _TopicRecord(msgspec.Struct, rename="camel"):
    topic_id: Int32
    topic: str
    status: int = 0
    reserve_time: Time = -1
    update_timestamp: int = 0


_Files = dict[str, dict[int, _FileRecord]]


class _Metadata(msgspec.Struct, rename="camel"):
    commit_log_file_segment_table: _Files = {}
    consume_queue_file_segment_table: _Files = {}
    index_file_segment_table: _Files = {}
    queue_metadata_table: dict[str, dict[Count, Any]] = {}
    topic_metadata_table: dict[str, _TopicRecord] = {}
    topic_serial_number: Int32 = -1


_TABLES = {
    SegmentType.COMMIT_LOG: "commitLogFileSegmentTable",
    SegmentType.CONSUME_QUEUE: "consumeQueueFileSegmentTable",
    SegmentType.INDEX: "indexFileSegmentTable",
}
_T = TypeVar("_T")


def decode_metadata(text: str | bytes, backend: SegmentBackend, *, cluster: str, broker: str) -> TierState:
    """The state that a metadata file describes, as a broker sees it when it starts (FlatAppendFile recovery).

    The size of the last segment of each flat file comes from the backend: upstream writes data first. A consume queue
    is cut to whole units. Raises `CorruptData` for what is no metadata.
    """
    try:
        found = msgspec.convert(decode_loose_json(text), _Metadata, strict=False)
    except msgspec.ValidationError as error:
        raise CorruptData(f"no tiered store metadata: {error}", path=FILE_NAME) from None
    topics = {
        name: TopicState(topic.topic_id, topic.reserve_time) for name, topic in found.topic_metadata_table.items()
    }
    names = {QueueName(topic, queue_id) for topic, queues in found.queue_metadata_table.items() for queue_id in queues}
    state = TierState(
        cluster,
        broker,
        last_topic_id=max([found.topic_serial_number, *(topic.topic_id for topic in topics.values())]),
        topics=topics,
        index_segments=tuple(
            IndexSegment(file.base_offset, file.size, file.begin_timestamp, file.end_timestamp)
            for file in _files(found.index_file_segment_table, broker, QueueName(INDEX_TOPIC, 0))
        ),
    )
    queues = {}
    for name in sorted(names):
        if name.topic in topics:
            logs = _files(found.commit_log_file_segment_table, broker, name)
            units = _files(found.consume_queue_file_segment_table, broker, name)
            queues[name] = _queue(state, backend, name, logs, units)
    state = msgspec.structs.replace(state, queues=queues)
    if reason := state.contradiction():
        raise CorruptData(f"no tiered store metadata: {reason}", path=FILE_NAME)
    return state


def _files(table: _Files, broker: str, name: QueueName) -> list[_FileRecord]:
    records = table.get(flat_file_path(broker, name.topic, name.queue_id), {})
    return [record for _, record in sorted(records.items())]


def _queue(
    state: TierState, backend: SegmentBackend, name: QueueName, logs: list[_FileRecord], units: list[_FileRecord]
) -> QueueState:
    commit_log = _with_real_end(state, backend, name, SegmentType.COMMIT_LOG, logs)
    consume_queue = _with_real_end(state, backend, name, SegmentType.CONSUME_QUEUE, units)
    return QueueState(
        name.topic,
        name.queue_id,
        state.topics[name.topic].topic_id,
        end_queue_offset=consume_queue[-1].end_offset // UNIT_SIZE if consume_queue else 0,
        commit_log_end=commit_log[-1].end_offset if commit_log else 0,
        commit_log=commit_log,
        consume_queue=consume_queue,
    )


def _with_real_end(
    state: TierState, backend: SegmentBackend, name: QueueName, kind: SegmentType, files: list[_FileRecord]
) -> Segments:
    segments = [Segment(file.base_offset, file.size, file.begin_timestamp, file.end_timestamp) for file in files]
    if segments:
        last = segments[-1]
        size = backend.size(state.path(name.topic, name.queue_id, kind, last.base_offset)) or 0
        if kind is SegmentType.CONSUME_QUEUE:
            size -= size % UNIT_SIZE
        segments[-1] = msgspec.structs.replace(last, size=size)
    return tuple(segments)


def encode_metadata(state: TierState, *, now_ms: int, release: Release = "5.5") -> str:
    """The metadata file with which a Java broker of that release opens this tier.

    Runs of the index are unknown upstream: compact them first, or their keys cannot be found there.
    """
    tables: dict[str, Any] = {table: {} for table in _TABLES.values()}
    queues: dict[str, dict[int, Any]] = {}
    for name, queue in sorted(state.queues.items()):
        path = flat_file_path(state.broker, name.topic, name.queue_id)
        for kind, segments in (
            (SegmentType.COMMIT_LOG, queue.commit_log),
            (SegmentType.CONSUME_QUEUE, queue.consume_queue),
        ):
            tables[_TABLES[kind]][path] = {
                segment.base_offset: _file_record(path, kind, segment, now_ms) for segment in segments
            }
        queues.setdefault(name.topic, {})[name.queue_id] = {
            "queue": {"brokerName": state.broker, "queueId": name.queue_id, "topic": name.topic},
            "minOffset": -1,
            "maxOffset": -1,
            "updateTimestamp": now_ms,
        }
    if state.index_segments:
        path = flat_file_path(state.broker, INDEX_TOPIC, 0)
        tables[_TABLES[SegmentType.INDEX]][path] = {
            index.base_offset: _file_record(path, SegmentType.INDEX, index, now_ms) for index in state.index_segments
        }
    topics = {
        name: {
            "topicId": topic.topic_id,
            "topic": name,
            "status": 0,
            "reserveTime": topic.reserve_hours,
            "updateTimestamp": now_ms,
        }
        for name, topic in sorted(state.topics.items())
    }
    rest = {
        "queueMetadataTable": queues,
        "topicMetadataTable": topics,
        "topicSerialNumber": state.last_topic_id,
    }
    return encode_loose_json(tables | rest, release=release)


def _file_record(path: str, kind: SegmentType, segment: Segment | IndexSegment, now_ms: int) -> dict[str, Any]:
    return {
        "path": path,
        "type": int(kind),
        "baseOffset": segment.base_offset,
        "status": 0,
        "size": segment.size,
        "createTimestamp": now_ms,
        "beginTimestamp": segment.begin_timestamp,
        "endTimestamp": segment.end_timestamp,
        "sealTimestamp": 0,
    }
