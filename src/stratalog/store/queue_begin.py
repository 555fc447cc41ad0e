"""Where the messages of each queue begin in the log.

RocketMQ deletes a topic by removing its queues; the records stay in the log. When the topic is created again, its queue
offsets begin at 0 again, and only the new units tell the records of the two topics apart: those before the record of
the first unit are deleted. `live_begins` also decides where that unit, or its record, is damaged.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain, islice, pairwise, repeat, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData
from stratalog.kernels.scan import TRUST, VERIFY, ScanStatus, scan
from stratalog.layout.batch import INNER_BASE, batch_size_of
from stratalog.layout.light import (
    LIGHT_QUEUE_ID,
    MULTI_DISPATCH,
    SEPARATOR,
    holds_nearly,
    is_light,
    is_sent_to,
    light_offset,
    light_places,
)
from stratalog.layout.message import FIXED_SIZE_V1, HEAD, LOST_FLAG, Record, decode_record, queue_offset_limit
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONSUME_QUEUE,
    offset_of,
)
from stratalog.layout.properties import PREPARED, find_property, is_overwritten
from stratalog.layout.queue import BATCH_COMPACTED_OFFSET, BATCH_UNIT, LOST_TAGS_CODE, UNIT, fillers, is_filler
from stratalog.layout.record import OFFSETS_END, Layout
from stratalog.layout.sysflag import enters_queue
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk, MappedFile, queue_directories
from stratalog.store.log_scan import closes_file, next_record, written_end

QueueKey = tuple[str, int]
ONLY_UNITS_TELL = "They alone tell where the live messages of a queue begin"
QUEUE_LAYOUTS = {CONSUME_QUEUE: UNIT, BATCH_CONSUME_QUEUE: BATCH_UNIT}
"""Trees of queue files, and the layout of the units that belong there."""
_CHUNK_RECORDS = 1 << 13
_UNITS_ASKED = 8
_AT_ONCE = 4096
"""Units that are read at a time by who seeks the first ones."""


class QueueBegin(NamedTuple):
    """The first message of a queue. Records of the queue that lie before it and have no smaller queue offset are of a
    topic that was deleted and created again."""

    queue_offset: int
    commit_log_offset: int

    def is_after(self, queue_offset: int, commit_log_offset: int) -> bool:
        """Whether a record of that place is of the deleted topic."""
        return self.queue_offset <= queue_offset and commit_log_offset < self.commit_log_offset


class LiveUnit(NamedTuple):
    """A unit that leads into the log, to a message; `end` is the queue offset after its last message. That of a batch
    queue says itself which queue offset it has; others stand in its place. Units of lost messages stand in front of
    it from the queue offset `lost_begin` on, if that is less."""

    queue_offset: int
    commit_log_offset: int
    size: int
    end: int
    is_of_batch: bool = False
    lost_begin: int = OFFSETS_END


class _Record(NamedTuple):
    """A record of one queue: its log offset and size, and the queue offsets [begin, end) that it has. A repair made it
    where `is_repaired`."""

    commit_log_offset: int
    size: int
    begin: int
    end: int
    is_repaired: bool


def has_place(record: Record, topic: str, queue_id: int, queue_offset: int) -> bool:
    """Whether a record says of itself that it has that offset in a queue, its own one or a light queue."""
    return enters_queue(record.sys_flag) and _names(record, topic, queue_id, queue_offset)


def _names(record: Record, topic: str, queue_id: int, queue_offset: int) -> bool:
    """The same of a record that may be prepared or rolled back."""
    own = record.topic.decode(errors="replace"), record.queue_id, record.queue_offset
    is_light_place = queue_id == LIGHT_QUEUE_ID and light_offset(record.topic, record.properties, topic) == queue_offset
    return is_light_place or own == (topic, queue_id, queue_offset)


def record_at(root: Path, commit_log_offset: int, disk: Disk) -> Record | None:
    """The whole record that begins at a log offset, None when none does."""
    for name, size in disk.files(root / COMMIT_LOG).items():
        start = offset_of(name)
        if start is not None and start <= commit_log_offset < start + size:
            file = disk.open(root / COMMIT_LOG / name)
            try:
                head = file.read(commit_log_offset - start, HEAD.size)
                total_size = min(max(0, HEAD.unpack(head).total_size), size)
                found = file.read(commit_log_offset - start, total_size)
                return decode_record(found.ljust(total_size, b"\0"))  # as if zeros followed a shorter file
            except CorruptData:
                return None
            finally:
                file.close()
    return None


def _stored(directory: Path, layout: Layout, disk: Disk, *, at_once: int = 0) -> Iterator[tuple[int, NDArray[np.void]]]:
    """First byte and units of each file of a queue, or of each `at_once` units of it."""
    for name in disk.files(directory):
        start = offset_of(name)
        if start is None or start % layout.size:
            continue
        file = disk.open(directory / name)
        try:
            count = -(-file.data_end() // layout.size)
            step = at_once or max(count, 1)
            for first in range(0, max(count, 1), step):
                stored = file.read(first * layout.size, min(step, count - first) * layout.size)
                units = np.frombuffer(stored, layout.dtype, len(stored) // layout.size)
                yield start + first * layout.size, units
        finally:
            file.close()


def written_units(
    directory: Path, layout: Layout, disk: Disk, *, damaged: bool = False, at_once: int = 0
) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """Queue offset, log offset, size, batch size and tags code of the units in each file of a queue, or of each
    `at_once` units of it; those in front of its first message are left out. Those that no store can have written have
    size 0; they are left out unless `damaged`, for which a file is looked at as a whole."""
    for start, units in _stored(directory, layout, disk, at_once=0 if damaged else at_once):
        numbers, counts = start // layout.size + np.arange(len(units)), np.zeros(len(units), np.int64)
        sound = (units["size"] > 0) & (units["commit_log_offset"] >= 0)
        used = (units["size"] != 0) | (units["commit_log_offset"] != 0)
        if layout is BATCH_UNIT:
            numbers, counts = units["base_offset"].astype(np.int64), np.maximum(units["batch_size"], 1).astype(np.int64)
            sound &= numbers >= 0
            used[: np.flatnonzero(used)[-1] if used.any() else 0] = True  # they follow each other without a hole
        sound &= numbers <= queue_offset_limit(units["commit_log_offset"].astype(np.int64))
        in_front = fillers(units) & (units["tags_code"] != LOST_TAGS_CODE) & (units["commit_log_offset"] == 0)
        taken = (used if damaged else sound) & ~in_front
        if layout is BATCH_UNIT and damaged:
            sound &= units["batch_size"] > 0  # else its begin counts
        columns = (numbers, units["commit_log_offset"], units["size"] * sound, counts, units["tags_code"])
        yield tuple(column[taken].astype(np.int64) for column in columns)


def layout_of(directory: Path, disk: Disk) -> Layout:
    """The layout of a queue's units: that of the other tree only if most units in its first file with some are then
    ones that a store can have written, in more bytes than with that of the directory's own tree."""
    right = QUEUE_LAYOUTS[directory.parents[1].name]
    for _, units in _stored(directory, BATCH_UNIT, disk) if right is BATCH_UNIT else ():
        if np.any((units["compacted_offset"] == BATCH_COMPACTED_OFFSET) & (units["reserved"] == 0)):
            return right  # no plain units read so, and no other field of a damaged one says as much
    other = UNIT if right is BATCH_UNIT else BATCH_UNIT
    return other if _sound_size(directory, other, disk) > max(0, _sound_size(directory, right, disk)) else right


