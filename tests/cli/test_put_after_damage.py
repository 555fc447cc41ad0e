"""Puts after a damaged record are kept, but perhaps not by RocketMQ: opening, the log and the command say so."""

import json
import logging
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import stratalog
from cli.calls import SETTINGS, Call
from cli.test_damaged_queues import flip_body
from store.kinds import BATCH, EXTENDED, KINDS, PLAIN, Content, Kind
from stratalog.errors import CorruptData
from stratalog.layout.message import HEAD
from stratalog.layout.names import ABORT
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify


@pytest.fixture
def damaged_store(small_store: Path) -> Path:
    """As after a crash, with a damaged record in the middle."""
    flip_body(small_store, b"body 0-4")
    (small_store / "checkpoint").unlink()
    (small_store / "abort").touch()
    return small_store


def put_one(root: Path) -> str:
    """Open, put in every way, close; returns the warning."""
    with stratalog.open(root, **SETTINGS) as store:
        store.put("orders", b"after")
        store.flush()
        store.queue("orders").put_many([b"after"] * 3)
        store.flush()
        return store.recovery.warning


def test_opening_and_the_first_put_are_logged_once_each(damaged_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):  # after the clean stop nothing of the log is read, and the damage is known still
        caplog.clear()
        warning = put_one(damaged_store)
        assert "`stratalog repair " in warning
        assert "RocketMQ may end the log" in warning
        texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert texts == [warning, f"messages were put after damage. {warning}"]


