"""Putting durably: a put returns when its message survives a power cut."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import limits
from bench.data import TOPIC, Messages
from bench.harness import Bench, Case, Line, Sample, Target
from bench.stores import open_quiet
from stratalog.store.message_store import MessageStore

_BODY_SIZE = 1024
_IN_FLIGHT = 1000
_LOG_SIZE = 256 << 20

_ONE = "put, 1 thread"
LINES = [
    Line(_ONE, limit="bare append + fdatasync", target=Target(0.85, "ratio")),
    Line("put, 8 threads", limit=_ONE),
    Line("put, 16 threads", limit=_ONE, target=Target(3, "ratio")),
    Line(f"put_async, {_IN_FLIGHT} in flight", limit=_ONE, target=Target(25, "ratio")),
]


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    messages = Messages(4096, _BODY_SIZE)
    duration_s = 0.1 if bench.quick else 0.2

    def run() -> list[Sample]:
        with bench.folder("sync") as folder:
            return _round(folder, messages, duration_s)

    yield [Case(LINES, run)]


def _round(folder: Path, messages: Messages, duration_s: float) -> list[Sample]:
    body, properties = messages.bodies[0], messages.raw_properties[0]
    with _open(folder / "one") as store:
        alone, bare = _in_turn(store, folder / "bare", messages, 3 * duration_s)
    with _open(folder / "many") as store:
        eight = _threads(store, 8, body, properties, 2 * duration_s)
        sixteen = _threads(store, 16, body, properties, 2 * duration_s)
    with _open(folder / "async") as store:
        future = asyncio.run(_async(store, body, 2 * duration_s))
    return [Sample(alone, bare), Sample(eight, alone), Sample(sixteen, alone), Sample(future, alone)]


def _in_turn(store: MessageStore, path: Path, messages: Messages, duration_s: float) -> tuple[float, float]:
    """Puts and bare appends per second, one after the other: the disk's mood changes within milliseconds."""
    put, body, properties = store.queue(TOPIC).put_raw, messages.bodies[0], messages.raw_properties[0]
    bare = limits.BareLog(path, int(messages.record_size), file_size=_LOG_SIZE)
    spent = [0.0, 0.0]
    count = 0
    try:
        while sum(spent) < 2 * duration_s:
            begin = time.perf_counter()
            put(body, properties)
            between = time.perf_counter()
            bare.append_and_sync()
            spent[0] += between - begin
            spent[1] += time.perf_counter() - between
            count += 1
    finally:
        bare.close()
    return count / spent[0], count / spent[1]


@contextmanager
def _open(path: Path) -> Iterator[MessageStore]:
    with open_quiet(
        path, flush="sync", mapped_file_size_commit_log=_LOG_SIZE, message_index_enable=False
    ) as store:  # fmt: skip
        store.put(TOPIC, b"first")
        yield store


def _threads(store: MessageStore, count: int, body: bytes, properties: bytes, duration_s: float) -> float:
    """Messages per second of so many threads that each put, wait until it is durable, and put again."""
    done = [0] * count
    ready = threading.Barrier(count + 1)

    def work(number: int) -> None:
        put = store.queue(TOPIC).put_raw
        ready.wait()
        end = time.perf_counter() + duration_s
        while time.perf_counter() < end:
            put(body, properties)
            done[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begin)


async def _async(store: MessageStore, body: bytes, duration_s: float) -> float:
    """Messages per second of one event loop in which so many tasks put, wait and put again."""
    done = 0
    begin = time.perf_counter()

    async def work() -> None:
        nonlocal done
        while time.perf_counter() < begin + duration_s:
            await store.put_async(TOPIC, body, tags="paid", keys="order-1")
            done += 1

    await asyncio.gather(*[work() for _ in range(_IN_FLIGHT)])
    return done / (time.perf_counter() - begin)
