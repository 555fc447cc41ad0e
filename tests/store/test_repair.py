"""`repair`: whatever was damaged, afterwards the store is whole, every whole record is where it was, and nothing else
has changed."""

import contextlib
import cProfile
import errno
import hashlib
import io
import json
import os
import pstats
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import stratalog
from golden.cases import golden_case
from store.model import scratch_folder
from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, CorruptData, DiskFull, StoreLocked
from stratalog.layout.message import BLANK, HEAD, LOST_FLAG, MAGIC_BLANK, decode_record
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import Transaction
from stratalog.store.disk import Disk
from stratalog.store.recovery import Damage
from stratalog.tools import repair_plan
from stratalog.tools.mending import restored
from stratalog.tools.own_files import QUARANTINE
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import UNFINISHED_COPY, repair
from stratalog.tools.repair_fill import LOST_PROPERTY, PIECE_SIZE_MAX, SMALLEST, Cover, LostMessage
from stratalog.tools.repair_plan import RepairPlan, plan_repair, split
from stratalog.tools.verify import verify
from stratalog.tools.verify_report import VerifyReport

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


def files_of(pristine: Pristine, root: Path) -> list[Path]:
    return [root / "commitlog" / path.name for path in files(pristine.root)]


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
                else:  # restored
                    assert record, message
                    put = decode_record(record.data)
                    assert (message.commit_log_offset, message.body) == (record.commit_log_offset, put.body), message
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
    log = {int(path.name): path.read_bytes() for path in files(root)}
    found = set()
    for record in stored:
        start = record.commit_log_offset // FILE_SIZE * FILE_SIZE
        at = record.commit_log_offset - start
        try:
            seen = decode_record(log.get(start, b"")[at : at + len(record.data)])
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
@example(inflicted=[("cut", 3, 1), ("cut", 3, 1)])
@example(inflicted=[("cut", 0, 1), ("lose", 0, 1)])
@example(inflicted=[("cut", 2, 1), ("cut", 3, 1)])
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
            if action.kind in ("mend", "cover", "cut", "drop"):
                start = int(Path(action.path).name) - int(files(root)[0].name) + action.position
                length = max(action.size, action.cover.size if action.cover else 0)
                after[start : start + length] = before[start : start + length]
        assert hashlib.sha256(after[: len(before)]).digest() == hashlib.sha256(before[: len(after)]).digest()


@pytest.fixture
def root(pristine: Pristine, tmp_path: Path) -> Path:
    return pristine.copy(tmp_path / "store")


def break_record(root: Path, record: Stored) -> None:
    """Take its head: nothing of it can be trusted then."""
    at = record.commit_log_offset
    change(root / "commitlog" / f"{at // FILE_SIZE * FILE_SIZE:020d}", at % FILE_SIZE, bytes(HEAD.size))


def test_a_lost_message_leaves_a_placeholder_that_names_what_was_set_aside(root: Path, pristine: Pristine) -> None:
    broken = max(pristine.records[:60], key=lambda record: len(record.data))
    break_record(root, broken)
    before = log_bytes(root)
    plan = mend(root)
    lost = LostMessage(broken.topic, broken.queue_id, broken.queue_offset)
    assert plan.lost == [lost]
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        unit = UNIT.unpack(store.queue(broken.topic, broken.queue_id).units(broken.queue_offset, 1))
        message = store.message(unit.commit_log_offset)
    assert (message.queue_offset, message.flag) == (broken.queue_offset, LOST_FLAG)
    assert message.decompressed() == b""
    saved = root / QUARANTINE / f"{message.properties[LOST_PROPERTY]}.bytes"
    assert saved.read_bytes() == before[broken.commit_log_offset :][: len(broken.data)]


