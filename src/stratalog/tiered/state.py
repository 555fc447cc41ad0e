"""What a tier holds, as values: segments, queues, index, and the entry that takes one state to the next.

No I/O. `stratalog.tiered.manifest` stores entries and checkpoints, `stratalog.tiered.metadata` translates to upstream's
JSON. All values are immutable; a `TierState` can be shared between threads.
"""

import uuid
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec

from stratalog.layout.record import OFFSETS_END
from stratalog.layout.tier import INDEX_TOPIC, NEVER_WRITTEN, UNIT_SIZE, SegmentType, segment_path

FORMAT_VERSION = 1

# What decoders accept: nothing that could overflow an int64 when two of them are added.
Offset = Annotated[int, msgspec.Meta(ge=0, lt=OFFSETS_END)]
OffsetOrNone = Annotated[int, msgspec.Meta(ge=-1, lt=OFFSETS_END)]
"""-1 = not known."""
Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Time = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Segment(msgspec.Struct, frozen=True):
    """One file of a flat file: `base_offset` = bytes of the flat file before it, `size` = committed bytes in it.

    The file may be longer: bytes after `size` were written by a batch that was not committed, and are never read.
    Begin and end are the smallest and largest store time in it (ms), `NEVER_WRITTEN` for both while it is empty.
    """

    base_offset: Offset
    size: Offset
    begin_timestamp: Time = NEVER_WRITTEN
    end_timestamp: Time = NEVER_WRITTEN

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.size


Segments = tuple[Segment, ...]


class QueueState(msgspec.Struct, frozen=True):
    """A queue in the tier. Readable are the queue offsets [min, end) but for gaps between consume queue segments."""

    topic: str
    queue_id: Count
    topic_id: Int32
    end_queue_offset: Offset
    commit_log_end: Offset
    commit_log: Segments = ()
    consume_queue: Segments = ()
    min_queue_offset: OffsetOrNone = -1
    """First readable queue offset; -1 = not known, the first record in the commit log tells it."""

    @property
    def commit_log_min(self) -> int:
        return self.commit_log[0].base_offset if self.commit_log else 0


class IndexSegment(msgspec.Struct, frozen=True):
    """A compacted index file (upstream's INDEX segment), immutable.

    `exact` says that begin and end are the smallest and largest store time of its items. Files that upstream made are
    named after their creation and may hold older items, and their end may be lost (both known upstream defects).
    `item_count` is -1 while nobody has read the header.
    """

    base_offset: Offset
    size: Offset
    begin_timestamp: Time
    end_timestamp: Time
    item_count: OffsetOrNone = -1
    exact: bool = False


class IndexRun(msgspec.Struct, frozen=True):
    """Index items of one batch, sorted by hash, not compacted yet: an immutable file with an attempt-unique name."""

    path: str
    item_count: Count
    begin_timestamp: Time
    end_timestamp: Time
    crc32: int


class QueueCommit(msgspec.Struct, frozen=True):
    """What a batch adds to one queue. `commit_log` and `consume_queue` describe every segment it wrote to, as they are
    after the batch. `skipped` counts queue offsets that were gone locally before they could be copied: a gap."""

    topic: str
    queue_id: Count
    topic_id: Int32
    from_queue_offset: Offset
    to_queue_offset: Offset
    from_commit_log_offset: Offset
    to_commit_log_offset: Offset
    begin_timestamp: Time
    end_timestamp: Time
    commit_log: Segments
    consume_queue: Segments
    skipped: Offset = 0


PASSED_OVER_MAX, OTHERS = 1000, "others"
"""Queues that are named among those a tier cannot have; the rest is counted under this name."""


class ManifestEntry(msgspec.Struct, frozen=True):
    """One commit: all queues of a micro-batch, or a change of the index. `sequence` and `nonce` are the manifest's."""

    queues: tuple[QueueCommit, ...] = ()
    index_runs: tuple[IndexRun, ...] = ()
    index_segments: tuple[IndexSegment, ...] = ()
    replaced_runs: tuple[str, ...] = ()
    source_from: OffsetOrNone = -1
    source_to: OffsetOrNone = -1
    """Range of the local commit log that the batch covers; -1 = none."""
    passed_over: dict[str, Offset] = {}
    """Messages in that range whose queue a tier cannot have, by topic/queue id."""
    sequence: OffsetOrNone = -1
    nonce: str = msgspec.field(default_factory=lambda: uuid.uuid4().hex)
    version: int = FORMAT_VERSION


