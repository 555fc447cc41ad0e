"""Java's `String.hashCode` over UTF-8 bytes.

The hash is over UTF-16 code units. For ASCII those are the bytes, and eight of them are one step: neighbours are
combined inside the word (31, then 31², then 31⁴) and the word is added to hash · 31⁸. The first byte outside ASCII
sends the rest through a decoder that replaces malformed bytes as Python (and Java) do.
"""

from typing import Any

import numpy as np

from stratalog.kernels.jit import ZERO, kernel, part
from stratalog.kernels.memory import load_i64, load_le_i32, load_u8, load_u32

Int32Array = np.ndarray[Any, np.dtype[np.int32]]

NO_PREFIX = ZERO
"""Seed of a hash that continues none."""

_MASK = (1 << 32) - 1
_BASE = 31
_BASE_2, _BASE_4, _BASE_8 = (pow(_BASE, exponent, 1 << 32) for exponent in (2, 4, 8))
_NOT_ASCII_8 = 0x8080808080808080 - (1 << 64)
_NOT_ASCII_4 = 0x80808080
_ODD_BYTES = 0x00FF00FF00FF00FF
_ODD_PAIRS = 0x0000FFFF0000FFFF

_REPLACEMENT = 0xFFFD
_SURROGATES_FROM = 0x10000
_HIGH_SURROGATE, _LOW_SURROGATE = 0xD800, 0xDC00
_ABOVE_ASCII = 0x80


@part
def _decode_character(position: int, end: int) -> tuple[int, int]:
    """Code point at `position` and the position behind it; U+FFFD for the longest malformed start, as decoders do."""
    lead = load_u8(position)
    position += 1
    low, high = 0x80, 0xBF  # what the second byte may be: over-long forms, surrogates and > U+10FFFF are malformed
    if lead < 0x80:
        return lead, position
    if 0xC2 <= lead <= 0xDF:
        following, code = 1, lead & 0x1F
    elif 0xE0 <= lead <= 0xEF:
        following, code = 2, lead & 0x0F
        low, high = (0xA0 if lead == 0xE0 else low), (0x9F if lead == 0xED else high)
    elif 0xF0 <= lead <= 0xF4:
        following, code = 3, lead & 0x07
        low, high = (0x90 if lead == 0xF0 else low), (0x8F if lead == 0xF4 else high)
    else:
        return _REPLACEMENT, position
    for _ in range(following):
        byte = load_u8(position) if position < end else 0
        if byte < low or byte > high:
            return _REPLACEMENT, position
        code = code << 6 | byte & 0x3F
        low, high = 0x80, 0xBF
        position += 1
    return code, position


@part
def _hash_text(h: int, position: int, end: int) -> int:
    while position < end:
        code, position = _decode_character(position, end)
        if code >= _SURROGATES_FROM:
            code -= _SURROGATES_FROM
            h = (h * _BASE + _HIGH_SURROGATE + (code >> 10)) & _MASK
            code = _LOW_SURROGATE + (code & 0x3FF)
        h = (h * _BASE + code) & _MASK
    return h


@part
def _signed(h: int) -> int:
    return h - (1 << 32) if h >> 31 else h


@kernel
def java_hash(seed: int, address: int, size: int) -> int:
    """Signed 32-bit `hashCode` of `size` UTF-8 bytes, continued from the hash `seed` of a prefix (0 for none)."""
    h, position, end = seed & _MASK, address, address + size
    while position + 8 <= end:
        word = load_i64(position)
        if word & _NOT_ASCII_8:
            return _signed(_hash_text(h, position, end))
        pairs = ((word >> 8) & _ODD_BYTES) * _BASE + (word & _ODD_BYTES)
        fours = ((pairs >> 16) & _ODD_PAIRS) * _BASE_2 + (pairs & _ODD_PAIRS)
        h = (h * _BASE_8 + (fours >> 32) * _BASE_4 + (fours & _MASK)) & _MASK
        position += 8
    if position + 4 <= end:
        word = load_u32(position)
        if word & _NOT_ASCII_4:
            return _signed(_hash_text(h, position, end))
        pairs = ((word >> 8) & _ODD_BYTES) * _BASE + (word & _ODD_BYTES)
        h = (h * _BASE_4 + (pairs >> 16) * _BASE_2 + (pairs & 0xFFFF)) & _MASK
        position += 4
    while position < end:
        byte = load_u8(position)
        if byte >= _ABOVE_ASCII:
            return _signed(_hash_text(h, position, end))
        h = (h * _BASE + byte) & _MASK
        position += 1
    return _signed(h)


@kernel
def hash_column(seed: int, offsets_address: int, data_address: int, count: int, out: Int32Array) -> None:
    """Hashes of the `count` values of an Arrow string column (int32 offsets), each continued from `seed`."""
    for row in range(count):
        begin = load_le_i32(offsets_address + 4 * row)
        out[row] = java_hash(seed, data_address + begin, load_le_i32(offsets_address + 4 * row + 4) - begin)
