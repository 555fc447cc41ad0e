"""Queue units from scanned records, and sorting them by queue."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import twins
from kernels.memory import address_of, array_of
from kernels.messages import log_bytes, placed, record_lists
from stratalog.kernels.dispatch import UnitStatus, build_units, insert_queue, queue_hash, scatter
from stratalog.kernels.queue_table import (
    NO_ROW,
    QUEUE_FIELDS,
    QUEUE_ID,
    QUEUE_KIND,
    QUEUE_NEXT_OFFSET,
    QUEUE_TOPIC_ADDRESS,
    QUEUE_TOPIC_SIZE,
    QueueKind,
)
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import Record
from stratalog.layout.names import SCHEDULE_TOPIC, delay_table_ms
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import Transaction, enters_queue

DELAYS = delay_table_ms()
BASE = 1 << 32


class Table:
    """Queues as the store keeps them for the kernels; grows by hand."""

    def __init__(self, capacity: int = 64) -> None:
        self.rows = np.zeros((capacity, QUEUE_FIELDS), np.int64)
        self.hashed = np.zeros(2 * capacity, np.int32)
        self.names: list[tuple[bytes, int]] = []
        self._keep: list[np.ndarray] = []

    def add(self, topic: bytes, queue_id: int, next_offset: int = 0) -> int:
        row, name = len(self.names), array_of(topic)
        self._keep.append(name)
        self.names.append((topic, queue_id))
        self.rows[row, [QUEUE_TOPIC_ADDRESS, QUEUE_TOPIC_SIZE]] = address_of(name), len(topic)
        self.rows[row, [QUEUE_ID, QUEUE_NEXT_OFFSET]] = queue_id, next_offset
        self.rows[row, QUEUE_KIND] = QueueKind(topic == SCHEDULE_TOPIC.encode())
        insert_queue(self.hashed, self.rows, row)
        return row


class Dispatch:
    """A log, and `build_units` over it with the store's answers to its statuses."""

    def __init__(self, records: list[Record], base_offset: int = BASE) -> None:
        self.records = placed(records, base_offset)
        self.base_offset = base_offset
        self.log = array_of(log_bytes(self.records))
        self.positions = np.array([r.commit_log_offset - base_offset for r in self.records] or [0], np.int64)
        count = len(records)
        self.units = np.zeros(UNIT.size * max(1, count), np.uint8)
        self.rows = np.full(max(1, count), 77, np.int32)
        self.table = Table()
        self.statuses: list[UnitStatus] = []

    def step(self, first: int) -> tuple[int, UnitStatus]:
        done, status = build_units(
            address_of(self.log), self.positions, first, len(self.records), self.base_offset,
            self.table.rows, self.table.hashed, self.units, self.rows, np.array(DELAYS, np.int64),
        )  # fmt: skip
        self.statuses.append(UnitStatus(status))
        return done, self.statuses[-1]

    def run(self) -> None:
        done, status = self.step(0)
        while status != UnitStatus.DONE:
            record = self.records[done]
            if status == UnitStatus.UNKNOWN_QUEUE:
                self.table.add(record.topic, record.queue_id, record.queue_offset)
            else:
                row = self.table.names.index((record.topic, record.queue_id))
                self.table.rows[row, QUEUE_NEXT_OFFSET] = record.queue_offset
            done, status = self.step(done)

    def unit(self, number: int) -> bytes:
        return self.units[UNIT.size * number : UNIT.size * (number + 1)].tobytes()

    def by_queue(self) -> dict[tuple[bytes, int], list[bytes]]:
        queues: dict[tuple[bytes, int], list[bytes]] = {}
        for number, row in enumerate(self.rows[: len(self.records)].tolist()):
            if row != NO_ROW:
                queues.setdefault(self.table.names[row], []).append(self.unit(number))
        return queues


def in_order(records: list[Record], first: int = 0) -> list[Record]:
    """The records with the queue offsets that a broker gives them."""
    following: dict[tuple[bytes, int], int] = {}
    result = []
    for record in records:
        queue = record.topic, record.queue_id
        offset = following.setdefault(queue, first) if enters_queue(record.sys_flag) else 0
        following[queue] = following.get(queue, first) + enters_queue(record.sys_flag)
        result.append(replace(record, queue_offset=offset))
    return result


