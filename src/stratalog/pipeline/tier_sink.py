"""Where the offload's stream ends: tasks copy the records of their runs into the tier, the commit makes them readable.

    task     sorts its runs by queue, copies the records out of the log with `TierWriter`, makes them durable
    commit   one manifest entry for all queues of the batch, put-if-absent, fenced by where each queue ended

Delivery: exactly once. A batch that is done again (a retry, a killed driver, a lost or deleted checkpoint, two jobs at
once) finds its messages in the tier and passes them over; a batch that another one overtook fails with `TierConflict`
and commits nothing. What an attempt wrote and did not commit is never read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from stratalog.layout.queue import UNIT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from stratalog.tiered.manifest import Manifest
    from stratalog.tiered.segment import PosixBackend
    from stratalog.tiered.state import ManifestEntry, TierState
    from stratalog.tiered.writer import TierWriter, Window, WrittenBatch

FORMAT = "stratalog-tier"


class TierSink(DataSource):
    """The format `stratalog-tier`: options `path` (the store), `tier`, `cluster`, `broker`, `index`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "RunWriter":  # noqa: N802 -- Spark's name
        return RunWriter(
            self.options["path"],
            tier=self.options["tier"],
            cluster=self.options["cluster"],
            broker=self.options["broker"],
            index=self.options.get("index", "true") == "true",
        )


class Run(NamedTuple):
    """Units of consecutive messages of one queue; sorts by queue and offset."""

    topic: str
    queue_id: int
    first_offset: int
    units: bytes
    topic_id: int


@dataclass
class Written(WriterCommitMessage):
    """What a task made durable, for the commit. `late` are runs after a gap: they need a commit of their own."""

    batch: "WrittenBatch | None" = None
    source_from: int = -1
    source_to: int = -1
    late: list[Run] = field(default_factory=list)
    passed_over: Counter[str] = field(default_factory=Counter)


class RunWriter(DataSourceStreamArrowWriter):
    """Writes in tasks, commits in a process on the driver. Holds names only; nothing is kept between the two."""

    def __init__(self, path: str, *, tier: str, cluster: str, broker: str, index: bool) -> None:
        self._path = path
        self._tier = tier
        self._cluster = cluster
        self._broker = broker
        self._index = index

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """Copy the records of a task's runs. Raises `CorruptData`, `DiskFull`."""
        written = Written()
        runs: list[Run] = []
        for batch in iterator:
            for row in batch.to_pylist():
                written.source_from, written.source_to = row["sourceFrom"], row["sourceTo"]
                if row["passedOver"]:
                    written.passed_over[f"{row['topic']}/{row['queueId']}"] += row["passedOver"]
                if row["units"]:
                    runs.append(Run(row["topic"], row["queueId"], row["firstOffset"], row["units"], row["topicId"]))
        if runs:
            backend, manifest = self._open()
            try:
                written.batch, written.late = self._copied(backend, manifest.load(), sorted(runs))
            finally:
                backend.close()
        return written

    def commit(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Publish a batch. Raises `TierConflict` when another job continued one of its queues."""
        tasks = [message for message in messages if isinstance(message, Written) and message.source_to >= 0]
        if not tasks:
            return
        backend, manifest = self._open()
        try:
            state = manifest.load()
            batches = [task.batch for task in tasks if task.batch]
            late = sorted(run for task in tasks for run in task.late)
            while late:
                if batches:
                    state = manifest.commit(_entry(batches, None), state)
                batch, late = self._copied(backend, state, late)
                batches = [batch]
            passed_over = sum((task.passed_over for task in tasks), Counter())
            entry = _entry(batches, tasks[0], passed_over)
            if entry.queues or state.source_end < entry.source_to:
                manifest.commit(entry, state)
        finally:
            backend.close()

    def abort(self, messages: "Sequence[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803
        """Nothing to undo: what was written is not readable, and the batch that is done again writes the same."""

    def _open(self) -> "tuple[PosixBackend, Manifest]":
        from stratalog.tiered.manifest import Manifest
        from stratalog.tiered.segment import open_backend

        backend = open_backend(self._tier)
        return backend, Manifest(backend, self._cluster, self._broker)

    def _copied(
        self, backend: "PosixBackend", state: "TierState", runs: Iterable[Run]
    ) -> "tuple[WrittenBatch, list[Run]]":
        """Copy sorted runs up to each queue's first gap inside the batch; returns what was written and the rest."""
        from stratalog.layout.names import COMMIT_LOG
        from stratalog.store.commit_log import open_log_window
        from stratalog.tiered.writer import TierWriter, WriterSettings

        window = open_log_window(Path(self._path) / COMMIT_LOG)
        writer = TierWriter(backend, state, settings=WriterSettings(index=self._index))
        late: list[Run] = []
        for _, queue_runs in groupby(runs, key=lambda run: (run.topic, run.queue_id)):
            late += _copy_queue(writer, window, state, list(queue_runs))
        return writer.finish(), late


def _entry(
    batches: "Sequence[WrittenBatch]", last: Written | None, passed_over: Mapping[str, int] = MappingProxyType({})
) -> "ManifestEntry":
    """The commit of these batches; `last` tells the range of the log that is done with it."""
    from stratalog.tiered.state import ManifestEntry

    return ManifestEntry(
        queues=tuple(queue for batch in batches for queue in batch.queues),
        index_runs=tuple(run for batch in batches for run in batch.index_runs),
        source_from=last.source_from if last else -1,
        source_to=last.source_to if last else -1,
        passed_over=dict(passed_over),
    )


def _copy_queue(writer: "TierWriter", window: "Window", state: "TierState", runs: list[Run]) -> list[Run]:
    """Append one queue's runs in order; returns those after a gap.

    A gap in front of everything new is the writer's to record: local retention was faster than the offload. One in the
    middle (damaged messages) ends what this commit can take of the queue.
    """
    from stratalog.tiered.state import QueueName

    queue = state.queues.get(QueueName(runs[0].topic, runs[0].queue_id))
    end = queue.end_queue_offset if queue and queue.consume_queue else -1
    begun = False
    for number, run in enumerate(runs):
        run_end = run.first_offset + len(run.units) // UNIT.size
        if run_end <= end:
            continue
        if begun and run.first_offset > end:
            return runs[number:]
        writer.append(
            run.topic, run.queue_id, run.units, window=window, first_queue_offset=run.first_offset,
            topic_id=run.topic_id,
        )  # fmt: skip
        begun, end = True, run_end
    return []
