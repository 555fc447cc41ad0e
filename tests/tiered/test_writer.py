"""What the writer makes is what RocketMQ makes: the same bytes in the same segments, the same keys in the index."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stratalog
from golden.cases import GoldenCase, golden_case
from stratalog import tiered
from stratalog.errors import ConfigurationError, CorruptData
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.tier import COMPACTED_ITEM, INDEX_HEADER
from stratalog.store.message_store import MessageStore
from stratalog.tiered import Manifest, PosixBackend, TierState
from stratalog.tiered.compaction import compact
from stratalog.tiered.index import keys_of, read_run
from stratalog.tiered.state import ManifestEntry, QueueName, Segment
from stratalog.tiered.writer import TierWriter, WriterSettings
from tiered.conftest import T0, MakeStore
from tiered.offload import entry_for, offload

COPIED = (
    "plain-5.5.0",
    "segments-5.5.0",
    "index-closed-5.5.0",
    "names-5.5.0",
    "times-5.5.0",
    "index-edge-closed-5.5.0",
)


def settings_of(case: GoldenCase) -> WriterSettings:
    config = case.about["config"]
    return WriterSettings(
        commit_log_max_size=config.get("tieredStoreCommitLogMaxSize", 1 << 30),
        consume_queue_max_size=config.get("tieredStoreConsumeQueueMaxSize", 100 << 20),
    )


def copied(case: GoldenCase, tmp_path: Path, **options: Any) -> tuple[PosixBackend, Manifest, TierState]:
    backend = PosixBackend(tmp_path / "ours")
    manifest = Manifest(backend, **case.about["identity"])
    with stratalog.open(case.unpack_store(tmp_path), mode="r") as store:
        state = offload(store, backend, manifest, settings=settings_of(case), **options)
    return backend, manifest, state


def data_files(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if "/INDEX/" not in path and "/_stratalog/" not in path}


@pytest.mark.parametrize(
    ("name", "count"),
    [("segments-5.5.0", 1), *((name, 17) for name in COPIED), *((name, 1 << 30) for name in COPIED)],
)
def test_segments_are_byte_for_byte_rocketmqs_however_they_are_batched(name: str, count: int, tmp_path: Path) -> None:
    case = golden_case(f"tiered/{name}")
    backend, _, state = copied(case, tmp_path, count=count)
    ours = {path: (tmp_path / "ours" / path).read_bytes() for path in backend.list("")}
    assert data_files(ours) == data_files(dict(case.tier_files()))
    expected = {(line["topic"], line["queueId"]): line for line in case.expected("queue")}
    for (topic, queue_id), queue in state.queues.items():
        assert queue.end_queue_offset == expected[topic, queue_id]["commitOffset"]


@pytest.mark.parametrize("name", ["plain-5.5.0", "segments-5.5.0", "times-5.5.0"])
def test_times_of_segments_are_rocketmqs(name: str, tmp_path: Path) -> None:
    case = golden_case(f"tiered/{name}")
    _, _, state = copied(case, tmp_path, count=17)
    lines = {
        (line["path"], line["type"], line["baseOffset"]): (line["size"], line["beginTimestamp"], line["endTimestamp"])
        for line in case.expected("segment")
        if line["type"] != "INDEX"
    }
    found = {}
    for (topic, queue_id), queue in state.queues.items():
        for kind, segments in (("COMMIT_LOG", queue.commit_log), ("CONSUME_QUEUE", queue.consume_queue)):
            for segment in segments:
                key = (f"{state.broker}/{topic}/{queue_id}", kind, segment.base_offset)
                found[key] = (segment.size, segment.begin_timestamp, segment.end_timestamp)
    assert found == lines


@pytest.mark.parametrize("name", ["plain-5.5.0", "segments-5.5.0", "index-closed-5.5.0", "index-edge-closed-5.5.0"])
def test_the_index_holds_the_items_that_rocketmq_holds(name: str, tmp_path: Path) -> None:
    case = golden_case(f"tiered/{name}")
    backend, _, state = copied(case, tmp_path, count=50)
    ids = {line["topicId"]: line["topic"] for line in case.expected("topic")}
    ours = {topic.topic_id: name for name, topic in state.topics.items()}
    found = {
        (item["key_hash"], ours[int(item["topic_id"])], *item.tolist()[2:5])
        for run in state.index_runs
        for item in read_run(backend, run)
    }
    theirs = set()
    for path, data in case.tier_files():
        if "/INDEX/" in path:
            count = INDEX_HEADER.unpack(data).item_count
            for item in np.frombuffer(data, COMPACTED_ITEM.dtype, count, len(data) - count * COMPACTED_ITEM.size):
                key_hash = index_key_hash(int(item["key_hash"]))  # they keep the smallest int as it is
                theirs.add((key_hash, ids[int(item["topic_id"])], *item.tolist()[2:5]))
    assert found == theirs


def test_a_compacted_index_answers_what_the_runs_answered(tmp_path: Path) -> None:
    case = golden_case("tiered/index-closed-5.5.0")
    backend, manifest, state = copied(case, tmp_path, count=20)
    questions = [
        {"topic": line["topic"], "key": line["key"], "begin": line["begin"], "end": line["end"], "limit": 10_000}
        for line in case.expected("query")
    ]

    def answers() -> list[list[tuple[int, int]]]:
        with tiered.open(tmp_path / "ours") as tier:
            return [[(hit.queue_id, hit.queue_offset) for hit in tier.query(**each)] for each in questions]

    before = answers()
    assert sum(map(len, before)) > 100
    compacted = compact(backend, manifest, state, slot_count=40, item_capacity=75)
    assert len(compacted.index_segments) == 7
    assert not compacted.index_runs
    assert answers() == before
    assert compact(backend, manifest, compacted) is compacted


def test_a_compaction_done_again_writes_the_same_files(
    backend: PosixBackend, manifest: Manifest, make_store: MakeStore
) -> None:
    state = offload(make_store(("orders", 0), ("orders", 1)), backend, manifest, count=30)

    class NeverCommits(Manifest):
        def commit(self, *_: object) -> TierState:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(
            backend, NeverCommits(backend, manifest.cluster, manifest.broker), state, slot_count=10, item_capacity=90
        )
    orphans = backend.list(manifest.directory.replace("_stratalog", "rmq_sys_INDEX"))
    done = compact(backend, manifest, state, slot_count=10, item_capacity=90)
    assert sorted(done.index_path(segment) for segment in done.index_segments) == orphans
    items = [segment.item_count for segment in done.index_segments]
    assert sum(items) == 2 * 100 * 3
    assert max(items) == 87, "89 items fit, but a message has three keys"


def test_a_message_larger_than_a_segment_gets_one_of_its_own(
    backend: PosixBackend, manifest: Manifest, make_store: MakeStore
) -> None:
    store = make_store(("orders", 0), count=3)
    store.queue("orders", 0).put(b"x" * 5000)
    store.queue("orders", 0).put(b"after")
    state = offload(store, backend, manifest, settings=WriterSettings(commit_log_max_size=1000, buffer_size=600))
    sizes = [segment.size for segment in state.queues[QueueName("orders", 0)].commit_log]
    assert len(sizes) == 3
    assert sizes[1] > 5000
    assert sizes[0] <= 1000
    with tiered.open(backend.root) as tier:
        assert [len(message.body) for message in tier.queue("orders", 0).read()] == [6, 6, 6, 5000, 5]


def test_a_damaged_record_never_enters_the_tier(
    backend: PosixBackend, manifest: Manifest, make_store: MakeStore
) -> None:
    store = make_store(("orders", 0), count=10)
    message = next(store.queue("orders", 0).read(6))
    mapping, position = store.log.file_at(message.commit_log_offset)
    mapping.map[position + message.store_size - 100] ^= 1
    body = bytes(mapping.map[position + 88 : position + 94])
    mapping.map[position + 88 : position + 94] = b"rotten"
    with pytest.raises(CorruptData, match="queue offset 6"):
        offload(store, backend, manifest)
    assert body == b"body-6"
    assert manifest.load().queues == {}


def test_a_gap_in_the_local_queue_is_recorded_and_older_history_stays(
    backend: PosixBackend, manifest: Manifest, make_store: MakeStore
) -> None:
    store = make_store(("orders", 0), count=100)
    state = manifest.commit(entry_for(store, backend, manifest.load(), count=40), manifest.load())
    queue = store.queue("orders", 0)
    writer = TierWriter(backend, state)
    writer.append("orders", 0, queue.units(70, 30), window=store.log.window(), first_queue_offset=70, topic_id=0)
    with pytest.raises(ConfigurationError, match="gap"):
        writer.append("orders", 0, queue.units(1, 1), window=store.log.window(), first_queue_offset=200, topic_id=0)
    batch = writer.finish()
    assert batch.queues[0].skipped == 30
    state = manifest.commit(ManifestEntry(queues=batch.queues, index_runs=batch.index_runs), state)
    assert manifest.load() == state
    with tiered.open(backend.root) as tier:
        reader = tier.queue("orders", 0)
        assert [message.queue_offset for message in reader.read()] == [*range(40), *range(70, 100)]
        assert [message.queue_offset for message in reader.read(38, count=4)] == [38, 39, 70, 71]
        assert reader.get(50).next_offset == 70
        assert reader.offset_at(T0 + 500) == 70
        assert reader.offset_at(T0 + 390) == 39


def test_messages_that_are_in_the_tier_are_passed_over(
    backend: PosixBackend, manifest: Manifest, make_store: MakeStore
) -> None:
    store = make_store(("orders", 0), count=50)
    state = manifest.commit(entry_for(store, backend, manifest.load(), count=30), manifest.load())
    writer = TierWriter(backend, state)
    units = store.queue("orders", 0).units(0, 50)
    assert writer.append("orders", 0, units, window=store.log.window(), first_queue_offset=0, topic_id=0) == 20
    batch = writer.finish()
    assert (batch.queues[0].from_queue_offset, batch.queues[0].to_queue_offset) == (30, 50)


@settings(max_examples=8, deadline=None)
@given(
    keys=st.lists(st.text(alphabet="ab é中😀", max_size=12), min_size=30, max_size=60),
    unique=st.lists(st.sampled_from(["", "U1", " ", "é", "a"]), min_size=30, max_size=60),
)
def test_index_keys_are_those_of_a_walk_over_the_messages(
    keys: list[str], unique: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    with stratalog.open(folder / "store", mapped_file_size_commit_log=1 << 16, message_index_enable=False) as store:
        queue = store.queue("t", 3)
        for text, one in zip(keys, unique, strict=False):
            queue.put_raw(b"x", f"KEYS\x01{text}\x02UNIQ_KEY\x01{one}\x02".encode())
        backend = PosixBackend(folder / "tier")
        state = offload(store, backend, Manifest(backend, "c", "b"))
        found = {
            (int(item["key_hash"]), int(item["commit_log_offset"]))
            for run in state.index_runs
            for item in read_run(backend, run)
        }
        with tiered.open(folder / "tier") as tier:
            walked = {
                (index_key_hash(string_hash(f"t#{key}")), message.commit_log_offset)
                for message in tier.queue("t", 3).read()
                for key in keys_of(message)
            }
    assert found == walked


def test_runs_are_sorted_by_hash(backend: PosixBackend, manifest: Manifest, make_store: MakeStore) -> None:
    state = offload(make_store(("orders", 0), count=500), backend, manifest)
    (run,) = state.index_runs
    items = read_run(backend, run)
    order = np.argsort(items["key_hash"].astype(np.int64), kind="stable")
    assert run.item_count == 1500
    assert order.tolist() == list(range(1500))
    common = items[items["key_hash"] == index_key_hash(string_hash("orders#common"))]
    assert (np.diff(common["store_timestamp"]) == 10).all(), "equal hashes keep the order of writing"


def test_a_store_without_index_has_no_runs(backend: PosixBackend, manifest: Manifest, make_store: MakeStore) -> None:
    store: MessageStore = make_store(("orders", 0), count=5)
    state = offload(store, backend, manifest, settings=WriterSettings(index=False))
    assert state.index_runs == ()
    assert state.queues[QueueName("orders", 0)].consume_queue == (Segment(0, 100, T0, T0 + 40),)
