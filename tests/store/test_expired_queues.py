"""Queues of which retention took all messages, or all but one: their units alone tell which offsets were given."""

from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import BATCH, EXTENDED, LIGHT_KIND, PLAIN, PUTS, QUEUE_FILE_UNITS, SIZES, Content, Kind, read_on
from store.model import Clock, crash_copy
from store.test_changed_identity import FIELDS, STEPS, Reports, change, check
from store.test_recreated_topics import STATES, killed, settings_of, unseal
from stratalog.layout.message import FIXED_SIZE_V1
from stratalog.layout.names import ABORT
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

UNIT_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda unit: bytes(len(unit)),
    "ones": lambda unit: b"\xff" * len(unit),
    "torn": lambda unit: unit[:7] + bytes(len(unit) - 7),
}


def expired(kind: Kind, root: Path, *, gone_count: int = PUTS, live_count: int = 0) -> Content:
    """A store whose first log file is gone; so many records of the first queue are left."""
    begin = SIZES["mapped_file_size_commit_log"]
    content = kind.made(root, count=gone_count)
    with kind.open(root) as store:
        while store.put("other", b"to the next log file" * 20).commit_log_offset < begin:
            pass
        kind.fill(store, content, begin=gone_count, count=2 * live_count)
    (root / "commitlog" / f"{0:020d}").unlink()
    with kind.open(root):
        pass
    for key in kind.queues:
        known = content.queues[key].items()
        content.queues[key] = {number: one for number, one in known if one.commit_log_offset >= begin}
    return content


def damage_unit(kind: Kind, root: Path, which: int, damaged: Callable[[bytes], bytes]) -> None:
    size = kind.layout.size
    places = [
        (path, at)
        for path in kind.files(root, kind.queues[0])
        for at in range(0, len(path.read_bytes().rstrip(b"\0")), size)
    ]
    path, at = places[which]
    data = path.read_bytes()
    path.write_bytes(data[:at] + damaged(data[at : at + size]) + data[at + size :])


