"""Reading past damage: what is intact is shown, the rest is named on stderr."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.cli.output import complain
from stratalog.errors import CorruptData

if TYPE_CHECKING:
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


class Intact:
    """Reads queues; `missing_count` is the number of messages that could not be read."""

    def __init__(self) -> None:
        self.missing_count = 0

    def read(self, queue: "Queue | TieredQueue", start: int, count: int | None = None) -> Iterator["Message"]:
        """Up to `count` messages from an offset on. Each damaged one is named; so are offsets without a message."""
        low, end = queue.min_offset, queue.max_offset
        left = count if count is not None else end - start
        if begin_of(queue) <= start < low:
            self._pass(queue, start, low)
            start = low
        while left > 0:
            try:
                for message in queue.read(start, count=left):
                    self._pass(queue, start, message.queue_offset)
                    yield message
                    left -= 1
                    start = message.queue_offset + 1
                if left:  # the end was reached
                    self._pass(queue, start, end)
                return
            except CorruptData as error:
                if error.next_offset <= start:
                    raise
                self.miss(error.next_offset - start, str(error))
                start = error.next_offset

    def name_left_out(self, queue: "Queue | TieredQueue", messages: Sequence["Message"], *, is_all: bool) -> None:
        """Name what the log alone has between messages that were read, or after them if they are all."""
        recovery = getattr(getattr(queue, "store", None), "recovery", None)  # a tier has none
        for one in recovery.left_out if recovery else ():
            place, is_own = one.commit_log_offset, (one.topic, one.queue_id) == (queue.topic, queue.queue_id)
            if is_own and (is_all or messages[0].commit_log_offset < place < messages[-1].commit_log_offset):
                where = f"{one.topic}/{one.queue_id}: a message at log offset {place:,} is not in the queue"
                self.miss(1, f"{where}: its queue offset, {one.queue_offset:,}, cannot be")

    def name_lost_end(self, queue: "Queue | TieredQueue") -> None:
        """Name the newest messages of a queue if they were lost with the log's end."""
        recovery = getattr(getattr(queue, "store", None), "recovery", None)  # a tier has none
        for one in recovery.lost_ends if recovery else ():
            if (one.topic, one.queue_id) == (queue.topic, queue.queue_id):
                self._pass(queue, queue.max_offset, one.known_end, "lost with the log's end")

    def miss(self, count: int, why: str) -> None:
        """Name messages that cannot be read."""
        self.missing_count += count
        complain(why)

    def _pass(
        self, queue: "Queue | TieredQueue", start: int, stop: int, why: str = "lost to damage earlier"
    ) -> None:  # fmt: skip
        if start < stop:
            what = f"offset {start:,}" if stop == start + 1 else f"offsets {start:,} to {stop - 1:,}"
            self.miss(stop - start, f"{queue.topic}/{queue.queue_id}: no message at {what}: {why}")