def test_a_repair_that_is_killed_at_any_step_is_done_again(root: Path, pristine: Pristine) -> None:
    for number in (20, 21, 70, 159):
        break_record(root, pristine.records[number])
    files(root)[1].unlink()
    whole = whole_offsets(root, pristine.records)

    class Killed(BaseException):
        pass

    last = plan = plan_repair(root, settings=GIVEN)
    lost = set(plan.lost)
    for killed_at in range(len(plan.actions) + 1):
        last = plan_repair(root, settings=GIVEN)

        steps_left = [killed_at]

        def step(_: str, left: list[int] = steps_left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        with contextlib.suppress(Killed):
            repair(last, step=step)
    plan = plan_repair(root, settings=GIVEN)
    assert repair(plan).ok
    check_mended(root, pristine.records, whole, last)
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        ends = {key: store.queue(*key).max_offset for key in QUEUES}
    assert all(m.queue_offset < ends[m.topic, m.queue_id] for m in lost), "an offset is free again"


def test_files_that_share_their_bytes_with_a_snapshot_are_copied_before_they_change(
    root: Path, pristine: Pristine, tmp_path: Path
) -> None:
    break_record(root, pristine.records[30])
    shutil.copytree(root, tmp_path / "snapshot", copy_function=os.link)
    before = log_bytes(tmp_path / "snapshot")
    mend(root)
    assert log_bytes(tmp_path / "snapshot") == before
    assert log_bytes(root) != before


@pytest.mark.parametrize("content", ["", "half", UNFINISHED_COPY])
def test_a_copy_is_made_in_an_empty_directory_only_and_nothing_is_removed(
    content: str, root: Path, pristine: Pristine, tmp_path: Path
) -> None:
    break_record(root, pristine.records[30])
    plan = plan_repair(root, settings=GIVEN)
    target = tmp_path / "mended"
    target.mkdir()
    if content:
        (target / content).write_text("mine")
        with pytest.raises(ConfigurationError, match="name a new directory"):
            repair(plan, to=target)
        assert [path.read_text() for path in target.iterdir()] == ["mine"]
    else:
        assert repair(plan, to=target).ok
        assert not (target / UNFINISHED_COPY).exists()


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    ("place", "relation"), [(".", "is"), ("..", "contains"), ("inside", "is in"), ("via a link", "is")]
)
def test_a_copy_into_the_store_or_around_it_is_refused_before_anything_is_removed(
    place: str, relation: str, marked: bool, root: Path, pristine: Pristine, tmp_path: Path
) -> None:
    break_record(root, pristine.records[30])
    plan = plan_repair(root, settings=GIVEN)
    if place == "via a link":
        (tmp_path / "link").symlink_to(root)
    target = tmp_path / "link" if place == "via a link" else (root / place)
    if marked and place != "inside":
        (target / UNFINISHED_COPY).touch()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match=f" {relation} the store {root}: name another"):
        repair(plan, to=target)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no second file system")
def test_a_copy_goes_to_another_file_system_with_modes_and_without_following_links(
    root: Path, pristine: Pristine
) -> None:
    break_record(root, pristine.records[30])
    secret = root.with_name("secret")
    secret.write_text("secret")
    (root / "notes").symlink_to(secret)
    (root / "checkpoint").chmod(0o640)
    (root / "config").mkdir(mode=0o700)
    plan = plan_repair(root, settings=GIVEN)
    with scratch_folder() as folder:
        assert repair(plan, to=folder / "mended").ok
        assert (folder / "mended" / "notes").is_symlink()
        assert (folder / "mended" / "config").stat().st_mode & 0o777 == 0o700
        assert log_bytes(folder / "mended") != log_bytes(root)


LINKED = ("commitlog", "commitlog/00000000000000016384", "consumequeue/orders", "checkpoint", "index", "abort", "lock",
          "stratalog-quarantine")  # fmt: skip


