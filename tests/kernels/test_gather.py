"""Copying records for the tier."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import twins
from kernels.memory import Fence, address_of, array_of
from kernels.messages import log_bytes, placed, records
from stratalog.kernels.gather import GatherStatus, gather
from stratalog.layout.message import Host, Record, decode_record
from stratalog.layout.queue import FILLER, UNIT

FILE_SIZE, FIRST = 1000, 5000


class Log:
    """Records over files of FILE_SIZE bytes; none goes over a file's end."""

    def __init__(self, messages: list[Record]) -> None:
        self.records: list[Record] = []
        files: list[list[Record]] = [[]]
        for message in messages:
            if sum(record.total_size for record in files[-1]) + message.total_size > FILE_SIZE:
                files.append([])
            files[-1].append(message)
        self.fences = []
        for number, file in enumerate(files):
            self.records += placed(file, FIRST + number * FILE_SIZE)
            self.fences.append(Fence(log_bytes(self.records[len(self.records) - len(file) :]).ljust(FILE_SIZE, b"\0")))
        self.addresses = np.array([fence.address for fence in self.fences], np.int64)

    @property
    def units(self) -> list[bytes]:
        return [
            UNIT.pack(record.commit_log_offset, record.total_size, twins.tags_code(record, [0]))
            for record in self.records
        ]

    def gather(self, units: list[bytes], room: int, tier_offset: int) -> tuple[bytes, bytes, int, GatherStatus]:
        source, target = array_of(b"".join(units)), Fence(bytes(room))
        tier_units = Fence(bytes(UNIT.size * len(units)))
        done, size, status = gather(
            address_of(source), len(units), self.addresses, FIRST, FILE_SIZE,
            target.address, room, tier_offset, tier_units.address,
        )  # fmt: skip
        return target.read()[:size], tier_units.read()[: UNIT.size * done], done, GatherStatus(status)


@given(st.lists(records, max_size=12), st.randoms(use_true_random=False), st.integers(0, 2**50))
def test_copies_and_units_are_those_of_the_twin(messages, random, tier_offset: int) -> None:
    log = Log(messages)
    chosen = [number for number in range(len(messages)) if random.random() < 0.7]
    stored, tier_units = twins.gather([log.records[number] for number in chosen], tier_offset)
    got = log.gather([log.units[number] for number in chosen], len(stored), tier_offset)
    assert got == (stored, tier_units, len(chosen), GatherStatus.DONE)


@given(st.lists(records, min_size=1, max_size=4))
def test_a_full_buffer_stops_before_the_record_that_does_not_fit(messages) -> None:
    log = Log(messages)
    sizes = [record.total_size for record in log.records]
    for room in {0, sizes[0] - 1, sizes[0], sum(sizes) - 1}:
        fitting = max(n for n in range(len(sizes) + 1) if sum(sizes[:n]) <= room)
        stored, _, done, status = log.gather(log.units, room, 0)
        assert (done, len(stored)) == (fitting, sum(sizes[:fitting]))
        assert status == (GatherStatus.DONE if fitting == len(sizes) else GatherStatus.ROOM)


@pytest.mark.parametrize(
    "unit",
    [
        FILLER,
        UNIT.pack(FIRST - 1, 91, 0),
        UNIT.pack(FIRST, 90, 0),
        UNIT.pack(FIRST, -1, 0),
        UNIT.pack(FIRST + 10, FILE_SIZE - 9, 0),
        UNIT.pack(FIRST + FILE_SIZE, 91, 0),
        UNIT.pack(FIRST + 2 * FILE_SIZE, 91, 0),
        UNIT.pack(-(2**63), 91, 0),
        UNIT.pack(2**63 - 1, 91, 0),
    ],
)
def test_a_unit_that_points_nowhere_stops_there(unit: bytes) -> None:
    """Outside the log, over a file's end, into a file that is gone (the second), or a filler."""
    log = Log([Record(topic=b"T", body=b"x" * 600)] * 2)
    log.addresses[1] = 0
    stored, _, done, status = log.gather([log.units[0], unit, log.units[0]], 5000, 0)
    assert (done, status) == (1, GatherStatus.MISSING)
    assert len(stored) == log.records[0].total_size


def test_a_copy_differs_in_its_commit_log_offset_only() -> None:
    log = Log([Record(topic=b"T", body=b"abc", properties=b"KEYS\x01k\x02", prepared_transaction_offset=77)])
    stored, _, _, _ = log.gather(log.units, 500, 4242)
    assert decode_record(stored) == replace(decode_record(log.records[0].encode()), commit_log_offset=4242)


def tier_message(queue_offset: int, store_timestamp: int) -> Record:
    return Record(
        topic=b"topic-tiered", body=b"body-%d" % queue_offset, body_crc=0x11223344, queue_offset=queue_offset,
        properties=b"KEYS\x01k%d\x02UNIQ_KEY\x01U%d\x02" % (queue_offset, queue_offset),
        born_timestamp=store_timestamp - 1, born_host=Host(bytes([10, 0, 0, 1]), 1234),
        store_timestamp=store_timestamp, store_host=Host(bytes([10, 0, 0, 2]), 10911),
    )  # fmt: skip


def test_the_golden_segment_comes_out_byte_for_byte() -> None:
    """Three messages with tag TagA in their local units, as the tier stores them from offset 0."""
    log = Log([tier_message(q, 1_700_000_000_000 + 1000 * q) for q in (100, 101, 102)])
    units = [UNIT.pack(*UNIT.unpack(unit)[:2], 2598919) for unit in log.units]
    stored, tier_units, _, _ = log.gather(units, 1000, 0)
    assert hashlib.sha256(stored).hexdigest() == "120ecab2e772fc7f1f24b81c6d6f15bf4c5785e9f1130ce3b3b2a57bc5e77f29"
    assert tier_units.hex() == (
        "000000000000000000000087000000000027a807"
        "000000000000008700000087000000000027a807"
        "000000000000010e00000087000000000027a807"
    )


def test_golden_segments_of_a_rolled_log_come_out_byte_for_byte() -> None:
    log = Log([tier_message(q, 1000 + 10 * q) for q in range(10, 17)])
    units = [UNIT.pack(*UNIT.unpack(unit)[:2], 5) for unit in log.units]
    stored, tier_units, _, _ = log.gather(units, 2000, 0)
    segments = [stored[:264], stored[264:528], stored[528:792], stored[792:]]
    assert [hashlib.sha256(segment).hexdigest()[:16] for segment in segments] == [
        "ca51d038d8cb3e16", "7859581df9c2a71e", "29a4601bd273235b", "51f7ca307976feec",
    ]  # fmt: skip
    queue_segments = [tier_units[:60], tier_units[60:120], tier_units[120:]]
    assert [hashlib.sha256(segment).hexdigest()[:16] for segment in queue_segments] == [
        "da71922cd0176a82", "620ae5e5a93c0d8d", "882afc8d34af7f3f",
    ]  # fmt: skip
