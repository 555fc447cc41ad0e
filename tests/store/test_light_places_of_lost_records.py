"""A record in light queues that repair restores, covers or sets aside: each of its places is served or stated."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from store.kinds import LIGHT_EXTENDED, LIGHT_KIND, SIZES, Content, Kind, Known, read_on
from store.test_changed_identity import FIELDS, Reports, change, offsets_of
from store.test_recreated_topics import STATES, made, walked
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.light import MULTI_DISPATCH, MULTI_QUEUE_OFFSET, light_places
from stratalog.layout.message import decode_record
from stratalog.layout.properties import encode_properties
from stratalog.store.message_store import MessageStore
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

WILD = ["topic, none that can be", "queue id, nobody's", "queue offset, none that can be", "queue offset, ahead"]
CHANGES = [(field,) for field in FIELDS] + list(itertools.combinations(WILD, 2))
NEEDS_UNITS = ("flags, prepared", "flags, rolled back", "queue id, another's")


@pytest.mark.one_in(324)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("has_units", [True, False])
@pytest.mark.parametrize("fields", CHANGES, ids=" and ".join)
@pytest.mark.parametrize("which", range(8))
@pytest.mark.parametrize("kind", [LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_every_place_of_a_record_in_light_queues_is_served_or_stated(
    kind: Kind, which: int, fields: tuple[str, ...], has_units: bool, road: str, state: str, tmp_path: Path
) -> None:
    if not has_units and fields[0] in NEEDS_UNITS:
        pytest.skip("the record and its neighbours do not tell which of them is wrong")
    root, content = tmp_path / "store", Content()
    with kind.open(root) as store:
        kind.fill(store, content, count=8)
    places = sorted({known.commit_log_offset for queue in content.queues.values() for known in queue.values()})
    for field in fields:
        change(root, places[which], field)
    STATES[state](root)
    for name in () if has_units else ("parent", "%LMQ%a", "%LMQ%b"):
        shutil.rmtree(root / "consumequeue" / name)
    reports: Reports = walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        for key, expected in content.queues.items():
            found = read_on(store.queue(*key))[0]
            lacking = {number for number, known in expected.items() if found.get(number) != known}
            assert {expected[number].commit_log_offset for number in lacking} <= {places[which]}
            assert {(key, number) for number in lacking} <= reports.stated
            assert {(key, number) for number in found}.isdisjoint(reports.stated)
            assert store.queue(*key).max_offset == len(expected)


@pytest.mark.parametrize("kind", [LIGHT_KIND, LIGHT_EXTENDED], ids=str)
@pytest.mark.parametrize("field", ["topic, not ASCII", "topic, none that can be", "queue id, negative"])
@pytest.mark.parametrize("road", ["opened", "rebuilt"])
def test_a_record_whose_own_queue_cannot_be_stays_in_its_light_queues(
    road: str, field: str, kind: Kind, tmp_path: Path
) -> None:
    root, content = tmp_path / "store", Content()
    with kind.open(root) as store:
        kind.fill(store, content, count=8)
    place = content.queues["%LMQ%a", 0][4].commit_log_offset
    change(root, place, field)
    for name in ("parent", "%LMQ%a", "%LMQ%b"):
        shutil.rmtree(root / "consumequeue" / name)
    walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        for key, expected in content.queues.items():
            found = read_on(store.queue(*key))[0]
            assert found.keys() == expected.keys()


@pytest.mark.parametrize("digit", [b"8", b"9"])
@pytest.mark.parametrize("which", [0, 1, 3, 7])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired"])
def test_a_changed_offset_in_a_light_queue_hides_no_other_message(
    road: str, which: int, digit: bytes, tmp_path: Path
) -> None:
    """It is ahead of those of the next messages, and the queues are lost."""
    root, key, content = tmp_path / "store", LIGHT_KIND.queues[0], Content()
    with LIGHT_KIND.open(root) as store:
        LIGHT_KIND.fill(store, content, count=20)
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    lead = b"INNER_MULTI_QUEUE_OFFSET\x01"
    at = data.index(lead, content.queues[key][which].commit_log_offset) + len(lead)
    data[at : at + 1] = digit
    path.write_bytes(data)
    shutil.rmtree(root / "consumequeue")
    STATES["killed"](root)
    reports = walked(LIGHT_KIND, root, road)
    with LIGHT_KIND.open(root, mode="r") as store:
        found = read_on(store.queue(*key))[0]
    lacking = content.queues[key].keys() - found.keys()
    assert found.items() <= content.queues[key].items()
    assert lacking == (set() if road == "repaired" else {which})
    assert not lacking or any("cannot be" in text for text in reports.texts)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_what_is_put_after_the_log_was_lost_stands_in_its_light_queues(count: int, tmp_path: Path) -> None:
    """Their offsets go on, and the log begins at 0 again."""
    root, key = tmp_path / "store", LIGHT_KIND.queues[0]
    with LIGHT_KIND.open(root) as store:
        for number in range(count):
            LIGHT_KIND.put(store, 6 * number, Content())
    STATES["killed"](root)
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(bytes(path.stat().st_size))
    with LIGHT_KIND.open(root) as store:
        begin = store.queue(*key).max_offset
        put = [store.queue("parent", 0).put_raw(b"new", b"INNER_MULTI_DISPATCH\1%LMQ%a\2") for _ in range(3)]
        assert [message.commit_log_offset for message in store.queue(*key).read(begin)] == [
            receipt.commit_log_offset for receipt in put
        ]


@pytest.mark.one_in(540)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "opened, repaired"])
@pytest.mark.parametrize("digit", range(10))
@pytest.mark.parametrize("which", [0, 1, 4, -1])
@pytest.mark.parametrize("is_expired", [True, False])
def test_a_message_stays_at_its_offset_in_a_light_queue(
    is_expired: bool, which: int, digit: int, road: str, state: str, tmp_path: Path
) -> None:
    """The first digit of the offset that its record says it has there was changed."""
    size, key, root, content = 2048, LIGHT_KIND.queues[0], tmp_path / "store", Content()
    kind = replace(LIGHT_KIND, settings={**LIGHT_KIND.settings, "mapped_file_size_commit_log": size})
    with kind.open(root) as store:
        kind.fill(store, content, count=30 if is_expired else 9)
    if is_expired:
        (root / "commitlog" / f"{0:020d}").unlink()
    there = {n: known for n, known in content.queues[key].items() if known.commit_log_offset >= size * is_expired}
    number, place = list(there.items())[which][0], list(there.values())[which].commit_log_offset
    path, lead = root / "commitlog" / f"{place - place % size:020d}", b"INNER_MULTI_QUEUE_OFFSET\x01"
    data = bytearray(path.read_bytes())
    at = data.index(lead, place % size) + len(lead)
    data[at : at + 1] = b"%d" % digit
    path.write_bytes(data)
    STATES[state](root)
    reports = walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        found, errors, _ = read_on(store.queue(*key))
    assert found.items() <= there.items()
    lacking = there.keys() - found.keys()
    assert lacking <= (set() if "repaired" in road else {number})
    assert not lacking or errors or any(filter(None, reports.texts))
    assert "repaired" not in road or not reports.stated


SETTINGS = StoreSettings.make({**SIZES, **LIGHT_KIND.settings})
NAMES = [("%LMQ%a", "%LMQ%b"), ("%LMQ%b",), ("%LMQ%b", "%LMQ%a"), ("%LMQ%a",), ("%LMQ%a", "%LMQ%b")]
"""Light queues of the messages of a store."""
STORED_SIZE = len(f"{MULTI_DISPATCH}.%LMQ%a,%LMQ%b.{MULTI_QUEUE_OFFSET}.0,0.")
BYTES = {"comma": b",", "digit": b"7", "letter": b"z"}
CHANGED_BYTES = [*BYTES, *range(8)]
Places = dict[tuple[str, int], dict[int, Known]]


class Told:
    """Runs commands on a store of light queues, and keeps what they say."""

    def __init__(self, root: Path, expected: Places) -> None:
        self.root, self.expected = root, expected
        self.texts: list[str] = []
        self.stated: set[tuple[tuple[str, int], int]] = set()

    def open(self) -> None:
        self.put(count=0)

    def put(self, *, count: int = 1) -> None:
        with LIGHT_KIND.open(self.root) as store:
            told = store.recovery
            self.texts += [told.warning, *told.notes, *map(str, told.left_out)]
            for _ in range(count):
                ends = {key: store.queue(*key).max_offset for key in self.expected}
                put_light(store, ("%LMQ%b",), self.expected, ends)

    def rebuild(self) -> None:
        done = rebuild(self.root, settings=SETTINGS)
        self.texts += [*map(str, done.left_out), *done.moved, *done.notes, done.lost, done.longer]

    def repair(self) -> None:
        plan = plan_repair(self.root, settings=SETTINGS)
        self.stated = offsets_of([*plan.missing, *plan.lost_ranges])
        report = repair(plan)
        assert report.ok, report.problems[0]
        assert not plan_repair(self.root, settings=SETTINGS).actions
        self.texts += report.notes

    def run(self, road: str) -> None:
        for step in road.split(", "):
            try:
                getattr(self, step)()
            except CorruptData as error:
                assert step == "rebuild"
                self.texts.append(str(error))


def put_light(store: MessageStore, names: tuple[str, ...], expected: Places, ends: dict[tuple[str, int], int]) -> None:
    properties = encode_properties({MULTI_DISPATCH: ",".join(names)})
    put = store.queue("parent", 0).put_raw(b"%d" % len(expected["parent", 0]), properties)
    known = Known.of(next(iter(store.queue("parent", 0).read(put.queue_offset))))
    for key in [("parent", 0), *((name, 0) for name in names)]:
        expected[key][ends[key]] = known


@pytest.mark.one_in(36000)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["repair", "open", "rebuild", "open, repair", "put, repair", "put, put, rebuild"])
@pytest.mark.parametrize("changed", CHANGED_BYTES)
@pytest.mark.parametrize("at", range(STORED_SIZE))
@pytest.mark.parametrize("which", [0, 2, 4])
@pytest.mark.parametrize("has_units", [True, False])
def test_a_changed_byte_of_what_names_light_queues_moves_no_message(
    has_units: bool, which: int, at: int, changed: str | int, road: str, state: str, tmp_path: Path
) -> None:
    """The units that lead to the record tell its places. Without them, what cannot be followed in it is told."""
    root, expected = tmp_path / "store", Places({("parent", 0): {}, ("%LMQ%a", 0): {}, ("%LMQ%b", 0): {}})
    with LIGHT_KIND.open(root) as store:
        for names in NAMES:
            put_light(store, names, expected, {key: len(queue) for key, queue in expected.items()})
    place = expected["parent", 0][which].commit_log_offset
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at += min(data.index(name.encode(), place) for name in (MULTI_DISPATCH, MULTI_QUEUE_OFFSET))
    data[at : at + 1] = bytes([data[at] ^ 1 << changed]) if isinstance(changed, int) else BYTES[changed]
    path.write_bytes(data)
    STATES[state](root)
    record = decode_record(bytes(data), place)
    problems = light_places(record.topic, record.properties, place)[1]
    for name in () if has_units else ("parent", "%LMQ%a", "%LMQ%b"):
        shutil.rmtree(root / "consumequeue" / name)
    told = Told(root, expected)
    told.run(road)
    with LIGHT_KIND.open(root, mode="r") as store:
        served = {key: read_on(store.queue(*key))[:2] for key in store.queues()}
    for key, (found, _) in served.items():
        there = expected.get(key, {})
        for number, known in found.items():
            may_move = not has_units or (key not in expected and "repair" not in road)
            is_named = known.commit_log_offset == place and may_move
            assert there.get(number) == known or is_named, f"{key} serves another at {number}"
    for key, there in expected.items():
        found, errors = served.get(key, ({}, []))
        for number in there.keys() - found.keys():
            assert there[number].commit_log_offset == place, f"{key} lacks {number}, whose record is as it was put"
            is_told = (key, number) in told.stated or errors or any(told.texts)
            assert is_told or not (has_units or problems), f"{key} lacks {number}, untold"
            assert not has_units or "repair" not in road, f"{key} lacks {number}"


@pytest.mark.one_in(270)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("filling", [b"\0", b"\xff"])
@pytest.mark.parametrize("left_out", range(1, 50))
@pytest.mark.parametrize("old", [0, 5])
def test_damage_that_begins_in_a_records_properties_is_stated_in_its_light_queues(
    old: int, left_out: int, filling: bytes, road: str, state: str, tmp_path: Path
) -> None:
    """The body is whole, so the record is; what named its light queues may be gone. Its topic may be a second one."""
    root = tmp_path / "store"
    content = made(LIGHT_KIND, root, 5, old=old)
    key = LIGHT_KIND.queues[0]
    (begin, *_, end) = sorted(known.commit_log_offset for known in content.queues[key].values())
    size = SIZES["mapped_file_size_commit_log"]
    with (root / "commitlog" / f"{begin - begin % size:020d}").open("r+b") as file:
        file.seek(begin % size)
        begin += int.from_bytes(file.read(4)) - left_out
        file.seek(begin % size)
        file.write(filling * (end - begin))
    STATES[state](root)
    reports: Reports = walked(LIGHT_KIND, root, road)
    with LIGHT_KIND.open(root, mode="r") as store:
        for queue in LIGHT_KIND.queues:
            found = read_on(store.queue(*queue))[0]
            expected = content.queues[queue]
            assert not [number for number, known in found.items() if known != expected.get(number)]
            lacking = {number for number in expected if number not in found}
            if road == "repaired":
                assert {(queue, number) for number in lacking} <= reports.stated


@pytest.mark.one_in(90)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"x"])
@pytest.mark.parametrize("size", [1, 8, 20, 60])
@pytest.mark.parametrize("at", range(0, STORED_SIZE, 3))
@pytest.mark.parametrize("which", [0, 2, 4])
def test_lost_messages_and_lost_places_are_told_apart(
    which: int, at: int, size: int, filling: bytes, state: str, tmp_path: Path
) -> None:
    """A record is whole whatever is in its properties: it is never counted as lost, and what is counted is named."""
    root, expected = tmp_path / "store", Places({("parent", 0): {}, ("%LMQ%a", 0): {}, ("%LMQ%b", 0): {}})
    with LIGHT_KIND.open(root) as store:
        for names in NAMES:
            put_light(store, names, expected, {key: len(queue) for key, queue in expected.items()})
    place = expected["parent", 0][which].commit_log_offset
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    at += min(data.index(name.encode(), place) for name in (MULTI_DISPATCH, MULTI_QUEUE_OFFSET))
    data[at : at + size] = filling * size
    path.write_bytes(data)
    STATES[state](root)
    plan = plan_repair(root, settings=SETTINGS)
    assert not [message for message in plan.lost if message.topic != "parent"]
    assert plan.lost_count == len(plan.lost)
    lacking = offsets_of(plan.lost_ranges)
    repair(plan)
    with LIGHT_KIND.open(root, mode="r") as store:
        served = {(key, number) for key in expected for number in read_on(store.queue(*key))[0]}
    assert not lacking & served
    lost = {(key, number) for key, queue in expected.items() for number in queue} - served
    assert lost == lacking, "what is not served is named, once"
    again = plan_repair(root, settings=SETTINGS)
    assert not again.lost
    assert not again.lost_places
    assert offsets_of(again.missing) == offsets_of(again.report.lost_before)


@pytest.mark.parametrize("gone", ["", "parent", "%LMQ%a", "%LMQ%b"])
@pytest.mark.parametrize("which", range(1, 12))
def test_a_lost_record_is_counted_once_whichever_queue_is_gone(which: int, gone: str, tmp_path: Path) -> None:
    content = LIGHT_KIND.made(tmp_path, count=12)
    places = {known.commit_log_offset for queue in content.queues.values() for known in queue.values()}
    place = sorted(places)[which]
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    size = decode_record(bytes(data), place).total_size
    data[place : place + size] = b"\xee" * size
    path.write_bytes(data)
    if gone:
        shutil.rmtree(tmp_path / "consumequeue" / gone)
    plan = plan_repair(tmp_path, settings=SETTINGS)
    assert (plan.lost_count, plan.lost_places) == (1, [])
    named = offsets_of(plan.lost_ranges)
    for key, queue in content.queues.items():
        lost = {(key, number) for number, known in queue.items() if known.commit_log_offset == place}
        assert lost <= named or key[0] == gone


@pytest.mark.parametrize("state", ["closed", "killed with a seal"])
@pytest.mark.parametrize("road", ["", "rebuilt"])
@pytest.mark.parametrize("put", ["%LMQ%a", "%LMQ%b"])
@pytest.mark.parametrize("count", [3, 9])
def test_a_message_of_several_light_queues_that_is_lost_counts_once(
    count: int, put: str, road: str, state: str, tmp_path: Path
) -> None:
    """The newest one; then one is put into one of these queues alone."""
    content = LIGHT_KIND.made(tmp_path, count=count)
    STATES[state](tmp_path)
    newest = max(known.commit_log_offset for queue in content.queues.values() for known in queue.values())
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(newest + 90)
        file.write(b"?")
    with LIGHT_KIND.open(tmp_path) as store:
        store.queue("parent", count % 2).put_raw(b"new", encode_properties({MULTI_DISPATCH: put}))
    for step in filter(None, [road]):
        walked(LIGHT_KIND, tmp_path, step)
    plan = plan_repair(tmp_path, settings=StoreSettings.make({**SIZES, **LIGHT_KIND.settings}))
    assert plan.lost_count == 1
    assert {name for message in plan.lost for name, *_ in message.all_places} == {"parent", "%LMQ%a", "%LMQ%b"}
