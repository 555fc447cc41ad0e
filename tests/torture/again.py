"""A repair or a rebuild that is stopped, or that the system fails, at its n-th call: the same command goes on.

Every call of the process that reads or changes a file below the store is counted. At one of them the process ends (no
later call changes anything) or the call fails. Then the store opens, or the error names the command that goes on; what
is served meanwhile is not wrong; and the same command, run again, leaves a store that serves what it does after a run
that nothing stopped.
"""

import errno
import io
import os
import shutil
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.faults import Stopped
from store.damage import GHOST, GIVEN, KINDS, SETTINGS, Original, Put, inflict, records_of, unit_bytes
from store.kinds import KINDS as QUEUE_KINDS
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, StratalogError
from stratalog.layout.message import LOST_FLAG
from stratalog.layout.names import STAGING, UNFINISHED_COPY
from stratalog.tools import rebuild as rebuilding
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from torture.report import Lost, Row, Torture, Undetected, WrongPrefix

CASE_SECONDS = 20.0
CHANGING = (
    "chmod", "copy_file_range", "fchmod", "fdatasync", "fsync", "ftruncate", "link", "mkdir", "posix_fallocate",
    "pwrite", "rename", "rmdir", "symlink", "truncate", "unlink", "utime",
)  # fmt: skip
READING = ("listdir", "pread", "scandir")
ALLOCATING = frozenset({
    "open for writing", "copy_file_range", "fsync", "link", "mkdir", "posix_fallocate", "pwrite", "rename"
})  # fmt: skip
OPENING = frozenset({"open", "open for writing", "listdir", "scandir"})
FAULTS = {"kill": 0, "EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EMFILE": errno.EMFILE}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
Served = dict[tuple[str, int, int], tuple[bool, bytes]]
"""Whether it is a placeholder, and the body, by topic, queue and queue offset."""


class Calls:
    """Counts the calls below a folder, in `trace`; fails one, or lets none change anything from one on."""

    def __init__(self, folder: Path, fault: str = "", at: int = -1) -> None:
        self._folder, self._fault, self._at = str(folder), fault, at
        self.trace: list[str] = []
        self.names: list[str] = []
        self._stopped = False

    @contextmanager
    def installed(self) -> Iterator["Calls"]:
        with pytest.MonkeyPatch.context() as patch:
            self._readlink = os.readlink
            for name in (*CHANGING, *READING, "open"):
                patch.setattr(os, name, self._counted(name, getattr(os, name)))
            patch.setattr(io, "open", self._counted("io.open", io.open))
            patch.setattr(rebuilding, "exchange", self._counted("rename", rebuilding.exchange))
            yield self

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            path = self._path(given[0] if given else ".", named.get("dir_fd"))
            if path.startswith(self._folder):
                self._before(_kind(name, given), path)
            return real(*given, **named)

        return call

    def _path(self, what: Any, directory: int | None) -> str:
        if isinstance(what, int):
            return self._readlink(f"/proc/self/fd/{what}") if what >= 0 else ""
        if directory is not None:
            return os.path.join(self._readlink(f"/proc/self/fd/{directory}"), what)
        return os.fspath(what)

    def _before(self, name: str, path: str) -> None:
        number, changes = len(self.trace), name in CHANGING or name == "open for writing"
        self.trace.append(f"{name} of {path[len(self._folder) :].lstrip('/')}")
        self.names.append(name)
        if self._fault == "kill" and number >= self._at and changes:
            self._stopped = True
        if self._stopped and changes:
            raise Stopped
        if number == self._at and self._fault != "kill" and self._fault:
            code = FAULTS[self._fault]
            raise OSError(code, os.strerror(code), path)

    def points(self, fault: str) -> list[int]:
        """The calls at which a fault can come."""
        able = {"ENOSPC": ALLOCATING, "EMFILE": OPENING, "kill": {*CHANGING, "open for writing"}}.get(fault)
        return [number for number, name in enumerate(self.names) if able is None or name in able]


def _kind(name: str, given: tuple[Any, ...]) -> str:
    if name == "open":
        return "open for writing" if len(given) > 1 and given[1] & _WRITING else "open"
    if name == "io.open":
        return "open for writing" if len(given) > 1 and given[1] not in ("r", "rb") else "open"
    return name


