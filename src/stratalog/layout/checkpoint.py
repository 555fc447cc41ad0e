"""The `checkpoint` file (StoreCheckpoint): one page, the first 40 (5.3) or 48 (5.5) bytes used."""

from stratalog.layout.record import Field, Layout

FILE_SIZE = 4096

CHECKPOINT = Layout(
    "checkpoint",
    Field("physic_msg_timestamp", "i64", "store time up to which the log is flushed", "ms"),
    Field("logics_msg_timestamp", "i64", "store time up to which the queues are flushed", "ms"),
    Field("index_msg_timestamp", "i64", "end of the newest full, flushed index file", "ms"),
    Field("master_flushed_offset", "i64", "a slave's bookkeeping", "bytes"),
    Field("confirm_offset", "i64", "last confirmed record", "bytes"),
    Field("logics_commit_log_offset", "i64", "start of a record whose queue units are flushed (5.5)", "bytes"),
    size=48,
    source="StoreCheckpoint",
)
SIZE_5_3 = CHECKPOINT.position("logics_commit_log_offset")

SEAL = Layout(
    "seal of a clean stop",
    Field("log_end_offset", "i64", "end of the log that the counts belong to", "bytes"),
    Field("queue_count", "i64", "queues that have units"),
    Field("unit_count", "i64", "units in all queues"),
    Field("index_item_count", "i64", "items in all index files"),
    Field("crc", "i32", "CRC-32 of the fields before, lower 31 bits"),
    size=36,
    source="stratalog; RocketMQ leaves these bytes alone",
)
SEAL_POSITION = 64
"""Where stratalog notes, at a clean stop, what the derived files hold: after RocketMQ's fields in the same page."""
