"""The key index: IndexFiles in order, filled by the dispatcher, asked by key and time. Derived data."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, tzinfo
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratalog.kernels.index import find_items, put_keys
from stratalog.layout.index import HEADER, ITEM, SLOT, file_size, index_key, items_position, slots_position
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.names import INDEX, index_name, is_index_name
from stratalog.store.disk import ClockNs, Disk, MappedFile, failed

HITS_MAX = 64
"""A query collects this many unless told otherwise (`maxMsgsNumBatch`)."""
_HITS_AT_FIRST = 64

_BEGIN_TIME, _END_TIME, _BEGIN_OFFSET, _END_OFFSET, _USED_SLOTS, _NEXT_ITEM = range(len(HEADER.fields))


@dataclass(slots=True)
class IndexFile:
    """One index file. The header lives in `header` (six values in the order of the layout) and reaches the file when
    it is full and when the store closes, as upstream does."""

    mapped: MappedFile
    header: NDArray[np.int64]

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


class Index:
    """All index files of a store, oldest first.

    `resume_offset`/`resume_key` say where indexing goes on: the record at `resume_offset` has `resume_key` of its keys
    in the files already (a record's keys may be split over two files); records before it are done. `is_complete` says
    that `load` found files and kept them all.
    """

    def __init__(
        self, root: Path, disk: Disk, *, slot_count: int, item_capacity: int, with_tags: bool, clock_ns: ClockNs,
        zone: tzinfo = UTC,
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

    def load(self, end_offset: int, *, clean: bool) -> None:
        """Map the files that know records below the log's end only. After an unclean stop just the full ones are kept:
        what the others hold is not known, so they are removed and built again."""
        self.is_complete = True
        self._disk.clear_unfinished(self.directory)
        for name, size in self._disk.files(self.directory).items():
            if not is_index_name(name):
                continue
            mapped = self._disk.map(self.directory / name) if size == self._file_size else None
            file = IndexFile(mapped, np.array(HEADER.unpack(mapped.map[: HEADER.size]), np.int64)) if mapped else None
            if file is None or file.next_item < 1 or not self._is_known(file, end_offset, clean=clean):
                self._remove_from(name)
                self.is_complete = False
                break
            self.files.append(file)
        self.is_complete = self.is_complete and bool(self.files)
        if self.files:
            self.resume_offset = self.files[-1].end_commit_log_offset
            self.resume_key = self._keys_at_end()
            self.flushed_timestamp = max(self.flushed_timestamp, self._full_timestamp())

    @property
    def _file_size(self) -> int:
        return file_size(self.slot_count, self.item_capacity)

    def _is_known(self, file: IndexFile, end_offset: int, *, clean: bool) -> bool:
        inside = file.end_commit_log_offset < end_offset
        if clean:
            return inside if file.next_item > 1 else file.end_timestamp == 0
        return inside and file.next_item >= self.item_capacity

    def _full_timestamp(self) -> int:
        return max((file.end_timestamp for file in self.files if file.next_item >= self.item_capacity), default=0)

    def _remove_from(self, name: str) -> None:
        for other in list(self._disk.files(self.directory)):
            if is_index_name(other) and other >= name:
                self._disk.remove(self.directory / other)

    def _keys_at_end(self) -> int:
        """How many items of the newest indexed record there are: at the end of the last file, and of those before it
        while it fills the later ones."""
        count = 0
        for file in reversed(self.files):
            offsets = self.items(file)["commit_log_offset"].tolist()
            mine = 0
            while mine < len(offsets) and offsets[-1 - mine] == self.resume_offset:
                mine += 1
            count += mine
            if mine < len(offsets):
                break
        return count

    def has_keys(self, address: int, positions: NDArray[np.int64], count: int, base_offset: int) -> bool:
        """Whether any of these records has a key: tries to enter one into an index of one item."""
        header = np.array([0] * _NEXT_ITEM + [1], np.int64)
        scratch = np.zeros(file_size(1, 2), np.uint8)
        put_keys(
            address, positions, 0, count, base_offset, scratch.ctypes.data, 1, 2, header, self.with_tags, 0,
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
        if not self.files:
            self._create()
        first = int(np.searchsorted(positions[:count], self.resume_offset - base_offset))
        if first == count:
            return
        key = self.resume_key if positions[first] + base_offset == self.resume_offset else 0
        while first < count:
            file = self.files[-1]
            first, key = put_keys(
                address, positions, first, count, base_offset, file.mapped.address, self.slot_count,
                self.item_capacity, file.header, self.with_tags, key,
            )  # fmt: skip
            if first < count:
                self.resume_offset, self.resume_key = int(positions[first]) + base_offset, key
                file.store_header()
                self.flushed_timestamp = file.end_timestamp
                self._create()
        self.resume_offset = int(positions[count - 1]) + base_offset + 1
        self.resume_key = 0

    def _create(self) -> None:
        """Start a new file. In memory its header begins with the end of the one before, as upstream's does."""
        self._disk.make_directory(self.directory)
        moment = self._clock_ns() // 1_000_000
        while self._disk.exists(self.directory / index_name(moment, self._zone)):
            moment += 1
        path = self.directory / index_name(moment, self._zone)
        self._disk.allocate(path, self._file_size)
        last = self.files[-1].header if self.files else np.zeros(len(HEADER.fields), np.int64)
        header = np.array([last[_END_TIME], last[_END_TIME], last[_END_OFFSET], last[_END_OFFSET], 0, 1], np.int64)
        self.files.append(IndexFile(self._disk.map(path), header))

    def offsets(self, topic: str, key: str, *, begin: int, end: int) -> Iterator[int]:
        """Log offsets of records that may carry the key and were stored in [begin, end] ms, newest first.

        Candidates only: two keys may share a hash, so the caller checks the record (IndexService.queryOffset, but over
        every file whose interval overlaps; upstream stops early where store times went backwards).
        """
        key_hash = index_key_hash(string_hash(index_key(topic, key)))
        for file in reversed(self.files):
            yield from self._hits(file, key_hash, begin, end)

    def _hits(self, file: IndexFile, key_hash: int, begin: int, end: int) -> Iterator[int]:
        """Hits in one file; looks for few at first, as most callers stop early."""
        size, taken = _HITS_AT_FIRST, 0
        while True:
            found = np.empty(size, np.int64)
            count = find_items(
                file.mapped.address, self.slot_count, self.item_capacity, file.begin_timestamp, file.next_item,
                key_hash, begin, end, found,
            )  # fmt: skip
            yield from found[taken:count].tolist()
            if count < size:
                return
            size, taken = 8 * size, count

    def close(self) -> None:
        """Store the newest file's header and make the index durable."""
        if self.files:
            self.files[-1].store_header()

    def unmap(self) -> None:
        for file in self.files:
            file.mapped.close()
        self.files.clear()
