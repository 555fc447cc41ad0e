"""Putting, beside RocketMQ: one by one, in lists, durably; the same work on the same machine, in turn.

A put counts until its message is in its queue and in the index, on both sides: both derive those behind the log, in a
thread of their own, while puts go on. Both stores are opened as they are by default, in an empty folder, and both write
to fresh pages of memory that the machine has used just before.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import stratalog
from bench.data import REGION, TOPIC, VERSION, Messages
from bench.harness import Bench, Case, Line, Sample, Target, touch_page_cache
from bench.rival import NAME, Rival, rival_of
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore

_LIST_SIZE = 100
_SYNC_SLICES, _SYNC_SLICE = 40, 30
_IN_FLIGHT = 1000
_THREADS = 4
_WARM_UP_S = 4
"""Beside the warm-up round. RocketMQ's figures rise for about that long."""


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    with rival_of(bench) as rival:
        with bench.folder("race") as folder, rival.store(folder):
            for how in ("keywords", "raw", "batch"):
                rival.warm_up(_WARM_UP_S, "put", count=100_000, body=100, how=how)
        yield [
            _put_case(bench, rival, "100 B", Messages(bench.count(400_000), 100), 1.2),
            _put_case(bench, rival, "1 KB", Messages(bench.count(160_000), 1024), 2),
            _raw_case(bench, rival, Messages(bench.count(400_000), 100)),
            _list_case(bench, rival, Messages(bench.count(800_000), 100)),
            _sync_case(bench, rival),
            _in_flight_case(bench, rival),
        ]


def line(path: str, target: float | None = None, *, size: float = 0, **more: Any) -> Line:
    """A line whose figure is compared with RocketMQ's of the same round."""
    return Line(path, limit=NAME, target=Target(target, "ratio") if target else None, message_size=size, **more)


# -- without waiting for the disk ------------------------------------------------------------------------------------


@contextmanager
def _ours(bench: Bench) -> Iterator[MessageStore]:
    """A new store whose log, queue and index have their first file."""
    with bench.folder("race") as folder, stratalog.open(folder) as store:
        store.put(TOPIC, b"first", keys="first")
        store.dispatch()
        touch_page_cache(folder)
        yield store


@contextmanager
def _theirs(bench: Bench, rival: Rival) -> Iterator[None]:
    """The same of RocketMQ's."""
    with bench.folder("race") as folder, rival.store(folder):
        rival.put_rate(1, 1, "keywords")
        touch_page_cache(folder)
        yield


def _until_dispatched(store: MessageStore, count: int, put: Callable[[], object]) -> float:
    """Messages a second; the store's own thread dispatches meanwhile, what it has left is done here."""
    begin = time.perf_counter()
    put()
    store.dispatch()
    return count / (time.perf_counter() - begin)


