"""Walking unchecked bytes: every reason to stop, and nothing read outside the range."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import twins
from kernels.memory import Fence
from kernels.messages import log_bytes, placed, record_lists, sealed
from stratalog.kernels.recordcrc import seal_records
from stratalog.kernels.scan import BODY_ONLY, TRUST, VERIFY, ScanStatus, find_record, scan
from stratalog.layout.message import BLANK, HEAD, MAGIC_BLANK, MAGIC_V2, Host, Record
from stratalog.layout.recordcrc import reserve_record_crc

BASE = 1 << 30
V6 = Host(bytes(range(16)), 10911)


def scanned(data: bytes, begin: int, base_offset: int, *, verify: int = VERIFY, room: int = 100):
    fence = Fence(data)
    positions, sizes = np.zeros(room, np.int64), np.zeros(room, np.int32)
    count, position, status = scan(fence.address, begin, len(data), base_offset, verify, positions, sizes)
    return positions[:count].tolist(), sizes[:count].tolist(), position, ScanStatus(status)


def found(data: bytes, begin: int, base_offset: int) -> int:
    fence = Fence(data)
    return find_record(fence.address, begin, fence.size, base_offset)


def sample() -> list[Record]:
    """An ordinary record, an empty one, one with both hosts IPv6 and one of V2."""
    return placed(
        [
            Record(topic=b"TopicTest", body=b"Hello RocketMQ", properties=b"TAGS\x01TagA\x02"),
            Record(topic=b"", body=b""),
            Record(topic=b"T", body=b"six", born_host=V6, store_host=V6, properties=b"KEYS\x01k\x02"),
            Record(topic=b"%RETRY%" + b"g" * 125, body=b"v2", magic=MAGIC_V2, store_host=V6),
        ],
        BASE,
    )


def overwritten(data: bytes, field: str, value: int) -> bytes:
    """The bytes with one head field of their first record changed."""
    values = HEAD.unpack(data)._replace(**{field: value})
    return HEAD.pack(*values) + data[HEAD.size :]


@given(record_lists, st.binary(max_size=120), st.booleans(), st.integers(0, 12), st.sampled_from([-1, BASE]))
def test_a_scan_is_its_twin(records, tail: bytes, verify: bool, room: int, base_offset: int) -> None:
    data = log_bytes(placed(records, BASE)) + tail
    expected = twins.scan(data, 0, len(data), base_offset, verify=verify, room=room)
    assert scanned(data, 0, base_offset, verify=VERIFY if verify else TRUST, room=room) == expected


@given(record_lists, st.data())
def test_a_flipped_byte_stops_both_at_the_same_place(records, data) -> None:
    log = bytearray(log_bytes(placed(records, BASE)) or b"\0")
    for _ in range(data.draw(st.integers(1, 3))):
        log[data.draw(st.integers(0, len(log) - 1))] = data.draw(st.integers(0, 255))
    expected = twins.scan(bytes(log), 0, len(log), BASE, verify=True, room=100)
    assert scanned(bytes(log), 0, BASE) == expected


def test_a_cut_anywhere_is_seen_and_nothing_behind_it_is_read() -> None:
    data = log_bytes(sample())
    for end in range(len(data) + 1):
        assert scanned(data[:end], 0, BASE) == twins.scan(data, 0, end, BASE, verify=True, room=100)


def test_whole_records_of_every_shape_end_the_scan_at_the_end() -> None:
    records = sample()
    positions, sizes, position, status = scanned(log_bytes(records), 0, BASE)
    assert sizes == [record.total_size for record in records]
    assert positions == [record.commit_log_offset - BASE for record in records]
    assert (position, status) == (sum(sizes), ScanStatus.END)


def _first(**changes) -> bytes:
    return replace(sample()[0], **changes).encode()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", ScanStatus.END),
        (bytes(90), ScanStatus.END),
        (bytes(91), ScanStatus.BAD_MAGIC),
        (BLANK.pack(8, MAGIC_BLANK), ScanStatus.BLANK),
        (BLANK.pack(300, MAGIC_BLANK) + bytes(292), ScanStatus.BLANK),
        (overwritten(_first(), "total_size", 90), ScanStatus.BAD_SIZE),
        (overwritten(_first(), "total_size", -1), ScanStatus.BAD_SIZE),
        (_first()[:-1], ScanStatus.BAD_SIZE),
        (overwritten(_first(), "body_size", -1), ScanStatus.BAD_BODY_SIZE),
        (overwritten(_first(), "body_size", 2**31 - 1), ScanStatus.BAD_BODY_SIZE),
        (overwritten(Record(topic=b"", body=b"", commit_log_offset=BASE).encode(), "sys_flag", 0x30),
         ScanStatus.BAD_BODY_SIZE),
        (overwritten(_first(), "body_size", 13), ScanStatus.BAD_LENGTHS),
        (overwritten(_first(), "sys_flag", 0x10), ScanStatus.BAD_BODY_SIZE),
        (overwritten(_first(magic=MAGIC_V2), "magic", HEAD.unpack(_first()).magic), ScanStatus.BAD_LENGTHS),
        (_first(commit_log_offset=0), ScanStatus.BAD_OFFSET),
        (_first(body_crc=1), ScanStatus.BAD_CRC),
    ],
)  # fmt: skip
def test_each_kind_of_damage_has_its_status(data: bytes, status: ScanStatus) -> None:
    assert scanned(data, 0, BASE) == ([], [], 0, status) == twins.scan(data, 0, len(data), BASE, verify=True, room=9)


def test_a_body_of_no_bytes_has_no_crc_to_check() -> None:
    data = Record(topic=b"T", body=b"", body_crc=77).encode()
    assert scanned(data, 0, 0)[0] == [0]


def test_offsets_and_crcs_are_ignored_on_request() -> None:
    data = _first(commit_log_offset=5, body_crc=1)
    assert scanned(data, 0, -1, verify=TRUST)[0] == [0]


def test_a_scan_goes_on_where_the_arrays_were_full() -> None:
    data = log_bytes(sample())
    positions, position, status = [], 0, ScanStatus.FULL
    while status == ScanStatus.FULL:
        part, _, position, status = scanned(data, position, BASE, room=1)
        positions += part
    assert positions == scanned(data, 0, BASE)[0]
    assert (position, status) == (len(data), ScanStatus.END)


@given(record_lists, st.binary(max_size=60), st.integers(0, 50), st.sampled_from([-1, BASE]))
def test_the_next_record_is_found_as_by_trying_every_position(records, noise: bytes, begin: int, base: int) -> None:
    data = noise + log_bytes(placed(records, BASE + len(noise)))
    assert found(data, begin, base) == twins.find_record(data, begin, len(data), base)


def test_a_record_cut_anywhere_is_not_found_and_not_read_past() -> None:
    data = log_bytes(sample())
    for end in range(len(data)):
        assert found(data[:end], 0, BASE) == twins.find_record(data, 0, end, BASE)


def test_a_damaged_record_is_passed_over_for_the_next_whole_one() -> None:
    records = sample()
    data = bytearray(log_bytes(records))
    data[HEAD.size] ^= 1
    assert found(bytes(data), 0, BASE) == records[1].commit_log_offset - BASE


def with_record_crc(**changes) -> bytes:
    record = replace(sample()[0], **changes)
    return sealed(replace(record, properties=reserve_record_crc(record.properties))).encode()


def test_every_flipped_bit_of_a_record_with_a_record_crc_is_seen() -> None:
    data = with_record_crc()
    assert scanned(data, 0, BASE)[0] == [0]
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            assert scanned(bytes(flipped), 0, BASE)[0] == [], (position, bit)


def test_a_wrong_record_crc_is_damage_although_the_body_is_whole() -> None:
    flipped = with_record_crc().replace(b"TagA", b"TagB")
    assert scanned(flipped, 0, BASE)[3] == ScanStatus.BAD_RECORD_CRC
    assert scanned(flipped, 0, BASE, verify=BODY_ONLY)[0] == [0], "in the tier it holds no longer"
    assert found(flipped, 0, BASE) == -1


def test_the_crc_of_another_record_among_the_properties_is_none_of_this_one() -> None:
    properties = b"__CRC32#\x010360426102\x02TAGS\x01t\x02"
    assert scanned(_first(properties=properties), 0, BASE)[0] == [0]


def test_a_property_that_only_looks_like_a_record_crc_is_none() -> None:
    assert scanned(_first(properties=b"ABCDEFGH\x010360426102\x02"), 0, BASE)[0] == [0]
    assert scanned(_first(body=b"__CRC32#", topic=b"0" * 10, properties=b""), 0, BASE)[0] == [0]


@given(record_lists)
def test_records_are_sealed_together_as_one_by_one(records) -> None:
    records = [replace(record, properties=reserve_record_crc(record.properties)) for record in records]
    raw = np.frombuffer(bytearray(b"".join(record.encode() for record in records)) or bytearray(1), np.uint8)
    seal_records(raw.ctypes.data, raw.ctypes.data + sum(record.total_size for record in records))
    assert raw.tobytes() == log_bytes([sealed(record) for record in records]) or not records
