"""The native put: the same bytes and the same refusals as the Python put behind it, whatever it is given."""

import gc
import sys
import threading
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stratalog
from store.conftest import OpenStore
from store.model import LOG_FILE_SIZE, QUIET, SMALL, Clock, bodies, check, log_files, scratch_folder
from stratalog.errors import IllegalMessage, StoreClosed, StratalogError
from stratalog.layout.message import PROPERTIES_SIZE_MAX
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue
from stratalog.store.receipts import Receipts

pytestmark = pytest.mark.skipif(not stratalog.kernels.jit.HOLDS_THE_GIL, reason="needs the interpreter's lock")


class Text(str):
    """A str that shows itself as another one."""

    def __str__(self) -> str:
        return "shown"


class Octets(bytes):
    pass


class Number(int):
    def __index__(self) -> int:
        raise AssertionError("asked")


class Mapped(dict[str, str]):
    def values(self) -> Any:
        return ["other"] * len(self)


class Letters:
    def __iter__(self) -> Any:
        return iter("ab")


class Odd:
    """Answers every question with another error."""

    def __len__(self) -> int:
        raise ZeroDivisionError

    def __str__(self) -> str:
        raise RecursionError

    def __bool__(self) -> bool:
        raise KeyError

    def __eq__(self, other: object) -> bool:
        raise LookupError

    __hash__ = None  # type: ignore[assignment]


ANY_TEXT = st.text(max_size=12) | st.text("\x01\x02 %Aü\ud800€", max_size=4) | st.just("x" * 3000)
NAMES = ANY_TEXT | st.sampled_from(
    ["region", "KEYS", "TAGS", "UNIQ_KEY", "WAIT", "DELAY", "TYPE", "INNER_NUM", "__CRC32#", "größe", "Aa", "BB", "%s"]
)
TEXTS = st.none() | ANY_TEXT | st.builds(Text, ANY_TEXT)
BODIES = (
    st.binary(max_size=300)
    | st.sampled_from([b"", b"x" * 5000, b"y" * (LOG_FILE_SIZE - 200), b"z" * LOG_FILE_SIZE])
    | st.builds(Octets, st.binary(max_size=20))
    | st.builds(bytearray, st.binary(max_size=20))
)
KEYWORDS = st.fixed_dictionaries(
    {},
    optional={
        "tags": TEXTS,
        "keys": TEXTS | st.lists(ANY_TEXT, max_size=4) | st.lists(ANY_TEXT, max_size=3).map(tuple),
        "unique_key": TEXTS,
        "properties": st.none()
        | st.dictionaries(NAMES, ANY_TEXT, max_size=20)
        | st.dictionaries(NAMES, ANY_TEXT, max_size=3).map(OrderedDict),
        "born_timestamp": st.integers(-2, 2) | st.integers() | st.booleans(),
        "wait": st.booleans(),
    },
)
RAW = st.binary(max_size=100) | st.sampled_from(
    [
        b"",
        b"a\x01b\x02",
        b"x" * PROPERTIES_SIZE_MAX,
        b"x" * (PROPERTIES_SIZE_MAX + 1),
        b"__CRC32#\x01123\x02a\x01b\x02",
        b"a\x01b\0",
        b"WAIT\x01false\x02",
        b"a\x01b\x02WAIT\x01False\x02WAITS\x01c\x02",
    ]
)


def outcome(call: Callable[..., Any], *args: Any, **given: Any) -> Any:
    try:
        answer = call(*args, **given)
        return list(answer) if isinstance(answer, Receipts) else answer
    except Exception as error:  # noqa: BLE001 - errors are answers here
        return type(error), str(error)


def with_both(root: Path, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], **given: Any) -> None:
    """Call a queue's builtins, and the Python functions on a second store; compare answers, errors, what is durable
    after each call, and files."""
    found = []
    for is_native in (True, False):
        folder = root / f"{is_native}"
        with stratalog.open(folder, clock_ns=Clock(), **SMALL, **QUIET, **given) as store:
            queue = store.queue("topic", 3)
            answers = []
            for name, args, keywords in calls:
                call = getattr(queue, name) if is_native else partial(getattr(Queue, name), queue)
                answers.append((outcome(call, *args, **keywords), store.durable_offset))
            check(store)
        found.append((answers, [path.read_bytes() for path in log_files(folder)]))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(BODIES, KEYWORDS), min_size=1, max_size=8), st.sampled_from(["sync", "async"]))
