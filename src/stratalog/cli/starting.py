"""Ctrl-C: while the command line starts and nothing was done yet, it ends at once; then it raises."""

import os
import signal
from types import FrameType
from typing import Any

INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended."""
_IMPORT_SECONDS = 0.001


def end_at_ctrl_c() -> None:
    """End at once with one line: a `KeyboardInterrupt` could be raised anywhere, and be caught by any library."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller has it ignored
        signal.signal(signal.SIGINT, _end)


def raise_at_ctrl_c() -> None:
    """From now on it is the command's to say what was done."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _interrupt)
        signal.signal(signal.SIGALRM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`; while a module is imported, after that: Python would keep the lock of the module, or
    make another error of it."""
    while frame and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    if frame is None:
        raise KeyboardInterrupt
    signal.setitimer(signal.ITIMER_REAL, _IMPORT_SECONDS)


def _end(number: int, frame: Any) -> None:
    try:
        os.write(2, b"stratalog: stopped\n")
    finally:
        os._exit(INTERRUPTED)
