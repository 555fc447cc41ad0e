"""Group commit: many appends, one flush.

Blocking callers elect a leader that syncs for all of them, without a thread hop. Tasks share one flush thread and one
wake-up of the event loop per flush. A failed flush poisons the log and wakes everybody with the reason.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from stratalog.errors import ConfigurationError, StoreFailed
from stratalog.layout.properties import WAIT, find_property
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import ClockNs
from stratalog.store.locks import free
from stratalog.store.worker import Worker

_AGAIN_S = 0.05
_PAGE_SIZE = 4096
_WAIT = WAIT.encode()


class GroupCommit:
    """Waits until the log is durable up to an offset. Any thread may call `wait`.

    The leader holds the lock `_newest` during its flush, and followers wait on that lock. It is a new one for each
    flush: the next leader does not wait until all followers have passed it. Every lock is held by a `with` only, so
    that none stays held whatever a signal handler raises.
    """

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self._newest = threading.Lock()

    def wait(self, offset: int) -> None:
        """Return when every byte below `offset` is durable. Raises `StoreFailed` when the flush failed."""
        log = self.log
        while log.durable_offset < offset:
            lead = free(*log.locks.flush, done=". What was put is in the log, and not durable yet")
            newest = self._newest
            if newest.locked():
                with newest:  # until the flush under way is over
                    continue
            with lead:
                if log.durable_offset < offset:
                    newest = threading.Lock()
                    with newest:
                        self._newest = newest
                        log.sync()


class LoopCommit:
    """Durability for event loops: all who wait share flushes, which one thread does.

    A loop is woken once per flush, not once per message, and finds out for itself who is done: those who wait stand in
    the order of the log. Loops of several threads may wait; a cancelled waiter concerns nobody else. A signal handler's
    exception may drop what wakes a loop: the thread wakes it again until it says that it told everybody.
    """

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit
        self._here = threading.local()
        self._asked: SimpleQueue[_Waiters | None] = SimpleQueue()
        self._locks = commit.log.locks.futures
        self._is_stopped = False
        self._thread = Worker("stratalog-flush", self._run)

    def start(self) -> None:
        self._thread.start()

    def here(self) -> "_Waiters":
        """Who waits in the running loop. Raises `ConfigurationError` where none is running."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(
                "put_async waits in an event loop of asyncio, and none is running here: use put, or run it with "
                "asyncio.run"
            ) from None
        waiters: _Waiters | None = getattr(self._here, "waiters", None)
        if waiters is None or waiters.loop is not loop:
            waiters = self._here.waiters = _Waiters(loop, self._commit.log, self.ask)
        return waiters

    def ask(self, waiters: "_Waiters") -> None:
        """Let the flush that comes next wake these."""
        number = waiters.answered + 1
        with free(*self._locks):  # nobody asks a thread that has gone
            if not self._is_stopped:
                self._asked.put(waiters)
                waiters.asked = number  # last: if a signal handler raises before, the next waiter asks again
                return
        self._flush_for({waiters})
        waiters.wake()  # twice, since no thread does it again

    def _run(self) -> None:
        untold: set[_Waiters] = set()
        is_stopped = False
        while not is_stopped:
            asked: set[_Waiters | None] = set()
            with contextlib.suppress(Empty):
                asked.add(self._asked.get(timeout=_AGAIN_S if untold else None))
                asked.update(self._asked.get() for _ in range(self._asked.qsize()))  # this thread alone takes
            is_stopped = None in asked
            flushed = {one for one in asked if one}
            self._flush_for(flushed)
            untold = {one for one in untold | flushed if one.told < one.answered and not one.loop.is_closed()}
            for waiters in untold:
                if is_stopped or waiters.is_late():
                    waiters.wake()

    def _flush_for(self, asked: "set[_Waiters]") -> None:
        failure: Exception | None = None
        try:
            if asked:
                self._commit.wait(self._commit.log.end_offset)
        except Exception as error:  # noqa: BLE001 - top of the thread: every waiter gets the reason
            failure = error
        for waiters in asked:
            waiters.failure = failure
            waiters.answered += 1
            waiters.wake()

    def is_current(self) -> bool:
        """Whether this is the thread."""
        return self._thread.is_current()

    def close(self) -> None:
        """Flush once more for all who wait, then stop. Nothing may be put any more."""
        with free(*self._locks):
            self._is_stopped = True
            self._asked.put(None)
        self._thread.end()