@example(
    [(b"b", {"properties": {f"n{n}": "v" for n in range(17)}}), (b"b", {"properties": {"Aa": "1", "BB": "2"}})], "async"
)
@example([(b"b", {"tags": "t", "keys": ["k"], "unique_key": "u", "properties": {"TAGS": "other"}})], "async")
@example(
    [
        (b"b", {"keys": ["k" * 600, "l" * 600]}),
        (b"b", {"keys": ["a b"]}),
        (b"b", {"keys": [""]}),
        (b"b", {"keys": ["k", ""]}),
    ],
    "async",
)
@example([(b"b", {"wait": False}), (b"b", {"properties": {"WAIT": "false"}}), (b"b", {"wait": True})], "sync")
def test_put_writes_refuses_and_waits_as_the_python_put_does(
    puts: list[tuple[Any, dict[str, Any]]], flush: str
) -> None:
    with scratch_folder() as folder:
        with_both(folder, [("put", (body,), given) for body, given in puts], max_message_size=60_000, flush=flush)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(BODIES, RAW, st.booleans()), min_size=1, max_size=8), st.sampled_from(["sync", "async"]))
def test_put_raw_writes_and_refuses_as_the_python_put_raw_does(puts: list[tuple[Any, bytes, bool]], flush: str) -> None:
    calls = [
        ("put_raw", (body,) if by_name else (body, raw), {"properties": raw, "wait": False} if by_name else {})
        for body, raw, by_name in puts
    ]
    with scratch_folder() as folder:
        with_both(folder, calls, max_message_size=60_000, flush=flush)


LISTS = st.lists(BODIES, max_size=6) | st.lists(BODIES, max_size=3).map(tuple)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(LISTS, RAW | st.lists(RAW, max_size=6), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(["sync", "async"]),
)
@example([([b"a", b"bc", b""], [b"", b"x\x01y\x02", b""], False), ([b"z"], b"DELAY\x013\x02", False)], "async")
@example([([b"a"] * 3, b"", True), ([b"b"] * 3, [b"TAGS\x01t\x02"] * 3, False), ([], b"", False)], "async")
@example([([b"a"] * 3, b"x\x01DELAY\x01", True), ([b"b", None], b"", False), ([b"b"] * 2, [b"", None], False)], "async")
def test_put_many_writes_and_refuses_as_the_python_put_many_does(puts: list[tuple[Any, Any, bool]], flush: str) -> None:
    fitting = [
        (bodies, texts if isinstance(texts, bytes) else (texts + [b""] * 9)[: len(bodies)]) for bodies, texts, _ in puts
    ]
    calls: list[Any] = [("put_many", (bodies,) if alone else (bodies, texts), {}) for bodies, texts, alone in puts]
    calls += [("put_many", given, {}) for given in fitting]
    with scratch_folder() as folder:
        with_both(folder, calls, max_message_size=60_000, flush=flush)


GARBAGE = [
    None, True, 0, -1, 1 << 70, 1.5, "", "text", "\ud800", b"", b"bytes", bytearray(b"array"), memoryview(b"view"),
    memoryview(b"every other")[::2], [], [1], [None, "k"], ["k", Odd()], (), {}, {1: 2}, {"n": None}, {"n": 1},
    {"n": Odd()}, {b"n": "v"}, set(), object(), type, len, Text("t"), Octets(b"o"), Number(5), Mapped(n="v"), Odd(),
    lambda: None, sys, ..., Letters(), "x" * 100_000, b"x" * 100_000, {"x" * 40_000: "y"},
]  # fmt: skip


def ways_to_call() -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    for thing in GARBAGE:
        calls += [("put", (thing,), {}), ("put_raw", (thing,), {}), ("put_raw", (b"body", thing), {})]
        for name in ("tags", "keys", "unique_key", "properties", "born_timestamp", "wait", "flag", "body", "ü"):
            calls += [("put", (b"body",), {name: thing}), ("put_raw", (b"body",), {name: thing})]
        calls += [("put_many", (thing,), {}), ("put_many", ([b"body"], thing), {}), ("put_many", ([b"b", thing],), {})]
        calls += [("put_many", ([b"b", b"c"], [b"", thing]), {}), ("put_many", ([b"b"],), {"properties": thing})]
        calls += [("put_raw", (b"body", b"", thing), {}), ("put", (b"body", thing), {}), ("put", (), {"body": thing})]
    calls += [("put_many", (), {}), ("put_many", ([b"b"], b"", b""), {}), ("put_many", ([b"x"] * 5000, b""), {})]
    return [*calls, ("put", (), {}), ("put_raw", (), {}), ("put_raw", (b"b", b""), {"properties": b""})]


def test_whatever_it_is_given_it_answers_as_python_does_and_lives() -> None:
    for flush in ("async", "sync"):
        with scratch_folder() as folder:
            calls = [call for call in ways_to_call() if not isinstance(call[2].get("wait", True), Odd)]
            without_addresses = [call for call in calls if "object at" not in repr(call)]
            with_both(folder, without_addresses, flush=flush)
            with stratalog.open(folder / "rest", **SMALL, **QUIET) as store:
                queue = store.queue("t")
                for name, args, keywords in calls:
                    outcome(getattr(queue, name), *args, **keywords)
                check(store)


