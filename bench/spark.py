"""The tier by Spark: offload, key lookup while everything is cold, scan. The session is started before the clock."""

import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench import limits
from bench.data import SEED, TOPIC, Messages, key_of
from bench.harness import Bench, Case, Line, Sample, Target, drop_from_page_cache, seconds
from bench.stores import open_quiet
from stratalog.pipeline.offload import offload
from stratalog.pipeline.session import spark_session
from stratalog.tiered.tiered_store import TieredStore, open_tier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUEUES = 4
_LOG_FILE_SIZE = 128 << 20
_COLD_LOOKUPS = 10
_PAGE = 4096
_FILL_ROWS = 200_000


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    """Two stores of about 0.75 and 0.5 GB. A query costs about a second however little there is to do; with less than
    this the figure would be that second's."""
    limits.release_buffers()
    large, small = Messages(bench.count(600_000), 1024), Messages(bench.count(1_600_000), 100)
    with bench.folder("spark") as folder:
        for name, messages in (("large", large), ("small", small)):
            _fill(folder / name, messages)
        session = spark_session(streaming=True)
        try:
            offload(folder / "large", str(folder / "tier"), spark=session)
            offload(folder / "small", str(folder / "cold-tier"), spark=session, compact_index=True)
            yield [
                _offload(session, folder, "large", large, "1 KB", Target(0.6, "ratio")),
                _offload(session, folder, "small", small, "100 B", Target(0.4, "ratio")),
                _lookup(folder / "cold-tier", small),
                _scan(session, folder / "tier", large, "all columns", None, Target(450e6)),
                _scan(session, folder / "tier", large, "two columns", "queueId INT, queueOffset BIGINT",
                      Target(1.1e9)),
            ]  # fmt: skip
        finally:
            session.stop()


def _fill(path: Path, messages: Messages) -> None:
    with open_quiet(path, mapped_file_size_commit_log=_LOG_FILE_SIZE) as store:
        for batch in messages.batches(_FILL_ROWS, queue_count=_QUEUES):
            store.append(batch, topic=TOPIC)


def _offload(
    session: "SparkSession", folder: Path, name: str, messages: Messages, size: str, target: Target
) -> Case:  # fmt: skip
    """A whole store into a new tier, index included, against a copy of its log."""
    log_size = int(messages.count * messages.record_size)
    pieces = sorted((folder / name / "commitlog").iterdir())

    def copy() -> float:
        """Messages per second of `cp` and fdatasync, log file by log file."""
        spent, left = 0.0, log_size
        copies = folder / "copy"
        copies.mkdir()
        for piece in pieces:
            part = min(left, _LOG_FILE_SIZE)
            spent += part / limits.copy_file(piece, copies / piece.name, part) if part else 0
            left -= part
        shutil.rmtree(copies)
        return messages.count / spent

    def run() -> list[Sample]:
        copied = copy()
        tier = folder / "new-tier"
        spent = seconds(lambda: offload(folder / name, str(tier), spark=session))
        shutil.rmtree(tier)
        return [Sample(messages.count / spent, copied)]

    line = Line(
        f"offload {_QUEUES} queues with index, {size}", limit="cp + fdatasync", target=target,
        message_size=messages.record_size,
    )  # fmt: skip
    return Case([line], run)


def _lookup(tier: Path, messages: Messages) -> Case:
    """Each lookup opens the tier anew, with none of its files in the page cache."""
    chosen = random.Random(SEED)

    def run() -> list[Sample]:
        times, reads, preads = [], [], []
        for _ in range(_COLD_LOOKUPS):
            key = key_of(chosen.randrange(messages.count))
            drop_from_page_cache(tier)
            preads.append(_cold_pread(tier, chosen))
            with open_tier(tier) as opened:
                times.append(_timed(lambda: opened.query(TOPIC, key=key), key))  # noqa: B023 - called at once
                reads.append(_reads_per_candidate(opened, key))
        return [Sample(statistics.median(times), statistics.median(preads)), Sample(max(reads))]

    return Case(
        [
            Line("key lookup in the cold tier, p50", "s", limit="one cold pread of 4 KB"),
            Line("… ranged reads per candidate index file, most", "count", target=Target(2, at_most=True)),
        ],
        run,
    )


def _timed(query: Callable[[], Sequence[object]], key: str) -> float:
    begin = time.perf_counter()
    hits = query()
    spent = time.perf_counter() - begin
    if len(hits) != 1:
        raise RuntimeError(f"looking up {key!r} in the tier found {hits}")
    return spent


def _reads_per_candidate(tier: TieredStore, key: str) -> float:
    before = tier.stats.reads
    list(tier.index_items(TOPIC, key))
    candidates = len(tier.state.index_segments) + len(tier.state.index_runs)
    return (tier.stats.reads - before) / candidates


def _cold_pread(tier: Path, chosen: random.Random) -> float:
    """Seconds of reading one page at a random place of a large file that is not in the page cache."""
    largest = max((path for path in tier.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    fd = os.open(largest, os.O_RDONLY)
    try:
        position = chosen.randrange(largest.stat().st_size // _PAGE) * _PAGE
        begin = time.perf_counter()
        os.pread(fd, _PAGE, position)
        return time.perf_counter() - begin
    finally:
        os.close(fd)


def _scan(
    session: "SparkSession", tier: Path, messages: Messages, name: str, schema: str | None, target: Target
) -> Case:  # fmt: skip
    """Every message of the tier through the data source into Spark's rows, which are then dropped."""

    def run() -> list[Sample]:
        reader = session.read.format("stratalog").option("tier", str(tier))
        frame = (reader.schema(schema) if schema else reader).load()
        spent = seconds(lambda: frame.write.format("noop").mode("overwrite").save())
        return [Sample(messages.count * messages.record_size / spent, limits.memcpy())]

    return Case([Line(f"Spark scan of the tier, 1 KB, {name}", "B/s", limit="memcpy", target=target)], run)
