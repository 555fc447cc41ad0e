"""Writing many records at once from Arrow columns."""

from enum import IntEnum

from stratalog.kernels.crc32 import body_crc
from stratalog.kernels.jit import kernel, part
from stratalog.kernels.memory import (
    copy,
    load_i64,
    load_le_i32,
    load_le_i64,
    load_u8,
    store_i16,
    store_i32,
    store_i64,
    store_u8,
)
from stratalog.kernels.queue_table import QUEUE_FIELDS as QUEUE_FIELDS
from stratalog.kernels.queue_table import QUEUE_ID as QUEUE_ID
from stratalog.kernels.queue_table import QUEUE_NEXT_OFFSET as QUEUE_NEXT_OFFSET
from stratalog.kernels.queue_table import QUEUE_TOPIC_ADDRESS as QUEUE_TOPIC_ADDRESS
from stratalog.kernels.queue_table import QUEUE_TOPIC_SIZE as QUEUE_TOPIC_SIZE
from stratalog.kernels.queue_table import Int32Array, Int64Array
from stratalog.layout.message import (
    BLANK,
    FIXED_SIZE_V1,
    HEAD,
    HOST_V4,
    MAGIC_V1,
    PROPERTIES_LENGTH,
    PROPERTIES_SIZE_MAX,
    TOPIC_LENGTH_V1,
)
from stratalog.layout.properties import NAME_END_BYTE, VALUE_END_BYTE


class EncodeStatus(IntEnum):
    """Why `encode_batch` stopped, behind the rows it did."""

    DONE = 0
    ROOM = 1
    """The row's record and a blank behind it do not fit into what is left: close the file, go on in the next."""
    TOO_LARGE = 2
    """The row's body or properties exceed their limit; the rows before it are written."""


_DONE, _ROOM, _TOO_LARGE = int(EncodeStatus.DONE), int(EncodeStatus.ROOM), int(EncodeStatus.TOO_LARGE)

COLUMN_NAME_ADDRESS, COLUMN_NAME_SIZE, COLUMN_OFFSETS, COLUMN_DATA = range(4)

_TOTAL_SIZE, _MAGIC, _BODY_CRC = HEAD.position("total_size"), HEAD.position("magic"), HEAD.position("body_crc")
_QUEUE_ID, _FLAG, _QUEUE_OFFSET = HEAD.position("queue_id"), HEAD.position("flag"), HEAD.position("queue_offset")
_COMMIT_LOG_OFFSET, _SYS_FLAG = HEAD.position("commit_log_offset"), HEAD.position("sys_flag")
_BORN_TIMESTAMP, _BORN_HOST = HEAD.position("born_timestamp"), HEAD.position("born_address")
_STORE_TIMESTAMP, _STORE_HOST = HEAD.position("store_timestamp"), HEAD.position("store_address")
_RECONSUME_TIMES = HEAD.position("reconsume_times")
_PREPARED = HEAD.position("prepared_transaction_offset")
_BODY_SIZE, BODY_POSITION = HEAD.position("body_size"), HEAD.size
TOPIC_LENGTH_SIZE, PROPERTIES_LENGTH_SIZE = TOPIC_LENGTH_V1.size, PROPERTIES_LENGTH.size
_FIXED_SIZE, _BLANK_SIZE, _HOST_SIZE = FIXED_SIZE_V1, BLANK.size, HOST_V4.size
_SEPARATORS = 2
assert _HOST_SIZE == 8, "hosts are copied as one i64"


@kernel
def holds_separator(address: int, size: int) -> bool:
    """Whether any byte of a run of text is one that ends a property's name or value."""
    found = 0
    for position in range(size):
        byte = load_u8(address + position)
        found |= (byte == NAME_END_BYTE) | (byte == VALUE_END_BYTE)
    return found != 0


@part
def _properties_size(columns: Int64Array, row: int) -> int:
    size = 0
    for column in range(columns.shape[0]):
        value = columns[column, COLUMN_OFFSETS] + 4 * row
        value_size = load_le_i32(value + 4) - load_le_i32(value)
        if value_size > 0:
            name_size = columns[column, COLUMN_NAME_SIZE]
            size += value_size + (name_size + _SEPARATORS if name_size else 0)
    return size


@part
def _write_properties(dst: int, columns: Int64Array, row: int) -> None:
    for column in range(columns.shape[0]):
        value = columns[column, COLUMN_OFFSETS] + 4 * row
        begin = load_le_i32(value)
        value_size = load_le_i32(value + 4) - begin
        if value_size <= 0:
            continue
        name_size = columns[column, COLUMN_NAME_SIZE]
        if name_size:
            copy(dst, columns[column, COLUMN_NAME_ADDRESS], name_size)
            store_u8(dst + name_size, NAME_END_BYTE)
            dst += name_size + 1
        copy(dst, columns[column, COLUMN_DATA] + begin, value_size)
        dst += value_size
        if name_size:
            store_u8(dst, VALUE_END_BYTE)
            dst += 1


