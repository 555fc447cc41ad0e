"""Finding messages by key in a local store."""

import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import stratalog
from bench.data import SEED, TOPIC, Messages, key_of
from bench.harness import Bench, Case, Line, Sample, Target
from bench.read import fill
from stratalog.store.message_store import MessageStore

_LOOKUPS = 4000
_LINES = [
    Line("key lookup, warm, p50", "s", limit="pread of a record", target=Target(10e-6, at_most=True)),
    Line("key lookup, warm, p99", "s", limit="pread of a record"),
]


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    messages = Messages(bench.count(600_000), 100)
    chosen = random.Random(SEED)
    with bench.folder("lookup") as folder:
        fill(folder, messages)
        log = next((folder / "commitlog").iterdir())
        with stratalog.open(folder, mode="r") as store:

            def run() -> list[Sample]:
                numbers = [chosen.randrange(messages.count) for _ in range(_LOOKUPS)]
                pread_s = _preads(str(log), [int(number * messages.record_size) for number in numbers])
                times = _lookups(store, [key_of(number) for number in numbers])
                p99_s = statistics.quantiles(times, n=100)[98]
                return [Sample(statistics.median(times), pread_s), Sample(p99_s, pread_s)]

            yield [Case(_LINES, run)]


def _lookups(store: MessageStore, keys: Sequence[str]) -> list[float]:
    """Seconds of each query; the right message comes back or the benchmark ends."""
    times = []
    for key in keys:
        begin = time.perf_counter()
        hits = store.query(TOPIC, key=key)
        times.append(time.perf_counter() - begin)
        if [hit.keys for hit in hits] != [[key]]:
            raise RuntimeError(f"looking up {key!r} found {hits}")
    return times


def _preads(path: str, positions: Sequence[int]) -> float:
    """Median seconds of reading 300 bytes at random positions of a file in the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        times = []
        for position in positions:
            begin = time.perf_counter()
            os.pread(fd, 300, position)
            times.append(time.perf_counter() - begin)
    finally:
        os.close(fd)
    return statistics.median(times)
