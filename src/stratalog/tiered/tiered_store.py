"""A tier as its readers see it: queues, topics, and messages by key."""

import heapq
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from stratalog.errors import CorruptData, NotAStore
from stratalog.layout.loosejson import TEXT_SIZE_MAX
from stratalog.layout.tier import OWN_DIRECTORY, cluster_directory
from stratalog.store.arguments import TIME_MAX, Moment, exact_text, query_range
from stratalog.store.disk import Disk
from stratalog.store.forks import watch
from stratalog.store.index_file import HITS_MAX
from stratalog.store.lookup import Hits
from stratalog.store.message import Message
from stratalog.store.record_put import check_queue_id
from stratalog.store.uncopied import Uncopied
from stratalog.tiered.index import Item, TierIndex, keys_of
from stratalog.tiered.listing import state_from_listing
from stratalog.tiered.manifest import Manifest
from stratalog.tiered.metadata import FILE_NAME, decode_metadata
from stratalog.tiered.queue import TieredQueue
from stratalog.tiered.segment import PosixBackend, SegmentBackend, open_backend
from stratalog.tiered.state import QueueName, TierState


class Stats(NamedTuple):
    """Ranged reads asked of the storage so far, and their bytes."""

    reads: int
    bytes_read: int


class TieredStore(Uncopied):
    """A tier opened for reading. Any thread may use it.

    It shows the state of the moment it was opened; `refresh` takes in what was committed since. Queues taken before a
    refresh keep showing their state.
    """

    def __init__(self, backend: SegmentBackend, state: TierState, *, manifest: Manifest | None = None) -> None:
        self.backend = backend
        self.state = state
        self._manifest = manifest
        self._index = TierIndex(backend)
        self._queues: dict[QueueName, TieredQueue] = {}
        watch(self, self)

    def abandon(self) -> Iterable[object]:
        """In a forked child, see `stratalog.store.forks`."""
        return self._queues.values()

    def __repr__(self) -> str:
        return f"<TieredStore {self.state.cluster}/{self.state.broker}: {len(self.state.queues)} queues>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the storage's open files."""
        if isinstance(self.backend, PosixBackend):
            self.backend.close()

    def refresh(self) -> None:
        """Take in what was committed since. A tier opened by upstream's metadata stays as it was."""
        if self._manifest is not None:
            state = self._manifest.refresh(self.state)
            if state is not self.state:
                self.state, self._queues = state, {}

    @property
    def stats(self) -> Stats:
        return Stats(self.backend.reads, self.backend.bytes_read)

    def queues(self) -> list[tuple[str, int]]:
        """Topic and queue id of every queue, sorted."""
        return sorted((topic, queue_id) for topic, queue_id in self.state.queues)

    def topics(self) -> list[str]:
        return sorted(self.state.topics)

    def queue(self, topic: str, queue_id: int = 0) -> TieredQueue:
        """One queue. Raises `NotAStore` when the tier has none of that name."""
        name = QueueName(exact_text("topic", topic), check_queue_id(queue_id))
        found = self._queues.get(name)
        if found is None:
            state = self.state.queues.get(name)
            if state is None:
                have = ", ".join(f"{topic}/{queue_id}" for topic, queue_id in self.queues()[:8])
                raise NotAStore(f"the tier holds no queue {topic}/{queue_id}; it has {have or 'none'}")
            found = self._queues[name] = TieredQueue(self.backend, self.state, state)
        return found

    def query(
        self, topic: str, *, key: str, begin: Moment = 0, end: Moment = TIME_MAX, limit: int | None = HITS_MAX
    ) -> Hits:
        """Messages of a topic with this key (a word of KEYS, or UNIQ_KEY) that were stored in [begin, end].

        The newest `limit` of them (None: all), oldest first. Times, `more` and `damaged` as in `MessageStore.query`; a
        damaged index raises `CorruptData`.

        At most two reads for each index file that may hold it (headers are read once), and one for each message that
        shares the key's hash. Topic and key are compared, so a hash collision is never returned.
        """
        topic, key = exact_text("topic", topic), exact_text("key", key)
        begin, end, limit = query_range(begin, end, limit)
        limit += 1  # the one that tells whether there are more
        newest: list[tuple[int, int, int]] = []
        found: dict[tuple[int, int], Message] = {}
        known = self.state.topics.get(topic)
        if known is None or begin > end:
            return Hits()
        seen: set[tuple[int, int]] = set()
        damaged: list[CorruptData] = []
        for source in self._index.sources(self.state, begin, end):
            if len(newest) == limit and source.time_high < newest[0][0]:
                break
            for item in self._index.items(self.state, source, topic, key):
                if item.topic_id != known.topic_id or item.time_low > end or item.time_high < begin:
                    continue
                if (item.queue_id, item.commit_log_offset) in seen or _is_older(item, newest, limit):
                    continue
                seen.add((item.queue_id, item.commit_log_offset))
                try:
                    message = self._message(topic, item)
                except CorruptData as error:
                    damaged.append(error)
                    continue
                if message is not None and begin <= message.store_timestamp <= end and key in keys_of(message):
                    rank = (message.store_timestamp, message.queue_id, message.queue_offset)
                    (heapq.heappush if len(newest) < limit else heapq.heappushpop)(newest, rank)
                    found[message.queue_id, message.queue_offset] = message
        more = len(newest) == limit
        hits = (found[queue_id, offset] for _, queue_id, offset in sorted(newest)[more:])
        return Hits.of(hits, more=more, damaged=damaged)

    def index_items(self, topic: str, key: str, begin: Moment = 0, end: Moment = TIME_MAX) -> Iterator[Item]:
        """What the index holds for a key and a time range, before anything is compared with the messages."""
        topic, key = exact_text("topic", topic), exact_text("key", key)
        begin, end, _ = query_range(begin, end, None)
        for source in self._index.sources(self.state, begin, end):
            for item in self._index.items(self.state, source, topic, key):
                if item.time_low <= end and item.time_high >= begin:
                    yield item

    def _message(self, topic: str, item: Item) -> Message | None:
        if QueueName(topic, item.queue_id) not in self.state.queues:
            return None
        return self.queue(topic, item.queue_id).message_at_log_offset(item.commit_log_offset, item.size)


