"""Batch topics, light queues and queue extensions: what RocketMQ wrote is read, and from the same puts the same bytes
are written."""

import base64
import shutil
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

import stratalog
from golden.cases import GoldenCase, golden_case
from golden.test_store_writes import Clock, client_properties, hosts_of, stored_properties
from stratalog.errors import IllegalMessage
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    INDEX,
    LMQ_PREFIX,
)
from stratalog.layout.queue import UNIT, is_extension_address
from stratalog.store.disk import Disk
from stratalog.store.extension import Extension, ExtensionFiles
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.store.open_files import OpenFiles

BATCHES, LIGHT, POISON, EXTENDED = (
    golden_case(f"local/{name}") for name in ("inner-batch", "lmq", "lmq-poison", "queue-ext")
)
CASES = (BATCHES, LIGHT, POISON, EXTENDED)
Line = dict[str, Any]

_KEYS = {
    "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "mapperFileSizeBatchConsumeQueue": "mapper_file_size_batch_consume_queue",
    "mappedFileSizeConsumeQueueExt": "mapped_file_size_consume_queue_ext",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
    "enableLmq": "enable_lmq",
    "enableMultiDispatch": "enable_multi_dispatch",
    "enableConsumeQueueExt": "enable_consume_queue_ext",
}


def settings_of(case: GoldenCase) -> dict[str, Any]:
    conf = case.about["conf"]
    return {
        name: conf[key] == "true" if conf[key] == "true" else conf[key] for key, name in _KEYS.items() if key in conf
    }


def ids(case: GoldenCase) -> str:
    return case.name.removeprefix("local/")


# -- reading -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["as RocketMQ was told", "from the files alone"])
def told(request: pytest.FixtureRequest) -> bool:
    return str(request.param).startswith("as")


def opened(case: GoldenCase, directory: Path, told: bool) -> MessageStore:
    return stratalog.open(case.unpack_store(directory), mode="r", **settings_of(case) if told else {})


@pytest.mark.parametrize("case", [BATCHES, LIGHT, EXTENDED], ids=ids)
def test_queues_reach_from_and_to_the_same_offsets(case: GoldenCase, tmp_path: Path, told: bool) -> None:
    with opened(case, tmp_path, told) as store:
        lines = {(line["topic"], line["queueId"]): line for line in case.expected("queue") if line["maxOffset"]}
        assert set(store.queues()) == lines.keys()
        for key, line in lines.items():
            queue = store.queue(*key)
            assert (queue.min_offset, queue.max_offset) == (line["minOffset"], line["maxOffset"])


def members_of(line: Line, plan: dict[int, Line]) -> list[Line]:
    return plan[line["commitLogOffset"]].get("messages", [plan[line["commitLogOffset"]]])


def test_each_member_of_a_batch_is_a_message_with_its_own_offset_and_properties(tmp_path: Path, told: bool) -> None:
    operations = BATCHES.plan()
    plan = {put["commitLogOffset"]: operations[put["op"]] for put in BATCHES.puts()}
    with opened(BATCHES, tmp_path, told) as store:
        for key, lines in by_queue(BATCHES):
            messages = list(store.queue(*key).read())
            at = 0
            for line in lines:
                members = members_of(line, plan)
                assert len(members) == line["batchNum"]
                for number, member in enumerate(members):
                    message = messages[at + number]
                    assert message.queue_offset == line["queueOffset"] + number
                    assert message.body == base64.b64decode(member["body"])
                    assert message.properties == dict(member["props"])
                    assert not message.sys_flag
                    for name in ("commitLogOffset", "storeSize", "storeTimestamp", "bornTimestamp", "reconsumeTimes"):
                        assert seen(message)[name] == line[name]
                at += len(members)
            assert at == len(messages)


def test_reading_may_begin_and_end_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    with opened(BATCHES, tmp_path, True) as store:
        for key, _ in by_queue(BATCHES):
            queue = store.queue(*key)
            everything = list(queue.read())
            assert [message.queue_offset for message in everything] == list(range(queue.max_offset))
            for first in range(0, queue.max_offset + 1, 3):
                assert list(queue.read(first, count=5)) == everything[first : first + 5]


