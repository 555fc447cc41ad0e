"""Exceptions from signal handlers in the thread of an event loop whose tasks put."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from crash.interrupts import Dropped, Injector
from store.conftest import OpenStore
from store.test_flush import Gate, entered
from stratalog.store import flush
from stratalog.store.message_store import MessageStore
from stratalog.store.record_put import Receipt

FLUSH = (str(flush.__file__),)
HANG_S = 5.0
Tasks = list[asyncio.Task[Receipt]]


class Loop(asyncio.SelectorEventLoop):
    """A signal arrives when it has scheduled a callback for that function."""

    hit: str | None = None

    def call_soon(self, *args: Any, **named: Any) -> asyncio.Handle:
        handle = super().call_soon(*args, **named)
        if self.hit == sys._getframe(1).f_code.co_name:
            self.hit = None
            signal.raise_signal(signal.SIGUSR1)
        return handle


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    loop.set_exception_handler(lambda loop, context: None)  # it would print what was interrupted
    asyncio.set_event_loop(loop)
    yield loop
    asyncio.set_event_loop(None)
    loop.close()


def begin(store: MessageStore, loop: Loop) -> Tasks:
    async def put() -> Receipt:
        receipt = await store.put_async("t", b"body")
        assert store.durable_offset >= receipt.end_offset
        return receipt

    return [loop.create_task(put()) for _ in range(4)]


def outcomes(loop: Loop, tasks: Tasks, what: object = None) -> list[BaseException | None]:
    """What each task ended with, None for a receipt. Whoever waits for ever cannot be cancelled either."""
    _, left = loop.run_until_complete(asyncio.wait(tasks, timeout=HANG_S))
    assert not left, f"{len(left)} of {len(tasks)} tasks wait for ever: {what}"
    ends = [asyncio.CancelledError() if task.cancelled() else task.exception() for task in tasks]
    assert not any(isinstance(end, AssertionError) for end in ends), f"a receipt came too early: {what}"
    return ends


@pytest.mark.parametrize("raises", [SystemExit, Dropped])
def test_wherever_a_wait_is_interrupted_it_ends_and_not_too_early(
    raises: type[BaseException], open_store: OpenStore, loop: Loop
) -> None:
    store = open_store(flush="sync")

    def put(injector: Injector) -> None:
        async def cancel() -> None:
            await asyncio.sleep(0)
            tasks[1].cancel()

        tasks = begin(store, loop)
        with contextlib.suppress(raises), injector:
            loop.run_until_complete(asyncio.gather(cancel(), asyncio.wait(tasks, timeout=HANG_S)))
        for end in outcomes(loop, tasks, injector.point):
            assert isinstance(end, raises | asyncio.CancelledError | None), (end, injector.point)

    for _ in range(2):  # what is done once is done
        counted = Injector(0, traced=FLUSH)
        put(counted)
    assert len(counted.points) > 60
    for number in counted.points:
        put(Injector(number, raises=raises, traced=FLUSH))


@pytest.fixture
def signals() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Dropped

    before = signal.signal(signal.SIGUSR1, ring)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("signals")
def test_a_signal_while_tasks_are_told_leaves_nobody_waiting(open_store: OpenStore, loop: Loop) -> None:
    store = open_store(flush="sync")
    gate = Gate(store)
    tasks = begin(store, loop)
    loop.run_until_complete(entered(gate))
    loop.hit = "flushed"
    gate.open()
    assert outcomes(loop, tasks) == [None] * 4
    assert not loop.hit


@pytest.mark.usefixtures("signals")
def test_a_signal_while_a_task_is_cancelled_gives_it_no_receipt(open_store: OpenStore, loop: Loop) -> None:
    store = open_store(flush="sync")
    gate = Gate(store)
    tasks = begin(store, loop)
    loop.run_until_complete(entered(gate))
    loop.hit = test_a_signal_while_a_task_is_cancelled_gives_it_no_receipt.__name__
    with pytest.raises(Dropped):
        tasks[1].cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    gate.open()
    cancelled = outcomes(loop, tasks).pop(1)
    assert isinstance(cancelled, asyncio.CancelledError)
