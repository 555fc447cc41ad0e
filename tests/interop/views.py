"""How each side sees a store: every message of every queue, keys and times. Equal stores give equal views."""

import base64
import random
from collections.abc import Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import stratalog
from interop.drafts import KEY_COUNT, TAGS, Draft, Ledger, Reading
from interop.rocketmq import RocketMQ, camel_case
from stratalog.layout.javahash import string_hash
from stratalog.layout.properties import KEYS, UNIQUE_KEY
from stratalog.layout.properties import TAGS as TAGS_PROPERTY
from stratalog.layout.queue import UNIT
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore

Sizes = dict[str, Any]
Question = dict[str, Any]
TIME_MAX = 2**63 - 1
HITS_MAX = 64
TAG_PREFIX = "T#"
FIELDS = (
    "topic", "queue_id", "queue_offset", "commit_log_offset", "store_size", "flag", "sys_flag", "born_timestamp",
    "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_crc", "message_id", "properties",
)  # fmt: skip


def random_sizes(seed: str) -> Sizes:
    """Small files of odd sizes, so that every kind of file rolls; a record of these tests fits into each."""
    chance = random.Random(seed)
    return {
        "mapped_file_size_commit_log": chance.randrange(32, 200) * 1024 + chance.randrange(1024),
        "mapped_file_size_consume_queue": UNIT.size * chance.randrange(10, 35),
        "max_hash_slot_num": chance.randrange(10, 200),
        "max_index_num": chance.randrange(300, 900),
    }


def java_settings(sizes: Sizes, **more: object) -> Mapping[str, object]:
    """For the request `open`. The index is made safe (off by default): without that, RocketMQ leaves out keys after a
    crash, its own as well. Files are never deleted for a full disk."""
    return camel_case(sizes) | {"messageIndexSafe": True, "cleanFileForciblyEnable": False, **more}


# -- reading everything ----------------------------------------------------------------------------------------------


def our_reading(store: MessageStore) -> Reading:
    return {key: _messages(store, *key) for key in store.queues()}


def _messages(store: MessageStore, topic: str, queue_id: int) -> list[dict[str, Any]]:
    queue = store.queue(topic, queue_id)
    tags_codes = [unit.tags_code for unit in map(UNIT.unpack, _cut(queue.units(queue.min_offset, queue.max_offset)))]
    return [as_seen(message) | {"tags_code": code} for message, code in zip(queue.read(), tags_codes, strict=True)]


def _cut(units: bytes) -> list[bytes]:
    return [units[start : start + UNIT.size] for start in range(0, len(units), UNIT.size)]


def as_seen(message: Message) -> dict[str, Any]:
    """A message under the names that the driver in `java/Records.java` uses."""
    return {name: getattr(message, name) for name in FIELDS} | {
        "born_host": str(message.born_host),
        "store_host": str(message.store_host),
        "body": base64.b64encode(message.body).decode(),
    }


def java_reading(rocketmq: RocketMQ) -> Reading:
    queues = rocketmq.ask("read")["queues"]
    for queue in queues:
        assert queue["next_offset"] == queue["max_offset"], queue
        assert len(queue["messages"]) == queue["max_offset"] - queue["min_offset"]
    return {(queue["topic"], queue["queue_id"]): queue["messages"] for queue in queues if queue["max_offset"]}


def assert_same(ours: Reading, theirs: Reading) -> None:
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert len(ours[key]) == len(theirs[key]), key
        for mine, other in zip(ours[key], theirs[key], strict=True):
            assert mine == other


# -- keys and times --------------------------------------------------------------------------------------------------


def questions_about(reading: Reading, *, with_tags: bool, seed: int) -> list[Question]:
    """Every key in every topic, unique keys and tags, in all or some of the time; times at and around messages."""
    chance = random.Random(seed)
    questions: list[Question] = []
    times = sorted({message["store_timestamp"] for messages in reading.values() for message in messages})
    for topic in sorted({topic for topic, _ in reading}):
        for number in range(KEY_COUNT + 1):  # one that nobody has
            window = chance.choice(((0, TIME_MAX), tuple(sorted(chance.choices(times, k=2)))))
            questions.append({"topic": topic, "key": f"key-{number}", **_window(*window)})
        if with_tags:
            tags = [tag for tag in TAGS if tag]
            questions += [{"topic": topic, "key": tag, "kind": "T", **_window(0, TIME_MAX)} for tag in tags]
    for (topic, queue_id), messages in sorted(reading.items()):
        for message in chance.sample(messages, min(3, len(messages))):
            key = message["properties"].get(UNIQUE_KEY, "nobody")
            questions.append({"topic": topic, "key": key, **_window(0, TIME_MAX)})
            for near in (-1, 0, 1):
                questions.append({"topic": topic, "queue_id": queue_id, "time": message["store_timestamp"] + near})
    return questions


