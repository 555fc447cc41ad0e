"""The part of `verify` that compares ConsumeQueue files with the units that the log calls for."""

import contextlib
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, StoreUnavailable, counted
from stratalog.kernels.dispatch import UnitStatus, build_units, scatter
from stratalog.kernels.queue_table import NO_ROW, QUEUE_KIND, QUEUE_NEWS, QUEUE_NEXT_OFFSET, QueueKind
from stratalog.layout.light import LIGHT_QUEUE_ID, allows_light, is_light
from stratalog.layout.message import HEAD, LOST_FLAG, Record, decode_record
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    CONFIG,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    SCHEDULE_TOPIC,
    delay_table_ms,
    is_topic,
    offset_name,
    offset_of,
)
from stratalog.layout.queue import LOST_TAGS_CODE, UNIT, fillers, is_extension_address, is_filler
from stratalog.layout.sysflag import enters_queue
from stratalog.store.config_files import TOPICS
from stratalog.store.disk import PrivateDisk, queue_directories
from stratalog.store.dispatch import QueueTable, may_be_lost, next_of_queue
from stratalog.store.extension import ExtensionFiles
from stratalog.store.message import message_at
from stratalog.store.open_files import OpenFiles
from stratalog.store.queue_begin import QueueBegin, QueueKey
from stratalog.store.queue_set import has_light_queues
from stratalog.store.topics import Topics
from stratalog.tools.batches import SET_TYPE, batches_outside
from stratalog.tools.evidence import queue_begins
from stratalog.tools.light import first_light
from stratalog.tools.verify_files import is_of_other_type
from stratalog.tools.verify_report import CHUNK_RECORDS, REPAIR, Chunk, Part, Problem, VerifyReport
from stratalog.tools.verify_special import SpecialQueues, passed_over_step, retagged

Units = np.ndarray[tuple[int], np.dtype[np.void]]
_FLAG = HEAD.position("flag")


_REPAIR = (
    "let `stratalog repair STORE` decide: a record that follows may say a higher offset than it was given, and queues "
    "built again from that would leave out the messages between"
)
_ENTER = "let `stratalog repair STORE` enter it; as it is, RocketMQ does not load the store"


