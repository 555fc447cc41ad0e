"""From scanned records to ConsumeQueue units, sorted by queue."""

from enum import IntEnum

from stratalog.kernels.hashing import NO_PREFIX, java_hash
from stratalog.kernels.jit import kernel, part
from stratalog.kernels.memory import copy, load_i32, load_i64, load_u8, store_i32, store_i64
from stratalog.kernels.queue_table import (
    NO_ROW,
    QUEUE_KIND,
    QUEUE_NEWS,
    QUEUE_NEXT_OFFSET,
    Int32Array,
    Int64Array,
    QueueKind,
    Uint8Array,
    find_queue,
)
from stratalog.kernels.queue_table import insert_queue as insert_queue
from stratalog.kernels.queue_table import queue_hash as queue_hash
from stratalog.kernels.record import (
    PREFETCH_RECORDS,
    SYS_FLAG,
    find_byte,
    named_values,
    prefetch_around,
    properties_behind,
    properties_of,
    store_timestamp_of,
    topic_of,
)
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import HEAD
from stratalog.layout.properties import NAME_END_BYTE, VALUE_END_BYTE, name_as_number
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import TRANSACTION_MASK, Transaction


class UnitStatus(IntEnum):
    """Why `build_units` stopped, at the record it returns."""

    DONE = 0
    UNKNOWN_QUEUE = 1
    """The table has no row for the record's queue: add one, go on."""
    GAP = 2
    """The record's queue offset is ahead of the queue: messages between are lost. Set QUEUE_NEXT_OFFSET, go on."""
    NEEDS_MORE = 3
    """The record belongs to a batch queue, or names light queues: see `QueueKind`. Do that, go on behind it."""
    BEHIND = 4
    """The record's queue offset is taken, by another record: see QUEUE_NEWS. Go on behind it."""


_DONE, _UNKNOWN_QUEUE, _GAP = int(UnitStatus.DONE), int(UnitStatus.UNKNOWN_QUEUE), int(UnitStatus.GAP)
_NEEDS_MORE, _BEHIND = int(UnitStatus.NEEDS_MORE), int(UnitStatus.BEHIND)
_SCHEDULE, _LIGHT = int(QueueKind.SCHEDULE), int(QueueKind.LIGHT)

_TOTAL_SIZE = HEAD.position("total_size")
_QUEUE_ID = HEAD.position("queue_id")
_QUEUE_OFFSET = HEAD.position("queue_offset")
_UNIT_SIZE = UNIT.size
_UNIT_OFFSET, _UNIT_RECORD_SIZE = UNIT.position("commit_log_offset"), UNIT.position("size")
_UNIT_TAGS_CODE = UNIT.position("tags_code")
_NONE, _COMMIT = int(Transaction.NONE), int(Transaction.COMMIT)

_LIGHT_NAME_SIZE = len(MULTI_DISPATCH)
_LIGHT_MIDDLE, _LIGHT_LAST = 8, _LIGHT_NAME_SIZE - 8
"""The name is compared as three numbers, of which the last two overlap."""
_LIGHT_NAME_1, _LIGHT_NAME_2 = name_as_number(MULTI_DISPATCH[:8]), name_as_number(MULTI_DISPATCH[8:16])
_LIGHT_NAME_3 = name_as_number(MULTI_DISPATCH[_LIGHT_LAST:])

_PLUS, _MINUS, _ZERO, _NINE = (ord(character) for character in "+-09")
_INT_MAX = 2**31 - 1


@part
def _parsed_int(address: int, size: int) -> int:
    """A decimal 32-bit integer as `Integer.parseInt` reads it; 0 for what is none, and for negative ones."""
    sign = load_u8(address) if size else 0
    position = 1 if size > 1 and sign in (_PLUS, _MINUS) else 0
    value = 0
    while position < size:
        digit = load_u8(address + position)
        if digit < _ZERO or digit > _NINE:
            return 0
        value = 10 * value + digit - _ZERO
        if value > _INT_MAX:
            return 0
        position += 1
    return 0 if sign == _MINUS else value


@part
def _tags_code(record: int, topic_end: int, is_schedule: bool, schedule_delays_ms: Int64Array) -> int:
    """What a unit holds beside the place: the hash of the tags, or a delayed message's deliver time."""
    begin, end = properties_behind(topic_end)
    tags, tags_size, _, _, _, _, delay, delay_size = named_values(begin, end)
    if is_schedule:
        level = min(_parsed_int(delay, delay_size), schedule_delays_ms.size - 1)
        if level > 0:
            return store_timestamp_of(record) + schedule_delays_ms[level]
    return java_hash(NO_PREFIX, tags, tags_size)


