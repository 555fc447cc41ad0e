"""Messages that a consumer sent back: RocketMQ stores them in the topic for retries with all their properties, also
those that gave the first one its places in light queues. They stand in none."""

from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import LIGHT_KIND, Content, read_on
from store.model import Clock
from store.test_recreated_topics import STATES, settings_of
from stratalog.layout.light import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

COUNT = 24


def made(root: Path, sent_back: list[int]) -> Content:
    content = Content()
    with LIGHT_KIND.open(root, clock_ns=Clock()) as store:
        for number in range(COUNT):
            LIGHT_KIND.put(store, number, content)
            if number in sent_back:
                key = LIGHT_KIND.queues[1]
                queue_offset = max(content.queues[key], default=0)
                text = f"{MULTI_DISPATCH}\x01{key[0]}\x02{MULTI_QUEUE_OFFSET}\x01{queue_offset}\x02"
                store.queue("%RETRY%group").put_raw(b"again", text.encode())
    return content


def nothing(root: Path) -> None:
    pass


def unit_bit(root: Path) -> None:
    path = LIGHT_KIND.files(root, LIGHT_KIND.queues[1])[0]
    data = bytearray(path.read_bytes())
    data[47] ^= 1
    path.write_bytes(data)


def files_lost(root: Path) -> None:
    for path in LIGHT_KIND.files(root, LIGHT_KIND.queues[1]):
        path.unlink()


def own_queue_lost(root: Path) -> None:
    for path in (root / "consumequeue" / "parent" / "0").iterdir():
        path.unlink()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("damage", [nothing, unit_bit, files_lost, own_queue_lost])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("sent_back", [[1], [2, 7, 8], list(range(1, COUNT))], ids=len)
@pytest.mark.parametrize("path", ["read", "opened", "repaired", "rebuilt"])
def test_every_message_is_served_in_its_light_queues(
    sent_back: list[int], state: str, damage: Callable[[Path], None], path: str, tmp_path: Path
) -> None:
    content = made(tmp_path, sent_back)
    STATES[state](tmp_path)
    damage(tmp_path)
    settings = settings_of(LIGHT_KIND)
    if damage is nothing:
        assert verify(tmp_path, settings=settings).ok
    if path == "repaired" or damage is unit_bit:
        plan = plan_repair(tmp_path, settings=settings)
        assert not plan.lost
        repair(plan)
    elif path == "rebuilt":
        rebuild(tmp_path, settings=settings)
    elif path == "opened" or damage is files_lost:
        with LIGHT_KIND.open(tmp_path) as store:
            assert not store.recovery.left_out
    if path == "rebuilt" or damage in (files_lost, own_queue_lost):
        rebuild(tmp_path, settings=settings)
    with LIGHT_KIND.open(tmp_path, mode="r") as store:
        for key in LIGHT_KIND.queues:
            assert read_on(store.queue(*key)) == (content.queues[key], [], set())
    assert verify(tmp_path, settings=settings).ok
