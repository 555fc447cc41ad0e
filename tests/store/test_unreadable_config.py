"""A JSON file of the configuration that cannot be read, nor its copy: repair sets them aside and says what is lost."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from store.kinds import BATCH, LIGHT_KIND, PLAIN, Content, Kind, read_on
from store.model import scratch_folder
from stratalog.cli.main import app
from stratalog.layout.names import CONFIG, QUARANTINE
from stratalog.store.config_files import (
    CONSUMER_OFFSETS,
    COPY,
    DELAY_OFFSETS,
    LMQ_CONSUMER_OFFSETS,
    SUBSCRIPTION_GROUPS,
    TOPICS,
    read_config,
)
from stratalog.store.disk import Disk
from stratalog.store.topics import Topics
from stratalog.tools.repair import repair
from stratalog.tools.repair_actions import described
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

WHOLE = {
    CONSUMER_OFFSETS: b'{\n\t"offsetTable":{\n\t\t"topic@group":{\n\t\t\t0:7,\n\t\t\t1:5\n\t\t}\n\t}\n}',
    LMQ_CONSUMER_OFFSETS: b'{\n\t"lmqOffsetTable":{\n\t\t"%LMQ%a@group":3\n\t},\n\t"offsetTable":{}\n}',
    DELAY_OFFSETS: b'{\n\t"offsetTable":{\n\t\t3:12\n\t}\n}',
    SUBSCRIPTION_GROUPS: b'{\n\t"subscriptionGroupTable":{}\n}',
    "consumerFilter.json": b'{\n\t"filterDataByTopic":{}\n}',
}
"""`topics.json` is that of the store."""
NAMES = (TOPICS, *WHOLE)

Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "first bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "last bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "no UTF-8": lambda data: data[:3] + b"\xff" + data[4:],
    "NUL appended": lambda data: data + b"\0",
    "last byte cut": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "empty": lambda _: b"",
    "blank": lambda _: b" \n",
    "an array": lambda _: b"[1]",
    "another file": lambda data: b'{"topicConfigTable":{}}' if b'"offsetTable"' in data else b'{"offsetTable":{}}',
    "gone": lambda data: data,
}
"""What happens to a file. `gone`: it is removed."""
COPIES: dict[str, Damage | None] = {
    "no copy": None,
    "whole copy": bytes,
    "copy damaged alike": lambda data: data,
    "copy cut": DAMAGES["half"],
    "copy of zeros": DAMAGES["zeros"],
}
KINDS = (PLAIN, BATCH, LIGHT_KIND)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Kind, Path, Content]]:
    kind = request.param
    with scratch_folder() as folder:
        content = kind.made(folder / "store")
        with kind.open(folder / "store") as store:
            store.create_topic("another", queues=3)
        for name, data in WHOLE.items():
            (folder / "store" / CONFIG / name).write_bytes(data)
        (folder / "store" / CONFIG / (TOPICS + COPY)).unlink(missing_ok=True)
        yield kind, folder / "store", content


def damage(root: Path, name: str, change: str, copy: str) -> list[bytes]:
    """Damage a file, and its copy; returns the bytes that must be kept."""
    path = root / CONFIG / name
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[change](whole))
    change_copy = COPIES[copy]
    if change_copy:
        source = path.read_bytes() if copy == "copy damaged alike" else whole
        path.with_name(name + COPY).write_bytes(change_copy(source))
    if change == "gone":
        path.unlink()
    found = [at.read_bytes() for at in (path, path.with_name(name + COPY)) if at.exists()]
    return [data for data in found if data != whole]


def judge(root: Path, kind: Kind, content: Content, kept: list[bytes]) -> None:
    """A repaired store: nothing is left to do, every message is served, the damaged bytes are kept."""
    assert verify(root).ok
    again = plan_repair(root)
    assert (again.actions, again.unmended) == ([], [])
    there = [path.read_bytes() for path in (root / QUARANTINE).iterdir()] if (root / QUARANTINE).exists() else []
    assert sorted(there) == sorted(kept)
    for name in NAMES:
        read_config(root / CONFIG, name, Disk())
    if kind is BATCH:
        config = Topics(root, Disk()).configs["batches"]
        assert (config.queue_type, config.read_queue_count, config.write_queue_count) == ("BatchCQ", 2, 2)
    for mode in ("r", "w"):
        with kind.open(root, **({"mode": "r"} if mode == "r" else {})) as store:
            for key in kind.queues:
                assert read_on(store.queue(*key)) == (content.queues[key], [], set())
            assert not [note for note in store.recovery.notes if CONFIG in note]


@pytest.mark.one_in(216)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("change", DAMAGES)
@pytest.mark.parametrize("name", NAMES)
def test_one_repair_ends_with_a_whole_store_and_keeps_the_damaged_bytes(
    name: str, change: str, copy: str, made: tuple[Kind, Path, Content], tmp_path: Path
) -> None:
    kind, source, content = made
    for is_copied in (False, True):
        root, target = tmp_path / f"store-{is_copied}", tmp_path / "copy"
        shutil.copytree(source, root)
        kept = damage(root, name, change, copy)
        before = {path.name: path.read_bytes() for path in (root / CONFIG).iterdir()}
        plan = plan_repair(root)
        assert not plan.unmended
        assert not [action for action in plan.actions if action.kind == "rebuild"]
        assert repair(plan, to=target if is_copied else None).ok
        if is_copied:
            assert {path.name: path.read_bytes() for path in (root / CONFIG).iterdir()} == before
            assert not (root / QUARANTINE).exists()
        judge(target if is_copied else root, kind, content, kept)


@pytest.mark.one_in(288)
@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("turn", range(16))
def test_whichever_bit_of_topics_json_is_flipped_one_repair_is_enough(turn: int, bit: int, tmp_path: Path) -> None:
    content = BATCH.made(tmp_path / "made", count=6)
    whole = (tmp_path / "made" / CONFIG / TOPICS).read_bytes()
    for position in range(turn, len(whole), 16):
        root = tmp_path / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(tmp_path / "made", root)
        (root / CONFIG / (TOPICS + COPY)).unlink(missing_ok=True)
        changed = bytearray(whole)
        changed[position] ^= 1 << bit
        (root / CONFIG / TOPICS).write_bytes(changed)
        assert repair(plan_repair(root)).ok, changed
        assert not plan_repair(root).actions, changed
        assert any(path.read_bytes() == changed for path in root.glob("*/*topics.json*")), changed
        assert Topics(root, Disk()).is_batch("batches"), changed
        with BATCH.open(root, mode="r") as store:
            for key in BATCH.queues:
                assert read_on(store.queue(*key)) == (content.queues[key], [], set())


def test_the_plan_says_what_is_set_aside_and_what_is_lost_with_it(tmp_path: Path) -> None:
    BATCH.made(tmp_path)
    for name, data in WHOLE.items():
        (tmp_path / CONFIG / name).write_bytes(data[:-1])
    (tmp_path / CONFIG / TOPICS).write_bytes(b"{")
    (tmp_path / CONFIG / (TOPICS + COPY)).write_bytes(b"}")
    texts = {action.path: described(action) for action in plan_repair(tmp_path).actions if action.kind == "aside"}
    assert texts.keys() == {f"{CONFIG}/{name}" for name in (*NAMES, TOPICS + COPY)}
    for name, lost in (
        (TOPICS, "queue counts, permissions and attributes of topics"),
        (CONSUMER_OFFSETS, "how far each group has consumed"),
        (LMQ_CONSUMER_OFFSETS, "how far each group has consumed"),
        (DELAY_OFFSETS, "delivered again"),
        (SUBSCRIPTION_GROUPS, "settings of consumer groups"),
        ("consumerFilter.json", "what only it held"),
    ):
        text = texts[f"{CONFIG}/{name}"]
        assert text.startswith(f"set {CONFIG}/{name} aside, which cannot be read: ")
        assert lost in text.split("; lost: ")[1]
    assert "lost" not in texts[f"{CONFIG}/{TOPICS}{COPY}"]
    for problem in verify(tmp_path).problems:
        assert f"let `stratalog repair {tmp_path}` set it aside" in problem.next_step
    with BATCH.open(tmp_path, mode="r") as store:
        (note,) = store.recovery.notes
        assert f"let `stratalog repair {tmp_path}` set them aside" in note
    done = CliRunner().invoke(app, ["repair", str(tmp_path), "--in-place", "--yes", "--json"])
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    assert shown["ok"]
    assert not shown["cannotBeMended"]
    assert "add topics of type BatchCQ" in shown["actions"][-1]["does"]


@pytest.mark.parametrize("name", [TOPICS, TOPICS + COPY])
def test_nothing_is_set_aside_beside_a_directory(name: str, tmp_path: Path) -> None:
    """The directory must be moved by hand anyway."""
    BATCH.made(tmp_path)
    path = tmp_path / CONFIG / TOPICS
    path.unlink()
    for at in (path, path.with_name(TOPICS + COPY)):
        at.mkdir() if at.name == name else at.write_bytes(b"{")
    plan = plan_repair(tmp_path)
    assert plan.unmended
    assert not plan.actions
    (tmp_path / CONFIG / name).rmdir()
    assert repair(plan_repair(tmp_path)).ok
    assert Topics(tmp_path, Disk()).configs["batches"].queue_type == "BatchCQ"


def test_a_repair_that_is_killed_is_run_again(tmp_path: Path) -> None:
    content = BATCH.made(tmp_path / "made")
    kept = [b"file", b"copy"]
    for name, data in zip((TOPICS, TOPICS + COPY), kept, strict=True):
        (tmp_path / "made" / CONFIG / name).write_bytes(data)
    kinds = [action.kind for action in plan_repair(tmp_path / "made").actions]
    assert kinds == ["aside", "aside", "enter"]
    for done in range(len(kinds) + 1):
        root = tmp_path / str(done)
        shutil.copytree(tmp_path / "made", root)
        left = [None] * done

        def stop(text: str, left: list[None] = left) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop()

        with pytest.raises(KeyboardInterrupt):
            repair(plan_repair(root), step=stop)
        assert repair(plan_repair(root)).ok
        judge(root, BATCH, content, kept)