def _put_case(bench: Bench, rival: Rival, name: str, messages: Messages, aim: float) -> Case:
    """Every keyword, one by one. RocketMQ's side fills a map of properties and encodes it, as client and broker do."""
    count, size = messages.count, messages.record_size
    parts = [Messages(count // _THREADS, messages.body_size, n * (count // _THREADS)) for n in range(_THREADS)]

    def run() -> list[Sample]:
        with _theirs(bench, rival):
            java = rival.put_rate(count, messages.body_size, "keywords")
        with _ours(bench) as store:
            ours = _until_dispatched(store, count, lambda: _put_keywords(store, 0, messages))
        if name != "100 B":
            return [Sample(ours, java)]
        with _ours(bench) as store:
            shared = _until_dispatched(store, count, lambda: _put_threads(store, parts))
        return [Sample(ours, java), Sample(shared, ours)]

    lines = [line(f"put, keywords, {name}", aim, size=size)]
    if name == "100 B":
        lines.append(
            Line(f"same, {_THREADS} threads", limit="our 1 thread", target=Target(0.8, "ratio"), message_size=size)
        )
    return Case(lines, run)


def _put_keywords(store: MessageStore, queue_id: int, messages: Messages) -> None:
    put = store.queue(TOPIC, queue_id).put
    for body, tag, key, unique in zip(messages.bodies, messages.tags, messages.keys, messages.unique_keys, strict=True):
        put(body, tags=tag, keys=key, unique_key=unique, properties={"region": REGION, "version": VERSION})


def _put_threads(store: MessageStore, parts: Sequence[Messages]) -> None:
    threads = [threading.Thread(target=_put_keywords, args=(store, n, part)) for n, part in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _raw_case(bench: Bench, rival: Rival, messages: Messages) -> Case:
    """Properties come encoded on both sides."""

    def put(store: MessageStore) -> None:
        put_one = store.queue(TOPIC).put_raw
        for body, properties in zip(messages.bodies, messages.raw_properties, strict=True):
            put_one(body, properties)

    def run() -> list[Sample]:
        with _theirs(bench, rival):
            java = rival.put_rate(messages.count, messages.body_size, "raw")
        with _ours(bench) as store:
            ours = _until_dispatched(store, messages.count, lambda: put(store))
        return [Sample(ours, java)]

    return Case([line("put on a bound queue, raw properties, 100 B", 2, size=messages.record_size)], run)


def _list_case(bench: Bench, rival: Rival, messages: Messages) -> Case:
    """Lists and Arrow beside RocketMQ's client batch, which comes encoded: the client's work is not timed."""
    batch = messages.batch()

    def put(store: MessageStore) -> None:
        put_many = store.queue(TOPIC).put_many
        for first in range(0, messages.count, _LIST_SIZE):
            put_many(messages.bodies[first : first + _LIST_SIZE], messages.raw_properties[first : first + _LIST_SIZE])

    def run() -> list[Sample]:
        with _theirs(bench, rival):
            java = rival.put_rate(messages.count, messages.body_size, "batch")
        with _ours(bench) as store:
            lists = _until_dispatched(store, messages.count, lambda: put(store))
        with _ours(bench) as store:
            arrow = _until_dispatched(store, messages.count, lambda: store.append(batch, topic=TOPIC))
        return [Sample(lists, java), Sample(arrow, java)]

    size = messages.record_size
    return Case([line("list of 100, 100 B", 4, size=size), line("Arrow append, 100 B", size=size)], run)


# -- waiting for the disk --------------------------------------------------------------------------------------------


@contextmanager
def _both_sync(bench: Bench, rival: Rival) -> Iterator[MessageStore]:
    """Both stores open: the disk's mood changes within moments, so they take very short turns."""
    with (
        bench.folder("race-java") as java, rival.store(java, flushDiskType="SYNC_FLUSH"),
        bench.folder("race") as folder, stratalog.open(folder, flush="sync") as store,
    ):  # fmt: skip
        store.put(TOPIC, b"first")
        rival.put_rate(1, 100, "raw")
        yield store


def _sync_case(bench: Bench, rival: Rival) -> Case:
    messages = Messages(_SYNC_SLICE, 100)

    def run() -> list[Sample]:
        java_s = ours_s = bare_s = 0.0
        with _both_sync(bench, rival) as store, _bare_log(store.root) as append:
            put = store.queue(TOPIC).put_raw
            for _ in range(_SYNC_SLICES):
                java_s += rival.ask("put", count=_SYNC_SLICE, body=100, how="raw")["put"] / 1e9
                begin = time.perf_counter()
                for body, properties in zip(messages.bodies, messages.raw_properties, strict=True):
                    put(body, properties)
                ours_s += time.perf_counter() - begin
                begin = time.perf_counter()
                for _ in range(_SYNC_SLICE):
                    append(int(messages.record_size))
                bare_s += time.perf_counter() - begin
        count = _SYNC_SLICES * _SYNC_SLICE
        return [Sample(count / ours_s, count / java_s), Sample(count / bare_s, count / java_s)]

    size = messages.record_size
    lines = [
        line("durable put, 1 thread, 100 B", 1.2, size=size),
        line("as many bytes stored and fdatasync, no more", size=size),
    ]
    return Case(lines, run)


@contextmanager
def _bare_log(beside: Path) -> Iterator[Callable[[int], None]]:
    """What any log in a mapped file has to do for a durable put: a store of so many bytes, and fdatasync."""
    disk = Disk()
    path = beside / "bare"
    disk.allocate(path, 64 << 20)
    file, end = disk.map(path), 0

    def append(size: int) -> None:
        nonlocal end
        file.map[end : end + size] = bytes(size - 1) + b"."
        end += size
        file.sync()

    try:
        yield append
    finally:
        file.close()
        disk.remove(path)


def _in_flight_case(bench: Bench, rival: Rival) -> Case:
    count, slices = bench.count(60_000), 3
    messages = Messages(count, 100)

    def run() -> list[Sample]:
        java_s = ours_s = 0.0
        with _both_sync(bench, rival) as store:
            for _ in range(slices):
                answer = rival.ask("put", count=count, body=100, how="keywords", inFlight=_IN_FLIGHT)
                java_s += answer["put"] / 1e9
                begin = time.perf_counter()
                asyncio.run(_put_async(store, messages))
                ours_s += time.perf_counter() - begin
        return [Sample(slices * count / ours_s, slices * count / java_s)]

    return Case([line(f"durable put, {_IN_FLIGHT} in flight, keywords, 100 B", 0.6, size=messages.record_size)], run)


async def _put_async(store: MessageStore, messages: Messages) -> None:
    waiting = zip(messages.bodies, messages.tags, messages.keys, messages.unique_keys, strict=True)

    async def work() -> None:
        for body, tag, key, unique in waiting:
            await store.put_async(
                TOPIC, body, tags=tag, keys=key, unique_key=unique, properties={"region": REGION, "version": VERSION}
            )

    await asyncio.gather(*[work() for _ in range(_IN_FLIGHT)])
