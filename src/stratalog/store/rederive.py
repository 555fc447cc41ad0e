"""Deriving queues and index from the log again, when a store is opened; and telling how far that is."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from stratalog.kernels.scan import TRUST, ScanStatus, scan
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import ClockNs
from stratalog.store.dispatch import CHUNK_RECORDS, Dispatcher
from stratalog.store.index_file import Index
from stratalog.store.log_scan import Damage

_IN_BULK_SIZE = 32 << 20
"""From here on a thread of its own for the index pays."""
_KEEP_SIZE = 4 << 30
"""Bytes of log after which what was built is made durable: a few seconds of work."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far opening a store is: `done` of `total` bytes of log in this step, at `rate` bytes a second."""

    step: str
    done: int
    total: int
    rate: float
    seconds_left: float | None
    """None while nothing is known yet."""


class Meter:
    """Turns log offsets into `Progress` for a callable. What it raises ends the opening."""

    def __init__(
        self, tell: Callable[[Progress], None] = lambda progress: None, clock_ns: ClockNs = lambda: 0
    ) -> None:  # fmt: skip
        self._tell = tell
        self._clock_ns = clock_ns
        self._step, self._first, self._total, self._started = "", 0, 0, 0

    def begin(self, step: str, first: int, end: int) -> None:
        self._step, self._first, self._total, self._started = step, first, max(0, end - first), self._clock_ns()

    def at(self, offset: int) -> None:
        seconds = (self._clock_ns() - self._started) / 1e9
        done = min(max(0, offset - self._first), self._total)
        rate = done / seconds if seconds > 0 else 0.0
        self._tell(Progress(self._step, done, self._total, rate, (self._total - done) / rate if rate else None))


class Rebuild:
    """Queues and index of a range of the log that was verified. Damage in it is passed over.

    `marks` are record starts between which the work is cut. The two follow the log side by side, each by itself.
    """

    def __init__(
        self, log: CommitLog, dispatcher: Dispatcher, index: Index | None, damages: Sequence[Damage],
        marks: Sequence[int], meter: Meter, keep: Callable[[], None],
    ) -> None:  # fmt: skip
        self._log = log
        self._dispatcher = dispatcher
        self._index = index
        self._damages = sorted(damages, key=lambda damage: damage.begin)
        self._marks = marks
        self._meter = meter
        self._keep = keep

    def run(self, begin: int, end: int) -> None:
        self._dispatcher.start_at(min(begin, end))
        spans = self._spans(begin, end)
        self._meter.begin("building queues and index", begin, end)
        if self._index is None or end - begin < _IN_BULK_SIZE:
            self._dispatch(spans, end)
            return
        index, self._dispatcher.index = self._index, None
        try:
            with index.in_bulk(), ThreadPoolExecutor(1, "stratalog-index") as pool:
                indexed = pool.submit(self._fill_index, index, spans)
                self._dispatch(spans, end)
                indexed.result()
        finally:
            self._dispatcher.index = index

    def _spans(self, begin: int, end: int) -> list[tuple[int, int]]:
        """What lies between the damage, cut at the marks."""
        edges, spans = [*self._damages, Damage(end, end, "")], []
        for damage in edges:
            inside = [mark for mark in self._marks if begin < mark < damage.begin]
            for stop in [*sorted(inside), damage.begin]:
                if begin < stop:
                    spans.append((begin, stop))
                    begin = stop
            begin = max(begin, damage.end)
        return spans

    def _dispatch(self, spans: Sequence[tuple[int, int]], end: int) -> None:
        kept = spans[0][0] if spans else 0
        for begin, stop in spans:
            self._dispatcher.skip(max(begin, self._dispatcher.progress.offset))
            self._dispatcher.dispatch(stop)
            self._meter.at(stop)
            if stop - kept >= _KEEP_SIZE:
                self._keep()
                kept = stop
        self._dispatcher.skip(max(end, self._dispatcher.progress.offset))

    def _fill_index(self, index: Index, spans: Sequence[tuple[int, int]]) -> None:
        positions, sizes = np.empty(CHUNK_RECORDS, np.int64), np.empty(CHUNK_RECORDS, np.int32)
        kept = spans[0][0] if spans else 0
        for begin, end in spans:
            for file, position, stop, base in self._log.extents(begin, end):
                status = int(ScanStatus.FULL)
                while status == ScanStatus.FULL:
                    count, position, status = scan(file.address, position, stop, base, TRUST, positions, sizes)
                    if count:
                        index.put(file.address, positions, count, base)
            if end - kept >= _KEEP_SIZE:
                index.keep()
                kept = end