def _sound_size(directory: Path, layout: Layout, disk: Disk) -> int:
    """Bytes of the units in a queue's first file that do not lead to before the one in front, less those of others."""
    for _, offsets, sizes, *_ in written_units(directory, layout, disk, damaged=True):
        if len(sizes):
            is_sound = (sizes >= FIXED_SIZE_V1) & (np.diff(offsets, prepend=0) >= 0)
            return layout.size * (2 * int(np.count_nonzero(is_sound)) - len(sizes))
    return 0


def first_units(directory: Path, layout: Layout, log_begin: int, disk: Disk) -> list[LiveUnit]:
    """The first units of a queue's files that lead into the log, to messages."""
    return list(islice(_live_units(directory, layout, log_begin, disk), _UNITS_ASKED))


def _live_units(directory: Path, layout: Layout, log_begin: int, disk: Disk) -> Iterator[LiveUnit]:
    lost_begin = OFFSETS_END if log_begin or layout is UNIT else 0  # no units stand in front of those of batches
    for numbers, offsets, sizes, counts, tags_codes in written_units(directory, layout, disk, at_once=_AT_ONCE):
        is_lost = tags_codes == LOST_TAGS_CODE
        lost_begin = min(lost_begin, int(numbers[is_lost].min(initial=OFFSETS_END)))
        led = np.flatnonzero((offsets >= log_begin) & ~is_lost)
        columns = (numbers, offsets, sizes, numbers + np.maximum(counts, 1))
        of_batches, lost = repeat(layout is BATCH_UNIT), repeat(lost_begin)
        yield from map(LiveUnit, *(column[led].tolist() for column in columns), of_batches, lost)


def unit_before(directory: Path, layout: Layout, unit: LiveUnit, disk: Disk) -> tuple[int, int, int] | None:
    """commit_log_offset, size and tags code of the unit that was written in front of one; None where none was."""
    before = None
    for _, units in _stored(directory, layout, disk):
        at = np.flatnonzero(units["commit_log_offset"] == unit.commit_log_offset)
        place = int(at[0]) if at.size else len(units)
        if place:
            before = units[place - 1].tolist()
        if at.size:
            break
    return before[:3] if before else None


def is_expired(
    unit: tuple[int, int, int], key: QueueKey, end: int, first: int, log_begin: int,
    record_at: Callable[[int], Record | None],
) -> bool:  # fmt: skip
    """Whether the unit before a queue's first one that leads into the log, to log offset `first`, is of an expired
    message or stands in front of all. Not so if a record that ends at queue offset `end` is one bit of the log offset
    away: the unit was damaged."""
    place, size, tags_code = unit
    if is_filler(size, tags_code):
        return not place or tags_code == LOST_TAGS_CODE
    if size <= 0 or not 0 <= place < log_begin:
        return False
    turned = (place ^ 1 << bit for bit in range(first.bit_length()))
    for record in (record_at(one) for one in turned if log_begin <= one < first):
        if record and record.total_size == size:
            count = batch_size_of(record.sys_flag, record.properties, record.queue_offset)[0]
            if has_place(record, *key, end - count):
                return False
    return True


