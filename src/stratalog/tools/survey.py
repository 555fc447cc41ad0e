"""What stands in each file of a log, found without opening the store: for checking and mending one that will not open.

Every file begins with a record, so each is looked at by itself, several at a time: the scan releases the interpreter
lock. A file that is missing in the middle takes part as one without a record.
"""

import os
from collections import deque
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData
from stratalog.helpers import Outcome, ThreadPool
from stratalog.kernels.scan import VERIFY, ScanStatus, scan
from stratalog.layout.message import HEAD, PROPERTIES_LENGTH, decode_record, queue_offset_limit
from stratalog.layout.names import (
    offset_name,
    offset_of,
)
from stratalog.layout.record import Layout
from stratalog.store.disk import MappedFile, PrivateDisk
from stratalog.store.log_scan import closes_file, first_torn, is_unfinished, next_record
from stratalog.store.recovery import Damage
from stratalog.tools.verify_report import Unreadable

CHUNK_RECORDS = 1 << 16
_ZERO_BLOCK_SIZE = 1 << 20
_THREADS_MAX = 8
MISSING = "MISSING"
"""Reason of a damage: the file is not there."""
CUT = "CUT"
"""Reason of a damage: the file is shorter than the log's files are."""
UNREADABLE = "UNREADABLE"
"""Reason of a damage: the system does not let the file be read."""
WILD = "BAD_QUEUE_OFFSET"
"""Reason of a damage: a record with a queue offset that cannot be."""
_QUEUE_OFFSET = HEAD.position("queue_offset")
_QUEUE_OFFSETS = Layout("queue offset in a record's head", HEAD.fields[5], size=8, source=HEAD.source)
MISSING_MAX = 1000
"""Files missing in a row; where more would be, one of the names is wrong."""
Advance = Callable[[int, int], None]
"""Called with (bytes, records) that were looked at since the last call; from any thread."""


@dataclass(slots=True)
class FileSurvey:
    """One file of the log; a shorter one is looked at as if zeros followed. `positions` and `sizes` are those of its
    whole records; `damages` lie between them, in log offsets; what is after the last record is told by `end`,
    `is_closed`, `reason` and `tail_size`."""

    path: Path
    base_offset: int
    full_size: int
    file: MappedFile | None = None
    positions: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sizes: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    damages: list[Damage] = field(default_factory=list)
    end: int = 0
    """Position after the last whole record."""
    is_closed: bool = False
    """Whether a blank record covers the rest, or not even that would fit."""
    reason: str = MISSING
    """Why nothing whole stands at `end`; of no meaning in a closed file."""
    tail_size: int = 0
    """Bytes from `end` to the last one that is not zero; 0 in a closed file."""
    is_unfinished: bool = True
    """Whether these can be of one record that a crash kept from being finished, if the log ends here."""

    @property
    def first_whole(self) -> int:
        """Position up to which nothing whole stands: 0 when the file begins as it should, its size when all is lost."""
        if self.damages and self.damages[0].begin == self.base_offset:
            return self.damages[0].end - self.base_offset
        return 0 if len(self.positions) or self.is_closed else self.full_size

    def close(self) -> None:
        if self.file:
            self.file.close()


def survey_log(
    directory: Path, disk: PrivateDisk, *, file_size: int, may_be_torn: bool, threads: int | None = None,
    advance: Advance | None = None, misnamed: Container[str] = (),
) -> Iterator[FileSurvey]:  # fmt: skip
    """Every file of the log in order, a few looked at ahead. The caller closes each; `disk` maps them privately.
    Of the `misnamed` files, whose names are others', those far from the rest are left out.

    After a crash a record may be torn (`may_be_torn`): its properties end with zeros.
    """
    look = partial(survey_file, disk=disk, file_size=file_size, may_be_torn=may_be_torn)
    before: FileSurvey | None = None
    for survey in _surveys(
        _expected_files(directory, disk, file_size, misnamed), partial(look, advance=advance), threads
    ):
        if before:
            if before.file and not before.is_closed and len(survey.positions):  # a writer may have gone on meanwhile
                before = look(before.path, before.base_offset)
            yield before
        before = survey
    if before:
        yield before


def _surveys(
    files: Iterator[tuple[Path, int]], look: Callable[[Path, int], FileSurvey], threads: int | None
) -> Iterator[FileSurvey]:
    count = threads or min(os.cpu_count() or 1, _THREADS_MAX)
    with ThreadPool(count, "stratalog-survey") as pool:
        ahead: deque[Outcome[FileSurvey]] = deque()
        for path, start in files:
            ahead.append(pool.submit(look, path, start))
            if len(ahead) > count:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _expected_files(
    directory: Path, disk: PrivateDisk, file_size: int, misnamed: Container[str]
) -> Iterator[tuple[Path, int]]:  # fmt: skip
    """Path and start of each file from the oldest to the newest, those that are missing between them included."""
    expected: int | None = None
    for name in disk.files(directory):
        start = offset_of(name)
        if start is None or start % file_size or (expected is not None and start < expected):
            continue
        if expected is not None and start - expected > MISSING_MAX * file_size:
            if name in misnamed:
                continue
            raise CorruptData(
                f"{(start - expected) // file_size:,} files are missing in front of this one: if it is none of this "
                "store's, move it out of the directory",
                path=str(directory / name),
            )
        while expected is not None and expected < start:
            yield directory / offset_name(expected), expected
            expected += file_size
        yield directory / name, start
        expected = start + file_size


