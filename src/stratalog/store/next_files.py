"""The log's next files, made before they are needed."""

import contextlib
import threading
from pathlib import Path

from stratalog.errors import DiskFull
from stratalog.layout.names import offset_name
from stratalog.store.disk import Disk, MappedFile

AHEAD_SIZE_MIN = 8 << 20
"""Smaller files are made when they are needed: that takes less than a thread."""


class NextFiles:
    """Allocates files behind the newest one: on a thread ahead of time, or several at once for a large append.

    All but `begin`'s thread run with the log's lock held. A file made ahead is full of zeros and of no use to anybody
    until the log rolls into it: a crash leaves it to recovery, which removes it, as RocketMQ's does; `drop` removes it
    when the log is closed. That it cannot be made (a full disk) is no error before it is needed.
    """

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        self._disk = disk
        self._directory = directory
        self._file_size = file_size
        self._ready: dict[int, MappedFile] = {}
        self._thread: threading.Thread | None = None

    def begin(self, start: int) -> None:
        """Make the file that starts at this log offset, on a thread, unless it is there."""
        if self._thread is None and start not in self._ready:
            self._thread = threading.Thread(target=self._try, args=(start,), name="stratalog-allocate", daemon=True)
            self._thread.start()

    def take(self, start: int) -> MappedFile:
        """The file that starts at this log offset, made now if it was not. Raises `DiskFull`, `OSError`."""
        self._join()
        return self._ready.pop(start, None) or self._make(start)

    def reserve(self, start: int, count: int) -> None:
        """Make so many files from this log offset on, or none: raises `DiskFull`, `OSError`."""
        self._join()
        made = []
        try:
            for offset in range(start, start + count * self._file_size, self._file_size):
                if offset not in self._ready:
                    self._ready[offset] = self._make(offset)
                    made.append(offset)
        except BaseException:
            for offset in made:
                self._remove(offset)
            raise

    def drop(self) -> None:
        """Remove what was made and not taken."""
        self._join()
        for start in list(self._ready):
            with contextlib.suppress(OSError):  # recovery does it as well
                self._remove(start)

    def _try(self, start: int) -> None:
        with contextlib.suppress(OSError, DiskFull):  # `take` tries again and tells
            self._ready[start] = self._make(start)

    def _make(self, start: int) -> MappedFile:
        path = self._directory / offset_name(start)
        self._disk.make_directory(self._directory)
        self._disk.allocate(path, self._file_size)
        return self._disk.map(path)

    def _remove(self, start: int) -> None:
        file = self._ready.pop(start)
        file.close()
        self._disk.remove(file.path)

    def _join(self) -> None:
        if self._thread:
            self._thread.join()
            self._thread = None
