"""How many messages of a queue have certain tags, from its units alone (upstream: estimateMessageCount)."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stratalog.layout.javahash import string_hash
from stratalog.layout.queue import FILLER_SIZE, UNIT, fillers
from stratalog.store.batch_queue import BatchQueue

if TYPE_CHECKING:
    from stratalog.store.queue import Queue

EXACT_UNITS_MAX = 1 << 20
"""So many units are all looked at (20 MiB, some 20 ms); of more, as many in runs spread evenly."""
_RUN_UNITS = 1 << 12
_ALTERNATIVES = "||"


def estimate_count(queue: "Queue", first: int, end: int, tags: str) -> int:
    """Messages with any of the tags at the queue offsets [first, end)."""
    codes = np.array([string_hash(tag.strip()) for tag in tags.split(_ALTERNATIVES)], np.int64)
    stored = queue.store.units_of(queue)
    if isinstance(stored, BatchQueue):
        return _in_batches(stored, first, end, codes)
    runs = -(-(end - first) // _RUN_UNITS)
    looked_at = min(runs, EXACT_UNITS_MAX // _RUN_UNITS)
    matches = count = 0
    for number in range(looked_at):
        start = first + number * runs // looked_at * _RUN_UNITS
        found = _codes(queue, start, min(_RUN_UNITS, end - start))
        matches += int(np.isin(found, codes).sum())
        count += min(_RUN_UNITS, end - start)
    return round(matches * (end - first) / count) if count else 0


def _codes(queue: "Queue", first: int, count: int) -> NDArray[np.int64]:
    """The tags codes of the messages at these offsets; fillers have none."""
    units = np.frombuffer(queue.units(first, count), UNIT.dtype)
    there: NDArray[np.int64] = units["tags_code"][units["size"] != FILLER_SIZE].astype(np.int64)
    return there


def _in_batches(stored: BatchQueue, first: int, end: int, codes: NDArray[np.int64]) -> int:
    """The same for a batch topic: a batch has the tags that its unit knows, and counts with each of its messages."""
    units = stored.table()
    units = units[np.isin(units["tags_code"], codes) & ~fillers(units)]
    bases = units["base_offset"].astype(np.int64)
    counts = np.minimum(bases + units["batch_size"], end) - np.maximum(bases, first)
    return int(counts[counts > 0].sum())
