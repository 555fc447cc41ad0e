"""A stray queue directory in a store, most often a copy of another one: the log tells what is whose."""

import itertools
import random
import shutil
from pathlib import Path

import pytest

import stratalog
from store.kinds import LIGHT_KIND, QUEUE_FILE_UNITS, SIZES, Key, Known, read_on
from store.model import QUIET
from store.test_recreated_topics import STATES
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.names import BATCH_CONSUME_QUEUE, COMMIT_LOG, CONFIG, CONSUME_QUEUE
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.store.config_files import TOPICS
from stratalog.store.disk import Disk
from stratalog.store.topics import Topics
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from stratalog.tools.verify_report import VerifyReport

Places = dict[Key, dict[int, Known]]
SETTINGS = StoreSettings.make({**SIZES, **LIGHT_KIND.settings})
OWN, LIGHT = ("topic", 0), ("%LMQ%a", 0)
STRAYS = list(itertools.product((CONSUME_QUEUE, BATCH_CONSUME_QUEUE), ("topic", "unknown", "%LMQ%a", "%LMQ%b"), (0, 9)))
CONTENTS = ["copy", "copy of the light queue", "empty", "zeros", "garbage"]
ROADS = ["open", "repair", "rebuild", "open, repair", "open, rebuild"]


def put(root: Path, kind: str, count: int) -> Places:
    with LIGHT_KIND.open(root) as store:
        if kind == "batch" and not store.topic_configs:
            store.create_topic("topic", queues=2, queue_type="BatchCQ")
        for number in range(count):
            if kind == "batch":
                store.queue(*OWN).put_batch([b"one", b"two"], unique_key=f"u{number}")
            else:
                properties = encode_properties({MULTI_DISPATCH: LIGHT[0]} if kind == "light" else {})
                store.queue(*OWN).put_raw(b"%d" % number, properties)
        return {key: read_on(store.queue(*key))[0] for key in ([OWN, LIGHT] if kind == "light" else [OWN])}


def add_stray(root: Path, tree: str, topic: str, queue_id: int, content: str, kind: str) -> None:
    stray = root / tree / topic / str(queue_id)
    if content.startswith("copy"):
        source = LIGHT if "light" in content else OWN
        shutil.copytree(root / (BATCH_CONSUME_QUEUE if kind == "batch" else CONSUME_QUEUE) / source[0] / "0", stray)
        return
    stray.mkdir(parents=True)
    size = QUEUE_FILE_UNITS * (UNIT if tree == CONSUME_QUEUE else BATCH_UNIT).size
    if content != "empty":
        (stray / f"{0:020d}").write_bytes(bytes(size) if content == "zeros" else random.Random(5).randbytes(size))


def checked(root: Path) -> VerifyReport:
    report = verify(root, settings=SETTINGS)
    repeats = [note for note in report.notes if "as the last clean stop counted them" in note]
    assert not repeats, repeats
    return report


def check_served(root: Path, places: Places, *, is_gone: bool) -> None:
    with LIGHT_KIND.open(root, mode="r") as store:
        for key, there in places.items():
            assert read_on(store.queue(*key))[:2] == (there, []), key
        strays = set(store.queues()) - places.keys()
        assert not (is_gone and strays)
        for key in strays:
            assert not read_on(store.queue(*key))[0]


def refused(root: Path) -> CorruptData | None:
    try:
        LIGHT_KIND.open(root).close()
    except CorruptData as error:
        return error
    return None


def go(step: str, root: Path, stray: Path, places: Places) -> None:
    before = verify(root, settings=SETTINGS)
    if step == "open":
        if refusal := refused(root):  # its files have the size of the other tree's
            assert not before.ok
            assert refusal.path.startswith(str(stray))
            assert "`stratalog repair" in str(refusal)
            return
        check_served(root, places, is_gone=False)
        after = checked(root)
        assert after.ok or not before.ok
    elif step == "rebuild":
        assert not rebuild(root, settings=SETTINGS).unqueued
    else:
        plan = plan_repair(root, settings=SETTINGS)
        assert not [*plan.lost, *plan.missing, *plan.lost_ranges]
        assert {action.kind for action in plan.actions} <= {"rebuild", "enter"}
        assert repair(plan).ok
        again = plan_repair(root, settings=SETTINGS)
        assert not again.actions


