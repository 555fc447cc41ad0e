"""What records, queue units and neighbours say about where each message belongs.

No checksum covers a record's queue, queue offset and flags (unless it has a record CRC), and none covers a queue unit.
Three sources agree in a store that is whole: the record's own fields; the unit of that queue offset, which leads to the
record; and the records before and after it in the queue, whose offsets are one less and one more. Where one of them
differs, the others outvote it. Each record and each unit is looked at once.
"""

import contextlib
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, IllegalMessage, command
from stratalog.layout.batch import INNER_BASE, batch_size_of, inner_count, is_inner_batch
from stratalog.layout.light import LIGHT_QUEUE_ID, MULTI_DISPATCH, Place, is_light, light_places
from stratalog.layout.message import (
    HEAD,
    LOST_FLAG,
    MAGIC_V2,
    TOPIC_LENGTH_V1,
    Record,
    decode_record,
    queue_offset_limit,
)
from stratalog.layout.names import BATCH_CONSUME_QUEUE, COMMIT_LOG, CONSUME_QUEUE, is_topic, offset_name, offset_of
from stratalog.layout.properties import CRC_PROPERTY_SIZE, find_property, is_overwritten
from stratalog.layout.queue import BATCH_UNIT, LOST_TAGS_CODE, UNIT
from stratalog.layout.recordcrc import CRC_LEAD
from stratalog.layout.sysflag import HOSTS_MASK, SysFlag, enters_queue
from stratalog.store.disk import Disk, MappedFile, queue_directories
from stratalog.store.dispatch import may_be_lost
from stratalog.store.evidence import indexed_end
from stratalog.store.queue_begin import (
    ONLY_UNITS_TELL,
    QUEUE_LAYOUTS,
    LiveUnit,
    QueueBegin,
    QueueKey,
    first_units,
    follow_live,
    leads_to_first,
    live_begins,
    may_lead_to_deleted,
    unit_before,
    written_units,
)
from stratalog.store.queue_set import has_light_queues
from stratalog.store.sizes import tree_of
from stratalog.store.snapshot import noted_begins, sealed_ends
from stratalog.store.topics import Topics
from stratalog.tools.batches import contradiction_of
from stratalog.tools.survey import FileSurvey
from stratalog.tools.verify_files import log_files, was_closed
from stratalog.tools.verify_report import Unreadable

Row = tuple[int, int, int, int]
"""Log offset and size of a record, its queue offset and the one after its last."""
_GATHER_COUNT = 1 << 14
_LIGHT = MULTI_DISPATCH.encode()
_RECORD_WEIGHT, _UNIT_WEIGHT, _CRC_WEIGHT, _PLACEHOLDER_LESS = 4, 8, 1 << 20, 2
"""What a record's own field counts, a unit that agrees, and a record CRC. One more counts for a direct neighbour. What
an earlier repair made counts less: of it and a message that contradict each other the message stays."""
_MISSED_MIN, _MISSED_SHARE_MIN = 4, 1 / 6
"""From how many units, and what share of its records, that find other records a log file is another store's."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a queue unit (or the property of a batch) says of the record at a log offset."""

    topic: str
    queue_id: int
    queue_offset: int
    size: int
    batch_size: int = 0
    trust: tuple[int, int] = field(default=(0, 0), compare=False)
    """Units that find their message, less those that find another one, in its file and in its queue."""

    @property
    def key(self) -> QueueKey:
        return self.topic, self.queue_id

    @property
    def end(self) -> int:
        return self.queue_offset + (self.batch_size or 1)


