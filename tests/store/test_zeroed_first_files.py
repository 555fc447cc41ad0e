"""The first files of the log were zeroed or truncated, and queues lag behind the log: one repair makes the store whole.

Of a lost message in light queues its own queue's unit may be left, or that of a light queue, or none: placeholders must
keep the order of all queues.
"""

import itertools
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store.kinds import KINDS, LIGHT_EXTENDED, LIGHT_KIND, Content, Key, Kind, read_on
from store.model import Clock
from store.test_changed_identity import Reports, offsets_of
from store.test_recreated_topics import STATES, settings_of, walked
from stratalog.layout.light import LIGHT_QUEUE_ID, is_light
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.tools.repair import repair
from stratalog.tools.repair_fill import LostMessage, in_log_order
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

SIZE, PUTS = 2048, 40
FILES = {"the first": [0], "the second": [1], "the first two": [0, 1]}
LAGGING = ["all", "light", "own", "one"]
DISPATCHED = [0, 500, 1300, 1900, 1 << 30]
"""Log offsets up to which the queues that lag have units."""
ROADS = ["repaired", "opened, repaired", "rebuilt, repaired", "copied"]


def small(kind: Kind) -> Kind:
    return replace(kind, settings={**kind.settings, "mapped_file_size_commit_log": SIZE})


def queue_files(root: Path, which: str) -> list[Path]:
    """Files of all queues, of the light ones, of the others, or of one queue."""
    trees = [path for tree in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE) for path in (root / tree).glob("*/*/*")]
    paths = [
        path for path in sorted(trees) if which in ("all", "one") or is_light(path.parts[-3]) == (which == "light")
    ]
    return [path for path in paths if which != "one" or path.parent == paths[0].parent]


def units_of(path: Path) -> np.ndarray:
    return np.frombuffer(path.read_bytes(), (BATCH_UNIT if BATCH_CONSUME_QUEUE in path.parts else UNIT).dtype)


def lag(root: Path, which: str, dispatched: int) -> None:
    for path in queue_files(root, which):
        units = units_of(path).copy()
        units[units["commit_log_offset"] >= dispatched] = 0
        path.write_bytes(units.tobytes())
        if not path.read_bytes().strip(b"\0"):
            path.unlink()


def ends_in_units(root: Path) -> dict[Key, int]:
    found: dict[Key, int] = {}
    for path in queue_files(root, "all"):
        units, key = units_of(path), (path.parts[-3], int(path.parts[-2]))
        for at in np.flatnonzero(units["size"]).tolist():
            is_batch = BATCH_CONSUME_QUEUE in path.parts
            end = int(units["base_offset"][at] + max(1, units["batch_size"][at])) if is_batch else (
                int(path.name) // UNIT.size + at + 1
            )  # fmt: skip
            found[key] = max(end, found.get(key, 0))
    return found


def walk(kind: Kind, root: Path, road: str) -> Reports:
    if road != "copied":
        return walked(kind, root, road)
    plan, reports, copy = plan_repair(root, settings=settings_of(kind)), Reports(), root.with_name("copy")
    reports.stated = offsets_of([*plan.missing, *plan.lost_ranges])
    assert repair(plan, to=copy).ok
    shutil.rmtree(root)
    copy.rename(root)
    return reports


@pytest.mark.one_in(1800)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("is_truncated", [True, False], ids=["truncated", "zeroed"])
@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize("dispatched", DISPATCHED)
@pytest.mark.parametrize("which", LAGGING)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_repair_makes_the_store_whole(
    kind: Kind, state: str, which: str, dispatched: int, files: str, is_truncated: bool, road: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    root, kind = tmp_path / "store", small(kind)
    content = kind.made(root, count=PUTS)
    STATES[state](root)
    lag(root, which, dispatched)
    ends = ends_in_units(root)
    paths = [sorted((root / "commitlog").iterdir())[number] for number in FILES[files]]
    for path in paths:
        path.write_bytes(b"" if is_truncated else bytes(SIZE))
    check(kind, root, content, ends, [int(path.name) for path in paths], road)


def check(
    kind: Kind, root: Path, content: Content, ends: dict[Key, int], lost_files: Collection[int], road: str
) -> None:  # fmt: skip
    reports = walk(kind, root, road)
    assert_whole(kind, root)
    with kind.open(root, clock_ns=Clock()) as store:
        for key, messages in content.queues.items():
            found, errors, _ = read_on(store.queue(*key))
            is_lost = {
                number: known.commit_log_offset // SIZE * SIZE in lost_files for number, known in messages.items()
            }
            kept = {number: known for number, known in messages.items() if not is_lost[number]}
            assert (found, errors) == (kept, [])
            end = max([ends.get(key, 0), *(number + 1 for number in kept)])
            lost = {(key, number) for number in is_lost if is_lost[number] and number < end}
            assert lost <= reports.stated
            assert {(key, number) for number in kept}.isdisjoint(reports.stated)
            assert store.queue(*key).max_offset >= end
        new = Content()
        begins = {key: store.queue(*key).max_offset for key in content.queues}
        kind.fill(store, new, begin=PUTS, count=6)
        for key, begin in begins.items():
            messages = {message.queue_offset: message.body for message in store.queue(*key).read(begin)}
            assert messages == {begin + number: known.body for number, known in new.queues[key].items()}
    assert_whole(kind, root)


def assert_whole(kind: Kind, root: Path) -> None:
    assert verify(root, settings=settings_of(kind)).problems == []
    assert not plan_repair(root, settings=settings_of(kind)).actions


@pytest.mark.one_in(360)
@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("which", ["light", "own"])
@pytest.mark.parametrize("units", list(itertools.combinations(range(5), 2)), ids=str)
@pytest.mark.parametrize("dispatched", DISPATCHED)
@pytest.mark.parametrize("state", ["closed by RocketMQ", "killed"])
@pytest.mark.parametrize("kind", [LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_units_that_contradict_each_other_keep_no_repair_from_its_end(
    kind: Kind, state: str, dispatched: int, units: tuple[int, int], which: str, is_copied: bool, tmp_path: Path
) -> None:
    """Two units of a queue were exchanged, or one was written over another."""
    root, kind, (one, other) = tmp_path / "store", small(kind), units
    kind.made(root, count=PUTS)
    STATES[state](root)
    lag(root, "light" if which == "own" else "own", dispatched)
    path = queue_files(root, which)[0]
    changed = units_of(path).copy()
    changed[[one, other]] = changed[[one, one]] if is_copied else changed[[other, one]]
    path.write_bytes(changed.tobytes())
    (root / "commitlog" / f"{0:020d}").write_bytes(b"")
    assert repair(plan_repair(root, settings=settings_of(kind))).ok
    assert_whole(kind, root)


def test_each_queue_keeps_its_order_where_places_contradict_each_other() -> None:
    lost = [
        LostMessage("parent", 0, 0, places=(("%LMQ%a", 0), ("%LMQ%b", 1))),
        LostMessage("parent", 1, 0, places=(("%LMQ%a", 1), ("%LMQ%b", 0))),
    ]
    found = in_log_order(lost)
    places = [place for message in found for place in message.all_places]
    assert sorted(places) == sorted(place for message in lost for place in message.all_places)
    for name in ("%LMQ%a", "%LMQ%b"):
        assert [first for *key, first, _ in places if key == [name, LIGHT_QUEUE_ID]] == [0, 1]
