"""Which type a topic has does not depend on who asks, nor on whether `topics.json` is left."""

import contextlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.damage import change
from store.kinds import BATCH, KINDS, Content, Kind, read_on
from store.model import QUIET, scratch_folder
from stratalog.errors import ConfigurationError, CorruptData
from stratalog.layout.message import decode_record
from stratalog.layout.names import ABORT, BATCH_CONSUME_QUEUE, CONFIG, CONSUME_QUEUE, CONSUME_QUEUE_EXT, SNAPSHOT
from stratalog.store.config_files import COPY, TOPICS
from stratalog.store.disk import Disk
from stratalog.store.topics import Topics
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_actions import described
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

WITHOUT_THE_TOPIC = b'{"topicConfigTable":{"other":{"topicName":"other","readQueueNums":1,"writeQueueNums":1}}}'
LACKING = ("gone", "older", "older copy only")
"""States, see below, in which `topics.json` cannot be read, or has no entry for the topic."""
NEVER_FLUSHED: dict[str, Any] = {
    **QUIET,
    "flush_interval_commit_log": 3_600_000,
    "flush_interval_consume_queue": 3_600_000,
}
Bytes = bytes | None


def _states(whole: bytes) -> dict[str, tuple[Bytes, Bytes]]:
    """Content of `topics.json` and of its copy."""
    return {
        "intact": (whole, None),
        "gone": (None, None),
        "empty": (b"", None),
        "garbage": (b'{"topicConfigTable":', b"\xff\xfe"),
        "older": (WITHOUT_THE_TOPIC, WITHOUT_THE_TOPIC),
        "copy only": (None, whole),
        "older copy only": (b"", WITHOUT_THE_TOPIC),
    }


STATES = tuple(_states(b""))


def _nothing(root: Path, kind: Kind) -> Path:
    return root


def _open(root: Path, kind: Kind) -> Path:
    kind.open(root).close()
    return root


def _rebuild(root: Path, kind: Kind) -> Path:
    with contextlib.suppress(CorruptData):  # over a damaged record, which a repair covers; nothing was changed
        rebuild(root)
    return root


def _repair(root: Path, kind: Kind) -> Path:
    repair(plan_repair(root))
    return root


def _repair_to(root: Path, kind: Kind) -> Path:
    target = root.with_name("copy")
    repair(plan_repair(root), to=target)
    return target


WAYS: tuple[Callable[[Path, Kind], Path], ...] = (_nothing, _open, _rebuild, _repair, _repair_to)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Kind, Path, Content, bytes]]:
    kind = request.param
    with scratch_folder() as folder:
        root = folder / "store"
        content = kind.made(root)
        with kind.open(root) as store:
            if kind.queues[0][0] == "topic":
                store.create_topic("topic", queues=2)
            store.create_topic("another")
        yield kind, root, content, (root / CONFIG / TOPICS).read_bytes()


@pytest.mark.one_in(72)
@pytest.mark.parametrize("state", STATES)
def test_every_message_is_served_whatever_is_left_of_the_topics(
    state: str, made: tuple[Kind, Path, Content, bytes], tmp_path: Path
) -> None:
    kind, source, content, topics = made
    for way, is_damaged in itertools.product(WAYS, (False, True)):
        root = tmp_path / "store"
        shutil.rmtree(tmp_path)
        shutil.copytree(source, root)
        for name, data in zip((TOPICS, TOPICS + COPY), _states(topics)[state], strict=True):
            (root / CONFIG / name).unlink(missing_ok=True)
            if data is not None:
                (root / CONFIG / name).write_bytes(data)
        expected = {key: dict(queue) for key, queue in content.queues.items()}
        if is_damaged:
            _damage_body(root, kind, expected)
            (root / ABORT).touch()
            (root / SNAPSHOT).unlink(missing_ok=True)
        what = f"{way.__name__} {'damaged, crashed' if is_damaged else 'sound, closed'}"
        root = way(root, kind)
        report = verify(root)
        problems = [problem for problem in report.problems if problem.part != "config"]
        is_mended = not is_damaged or way in (_repair, _repair_to)
        assert not problems or not is_mended, (what, problems[:2])
        lacking = [problem for problem in report.problems if "to be of type BatchCQ: its queues" in problem.expected]
        if kind is BATCH and way in (_repair, _repair_to):
            assert report.ok, what
            assert not plan_repair(root).actions, what
            assert Topics(root, Disk()).configs["batches"].queue_type == "BatchCQ", what
            assert not state.startswith("older") or "other" in Topics(root, Disk()).configs, what
        elif way is not _rebuild:
            assert len(lacking) == (kind is BATCH and state in LACKING), what
            assert all(problem.path == str(root / CONFIG / TOPICS) for problem in lacking)
        with kind.open(root, mode="r") as store:
            for key, known in expected.items():
                found = {at: message for at, message in read_on(store.queue(*key))[0].items() if at in known}
                assert found == known, (what, key)
        with kind.open(root) as store:
            assert store.queue_set.is_batch(kind.queues[0][0]) == (kind.tree == BATCH_CONSUME_QUEUE), what


