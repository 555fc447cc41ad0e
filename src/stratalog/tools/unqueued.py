"""Messages of the log that rebuilt queues do not lead to, though the old ones did or are lost.

A record whose queue offset was changed passes for an old one, or lets those after it pass for old ones: queues built
from such a log serve less than before.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratalog.config.settings import StoreSettings
from stratalog.kernels.scan import TRUST, ScanStatus, scan
from stratalog.layout.index import HEADER, ITEM, items_position
from stratalog.layout.light import is_light
from stratalog.layout.message import FIXED_SIZE_V1, HEAD, LOST_FLAG, Record, decode_record, queue_offset_limit
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONSUME_QUEUE,
    INDEX,
    is_index_name,
    is_topic,
    offset_of,
)
from stratalog.layout.queue import BATCH_UNIT, LOST_TAGS_CODE, UNIT
from stratalog.layout.record import Layout
from stratalog.layout.recordcrc import record_crc_holds
from stratalog.layout.sysflag import TRANSACTION_MASK, Transaction, enters_queue
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk, MappedFile, PrivateDisk, queue_directories
from stratalog.store.queue_begin import QUEUE_LAYOUTS, QueueKey, says_twice, written_units
from stratalog.store.recovery import Damage
from stratalog.store.snapshot import noted_log, sealed_ends
from stratalog.store.topics import Topics
from stratalog.tools.batches import batches_outside, contradiction_of
from stratalog.tools.evidence import doubled_offsets, queue_begins
from stratalog.tools.light import first_light
from stratalog.tools.survey import MISSING_MAX
from stratalog.tools.verify_files import record_at, was_closed

_SCAN_COUNT = 1 << 14
_LISTED_MAX = 1000
Offsets = NDArray[np.int64]
Led = tuple[Offsets, Offsets, Offsets]
"""Queue offset, log offset, and end of the queue offsets of each unit."""
_NONE: Led = (np.empty(0, np.int64),) * 3


def unqueued(
    root: Path, staging: Path, damages: Sequence[Damage], *, log_end: int, is_repaired: bool = False,
    told: Collection[int] = (),
) -> list[Record]:  # fmt: skip
    """Whole records up to `log_end` that belong into a queue and that none of the queues in `staging` leads to, unless
    the queue in `root` has units, none of them led there, and some led further; and those that a queue led to where it
    has nothing now. Of a log that `is_repaired` light queues may have lost some, and batches may stand elsewhere in
    their queue. Of the records at the log offsets that are `told`, only those that no queue leads to are among them. No
    more than a thousand are looked for."""
    disk = PrivateDisk()
    new, batches = _led_to(staging, disk), set(disk.directories(staging / BATCH_CONSUME_QUEUE))
    old = _led_to(root, disk, beside=new)
    old = {key: units for key, units in old.items() if not _was_exchanged(key, old, new)}
    everything = np.sort(np.concatenate([
        np.empty(0, np.int64), *(units[1] for (topic, _), units in new.items() if not is_light(topic))
    ]))  # fmt: skip
    led = np.sort(np.concatenate([np.empty(0, np.int64), *(offsets for _, offsets, _ in old.values())]))
    own = [offsets for (topic, _), (_, offsets, _) in old.items() if not is_light(topic)]
    led_by_own = np.sort(np.concatenate([np.empty(0, np.int64), *own]))
    moved = dict(_displaced(old, new, batches, is_repaired=is_repaired))
    displaced = np.setdiff1d(np.concatenate([np.empty(0, np.int64), *moved.values()]), np.array([*told], np.int64))
    reached = {key: int(offsets.max()) for key, (_, offsets, _) in old.items()}
    needed = np.sort(np.concatenate([np.empty(0, np.int64), *_needed(old, new)]))
    shrunk = np.sort(np.concatenate([np.empty(0, np.int64), *_shrunk(old, new)]))
    found, begins = list[Record](), queue_begins(root, disk)
    for file, base, positions, enters in _records(root / COMMIT_LOG, damages, log_end):
        offsets = base + positions
        unled, is_displaced = ~_is_among(offsets, everything), _is_among(offsets, displaced)
        unled &= enters | _is_among(offsets, led)  # flags that keep a record from its queue may have changed
        suspect = unled | is_displaced | _is_among(offsets, shrunk)
        for position, is_unled, is_moved in zip(
            *(column[suspect].tolist() for column in (positions, unled, is_displaced)), strict=True
        ):
            record = decode_record(file.view.data, position, verify=False)
            stored = file.view.data[position : position + record.total_size]
            topic = record.topic.decode("utf-8", "surrogateescape")
            is_own = base + position in old.get((topic, record.queue_id), _NONE)[1]  # then that unit was wrong
            is_needed = bool(_is_among(np.array([base + position]), needed)[0])
            if not (enters_queue(record.sys_flag) or (is_own and is_needed)):
                continue  # prepared or rolled back: a unit that leads there is wrong
            others = (offsets for key, offsets in moved.items() if key != (topic, record.queue_id))
            is_sure = is_own and says_twice(record) and not any(base + position in led_there for led_there in others)
            is_wrong = is_moved and not is_sure
            is_right = record_crc_holds(stored) or not (is_wrong or contradiction_of(record))
            if record.flag == LOST_FLAG or (not is_unled and is_right):
                continue  # it is no message, or it is where it belongs: the old unit is wrong
            if is_light(topic) and not is_moved and base + position in new.get((topic, record.queue_id), _NONE)[1]:
                continue
            is_led = bool(_is_among(np.array([base + position]), led_by_own)[0])
            begin = begins.get((topic, record.queue_id))
            is_before = begin and begin.is_after(record.queue_offset, base + position)
            if is_before and (not is_needed or (is_own and not is_moved)):
                continue  # of a topic that was deleted and created again; a unit that leads there is wrong
            is_after = base + position > reached.get((topic, record.queue_id), -1)
            if is_led or (is_after and is_topic(topic) and record.queue_id >= 0):
                found.append(record)
        if len(found) >= _LISTED_MAX:
            break
    return found


@dataclass(frozen=True, slots=True)
class LogRange:
    """Log offsets [begin, end) that the log has, and what is damaged in it."""

    begin: int
    end: int
    file_size: int
    damages: Sequence[Damage]


def differ(root: Path, staging: Path, log: LogRange) -> bool:
    """Whether units of the queues in `root` that lead into the log differ from those in `staging`: more than one."""
    disk, count = PrivateDisk(), 0
    new = _led_to(staging, disk)
    for key, (numbers, offsets, _) in _led_to(root, disk).items():
        if not is_light(key[0]):
            now = new.get(key, _NONE)
            at = np.searchsorted(now[0], numbers)
            is_same = at < len(now[0])
            is_same[is_same] = (now[0][at[is_same]] == numbers[is_same]) & (now[1][at[is_same]] == offsets[is_same])
            count += int(np.count_nonzero((offsets >= log.begin) & (offsets < log.end) & ~is_same))
    return count > 1


def forgotten(old: Path, new: Path, layout: Layout, log: LogRange) -> tuple[bool, int]:
    """What a queue knows that the one built from the log does not: whether its units lead to nothing but messages from
    before the log's begin and from damaged ranges; and the end of the last message after the log's end, 0 if none.

    Units that no store can have written are left out: they were damaged. A file without units tells by its name."""
    is_of_log, newest_inside, disk = True, -1, PrivateDisk()
    has_units = layout is UNIT and _named_end(old, disk) > 0
    after = list[Led]()
    for numbers, offsets, sizes, counts, tags_codes in written_units(old, layout, disk):
        has_units |= bool(len(offsets))
        is_inside = (offsets >= log.begin) & (tags_codes != LOST_TAGS_CODE)
        for damage in log.damages:
            is_inside &= (offsets < damage.begin) | (offsets >= damage.end)
        is_of_log &= not bool(is_inside.any())
        ends, log_ends = numbers + np.maximum(counts, 1), offsets + sizes
        is_after = is_inside & (offsets >= log.end) & (log_ends <= log.end + MISSING_MAX * log.file_size)
        is_after &= (sizes >= FIXED_SIZE_V1) & (ends <= queue_offset_limit(log.end))
        newest_inside = max(newest_inside, int(numbers[is_inside & (offsets < log.end)].max(initial=-1)))
        after.append((numbers[is_after], offsets[is_after], log_ends[is_after]))
    numbers, offsets, log_ends = _joined(after)
    if not len(numbers):
        return has_units and is_of_log, 0
    end = written_end(new.parents[2], (new.parent.name, int(new.name)), disk)
    is_lost = (numbers > newest_inside) | (numbers >= end)  # else it may be the damaged unit of a hole
    for begins, led, _, counts, _ in written_units(new, layout, disk):
        at = np.searchsorted(begins, numbers, "right") - 1
        is_given = (at >= 0) & (numbers < (begins + np.maximum(counts, 1))[at]) if len(begins) else is_lost & False
        turned = offsets[is_given] ^ led[at[is_given]]  # one bit of the unit may have been flipped
        is_lost[is_given] &= (turned & (turned - 1)) != 0
        for place in np.flatnonzero(is_lost & is_given).tolist():
            record = record_at(old.parents[2], int(led[at[place]]), disk)
            is_lost[place] = record is None or record.flag != LOST_FLAG  # for what a repair made the offset is kept
    return has_units and is_of_log, int(log_ends[is_lost].max(initial=0))


def lost_ends(root: Path, disk: Disk) -> dict[QueueKey, int]:
    """Ends that the snapshot knows of queues whose units do not reach them: files were lost or damaged."""
    return {key: end for key, end in sealed_ends(root, disk).items() if written_end(root, key, disk) < end}


def written_end(root: Path, key: QueueKey, disk: Disk) -> int:
    """Queue offset after a queue's last unit, whatever that leads to. A file without units begins there."""
    ends = [
        int((numbers + np.maximum(counts, 1)).max(initial=0))
        for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT))
        for numbers, _, _, counts, _ in written_units(root / tree / key[0] / str(key[1]), layout, disk)
    ]
    return max([*ends, _named_end(root / CONSUME_QUEUE / key[0] / str(key[1]), disk)])


