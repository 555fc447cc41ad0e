"""Errors and ends of the process at every system call: nothing acknowledged is lost, nothing is tried twice."""

import asyncio
import contextlib
import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.faults import SYNCS, Stopped, Syscalls, install, numbers
from crash.test_power_cut import TINY, body_of
from store.model import Clock, bodies, check
from stratalog.errors import StoreFailed, StratalogError
from stratalog.layout.names import SNAPSHOT
from stratalog.store import disk

COUNT = 70
DAMAGED = (COUNT // 2 + 8, COUNT - 9)


def run(root: Path, acknowledged: list[int], *, flush: str = "sync") -> None:
    """Put, read and close; `acknowledged` learns the numbers whose put returned."""
    with stratalog.open(root, flush=flush, clock_ns=Clock(), **TINY) as store:
        for number in range(COUNT):
            store.put("t", body_of(number), queue_id=number % 2, keys=[f"k{number}"], tags="a")
            acknowledged.append(number)
            if number % 10 == 9:
                assert store.queue("t", 0).max_offset
            if number % 30 == 29:
                store._flush_all()


def check_reopened(root: Path, acknowledged: list[int], begun: int = COUNT) -> None:
    """The store opens and holds every acknowledged message, and nothing but what was put, in order."""
    for _ in range(2):
        with stratalog.open(root, clock_ns=Clock(), **TINY) as store:
            check(store)
            found = bodies(store)
            for queue_id in (0, 1):
                read = found.get(("t", queue_id), [])
                needed = [body_of(number) for number in acknowledged if number % 2 == queue_id]
                assert read[: len(needed)] == needed
                assert read == [body_of(number) for number in range(queue_id, begun, 2)][: len(read)]


def trace(root: Path, monkeypatch: pytest.MonkeyPatch, **given: Any) -> list[tuple[str, str]]:
    """The system calls of a run in which nothing fails."""
    calls = install(monkeypatch, root)
    run(root, [], **given)
    monkeypatch.undo()
    return calls.calls


# -- errors ----------------------------------------------------------------------------------------------------------


def test_a_flush_that_fails_at_any_call_is_never_acknowledged_and_never_tried_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls_made = trace(folder / "trace", monkeypatch)
    syncs = numbers(calls_made, SYNCS)
    cache = [number for number, (_, path) in enumerate(calls_made) if SNAPSHOT in path]  # losing it is no error
    syncs = [number for number in syncs if not cache or number < cache[0]]
    assert len(syncs) > COUNT
    for number in [*syncs[:12], *syncs[12::5]]:
        root, acknowledged = folder / f"store{number}", list[int]()
        calls = install(monkeypatch, root)
        calls.fail_at = lambda at, name, path, number=number: at == number  # type: ignore[misc]
        with pytest.raises(StratalogError) as refused:
            run(root, acknowledged)
        path = calls.calls[number][1].removesuffix(".tmp")
        after = [call for call in calls.calls[number + 1 :] if call[0] in SYNCS and call[1] == path and "/" in path]
        assert not [call for call in after if Path(call[1]).is_file()], "a failed flush was tried again"
        assert "Input/output error" in str(refused.value)
        assert str(root) in str(refused.value)
        monkeypatch.undo()
        check_reopened(root, acknowledged)


def test_after_a_failed_flush_the_store_is_read_only_says_why_and_still_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch, folder / "store")
    store = stratalog.open(folder / "store", flush="sync", **TINY)
    store.put("t", b"durable", keys="k")
    calls.fail_at = lambda number, name, path: name == "fdatasync"
    with pytest.raises(StoreFailed, match=r"flush of .*commitlog.*Input/output error.*open it again"):
        store.put("t", b"lost")
    calls.fail_at = lambda number, name, path: False
    for use in (
        lambda: store.put("t", b"later"),
        lambda: store.put_many("t", [b"later"]),
        lambda: asyncio.run(store.put_async("t", b"later")),
        lambda: store.flush(),
    ):
        with pytest.raises(StoreFailed, match="Input/output error"):
            use()
    assert [message.body for message in store.queue("t").read()] == [b"durable"]
    assert [message.body for message in store.query("t", key="k")] == [b"durable"]
    syncs = len(numbers(calls.calls, SYNCS))
    store.close()
    assert len(numbers(calls.calls, SYNCS)) == syncs, "closing flushed after a failed flush"
    assert (folder / "store" / "abort").exists(), "the stop was marked as clean"
    monkeypatch.undo()
    with stratalog.open(folder / "store", **TINY) as again:
        check(again)
        assert bodies(again)["t", 0][0] == b"durable"


