"""One ConsumeQueue: 20-byte units that lead from a queue offset to the record in the log. Derived data."""

import threading
from collections import OrderedDict
from pathlib import Path

from stratalog.errors import CorruptData
from stratalog.layout.names import CONSUME_QUEUE, offset_name, offset_of
from stratalog.layout.queue import FILLER, FILLER_SIZE, UNIT
from stratalog.store.disk import Disk, OpenFile, failed


class OpenFiles:
    """A bounded cache of open queue files; the least recently used is closed. Any thread may use it."""

    def __init__(self, disk: Disk, *, count_max: int = 128) -> None:
        self._disk = disk
        self._count_max = count_max
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._dirty: set[Path] = set()

    def _get(self, path: Path) -> OpenFile:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._disk.open(path)
            if len(self._files) > self._count_max:
                oldest, evicted = self._files.popitem(last=False)
                if oldest in self._dirty:
                    self._dirty.discard(oldest)
                    _sync(evicted)
                evicted.close()
        else:
            self._files.move_to_end(path)
        return file

    def read(self, path: Path, position: int, size: int) -> bytes:
        with self._lock:
            return self._get(path).read(position, size)

    def write(self, path: Path, position: int, data: bytes | memoryview) -> None:
        with self._lock:
            self._get(path).write(position, data)
            self._dirty.add(path)

    def zero_from(self, path: Path, position: int) -> None:
        with self._lock:
            self._get(path).zero_from(position)
            self._dirty.add(path)

    def sync(self) -> None:
        """Make every write so far durable. Raises `StoreFailed`: a failed flush is not tried again."""
        with self._lock:
            while self._dirty:
                _sync(self._get(self._dirty.pop()))

    def drop(self, path: Path) -> None:
        """Forget a file that is about to be removed."""
        with self._lock:
            self._dirty.discard(path)
            file = self._files.pop(path, None)
            if file is not None:
                file.close()

    def close(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()


def _sync(file: OpenFile) -> None:
    try:
        file.sync()
    except OSError as error:
        raise failed(f"flush of {file.path}", error) from error


class ConsumeQueue:
    """The units of one queue of one topic.

    `end_offset` is the queue offset behind the last unit; the unit of offset q stands at byte `q * 20` of the queue's
    files together. A queue that begins in the middle (older messages had gone) is filled in front with filler units.
    Written by the dispatcher only; reads go through the file descriptor: a unit is visible once `end_offset` covers it.
    """

    def __init__(self, root: Path, topic: str, queue_id: int, files: OpenFiles, disk: Disk, *, file_size: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = root / CONSUME_QUEUE / topic / str(queue_id)
        self.file_size = file_size
        self._files = files
        self._disk = disk
        self._starts: list[int] = []
        self.end_offset = 0
        self.is_damaged = False

    def load(self) -> None:
        """Find the files and the end of the written units."""
        self._disk.clear_unfinished(self.directory)
        for name, size in self._disk.files(self.directory).items():
            start = offset_of(name)
            if start is None:
                continue
            if size == 0:  # RocketMQ creates a file before it gives it its length: it was killed in between
                self._disk.remove(self.directory / name)
                continue
            if size != self.file_size:
                raise CorruptData(
                    f"the queue file has {size:,} bytes, {self.file_size:,} are expected. If the store uses another "
                    f"size, set mapped_file_size_consume_queue; else remove {self.directory}: it is rebuilt",
                    path=str(self.directory / name),
                    position=size,
                )
            self._starts.append(start)
        self._drop_behind_gap()
        self.end_offset = self._find_end()

    def _drop_behind_gap(self) -> None:
        """A file is missing in the middle: units behind the gap are dropped, recovery derives them again."""
        for number in range(1, len(self._starts)):
            if self._starts[number] != self._starts[number - 1] + self.file_size:
                self.is_damaged = True
                while len(self._starts) > number:
                    self._remove_last_file()
                return

    def _find_end(self) -> int:
        """Behind the last written unit: units are written without holes, so a bisection in the last file finds it."""
        while self._starts:
            start = self._starts[-1]
            low, high = 0, self.file_size // UNIT.size
            while low < high:
                middle = (low + high) // 2
                if self._unit_in(start, middle)[1] > 0:
                    low = middle + 1
                else:
                    high = middle
            if low or len(self._starts) == 1:
                return start // UNIT.size + low
            self._remove_last_file()
        return 0

    def _unit_in(self, start: int, number: int) -> tuple[int, int, int]:
        data = self._files.read(self._path(start), number * UNIT.size, UNIT.size)
        unit: tuple[int, int, int] = UNIT.unpack(data)
        return unit

    def _path(self, start: int) -> Path:
        return self.directory / offset_name(start)

    @property
    def first_offset(self) -> int:
        """Queue offset of the first unit in the files (which may be a filler)."""
        return self._starts[0] // UNIT.size if self._starts else 0

    def min_offset(self, log_min_offset: int) -> int:
        """First queue offset whose record is still in the log; the end when none is (ConsumeQueue.correctMinOffset)."""
        low, high = self.first_offset, self.end_offset
        while low < high:
            middle = (low + high) // 2
            commit_log_offset, size, _ = self.unit(middle)
            in_front = size == FILLER_SIZE and not commit_log_offset
            if in_front or commit_log_offset < log_min_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def unit(self, queue_offset: int) -> tuple[int, int, int]:
        """commit_log_offset, size and tags code of one unit."""
        position = queue_offset * UNIT.size
        start = self._file_start(position)
        return self._unit_in(start, (position - start) // UNIT.size)

    def _file_start(self, position: int) -> int:
        """Start of the file that holds a byte of the queue; files lie at multiples of their size."""
        return position - position % self.file_size

    def units(self, first: int, count: int) -> bytes:
        """Raw units [first, first + count), cut at the end of the queue."""
        position, end = first * UNIT.size, min(first + count, self.end_offset) * UNIT.size
        pieces = []
        while position < end:
            start = self._file_start(position)
            size = min(end, start + self.file_size) - position
            pieces.append(self._files.read(self._path(start), position - start, size))
            position += size
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def append(self, units: bytes | memoryview) -> None:
        """Write units behind the end."""
        position = self.end_offset * UNIT.size
        view = memoryview(units)
        while view:
            start = self._file_start(position)
            if not self._starts or start > self._starts[-1]:
                self._create(start)
            piece = view[: start + self.file_size - position]
            self._files.write(self._path(start), position - start, piece)
            view = view[len(piece) :]
            position += len(piece)
        self.end_offset = position // UNIT.size

    def skip_to(self, queue_offset: int, commit_log_offset: int) -> None:
        """Fill up to `queue_offset` with filler units: a new queue begins in the middle, or messages were lost.

        Fillers for lost messages carry a log offset between the neighbours', so that units stay in order.
        """
        start = self._file_start(queue_offset * UNIT.size)
        if not self._starts:
            self._create(start)
            self.end_offset = start // UNIT.size
        filler = UNIT.pack(commit_log_offset, FILLER_SIZE, 0) if self.last_unit() else FILLER
        while self.end_offset < queue_offset:
            self.append(filler * min(queue_offset - self.end_offset, 4096))

    def _create(self, start: int) -> None:
        self._disk.make_directory(self.directory)
        self._disk.create_sparse(self._path(start), self.file_size)
        self._starts.append(start)

    def _remove_last_file(self) -> None:
        path = self._path(self._starts.pop())
        self._files.drop(path)
        self._disk.remove(path)

    def offset_of(self, commit_log_offset: int) -> int:
        """Queue offset of the first unit of a record at or behind a log offset; the end when there is none.

        A unit of zeros was lost in a crash: it counts as behind, as everything after it.
        """
        low, high = self.first_offset, self.end_offset
        while low < high:
            middle = (low + high) // 2
            offset, size, _ = self.unit(middle)
            if offset >= commit_log_offset or not size:
                high = middle
            else:
                low = middle + 1
        return low

    def truncate(self, commit_log_offset: int) -> None:
        """Drop the units of records at or behind `commit_log_offset`; later files go, the rest is zeroed."""
        low = self.offset_of(commit_log_offset)
        if low == self.end_offset:
            return
        position = low * UNIT.size
        while self._starts and self._starts[-1] >= position:
            self._remove_last_file()
        if self._starts:
            self._files.zero_from(self._path(self._starts[-1]), position - self._starts[-1])
        self.end_offset = low if self._starts else 0

    def last_unit(self) -> tuple[int, int, int] | None:
        """The newest unit that is no filler, None when there is none."""
        if self.end_offset > self.first_offset:
            unit = self.unit(self.end_offset - 1)
            if unit[1] != FILLER_SIZE:
                return unit
        return None
