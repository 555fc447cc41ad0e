"""Queues that lack units: whatever is gone, and whatever the checkpoint says, opening serves every message of the log.

A case takes a store (of ours or of RocketMQ's, closed or stopped at once, with plain, batch and light queues), takes
units away from some of its queues (the end, a block in the middle, files, all), gives it a checkpoint that RocketMQ, a
disk or a backup may leave, and opens it. What must be served is read from the log, byte by byte (`oracle`).
"""

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
from store.model import QUIET, SMALL, Clock, crash_copy, walk
from store.test_queue_kinds import KINDS, fill
from store.test_queue_kinds import opened as opened_kinds
from stratalog.layout.checkpoint import CHECKPOINT, FILE_SIZE, SEAL_POSITION
from stratalog.layout.names import ABORT, BATCH_CONSUME_QUEUE, CONSUME_QUEUE, SNAPSHOT
from stratalog.layout.names import CHECKPOINT as CHECKPOINT_NAME
from stratalog.layout.queue import BATCH_UNIT, LOST_TAGS_CODE, UNIT
from stratalog.tools.verify import verify
from torture.oracle import Served, in_log, in_queues, missing
from torture.report import Lost, Row, Torture, Undetected

GOLDEN = (
    "plain-5.5.0", "plain-5.3.3", "halt-5.5.0", "halt-5.3.3", "boundary-5.5.0", "inner-batch", "lmq", "queue-ext",
    "checkpoint-behind-abort", "min-offset-5.5.0",
)  # fmt: skip
CASE_SECONDS = 30.0
SPECIAL = ("%LMQ%", "batches", "BatchTopic")
"""Topics whose messages are put in another way."""


@dataclass(frozen=True)
class Base:
    """A store to take units from, and how to open it."""

    name: str
    root: Path
    settings: dict[str, Any]

    @cached_property
    def wanted(self) -> Served:
        return in_log(self.root, light=any("%LMQ%" in path.name for path in (self.root / CONSUME_QUEUE).iterdir()))

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Log offset and store time of each record."""
        return [(record.commit_log_offset, record.store_timestamp) for record in walk(self.root).records]

    @cached_property
    def log_end(self) -> int:
        return walk(self.root).end

    def queues(self) -> list[tuple[Path, int]]:
        """Directory and unit size of each queue."""
        trees = (CONSUME_QUEUE, UNIT.size), (BATCH_CONSUME_QUEUE, BATCH_UNIT.size)
        return [(path, size) for tree, size in trees for path in sorted((self.root / tree).glob("*/*"))]


def bases(folder: Path) -> Iterator[Base]:
    running = opened_kinds(folder / "running", clock_ns=Clock())
    for topic in ("idle", "busy"):
        running.put(topic, b"first", queue_id=1)
    fill(running, 15)
    running._flush_all()
    crash_copy(running, folder / "ours-flushed")
    fill(running, 15)
    running.dispatch()
    crash_copy(running, folder / "ours-killed")
    running.close()
    shutil.copytree(folder / "running", folder / "ours-closed")
    for name in ("ours-flushed", "ours-killed", "ours-closed"):
        yield Base(name, folder / name, {**SMALL, **QUIET, **KINDS})
    for name in GOLDEN:
        case = golden_case(f"local/{name}")
        yield Base(name, case.unpack_store(folder / name), settings_of(case))


def gaps(torture: Torture, row: Row) -> None:
    """All bases in turn, each with random gaps; a case opens the store for reading, for writing, and once more."""
    folder = torture.place("gaps")
    stores = list(bases(folder))
    for base in stores:
        with stratalog.open(base.root, mode="r", **base.settings) as store:
            assert not missing(base.wanted, in_queues(store)), f"{base.name} is no whole store"
    for number in range(torture.count(70, 4_000)):
        if torture.wants(number):
            chance = torture.chance("gaps", number)
            base = stores[number % len(stores)]
            root = folder / "case"
            with row.case(number, seconds=CASE_SECONDS):
                shutil.rmtree(root, ignore_errors=True)
                shutil.copytree(base.root, root)
                judge(base, root, chance, damaged(base, root, chance))
    shutil.rmtree(folder)


def damaged(base: Base, root: Path, chance: random.Random) -> str:
    """Damage a copy; returns what was done."""
    victims = chance.sample(base.queues(), chance.choice([1, 1, 2, 3]))
    told = [chance.choice(DAMAGES)(root / path.relative_to(base.root), size, chance) for path, size in victims]
    told.append(chance.choice(CHECKPOINTS)(base, root / CHECKPOINT_NAME, chance))
    if chance.random() < 0.5:
        (root / SNAPSHOT).unlink(missing_ok=True)
        told.append("no snapshot")
    if chance.random() < 0.5:
        (root / ABORT).touch()
        told.append("abort")
    else:
        (root / ABORT).unlink(missing_ok=True)
    return f"{base.name}: {', '.join(told)}"


# -- what is taken from a queue --------------------------------------------------------------------------------------


def _spread(directory: Path) -> tuple[list[Path], bytearray]:
    files = sorted(directory.iterdir())
    return files, bytearray(b"".join(path.read_bytes() for path in files))


def _write(files: list[Path], data: bytes | bytearray) -> None:
    size = len(data) // len(files) if files else 0
    for number, path in enumerate(files):
        path.write_bytes(data[number * size : (number + 1) * size])


def zero_the_end(directory: Path, unit_size: int, chance: random.Random) -> str:
    """Zeros from some byte on: of a unit's beginning mostly, else a page or sector that was not written."""
    files, data = _spread(directory)
    end = len(data.rstrip(b"\0"))
    begin = chance.randrange(end) if end else 0
    begin -= begin % unit_size if chance.random() < 0.8 else 0
    data[begin:] = bytes(len(data) - begin)
    _write(files, data)
    return f"{directory.parent.name}/{directory.name} zeros from {begin} of {end}"