def _damage_body(root: Path, kind: Kind, expected: dict[Any, dict[int, Any]]) -> None:
    """Change a byte of a record's body, and expect its messages no more."""
    known = expected[kind.queues[0]]
    offset = known[len(known) // 2].commit_log_offset
    (log,) = (root / "commitlog").iterdir()
    change(log, offset + 89, bytes([log.read_bytes()[offset + 89] ^ 0xFF]))
    for queue in expected.values():
        for at in [at for at, message in queue.items() if message.commit_log_offset == offset]:
            del queue[at]


def _batches(root: Path) -> None:
    with stratalog.open(root, small=True, **QUIET) as store:
        store.create_topic("batches", queues=2, queue_type="BatchCQ")
        for number in range(20):
            store.queue("batches", number % 2).put_batch([b"one", b"two"], unique_key=f"u{number}")


@pytest.mark.parametrize("state", ["intact", "gone", "garbage", "older", "copy only", "older copy only"])
@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_a_batch_queue_is_made_only_after_topics_json_tells_its_type(state: str, ends: str, tmp_path: Path) -> None:
    """A file that cannot be read is not written."""
    root = tmp_path / "store"
    BATCH.made(root)
    file = root / CONFIG / TOPICS
    copy = file.with_name(TOPICS + COPY)
    for path, content in zip((file, copy), _states(file.read_bytes())[state], strict=True):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
    before = {path: path.read_bytes() for path in (file, copy) if path.exists()}
    store = BATCH.open(root)
    queue = store.queue("batches", 5 if state != "garbage" else 1)
    assert {path: path.read_bytes() for path in (file, copy) if path.exists()} == before, "reading writes nothing"
    queue.put_batch([b"one", b"two"], unique_key="u")
    if ends == "killed":
        shutil.copytree(root, tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
        root = tmp_path / "copy"
    store.close()
    entry = Topics(root, Disk()).configs.get("batches")
    if state == "garbage":
        assert entry is None
        assert file.read_bytes() == before[file]
    else:
        assert entry is not None
        assert entry.attributes == {"queue.type": "BatchCQ"}
        if state in LACKING:
            assert entry.read_queue_count == entry.write_queue_count == 6
            assert ("other" in Topics(root, Disk()).configs) == (state != "gone")
    with BATCH.open(root) as again:
        assert [m.body for m in again.queue("batches", queue.queue_id).read()][-2:] == [b"one", b"two"]


def test_the_step_of_a_cut_topics_json_leads_to_one_with_the_batch_topics(tmp_path: Path) -> None:
    _batches(tmp_path)
    file = tmp_path / CONFIG / TOPICS
    whole = file.read_bytes()
    file.write_bytes(whole[:60])
    (problem,) = verify(tmp_path).problems
    assert "let `stratalog repair" in problem.next_step
    with stratalog.open(tmp_path, mode="r") as store:
        assert "let `stratalog repair" in str(store.topic_table.note)
    plan = plan_repair(tmp_path)
    assert not plan.unmended
    aside, enter = plan.actions
    assert aside.kind == "aside"
    assert described(enter) == "add topics of type BatchCQ that have queues to config/topics.json: batches"
    file.unlink()
    (alone,) = plan_repair(tmp_path).actions
    assert described(alone) == (
        f"{described(enter)}. The file is missing; lost with it: queue counts, permissions and attributes of topics"
    )
    file.write_bytes(whole[:60])
    assert repair(plan).ok
    assert json.loads(file.read_bytes())["topicConfigTable"] == json.loads(whole)["topicConfigTable"]
    assert not file.with_name(TOPICS + COPY).exists()


def test_a_topic_that_was_deleted_is_not_entered_for_its_empty_directory(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, small=True) as store:
        store.put("orders", b"one")
    (tmp_path / BATCH_CONSUME_QUEUE / "deleted").mkdir(parents=True)
    assert verify(tmp_path).ok
    rebuild(tmp_path)
    assert not (tmp_path / CONFIG / TOPICS).exists()


def test_topics_of_any_name_and_queue_id_are_entered(tmp_path: Path) -> None:
    """RocketMQ's store takes any text."""
    for number, topic in enumerate(("some.topic", "other topic")):
        (tmp_path / BATCH_CONSUME_QUEUE / topic / str((1 << 31) - 1 - number)).mkdir(parents=True)
    (tmp_path / "commitlog").mkdir()
    assert repair(plan_repair(tmp_path)).ok
    configs = Topics(tmp_path, Disk()).configs
    assert {name: config.read_queue_count for name, config in configs.items()} == dict.fromkeys(
        ("some.topic", "other topic"), (1 << 31) - 1
    )  # fmt: skip


@pytest.mark.parametrize("name", [TOPICS, TOPICS + COPY])
def test_nothing_is_entered_over_a_directory(name: str, tmp_path: Path) -> None:
    _batches(tmp_path)
    (tmp_path / CONFIG / TOPICS).rename(tmp_path / "whole")
    for other, content in ((TOPICS, WITHOUT_THE_TOPIC), (TOPICS + COPY, WITHOUT_THE_TOPIC)):
        if other != name:
            (tmp_path / CONFIG / other).write_bytes(content)
    (tmp_path / CONFIG / name).mkdir()
    plan = plan_repair(tmp_path)
    assert not [action for action in plan.actions if action.kind == "enter"]
    assert plan.unmended
    rebuild(tmp_path)
    (tmp_path / CONFIG / name).rmdir()
    assert repair(plan_repair(tmp_path)).ok
    assert "batches" in Topics(tmp_path, Disk()).configs


def test_queues_in_the_trees_of_both_types_are_reported_and_a_rebuild_keeps_the_right_ones(tmp_path: Path) -> None:
    _batches(tmp_path)
    (tmp_path / CONFIG / TOPICS).unlink()
    shutil.copytree(tmp_path / BATCH_CONSUME_QUEUE / "batches", tmp_path / CONSUME_QUEUE / "batches")
    report = verify(tmp_path)
    told = [
        problem for problem in report.problems if "is of type BatchCQ" in problem.expected and problem.part == "queue"
    ]
    assert [Path(problem.path).name for problem in told] == ["0", "1"]
    assert all("stratalog repair" in problem.next_step for problem in told)
    assert report.problem_count == 5  # the size of both files, and the entry in topics.json
    rebuild(tmp_path)
    assert verify(tmp_path).ok
    assert not (tmp_path / CONSUME_QUEUE / "batches").exists()
    with stratalog.open(tmp_path, mode="r") as store:
        assert len(list(store.queue("batches").read())) == 20


def test_batch_queues_of_an_ordinary_topic_are_reported_and_left_out(tmp_path: Path) -> None:
    _batches(tmp_path / "other")
    with stratalog.open(tmp_path / "s", small=True) as store:
        store.create_topic("batches", queues=2)
        store.put("batches", b"one")
    shutil.copytree(tmp_path / "other" / BATCH_CONSUME_QUEUE, tmp_path / "s" / BATCH_CONSUME_QUEUE)
    assert "is of type SimpleCQ" in str(verify(tmp_path / "s").problems[0])
    rebuild(tmp_path / "s")
    assert verify(tmp_path / "s").ok


def test_an_empty_directory_of_a_topic_does_not_outweigh_queues(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, small=True) as store:
        store.put("topic", b"one")
    (tmp_path / BATCH_CONSUME_QUEUE / "topic").mkdir(parents=True)
    (tmp_path / ABORT).touch()
    with stratalog.open(tmp_path) as store:
        with pytest.raises(ConfigurationError, match="another type than BatchCQ"):
            store.create_topic("topic", queue_type="BatchCQ")
        assert [message.body for message in store.queue("topic").read()] == [b"one"]
    rebuild(tmp_path)
    assert verify(tmp_path).ok


def test_the_old_queue_of_expired_batches_stays_where_topics_json_is_gone(tmp_path: Path) -> None:
    """It alone knows the next offset."""
    sizes = {"mapped_file_size_commit_log": 4096, "mapper_file_size_batch_consume_queue": 46 * 10}
    with stratalog.open(tmp_path, **sizes, **QUIET) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        for number in range(10):
            store.queue("batches").put_batch([b"one", b"two"], unique_key=f"u{number}")
        for _ in range(10):
            store.put("orders", bytes(1000))
    shutil.rmtree(tmp_path / CONFIG)
    min(path for path in (tmp_path / "commitlog").iterdir()).unlink()
    rebuild(tmp_path)
    with stratalog.open(tmp_path) as store:
        assert store.queue("batches").put_batch([b"next"], unique_key="n").queue_offset == 20


@pytest.mark.one_in(27)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("topics", ["intact", "gone"])
@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("way", [_rebuild, _repair, _repair_to])
def test_queues_that_are_all_gone_come_back_with_default_settings(
    kind: Kind, topics: str, is_opened: bool, way: Callable[[Path, Kind], Path], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = kind.made(root)
    for tree in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT):
        shutil.rmtree(root / tree, ignore_errors=True)
    if topics == "gone":
        shutil.rmtree(root / CONFIG, ignore_errors=True)
    if is_opened:
        stratalog.open(root).close()
    assert is_opened or not verify(root).ok
    root = way(root, kind)
    assert verify(root).ok
    assert not plan_repair(root).actions
    assert kind is not BATCH or Topics(root, Disk()).configs["batches"].queue_type == "BatchCQ"
    with kind.open(root, mode="r") as store:
        for key, known in content.queues.items():
            assert read_on(store.queue(*key))[:2] == (known, [])


def test_a_type_that_the_records_contradict_is_named_and_nothing_is_built_by_it(tmp_path: Path) -> None:
    _batches(tmp_path)
    file = tmp_path / CONFIG / TOPICS
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"BatchCQ", b"SimpleCQ"))
    units = {path: path.read_bytes() for path in (tmp_path / BATCH_CONSUME_QUEUE).rglob("0*") if path.is_file()}
    problem = verify(tmp_path).problems[0]
    assert (problem.path, problem.found) == (str(file), "SimpleCQ")
    assert '"queue.type": "BatchCQ"' in problem.next_step
    for act in (rebuild, plan_repair):
        with pytest.raises(CorruptData, match="holds batches") as caught:
            act(tmp_path)
        assert '"queue.type": "BatchCQ"' in str(caught.value)
    assert units == {path: path.read_bytes() for path in units}
    file.write_bytes(whole)
    rebuild(tmp_path)
    assert verify(tmp_path).ok
    with stratalog.open(tmp_path, mode="r") as store:
        assert len(list(store.queue("batches").read())) == 20


