"""A piece of the commit log as runs: packed queue units of consecutive messages, queue by queue. Runs in a task."""

import mmap
import os
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stratalog.kernels.dispatch import UnitStatus, build_units, scatter
from stratalog.kernels.queue_table import QUEUE_NEXT_OFFSET
from stratalog.kernels.scan import TRUST, VERIFY, ScanStatus, find_record, scan
from stratalog.layout.message import FIXED_SIZE_V1, decode_record
from stratalog.layout.names import delay_table_ms
from stratalog.layout.queue import UNIT
from stratalog.store.dispatch import QueueTable
from stratalog.tiered.segment import is_name

if TYPE_CHECKING:
    from stratalog.pipeline.log_source import LogPiece

RUN_SCHEMA = pa.schema(
    {
        "slot": pa.int32(),
        "topic": pa.string(),
        "queueId": pa.int32(),
        "topicId": pa.int32(),
        "firstOffset": pa.int64(),
        "units": pa.binary(),
        "sourceFrom": pa.int64(),
        "sourceTo": pa.int64(),
        "passedOver": pa.int64(),
    }
)
_NO_DELAYS_MS = np.array(delay_table_ms(), np.int64)
_RUN_UNITS_MAX = 1 << 20
"""Units in a row: 20 MB, well below what Spark moves in one piece."""

Log = NDArray[np.uint8]


def runs_of(piece: "LogPiece") -> Iterator[pa.RecordBatch]:
    """The runs of a piece, a row that tells the batch's range, and one for each queue that a tier cannot have: its name
    is no path, or no text (what is not UTF-8 in it is escaped). The messages of these are counted.

    What is no record is stepped over, with `verify` also what has a wrong CRC: its queues go on with a gap there.
    """
    log = _mapped(piece.file)
    positions = _records(log, piece)
    common = {"sourceFrom": piece.source_from, "sourceTo": piece.source_to, "passedOver": 0}
    marker = {"slot": 0, "topic": "", "queueId": -1, "topicId": -1, "firstOffset": 0, "units": b""}
    yield _batch({**marker, **common})
    for topic, queue_id, first, units in _runs(log, positions, piece.base_offset):
        if not is_name(topic) or queue_id < 0:
            text = topic.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            count = len(units) // UNIT.size
            yield _batch({**marker, **common, "topic": text, "queueId": queue_id, "passedOver": count})
            continue
        if topic not in piece.topic_ids:
            continue
        where = {"slot": slot_of(topic, queue_id), "topic": topic, "queueId": queue_id}
        run = {"topicId": piece.topic_ids[topic], "firstOffset": first, "units": units}
        yield _batch({**where, **run, **common})


def slot_of(topic: str, queue_id: int) -> int:
    """A number whose remainders spread the queues of a topic evenly, and topics among each other."""
    return (zlib.crc32(topic.encode()) + queue_id) & 0x7FFFFFFF


def _batch(row: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row], RUN_SCHEMA)


def _mapped(file: str) -> Log:
    fd = os.open(file, os.O_RDONLY)
    try:
        return np.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(fd)


def _records(log: Log, piece: "LogPiece") -> NDArray[np.int64]:
    """File positions of the piece's whole records."""
    address, base = log.ctypes.data, piece.base_offset
    position, end = piece.begin - base, piece.end - base
    capacity = (end - position) // FIXED_SIZE_V1 + 1
    positions, sizes = np.empty(capacity, np.int64), np.empty(capacity, np.int32)
    count = 0
    while 0 <= position < end:
        found, position, status = scan(
            address, position, end, base, VERIFY if piece.verify else TRUST, positions[count:], sizes[count:]
        )
        count += found
        if status in (ScanStatus.END, ScanStatus.BLANK):
            break
        position = find_record(address, position + 1, end, base)
    return positions[:count]


def _runs(log: Log, positions: NDArray[np.int64], base_offset: int) -> Iterator[tuple[str, int, int, memoryview]]:
    """Topic, queue id, first queue offset and packed units of each run, queue by queue, in order."""
    count = len(positions)
    table = QueueTable()
    queues: list[tuple[str, int]] = []
    begins: list[list[tuple[int, int]]] = []  # by queue: (record, queue offset) where a run begins
    units, rows = np.empty(count * UNIT.size, np.uint8), np.empty(count, np.int32)
    done = 0
    while done < count:
        done, status = build_units(
            log.ctypes.data, positions, done, count, base_offset, table.rows, table.table, units, rows, _NO_DELAYS_MS
        )
        if status == UnitStatus.DONE:
            break
        record = decode_record(log.data, int(positions[done]), verify=False)
        name, begin = (record.topic.decode("utf-8", "surrogateescape"), record.queue_id), (done, record.queue_offset)
        if status == UnitStatus.UNKNOWN_QUEUE:
            table.add(*name, record.queue_offset)
            queues.append(name)
            begins.append([begin])
        else:
            row = queues.index(name)
            table.rows[row][QUEUE_NEXT_OFFSET] = record.queue_offset
            begins[row].append(begin)
    starts, packed = np.zeros(len(queues) + 1, np.int64), np.empty_like(units)
    scatter(units, rows, count, len(queues), starts, packed)
    for row, (topic, queue_id) in enumerate(queues):
        mine = packed.data[starts[row] * UNIT.size : starts[row + 1] * UNIT.size]
        for first, run in _split(mine, rows, row, begins[row]):
            yield topic, queue_id, first, run


def _split(
    units: memoryview, rows: NDArray[np.int32], row: int, begins: list[tuple[int, int]]
) -> Iterator[tuple[int, memoryview]]:
    """One queue's units cut where queue offsets jump, and where a run gets long."""
    edges = [0]
    if len(begins) > 1:
        records = np.flatnonzero(rows == row)
        edges += np.searchsorted(records, [record for record, _ in begins[1:]]).tolist()
    edges.append(len(units) // UNIT.size)
    for (_, first), begin, end in zip(begins, edges[:-1], edges[1:], strict=True):
        for part in range(begin, end, _RUN_UNITS_MAX):
            stop = min(end, part + _RUN_UNITS_MAX)
            yield first + part - begin, units[part * UNIT.size : stop * UNIT.size]