class QueueEvidence:
    """The whole records of one queue in the log's order, and what its units say."""

    def __init__(self, key: QueueKey, *, is_batch: bool = False) -> None:
        self.key = key
        self.is_batch = is_batch
        self._begin: QueueBegin | None = None
        self._taken = array("q")
        self.offsets = self.sizes = self.numbers = self.ends = np.zeros(0, np.int64)
        self.certain = self.supported = self.repaired = np.zeros(0, np.bool_)
        """Records with a record CRC, which holds; that their own unit leads to; that an earlier repair made."""
        self.has_units = False
        self.units_end = 0
        """Queue offset after the last one that has a unit."""
        self.gone_end = 0
        """Queue offset after the last one whose unit leads to before the log's begin and joins another's."""
        self.units_begin = -1
        """Log offset that the first unit of a message leads to."""
        self.appended: dict[int, int] = {}
        """Log offsets of a light queue's messages that stand at these queue offsets, and name later ones."""
        self.lost_numbers: list[tuple[int, int]] = []
        """Offsets [first, end) of units that stand for messages lost before."""

    def add(self, offset: int, size: int, number: int, end: int, certain: bool, repaired: bool) -> None:
        self._taken.extend((offset, size, number, end, certain, repaired))

    def finish(self) -> None:
        """Call it when all records were added."""
        columns = np.array(self._taken, np.int64).reshape(-1, 6).T
        self._taken = array("q")
        self.offsets, self.sizes, self.numbers, self.ends = (np.ascontiguousarray(column) for column in columns[:4])
        self.certain, self.repaired = columns[4] != 0, columns[5] != 0
        self.supported = np.zeros(len(self.offsets), np.bool_)

    def remove(self, places: list[int]) -> None:
        for name in ("offsets", "sizes", "numbers", "ends", "certain", "supported", "repaired"):
            setattr(self, name, np.delete(getattr(self, name), places))

    def begin_at(self, begin: QueueBegin) -> dict[int, int]:
        """Remove the records of a topic that was deleted before the queue began there; returns offsets and sizes."""
        self._begin = begin
        is_deleted = (self.offsets < begin.commit_log_offset) & (self.numbers >= begin.queue_offset)
        found = dict(zip(self.offsets[is_deleted].tolist(), self.sizes[is_deleted].tolist(), strict=True))
        self.remove(np.flatnonzero(is_deleted).tolist())
        return found

    def row(self, at: int) -> Row:
        return int(self.offsets[at]), int(self.sizes[at]), int(self.numbers[at]), int(self.ends[at])

    def exchange(self, out: Row, into: Row) -> None:
        """Remove one record, and take another."""
        self.remove(np.flatnonzero(self.offsets == out[0]).tolist())
        self.insert([into])

    def insert(self, records: list[Row]) -> None:
        added = np.array(sorted(records), np.int64).reshape(-1, 4)
        at = np.searchsorted(self.offsets, added[:, 0])
        for number, name in enumerate(("offsets", "sizes", "numbers", "ends")):
            setattr(self, name, np.insert(getattr(self, name), at, added[:, number]))
        self.certain, self.supported = np.insert(self.certain, at, False), np.insert(self.supported, at, True)
        self.repaired = np.insert(self.repaired, at, False)

    def room_at(self, offset: int) -> tuple[int, int | None]:
        """Queue offsets [low, high) that a record at a log offset can have; high is None where none follows."""
        at = int(np.searchsorted(self.offsets, offset))
        low = int(self.ends[at - 1]) if at else 0
        high = int(self.numbers[at]) if at < len(self.numbers) else None
        if self._begin and offset < self._begin.commit_log_offset:  # only of what was deleted
            high = self._begin.queue_offset if high is None else min(high, self._begin.queue_offset)
        return low, high

    def takes(self, offset: int, claim: Claim) -> bool:
        """Whether a record at that log offset fits in with its neighbours as the claim says."""
        low, high = self.room_at(offset)
        return low <= claim.queue_offset and (high is None or claim.end <= high)

    def outvoted(self, *, by_units: bool = True) -> list[int]:
        """Positions of the records that do not fit in: the others form the heaviest rising sequence, without a jump
        that no lost messages explain. Units count only `by_units`."""
        everything, weights = np.arange(len(self.numbers)), self._weights(by_units=by_units)
        chosen = everything
        if not np.all(self.numbers[1:] >= self.ends[:-1]):
            chosen = np.array(_heaviest(self.numbers.tolist(), self.ends.tolist(), weights.tolist()))
        if jumps := self._jumps(chosen):
            chosen = max(np.split(chosen, jumps), key=lambda piece: int(weights[piece].sum()))
        found: list[int] = np.setdiff1d(everything, chosen).tolist()
        return found

    def _jumps(self, chosen: NDArray[np.int64]) -> list[int]:
        """Where one of the chosen records is further ahead of the one before than the log between them has room for.
        Units that lead to both say that it is true."""
        ahead, lost_sizes = self.numbers[chosen[1:]] - self.ends[chosen[:-1]], np.diff(self.offsets[chosen])
        is_told = self.supported[chosen] | self.certain[chosen]
        return [
            at + 1 for at in np.flatnonzero((ahead > 0) & ~(is_told[1:] & is_told[:-1])).tolist()
            if not may_be_lost(int(ahead[at]), int(lost_sizes[at]), in_batches=self.is_batch)
        ]  # fmt: skip

    def _weights(self, *, by_units: bool) -> NDArray[np.int64]:
        found: NDArray[np.int64] = _RECORD_WEIGHT + _UNIT_WEIGHT * (self.supported & by_units)
        found += _CRC_WEIGHT * self.certain
        found -= _PLACEHOLDER_LESS * self.repaired
        return found

    def contested(self, outvoted: list[int], *, by_units: bool) -> dict[int, int]:
        """Those of the outvoted records that only one other keeps out, with no more evidence, and that one: either can
        be wrong."""
        kept = np.ones(len(self.numbers), np.bool_)
        kept[outvoted] = False
        chosen, weights = np.flatnonzero(kept), self._weights(by_units=by_units)
        before = np.searchsorted(chosen, outvoted)
        first = np.minimum(before, np.searchsorted(self.ends[chosen], self.numbers[outvoted], "right"))
        end = np.maximum(before, np.searchsorted(self.numbers[chosen], self.ends[outvoted], "left"))
        return {
            at: int(chosen[low]) for at, low, high in zip(outvoted, first.tolist(), end.tolist(), strict=True)
            if high - low == 1 and weights[chosen[low]] <= weights[at]
        }  # fmt: skip


