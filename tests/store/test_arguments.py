"""Every put form times an odd value for every parameter: the message that a plain reading of the rules says, found by
its keys, or an error of ours and not a byte written."""

import asyncio
import contextlib
import random
import re
import sys
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import stratalog
from store.conftest import OpenStore
from store.model import QUIET, SMALL, Clock, scratch_folder
from store.odd_values import ODD_VALUES, RAISES, Claims, OddValue
from stratalog.config.settings import StoreSettings
from stratalog.errors import IllegalMessage
from stratalog.layout.message import Host
from stratalog.layout.properties import encode_properties
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue
from stratalog.tools.verify import verify

REFUSED = object()
SEED = 20261122
BATCHES, LIGHT = "batches", "%LMQ%light"
SETTINGS = SMALL | QUIET | {"enable_lmq": True, "enable_multi_dispatch": True, "mapped_file_size_commit_log": 1 << 20}


# -- what a plain reading of the rules says --------------------------------------------------------------------------


def is_storable(text: str) -> bool:
    return bool(text) and not set("\x01\x02") & set(text) and text == text.encode("utf-8", "replace").decode()


def label(odd: OddValue) -> Any:
    text = odd.meanings.get("text", REFUSED)
    return text if text is REFUSED or is_storable(text) else REFUSED


def topic(odd: OddValue) -> Any:
    text = odd.meanings.get("text", REFUSED)
    return text if text is not REFUSED and re.fullmatch("[%|a-zA-Z0-9_-]{1,127}", text) else REFUSED


def keys(odd: OddValue) -> Any:
    found = odd.meanings.get("keys", REFUSED)
    if isinstance(found, str):
        return [key for key in found.split(" ") if key] if is_storable(found) else REFUSED
    if isinstance(found, list):
        return found if all(is_storable(key) and " " not in key for key in found) else REFUSED
    return found


def properties(odd: OddValue) -> Any:
    found = odd.meanings.get("mapping", REFUSED)
    if isinstance(found, dict):
        return found if all(is_storable(text) for pair in found.items() for text in pair) else REFUSED
    return found


def fitting(low: int, end: int) -> Callable[[OddValue], Any]:
    def meaning(odd: OddValue) -> Any:
        number = odd.meanings.get("int", REFUSED)
        return number if not isinstance(number, int) or low <= number < end else REFUSED

    return meaning


def of(kind: str) -> Callable[[OddValue], Any]:
    return lambda odd: odd.meanings.get(kind, REFUSED)


def optional(meaning: Callable[[OddValue], Any]) -> Callable[[OddValue], Any]:
    return lambda odd: None if odd is ODD_VALUES["None"] else meaning(odd)


def raw(odd: OddValue) -> Any:
    """Encoded properties: none ends with a zero byte."""
    text = odd.meanings.get("bytes", REFUSED)
    return text if text is REFUSED or not text.endswith(b"\0") else REFUSED


INT32 = fitting(-(1 << 31), 1 << 31)
INT64 = fitting(-(1 << 63), 1 << 63)
QUEUE_ID = fitting(0, 1 << 31)
LABELS = {"tags": optional(label), "keys": optional(keys), "unique_key": optional(label)}
PLACE = {"topic": topic, "queue_id": QUEUE_ID}


# -- the put forms ---------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """`call(store, **given)` returns receipts; `meanings` says what each parameter's value means."""

    call: Callable[..., Any]
    meanings: dict[str, Callable[[OddValue], Any]]
    topic: str = "t"


def python(queue: Queue, verb: str) -> Any:
    return partial(getattr(Queue, verb), queue)


def put_async(store: MessageStore, topic: Any, body: Any, **given: Any) -> Any:
    return asyncio.run(store.put_async(topic, body, **given))


def put_arrow(store: MessageStore, topic: Any, queue_id: Any) -> Any:

    ((_, offsets),) = store.append(pa.record_batch({"body": [b"body"]}), topic=topic, queue_id=queue_id).items()
    return next(store.queue(topic, queue_id or 0).read(offsets[0]))


