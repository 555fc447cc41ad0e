"""The log of a store as an offload sees it: where it ends, and where records begin."""

from bisect import bisect_right
from collections import Counter
from itertools import pairwise

from stratalog.errors import ConfigurationError
from stratalog.layout.names import is_tiered
from stratalog.layout.queue import FILLER_SIZE
from stratalog.pipeline.history import open_local
from stratalog.pipeline.log_plan import LogPlan
from stratalog.store.message_store import MessageStore
from stratalog.tiered.segment import is_name
from stratalog.tiered.state import TierState

STRETCH_SIZE = 32 << 20
"""Bytes of log between two borders of a plan, at most about."""
_BATCH_STRETCHES = 8
"""Stretches in a batch, at least, so that batches come close to their limit."""
_BORDER_QUEUES = 4
"""Queues that are asked for borders; the others only where these, the largest, know none."""
_BEHIND_ALL = 2**63 - 1


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

    def plan(self, state: TierState, *, size_max: int) -> LogPlan:
        """How to bring the tier up to the log's end, in batches of at most `size_max` bytes.

        Raises `ConfigurationError` when the tier is ahead of the log: then this is not the store that was copied.
        """
        log, begin = self.store.log, max(state.source_end, 0)
        if begin > self.end_offset:
            raise ConfigurationError(
                f"the tier was filled up to log offset {begin:,}, the log of {self.store.root} ends at "
                f"{self.end_offset:,}: it is not the store that this tier belongs to, or it was set back. Give another "
                "tier or broker name, or restore the store"
            )
        first = max(begin, log.first_offset)
        next_file = first - (first - log.first_offset) % log.file_size + log.file_size
        files = [first, *range(next_file, self.end_offset, log.file_size), self.end_offset]
        stretch = min(STRETCH_SIZE, -(-size_max // _BATCH_STRETCHES))
        borders = [first]
        for start, end in pairwise(files):
            while start < end:
                start = min(self._border(start, start + stretch), end)
                borders.append(start)
        return LogPlan(
            str(log.directory),
            log.first_offset,
            log.file_size,
            begin,
            tuple(borders),
            state.topic_ids(filter(self._is_copied, self.store.topics())),
        )

    def _border(self, begin: int, wanted: int) -> int:
        """A record border in (begin, wanted], close to `wanted`; where a single record reaches further, its end."""
        if wanted >= self.end_offset:
            return self.end_offset
        for some in (self._borders[:_BORDER_QUEUES], self._borders):
            before = max((borders.before(wanted) for borders in some), default=begin)
            if before > begin:
                return before
        following = min((borders.behind(begin) for borders in self._borders), default=_BEHIND_ALL)
        return min(following, self.end_offset)

    def _is_copied(self, topic: str) -> bool:
        """The tier keeps a record a queue offset, and so no inner batches; nor does RocketMQ copy them. Topics that it
        cannot have a directory for are passed over and counted, see `runs_of`."""
        return is_tiered(topic) and is_name(topic) and not self.store.queue_set.is_batch(topic)

    def left_out(self) -> dict[str, int]:
        """Messages that the store holds in topics that are not copied, by topic: of batch topics, light queues (their
        messages are copied in the topic that they were put to) and the broker's own topics."""
        counts: Counter[str] = Counter()
        for topic, queue_id in self.store.queues():
            if not self._is_copied(topic):
                queue = self.store.queue(topic, queue_id)
                counts[topic] += queue.max_offset - queue.min_offset
        return {topic: count for topic, count in sorted(counts.items()) if count}

    def close(self) -> None:
        self.store.close()


class _Borders:
    """Where the records of one queue begin in the log; bisected, so that a log of any size costs a few reads."""

    def __init__(self, store: MessageStore, topic: str, queue_id: int) -> None:
        queue = store.queue(topic, queue_id)
        self._units = store.units_of(queue)
        self._offsets = range(queue.min_offset, queue.max_offset)

    def __len__(self) -> int:
        return len(self._offsets)

    def before(self, commit_log_offset: int) -> int:
        """The last record start at or before a log offset; -1 when there is none."""
        number = bisect_right(self._offsets, commit_log_offset, key=self._start)
        return self._start(self._offsets[number - 1]) if number else -1

    def behind(self, commit_log_offset: int) -> int:
        """The first record start after a log offset; _BEHIND_ALL when there is none."""
        number = bisect_right(self._offsets, commit_log_offset, key=self._start)
        return self._start(self._offsets[number]) if number < len(self._offsets) else _BEHIND_ALL

    def _start(self, queue_offset: int) -> int:
        """Log offset of a message; a filler unit counts as the message after it."""
        for following in range(queue_offset, self._offsets.stop):
            commit_log_offset, size, _ = self._units.unit(following)
            if size != FILLER_SIZE:
                return commit_log_offset
        return _BEHIND_ALL