class Extended(Original):
    """A store whose queues have extensions."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.kind, self.record_crc = root, "extended", False
        kind = next(kind for kind in QUEUE_KINDS if "ext" in kind.name)
        kind.made(root, count=50 + 10 * seed, **(SETTINGS | EXTENDED))
        self.puts = [Put(record, data) for record, data in records_of(root)[0]]
        self.end = self.puts[-1].offset + len(self.puts[-1].data)
        self.units = unit_bytes(root)


EXTENDED = {"enable_consume_queue_ext": True}
WAYS = ("rebuild", "repair", "repair --to")


@dataclass
class Job:
    """One command on one damaged store."""

    way: str
    root: Path
    settings: StoreSettings

    @property
    def target(self) -> Path:
        return self.root.with_name("copy") if self.way == "repair --to" else self.root

    def run(self) -> None:
        if self.way == "rebuild":
            rebuild(self.root, settings=self.settings)
            return
        plan = plan_repair(self.root, settings=self.settings)
        repair(plan, to=self.target if self.way == "repair --to" else None)

    def again(self) -> None:
        """As the errors say: an unfinished copy is removed first."""
        if self.way == "repair --to":
            shutil.rmtree(self.target, ignore_errors=True)
        self.run()


@dataclass
class Result:
    """What a store is after a command."""

    served: Served
    ends: dict[tuple[str, int], tuple[int, int]]
    ok: bool
    left: list[str] = field(default_factory=list)


def served(root: Path, settings: StoreSettings) -> tuple[Served, dict[tuple[str, int], tuple[int, int]]]:
    """All that can be read, and the first and next offset of each queue."""
    found: Served = {}
    ends = {}
    with stratalog.open(root, mode="r", settings=settings) as store:
        for key in store.queues():
            if key[0] == GHOST:  # a copy of a queue: where no message of the two is left either may keep the offsets
                continue
            queue = store.queue(*key)
            ends[key] = queue.min_offset, queue.max_offset
            start = queue.min_offset
            while start < queue.max_offset:
                try:
                    for message in queue.read(start):
                        start = message.queue_offset + 1
                        found[*key, message.queue_offset] = message.flag == LOST_FLAG, message.body
                    break
                except CorruptData as error:
                    if error.next_offset <= start:
                        raise
                    start = error.next_offset
    return found, ends


def result(root: Path, settings: StoreSettings) -> Result:
    messages, ends = served(root, settings)
    names = [path.name for path in root.iterdir()]
    left = [name for name in names if name.endswith(".tmp") or name in ("abort", UNFINISHED_COPY, STAGING)]
    return Result({key: (lost, b"" if lost else body) for key, (lost, body) in messages.items()}, ends,
                  verify(root, settings=settings).ok, sorted(left))  # fmt: skip


def _copy(source: str, target: str) -> None:
    if stat.S_ISFIFO(os.stat(source).st_mode):
        os.mkfifo(target)
    else:
        shutil.copy(source, target)


class Judge:
    """One damaged store and one command: what it does when nothing stops it, and its calls."""

    def __init__(self, damaged: Path, folder: Path, way: str, settings: StoreSettings, original: Original) -> None:
        self._damaged, self._folder, self._settings = damaged, folder, settings
        self.job = Job(way, folder / "store", settings)
        self._put = {key: put.record.body for put in original.puts for key in put.keys[:1] if len(put.keys) == 1}
        self._before: Served | None = None
        self._begin()
        try:
            self._before = served(self.job.root, settings)[0]
        except StratalogError:
            self._before = None
        with Calls(folder).installed() as calls:
            self.job.run()
        self.calls = calls
        self.expected = result(self.job.target, settings)

    def _begin(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._damaged, self.job.root, copy_function=_copy)

    def case(self, fault: str, at: int) -> str:
        """Returns how the run ended."""
        self._begin()
        error: BaseException | None = None
        with Calls(self._folder, fault, at).installed():
            try:
                self.job.run()
            except (Stopped, Exception) as raised:  # noqa: BLE001 - judged below
                error = raised
        self._check_error(fault, error)
        self._check_between(error)
        self.job.again()
        now = result(self.job.target, self._settings)
        for key in self.expected.served.keys() - now.served.keys():
            raise Lost(f"{key} is not served after the second run")
        if now != self.expected:
            raise WrongPrefix(f"the second run leaves another store: {_difference(self.expected, now)}")
        return "stopped" if isinstance(error, Stopped) else type(error).__name__ if error else "not noticed"

    def _check_error(self, fault: str, error: BaseException | None) -> None:
        if fault == "kill" or error is None:
            return
        if not isinstance(error, StratalogError):
            raise Undetected(f"{type(error).__name__} instead of an error of ours: {error}") from error
        text = str(error)
        if str(self._folder) not in text:
            raise Undetected(f"the error names no place: {text}") from error
        if os.strerror(FAULTS[fault]) not in text and "no room" not in text:
            raise Undetected(f"the error does not say why: {text}") from error
        if "mode='r'" in text or STAGING + " cannot be opened" in text or "put before" in text:
            raise Undetected(f"the error is one of a store that is open: {text}") from error

    def _check_between(self, error: BaseException | None) -> None:
        if error is None:
            return
        target = self.job.target
        if target != self.job.root and target.exists() and any(target.iterdir()):
            try:
                served(target, self._settings)
            except StratalogError as refused:
                if "stratalog repair" not in str(refused):
                    raise Undetected(f"the unfinished copy is refused with: {refused}") from refused
            else:
                if (target / UNFINISHED_COPY).exists():
                    raise Undetected("an unfinished copy is opened")
        try:
            meanwhile = served(self.job.root, self._settings)[0]
        except StratalogError as refused:
            if self._before is not None and "stratalog re" not in str(refused):
                raise Undetected(f"between two runs the store is refused with: {refused}") from refused
            return
        for key, (lost, body) in meanwhile.items():
            allowed = [(self._before or {}).get(key, (False, None))[1], self.expected.served.get(key, (False, None))[1]]
            if not lost and body not in allowed and body != self._put.get(key):
                raise WrongPrefix(f"{key} is served wrong between two runs")


def _difference(expected: Result, now: Result) -> str:
    for name in ("left", "ok", "ends"):
        if getattr(expected, name) != getattr(now, name):
            return f"{name}: {getattr(now, name)!r:.200}, not {getattr(expected, name)!r:.200}"
    keys = [key for key in now.served if now.served[key] != expected.served.get(key)]
    return f"{len(keys)} messages, the first {keys[0]}"


def damaged_store(
    torture: Torture, name: str, originals: list[tuple[Original, Original]]
) -> tuple[Original, Path, str]:
    """A store of some kind, damaged; every third one lacks its last log file."""
    chance = torture.chance("again", name)
    original, other = chance.choice(originals)
    root = original.copy(torture.place("again") / "damaged")
    done = []
    if chance.random() < 0.35:
        last = max((root / "commitlog").iterdir())
        last.unlink()
        done.append(f"{last.name} is gone")
    if not done or chance.random() < 0.3:
        done += inflict(original, root, chance, other)
    return original, root, f"{original.kind}: {'; '.join(done)}"


def made(torture: Torture) -> list[tuple[Original, Original]]:
    place = torture.place("again-originals")
    pairs: list[tuple[Original, Original]] = []
    for kind in KINDS:
        one, other = (Original(place / f"{kind}-{seed}", kind, record_crc=False, seed=seed) for seed in (1, 2))
        pairs.append((one, other))
    return [*pairs, (Extended(place / "extended-1", 1), Extended(place / "extended-2", 2))]


def again(torture: Torture, row: Row) -> None:
    """Stores of every kind, damaged; each command; a fault at calls drawn by chance, of each kind."""
    originals, counts = made(torture), Counter[str]()
    for number in range(torture.count(4, 60)):
        chance = torture.chance("again", f"{number} way")
        way = chance.choice(WAYS)
        original, damaged, what = damaged_store(torture, str(number), originals)
        settings = GIVEN.override(EXTENDED if original.kind == "extended" else {})
        try:
            judge = Judge(damaged, torture.place("again") / "case", way, settings, original)
        except StratalogError:
            counts["stores refused"] += 1
            continue
        for fault in FAULTS:
            points = judge.calls.points(fault)
            for at in sorted(chance.sample(points, min(len(points), torture.count(2, 8)))):
                if torture.wants(f"{number}/{fault}/{at}"):
                    name = f"{number}/{fault}/{at} ({way}, {judge.calls.trace[at]}; {what})"
                    with row.case(name, seconds=CASE_SECONDS):
                        counts[judge.case(fault, at)] += 1
    row.notes.append(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