def by_queue(case: GoldenCase) -> Iterator[tuple[tuple[str, int], list[Line]]]:
    for key, lines in groupby(case.expected("message"), lambda line: (line["topic"], line["queueId"])):
        yield key, list(lines)


def seen(message: Message) -> Line:
    return {
        "recordTopic": message.topic,
        "recordQueueId": message.queue_id,
        "recordQueueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "sysFlag": message.sys_flag,
        "bodyCRC": message.body_crc,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "reconsumeTimes": message.reconsume_times,
        "msgId": message.message_id,
    }


@pytest.mark.parametrize("case", [BATCHES, LIGHT, EXTENDED], ids=ids)
def test_every_unit_leads_to_the_same_record_with_the_same_tags_code(
    case: GoldenCase, tmp_path: Path, told: bool
) -> None:
    with opened(case, tmp_path, told) as store:
        for key, lines in by_queue(case):
            queue = store.queue(*key)
            units = store.units_of(queue)
            for line in lines:
                commit_log_offset, size, tags_code = units.unit(line["queueOffset"])
                if is_extension_address(tags_code):
                    tags_code = UNIT.unpack(queue.units(line["queueOffset"], 1)).tags_code
                record = store.message(commit_log_offset)
                found = seen(record) | {"storeSize": size, "tagsCode": tags_code}
                assert found == {name: line[name] for name in found}
                stored = [tuple(pair) for pair in line["properties"]]
                assert list(record.properties.items()) == stored


def test_messages_of_light_queues_stand_at_their_offsets_there(tmp_path: Path, told: bool) -> None:
    with opened(LIGHT, tmp_path, told) as store:
        for key, lines in by_queue(LIGHT):
            found = [(m.topic, m.queue_id, m.queue_offset, m.commit_log_offset) for m in store.queue(*key).read()]
            assert found == [(*key, line["queueOffset"], line["commitLogOffset"]) for line in lines]


def test_extensions_hold_tags_code_store_time_and_bitmap(tmp_path: Path, told: bool) -> None:
    bitmaps = 0
    with opened(EXTENDED, tmp_path, told) as store:
        for key, lines in by_queue(EXTENDED):
            for line in lines:
                found = store.queue(*key).extension(line["queueOffset"])
                assert found
                bitmaps += found.bitmap is not None
                assert line["ext"] == {
                    "size": found.size,
                    "tagsCode": found.tags_code,
                    "storeTimestamp": found.store_timestamp,
                    "bitmap": found.bitmap.hex() if found.bitmap else None,
                }
    assert bitmaps == 61


@pytest.mark.parametrize("case", [BATCHES, LIGHT], ids=ids)
def test_offsets_by_time_are_those_of_rocketmq_where_it_finds_the_message(case: GoldenCase, tmp_path: Path) -> None:
    """In a batch queue RocketMQ looks no further than the end of a file, and for `upper` only at exact times."""
    with opened(case, tmp_path, True) as store:
        differ = 0
        for line in case.expected("answer"):
            if line["question"]["ask"] != "time":
                continue
            queue = store.queue(line["question"]["topic"], line["question"]["queueId"])
            time = line["question"]["time"]
            stamps = {message.queue_offset: message.store_timestamp for message in queue.read()}
            lower, upper = queue.offset_at_ms(time), queue.offset_at_ms(time, "upper")
            assert lower == min((at for at, stamp in stamps.items() if stamp >= time), default=queue.max_offset), line
            assert upper == max((at for at, stamp in stamps.items() if stamp <= time), default=0), line
            differ += line["lower"] != lower
            assert line["lower"] == lower or stamps[line["lower"]] < time
        assert differ == (5 if case is BATCHES else 0)


def test_the_unique_key_of_a_batch_finds_its_messages(tmp_path: Path) -> None:
    with opened(BATCHES, tmp_path, True) as store:
        batches = [operation for operation in BATCHES.plan() if operation["op"] == "inner-batch"]
        for operation in batches:
            found = store.query(operation["topic"], key=dict(operation["props"])["UNIQ_KEY"])
            bodies = [base64.b64decode(member["body"]) for member in operation["messages"]]
            assert [member.body for member in found] == bodies