def _heaviest(numbers: list[int], ends: list[int], weights: list[int]) -> list[int]:
    """Positions of the records of the heaviest sequence in which each begins at or after the end of the one before."""
    order = sorted(set(ends))
    rank = {end: number for number, end in enumerate(order, 1)}
    tree = [(0, 1)] * (len(order) + 1)  # by rank: weight of the heaviest sequence that ends there or before, and
    exact: dict[int, tuple[int, int]] = {}  # its last record, negative: of two that weigh the same the first is taken
    before = [1] * len(numbers)
    best = (0, 0, 1)
    for at, (number, end, weight) in enumerate(zip(numbers, ends, weights, strict=True)):
        low, found = bisect_left(order, number + 1), (0, 1)
        while low:
            found = max(found, tree[low])
            low &= low - 1
        beside = exact.get(number, (-1, 1))
        if beside[0] + 1 >= found[0] and beside[0] >= 0:
            found = beside[0] + 1, beside[1]
        score = found[0] + weight
        before[at] = found[1]
        exact[end] = max(exact.get(end, (-1, 1)), (score, -at))
        place = rank[end]
        while place <= len(order):
            tree[place] = max(tree[place], (score, -at))
            place += place & -place
        best = max(best, (score, -end, -at))
    chosen, last = [], best[2]
    while last <= 0:
        chosen.append(-last)
        last = before[-last]
    return chosen[::-1]


