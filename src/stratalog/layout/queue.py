"""Units of the queues: ConsumeQueue, its extension, and BatchConsumeQueue."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratalog.layout.record import Field, Layout

UNIT = Layout(
    "ConsumeQueue unit",
    Field("commit_log_offset", "i64", "start of the record", "bytes"),
    Field("size", "i32", "whole record", "bytes"),
    Field("tags_code", "i64", "hash of the tags, deliver time of a delayed message, or extension address"),
    size=20,
    source="ConsumeQueue",
)
FILLER_SIZE = 0x7FFFFFFF
FILLER = UNIT.pack(0, FILLER_SIZE, 0)
"""Unit that stands where a queue begins in the middle of a file (ConsumeQueue.fillPreBlank)."""
LOST_TAGS_CODE = 2**63 - 1
"""Tags code of a unit that stands for a lost message: no hash, deliver time or address is that large. The unit leads to
a neighbour's record, which RocketMQ delivers once more; it can do nothing with a filler in the middle of a queue."""

BATCH_UNIT = Layout(
    "BatchConsumeQueue unit",
    Field("commit_log_offset", "i64", "start of the record", "bytes"),
    Field("size", "i32", "whole record", "bytes"),
    Field("tags_code", "i64", "hash of the tags"),
    Field("store_timestamp", "i64", "store time of the record", "ms"),
    Field("base_offset", "i64", "first queue offset that the record covers"),
    Field("batch_size", "i16", "messages in the record", "messages"),
    Field("compacted_offset", "i32", "written as -1"),
    Field("reserved", "i32", "0"),
    size=46,
    source="BatchConsumeQueue",
)
BATCH_COMPACTED_OFFSET = -1
BATCH_SIZE_MAX = 0x7FFF
"""Messages that one unit can cover."""

EXTENSION_UNIT = Layout(
    "ConsumeQueueExt unit",
    Field("size", "i16", "this unit with its bitmap", "bytes"),
    Field("tags_code", "i64", "hash of the tags"),
    Field("store_timestamp", "i64", "store time of the record", "ms"),
    Field("bitmap_size", "i16", "bloom filter bits that follow", "bytes"),
    size=20,
    source="ConsumeQueueExt.CqExtUnit",
)
EXTENSION_END = Layout("ConsumeQueueExt end mark", Field("mark", "i16", "-1"), size=2, source="ConsumeQueueExt")
EXTENSION_END_MARK = -1
EXTENSION_SIZE_MAX = 0x7FFF
EXTENSION_END_SPACE = 4
"""A unit rolls to the next file unless this much stays free after it."""
EXTENSION_ADDRESS_BASE = -(2**63)
EXTENSION_ADDRESS_MAX = -(2**31) - 1
"""Tag codes are 32-bit hashes: anything at or below this is an address in the extension file."""


def is_filler(size: int, tags_code: int) -> bool:
    """Whether a unit stands for no message: one in front of a queue's first, or a lost one."""
    return size == FILLER_SIZE or tags_code == LOST_TAGS_CODE


def fillers(units: NDArray[Any]) -> NDArray[np.bool_]:
    """`is_filler` of each of many units, plain ones or those of batches."""
    found: NDArray[np.bool_] = (units["size"] == FILLER_SIZE) | (units["tags_code"] == LOST_TAGS_CODE)
    return found


def hide_lost(units: bytes) -> bytes:
    """Plain units as a reader wants them: those of lost messages have FILLER_SIZE, so that nobody takes the record they
    lead to for theirs."""
    lost = np.frombuffer(units, UNIT.dtype)["tags_code"] == LOST_TAGS_CODE
    if not lost.any():
        return units
    table = np.frombuffer(units, UNIT.dtype).copy()
    table["size"][lost] = FILLER_SIZE
    return table.tobytes()


def sound_count(units: NDArray[Any], newest: int) -> tuple[int, int]:
    """How many units, plain ones or those of batches, come before the first that is zeros or points to a record that is
    not newer than `newest` and those of the units before it; and the newest log offset among them."""
    sizes, offsets = units["size"].astype(np.int32), units["commit_log_offset"].astype(np.int64)
    if not len(units):
        return 0, newest
    own = ~fillers(units)
    if own.all() and sizes.min() > 0 and offsets[0] > newest and (offsets[1:] > offsets[:-1]).all():
        return len(units), int(offsets[-1])
    before = np.maximum.accumulate(np.concatenate(([newest], np.where(own, offsets, -1))))
    unsound = np.flatnonzero((sizes <= 0) | (own & (offsets <= before[:-1])))
    count = int(unsound[0]) if unsound.size else len(units)
    return count, int(before[count])


def is_extension_address(tags_code: int) -> bool:
    return tags_code <= EXTENSION_ADDRESS_MAX


def extension_position(tags_code: int) -> int:
    """Byte offset in the extension's files that a unit's tags code stands for."""
    return tags_code - EXTENSION_ADDRESS_BASE


QUEUE_FILE_UNITS = 300_000
"""Units of a ConsumeQueue file by default (`mappedFileSizeConsumeQueue` = 6,000,000 bytes)."""
BATCH_FILE_UNITS = 300_000
"""Units of a BatchConsumeQueue file by default (`mapperFileSizeBatchConsumeQueue` = 13,800,000 bytes)."""
EXTENSION_FILE_SIZE = 48 * 1024 * 1024
