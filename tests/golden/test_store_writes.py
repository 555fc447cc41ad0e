"""From what was put and when, our store makes the bytes that RocketMQ made."""

import base64
from pathlib import Path
from typing import Any

import pytest

import stratalog
from golden.cases import GoldenCase, golden_case, golden_names
from stratalog.errors import IllegalMessage
from stratalog.layout.message import BODY_SIZE_MAX, Host
from stratalog.layout.names import COMMIT_LOG, CONSUME_QUEUE, INDEX
from stratalog.layout.properties import encode_properties
from stratalog.store.message_store import MessageStore

FAMILIES = ("plain-", "boundary-", "index-5", "batch-", "ipv6", "retry-dlq", "delay", "prop-crc")
CASES = [name for name in golden_names("local") if name.removeprefix("local/").startswith(FAMILIES)]


class Clock:
    """Store time as the golden run had it: set before each put."""

    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms * 1_000_000


def replay(case: GoldenCase, root: Path) -> None:
    """Put the plan's messages at the times that RocketMQ put them."""
    conf, clock = case.about["conf"], Clock()
    store = stratalog.open(
        root,
        clock_ns=clock,
        mapped_file_size_commit_log=conf["mappedFileSizeCommitLog"],
        mapped_file_size_consume_queue=conf["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=conf["maxHashSlotNum"],
        max_index_num=conf["maxIndexNum"],
        max_message_size=conf.get("maxMessageSize", BODY_SIZE_MAX),
        enabled_append_prop_crc=conf.get("enabledAppendPropCRC") == "true",
        compatibility="5.3" if case.release.startswith("5.3") else "5.5",
    )
    answers = {answer["op"]: answer for answer in case.puts()}
    with store:
        for number, operation in enumerate(case.plan()):
            if number not in answers or operation["op"] not in ("put", "batch"):
                continue
            answer = answers[number]
            clock.now_ms = answer.get("storeTimestamp") or clock.now_ms
            receipts = put(store, operation, case)
            assert receipts[0].commit_log_offset == answer["commitLogOffset"]
            assert receipts[0].queue_offset == answer["queueOffset"]
            assert ",".join(receipt.message_id for receipt in receipts) == answer["msgId"]


def put(store: MessageStore, operation: dict[str, Any], case: GoldenCase) -> list[stratalog.Receipt]:
    queue = store.queue(operation["topic"], operation["queueId"])
    if operation["op"] == "batch":
        return put_batch(queue, operation, case)
    hosts = hosts_of(operation)
    receipt = queue.put_record(
        base64.b64decode(operation["body"]) or bytes(operation.get("bodyZeros", 0)),
        stored_properties(operation),
        flag=operation.get("flag", 0),
        sys_flag=operation.get("sysFlag", 0),
        born_timestamp=operation["born"],
        reconsume_times=operation.get("reconsume", 0),
        prepared_transaction_offset=operation.get("prepared", 0),
        **hosts,
    )
    return [receipt]


HOSTS = {"bornHost": "born_host", "storeHost": "store_host"}
GOLDEN_BORN_HOST = "10.0.0.1:50000"


def hosts_of(operation: dict[str, Any]) -> dict[str, Host]:
    given = {"bornHost": GOLDEN_BORN_HOST} | operation
    return {name: Host.parse(given[key]) for key, name in HOSTS.items() if key in given}


def put_batch(queue: stratalog.Queue, operation: dict[str, Any], case: GoldenCase) -> list[stratalog.Receipt]:
    bodies = [base64.b64decode(message["body"]) for message in operation["messages"]]
    own = [client_properties(message["props"]) for message in operation["messages"]]
    if case.release.startswith("5.3"):
        shared = stored_properties(operation)
        own = [text + shared for text in own]
    flags = [message.get("flag", 0) for message in operation["messages"]]
    hosts, born = hosts_of(operation), operation["born"]
    if "store_host" in hosts:
        rows = zip(bodies, own, flags, strict=True)
        return [queue.put_record(body, text, flag=flag, born_timestamp=born, **hosts) for body, text, flag in rows]
    return queue.put_many(bodies, own, flags=flags, born_timestamp=born, **hosts)


def client_properties(pairs: list[list[str]]) -> bytes:
    """A batch's members come as the client wrote them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def stored_properties(operation: dict[str, Any]) -> bytes:
    if "propsText" in operation:
        return str(operation["propsText"]).encode()
    return encode_properties(dict(operation.get("props", [])))


@pytest.mark.parametrize("name", CASES)
def test_the_same_puts_at_the_same_times_make_the_same_bytes(name: str, tmp_path: Path) -> None:
    case = golden_case(name)
    replay(case, tmp_path / "ours")
    theirs = dict(case.store_files())
    ours = {str(path.relative_to(tmp_path / "ours")): path for path in (tmp_path / "ours").rglob("*") if path.is_file()}
    compared = 0
    for path, data in sorted(theirs.items()):
        if path.split("/")[0] in (COMMIT_LOG, CONSUME_QUEUE):
            assert ours[path].read_bytes() == data, path
            compared += 1
    assert compared
    index_files = [data for path, data in sorted(theirs.items()) if path.split("/")[0] == INDEX]
    our_index = [ours[path].read_bytes() for path in sorted(ours) if path.split("/")[0] == INDEX]
    assert our_index == index_files


def test_puts_that_rocketmq_refuses_are_refused_and_write_nothing(tmp_path: Path) -> None:
    case = golden_case("local/edge")
    answers = {answer["op"]: answer for answer in case.puts()}
    refused = [
        op for number, op in enumerate(case.plan()) if answers.get(number, {}).get("status", "PUT_OK") != "PUT_OK"
    ]
    assert len(refused) == 2
    limit = case.about["conf"]["maxMessageSize"]
    sizes = {"mapped_file_size_commit_log": 1 << 18, "max_hash_slot_num": 100, "max_index_num": 400}
    with stratalog.open(tmp_path / "store", max_message_size=limit, **sizes) as store:
        for operation in refused:
            with pytest.raises(IllegalMessage, match="limit"):
                put(store, operation, case)
        assert store.log.end_offset == 0


def test_the_required_cases_are_all_there() -> None:
    assert len(CASES) >= 9, CASES
