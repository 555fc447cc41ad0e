"""A store that is closed under a call: what the call would have returned, or StoreClosed; nothing else."""

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from store.model import SMALL
from stratalog.errors import IllegalMessage, StoreClosed, StoreReadOnly, StoreUnavailable, StratalogError
from stratalog.store import lookup, reading
from stratalog.store.flush import Periodic
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue

SEED = 20261122
BATCHES, LIGHT = "batches", "%LMQ%light"
COUNT = 60
SETTINGS = SMALL | {"enable_lmq": True, "enable_multi_dispatch": True, "enable_consume_queue_ext": True}
ROWS = pa.record_batch({"body": [b"z" * 100] * 50})

Call = Callable[[MessageStore, dict[str, Queue]], Any]


def _batch(store: MessageStore, queues: dict[str, Queue]) -> Any:
    return queues[BATCHES].put_batch([b"1", b"2"], unique_key="u", keys="k")


def _of_each(call: Callable[[Queue], Any]) -> Call:
    return lambda store, queues: [call(queue) for queue in queues.values()]


CALLS: dict[str, Call] = {
    "put": lambda store, queues: store.put("t", b"x", keys="k"),
    "put to a new topic": lambda store, queues: store.put(f"n{random.randrange(30)}", b"x"),
    "put to a light queue": lambda store, queues: store.put("t", b"x", properties={"INNER_MULTI_DISPATCH": LIGHT}),
    "queue.put": lambda store, queues: queues["t"].put(b"x", keys="k"),
    "put_raw": lambda store, queues: queues["t"].put_raw(b"x"),
    "put_record": lambda store, queues: queues["t"].put_record(b"x"),
    "put_many": lambda store, queues: queues["t"].put_many([b"x"] * 20),
    "put_batch": _batch,
    "put_async": lambda store, queues: asyncio.run(store.put_async("t", b"x")),
    "append": lambda store, queues: queues["t"].append(ROWS),
    "create_topic": lambda store, queues: store.create_topic(f"c{random.randrange(9)}"),
    "flush": lambda store, queues: store.flush(),
    "durable_offset": lambda store, queues: (store.durable_offset, store.dispatch_lag, store.oldest_unflushed_ms),
    "queue": lambda store, queues: store.queue(f"q{random.randrange(1 << 60)}"),
    "queues": lambda store, queues: (store.queues(), store.topics(), store.topic_configs, store.consumer_offsets()),
    "read": _of_each(lambda queue: list(queue.read())),
    "read a few": _of_each(lambda queue: list(queue.read(queue.max_offset - 3))),
    "follow": lambda store, queues: list(islice(queues["t"].read(queues["t"].max_offset - 1, follow=True), 2)),
    "read_arrow": _of_each(lambda queue: queue.read_arrow()),
    "units": lambda store, queues: (queues["t"].units(0, 1000), queues["t"].extension(3)),
    "offset_at": _of_each(lambda queue: queue.offset_at(int(time.time() * 1000))),
    "estimate_count": _of_each(lambda queue: queue.estimate_count(tags="a")),
    "estimate_count by time": _of_each(lambda queue: queue.estimate_count(begin=10**12)),
    "min and max offset": _of_each(lambda queue: (queue.min_offset, queue.max_offset)),
    "query": lambda store, queues: _whole([store.query(topic, key="k") for topic in queues]),
    "query_many": lambda store, queues: _whole(store.query_many("t", ["k", "K1", "none"]).values()),
    "candidates": lambda store, queues: _whole([list(store.candidates("t", key="k"))]),
    "message": lambda store, queues: store.message(store.log.first_offset),
}


def _whole(answers: Any) -> None:
    """A key that messages carry finds some, or the call raises: it does not say that there are none."""
    assert next(iter(answers)), "no message, though there are some"


def made(root: Path) -> tuple[MessageStore, dict[str, Queue]]:
    store = stratalog.open(root, **SETTINGS)
    store.create_topic(BATCHES, queue_type="BatchCQ")
    for number in range(COUNT):
        store.put("t", b"%d" % number, keys=["k", f"K{number}"], tags="a", properties={"INNER_MULTI_DISPATCH": LIGHT})
        if number % 10 == 0:
            store.queue(BATCHES).put_batch([b"1", b"2"], unique_key="u", keys="k")
    queues = {name: store.queue(name) for name in ("t", BATCHES, LIGHT)}
    store.dispatch()
    return store, queues