class TopicState(msgspec.Struct, frozen=True):
    """`reserve_hours` is the topic's own retention, -1 = the broker's."""

    topic_id: Int32
    reserve_hours: Time = -1


class QueueName(NamedTuple):
    topic: str
    queue_id: int


class TierState(msgspec.Struct, frozen=True):
    """Everything committed, up to and without entry `next_sequence`.

    Invariants: the segments of a flat file are in order and do not overlap; each commit log ends at its queue's
    `commit_log_end`; index files end at `index_end` or before it.
    """

    cluster: str
    broker: str
    next_sequence: int = 0
    source_end: int = -1
    last_topic_id: int = -1
    topics: dict[str, TopicState] = {}
    queues: dict[QueueName, QueueState] = {}
    index_segments: tuple[IndexSegment, ...] = ()
    index_runs: tuple[IndexRun, ...] = ()
    passed_over: dict[str, int] = {}
    """Messages that were not copied because a tier cannot have their queue, by topic/queue id."""

    @property
    def index_end(self) -> int:
        """Flat file offset where the next index file may begin."""
        return max((segment.base_offset + segment.size for segment in self.index_segments), default=0)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, int]:
        """Ids of these topics; new ones get the next free ids, in alphabetical order."""
        wanted = sorted(set(topics))
        new = [topic for topic in wanted if topic not in self.topics]
        ids = {topic: self.topics[topic].topic_id for topic in wanted if topic in self.topics}
        return ids | {topic: self.last_topic_id + 1 + number for number, topic in enumerate(new)}

    def path(self, topic: str, queue_id: int, kind: SegmentType, base_offset: int) -> str:
        """Where a segment of this tier lies below the backend's root."""
        return segment_path(self.cluster, self.broker, topic, queue_id, kind, base_offset)

    def index_path(self, segment: IndexSegment) -> str:
        return self.path(INDEX_TOPIC, 0, SegmentType.INDEX, segment.base_offset)

    def covers(self, entry: ManifestEntry) -> bool:
        """Whether the entry's messages are committed already: then a redo of its batch has nothing to do."""
        return bool(entry.queues) and all(
            (queue := self.queues.get(QueueName(commit.topic, commit.queue_id))) is not None
            and commit.to_queue_offset <= queue.end_queue_offset
            for commit in entry.queues
        )

    def contradiction(self) -> str:
        """Which invariant a state that somebody else wrote breaks; empty when all hold."""
        return next(self._contradictions(), "")

    def _contradictions(self) -> Iterator[str]:
        for name, queue in self.queues.items():
            place = f"queue {name.topic[:80]!r}/{name.queue_id}"
            for what, segments in (("commit log", queue.commit_log), ("consume queue", queue.consume_queue)):
                if any(before.end_offset > after.base_offset for before, after in pairwise(segments)):
                    yield f"{place}: its {what} segments are not in order"
            if queue.commit_log and queue.commit_log[-1].end_offset != queue.commit_log_end:
                yield f"{place}: its commit log does not end at byte {queue.commit_log_end}"
            units = queue.consume_queue
            if any(part % UNIT_SIZE for segment in units for part in (segment.base_offset, segment.size)):
                yield f"{place}: a consume queue segment is cut within a unit"
            if units and units[-1].end_offset != queue.end_queue_offset * UNIT_SIZE:
                yield f"{place}: its consume queue does not end at queue offset {queue.end_queue_offset}"

    def fence(self, entry: ManifestEntry) -> str:
        """Why the entry cannot follow this state; empty when it can."""
        return next(self._broken_fences(entry), "")

    def _broken_fences(self, entry: ManifestEntry) -> Iterator[str]:
        ids: dict[int, str] = {state.topic_id: topic for topic, state in self.topics.items()}
        for commit in entry.queues:
            name = f"queue {commit.topic}/{commit.queue_id}"
            if ids.setdefault(commit.topic_id, commit.topic) != commit.topic:
                yield f"{name}: topic id {commit.topic_id} belongs to {ids[commit.topic_id]}"
            topic = self.topics.get(commit.topic)
            if topic is not None and topic.topic_id != commit.topic_id:
                yield f"{name}: topic id {commit.topic_id}, the tier has {topic.topic_id}"
            queue = self.queues.get(QueueName(commit.topic, commit.queue_id))
            start = queue.end_queue_offset + commit.skipped if queue and queue.consume_queue else None
            if start is not None and start != commit.from_queue_offset:
                yield f"{name} ends at queue offset {start}, the batch begins at {commit.from_queue_offset}"
            if commit.to_queue_offset < commit.from_queue_offset:
                yield f"{name}: the batch ends at queue offset {commit.to_queue_offset}, before it begins"
            log_end = queue.commit_log_end if queue else 0
            if log_end != commit.from_commit_log_offset:
                yield f"{name}: its log ends at byte {log_end}, the batch begins at {commit.from_commit_log_offset}"
            if not _continues(queue.commit_log if queue else (), commit.commit_log, commit.to_commit_log_offset):
                yield f"{name}: commit log segments do not join"
            units_end = commit.to_queue_offset * UNIT_SIZE
            if not _continues(queue.consume_queue if queue else (), commit.consume_queue, units_end):
                yield f"{name}: consume queue segments do not join"
        paths = {run.path for run in self.index_runs}
        for path in entry.replaced_runs:
            if path not in paths:
                yield f"index run {path} was replaced already"
        if any(segment.base_offset < self.index_end for segment in entry.index_segments):
            yield f"an index file before byte {self.index_end}, where the index ends"

    def after(self, entry: ManifestEntry) -> "TierState":
        """The state with the entry applied; the fence holds."""
        queues, topics = dict(self.queues), dict(self.topics)
        for commit in entry.queues:
            name = QueueName(commit.topic, commit.queue_id)
            topics.setdefault(commit.topic, TopicState(commit.topic_id))
            queues[name] = _grown(queues.get(name), commit)
        gone = set(entry.replaced_runs)
        return msgspec.structs.replace(
            self,
            next_sequence=self.next_sequence + 1,
            source_end=max(self.source_end, entry.source_to),
            last_topic_id=max([self.last_topic_id, *(topic.topic_id for topic in topics.values())]),
            topics=topics,
            queues=queues,
            index_segments=self.index_segments + entry.index_segments,
            index_runs=tuple(run for run in self.index_runs if run.path not in gone) + entry.index_runs,
            passed_over=self._passed_over(entry) if entry.source_to > self.source_end else self.passed_over,
        )

    def _passed_over(self, entry: ManifestEntry) -> dict[str, int]:
        counts = dict(self.passed_over)
        for name, count in entry.passed_over.items():
            known = name if name in counts or len(counts) < PASSED_OVER_MAX else OTHERS
            counts[known] = counts.get(known, 0) + count
        return counts


