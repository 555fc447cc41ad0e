"""Topics that RocketMQ deleted and created again: the log holds messages of both, the queues those of the second."""

import contextlib
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count as numbers
from pathlib import Path

import numpy as np
import pytest

from crash.faults import Stopped, install
from store.kinds import BATCH, EXTENDED, KINDS, LIGHT_KIND, PLAIN, SIZES, Content, Key, Kind, read_on
from store.model import Clock
from store.test_changed_identity import FIELDS, Reports, change
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.index import HEADER
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import HEAD
from stratalog.layout.names import ABORT, CHECKPOINT, INDEX, LOCK, OWN_MARK, SNAPSHOT
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore
from stratalog.store.snapshot import noted_ends
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

OLD = 30
FEWER, AS_MANY, MORE = 14, 30, 46
STEP = 7


def delete(store: MessageStore, kind: Kind) -> None:
    """What RocketMQ's `deleteTopics` does to a kind's queues: their units go, and offsets begin at 0 again."""
    store.dispatch()
    dispatcher = store._dispatcher
    for key in kind.queues:
        dispatcher.queue(*key).truncate(0)
        queue = store.queue(*key)
        _, position, _ = queue.advanced(0)
        queue.words.view[position] = 0
    dispatcher.start_at(dispatcher.progress.offset)


def unseal(root: Path) -> None:
    """Without what only stratalog writes, as RocketMQ leaves a store."""
    (root / LOCK).write_bytes(b"lock")
    (root / SNAPSHOT).unlink(missing_ok=True)
    replace(Checkpoint.load(root, Disk()), seal=None).store(root, Disk())


def killed(root: Path) -> None:
    unseal(root)
    (root / CHECKPOINT).unlink()
    (root / ABORT).touch()
    index_header_behind(root)


def index_header_behind(root: Path) -> None:
    """The header of the newest index file is as it was when the file was created."""
    *older, newest = sorted((root / INDEX).glob("*")) or [None]
    if newest:
        last = HEADER.unpack(older[-1].read_bytes()) if older else HEADER.unpack(bytes(HEADER.size))
        times, offsets = [last.end_timestamp] * 2, [last.end_commit_log_offset] * 2
        with newest.open("r+b") as file:
            file.write(HEADER.pack(*times, *offsets, 0, 1))


def without_index(root: Path) -> None:
    shutil.rmtree(root / INDEX)


def units_gone(root: Path) -> None:
    """Of another topic's queue: all queues are built again."""
    shutil.rmtree(root / "consumequeue" / "other")


STATES: dict[str, Callable[[Path], None]] = {
    "closed": lambda root: None,
    "closed by RocketMQ": unseal,
    "killed": killed,
    "killed with a seal": lambda root: (root / ABORT).touch(),
    "index gone": without_index,
    "a queue gone": units_gone,
}


def opened(kind: Kind, root: Path) -> None:
    for _ in range(2):
        kind.open(root).close()


def repaired(kind: Kind, root: Path) -> None:
    plan = plan_repair(root, settings=settings_of(kind))
    assert not plan.lost
    repair(plan)


PATHS: dict[str, Callable[[Kind, Path], object]] = {
    "read": lambda kind, root: None,
    "opened": opened,
    "rebuilt": lambda kind, root: rebuild(root, settings=settings_of(kind)),
    "repaired": repaired,
}


def settings_of(kind: Kind) -> StoreSettings:
    return StoreSettings().override({**SIZES, **kind.settings})


def fill(kind: Kind, store: MessageStore, content: Content, begin: int, end: int) -> None:
    for number in range(begin, end):
        kind.put(store, number, content)
        assert store.put("other", b"%d" % number).queue_offset == number


def made(
    kind: Kind, root: Path, count: int, *, old: int = OLD, deleted: Content | None = None,
    is_last_deleted: bool = False, **settings: object
) -> Content:  # fmt: skip
    """A store whose topic was created again; and what it holds. The record before the first live message is of another
    topic, or a deleted one."""
    content = Content()
    with kind.open(root, clock_ns=Clock(), **settings) as store:
        deleted = Content() if deleted is None else deleted
        fill(kind, store, deleted, 0, old)
        if is_last_deleted:
            kind.put(store, old, deleted)
            kind.put(store, old + 1, deleted)
        delete(store, kind)
        fill(kind, store, content, old, old + count)
    return content


def made_after_seal(kind: Kind, root: Path, count: int) -> Content:
    """The same, killed; the last clean stop was between."""
    content, live = Content(), root.with_name("live")
    with kind.open(live, clock_ns=Clock()) as store:
        fill(kind, store, Content(), 0, OLD)
        delete(store, kind)
    with kind.open(live, clock_ns=Clock()) as store:
        fill(kind, store, content, OLD, OLD + count)
        store.dispatch()
        shutil.copytree(live, root)
    return content


def check(kind: Kind, root: Path, content: Content, other: int) -> None:
    with kind.open(root, mode="r") as store:
        for key in kind.queues:
            assert read_on(store.queue(*key)) == (content.queues[key], [], set())
            assert store.queue(*key).max_offset == len(content.queues[key])
        assert store.queue("other").max_offset == other
        assert not store.recovery.left_out


CASES = [("closed by RocketMQ", FEWER), ("closed by RocketMQ", AS_MANY), ("closed by RocketMQ", MORE),
         ("killed", FEWER), ("killed", AS_MANY), ("killed", MORE),
         ("closed", FEWER), ("killed with a seal", MORE), ("index gone", FEWER), ("a queue gone", MORE)]  # fmt: skip


@pytest.mark.one_in(90)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("state", "count"), CASES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_messages_of_the_second_topic_are_served(
    tmp_path: Path, kind: Kind, state: str, count: int, path: str
) -> None:  # fmt: skip
    content = made(kind, tmp_path, count)
    STATES[state](tmp_path)
    PATHS[path](kind, tmp_path)
    check(kind, tmp_path, content, OLD + count)
    with kind.open(tmp_path, clock_ns=Clock()) as store:
        kind.fill(store, content, begin=OLD + count, count=6)
    check(kind, tmp_path, content, OLD + count)
    report = verify(tmp_path, settings=settings_of(kind))
    assert report.ok, report.problems[:3]
    assert report.deleted_count >= OLD


@pytest.mark.parametrize("count", [FEWER, MORE])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_reader_beside_the_writer_sees_the_second_topic(tmp_path: Path, kind: Kind, count: int) -> None:
    content = made(kind, tmp_path, count)
    unseal(tmp_path)
    with kind.open(tmp_path):
        unseal(tmp_path)
        check(kind, tmp_path, content, OLD + count)


def lose_files(kind: Kind, root: Path) -> None:
    for key in kind.queues:
        for path in kind.files(root, key):
            path.unlink()


def lose_directories(kind: Kind, root: Path) -> None:
    for key in kind.queues:
        shutil.rmtree(kind.directory(root, key))


def lose_tree(kind: Kind, root: Path) -> None:
    shutil.rmtree(kind.directory(root, kind.queues[0]).parent.parent)


