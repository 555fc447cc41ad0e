"""The offload's source and sink, driven as Spark drives them but without a JVM."""

import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from tests.golden.cases import golden_case, golden_names
from tests.spark.stores import (
    BROKER,
    CLUSTER,
    StreamingDriver,
    by_queue,
    log_plan,
    make_store,
    messages_of,
    open_small,
    row_of,
    scan,
    tier_bytes,
    tier_state,
)

import stratalog
from stratalog.errors import ConfigurationError, CorruptData, TierConflict
from stratalog.layout.message import HEAD
from stratalog.layout.queue import UNIT
from stratalog.pipeline import committed_log, log_source, runs
from stratalog.pipeline.committed_log import CommittedLog
from stratalog.pipeline.log_source import LogReader, LogSource
from stratalog.pipeline.offload import check_same_store
from stratalog.tiered.segment import is_name, open_backend
from stratalog.tiered.state import TierState
from stratalog.tiered.tiered_store import TieredStore, open_tier

GOLDEN = [
    name for name in golden_names("tiered")
    if golden_case(name).has_store and any(part in name for part in ("plain", "names"))
]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("stream") / "store", 400)


@pytest.fixture(scope="module")
def expected(store: Path) -> dict[str, bytes]:
    """The tier's bytes when everything is copied in one batch."""
    StreamingDriver(store, store.parent / "expected").run()
    return dict(tier_bytes(store.parent / "expected"))


def check_exactly_once(store: Path, tier: Path) -> None:
    """Every message of each queue is in the tier once, in order, and its keys lead to it."""
    wanted = messages_of(store, tiered_only=True)
    rows, _ = scan(tier=str(tier))
    assert by_queue(rows) == wanted
    with open_tier(tier) as opened:
        for messages in wanted.values():
            for message in (messages[0], messages[-1]):
                found = opened.query(message["topic"], key=message["uniqueKey"])
                assert [row_of(hit) for hit in found] == [message], "a key leads to its message, once"


@pytest.mark.parametrize("name", GOLDEN)
def test_the_offload_of_rocketmqs_store_writes_rocketmqs_tier(name: str, tmp_path: Path) -> None:
    case = golden_case(name)
    folder, broker = next(path for path, _ in case.tier_files() if "/COMMIT_LOG/" in path).split("/")[:2]
    cluster = folder.partition("_")[2]
    StreamingDriver(case.unpack_store(tmp_path), tmp_path / "ours", cluster=cluster, broker=broker).run()
    golden = {path: data for path, data in case.tier_files() if "/COMMIT_LOG/" in path or "/CONSUME_QUEUE/" in path}
    ours = dict(tier_bytes(tmp_path / "ours", cluster, broker))
    assert ours.keys() == golden.keys()
    for path, data in ours.items():
        assert data == golden[path][: len(data)], path
        assert not any(golden[path][len(data) :]), f"{path}: RocketMQ wrote more"


def test_everything_arrives_once(store: Path, expected: dict[str, bytes]) -> None:
    check_exactly_once(store, store.parent / "expected")
    assert tier_state(store.parent / "expected").source_end == _log_end(store)


def test_system_topics_stay_local(store: Path, expected: dict[str, bytes]) -> None:
    assert "TBW102" in {topic for topic, _ in messages_of(store)}
    assert not any("TBW102" in path for path in expected)


@pytest.mark.parametrize("max_bytes", [1, 1000, 7000, 64 << 10, 100_000])
def test_batches_of_any_size_write_the_same_bytes(
    store: Path, expected: dict[str, bytes], max_bytes: int, tmp_path: Path
) -> None:
    if max_bytes <= 1000:
        store = make_store(tmp_path / "store", 30)
        StreamingDriver(store, tmp_path / "whole").run()
        expected = dict(tier_bytes(tmp_path / "whole"))
    driver = StreamingDriver(store, tmp_path / "tier", max_bytes=max_bytes, seed=max_bytes).run()
    assert driver.batch_count > 1
    assert dict(tier_bytes(tmp_path / "tier")) == expected


def test_pieces_of_any_size_write_the_same_bytes(
    store: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committed_log, "STRETCH_SIZE", 1500)
    monkeypatch.setattr(log_source, "PIECE_SIZE", 5000)
    monkeypatch.setattr(runs, "_RUN_UNITS_MAX", 3)
    StreamingDriver(store, tmp_path / "tier", writers=3, seed=5).run()
    assert dict(tier_bytes(tmp_path / "tier")) == expected


