"""One changed field of a record says that it is of another queue, or of none: topic, queue id, queue offset, flags.

The unit of its queue still leads to it. Whatever is run on such a store, in whatever order, the message is served in
its place, or a report names it; its offset is never given to another.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store.kinds import (
    BATCH,
    EXTENDED,
    LIGHT_EXTENDED,
    LIGHT_KIND,
    PLAIN,
    PUTS,
    SIZES,
    Content,
    Key,
    Kind,
    Known,
    read_on,
)
from store.model import crash_copy
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.light import MULTI_QUEUE_OFFSET, is_light
from stratalog.layout.message import HEAD, decode_record
from stratalog.layout.names import ABORT, CHECKPOINT, INDEX, LOCK
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

QUEUE_OFFSET = HEAD.position("queue_offset") + 7
QUEUE_ID, SYS_FLAG = HEAD.position("queue_id") + 3, HEAD.position("sys_flag") + 3
FIELDS: dict[str, tuple[int, int]] = {
    "topic": (-1, 0x04),
    "topic, not ASCII": (-1, 0x80),
    "topic, none that can be": (-1, 0x5B),
    "queue id, another's": (QUEUE_ID, 0x01),
    "queue id, nobody's": (QUEUE_ID, 0x04),
    "queue id, negative": (QUEUE_ID - 3, 0x80),
    "queue offset, one bit": (QUEUE_OFFSET, 0x02),
    "queue offset, none that can be": (QUEUE_OFFSET - 5, 0x01),
    "queue offset, lowest bit": (QUEUE_OFFSET, 0x01),
    "queue offset, ahead": (QUEUE_OFFSET - 1, 0x80),
    "flags, prepared": (SYS_FLAG, 0x04),
    "flags, rolled back": (SYS_FLAG, 0x0C),
}
LIGHT_OFFSET = "light offset"
"""Position of a byte in a record (-1: the first one of its topic), and the bits that change."""
STATES = ["closed", "crashed", "crashed, no index", "killed", "killed, no units"]
PLACES = [
    pytest.param(state, which, id=f"{state}-{name}")
    for state in STATES
    for which, name in [(0, "first"), (9, "middle"), (-1, "newest")]
    if (state, which) != ("killed, no units", -1)  # its record alone tells its place, no later one contradicts it
]
CHANGES = [
    *(
        pytest.param(kind, field, id=f"{kind}-{field}")
        for kind in (PLAIN, EXTENDED, BATCH, LIGHT_KIND)
        for field in FIELDS
    ),
    pytest.param(LIGHT_KIND, LIGHT_OFFSET, id=f"{LIGHT_KIND}-{LIGHT_OFFSET}"),
]


def change(
    root: Path, commit_log_offset: int, field: str, *, log_file_size: int = SIZES["mapped_file_size_commit_log"]
) -> None:  # fmt: skip
    """Change one byte of a record."""
    size = log_file_size
    path = root / "commitlog" / f"{commit_log_offset // size * size:020d}"
    data, begin = bytearray(path.read_bytes()), commit_log_offset % size
    position, bits = FIELDS.get(field, (-1, 0x01))
    if field == LIGHT_OFFSET:
        lead = f"{MULTI_QUEUE_OFFSET}\1".encode()
        position = data.index(lead, begin) + len(lead) - begin
    elif position < 0:
        record = decode_record(bytes(data), begin)
        stored = bytes(data[begin : begin + record.total_size])
        position = stored.rindex(bytes([len(record.topic)]) + record.topic) + 1
    data[begin + position] ^= bits
    path.write_bytes(data)


def made(kind: Kind, root: Path, state: str, *, more: range = range(0)) -> Content:
    """A store, before what is done to it. A killed one has units that no checkpoint covers."""
    content, is_killed = Content(), state.startswith("killed")
    with kind.open(root.with_name("live") if is_killed else root) as store:
        kind.fill(store, content)
        for number in more:
            kind.put(store, number, content)
        if not is_killed:
            return content
        store.dispatch()
        crash_copy(store, root)
    if state == "killed, no units":  # the power failed before they were on the disk
        for file in [*root.glob("*consumequeue*/*/*/*"), *root.glob("index/*")]:
            file.unlink()
    return content


def stop(root: Path, state: str) -> None:
    """How the store was stopped. Without its index all of the log is dispatched again."""
    if state.startswith("crashed"):
        (root / ABORT).touch()
    if state == "crashed, no index":
        shutil.rmtree(root / INDEX)


class Reports:
    """What was said of messages: everything that is lost, left out, refused or passed over."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.lost: set[Key] = set()
        self.is_repaired = False
        self.problems: list[str] = []
        """What a repair left."""
        self.unplaced = False
        """Whether that repair named records that it set aside."""
        self.stated: set[tuple[Key, int]] = set()
        """Offsets that the newest repair named as lost or missing."""

    def opened(self, kind: Kind, root: Path, put: Key | None = None) -> None:
        with kind.open(root) as store:
            told = store.recovery
            self.texts += [told.warning, *told.notes, *map(str, told.left_out), *map(str, told.quarantined)]
            if put and not is_light(put[0]):
                store.queue(*put).put(b"new")

    def rebuilt(self, kind: Kind, root: Path) -> None:
        try:
            done = rebuild(root, settings=StoreSettings.make({**SIZES, **kind.settings}))
        except CorruptData as error:
            self.texts.append(str(error))
        else:
            self.texts += [
                *map(str, done.damages),
                *map(str, done.left_out),
                *done.moved,
                *done.notes,
                done.lost,
                done.longer,
            ]

    def repaired(self, kind: Kind, root: Path) -> None:
        plan = plan_repair(root, settings=StoreSettings.make({**SIZES, **kind.settings}))
        self.lost |= {(message.topic, message.queue_id) for message in plan.lost}
        self.texts += [f"lost {message}" for message in [*plan.lost, *plan.lost_places]]
        self.stated = offsets_of([*plan.missing, *plan.lost_ranges])
        self.unplaced = bool(plan.unplaced)
        self.is_repaired = True
        self.texts += [f"missing {one}" for one in plan.missing]
        self.texts += [f"log offset {one.commit_log_offset:,}: {one}, unplaced" for one in plan.unplaced]
        if plan.actions:
            report = repair(plan)
            self.problems += map(str, report.problems)
            # A queue without files may have messages of a deleted topic, and a record may stand in light queues alone.
            # Of two fields of a head a repair may restore none; the record stands in its light queues alone then.
            steps = [problem.next_step for problem in report.problems]
            is_told = any("from a copy" in step or "no queue offset is known" in step for step in steps)
            assert report.ok or is_told, report.problems[0]
            self.texts += report.notes
        assert not plan_repair(root).actions
        killed = shutil.copytree(root, root.with_name("killed"), dirs_exist_ok=True)
        (killed / ABORT).touch()
        for lost in plan_repair(killed, settings=plan.settings).lost_ranges:  # of a queue whose end alone was kept
            assert lost in plan.lost_ranges or any(f"{lost[0]}/{lost[1]}" in text for text in self.texts)