ONE = {"body": of("bytes"), **LABELS, "properties": optional(properties), "born_timestamp": INT64}
RAW = {"body": of("bytes"), "properties": raw, "born_timestamp": INT64}
RECORD = RAW | {"flag": INT32, "reconsume_times": INT32, "prepared_transaction_offset": INT64}
MANY = {"bodies": of("bodies"), "born_timestamp": INT64}
FORMS = {
    "store.put": Form(lambda store, **given: store.put(**given), PLACE | ONE),
    "store.put in Python": Form(lambda store, **given: MessageStore.put(store, **given), PLACE | ONE),
    "queue.put": Form(lambda store, body, **given: store.queue("t").put(body, **given), ONE),
    "queue.put in Python": Form(lambda store, body, **given: python(store.queue("t"), "put")(body, **given), ONE),
    "put to a batch topic": Form(lambda store, body, **given: store.queue(BATCHES).put(body, **given), ONE, BATCHES),
    "put_async": Form(put_async, PLACE | ONE),
    "put_raw": Form(lambda store, body, **given: store.queue("t").put_raw(body, **given), RAW),
    "put_raw in Python": Form(lambda store, body, **given: python(store.queue("t"), "put_raw")(body, **given), RAW),
    "put_record": Form(lambda store, body, **given: store.queue("t").put_record(body, **given), RECORD),
    "store.put_many": Form(lambda store, **given: store.put_many(**given), PLACE | {"bodies": of("bodies")}),
    "put_many": Form(lambda store, bodies, **given: store.queue("t").put_many(bodies, **given), MANY),
    "put_many in Python": Form(
        lambda store, bodies, **given: python(store.queue("t"), "put_many")(bodies, **given), MANY
    ),
    "put_many, one body": Form(
        lambda store, body: store.queue("t").put_many([b"first", body])[1], {"body": of("bytes")}
    ),
    "put_many, one body, Python": Form(
        lambda store, body: python(store.queue("t"), "put_many")([b"first", body])[1], {"body": of("bytes")}
    ),
    "put_many, one text": Form(
        lambda store, properties: store.queue("t").put_many([b"first", b"body"], [b"", properties])[1],
        {"properties": raw},
    ),
    "put_many, one flag": Form(
        lambda store, flag: store.queue("t").put_many([b"body"], flags=[flag])[0], {"flag": INT32}
    ),
    "put_batch": Form(
        lambda store, bodies, unique_key="U", **given: store.queue(BATCHES).put_batch(
            bodies, unique_key=unique_key, **given
        ),
        LABELS | {"unique_key": label, "bodies": lambda odd: odd.meanings.get("bodies") or REFUSED},
        BATCHES,
    ),
    "put_batch, one flag": Form(
        lambda store, flag: store.queue(BATCHES).put_batch([b"body"], unique_key="U", flags=[flag]), {"flag": INT32},
        BATCHES,
    ),
    "append": Form(put_arrow, PLACE | {"queue_id": optional(QUEUE_ID)}),
    "light queues": Form(
        lambda store, properties=None, **given: store.queue("t").put(
            properties={"INNER_MULTI_DISPATCH": LIGHT} | (properties or {}), **given
        ),
        {name: meaning for name, meaning in ONE.items() if name != "properties"},
    ),
}  # fmt: skip
POSITIONAL = {"topic": "t", "body": b"body", "bodies": [b"body"]}


def base_of(form: Form) -> dict[str, Any]:
    """What the parameters without an odd value are given."""
    given: dict[str, Any] = {name: value for name, value in POSITIONAL.items() if name in form.meanings}
    return given | ({"queue_id": 0} if "queue_id" in form.meanings else {})


@pytest.fixture
def store() -> Iterator[MessageStore]:
    """It is verified when the test ends: index, queues and log must agree."""
    with scratch_folder() as folder:
        with stratalog.open(folder / "store", clock_ns=Clock(), **SETTINGS) as opened:
            opened.create_topic(BATCHES, queue_type="BatchCQ")
            for name in ("t", BATCHES):
                opened.queue(name).put(b"before")
            yield opened
        report = verify(folder / "store", settings=StoreSettings(**SETTINGS))
        assert report.ok, report.problems


def snapshot(store: MessageStore) -> Any:
    """The log's end, and every queue that has messages with its next offset."""
    queues = store._queues.items()
    return store.log.end_offset, {place: queue.next_offset for place, queue in queues if queue.next_offset}


