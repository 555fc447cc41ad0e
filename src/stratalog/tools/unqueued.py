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
    the queue in `root` has units and none of them led there either; and those that a queue led to where it has nothing
    now (a light queue only `with_light`). No more than a thousand are looked for."""
    disk = PrivateDisk()
    new, old = _led_to(staging, disk), _led_to(root, disk)
    everything = np.sort(np.concatenate([np.empty(0, np.int64), *(offsets for _, offsets, _ in new.values())]))
    led = np.sort(np.concatenate([np.empty(0, np.int64), *(offsets for _, offsets, _ in old.values())]))
    displaced = np.sort(np.concatenate([np.empty(0, np.int64), *_displaced(old, new, with_light=with_light)]))
    found: list[Record] = []
    for file, base, positions in _records(root / COMMIT_LOG, damages, log_end):
        offsets = base + positions
        suspect = ~_is_among(offsets, everything) | _is_among(offsets, displaced)
        for position in positions[suspect].tolist():
            record = decode_record(file.view.data, position, verify=False)
            topic = record.topic.decode("utf-8", "surrogateescape")
            is_led = bool(_is_among(np.array([base + position]), led)[0])
            if is_topic(topic) and record.queue_id >= 0 and (is_led or (topic, record.queue_id) not in old):
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
    """Log offsets that a queue led to at queue offsets where it has nothing now, up to the one after its last, and that
    no other queue led to before and leads to now."""
    both = [np.intersect1d(old[key][1], new[key][1]) for key in old.keys() & new.keys() if not is_light(key[0])]
    kept = np.unique(np.concatenate([np.empty(0, np.int64), *both]))
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


def _led_to(root: Path, disk: Disk) -> "dict[QueueKey, Led]":
    """Queue offsets and log offsets of each queue's units; queues without units are left out."""
    found: dict[QueueKey, Led] = {}
    layouts: tuple[tuple[str, Any], ...] = ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT))
    for tree, layout in layouts:
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            pieces = []
            for numbers, offsets, _, counts, tags_codes in written_units(directory, layout, disk):
                is_there = tags_codes != LOST_TAGS_CODE
                ends = numbers + np.maximum(counts, 1)
                pieces.append((numbers[is_there], offsets[is_there], ends[is_there]))
            if sum(len(numbers) for numbers, *_ in pieces):
                numbers, offsets, ends = (np.concatenate(column) for column in zip(*pieces, strict=True))
                found[topic, queue_id] = numbers, offsets, ends
    return found


def _records(
    directory: Path, damages: Sequence[Damage], log_end: int
) -> Iterator[tuple[MappedFile, int, Offsets]]:  # fmt: skip
    """Positions of the records of each file that enter a queue."""
    after = {damage.begin: damage.end for damage in damages}
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
                yield file, base, positions[:count][(kind == Transaction.NONE) | (kind == Transaction.COMMIT)]
                if status != ScanStatus.FULL:
                    if base + position not in after:
                        break
                    resume = after[base + position]
                    position = resume - base
        finally:
            file.close()