def test_the_stores_put_answers_as_its_python_put_does_whatever_it_is_given(tmp_path: Path) -> None:
    topics = [*GARBAGE, "t", "new", "%RETRY%" + "g" * 200, Text("t")]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((topic, b"body"), {"tags": "a"}) for topic in topics]
    for thing in [*GARBAGE, 0, 1, 7, 1 << 31, True]:
        calls += [(("t", b"body"), {"queue_id": thing}), (("t", thing), {"keys": ["k"]}), (("t", b"b", thing), {})]
        calls += [(("t", b"body"), {"queue_id": 1, "properties": thing}), (("t",), {"body": thing})]
    calls = [call for call in calls if "object at" not in repr(call)]
    found = []
    for is_native in (True, False):
        with stratalog.open(tmp_path / f"{is_native}", clock_ns=Clock(), **SMALL, **QUIET) as store:
            for queue_id in (0, 1):
                store.queue("t", queue_id)
            put = store.put if is_native else partial(MessageStore.put, store)
            found.append([outcome(put, *args, **given) for args, given in calls])
            check(store)
    assert found[0] == found[1]
    assert len({type(answer) for answer in found[0]}) == 2, "receipts and refusals"


def test_nothing_given_is_kept_or_lost(open_store: OpenStore) -> None:
    """Every reference that a call takes is given back, on all its ways out."""
    store = open_store(checked=False, mapped_file_size_commit_log=64 << 20)
    store.log.on_step = lambda: None  # nothing else takes memory meanwhile
    queue = store.queue("t")
    body, tag, keys, number = b"b" * 50, "-".join("tag"), ["-".join("k1"), "-".join("k2")], 10**15
    properties = {"-".join("name"): "-".join("value")}
    many = [body] * 3
    things = [
        many,
        body,
        tag,
        keys,
        keys[0],
        properties,
        next(iter(properties)),
        number,
        None,
        True,
        queue.host,
        int,
        str,
    ]

    def calls() -> None:
        for _ in range(1000):
            queue.put(
                body, tags=tag, keys=keys, unique_key=tag, properties=properties, born_timestamp=number, wait=True
            )
            queue.put_raw(body, body)
            queue.put_many([body] * 2, [body, body])
            queue.put_many(many, body)
            outcome(queue.put_many, [body, None], [body, tag])
            outcome(queue.put_many, many, tag)
            outcome(queue.put, body, tags="")
            outcome(queue.put, None, tags=tag, properties=properties)
            outcome(queue.put_raw, body, tag)

    calls()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in things]
    calls()
    gc.collect()
    after = [sys.getrefcount(thing) for thing in things]
    assert all(abs(new - old) < 100 for old, new in zip(before, after, strict=True)), (before, after)
    tracemalloc.start()
    try:
        calls()
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        calls()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - held < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_plain_messages_take_the_native_way(
    flush: str, monkeypatch: pytest.MonkeyPatch, open_store: OpenStore
) -> None:  # fmt: skip
    def never(*args: Any, **given: Any) -> Any:
        raise AssertionError("went through Python")

    store = open_store(mapped_file_size_commit_log=1 << 20, flush=flush)
    store.put("t", b"makes the file")
    monkeypatch.setattr(Queue, "_append", never)
    monkeypatch.setattr(Queue, "put", never)
    monkeypatch.setattr(Queue, "put_raw", never)
    if flush == "async":  # under sync flush lists go the long way: they wait for the disk
        monkeypatch.setattr(Queue, "put_many", never)
    queue = store.queue("t", 1)
    queue.put(b"1")
    queue.put(b"2", tags="a", keys="k l", unique_key="U", properties={"größe": "ü"}, born_timestamp=5)
    queue.put(b"3", keys=["k", "l"], wait=False, tags=None, properties=None)
    queue.put_raw(b"4", b"a\x01b\x02")
    assert [receipt.queue_offset for receipt in queue.put_many([b"5", b"6"], [b"", b"a\x01b\x02"])] == [4, 5]
    assert queue.put_many([b"7"])[-1].queue_offset == 6
    queue.put_many([b"8"] * 3, b"a\x01b\x02")
    assert [message.queue_offset for message in queue.read()] == list(range(10))


def test_a_builtin_outlives_queue_and_store(tmp_path: Path) -> None:
    put = stratalog.open(tmp_path / "one", **SMALL, **QUIET).queue("t").put
    gc.collect()
    assert put(b"still there").queue_offset == 0
    store = stratalog.open(tmp_path / "two", **SMALL, **QUIET)
    put_raw = store.queue("t").put_raw
    store.close()
    del store
    gc.collect()
    for _ in range(3):
        with pytest.raises(StoreClosed, match="is closed"):
            put_raw(b"late")


