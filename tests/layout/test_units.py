"""Queue units, index files, the record CRC and the timer's units against RocketMQ's vectors."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layout.shapes import any_record
from stratalog.layout import checkpoint, index, queue, timer
from stratalog.layout.document import example_record
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.message import Record, decode_record
from stratalog.layout.properties import decode_properties
from stratalog.layout.recordcrc import record_crc_holds, reserve_record_crc, seal_record_crc


def spaced(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def test_queue_units_are_those_of_rocketmq() -> None:
    tags_code = string_hash("TagA")
    assert queue.UNIT.pack(4096, 187, tags_code) == spaced("0000000000001000 000000bb 000000000027a807")
    hard = queue.UNIT.pack(4096, 187, string_hash("polygenelubricants"))
    assert hard == spaced("0000000000001000 000000bb ffffffff80000000")
    assert spaced("0000000000000000 7fffffff 0000000000000000") == queue.FILLER
    assert queue.BATCH_UNIT.pack(4096, 187, tags_code, 1700000000123, 7, 3, -1, 0) == spaced(
        "0000000000001000 000000bb 000000000027a807 0000018bcfe5687b 0000000000000007 0003 ffffffff 00000000"
    )
    unit = queue.EXTENSION_UNIT.pack(24, tags_code, 1700000000123, 4)
    assert unit + spaced("01020304") == spaced("0018 000000000027a807 0000018bcfe5687b 0004 01020304")


def test_an_extension_address_is_told_from_a_hash() -> None:
    address = queue.EXTENSION_ADDRESS_BASE + 100
    assert address.to_bytes(8, "big", signed=True) == spaced("8000000000000064")
    assert queue.is_extension_address(address)
    assert queue.extension_position(address) == 100
    assert queue.is_extension_address(-(2**31) - 1)
    for tags_code in (-(2**31), -1, 0, 2**31 - 1, 1700000010123):
        assert not queue.is_extension_address(tags_code)


def test_a_checkpoint_has_its_5_3_part_in_front() -> None:
    packed = checkpoint.CHECKPOINT.pack(1700000000123, 1700000000100, 0, 0, 4096, 0)
    assert packed[: checkpoint.SIZE_5_3] == spaced(
        "0000018bcfe5687b 0000018bcfe56864 0000000000000000 0000000000000000 0000000000001000"
    )


INDEX_FILE = spaced(
    "0000018bcfe5687b 0000018bcfe56864 0000000000001000 0000000000001770 00000002 00000005"
    "00000000 00000000 00000000 00000004 00000003 00000000 00000000 00000000 00000000 00000000"
    "0000000000000000000000000000000000000000"
    "6d0746d0 0000000000001000 00000000 00000000"
    "6d0746cf 0000000000001000 00000001 00000000"
    "6d0746d0 0000000000001388 00000005 00000001"
    "609a4b71 0000000000001770 00000000 00000002"
)
"""A full index file of 10 slots and 5 items, written by IndexFile of 5.3.3."""


def test_an_index_file_of_rocketmq_is_read_as_it_was_put() -> None:
    assert len(INDEX_FILE) == index.file_size(10, 5) == 180
    header = index.HEADER.unpack(INDEX_FILE)
    assert (header.begin_timestamp, header.end_timestamp) == (1700000000123, 1700000000100)
    assert (header.used_slot_count, header.next_item) == (2, 5)
    slots = np.frombuffer(INDEX_FILE, index.SLOT.dtype, 10, index.slots_position())["newest_item"]
    items = np.frombuffer(INDEX_FILE, index.ITEM.dtype, 5, index.items_position(10))
    key_hash = index_key_hash(string_hash(index.index_key("TopicTest", "order-1")))
    number, found = int(slots[key_hash % 10]), []
    while number:
        if items[number]["key_hash"] == key_hash:
            found.append(int(items[number]["commit_log_offset"]))
        number = int(items[number]["previous_item"])
    assert found == [5000, 4096], "newest first"
    assert items["seconds"].tolist() == [0, 0, 1, 5, 0]


def test_index_files_have_the_size_of_rocketmqs() -> None:
    assert index.file_size(index.SLOT_COUNT, index.ITEM_CAPACITY) == 420_000_040
    assert index.tag_key("TopicTest", "TagA") == "TopicTest#T#TagA"


def test_the_record_crc_is_that_of_rocketmq() -> None:
    record = replace(example_record(), properties=reserve_record_crc(example_record().properties))
    sealed = seal_record_crc(record.encode())
    assert len(sealed) == 207
    assert sealed.endswith(spaced("5f5f435243333223 01 32343938313330373031 02"))
    assert decode_properties(decode_record(sealed).properties)["__CRC32#"] == str(1070318942)[::-1]
    assert record_crc_holds(sealed)
    assert not record_crc_holds(example_record().encode())
    assert not record_crc_holds(b"short")


@given(record=any_record, data=st.data())
def test_the_record_crc_tells_every_changed_bit(record: Record, data: st.DataObject) -> None:
    sealed = seal_record_crc(replace(record, properties=reserve_record_crc(record.properties)).encode())
    assert record_crc_holds(sealed)
    changed = bytearray(sealed)
    changed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert not record_crc_holds(bytes(changed))


def test_room_for_the_crc_is_kept_apart_from_the_other_properties() -> None:
    assert reserve_record_crc(b"") == b"__CRC32#\x010000000000\x02"
    assert reserve_record_crc(b"A\x01b") == b"A\x01b\x02__CRC32#\x010000000000\x02"
    assert reserve_record_crc(b"A\x01b\x02") == b"A\x01b\x02__CRC32#\x010000000000\x02"
    with pytest.raises(AssertionError, match="no room"):
        seal_record_crc(example_record().encode())


def test_timer_units_are_those_of_rocketmq() -> None:
    unit = timer.LOG_UNIT.pack(52, -1, 1, 1700000000000, 5000, 4096, 187, string_hash("TopicTest"), 0)
    assert unit == spaced(
        "00000034 ffffffffffffffff 00000001 0000018bcfe56800 00001388"
        "0000000000001000 000000bb 8e987641 0000000000000000"
    )
    assert timer.wheel_slot(1700000005000) == 512005
    slot = timer.WHEEL_SLOT.pack(1700000005000 // timer.PRECISION_MS, 0, 52, 2, 0)
    assert slot == spaced("000000006553f105 0000000000000000 0000000000000034 00000002 00000000")
    assert timer.WHEEL_SLOT_COUNT * timer.WHEEL_SLOT.size == 38_707_200
