"""A queue file under a wrong name, after retention: no record is rewritten, whatever place its units have then."""

from itertools import count
from pathlib import Path

import pytest

from store.kinds import BATCH, LIGHT_KIND, PLAIN, QUEUE_FILE_UNITS, SIZES, Content, Kind, read_on
from store.test_recreated_topics import STATES, settings_of, walked
from stratalog.errors import CorruptData
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

SHIFTS = {
    "forward": QUEUE_FILE_UNITS, "two files forward": 2 * QUEUE_FILE_UNITS, "far forward": 1000 * QUEUE_FILE_UNITS,
    "back": -QUEUE_FILE_UNITS, "two files back": -2 * QUEUE_FILE_UNITS, "one unit forward": 1, "three units back": -3,
    "three files forward": 3 * QUEUE_FILE_UNITS, "half a unit forward": 0.5,
}  # fmt: skip
"""By how many units the name differs."""


def log_bytes(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


def made(kind: Kind, root: Path, before: int, live_count: int) -> Content:
    """A store whose first queue has so many live messages, after so many units of expired ones in its newest file."""
    content, key, begin = Content(), kind.queues[0], SIZES["mapped_file_size_commit_log"]
    numbers = count()

    def put(units: int) -> None:
        places = set[int]()
        while len(places) < units:
            kind.put(store, next(numbers), content)
            places |= {known.commit_log_offset for known in list(content.queues.get(key, {}).values())[-4:]} - before_it
        before_it.update(places)

    before_it = set[int]()
    with kind.open(root) as store:
        put(2 * QUEUE_FILE_UNITS + before)
        while store.put("other", b"to the next log file" * 20).commit_log_offset < begin:
            pass
        put(live_count)
        store.put("other", b"other")
    (root / "commitlog" / f"{0:020d}").unlink()
    with kind.open(root):
        pass
    for one in kind.queues:
        content.queues[one] = {
            number: known for number, known in content.queues.get(one, {}).items() if known.commit_log_offset >= begin
        }
    return content


def check(kind: Kind, root: Path, before: int, live_count: int, shift: str, road: str, state: str) -> None:
    key = kind.queues[0]
    content = made(kind, root, before, live_count)
    STATES[state](root)
    newest = kind.files(root, key)[-1]
    newest.replace(newest.with_name(f"{int(newest.name) + int(SHIFTS[shift] * kind.layout.size):020d}"))
    log = log_bytes(root)
    reports = walked(kind, root, road)
    assert log_bytes(root) == log
    assert not any(number in content.queues.get(one, {}) for one, number in reports.stated)
    with kind.open(root, mode="r") as store:
        for one in kind.queues:
            assert read_on(store.queue(*one))[0] == content.queues[one]
            assert store.queue(*one).max_offset >= max(content.queues[one], default=-1) + 1
    assert not plan_repair(root, settings=settings_of(kind)).actions


@pytest.mark.one_in(540)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "rebuilt, repaired", "opened, rebuilt, repaired"])
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("live_count", [1, 2, 3])
@pytest.mark.parametrize("before", [0, 3, 4])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_no_record_is_rewritten_and_every_message_is_served_in_its_place(
    kind: Kind, before: int, live_count: int, shift: str, road: str, state: str, tmp_path: Path
) -> None:
    check(kind, tmp_path / "store", before, live_count, shift, road, state)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("shift", ["forward", "far forward", "back", "three units back"])
@pytest.mark.parametrize("before", [0, 3])
def test_the_only_live_message_of_a_queue_is_not_moved(before: int, shift: str, tmp_path: Path) -> None:
    check(PLAIN, tmp_path / "store", before, 1, shift, "repaired", "closed by RocketMQ")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("shift", ["one unit forward", "three units back", "half a unit forward"])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_a_name_that_no_file_of_that_size_has_is_refused_and_repair_builds_the_queue_again(
    kind: Kind, shift: str, mode: str, tmp_path: Path
) -> None:
    content, key = made(kind, tmp_path, 4, 2), kind.queues[0]
    newest = kind.files(tmp_path, key)[-1]
    newest.replace(newest.with_name(f"{int(newest.name) + int(SHIFTS[shift] * kind.layout.size):020d}"))
    with pytest.raises(CorruptData, match=r"has that name: rename it back, or let `stratalog repair"):
        kind.open(tmp_path, mode=mode).queue(*key)
    repair(plan_repair(tmp_path, settings=settings_of(kind)))
    assert verify(tmp_path, settings=settings_of(kind)).ok
    with kind.open(tmp_path, mode=mode) as store:
        assert read_on(store.queue(*key))[0] == content.queues[key]
