"""A topic that lost its entry in `topics.json`, and its queues: units, and without them the log, tell its type."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.faults import Stopped
from store.damage import change
from store.kinds import BATCH, EXTENDED, LIGHT_KIND, PLAIN, SIZES, Content, Kind, read_on
from store.model import Clock
from store.test_recreated_topics import STATES, settings_of
from store.test_topic_types import WITHOUT_THE_TOPIC
from stratalog.layout.names import ABORT, BATCH_CONSUME_QUEUE, CONFIG, CONSUME_QUEUE, SNAPSHOT
from stratalog.store.config_files import COPY, TOPICS
from stratalog.store.rederive import Rebuild
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

COUNT = 20


def _entry(root: Path) -> None:
    for path in (root / CONFIG).glob(TOPICS + "*"):
        path.write_bytes(WITHOUT_THE_TOPIC)


def _topics(root: Path) -> None:
    for name in (TOPICS, TOPICS + COPY):
        (root / CONFIG / name).unlink(missing_ok=True)


CONFIGS: dict[str, Callable[[Path], None]] = {
    "entry": _entry,
    "topics.json": _topics,
    "config/": lambda root: shutil.rmtree(root / CONFIG, ignore_errors=True),
}


def _emptied(kind: Kind, root: Path) -> None:
    for path in [path for key in kind.queues for path in kind.files(root, key)]:
        path.write_bytes(b"")


UNITS: dict[str, Callable[[Kind, Path], None]] = {
    "tree": lambda kind, root: shutil.rmtree(root / kind.tree),
    "topic": lambda kind, root: [shutil.rmtree(root / kind.tree / topic) for topic in {key[0] for key in kind.queues}],
    "a queue": lambda kind, root: shutil.rmtree(kind.directory(root, kind.queues[1])),
    "content": _emptied,
}


def _opened(kind: Kind, root: Path) -> None:
    for _ in range(2):
        kind.open(root).close()


def _repaired(kind: Kind, root: Path) -> None:
    repair(plan_repair(root, settings=settings_of(kind)))
    assert verify(root, settings=settings_of(kind)).ok


STEPS: dict[str, Callable[[Kind, Path], object]] = {
    "read": lambda kind, root: None,
    "verified": lambda kind, root: verify(root, settings=settings_of(kind)),
    "opened": _opened,
    "repaired": _repaired,
    "rebuilt": lambda kind, root: rebuild(root, settings=settings_of(kind)),
}


def _damaged(root: Path, places: list[int]) -> None:
    """Change a byte of the bodies of records."""
    for place in places:
        position = place % SIZES["mapped_file_size_commit_log"]
        path = root / "commitlog" / f"{place - position:020d}"
        change(path, position + 89, bytes([path.read_bytes()[position + 89] ^ 0xFF]))


def _killed_while_opening(kind: Kind, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It noted where the queues end."""

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(Rebuild, "run", stop)
        with pytest.raises(Stopped):
            kind.open(root)


def _check(kind: Kind, root: Path, content: Content, lost: list[int]) -> None:
    with kind.open(root, mode="r") as store:
        for key in kind.queues:
            assert store.queue_set.is_batch(key[0]) == (kind is BATCH)
            found, known = read_on(store.queue(*key))[0], content.queues[key]
            assert {number: one for number, one in found.items() if one.commit_log_offset not in lost} == (
                {number: one for number, one in known.items() if one.commit_log_offset not in lost}
            )
            assert store.queue(*key).max_offset == len(known)


@pytest.mark.one_in(2160)
@pytest.mark.parametrize(
    "road", ["read", "verified", "opened", "repaired", "rebuilt", "opened, repaired", "opened, rebuilt"]
)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("noted", ["at the clean stop", "with the damage", "by an opening that was killed"])
@pytest.mark.parametrize("damage", ["none", "middle"])
@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("kind", [BATCH, PLAIN, EXTENDED, LIGHT_KIND], ids=str)
def test_a_topic_without_entry_keeps_its_type_and_offsets_where_its_units_are_lost(
    kind: Kind, config: str, units: str, damage: str, noted: str, state: str, road: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    root, content = tmp_path / "store", Content()
    with kind.open(root, clock_ns=Clock()) as store:
        for number in range(COUNT):
            kind.put(store, number, content)
            store.put("other", b"%d" % number)
    places = sorted({one.commit_log_offset for queue in content.queues.values() for one in queue.values()})
    lost = places[COUNT // 2 :][:1] if damage == "middle" else []
    if noted == "with the damage":
        _damaged(root, lost)
        (root / ABORT).touch()
        (root / SNAPSHOT).unlink()
        kind.open(root).close()
    STATES[state](root)
    if noted != "with the damage":
        _damaged(root, lost)
    if noted == "by an opening that was killed":
        _killed_while_opening(kind, root, monkeypatch)
    CONFIGS[config](root)
    UNITS[units](kind, root)
    for step in road.split(", "):
        STEPS[step](kind, root)
    _check(kind, root, content, lost)
    with kind.open(root) as store:
        kind.fill(store, content, begin=COUNT, count=6)
    _check(kind, root, content, lost)
    other = CONSUME_QUEUE if kind is BATCH else BATCH_CONSUME_QUEUE
    assert not any((root / other / topic).exists() for topic, _ in kind.queues)