def judge(store: MessageStore, form: Form, odds: dict[str, OddValue]) -> str:
    """Put with these odd values; what contradicts the rules, or an empty text."""
    given = base_of(form) | {name: odd.make() for name, odd in odds.items()}
    meanings = {name: form.meanings[name](odd) for name, odd in odds.items()}
    errors = {
        error
        for meaning, error in ((REFUSED, IllegalMessage), (RAISES, ZeroDivisionError))
        if any(found is meaning for found in meanings.values())
    }
    before = snapshot(store)
    try:
        receipt = form.call(store, **given)
    except Exception as error:  # noqa: BLE001 - an error of another type is a finding
        if snapshot(store) != before:
            return f"{error!r}, and something was written"
        return "" if type(error) in errors else f"{error!r}, expected {errors or 'to be stored'}"
    return compare(store, form, receipt, meanings) if not errors else f"stored, expected {errors}"


def compare(store: MessageStore, form: Form, receipt: Any, meanings: dict[str, Any]) -> str:
    bodies = meanings.get("bodies", [b"body"])
    if not bodies:
        return "" if not receipt else "receipts of no message"
    receipt = receipt[0] if isinstance(receipt, Sequence) else receipt
    place = meanings.get("topic", form.topic), meanings.get("queue_id") or 0
    found = list(store.queue(*place).read(receipt.queue_offset, count=len(bodies)))
    told = {"body": [message.body for message in found]}
    wanted: dict[str, Any] = {"body": bodies if "bodies" in meanings else [meanings.get("body", b"body")]}
    message = found[0]
    for name in ("tags", "keys", "unique_key", "flag", "reconsume_times", "prepared_transaction_offset"):
        if name in meanings and form is not FORMS["put_batch"]:
            told[name], wanted[name] = (
                getattr(message, name),
                meanings[name] if name != "keys" else meanings[name] or [],
            )
    if meanings.get("born_timestamp"):
        told["born"], wanted["born"] = message.born_timestamp, meanings["born_timestamp"]
    if "properties" in meanings and isinstance(meanings["properties"], bytes):
        told["raw"], wanted["raw"] = message.raw_properties, meanings["properties"]
    elif "properties" in meanings:
        told["properties"], wanted["properties"] = message.properties, meanings["properties"] or {}
    if told != wanted:
        return f"stored {told}, given {wanted}"
    for key in [*(meanings.get("keys") or []), *filter(None, [meanings.get("unique_key")])]:
        hits = store.query(place[0], key=key, limit=1000)
        if receipt.commit_log_offset not in [hit.commit_log_offset for hit in hits]:
            return f"not found by key {key!r}"
    return ""


@pytest.mark.parametrize("name", FORMS)
def test_each_parameter_of_each_form_takes_or_refuses_each_odd_value_as_the_rules_say(
    name: str, store: MessageStore
) -> None:
    form, wrong = FORMS[name], []
    for parameter in form.meanings:
        for odd_name, odd in ODD_VALUES.items():
            found = judge(store, form, {parameter: odd})
            if found:
                wrong.append(f"{name}({parameter}={odd_name}): {found}")
    assert not wrong, "\n".join(wrong)


def test_odd_values_for_several_parameters_at_once(store: MessageStore) -> None:
    chance = random.Random(SEED)
    wrong = []
    for _ in range(1500):
        name, form = chance.choice(list(FORMS.items()))
        picked = chance.sample(list(form.meanings), min(len(form.meanings), chance.randint(2, 4)))
        names = {parameter: chance.choice(list(ODD_VALUES)) for parameter in picked}
        found = judge(store, form, {parameter: ODD_VALUES[odd] for parameter, odd in names.items()})
        if found:
            wrong.append(f"{name}({names}): {found}")
    assert not wrong, "\n".join(wrong)


