"""CRC-32 in kernels against zlib."""

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.memory import Fence, address_of, array_of
from stratalog.kernels.crc32 import HAS_CARRYLESS_MULTIPLY, crc32, crc32_by_table

RANDOM = random.Random(7).randbytes(9000)


@pytest.mark.parametrize("function", [crc32, crc32_by_table])
@pytest.mark.parametrize("start", [0, 1, 7])
def test_every_size_up_to_several_strides_equals_zlib(function, start: int) -> None:
    data = array_of(RANDOM)
    for size in [*range(700), 1023, 1024, 4097, 8191]:
        assert function(address_of(data) + start, size) == zlib.crc32(RANDOM[start : start + size]), size


@given(st.binary(max_size=600))
def test_nothing_is_read_behind_the_bytes(data: bytes) -> None:
    fence = Fence(data)
    assert crc32(fence.address, fence.size) == zlib.crc32(data) == crc32_by_table(fence.address, fence.size)


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"", 0), (b"123456789", 0xCBF43926), (b"Hello RocketMQ", 0x69C865ED), (b"\0\0\0\0", 0x2144DF1C)],
)
def test_known_values_hold(data: bytes, expected: int) -> None:
    assert crc32(address_of(array_of(data)), len(data)) == expected


def test_the_fast_way_is_another_function_where_the_cpu_has_it() -> None:
    assert (crc32 is not crc32_by_table) == HAS_CARRYLESS_MULTIPLY
