"""Queues whose units stand at other places than their messages' offsets, as RocketMQ leaves them when it appends units
after some that it did not build: they are built again."""

import shutil
from pathlib import Path

import pytest

from store.kinds import BATCH, EXTENDED, KINDS, PLAIN, QUEUE_FILE_UNITS, SIZES, Key, Kind, read_on
from stratalog.config.settings import StoreSettings
from stratalog.layout.names import ABORT, SNAPSHOT, offset_name
from stratalog.layout.queue import FILLER
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

PUTS = 120


def shift(kind: Kind, root: Path, key: Key, begin: int, count: int) -> None:
    """Take `count` units from `begin` on out of a queue; or put fillers in front of it."""
    files, size = kind.files(root, key), kind.layout.size
    units = b"".join(path.read_bytes() for path in files).rstrip(b"\0")
    units += bytes(-len(units) % size)
    if count < 0:
        units = FILLER * -count + units
    else:
        units = units[: begin * size] + units[(begin + count) * size :]
    for path in files:
        path.unlink()
    step = QUEUE_FILE_UNITS * size
    for start in range(0, len(units), step):
        path = kind.directory(root, key) / offset_name(start)
        path.write_bytes(units[start : start + step].ljust(step, b"\0"))


CASES = [(0, 1), (0, 13), (20, 3), (0, -9)]


@pytest.mark.one_in(72)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("which", [slice(0, 1), slice(0, 2)], ids=["one queue", "all queues"])
@pytest.mark.parametrize(("begin", "count"), CASES)
def test_units_at_wrong_places_are_built_again(
    kind: Kind, state: str, which: slice, begin: int, count: int, tmp_path: Path
) -> None:
    if kind is BATCH and count < 0:
        pytest.skip("a batch's unit says itself which offsets it covers")
    root = tmp_path / "store"
    content = kind.made(root, count=PUTS)
    (root / SNAPSHOT).unlink(missing_ok=True)
    for key in kind.queues[which]:
        shift(kind, root, key, begin, count)
    if state != "closed":
        (root / ABORT).touch()
    settings = StoreSettings().override({**SIZES, **kind.settings})
    assert not verify(root, settings=settings).ok
    for mend in ("r", "w", "rebuild", "repair"):
        copy = tmp_path / mend
        shutil.copytree(root, copy)
        if mend == "repair":
            assert repair(plan_repair(copy, settings=settings)).ok
        elif mend == "rebuild":
            rebuild(copy, settings=settings)
        for number in range(2):
            with kind.open(copy, mode="r" if mend == "r" else "w") as store:
                if mend == "w" and not number and kind in (PLAIN, EXTENDED):
                    assert "point to no messages of its own" in "".join(store.recovery.notes)
                for key in kind.queues:
                    found, errors, _ = read_on(store.queue(*key))
                    assert not errors
                    assert found == content.queues[key]
        if mend != "r":
            assert verify(copy, settings=settings).ok


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("state", ["closed", "killed"])
@pytest.mark.parametrize("puts", [4, 2 * QUEUE_FILE_UNITS + 2])
def test_one_unit_that_is_left_outvotes_no_record(kind: Kind, state: str, puts: int, tmp_path: Path) -> None:
    """The newest one, in front: the log's records fit one another, and all are served at their offsets."""
    root = tmp_path / "store"
    content, key = kind.made(root, count=puts), kind.queues[0]
    (root / SNAPSHOT).unlink(missing_ok=True)
    units = b"".join(path.read_bytes() for path in kind.files(root, key)).rstrip(b"\0")
    shift(kind, root, key, 0, -(-len(units) // kind.layout.size) - 1)
    if state != "closed":
        (root / ABORT).touch()
    settings = StoreSettings().override({**SIZES, **kind.settings})
    for mend in ("open", "rebuild", "repair"):
        copy = shutil.copytree(root, tmp_path / mend)
        if mend == "repair":
            assert repair(plan_repair(copy, settings=settings)).ok
        elif mend == "rebuild":
            rebuild(copy, settings=settings)
        for _ in range(2):
            with kind.open(copy) as store:
                for one in kind.queues:
                    found, errors, _ = read_on(store.queue(*one))
                    assert (found, errors) == (content.queues[one], [])
