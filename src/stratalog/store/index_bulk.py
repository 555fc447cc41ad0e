"""Filling an index file with many records before anybody reads it, as recovery does."""

import mmap

import numpy as np
from numpy.typing import NDArray

from stratalog.kernels.index import HEADER_NEXT_ITEM, put_keys
from stratalog.layout.index import ITEM, SLOT, items_position, slots_position
from stratalog.store.disk import MappedFile

_ITEMS_AT_ONCE = 1 << 17


class BulkItems:
    """Items gathered in a small piece of memory and written in runs; slots kept apart until the file is left.

    Through the mapping, each page of items and slots costs a fault: that is three quarters of the time. One file at a
    time, by one thread; the file's slots are not to be read before `leave`.
    """

    def __init__(self, *, slot_count: int, item_capacity: int, with_tags: bool) -> None:
        self._slot_count = slot_count
        self._item_capacity = item_capacity
        self._with_tags = with_tags
        self._items = np.empty(_ITEMS_AT_ONCE * ITEM.size, np.uint8)
        memory = mmap.mmap(-1, SLOT.size * slot_count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._slots = np.frombuffer(memory, np.uint8)
        self._file: MappedFile | None = None

    def put(
        self, file: MappedFile, header: NDArray[np.int64], address: int, positions: NDArray[np.int64], first: int,
        count: int, base_offset: int, key: int,
    ) -> tuple[int, int]:  # fmt: skip
        """What `put_keys` does, with the whole file as its room."""
        if not self.is_in(file):
            self._enter(file, is_empty=header[HEADER_NEXT_ITEM] <= 1)
        while True:
            begin = int(header[HEADER_NEXT_ITEM])
            limit = min(self._item_capacity, begin + _ITEMS_AT_ONCE)
            first, key = put_keys(
                address, positions, first, count, base_offset, self._slots.ctypes.data - slots_position(),
                self._items.ctypes.data - begin * ITEM.size, self._slot_count, limit, header, self._with_tags, key,
            )  # fmt: skip
            end = int(header[HEADER_NEXT_ITEM])
            position = items_position(self._slot_count) + begin * ITEM.size
            file.write(position, self._items[: (end - begin) * ITEM.size])
            if first == count or end >= self._item_capacity:
                return first, key

    def is_in(self, file: MappedFile) -> bool:
        """Whether it is that file whose slots are kept here: then no others may enter an item."""
        return self._file is file

    def _enter(self, file: MappedFile, *, is_empty: bool) -> None:
        self._file = file
        self._slots[:] = 0 if is_empty else file.view[slots_position() : items_position(self._slot_count)]

    def leave(self) -> None:
        """Write the slots of the file that was filled."""
        if self._file is not None:
            self._file.write(slots_position(), self._slots)
            self._file = None
