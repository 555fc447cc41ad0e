"""The columns in which messages leave (and enter) in bulk: `Queue.read_arrow`, the Spark data source, exports.

Names follow the old RocketMQ Spark connector where it had the column. This is a contract: columns may be added, never
renamed, retyped or moved.
"""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow and Spark types, what it means, and the field of a record's head it is, if it is one."""

    name: str
    arrow_type: pa.DataType
    spark_type: str
    meaning: str
    head_field: str = ""
    nullable: bool = False


_INT, _LONG = (pa.int32(), "INT"), (pa.int64(), "BIGINT")
_TEXT, _BYTES = (pa.string(), "STRING"), (pa.binary(), "BINARY")
_TIME = (pa.timestamp("us", tz="UTC"), "TIMESTAMP")

COLUMNS = (
    Column("topic", *_TEXT, "topic of the queue"),
    Column("flag", *_INT, "the user's flag", "flag"),
    Column("body", *_BYTES, "body as stored, compressed or not (see sysFlag)"),
    Column("properties", *_TEXT, "properties as stored: name 0x01 value 0x02 …"),
    Column("brokerName", *_TEXT, "broker that holds the queue"),
    Column("queueId", *_INT, "queue of the topic", "queue_id"),
    Column("queueOffset", *_LONG, "message number in the queue", "queue_offset"),
    Column("bornTimestamp", *_TIME, "when the client made the message", "born_timestamp"),
    Column("storeTimestamp", *_TIME, "when the store appended it", "store_timestamp"),
    Column("tags", *_TEXT, "property TAGS", nullable=True),
    Column("keys", *_TEXT, "property KEYS, separated by spaces", nullable=True),
    Column("uniqueKey", *_TEXT, "property UNIQ_KEY", nullable=True),
    Column("reconsumeTimes", *_INT, "redeliveries so far", "reconsume_times"),
    Column("sysFlag", *_INT, "bits: compression, transaction, IPv6 hosts", "sys_flag"),
    Column("commitLogOffset", *_LONG, "position in the log (in the tier: in the queue's log)", "commit_log_offset"),
    Column("storeSize", *_INT, "whole record in bytes", "total_size"),
    Column("bodyCrc", *_INT, "CRC-32 of the stored body, lower 31 bits", "body_crc"),
    Column("bornHost", *_TEXT, "client as address:port"),
    Column("storeHost", *_TEXT, "broker as address:port"),
    Column("preparedTransactionOffset", *_LONG, "log offset of the half message", "prepared_transaction_offset"),
)

ARROW_SCHEMA = pa.schema([pa.field(column.name, column.arrow_type, column.nullable) for column in COLUMNS])
SPARK_DDL = ", ".join(f"{column.name} {column.spark_type}" for column in COLUMNS)
"""The same for Spark, where every column may be null."""
