"""Writing rows of Arrow columns as records."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.memory import Fence, address_of, array_of
from stratalog.kernels.encode import EncodeStatus, encode_batch
from stratalog.kernels.queue_table import (
    QUEUE_FIELDS,
    QUEUE_ID,
    QUEUE_NEXT_OFFSET,
    QUEUE_TOPIC_ADDRESS,
    QUEUE_TOPIC_SIZE,
)
from stratalog.layout.message import BLANK, BODY_SIZE_MAX, PROPERTIES_SIZE_MAX, Host, Record, decode_record

BASE, NOW = 1 << 30, 1_700_000_000_123
BORN = Host(bytes([127, 0, 0, 1]), 50000)
STORE = Host(bytes([192, 168, 0, 10]), 10911)
QUEUES = [(b"TopicTest", 3, 7), ("主题".encode(), 0, 0), (b"x" * 127, 2**31 - 1, 2**40)]

Columns = dict[str, list[str]]


class Batch:
    """Rows for `encode_batch`; `columns` maps property names to values, "" as a name means ready-made text."""

    def __init__(self, bodies: list[bytes], columns: Columns, queue_of: list[int] | None = None) -> None:
        self.bodies, self.columns, self.count = bodies, columns, len(bodies)
        self.queue_of = queue_of or [0] * self.count
        self.keep: list[Any] = []
        self.queues = np.zeros((len(QUEUES), QUEUE_FIELDS), np.int64)
        for row, (topic, queue_id, next_offset) in enumerate(QUEUES):
            self.queues[row, [QUEUE_TOPIC_ADDRESS, QUEUE_TOPIC_SIZE]] = self.address(topic), len(topic)
            self.queues[row, [QUEUE_ID, QUEUE_NEXT_OFFSET]] = queue_id, next_offset

    def address(self, data: bytes) -> int:
        self.keep.append(array_of(data))
        return address_of(self.keep[-1])

    def arrow(self, values: list[Any], kind: pa.DataType) -> tuple[int, int]:
        """Offsets and data address of a column that begins in the middle of its buffers."""
        self.keep.append(pa.array([values[0] if values else None, *values], kind))
        _, offsets, data = self.keep[-1].buffers()
        return offsets.address + 4, data.address if data else self.address(b"")

    def encode(
        self, room: int, first: int = 0, count: int | None = None, *, flags: list[int] | None = None,
        born: list[int] | None = None, body_size_max: int = BODY_SIZE_MAX,
    ) -> tuple[bytes, int, EncodeStatus]:  # fmt: skip
        rows = [
            (self.address(n.encode()), len(n.encode()), *self.arrow(v, pa.string())) for n, v in self.columns.items()
        ]
        fence = Fence(bytes(room))
        done, size, status = encode_batch(
            fence.address, room, first, self.count - first if count is None else count,
            *self.arrow(self.bodies, pa.binary()), np.array(rows, np.int64).reshape(-1, 4),
            np.array(self.queue_of or [0], np.int32), self.queues,
            self.address(np.array(flags, "<i4").tobytes()) if flags else 0,
            self.address(np.array(born, "<i8").tobytes()) if born else 0,
            BASE, NOW, self.address(BORN.packed()), self.address(STORE.packed()), body_size_max,
        )  # fmt: skip
        return fence.read()[:size], done, EncodeStatus(status)

    def properties(self, row: int) -> bytes:
        parts = [(name, values[row]) for name, values in self.columns.items() if values[row]]
        return "".join(f"{name}\x01{value}\x02" if name else value for name, value in parts).encode()

    def expected(self, flags: list[int] | None = None, born: list[int] | None = None) -> list[Record]:
        following = [offset for _, _, offset in QUEUES]
        records, position = [], BASE
        for row, queue in enumerate(self.queue_of):
            record = Record(
                topic=QUEUES[queue][0], body=self.bodies[row], properties=self.properties(row),
                queue_id=QUEUES[queue][1], queue_offset=following[queue], commit_log_offset=position,
                flag=flags[row] if flags else 0, born_timestamp=born[row] if born else NOW, born_host=BORN,
                store_timestamp=NOW, store_host=STORE,
            )  # fmt: skip
            following[queue] += 1
            position += record.total_size
            records.append(record)
        return records


@st.composite
def batches(draw) -> tuple[Batch, list[int], list[int]]:
    count = draw(st.integers(0, 8))
    rows = lambda values: st.lists(values, min_size=count, max_size=count)  # noqa: E731
    bodies = draw(rows(st.binary(max_size=40) | st.just(b"")))
    names = draw(st.lists(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "schlüssel", ""]), unique=True, max_size=4))
    columns = {name: draw(rows(st.text("ab é中😀", max_size=20))) for name in names}
    batch = Batch(bodies, columns, draw(rows(st.integers(0, 2))))
    return batch, draw(rows(st.integers(-(2**31), 2**31 - 1))), draw(rows(st.integers(-(2**63), 2**63 - 1)))


@given(batches(), st.booleans())
def test_every_row_is_the_record_that_the_layout_encodes(drawn, plain: bool) -> None:
    batch, flags, born = drawn
    flags, born = ([], []) if plain else (flags, born)
    records = batch.expected(flags, born)
    stored = b"".join(record.encode() for record in records)
    got = batch.encode(len(stored) + BLANK.size, flags=flags, born=born)
    assert got == (stored, batch.count, EncodeStatus.DONE)
    taken = [batch.queue_of.count(queue) for queue in range(len(QUEUES))]
    following = [offset + n for (_, _, offset), n in zip(QUEUES, taken, strict=True)]
    assert batch.queues[:, QUEUE_NEXT_OFFSET].tolist() == following


def test_the_golden_record_comes_out_but_for_its_times() -> None:
    columns = {"KEYS": ["order-1 order-2"], "UNIQ_KEY": ["7F00000100002A139A5500000000ABCD"], "TAGS": ["TagA"]}
    stored, _, _ = Batch([b"Hello RocketMQ"], columns).encode(1000, born=[1_700_000_000_000])
    golden = (
        "000000bbdaa320a769c865ed00000003000000000000000000000007000000004000000000000000"
        "0000018bcfe568007f0000010000c3500000018bcfe5687bc0a8000a00002a9f0000000000000000000000000000000e"
        "48656c6c6f20526f636b65744d5109546f7069635465737400494b455953016f726465722d31206f726465722d3202"
        "554e49515f4b45590137463030303030313030303032413133394135353030303030303030414243440254414753015461674102"
    )
    assert stored.hex() == golden
    assert len(stored) == 187


def test_what_does_not_fit_waits_for_the_next_file() -> None:
    """For every size of what is left: each record leaves eight bytes for the blank, and the rest can go on."""
    batch = Batch([b"one", b"", b"three"], {"KEYS": ["a", "b c", ""]}, [0, 0, 1])
    sizes = [record.total_size for record in batch.expected()]
    for room in range(sum(sizes) + BLANK.size + 1):
        batch.queues[:, QUEUE_NEXT_OFFSET] = [offset for _, _, offset in QUEUES]
        stored, done, status = batch.encode(room)
        fitting = max(n for n in range(4) if n == 0 or sum(sizes[:n]) + BLANK.size <= room)
        assert (done, len(stored)) == (fitting, sum(sizes[:fitting]))
        assert status == (EncodeStatus.DONE if fitting == 3 else EncodeStatus.ROOM)
        rest, done, status = batch.encode(1000, fitting)
        assert (done, status) == (3 - fitting, EncodeStatus.DONE)
        offsets = [record.queue_offset for record in map(decode_record, split(stored) + split(rest))]
        assert offsets == [record.queue_offset for record in batch.expected()]


def split(stored: bytes) -> list[bytes]:
    records = []
    while stored:
        size = decode_record(stored).total_size
        records.append(stored[:size])
        stored = stored[size:]
    return records


@pytest.mark.parametrize("extra", [0, 1])
def test_properties_may_have_32767_bytes_and_not_one_more(extra: int) -> None:
    value = "v" * (PROPERTIES_SIZE_MAX - len("KEYS") - 2 + extra)
    stored, done, status = Batch([b"", b"a"], {"KEYS": ["k", value]}).encode(100_000)
    assert done == 2 - extra
    assert status == (EncodeStatus.TOO_LARGE if extra else EncodeStatus.DONE)
    assert len(split(stored)) == done


def test_a_body_over_the_limit_stops_at_its_row() -> None:
    _, done, status = Batch([b"123", b"1234", b"1"], {}).encode(1000, body_size_max=3)
    assert (done, status) == (1, EncodeStatus.TOO_LARGE)


def test_only_the_asked_rows_are_written() -> None:
    stored, done, status = Batch([b"a", b"b", b"c", b"d"], {}).encode(1000, 1, 2)
    assert (done, status) == (2, EncodeStatus.DONE)
    assert [decode_record(record).body for record in split(stored)] == [b"b", b"c"]
