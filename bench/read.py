"""Reading what a store holds: walking with checksums, verifying, iterating, decoding to Arrow."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

import stratalog
from bench import limits
from bench.data import TOPIC, Messages
from bench.harness import Bench, Case, Line, Sample, Target, seconds
from bench.stores import UnsyncedDisk, open_quiet
from stratalog.kernels.scan import VERIFY, scan
from stratalog.store.message_store import MessageStore
from stratalog.tools.verify import verify

_CHUNK_RECORDS = 1 << 16
_SCANNED_SIZE = 1 << 30
"""Bytes of the log that is walked: what recovery meets, and more than processors keep in their caches."""
_ARROW_ROWS = 4096
_ITERATED = 150_000
_COLUMNS = ("body", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "tags", "keys", "uniqueKey")


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    with ExitStack() as opened:
        cases: list[Case] = []
        for body_size, count, name in ((100, 600_000, "100 B"), (1024, 160_000, "1 KB")):
            messages = Messages(bench.count(count), body_size)
            folder = opened.enter_context(bench.folder(f"read-{body_size}"))
            fill(folder, messages)
            store = opened.enter_context(stratalog.open(folder, mode="r"))
            cases += _cases(store, messages, name)
            folder = opened.enter_context(bench.folder(f"scan-{body_size}"))
            cases.insert(0, _scan_case(opened.enter_context(_long_log(folder, messages)), messages, name))
        yield cases


@contextmanager
def _long_log(folder: Path, messages: Messages) -> Iterator[MessageStore]:
    """A log of 1 GiB in one file, never synced and without queues or index."""
    disk = UnsyncedDisk(touched=False)
    with open_quiet(
        folder, disk=disk, mapped_file_size_commit_log=_SCANNED_SIZE, message_index_enable=False
    ) as store:  # fmt: skip
        batch = messages.batch()
        while store.log.end_offset < _SCANNED_SIZE - 2 * messages.count * messages.record_size:
            store.append(batch, topic=TOPIC)
        yield store


def _scan_case(store: MessageStore, messages: Messages, name: str) -> Case:
    def run() -> list[Sample]:
        view = store.log.files[0].view[: store.log.end_offset]
        return [Sample(store.log.end_offset / seconds(lambda: _scan(store)), limits.reading(view))]

    target = Target(0.55, "ratio") if messages.body_size > 100 else None
    return Case([Line(f"scan with CRC, one thread, {name}", "B/s", limit="read", target=target)], run)


def fill(folder: Path, messages: Messages) -> None:
    """A store that was filled and closed: one queue, index included."""
    with open_quiet(folder, mapped_file_size_commit_log=_log_size(messages)) as store:
        store.append(messages.batch(), topic=TOPIC)


def _log_size(messages: Messages) -> int:
    return -(-int(messages.count * (messages.record_size + 8)) // (1 << 20)) << 20


def _cases(store: MessageStore, messages: Messages, name: str) -> list[Case]:
    small = messages.body_size == 100
    size = messages.record_size
    iterated = min(messages.count, _ITERATED)

    def line(path: str, limit: str, target: Target | None = None) -> list[Line]:
        return [Line(f"{path}, {name}", limit=limit, target=target, message_size=size)]

    def read_limit() -> float:
        return limits.reading(store.log.files[0].view[: store.log.end_offset]) / size

    def copy_limit() -> float:
        return limits.memcpy() / size

    def check() -> list[Sample]:
        return [Sample(messages.count / seconds(lambda: verify(store)), read_limit())]

    def iterate() -> list[Sample]:
        return [Sample(iterated / seconds(lambda: _iterate(store, iterated)), copy_limit())]

    def decode() -> list[Sample]:
        return [Sample(messages.count / seconds(lambda: _decode(store, messages.count)), copy_limit())]

    return [
        Case(line("verify log, queue and index", "read"), check),
        Case(line("iterate messages", "memcpy", Target(1.3e6) if small else None), iterate),
        Case(line("decode to Arrow, 8 columns", "memcpy", Target(4.5e6) if small else None), decode),
    ]


def _scan(store: MessageStore) -> None:
    positions, sizes = np.empty(_CHUNK_RECORDS, np.int64), np.empty(_CHUNK_RECORDS, np.int32)
    file = store.log.files[0]
    position, count = 0, 1
    while count:
        count, position, _ = scan(file.address, position, file.size, 0, VERIFY, positions, sizes)


def _iterate(store: MessageStore, count: int) -> None:
    for message in store.queue(TOPIC).read(count=count):
        message.body  # noqa: B018 - decoded already; a reader would look at it here


def _decode(store: MessageStore, count: int) -> None:
    queue = store.queue(TOPIC)
    for first in range(0, count, _ARROW_ROWS):
        queue.read_arrow(first, count=_ARROW_ROWS, columns=_COLUMNS)
