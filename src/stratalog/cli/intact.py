"""Reading past damage: what is intact is shown, the rest is named on stderr."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.cli.output import complain
from stratalog.errors import CorruptData, counted

if TYPE_CHECKING:
    from stratalog.store.dispatch import LeftOut
    from stratalog.store.message import Message
    from stratalog.store.queue import Queue
    from stratalog.tiered import TieredQueue


def begin_of(queue: "Queue | TieredQueue") -> int:
    """The first offset that a queue gave, as far as its log goes back: where that is there from its begin, and has room
    for the messages in front of the oldest one, those are lost."""
    from stratalog.layout.message import FIXED_SIZE_V1

    low, store = queue.min_offset, getattr(queue, "store", None)  # a tier has none
    if not low or store is None or store.log.first_offset:
        return low
    oldest = None
    with suppress(CorruptData):
        oldest = next(queue.read(low, count=1), None)
    return low if low > (oldest.commit_log_offset if oldest else store.log.end_offset) // FIXED_SIZE_V1 else 0


def _place(queue: "Queue | TieredQueue", offset: int) -> int:
    """Log offset of the message that a queue has at an offset; -1 where none can be read."""
    with suppress(CorruptData):
        message = next(queue.read(offset, count=1), None)
        if message and message.queue_offset == offset:
            return message.commit_log_offset
    return -1


class Intact:
    """Reads queues; `missing_count` is the number of messages that could not be read."""

    def __init__(self) -> None:
        self.missing_count = 0
        self._named: set[LeftOut] = set()

    def read(self, queue: "Queue | TieredQueue", start: int, count: int | None = None) -> Iterator["Message"]:
        """Up to `count` messages from an offset on. Each damaged one is named; so are offsets without a message."""
        low, end = queue.min_offset, queue.max_offset
        left = count if count is not None else end - start
        left_out = self._left_out_from(queue, start, low)
        if begin_of(queue) <= start < low:
            until = bisect_left(left_out, (_place(queue, low),))
            self._pass(queue, start, low, left_out=left_out[:until])
            del left_out[:until]
            start = low
        while left > 0:
            try:
                for message in queue.read(start, count=left):
                    until = bisect_left(left_out, (message.commit_log_offset,))
                    self._pass(queue, start, message.queue_offset, left_out=left_out[:until])
                    del left_out[:until]
                    yield message
                    left -= 1
                    start = message.queue_offset + 1
                if left:  # the end was reached
                    self._pass(queue, start, end, left_out=left_out)
                return
            except CorruptData as error:
                if error.next_offset <= start:
                    raise
                self.miss(error.next_offset - start, str(error))
                start = error.next_offset

    def _left_out_from(self, queue: "Queue | TieredQueue", start: int, low: int) -> list["LeftOut"]:
        """Messages that opening left out of the queue, in log order, those after the message in front of `start`."""
        recovery = getattr(getattr(queue, "store", None), "recovery", None)  # a tier has none
        key = queue.topic, queue.queue_id
        found = sorted(one for one in (recovery.left_out if recovery else ()) if (one.topic, one.queue_id) == key)
        found = [one for one in found if one not in self._named]
        for before in range(start - 1, max(low, start - 1 - len(found)) - 1, -1) if found else ():
            if (place := _place(queue, before)) >= 0:
                return found[bisect_left(found, (place,)) :]
        return found

    def name_lost_end(self, queue: "Queue | TieredQueue") -> None:
        """Name the newest messages of a queue if they were lost with the log's end; and, where the log is damaged, that
        a queue has none left."""
        recovery = getattr(getattr(queue, "store", None), "recovery", None)  # a tier has none
        for one in recovery.lost_ends if recovery else ():
            if (one.topic, one.queue_id) == (queue.topic, queue.queue_id):
                self._pass(queue, queue.max_offset, one.known_end, "lost with the log's end")
        if recovery and recovery.quarantined and begin_of(queue) == queue.max_offset > 0:
            name, end = f"{queue.topic}/{queue.queue_id}", queue.max_offset
            self.miss(1, f"{name}: no message is left before offset {end:,}: all expired or were lost to damage")

    def miss(self, count: int, why: str) -> None:
        """Name messages that cannot be read."""
        self.missing_count += count
        complain(why)

    def _pass(
        self, queue: "Queue | TieredQueue", start: int, stop: int, why: str = "lost to damage earlier",
        left_out: Sequence["LeftOut"] = (),
    ) -> None:  # fmt: skip
        """Name what is missing at these offsets: the messages that were left out there, and how many were lost."""
        name = f"{queue.topic}/{queue.queue_id}"
        for one in left_out:
            where = f"{name}: the message at log offset {one.commit_log_offset:,} was left out of the queue"
            self.miss(1, f"{where}: its queue offset, {one.queue_offset:,}, cannot be")
        self._named.update(left_out)
        lost = stop - start - len(left_out)
        if lost > 0:
            what = f"offset {start:,}" if stop == start + 1 else f"offsets {start:,} to {stop - 1:,}"
            but = f", but for {counted(len(left_out), 'message')} left out" if left_out else ""
            self.miss(lost, f"{name}: no message at {what}: {why}{but}")
