"""Exceptions from signal handlers: at the n-th point of a call, or at a random moment.

CPython runs a signal handler between two bytecodes of the main thread: when a function begins, when a call returns, at
a jump backwards, and inside C functions that wait. `Injector` raises at the n-th of a larger set: each line, each call
and return of the store's own functions and of those of the standard library that it counts on (`TRACED`), and before
and after each C function that they call. Left out is what CPython rules out: between the body of a `with` and the
`__exit__` in C that ends it, where no lock would be safe in any program; the line `try:`, which does nothing and
which no handler of an enclosing `with` covers; and the begin and the end of an `except`: what is raised there leaves
the exception that it handles in the thread's `sys.exc_info()` for good, as the `__context__` of all that follow.
"""

import contextlib
import dis
import gc
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

import stratalog
from stratalog import helpers

TRACED = (
    str(Path(stratalog.__file__).parent / "store"),
    str(Path(stratalog.__file__).parent / "tools"),
    str(Path(stratalog.__file__).parent / "kernels"),
    *(module.__file__ or "" for module in (threading, contextlib, helpers)),
)
VISITS_MAX = 2
"""A loop's later turns are like its second."""
_ENDS = frozenset({"__exit__", "release", "release_lock"})


class Interrupted(KeyboardInterrupt):
    """What the signal handler raises: asyncio's event loop ends with it."""


class Dropped(Exception):
    """The same, which the event loop logs and drops when it is raised in a callback."""


class Late(TimeoutError):
    """The same of a handler that ends what takes too long: an `OSError`, though the system did not raise it."""


class Injector:
    """Within it, the n-th point raises `Interrupted`, or what is given; `point` says which that was, None when there
    were fewer. With `calls` it calls that instead.

    With `at=0` nothing is raised, and `points` are those at which a place of the code was reached for one of its first
    times. The return of the outermost function is no point with `returns=False`: what it returns would be lost.
    """

    def __init__(
        self, at: int, *, returns: bool = True, raises: type[BaseException] = Interrupted,
        traced: tuple[str, ...] = TRACED, calls: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._at = at
        self._calls = calls
        self._raises = raises
        self._traced = traced
        self._returns = returns
        self._visits: Counter[tuple[CodeType, int, str]] = Counter()
        self.count = 0
        self.point: str | None = None
        self.points: list[int] = []

    def __enter__(self) -> Self:
        assert sys.exc_info()[1] is None, "an exception is still being handled: an earlier case left it behind"
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disarm()

    @staticmethod
    def _disarm() -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "call" and not self._is_traced(frame):
            return None
        if event == "exception" or (event == "line" and frame.f_lasti in _ruled_out(frame.f_code)):
            return self._trace
        if event == "return" and not self._returns and not self._is_traced(frame.f_back):
            return self._trace
        self._reach(frame, event)
        return self._trace

    def _profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event.startswith("c_") and event != "c_exception" and self._is_traced(frame):
            name = getattr(arg, "__name__", "?")
            if event == "c_return" or name not in _ENDS:
                self._reach(frame, f"{event} {name}")

    def _reach(self, frame: FrameType, event: str) -> None:
        self.count += 1
        if not self._at:
            place = frame.f_code, frame.f_lineno, event
            self._visits[place] += 1
            if self._visits[place] <= VISITS_MAX:
                self.points.append(self.count)
        if self.count == self._at and self.point is None:
            code = frame.f_code
            self.point = f"{event} in {Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}"
            self._disarm()
            if self._calls is None:
                raise self._raises(self.point)
            self._calls()

    def _is_traced(self, frame: FrameType | None) -> bool:
        return frame is not None and frame.f_code.co_filename.startswith(self._traced)


@cache
def _ruled_out(code: CodeType) -> frozenset[int]:
    """Offsets of instructions that do nothing, begin or end the handling of an exception, or begin the end of a `with`:
    `__exit__(None, None, None)` follows."""
    run = 0
    instructions = [one for one in dis.get_instructions(code) if one.opname not in ("CACHE", "EXTENDED_ARG")]
    found = {one.offset for one in instructions if one.opname in ("NOP", "PUSH_EXC_INFO", "POP_EXCEPT")}
    for number, one in enumerate(instructions):
        run = run + 1 if one.opname == "LOAD_CONST" and one.argval is None else 0
        if run == 3:
            first = number - 2
            if instructions[first - 1].opname in ("SWAP", "COPY", "NOP"):
                found.add(instructions[first - 1].offset)
            found.add(instructions[first].offset)
    return frozenset(found)


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """A real signal whose handler raises `Interrupted` in the main thread after that time, unless the block is over.
    An alarm that was set before counts on."""

    def restore() -> None:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, before)

    def ring(*given: object) -> None:
        restore()
        raise Interrupted(f"after {seconds * 1e6:.0f} µs")

    left = signal.setitimer(signal.ITIMER_REAL, 0)[0]
    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        yield
    finally:
        restore()


def open_descriptors() -> dict[str, str]:
    """The descriptors of this process, and what each is of; not the one that it takes to list them."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def check_descriptors(before: dict[str, str]) -> None:
    """Nothing is open that was not, but for what the garbage collector closes."""
    if open_descriptors().items() - before.items():
        gc.collect()
        left = open_descriptors().items() - before.items()
        if left:
            raise AssertionError(f"descriptors are left: {dict(left)}")


@contextlib.contextmanager
def unraisable_dropped() -> Iterator[None]:
    """CPython cannot raise what is raised in finalizers and weak references' callbacks; nor is it printed here."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda lost: None
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = hook
