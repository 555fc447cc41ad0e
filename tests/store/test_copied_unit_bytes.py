"""Bytes of a queue's file were copied over others in it, and the log is whole: a repair loses nothing, and the queue
ends where it did but for the units that were damaged after its end."""

import random
from pathlib import Path

import pytest

from store.kinds import BATCH, KINDS, Kind, read_on
from store.test_recreated_topics import STATES, settings_of
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

PUTS = 60


def copy_bytes(path: Path, source: int, target: int, size: int) -> None:
    data = bytearray(path.read_bytes())
    copied = data[source : source + size][: len(data) - target]
    data[target : target + len(copied)] = copied
    path.write_bytes(data)


def check(kind: Kind, state: str, root: Path, chance: random.Random, source: int, target: int, size: int) -> None:
    """Sizes and positions are in bytes; the target counts from the begin of the last unit."""
    content = kind.made(root, count=PUTS)
    STATES[state](root)
    path = kind.files(root, chance.choice(kind.queues))[chance.choice((-1, -1, -2, 0))]
    written = len(path.read_bytes().rstrip(b"\0"))
    last = (written - 1) // kind.layout.size * kind.layout.size
    copy_bytes(path, max(0, source), max(0, last + target), size)
    plan = plan_repair(root, settings=settings_of(kind))
    damaged = -(-size // kind.layout.size) + 1  # a plain unit after the end says that there was a message
    assert plan.lost_count <= damaged
    assert repair(plan).ok
    assert not plan_repair(root, settings=settings_of(kind)).actions
    report = verify(root, settings=settings_of(kind))
    assert report.ok, report.problems[:3]
    with kind.open(root, mode="r") as store:
        for key, messages in content.queues.items():
            assert 0 <= store.queue(*key).max_offset - len(messages) <= damaged
            found, errors, _ = read_on(store.queue(*key))
            assert found == messages
            assert not errors


@pytest.mark.one_in(720)
@pytest.mark.parametrize("number", range(20))
@pytest.mark.parametrize("units", ["less", "more", "whole", "two", "any"])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_is_lost(kind: Kind, state: str, units: str, number: int, tmp_path: Path) -> None:
    chance, size = random.Random(f"{kind} {state} {units} {number}"), kind.layout.size
    sizes = {"less": size - 1, "more": size + 1, "whole": size, "two": 2 * size, "any": chance.randrange(8, 4 * size)}
    source, target = chance.randrange(4 * size), chance.randrange(-3 * size, size)
    check(kind, state, tmp_path / "store", chance, source, target, sizes[units])


@pytest.mark.one_in(144)
@pytest.mark.parametrize("shift", range(1, 8))
@pytest.mark.parametrize("first", [-3, -2, -1, 0, 1])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
def test_a_queue_of_batches_does_not_end_where_shifted_units_say(
    state: str, count: int, first: int, shift: int, tmp_path: Path
) -> None:
    """A unit of such a queue says its queue offset: one that is read some bytes late says a larger one."""
    size, chance = BATCH.layout.size, random.Random(f"{state} {count} {first} {shift}")
    check(BATCH, state, tmp_path / "store", chance, size + shift, first * size, count * size)
