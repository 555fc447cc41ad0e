"""The queue files that are open: a bounded cache, and what of them is not durable yet."""

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from stratalog.errors import StoreClosed, StoreFailed, StoreUnavailable
from stratalog.store.disk import Disk, OpenFile, failed
from stratalog.store.locks import StoreLocks, free
from stratalog.store.os_errors import TOO_MANY_OPEN, open_files_max, refusal


class OpenFiles:
    """A bounded cache of open queue files; the least recently used is closed. Any thread may use it.

    Neither what is written nor the name of a file that is created survives a power cut before the next `sync`: what
    is missing or empty then was derived after the last checkpoint, and is derived again.
    """

    def __init__(
        self, disk: Disk, *, count_max: int = 128, on_failure: Callable[[StoreFailed], None] = lambda error: None,
        locks: StoreLocks | None = None,
    ) -> None:  # fmt: skip
        """`on_failure` is called when a flush fails, whoever caused it: a reader goes on, but nobody else may."""
        self._disk = disk
        self._on_failure = on_failure
        self._failure: StoreFailed | None = None
        self._count_max = min(count_max, max(1, open_files_max() // 4))
        self._locks = (locks or StoreLocks()).files
        self._is_closed = False
        self._held: list[Callable[[], None]] | None = None
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._dirty: set[Path] = set()
        self._dirty_directories: set[Path] = set()

    def _get(self, path: Path) -> OpenFile:
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            return file
        if self._is_closed:
            raise StoreClosed(f"{path} is closed; open the store again")
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
                if error.errno not in TOO_MANY_OPEN or not self._files:
                    raise
                self._count_max = max(1, len(self._files) // 2)  # others need some, too
                while len(self._files) >= self._count_max:
                    self._evict()

    def _evict(self) -> None:
        path, file = self._files.popitem(last=False)
        try:
            if path in self._dirty:
                with contextlib.suppress(StoreFailed):  # what needs it durable raises, see `_check`
                    self._flush(path, file)
        finally:
            file.close()

    def _flush(self, path: Path, file: OpenFile) -> None:
        self._check()
        try:
            file.sync()
        except OSError as error:
            self._failure = failed(f"flush of {path}", error)
            self._on_failure(self._failure)
            raise self._failure from error
        self._dirty.discard(path)

    def _check(self) -> None:
        """Nothing is written or vouched for after a failed flush."""
        if self._failure:
            raise self._failure.with_traceback(None)

    def create(self, path: Path, size: int) -> None:
        """Create a sparse file, with its directories. Raises `DiskFull`."""
        with free(*self._locks):
            self._dirty_directories.update(self._disk.create_directory(path.parent))
            while True:
                try:
                    self._disk.create_sparse(path, size)
                    break
                except OSError as error:
                    if error.errno not in TOO_MANY_OPEN or not self._files:
                        raise
                    self._evict()
            self._dirty.add(path)
            self._dirty_directories.add(path.parent)

    def read(self, path: Path, position: int, size: int) -> bytes:
        """Raises `StoreUnavailable`."""
        try:
            with free(*self._locks):
                return self._get(path).read(position, size)
        except FileNotFoundError:
            raise StoreUnavailable(
                f"{path} was deleted after the store was opened; if a broker does that with old files, open it again"
            ) from None
        except OSError as error:
            raise refusal(f"{path} cannot be read", error) from error

    def data_end(self, path: Path) -> int:
        """See `OpenFile.data_end`."""
        with free(*self._locks):
            return self._get(path).data_end()

    def write(self, path: Path, position: int, data: bytes | memoryview) -> None:
        with free(*self._locks):
            file = self._get(path)
            self._check()
            self._dirty.add(path)
            file.write(position, data)

    def hold(self) -> None:
        """Let files be removed and zeroed at `settle` only: an opening that is refused must not change them. Nothing
        is written until then."""
        self._held = []

    def settle(self) -> None:
        """Do what was held back; from now on nothing is."""
        held, self._held = self._held or [], None
        for change in held:
            change()

    def zero_from(self, path: Path, position: int) -> None:
        if self._held is not None:
            self._held.append(partial(self.zero_from, path, position))
            return
        with free(*self._locks):
            file = self._get(path)
            self._check()
            self._dirty.add(path)
            file.zero_from(position)

    def sync(self) -> None:
        """Make everything written and created so far durable. Raises `StoreFailed`: a failed flush is not tried again;
        `OSError` when a file could not be opened, which is tried again.

        Readers wait for one file's flush at most.
        """
        with free(*self._locks):
            self._check()
            dirty, directories = list(self._dirty), self._dirty_directories
            self._dirty_directories = set()
        try:
            for path in dirty:
                with free(*self._locks):
                    if path in self._dirty:
                        self._flush(path, self._get(path))
            for directory in sorted(directories):
                self._sync_directory(directory)
        except BaseException:
            with free(*self._locks):
                self._dirty_directories |= directories
            raise

    def _sync_directory(self, directory: Path) -> None:
        try:
            self._disk.sync_directory(directory)
        except OSError as error:
            if error.errno in TOO_MANY_OPEN:  # it was not tried
                raise
            raise failed(f"flush of {directory}", error) from error

    def remove(self, path: Path) -> None:
        if self._held is not None:
            self._held.append(partial(self.remove, path))
            return
        with free(*self._locks):
            self._dirty.discard(path)
            file = self._files.pop(path, None)
            if file is not None:
                file.close()
        self._disk.remove(path)

    def close(self) -> None:
        with free(*self._locks):
            self.close_unlocked()

    def close_unlocked(self) -> None:
        """Close without the lock, which a thread may hold that a forked child does not have."""
        self._is_closed = True
        while self._files:
            self._files.popitem()[1].close()
