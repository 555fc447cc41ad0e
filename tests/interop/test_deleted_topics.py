"""A topic that RocketMQ deleted and created again: both serve the new messages, and none of the old ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import stratalog
from interop.drafts import Draft
from interop.rocketmq import RocketMQ
from interop.views import java_settings, one_by_one
from store.kinds import SIZES as ALL_SIZES
from stratalog.config.settings import StoreSettings
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

pytestmark = pytest.mark.one_in(2)

SIZES = {name: value for name, value in ALL_SIZES.items() if "batch" not in name and "_ext" not in name}
SETTINGS = StoreSettings().override(SIZES)
TOPICS = ("deleted", "other")
OLD = 30


def put(rocketmq: RocketMQ, begin: int, end: int) -> None:
    drafts = [
        Draft(topic, 0, b"%03d" % number * 10, None, (), None, {}, 0, 1_700_000_000_000, "127.0.0.1:1", "127.0.0.1:2")
        for number in range(begin, end)
        for topic in TOPICS
    ]
    requests = [request for request, _ in one_by_one(drafts)]
    list(rocketmq.stream("put", messages=requests, line_count=len(requests) + 1))


def opened(rocketmq: RocketMQ, root: Path) -> None:
    assert rocketmq.ask("open", directory=str(root), settings=java_settings(SIZES))["loaded"]


def served(rocketmq: RocketMQ) -> dict[str, Any]:
    return {
        queue["topic"]: (queue["max_offset"], [message["commit_log_offset"] for message in queue["messages"]])
        for queue in rocketmq.ask("read")["queues"]
    }


def ours(root: Path, mode: Any) -> dict[str, Any]:
    with stratalog.open(root, mode=mode, **SIZES) as store:
        assert not store.recovery.left_out
        queues = {topic: store.queue(topic) for topic in TOPICS}
        return {
            topic: (queue.max_offset, [message.commit_log_offset for message in queue.read(queue.min_offset)])
            for topic, queue in queues.items()
        }


@pytest.mark.one_in(36)
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("count", [20, 40])
def test_the_new_messages_are_served(rocketmq: RocketMQ, count: int, is_killed: bool, tmp_path: Path) -> None:
    root, copy = tmp_path / "store", tmp_path / "copy"
    opened(rocketmq, root)
    put(rocketmq, 0, OLD)
    assert rocketmq.ask("delete", names=["deleted"])["deleted"] == 1
    put(rocketmq, OLD, OLD + count)
    expected = served(rocketmq)
    assert expected["deleted"][0] == count
    if is_killed:
        rocketmq.stop()
        rocketmq.start()
    else:
        rocketmq.ask("close")
    for path in ("opened", "rebuilt", "repaired"):
        shutil.copytree(root, copy)
        assert ours(copy, "r") == expected
        report = verify(copy, settings=SETTINGS)
        assert (report.ok, report.deleted_count) == (True, OLD)
        if path == "rebuilt":
            rebuild(copy, settings=SETTINGS)
        if path == "repaired":
            plan = plan_repair(copy, settings=SETTINGS)
            assert not plan.lost
            repair(plan)
        assert ours(copy, "w") == ours(copy, "w") == expected
        opened(rocketmq, copy)
        assert served(rocketmq) == expected
        rocketmq.ask("close")
        shutil.rmtree(copy)


@pytest.mark.parametrize("is_gone", [False, True], ids=["messages in the log", "messages gone"])
def test_a_topic_that_was_only_deleted(rocketmq: RocketMQ, is_gone: bool, tmp_path: Path) -> None:
    """Its messages come back as long as the log has them, and opening says so; later nothing of it does."""
    root = tmp_path / "store"
    with stratalog.open(root, **SIZES) as store:
        for number in range(OLD):
            store.put(TOPICS[0], b"%03d" % number * 10)
        store.put_many(TOPICS[1], [b"%03d" % number * 10 for number in range(200)])
        assert len(store.log.files) > 1
    if is_gone:
        sorted((root / "commitlog").iterdir())[0].unlink()
        with stratalog.open(root, **SIZES) as store:
            assert store.queue(TOPICS[0]).min_offset == store.queue(TOPICS[0]).max_offset == OLD
    opened(rocketmq, root)
    assert rocketmq.ask("delete", names=[TOPICS[0]])["deleted"] == 1
    rocketmq.ask("close")
    with stratalog.open(root, **SIZES) as store:
        assert (TOPICS[0] in store.topics()) is not is_gone
        assert store.queue(TOPICS[0]).max_offset == (0 if is_gone else OLD)
        assert any("topics deleted" in note for note in store.recovery.notes) is not is_gone
        store.put(TOPICS[0], b"new")
    assert verify(root, settings=SETTINGS).ok