def test_columns_of_batches_and_light_queues_are_those_of_their_messages(tmp_path: Path) -> None:
    for case in (BATCHES, LIGHT):
        with opened(case, tmp_path / ids(case), True) as store:
            for key, _ in by_queue(case):
                queue = store.queue(*key)
                rows = queue.read_arrow(1, count=30).to_pylist()
                messages = list(queue.read(1, count=30))
                assert [(row["queueOffset"], row["body"], row["topic"], row["tags"]) for row in rows] == [
                    (message.queue_offset, message.body, key[0], message.tags) for message in messages
                ]


def test_a_record_that_rocketmq_cannot_dispatch_keeps_nothing_from_its_queues(tmp_path: Path, told: bool) -> None:
    """The store that RocketMQ does not load again: every message that it answered PUT_OK to is in its queues here."""
    with opened(POISON, tmp_path, told) as store:
        plan = POISON.plan()
        for put in POISON.puts():
            operation = plan[put["op"]]
            queue = store.queue(operation["topic"], operation["queueId"])
            (message,) = queue.read(put["queueOffset"], count=1)
            assert message.body == base64.b64decode(operation["body"])
            names = dict(operation["props"]).get("INNER_MULTI_DISPATCH", "").split(",")
            for name in filter(lambda name: name.startswith(LMQ_PREFIX), names):
                found = [message.commit_log_offset for message in store.queue(name).read()]
                assert found.count(put["commitLogOffset"]) == 1
        assert any("'plain' is no light queue" in note for note in store.recovery.notes)
        assert ("plain", 0) not in store.queues()


# -- writing -----------------------------------------------------------------------------------------------------------


def replay(case: GoldenCase, root: Path, *, until: int = 1 << 30) -> None:
    """Put the plan's messages at the times that RocketMQ put them."""
    clock, plan = Clock(), case.plan()
    with stratalog.open(root, clock_ns=clock, **settings_of(case)) as store:
        for operation in plan:
            if operation["op"] == "topic":
                store.create_topic(
                    operation["name"],
                    queues=operation["queues"],
                    queue_type=operation.get("attributes", {}).get("queue.type", "SimpleCQ"),
                )
        for answer in case.puts()[:until]:
            clock.now_ms = answer["storeTimestamp"]
            receipt = put(store, plan[answer["op"]])
            assert receipt.commit_log_offset == answer["commitLogOffset"]
            assert (receipt.queue_offset, receipt.store_size) == (answer["queueOffset"], answer["size"])
            assert receipt.message_id == answer["msgId"]


def put(store: MessageStore, operation: Line) -> stratalog.Receipt:
    queue = store.queue(operation["topic"], operation["queueId"])
    born, hosts = operation["born"], hosts_of(operation)
    if operation["op"] == "inner-batch":
        shared = dict(operation["props"])
        return queue.put_batch(
            [base64.b64decode(member["body"]) for member in operation["messages"]],
            [client_properties(member["props"]) for member in operation["messages"]],
            unique_key=shared.pop("UNIQ_KEY"),
            tags=shared.pop("TAGS"),
            born_timestamp=born,
            **hosts,
        )
    body = base64.b64decode(operation["body"])
    flag, reconsume = operation.get("flag", 0), operation.get("reconsume", 0)
    text = stored_properties(operation)
    return queue.put_record(body, text, born_timestamp=born, flag=flag, reconsume_times=reconsume, **hosts)


@pytest.mark.parametrize("case", [BATCHES, LIGHT], ids=ids)
def test_the_same_puts_at_the_same_times_make_the_same_bytes(case: GoldenCase, tmp_path: Path) -> None:
    replay(case, tmp_path / "ours")
    compare(case, tmp_path / "ours", COMMIT_LOG, CONSUME_QUEUE, BATCH_CONSUME_QUEUE)


