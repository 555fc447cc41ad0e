"""What a torture row is, how it counts, and the table at the end.

A row is a function from `Torture` (seed, form, folder) to a `Row`. It draws every random choice from
`Torture.chance(row, case)`, so that one case can be run again alone, and puts each case into `Row.case`, which turns
what a case raises into a violation with the command that repeats it.
"""

import contextlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

VIOLATIONS_SHOWN = 5


class Lost(AssertionError):
    """A message that was acknowledged is not there."""


class WrongPrefix(AssertionError):
    """What is there is not a byte-identical prefix of what was appended, or queues and index do not fit it."""


class Undetected(AssertionError):
    """Damage that nothing reported, or that was served as good."""


class NotHere(Exception):
    """This machine cannot run the row: the reason is printed, and counts as no violation."""


@dataclass
class Row:
    """One line of the table. `lost`, `wrong_prefix`, `undetected` and `other` are violations and must be 0."""

    what: str
    repeat: str = ""
    cases: int = 0
    lost: int = 0
    wrong_prefix: int = 0
    undetected: int = 0
    other: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    stopped: bool = False

    @property
    def failed(self) -> int:
        return self.lost + self.wrong_prefix + self.undetected + self.other

    @contextlib.contextmanager
    def case(self, name: object, *, seconds: float = 120.0) -> Iterator[None]:
        """Count a case; what it raises is a violation, and so is taking longer than `seconds`. `Exception` is meant: a
        case may fail in any way. Main thread only."""
        self.cases += 1
        try:
            with _alarm(seconds):
                yield
        except NotHere:
            self.cases -= 1
            raise
        except Exception as error:  # noqa: BLE001 - any error is the finding
            self.violation(name, error)

    def violation(self, name: object, error: BaseException) -> None:
        if isinstance(error, Lost):
            self.lost += 1
        elif isinstance(error, WrongPrefix):
            self.wrong_prefix += 1
        elif isinstance(error, Undetected):
            self.undetected += 1
        else:
            self.other += 1
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        text = str(error).strip().splitlines()[:1] or [""]
        self.violations.append(f"{self.what}, case {name}: {type(error).__name__}: {text[0][:300]}{place}")


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the main thread when the block takes longer."""

    def ring(*given: object) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Torture:
    """One run: its seed, whether the full form is wanted, and a folder of its own."""

    seed: int
    full: bool
    folder: Path
    disk_folder: Path
    """On a real file system; `folder` is in memory where there is such a place."""
    only: str | None = None
    """Run just the case of this name, where a row's cases stand alone."""

    def chance(self, row: str, case: object = "") -> random.Random:
        return random.Random(f"{self.seed}/{row}/{case}")

    def count(self, short: int, full: int) -> int:
        return full if self.full else short

    def wants(self, case: object) -> bool:
        return self.only is None or self.only == str(case)

    def place(self, name: str, *, on_disk: bool = False) -> Path:
        path = (self.disk_folder if on_disk else self.folder) / name
        path.mkdir(parents=True, exist_ok=True)
        return path


RowFunction = Callable[[Torture, Row], None]


def run_row(name: str, what: str, function: RowFunction, torture: Torture) -> Row:
    """Run one row to its end, whatever happens in it."""
    form = "full" if torture.full else "short"
    row = Row(what, repeat=f"make torture SEED={torture.seed} FORM={form} ROWS={name}")
    started = time.monotonic()
    try:
        function(torture, row)
        if not row.cases and torture.only is None:
            row.other += 1
            row.violations.append(f"{what}: no case was run")
    except NotHere as reason:
        row.notes.append(f"NOT RUN HERE: {reason}")
    except KeyboardInterrupt:
        row.notes.append("STOPPED before its end")
        row.stopped = True
    except Exception as error:  # noqa: BLE001 - the other rows are run all the same
        row.violation("the row itself", error)
    row.seconds = time.monotonic() - started
    return row


def environment() -> dict[str, str]:
    """The environment for a process that imports what this one does."""
    path = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


HEADINGS = ("what", "cases", "acknowledged lost", "wrong prefix", "undetected", "other", "seconds")


def cells(row: Row) -> tuple[str, ...]:
    counts = (row.cases, row.lost, row.wrong_prefix, row.undetected, row.other)
    return (row.what, *(f"{count:,}" for count in counts), f"{row.seconds:.1f}")


def table(rows: list[Row]) -> str:
    lines = [HEADINGS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(
        " · ".join(text.ljust(width) if not column else text.rjust(width) for column, (text, width) in pairs)
        for pairs in (list(enumerate(zip(line, widths, strict=True))) for line in lines)
    )


def show(rows: list[Row], torture: Torture) -> bool:
    """Print table, notes and violations; returns whether everything held."""
    write = sys.stdout.write
    write(f"\nseed {torture.seed}, {'full' if torture.full else 'short'} form\n{table(rows)}\n")
    for row in rows:
        for note in row.notes:
            write(f"  {row.what}: {note}\n")
    for row in rows:
        for text in row.violations[:VIOLATIONS_SHOWN]:
            write(f"VIOLATION {text}\n")
        if row.violations:
            left = len(row.violations) - VIOLATIONS_SHOWN
            write(f"  {f'and {left} more; ' if left > 0 else ''}repeat with: {row.repeat}\n")
    sys.stdout.flush()
    return not any(row.failed or row.stopped for row in rows)
