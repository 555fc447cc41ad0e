"""Verifying the log: walking its records from one place to its end, several pieces at a time.

Records do not cross files, and within a file a piece begins where a whole record stands that says so itself. The pieces
are put together in order: each must begin where the one before ended, else the walk goes on from there.
"""

import contextlib
import os
import shlex
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData, command
from stratalog.helpers import Outcome, ThreadPool
from stratalog.kernels.scan import ANY_OFFSET, TRUST, VERIFY, ScanStatus, find_record, scan
from stratalog.layout.message import BLANK, HEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, decode_record
from stratalog.layout.names import offset_name, offset_of
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import Disk, MappedFile, PrivateDisk

_PIECE_SIZE = 8 << 20
_PIECES_PER_THREAD = 2
"""That many are walked before their turn: so few that they are in the processor's cache still when they are taken."""
_PIECES_AT_FIRST = 32
"""That many before the first is taken: whoever follows the walk has other things to do first."""
_THREADS_MAX = 8
_CHUNK_RECORDS = 1 << 13
_REACH = 8 << 20
_ZERO_CHUNK = 1 << 16
_SECTOR_SIZE = 512


@dataclass(frozen=True, slots=True)
class Damage:
    """A range [begin, end) of the log that holds no whole record, with whole records after it."""

    begin: int
    end: int
    reason: str

    @property
    def may_be_torn(self) -> bool:
        """Whether it may begin with a record that a crash tore. Only zeros at the record's end distinguish it from a
        whole one, and they are checked only after a crash."""
        return self.reason == ScanStatus.BAD_LENGTHS.name


@dataclass(slots=True)
class Verified:
    """What a walk over the log found. Offsets are log offsets in bytes."""

    end_offset: int
    """Where the log ends."""
    record_count: int = 0
    torn_size: int = 0
    """Bytes of a torn record after the end (0: the log ended with a whole record)."""
    quarantined: list[Damage] = field(default_factory=list)


Span = tuple[int, int]
"""Log offsets [begin, end) between which whole records, and those that close files, stand without a gap."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Positions [begin, end) of a file; `base` is the log offset of position 0."""

    file: MappedFile
    base: int
    begin: int
    end: int

    @property
    def offset(self) -> int:
        """Log offset of its begin."""
        return self.base + self.begin


@dataclass(frozen=True, slots=True)
class _Walked:
    record_count: int
    position: int
    """After the last whole record."""
    status: ScanStatus


