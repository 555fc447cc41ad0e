"""Threads that somebody waits for who may hold a lock of a store.

A finalizer that the garbage collector runs in such a thread can wait for none of these locks.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from importlib import import_module
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


def undisturbed(work: Callable[..., Any]) -> Callable[..., Any]:
    """Do it where no signal handler runs: not in the main thread. Modules are imported and kernels compiled under locks
    that Python code acquires; a handler that raises there (Ctrl-C) leaves one held, and every other thread hangs."""

    def run(*args: Any, **named: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return work(*args, **named)
        outcome: list[Any] = []

        def do_it() -> None:
            try:
                outcome[:] = work(*args, **named), None
            except BaseException as error:  # noqa: BLE001 - raised where it was asked for
                outcome[:] = None, error

        thread = threading.Thread(target=do_it, name="stratalog-load", daemon=True)
        helpers.add(thread)
        try:
            thread.start()
            thread.join()
        finally:
            helpers.discard(thread)
        result, error = outcome
        if error:
            raise error
        return result

    return run


def imported(name: str) -> Any:
    """A module that is loaded with its first use, `undisturbed`."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        module = undisturbed(import_module)(name)
    return module


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
