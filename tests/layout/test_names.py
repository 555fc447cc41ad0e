"""Names of files, topics and delay levels."""

from datetime import timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import IllegalMessage
from stratalog.layout.names import (
    check_topic,
    delay_table_ms,
    index_name,
    is_index_name,
    is_system_topic,
    is_tiered,
    offset_name,
    offset_of,
)


@given(offset=st.integers(0, 2**62 - 1))
def test_an_offset_comes_back_from_its_file_name(offset: int) -> None:
    assert len(offset_name(offset)) == 20
    assert offset_of(offset_name(offset)) == offset


@pytest.mark.parametrize(
    "name",
    ["", "0" * 19, "0" * 21, "9" * 20, "0" + str(2**62), "0" * 19 + "a", "0" * 20 + "\n", "٠" * 20, "-" + "0" * 19],
)
def test_other_files_are_not_taken_for_data_files(name: str) -> None:
    assert offset_of(name) is None


def test_an_index_file_is_named_by_its_time_in_the_brokers_zone() -> None:
    assert offset_name(1073741824) == "00000000001073741824"
    assert index_name(1700000000123) == "20231114221320123"
    assert index_name(1700000000123, timezone(timedelta(hours=8))) == "20231115061320123"
    assert is_index_name("20231114221320123")
    assert not is_index_name("20231114221320123.bak")


def test_delay_levels_are_read_from_their_text() -> None:
    table = delay_table_ms()
    assert (len(table), table[0], table[1], table[3], table[5], table[18]) == (19, 0, 1000, 10_000, 60_000, 7_200_000)
    assert delay_table_ms("2d 1h") == (0, 172_800_000, 3_600_000)
    assert delay_table_ms("") == (0,)


@pytest.mark.parametrize("levels", ["1", "s", "1x", "-1s", "1.5s", "²s", "1s 2"])
def test_a_delay_level_without_number_and_unit_is_refused(levels: str) -> None:
    with pytest.raises(IllegalMessage, match="delay level"):
        delay_table_ms(levels)


@pytest.mark.parametrize("topic", ["a", "T" * 127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250, "a|b-c_D%9", "%LMQ%x"])
def test_topics_that_rocketmq_takes_are_taken(topic: str) -> None:
    check_topic(topic)


@pytest.mark.parametrize(
    "topic",
    ["", "T" * 128, "%RETRY%" + "g" * 249, "a b", "a/b", "..", ".", "a\n", "a\x00", "主题", "tópico", "a#b", "a:b"],
)
def test_topics_that_must_not_become_a_directory_are_refused(topic: str) -> None:
    with pytest.raises(IllegalMessage):
        check_topic(topic)


@given(topic=st.text(max_size=12))
def test_a_topic_that_passes_is_a_plain_file_name(topic: str) -> None:
    try:
        check_topic(topic)
    except IllegalMessage:
        return
    assert topic.isascii()
    assert not set(topic) & set("/\\.\x00 ")


def test_system_topics_and_light_queues_are_not_tiered() -> None:
    assert is_system_topic("rmq_sys_INDEX")
    assert not is_system_topic("rmq_system")
    tiered = ["orders", "%RETRY%group", "%DLQ%group"]
    local = ["", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "%LMQ%x", "broker-a"]
    assert [topic for topic in tiered + local if is_tiered(topic, excluded=frozenset({"broker-a"}))] == tiered
