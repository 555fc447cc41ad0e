"""Local store and tier read as one: which of the two answers, and how reading crosses from one to the other."""

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cache
from typing import Literal, NamedTuple

from stratalog.errors import ConfigurationError, CorruptData, NotAStore, OffsetOutOfRange
from stratalog.layout.names import is_tiered
from stratalog.layout.queue import FILLER_SIZE, UNIT
from stratalog.store.arguments import (
    TIME_MAX,
    Moment,
    check_bound,
    exact_count,
    exact_int,
    exact_text,
    milliseconds,
    query_range,
)
from stratalog.store.index_file import HITS_MAX
from stratalog.store.lookup import Hits
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue
from stratalog.store.record_put import check_queue_id
from stratalog.tiered.index import keys_of
from stratalog.tiered.queue import GetResult, GetStatus, TieredQueue
from stratalog.tiered.state import QueueName
from stratalog.tiered.tiered_store import TieredStore

_PIECE_COUNT = 4096
"""Local messages read before the policy is asked again: retention may take them meanwhile."""
_MEMORY_CHECK_COUNT = 64
"""Messages whose records must all be in memory to be read locally under NOT_IN_MEM."""


class ReadPolicy(IntEnum):
    """When the tier answers (`tieredStorageLevel`; names and numbers are upstream's)."""

    DISABLE = 0
    """Never. Messages that are only in the tier are not seen."""
    NOT_IN_DISK = 1
    """For messages whose record the local log has no longer."""
    NOT_IN_MEM = 2
    """Also for messages whose local record is not in the page cache: spares the local disk."""
    FORCE = 3
    """Always. Messages not copied yet are not seen."""

    @classmethod
    def parse(cls, value: "ReadPolicy | str | int") -> "ReadPolicy":
        """From a name or number. Raises `ConfigurationError` (upstream takes an unknown number for DISABLE)."""
        try:
            return cls[value] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            raise ConfigurationError(f"read policy {value!r}: give {', '.join(cls.__members__)}") from None


class JoinedStore:
    """A local store with its tier behind it: the reading verbs of both. Any thread may use it.

    It owns neither: close them yourself. `tier.refresh()` takes in what was offloaded since; until then such messages
    are read locally, as long as they are there.
    """

    def __init__(self, store: MessageStore, tier: TieredStore, *, policy: ReadPolicy | str | int) -> None:
        self.store = store
        self.tier = tier
        self.policy = ReadPolicy.parse(policy)
        if self.policy is ReadPolicy.NOT_IN_MEM:
            _mincore()

    def queues(self) -> list[tuple[str, int]]:
        """Topic and queue id of every queue that is in either, sorted."""
        return sorted({*self.store.queues(), *(self.tier.queues() if self.policy is not ReadPolicy.DISABLE else ())})

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.queues()})

    def queue(self, topic: str, queue_id: int = 0) -> "JoinedQueue":
        """One queue. Raises `NotAStore` when neither has it."""
        topic, queue_id = exact_text("topic", topic), check_queue_id(queue_id)
        local = self.store.queue(topic, queue_id) if (topic, queue_id) in self.store.queues() else None
        is_there = QueueName(topic, queue_id) in self.tier.state.queues
        if local is None and not is_there:
            raise NotAStore(f"neither the store nor the tier holds a queue {topic}/{queue_id}")
        usable = is_there and self.policy is not ReadPolicy.DISABLE and is_tiered(topic)
        return JoinedQueue(topic, queue_id, local, self.tier.queue(topic, queue_id) if usable else None, self.policy)

    def query(
        self, topic: str, *, key: str, begin: Moment = 0, end: Moment = TIME_MAX, limit: int | None = HITS_MAX
    ) -> Hits:
        """Messages with this key in [begin, end]: the newest `limit` of both sides (None: all), each once, oldest
        first. Times, `more` and `damaged` as in `MessageStore.query`."""
        topic, key = exact_text("topic", topic), exact_text("key", key)
        begin_ms, end_ms, limit = query_range(begin, end, limit)
        more, found = False, dict[tuple[int, int], Message]()
        damaged: list[CorruptData] = []
        if self.policy is not ReadPolicy.FORCE or not is_tiered(topic):
            candidates = self.store.candidates(topic, key=key, begin=begin, end=end)
            for message in self._local_hits(candidates, topic, key, begin_ms, end_ms, limit + 1, damaged):
                found[message.queue_id, message.queue_offset] = message
            damaged += [error for _, error in self.store.damaged_ranges()]
        if self.policy is not ReadPolicy.DISABLE and is_tiered(topic):
            hits = self.tier.query(topic, key=key, begin=begin, end=end, limit=limit)
            more, damaged = hits.more, [*damaged, *hits.damaged]
            for message in hits:
                found.setdefault((message.queue_id, message.queue_offset), message)
        ordered = sorted(found.values(), key=lambda hit: (hit.store_timestamp, hit.queue_id, hit.queue_offset))
        return Hits.of(ordered[max(0, len(ordered) - limit) :], more=more or len(ordered) > limit, damaged=damaged)

    def _local_hits(
        self, candidates: Iterator[int], topic: str, key: str, begin: int, end: int, limit: int,
        damaged: list[CorruptData],
    ) -> Iterator[Message]:  # fmt: skip
        """The newest `limit` local messages with the key; what is damaged among them is added to `damaged`. The local
        index still names records that retention took."""
        for offset in candidates if limit else ():
            if offset < self.store.log.first_offset:
                continue
            try:
                message = self.store.log.message(offset)
            except CorruptData:
                damaged.append(self.store.damaged_hit(topic, key, offset))
                continue
            if message.topic == topic and begin <= message.store_timestamp <= end and key in keys_of(message):
                yield message
                limit -= 1
                if not limit:
                    return