def _named_end(directory: Path, disk: Disk) -> int:
    """Queue offset at which the newest file of a plain or light queue begins, by its name."""
    starts = [start for name in disk.files(directory) if (start := offset_of(name)) is not None]
    return max(starts, default=0) // UNIT.size


def known_end(root: Path, log: LogRange, settings: StoreSettings, disk: Disk) -> int:
    """Log offset that the log once reached, if it ends before it now and no damage explains that; else 0.

    The checkpoint and the snapshot tell the end at the last clean stop. The last item of an index file tells where a
    record began; after a crash it may be ahead of the log, so it counts only for a store that was closed properly."""
    seal, noted = Checkpoint.load(root, disk).seal, noted_log(root, disk)
    ends = [seal.log_end_offset if seal else 0, noted[1] if noted else 0]
    if was_closed(root, disk):
        ends += [offset + 1 for offset in _last_indexed(root / INDEX, settings, disk)]
    limit = log.end + MISSING_MAX * log.file_size
    return max(
        (
            end for end in ends
            if log.end < end <= limit and not any(damage.begin < end <= damage.end for damage in log.damages)
        ),
        default=0,
    )  # fmt: skip


def _last_indexed(directory: Path, settings: StoreSettings, disk: Disk) -> Iterator[int]:
    """Log offset of the last item of each index file, if the file's header says the same."""
    for name in filter(is_index_name, disk.files(directory)):
        file = disk.open(directory / name)
        try:
            header = HEADER.unpack(file.read(0, HEADER.size).ljust(HEADER.size, b"\0"))
            if header.next_item > 1:
                place = items_position(settings.max_hash_slot_num or 0) + ITEM.size * (header.next_item - 1)
                item = ITEM.unpack(file.read(place, ITEM.size).ljust(ITEM.size, b"\0"))
                if item.commit_log_offset == header.end_commit_log_offset:
                    yield item.commit_log_offset
        finally:
            file.close()


