"""A tier that we wrote, opened by RocketMQ's tiered store: every message and every key is found."""

import time
from pathlib import Path
from typing import Any

from interop.drafts import Reading, drafts, fill
from interop.rocketmq import RocketMQ
from interop.views import as_seen, open_ours, random_sizes
from stratalog.layout.names import CONFIG
from stratalog.layout.properties import KEYS, UNIQUE_KEY
from stratalog.tiered import Manifest, PosixBackend, TieredStore
from stratalog.tiered import open as open_tier
from stratalog.tiered.compaction import compact
from stratalog.tiered.metadata import FILE_NAME, encode_metadata
from stratalog.tiered.writer import WriterSettings
from tiered.offload import offload

CLUSTER, BROKER = "DefaultCluster", "broker-a"
COUNT = 700
SLOT_COUNT, ITEM_CAPACITY = 100, 500
SEGMENTS = WriterSettings(commit_log_max_size=15_000, consume_queue_max_size=500)
QUERIES = 25


def write_tier(directory: Path, rocketmq: RocketMQ) -> tuple[Path, Path]:
    """A tier of many small segments and index files, and the configuration with which a broker opens it."""
    tier, local = directory / "tier", directory / "java"
    backend = PosixBackend(tier)
    manifest = Manifest(backend, CLUSTER, BROKER)
    with open_ours(directory / "ours", random_sizes(f"{rocketmq.release} tier"), rocketmq) as store:
        put_count = sum(1 for _ in fill(store, drafts(9, COUNT), 9))
        offload(store, backend, manifest, settings=SEGMENTS, count=20)
    state = compact(backend, manifest, manifest.load(), slot_count=SLOT_COUNT, item_capacity=ITEM_CAPACITY)
    backend.close()
    assert sum(queue.end_queue_offset for queue in state.queues.values()) == put_count
    assert len(state.index_segments) > 2
    assert max(len(queue.commit_log) for queue in state.queues.values()) > 1
    assert max(len(queue.consume_queue) for queue in state.queues.values()) > 1
    metadata = encode_metadata(state, now_ms=time.time_ns() // 1_000_000, release=rocketmq.compatibility)
    (local / CONFIG).mkdir(parents=True)
    (local / CONFIG / FILE_NAME).write_text(metadata)
    return tier, local


def open_in_java(rocketmq: RocketMQ, tier: Path, local: Path) -> None:
    opened = rocketmq.ask(
        "tier_open",
        directory=str(local),
        tier=str(tier),
        cluster=CLUSTER,
        broker=BROKER,
        settings={
            "tieredStoreIndexFileMaxHashSlotNum": SLOT_COUNT,
            "tieredStoreIndexFileMaxIndexNum": ITEM_CAPACITY,
            "tieredStoreCommitLogMaxSize": SEGMENTS.commit_log_max_size,
            "tieredStoreConsumeQueueMaxSize": SEGMENTS.consume_queue_max_size,
        },
    )
    assert opened["loaded"]


def our_tier_reading(tier: TieredStore) -> Reading:
    return {key: [as_seen(message) for message in tier.queue(*key).read()] for key in tier.queues()}


def keys_of(message: dict[str, Any]) -> set[str]:
    properties = message["properties"]
    return {*properties.get(KEYS, "").split(), properties.get(UNIQUE_KEY, "")} - {""}


def test_a_tier_that_we_wrote_is_read_and_searched_by_rocketmq(rocketmq: RocketMQ, tmp_path: Path) -> None:
    tier, local = write_tier(tmp_path, rocketmq)
    with open_tier(tier) as opened:
        ours = our_tier_reading(opened)
    open_in_java(rocketmq, tier, local)
    queues = rocketmq.ask("tier_read")["queues"]
    theirs = {(queue["topic"], queue["queue_id"]): queue["messages"] for queue in queues}
    assert theirs == ours
    check_keys(rocketmq, ours)
    rocketmq.ask("tier_close")


def check_keys(rocketmq: RocketMQ, reading: Reading) -> None:
    by_key: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for (topic, _), messages in reading.items():
        for message in messages:
            for key in keys_of(message):
                by_key.setdefault((topic, key), []).append(message)
    for (topic, key), messages in by_key.items():
        hits = rocketmq.ask("tier_find", topic=topic, key=key)["hits"]
        expected = [[message["queue_id"], message["commit_log_offset"]] for message in messages]
        assert sorted(hits) == sorted(expected), (topic, key)
    # Through RocketMQ's own query where one message answers: reading several at once it now and then mixes them up.
    single = [(key, messages[0]) for key, messages in by_key.items() if len(messages) == 1]
    assert len(single) > QUERIES
    for (topic, key), message in single[:QUERIES]:
        assert rocketmq.ask("tier_query", topic=topic, key=key)["messages"] == [message]
