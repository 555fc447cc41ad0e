"""Walking records of one file, and finding the next one behind damage. For bytes that nobody has checked yet.

Every read is bounded by `end`: any bytes may be given.
"""

from enum import IntEnum
from typing import Any, cast

import numpy as np

from stratalog.kernels.crc32 import body_crc
from stratalog.kernels.jit import kernel, part
from stratalog.kernels.memory import load_i16, load_i32, load_i64, load_u8, load_u32
from stratalog.kernels.record import (
    BODY_SIZE,
    BODY_SIZE_SIZE,
    MAGIC,
    PREFETCH_RECORDS,
    PROPERTIES_LENGTH_SIZE,
    SYS_FLAG,
    TOPIC_LENGTH_SIZE_V1,
    TOPIC_LENGTH_SIZE_V2,
    hosts_extra,
    prefetch_around,
)
from stratalog.kernels.recordcrc import ABSENT, HOLDS, record_crc_state
from stratalog.layout.message import BLANK, FIXED_SIZE_V1, HEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from stratalog.layout.properties import CRC_PROPERTY_SIZE

Int64Array = np.ndarray[Any, np.dtype[np.int64]]
Int32Array = np.ndarray[Any, np.dtype[np.int32]]


class ScanStatus(IntEnum):
    """Why a scan stopped; what stands at the position it returns."""

    END = 0
    """Fewer bytes are left than the smallest record takes (none, if the records filled the range)."""
    BLANK = 1
    """The blank record that closes a file."""
    BAD_MAGIC = 2
    """No record: never written (zeros), or damaged."""
    BAD_SIZE = 3
    """The size is smaller than a record, or runs past `end`: torn or damaged."""
    BAD_BODY_SIZE = 4
    """The body does not fit into the record."""
    BAD_LENGTHS = 5
    """Head, body, topic and properties do not add up to the size."""
    BAD_OFFSET = 6
    """A whole record that belongs elsewhere: its commit log offset is not the place where it stands."""
    BAD_CRC = 7
    """The body's CRC is not the one in the head."""
    FULL = 8
    """The output arrays are full: scan on from the position."""
    BAD_RECORD_CRC = 9
    """The record CRC at the end of the properties does not fit the record."""


_BLANK, _BAD_MAGIC, _BAD_SIZE = int(ScanStatus.BLANK), int(ScanStatus.BAD_MAGIC), int(ScanStatus.BAD_SIZE)
_BAD_BODY_SIZE, _BAD_LENGTHS = int(ScanStatus.BAD_BODY_SIZE), int(ScanStatus.BAD_LENGTHS)
_BAD_OFFSET, _BAD_CRC = int(ScanStatus.BAD_OFFSET), int(ScanStatus.BAD_CRC)
_BAD_RECORD_CRC = int(ScanStatus.BAD_RECORD_CRC)
_END, _FULL = int(ScanStatus.END), int(ScanStatus.FULL)
# Typed, because numba would compile `check_record` for each literal.
ANY_OFFSET = cast(int, np.int64(-1))
"""As `base_offset`: a record may say that it stands anywhere."""
TRUST, VERIFY, BODY_ONLY = (cast(int, np.int64(checks)) for checks in range(3))
"""Which CRCs are checked: none; the record's where it has one, else the body's; the body's alone, for a copy in the
tier, which has another commit log offset, so that the record's no longer holds."""

WHOLE = -1
"""What `check_record` says of a whole record."""

_TOTAL_SIZE = HEAD.position("total_size")
_BODY_CRC = HEAD.position("body_crc")
_COMMIT_LOG_OFFSET = HEAD.position("commit_log_offset")
_SIZE_MIN = FIXED_SIZE_V1
_CRC_TAIL_SIZE = CRC_PROPERTY_SIZE
_BLANK_SIZE, _BLANK_MAGIC = BLANK.size, BLANK.position("magic")


