"""Faults for the store's disk seam, at the level of system calls.

`Syscalls` stands in for the `os` module inside `stratalog.store.disk`. It counts every call that changes something, can
fail the n-th one, can stop the "process" there (every later call fails as well, so that closing cannot tidy up), and
knows what a power cut would leave: contents as of each file's last sync, names as of each directory's last sync, and of
what came later any part: names one by one, pages one by one, a page torn between its sectors.
"""

import errno
import os
import random
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stratalog.store import disk

CHANGING = frozenset(
    {"posix_fallocate", "ftruncate", "pwrite", "fsync", "fdatasync", "rename", "open", "mkdir", "unlink"}
)
SYNCS = frozenset({"fsync", "fdatasync"})
PAGE = 4096
SECTOR = 512


class Stopped(BaseException):
    """The process ends here. Not an `Exception`: nothing may handle it."""


class Syscalls:
    """See the module. `calls` lists (name, path) of every changing call so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[tuple[str, str]] = []
        self.fail_at: Callable[[int, str, str], bool] = lambda number, name, path: False
        self.error = errno.EIO
        self.stop_at = -1
        self.stopped = False
        self.failures = 0
        self.watch: Callable[[], None] = lambda: None
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._seen: dict[int, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGING:
            return real

        def call(*given: Any, **named: Any) -> Any:
            path = _path_of(given[0])
            if name == "open" and not given[1] & os.O_CREAT:
                if self.stopped and given[1] & os.O_RDWR:
                    raise Stopped
                return real(*given, **named)
            self._before(name, path)
            existed = name == "open" and os.path.exists(given[0])
            result = real(*given, **named)
            if name == "open" and not existed:
                self._contents.pop(os.fstat(result).st_ino, None)
            if name in SYNCS:
                self._synced(given[0], Path(path))
            self.watch()
            return result

        return call

    def _before(self, name: str, path: str) -> None:
        number = len(self.calls)
        if self.stopped or number == self.stop_at:
            self.stopped = True
            raise Stopped
        self.calls.append((name, path))
        if self.fail_at(number, name, path):
            self.failures += 1
            raise OSError(self.error, os.strerror(self.error), path)

    # -- what a power cut leaves -----------------------------------------------------------------------------------

    def _synced(self, fd: int, path: Path) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self._names[path] = _entries(path)
        else:
            self._contents[status.st_ino] = path.read_bytes()

    def all_synced(self) -> None:
        """Take the tree as it is for durable: what the disk held when the process began."""
        for directory in (self.root, *(path for path in self.root.rglob("*") if path.is_dir())):
            self._names[directory] = _entries(directory)
        self._contents = self._current()

    def _current(self) -> dict[int, bytes]:
        """Contents by inode; a content that is still the same is the same object, so that many cuts cost little."""
        seen, self._seen = self._seen, {}
        for path in self.root.rglob("*"):
            if path.is_file():
                inode, data = path.stat().st_ino, path.read_bytes()
                self._seen[inode] = seen[inode] if seen.get(inode) == data else data
        return self._seen

    def cut(self) -> "Cut":
        """The state at this moment: what is durable, and what is only in memory."""
        names = {path: dict(entries) for path, entries in self._names.items()}
        directories = [self.root, *(path for path in self.root.rglob("*") if path.is_dir())]
        later = {path: _entries(path) for path in directories}
        return Cut(self.root, names, later, dict(self._contents), self._current())


def _entries(directory: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(directory)}


@dataclass(frozen=True)
class Cut:
    """A moment of a power cut; `image` makes one of the directories that may be found afterwards.

    `names` and `contents` are durable, `later_names` and `later_contents` those in memory.
    """

    root: Path
    names: dict[Path, dict[str, int]]
    later_names: dict[Path, dict[str, int]]
    contents: dict[int, bytes]
    later_contents: dict[int, bytes]

    def image(self, target: Path, chance: random.Random) -> None:
        """Synced names and contents; of what was not synced each name and each page is there, or not, or torn."""
        kept = chance.choice((0.0, 0.5, 1.0))
        self._copy(self.root, target, lambda: chance.random() < kept)

    def image_but(self, target: Path, file: Path, lost: slice) -> None:
        """All that was written is there but this part of a file, if it was not synced."""
        self._copy(self.root, target, lambda: True)
        inode = self.later_names.get(file.parent, {}).get(file.name)
        copy = target / file.relative_to(self.root)
        if inode is not None and copy.exists():
            content = bytearray(copy.read_bytes())
            size = len(content[lost])
            content[lost] = self.contents.get(inode, b"")[lost].ljust(size, b"\0")
            copy.write_bytes(content)

    def _copy(self, source: Path, target: Path, keep: Callable[[], bool]) -> None:
        target.mkdir(parents=True, exist_ok=True)
        old_names, new_names = self.names.get(source, {}), self.later_names.get(source, {})
        for name in sorted(old_names.keys() | new_names.keys()):
            old, new = old_names.get(name), new_names.get(name)
            inode = old if old == new or not keep() else new
            if inode is None or name == "lock":
                continue
            if source / name in self.later_names or source / name in self.names:
                self._copy(source / name, target / name, keep)
            else:
                content = self.contents.get(inode, b"")
                (target / name).write_bytes(mixed(content, self.later_contents.get(inode, content), keep))


def mixed(old: bytes, new: bytes, keep: Callable[[], bool]) -> bytes:
    """The old bytes with those new pages that made it to the disk in time. Of a page that did not, some sectors may
    have: a page is not written in one go. A length that was not synced is the old one or the new one."""
    if len(old) != len(new):
        old = old[: len(new)].ljust(len(new), b"\0") if keep() else old
        new = new[: len(old)].ljust(len(old), b"\0")
    pieces = []
    for start in range(0, len(old), PAGE):
        before, after = old[start : start + PAGE], new[start : start + PAGE]
        if before == after or keep():
            pieces.append(after)
        elif keep():
            pieces += [(after if keep() else before)[at : at + SECTOR] for at in range(0, len(before), SECTOR)]
        else:
            pieces.append(before)
    return b"".join(pieces)


def install(monkeypatch: pytest.MonkeyPatch, root: Path) -> Syscalls:
    """Put fresh system calls under the store's disk."""
    calls = Syscalls(root)
    set_os(monkeypatch, calls)
    return calls


def set_os(monkeypatch: pytest.MonkeyPatch, calls: Any) -> None:
    for owner in (disk, disk._Process):
        monkeypatch.setattr(owner, "os", calls)


def _path_of(what: Any) -> str:
    return os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)


def numbers(calls: Iterable[tuple[str, str]], names: frozenset[str]) -> list[int]:
    return [number for number, (name, _) in enumerate(calls) if name in names]
