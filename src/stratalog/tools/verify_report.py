"""What `verify` says, and the piece of log that its parts hand on to each other."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import with_store
from stratalog.layout.message import FIXED_SIZE_V1
from stratalog.layout.names import COMMIT_LOG
from stratalog.store.disk import SMALL_FILE_SIZE_MAX, MappedFile, OpenFile, PrivateDisk
from stratalog.store.os_errors import is_of_system, next_step
from stratalog.store.recovery import Damage

CHUNK_RECORDS = 1 << 16
LISTED_MAX = 1000
_FOREVER = 2**63 - 1
"""Problems that are kept with all they say; later ones are only counted."""
REPAIR = "let `stratalog repair STORE` build queues, index and checkpoint again from the log"
"""What to do: unlike a rebuild it mends the log first where it has to. STORE is the store's path in a report."""
Part = Literal["files", "log", "queue", "index", "checkpoint", "config"]
PARTS: tuple[str, ...] = get_args(Part)
_adding = threading.Lock()


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: where (file and byte position in it), what should be there, what is, and what to do about it."""

    part: Part
    path: str
    position: int
    expected: str
    found: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.path} at byte {self.position:,}: expected {self.expected}, found {self.found}; {self.next_step}"


@dataclass(slots=True)
class VerifyReport:
    """What was checked and what was found. Offsets and sizes are bytes; `ok` is the verdict."""

    root: str
    clean: bool
    """Whether the store was closed properly: if not, queues and index may trail the log."""
    is_live: bool = False
    """Whether a process holds the store's lock: queues and index may be ahead of the log as it was read."""
    log_begin: int = 0
    log_end: int = 0
    log_file_count: int = 0
    record_count: int = 0
    queue_count: int = 0
    unit_count: int = 0
    index_file_count: int = 0
    index_item_count: int = 0
    torn_size: int = 0
    """Bytes of a record after the log's end that was never finished; the next opening for writing cuts them off."""
    gone_count: int = 0
    """Messages before the log's first file that queues still name: removed by retention, or lost with a file."""
    deleted_count: int = 0
    """Messages of topics that were deleted and created again: the queues begin after them."""
    missing: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Topic, queue id and offsets [first, end) that no record has, though no damage of the log explains it."""
    lost_before: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Those of `missing` whose units say that they were lost to damage earlier."""
    damaged_properties: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Places, like `missing`, of whole records in front of damage that begins in their properties, or of which the
    queue unit has the hash of other tags."""
    fillers: list[int] = field(default_factory=list)
    """Log offsets of the records that a repair left where no placeholder had room."""
    units_behind: int = 0
    index_items_behind: int = 0
    damages: list[Damage] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    notes: list[str] = field(default_factory=list)
    batch_topics: set[str] = field(default_factory=set)
    """Topics that are of type BatchCQ and that `topics.json` has no entry for."""
    light_queue: str = ""
    """A light queue by the records alone."""
    unreadable: list[str] = field(default_factory=list)
    """Files and directories that the system did not let be read."""

    @property
    def ok(self) -> bool:
        return not self.problem_count

    @property
    def is_log_lost(self) -> bool:
        """Whether not one whole record is left of those that there were."""
        is_told = self.damages or any(problem.part in ("log", "queue") for problem in self.problems)
        return not self.record_count and not self.unreadable and bool(is_told)

    @property
    def is_log_unreadable(self) -> bool:
        """Whether nothing was checked: the system does not let files of the log be read, and the others hold no
        record."""
        return not self.record_count and self.is_unreadable_in(Path(self.root) / COMMIT_LOG)

    def add(self, problem: Problem) -> None:
        with _adding:  # queues and index are checked beside each other
            if self.is_unreadable(Path(problem.path)):  # what follows from that is no problem of its own
                return
            self.problem_count += 1
            problem = replace(problem, next_step=with_store(problem.next_step, self.root))
            if len(self.problems) < LISTED_MAX:
                self.problems.append(problem)

    def is_unreadable(self, path: Path) -> bool:
        """Whether a file or directory, or one that it lies in, could not be read."""
        return bool(self.unreadable) and any(str(at) in self.unreadable for at in (path, *path.parents))

    def is_unreadable_in(self, directory: Path) -> bool:
        """Whether a directory, or anything below it, could not be read."""
        return self.is_unreadable(directory) or any(Path(path).is_relative_to(directory) for path in self.unreadable)

    def add_unreadable(self, path: Path, error: OSError) -> None:
        """The system does not let a file or directory be read. Once is enough."""
        what = "a directory that can be listed" if os.path.isdir(path) else "a file that can be read"
        step = next_step(error)
        self.add(Problem("files", str(path), 0, what, f"cannot be read: {error.strerror or error}", step))
        with _adding:
            if str(path) not in self.unreadable:
                self.unreadable.append(str(path))

    def add_lost(self, part: Part, path: str, position: int, what: str) -> None:
        """Something of an unclean store knows messages that the log does not have. Opening forgets them."""
        if not self.is_live:
            found = f"{what}, where the log has no message any more (it ends at {self.log_end:,})"
            step = (
                "restore the newest files of commitlog/; or, if a crash took what they lack, let `stratalog repair "
                "STORE` keep those queue offsets. Opening for writing removes it"
            )
            self.add(Problem(part, path, position, "nothing after the end of the log", found, step))

    def add_missing(self, queue: tuple[str, int], first: int, end: int, after: int, before: int = _FOREVER) -> None:
        """Offsets [first, end) of a queue have no record between two log offsets. Damage there explains it, and so does
        what a repair left in its place."""
        covered = ((at, at + 1) for at in self.fillers)
        ranges = (*((damage.begin, damage.end) for damage in self.damages), *covered)
        if first < end and not any(begin < before and stop > after for begin, stop in ranges):
            self.missing.append((*queue, first, end))

    def add_missing_in_front(self, queue: tuple[str, int], end: int, commit_log_offset: int) -> None:
        """The first record of a queue stands there and has that offset. A later log may have had those before it, and
        where this one has no room for them an earlier log had."""
        if not self.log_begin and end <= commit_log_offset // FIXED_SIZE_V1:
            self.add_missing(queue, 0, end, 0, commit_log_offset)

    def in_damage(self, commit_log_offset: int) -> bool:
        """Whether a log offset lies in a damaged range: what points there is a consequence, no problem of its own."""
        return any(damage.begin <= commit_log_offset < damage.end for damage in self.damages)

    def are_in_damage(self, commit_log_offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """`in_damage` of each."""
        inside = np.zeros(len(commit_log_offsets), np.bool_)
        for damage in self.damages:
            inside |= (commit_log_offsets >= damage.begin) & (commit_log_offsets < damage.end)
        return inside


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole records of one file, in order. Byte p of it is log offset `base_offset + p`; the arrays are reused."""

    file: MappedFile
    base_offset: int
    positions: NDArray[np.int64]
    sizes: NDArray[np.int32]

    @property
    def end_offset(self) -> int:
        return self.base_offset + int(self.positions[-1]) + int(self.sizes[-1])