def _grown(queue: QueueState | None, commit: QueueCommit) -> QueueState:
    if queue is None:
        queue = QueueState(commit.topic, commit.queue_id, commit.topic_id, 0, 0)
    is_first = not queue.consume_queue
    return msgspec.structs.replace(
        queue,
        end_queue_offset=commit.to_queue_offset,
        commit_log_end=commit.to_commit_log_offset,
        commit_log=_joined(queue.commit_log, commit.commit_log),
        consume_queue=_joined(queue.consume_queue, commit.consume_queue),
        min_queue_offset=commit.from_queue_offset if is_first else queue.min_queue_offset,
    )


def _joined(before: Segments, written: Segments) -> Segments:
    """Segments after a batch: the first it wrote to may be the last there was."""
    if before and written and before[-1].base_offset == written[0].base_offset:
        before = before[:-1]
    return before + written


def _continues(before: Segments, written: Segments, end: int) -> bool:
    """Whether a batch's segments follow the ones there are, join each other and end where the batch ends."""
    if not written:
        return True
    if before and written[0].base_offset < before[-1].end_offset:
        last = before[-1]
        if written[0].base_offset != last.base_offset or written[0].size < last.size:
            return False
    joins = all(a.end_offset == b.base_offset for a, b in pairwise(written))
    return joins and written[-1].end_offset == end
