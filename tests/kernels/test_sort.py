"""Compacting tier index items."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import twins
from kernels.memory import Fence, address_of, array_of
from stratalog.kernels.sort import compact_items
from stratalog.layout.javahash import string_hash
from stratalog.layout.tier import COMPACTED_ITEM, INDEX_HEADER, MAGIC_FINISHED, OPEN_ITEM, compacted_index_size

T0 = 1_700_000_000_000


def compacted(items: list[bytes], slot_count: int) -> tuple[bytes, int]:
    """Slots and items of the file, and the number of slots in use."""
    source = array_of(b"".join(items))
    stride = len(items[0]) if items else COMPACTED_ITEM.size
    file = Fence(bytes(compacted_index_size(slot_count, len(items))))
    ends = np.full(slot_count, 7, np.int64)
    used = compact_items(address_of(source), stride, len(items), slot_count, ends, file.address)
    return file.read()[INDEX_HEADER.size :], used


HASHES = st.lists(st.integers(0, 12) | st.integers(0, 2**31 - 1), max_size=40)


@given(HASHES, st.integers(1, 9))
@pytest.mark.parametrize("layout", [COMPACTED_ITEM, OPEN_ITEM])
def test_items_are_grouped_by_slot_newest_first(layout, hashes: list[int], slot_count: int) -> None:
    chain = (99,) if layout is OPEN_ITEM else ()
    items = [layout.pack(key_hash, 1, 2, number, 91, 0, *chain) for number, key_hash in enumerate(hashes)]
    cut = [item[: COMPACTED_ITEM.size] for item in items]
    used = len({key_hash % slot_count for key_hash in hashes})
    assert compacted(items, slot_count) == (twins.compacted(cut, slot_count), used)


def test_the_golden_file_comes_out_byte_for_byte() -> None:
    items = [
        COMPACTED_ITEM.pack(abs(string_hash(f"topic-tiered#k{100 + i % 3}")), 7, 0, 157 * i, 157, 1500 * i // 1000)
        for i in range(4)
    ]
    behind_header, used = compacted(items, 5)
    file = INDEX_HEADER.pack(MAGIC_FINISHED, T0, T0 + 4500, used, len(items)) + behind_header
    assert len(file) == 180
    assert hashlib.sha256(file).hexdigest() == "9060196b0f599b1d1c47c7590fe9b6849323bfee5b91c2d670746c934b5986b4"
