"""Putting without waiting for the disk: one by one, in lists, as Arrow batches; 100 B and 1 KB bodies."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

import stratalog
from bench import limits
from bench.data import REGION, TOPIC, VERSION, Messages
from bench.harness import Bench, Case, Line, Sample, Target, seconds
from bench.stores import UnsyncedDisk, open_quiet
from stratalog.store.message_store import MessageStore

_MIB = 1 << 20
_LIST_SIZE = 100

Put = Callable[[MessageStore], object]


def put_keywords(messages: Messages) -> Put:
    """`store.put` with every keyword, the way most code is written."""

    def put(store: MessageStore) -> None:
        for body, tag, key, unique in zip(
            messages.bodies, messages.tags, messages.keys, messages.unique_keys, strict=True
        ):
            store.put(
                TOPIC, body, tags=tag, keys=key, unique_key=unique, properties={"region": REGION, "version": VERSION}
            )

    return put


def put_bound(messages: Messages) -> Put:
    """`queue.put` with every keyword: the queue is looked up once."""

    def put(store: MessageStore) -> None:
        put_one = store.queue(TOPIC).put
        for body, tag, key, unique in zip(
            messages.bodies, messages.tags, messages.keys, messages.unique_keys, strict=True
        ):
            put_one(body, tags=tag, keys=key, unique_key=unique, properties={"region": REGION, "version": VERSION})

    return put


def put_raw(messages: Messages) -> Put:
    """`queue.put_raw`: properties come encoded."""

    def put(store: MessageStore) -> None:
        put_one = store.queue(TOPIC).put_raw
        for body, properties in zip(messages.bodies, messages.raw_properties, strict=True):
            put_one(body, properties)

    return put


def put_lists(messages: Messages) -> Put:
    """`queue.put_many`, 100 messages a call."""

    def put(store: MessageStore) -> None:
        put_many = store.queue(TOPIC).put_many
        for first in range(0, messages.count, _LIST_SIZE):
            last = first + _LIST_SIZE
            put_many(messages.bodies[first:last], messages.raw_properties[first:last])

    return put


def append(batch: pa.RecordBatch, times: int) -> Put:
    """`store.append` of a large batch, several times over."""

    def put(store: MessageStore) -> None:
        for _ in range(times):
            store.append(batch, topic=TOPIC)

    return put


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    small, large = Messages(bench.count(80_000), 100), Messages(bench.count(60_000), 1024)
    rows_small, rows_large = Messages(bench.count(200_000), 100), Messages(bench.count(200_000), 1024)
    batch_small, batch_large = rows_small.batch(), rows_large.batch()
    copies = 4
    put_small, put_large = append(batch_small, copies), append(batch_large, 1)
    yield [
        _case(bench, "put, keywords, 100 B", small, put_keywords(small), Target(0.5e6)),
        _case(bench, "put, keywords, 1 KB", large, put_keywords(large)),
        _case(bench, "put on a bound queue, keywords, 100 B", small, put_bound(small)),
        _case(bench, "put on a bound queue, raw properties, 100 B", small, put_raw(small), Target(0.9e6)),
        _case(bench, "put on a bound queue, raw properties, 1 KB", large, put_raw(large)),
        _case(bench, "list of 100, 100 B", small, put_lists(small), Target(3e6)),
        _case(bench, "Arrow append, 100 B", rows_small, put_small, Target(8e6), copies=copies),
        _case(bench, "Arrow append, 1 KB", rows_large, put_large, Target(0.33, "ratio")),
        _case(bench, "same, fresh pages: raw properties, 100 B", small, put_raw(small), fresh=True),
        _case(bench, "same, fresh pages: raw properties, 1 KB", large, put_raw(large), fresh=True),
        _case(bench, "same, fresh pages: Arrow, 100 B", rows_small, put_small, copies=copies, fresh=True),
        _case(bench, "same, fresh pages: Arrow, 1 KB", rows_large, put_large, fresh=True),
        _sustained(bench, Messages(bench.count(500_000), 100)),
    ]  # fmt: skip


def _case(
    bench: Bench, path: str, messages: Messages, put: Put, target: Target | None = None, *, copies: int = 1,
    fresh: bool = False,
) -> Case:  # fmt: skip
    """Puts into a new store. Its pages have been touched, so that memcpy is the limit; or they are `fresh`."""
    count = copies * messages.count
    size = -(-int(count * (messages.record_size + 8)) // _MIB + 1) * _MIB

    def run() -> list[Sample]:
        with bench.folder("put") as folder:
            limit = limits.fresh_pages(folder / "limit", size) if fresh else limits.memcpy()
            disk = UnsyncedDisk(touched=not fresh)
            with open_quiet(
                folder / "store", disk=disk, mapped_file_size_commit_log=size, message_index_enable=False
            ) as store:
                store.append(_FIRST, topic=TOPIC)
                rate = count / seconds(lambda: put(store))
        return [Sample(rate, limit / messages.record_size)]

    limit = "memcpy to fresh pages" if fresh else "memcpy"
    return Case([Line(path, limit=limit, target=target, message_size=messages.record_size)], run)


_FIRST = Messages(1, 100).batch()
"""Put before the clock starts: it makes the log's file."""


def _sustained(bench: Bench, messages: Messages) -> Case:
    """A store as it is by default: fresh pages, flushed and dispatched in the background while puts go on."""

    def run() -> list[Sample]:
        with bench.folder("put") as folder:
            limit = limits.sequential_write(folder / "limit", int(messages.count * messages.record_size))
            with stratalog.open(folder / "store") as store:
                store.append(_FIRST, topic=TOPIC)
                rate = messages.count / seconds(lambda: put_raw(messages)(store))
        return [Sample(rate, limit / messages.record_size)]

    return Case(
        [Line("same, as opened by default: background flush and dispatch", limit="write + fdatasync",
              message_size=messages.record_size)], run,
    )  # fmt: skip
