"""What a store does when it is opened: find the log's end, then bring the derived files into line with it.

The scan meets one of these situations; each has one decision.

    found                                        verdict     decision
    -----------------------------------------    --------    ---------------------------------------------------------
    magic, sizes, log offset and body CRC hold   WHOLE       keep, derive queue unit and index items
    the blank record, or too little room for     BLANK       go on in the next file
      one more record
    none of these, no whole record behind it     TORN        the log ends here; the bytes behind are zeroed, later files
                                                             removed (old records must not rise again)
    none of these, a whole record behind it,     CORRUPT     not a tail: the range is quarantined (left as it is and
      or below what was durable once                         reported), messages behind it are served

Every step can be interrupted and run again: nothing but bytes behind the log's end is changed in the log, everything
else is derived. After a clean stop (no `abort` file) the scan begins at the newest record that a queue knows; otherwise
at the checkpoint, which was written only from flushed data; without one, at the log's beginning.
"""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData
from stratalog.kernels.scan import TRUST, VERIFY, ScanStatus, find_record, scan
from stratalog.layout.message import BLANK, FIXED_SIZE_V1, HEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, decode_record
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import MappedFile
from stratalog.store.dispatch import CHUNK_RECORDS, Dispatcher
from stratalog.store.index_file import Index

_CLOCK_MARGIN_MS = 3000
"""A 5.3 checkpoint knows times only; upstream goes back this much further."""


class Verdict(Enum):
    """What stands at a position of the log; see the table above."""

    WHOLE = "whole"
    BLANK = "blank"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Damage:
    """A range [begin, end) of the log that holds no whole record, with whole records behind it."""

    begin: int
    end: int
    reason: str


