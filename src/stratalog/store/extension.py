"""ConsumeQueueExt: what a unit's tags code points to when it is an address (RocketMQ's `enableConsumeQueueExt`).

An extension unit holds the tags code itself, the store time, and the bits by which a broker knows which SQL
subscriptions a message matches. Those bits come from the broker's subscriptions, not from the log: a queue that is
rebuilt has none, as at a broker without such filters.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np

from stratalog.errors import CorruptData, IllegalMessage, command
from stratalog.layout.names import CONSUME_QUEUE_EXT
from stratalog.layout.queue import (
    EXTENSION_ADDRESS_BASE,
    EXTENSION_ADDRESS_MAX,
    EXTENSION_END,
    EXTENSION_END_MARK,
    EXTENSION_END_SPACE,
    EXTENSION_SIZE_MAX,
    EXTENSION_UNIT,
    FILLER_SIZE,
    UNIT,
    extension_position,
    fillers,
    is_extension_address,
)
from stratalog.store.batch_queue import BatchQueue
from stratalog.store.commit_log import CommitLog
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.disk import Disk
from stratalog.store.open_files import OpenFiles
from stratalog.store.queue_files import QueueFiles

_SIZE = EXTENSION_UNIT.size
_LOOK_BACK_UNITS = 1 << 16
_OLD_UNITS_MAX = 1 << 12
"""So many units of a queue that is built again are remembered."""


class Extension(msgspec.Struct, frozen=True):
    """What an extension unit holds. `bitmap` is None when the broker kept no filter bits."""

    tags_code: int
    store_timestamp: int
    bitmap: bytes | None

    @property
    def size(self) -> int:
        return _SIZE + len(self.bitmap or b"")


class ExtensionFiles:
    """The extension units of one queue, one after the other; `end` is the position after the last one."""

    def __init__(self, root: Path, topic: str, queue_id: int, files: OpenFiles, disk: Disk, *, file_size: int) -> None:
        self._files = QueueFiles(
            root, f"{CONSUME_QUEUE_EXT}/{topic}/{queue_id}", files, disk, file_size=file_size,
            setting="mapped_file_size_consume_queue_ext",
        )  # fmt: skip
        self._repair = command("repair", root)
        self.end = 0

    def load(self) -> bool:
        """Find the files; False when one is missing. `end` must be set then."""
        return self._files.load()

    @property
    def has_files(self) -> bool:
        return bool(self._files.starts)

    def read(self, address: int) -> Extension:
        """The unit at an address. Raises `CorruptData` when there is none."""
        position, begin, end = extension_position(address), self._files.begin, self._files.end
        size_max = self._files.file_size - position % self._files.file_size
        if begin <= position < end and size_max >= _SIZE:
            unit = EXTENSION_UNIT.unpack(self._files.read(position, _SIZE))
            if unit.size == _SIZE + unit.bitmap_size and unit.bitmap_size >= 0 and unit.size <= size_max:
                bitmap = self._files.read(position + _SIZE, unit.bitmap_size) if unit.bitmap_size else None
                return Extension(unit.tags_code, unit.store_timestamp, bitmap)
        raise CorruptData(
            f"no extension unit where a queue unit points; close the store and run {self._repair}",
            path=str(self._files.path(position)),
            position=position % self._files.file_size,
        )

    def append(self, entries: Iterable[Extension]) -> list[int]:
        """Write units after the end; returns their addresses. A file that has no room is closed with an end mark."""
        addresses, run, start = [], bytearray(), self.end
        file_size = self._files.file_size
        for entry in entries:
            if entry.size > min(EXTENSION_SIZE_MAX, file_size - EXTENSION_END_SPACE):
                raise IllegalMessage(f"a filter bitmap of {len(entry.bitmap or b''):,} bytes fits no extension file")
            left = file_size - self.end % file_size
            if entry.size > left - EXTENSION_END_SPACE:
                self._files.write(start, bytes(run) + EXTENSION_END.pack(EXTENSION_END_MARK))
                self.end += left
                run, start = bytearray(), self.end
            addresses.append(EXTENSION_ADDRESS_BASE + self.end)
            bitmap = entry.bitmap or b""
            run += EXTENSION_UNIT.pack(entry.size, entry.tags_code, entry.store_timestamp, len(bitmap)) + bitmap
            self.end += entry.size
        self._files.write(start, bytes(run))
        return addresses

    def cut(self) -> None:
        """Drop what is after `end`."""
        self._files.cut(self.end)


class ExtendedQueue(ConsumeQueue):
    """A ConsumeQueue that has, or is given, an extension: units may hold addresses instead of tags codes.

    `extends` says whether new units get one (the setting); those that are there are kept with their queue either way.
    """

    def __init__(
        self,
        root: Path,
        topic: str,
        queue_id: int,
        files: OpenFiles,
        disk: Disk,
        log: CommitLog,
        *,
        file_size: int,
        extension_file_size: int,
        extends: bool,
    ) -> None:
        super().__init__(root, topic, queue_id, files, disk, file_size=file_size)
        self._log = log
        self._extends = extends
        self._old = dict[int, tuple[int, int, int]]()
        self._extension = ExtensionFiles(root, topic, queue_id, files, disk, file_size=extension_file_size)

    def load(self, *, only_newest_file: bool = False) -> None:
        super().load(only_newest_file=only_newest_file)
        self._load_extension()

    def restore(self, starts: list[int], end_offset: int, newest: tuple[int, int, int]) -> None:
        super().restore(starts, end_offset, newest)
        self._load_extension()

    def _load_extension(self) -> None:
        whole = self._extension.load()
        self.is_damaged = self.is_damaged or not whole or not self._settle()

    def _settle(self) -> bool:
        """Put the extension's end after what the newest unit points to; False when a live unit points nowhere."""
        newest = self._address_before(self.end_offset)
        self._extension.end = 0
        if newest is None:
            return True
        oldest = self._address_from(self.min_offset(self._log.first_offset))
        if oldest is None and not self._extension.has_files:
            return True
        try:
            self._extension.end = extension_position(newest) + self._extension.read(newest).size
            return oldest is None or bool(self._extension.read(oldest))
        except CorruptData:
            return False

    def _address_before(self, queue_offset: int) -> int | None:
        """The address in the last unit before an offset that holds one."""
        while queue_offset > self.first_offset:
            first = max(self.first_offset, queue_offset - _LOOK_BACK_UNITS)
            codes = self._addresses(first, queue_offset - first)
            if codes.size:
                return int(codes[-1])
            queue_offset = first
        return None

    def _address_from(self, queue_offset: int) -> int | None:
        """The address in the first unit from an offset on that holds one."""
        while queue_offset < self.end_offset:
            codes = self._addresses(queue_offset, _LOOK_BACK_UNITS)
            if codes.size:
                return int(codes[0])
            queue_offset += _LOOK_BACK_UNITS
        return None

    def _addresses(self, first: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        units = np.frombuffer(self.units(first, count), UNIT.dtype)
        codes = units["tags_code"].astype(np.int64)
        is_address = (codes <= EXTENSION_ADDRESS_MAX) & (units["size"] != FILLER_SIZE)
        return codes[np.flatnonzero(is_address)]

    def _rewind_to(self, queue_offset: int) -> None:
        """Drop the units at once: what is built of the log has no bitmaps, so that old addresses would not fit it. The
        newest are remembered."""
        if queue_offset < self.end_offset:
            first = max(queue_offset, self.end_offset - _OLD_UNITS_MAX, self.first_offset)
            with contextlib.suppress(CorruptData):
                units = self.resolved(first, self.end_offset - first)
                self._old.update(enumerate(UNIT.struct.iter_unpack(units), first))
            self._end_at(queue_offset)

    def old_unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        return self._old.get(queue_offset) if self.is_kept else None

    def _old_places(self, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        none = (-1, 0, 0)
        return np.array([self._old.get(self.end_offset + number, none)[0] for number in range(count)], np.int64)

    def cut(self) -> None:
        super().cut()
        self._old.clear()

    def _end_at(self, queue_offset: int) -> None:
        super()._end_at(queue_offset)
        self._settle()
        self._extension.cut()

    def append(self, units: bytes | memoryview) -> None:
        """Write units that hold tags codes; with an extension these move there and the units get its addresses."""
        if self.is_own and self._old and self.end_offset + len(units) // UNIT.size > min(self._old):
            units = self._with_old(units, self.is_own)
        if self._extends:
            found = np.frombuffer(units, UNIT.dtype).copy()
            mine = np.flatnonzero(~fillers(found))
            message, codes = self._log.message, found["tags_code"][mine].tolist()
            times = [message(offset).store_timestamp for offset in found["commit_log_offset"][mine].tolist()]
            end = self._extension.end
            try:
                found["tags_code"][mine] = self._extension.append(
                    Extension(code, time, None) for code, time in zip(codes, times, strict=True)
                )
                super().append(found.tobytes())
            except BaseException:
                self._extension.end = end  # done again when there is room
                raise
        else:
            super().append(units)

    def resolved(self, first: int, count: int) -> bytes:
        """Units [first, first + count) with the tags codes that addresses stand for. Raises `CorruptData`."""
        units = np.frombuffer(self.units(first, count), UNIT.dtype).copy()
        for number in np.flatnonzero(units["tags_code"] <= EXTENSION_ADDRESS_MAX).tolist():
            try:
                units["tags_code"][number] = self._extension.read(int(units["tags_code"][number])).tags_code
            except CorruptData as error:
                error.next_offset = first + number + 1
                raise
        return units.tobytes()

    def extension(self, tags_code: int) -> Extension | None:
        """What a unit's tags code stands for; None when it is no address. Raises `CorruptData` if nothing is there."""
        return self._extension.read(tags_code) if is_extension_address(tags_code) else None


def count_bitmaps(file: bytes) -> int:
    """Extension units with filter bits in a file, up to its end or to damage."""
    count = position = 0
    while position + _SIZE <= len(file):
        unit = EXTENSION_UNIT.unpack(file, position)
        if unit.size < _SIZE:
            break
        count += unit.bitmap_size > 0
        position += unit.size
    return count


def lacks_extension(queue: ConsumeQueue | BatchQueue, log_begin: int) -> bool:
    """Whether the newest unit of a queue points to an extension though there are no files of one. Nobody asks for that
    of a message from before the log's begin."""
    unit = queue.last_unit() if isinstance(queue, ConsumeQueue) and not isinstance(queue, ExtendedQueue) else None
    return unit is not None and unit[0] >= log_begin and is_extension_address(unit[2])
