"""Arrow data that is not valid is refused before a byte is written: Arrow does not look into what it reads."""

import io
import random
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import stratalog
from store.conftest import OpenStore
from store.model import QUIET, SMALL
from stratalog.errors import IllegalMessage

ROWS = 40
TEXTS = [f"text-{number % 5}" for number in range(ROWS)]
WITH_NULLS = [text if number % 3 else None for number, text in enumerate(TEXTS)]
BODY = pa.array([b"b" * (number % 7) for number in range(ROWS)], pa.binary())
COLUMNS: dict[str, tuple[str, pa.Array]] = {
    "body": ("body", BODY),
    "body as text": ("body", pa.array(TEXTS, pa.string())),
    "body as large binary": ("body", BODY.cast(pa.large_binary())),
    "body as view": ("body", pa.array(["a long text that needs a buffer"] * ROWS, pa.string_view())),
    "body as dictionary": ("body", pa.array(TEXTS).dictionary_encode()),
    "topic": ("topic", pa.array(TEXTS, pa.string())),
    "topic as dictionary": ("topic", pa.array(TEXTS).dictionary_encode()),
    "tags": ("tags", pa.array(WITH_NULLS, pa.string())),
    "tags as large text": ("tags", pa.array(TEXTS, pa.large_string())),
    "keys": ("keys", pa.array(TEXTS, pa.string())),
    "keys as list": ("keys", pa.array([[text, "k"] for text in TEXTS], pa.list_(pa.string()))),
    "keys as large list": ("keys", pa.array([[text] for text in TEXTS], pa.large_list(pa.large_string()))),
    "unique key": ("uniqueKey", pa.array(TEXTS, pa.string())),
    "properties": ("properties", pa.array([f"a\1{text}\2" for text in TEXTS], pa.string())),
    "property": ("region", pa.array(TEXTS, pa.string())),
    "property as dictionary": ("region", pa.array(WITH_NULLS).dictionary_encode()),
}
"""Each kind of column in each place where the store takes it."""
NUMBERS: dict[str, tuple[str, pa.Array]] = {
    f"{name} as {kind}": (name, pa.array([0] * ROWS, kind))
    for name in ("queueId", "flag", "bornTimestamp", "sysFlag", "storeTimestamp")
    for kind in (pa.int32(), pa.int64(), pa.uint8())
}
WORDS = (-(2**31), -100, -1, 0, 1, 12, 41, 300, 1 << 20, 2**31 - 1)


