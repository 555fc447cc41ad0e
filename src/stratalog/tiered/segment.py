"""Where segments lie: the seam to the storage below the tier, and its POSIX form.

A backend knows paths and bytes, nothing of messages. Paths are relative, with `/`, and name the same thing on every
backend: `{hash}_{cluster}/{broker}/{topic}/{queueId}/COMMIT_LOG/{name}`.
"""

import errno
import os
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from stratalog.errors import ConfigurationError, CorruptData, DiskFull, IllegalMessage
from stratalog.store.arguments import absolute_path
from stratalog.store.disk import FILE_MODE, Disk, check_allocated
from stratalog.store.forks import watch

DEPTH_MAX = 8
"""Directories below each other that a listing walks into; a segment lies under five."""
OPEN_FILES_MAX = 256
"""Descriptors a `PosixBackend` keeps open; opening one again costs some 10 µs."""

_NAME = re.compile(r"[%|A-Za-z0-9_-][%|A-Za-z0-9_.-]{0,254}\Z")
_TEMPORARY = ".tmp-"
"""Names that begin with a dot are the backend's own; no path may ask for one."""

Data = bytes | bytearray | memoryview
Paths = list[str]


def is_name(part: str) -> bool:
    """Whether a tier can have a directory or file of that name."""
    return _NAME.match(part) is not None


def check_path(path: str) -> str:
    """The path, if it is one below the root: no `..`, no empty part, no character outside RocketMQ's names and `.`.

    Raises `IllegalMessage`, before anything is touched. Topic and broker names reach the disk only through here.
    """
    for part in path.split("/"):
        if not is_name(part):
            raise IllegalMessage(
                f"{path[:300]!r} cannot be a path in a tier: {part[:80]!r} must be 1 to 255 characters "
                "out of letters, digits and % | _ - . and not begin with a dot"
            )
    return path


class SegmentBackend(Protocol):
    """What the tier asks of a storage. All methods may be called from several threads.

    - Writes go to absolute positions: writing the same bytes again changes nothing.
    - What was written is durable after `sync` of its path (or at once, as a backend likes); the name, too.
    - `put_if_absent` is atomic and durable: a reader sees the whole content or nothing, and one caller of many wins.
    - `reads` and `bytes_read` count ranged reads; questions for a size and listings are not counted.
    """

    reads: int
    bytes_read: int

    def size(self, path: str) -> int | None:
        """Bytes in the file, None when it does not exist."""

    def read(self, path: str, position: int, size: int) -> bytes:
        """Exactly these bytes. Raises `CorruptData` when the file is missing or too short."""

    def write(self, path: str, position: int, data: Data) -> None:
        """Put bytes at an absolute position; the file and its directories come into being."""

    def sync(self, paths: Sequence[str]) -> None:
        """Return when everything written to these paths is durable."""

    def put_if_absent(self, path: str, data: Data) -> bool:
        """Create a file with this content; False when the name is taken (maybe by our own, lost, answer)."""

    def replace(self, path: str, data: Data) -> None:
        """Create a file or replace its whole content, atomically and durably."""

    def list(self, prefix: str) -> Paths:
        """Sorted paths of all files whose path begins with this text."""

    def directories(self, prefix: str) -> Paths:
        """Names of the directories directly below a directory (`""` = the root); none when it does not exist."""

    def delete(self, path: str) -> None:
        """Remove a file; one that is not there is fine."""


