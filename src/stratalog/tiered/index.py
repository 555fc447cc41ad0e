"""Finding messages by key in the tier: compacted index files (two ranged reads each) and runs not compacted yet."""

import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData
from stratalog.layout.index import index_key
from stratalog.layout.javahash import INT_MIN, index_key_hash, string_hash
from stratalog.layout.properties import KEY_SEPARATOR, KEYS, find_property
from stratalog.layout.tier import (
    COMPACTED_ITEM,
    COMPACTED_SLOT,
    INDEX_HEADER,
    MAGIC_FINISHED,
    RUN_HEADER,
    RUN_ITEM,
    RUN_MAGIC,
    RUN_VERSION,
    compacted_index_size,
    compacted_slot_count,
)
from stratalog.store.message import Message
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import IndexRun, IndexSegment, TierState

RUN_CACHE_SIZE_MAX = 256 * 1024 * 1024
_TIME_MAX = 2**63 - 1
_SECOND = 1000
_BEFORE_BEGIN_MAX_S = 30 * 24 * 3600
"""Items older than their file's begin are messages that waited to be copied; older than this they are no times."""


class Item(NamedTuple):
    """An index item that may be a hit: store time lies in [time_low, time_high] ms (the file keeps seconds)."""

    key_hash: int
    topic_id: int
    queue_id: int
    commit_log_offset: int
    size: int
    time_low: int
    time_high: int


class Header(NamedTuple):
    """What a lookup needs of a compacted file's header."""

    begin_timestamp: int
    end_timestamp: int
    item_count: int
    slot_count: int


class Source(NamedTuple):
    """An index file to ask: no item of it is newer than `time_high`."""

    time_high: int
    part: IndexSegment | IndexRun


class _Run(NamedTuple):
    hashes: NDArray[np.int32]
    items: NDArray[np.void]


class TierIndex:
    """The index of one tier. Caches headers and runs, so it is kept over states; any thread may use it.

    A compacted file costs one read of 8 bytes (the slot) and one of the slot's items; its header is read once, ever.
    """

    def __init__(self, backend: SegmentBackend) -> None:
        self._backend = backend
        self._headers: dict[str, Header | None] = {}
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._runs_size = 0
        self._lock = threading.Lock()

    def sources(self, state: TierState, begin: int, end: int) -> list[Source]:
        """The files that may hold items of [begin, end] ms, newest first.

        A file that upstream wrote may hold items older than its begin, and its end is lost when it equals its begin:
        it is a candidate unless its end is known to lie before the range.
        """
        found: list[Source] = []
        for segment in state.index_segments:
            if segment.exact:
                if segment.begin_timestamp <= end and segment.end_timestamp >= begin:
                    found.append(Source(segment.end_timestamp, segment))
            elif (header := self.header(state, segment)) is not None:
                known = header.end_timestamp > header.begin_timestamp
                if not known or header.end_timestamp >= begin:
                    found.append(Source(header.end_timestamp if known else _TIME_MAX, segment))
        found += [
            Source(run.end_timestamp, run)
            for run in state.index_runs
            if run.begin_timestamp <= end and run.end_timestamp >= begin
        ]
        return sorted(found, key=lambda source: source.time_high, reverse=True)

    def items(self, state: TierState, source: Source, topic: str, key: str) -> Iterator[Item]:
        """Items of one file whose hash is the key's; other keys may share it. Newest first within a second."""
        hash_code = string_hash(index_key(topic, key))
        # Upstream stores the smallest int as it is (where it can at all), this library as 0: both live in slot 0.
        wanted = (0, INT_MIN) if hash_code == INT_MIN else (index_key_hash(hash_code),)
        if isinstance(source.part, IndexRun):
            return self._items_of_run(source.part, wanted[0])
        return self._items_of_segment(state, source.part, wanted)

    def header(self, state: TierState, segment: IndexSegment) -> Header | None:
        """Header of a compacted file; None when it holds no items. One read, the first time."""
        path = state.index_path(segment)
        if path not in self._headers:
            self._headers[path] = self._read_header(path, segment)
        return self._headers[path]

    def _read_header(self, path: str, segment: IndexSegment) -> Header | None:
        if segment.size <= INDEX_HEADER.size:
            return None
        if segment.item_count >= 0:
            count, begin, end = segment.item_count, segment.begin_timestamp, segment.end_timestamp
        else:
            header = INDEX_HEADER.unpack(self._backend.read(path, 0, INDEX_HEADER.size))
            if header.magic != MAGIC_FINISHED:
                raise CorruptData(
                    f"magic {header.magic & 0xFFFFFFFF:#010x} is not a compacted index file's; restore it", path=path
                )
            count, begin, end = header.item_count, header.begin_timestamp, header.end_timestamp
        slots = compacted_slot_count(segment.size, count)
        if slots < 1 or count < 0 or compacted_index_size(slots, count) != segment.size:
            raise CorruptData(f"{count} items do not fit a file of {segment.size} bytes; restore it", path=path)
        return Header(begin, end, count, slots) if count else None

    def _items_of_segment(self, state: TierState, segment: IndexSegment, wanted: tuple[int, ...]) -> Iterator[Item]:
        header = self.header(state, segment)
        if header is None:
            return
        path = state.index_path(segment)
        slot_position = INDEX_HEADER.size + COMPACTED_SLOT.size * (wanted[0] % header.slot_count)
        slot = COMPACTED_SLOT.unpack(self._backend.read(path, slot_position, COMPACTED_SLOT.size))
        if slot.size == 0:
            return
        first = compacted_index_size(header.slot_count, 0)
        if slot.size % COMPACTED_ITEM.size or not first <= slot.position <= segment.size - slot.size:
            raise CorruptData(
                f"a slot says {slot.size} bytes at {slot.position} of {segment.size}; rebuild the index",
                path=path,
                position=slot_position,
            )
        items = np.frombuffer(self._backend.read(path, slot.position, slot.size), COMPACTED_ITEM.dtype)
        for key_hash, topic_id, queue_id, offset, size, seconds in items[np.isin(items["key_hash"], wanted)].tolist():
            low, high = _times_of(header, seconds)
            yield Item(key_hash, topic_id, queue_id, offset, size, low, high)

    def _items_of_run(self, run: IndexRun, wanted: int) -> Iterator[Item]:
        held = self._run(run)
        begin, end = (int(np.searchsorted(held.hashes, wanted, side)) for side in ("left", "right"))
        for key_hash, topic_id, queue_id, offset, size, _, time in held.items[begin:end][::-1].tolist():
            yield Item(key_hash, topic_id, queue_id, offset, size, time, time)

    def _run(self, run: IndexRun) -> _Run:
        with self._lock:
            held = self._runs.get(run.path)
            if held is not None:
                self._runs.move_to_end(run.path)
                return held
        items = read_run(self._backend, run)
        held = _Run(items["key_hash"].astype(np.int32), items)
        with self._lock:
            if run.path not in self._runs:
                self._runs[run.path] = held
                self._runs_size += held.items.nbytes
            while self._runs_size > RUN_CACHE_SIZE_MAX and len(self._runs) > 1:
                self._runs_size -= self._runs.popitem(last=False)[1].items.nbytes
        return held


