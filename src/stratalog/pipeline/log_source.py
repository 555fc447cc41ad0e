"""The commit log as a stream of pointers: what the offload reads.

    offset   {"version": 1, "offset": N}     N = commit log offset in bytes, always the start of a record
    batch    [from, to) of the log, at most `maxBytesPerTrigger` bytes, at least one record
    task     a piece of one log file: scans and verifies its records, makes their queue units, sorts them by queue
    row      a *run*: units of consecutive messages of one queue, packed, 20 bytes each

Bodies never travel: a run's units say where the records are, and whoever writes them copies them out of the log.

Delivery: a new query begins where the tier's manifest ends, one with a checkpoint where the checkpoint ends; a range of
the log gives the same runs every time it is read.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from stratalog.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from stratalog.pipeline.committed_log import CommittedLog
    from stratalog.tiered.manifest import Manifest
    from stratalog.tiered.state import TierState

FORMAT = "stratalog-log"
OFFSET_VERSION = 1
MAX_BYTES_PER_TRIGGER = 1 << 30
"""Bytes of log in a batch, unless asked otherwise: the memory of a batch's units, and the work a crash repeats."""

RUN_COLUMNS = (
    "slot INT, topic STRING, queueId INT, topicId INT, firstOffset BIGINT, units BINARY, "
    "sourceFrom BIGINT, sourceTo BIGINT"
)
"""Columns of a run. `slot` spreads the queues of a topic evenly over writers, `topicId` is the tier's number of the
topic. Each task gives one row without units: the batch's range arrives even if it holds nothing for the tier."""


class LogSource(DataSource):
    """The format `stratalog-log`: options `path`, `tier`, `cluster`, `broker`, `maxBytesPerTrigger`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return RUN_COLUMNS

    def streamReader(self, schema: "StructType") -> "LogReader":  # noqa: N802 -- Spark's name
        return LogReader(
            self.options["path"],
            tier=self.options["tier"],
            cluster=self.options["cluster"],
            broker=self.options["broker"],
            max_bytes=int(self.options.get("maxBytesPerTrigger", MAX_BYTES_PER_TRIGGER)),
        )


@dataclass(frozen=True)
class LogPiece(InputPartition):
    """Records of one log file between two log offsets, and the batch they belong to.

    `topic_ids` are the tier's numbers of all topics in the store.
    """

    file: str
    base_offset: int
    begin: int
    end: int
    source_from: int
    source_to: int
    topic_ids: dict[str, int]


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one long-lived process on the driver; a pickled copy reads pieces in tasks.

    Before a range is given out it is forced to disk, so that a tier never holds a message that a power cut took back
    here (its offsets would be given to other messages).
    """

    def __init__(self, path: str, *, tier: str, cluster: str, broker: str, max_bytes: int) -> None:
        self._path = path
        self._tier = tier
        self._cluster = cluster
        self._broker = broker
        self._max_bytes = max_bytes
        self._is_fixed = False
        self._log: CommittedLog | None = None
        self._manifest: Manifest | None = None
        self._state: TierState | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        done = max(self._tier_state().source_end, 0)
        self._committed().start(done)
        return _offset(done)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._reopen()
        self._is_fixed = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        if not self._is_fixed:
            self._reopen()
        log = self._committed()
        begin = log.start(_value(start))
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else log.end_offset
        end = log.border(begin, begin + size)
        return _offset(end) if end > begin else start

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return _offset(self._committed().end_offset)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[LogPiece]:
        log, state = self._committed(), self._tier_state()
        _check_checkpoint(_value(start), state, self._tier)
        begin, stop = log.start(_value(start)), _value(end)
        if begin >= stop:
            return []
        log.sync(begin, stop)
        topic_ids = state.topic_ids(log.tiered_topics)
        return [LogPiece(*piece, begin, stop, topic_ids) for piece in log.pieces(begin, stop)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from stratalog.pipeline.runs import runs_of

        assert isinstance(partition, LogPiece)
        return runs_of(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to let go of: what was read stays in the log."""

    def stop(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_log": None, "_manifest": None, "_state": None}

    def _committed(self) -> "CommittedLog":
        if self._log is None:
            from stratalog.pipeline.committed_log import CommittedLog

            self._log = CommittedLog(self._path)
        return self._log

    def _reopen(self) -> None:
        self.stop()
        self._committed()

    def _tier_state(self) -> "TierState":
        """The tier as it is now."""
        if self._manifest is None or self._state is None:
            from stratalog.tiered.manifest import Manifest
            from stratalog.tiered.segment import open_backend

            self._manifest = Manifest(open_backend(self._tier), self._cluster, self._broker)
            self._state = self._manifest.load()
        self._state = self._manifest.refresh(self._state)
        return self._state


def _check_checkpoint(begin: int, state: "TierState", tier: str) -> None:
    """A checkpoint that is ahead of the tier belongs to another one: going on from it would leave a hole."""
    if begin > max(state.source_end, 0):
        raise ConfigurationError(
            f"the checkpoint says that {tier} was filled up to log offset {begin:,}, the tier itself says "
            f"{max(state.source_end, 0):,}: the checkpoint belongs to another tier. Remove it: the offload finds its "
            "place in the tier"
        )


def _offset(value: int) -> dict[str, int]:
    return {"version": OFFSET_VERSION, "offset": value}


def _value(offset: dict[str, int]) -> int:
    version = offset.get("version")
    if version != OFFSET_VERSION:
        raise ConfigurationError(
            f"the checkpoint was written by another release (offset version {version!r}); remove it: the offload "
            "finds its place in the tier"
        )
    return offset["offset"]
