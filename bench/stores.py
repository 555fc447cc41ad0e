"""Stores as the benchmark needs them: no thread of their own works beside what is measured."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import stratalog
from stratalog.store.disk import Disk, MappedFile
from stratalog.store.message_store import MessageStore

_NEVER_MS = 24 * 3600 * 1000
QUIET: dict[str, Any] = {"flush_interval_commit_log": _NEVER_MS, "flush_interval_consume_queue": _NEVER_MS}
"""Background flush and dispatch wait: a figure is one path's, and a backlog stays one until it is measured."""


class _UnsyncedFile(MappedFile):
    __slots__ = ()

    def sync(self) -> None:
        pass


class UnsyncedDisk(Disk):
    """Never waits for the device, for stores whose puts are measured without flush and which are deleted right after.

    With `touched`, every page of a new file is stored to before it is used. That takes the kernel's work for a fresh
    page (1 µs and more for 4 KB) out of the figure, so that figures of different days and machines compare.
    """

    def __init__(self, *, touched: bool) -> None:
        self._touched = touched

    def map(self, path: Path) -> MappedFile:
        fd = os.open(path, os.O_RDWR)
        file = _UnsyncedFile(path, fd, mmap.mmap(fd, 0))
        if self._touched:
            file.view[:: mmap.PAGESIZE] = 0
        return file


@contextmanager
def open_quiet(path: Path, **given: Any) -> Iterator[MessageStore]:
    """A store without background work."""
    with stratalog.open(path, **(QUIET | given)) as store:
        yield store
