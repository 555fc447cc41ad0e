"""Each file of a store missing, empty, cut, too long, or replaced: what is lost by that is named, not forgotten.

The replacements are those of careless restoring: an older copy of the file, a sibling, the file of another store. The
log as it is then says what can be served (`oracle`); opening serves it, or refuses. What the log lost and queues,
index, checkpoint or snapshot know of, `verify` names a problem for.
"""

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import stratalog
from golden.cases import golden_case
from golden.test_store_reads import settings_of
from store.model import QUIET, SMALL, Clock, crash_copy, log_files, walk
from store.test_queue_kinds import KINDS, fill
from store.test_queue_kinds import opened as opened_kinds
from stratalog.errors import CorruptData, StratalogError
from stratalog.layout.message import HEAD, MAGIC_V1, decode_record
from stratalog.layout.names import (
    ABORT,
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    INDEX,
    LOCK,
    SNAPSHOT,
)
from stratalog.layout.queue import BATCH_UNIT, LOST_TAGS_CODE, UNIT
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk
from stratalog.tools.verify import verify
from torture.oracle import Served, in_queues, missing, of_records
from torture.report import Lost, Row, Torture, Undetected

GOLDEN = "plain-5.5.0", "halt-5.5.0", "halt-5.3.3", "boundary-5.5.0", "inner-batch", "lmq"
CASE_SECONDS = 30.0
MAGIC = MAGIC_V1.to_bytes(4, "big", signed=True)
DERIVED = CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT, INDEX, SNAPSHOT
TREES = {COMMIT_LOG, CONSUME_QUEUE, BATCH_CONSUME_QUEUE, INDEX, SNAPSHOT, "checkpoint"}


@dataclass(frozen=True)
class Base:
    """A store, an older copy of it, another of its kind, and how to open them."""

    name: str
    root: Path
    older: Path
    other: Path
    settings: dict[str, Any]

    @cached_property
    def files(self) -> list[Path]:
        found = (path.relative_to(self.root) for path in sorted(self.root.rglob("*")) if path.is_file())
        return [path for path in found if path.parts[0] in TREES]

    @cached_property
    def wanted(self) -> Served:
        return served(self.root)


def served(root: Path) -> Served:
    return of_records(walk(root), light=any("%LMQ%" in path.name for path in (root / CONSUME_QUEUE).glob("*")))


def ours(folder: Path, name: str, rounds: int) -> tuple[Path, Path, Path]:
    """(older copy, killed, closed) of one store of ours."""
    store = opened_kinds(folder / name, clock_ns=Clock())
    fill(store, rounds)
    store._flush_all()
    older = crash_copy(store, folder / f"{name}-older")
    fill(store, rounds)
    store._flush_all()
    fill(store, 3)
    store.dispatch()
    killed = crash_copy(store, folder / f"{name}-killed")
    store.close()
    return older, killed, folder / name


def bases(folder: Path) -> Iterator[Base]:
    older, killed, closed = ours(folder, "one", 15)
    _, other_killed, other_closed = ours(folder, "two", 13)
    settings = {**SMALL, **QUIET, **KINDS}
    yield Base("closed", closed, older, other_closed, settings)
    yield Base("killed", killed, older, other_killed, settings)
    for name, derived in (("unqueued", DERIVED), ("unsealed", (*DERIVED, "checkpoint"))):
        root = folder / name  # killed before what is derived from the log was written
        shutil.copytree(killed, root, ignore=shutil.ignore_patterns(*derived))
        yield Base(name, root, older, other_killed, settings)
    for name in GOLDEN:
        case = golden_case(f"local/{name}")
        yield Base(name, case.unpack_store(folder / name), older, other_closed, settings_of(case))


# -- what is done to a file ------------------------------------------------------------------------------------------

Mutation = Callable[[Base, Path, Path, random.Random], None]


