"""A record CRC no longer holds, and the damage is in what names the record's light queues: a repair does not take that
for a place that was given."""

import shutil
from pathlib import Path

import pytest

from store.kinds import LIGHT_KIND, Content, Key
from store.test_changed_identity import offsets_of
from store.test_recreated_topics import STATES, settings_of
from stratalog.layout.light import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

PUTS = 7


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    root = tmp_path_factory.mktemp("original") / "store"
    return root, LIGHT_KIND.made(root, count=PUTS, enabled_append_prop_crc=True)


@pytest.mark.one_in(144)
@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("number", [0, 2, 5, PUTS - 1])
@pytest.mark.parametrize("name", [MULTI_QUEUE_OFFSET, MULTI_DISPATCH])
@pytest.mark.parametrize("state", ["closed", "killed"])
def test_a_repair_counts_no_place_that_was_never_given(
    state: str, name: str, number: int, bit: int, original: tuple[Path, Content], tmp_path: Path
) -> None:  # fmt: skip
    source, content = original
    (log,) = (source / "commitlog").iterdir()
    data = log.read_bytes()
    offset = sorted({known.commit_log_offset for queue in content.queues.values() for known in queue.values()})[number]
    begin = data.index(f"{name}\1".encode(), offset) + len(name) + 1
    given = {(key, one) for key, queue in content.queues.items() for one in queue} | _own_places(content)
    for at in range(begin, data.index(b"\2", begin)):
        root = shutil.copytree(source, tmp_path / str(at))
        (root / "commitlog" / log.name).write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        STATES[state](root)
        plan = plan_repair(root, settings=settings_of(LIGHT_KIND))
        assert offsets_of(plan.lost_ranges) <= given
        assert repair(plan).ok
        with LIGHT_KIND.open(root, mode="r") as store:
            for key, queue in content.queues.items():
                found = {message.queue_offset: message.body for message in store.queue(*key).read()}
                whole = {one: known.body for one, known in queue.items() if known.commit_log_offset != offset}
                assert found.items() >= whole.items()
                assert store.queue(*key).max_offset == len(queue)


def _own_places(content: Content) -> set[tuple[Key, int]]:
    """The places that the records have in their own queue."""
    offsets = {known.commit_log_offset for queue in content.queues.values() for known in queue.values()}
    return {(("parent", number % 2), number // 2) for number in range(len(offsets))}