def leads_to_first(
    unit: LiveUnit, key: QueueKey, before: tuple[int, int, int] | None, log: tuple[int, int],
    record_at: Callable[[int], Record | None],
) -> bool:  # fmt: skip
    """Whether the first unit of a queue that leads into the log leads to the queue's first message there, for certain.
    `before` is the unit in front of it; the `log` begins and ends there. Not so if one bit off stands a newer message
    of its place and size: the record may be a deleted one."""
    offset, record = unit.commit_log_offset, record_at(unit.commit_log_offset)
    if not record or record.total_size != unit.size or not has_place(record, *key, unit.queue_offset):
        return False
    if unit.queue_offset and not (
        log[0] and before and is_expired(before, key, unit.queue_offset, offset, log[0], record_at)
    ):
        return False
    newer = (offset | 1 << bit for bit in range(log[1].bit_length()) if not offset >> bit & 1)
    return not any(
        other.total_size == unit.size and has_place(other, *key, unit.queue_offset)
        for place in newer if place < log[1] and (other := record_at(place))
    )  # fmt: skip


def may_lead_to_deleted(
    queues: Mapping[QueueKey, Sequence[LiveUnit]], log: Sequence[MappedFile], record_at: Callable[[int], Record | None]
) -> Iterator[QueueKey]:  # fmt: skip
    """Queues whose first unit may lead to a deleted message: in the log one follows that message in front of the record
    of the second unit. Light queues are passed over, as no record's head names them."""
    asked = {key: units[:2] for key, units in queues.items() if len(units) > 1 and not is_light(key[0])}
    following = {key: _end_of(first, record_at) for key, (first, _) in asked.items()}
    ranges = {key: (one.commit_log_offset, two.commit_log_offset) for key, (one, two) in asked.items()}
    for offset, record in _records_of(ranges, log, {*following.values()}, {}):
        key = record.topic.decode(errors="replace"), record.queue_id
        if key in asked and record.queue_offset == following[key] and ranges[key][0] < offset < ranges[key][1]:
            yield key


def follow_live(
    queues: Mapping[QueueKey, Sequence[LiveUnit]], log: Sequence[MappedFile], root: Path, disk: Disk,
    record_at: Callable[[int], Record | None],
) -> Iterator[QueueKey]:  # fmt: skip
    """Queues of which the first unit leads into the log after a message that joins it. That one is live: were it
    expired, as the unit in front says, so would be all deleted ones. Not so if it may be another queue's, which a bit
    made name this one: a unit of that queue leads to it. In a light queue it came there in the same way, too."""
    joined = {key: units[0] for key, units in queues.items() if units and units[0].queue_offset}
    found = dict[QueueKey, tuple[int, Record]]()
    for offset, record in _records_of({key: (0, one[1]) for key, one in joined.items()}, log, set(), joined):
        own, count = record.queue_offset, batch_size_of(record.sys_flag, record.properties, record.queue_offset)[0]
        ends = {(record.topic.decode(errors="replace"), record.queue_id): own + count}
        light = light_places(record.topic, record.properties, offset)[0]
        ends |= {(name, LIGHT_QUEUE_ID): number + 1 for name, number in light}
        for key, end in ends.items():
            if key in joined and end == joined[key].queue_offset and offset < joined[key].commit_log_offset:
                found[key] = offset, record
    led = _led((offset for offset, _ in found.values()), root, disk, light=False)
    led_light = _led((offset for key, (offset, _) in found.items() if is_light(key[0])), root, disk, light=True)
    for key, (offset, record) in found.items():
        if not is_light(key[0]):
            is_live = not led[offset] - {key}
        else:
            named = {name for name, _ in light_places(record.topic, record.properties, offset)[0]}
            first = record_at(joined[key].commit_log_offset)
            ways = {is_sent_to(key[0], one.topic) for one in (record, first) if one}
            is_live = len(ways) == 1 and {topic for topic, _ in led_light[offset]} <= named | {key[0]}
        if is_live:
            yield key


def _end_of(unit: LiveUnit, record_at: Callable[[int], Record | None]) -> int:
    """The queue offset after the message that a unit leads to."""
    if unit.is_of_batch and (record := record_at(unit.commit_log_offset)):
        return record.queue_offset + batch_size_of(record.sys_flag, record.properties, record.queue_offset)[0]
    return unit.queue_offset + 1


def _records_of(
    ranges: Mapping[QueueKey, tuple[int, int]], log: Sequence[MappedFile], numbers: Set[int],
    joined: Mapping[QueueKey, LiveUnit],
) -> Iterator[tuple[int, Record]]:  # fmt: skip
    """Records in these ranges of the log that may be of the queues, and have one of the queue offsets or one that is
    joined; and their log offsets. More may be among them."""
    ids = np.array([queue_id for _, queue_id in ranges])
    plain = np.array([*numbers, *(unit.queue_offset - 1 for unit in joined.values() if not unit.is_of_batch)])
    batches = [unit for unit in joined.values() if unit.is_of_batch]
    batch_end = max((unit.queue_offset for unit in batches), default=0)
    batch_limit = max((unit.commit_log_offset for unit in batches), default=0)
    light_end = max((end for (topic, _), (_, end) in ranges.items() if is_light(topic)), default=0)
    positions, sizes = np.empty(_CHUNK_RECORDS, np.int64), np.empty(_CHUNK_RECORDS, np.int32)
    for file in log:
        base, position = int(file.path.name), 0
        ends = [end for begin, end in ranges.values() if begin < base + file.size]
        end = min(max(ends, default=0) - base, file.size)
        while 0 <= position < end:
            begin = position
            count, stop, status = scan(file.address, position, file.size, base, TRUST, positions, sizes)
            position = stop if status == ScanStatus.FULL else next_record(file, stop + 1, base)
            places = positions[:count]
            offsets, queue_ids = (
                file.view[places[:, None] + HEAD.position(name) + np.arange(HEAD.dtype[name].itemsize)]
                .view(HEAD.dtype[name])[:, 0]
                .astype(np.int64)
                for name in ("queue_offset", "queue_id")
            )
            is_asked = np.isin(queue_ids, ids) & (
                np.isin(offsets, plain) | ((offsets < batch_end) & (base + places < batch_limit))
            )
            if begin + base < light_end:
                is_asked |= _holding(file, places, begin, min(stop, light_end - base), MULTI_DISPATCH.encode())
            for place in places[is_asked].tolist():
                record = decode_record(file.view.data, place, verify=False)
                if enters_queue(record.sys_flag):
                    yield base + place, record


