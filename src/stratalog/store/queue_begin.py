"""Where the messages of each queue begin in the log.

RocketMQ deletes a topic by removing its queues; the records stay in the log. When the topic is created again, its queue
offsets begin at 0 again, and only the new units tell the records of the two topics apart: those before the record of
the first unit are deleted. `live_begins` also decides where that unit, or its record, is damaged.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratalog.kernels.scan import VERIFY, ScanStatus, scan
from stratalog.layout.batch import batch_size_of
from stratalog.layout.light import LIGHT_QUEUE_ID, is_light, light_offset, light_places
from stratalog.layout.message import HEAD, Record, decode_record
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, is_topic, offset_of
from stratalog.layout.queue import BATCH_UNIT, LOST_TAGS_CODE, UNIT, fillers
from stratalog.layout.record import Layout
from stratalog.layout.sysflag import enters_queue
from stratalog.store.disk import Disk, MappedFile
from stratalog.store.log_scan import closes_file, next_record

QueueKey = tuple[str, int]
_CHUNK_RECORDS = 1 << 13
_UNITS_ASKED = 8


class QueueBegin(NamedTuple):
    """The first message of a queue. Records of the queue that lie before it and have no smaller queue offset are of a
    topic that was deleted and created again."""

    queue_offset: int
    commit_log_offset: int


class LiveUnit(NamedTuple):
    """A unit that leads into the log, to a message."""

    queue_offset: int
    commit_log_offset: int
    size: int


class _Record(NamedTuple):
    """A record of one queue: its log offset, and the queue offsets [begin, end) that it has."""

    commit_log_offset: int
    begin: int
    end: int


def has_place(record: Record, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Whether a record says of itself that it has that offset in a queue, its own one or a light queue."""
    own = record.topic.decode(errors="replace"), record.queue_id, record.queue_offset
    return own == (topic, queue_id, queue_offset) or light_offset(record.properties, topic) == queue_offset


def written_units(
    directory: Path, layout: Layout, disk: Disk, *, damaged: bool = False
) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Queue offset, log offset, size, batch size and tags code of the units in each file of a queue; those in front of
    its first message are left out, and those that no store can have written unless `damaged`."""
    for name in disk.files(directory):
        start = offset_of(name)
        if start is None or start % layout.size:
            continue
        file = disk.open(directory / name)
        try:
            stored = file.read(0, -(-file.data_end() // layout.size) * layout.size)
        finally:
            file.close()
        units = np.frombuffer(stored, layout.dtype, len(stored) // layout.size)
        numbers, counts = start // layout.size + np.arange(len(units)), np.zeros(len(units), np.int64)
        written = (units["size"] > 0) & (units["commit_log_offset"] >= 0)
        if damaged:
            written |= (units["size"] != 0) | (units["commit_log_offset"] != 0)
        if layout is BATCH_UNIT:
            numbers, counts = units["base_offset"].astype(np.int64), units["batch_size"].astype(np.int64)
            written &= (numbers >= 0) & (counts > 0)
        columns = (numbers, units["commit_log_offset"], units["size"], counts, units["tags_code"])
        in_front = fillers(units) & (units["tags_code"] != LOST_TAGS_CODE)
        yield tuple(column[written & ~in_front].astype(np.int64) for column in columns)


def first_units(directory: Path, layout: Layout, log_begin: int, disk: Disk) -> list[LiveUnit]:
    """The first units of a queue's files that lead into the log, to messages."""
    return list(islice(_live_units(directory, layout, log_begin, disk), _UNITS_ASKED))


def _live_units(directory: Path, layout: Layout, log_begin: int, disk: Disk) -> Iterator[LiveUnit]:
    for numbers, offsets, sizes, _, tags_codes in written_units(directory, layout, disk):
        led = np.flatnonzero((offsets >= log_begin) & (tags_codes != LOST_TAGS_CODE))
        yield from map(LiveUnit, numbers[led].tolist(), offsets[led].tolist(), sizes[led].tolist())


def live_begins(
    queues: Mapping[QueueKey, Sequence[LiveUnit]], log: Sequence[MappedFile], root: Path, disk: Disk
) -> dict[QueueKey, QueueBegin]:
    """Where queues begin, by their first units and one walk over the log; those of which that is not known are left
    out. A unit counts if a record of its place begins where it leads to, or if that record is damaged: its bytes, or,
    where the next unit counts or is none, what it says of its place."""
    if not queues or not log:
        return {}
    led_to = {unit.commit_log_offset for units in queues.values() for unit in units}
    walk, found = _Walk(log, led_to, queues.keys()), dict[QueueKey, QueueBegin]()
    for key, units in queues.items():
        counting = [_counts(key, unit, walk) for unit in units]
        for at, unit in enumerate(units):
            is_next_right = counting[at + 1] if at + 1 < len(units) else len(units) == 1
            if counting[at] or (is_next_right and _is_changed(unit, walk, key, root, disk)):
                if begin := _begin(unit, walk.of_queue[key], is_whole_log=not int(log[0].path.name)):
                    found[key] = begin
                break
    return found


def _counts(key: QueueKey, unit: LiveUnit, walk: "_Walk") -> bool:
    record = walk.records.get(unit.commit_log_offset)
    return has_place(record, *key, unit.queue_offset) if record else walk.is_damaged(unit.commit_log_offset)


