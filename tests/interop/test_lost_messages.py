"""RocketMQ consumes queues in which our recovery passed over damage: every message that is left, and no exception."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from interop.drafts import drafts
from interop.rocketmq import RocketMQ
from interop.views import TIME_MAX, java_settings, open_ours
from stratalog.layout.message import HEAD
from stratalog.layout.names import ABORT, CHECKPOINT, COMMIT_LOG, offset_name
from stratalog.layout.queue import UNIT

SIZES: Mapping[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 50 * UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
}
COUNTS = {"Long": 60, "Short": 20, "Last": 1}
BEHIND_COUNT = 400
"""Messages behind the damage, five log files: RocketMQ cuts the log where damage is in the part that it checks."""
LOST = {
    "middle": {"Long": [30, 31, 49, 50], "Short": [5]},
    "end": {"Long": [58, 59], "Short": [19]},
    "front": {"Long": [0, 1], "Short": [0]},
    "whole queue": {"Last": [0]},
}


def recovered(root: Path, rocketmq: RocketMQ, lost: Mapping[str, list[int]]) -> list[dict[str, Any]]:
    """A store that went on without these messages, closed; returns a question for each message that is left."""
    with open_ours(root, dict(SIZES), rocketmq) as store:
        places = {
            (topic, number): store.put(topic, b"%d" % number + bytes(300), keys=[f"{topic}-{number}"], tags="TagA")
            for topic, count in COUNTS.items()
            for number in range(count)
        }
        for number in range(BEHIND_COUNT):
            store.put("Behind", bytes(700), keys=[f"behind-{number}"])
    for topic, numbers in lost.items():
        for number in numbers:
            wreck(root, places[topic, number].commit_log_offset)
    (root / CHECKPOINT).unlink()
    (root / ABORT).touch()
    with open_ours(root, dict(SIZES), rocketmq) as store:
        assert store.recovery.quarantined
    return [
        {"topic": topic, "key": f"{topic}-{number}", "begin": 0, "end": TIME_MAX, "limit": 9, "is": place}
        for (topic, number), place in places.items()
        if number not in lost.get(topic, [])
    ]


def wreck(root: Path, commit_log_offset: int) -> None:
    """Make a record none."""
    size = SIZES["mapped_file_size_commit_log"]
    with (root / COMMIT_LOG / offset_name(commit_log_offset // size * size)).open("r+b") as file:
        file.seek(commit_log_offset % size + HEAD.position("magic"))
        file.write(b"\0")


def consumed(rocketmq: RocketMQ) -> dict[str, list[tuple[int, int]]]:
    """By topic: offset in the queue, and the offset that the message itself has, of all that can be pulled."""
    return {
        queue["topic"]: [(message["unit_offset"], message["queue_offset"]) for message in queue["messages"]]
        for queue in rocketmq.ask("read")["queues"]
    }


def put_one_each(rocketmq: RocketMQ) -> dict[str, int]:
    """Put a message into each queue; returns their offsets."""
    (draft,) = drafts(1, 1)
    messages = [draft.as_json() | {"topic": topic, "queue_id": 0} for topic in COUNTS]
    *receipts, _ = rocketmq.stream("put", messages=messages, line_count=len(messages) + 1)
    return {topic: receipt["queue_offset"] for topic, receipt in zip(COUNTS, receipts, strict=True)}


@pytest.mark.one_in(36)
@pytest.mark.parametrize("case", LOST)
def test_a_consumer_gets_every_message_that_is_left(rocketmq: RocketMQ, case: str, tmp_path: Path) -> None:
    lost, root = LOST[case], tmp_path / "store"
    questions = recovered(root, rocketmq, lost)
    for more in range(1, 3):  # as we left it, and after a clean stop of RocketMQ's
        assert rocketmq.ask("open", directory=str(root), settings=java_settings(dict(SIZES)))["loaded"]
        assert put_one_each(rocketmq) == {topic: count + more - 1 for topic, count in COUNTS.items()}
        for topic, pulled in consumed(rocketmq).items():
            if topic == "Behind":
                continue
            there = [number for number in range(COUNTS[topic] + more) if number not in lost.get(topic, [])]
            assert sorted({own for _, own in pulled}) == there, topic
            for offset, own in pulled:  # in place of a lost one a neighbour comes again
                assert own == offset or (offset in lost[topic] and own in (min(there), offset - 1, offset - 2)), topic
        asked = [{name: value for name, value in question.items() if name != "is"} for question in questions]
        found = rocketmq.ask("ask", questions=asked)["answers"]
        assert found == [[question["is"].commit_log_offset] for question in questions]
        times = [question | {"queue_id": 0, "time": question["is"].store_timestamp} for question in questions]
        for question, (low, high) in zip(times, timed(rocketmq, times), strict=True):
            assert low <= question["is"].queue_offset <= high + len(lost.get(question["topic"], []))
        rocketmq.ask("close")
    with open_ours(root, dict(SIZES), rocketmq) as store:
        for topic, count in COUNTS.items():
            there = [number for number in range(count + 2) if number not in lost.get(topic, [])]
            assert [message.queue_offset for message in store.queue(topic).read()] == there


def timed(rocketmq: RocketMQ, questions: list[dict[str, Any]]) -> list[list[int]]:
    asked = [{name: question[name] for name in ("topic", "queue_id", "time")} for question in questions]
    answers: list[list[int]] = rocketmq.ask("ask", questions=asked)["answers"]
    return answers


@pytest.mark.one_in(36)
@pytest.mark.parametrize("case", LOST)
def test_after_a_crash_a_consumer_is_never_stuck(rocketmq: RocketMQ, case: str, tmp_path: Path) -> None:
    """RocketMQ may cut the log at the damage then, as it always did; what it keeps of the queues it can serve."""
    lost, root = LOST[case], tmp_path / "store"
    recovered(root, rocketmq, lost)
    assert rocketmq.ask("open", directory=str(root), settings=java_settings(dict(SIZES)))["loaded"]
    put_one_each(rocketmq)
    rocketmq.stop()
    assert rocketmq.ask("open", directory=str(root), settings=java_settings(dict(SIZES)))["loaded"]
    given = put_one_each(rocketmq)
    for topic, pulled in consumed(rocketmq).items():
        if topic != "Behind":
            offsets = [own for _, own in pulled]
            assert offsets[-1] == given[topic]
            assert set(range(given[topic])) - set(offsets) <= set(lost.get(topic, [])), topic
    rocketmq.ask("close")


def test_a_consumer_of_a_batch_topic_gets_every_batch_that_is_left(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """Where batches are missing between two RocketMQ goes on by itself; at the end their offsets stay given."""
    root = tmp_path / "store"
    with open_ours(root, dict(SIZES), rocketmq) as store:
        store.create_topic("Batches", queues=1, queue_type="BatchCQ")
        batch = store.queue("Batches", 0)
        places = [batch.put_batch([b"one", b"two"], unique_key=f"{number}").commit_log_offset for number in range(20)]
        for number in range(BEHIND_COUNT):
            store.put("Behind", bytes(700), keys=[f"behind-{number}"])
    lost, there = (7, 18, 19), [number for number in range(20) if number not in (7, 18, 19)]
    for number in lost:
        wreck(root, places[number])
    (root / CHECKPOINT).unlink()
    (root / ABORT).touch()
    with open_ours(root, dict(SIZES), rocketmq) as store:
        assert store.queue("Batches", 0).max_offset == 40
    for more in range(1, 3):
        assert rocketmq.ask("open", directory=str(root), settings=java_settings(dict(SIZES)))["loaded"]
        message = drafts(1, 1)[0].as_json() | {"topic": "Batches", "queue_id": 0}
        receipt, _ = rocketmq.stream("put", messages=[message], line_count=2)
        assert receipt["queue_offset"] == 39 + more
        own = [own for _, own in consumed(rocketmq)["Batches"]]
        assert sorted({*own}) == [*(2 * number for number in there), *range(40, 40 + more)]
        rocketmq.ask("close")
    with open_ours(root, dict(SIZES), rocketmq) as store:
        members = [offset for number in there for offset in (2 * number, 2 * number + 1)]
        assert [message.queue_offset for message in store.queue("Batches", 0).read()] == [*members, 40, 41]