def _holding(
    file: MappedFile, places: NDArray[np.int64], begin: int, end: int, text: bytes
) -> NDArray[np.bool_]:  # fmt: skip
    """Mask of the records with these positions, ascending, that hold a text between two positions of the file."""
    found, hits = np.zeros(len(places), np.bool_), list[int]()
    at = file.map.find(text, begin, end)
    while at >= 0:
        hits.append(at)
        at = file.map.find(text, at + 1, end)
    if len(places):
        found[np.searchsorted(places, hits, "right") - 1] = True
    return found


def live_begins(
    queues: Mapping[QueueKey, Sequence[LiveUnit]], known: Mapping[QueueKey, Sequence[LiveUnit]],
    log: Sequence[MappedFile], root: Path, disk: Disk, *, sealed: Mapping[QueueKey, int] | None, indexed_end: int,
) -> dict[QueueKey, QueueBegin]:  # fmt: skip
    """Where queues begin, by their first units and one walk over the log; those of which that is not known are left
    out. Of others it is `known`. A unit counts if a record of its place begins where it leads to, or if that record is
    damaged: its bytes, or, for the first unit, what it says of its place. The first one does not if its record is
    a deleted one. `sealed` are the ends of queues at a clean stop after which nothing was put, as far as they are
    known, None after a crash: a queue whose messages reach that end, and whose units do not, has another one's files.
    `indexed_end` is where the log ended at least, by the index.
    Raises `CorruptData` where files of queues were renamed or exchanged, and the log does not tell where these begin.
    """
    if not log:
        return {}
    lost = {key: unit for key, units in queues.items() if not units and (unit := _lost_only(key, log, root, disk))}
    if not any(queues.values()) and not lost:
        return {}
    walk, found = _Walk(log, {**queues, **{key: [unit] for key, unit in lost.items()}}), dict[QueueKey, QueueBegin]()
    _refuse_exchanged(queues, known, walk, log)
    asked = {
        key: [_corrected(key, *pair, walk, is_first=not at) for at, pair in enumerate(zip_longest(units, units[1:]))]
        for key, units in queues.items()
    }
    counting = {key: [_counts(key, unit, walk) for unit in units] for key, units in asked.items()}
    for key, units in asked.items():
        if (newer := _newer_first(key, units, walk)) is not None:
            asked[key][0], counting[key][0] = newer, True
    past_end = {key: units for key, units in asked.items() if units and units[0].commit_log_offset >= walk.end}
    seal = Checkpoint.load(root, disk).seal if past_end else None
    sealed_end = seal.log_end_offset if seal else 0
    if sealed is not None and sealed_end == walk.put_end:  # the log lost nothing: the units are of another store
        past_end = {}
    joined_end = max(sealed_end, indexed_end, _joined_end(walk, log[0].size, root, disk)) if past_end else 0
    for key, units in past_end.items():
        if units[0].commit_log_offset < joined_end and _may_be_lost(key, units, walk, max(walk.limit, joined_end)):
            counting[key][0] = True
    deleted = {key: places for key, units in asked.items() if (places := _deleted(key, units, counting[key], walk))}
    led = _led(chain(*deleted.values()), root, disk)
    for key in [key for key, places in deleted.items() if not any(led[place] for place in places)]:
        counting[key][0] = False
    led_to = {key: {unit.commit_log_offset for unit in units} for key, units in known.items() if key not in asked}
    gone = {key: end for key, end in (sealed or {}).items() if not asked.get(key) and key not in known}
    changed = [
        key for key, units in asked.items()
        if _may_be_changed(key, units, counting[key], walk, asked.keys(), led_to) and not _is_in(gone, units[0], walk)
    ]  # fmt: skip
    for key in _without_led(changed, asked, walk, root, disk) if changed else ():
        counting[key][0] = True
    for key, units in asked.items():
        first = _first_counting(units, counting[key], walk) or _first_led(key, units, walk)
        begin = _begin(first, walk, walk.of_queue[key], is_whole_log=not int(log[0].path.name)) if first else None
        if begin and not _is_sealed((sealed or {}).get(key), begin, walk.of_queue[key], units):
            found[key] = begin
    return found | {
        key: QueueBegin(0, end) for key, unit in lost.items() if (end := _end_of_deleted(unit, walk.of_queue[key]))
    }  # fmt: skip


