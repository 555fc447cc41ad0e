"""The log's next files, made before they are needed."""

import contextlib
import logging
from pathlib import Path

from stratalog.errors import DiskFull
from stratalog.layout.names import offset_name
from stratalog.store.disk import Disk, MappedFile
from stratalog.store.os_errors import is_no_thread
from stratalog.store.worker import Worker

_logger = logging.getLogger("stratalog")
AHEAD_SIZE_MIN = 8 << 20
"""Smaller files are made when they are needed: that takes less than a thread."""


class NextFiles:
    """Allocates files after the newest one: on a thread ahead of time, or several at once for a large append.

    All but `begin`'s thread run with the log's lock held. A file made ahead is full of zeros and of no use to anybody
    until the log rolls into it: a crash leaves it to recovery, which removes it, as RocketMQ's does; `drop` removes it
    when the log is closed. That it cannot be made (a full disk) is no error before it is needed.

    `_made` knows each file from before it is created until the log has rolled into it (None: not whole). So a file that
    a signal handler's exception left half made is made anew, or removed.
    """

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        self._disk = disk
        self._directory = directory
        self._file_size = file_size
        self._made: dict[int, MappedFile | None] = {}
        self._worker: Worker | None = None

    def begin(self, start: int) -> None:
        """Make the file that starts at this log offset, on a thread, unless it is there."""
        if self._worker is None and not self._made.get(start):
            self._worker = Worker("stratalog-allocate", lambda: self._try(start), is_helper=True)
            try:
                self._worker.start()
            except RuntimeError as error:
                if not is_no_thread(error):
                    raise
                self._worker = None
                _logger.warning("%s: no thread can be started: the next file is made when needed", self._directory)

    def get(self, start: int) -> MappedFile:
        """The file that starts at this log offset, made now if it was not. Raises `DiskFull`, `OSError`."""
        self._end()
        return self._made.get(start) or self._make(start)

    def reserve(self, start: int, count: int, count_more: int) -> None:
        """Make so many files from this log offset on, or none: raises `DiskFull`, `OSError`. For so many more there is
        room then; but nobody keeps it from others."""
        self._end()
        made = []
        try:
            if count_more:
                self._disk.check_room(self._directory / offset_name(start), self._file_size, count + count_more)
            for offset in range(start, start + count * self._file_size, self._file_size):
                if not self._made.get(offset):
                    made.append(offset)
                    self._make(offset)
        except BaseException:
            for offset in reversed(made):
                self._remove(offset)
            raise

    def forget(self, start: int) -> None:
        """The log has rolled into that file."""
        self._made.pop(start, None)

    def drop(self, start: int) -> None:
        """Remove what begins at or after this log offset, newest first: a kill leaves no gap. Files before it belong to
        the log."""
        self._end()
        for offset in sorted(self._made, reverse=True):
            if offset < start:
                del self._made[offset]
            else:
                with contextlib.suppress(OSError):  # recovery does it as well
                    self._remove(offset)

    def close(self) -> None:
        """Close what was made and not taken."""
        self._end()
        while self._made:
            if file := self._made.popitem()[1]:
                file.close()

    def _try(self, start: int) -> None:
        with contextlib.suppress(OSError, DiskFull):  # `get` tries again and raises
            self._make(start)

    def _make(self, start: int) -> MappedFile:
        path = self._directory / offset_name(start)
        self._made[start] = None
        self._disk.make_directory(self._directory)
        self._disk.allocate(path, self._file_size)
        file = self._made[start] = self._disk.map(path)
        return file

    def _remove(self, start: int) -> None:
        if file := self._made.get(start):
            file.close()
        self._disk.remove(self._directory / offset_name(start))
        self._made.pop(start, None)

    def _end(self) -> None:
        if self._worker:
            self._worker.end()
            self._worker = None
