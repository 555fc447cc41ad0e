"""Files of the timer: wheel slots, log units, progress. A store that runs no timer keeps them as they are."""

from stratalog.layout.record import Field, Layout

WHEEL_SLOT = Layout(
    "timer wheel slot",
    Field("time", "i64", "deliver time / precision; another value = the slot is stale"),
    Field("first_position", "i64", "oldest unit in the timer log, -1 = none", "bytes"),
    Field("last_position", "i64", "newest unit in the timer log", "bytes"),
    Field("count", "i32", "messages; deletions subtract", "messages"),
    Field("magic", "i32", "unused, 0"),
    size=32,
    source="TimerWheel, Slot",
)
LOG_UNIT = Layout(
    "timer log unit",
    Field("size", "i32", "52", "bytes"),
    Field("previous_position", "i64", "older unit of the same slot, -1 = none", "bytes"),
    Field("magic", "i32", "1 ordinary, | 2 rolled on, | 4 deletion"),
    Field("write_time", "i64", "when it was enqueued", "ms"),
    Field("delay_ms", "i32", "deliver time - write_time", "ms"),
    Field("commit_log_offset", "i64", "record in the timer topic", "bytes"),
    Field("record_size", "i32", "whole record", "bytes"),
    Field("topic_hash", "i32", "String.hashCode of the real topic"),
    Field("reserved", "i64", "0"),
    size=52,
    source="TimerLog",
)
LOG_BLANK = Layout(
    "timer log blank",
    Field("size", "i32", "bytes left in the file, this field included", "bytes"),
    Field("unused", "i64", "0"),
    Field("magic", "i32", "MAGIC_BLANK"),
    size=16,
    source="TimerLog",
)
CHECK = Layout(
    "timercheck",
    Field("last_read_time", "i64", "deliver times before it are done", "ms"),
    Field("last_log_flush_position", "i64", "timer log flushed up to here", "bytes"),
    Field("last_queue_offset", "i64", "timer topic read up to here"),
    Field("master_queue_offset", "i64", "a slave's bookkeeping"),
    Field("state_version", "i64", "DataVersion"),
    Field("version_timestamp", "i64", "DataVersion", "ms"),
    Field("version_counter", "i64", "DataVersion"),
    size=56,
    source="TimerCheckpoint",
)
PRECISION_MS = 1000
WHEEL_SLOT_COUNT = 2 * 7 * 24 * 3600
"""Two weeks of slots at the default precision of a second."""


def wheel_slot(deliver_time_ms: int, *, precision_ms: int = PRECISION_MS) -> int:
    """Number of the slot for a deliver time."""
    return deliver_time_ms // precision_ms % WHEEL_SLOT_COUNT
