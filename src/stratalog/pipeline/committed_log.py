"""The log of a store as an offload sees it: where it ends, where records begin, how to cut it into pieces."""

import os
from bisect import bisect_right

from stratalog.errors import ConfigurationError
from stratalog.layout.names import is_tiered
from stratalog.layout.queue import FILLER_SIZE, UNIT
from stratalog.pipeline.history import open_local
from stratalog.store.message_store import MessageStore

PIECE_SIZE = 128 << 20
"""Bytes of log that a task scans at most."""
PIECE_SIZE_MIN = 16 << 20
"""A range is cut into as many pieces as there are cores, but not into smaller ones."""
_BORDER_QUEUES = 16
"""Queues that are asked for borders; the others only where these, the largest, know none."""
_BEHIND_ALL = 2**63 - 1

Piece = tuple[str, int, int, int]
"""File, log offset of its first byte, and the log offsets [begin, end) of a piece."""


class CommittedLog:
    """A store's log as it stands.

    Ends and borders are told by the store itself, opened read-only: exact after any crash, without touching a byte.
    Borders come from the queues' units, so nothing has to be walked.
    """

    def __init__(self, path: str) -> None:
        self.store: MessageStore = open_local(path)
        borders = [_Borders(self.store, topic, queue_id) for topic, queue_id in self.store.queues()]
        self._borders = sorted(borders, key=len, reverse=True)

    @property
    def end_offset(self) -> int:
        return self.store.log.end_offset

    @property
    def tiered_topics(self) -> list[str]:
        """Topics that are copied; system topics and light queues stay local."""
        return [topic for topic in self.store.topics() if is_tiered(topic)]

    def start(self, wanted: int) -> int:
        """Where reading begins: at `wanted`, or at the log's beginning if that was dropped already (or -1).

        Raises `ConfigurationError` for a place behind the end: then this is not the store that was read before.
        """
        if wanted > self.end_offset:
            raise ConfigurationError(
                f"the tier was filled up to log offset {wanted:,}, the log of {self.store.root} ends at "
                f"{self.end_offset:,}: it is not the store that this tier belongs to, or it was set back. Give another "
                "tier or broker name, or restore the store"
            )
        return max(wanted, self.store.log.first_offset)

    def border(self, begin: int, wanted: int) -> int:
        """A record border in (begin, wanted], close to `wanted`; where a single record reaches further, its end."""
        if wanted >= self.end_offset:
            return self.end_offset
        for some in (self._borders[:_BORDER_QUEUES], self._borders):
            before = max((borders.before(wanted) for borders in some), default=begin)
            if before > begin:
                return before
        following = min((borders.behind(begin) for borders in self._borders), default=_BEHIND_ALL)
        return min(following, self.end_offset)

    def pieces(self, begin: int, end: int) -> list[Piece]:
        """The range cut at file and record borders into parts of about equal size."""
        size = min(PIECE_SIZE, max(PIECE_SIZE_MIN, -(-(end - begin) // len(os.sched_getaffinity(0)))))
        found = []
        for file, position, stop, base in self.store.log.extents(begin, end):
            first, last = base + position, base + stop
            for left in range(max(1, round((last - first) / size)), 0, -1):
                border = min(self.border(first, first + (last - first) // left), last) if left > 1 else last
                if border > first:
                    found.append((str(file.path), base, first, border))
                first = border
        return found

    def sync(self, begin: int, end: int) -> None:
        """Force the files of a range to disk; costs nothing where that was done."""
        for path in {file.path for file, *_ in self.store.log.extents(begin, end)}:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(fd)
            finally:
                os.close(fd)

    def close(self) -> None:
        self.store.close()


class _Borders:
    """Where the records of one queue begin in the log; bisected, so that a log of any size costs a few reads."""

    def __init__(self, store: MessageStore, topic: str, queue_id: int) -> None:
        self._queue = store.queue(topic, queue_id)
        self._offsets = range(self._queue.min_offset, self._queue.max_offset)

    def __len__(self) -> int:
        return len(self._offsets)

    def before(self, commit_log_offset: int) -> int:
        """The last record start at or before a log offset; -1 when there is none."""
        number = bisect_right(self._offsets, commit_log_offset, key=self._start)
        return self._start(self._offsets[number - 1]) if number else -1

    def behind(self, commit_log_offset: int) -> int:
        """The first record start behind a log offset; _BEHIND_ALL when there is none."""
        number = bisect_right(self._offsets, commit_log_offset, key=self._start)
        return self._start(self._offsets[number]) if number < len(self._offsets) else _BEHIND_ALL

    def _start(self, queue_offset: int) -> int:
        """Log offset of a message; a filler unit counts as the message behind it."""
        for following in range(queue_offset, self._offsets.stop):
            unit = UNIT.unpack(self._queue.units(following, 1))
            if unit.size != FILLER_SIZE:
                return int(unit.commit_log_offset)
        return _BEHIND_ALL
