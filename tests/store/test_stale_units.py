"""A queue's unit that leads to another record of the log, as a sector that kept what was written to it before."""

import shutil
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from store.kinds import BATCH, PLAIN, Content, Kind, read_on
from store.model import Clock
from store.test_recreated_topics import STATES, delete, settings_of
from stratalog.errors import CorruptData
from stratalog.layout.message import decode_record
from stratalog.layout.properties import PREPARED, encode_properties
from stratalog.layout.sysflag import Transaction
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

MESSAGES = 6


def made(kind: Kind, root: Path, old: int) -> Content:
    """A store of two queues with messages of another topic between theirs, and prepared ones where a queue can have
    them. With `old` messages the topic was deleted and created again."""
    content = Content()
    with kind.open(root, clock_ns=Clock()) as store:
        for number in range(old):
            kind.put(store, number, Content())
        if old:
            delete(store, kind)
        for number in range(old, old + MESSAGES):
            kind.put(store, number, content)
            if number < old + 2:
                store.put("other", b"%d" % number)
                if kind is PLAIN:
                    properties = encode_properties({PREPARED: "true"})
                    store.queue(*kind.queues[0]).put_record(b"prepared", properties, sys_flag=Transaction.PREPARED)
    return content


def records(root: Path) -> Iterator[tuple[int, int]]:
    """Log offset and size of each."""
    data, position = (root / "commitlog" / f"{0:020d}").read_bytes(), 0
    while int.from_bytes(data[position : position + 4], "big"):
        size = decode_record(data, position).total_size
        yield position, size
        position += size


def rebuilt(kind: Kind, root: Path) -> None:
    rebuild(root, settings=settings_of(kind))


def repaired(kind: Kind, root: Path) -> None:
    assert repair(plan_repair(root, settings=settings_of(kind))).ok


STEPS: dict[str, Callable[[Kind, Path], None]] = {
    "opened": lambda kind, root: kind.open(root).close(),
    "rebuilt": rebuilt,
    "repaired": repaired,
}


CASES = [
    *product(["closed", "closed by RocketMQ", "killed"], ["repaired", "opened, repaired", "rebuilt, repaired"]),
    ("killed", "opened"),  # after a clean stop opening does not look
]


@pytest.mark.one_in(432)
@pytest.mark.parametrize(("state", "road"), CASES)
@pytest.mark.parametrize("has_own_size", [True, False])
@pytest.mark.parametrize("unit", range(3))
@pytest.mark.parametrize("which", range(2))
@pytest.mark.parametrize("old", [0, 4, MESSAGES])
@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_a_stale_unit_changes_nothing_that_is_served(
    kind: Kind, old: int, which: int, unit: int, has_own_size: bool, state: str, road: str, tmp_path: Path
) -> None:
    """Whatever record it leads to."""
    whole, root, key = tmp_path / "whole", tmp_path / "store", kind.queues[which]
    content = made(kind, whole, old)
    STATES[state](whole)
    own = list(dict.fromkeys(known.commit_log_offset for known in content.queues[key].values()))[unit]
    for offset, size in [one for one in records(whole) if one[0] != own]:
        shutil.copytree(whole, root)
        lead(kind, kind.files(root, key)[0], unit, offset, 0 if has_own_size else size)
        for step in road.split(", "):
            STEPS[step](kind, root)
        with kind.open(root, mode="r") as store:
            for queue in kind.queues:
                assert read_on(store.queue(*queue)) == (content.queues[queue], [], set()), offset
        assert verify(root, settings=settings_of(kind)).ok, offset
        shutil.rmtree(root)


@pytest.mark.parametrize("kind", [PLAIN, BATCH], ids=str)
def test_where_nothing_tells_a_deleted_message_from_the_first_the_files_of_the_queue_are_to_be_restored(
    kind: Kind, tmp_path: Path
) -> None:
    """The deleted topic had one message, which the record of the first one may be a copy of."""
    content = made(kind, tmp_path, 2)
    deleted, size = next(records(tmp_path))
    lead(kind, kind.files(tmp_path, kind.queues[0])[0], 0, deleted, size)
    with pytest.raises(CorruptData, match="restore them from a copy"):
        plan_repair(tmp_path, settings=settings_of(kind))
    first = content.queues[kind.queues[0]][0].commit_log_offset
    steps = [one.next_step for one in verify(tmp_path, settings=settings_of(kind)).problems if one.position == first]
    assert all("restore the files of the queue from a copy" in step for step in steps)
    assert steps


def lead(kind: Kind, path: Path, unit: int, offset: int, size: int) -> None:
    """Let a unit lead to a log offset, with a size unless that is 0."""
    data, begin = bytearray(path.read_bytes()), unit * kind.layout.size
    for name, value in (("commit_log_offset", offset), ("size", size)):
        at = begin + kind.layout.position(name)
        if value or name != "size":
            data[at : at + kind.layout.dtype[name].itemsize] = value.to_bytes(kind.layout.dtype[name].itemsize, "big")
    path.write_bytes(data)
