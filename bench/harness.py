"""Cases, rounds and what is kept of them. Times are never asserted: this prints, people judge.

A floor (one module each) is a context manager that prepares data and yields cases. The harness runs all cases of a
floor once to warm up, throws that away, then runs them in interleaved rounds: a slow minute of the machine hits every
case and its limit alike, so that the ratio of a round survives what the absolute figure does not.
"""

import gc
import mmap
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Unit = Literal["msg/s", "B/s", "s", "count"]


@dataclass(frozen=True, slots=True)
class Target:
    """What a line should reach: at least (or, `at_most`, at most) `bound`, by its figure or by its ratio."""

    bound: float
    of: Literal["figure", "ratio"] = "figure"
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: a figure in the line's unit and, where there is one, the limit taken beside it."""

    figure: float
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table. `limit` says what the figure is divided by; empty where there is no such thing.

    The limit is given in the figure's unit (memcpy, say, as messages a second). `message_size` is what a message takes
    in the log on average, so that messages a second can be shown as bytes too.
    """

    path: str
    unit: Unit = "msg/s"
    limit: str = ""
    target: Target | None = None
    message_size: float = 0


@dataclass(slots=True)
class Case:
    """Work that yields one sample per line each time it runs. What is cold on purpose needs no warming up."""

    lines: Sequence[Line]
    run: Callable[[], Sequence[Sample]]
    warm_up: bool = True


@dataclass(slots=True)
class Result:
    """All samples of one line."""

    floor: str
    line: Line
    samples: list[Sample] = field(default_factory=list)

    @property
    def figures(self) -> list[float]:
        return [sample.figure for sample in self.samples]

    @property
    def median(self) -> float:
        return statistics.median(self.figures)

    @property
    def limit(self) -> float | None:
        limits = [sample.limit for sample in self.samples if sample.limit is not None]
        return statistics.median(limits) if limits else None

    @property
    def ratio(self) -> float | None:
        """Median of the rounds' ratios: figure and limit of one round belong together."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def ratios(self) -> list[float]:
        return [sample.figure / sample.limit for sample in self.samples if sample.limit]

    @property
    def met(self) -> bool | None:
        """None where the line has no target."""
        target = self.line.target
        if target is None:
            return None
        value = self.median if target.of == "figure" else self.ratio
        if value is None:
            return False
        return value <= target.bound if target.at_most else value >= target.bound


@dataclass(slots=True)
class Bench:
    """What floors are given: a folder on the disk that is measured, and how much to do."""

    directory: Path
    rounds: int = 5
    quick: bool = False
    notes: list[str] = field(default_factory=list)
    """What a floor has to say of its figures; printed behind the table."""

    def count(self, messages: int) -> int:
        """So many messages, or a quarter of them in a quick run."""
        return messages // 4 if self.quick else messages

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """A fresh folder, gone afterwards: the next user gets the page cache it leaves behind, warm (see the docs)."""
        path = self.directory / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def touch_memory(size: int = 1 << 30) -> None:
    """Use so much memory and give it back, so that whoever is next gets pages that the machine has used just before.

    The first use of memory that a virtual machine has handed back to its host costs up to 13 µs a page.
    """
    mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def touch_page_cache(directory: Path, size: int = 512 << 20) -> None:
    """The same for who writes to new files at once: their pages come in larger pieces, which a file leaves behind."""
    path = directory / "touched"
    piece = bytes(1 << 20)
    with path.open("wb") as file:
        for _ in range(size // len(piece)):
            file.write(piece)
    path.unlink()


Floor = Callable[[Bench], AbstractContextManager[Sequence[Case]]]


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call, without the garbage collector in it."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    finally:
        if was_enabled:
            gc.enable()


def run_floor(name: str, floor: Floor, bench: Bench) -> list[Result]:
    """One warm-up, then the rounds; a result per line."""
    progress = _Progress(name)
    progress.show("preparing")
    with floor(bench) as cases:
        results = [[Result(name, line) for line in case.lines] for case in cases]
        for number in range(bench.rounds + 1):
            for case, lines in zip(cases, results, strict=True):
                if not number and not case.warm_up:
                    continue
                progress.show(f"round {number}/{bench.rounds}  {case.lines[0].path}" if number else "warming up")
                samples = case.run()
                for result, sample in zip(lines, samples, strict=True):
                    if number:
                        result.samples.append(sample)
        progress.show("cleaning up")
    progress.done()
    return [result for lines in results for result in lines]


class _Progress:
    """One line on stderr that is written over; without a terminal, one line per floor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin = time.perf_counter()
        self._live = sys.stderr.isatty()

    def show(self, text: str) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            print("\r" + f"{self._name}: {text}"[:width].ljust(width), end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        text = f"{self._name}: {time.perf_counter() - self._begin:.0f} s"
        width = shutil.get_terminal_size().columns - 1 if self._live else len(text)
        print(("\r" if self._live else "") + text.ljust(width), file=sys.stderr, flush=True)


def drop_from_page_cache(directory: Path) -> None:
    """Ask the kernel to forget every file below a folder, written back first, so that the next read is cold."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
