"""Fixtures of the tier's tests: an empty tier in a directory, and local stores to fill it from."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stratalog
from stratalog.store.message_store import MessageStore
from stratalog.tiered import Manifest, PosixBackend

CLUSTER, BROKER = "DefaultCluster", "broker-a"
T0 = 1_000_000_000_000

MakeStore = Callable[..., MessageStore]


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[PosixBackend]:
    opened = PosixBackend(tmp_path / "tier")
    yield opened
    opened.close()


@pytest.fixture
def manifest(backend: PosixBackend) -> Manifest:
    return Manifest(backend, CLUSTER, BROKER)


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[MakeStore]:
    """Makes stores: message i of a queue has body `body-{i}`, keys `k{i % 7} common`, store time T0 + 10 i ms."""
    opened: list[MessageStore] = []

    def make(*queues: tuple[str, int], count: int = 100, body: bytes = b"body-%d") -> MessageStore:
        now_ms = T0
        store = stratalog.open(
            tmp_path / f"store-{len(opened)}",
            clock_ns=lambda: now_ms * 1_000_000,
            mapped_file_size_commit_log=1 << 20,
            max_hash_slot_num=100,
            max_index_num=10_000,
        )
        opened.append(store)
        for i in range(count):
            for topic, queue_id in queues:
                key = f"U-{topic}-{queue_id}-{i}"
                store.queue(topic, queue_id).put(body % i, keys=f"k{i % 7} common", unique_key=key, tags="TagA")
            now_ms += 10
        return store

    yield make
    for store in opened:
        store.close()
