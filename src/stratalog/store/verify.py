"""Checking a whole store: every record of the log, every queue unit, every index item.

The log is the truth; units and items are built again from it in memory and compared with what stands in the files. The
files are mapped afresh and privately: what recovery mends in memory when a store is opened is seen here as it is on
disk, and nothing is changed.

After an unclean stop (or beside a running broker) queues and index may trail the log: what is missing at their end is
then counted as `units_behind` and `index_items_behind`, not as a problem, because the next opening writes it.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from stratalog.errors import ConfigurationError
from stratalog.kernels.scan import VERIFY, ScanStatus, find_record, scan
from stratalog.layout.message import BLANK, MAGIC_BLANK
from stratalog.layout.names import COMMIT_LOG
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import MappedFile, PrivateDisk
from stratalog.store.recovery import Damage
from stratalog.store.verify_index import IndexCheck
from stratalog.store.verify_queues import QueueCheck
from stratalog.store.verify_report import CHUNK_RECORDS, Chunk, Problem, VerifyReport

if TYPE_CHECKING:
    from stratalog.store.message_store import MessageStore

_ZERO_BLOCK_SIZE = 1 << 20
_MEANING = {
    ScanStatus.END: "bytes that are no record",
    ScanStatus.BLANK: "the mark of a file's end, but not at its end",
    ScanStatus.BAD_MAGIC: "no record's magic number",
    ScanStatus.BAD_SIZE: "a size that is smaller than a record or runs past the file",
    ScanStatus.BAD_BODY_SIZE: "a body size that does not fit into the record",
    ScanStatus.BAD_LENGTHS: "lengths that do not add up to the record's size",
    ScanStatus.BAD_OFFSET: "a record that belongs to another place of the log",
    ScanStatus.BAD_CRC: "a body that does not have the CRC in its head",
    ScanStatus.BAD_RECORD_CRC: "a record that does not have the CRC at the end of its properties",
}

Progress = Callable[[int, int, int], None]
"""Called with (bytes done, bytes in all, records done)."""


def verify(store: "MessageStore", *, progress: Progress | None = None) -> VerifyReport:
    """Check everything in a store that was opened with mode="r". Damage is data in the report, never an exception.

    Runs at the speed of the scan (body CRCs included) plus a rebuild of the derived files in memory. Raises
    `ConfigurationError` for a store that is open for writing, whose files are not what they will be when it is closed.
    """
    if store.log.failure is None:
        raise ConfigurationError(f"{store.root} is open for writing: verify opens a store with mode='r'")
    disk = PrivateDisk()
    log = CommitLog(store.root / COMMIT_LOG, disk, file_size=store.settings.commit_log_file_size)
    log.load()
    report = VerifyReport(str(store.root), store.recovery.clean, log_begin=log.first_offset)
    report.log_file_count = len(log.files)
    try:
        queues = QueueCheck(store.root, store.settings, disk, report)
        index = IndexCheck(store.root, store.settings, disk, report) if store.settings.message_index_enable else None
        for chunk in _chunks(log, report):
            report.record_count += len(chunk.positions)
            queues.check(chunk)
            if index:
                index.check(chunk)
            if progress:
                done = chunk.end_offset - log.first_offset
                progress(done, max(done, store.log.end_offset - log.first_offset), report.record_count)
        queues.finish()
        if index:
            index.finish()
    finally:
        log.close()
    return report


def _chunks(log: CommitLog, report: VerifyReport) -> Iterator[Chunk]:
    """Every whole record from the log's beginning to its end. Damage between them goes into the report before the
    records behind it are handed out."""
    positions, sizes = np.empty(CHUNK_RECORDS, np.int64), np.empty(CHUNK_RECORDS, np.int32)
    offset = report.log_end = log.first_offset
    while offset < log.end_offset:
        file, position = log.file_at(offset)
        base = offset - position
        count, position, status = scan(file.address, position, file.size, base, VERIFY, positions, sizes)
        offset = base + position
        if count:
            report.log_end = offset
            yield Chunk(file, base, positions[:count], sizes[:count])
        if status == ScanStatus.FULL:
            continue
        if _closes_file(file, position):
            offset = base + file.size
            continue
        following = _next_record(log, offset)
        if following is None:
            _end_of_log(report, file, position)
            return
        report.damages.append(Damage(offset, following, ScanStatus(status).name))
        report.add(
            Problem(
                "log", str(file.path), position, "a whole record", f"{_MEANING[ScanStatus(status)]}; "
                f"{following - offset:,} bytes up to the next whole record at log offset {following:,} cannot be read",
                "restore the file from a copy; as it is, the store opens, skips the range and serves what is behind it",
            )
        )  # fmt: skip
        offset = following


def _closes_file(file: MappedFile, position: int) -> bool:
    """Whether the file properly ends here: its closing blank record covers the rest, or not even that would fit."""
    if file.size - position < BLANK.size:
        return True
    blank = BLANK.unpack(file.view.data, position)
    return bool(blank.magic == MAGIC_BLANK and blank.size == file.size - position)


def _next_record(log: CommitLog, offset: int) -> int | None:
    """Log offset of the next whole record behind `offset`, None when there is none. Zeros are passed over quickly."""
    file, position = log.file_at(offset)
    for other in log.files[log.files.index(file) :]:
        base = int(other.path.name)
        begin = _first_written(other, position + 1 if other is file else 0)
        found = find_record(other.address, begin, other.size, base)
        if found >= 0:
            return int(base + found)
    return None


def _first_written(file: MappedFile, begin: int) -> int:
    """A position at most one block before the first byte that is not zero; a record may begin there or later."""
    position = begin
    while position < file.size and not file.view[position : position + _ZERO_BLOCK_SIZE].any():
        position += _ZERO_BLOCK_SIZE
    return max(begin, position - BLANK.size)


def _end_of_log(report: VerifyReport, file: MappedFile, position: int) -> None:
    """No record follows: the log ends here. Something written behind the end is a record that was never finished."""
    written = np.flatnonzero(file.view[position : position + (8 << 20)])
    report.torn_size = int(written[-1]) + 1 if written.size else 0
    if report.torn_size and report.clean:
        report.add(
            Problem(
                "log", str(file.path), position, "the end of the log (zeros), because the store was closed properly",
                f"{report.torn_size:,} bytes of a damaged record", "restore the file from a copy before the store is "
                "opened for writing, which passes over these bytes or cuts them off",
            )
        )  # fmt: skip
        report.damages.append(Damage(report.log_end, int(file.path.name) + file.size, "TORN"))
    elif report.torn_size:
        report.notes.append(
            f"{file.path} at byte {position:,}: {report.torn_size:,} bytes of an unfinished record; "
            "the next opening for writing cuts them off"
        )