def survey_file(
    path: Path, base_offset: int, disk: PrivateDisk, *, file_size: int, may_be_torn: bool,
    advance: Advance | None = None,
) -> FileSurvey:  # fmt: skip
    """Look at one file of the log, every body CRC included."""
    found = FileSurvey(path, base_offset, file_size)
    stored_size = path.stat().st_size if path.is_file() else 0
    if not stored_size:
        return found
    try:
        file = found.file = disk.map(path, size_min=file_size)
    except Unreadable:
        found.reason = UNREADABLE
        return found
    file.size = file_size  # bytes after it are no part of the log
    positions, sizes = np.empty(CHUNK_RECORDS, np.int64), np.empty(CHUNK_RECORDS, np.int32)
    pieces: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = []
    position = done = 0
    seen = -1
    while True:
        count, position, status = scan(file.address, position, file.size, base_offset, VERIFY, positions, sizes)
        torn = first_torn(file, positions[:count], sizes[:count], status) if may_be_torn else count
        if count and _is_cut(file, int(positions[count - 1]), position, stored_size):
            torn = min(torn, count - 1)
        if torn < count:
            count, position, status = torn, int(positions[torn]), int(ScanStatus.BAD_LENGTHS)
        pieces.append(_without_wild(found, positions[:count], sizes[:count]))
        if advance:
            advance(position - done, count)
            done = position
        if status == ScanStatus.FULL:
            continue
        found.is_closed = closes_file(file, position, base_offset)
        following = -1 if found.is_closed else next_record(file, position + 1, base_offset)
        if following < 0:
            found.tail_size = 0 if found.is_closed else last_written(file, position) - position
            found.is_unfinished = not found.tail_size or is_unfinished(file, position)
        if position != seen and (following >= 0 or not found.is_unfinished):
            seen = position  # scanned again: a writer may have put it since
            continue
        if following < 0:
            break
        found.damages.append(Damage(base_offset + position, base_offset + following, ScanStatus(status).name))
        position = following
    found.positions, found.sizes = (np.concatenate(column) for column in zip(*pieces, strict=True))
    found.end = position
    found.reason = ScanStatus(status).name if stored_size >= file_size else CUT
    if advance:
        advance(file_size - done, 0)
    return found


def _is_cut(file: MappedFile, begin: int, end: int, stored_size: int) -> bool:
    """Whether a record lost bytes with its file's end that were not zeros. Properties end with a byte that is not zero;
    without properties their length, two bytes of zeros, ends the record."""
    if end <= stored_size:
        return False
    has_properties = bool(decode_record(file.view.data, begin, verify=False).properties)
    return has_properties or end - PROPERTIES_LENGTH.size > stored_size


def _without_wild(
    found: FileSurvey, positions: NDArray[np.int64], sizes: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The records but for those whose queue offset no log can lead to. No checksum covers it, and whoever trusted it
    would fill a queue up to there."""
    assert found.file is not None
    at = positions[:, None] + np.arange(_QUEUE_OFFSET, _QUEUE_OFFSET + _QUEUE_OFFSETS.size)
    offsets = found.file.view[at].view(_QUEUE_OFFSETS.dtype)["queue_offset"][:, 0].astype(np.int64)
    wild = (offsets < 0) | (offsets > queue_offset_limit(found.base_offset + positions))
    for number in np.flatnonzero(wild).tolist():
        begin = found.base_offset + int(positions[number])
        found.damages.append(Damage(begin, begin + int(sizes[number]), WILD))
    return positions[~wild], sizes[~wild]


def last_written(file: MappedFile, position: int) -> int:
    """Position after the last byte at or after `position` that is not zero; `position` when all are."""
    end = min(file.size, file.data_end)
    while end > position:
        begin = max(position, end - _ZERO_BLOCK_SIZE)
        written = np.flatnonzero(file.view[begin:end].copy())  # a broker may be writing there
        if written.size:
            return begin + int(written[-1]) + 1
        end = begin
    return position


class DamageJoin:
    """Joins what the files say into damages of the whole log. Give it the files in order.

    `take` returns the damages that end in this file. What is after the last record of the last file is left over:
    `open_begin` is then the log offset where nothing whole follows, None when the last file is closed; `written_end`
    the one after the last byte there that is not zero, 0 when all are; `is_unfinished` says whether all that can be
    left from a crash.
    """

    def __init__(self) -> None:
        self.open_begin: int | None = None
        self.open_reason = ""
        self.written_end = 0
        self.is_unfinished = True

    def take(self, survey: FileSurvey) -> list[Damage]:
        damages = []
        first = survey.first_whole
        if self.open_begin is None and first:
            self.open_begin = survey.base_offset
            self.open_reason = survey.damages[0].reason if survey.damages else survey.reason
        if self.open_begin is not None and first < survey.full_size:
            damages.append(Damage(self.open_begin, survey.base_offset + first, self.open_reason))
            self.open_begin, self.written_end, self.is_unfinished = None, 0, True
        damages += [damage for damage in survey.damages if damage.begin > survey.base_offset]
        if self.open_begin is None and not survey.is_closed:
            self.open_begin, self.open_reason = survey.base_offset + survey.end, survey.reason
        if survey.file and survey.tail_size:
            self.written_end = survey.base_offset + survey.end + survey.tail_size
            self.is_unfinished &= survey.is_unfinished
        return damages
