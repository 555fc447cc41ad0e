"""Which messages a scan reads, and how they are dealt into partitions."""

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from stratalog.errors import ConfigurationError, OffsetOutOfRange
from stratalog.pipeline.filters import CLOCK_STEP_MS_MAX, Interval, Pruning, pruning_of
from stratalog.pipeline.options import parse_options
from stratalog.pipeline.ranges import (
    PARTITION_SIZE,
    PARTITION_SIZE_MIN,
    QueueExtent,
    QueueRange,
    packed,
    wanted_ranges,
)

TOPIC, QUEUE_ID, OFFSET, STORED = ("topic",), ("queueId",), ("queueOffset",), ("storeTimestamp",)
EXTENTS = [
    QueueExtent("tier", "orders", 0, 10, 60, 100),
    QueueExtent("local", "orders", 0, 60, 100, 100),
    QueueExtent("local", "orders", 1, 0, 50, 100),
    QueueExtent("local", "events", 0, 0, 50, 100),
]


def wanted(*filters: Any, **options: str) -> list[tuple[str, str, int, int, int]]:
    """Ranges as (origin, topic, queue id, first, end). A message is stored at 1000 ms times its offset."""
    ranges = wanted_ranges(
        EXTENTS,
        parse_options({"path": "/s"} | options),
        pruning_of(filters),
        lambda extent, at: min(max(-(-at // 1000), extent.first_offset), extent.end_offset),
    )
    return [(part.origin, part.topic, part.queue_id, part.first, part.first + part.count) for part in ranges]


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def test_everything_is_read_tier_first() -> None:
    assert wanted() == [
        ("local", "events", 0, 0, 50),
        ("tier", "orders", 0, 10, 60),
        ("local", "orders", 0, 60, 100),
        ("local", "orders", 1, 0, 50),
    ]


def test_offsets_cut_a_queue_across_tier_and_store() -> None:
    starts, ends = '{"orders": {"0": 50}}', '{"orders": {"0": 70, "1": -2}, "events": {"0": 5}}'
    assert wanted(startingOffsets=starts, endingOffsets=ends) == [
        ("local", "events", 0, 0, 5),
        ("tier", "orders", 0, 50, 60),
        ("local", "orders", 0, 60, 70),
    ]


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_that_is_gone_is_an_error_unless_loss_is_allowed(offset: int) -> None:
    starts = f'{{"orders": {{"0": {offset}}}}}'
    with pytest.raises(OffsetOutOfRange, match=r"orders/0 holds offsets \[10, 100\)") as caught:
        wanted(startingOffsets=starts)
    assert caught.value.next_offset == (10 if offset == 9 else 100)
    found = wanted(startingOffsets=starts, failOnDataLoss="false", subscribe="orders")
    assert [part for part in found if part[2] == 0] == (
        [("tier", "orders", 0, 10, 60), ("local", "orders", 0, 60, 100)] if offset == 9 else []
    )


def test_a_topic_or_queue_that_is_asked_for_must_be_there() -> None:
    with pytest.raises(ConfigurationError, match=r"payments asked for and not there \(topics are: events, orders\)"):
        wanted(subscribe="payments")
    with pytest.raises(ConfigurationError, match="orders/7 asked for"):
        wanted(assign='{"orders": [7]}')
    assert wanted(subscribe="payments", failOnDataLoss="false") == []


def test_timestamps_cut_what_the_offsets_left() -> None:
    assert wanted(subscribe="orders", startingTimestamp="55500", endingTimestamp="70000") == [
        ("tier", "orders", 0, 56, 60),
        ("local", "orders", 0, 60, 70),
    ]


@pytest.mark.parametrize(
    ("filters", "queues"),
    [
        ([EqualTo(TOPIC, "orders")], {"orders/0", "orders/1"}),
        ([EqualNullSafe(TOPIC, "orders"), EqualTo(QUEUE_ID, 1)], {"orders/1"}),
        ([Not(EqualTo(TOPIC, "orders"))], {"events/0"}),
        ([In(TOPIC, ("events", "x"))], {"events/0"}),
        ([In(TOPIC, ("events", None))], {"events/0", "orders/0", "orders/1"}),
        ([StringStartsWith(TOPIC, "ord")], {"orders/0", "orders/1"}),
        ([StringEndsWith(TOPIC, "vents")], {"events/0"}),
        ([StringContains(TOPIC, "rde")], {"orders/0", "orders/1"}),
        ([GreaterThan(QUEUE_ID, 0)], {"orders/1"}),
        ([GreaterThanOrEqual(QUEUE_ID, 1)], {"orders/1"}),
        ([LessThan(QUEUE_ID, 1)], {"events/0", "orders/0"}),
        ([LessThanOrEqual(QUEUE_ID, 0)], {"events/0", "orders/0"}),
        ([IsNotNull(TOPIC), EqualTo(("tags",), "TagA")], {"events/0", "orders/0", "orders/1"}),
        ([EqualTo(TOPIC, None)], {"events/0", "orders/0", "orders/1"}),
    ],
)
def test_filters_on_topic_and_queue_leave_queues_out(filters: list[Any], queues: set[str]) -> None:
    assert {f"{topic}/{queue_id}" for _, topic, queue_id, _, _ in wanted(*filters)} == queues


def test_filters_on_offsets_cut_ranges() -> None:
    assert wanted(GreaterThanOrEqual(OFFSET, 40), LessThan(OFFSET, 62), EqualTo(TOPIC, "orders")) == [
        ("tier", "orders", 0, 40, 60),
        ("local", "orders", 0, 60, 63),
        ("local", "orders", 1, 40, 50),
    ]
    assert wanted(In(OFFSET, (3, 5)), EqualTo(QUEUE_ID, 1)) == [("local", "orders", 1, 3, 6)]
    assert wanted(EqualTo(OFFSET, 1000)) == []


def test_filters_on_store_time_leave_room_for_a_clock_that_went_back() -> None:
    narrow = pruning_of([GreaterThanOrEqual(STORED, at(5_000_000)), LessThan(STORED, at(6_000_000))])
    low, high = narrow.store_timestamps.low, narrow.store_timestamps.high
    assert low == 5_000_000 - CLOCK_STEP_MS_MAX
    assert high == 6_000_001 + CLOCK_STEP_MS_MAX
    assert wanted(GreaterThan(STORED, at(CLOCK_STEP_MS_MAX + 90_000))) == [("local", "orders", 0, 90, 100)]


@pytest.mark.parametrize("pushed", [Not(EqualTo(OFFSET, 3)), IsNotNull(OFFSET), EqualTo(OFFSET, None)])
def test_a_filter_that_says_nothing_about_ranges_prunes_nothing(pushed: Any) -> None:
    assert pruning_of([pushed]).queue_offsets == Interval()


def test_no_filter_prunes_a_row_that_passes_it() -> None:
    choose = random.Random(7)
    kinds = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    tests = {
        EqualTo: int.__eq__, GreaterThan: int.__gt__, GreaterThanOrEqual: int.__ge__, LessThan: int.__lt__,
        LessThanOrEqual: int.__le__,
    }  # fmt: skip
    for _ in range(200):
        filters = [choose.choice(kinds)(OFFSET, choose.randrange(-5, 110)) for _ in range(choose.randrange(1, 4))]
        passing = {
            (extent.topic, extent.queue_id, offset)
            for extent in EXTENTS
            for offset in range(extent.first_offset, extent.end_offset)
            if all(tests[type(pushed)](offset, pushed.value) for pushed in filters)
        }
        read = {(topic, queue_id, n) for _, topic, queue_id, first, end in wanted(*filters) for n in range(first, end)}
        assert passing <= read


def dealt(ranges: list[QueueRange], **given: int) -> list[list[QueueRange]]:
    parts = packed(ranges, **given)
    wanted, flat = (
        [(part.topic, offset) for part in some for offset in range(part.first, part.first + part.count)]
        for some in (ranges, [part for held in parts for part in held])
    )
    assert flat == wanted, "every message once, in order"
    return parts


def queue_range(topic: str, count: int, record_size: int) -> QueueRange:
    return QueueRange("local", topic, 0, 5, count, record_size)


def test_many_small_queues_share_a_partition() -> None:
    assert len(dealt([queue_range(f"t{number}", 3, 1000) for number in range(500)])) == 1


def test_a_large_queue_is_split_into_partitions_of_about_equal_size() -> None:
    size = 1 << 20
    parts = dealt([queue_range("t", 1000, size)])
    sizes = [sum(part.size for part in held) for held in parts]
    assert len(parts) == -(-1000 * size // PARTITION_SIZE)
    assert max(sizes) - min(sizes) <= PARTITION_SIZE_MIN


def test_no_partition_is_made_for_a_sliver() -> None:
    size = 1 << 20
    parts = dealt([queue_range(f"t{number}", 96, size) for number in range(8)])
    assert [len(held) for held in parts] == [2, 2, 2, 2]


def test_more_partitions_are_made_when_asked_for() -> None:
    assert len(dealt([queue_range("t", 100, 1000)], min_partitions=5)) >= 5
    assert len(dealt([queue_range("t", 2, 1000)], min_partitions=5)) == 2


def test_nothing_to_read_needs_no_partition() -> None:
    assert packed([]) == []


def test_pruning_admits_every_queue_when_nothing_was_pushed() -> None:
    assert Pruning().admits("any", 3)
