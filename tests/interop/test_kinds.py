"""Queues of other kinds, each written by both sides in turn: batch topics, light queues, queue extensions."""

import base64
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interop.drafts import Draft, Ledger, Reading, drafts
from interop.rocketmq import RocketMQ
from interop.turns import Turns
from interop.views import (
    Sending,
    as_seen,
    assert_same,
    java_settings,
    one_by_one,
    our_reading,
)
from stratalog.layout.batch import decode_batch_body
from stratalog.layout.light import LIGHT_QUEUE_ID, MULTI_DISPATCH, is_light
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONFIG, CONSUME_QUEUE, CONSUME_QUEUE_EXT
from stratalog.layout.properties import decode_properties, encode_properties
from stratalog.layout.queue import BATCH_UNIT
from stratalog.store.config_files import TOPICS
from stratalog.store.message_store import MessageStore
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

pytestmark = pytest.mark.one_in(2)

TOPIC = "Batches"
TURNS = ("ours", "theirs", "ours", "theirs halted", "ours", "theirs")
COUNT = 60


def remove_files(directory: Path) -> None:
    for path in [path for path in directory.rglob("*") if path.is_file()]:
        path.unlink()


# -- batch topics ----------------------------------------------------------------------------------------------------


def batches(seed: int) -> list[list[Draft]]:
    """Batches of one to nine messages for the queues of a batch topic."""
    chance = random.Random(seed)
    found = []
    for lead in drafts(seed, COUNT, body_size_max=120):
        size = chance.choice((1, 1, chance.randrange(2, 10)))
        members = drafts(chance.randrange(1 << 30), size, body_size_max=120)
        head = {"topic": TOPIC, "queue_id": lead.queue_id % 2, "born_timestamp": lead.born_timestamp}
        found.append([replace(member, **head, extra={}, tags=lead.tags) for member in members])
    return found


def as_one_record(members: list[Draft]) -> Sending:
    """What RocketMQ's broker makes of a client's batch; a single message stays one."""
    lead = members[0]
    if len(members) == 1:
        return lead.as_json(), members
    properties = {"UNIQ_KEY": lead.unique_key or "nobody"} | ({"TAGS": lead.tags} if lead.tags else {})
    return lead.as_json() | {"inner_batch": [each.as_json() for each in members], "properties": properties}, members


def put_batches(store: MessageStore, groups: Iterable[list[Draft]], ledger: Ledger) -> None:
    for members in groups:
        queue = store.queue(*members[0].queue)
        texts = [encode_properties(member.properties) for member in members]
        if len(members) == 1:
            receipt = queue.put_record(members[0].body, texts[0], flag=members[0].flag)
        else:
            bodies, flags = [member.body for member in members], [member.flag for member in members]
            key, tags = members[0].unique_key or "nobody", members[0].tags
            receipt = queue.put_batch(bodies, texts, unique_key=key, tags=tags, flags=flags)
        for place, member in enumerate(members, receipt.queue_offset):
            ledger.note(member, (place, receipt.commit_log_offset))


