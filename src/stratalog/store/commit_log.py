"""The CommitLog: one append-only log of all queues, in files of equal size mapped into memory."""

import contextlib
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import setitem
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData, StoreClosed, StratalogError, command, counted
from stratalog.kernels.put_words import LOG_ADDRESS, LOG_BASE, LOG_END, LOG_LIMIT, LOG_WORDS, Words
from stratalog.layout.message import BLANK, MAGIC_BLANK
from stratalog.layout.names import offset_name, offset_of
from stratalog.store.disk import Disk, MappedFile, Stamp, failed
from stratalog.store.locks import StoreLocks, free
from stratalog.store.message import Message
from stratalog.store.next_files import AHEAD_SIZE_MIN, NextFiles
from stratalog.store.os_errors import SHORTAGES, refusal
from stratalog.store.reading import record_at
from stratalog.store.sizes import other_size_step

STEP_SIZE = 4 << 20
"""After so many bytes `CommitLog.on_step` is called."""
_RESERVED_MAX = 2
"""So many files are made ahead at once: RocketMQ 5.5 looks into the last ten after a crash, empty ones among them."""


@dataclass(frozen=True, slots=True)
class LogWindow:
    """The log as kernels see it: byte b stands at `addresses[n] + p`, `n, p = divmod(b - first_offset, file_size)`.

    An address of 0 is a file that is not there. `views` keep the mappings alive, though the log is closed meanwhile.
    """

    addresses: NDArray[np.int64]
    first_offset: int
    file_size: int
    end_offset: int
    views: tuple[NDArray[np.uint8], ...]


