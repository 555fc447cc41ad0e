"""Copying a queue's records out of the log, one behind the other, as the tier stores them."""

from enum import IntEnum

from stratalog.kernels.jit import kernel
from stratalog.kernels.log import place_of, prefetch_ahead
from stratalog.kernels.memory import copy, load_i32, load_i64, store_i32, store_i64
from stratalog.kernels.queue_table import Int64Array
from stratalog.layout.message import HEAD
from stratalog.layout.queue import UNIT


class GatherStatus(IntEnum):
    """Why `gather` stopped, at the unit it returns."""

    DONE = 0
    ROOM = 1
    """The unit's record does not fit into what is left of the buffer."""
    MISSING = 2
    """The log has no such place: its file is gone, or the unit is a filler or damaged."""


_DONE, _ROOM, _MISSING = int(GatherStatus.DONE), int(GatherStatus.ROOM), int(GatherStatus.MISSING)
_UNIT_SIZE, _UNIT_OFFSET = UNIT.size, UNIT.position("commit_log_offset")
_UNIT_RECORD_SIZE, _UNIT_TAGS_CODE = UNIT.position("size"), UNIT.position("tags_code")
_COMMIT_LOG_OFFSET = HEAD.position("commit_log_offset")


@kernel
def gather(
    units_address: int,
    count: int,
    addresses: Int64Array,
    first_offset: int,
    file_size: int,
    dst: int,
    room: int,
    tier_offset: int,
    tier_units_address: int,
) -> tuple[int, int, int]:
    """Copy the records of `count` units to `dst`, whose offset in the queue's tiered log is `tier_offset`.

    A copied record carries its new place as commit log offset; the tier's units go to `tier_units_address`. Returns
    (units done, bytes written, `GatherStatus`). Whether a unit pointed at the record it should is not looked at: the
    copy can be checked while it is still in the cache.
    """
    position = dst
    for i in range(count):
        unit = units_address + _UNIT_SIZE * i
        size = load_i32(unit + _UNIT_RECORD_SIZE)
        file, at = place_of(addresses, first_offset, file_size, load_i64(unit + _UNIT_OFFSET), size)
        if file == 0:
            return i, position - dst, _MISSING
        if size > dst + room - position:
            return i, position - dst, _ROOM
        prefetch_ahead(unit, count - i, file + at)
        tier_position = tier_offset + position - dst
        copy(position, file + at, size)
        store_i64(position + _COMMIT_LOG_OFFSET, tier_position)
        tier_unit = tier_units_address + _UNIT_SIZE * i
        store_i64(tier_unit + _UNIT_OFFSET, tier_position)
        store_i32(tier_unit + _UNIT_RECORD_SIZE, size)
        store_i64(tier_unit + _UNIT_TAGS_CODE, load_i64(unit + _UNIT_TAGS_CODE))
        position += size
    return count, position - dst, _DONE
