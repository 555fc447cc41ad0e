"""The key index: IndexFiles in order, filled by the dispatcher, asked by key and time. Derived data."""

import contextlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import ConfigurationError
from stratalog.kernels.index import find_items, put_keys, rebuild_slots
from stratalog.layout.index import (
    HEADER,
    ITEM,
    ITEM_CAPACITY,
    SLOT,
    SLOT_COUNT,
    file_size,
    index_key,
    items_position,
    slots_position,
)
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.message import PROPERTIES_SIZE_MAX
from stratalog.layout.names import INDEX, INDEX_NAME_SIZE, index_name, is_index_name
from stratalog.store.disk import ClockNs, Disk, MappedFile, OpenFile, failed
from stratalog.store.index_bulk import BulkItems
from stratalog.store.locks import StoreLocks, free

HITS_MAX = 64
"""A query collects this many unless told otherwise (`maxMsgsNumBatch`)."""
_HITS_AT_FIRST = 64
_SPLITS_TRIED_MAX = 100_000
_ITEMS_COMPARED = 64
_FILE_SIZE_MAX = 2**31 - 1
"""RocketMQ counts an index file's bytes in an int; nobody wrote a larger one."""
_KEYS_OF_RECORD_MAX = PROPERTIES_SIZE_MAX // 2 + 2
"""A key takes a character and a space; beside those of KEYS there are the unique key and the tags."""
_SLOTS_PIECE = 1 << 20
_REST_PIECE = 1 << 16
_HOLE_SIZE_MAX, _HOLE_PER_BYTE = 1 << 29, 64
"""RocketMQ's files are sparse until they are full, but not over so many bytes before the last one written."""
_BULK_RECORDS = 1 << 10
"""To enter and leave a file in bulk takes as long as to index some hundred thousand records: where only the last few of
a chunk are not indexed, it is not worth it."""

_BEGIN_TIME, _END_TIME, _BEGIN_OFFSET, _END_OFFSET, _USED_SLOTS, _NEXT_ITEM = range(len(HEADER.fields))


@dataclass(slots=True, eq=False)
class IndexFile:
    """One index file. The header lives in `header` (six values in the order of the layout) and reaches the file when
    it is full and when the store closes, as upstream does."""

    mapped: MappedFile
    header: NDArray[np.int64]

    @staticmethod
    def header_of(mapped: MappedFile) -> NDArray[np.int64]:
        """The header as the file has it."""
        return np.array(HEADER.unpack(mapped.view.data), np.int64)

    @property
    def begin_timestamp(self) -> int:
        return int(self.header[_BEGIN_TIME])

    @property
    def end_timestamp(self) -> int:
        return int(self.header[_END_TIME])

    @property
    def begin_commit_log_offset(self) -> int:
        return int(self.header[_BEGIN_OFFSET])

    @property
    def end_commit_log_offset(self) -> int:
        return int(self.header[_END_OFFSET])

    @property
    def next_item(self) -> int:
        return int(self.header[_NEXT_ITEM])

    def store_header(self) -> None:
        """Make the items durable, then the header that vouches for them. Raises `StoreFailed`."""
        try:
            self.mapped.sync()
            self.mapped.map[: HEADER.size] = HEADER.pack(*map(int, self.header))
            self.mapped.sync()
        except OSError as error:
            raise failed(f"flush of {self.mapped.path}", error) from error


def _name_after(name: str) -> str:
    return f"{int(name) + 1:0{INDEX_NAME_SIZE}d}"


@lru_cache(1024)
def _topic_hash(topic: str) -> int:
    """Hash of what stands before the key in the hashed text."""
    return string_hash(index_key(topic, ""))


def index_sizes(disk: Disk, directory: Path) -> tuple[int, int] | None:
    """Slots and item capacity of the index files in a directory: written nowhere, but the items in a file show them.

    Of the splits of the file's size into slots and items, exactly one must fit what is in it (`_fits`); RocketMQ's
    ratio is tried first. None without such a file.
    """
    for name, size in disk.files(directory).items():
        if is_index_name(name) and HEADER.size < size <= _FILE_SIZE_MAX and not (size - HEADER.size) % SLOT.size:
            try:
                mapped = disk.map(directory / name)
            except FileNotFoundError:  # a writer deletes old files
                continue
            try:
                most = max(_HOLE_SIZE_MAX, _HOLE_PER_BYTE * disk.blocks_size(mapped.path))
                is_hole = size > most and mapped.data_end > most
                slot_count = None if is_hole else _slot_count(mapped, IndexFile.header_of(mapped))
            finally:
                if not disk.read_only:
                    mapped.close()
            if slot_count:
                return slot_count, (size - items_position(slot_count)) // ITEM.size
    return None