def test_a_failed_flush_wakes_everybody_who_waits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, folder / "store")
    store = stratalog.open(folder / "store", flush="sync", **TINY)
    store.put("t", b"first")
    calls.fail_at = lambda number, name, path: name == "fdatasync"
    outcomes: list[str] = []

    def put() -> None:
        try:
            store.put("t", b"x")
            outcomes.append("acknowledged")
        except StoreFailed:
            outcomes.append("refused")

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert outcomes == ["refused"] * 8

    async def put_all() -> list[Any]:
        waiting = (store.put_async("t", b"y") for _ in range(5))
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)

    assert all(isinstance(outcome, StoreFailed) for outcome in asyncio.run(put_all()))
    store.close()


def test_async_puts_in_flight_learn_of_the_failed_flush(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, folder / "store")
    store = stratalog.open(folder / "store", flush="sync", **TINY)
    store.put("t", b"first")
    calls.fail_at = lambda number, name, path: name == "fdatasync"

    async def put_all() -> list[Any]:
        waiting = (store.put_async("t", b"y") for _ in range(50))
        return await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)

    outcomes = asyncio.run(put_all())
    assert len(outcomes) == 50
    assert all(isinstance(outcome, StoreFailed) for outcome in outcomes)
    assert calls.failures == 1
    store.close()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["pwrite", "rename", "posix_fallocate", "ftruncate", "open"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_any_call_may_fail_once_and_no_acknowledged_message_is_lost(
    name: str, error: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = numbers(trace(folder / "trace", monkeypatch), frozenset({name}))
    assert points
    for number in points[:: max(1, len(points) // 12)]:
        root, acknowledged = folder / f"store{number}", list[int]()
        calls = install(monkeypatch, root)
        calls.error = error
        calls.fail_at = lambda at, name, path, number=number: at == number  # type: ignore[misc]
        refused = ""
        try:
            run(root, acknowledged)
        except StratalogError as reason:
            refused = str(reason)
        assert not refused or str(root) in refused
        assert calls.failures == 1
        monkeypatch.undo()
        check_reopened(root, acknowledged)


# -- the process ends ------------------------------------------------------------------------------------------------


def stopped_run(root: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int, act: Any) -> Syscalls:
    """Run until system call `stop_at`; from then on the process does nothing more."""
    calls = install(monkeypatch, root)
    calls.stop_at = stop_at
    with contextlib.suppress(Stopped):
        act()
    monkeypatch.undo()
    return calls


def test_a_process_that_ends_at_any_call_loses_nothing_acknowledged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(trace(folder / "trace", monkeypatch))
    for stop_at in sorted({*range(40), *range(40, count, 7), *range(count - 12, count)}):
        root, acknowledged = folder / f"store{stop_at}", list[int]()
        stopped_run(root, monkeypatch, stop_at, lambda root=root, acknowledged=acknowledged: run(root, acknowledged))
        check_reopened(root, acknowledged)


def test_recovery_that_is_interrupted_at_any_call_ends_the_same_when_run_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crashed store with a torn tail, damage in the middle and stale queues, stopped twice while it is opened."""
    crashed = folder / "crashed"
    make_crashed(crashed, monkeypatch)
    copy(crashed, folder / "whole")
    expected = opened(folder / "whole")
    calls = install(monkeypatch, folder / "count")
    copy(crashed, folder / "count")
    assert opened(folder / "count") == expected
    monkeypatch.undo()
    assert len(calls.calls) > 25
    for stop_at in range(len(calls.calls)):
        root = folder / f"stopped{stop_at}"
        copy(crashed, root)
        stopped_run(root, monkeypatch, stop_at, lambda root=root: opened(root))
        stopped_run(root, monkeypatch, max(0, stop_at // 2), lambda root=root: opened(root))
        assert opened(root) == expected, f"stopped at call {stop_at}: {calls.calls[stop_at]}"


def copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file() and path.name != "lock":
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())


def opened(root: Path) -> tuple[Any, ...]:
    with stratalog.open(root, clock_ns=Clock(), **TINY) as store:
        check(store)
        asked = [f"k{number}" for number in range(COUNT) if number not in DAMAGED]
        keys = [message.body for key in asked for message in store.query("t", key=key)]
        return bodies(store), keys, store.log.end_offset


def make_crashed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, root)
    store = stratalog.open(root, clock_ns=Clock(), **TINY)
    receipts = []
    for number in range(COUNT):
        receipts.append(store.put("t", body_of(number), queue_id=number % 2, keys=[f"k{number}"], tags="a"))
        if number == COUNT // 2:
            store._flush_all()
    store.dispatch()
    calls.stopped = True
    with pytest.raises(Stopped):
        store.close()
    monkeypatch.undo()
    chance = random.Random(1)
    for receipt in (*(receipts[number] for number in DAMAGED), receipts[-1]):
        file_number, position = divmod(receipt.commit_log_offset, TINY["mapped_file_size_commit_log"])
        path = sorted((root / "commitlog").iterdir())[file_number]
        data = bytearray(path.read_bytes())
        data[position + 95] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def test_the_real_disk_is_back_after_each_test() -> None:
    assert disk.os is disk._Process.os is os