@pytest.mark.parametrize("name", LINKED)
def test_a_store_with_symbolic_links_in_it_is_neither_repaired_nor_rebuilt(
    name: str, root: Path, pristine: Pristine, tmp_path: Path
) -> None:
    break_record(root, pristine.records[70])
    plan = plan_repair(root, settings=GIVEN)
    outside = tmp_path / "outside"
    if (root / name).exists():
        (root / name).rename(outside)
    else:
        outside.mkdir()
    (root / name).symlink_to(outside)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for act in (lambda: repair(plan), lambda: repair(plan, to=tmp_path / "copy"), lambda: plan_repair(root)):
        with pytest.raises(ConfigurationError, match=r"is a symbolic link|has changed"):
            act()
    if name.startswith("commitlog"):
        return
    with pytest.raises(ConfigurationError, match="is a symbolic link"):
        rebuild(root, settings=GIVEN)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_queues_are_mended_in_place_though_the_log_lies_behind_a_link(
    root: Path, pristine: Pristine, tmp_path: Path
) -> None:
    (root / "commitlog").rename(tmp_path / "log")
    (root / "commitlog").symlink_to(tmp_path / "log")
    shutil.rmtree(root / "index")
    os.truncate(next((root / "consumequeue" / "orders").rglob("0*0")), 20)
    before = log_bytes(root)
    plan = plan_repair(root, settings=GIVEN)
    with pytest.raises(ConfigurationError, match="is a symbolic link"):
        repair(plan, to=tmp_path / "copy")
    assert repair(plan).ok
    assert (root / "commitlog").is_symlink()
    assert log_bytes(root) == before
    break_record(root, pristine.records[70])
    with pytest.raises(ConfigurationError, match="is a symbolic link"):
        plan_repair(root, settings=GIVEN)


def test_one_changed_queue_offset_costs_no_message(root: Path, pristine: Pristine) -> None:
    """By the units of its queue; by its neighbours where the queues are lost."""
    record = pristine.records[60]
    at = record.commit_log_offset % FILE_SIZE + HEAD.position("queue_offset")
    path = root / "commitlog" / f"{record.commit_log_offset - record.commit_log_offset % FILE_SIZE:020d}"
    change(path, at, bytes([*record.data[HEAD.position("queue_offset") :][:7], record.queue_offset ^ 64]))
    shutil.copytree(root, root.with_name("without queues"))
    shutil.rmtree(root.with_name("without queues") / "consumequeue")
    for each in (root, root.with_name("without queues")):
        with pytest.raises(CorruptData, match=r"would be missing in their queues.*repair"):
            rebuild(each, settings=GIVEN)
        plan = mend(each)
        assert (plan.mended_count, plan.lost, plan.message_count) == (1, [], COUNT)
        assert log_bytes(each) == log_bytes(pristine.root)
        rebuild(each, settings=GIVEN)
        with stratalog.open(each, mode="r", **SETTINGS) as store:
            assert sum(len(list(store.queue(*key).read())) for key in QUEUES) == COUNT


def test_bytes_over_the_size_of_a_log_file_are_set_aside(root: Path, pristine: Pristine) -> None:
    path = files(root)[1]
    path.write_bytes(path.read_bytes() + b"x")
    mend(root)
    assert log_bytes(root) == log_bytes(pristine.root)
    assert b"x" in [path.read_bytes() for path in (root / QUARANTINE).glob("*.bytes")]


def test_a_message_too_small_for_a_placeholder_leaves_none_that_is_not_marked(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SETTINGS) as store:
        receipts = [store.queue("t", 0).put_record(b"", b"") for _ in range(3)]
    change(tmp_path / "commitlog" / ("0" * 20), receipts[1].commit_log_offset, bytes(HEAD.size))
    plan = mend(tmp_path)
    assert plan.lost == [LostMessage("t", 0, 1)]
    with stratalog.open(tmp_path, mode="r", **SETTINGS) as store:
        assert [message.queue_offset for message in store.queue("t", 0).read()] == [0, 2]
        assert store.queue("t", 0).max_offset == 3


def test_planning_reads_damage_a_few_times_only(root: Path, pristine: Pristine) -> None:
    """However the bytes look: here heads in heads, each of which claims all that follows."""
    for size in (1, 4):
        begin = pristine.records[3].commit_log_offset
        head = bytearray(pristine.records[3].data[:91])
        length = size * 3000
        data = bytearray()
        while len(data) < length:
            at = begin + len(data)
            head[0:4] = (length - len(data)).to_bytes(4)
            head[HEAD.position("commit_log_offset") :][:8] = at.to_bytes(8)
            data += head
        change(files(root)[0], begin, bytes(data[:length]))
        plan = plan_repair(root, settings=GIVEN)
        assert plan.scanned_size < 10 * length + (1 << 17)


