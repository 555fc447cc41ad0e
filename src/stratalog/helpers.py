"""Threads that somebody waits for who may hold a lock of a store.

A finalizer that the garbage collector runs in such a thread can wait for none of these locks.
"""

import threading
from concurrent.futures import Executor, Future
from typing import Any

helpers: set[threading.Thread] = set()
"""Whoever waits for a thread adds it before it starts, and takes it out when it has ended."""


def is_helper() -> bool:
    """Whether this thread is one. Identifiers are used again: a thread that has ended counts no more."""
    ident = threading.get_ident()
    for thread in tuple(helpers):
        if thread.is_alive():
            if thread.ident == ident:
                return True
        elif thread.ident is not None:  # it has ended; one that was not started yet has none
            helpers.discard(thread)
    return False


def thread_pool(count: int, name: str) -> Executor:
    """Threads for work that is awaited; once the main thread has returned, when there can be none, the caller's own."""
    if not threading.main_thread().is_alive():
        return _Here()
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(count, name)


class _Here(Executor):
    """Does at once what is submitted."""

    def submit(self, work: Any, /, *args: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **named))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)
        return future
