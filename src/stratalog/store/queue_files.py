"""Files of equal size that hold a queue's bytes one after the other: what all kinds of queues stand on."""

from collections.abc import Iterator
from pathlib import Path

from stratalog.errors import CorruptData, command, counted
from stratalog.layout.names import offset_name, offset_of
from stratalog.store.disk import Disk
from stratalog.store.open_files import OpenFiles
from stratalog.store.sizes import other_size_step


class QueueFiles:
    """The files of the directory `root/place`, named by the position of their first byte. Positions count through all.

    Written by the dispatcher only. `starts` are the files there are, ascending and without a gap.
    """

    def __init__(self, root: Path, place: str, files: OpenFiles, disk: Disk, *, file_size: int, setting: str) -> None:
        self._root = root
        self._place = place
        self.file_size = file_size
        self.starts: list[int] = []
        self._files = files
        self._disk = disk
        self._setting = setting

    @property
    def directory(self) -> Path:
        return self._root / self._place

    def load(self) -> bool:
        """Find the files. False when one is missing in the middle: those after are removed, and derived again.

        Raises `CorruptData` for a file of another size.
        """
        for name, size in self._disk.files(self.directory).items():
            start = offset_of(name)
            if start is None:
                continue
            if size == 0:  # RocketMQ creates a file before it gives it its length: it was killed in between
                self._files.remove(self.directory / name)
                continue
            if size != self.file_size:
                raise CorruptData(
                    f"the file has {counted(size, 'byte')}, {self.file_size:,} are expected. "
                    + other_size_step(self._setting, self.file_size, self._root, self._disk),
                    path=str(self.directory / name),
                    position=size,
                )
            if start % self.file_size:
                raise CorruptData(
                    f"no file of {self.file_size:,} bytes has that name: rename it back, or let "
                    f"{command('repair', self._root)} build the queue again",
                    path=str(self.directory / name),
                )
            self.starts.append(start)
        for number in range(1, len(self.starts)):
            if self.starts[number] != self.starts[number - 1] + self.file_size:
                while len(self.starts) > number:
                    self.remove_last()
                return False
        return True

    def newest_first(self) -> Iterator[tuple[int, bytes]]:
        """First position and bytes of each file in the directory, also of those that `load` left out."""
        for name, size in reversed(self._disk.files(self.directory).items()):
            start = offset_of(name)
            if start is not None and size == self.file_size:
                yield start, self._files.read(self.path(start), 0, self.data_end(start))

    @property
    def begin(self) -> int:
        """Position of the first byte there is."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """Position after the last file."""
        return self.starts[-1] + self.file_size if self.starts else 0

    def path(self, position: int) -> Path:
        """The file that holds a position; files lie at multiples of their size."""
        return self.directory / offset_name(position - position % self.file_size)

    def read(self, position: int, size: int) -> bytes:
        """`size` bytes from a position on, through as many files as it takes."""
        pieces = []
        while size > 0:
            inside = position % self.file_size
            piece = min(size, self.file_size - inside)
            pieces.append(self._files.read(self.path(position), inside, piece))
            position, size = position + piece, size - piece
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def add(self, start: int) -> None:
        """Add the file that begins at `start`."""
        self._files.create(self.path(start), self.file_size)
        self.starts.append(start)

    def data_end(self, start: int) -> int:
        """Bytes of a file after which nothing was ever written, where the file system can tell."""
        return min(self._files.data_end(self.path(start)), self.file_size)

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write at a position in the last file or right after it; files are added as needed."""
        view = memoryview(data)
        while view:
            inside = position % self.file_size
            start = position - inside
            if not self.starts or start > self.starts[-1]:
                self.add(start)
            piece = view[: self.file_size - inside]
            self._files.write(self.path(start), inside, piece)
            view = view[len(piece) :]
            position += len(piece)

    def cut(self, position: int) -> bool:
        """Remove the files that begin after `position`, or at it if they hold anything, and zero what follows it in the
        last one. Returns whether there was anything."""
        if self.is_blank_from(position):
            return False
        while self.starts and self.starts[-1] >= position:
            self.remove_last()
        if self.starts and position < self.end:
            self._files.zero_from(self.path(self.starts[-1]), position - self.starts[-1])
        return True

    def is_blank_from(self, position: int) -> bool:
        """Whether only zeros follow a position, all of them in the file that it lies in."""
        if position >= self.end:
            return True
        start = self.starts[-1]
        if position < start:
            return False
        size = max(0, start + self.data_end(start) - position)
        return self.read(position, size).count(0) == size

    def remove_last(self) -> None:
        self._files.remove(self.path(self.starts.pop()))
