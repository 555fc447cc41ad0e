"""Files of another store were laid over a store's own. No message of the log vanishes silently, no offset is given
again, and verify finds no queue right that is not."""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store.kinds import BATCH, LIGHT_KIND, PLAIN, Content, Key, Kind, Known, read_on
from store.model import Clock
from store.test_recreated_topics import STATES, settings_of, walked
from stratalog.errors import CorruptData
from stratalog.layout.message import FIXED_SIZE_V1
from stratalog.layout.names import CHECKPOINT, COMMIT_LOG, CONFIG, INDEX, SNAPSHOT
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

COUNT = 12
OTHERS = {"shorter": (40, 4), "longer": (40, 40), "as long": (43, COUNT), "much longer": (3, 200)}
"""The first number, and how many, of the messages in the other store."""


def lay_queue(own: Path, other: Path, kind: Kind) -> None:
    """The directory of one queue."""
    shutil.rmtree(kind.directory(own, kind.queues[0]))
    shutil.copytree(kind.directory(other, kind.queues[1]), kind.directory(own, kind.queues[0]))


def lay_queue_file(own: Path, other: Path, kind: Kind) -> None:
    """The first file of one queue."""
    shutil.copy(kind.files(other, kind.queues[0])[0], kind.files(own, kind.queues[0])[0])


def lay_queues(own: Path, other: Path, kind: Kind) -> None:
    shutil.rmtree(own / kind.tree)
    shutil.copytree(other / kind.tree, own / kind.tree)


def lay_over_queues(own: Path, other: Path, kind: Kind) -> None:
    """Files of the same names are replaced, others stay."""
    shutil.copytree(other / kind.tree, own / kind.tree, dirs_exist_ok=True)


def lay_newest_unit(own: Path, other: Path, kind: Kind) -> None:
    """A queue file in which only one unit is not zeros: it leads to after the log's end."""
    last = sorted((other / COMMIT_LOG).iterdir())[-1]
    unit = np.zeros(1, kind.layout.dtype)
    unit["commit_log_offset"], unit["size"] = int(last.name) + 5862, 119
    if kind is BATCH:
        unit["batch_size"] = 1
    path = kind.files(own, kind.queues[0])[0]
    path.write_bytes(unit.tobytes().ljust(path.stat().st_size, b"\0"))


def lay_index(own: Path, other: Path, kind: Kind) -> None:
    shutil.rmtree(own / INDEX)
    shutil.copytree(other / INDEX, own / INDEX)


def lay_config(own: Path, other: Path, kind: Kind) -> None:
    shutil.rmtree(own / CONFIG, ignore_errors=True)
    if (other / CONFIG).exists():
        shutil.copytree(other / CONFIG, own / CONFIG)


def lay_file(name: str) -> Callable[[Path, Path, Kind], None]:
    def lay(own: Path, other: Path, kind: Kind) -> None:
        if (other / name).exists():
            shutil.copy(other / name, own / name)

    return lay


OVERLAYS: dict[str, Callable[[Path, Path, Kind], None]] = {
    "queue": lay_queue,
    "queue file": lay_queue_file,
    "queues": lay_queues,
    "over queues": lay_over_queues,
    "one unit": lay_newest_unit,
    "index": lay_index,
    "config": lay_config,
    "checkpoint": lay_file(CHECKPOINT),
    "snapshot": lay_file(SNAPSHOT),
}
ROADS = ["opened", "opened, opened", "rebuilt", "repaired", "opened, repaired", "rebuilt, repaired", "rebuilt, opened"]


@pytest.mark.one_in(1620)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("count", [1, COUNT, 60])
@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_the_messages_of_the_log_are_served(
    kind: Kind, overlay: str, count: int, others: str, state: str, road: str, tmp_path: Path
) -> None:
    own, content = laid_over(kind, overlay, count, others, state, tmp_path)
    report = verify(own, settings=settings_of(kind))
    assert not report.deleted_count
    try:
        with kind.open(own, mode="r") as store:
            is_right = all(read_on(store.queue(*key))[0] == queue for key, queue in content.items())
    except CorruptData:
        is_right = False
    assert is_right or not report.ok
    walked(kind, own, road)
    with suppressing(), kind.open(own) as store:
        for key, queue in content.items():
            found, _, named = read_on(store.queue(*key))
            assert {number for number in queue if found.get(number) != queue[number]} <= named
            assert found.keys() <= queue.keys()
            assert store.queue(*key).max_offset >= len(queue)


@contextlib.contextmanager
def suppressing() -> Iterator[None]:
    """A refusal that says what to do."""
    try:
        yield
    except CorruptData as error:
        if not re.search("`stratalog (repair|rebuild)|[Rr]estore|ename", str(error)):
            raise


def laid_over(
    kind: Kind, overlay: str, count: int, others: str, state: str, folder: Path
) -> tuple[Path, dict[Key, dict[int, Known]]]:
    """The store, and what its log holds."""
    begin, other_count = OTHERS[others]
    own, other = folder / "store", folder / "other"
    content = kind.made(own, count=count)
    STATES[state](own)
    with kind.open(other, clock_ns=Clock()) as store:
        kind.fill(store, Content(), begin=begin, count=other_count)
    STATES[state](other)
    OVERLAYS[overlay](own, other, kind)
    return own, content.queues


