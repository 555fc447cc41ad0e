"""The map of a store: what is where, as the files say, without opening it. Fast enough for ten thousand queues."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, NotAStore, StoreLocked, command
from stratalog.kernels.scan import TRUST, ScanStatus, scan
from stratalog.layout import names
from stratalog.layout.index import HEADER, file_size
from stratalog.layout.light import is_light
from stratalog.layout.message import HEAD, HEADS, MAGIC_V1, MAGIC_V2, Record, decode_record
from stratalog.layout.names import is_index_name, is_topic, offset_name, offset_of
from stratalog.layout.queue import BATCH_UNIT, FILLER_SIZE, UNIT, is_filler
from stratalog.layout.record import Layout
from stratalog.layout.sysflag import HOSTS_MASK, enters_queue
from stratalog.store.config_files import TOPICS, read_config
from stratalog.store.disk import MappedFile, OpenFile, PrivateDisk, queue_directories
from stratalog.store.log_scan import closes_file, next_record
from stratalog.store.opening import PUT_BACK, check_whole, misplaced_tree
from stratalog.store.os_errors import refusing
from stratalog.store.sizes import check_given_sizes, completed, guess_text
from stratalog.store.snapshot import sealed_begins, sealed_ends
from stratalog.tools.own_files import refuse_if_locked, refuse_without_log
from stratalog.tools.survey import MISSING_MAX
from stratalog.tools.unqueued import LogRange, known_end
from stratalog.tools.verify_files import was_closed

_SCAN_COUNT = 1 << 14
_NEWEST_COUNT = 1 << 12
"""About so many of the newest records are looked for in their queues."""
_WALKED_SIZE_MAX = 64 << 20
"""The newest file of the log is walked, and more only up to that size."""


@dataclass(frozen=True, slots=True)
class QueueMap:
    """One queue. Offsets are queue offsets; times are those of its oldest and newest message in the log, ms."""

    topic: str
    queue_id: int
    kind: str
    """`Simple`, `Batch` or `LMQ`."""
    min_offset: int
    max_offset: int
    first_timestamp: int | None
    last_timestamp: int | None
    log_end: int
    """Log offset after the newest message that the queue knows."""


class ShortQueue(NamedTuple):
    """A queue that lost its newest messages. Queue offsets."""

    topic: str
    queue_id: int
    max_offset: int
    sealed_end: int


@dataclass(slots=True)
class StoreMap:
    """What a store holds. `state` says how it was left; `damage_begin` where the newest file cannot be read, if so."""

    root: Path
    state: str
    is_closed: bool
    """Whether it was closed properly, and nobody has it open."""
    file_size: int
    log_begin: int = 0
    log_end: int = 0
    first_timestamp: int | None = None
    last_timestamp: int | None = None
    damage_begin: int | None = None
    index_item_count: int = 0
    queues: list[QueueMap] = field(default_factory=list)
    unqueued_count: int = 0
    """Of the newest records of a store that was closed properly, those that are missing at an end of their queue."""
    short_queues: list[ShortQueue] = field(default_factory=list)
    """Queues that end before they did at the last clean stop of stratalog."""
    notes: list[str] = field(default_factory=list)

    @property
    def dispatch_lag(self) -> int:
        """Bytes of the log that no queue knows yet (messages of transactions, which enter none, among them)."""
        return max(0, self.log_end - max((queue.log_end for queue in self.queues), default=self.log_end))


def map_store(root: str | os.PathLike[str], *, settings: StoreSettings | None = None) -> StoreMap:
    """Look at names, sizes and the edges of every file. Damage in the middle is not seen: `verify` sees it.

    Raises `NotAStore`, `StoreUnavailable`; `ConfigurationError` for sizes that are not those of the files.
    """
    with refusing(f"{root} cannot be looked at"):
        return _map_store(Path(root), settings)


def _map_store(root: Path, settings: StoreSettings | None) -> StoreMap:
    disk = PrivateDisk()
    refuse_without_log(root)
    settings = settings or StoreSettings()
    check_given_sizes(settings, root, disk)
    settings, guessed = completed(settings, root, disk, small=False)
    opener, was_left_well = _opened_by(root), was_closed(root, disk)
    state = opener or ("closed properly" if was_left_well else "not closed properly")
    found = StoreMap(root, state, was_left_well and not opener, settings.commit_log_file_size)
    found.notes += [guess_text(guessed)] if guessed else []
    try:
        check_whole(root)
    except NotAStore as error:
        found.notes.append(str(error))
    if there := misplaced_tree(root, disk):
        found.notes.append(f"{there[0]} holds {there[2]}; {PUT_BACK}")
    log = _Log(root, disk, settings.commit_log_file_size)
    try:
        newest = _map_log(found, log)
        for tree, layout, kind in (
            (names.CONSUME_QUEUE, UNIT, "Simple"), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT, "Batch")
        ):  # fmt: skip
            for topic, queue_id, directory in queue_directories(root, tree, disk):
                queue = _map_queue(topic, queue_id, "LMQ" if is_light(topic) else kind, directory, layout, disk, log)
                if queue:
                    found.queues.append(queue)
    finally:
        log.close()
    if not opener:
        found.notes += _lost_end(found, settings, disk)
    if found.is_closed:  # else opening adds what is missing
        found.unqueued_count = _unqueued_count(found, newest, disk)
        found.short_queues = sorted(_short_queues(found, disk))
    found.queues.sort(key=lambda queue: (queue.topic, queue.queue_id))
    _map_index(found, settings, disk)
    try:
        note = read_config(root / names.CONFIG, TOPICS, disk).note
        found.notes += [note] if note else []
    except CorruptData as error:
        found.notes.append(str(error))
    return found


def _map_index(found: StoreMap, settings: StoreSettings, disk: PrivateDisk) -> None:
    """Count the items as the headers do. A file of another size than its slots and items make is damaged, or they are
    not known."""
    wanted, odd = file_size(settings.index_slot_count, settings.index_item_capacity), list[str]()
    for name, size in disk.files(found.root / names.INDEX).items():
        if is_index_name(name):
            with suppress(CorruptData):
                header = HEADER.unpack(_read(found.root / names.INDEX / name, HEADER.size))
                found.index_item_count += max(0, header.next_item - 1)
            odd += [f"{names.INDEX}/{name} has {size:,} bytes"] if size not in (0, wanted) else []
    if odd and settings.message_index_enable:
        found.notes.append(
            f"{odd[0]}, and {settings.index_slot_count:,} slots and {settings.index_item_capacity:,} items make "
            f"{wanted:,}: the file is damaged, or the store has other sizes; {command('verify', found.root)} says more"
        )


def _opened_by(root: Path) -> str:
    """Who has the store open, if anybody."""
    try:
        refuse_if_locked(root)
    except StoreLocked as error:
        return str(error).removeprefix(f"{root} is ").partition(":")[0]
    return ""


def _lost_end(found: StoreMap, settings: StoreSettings, disk: PrivateDisk) -> Iterator[str]:
    """Whether something tells of a log that reached further."""
    log = LogRange(found.log_begin, found.log_end, found.file_size, ())
    limit = found.log_end + MISSING_MAX * found.file_size  # a unit that points further is damaged
    ends = [queue.log_end for queue in found.queues if queue.log_end <= limit]
    with suppress(CorruptData):
        ends.append(known_end(found.root, log, settings, disk))
    if max(ends, default=0) > found.log_end:
        yield (
            f"the log ends at offset {found.log_end:,}, but queues, checkpoint or index show that it reached "
            f"{max(ends):,}: {command('verify', found.root)} says what is missing"
        )


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(size)


class _Log:
    """Heads of records by log offset; keeps few files open."""

    def __init__(self, root: Path, disk: PrivateDisk, file_size: int) -> None:
        self.directory = root / names.COMMIT_LOG
        self.disk = disk
        self.file_size = file_size
        self.starts = [start for name in disk.files(self.directory) if (start := offset_of(name)) is not None]
        self._open: dict[int, OpenFile] = {}

    def store_timestamp(self, commit_log_offset: int) -> int | None:
        """Store time of the record that begins there, None when none does."""
        start = commit_log_offset - commit_log_offset % self.file_size
        if start not in self.starts:
            return None
        if start not in self._open:
            if len(self._open) > 16:
                self._open.pop(next(iter(self._open))).close()
            self._open[start] = self.disk.open(self.directory / offset_name(start))
        data = self._open[start].read(commit_log_offset - start, HEADS[HOSTS_MASK].size)
        if len(data) < HEAD.size or HEAD.unpack(data).magic not in (MAGIC_V1, MAGIC_V2):
            return None
        layout = HEADS[HEAD.unpack(data).sys_flag & HOSTS_MASK]
        return int(layout.unpack(data).store_timestamp) if len(data) >= layout.size else None

    def close(self) -> None:
        for file in self._open.values():
            file.close()


def _map_log(found: StoreMap, log: _Log) -> list[Record]:
    """Begin and end of the log: the newest file that holds a record is walked, without its bodies' CRCs, and if it is
    small, those before it. Returns the newest records in them, without their bodies."""
    newest = list[Record]()
    if log.starts:
        found.log_begin = found.log_end = log.starts[0]
        found.first_timestamp = log.store_timestamp(log.starts[0])
    for start in reversed(log.starts):
        path = log.directory / offset_name(start)
        if newest and (len(newest) >= _NEWEST_COUNT or found.log_end - start > _WALKED_SIZE_MAX):
            break
        if not path.stat().st_size:
            continue
        end, records, damage = _walk(path, start, log.disk)
        if records and not newest:
            found.log_end, found.damage_begin = end, damage
            found.last_timestamp = records[-1].store_timestamp
        newest = records + newest
    return newest


def _unqueued_count(found: StoreMap, newest: list[Record], disk: PrivateDisk) -> int:
    """How many of these records follow their queue's newest message, or have an offset before its oldest one. Where the
    last clean stop says where a queue begins, records before that are of a topic that was deleted."""
    begins, count = sealed_begins(found.root, disk), 0
    known = {(queue.topic, queue.queue_id): (queue.min_offset, queue.log_end) for queue in found.queues}
    for record in newest:
        key = topic, _ = record.topic.decode(errors="replace"), record.queue_id
        first, log_end = known.get(key, (0, -1))
        begin = begins.get(key)
        is_lost = record.commit_log_offset >= max(log_end, begin.commit_log_offset if begin else 0)
        is_lost |= record.queue_offset < first and not begin
        ends_with_lost = not log_end  # its newest unit is a placeholder
        count += is_lost and not ends_with_lost and enters_queue(record.sys_flag) and is_topic(topic)
    return count


def _short_queues(found: StoreMap, disk: PrivateDisk) -> Iterator[ShortQueue]:
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in found.queues}
    for key, sealed_end in sealed_ends(found.root, disk).items():
        if ends.get(key, 0) < sealed_end:
            yield ShortQueue(*key, ends.get(key, 0), sealed_end)


def _walk(path: Path, base: int, disk: PrivateDisk) -> tuple[int, list[Record], int | None]:
    """The log offset after the last record of a file, the newest records, and the log offset where bytes that are no
    record begin."""
    file = disk.map(path)
    file.populate(0, file.data_end)
    positions, sizes = np.empty(_SCAN_COUNT, np.int64), np.empty(_SCAN_COUNT, np.int32)
    position, newest, damage, seen = 0, np.empty(0, np.int64), None, -1
    while True:
        count, position, status = scan(file.address, position, file.size, base, TRUST, positions, sizes)
        newest = np.concatenate((newest, positions[:count]))[-_NEWEST_COUNT:]
        if status == ScanStatus.FULL:
            continue
        if closes_file(file, position, base):
            return base + file.size, _records(file, newest), damage
        following = next_record(file, position + 1, base)
        if following < 0:
            return base + position, _records(file, newest), damage
        if position != seen:
            seen = position  # scanned again: a writer may have put it since
            continue
        damage = base + position if damage is None else damage
        position = following


def _records(file: MappedFile, positions: NDArray[np.int64]) -> list[Record]:
    found = (decode_record(file.view.data, position, verify=False) for position in positions.tolist())
    return [replace(record, body=b"") for record in found]


class _Units:
    """The units of one queue, number by number over its files."""

    def __init__(self, directory: Path, layout: Layout, disk: PrivateDisk) -> None:
        sizes = {start: size for name, size in disk.files(directory).items() if (start := offset_of(name)) is not None}
        self._layout = layout
        self._starts = [start for start, size in sizes.items() if size >= layout.size]
        self._counts = [sizes[start] // layout.size for start in self._starts]
        self._files: list[OpenFile] = []
        self._directory, self._disk = directory, disk
        self.first = self._starts[0] // layout.size if self._starts else 0
        self.end = self.first
        while self._starts:  # a newest file without a unit is a new one; or both were zeroed
            self._files = [disk.open(directory / offset_name(self._starts[-1]))]
            begin = self._starts[-1] // layout.size
            self.end = begin + self._bisect(begin, self._counts[-1])
            if self.end > begin or len(self._starts) == 1:
                break
            self._files.pop().close()
            self._starts.pop()
            self._counts.pop()

    def _bisect(self, begin: int, count: int) -> int:
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.unit(begin + middle).size > 0:
                low = middle + 1
            else:
                high = middle
        return low

    def unit(self, number: int) -> Any:
        position = number * self._layout.size
        last = self._starts[-1]
        if position >= last:
            return self._layout.unpack(self._files[0].read(position - last, self._layout.size))
        start = max(start for start in self._starts if start <= position)
        with (self._directory / offset_name(start)).open("rb") as stream:
            stream.seek(position - start)
            return self._layout.unpack(stream.read(self._layout.size))

    def first_at(self, commit_log_offset: int) -> int:
        """Number of the first unit whose record is at or after a log offset; the end when none is."""
        low, high = self.first, self.end
        while low < high:
            middle = (low + high) // 2
            unit = self.unit(middle)
            is_zeroed = unit.size <= 0
            if (
                is_zeroed
                or unit.commit_log_offset < commit_log_offset
                or (unit.size == FILLER_SIZE and not unit.commit_log_offset)
            ):
                low = middle + 1
            else:
                high = middle
        while low < self.end and is_filler((unit := self.unit(low)).size, unit.tags_code):
            low += 1
        return low

    def close(self) -> None:
        for file in self._files:
            file.close()


def _map_queue(
    topic: str, queue_id: int, kind: str, directory: Path, layout: Layout, disk: PrivateDisk, log: _Log
) -> QueueMap | None:
    units = _Units(directory, layout, disk)
    try:
        if units.end == units.first:
            return None if not units.end else QueueMap(topic, queue_id, kind, units.end, units.end, None, None, 0)
        low = units.first_at(log.starts[0] if log.starts else 0)
        newest = units.unit(units.end - 1)
        oldest = units.unit(low) if low < units.end else None
        ends = (low, units.end)
        if layout is BATCH_UNIT:
            end = newest.base_offset + newest.batch_size
            ends = (oldest.base_offset if oldest else end, end)
        is_filler = newest.size == FILLER_SIZE
        return QueueMap(
            topic, queue_id, kind, *ends,
            log.store_timestamp(oldest.commit_log_offset) if oldest else None,
            log.store_timestamp(newest.commit_log_offset) if oldest else None,
            0 if is_filler else newest.commit_log_offset + newest.size,
        )  # fmt: skip
    except CorruptData:  # a file that is cut in the middle of a unit
        return None
    finally:
        units.close()


def file_list(root: Path) -> Iterator[tuple[Path, Any]]:
    """Every file of the store with its `os.stat`."""
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield path, path.stat()
