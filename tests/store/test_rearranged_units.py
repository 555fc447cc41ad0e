"""Units of a queue that stand twice, are left out, or are in another order: every message is served in its place after
a repair, as the records themselves are whole."""

from pathlib import Path

import pytest

from store.kinds import KINDS, Content, Kind, read_on
from store.model import Clock
from store.test_recreated_topics import OLD, STATES, delete, fill, settings_of, walked
from stratalog.tools.verify import verify

Units = list[bytes]


def twice(units: Units, at: int) -> Units:
    return [*units[: at + 1], *units[at:]]


def left_out(units: Units, at: int) -> Units:
    return [*units[:at], *units[at + 1 :]]


def exchanged(units: Units, at: int) -> Units:
    return [*units[:at], *reversed(units[at : at + 2]), *units[at + 2 :]]


def reversed_order(units: Units, at: int) -> Units:
    return [*units[:at], *reversed(units[at:])]


def copied_over_next(units: Units, at: int) -> Units:
    return [*units[: at + 1], units[at], *units[at + 2 :]]


CHANGES = (twice, left_out, exchanged, reversed_order, copied_over_next)


@pytest.mark.one_in(180)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["repaired", "opened, repaired", "rebuilt, repaired"])
@pytest.mark.parametrize("old", [0, OLD])
@pytest.mark.parametrize("at", [0, 1, 2, -2, -1])
@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_messages_whose_units_were_rearranged_are_served_after_a_repair(
    kind: Kind, what: object, count: int, at: int, old: int, road: str, state: str, tmp_path: Path
) -> None:
    """`old` messages are of a topic that was deleted; `count` are in each of the two queues."""
    root, key, content = tmp_path / "store", kind.queues[0], Content()
    with kind.open(root, clock_ns=Clock()) as store:
        fill(kind, store, Content(), 0, old)
        if old:
            delete(store, kind)
        fill(kind, store, content, old, old + 2 * count)
    STATES[state](root)
    path, size = kind.files(root, key)[0], kind.layout.size
    data = path.read_bytes()
    units = [data[begin : begin + size] for begin in range(0, len(data.rstrip(b"\0")), size)]
    path.write_bytes(b"".join(what(units, at % len(units))).ljust(len(data), b"\0")[: len(data)])  # type: ignore[operator]
    walked(kind, root, road)
    with kind.open(root, mode="r") as store:
        for key in kind.queues:
            assert read_on(store.queue(*key))[0] == content.queues[key]
    assert verify(root, settings=settings_of(kind)).ok


@pytest.mark.one_in(45)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ["rebuilt", "repaired"])
@pytest.mark.parametrize("count", [1, 2, 20])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_queue_file_that_holds_its_bytes_twice_makes_its_queue_no_longer(
    kind: Kind, count: int, road: str, state: str, tmp_path: Path
) -> None:
    content = kind.made(tmp_path, count=count)
    STATES[state](tmp_path)
    path = kind.files(tmp_path, kind.queues[0])[-1]
    path.write_bytes(2 * path.read_bytes())
    walked(kind, tmp_path, road)
    with kind.open(tmp_path) as store:
        for key, queue in content.queues.items():
            assert (read_on(store.queue(*key))[0], store.queue(*key).max_offset) == (queue, len(queue))
