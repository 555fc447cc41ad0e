"""The part of `verify` that compares IndexFiles with the items that the log calls for."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, counted
from stratalog.kernels.index import (
    HEADER_BEGIN_TIMESTAMP,
    HEADER_END_TIMESTAMP,
    HEADER_NEXT_ITEM,
    put_keys,
)
from stratalog.layout.index import HEADER, ITEM, SLOT, file_size, items_position, slots_position
from stratalog.layout.names import INDEX, is_index_name
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import PrivateDisk
from stratalog.store.sizes import remove_index_step
from stratalog.tools.verify_files import record_at
from stratalog.tools.verify_report import REPAIR, Chunk, Problem, Unreadable, VerifyReport

Int64 = NDArray[np.int64]

_SCRATCH_ITEMS = 1 << 18
_HASH_BITS = 31
_USED = "used_slot_count"


@dataclass(slots=True)
class _Items:
    """Index items in log order: log offset, key hash, seconds, and their numbers in the file they come from."""

    offsets: Int64
    hashes: Int64
    seconds: Int64
    numbers: Int64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.offsets)

    def same(self, other: "_Items") -> bool:
        return (
            np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.hashes, other.hashes)
            and np.array_equal(self.seconds, other.seconds)
        )

    def names(self, begin: int) -> Int64:
        """One number for each (log offset, key hash); `begin` is a log offset at or before all of them."""
        return ((self.offsets - begin) << _HASH_BITS) | self.hashes

    def at(self, chosen: NDArray[np.bool_] | Int64 | slice) -> "_Items":
        numbers = self.numbers[chosen] if len(self.numbers) else self.numbers
        return _Items(self.offsets[chosen], self.hashes[chosen], self.seconds[chosen], numbers)


class _IndexFile:
    """One file as it stands on disk; its items are loaded when the log reaches them and dropped after it."""

    def __init__(self, path: Path, disk: PrivateDisk, slot_count: int, item_capacity: int) -> None:
        self.path = path
        self._view = disk.map(path).view
        self._slot_count = slot_count
        self.header = HEADER.unpack(self._view.data)
        self.item_count = min(max(0, self.header.next_item - 1), item_capacity - 1)
        self._rest: _Items | None = None
        self._used: tuple[Int64, Int64] | None = None

    def _stored(self) -> np.ndarray[tuple[int], np.dtype[np.void]]:
        first = items_position(self._slot_count) + ITEM.size
        return np.frombuffer(self._view, ITEM.dtype, self.item_count, first)

    @property
    def first_offset(self) -> int:
        """Log offset in the first item."""
        return int(self._stored()["commit_log_offset"][0])

    @property
    def last_offset(self) -> int:
        """Log offset in the last item."""
        return int(self._stored()["commit_log_offset"][-1])

    def position(self, number: int) -> int:
        """Byte position of an item."""
        return items_position(self._slot_count) + ITEM.size * number

    def take(self, below: int) -> _Items:
        """The items of records below a log offset that were not taken before."""
        if self._rest is None:
            stored = self._stored()
            numbers = np.arange(1, self.item_count + 1)
            offsets, hashes, seconds = (
                stored[name].astype(np.int64) for name in ("commit_log_offset", "key_hash", "seconds")
            )
            self._rest = _Items(offsets, hashes, seconds, numbers)
            self._rest.seconds[:1] = 0  # the first item's time counts from the end of the file before
            if np.any(np.diff(self._rest.offsets) < 0):  # damaged: each item still meets the chunk it belongs to
                order = np.argsort(self._rest.offsets, kind="stable")
                self._rest = self._rest.at(order)
        cut = int(np.searchsorted(self._rest.offsets, below))
        taken, self._rest = self._rest.at(slice(0, cut)), self._rest.at(slice(cut, None))
        return taken

    @property
    def has_rest(self) -> bool:
        """Whether items are left that were not taken yet."""
        return bool(self.item_count if self._rest is None else len(self._rest))

    def header_faults(self) -> list[tuple[str, int, int]]:
        """Header fields that the items contradict: name, value by the items, value in the header."""
        stored, header = self._stored(), self.header
        wanted = {"next_item": self.item_count + 1}
        if self.item_count:
            wanted["begin_commit_log_offset"] = int(stored["commit_log_offset"][0])
            wanted["end_commit_log_offset"] = int(stored["commit_log_offset"][-1])
            wanted[_USED] = len(self._used_slots()[0])
        return [
            (name, value, getattr(header, name)) for name, value in wanted.items() if getattr(header, name) != value
        ]

    def _used_slots(self) -> tuple[Int64, Int64]:
        """Numbers of the slots that are not empty, and the items that they begin with."""
        if self._used is None:
            table = np.frombuffer(self._view, SLOT.dtype, self._slot_count, slots_position())["newest_item"]
            used = np.flatnonzero(table.view(np.int32).copy())  # in whatever byte order; a broker may be writing there
            self._used = used, table[used].astype(np.int64)
        return self._used

    def chain_faults(self) -> tuple[Int64, Int64]:
        """Items that no chain of their slot holds exactly once, and slots that begin with an item of another slot.

        Chains are right exactly when every link leads to an older item of the same slot, every slot to an item of its
        own, and every item is led to once: then the items of a slot form one falling path.
        """
        stored = self._stored()
        used, heads = self._used_slots()
        slot_of = np.empty(self.item_count + 1, np.int64)
        slot_of[0] = -1
        slot_of[1:] = stored["key_hash"].astype(np.int64) % self._slot_count
        previous = stored["previous_item"].astype(np.int64)
        numbers = np.arange(1, self.item_count + 1)
        falls = (previous >= 0) & (previous < numbers)
        falls &= (previous <= 0) | (slot_of[np.where(falls, previous, 0)] == slot_of[1:])
        inside = (heads > 0) & (heads <= self.item_count)
        begins = inside & (slot_of[np.where(inside, heads, 0)] == used)
        led_to = np.bincount(np.concatenate((previous[falls], heads[begins])), minlength=self.item_count + 1)[1:]
        return numbers[~falls | (led_to != 1)], used[~begins]

    def slot_position(self, slot: int) -> int:
        return slots_position() + SLOT.size * slot


def _last_offset(taken: list[tuple[_IndexFile, _Items]]) -> int:
    """Log offset of the last item; -1 without one."""
    return max((int(items.offsets[-1]) for _, items in taken), default=-1)


class IndexCheck:
    """Takes the log in chunks, in order, and says what the index lacks or has too much.

    Releases before 5.4 add no items for tags: those may be missing anywhere. The report notes it.
    """

    def __init__(self, root: Path, settings: StoreSettings, disk: PrivateDisk, report: VerifyReport) -> None:
        self._report, self._root, self._disk = report, root, disk
        self._settings = settings
        self._with_tags = self._tags_seen = settings.compatibility != "5.3"
        self._begin = self._missing_count = self._left_out_tags = self._unknown_count = 0
        self._last_timestamp = self._made_timestamp = 0
        """Time of the last item before this chunk, which a damaged time counts as; and of the last that was made."""
        self._files: list[_IndexFile] = []
        self._of_other_size = False
        self._knows_sizes = bool(settings.max_hash_slot_num and settings.max_index_num)
        wanted = file_size(settings.index_slot_count, settings.index_item_capacity)
        for name, size in disk.files(root / INDEX).items():
            path = root / INDEX / name
            if is_index_name(name) and size == wanted:
                with suppress(Unreadable):
                    self._files.append(_IndexFile(path, disk, settings.index_slot_count, settings.index_item_capacity))
            elif is_index_name(name):
                self._of_other_size = True
                self._add(path, size, f"an index file of {wanted:,} bytes", counted(size, "byte"), self._sizes_step())
        self._directory, self._item_capacity = root / INDEX, settings.index_item_capacity
        self._vouched_end = 0
        with suppress(CorruptData):  # the checkpoint is no file: `check_files` says so
            if seal := Checkpoint.load(root, disk).seal:
                self._vouched_end = seal.log_end_offset
        report.index_file_count = len(self._files)
        self._scratch = np.zeros(file_size(1, _SCRATCH_ITEMS), np.uint8)

    def _add(self, path: Path, position: int, expected: str, found: str, next_step: str = REPAIR) -> None:
        self._report.add(Problem("index", str(path), position, expected, found, next_step))

    def _sizes_step(self) -> str:
        """The index is built again with slots and items that were given or noted, or that another file shows."""
        if self._knows_sizes:
            return REPAIR
        step = remove_index_step(self._root / INDEX, self._settings)
        return f"give max_hash_slot_num and max_index_num as the store was written with; if the file is damaged, {step}"

    def check(self, chunk: Chunk) -> None:
        """Compare the items of these records."""
        below = chunk.end_offset
        taken = [(file, items) for file in self._files if len(items := file.take(below))]
        self._report.index_item_count += sum(len(items) for _, items in taken)
        if not self._are_as_expected(chunk, taken):
            self._report_differences(chunk, taken)
        self._begin, self._last_timestamp = below, self._made_timestamp

    def _are_as_expected(self, chunk: Chunk, taken: list[tuple[_IndexFile, _Items]]) -> bool:
        """The usual case: all items of the chunk in one file, in order, with tags or without as in the chunk before."""
        if len(taken) != 1:
            return False
        file, items = taken[0]
        if items.same(self._expected(chunk, file, with_tags=self._tags_seen)):
            return True
        if items.same(self._expected(chunk, file, with_tags=not self._tags_seen)):
            self._tags_seen = not self._tags_seen
            return True
        return False

    def _expected(self, chunk: Chunk, file: _IndexFile | None, *, with_tags: bool) -> _Items:
        """The items that the kernel makes of the chunk, with times as that file counts them."""
        header = np.zeros(len(HEADER.fields), np.int64)
        header[HEADER_BEGIN_TIMESTAMP] = file.header.begin_timestamp if file else 0
        header[HEADER_END_TIMESTAMP] = self._last_timestamp
        stored = np.frombuffer(self._scratch, ITEM.dtype, _SCRATCH_ITEMS, items_position(1))
        pieces = []
        record = key = 0
        while True:
            header[HEADER_NEXT_ITEM] = 2  # item 1 would set the file's begin
            record, key = put_keys(
                chunk.file.address, chunk.positions, record, len(chunk.positions), chunk.base_offset,
                self._scratch.ctypes.data, self._scratch.ctypes.data + items_position(1), 1, _SCRATCH_ITEMS, header,
                with_tags, key,
            )  # fmt: skip
            made = stored[2 : header[HEADER_NEXT_ITEM]]
            pieces.append([made[name].astype(np.int64) for name in ("commit_log_offset", "key_hash", "seconds")])
            if record == len(chunk.positions):
                break
        self._made_timestamp = int(header[HEADER_END_TIMESTAMP])
        return _Items(*(np.concatenate(column) for column in zip(*pieces, strict=True)))

    def _report_differences(self, chunk: Chunk, taken: list[tuple[_IndexFile, _Items]]) -> None:
        expected = self._expected(chunk, None, with_tags=self._with_tags)
        begin = min([self._begin, *(int(items.offsets[0]) for _, items in taken)])
        needed = expected.names(begin)
        for file, items in taken:
            self._report_surplus(file, items, self._expected(chunk, file, with_tags=True), begin)
        there = np.concatenate([items.names(begin) for _, items in taken]) if taken else np.empty(0, np.int64)
        missing = ~np.isin(needed, there)
        if self._with_tags and missing.any():
            missing = self._without_tags_of_5_3(chunk, expected, missing, taken, begin)
        if missing.any():
            self._report_missing(expected.at(missing), taken)

    def _without_tags_of_5_3(
        self, chunk: Chunk, expected: _Items, missing: NDArray[np.bool_], taken: list[tuple[_IndexFile, _Items]],
        begin: int,
    ) -> NDArray[np.bool_]:  # fmt: skip
        """What is missing, but for tags' items that 5.3 left out: it may have written any stretch of the log. Those of
        records whose keys are missing too, or after the last item that was written, are not of its doing."""
        for_keys = np.isin(expected.names(begin), self._expected(chunk, None, with_tags=False).names(begin))
        lost, tags = missing & for_keys, missing & ~for_keys
        has_tags = bool((~missing & ~for_keys).any())
        behind = np.full(len(missing), not self._report.clean and not self._later_items())
        behind &= expected.offsets >= _last_offset(taken)
        if has_tags:
            left_out = tags & ~behind & ~np.isin(expected.offsets, expected.offsets[lost])
            self._left_out_tags += int(left_out.sum())
        return lost | (tags & behind) if has_tags or (not taken and lost.any()) else lost

    def _report_surplus(self, file: _IndexFile, items: _Items, expected: _Items, begin: int) -> None:
        """Items that no record has, or with another time than the record's."""
        needed = expected.names(begin)
        order = np.argsort(needed, kind="stable")
        names = items.names(begin)
        place = np.minimum(np.searchsorted(needed, names, sorter=order), max(0, len(needed) - 1))
        at = order[place] if len(needed) else np.zeros(len(names), np.int64)
        known = needed[at] == names if len(needed) else np.zeros(len(names), np.bool_)
        late = known & (expected.seconds[at] != items.seconds) if len(needed) else known
        for number in np.flatnonzero(late).tolist():
            item, seconds = int(items.numbers[number]), int(expected.seconds[at[number]])
            what = f"item {item:,} at {seconds:,} s after the file's begin"
            self._add(file.path, file.position(item), what, f"{int(items.seconds[number]):,} s")
        for number in np.flatnonzero(~known).tolist():
            self._report_unknown(file, items, number)

    def _report_unknown(self, file: _IndexFile, items: _Items, number: int) -> None:
        offset = int(items.offsets[number])
        if 0 <= offset < self._report.log_begin or self._report.in_damage(offset):
            return
        self._unknown_count += 1
        self._add(
            file.path, file.position(int(items.numbers[number])),
            f"item {int(items.numbers[number]):,} to be a key of a record",
            f"log offset {offset:,} with key hash {int(items.hashes[number])}, which no record has",
        )  # fmt: skip

    def _report_missing(self, missing: _Items, taken: list[tuple[_IndexFile, _Items]]) -> None:
        if self._report.is_unreadable_in(self._directory):  # they may be there
            return
        if not self._report.clean and not self._later_items():
            behind = missing.offsets >= _last_offset(taken)
            self._report.index_items_behind += int(behind.sum())
            missing = missing.at(~behind)
        if len(missing) and not self._files:
            self._missing_count += len(missing)
        elif len(missing):
            path = taken[-1][0].path if taken else self._directory
            first, last = int(missing.offsets[0]), int(missing.offsets[-1])
            self._add(
                path,
                0,
                f"items for {counted(len(missing), 'key')} of records at log offsets {first:,} to {last:,}",
                "none",
            )

    def _later_items(self) -> bool:
        """Whether the index goes on after what was taken so far."""
        return any(file.has_rest for file in self._files)

    def finish(self) -> None:
        """Look at what is left in the files, at their headers and at the chains of their slots."""
        if self._missing_count:
            step = self._sizes_step() if self._of_other_size else REPAIR
            what = f"index files for {counted(self._missing_count, 'key')}"
            self._add(self._directory, 0, what, "no index file", step)
        for file in self._files:
            rest = file.take(np.iinfo(np.int64).max)
            after = (rest.offsets >= self._report.log_end) & ~self._report.are_in_damage(rest.offsets)
            lost = 0 if self._report.clean else int(after.sum())
            if lost:
                number = len(rest) - lost
                what = f"{counted(lost, 'item')} for log offset {int(rest.offsets[number]):,} and later"
                self._report.add_lost("index", str(file.path), file.position(int(rest.numbers[number])), what)
            for number in range(len(rest) - lost):
                self._report_unknown(file, rest, number)
            self._check_inside(file)
        self._check_order()
        if self._left_out_tags > self._unknown_count:  # an item that was changed may be of a tag
            self._report.notes.append(
                f"{self._directory}: no items for the tags of {counted(self._left_out_tags, 'message')} or more, as "
                "RocketMQ before 5.4 writes it; a query by tag does not find them before the index is rebuilt"
            )

    def _check_order(self) -> None:
        """A file goes on where the one before it ended: one that was copied has items twice."""
        for before, file in pairwise(file for file in self._files if file.item_count):
            if file.first_offset < before.last_offset:
                self._add(
                    file.path, file.position(1), f"items from log offset {before.last_offset:,} on, where "
                    f"{before.path.name} ends", f"items from {file.first_offset:,} on: the file is a copy, or renamed",
                )  # fmt: skip

    def _check_inside(self, file: _IndexFile) -> None:
        newest_is_open = file is self._files[-1] and not self._report.clean
        if newest_is_open:
            why = "is being written" if self._report.is_live else "was open when the store stopped"
            after = "" if self._report.is_live else ", the next opening builds it again"
            self._report.notes.append(f"{file.path} {why}: its chains are not checked{after}")
            return
        faults, (items, slots) = file.header_faults(), file.chain_faults()
        if not self._is_vouched(file) and (len(items) or len(slots) or any(name == _USED for name, *_ in faults)):
            self._report.notes.append(
                f"{file.path}: its chains are not those of its items, as RocketMQ leaves them when it goes on with a "
                "file after a kill: it may not find keys of them. The next opening builds them again from the items"
            )
            faults, items, slots = [fault for fault in faults if fault[0] != _USED], items[:0], slots[:0]
        for name, expected, found in [*faults, *self._time_faults(file)]:
            self._add(
                file.path, HEADER.position(name), f"{name} {expected:,} in the header, as its items say", f"{found:,}"
            )
        for number in items.tolist():
            self._add(
                file.path, file.position(number), f"item {number:,} to be reached exactly once from its slot",
                "a broken chain: keys of this slot may not be found",
            )  # fmt: skip
        for slot in slots.tolist():
            self._add(
                file.path, file.slot_position(slot), f"slot {slot:,} to begin with one of its items", "another item"
            )

    def _time_faults(self, file: _IndexFile) -> Iterator[tuple[str, int, int]]:
        """Times in the header that are not those of the records in the first and the last item: a query passes over
        files of other times."""
        if file.item_count:
            for name, offset in (("begin_timestamp", file.first_offset), ("end_timestamp", file.last_offset)):
                record, found = record_at(self._root, offset, self._disk), getattr(file.header, name)
                if record and 0 < record.store_timestamp != found:
                    yield name, record.store_timestamp, found

    def _is_vouched(self, file: _IndexFile) -> bool:
        """Whether opening takes the file as it is, see `Index.load`."""
        is_closed = self._report.clean or self._report.is_live or file.header.next_item >= self._item_capacity
        return is_closed and bool(file.header.end_commit_log_offset < self._vouched_end)