def _is_older(item: Item, newest: list[tuple[int, int, int]], limit: int) -> bool:
    """Whether enough hits are newer for sure."""
    return len(newest) == limit and item.time_high < newest[0][0]


def open_tier(
    url: str | os.PathLike[str],
    *,
    cluster: str | None = None,
    broker: str | None = None,
    metadata: str | os.PathLike[str] | None = None,
) -> TieredStore:
    """Open a tier for reading.

    Cluster and broker need to be named only where there are several. What it holds is told by the file `metadata`
    (upstream's `tieredStoreMetadata.json`) if given, else by our manifest, else by a metadata file in the tier's root,
    else by the segments themselves. Raises `NotAStore`, `CorruptData`.
    """
    backend = open_backend(url)
    if cluster is None or broker is None or metadata is None:
        cluster, broker = find_broker(backend, os.fspath(url), cluster, broker)
    manifest = Manifest(backend, cluster, broker)
    if metadata is None and manifest.exists():
        return TieredStore(backend, manifest.load(), manifest=manifest)
    text = _metadata_text(backend, metadata)
    if text is not None:
        return TieredStore(backend, decode_metadata(text, backend, cluster=cluster, broker=broker))
    return TieredStore(backend, state_from_listing(backend, cluster=cluster, broker=broker))


def _metadata_text(backend: SegmentBackend, metadata: str | os.PathLike[str] | None) -> bytes | None:
    if metadata is not None:
        try:
            data = Disk().read(Path(metadata))
        except OSError as error:
            raise _no_metadata(metadata, error.strerror) from None
        if data is None:
            raise _no_metadata(metadata, "there is no such file")
        return data
    size = backend.size(FILE_NAME)
    if size is not None and size > TEXT_SIZE_MAX:
        raise CorruptData(f"{size:,} bytes of metadata; the limit is {TEXT_SIZE_MAX:,}", path=FILE_NAME)
    return None if size is None else backend.read(FILE_NAME, 0, size)


def _no_metadata(metadata: str | os.PathLike[str], reason: str | None) -> NotAStore:
    return NotAStore(f"{os.fspath(metadata)}: {reason}; give the path of a {FILE_NAME}")


def find_broker(backend: SegmentBackend, url: str, cluster: str | None, broker: str | None) -> tuple[str, str]:
    """Cluster and broker of a tier, found by its directories where they are not given. Raises `NotAStore`."""
    clusters = {name.partition("_")[2]: name for name in backend.directories("")}
    clusters = {name: folder for name, folder in clusters.items() if name and cluster_directory(name) == folder}
    cluster = _only(url, "cluster", cluster, sorted(clusters))
    brokers = [name for name in backend.directories(clusters[cluster]) if name != OWN_DIRECTORY]
    return cluster, _only(f"{url}/{clusters[cluster]}", "broker", broker, brokers)


def _only(place: str, what: str, wanted: str | None, there: list[str]) -> str:
    if not there:
        raise NotAStore(
            f"{place} holds no tier: no directory of a {what} is in it. Name the directory that RocketMQ calls "
            "tieredStoreFilePath, or offload a store to it first"
        )
    if wanted is None and len(there) == 1:
        return there[0]
    if wanted in there and wanted is not None:
        return wanted
    hint = f"{what} {wanted!r} is not there" if wanted is not None else f"there are several, name one with {what}="
    raise NotAStore(f"{place}: {hint}; it has {', '.join(there)}")
