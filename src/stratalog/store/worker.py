"""A thread of a store."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable

from stratalog.helpers import helpers, start
from stratalog.store.forks import watch


class Worker:
    """A daemon thread that does one thing. A signal handler may raise at any point of `start` and of `end`: `end` can
    be called again. (`Thread.join` takes a thread for ended when it was interrupted.)
    """

    def __init__(self, name: str, work: Callable[[], None], *, is_helper: bool = False) -> None:
        """`is_helper` says that somebody waits for the work who holds a lock of the store (`helpers`)."""
        self._is_helper = is_helper
        self._work = work
        self._is_ended = False
        self._working = threading.Lock()
        self._begun = threading.Lock()
        self._begun.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        watch(self, "the store")

    def start(self) -> None:
        """Returns when the work has begun."""
        if self._is_helper:
            helpers.add(self._thread)
        start(self._thread)
        self._begun.acquire()

    def _run(self) -> None:
        with self._working:
            self._begun.release()
            if not self._is_ended:
                self._work()

    def abandon(self) -> Iterable[object]:
        """In a forked child, which does not have the thread: who waits for it goes on."""
        for lock in (self._begun, self._working):
            with contextlib.suppress(RuntimeError):  # it is free
                lock.release()
        return ()

    def is_current(self) -> bool:
        """Whether this is the thread."""
        return threading.current_thread() is self._thread  # identifiers are used again

    def end(self) -> None:
        """Wait until the work is done. If `start` was interrupted before the work began, it never begins."""
        self._is_ended = True
        if sys.is_finalizing():  # daemon threads have stopped where they were
            return
        with self._working:
            pass
        if self._thread.is_alive():
            self._thread.join()
        helpers.discard(self._thread)
