"""The progress line of long work."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stratalog.cli.output import size_text
from stratalog.errors import counted

if TYPE_CHECKING:
    from stratalog.store.rederive import Progress as OpeningProgress

_TERMINAL_PAUSE_S = 0.1
_PLAIN_PAUSE_S = 5.0


class Progress:
    """One line on stderr: records, bytes, rate and time left. On a terminal it is rewritten in place and gone at the
    end; elsewhere a plain line is printed every few seconds, so that a log shows that work goes on."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._begin = self._last = time.monotonic()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def __call__(self, size_done: int, size_total: int, record_count: int) -> None:
        """Bytes done and in all (0 = not known), records done."""
        if self._is_due():
            self._show(progress_line(self._what, size_done, size_total, record_count, self.seconds))

    def of_opening(self, told: "OpeningProgress") -> None:
        """What `stratalog.open` tells while it reads the log."""
        if self._is_due():
            seconds = told.done / told.rate if told.rate else 0.0
            self._show(progress_line(told.step, told.done, told.total, 0, seconds))

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._last < (_TERMINAL_PAUSE_S if self._terminal else _PLAIN_PAUSE_S):
            return False
        self._last = now
        return True

    def _show(self, line: str) -> None:
        if self._terminal:
            print("\r" + line.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(line))
        else:
            print(line, file=sys.stderr, flush=True)


def progress_line(what: str, size_done: int, size_total: int, record_count: int, seconds: float) -> str:
    """For example `verify: 1,200,000 records, 1.2 of 3.4 GB (35 %), 1.5 GB/s, 0:02 left`; 0 records are not told."""
    rate = size_done / seconds if seconds > 0 else 0.0
    line = f"{what}: " + (f"{counted(record_count, 'record')}, " if record_count else "") + size_text(size_done)
    if size_total:
        line += f" of {size_text(size_total)} ({100 * size_done // size_total} %)"
    line += f", {size_text(rate)}/s"
    if size_total and rate:
        left = round(max(0, size_total - size_done) / rate)
        line += f", {left // 60}:{left % 60:02d} left"
    return line
