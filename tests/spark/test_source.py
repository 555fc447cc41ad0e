"""Batch reading of stores and tiers: the reader's own code, without a JVM."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from tests.golden.cases import golden_case, golden_names
from tests.spark.stores import (
    StreamingDriver,
    by_queue,
    empty_partition,
    make_store,
    messages_of,
    open_small,
    scan,
    source,
)

import stratalog
from stratalog.errors import ConfigurationError, CorruptData, NotAStore
from stratalog.pipeline import history
from stratalog.pipeline.history import local_path

GOLDEN_STORES = [
    "local/plain-5.5.0",
    "local/boundary-5.5.0",
    "local/ipv6",
    "local/long-topic",
    "local/min-offset-5.5.0",
]
GOLDEN_TIERS = [name for name in golden_names("tiered") if "plain" in name or "segments" in name]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("source") / "store", 400)


@pytest.fixture(scope="module")
def tier(store: Path) -> Path:
    StreamingDriver(store, store.parent / "tier").run()
    return store.parent / "tier"


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_a_store_of_rocketmq_is_read_as_the_store_reads_it(name: str, tmp_path: Path) -> None:
    root = golden_case(name).unpack_store(tmp_path)
    rows, _ = scan(path=str(root))
    assert by_queue(rows) == {queue: rows for queue, rows in messages_of(root).items() if rows}


@pytest.mark.parametrize("name", GOLDEN_TIERS)
def test_a_tier_of_rocketmq_is_read_as_rocketmq_reads_it(name: str, tmp_path: Path) -> None:
    case = golden_case(name)
    rows, _ = scan(tier=str(case.unpack_tier(tmp_path)))
    found = sorted((row["topic"], row["queueId"], row["queueOffset"], row["commitLogOffset"]) for row in rows)
    expected = case.expected("message")
    assert found == sorted(
        (line["topic"], line["queueId"], line["queueOffset"], line["physicalOffset"]) for line in expected
    )


def test_a_scan_of_a_store_equals_reading_its_queues(store: Path) -> None:
    rows, partitions = scan(path=str(store))
    assert by_queue(rows) == messages_of(store)
    assert len(partitions) == 1, "many small queues share a partition"


def test_batch_topics_and_light_queues_are_scanned_as_they_are_read(tmp_path: Path) -> None:
    with open_small(tmp_path, enable_lmq=True, enable_multi_dispatch=True) as store:
        store.create_topic("batches", queues=2, queue_type="BatchCQ")
        for number in range(60):
            members = [b"%d of %d" % (member, number) for member in range(1 + number % 4)]
            store.queue("batches", number % 2).put_batch(members, unique_key=f"U{number}", tags="t")
            names = "%LMQ%a,%LMQ%b" if number % 3 else "%LMQ%a"
            store.put("parent", b"%d" % number, keys=f"k{number}", properties={"INNER_MULTI_DISPATCH": names})
    rows, _ = scan(path=str(tmp_path))
    found = by_queue(rows)
    assert found == messages_of(tmp_path)
    assert {key: len(messages) for key, messages in found.items()} == {
        ("%LMQ%a", 0): 60, ("%LMQ%b", 0): 40, ("batches", 0): 60, ("batches", 1): 90, ("parent", 0): 60,
    }  # fmt: skip
    part, _ = scan(path=str(tmp_path), subscribe="batches", startingOffsets='{"batches": {"0": 7, "1": -2}}')
    places = {(row["queueId"], row["queueOffset"]) for row in part}
    assert places == {(0, number) for number in range(7, 60)} | {(1, number) for number in range(90)}


def test_a_scan_of_the_tier_equals_the_store_but_for_what_stays_local(store: Path, tier: Path) -> None:
    rows, _ = scan(tier=str(tier))
    assert by_queue(rows) == messages_of(store, tiered_only=True)
    assert {row["brokerName"] for row in rows} == {"broker-a"}


def test_times_are_those_of_the_messages(store: Path, tier: Path) -> None:
    with stratalog.open(store, mode="r") as opened:
        expected = [message.store_timestamp for message in opened.queue("orders", 0).read()]
    for place in ({"path": str(store)}, {"tier": str(tier)}):
        rows, _ = scan(assign='{"orders": [0]}', **place)
        assert [int(row["storeTimestamp"].timestamp() * 1000) for row in rows] == expected


def test_store_and_tier_are_one_history_in_which_nothing_is_twice(store: Path, tmp_path: Path) -> None:
    grown, tier = tmp_path / "store", tmp_path / "tier"
    make_store(grown, 200)
    StreamingDriver(grown, tier).run()
    with stratalog.open(grown, max_hash_slot_num=100, max_index_num=400) as opened:
        for number in range(50):
            opened.put("orders", b"new %d" % number)
    rows, partitions = scan(path=str(grown), tier=str(tier))
    assert by_queue(rows) == messages_of(grown)
    origins = {part.origin for partition in partitions for part in partition.ranges if part.topic == "orders"}
    assert origins == {"tier", "local"}


def test_messages_that_are_only_in_the_tier_any_more_are_read_from_there(tmp_path: Path) -> None:
    store, tier = make_store(tmp_path / "store", 400), tmp_path / "tier"
    expected = messages_of(store)
    StreamingDriver(store, tier).run()
    for file in sorted((store / "commitlog").iterdir())[:-1]:
        file.unlink()
    rows, _ = scan(path=str(store), tier=str(tier), subscribePattern="orders|events|%RETRY%group")
    assert by_queue(rows) == {queue: rows for queue, rows in expected.items() if queue[0] != "TBW102"}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"subscribe": "orders"}, lambda row: row["topic"] == "orders"),
        ({"subscribePattern": "o.*|%.*"}, lambda row: row["topic"] in ("orders", "%RETRY%group")),
        ({"assign": '{"orders": [1], "events": [0]}'}, lambda row: (row["topic"], row["queueId"]) in _ASSIGNED),
        ({"startingOffsets": '{"orders": {"0": 5, "1": -1}}'}, lambda row: row["queueOffset"] >= _STARTS(row)),
        ({"endingOffsets": '{"events": {"1": 9}}'}, lambda row: row["queueOffset"] < _ENDS(row)),
    ],
)
@pytest.mark.parametrize("place", ["path", "tier"])
def test_options_choose_queues_and_offsets(
    store: Path, tier: Path, place: str, given: dict[str, str], kept: Callable[[Any], bool]
) -> None:
    everything, _ = scan(**{place: str(store if place == "path" else tier)})
    some, _ = scan(**{place: str(store if place == "path" else tier)}, **given)
    assert by_queue(some) == by_queue([row for row in everything if kept(row)])
    assert 0 < len(some) < len(everything)


_ASSIGNED = {("orders", 1), ("events", 0)}


def _STARTS(row: Any) -> int:
    return {("orders", 0): 5, ("orders", 1): 1 << 60}.get((row["topic"], row["queueId"]), 0)


def _ENDS(row: Any) -> int:
    return {("events", 1): 9}.get((row["topic"], row["queueId"]), 1 << 60)


@pytest.mark.parametrize("place", ["path", "tier"])
def test_timestamps_cut_exactly(store: Path, tier: Path, place: str) -> None:
    where = {place: str(store if place == "path" else tier)}
    everything, _ = scan(**where)
    times = sorted(int(row["storeTimestamp"].timestamp() * 1000) for row in everything)
    start, end = times[len(times) // 3], times[len(times) // 2]
    some, _ = scan(startingTimestamp=str(start), endingTimestamp=str(end), **where)
    assert sorted(int(row["storeTimestamp"].timestamp() * 1000) for row in some) == [
        time for time in times if start <= time < end
    ]


def test_filters_prune_what_the_tasks_read_and_lose_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    decode = history.LocalHistory.batches
    monkeypatch.setattr(
        history.LocalHistory,
        "batches",
        lambda self, part, columns: read.append(part.count) or decode(self, part, columns),
    )
    everything, _ = scan(path=str(store))
    whole = sum(read)
    read.clear()
    filters = [EqualTo(("topic",), "orders"), EqualTo(("queueId",), 2), GreaterThanOrEqual(("queueOffset",), 10)]
    rows, _ = scan(path=str(store), filters=[*filters, LessThan(("queueOffset",), 20)])
    assert sum(read) == 11 < whole, "offsets 10 to 20 of one queue were read, nothing else"
    passing = [row for row in everything if row["topic"] == "orders" and row["queueId"] == 2]
    assert by_queue([row for row in rows if row["queueOffset"] < 20]) == by_queue(
        [row for row in passing if 10 <= row["queueOffset"] < 20]
    )


def test_a_filter_on_time_reads_a_part_of_a_long_history(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", 400, step_ms=60_000)
    everything, whole = scan(path=str(store))
    middle = sorted(row["storeTimestamp"] for row in everything)[200]
    rows, partitions = scan(path=str(store), filters=[GreaterThanOrEqual(("storeTimestamp",), middle)])
    counts = [sum(part.count for partition in some for part in partition.ranges) for some in (whole, partitions)]
    assert counts[1] < 0.65 * counts[0]
    passing = [row for row in everything if row["storeTimestamp"] >= middle]
    assert by_queue([row for row in rows if row["storeTimestamp"] >= middle]) == by_queue(passing)


def test_partitions_share_the_work_when_asked_to(store: Path) -> None:
    rows, partitions = scan(path=str(store), minPartitions="4")
    assert len(partitions) >= 4
    assert by_queue(rows) == messages_of(store)


def test_batches_are_bounded(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "BATCH_ROWS_MAX", 7)
    found = source(path=str(store))
    reader = found.reader(found.schema())
    sizes = [batch.num_rows for partition in reader.partitions() for batch in reader.read(partition)]
    assert max(sizes) == 7
    assert sum(sizes) == sum(map(len, messages_of(store).values()))


def test_a_schema_of_ones_own_computes_only_those_columns(store: Path, tier: Path) -> None:
    schema = StructType([StructField("queueOffset", LongType()), StructField("topic", StringType(), nullable=False)])
    for place in ({"path": str(store)}, {"tier": str(tier)}):
        everything, _ = scan(**place)
        rows, _ = scan(schema=schema, **place)
        assert rows == [{name: row[name] for name in ("queueOffset", "topic")} for row in everything]


@pytest.mark.parametrize("name", golden_names("tiered"))
def test_without_bodies_any_tier_of_rocketmq_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    tier = str(golden_case(name).unpack_tier(tmp_path))
    if not any(Path(tier).rglob("COMMIT_LOG/*")):
        return
    everything, _ = scan(tier=tier)
    rows, _ = scan(tier=tier, schema=META)
    assert rows == [{name: row[name] for name in META.names} for row in everything]


META = StructType([StructField("storeSize", IntegerType()), StructField("uniqueKey", StringType())])


def test_without_bodies_records_are_taken_from_the_mapped_segments(
    store: Path, tier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(history.TierHistory, "_checked_batches")
    monkeypatch.setattr(history, "_SLAB_UNITS", 10)
    rows, _ = scan(tier=str(tier), schema=META)
    assert len(rows) == sum(map(len, messages_of(store, tiered_only=True).values()))


@pytest.mark.parametrize("harm", ["cut", "missing", "zeroed"])
@pytest.mark.parametrize("schema", [None, META])
def test_damage_in_the_tier_is_an_error_whatever_is_read(
    tier: Path, harm: str, schema: StructType | None, tmp_path: Path
) -> None:
    copy = tmp_path / "tier"
    shutil.copytree(tier, copy)
    segment = next(path for path in sorted(copy.rglob("COMMIT_LOG/*")) if "/orders/1/" in str(path))
    if harm == "missing":
        segment.unlink()
    elif harm == "cut":
        os.truncate(segment, segment.stat().st_size - 1)
    else:
        with segment.open("r+b") as file:
            file.seek(segment.stat().st_size // 2)
            file.write(bytes(600))
    with pytest.raises(CorruptData, match="orders/1"):
        scan(tier=str(copy), schema=schema)


def test_batches_have_the_nullability_that_was_asked_for(store: Path) -> None:
    schema = StructType([StructField("queueId", IntegerType(), nullable=False), StructField("tags", StringType())])
    reader = source(path=str(store)).reader(schema)
    batch = next(reader.read(reader.partitions()[0]))
    assert [field.nullable for field in batch.schema] == [False, True]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (StructField("Topic", StringType()), "no column 'Topic'; there are topic, flag"),
        (StructField("queueId", LongType()), "queueId is int, the schema given says bigint"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(store: Path, field: StructField, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        source(path=str(store)).reader(StructType([field]))


def test_what_is_not_there_is_said(tmp_path: Path, store: Path) -> None:
    with pytest.raises(NotAStore, match="missing does not exist"):
        scan(path=str(tmp_path / "missing"))
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").write_text("x")
    for options in ({"path": str(tmp_path / "foreign")}, {"tier": str(tmp_path / "foreign")}):
        with pytest.raises(NotAStore):
            scan(**options)
    with pytest.raises(ConfigurationError, match="unknown option 'subscribes'"):
        scan(path=str(store), subscribes="orders")


def test_an_empty_store_gives_no_rows(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "store", mapped_file_size_commit_log=4096):
        pass
    assert scan(path=str(tmp_path / "store"))[0] == []
    found = source(path=str(tmp_path / "store"))
    assert list(found.reader(found.schema()).read(empty_partition())) == []


def test_reading_touches_no_byte_of_the_store(store: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")}
    scan(path=str(store))
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.rglob("*")} == before


def test_a_path_may_be_a_file_url() -> None:
    assert local_path("file:///data/store") == local_path("file:/data/store") == local_path("/data/store")


@pytest.mark.parametrize("place", ["path", "tier"])
def test_queues_are_counted_without_a_scan(store: Path, tier: Path, place: str) -> None:
    root = store if place == "path" else tier
    reader_class = history.LocalHistory if place == "path" else history.TierHistory
    expected = messages_of(store, tiered_only=place == "tier")
    found = source(**{place: str(root)}, table="queues")
    reader = found.reader(found.schema())
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(reader_class, "batches")
        rows = [dict(zip(found.schema().names, row, strict=True)) for row in reader.read(reader.partitions()[0])]
    assert {(row["topic"], row["queueId"]): row["messageCount"] for row in rows} == {
        queue: len(messages) for queue, messages in expected.items()
    }


def test_counts_of_store_and_tier_together_add_up(store: Path, tier: Path) -> None:
    found = source(path=str(store), tier=str(tier), table="queues")
    reader = found.reader(found.schema())
    count = found.schema().names.index("messageCount")
    assert sum(row[count] for row in reader.read(reader.partitions()[0])) == sum(map(len, messages_of(store).values()))


def test_files_and_segments_name_what_is_on_disk(store: Path, tier: Path) -> None:
    def table(**options: str) -> list[dict[str, Any]]:
        found = source(**options)
        reader = found.reader(found.schema())
        return [dict(zip(found.schema().names, row, strict=True)) for row in reader.read(reader.partitions()[0])]

    logs = [row for row in table(path=str(store), table="files") if row["kind"] == "commitlog"]
    assert [row["path"] for row in logs] == sorted(map(str, (store / "commitlog").iterdir()))
    assert all(Path(row["path"]).stat().st_size == row["size"] for row in logs)
    objects = {row["path"]: row for row in table(tier=str(tier), table="files")}
    segments = table(tier=str(tier), table="segments", subscribe="orders")
    assert {row["kind"] for row in segments} == {"COMMIT_LOG", "CONSUME_QUEUE"}
    assert all(objects[row["path"]]["size"] == row["size"] for row in segments)
    assert {row["queueId"] for row in segments} == {0, 1, 2}


def test_a_tier_without_its_manifest_is_read_by_its_segments(store: Path, tier: Path, tmp_path: Path) -> None:
    copy = tmp_path / "tier"
    shutil.copytree(tier, copy)
    for manifest in copy.rglob("_stratalog"):
        shutil.rmtree(manifest)
    rows, _ = scan(tier=str(copy))
    assert by_queue(rows) == messages_of(store, tiered_only=True)
