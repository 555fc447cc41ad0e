"""Light queues to which messages are sent, deleted and created again; the newest one's record names another queue."""

from pathlib import Path

import pytest

from store.kinds import LIGHT, LIGHT_KIND, Content, Kind, Known, read_on
from store.model import Clock
from store.test_recreated_topics import STATES, delete, settings_of
from stratalog.layout.message import HEAD
from stratalog.layout.names import COMMIT_LOG
from stratalog.layout.queue import UNIT
from stratalog.store import special_put
from stratalog.store.message_store import MessageStore
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify


def _put(store: MessageStore, number: int, content: Content) -> None:
    key = LIGHT[number % 2]
    receipt = store.queue(*key).put_raw(b"%d" % number, b"")
    content.add(key, Known(b"%d" % number, None, (), receipt.store_timestamp, receipt.commit_log_offset))


SENT = Kind("sent", LIGHT, LIGHT_KIND.tree, UNIT, _put, LIGHT_KIND.settings)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("bit", range(31))
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("count", [2, 4])
def test_no_deleted_message_is_served_in_its_place(
    bit: int, state: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(special_put, "refuse_light", lambda queue: None)  # RocketMQ takes such messages
    content = Content()
    with SENT.open(tmp_path, clock_ns=Clock()) as store:
        for number in range(12):
            SENT.put(store, number, Content())
            store.put("other", b"%d" % number)
        delete(store, SENT)
        for number in range(count):
            SENT.put(store, number, content)
        store.put("other", b"last")
    STATES[state](tmp_path)
    place = content.queues[LIGHT[1]][0].commit_log_offset + HEAD.position("queue_id") + 3 - bit // 8
    with (tmp_path / COMMIT_LOG / f"{0:020d}").open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1 << bit % 8]))
    repair(plan_repair(tmp_path, settings=settings_of(SENT)))
    assert verify(tmp_path, settings=settings_of(SENT)).ok
    with SENT.open(tmp_path, mode="r") as store:
        for key in LIGHT:
            found = read_on(store.queue(*key))[0]
            assert found.items() <= content.queues[key].items()
            assert store.queue(*key).max_offset == len(content.queues[key])
