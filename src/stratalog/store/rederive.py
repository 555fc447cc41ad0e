"""Deriving queues and index from the log again, when a store is opened; and telling how far that is."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stratalog.helpers import Outcome, ThreadPool
from stratalog.store.disk import ClockNs
from stratalog.store.dispatch import Dispatcher
from stratalog.store.index_file import Index
from stratalog.store.log_scan import Span

_LONG_SIZE = 32 << 20
"""From here on several threads pay."""
_KEEP_SIZE = 4 << 30
"""Bytes of log after which what was built is made durable: a few seconds of work."""
_CHUNKS_BEHIND_MAX = 4


def is_long(begin: int, end: int) -> bool:
    """Whether so much of the log is to be read that several threads pay."""
    return end - begin >= _LONG_SIZE


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


class _IndexBeside:
    """Fills the index in the thread of a pool, a few chunks after the dispatcher: they are in the cache still."""

    def __init__(self, index: Index, pool: ThreadPool) -> None:
        self._index = index
        self._pool = pool
        self._under_way: deque[Outcome[None]] = deque()
        self._has_failed = False

    def put(self, address: int, positions: NDArray[np.int64], count: int, base_offset: int) -> None:
        """What `Index.put` does, later; raises what an earlier one raised."""
        self._after_others(self._index.put, address, positions[:count].copy(), count, base_offset)

    def keep(self) -> None:
        self._after_others(self._index.keep)

    def finish(self) -> None:
        while self._under_way:
            self._under_way.popleft().result()

    def _after_others(self, work: Callable[..., None], *args: object) -> None:
        self._under_way.append(self._pool.submit(self._do, work, *args))
        if len(self._under_way) > _CHUNKS_BEHIND_MAX:
            self._under_way.popleft().result()

    def _do(self, work: Callable[..., None], *args: object) -> None:
        if self._has_failed:  # nothing is entered after that
            return
        try:
            work(*args)
        except BaseException:
            self._has_failed = True
            raise


class Rebuild:
    """Queues and index of the log from `begin` to `end`. A long range is indexed beside the dispatch."""

    def __init__(
        self, dispatcher: Dispatcher, index: Index | None, begin: int, end: int, meter: Meter, keep: Callable[[], None]
    ) -> None:  # fmt: skip
        self._dispatcher = dispatcher
        self._index = index
        self._begin = begin
        self._end = end
        self._meter = meter
        self._keep = keep

    def run(self, spans: Iterable[Span]) -> None:
        """Follow the spans of the range that were verified; what lies between them is passed over."""
        self._dispatcher.start_at(min(self._begin, self._end))
        self._meter.begin("building queues and index", self._begin, self._end)
        if self._index is None or not is_long(self._begin, self._end):
            self._dispatch(spans, self._keep)
            return
        try:
            with self._index.in_bulk(), ThreadPool(1, "stratalog-index") as pool:
                beside = _IndexBeside(self._index, pool)
                self._dispatcher.put_keys = beside.put

                def keep() -> None:
                    self._keep()
                    beside.keep()

                self._dispatch(spans, keep)
                beside.finish()
        finally:
            self._dispatcher.put_keys = self._index.put

    def _dispatch(self, spans: Iterable[Span], keep: Callable[[], None]) -> None:
        dispatcher, kept = self._dispatcher, self._begin
        for begin, stop in spans:
            dispatcher.skip(begin)
            dispatcher.dispatch(stop)
            self._meter.at(stop)
            if stop - kept >= _KEEP_SIZE:
                keep()
                kept = stop
        dispatcher.skip(self._end)
