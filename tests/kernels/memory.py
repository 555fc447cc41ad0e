"""Memory that kernels read in tests: bytes that end where readable memory ends."""

import ctypes
import mmap

import numpy as np
from numpy.typing import NDArray

_LIBC = ctypes.CDLL(None, use_errno=True)
_PROT_NONE = 0


class Fence:
    """Writable bytes right in front of a page that must not be touched: reading on kills the process."""

    def __init__(self, data: bytes) -> None:
        pages = -(-max(1, len(data)) // mmap.PAGESIZE)
        self._map = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        last = base + pages * mmap.PAGESIZE
        assert _LIBC.mprotect(ctypes.c_void_p(last), ctypes.c_size_t(mmap.PAGESIZE), _PROT_NONE) == 0
        self.address = last - len(data)
        self.size = len(data)
        self._start = pages * mmap.PAGESIZE - len(data)
        self._map[self._start : self._start + len(data)] = data

    def read(self) -> bytes:
        return self._map[self._start : self._start + self.size]


def address_of(array: NDArray[np.generic]) -> int:
    return int(array.ctypes.data)


def array_of(data: bytes) -> NDArray[np.uint8]:
    """A writable copy, at least one byte long so that it has an address."""
    array = np.zeros(max(1, len(data)), np.uint8)
    array[: len(data)] = np.frombuffer(data, np.uint8)
    return array