def _lost_only(key: QueueKey, log: Sequence[MappedFile], root: Path, disk: Disk) -> LiveUnit | None:
    """A substitute for the first unit of a queue that has only units of lost messages. Its log offset is the end of the
    file that was the last of the log when they were lost: what later files hold of them was restored."""
    for tree, layout in QUEUE_LAYOUTS.items():
        begin, end, place = OFFSETS_END, 0, 0
        for numbers, offsets, _, counts, tags_codes in written_units(root / tree / key[0] / str(key[1]), layout, disk):
            is_lost = tags_codes == LOST_TAGS_CODE
            begin = min(begin, int(numbers[is_lost].min(initial=OFFSETS_END)))
            place = max(place, int(offsets[is_lost].max(initial=0)))
            end = max(end, int((numbers + np.maximum(counts, 1))[is_lost].max(initial=0)))
        if end:
            return LiveUnit(end, place + 1 + log[0].size, 0, end, layout is BATCH_UNIT, begin)
    return None


def _end_of_deleted(unit: LiveUnit, records: Sequence[_Record]) -> int:
    """Log offset after the start of the last record of a deleted topic, 0 if there is none. The newest contiguous run
    of records is deleted if one of them has the offset of a lost message and the run does not end at the next offset.
    If the run begins at the next offset it is live, and the records before it are deleted."""
    put = [one for one in records if not one.is_repaired and one.commit_log_offset < unit.commit_log_offset]
    first = len(put) - 1
    while first > 0 and put[first - 1].end == put[first].begin:
        first -= 1
    if not put or put[-1].end == unit.queue_offset:
        return 0
    if put[first].begin == unit.queue_offset:
        return put[first - 1].commit_log_offset + 1 if first else 0
    has_lost_place = any(unit.lost_begin <= record.begin < unit.queue_offset for record in put[first:])
    return put[-1].commit_log_offset + 1 if has_lost_place else 0


def _is_in(queues: Mapping[QueueKey, int], unit: LiveUnit, walk: "_Walk") -> bool:
    """Whether the record that a unit leads to is, by its own fields, a message of one of these queues, which have no
    units: their directory was moved."""
    record = walk.records[unit.commit_log_offset]
    return record.queue_offset < queues.get((record.topic.decode(errors="replace"), record.queue_id), 0)


def _is_sealed(end: int | None, begin: QueueBegin, records: Sequence[_Record], units: Sequence[LiveUnit]) -> bool:
    """Whether the messages in front of a queue's begin reach its end at the clean stop: they were live then. Units that
    are asked and go on up to there are the queue's own."""
    before = [own for own in records if begin.is_after(own.begin, own.commit_log_offset)]
    return bool(before) and before[-1].end == end and (len(units) < _UNITS_ASKED and units[-1].end != end)


def _refuse_exchanged(
    queues: Mapping[QueueKey, Sequence[LiveUnit]], known: Mapping[QueueKey, Sequence[LiveUnit]], walk: "_Walk",
    log: Sequence[MappedFile],
) -> None:  # fmt: skip
    """Raise `CorruptData` where the first units of a queue lead to the messages of another one whose own units lead
    elsewhere, or that has no units, and the log does not tell where the messages of both begin: some expired, or
    they begin again. One unit alone does not say that the files were renamed: its record may have been changed."""
    led = {key: [_queues_of(unit, walk) for unit in units] for key, units in queues.items() if units}
    moved = Counter(
        (one[0], topic) for one, others in led.items() for them in others if one not in them for topic, _ in them
    )
    for one, others in led.items():
        for other in {*chain(*others)} - {one}:
            units, has_none = queues.get(other) or known.get(other, ()), not queues.get(other) and other not in known
            if not _leads(others, one, other) or not (units or (has_none and moved[one[0], other[0]] > 1)):
                continue
            pair = _Walk(log, {one: queues[one], other: units})
            theirs = [_queues_of(unit, pair) for unit in units]
            is_exchanged = any(_leads(theirs, other, third) for third in {*chain(*theirs)} - {other})
            is_renamed = has_none and all(other in keys and one not in keys for keys in others)
            begins_again = any(
                after.begin < before.end and not after.is_repaired
                for own in pair.of_queue.values() for before, after in pairwise(own)
            )  # fmt: skip
            if (is_exchanged or is_renamed) and (begins_again or int(log[0].path.name)):
                done, step = ("exchanged with", "exchange") if is_exchanged else ("renamed to those of", "rename")
                raise CorruptData(
                    f"the files of queue {other[0]}/{other[1]} were {done} {one[0]}/{one[1]}, by what their units lead "
                    f"to: {step} them back. {ONLY_UNITS_TELL}",
                    path=str(log[0].path.parent.parent),
                )


def _leads(units: Sequence[Sequence[QueueKey]], one: QueueKey, other: QueueKey) -> bool:
    """Whether the first unit of a queue leads to a message of the other one, or more of them do than to its own."""
    return any(other in keys and one not in keys for keys in units[:1]) or (
        sum((other in keys) - (one in keys) for keys in units) > 0
    )


def _queues_of(unit: LiveUnit, walk: "_Walk") -> list[QueueKey]:
    """The queues that have the message which a unit leads to in the unit's place, as its record says."""
    record = walk.records.get(unit.commit_log_offset)
    if record is None or record.total_size != unit.size or not enters_queue(record.sys_flag):
        return []
    own = (record.topic.decode(errors="replace"), record.queue_id), record.queue_offset
    light = light_places(record.topic, record.properties, unit.commit_log_offset)[0]
    places = [own, *(((name, LIGHT_QUEUE_ID), number) for name, number in light)]
    return [key for key, number in places if number == unit.queue_offset]


