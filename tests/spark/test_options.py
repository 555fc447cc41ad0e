"""What the format may be told, and what it says when it does not understand."""

import pytest

from stratalog.errors import ConfigurationError
from stratalog.pipeline.options import EARLIEST, LATEST, ReadOptions, parse_options

PLACE = {"path": "/store"}


def test_nothing_but_a_place_means_everything() -> None:
    assert parse_options(PLACE) == ReadOptions(path="/store")


def test_names_are_taken_in_any_case_as_spark_hands_them_over() -> None:
    assert parse_options(PLACE | {"minpartitions": "3", "FAILONDATALOSS": "False"}) == ReadOptions(
        path="/store", min_partitions=3, fail_on_data_loss=False
    )


def test_an_unknown_option_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown option 'topics'; known are path, tier, .*subscribePattern"):
        parse_options(PLACE | {"topics": "orders"})


def test_a_place_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="say what to read"):
        parse_options({"subscribe": "orders"})


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("assign", "orders", "not valid JSON"),
        ("assign", '{"orders": 1}', "write it like"),
        ("assign", '{"orders": [true]}', "write it like"),
        ("assign", "[1]", "write it like"),
        ("startingOffsets", "soonest", "not valid JSON"),
        ("startingOffsets", '{"orders": 5}', "write it like"),
        ("startingOffsets", '{"orders": {"x": 5}}', "is no offset"),
        ("endingOffsets", '{"orders": {"0": -3}}', "is no offset"),
        ("endingOffsets", '{"orders": {"0": 1.5}}', "is no offset"),
        ("startingTimestamp", "yesterday", "whole number"),
        ("endingTimestamp", "-1", "whole number"),
        ("minPartitions", "many", "whole number"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("subscribePattern", "(", "unterminated"),
        ("subscribe", " ", "must not be empty"),
        ("table", "topics", "messages, queues, segments, files"),
    ],
)
def test_a_value_that_cannot_be_read_is_named(name: str, text: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"option {name}=.*{reason}"):
        parse_options(PLACE | {name: text})


@pytest.mark.parametrize(
    ("given", "selected"),
    [
        ({}, {("orders", 0), ("orders", 1), ("order", 0)}),
        ({"subscribe": "orders"}, {("orders", 0), ("orders", 1)}),
        ({"subscribe": "order , orders"}, {("orders", 0), ("orders", 1), ("order", 0)}),
        ({"subscribePattern": "order"}, {("order", 0)}),
        ({"subscribePattern": "order.*"}, {("orders", 0), ("orders", 1), ("order", 0)}),
        ({"assign": '{"orders": [1], "order": []}'}, {("orders", 1)}),
    ],
)
def test_queues_are_selected(given: dict[str, str], selected: set[tuple[str, int]]) -> None:
    options = parse_options(PLACE | given)
    assert {queue for queue in (("orders", 0), ("orders", 1), ("order", 0)) if options.selects(*queue)} == selected


def test_two_ways_of_selecting_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="subscribe and assign exclude each other"):
        parse_options(PLACE | {"subscribe": "orders", "assign": '{"orders": [0]}'})


def test_offsets_are_by_queue_with_a_rule_for_the_others() -> None:
    options = parse_options(PLACE | {"startingOffsets": '{"orders": {"0": 7, "1": -1}}', "endingOffsets": "earliest"})
    starts = [options.starting_offsets.of("orders", queue_id) for queue_id in (0, 1, 2)]
    assert starts == [7, LATEST, EARLIEST]
    assert options.ending_offsets.of("orders", 0) == EARLIEST
