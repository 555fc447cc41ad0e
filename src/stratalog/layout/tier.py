"""The tier: paths and names of segments, the legacy coda, and the key index in both shapes."""

import hashlib
import re
from enum import IntEnum

from stratalog.layout.queue import UNIT
from stratalog.layout.record import OFFSETS_END, Field, Layout

INDEX_TOPIC = "rmq_sys_INDEX"
COMMIT_LOG_MAX_SIZE = 1 << 30
CONSUME_QUEUE_MAX_SIZE = 100 * 1024 * 1024
INDEX_SLOT_COUNT = 5_000_000
INDEX_ITEM_CAPACITY = 20_000_000
UNIT_SIZE = UNIT.size
NEVER_WRITTEN = 2**63 - 1
"""begin and end time of a segment that holds nothing yet."""


class SegmentType(IntEnum):
    """What a segment holds; the name is a directory (FileSegmentType)."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


CODA = Layout(
    "coda",
    Field("size", "i32", "16", "bytes"),
    Field("magic", "i32", "the blank record's magic"),
    Field("max_store_timestamp", "i64", "of the segment", "ms"),
    size=16,
    source="MessageFormatUtil (before 5.3)",
)
"""Closed a full commit log segment up to 5.2; readers skip it."""

MAGIC_OPEN = 0xBCC50289 - (1 << 32)
MAGIC_FINISHED = 0xBCC50285 - (1 << 32)

INDEX_HEADER = Layout(
    "tier index header",
    Field("magic", "i32", "open or finished"),
    Field("begin_timestamp", "i64", "creation time, also the open file's name", "ms"),
    Field("end_timestamp", "i64", "largest store time", "ms"),
    Field("used_slot_count", "i32", "slots that are not empty"),
    Field("item_count", "i32", "items"),
    size=28,
    source="IndexStoreFile",
)
OPEN_SLOT = Layout(
    "open tier index slot",
    Field("newest_item", "i32", "0 = empty"),
    Field("unused", "i32", "0"),
    size=8,
    source="IndexStoreFile",
)
COMPACTED_SLOT = Layout(
    "compacted tier index slot",
    Field("position", "i32", "where the slot's items begin in the file", "bytes"),
    Field("size", "i32", "of all its items", "bytes"),
    size=8,
    source="IndexStoreFile",
)
COMPACTED_ITEM = Layout(
    "compacted tier index item",
    Field("key_hash", "i32", "non-negative hash of topic#key"),
    Field("topic_id", "i32", "from the metadata"),
    Field("queue_id", "i32", "queue"),
    Field("commit_log_offset", "i64", "record in the queue's tiered log", "bytes"),
    Field("size", "i32", "record", "bytes"),
    Field("seconds", "i32", "store time after the file's begin_timestamp", "s"),
    size=28,
    source="IndexItem",
)
OPEN_ITEM = COMPACTED_ITEM.extended(
    "open tier index item",
    Layout("chain", Field("previous_item", "i32", "next older item of the slot"), size=4, source="IndexItem"),
    size=32,
)

RUN_MAGIC = 0x53545249
"""`STRI`: an index run of this library."""
RUN_VERSION = 1
RUN_HEADER = Layout(
    "index run header",
    Field("magic", "i32", "RUN_MAGIC"),
    Field("version", "i32", "1"),
    Field("item_count", "i64", "items that follow"),
    size=16,
    source="stratalog",
)
RUN_ITEM = COMPACTED_ITEM.extended(
    "index run item",
    Layout("time", Field("store_timestamp", "i64", "of the record", "ms"), size=8, source="stratalog"),
    size=36,
)
"""Item of a run: keys of one batch, not compacted yet, sorted by (key_hash, order of writing); `seconds` is 0."""

OWN_DIRECTORY = "_stratalog"
"""Beside the topics of a broker: manifest, checkpoints and index runs. Upstream never lists directories."""

_FILE_NAME = re.compile(r"([0-9a-f]{8})([0-9]{20})\Z")


def hash8(text: str) -> str:
    """First 8 hexadecimal digits of the MD5 of a text: spreads object-store key prefixes."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]


def segment_name(base_offset: int) -> str:
    """File name of the segment that starts at this byte offset of its flat file."""
    return f"{hash8(str(base_offset))}{base_offset:020d}"


def segment_base(name: str) -> int | None:
    """Base offset of a segment's file name, or None when it is not one."""
    match = _FILE_NAME.match(name)
    if not match or hash8(str(int(match[2]))) != match[1] or int(match[2]) >= OFFSETS_END:
        return None
    return int(match[2])


def cluster_directory(cluster: str) -> str:
    return f"{hash8(cluster)}_{cluster}"


def flat_file_path(broker: str, topic: str, queue_id: int) -> str:
    """Path of a queue's flat files as the metadata names them."""
    return f"{broker}/{topic}/{queue_id}"


def segment_path(cluster: str, broker: str, topic: str, queue_id: int, kind: SegmentType, base_offset: int) -> str:
    """Where a segment lies below the tier's root."""
    flat = flat_file_path(broker, topic, queue_id)
    return f"{cluster_directory(cluster)}/{flat}/{kind.name}/{segment_name(base_offset)}"


def open_index_size(slot_count: int, item_capacity: int) -> int:
    return INDEX_HEADER.size + OPEN_SLOT.size * slot_count + OPEN_ITEM.size * item_capacity


def compacted_index_size(slot_count: int, item_count: int) -> int:
    return INDEX_HEADER.size + COMPACTED_SLOT.size * slot_count + COMPACTED_ITEM.size * item_count


def compacted_slot_count(file_size: int, item_count: int) -> int:
    """Number of slots of an uploaded index file, from its size."""
    return (file_size - INDEX_HEADER.size - COMPACTED_ITEM.size * item_count) // COMPACTED_SLOT.size