@pytest.mark.parametrize("has_copy", [False, True])
def test_no_changed_bit_of_topics_json_makes_a_batch_topic_an_ordinary_one(has_copy: bool, tmp_path: Path) -> None:
    BATCH.made(tmp_path, count=4)
    path = tmp_path / CONFIG / TOPICS
    whole = path.read_bytes()
    if has_copy:
        path.with_name(path.name + COPY).write_bytes(whole)
    for position, bit in itertools.product(range(len(whole)), range(8)):
        changed = bytearray(whole)
        changed[position] ^= 1 << bit
        path.write_bytes(changed)
        assert Topics(tmp_path, Disk()).is_batch("batches"), changed[max(0, position - 20) : position + 20]


@pytest.mark.parametrize("has_copy", [False, True])
@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("position", range(len("BatchCQ")))
def test_a_queue_type_that_is_none_lets_no_batch_be_served_as_a_message(
    position: int, state: str, has_copy: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = BATCH.made(root)
    path = root / CONFIG / TOPICS
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[whole.index(b"BatchCQ") + position] ^= 1
    path.write_bytes(changed)
    (root / CONFIG / (TOPICS + COPY)).unlink(missing_ok=True)
    if has_copy:
        (root / CONFIG / (TOPICS + COPY)).write_bytes(whole)
    if state == "killed":
        (root / ABORT).touch()
        (root / SNAPSHOT).unlink()
    assert not verify(root).ok
    for _ in range(2):
        with BATCH.open(root) as store:
            for key in BATCH.queues:
                assert read_on(store.queue(*key)) == (content.queues[key], [], set())
                assert store.queue(*key).max_offset == len(content.queues[key])
            assert any("queue type" in note for note in store.recovery.notes)


def batch_before_dispatch(root: Path, *, more: int = 0) -> list[bytes]:
    """A store that was killed before the first message of its only batch topic was dispatched, and lost `config/`."""
    live = root.with_name("live")
    bodies = [b"one", b"two", b"three"]
    with stratalog.open(live, small=True, **NEVER_FLUSHED) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        store.queue("batches").put_batch(bodies, unique_key="u")
        for number in range(more):
            store.queue("batches").put(b"%d" % number)
            bodies.append(b"%d" % number)
        shutil.copytree(live, root)
    shutil.rmtree(root / CONFIG)
    shutil.rmtree(root / CONSUME_QUEUE, ignore_errors=True)
    shutil.rmtree(root / BATCH_CONSUME_QUEUE, ignore_errors=True)
    return bodies


@pytest.mark.parametrize("road", ["read", "opened", "opened, repaired", "repaired", "rebuilt", "opened, rebuilt"])
@pytest.mark.parametrize("more", [0, 2])
def test_a_batch_in_the_log_makes_a_topic_without_entry_and_queues_a_batch_topic(
    more: int, road: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    bodies = batch_before_dispatch(root, more=more)
    log = {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()}
    for step in road.split(", "):
        if step in ("read", "opened"):
            with stratalog.open(root, mode="r" if step == "read" else "w") as store:
                (note,) = store.recovery.notes
                assert "topic batches: no entry in config/topics.json; it is taken to be of type BatchCQ" in note
                assert [message.body for message in store.queue("batches").read()] == bodies
        elif step == "rebuilt":
            rebuild(root)
        else:
            plan = plan_repair(root)
            assert {action.kind for action in plan.actions} <= {"rebuild", "enter"}
            assert described(plan.actions[-1]).count("config/ is missing; lost with it, if a broker wrote them: ") == 1
            assert repair(plan).ok
    assert {path.name: path.read_bytes() for path in (root / "commitlog").iterdir()} == log
    with stratalog.open(root) as store:
        assert store.put("batches", b"new").queue_offset == len(bodies)
        assert [message.body for message in store.queue("batches").read()] == [*bodies, b"new"]
    plan = plan_repair(root)
    assert {action.kind for action in plan.actions} <= {"enter"}
    assert repair(plan).ok
    assert verify(root).ok


@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_message_among_the_offsets_of_a_batch_is_moved_by_nobody_until_the_type_is_known(
    count: int, state: str, tmp_path: Path
) -> None:
    """A broker that does not know the topic serves the batch as one message, and puts on after it."""
    root, tail = tmp_path / "store", tmp_path / "tail"
    batch_before_dispatch(root)
    path = root / "commitlog" / f"{0:020d}"
    with stratalog.open(tail, small=True) as store:
        store.put("batches", b"in the place of the batch")
        receipts = [store.put("batches", b"%d" % number) for number in range(count)]
    data, other = bytearray(path.read_bytes()), (tail / "commitlog" / path.name).read_bytes()
    end = decode_record(bytes(data), 0).total_size
    for number in range(count):
        one = decode_record(other, receipts[number].commit_log_offset)
        moved = replace(one, commit_log_offset=end).encode()
        data[end : end + len(moved)] = moved
        end += len(moved)
    path.write_bytes(data)
    if state == "closed":
        (root / ABORT).unlink()
    with pytest.raises(CorruptData, match=r"'batches' has no entry.*The message at log offset"):
        plan_repair(root)
    with pytest.raises(CorruptData):
        rebuild(root)
    assert path.read_bytes() == data
    (root / CONFIG).mkdir(exist_ok=True)
    entry = {"topicName": "batches", "attributes": {"queue.type": "BatchCQ"}, "readQueueNums": 1, "writeQueueNums": 1}
    (root / CONFIG / TOPICS).write_text(json.dumps({"topicConfigTable": {"batches": entry}}))
    plan = plan_repair(root)
    assert repair(plan).ok
    assert plan.mended_count + len(plan.lost) == 1
