"""Finding bytes and properties, and copying few bytes, where a page ends and next to bytes that are not theirs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.memory import Fence, address_of, array_of
from stratalog.kernels.jit import kernel
from stratalog.kernels.memory import BLOCK_SIZE, PAGE_SIZE, copy_few
from stratalog.kernels.record import find_byte, named_values
from stratalog.layout.properties import DELAY, KEYS, TAGS, UNIQUE_KEY, VALUE_END_BYTE


@kernel
def _find(begin: int, end: int, byte: int) -> int:
    return find_byte(begin, end, byte)


@kernel
def _named(begin: int, end: int) -> tuple[int, int, int, int, int, int, int, int]:
    return named_values(begin, end)


@kernel
def _copy(dst: int, src: int, size: int) -> None:
    copy_few(dst, src, size)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    empty = address_of(array_of(b""))
    _find(empty, empty, 0), _named(empty, empty), _copy(empty, empty, 0)


@given(st.binary(max_size=3 * BLOCK_SIZE), st.integers(0, 2 * BLOCK_SIZE), st.booleans())
def test_a_byte_is_found_where_it_first_stands(text: bytes, behind: int, is_there: bool) -> None:
    """Also when the page ends inside or right behind the text, and when the byte stands before or behind it only."""
    text = text.replace(b"\x02", b"\x03") if not is_there else text
    memory = Fence(b"\x02" + text + b"\x02" * behind)
    found = text.find(b"\x02")
    begin, end = memory.address + 1, memory.address + 1 + len(text)
    assert _find(begin, end, VALUE_END_BYTE) == (begin + found if found >= 0 else end)


@given(st.integers(-BLOCK_SIZE, 0), st.integers(0, 2 * BLOCK_SIZE))
def test_a_byte_is_found_in_the_next_page(begin: int, distance: int) -> None:
    memory = Fence(b"x" * (2 * PAGE_SIZE))
    edge = memory.address + PAGE_SIZE
    at = edge + begin + distance
    assert _find(edge + begin, at, ord("y")) == at
    data = np.frombuffer(memory._map, np.uint8)
    data[PAGE_SIZE + begin + distance] = ord("y")
    assert _find(edge + begin, memory.address + 2 * PAGE_SIZE, ord("y")) == at


_names = st.sampled_from([TAGS, KEYS, UNIQUE_KEY, DELAY, "TAG", "TAGSX", "KEY", "UNIQ_KEYS", "DELA", "DELAYS", "", "a"])
_segments = st.tuples(_names, st.sampled_from(["\x01", "", "\x01\x01"]), st.text("ab\x01", max_size=BLOCK_SIZE + 6))


@given(st.lists(_segments, max_size=8), st.booleans(), st.integers(0, 2 * BLOCK_SIZE))
def test_the_last_value_of_a_name_is_found(segments, is_closed: bool, behind: int) -> None:
    text = "\x02".join("".join(segment) for segment in segments).encode() + b"\x02" * is_closed
    memory = Fence(text + b"\x02" * behind)
    end = memory.address + len(text)
    found = _named(memory.address, end)
    for number, name in enumerate((TAGS, KEYS, UNIQUE_KEY, DELAY)):
        lead = name.encode() + b"\x01"
        values = [segment[len(lead) :] for segment in text.split(b"\x02") if segment.startswith(lead)]
        values = [value for value in values if value]
        address, size = found[2 * number : 2 * number + 2]
        value = text[address - memory.address :][:size]
        assert value == (values[-1] if values else b"")


@given(st.binary(max_size=5 * BLOCK_SIZE))
def test_few_bytes_are_copied_and_no_others(data: bytes) -> None:
    source, target = Fence(data), Fence(b"<" + bytes(len(data)) + b">")
    _copy(target.address + 1, source.address, len(data))
    assert target.read() == b"<" + data + b">"
