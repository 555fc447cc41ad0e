"""What a Python user would pick instead, on the same disk: put and read 100 B messages, nothing waits for the disk."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import lmdb
from litequeue import LiteQueue  # type: ignore[import-untyped]
from persistqueue import Queue as PersistQueue

from bench.data import Messages
from bench.harness import Bench, Case, Line, Sample, seconds

_LIST_SIZE = 100
_LMDB_SIZE = 1 << 30

Round = Callable[[Path, list[bytes]], list[float]]
"""Does its puts and reads in a folder; returns messages per second of each, in the order of its lines."""


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    def case(name: str, lines: Sequence[str], work: Round, count: int) -> Case:
        bodies = Messages(bench.count(count), 100).bodies

        def run() -> list[Sample]:
            with bench.folder("others") as folder:
                return [Sample(rate) for rate in work(folder, bodies)]

        return Case([Line(f"{name}: {line}") for line in lines], run)

    three = ("put", "list of 100", "iterate")
    yield [
        case("lmdb, unsynced", three, _lmdb, 60_000),
        case("sqlite3, WAL, synchronous off", three, _sqlite, 20_000),
        case("litequeue, synchronous off", ("put", "pop"), _litequeue, 1_500),
        case("persist-queue, file queue", ("put", "get"), _persist_queue, 800),
    ]


def _rate(bodies: list[bytes], work: Callable[[], object]) -> float:
    return len(bodies) / seconds(work)


def _lmdb(folder: Path, bodies: list[bytes]) -> list[float]:
    with lmdb.open(str(folder), map_size=_LMDB_SIZE, sync=False, metasync=False, writemap=True) as environment:

        def put(first: int, part: list[bytes]) -> None:
            with environment.begin(write=True) as transaction:
                for number, body in enumerate(part, first):
                    transaction.put(number.to_bytes(8, "big"), body, append=True)

        def single() -> None:
            for number, body in enumerate(bodies):
                put(number, [body])

        def lists() -> None:
            for first in range(0, len(bodies), _LIST_SIZE):
                put(len(bodies) + first, bodies[first : first + _LIST_SIZE])

        def iterate() -> None:
            with environment.begin() as transaction:
                for _, _body in transaction.cursor():
                    pass

        return [_rate(bodies, single), _rate(bodies, lists), _rate(2 * bodies, iterate)]


def _sqlite(folder: Path, bodies: list[bytes]) -> list[float]:
    with closing(sqlite3.connect(folder / "queue.db", isolation_level=None)) as database:
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=OFF",
                          "CREATE TABLE messages (number INTEGER PRIMARY KEY, body BLOB)"):  # fmt: skip
            database.execute(statement)
        insert = "INSERT INTO messages (body) VALUES (?)"

        def single() -> None:
            for body in bodies:
                database.execute(insert, (body,))

        def lists() -> None:
            for first in range(0, len(bodies), _LIST_SIZE):
                database.execute("BEGIN")
                database.executemany(insert, [(body,) for body in bodies[first : first + _LIST_SIZE]])
                database.execute("COMMIT")

        def iterate() -> None:
            for _number, _body in database.execute("SELECT number, body FROM messages ORDER BY number"):
                pass

        return [_rate(bodies, single), _rate(bodies, lists), _rate(2 * bodies, iterate)]


def _litequeue(folder: Path, bodies: list[bytes]) -> list[float]:
    queue: Any = LiteQueue(str(folder / "queue.db"))
    queue.conn.execute("PRAGMA synchronous=OFF")
    texts = [body.hex()[: len(body)] for body in bodies]  # it stores text

    def put() -> None:
        for text in texts:
            queue.put(text)

    def pop() -> None:
        for _ in texts:
            queue.done(queue.pop().message_id)

    try:
        return [_rate(bodies, put), _rate(bodies, pop)]
    finally:
        queue.conn.close()


def _persist_queue(folder: Path, bodies: list[bytes]) -> list[float]:
    queue: Any = PersistQueue(str(folder))

    def put() -> None:
        for body in bodies:
            queue.put(body)

    def get() -> None:
        for _ in bodies:
            queue.get()
            queue.task_done()

    return [_rate(bodies, put), _rate(bodies, get)]
