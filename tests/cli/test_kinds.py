"""Every command on a store of every kind of queue."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from cli.calls import Call
from store.kinds import BATCH, KINDS, Content, Kind
from store.model import Clock
from stratalog.cli.follow import follow

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def lines_of(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@every_kind
def test_get_query_and_inspect_show_the_messages(kind: Kind, tmp_path: Path, call: Call) -> None:
    content = kind.made(tmp_path)
    mapped = json.loads(call("inspect", tmp_path, "--json").stdout)
    shown = {(queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"]) for queue in mapped["queues"]}
    for (topic, queue_id), messages in content.queues.items():
        assert shown[topic, queue_id] == (0, len(messages))
        found = lines_of(call("get", tmp_path, topic, "--queue", queue_id, "--offset", 3, "--count", 6, "--json"))
        expected = [(at, messages[at].body.decode(), topic, queue_id) for at in range(3, 9)]
        assert [(one["queueOffset"], one["body"], one["topic"], one["queueId"]) for one in found] == expected
        at, known = list(messages.items())[-1]
        (found,) = lines_of(call("query", tmp_path, topic, known.keys[1], "--json"))
        assert (found["queueOffset"], found["body"], found["topic"]) == (at, known.body.decode(), topic)


@every_kind
def test_dump_shows_units_and_records_of_a_queue_and_of_its_offsets(kind: Kind, tmp_path: Path, call: Call) -> None:
    content = kind.made(tmp_path)
    for (topic, queue_id), messages in content.queues.items():
        place = ("dump", tmp_path, "--type", kind.tree, "--topic", topic, "--queue", queue_id, "--json")
        units = [line for line in lines_of(call(*place)) if "commitLogOffset" in line]
        places = sorted({known.commit_log_offset for known in messages.values()})
        assert [unit["commitLogOffset"] for unit in units] == places
        records = lines_of(call("dump", tmp_path, "--type", "commitlog", *place[4:]))
        assert [record["commitLogOffset"] for record in records] == places
        for last in (len(messages) - 1, len(messages) // 2):
            asked = ("--from-offset", last, "--to-offset", last)
            units = [line for line in lines_of(call(*place, *asked)) if "commitLogOffset" in line]
            records = lines_of(call("dump", tmp_path, "--type", "commitlog", *place[4:], *asked))
            for found in (units, records):
                assert [one["commitLogOffset"] for one in found] == [messages[last].commit_log_offset]


@every_kind
def test_tail_shows_the_last_messages_and_those_that_come(kind: Kind, tmp_path: Path) -> None:
    content, clock = Content(), Clock()
    with kind.open(tmp_path, clock_ns=clock) as store:
        kind.fill(store, content, count=12)
        store.flush()
        topic, queue_id = kind.queues[0]
        seen: list[tuple[int, bytes]] = []
        count = len(content.queues[topic, queue_id])
        done = threading.Event()

        def watch() -> None:
            for message in follow(tmp_path, topic, queue_id, last=2):
                seen.append((message.queue_offset, message.body))
                if len(seen) == 2:
                    done.set()
                if message.queue_offset >= count + 2:
                    return

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        assert done.wait(30)
        kind.fill(store, content, begin=12, count=12)
        store.flush()
        store.dispatch()
        thread.join(30)
    messages = content.queues[topic, queue_id]
    assert seen == [(at, messages[at].body) for at in range(count - 2, count + 3)]


@every_kind
def test_a_damaged_queue_is_told_by_verify_shown_by_get_and_rebuilt(kind: Kind, tmp_path: Path, call: Call) -> None:
    """Without being told of sizes or kinds."""
    content = kind.made(tmp_path)
    assert call("verify", tmp_path).exit_code == 0
    topic, queue_id = kind.queues[0]
    files = kind.files(tmp_path, kind.queues[0])
    whole = {file: file.read_bytes() for file in files}
    files[1].write_bytes(files[0].read_bytes())
    assert call("verify", tmp_path).exit_code == 1
    assert call("get", tmp_path, topic, "--queue", queue_id, "--count", 1000).exit_code in (0, 1)
    result = call("rebuild", tmp_path, "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["bitmapsLost"] == 0
    assert {file: file.read_bytes() for file in files} == whole
    assert call("verify", tmp_path).exit_code == 0
    found = lines_of(call("get", tmp_path, topic, "--queue", queue_id, "--count", 1000, "--json"))
    assert len(found) == len(content.queues[kind.queues[0]])


def test_put_stores_a_message_of_a_batch_topic(tmp_path: Path, call: Call) -> None:
    content = BATCH.made(tmp_path)
    assert call("put", tmp_path, "batches", "one more").exit_code == 0
    count = len(content.queues["batches", 0])
    (found,) = lines_of(call("get", tmp_path, "batches", "--offset", count, "--json"))
    assert found["body"] == "one more"
