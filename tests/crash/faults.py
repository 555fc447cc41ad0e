"""Faults for the store's disk seam, at the level of system calls.

`Syscalls` stands in for the `os` module inside `stratalog.store.disk`. It counts every call that changes something, can
fail the n-th one, can stop the "process" there (every later call fails as well, so that closing cannot tidy up), and
knows what a power cut would leave: contents as of each file's last sync, names as of each directory's last sync.
"""

import errno
import os
import random
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from stratalog.store import disk

CHANGING = frozenset({"posix_fallocate", "ftruncate", "pwrite", "fsync", "fdatasync", "rename", "open"})
SYNCS = frozenset({"fsync", "fdatasync"})
PAGE = 4096


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
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[status.st_ino] = path.read_bytes()

    def cut(self) -> "Cut":
        """The state at this moment: what is durable, and what is only in memory."""
        current = {path.stat().st_ino: path.read_bytes() for path in self.root.rglob("*") if path.is_file()}
        names = {path: dict(entries) for path, entries in self._names.items()}
        return Cut(self.root, names, dict(self._contents), current)


class Cut:
    """A moment of a power cut; `image` makes one of the directories that may be found afterwards."""

    def __init__(
        self, root: Path, names: dict[Path, dict[str, int]], durable: dict[int, bytes], current: dict[int, bytes]
    ) -> None:
        self._root, self._names, self._durable, self._current = root, names, durable, current

    def image(self, target: Path, chance: random.Random) -> None:
        """Synced names with synced contents; each page that was not synced is there or not, by chance."""
        kept = chance.choice((0.0, 0.5, 1.0))
        self._copy(self._root, target, lambda: chance.random() < kept)

    def _copy(self, source: Path, target: Path, keep: Callable[[], bool]) -> None:
        target.mkdir(parents=True, exist_ok=True)
        for name, inode in self._names.get(source, {}).items():
            if source / name in self._names or (source / name).is_dir():
                self._copy(source / name, target / name, keep)
            elif name != "lock":
                old = self._durable.get(inode, b"")
                (target / name).write_bytes(mixed(old, self._current.get(inode, old), keep))


def mixed(old: bytes, new: bytes, keep: Callable[[], bool]) -> bytes:
    """The old bytes with those new pages that made it to the disk in time."""
    if len(old) != len(new):
        return old
    return b"".join(
        (new if keep() else old)[start : start + PAGE] if old[start : start + PAGE] != new[start : start + PAGE]
        else old[start : start + PAGE]
        for start in range(0, len(old), PAGE)
    )  # fmt: skip


def install(monkeypatch: pytest.MonkeyPatch, root: Path) -> Syscalls:
    """Put fresh system calls under the store's disk."""
    calls = Syscalls(root)
    monkeypatch.setattr(disk, "os", calls)
    return calls


def _path_of(what: Any) -> str:
    return os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)


def numbers(calls: Iterable[tuple[str, str]], names: frozenset[str]) -> list[int]:
    return [number for number, (name, _) in enumerate(calls) if name in names]
