"""The seam to the disk: everything durable in a store goes through a `Disk`.

`Disk` writes; `PrivateDisk` shows the same files to the same code but keeps every change in memory (copy on write),
which is how a store is opened read-only without touching a byte, recovery included. Tests derive disks that fail.

A `Disk` changes files of the process only that made it: in a forked child, where a signal handler may have forked in
the middle of a call that goes on, every change raises `StoreClosed`, and mappings are private copies (`_Process`).
"""

import contextlib
import ctypes
import errno
import fcntl
import io
import mmap
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from stratalog.errors import CorruptData, DiskFull, NotAStore, StoreClosed, StoreFailed, StoreLocked
from stratalog.layout.names import ABORT, OWN_MARK, is_topic, queue_id_of
from stratalog.store.forks import unwatch, watch
from stratalog.store.os_errors import FULL, is_of_system, next_step

ClockNs = Callable[[], int]
"""Nanoseconds since the epoch; `time.time_ns` in production."""

Stamp = tuple[int, int, int]
"""Inode, size and change time (ns): what tells that a file or directory is still as it was."""

FILE_MODE = 0o644
UNFINISHED = ".tmp"
"""Ends the name of a file that does not count yet."""
SMALL_FILE_SIZE_MAX = 256 * 1024 * 1024
"""What `Disk.read` takes into memory at most."""
_SPARSE_SIZE_MIN, _COMPRESSION_MAX, _BLOCK_SIZE = 1 << 20, 64, 512
_ZERO_CHUNK_SIZE = 1 << 16
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MADV_POPULATE_READ = 22
"""Since Linux 5.14; before that it is refused, and nothing is lost but the time it saves."""
_TMPFS_MAGIC = 0x01021994
_UNREADABLE = frozenset({errno.EFAULT, errno.EIO})
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p
_libc.fstatfs.argtypes = ctypes.c_int, ctypes.POINTER(ctypes.c_long)
_libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_held: set[str] = set()
"""Lock files on which this process holds the lock: tells whom to name when it cannot be taken."""
DIRECTORY_MODE = 0o755