def kinds_in_log(
    root: Path, topics: Topics, damages: Sequence[Damage], log_end: int, *, has_light: bool
) -> tuple[dict[str, int], str]:
    """Topics that are not of type BatchCQ though the log holds batches of them, with the log offset of the first; and,
    unless it is known that the store has light queues, one of them."""
    found, light = dict[str, int](), ""
    for file, base, positions, enters in _records(root / COMMIT_LOG, damages, log_end):
        for topic, position in batches_outside(file, positions[enters], topics):
            found.setdefault(topic, base + position)
        if not has_light and not light:
            light, _ = first_light(file, positions[enters], base) or ("", 0)
    return found, light


def _is_among(offsets: Offsets, ordered: Offsets) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(offsets), np.bool_)
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, offsets), len(ordered) - 1)] == offsets
    return found


def _was_exchanged(key: QueueKey, old: "dict[QueueKey, Led]", new: "dict[QueueKey, Led]") -> bool:
    """Whether a queue had exactly the units that another queue has now: their directories were exchanged. Where the
    other one had them, too, a single message that went elsewhere is no sign of that."""
    strays = np.setdiff1d(old[key][1], new.get(key, _NONE)[1])
    return bool(len(strays)) and any(
        _is_same(old[key], now) and (len(strays) > 1 or not _is_same(old.get(other, _NONE), now))
        for other, now in new.items() if other != key
    )  # fmt: skip


