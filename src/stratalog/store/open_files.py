"""The queue files that are open: a bounded cache, and what of them is not durable yet."""

import errno
import threading
from collections import OrderedDict
from pathlib import Path

from stratalog.store.disk import Disk, OpenFile, failed


class OpenFiles:
    """A bounded cache of open queue files; the least recently used is closed. Any thread may use it.

    Neither what is written nor the name of a file that is created survives a power cut before the next `sync`: what
    is missing or empty then was derived after the last checkpoint, and is derived again.
    """

    def __init__(self, disk: Disk, *, count_max: int = 128) -> None:
        self._disk = disk
        self._count_max = count_max
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._dirty: set[Path] = set()
        self._dirty_directories: set[Path] = set()

    def _get(self, path: Path) -> OpenFile:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        while len(self._files) >= self._count_max:
            self._evict()
        file = self._files[path] = self._open(path)
        return file

    def _open(self, path: Path) -> OpenFile:
        """Open a file; where the process may open no more, go on with fewer at a time."""
        while True:
            try:
                return self._disk.open(path)
            except OSError as error:
                if error.errno != errno.EMFILE or not self._files:
                    raise
                self._evict()
                self._count_max = max(1, len(self._files))

    def _evict(self) -> None:
        path, file = self._files.popitem(last=False)
        try:
            if path in self._dirty:
                self._dirty.discard(path)
                _sync(file)
        finally:
            file.close()

    def create(self, path: Path, size: int) -> None:
        """Create a sparse file, with its directories. Raises `DiskFull`."""
        with self._lock:
            self._dirty_directories.update(self._disk.create_directory(path.parent))
            while True:
                try:
                    self._disk.create_sparse(path, size)
                    break
                except OSError as error:
                    if error.errno != errno.EMFILE or not self._files:
                        raise
                    self._evict()
            self._dirty.add(path)
            self._dirty_directories.add(path.parent)

    def read(self, path: Path, position: int, size: int) -> bytes:
        with self._lock:
            return self._get(path).read(position, size)

    def data_end(self, path: Path) -> int:
        """See `OpenFile.data_end`."""
        with self._lock:
            return self._get(path).data_end()

    def write(self, path: Path, position: int, data: bytes | memoryview) -> None:
        with self._lock:
            self._get(path).write(position, data)
            self._dirty.add(path)

    def zero_from(self, path: Path, position: int) -> None:
        with self._lock:
            self._get(path).zero_from(position)
            self._dirty.add(path)

    def sync(self) -> None:
        """Make everything written and created so far durable. Raises `StoreFailed`: a failed flush is not tried again.

        Readers wait for one file's flush at most.
        """
        with self._lock:
            dirty, directories = list(self._dirty), self._dirty_directories
            self._dirty_directories = set()
        for path in dirty:
            with self._lock:
                if path in self._dirty:
                    self._dirty.discard(path)
                    _sync(self._get(path))
        for directory in sorted(directories):
            try:
                self._disk.sync_directory(directory)
            except OSError as error:
                raise failed(f"flush of {directory}", error) from error

    def drop(self, path: Path) -> None:
        """Forget a file that is about to be removed."""
        with self._lock:
            self._dirty.discard(path)
            file = self._files.pop(path, None)
            if file is not None:
                file.close()

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()


def _sync(file: OpenFile) -> None:
    try:
        file.sync()
    except OSError as error:
        raise failed(f"flush of {file.path}", error) from error