@part
def write_head(
    dst: int, total_size: int, crc: int, queue_id: int, flag: int, queue_offset: int, commit_log_offset: int,
    born_timestamp: int, born_host: int, store_timestamp: int, store_host: int, body_size: int,
) -> None:  # fmt: skip
    store_i32(dst + _TOTAL_SIZE, total_size)
    store_i32(dst + _MAGIC, MAGIC_V1)
    store_i32(dst + _BODY_CRC, crc)
    store_i32(dst + _QUEUE_ID, queue_id)
    store_i32(dst + _FLAG, flag)
    store_i64(dst + _QUEUE_OFFSET, queue_offset)
    store_i64(dst + _COMMIT_LOG_OFFSET, commit_log_offset)
    store_i32(dst + _SYS_FLAG, 0)
    store_i64(dst + _BORN_TIMESTAMP, born_timestamp)
    store_i64(dst + _BORN_HOST, born_host)
    store_i64(dst + _STORE_TIMESTAMP, store_timestamp)
    store_i64(dst + _STORE_HOST, store_host)
    store_i32(dst + _RECONSUME_TIMES, 0)
    store_i64(dst + _PREPARED, 0)
    store_i32(dst + _BODY_SIZE, body_size)


@kernel
def encode_batch(
    dst: int,
    room: int,
    first: int,
    count: int,
    body_offsets_address: int,
    body_address: int,
    columns: Int64Array,
    rows_queue: Int32Array,
    queues: Int64Array,
    flags_address: int,
    born_address: int,
    base_offset: int,
    store_timestamp: int,
    born_host_address: int,
    store_host_address: int,
    body_size_max: int,
) -> tuple[int, int, int]:
    """Write rows `first` to `first + count - 1` as V1 records with IPv4 hosts at `dst`, log offset `base_offset`.

    Bodies and property columns are Arrow's (int32 offsets). A row of `columns` is a property: the address and size of
    its name, the addresses of its offsets and data; in the order of writing. An empty value is an absent property; a
    name of size 0 stands for ready-made properties text, copied as it is. Values must hold no separator: look at whole
    columns before. Row i belongs to the queue in row `rows_queue[i]` of `queues`, whose QUEUE_NEXT_OFFSET it takes and
    advances; topics have at most 127 bytes. `flags_address` (int32) and `born_address` (int64, ms) are Arrow data, or 0
    for flag 0 and born now; hosts are 8 packed bytes.

    Returns (rows done, bytes written, `EncodeStatus`). Every record leaves room for a blank behind it.
    """
    born_host, store_host = load_i64(born_host_address), load_i64(store_host_address)
    position = dst
    for row in range(first, first + count):
        body = load_le_i32(body_offsets_address + 4 * row)
        body_size = load_le_i32(body_offsets_address + 4 * row + 4) - body
        properties_size = _properties_size(columns, row)
        if body_size > body_size_max or properties_size > PROPERTIES_SIZE_MAX:
            return row - first, position - dst, _TOO_LARGE
        queue = rows_queue[row]
        topic_size = queues[queue, QUEUE_TOPIC_SIZE]
        total_size = _FIXED_SIZE + body_size + topic_size + properties_size
        if position + total_size + _BLANK_SIZE > dst + room:
            return row - first, position - dst, _ROOM
        flag = load_le_i32(flags_address + 4 * row) if flags_address else 0
        born_timestamp = load_le_i64(born_address + 8 * row) if born_address else store_timestamp
        copy(position + BODY_POSITION, body_address + body, body_size)
        crc = body_crc(position + BODY_POSITION, body_size)  # of the copy: who owns the source may be changing it
        write_head(
            position, total_size, crc, queues[queue, QUEUE_ID], flag,
            queues[queue, QUEUE_NEXT_OFFSET], base_offset + position - dst,
            born_timestamp, born_host, store_timestamp, store_host, body_size,
        )  # fmt: skip
        queues[queue, QUEUE_NEXT_OFFSET] += 1
        topic = position + BODY_POSITION + body_size
        store_u8(topic, topic_size)
        copy(topic + TOPIC_LENGTH_SIZE, queues[queue, QUEUE_TOPIC_ADDRESS], topic_size)
        properties = topic + TOPIC_LENGTH_SIZE + topic_size
        store_i16(properties, properties_size)
        _write_properties(properties + PROPERTIES_LENGTH_SIZE, columns, row)
        position += total_size
    return count, position - dst, _DONE