class PosixBackend:
    """A tier in a directory.

    Invariants: nothing outside `root` is touched (names are checked, symbolic links are not followed); a new file's
    directories are synced before `sync` returns; a descriptor is closed only when no thread uses it.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = absolute_path("the tier's path", root)
        self.reads = 0
        self.bytes_read = 0
        self._lock = threading.Lock()
        self._open: OrderedDict[str, _Descriptor] = OrderedDict()
        self._new_names: set[str] = set()
        self._durable: set[str] = set()
        watch(self, self.root)

    def abandon(self) -> Iterable[object]:
        """In a forked child, see `stratalog.store.forks`."""
        while self._open:
            self._open.popitem()[1].abandon()
        return ()

    def size(self, path: str) -> int | None:
        try:
            return os.stat(self._locate(path), follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, path: str, position: int, size: int) -> bytes:
        assert position >= 0, position
        assert size >= 0, size
        try:
            with self._descriptor(path, writable=False) as fd:
                check_range(path, os.fstat(fd), position, size)
                data = os.pread(fd, size, position)
                while len(data) < size and (more := os.pread(fd, size - len(data), position + len(data))):
                    data += more
        except FileNotFoundError:
            raise CorruptData("the file is missing; restore it, or rebuild the tier's state", path=path) from None
        with self._lock:
            self.reads += 1
            self.bytes_read += len(data)
        if len(data) < size:  # cut since we looked
            raise _too_short(path, position, size, len(data))
        return data

    def write(self, path: str, position: int, data: Data) -> None:
        view = memoryview(data)
        with _room(path, self.root), self._descriptor(path, writable=True) as fd:
            if position == 0:  # an attempt that was killed may have created the file, and not made its name durable
                with self._lock:
                    self._new_names.add(path)
            while view:
                written = os.pwrite(fd, view, position)
                position += written
                view = view[written:]

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            with _room(path, self.root), self._descriptor(path, writable=True) as fd:
                os.fdatasync(fd)
        with self._lock:
            new = [path for path in paths if path in self._new_names]
        self._sync_directories(new)
        with self._lock:
            self._new_names.difference_update(new)

    def put_if_absent(self, path: str, data: Data) -> bool:
        target = self._locate(path)
        is_new = not os.path.lexists(target)
        if is_new:
            with _room(path, self.root):
                temporary = self._write_temporary(target, data)
            try:
                os.link(temporary, target, follow_symlinks=False)
            except FileExistsError:
                is_new = False
            finally:
                os.unlink(temporary)
        self._sync_directories([path])  # whoever has the name may have been killed before this
        return is_new

    def replace(self, path: str, data: Data) -> None:
        target = self._locate(path)
        with _room(path, self.root):
            os.rename(self._write_temporary(target, data), target)
        self._forget(path)
        self._sync_directories([path])

    def list(self, prefix: str) -> Paths:
        folder, _, start = prefix.rpartition("/")
        base = self._locate(folder) if folder else str(self.root)
        return sorted(self._walk(base, f"{folder}/" if folder else "", start))

    def delete(self, path: str) -> None:
        try:
            os.unlink(self._locate(path))
        except FileNotFoundError:
            return
        self._forget(path)
        self._sync_directories([path])

    def directories(self, prefix: str) -> Paths:
        base = self._locate(prefix) if prefix else str(self.root)
        try:
            with os.scandir(base) as entries:
                return sorted(
                    entry.name for entry in entries if _NAME.match(entry.name) and entry.is_dir(follow_symlinks=False)
                )
        except FileNotFoundError:
            return []

    def close(self) -> None:
        """Close the descriptors. What was written and not synced is as safe as the kernel makes it."""
        with self._lock:
            held = list(self._open.values())
            self._open.clear()
        for descriptor in held:
            descriptor.retire()

    def _locate(self, path: str) -> str:
        return os.path.join(self.root, check_path(path))

    def _walk(self, folder: str, prefix: str, start: str) -> Iterator[str]:
        """Files below a directory whose first name begins with `start`; what no path can name is passed over."""
        left = [(folder, prefix, start, 0)]
        while left:
            folder, prefix, start, depth = left.pop()
            try:
                with os.scandir(folder) as scan:
                    entries = [entry for entry in scan if entry.name.startswith(start) and _NAME.match(entry.name)]
            except (FileNotFoundError, NotADirectoryError):
                continue
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    yield prefix + entry.name
                elif depth < DEPTH_MAX and entry.is_dir(follow_symlinks=False):
                    left.append((entry.path, f"{prefix}{entry.name}/", "", depth + 1))

    def _descriptor(self, path: str, *, writable: bool) -> "_Descriptor":
        """An open file, held once more: use it in a `with`, which yields the descriptor's number."""
        with self._lock:
            found = self._open.get(path)
            if found is not None and (found.writable or not writable):
                self._open.move_to_end(path)
                return found.hold()
        fd, created = self._open_file(self._locate(path), writable=writable)
        mine = _Descriptor(fd, writable=writable)
        retired = []
        with self._lock:
            if created:
                self._new_names.add(path)
            if path in self._open:
                retired.append(self._open.pop(path))
            self._open[path] = mine.hold()
            if len(self._open) > OPEN_FILES_MAX:
                retired.append(self._open.popitem(last=False)[1])
        for descriptor in retired:
            descriptor.retire()
        return mine

    def _open_file(self, target: str, *, writable: bool) -> tuple[int, bool]:
        self._refuse_links(target)
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        if not writable:
            return os.open(target, os.O_RDONLY | flags), False
        try:
            return os.open(target, os.O_RDWR | flags), False
        except FileNotFoundError:
            Disk().create_directory(Path(target).parent)
            return os.open(target, os.O_RDWR | os.O_CREAT | flags, FILE_MODE), True

    def _refuse_links(self, target: str) -> None:
        """A link in a tier could lead anywhere: the real place of every file must lie below the real root."""
        root = os.path.realpath(self.root)
        if os.path.commonpath([root, os.path.realpath(target)]) != root:
            raise ConfigurationError(f"{target} is a link that leads out of the tier {self.root}; remove the link")

    def _write_temporary(self, target: str, data: Data) -> str:
        folder = os.path.dirname(target)
        Disk().create_directory(Path(folder))
        self._refuse_links(folder)
        temporary = os.path.join(folder, f"{_TEMPORARY}{uuid.uuid4().hex}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        except OSError:
            os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        return temporary

    def _forget(self, path: str) -> None:
        with self._lock:
            descriptor = self._open.pop(path, None)
        if descriptor is not None:
            descriptor.retire()

    def _sync_directories(self, paths: Sequence[str]) -> None:
        """Make names durable: the file's in its directory, and, once, that of each directory above."""
        folders = {os.path.dirname(path) for path in paths}
        above = {folder for path in folders for folder in _with_ancestors(path)} - self._durable
        for folder in sorted(folders | {os.path.dirname(folder) for folder in above if folder}, key=len, reverse=True):
            fd = os.open(os.path.join(self.root, folder), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._durable |= above


class _Descriptor:
    """An open file that several threads may hold; closed when it was retired and the last one let go of it."""

    __slots__ = ("_fd", "_holders", "_lock", "writable")

    def __init__(self, fd: int, *, writable: bool) -> None:
        self._fd = fd
        self.writable = writable
        self._holders = 1
        self._lock = threading.Lock()

    def hold(self) -> "_Descriptor":
        with self._lock:
            self._holders += 1
        return self

    def retire(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
        self._close()

    def abandon(self) -> None:
        """Close it in a forked child, where nobody holds it."""
        with suppress(OSError):
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = _close  # of a backend that nobody closed

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        self.retire()


def check_range(path: str, status: os.stat_result, position: int, size: int) -> None:
    """Raise `CorruptData` before memory is taken for bytes that a file does not have, or that are a hole."""
    there = max(0, status.st_size - position)
    if size > there:
        raise _too_short(path, position, size, there)
    check_allocated(path, status, size)


def _too_short(path: str, position: int, size: int, there: int) -> CorruptData:
    return CorruptData(
        f"{size} bytes were asked for, the file ends after {there}; restore it from a copy",
        path=path,
        position=position,
    )


def _with_ancestors(folder: str) -> Iterator[str]:
    while folder:
        yield folder
        folder = os.path.dirname(folder)


@contextmanager
def _room(path: str, root: Path) -> Iterator[None]:
    """Turn "no space" into our error."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"{path}: the tier {root} has no room left; free space there and offload again (what was committed is safe)"
        ) from error


def open_backend(url: str | os.PathLike[str]) -> PosixBackend:
    """The backend that a URL names: a path, or `file://` and a path. Raises `ConfigurationError`."""
    text = os.fspath(url)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return PosixBackend(text)
    if scheme == "file":
        return PosixBackend("/" + rest.lstrip("/"))
    raise ConfigurationError(f"{text}: a tier lies under a path or file://…; {scheme}:// is not supported")