class _Flock(ctypes.Structure):
    """Linux's `struct flock`."""

    _fields_ = (
        ("type", ctypes.c_short),
        ("whence", ctypes.c_short),
        ("start", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("pid", ctypes.c_int),
    )


class _Process:
    """A handle to `os` and `fcntl` that every change of a file goes through. A forked child gets one of its own; that
    of its parent raises `StoreClosed` there at the next use, wherever the child goes on. No signal handler runs between
    the use and the system call, whose arguments call nothing."""

    os: Any = os
    fcntl: Any = fcntl

    def __init__(self) -> None:
        self.mapped: weakref.WeakSet[MappedFile] = weakref.WeakSet()
        """The files that are mapped into memory that processes share."""
        self.private: weakref.WeakSet[MappedFile] = weakref.WeakSet()
        """Those that are mapped into the process's own memory."""

    def create(self, path: Path, mode: str) -> io.FileIO:
        """As `opened`: create a file, or open it to write."""
        opener = partial(self.os.open, mode=FILE_MODE)
        return io.FileIO(str(path), mode, opener=self.os and opener)  # a child forked since the line before raises

    def abandon(self) -> Iterable[object]:
        global _process
        self._held = [file.abandon() for file in list(self.mapped)]
        self._held += [memoryview(file.map) for file in list(self.private) if not file.map.closed]
        _process = _Process()
        watch(_process, "the store")
        return ()


_process = _Process()
watch(_process, "the store")


class MappedFile:
    """A file of fixed size, mapped as a whole.

    `map` takes slice assignments, `address` is what kernels get; both live until `close`. `sync` makes the mapping's
    stores durable: fdatasync on the descriptor writes the same dirty pages as msync, but releases the interpreter lock.
    A file that is full and durable is only read: `release` gives its descriptor back, and a later `sync` opens the
    file again.
    """

    __slots__ = (
        "__weakref__", "_data_end", "_file", "_process", "_released", "_view", "address", "map", "path", "size"
    )  # fmt: skip

    def __init__(
        self, path: Path, file: "OpenFile | None", mapping: mmap.mmap, process: _Process, *, data_end: int | None = None
    ) -> None:  # fmt: skip
        self.path = path
        self._file = file
        self._process = process
        self._released = False
        self._data_end = len(mapping) if data_end is None else data_end
        self.map = mapping
        self.size = len(mapping)
        self._view = np.frombuffer(mapping, np.uint8)
        self.address = self._view.ctypes.data

    @property
    def view(self) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
        """The bytes as an array that borrows the mapping: they stay mapped as long as somebody has it. Raises
        `StoreClosed` once the file is closed."""
        try:
            return self._view
        except AttributeError:
            raise StoreClosed(f"{self.path} is closed; open the store again") from None

    def write(self, position: int, data: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> None:
        """Write bytes as a file is written, not through the mapping, which shows them at once: in bulk this is several
        times as fast, since a store into a mapping costs a fault for each page."""
        if file := self._file:
            file.write(position, data.data)
        else:
            self._view[position : position + data.size] = data

    def populate(self, begin: int, end: int) -> None:
        """Map the pages of [begin, end) all at once: they are about to be read, and a fault for each few of them takes
        as long as a CRC over them. Raises `OSError` for a page that the disk does not give, where the kernel can tell
        (Linux 5.14): a load from it would end the process."""
        begin -= begin % mmap.PAGESIZE
        if self._can_populate(begin, end):
            return
        while end - begin > mmap.PAGESIZE:
            middle = begin + -(-(end - begin) // (2 * mmap.PAGESIZE)) * mmap.PAGESIZE
            if self._can_populate(begin, middle):
                begin = middle
            else:
                end = middle
        raise OSError(errno.EIO, f"the bytes at {begin:,} cannot be read ({os.strerror(errno.EIO)})", str(self.path))

    def _can_populate(self, begin: int, end: int) -> bool:
        failed = begin < end and _libc.madvise(self.address + begin, end - begin, _MADV_POPULATE_READ)
        return not failed or ctypes.get_errno() not in _UNREADABLE

    def sync(self) -> None:
        if self._released:
            self._file = OpenFile(self.path, self._process.create(self.path, "r+"), self._process)
            self._released = False
        if file := self._file:
            file.sync()

    def release(self) -> None:
        """Give the descriptor back and keep the mapping: for a file that takes no more stores."""
        if file := self._file:
            self._data_end = data_end(file.fd, self.size)
            self._released = True
        self._close()

    @property
    def data_end(self) -> int:
        """Position after which nothing was ever written: a hole, or blocks that are reserved only. Zeros there cost no
        look, and no page cache."""
        file = self._file
        return data_end(file.fd, self.size) if file else self._data_end

    def abandon(self) -> memoryview:
        """In a forked child: the memory is the child's own from now on, for a call that goes on, as long as what is
        returned lives."""
        held = memoryview(self.map) if not self.map.closed else memoryview(b"")
        if held:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            _libc.mmap(self.address, self.size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        self.close()
        return held

    def close(self) -> None:
        """Unmap, once. Memory that something else still borrows is freed with that."""
        if hasattr(self, "_view"):
            del self._view
        with contextlib.suppress(BufferError):
            self.map.close()
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file:
            file.close()


class OpenFile:
    """An open file for positional reads and writes; closed with its last reference, if not before."""

    __slots__ = ("_file", "fd", "path", "process")

    def __init__(self, path: Path, file: io.FileIO | None, process: _Process) -> None:
        self.path = path
        self._file = file
        self.fd = file.fileno() if file else -1
        self.process = process

    def read(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the file's end."""
        found: bytes = self.process.os.pread(self.fd, size, position)
        return found

    def write(self, position: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        try:
            while view:
                written = self.process.os.pwrite(self.fd, view, position)
                view = view[written:]
                position += written
        except OSError as error:
            _name(error, self.path)
            raise

    def data_end(self) -> int:
        """Position after which nothing was ever written, where the file system can tell."""
        return data_end(self.fd, self.process.os.fstat(self.fd).st_size)

    def zero_from(self, position: int) -> None:
        """Zero what was written after `position`. The file keeps its length throughout."""
        end = self.data_end()
        while position < end:
            size = min(_ZERO_CHUNK_SIZE, end - position)
            if any(self.read(position, size)):
                self.write(position, bytes(size))
            position += size

    def sync(self) -> None:
        try:
            self.process.os.fdatasync(self.fd)
        except OSError as error:
            _name(error, self.path)
            raise

    def close(self) -> None:
        self.fd = -1
        if self._file:
            self._file.close()


def opened(path: Path, mode: str) -> io.FileIO:
    """Open a file. What is returned is closed with its last reference: whatever a signal handler raises, and wherever,
    nothing stays open. A descriptor that `os.open` returns is lost then."""
    return io.FileIO(path, mode, opener=os.open)


class _Descriptor:
    """The same for what `io.FileIO` does not take: directories, and other flags. No signal handler runs between the
    opening and the store into the list, or between the closing and the removal from it."""

    fds: list[int]

    def __new__(cls, *_: object) -> Self:
        self = super().__new__(cls)
        self.fds = []  # before `__init__`, which a signal handler may keep from running
        return self

    def __init__(self, path: Path, flags: int) -> None:
        self.fds += map(os.open, (path,), (flags,))

    def close(self) -> None:
        self.fds[:] = filter(None, map(os.close, self.fds))

    __del__ = close


def _name(error: OSError, path: Path) -> None:
    """Let the error of a call with a descriptor name the file."""
    if is_of_system(error):
        error.filename = error.filename or str(path)


class Disk:
    """A directory tree that is read and written for real. Every method may raise `OSError`."""

    read_only = False
    is_draft = False
    """The store on it is a tool's, which looks at its damage itself: no warning names a directory that will be gone."""
    _process: _Process

    def __new__(cls, *args: Any, **named: Any) -> Self:
        self = super().__new__(cls)
        self._process = _process
        return self

    def forget(self) -> None:
        """Drop the changes that are kept in memory only: the files are seen as they are now."""

    def make_directory(self, path: Path) -> None:
        """Create a directory with its parents, durably."""
        for parent in self.create_directory(path):
            self.sync_directory(parent)

    def create_directory(self, path: Path) -> list[Path]:
        """Create a directory with its parents; returns the directories that have to be synced to keep it."""
        if path.is_dir():
            return []
        changed = self.create_directory(path.parent)
        with contextlib.suppress(FileExistsError):
            self._process.os.mkdir(path, DIRECTORY_MODE)
        return [*changed, path.parent]

    def allocate(self, path: Path, size: int) -> None:
        """Create a file whose blocks are all reserved, so that a store into its mapping cannot meet a full disk.

        Raises `DiskFull`; nothing is left behind then. The file has its full size from the first moment it is seen.
        """
        self._create(path, size, lambda fd: self._process.os.posix_fallocate(fd, 0, size), durably=True)

    def check_room(self, path: Path, size: int, count: int) -> None:
        """Raise `DiskFull` unless there is room for so many files of that size now, the first of them `path`."""
        temporary = _unfinished(path)
        with self._told_when_full(path, size, temporary, count):
            with self._process.create(temporary, "w+") as file:
                self._process.os.posix_fallocate(file.fileno(), 0, count * size)
            self._process.os.unlink(temporary)

    def create_sparse(self, path: Path, size: int) -> None:
        """Create a file of that length without blocks, for derived data that is written with `write`.

        Not durable before the file and its directory are synced: after a power cut it may be missing, or empty.
        """
        self._create(path, size, lambda fd: self._process.os.ftruncate(fd, size), durably=False)

    def _create(self, path: Path, size: int, fill: Callable[[int], None], *, durably: bool) -> None:
        temporary = _unfinished(path)
        with self._told_when_full(path, size, temporary):
            with self._process.create(temporary, "w+") as file:
                fd = file.fileno()
                fill(fd)
                if durably:
                    self._process.os.fsync(fd)
            self._process.os.rename(temporary, path)
        if durably:
            self.sync_directory(path.parent)

    def clear_unfinished(self, directory: Path) -> None:
        """Remove what a process left that was killed while it created a file of that directory."""
        for name in self.files(directory.parent):
            if name.startswith(f"{directory.name}.") and name.endswith(UNFINISHED):
                self.remove(directory.parent / name)

    def map(self, path: Path) -> MappedFile:
        file = OpenFile(path, opened(path, "r+"), self._process)
        mapped = MappedFile(path, file, _map(file.fd, mmap.MAP_SHARED), self._process)
        self._process.mapped.add(mapped)
        return mapped

    def open(self, path: Path) -> OpenFile:
        return OpenFile(path, opened(path, "r+"), self._process)

    def files(self, directory: Path) -> dict[str, int]:
        """Names and sizes of the regular files in a directory, sorted; empty when there is none."""
        try:
            with os.scandir(directory) as entries:
                return dict(sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file()))
        except FileNotFoundError:
            return {}

    def directories(self, directory: Path, *, or_links: bool = False) -> list[str]:
        """Names of the directories in one, sorted; empty when there is none. `or_links`: of links to nowhere, too."""
        try:
            with os.scandir(directory) as entries:
                return sorted(one.name for one in entries if one.is_dir() or (or_links and _leads_nowhere(one)))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def blocks_size(self, path: Path) -> int:
        """Bytes that a file takes on disk."""
        return _BLOCK_SIZE * os.stat(path).st_blocks

    def stamp(self, path: str) -> Stamp:
        """What changes with a file or directory; zeros when there is none."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return 0, 0, 0
        return status.st_ino, status.st_size, status.st_ctime_ns

    def mark(self, path: Path, data: bytes) -> Stamp:
        """Write the begin of a file in place, durably; its times are now, by the file system's own clock."""
        file = _Descriptor(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._process.os.pwrite(file.fds[0], data, 0)
            self._process.os.fsync(file.fds[0])
        finally:
            file.close()
        return self.stamp(str(path))

    def read(
        self, path: Path, *, size_max: int = SMALL_FILE_SIZE_MAX, cut: bool = False, position: int = 0
    ) -> bytes | None:
        """A small file, None when it does not exist; `cut` takes the first `size_max` bytes of a larger one, or those
        from `position` on.

        Raises `CorruptData` for what is no regular file, for a larger one, and for one that is mostly a hole.
        """
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):  # a FIFO would be waited for
                raise CorruptData("this is no regular file; remove it", path=str(path))
            file = opened(path, "r")
        except FileNotFoundError:
            return None
        with file:
            fd = file.fileno()
            status = os.fstat(fd)
            if status.st_size > size_max and not cut:
                raise CorruptData(f"the file has {status.st_size:,} bytes; the limit is {size_max:,}", path=str(path))
            size = max(0, min(status.st_size - position, size_max))
            check_allocated(str(path), status, size)
            return os.pread(fd, size, position)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a small file atomically and durably: temporary file, fsync, rename, fsync of the directory."""
        temporary = path.with_name(path.name + UNFINISHED)
        with self._told_when_full(path, len(data), temporary):
            with self._process.create(temporary, "w") as file:
                OpenFile(temporary, file, self._process).write(0, data)
                self._process.os.fsync(file.fileno())
            self._process.os.rename(temporary, path)
        self.sync_directory(path.parent)

    @property
    def os(self) -> Any:
        """`os`, for changes without a method here. Raises `StoreClosed` in a child that was forked since."""
        return self._process.os

    @property
    def fcntl(self) -> Any:
        """The same for `fcntl`."""
        return self._process.fcntl

    def create(self, path: Path) -> OpenFile:
        """An empty file, to write to."""
        return OpenFile(path, self._process.create(path, "w"), self._process)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory with all below it, but not durably."""

        def refuse(error: OSError) -> None:
            raise error

        for _, directories, files, fd in os.fwalk(path, topdown=False, onerror=refuse):  # follows no link
            for name in files:
                self._process.os.unlink(name, dir_fd=fd)
            for name in directories:
                try:
                    self._process.os.rmdir(name, dir_fd=fd)
                except NotADirectoryError:  # a link to one
                    self._process.os.unlink(name, dir_fd=fd)
        self._process.os.rmdir(path)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._process.os.unlink(path)
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        directory = _Descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._process.os.fsync(directory.fds[0])
        except OSError as error:
            _name(error, path)
            raise
        finally:
            directory.close()

    def lock(self, path: Path) -> Callable[[], None]:
        """Take the store's lock as upstream does (byte 0 of the lock file); returns what releases it.

        Raises `StoreLocked` when another process, or another store object of this one, holds it.
        """
        return _Lock(path, self._process).release

    @contextlib.contextmanager
    def _told_when_full(self, path: Path, size: int, temporary: Path, count: int = 1) -> Iterator[None]:
        """Remove the unfinished file after an error or an interrupt, and say what a full disk means."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._process.os.unlink(temporary)
            if isinstance(error, OSError):
                _name(error, path)
                if error.errno in FULL:
                    what = f"{path}: no room for a file of {size:,} bytes"
                    if count > 1:
                        what = f"{path.parent}: no room for {count:,} files of {size:,} bytes, {count * size:,} in all"
                    raise DiskFull(f"{what}; free space on that file system") from error
            raise


class _Lock:
    """A held lock on a store, an open-file-description lock.

    It excludes Java's locks, which belong to a process. Unlike those it excludes other locks of this process, and does
    not end when this process closes another descriptor of the file, as whoever copies the directory does.
    """

    _file: io.FileIO | None = None

    def __init__(self, path: Path, process: _Process) -> None:
        self._place = os.path.realpath(path)
        self._process = process
        try:
            self._file = self._process.create(path, "x+")
        except FileExistsError:
            self._file = opened(path, "r+")  # that of a FIFO does not wait
        try:
            self._set(fcntl.F_WRLCK)
            fd = self._file.fileno()
            is_marked = os.pread(fd, len(OWN_MARK), 0) == OWN_MARK
            mark = OWN_MARK if is_marked else b"lock"
            self._process.os.pwrite(fd, mark, 0)
        except BaseException as error:
            self._file.close()
            if not isinstance(error, OSError) or error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            if self._place in _held:
                raise StoreLocked(
                    f"{path.parent} is already open for writing in this process: use that store object, or close it "
                    "(again, if its close was interrupted)"
                ) from None
            raise StoreLocked(
                f"{path} is locked: the store is open in another process; close it there. It can be read meanwhile"
            ) from None
        _held.add(self._place)
        watch(self, path.parent)

    def _set(self, kind: int) -> None:
        asked = bytes(_Flock(kind, os.SEEK_SET, 0, 1))
        self._process.fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, asked)

    def release(self) -> None:
        """Release it, once, though a child forked meanwhile may hold a descriptor of the same description."""
        unwatch(self)
        _held.discard(self._place)
        if self._file and not self._file.closed:
            try:
                self._set(fcntl.F_UNLCK)
            except OSError as error:
                if not is_of_system(error):
                    raise
            finally:  # releases it, too, unless such a child is there
                self._file.close()

    def abandon(self) -> Iterable[object]:
        """In a forked child: the lock is the parent's."""
        _held.discard(self._place)
        if self._file:
            self._file.close()
        return ()

    def __del__(self) -> None:
        """When taking it failed, or was interrupted before anybody had it."""
        with contextlib.suppress(StoreClosed):  # in a forked child
            if self._file and not self._file.closed:
                _held.discard(self._place)
                self._file.close()


class PrivateFile(OpenFile):
    """A file whose changes stay in this process.

    It is read with `pread` until the first change, which copies it: a mapping of a sparse file may not even be read
    when the disk is full (tmpfs ends the process then).
    """

    __slots__ = ("_changed",)

    def __init__(
        self, path: Path, file: io.FileIO | None, process: _Process, changed: dict[Path, MappedFile]
    ) -> None:  # fmt: skip
        super().__init__(path, file, process)
        self._changed = changed

    def _copy(self) -> MappedFile:
        copy = self._changed.get(self.path)
        if copy is None:
            size = self.process.os.fstat(self.fd).st_size
            copy = self._changed[self.path] = MappedFile(self.path, None, mmap.mmap(-1, size), self.process)
            end = data_end(self.fd, size)
            written = self.process.os.pread(self.fd, end, 0)
            copy.map[: len(written)] = written
        return copy

    def read(self, position: int, size: int) -> bytes:
        copy = self._changed.get(self.path)
        return copy.map[position : position + size] if copy else super().read(position, size)

    def data_end(self) -> int:
        copy = self._changed.get(self.path)
        return copy.size if copy else super().data_end()

    def write(self, position: int, data: bytes | memoryview) -> None:
        self._copy().map[position : position + len(data)] = bytes(data)

    def zero_from(self, position: int) -> None:
        copy = self._copy()
        copy.map[position:] = bytes(copy.size - position)

    def sync(self) -> None:
        pass


class PrivateDisk(Disk):
    """The files as they are, every change kept in memory: for opening a store read-only."""

    read_only = True

    def __init__(self) -> None:
        self._mapped: dict[Path, MappedFile] = {}
        self._removed: set[Path] = set()
        self._differs: set[Path] = set()
        """Directories in which files were created or removed."""

    def forget(self) -> None:
        self._mapped, self._removed, self._differs = {}, set(), set()

    def create_directory(self, path: Path) -> list[Path]:
        return []

    def clear_unfinished(self, directory: Path) -> None:
        pass

    def allocate(self, path: Path, size: int) -> None:
        self._removed.discard(path)
        self._differs.add(path.parent)
        self._mapped[path] = MappedFile(path, None, mmap.mmap(-1, size), self._process)

    create_sparse = allocate

    def map(self, path: Path, *, size_min: int = 0) -> MappedFile:
        """`size_min` maps a shorter file as if zeros followed it."""
        if path not in self._mapped:
            with opened(path, "r") as file:
                fd = file.fileno()
                mapping = _map(fd, mmap.MAP_PRIVATE | _MAP_NORESERVE, size_min=size_min)
                _cover_holes(fd, mapping)
                end = data_end(fd, len(mapping))
                self._mapped[path] = MappedFile(path, None, mapping, self._process, data_end=end)
                self._process.private.add(self._mapped[path])
        return self._mapped[path]

    def open(self, path: Path) -> OpenFile:
        file = None if path in self._mapped else opened(path, "r")
        return PrivateFile(path, file, self._process, self._mapped)

    def files(self, directory: Path) -> dict[str, int]:
        found = super().files(directory)
        if directory not in self._differs:
            return found
        found.update({path.name: file.size for path, file in self._mapped.items() if path.parent == directory})
        removed = {path.name for path in self._removed if path.parent == directory}
        return {name: size for name, size in sorted(found.items()) if name not in removed}

    def exists(self, path: Path) -> bool:
        return path not in self._removed and (path in self._mapped or path.exists())

    def replace(self, path: Path, data: bytes) -> None:
        pass

    def remove(self, path: Path) -> None:
        self._mapped.pop(path, None)
        self._removed.add(path)
        self._differs.add(path.parent)

    def sync_directory(self, path: Path) -> None:
        pass

    def lock(self, path: Path) -> Callable[[], None]:
        return lambda: None


def lock_owner(path: Path) -> str | None:
    """Process id of who holds the store's lock, None when nobody does. The kernel knows it of RocketMQ; a process of
    ours leaves it in the abort mark."""
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with opened(path, "r") as file:
            asked = bytes(_Flock(fcntl.F_WRLCK, os.SEEK_SET, 0, 1))
            found = _Flock.from_buffer_copy(fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, asked))
        if found.type != fcntl.F_UNLCK:
            mark = path.with_name(ABORT)
            if found.pid > 0 or not mark.exists():
                return str(found.pid) if found.pid > 0 else "?"
            return f"{mark.read_bytes()[:20].removeprefix(OWN_MARK).decode(errors='replace').strip()} (by {mark})"
    return None


def _map(fd: int, flags: int, *, size_min: int = 0) -> mmap.mmap:
    """The whole file, mapped over address space that `mmap` has reserved: given the descriptor, it would keep a
    duplicate of it open for as long as the mapping lives."""
    size = os.fstat(fd).st_size
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    space_flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    space = mmap.mmap(-1, max(size, size_min), flags=space_flags, prot=protection)
    address = np.frombuffer(space, np.uint8).ctypes.data
    if _libc.mmap(address, size, protection, flags | _MAP_FIXED, fd, 0) != address:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return space


def _cover_holes(fd: int, mapping: mmap.mmap) -> None:
    """Map memory over a file's holes if it is on a tmpfs that has no room for them. There a load from a hole takes a
    page of the disk, and ends the process when none is left."""
    status = (ctypes.c_long * 16)()  # f_type, f_bsize, f_blocks, f_bfree, ...
    size, blocks = os.fstat(fd).st_size, os.fstat(fd).st_blocks
    if _libc.fstatfs(fd, status) or status[0] != _TMPFS_MAGIC or status[3] * status[1] >= size - blocks * _BLOCK_SIZE:
        return
    address, end = np.frombuffer(mapping, np.uint8).ctypes.data, 0
    while end < size:
        begin = os.lseek(fd, end, os.SEEK_HOLE)
        try:
            end = os.lseek(fd, begin, os.SEEK_DATA)
        except OSError as error:
            if not is_of_system(error):
                raise
            end = size
        if begin < end:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
            at = address + begin
            if _libc.mmap(at, end - begin, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0) != at:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _unfinished(path: Path) -> Path:
    """Where a file is made: beside its directory, as RocketMQ refuses one that holds a file of another name."""
    return path.parent.with_name(f"{path.parent.name}.{path.name}{UNFINISHED}")


def check_allocated(path: str, status: os.stat_result, size: int) -> None:
    """Raise `CorruptData` when so many bytes of a file cannot be more than a hole: reading them would take memory that
    nobody paid for with disk. (A file system may compress: that counts as bytes up to a factor.)"""
    if size > _SPARSE_SIZE_MIN and size > _COMPRESSION_MAX * _BLOCK_SIZE * status.st_blocks:
        raise CorruptData(
            f"{size:,} bytes are wanted, but the file has only {_BLOCK_SIZE * status.st_blocks:,} on disk: it is "
            "sparse; restore it from a copy",
            path=path,
        )


def data_end(fd: int, size: int) -> int:
    """End of a file's last piece of data (`size` where the file system cannot tell)."""
    end = 0
    try:
        while end < size:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if not is_of_system(error):
            raise
        return end if error.errno == errno.ENXIO else size
    return size


def failed(what: str, error: OSError) -> StoreFailed:
    """The error after a write or flush that must not be tried again (the kernel reports a lost page only once). Raises
    what a signal handler raised."""
    if not is_of_system(error):
        raise error
    return StoreFailed(
        f"{what}: {error.strerror or error}; the store takes no more messages. What was acknowledged as durable is "
        f"safe: close the store, {next_step(error)}, and open it again"
    )


def _leads_nowhere(path: Path | os.DirEntry[str]) -> bool:
    """Whether a path is a symbolic link to what is not there."""
    return path.is_symlink() and not os.path.exists(path)


def check_link(path: Path) -> None:
    """Raise `NotAStore` for a symbolic link to what is not there."""
    if _leads_nowhere(path):
        raise NotAStore(
            f"{path} is a symbolic link to {path.readlink()}, which is not there: mount its file system, or put it "
            "back. Nothing was changed"
        )


def queue_directories(root: Path, tree: str, disk: Disk) -> Iterator[tuple[str, int, Path]]:
    """Topic, queue id and directory of every queue below one of a store's trees. `NotAStore` as by `check_link`."""
    for topic in filter(is_topic, disk.directories(root / tree, or_links=True)):
        check_link(root / tree / topic)
        for name in disk.directories(root / tree / topic, or_links=True):
            queue_id = queue_id_of(name)
            if queue_id is not None:
                check_link(root / tree / topic / name)
                yield topic, queue_id, root / tree / topic / name
