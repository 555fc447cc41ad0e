"""What `verify` says, and the piece of log that its parts hand on to each other."""

import threading
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stratalog.store.disk import MappedFile
from stratalog.store.recovery import Damage

CHUNK_RECORDS = 1 << 16
LISTED_MAX = 1000
"""Problems that are kept with all they say; later ones are only counted."""
REBUILD = "run `stratalog rebuild` while the store is closed: queues and index are built again from the log"
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
        return f"{self.path} at byte {self.position}: expected {self.expected}, found {self.found}; {self.next_step}"


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
    """Bytes of a record behind the log's end that was never finished; the next opening for writing cuts them off."""
    units_behind: int = 0
    index_items_behind: int = 0
    damages: list[Damage] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problem_count

    def add(self, problem: Problem) -> None:
        with _adding:  # queues and index are checked beside each other
            self.problem_count += 1
            if len(self.problems) < LISTED_MAX:
                self.problems.append(problem)

    def add_lost(self, part: Part, path: str, position: int, what: str) -> None:
        """Something of an unclean store knows messages that the log does not have. Opening forgets them."""
        if not self.is_live:
            found = f"{what}, where the log has no message any more (it ends at {self.log_end:,})"
            step = "restore the newest files of commitlog/ before the store is opened for writing, which drops this"
            self.add(Problem(part, path, position, "nothing after the end of the log", found, step))

    def in_damage(self, commit_log_offset: int) -> bool:
        """Whether a log offset lies in a damaged range: what points there is a consequence, no problem of its own."""
        return any(damage.begin <= commit_log_offset < damage.end for damage in self.damages)


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
