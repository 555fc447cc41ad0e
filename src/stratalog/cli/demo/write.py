"""Steps 1 to 4 of the demo: write, check, offload, drop."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.cli.demo.flights import TOPIC, Flights
from stratalog.cli.demo.journal import Journal, Step
from stratalog.cli.progress import Progress
from stratalog.errors import ConfigurationError, CorruptData

if TYPE_CHECKING:
    from stratalog.store.message_store import MessageStore
    from stratalog.tools.verify_report import VerifyReport

SLICE = 20_000
"""Flights that are put one by one; the rest goes in by Arrow."""
ASKED_QUEUE = 1
"""The queue (JFK) that step 5 asks."""
BATCH_ROWS = 1 << 16
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 << 20,
    "max_hash_slot_num": 400_000,
    "max_index_num": 1_600_000,
}
"""Small files: the defaults would allocate 1.4 GB for the 165 MB of this demo."""


def open_demo_store(path: Path) -> "MessageStore":
    """The demo's store, with its file sizes."""
    import stratalog

    return stratalog.open(path, mode="w", **SETTINGS)


def write(path: Path, flights: Flights, journal: Journal) -> Iterator[Step]:
    """Put the flights that are not in the store yet: the slice one by one, the rest in bulk; each step as it is done.

    A run that was stopped left the first so many flights, in order, so that this one goes on after them.
    """
    with open_demo_store(path) as store:
        done = sum(store.queue(*name).max_offset for name in store.queues())
        one_by_one = min(SLICE, len(flights))
        if done < one_by_one:
            yield _put_one_by_one(store, flights, done, one_by_one)
            done = one_by_one
        if done < len(flights):
            yield _append(store, flights, done)
        first = _rows_of_queue(flights, ASKED_QUEUE, one_by_one) if one_by_one < len(flights) else 0
        journal.bulk_first_offset = first
        journal.bulk_timestamp_ms = next(store.queue(TOPIC, ASKED_QUEUE).read(first, count=1)).store_timestamp
        journal.message_count = sum(store.queue(*name).max_offset for name in store.queues())
    if journal.message_count != len(flights):
        raise CorruptData(
            f"the store holds {journal.message_count:,} messages, the file {len(flights):,} flights; remove the folder "
            f"{path.parent} and begin again",
            path=str(path),
            position=0,
        )


def _rows_of_queue(flights: Flights, queue_id: int, end: int) -> int:
    """How many of the first `end` flights go to a queue."""
    import pyarrow.compute as pc

    return int(pc.sum(pc.equal(flights.batch.column("queueId").slice(0, end), queue_id)).as_py() or 0)


def _put_one_by_one(store: "MessageStore", flights: Flights, first: int, end: int) -> Step:
    columns = flights.batch.slice(first, end - first).to_pydict()
    queues = {queue_id: store.queue(TOPIC, queue_id) for queue_id in set(columns["queueId"])}
    rows = list(zip(*(columns[name] for name in ("queueId", "body", "tags", "keys", "bornTimestamp")), strict=True))
    before, begin = store.log.end_offset, time.perf_counter()
    for queue_id, body, tags, keys, born_timestamp in rows:
        queues[queue_id].put(body, tags=tags, keys=keys, born_timestamp=born_timestamp)
    store.flush()
    return Step("put one by one", len(rows), store.log.end_offset - before, time.perf_counter() - begin)


def _append(store: "MessageStore", flights: Flights, first: int) -> Step:
    before, begin = store.log.end_offset, time.perf_counter()
    with Progress("append") as progress:
        for row in range(first, len(flights), BATCH_ROWS):
            batch = flights.batch.slice(row, BATCH_ROWS)
            store.append(batch, topic=TOPIC)
            done = row - first + batch.num_rows
            progress(store.log.end_offset - before, 0, done)
    store.flush()
    return Step("append by Arrow", len(flights) - first, store.log.end_offset - before, time.perf_counter() - begin)


def check(path: Path) -> tuple[Step, "VerifyReport"]:
    """Verify the store; the demo does not go on with one that has a problem."""
    import stratalog
    from stratalog.tools.verify import verify

    with stratalog.open(path, mode="r", **SETTINGS) as store, Progress("verify") as progress:
        begin = time.perf_counter()
        report = verify(store, progress=progress)
        step = Step("verify", report.record_count, report.log_end - report.log_begin, time.perf_counter() - begin)
    if not report.ok:
        raise CorruptData(f"{report.problem_count:,} problems, the first: {report.problems[0]}")
    return step, report


def drop(path: Path, journal: Journal, tier_count: int) -> Step:
    """Remove the local CommitLog files, once the tier holds every message."""
    from stratalog.layout.names import COMMIT_LOG

    if tier_count != journal.message_count:
        raise ConfigurationError(
            f"the tier holds {tier_count:,} of {journal.message_count:,} messages, so the local log stays; "
            f"call the demo again, or remove {path.parent} to begin again"
        )
    begin, size, count = time.perf_counter(), 0, 0
    for file in sorted((path / COMMIT_LOG).iterdir()):
        size, count = size + file.stat().st_size, count + 1
        file.unlink()
    return Step(f"drop {count} CommitLog files", 0, size, time.perf_counter() - begin)
