"""The messages that are left of a log full of damage keep their places, whatever is opened or built again."""

from itertools import combinations
from pathlib import Path

import pytest

from store.kinds import BATCH, EXTENDED, LIGHT_EXTENDED, LIGHT_KIND, PLAIN, Kind, read_on
from store.test_changed_identity import Reports
from store.test_recreated_topics import STATES, walked

COUNT = 6
SURVIVORS = [few for number in (1, 2, 3) for few in combinations(range(COUNT), number)]
ROADS = ["opened", "rebuilt", "opened, opened", "rebuilt, opened", "rebuilt, rebuilt", "opened, rebuilt, opened",
         "rebuilt, opened, opened", "rebuilt, opened, repaired", "repaired, opened"]  # fmt: skip


@pytest.mark.one_in(1620)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("left", SURVIVORS, ids=str)
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_what_is_left_of_the_log_keeps_its_place(
    kind: Kind, step: int, left: tuple[int, ...], road: str, state: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = kind.made(root, count=0)
    with kind.open(root) as store:
        for number in range(0, COUNT * step, step):
            kind.put(store, number, content)
    known = {known.commit_log_offset for queue in content.queues.values() for known in queue.values()}
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    for number, place in enumerate(sorted(known)):
        if number not in left:
            data[place : place + 40] = bytes(40)
    path.write_bytes(data)
    STATES[state](root)
    reports: Reports = walked(kind, root, road)
    kept = {place for number, place in enumerate(sorted(known)) if number in left}
    newest = max(known)
    with kind.open(root, mode="r") as store:
        for key, queue in content.queues.items():
            found = read_on(store.queue(*key))[0]
            expected = {number: one for number, one in queue.items() if one.commit_log_offset in kept}
            assert found == expected, (key, reports.texts)
            is_torn = state != "closed" and newest not in kept  # the log ends before it
            assert store.queue(*key).max_offset == len(queue) or is_torn