def test_what_takes_no_number_takes_no_odd_field(store: MessageStore) -> None:
    queue, batches, end = store.queue("t"), store.queue(BATCHES), store.log.end_offset
    for put in (
        lambda: queue.put_record(b"", sys_flag=1.0),
        lambda: queue.put_record(b"", sys_flag=True),
        lambda: batches.put_batch([b""], unique_key="U", sys_flag=1.5),
        lambda: queue.put_record(b"", born_host="127.0.0.1:1"),
        lambda: queue.put_record(b"", store_host=Host(bytearray(3), 1)),
        lambda: queue.put_record(b"", store_host=Host("1234", 1)),
        lambda: queue.put_record(b"", store_host=Host(b"1234", 1.5)),
        lambda: queue.put_many([b""], born_host=("1234", 1)),
        lambda: queue.put_many([b""], flags=5),
        lambda: queue.put_many([b""], flags="0"),
        lambda: queue.put_many([b"", b""], flags=(flag for flag in (1,))),
        lambda: queue.put_many([b"", b""], (text for text in (b"",))),
        lambda: queue.put(b"", wait=np.arange(2)),
        lambda: queue.put_raw(b"", wait=np.arange(2)),
        lambda: queue.put_record(b"", wait=np.arange(2)),
        lambda: store.put("t", b"", wait=np.arange(2)),
        lambda: batches.put_batch([b""], unique_key="U", wait=np.arange(2)),
    ):
        with pytest.raises(IllegalMessage):
            put()
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        queue.put_record(b"", colour=1)
    assert store.log.end_offset == end


COLUMNS: dict[str, tuple[Any, Any]] = {
    "tags": (pa.array(["a"]), "a"),
    "large tags": (pa.array(["a"], pa.large_string()), "a"),
    "view of tags": (pa.array(["a"], pa.string_view()), "a"),
    "dictionary of tags": (pa.array(["a"]).dictionary_encode(), "a"),
    "no tags": (pa.nulls(1), None),
    "tags as bytes": (pa.array([b"a"]), REFUSED),
    "tags as dictionary of bytes": (pa.array([b"a"]).dictionary_encode(), REFUSED),
    "tags as numbers": (pa.array([1]), REFUSED),
    "tags as truth": (pa.array([True]), REFUSED),
    "tags as time": (pa.array([1], pa.timestamp("ms")), REFUSED),
    "tags as a list": (pa.array([["a"]]), REFUSED),
    "keys": (pa.array(["a b"]), ["a", "b"]),
    "keys in a list": (pa.array([["a", "b"]]), ["a", "b"]),
    "keys in a large list": (pa.array([["a", "b"]], pa.large_list(pa.large_string())), ["a", "b"]),
    "keys in a list of two": (pa.array([["a", "b"]], pa.list_(pa.string(), 2)), ["a", "b"]),
    "keys in a list of dictionary": (pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), ["a"]),
    "keys as numbers": (pa.array([[1, 2]]), REFUSED),
    "keys as bytes": (pa.array([[b"a"]]), REFUSED),
    "keys as a struct": (pa.array([{"a": "b"}]), REFUSED),
    "keys with null": (pa.array([["a", None]]), REFUSED),
    "keys with a blank": (pa.array([["a b"]]), REFUSED),
    "uniqueKey": (pa.array(["a"]), "a"),
    "uniqueKey as a number": (pa.array([1.5]), REFUSED),
    "region": (pa.array(["a"]), "a"),
    "region as a number": (pa.array([1]), REFUSED),
    "region as bytes": (pa.array([b"a"]), REFUSED),
    "queueId": (pa.array([1], pa.uint64()), 1),
    "queueId as truth": (pa.array([True]), REFUSED),
    "queueId as a float": (pa.array([1.0]), REFUSED),
    "queueId as text": (pa.array(["1"]), REFUSED),
    "queueId without a number": (pa.nulls(1), REFUSED),
    "flag": (pa.array([1], pa.int64()), 1),
    "flag as a float": (pa.array([1.0]), REFUSED),
    "flag beyond 32 bits": (pa.array([1 << 31]), REFUSED),
    "bornTimestamp": (pa.array([10**12]), 10**12),
    "bornTimestamp in us": (pa.array([10**15], pa.timestamp("us", "UTC")), 10**12),
    "bornTimestamp as a float": (pa.array([1e12]), REFUSED),
    "bornTimestamp as text": (pa.array(["1"]), REFUSED),
    "body": (pa.array(["a"]), b"a"),
    "no body": (pa.array([None], pa.binary()), REFUSED),
    "body view": (pa.array([b"a"], pa.binary_view()), b"a"),
    "body of one size": (pa.array([b"a"], pa.binary(1)), b"a"),
    "body as a number": (pa.array([1]), REFUSED),
    "body as a list": (pa.array([[b"a"]]), REFUSED),
    "topic": (pa.array(["t"]).dictionary_encode(), "t"),
    "topic as bytes": (pa.array([b"t"]), REFUSED),
    "topic as a number": (pa.array([1]), REFUSED),
}
FIELD_OF_COLUMN = {"uniqueKey": "unique_key", "queueId": "queue_id", "bornTimestamp": "born_timestamp"}


