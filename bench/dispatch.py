"""Queues and index derived from a log that nobody has dispatched yet."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench import limits
from bench.data import TOPIC, Messages
from bench.harness import Bench, Case, Line, Sample, Target, seconds
from bench.stores import open_quiet

_QUEUES = 16


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    """A backlog of messages in 16 queues; the store's own dispatch thread is kept waiting."""
    messages = Messages(bench.count(600_000), 100)
    batch = messages.batch(queue_count=_QUEUES)
    size = messages.record_size

    def run() -> list[Sample]:
        with bench.folder("dispatch") as folder, open_quiet(folder / "store") as store:
            store.append(batch, topic=TOPIC)
            limit = limits.reading(store.log.files[0].view[: store.log.end_offset]) / size
            written_s = seconds(store.dispatch)
            durable_s = written_s + seconds(store.close)
            write = limits.sequential_write(folder / "limit", int(messages.count * size)) / size
        return [Sample(messages.count / written_s, limit), Sample(messages.count / durable_s, write)]

    path = f"backlog into {_QUEUES} queues and index (3 keys), 100 B"
    lines = [
        Line(path, limit="read", target=Target(3e6), message_size=size),
        Line("same, until log, queues and index are durable", limit="write + fdatasync", message_size=size),
    ]
    yield [Case(lines, run)]