@pytest.fixture(params=["native", "python"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(reading, "ready_or_started", lambda: False)
        monkeypatch.setattr(lookup, "ready_or_started", lambda: False)


def until_closed(call: Call, store: MessageStore, queues: dict[str, Queue], wrong: list[str], name: str) -> None:
    while not wrong:
        try:
            call(store, queues)
        except StoreClosed:
            return
        except BaseException as error:  # noqa: BLE001 - whatever else is a finding
            wrong.append(f"{name}: {error!r}")
            return
        if store.log.failure and name == "durable_offset":  # figures that a closed store has, too
            return


@pytest.mark.one_in(27)
@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("name", CALLS)
def test_a_store_closed_under_a_call_raises_store_closed(name: str, tmp_path: Path) -> None:
    chance, wrong = random.Random(f"{SEED} {name}"), list[str]()
    for _ in range(2):
        store, queues = made(tmp_path / str(chance.random()))
        threads = [
            threading.Thread(target=until_closed, args=(CALLS[name], store, queues, wrong, name)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        time.sleep(chance.random() * 0.02)  # so that it is somewhere within the call
        store.close()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert not wrong, wrong[0]


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("name", [name for name in CALLS if name != "durable_offset"])
def test_a_store_whose_mappings_went_between_two_steps_of_a_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the close came behind the call's own check: everything is released, the store is not marked as closed."""
    store, queues = made(tmp_path)
    store.close()
    monkeypatch.setattr(store, "_closed", False)
    try:
        CALLS[name](store, queues)
    except StoreClosed:
        pass
    else:
        assert name in RETURN_STILL, "it returned"


RETURN_STILL = {"queues", "min and max offset", "units", "create_topic", "flush", "queue"}
"""They ask what is in memory, or in a file that is read by its name."""


@pytest.fixture(autouse=True)
def _descriptors() -> Iterator[None]:
    """None is left open."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_put_async_on_a_closed_store_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    store = stratalog.open(tmp_path, **SETTINGS, flush="sync")
    store.put("t", b"x")
    store.close()
    with pytest.raises(StoreClosed):
        asyncio.run(store.put_async("t", b"y"))
    assert threading.active_count() == before


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.close(),
        lambda store: store.queue("t").put_record(b"inner"),
        lambda store: store.queue("t").put_many([b"inner"]),
        lambda store: store.append(ROWS, topic="t"),
    ],
    ids=["close", "put_record", "put_many", "append"],
)
def test_a_call_in_the_middle_of_a_put_is_refused_and_the_put_goes_on(call: Any, flush: Any, tmp_path: Path) -> None:
    """As a signal handler or a finalizer makes it; the clock is asked while the log is locked."""
    refused: list[StratalogError] = []
    armed: list[bool] = []

    def clock() -> int:
        if armed:
            armed.clear()
            with pytest.raises(StoreUnavailable, match="in the middle of another call") as raised:
                call(store)
            refused.append(raised.value)
        return time.time_ns()

    with stratalog.open(tmp_path, **SETTINGS, flush=flush, clock_ns=clock) as store:
        store.put("t", b"first")
        armed.append(True)
        store.queue("t").put_record(b"outer")
        store.put("t", b"last")
    assert len(refused) == 1
    with stratalog.open(tmp_path, mode="r") as reader:
        assert [message.body for message in reader.queue("t").read()] == [b"first", b"outer", b"last"]


def test_one_of_the_stores_own_threads_cannot_close_it(tmp_path: Path) -> None:
    """As a finalizer or a logging handler in it may try: it would wait for itself."""
    store = stratalog.open(tmp_path, **SETTINGS)
    refused: list[StratalogError] = []

    def close() -> None:
        with pytest.raises(StoreUnavailable, match="own threads cannot close it") as raised:
            store.close()
        refused.append(raised.value)
        store.log.on_step = lambda: None

    dispatching = store._threads[0]
    assert isinstance(dispatching, Periodic)
    dispatching._woken = close
    dispatching.wake()
    while not refused:
        time.sleep(0.001)
    store.put("t", b"x")
    store.close()
    with stratalog.open(tmp_path, mode="r") as reader:
        assert reader.recovery.clean


def test_a_thread_with_the_identifier_of_one_of_the_stores_that_has_ended_can_close_it(tmp_path: Path) -> None:
    """The system gives identifiers again."""
    store = stratalog.open(tmp_path, **SETTINGS)
    dispatching = store._threads[0]
    assert isinstance(dispatching, Periodic)
    dispatching.close()
    dispatching._thread._thread._ident = threading.get_ident()  # type: ignore[attr-defined]
    store.close()
    with stratalog.open(tmp_path, mode="r") as reader:
        assert reader.recovery.clean


@pytest.mark.one_in(2)
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("how", ["finalizer", "suspended generator", "put_async"])
def test_a_process_ends_whose_store_is_closed_as_the_interpreter_ends(how: str, flush: str, tmp_path: Path) -> None:
    """Daemon threads have stopped by then, wherever they were. What was put is there, as after a plain exit."""
    program = f"""
import asyncio, stratalog
class Service:
    def __init__(self): self.store = stratalog.open({str(tmp_path / "s")!r}, small=True, flush={flush!r})
    def __del__(self): self.store.close()
def putting():
    with stratalog.open({str(tmp_path / "s")!r}, small=True, flush={flush!r}) as store:
        while True: yield store.put("t", b"x")
how = {how!r}
if how == "suspended generator":
    kept = putting()
    next(kept)
else:
    kept = Service()
    kept.itself = kept
    asyncio.run(kept.store.put_async("t", b"x")) if how == "put_async" else kept.store.put("t", b"x")
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    with stratalog.open(tmp_path / "s") as store:
        assert [message.body for message in store.queue("t").read()] == [b"x"]


EMPTY = pa.record_batch({"body": pa.array([], pa.binary())})
NO_COLUMNS = (pa.table({}), pa.record_batch({}), pa.record_batch({"tags": pa.array([], pa.string())}))
EMPTY_PUTS: dict[str, Call] = {
    "put_many": lambda store, queues: queues["t"].put_many([]),
    "put_many, one text": lambda store, queues: queues["t"].put_many([], b"a\1b\2"),
    "put_many, texts": lambda store, queues: queues["t"].put_many(iter(()), []),
    "put_many of a batch topic": lambda store, queues: queues[BATCHES].put_many(()),
    "store.put_many": lambda store, queues: store.put_many("t", []),
    "append": lambda store, queues: list(queues["t"].append(EMPTY)),
    "append of a table": lambda store, queues: list(queues["t"].append(pa.Table.from_batches([EMPTY]))),
    "append of a table of no batch": lambda store, queues: list(queues["t"].append(EMPTY.schema.empty_table())),
    "store.append": lambda store, queues: [*store.append(EMPTY, topic="t")],
    "store.append of a table": lambda store, queues: [*store.append(EMPTY.schema.empty_table())],
}
REFUSED_PUTS: dict[str, Call] = {
    "put_batch": lambda store, queues: queues[BATCHES].put_batch([], unique_key="u"),
    **{
        f"{way} {number}": call
        for number, rows in enumerate(NO_COLUMNS)
        for way, call in (
            ("append without bodies", lambda store, queues, rows=rows: queues["t"].append(rows)),
            ("store.append without bodies", lambda store, queues, rows=rows: store.append(rows, topic="t")),
        )
    },
}
EMPTY_BODIES: dict[str, Call] = {
    "store.put": lambda store, queues: store.put("t", b""),
    "put": lambda store, queues: queues["t"].put(b""),
    "put_raw": lambda store, queues: queues["t"].put_raw(b"", b""),
    "put_record": lambda store, queues: queues["t"].put_record(b"", b""),
    "put_async": lambda store, queues: asyncio.run(store.put_async("t", b"")),
    "put_many": lambda store, queues: queues["t"].put_many([b""]),
    "put_batch": lambda store, queues: queues[BATCHES].put_batch([b""], unique_key="u"),
    "append": lambda store, queues: queues["t"].append(pa.record_batch({"body": [b""]})),
}


def test_a_put_of_nothing_puts_nothing_and_is_refused_as_others_are(tmp_path: Path) -> None:
    store, queues = made(tmp_path / "store")
    before = store.log.end_offset, {name: queue.next_offset for name, queue in queues.items()}
    for call in EMPTY_PUTS.values():
        assert call(store, queues) == []
    end = queues["t"].next_offset
    assert queues["t"].append(EMPTY) == range(end, end)
    for call in REFUSED_PUTS.values():
        with pytest.raises(IllegalMessage):
            call(store, queues)
    assert (store.log.end_offset, {name: queue.next_offset for name, queue in queues.items()}) == before
    for call in EMPTY_BODIES.values():
        assert call(store, queues)
    store.close()
    with stratalog.open(tmp_path / "store", mode="r", **SETTINGS) as reader:
        for call in (EMPTY_PUTS | EMPTY_BODIES).values():
            with pytest.raises(StoreReadOnly):
                call(reader, {name: reader.queue(name) for name in queues})
    for call in (EMPTY_PUTS | EMPTY_BODIES).values():
        with pytest.raises(StoreClosed):
            call(store, queues)
    for call in REFUSED_PUTS.values():
        with pytest.raises(IllegalMessage):
            call(store, queues)


def test_the_extension_of_a_unit_of_any_queue_is_not_told_by_a_closed_store(tmp_path: Path) -> None:
    store, queues = made(tmp_path / "store")
    for queue in queues.values():
        queue.extension(0)
    store.close()
    for queue in queues.values():
        with pytest.raises(StoreClosed):
            queue.extension(0)