@pytest.mark.parametrize("overlay", ["one unit", "index"])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_opening_serves_all_messages_of_the_log(kind: Kind, state: str, overlay: str, tmp_path: Path) -> None:
    own, content = laid_over(kind, overlay, COUNT, "shorter", state, tmp_path)
    assert not verify(own, settings=settings_of(kind)).deleted_count
    for _ in range(2):
        with kind.open(own) as store:
            for key, queue in content.items():
                assert read_on(store.queue(*key))[0] == queue
                assert store.queue(*key).max_offset >= len(queue)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("road", ["opened", "repaired", "rebuilt"])
@pytest.mark.parametrize("state", ["closed", "index gone"])
@pytest.mark.parametrize(("first", "unit_count"), [(0, 1), (0, 2), (0, 7), (1, 7), (3, 1), (9, 2)])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_units_that_begin_at_the_end_of_a_closed_log_tell_of_no_deleted_topic(
    kind: Kind, first: int, unit_count: int, state: str, road: str, tmp_path: Path
) -> None:
    """A queue file of a store whose log was as long when it put the first message of the queue."""
    content = kind.made(tmp_path, count=COUNT)
    seal = Checkpoint.load(tmp_path, Disk()).seal
    assert seal
    path = kind.files(tmp_path, kind.queues[0])[0]
    units = np.zeros(path.stat().st_size // kind.layout.size, kind.layout.dtype)
    laid = units[first : first + unit_count] if kind is not BATCH else units[:unit_count]
    laid["commit_log_offset"], laid["size"] = seal.log_end_offset + 120 * np.arange(len(laid)), 120
    if kind is BATCH:
        laid["base_offset"], laid["batch_size"] = first + np.arange(len(laid)), 1
    path.write_bytes(units.tobytes())
    STATES[state](tmp_path)
    walked(kind, tmp_path, road)
    with kind.open(tmp_path) as store:
        for key, queue in content.queues.items():
            assert read_on(store.queue(*key))[0] == queue
            assert store.queue(*key).max_offset >= len(queue)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("state", ["closed", "killed with a seal"])
@pytest.mark.parametrize("road", ["put", "repaired, put", "put, repaired", "repaired, put, repaired"])
@pytest.mark.parametrize("longer", [1, 8, 90, 91, 92, 100, 119, 120])
def test_a_checkpoint_of_a_longer_log_costs_no_message(longer: int, road: str, state: str, tmp_path: Path) -> None:
    """No record is so small as the gap would be that ends where the checkpoint says."""
    expected = PLAIN.made(tmp_path, count=COUNT).queues
    checkpoint = Checkpoint.load(tmp_path, Disk())
    assert checkpoint.seal
    end = checkpoint.seal.log_end_offset
    seal = replace(checkpoint.seal, log_end_offset=end + longer)
    replace(checkpoint, seal=seal).store(tmp_path, Disk())
    STATES[state](tmp_path)
    bodies = [{number: known.body for number, known in expected[key].items()} for key in PLAIN.queues]
    for step in road.split(", "):
        if step == "repaired":
            repair(plan_repair(tmp_path, settings=settings_of(PLAIN)))
            continue
        with PLAIN.open(tmp_path) as store:
            for key, queue in zip(PLAIN.queues, bodies, strict=True):
                receipt = store.queue(*key).put(b"new")
                assert receipt.queue_offset not in queue
                assert receipt.commit_log_offset == end or longer >= FIXED_SIZE_V1 or key != PLAIN.queues[0]
                queue[receipt.queue_offset] = b"new"
    with PLAIN.open(tmp_path, mode="r") as store:
        for key, queue in zip(PLAIN.queues, bodies, strict=True):
            assert {number: known.body for number, known in read_on(store.queue(*key))[0].items()} == queue


@pytest.mark.one_in(27)
@pytest.mark.parametrize("which", ["all", "first", "newest"])
@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("others", ["as long", "much longer"])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_rebuild_refuses_a_log_that_repair_refuses(
    kind: Kind, others: str, state: str, which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kind.settings, "mapped_file_size_commit_log", 1024)

    def lay(own: Path, other: Path, kind: Kind) -> None:
        used = [path for path in sorted((own / COMMIT_LOG).iterdir()) if any(path.read_bytes())]
        for path in {"all": used, "first": used[:1], "newest": used[-1:]}[which]:
            shutil.copy(other / COMMIT_LOG / path.name, path)

    monkeypatch.setitem(OVERLAYS, "log", lay)
    if kind is BATCH and which == "newest":
        pytest.skip("its two records may be damaged")
    own, _ = laid_over(kind, "log", COUNT, others, state, tmp_path)
    with pytest.raises(CorruptData) as refusal:
        plan_repair(own, settings=settings_of(kind))
    with pytest.raises(CorruptData) as other_refusal:
        rebuild(own, settings=settings_of(kind))
    assert other_refusal.value.path == refusal.value.path or "would be missing" in str(other_refusal.value)