def zero_a_block(directory: Path, unit_size: int, chance: random.Random) -> str:
    files, data = _spread(directory)
    end = len(data.rstrip(b"\0")) // unit_size
    begin = chance.randrange(end) if end else 0
    stop = chance.randint(begin, end)
    data[begin * unit_size : stop * unit_size] = bytes((stop - begin) * unit_size)
    _write(files, data)
    return f"{directory.parent.name}/{directory.name} units {begin} to {stop} of {end} zeros"


def cut_files(directory: Path, unit_size: int, chance: random.Random) -> str:
    files, _ = _spread(directory)
    first = chance.randrange(len(files)) if files else 0
    for path in files[first:]:
        path.unlink()
    return f"{directory.parent.name}/{directory.name} without files from {first} of {len(files)}"


def lose_a_file(directory: Path, unit_size: int, chance: random.Random) -> str:
    files, _ = _spread(directory)
    path = chance.choice(files)
    path.write_bytes(b"") if path == files[-1] and chance.random() < 0.5 else path.unlink()
    return f"{directory.parent.name}/{directory.name} without {path.name}"


def lose_all(directory: Path, unit_size: int, chance: random.Random) -> str:
    shutil.rmtree(directory)
    if directory.parent.parent.name == BATCH_CONSUME_QUEUE:  # the directory says that it is a batch topic
        directory.mkdir()
    return f"{directory.parent.name}/{directory.name} gone"


DAMAGES: tuple[Callable[[Path, int, random.Random], str], ...] = (
    zero_the_end, zero_the_end, zero_the_end, zero_a_block, zero_a_block, cut_files, lose_a_file, lose_all
)  # fmt: skip


# -- what the checkpoint says ----------------------------------------------------------------------------------------


def as_it_is(base: Base, path: Path, chance: random.Random) -> str:
    return "checkpoint as it is"


def no_checkpoint(base: Base, path: Path, chance: random.Random) -> str:
    content = chance.choice([None, b"", bytes(FILE_SIZE), b"\xff" * FILE_SIZE])
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    return f"checkpoint {'missing' if content is None else content[:1].hex() or 'empty'}"


def of_a_record(base: Base, path: Path, chance: random.Random) -> str:
    """As RocketMQ would have written it at a record, or ahead of the log; our own mark stays in half of the cases."""
    offset, moment = chance.choice([*base.places, (base.log_end, base.places[-1][1] + 60_000), (1 << 40, 1 << 45)])
    stored = path.read_bytes() if path.exists() else bytes(FILE_SIZE)
    fields = CHECKPOINT.pack(*(
        chance.choice([moment, moment, 0]), chance.choice([moment, moment, 0]), chance.choice([moment, 0]), 0,
        chance.choice([offset, 0]), chance.choice([offset, offset, 0]),
    ))  # fmt: skip
    keeps = chance.random() < 0.5
    path.write_bytes(fields + (stored[len(fields) :] if keeps else bytes(FILE_SIZE - len(fields))))
    return f"checkpoint of {offset}{'' if keeps else ', no seal'}"


def without_seal(base: Base, path: Path, chance: random.Random) -> str:
    if path.exists():
        stored = path.read_bytes()
        path.write_bytes(stored[:SEAL_POSITION].ljust(len(stored), b"\0"))
    return "checkpoint without seal"


CHECKPOINTS: tuple[Callable[[Base, Path, random.Random], str], ...] = (
    as_it_is, no_checkpoint, of_a_record, of_a_record, of_a_record, without_seal
)  # fmt: skip


# -- what must hold --------------------------------------------------------------------------------------------------


def judge(base: Base, root: Path, chance: random.Random, what: str) -> None:
    if chance.random() < 0.5:
        _check_promise(base, root, what)
    for mode in ("r", "w", "r"):
        with stratalog.open(root, mode=mode, **base.settings) as store:
            lost = missing(base.wanted, in_queues(store))
            if lost:
                raise Lost(f"{what}: opened with {mode}, {len(lost)} messages are not served, first {lost[0]}")
            if mode == "w":
                _put_after(store, base.wanted, what)


def _put_after(store: stratalog.MessageStore, wanted: Served, what: str) -> None:
    """A new message gets the offset after the last one."""
    for (topic, queue_id), queue in wanted.items():
        if not topic.startswith(SPECIAL):
            given = store.put(topic, b"new", queue_id=queue_id).queue_offset
            if given != max(queue.values()) + 1:
                raise Lost(f"{what}: {topic}/{queue_id} gave offset {given} after {max(queue.values())}")


def _check_promise(base: Base, root: Path, what: str) -> None:
    """`verify` counts each unit that opening will add as one that is to come, or names a problem."""
    report = verify(root, settings=stratalog.StoreSettings.make(base.settings))
    count = sum(
        commit_log_offset not in _on_disk(root, topic, queue_id)
        for (topic, queue_id), queue in base.wanted.items()
        for commit_log_offset in queue
    )
    if report.ok and report.units_behind != count:
        raise Undetected(f"{what}: {count} units are missing, verify finds no problem and {report.units_behind} behind")


def _on_disk(root: Path, topic: str, queue_id: int) -> set[int]:
    found = set()
    for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for path in sorted((root / tree / topic / str(queue_id)).glob("*")):
            data = path.read_bytes()
            whole = data[: len(data) // layout.size * layout.size]
            found |= {unit[0] for unit in layout.struct.iter_unpack(whole) if unit[1] > 0 and unit[2] != LOST_TAGS_CODE}
    return found