def empty_tree(kind: Kind, root: Path) -> None:
    lose_tree(kind, root)
    kind.directory(root, kind.queues[0]).parent.parent.mkdir()


@pytest.mark.one_in(54)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name != "light beside extended"], ids=str)
@pytest.mark.parametrize("loss", [lose_files, lose_directories, lose_tree, empty_tree])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("count", [FEWER, MORE])
def test_without_their_queues_the_second_topics_messages_are_named(
    tmp_path: Path, kind: Kind, count: int, state: str, loss: Callable[[Kind, Path], None]
) -> None:
    """The log alone does not tell a topic that was created again from damage."""
    made(kind, tmp_path, count)
    STATES[state](tmp_path)
    loss(kind, tmp_path)
    settings = settings_of(kind)
    with pytest.raises(CorruptData, match=r"would be missing|RocketMQ closed"):
        rebuild(tmp_path, settings=settings)
    for is_opened in (False, True, True):  # also where an opening gave the first topic's messages units
        assert not verify(tmp_path, settings=settings).ok
        if is_opened or loss in (lose_files, lose_tree) or (loss is empty_tree and state == "closed"):
            with pytest.raises(CorruptData, match="begin again at queue offset 0"):
                plan_repair(tmp_path, settings=settings)
        with kind.open(tmp_path) as store:
            assert store.recovery.left_out
            assert store.recovery.warning
    with contextlib.suppress(CorruptData):
        rebuild(tmp_path, settings=settings)
    assert not verify(tmp_path, settings=settings).ok


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("count", [FEWER, MORE])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_index_made_later_leaves_the_second_topic_as_it_is(
    tmp_path: Path, kind: Kind, count: int, is_killed: bool
) -> None:
    content = made(kind, tmp_path, count, message_index_enable=False)
    if is_killed:
        (tmp_path / ABORT).touch()
    check(kind, tmp_path, content, OLD + count)
    kind.open(tmp_path).close()
    check(kind, tmp_path, content, OLD + count)


def _exchange(one: Path, other: Path, aside: Path) -> None:
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def exchange(kind: Kind, root: Path) -> None:
    one, other = (kind.directory(root, key) for key in kind.queues)
    _exchange(one, other, root / "aside")


def exchange_with_other(kind: Kind, root: Path) -> None:
    """With another topic's queue of the same layout, if there is one."""
    own, other = kind.directory(root, kind.queues[0]), root / "consumequeue" / "other" / "0"
    if kind is BATCH:
        other = kind.directory(root, kind.queues[1])
    _exchange(own, other, root / "aside")


def rotate(kind: Kind, root: Path) -> None:
    """Three of them; three times are none."""
    one, two = (kind.directory(root, key) for key in kind.queues)
    _exchange(one, two, root / "aside")
    if kind is not BATCH:
        _exchange(two, root / "consumequeue" / "other" / "0", root / "aside")


def _rename(one: Path, other: Path) -> None:
    source, target = (one, other) if one.exists() else (other, one)
    source.rename(target)


def rename_queue(kind: Kind, root: Path) -> None:
    directory = kind.directory(root, kind.queues[0])
    _rename(directory, directory.with_name("7"))


def rename_topic(kind: Kind, root: Path) -> None:
    topic = kind.directory(root, kind.queues[0]).parent
    _rename(topic, topic.with_name("%LMQ%c" if topic.name.startswith("%LMQ%") else "renamed"))


def put_more(kind: Kind, root: Path) -> None:
    with kind.open(root) as store:
        kind.put(store, 101, Content())


@pytest.mark.one_in(198)
@pytest.mark.parametrize("command", [*PATHS, "put"])
@pytest.mark.parametrize("state", [state for state in STATES if state not in ("index gone", "a queue gone")])
@pytest.mark.parametrize("damage", [exchange, exchange_with_other, rotate, rename_queue, rename_topic])
@pytest.mark.parametrize("count", [2, 4, FEWER, MORE])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_exchanged_or_renamed_queues_of_a_topic_created_again_are_refused(
    tmp_path: Path, kind: Kind, count: int, damage: Callable[[Kind, Path], None], state: str, command: str
) -> None:  # fmt: skip
    """Whatever was done before, the files can be given their names back, and all is served."""
    is_light = kind.queues[0][0].startswith("%LMQ%")
    if count == 2 and (damage is rename_queue or (damage is rename_topic and is_light)):
        pytest.skip("one unit alone: its record may have been changed")
    content = made(kind, tmp_path, count)
    STATES[state](tmp_path)
    damage(kind, tmp_path)
    report = verify(tmp_path, settings=settings_of(kind))
    assert any("They alone tell where" in problem.next_step for problem in report.problems)
    if command != "read":
        with pytest.raises(CorruptData, match=r"(exchange|rename) them back"):
            {**PATHS, "put": put_more}[command](kind, tmp_path)
    for _ in range(2 if damage is rotate and kind is not BATCH else 1):
        damage(kind, tmp_path)
    check(kind, tmp_path, content, OLD + count)
    assert verify(tmp_path, settings=settings_of(kind)).ok


@pytest.mark.one_in(45)
@pytest.mark.parametrize("command", ["opened", "rebuilt", "repaired", "put"])
@pytest.mark.parametrize("state", ["closed by RocketMQ", "killed"])
@pytest.mark.parametrize("damage", [exchange, exchange_with_other, rotate, rename_queue, rename_topic])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_exchanged_or_renamed_queues_of_which_messages_expired_are_refused(
    tmp_path: Path, kind: Kind, damage: Callable[[Kind, Path], None], state: str, command: str
) -> None:
    content = Content()
    with kind.open(tmp_path, clock_ns=Clock()) as store:
        fill(kind, store, content, 0, 120)
    begin = SIZES["mapped_file_size_commit_log"]
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    STATES[state](tmp_path)
    damage(kind, tmp_path)
    with pytest.raises(CorruptData, match=r"(exchange|rename) them back"):
        {**PATHS, "put": put_more}[command](kind, tmp_path)
    for _ in range(2 if damage is rotate and kind is not BATCH else 1):
        damage(kind, tmp_path)
    with kind.open(tmp_path, mode="r") as store:
        for key in kind.queues:
            live = {number: one for number, one in content.queues[key].items() if one.commit_log_offset >= begin}
            assert live
            assert read_on(store.queue(*key)) == (live, [], set())


def unsealed_units_gone(root: Path) -> None:
    unseal(root)
    units_gone(root)


def killed_without_index(root: Path) -> None:
    without_index(root)
    (root / ABORT).touch()


KILLED_STATES = {
    **STATES,
    "a queue gone, no seal": unsealed_units_gone,
    "killed, index gone": killed_without_index,
    "created after the seal": lambda root: None,
    "created after the seal, index gone": without_index,
}


