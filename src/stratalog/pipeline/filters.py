"""What Spark's pushed filters say about where rows can be: topics, queues, and ranges of offsets and store times.

Filters only ever prune. Spark gets all of them back and checks every row again, so a filter that is not understood here
costs time and nothing else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

CLOCK_STEP_MS_MAX = 600_000
"""Store times of a queue grow, unless the broker's clock was set back. Pruning by time leaves this much room on both
sides, so that a step of up to ten minutes loses no row."""

_ANY = 2**63 - 1
Test = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from `low` to `high`, both inside; empty when `low > high`."""

    low: int = -_ANY
    high: int = _ANY

    def cut(self, low: int = -_ANY, high: int = _ANY) -> "Interval":
        return Interval(max(self.low, low), min(self.high, high))


@dataclass(frozen=True, slots=True)
class Pruning:
    """Where rows can be. `store_timestamps` are ms and already widened by CLOCK_STEP_MS_MAX."""

    topic_tests: tuple[Test, ...] = ()
    queue_id_tests: tuple[Test, ...] = ()
    queue_offsets: Interval = Interval()
    store_timestamps: Interval = Interval()

    def admits(self, topic: str, queue_id: int) -> bool:
        """Whether rows of this queue can pass the filters."""
        return all(test(topic) for test in self.topic_tests) and all(test(queue_id) for test in self.queue_id_tests)


def pruning_of(filters: Iterable[Filter]) -> Pruning:
    """What the filters, all of which hold for a wanted row, allow."""
    pruning = Pruning()
    for pushed in filters:
        column = getattr(pushed.child if isinstance(pushed, Not) else pushed, "attribute", ())
        if column == ("topic",) and (test := _test(pushed)):
            pruning = replace(pruning, topic_tests=(*pruning.topic_tests, test))
        elif column == ("queueId",) and (test := _test(pushed)):
            pruning = replace(pruning, queue_id_tests=(*pruning.queue_id_tests, test))
        elif column == ("queueOffset",):
            pruning = replace(pruning, queue_offsets=_narrowed(pruning.queue_offsets, pushed, int, int))
        elif column == ("storeTimestamp",):
            narrowed = _narrowed(
                pruning.store_timestamps,
                pushed,
                lambda value: _milliseconds(value) - CLOCK_STEP_MS_MAX,
                lambda value: _milliseconds(value) + 1 + CLOCK_STEP_MS_MAX,
            )
            pruning = replace(pruning, store_timestamps=narrowed)
    return pruning


def _test(pushed: Filter) -> Test | None:
    """The filter as a test of one value that is never null; None when it is of a kind that says nothing."""
    if isinstance(pushed, Not):
        inner = _test(pushed.child)
        return inner and (lambda value: not inner(value))
    wanted = getattr(pushed, "value", None)
    if wanted is None or (isinstance(pushed, In) and None in pushed.value):
        return None
    tests: dict[type, Test] = {
        EqualTo: lambda value: value == wanted,
        EqualNullSafe: lambda value: value == wanted,
        In: lambda value: value in wanted,
        GreaterThan: lambda value: value > wanted,
        GreaterThanOrEqual: lambda value: value >= wanted,
        LessThan: lambda value: value < wanted,
        LessThanOrEqual: lambda value: value <= wanted,
        StringStartsWith: lambda value: value.startswith(wanted),
        StringEndsWith: lambda value: value.endswith(wanted),
        StringContains: lambda value: wanted in value,
    }
    return tests.get(type(pushed))


def _narrowed(
    interval: Interval, pushed: Filter, lowest: Callable[[Any], int], highest: Callable[[Any], int]
) -> Interval:
    """The interval cut by a filter; `lowest` and `highest` turn its value into the outermost numbers it may mean."""
    value = getattr(pushed, "value", None)
    if value is None or isinstance(pushed, Not):
        return interval
    if isinstance(pushed, EqualTo | EqualNullSafe):
        return interval.cut(lowest(value), highest(value))
    if isinstance(pushed, In):
        known = [each for each in value if each is not None]
        return interval.cut(min(map(lowest, known)), max(map(highest, known))) if known else interval
    if isinstance(pushed, GreaterThan | GreaterThanOrEqual):
        return interval.cut(low=lowest(value))
    if isinstance(pushed, LessThan | LessThanOrEqual):
        return interval.cut(high=highest(value))
    return interval


def _milliseconds(value: datetime) -> int:
    return int(value.timestamp() * 1000)
