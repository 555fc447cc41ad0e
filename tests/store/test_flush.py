"""Flushing: who waits for it and who does not, in threads and in event loops; when a timed one is due."""

import asyncio
import contextvars
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.conftest import OpenStore
from store.model import QUIET, SMALL, Clock
from stratalog.errors import ConfigurationError, CorruptData, StoreClosed, StoreFailed, StratalogError
from stratalog.layout.properties import encode_properties
from stratalog.store.flush import TimedFlush
from stratalog.store.message_store import MessageStore


class Gate:
    """Stands before a store's flush: lets through, or fails, as often as it is told to."""

    def __init__(self, store: MessageStore) -> None:
        self.entered = threading.Semaphore(0)
        self.passes = threading.Semaphore(0)
        self.failure: OSError | None = None
        self._sync = store.log.sync
        store.log.sync = self  # type: ignore[method-assign, assignment]

    def __call__(self) -> int:
        self.entered.release()
        assert self.passes.acquire(timeout=20)
        if self.failure:
            raise StoreFailed("the disk is gone") from self.failure
        return self._sync()

    def open(self) -> None:
        self.passes.release(1000)


# -- event loops -----------------------------------------------------------------------------------------------------


async def entered(gate: Gate) -> None:
    while not gate.entered.acquire(blocking=False):
        await asyncio.sleep(0.001)


def test_a_cancelled_waiter_takes_nobody_with_it(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    gate = Gate(store)

    async def main() -> None:
        tasks = [asyncio.create_task(store.put_async("t", b"%d" % n)) for n in range(10)]
        await entered(gate)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0)
        gate.open()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes[::2]] == [asyncio.CancelledError] * 5
        assert [outcome.queue_offset for outcome in outcomes[1::2]] == [1, 3, 5, 7, 9]  # type: ignore[union-attr]

    asyncio.run(main())
    assert store.queue("t").max_offset == 10, "what was put stays put"


@pytest.mark.parametrize("task_class", [asyncio.Task, asyncio.tasks._PyTask])  # type: ignore[attr-defined]
def test_tasks_wait_as_for_a_future(task_class: type[asyncio.Task[Any]], open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    number = contextvars.ContextVar("number", default=-1)

    async def put(n: int) -> int:
        number.set(n)
        receipts = [await store.put_async("t", b"%d" % n) for _ in range(3)]
        assert number.get() == n
        assert store.durable_offset >= receipts[-1].end_offset
        return n

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(lambda loop, coro, **more: task_class(coro, loop=loop, **more))
        assert await asyncio.gather(*map(put, range(300))) == list(range(300))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(put(n)) for n in range(3)]
            assert await asyncio.wait_for(put(7), 20) == 7
            async with asyncio.timeout(20):
                assert await asyncio.shield(put(8)) == 8
        assert [task.result() for task in tasks] == [0, 1, 2]
        assert number.get() == -1

    asyncio.run(main())


@pytest.mark.parametrize("task_class", [asyncio.Task, asyncio.tasks._PyTask])  # type: ignore[attr-defined]
def test_a_waiter_is_cancelled_at_once_and_once(task_class: type[asyncio.Task[Any]], open_store: OpenStore) -> None:
    store = open_store(flush="sync", checked=False)
    gate = Gate(store)
    gate.failure = OSError(5, "Input/output error")

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(lambda loop, coro, **more: task_class(coro, loop=loop, **more))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.put_async("t", b"late"), 0.001)
        task, too_early = (asyncio.create_task(store.put_async("t", b"x")) for _ in range(2))
        too_early.cancel()
        await asyncio.sleep(0)
        task.cancel("enough")
        task.cancel("more than enough")
        with pytest.raises(asyncio.CancelledError, match=r"^enough$"):
            await task
        assert too_early.cancelled()
        task = asyncio.create_task(store.put_async("t", b"x"))
        await entered(gate)
        gate.open()
        with pytest.raises(StoreFailed):
            await task

    asyncio.run(main())
    gate.failure = None


