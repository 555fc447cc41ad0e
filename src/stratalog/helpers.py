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
from functools import partial
from importlib import import_module
from operator import methodcaller
from queue import Empty, SimpleQueue
from typing import Any, Generic, Self, TypeVar

from stratalog.errors import StoreClosed

_LOOK_AGAIN_S = 0.2
"""Who waits for another thread looks so often whether a signal handler forked, and this is the child."""

T = TypeVar("T")

with contextlib.suppress(RuntimeError):  # the main thread has returned
    import_module("concurrent.futures.thread")  # it and `logging` register for forks: not while one waits for us

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


class Outcome(Generic[T]):
    """Of work in another thread; awaited in C by one thread, as a lock of Python stays held where a signal handler
    raises."""

    def __init__(self) -> None:
        self._found: tuple[T | None, BaseException | None] | None = None
        self._is_over: SimpleQueue[None] = SimpleQueue()
        self._process = os.getpid()

    def run(self, work: Callable[..., T], args: tuple[Any, ...] = ()) -> None:
        try:
            self._found = work(*args), None
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            self._found = None, error
        self._is_over.put(None)

    def result(self) -> T:
        """Raises `StoreClosed` in a child that a signal handler forked meanwhile, which does not have the thread."""
        while self._found is None:
            with contextlib.suppress(Empty):
                self._is_over.get(timeout=_LOOK_AGAIN_S)
                continue
            if os.getpid() != self._process:
                raise StoreClosed(f"this was begun by process {self._process} before os.fork(): begin it again here")
        result, error = self._found
        try:
            if error:
                raise error
            return result  # type: ignore[return-value]
        finally:
            del error  # its traceback leads here


def start(thread: threading.Thread) -> None:
    """Start a thread of the package where no signal handler runs. `Thread.start` is Python: a handler that raises there
    leaves a thread that half runs, and comes out as a `KeyError`. One that raises here may find it started later."""
    if threading.current_thread() is not threading.main_thread():
        thread.start()
        return
    _free_import_lock()
    outcome: Outcome[None] = Outcome()

    def start_it() -> None:
        with _helping():
            thread.start()

    start_new_thread(outcome.run, (start_it,))
    outcome.result()


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


_Work = tuple[Outcome[Any], Callable[..., Any], tuple[Any, ...]]


class _Threads:
    """What a pool shares with its threads, which do not keep the pool itself."""

    def __init__(self) -> None:
        self.waiting: SimpleQueue[_Work | None] = SimpleQueue()
        self.is_closed = False
        self.running: set[int] = set()
        self.ended: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        self.running.add(ident := threading.get_ident())
        try:
            while not self.is_closed and (taken := self.waiting.get()):
                outcome, work, args = taken
                outcome.run(work, args)
                del taken, outcome, work, args
        finally:
            self.running.discard(ident)
            self.ended.put(None)


class ThreadPool:
    """Up to `count` threads for work that is awaited; where no more can be started, as the main thread has returned,
    the caller's own. `concurrent.futures` starts threads and takes locks in Python at each `submit`."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._started = 0
        self._process = os.getpid()
        self._threads = _Threads()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.shutdown()

    def submit(self, work: Callable[..., T], *args: Any) -> Outcome[T]:
        if self._started < self._count:
            self._start_one()
        outcome: Outcome[T] = Outcome()
        if self._started:
            self._threads.waiting.put((outcome, work, args))
        else:
            outcome.run(work, args)
        return outcome

    def shutdown(self) -> None:
        """Drop what nobody has begun, and wait until the rest is done, also where signal handlers raise meanwhile: what
        it works on is unmapped next."""
        self._close()
        try:
            while self._threads.running and os.getpid() == self._process:
                with contextlib.suppress(Empty):
                    self._threads.ended.get(timeout=_LOOK_AGAIN_S)
        except BaseException:
            self.shutdown()
            raise

    def _close(self) -> None:
        self._threads.is_closed = True  # one whose start was interrupted may begin later, and ends at once
        with contextlib.suppress(Empty):
            while True:
                self._threads.waiting.get_nowait()
        for _ in range(self._count):
            self._threads.waiting.put(None)

    def __del__(self) -> None:
        if "_threads" in vars(self):  # else `__init__` was interrupted
            self._close()  # `shutdown` may have been interrupted as it began

    def _start_one(self) -> None:
        name = f"{self._name}-{self._started}"
        try:
            start(threading.Thread(target=self._threads.run, name=name, daemon=True))
            self._started += 1
        except RuntimeError:
            if threading.main_thread().is_alive():
                raise
