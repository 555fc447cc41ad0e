"""Names, records and index files of the tier against RocketMQ's vectors."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.layout import tier
from stratalog.layout.javahash import KEY_SET_CAPACITY, hash_map_order, index_key_hash, string_hash
from stratalog.layout.message import Host, Record, decode_record
from stratalog.layout.messageid import offset_message_id
from stratalog.layout.queue import UNIT
from stratalog.layout.tier import SegmentType

MESSAGE = bytes.fromhex(
    "00000087daa320a711223344000000000000000000000000000000647777777700000064000000000000018bcfe6ee9f0a000001000004d2"
    "0000018bcfe6eea00a00000200002a9f00000000000000000000000000000008626f64792d3130300c746f7069632d746965726564"
    "00184b455953016b31303002554e49515f4b4559015531303002"
)
"""Message 100 as a local record; its body CRC is made up."""


def message(queue_offset: int, timestamp: int) -> Record:
    return Record(
        topic=b"topic-tiered",
        body=f"body-{queue_offset}".encode(),
        properties=f"KEYS\x01k{queue_offset}\x02UNIQ_KEY\x01U{queue_offset}\x02".encode(),
        queue_offset=queue_offset,
        commit_log_offset=0x7777777700000000 + queue_offset,
        born_timestamp=timestamp - 1,
        born_host=Host.parse("10.0.0.1:1234"),
        store_timestamp=timestamp,
        store_host=Host.parse("10.0.0.2:10911"),
        body_crc=0x11223344,
    )


def copied(records: list[Record], start: int = 0) -> bytes:
    """The records as the tier stores them: each with its offset in this log."""
    parts, offset = [], start
    for record in records:
        parts.append(replace(record, commit_log_offset=offset).encode())
        offset += record.total_size
    return b"".join(parts)


def test_the_fixture_is_the_record_that_rocketmq_read() -> None:
    record = message(100, 1700000100000)
    assert record.encode() == MESSAGE
    assert decode_record(MESSAGE, verify=False) == record
    assert offset_message_id(record.store_host, record.commit_log_offset) == "0A00000200002A9F7777777700000064"
    assert offset_message_id(record.store_host, 0) == "0A00000200002A9F0000000000000000"


def test_three_messages_are_copied_as_rocketmq_copies_them() -> None:
    log = copied([message(q, 1700000000000 + 1000 * q) for q in (100, 101, 102)])
    assert hashlib.sha256(log).hexdigest() == "120ecab2e772fc7f1f24b81c6d6f15bf4c5785e9f1130ce3b3b2a57bc5e77f29"
    units = b"".join(UNIT.pack(offset, 135, string_hash("TagA")) for offset in (0, 135, 270))
    assert units.hex() == (
        "000000000000000000000087000000000027a807"
        "000000000000008700000087000000000027a807"
        "000000000000010e00000087000000000027a807"
    )


@pytest.mark.parametrize(
    ("first", "name", "digest"),
    [
        (10, "cfcd208400000000000000000000", "ca51d038d8cb3e16f96cc47fba6f469e5f8dc0438a4bd97fbccd2fe3cf9af69e"),
        (12, "d6baf65e00000000000000000264", "7859581df9c2a71e50961351af9974692c2eb40be9248654c25b7942053232b5"),
        (14, "f4be002700000000000000000528", "29a4601bd273235b4d9534560eac1a2612a1b68835a9a0a1fa45b7b9db076f8b"),
        (16, "96ea64f300000000000000000792", "51f7ca307976feecca6326c3d165e5a413ba1b7d59addd83a9f245ad5238cfd9"),
    ],
)
def test_segments_of_a_rolled_log_are_those_of_rocketmq(first: int, name: str, digest: str) -> None:
    base = (first - 10) * 132
    assert tier.segment_name(base) == name
    segment = copied([message(q, 1000 + 10 * q) for q in range(first, min(first + 2, 17))], base)
    assert hashlib.sha256(segment).hexdigest() == digest


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (0, "cfcd208400000000000000000000"),
        (600, "d490d7b400000000000000000600"),
        (2000, "08f90c1a00000000000000002000"),
        (1073741775, "1f329fef00000000001073741775"),
        (104857600, "40d473e300000000000104857600"),
        (4294937144, "b10da56800000000004294937144"),
    ],
)
def test_segment_names_are_those_of_rocketmq(base: int, name: str) -> None:
    assert tier.segment_name(base) == name
    assert tier.segment_base(name) == base


@given(base=st.integers(0, 2**62 - 1))
def test_a_base_offset_comes_back_from_its_name(base: int) -> None:
    assert tier.segment_base(tier.segment_name(base)) == base


@pytest.mark.parametrize(
    "name",
    ["", "0" * 28, "cfcd20840000000000000000000", "CFCD208400000000000000000000", "cfcd208400000000000000000001"],
)
def test_other_files_are_not_taken_for_segments(name: str) -> None:
    assert tier.segment_base(name) is None


def test_paths_are_those_of_rocketmq() -> None:
    assert tier.cluster_directory("DefaultCluster") == "212d6b50_DefaultCluster"
    assert tier.hash8("TieredStorageDailyTest") == "161c08ff"
    assert tier.flat_file_path("brokerName", tier.INDEX_TOPIC, 0) == "brokerName/rmq_sys_INDEX/0"
    assert tier.segment_path("DefaultCluster", "broker-a", "topic-tiered", 0, SegmentType.CONSUME_QUEUE, 2000) == (
        "212d6b50_DefaultCluster/broker-a/topic-tiered/0/CONSUME_QUEUE/08f90c1a00000000000000002000"
    )


def test_index_files_have_the_size_of_rocketmqs() -> None:
    assert tier.open_index_size(5, 20) == 708
    assert tier.open_index_size(tier.INDEX_SLOT_COUNT, tier.INDEX_ITEM_CAPACITY) == 680_000_028
    assert tier.compacted_index_size(5, 19) == 600
    assert tier.compacted_index_size(tier.INDEX_SLOT_COUNT, tier.INDEX_ITEM_CAPACITY - 1) == 600_000_000
    for slot_count, item_count in ((1, 0), (5, 19), (5_000_000, 19_999_999)):
        assert tier.compacted_slot_count(tier.compacted_index_size(slot_count, item_count), item_count) == slot_count


def open_index() -> bytes:
    """Four items in five slots, put as RocketMQ puts them."""
    slots, items = np.zeros(5, tier.OPEN_SLOT.dtype), np.zeros(20, tier.OPEN_ITEM.dtype)
    for i in range(4):
        key_hash = index_key_hash(string_hash(f"topic-tiered#k{100 + i % 3}"))
        slot = key_hash % 5
        items[i + 1] = (key_hash, 7, 0, 157 * i, 157, 1500 * i // 1000, slots[slot]["newest_item"])
        slots[slot]["newest_item"] = i + 1
    header = tier.INDEX_HEADER.pack(tier.MAGIC_OPEN, 1700000000000, 1700000004500, 3, 4)
    return header + slots.tobytes() + items.tobytes()


def test_an_open_index_file_is_that_of_rocketmq() -> None:
    data = open_index()
    assert data[: tier.INDEX_HEADER.size].hex() == "bcc502890000018bcfe568000000018bcfe579940000000300000004"
    assert hashlib.sha256(data).hexdigest() == "49c2ae3d18ad788752487796597e9210002b38b0f9e8977cec92347256bc41af"


def test_a_compacted_index_file_is_that_of_rocketmq() -> None:
    data = open_index()
    items = np.frombuffer(data, tier.OPEN_ITEM.dtype, 20, tier.open_index_size(5, 0))
    order = sorted(range(1, 5), key=lambda number: (int(items[number]["key_hash"]) % 5, -number))
    position, slots = tier.compacted_index_size(5, 0), b""
    for slot in range(5):
        size = tier.COMPACTED_ITEM.size * sum(int(items[number]["key_hash"]) % 5 == slot for number in order)
        slots += tier.COMPACTED_SLOT.pack(position, size)
        position += size
    header = tier.INDEX_HEADER.pack(tier.MAGIC_FINISHED, 1700000000000, 1700000004500, 3, 4)
    compacted = header + slots + b"".join(items[number].tobytes()[: tier.COMPACTED_ITEM.size] for number in order)
    assert len(compacted) == 180
    assert hashlib.sha256(compacted).hexdigest() == "9060196b0f599b1d1c47c7590fe9b6849323bfee5b91c2d670746c934b5986b4"


def test_magic_numbers_are_those_of_rocketmq() -> None:
    assert (tier.MAGIC_OPEN, tier.MAGIC_FINISHED) == (-1127939447, -1127939451)


def test_keys_of_a_message_are_put_in_the_order_of_a_small_set() -> None:
    assert hash_map_order(["k100", "U100"], KEY_SET_CAPACITY) == ["k100", "U100"]
