"""`repair`: whatever was damaged, afterwards the store is whole, every whole record is where it was, and nothing else
has changed."""

import hashlib
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stratalog
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.message import decode_record
from stratalog.layout.queue import UNIT
from stratalog.store.repair import repair
from stratalog.store.repair_fill import LOST_PROPERTY
from stratalog.store.repair_plan import RepairPlan, plan_repair

FILE_SIZE = 16 * 1024
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
GIVEN = StoreSettings(**SETTINGS)
COUNT = 160
QUEUES = (("orders", 0), ("orders", 1), ("bills", 0))


@dataclass(frozen=True)
class Stored:
    """One record as it was put."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    data: bytes = field(repr=False)


class Pristine:
    """A store that no test changes, and its records."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records = make_store(root)

    def copy(self, to: Path) -> Path:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.root, to)
        return to


def make_store(root: Path) -> list[Stored]:
    chance = random.Random(7)
    with stratalog.open(root, **SETTINGS) as store:
        for number in range(COUNT):
            topic, queue_id = QUEUES[number % 3]
            body = chance.randbytes(chance.randrange(600))
            store.put(topic, body, queue_id=queue_id, tags="ab"[number % 2], keys=[f"k{number}"])
        found = [
            (topic, queue_id, message) for topic, queue_id in QUEUES for message in store.queue(topic, queue_id).read()
        ]
    log = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    return sorted(
        (
            Stored(topic, queue_id, m.queue_offset, at := m.commit_log_offset, log[at : at + m.store_size])
            for topic, queue_id, m in found
        ),
        key=lambda stored: stored.commit_log_offset,
    )


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    return Pristine(tmp_path_factory.mktemp("pristine") / "store")


def files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def log_bytes(root: Path) -> bytes:
    """The log as a whole; what is not there reads as zeros."""
    return b"".join(path.read_bytes().ljust(FILE_SIZE, b"\0") for path in files(root))


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def mend(root: Path) -> RepairPlan:
    plan = plan_repair(root, settings=GIVEN)
    report = repair(plan)
    assert report.ok, report.problems[:3]
    assert not plan.unmended
    again = plan_repair(root, settings=GIVEN)
    assert not again.actions
    return plan


def check_mended(root: Path, stored: list[Stored], whole: set[int], plan: RepairPlan) -> None:
    """Every whole record is at its place, and in its queue at its offset; whatever else is there is a placeholder."""
    log = log_bytes(root)
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        assert store.recovery.clean or not plan.actions
        assert not store.recovery.quarantined
        for key in QUEUES:
            mine = {s.queue_offset: s for s in stored if (s.topic, s.queue_id) == key}
            messages = list(store.queue(*key).read())
            assert [m.queue_offset for m in messages] == sorted({m.queue_offset for m in messages})
            for message in messages:
                record = mine.get(message.queue_offset)
                if record and record.commit_log_offset in whole:
                    at = message.commit_log_offset
                    assert (at, log[at : at + message.store_size]) == (record.commit_log_offset, record.data)
                else:
                    assert message.properties.get(LOST_PROPERTY), message
                    assert message.decompressed() == b""
            there = {m.queue_offset for m in messages}
            assert {s.queue_offset for s in mine.values() if s.commit_log_offset in whole} <= there
    assert {(m.topic, m.queue_id, m.queue_offset) for m in plan.lost}.isdisjoint(
        (s.topic, s.queue_id, s.queue_offset) for s in stored if s.commit_log_offset in whole
    )


def whole_offsets(root: Path, stored: list[Stored]) -> set[int]:
    """Log offsets of the records that are byte for byte as they were put."""
    log = {int(path.name): path.read_bytes() for path in files(root)}

    def is_whole(record: Stored) -> bool:
        start = record.commit_log_offset // FILE_SIZE * FILE_SIZE
        position = record.commit_log_offset - start
        return log.get(start, b"")[position : position + len(record.data)] == record.data

    return {record.commit_log_offset for record in stored if is_whole(record)}


def read_as_whole(root: Path, stored: list[Stored]) -> set[int]:
    """As `whole_offsets`, and those whose damage no check can see: record lengths, offset and body are as they were."""
    log = log_bytes(root)
    first = int(files(root)[0].name)
    found = set()
    for record in stored:
        at = record.commit_log_offset - first
        try:
            seen = decode_record(log[at : at + len(record.data)])
        except CorruptData:
            continue
        if seen.total_size == len(record.data) and seen.commit_log_offset == record.commit_log_offset:
            found.add(record.commit_log_offset)
    return found


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    kinds = st.sampled_from(
        ["bytes", "bytes", "zeros", "cut", "lose", "tail", "abort", "queues", "index", "checkpoint"]
    )
    return draw(st.lists(st.tuples(kinds, st.integers(0, 10**6), st.integers(1, 3000)), min_size=1, max_size=4))


def inflict(root: Path, kind: str, place: int, size: int, log_end: int) -> None:
    data = random.Random(place).randbytes(size)
    existing = files(root)
    file = existing[place % len(existing)]
    if kind in ("bytes", "zeros"):
        at = place % log_end
        path = root / "commitlog" / f"{at // FILE_SIZE * FILE_SIZE:020d}"
        room = FILE_SIZE - at % FILE_SIZE
        if path.exists() and path.stat().st_size == FILE_SIZE:
            change(path, at % FILE_SIZE, (bytes(len(data)) if kind == "zeros" else data)[:room])
    elif kind == "cut" and len(existing) > 1:
        os.truncate(file, place % file.stat().st_size if file.stat().st_size else 0)
    elif kind == "lose" and len(existing) > 2:
        existing[1 + place % (len(existing) - 2)].unlink()
    elif kind == "tail" and existing[-1].stat().st_size == FILE_SIZE:
        at = log_end % FILE_SIZE
        change(existing[-1], at, data[: FILE_SIZE - at])
    elif kind == "abort":
        (root / "abort").touch()
    elif kind == "queues":
        shutil.rmtree(root / "consumequeue", ignore_errors=True)
    elif kind == "index":
        shutil.rmtree(root / "index", ignore_errors=True)
    else:
        (root / "checkpoint").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(inflicted=damages())
def test_after_any_damage_a_repaired_store_is_whole_and_keeps_every_whole_record(
    inflicted: list[tuple[str, int, int]], pristine: Pristine, scratch: Path
) -> None:
    root, stored = pristine.copy(scratch / "store"), pristine.records
    log_end = stored[-1].commit_log_offset + len(stored[-1].data)
    for kind, place, size in inflicted:
        inflict(root, kind, place, size, log_end)
    whole = whole_offsets(root, stored)
    seen = read_as_whole(root, stored)
    before = log_bytes(root) if len(files(root)) * FILE_SIZE > log_end else None
    if not seen:
        with pytest.raises(CorruptData, match="not one whole record"):
            plan_repair(root, settings=GIVEN)
        return
    if seen != whole:  # a head was changed so that no check can see it: it is repaired as far as it shows
        repair(plan_repair(root, settings=GIVEN))
        return
    plan = mend(root)
    check_mended(root, stored, whole, plan)
    if before is not None:  # nothing outside the ranges in the plan has changed
        after = bytearray(log_bytes(root))
        for action in plan.actions:
            if action.kind in ("cover", "cut", "drop"):
                start = int(Path(action.path).name) - int(files(root)[0].name) + action.position
                length = max(action.size, action.cover.size if action.cover else 0)
                after[start : start + length] = before[start : start + length]
        assert hashlib.sha256(after[: len(before)]).digest() == hashlib.sha256(before[: len(after)]).digest()
