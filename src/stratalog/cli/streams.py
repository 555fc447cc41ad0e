"""Standard input, output and error as a command needs them, whatever the caller made of them.

A descriptor that is closed is opened on /dev/null, or the first file of a store would take its number, and what is
printed would be written into it. What cannot be written to standard output raises `OutputLost`, an error of its own:
the work was done. What cannot be written to standard error is dropped: nobody can be told.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import typer

from stratalog.cli.output import complain

OUTPUT_LOST = 4
"""Exit code: the work was done, but standard output does not take the result."""


class OutputLost(Exception):
    """Standard output takes no more."""


class _Output(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:  # whoever reads it has seen enough
            raise
        except OSError as error:
            raise OutputLost(f"standard output: {error.strerror}") from None


class _Remarks(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def open_streams() -> None:
    """Give the process its three standard streams; called once, before any file is opened."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stdout = _text(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Remarks(2, "w", closefd=False), sys.stderr, at_once=True)


def _text(raw: io.FileIO, before: Any, *, at_once: bool = False) -> io.TextIOWrapper:
    """A body may hold any character; one that the terminal cannot show must not stop the listing."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=getattr(before, "encoding", "utf-8"), errors="backslashreplace",
        line_buffering=at_once or raw.isatty(),
    )  # fmt: skip


def flush_output() -> None:
    """Write what is left of the output. Raises `OutputLost`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def discard_output() -> None:
    """Let the rest of the output go nowhere: else Python tries again, and complains, as it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end_without_output(error: OutputLost, what: str = "not all of the result was written") -> typer.Exit:
    """Say so; returns how the command ends."""
    discard_output()
    complain(f"{error}; {what}")
    return typer.Exit(OUTPUT_LOST)


@contextlib.contextmanager
def shows_what_is_done(what: str) -> Iterator[None]:
    """Show the result of work that changed something; where nobody takes it, say on stderr what was done."""
    try:
        yield
        flush_output()
    except OutputLost as error:
        raise end_without_output(error, what) from None
