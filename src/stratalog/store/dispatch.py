"""The dispatcher: follows the log and derives ConsumeQueue units and index items from it, in order."""

import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stratalog.errors import CorruptData
from stratalog.kernels.dispatch import UnitStatus, build_units, insert_queue, scatter
from stratalog.kernels.queue_table import (
    QUEUE_FIELDS,
    QUEUE_ID,
    QUEUE_IS_SCHEDULE,
    QUEUE_NEXT_OFFSET,
    QUEUE_TOPIC_ADDRESS,
    QUEUE_TOPIC_SIZE,
)
from stratalog.kernels.scan import TRUST, ScanStatus, scan
from stratalog.layout.message import FIXED_SIZE_V1, Record, decode_record
from stratalog.layout.names import SCHEDULE_TOPIC, delay_table_ms
from stratalog.layout.queue import UNIT
from stratalog.store.checkpoint import Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.consume_queue import ConsumeQueue, OpenFiles
from stratalog.store.disk import Disk, MappedFile
from stratalog.store.index_file import Index

CHUNK_RECORDS = 1 << 16


class QueueTable:
    """The queues as kernels see them: a row per queue, and a hash table from (topic, queue id) to the row."""

    def __init__(self) -> None:
        self.rows = np.zeros((16, QUEUE_FIELDS), np.int64)
        self.table = np.zeros(64, np.int32)
        self.count = 0
        self._names: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []

    def add(self, topic: str, queue_id: int, next_offset: int) -> int:
        """Add a queue and return its row."""
        if self.count == len(self.rows):
            self.rows = np.vstack([self.rows, np.zeros_like(self.rows)])
        name = np.frombuffer(topic.encode(), np.uint8)
        self._names.append(name)
        row = self.rows[self.count]
        row[QUEUE_TOPIC_ADDRESS] = name.ctypes.data
        row[QUEUE_TOPIC_SIZE] = name.size
        row[QUEUE_ID] = queue_id
        row[QUEUE_NEXT_OFFSET] = next_offset
        row[QUEUE_IS_SCHEDULE] = topic == SCHEDULE_TOPIC
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


