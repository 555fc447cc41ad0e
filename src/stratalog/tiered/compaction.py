"""Turning index runs into upstream's compacted index files."""

from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stratalog.kernels.sort import compact_items
from stratalog.layout.tier import (
    INDEX_HEADER,
    INDEX_ITEM_CAPACITY,
    INDEX_SLOT_COUNT,
    MAGIC_FINISHED,
    RUN_ITEM,
    compacted_index_size,
)
from stratalog.tiered.index import read_run
from stratalog.tiered.manifest import Manifest
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import IndexSegment, ManifestEntry, TierState

_SECOND = 1000
_ORDER = ("key_hash", "size", "commit_log_offset", "queue_id", "topic_id", "store_timestamp")
"""Sort keys, the most significant last: a message's items stay together."""
_MESSAGE = ("topic_id", "queue_id", "commit_log_offset")


class _IndexFile(NamedTuple):
    data: NDArray[np.uint8]
    item_count: int
    begin_timestamp: int
    end_timestamp: int


def compact(
    backend: SegmentBackend,
    manifest: Manifest,
    state: TierState,
    *,
    slot_count: int = INDEX_SLOT_COUNT,
    item_capacity: int = INDEX_ITEM_CAPACITY,
) -> TierState:
    """Replace all runs of the state by compacted index files; returns the state that holds them.

    Items are ordered by store time, so a file's begin is its first item's and the bytes depend on the items alone: a
    compaction that is done again writes the same files. A file takes `item_capacity` - 1 items; a message's keys never
    stand in two files. Keep `slot_count` at the broker's `tieredStoreIndexFileMaxHashSlotNum` if a Java broker shall
    read them. Holds all items in memory, 100 bytes each. Readers of an older state still find the runs' files.
    Raises `TierConflict` when another compaction was first, and as `Manifest.commit`.
    """
    if not state.index_runs:
        return state
    # As bytes: joining arrays of records would turn them into the machine's byte order.
    joined = np.concatenate([read_run(backend, run).view(np.uint8) for run in state.index_runs])
    items = _ordered(joined.view(RUN_ITEM.dtype))
    segments: list[IndexSegment] = []
    base = state.index_end
    for begin, end in pairwise(_cuts(items, max(1, item_capacity - 1))):
        file = _compacted(items[begin:end], slot_count)
        segment = _stored(backend, state, file, base)
        segments.append(segment)
        base = segment.base_offset + segment.size
    replaced = tuple(run.path for run in state.index_runs)
    return manifest.commit(ManifestEntry(index_segments=tuple(segments), replaced_runs=replaced), state)


def _ordered(items: NDArray[np.void]) -> NDArray[np.void]:
    native = [np.ascontiguousarray(items[name].astype(np.int64)) for name in _ORDER]
    return items[np.lexsort(native)]


def _cuts(items: NDArray[np.void], count_max: int) -> list[int]:
    """Where files begin and end: at most `count_max` items each, cut between messages only."""
    changes = np.zeros(len(items) + 1, bool)
    changes[[0, -1]] = True
    for name in _MESSAGE:
        changes[1:-1] |= items[name][1:] != items[name][:-1]
    borders = np.flatnonzero(changes)
    cuts = [0]
    while cuts[-1] < len(items):
        number = int(np.searchsorted(borders, cuts[-1] + count_max, "right")) - 1
        if borders[number] <= cuts[-1]:
            number += 1  # one message with more keys than a file takes
        cuts.append(int(borders[number]))
    return cuts


def _compacted(items: NDArray[np.void], slot_count: int) -> _IndexFile:
    """One file of items in the order of their store times (IndexStoreFile.compactToNewFile)."""
    begin, end = int(items[0]["store_timestamp"]), int(items[-1]["store_timestamp"])
    items["seconds"] = (items["store_timestamp"] - begin) // _SECOND
    data = np.empty(compacted_index_size(slot_count, len(items)), np.uint8)
    ends = np.empty(slot_count, np.int64)
    address = items.ctypes.data
    used = compact_items(address, RUN_ITEM.size, len(items), slot_count, ends, data.ctypes.data)
    header = INDEX_HEADER.pack(MAGIC_FINISHED, begin, end, used, len(items))
    data[: INDEX_HEADER.size] = np.frombuffer(header, np.uint8)
    return _IndexFile(data, len(items), begin, end)


def _stored(backend: SegmentBackend, state: TierState, file: _IndexFile, base: int) -> IndexSegment:
    """Store a file at the first free base from `base` on, under a name that no other compaction can write to.

    A file that lies there already is one of an attempt that was not committed: if it is the same one it is taken.
    """
    segment = IndexSegment(
        base, len(file.data), file.begin_timestamp, file.end_timestamp, item_count=file.item_count, exact=True
    )
    while True:
        path = state.index_path(segment)
        if backend.put_if_absent(path, file.data.data):
            return segment
        size = backend.size(path) or 0
        if size == segment.size and backend.read(path, 0, size) == file.data.tobytes():
            return segment
        segment = msgspec.structs.replace(segment, base_offset=segment.base_offset + max(size, INDEX_HEADER.size))
