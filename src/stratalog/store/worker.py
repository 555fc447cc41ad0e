"""A thread of a store."""

import threading
from collections.abc import Callable


class Worker:
    """A daemon thread that does one thing. A signal handler may raise at any point of `start` and of `end`: `end` can
    be called again. (`Thread.join` takes a thread for ended when it was interrupted.)
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._work = work
        self._is_ended = False
        self._working = threading.Lock()
        self._begun = threading.Lock()
        self._begun.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Returns when the work has begun."""
        self._thread.start()
        self._begun.acquire()

    def _run(self) -> None:
        with self._working:
            self._begun.release()
            if not self._is_ended:
                self._work()

    def end(self) -> None:
        """Wait until the work is done. If `start` was interrupted before the work began, it never begins."""
        self._is_ended = True
        with self._working:
            pass
        if self._thread.is_alive():
            self._thread.join()
