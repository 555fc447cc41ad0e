"""Java's string hash in kernels against the layout's."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.memory import Fence, address_of, array_of
from stratalog.kernels.hashing import hash_column, java_hash
from stratalog.kernels.index import key_hash_of
from stratalog.kernels.jit import kernel
from stratalog.layout.javahash import INT_MIN, index_key_hash, string_hash

seeds = st.integers(-(2**31), 2**31 - 1)


@kernel
def key_hash(hash_code: int) -> int:
    return key_hash_of(hash_code)


def hash_of(text: bytes, seed: int = 0) -> int:
    fence = Fence(text)
    return java_hash(seed, fence.address, fence.size)


@given(st.text(max_size=60), seeds)
def test_any_text_hashes_as_in_java(text: str, seed: int) -> None:
    stored = text.encode("utf-8", "replace")
    assert hash_of(stored, seed) == string_hash(stored.decode(), seed)


@given(st.text(st.characters(max_codepoint=127), max_size=60), seeds)
def test_ascii_hashes_as_in_java(text: str, seed: int) -> None:
    assert hash_of(text.encode(), seed) == string_hash(text, seed)


_HOSTILE = st.sampled_from(list(b"\x00\x7f\x80\xbf\xc0\xc1\xc2\xdf\xe0\xa0\x9f\xed\xee\xef\xf0\x90\x8f\xf4\xf5\xffA"))


@given(st.lists(_HOSTILE, max_size=30).map(bytes))
def test_malformed_utf8_is_replaced_as_decoders_do(stored: bytes) -> None:
    assert hash_of(stored) == string_hash(stored.decode("utf-8", "replace"))


@given(st.text("abé中😀", max_size=30), st.text("abé中😀", max_size=30))
def test_a_hash_continues_that_of_a_prefix(prefix: str, rest: str) -> None:
    assert hash_of(rest.encode(), hash_of(prefix.encode())) == string_hash(prefix + rest)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0), ("TagA", 2598919), ("*", 42), ("Aa", 2112), ("BB", 2112), ("TopicTest", -1902610879),
        ("TopicTest#order-1", -1829193424), ("polygenelubricants", INT_MIN), ("tag-中文", -880646131),
        ("😀", 1772899), ("é", 233), ("中", 20013), ("TopicTest#MessageKey", 638347386), ("T#jllgvmc", INT_MIN),
    ],
)  # fmt: skip
def test_known_hashes_hold(text: str, expected: int) -> None:
    assert hash_of(text.encode()) == expected


@given(seeds | st.sampled_from([INT_MIN, 2**31 - 1, 0]))
def test_key_hashes_are_never_negative(hash_code: int) -> None:
    assert key_hash(hash_code) == index_key_hash(hash_code) >= 0


@given(st.lists(st.text("ab中", max_size=12), max_size=20), seeds, st.integers(0, 3))
def test_a_column_hashes_value_by_value(texts: list[str], seed: int, skipped: int) -> None:
    column = pa.array(["x"] * skipped + texts, pa.string())
    _, offsets, data = column.buffers()
    out = np.zeros(max(1, len(texts)), np.int32)
    data_address = data.address if data else address_of(array_of(b""))
    hash_column(seed, offsets.address + 4 * skipped, data_address, len(texts), out)
    assert out[: len(texts)].tolist() == [string_hash(text, seed) for text in texts]
