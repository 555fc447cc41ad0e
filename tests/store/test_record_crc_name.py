"""The name of the record CRC in tags, keys and properties of messages: a part of a name or of a value is no CRC."""

from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from store.model import QUIET, SMALL
from stratalog.errors import IllegalMessage
from stratalog.layout.message import decode_record
from stratalog.layout.properties import CRC32, CRC_PROPERTY_SIZE, encode_properties
from stratalog.layout.recordcrc import has_record_crc
from stratalog.store.message_store import MessageStore
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

MESSAGES: list[dict[str, Any]] = [
    *({"tags": f"{before}{CRC32}{'7' * size}"} for before in ("", "x") for size in range(20)),
    *({"keys": f"{before}{CRC32}{'7' * size}"} for before in ("", "x") for size in range(20)),
    *({"properties": {"note": f"see {CRC32}{'7' * size}"}} for size in range(20)),
    *({"properties": {f"x{CRC32}": "7" * size}} for size in range(1, 20)),
    *({"properties": {f"x{CRC32}{'y' * size}": "7" * (11 - size)}} for size in range(11)),
    *({"tags": CRC32, "keys": "%", "properties": {"a": "2" * size}} for size in range(1, 9)),
]


@pytest.mark.parametrize("has_crc", [False, True])
def test_a_message_that_names_the_record_crc_is_served(has_crc: bool, tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(len(MESSAGES))]
    with stratalog.open(tmp_path, **SMALL, **QUIET, enabled_append_prop_crc=has_crc) as store:
        for body, given in zip(bodies, MESSAGES, strict=True):
            store.put("topic", body, **given)
        store.put_many("topic", bodies, encode_properties({"TAGS": f"{CRC32}12345678901"}))
        assert [message.body for message in store.queue("topic").read()] == bodies * 2
    (tmp_path / "abort").touch()
    with stratalog.open(tmp_path, **SMALL, **QUIET) as store:
        assert [message.body for message in store.queue("topic").read()] == bodies * 2
    assert verify(tmp_path).ok
    assert not plan_repair(tmp_path).actions


PIECES = [b"a", b"\1", b"\2", CRC32.encode(), b"7" * 10, b"7" * 11]
TEXTS = [b"".join(pieces) for count in range(5) for pieces in product(PIECES, repeat=count)]


def _append(store: MessageStore, body: bytes, properties: bytes) -> None:
    row = {"body": [body], "properties": [properties]}
    schema = pa.schema({"body": pa.binary(), "properties": pa.binary()})
    store.append(pa.record_batch(row, schema=schema), topic="topic", queue_id=0)


WAYS: dict[str, Callable[[MessageStore, bytes, bytes], object]] = {
    "put_raw": lambda store, body, text: store.queue("topic").put_raw(body, text),
    "put_raw in Python": lambda store, body, text: type(store.queue("topic")).put_raw(store.queue("topic"), body, text),
    "put_record": lambda store, body, text: store.queue("topic").put_record(body, text),
    "put_many, one text": lambda store, body, text: store.put_many("topic", [body], text),
    "put_many, texts": lambda store, body, text: store.put_many("topic", [body], [text]),
    "append": _append,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("has_crc", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_stored_properties_are_refused_or_served(way: str, has_crc: bool, tmp_path: Path) -> None:
    """Also those that end like a record CRC, in the middle of a value."""
    served = []
    with stratalog.open(tmp_path, **SMALL, **QUIET, enabled_append_prop_crc=has_crc) as store:
        for number, text in enumerate(TEXTS):
            with suppress(IllegalMessage):
                WAYS[way](store, b"%d" % number, text)
                served.append(b"%d" % number)
        assert len(TEXTS) - 80 < len(served) < len(TEXTS)
        assert [message.body for message in store.queue("topic").read()] == served
    (tmp_path / "abort").touch()
    with stratalog.open(tmp_path, **SMALL, **QUIET) as store:
        assert [message.body for message in store.queue("topic").read()] == served
    assert verify(tmp_path).ok
    assert not plan_repair(tmp_path).actions


def test_one_changed_bit_in_a_record_crc_or_beside_it_is_found(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL, **QUIET, enabled_append_prop_crc=True) as store:
        end = store.put("topic", b"body", tags="a").end_offset
    (path,) = (tmp_path / "commitlog").iterdir()
    data = path.read_bytes()
    assert has_record_crc(decode_record(data).properties)
    for bit in range(8 * (end - CRC_PROPERTY_SIZE - 1), 8 * end):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert not verify(tmp_path).ok, f"bit {bit % 8} of byte {bit // 8 - end}"