@given(record_lists, st.sampled_from([0, 7, 2**40]))
def test_units_are_those_of_the_twin(records, first: int) -> None:
    dispatch = Dispatch(in_order(records, first))
    dispatch.run()
    assert dispatch.by_queue() == twins.units(dispatch.records, DELAYS)
    assert UnitStatus.GAP not in dispatch.statuses


def test_the_golden_record_gives_the_golden_unit() -> None:
    properties = b"KEYS\x01order-1 order-2\x02UNIQ_KEY\x017F00000100002A139A5500000000ABCD\x02TAGS\x01TagA\x02"
    record = Record(topic=b"TopicTest", body=b"Hello RocketMQ", properties=properties, queue_id=3, queue_offset=7)
    for tags, code in ((b"TagA", "000000000027a807"), (b"polygenelubricants", "ffffffff80000000")):
        tagged = replace(record, properties=properties.replace(b"TagA", tags))
        dispatch = Dispatch([tagged], 4096)
        dispatch.run()
        assert dispatch.unit(0).hex() == f"0000000000001000{tagged.total_size:08x}{code}"


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        (b"DELAY\x013\x02", 10_000), (b"DELAY\x01+3\x02", 10_000), (b"DELAY\x0199\x02", 7_200_000),
        (b"DELAY\x011\x02DELAY\x012", 5_000), (b"DELAY\x01003\x02", 10_000), (b"DELAY\x012147483647\x02", 7_200_000),
    ],
)  # fmt: skip
def test_a_delayed_message_has_its_deliver_time(properties: bytes, delay_ms: int) -> None:
    record = Record(topic=SCHEDULE_TOPIC.encode(), body=b"", properties=properties, store_timestamp=1_700_000_000_123)
    dispatch = Dispatch([record])
    dispatch.run()
    assert UNIT.unpack(dispatch.unit(0)).tags_code == 1_700_000_000_123 + delay_ms


@pytest.mark.parametrize("delay", [b"0", b"-1", b"", b"x", b"3 ", b"+", b"2147483648", b"99999999999999999999"])
def test_what_is_no_delay_level_leaves_the_hash_of_the_tags(delay: bytes) -> None:
    properties = b"TAGS\x01TagA\x02DELAY\x01" + delay + b"\x02"
    dispatch = Dispatch([Record(topic=SCHEDULE_TOPIC.encode(), body=b"", properties=properties)])
    dispatch.run()
    assert UNIT.unpack(dispatch.unit(0)).tags_code == 2598919


def test_delay_means_nothing_in_another_topic() -> None:
    dispatch = Dispatch([Record(topic=b"T", body=b"", properties=b"DELAY\x013\x02")])
    dispatch.run()
    assert UNIT.unpack(dispatch.unit(0)).tags_code == 0


@pytest.mark.parametrize("transaction", [Transaction.PREPARED, Transaction.ROLLBACK])
def test_prepared_and_rolled_back_messages_enter_no_queue(transaction: Transaction) -> None:
    dispatch = Dispatch([Record(topic=b"T", body=b"", sys_flag=transaction)])
    assert dispatch.step(0) == (1, UnitStatus.DONE)
    assert dispatch.rows.tolist() == [NO_ROW]


def test_an_unknown_queue_stops_before_its_record() -> None:
    dispatch = Dispatch([Record(topic=b"T", body=b"", queue_id=2), Record(topic=b"T", body=b"", queue_id=5)])
    assert dispatch.step(0) == (0, UnitStatus.UNKNOWN_QUEUE)
    dispatch.table.add(b"T", 2)
    assert dispatch.step(0) == (1, UnitStatus.UNKNOWN_QUEUE)
    dispatch.table.add(b"T", 5)
    assert dispatch.step(1) == (2, UnitStatus.DONE)
    assert dispatch.rows.tolist() == [0, 1]


def test_a_gap_stops_before_its_record_and_a_repetition_is_passed_over() -> None:
    offsets = [3, 4, 4, 2, 6]
    dispatch = Dispatch([Record(topic=b"T", body=b"", queue_offset=offset) for offset in offsets])
    dispatch.table.add(b"T", 0, 3)
    assert dispatch.step(0) == (4, UnitStatus.GAP)
    assert dispatch.rows[:4].tolist() == [0, 0, NO_ROW, NO_ROW]
    assert dispatch.table.rows[0, QUEUE_NEXT_OFFSET] == 5
    dispatch.table.rows[0, QUEUE_NEXT_OFFSET] = 6
    assert dispatch.step(4) == (5, UnitStatus.DONE)
    assert dispatch.table.rows[0, QUEUE_NEXT_OFFSET] == 7


