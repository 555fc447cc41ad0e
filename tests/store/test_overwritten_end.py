"""The last records of a store that was closed properly were overwritten: they are lost, and no queue offset is given
again, whoever closed it."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import BATCH, EXTENDED, LIGHT_EXTENDED, LIGHT_KIND, PLAIN, Content, Kind, read_on
from store.test_recreated_topics import STATES, settings_of
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

FILLS: dict[str, Callable[[int], bytes]] = {
    "zeros": bytes,
    "garbage": random.Random(7).randbytes,
    "text": lambda size: (b"2026-11-27 out of memory\n" * size)[:size],
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("first", ["opening", "repair"])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ"])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("lost_count", [1, 2, 3, 10])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_it_is_damage_and_the_offsets_are_kept(
    kind: Kind, lost_count: int, fill: str, state: str, first: str, tmp_path: Path
) -> None:
    content = kind.made(tmp_path, count=40)
    ends = {key: len(queue) for key, queue in content.queues.items()}
    STATES[state](tmp_path)
    begin = sorted({one.commit_log_offset for queue in content.queues.values() for one in queue.values()})[-lost_count]
    file = next(path for path in sorted((tmp_path / "commitlog").iterdir(), reverse=True) if int(path.name) <= begin)
    with file.open("r+b") as log:
        log.seek(begin - int(file.name))
        log.write(FILLS[fill](min(4096, int(file.name) + file.stat().st_size - begin)))
    kept = {
        key: {number: known for number, known in queue.items() if known.commit_log_offset < begin}
        for key, queue in content.queues.items()
    }
    assert not verify(tmp_path, settings=settings_of(kind)).ok
    if first == "opening":
        with kind.open(tmp_path, mode="r") as store:
            assert [one.begin for one in store.recovery.quarantined] == [begin]
        for _ in range(2):
            with kind.open(tmp_path) as store:
                assert "repair" in store.recovery.warning
                for key, end in ends.items():
                    assert store.queue(*key).max_offset == end
                    assert read_on(store.queue(*key))[0] == kept[key]
    plan = plan_repair(tmp_path, settings=settings_of(kind))
    lost = {(*key, number) for key in ends for number in content.queues[key].keys() - kept[key].keys()}
    named = {(*key, number) for *key, first, end in plan.missing for number in range(first, end)}
    message_count = len(lost) if kind is BATCH else lost_count  # a light message is in several queues
    assert plan.lost_count == message_count if not named else not plan.lost_count and lost <= named
    assert repair(plan).ok
    with kind.open(tmp_path) as store:
        assert not store.recovery.warning
        for key, end in ends.items():
            assert store.queue(*key).max_offset == end
            assert read_on(store.queue(*key))[0] == kept[key]
        kind.put(store, 100, Content())
    assert not plan_repair(tmp_path, settings=settings_of(kind)).actions
