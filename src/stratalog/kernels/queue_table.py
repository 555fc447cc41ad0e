"""The table of queues that kernels share: a row of int64 per queue, and a hash table from (topic, queue id) to its row.

The hash table is int32 of a power-of-two size, at most half full; an entry is row + 1, 0 is empty. Topic bytes stay
where the caller keeps them alive; a row holds their address.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from stratalog.kernels.jit import kernel, part
from stratalog.kernels.memory import load_i64, load_u8, load_u32

Int64Array = np.ndarray[Any, np.dtype[np.int64]]
Int32Array = np.ndarray[Any, np.dtype[np.int32]]
Uint8Array = np.ndarray[Any, np.dtype[np.uint8]]

QUEUE_TOPIC_ADDRESS = 0
QUEUE_TOPIC_SIZE = 1
QUEUE_ID = 2
QUEUE_NEXT_OFFSET = 3
"""Queue offset that the queue's next record should have; advanced in place."""
QUEUE_KIND = 4
"""What the queue's records need, a `QueueKind`."""
QUEUE_NEWS = 5
"""Log offset from which on no record can be in the queue already; 0 where that is not known."""
QUEUE_FIELDS = 6

NO_ROW = -1


class QueueKind(IntEnum):
    """What the records of a queue need on their way to units; from BATCH on, more than a kernel does."""

    PLAIN = 0
    SCHEDULE = 1
    """Delayed messages: their units carry a deliver time."""
    BATCH = 2
    """Units of another size, one for several messages: every record needs the caller."""
    LIGHT = 3
    """Records may stand in light queues, too: those that name some need the caller."""


_MIX_A, _MIX_B = 0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9  # odd, below 2^63, bits well spread


@part
def _mixed(h: int, word: int) -> int:
    h = (h ^ word) * _MIX_A
    return h ^ (h >> 32)


@kernel
def queue_hash(topic_address: int, topic_size: int, queue_id: int) -> int:
    """Hash of a queue's name; any int64."""
    h = _mixed(topic_size, queue_id * _MIX_B)
    position, end = topic_address, topic_address + topic_size
    while position + 8 <= end:
        h = _mixed(h, load_i64(position))
        position += 8
    if topic_size >= 8:
        return _mixed(h, load_i64(end - 8))
    if topic_size >= 4:
        return _mixed(h, load_u32(position) << 32 | load_u32(end - 4))
    while position < end:
        h = _mixed(h, load_u8(position))
        position += 1
    return h


@part
def same_bytes(left: int, right: int, size: int) -> bool:
    """Whether two runs of bytes are equal."""
    position = 0
    while position + 8 <= size:
        if load_i64(left + position) != load_i64(right + position):
            return False
        position += 8
    if size >= 8:
        return load_i64(left + size - 8) == load_i64(right + size - 8)
    if size >= 4:
        return load_u32(left) == load_u32(right) and load_u32(left + size - 4) == load_u32(right + size - 4)
    while position < size:
        if load_u8(left + position) != load_u8(right + position):
            return False
        position += 1
    return True


@part
def find_queue(table: Int32Array, queues: Int64Array, topic_address: int, topic_size: int, queue_id: int) -> int:
    """Row of a queue, or NO_ROW."""
    slot = queue_hash(topic_address, topic_size, queue_id) & (table.size - 1)
    while table[slot]:
        row = table[slot] - 1
        same = queues[row, QUEUE_ID] == queue_id and queues[row, QUEUE_TOPIC_SIZE] == topic_size
        if same and same_bytes(queues[row, QUEUE_TOPIC_ADDRESS], topic_address, topic_size):
            return row
        slot = (slot + 1) & (table.size - 1)
    return NO_ROW


@kernel
def insert_queue(table: Int32Array, queues: Int64Array, row: int) -> None:
    """Enter a row, whose fields are filled in, into the hash table. It must not be in there yet."""
    topic, size = queues[row, QUEUE_TOPIC_ADDRESS], queues[row, QUEUE_TOPIC_SIZE]
    slot = queue_hash(topic, size, queues[row, QUEUE_ID]) & (table.size - 1)
    while table[slot]:
        slot = (slot + 1) & (table.size - 1)
    table[slot] = row + 1
