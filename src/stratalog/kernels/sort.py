"""Bringing the items of a tier index file into their final order (IndexStoreFile.compactToNewFile)."""

from stratalog.kernels.jit import kernel
from stratalog.kernels.memory import copy, load_i32, store_i32
from stratalog.kernels.queue_table import Int64Array
from stratalog.layout.tier import COMPACTED_ITEM, COMPACTED_SLOT, INDEX_HEADER

_HEADER_SIZE, _SLOT_SIZE, _ITEM_SIZE = INDEX_HEADER.size, COMPACTED_SLOT.size, COMPACTED_ITEM.size
_KEY_HASH = COMPACTED_ITEM.position("key_hash")
_SLOT_POSITION, _SLOT_BYTES = COMPACTED_SLOT.position("position"), COMPACTED_SLOT.position("size")


@kernel
def compact_items(
    items_address: int, stride: int, count: int, slot_count: int, ends: Int64Array, file_address: int
) -> int:
    """Write slots and items of a compacted tier index file; the header is the caller's. A counting sort.

    Items stand in the order they were put, one every `stride` bytes (a longer, open item is cut to the compacted one).
    In the file they are grouped by slot, newest first within one. A slot holds the position of its items in the file
    and their size; an empty one where they would be, and 0. `ends` is scratch for `slot_count` numbers. Returns how
    many slots are in use.
    """
    ends[:slot_count] = 0
    for i in range(count):
        ends[load_i32(items_address + stride * i + _KEY_HASH) % slot_count] += 1
    used, before = 0, 0
    for slot in range(slot_count):
        size = ends[slot]
        at = file_address + _HEADER_SIZE + _SLOT_SIZE * slot
        store_i32(at + _SLOT_POSITION, _HEADER_SIZE + _SLOT_SIZE * slot_count + _ITEM_SIZE * before)
        store_i32(at + _SLOT_BYTES, _ITEM_SIZE * size)
        used += size > 0
        before += size
        ends[slot] = before
    out = file_address + _HEADER_SIZE + _SLOT_SIZE * slot_count
    for i in range(count):
        item = items_address + stride * i
        slot = load_i32(item + _KEY_HASH) % slot_count
        ends[slot] -= 1
        copy(out + _ITEM_SIZE * ends[slot], item, _ITEM_SIZE)
    return used
