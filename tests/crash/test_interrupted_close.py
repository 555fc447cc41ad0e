"""A signal handler's exception in `close` while other threads put: nothing is unmapped or unlocked under an append."""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from crash.interrupts import Injector, Interrupted, unraisable_dropped
from store.model import scratch_folder
from stratalog.errors import StoreClosed, StoreLocked
from stratalog.store.message_store import MessageStore
from stratalog.tools.verify import verify
from torture.interrupt import SETTINGS, Scene, closing

PARTS = 120


@pytest.mark.one_in(108)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_wherever_close_is_interrupted_others_are_refused_or_go_on_and_a_second_close_works(
    flush: str, part: int
) -> None:
    with scratch_folder() as folder, unraisable_dropped():
        scene = Scene(folder, flush=flush, beside=3)
        for _ in range(2):
            counted = Injector(0)
            closing(scene, lambda counted=counted: counted, False)
        assert len(counted.points) > 10 * PARTS
        for number in counted.points[part::PARTS]:
            injector = Injector(number)
            try:
                closing(scene, lambda injector=injector: injector, False)
            except BaseException as error:
                error.add_note(f"{injector.point}")
                raise


APPENDS: dict[str, Callable[[MessageStore], Any]] = {
    "put": lambda store: store.put("t", memoryview(b"x" * 100)),  # type: ignore[arg-type]
    "put_record": lambda store: store.queue("t").put_record(b"x" * 100, flag=7),
    "put_many": lambda store: store.queue("t").put_many([b"x" * 100] * 3, flags=[1, 2, 3]),
    "put_many one by one": lambda store: store.queue("t").put_many([b"x" * 9000] * 3),
    "put_batch": lambda store: store.queue("b").put_batch([b"x" * 100], unique_key="u"),
    "append": lambda store: store.append(pa.record_batch({"body": [b"x" * 100] * 3}), topic="t"),
}


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", APPENDS)
def test_a_close_that_is_interrupted_while_it_waits_for_an_append_unmaps_nothing_under_it(
    name: str, times: int, tmp_path: Path
) -> None:
    """Interrupted once it waits again, and releases everything. Interrupted twice it leaves that to the next call."""
    within, goes_on, armed = threading.Event(), threading.Event(), list[int]()

    def clock() -> int:
        if armed and store.log.busy.locked():
            armed.clear()
            within.set()
            assert goes_on.wait(20)
        return time.time_ns()

    store = stratalog.open(tmp_path, **SETTINGS, clock_ns=clock)
    store.create_topic("b", queue_type="BatchCQ")
    for append in APPENDS.values():
        append(store)
    before, outcomes = store.log.end_offset, list[Any]()

    def put() -> None:
        try:
            outcomes.append(APPENDS[name](store))
        except BaseException as error:  # noqa: BLE001 - judged by the main thread
            outcomes.append(error)

    armed.append(1)
    putting = threading.Thread(target=put)
    putting.start()
    assert within.wait(20)
    raised = 0

    def ring(*given: object) -> None:
        nonlocal raised
        raised += 1
        if raised == times:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if times == 1:
                threading.Timer(0.05, goes_on.set).start()
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            store.close()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    if times == 2:
        assert not store.log.map.closed
        with pytest.raises(StoreLocked):
            stratalog.open(tmp_path, **SETTINGS)
    goes_on.set()
    putting.join(20)
    assert not putting.is_alive()
    assert not isinstance(outcomes[0], BaseException), outcomes
    end = store.log.end_offset
    assert end > before
    store.close()
    with pytest.raises(StoreClosed):
        APPENDS[name](store)
    assert verify(tmp_path).ok
    with stratalog.open(tmp_path, **SETTINGS) as again:
        assert again.log.end_offset == end


@pytest.mark.one_in(36)
@pytest.mark.parametrize("part", range(12))
def test_wherever_the_end_of_a_with_block_is_interrupted_the_store_is_closed(part: int, tmp_path: Path) -> None:
    """Nobody calls `close` then. But for the call of `__exit__` itself: no line of it has run."""
    given: dict[str, Any] = {**SETTINGS, "flush": "sync"}
    before = set(threading.enumerate())

    def used(injector: Injector) -> None:
        with stratalog.open(tmp_path, **given) as store:
            store.put("t", b"x", keys="k")
            injector.__enter__()

    def ended(injector: Injector) -> None:
        try:
            used(injector)
        except Interrupted:
            pass
        finally:
            injector._disarm()
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
            assert not thread.is_alive(), thread
        stratalog.open(tmp_path, **given).close()

    with unraisable_dropped():
        for _ in range(2):
            ended(counted := Injector(0, returns=False))
        assert len(counted.points) > 100
        for number in counted.points[1 + part :: 12]:
            try:
                ended(injector := Injector(number, returns=False))
            except BaseException as error:
                error.add_note(f"{injector.point}")
                raise


def test_wherever_the_begin_of_a_with_block_is_interrupted_the_store_is_closed(tmp_path: Path) -> None:
    """But for the call and the return of `__enter__` itself."""
    before = set(threading.enumerate())

    def begun(injector: Injector) -> None:
        store = stratalog.open(tmp_path, **SETTINGS)
        try:
            with injector:
                store.__enter__()
            store.close()
        except Interrupted:
            pass
        del store
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
            assert not thread.is_alive(), (thread, injector.point)
        stratalog.open(tmp_path, **SETTINGS).close()

    begun(counted := Injector(0, returns=False))
    assert len(counted.points) > 3
    for number in counted.points[1:]:
        begun(Injector(number, returns=False))
