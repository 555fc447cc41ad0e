"""The commit log as a stream of pointers: what the offload reads.

    offset   {"version": 1, "offset": N}     N = commit log offset in bytes, always the start of a record
    batch    [from, to) of the log, at most `maxBytesPerTrigger` bytes, at least one record
    task     a piece of one log file: scans its records, makes their queue units, sorts them by queue
    row      a *run*: units of consecutive messages of one queue, packed, 20 bytes each

Bodies never travel: a run's units say where the records are, and whoever writes them copies them out of the log.

Delivery: a new query begins where the tier's manifest ended at planning, one with a checkpoint where the checkpoint
ends; a range of the log gives the same runs every time it is read.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from stratalog.errors import ConfigurationError
from stratalog.pipeline.log_plan import LogPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "stratalog-log"
OFFSET_VERSION = 1
MAX_BYTES_PER_TRIGGER = 1 << 30
"""Bytes of log in a batch, unless asked otherwise: the memory of a batch's units, and the work a crash repeats."""
PIECE_SIZE = 256 << 20
"""Bytes of log that a task scans at most."""
PIECE_SIZE_MIN = 16 << 20
"""A batch is cut into as many pieces as there are cores, but not into smaller ones."""

RUN_COLUMNS = (
    "slot INT, topic STRING, queueId INT, topicId INT, firstOffset BIGINT, units BINARY, "
    "sourceFrom BIGINT, sourceTo BIGINT, passedOver BIGINT"
)
"""Columns of a run. `slot` spreads the queues of a topic evenly over writers, `topicId` is the tier's number of the
topic. Each task gives one row without units: the batch's range arrives even if it holds nothing for the tier.
`passedOver` counts messages of a queue that a tier cannot have."""


class LogSource(DataSource):
    """The format `stratalog-log`: options `plan` (a `LogPlan`), `maxBytesPerTrigger`, `verify`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return RUN_COLUMNS

    def streamReader(self, schema: "StructType") -> "LogReader":  # noqa: N802 -- Spark's name
        return LogReader(
            LogPlan.from_json(self.options["plan"]),
            max_bytes=int(self.options.get("maxBytesPerTrigger", MAX_BYTES_PER_TRIGGER)),
            verify=self.options.get("verify", "false") == "true",
        )


@dataclass(frozen=True)
class LogPiece(InputPartition):
    """Records of one log file between two log offsets, and the batch they belong to. `verify` checks their CRCs."""

    file: str
    base_offset: int
    begin: int
    end: int
    source_from: int
    source_to: int
    topic_ids: dict[str, int]
    verify: bool


class LogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in one long-lived process on the driver; a pickled copy reads pieces in tasks.

    Before a range is given out it is forced to disk, so that a tier never holds a message that a power cut took back
    here (its offsets would be given to other messages).
    """

    def __init__(self, plan: LogPlan, *, max_bytes: int, verify: bool = False) -> None:
        self._plan = plan
        self._max_bytes = max_bytes
        self._verify = verify
        self._planned_to = plan.begin

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return _offset(self._plan.begin)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Nothing to fix: the plan ends where the log ended when it was made."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._plan.end
        return _offset(self._plan.batch_end(_value(start), size))

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return _offset(self._plan.end)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[LogPiece]:
        begin, stop = _value(start), _value(end)
        if begin >= stop:
            return []
        if begin > self._planned_to:
            raise ConfigurationError(
                f"the checkpoint says that the tier was filled up to log offset {begin:,}, the tier itself says "
                f"{self._planned_to:,}: the checkpoint belongs to another tier. Remove it: the offload finds its place "
                "in the tier"
            )
        self._planned_to = max(self._planned_to, stop)
        size = min(PIECE_SIZE, max(PIECE_SIZE_MIN, -(-(stop - begin) // len(os.sched_getaffinity(0)))))
        pieces = self._plan.pieces(begin, stop, size)
        for file in {file for file, *_ in pieces}:
            _sync(file)
        return [LogPiece(*piece, begin, stop, self._plan.topic_ids, self._verify) for piece in pieces]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        from stratalog.pipeline.runs import runs_of

        assert isinstance(partition, LogPiece)
        return runs_of(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to let go of: what was read stays in the log."""


def _sync(path: str) -> None:
    """Force a file to disk; costs nothing where that was done."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


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
