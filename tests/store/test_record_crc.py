"""The record CRC: written on every way to put, checked wherever a record has one."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from store.conftest import OpenStore
from store.model import QUIET, SMALL, crash_copy, flip, log_files
from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.message import PROPERTIES_SIZE_MAX, Host
from stratalog.layout.properties import CRC32, CRC_PROPERTY_SIZE, encode_properties
from stratalog.layout.recordcrc import record_crc_holds
from stratalog.layout.sysflag import Transaction
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.tools.verify import verify

V6 = Host(bytes(range(16)), 10911)
TAGGED = encode_properties({"TAGS": "a", "KEYS": "k"})
STALE = encode_properties({CRC32: "0123456789"})
LONG = "%RETRY%" + "g" * 150


def rows(properties: bytes, count: int = 3) -> pa.RecordBatch:
    return pa.record_batch({"body": [b"x"] * count, "properties": pa.array([properties] * count, pa.binary())})


WAYS: dict[str, Callable[[MessageStore, bytes], Any]] = {
    "put_raw": lambda store, text: store.queue("t").put_raw(b"x", text),
    "put_record": lambda store, text: store.queue("t").put_record(b"x", text),
    "put_record, IPv6": lambda store, text: store.queue("t").put_record(b"x", text, born_host=V6, store_host=V6),
    "put_record, transaction": lambda store, text: store.queue("t").put_record(b"x", text, sys_flag=Transaction.COMMIT),
    "put_raw, V2": lambda store, text: store.queue(LONG).put_raw(b"x", text),
    "put_many": lambda store, text: store.queue("t").put_many([b"x", b"", b"z" * 300], text),
    "put_many, one each": lambda store, text: store.queue("t").put_many([b"x", b"y"], [text, b""]),
    "put_many, V2": lambda store, text: store.queue(LONG).put_many([b"x", b"y"], text),
    "append": lambda store, text: store.queue("t").append(rows(text)),
    "append, over files": lambda store, text: store.queue("t").append(rows(text, 2000)),
}


def messages(store: MessageStore) -> list[Message]:
    return [message for key in store.queues() for message in store.queue(*key).read()]


def stored(store: MessageStore, message: Message) -> bytes:
    file, position = store.log.file_at(message.commit_log_offset)
    return bytes(file.view[position : position + message.store_size])


@pytest.mark.parametrize("text", [b"", TAGGED, TAGGED[:-1], STALE, STALE + TAGGED, TAGGED + STALE[:-1]])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_every_way_to_put_ends_the_record_with_its_crc(way: Any, text: bytes, open_store: OpenStore) -> None:
    store = open_store(enabled_append_prop_crc=True)
    way(store, text)
    found = messages(store)
    assert found
    for message in found:
        assert record_crc_holds(stored(store, message))
        given = message.raw_properties[:-CRC_PROPERTY_SIZE]
        assert given in (b"", TAGGED), "its own CRC is the only one, and properties before it are closed"


def test_keywords_and_columns_are_sealed_and_found_by_key(open_store: OpenStore) -> None:
    store = open_store(enabled_append_prop_crc=True)
    store.put("t", b"x", tags="a", keys="k", properties={"p": "v", CRC32: "0123456789"})
    asyncio.run(store.put_async("t", b"x", tags="a", keys="k"))
    store.append(pa.record_batch({"body": [b"x"], "tags": ["a"], "keys": [["k"]], CRC32: ["1"]}), topic="t", queue_id=0)
    store.put("t", b"x", properties={CRC32: "0123456789"}, keys="k")
    assert all(record_crc_holds(stored(store, message)) for message in messages(store))
    assert len(store.query("t", key="k")) == 4
    assert messages(store)[0].properties.keys() == {"TAGS", "KEYS", "p", CRC32}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_without_the_setting_the_crc_of_another_record_is_left_out(way: Any, open_store: OpenStore) -> None:
    store = open_store()
    way(store, TAGGED + STALE)
    store.put("t", b"x", properties={CRC32: "0123456789"})
    assert {message.raw_properties for message in messages(store)} <= {TAGGED, b""}


@pytest.mark.parametrize("way", [WAYS[name] for name in WAYS if name != "append, over files"])
def test_the_crc_counts_for_the_limit_of_the_properties(way: Any, open_store: OpenStore) -> None:
    store = open_store(enabled_append_prop_crc=True, mapped_file_size_commit_log=1 << 18)
    most = PROPERTIES_SIZE_MAX - CRC_PROPERTY_SIZE
    with pytest.raises(IllegalMessage):
        way(store, b"x" * most + b"\x02")
    assert store.log.end_offset == 0
    way(store, b"x" * (most - 1) + b"\x02")
    assert len(messages(store)[0].raw_properties) == PROPERTIES_SIZE_MAX


# -- damage ----------------------------------------------------------------------------------------------------------


def damaged(store: MessageStore, target: Path) -> Path:
    """A killed store whose middle message has a property that is not what was put; its body is whole."""
    for number in range(3):
        store.put("t", b"body", properties={"p": f"value {number}"})
    store.flush()
    copy = crash_copy(store, target)
    path = log_files(copy)[0]
    flip(path, path.read_bytes().index(b"value 1"))
    return copy


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_record_whose_crc_is_wrong_is_quarantined_though_its_body_is_whole(mode, open_store, tmp_path: Path) -> None:
    copy = damaged(open_store(enabled_append_prop_crc=True), tmp_path / "crash")
    with stratalog.open(copy, mode=mode, **(SMALL | QUIET)) as again:
        assert [damage.reason for damage in again.recovery.quarantined] == ["BAD_RECORD_CRC"]
        assert [message.properties["p"] for message in again.queue("t").read()] == ["value 0", "value 2"]
        assert again.queue("t").max_offset == 3


def test_without_a_record_crc_nobody_sees_a_property_that_was_changed(open_store, tmp_path: Path) -> None:
    copy = damaged(open_store(), tmp_path / "crash")
    with stratalog.open(copy, mode="r", **(SMALL | QUIET)) as again:
        assert again.recovery.quarantined == []
        assert [message.properties["p"] for message in again.queue("t").read()][1] != "value 1"


def test_a_record_whose_crc_went_wrong_later_is_not_served_and_verify_names_it(open_store, tmp_path: Path) -> None:
    store = open_store(enabled_append_prop_crc=True, checked=False)
    for number in range(3):
        store.put("t", b"body", properties={"p": f"value {number}"})
    store.flush()
    path, queue = log_files(store.root)[0], store.queue("t")
    assert queue.max_offset == 3
    flip(path, path.read_bytes().index(b"value 1"))
    reading = queue.read()
    assert next(reading).properties["p"] == "value 0"
    with pytest.raises(CorruptData, match=r"checksum differs.*read on from offset 2"):
        next(reading)
    assert next(queue.read(2)).properties["p"] == "value 2"
    with contextlib.suppress(CorruptData):
        assert 1 not in queue.read_arrow(columns=["queueOffset"]).column(0).to_pylist()
    assert queue.read_arrow(2, columns=["queueOffset"]).column(0).to_pylist() == [2]
    copy = crash_copy(store, tmp_path / "copy")
    with stratalog.open(copy, mode="r", **(SMALL | QUIET)) as again:
        assert any("CRC" in problem.found for problem in verify(again).problems)


@pytest.mark.parametrize("value", ["\0" * 25, "a" + "\0" * 19, "\0" * 8 + "x" * 11, "__CRC32" + "\0" * 12], ids=repr)
def test_zeros_in_a_property_are_no_damage(value: str, tmp_path: Path) -> None:
    """RocketMQ stores and serves them as well, so zeros do not say that a CRC was erased."""
    with stratalog.open(tmp_path / "s", small=True, flush="sync") as store:
        receipts = [store.put("t", b"x", properties={"zone": "eu", "value": value}) for _ in range(3)]
        receipts += store.queue("t").put_many([b"y"], encode_properties({"value": value}))
        crash_copy(store, tmp_path / "crashed")
    for root in (tmp_path / "s", tmp_path / "crashed"):
        assert verify(root).ok
        with stratalog.open(root) as store:
            assert [message.properties["value"] for message in store.queue("t").read()] == [value] * len(receipts)