def taken_apart(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """RocketMQ's records as messages: its client would do this."""
    found = []
    for record in records:
        if not record["sys_flag"] & 0x80:
            found.append(record)
            continue
        entries = decode_batch_body(base64.b64decode(record["body"]))
        assert len(entries) == record["batch_count"]
        for place, entry in enumerate(entries, record["unit_offset"]):
            body = base64.b64encode(entry.body).decode()
            properties = decode_properties(entry.properties)
            found.append(record | {"queue_offset": place, "body": body, "properties": properties, "flag": entry.flag})
    return found


SAME = ("topic", "queue_id", "queue_offset", "commit_log_offset", "body", "properties", "flag", "store_timestamp")


def members_of(reading: Reading) -> Reading:
    return {key: [{name: message[name] for name in SAME} for message in messages] for key, messages in reading.items()}


def messages_of(store: MessageStore) -> Reading:
    return {key: [as_seen(message) for message in store.queue(*key).read()] for key in store.queues()}


def units_on_disk(turns: Turns) -> list[tuple[int, ...]]:
    data = b"".join(path.read_bytes() for path in sorted((turns.directory / BATCH_CONSUME_QUEUE / TOPIC).rglob("000*")))
    units = [BATCH_UNIT.unpack(data, at) for at in range(0, len(data), BATCH_UNIT.size)]
    return [(unit.commit_log_offset, unit.base_offset, unit.batch_size, unit.tags_code) for unit in units if unit.size]


@pytest.mark.one_in(36)
@pytest.mark.parametrize("creator", ["ours", "theirs"])
def test_batch_topics_are_written_by_both_sides_in_turn(rocketmq: RocketMQ, creator: str, tmp_path: Path) -> None:
    turns = Turns(tmp_path, rocketmq, mapper_file_size_batch_consume_queue=BATCH_UNIT.size * 17)
    if creator == "theirs":
        topic = {"name": TOPIC, "queues": 2, "attributes": {"queue.type": "BatchCQ"}}
        rocketmq.ask("topics", directory=str(tmp_path), topics=[topic])
    else:
        with turns.open_ours() as store:
            store.create_topic(TOPIC, queues=2, queue_type="BatchCQ")
    for seed, turn in enumerate(TURNS):
        if turn == "ours":
            with turns.open_ours() as store:
                before = messages_of(store)
                turns.ledger.check(before, exactly="halted" not in TURNS[seed - 1])
                put_batches(store, batches(seed), turns.ledger)
                read = messages_of(store)
            continue
        theirs = turns.open_theirs()
        assert {key for key, _ in theirs} == {TOPIC}
        apart = {key: taken_apart(records) for key, records in theirs.items()}
        assert members_of(apart) == members_of(read)
        assert sorted(units_on_disk(turns)) == sorted(
            (record["commit_log_offset"], record["unit_offset"], record["batch_count"], record["tags_code"])
            for records in theirs.values()
            for record in records
        )
        turns.put_by_java([as_one_record(members) for members in batches(seed)], halted="halted" in turn)
    with turns.open_ours() as store:
        turns.ledger.check(messages_of(store), exactly=True)
    assert len(list((tmp_path / BATCH_CONSUME_QUEUE / TOPIC / "0").iterdir())) > 1, "the queue never rolled"


@pytest.mark.parametrize("way", ["repair", "put"])
def test_a_store_without_the_entry_of_a_batch_topic_is_loaded_once_it_is_entered(
    rocketmq: RocketMQ, way: str, tmp_path: Path
) -> None:
    turns = Turns(tmp_path, rocketmq, mapper_file_size_batch_consume_queue=BATCH_UNIT.size * 17)
    with turns.open_ours() as store:
        store.create_topic(TOPIC, queues=2, queue_type="BatchCQ")
        put_batches(store, batches(1), turns.ledger)
    (tmp_path / CONFIG / TOPICS).unlink()
    shutil.copytree(tmp_path, tmp_path / "copy")
    asked = {"directory": str(tmp_path / "copy"), "settings": java_settings(turns.settings)}
    assert not rocketmq.ask("open", **asked)["loaded"]
    rocketmq.stop()
    shutil.rmtree(tmp_path / "copy")
    if way == "repair":
        assert repair(plan_repair(tmp_path)).ok
    with turns.open_ours(mode="r" if way == "repair" else "w") as store:
        if way == "put":
            put_batches(store, batches(2), turns.ledger)
        read = messages_of(store)
    theirs = turns.open_theirs()
    assert members_of({key: taken_apart(records) for key, records in theirs.items()}) == members_of(read)
    turns.put_by_java([as_one_record(members) for members in batches(3)], halted=False)
    with turns.open_ours() as store:
        turns.ledger.check(messages_of(store), exactly=True)


# -- light queues ----------------------------------------------------------------------------------------------------

LIGHT = ("%LMQ%a", "%LMQ%b-2", "%LMQ%$Parent$lite")
LMQ = {"enable_lmq": True, "enable_multi_dispatch": True}


def light_drafts(seed: int) -> list[Draft]:
    chance = random.Random(seed)
    named = {number: chance.sample(LIGHT, chance.randrange(4)) for number in range(COUNT)}
    return [
        replace(draft, topic="Parent", extra={MULTI_DISPATCH: ",".join(named[number])} if named[number] else {})
        for number, draft in enumerate(drafts(seed, COUNT))
    ]


def in_place(reading: Reading) -> Reading:
    """Messages as they stand in their queue: a light queue's own place is in its unit."""
    return {
        (topic, queue_id): [
            message | {"topic": topic, "queue_id": queue_id, "queue_offset": message["unit_offset"]}
            for message in messages
        ]
        for (topic, queue_id), messages in reading.items()
    }


def counts(messages: list[Draft]) -> dict[str, int]:
    named = [name for draft in messages for name in draft.extra.get(MULTI_DISPATCH, "").split(",") if name]
    return {name: named.count(name) for name in LIGHT}


def test_light_queues_are_written_by_both_sides_in_turn(rocketmq: RocketMQ, tmp_path: Path) -> None:
    turns = Turns(tmp_path, rocketmq, **LMQ)
    put: list[Draft] = []
    for seed, turn in enumerate(TURNS):
        messages = light_drafts(seed)
        if turn == "ours":
            with turns.open_ours() as store:
                if put:
                    assert {name: store.queue(name, LIGHT_QUEUE_ID).max_offset for name in LIGHT} == counts(put)
                for draft in messages:
                    queue = store.queue(*draft.queue)
                    queue.put(draft.body, tags=draft.tags, keys=draft.keys or None, properties=draft.extra)
                read = our_reading(store)
        else:
            assert_same(read, in_place(turns.open_theirs()))
            halted = "halted" in turn
            turns.put_by_java(one_by_one(messages), halted=halted)
            messages = messages[: COUNT - 1] if halted else messages
        put += messages
    with turns.open_ours() as store:
        assert {name: store.queue(name, LIGHT_QUEUE_ID).max_offset for name in LIGHT} == counts(put)
        assert min(counts(put).values()) > COUNT
        read = our_reading(store)
    assert_same(read, in_place(turns.open_theirs()))
    rocketmq.ask("close")
    before = turns.digests(CONSUME_QUEUE)
    remove_files(tmp_path / CONSUME_QUEUE)
    with turns.open_ours() as store:
        assert our_reading(store) == read
    assert turns.digests(CONSUME_QUEUE) == before, "built again from the log they are the same"
    assert any(is_light(topic) for topic, _ in read)


# -- queue extensions ------------------------------------------------------------------------------------------------


def extensions_of(store: MessageStore) -> dict[tuple[str, int, int], Any]:
    found: dict[tuple[str, int, int], Any] = {}
    for topic, queue_id in store.queues():
        queue = store.queue(topic, queue_id)
        for queue_offset in range(queue.min_offset, queue.max_offset):
            entry = queue.extension(queue_offset)
            found[topic, queue_id, queue_offset] = entry and {
                "tags_code": entry.tags_code,
                "store_timestamp": entry.store_timestamp,
                "bitmap": base64.b64encode(entry.bitmap or b"").decode(),
            }
    return found


def test_queue_extensions_are_written_by_both_sides_in_turn(rocketmq: RocketMQ, tmp_path: Path) -> None:
    turns = Turns(tmp_path, rocketmq, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=700)
    bitmaps = 0
    for seed, turn in enumerate(TURNS):
        if turn == "ours":
            with turns.open_ours() as store:
                for draft in drafts(seed, COUNT):
                    store.put(draft.topic, draft.body, queue_id=draft.queue_id, tags=draft.tags)
                read, ours = our_reading(store), extensions_of(store)
            continue
        theirs = turns.open_theirs(bitmaps=True)
        extensions = {
            (topic, queue_id, message["unit_offset"]): message.pop("extension", None)
            for (topic, queue_id), messages in theirs.items()
            for message in messages
        }
        assert_same(read, theirs)
        assert ours == extensions
        assert all(extensions.values())
        bitmaps += sum(1 for entry in ours.values() if entry["bitmap"])
        turns.put_by_java(one_by_one(drafts(100 + seed, COUNT)), halted="halted" in turn)
    assert bitmaps > COUNT // 4, "RocketMQ wrote hardly a bitmap that outlived us"


def test_every_pair_of_kinds_stands_side_by_side(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """Batches, light queues and extensions in one store, and what is derived built again from the log alone."""
    turns = Turns(tmp_path, rocketmq, enable_consume_queue_ext=True, **LMQ)
    with turns.open_ours() as store:
        store.create_topic(TOPIC, queues=2, queue_type="BatchCQ")
        for members, draft in zip(batches(1), light_drafts(1), strict=True):
            put_batches(store, [members], turns.ledger)
            store.queue(*draft.queue).put(draft.body, tags=draft.tags, properties=draft.extra)
    theirs = turns.open_theirs()
    assert {key[0] for key in theirs} == {TOPIC, "Parent", *LIGHT}
    rocketmq.ask("close")
    for part in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT):
        remove_files(tmp_path / part)
    with turns.open_ours() as store:
        assert {key: store.queue(*key).max_offset for key in store.queues()} == {
            key: records[-1]["unit_offset"] + records[-1]["batch_count"] for key, records in theirs.items()
        }
    again = turns.open_theirs()
    rocketmq.ask("close")
    assert again == theirs
