"""One ConsumeQueue: 20-byte units that lead from a queue offset to the record in the log. Derived data."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratalog.layout.names import CONSUME_QUEUE
from stratalog.layout.queue import FILLER, FILLER_SIZE, LOST_TAGS_CODE, UNIT, fillers, hide_lost, is_filler, sound_count
from stratalog.store.disk import Disk
from stratalog.store.open_files import OpenFiles
from stratalog.store.queue_files import QueueFiles

_IN_FRONT = UNIT.unpack(FILLER)
_NO_OLDEST = (-1, -1), 0
_CHUNK_UNITS = 1 << 16
_NEAR_UNITS = 1024
_FOREVER = 2**63 - 1
IsOwn = Callable[[int, Sequence[int], int], bool]


class ConsumeQueue:
    """The units of one queue of one topic.

    `end_offset` is the queue offset after the last unit; the unit of offset q stands at byte `q * 20` of the queue's
    files together. A queue that begins in the middle (older messages had gone) is filled in front with filler units.
    A lost message's unit leads to a neighbour's record (`LOST_TAGS_CODE`); `unit` and `units` give it out as a filler.
    Written by the dispatcher only; reads go through the file descriptor: a unit is visible once `end_offset` covers it.
    """

    def __init__(self, root: Path, topic: str, queue_id: int, files: OpenFiles, disk: Disk, *, file_size: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.file_size = file_size
        self._files = QueueFiles(
            root, f"{CONSUME_QUEUE}/{topic}/{queue_id}", files, disk, file_size=file_size,
            setting="mapped_file_size_consume_queue",
        )  # fmt: skip
        self._newest: tuple[int, tuple[int, int, int]] = -1, (0, 0, 0)
        self._oldest = _NO_OLDEST
        self._old_end = 0
        self.end_offset = 0
        self.is_damaged = False
        self.unordered_end = -1
        """The end that `load` found, if the unit there points to an older record than one before it."""
        self.has_later_files = False
        """Whether there are files with units after that end."""
        self.is_replaced = False
        """Its files are another queue's: no unit counts."""
        self.is_kept: Callable[[Sequence[int]], bool] | None = None
        """While the queue is built again: whether an old unit may stay where the log has no record for the place."""
        self.is_own: IsOwn | None = None
        """While the queue is built again: whether the old unit at a queue offset leads to a record of that place, which
        another record, at that log offset, claims too."""

    @property
    def directory(self) -> Path:
        return self._files.directory

    @property
    def starts(self) -> tuple[int, ...]:
        """First byte of each file."""
        return tuple(self._files.starts)

    def restore(self, starts: list[int], end_offset: int, newest: tuple[int, int, int]) -> None:
        """Take the state that `load` would find from one who knows it: files, end, and the unit before the end."""
        self._files.starts, self.end_offset, self._newest = starts, end_offset, (end_offset, newest)

    def load(self, *, only_newest_file: bool = False) -> None:
        """Find the files and the end of the sound units. What follows it recovery builds again."""
        self.is_damaged = not self._files.load()
        self.end_offset = self._sound_end(self._files.starts[-1:] if only_newest_file else self._files.starts)
        while len(self._files.starts) > 1 and (start := self._files.starts[-1]) >= self.end_offset * UNIT.size:
            self.has_later_files |= any(self._files.read(start, self._files.data_end(start)))
            self._files.remove_last()

    def given_end(self, log_end: int) -> int:
        """Queue offset after the newest unit of a record before a log offset, be it after units that are not sound; one
        that no store can have written tells its own offset, too."""
        for start, data in self._files.newest_first():
            units = np.frombuffer(data, UNIT.dtype, len(data) // UNIT.size)
            offsets = units["commit_log_offset"]
            is_damaged = ((units["size"] <= 0) | (offsets < 0)) & ((units["size"] != 0) | (offsets != 0))
            known = np.flatnonzero(is_damaged | ((units["size"] > 0) & (offsets < log_end)))
            if known.size:
                return start // UNIT.size + int(known[-1]) + 1
        return self.end_offset

    def _sound_end(self, starts: Sequence[int]) -> int:
        """Queue offset of the first unit in these files that is zeros, or that points to an older record than one
        before it."""
        newest, chunk = -1, _CHUNK_UNITS * UNIT.size
        for start in starts:
            end = start + -(-self._files.data_end(start) // UNIT.size) * UNIT.size
            for position in range(start, end, chunk):
                units = np.frombuffer(self._files.read(position, min(chunk, end - position)), UNIT.dtype)
                count, newest = sound_count(units, newest)
                if count < len(units):
                    sound_end = position // UNIT.size + count
                    if units["size"][count] > 0:
                        self.unordered_end = sound_end
                    return sound_end
            if end < start + self.file_size:
                return end // UNIT.size
        return self._files.end // UNIT.size

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit in the files (which may be a filler)."""
        return self._files.begin // UNIT.size

    def min_offset(self, log_min_offset: int) -> int:
        """Queue offset of the first message in the log; the end when there is none (ConsumeQueue.correctMinOffset;
        there it may be that of a lost one)."""
        low, high = self.first_offset, self.end_offset
        ends = low, log_min_offset
        if self._oldest[0] == ends:
            return self._oldest[1]
        while low < high:
            while low < high:
                middle = (low + high) // 2
                unit = self.unit(middle)
                if unit == _IN_FRONT or 0 <= unit[0] < log_min_offset:  # a place below 0 is damage, not an old record
                    low = middle + 1
                else:
                    high = middle
            before = self._live_before(low, log_min_offset)
            if before is not None:
                low, high = self.first_offset, before
        low = self._damaged_before(low)
        while low < self.end_offset and self.unit(low)[1] == FILLER_SIZE:
            low += 1
        if low < self.end_offset:
            self._oldest = ends, low  # appended units come after it
        return low

    def _live_before(self, queue_offset: int, log_min_offset: int) -> int | None:
        """A unit that leads into the log before the one that a bisection found: a damaged one sent it past it."""
        limit = self.unit(queue_offset)[0] if queue_offset < self.end_offset else _FOREVER
        units = self._before(queue_offset)
        places = units["commit_log_offset"]
        is_live = (places >= log_min_offset) & (places < limit) & (units["size"] > 0) & ~fillers(units)
        if is_live.any():
            return queue_offset - len(units) + int(np.argmax(is_live))
        distance = 2 * _NEAR_UNITS
        while (before := queue_offset - distance) >= self.first_offset:
            place, size, _ = self.unit(before)
            if log_min_offset <= place < limit and 0 < size < FILLER_SIZE:
                return before
            distance *= 2
        return None

    def _damaged_before(self, queue_offset: int) -> int:
        """The first of the units right before one that are zeros, or lead to an older record than the unit before."""
        if queue_offset == self.end_offset:
            return queue_offset
        units = self._before(queue_offset)
        is_damaged = units["size"] <= 0
        is_damaged[1:] |= np.diff(units["commit_log_offset"]) < 0
        is_damaged &= ~fillers(units)
        return queue_offset - int(np.argmin(np.append(is_damaged[::-1], False)))

    def _before(self, queue_offset: int) -> NDArray[np.void]:
        first = max(self.first_offset, queue_offset - _NEAR_UNITS)
        stored = self._files.read(first * UNIT.size, (queue_offset - first) * UNIT.size)
        return np.frombuffer(stored, UNIT.dtype)

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """commit_log_offset, size and tags code of one unit."""
        commit_log_offset, size, tags_code = self._stored(queue_offset)
        return commit_log_offset, FILLER_SIZE if is_filler(size, tags_code) else size, tags_code

    def _stored(self, queue_offset: int) -> tuple[int, int, int]:
        unit: tuple[int, int, int] = UNIT.unpack(self._files.read(queue_offset * UNIT.size, UNIT.size))
        return unit

    def units(self, first: int, count: int) -> bytes:
        """Units [first, first + count), cut at the end of the queue."""
        count = max(0, min(count, self.end_offset - first))
        return hide_lost(self._files.read(first * UNIT.size, count * UNIT.size))

    def append(self, units: bytes | memoryview) -> None:
        """Write units after the end. While the queue is built again, old ones stay that lead to records of their own
        place; records that claim such a place are given to `is_own`."""
        if self.is_own and self.end_offset < self._old_end:
            units = self._with_old(units, self.is_own)
        self._files.write(self.end_offset * UNIT.size, units)
        self.end_offset += len(units) // UNIT.size

    def _with_old(self, units: bytes | memoryview, is_own: IsOwn) -> bytes | memoryview:
        stored = self._old_units(len(units) // UNIT.size)
        if stored == bytes(units[: len(stored)]):
            return units
        now, places = np.frombuffer(units, UNIT.dtype), np.frombuffer(stored, UNIT.dtype)["commit_log_offset"]
        others = np.flatnonzero((now["commit_log_offset"][: len(places)] != places) & ~fillers(now[: len(places)]))
        if not others.size:
            return units
        merged = now.copy()
        for number in others.tolist():
            old = self.old_unit(self.end_offset + number)
            if old and is_own(self.end_offset + number, old, int(now[number]["commit_log_offset"])):
                merged[number] = old
        return merged.tobytes()

    def _old_units(self, count: int) -> bytes:
        """Up to `count` old units from the end on."""
        count = min(count, self._old_end - self.end_offset)
        return self._files.read(self.end_offset * UNIT.size, count * UNIT.size)

    def newest(self) -> tuple[int, int, int]:
        """The unit before the end as it is stored, filler or not; there must be one."""
        end, unit = self._newest
        if end != self.end_offset:
            end = self.end_offset
            unit = self._stored(end - 1)
            self._newest = end, unit
        return unit

    def skip_to(self, queue_offset: int, place: tuple[int, int] | None, *, before: int = _FOREVER) -> None:
        """Fill up to `queue_offset`: a new queue begins in the middle, or messages were lost.

        The unit of a lost message leads to the record before it; where there is none, to `place` (log offset and size).
        Without one nothing was lost. An old unit stays that leads to a record between its neighbours' and `before`: a
        record was damaged, and the unit tells where it belongs.
        """
        position = queue_offset * UNIT.size
        begin = position - position % self.file_size
        if not self.end_offset and self._files.starts and self._files.begin != begin:
            self._files.cut(0)  # nothing of it is kept, and it begins elsewhere
            self._old_end = 0
        if not self._files.starts:
            self._files.add(begin)
        self.end_offset = max(self.end_offset, self.first_offset)
        last = self._place_before_end()
        place = last or place
        while self.end_offset < queue_offset and (unit := self.old_unit(self.end_offset)):
            if (last[0] if last else -1) < unit[0] < before and self.is_kept and self.is_kept(unit):
                self.append(UNIT.pack(*unit))
                last = place = unit[:2]
            else:
                self.append(UNIT.pack(*place, LOST_TAGS_CODE) if place else FILLER)
        filler = UNIT.pack(*place, LOST_TAGS_CODE) if place else FILLER
        while self.end_offset < queue_offset:
            self.append(filler * min(queue_offset - self.end_offset, 4096))

    def old_unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        """The unit that stood there before the queue was rewound, as it was stored; None where there was none, or where
        no old unit may stay."""
        is_there = self.is_kept is not None and self.first_offset <= queue_offset < self._old_end
        return self._stored(queue_offset) if is_there else None

    def leads_to(self, queue_offset: int, commit_log_offset: int) -> bool:
        """Whether the unit of a queue offset leads to that log offset."""
        return (
            self.first_offset <= queue_offset < self.end_offset and self._stored(queue_offset)[0] == commit_log_offset
        )

    def keep_end(self, queue_offset: int, place: tuple[int, int], first: int) -> None:
        """Keep offsets up to `queue_offset` from being given again: their messages were lost. At least one unit says
        so, at the end of a file, too; where no other is left, those from the offset `first` on."""
        if self.last_unit() is None:
            self.skip_to(first, None)
            self.skip_to(first + 1, place)  # the file that was begun stays
        self.skip_to(queue_offset, place)

    def _place_before_end(self) -> tuple[int, int] | None:
        """Log offset and size of the newest record that a unit leads to."""
        for queue_offset in range(self.end_offset - 1, self.first_offset - 1, -1):
            unit = self._stored(queue_offset)
            if unit[1] != FILLER_SIZE:  # several mean that an earlier version filled up here
                return unit[:2]
            if unit == _IN_FRONT:
                return None
        return None

    def offset_of(self, commit_log_offset: int) -> int:
        """Queue offset of the first unit of a record at or after a log offset; the end when there is none.

        A unit of zeros was lost in a crash: it counts as behind, as everything after it.
        """
        low, high = self.first_offset, self.end_offset
        if low < high and self.newest()[0] < commit_log_offset and self.newest()[1]:
            return high
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = self.unit(middle)
            if offset >= commit_log_offset or not size:
                high = middle
            else:
                low = middle + 1
        return low

    @property
    def unit_count(self) -> int:
        return max(0, self.end_offset - self.first_offset)

    def count_below(self, commit_log_offset: int) -> int:
        """Units of records before a log offset."""
        return self.offset_of(commit_log_offset) - self.first_offset

    def truncate(self, commit_log_offset: int) -> None:
        """Drop the units of records at or after `commit_log_offset`, and what follows the end: later files are removed,
        the rest of the last one is zeroed."""
        self._end_at(self.offset_of(commit_log_offset))

    def rewind(self, commit_log_offset: int) -> None:
        """Let the queue end before the units of records at or after `commit_log_offset`. They stay in the files, until
        others are written over them or `cut` drops them: whoever kills this process meanwhile leaves a queue that can
        be read."""
        self._rewind_to(self.offset_of(commit_log_offset))

    def drop_newest(self) -> None:
        """Let the queue end before the last unit, as `rewind` does."""
        self._rewind_to(self.end_offset - 1)

    def _rewind_to(self, queue_offset: int) -> None:
        if queue_offset < self.end_offset:
            self._old_end = max(self._old_end, self.end_offset)
            self.end_offset = queue_offset if queue_offset > self.first_offset else 0
            self._newest = -1, (0, 0, 0)
            self._oldest = _NO_OLDEST

    def cut(self) -> None:
        """Drop what follows the end: later files are removed, the rest of the last one is zeroed."""
        self._end_at(self.end_offset)
        self._old_end, self.is_kept, self.is_own = 0, None, None

    def _end_at(self, queue_offset: int) -> None:
        if self._files.cut(queue_offset * UNIT.size):
            self.end_offset = queue_offset if self._files.starts else 0
            self._newest = -1, (0, 0, 0)
            self._oldest = _NO_OLDEST

    def begin_before(self, queue_offset: int, commit_log_offset: int) -> None:
        """Let a message of that offset in, the queue's first in the log. A queue that begins after it lost its front:
        all of it is removed, to be built again."""
        if self.first_offset > queue_offset:
            self.end_offset = self._old_end = 0
            self._newest = -1, (0, 0, 0)
            self._oldest = _NO_OLDEST
            self._files.cut(0)

    def last_unit(self) -> tuple[int, int, int] | None:
        """The newest unit that is no filler, None when there is none."""
        if self.end_offset > self.first_offset:
            unit = self.newest()
            if not is_filler(*unit[1:]):
                return unit
        return None

    def unit_before(self, commit_log_offset: int) -> tuple[int, int, int] | None:
        """The newest unit of a record before a log offset, as `unit` gives it."""
        low = self.offset_of(commit_log_offset)
        return self.unit(low - 1) if low > self.first_offset else None

    def newest_units(self, count: int) -> list[tuple[int, tuple[int, ...]]]:
        """Queue offset and stored unit of the last `count` units, newest first."""
        numbers = range(self.end_offset - 1, max(self.first_offset, self.end_offset - count) - 1, -1)
        return [(number, self._stored(number)) for number in numbers]
