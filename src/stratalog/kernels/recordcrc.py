"""The record CRC (`layout/recordcrc.py`) in bulk: filled in behind a batch, checked in a scan or before reading."""

from stratalog.kernels.crc32 import body_crc
from stratalog.kernels.jit import kernel, part
from stratalog.kernels.memory import load_i32, load_i64, load_u8, store_u8
from stratalog.kernels.record import find_byte, properties_of
from stratalog.layout.message import HEAD
from stratalog.layout.properties import (
    CRC32,
    CRC_DIGITS,
    CRC_PROPERTY_SIZE,
    NAME_END_BYTE,
    VALUE_END_BYTE,
    name_as_number,
)

ABSENT, HOLDS, BROKEN = range(3)

assert len(CRC32) == 8, "compared as one number"
_NAME = name_as_number(CRC32)
_NAME_SIZE, _DIGITS = len(CRC32), CRC_DIGITS
_DIGITS_AT = len(CRC32) + 1
_TAIL_SIZE = CRC_PROPERTY_SIZE
_TOTAL_SIZE = HEAD.position("total_size")
_ZERO, _NINE = ord("0"), ord("9")
_NO_NUMBER = -1


@part
def _number_at(address: int) -> int:
    """The decimal digits there, least significant first; _NO_NUMBER when one is no digit."""
    number, power = 0, 1
    for place in range(_DIGITS):
        digit = load_u8(address + place)
        if digit < _ZERO or digit > _NINE:
            return _NO_NUMBER
        number += (digit - _ZERO) * power
        power *= 10
    return number


@part
def _is_name_of_crc(record: int, tail: int, end: int) -> bool:
    """Whether a CRC's name at `tail` is a property's whole name, or was before one byte at its ends was damaged. It may
    also be a part of a longer name, or of a value."""
    begin, _ = properties_of(record)
    ends_there = load_u8(tail + _NAME_SIZE) == NAME_END_BYTE
    if tail == begin or load_u8(tail - 1) == VALUE_END_BYTE:
        return ends_there or find_byte(tail + _NAME_SIZE, end, NAME_END_BYTE) == end
    place = tail - 1
    while place >= begin and load_u8(place) != NAME_END_BYTE and load_u8(place) != VALUE_END_BYTE:
        place -= 1
    return ends_there and place >= begin and load_u8(place) == NAME_END_BYTE


@part
def record_crc_state(record: int, size: int) -> int:
    """ABSENT, HOLDS or BROKEN for a record of `size` bytes whose properties are long enough to end with a CRC.

    A record has one when its last property bears the CRC's name, or when it is ten digits that are just this record's
    CRC: then the name is what was damaged.
    """
    tail, end = record + size - _TAIL_SIZE, record + size
    is_named = load_i64(tail) == _NAME and _is_name_of_crc(record, tail, end)
    if load_u8(tail + _NAME_SIZE) != NAME_END_BYTE or load_u8(end - 1) != VALUE_END_BYTE:
        return BROKEN if is_named else ABSENT
    number = _number_at(tail + _DIGITS_AT)
    fits = number >= 0 and number == body_crc(record, size - _TAIL_SIZE)
    if is_named:
        return HOLDS if fits else BROKEN
    return BROKEN if fits else ABSENT


@kernel
def seal_records(begin: int, end: int) -> None:
    """Fill in the CRC of each record between two addresses. They were just written, with room for it at their ends."""
    record = begin
    while record < end:
        size = load_i32(record + _TOTAL_SIZE)
        number = body_crc(record, size - _TAIL_SIZE)
        digits = record + size - _TAIL_SIZE + _DIGITS_AT
        for place in range(_DIGITS):
            store_u8(digits + place, _ZERO + number % 10)
            number //= 10
        record += size
