"""`verify`: a healthy store has no problem; each kind of damage is found where it was planted."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from golden.cases import golden_case
from store.kinds import EXTENDED, KINDS, SIZES, Kind
from store.model import QUIET, SMALL, crash_copy, log_files
from store.test_recreated_topics import unseal
from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError
from stratalog.layout.checkpoint import SEAL_POSITION
from stratalog.layout.index import HEADER, ITEM, SLOT, items_position, slots_position
from stratalog.layout.message import HEAD
from stratalog.layout.names import (
    ABORT,
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    INDEX,
    LOCK,
)
from stratalog.layout.queue import UNIT
from stratalog.tools import verify as verify_module
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from stratalog.tools.verify_queues import QueueCheck
from stratalog.tools.verify_report import VerifyReport

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 100 * UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}
COUNT = 500
ITEMS = items_position(SETTINGS["max_hash_slot_num"])


def check(root: Path, **settings: Any) -> VerifyReport:
    with stratalog.open(root, mode="r", **(SETTINGS | settings)) as store:
        return verify(store)


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """500 messages in two queues and several files of each kind, with keys and tags; closed properly."""
    path = tmp_path / "store"
    with stratalog.open(path, **SETTINGS) as store:
        for number in range(COUNT):
            store.put(
                "orders", b"%05d " % number * 60, queue_id=number % 2, tags="ab"[number % 2], keys=[f"k{number}", "all"]
            )
    return path


def log_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "commitlog").iterdir())[number]


def queue_file(root: Path, queue_id: int = 0, number: int = 0) -> Path:
    return sorted((root / "consumequeue" / "orders" / str(queue_id)).iterdir())[number]


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


def record_positions(root: Path) -> list[int]:
    """Positions of the records of the first log file."""
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        offsets = sorted(
            message.commit_log_offset for queue_id in (0, 1) for message in store.queue("orders", queue_id).read()
        )
    return [offset for offset in offsets if offset < SETTINGS["mapped_file_size_commit_log"]]


def test_a_healthy_store_has_no_problem_and_everything_is_counted(root: Path) -> None:
    report = check(root)
    assert report.ok
    assert not report.problems
    assert not report.notes
    assert report.clean
    assert (report.record_count, report.unit_count, report.queue_count) == (COUNT, COUNT, 2)
    assert report.index_item_count == 3 * COUNT
    assert report.log_file_count > 1
    assert report.index_file_count > 1
    assert report.log_end == report.log_begin + (report.log_file_count - 1) * 64 * 1024 + report.log_end % (64 * 1024)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("plain-5.5.0", (150, 150, 499)),
        ("plain-5.3.3", (150, 150, 370)),
        ("index-5.5.0", (151, 139, 425)),
        ("upgrade", (160, 160, 486)),
        ("downgrade", (160, 160, 481)),
        ("min-offset-5.5.0", (140, 140, 608)),
        ("ipv6", (17, 17, 31)),
        ("queue-ext", (120, 120, 405)),
        ("transaction", (27, 21, 52)),
        ("delay", (15, 15, 41)),
    ],
)
def test_stores_that_rocketmq_wrote_have_no_problem(name: str, counts: tuple[int, int, int], tmp_path: Path) -> None:
    case = golden_case(f"local/{name}")
    conf = case.about["conf"]
    settings = {
        "mapped_file_size_commit_log": conf.get("mappedFileSizeCommitLog"),
        "mapped_file_size_consume_queue": conf.get("mappedFileSizeConsumeQueue"),
        "max_hash_slot_num": conf["maxHashSlotNum"],
        "max_index_num": conf["maxIndexNum"],
    }
    report = check(case.unpack_store(tmp_path), **settings)
    assert report.problems == []
    assert (report.record_count, report.unit_count, report.index_item_count) == counts


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (lambda: HEAD.size + 7, "CRC"),
        (lambda: HEAD.position("magic"), "magic"),
        (lambda: HEAD.position("total_size") + 3, "lengths"),
        (lambda: HEAD.position("commit_log_offset") + 7, "another place"),
        (lambda: HEAD.position("body_size"), "body size"),
    ],
    ids=["body", "magic", "size", "offset", "body size"],
)
def test_a_flipped_bit_in_a_record_is_found_at_the_record(root: Path, at: Callable[[], int], reason: str) -> None:
    position, following = record_positions(root)[30:32]
    flip(log_file(root), position + at())
    report = check(root)
    assert [(problem.part, problem.position) for problem in report.problems] == [("log", position)]
    assert report.problems[0].path == str(log_file(root))
    assert reason in report.problems[0].found
    assert (report.damages[0].begin, report.damages[0].end) == (position, following)
    assert report.record_count == COUNT - 1


def test_damage_at_the_end_of_a_file_reaches_to_the_next_file(root: Path) -> None:
    last = record_positions(root)[-1]
    flip(log_file(root), last + HEAD.size)
    report = check(root)
    assert report.damages[0].end == SETTINGS["mapped_file_size_commit_log"]
    assert report.problem_count == 1


def test_a_file_end_in_the_middle_of_a_file_hides_nothing(root: Path) -> None:
    position = record_positions(root)[10]
    data = bytearray(log_file(root).read_bytes())
    end = record_positions(root)[-1]
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        end += store.message(end).store_size
    data[position : position + 8] = data[end : end + 8]
    log_file(root).write_bytes(data)
    report = check(root)
    assert [(problem.part, problem.position) for problem in report.problems] == [("log", position)]
    assert report.record_count == COUNT - 1


def test_a_last_record_that_is_damaged_after_a_clean_stop_is_a_problem_and_its_unit_is_not_another(root: Path) -> None:
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        last = max(
            message.commit_log_offset for queue_id in (0, 1) for message in store.queue("orders", queue_id).read()
        )
        file_size = SETTINGS["mapped_file_size_commit_log"]
    flip(log_file(root, last // file_size), last % file_size + HEAD.size)
    report = check(root)
    assert [(problem.part, problem.position) for problem in report.problems] == [("log", last % file_size)]
    assert report.torn_size > 0


@pytest.mark.parametrize("field", ["commit_log_offset", "size", "tags_code"])
def test_a_changed_queue_unit_is_found(root: Path, field: str) -> None:
    flip(queue_file(root, 1), 42 * UNIT.size + UNIT.position(field) + 3)
    report = check(root)
    assert [problem.part for problem in report.problems] == ["queue"]
    assert report.problems[0].path == str(queue_file(root, 1))
    assert report.problems[0].position == 42 * UNIT.size
    assert "unit 42 of queue orders/1" in report.problems[0].expected


def test_missing_units_are_told_as_one_problem(root: Path) -> None:
    path = queue_file(root, 0, 1)
    data = bytearray(path.read_bytes())
    data[5 * UNIT.size : 15 * UNIT.size] = bytes(10 * UNIT.size)
    path.write_bytes(data)
    report = check(root)
    assert [(problem.path, problem.position) for problem in report.problems] == [(str(path), 5 * UNIT.size)]
    assert "10 units of queue orders/0 from unit 105 on" in report.problems[0].expected


def test_a_missing_last_unit_is_found_although_opening_the_store_mends_it_in_memory(root: Path) -> None:
    path = queue_file(root, 1, 2)
    data = bytearray(path.read_bytes())
    data[49 * UNIT.size : 50 * UNIT.size] = bytes(UNIT.size)
    path.write_bytes(data)
    assert [problem.position for problem in check(root).problems] == [49 * UNIT.size]


def test_a_unit_without_a_record_is_found(root: Path) -> None:
    path = queue_file(root, 1, 2)
    data = bytearray(path.read_bytes())
    data[50 * UNIT.size : 51 * UNIT.size] = data[: UNIT.size]
    path.write_bytes(data)
    report = check(root)
    assert [problem.position for problem in report.problems] == [50 * UNIT.size]
    assert "no such message" in report.problems[0].expected


def test_a_queue_of_a_topic_that_the_log_does_not_know_is_found(root: Path) -> None:
    other = root / "consumequeue" / "other" / "0"
    other.mkdir(parents=True)
    (other / queue_file(root).name).write_bytes(queue_file(root).read_bytes())
    report = check(root)
    assert report.problem_count == 100
    assert {problem.path for problem in report.problems} == {str(other / queue_file(root).name)}


@pytest.mark.parametrize("field", ["key_hash", "commit_log_offset"])
def test_a_changed_index_item_is_found(root: Path, field: str) -> None:
    flip(index_file(root), ITEMS + 17 * ITEM.size + ITEM.position(field) + 2)
    report = check(root)
    found = {(problem.path, problem.position) for problem in report.problems}
    assert (str(index_file(root)), ITEMS + 17 * ITEM.size) in found
    assert any("items for 1 key" in problem.expected for problem in report.problems)
    assert {problem.part for problem in report.problems} == {"index"}


def test_a_changed_time_in_an_index_item_is_found(root: Path) -> None:
    flip(index_file(root), ITEMS + 17 * ITEM.size + ITEM.position("seconds") + 3)
    report = check(root)
    assert [problem.position for problem in report.problems] == [ITEMS + 17 * ITEM.size]
    assert "after the file's begin" in report.problems[0].expected


def test_a_broken_chain_is_found_at_the_item(root: Path) -> None:
    flip(index_file(root), ITEMS + 217 * ITEM.size + ITEM.position("previous_item") + 3, 0x01)
    report = check(root)
    assert ITEMS + 217 * ITEM.size in {problem.position for problem in report.problems}
    assert all("reached exactly once" in problem.expected for problem in report.problems)


def test_a_slot_that_leads_elsewhere_is_found(root: Path) -> None:
    data = index_file(root).read_bytes()
    slot = next(slot for slot in range(50) if any(data[slots_position() + SLOT.size * slot :][: SLOT.size]))
    flip(index_file(root), slots_position() + SLOT.size * slot + 3, 0x01)
    report = check(root)
    assert not report.ok
    assert any(
        problem.position == slots_position() + SLOT.size * slot or "reached exactly once" in problem.expected
        for problem in report.problems
    )


def test_an_item_count_that_is_too_large_is_found(root: Path) -> None:
    flip(index_file(root), HEADER.position("next_item") + 2, 0x08)
    report = check(root)
    assert [(problem.position, problem.found) for problem in report.problems] == [
        (HEADER.position("next_item"), "2,448")
    ]


def test_an_item_count_that_is_too_small_is_found(root: Path) -> None:
    flip(index_file(root), HEADER.position("next_item") + 3, 0x10)
    assert any("items for" in problem.expected for problem in check(root).problems)


@pytest.mark.parametrize("field", ["begin_commit_log_offset", "end_commit_log_offset", "used_slot_count"])
def test_a_header_that_its_items_contradict_is_found(root: Path, field: str) -> None:
    flip(index_file(root), HEADER.position(field) + 3)
    assert [problem.position for problem in check(root).problems] == [HEADER.position(field)]


def test_a_missing_index_is_one_problem(root: Path) -> None:
    for path in (root / "index").iterdir():
        path.unlink()
    report = check(root)
    assert [problem.expected for problem in report.problems] == ["index files for 1,000 keys"]


def test_index_files_of_another_size_are_told_instead_of_taken_for_missing(root: Path) -> None:
    with pytest.raises(ConfigurationError, match="max_hash_slot_num"):
        check(root, max_hash_slot_num=60)
    path = index_file(root)
    path.write_bytes(path.read_bytes()[:-4])
    report = check(root)
    assert {problem.part for problem in report.problems} == {"index"}
    assert "`stratalog repair" in report.problems[0].next_step, "the other files show the sizes"
    assert repair(plan_repair(root)).ok
    assert check(root).ok


def test_after_an_unclean_stop_what_trails_the_log_is_no_problem(root: Path) -> None:
    (root / "abort").write_text("1")
    path = queue_file(root, 1, 2)
    data = bytearray(path.read_bytes())
    data[40 * UNIT.size : 50 * UNIT.size] = bytes(10 * UNIT.size)
    path.write_bytes(data)
    newest = index_file(root, -1)
    data = bytearray(newest.read_bytes())
    data[: HEADER.size] = HEADER.pack(*[0] * len(HEADER.fields))
    newest.write_bytes(data)
    report = check(root)
    assert report.ok, report.problems
    assert not report.clean
    assert report.units_behind == 10
    assert report.index_items_behind > 0
    assert report.notes


def test_checking_changes_no_byte(root: Path) -> None:
    flip(log_file(root), 40)
    before = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    check(root)
    assert {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()} == before


def test_progress_ends_at_the_last_record(root: Path) -> None:
    calls: list[tuple[int, int, int]] = []
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        report = verify(store, progress=lambda done, total, records: calls.append((done, total, records)))
    assert calls == sorted(calls)
    assert calls[-1][0] == calls[-1][1] >= report.log_end
    assert calls[-1][2] == COUNT


def test_a_store_that_is_open_for_writing_is_refused(root: Path) -> None:
    with stratalog.open(root, **SETTINGS) as store, pytest.raises(ConfigurationError, match="mode='r'"):
        verify(store)


@pytest.mark.parametrize(("name", "position"), [("queues.snapshot", 40), ("checkpoint", SEAL_POSITION + 3)])
def test_a_flipped_bit_in_what_a_clean_stop_noted_is_found(name: str, position: int, root: Path) -> None:
    flip(root / name, position)
    assert [Path(problem.path).name for problem in verify(root).problems] == [name]


@pytest.mark.parametrize("put_by_turns", [1, 3, 40])
def test_tags_that_5_3_leaves_out_are_a_note_wherever_it_wrote(put_by_turns: int, tmp_path: Path) -> None:
    root = tmp_path / "store"
    for turn in range(6):
        with stratalog.open(root, compatibility=("5.5", "5.3")[turn % 2], **SMALL) as store:
            for number in range(put_by_turns):
                store.put("topic", b"body", keys=f"k{turn}-{number}", tags="a")
    report = verify(root)
    assert report.problems == []
    assert any("no items for the tags" in note for note in report.notes)


def test_an_index_of_ours_is_not_taken_for_one_of_5_3(root: Path, tmp_path: Path) -> None:
    """Neither where it is behind nor where one byte of it was changed."""
    path = index_file(root, -1)
    data = path.read_bytes()
    items = HEADER.unpack(data).next_item
    for position in range(ITEMS + ITEM.size, ITEMS + 9 * ITEM.size):
        flip(path, position)
        assert not any("before 5.4" in note for note in check(root).notes), position
        path.write_bytes(data)
    (root / "abort").touch()
    for lost in range(1, 12):
        path.write_bytes(data)
        with path.open("r+b") as file:
            file.seek(HEADER.position("next_item"))
            file.write((items - lost).to_bytes(4))
        report = check(root)
        assert not any("before 5.4" in note for note in report.notes), lost
        assert (report.ok, report.index_items_behind) == (True, lost)


def test_a_log_file_of_a_crashed_store_that_was_replaced_is_a_problem(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with stratalog.open(tmp_path / "running", **SMALL, **QUIET) as store:
        for number in range(300):
            store.put("topic", b"%d" % number * 90, keys=f"k{number}")
        store.dispatch()
        crash_copy(store, root)
        assert verify(root).ok
        newest = log_files(root)[-1]
        whole = newest.read_bytes()
        for replaced in (b"", bytes(len(whole)), whole[: len(whole) // 2].ljust(len(whole), b"\0")):
            newest.write_bytes(replaced)
            report = verify(root)
            assert report.problems
            assert all("commitlog" in problem.next_step for problem in report.problems)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("is_crashed", [False, True], ids=["closed", "crashed"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_cannot_be_read_is_told_once_and_neither_compared_nor_counted(
    kind: Kind, is_crashed: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    kind.made(root)
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text("{}")
    if is_crashed:
        (root / ABORT).touch()
    settings = StoreSettings.make(SIZES | kind.settings)
    whole = verify(root, settings=settings)
    assert whole.ok, whole.problems[:3]
    hidden = [""]

    def refusing(call: Any) -> Any:
        def called(path: Any, *given: Any, **named: Any) -> Any:
            if hidden[0] and f"{path}/".startswith(f"{hidden[0]}/"):
                raise OSError(code, os.strerror(code), str(path))
            return call(path, *given, **named)

        return called

    monkeypatch.setattr(os, "open", refusing(os.open))
    monkeypatch.setattr(os, "scandir", refusing(os.scandir))
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name in (LOCK, "file-sizes.json"):
            continue
        hidden[0] = str(path)
        report = verify(root, settings=settings)
        hidden[0] = ""
        assert [problem.path for problem in report.problems] == [str(path)], (name, report.problems)
        assert (report.units_behind, report.index_items_behind) == (0, 0), name
        if not name.startswith((COMMIT_LOG, ABORT)):
            assert report.notes == whole.notes or name.startswith(INDEX), name
            assert report.record_count == whole.record_count
            lacks = whole.unit_count - report.unit_count, whole.index_item_count - report.index_item_count
            place = name.partition("/")[0]
            is_queue, is_index = place in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE), place == INDEX
            assert (lacks[0] > 0, lacks[1] > 0) == (is_queue, is_index), (name, lacks)


@pytest.mark.parametrize("is_written", [True, False])
def test_an_extension_file_that_a_writer_has_just_created_is_looked_at_again(
    is_written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no size when it is listed first. One that stays so is told by the units that lead into it."""
    root, look_again = tmp_path / "store", QueueCheck._look_again
    EXTENDED.made(root)
    path = sorted((root / CONSUME_QUEUE_EXT / "topic" / "0").iterdir())[-1]
    data = path.read_bytes()
    assert any(data)
    path.write_bytes(b"")

    def looks_again(self: QueueCheck, *arguments: Any) -> None:
        if is_written:
            path.write_bytes(data)
        look_again(self, *arguments)

    monkeypatch.setattr(QueueCheck, "_look_again", looks_again)
    monkeypatch.setattr(verify_module, "lock_owner", lambda _: 1)
    report = verify(root, settings=StoreSettings().override({**SIZES, **EXTENDED.settings}))
    assert report.is_live
    assert report.ok is is_written, report.problems[:2]
    assert {problem.part for problem in report.problems} <= {"queue"}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_closed_store_knows_that_its_first_log_file_is_gone(kind: Kind, tmp_path: Path) -> None:
    kind.made(tmp_path)
    with kind.open(tmp_path) as store:
        while len(store.log.files) < 2:
            store.put("other", b"to the next log file" * 20)
    log_file(tmp_path).unlink()
    report = verify(tmp_path, settings=StoreSettings.make({**SIZES, **kind.settings}))
    assert any("a log that begins at offset 0" in problem.expected for problem in report.problems)