@part
def check_record(address: int, position: int, end: int, base_offset: int, verify: int) -> int:
    """What stands at `position`: WHOLE, or the status that stops a scan. Reads nothing outside [position, end)."""
    record, left = address + position, end - position
    if left >= _BLANK_SIZE and load_i32(record + _BLANK_MAGIC) == MAGIC_BLANK:
        return _BLANK
    if left < _SIZE_MIN:
        return _END
    magic = load_i32(record + MAGIC)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return _BAD_MAGIC
    size = load_i32(record + _TOTAL_SIZE)
    if size < _SIZE_MIN or size > left:
        return _BAD_SIZE
    body_size_at = BODY_SIZE + hosts_extra(load_i32(record + SYS_FLAG))
    topic_length_size = TOPIC_LENGTH_SIZE_V2 if magic == MAGIC_V2 else TOPIC_LENGTH_SIZE_V1
    room = size - body_size_at - BODY_SIZE_SIZE - topic_length_size - PROPERTIES_LENGTH_SIZE
    if room < 0:  # too small for its IPv6 hosts; nothing behind them is read
        return _BAD_BODY_SIZE
    body_size = load_i32(record + body_size_at)
    if body_size < 0 or body_size > room:
        return _BAD_BODY_SIZE
    at = body_size_at + BODY_SIZE_SIZE + body_size
    topic_size = load_i16(record + at) if magic == MAGIC_V2 else load_u8(record + at)
    if topic_size < 0 or topic_size > room - body_size:
        return _BAD_LENGTHS
    if load_i16(record + at + topic_length_size + topic_size) != room - body_size - topic_size:
        return _BAD_LENGTHS
    if base_offset >= 0 and load_i64(record + _COMMIT_LOG_OFFSET) != base_offset + position:
        return _BAD_OFFSET
    if verify == TRUST:
        return WHOLE
    if verify == VERIFY and room - body_size - topic_size >= _CRC_TAIL_SIZE:
        state = record_crc_state(record, size)
        if state != ABSENT:
            return WHOLE if state == HOLDS else _BAD_RECORD_CRC
    if body_size > 0:
        crc = body_crc(record + body_size_at + BODY_SIZE_SIZE, body_size)
        if crc != load_u32(record + _BODY_CRC):
            return _BAD_CRC
    return WHOLE


@kernel
def scan(
    address: int,
    begin: int,
    end: int,
    base_offset: int,
    verify: int,
    positions: Int64Array,
    sizes: Int32Array,
) -> tuple[int, int, int]:
    """Walk the records of a file between two byte positions.

    `address` is that of the file's position 0 and `base_offset` its log offset, or ANY_OFFSET (-1) to accept any commit
    log offset in a record; `verify` says which CRCs are checked (VERIFY, TRUST …). Position and size of each whole
    record go to the arrays (of equal length). Returns (records, position where the scan stopped, `ScanStatus`).
    """
    position, count = begin, 0
    while True:
        status = check_record(address, position, end, base_offset, verify)
        if status != WHOLE:
            return count, position, status
        if count == positions.size:
            return count, position, _FULL
        size = load_i32(address + position + _TOTAL_SIZE)
        positions[count], sizes[count] = position, size
        position += size
        if verify == TRUST:  # else the body is read, and the processor sees where that leads
            prefetch_around(address + position + PREFETCH_RECORDS * size)
        count += 1


@kernel
def find_record(address: int, begin: int, end: int, base_offset: int) -> int:
    """Byte position of the next whole record at or behind `begin`, or -1.

    A record counts when magic, lengths, commit log offset (unless `base_offset` is ANY_OFFSET) and CRC all hold; what
    lies between is looked through byte by byte.
    """
    for position in range(begin, end - _SIZE_MIN + 1):
        magic = load_i32(address + position + MAGIC)
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            continue
        if check_record(address, position, end, base_offset, VERIFY) == WHOLE:
            return position
    return -1
