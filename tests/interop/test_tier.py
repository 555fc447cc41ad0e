"""A tier that we began, opened by RocketMQ's tiered store: every message and every key is found, and it goes on."""

import time
from pathlib import Path
from typing import Any

import pytest

from interop.drafts import Draft, Reading, drafts, fill
from interop.rocketmq import RocketMQ, camel_case
from interop.views import Sizes, as_seen, java_settings, open_ours, random_sizes
from stratalog.layout.names import CONFIG
from stratalog.layout.properties import KEYS, UNIQUE_KEY
from stratalog.store.message_store import MessageStore
from stratalog.tiered import Manifest, PosixBackend, TieredStore
from stratalog.tiered import open as open_tier
from stratalog.tiered.compaction import compact
from stratalog.tiered.metadata import FILE_NAME, encode_metadata
from stratalog.tiered.state import TierState
from stratalog.tiered.writer import WriterSettings
from tiered.offload import offload

CLUSTER, BROKER = "DefaultCluster", "broker-a"
COUNT, MORE_COUNT = 700, 200
SLOT_COUNT, ITEM_CAPACITY = 100, 500
SEGMENTS = WriterSettings(commit_log_max_size=15_000, consume_queue_max_size=500)
QUERY_COUNT = 25


class Tier:
    """A local store of ours, and a tier of many small segments and index files that we copied it to."""

    def __init__(self, directory: Path, rocketmq: RocketMQ, sizes: Sizes) -> None:
        self.directory = directory / "tier"
        self.local = directory / "local"
        self.sizes = sizes
        self._rocketmq = rocketmq
        with open_ours(self.local, sizes, rocketmq) as store:
            self.count = put(store, drafts(9, COUNT))
            state = self._offload(store)
            assert sum(queue.end_queue_offset for queue in state.queues.values()) == self.count
        metadata = encode_metadata(state, now_ms=time.time_ns() // 1_000_000, release=rocketmq.compatibility)
        self.metadata.parent.mkdir()
        self.metadata.write_text(metadata)

    @property
    def metadata(self) -> Path:
        return self.local / CONFIG / FILE_NAME

    def _offload(self, store: MessageStore) -> TierState:
        backend = PosixBackend(self.directory)
        manifest = Manifest(backend, CLUSTER, BROKER)
        offload(store, backend, manifest, settings=SEGMENTS, count=20)
        state = compact(backend, manifest, manifest.load(), slot_count=SLOT_COUNT, item_capacity=ITEM_CAPACITY)
        backend.close()
        assert len(state.index_segments) > 2
        assert max(len(queue.commit_log) for queue in state.queues.values()) > 1
        assert max(len(queue.consume_queue) for queue in state.queues.values()) > 1
        return state

    def open_in_java(self, local: Path) -> None:
        settings = {
            "tiered_store_index_file_max_hash_slot_num": SLOT_COUNT,
            "tiered_store_index_file_max_index_num": ITEM_CAPACITY,
            "tiered_store_commit_log_max_size": SEGMENTS.commit_log_max_size,
            "tiered_store_consume_queue_max_size": SEGMENTS.consume_queue_max_size,
        }
        opened = self._rocketmq.ask(
            "tier_open",
            directory=str(local),
            tier=str(self.directory),
            cluster=CLUSTER,
            broker=BROKER,
            settings=camel_case(settings),
            local_settings=java_settings(self.sizes),
        )
        assert opened["loaded"]


@pytest.fixture
def tier(rocketmq: RocketMQ, tmp_path: Path) -> Tier:
    return Tier(tmp_path, rocketmq, random_sizes(f"{rocketmq.release} tier"))


def put(store: MessageStore, messages: list[Draft]) -> int:
    return sum(1 for _ in fill(store, messages, COUNT))


def our_reading(tier: TieredStore) -> Reading:
    return {key: [as_seen(message) for message in tier.queue(*key).read()] for key in tier.queues()}


def java_reading(rocketmq: RocketMQ) -> Reading:
    queues = rocketmq.ask("tier_read")["queues"]
    return {(queue["topic"], queue["queue_id"]): queue["messages"] for queue in queues}


def messages_by_key(reading: Reading) -> dict[tuple[str, str], list[dict[str, Any]]]:
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (topic, _), messages in reading.items():
        for message in messages:
            properties = message["properties"]
            for key in {*properties.get(KEYS, "").split(), properties.get(UNIQUE_KEY, "")} - {""}:
                found.setdefault((topic, key), []).append(message)
    return found


def test_a_tier_that_we_wrote_is_read_and_searched_by_rocketmq(rocketmq: RocketMQ, tier: Tier, tmp_path: Path) -> None:
    with open_tier(tier.directory) as opened:
        ours = our_reading(opened)
    alone = tmp_path / "alone"  # no local store: the tier has to answer
    (alone / CONFIG).mkdir(parents=True)
    (alone / CONFIG / FILE_NAME).write_text(tier.metadata.read_text())
    tier.open_in_java(alone)
    assert java_reading(rocketmq) == ours
    by_key = messages_by_key(ours)
    for (topic, key), messages in by_key.items():
        hits = rocketmq.ask("tier_find", topic=topic, key=key)["hits"]
        expected = [[message["queue_id"], message["commit_log_offset"]] for message in messages]
        assert sorted(hits) == sorted(expected), (topic, key)
    # Through RocketMQ's own query where one message answers: reading several at once it now and then mixes them up.
    single = [(key, messages[0]) for key, messages in by_key.items() if len(messages) == 1]
    assert len(single) > QUERY_COUNT
    for (topic, key), message in single[:QUERY_COUNT]:
        assert rocketmq.ask("tier_query", topic=topic, key=key)["messages"] == [message]
    rocketmq.ask("tier_close")


def test_rocketmq_goes_on_with_a_tier_that_we_began(rocketmq: RocketMQ, tier: Tier) -> None:
    """A broker takes over store and tier, copies what came since, and we read what both have written."""
    with open_tier(tier.directory) as opened:
        before = our_reading(opened)
    # RocketMQ never gets past a message without properties when it copies; its own brokers always add some.
    more = [draft for draft in drafts(10, MORE_COUNT) if draft.properties]
    with open_ours(tier.local, tier.sizes, rocketmq) as store:
        count = tier.count + put(store, more)
        bodies = {key: [as_seen(message)["body"] for message in store.queue(*key).read()] for key in store.queues()}
    tier.open_in_java(tier.local)
    rocketmq.ask("tier_copy")
    theirs = java_reading(rocketmq)
    rocketmq.ask("tier_close")
    with open_tier(tier.directory, cluster=CLUSTER, broker=BROKER, metadata=tier.metadata) as opened:
        ours = our_reading(opened)
        for (topic, key), messages in messages_by_key(ours).items():
            found = opened.query(topic, key=key, limit=count)
            assert sorted(as_seen(message)["message_id"] for message in found) == sorted(
                message["message_id"] for message in messages
            ), (topic, key)
    assert ours == theirs
    assert {key: messages[: len(before[key])] for key, messages in ours.items()} == before
    assert {key: [message["body"] for message in messages] for key, messages in ours.items()} == bodies
    assert sum(map(len, bodies.values())) == count
