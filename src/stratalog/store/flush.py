"""Group commit: many appends, one flush.

Blocking callers elect a leader that syncs for all of them, without a thread hop. Futures share one flush thread and one
wake-up of the event loop per flush. A failed flush poisons the log and wakes everybody with the reason.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from stratalog.errors import StoreFailed
from stratalog.store.commit_log import CommitLog


class GroupCommit:
    """Waits until the log is durable up to an offset. Any thread may call `wait`."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._leading = False
        self._followers: list[threading.Lock] = []

    def wait(self, offset: int) -> None:
        """Return when every byte below `offset` is durable. Raises `StoreFailed` when the flush failed."""
        log = self._log
        while log.durable_offset < offset:
            with self._lock:
                if log.durable_offset >= offset:
                    return
                if log.failure:
                    raise log.failure
                latch = None
                if self._leading:
                    latch = threading.Lock()
                    latch.acquire()
                    self._followers.append(latch)
                else:
                    self._leading = True
            if latch:
                latch.acquire()
            else:
                self._lead()

    def _lead(self) -> None:
        try:
            self._log.sync()
        finally:  # also on KeyboardInterrupt: somebody else takes the lead, nobody hangs
            with self._lock:
                followers, self._followers = self._followers, []
                self._leading = False
            for latch in followers:
                latch.release()


class FutureCommit:
    """Durability as asyncio futures: one flush thread, one `call_soon_threadsafe` per flush and loop.

    `durable(offset)` must be called in the loop's thread.
    """

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit
        self._pending: deque[tuple[asyncio.Future[None], int]] = deque()
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="stratalog-flush", daemon=True)
        self._thread.start()

    def durable(self, offset: int) -> "asyncio.Future[None]":
        """A future that is done when every byte below `offset` is durable."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((future, offset))
        if not self._wake.is_set():
            self._wake.set()
        return future

    def _run(self) -> None:
        while not self._stopped or self._pending:  # nobody who waits is left behind
            self._wake.wait()
            self._wake.clear()
            pending = self._pending
            batch = [pending.popleft() for _ in range(len(pending))]  # what comes meanwhile is of the next flush
            if not batch:
                continue
            failure: BaseException | None = None
            try:
                self._commit.wait(max(offset for _, offset in batch))
            except Exception as error:  # noqa: BLE001 - top of the thread: every waiter gets the reason
                failure = error
            _resolve(batch, failure)

    def close(self) -> None:
        self._stopped = True
        self._wake.set()
        self._thread.join()


def _resolve(batch: list[tuple["asyncio.Future[None]", int]], failure: BaseException | None) -> None:
    loops: dict[Any, list[asyncio.Future[None]]] = {}
    for future, _ in batch:
        loops.setdefault(future.get_loop(), []).append(future)
    for loop, futures in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(_set_all, futures, failure)


def _set_all(futures: list["asyncio.Future[None]"], failure: BaseException | None) -> None:
    for future in futures:
        if future.done():
            continue
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)


class Periodic:
    """Runs a function every `interval_ms` on a daemon thread until closed or until it raises `StoreFailed`.

    Other errors (a full disk) are tried again at the next turn; `failure` holds the newest.
    """

    def __init__(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        self._work = work
        self._interval = interval_ms / 1000
        self._stop = threading.Event()
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._work()
                self.failure = None
            except StoreFailed:
                return
            except Exception as error:  # noqa: BLE001 - top of the thread
                self.failure = error

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