def _corrected(
    key: QueueKey, unit: LiveUnit, following: LiveUnit | None, walk: "_Walk", *, is_first: bool
) -> LiveUnit:  # fmt: skip
    """A batch queue's unit of which one bit of the queue offset was flipped, as its record says it twice, or says that
    it is the first one of its queue; unless the unit joins the `following` one as it is, or would overlap it."""
    record = walk.records.get(unit.commit_log_offset) if unit.is_of_batch else None
    if record is None or (record.topic.decode(errors="replace"), record.queue_id, record.total_size) != (
        *key,
        unit.size,
    ):
        return unit
    begin = record.queue_offset
    is_known = says_twice(record) or (is_first and not begin)
    if not is_known or (begin ^ unit.queue_offset).bit_count() != 1 or walk.is_one_bit_off(key, unit):
        return unit
    end = begin + batch_size_of(record.sys_flag, record.properties, begin)[0]
    is_right = following is not None and (following.queue_offset == unit.end or following.queue_offset < end)
    return unit if is_right else unit._replace(queue_offset=begin, end=end)


def says_twice(record: Record) -> bool:
    """Whether a batch's head and its property tell the same queue offset."""
    return find_property(record.properties, INNER_BASE.encode()) == str(record.queue_offset)


def _newer_first(key: QueueKey, units: Sequence[LiveUnit], walk: "_Walk") -> LiveUnit | None:
    """The first unit as it was before one bit of its log offset was flipped, if it leads to an older message of its
    place now: it led to a newer one, in front of the next unit's."""
    end = units[1].commit_log_offset if len(units) > 1 else walk.limit
    found = [place for place in walk.alike(key, units[0]) if units[0].commit_log_offset < place < end] if units else []
    return units[0]._replace(commit_log_offset=found[0]) if found else None


def _deleted(key: QueueKey, units: Sequence[LiveUnit], counting: Sequence[bool], walk: "_Walk") -> list[int]:
    """Log offsets of messages between those of the first two units. If no unit leads to them they are deleted, and so
    is the message of the first unit: a newer record of its place follows them and joins that of the second unit."""
    if len(units) < 2 or not all(counting[:2]):
        return []
    first, second = units[:2]
    between = [
        own for own in walk.of_queue[key] if first.commit_log_offset < own.commit_log_offset < second.commit_log_offset
    ]
    joins = bool(between) and (between[-1].begin, between[-1].end) == (first.queue_offset, second.queue_offset)
    return [own.commit_log_offset for own in between[:-1] if own.begin > first.queue_offset] if joins else []


def _counts(key: QueueKey, unit: LiveUnit, walk: "_Walk") -> bool:
    record = walk.records.get(unit.commit_log_offset)
    if record:
        return has_place(record, *key, unit.queue_offset)
    damage = walk.damage_at(unit.commit_log_offset)
    return damage == unit.commit_log_offset or (damage is not None and not walk.is_one_bit_off(key, unit))


def _first_counting(units: Sequence[LiveUnit], counting: Sequence[bool], walk: "_Walk") -> LiveUnit | None:
    """The first unit that counts. Where units lead to whole records of other places, files were moved or exchanged: a
    damaged record does not make one count then."""
    records = [walk.records.get(unit.commit_log_offset) for unit in units]
    is_moved = any(
        record and record.total_size == unit.size and not counts
        for unit, counts, record in zip(units, counting, records, strict=True)
    )
    return next(
        (
            unit for unit, counts, record in zip(units, counting, records, strict=True)
            if counts and (record or not is_moved)
        ), None,
    )  # fmt: skip


def _first_led(key: QueueKey, units: Sequence[LiveUnit], walk: "_Walk") -> LiveUnit | None:
    """The first record of the queue that units lead to, none of them at its place: they were moved or exchanged."""
    own = {record.commit_log_offset: record for record in walk.of_queue[key]} if units else {}
    led = [own[unit.commit_log_offset] for unit in units if unit.commit_log_offset in own]
    if not led:
        return None
    first = min(led)
    return LiveUnit(first.begin, first.commit_log_offset, first.size, first.end)


def _may_be_lost(key: QueueKey, units: Sequence[LiveUnit], walk: "_Walk", limit: int) -> bool:
    """Whether first units after the log's end may lead to messages that a crash took, or damage: several that follow
    each other up to a limit, or the only one of a queue that had more messages before."""
    if any(unit.size < FIXED_SIZE_V1 or unit.commit_log_offset + unit.size > limit for unit in units):
        return False
    if len(units) == 1:
        before = [own for own in walk.of_queue[key] if own.begin >= units[0].queue_offset and not own.is_repaired]
        return bool(before) and not walk.is_one_bit_off(key, units[0])
    return all(
        before.end == after.queue_offset and before.commit_log_offset + before.size <= after.commit_log_offset
        for before, after in pairwise(units)
    )