class LogScan:
    """One walk over [start, stop) of a log. It begins, in threads, as the context is entered.

    Below `vouched_end` everything was durable once: what is missing there was damaged, and is no torn tail.
    `looks_for_torn` says that a crash may have kept a record from being written to its end. `ends_at` is the log's end
    if that is known: nothing is looked for after it. `found` is complete after the walk.
    """

    def __init__(
        self, log: CommitLog, start: int, stop: int, *, vouched_end: int = 0, looks_for_torn: bool = True,
        ends_at: int = -1,
    ) -> None:  # fmt: skip
        self._log = log
        self._start = start
        self._stop = stop
        self._vouched_end = vouched_end
        self._looks_for_torn = looks_for_torn
        self._ends_at = ends_at
        self.found = Verified(start)
        self._threads = min(_THREADS_MAX, os.cpu_count() or 1)
        self._pool = ThreadPool(self._threads, "stratalog-scan")
        self._pieces = self._cut() if stop - start > _PIECE_SIZE else iter(())
        self._ahead: deque[tuple[_Piece, Outcome[_Walked]]] = deque()

    def __enter__(self) -> Self:
        try:
            self._walk_ahead(_PIECES_AT_FIRST)
        except BaseException:  # of a signal handler, too: what is walked is unmapped soon
            self._pool.shutdown()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def run(self) -> Verified:
        """Walk. Raises `CorruptData` when the log ends before `vouched_end`."""
        with self:
            for _ in self.spans():
                pass
        return self.found

    def spans(self) -> Iterator[Span]:
        """Walk, and give out what is verified, in order. Raises as `run` does."""
        log, found = self._log, self.found
        offset = self._start
        while log.first_offset <= offset < self._stop:
            piece, walked = self._take(offset) or self._walk_file(offset)
            begin, offset = offset, piece.base + walked.position
            found.record_count += walked.record_count
            if walked.record_count:
                found.end_offset = offset
                yield begin, offset
            if offset >= self._stop or piece.end < min(piece.file.size, self._stop - piece.base):
                continue  # where no piece begins a record went past the one before: the walk goes on from there
            if offset == self._ends_at:
                break
            following = self._after(piece.file, walked.position, walked.status)
            if following is None:
                break
            if not found.quarantined or found.quarantined[-1].end != following:
                yield offset, following  # the blank record that closes a file
            offset = following
        if found.end_offset < self._vouched_end:
            raise self._ends_too_early(found.end_offset)

    def presumed_end(self) -> int:
        """Where the walk will end, unless a body there holds what looks like records: only what is near the end is
        walked. Raises what the walk would raise there.
        """
        begins = [piece.offset for piece in self._cut()]
        begin = next((offset for offset in reversed(begins) if is_record(self._log, offset)), self._start)
        tail = LogScan(
            self._log, begin, self._stop, vouched_end=self._vouched_end, looks_for_torn=self._looks_for_torn
        )  # fmt: skip
        return tail.run().end_offset

    def _cut(self) -> Iterator[_Piece]:
        if self._start < self._log.first_offset:
            return
        for file, begin, stop, base in self._log.extents(self._start, self._stop):
            data_end = min(stop, file.data_end)
            while True:
                nominal = begin + _PIECE_SIZE
                end = next_record(file, nominal, base, min(data_end, nominal + _REACH))
                yield _Piece(file, base, begin, end if end >= 0 else stop)
                if end < 0:
                    break
                begin = end

    def _walk_ahead(self, count: int) -> None:
        while len(self._ahead) < count and (piece := next(self._pieces, None)):
            self._ahead.append((piece, self._pool.submit(self._walk, piece)))

    def _take(self, commit_log_offset: int) -> tuple[_Piece, _Walked] | None:
        """The piece that begins there, walked; None when none does. Those before it are dropped."""
        taken = None
        while self._ahead and self._ahead[0][0].offset <= commit_log_offset:
            taken = self._ahead.popleft()
            self._walk_ahead(_PIECES_PER_THREAD * self._threads)
        return (taken[0], taken[1].result()) if taken and taken[0].offset == commit_log_offset else None

    def _walk(self, piece: _Piece) -> _Walked:
        """Whole records from the piece's begin on, until its end or something else."""
        positions, sizes = np.empty(_CHUNK_RECORDS, np.int64), np.empty(_CHUNK_RECORDS, np.int32)
        file, position, total, status = piece.file, piece.begin, 0, int(ScanStatus.FULL)
        borrowed = file.view  # stays mapped if the file is closed meanwhile
        file.populate(position, min(piece.end, position + _PIECE_SIZE, file.data_end))
        while status == ScanStatus.FULL:
            count, position, status = scan(
                file.address, position, piece.end, piece.base, VERIFY, positions, sizes
            )  # fmt: skip
            if self._looks_for_torn:
                torn = first_torn(file, positions[:count], sizes[:count], status)
                if torn < count:
                    count, position, status = torn, int(positions[torn]), int(ScanStatus.BAD_LENGTHS)
            total += count
        del borrowed
        return _Walked(total, position, ScanStatus(status))

    def _walk_file(self, offset: int) -> tuple[_Piece, _Walked]:
        """All that follows in the file."""
        file, position = self._log.file_at(offset)
        base = offset - position
        piece = _Piece(file, base, position, min(file.size, self._stop - base))
        return piece, self._walk(piece)

    def _after(self, file: MappedFile, position: int, status: ScanStatus) -> int | None:
        """Where the walk goes on after what is no record; None at the log's end."""
        log, found, base = self._log, self.found, int(file.path.name)
        offset = base + position
        if closes_file(file, position, base):
            found.end_offset = base + file.size
            return found.end_offset
        if not position:
            self._refuse_wrong_name(file)
        following = _next_record(log, offset)
        if following is None:
            _check_not_cut(log, file, position)
            other = self._first_foreign(file, position)
            if offset < self._vouched_end <= log.end_offset:
                following = found.end_offset = self._vouched_end
            else:
                found.torn_size = _written_size(file, position)
                if other:
                    found.quarantined.append(Damage(offset, log.end_offset, status.name))
                return None
        _, now = self._walk_file(offset)
        if now.record_count or closes_file(file, position, base):  # a writer was about to put it when the walk came by
            return offset
        found.quarantined.append(Damage(offset, following, status.name))
        return following

    def _first_foreign(self, file: MappedFile, position: int) -> MappedFile | None:
        """The first log file, from a position on without a record in its place, that is of another place of the log.
        A writer is about to cut such bytes off: for one this raises `CorruptData`."""
        log, begin = self._log, int(file.path.name) + position
        files = log.files[(begin - log.first_offset) // log.file_size :]
        other = next((one for one in files if not is_unfinished(one, position if one is file else 0)), None)
        if other and not log.read_only:
            self._refuse_wrong_name(other)
            step = f"to go on without these bytes, let {command('repair', log.directory.parent)} set them aside"
            raise CorruptData(
                f"no record follows log offset {begin:,} in its place, and this file begins with a record of another "
                "place of the log: it is another file. Opening for writing would cut it off. Put the right file back"
                f"{f'; {step}' if self._is_any_whole else ''}",
                path=str(other.path),
                position=position if other is file else 0,
            )
        return other

    def _refuse_wrong_name(self, file: MappedFile) -> None:
        """Raise `CorruptData` for a log file under another one's name, where a writer would put messages after it."""
        if not self._log.read_only and (step := named_wrong(file)):
            raise CorruptData(step, path=str(file.path))

    @property
    def _is_any_whole(self) -> bool:
        """Whether the log has a whole record, without which nothing can be repaired."""
        return self.found.record_count > 0 or self._start > self._log.first_offset

    def _ends_too_early(self, end: int) -> CorruptData:
        return CorruptData(
            f"the log ends at offset {end:,}, but it once held messages up to {self._vouched_end:,}: restore what is "
            f"missing. To go on without those messages, run {command('repair', self._log.directory.parent)}: it keeps "
            "the queue offsets that the queues still show",
            path=str(self._log.directory),
            position=end,
        )


def is_record(log: CommitLog, commit_log_offset: int) -> bool:
    """Whether a whole record stands there."""
    file, position = log.file_at(commit_log_offset)
    one = np.empty(1, np.int64), np.empty(1, np.int32)
    count, _, _ = scan(file.address, position, file.size, commit_log_offset - position, VERIFY, *one)
    return bool(count)


def is_finished(log: CommitLog, commit_log_offset: int) -> bool:
    """Whether a whole record stands there whose properties do not end as those of a torn record do, with zeros."""
    file, position = log.file_at(commit_log_offset)
    if not is_record(log, commit_log_offset):
        return False
    record = decode_record(file.view.data, position, verify=False)
    return not record.properties or bool(file.view[position + record.total_size - 1])


def after_record(log: CommitLog, commit_log_offset: int) -> int:
    """Log offset after the record that stands there; if it is damaged, of the next whole one (or the log's end)."""
    if is_record(log, commit_log_offset):
        file, position = log.file_at(commit_log_offset)
        return commit_log_offset + int(HEAD.unpack(file.view.data, position).total_size)
    return _next_record(log, commit_log_offset) or log.end_offset


def closes_file(file: MappedFile, position: int, base_offset: int) -> bool:
    """Whether a log file's records end there: a blank record covers the rest, or not even that would fit. A blank
    record with a whole record after it is damage, unless that is older than the last one before: RocketMQ leaves
    records that its recovery dropped where they are."""
    if file.size - position < BLANK.size:
        return True
    blank = BLANK.unpack(file.view.data, position)
    if blank.magic != MAGIC_BLANK or blank.size != file.size - position:
        return False
    following = next_record(file, position + BLANK.size, base_offset)
    if following < 0:
        return True
    newest = newest_before(file, position, base_offset)
    return newest >= 0 and _stored_ms(file, following) < _stored_ms(file, newest)


def lies_in_damage(file: MappedFile, position: int) -> bool:
    """Whether a position of a log file lies in bytes that are no whole record, before the file's end or another one."""
    positions, sizes = np.empty(_CHUNK_RECORDS, np.int64), np.empty(_CHUNK_RECORDS, np.int32)
    begin, base_offset = 0, int(file.path.name)
    while True:
        _, stop, status = scan(file.address, begin, file.size, base_offset, VERIFY, positions, sizes)
        if position < stop:
            return False
        if status == ScanStatus.FULL:
            begin = stop
            continue
        begin = next_record(file, stop + 1, base_offset)
        if begin < 0 or position < begin:
            return position < file.data_end and not closes_file(file, stop, base_offset)


def newest_before(file: MappedFile, position: int, base_offset: int) -> int:
    """Position of the last whole record of a log file before a position, -1 when there is none."""
    positions, sizes = np.empty(_CHUNK_RECORDS, np.int64), np.empty(_CHUNK_RECORDS, np.int32)
    newest, begin = -1, next_record(file, 0, base_offset)
    while 0 <= begin < position:
        count, begin, status = scan(file.address, begin, position, base_offset, TRUST, positions, sizes)
        newest = int(positions[count - 1]) if count else newest
        if status != ScanStatus.FULL:
            begin = next_record(file, begin + 1, base_offset)
    return newest


def ends_after(file: MappedFile, position: int) -> bool:
    """Whether a whole record of a log file ends after a position."""
    newest = newest_before(file, file.size, int(file.path.name))
    return newest >= 0 and newest + HEAD.unpack(file.view.data, newest).total_size > position


def _stored_ms(file: MappedFile, position: int) -> int:
    return decode_record(file.view.data, position, verify=False).store_timestamp


def next_record(file: MappedFile, begin: int, base_offset: int, end: int | None = None) -> int:
    """Position of the next whole record of a log file at or after `begin`, -1 when there is none before `end` or the
    end of its data. Zeros are passed over quickly."""
    if end is None:
        end = min(file.size, file.data_end)
    position = begin
    while position < end and not file.view[position : min(end, position + _ZERO_CHUNK)].any():
        position += _ZERO_CHUNK
    begin = max(begin, position - BLANK.size)
    return int(find_record(file.address, begin, end, base_offset)) if begin < end else -1


def first_torn(file: MappedFile, positions: NDArray[np.int64], sizes: NDArray[np.int32], status: int) -> int:
    """Number of the first record whose properties were not written to their end, of those that a scan found before it
    stopped with a status; the count when there is none.

    No checksum covers properties. What a crash took from them is zeros, and properties end with a separator. Zeros
    reach up to the next record's beginning only where that begins a sector.
    """
    ends = positions + sizes
    view = file.view
    may_be_torn = ends & (_SECTOR_SIZE - 1) == 0  # five times as fast as a division
    may_be_torn[len(ends) - 1 :] |= status not in (ScanStatus.FULL, ScanStatus.BLANK, ScanStatus.END)
    for number in np.flatnonzero(may_be_torn).tolist():
        if not view[ends[number] - 1] and decode_record(view.data, int(positions[number]), verify=False).properties:
            return int(number)
    return len(positions)


def _next_record(log: CommitLog, offset: int) -> int | None:
    """Log offset of the next whole record after `offset`, None when there is none."""
    file, position = log.file_at(offset)
    number = (offset - log.first_offset) // log.file_size
    for other in log.files[number:]:
        base = int(other.path.name)
        found = next_record(other, position + 1 if other is file else 0, base)
        if found >= 0:
            return base + found
    return None


def _is_of_another_place(file: MappedFile) -> bool:
    """Whether a log file begins with a whole record of another place. (One of its own place may be torn.)"""
    count, *_ = scan(file.address, 0, file.size, ANY_OFFSET, VERIFY, np.empty(1, np.int64), np.empty(1, np.int32))
    return bool(count) and HEAD.unpack(file.view.data, 0).commit_log_offset != int(file.path.name)


def is_unfinished(file: MappedFile, position: int) -> bool:
    """Whether what a log file has from `position` on, where no record has its own place, can be left from a crash. It
    cannot where the file begins with a whole record of another place: then the file is another one. Elsewhere such a
    record may be a part of a body whose head was lost."""
    return position > 0 or not _is_of_another_place(file)


def named_wrong(file: MappedFile) -> str:
    """How to give a log file the name of the place that its records say; empty where they say its own. Against a name
    one record alone may be damaged: two count."""
    path, place = file.path, _place_of(file)
    if place is None:
        return ""
    right, kept = path.with_name(offset_name(place)), path.parent.parent / f"{path.name}.moved"
    moves = [(path, right)]
    if right.exists():
        other = PrivateDisk().map(right) if right.stat().st_size else None
        is_wrong = other is None or _place_of(other) is not None
        if other:
            other.close()
        moves = [(path, kept), (right, path), (kept, right)] if is_wrong else [(path, kept)]
    step = " && ".join(f"mv -n {shlex.quote(str(a))} {shlex.quote(str(b))}" for a, b in moves)
    if len(moves) == 1 and right.exists():
        return f"its records are those of {right.name}, which is there too. Put the right file back, or run `{step}`"
    return f"its records are those of {right.name}: the file is misnamed. Run `{step}`, then run the command again"


def refuse_misnamed(directory: Path) -> None:
    """Raise `CorruptData` for a file in the log's directory whose name is none of a log file, though its records say
    which one it is, and the log lacks that one: in front of its first file, or later."""
    disk = PrivateDisk()
    files = disk.files(directory)
    begin = min((start for start in map(offset_of, files) if start is not None), default=0)
    for name, size in files.items():
        if offset_of(name) is None and size:
            file = disk.map(directory / name)
            place, step = _place_of(file), named_wrong(file)
            file.close()
            if place is not None and place + size >= begin and offset_name(place) not in files:
                raise CorruptData(step, path=str(directory / name))


def misnamed_files(directory: Path, disk: Disk) -> dict[str, str]:
    """The files in the log's directory that have another one's name, with what to do. That is one step at a time: the
    first one's may move others. A file that cannot be read is left out."""
    found = dict[str, str]()
    for name, size in disk.files(directory).items():
        with contextlib.suppress(OSError):
            if size and (step := _misnamed_step(directory / name)):
                first = next(iter(found), None)
                found[name] = f"do what is said of {first} first, then look again" if first else step
    return found


def _misnamed_step(path: Path) -> str:
    file = PrivateDisk().map(path)
    try:
        return named_wrong(file)
    finally:
        file.close()


def _place_of(file: MappedFile) -> int | None:
    """Log offset at which the records of a file begin by what they say, if that is another file's begin."""
    head = HEAD.unpack(file.view.data) if file.size >= HEAD.size else None
    place = head.commit_log_offset if head else -1
    own = offset_of(file.path.name)
    if head is None or place < 0 or place % file.size or place == own:
        return None
    count, *_ = scan(file.address, 0, file.size, place, VERIFY, np.empty(2, np.int64), np.empty(2, np.int32))
    is_part = own is not None and next_record(file, 1, own) >= 0  # only some of its bytes are another file's
    return place if count >= (1 if own is None else 2) and not is_part else None


def _check_not_cut(log: CommitLog, file: MappedFile, position: int) -> None:
    """Of a log that is one file, whose size nothing else may tell."""
    if len(log.files) == 1 and runs_past_end(file, position):
        raise CorruptData(cut_text(file), path=str(file.path), position=position)


def cut_text(file: MappedFile) -> str:
    """What to do about the only file of a log in which a record runs past the end."""
    return (
        f"a record begins here and runs past the file's end, at {file.size:,} bytes: the file was cut. Restore it, or "
        "give mapped_file_size_commit_log as the store was written with, and run "
        f"{command('repair', file.path.parent.parent)}: whole records are kept"
    )


def runs_past_end(file: MappedFile, position: int) -> bool:
    """Whether a record that begins there claims to go past its file's end, or has no room for its head: it was written
    into a longer file."""
    if file.size - position < HEAD.size:
        return bool(file.view[position:].any()) and not closes_file(file, position, int(file.path.name))
    head = HEAD.unpack(file.view.data, position)
    plausible = head.magic in (MAGIC_V1, MAGIC_V2) and head.commit_log_offset == int(file.path.name) + position
    return plausible and position + head.total_size + BLANK.size > file.size


def written_end(file: MappedFile, position: int) -> int:
    """Position after the last byte of a file that is not zero, from a position on."""
    end, stop = position, min(file.size, file.data_end)
    for begin in range(position, stop, _ZERO_CHUNK):
        written = np.flatnonzero(file.view[begin : min(stop, begin + _ZERO_CHUNK)])
        end = begin + int(written[-1]) + 1 if written.size else end
    return end


def _written_size(file: MappedFile, position: int) -> int:
    """How far after `position` something was written (bytes that are not zero), looking at one record's reach."""
    written = np.flatnonzero(file.view[position : position + _REACH].copy())  # a writer may be writing there
    return int(written[-1]) + 1 if written.size else 0
