"""Reading, beside RocketMQ: messages as objects and as Arrow, and by key."""

import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import stratalog
from bench.data import SEED, TOPIC, Messages, key_of
from bench.harness import Bench, Case, Line, Sample, Target
from bench.rival import NAME, Rival, rival_of
from stratalog.store.message_store import MessageStore

_BATCH = 32
"""Messages a call on RocketMQ's side: what its consumers ask for."""
_ARROW_ROWS = 4096
_COLUMNS = ("body", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "tags", "keys", "uniqueKey")
_LOOKUPS = 20_000
_MANY = 10_000
_WARM_UP_S = 5


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    with rival_of(bench) as rival, ExitStack() as opened:
        ours = opened.enter_context(bench.folder("read-ours")) / "store"
        theirs = opened.enter_context(bench.folder("read-java")) / "store"
        messages = Messages(bench.count(600_000), 100)
        with stratalog.open(ours) as store:
            store.append(messages.batch(), topic=TOPIC)
        shutil.copytree(ours, theirs)
        store = opened.enter_context(stratalog.open(ours, mode="r"))

        with rival.store(theirs):
            rival.warm_up(_WARM_UP_S, "get", batch=_BATCH)
            rival.warm_up(_WARM_UP_S, "query", keys=messages.count, count=_LOOKUPS, seed=SEED)

        def run() -> list[Sample]:
            with rival.store(theirs):
                java = _theirs(rival, messages.count)
                one = messages.count / _timed(lambda: _iterate(store))
                arrow = messages.count / _timed(lambda: _decode(store, messages.count))
                chosen = random.Random(SEED)
                keys = [key_of(chosen.randrange(messages.count)) for _ in range(_LOOKUPS)]
                java_p50 = rival.ask("query", keys=messages.count, count=_LOOKUPS, seed=SEED)
                p50 = _lookups(store, keys)
                java_many = rival.ask("query", keys=messages.count, count=_LOOKUPS, seed=SEED)
                many = sum(_many(store, keys[first : first + _MANY]) for first in range(0, _LOOKUPS, _MANY))
            return [
                Sample(one, java),
                Sample(arrow, java),
                Sample(p50, java_p50["p50"] / 1e9),
                Sample(_LOOKUPS / many, _LOOKUPS / (java_many["total"] / 1e9)),
            ]

        size = messages.record_size
        yield [
            Case(
                [
                    Line("iterate messages, 100 B", limit=NAME, target=Target(1, "ratio"), message_size=size),
                    Line("decode to Arrow, 8 columns, 100 B", limit=NAME, target=Target(3, "ratio"), message_size=size),
                    Line("key lookup, p50", "s", limit=NAME, target=Target(3, "ratio", at_most=True)),
                    Line(f"{_MANY:,} keys in one call", limit=NAME, target=Target(1, "ratio")),
                ],
                run,
            )
        ]


def _timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _theirs(rival: Rival, count: int) -> float:
    answer = rival.ask("get", batch=_BATCH)
    if answer["messages"] != count:
        raise RuntimeError(f"RocketMQ read {answer['messages']} of {count} messages")
    return count / (float(answer["elapsed"]) / 1e9)


def _iterate(store: MessageStore) -> None:
    for message in store.queue(TOPIC).read():
        message.body  # noqa: B018 - a reader looks at it


def _decode(store: MessageStore, count: int) -> None:
    queue = store.queue(TOPIC)
    for first in range(0, count, _ARROW_ROWS):
        queue.read_arrow(first, count=_ARROW_ROWS, columns=_COLUMNS)


def _lookups(store: MessageStore, keys: Sequence[str]) -> float:
    """Median seconds of a query; the right message comes back or the race ends."""
    times = []
    for key in keys:
        begin = time.perf_counter()
        hits = store.query(TOPIC, key=key)
        times.append(time.perf_counter() - begin)
        if [hit.keys for hit in hits] != [[key]]:
            raise RuntimeError(f"looking up {key!r} found {hits}")
    return statistics.median(times)


def _many(store: MessageStore, keys: Sequence[str]) -> float:
    begin = time.perf_counter()
    found = store.query_many(TOPIC, keys)
    took = time.perf_counter() - begin
    if not all(len(found[key]) == 1 for key in keys):
        raise RuntimeError("a key is not in the index once")
    return took