def compare(case: GoldenCase, root: Path, *directories: str) -> None:
    theirs = {path: data for path, data in case.store_files() if path.split("/")[0] in directories}
    ours = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    assert {path for path in ours if path.split("/")[0] in directories} == theirs.keys()
    for path, data in theirs.items():
        assert ours[path].read_bytes() == data, path
    index = [data for path, data in sorted(case.store_files()) if path.split("/")[0] == INDEX]
    assert [ours[path].read_bytes() for path in sorted(ours) if path.split("/")[0] == INDEX] == index


def test_a_put_that_rocketmq_chokes_on_is_refused_and_the_rest_is_as_without_it(tmp_path: Path) -> None:
    plan = POISON.plan()
    (poison,) = [op for op in plan if "plain" in dict(op["props"]).get("INNER_MULTI_DISPATCH", "")]
    with stratalog.open(tmp_path / "store", **settings_of(POISON)) as store:
        for operation in plan:
            if operation is not poison:
                put(store, operation)
                continue
            before = store.log.end_offset
            with pytest.raises(IllegalMessage, match="'plain'"):
                put(store, operation)
            assert store.log.end_offset == before
        assert store.queue("%LMQ%q0").max_offset == len(list(store.queue("%LMQ%q0").read()))


def test_with_extensions_log_and_places_are_the_same_and_units_point_to_tags_code_and_time(tmp_path: Path) -> None:
    """RocketMQ's peer was given filter bitmaps by its test; a store has none by itself, so ours are 20 bytes each."""
    replay(EXTENDED, tmp_path / "ours")
    theirs = dict(EXTENDED.store_files())
    for path, data in theirs.items():
        ours = tmp_path / "ours" / path
        if path.startswith(COMMIT_LOG + "/"):
            assert ours.read_bytes() == data
        elif path.startswith(CONSUME_QUEUE + "/"):
            units = zip(UNIT.struct.iter_unpack(ours.read_bytes()), UNIT.struct.iter_unpack(data), strict=True)
            assert all(mine[:2] == other[:2] for mine, other in units)
    with stratalog.open(tmp_path / "ours", mode="r") as store:
        for key, lines in by_queue(EXTENDED):
            for line in lines:
                expected = Extension(line["ext"]["tagsCode"], line["ext"]["storeTimestamp"], None)
                assert store.queue(*key).extension(line["queueOffset"]) == expected


def test_extension_units_with_their_bitmaps_make_the_same_bytes_and_addresses(tmp_path: Path) -> None:
    theirs = dict(EXTENDED.store_files())
    size = EXTENDED.about["conf"]["mappedFileSizeConsumeQueueExt"]
    for (topic, queue_id), lines in by_queue(EXTENDED):
        files = OpenFiles(Disk())
        extension = ExtensionFiles(tmp_path, topic, queue_id, files, Disk(), file_size=size)
        extensions = [line["ext"] for line in lines]
        addresses = extension.append(
            Extension(one["tagsCode"], one["storeTimestamp"], bytes.fromhex(one["bitmap"]) if one["bitmap"] else None)
            for one in extensions
        )
        files.close()
        units = theirs[f"{CONSUME_QUEUE}/{topic}/{queue_id}/{0:020d}"]
        assert addresses == [unit[2] for unit in UNIT.struct.iter_unpack(units)][: len(addresses)]
    expected = {path: data for path, data in theirs.items() if path.startswith(CONSUME_QUEUE_EXT)}
    assert {
        str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    } == expected


# -- rebuilding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [BATCHES, LIGHT], ids=ids)
def test_queues_that_are_gone_are_rebuilt_byte_for_byte(case: GoldenCase, tmp_path: Path) -> None:
    """Also from RocketMQ's own log, whose stop left no seal: without any queue the whole log is read."""
    root = case.unpack_store(tmp_path)
    for name in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE, INDEX):
        shutil.rmtree(root / name, ignore_errors=True)
    with stratalog.open(root, **settings_of(case)):
        pass
    compare(case, root, COMMIT_LOG, CONSUME_QUEUE, BATCH_CONSUME_QUEUE)