@pytest.mark.parametrize("last", [-1, None], ids=["in the middle", "at the end"])
def test_planning_takes_time_in_proportion_to_what_is_lost(last: int | None, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SETTINGS) as store:
        for _ in range(3000):
            store.put("t", b"body", queue_id=0)
    for path in files(tmp_path)[2:last]:
        path.write_bytes(bytes(FILE_SIZE))
    profile = cProfile.Profile()
    plan = profile.runcall(plan_repair, tmp_path, settings=GIVEN)
    assert plan.lost_count + plan.message_count == 3000
    assert plan.lost_count > 2000
    calls = pstats.Stats(profile, stream=io.StringIO()).total_calls  # type: ignore[attr-defined]
    assert calls < 600 * plan.lost_count


@pytest.mark.parametrize(
    "moves",
    [[(1, 7)], [(-1, 5)], [(1, 9), (2, 1), (9, 2)], [(0, 9), (1, 0), (2, 1), (9, 2)], [(3, 4), (2, 3), (1, 2), (0, 1)]],
    ids=["after the end", "the last", "two exchanged", "three in a ring", "all"],
)
def test_log_files_under_wrong_names_are_not_repaired_but_named_with_the_commands_that_help(
    moves: list[tuple[int, int]], pristine: Pristine, tmp_path: Path
) -> None:
    root = pristine.copy(tmp_path / "a store")
    log, last = root / "commitlog", len(files(root)) - 1
    for old, new in moves:
        (log / f"{(last if old < 0 else old) * FILE_SIZE:020d}").rename(log / f"{new * FILE_SIZE:020d}")
    before, steps = [path.read_bytes() for path in files(root)], 0
    (root / "abort").touch()  # after a clean stop only the last file is read
    with pytest.raises(CorruptData):
        stratalog.open(root, **SETTINGS)
    (root / "abort").unlink()
    while files(root) != files_of(pristine, root) or log_bytes(root) != log_bytes(pristine.root):
        with pytest.raises(CorruptData, match="misnamed") as refused:
            plan_repair(root, settings=GIVEN)
        assert steps or [path.read_bytes() for path in files(root)] == before
        subprocess.run(str(refused.value).split("`")[1], shell=True, check=True)
        steps += 1
        assert steps < 6
    assert verify(root, settings=GIVEN).ok
    assert not plan_repair(root, settings=GIVEN).actions


def test_a_log_file_that_is_there_twice_is_moved_out_of_the_log(root: Path) -> None:
    first, last = files(root)[0], files(root)[-1]
    shutil.copy(first, last)
    with pytest.raises(CorruptData, match="which is there too") as refused:
        plan_repair(root, settings=GIVEN)
    subprocess.run(str(refused.value).split("`")[1], shell=True, check=True)
    assert not last.exists()
    assert plan_repair(root, settings=GIVEN).lost_count


@pytest.mark.parametrize("name", ["{}.bak", "{} (1)", "{:d}"])
def test_a_log_file_whose_name_is_none_of_a_log_file_gets_it_back(name: str, root: Path) -> None:
    path = files(root)[1]
    path.rename(path.with_name(name.format(int(path.name) if ":d" in name else path.name)))
    with pytest.raises(CorruptData, match="misnamed") as refused:
        plan_repair(root, settings=GIVEN)
    subprocess.run(str(refused.value).split("`")[1], shell=True, check=True)
    assert path.exists()
    assert verify(root, settings=GIVEN).ok


def test_a_log_file_that_holds_a_piece_of_another_is_damaged_and_not_under_a_wrong_name(root: Path) -> None:
    data = files(root)[2].read_bytes()
    change(files(root)[1], 0, data[:4096])
    assert mend(root).lost_count