class CommitLog:
    """The log's files and its two ends.

    `end_offset` is the byte after the last whole record, `durable_offset` what is known to survive a power cut;
    `first_offset ≤ durable_offset ≤ end_offset`. A record is in the file before `end_offset` covers it, so readers
    need no lock. Every file but the last is full: it ends with a blank record.

    Appending needs `lock`. The native put takes no lock: it runs under the GIL without a pause, and leaves the work to
    the Python put whenever somebody holds the lock. Both work on `words`, where the log's end stands.

    Append in one of two ways, so that a signal handler may raise anywhere: in one statement without a call (no handler
    runs within it); or between `begin_write` and `commit`, which leaves it to the next append to zero what was written.

    `limit` is the highest position a record may end at without `position_for` being asked: the end of a step, when
    those who follow are told (`on_step`); the middle of the file, where the next file is begun; the file's end (8 bytes
    stay for the blank); -1 when nothing may be put any more, or not before `position_for` was asked.
    """

    def __init__(self, directory: Path, disk: Disk, *, file_size: int) -> None:
        self.directory = directory
        self.file_size = file_size
        self.locks = StoreLocks()
        self.busy = threading.Lock()
        """Held by whoever holds `locks.append`: compiled code asks it whether somebody does."""
        self._disk = disk
        self._next_files = NextFiles(disk, directory, file_size)
        self.on_step: Callable[[], None] = lambda: None
        self.on_roll: Callable[[], None] = lambda: None
        """Called before a new file is begun, under the lock."""
        self._files: list[MappedFile] = []
        self._empty: Path | None = None
        """A last file without its length: RocketMQ would refuse it."""
        self._stamp: Stamp = 0, 0, 0
        self._failure: StratalogError | None = None
        self._stopped: StoreClosed | None = None
        self._flush_error: OSError | None = None
        self._writing: list[int] = [0, 0]
        """Whether `begin_write` was called, and the limit before."""
        self.first_offset = 0
        self.durable_offset = 0
        self.map: Any = None
        self.words = Words(LOG_WORDS)
        self._view = self.words.view
        self._view[LOG_LIMIT] = -1

    @property
    def end_offset(self) -> int:
        """The byte after the last whole record."""
        return self._view[LOG_END]

    @end_offset.setter
    def end_offset(self, offset: int) -> None:
        self._view[LOG_END] = offset

    @property
    def base(self) -> int:
        """Log offset of position 0 of the newest file."""
        return self._view[LOG_BASE]

    @property
    def limit(self) -> int:
        return self._view[LOG_LIMIT]

    # -- files ---------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Map the files of the directory. Every one counts as full until recovery says where the log ends."""
        self._disk.clear_unfinished(self.directory)
        self._stamp = self._disk.stamp(str(self.directory))
        sizes = self._disk.files(self.directory)
        names = _checked_names(self.directory, sizes, self.file_size, self._disk)
        last = max((name for name in sizes if offset_of(name) is not None), default="")
        self._empty = self.directory / last if last and not sizes[last] else None
        for name in names:
            if self._files:  # only the last is written to: the others need no descriptor
                self._files[-1].release()
            try:
                self._files.append(self._disk.map(self.directory / name))
            except FileNotFoundError:
                if name != names[-1]:
                    raise  # else a writer had made it ahead, and has just removed it as it was closed
        if self._files:
            self.first_offset = int(self._files[0].path.name)
        self.end_offset = self.durable_offset = self.first_offset + len(self._files) * self.file_size

    @property
    def read_only(self) -> bool:
        return self._disk.read_only

    def has_grown(self) -> bool:
        """Whether another process wrote after the end that was found, or changed which files there are."""
        if self._disk.stamp(str(self.directory)) != self._stamp:
            return True
        if self._files and self.end_offset < self._behind:
            file, position = self.file_at(self.end_offset)
            return bool(file.view[position : position + BLANK.size].any())
        try:
            following = self._disk.open(self.directory / offset_name(self.end_offset))
        except FileNotFoundError:
            return False
        try:
            return any(following.read(0, BLANK.size))
        finally:
            following.close()

    @property
    def files(self) -> list[MappedFile]:
        return self._files

    @property
    def min_offset(self) -> int:
        return self.first_offset

    def file_at(self, commit_log_offset: int) -> tuple[MappedFile, int]:
        """The file that holds a byte of the log, and the byte's position in it. Raises IndexError outside the log."""
        number, position = divmod(commit_log_offset - self.first_offset, self.file_size)
        if number < 0:
            raise IndexError(commit_log_offset)
        return self._files[number], position

    def end_at(self, end_offset: int, *, is_zeroed: bool = False) -> None:
        """Recovery's verdict: the log ends here. Later files go, newest first (a kill leaves no gap); bytes after the
        end are zeroed (old records must not rise again) unless they are known to be, and appending may start. After
        retention one file stays: it says where the log begins."""
        keep = max(int(self.first_offset > 0), -(-(end_offset - self.first_offset) // self.file_size))
        if self._empty:
            self._disk.remove(self._empty)
            self._empty = None
        for file in reversed(self._files[keep:]):
            file.close()
            self._disk.remove(file.path)
        del self._files[keep:]
        if self._files:
            tail = end_offset - self.first_offset - (keep - 1) * self.file_size
            if not (self._disk.read_only or is_zeroed) and _zero_behind(self._files[-1], tail):
                self._files[-1].sync()
        self.end_offset = self.durable_offset = end_offset
        if self._files:
            self._append_to(self._files[-1])

    def _append_to(self, file: MappedFile) -> None:
        self.map = file.map
        self._view[LOG_ADDRESS], self._view[LOG_BASE] = file.address, int(file.path.name)
        self._limit_from(self.end_offset - self.base)

    def _limit_from(self, position: int) -> None:
        """Set the limit of records that begin at a position of the newest file."""
        middle = self.file_size // 2
        is_ahead = self.file_size >= AHEAD_SIZE_MIN and position <= middle
        limit = min(position + STEP_SIZE, middle if is_ahead else self.file_size - BLANK.size)
        self._view[LOG_LIMIT] = -1 if self._failure or self._stopped else limit

    # -- appending (lock held) -----------------------------------------------------------------------------------

    def position_for(self, total_size: int) -> int:
        """Where a record of that size goes in the current file: rolls to a new file when it does not fit.

        Raises `StoreFailed`, `StoreClosed`, `StoreReadOnly` or `DiskFull`. The caller has made sure that the record
        fits into a file at all.
        """
        self.check_appendable()
        if self.limit < 0:
            self.settle()
        position = self.end_offset - self.base
        end = position + total_size
        if not self._files or end > self.file_size - BLANK.size:
            self.on_roll()
            with self._new_files():
                self._roll()
            return 0
        if end > self.limit:
            self._pass_limit(end)
        return position

    def settle(self) -> None:
        """Undo an append that ended between `begin_write` and `commit`, and set the limit again."""
        if self._files:
            position = self.end_offset - self.base
            if self._writing[0]:
                _zero_behind(self._files[-1], position)
            self._writing[0] = 0
            self._limit_from(position)

    def begin_write(self) -> None:
        """Bytes after the log's end are about to be written; they do not count before `commit`."""
        limit = self._view[LOG_LIMIT]
        self._writing[:], self._view[LOG_LIMIT] = (1, limit), -1

    def commit(self, end_offset: int, *stores: tuple[Any, Any, Any]) -> None:
        """Move the log's end, and do the stores (object, key, value) that belong to it: data, next offsets of queues.
        All at once: one call in C, in which no signal handler runs and no other thread."""
        stores = (*stores, (self._view, LOG_END, end_offset), (self._writing, 0, 0))
        list(map(setitem, *zip(*stores, strict=True)))
        if self._view[LOG_LIMIT] < 0:
            self._view[LOG_LIMIT] = -1 if self._failure or self._stopped else self._writing[1]

    def _pass_limit(self, end: int) -> None:
        """A record will end there, in the newest file."""
        if end > self.file_size // 2 and self.file_size >= AHEAD_SIZE_MIN:
            self._next_files.begin(self._behind)
        self._limit_from(end)
        self.on_step()

    @property
    def _behind(self) -> int:
        """Log offset after the newest file."""
        return self.first_offset + len(self._files) * self.file_size

    def check_appendable(self) -> None:
        """Raise what a put would when the log is closed, failed, or open for reading only."""
        if reason := self._stopped or self._failure:
            raise reason.with_traceback(None)  # or the traceback grows with each refused put

    def reserve(self, record_sizes: NDArray[np.int64]) -> None:
        """Make the files that records of these sizes, in this order, will roll into, or a few of them and see that
        there is room for the others. Raises what `position_for` raises; nothing is there then that was not before.
        """
        self.check_appendable()
        whole = self.file_size - BLANK.size
        room = whole - (self.end_offset - self.base) if self._files else 0
        ends = np.cumsum(record_sizes)
        count = taken = before = 0
        while (taken := int(np.searchsorted(ends, before + room, side="right"))) < ends.size:
            before = int(ends[taken - 1]) if taken else 0
            room = whole
            count += 1
        with self._new_files():
            self._next_files.reserve(self._behind, min(count, _RESERVED_MAX), max(0, count - _RESERVED_MAX))

    @contextlib.contextmanager
    def _new_files(self) -> Iterator[None]:
        """What goes wrong while files are made ends appending, unless it is a shortage that changed nothing."""
        try:
            yield
        except OSError as error:
            if error.errno in SHORTAGES:
                raise refusal(f"no new file in {self.directory}", error) from error
            self.fail(failed(f"new file in {self.directory}", error))
            raise self._failure or error from error

    def _roll(self) -> None:
        """Close the current file with a blank record and go on in a new one, which is taken first: a full disk
        changes nothing."""
        start = self._behind
        file = self._next_files.get(start)
        full, at, blank = self.map or bytearray(), slice(0, 0), b""
        position = self.end_offset - self.base
        if self._files and position + BLANK.size <= self.file_size:  # else it was closed before a crash
            at, blank = slice(position, position + BLANK.size), BLANK.pack(self.file_size - position, MAGIC_BLANK)
        count, words = len(self._files), array("q", [file.address, start, -1, start])
        full[at], self._files[count:], self.map, self._view[:] = blank, [file], file.map, words  # no call between
        self._next_files.forget(start)
        self._limit_from(0)

    def stop(self, reason: StoreClosed) -> None:
        """Wait for an append under way, refuse every later one, and remove files that nothing was put into; what is
        there can still be flushed."""
        with free(*self.locks.append), self.busy:
            self._stopped, self._view[LOG_LIMIT] = reason, -1
            self.settle()
            self._next_files.drop(self._behind)

    @property
    def is_stopped(self) -> bool:
        """Whether no append is under way, and none will be."""
        return self._stopped is not None

    def fail(self, reason: StratalogError) -> None:
        """Refuse every later append."""
        self._failure, self._view[LOG_LIMIT] = self._failure or reason, -1

    @property
    def failure(self) -> StratalogError | None:
        return self._failure

    # -- durability ----------------------------------------------------------------------------------------------

    def sync(self) -> int:
        """Make everything appended so far durable and return up to where. A failed flush is never tried again:
        the log refuses appends from then on and `StoreFailed` is raised (`StoreClosed` when it is closed)."""
        if self._flush_error:
            self.fail(failed(f"flush of {self.directory}", self._flush_error))
        if self._failure:
            raise self._failure.with_traceback(None)  # or the traceback grows with each call
        end = self.end_offset
        durable = self.durable_offset
        if durable < end:
            first = (durable - self.first_offset) // self.file_size
            last = (end - 1 - self.first_offset) // self.file_size
            try:
                for file in self._files[first : last + 1]:
                    file.sync()
            except OSError as error:
                # First: no flush is tried again, whatever a signal handler raises; one raised this without a number.
                self._flush_error = error if error.errno is not None else None
                self.fail(failed(f"flush of {self.directory}", error))
                assert self._failure is not None
                raise self._failure from error
            for file in self._files[first:last]:  # full and durable; before anybody is told, who may close the log then
                file.release()
            self.durable_offset = max(self.durable_offset, end)
        return self.durable_offset

    @property
    def oldest_unflushed_timestamp(self) -> int | None:
        """Store time in ms of the first message that is not durable, None when all are."""
        offset, end = self.durable_offset, self.end_offset
        if offset >= end:
            return None
        file, position = self.file_at(offset)
        left = file.view[position : position + BLANK.size].tobytes()
        is_full = len(left) < BLANK.size or BLANK.unpack(left).magic == MAGIC_BLANK
        return self.message(offset - position + self.file_size if is_full else offset).store_timestamp

    # -- reading -------------------------------------------------------------------------------------------------

    def message(self, commit_log_offset: int, topic: str | None = None) -> Message:
        """The message whose record starts there. Raises `CorruptData` when no whole one does."""
        return record_at(self, commit_log_offset, topic)

    def window(self) -> LogWindow:
        files = tuple(self._files)
        addresses = np.array([file.address for file in files], np.int64)
        views = tuple(file.view for file in files)
        return LogWindow(addresses, self.first_offset, self.file_size, self.end_offset, views)

    def extents(self, begin: int, end: int) -> Iterator[tuple[MappedFile, int, int, int]]:
        """The pieces of [begin, end) by file: file, first and last position in it, and the log offset of position 0."""
        while begin < end:
            file, position = self.file_at(begin)
            base = begin - position
            stop = min(end, base + self.file_size)
            yield file, position, stop - base, base
            begin = base + self.file_size

    def close(self) -> None:
        self.close_files()
        self._next_files.close()

    def close_files(self) -> None:
        """Close without waiting for a thread, which a forked child does not have."""
        self.fail(StoreClosed(f"{self.directory.parent} is closed; open it again"))
        for file in self._files:
            file.close()


def open_log_window(directory: Path) -> LogWindow:
    """Map a CommitLog directory read-only for a task that knows which records it wants; no recovery, no lock."""
    from stratalog.store.disk import PrivateDisk

    disk = PrivateDisk()
    log = CommitLog(directory, disk, file_size=log_file_size(disk, directory) or 1)
    log.load()
    return log.window()


def log_file_size(disk: Disk, directory: Path) -> int | None:
    """Size of the log's files on disk: the largest, so that a truncated one is noticed; None without files."""
    sizes = [size for name, size in disk.files(directory).items() if offset_of(name) is not None]
    return max(sizes) if any(sizes) else None


def _checked_names(directory: Path, sizes: dict[str, int], file_size: int, disk: Disk) -> list[str]:
    """The log's file names in order, after checking that all have the right size and none is missing.

    A zero-length last file (created, not yet allocated when the power went) is left out.
    """
    files = [(name, size) for name, size in sizes.items() if offset_of(name) is not None]
    if files and files[-1][1] == 0:
        files.pop()
    expected: int | None = None
    for name, size in files:
        offset = int(name)
        if size != file_size:
            raise CorruptData(
                f"the file has {counted(size, 'byte')}, the log's files have {file_size:,}. "
                + other_size_step("mapped_file_size_commit_log", file_size, directory.parent, disk),
                path=str(directory / name),
                position=size,
            )
        if expected is not None and offset != expected:
            raise CorruptData(
                f"expected {offset_name(expected)} before it: a file is missing in the middle of the log. Restore it; "
                f"to go on without it, {command('repair', directory.parent)} keeps everything else",
                path=str(directory / name),
                position=0,
            )
        expected = offset + file_size
    return [name for name, _ in files]


def _zero_behind(file: MappedFile, position: int, chunk: int = 1 << 20) -> bool:
    """Zero the bytes after `position` where they are not zero yet; returns whether there were any."""
    found = False
    end = file.data_end
    for start in range(position, end, chunk):
        piece = file.view[start : min(end, start + chunk)]
        if piece.any():
            piece[:] = 0
            found = True
    return found