@pytest.mark.parametrize("case", COLUMNS)
def test_each_column_of_arrow_follows_the_same_rules(case: str, store: MessageStore) -> None:
    (name, *_), (column, meaning) = case.removeprefix("large ").removeprefix("no ").split(" "), COLUMNS[case]
    name = next(known for known in ("tags", name) if known in case)
    before = snapshot(store)
    rows = pa.record_batch({"body": [b""], "topic": ["t"]} | {name: column})
    if meaning is REFUSED:
        with pytest.raises(IllegalMessage):
            store.append(rows)
        assert snapshot(store) == before
        return
    ((place, offsets),) = store.append(rows).items()
    (message,) = store.queue(*place).read(offsets[0])
    found = message.properties.get(name) if name == "region" else getattr(message, FIELD_OF_COLUMN.get(name, name))
    assert found == meaning


@pytest.mark.parametrize(
    "rows",
    [None, {"body": [b""]}, [b""], b"", pa.array([b""]), pd.DataFrame({"body": [b""]}), Claims(pa.Table)],
    ids=lambda rows: type(rows).__name__,
)
def test_what_is_no_arrow_batch_is_refused(rows: Any, store: MessageStore) -> None:
    with pytest.raises(IllegalMessage, match="RecordBatch"):
        store.append(rows, topic="t")


# -- containers that another thread changes --------------------------------------------------------------------------


def body_of(size: int) -> bytes:
    return b"%05d" % size + b"x" * size


def is_whole(body: bytes) -> bool:
    return body == body_of(int(body[:5]))


class Changed:
    """A list of bodies and one of texts, keys, properties and an array, which a thread changes all the time."""

    def __init__(self, seed: int, *, only_bytes: bool) -> None:
        self.chance = random.Random(seed)
        self.kinds = [bytes] if only_bytes else [bytes, bytearray, memoryview]
        self.bodies: list[Any] = [body_of(size) for size in range(300)]
        self.texts = [encode_properties({"KEYS": "a", "p": "b"})] * 300
        self.keys = ["a", "b"]
        self.properties = {"n0": "v0"}
        self.array = bytearray(body_of(7))
        self.stops = False

    def run(self) -> None:
        chance = self.chance
        while not self.stops:
            size, place = chance.randrange(400), chance.randrange(250)
            self.bodies[place] = body_of(size)
            self.bodies[place + 1] = chance.choice(self.kinds)(body_of(size))
            self.bodies.insert(place, self.bodies.pop())
            self.texts[place] = encode_properties({"KEYS": "a", "p": "b" * (1 + size)})
            if size % 3 == 0:
                self.bodies.append(body_of(size))
                self.keys.append("c" * (1 + size % 20))
                self.properties[f"n{size}"] = f"v{size}"
            elif size % 3 == 1 and len(self.bodies) > 300:
                self.bodies.pop()
                self.keys.pop()
                self.properties.clear()
            with contextlib.suppress(BufferError):  # it is being copied
                self.array[:] = body_of(size)


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "Python"])
def test_what_another_thread_changes_meanwhile_is_stored_as_it_was_at_one_moment(
    is_native: bool, store: MessageStore
) -> None:
    queue, changed = store.queue("t", 1), Changed(SEED, only_bytes=is_native)
    names, interval = ("put", "put_raw", "put_many"), sys.getswitchinterval()
    verbs = {name: getattr(queue, name) if is_native else python(queue, name) for name in names}
    thread = threading.Thread(target=changed.run)
    sys.setswitchinterval(1e-6)
    thread.start()
    stored, end = 0, time.monotonic() + 2
    try:
        while time.monotonic() < end and stored < 30_000:
            stored += len(verbs["put_many"](changed.bodies))
            stored += len(verbs["put_many"]([bytes(changed.array), b"00000"]))
            with contextlib.suppress(IllegalMessage):  # another number of texts than of bodies
                stored += len(verbs["put_many"](changed.bodies, changed.texts))
            verbs["put"](changed.array, keys=changed.keys, properties=changed.properties)
            verbs["put_raw"](changed.array, changed.texts[0])
            stored += 2
    finally:
        changed.stops = True
        sys.setswitchinterval(interval)
        thread.join()
    messages = list(queue.read())
    assert [message.queue_offset for message in messages] == list(range(stored))
    for message in messages:
        assert is_whole(message.body)
        assert {key[0] for key in message.keys} <= {"a", "b", "c"}
        for name, value in message.properties.items():
            assert value == f"v{name[1:]}" if name.startswith("n") else name == "KEYS" or set(value) == {"b"}


