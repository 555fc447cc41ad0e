"""Messages of a light queue that stand at smaller offsets than they name.

RocketMQ counts an offset for a message that it then puts in no light queue, or loses units in a power cut. Whatever
comes next it puts at the queue's end, and after a restart it counts on from there.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import LIGHT_KIND, SIZES, Content, Known, read_on
from store.model import Clock, flip
from store.test_recreated_topics import STATES, settings_of
from stratalog.errors import CorruptData
from stratalog.layout.message import HEAD, decode_record
from stratalog.tools.mending import with_light_places
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

QUEUE = LIGHT_KIND.queues[0]
FILE_SIZE = SIZES["mapped_file_size_commit_log"]


def made(root: Path, begin: int, count: int, more: int, ahead: int) -> dict[int, Known]:
    """A store in whose light queue `count` messages name later offsets than theirs, and `more` follow them; returns
    what is to be served."""
    content = Content()
    with LIGHT_KIND.open(root, clock_ns=Clock()) as store:
        number = 0
        while len(content.queues.get(QUEUE, ())) < begin + count + more:
            LIGHT_KIND.put(store, number, content)
            number += 1
    served = content.queues[QUEUE]
    for place in range(begin, begin + count):
        change_place(root, served[place].commit_log_offset, {QUEUE[0]: place + ahead})
    return served


def change_place(root: Path, offset: int, numbers: dict[str, int]) -> None:
    base, path = max((int(path.name), path) for path in (root / "commitlog").iterdir() if int(path.name) <= offset)
    data = bytearray(path.read_bytes())
    at = offset - base
    record = bytes(data[at : at + decode_record(data, at, verify=False).total_size])
    changed = with_light_places(record, numbers)
    assert changed
    data[at : at + len(record)] = changed
    path.write_bytes(data)


def nothing(root: Path, before: Known) -> None:
    pass


def message_before(root: Path, before: Known) -> None:
    path = root / "commitlog" / f"{before.commit_log_offset // FILE_SIZE * FILE_SIZE:020d}"
    flip(path, before.commit_log_offset % FILE_SIZE + HEAD.size)


def parents_units(root: Path, before: Known) -> None:
    *_, newest = sorted((root / "consumequeue" / "parent" / "0").iterdir())
    newest.unlink()


ROADS = [("repaired",), ("rebuilt", "repaired")]
CASES = [(nothing, road) for road in [("read",), ("opened", "repaired"), *ROADS]]
CASES += [(damage, road) for damage in (message_before, parents_units) for road in ROADS]
"""After a message in front is damaged nothing tells an opening where they stood."""


@pytest.mark.one_in(100)
@pytest.mark.parametrize(("damage", "path"), CASES)
@pytest.mark.parametrize("state", ["closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("more", [0, 1, 3])
@pytest.mark.parametrize("ahead", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("begin", [10, 17, 30])
def test_they_stay_there(
    begin: int, count: int, ahead: int, more: int, state: str, path: tuple[str, ...],
    damage: Callable[[Path, Known], None], tmp_path: Path,
) -> None:  # fmt: skip
    served = made(tmp_path, begin, count, more, ahead)
    STATES[state](tmp_path)
    damage(tmp_path, served[begin - 1])
    if damage is message_before:
        del served[begin - 1]
    settings = settings_of(LIGHT_KIND)
    for step in path:
        if step == "opened":
            LIGHT_KIND.open(tmp_path).close()
        elif step == "rebuilt":
            with pytest.raises(CorruptData, match="Nothing was changed; `stratalog repair"):
                rebuild(tmp_path, settings=settings)
        elif step == "repaired":
            plan = plan_repair(tmp_path, settings=settings)
            assert [*plan.lost_places, *plan.missing] == []
            assert len(plan.lost) == (damage is message_before)
            assert repair(plan).ok
    with LIGHT_KIND.open(tmp_path, mode="r") as store:
        found, errors, _ = read_on(store.queue(*QUEUE))
    if path == ("read",):
        assert found.items() <= served.items()
        assert len(found) + len(errors) >= len(served)
        assert not verify(tmp_path, settings=settings).ok
    else:
        assert (found, errors) == (served, [])