class _QueueFiles:
    """The units of one queue as they stand on disk; where there is no file, they read as zeros. Nothing is said of
    those that could not be read."""

    def __init__(
        self, root: Path, topic: str, queue_id: int, settings: StoreSettings, disk: PrivateDisk, files: OpenFiles,
        report: VerifyReport,
    ) -> None:  # fmt: skip
        file_size = settings.consume_queue_file_size
        self.directory = root / CONSUME_QUEUE / topic / str(queue_id)
        self.key = topic, queue_id
        self.name = f"{topic}/{queue_id}"
        self._units_per_file = file_size // UNIT.size
        self._open = files
        self._unreadable: set[int] = set()
        sizes = disk.files(self.directory).items()
        found = ((offset_of(name), size) for name, size in sizes)
        self._starts = {start // UNIT.size for start, size in found if start is not None and size == file_size}
        self.is_unreadable = report.is_unreadable(self.directory)
        self.extension_directory = root / CONSUME_QUEUE_EXT / topic / str(queue_id)
        self._new_extension = partial(
            ExtensionFiles, root, topic, queue_id, files, disk, file_size=settings.consume_queue_ext_file_size
        )
        self.load_extension()

    def load_extension(self) -> None:
        """Find the extension's files; a writer adds some."""
        self.extension = self._new_extension()
        with contextlib.suppress(CorruptData, OSError):  # of another size: `check_files` tells
            self.extension.load()

    def units(self, first: int, count: int) -> Units:
        """Units [first, first + count), a copy."""
        found = np.zeros(count, UNIT.dtype)
        for start in range(first - first % self._units_per_file, first + count, self._units_per_file):
            if start in self._starts - self._unreadable:
                low, high = max(first, start), min(first + count, start + self._units_per_file)
                path, position = self.place(low)
                try:  # not through a mapping: the file is sparse, and on a tmpfs a load from a hole takes room
                    stored = self._open.read(Path(path), position, (high - low) * UNIT.size)
                    found[low - first : high - first] = np.frombuffer(stored, UNIT.dtype)
                except StoreUnavailable:
                    self._unreadable.add(start)
        return found

    def were_read(self, first: int, count: int) -> NDArray[np.bool_]:
        """Which of the units [first, first + count) are known, be it that there is no file for them."""
        known = np.full(count, not self.is_unreadable)
        for start in self._unreadable:
            known[max(0, start - first) : max(0, start + self._units_per_file - first)] = False
        return known

    def place(self, queue_offset: int) -> tuple[str, int]:
        """File and position of a unit."""
        start = queue_offset - queue_offset % self._units_per_file
        return str(self.directory / offset_name(start * UNIT.size)), (queue_offset - start) * UNIT.size

    def ranges(self) -> list[tuple[int, int]]:
        """Queue offsets that the files have room for, as [first, end) a file."""
        return [(start, start + self._units_per_file) for start in sorted(self._starts)]


class _Expected:
    """How far the log has led one queue: units [first, next) were compared."""

    def __init__(self, files: _QueueFiles, first: int) -> None:
        self.files = files
        self.first = self.next = first


def _begins(root: Path, disk: PrivateDisk, report: VerifyReport) -> dict[QueueKey, QueueBegin]:
    try:
        return queue_begins(root, disk)
    except CorruptData as error:
        step = str(error).removeprefix(f"{error.path}: ")
        report.add(Problem("queue", error.path, 0, "queues that point to their own messages", "others", step))
        return {}


class QueueCheck:
    """Takes the log in chunks, in order, and says what the queues lack or have too much."""

    def __init__(self, root: Path, settings: StoreSettings, disk: PrivateDisk, report: VerifyReport) -> None:
        self._root, self._disk, self._report, self._settings = root, disk, report, settings
        self._delays = np.array(delay_table_ms(settings.message_delay_level), np.int64)
        self._table = QueueTable()
        self._by_row: list[_Expected | None] = []
        self._row_of: dict[tuple[str, int], int] = {}
        self._units = np.empty(CHUNK_RECORDS * UNIT.size, np.uint8)
        self._sorted = np.empty_like(self._units)
        self._rows = np.empty(CHUNK_RECORDS, np.int32)
        self._begins = _begins(root, disk, report)
        self._special = SpecialQueues(root, disk, report, self._begins)
        self._open = OpenFiles(disk)
        self._topics = Topics(root, disk)
        self._outside: set[str] = set()
        self._retagged: dict[int, bool] = {}
        self._has_light_queues = has_light_queues(root, disk, settings)

    @property
    def retagged(self) -> dict[int, bool]:
        """Log offsets of records whose units agree with them but for the tags code; and whether the record changed."""
        return self._retagged | self._special.retagged

    def check(self, chunk: Chunk) -> None:
        """Compare the units of these records."""
        self._report.fillers += _fillers(chunk)
        outside = list(batches_outside(chunk.file, chunk.positions, self._topics))
        if outside and self._report.is_live:  # a topic may have been created meanwhile
            self._topics = Topics(self._root, self._disk)
            outside = list(batches_outside(chunk.file, chunk.positions, self._topics))
        for topic, position in outside:
            if topic not in self._outside:
                self._report_type(topic, chunk.base_offset + position)
        if not self._has_light_queues and not self._report.light_queue:
            self._look_for_light(chunk)
        done, count = 0, len(chunk.positions)
        while done < count:
            done = self._step(chunk, done, count)
            if done < count:
                self._take_special(chunk, done)
                done += 1

    def _step(self, chunk: Chunk, done: int, count: int) -> int:
        """Compare units from record `done` on, up to `count` or to one that needs more than a kernel does."""
        begin, status = done, UnitStatus.GAP
        while status in (UnitStatus.UNKNOWN_QUEUE, UnitStatus.GAP, UnitStatus.BEHIND):
            done, found = build_units(
                chunk.file.address, chunk.positions, done, count, chunk.base_offset, self._table.rows,
                self._table.table, self._units, self._rows, self._delays,
            )  # fmt: skip
            status = UnitStatus(found)
            if status == UnitStatus.UNKNOWN_QUEUE:
                self._register(self._record(chunk, done))
                continue
            self._compare(chunk, begin, done)
            self._report_passed_over(chunk, begin, done + (status == UnitStatus.BEHIND))
            done += status == UnitStatus.BEHIND
            begin = done
            if status == UnitStatus.GAP and not self._pass_gap(chunk, done):
                begin = done = done + 1
        return done

    def _record(self, chunk: Chunk, number: int) -> Record:
        return decode_record(chunk.file.view.data, int(chunk.positions[number]), verify=False)

    def _kind_of(self, topic: str, queue_id: int) -> QueueKind:
        """As the dispatcher sees it; records of a light queue itself are taken like those that name it."""
        if self._topics.is_batch(topic):
            return QueueKind.BATCH
        if self._has_light_queues and is_light(topic) and queue_id == LIGHT_QUEUE_ID:
            return QueueKind.BATCH
        if topic == SCHEDULE_TOPIC:
            return QueueKind.SCHEDULE
        return QueueKind.LIGHT if self._has_light_queues and allows_light(topic) else QueueKind.PLAIN

    def _take_special(self, chunk: Chunk, number: int) -> None:
        record = self._record(chunk, number)
        topic = _topic_of(record)
        row = self._row_of[topic, record.queue_id]
        kind = self._table.rows[row][QUEUE_KIND]
        path, position = str(chunk.file.path), int(chunk.positions[number])
        if kind == QueueKind.LIGHT:
            self._special.take_light(record, path, position)
            self._table.rows[row][QUEUE_KIND] = QueueKind.PLAIN
            self._step(chunk, number, number + 1)
            self._table.rows[row][QUEUE_KIND] = kind
        elif not is_light(topic):
            later = chunk.positions[number + 1 :]
            self._special.take_batch(topic, record, path, position, lambda: next_of_queue(chunk.file, later, record))
        else:
            self._special.take_own(topic, record.queue_offset, record, path, position)

    def _register(self, record: Record) -> None:
        """Know a queue from its first record on; one that can have no directory is in no queue, and not compared."""
        topic, kind = _topic_of(record), QueueKind.PLAIN
        files = None
        if is_topic(topic) and record.queue_id >= 0:
            kind = self._kind_of(topic, record.queue_id)
            files = self._files(topic, record.queue_id) if kind != QueueKind.BATCH else None
            if topic not in self._topics.configs and self._report.is_unreadable(self._root / BATCH_CONSUME_QUEUE):
                files = files if files and files.ranges() else None  # it may be a batch topic
        first, begin = record.queue_offset, self._begins.get((topic, record.queue_id)) if files else None
        if begin and (begin.queue_offset > first or begin.commit_log_offset <= record.commit_log_offset):
            begin = None
        first = begin.queue_offset if begin else first
        if files:
            offset = begin.commit_log_offset if begin else record.commit_log_offset
            self._report.add_missing_in_front(files.key, first, offset)
        row = self._table.add(topic, record.queue_id, first, kind=kind)
        self._table.rows[row][QUEUE_NEWS] = begin.commit_log_offset + 1 if begin else 0
        self._row_of[topic, record.queue_id] = row
        self._by_row.append(_Expected(files, first) if files else None)

    def _files(self, topic: str, queue_id: int) -> _QueueFiles:
        return _QueueFiles(
            self._root, topic, queue_id, self._settings, self._disk, self._open, self._report
        )  # fmt: skip

    def _compare(self, chunk: Chunk, begin: int, end: int) -> None:
        """Compare units `begin` to `end - 1` of the chunk, queue by queue."""
        starts = np.zeros(self._table.count + 1, np.int64)
        units, rows = self._units[begin * UNIT.size :], self._rows[begin:]
        scatter(units, rows, end - begin, self._table.count, starts, self._sorted)
        everything: Units = self._sorted.view(UNIT.dtype)
        for row in np.flatnonzero(np.diff(starts)).tolist():
            queue = self._by_row[row]
            if queue is None:
                continue
            expected = everything[starts[row] : starts[row + 1]]
            stored = queue.files.units(queue.next, len(expected))
            read = queue.files.were_read(queue.next, len(expected))
            stored[~read] = expected[~read]
            if stored.tobytes() != expected.tobytes():
                extended = self._look_up(chunk, queue.files, expected, stored)
                if self._report.is_live:
                    self._look_again(chunk, queue, expected, stored)
                self._report_differences(queue, expected, stored)
                self._retagged |= dict.fromkeys(self._retagged.keys() & extended, False)
            queue.next += len(expected)
            self._report.unit_count += int(np.count_nonzero(read))

    def _report_passed_over(self, chunk: Chunk, begin: int, end: int) -> None:
        """Records whose queue was further on than their offset already: the queue does not lead to them."""
        for number in (begin + np.flatnonzero(self._rows[begin:end] == NO_ROW)).tolist():
            record = self._record(chunk, number)
            row = self._row_of.get((_topic_of(record), record.queue_id))
            queue = self._by_row[row] if row is not None and enters_queue(record.sys_flag) else None
            if row is not None and record.commit_log_offset + 1 < self._table.rows[row][QUEUE_NEWS]:
                self._report.deleted_count += queue is not None
            elif queue is not None:
                self._report.add(
                    Problem(
                        "log", str(chunk.file.path), int(chunk.positions[number]),
                        f"offset {queue.next:,} or a later one in queue {queue.files.name}",
                        f"{record.queue_offset:,}, which a record before it has or went past; the message is not in "
                        "its queue", passed_over_step(record.queue_offset),
                    )
                )  # fmt: skip

    def _look_up(self, chunk: Chunk, files: _QueueFiles, expected: Units, stored: Units) -> set[int]:
        """Put in place of addresses the tags codes that stand there, if the store times there are the records'; where
        the extension cannot be read, what is expected. Returns the log offsets of these units."""
        extended = set[int]()
        mine = stored["commit_log_offset"] == expected["commit_log_offset"]
        for number in np.flatnonzero(mine & (stored["tags_code"] < 0)).tolist():
            address = int(stored["tags_code"][number])
            if not is_extension_address(address):
                continue
            extended.add(int(stored["commit_log_offset"][number]))
            with contextlib.suppress(CorruptData, StoreUnavailable):
                found = files.extension.read(address)
                position = int(stored["commit_log_offset"][number]) - chunk.base_offset
                if found.store_timestamp == message_at(chunk.file.map, position).store_timestamp:
                    stored["tags_code"][number] = found.tags_code
                continue
            if self._report.is_unreadable_in(files.extension_directory):
                stored["tags_code"][number] = expected["tags_code"][number]
        return extended

    def _look_again(self, chunk: Chunk, queue: _Expected, expected: Units, stored: Units) -> None:
        """Read again what differs: a writer may have been writing there. Zeros at the end stay what is behind."""
        written = np.flatnonzero(stored["size"])
        wrong = written[:0] if not written.size else np.flatnonzero((stored != expected)[: written[-1] + 1])
        if wrong.size:
            queue.files.load_extension()
            again = queue.files.units(queue.next, len(expected))[wrong]
            self._look_up(chunk, queue.files, expected[wrong], again)
            stored[wrong] = again

    def _report_differences(self, queue: _Expected, expected: Units, stored: Units) -> None:
        same = stored == expected
        end = len(expected)
        if not self._report.clean:
            written = np.flatnonzero(stored["size"])
            end = int(written[-1]) + 1 if written.size else 0
            self._report.units_behind += len(expected) - end
        self._retagged |= retagged(expected, stored)
        self._report_missing(queue, (~same[:end]) & (stored["size"][:end] == 0))
        for number in np.flatnonzero(~same[:end] & (stored["size"][:end] != 0)).tolist():
            self._add(queue.files, queue.next + number, _told(expected[number]), _told(stored[number]))

    def _report_missing(self, queue: _Expected, missing: NDArray[np.bool_]) -> None:
        """Units that are zeros: one problem for each run of them."""
        edges = np.flatnonzero(np.diff(np.concatenate(([False], missing, [False])))).tolist()
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            path, position = queue.files.place(queue.next + begin)
            what = f"{counted(end - begin, 'unit')} of queue {queue.files.name} from unit {queue.next + begin:,} on"
            self._report.add(Problem("queue", path, position, what, "none", REPAIR))

    def _pass_gap(self, chunk: Chunk, number: int) -> bool:
        """The next record of a queue is further on than its queue: messages between are lost, or stand in damage.

        False for an offset that no lost messages explain: the dispatcher passes over such a record too.
        """
        record = self._record(chunk, number)
        row, queue_offset = self._row_of[_topic_of(record), record.queue_id], record.queue_offset
        queue = self._by_row[row]
        if queue is not None:
            following = next_of_queue(chunk.file, chunk.positions[number + 1 :], record)
            is_contradicted = following is not None and queue.next <= following <= queue_offset
            lost_size = record.commit_log_offset - self._report.log_begin
            if is_contradicted or not may_be_lost(queue_offset - queue.next, lost_size):
                self._report.add(
                    Problem(
                        "log", str(chunk.file.path), int(chunk.positions[number]),
                        f"an offset near {queue.next:,} in queue {queue.files.name}", f"{queue_offset:,}",
                        "let `stratalog repair STORE` restore the record; as it is, the message is not in its queue",
                    )
                )  # fmt: skip
                return False
            stored = queue.files.units(queue.next, queue_offset - queue.next)
            newest = int(queue.files.units(queue.next - 1, 1)["commit_log_offset"][0]) if queue.next else 0
            self._report.add_missing(queue.files.key, queue.next, queue_offset, newest, record.commit_log_offset)
            known = fillers(stored) | self._is_damaged(stored)
            if not self._report.clean:  # they are not written yet
                known |= stored["size"] == 0
            if not known.all():
                first, more = int(np.argmin(known)), int(np.count_nonzero(~known)) - 1
                found = _told(stored[first]) + (f"; {more:,} later ones like it" if more else "")
                self._add(queue.files, queue.next + first, "no record, none has this offset", found, _REPAIR)
            queue.next = queue_offset
        self._table.rows[row][QUEUE_NEXT_OFFSET] = queue_offset
        return True

    def finish(self) -> None:
        """Look at what stands in the files beside the units that the log led to."""
        for topic, queue_id, directory in queue_directories(self._root, CONSUME_QUEUE, self._disk):
            if self._is_misplaced(CONSUME_QUEUE, topic, queue_id):
                continue
            if self._kind_of(topic, queue_id) != QueueKind.BATCH:
                self._report.queue_count += not self._report.is_unreadable(directory)
                self._check_leftovers(topic, queue_id)
            elif is_light(topic):
                self._special.expect(topic, queue_id)
        for topic, queue_id, _ in queue_directories(self._root, BATCH_CONSUME_QUEUE, self._disk):
            if not self._is_misplaced(BATCH_CONSUME_QUEUE, topic, queue_id):
                self._special.expect(topic, queue_id)
        self._special.finish()
        self._look_for_entries()

    def _look_for_light(self, chunk: Chunk) -> None:
        found = first_light(chunk.file, chunk.positions, chunk.base_offset)
        if found and self._report.is_live:  # their files come later
            self._has_light_queues = True
            for key, row in self._row_of.items():
                self._table.rows[row][QUEUE_KIND] = self._kind_of(*key)
        elif found:
            self._report.light_queue, offset = found
            place = str(self._root / CONSUME_QUEUE / self._report.light_queue)
            what = f"light queues, as the log holds messages of them, the first at log offset {offset:,}"
            self._report.add(Problem("files", place, 0, what, "none", REPAIR))

    def _report_type(self, topic: str, commit_log_offset: int) -> None:
        """A topic is not of type BatchCQ, and the record at a log offset is a batch of it."""
        self._outside.add(topic)
        what = f"topic {topic} to be of type BatchCQ: the log holds batches of it, the first at {commit_log_offset:,}"
        if topic in self._topics.configs:
            step = f"{SET_TYPE}. Then {REPAIR}; as it is, each batch is served as one message"
            self._report.add(Problem("files", str(self._root / CONFIG / TOPICS), 0, what, "SimpleCQ", step))
        else:
            self._report_no_entry("files", topic, what, REPAIR)

    def _look_for_entries(self) -> None:
        """Every batch topic with queues or messages must be in `topics.json`."""
        found = {topic for topic, *_ in queue_directories(self._root, BATCH_CONSUME_QUEUE, self._disk)}
        found |= {topic for topic, _ in self._row_of}
        topics = Topics(self._root, self._disk)  # a topic may have been created meanwhile
        for topic in sorted(topic for topic in found if topics.is_batch(topic) and topics.lacks(topic)):
            what = f"topic {topic} to be of type BatchCQ: its queues lie below {BATCH_CONSUME_QUEUE}/"
            self._report_no_entry("config", topic, what, _ENTER)

    def _report_no_entry(self, part: Part, topic: str, what: str, next_step: str) -> None:
        self._report.batch_topics.add(topic)
        self._report.add(Problem(part, str(self._root / CONFIG / TOPICS), 0, what, "no entry", next_step))

    def _is_misplaced(self, tree: str, topic: str, queue_id: int) -> bool:
        """Whether a queue is one of those that `is_of_other_type`; reported if it has files."""
        if not is_of_other_type(self._topics, tree, topic, [self._root], self._disk):
            return False
        directory = self._root / tree / topic / str(queue_id)
        if any(self._disk.files(directory).values()):
            kind, right = "BatchCQ", BATCH_CONSUME_QUEUE
            if tree == BATCH_CONSUME_QUEUE:
                kind, right = "SimpleCQ", CONSUME_QUEUE
            expected = f"no file: topic {topic} is of type {kind}, its queues lie below {right}/"
            self._report.add(Problem("queue", str(directory), 0, expected, "files of a queue", REPAIR))
        return True

    def close(self) -> None:
        """Close the files of queues and extensions."""
        self._open.close()

    def _check_leftovers(self, topic: str, queue_id: int) -> None:
        """Units that no record called for: fillers and units of records that expired are fine, others are not."""
        row = self._row_of.get((topic, queue_id))
        queue = self._by_row[row] if row is not None else None
        queue = queue or _Expected(self._files(topic, queue_id), 0)
        for low, high in queue.files.ranges():
            for first, end in ((low, min(high, queue.first)), (max(low, queue.next), high)):
                if first < end:
                    stored = queue.files.units(first, end - first)
                    self._check_unclaimed(queue.files, first, stored)
                    if first >= queue.next:
                        self._report_lost(queue.files, first, stored)

    def _check_unclaimed(self, files: _QueueFiles, first: int, stored: Units) -> None:
        report = self._report
        known = (stored["size"] == 0) | fillers(stored) | self._is_damaged(stored)
        is_gone = (stored["commit_log_offset"] < report.log_begin) & (stored["commit_log_offset"] >= 0)
        report.gone_count += int(np.count_nonzero(is_gone & (stored["size"] > 0) & ~fillers(stored)))
        known |= stored["commit_log_offset"] < report.log_begin
        if not report.clean:
            lost = np.flatnonzero(~known & (stored["commit_log_offset"] >= report.log_end))
            if lost.size:
                offset = int(stored["commit_log_offset"][lost[0]])
                what = f"{counted(lost.size, 'unit')} of queue {files.name} for log offset {offset:,} and later"
                report.add_lost("queue", *files.place(first + int(lost[0])), what)
            known[lost] = True
        for number in np.flatnonzero(~known).tolist():
            self._add(files, first + number, "nothing, the log has no such message", _told(stored[number]))

    def _report_lost(self, files: _QueueFiles, first: int, stored: Units) -> None:
        """Units of lost messages after a queue's newest message. (Elsewhere the next record tells.)"""
        lost = np.flatnonzero(
            (stored["tags_code"] == LOST_TAGS_CODE) & (stored["commit_log_offset"] >= self._report.log_begin)
        )
        if lost.size:
            newest = int(stored["commit_log_offset"][lost[0]])
            self._report.add_missing(files.key, first + int(lost[0]), first + int(lost[-1]) + 1, newest)

    def _is_damaged(self, stored: Units) -> NDArray[np.bool_]:
        return self._report.are_in_damage(stored["commit_log_offset"]) & (stored["size"] > 0)

    def _add(
        self, files: _QueueFiles, queue_offset: int, expected: str, found: str, next_step: str = REPAIR
    ) -> None:  # fmt: skip
        path, position = files.place(queue_offset)
        what = f"unit {queue_offset:,} of queue {files.name} to hold {expected}"
        self._report.add(Problem("queue", path, position, what, found, next_step))


def _fillers(chunk: Chunk) -> list[int]:
    """Log offsets of the records that a repair left and that stand for no known message."""
    kind = HEAD.dtype["flag"]
    flags = chunk.file.view[chunk.positions[:, None] + _FLAG + np.arange(kind.itemsize)].view(kind)[:, 0]
    positions = chunk.positions[flags == LOST_FLAG].tolist()
    return [
        chunk.base_offset + position for position in positions
        if not enters_queue(HEAD.unpack(chunk.file.view.data, position).sys_flag)
    ]  # fmt: skip


def _topic_of(record: Record) -> str:
    return record.topic.decode("utf-8", "surrogateescape")


def _told(unit: np.void) -> str:
    if not unit["size"]:
        return "no unit (zeros)"
    commit_log_offset, size, tags_code = unit.item()
    if is_filler(size, tags_code):
        return "a filler unit"
    return f"log offset {commit_log_offset:,}, size {size:,}, tags code {tags_code}"
