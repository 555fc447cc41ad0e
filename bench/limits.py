"""What the machine itself can do, measured beside each figure. Rates are bytes or operations per second."""

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.harness import seconds

_MEMCPY_SIZE = 256 << 20
_CHUNK = 8 << 20
_buffers: list[NDArray[np.uint8]] = []


def memcpy() -> float:
    """Bytes per second of copying 256 MiB of memory that both sides have touched before, one thread."""
    if not _buffers:
        _buffers.extend(np.ones(_MEMCPY_SIZE, np.uint8) for _ in range(2))
    source, target = _buffers
    return _MEMCPY_SIZE / seconds(lambda: np.copyto(target, source))


def release_buffers() -> None:
    """Give the memory of `memcpy` back (before Spark takes its own)."""
    _buffers.clear()


def reading(data: NDArray[np.uint8]) -> float:
    """Bytes per second of looking at every byte of a mapped file once: xor over 8-byte words, one thread."""
    words = data[: len(data) // 8 * 8].view(np.int64)
    return words.nbytes / seconds(lambda: np.bitwise_xor.reduce(words))


def fresh_pages(path: Path, size: int) -> float:
    """Bytes per second of copying into a mapped, allocated file whose pages nobody has touched: what any writer pays
    on its way through a log file for the first time. The file is removed."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, size)
        with mmap.mmap(fd, size) as mapping:
            rate = size / seconds(lambda: _fill(mapping, bytes(_CHUNK)))
    finally:
        os.close(fd)
        path.unlink()
    return rate


def _fill(target: mmap.mmap, chunk: bytes) -> None:
    for begin in range(0, len(target), len(chunk)):
        size = min(len(chunk), len(target) - begin)
        target[begin : begin + size] = chunk[:size] if size < len(chunk) else chunk


class BareLog:
    """Appending with nothing around it: a store into a mapped, allocated file and fdatasync."""

    def __init__(self, path: Path, record_size: int, *, file_size: int) -> None:
        self._record = bytes(record_size)
        self._file_size = file_size
        self._position = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(self._fd, 0, file_size)
        os.fsync(self._fd)
        self._map = mmap.mmap(self._fd, file_size)

    def append_and_sync(self) -> None:
        begin, end = self._position, self._position + len(self._record)
        self._map[begin:end] = self._record
        os.fdatasync(self._fd)
        self._position = end if end + len(self._record) <= self._file_size else 0

    def close(self) -> None:
        self._map.close()
        os.close(self._fd)


def sequential_write(path: Path, size: int) -> float:
    """Bytes per second of writing an allocated file from end to end and one fdatasync. The file is removed."""
    chunk = memoryview(np.random.default_rng(1).bytes(_CHUNK))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, size)

        def write() -> None:
            for begin in range(0, size, _CHUNK):
                os.pwrite(fd, chunk[: size - begin], begin)
            os.fdatasync(fd)

        return size / seconds(write)
    finally:
        os.close(fd)
        path.unlink()


def copy_file(source: Path, target: Path, size: int) -> float:
    """Bytes per second of what `cp` does with the first `size` bytes of a file (read 1 MiB, write it), and fdatasync.

    The copy stays: whoever copies several files needs as much memory for them as the one it is compared with.
    """
    reader = os.open(source, os.O_RDONLY)
    writer = os.open(target, os.O_WRONLY | os.O_CREAT)
    try:

        def copy() -> None:
            left = size
            while left > 0:
                piece = os.read(reader, min(left, 1 << 20))
                left -= os.write(writer, piece)
            os.fdatasync(writer)

        return size / seconds(copy)
    finally:
        os.close(reader)
        os.close(writer)
