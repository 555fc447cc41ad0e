"""A queue of a batch topic: 46-byte units that each cover one record, and as many messages as are in it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stratalog.errors import CorruptData
from stratalog.layout.batch import batch_size_of
from stratalog.layout.message import queue_offset_limit
from stratalog.layout.names import BATCH_CONSUME_QUEUE
from stratalog.layout.queue import (
    BATCH_COMPACTED_OFFSET,
    BATCH_SIZE_MAX,
    BATCH_UNIT,
    LOST_TAGS_CODE,
    is_filler,
    sound_count,
)
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import Disk
from stratalog.store.message import Message
from stratalog.store.open_files import OpenFiles
from stratalog.store.queue_files import QueueFiles

_SIZE = BATCH_UNIT.size
_CHUNK_UNITS = 1024
_NO_OLDEST = (-1, -1), 0
_FOREVER = 2**63 - 1

BatchUnits = np.ndarray[tuple[int], np.dtype[np.void]]


class BatchSpan(NamedTuple):
    """A unit that was checked against its record: it covers the queue offsets [begin, end)."""

    number: int
    begin: int
    end: int
    message: Message | None
    """The record, None where the messages were lost."""


class BatchQueue:
    """The units of one queue whose topic is of type BatchCQ (upstream: BatchConsumeQueue). Derived data.

    A unit names its first queue offset and how many it covers, so the place of a unit says nothing about offsets: they
    are found by bisection. Units follow each other without a gap. Written by the dispatcher only; a unit is visible
    once `end_offset` covers it.
    """

    def __init__(
        self, root: Path, topic: str, queue_id: int, files: OpenFiles, disk: Disk, log: CommitLog, *, file_size: int
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = root / BATCH_CONSUME_QUEUE / topic / str(queue_id)
        self._log = log
        self._files = QueueFiles(
            root,
            f"{BATCH_CONSUME_QUEUE}/{topic}/{queue_id}",
            files,
            disk,
            file_size=file_size,
            setting="mapper_file_size_batch_consume_queue",
        )
        self._end = self._old_end = 0
        self._oldest = _NO_OLDEST
        self.end_offset = 0
        self.is_damaged = self.is_replaced = False
        self.is_kept: Callable[[Sequence[int]], bool] | None = None
        """As that of a `ConsumeQueue`."""

    def load(self, *, only_newest_file: bool = False) -> None:
        """Find the files and the end of the sound units. Raises `CorruptData` for a file of another size."""
        self.is_damaged = not self._files.load()
        self._end = self._sound_end(self._files.starts[-1:] if only_newest_file else self._files.starts)
        if self._end > self._first:
            last = self._unit(self._end - 1)
            self.end_offset = last.base_offset + last.batch_size

    def given_end(self, log_end: int) -> int:
        """Queue offset after the newest unit of a record before a log offset, be it after units that are not sound; one
        that no store can have written tells its own offset, too. None ends after the next unit's begin."""
        for _, data in self._files.newest_first():
            units = np.frombuffer(data, BATCH_UNIT.dtype, len(data) // _SIZE)
            offsets = units["commit_log_offset"]
            is_damaged = ((units["size"] <= 0) | (offsets < 0)) & ((units["size"] != 0) | (offsets != 0))
            is_known = (is_damaged & (units["batch_size"] > 0)) | ((units["size"] > 0) & (offsets < log_end))
            is_known &= units["base_offset"] <= queue_offset_limit(np.maximum(offsets, 0).astype(np.int64))
            known = np.flatnonzero(is_known)
            if known.size:
                last, later = (
                    units[known[-1]],
                    units["base_offset"][known[-1] + 1 :][units["size"][known[-1] + 1 :] > 0],
                )
                end = int(last["base_offset"]) + max(1, int(last["batch_size"]))
                return min(end, int(later[0])) if later.size else end
        return self.end_offset

    def _sound_end(self, starts: Sequence[int]) -> int:
        """Number of the first unit that is zeros, or that is not after those before it in the log or in the queue; of
        the one before, if this one is right by its record or by the next unit."""
        newest, next_offset = -1, 0
        for first in range(starts[0] // _SIZE if starts else 0, self._files.end // _SIZE, _CHUNK_UNITS):
            count = min(_CHUNK_UNITS, self._files.end // _SIZE - first)
            units = np.frombuffer(self._files.read(first * _SIZE, count * _SIZE), BATCH_UNIT.dtype)
            sound, newest = sound_count(units, newest)
            base_offsets, sizes = units["base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
            after = np.concatenate(([next_offset], base_offsets + sizes))
            is_wild = base_offsets > queue_offset_limit(units["commit_log_offset"].astype(np.int64))
            unsound = np.flatnonzero(((base_offsets < after[:-1]) | (sizes <= 0) | is_wild)[:sound])
            if unsound.size:
                sound = int(unsound[0])
                fields = BATCH_UNIT.record._make(units[sound].item())
                span = self._checked(first + sound, fields) if fields.size > 0 else None
                is_followed = sound + 1 < count and base_offsets[sound + 1] == after[sound + 1] > base_offsets[sound]
                is_right = is_followed or (span is not None and span.message is not None)
                is_right &= bool(sizes[sound] > 0)
                sound -= is_right and first + sound > self._first
            if sound < count:
                return first + sound
            next_offset = int(after[-1])
        return self._files.end // _SIZE

    def _is_of(self, message: Message, unit: Any) -> bool:
        """Whether the record that a unit points to is this queue's, and has the offset and size in the unit."""
        found = message.topic, message.queue_id, message.queue_offset, message.store_size
        return found == (self.topic, self.queue_id, unit.base_offset, unit.size)

    @property
    def _first(self) -> int:
        """Number of the first unit in the files."""
        return self._files.begin // _SIZE

    def _unit(self, number: int) -> Any:
        return BATCH_UNIT.unpack(self._files.read(number * _SIZE, _SIZE))

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit in the files; `end_offset` when there is none."""
        return int(self._unit(self._first).base_offset) if self._end > self._first else self.end_offset

    def min_offset(self, log_min_offset: int) -> int:
        """First queue offset whose record is still in the log; the end when none is."""
        ends = self._first, log_min_offset
        if self._oldest[0] != ends:
            begin = self._find_min(log_min_offset)
            if begin is None:
                return self.end_offset
            self._oldest = ends, begin
        return self._oldest[1]

    def _find_min(self, log_min_offset: int) -> int | None:
        """First offset of the live units. Where the first of them is damaged, its number: it cannot begin below that,
        for each unit before it covers a message or more. So too where log and queue begin at 0 and the unit does not:
        nothing was removed, the first units are another queue's."""
        units = self.table()
        places, bases = units["commit_log_offset"], units["base_offset"]
        live = np.flatnonzero((places >= log_min_offset) | (places < 0))  # a place below 0 is damage, not an old record
        if not live.size:
            return None
        number = self._first + int(live[0])
        first = self._span(number)
        is_cut = bool(self._first or log_min_offset)
        if (
            first
            and (is_cut or not first.begin)
            and not any(self._span(self._first + int(one)) for one in live[bases[live] < first.begin])
        ):
            return first.begin
        return number

    def _number_of(self, commit_log_offset: int) -> int:
        """Number of the first unit of a record at or after a log offset."""
        low, high = self._first, self._end
        while low < high:
            middle = (low + high) // 2
            unit = self._unit(middle)
            if unit.commit_log_offset >= commit_log_offset or not unit.size:
                high = middle
            else:
                low = middle + 1
        return low

    def offset_of(self, commit_log_offset: int) -> int:
        """Queue offset of the first unit of a record at or after a log offset; the end when there is none."""
        number = self._number_of(commit_log_offset)
        return int(self._unit(number).base_offset) if number < self._end else self.end_offset

    @property
    def unit_count(self) -> int:
        return self._end - self._first

    def count_below(self, commit_log_offset: int) -> int:
        """Units of records before a log offset."""
        return self._number_of(commit_log_offset) - self._first

    def _number_covering(self, queue_offset: int) -> int:
        """Number of the unit that covers an offset, or of the next one when none does."""
        low, high = self._first, self._end
        while low < high:
            middle = (low + high) // 2
            unit = self._unit(middle)
            if unit.base_offset + unit.batch_size > queue_offset:
                high = middle
            else:
                low = middle + 1
        return low

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """commit_log_offset, size and tags code of the unit that covers an offset, or of the next one."""
        unit = self._unit(self._number_covering(queue_offset))
        return unit.commit_log_offset, unit.size, unit.tags_code

    def table(self) -> BatchUnits:
        """All units, a copy."""
        stored = self._files.read(self._first * _SIZE, (self._end - self._first) * _SIZE)
        return np.frombuffer(stored, BATCH_UNIT.dtype)

    # -- units checked against their records -------------------------------------------------------------------------

    def spans(self, first: int) -> Iterator[BatchSpan | None]:
        """The units from number `first` on, each checked; None for one that does not lead to a record of this queue.
        Ends at the end of the queue as it is then."""
        while first < self._end:
            count = min(_CHUNK_UNITS, self._end - first)
            stored = self._files.read(first * _SIZE, count * _SIZE)
            for number, fields in enumerate(BATCH_UNIT.struct.iter_unpack(stored), first):
                yield self._checked(number, BATCH_UNIT.record._make(fields))
            first += count

    def _checked(self, number: int, unit: Any) -> BatchSpan | None:
        begin = unit.base_offset
        if is_filler(unit.size, unit.tags_code):
            end = begin + unit.batch_size
            return BatchSpan(number, begin, end, None) if 0 <= begin < end else None
        try:
            message = self._log.message(unit.commit_log_offset)
        except CorruptData:
            return None
        is_mine = begin >= 0 and self._is_of(message, unit)
        return BatchSpan(number, begin, begin + _size_of(message), message) if is_mine else None

    def _span(self, number: int) -> BatchSpan | None:
        return self._checked(number, self._unit(number)) if self._first <= number < self._end else None

    def covering(self, queue_offset: int) -> BatchSpan | None:
        """The unit that covers an offset, wherever it stands: damaged and exchanged units are looked past. None when
        there is none."""
        span = self._span(self._number_covering(queue_offset))
        if span and span.begin <= queue_offset < span.end:
            return span
        units = self.table()
        bases = units["base_offset"]
        covers = (bases <= queue_offset) & (bases + units["batch_size"] > queue_offset)
        begins = np.flatnonzero(bases <= queue_offset)
        nearest = [begins[np.argmax(bases[begins])]] if begins.size else []  # its size may be what is damaged
        for number in (*np.flatnonzero(covers), *nearest):
            span = self._span(self._first + int(number))
            if span and span.begin <= queue_offset < span.end:
                return span
        return None

    def following(self, queue_offset: int) -> tuple[int, int]:
        """For an offset that no unit covers: the next one that a unit covers (the end when there is none), and the
        number of the unit before that one. Units follow each other without a gap, so the offsets between are lost."""
        bases = self.table()["base_offset"]
        later = np.flatnonzero(bases > queue_offset)
        number, following = self._end, self.end_offset
        for one in later[np.argsort(bases[later], kind="stable")].tolist():
            span = self._span(self._first + one)
            if span:
                number, following = span.number, min(span.begin, self.end_offset)
                break
        return following, max(number - 1, self._first)

    def store_timestamp(self, queue_offset: int) -> int:
        """Store time of the first whole message at or after an offset; 2^63 when there is none."""
        while queue_offset < self.end_offset:
            span = self.covering(queue_offset)
            if span and span.message:
                return span.message.store_timestamp
            queue_offset = span.end if span else self.following(queue_offset)[0]
        return 1 << 63

    def place(self, number: int) -> int:
        """Log offset in a unit, true or not."""
        return int(self._unit(number).commit_log_offset)

    @property
    def next_commit_log_offset(self) -> int:
        """Log offset after the start of the newest unit's record: records before have their units."""
        return int(self._unit(self._end - 1).commit_log_offset) + 1 if self._end > self._first else 0

    def newest(self) -> Any:
        """Fields of the last unit, None when there is none."""
        return self._unit(self._end - 1) if self._end > self._first else None

    def append(self, units: bytes) -> None:
        """Write units after the end."""
        self._files.write(self._end * _SIZE, units)
        last, count = BATCH_UNIT.unpack(units, len(units) - _SIZE), len(units) // _SIZE
        self._end, self.end_offset = self._end + count, last.base_offset + last.batch_size  # both or none: no call

    def keep_end(self, queue_offset: int, place: tuple[int, int], first: int) -> None:
        """Keep offsets up to `queue_offset` from being given again, as that of a `ConsumeQueue`."""
        last = self.newest()
        units = self.gap_units(last, queue_offset)
        if last is None and not units:
            self.end_offset = max(self.end_offset, first)
            last = BATCH_UNIT.record(*place, 0, 0, self.end_offset, 0, BATCH_COMPACTED_OFFSET, 0)
            units = lost_units(last, queue_offset)
        if units:
            self.append(units)

    def gap_units(self, last: Any, queue_offset: int, *, before: int = _FOREVER, ahead: int = 0) -> bytes:
        """Units for the offsets between `last` (None: the queue's begin), `ahead` units after the end, and
        `queue_offset`: old ones that stay, as those of a `ConsumeQueue`, and those of lost messages."""
        units = b""
        while old := self.old_unit(ahead + len(units) // _SIZE):
            end, newest = (last.base_offset + last.batch_size, last.commit_log_offset) if last else (0, -1)
            is_between = end <= old.base_offset < old.base_offset + old.batch_size <= queue_offset
            if not (is_between and newest < old.commit_log_offset < before and self.is_kept and self.is_kept(old)):
                break
            units += (lost_units(last, old.base_offset) if last else b"") + BATCH_UNIT.pack(*old)
            last = old
        return units + (lost_units(last, queue_offset) if last else b"")

    def old_unit(self, ahead: int) -> Any:
        """The unit that stood so many units after the end before the queue was rewound; None after the last, or where
        no old unit may stay."""
        is_there = self.is_kept is not None and self._end + ahead < self._old_end
        return self._unit(self._end + ahead) if is_there else None

    def owns(self, unit: Any, queue_offset: int) -> bool:
        """Whether a unit covers a queue offset and leads to a record of this queue that has it."""
        if not unit.base_offset <= queue_offset < unit.base_offset + unit.batch_size:
            return False
        try:
            return self._is_of(self._log.message(unit.commit_log_offset), unit)
        except CorruptData:
            return False

    def truncate(self, commit_log_offset: int) -> None:
        """Drop the units of records at or after `commit_log_offset`, and what follows the end: later files are removed,
        the rest of the last one is zeroed."""
        self._end_at(self._number_of(commit_log_offset))

    def rewind(self, commit_log_offset: int) -> None:
        """As that of a `ConsumeQueue`. A queue of which nothing stays is numbered from the first file again."""
        number = self._number_of(commit_log_offset)
        if number <= self._first and self._first:
            self._end_at(number)
            self._old_end = 0  # a torn newest unit was dropped before
        elif number < self._end:
            self._rewind_to(number)

    def drop_newest(self) -> None:
        """Let the queue end before the last unit, as `rewind` does."""
        self._rewind_to(self._end - 1)

    def _rewind_to(self, number: int) -> None:
        self._old_end = max(self._old_end, self._end)
        self._take_end(number)

    def cut(self) -> None:
        """Drop what follows the end: later files are removed, the rest of the last one is zeroed."""
        self._end_at(self._end)
        self._old_end, self.is_kept = 0, None

    def _end_at(self, number: int) -> None:
        if self._files.cut(number * _SIZE):
            self._take_end(number if self._files.starts else 0)

    def _take_end(self, number: int) -> None:
        self._oldest, self._end = _NO_OLDEST, number
        last = self._unit(number - 1) if number > self._first else None
        self.end_offset = last.base_offset + last.batch_size if last else 0

    def begin_before(self, queue_offset: int, commit_log_offset: int) -> None:
        """Let the record at that log offset in, the queue's first in the log. A queue that begins after it lost its
        front: all of it is removed, to be built again."""
        if self._end > self._first and self._unit(self._first).commit_log_offset > commit_log_offset:
            begin, self._end, self.end_offset, self._old_end = self._first, 0, 0, 0
            self._oldest = _NO_OLDEST
            self._files.cut(begin * _SIZE)

    def last_unit(self) -> tuple[int, int, int] | None:
        """The newest unit that is no filler, None when there is none."""
        if self._end > self._first:
            unit = self._unit(self._end - 1)
            if not is_filler(unit.size, unit.tags_code):
                return unit.commit_log_offset, unit.size, unit.tags_code
        return None

    def unit_before(self, commit_log_offset: int) -> tuple[int, int, int] | None:
        """The newest unit of a record before a log offset."""
        number = self._number_of(commit_log_offset)
        if number == self._first:
            return None
        unit = self._unit(number - 1)
        return unit.commit_log_offset, unit.size, unit.tags_code

    def newest_units(self, count: int) -> list[tuple[int, tuple[int, ...]]]:
        """First queue offset and fields of the last `count` units, newest first."""
        units = [self._unit(number) for number in range(self._end - 1, max(self._first, self._end - count) - 1, -1)]
        return [(unit.base_offset, tuple(unit)) for unit in units]


def lost_units(last: Any, queue_offset: int) -> bytes:
    """Units for the offsets between a unit and `queue_offset`, whose messages were lost: they lead to its record."""
    units, end = bytearray(), last.base_offset + last.batch_size
    while end < queue_offset:
        count = min(queue_offset - end, BATCH_SIZE_MAX)
        place = last.commit_log_offset, last.size, LOST_TAGS_CODE, last.store_timestamp
        units += BATCH_UNIT.pack(*place, end, count, BATCH_COMPACTED_OFFSET, 0)
        end += count
    return bytes(units)


def _size_of(message: Message) -> int:
    """Queue offsets that a record covers."""
    return batch_size_of(message.sys_flag, message.raw_properties, message.queue_offset)[0]
