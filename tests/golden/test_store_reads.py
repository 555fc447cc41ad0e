"""Our store opens what RocketMQ wrote, read-only, and answers what RocketMQ answers."""

import hashlib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import stratalog
from golden.cases import GoldenCase, golden_case, golden_names
from stratalog.errors import OffsetOutOfRange
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore

FAMILIES = ("plain-", "boundary-", "index-", "batch-", "ipv6", "long-topic", "halt-", "torn-", "prop-crc-")
CASES = [name for name in golden_names("local") if name.removeprefix("local/").startswith(FAMILIES)]
TAG_KEY = "T#"


def open_case(case: GoldenCase, root: Path, *, sizes_from_disk: bool = False) -> MessageStore:
    conf = case.about["conf"]
    return stratalog.open(
        root,
        mode="r",
        mapped_file_size_commit_log=conf["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=conf["mappedFileSizeConsumeQueue"],
        **(
            {}
            if sizes_from_disk
            else {"max_hash_slot_num": conf["maxHashSlotNum"], "max_index_num": conf["maxIndexNum"]}
        ),
        compatibility="5.3" if case.release.startswith("5.3") else "5.5",
    )


def fingerprint(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def as_expected(message: Message) -> dict[str, Any]:
    return {
        "recordTopic": message.topic,
        "recordQueueId": message.queue_id,
        "recordQueueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": str(message.born_host),
        "storeHost": str(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "msgId": message.message_id,
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "propertiesBytes": len(message.raw_properties),
    }


def test_the_required_cases_are_all_there() -> None:
    assert len(CASES) >= 18, CASES


@pytest.mark.parametrize("name", CASES)
def test_queues_messages_times_and_keys_are_answered_as_rocketmq_does(name: str, tmp_path: Path) -> None:
    case = golden_case(name)
    root = case.unpack_store(tmp_path)
    before = fingerprint(root)
    with open_case(case, root) as store:
        check_queues(case, store)
        check_messages(case, store)
        for line in case.expected("answer"):
            check_answer(line, store)
    assert fingerprint(root) == before, "a store opened read-only changed on disk"


EMPTY_INDEX = ("halt", "boundary-5.3.3")
"""Without an item, a file's size alone does not tell slots from items."""


@pytest.mark.parametrize("name", [name for name in CASES if not any(part in name for part in EMPTY_INDEX)])
def test_the_sizes_of_index_files_are_found_from_what_they_hold(name: str, tmp_path: Path) -> None:
    case = golden_case(name)
    with open_case(case, case.unpack_store(tmp_path), sizes_from_disk=True) as store:
        conf = case.about["conf"]
        assert store.settings.index_slot_count == conf["maxHashSlotNum"]
        assert store.settings.index_item_capacity == conf["maxIndexNum"]


def check_queues(case: GoldenCase, store: MessageStore) -> None:
    expected = {
        (line["topic"], line["queueId"]): (line["minOffset"], line["maxOffset"]) for line in case.expected("queue")
    }
    assert {key for key, (_, end) in expected.items() if end} == set(store.queues())
    for (topic, queue_id), (low, high) in expected.items():
        if high:
            queue = store.queue(topic, queue_id)
            assert (queue.min_offset, queue.max_offset) == (low, high), (topic, queue_id)


def check_messages(case: GoldenCase, store: MessageStore) -> None:
    expected = case.expected("message")
    assert expected
    reading = {key: store.queue(*key).read() for key in store.queues()}
    for line in expected:
        message = next(reading[line["topic"], line["queueId"]])
        found = as_expected(message)
        assert found == {key: line[key] for key in found}
        stored = [tuple(pair) for pair in line["properties"]]
        assert message.properties == {name: value for name, value in stored if name and value}
    assert all(next(rest, None) is None for rest in reading.values())


def check_answer(line: dict[str, Any], store: MessageStore) -> None:
    question = line["question"]
    if question["ask"] == "time":
        queue = store.queue(question["topic"], question["queueId"])
        assert queue.offset_at(question["time"]) == line["lower"], line
        assert queue.offset_at(question["time"], bound="upper") == line["upper"], line
    elif question["ask"] == "key":
        key = (TAG_KEY if question.get("indexType") == "T" else "") + question["key"]
        assert store.index
        offsets = store.index.offsets(question["topic"], key, begin=question["begin"], end=question["end"])
        assert sorted(islice(offsets, min(question["max"], 64))) == line["commitLogOffsets"], line
    elif question["ask"] == "get":
        check_get(line, store)


def check_get(line: dict[str, Any], store: MessageStore) -> None:
    """Offsets outside the queue are refused, and reading goes on where RocketMQ says."""
    question = line["question"]
    queue = store.queue(question["topic"], question["queueId"])
    if line["status"] in ("OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_BADLY"):
        with pytest.raises(OffsetOutOfRange) as refused:
            queue.read(question["offset"])
        assert refused.value.next_offset == line["nextBeginOffset"]
    elif line["status"] == "NO_MESSAGE_IN_QUEUE":
        assert queue.max_offset == 0
    else:
        found = [message.queue_offset for message in queue.read(question["offset"], count=len(line["queueOffsets"]))]
        assert found == line["queueOffsets"]
