"""Batch topics, light queues and extensions through Spark: read as they are locally, named where the tier has none."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store.kinds import BATCH, EXTENDED, LIGHT_EXTENDED, Content
from stratalog.pipeline.offload import offload
from stratalog.tiered import open as open_tier


@pytest.fixture
def content(tmp_path: Path) -> Content:
    """A store with queues of every kind."""
    content = Content()
    with LIGHT_EXTENDED.open(tmp_path / "store") as store:
        for kind in (BATCH, LIGHT_EXTENDED, EXTENDED):
            kind.fill(store, content)
    return content


def test_the_source_reads_the_messages_of_every_kind(content: Content, tmp_path: Path, spark: SparkSession) -> None:
    rows = spark.read.format("stratalog").load(str(tmp_path / "store")).collect()
    for (topic, queue_id), messages in content.queues.items():
        found = {row.queueOffset: bytes(row.body) for row in rows if (row.topic, row.queueId) == (topic, queue_id)}
        assert found == {at: known.body for at, known in messages.items()}


def test_an_offload_names_what_the_tier_does_not_take(content: Content, tmp_path: Path, spark: SparkSession) -> None:
    report = offload(tmp_path / "store", f"file://{tmp_path / 'tier'}", spark=spark, writers=1)
    counts: dict[str, int] = {}
    for (topic, _), messages in content.queues.items():
        counts[topic] = counts.get(topic, 0) + len(messages)
    assert report.left_out == {topic: count for topic, count in counts.items() if topic != "topic"}
    with open_tier(f"file://{tmp_path / 'tier'}") as tier:
        assert {topic for topic, _ in tier.queues()} == {"topic", "parent"}