def _joined_end(walk: "_Walk", file_size: int, root: Path, disk: Disk) -> int:
    """Log offset up to which the units of all queues follow the log's last message without a gap, as those of lost
    messages do. A unit after a gap may be of another store, but not those of a queue that finds its newest message
    before: what lies in gaps in front of them was deleted."""
    end, units = walk.put_end, list[tuple[int, int]]()
    for topic, queue_id, directory, layout in _queues_of_kind(root, disk):
        before = None
        for numbers, offsets, sizes, *_ in written_units(directory, layout, disk):
            past = offsets >= walk.put_end
            if not past.all():
                before = int(offsets[~past][-1]), int(numbers[~past][-1])
            record = record_at(root, before[0], disk) if before and past.any() else None
            units += zip(offsets[past].tolist(), sizes[past].tolist(), strict=True)
            if record and before and has_place(record, topic, queue_id, before[1]):
                end = max(end, *(offsets[past] + sizes[past]).tolist())
    for offset, size in sorted(units):
        if offset > end and offset != -(-end // file_size) * file_size:  # the first record of the next file
            break
        end = max(end, offset + size)
    return end


def _may_be_changed(
    key: QueueKey, units: Sequence[LiveUnit], counting: Sequence[bool], walk: "_Walk", doubtful: Set[QueueKey],
    led_to: Mapping[QueueKey, Set[int]],
) -> bool:  # fmt: skip
    """Whether the first unit of a queue leads to a record that names another place, and it may be the record that was
    changed: no record of the unit's place is one bit of its log offset away; and the next unit counts and goes on
    there, with a whole record unless the damage ran into it, and without a record of the first one's place in between,
    or there is none, and the record does not go on from those before it. `led_to` are log offsets in the first units of
    queues of which the begin is known."""
    unit = units[0] if units else None
    record = walk.records.get(unit.commit_log_offset) if unit else None
    if not unit or not record or counting[0] or record.total_size != unit.size or walk.is_one_bit_off(key, unit):
        return False
    is_prepared = find_property(record.properties, PREPARED.encode()) is not None
    if not enters_queue(record.sys_flag) and (is_prepared or not _names(record, *key, unit.queue_offset)):
        return False
    named = (
        [name for name, _ in light_places(record.topic, record.properties, unit.commit_log_offset)[0]]
        if is_light(key[0])
        else []
    )
    if is_light(key[0]) and not (is_sent_to(key[0], record.topic) or holds_nearly(record.properties, key[0])):
        return False
    if named and key[0] not in named and not is_overwritten(record.properties):
        is_other = any((name, LIGHT_QUEUE_ID) in doubtful for name in named)  # exchanged ones share what follows
        right = {name for name in named if unit.commit_log_offset in led_to.get((name, LIGHT_QUEUE_ID), ())}
        if is_other or not (walk.of_queue[key] and _names_one_bit_off(record, key[0], right)):
            return False  # no other record names it: it may have been renamed
    if len(units) > 1:
        between = range(unit.commit_log_offset, units[1].commit_log_offset)
        is_next = counting[1] and (units[1].commit_log_offset in walk.records or is_overwritten(record.properties))
        goes_on = is_next and units[1].queue_offset == unit.end and len(between) > 0
        return goes_on and not any(place in between for place in walk.places(key, unit.queue_offset))
    before = [own for own in walk.of_queue[key] if own.commit_log_offset < unit.commit_log_offset]
    return not before or not has_place(record, *key, before[-1].end)


def _names_one_bit_off(record: Record, name: str, right: Set[str]) -> bool:
    """Whether one bit of a light queue's name was flipped in a record that names it; not in the `right` names."""
    names = (find_property(record.properties, MULTI_DISPATCH.encode()) or "").split(SEPARATOR)
    return any(
        "\ufffd" in other  # a bit that makes it no text
        or (
            len(other) == len(name)
            and sum((ord(a) ^ ord(b)).bit_count() for a, b in zip(other, name, strict=True)) == 1
        )
        for other in names if other not in right
    )  # fmt: skip


def _without_led(
    keys: Sequence[QueueKey], queues: Mapping[QueueKey, Sequence[LiveUnit]], walk: "_Walk", root: Path, disk: Disk
) -> list[QueueKey]:
    """Leave out the queues whose first unit may be another queue's: one leads to its record, too, or a unit of any
    queue leads to a record of its place. Light queues share records."""
    records = {key: queues[key][0].commit_log_offset for key in keys if not is_light(key[0])}
    places = {key: walk.places(key, queues[key][0].queue_offset) for key in records}
    led = _led(chain(records.values(), *places.values()), root, disk)
    return [
        key for key in keys
        if key not in records or not (led[records[key]] - {key} or any(led[place] for place in places[key]))
    ]  # fmt: skip


def _led(
    commit_log_offsets: Iterable[int], root: Path, disk: Disk, *, light: bool = False
) -> Mapping[int, set[QueueKey]]:
    """Which queues, but for light ones, or which light ones have units that lead to these log offsets."""
    asked = np.array(sorted({*commit_log_offsets}), np.int64)
    led = defaultdict[int, set[QueueKey]](set)
    for topic, queue_id, directory, layout in _queues_of_kind(root, disk, light=light) if len(asked) else ():
        for _, offsets, *_ in written_units(directory, layout, disk):
            for offset in offsets[np.isin(offsets, asked)].tolist():
                led[offset].add((topic, queue_id))
    return led


def _queues_of_kind(root: Path, disk: Disk, *, light: bool = False) -> Iterator[tuple[str, int, Path, Layout]]:
    """All queues but light ones, which share records, or the light ones; and the layout of their units."""
    for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            if is_light(topic) == light:
                yield topic, queue_id, directory, layout


def _begin(first: LiveUnit, walk: "_Walk", records: list[_Record], *, is_whole_log: bool) -> QueueBegin | None:
    """Where a queue begins, by its first unit that counts (where the damage begins, if its record is damaged) and its
    `records` before that. In front of it may be others whose units are damaged: those that lead up to it from queue
    offset 0. Two or more with larger offsets are of the deleted topic for certain, and so is what is before them; and
    are all if one has the place of a lost message, and they do not lead up to it."""
    damage = walk.damage_at(first.commit_log_offset)
    begin = QueueBegin(first.queue_offset, first.commit_log_offset if damage is None else damage)
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
    put = [record for record in before if not record.is_repaired]
    if any(first.lost_begin <= record.begin < first.queue_offset for record in put) and (
        put[-1].end != first.queue_offset
    ):
        return QueueBegin(0, put[-1].commit_log_offset + 1)
    later = [record.commit_log_offset for record in before if record.begin >= first.queue_offset]
    if len(later) > 1:
        return QueueBegin(0, later[-1] + 1)
    return None if later and is_whole_log else begin  # a single one is rather a changed record


class _Walk:
    """The log up to a limit: whole records at some log offsets, those of some queues, and what is damaged."""

    def __init__(self, log: Sequence[MappedFile], queues: Mapping[QueueKey, Sequence[LiveUnit]]) -> None:
        keys, led_to = queues.keys(), {unit.commit_log_offset for units in queues.values() for unit in units}
        self.records: dict[int, Record] = {}
        self.of_queue: dict[QueueKey, list[_Record]] = defaultdict(list)
        self.end = 0
        """Log offset after the last whole record that was seen."""
        self.put_end = 0
        """The same, without those that a repair made."""
        self.limit = int(log[-1].path.name) + 2 * max(file.size for file in log)
        """The newest file may be missing."""
        self._damages: list[tuple[int, int]] = []
        self._keys, self._has_light = keys, any(is_light(topic) for topic, _ in keys)
        self._ids = np.array(sorted({queue_id for _, queue_id in keys}))
        asked = np.array(sorted(led_to), np.int64)
        file_end = int(log[0].path.name)
        for file in log:
            if int(file.path.name) > file_end:  # one in front is missing, or was cut
                is_joined = self._damages and self._damages[-1][1] == file_end
                begin = self._damages.pop()[0] if is_joined else file_end
                self._damages.append((begin, int(file.path.name)))
            if int(file.path.name) > max(led_to, default=-1):
                break
            file_end = int(file.path.name) + file.size
            for base, positions in self._whole_records(file, is_last=file is log[-1]):
                for position in positions[np.isin(base + positions, asked)].tolist():
                    self.records[base + position] = decode_record(file.view.data, position, verify=False)
                self._take(file, base, positions)

    def damage_at(self, commit_log_offset: int) -> int | None:
        """Where the bytes begin that are no whole record, before a file's end or another one, if a log offset lies in
        such."""
        at = bisect_right(self._damages, commit_log_offset, key=lambda damage: damage[0]) - 1
        is_inside = at >= 0 and commit_log_offset < self._damages[at][1]
        return self._damages[at][0] if is_inside else None

    def is_one_bit_off(self, key: QueueKey, unit: LiveUnit) -> bool:
        """Whether a whole record of a unit's place and size is one bit of its log offset away: the unit is damaged."""
        return bool(self.alike(key, unit))

    def alike(self, key: QueueKey, unit: LiveUnit) -> list[int]:
        """Log offsets of such records."""
        return [
            own.commit_log_offset for own in self.of_queue[key]
            if (own.begin, own.size) == (unit.queue_offset, unit.size)
            and (own.commit_log_offset ^ unit.commit_log_offset).bit_count() == 1
        ]  # fmt: skip

    def places(self, key: QueueKey, queue_offset: int) -> list[int]:
        """Log offsets of the whole records that say they have a queue offset."""
        return [own.commit_log_offset for own in self.of_queue[key] if own.begin == queue_offset]

    def _whole_records(self, file: MappedFile, *, is_last: bool) -> Iterator[tuple[int, NDArray[np.int64]]]:
        positions, sizes = np.empty(_CHUNK_RECORDS, np.int64), np.empty(_CHUNK_RECORDS, np.int32)
        position, base = 0, int(file.path.name)
        while 0 <= position < file.size:
            count, stop, status = scan(file.address, position, file.size, base, VERIFY, positions, sizes)
            yield base, positions[:count]
            if count:
                self.end = base + int(positions[count - 1] + sizes[count - 1])
            position = stop
            if status != ScanStatus.FULL:
                position = next_record(file, stop + 1, base)
                if position >= 0:
                    self._damages.append((base + stop, base + position))
                elif not closes_file(file, stop, base):
                    self._damages.append((base + stop, base + (written_end(file, stop) if is_last else file.size)))

    def _take(self, file: MappedFile, base: int, positions: NDArray[np.int64]) -> None:
        heads = file.view[positions[:, None] + np.arange(HEAD.size)].view(HEAD.dtype)[:, 0]
        if (put := np.flatnonzero(heads["flag"] != LOST_FLAG)).size:
            self.put_end = base + int(positions[put[-1]] + heads["total_size"][put[-1]])
        is_asked = np.isin(heads["queue_id"], self._ids) | self._has_light
        for position in positions[is_asked].tolist():
            record = decode_record(file.view.data, position, verify=False)
            if not enters_queue(record.sys_flag):
                continue
            own, stored = (record.topic.decode(errors="replace"), record.queue_id), (base + position, record.total_size)
            is_repaired = record.flag == LOST_FLAG
            if own in self._keys:
                begin = record.queue_offset
                end = begin + batch_size_of(record.sys_flag, record.properties, begin)[0]
                self.of_queue[own].append(_Record(*stored, begin, end, is_repaired))
            for name, number in (
                light_places(record.topic, record.properties, base + position)[0] if self._has_light else ()
            ):
                if (name, LIGHT_QUEUE_ID) in self._keys:
                    self.of_queue[name, LIGHT_QUEUE_ID].append(_Record(*stored, number, number + 1, is_repaired))