@pytest.mark.one_in(54)
@pytest.mark.parametrize("keys", [[], ["k"]])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
def test_no_changed_bit_of_an_index_header_stops_anything(state: str, keys: list[str], tmp_path: Path) -> None:
    """Opening, verify and repair go on, or say what is wrong."""
    whole, root = tmp_path / "whole", tmp_path / "store"
    with stratalog.open(whole, **SETTINGS, **QUIET) as store:
        for number in range(10):
            store.put("orders", b"%d" % number, keys=keys)
    if state != "closed":
        unseal(whole)
    if state == "killed":
        (whole / ABORT).touch()
    for position in range(HEADER.size):
        for bit in (0, 3, 7):
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(whole, root)
            flip(index_file(root), position, 1 << bit)
            report = verify(root)
            plan_repair(root)
            with stratalog.open(root, **QUIET) as store:
                assert len(list(store.queue("orders").read())) == 10
                is_named = not report.ok or store.recovery.notes
                assert len(store.query("orders", key="k")) == 10 * len(keys) or is_named, (position, bit)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("gone", [1, 2])
@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_log_that_lost_its_first_files_after_a_clean_stop_is_a_problem_in_a_copy_too(
    kind: Kind, is_copied: bool, gone: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kind.settings, "mapped_file_size_commit_log", 2048)
    root, settings = tmp_path / "store", StoreSettings().override(SIZES | kind.settings)
    kind.made(root, count=60)
    if is_copied:
        root = shutil.copytree(root, tmp_path / "copy")
    assert verify(root, settings=settings).ok
    for path in sorted((root / "commitlog").iterdir())[:gone]:
        path.unlink()
    report = verify(root, settings=settings)
    assert any("begins at offset 0" in problem.expected for problem in report.problems)
    kind.open(root).close()  # it takes that for retention, and says what is gone
    report = verify(root, settings=settings)
    assert report.ok
    assert report.gone_count