class Dispatcher:
    """Turns the log into queue units and index items.

    `dispatch(limit)` may be called from any thread; one at a time runs. The queues' `end_offset` grows as soon as their
    units are written. A record whose queue offset is ahead of its queue (messages between were lost) leaves filler
    units; one that is behind (indexed before) is passed over.
    """

    def __init__(
        self, root: Path, log: CommitLog, index: Index | None, disk: Disk, *, queue_file_size: int, delay_levels: str
    ) -> None:
        self._root = root
        self._log = log
        self._index = index
        self._disk = disk
        self._queue_file_size = queue_file_size
        self._delays = np.array(delay_table_ms(delay_levels), np.int64)
        self._lock = threading.Lock()
        self._is_closed = False
        self.files = OpenFiles(disk)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._by_row: list[ConsumeQueue] = []
        self._table = QueueTable()
        self.progress = DispatchProgress()
        self._positions = np.empty(CHUNK_RECORDS, np.int64)
        self._sizes = np.empty(CHUNK_RECORDS, np.int32)
        self._units = np.empty(CHUNK_RECORDS * UNIT.size, np.uint8)
        self._sorted = np.empty_like(self._units)
        self._rows = np.empty(CHUNK_RECORDS, np.int32)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue's units; an empty queue has no files yet."""
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            queue = ConsumeQueue(self._root, topic, queue_id, self.files, self._disk, file_size=self._queue_file_size)
            queue.load()
            self.queues[topic, queue_id] = queue
        return queue

    def start_at(self, commit_log_offset: int) -> None:
        """Begin at a record's start, with the queues as they stand."""
        self.progress.offset = commit_log_offset
        self._table = QueueTable()
        self._by_row = []
        for queue in self.queues.values():
            self._register(queue)

    def close(self) -> None:
        """Wait for a dispatch under way; later ones do nothing. The log's mappings may go then."""
        with self._lock:
            self._is_closed = True
        self.files.close()

    def snapshot(self) -> tuple[DispatchProgress, Seal]:
        """How far dispatch is, and what queues and index hold at that point."""
        with self._lock:
            counts = [queue.end_offset - queue.first_offset for queue in self.queues.values() if queue.end_offset]
            items = self._index.item_count if self._index else 0
            end = min(self.progress.offset, self._log.end_offset)  # dispatch leaves a file before the log does
            return replace(self.progress), Seal(end, len(counts), sum(counts), items)

    def _register(self, queue: ConsumeQueue) -> None:
        self._table.add(queue.topic, queue.queue_id, queue.end_offset)
        self._by_row.append(queue)

    def dispatch(self, limit: int) -> None:
        """Follow the log up to `limit` (the end of a record). Bytes that are no record are skipped to the next file or
        record only where recovery marked them (see `skip`)."""
        if self.progress.offset >= limit:
            return
        with self._lock:
            if self._is_closed:
                return
            try:
                while self.progress.offset < limit:
                    self._dispatch_chunk(limit)
            except BaseException:
                for row, queue in enumerate(self._by_row):  # what was not written is done again
                    self._table.rows[row][QUEUE_NEXT_OFFSET] = queue.end_offset
                raise

    def skip(self, commit_log_offset: int) -> None:
        """Go on at a later record: what lies between is damaged and was reported."""
        self.progress.offset = commit_log_offset

    def _dispatch_chunk(self, limit: int) -> None:
        offset = self.progress.offset
        file, position, stop, base = next(self._log.extents(offset, limit))
        count, position, status = scan(file.address, position, stop, base, TRUST, self._positions, self._sizes)
        if count:
            self._take(file, count, base)
        if status == ScanStatus.BLANK or (status == ScanStatus.END and file.size - position < FIXED_SIZE_V1):
            self.progress.offset = base + file.size
        elif status in (ScanStatus.END, ScanStatus.FULL):
            self.progress.offset = base + position
        else:
            raise CorruptData(
                f"no message record ({ScanStatus(status).name}) where one should be; run `stratalog verify`",
                path=str(file.path),
                position=position,
            )

    def _take(self, file: MappedFile, count: int, base: int) -> None:
        self._build_units(file, count, base)
        starts = np.zeros(self._table.count + 1, np.int64)
        scatter(self._units, self._rows, count, self._table.count, starts, self._sorted)
        edges = (starts * UNIT.size).tolist()
        units = self._sorted.data
        for row in np.flatnonzero(np.diff(starts)).tolist():
            self._by_row[row].append(units[edges[row] : edges[row + 1]])
        if self._index:
            self._index.put(file.address, self._positions, count, base)
        last = int(self._positions[count - 1])
        self.progress.last_record_offset = base + last
        self.progress.last_store_timestamp = self._log.message(base + last).store_timestamp

    def _build_units(self, file: MappedFile, count: int, base: int) -> None:
        done = 0
        while done < count:
            done, status = build_units(
                file.address, self._positions, done, count, base, self._table.rows, self._table.table, self._units,
                self._rows, self._delays,
            )  # fmt: skip
            if status == UnitStatus.UNKNOWN_QUEUE:
                record = self._record(file, done)
                self._register(self.queue(record.topic.decode(), record.queue_id))
            elif status == UnitStatus.GAP:
                self._open_gap(file, done)

    def _open_gap(self, file: MappedFile, number: int) -> None:
        """The record's queue offset is ahead: write what this chunk has for the queue, then filler units up to it."""
        record = self._record(file, number)
        queue = self.queues[record.topic.decode(), record.queue_id]
        row = self._by_row.index(queue)
        mine = np.flatnonzero(self._rows[:number] == row)
        queue.append(self._units.reshape(-1, UNIT.size)[mine].tobytes())
        self._rows[mine] = -1
        queue.skip_to(record.queue_offset, record.commit_log_offset)
        self._table.rows[row][QUEUE_NEXT_OFFSET] = record.queue_offset

    def _record(self, file: MappedFile, number: int) -> Record:
        position = int(self._positions[number])
        return decode_record(file.view.data, position, verify=False)