def test_each_opening_logs_the_damage_once(damaged_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stratalog.open(damaged_store, mode="r", **SETTINGS) as store:
        assert store.recovery.quarantined
        assert not store.recovery.warning
    (record,) = caplog.records
    assert "damaged ranges in the log: 1" in record.getMessage()
    assert f"`stratalog verify {damaged_store}`" in record.getMessage()
    stratalog.open(damaged_store, **SETTINGS).close()
    assert len(caplog.records) == 2


def test_after_a_repair_nothing_is_said(damaged_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert put_one(damaged_store)
    assert repair(plan_repair(damaged_store)).ok
    caplog.clear()
    for _ in range(2):
        assert not put_one(damaged_store)
    assert not caplog.records


@pytest.mark.parametrize("given", [["a body"], []], ids=["one", "lines"])
def test_the_command_says_it_on_stderr_and_with_its_exit_code(
    given: list[str], damaged_store: Path, call: Call
) -> None:
    result = call("put", damaged_store, "orders", *given, "--json", stdin="one\ntwo\n")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["count"] == (1 if given else 2)
    note, line = result.stderr.splitlines()
    assert "may be given again" in note
    assert f"`stratalog repair {damaged_store}`" in line


def test_a_shell_sees_the_warning_once(damaged_store: Path) -> None:
    line = [sys.executable, "-m", "stratalog.cli.main", "put", damaged_store, "orders", "a body"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 2
    assert done.stderr.count("stratalog repair") == 1


def test_the_command_is_silent_without_damage(small_store: Path, call: Call) -> None:
    result = call("put", small_store, "orders", "a body", "--json")
    assert (result.exit_code, result.stderr) == (0, "")


def flip_queue_offset(root: Path, commit_log_offset: int, bit: int) -> None:
    size = 16 * 1024
    path = root / "commitlog" / f"{commit_log_offset // size * size:020d}"
    data = bytearray(path.read_bytes())
    data[commit_log_offset % size + HEAD.position("queue_offset") + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("kind", [PLAIN, EXTENDED], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("which", [0, 1, 4, -3])
def test_a_message_that_was_left_out_of_its_queue_is_named_once_and_not_as_lost(
    which: int, count: int, kind: Kind, tmp_path: Path, call: Call
) -> None:
    topic, queue_id = kind.queues[1]
    known = kind.made(tmp_path, count=12).queues[topic, queue_id]
    hidden = [one.commit_log_offset for one in known.values()][which:][:count]
    for place in hidden:
        flip_queue_offset(tmp_path, place, 46)
    shutil.rmtree(tmp_path / kind.tree)
    (tmp_path / ABORT).touch()
    for start in (0, 1, list(known)[which]):
        result = call("get", tmp_path, topic, "-q", queue_id, "-o", start, "-n", 100)
        named = re.findall(r"message at log offset ([\d,]+) was left out", result.stderr)
        texts = [f"{place:,}" for place in hidden]
        before = [place for place in hidden if start and place <= known[start - 1].commit_log_offset]
        assert named in (texts, texts[len(before) :])
        assert result.exit_code == bool(named)
        assert "lost" not in result.stderr


@pytest.mark.one_in(108)
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH], ids=str)
@pytest.mark.parametrize("bit", [0, 1, 2, 4, 22, 40, 46, 62, 63])
@pytest.mark.parametrize("state", ["closed", "crashed", "no queues"])
@pytest.mark.parametrize("which", [-1, 3])
def test_a_message_whose_queue_offset_cannot_be_is_damage(
    kind: Kind, bit: int, state: str, which: int, tmp_path: Path, call: Call
) -> None:
    """`get` names it, opening warns when it left it out, before and after a put, and `repair` leaves a whole store."""
    root = tmp_path / "store"
    known = kind.made(root, count=12).queues[kind.queues[1]]
    place = list(dict.fromkeys(one.commit_log_offset for one in known.values()))[which]
    flip_queue_offset(root, place, bit)
    if state == "crashed":
        (root / ABORT).touch()
    if state == "no queues":
        shutil.rmtree(root / kind.tree)
    topic, queue_id = kind.queues[1]
    for _ in range(3):
        result = call("get", root, topic, "-q", queue_id, "-n", 100, "--json")
        shown = [json.loads(line) for line in result.stdout.splitlines()]
        assert result.exit_code == 1, result.stderr
        with kind.open(root) as store:
            assert bool(store.recovery.warning) == bool(store.recovery.left_out or store.recovery.quarantined)
            receipt = store.queue(topic, queue_id).put(b"new")
            assert receipt.queue_offset not in [one["queueOffset"] for one in shown]
    plan = plan_repair(root)
    assert not plan.actions or repair(plan).ok
    assert verify(root).ok
    assert not plan_repair(root).actions
    with kind.open(root) as store:
        assert not store.recovery.warning


def offsets_of(queue: stratalog.Queue) -> set[int]:
    """Where the messages that it serves stand in the log."""
    offsets = set()
    with suppress(CorruptData):
        offsets.update(message.commit_log_offset for message in queue.read())
    return offsets


def change_record(root: Path, commit_log_offset: int, what: str) -> bool:
    """Flip one bit of what says where the record belongs; whether it has such a field."""
    file_size = 16 * 1024
    path = root / "commitlog" / f"{commit_log_offset // file_size * file_size:020d}"
    data, at = bytearray(path.read_bytes()), commit_log_offset % file_size
    record = bytes(data[at : at + HEAD.unpack(data, at).total_size])
    field, _, place = what.partition(" ")
    begin = record.rfind(field.encode())
    if field in {one.name for one in HEAD.fields}:
        begin = HEAD.position(field)
    if begin < 0:
        return False
    data[at + begin + int(place or 0)] ^= 1
    path.write_bytes(data)
    return True


@pytest.mark.one_in(54)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("count", [2, 12])
@pytest.mark.parametrize(
    "what",
    [
        "queue_id 3", "queue_id 0", "topic", "batches 3", "queue_offset 7", "queue_offset 6", "INNER_MULTI_DISPATCH",
        "INNER_MULTI_DISPATCH 25", "INNER_MULTI_QUEUE_OFFSET", "INNER_MULTI_QUEUE_OFFSET 25",
    ],
)  # fmt: skip
def test_a_newest_message_that_names_another_place_is_told(kind: Kind, count: int, what: str, tmp_path: Path) -> None:
    """One bit that no CRC covers, after a clean stop: its offset is not given again, and opening says so."""
    root = tmp_path / "store"
    content = kind.made(root, count=count)
    (topic, queue_id), known = list(content.queues.items())[-1]
    if not change_record(root, known[len(known) - 1].commit_log_offset, what):
        pytest.skip("no such field")
    newest = len(known) - 1
    with kind.open(root) as store:
        queue = store.queue(topic, queue_id)
        if known[newest].commit_log_offset not in offsets_of(queue):
            assert store.recovery.warning or store.recovery.notes
        begin = queue.max_offset
        assert begin > newest
        kind.put(store, 5, Content())
        assert queue.max_offset > begin