class _Waiters:
    """Who waits in one event loop, in the order of the log.

    `asked` is the number of the newest flush that was asked for, `answered` that of the newest one that is over, `told`
    that of the newest one of which everybody knows. The flush thread writes `answered` and `failure`, the loop's thread
    everything else. An answer may come before `asked` says that there was a question.
    """

    __slots__ = ("_again", "_ask", "_log", "answered", "asked", "failure", "loop", "pending", "told")

    def __init__(self, loop: asyncio.AbstractEventLoop, log: CommitLog, ask: Callable[["_Waiters"], None]) -> None:
        self.loop = loop
        self._log = log
        self._ask = ask
        self._again = 0.0
        self.pending: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.failure: Exception | None = None
        self.asked = self.answered = self.told = 0

    def durable(self, offset: int) -> "asyncio.Future[None]":
        """A future of the loop, done when every byte below `offset` is durable."""
        future = self.loop.create_future()
        self.pending.append((offset, future))
        if self.asked <= self.answered:
            self._ask(self)
        return future

    def wake(self) -> None:
        """Let the loop run `flushed`. Any thread may call it."""
        self._again = time.monotonic() + _AGAIN_S
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits
            self.loop.call_soon_threadsafe(self.flushed)

    def is_late(self) -> bool:
        """Whether the loop runs and should have told everybody by now."""
        return self.loop.is_running() and time.monotonic() >= self._again

    def flushed(self) -> None:
        """After a flush: let another begin for those who came meanwhile, and tell whom this one covered, or everybody
        when it failed. It may be dropped anywhere and run again: an entry goes after its future is done."""
        number, failure, durable, pending = self.answered, self.failure, self._log.durable_offset, self.pending
        if pending and pending[-1][0] > durable and not failure and self.asked <= self.answered:
            self._ask(self)
        while pending:
            offset, future = pending[0]
            if offset <= durable:
                if not future.done():
                    future.set_result(None)
            elif not failure:
                break
            elif not future.done():
                future.set_exception(failure)
                future.exception()  # or asyncio logs it when its task was interrupted
            del pending[0]
        self.told = number


class TimedFlush:
    """When an async flush is due (FlushRealTimeService): with enough dirty pages, or after long enough. Each thread
    that flushes has its own."""

    def __init__(self, log: CommitLog, *, least_pages: int, thorough_interval_ms: int, clock_ns: ClockNs) -> None:
        self._log = log
        self._least_pages = least_pages
        self._thorough_interval_ns = thorough_interval_ms * 1_000_000
        self._clock_ns = clock_ns
        self._flushed_ns = clock_ns()

    def is_due(self) -> bool:
        """Whether to flush now. A clock that was set back, or tells no time, does not put a flush off."""
        try:
            if not 0 <= self._clock_ns() - self._flushed_ns < self._thorough_interval_ns:
                return True
        except ConfigurationError:
            return True
        return self._log.end_offset // _PAGE_SIZE - self._log.durable_offset // _PAGE_SIZE >= self._least_pages

    def restart(self) -> None:
        """The interval begins again, with a flush."""
        with contextlib.suppress(ConfigurationError):
            self._flushed_ns = self._clock_ns()


def is_wait(value: str | None) -> bool:
    """Whether a message with this property `WAIT` is waited for: any but `true` says no (Message.isWaitStoreMsgOK)."""
    return value is None or value.lower() == "true"


def asks_to_wait(properties: bytes) -> bool:
    """The same of encoded properties."""
    return is_wait(find_property(properties, _WAIT)) if _WAIT in properties else True


class Periodic:
    """Runs a function every `interval_ms` on a daemon thread until closed or until it raises `StoreFailed`; between
    two of these, another one whenever the thread is woken.

    Other errors (a full disk) are tried again at the next turn; `failure` holds the newest.
    """

    def __init__(
        self, name: str, interval_ms: int, work: Callable[[], None], woken: Callable[[], None] = lambda: None
    ) -> None:  # fmt: skip
        self._work = work
        self._woken = woken
        self._interval = interval_ms / 1000
        self._wakes: SimpleQueue[None] = SimpleQueue()  # not an Event, whose lock a signal handler can leave held
        self._is_closed = False
        self.failure: Exception | None = None
        self.turns = 0
        """How many are over."""
        self._thread = Worker(name, self._run)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Any thread may call it; costs a microsecond."""
        self._wakes.put(None)

    def _run(self) -> None:
        due = time.monotonic() + self._interval
        while True:
            with contextlib.suppress(Empty):
                self._wakes.get(timeout=max(0.0, due - time.monotonic()))
                while True:
                    self._wakes.get_nowait()
            if self._is_closed:
                return
            try:
                if time.monotonic() < due:
                    self._woken()
                else:
                    due = time.monotonic() + self._interval
                    self._work()
                    self.failure = None
            except StoreFailed:
                return
            except Exception as error:  # noqa: BLE001 - top of the thread
                self.failure = error
            self.turns += 1

    def is_current(self) -> bool:
        """Whether this is the thread."""
        return self._thread.is_current()

    def close(self) -> None:
        self._is_closed = True
        self._wakes.put(None)
        self._thread.end()
