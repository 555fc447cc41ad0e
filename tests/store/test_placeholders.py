"""What a repair puts in the place of lost messages: no offset is given twice, in light queues neither."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import stratalog
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import HEAD, LOST_FLAG
from stratalog.store.message_store import MessageStore
from stratalog.store.record_put import Receipt
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import RepairPlan, plan_repair
from stratalog.tools.verify import verify

A, LARGE, SMALL = "%LMQ%a", b"." * 60, b"x"
"""`SMALL` makes a record without room for a placeholder."""
Served = dict[str, list[int]]


def opened(root: Path) -> MessageStore:
    return stratalog.open(root, small=True, enable_lmq=True, enable_multi_dispatch=True)


def put(root: Path, messages: Sequence[tuple[str, bytes, str]]) -> list[Receipt]:
    """Messages as (topic, body, names of light queues)."""
    with opened(root) as store:
        return [
            store.put(topic, body, properties={MULTI_DISPATCH: light} if light else None)
            for topic, body, light in messages
        ]


def lose(root: Path, *receipts: Receipt) -> None:
    with next((root / "commitlog").iterdir()).open("r+b") as file:
        for receipt in receipts:
            file.seek(receipt.commit_log_offset)
            file.write(bytes(receipt.store_size))


def state(root: Path) -> tuple[Served, dict[str, int]]:
    """Offsets that each queue serves, and its next one."""
    with opened(root) as store:
        queues = {topic: store.queue(topic) for topic, _ in store.queues()}
        served = {
            topic: [message.queue_offset for message in queue.read(queue.min_offset) if message.flag != LOST_FLAG]
            for topic, queue in queues.items()
        }
        return served, {topic: queue.max_offset for topic, queue in queues.items()}


def repaired(root: Path, before: tuple[Served, dict[str, int]], lost: dict[str, set[int]]) -> RepairPlan:
    """After it everything but what is lost is served at its offset, and the queues end where they did: as they are, and
    built from the log alone."""
    plan = plan_repair(root)
    report = repair(plan)
    assert report.ok, report.problems[:2]
    assert not plan_repair(root).actions
    wanted = {topic: [number for number in numbers if number not in lost.get(topic, ())]
              for topic, numbers in before[0].items()}  # fmt: skip
    assert state(root) == (wanted, before[1])
    shutil.rmtree(root / "consumequeue")
    rebuild(root)
    assert verify(root).ok
    assert state(root) == (wanted, before[1])
    return plan


def test_placeholders_of_one_range_stand_in_the_order_of_the_light_queue_they_share(tmp_path: Path) -> None:
    names = "abbabaab"
    receipts = put(tmp_path, [(name, LARGE, A) for name in names])
    before = state(tmp_path)
    lose(tmp_path, *receipts[2:6])
    plan = repaired(tmp_path, before, {"a": {1, 2}, "b": {1, 2}, A: {2, 3, 4, 5}})
    assert sum(action.placeholder_count for action in plan.actions) == 4


def test_the_newest_message_of_a_light_queue_whose_own_queue_goes_on(tmp_path: Path) -> None:
    receipts = put(tmp_path, [("t", SMALL, A)] * 4 + [("t", SMALL, "")] * 2)
    before = state(tmp_path)
    lose(tmp_path, receipts[3])
    assert repaired(tmp_path, before, {"t": {3}, A: {3}}).lost_count == 1


def test_the_newest_message_of_its_queue_whose_light_queue_goes_on(tmp_path: Path) -> None:
    """Its placeholder at the log's end does not stand in the light queue, behind higher offsets: no later repair takes
    it for the right one of the two."""
    receipts = put(tmp_path, [("l", LARGE, A), ("t", SMALL, A), *[("l", LARGE, A)] * 3])
    before = state(tmp_path)
    lose(tmp_path, receipts[1])
    repaired(tmp_path, before, {"t": {0}, A: {1}})
    lose(tmp_path, receipts[0])
    repaired(tmp_path, before, {"t": {0}, "l": {0}, A: {0, 1}})


def test_neighbours_of_two_queues_with_room_for_one_placeholder(tmp_path: Path) -> None:
    receipts = put(tmp_path, [("a", SMALL, ""), ("z", SMALL, ""), ("z", SMALL, ""), ("a", SMALL, ""), ("z", SMALL, "")])
    before = state(tmp_path)
    lose(tmp_path, receipts[2], receipts[3])
    repaired(tmp_path, before, {"a": {1}, "z": {1}})


def test_a_light_queue_with_a_placeholder_of_its_own_is_built_from_the_log(tmp_path: Path) -> None:
    """Its directory is made for the placeholder: that must not pass for knowing that the store has light queues."""
    receipts = put(tmp_path, [("t", SMALL, A)] * 4 + [("t", LARGE, "")] * 2)
    before = state(tmp_path)
    lose(tmp_path, receipts[3])
    repaired(tmp_path, before, {"t": {3}, A: {3}})
    shutil.rmtree(tmp_path / "consumequeue")
    rebuild(tmp_path)
    assert state(tmp_path)[1] == before[1]


@pytest.mark.parametrize("stop", range(4))
def test_an_offset_is_not_given_again_after_a_repair_that_was_killed(stop: int, tmp_path: Path) -> None:
    receipts = put(tmp_path, [("t", SMALL, A)] * 4 + [("other", LARGE, "")])
    before = state(tmp_path)
    lose(tmp_path, receipts[3])
    steps: list[str] = []

    def step(what: str) -> None:
        if len(steps) == stop:
            raise KeyboardInterrupt
        steps.append(what)

    with pytest.raises(KeyboardInterrupt):
        repair(plan_repair(tmp_path), step=step)
    assert state(tmp_path)[1] == before[1]


@pytest.mark.parametrize("order", ["abc", "bac", "cba"])
@pytest.mark.parametrize("crashed", [False, True])
def test_opening_gives_no_offset_again_when_several_queues_lost_their_newest(
    order: str, crashed: bool, tmp_path: Path
) -> None:
    """One of them its newest two: the queues are built again, and each goes on where it was."""
    one, two, end = order
    names = [one] * 3 + [two] + [one, two, two] + [end]
    receipts = put(tmp_path, [(name, LARGE, "") for name in names])
    before = state(tmp_path)
    lose(tmp_path, *receipts[4:7])
    if crashed:
        (tmp_path / "abort").touch()
    assert state(tmp_path)[1] == before[1]
    assert repair(plan_repair(tmp_path)).ok
    assert state(tmp_path)[1] == before[1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("units", [True, False], ids=["with units", "without"])
@pytest.mark.parametrize("bit", [0, 1, 2, 5, 20, 33])
def test_a_placeholder_with_a_turned_bit_costs_no_message(bit: int, units: bool, tmp_path: Path) -> None:
    receipts = put(tmp_path, [("t", LARGE, "")] * 10 + [("u", LARGE, "")])
    before = state(tmp_path)
    lose(tmp_path, receipts[2])
    assert repair(plan_repair(tmp_path)).ok
    at = receipts[2].commit_log_offset + HEAD.position("queue_offset")
    with next((tmp_path / "commitlog").iterdir()).open("r+b") as file:
        file.seek(at)
        file.write((2 ^ 1 << bit).to_bytes(8))
    if not units:
        shutil.rmtree(tmp_path / "consumequeue")
        for name in ("checkpoint", "queues.snapshot"):
            (tmp_path / name).unlink(missing_ok=True)
    plan = repaired(tmp_path, before, {"t": {2}})
    assert (plan.message_count, len(plan.unplaced)) == (10, 0)


def test_a_place_that_a_record_no_longer_names_is_not_given_again(tmp_path: Path) -> None:
    receipts = put(tmp_path, [("t", LARGE, A)] * 3)
    path = next((tmp_path / "commitlog").iterdir())
    data = path.read_bytes()
    at = data.index(b"%LMQ%a", receipts[2].commit_log_offset)
    path.write_bytes(data[:at] + b"##" + data[at + 2 :])
    plan = plan_repair(tmp_path)
    assert (plan.lost_places, plan.lost) == ([(A, 2)], [])
    assert repair(plan).ok
    assert state(tmp_path)[1][A] == 3