def usual_sizes(disk: Disk, directory: Path) -> tuple[int, int] | None:
    """Slots and item capacity by the length of the index files, in RocketMQ's ratio of both. None where no file has
    such a length, or its header and items contradict it, as in a file that was cut. A file of RocketMQ's default length
    is not checked further."""
    ratio = ITEM_CAPACITY // SLOT_COUNT
    for name, size in disk.files(directory).items():
        slot_count = (size - HEADER.size) // (SLOT.size + ratio * ITEM.size)
        if is_index_name(name) and slot_count > 0 and file_size(slot_count, ratio * slot_count) == size:
            with contextlib.suppress(FileNotFoundError):
                if slot_count == SLOT_COUNT or not contradicts(disk, directory / name, slot_count, ratio * slot_count):
                    return slot_count, ratio * slot_count
    return None


def contradicts(disk: Disk, path: Path, slot_count: int, item_capacity: int) -> bool:
    """Whether a header that can be right counts more than so many slots and items, or neither the first nor the newest
    item is the one that it says. What was cut off says nothing."""
    with closing(disk.open(path)) as file:
        return _contradicts(file, slot_count, item_capacity)


def _contradicts(file: OpenFile, slot_count: int, item_capacity: int) -> bool:
    stored = file.read(0, HEADER.size)
    if len(stored) < HEADER.size:
        return False
    header = HEADER.unpack(stored)
    begin, end, last = header.begin_commit_log_offset, header.end_commit_log_offset, header.next_item - 1
    if not (0 <= begin <= end and 0 < header.used_slot_count <= last):
        return False
    if last >= item_capacity or header.used_slot_count > slot_count:
        return True
    items = [file.read(items_position(slot_count) + number * ITEM.size, ITEM.size) for number in (1, last)]
    if len(items[0]) < ITEM.size:
        return False
    first, newest = (ITEM.unpack(item.ljust(ITEM.size, b"\0")) for item in items)
    is_first = first.key_hash > 0 and first.commit_log_offset == begin and not first.previous_item
    return not is_first and not (newest.key_hash > 0 and newest.commit_log_offset == end)


def _slot_count(mapped: MappedFile, header: NDArray[np.int64]) -> int | None:
    ratio, step = ITEM_CAPACITY // SLOT_COUNT, ITEM.size // SLOT.size
    usual = (mapped.size - HEADER.size) // (SLOT.size + ratio * ITEM.size)
    is_usual = file_size(usual, ratio * usual) == mapped.size
    if header[_NEXT_ITEM] <= 1:
        return usual if is_usual and usual == SLOT_COUNT else None
    if is_usual and _fits(mapped, header, usual):
        return usual
    # Items of the possible splits lie on one grid: with each item less there is room for `step` more slots.
    first = (mapped.size - HEADER.size) // SLOT.size % step or step
    start = items_position(first) + (int(header[_NEXT_ITEM]) - 1) * ITEM.size
    count = (min(mapped.size, mapped.data_end) - start) // ITEM.size
    if count <= 0:
        return None
    items = np.frombuffer(mapped.map, ITEM.dtype, count, start)
    candidates = np.flatnonzero((items["commit_log_offset"] == header[_END_OFFSET]) & (items["key_hash"] > 0))
    splits = (first + step * k for k in candidates[:_SPLITS_TRIED_MAX].tolist())
    fitting = [slot_count for slot_count in splits if _fits(mapped, header, slot_count)]
    return fitting[0] if len(fitting) == 1 else None


def _fits(mapped: MappedFile, header: NDArray[np.int64], slot_count: int) -> bool:
    """Whether, with that many slots, the first and the newest items are those that the header says, and the slots of
    the newest ones lead to them.

    One item is not enough to tell: those of a record have one log offset. After a crash slots may lead to items later
    than the header's; those lead back to them.
    """
    last = int(header[_NEXT_ITEM]) - 1
    capacity = (mapped.size - items_position(slot_count)) // ITEM.size
    if last >= capacity:
        return False
    data = mapped.view.data

    def item(number: int) -> Any:
        return ITEM.unpack(data, items_position(slot_count) + number * ITEM.size)

    first = item(1)
    if not any(first) or first.commit_log_offset != header[_BEGIN_OFFSET]:
        return False
    if item(last).commit_log_offset != header[_END_OFFSET]:
        return False
    newest: dict[int, int] = {}
    for number in range(last, max(0, last - _ITEMS_COMPARED), -1):
        found = item(number)
        if not any(found) or found.key_hash < 0 or not 0 <= found.previous_item <= number:
            return False
        newest.setdefault(found.key_hash % slot_count, number)
    for slot, number in newest.items():
        head = SLOT.unpack(data, slots_position() + slot * SLOT.size).newest_item
        for _ in range(_ITEMS_COMPARED):
            if not last < head < capacity:
                break
            later = item(head)
            head = later.previous_item if later.previous_item < head and later.key_hash % slot_count == slot else 0
        if head != number:
            return False
    return True


