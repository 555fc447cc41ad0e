"""The format and the views in a real session."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.stores import StreamingDriver, by_queue, make_store, messages_of

from stratalog.errors import ConfigurationError, NotAStore, OffsetOutOfRange
from stratalog.pipeline.spark_errors import error_in, own_errors
from stratalog.pipeline.sql import register_views, run_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("sql") / "store", 300)


@pytest.fixture(scope="module")
def tier(store: Path) -> Path:
    StreamingDriver(store, store.parent / "tier").run()
    return store.parent / "tier"


def test_the_format_is_found_without_registration(spark: "SparkSession", store: Path, tier: Path) -> None:
    local = spark.read.format("stratalog").load(str(store))
    assert by_queue([row.asDict() for row in local.collect()]) == messages_of(store)
    cold = spark.read.format("stratalog").option("tier", str(tier)).load()
    assert by_queue([row.asDict() for row in cold.collect()]) == messages_of(store, tiered_only=True)


def test_filters_give_the_same_rows_pushed_or_not(spark: "SparkSession", store: Path) -> None:
    setting = "spark.sql.python.filterPushdown.enabled"
    condition = "topic = 'orders' AND queueId IN (0, 2) AND queueOffset BETWEEN 5 AND 20 AND tags IS NOT NULL"
    results = []
    try:
        for pushed in ("true", "false"):
            spark.conf.set(setting, pushed)
            frame = spark.read.format("stratalog").load(str(store)).where(condition)
            results.append(by_queue([row.asDict() for row in frame.collect()]))
    finally:
        spark.conf.set(setting, "true")
    assert results[0] == results[1]
    assert set(results[0]) == {("orders", 0), ("orders", 2)}


def test_a_filter_on_time_reaches_the_source(spark: "SparkSession", store: Path) -> None:
    messages = spark.read.format("stratalog").load(str(store))
    whole = messages.count()
    later = messages.where("storeTimestamp >= timestamp_millis(1700000150000)")
    assert 0 < later.count() < whole
    assert later.count() == messages.rdd.filter(lambda row: row.storeTimestamp.timestamp() >= 1_700_000_150).count()


def test_the_views_answer_sql(spark: "SparkSession", store: Path, tier: Path) -> None:
    names = register_views(spark, path=store, tier=str(tier), prefix="t_")
    assert names == ["t_messages", "t_messages_meta", "t_queues"]
    wanted = messages_of(store)
    counted = {(row.topic, row.queueId): row.n for row in spark.sql(
        "SELECT topic, queueId, count(*) AS n FROM t_messages_meta GROUP BY ALL"
    ).collect()}  # fmt: skip
    assert counted == {queue: len(rows) for queue, rows in wanted.items()}
    assert spark.sql("SELECT sum(messageCount) FROM t_queues").collect()[0][0] == sum(counted.values())
    size = spark.sql("SELECT sum(length(body)) FROM t_messages").collect()[0][0]
    assert size == sum(len(row["body"]) for rows in wanted.values() for row in rows)
    assert "body" not in spark.table("t_messages_meta").columns


def test_one_statement_over_a_tier(spark: "SparkSession", store: Path, tier: Path) -> None:
    frame = run_sql(
        "SELECT max(queueOffset) AS last FROM messages", tier=str(tier), spark=spark, assign='{"orders": [1]}'
    )
    assert frame.collect()[0].last == len(messages_of(store)["orders", 1]) - 1


def test_mistakes_are_told_as_our_own_errors(spark: "SparkSession", store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not understand the statement"):
        run_sql("SELEC 1", path=store, spark=spark)
    with pytest.raises(ConfigurationError, match=r"does not understand the statement.*no_such_column"):
        run_sql("SELECT no_such_column FROM messages", path=store, spark=spark)
    with pytest.raises(NotAStore, match="nowhere does not exist"):
        run_sql("SELECT 1", path=tmp_path / "nowhere", spark=spark)
    with pytest.raises(ConfigurationError, match="unknown option"):
        run_sql("SELECT 1", path=store, spark=spark, topics="orders")
    reader = spark.read.format("stratalog")
    with pytest.raises(NotAStore, match="gone does not exist"), own_errors():
        reader.load(str(tmp_path / "gone")).collect()
    with pytest.raises(ConfigurationError, match="queueId is int"), own_errors():
        spark.read.format("stratalog").schema("queueId STRING").load(str(store)).collect()
    with pytest.raises(OffsetOutOfRange, match="asked for is 99999"), own_errors():
        reader.option("startingOffsets", '{"orders": {"0": 99999}}').load(str(store)).collect()


def test_errors_of_others_pass_as_they_are(spark: "SparkSession") -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException), own_errors():
        spark.table("no_such_table").collect()
    assert error_in("Traceback …\nValueError: x") is None
    assert error_in("stratalog.errors.NoSuchThing: x") is None
