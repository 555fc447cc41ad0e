"""The local key index: header, slot and item of an IndexFile."""

from stratalog.layout.record import Field, Layout

HEADER = Layout(
    "IndexFile header",
    Field("begin_timestamp", "i64", "store time of the first item", "ms"),
    Field("end_timestamp", "i64", "store time of the item put last", "ms"),
    Field("begin_commit_log_offset", "i64", "record of the first item", "bytes"),
    Field("end_commit_log_offset", "i64", "record of the item put last", "bytes"),
    Field("used_slot_count", "i32", "slots that are not empty"),
    Field("next_item", "i32", "number of the next item; 1 in an empty file"),
    size=40,
    source="IndexHeader",
)
SLOT = Layout("IndexFile slot", Field("newest_item", "i32", "0 = empty"), size=4, source="IndexFile")
ITEM = Layout(
    "IndexFile item",
    Field("key_hash", "i32", "non-negative hash of topic#key"),
    Field("commit_log_offset", "i64", "start of the record", "bytes"),
    Field("seconds", "i32", "store time after the file's begin_timestamp", "s"),
    Field("previous_item", "i32", "next older item of the slot, 0 = end"),
    size=20,
    source="IndexFile",
)
KEY_SEPARATOR = "#"
TAG_KEY_PREFIX = "T#"
"""Since 5.4 the tags are indexed as `topic#T#tags`."""

SLOT_COUNT = 5_000_000
ITEM_CAPACITY = 20_000_000
"""Item numbers run from 1 to capacity - 1."""


def slots_position() -> int:
    return HEADER.size


def items_position(slot_count: int) -> int:
    return HEADER.size + SLOT.size * slot_count


def file_size(slot_count: int, item_capacity: int) -> int:
    return items_position(slot_count) + ITEM.size * item_capacity


def index_key(topic: str, key: str) -> str:
    """The text that is hashed for a key."""
    return topic + KEY_SEPARATOR + key


def tag_key(topic: str, tags: str) -> str:
    """The text that is hashed for a message's tags (5.4 and later)."""
    return topic + KEY_SEPARATOR + TAG_KEY_PREFIX + tags