def damaged(column: pa.Array, name: str, source: random.Random) -> pa.RecordBatch | None:
    """The batch as an IPC stream brings it, one int32 of it changed; None when Arrow itself refuses it."""
    columns = {name: column} if name == "body" else {"body": BODY, name: column}
    batch = pa.record_batch(columns)
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    raw = bytearray(stream.getvalue())
    places = []
    for buffer in filter(None, _buffers(column)):
        words = np.frombuffer(buffer, np.uint8)[: len(buffer) // 4 * 4].tobytes()
        at = raw.find(words) if len(words) >= 8 else -1
        places += range(at, at + len(words), 4) if at >= 0 else ()
    place = source.choice(places)
    raw[place : place + 4] = source.choice(WORDS).to_bytes(4, "little", signed=True)
    try:
        return pa.ipc.open_stream(bytes(raw)).read_next_batch()
    except pa.ArrowException:
        return None


def _buffers(column: pa.Array) -> list[pa.Buffer | None]:
    found = list(column.buffers())
    return found + _buffers(column.dictionary) if pa.types.is_dictionary(column.type) else found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", COLUMNS)
def test_no_offset_of_a_column_can_lead_anywhere_else(kind: str, seed: int, tmp_path: Path) -> None:
    source = random.Random(f"{kind} {seed}")
    name, column = COLUMNS[kind]
    refused = before = 0
    with stratalog.open(tmp_path / "store", **SMALL, **QUIET) as store:
        for _ in range(60):
            batch = damaged(column, name, source)
            if batch is None:
                continue
            store.put("other", b"%d" % before)
            before += 1
            end = store.log.end_offset
            try:
                given = {} if name == "topic" else {"topic": "t"}
                ranges = store.append(batch, queue_id=0, **given)
            except IllegalMessage:
                refused += 1
                assert store.log.end_offset == end
                continue
            assert sum(map(len, ranges.values())) == ROWS
            if name == "body" and kind != "body as dictionary":
                there = store.queue("t").read_arrow(ranges["t", 0].start, columns=["body"])["body"].to_pylist()
                assert there == batch["body"].cast(pa.binary()).to_pylist()
    with stratalog.open(tmp_path / "store", mode="r") as store:
        assert not store.recovery.quarantined
        assert [message.body for message in store.queue("other").read()] == [b"%d" % n for n in range(before)]
    assert refused


@pytest.mark.parametrize("kind", [*COLUMNS, *NUMBERS])
def test_a_wrong_count_of_rows_is_refused(kind: str, open_store: OpenStore) -> None:
    """The counts in the head of an IPC stream: of the rows, and of those of each column."""
    name, column = (COLUMNS | NUMBERS)[kind]
    batch = pa.record_batch({name: column} if name == "body" else {"body": BODY, name: column})
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    raw, count, store = stream.getvalue(), struct.pack("<q", ROWS), open_store()
    places = [at for at in range(0, len(raw) - 8, 4) if raw[at : at + 8] == count]
    assert len(places) >= 2
    refused = 0
    for changed in [[place] for place in places] + [places]:
        for wrong in (ROWS + 1, 3 * ROWS, 90_000_000):
            damaged = bytearray(raw)
            for place in changed:
                damaged[place : place + 8] = struct.pack("<q", wrong)
            given = {} if name == "topic" else {"topic": "t"}
            end = store.log.end_offset
            try:
                batch = pa.ipc.open_stream(bytes(damaged)).read_next_batch()
            except (OSError, pa.ArrowException):
                refused += 1
                continue
            try:
                store.append(batch, **given)
            except IllegalMessage:
                refused += 1
                assert store.log.end_offset == end
    assert refused > len(places)


def test_two_columns_of_a_name_are_refused(open_store: OpenStore) -> None:
    store = open_store()
    for names in (["body", "body"], ["body", "tags", "tags"], ["body", "topic", "topic"], ["body", "region", "region"]):
        batch = pa.RecordBatch.from_arrays([pa.array(["a"])] * len(names), names=names)
        for topic in (None, "t"):
            with pytest.raises(IllegalMessage, match=rf"two columns '{names[-1]}': drop one; nothing was written"):
                store.append(batch, topic=topic)
    assert store.log.end_offset == 0


def test_a_topic_that_is_no_utf8_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    ends = pa.py_buffer(np.array([0, 2], np.int32))
    topics = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(b"\xff\xfe")])
    with pytest.raises(IllegalMessage, match=r"column 'topic' is no valid Arrow data: .*Invalid UTF8"):
        store.append(pa.record_batch({"body": ["x"], "topic": topics}))
    with pytest.raises(IllegalMessage, match=r"column 'topic' is no valid Arrow data: .*Invalid UTF8"):
        store.append(pa.record_batch({"body": ["x"], "topic": topics.dictionary_encode()}))
    assert store.log.end_offset == 0


def test_slices_of_valid_data_are_taken(open_store: OpenStore) -> None:
    store = open_store()
    for name, column in COLUMNS.values():
        batch = pa.record_batch({name: column} if name == "body" else {"body": BODY, name: column}).slice(7, 11)
        given = {} if name == "topic" else {"topic": "t"}
        assert sum(map(len, store.append(batch, queue_id=0, **given).values())) == 11
        assert store.append(batch.slice(3, 0), queue_id=0, **given) == {}