def test_one_record_that_says_another_place_is_damage(root: Path, pristine: Pristine) -> None:
    change(files(root)[1], HEAD.position("commit_log_offset"), (5 * FILE_SIZE).to_bytes(8))
    assert mend(root).mended_count == 1


def test_more_messages_of_a_batch_queue_are_lost_than_records_have_room_for_and_nothing_else_is(tmp_path: Path) -> None:
    """Members of a batch take less than a record each. No unit says where the batches after the damage belong."""
    sizes, size, count = SETTINGS | {"mapped_file_size_commit_log": 256 * 1024}, 2000, 45
    with stratalog.open(tmp_path, **sizes) as store:
        store.create_topic("batches", queues=1, queue_type="BatchCQ")
        for number in range(count):
            store.queue("batches", 0).put_batch([b"x"] * size, [b""] * size, unique_key=f"u{number}")
    for path in files(tmp_path)[1:-1]:
        path.write_bytes(bytes(path.stat().st_size))
    shutil.rmtree(tmp_path / "batchconsumequeue")
    for name in ("checkpoint", "queues.snapshot"):
        (tmp_path / name).unlink(missing_ok=True)
    plan = plan_repair(tmp_path, settings=StoreSettings(**sizes))
    assert (plan.lost_count + plan.message_count, len(plan.unplaced)) == (size * count, 0)
    assert plan.lost_count > 1 << 16
    assert repair(plan).ok
    with stratalog.open(tmp_path, **sizes) as store:
        assert store.put("batches", b"new", queue_id=0).queue_offset == size * count


def test_configuration_comes_back_from_its_backup_and_what_was_there_is_kept(root: Path) -> None:
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text('{"topicCon')
    (root / "config" / "topics.json.bak").write_text('{"topicConfigTable":{}}')
    mend(root)
    assert (root / "config" / "topics.json").read_text() == '{"topicConfigTable":{}}'
    assert (root / QUARANTINE / "topics.json").read_text() == '{"topicCon'


@dataclass(frozen=True)
class Twice:
    """Damage that can be inflicted again at the same place with other bytes; returns what a repair overwrites."""

    kind: str
    inflict: Callable[[Path, Pristine, int], bytes]


def _overwritten(root: Path, pristine: Pristine, fill: int) -> bytes:
    path, record = files(root)[0], pristine.records[5]
    change(path, record.commit_log_offset, data := bytes([fill]) * len(record.data))
    return data


def _head_changed(root: Path, pristine: Pristine, fill: int) -> bytes:
    record = pristine.records[5]
    data = bytes([fill] * 4) + record.data[4:]
    change(files(root)[0], record.commit_log_offset, data)
    return data


def _after_the_end(root: Path, pristine: Pristine, fill: int) -> bytes:
    end = pristine.records[-1].commit_log_offset + len(pristine.records[-1].data)
    change(files(root)[-1], end % FILE_SIZE, data := bytes([fill]) * 50)
    return data


def _file_after_the_end(root: Path, pristine: Pristine, fill: int) -> bytes:
    path = root / "commitlog" / f"{len(files(pristine.root)) * FILE_SIZE:020d}"
    path.write_bytes(data := bytes([fill]) * FILE_SIZE)
    return data


def _over_its_size(root: Path, pristine: Pristine, fill: int) -> bytes:
    path = files(root)[1]
    path.write_bytes(files(pristine.root)[1].read_bytes() + (data := bytes([fill]) * 50))
    return data


def _over_its_size_as_long_as_a_record(root: Path, pristine: Pristine, fill: int) -> bytes:
    """The bytes over the file's size would be called like the range after it."""
    path, first = files(root)[1], next(r for r in pristine.records if r.commit_log_offset == 2 * FILE_SIZE)
    change(files(root)[2], 0, bytes([fill]) * len(first.data))
    path.write_bytes(files(pristine.root)[1].read_bytes() + (data := bytes([fill + 1]) * len(first.data)))
    return data


