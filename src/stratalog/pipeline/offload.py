"""Copying a store's history to the tier: one Structured Streaming query, exactly once.

    offload("data/store", "file:///tier", progress=print)

The query reads the log as runs of pointers (`log_source`), deals them to writers by queue, and commits each batch as
one entry of the tier's manifest (`tier_sink`). The manifest is the only truth: an offload that is killed, run twice at
once, or run on another machine goes on where the tier ends. Nothing needs to be kept between runs.
"""

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.errors import ConfigurationError, CorruptData, NotAStore, TierConflict
from stratalog.layout.tier import INDEX_SLOT_COUNT, UNIT_SIZE
from stratalog.pipeline.committed_log import CommittedLog
from stratalog.pipeline.log_source import FORMAT as LOG_FORMAT
from stratalog.pipeline.log_source import MAX_BYTES_PER_TRIGGER, LogSource
from stratalog.pipeline.session import spark_session
from stratalog.pipeline.spark_errors import own_errors
from stratalog.pipeline.tier_sink import FORMAT as TIER_FORMAT
from stratalog.pipeline.tier_sink import TierSink
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.tiered.compaction import compact
from stratalog.tiered.manifest import Manifest
from stratalog.tiered.metadata import FILE_NAME, encode_metadata
from stratalog.tiered.segment import PosixBackend, open_backend
from stratalog.tiered.state import TierState
from stratalog.tiered.tiered_store import TieredStore, open_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEFAULT_CLUSTER = "DefaultCluster"
"""RocketMQ's name for a cluster that nobody named (`brokerClusterName`)."""

COMPACT_ITEMS_MIN = 2_000_000
"""Index items that are worth a compacted file, whose slots alone take 40 MB: as much again. Until then a lookup reads
the runs, each once."""
COMPACT_RUNS_MIN = 32
"""Runs that are compacted however small they are: a key lookup reads each once."""
_COMPACT_ITEMS_MAX = 8_000_000
"""Items that wait for compaction at most, at 100 bytes of memory each."""
_POLL_S = 0.1
_CONFLICTS_MAX = 10
_QUEUES_COMPARED = 8