def attach(
    store: MessageStore, tier: TieredStore, *, policy: ReadPolicy | str | int = ReadPolicy.NOT_IN_DISK
) -> JoinedStore:
    """Join a store and its tier for reading."""
    return JoinedStore(store, tier, policy=policy)


class _Piece(NamedTuple):
    """Queue offsets [begin, stop) of one side; `begin` is after the offset asked for where that lies in a hole."""

    side: Queue | TieredQueue
    begin: int
    stop: int


class JoinedQueue:
    """A queue over both sides. Every offset is read from one of them, in order and once; the next offset only grows."""

    def __init__(
        self, topic: str, queue_id: int, local: Queue | None, tiered: TieredQueue | None, policy: ReadPolicy
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.local = local if tiered is None or policy is not ReadPolicy.FORCE else None
        self.tiered = tiered
        self.policy = policy

    def __repr__(self) -> str:
        return f"<JoinedQueue {self.topic}/{self.queue_id}, {self.policy.name}>"

    @property
    def max_offset(self) -> int:
        """Queue offset after the newest message that the policy shows."""
        return max((side.max_offset for side in (self.local, self.tiered) if side is not None), default=0)

    @property
    def min_offset(self) -> int:
        """Queue offset of the oldest message that the policy shows; `max_offset` when there is none."""
        sides = (side for side in (self.local, self.tiered) if side is not None)
        return min((side.min_offset for side in sides if side.min_offset < side.max_offset), default=self.max_offset)

    def reads_tier(self, offset: int) -> bool:
        """Whether the tier answers for this offset (TieredMessageStore.fetchFromCurrentStore)."""
        piece = self._piece(offset)
        return piece is not None and piece.begin == offset and piece.side is self.tiered

    def read(self, first: int | None = None, *, count: int | None = None) -> Iterator[Message]:
        """Messages from queue offset `first` (default: the oldest) on, at most `count`, each from the side that the
        policy picks. Offsets that are on neither side are stepped over. Raises `OffsetOutOfRange`, `CorruptData`."""
        low, high = self.min_offset, self.max_offset
        start = low if first is None else exact_int("first", first, ConfigurationError)
        if not low <= start <= high:
            raise OffsetOutOfRange(
                f"{self.topic}/{self.queue_id} holds offsets [{low}, {high}), not {start}",
                next_offset=low if start < low else high,
            )
        return self._messages(start, sys.maxsize if count is None else exact_count("count", count))

    def get(self, offset: int) -> GetResult:
        """One message, or why there is none; see `TieredQueue.get`."""
        offset = exact_int("offset", offset, ConfigurationError)
        low, high = self.min_offset, self.max_offset
        if low >= high:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, offset, low, high)
        if offset >= high:
            beyond = GetStatus.OFFSET_OVERFLOW_ONE if offset == high else GetStatus.OFFSET_OVERFLOW_BADLY
            return GetResult(beyond, high, low, high)
        message = next(self._messages(max(offset, low), 1), None)
        if message is not None and message.queue_offset == offset:
            return GetResult(GetStatus.FOUND, offset + 1, low, high, message)
        following = high if message is None else message.queue_offset
        return GetResult(GetStatus.OFFSET_TOO_SMALL, following, low, high)

    def offset_at(self, time: Moment, *, bound: Literal["lower", "upper"] = "lower") -> int:
        """Queue offset by store time, an aware datetime or milliseconds since 1970: the local side answers for times
        its messages have, the tier for older ones. Raises `ConfigurationError` for what looks like seconds."""
        timestamp_ms, bound = milliseconds("time", time), check_bound(bound)
        if self.local is None or self.tiered is None:
            side = self.local or self.tiered
            return side.offset_at_ms(timestamp_ms, bound) if side is not None else 0
        oldest = next(self.local.read(count=1), None)
        if oldest is not None and timestamp_ms >= oldest.store_timestamp and bound == "upper":
            return self.local.offset_at_ms(timestamp_ms, bound)
        found = self.tiered.offset_at_ms(timestamp_ms, bound)
        if oldest is None or found < self.tiered.max_offset:
            return found
        return self.local.offset_at_ms(timestamp_ms, bound)

    def _messages(self, start: int, left: int) -> Iterator[Message]:
        while left > 0 and (piece := self._piece(start)) is not None:
            for message in piece.side.read(piece.begin, count=min(left, piece.stop - piece.begin)):
                if message.queue_offset >= piece.stop:
                    break
                yield message
                left -= 1
            start = piece.stop

    def _piece(self, start: int) -> _Piece | None:
        """What is read next for an offset; None after the end."""
        low, high = (self.local.min_offset, self.local.max_offset) if self.local is not None else (0, 0)
        tier_end = self.tiered.max_offset if self.tiered is not None else 0
        if self.tiered is not None and start < tier_end and not low <= start < high:
            begin = max(start, self.tiered.min_offset)
            return _Piece(self.tiered, begin, min(tier_end, low) if begin < low < high else tier_end)
        if self.local is None or start >= high:
            return None
        begin = max(start, low)
        if self.policy is ReadPolicy.NOT_IN_MEM and self.tiered is not None and begin < tier_end:
            stop = min(begin + _MEMORY_CHECK_COUNT, high, tier_end)
            return _Piece(self.local if _in_memory(self.local, begin, stop) else self.tiered, begin, stop)
        return _Piece(self.local, begin, min(high, begin + _PIECE_COUNT))


def _in_memory(queue: Queue, begin: int, stop: int) -> bool:
    """Whether the records of these queue offsets are in the page cache, by mincore(2)."""
    units = queue.units(begin, stop - begin)
    for commit_log_offset, size, _ in UNIT.struct.iter_unpack(units):
        if size == FILLER_SIZE:
            continue
        file, position = queue.store.log.file_at(commit_log_offset)
        first = (file.address + position) // mmap.PAGESIZE * mmap.PAGESIZE
        length = file.address + position + size - first
        pages = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
        if _mincore()(ctypes.c_void_p(first), ctypes.c_size_t(length), pages):
            number = ctypes.get_errno()
            raise ConfigurationError(
                f"mincore failed ({os.strerror(number)}): the page cache cannot be asked here; use NOT_IN_DISK"
            )
        if not all(page & 1 for page in pages.raw):
            return False
    return True


@cache
def _mincore() -> Callable[..., int]:
    try:
        return ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        raise ConfigurationError("this system has no mincore(2), which NOT_IN_MEM needs; use NOT_IN_DISK") from None