def _config(root: Path, _: Pristine, fill: int) -> bytes:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json.bak").write_text("{}")
    (root / "config" / "consumerOffset.json").write_bytes(data := b"{" + bytes([fill]) * 9)
    return data


def _stray(root: Path, _: Pristine, fill: int) -> bytes:
    (root / "commitlog" / "notes").write_bytes(data := bytes([fill]) * 9)
    return data


TWICE = (
    Twice("cover", _overwritten), Twice("mend", _head_changed), Twice("cut", _after_the_end),
    Twice("drop", _file_after_the_end), Twice("trim", _over_its_size),
    Twice("trim", _over_its_size_as_long_as_a_record), Twice("config", _config), Twice("away", _stray),
)  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_copied", [False, True], ids=["in place", "copied"])
@pytest.mark.parametrize("twice", TWICE, ids=lambda twice: twice.inflict.__name__)
def test_what_earlier_repairs_kept_stays_beside_what_a_repair_overwrites(
    twice: Twice, is_copied: bool, root: Path, pristine: Pristine, tmp_path: Path
) -> None:
    kept: list[bytes] = []
    for number in range(3):
        kept.append(twice.inflict(root, pristine, 65 + number * 2))
        plan = plan_repair(root, settings=GIVEN)
        assert twice.kind in [action.kind for action in plan.actions]
        to = tmp_path / f"copy{number}" if is_copied else None
        assert repair(plan, to=to).ok
        root = to or root
        there = [path.read_bytes() for path in (root / QUARANTINE).iterdir()]
        assert all(any(data in found for found in there) for data in kept), f"repair {number} lost bytes"
        for action in plan.actions:
            if action.cover and action.size:
                about = json.loads((root / QUARANTINE / f"{action.cover.name}.json").read_text())
                assert (about["size"], about["position"]) == (action.size, action.position)
                assert (root / QUARANTINE / f"{action.cover.name}.bytes").stat().st_size == action.size


def test_a_store_that_changed_since_the_plan_is_not_touched(root: Path, pristine: Pristine) -> None:
    break_record(root, pristine.records[30])
    plan = plan_repair(root, settings=GIVEN)
    os.utime(files(root)[0], ns=(1, 1))
    with pytest.raises(ConfigurationError, match="plan again"):
        repair(plan)


def test_a_store_that_is_open_here_is_not_repaired(root: Path, pristine: Pristine) -> None:
    break_record(root, pristine.records[30])
    plan = plan_repair(root, settings=GIVEN)
    release = Disk().lock(root / "lock")
    try:
        with pytest.raises(StoreLocked):
            repair(plan)
        with pytest.raises(StoreLocked):
            plan_repair(root, settings=GIVEN)
    finally:
        release()