@dataclass(frozen=True, slots=True)
class OffloadProgress:
    """What was done since the offload began, after a batch: `log_size` bytes of the log, of `log_size_total`."""

    record_count: int
    log_size: int
    log_size_total: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes of log a second."""
        return self.log_size / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float:
        """At the rate so far."""
        return (self.log_size_total - self.log_size) / self.rate if self.rate else float("inf")


@dataclass(frozen=True, slots=True)
class OffloadReport:
    """What an offload did.

    `log_size` counts bytes of the local log that were gone through, `tier_size` bytes of messages written to the tier;
    `lost_count` counts messages that were damaged or gone locally before they could be copied (gaps in the tier);
    `passed_over` counts messages that were not copied because a tier cannot have their queue (a topic that is no path,
    or not UTF-8), by topic/queue id; `left_out` counts, by topic, messages that the store holds and the tier does not
    take: of batch topics, light queues and the broker's own topics; `seconds` leaves the start of a session out.
    """

    record_count: int
    lost_count: int
    log_size: int
    tier_size: int
    batch_count: int
    seconds: float
    cluster: str
    broker: str
    passed_over: dict[str, int]
    left_out: dict[str, int]


def offload(
    store_path: str | os.PathLike[str],
    tier_url: str,
    *,
    cluster: str = DEFAULT_CLUSTER,
    broker: str | None = None,
    spark: "SparkSession | None" = None,
    checkpoint: str | None = None,
    max_bytes_per_trigger: int = MAX_BYTES_PER_TRIGGER,
    writers: int | None = None,
    index: bool = True,
    compact_index: bool | None = None,
    index_slot_count: int = INDEX_SLOT_COUNT,
    progress: Callable[[OffloadProgress], None] | None = None,
) -> OffloadReport:
    """Copy everything the store holds and the tier does not; returns when it is committed.

    `broker` is the store's directory name unless given: one tier may hold many stores. `checkpoint` is for a query that
    shall be seen in Spark's own books; without one, each run makes and removes its own (on a cluster, give a shared
    one). `writers` tasks copy at a time, as many as there are cores by default. `compact_index` merges the new index
    items into upstream's files: True at once, None when there are enough of them, False not now. `index_slot_count` is
    the broker's `tieredStoreIndexFileMaxHashSlotNum`.

    The store is only read, and may be in use. Raises `NotAStore`, `ConfigurationError`, `CorruptData`, `DiskFull`, and
    `TierConflict` when other jobs keep committing first; what was committed before an error stays.
    """
    path = str(Path(store_path).absolute())
    log = CommittedLog(path)
    try:
        job = _Job(path, log, tier_url, cluster, broker or Path(path).name, index_slot_count, compact_index)
        if log.end_offset > max(job.state.source_end, log.store.log.first_offset):
            session = spark or spark_session(streaming=True)
            _register(session)
            job.start()
            tasks = writers or len(os.sched_getaffinity(0))
            job.copy(session, checkpoint, tasks, index=index, max_bytes=max_bytes_per_trigger, progress=progress)
        return job.finish()
    finally:
        log.close()


def _register(session: "SparkSession") -> None:
    """Make source and sink known to the session.

    Spark looks a sink up in the *active* session, and a thread that never used one has none: creating a frame sets it.
    """
    for source in (LogSource, TierSink):
        session.dataSource.register(source)
    session.createDataFrame([], "offset BIGINT")


@contextmanager
def _checkpoint(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    folder = tempfile.mkdtemp(prefix="stratalog-offload-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _query(
    session: "SparkSession", source: dict[str, str], sink: dict[str, str], writers: int, checkpoint: str
) -> "StreamingQuery":
    runs = session.readStream.format(LOG_FORMAT).options(**source).load()
    return (
        runs.repartitionById(writers, "slot")
        .writeStream.format(TIER_FORMAT)
        .options(**sink)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


class _Job:
    """One offload: the tier before it, as it goes on, and after it."""

    def __init__(
        self,
        path: str,
        log: CommittedLog,
        tier_url: str,
        cluster: str,
        broker: str,
        index_slot_count: int,
        compact_index: bool | None,
    ) -> None:
        self.backend: PosixBackend = open_backend(tier_url)
        self.manifest = Manifest(self.backend, cluster, broker)
        self.state = _begun(self.backend, self.manifest, tier_url)
        tier = str(self.backend.root)  # Spark's processes have a current directory of their own
        self._options = {"path": path, "tier": tier, "cluster": cluster, "broker": broker}
        self._log = log
        self._index_slot_count = index_slot_count
        self._compact_index = compact_index
        self._before = self.state
        self._log_begin = log.plan(self.state, size_max=MAX_BYTES_PER_TRIGGER).borders[0]
        self._batch_count = 0
        self._begin_s = time.monotonic()
        check_same_store(log.store, TieredStore(self.backend, self.state))

    def start(self) -> None:
        """The session is there: from here on time counts."""
        self._begin_s = time.monotonic()

    def copy(
        self,
        session: "SparkSession",
        checkpoint: str | None,
        writers: int,
        *,
        index: bool,
        max_bytes: int,
        progress: Callable[[OffloadProgress], None] | None,
    ) -> None:
        """Run queries until one ends well: another job's commits and damaged records are gone around."""
        source, sink = {"maxBytesPerTrigger": str(max_bytes)}, self._options | {"index": str(index).lower()}
        conflicts_left = _CONFLICTS_MAX
        while True:
            source["plan"] = self._log.plan(self.state, size_max=max_bytes).to_json()
            try:
                with _checkpoint(checkpoint) as place:
                    self.follow(_query(session, source, sink, writers, place), progress)
                return
            except TierConflict:
                conflicts_left -= 1
                if not conflicts_left:
                    raise
            except CorruptData:
                # The writers found it; reading again with a check of every record leaves out just those.
                if "verify" in source:
                    raise
                source["verify"] = "true"

    def follow(self, query: "StreamingQuery", progress: Callable[[OffloadProgress], None] | None) -> None:
        """Wait for the query's end, telling `progress` of each commit."""
        try:
            with own_errors():
                while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type] # takes fractions, too
                    self._look(progress)
        finally:
            query.stop()
            self._look(progress)

    def finish(self) -> OffloadReport:
        """Compact the index if that is due, leave a metadata file for Java brokers, and sum up."""
        self._compact()
        text = encode_metadata(self.state, now_ms=time.time_ns() // 1_000_000)
        self.backend.replace(f"{self.manifest.directory}/{FILE_NAME}", text.encode())
        self.backend.close()
        before, after = _Totals.of(self._before), _Totals.of(self.state)
        return OffloadReport(
            record_count=after.unit_count - before.unit_count,
            lost_count=after.gap_count - before.gap_count,
            log_size=max(0, self._log.end_offset - self._log_begin),
            tier_size=after.log_size - before.log_size,
            batch_count=self._batch_count,
            seconds=time.monotonic() - self._begin_s,
            cluster=self.state.cluster,
            broker=self.state.broker,
            passed_over=dict(Counter(self.state.passed_over) - Counter(self._before.passed_over)),
            left_out=self._log.left_out(),
        )

    def _look(self, progress: Callable[[OffloadProgress], None] | None) -> None:
        state = self.manifest.refresh(self.state)
        if state.next_sequence == self.state.next_sequence:
            return
        self._batch_count += state.next_sequence - self.state.next_sequence
        self.state = state
        if progress is not None:
            progress(self._progress())
        if sum(run.item_count for run in state.index_runs) > _COMPACT_ITEMS_MAX:
            self._compact()

    def _progress(self) -> OffloadProgress:
        begin, end = self._log_begin, self._log.end_offset
        return OffloadProgress(
            record_count=_Totals.of(self.state).unit_count - _Totals.of(self._before).unit_count,
            log_size=min(max(self.state.source_end, begin), end) - begin,
            log_size_total=end - begin,
            seconds=time.monotonic() - self._begin_s,
        )

    def _compact(self) -> None:
        items = sum(run.item_count for run in self.state.index_runs)
        is_due = items >= COMPACT_ITEMS_MIN or len(self.state.index_runs) >= COMPACT_RUNS_MIN
        wanted = is_due if self._compact_index is None else self._compact_index
        if wanted and items:
            try:
                self.state = compact(self.backend, self.manifest, self.state, slot_count=self._index_slot_count)
            except TierConflict:
                # Another offload compacted these runs first, so there is nothing left to do.
                self.state = self.manifest.load()


@dataclass(frozen=True, slots=True)
class _Totals:
    unit_count: int
    gap_count: int
    log_size: int

    @classmethod
    def of(cls, state: TierState) -> "_Totals":
        units = gaps = size = 0
        for queue in state.queues.values():
            if queue.consume_queue:
                there = sum(segment.size for segment in queue.consume_queue) // UNIT_SIZE
                units += there
                gaps += queue.end_queue_offset - queue.consume_queue[0].base_offset // UNIT_SIZE - there
                size += queue.commit_log_end
        return cls(units, gaps, size)


def _begun(backend: PosixBackend, manifest: Manifest, tier_url: str) -> TierState:
    """The tier's state; a tier without a manifest gets one, which takes in what a Java broker wrote.

    That comes before the first write, so that leftovers of a killed first batch are never taken for a broker's data.
    """
    if not manifest.exists():
        try:
            state = open_tier(tier_url, cluster=manifest.cluster, broker=manifest.broker).state
        except NotAStore:
            state = TierState(manifest.cluster, manifest.broker)
        try:
            return manifest.adopt(state)
        except TierConflict:
            pass  # another offload began it at the same moment
    return manifest.load()


def check_same_store(store: MessageStore, tier: TieredStore) -> None:
    """Raise `ConfigurationError` when the tier holds another store's messages under this name.

    Looks at the newest message of some queues, where the store still has it. Without this, messages of a second store
    would count as copied already.
    """
    local = set(store.queues())
    for topic, queue_id in [name for name in tier.queues() if name in local][:_QUEUES_COMPARED]:
        copied, queue = tier.queue(topic, queue_id), store.queue(topic, queue_id)
        newest = copied.max_offset - 1
        if not max(queue.min_offset, copied.min_offset) <= newest < queue.max_offset:
            continue
        try:
            there = copied.get(newest).message
        except CorruptData:
            continue  # says nothing about whose it is; reading it will tell
        here = next(queue.read(newest, count=1), None)
        if there and here and _identity(there) != _identity(here):
            raise ConfigurationError(
                f"{topic}/{queue_id} queue offset {newest} is another message in the tier than in {store.root}: under "
                f"the name {tier.state.broker!r} the tier holds another store's messages. Give another broker name"
            )


def _identity(message: Message) -> tuple[int, int, int, int]:
    return message.store_timestamp, message.born_timestamp, message.body_crc, message.store_size
