"""Small tables about a store or tier: they answer "how much is there" without reading a message.

queues    what can be read, queue by queue; with store and tier, a message counts where it is read
segments  the tier's committed segments, index included
files     the files of a local store, or the objects of a tier with what no commit knows (yet, or any more)
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stratalog.layout import names
from stratalog.layout.tier import (
    INDEX_TOPIC,
    NEVER_WRITTEN,
    SegmentType,
    cluster_directory,
    segment_base,
)
from stratalog.pipeline.history import LOCAL, TIER, LocalHistory, TierHistory, histories, joined_extents, local_path
from stratalog.pipeline.options import ReadOptions

TABLE_COLUMNS = {
    "queues": {
        "origin": "STRING",
        "topic": "STRING",
        "queueId": "INT",
        "minOffset": "BIGINT",
        "maxOffset": "BIGINT",
        "messageCount": "BIGINT",
        "recordSizeMean": "INT",
    },
    "segments": {
        "topic": "STRING",
        "queueId": "INT",
        "kind": "STRING",
        "baseOffset": "BIGINT",
        "size": "BIGINT",
        "beginTimestamp": "BIGINT",
        "endTimestamp": "BIGINT",
        "path": "STRING",
    },
    "files": {
        "origin": "STRING",
        "kind": "STRING",
        "topic": "STRING",
        "queueId": "INT",
        "baseOffset": "BIGINT",
        "size": "BIGINT",
        "path": "STRING",
    },
}
"""Column names and Spark types by table. Sizes and base offsets are bytes, timestamps ms since the epoch or null,
`origin` is local or tier."""

Row = dict[str, Any]
_LOCAL_KINDS = (names.COMMIT_LOG, names.CONSUME_QUEUE, names.INDEX)


def table_rows(options: ReadOptions) -> Iterator[Row]:
    """The rows of `options.table`, as dictionaries by column."""
    rows = {"queues": _queues, "segments": _segments, "files": _files}[options.table]
    return (row for row in rows(options) if row["topic"] is None or options.selects(row["topic"], row["queueId"]))


def _queues(options: ReadOptions) -> Iterator[Row]:
    for extent in joined_extents(histories(options)):
        yield {
            "origin": extent.origin,
            "topic": extent.topic,
            "queueId": extent.queue_id,
            "minOffset": extent.first_offset,
            "maxOffset": extent.end_offset,
            "messageCount": extent.end_offset - extent.first_offset,
            "recordSizeMean": extent.record_size,
        }


def _segments(options: ReadOptions) -> Iterator[Row]:
    if not options.tier:
        return
    state = TierHistory(options.tier, options.cluster, options.broker).state
    for queue in state.queues.values():
        for kind, segments in (
            (SegmentType.COMMIT_LOG, queue.commit_log),
            (SegmentType.CONSUME_QUEUE, queue.consume_queue),
        ):
            for segment in segments:
                yield {
                    "topic": queue.topic,
                    "queueId": queue.queue_id,
                    "kind": kind.name,
                    "baseOffset": segment.base_offset,
                    "size": segment.size,
                    "beginTimestamp": _time(segment.begin_timestamp),
                    "endTimestamp": _time(segment.end_timestamp),
                    "path": state.path(queue.topic, queue.queue_id, kind, segment.base_offset),
                }
    for index in state.index_segments:
        yield {
            "topic": INDEX_TOPIC,
            "queueId": 0,
            "kind": SegmentType.INDEX.name,
            "baseOffset": index.base_offset,
            "size": index.size,
            "beginTimestamp": _time(index.begin_timestamp),
            "endTimestamp": _time(index.end_timestamp),
            "path": state.index_path(index),
        }


def _time(timestamp_ms: int) -> int | None:
    return None if timestamp_ms == NEVER_WRITTEN else timestamp_ms


def _files(options: ReadOptions) -> Iterator[Row]:
    if options.tier:
        yield from _tier_files(options)
    if options.path:
        yield from _local_files(Path(local_path(options.path)))


def _tier_files(options: ReadOptions) -> Iterator[Row]:
    tier = TierHistory(options.tier, options.cluster, options.broker)
    for path in tier.backend.list(f"{cluster_directory(tier.state.cluster)}/{tier.state.broker}/"):
        parts = path.split("/")[2:]
        is_segment = len(parts) == 4 and segment_base(parts[3]) is not None and parts[1].isdigit()
        yield {
            "origin": TIER,
            "kind": parts[2] if is_segment else "/".join(parts[:-1]),
            "topic": parts[0] if is_segment else None,
            "queueId": int(parts[1]) if is_segment else None,
            "baseOffset": segment_base(parts[3]) if is_segment else None,
            "size": tier.backend.size(path),
            "path": path,
        }


def _local_files(root: Path) -> Iterator[Row]:
    LocalHistory(str(root))  # says what is wrong with a directory that is no store
    for kind in _LOCAL_KINDS:
        for path in sorted((root / kind).rglob("*")):
            if path.is_file():
                parts = path.relative_to(root / kind).parts
                is_queue = kind == names.CONSUME_QUEUE and len(parts) == 3
                yield {
                    "origin": LOCAL,
                    "kind": kind,
                    "topic": parts[0] if is_queue else None,
                    "queueId": int(parts[1]) if is_queue else None,
                    "baseOffset": names.offset_of(path.name) if kind != names.INDEX else None,
                    "size": path.stat().st_size,
                    "path": str(path),
                }
