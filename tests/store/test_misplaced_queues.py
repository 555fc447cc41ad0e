"""The directory of a queue of few messages gets another name, or a copy: the log is right, and stays as it is."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stratalog
from store.kinds import (
    BATCH,
    EXTENDED,
    KINDS,
    LIGHT_EXTENDED,
    LIGHT_KIND,
    PLAIN,
    QUEUE_FILE_UNITS,
    SIZES,
    Kind,
    read_on,
)
from store.model import QUIET, scratch_folder
from stratalog.config.settings import StoreSettings
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, SCHEDULE_TOPIC
from stratalog.layout.properties import encode_properties
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore
from stratalog.store.topics import Topics
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

Held = dict[tuple[str, int], dict[int, bytes]]
FEW, LIGHT = "rara", "%LMQ%rara"
FILLING = 60


def settings_of(kind: Kind) -> StoreSettings:
    return StoreSettings().override({**SIZES, **kind.settings})


def put_few(store: MessageStore, kind: Kind, number: int) -> None:
    body = b"few%02d" % number * 9
    if kind is BATCH:
        store.queue(FEW, 0).put_batch([body, body + b"."], unique_key=f"u{number}")
    elif kind in (LIGHT_KIND, LIGHT_EXTENDED):
        store.queue(FEW, 0).put_raw(body, encode_properties({MULTI_DISPATCH: LIGHT}))
    else:
        store.put(FEW, body, queue_id=0)


def fill(root: Path, kind: Kind, count: int, gone: int) -> None:
    """`gone` messages of the queue are in a log file that is no longer there."""
    with kind.open(root) as store:
        if kind is BATCH:
            store.create_topic(FEW, queues=2, queue_type="BatchCQ")
        for number in range(gone):
            put_few(store, kind, number)
        while gone and store.put("filling", b"." * 300).commit_log_offset < SIZES["mapped_file_size_commit_log"]:
            pass
        for number in range(FILLING):
            store.put("filling", b"%03d" % number * 20)
            if FILLING // 3 <= number < FILLING // 3 + count:
                put_few(store, kind, gone + number)
    if gone:
        (root / "commitlog" / ("0" * 20)).unlink()
        kind.open(root).close()


def held(root: Path, kind: Kind, *, is_whole: bool = True) -> tuple[Held, dict[tuple[str, int], int]]:
    """Bodies by queue and queue offset, and where queues end that have an offset."""
    found: Held = {}
    ends = {}
    with kind.open(root) as store:
        for key in store.queues():
            queue = store.queue(*key)
            messages, errors, _ = read_on(queue)
            found[key] = {number: known.body for number, known in messages.items()}
            if is_whole and found[key]:
                assert not errors, errors
            if queue.max_offset:
                ends[key] = queue.max_offset
    return {key: messages for key, messages in found.items() if messages}, ends


def repaired(root: Path, kind: Kind) -> Path:
    plan = plan_repair(root, settings=settings_of(kind))
    assert {action.kind for action in plan.actions} <= {"rebuild", *(["enter"] if kind is BATCH else [])}
    assert not plan.lost
    assert repair(plan).ok
    return root


def repaired_to(root: Path, kind: Kind) -> Path:
    to = root.with_name("to")
    plan = plan_repair(root, settings=settings_of(kind))
    assert not plan.lost
    assert repair(plan, to=to).ok
    return to


def rebuilt(root: Path, kind: Kind) -> Path:
    rebuild(root, settings=settings_of(kind))
    return root


def just_opened(root: Path, kind: Kind) -> Path:
    return root


WAYS: tuple[Callable[[Path, Kind], Path], ...] = (repaired, repaired_to, rebuilt, just_opened)


def moved(root: Path, kind: Kind) -> Iterator[tuple[Path, Path]]:
    """Directories and what they are called by mistake. One bit of the name differs, several do, or it is longer."""
    for name in (FEW, LIGHT):
        for tree in {kind.tree, CONSUME_QUEUE}:
            queue = root / tree / name
            if queue.is_dir():
                yield from ((queue, queue.with_name(name[:-1] + end)) for end in ("c", "z", "a_old"))
                yield queue / "0", queue / "1"


@pytest.mark.one_in(180)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("gone", [0, 3])
def test_messages_of_a_queue_whose_directory_was_renamed_or_copied_stay_in_it(
    kind: Kind, count: int, gone: int
) -> None:
    with scratch_folder() as folder:
        base = folder / "base"
        fill(base, kind, count, gone)
        expected = held(base, kind)
        assert expected[0][FEW, 0]
        for source, target in moved(base, kind):
            for is_copy in (False, True):
                for way in WAYS:
                    if target.parent.name == LIGHT and (way is just_opened or is_copy):
                        continue  # a light queue of another id
                    case = f"{source.relative_to(base)} {target.name} {is_copy} {way.__name__}"
                    shutil.copytree(base, root := folder / "store" / "in")
                    place = root / source.relative_to(base)
                    (shutil.copytree if is_copy else shutil.move)(place, root / target.relative_to(base))
                    found = way(root, kind)
                    if way is not just_opened:
                        again = plan_repair(found, settings=settings_of(kind))
                        assert (again.actions, again.lost) == ([], []), case
                    assert set(Topics(found, Disk()).configs) <= {FEW, target.name}, case
                    messages, ends = held(found, kind, is_whole=way is not just_opened)
                    if way is just_opened:
                        messages = {key: bodies for key, bodies in messages.items() if key in expected[0]}
                    # Its newest message may be another queue's by damage: then that end must not be forgotten.
                    ends = {key: end for key, end in ends.items() if key in expected[1]}
                    assert (messages, ends) == expected, case
                    shutil.rmtree(folder / "store")


@pytest.mark.parametrize("kind", [PLAIN, EXTENDED], ids=str)
def test_a_message_stays_where_it_is_when_its_units_file_was_moved_to_another_queue(kind: Kind) -> None:
    with scratch_folder() as folder:
        root = folder / "store"
        with kind.open(root) as store:
            for number in range(2 * QUEUE_FILE_UNITS + 1):
                store.put("topic", b"%02d" % number * 20, queue_id=1 - number % 2)
        messages, ends = held(root, kind)
        newest = kind.files(root, ("topic", 1))[-1]
        newest.rename(kind.directory(root, ("topic", 0)) / newest.name)
        ends["topic", 0] += 1  # its newest message may be another queue's by damage: its offset is not given again
        assert held(repaired(root, kind), kind) == (messages, ends)


def test_the_only_message_of_a_renamed_queue_stays_where_its_record_says_after_an_opening(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with stratalog.open(root, **SIZES, **QUIET) as store:
        for _ in range(200):
            store.put("topic", b"x" * 40, queue_id=0)
        place = store.put("topic", b"only", queue_id=2).commit_log_offset
    size = SIZES["mapped_file_size_commit_log"]
    for path in sorted((root / "commitlog").iterdir())[: place // size]:  # as retention leaves it
        path.unlink()
    (root / "consumequeue" / "topic" / "2").rename(root / "consumequeue" / "topic" / "7")
    stratalog.open(root, **SIZES, **QUIET).close()
    report = repair(plan_repair(root))
    assert any("topic/7" in note for note in report.notes)
    with stratalog.open(root, **SIZES, **QUIET) as store:
        assert [message.body for message in store.queue("topic", 2).read(0)] == [b"only"]
        assert store.put("topic", b"new", queue_id=2).queue_offset == 1


@pytest.mark.parametrize("tool", ["repair", "rebuild"])
def test_a_copy_of_the_delay_topics_queue_in_the_other_tree_makes_it_no_batch_topic(tool: str, tmp_path: Path) -> None:
    with PLAIN.open(tmp_path) as store:
        for number in range(6):
            properties = encode_properties({"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"})
            store.queue(SCHEDULE_TOPIC, 0).put_record(b"%d" % number, properties)
    queue = Path(SCHEDULE_TOPIC, "0")
    shutil.copytree(tmp_path / CONSUME_QUEUE / queue, tmp_path / BATCH_CONSUME_QUEUE / queue)
    if tool == "repair":
        assert repair(plan_repair(tmp_path, settings=settings_of(PLAIN))).ok
    else:
        rebuild(tmp_path, settings=settings_of(PLAIN))
    with PLAIN.open(tmp_path) as store:
        assert len(read_on(store.queue(SCHEDULE_TOPIC, 0))[0]) == 6
    assert verify(tmp_path, settings=settings_of(PLAIN)).ok
