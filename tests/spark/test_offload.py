"""The offload as people run it: a Structured Streaming query in a real session."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.golden.cases import golden_case
from tests.spark.stores import (
    BROKER,
    CLUSTER,
    StreamingDriver,
    by_queue,
    make_store,
    messages_of,
    row_of,
    scan,
    tier_bytes,
    tier_state,
)

import stratalog
from stratalog.errors import ConfigurationError, NotAStore, TierConflict
from stratalog.pipeline.offload import OffloadProgress, offload
from stratalog.tiered.metadata import FILE_NAME, decode_metadata
from stratalog.tiered.segment import open_backend

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SLOTS = 1000
"""Slots of an index file; RocketMQ's five million take 40 MB."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("offload") / "store", 400)


@pytest.fixture(scope="module")
def expected(store: Path) -> dict[str, bytes]:
    StreamingDriver(store, store.parent / "expected").run()
    return dict(tier_bytes(store.parent / "expected"))


def test_a_store_arrives_in_the_tier_with_progress_and_a_report(
    spark: "SparkSession", store: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    told: list[OffloadProgress] = []
    report = offload(
        store, str(tmp_path / "tier"), broker=BROKER, spark=spark, max_bytes_per_trigger=60_000, compact_index=True,
        index_slot_count=SLOTS, progress=told.append,
    )  # fmt: skip
    wanted = messages_of(store, tiered_only=True)
    assert dict(tier_bytes(tmp_path / "tier")) == expected
    assert report.record_count == sum(map(len, wanted.values()))
    assert report.tier_size == sum(len(data) for path, data in expected.items() if "/COMMIT_LOG/" in path)
    assert (report.lost_count, report.cluster, report.broker) == (0, CLUSTER, BROKER)
    assert 2 <= -(-report.log_size // 60_000) <= report.batch_count <= 1 + report.log_size // 45_000, "filled batches"
    assert [step.log_size for step in told] == sorted(step.log_size for step in told)
    assert (told[-1].log_size, told[-1].record_count) == (told[-1].log_size_total, report.record_count)
    assert told[-1].seconds_left == 0
    assert told[-1].rate > 0

    state = tier_state(tmp_path / "tier")
    assert len(state.index_segments) == 1
    assert not state.index_runs
    with stratalog.tiered.open(tmp_path / "tier") as tier:
        for message in (messages[3] for messages in wanted.values()):
            assert [row_of(hit) for hit in tier.query(message["topic"], key=message["uniqueKey"])] == [message]
    metadata = next((tmp_path / "tier").rglob(FILE_NAME)).read_text()
    decoded = decode_metadata(metadata, open_backend(tmp_path / "tier"), cluster=CLUSTER, broker=BROKER)
    assert {name: queue.end_queue_offset for name, queue in decoded.queues.items()} == {
        name: queue.end_queue_offset for name, queue in state.queues.items()
    }

    again = offload(store, str(tmp_path / "tier"), broker=BROKER, spark=spark)
    assert (again.record_count, again.log_size, again.tier_size, again.batch_count) == (0, 0, 0, 0)
    assert dict(tier_bytes(tmp_path / "tier")) == expected


def test_rocketmqs_store_becomes_rocketmqs_tier(spark: "SparkSession", tmp_path: Path) -> None:
    case = golden_case("tiered/plain-5.5.0")
    offload(case.unpack_store(tmp_path), str(tmp_path / "ours"), broker="broker-a", spark=spark, compact_index=False)
    golden = {path: data for path, data in case.tier_files() if "/COMMIT_LOG/" in path or "/CONSUME_QUEUE/" in path}
    assert dict(tier_bytes(tmp_path / "ours", CLUSTER, "broker-a")) == golden


def test_a_deleted_checkpoint_makes_no_duplicates(spark: "SparkSession", tmp_path: Path) -> None:
    checkpoint, tier = tmp_path / "checkpoint", tmp_path / "tier"
    path = make_store(tmp_path / "store", 60)
    counts = []
    for life in range(3):
        with stratalog.open(path, max_hash_slot_num=100, max_index_num=400) as grown:
            grown.put("orders", b"life %d" % life)
        report = offload(path, str(tier), broker=BROKER, spark=spark, checkpoint=str(checkpoint), index=False)
        counts.append(report.record_count)
        if life:
            shutil.rmtree(checkpoint)
    wanted = messages_of(path, tiered_only=True)
    assert counts == [sum(map(len, wanted.values())) - 2, 1, 1]
    rows, _ = scan(tier=str(tier))
    assert by_queue(rows) == wanted


def test_two_offloads_at_once_copy_everything_once(
    spark: "SparkSession", store: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    failures: list[BaseException] = []

    def run(max_bytes: int) -> None:
        try:
            offload(
                store, str(tmp_path / "tier"), broker=BROKER, spark=spark, max_bytes_per_trigger=max_bytes,
                compact_index=True, index_slot_count=SLOTS,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 -- told by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(max_bytes,)) for max_bytes in (50_000, 70_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert dict(tier_bytes(tmp_path / "tier")) == expected
    rows, _ = scan(tier=str(tmp_path / "tier"))
    assert by_queue(rows) == messages_of(store, tiered_only=True)


def test_an_offload_that_is_overtaken_goes_on_behind_the_other(
    spark: "SparkSession", store: Path, expected: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job commits between this one's planning and its commit, once."""
    from stratalog.pipeline import offload as module

    tier = tmp_path / "tier"
    other = StreamingDriver(store, tier, max_bytes=60_000)
    other.reader.prepareForTriggerAvailableNow()
    follow = module._Job.follow
    overtaken: list[bool] = []

    def overtake(job: module._Job, *given: object) -> None:
        if not overtaken:
            batch = other.next_batch()
            assert batch is not None
            other.do_batch(*batch)
            overtaken.append(True)
            given[0].stop()  # type: ignore[attr-defined]
            raise TierConflict("another job was first")
        follow(job, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(module._Job, "follow", overtake)
    offload(store, str(tier), broker=BROKER, spark=spark)
    assert overtaken
    assert dict(tier_bytes(tier)) == expected


def test_errors_come_back_as_what_they_were(spark: "SparkSession", store: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="missing does not exist"):
        offload(tmp_path / "missing", str(tmp_path / "tier"), spark=spark)
    with pytest.raises(ConfigurationError, match="s3:// is not supported"):
        offload(store, "s3://bucket/tier", spark=spark)
    checkpoint = tmp_path / "checkpoint"
    offload(store, str(tmp_path / "one"), spark=spark, checkpoint=str(checkpoint), index=False)
    with stratalog.open(store, mode="r") as opened:
        assert opened.log.end_offset == tier_state(tmp_path / "one", broker="store").source_end
    shutil.copytree(store, tmp_path / "store")
    with stratalog.open(tmp_path / "store", max_hash_slot_num=100, max_index_num=400) as grown:
        grown.put("orders", b"more")
    with pytest.raises(ConfigurationError, match="the checkpoint belongs to another tier"):
        offload(tmp_path / "store", str(tmp_path / "two"), spark=spark, checkpoint=str(checkpoint), index=False)


def test_a_store_in_use_is_offloaded_as_far_as_it_is(spark: "SparkSession", tmp_path: Path) -> None:
    path = make_store(tmp_path / "store", 60)
    with stratalog.open(path, max_hash_slot_num=100, max_index_num=400) as store:
        store.put("orders", b"while it is open")
        report = offload(path, str(tmp_path / "tier"), broker=BROKER, spark=spark, index=False)
        assert store.put("orders", b"goes on").queue_offset > 0
    assert report.record_count == sum(map(len, messages_of(path, tiered_only=True).values())) - 1


_DRIVER = """
import sys
from stratalog.pipeline.offload import offload
from stratalog.pipeline.session import spark_session

spark = spark_session(cores=2, memory="512m", streaming=True, extra={{"spark.ui.enabled": "false"}})
print("started", flush=True)
offload({store!r}, {tier!r}, broker={broker!r}, spark=spark, checkpoint={checkpoint!r}, max_bytes_per_trigger=9000,
        compact_index=False, progress=lambda step: print(step.log_size, flush=True))
"""


def test_a_driver_that_is_killed_loses_and_doubles_nothing(
    spark: "SparkSession", store: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    """SIGKILL to Python, JVM and workers in the middle of the stream, twice; with its checkpoint and without."""
    choose = random.Random(4)
    tier, checkpoint = tmp_path / "tier", tmp_path / "checkpoint"
    ends = []
    for place in (str(checkpoint), None):
        script = _DRIVER.format(store=str(store), tier=str(tier), broker=BROKER, checkpoint=place)
        driver = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
            text=True,
        )  # fmt: skip
        assert driver.stdout is not None
        try:
            for _ in range(choose.randrange(2, 4)):
                assert driver.stdout.readline(), "the driver ended by itself"
            time.sleep(choose.random() * 0.2)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
            driver.stdout.close()
        ends.append(tier_state(tier).source_end)
        found = dict(tier_bytes(tier))
        assert all(expected[path].startswith(data) for path, data in found.items()), "a prefix, and never more"
    with stratalog.open(store, mode="r") as opened:
        assert 0 < ends[0] < ends[1] < opened.log.end_offset, "both were killed in the middle"
    offload(store, str(tier), broker=BROKER, spark=spark, checkpoint=str(checkpoint), compact_index=False)
    assert dict(tier_bytes(tier)) == expected
    rows, _ = scan(tier=str(tier))
    assert by_queue(rows) == messages_of(store, tiered_only=True)
