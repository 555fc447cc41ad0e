"""The receipts of a list."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from stratalog.store.record_put import Receipt

if TYPE_CHECKING:
    from stratalog.store.queue import Queue


class Receipts(Sequence[Receipt]):
    """The receipts of one list, each made when it is looked at. The messages stand one after the other in the log.

    `ends` are bytes: for each message an int32 of the machine's order, how far after the list's start it ends.
    """

    def __init__(self, queue: "Queue", queue_offset: int, start: int, now: int, ends: bytes) -> None:
        self._host = queue.host
        self._queue_offset = queue_offset
        self._start = start
        self._now = now
        self._ends = memoryview(ends).cast("i")

    def __reduce__(self) -> tuple[Any, ...]:
        """As a list: `pickle` and `copy` take no view of memory."""
        return list, (list(self),)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, number: int) -> Receipt: ...
    @overload
    def __getitem__(self, number: slice) -> list[Receipt]: ...
    def __getitem__(self, number: int | slice) -> Receipt | list[Receipt]:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        begin, end = self._ends[number - 1] if number else 0, self._ends[number]
        return Receipt(self._queue_offset + number, self._start + begin, end - begin, self._now, self._host)