def _window(begin: int, end: int) -> Question:
    return {"begin": begin, "end": end, "limit": HITS_MAX}


def our_answers(store: MessageStore, questions: list[Question]) -> list[list[int]]:
    return [_our_answer(store, question) for question in questions]


def _our_answer(store: MessageStore, question: Question) -> list[int]:
    topic = question["topic"]
    if "time" in question:
        queue = store.queue(topic, question["queue_id"])
        return [queue.offset_at(question["time"], bound="lower"), queue.offset_at(question["time"], bound="upper")]
    window = {"begin": question["begin"], "end": question["end"]}
    if is_exact(question) and "kind" not in question:
        found = store.query(topic, key=question["key"], limit=question["limit"], **window)
        return [message.commit_log_offset for message in found]
    prefix = TAG_PREFIX if "kind" in question else ""
    return sorted(islice(store.candidates(topic, key=prefix + question["key"], **window), question["limit"]))


def is_exact(question: Question) -> bool:
    """Whether a key question has one right answer. The index knows times to the second only: there both sides shall
    give the same candidates."""
    return "key" in question and question["begin"] == 0 and question["end"] == TIME_MAX


def check_answers(
    reading: Reading, questions: list[Question], answers: list[list[int]], *, lost_ms: Collection[int] = ()
) -> None:
    """Compare exact key answers with the messages themselves: both sides might agree on nonsense.

    `lost_ms`: checkpoints from which RocketMQ mended its index after a crash. It names records twice from then on, and
    misses some that were stored in the very millisecond of the checkpoint: it takes a file whose newest item has that
    time for a whole one. We trust the index that a clean stop leaves, so they stay missing.
    """
    asked = [(question, answer) for question, answer in zip(questions, answers, strict=True) if is_exact(question)]
    stored = {message["commit_log_offset"]: message for messages in reading.values() for message in messages}
    for question, answer in asked:
        expected = _hits(reading, question)
        if not lost_ms:
            assert answer == expected[-question["limit"] :], question
            continue
        found = sorted(set(answer))
        reach = expected if len(answer) < question["limit"] else expected[-len(found) :]
        missing = [offset for offset in reach if offset not in found]
        assert all(stored[offset]["store_timestamp"] in lost_ms for offset in missing), question
        assert set(found) <= set(expected), question


def hit_count(questions: list[Question], answers: list[list[int]]) -> int:
    return sum(len(answer) for question, answer in zip(questions, answers, strict=True) if "key" in question)


def _hits(reading: Reading, question: Question) -> list[int]:
    """The slow, obvious answer to an exact question. Tags are found by their hash alone."""
    wanted = question["key"]

    def matches(properties: dict[str, str]) -> bool:
        if "kind" in question:
            return TAGS_PROPERTY in properties and string_hash(properties[TAGS_PROPERTY]) == string_hash(wanted)
        return wanted in [*properties.get(KEYS, "").split(), properties.get(UNIQUE_KEY)]

    return sorted(
        message["commit_log_offset"]
        for (topic, _), messages in reading.items()
        for message in messages
        if topic == question["topic"] and matches(message["properties"])
    )


# -- whole stores ----------------------------------------------------------------------------------------------------


def open_ours(directory: Path, sizes: Sizes, rocketmq: RocketMQ, **more: Any) -> MessageStore:
    return stratalog.open(directory, compatibility=rocketmq.compatibility, **sizes, **more)


def put_by_java(rocketmq: RocketMQ, messages: list[Draft], ledger: Ledger, **more: Any) -> None:
    """Let RocketMQ put messages into the store it has open, and book what it acknowledges."""
    requests = [draft.as_json() for draft in messages]
    answers = rocketmq.stream("put", messages=requests, line_count=len(messages) + 1, **more)
    for draft, answer in zip(messages, answers, strict=False):
        ledger.note(draft, answer["queue_offset"])
    for answer in answers:
        assert "end_offset" in answer


def took_the_clean_road(log: str) -> bool:
    """Whether RocketMQ took the stop before for a clean one, by its own words."""
    clean, unclean = "last shutdown normally" in log, "last shutdown abnormally" in log
    assert clean != unclean, log
    return clean