@pytest.mark.parametrize("is_closed", [False, True])
def test_no_plan_comes_of_a_store_that_is_opened_while_it_is_looked_at(
    is_closed: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(root: Path, **given: Any) -> VerifyReport:
        report = verify(root, **given)
        store = stratalog.open(root, **SETTINGS)
        store.put("t0", b"put meanwhile")
        stores.append(store)
        if is_closed:
            store.close()
        return report

    stores: list[stratalog.MessageStore] = []
    monkeypatch.setattr(repair_plan, "verify", opened)
    with pytest.raises(StoreLocked):
        plan_repair(root, settings=GIVEN)
    stores[0].close()


def test_messages_lost_at_the_end_of_a_closed_store_keep_their_offsets(root: Path, pristine: Pristine) -> None:
    last = pristine.records[-1]
    break_record(root, last)
    mend(root)
    with stratalog.open(root, **SETTINGS) as store:
        assert store.queue(last.topic, last.queue_id).put(b"next").queue_offset == last.queue_offset + 1


@settings(max_examples=200, deadline=None)
@given(
    size=st.integers(SMALLEST, 3 * PIECE_SIZE_MAX) | st.integers(SMALLEST, 700),
    lost=st.lists(st.builds(LostMessage, st.sampled_from(["t", "x" * 200]), st.just(0), st.integers(0, 9)), max_size=5),
    closes=st.booleans(),
    with_crc=st.booleans(),
)
def test_a_cover_fills_its_range_exactly_with_whole_records(
    size: int, lost: list[LostMessage], closes: bool, with_crc: bool
) -> None:
    cover = Cover(1000, size, "name", 5, closes, with_crc)
    offset, placed = cover.begin, []
    for at, data in cover.pieces(lost):
        assert at == offset
        offset += len(data)
        if closes and len(data) == 8:
            break
        record = decode_record(data)
        assert (record.total_size, record.commit_log_offset, record.store_timestamp) == (len(data), at, 5)
        if record.sys_flag != int(Transaction.ROLLBACK):
            placed.append(LostMessage(record.topic.decode(), record.queue_id, record.queue_offset))
    assert placed == cover.fitting(lost)
    following = iter(lost)
    assert all(message in following for message in placed), "in order"
    if not closes:
        assert offset == cover.begin + size


def test_a_damage_is_split_where_files_end() -> None:
    assert split(Damage(90, 310, ""), 100) == [(90, 100), (100, 200), (200, 300), (300, 310)]
    assert split(Damage(100, 200, ""), 100) == [(100, 200)]


def test_a_log_without_one_whole_record_is_refused(root: Path) -> None:
    for path in files(root):
        path.write_bytes(os.urandom(FILE_SIZE))
    before = log_bytes(root)
    with pytest.raises(CorruptData, match="not one whole record"):
        plan_repair(root, settings=GIVEN)
    assert log_bytes(root) == before


@pytest.mark.parametrize(
    "name", ["flip-body-abort", "flip-body-late-clean", "torn-cut-header-abort", "queues-cut-clean", "no-queues-clean",
             "garbage-abort", "halt-5.5.0", "inner-batch", "lmq", "queue-ext", "prop-crc-5.5.0"],
)  # fmt: skip
def test_golden_stores_verify_clean_after_repair(name: str, tmp_path: Path) -> None:
    case = golden_case(f"local/{name}")
    conf = case.about["conf"]
    given_settings = StoreSettings(max_hash_slot_num=conf["maxHashSlotNum"], max_index_num=conf["maxIndexNum"])
    root = case.unpack_store(tmp_path)
    report = repair(plan_repair(root, settings=given_settings))
    assert report.problems == []
    assert verify(root, settings=given_settings).ok


@pytest.mark.parametrize("within", [0, 5])
@pytest.mark.parametrize("is_last", [False, True], ids=["in front of others", "last of its file"])
def test_a_blank_mark_over_a_record_costs_that_record_at_most(
    pristine: Pristine, scratch: Path, is_last: bool, within: int
) -> None:
    root = pristine.copy(scratch / "blank")
    of_file = [record for record in pristine.records if record.commit_log_offset < FILE_SIZE]
    hit = of_file[-1 if is_last else 5]
    at = hit.commit_log_offset + within
    change(root / "commitlog" / f"{0:020d}", at, BLANK.pack(FILE_SIZE - at, MAGIC_BLANK))
    whole = whole_offsets(root, pristine.records)
    assert len(whole) == len(pristine.records) - 1
    plan = mend(root)
    check_mended(root, pristine.records, whole, plan)
    assert plan.mended_count + plan.lost_count == 1
    assert plan.message_count + plan.lost_count == len(pristine.records)


def test_a_blank_mark_in_front_of_whole_records_is_damage_to_verify_and_to_rebuild(
    pristine: Pristine, scratch: Path
) -> None:
    root = pristine.copy(scratch / "blank")
    hit, following = pristine.records[5:7]
    at = hit.commit_log_offset
    change(root / "commitlog" / f"{0:020d}", at, BLANK.pack(FILE_SIZE - at, MAGIC_BLANK))
    report = verify(root, settings=GIVEN)
    assert [problem.part for problem in report.problems] == ["log"]
    assert report.damages == [Damage(at, following.commit_log_offset, "BLANK")]
    assert rebuild(root, settings=GIVEN).damages == (Damage(at, following.commit_log_offset, "BLANK"),)
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        served = {message.commit_log_offset for key in QUEUES for message in store.queue(*key).read()}
    assert served == {record.commit_log_offset for record in pristine.records} - {at}


def test_an_empty_first_log_file_stays_if_the_repair_is_stopped(
    pristine: Pristine, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = pristine.copy(scratch / "empty")
    files(root)[0].write_bytes(b"")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    planned = plan_repair(root, settings=GIVEN)
    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", full)
        with pytest.raises(DiskFull):
            repair(planned)
    plan = mend(root)
    assert plan.lost == planned.lost
    assert (plan.message_count, plan.gone_count) == (planned.message_count, 0)


def test_placeholders_of_an_earlier_repair_are_not_counted(pristine: Pristine, scratch: Path) -> None:
    root = pristine.copy(scratch / "counted")
    for hit in (pristine.records[5], pristine.records[50]):
        at = hit.commit_log_offset
        change(root / "commitlog" / f"{at - at % FILE_SIZE:020d}", at % FILE_SIZE, bytes(len(hit.data)))
        kept = len(whole_offsets(root, pristine.records))
        for plan in (mend(root), plan_repair(root, settings=GIVEN)):
            assert (plan.whole_count, plan.message_count) == (kept, kept)


def test_units_of_a_replaced_queue_file_take_no_place_from_the_messages_they_are_of(scratch: Path) -> None:
    root = scratch / "replaced"
    with stratalog.open(root, **SETTINGS) as store:

        def fill(base: int) -> None:
            while store.log.end_offset < base:
                store.put("filler", b"x" * 900)

        for _ in range(20):
            store.put("bills", b"")
            store.put("orders", b"")
        store.put("orders", b"20")
        fill(FILE_SIZE)
        given = [(topic, store.put(topic, b"lost").queue_offset) for topic in ("bills", "bills", "bills", "orders")]
        fill(2 * FILE_SIZE)
        store.put("bills", b"last")
    shutil.copyfile(root / "consumequeue/orders/0" / f"{400:020d}", root / "consumequeue/bills/0" / f"{400:020d}")
    files(root)[1].unlink()
    plan = mend(root)
    assert {(m.topic, m.queue_offset) for m in plan.lost if m.topic != "filler"} == set(given)


@pytest.mark.parametrize("topic", ["t", "orders", "SCHEDULE_TOPIC_XXXX"])
@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a\x02", b"k\x01" + b"v" * 300 + b"\x02"], ids=["0", "7", "303"])
def test_a_topic_s_wrong_length_is_mended_without_a_unit_and_nothing_else_is_taken_for_wrong(
    topic: str, properties: bytes, tmp_path: Path
) -> None:
    with stratalog.open(tmp_path, **SETTINGS) as store:
        size = store.queue(topic).put_raw(b"body", properties).store_size
    whole = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[:size]
    at = HEAD.size + len(b"body")
    for length in range(256):
        found = restored(whole[:at] + bytes([length]) + whole[at + 1 :], 0, None)
        assert found in (None, whole)
        assert found or length > 127 or not properties


@pytest.mark.parametrize("is_dispatched", [True, False])
def test_an_only_log_file_that_is_empty_is_not_removed(is_dispatched: bool, tmp_path: Path) -> None:
    """Retention took the others. Its name is all that tells where the log begins."""
    live, root = tmp_path / "live", tmp_path / "store"
    with stratalog.open(live, **SETTINGS) as store:
        while store.log.end_offset < FILE_SIZE:
            store.put("filler", b"x" * 900)
        store.dispatch()
        store.put("filler", b"in the next file")
        if is_dispatched:
            store.dispatch()
        shutil.copytree(live, root, ignore=shutil.ignore_patterns("lock"))
    first, second = files(root)[:2]
    first.unlink()
    second.write_bytes(b"")
    assert not verify(root).ok
    with pytest.raises(CorruptData, match="not one whole record"):
        plan_repair(root)
    assert files(root) == [second]