@part
def _names_light_queues(record: int) -> bool:
    """Whether the properties hold INNER_MULTI_DISPATCH with a value."""
    begin, end = properties_of(record)
    while begin < end:
        stop = find_byte(begin, end, VALUE_END_BYTE)
        if (
            stop - begin > _LIGHT_NAME_SIZE + 1
            and load_i64(begin) == _LIGHT_NAME_1
            and load_i64(begin + _LIGHT_MIDDLE) == _LIGHT_NAME_2
            and load_i64(begin + _LIGHT_LAST) == _LIGHT_NAME_3
            and load_u8(begin + _LIGHT_NAME_SIZE) == NAME_END_BYTE
        ):
            return True
        begin = stop + 1
    return False


@kernel
def build_units(
    address: int,
    positions: Int64Array,
    first: int,
    count: int,
    base_offset: int,
    queues: Int64Array,
    table: Int32Array,
    units: Uint8Array,
    rows_queue: Int32Array,
    schedule_delays_ms: Int64Array,
) -> tuple[int, int]:
    """Units of the scanned records `first` to `count - 1`.

    `positions` are those of a scan from `address`; `base_offset` is the log offset of position 0. Unit i goes to
    `units[20 * i:]` and the row of its queue to `rows_queue[i]`: NO_ROW for a record that enters no queue (prepared,
    rolled back), that lies before the queue's newest unit (QUEUE_NEWS), or whose queue offset is behind its queue
    (dispatched before). `schedule_delays_ms` is by level, entry 0 unused. Returns (next record, `UnitStatus`); anything
    but DONE says what to do before calling again from there.
    """
    for i in range(first, count):
        if i + PREFETCH_RECORDS < count:
            prefetch_around(address + positions[i + PREFETCH_RECORDS])
        record = address + positions[i]
        rows_queue[i] = NO_ROW
        transaction = load_i32(record + SYS_FLAG) & TRANSACTION_MASK
        if transaction != _NONE and transaction != _COMMIT:
            continue
        topic, topic_size = topic_of(record)
        row = find_queue(table, queues, topic, topic_size, load_i32(record + _QUEUE_ID))
        if row == NO_ROW:
            return i, _UNKNOWN_QUEUE
        kind = queues[row, QUEUE_KIND]
        if kind > _SCHEDULE and (kind != _LIGHT or _names_light_queues(record)):
            return i, _NEEDS_MORE
        if base_offset + positions[i] + 1 < queues[row, QUEUE_NEWS]:
            continue
        queue_offset = load_i64(record + _QUEUE_OFFSET)
        if queue_offset > queues[row, QUEUE_NEXT_OFFSET]:
            return i, _GAP
        if queue_offset < queues[row, QUEUE_NEXT_OFFSET]:
            if 0 < queues[row, QUEUE_NEWS] <= base_offset + positions[i]:
                return i, _BEHIND
            continue
        queues[row, QUEUE_NEXT_OFFSET] = queue_offset + 1
        rows_queue[i] = row
        tags_code = _tags_code(record, topic + topic_size, kind == _SCHEDULE, schedule_delays_ms)
        unit = units.ctypes.data + _UNIT_SIZE * i
        store_i64(unit + _UNIT_OFFSET, base_offset + positions[i])
        store_i32(unit + _UNIT_RECORD_SIZE, load_i32(record + _TOTAL_SIZE))
        store_i64(unit + _UNIT_TAGS_CODE, tags_code)
    return count, _DONE


@kernel
def scatter(
    units: Uint8Array, rows_queue: Int32Array, count: int, row_count: int, starts: Int64Array, out: Uint8Array
) -> None:
    """Sort `count` units by the row of their queue, keeping the order within a queue; those without a row are dropped.

    Afterwards the units of row r stand in `out` from unit `starts[r]` up to `starts[r + 1]`.
    """
    starts[: row_count + 1] = 0
    for i in range(count):
        if rows_queue[i] >= 0:
            starts[rows_queue[i] + 1] += 1
    for row in range(row_count):
        starts[row + 1] += starts[row]
    for i in range(count):
        row = rows_queue[i]
        if row >= 0:
            copy(out.ctypes.data + _UNIT_SIZE * starts[row], units.ctypes.data + _UNIT_SIZE * i, _UNIT_SIZE)
            starts[row] += 1
    for row in range(row_count, 0, -1):
        starts[row] = starts[row - 1]
    starts[0] = 0