def test_one_who_is_told_may_cancel_another_of_the_same_flush(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    gate = Gate(store)

    async def main() -> None:
        async def put_and_cancel() -> None:
            await store.put_async("t", b"first")
            second.cancel()

        first, second, third = (
            asyncio.create_task(put) for put in (put_and_cancel(), *(store.put_async("t", b"x") for _ in range(2)))
        )
        await entered(gate)
        gate.open()
        outcomes = await asyncio.wait_for(asyncio.gather(first, second, third, return_exceptions=True), 20)
        assert isinstance(outcomes[1], asyncio.CancelledError)
        assert outcomes[2].queue_offset == 2

    asyncio.run(main())


def test_a_task_that_ends_the_loop_leaves_nobody_waiting(open_store: OpenStore) -> None:
    store = open_store(flush="sync")

    async def put_and_exit() -> None:
        await store.put_async("t", b"first")
        raise SystemExit

    loop = asyncio.new_event_loop()
    ends = loop.create_task(put_and_exit())
    others = [loop.create_task(store.put_async("t", b"x")) for _ in range(10)]
    with pytest.raises(SystemExit):
        loop.run_until_complete(ends)
    receipts = loop.run_until_complete(asyncio.wait_for(asyncio.gather(*others), 20))
    assert [receipt.queue_offset for receipt in receipts] == list(range(1, 11))
    loop.close()


def test_a_flush_that_fails_wakes_everybody_with_the_reason(open_store: OpenStore) -> None:
    store = open_store(flush="sync", checked=False)
    gate = Gate(store)
    gate.failure = OSError(5, "Input/output error")

    async def main() -> list[Any]:
        first = [asyncio.ensure_future(store.put_async("t", b"1")) for _ in range(300)]
        await entered(gate)
        later = [asyncio.ensure_future(store.put_async("t", b"2")) for _ in range(300)]
        await asyncio.sleep(0)
        gate.open()
        return await asyncio.wait_for(asyncio.gather(*first, *later, return_exceptions=True), 20)

    outcomes = asyncio.run(main())
    assert len(outcomes) == 600
    assert all(isinstance(outcome, StoreFailed) for outcome in outcomes)
    gate.failure = None


def test_event_loops_of_several_threads_share_the_flushes(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        async def main() -> None:
            for _ in range(5):
                receipts = await asyncio.gather(*(store.put_async("t", b"x", queue_id=number) for _ in range(200)))
                assert store.durable_offset >= max(receipt.end_offset for receipt in receipts)
                found.setdefault(number, []).extend(receipt.queue_offset for receipt in receipts)

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {n: list(range(1000)) for n in range(4)}


def test_a_loop_that_is_closed_while_a_flush_runs_harms_no_other(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    gate = Gate(store)

    async def give_up() -> None:
        task = asyncio.create_task(store.put_async("t", b"left"))
        await entered(gate)
        task.cancel()

    asyncio.run(give_up())
    gate.open()

    async def again() -> int:
        return (await asyncio.wait_for(store.put_async("t", b"after"), 20)).queue_offset

    assert asyncio.run(again()) == 1
    assert asyncio.run(again()) == 2


def test_waiters_of_a_store_that_closes_are_told(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    gate = Gate(store)

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(store.put_async("t", b"%d" % n)) for n in range(50)]
        await entered(gate)
        tasks += [asyncio.create_task(store.put_async("t", b"%d" % n)) for n in range(50)]
        await asyncio.sleep(0)
        closing = asyncio.get_running_loop().run_in_executor(None, store.close)
        gate.open()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        await closing
        return outcomes

    outcomes = asyncio.run(main())
    with stratalog.open(store.root, mode="r", **SMALL) as reader:
        there = {message.queue_offset for message in reader.queue("t").read()}
    assert {outcome.queue_offset for outcome in outcomes if not isinstance(outcome, StoreClosed)} <= there


# -- who waits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "waits"), [(None, True), ("true", True), ("TRUE", True), ("false", False), ("no", False)]
)
def test_a_message_with_wait_false_does_not_wait_for_the_flush(
    value: str | None, waits: bool, open_store: OpenStore
) -> None:
    properties = {"WAIT": value} if value else {"OTHER": "WAIT"}
    text = encode_properties(properties)
    ways: list[Callable[[MessageStore], Any]] = [
        lambda store: store.put("t", b"x", properties=properties),
        lambda store: store.queue("t").put_raw(b"x", text),
        lambda store: store.queue("t").put_record(b"x", text),
        lambda store: store.put_many("t", [b"x", b"y"], text)[-1],
        lambda store: store.put_many("t", [b"x", b"y"], [text, text])[-1],
        lambda store: asyncio.run(store.put_async("t", b"x", properties=properties)),
    ]
    store = open_store(flush="sync")
    for put in ways:
        receipt = put(store)
        assert (store.durable_offset >= receipt.end_offset) is waits
        store.flush()


def test_wait_false_as_keyword_does_not_wait_either(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    assert store.put("t", b"x", wait=False).end_offset > store.durable_offset
    assert store.put("t", b"x", wait=True).end_offset == store.durable_offset


# -- timed flush -----------------------------------------------------------------------------------------------------


def test_a_timed_flush_is_due_with_enough_pages_or_after_long_enough(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock)
    timed = TimedFlush(store.log, least_pages=4, thorough_interval_ms=10_000, clock_ns=clock)
    store.put("t", b"x" * 4096)
    clock.now_ms += 9_999
    assert not timed.is_due()
    clock.now_ms += 1
    assert timed.is_due()
    assert timed.is_due(), "asking changes nothing"
    timed.restart()
    assert not timed.is_due()
    store.put("t", b"x" * 3 * 4096)
    assert timed.is_due()
    store.flush()
    assert not timed.is_due()
    clock.now_ms -= 60_000
    assert timed.is_due(), "a clock that was set back does not put flushes off"


def test_without_least_pages_every_timed_flush_flushes_whatever_there_is(open_store: OpenStore) -> None:
    store = open_store(flush_interval_commit_log=5)
    receipt = store.put("t", b"x")
    for _ in range(4000):
        if store.durable_offset >= receipt.end_offset:
            break
        threading.Event().wait(0.005)
    assert store.durable_offset == receipt.end_offset


def test_with_least_pages_a_little_is_left_to_the_thorough_flush(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock, flush_commit_log_least_pages=4)
    store._flush_when_due()
    receipt = store.put("t", b"x")
    store._flush_when_due()
    store._keep_when_due()
    assert store.durable_offset < receipt.end_offset
    assert store.queue("t").max_offset == 1
    clock.now_ms += 10_000
    store._flush_when_due()
    assert store.durable_offset == receipt.end_offset


def test_the_keys_of_the_timed_flush_are_rocketmqs(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text(
        "flushIntervalCommitLog=100\nflushCommitLogLeastPages=4\nflushCommitLogThoroughInterval=2000\n"
    )
    settings = stratalog.StoreSettings.from_broker_conf(tmp_path / "broker.conf")
    assert settings.flush_interval_commit_log == 100
    assert (settings.flush_commit_log_least_pages, settings.flush_commit_log_thorough_interval) == (4, 2000)
    with pytest.raises(ConfigurationError, match="flush_commit_log_least_pages"):
        stratalog.StoreSettings.make({"flush_commit_log_least_pages": -1})


def test_the_age_of_what_a_power_cut_would_take_is_told(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock)
    assert store.oldest_unflushed_ms == 0
    store.put("t", b"x" * 40_000)
    clock.now_ms += 300
    store.put("t", b"y")
    clock.now_ms += 40
    assert store.oldest_unflushed_ms == 340
    store.flush()
    assert store.oldest_unflushed_ms == 0
    store.put("t", b"z" * 40_000)  # behind a blank: the first byte that is not durable is the blank's
    assert len(store.log.files) == 2
    clock.now_ms += 7
    assert store.oldest_unflushed_ms == 7
    store.flush()
    assert store.oldest_unflushed_ms == 0


def test_full_log_files_give_their_descriptors_back_once_durable(open_store: OpenStore) -> None:
    store = open_store(**QUIET)
    for _ in range(20):
        store.put("t", b"x" * 20_000)
    store.flush()
    assert len(store.log.files) > 4
    assert [file._file is not None for file in store.log.files] == [False] * (len(store.log.files) - 1) + [True]
    store.put("t", b"after")
    store.flush()


def test_the_error_of_a_refused_put_does_not_grow(open_store: OpenStore) -> None:
    store = open_store(checked=False)
    store.put("t", b"body")
    store.log.fail(StoreFailed("the disk"))
    depths = []
    for _ in range(20):
        with pytest.raises(StoreFailed) as refused:
            store.put("t", b"body")
        depths.append(len(traceback.extract_tb(refused.value.__traceback__)))
    assert len(set(depths[1:])) == 1


def test_several_threads_may_write_checkpoints(open_store: OpenStore) -> None:
    """They share the name of a temporary file, and what is not durable yet."""
    store = open_store(checked=False)
    failures: list[Exception] = []

    def keep() -> None:
        try:
            for _ in range(60):
                store.put("t", b"body")
                store.dispatch()
                store._keep()
        except StratalogError as error:
            failures.append(error)

    threads = [threading.Thread(target=keep) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_message_by_log_offset_is_seen_once_it_is_durable(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    receipt = store.put("t", b"x", wait=False)
    with pytest.raises(CorruptData, match=r"outside \[0, 0\)"):
        store.message(receipt.commit_log_offset)
    store.flush()
    assert store.message(receipt.commit_log_offset).body == b"x"