def test_a_batch_ends_at_a_record_and_within_its_limit(store: Path) -> None:
    reader = LogReader(log_plan(store, TierState(CLUSTER, BROKER), size_max=5000), max_bytes=5000)
    borders = _record_starts(store)
    offset, seen = {"version": 1, "offset": 0}, 0
    while (end := reader.latestOffset(offset, ReadMaxBytes(5000))) != offset:
        assert end["offset"] in borders or end["offset"] == _log_end(store)
        assert end["offset"] - offset["offset"] <= 5000
        offset, seen = end, seen + 1
    assert offset["offset"] == _log_end(store)
    assert seen < 2.5 * _log_end(store) / 5000, "batches are filled"


def test_a_message_larger_than_the_limit_travels_alone(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for size in (10, 30_000, 10):
            store.put("orders", bytes(size))
    driver = StreamingDriver(tmp_path / "store", tmp_path / "tier", max_bytes=1000).run()
    assert driver.batch_count == 3
    check_count(tmp_path / "tier", 3)


def check_count(tier: Path, count: int) -> None:
    assert sum(queue.end_queue_offset for queue in tier_state(tier).queues.values()) == count


def test_available_now_ends_where_the_log_ended_when_it_began(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", 50)
    driver = StreamingDriver(path, tmp_path / "tier", max_bytes=5000)
    end = _log_end(path)
    with stratalog.open(path, max_hash_slot_num=100, max_index_num=400) as store:
        store.put("orders", b"later", unique_key="LATER")
    start = driver.reader.initialOffset()
    assert driver.reader.latestOffset(start, ReadAllAvailable())["offset"] == end
    StreamingDriver(path, tmp_path / "tier").run()
    check_exactly_once(path, tmp_path / "tier")


def test_a_second_offload_has_nothing_to_do(store: Path, tmp_path: Path) -> None:
    StreamingDriver(store, tmp_path / "tier").run()
    before = tier_state(tmp_path / "tier")
    assert StreamingDriver(store, tmp_path / "tier").run().batch_count == 0
    assert tier_state(tmp_path / "tier") == before


def test_new_messages_are_appended_at_the_committed_end(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", 120)
    StreamingDriver(path, tmp_path / "tier").run()
    with stratalog.open(path, max_hash_slot_num=100, max_index_num=400) as store:
        for number in range(60):
            store.put("orders", b"%d" % number, queue_id=number % 5, unique_key=f"LATER{number}")
    StreamingDriver(path, tmp_path / "tier").run()
    check_exactly_once(path, tmp_path / "tier")


def test_a_batch_that_is_done_again_is_dropped(store: Path, tmp_path: Path) -> None:
    """Spark does so after a crash between the sink's commit and its own."""
    driver = StreamingDriver(store, tmp_path / "tier")
    driver.reader.prepareForTriggerAvailableNow()
    batch = driver.next_batch()
    assert batch is not None
    driver.do_batch(*batch)
    committed = tier_state(tmp_path / "tier")
    driver.do_batch(*batch)
    assert tier_state(tmp_path / "tier") == committed
    check_exactly_once(store, tmp_path / "tier")


def test_tasks_that_ran_twice_leave_one_copy(store: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    driver = StreamingDriver(store, tmp_path / "tier")
    driver.reader.prepareForTriggerAvailableNow()
    batch = driver.next_batch()
    assert batch is not None
    driver.written(*batch)
    driver.commit(driver.written(*batch))
    assert dict(tier_bytes(tmp_path / "tier")) == expected
    check_exactly_once(store, tmp_path / "tier")


def test_commits_that_come_twice_or_with_failed_tasks_are_harmless(store: Path, tmp_path: Path) -> None:
    driver = StreamingDriver(store, tmp_path / "tier")
    driver.reader.prepareForTriggerAvailableNow()
    batch = driver.next_batch()
    assert batch is not None
    messages = driver.written(*batch)
    driver.writer.abort([None, messages[0]], 0)
    driver.commit(messages)
    committed = tier_state(tmp_path / "tier")
    driver.commit(messages)
    driver.writer.abort(messages, 0)
    assert tier_state(tmp_path / "tier") == committed


def test_a_lost_checkpoint_costs_nothing(store: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    checkpoint: dict[str, Any] = {}
    driver = StreamingDriver(store, tmp_path / "tier", max_bytes=20_000, checkpoint=checkpoint)
    driver.reader.prepareForTriggerAvailableNow()
    for _ in range(3):
        batch = driver.next_batch()
        assert batch is not None
        driver.do_batch(*batch)
    StreamingDriver(store, tmp_path / "tier", max_bytes=30_000, checkpoint={}).run()
    assert dict(tier_bytes(tmp_path / "tier")) == expected
    # … and the old one, found again, repeats a batch that the tier has:
    StreamingDriver(store, tmp_path / "tier", max_bytes=20_000, checkpoint=checkpoint).run()
    assert dict(tier_bytes(tmp_path / "tier")) == expected


def test_a_checkpoint_of_another_tier_is_refused(store: Path, tmp_path: Path) -> None:
    checkpoint: dict[str, Any] = {}
    StreamingDriver(store, tmp_path / "tier", max_bytes=20_000, checkpoint=checkpoint).run()
    shutil.rmtree(tmp_path / "tier")
    other = StreamingDriver(store, tmp_path / "tier", checkpoint=checkpoint)
    with pytest.raises(ConfigurationError, match=r"the checkpoint belongs to another tier. Remove it"):
        other.do_batch(checkpoint["start"], checkpoint["end"])


def test_a_checkpoint_of_another_release_is_refused(store: Path) -> None:
    reader = LogReader(log_plan(store, TierState(CLUSTER, BROKER)), max_bytes=1)
    with pytest.raises(ConfigurationError, match="offset version 2"):
        reader.latestOffset({"version": 2, "offset": 0}, ReadMaxBytes(1))


@pytest.mark.one_in(36)
@pytest.mark.parametrize("seed", range(12))
def test_a_driver_that_dies_anywhere_is_followed_by_one_that_finishes(
    store: Path, expected: dict[str, bytes], seed: int, tmp_path: Path
) -> None:
    """Batches, tasks and commits are cut off at seeded places, with and without a checkpoint, by several jobs."""
    choose = random.Random(seed)
    checkpoint: dict[str, Any] = {}
    for life in range(6):
        driver = StreamingDriver(
            store,
            tmp_path / "tier",
            max_bytes=choose.choice((3000, 20_000, 70_000)),
            seed=choose.random().__hash__(),
            writers=choose.choice((1, 2, 3)),
            checkpoint=checkpoint if choose.random() < 0.5 else {},
        )
        for point in _driven(driver):
            if life < 5 and choose.random() < 0.15:
                assert point  # the driver dies here
                break
    assert dict(tier_bytes(tmp_path / "tier")) == expected
    check_exactly_once(store, tmp_path / "tier")


def _driven(driver: StreamingDriver) -> Iterator[str]:
    """One query, pausing wherever it may die."""
    driver.reader.prepareForTriggerAvailableNow()
    yield "planned"
    again = driver.checkpoint.get("end") if driver.checkpoint.get("done") != driver.checkpoint.get("end") else None
    batch = (driver.checkpoint["start"], again) if again else driver.next_batch()
    while batch is not None:
        driver.checkpoint.update(start=batch[0], end=batch[1])
        yield "offsets logged"
        messages = driver.written(*batch)
        yield "written"
        driver.commit(messages)
        yield "committed in the tier, not in Spark"
        driver.checkpoint["done"] = batch[1]
        yield "committed"
        batch = driver.next_batch()


def test_of_two_jobs_at_once_one_commits_a_message(store: Path, expected: dict[str, bytes], tmp_path: Path) -> None:
    fast = StreamingDriver(store, tmp_path / "tier", max_bytes=30_000)
    slow = StreamingDriver(store, tmp_path / "tier", max_bytes=50_000)
    for driver in (fast, slow):
        driver.reader.prepareForTriggerAvailableNow()
    for driver in (fast, slow):
        batch = driver.next_batch()
        assert batch is not None
        driver.checkpoint["batch"] = (batch, driver.written(*batch))
    fast.commit(fast.checkpoint["batch"][1])
    with pytest.raises(TierConflict, match="redo the batch"):
        slow.commit(slow.checkpoint["batch"][1])
    slow.do_batch(*slow.checkpoint["batch"][0])
    StreamingDriver(store, tmp_path / "tier").run()
    assert dict(tier_bytes(tmp_path / "tier")) == expected
    check_exactly_once(store, tmp_path / "tier")


def test_what_local_retention_took_first_is_a_gap_in_the_tier(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", 600)
    first = StreamingDriver(path, tmp_path / "tier", max_bytes=30_000)
    first.reader.prepareForTriggerAvailableNow()
    batch = first.next_batch()
    assert batch is not None
    first.do_batch(*batch)
    copied, everything = tier_state(tmp_path / "tier"), messages_of(path, tiered_only=True)
    for file in sorted((path / "commitlog").iterdir())[:2]:
        file.unlink()
    StreamingDriver(path, tmp_path / "tier").run()
    left = messages_of(path, tiered_only=True)
    for (topic, queue_id), messages in everything.items():
        with open_tier(tmp_path / "tier") as opened:
            found = [row_of(message) for message in opened.queue(topic, queue_id).read()]
        queue = copied.queues.get((topic, queue_id))  # type: ignore[call-overload]
        there = messages[: queue.end_queue_offset] if queue else []
        assert found == there + [row for row in left[topic, queue_id] if row not in there]
        assert len(found) < len(messages), "some were lost"


def test_damaged_records_are_left_out_and_those_behind_them_arrive(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", 300)
    everything = messages_of(path, tiered_only=True)
    damaged = [("orders", 1, 10), ("orders", 1, 11), ("orders", 1, 25), ("events", 0, 7)]
    for topic, queue_id, queue_offset in damaged:
        _damage(path, topic, queue_id, queue_offset)
    StreamingDriver(path, tmp_path / "tier", max_bytes=80_000, verify=True).run()
    rows, _ = scan(tier=str(tmp_path / "tier"))
    assert by_queue(rows) == {
        queue: [row for row in messages if (*queue, row["queueOffset"]) not in damaged]
        for queue, messages in everything.items()
    }


ODD_NAMES = (
    b"or\xffers", b"or ers", b"or/ers", b"..ders", b".rders", b"\0rders", b"\xed\xa0\x80ers", "ör\u20ac".encode(),
    b"events",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_queues_that_a_tier_cannot_have_are_passed_over_and_counted(seed: int, tmp_path: Path) -> None:
    """One odd topic, in a log that a broker or a bad disk wrote, must not keep the other messages from the tier."""
    choose = random.Random(seed)
    with open_small(tmp_path / "store") as store:
        for number in range(90):
            store.put("orders", b"%d" % number, queue_id=number % 2)
    odd: set[bytes] = set()

    def renamed(found: re.Match[bytes]) -> bytes:
        if choose.random() < 0.7:
            return found[0]
        name = choose.choice((*ODD_NAMES, choose.randbytes(6)))
        odd.add(name)
        return b"\x06" + name

    (log,) = (tmp_path / "store" / "commitlog").iterdir()
    log.write_bytes(re.sub(rb"\x06orders", renamed, log.read_bytes()))
    for derived in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / "store" / derived)
    for derived in ("checkpoint", "queues.snapshot"):
        (tmp_path / "store" / derived).unlink()
    with open_small(tmp_path / "store") as store:
        assert store.log.end_offset > 90 * 95
    wanted = {name: rows for name, rows in messages_of(tmp_path / "store").items() if is_name(name[0])}
    StreamingDriver(tmp_path / "store", tmp_path / "tier", max_bytes=2000, seed=seed).run()
    state = tier_state(tmp_path / "tier")
    with open_tier(tmp_path / "tier") as tier:
        for name, rows in wanted.items():
            copied = [tier.queue(*name).get(row["queueOffset"]).message for row in rows]
            assert [message and message.body for message in copied] == [row["body"] for row in rows]
    assert sum(state.passed_over.values()) == 90 - sum(map(len, wanted.values())) > 0
    names = {name.decode("utf-8", "backslashreplace") for name in odd}
    assert {name.rpartition("/")[0] for name in state.passed_over} <= names
    again = StreamingDriver(tmp_path / "store", tmp_path / "tier").run()
    assert again.batch_count == 0
    assert tier_state(tmp_path / "tier").passed_over == state.passed_over


def test_a_record_that_breaks_while_it_is_copied_stops_the_batch(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(store, path)
    driver = StreamingDriver(path, tmp_path / "tier")
    driver.reader.prepareForTriggerAvailableNow()
    batch = driver.next_batch()
    assert batch is not None
    found = [run for piece in driver.reader.partitions(*batch) for run in driver.reader.read(piece)]
    _damage(path, "orders", 0, 3)
    with pytest.raises(CorruptData, match=r"queue orders/0 .*run `stratalog verify STORE`"):
        driver.writer.write(iter(found))
    assert not tier_state(tmp_path / "tier").queues


def test_a_log_that_was_set_back_is_refused(store: Path, tmp_path: Path) -> None:
    StreamingDriver(store, tmp_path / "tier").run()
    shorter = make_store(tmp_path / "shorter", 100)
    with pytest.raises(ConfigurationError, match="not the store that this tier belongs to"):
        StreamingDriver(shorter, tmp_path / "tier").run()


def test_another_store_under_the_same_name_is_refused(store: Path, tmp_path: Path) -> None:
    StreamingDriver(store, tmp_path / "tier").run()
    other = make_store(tmp_path / "other", 800, seed=2)
    log = CommittedLog(str(other))
    with pytest.raises(ConfigurationError, match=r"another store's messages. Give another broker name"):
        check_same_store(log.store, TieredStore(open_backend(tmp_path / "tier"), tier_state(tmp_path / "tier")))
    log.close()
    log = CommittedLog(str(store))
    check_same_store(log.store, TieredStore(open_backend(tmp_path / "tier"), tier_state(tmp_path / "tier")))
    log.close()


def test_a_range_without_messages_for_the_tier_moves_the_offload_on(tmp_path: Path) -> None:
    with open_small(tmp_path / "store") as store:
        for number in range(20):
            store.put("TBW102", b"%d" % number)
    assert StreamingDriver(tmp_path / "store", tmp_path / "tier").run().batch_count == 1
    state = tier_state(tmp_path / "tier")
    assert not state.queues
    assert state.source_end == _log_end(tmp_path / "store")
    assert StreamingDriver(tmp_path / "store", tmp_path / "tier").run().batch_count == 0


def test_an_empty_store_is_offloaded_in_no_time(tmp_path: Path) -> None:
    with open_small(tmp_path / "store"):
        pass
    assert StreamingDriver(tmp_path / "store", tmp_path / "tier").run().batch_count == 0


def test_a_log_that_nobody_closed_is_read_to_its_last_whole_record(tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", 100)
    whole = messages_of(path, tiered_only=True)
    with open_small(path) as store:
        receipt = store.put("orders", b"torn" * 100)
        end = receipt.commit_log_offset + receipt.store_size
        shutil.copytree(path, tmp_path / "crashed")
    log = sorted((tmp_path / "crashed" / "commitlog").iterdir())
    file = next(file for file in reversed(log) if int(file.name) < end)
    with file.open("r+b") as stream:
        stream.seek(end - 30 - int(file.name))
        stream.write(bytes(30))
    StreamingDriver(tmp_path / "crashed", tmp_path / "tier").run()
    rows, _ = scan(tier=str(tmp_path / "tier"))
    assert by_queue(rows) == whole


def test_the_index_can_be_left_out(store: Path, tmp_path: Path) -> None:
    StreamingDriver(store, tmp_path / "tier", index=False).run()
    assert not tier_state(tmp_path / "tier").index_runs


def test_the_source_is_made_from_sparks_options(store: Path) -> None:
    plan = log_plan(store, TierState(CLUSTER, BROKER))
    source = LogSource({"plan": plan.to_json(), "maxBytesPerTrigger": "77"})
    reader = source.streamReader(source.schema())  # type: ignore[arg-type]
    assert reader.getDefaultReadLimit() == ReadMaxBytes(77)
    assert reader.initialOffset() == {"version": 1, "offset": 0}
    assert reader.reportLatestOffset() == {"version": 1, "offset": _log_end(store)}


def test_slots_spread_the_queues_of_a_topic() -> None:
    assert sorted(runs.slot_of("orders", queue_id) % 4 for queue_id in range(4)) == [0, 1, 2, 3]


def _log_end(path: Path) -> int:
    with stratalog.open(path, mode="r") as store:
        return store.log.end_offset


def _record_starts(path: Path) -> set[int]:
    with stratalog.open(path, mode="r") as store:
        return {
            unit[0]
            for topic, queue_id in store.queues()
            for unit in UNIT.struct.iter_unpack(store.queue(topic, queue_id).units(0, 1 << 20))
        }


def _damage(path: Path, topic: str, queue_id: int, queue_offset: int) -> None:
    """Turn one bit of a message's CRC."""
    with stratalog.open(path, mode="r") as store:
        unit = UNIT.unpack(store.queue(topic, queue_id).units(queue_offset, 1))
    file = max(file for file in (path / "commitlog").iterdir() if int(file.name) <= unit.commit_log_offset)
    with file.open("r+b") as stream:
        position = unit.commit_log_offset - int(file.name) + HEAD.position("body_crc")
        stream.seek(position)
        old = stream.read(1)
        stream.seek(position)
        stream.write(bytes([old[0] ^ 1]))
