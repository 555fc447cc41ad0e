"""The local key index: filling it to the last item, and asking it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import twins
from kernels.memory import address_of, array_of
from kernels.messages import log_bytes, placed, record_lists
from stratalog.kernels.index import HEADER_END_OFFSET, HEADER_NEXT_ITEM, find_items, put_keys
from stratalog.layout import index
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.message import Record

T0 = 1_700_000_000_123
ALL_TIME = (-(2**62), 2**62)


class File:
    """An IndexFile in memory."""

    def __init__(self, slot_count: int, item_capacity: int, header: list[int] | None = None) -> None:
        self.slot_count, self.item_capacity = slot_count, item_capacity
        self.data = np.zeros(index.file_size(slot_count, item_capacity), np.uint8)
        self.header = np.array(header or [0, 0, 0, 0, 0, 1], np.int64)

    def put(self, records: list[Record], first: int, *, with_tags: bool, start_key: int) -> tuple[int, int]:
        log = array_of(log_bytes(records))
        base = records[0].commit_log_offset if records else 0
        positions = np.array([record.commit_log_offset - base for record in records] or [0], np.int64)
        return put_keys(
            address_of(log), positions, first, len(records), base, address_of(self.data),
            address_of(self.data) + index.items_position(self.slot_count), self.slot_count, self.item_capacity,
            self.header, with_tags, start_key,
        )  # fmt: skip

    def find(self, key_hash: int, begin: int, end: int, limit: int = 64) -> list[int]:
        out = np.zeros(limit, np.int64)
        count = find_items(
            address_of(self.data), self.slot_count, self.item_capacity, int(self.header[0]),
            int(self.header[HEADER_NEXT_ITEM]), key_hash, begin, end, False, out,
        )  # fmt: skip
        return out[:count].tolist()

    def bytes_behind_header(self) -> bytes:
        return self.data.tobytes()[index.slots_position() :]


def twin_of(file: File) -> twins.IndexTwin:
    return twins.IndexTwin(file.slot_count, file.item_capacity, file.header.tolist())


@given(record_lists, st.integers(1, 7), st.integers(2, 12), st.booleans(), st.integers(0, 10**6))
def test_rolling_files_hold_what_the_twin_holds(records, slots: int, capacity: int, with_tags: bool, at: int) -> None:
    """Through as many files as it takes, each beginning with the end of the one before, as upstream's does."""
    records = placed(records, at)
    file = File(slots, capacity)
    twin = twin_of(file)
    record, key = 0, 0
    while record < len(records):
        done, keys_done = file.put(records, record, with_tags=with_tags, start_key=key)
        number, missing = record, None
        while number < len(records) and missing is None:
            missing = twin.put_record(records[number], with_tags=with_tags, start_key=key if number == record else 0)
            number += missing is None
        assert (done, keys_done) == (number, missing or 0)
        assert file.header.tolist() == twin.header
        assert file.bytes_behind_header() == twin.encode()
        record, key = done, keys_done
        if record < len(records):
            _, end_time, _, end_offset, _, _ = twin.header
            file = File(slots, capacity, [end_time, end_time, end_offset, end_offset, 0, 1])
            twin = twin_of(file)


KEYS = ["order-1", "order-2", "Aa", "BB", "polygenelubricants"]


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(-5000, 60_000)), max_size=40),
    st.sampled_from(KEYS),
    st.integers(-6000, 61_000),
    st.integers(-1000, 61_000),
    st.integers(1, 8),
)
def test_a_query_is_its_twin(puts, key: str, begin: int, end: int, limit: int) -> None:
    records = placed(
        [
            Record(topic=b"T", body=b"", properties=f"KEYS\x01{key}\x02".encode(), store_timestamp=T0 + delay)
            for key, delay in puts
        ]
    )
    file = File(3, 50)
    twin = twin_of(file)
    file.put(records, 0, with_tags=True, start_key=0)
    for record in records:
        twin.put_record(record, with_tags=True, start_key=0)
    key_hash = index_key_hash(string_hash(f"T#{key}"))
    assert file.find(key_hash, T0 + begin, T0 + end, limit) == twin.find(key_hash, T0 + begin, T0 + end, limit)


def golden_records() -> list[Record]:
    """Records of the reference's index example; offsets as there, so they do not stand one behind the other."""
    puts = [
        ("TopicTest", "order-1", 4096, T0), ("TopicTest", "order-2", 4096, 1_700_000_001_999),
        ("TopicTest", "order-1", 5000, 1_700_000_005_123), ("T", "polygenelubricants", 6000, 1_700_000_000_100),
        ("T", "refused", 7000, T0),
    ]  # fmt: skip
    return [
        Record(
            topic=topic.encode(), body=b"", properties=f"KEYS\x01{key}\x02".encode(),
            commit_log_offset=offset, store_timestamp=time,
        )
        for topic, key, offset, time in puts
    ]  # fmt: skip