def _is_same(one: Led, other: Led) -> bool:
    return all(map(np.array_equal, one, other))


def _displaced(
    old: "dict[QueueKey, Led]", new: "dict[QueueKey, Led]", batches: Collection[str], *, is_repaired: bool
) -> Iterator[tuple[QueueKey, Offsets]]:  # fmt: skip
    """Log offsets that a queue led to at queue offsets where it has nothing now, up to the one after its last. Left out
    are those that another queue leads to now, where it led nowhere else and has the message that follows; and those
    that a light queue still leads to."""
    followed = list[Offsets]()
    for key, (numbers, offsets, ends) in new.items():
        is_kept = np.append(numbers[1:] == ends[:-1], False)
        if was := old.get(key):
            _, mine, there = np.intersect1d(numbers, was[0], return_indices=True)
            is_kept[mine] &= offsets[mine] == was[1][there]
        followed += [] if is_light(key[0]) else [offsets[is_kept]]
    kept = np.sort(np.concatenate([np.empty(0, np.int64), *followed]))
    for key, (numbers, offsets, _) in old.items():
        now = new.get(key) if not (is_repaired and is_light(key[0])) else None
        if now is not None:
            gone = ~_is_covered(numbers, now) & (numbers <= now[2].max())
            mine = np.sort(now[1])
            if is_light(key[0]):
                # RocketMQ may have put messages at smaller places than their offsets, one after another.
                at = np.minimum(np.searchsorted(now[1], offsets), len(now[1]) - 1)
                is_ahead = (now[1][at] == offsets) & (now[0][at] > numbers)
                stays = is_ahead & np.append(is_ahead[1:], False)
            else:
                stays = _is_among(offsets, kept)
                if is_repaired:
                    is_shifted = len(np.unique(offsets)) < len(offsets)  # a unit was written twice
                    stays |= _is_among(offsets, mine) & (key[0] in batches or is_shifted)
            yield key, offsets[gone & ~stays]


def _needed(old: "dict[QueueKey, Led]", new: "dict[QueueKey, Led]") -> Iterator[Offsets]:
    """Log offsets that a queue, no light one, led to at queue offsets where it has nothing now."""
    for key, (numbers, offsets, _) in old.items():
        if not is_light(key[0]):
            yield offsets[~_is_covered(numbers, new[key])] if key in new else offsets


def _shrunk(old: "dict[QueueKey, Led]", new: "dict[QueueKey, Led]") -> Iterator[Offsets]:
    """Log offsets of the batches that cover fewer queue offsets than before."""
    for key in old.keys() & new.keys():
        was, now = old[key], new[key]
        _, mine, there = np.intersect1d(was[1], now[1], return_indices=True)
        yield was[1][mine][(was[2] - was[0])[mine] > (now[2] - now[0])[there]]


def _is_covered(numbers: Offsets, led: Led) -> NDArray[np.bool_]:
    """Whether queue offsets have a unit: a batch's covers several."""
    order = np.argsort(led[0], kind="stable")
    at = np.searchsorted(led[0][order], numbers, "right") - 1
    covered: NDArray[np.bool_] = (at >= 0) & (led[2][order][at] > numbers)
    return covered


def _led_to(root: Path, disk: Disk, *, beside: "dict[QueueKey, Led] | None" = None) -> "dict[QueueKey, Led]":
    """Queue offsets and log offsets of each queue's units; queues without units are left out, and so are queues and
    files that contradict the queues `beside` them: they are another queue's."""
    found: dict[QueueKey, Led] = {}
    led = [offsets for (topic, _), (_, offsets, _) in (beside or {}).items() if not is_light(topic)]
    elsewhere = np.sort(np.concatenate([np.empty(0, np.int64), *led]))
    doubled = doubled_offsets(root, disk) if beside else elsewhere[:0]
    for tree, layout in QUEUE_LAYOUTS.items():
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            pieces = []
            for numbers, offsets, _, counts, tags_codes in written_units(directory, layout, disk):
                is_there = tags_codes != LOST_TAGS_CODE
                if len(offsets) > 1:  # nobody wrote a unit that leads back; one for a lost message leads to the next
                    is_there[-1] &= offsets[-1] > offsets[-2] - (not is_there[-2])
                pieces.append((numbers[is_there], offsets[is_there], (numbers + np.maximum(counts, 1))[is_there]))
            now = (beside or {}).get((topic, queue_id))
            if now is not None:
                is_own = not _contradicts(_joined(pieces), now, elsewhere)
                pieces = [piece for piece in pieces if is_own and not _contradicts(piece, now, elsewhere)]
                if not is_light(topic):
                    pieces = [piece for piece in pieces if not _is_copy(piece, now, elsewhere, doubled)]
            if sum(len(numbers) for numbers, *_ in pieces):
                found[topic, queue_id] = _joined(pieces)
    return found