def offsets_of(missing: list[tuple[str, int, int, int]]) -> set[tuple[Key, int]]:
    return {((topic, queue_id), number) for topic, queue_id, first, end in missing for number in range(first, end)}


STEPS: dict[str, Callable[[Reports, Kind, Path, Key], None]] = {
    "repair": lambda reports, kind, root, key: reports.repaired(kind, root),
    "open, repair": lambda reports, kind, root, key: (reports.opened(kind, root), reports.repaired(kind, root)),
    "put, repair": lambda reports, kind, root, key: (reports.opened(kind, root, key), reports.repaired(kind, root)),
    "open, open": lambda reports, kind, root, key: (reports.opened(kind, root), reports.opened(kind, root)),
    "open, put, repair": lambda reports, kind, root, key: (
        reports.opened(kind, root),
        reports.opened(kind, root, key),
        reports.repaired(kind, root),
    ),
    "open, rebuild": lambda reports, kind, root, key: (reports.opened(kind, root), reports.rebuilt(kind, root)),
    "rebuild": lambda reports, kind, root, key: reports.rebuilt(kind, root),
    "rebuild, repair": lambda reports, kind, root, key: (reports.rebuilt(kind, root), reports.repaired(kind, root)),
}


@pytest.mark.one_in(2358)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("state", "which"), PLACES)
@pytest.mark.parametrize(("kind", "field"), CHANGES)
def test_a_record_that_names_another_queue_is_served_in_its_place_or_named(
    kind: Kind, field: str, state: str, which: int, steps: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = made(kind, root, state)
    key = kind.queues[0]
    places = list(dict.fromkeys(known.commit_log_offset for known in content.queues[key].values()))
    change(root, places[which], field)
    stop(root, state)
    reports = Reports()
    STEPS[steps](reports, kind, root, key)
    knows_units = state != "killed, no units" and field != LIGHT_OFFSET
    check(kind, root, content, places[which], reports, knows_units=knows_units)


@pytest.mark.one_in(360)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("state", STATES[:4])
@pytest.mark.parametrize("which", [0, 3, -1])
@pytest.mark.parametrize(("kind", "field"), CHANGES)
def test_with_a_record_crc_the_record_is_served_or_named_and_no_other_is_touched(
    kind: Kind, field: str, which: int, state: str, steps: str, tmp_path: Path
) -> None:
    """The whole record is damaged then: nothing tells which byte changed."""
    kind = replace(kind, settings={**kind.settings, "enabled_append_prop_crc": True})
    root = tmp_path / "store"
    content, key = made(kind, root, state), kind.queues[0]
    place = list(dict.fromkeys(known.commit_log_offset for known in content.queues[key].values()))[which]
    change(root, place, field)
    stop(root, state)
    reports = Reports()
    STEPS[steps](reports, kind, root, key)
    assert not reports.problems
    with kind.open(root) as store:
        for queue in kind.queues:
            found, errors, _ = read_on(store.queue(*queue))
            for number, known in content.queues[queue].items():
                is_named = known.commit_log_offset == place and (errors or any(reports.texts))
                assert found.get(number) == known or is_named, f"{queue} lacks {number}"


@pytest.mark.one_in(126)
@pytest.mark.parametrize("steps", [steps for steps in STEPS if steps.endswith("repair")])
@pytest.mark.parametrize("which", [5, 9, 15])
@pytest.mark.parametrize("field", ["topic", "queue id, nobody's", "queue offset, one bit", "flags, prepared"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_a_record_between_others_is_restored_whatever_was_run_before_a_repair(
    kind: Kind, field: str, which: int, steps: str, tmp_path: Path
) -> None:
    """Queues that an opening or a rebuild wrote say what the damaged record says: they are no evidence for it."""
    root = tmp_path / "store"
    content = made(kind, root, "killed, no units")
    key = kind.queues[0]
    change(root, list(dict.fromkeys(known.commit_log_offset for known in content.queues[key].values()))[which], field)
    STEPS[steps](Reports(), kind, root, key)
    with kind.open(root) as store:
        for queue in kind.queues:
            found = read_on(store.queue(*queue))[0]
            assert {number: found.get(number) for number in content.queues[queue]} == content.queues[queue]


@pytest.mark.one_in(666)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("which", [-18, -10, -2])
@pytest.mark.parametrize("field", ["queue id, another's", "topic", "queue offset, ahead"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_a_record_that_names_a_shorter_queue_is_served_in_its_place_or_named(
    kind: Kind, field: str, which: int, state: str, steps: str, tmp_path: Path
) -> None:
    """It comes after all that the other queue has."""
    root = tmp_path / "store"
    content = made(kind, root, state, more=range(PUTS, 2 * PUTS, 2))
    key = kind.queues[0]
    place = list(dict.fromkeys(known.commit_log_offset for known in content.queues[key].values()))[which]
    change(root, place, field)
    stop(root, state)
    reports = Reports()
    STEPS[steps](reports, kind, root, key)
    check(kind, root, content, place, reports, knows_units=state != "killed, no units")


@pytest.mark.one_in(45)
@pytest.mark.parametrize("steps", [steps for steps in STEPS if steps.endswith("repair")])
@pytest.mark.parametrize("state", [*STATES[:4], "killed, no checkpoint"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_a_newest_record_that_names_the_next_place_of_another_queue_is_served_or_named(
    kind: Kind, state: str, steps: str, tmp_path: Path
) -> None:
    """Once an opening gave it a unit there, both units are as good."""
    topic = "parent" if is_light(kind.queues[0][0]) else kind.queues[0][0]
    root, content = tmp_path / "store", Content()
    with kind.open(root if state in STATES[:3] else root.with_name("live")) as store:
        if kind is BATCH:
            store.create_topic(topic, queues=2, queue_type="BatchCQ")
            for number in range(7):
                store.queue(topic, number % 2).put(b"%d" % number)
        else:
            kind.fill(store, content, count=7)
        newest = next(iter(store.queue(topic, 0).read(3)))
        if state not in STATES[:3]:
            store.dispatch()
            crash_copy(store, root)
    if state == "killed, no checkpoint":
        (root / CHECKPOINT).unlink()
    change(root, newest.commit_log_offset, "queue id, another's")
    stop(root, state)
    reports = Reports()
    STEPS[steps](reports, kind, root, (topic, 1))
    assert not reports.problems
    assert verify(root, settings=StoreSettings.make({**SIZES, **kind.settings})).ok
    with kind.open(root, mode="r") as store:
        served = read_on(store.queue(topic, 0))[0]
        is_named = any(f"offset 3 of {topic}/0 pointed to" in text for text in reports.texts)
        assert served.get(3) == Known.of(newest) or is_named or ((topic, 0), 3) in reports.stated
        for key in kind.queues if topic == "parent" else ():
            assert read_on(store.queue(*key))[0] == content.queues[key]


@pytest.mark.one_in(234)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("state", STATES[:2])
@pytest.mark.parametrize("field", ["topic", "queue id, nobody's"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_the_only_message_of_a_queue_is_named_where_it_is_in_another_queue_now(
    kind: Kind, field: str, state: str, steps: str, tmp_path: Path
) -> None:
    """Nothing else tells a changed record from a directory that was renamed."""
    root = tmp_path / "store"
    kind.made(root)
    topic, queue_id = kind.queues[0][0] if not is_light(kind.queues[0][0]) else "parent", 7
    with kind.open(root) as store:
        place = store.queue(topic, queue_id).put(b"only").commit_log_offset
    change(root, place, field)
    stop(root, state)
    reports = Reports()
    STEPS[steps](reports, kind, root, (topic, queue_id))
    assert any(f"{topic}/{queue_id}" in text for text in reports.texts)


@pytest.mark.one_in(414)
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("state", STATES[:2])
@pytest.mark.parametrize("live_count", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "field", ["topic", "queue id, nobody's", "queue id, another's", "queue offset, one bit", "queue offset, lowest bit"]
)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_where_retention_left_few_messages_the_first_one_is_served_in_its_place_or_named(
    kind: Kind, field: str, live_count: int, state: str, steps: str, tmp_path: Path
) -> None:
    root, begin, key = tmp_path / "store", SIZES["mapped_file_size_commit_log"], kind.queues[0]
    content = kind.made(root)
    with kind.open(root) as store:
        while store.put("other", b"to the next log file" * 20).commit_log_offset < begin:
            pass
        kind.fill(store, content, begin=40, count=2 * live_count)
    (root / "commitlog" / f"{0:020d}").unlink()
    with kind.open(root):  # as retention leaves it
        pass
    for queue in kind.queues:
        content.queues[queue] = {
            number: known for number, known in content.queues[queue].items() if known.commit_log_offset >= begin
        }
    place = next(iter(content.queues[key].values())).commit_log_offset
    change(root, place, field)
    stop(root, state)
    reports = Reports()
    STEPS[steps](reports, kind, root, key)
    check(kind, root, content, place, reports, is_alone=live_count == 1)


@pytest.mark.one_in(54)
@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize(("count", "which"), [(2, 0), (3, 0), (3, 1), (4, 1), (4, 2), (4, 3)])
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_a_changed_record_of_a_queue_without_files_is_mended_or_named_at_once(
    kind: Kind, count: int, which: int, state: str, tmp_path: Path
) -> None:
    """It is further ahead than the log has room for; those after it are no second topic of the queue's name."""
    root, content, key = tmp_path / "store", Content(), kind.queues[0]
    with kind.open(root) as store:
        for number in range(0, 2 * count, 2):
            kind.put(store, number, content)
            store.put("other", b"other")
    places = list(dict.fromkeys(known.commit_log_offset for known in content.queues[key].values()))
    change(root, places[which], "queue offset, ahead")
    stop(root, state)
    shutil.rmtree(kind.directory(root, key))
    reports = Reports()
    reports.repaired(kind, root)
    assert verify(root, settings=StoreSettings.make({**SIZES, **kind.settings})).ok
    with kind.open(root, mode="r") as store:
        served = read_on(store.queue(*key))[0]
    for number, known in content.queues[key].items():
        assert served.get(number) == known or (key, number) in reports.stated


def check(
    kind: Kind, root: Path, content: Content, changed: int, reports: Reports, *, knows_units: bool = True,
    is_alone: bool = False,
) -> None:  # fmt: skip
    """Without units a record that claims the place of another one may get it: both are named. One that was alone in its
    queue is named once: after that only the queue's end is known."""
    named = [text for text in reports.texts if text]
    assert reports.lost <= {*kind.queues, ("parent", 0), ("parent", 1)}
    checked = verify(root, settings=StoreSettings.make({**SIZES, **kind.settings}))
    reports.stated |= offsets_of(checked.missing)
    with kind.open(root) as store:
        for key in kind.queues:
            expected, (found, errors, _) = content.queues[key], read_on(store.queue(*key))
            for number, known in expected.items():
                if found.get(number) == known:
                    continue
                assert not (is_light(key[0]) and knows_units), f"{key} lacks {number}, which no head places"
                if number in found:
                    assert not knows_units, f"{key} serves another at {number}"
                    assert found[number].commit_log_offset == changed, f"{key} serves another at {number}"
                    continue
                is_left_out = any(f"log offset {known.commit_log_offset:,}:" in text for text in named)
                is_left_out |= (key, number) in reports.stated
                assert known.commit_log_offset == changed or (is_left_out and not knows_units), (
                    f"{key} lacks {number}, whose record is as it was put"
                )
                assert named or errors, f"{key} lacks {number}, and nobody says so"
                is_stated = checked.problems or (key, number) in reports.stated or reports.unplaced
                assert is_stated or is_alone, f"{key} lacks {number}: not in a report"
            for number in found.keys() - expected.keys():  # an opening has nothing to compare the record with
                is_told = named and (not reports.is_repaired or any(place == key for place, _ in reports.stated))
                is_changed = found[number].commit_log_offset == changed and is_told
                assert is_changed or found[number].body == b"new", f"{key} serves another at {number}"
            assert store.queue(*key).max_offset >= len(expected)


@pytest.mark.parametrize("field", ["queue offset, ahead", "queue offset, lowest bit"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED], ids=str)
def test_the_unit_of_an_only_message_stays_for_repair(kind: Kind, field: str, tmp_path: Path) -> None:
    """Opening keeps the end of the queue, whose record names another place, and with it what tells the place."""
    key, content = kind.queues[0], kind.made(tmp_path, count=1)
    (tmp_path / LOCK).write_bytes(b"lock")  # as RocketMQ leaves it
    change(tmp_path, content.queues[key][0].commit_log_offset, field)
    kind.open(tmp_path).close()
    assert repair(plan_repair(tmp_path, settings=StoreSettings.make({**SIZES, **kind.settings}))).ok
    with kind.open(tmp_path, mode="r") as store:
        assert read_on(store.queue(*key))[0] == content.queues[key]


@pytest.mark.one_in(36)
@pytest.mark.parametrize("state", STATES[:4])
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_a_record_that_names_an_unused_queue_is_restored_after_puts_there(
    kind: Kind, count: int, which: int, is_killed: bool, state: str, tmp_path: Path
) -> None:
    if not which and state == "crashed, no index":
        pytest.skip("all queues are built again, and the record begins a queue wherever it says")
    root, content = tmp_path / "store", Content()
    with kind.open(root) as store:
        for number in range(count):
            kind.put(store, 2 * number, content)
    places = list(dict.fromkeys(known.commit_log_offset for known in content.queues[kind.queues[0]].values()))
    change(root, places[min(which, count - 1)], "queue id, another's")
    stop(root, state)
    put = Content()
    with kind.open(root) as store:
        ends = {key: store.queue(*key).max_offset for key in kind.queues}
        for number in (100, 101):
            kind.put(store, number, put)
        places = [known.commit_log_offset for queue in put.queues.values() for known in queue.values()]
    if is_killed:
        (root / ABORT).touch()
    reports = Reports()
    reports.repaired(kind, root)
    with kind.open(root, mode="r") as store:
        for key in kind.queues:
            found = read_on(store.queue(*key))[0]
            assert content.queues.get(key, {}).items() <= found.items()
            assert {known.commit_log_offset for number, known in found.items() if number >= ends[key]} <= set(places)