class Unreadable(OSError):
    """A file that cannot be read, which the report has."""


class ReportingDisk(PrivateDisk):
    """The files as they are. One that the system does not let be read is a problem in the report: directories and small
    files are passed over then, others raise `Unreadable`."""

    def __init__(self, report: VerifyReport) -> None:
        super().__init__()
        self._report = report
        self._left_out: set[str] = set()

    @contextmanager
    def without(self, path: str) -> Iterator[None]:
        """Meanwhile that file is not listed."""
        self._left_out.add(path)
        try:
            yield
        finally:
            self._left_out.discard(path)

    @contextmanager
    def _reporting(self, path: Path) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if not is_of_system(error):
                raise
            self._report.add_unreadable(path, error)
            raise Unreadable(error.errno, error.strerror, str(path)) from error

    def files(self, directory: Path) -> dict[str, int]:
        try:
            with self._reporting(directory):
                found = super().files(directory)
                return {name: size for name, size in found.items() if str(directory / name) not in self._left_out}
        except Unreadable:
            return {}

    def directories(self, directory: Path, *, or_links: bool = False) -> list[str]:
        try:
            with self._reporting(directory):
                return super().directories(directory, or_links=or_links)
        except Unreadable:
            return []

    def read(
        self, path: Path, *, size_max: int = SMALL_FILE_SIZE_MAX, cut: bool = False, position: int = 0
    ) -> bytes | None:
        try:
            with self._reporting(path):
                return super().read(path, size_max=size_max, cut=cut, position=position)
        except Unreadable:
            return None

    def remove(self, path: Path) -> None:
        """Nothing is: a file without a size may be one that a writer has just created."""

    def map(self, path: Path, *, size_min: int = 0) -> MappedFile:
        with self._reporting(path):
            file = super().map(path, size_min=size_min)
            file.populate(0, file.data_end)
            return file

    def open(self, path: Path) -> OpenFile:
        with self._reporting(path):
            return _ReportingFile(path, super().open(path), self._reporting)


class _ReportingFile(OpenFile):
    def __init__(self, path: Path, file: OpenFile, reporting: Callable[[Path], AbstractContextManager[None]]) -> None:
        super().__init__(path, None, file.process)
        self._inner, self._reporting = file, reporting

    def read(self, position: int, size: int) -> bytes:
        with self._reporting(self.path):
            return self._inner.read(position, size)

    def data_end(self) -> int:
        with self._reporting(self.path):
            return self._inner.data_end()

    def close(self) -> None:
        self._inner.close()
