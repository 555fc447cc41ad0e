"""The dispatcher: follows the log and derives ConsumeQueue units and index items from it, in order."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData, command
from stratalog.kernels.dispatch import UnitStatus, build_units, insert_queue, scatter
from stratalog.kernels.queue_table import (
    QUEUE_FIELDS,
    QUEUE_ID,
    QUEUE_KIND,
    QUEUE_NEWS,
    QUEUE_NEXT_OFFSET,
    QUEUE_TOPIC_ADDRESS,
    QUEUE_TOPIC_SIZE,
    QueueKind,
)
from stratalog.kernels.scan import TRUST, ScanStatus, scan
from stratalog.layout.batch import batch_size_of, is_inner_batch
from stratalog.layout.javahash import string_hash
from stratalog.layout.light import LIGHT_QUEUE_ID, Place, is_light, light_places
from stratalog.layout.message import FIXED_SIZE_V1, HEAD, MESSAGE_SIZE_MIN, Record, decode_record, queue_offset_limit
from stratalog.layout.names import CONFIG, SCHEDULE_TOPIC, delay_table_ms, is_topic
from stratalog.layout.queue import BATCH_COMPACTED_OFFSET, BATCH_UNIT, LOST_TAGS_CODE, UNIT
from stratalog.layout.record import OFFSETS_END
from stratalog.layout.sysflag import enters_queue
from stratalog.store.batch_queue import BatchQueue, lost_units
from stratalog.store.checkpoint import Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.config_files import TOPICS
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.disk import MappedFile
from stratalog.store.index_file import Index
from stratalog.store.locks import free
from stratalog.store.message import Message, message_at
from stratalog.store.queue_begin import QueueBegin, QueueKey
from stratalog.store.queue_set import QueueSet, UnitQueue

CHUNK_RECORDS = 1 << 16
"""So few that what kernels read of the records one after the other stays in the cache."""
NOTES_MAX = 100
_GAP_UNITS_MAX = 1 << 16
_FILL_SIZE_MIN, _FILL_PER_LOG_BYTE, _FILE_COST = 256 << 20, 64, 64 << 10
"""Filler units may take so many bytes on disk, and so many more for each byte of log; a file costs that much at least.
A queue that begins in the middle takes up to a file of them, so a store of thousands of queues needs a lot."""
_LOOK_AHEAD_RECORDS = 1 << 12
_PASSED_OVER = 2**63 - 1
"""Next offset of a queue that cannot be: kernels take its records for dispatched."""


class QueueTable:
    """The queues as kernels see them: a row per queue, and a hash table from (topic, queue id) to the row."""

    def __init__(self) -> None:
        self.rows = np.zeros((16, QUEUE_FIELDS), np.int64)
        self.table = np.zeros(64, np.int32)
        self.count = 0
        self._names: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []

    def add(self, topic: str, queue_id: int, next_offset: int, *, kind: QueueKind | None = None) -> int:
        """Add a queue and return its row. Unless a kind is given, no record of it needs more than a kernel does."""
        if self.count == len(self.rows):
            self.rows = np.vstack([self.rows, np.zeros_like(self.rows)])
        name = np.frombuffer(topic.encode("utf-8", "surrogateescape"), np.uint8)
        self._names.append(name)
        row = self.rows[self.count]
        row[QUEUE_TOPIC_ADDRESS] = name.ctypes.data
        row[QUEUE_TOPIC_SIZE] = name.size
        row[QUEUE_ID] = queue_id
        row[QUEUE_NEXT_OFFSET] = next_offset
        row[QUEUE_KIND] = kind if kind is not None else QueueKind(topic == SCHEDULE_TOPIC)
        self.count += 1
        if 2 * self.count > self.table.size:
            self.table = np.zeros(2 * self.table.size, np.int32)
            for other in range(self.count - 1):
                insert_queue(self.table, self.rows, other)
        insert_queue(self.table, self.rows, self.count - 1)
        return self.count - 1


@dataclass(slots=True)
class DispatchProgress:
    """Up to where queues and index follow the log, and the last record among it."""

    offset: int = 0
    last_record_offset: int = 0
    last_store_timestamp: int = 0


class LeftOut(NamedTuple):
    """A whole record that is not in its queue, as its queue offset cannot be."""

    commit_log_offset: int
    topic: str
    queue_id: int
    queue_offset: int


class Dispatcher:
    """Turns the log into queue units and index items.

    `dispatch(limit)` may be called from any thread; one at a time runs. The queues' `end_offset` grows as soon as their
    units are written. A record whose queue offset is ahead of its queue (messages between were lost) leaves filler
    units; one that is behind (indexed before) is passed over.

    Kernels do this for all records but those that need more (`QueueKind`). What cannot be followed in a record stands
    in `notes`, and never keeps those after it from their queues.
    """

    def __init__(self, log: CommitLog, index: Index | None, queues: QueueSet, *, delay_levels: str) -> None:
        self._log = log
        self.index = index
        self.put_keys = index.put if index else None
        """Takes the records of each chunk to the index."""
        self.queue_set = queues
        self._delays = np.array(delay_table_ms(delay_levels), np.int64)
        self._is_closed = False
        self._is_broken_off = False
        """Whether an error or a signal handler ended a chunk: the table of queues may be ahead of the queues."""
        self.files = queues.files
        self.queues = queues.by_name
        self.queue = queues.get
        self.restored = queues.restored
        self.notes: list[str] = []
        self.left_out: dict[tuple[int, str], LeftOut] = {}
        """By log offset and topic."""
        self.begins: dict[QueueKey, QueueBegin] = {}
        """Where queues begin, as far as that is known."""
        self.doubtful_begins: dict[QueueKey, QueueBegin] = {}
        """Those of them that the next opening has to be told: first units and records do not agree, or did not."""
        self.displaced: set[int] = set()
        """Log offsets of records that name a place which another message has, by its unit and its own fields."""
        self.gap_count = 0
        """How often a record was ahead of its queue, which was filled up then."""
        self._by_row: list[UnitQueue | None] = []
        self._row_of: dict[tuple[str, int], int] = {}
        self._from_begin = False
        """Whether all of the log has been followed, so that the first record of a queue is the first in the log."""
        self._light_known: dict[int, int] = {}  # by row: newest log offset that a light queue knew from the start
        self._waiting: dict[int, bytearray] = {}  # by row: units that no kernel built, in front of the kernels' own
        self._table = QueueTable()
        self.progress = DispatchProgress()
        self._filled = self._followed_size = self._skipped_to = self._count = 0
        self._positions = np.empty(CHUNK_RECORDS, np.int64)
        self._sizes = np.empty(CHUNK_RECORDS, np.int32)
        self._units = np.empty(CHUNK_RECORDS * UNIT.size, np.uint8)
        self._sorted = np.empty_like(self._units)
        self._rows = np.empty(CHUNK_RECORDS, np.int32)

    def start_at(self, commit_log_offset: int) -> None:
        """Begin at a record's start, with the queues as they stand."""
        self.progress.offset = commit_log_offset
        self._from_begin = commit_log_offset <= self._log.first_offset
        self._table = QueueTable()
        self._by_row, self._row_of, self._light_known = [], {}, {}
        self._waiting.clear()

    def close(self) -> None:
        """Wait for a dispatch under way; later ones do nothing. The log's mappings may go then."""
        with free(*self._log.locks.dispatch):
            self._is_closed = True
        self.files.close()

    def snapshot(self, *, recovering: bool = False) -> tuple[DispatchProgress, Seal]:
        """How far dispatch is, and what queues and index hold at that point. While the store is being recovered, queues
        may have units of later records already."""
        with free(*self._log.locks.dispatch):
            end = min(self.progress.offset, self._log.end_offset)  # dispatch leaves a file before the log does
            units = [queue.count_below(end) if recovering else queue.unit_count for queue in self.queues.values()]
            counts = [count for count in units if count]
            items = self.index.item_count if self.index else 0
            return replace(self.progress), Seal(end, len(counts), sum(counts), items)

    def _register(self, topic: str, queue_id: int, queue_offset: int, commit_log_offset: int) -> int:
        """Add a queue to the table, with its first message from here on; one whose name cannot be a directory gets no
        units."""
        queue, kind, newest = None, self.queue_set.kind_of(topic), -1
        if is_topic(topic) and queue_id >= 0:
            queue = self.queue(topic, queue_id)
            first, begin = QueueBegin(queue_offset, commit_log_offset), self.begins.get((topic, queue_id))
            if begin and begin.queue_offset <= queue_offset:
                first, newest = begin, begin.commit_log_offset
            if self.queue_set.beside_writer:  # units from here on may be later than the log was looked at
                queue.truncate(max(commit_log_offset, newest))
            if self._from_begin or not queue.end_offset:
                queue.begin_before(*first)
        else:
            kind = kind if kind == QueueKind.LIGHT else QueueKind.PLAIN  # light queues may have its messages
            self._note(
                f"topic {topic[:80]!r} queue {queue_id}: no such directory can be; its messages are in no such queue"
            )
        self._by_row.append(queue)
        next_offset = max(_next_of(queue), newest) if isinstance(queue, BatchQueue) else _next_of(queue)
        row = self._row_of[topic, queue_id] = self._table.add(topic, queue_id, next_offset, kind=kind)
        if isinstance(queue, ConsumeQueue):
            last = queue.last_unit()  # a filler may lead to the record that comes next
            news = 1 + max(0, newest, queue.newest()[0] if queue.unit_count else 0)
            self._table.rows[row][QUEUE_NEWS] = max(news, last[0] + 2 if last else 0)
            if is_light(topic) and queue_id == LIGHT_QUEUE_ID:
                before = int(self._table.rows[row][QUEUE_NEWS]) - 2
                self._light_known[row] = max(before, last[0] if last else -1)
        return row

    def _leave_out(self, place: LeftOut, why: str) -> None:
        offset, topic, queue_id, queue_offset = place
        if is_topic(topic) and queue_id >= 0:  # else there is no such queue
            self.left_out[offset, topic] = place
        self._note(
            f"log offset {offset:,}: offset {queue_offset:,} in {topic}/{queue_id} cannot be, {why}; the message is "
            "not in that queue"
        )

    def displace(self, place: LeftOut, commit_log_offset: int) -> None:
        """Leave out a record that claims a place; the record at that log offset has it."""
        if self.left_out.pop((commit_log_offset, place.topic), None):
            self.notes = [note for note in self.notes if not note.startswith(f"log offset {commit_log_offset:,}: ")]
        self._leave_out(place, "another message has it")

    def _note(self, text: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(text)

    def dispatch(self, limit: int) -> None:
        """Follow the log up to `limit` (the end of a record). Bytes that are no record are skipped to the next file or
        record only where recovery marked them (see `skip`)."""
        if self.progress.offset >= limit:
            return
        with free(*self._log.locks.dispatch):
            if self._is_closed:
                return
            if self._is_broken_off:  # what was not written is done again; the queues say what was
                self.start_at(self.progress.offset)
            self._is_broken_off = True
            while self.progress.offset < limit:
                self._dispatch_chunk(limit)
            self._is_broken_off = False

    def skip(self, commit_log_offset: int) -> None:
        """Go on at a later record: what lies between is damaged and was reported."""
        if commit_log_offset > self.progress.offset:
            self.progress.offset = self._skipped_to = commit_log_offset

    def _dispatch_chunk(self, limit: int) -> None:
        offset = self.progress.offset
        file, position, stop, base = next(self._log.extents(offset, limit))
        count, position, status = scan(file.address, position, stop, base, TRUST, self._positions, self._sizes)
        self._count = count
        if count and self.displaced:
            count, position, status = self._before_displaced(file, count, base, position, status)
        if count:
            self._take(file, count, base)
        if status == ScanStatus.BLANK or (status == ScanStatus.END and file.size - position < FIXED_SIZE_V1):
            self.progress.offset = base + file.size
        elif status in (ScanStatus.END, ScanStatus.FULL):
            self.progress.offset = base + position
        else:
            raise CorruptData(
                f"no message record ({ScanStatus(status).name}) where one should be; run "
                f"{command('verify', file.path.parents[1])}",
                path=str(file.path),
                position=position,
            )

    def _before_displaced(
        self, file: MappedFile, count: int, base: int, position: int, status: int
    ) -> tuple[int, int, int]:
        """How many of the records found come before a displaced one, where it begins, and that more follow. A displaced
        one in front is left out of its queue; its light queues have it."""
        found = np.flatnonzero(np.isin(base + self._positions[:count], list(self.displaced)))
        if not len(found):
            return count, position, status
        first = int(found[0])
        if first:
            return first, int(self._positions[first]), ScanStatus.FULL
        record = self._record(file, 0)
        self._leave_out(_place_of(record), "another message has it")
        if self.queue_set.kind_of(_topic_of(record)) == QueueKind.LIGHT:
            self._take_light_places(message_at(file.map, int(self._positions[0])), 0)
            for row in list(self._waiting):
                self._write_waiting(row)
        return 0, int(self._positions[0] + self._sizes[0]), ScanStatus.FULL

    def _take(self, file: MappedFile, count: int, base: int) -> None:
        self._followed_size += int(self._sizes[:count].sum(dtype=np.int64))
        self._build_units(file, count, base)
        starts = np.zeros(self._table.count + 1, np.int64)
        scatter(self._units, self._rows, count, self._table.count, starts, self._sorted)
        edges = (starts * UNIT.size).tolist()
        units = self._sorted.data
        for row in np.flatnonzero(np.diff(starts)).tolist():
            if self._by_row[row]:
                self._plain(row).append(units[edges[row] : edges[row + 1]])
        if self.put_keys:
            self.put_keys(file.address, self._positions, count, base)
        last = int(self._positions[count - 1])
        self.progress.last_record_offset = base + last
        self.progress.last_store_timestamp = self._log.message(base + last).store_timestamp

    def _build_units(self, file: MappedFile, count: int, base: int) -> None:
        done, self._count = 0, count
        while done < count:
            done, status = self._step(file, done, count, base)
            if status == UnitStatus.NEEDS_MORE:
                self._take_special(file, done, base)
                done += 1
        for row in list(self._waiting):
            self._write_waiting(row)

    def _write_waiting(self, row: int) -> None:
        queue, units = self._by_row[row], self._waiting.pop(row, None)
        if queue and units:
            queue.append(bytes(units))

    def _step(self, file: MappedFile, first: int, count: int, base: int) -> tuple[int, UnitStatus]:
        """Build units from record `first` on, up to `count` or to one that needs more than a kernel does."""
        status = UnitStatus.UNKNOWN_QUEUE
        while status in (UnitStatus.UNKNOWN_QUEUE, UnitStatus.GAP, UnitStatus.BEHIND):
            first, found = build_units(
                file.address, self._positions, first, count, base, self._table.rows, self._table.table, self._units,
                self._rows, self._delays,
            )  # fmt: skip
            status = UnitStatus(found)
            if status == UnitStatus.UNKNOWN_QUEUE:
                record = self._record(file, first)
                topic = _topic_of(record)
                if is_inner_batch(record.sys_flag, record.properties) and self.queue_set.take_for_batch(topic):
                    self._note(
                        f"topic {topic}: no entry in {CONFIG}/{TOPICS}; it is taken to be of type BatchCQ, as its "
                        f"first message in the log is a batch (log offset {record.commit_log_offset:,})"
                    )
                self._register(topic, record.queue_id, record.queue_offset, record.commit_log_offset)
            elif status == UnitStatus.BEHIND:
                place = _place_of(self._record(file, first))
                queue = self.queues.get((place.topic, place.queue_id))
                if not isinstance(queue, ConsumeQueue) or not queue.leads_to(place.queue_offset, place[0]):
                    self._leave_out(place, "another message has it, or went past it")
                first += 1
            elif status == UnitStatus.GAP:
                record = self._record(file, first)
                row = self._row_of[_topic_of(record), record.queue_id]
                expected = int(self._table.rows[row][QUEUE_NEXT_OFFSET])
                queue = self._by_row[row]
                old = queue.old_unit(expected) if isinstance(queue, ConsumeQueue) else None
                contradicted = self._is_contradicted(file, first, record, expected, old[0] if old else -1)
                if contradicted or not self._open_gap(row, first, record.commit_log_offset, record.queue_offset):
                    first += 1
        return first, status

    def _is_contradicted(
        self, file: MappedFile, number: int, record: Record, expected: int, old_place: int, *, count: int = 1
    ) -> bool:  # fmt: skip
        """Whether the next record of its queue has an offset that the queue still expects, or where there is none, the
        unit that stood there led to this record: then its offset is wrong."""
        following = next_of_queue(file, self._positions[number + 1 : self._count], record)
        if following is None:
            if old_place != record.commit_log_offset:
                return False
            self._leave_out(_place_of(record), f"its unit says {expected:,}")
            return True
        if not expected <= following < record.queue_offset + count:
            return False
        self._leave_out(_place_of(record), f"the next message there has {following:,}")
        return True

    def _take_special(self, file: MappedFile, number: int, base: int) -> None:
        """A record of a batch topic, or one that stands in light queues beside its own."""
        message = message_at(file.map, int(self._positions[number]))
        row = self._row_of.get((message.topic, message.queue_id))
        if row is None:  # the topic is no text
            row = self._row_of[_topic_of(self._record(file, number)), message.queue_id]
        if isinstance(self._by_row[row], BatchQueue):
            self._take_batch(row, message, file, number)
            return
        self._take_light_places(message, number)
        kind = self._table.rows[row][QUEUE_KIND]  # each time the table's own rows: a new queue may replace the array
        self._table.rows[row][QUEUE_KIND] = QueueKind.PLAIN
        try:
            self._step(file, number, number + 1, base)
        finally:
            self._table.rows[row][QUEUE_KIND] = kind

    def _take_light_places(self, message: Message, number: int) -> None:
        offset = message.commit_log_offset
        places, problems = light_places(message.topic, message.raw_properties, offset)
        for problem in problems:
            self._note(f"log offset {offset:,}: {problem}; its other queues have the message")
        unit = UNIT.struct.pack(offset, message.store_size, string_hash(message.tags or ""))
        file, _ = self._log.file_at(offset)
        for place in places:
            self._take_light(place, number, offset, unit, file)

    def _take_batch(self, row: int, message: Message, file: MappedFile, number: int) -> None:
        offset, queue = message.commit_log_offset, self._by_row[row]
        if offset < self._table.rows[row][QUEUE_NEXT_OFFSET]:
            return
        assert isinstance(queue, BatchQueue)
        waiting = self._waiting.setdefault(row, bytearray())
        last = BATCH_UNIT.unpack(waiting, len(waiting) - BATCH_UNIT.size) if waiting else queue.newest()
        end, newest = (last.base_offset + last.batch_size, last.commit_log_offset) if last else (queue.end_offset, 0)
        ahead = message.queue_offset - end
        is_near = message.queue_offset <= queue_offset_limit(offset)
        if last:
            is_near = may_be_lost(ahead, offset - newest, in_batches=True)
        if ahead < 0 or not is_near:
            place = LeftOut(offset, queue.topic, queue.queue_id, message.queue_offset)
            self._leave_out(place, f"the queue ends at {end:,}")
            return
        unit_count = len(waiting) // BATCH_UNIT.size
        record, old = self._record(file, number), queue.old_unit(unit_count)
        is_known = old is not None and old.commit_log_offset == offset
        if is_known and old.base_offset == end != message.queue_offset:
            self._leave_out(_place_of(record), f"its unit says {end:,}")
            return
        begin = self.begins.get((queue.topic, queue.queue_id))
        is_deleted = begin and old is not None and begin.is_after(old.base_offset, old.commit_log_offset)
        if old is not None and not (is_known or is_deleted) and queue.owns(old, message.queue_offset):
            self._leave_out(_place_of(record), "another message has it")
            return
        size, problem = batch_size_of(message.sys_flag, message.raw_properties, message.queue_offset)
        if ahead > 0 and self._is_contradicted(file, number, record, end, -1, count=size):
            return
        if problem:
            self._note(f"log offset {offset:,}: {problem}; it is not served")
        is_lost = not self._log.first_offset and message.queue_offset <= offset // FIXED_SIZE_V1
        if ahead > 0 and (last or is_lost):
            self._note_gap(queue, newest, end, message.queue_offset)
        waiting += queue.gap_units(last, message.queue_offset, before=offset, ahead=unit_count)
        if not last and (first := self._lost_begin(queue, offset, message.queue_offset)) is not None:
            led_to = offset, message.store_size, 0, message.store_timestamp
            waiting += lost_units(BATCH_UNIT.record(*led_to, first, 0, BATCH_COMPACTED_OFFSET, 0), message.queue_offset)
        waiting += BATCH_UNIT.struct.pack(
            offset, message.store_size, string_hash(message.tags or ""), message.store_timestamp,
            message.queue_offset, size, BATCH_COMPACTED_OFFSET, 0,
        )  # fmt: skip
        self._table.rows[row][QUEUE_NEXT_OFFSET] = offset + 1

    def _take_light(self, place: Place, number: int, commit_log_offset: int, unit: bytes, file: MappedFile) -> None:
        name, queue_offset = place
        row = self._row_of.get((name, LIGHT_QUEUE_ID))
        if row is None:
            row = self._register(name, LIGHT_QUEUE_ID, queue_offset, commit_log_offset)
        if commit_log_offset <= self._light_known.get(row, -1):
            return  # though its place is another than its offset, see `layout.light`
        next_offset = int(self._table.rows[row][QUEUE_NEXT_OFFSET])
        waiting = self._waiting.setdefault(row, bytearray())
        known = self._plain(row).end_offset + len(waiting) // UNIT.size
        if queue_offset < next_offset:
            if commit_log_offset >= self._table.rows[row][QUEUE_NEWS]:
                place_taken = LeftOut(commit_log_offset, name, LIGHT_QUEUE_ID, queue_offset)
                self._leave_out(place_taken, "another message has it, or went past it")
            return
        if queue_offset > next_offset and (known or not self._log.first_offset):
            following = next_in_light(file, self._positions[number + 1 : self._count], name)
            if following is not None and next_offset <= following <= queue_offset:
                wrong = LeftOut(commit_log_offset, name, LIGHT_QUEUE_ID, queue_offset)
                self._leave_out(wrong, f"the next message there has {following:,}")
                return
            old = self._plain(row).old_unit(next_offset)
            if old and old[0] == commit_log_offset and old[2] != LOST_TAGS_CODE:  # its unit stays where it is
                queue_offset = next_offset
        if queue_offset > next_offset or known != next_offset:  # a gap, or units by kernels are in front
            if not self._open_gap(row, number, commit_log_offset, queue_offset):
                return
            waiting = self._waiting.setdefault(row, bytearray())
        waiting += unit
        self._table.rows[row][QUEUE_NEXT_OFFSET] = queue_offset + 1

    def _open_gap(self, row: int, number: int, commit_log_offset: int, queue_offset: int) -> bool:
        """Bring a queue up to an offset: write what this chunk has for it, then filler units for what was lost.

        False, and nothing of that, for an offset so far ahead that no lost messages explain it.
        """
        if self._by_row[row] is None:
            self._table.rows[row][QUEUE_NEXT_OFFSET] = _PASSED_OVER
            return False
        queue = self._plain(row)
        self._write_waiting(row)
        if self._table.rows[row][QUEUE_NEXT_OFFSET] > queue.end_offset:
            mine = np.flatnonzero(self._rows[:number] == row)
            queue.append(self._units.reshape(-1, UNIT.size)[mine].tobytes())
            self._rows[mine] = -1
        newest = queue.last_unit()
        lost_size = commit_log_offset - (newest[0] if newest else 0)
        is_near = (
            may_be_lost(queue_offset - queue.end_offset, lost_size)
            if newest
            else (queue_offset <= queue_offset_limit(commit_log_offset))
        )
        if not is_near or not self._may_fill(queue, queue_offset):
            place = LeftOut(commit_log_offset, queue.topic, queue.queue_id, queue_offset)
            self._leave_out(place, f"it is too far after {queue.end_offset:,}")
            return False
        if queue_offset > queue.end_offset:
            self.gap_count += 1
            if newest:
                self._note_gap(queue, newest[0], queue.end_offset, queue_offset)
            # Where the log is there from its beginning, what it does not have was lost, not removed. (A delayed message
            # is not led to before its turn: it would be delivered then.)
            is_lost = not self._log.first_offset and queue_offset <= commit_log_offset // FIXED_SIZE_V1
            if is_lost and not newest:
                self._note_gap(queue, 0, 0, queue_offset)
            is_lost = is_lost and self._table.rows[row][QUEUE_KIND] != QueueKind.SCHEDULE
            if not newest and (first := self._lost_begin(queue, commit_log_offset, queue_offset)) is not None:
                queue.skip_to(first, None)
                is_lost = True
            size = self._log.message(commit_log_offset).store_size
            queue.skip_to(queue_offset, (commit_log_offset, size) if is_lost else None, before=commit_log_offset)
        self._table.rows[row][QUEUE_NEXT_OFFSET] = queue_offset
        return True

    def _lost_begin(self, queue: UnitQueue, commit_log_offset: int, queue_offset: int) -> int | None:
        """The first offset of a queue if its messages in front of the first whole record were lost: older ones expired.
        None where none were."""
        begin = self.begins.get((queue.topic, queue.queue_id)) if self._log.first_offset else None
        if begin is None or not begin.queue_offset < queue_offset or begin.commit_log_offset >= commit_log_offset:
            return None
        lost_size = commit_log_offset - begin.commit_log_offset
        is_near = may_be_lost(queue_offset - begin.queue_offset, lost_size, in_batches=isinstance(queue, BatchQueue))
        return begin.queue_offset if is_near else None

    def _note_gap(self, queue: UnitQueue, newest: int, begin: int, end: int) -> None:
        """Note that no record has the queue offsets [begin, end), unless damage after that log offset explains it."""
        if newest >= self._skipped_to:
            last = f" to {end - 1:,}" if end - 1 > begin else ""
            self._note(f"{queue.topic}/{queue.queue_id}: no record of the log has offset {begin:,}{last}")

    def _may_fill(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether the filler units before an offset are in proportion to the log, all queues together."""
        units_per_file = queue.file_size // UNIT.size
        count = queue_offset - queue.end_offset if queue.end_offset else queue_offset % units_per_file
        cost = max(count * UNIT.size, -(-count // units_per_file) * _FILE_COST)
        cost_max = _FILL_SIZE_MIN + _FILL_PER_LOG_BYTE * self._followed_size
        if queue_offset >= OFFSETS_END // UNIT.size or self._filled + cost > cost_max:
            return False
        self._filled += cost
        return True

    def _plain(self, row: int) -> ConsumeQueue:
        queue = self._by_row[row]
        assert isinstance(queue, ConsumeQueue), "batch queues and queues that cannot be have no plain units"
        return queue

    def _record(self, file: MappedFile, number: int) -> Record:
        position = int(self._positions[number])
        return decode_record(file.view.data, position, verify=False)


def next_of_queue(file: MappedFile, positions: NDArray[np.int64], record: Record) -> int | None:
    """Queue offset of the first record of the same queue among those at some positions; only so many are looked at."""
    positions = positions[:_LOOK_AHEAD_RECORDS]
    heads = file.view[positions[:, None] + np.arange(HEAD.size)].view(HEAD.dtype)[:, 0]
    for other in np.flatnonzero(heads["queue_id"] == record.queue_id).tolist():
        found = decode_record(file.view.data, int(positions[other]), verify=False)
        if found.topic == record.topic and enters_queue(found.sys_flag):
            return found.queue_offset
    return None


def next_in_light(file: MappedFile, positions: NDArray[np.int64], name: str) -> int | None:
    """The queue offset in a light queue of the first record that names one, of those at the first
    `_LOOK_AHEAD_RECORDS` positions."""
    positions, text, first = positions[:_LOOK_AHEAD_RECORDS], name.encode(), 0
    end = int(positions[-1] + HEAD.unpack(file.view.data, int(positions[-1])).total_size) if len(positions) else 0
    while first < len(positions):
        found = file.map.find(text, int(positions[first]), end)
        if found < 0:
            return None
        first = int(np.searchsorted(positions, found, "right"))
        record = decode_record(file.view.data, int(positions[first - 1]), verify=False)
        queue_offset = dict(light_places(record.topic, record.properties, record.commit_log_offset)[0]).get(name)
        if queue_offset is not None:
            return queue_offset
    return None


def may_be_lost(count: int, lost_size: int, *, in_batches: bool = False) -> bool:
    """Whether so many messages of a queue can have been lost where so many bytes of log lie between two of it. Those of
    a batch queue take less than a record each (`in_batches`)."""
    return count <= max(_GAP_UNITS_MAX, lost_size // (MESSAGE_SIZE_MIN if in_batches else FIXED_SIZE_V1))


def _topic_of(record: Record) -> str:
    """The topic; what is no text in it is kept, and makes a name that no directory can have."""
    return record.topic.decode("utf-8", "surrogateescape")


def _place_of(record: Record) -> LeftOut:
    return LeftOut(record.commit_log_offset, _topic_of(record), record.queue_id, record.queue_offset)


def _next_of(queue: UnitQueue | None) -> int:
    """What kernels compare with: the next queue offset. For batch queues they do not: the next log offset."""
    if queue is None:
        return _PASSED_OVER
    return queue.next_commit_log_offset if isinstance(queue, BatchQueue) else queue.end_offset