class Wandering:
    """A clock in Python: it moves on and back, lets other threads run, and fails at times."""

    def __init__(self) -> None:
        self.count = 0
        self.fails = True

    def __call__(self) -> int:
        self.count += 1
        for _ in range(self.count % 50):
            pass
        if self.fails and self.count % 97 == 0:
            raise OverflowError("no time")
        return 1_700_000_000_000_000_000 + (self.count % 5) * 1_000_000


@pytest.mark.parametrize("clock", [None, Wandering], ids=["system clock", "clock in Python"])
def test_threads_that_mix_all_ways_to_put_lose_nothing(clock: Any, open_store: OpenStore) -> None:
    """Four threads, two queues, every way in; the log rolls under them. What was acknowledged is there, once."""
    import pyarrow as pa

    time = clock() if clock else None
    store = open_store(flush="async", **({"clock_ns": time} if time else {}))
    acknowledged: list[tuple[int, int, bytes]] = []
    interval = sys.getswitchinterval()

    def work(thread: int) -> None:
        queues = [store.queue("t", queue_id) for queue_id in (0, 1)]
        for n in range(600):
            queue, body = queues[n % 2], b"%d-%d" % (thread, n)
            try:
                if n % 50 == 7:
                    receipts = list(queue.put_many([body, body + b"'"]))
                elif n % 50 == 8:
                    offsets = queue.append(pa.record_batch({"body": [body, body + b"'"]}))
                    acknowledged.extend(
                        (n % 2, offset, text) for offset, text in zip(offsets, [body, body + b"'"], strict=True)
                    )
                    continue
                elif n % 5 == 0:
                    receipts = [queue.put_raw(body, b"a\x01b\x02")]
                elif n % 31 == 3:
                    receipts = [queue.put_record(body, b"", flag=3)]
                elif n % 31 == 4:
                    receipts = [queue.put(bytearray(body))]
                else:
                    receipts = [queue.put(body, tags="a", keys=["k"], properties={"p": body.decode()})]
            except OverflowError:
                continue
            for receipt, text in zip(receipts, [body, body + b"'"], strict=False):
                acknowledged.append((n % 2, receipt.queue_offset, text))

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if time:
        time.fails = False  # dispatch asks it for the name of an index file
    found = bodies(store)
    assert sorted(acknowledged) == sorted(
        (queue_id, offset, body) for (_, queue_id), texts in found.items() for offset, body in enumerate(texts)
    )
    assert len(store.log.files) > 2
    check(store)


def test_store_times_rise_along_the_log_though_the_clock_lets_other_threads_put(open_store: OpenStore) -> None:
    ticks = count(1)

    def clock() -> int:
        now = next(ticks)
        time.sleep(0)  # somebody else may put now
        return now * 1_000_000

    store = open_store(clock_ns=clock, mapped_file_size_commit_log=1 << 20)
    queue = store.queue("t")
    queue.put(b"makes the file")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: [queue.put(b"x") for _ in range(500)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    times = [message.store_timestamp for message in queue.read()]
    assert len(times) == 2001
    assert times == sorted(times)


def test_a_put_waits_while_others_hold_the_log(open_store: OpenStore) -> None:
    """Whoever holds the lock may be changing the log without the interpreter's lock."""
    store = open_store()
    queue = store.queue("t")
    queue.put(b"first")
    done = threading.Event()
    thread = threading.Thread(target=lambda: (queue.put(b"second"), done.set()))
    with store.log.locks.append[0], store.log.busy:
        end = store.log.end_offset
        thread.start()
        assert not done.wait(0.05)
        assert store.log.end_offset == end
    thread.join()
    assert [message.body for message in queue.read()] == [b"first", b"second"]


def test_refusals_name_what_is_wrong(open_store: OpenStore) -> None:
    queue = open_store(max_message_size=100).queue("t")
    for body, keywords, word in (
        (b"x" * 101, {}, "101"),
        (b"", {"tags": "a\x01b"}, "separator"),
        (b"", {"tags": ""}, "is empty"),
        (b"", {"keys": ["a b"]}, "blank"),
        (b"", {"unique_key": "\udfff"}, "surrogate"),
        (b"", {"tags": "a", "properties": {"TAGS": "b"}}, "as well"),
        (b"", {"properties": {"a": "b" * 40_000}}, "properties of"),
        (b"", {"born_timestamp": 1 << 63}, "64 bits"),
    ):
        with pytest.raises(IllegalMessage, match=word):
            queue.put(body, **keywords)  # type: ignore[arg-type]
    assert queue.store.log.end_offset == 0
    assert isinstance(outcome(queue.put, b""), object)
    assert not issubclass(StratalogError, OverflowError)