@pytest.mark.one_in(90)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("damage", UNIT_DAMAGES)
@pytest.mark.parametrize("which", [0, 1, -2, -1], ids=["first", "second", "last but one", "last"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_a_damaged_unit_of_expired_messages_is_mended_at_once(
    kind: Kind, which: int, damage: str, state: str, tmp_path: Path
) -> None:
    expired(kind, tmp_path)
    with kind.open(tmp_path, mode="r") as store:
        before, last = store.queue(*kind.queues[0]).max_offset, which == -1
    STATES[state](tmp_path)
    damage_unit(kind, tmp_path, which, UNIT_DAMAGES[damage])
    plan = plan_repair(tmp_path, settings=settings_of(kind))
    assert not plan.actions or repair(plan).ok
    assert not plan_repair(tmp_path, settings=settings_of(kind)).actions
    assert verify(tmp_path, settings=settings_of(kind)).ok
    with kind.open(tmp_path) as store:
        assert store.queue(*kind.queues[0]).max_offset >= before - (4 if kind is BATCH else 1) * last


def _unit_gone(data: bytes, size: int) -> bytes:
    at = len(data) // size // 2 * size
    return data[:at] + bytes(size) + data[at + size :]


FILE_DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "zeros": lambda data, size: bytes(len(data)),
    "empty": lambda data, size: b"",
    "cut": lambda data, size: data[:10],
    "cut in the middle": lambda data, size: data[: len(data) // 2],
    "a unit of zeros": _unit_gone,
    "a bit": lambda data, size: data[:7] + bytes([data[7] ^ 4]) + data[8:],
    "a bit of an offset": lambda data, size: data[: size + 30 % size] + b"\x01" + data[size + 30 % size + 1 :],
}


@pytest.mark.one_in(30)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("damage", FILE_DAMAGES)
@pytest.mark.parametrize("which", [0, 1, -2])
@pytest.mark.parametrize("command", ["repair", "rebuild"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_a_damaged_older_file_of_expired_messages_is_mended_at_once(
    kind: Kind, command: str, which: int, damage: str, state: str, tmp_path: Path
) -> None:
    expired(kind, tmp_path, gone_count=100)
    with kind.open(tmp_path, mode="r") as store:
        end = store.queue(*kind.queues[0]).max_offset
    STATES[state](tmp_path)
    files = kind.files(tmp_path, kind.queues[0])
    assert len(files) > 3
    path, settings = files[which], settings_of(kind)
    path.write_bytes(FILE_DAMAGES[damage](path.read_bytes(), kind.layout.size))
    if command == "rebuild":
        rebuild(tmp_path, settings=settings)
    else:
        plan = plan_repair(tmp_path, settings=settings)
        assert not plan.actions or repair(plan).ok
    report = verify(tmp_path, settings=settings)
    assert report.ok, report.problems[:2]
    assert not plan_repair(tmp_path, settings=settings).changes_log
    with kind.open(tmp_path) as store:
        assert store.queue(*kind.queues[0]).max_offset == end


@pytest.mark.one_in(4)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("command", ["open", "repair", "rebuild"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, LIGHT_KIND], ids=str)
def test_a_queue_with_a_new_file_and_no_unit_keeps_its_end(
    kind: Kind, command: str, state: str, tmp_path: Path
) -> None:
    """A kill left the file without units, and retention removed those in front of it."""
    expired(kind, tmp_path, gone_count=100)
    STATES[state](tmp_path)
    *files, newest = kind.files(tmp_path, kind.queues[0])
    newest.write_bytes(bytes(len(newest.read_bytes())))
    for path in files:
        path.unlink()
    end, settings = int(newest.name) // kind.layout.size, settings_of(kind)
    assert end
    if command == "rebuild":
        rebuild(tmp_path, settings=settings)
    elif command == "repair":
        assert repair(plan_repair(tmp_path, settings=settings)).ok
    for number in range(3):
        with kind.open(tmp_path) as store:
            assert store.queue(*kind.queues[0]).max_offset >= end
            assert not (number and store.recovery.rebuilt)
        report = verify(tmp_path, settings=settings)
        assert report.ok or command == "open"
        assert not report.notes
    assert repair(plan_repair(tmp_path, settings=settings)).ok
    with kind.open(tmp_path) as store:
        assert store.queue(*kind.queues[0]).max_offset >= end


@pytest.mark.one_in(90)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("damage", UNIT_DAMAGES)
@pytest.mark.parametrize("field", ["queue offset, none that can be", "topic", "queue id, another's", "flags, prepared"])
@pytest.mark.parametrize("gone_count", [2, 8])
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_a_lone_message_and_its_unit_are_mended_or_named_at_once(
    kind: Kind, gone_count: int, field: str, damage: str, state: str, tmp_path: Path
) -> None:
    """Nothing in the log names the queue then. Where its unit is zeros, too, only a clean stop tells of the message."""
    content, key = expired(kind, tmp_path, gone_count=gone_count, live_count=1), kind.queues[0]
    STATES[state](tmp_path)
    damage_unit(kind, tmp_path, -1, UNIT_DAMAGES[damage])
    change(tmp_path, next(iter(content.queues[key].values())).commit_log_offset, field)
    plan = plan_repair(tmp_path, settings=settings_of(kind))
    assert not plan.actions or repair(plan).ok
    assert not plan_repair(tmp_path, settings=settings_of(kind)).actions
    with kind.open(tmp_path, mode="r") as store:
        served = read_on(store.queue(*key))[0]
    is_unknown = damage == "zeros" and state != "closed"
    assert served == content.queues[key] or plan.report.problems or is_unknown


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("gone_count", [2, 8, 16])
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_a_message_that_named_another_queue_leaves_nothing_missing_there(
    kind: Kind, gone_count: int, state: str, tmp_path: Path
) -> None:
    content, key = expired(kind, tmp_path, gone_count=gone_count, live_count=1), kind.queues[0]
    STATES[state](tmp_path)
    change(tmp_path, next(iter(content.queues[key].values())).commit_log_offset, "queue id, another's")
    plan = plan_repair(tmp_path, settings=settings_of(kind))
    assert not plan.missing
    assert not plan.lost
    repair(plan)
    with kind.open(tmp_path, mode="r") as store:
        assert {one: read_on(store.queue(*one))[0] for one in kind.queues} == content.queues


@pytest.mark.one_in(45)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "put, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("is_last", [True, False], ids=["last", "before others"])
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_a_damaged_lone_message_is_counted_as_lost_whatever_was_run_before(
    kind: Kind, is_last: bool, road: str, state: str, tmp_path: Path
) -> None:
    root, key = tmp_path / "store", kind.queues[0]
    content = expired(kind, root, gone_count=8, live_count=1)
    if not is_last:
        with kind.open(root) as store:
            store.put("other", b"other")
    STATES[state](root)
    (number, known), *_ = content.queues[key].items()
    path = root / "commitlog" / f"{SIZES['mapped_file_size_commit_log']:020d}"
    data, at = path.read_bytes(), known.commit_log_offset - SIZES["mapped_file_size_commit_log"]
    path.write_bytes(data[:at] + b"\xff" * 100 + data[at + 100 :])
    reports = Reports()
    for step in road.split(", "):
        reports.opened(kind, root, key) if step == "put" else getattr(reports, step)(kind, root)
    assert (key, number) in reports.stated


@pytest.mark.one_in(45)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "put, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize(("live_count", "sound_count"), [(1, 0), (3, 0), (1, 1), (3, 1)])
@pytest.mark.parametrize("gone_count", [0, 8])
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_all_that_a_queue_has_left_is_counted_message_by_message(
    kind: Kind, gone_count: int, live_count: int, sound_count: int, road: str, state: str, tmp_path: Path
) -> None:
    root, reports = tmp_path / "store", Reports()
    content = expired(kind, root, gone_count=gone_count, live_count=live_count)
    with kind.open(root) as store:
        store.put("other", b"other")
        kind.fill(store, Content(), begin=gone_count + 2 * live_count, count=2 * sound_count)
    STATES[state](root)
    path = root / "commitlog" / f"{SIZES['mapped_file_size_commit_log']:020d}"
    data = bytearray(path.read_bytes())
    for known in (one for queue in content.queues.values() for one in queue.values()):
        begin = known.commit_log_offset - SIZES["mapped_file_size_commit_log"]
        data[begin : begin + FIXED_SIZE_V1] = b"\xff" * FIXED_SIZE_V1
    path.write_bytes(data)
    for step in road.split(", "):
        reports.opened(kind, root, kind.queues[1]) if step == "put" else getattr(reports, step)(kind, root)
    assert {(key, number) for key, queue in content.queues.items() for number in queue} == reports.stated


@pytest.mark.parametrize("road", ["opened", "rebuilt"])
@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_what_a_crash_took_of_a_nearly_expired_queue_is_told(
    kind: Kind, is_lost: bool, road: str, tmp_path: Path
) -> None:
    root, key = tmp_path / "store", kind.queues[0]
    content = expired(kind, root, gone_count=8, live_count=1)
    STATES["killed"](root)
    if is_lost:
        path = root / "commitlog" / f"{SIZES['mapped_file_size_commit_log']:020d}"
        data = path.read_bytes()
        at = next(iter(content.queues[key].values())).commit_log_offset - SIZES["mapped_file_size_commit_log"]
        path.write_bytes(data[:at] + bytes(len(data) - at))
    reports = Reports()
    getattr(reports, road)(kind, root)
    assert any("after the log's end" in text for text in reports.texts) == is_lost


@pytest.mark.parametrize("road", ["repaired", "rebuilt"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_a_queue_that_grew_before_a_kill_has_not_grown_since_a_clean_stop(
    kind: Kind, road: str, tmp_path: Path
) -> None:
    root, live, reports = tmp_path / "store", tmp_path / "live", Reports()
    content = kind.made(live, count=4)
    with kind.open(live, clock_ns=Clock()) as store:
        kind.fill(store, content, begin=4, count=4)
        crash_copy(store, root)
    getattr(reports, road)(kind, root)
    reports.opened(kind, root)
    assert not any("last clean stop" in text for text in reports.texts)


@pytest.mark.one_in(1440)
@pytest.mark.parametrize("steps", ["rebuild", "open, rebuild"])
@pytest.mark.parametrize("stopped", ["closed", "closed by RocketMQ", "killed", "killed by RocketMQ"])
@pytest.mark.parametrize("unit", range(QUEUE_FILE_UNITS))
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_after_retention_the_first_message_is_served_in_its_place_or_named_wherever_its_unit_is_in_its_file(
    kind: Kind, field: str, unit: int, stopped: str, steps: str, tmp_path: Path
) -> None:
    root, key = tmp_path / "store", kind.queues[0]
    content = expired(kind, root, gone_count=2 * (QUEUE_FILE_UNITS + unit), live_count=2 * QUEUE_FILE_UNITS)
    place = next(iter(content.queues[key].values())).commit_log_offset
    change(root, place, field)
    if "RocketMQ" in stopped:
        (unseal if stopped.startswith("closed") else killed)(root)
    elif stopped == "killed":
        (root / ABORT).touch()
    reports = Reports()
    STEPS[steps](reports, kind, root, key)
    check(kind, root, content, place, reports)