def _is_copy(piece: Led, now: Led, led: Offsets, doubled: Offsets) -> bool:
    """Whether a file's units were copied from another queue (neither is a light one): two or more point where another
    queue's units do (`doubled`) and none matches its own queue now; or two or more, and over a quarter, point to a
    record that another queue has now (`led`: all records that units point to)."""
    _, mine, there = np.intersect1d(piece[0], now[0], return_indices=True)
    agrees = np.zeros(len(piece[0]), np.bool_)
    agrees[mine] = piece[1][mine] == now[1][there]
    wrong_count = int(np.count_nonzero(_is_among(piece[1], led) & ~agrees))
    is_doubled = bool(np.count_nonzero(_is_among(piece[1], doubled)) > 1)
    return (is_doubled and not agrees.any()) or (wrong_count > 1 and 4 * wrong_count > len(mine))


def _joined(pieces: list[Led]) -> Led:
    numbers, offsets, ends = (np.concatenate(column) for column in zip(_NONE, *pieces, strict=True))
    return numbers, offsets, ends


def _contradicts(piece: Led, now: Led, led: Offsets) -> bool:
    """Whether units lead elsewhere than the queue does now at over a quarter of the queue offsets that both have, and
    at more than one unless that is all: two light queues can share half of their messages. Where they have none in
    common, whether they lead to more than one record that other queues have now (of all that are `led` to), and to more
    than to the queue's own."""
    _, mine, there = np.intersect1d(piece[0], now[0], return_indices=True)
    if not len(mine):
        is_own = _is_among(piece[1], np.sort(now[1]))
        return int(np.count_nonzero(_is_among(piece[1], led) & ~is_own)) > max(1, int(np.count_nonzero(is_own)))
    other_count = int(np.count_nonzero(piece[1][mine] != now[1][there]))
    if len(mine) == 1:  # it may be a single message that went elsewhere in its queue
        return bool(other_count) and not bool(_is_among(piece[1], np.sort(now[1])).any())
    return (other_count > 1 and 4 * other_count > len(mine)) or other_count == len(mine)


def _records(
    directory: Path, damages: Sequence[Damage], log_end: int
) -> Iterator[tuple[MappedFile, int, Offsets, NDArray[np.bool_]]]:  # fmt: skip
    """Positions of the records of each file, and which of them enter a queue; damaged ranges are left out."""
    after = {damage.begin: damage.end for damage in damages}
    ordered = sorted(after.items())
    begins, ends = (np.array(column, np.int64) for column in (zip(*ordered, strict=True) if ordered else ((), ())))
    positions, sizes = np.empty(_SCAN_COUNT, np.int64), np.empty(_SCAN_COUNT, np.int32)
    disk, resume = PrivateDisk(), 0
    for name, size in disk.files(directory).items():
        base = offset_of(name)
        if base is None or not size or base >= log_end:
            continue
        file, position = disk.map(directory / name), max(0, resume - base)
        try:
            while position < min(size, log_end - base):
                count, position, status = scan(file.address, position, size, base, TRUST, positions, sizes)
                flags = file.view[positions[:count, None] + np.arange(HEAD.size)].view(HEAD.dtype)["sys_flag"][:, 0]
                kind = flags & TRANSACTION_MASK
                enters = (kind == Transaction.NONE) | (kind == Transaction.COMMIT)
                is_sound = positions[:count] < log_end - base
                before = np.searchsorted(begins, base + positions[:count], "right") - 1
                if len(ends):
                    is_sound &= (before < 0) | (base + positions[:count] >= ends[before])
                yield file, base, positions[:count][is_sound], enters[is_sound]
                if status != ScanStatus.FULL:
                    if base + position not in after:
                        break
                    resume = after[base + position]
                    position = resume - base
        finally:
            file.close()