def test_every_record_of_a_batch_queue_needs_more_but_those_that_enter_no_queue() -> None:
    prepared = Record(topic=b"T", body=b"", sys_flag=Transaction.PREPARED)
    dispatch = Dispatch([prepared, Record(topic=b"T", body=b"", queue_offset=9), prepared])
    dispatch.table.rows[dispatch.table.add(b"T", 0), QUEUE_KIND] = QueueKind.BATCH
    assert dispatch.step(0) == (1, UnitStatus.NEEDS_MORE)
    assert dispatch.step(2) == (3, UnitStatus.DONE)
    assert dispatch.rows.tolist() == [NO_ROW] * 3


_MULTI = f"{MULTI_DISPATCH}\x01".encode()


@pytest.mark.parametrize("kind", [QueueKind.PLAIN, QueueKind.LIGHT])
@pytest.mark.parametrize(
    ("properties", "names_some"),
    [
        (b"", False), (_MULTI + b"a", True), (_MULTI + b"x\x02", True), (b"A\x01b\x02" + _MULTI + b"x\x02C\x01", True),
        (_MULTI, False), (_MULTI + b"\x02", False), (_MULTI[:-1] + b"\x02", False), (b"x" + _MULTI + b"x", False),
        (b"A\x01" + _MULTI[:-1] + b"\x02", False), (_MULTI[:-1] + b"S\x01x\x02", False),
        (_MULTI.lower() + b"x\x02", False),
        (b"INNER_MULTI_QUEUE_OFFSET\x010\x02", False), (b"INNER_MULTI_DISPATCX\x01y\x02", False),
        (b"INNER_MULTX_DISPATCH\x01y\x02", False), (b"INNER_MULTI_DISXATCH\x01y\x02", False),
    ],
)  # fmt: skip
def test_a_record_needs_more_if_its_topic_allows_light_queues_and_it_names_some(
    properties: bytes, names_some: bool, kind: QueueKind
) -> None:
    dispatch = Dispatch([Record(topic=b"T", body=b"", properties=properties), Record(topic=b"T", body=b"")])
    dispatch.table.rows[dispatch.table.add(b"T", 0), QUEUE_KIND] = kind
    needs_more = names_some and kind == QueueKind.LIGHT
    assert dispatch.step(0) == ((0, UnitStatus.NEEDS_MORE) if needs_more else (2, UnitStatus.DONE))


def test_queues_with_colliding_names_are_told_apart() -> None:
    """A table of two entries per queue, filled with names that differ in one byte or in the queue id only."""
    topics = [bytes([65 + i]) * length for length in (1, 7, 8, 9, 20) for i in range(4)]
    records = [Record(topic=topic, body=b"", queue_id=queue_id) for topic in topics for queue_id in (0, 1, -1)]
    dispatch = Dispatch(in_order(records))
    dispatch.table = Table(len(records) + 4)
    dispatch.table.hashed = np.zeros(64, np.int32)
    dispatch.run()
    assert len(dispatch.table.names) == len(records) == len(dispatch.by_queue())


def test_a_queue_hash_depends_on_every_byte_and_on_the_queue() -> None:
    names = [b"", b"T", b"U", b"TopicTest", b"TopicTesu", b"UopicTest", b"TopicTes"]
    hashes = {queue_hash(address_of(array_of(name)), len(name), queue) for name in names for queue in range(4)}
    assert len(hashes) == 4 * len(names)


@given(st.lists(st.integers(-1, 5), max_size=60))
def test_units_are_sorted_by_queue_in_their_order(rows: list[int]) -> None:
    count, row_count = len(rows), 6
    units = array_of(b"".join(UNIT.pack(number, 91, 0) for number in range(count)))
    starts, out = np.full(row_count + 1, 9, np.int64), np.zeros_like(units)
    scatter(units, np.array(rows or [0], np.int32), count, row_count, starts, out)
    numbers = [UNIT.unpack(out.tobytes(), UNIT.size * i).commit_log_offset for i in range(int(starts[-1]))]
    parts = [numbers[starts[row] : starts[row + 1]] for row in range(row_count)]
    assert parts == [[i for i, r in enumerate(rows) if r == row] for row in range(row_count)]
