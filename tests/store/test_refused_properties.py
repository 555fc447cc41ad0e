"""Properties with which RocketMQ steers its storing, in topics where it cannot follow them: it ends its log at such a
record, or shows it where it is not. They are refused by every way to put, and nothing is written."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import stratalog
from store.model import QUIET, SMALL
from stratalog.errors import IllegalMessage
from stratalog.kernels.warm import compile_all
from stratalog.layout.names import SCHEDULE_TOPIC
from stratalog.layout.properties import encode_properties
from stratalog.layout.sysflag import SysFlag, Transaction
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue

Properties = dict[str, str]


def _append_raw(queue: Queue, body: bytes, given: Properties) -> None:
    schema = pa.schema({"body": pa.binary(), "properties": pa.binary()})
    queue.append(pa.record_batch({"body": [body], "properties": [encode_properties(given)]}, schema=schema))


def _append_columns(queue: Queue, body: bytes, given: Properties) -> None:
    names = {"TAGS": "tags", "KEYS": "keys"}
    columns = {names.get(name, name): pa.array([value]) for name, value in given.items()}
    queue.append(pa.record_batch({"body": pa.array([body]), **columns}))


WAYS: dict[str, Callable[[Queue, bytes, Properties], object]] = {
    "put": lambda queue, body, given: queue.put(body, properties=given),
    "put in Python": lambda queue, body, given: Queue.put(queue, body, properties=given),
    "put_raw": lambda queue, body, given: queue.put_raw(body, encode_properties(given)),
    "put_record": lambda queue, body, given: queue.put_record(body, encode_properties(given)),
    "put_many": lambda queue, body, given: queue.put_many([body], [encode_properties(given)]),
    "put_many, one text": lambda queue, body, given: queue.put_many([body], encode_properties(given)),
    "append": _append_columns,
    "append, properties": _append_raw,
}
REFUSED: list[tuple[str, Properties]] = [
    *((topic, {"INNER_NUM": number, "INNER_BASE": base})
      for topic in ("topic", "%RETRY%group", SCHEDULE_TOPIC) for number, base in (("many", "0"), ("1", "home"))),
    *((SCHEDULE_TOPIC, {"DELAY": level}) for level in ("3s", "x", "1.0", " 3", str(1 << 31), "-", "1" * 4301)),
]  # fmt: skip
TAKEN: list[tuple[str, Properties]] = [
    ("topic", {"DELAY": "3s"}),
    *((SCHEDULE_TOPIC, {"DELAY": level}) for level in ("3", "0", "-1", "+2", "18", "0" * 4300 + "3", str(-1 << 31))),
    (SCHEDULE_TOPIC, {"a": "b"}),
    ("topic", {"note": "INNER_NUM", "xINNER_NUM": "1"}),
]


@pytest.fixture(params=["compiled", "not compiled"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MessageStore:
    if request.param == "compiled":
        compile_all()
    return stratalog.open(tmp_path, **SMALL, **QUIET)


@pytest.mark.parametrize("way", WAYS)
def test_what_rocketmq_cannot_follow_is_refused(way: str, store: MessageStore) -> None:
    with store:
        for topic, given in REFUSED:
            with pytest.raises(IllegalMessage):
                WAYS[way](store.queue(topic), b"", given)
        assert store.log.end_offset == 0
        for number, (topic, given) in enumerate(TAKEN):
            if (given.get("DELAY"), way) == ("3s", "put_many, one text"):
                continue  # a batch of RocketMQ cannot be delayed
            WAYS[way](store.queue(topic), b"%d" % number, given)
        bodies = {message.body for topic in ("topic", SCHEDULE_TOPIC) for message in store.queue(topic).read()}
        assert len(bodies) >= len(TAKEN) - 1


def test_a_query_in_a_light_queue_gives_what_stands_there(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL, **QUIET, enable_lmq=True, enable_multi_dispatch=True) as store:
        text = encode_properties({"KEYS": "k", "INNER_MULTI_DISPATCH": "%LMQ%a"})
        for body, sys_flag in ((b"0", Transaction.PREPARED), (b"1", 0), (b"2", Transaction.PREPARED), (b"3", 0)):
            store.queue("parent").put_record(body, text, sys_flag=int(sys_flag))
        read = [(message.queue_offset, message.body) for message in store.queue("%LMQ%a").read()]
        assert [body for _, body in read] == [b"1", b"3"]
        assert [(message.queue_offset, message.body) for message in store.query("%LMQ%a", key="k")] == read


def test_arrow_rows_of_compressed_messages_are_refused(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL, **QUIET) as store:
        store.queue("topic").put_record(b"x\x9c\x03\x00\x00\x00\x00\x01", b"", sys_flag=int(SysFlag.COMPRESSED))
        with pytest.raises(IllegalMessage, match="compressed"):
            store.queue("other").append(store.queue("topic").read_arrow())
        assert store.queue("other").max_offset == 0
        flags: pa.Array
        for flags in (pa.array([1], pa.uint64()), pa.array([1.0]), pa.array([1]).dictionary_encode()):
            with pytest.raises(IllegalMessage, match="column 'sysFlag'"):
                store.queue("other").append(pa.record_batch({"body": [b"x"], "sysFlag": flags}))
        for flags in (pa.array([None], pa.uint64()), pa.array([0], pa.int8())):
            store.queue("other").append(pa.record_batch({"body": [b"x"], "sysFlag": flags}))


def test_an_empty_level_is_none(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL, **QUIET) as store:
        queue = store.queue(SCHEDULE_TOPIC)
        for level in ("", None):
            queue.append(pa.record_batch({"body": [b"x"], "DELAY": pa.array([level], pa.string())}))
        queue.put_raw(b"x", b"DELAY\x01\x02")
        assert queue.max_offset == 3


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_key_that_is_no_utf8_is_found_as_it_is_read(is_compiled: bool, tmp_path: Path) -> None:
    if is_compiled:
        compile_all()
    with stratalog.open(tmp_path, **SMALL, **QUIET) as store:
        store.queue("topic").put_raw(b"x", b"KEYS\x01caf\xe9 ok\x02UNIQ_KEY\x01u\xff\x02")
        (message,) = store.queue("topic").read()
        for key in (*message.keys, message.unique_key):
            assert [found.body for found in store.query("topic", key=key)] == [b"x"]