class Evidence:
    """Takes the log file by file, then the queues; `claims` are then what units say that no whole record agrees to."""

    def __init__(
        self, root: Path, settings: StoreSettings, disk: Disk, *, batch_topics: Collection[str] = (),
        has_light: bool = False,
    ) -> None:  # fmt: skip
        """`batch_topics` are of type BatchCQ, and the store has light queues, of which only the log says so."""
        self._root, self._disk, self.file_size = root, disk, settings.commit_log_file_size
        self._batch_topics = {*Topics(root, disk).batch_topics, *batch_topics}
        self._has_light_queues = has_light or has_light_queues(root, disk, settings)
        self.queues: dict[QueueKey, QueueEvidence] = {}
        self.hidden: dict[int, int] = {}
        """Size by log offset of the records that enter no queue but have a queue offset."""
        self.begins: dict[QueueKey, QueueBegin] = {}
        """Where the messages of each queue begin in the log."""
        self._deleted: dict[int, int] = {}
        """Size by log offset of the records of topics that were deleted and created again."""
        self.claims: dict[int, list[Claim]] = defaultdict(list)
        self.light_claims: dict[int, list[Claim]] = defaultdict(list)
        self.contradicting: set[int] = set()
        """Log offsets of the records of batch topics that contradict themselves."""
        self.outside: dict[str, list[int]] = defaultdict(list)
        """Log offsets of batches by their topic, if that is not of type BatchCQ."""
        self.gone_count = 0
        """Units of messages before the log's first file."""
        self.led_to: Counter[int] = Counter()
        """Units that lead into whole records of each file of the log, by its number."""
        self.agreed_in: Counter[int] = Counter()
        """Those of them that find a message of their queue there."""
        self.fitting_in: Counter[int] = Counter()
        """Those of them that lead to a record of their size, be it another queue's."""
        self.missed_in: dict[QueueKey, Counter[int]] = defaultdict(Counter)
        """By queue that agrees elsewhere, how many of its units lead into a record of another one."""
        self.queued_in: Counter[int] = Counter()
        """Records of each file that are in a queue that has units, but for those that an earlier repair made."""
        self._log_begin = 0
        self._doubled: NDArray[np.int64] | None = None
        """See `doubled_offsets`, once they were asked for."""
        self._repaired: list[tuple[int, int]] = []
        """Log offsets [begin, end) of the records that an earlier repair made."""
        self._overwritten: list[int] = []
        """Log offsets of records that named light queues, with properties that are partly overwritten."""
        self._names: dict[bytes, str] = {}
        self._sent_to = set[str]()
        """Topics of records, damaged ones too, but for those that an earlier repair made."""
        self._named = set[str]()
        """Light queues that records name."""
        self._unmatched = set[str]()
        """Light queues with a unit that leads to a record that is not theirs, or not at that queue offset."""
        self._offsets = self._sizes = np.empty(0, np.int64)
        """Of all whole records, in the log's order."""

    def queue(self, topic: str, queue_id: int) -> QueueEvidence:
        found = self.queues.get((topic, queue_id))
        if found is None:
            is_batch = topic in self._batch_topics
            found = self.queues[topic, queue_id] = QueueEvidence((topic, queue_id), is_batch=is_batch)
        return found

    @property
    def repaired_count(self) -> int:
        """Records that earlier repairs made."""
        return len(self._repaired)

    def add_repaired(self, ranges: list[tuple[int, int]]) -> None:
        """Log offsets [begin, end) of further such records."""
        self._repaired = sorted({*self._repaired, *ranges})

    def has_directory(self, key: QueueKey) -> bool:
        """Whether there is a directory for a queue's units, though its files may be lost."""
        trees = (CONSUME_QUEUE, BATCH_CONSUME_QUEUE)
        return is_topic(key[0]) and any((self._root / tree / key[0] / str(key[1])).is_dir() for tree in trees)

    def older_file(self, queue: "QueueEvidence", commit_log_offset: int) -> str:
        """A file of a queue of which all units lead to before a log offset, though those of another one lead to after
        it; empty when there is none."""
        tree = BATCH_CONSUME_QUEUE if queue.is_batch else CONSUME_QUEUE
        directory, layout = self._root / tree / queue.key[0] / str(queue.key[1]), QUEUE_LAYOUTS[tree]
        found = {name: offset_of(name) for name in self._disk.files(directory)}
        starts = [name for name, start in found.items() if start is not None and not start % layout.size]
        units = written_units(directory, layout, self._disk)
        ends = {name: int(offsets.max(initial=-1)) for name, (_, offsets, *_) in zip(starts, units, strict=False)}
        if max(ends.values(), default=-1) < commit_log_offset:
            return ""
        return next(
            (
                f"{tree}/{queue.key[0]}/{queue.key[1]}/{name}"
                for name, end in ends.items()
                if 0 <= end < commit_log_offset
            ),
            "",
        )

    def has_tree(self, queue: "QueueEvidence") -> bool:
        """Whether there is the directory that a queue's own directory lies below, with files that belong there: it
        stays when topics are deleted. One that is empty lost its queues, if it had any at the last clean stop."""
        tree = BATCH_CONSUME_QUEUE if queue.is_batch else CONSUME_QUEUE
        files = (
            directory / name
            for _, _, directory in queue_directories(self._root, tree, self._disk)
            for name in islice(self._disk.files(directory), 1)
        )
        shown = {tree_of(file, self._disk) for file in files} - {None}
        if not shown and not self._disk.directories(self._root / tree):
            sealed = sealed_ends(self._root, self._disk).keys() & self.queues.keys()
            return (self._root / tree).is_dir() and all(self.queues[key].is_batch != queue.is_batch for key in sealed)
        return (self._root / tree).is_dir() and (not shown or tree in shown)

    def is_deleted(self, queue: QueueEvidence) -> bool:
        """Whether a queue without a directory had messages of several topics of that name, which were all deleted:
        other queues have directories. A single record that does not fit in is a changed one, unless it begins again at
        0."""
        if self.has_directory(queue.key) or not any(q.has_units for q in self.queues.values()):
            return False
        return bool(np.any(queue.numbers[1:] == 0)) or len(queue.outvoted()) > 1

    def is_known(self, key: QueueKey) -> bool:
        """Whether a queue has records that can be read, or units."""
        found = self.queues.get(key)
        return found is not None and (len(found.offsets) > 0 or found.has_units)

    @property
    def has_deleted(self) -> bool:
        """Whether the log has messages of a topic that was deleted and created again."""
        return bool(self._deleted) or any(np.any(queue.numbers[1:] == 0) for queue in self.queues.values())

    # -- records -----------------------------------------------------------------------------------------------------

    def take(self, survey: FileSurvey) -> None:
        """The whole records of the next file."""
        if survey.file is None:
            return
        view, data = survey.file.view, survey.file.map
        for first in range(0, len(survey.positions), _GATHER_COUNT):
            positions = survey.positions[first : first + _GATHER_COUNT]
            sizes = survey.sizes[first : first + _GATHER_COUNT].astype(np.int64)
            heads = view[positions[:, None] + np.arange(HEAD.size)].view(HEAD.dtype)[:, 0]
            tails = np.maximum(positions + sizes - CRC_PROPERTY_SIZE, 0)[:, None] + np.arange(len(CRC_LEAD))
            certain = (view[tails] == np.frombuffer(CRC_LEAD, np.uint8)).all(axis=1)
            is_ours = heads["flag"] == LOST_FLAG
            begins = survey.base_offset + positions[is_ours]
            self._repaired += zip(begins.tolist(), (begins + sizes[is_ours]).tolist(), strict=True)
            columns = (heads[name].tolist() for name in ("queue_id", "queue_offset", "sys_flag", "magic", "body_size"))
            for position, size, *flags_and_head in zip(
                positions.tolist(), sizes.tolist(), certain.tolist(), is_ours.tolist(), *columns, strict=True
            ):
                self._take_record(data, position, size, survey.base_offset + position, *flags_and_head)

    def _take_record(
        self, data: Any, position: int, size: int, offset: int, is_certain: bool, is_ours: bool, queue_id: int,
        number: int, sys_flag: int, magic: int, body_size: int,
    ) -> None:  # fmt: skip
        if not enters_queue(sys_flag):
            self.hidden[offset] = size
            return
        if sys_flag & HOSTS_MASK or magic == MAGIC_V2:
            stored = decode_record(data[position : position + size], verify=False).topic
        else:
            at = position + HEAD.size + body_size
            stored = data[at + TOPIC_LENGTH_V1.size : at + TOPIC_LENGTH_V1.size + data[at]]
        topic = self._names.get(stored)
        if topic is None:
            topic = self._names[stored] = stored.decode("utf-8", "surrogateescape")
        if not is_ours:
            self._sent_to.add(topic)
        queue, end = self.queue(topic, queue_id), number + 1
        if queue.is_batch:
            record = decode_record(data[position : position + size], verify=False)
            end = number + self._take_batch(record, topic, offset)
        else:
            if sys_flag & SysFlag.INNER_BATCH:
                record = decode_record(data[position : position + size], verify=False)
                if is_inner_batch(sys_flag, record.properties):
                    self.outside[topic].append(offset)
            if self._has_light_queues and _LIGHT in data[position : position + size]:
                record = decode_record(data[position : position + size], verify=False)
                if is_overwritten(record.properties):
                    self._overwritten.append(offset)
                for name, place in light_places(topic, record.properties, offset)[0]:
                    self.queue(name, LIGHT_QUEUE_ID).add(offset, size, place, place + 1, is_certain, is_ours)
                    self._named.add(name)
        queue.add(offset, size, number, end, is_certain, is_ours)

    def _take_batch(self, record: Record, topic: str, offset: int) -> int:
        """How many queue offsets it takes; what its property says of its place is a claim if the head says
        otherwise."""
        if contradiction_of(record):
            self.contradicting.add(offset)
        base = find_property(record.properties, INNER_BASE.encode()) or ""
        if base.isascii() and base.isdigit() and len(base) < 19 and int(base) != record.queue_offset:
            with contextlib.suppress(IllegalMessage):
                count = inner_count(record.properties)
                self.claims[offset].append(Claim(topic, record.queue_id, int(base), record.total_size, count))
        return batch_size_of(record.sys_flag, record.properties, record.queue_offset)[0]

    # -- units -------------------------------------------------------------------------------------------------------

    def take_units(self, log_begin: int) -> None:
        """Compare the units of all queues with the records. Call it when the whole log was taken."""
        for queue in self.queues.values():
            queue.finish()
        queues = self.queues.values()
        offsets = np.concatenate([np.array([*self.hidden], np.int64), *(queue.offsets for queue in queues)])
        sizes = np.concatenate([np.array([*self.hidden.values()], np.int64), *(queue.sizes for queue in queues)])
        numbers = np.concatenate([np.full(len(self.hidden), -1, np.int64), *(queue.numbers for queue in queues)])
        self._offsets, first = np.unique(offsets, return_index=True)
        self._sizes, self._numbers = sizes[first], numbers[first]
        self._log_begin = log_begin
        self.begins = queue_begins(self._root, self._disk)
        for key, begin in self.begins.items():
            self._deleted |= self.queue(*key).begin_at(begin)
        for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)):
            for topic, queue_id, directory in queue_directories(self._root, tree, self._disk):
                if (topic in self._batch_topics) == (layout is BATCH_UNIT):
                    pieces = list(written_units(directory, layout, self._disk))
                    if pieces:
                        files = np.repeat(np.arange(len(pieces)), [len(piece[0]) for piece in pieces])
                        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
                        self._compare(self.queue(topic, queue_id), log_begin, files, *columns)
        # Another queue's unit leads to it: it is no message of a deleted topic.
        self.hidden |= {offset: size for offset, size in self._deleted.items() if offset in self.claims}
        for claims in self.claims.values():  # a record stands in one queue
            claims.sort(key=lambda claim: claim.trust, reverse=True)
        for queue in self.queues.values():
            if queue.has_units and not is_light(queue.key[0]):
                _count_files(self.queued_in, queue.offsets[~self.is_repaired(queue.offsets)], self.file_size)

    def _compare(
        self, queue: QueueEvidence, log_begin: int, files: NDArray[np.int64], numbers: NDArray[np.int64],
        offsets: NDArray[np.int64], sizes: NDArray[np.int64], counts: NDArray[np.int64],
        tags_codes: NDArray[np.int64],
    ) -> None:  # fmt: skip
        if (is_copied := self._are_copied(queue, files, numbers, offsets, counts)).any():
            files, numbers, offsets, sizes, counts, tags_codes = (
                column[~is_copied] for column in (files, numbers, offsets, sizes, counts, tags_codes)
            )
        is_lost = (tags_codes == LOST_TAGS_CODE) | self.is_repaired(offsets)
        ends = numbers + np.maximum(counts, 1)
        queue.units_end = int(ends.max(initial=0))
        is_gone = ~is_lost & (offsets < log_begin)
        queue.gone_end = _end_of_joined(numbers[is_gone], ends[is_gone])
        # Those that follow expired messages were lost; others say where a queue of expired messages ends.
        is_in_log = is_lost & ((offsets + sizes > log_begin + 1) | ((numbers >= queue.gone_end) & (queue.gone_end > 0)))
        queue.lost_numbers = list(zip(numbers[is_in_log].tolist(), ends[is_in_log].tolist(), strict=True))
        self.gone_count += int(np.maximum(counts, 1)[is_gone].sum()) if not is_light(queue.key[0]) else 0
        self._support(queue, *(column[is_lost & ~is_gone] for column in (numbers, offsets, counts)))
        mine = ~is_lost & ~is_gone
        queue.has_units |= bool(mine.any())
        queue.units_begin = int(offsets[mine][0]) if mine.any() else -1
        numbers, offsets, sizes, counts, files = (
            column[mine] for column in (numbers, offsets, sizes, counts, files)
        )  # fmt: skip
        agrees = self._support(queue, numbers, offsets, counts)
        if is_light(queue.key[0]):
            is_strange = ~agrees & np.isin(offsets, self._offsets)
            self._unmatched |= {queue.key[0]} if is_strange.any() else set()
        else:
            _count_files(self.led_to, offsets[self._is_covered(offsets)], self.file_size)
            _count_files(self.fitting_in, offsets[self._has_size(offsets, sizes)], self.file_size)
            _count_files(self.agreed_in, offsets[agrees | np.isin(offsets, queue.offsets)], self.file_size)
        # A file that leads to other records, or into them, more often than to its own is another queue's or another
        # store's; so is a queue that finds none of its messages.
        is_own = agrees
        if is_light(queue.key[0]):
            is_appended = are_appended(queue.offsets, queue.numbers, numbers, offsets)
            queue.appended = dict(zip(offsets[is_appended].tolist(), numbers[is_appended].tolist(), strict=True))
            is_own = agrees | is_appended
        is_other = ~(is_own & self._has_size(offsets, sizes)) & self._is_covered(offsets)
        file_count = int(files.max(initial=0)) + 1
        agreeing, other = (np.bincount(files[mask], minlength=file_count) for mask in (is_own & ~is_other, is_other))
        if agreeing.any():  # elsewhere; what finds its own number is another queue's, what its own queue is shifted
            is_missed = is_other & ~np.isin(offsets, queue.offsets) & ~self._has_number(offsets, numbers)
            _count_files(self.missed_in[queue.key], offsets[is_missed], self.file_size)
        trusted = ~agrees & (other <= np.maximum(agreeing, 1))[files]
        trusted &= bool(agreeing.any() or other.sum() <= 1)
        claims = self.light_claims if is_light(queue.key[0]) else self.claims
        trusted &= not (is_light(queue.key[0]) and self._are_of_another(queue, numbers, offsets, sizes, agrees))
        if log_begin and not queue.is_batch:  # a batch's unit says its queue offset, others say it by the file's name
            own = np.isin(offsets, queue.offsets[queue.numbers <= queue_offset_limit(queue.offsets)])
            trusted &= ~own | (agreeing > 0)[files]  # where no unit of a file agrees, the record has the say
        trust = agreeing - other
        for number, offset, size, count, file in zip(
            *(column[trusted].tolist() for column in (numbers, offsets, sizes, counts, files)), strict=True
        ):
            claim = Claim(*queue.key, number, size, count, (int(trust[file]), int(trust.sum())))
            claims[offset].append(claim)

    def _are_copied(
        self, queue: QueueEvidence, files: NDArray[np.int64], numbers: NDArray[np.int64], offsets: NDArray[np.int64],
        counts: NDArray[np.int64],
    ) -> NDArray[np.bool_]:  # fmt: skip
        """Mask of the units that were copied from another queue: in their file no unit matches its record, and two or
        more point where another queue's units do. Light queues share records, and are left out."""
        agreeing = np.unique(files[self._support(queue, numbers, offsets, counts)])
        is_strange = ~np.isin(files, agreeing)
        if is_light(queue.key[0]) or not (is_strange & self._is_covered(offsets)).any():
            return np.zeros(len(files), np.bool_)
        if self._doubled is None:
            self._doubled = doubled_offsets(self._root, self._disk)
        doubled = np.bincount(files[np.isin(offsets, self._doubled)], minlength=int(files.max()) + 1)
        copied: NDArray[np.bool_] = is_strange & (doubled[files] > 1)
        return copied

    def _are_of_another(
        self, queue: QueueEvidence, numbers: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64],
        agrees: NDArray[np.bool_],
    ) -> bool:  # fmt: skip
        """Whether the units of a light queue are another queue's: one wrong byte in a record explains that a unit leads
        to it, or no longer does, but not that they find two messages elsewhere."""
        is_named = np.isin(offsets, queue.offsets)
        foreign = offsets[~is_named & self._has_size(offsets, sizes) & ~np.isin(offsets, self._overwritten)]
        refuted = queue.offsets[~queue.supported & np.isin(queue.numbers, numbers)] if len(foreign) else foreign
        return len({*foreign.tolist(), *refuted.tolist()}) > 1

    def take_topic(self, topic: str) -> None:
        """Of a damaged record."""
        self._sent_to.add(topic)

    def refuse_both_ways(self, *, changes_log: bool) -> None:
        """Raise `CorruptData` for a light queue to which messages were sent and that others name, where a record may be
        damaged. Call it when damaged records were taken, too."""
        names = sorted(self._named & self._sent_to)
        if names and (changes_log or not self._unmatched.isdisjoint(names)):
            raise CorruptData(
                f"messages were sent to {names[0]} and others name it in {MULTI_DISPATCH}: RocketMQ counts the offsets "
                "of both from 0, so that nobody can tell which one a damaged record had. Nothing was changed; restore "
                f"the damaged files from a copy. {command('get', self._root, names[0])} reads what is left",
                path=str(self._root / COMMIT_LOG),
            )

    def refuse_foreign(self, *, but_exchanged: bool = False) -> None:
        """Raise `CorruptData` for a log file in which no queue finds a message, or several queues find other records in
        the places of theirs: nobody can tell which is right. `but_exchanged` passes over a file in which most units
        find a record of their size: the queues were exchanged. Call it after `take_units`."""
        for number in sorted({*self.led_to, *chain(*self.missed_in.values())}):
            led, queued = self.led_to[number], self.queued_in[number]
            is_of_log = 2 * self.fitting_in[number] > led
            if but_exchanged and is_of_log:
                continue
            missed = [count for counts in self.missed_in.values() if (count := counts[number])]
            is_shifted = len(missed) > 1 and sum(missed) >= max(_MISSED_MIN, queued * _MISSED_SHARE_MIN)
            if (led > 1 and queued > 1 and not self.agreed_in[number]) or is_shifted:
                raise CorruptData(
                    f"{sum(missed) if is_shifted else led:,} queue units that point into this file do not match its "
                    "records: the file is of another store, or files or directories of queues were exchanged. Put the "
                    f"right file back; if it is the queues, {self._exchanged_step(is_of_log=is_of_log)}",
                    path=str(self._root / COMMIT_LOG / offset_name(number * self.file_size)),
                )

    def _exchanged_step(self, *, is_of_log: bool) -> str:
        """What to do about exchanged queues; `rebuild` refuses a log file of another store."""
        if self.has_deleted or self._log_begin:  # only units tell where empty queues end
            return f"exchange them back. {ONLY_UNITS_TELL}"
        trees = [f"{tree}/" for tree in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE) if (self._root / tree).is_dir()]
        step = command("rebuild", self._root)
        step = f"run {step}, which" if is_of_log else f"move {' and '.join(trees)} away: {step}"
        return f"exchange them back, or {step} builds the queues again from the log"

    @staticmethod
    def _support(
        queue: QueueEvidence, numbers: NDArray[np.int64], offsets: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Note which records units lead to, as they say themselves; returns which of the units that are."""
        at = np.searchsorted(queue.offsets, offsets)
        agrees: NDArray[np.bool_] = at < len(queue.offsets)
        inside = at[agrees]
        same = (queue.offsets[inside] == offsets[agrees]) & (queue.numbers[inside] == numbers[agrees])
        agrees[agrees] = same & (queue.ends[inside] - queue.numbers[inside] == np.maximum(counts[agrees], 1))
        queue.supported[at[agrees]] = True
        return agrees

    def _is_covered(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether log offsets lie in whole records."""
        at = np.searchsorted(self._offsets, offsets, "right") - 1
        found: NDArray[np.bool_] = at >= 0
        found[found] = offsets[found] < (self._offsets + self._sizes)[at[found]]
        return found

    def _has_size(self, offsets: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the whole records that begin at log offsets have these sizes."""
        at = np.searchsorted(self._offsets, offsets)
        found: NDArray[np.bool_] = at < len(self._offsets)
        inside = at[found]
        found[found] = (self._offsets[inside] == offsets[found]) & (self._sizes[inside] == sizes[found])
        return found

    def _has_number(self, offsets: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the whole records that begin at log offsets have these queue offsets, in any queue."""
        at = np.minimum(np.searchsorted(self._offsets, offsets), len(self._offsets) - 1)
        found: NDArray[np.bool_] = (self._offsets[at] == offsets) & (self._numbers[at] == numbers)
        return found

    def is_repaired(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether units lead to what a repair made. Where it did not come to build the queues again they still lead to
        what stood there before, and say only which queue offsets were given."""
        begins, ends = np.array(self._repaired, np.int64).reshape(-1, 2).T
        at = np.searchsorted(begins, offsets, "right") - 1
        found: NDArray[np.bool_] = (at >= 0) & (offsets < ends[at]) if len(begins) else np.zeros(len(offsets), np.bool_)
        return found

    def places_at(self, offset: int) -> tuple[Place, ...]:
        """Where units say that the record at a log offset stands in light queues."""
        return tuple(sorted({(claim.topic, claim.queue_offset) for claim in self.light_claims.get(offset, [])}))


def doubled_offsets(root: Path, disk: Disk) -> NDArray[np.int64]:
    """Log offsets that units of two or more queues point to, except light queues. A message is in one queue: two that
    share several are a queue and a copy of its file."""
    led: dict[QueueKey, list[NDArray[np.int64]]] = defaultdict(list)
    for tree, layout in QUEUE_LAYOUTS.items():
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            for _, offsets, *_, tags_codes in written_units(directory, layout, disk) if not is_light(topic) else ():
                led[topic, queue_id].append(offsets[tags_codes != LOST_TAGS_CODE])
    found, counts = np.unique(
        np.concatenate([np.empty(0, np.int64), *(np.unique(np.concatenate(pieces)) for pieces in led.values())]),
        return_counts=True,
    )
    return found[counts > 1]


def queue_begins(root: Path, disk: Disk) -> dict[QueueKey, QueueBegin]:
    """Where the messages of each queue begin in the log: by its first units, see `live_begins`, or as noted."""
    found, doubtful = dict[QueueKey, QueueBegin](), dict[QueueKey, list[LiveUnit]]()
    sound = dict[QueueKey, list[LiveUnit]]()
    starts = map(offset_of, disk.files(root / COMMIT_LOG))
    log_begin = min((start for start in starts if start is not None), default=0)
    with log_files(root, disk) as log:
        log_end = int(log[-1].path.name) + log[-1].size if log else 0
        record_in = partial(_record_in, log)
        for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)):
            for topic, queue_id, directory in queue_directories(root, tree, disk):
                with contextlib.suppress(Unreadable):
                    units = first_units(directory, layout, log_begin, disk)
                    before = unit_before(directory, layout, units[0], disk) if units and log_begin else None
                    log_range = log_begin, log_end
                    if units and leads_to_first(units[0], (topic, queue_id), before, log_range, record_in):
                        found[topic, queue_id] = QueueBegin(*units[0][:2])
                        sound[topic, queue_id] = units
                    else:
                        doubtful[topic, queue_id] = units
        doubtful |= {key: sound[key] for key in may_lead_to_deleted(sound, log, record_in)}
        doubtful |= {key: sound[key] for key in follow_live(sound, log, root, disk, record_in)}
        sealed, reached = None, 0
        with contextlib.suppress(Unreadable):  # the report has it
            sealed = sealed_ends(root, disk) if doubtful and was_closed(root, disk) else None
            reached = indexed_end(root, disk) if doubtful else 0
        found |= live_begins(doubtful, sound, log, root, disk, sealed=sealed, indexed_end=reached)
    return found | noted_begins(root, disk)


def _record_in(log: Sequence[MappedFile], commit_log_offset: int) -> Record | None:
    """The whole record that begins at a log offset."""
    at = bisect_right(log, commit_log_offset, key=lambda file: int(file.path.name)) - 1
    position = commit_log_offset - int(log[at].path.name) if at >= 0 else -1
    return read_record(log[at].view.data, position) if 0 <= position <= log[at].size - HEAD.size else None


def are_appended(
    records: NDArray[np.int64], named: NDArray[np.int64], numbers: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Mask of the units (queue offsets `numbers`, log offsets `offsets`) of a light queue that lead to messages at
    smaller queue offsets than these name: RocketMQ put them there, one after another behind a message in its place.
    `records` are the log offsets of all that name the queue, with the queue offsets `named`."""
    if not len(records):
        return np.zeros(len(numbers), np.bool_)
    at = np.minimum(np.searchsorted(records, offsets), len(records) - 1)
    is_led = records[at] == offsets
    before = np.maximum.accumulate(np.where(is_led & (named[at] == numbers), np.arange(len(numbers)), -1))
    has_room = at - at[before] <= numbers - numbers[before]  # a unit for each record since
    found: NDArray[np.bool_] = (before >= 0) & has_room & is_led & (named[at] > numbers)
    return found


def _end_of_joined(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """The end of the last units that follow each other in the queue: one that does not was damaged."""
    joins = begins[1:] == ends[:-1]
    is_joined = np.append(joins, len(ends) == 1) | np.insert(joins, 0, len(ends) == 1) if len(ends) else joins
    return int(ends[is_joined].max(initial=0))


def _count_files(counter: "Counter[int]", offsets: NDArray[np.int64], file_size: int) -> None:
    files, counts = np.unique(offsets // file_size, return_counts=True)
    counter.update(dict(zip(files.tolist(), counts.tolist(), strict=True)))


def read_record(data: bytes | memoryview, position: int = 0) -> Record | None:
    """The whole record that stands there in these bytes."""
    try:
        return decode_record(data, position)
    except CorruptData:
        return None
