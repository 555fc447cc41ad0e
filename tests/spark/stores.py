"""Small stores and tiers for the pipeline's tests, and Spark's part of a stream played in plain Python.

`StreamingDriver` calls the source's and the sink's methods in the order in which Structured Streaming does, shuffles
what a shuffle may shuffle, and moves readers and messages as pickles, as Spark does. It needs no JVM.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadMaxBytes

import stratalog
from pyspark_stratalog import DefaultSource
from stratalog.layout.tier import SegmentType
from stratalog.pipeline.committed_log import CommittedLog
from stratalog.pipeline.log_plan import LogPlan
from stratalog.pipeline.log_source import LogReader
from stratalog.pipeline.offload import _begun
from stratalog.pipeline.tier_sink import RunWriter, Written
from stratalog.store.message_store import MessageStore
from stratalog.tiered.manifest import Manifest
from stratalog.tiered.segment import open_backend
from stratalog.tiered.state import TierState

CLUSTER, BROKER = "DefaultCluster", "broker-a"
FIRST_STORED_MS = 1_700_000_000_000
_PICKLES = CPickleSerializer()

Row = dict[str, Any]


def open_small(path: Path, **settings: Any) -> MessageStore:
    """A store whose files are small enough that a few hundred messages fill several."""
    small = {
        "mapped_file_size_commit_log": 64 << 10,
        "mapped_file_size_consume_queue": 4000,
        "max_hash_slot_num": 100,
        "max_index_num": 400,
    }
    return stratalog.open(path, **(small | settings))


class SteppingClock:
    """Nanoseconds; each look is `step_ms` later."""

    def __init__(self, step_ms: int = 1000) -> None:
        self._now_ms, self._step_ms = FIRST_STORED_MS, step_ms

    def __call__(self) -> int:
        self._now_ms += self._step_ms
        return self._now_ms * 1_000_000


def fill(store: MessageStore, count: int, *, seed: int = 1) -> None:
    """`count` messages over three topics with one to three queues, and some of a system topic between them."""
    choose = random.Random(seed)
    for number in range(count):
        topic, queues = choose.choice((("orders", 3), ("events", 2), ("%RETRY%group", 1), ("TBW102", 1)))
        store.put(
            topic,
            choose.randbytes(choose.randrange(0, 600)),
            queue_id=choose.randrange(queues),
            tags=choose.choice((None, "TagA", "TagB")),
            keys=choose.choice((None, f"key-{number}", ["k", f"key-{number % 7}"])),
            unique_key=f"UNIQUE{number:026d}",
        )


def make_store(path: Path, count: int = 400, *, seed: int = 1, step_ms: int = 1000) -> Path:
    with open_small(path, clock_ns=SteppingClock(step_ms)) as store:
        fill(store, count, seed=seed)
    return path


def messages_of(path: Path, *, tiered_only: bool = False) -> dict[tuple[str, int], list[Row]]:
    """What `store.queue().read()` gives, in the columns of the format, by queue."""
    found: dict[tuple[str, int], list[Row]] = {}
    with stratalog.open(path, mode="r") as store:
        for topic, queue_id in store.queues():
            if not (tiered_only and topic == "TBW102"):
                found[topic, queue_id] = [row_of(message) for message in store.queue(topic, queue_id).read()]
    return found


def row_of(message: Any) -> Row:
    """The columns that a message's bytes decide, wherever it lies."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "body": bytes(message.body),
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "uniqueKey": message.unique_key,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "storeSize": message.store_size,
        "reconsumeTimes": message.reconsume_times,
    }


