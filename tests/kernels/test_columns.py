"""Queue units decoded to Arrow columns."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import twins
from kernels.memory import Fence
from kernels.messages import records
from kernels.test_gather import FILE_SIZE, FIRST, Log
from stratalog.errors import ConfigurationError
from stratalog.kernels.columns import decode_arrow
from stratalog.layout.columns import ARROW_SCHEMA, COLUMNS, SPARK_DDL
from stratalog.layout.message import HEAD, Host, Record
from stratalog.layout.queue import FILLER, UNIT

NAMES = ARROW_SCHEMA.names


def decoded(log: Log, units: list[bytes], columns: list[str] = NAMES) -> pa.RecordBatch:
    batch = decode_arrow(
        b"".join(units), (log.addresses, FIRST, FILE_SIZE), columns, topic="orders", broker_name="broker-a"
    )
    batch.validate(full=True)
    return batch


def rows_of(batch: pa.RecordBatch) -> list[dict]:
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(plain, names=batch.schema.names).to_pylist()


@given(st.lists(records, max_size=10), st.lists(st.sampled_from(NAMES), unique=True, min_size=1))
def test_any_choice_of_columns_shows_what_the_twin_shows(messages, columns) -> None:
    log = Log(messages)
    batch = decoded(log, log.units, columns)
    expected = [twins.row(record.encode(), "orders", "broker-a") for record in log.records]
    assert rows_of(batch) == [{name: row[name] for name in columns} for row in expected]
    assert batch.schema == pa.schema([ARROW_SCHEMA.field(name) for name in columns])


@given(st.lists(records, min_size=1, max_size=10))
def test_all_columns_at_once_show_what_the_twin_shows(messages) -> None:
    log = Log(messages)
    batch = decoded(log, log.units)
    assert rows_of(batch) == [twins.row(record.encode(), "orders", "broker-a") for record in log.records]
    assert batch.schema == ARROW_SCHEMA


BAD_UNITS = [FILLER, UNIT.pack(FIRST + 3, 91, 0), UNIT.pack(FIRST, 92, 0), UNIT.pack(0, 91, 0), UNIT.pack(FIRST, 91, 0)]


@given(st.lists(st.sampled_from([0, 1, *BAD_UNITS]), max_size=20))
def test_units_without_their_record_give_no_row(choice) -> None:
    """Fillers, places outside the log or in the middle of a record, and sizes that are not the record's."""
    log = Log([Record(topic=b"T", body=b"first"), Record(topic=b"T", body=b"second", properties=b"TAGS\x01t\x02")])
    batch = decoded(log, [log.units[unit] if isinstance(unit, int) else unit for unit in choice])
    assert batch["body"].to_pylist() == [[b"first", b"second"][unit] for unit in choice if isinstance(unit, int)]


@given(st.binary(max_size=300), st.data())
def test_units_into_arbitrary_bytes_are_survived(noise: bytes, data) -> None:
    """The log's file is replaced by noise around a damaged record in front of memory that must not be read."""
    stored = bytearray(Record(topic=b"T", body=b"b" * 20, properties=b"KEYS\x01k\x02").encode() + noise)
    for _ in range(data.draw(st.integers(0, 4))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    fence = Fence(bytes(stored))
    places = st.tuples(st.integers(0, len(stored)), st.integers(91, len(stored) + 1))
    chosen = data.draw(st.lists(places, min_size=1, max_size=5))
    units = b"".join(UNIT.pack(offset, size, 0) for offset, size in chosen)
    log = (np.array([fence.address], np.int64), 0, len(stored))
    batch = decode_arrow(units, log, NAMES, topic="T", broker_name="b")
    whole = [
        (at, size) for at, size in chosen
        if size <= len(stored) - at and twins.check(bytes(stored[: at + size]), at, -1, verify=False) == (None, size)
    ]  # fmt: skip
    assert batch["storeSize"].to_pylist() == [size for _, size in whole]


def test_malformed_text_is_replaced_and_absent_text_is_null() -> None:
    properties = [b"TAGS\x01\xff\xfe\x02KEYS\x01k\x02", b"", b"TAGS\x01\x02KEYS\x01a  b\x02TAGS\x01t1\x02TAGS\x01t2"]
    log = Log([Record(topic=b"T", body=b"", properties=text) for text in properties])
    batch = decoded(log, log.units, ["tags", "keys", "uniqueKey", "properties"])
    assert batch["tags"].to_pylist() == ["\ufffd\ufffd", None, "t2"]
    assert batch["keys"].to_pylist() == ["k", None, "a  b"]
    assert batch["uniqueKey"].null_count == 3
    assert batch["properties"][0].as_py() == "TAGS\x01\ufffd\ufffd\x02KEYS\x01k\x02"


def test_hosts_are_printed_as_java_prints_them() -> None:
    v6 = Host(bytes.fromhex("20010db8000000000000000000000002"), 10911)
    log = Log([Record(topic=b"T", body=b"", born_host=v6), Record(topic=b"T", body=b"", store_host=v6)])
    batch = decoded(log, log.units, ["bornHost", "storeHost"])
    assert batch["bornHost"].to_pylist() == ["[2001:db8:0:0:0:0:0:2]:10911", "127.0.0.1:10911"]
    assert batch["storeHost"].to_pylist() == ["127.0.0.1:10911", "[2001:db8:0:0:0:0:0:2]:10911"]


def test_no_units_give_an_empty_batch_with_the_schema() -> None:
    batch = decoded(Log([]), [])
    assert (batch.num_rows, batch.schema) == (0, ARROW_SCHEMA)


def test_a_column_of_2_gib_is_refused_before_it_is_copied() -> None:
    body_size = 2**22
    stored = bytearray(Record(topic=b"T", body=bytes(body_size)).encode())
    fence = Fence(bytes(stored))
    log = (np.array([fence.address], np.int64), 0, fence.size)
    with pytest.raises(ValueError, match="at most 511 at a time"):
        decode_arrow(UNIT.pack(0, fence.size, 0) * 512, log, ["body"], topic="T", broker_name="b")


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ConfigurationError, match="'bodies'"):
        decoded(Log([]), [], ["body", "bodies"])


def test_columns_of_a_head_field_have_its_name_and_width() -> None:
    for column in COLUMNS:
        if column.head_field:
            kind = next(field.kind for field in HEAD.fields if field.name == column.head_field)
            assert column.arrow_type.bit_width == int(kind[1:])
    assert SPARK_DDL.count(",") == len(COLUMNS) - 1
    assert SPARK_DDL.startswith("topic STRING, flag INT, body BINARY, properties STRING, brokerName STRING")


def test_a_batch_outlives_the_log() -> None:
    log = Log([replace(Record(topic=b"T", body=b"kept"), flag=5)])
    batch = decoded(log, log.units, ["body", "flag"])
    del log
    assert batch.to_pylist() == [{"body": b"kept", "flag": 5}]