def remove(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    (root / path).unlink()


def empty(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    (root / path).write_bytes(b"")


def zeros(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    (root / path).write_bytes(bytes((root / path).stat().st_size))


def cut(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    data = (root / path).read_bytes()
    (root / path).write_bytes(data[: chance.randrange(len(data) + 1)])


def shorter(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    (root / path).write_bytes((root / path).read_bytes()[:-1])


def longer(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    (root / path).write_bytes((root / path).read_bytes() + b"\0")


def older(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    """As it was at an earlier flush; of RocketMQ's stores, with only a part of what is in it."""
    if (base.older / path).exists() and base.name not in GOLDEN:
        shutil.copyfile(base.older / path, root / path)
        return
    data = (root / path).read_bytes()
    kept = chance.randrange(len(data.rstrip(b"\0")) + 1)
    if path.parts[0] == COMMIT_LOG:
        starts = [record.commit_log_offset - int(path.name) for record in walk(base.root).records]
        kept = max((start for start in starts if 0 <= start <= kept), default=0)
    (root / path).write_bytes(data[:kept].ljust(len(data), b"\0"))


def sibling(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    others = [other for other in base.files if other.parts[0] == path.parts[0] and other != path]
    if others:
        shutil.copyfile(base.root / chance.choice(others), root / path)


def swapped(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    """The file and a sibling under each other's names."""
    others = [other for other in base.files if other.parts[0] == path.parts[0] and other != path]
    if others:
        other = chance.choice(others)
        shutil.copyfile(base.root / other, root / path)
        shutil.copyfile(base.root / path, root / other)


def foreign(base: Base, root: Path, path: Path, chance: random.Random) -> None:
    if (base.other / path).exists():
        shutil.copyfile(base.other / path, root / path)


MUTATIONS: tuple[Mutation, ...] = (remove, empty, zeros, cut, shorter, longer, older, sibling, swapped, foreign)


# -- what must hold --------------------------------------------------------------------------------------------------


def exchanged(torture: Torture, row: Row) -> None:
    """Every file × every mutation in the full form, closed and killed; a sample of them in the short one."""
    folder = torture.place("exchanged")
    every = [
        (base, path, mutation, abort)
        for base in bases(folder)
        for path in base.files
        for mutation in MUTATIONS
        for abort in (False, True)
    ]
    chosen = torture.chance("exchanged").sample(range(len(every)), torture.count(25, len(every)))
    refused = 0
    for number in chosen:
        if torture.wants(number):
            base, path, mutation, abort = every[number]
            root = folder / "case"
            with row.case(number, seconds=CASE_SECONDS):
                shutil.rmtree(root, ignore_errors=True)
                shutil.copytree(base.root, root)
                mutation(base, root, path, torture.chance("exchanged", number))
                (root / ABORT).touch() if abort else (root / ABORT).unlink(missing_ok=True)
                refused += judge(base, root, f"{base.name}/{path} {mutation.__name__}{', abort' if abort else ''}")
    row.notes.append(f"{refused:,} were refused when opened")
    shutil.rmtree(folder)


def judge(base: Base, root: Path, what: str) -> bool:
    """Returns whether opening was refused. What is missing in front of the log counts as expired: only a snapshot that
    is in force could tell."""
    there, begin = served(root), walk(root).begin
    report = verify(root, settings=stratalog.StoreSettings.make(base.settings))
    lost = [(key, offset) for key, queue in base.wanted.items() for offset in queue if offset not in there.get(key, {})]
    known = _known(root)
    forgotten = [place for place in lost if begin <= place[1] and (place[1] in known or place[1] < known_end(root))]
    if forgotten and report.ok:
        raise Undetected(f"{what}: {len(forgotten)} lost messages are known, verify finds no problem: {forgotten[0]}")
    strays = stray_records(root)
    if strays and report.ok:
        raise Undetected(f"{what}: {strays} whole records follow the log's end, verify finds no problem")
    before = contents(root)
    for mode in ("r", "w"):
        try:
            with stratalog.open(root, mode=mode, **base.settings) as store:
                left = missing(there, in_queues(store))
        except StratalogError as error:
            if report.ok:
                raise Undetected(f"{what}: verify finds no problem, opening does: {error}") from error
            if contents(root) != before:
                raise Lost(f"{what}: opening was refused, and files changed") from error
            return True
        if strays and mode == "w" and stray_records(root) < strays:
            raise Lost(f"{what}: opening cut {strays} whole records off that follow the log's end in other places")
        if left and report.ok:
            raise Lost(f"{what}: opened with {mode}, verify finds no problem, and {left[0]} is not served")
    return False


def contents(root: Path) -> dict[Path, bytes | bool]:
    """All files; the lock and the marker of an unclean stop hold what the last process wrote."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != LOCK]
    return {path: path.name == ABORT or path.read_bytes() for path in paths}


def stray_records(root: Path) -> int:
    """Whole records of other places of the log among the bytes after its end, which opening for writing cuts off."""
    end, count = walk(root).end, 0
    for path in log_files(root):
        data, base = path.read_bytes(), int(path.name)
        position = max(0, end - base)
        while (position := data.find(MAGIC, position + HEAD.position("magic")) - HEAD.position("magic")) >= 0:
            with contextlib.suppress(CorruptData):
                count += decode_record(data, position).commit_log_offset != base + position
            position += 1
    return count


def known_end(root: Path) -> int:
    """Log offset below which our own marks say that the log was durable once."""
    seal = Checkpoint.load(root, Disk()).seal
    return seal.log_end_offset if seal else 0


def _known(root: Path) -> set[int]:
    """Log offsets that units of queues lead to."""
    found: set[int] = set()
    for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for path in (root / tree).glob("*/*/*"):
            data = path.read_bytes()
            whole = data[: len(data) // layout.size * layout.size]
            found |= {unit[0] for unit in layout.struct.iter_unpack(whole) if unit[1] > 0 and unit[2] != LOST_TAGS_CODE}
    return found