@pytest.mark.one_in(36)
@pytest.mark.parametrize("path", ["rebuilt", "repaired"])
@pytest.mark.parametrize("state", ["killed", "a queue gone", "created after the seal"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_tools_keep_the_second_topic_after_a_killed_opening(
    tmp_path: Path, kind: Kind, state: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    whole, root = tmp_path / "whole", tmp_path / "store"
    content = (made_after_seal if "after" in state else made)(kind, whole, MORE)
    KILLED_STATES[state](whole)
    for number in numbers(0, 6 * STEP):
        shutil.copytree(whole, root)
        is_stopped = is_killed_at(kind, root, number, monkeypatch)
        PATHS[path](kind, root)
        check(kind, root, content, OLD + MORE)
        if not is_stopped:
            break
        shutil.rmtree(root)


@pytest.mark.one_in(126)
@pytest.mark.parametrize("count", [FEWER, MORE])
@pytest.mark.parametrize("state", KILLED_STATES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_second_topic_is_served_wherever_openings_are_killed(
    tmp_path: Path, kind: Kind, state: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    whole, root = tmp_path / "whole", tmp_path / "store"
    content = (made_after_seal if "after" in state else made)(kind, whole, count)
    KILLED_STATES[state](whole)
    for number in numbers(len(kind.name + state) % STEP, STEP):
        shutil.copytree(whole, root)
        is_stopped = [is_killed_at(kind, root, stop_at, monkeypatch) for stop_at in (number, number // 2)]
        with kind.open(root) as store:
            for key in kind.queues:
                assert read_on(store.queue(*key)) == (content.queues[key], [], set()), number
                assert store.queue(*key).max_offset == len(content.queues[key]), number
            assert not store.recovery.left_out, number
        if not is_stopped[0]:
            break
        shutil.rmtree(root)


def is_killed_at(kind: Kind, root: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether an opening came to the file change of this number, and was killed there."""
    with monkeypatch.context() as patch:
        calls = install(patch, root)
        calls.stop_at = number
        try:
            kind.open(root).close()
        except Stopped:
            return True
    return False


@pytest.mark.one_in(198)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("count", [FEWER, MORE])
@pytest.mark.parametrize("earlier", ["closed", "closed, then killed", "opening killed"])
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_was_noted_before_rocketmq_had_the_store_is_void(
    tmp_path: Path, kind: Kind, earlier: str, is_killed: bool, count: int, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a clean stop of ours, or by an opening that was killed; then RocketMQ deletes and creates the topic."""
    root, content = tmp_path / "store", Content()
    with kind.open(root, clock_ns=Clock()) as store:
        fill(kind, store, Content(), 0, OLD)
    if earlier == "closed, then killed":
        (root / ABORT).write_bytes(OWN_MARK)
    elif earlier == "opening killed":
        killed(root)
        whole = root.rename(tmp_path / "whole")
        for number in numbers(3):
            shutil.copytree(whole, root)
            assert is_killed_at(kind, root, number, monkeypatch)
            if noted_ends(root, Disk()):
                break
            shutil.rmtree(root)
    ours = {name: (root / name).read_bytes() for name in (SNAPSHOT, CHECKPOINT) if (root / name).exists()}
    (root / SNAPSHOT).unlink()
    with kind.open(root, clock_ns=Clock()) as store:
        delete(store, kind)
        fill(kind, store, content, OLD, OLD + count)
    unseal(root)
    for name, data in ours.items():
        (root / name).write_bytes(data)
    if is_killed:
        (root / ABORT).write_bytes(b"4711")
    PATHS[path](kind, root)
    check(kind, root, content, OLD + count)
    kind.open(root).close()
    check(kind, root, content, OLD + count)


def repaired_after_damage(kind: Kind, root: Path) -> None:
    repair(plan_repair(root, settings=settings_of(kind)))


def rebuilt_or_refused(kind: Kind, root: Path) -> None:
    with contextlib.suppress(CorruptData):
        rebuild(root, settings=settings_of(kind))


ROADS: dict[str, tuple[Callable[[Kind, Path], object], ...]] = {
    "opened": (opened,),
    "repaired": (repaired_after_damage,),
    "opened, repaired": (opened, repaired_after_damage),
    "rebuilt, repaired": (rebuilt_or_refused, repaired_after_damage),
}


@pytest.mark.one_in(306)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed with a seal"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("which", [0, 1, 5, -1])
@pytest.mark.parametrize("count", [4, FEWER, MORE])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_damage_in_the_second_topic_hides_none_of_its_other_messages(
    kind: Kind, count: int, which: int, state: str, road: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = made(kind, root, count)
    key = kind.queues[0]
    places = sorted({known.commit_log_offset for known in content.queues[key].values()})
    place = places[min(which, len(places) - 1)]
    size = SIZES["mapped_file_size_commit_log"]
    with (root / "commitlog" / f"{place - place % size:020d}").open("r+b") as file:
        file.seek(place % size)
        file.write(b"\xff" * 40)
    STATES[state](root)
    for step in ROADS[road]:
        step(kind, root)
    with kind.open(root, mode="r") as store:
        for queue in kind.queues:
            found = read_on(store.queue(*queue))[0]
            there = {n: known for n, known in content.queues[queue].items() if known.commit_log_offset != place}
            assert {number: found.get(number) for number in there} == there
            assert found.keys() <= content.queues[queue].keys()


CHANGES = [
    *((field, which) for field in FIELDS for which in (0, 1, -1)),
    *((change, 0) for change in ("record", "unit", "unit, one bit", "units")),
]


@pytest.mark.one_in(1557)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed with a seal"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize(("field", "which"), CHANGES)
@pytest.mark.parametrize("count", [1, FEWER])
@pytest.mark.parametrize("old", [1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_damage_brings_no_deleted_message_back(
    kind: Kind, old: int, count: int, field: str, which: int, road: str, state: str, tmp_path: Path
) -> None:
    """Every message of the second topic is served in its place or named, and none of the first. Where no unit of the
    second topic is left, opening serves those of the first, as RocketMQ does; the others are named and stay."""
    if count == 1 and (old, field) in [(1, "queue offset, lowest bit"), (2, "queue offset, one bit")]:
        pytest.skip("the changed record goes on where the deleted ones end: the unit may be the wrong one")
    root, key = tmp_path / "store", kind.queues[0]
    content = made(kind, root, 2 * count, old=2 * old)
    places = list(dict.fromkeys(known.commit_log_offset for known in content.queues[key].values()))
    place = places[which] if which < len(places) else places[-1]
    damage(kind, root, key, place, field)
    STATES[state](root)
    log = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    reports = walked(kind, root, road)
    names = [text for text in reports.texts if text]
    if field.startswith("unit"):
        assert log == {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    no_unit = field == "units" or (field.startswith("unit") and count == 1)
    with kind.open(root, mode="r") as store:
        for queue in kind.queues:
            expected, (found, errors, _) = content.queues[queue], read_on(store.queue(*queue))
            others = [number for number, known in found.items() if known != expected.get(number)]
            assert not others or no_unit, f"{queue} serves others at {others}"
            lacking = [known.commit_log_offset for number, known in expected.items() if found.get(number) != known]
            assert not lacking or names or errors or store.recovery.warning, f"{queue} lacks what stands at {lacking}"
            assert set(lacking) <= {place} or no_unit, f"{queue} lacks what stands at {lacking}, not {place}"


@pytest.mark.one_in(144)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "opened, repaired"])
@pytest.mark.parametrize("bit", [12, 13])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_first_unit_that_leads_to_a_deleted_message_of_its_place_and_size_is_damaged(
    kind: Kind, count: int, bit: int, road: str, state: str, tmp_path: Path
) -> None:
    root, key = tmp_path / "store", kind.queues[0]
    content, place = made_one_bit_apart(kind, root, bit, count)
    STATES[state](root)
    path = kind.files(root, key)[0]
    data = bytearray(path.read_bytes())
    at = kind.layout.position("commit_log_offset")
    data[at : at + 8] = place.to_bytes(8, "big")
    path.write_bytes(data)
    reports = walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        found = read_on(store.queue(*key))[0]
    if road == "opened" and state in ("closed", "killed with a seal"):  # then opening leaves the units as they are
        assert found == content.queues[key] or any("a message that is not its own" in text for text in reports.texts)
        assert found == content.queues[key] or not verify(root, settings=settings_of(kind)).ok
    else:
        assert found == content.queues[key]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed with a seal", "killed"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_where_a_queue_begins_is_known_after_its_only_message_went_elsewhere(
    kind: Kind, state: str, tmp_path: Path
) -> None:
    content = made(kind, tmp_path, 2)
    STATES[state](tmp_path)
    change(tmp_path, content.queues[kind.queues[0]][0].commit_log_offset, "topic")
    assert repair(plan_repair(tmp_path, settings=settings_of(kind))).ok
    assert not plan_repair(tmp_path, settings=settings_of(kind)).actions
    with kind.open(tmp_path) as store:
        assert set(read_on(store.queue(*kind.queues[0]))[0]) <= {0}


@pytest.mark.one_in(72)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed with a seal", "killed"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("count", [1, 2, FEWER])
@pytest.mark.parametrize("old", [2, OLD])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_log_that_lost_the_second_topic_does_not_serve_the_first(
    kind: Kind, old: int, count: int, road: str, state: str, tmp_path: Path
) -> None:
    """Its end is zeros, from the first message of the second topic on: only units lead there."""
    root = tmp_path / "store"
    content = made(kind, root, 2 * count, old=2 * old)
    STATES[state](root)
    zeroed(root, min(known.commit_log_offset for queue in content.queues.values() for known in queue.values()))
    reports = walked(kind, root, road)
    assert any(reports.texts) or reports.stated
    with kind.open(root, mode="r") as store:
        assert not any(read_on(store.queue(*key))[0] for key in kind.queues)


@pytest.mark.one_in(216)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed with a seal", "killed"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("is_last_deleted", [False, True])
@pytest.mark.parametrize("lost_count", [1, 3, 8])
@pytest.mark.parametrize("count", [2, 4, FEWER])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_log_that_lost_a_part_of_the_first_topic_does_not_serve_the_rest_of_it(
    kind: Kind, count: int, lost_count: int, is_last_deleted: bool, road: str, state: str, tmp_path: Path
) -> None:
    """Its end is zeros, from a deleted message on: no unit leads to those that are lost first, or, where one is last,
    right before the first live one."""
    root, deleted = tmp_path / "store", Content()
    content = made(kind, root, count, deleted=deleted, is_last_deleted=is_last_deleted)
    STATES[state](root)
    zeroed(
        root,
        sorted({one.commit_log_offset for queue in deleted.queues.values() for one in queue.values()})[-lost_count],
    )
    plan = plan_repair(root, settings=settings_of(kind))
    counted = {(*key, number) for *key, first, end in plan.lost_ranges for number in range(first, end)}
    assert counted >= {(*key, number) for key, queue in content.queues.items() for number in queue}
    reports = walked(kind, root, road)
    assert any(reports.texts) or reports.stated
    with kind.open(root, mode="r") as store:
        for key in kind.queues:
            assert not read_on(store.queue(*key))[0]
    if state == "killed" and road != "repaired":
        return  # opening said that offsets may be given again
    with kind.open(root) as store:
        assert {key: store.queue(*key).max_offset for key in kind.queues} == {
            key: len(content.queues[key]) for key in kind.queues
        }


@pytest.mark.one_in(108)
@pytest.mark.parametrize("state", ["closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("lost_count", [1, 3, 8])
@pytest.mark.parametrize("count", [2, 4, FEWER])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_index_tells_that_the_log_reached_the_messages_after_the_deleted_ones(
    kind: Kind, count: int, lost_count: int, road: str, state: str, tmp_path: Path
) -> None:
    """The log lost deleted messages and all after them, and no other queue had one there."""
    root, deleted, content = tmp_path / "store", Content(), Content()
    with kind.open(root, clock_ns=Clock()) as store:
        fill(kind, store, deleted, 0, OLD)
        kind.fill(store, deleted, begin=OLD, count=8)
        delete(store, kind)
        kind.fill(store, content, begin=OLD, count=count)
    STATES[state](root)
    places = sorted({one.commit_log_offset for queue in deleted.queues.values() for one in queue.values()})
    zeroed(root, places[-lost_count])
    reports = walked(kind, root, road)
    assert any(reports.texts) or reports.stated
    with kind.open(root, mode="r") as store:
        assert not any(read_on(store.queue(*key))[0] for key in kind.queues)
    if state == "killed":
        return  # opening said that offsets may be given again
    with kind.open(root) as store:
        assert {key: store.queue(*key).max_offset for key in kind.queues} == {
            key: len(content.queues[key]) for key in kind.queues
        }


def overwritten(root: Path, begin: int, end: int) -> None:
    """Bytes that are none of a log in place of a part of it, which lies in one file."""
    (path,) = (
        path for path in (root / "commitlog").iterdir()
        if int(path.name) <= begin < int(path.name) + SIZES["mapped_file_size_commit_log"]
    )  # fmt: skip
    with path.open("r+b") as file:
        file.seek(begin - int(path.name))
        file.write(b"\xff" * (end - begin))


@pytest.mark.one_in(180)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "opened, repaired"])
@pytest.mark.parametrize("left", [0, 4])
@pytest.mark.parametrize(("old", "lost_count"), [(4, 1), (4, 2), (8, 3), (1, 3), (3, 2), (2, 5)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_units_of_lost_messages_tell_deleted_ones_when_rocketmq_had_the_store(
    kind: Kind, old: int, lost_count: int, left: int, road: str, state: str, tmp_path: Path
) -> None:
    """The first messages of the second topic are lost, or all of them. (Of a batch topic that lost exactly as many as
    the first one had the log does not tell.)"""
    root, deleted, content = tmp_path / "store", Content(), Content()
    with kind.open(root, clock_ns=Clock()) as store:
        fill(kind, store, deleted, 0, 2 * old)
        delete(store, kind)
        begin = store.log.end_offset
        kind.fill(store, Content(), begin=2 * old, count=2 * lost_count)
        end, numbers = store.log.end_offset, {key: store.queue(*key).max_offset for key in kind.queues}
        if any(numbers[key] == len(deleted.queues.get(key, {})) for key in kind.queues):
            pytest.skip("as many as were deleted")
        kind.fill(store, content, begin=100, count=2 * left)
        store.put("other", b"")
    STATES[state](root)
    overwritten(root, begin, end)
    walked(kind, root, road)
    for _ in range(2):
        unseal(root)
        with kind.open(root) as store:
            for key in kind.queues:
                known = dict(enumerate(content.queues.get(key, {}).values(), numbers[key]))
                assert read_on(store.queue(*key))[0] == known


def zeroed(root: Path, begin: int) -> None:
    """Zeros in place of the log from there on."""
    for path in (root / "commitlog").iterdir():
        data, at = path.read_bytes(), max(0, begin - int(path.name))
        path.write_bytes(data[:at] + bytes(len(data[at:])))


def walked(kind: Kind, root: Path, road: str) -> Reports:
    """What is said on the way; refusals are reports, too."""
    reports = Reports()
    for step in road.split(", "):
        try:
            getattr(reports, step)(kind, root)
        except CorruptData as error:
            reports.texts.append(str(error))
    return reports


def damage(kind: Kind, root: Path, key: Key, place: int, field: str) -> None:
    if field in FIELDS:
        change(root, place, field)
        return
    if field == "record":
        size = SIZES["mapped_file_size_commit_log"]
        with (root / "commitlog" / f"{place - place % size:020d}").open("r+b") as file:
            file.seek(place % size)
            file.write(b"\xff" * 40)
        return
    for path in kind.files(root, key)[: None if field == "units" else 1]:
        data = bytearray(path.read_bytes())
        if field == "unit, one bit":
            data[kind.layout.position("commit_log_offset") + 7] ^= 0x10
        else:
            end = len(data) if field == "units" else kind.layout.size
            data[:end] = bytes(end)
        path.write_bytes(data)


def sector_zeroed(kind: Kind, root: Path) -> None:
    """The first one of the log: the first records of several queues."""
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(bytes(512) + path.read_bytes()[512:])


def files_exchanged(kind: Kind, root: Path) -> None:
    """The first of one queue and the newest of the other."""
    one, other = kind.files(root, kind.queues[0])[0], kind.files(root, kind.queues[1])[-1]
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def first_unit_changed(bit: int, kind: Kind, root: Path) -> None:
    path = kind.files(root, kind.queues[0])[0]
    data = bytearray(path.read_bytes())
    data[kind.layout.position("commit_log_offset") + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def first_record_changed(field: str, kind: Kind, root: Path) -> None:
    with kind.open(root, mode="r") as store:
        place = next(store.queue(*kind.queues[0]).read()).commit_log_offset
    change(root, place, field)


def made_one_bit_apart(kind: Kind, root: Path, bit: int, count: int) -> tuple[Content, int]:
    """A store whose first message of the second topic stands one bit of its log offset after that of the first, which
    has the same size; what it holds, and where the deleted message stands."""
    content, old, other = Content(), Content(), "other"
    with kind.open(root, clock_ns=Clock()) as store:
        kind.fill(store, old, count=4)
        delete(store, kind)
        place = old.queues[kind.queues[0]][0].commit_log_offset
        store.put(other, b"")
        last = next(store.queue(other).read())
        room = (place | 1 << bit) - last.commit_log_offset - 2 * last.store_size
        store.put(other, b"-" * room)
        kind.fill(store, content, count=2 * count)
    assert content.queues[kind.queues[0]][0].commit_log_offset == place | 1 << bit
    return content, place


DAMAGES: dict[str, Callable[[Kind, Path], None]] = {
    "sector": sector_zeroed,
    "files exchanged": files_exchanged,
    **{f"unit, bit {bit}": partial(first_unit_changed, bit) for bit in range(14)},
    **{field: partial(first_record_changed, field) for field in FIELDS},
}


@pytest.mark.one_in(2556)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed with a seal"])
@pytest.mark.parametrize("road", [*ROADS, "opened, opened"])
@pytest.mark.parametrize("count", [2, 4, 8, 24])
@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_damage_makes_a_topic_look_as_if_it_had_been_created_again(
    kind: Kind, name: str, count: int, road: str, state: str, tmp_path: Path
) -> None:
    """No live message is taken for a deleted one."""
    root = tmp_path / "store"
    content = Content()
    with kind.open(root, clock_ns=Clock()) as store:
        fill(kind, store, content, 0, count)
    DAMAGES[name](kind, root)
    STATES[state](root)
    reports = walked(kind, root, road)
    assert not any("begin again" in text for text in reports.texts)
    report = verify(root, settings=settings_of(kind))
    # A record that names another queue's place stands in front of it, until it is repaired.
    assert not report.deleted_count or (name.startswith("queue id") and not report.ok)
    is_named = any(filter(None, reports.texts)) or not report.ok or report.missing
    if any("not one whole record" in text for text in reports.texts):
        return  # opening refuses
    with kind.open(root, mode="r") as store:
        for queue in kind.queues:
            found, errors, _ = read_on(store.queue(*queue))
            assert found == content.queues[queue] or is_named or errors


def expired(kind: Kind, root: Path, count: int, *, left: int = 10) -> Content:
    """A store of which retention took the first topic's first messages, but not all; so many of the second one."""
    begin, content = SIZES["mapped_file_size_commit_log"], Content()
    with kind.open(root, clock_ns=Clock()) as store:
        fill(kind, store, Content(), 0, OLD)
        while store.put("other", b"to the next log file" * 20).commit_log_offset < begin:
            pass
        for number in range(OLD, OLD + left):
            kind.put(store, number, Content())
        delete(store, kind)
        kind.fill(store, content, begin=2 * OLD, count=count)
    (root / "commitlog" / f"{0:020d}").unlink()
    return content


@pytest.mark.one_in(54)
@pytest.mark.parametrize("road", ["rebuilt", "repaired", "opened, repaired", "opened"])
@pytest.mark.parametrize("damaged", ["unit", "files"])
@pytest.mark.parametrize("count", [1, 3, FEWER])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in ("plain", "extended", "batch")], ids=str)
def test_after_retention_took_a_part_of_the_first_topic_no_message_is_changed(
    kind: Kind, count: int, damaged: str, road: str, tmp_path: Path
) -> None:
    """The first topic's messages do not begin at 0 in the log any more."""
    root, key = tmp_path / "store", kind.queues[0]
    content = expired(kind, root, 2 * count)
    unseal(root)
    damage(kind, root, key, 0, damaged if damaged == "unit" else "units")
    log = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    reports = walked(kind, root, road)
    assert log == {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    with kind.open(root, mode="r") as store:
        found, errors, _ = read_on(store.queue(*key))
        assert found == content.queues[key] or any(filter(None, reports.texts)) or errors or store.recovery.warning
        assert damaged != "unit" or count == 1 or found == content.queues[key]


@pytest.mark.one_in(432)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["rebuilt", "repaired", "opened, repaired", "opened"])
@pytest.mark.parametrize("left", [1, 2, 10])
@pytest.mark.parametrize(
    "what", ["ones", "noise", "size of a filler", *(f"bit {bit}" for bit in (*range(8, 20), 32, 63))]
)
@pytest.mark.parametrize("count", [2, FEWER])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in ("plain", "extended", "batch")], ids=str)
def test_after_retention_a_damaged_first_unit_looks_like_none_of_an_expired_message(
    kind: Kind, count: int, what: str, left: int, road: str, state: str, tmp_path: Path
) -> None:
    """It is in front of the first unit that leads into the log; `what` is a bit of its log offset. So many messages of
    the first topic are `left`."""
    root, key = tmp_path / "store", kind.queues[0]
    content = expired(kind, root, 2 * count, left=left)
    STATES[state](root)
    path, size = kind.files(root, key)[0], kind.layout.size
    data = bytearray(path.read_bytes())
    if what.startswith("bit"):
        bit = int(what.split()[1])
        data[kind.layout.position("commit_log_offset") + 7 - bit // 8] ^= 1 << bit % 8
    elif what == "size of a filler":
        data[kind.layout.position("size") :][:4] = b"\x7f\xff\xff\xff"
    else:
        data[:size] = b"\xff" * size if what == "ones" else random.Random(count).randbytes(size)
    path.write_bytes(data)
    walked(kind, root, road)
    with kind.open(root) as store:
        found, _, _ = read_on(store.queue(*key))
    assert found.items() <= content.queues[key].items()
    is_whole = verify(root, settings=settings_of(kind)).ok  # opening does not look, after a clean stop
    assert found == content.queues[key] or (road == "opened" and not is_whole)
    assert "repaired" not in road or verify(root, settings=settings_of(kind)).ok


@pytest.mark.one_in(27)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("size", range(60, 200, 20))
def test_placeholders_of_the_second_topic_come_behind_its_begin(
    size: int, more: bool, state: str, tmp_path: Path
) -> None:
    """One damaged block holds its first messages and some of another topic, whose placeholders may come first."""
    key = PLAIN.queues[0]
    with PLAIN.open(tmp_path, clock_ns=Clock()) as store:
        for body in (b"old", b"old" * size, b"old"):
            store.queue(*key).put(body)
        delete(store, PLAIN)
        begin = store.queue(*key).put(b"new").commit_log_offset
        for queue, body in (("other", b"y" * size), ("", b"new"), ("other", b"z"), ("other", b"z")):
            store.queue(queue, 0).put(body) if queue else store.queue(*key).put(body)
        if more:
            store.queue(*key).put(b"new")
        end = store.put("other", b"last").commit_log_offset
    STATES[state](tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[begin - 5 : end] = b"\xff" * (end - begin + 5)
    path.write_bytes(data)
    repair(plan_repair(tmp_path, settings=settings_of(PLAIN)))
    assert not plan_repair(tmp_path, settings=settings_of(PLAIN)).actions
    assert verify(tmp_path, settings=settings_of(PLAIN)).ok
    with PLAIN.open(tmp_path, mode="r") as store:
        assert not {known.body[:3] for known in read_on(store.queue(*key))[0].values()} & {b"old"}
        assert store.queue(*key).max_offset == 2 + more


@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "opened, repaired"])
def test_a_torn_first_message_of_the_second_topic_brings_no_deleted_one_back(road: str, tmp_path: Path) -> None:
    key = PLAIN.queues[0]
    with PLAIN.open(tmp_path, clock_ns=Clock()) as store:
        for _ in range(3):
            store.queue(*key).put(b"old")
        delete(store, PLAIN)
        place = store.queue(*key).put(b"new" * 200).commit_log_offset
    killed(tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[place + 300 :] = bytes(len(data) - place - 300)
    path.write_bytes(data)
    for step in road.split(", "):
        getattr(Reports(), step)(PLAIN, tmp_path)
    with PLAIN.open(tmp_path) as store:
        store.queue(*key).put(b"newer")
        assert {known.body for known in read_on(store.queue(*key))[0].values()} == {b"newer"}


def lives_on_in_one_queue(kind: Kind, root: Path, old: Sequence[int], count: int) -> tuple[Content, Key]:
    """A store whose topic was deleted once for each number of `old`, so many messages before in each queue; and now has
    some in its first queue."""
    content, key = Content(), kind.queues[0]
    with kind.open(root, clock_ns=Clock()) as store:
        for before in old:
            for number in range(2 * before):
                kind.put(store, number, Content())
                store.put("other", b"other")
            delete(store, kind)
        for number in range(0, 2 * count, 2):
            kind.put(store, number, content)
    shutil.rmtree(kind.directory(root, kind.queues[1]))
    return content, key


@pytest.mark.one_in(180)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("field", ["topic", "topic, not ASCII", "queue offset, lowest bit", "record"])
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("old", [(1,), (1, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_damage_moves_no_deleted_message_into_the_only_queue(
    kind: Kind, old: tuple[int, ...], count: int, field: str, road: str, state: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content, key = lives_on_in_one_queue(kind, root, old, count)
    place = next(iter(content.queues[key].values())).commit_log_offset
    damage(kind, root, key, place, field)
    STATES[state](root)
    reports = walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        found, errors, _ = read_on(store.queue(*key))
        lacking = {n: known for n, known in content.queues[key].items() if found.get(n) != known}
        assert not found.keys() - content.queues[key].keys()
        assert {known.commit_log_offset for known in lacking.values()} <= {place}
        assert not found.keys() & lacking.keys() or {found[n].commit_log_offset for n in lacking} == {place}
        assert not lacking or any(filter(None, reports.texts)) or errors or store.recovery.warning


@pytest.mark.one_in(27)
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("is_torn", [True, False])
@pytest.mark.parametrize("old", [(1,), (5,), (3, 1)], ids=str)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_the_loss_of_the_only_message_at_the_logs_end_is_told(
    kind: Kind, old: tuple[int, ...], is_torn: bool, road: str, tmp_path: Path
) -> None:
    """RocketMQ was killed, and its log ends before that message, with a torn record or without."""
    root = tmp_path / "store"
    content, _ = lives_on_in_one_queue(kind, root, old, 1)
    killed(root)
    place = content.queues[kind.queues[0]][0].commit_log_offset
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:place] + (b"\xff" * 40 if is_torn else b"").ljust(len(data) - place, b"\0"))
    reports = walked(kind, root, road)
    assert any(reports.texts)


@pytest.mark.one_in(54)
@pytest.mark.parametrize("road", ["read", "opened", "rebuilt", "repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("is_torn", [True, False])
@pytest.mark.parametrize("count", [2, 5, 12])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_deleted_message_comes_back_in_the_place_of_several_that_a_crash_took(
    kind: Kind, count: int, is_torn: bool, road: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = made(kind, root, 2 * count, old=8)
    killed(root)
    place = min(known.commit_log_offset for queue in content.queues.values() for known in queue.values())
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:place] + (b"\xff" * 40 if is_torn else b"").ljust(len(data) - place, b"\0"))
    for other in sorted((root / "commitlog").iterdir())[1:]:
        other.unlink()
    reports = walked(kind, root, road) if road != "read" else None
    with kind.open(root, mode="r") as store:
        for key in kind.queues:
            assert not read_on(store.queue(*key))[0]
    assert reports is None or any(reports.texts)


@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ"])
def test_a_deleted_batch_that_contradicts_itself_is_none_to_repair(state: str, tmp_path: Path) -> None:
    made(BATCH, tmp_path, 4, old=8)
    STATES[state](tmp_path)
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    at = data.index(b"INNER_NUM\x01", data.index(b"006.0")) + 10
    path.write_bytes(data[:at] + b"x" + data[at + 1 :])
    assert verify(tmp_path, settings=settings_of(BATCH)).ok
    assert not plan_repair(tmp_path, settings=settings_of(BATCH)).actions


@pytest.mark.one_in(36)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed with a seal"])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "opened, repaired"])
@pytest.mark.parametrize("file", ["gone", "zeros"])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_after_retention_the_messages_of_a_lost_first_file_are_served(
    kind: Kind, file: str, road: str, state: str, tmp_path: Path
) -> None:
    """The log begins with messages of the deleted topic that had larger queue offsets."""
    root, key = tmp_path / "store", kind.queues[0]
    content = expired(kind, root, OLD)
    STATES[state](root)
    first = kind.files(root, key)[0]
    first.unlink() if file == "gone" else first.write_bytes(bytes(first.stat().st_size))
    walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        assert read_on(store.queue(*key)) == (content.queues[key], [], set())


@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired"])
@pytest.mark.parametrize("file", ["gone", "zeros"])
@pytest.mark.parametrize("field", ["flags, prepared", "topic"])
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_deleted_messages_that_stand_in_place_of_damaged_ones_are_told_after_a_clean_stop(
    kind: Kind, field: str, file: str, road: str, tmp_path: Path
) -> None:
    """The only message of the second topic and its units are damaged: nothing tells where its queue begins."""
    root, key = tmp_path / "store", kind.queues[0]
    content = lives_on_in_one_queue(kind, root, [3], 1)[0]
    change(root, next(iter(content.queues[key].values())).commit_log_offset, field)
    first = kind.files(root, key)[0]
    first.unlink() if file == "gone" else first.write_bytes(bytes(first.stat().st_size))
    reports = Reports()
    getattr(reports, road)(kind, root)
    assert any("later than at the last clean stop: 1" in text for text in reports.texts)


def test_verify_names_the_messages_whose_places_deleted_ones_took(tmp_path: Path) -> None:
    key, kind = LIGHT_KIND.queues[0], LIGHT_KIND
    content = made(kind, tmp_path, 8)
    shutil.rmtree(kind.directory(tmp_path, key))
    repair(plan_repair(tmp_path, settings=settings_of(kind)))
    notes = [note for note in verify(tmp_path, settings=settings_of(kind)).notes if "another one has" in note]
    assert [note.split(": ")[1].split(",")[0] for note in notes] == [str(len(content.queues[key]))]


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_what_is_put_after_the_log_lost_both_topics_stays(
    kind: Kind, count: int, is_closed: bool, tmp_path: Path
) -> None:
    """The second topic began where the log does not reach any more."""
    root, key = tmp_path / "live", kind.queues[0]
    made(kind, root, 8, old=4)
    killed(root)
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes(len(data) - 200))
    content = Content()
    with kind.open(root) as store:
        first = store.queue(*key).max_offset
        kind.fill(store, content, begin=100, count=2 * count)
        store.dispatch()
        shutil.copytree(root, tmp_path / "killed")
    last = root if is_closed else tmp_path / "killed"
    assert verify(last, settings=settings_of(kind)).ok or first
    with kind.open(last) as store:
        found = read_on(store.queue(*key))[0]
        assert set(content.queues[key].values()) <= set(found.values())
        assert store.queue(*key).max_offset == first + len(content.queues[key])


@pytest.mark.one_in(252)
@pytest.mark.parametrize("state", ["closed by RocketMQ", "killed with a seal"])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "opened, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("more", [1, 5])
@pytest.mark.parametrize("count", [2, FEWER, MORE])
@pytest.mark.parametrize("old", [1, 4, OLD])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_where_the_second_topic_was_lost_the_first_is_not_served_after_what_was_put_since(
    kind: Kind, old: int, count: int, more: int, road: str, state: str, tmp_path: Path
) -> None:
    """An opening kept the offsets of the lost messages, and RocketMQ had the store then: only the units of lost
    messages tell that those in front of the new ones are deleted."""
    root = tmp_path / "store"
    lost = made(kind, root, 2 * count, old=2 * old)
    STATES[state](root)
    zeroed(root, min(known.commit_log_offset for queue in lost.queues.values() for known in queue.values()))
    content = Content()
    with kind.open(root, clock_ns=Clock()) as store:
        begins = {key: store.queue(*key).max_offset for key in kind.queues}
        kind.fill(store, content, begin=100, count=2 * more)
    unseal(root)
    walked(kind, root, road)
    for mode in ("r", "w"):
        with kind.open(root, mode=mode) as store:
            for key in kind.queues:
                known = dict(enumerate(content.queues.get(key, {}).values(), begins[key]))
                assert read_on(store.queue(*key))[0] == known
                assert store.queue(*key).max_offset == begins[key] + len(known)


@pytest.mark.one_in(144)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "opened, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("old", [1, 2, 6])
@pytest.mark.parametrize("how", ["zeros", "cut", "empty", "gone"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_a_log_file_lacks_up_to_its_end_is_damage(
    kind: Kind, how: str, old: int, road: str, state: str, tmp_path: Path
) -> None:
    """The second topic begins there, and goes on in the next file."""
    kind = replace(kind, settings={**kind.settings, "mapped_file_size_commit_log": 4096})
    root = tmp_path / "store"
    with kind.open(root) as store:
        while store.put("before", b"to the next log file" * 20).commit_log_offset < 4096:
            pass
    content = made(kind, root, 60, old=2 * old)
    STATES[state](root)
    begin = min(known.commit_log_offset for queue in content.queues.values() for known in queue.values())
    path = root / "commitlog" / f"{begin // 4096 * 4096:020d}"
    if how != "zeros" and ("repaired" not in road or begin < 4096):
        pytest.skip("opening refuses it; a first file that is missing is taken for retention")
    kept = path.read_bytes()[: begin % 4096]
    path.write_bytes({"zeros": kept.ljust(4096, b"\0"), "cut": kept}.get(how, b""))
    if how == "gone":
        path.unlink()
    reports = walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        for key, expected in content.queues.items():
            found = read_on(store.queue(*key))[0]
            lost = {number for number, known in expected.items() if known.commit_log_offset // 4096 == begin // 4096}
            assert found == {number: known for number, known in expected.items() if number not in lost}
            assert "repaired" not in road or {(key, number) for number in lost} <= reports.stated


@pytest.mark.one_in(1728)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired", "opened, repaired"])
@pytest.mark.parametrize("bit", [*range(8 * len(MULTI_DISPATCH)), *range(-8 * len("%LMQ%a"), 0)])
@pytest.mark.parametrize("old", [1, 2])
@pytest.mark.parametrize("count", [1, 4])
def test_a_first_message_that_names_no_light_queue_any_more_brings_no_deleted_one_back(
    count: int, old: int, bit: int, road: str, state: str, tmp_path: Path
) -> None:
    """One bit of the name of the property that says so, or of the queue's (a negative number)."""
    kind, root, key = LIGHT_KIND, tmp_path / "store", LIGHT_KIND.queues[0]
    content = made(kind, root, 2 * count, old=2 * old)
    STATES[state](root)
    path, place = root / "commitlog" / f"{0:020d}", content.queues[key][0].commit_log_offset
    data = bytearray(path.read_bytes())
    end = data.index(f"{MULTI_DISPATCH}\1".encode(), place)
    end = data.index(key[0].encode(), end) + len(key[0]) if bit < 0 else end
    data[end + bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    reports = walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        found = read_on(store.queue(*key))[0]
    assert {number: known for number, known in content.queues[key].items() if number} == (
        {number: known for number, known in found.items() if number}
    )
    assert found.get(0) in (None, content.queues[key][0])
    assert "repaired" not in road or 0 in found or (key, 0) in reports.stated


@pytest.mark.one_in(1440)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("size", [100, 250, 512])
@pytest.mark.parametrize("tail", [0, 4, 12, 40])
@pytest.mark.parametrize("value", [b"x", b"\xff", b"\0"])
@pytest.mark.parametrize("left", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_damage_from_the_end_of_the_first_message_on_is_repaired_and_its_losses_are_named(
    kind: Kind, left: int, value: bytes, tail: int, size: int, road: str, state: str, tmp_path: Path
) -> None:
    """The first message may name its place no more, and the second one be lost. So many messages of the first topic are
    `left` by retention; 0: it took none."""
    root, key = tmp_path / "store", kind.queues[0]
    content = expired(kind, root, FEWER, left=2 * left) if left else made(kind, root, FEWER)
    first = content.queues[key][0].commit_log_offset
    path = root / "commitlog" / f"{first - first % SIZES['mapped_file_size_commit_log']:020d}"
    data, position = bytearray(path.read_bytes()), first % SIZES["mapped_file_size_commit_log"]
    begin = position + HEAD.unpack(data, position).total_size - tail
    data[begin : begin + size] = value * size
    path.write_bytes(data)
    STATES[state](root)
    reports = walked(kind, root, road)
    assert verify(root, settings=settings_of(kind)).ok
    with kind.open(root, mode="r") as store:
        for queue in kind.queues:
            found, expected = read_on(store.queue(*queue))[0], content.queues[queue]
            assert all((queue, number) in reports.stated for number in expected if number not in found)
            for number, known in found.items():
                assert known.commit_log_offset == first or known == expected[number]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["opened", "repaired", "opened, repaired"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_first_topic_is_not_served_where_the_newest_log_file_is_lost(
    kind: Kind, road: str, state: str, tmp_path: Path
) -> None:
    """It held the only message of the second topic."""
    root, begin = tmp_path / "store", SIZES["mapped_file_size_commit_log"]
    with kind.open(root, clock_ns=Clock()) as store:
        kind.fill(store, Content(), count=6)
        while store.put("other", b"to the next log file" * 20).commit_log_offset < begin:
            pass
        delete(store, kind)
        kind.fill(store, Content(), begin=6, count=2)
    STATES[state](root)
    (root / "commitlog" / f"{begin:020d}").unlink()
    walked(kind, root, road)
    if state != "closed" or "repaired" in road:  # else opening refuses it
        with kind.open(root, mode="r") as store:
            assert not any(read_on(store.queue(*key))[0] for key in kind.queues)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["opened", "rebuilt", "repaired"])
@pytest.mark.parametrize("bit", [30, 40, 62])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_units_that_lead_far_away_tell_of_no_deleted_topic(
    kind: Kind, bit: int, road: str, state: str, tmp_path: Path
) -> None:
    """All of a file, which follow each other; no topic was deleted."""
    root, key = tmp_path / "store", kind.queues[0]
    content = kind.made(root, count=8)
    STATES[state](root)
    path, layout = kind.files(root, key)[0], kind.layout
    units = np.frombuffer(bytearray(path.read_bytes()), layout.dtype).copy()
    units["commit_log_offset"][units["size"] > 0] += 1 << bit
    path.write_bytes(units.tobytes())
    walked(kind, root, road)
    with kind.open(root) as store:
        assert read_on(store.queue(*key))[0] == content.queues[key]


@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
def test_repair_leaves_the_records_of_a_queue_whose_directory_was_renamed_as_they_are(
    kind: Kind, count: int, state: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    key = lives_on_in_one_queue(kind, root, [3], count)[1]
    STATES[state](root)
    directory = kind.directory(root, key)
    directory.rename(directory.with_name("7"))
    log = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    try:
        report = repair(plan_repair(root, settings=settings_of(kind)))
    except CorruptData:
        pass
    else:
        assert not report.ok
    assert log == {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}


@pytest.mark.one_in(100)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired"])
@pytest.mark.parametrize("bit", [0, 1, 7, 24, 31])
@pytest.mark.parametrize("old", [1, 6])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_after_a_repair_nothing_is_named_that_cannot_be_read(
    kind: Kind, count: int, old: int, bit: int, road: str, state: str, tmp_path: Path
) -> None:
    """One bit of the queue id of the first new message, maybe the only one."""
    root, key = tmp_path / "store", kind.queues[0]
    content = made(kind, root, count, old=2 * old)
    STATES[state](root)
    path, place = root / "commitlog" / f"{0:020d}", content.queues[key][0].commit_log_offset
    data = bytearray(path.read_bytes())
    data[place + HEAD.position("queue_id") + bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    reports = walked(kind, root, road)
    report = verify(root, settings=settings_of(kind))
    assert report.ok
    named = {((topic, queue_id), at) for topic, queue_id, *offsets in report.missing for at in range(*offsets)}
    with kind.open(root, mode="r") as store:
        assert not [*store.recovery.notes, *store.recovery.warning]
        for key in kind.queues:
            found, errors, _ = read_on(queue := store.queue(*key))
            assert not errors
            assert found.items() <= content.queues[key].items()
            lost = {(key, number) for number in range(queue.min_offset, queue.max_offset) if number not in found}
            assert lost <= named | reports.stated