@dataclass(slots=True)
class Recovery:
    """What opening a store found and did. Offsets are log offsets in bytes."""

    clean: bool
    untouched: bool = False
    """The log was exactly as the clean stop had left it."""
    scanned_from: int = 0
    end_offset: int = 0
    record_count: int = 0
    torn_size: int = 0
    """Bytes of a torn record behind the end (0: the log ended with a whole record)."""
    rebuilt: bool = False
    """Queues or index were not as the clean stop had left them: all were derived again from the whole log."""
    quarantined: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What else the user should know: a config file whose copy was read, for example."""


def recover(
    log: CommitLog, dispatcher: Dispatcher, index: Index | None, checkpoint: Checkpoint, *, clean: bool,
    untouched: bool = False,
) -> Recovery:  # fmt: skip
    """Bring log, queues and index to a common state; the log is ready for appending afterwards.

    `untouched` says that nothing has been written to the log since the clean stop: nothing stands behind its end then.
    Raises `CorruptData` when a part of the log is not there.
    """
    last = max((unit for queue in dispatcher.queues.values() if (unit := queue.last_unit())), default=None)
    if not log.files and last:
        raise CorruptData(
            "the queues hold messages but the log has no file: restore commitlog/, or remove consumequeue/ and index/ "
            "to begin with an empty store",
            path=str(log.directory),
        )
    intact = _queues_are_intact(checkpoint.seal, dispatcher)
    if not intact:
        start = log.first_offset
    elif clean:
        start = _start_after_clean_stop(log, last[0] if last else -1)
    else:
        start = _start_after_crash(log, checkpoint)
    report = Recovery(clean=clean, untouched=untouched, scanned_from=start)
    vouched_end = checkpoint.seal.log_end_offset if checkpoint.seal else 0
    report.end_offset = _scan(log, start, log.end_offset, vouched_end, report)
    if index:
        index.load(report.end_offset, clean=clean)
        intact = intact and _index_is_intact(checkpoint.seal, index, log, report)
        if not intact:
            index.clear()
    report.rebuilt = not intact
    begin = start if not index or index.is_complete else max(log.first_offset, min(start, index.resume_offset))
    if begin < start:  # damage there was found by an earlier opening, and is passed over again
        _scan(log, begin, start, 0, report)
    log.end_at(report.end_offset, is_zeroed=report.untouched and report.end_offset == vouched_end)
    ends = {queue: queue.offset_of(report.end_offset) for queue in dispatcher.queues.values()}
    if intact and not any(damage.begin < vouched_end for damage in report.quarantined):
        start = report.end_offset if clean else max(start, vouched_end)  # a stop from here on breaks no seal
    for queue in dispatcher.queues.values():
        queue.truncate(min(start, report.end_offset))
    _redispatch(dispatcher, begin, report)
    if report.quarantined:  # an offset that was given to a message is never given to another
        for queue, end in ((queue, end) for queue, end in ends.items() if queue.end_offset < end):
            queue.skip_to(end, max(damage.end for damage in report.quarantined) - 1)
    return report


def _queues_are_intact(seal: Seal | None, dispatcher: Dispatcher) -> bool:
    """Whether the queues hold at least what the seal says; a store that RocketMQ closed has no seal to break."""
    if any(queue.is_damaged for queue in dispatcher.queues.values()):
        return False
    if seal is None:
        return True
    ends = [(queue.first_offset, queue.offset_of(seal.log_end_offset)) for queue in dispatcher.queues.values()]
    counts = [end - first for first, end in ends if end > first]
    return (len(counts), sum(counts)) == (seal.queue_count, seal.unit_count)


def _index_is_intact(seal: Seal | None, index: Index, log: CommitLog, report: Recovery) -> bool:
    """The same for the index. After a crash some items are missing at its end; in the middle none may."""
    if seal is None:
        return True
    if report.clean and seal.log_end_offset == report.end_offset:
        return index.item_count == seal.index_item_count
    begin = log.first_offset
    for file in index.files:
        if _holds_keys(log, index, begin, file.begin_commit_log_offset):
            return False
        if file.end_commit_log_offset >= log.first_offset:
            begin = file.end_commit_log_offset + log.message(file.end_commit_log_offset).store_size
    return True


def _holds_keys(log: CommitLog, index: Index, begin: int, end: int) -> bool:
    """Whether any record of [begin, end) should be in the index."""
    positions, sizes = np.empty(CHUNK_RECORDS, np.int64), np.empty(CHUNK_RECORDS, np.int32)
    for file, position, stop, base in log.extents(begin, end):
        status = int(ScanStatus.FULL)
        while status == ScanStatus.FULL:
            count, position, status = scan(file.address, position, stop, base, TRUST, positions, sizes)
            if count and index.has_keys(file.address, positions, count, base):
                return True
    return False


def _start_after_clean_stop(log: CommitLog, newest: int) -> int:
    inside = log.first_offset <= newest < log.end_offset
    return newest if inside and _is_record(log, newest) else log.first_offset


def _start_after_crash(log: CommitLog, checkpoint: Checkpoint) -> int:
    """A record start at or before everything that the crash may have taken from the queues."""
    offset = checkpoint.logics_commit_log_offset
    if log.first_offset <= offset < log.end_offset and _is_record(log, offset):
        return offset
    known = min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) - _CLOCK_MARGIN_MS
    if known > 0 and not offset:
        for number in range(len(log.files) - 1, 0, -1):
            first = log.first_offset + number * log.file_size
            if _is_record(log, first) and log.message(first).store_timestamp <= known:
                return first
    return log.first_offset


def _is_record(log: CommitLog, commit_log_offset: int) -> bool:
    file, position = log.file_at(commit_log_offset)
    one = np.empty(1, np.int64), np.empty(1, np.int32)
    count, _, _ = scan(file.address, position, file.size, commit_log_offset - position, VERIFY, *one)
    return bool(count)


def _scan(log: CommitLog, start: int, stop: int, vouched_end: int, report: Recovery) -> int:
    """Walk the log from `start` to `stop`, verifying every record; returns where the log ends.

    Below `vouched_end` everything was durable once: what is missing there was damaged, and is not a torn tail. Raises
    `CorruptData` when the log ends before.
    """
    positions, sizes = np.empty(CHUNK_RECORDS, np.int64), np.empty(CHUNK_RECORDS, np.int32)
    offset = end = start
    while log.first_offset <= offset < stop:
        file, position = log.file_at(offset)
        base = offset - position
        limit = min(file.size, stop - base)
        count, position, status = scan(file.address, position, limit, base, VERIFY, positions, sizes)
        torn = count if report.clean else _first_torn(file, positions[:count], sizes[:count], vouched_end - base)
        if torn < count:
            count, position, status = torn, int(positions[torn]), int(ScanStatus.BAD_LENGTHS)
        report.record_count += count
        offset = base + position
        if count:
            end = offset
        if status == ScanStatus.FULL or offset >= stop:
            continue
        if report.untouched and offset == vouched_end:
            break
        if _closes_file(file, position):
            offset = end = base + file.size
            continue
        following = _next_record(log, offset)
        if following is None and offset < vouched_end <= log.end_offset:
            following = end = vouched_end
        if following is None:
            _check_not_cut(log, file, position)
            report.torn_size = _written_size(file, position)
            break
        report.quarantined.append(Damage(offset, following, ScanStatus(status).name))
        offset = following
    if end < vouched_end:
        raise CorruptData(
            f"the log ends at offset {end:,}, but it once held messages up to {vouched_end:,}: restore what is missing."
            " To go on without those messages, remove consumequeue/, index/ and checkpoint: they are built again from "
            "what is there",
            path=str(log.directory),
            position=end,
        )
    return end


def _first_torn(file: MappedFile, positions: NDArray[np.int64], sizes: NDArray[np.int32], vouched: int) -> int:
    """Number of the first record at or behind position `vouched` whose properties were not written to their end; the
    count when there is none.

    No checksum covers properties. What a crash took from them is zeros, and properties end with a separator.
    """
    ends = positions + sizes
    view = file.view
    ends_with_zero = (view[ends - 1] == 0) & (positions >= vouched)
    for number in np.flatnonzero(ends_with_zero).tolist():
        if decode_record(view.data, int(positions[number]), verify=False).properties:
            return int(number)
    return len(positions)


def _closes_file(file: MappedFile, position: int) -> bool:
    if file.size - position < BLANK.size:
        return True
    blank = BLANK.unpack(file.view.data, position)
    return bool(blank.magic == MAGIC_BLANK and blank.size == file.size - position)


def _next_record(log: CommitLog, offset: int) -> int | None:
    """Log offset of the next whole record behind `offset`, None when there is none."""
    file, position = log.file_at(offset)
    number = (offset - log.first_offset) // log.file_size
    for other in log.files[number:]:
        base = int(other.path.name)
        found = find_record(other.address, position + 1 if other is file else 0, other.data_end, base)
        if found >= 0:
            return int(base + found)
    return None


def _check_not_cut(log: CommitLog, file: MappedFile, position: int) -> None:
    """A record that claims to go past its file's end was written into a longer file: the file has been cut."""
    if file.size - position < FIXED_SIZE_V1:
        return
    head = HEAD.unpack(file.view.data, position)
    base = int(file.path.name)
    plausible = head.magic in (MAGIC_V1, MAGIC_V2) and head.commit_log_offset == base + position
    if plausible and position + head.total_size + BLANK.size > file.size and len(log.files) == 1:
        raise CorruptData(
            f"a record of {head.total_size:,} bytes begins here but the file ends after {file.size:,}: it was cut. "
            "Restore it, or extend it with zeros to its full size (truncate -s) and open again: whole records are kept",
            path=str(file.path),
            position=position,
        )


def _written_size(file: MappedFile, position: int) -> int:
    """How far behind `position` something was written (bytes that are not zero), looking at one record's reach."""
    written = np.flatnonzero(file.view[position : position + (8 << 20)])
    return int(written[-1]) + 1 if written.size else 0


def _redispatch(dispatcher: Dispatcher, begin: int, report: Recovery) -> None:
    dispatcher.start_at(min(begin, report.end_offset))
    for damage in sorted(report.quarantined, key=lambda damage: damage.begin):
        if damage.end > begin:
            dispatcher.dispatch(damage.begin)
            dispatcher.skip(damage.end)
    dispatcher.dispatch(report.end_offset)
