"""Messages of the log that rebuilt queues do not lead to, though the old ones did or are lost.

A record whose queue offset was changed passes for an old one, or lets those after it pass for old ones: queues built
from such a log serve less than before.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratalog.kernels.scan import TRUST, ScanStatus, scan
from stratalog.layout.light import is_light
from stratalog.layout.message import HEAD, Record, decode_record
from stratalog.layout.names import BATCH_CONSUME_QUEUE, COMMIT_LOG, CONSUME_QUEUE, is_topic, offset_of
from stratalog.layout.queue import BATCH_UNIT, LOST_TAGS_CODE, UNIT
from stratalog.layout.recordcrc import record_crc_holds
from stratalog.layout.sysflag import TRANSACTION_MASK, Transaction
from stratalog.store.disk import Disk, MappedFile, PrivateDisk
from stratalog.store.recovery import Damage
from stratalog.tools.evidence import QueueKey, written_units
from stratalog.tools.verify_files import queue_directories

_SCAN_COUNT = 1 << 14
_LISTED_MAX = 1000
Offsets = NDArray[np.int64]
Led = tuple[Offsets, Offsets, Offsets]
"""Queue offset, log offset, and end of the queue offsets of each unit."""


def unqueued(
    root: Path, staging: Path, damages: Sequence[Damage], *, log_end: int, with_light: bool = True
) -> list[Record]:
    """Whole records up to `log_end` that belong into a queue and that none of the queues in `staging` leads to, unless
    the queue in `root` has units, none of them led there, and some led further; and those that a queue led to where it
    has nothing now (a light queue only `with_light`). No more than a thousand are looked for."""
    disk = PrivateDisk()
    new = _led_to(staging, disk)
    old = _led_to(root, disk, beside=new)
    everything, of_light = (
        np.sort(np.concatenate([
            np.empty(0, np.int64), *(units[1] for (topic, _), units in new.items() if is_light(topic) == light)
        ]))
        for light in (False, True)
    )  # fmt: skip
    led = np.sort(np.concatenate([np.empty(0, np.int64), *(offsets for _, offsets, _ in old.values())]))
    displaced = np.sort(np.concatenate([np.empty(0, np.int64), *_displaced(old, new, with_light=with_light)]))
    reached = {key: int(offsets.max()) for key, (_, offsets, _) in old.items()}
    found: list[Record] = []
    for file, base, positions in _records(root / COMMIT_LOG, damages, log_end):
        offsets = base + positions
        unled = ~_is_among(offsets, everything)
        suspect = unled | _is_among(offsets, displaced)
        for position, is_unled in zip(positions[suspect].tolist(), unled[suspect].tolist(), strict=True):
            record = decode_record(file.view.data, position, verify=False)
            if not is_unled and record_crc_holds(file.view.data[position : position + record.total_size]):
                continue  # it is where it belongs: the old unit is wrong
            topic = record.topic.decode("utf-8", "surrogateescape")
            offset = np.array([base + position])
            if is_unled and is_light(topic) and _is_among(offset, of_light)[0]:
                continue  # a placeholder in a light queue alone
            is_led = bool(_is_among(offset, led)[0])
            is_after = base + position > reached.get((topic, record.queue_id), -1)
            if is_topic(topic) and record.queue_id >= 0 and (is_led or is_after):
                found.append(record)
        if len(found) >= _LISTED_MAX:
            break
    return found


def _is_among(offsets: Offsets, ordered: Offsets) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(offsets), np.bool_)
    found: NDArray[np.bool_] = ordered[np.minimum(np.searchsorted(ordered, offsets), len(ordered) - 1)] == offsets
    return found


def _displaced(
    old: "dict[QueueKey, Led]", new: "dict[QueueKey, Led]", *, with_light: bool
) -> Iterator[Offsets]:  # fmt: skip
    """Log offsets that a queue led to at queue offsets where it has nothing now, up to the one after its last. Left out
    are those that another queue leads to now if it led there before or has the message that follows."""
    both = [np.intersect1d(old[key][1], new[key][1]) for key in old.keys() & new.keys() if not is_light(key[0])]
    followed = [
        offsets[:-1][numbers[1:] == ends[:-1]] for (topic, _), (numbers, offsets, ends) in new.items()
        if not is_light(topic)
    ]  # fmt: skip
    kept = np.unique(np.concatenate([np.empty(0, np.int64), *both, *followed]))
    for key, (numbers, offsets, _) in old.items():
        now = new.get(key) if with_light or not is_light(key[0]) else None
        if now is not None:
            gone = ~_is_covered(numbers, now) & (numbers <= now[0].max() + 1)
            yield offsets[gone if is_light(key[0]) else gone & ~_is_among(offsets, kept)]


def _is_covered(numbers: Offsets, led: Led) -> NDArray[np.bool_]:
    """Whether queue offsets have a unit: a batch's covers several."""
    order = np.argsort(led[0], kind="stable")
    at = np.searchsorted(led[0][order], numbers, "right") - 1
    covered: NDArray[np.bool_] = (at >= 0) & (led[2][order][at] > numbers)
    return covered


def _led_to(root: Path, disk: Disk, *, beside: "dict[QueueKey, Led] | None" = None) -> "dict[QueueKey, Led]":
    """Queue offsets and log offsets of each queue's units; queues without units are left out, and so are files that
    contradict the queues `beside` them: they are another queue's."""
    found: dict[QueueKey, Led] = {}
    layouts: tuple[tuple[str, Any], ...] = ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT))
    for tree, layout in layouts:
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            pieces = []
            for numbers, offsets, _, counts, tags_codes in written_units(directory, layout, disk):
                is_there = tags_codes != LOST_TAGS_CODE
                ends = numbers + np.maximum(counts, 1)
                piece = numbers[is_there], offsets[is_there], ends[is_there]
                if not (beside and _contradicts(piece, beside.get((topic, queue_id)))):
                    pieces.append(piece)
            if sum(len(numbers) for numbers, *_ in pieces):
                numbers, offsets, ends = (np.concatenate(column) for column in zip(*pieces, strict=True))
                found[topic, queue_id] = numbers, offsets, ends
    return found


def _contradicts(piece: Led, now: Led | None) -> bool:
    """Whether a file of units leads elsewhere than the queue does now at over a quarter of the queue offsets that both
    have: two light queues can share half of their messages."""
    if now is None:
        return False
    _, mine, there = np.intersect1d(piece[0], now[0], return_indices=True)
    return 4 * int(np.count_nonzero(piece[1][mine] != now[1][there])) > len(mine)


def _records(
    directory: Path, damages: Sequence[Damage], log_end: int
) -> Iterator[tuple[MappedFile, int, Offsets]]:  # fmt: skip
    """Positions of the records of each file that enter a queue; those in damaged ranges are left out."""
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
                before = np.searchsorted(begins, base + positions[:count], "right") - 1
                if len(ends):
                    enters &= (before < 0) | (base + positions[:count] >= ends[before])
                yield file, base, positions[:count][enters]
                if status != ScanStatus.FULL:
                    if base + position not in after:
                        break
                    resume = after[base + position]
                    position = resume - base
        finally:
            file.close()