def test_the_golden_index_file_comes_out_byte_for_byte() -> None:
    records = golden_records()
    log = array_of(log_bytes(records))
    starts = np.cumsum([0] + [record.total_size for record in records[:-1]])
    file = File(10, 5)
    for number, (record, start) in enumerate(zip(records, starts.tolist(), strict=True)):
        done = put_keys(
            address_of(log), np.array([start], np.int64), 0, 1, record.commit_log_offset - start,
            address_of(file.data), address_of(file.data) + index.items_position(10), 10, 5, file.header, True, 0,
        )  # fmt: skip
        assert done == ((1, 0) if number < 4 else (0, 0))
    assert index.HEADER.pack(*file.header.tolist()).hex() == (
        "0000018bcfe5687b0000018bcfe56864000000000000100000000000000017700000000200000005"
    )
    assert file.bytes_behind_header().hex() == (
        "00000000000000000000000000000004000000030000000000000000000000000000000000000000"
        "0000000000000000000000000000000000000000"
        "6d0746d000000000000010000000000000000000"
        "6d0746cf00000000000010000000000100000000"
        "6d0746d000000000000013880000000500000001"
        "609a4b7100000000000017700000000000000002"
    )
    assert file.find(index_key_hash(string_hash("TopicTest#order-1")), *ALL_TIME) == [5000, 4096]


def test_keys_are_the_unique_key_then_each_word_then_the_tags() -> None:
    properties = b"TAGS\x01TagA\x02KEYS\x01 b  a \x02UNIQ_KEY\x01u\x02"
    record = Record(topic=b"T", body=b"", properties=properties, store_timestamp=T0)
    for with_tags, keys in ((False, ["u", "b", "a"]), (True, ["u", "b", "a", "T#TagA"])):
        file = File(5, 10)
        assert file.put([record], 0, with_tags=with_tags, start_key=0) == (1, 0)
        items = np.frombuffer(file.data, index.ITEM.dtype, offset=index.items_position(5))[1 : len(keys) + 1]
        assert items["key_hash"].tolist() == [index_key_hash(string_hash(f"T#{key}")) for key in keys]
        assert file.header[HEADER_NEXT_ITEM] == len(keys) + 1


@pytest.mark.parametrize("capacity", range(2, 7))
def test_a_file_that_fills_up_inside_a_record_says_which_keys_are_in(capacity: int) -> None:
    properties = b"UNIQ_KEY\x01u\x02KEYS\x01a b c\x02TAGS\x01t\x02"
    record = Record(topic=b"T", body=b"", properties=properties, store_timestamp=T0)
    file = File(5, capacity)
    keys_in = capacity - 1
    assert file.put([record], 0, with_tags=True, start_key=0) == ((0, keys_in) if keys_in < 5 else (1, 0))
    rest = File(5, 10, [T0, T0, 0, 0, 0, 1])
    assert rest.put([record], 0, with_tags=True, start_key=keys_in) == (1, 0)
    assert rest.header[HEADER_NEXT_ITEM] == 1 + 5 - keys_in


def test_records_before_the_last_indexed_one_are_passed_over_and_that_one_is_indexed_again() -> None:
    records = placed([Record(topic=b"T", body=b"", properties=b"KEYS\x01k\x02")] * 3)
    file = File(5, 10, [T0, T0, 0, records[1].commit_log_offset, 0, 1])
    file.put(records, 0, with_tags=False, start_key=0)
    assert file.header[HEADER_NEXT_ITEM] == 3
    assert file.header[HEADER_END_OFFSET] == records[2].commit_log_offset


def test_links_that_a_crash_left_do_not_trap_a_query() -> None:
    """Header lost, items put again over stale slots: a slot may name a later or the same item."""
    file = File(1, 8)
    items = np.frombuffer(file.data, index.ITEM.dtype, offset=index.items_position(1))
    items["key_hash"], items["seconds"] = 5, 0
    items["commit_log_offset"] = np.arange(8)
    items["previous_item"] = [0, 3, 1, 2, 4, 99, -1, 2**31 - 1]
    slot = np.frombuffer(file.data, ">i4", 1, offset=index.slots_position())
    for newest, expected in ((1, [1]), (2, [2, 1]), (3, [3, 2, 1]), (4, [4]), (5, [5]), (6, [6]), (7, [7]), (8, [])):
        slot[0] = newest
        file.header[HEADER_NEXT_ITEM] = 8
        assert file.find(5, *ALL_TIME) == expected
    for newest in (0, -1, 9, 2**31 - 1):
        slot[0] = newest
        assert file.find(5, *ALL_TIME) == []
    slot[0], file.header[HEADER_NEXT_ITEM] = 1, 1
    assert file.find(5, *ALL_TIME) == []


def test_an_item_with_a_negative_time_ends_the_walk() -> None:
    file = File(1, 8, [T0, T0, 0, 0, 1, 4])
    items = np.frombuffer(file.data, index.ITEM.dtype, offset=index.items_position(1))
    items["commit_log_offset"][:4] = range(4)
    items["previous_item"][:4] = [0, 0, 1, 2]
    items["seconds"][2] = -1
    np.frombuffer(file.data, ">i4", 1, offset=index.slots_position())[0] = 3
    assert file.find(0, *ALL_TIME) == [3]