@pytest.mark.one_in(4500)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize(("tree", "topic", "queue_id"), STRAYS)
@pytest.mark.parametrize("has_entry", [False, True])
@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("kind", ["plain", "light", "batch"])
def test_messages_stay_in_their_queue_beside_a_stray_directory(
    kind: str, count: int, has_entry: bool, tree: str, topic: str, queue_id: int, content: str, state: str, road: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    if "light" in content and kind != "light":
        pytest.skip("no light queue to copy")
    root = tmp_path / "store"
    if has_entry and kind != "batch":
        with LIGHT_KIND.open(root) as store:
            store.create_topic("topic", queues=2)
    places = put(root, kind, count)
    if not has_entry:
        (root / CONFIG / TOPICS).unlink(missing_ok=True)
    if (root / tree / topic / str(queue_id)).exists():
        pytest.skip("a queue of the store")
    STATES[state](root)
    add_stray(root, tree, topic, queue_id, content, kind)
    for step in road.split(", "):
        go(step, root, root / tree / topic / str(queue_id), places)
    is_copy, is_opened = content.startswith("copy"), road.startswith("open")  # that leaves an empty directory
    entered = {name for name, one in Topics(root, Disk()).configs.items() if one.queue_type == "BatchCQ"}
    assert entered <= {"topic" if kind == "batch" else "", "" if is_copy and not is_opened else "unknown"}
    if road != "open":
        assert checked(root).ok
        is_doubtful = count == 1 and (is_opened or (kind == "light" and topic == "%LMQ%b"))  # the record may be wrong
        check_served(root, places, is_gone=is_copy and not is_doubtful)


@pytest.mark.one_in(135)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("content", [*CONTENTS, "copy of another topic's queue"])
@pytest.mark.parametrize("kind", ["plain", "batch"])
def test_expired_messages_offsets_are_not_given_again_beside_a_stray_directory(
    kind: str, content: str, state: str, road: str, tmp_path: Path
) -> None:
    """The topic has no entry in topics.json: the units alone tell its type."""
    if "light" in content:
        pytest.skip("no light queue to copy")
    put(tmp_path, kind, 6)
    with LIGHT_KIND.open(tmp_path) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        store.queue("batches").put_batch([b"one", b"two"], unique_key="u")
        while len(list((tmp_path / COMMIT_LOG).iterdir())) < 2:
            store.queue("other").put_raw(bytes(500), b"")
        end = store.queue(*OWN).max_offset
    (tmp_path / COMMIT_LOG / f"{0:020d}").unlink()
    with LIGHT_KIND.open(tmp_path, mode="r") as store:
        places = {key: read_on(store.queue(*key))[0] for key in store.queues()}
    assert not places[OWN]
    for path in (tmp_path / CONFIG).glob(f"{TOPICS}*"):
        path.unlink()
    STATES[state](tmp_path)
    right, tree = (BATCH_CONSUME_QUEUE, CONSUME_QUEUE) if kind == "batch" else (CONSUME_QUEUE, BATCH_CONSUME_QUEUE)
    if "another" in content:
        stray = tmp_path / tree / OWN[0] / str(OWN[1])
        shutil.copytree(tmp_path / tree / ("other" if kind == "batch" else "batches") / "0", stray)
    else:
        add_stray(tmp_path, tree, *OWN, content, kind)
    for step in road.split(", "):
        go(step, tmp_path, tmp_path / tree, places)
    with LIGHT_KIND.open(tmp_path) as store:
        assert store.queue(*OWN).max_offset >= end
        assert store.queue(*OWN).put(b"new").queue_offset >= end
    assert len(list((tmp_path / right / OWN[0]).iterdir())) == 1


@pytest.mark.parametrize("state", ["closed", "killed"])
def test_a_copy_below_the_batch_tree_makes_a_plain_topic_no_batch_topic(state: str, tmp_path: Path) -> None:
    places = put(tmp_path, "light", 6)
    STATES[state](tmp_path)
    add_stray(tmp_path, BATCH_CONSUME_QUEUE, *OWN, "copy", "light")
    assert "topic topic is of type SimpleCQ" in str(
        next(one for one in verify(tmp_path, settings=SETTINGS).problems if one.part == "queue")
    )
    check_served(tmp_path, places, is_gone=False)
    LIGHT_KIND.open(tmp_path).close()
    plan = plan_repair(tmp_path, settings=SETTINGS)
    assert [action.kind for action in plan.actions] == ["rebuild"]
    assert repair(plan).ok
    check_served(tmp_path, places, is_gone=True)
    assert "topic" not in Topics(tmp_path, Disk()).configs


def test_a_copy_of_a_batch_topics_queue_makes_another_topic_no_batch_topic(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, small=True, **QUIET) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        store.queue("batches").put_batch([b"one", b"two"], unique_key="u")
        store.put("plain", b"three")
    tree = tmp_path / BATCH_CONSUME_QUEUE
    shutil.copytree(tree / "batches", tree / "plain")
    topics = Topics(tmp_path, Disk())
    assert topics.batch_topics == {"batches"}
    rebuild(tmp_path)
    assert verify(tmp_path).ok
    assert not (tree / "plain").exists()
    with stratalog.open(tmp_path, mode="r") as store:
        assert [message.body for message in store.queue("plain").read()] == [b"three"]


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("name", ["%LMQ%a", "%LMQ%b"])
def test_a_killed_stores_copy_of_a_light_queue_under_another_id_is_reported_and_not_served(
    name: str, count: int, tmp_path: Path
) -> None:
    places = put(tmp_path, "light", count)
    STATES["killed"](tmp_path)
    add_stray(tmp_path, CONSUME_QUEUE, name, 9, "copy of the light queue", "light")
    assert any(f"{name}/9" in problem.path for problem in verify(tmp_path, settings=SETTINGS).problems)
    with LIGHT_KIND.open(tmp_path) as store:
        assert store.queues() == sorted(places)
    assert checked(tmp_path).ok
    check_served(tmp_path, places, is_gone=True)


def test_a_queue_of_a_light_name_that_has_its_own_records_is_no_stray(tmp_path: Path) -> None:
    """A store without light queues puts to it as to any other topic."""
    with LIGHT_KIND.open(tmp_path, enable_lmq=False, enable_multi_dispatch=False) as store:
        for _ in range(3):
            store.queue(LIGHT[0], 9).put_raw(b"own", b"")
    for settings in (SETTINGS, StoreSettings.make(SIZES)):
        assert verify(tmp_path, settings=settings).ok
    STATES["killed"](tmp_path)
    LIGHT_KIND.open(tmp_path).close()
    assert checked(tmp_path).ok
    rebuild(tmp_path, settings=SETTINGS)
    with LIGHT_KIND.open(tmp_path, mode="r") as store:
        assert store.queue(LIGHT[0], 9).max_offset == 3