def _is_changed(unit: LiveUnit, walk: "_Walk", key: QueueKey, root: Path, disk: Disk) -> bool:
    """Whether a unit leads to a record that was changed: it names another place, whose queue does not lead to it. The
    unit may be damaged instead, or another queue's: then a record of its place is one bit of the unit away, or another
    queue leads to that."""
    record = walk.records.get(unit.commit_log_offset)
    if not record or record.total_size != unit.size:
        return False
    if is_light(key[0]) and light_offset(record.properties, key[0]) < 0:  # two light queues may share what follows
        return False
    own = [one.commit_log_offset for one in walk.of_queue[key] if one.begin == unit.queue_offset]
    named = record.topic.decode(errors="replace"), record.queue_id
    before = [one.end for one in walk.of_queue[key] if one.commit_log_offset < record.commit_log_offset]
    if named == key and before and before[-1] == record.queue_offset:  # it is in its place, the unit is not
        return False
    return not (
        any((offset ^ unit.commit_log_offset).bit_count() == 1 or offset in walk.led_to for offset in own)
        or (named != key and _leads_to(named, record.commit_log_offset, root, disk))
    )


def _leads_to(key: QueueKey, commit_log_offset: int, root: Path, disk: Disk) -> bool:
    """Whether a unit of a queue leads to a log offset."""
    return is_topic(key[0]) and any(
        bool(np.any(offsets == commit_log_offset))
        for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT))
        for _, offsets, *_ in written_units(root / tree / key[0] / str(key[1]), layout, disk)
    )


def _begin(first: LiveUnit, records: list[_Record], *, is_whole_log: bool) -> QueueBegin | None:
    """Where a queue begins, by its first unit that counts and its `records` before that. In front of it may be others
    whose units are damaged: those that lead up to it from queue offset 0. Two or more with larger offsets are of the
    deleted topic for certain, and so is what is before them."""
    begin = QueueBegin(first.queue_offset, first.commit_log_offset)
    before = [record for record in records if record.commit_log_offset < first.commit_log_offset]
    if not first.queue_offset or not before:
        return begin
    expected = first.queue_offset
    for record in reversed(before):
        if record.end != expected:
            break
        expected = record.begin
        if not expected:
            return QueueBegin(0, record.commit_log_offset)
    later = [record.commit_log_offset for record in before if record.begin >= first.queue_offset]
    if len(later) > 1:
        return QueueBegin(0, later[-1] + 1)
    return None if later and is_whole_log else begin  # a single one is rather a changed record


class _Walk:
    """The log up to a limit: whole records at some log offsets, those of some queues, and what is damaged."""

    def __init__(self, log: Sequence[MappedFile], led_to: Collection[int], keys: Collection[QueueKey]) -> None:
        self.led_to = led_to
        self.records: dict[int, Record] = {}
        self.of_queue: dict[QueueKey, list[_Record]] = defaultdict(list)
        self._damages: list[tuple[int, int]] = []
        self._keys, self._has_light = keys, any(is_light(topic) for topic, _ in keys)
        self._ids = np.array(sorted({queue_id for _, queue_id in keys}))
        asked = np.array(sorted(led_to), np.int64)
        for file in log:
            if int(file.path.name) > max(led_to, default=-1):
                break
            for base, positions in self._whole_records(file):
                for position in positions[np.isin(base + positions, asked)].tolist():
                    self.records[base + position] = decode_record(file.view.data, position, verify=False)
                self._take(file, base, positions)

    def is_damaged(self, commit_log_offset: int) -> bool:
        """Whether a log offset lies in bytes that are no whole record, before a file's end or another one."""
        at = bisect_right(self._damages, commit_log_offset, key=lambda damage: damage[0]) - 1
        return at >= 0 and commit_log_offset < self._damages[at][1]

    def _whole_records(self, file: MappedFile) -> Iterator[tuple[int, NDArray[np.int64]]]:
        positions, sizes = np.empty(_CHUNK_RECORDS, np.int64), np.empty(_CHUNK_RECORDS, np.int32)
        position, base = 0, int(file.path.name)
        while 0 <= position < file.size:
            count, stop, status = scan(file.address, position, file.size, base, VERIFY, positions, sizes)
            yield base, positions[:count]
            position = stop
            if status != ScanStatus.FULL:
                position = next_record(file, stop + 1, base)
                end = position if position >= 0 else file.data_end
                if position >= 0 or not closes_file(file, stop, base):
                    self._damages.append((base + stop, base + end))

    def _take(self, file: MappedFile, base: int, positions: NDArray[np.int64]) -> None:
        heads = file.view[positions[:, None] + np.arange(HEAD.size)].view(HEAD.dtype)[:, 0]
        is_asked = np.isin(heads["queue_id"], self._ids) | self._has_light
        for position in positions[is_asked].tolist():
            record = decode_record(file.view.data, position, verify=False)
            if not enters_queue(record.sys_flag):
                continue
            own = record.topic.decode(errors="replace"), record.queue_id
            if own in self._keys:
                count = batch_size_of(record.sys_flag, record.properties, record.queue_offset)[0]
                place = _Record(base + position, record.queue_offset, record.queue_offset + count)
                self.of_queue[own].append(place)
            for name, number in light_places(record.properties, base + position)[0] if self._has_light else ():
                if (name, LIGHT_QUEUE_ID) in self._keys:
                    self.of_queue[name, LIGHT_QUEUE_ID].append(_Record(base + position, number, number + 1))