def by_queue(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """Rows of a scan by queue, in order, with the columns of `row_of`."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["queueOffset"]):
        chosen = {name: row[name] for name in _ROW_COLUMNS}
        found.setdefault((row["topic"], row["queueId"]), []).append(chosen)
    return found


_ROW_COLUMNS = (
    "topic", "queueId", "queueOffset", "body", "tags", "keys", "uniqueKey", "flag", "sysFlag", "storeSize",
    "reconsumeTimes",
)  # fmt: skip


def source(**options: str) -> DefaultSource:
    return DefaultSource(CaseInsensitiveDict(options))


def pickled(value: Any) -> Any:
    """The value as it arrives in another process."""
    return _PICKLES.loads(_PICKLES.dumps(value))


def scan(*, filters: Sequence[Any] = (), schema: Any = None, **options: str) -> tuple[list[Row], list[Any]]:
    """Rows and partitions of a batch read, without Spark."""
    found = source(**options)
    reader = found.reader(schema or found.schema())
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters), "Spark must check every filter again"
    partitions = [pickled(partition) for partition in reader.partitions()]
    reader = pickled(reader)
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return [row for batch in batches for row in batch.to_pylist()], partitions


class StreamingDriver:
    """One offload query. `max_bytes` bounds a batch; `seed` decides the order in which runs reach the writers.

    With `checkpoint` the offsets of the last started batch survive, as in Spark: a new driver does it again.
    """

    def __init__(
        self,
        store: Path,
        tier: Path,
        *,
        max_bytes: int = 1 << 30,
        seed: int = 0,
        writers: int = 2,
        checkpoint: dict[str, Any] | None = None,
        cluster: str = CLUSTER,
        broker: str = BROKER,
        index: bool = True,
        verify: bool = False,
    ) -> None:
        backend = open_backend(tier)
        manifest = Manifest(backend, cluster, broker)
        state = _begun(backend, manifest, str(tier))
        plan = log_plan(store, state, size_max=max_bytes)
        self.reader = LogReader(plan, max_bytes=max_bytes, verify=verify)
        self.writer = RunWriter(str(store), tier=str(tier), cluster=cluster, broker=broker, index=index)
        self.checkpoint = {} if checkpoint is None else checkpoint
        self._limit = ReadMaxBytes(max_bytes)
        self._random = random.Random(seed)
        self._writers = writers
        self.batch_count = 0

    def run(self) -> "StreamingDriver":
        """availableNow: batches until the log's end as it was at the beginning."""
        self.reader.prepareForTriggerAvailableNow()
        if "end" in self.checkpoint and self.checkpoint.get("done") != self.checkpoint["end"]:
            self.do_batch(self.checkpoint["start"], self.checkpoint["end"])
        while (batch := self.next_batch()) is not None:
            self.do_batch(*batch)
        self.reader.stop()
        return self

    def next_batch(self) -> tuple[Row, Row] | None:
        start = self.checkpoint.get("end") or self.reader.initialOffset()
        end = self.reader.latestOffset(start, self._limit)
        return None if end == start else (start, end)

    def do_batch(self, start: Row, end: Row) -> None:
        self.checkpoint.update(start=start, end=end)
        self.commit(self.written(start, end))
        self.checkpoint["done"] = end

    def written(self, start: Row, end: Row) -> list[Written]:
        """The tasks' part of a batch."""
        runs: list[pa.RecordBatch] = []
        for partition in self.reader.partitions(start, end):
            runs += pickled(self.reader).read(pickled(partition))
        self._random.shuffle(runs)
        self.batch_count += 1
        writer = pickled(self.writer)
        slots = [[run for run in runs if run["slot"][0].as_py() % self._writers == n] for n in range(self._writers)]
        return [pickled(writer.write(iter(slot))) for slot in slots]

    def commit(self, messages: Sequence[Written | None]) -> None:
        pickled(self.writer).commit(messages, self.batch_count)


def log_plan(store: Path, state: TierState, *, size_max: int = 1 << 30) -> LogPlan:
    """The plan as it arrives in Spark's planner."""
    log = CommittedLog(str(store))
    plan = log.plan(state, size_max=size_max)
    log.close()
    assert LogPlan.from_json(plan.to_json()) == plan
    return plan


def tier_state(tier: Path, cluster: str = CLUSTER, broker: str = BROKER) -> TierState:
    """The committed state, with the manifest's own checks on the way."""
    return Manifest(open_backend(tier), cluster, broker).load()


def tier_bytes(tier: Path, cluster: str = CLUSTER, broker: str = BROKER) -> Iterator[tuple[str, bytes]]:
    """Path and committed bytes of every segment of messages."""
    backend, state = open_backend(tier), tier_state(tier, cluster, broker)
    for name, queue in sorted(state.queues.items()):
        for kind, segments in (
            (SegmentType.COMMIT_LOG, queue.commit_log),
            (SegmentType.CONSUME_QUEUE, queue.consume_queue),
        ):
            for segment in segments:
                path = state.path(*name, kind, segment.base_offset)
                yield path, backend.read(path, 0, segment.size)


def empty_partition() -> InputPartition:
    """What Spark makes of a plan without partitions."""
    return InputPartition(None)
