"""A queue of a batch topic: 46-byte units that each cover one record, and as many messages as are in it."""

from pathlib import Path
from typing import Any

from stratalog.errors import CorruptData
from stratalog.layout.names import BATCH_CONSUME_QUEUE
from stratalog.layout.queue import BATCH_COMPACTED_OFFSET, BATCH_SIZE_MAX, BATCH_UNIT, LOST_TAGS_CODE, is_filler
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import Disk
from stratalog.store.open_files import OpenFiles
from stratalog.store.queue_files import QueueFiles

_SIZE = BATCH_UNIT.size


class BatchQueue:
    """The units of one queue whose topic is of type BatchCQ (upstream: BatchConsumeQueue). Derived data.

    A unit names its first queue offset and how many it covers, so the place of a unit says nothing about offsets: they
    are found by bisection. Between two units offsets may be missing. Written by the dispatcher only; a unit is visible
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
        self._end = 0
        self.end_offset = 0
        self.is_damaged = False

    def load(self) -> None:
        """Find the files and the end of the written units. Raises `CorruptData` for a file of another size."""
        self.is_damaged = not self._files.load()
        low, high = self._first, self._files.end // _SIZE
        while low < high:
            middle = (low + high) // 2
            if self._unit(middle).size > 0:
                low = middle + 1
            else:
                high = middle
        self._end = low
        if low > self._first:
            last = self._unit(low - 1)
            self.end_offset = last.base_offset + last.batch_size
            self.is_damaged = self.is_damaged or self._contradicts(last)

    def _contradicts(self, unit: Any) -> bool:
        """Whether the record says something else about offsets than the unit: nothing else vouches for it."""
        is_inside = self._log.first_offset <= unit.commit_log_offset < self._log.end_offset
        if is_filler(unit.size, unit.tags_code) or not is_inside:
            return False
        try:
            message = self._log.message(unit.commit_log_offset)
        except CorruptData:
            return False
        is_record = message.commit_log_offset == unit.commit_log_offset and message.store_size == unit.size
        return bool(is_record and message.queue_offset != unit.base_offset)

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
        return self.offset_of(log_min_offset)

    def _number_of(self, commit_log_offset: int) -> int:
        """Number of the first unit of a record at or behind a log offset."""
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
        """Queue offset of the first unit of a record at or behind a log offset; the end when there is none."""
        number = self._number_of(commit_log_offset)
        return int(self._unit(number).base_offset) if number < self._end else self.end_offset

    def _number_covering(self, queue_offset: int) -> int:
        """Number of the unit that covers an offset, or of the next one when it is in a gap."""
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

    def units_from(self, queue_offset: int, count: int) -> list[Any]:
        """Up to `count` units (tuples of `BATCH_UNIT`) from the one that covers an offset on."""
        number = self._number_covering(queue_offset)
        size = min(count, self._end - number) * _SIZE
        stored = self._files.read(number * _SIZE, size) if size > 0 else b""
        return [BATCH_UNIT.record._make(fields) for fields in BATCH_UNIT.struct.iter_unpack(stored)]

    @property
    def next_commit_log_offset(self) -> int:
        """Log offset behind the start of the newest unit's record: records before have their units."""
        return int(self._unit(self._end - 1).commit_log_offset) + 1 if self._end > self._first else 0

    def append(self, units: bytes) -> None:
        """Write units behind the end."""
        self._files.write(self._end * _SIZE, units)
        self._end += len(units) // _SIZE
        last = BATCH_UNIT.unpack(units, len(units) - _SIZE)
        self.end_offset = last.base_offset + last.batch_size

    def skip_to(self, queue_offset: int, place: tuple[int, int]) -> None:
        """Keep offsets up to `queue_offset` from being given again: their messages were lost. The units lead to the
        record before, or to `place`, as those of a `ConsumeQueue`."""
        store_timestamp = 0
        if self._end > self._first:
            *place, _, store_timestamp = self._unit(self._end - 1)[:4]
        while self.end_offset < queue_offset:
            count = min(queue_offset - self.end_offset, BATCH_SIZE_MAX)
            fields = *place, LOST_TAGS_CODE, store_timestamp, self.end_offset, count, BATCH_COMPACTED_OFFSET, 0
            self.append(BATCH_UNIT.pack(*fields))

    def truncate(self, commit_log_offset: int) -> None:
        """Drop the units of records at or behind `commit_log_offset`; later files go, the rest is zeroed."""
        number = self._number_of(commit_log_offset)
        if number == self._end:
            return
        self._files.cut(number * _SIZE)
        self._end = number if self._files.starts else 0
        last = self._unit(self._end - 1) if self._end > self._first else None
        self.end_offset = last.base_offset + last.batch_size if last else 0

    def last_unit(self) -> tuple[int, int, int] | None:
        """The newest unit that is no filler, None when there is none."""
        if self._end > self._first:
            unit = self._unit(self._end - 1)
            if not is_filler(unit.size, unit.tags_code):
                return unit.commit_log_offset, unit.size, unit.tags_code
        return None
