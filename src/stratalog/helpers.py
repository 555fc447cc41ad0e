"""Threads that somebody waits for who may hold a lock of a store, and what is imported or compiled with its first use.

A finalizer that the garbage collector runs in such a thread can wait for none of these locks.
"""

import _imp
import contextlib
import os
import sys
import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from importlib import import_module
from operator import methodcaller
from queue import SimpleQueue
from typing import Any

pools: Any
try:  # it registers for forks: before `load_lock`, that is not while a fork waits
    pools = import_module("concurrent.futures.thread")
except RuntimeError:  # the main thread has returned
    pools = None

helpers: set[threading.Thread | int] = set()
"""Whoever waits for a thread adds it before it starts, and takes it out when it has ended. Or a thread adds its own
identifier for a while."""


def is_helper() -> bool:
    """Whether this thread is one. Identifiers are used again: a thread that has ended counts no more."""
    ident = threading.get_ident()
    for thread in tuple(helpers):
        if isinstance(thread, int):
            if thread == ident:
                return True
        elif thread.is_alive():
            if thread.ident == ident:
                return True
        elif thread.ident is not None:  # it has ended; one that was not started yet has none
            helpers.discard(thread)
    return False


@contextlib.contextmanager
def _helping() -> Iterator[None]:
    ident = threading.get_ident()
    helpers.add(ident)
    try:
        yield
    finally:
        helpers.discard(ident)


def _free_import_lock() -> None:
    """An exception from a signal handler within importlib's own code leaves the interpreter's import lock held by this
    thread, and every other thread that imports waits for ever. It is freed where this thread imports nothing."""
    frame = sys._getframe() if _imp.lock_held() else None
    while frame and frame.f_globals.get("__name__") != "importlib._bootstrap":
        frame = frame.f_back
    with contextlib.suppress(RuntimeError):  # another thread holds it, for a moment
        while not frame and _imp.lock_held():
            _imp.release_lock()


def start(thread: threading.Thread) -> None:
    """Start a thread of the package where no signal handler runs. `Thread.start` is Python: a handler that raises there
    leaves a thread that half runs, and comes out as a `KeyError`. One that raises here may find it started later."""
    if threading.current_thread() is not threading.main_thread():
        thread.start()
        return
    _free_import_lock()
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()

    def start_it() -> None:
        failure: BaseException | None = None
        try:
            with _helping():
                thread.start()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
            failure = error
        outcome.put(failure)

    start_new_thread(start_it, ())
    if failure := outcome.get():
        raise failure


def undisturbed(work: Callable[..., Any]) -> Callable[..., Any]:
    """Do it where no signal handler runs: not in the main thread."""

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
            start(thread)
            thread.join()
        finally:
            helpers.discard(thread)
        result, error = outcome
        if error:
            raise error
        return result

    return run


load_lock = threading.RLock()
"""Held by who imports or compiles; the first of the locks that a fork waits for."""


_compiler_lock: list[Any] = []


def no_fork_within(lock: Any) -> None:
    """A fork waits until no other thread holds this `RLock` (there is one). A thread that loads takes it after
    `load_lock`."""
    _compiler_lock[:] = [lock]


def _hold(locks: list[Any]) -> None:
    """Wait until this thread has them, also where signal handlers raise: a fork drops that, and goes on."""
    try:
        for lock in locks:
            while not lock._is_owned():
                try:
                    lock.acquire()
                except BaseException:  # noqa: BLE001
                    continue
    except BaseException:  # noqa: BLE001
        _hold(locks)


def _after_fork_in_child() -> None:
    helpers.intersection_update({threading.get_ident(), threading.current_thread()})  # the others' numbers come again


os.register_at_fork(after_in_child=_after_fork_in_child)
for _locks in (_compiler_lock, [load_lock]):  # what is registered last is acquired first
    for _ in range(2):  # a handler that raises as the first begins leaves it to the other
        os.register_at_fork(before=partial(_hold, _locks))
    # What must be done once is done in C, where no handler runs: `sorted` calls it for the lock in the list.
    _release = partial(sorted, _locks, key=methodcaller("release"))
    os.register_at_fork(
        before=partial(sorted, _locks, key=methodcaller("acquire", False)),
        after_in_parent=_release, after_in_child=_release,
    )  # fmt: skip


def is_loading() -> bool:
    """Whether this thread imports or compiles, and a fork waits for it."""
    return bool(load_lock._is_owned())  # type: ignore[attr-defined]


def loading(work: Callable[..., Any]) -> Callable[..., Any]:
    """For what imports or compiles: under locks that Python code acquires. Where a signal handler raises (Ctrl-C), or
    in a child forked meanwhile, one would stay held and threads hang. So it is done `undisturbed`, and a fork waits."""

    def load(*args: Any, **named: Any) -> Any:
        with _helping(), load_lock:
            return work(*args, **named)

    away = undisturbed(load)
    return lambda *args, **named: (work if is_loading() else away)(*args, **named)


def imported(name: str) -> Any:
    """A module that is loaded with its first use."""
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        module = loading(import_module)(name)
    return module


def thread_pool(count: int, name: str) -> Executor:
    """Threads for work that is awaited; once the main thread has returned, when there can be none, the caller's own."""
    return _Threads(pools.ThreadPoolExecutor(count, name)) if pools else _Here()


class _Outcome(Future[Any]):
    """Awaited in C: a `Future` takes a lock in Python, which an exception from a signal handler leaves held."""

    def __init__(self) -> None:
        super().__init__()
        self._outcome: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run(self, work: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
        try:
            self._outcome.put((work(*args, **named), None))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._outcome.put((None, error))

    def result(self, timeout: float | None = None) -> Any:
        result, error = outcome = self._outcome.get(timeout=timeout)
        self._outcome.put(outcome)  # somebody else may ask
        if error:
            raise error
        return result


class _Threads(Executor):
    """Starts a thread `undisturbed`: one that runs is known to the pool, which waits for it."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._submit = undisturbed(pool.submit)

    def submit(self, work: Any, /, *args: Any, **named: Any) -> "Future[Any]":
        outcome = _Outcome()
        try:
            self._submit(outcome.run, work, args, named)
        except RuntimeError:
            if not pools._shutdown:
                raise
            return _Here().submit(work, *args, **named)  # the main thread has returned: the pool takes no more
        return outcome

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


class _Here(Executor):
    """Does at once what is submitted."""

    def submit(self, work: Any, /, *args: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **named))
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)
        return future