def keys_of(message: Message) -> set[str]:
    """The keys by which the tier finds a message: UNIQ_KEY and the words of KEYS (constructIndexFile).

    KEYS is split as Java splits: between two spaces stands an empty word, at the end none.
    """
    text = (find_property(message.raw_properties, KEYS.encode()) or "").rstrip(KEY_SEPARATOR)
    keys = set(text.split(KEY_SEPARATOR)) if text.strip() else set()
    unique = message.unique_key
    return keys | {unique} if unique and unique.strip() else keys


def _times_of(header: Header, seconds: int) -> tuple[int, int]:
    """Store times (ms) that an item's seconds, cut towards zero, may stand for.

    Upstream takes the address of an IPv6 host for the time; what cannot be one is no reason to miss a message.
    """
    near = header.begin_timestamp + seconds * _SECOND
    if seconds < -_BEFORE_BEGIN_MAX_S or near > max(header.end_timestamp, header.begin_timestamp):
        return 0, _TIME_MAX
    return near - (_SECOND - 1 if seconds <= 0 else 0), near + (_SECOND - 1 if seconds >= 0 else 0)


def read_run(backend: SegmentBackend, run: IndexRun) -> NDArray[np.void]:
    """All items of a run, sorted by hash, with one read. Raises `CorruptData`."""
    data = backend.read(run.path, 0, RUN_HEADER.size + RUN_ITEM.size * run.item_count)
    header = RUN_HEADER.unpack(data)
    if (header.magic, header.version, header.item_count) != (RUN_MAGIC, RUN_VERSION, run.item_count):
        raise CorruptData(f"no index run of {run.item_count} items: {header}; rebuild the index", path=run.path)
    if zlib.crc32(data) != run.crc32:
        raise CorruptData("the index run's CRC does not match the manifest; rebuild the index", path=run.path)
    return np.frombuffer(data, RUN_ITEM.dtype, offset=RUN_HEADER.size)