class Index:
    """All index files of a store, oldest first.

    `resume_offset`/`resume_key` say where indexing goes on: the record at `resume_offset` has `resume_key` of its keys
    in the files already (a record's keys may be split over two files); records before it are done. `is_complete` says
    that `load` found files and kept them all.
    """

    def __init__(
        self, root: Path, disk: Disk, *, slot_count: int, item_capacity: int, with_tags: bool, clock_ns: ClockNs,
        zone: tzinfo = UTC, locks: StoreLocks | None = None,
    ) -> None:  # fmt: skip
        self.directory = root / INDEX
        self.slot_count = slot_count
        self.item_capacity = item_capacity
        self.with_tags = with_tags
        self._zone = zone
        self._disk = disk
        self._clock_ns = clock_ns
        self.files: list[IndexFile] = []
        self.resume_offset = 0
        self.resume_key = 0
        self.flushed_timestamp = 0
        self.is_complete = False
        self._bulk: BulkItems | None = None
        self._locks = locks or StoreLocks()
        self._kept = 0
        self._is_broken_off = False
        """Whether an error or a signal handler ended a put: items may be there that `resume_offset` does not tell."""
        self._created: Path | None = None
        """A file that was begun and is not among `files`."""

    def load(self, end_offset: int, *, clean: bool, checked_from: int) -> None:
        """Map the files that know records below the log's end only.

        After an unclean stop a file that was not full holds what its header says (`keep`): its slots are made again
        from those items, since they may lead to later ones that never reached the disk. So are those of every file
        that knows a record from log offset `checked_from` on: RocketMQ, which goes on after the header's items without
        doing so, leaves items that lead elsewhere.
        """
        self.is_complete = True
        self._disk.clear_unfinished(self.directory)
        for name, size in self._disk.files(self.directory).items():
            if not is_index_name(name):
                continue
            mapped = self._disk.map(self.directory / name) if size == self._file_size else None
            file = IndexFile(mapped, IndexFile.header_of(mapped)) if mapped else None
            if (
                file is None
                or not 1 <= file.next_item <= self.item_capacity
                or not self._is_known(file, end_offset, clean=clean, checked_from=checked_from)
            ):
                if mapped:
                    mapped.close()
                self._remove_from(name)
                self.is_complete = False
                break
            self.files.append(file)
        self.is_complete = self.is_complete and bool(self.files) and clean  # an opening may have ended at removing
        self._resume_at_end()
        if self.files:
            if not (clean or self._disk.read_only):
                self._clear_rest(self.files[-1])
            self.flushed_timestamp = max(file.end_timestamp for file in self.files)
            for file in self.files[:-1]:
                file.mapped.release()

    def _clear_rest(self, file: IndexFile) -> None:
        """Zero what follows the items that the header counts: they may be of messages that the log lost."""
        path, position = file.mapped.path, items_position(self.slot_count) + file.next_item * ITEM.size
        while data := (self._disk.read(path, size_max=_REST_PIECE, cut=True, position=position) or b"").rstrip(b"\0"):
            file.mapped.write(position, np.zeros(len(data), np.uint8))
            position += _REST_PIECE

    @property
    def _file_size(self) -> int:
        return file_size(self.slot_count, self.item_capacity)

    def _is_known(self, file: IndexFile, end_offset: int, *, clean: bool, checked_from: int) -> bool:
        if not 1 <= file.next_item <= self.item_capacity:
            return False
        if file.next_item == 1:
            return clean and file.end_timestamp == 0
        inside = file.end_commit_log_offset < end_offset
        if not inside or self.items(file)[-1]["commit_log_offset"] != file.end_commit_log_offset:
            return False
        is_closed = (clean and checked_from >= end_offset) or file.next_item >= self.item_capacity
        is_vouched = is_closed and file.end_commit_log_offset < checked_from
        return is_vouched or self._restore_slots(file, end_offset)

    def _restore_slots(self, file: IndexFile, end_offset: int) -> bool:
        """Make the slots again from the items below the header's count; False when those are not what it says."""
        slots = np.zeros(SLOT.size * self.slot_count, np.uint8)
        used = rebuild_slots(
            file.mapped.address + items_position(self.slot_count), self.slot_count, file.next_item, end_offset,
            slots.ctypes.data,
        )  # fmt: skip
        if used < 0:
            return False
        if file.header[_USED_SLOTS] != used:
            file.header[_USED_SLOTS] = used
            file.mapped.write(0, np.frombuffer(HEADER.pack(*map(int, file.header)), np.uint8))
        view = file.mapped.view[slots_position() : slots_position() + slots.size]
        for begin in range(0, slots.size, _SLOTS_PIECE):  # a sparse file stays one
            piece = slots[begin : begin + _SLOTS_PIECE]
            if not np.array_equal(piece, view[begin : begin + _SLOTS_PIECE]):
                file.mapped.write(slots_position() + begin, piece)
        return True

    def _remove_from(self, name: str) -> None:
        for other in list(self._disk.files(self.directory)):
            if is_index_name(other) and other >= name:
                self._disk.remove(self.directory / other)

    def _keys_at_end(self) -> int:
        """How many items of the newest indexed record there are: at the end of the last file, and of those before it
        while it fills the later ones."""
        count = 0
        for file in reversed(self.files):
            for offset in reversed(self.items(file)["commit_log_offset"][-_KEYS_OF_RECORD_MAX:]):
                if offset != self.resume_offset:
                    return count
                count += 1
        return count

    def has_keys(
        self, address: int, positions: NDArray[np.int64], count: int, base_offset: int, *, with_tags: bool
    ) -> bool:  # fmt: skip
        """Whether any of these records has a key (or tags): tries to enter one into an index of one item."""
        header = np.array([0] * _NEXT_ITEM + [1], np.int64)
        scratch = np.zeros(file_size(1, 2), np.uint8)
        put_keys(
            address, positions, 0, count, base_offset, scratch.ctypes.data, scratch.ctypes.data + items_position(1),
            1, 2, header, with_tags, 0,
        )  # fmt: skip
        return bool(header[_NEXT_ITEM] > 1)

    @property
    def item_count(self) -> int:
        return sum(file.next_item - 1 for file in self.files)

    def clear(self) -> None:
        """Remove every file: indexing begins anew."""
        self.unmap()
        self._remove_from("")
        self.resume_offset = self.resume_key = 0
        self.is_complete = False

    def items(self, file: IndexFile) -> "np.ndarray[tuple[int], np.dtype[np.void]]":
        """The items put so far, oldest first; borrows the mapping."""
        first = items_position(self.slot_count) + ITEM.size
        return np.frombuffer(file.mapped.map, ITEM.dtype, max(0, file.next_item - 1), first)

    def slots(self, file: IndexFile) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        """Newest item of each slot; borrows the mapping."""
        slots = np.frombuffer(file.mapped.map, SLOT.dtype, self.slot_count, slots_position())
        return slots["newest_item"]

    def put(self, address: int, positions: NDArray[np.int64], count: int, base_offset: int) -> None:
        """Index scanned records at `positions` (bytes from `address`; `base_offset` is the log offset of byte 0)."""
        with free(*self._locks.index):
            if self._is_broken_off:
                self._resume_at_end()
            self._is_broken_off = True
            self._put_all(address, positions, count, base_offset)
            self._is_broken_off = False

    def _resume_at_end(self) -> None:
        """Go on after the items that are there."""
        if self.files:
            self.resume_offset = max(file.end_commit_log_offset for file in self.files)  # the last may be empty
            self.resume_key = self._keys_at_end()

    def _put_all(self, address: int, positions: NDArray[np.int64], count: int, base_offset: int) -> None:
        if not self.files:
            self._create()
        first = int(np.searchsorted(positions[:count], self.resume_offset - base_offset))
        if first == count:
            return
        key = self.resume_key if positions[first] + base_offset == self.resume_offset else 0
        while first < count:
            file = self.files[-1]
            first, key = self._put(file, address, positions, first, count, base_offset, key)
            if first < count:
                self.resume_offset, self.resume_key = int(positions[first]) + base_offset, key
                self._leave_bulk()
                file.store_header()
                self.flushed_timestamp = max(self.flushed_timestamp, file.end_timestamp)
                self._create()
        self.resume_offset = int(positions[count - 1]) + base_offset + 1
        self.resume_key = 0

    def _put(
        self, file: IndexFile, address: int, positions: NDArray[np.int64], first: int, count: int, base_offset: int,
        key: int,
    ) -> tuple[int, int]:  # fmt: skip
        if self._bulk and (count - first >= _BULK_RECORDS or self._bulk.is_in(file.mapped)):
            return self._bulk.put(file.mapped, file.header, address, positions, first, count, base_offset, key)
        return put_keys(
            address, positions, first, count, base_offset, file.mapped.address,
            file.mapped.address + items_position(self.slot_count), self.slot_count, self.item_capacity, file.header,
            self.with_tags, key,
        )  # fmt: skip

    @contextlib.contextmanager
    def in_bulk(self) -> Iterator[None]:
        """Within it, `put` is quicker for many records, and the index must not be read."""
        self._bulk = BulkItems(
            slot_count=self.slot_count, item_capacity=self.item_capacity, with_tags=self.with_tags
        )  # fmt: skip
        try:
            yield
        finally:
            self._leave_bulk()
            self._bulk = None

    def _leave_bulk(self) -> None:
        if self._bulk:
            try:
                self._bulk.leave()
            except OSError as error:
                raise failed(f"index files in {self.directory}", error) from error

    def _create(self) -> None:
        """Start a new file. Its header begins with the end of the one before, as upstream's does."""
        self._disk.make_directory(self.directory)
        if self._created:
            self._disk.remove(self._created)
        name = "0" * INDEX_NAME_SIZE
        with contextlib.suppress(ConfigurationError):  # the clock's: what is in the log is indexed all the same
            name = index_name(self._clock_ns() // 1_000_000, self._zone)
        if self.files:  # names are in order, though the clock went back
            name = max(name, _name_after(self.files[-1].mapped.path.name))
        while self._disk.exists(self.directory / name):
            name = _name_after(name)
        path = self._created = self.directory / name
        self._disk.allocate(path, self._file_size)
        last = self.files[-1].header if self.files else np.zeros(len(HEADER.fields), np.int64)
        header = np.array([last[_END_TIME], last[_END_TIME], last[_END_OFFSET], last[_END_OFFSET], 0, 1], np.int64)
        mapped = self._disk.map(path)
        mapped.map[: HEADER.size] = HEADER.pack(
            *map(int, header[:_NEXT_ITEM]), 0
        )  # else RocketMQ begins at log offset 0
        file, count = IndexFile(mapped, header), len(self.files)
        self.files[count:], self._created, self._kept = [file], None, 0  # no call between

    def offsets(self, topic: str, key: str, *, begin: int, end: int, loose: bool = False) -> Iterator[int]:
        """Log offsets of records that may carry the key and were stored in [begin, end] ms, newest first. With `loose`
        also those whose items may say too late a time, see `kernels.index.next_match`.

        Candidates only: two keys may share a hash, so the caller checks the record (IndexService.queryOffset, but over
        every file whose interval overlaps; upstream stops early where store times went backwards).
        """
        key_hash = index_key_hash(string_hash(key, _topic_hash(topic)))
        for file in reversed(self.files):
            yield from self._hits(file, key_hash, begin, end, loose)

    def _hits(self, file: IndexFile, key_hash: int, begin: int, end: int, loose: bool) -> Iterator[int]:
        """Hits in one file; looks for few at first, as most callers stop early."""
        size, taken = _HITS_AT_FIRST, 0
        view = file.mapped.view  # keeps the mapping alive, though the store is closed meanwhile
        while True:
            found = np.empty(size, np.int64)
            count = find_items(
                view.ctypes.data, self.slot_count, self.item_capacity, file.begin_timestamp, file.next_item,
                key_hash, begin, end, loose, found,
            )  # fmt: skip
            yield from found[taken:count].tolist()
            if count < size:
                return
            size, taken = 8 * size, count

    def keep(self) -> None:
        """Make the newest file's items durable, then its header: after a stop they are not indexed again.

        Any thread may call it. Raises `StoreFailed`.
        """
        with free(*self._locks.index_header):
            self._keep()

    def _keep(self) -> None:
        with free(*self._locks.index):
            if not self.files or self.files[-1].next_item == self._kept:
                return
            *full, file = self.files
            header = file.header.copy()
        for older in full:
            older.mapped.release()
        try:
            file.mapped.sync()
            with free(*self._locks.index):
                if file is not self.files[-1]:  # it became full meanwhile, and has a later header
                    return
                file.mapped.map[: HEADER.size] = HEADER.pack(*map(int, header))
            file.mapped.sync()
        except OSError as error:
            raise failed(f"flush of {file.mapped.path}", error) from error
        self._kept = int(header[_NEXT_ITEM])
        self.flushed_timestamp = max(self.flushed_timestamp, int(header[_END_TIME]))

    def unmap(self) -> None:
        self.close()
        self.files.clear()

    def close(self) -> None:
        """Unmap the files; who asks later gets `StoreClosed`, not no hits."""
        for file in self.files:
            file.mapped.close()