# -- after the message is stored -------------------------------------------------------------------------------------


class Watch:
    """Arguments that note each call of one of their methods once the log's end has moved."""

    def __init__(self, store: MessageStore) -> None:
        self.store, self.end = store, store.log.end_offset
        self.touched: list[str] = []

    def of(self, kind: type, *content: Any) -> Any:
        def watched(name: str) -> Any:
            def method(given: Any, *more: Any, **named: Any) -> Any:
                if self.store.log.end_offset != self.end:
                    self.touched.append(f"{kind.__name__}.{name}")
                return getattr(kind, name)(given, *more, **named)

            return method

        names = [name for name in dir(kind) if callable(getattr(kind, name)) and name not in _NOT_WATCHED]
        return type("Watched", (kind,), {name: watched(name) for name in names})(*content)

    def text(self, content: str) -> Any:
        return self.of(str, content)

    def octets(self, content: bytes) -> Any:
        return self.of(bytes, content)

    def number(self, content: int) -> Any:
        return self.of(int, content)

    def list(self, *items: Any) -> Any:
        return self.of(list, items)

    def mapping(self, kind: type, **given: str) -> Any:
        return self.of(kind, {self.text(name): self.text(value) for name, value in given.items()})

    def host(self) -> Host:
        return Host(self.octets(b"\1\2\3\4"), self.number(5))


_NOT_WATCHED = {"__new__", "__init__", "__class__", "__init_subclass__", "__subclasshook__", "__class_getitem__"}
WATCHED_PROPERTIES: dict[str, Callable[[Watch], Any]] = {
    "dict": lambda watch: watch.mapping(dict, p="v"),
    "dict of plain texts": lambda watch: {"p": "v"},
    "dict of odd texts": lambda watch: {watch.text("WAIT"): watch.text("true"), watch.text("p"): watch.text("v")},
    "other mapping": lambda watch: watch.mapping(UserDict, WAIT="true"),
    "wait": lambda watch: {"WAIT": watch.text("true")},
    "no wait": lambda watch: {"WAIT": watch.text("false"), "p": watch.text("v")},
}
WATCHED: dict[str, Callable[[Watch], Any]] = {
    "topic": lambda watch: watch.text("t"),
    "queue_id": lambda watch: watch.number(1),
    "body": lambda watch: watch.octets(b"x"),
    "bodies": lambda watch: watch.list(watch.octets(b"x"), watch.of(bytearray, b"y")),
    "tags": lambda watch: watch.text("a"),
    "keys": lambda watch: watch.list(watch.text("k"), watch.text("l")),
    "unique_key": lambda watch: watch.text("u"),
    "born_timestamp": lambda watch: watch.number(16),
    "wait": lambda watch: watch.number(1),
    "text": lambda watch: watch.octets(encode_properties({"WAIT": "true"})),
    "texts": lambda watch: watch.list(*[watch.octets(encode_properties({"WAIT": "true"}))] * 2),
    "flags": lambda watch: watch.list(watch.number(1), watch.number(2)),
    "host": lambda watch: watch.host(),
}
_FIELDS_GIVEN = dict.fromkeys(("flag", "sys_flag", "reconsume_times", "prepared_transaction_offset"), "born_timestamp")
_HOSTS_GIVEN = {"born_host": "host", "store_host": "host"}
_LABELS_GIVEN = {name: name for name in ("tags", "keys", "unique_key")}
_ONE_GIVEN = {"body": "body", "properties": "", **_LABELS_GIVEN, "born_timestamp": "born_timestamp"}
_RAW_GIVEN = {"body": "body", "properties": "text", "born_timestamp": "born_timestamp", "wait": "wait"}
_PLACE_GIVEN = {"topic": "topic", "queue_id": "queue_id"}
VERBS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "store.put": (lambda store, **given: store.put(**given), {**_PLACE_GIVEN, **_ONE_GIVEN, "wait": "wait"}),
    "put_async": (lambda store, **given: asyncio.run(store.put_async(**given)), {**_PLACE_GIVEN, **_ONE_GIVEN}),
    "put": (lambda store, **given: store.queue("t").put(**given), {**_ONE_GIVEN, "wait": "wait"}),
    "put_raw": (lambda store, **given: store.queue("t").put_raw(**given), _RAW_GIVEN),
    "put_record": (
        lambda store, **given: store.queue("t").put_record(**given),
        {**_RAW_GIVEN, **{name: kind for name, kind in _FIELDS_GIVEN.items() if name != "sys_flag"}, **_HOSTS_GIVEN},
    ),
    "store.put_many": (
        lambda store, **given: store.put_many(**given)[-1], {**_PLACE_GIVEN, "bodies": "bodies", "properties": "texts"}
    ),
    "put_many": (
        lambda store, **given: store.queue("t").put_many(**given)[-1],
        {"bodies": "bodies", "properties": "text", "flags": "flags", "born_timestamp": "born_timestamp",
         "born_host": "host"},
    ),
    "put_batch": (
        lambda store, **given: store.queue(BATCHES).put_batch(**given),
        {"bodies": "bodies", "properties": "texts", **_LABELS_GIVEN, "flags": "flags", "wait": "wait",
         **_FIELDS_GIVEN, **_HOSTS_GIVEN, "born_timestamp": "born_timestamp"},
    ),
}  # fmt: skip
PLAIN_GIVEN: dict[str, Any] = POSITIONAL | {"unique_key": "u"}


