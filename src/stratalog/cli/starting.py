"""Ctrl-C while the command line starts: modules are imported and the commands are built, and nothing was done yet."""

import os
import signal
from typing import Any

INTERRUPTED = 130
"""What a shell expects of a program that Ctrl-C ended."""


def end_at_ctrl_c() -> None:
    """End at once with one line: a `KeyboardInterrupt` could be raised anywhere, and be caught by any library."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller has it ignored
        signal.signal(signal.SIGINT, _end)


def raise_at_ctrl_c() -> None:
    """From now on it is the command's to say what was done."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: Any) -> None:
    try:
        os.write(2, b"stratalog: stopped\n")
    finally:
        os._exit(INTERRUPTED)
