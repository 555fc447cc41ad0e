"""A put that is refused leaves the files as they are: no roll, no first file, no queue."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from store.conftest import OpenStore
from store.model import LOG_FILE_SIZE, bodies
from stratalog.errors import IllegalMessage
from stratalog.layout.message import PROPERTIES_SIZE_MAX
from stratalog.layout.properties import encode_properties
from stratalog.store.message_store import MessageStore

BODY_MAX = 20_000
GOOD, BIG = b"x" * 15_000, b"x" * (BODY_MAX + 1)
TEXT, LONG = encode_properties({"KEYS": "k"}), encode_properties({"a": "v" * PROPERTIES_SIZE_MAX})


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


PUTS: dict[str, Callable[[MessageStore, str], object]] = {
    "put, body": lambda store, topic: store.put(topic, BIG),
    "put, keys": lambda store, topic: store.put(topic, GOOD, keys="k\1"),
    "put, properties": lambda store, topic: store.queue(topic).put_raw(GOOD, LONG),
    "put_record": lambda store, topic: store.queue(topic).put_record(BIG),
    "put_many, last body": lambda store, topic: store.put_many(topic, [GOOD, GOOD, BIG]),
    "put_many, first body": lambda store, topic: store.put_many(topic, [BIG, GOOD]),
    "put_many, properties": lambda store, topic: store.put_many(topic, [GOOD] * 2, [TEXT, LONG]),
    "put_many, one text": lambda store, topic: store.put_many(topic, [GOOD] * 2, LONG),
    "put_many, zero byte": lambda store, topic: store.put_many(topic, [GOOD] * 2, [TEXT, b"\0"]),
    "put_many, delayed": lambda store, topic: store.put_many(topic, [GOOD], encode_properties({"DELAY": "2"})),
    "put_many, long list": lambda store, topic: store.put_many(topic, [GOOD] * 9 + [BIG]),
    "put_many, topic": lambda store, topic: store.put_many("no/topic", [GOOD] * 3),
    "append, body": lambda store, topic: store.append(rows(body=[GOOD, BIG]), topic=topic),
    "append, keys": lambda store, topic: store.append(rows(body=[GOOD] * 2, keys=["a", "b\2"]), topic=topic),
    "append, topic": lambda store, topic: store.append(rows(body=[GOOD] * 2, topic=[topic, "no/topic"])),
    "append, properties": lambda store, topic: store.append(rows(body=[GOOD] * 2, a=["", "v" * 40_000]), topic=topic),
}


def files(root: Path) -> dict[str, bytes]:
    return {
        os.path.join(folder, name): Path(folder, name).read_bytes()
        for folder, _, names in os.walk(root)
        for name in [*names]
    }


@pytest.mark.parametrize("crc", [False, True], ids=["plain", "record CRC"])
@pytest.mark.parametrize("count", [0, 3], ids=["an empty store", "at a file's end"])
def test_a_put_that_is_refused_changes_no_file(crc: bool, count: int, open_store: OpenStore) -> None:
    store = open_store(max_message_size=BODY_MAX, enabled_append_prop_crc=crc)
    for _ in range(count):
        store.put("t", GOOD)
    store._flush_all()
    assert store.log.end_offset + 2 * len(GOOD) > LOG_FILE_SIZE or not count
    before, end = files(store.root), store.log.end_offset
    for name, put in PUTS.items():
        for topic in ("t", "new"):
            with pytest.raises(IllegalMessage):
                put(store, topic)
            assert store.log.end_offset == end, name
            assert files(store.root) == before, name
    store._flush_all()
    assert files(store.root).keys() == before.keys()
    store.put_many("t", [GOOD] * 2)
    assert bodies(store) == {("t", 0): [GOOD] * (count + 2)}