def watched_calls(watch: Watch, given: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The args of a verb: one of them watched, for each, and then all at once."""
    ways = {name: list(WATCHED_PROPERTIES.values()) if not kind else [WATCHED[kind]] for name, kind in given.items()}
    needed = {name: value for name, value in PLAIN_GIVEN.items() if name in given}
    for name, makes in ways.items():
        for make in makes:
            value = make(watch)
            many = {"bodies": [b"x", b"y"]} if "bodies" in needed else {}
            yield needed | many | {name: value}
    yield {name: makes[0](watch) for name, makes in ways.items()}


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("verb", VERBS)
def test_nothing_of_the_callers_is_touched_once_a_message_is_stored(
    verb: str, flush: str, open_store: OpenStore
) -> None:
    store = open_store(flush=flush, checked=False)
    store.create_topic(BATCHES, queue_type="BatchCQ")
    store.put("t", b"before")
    (call, names), watch = VERBS[verb], Watch(store)
    wrong = []
    for given in watched_calls(watch, names):
        watch.end = store.log.end_offset
        watch.touched.clear()
        receipt = call(store, **given)
        assert receipt.end_offset == store.log.end_offset > watch.end
        if watch.touched:
            wrong.append(f"{list(given)}: {watch.touched}")
    assert not wrong


class LowersToNo(str):
    __slots__ = ()

    def lower(self) -> str:
        return "no"


class FailsToLower(str):
    __slots__ = ()

    def lower(self) -> str:
        raise ZeroDivisionError


class FailsToCompare(str):
    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


@pytest.mark.parametrize("put", [FORMS["put_async"], FORMS["store.put"], FORMS["queue.put in Python"]])
def test_what_is_waited_for_is_what_is_stored(put: Form, open_store: OpenStore) -> None:
    changing = {"WAIT": "true"}

    def clock() -> int:
        """Between the look at the properties and the append it lets another thread change them."""
        changing["WAIT"] = "false" if changing["WAIT"] == "true" else "true"
        return Clock()()

    store = open_store(flush="sync", clock_ns=clock)
    for properties in (
        {"WAIT": LowersToNo("true")}, {"WAIT": FailsToLower("true")}, {"WAIT": FailsToLower("false")},
        {FailsToCompare("WAIT"): "true"}, {FailsToCompare("WAIT"): "false"}, *[changing] * 4,
    ):  # fmt: skip
        given = {"topic": "t", "queue_id": 0, "body": b"x"}
        receipt = put.call(store, **{name: value for name, value in given.items() if name in put.meanings},
                           properties=properties)  # fmt: skip
        is_durable = store.durable_offset >= receipt.end_offset
        store.flush()
        assert is_durable is (store.message(receipt.commit_log_offset).properties["WAIT"] == "true")
