"""Messages that are known by their number alone: whoever reads one knows what it must look like."""

from typing import Any

import stratalog
from stratalog.layout.queue import UNIT
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from torture.report import Lost, WrongPrefix

NUMBER_DIGITS = 8
LARGE_EVERY = 97
LARGE_REPEATS = 2500
TOPICS = ("orders", "payments", "a-topic-with-a-longer-name")
QUEUES_PER_TOPIC = 2
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 60 * UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 300,
}
"""Files so small that a second of puts rolls the log, the queues and the index."""

Place = tuple[str, int, int]
"""Topic, queue id, queue offset."""


def body_of(number: int) -> bytes:
    """The number, and after it as many copies of it as the number says; some are a third of a log file."""
    repeats = LARGE_REPEATS if number % LARGE_EVERY == 0 else 1 + number * 7 % 40
    return b"%08d" % number * repeats


def number_of(body: bytes) -> int:
    return int(body[:NUMBER_DIGITS])


def key_of(number: int) -> str:
    return f"k{number}"


def tags_of(number: int) -> str:
    return f"a{number % 5}"


def queue_of(number: int) -> tuple[str, int]:
    return TOPICS[number % len(TOPICS)], number // 3 % QUEUES_PER_TOPIC


def everything(store: MessageStore) -> dict[int, Message]:
    """All readable messages by number. Raises `WrongPrefix` for one that is changed, invented or there twice."""
    found: dict[int, Message] = {}
    for topic, queue_id in store.queues():
        previous = -1
        for message in store.queue(topic, queue_id).read():
            number = number_of(message.body)
            if message.body != body_of(number) or number in found:
                raise WrongPrefix(f"message {number} is changed or there twice, at {topic}/{queue_id}")
            if message.tags != tags_of(number) or message.keys != [key_of(number)]:
                raise WrongPrefix(f"message {number} has tags {message.tags} and keys {message.keys}")
            if message.queue_offset <= previous:
                raise WrongPrefix(f"queue offsets of {topic}/{queue_id} do not grow at {message.queue_offset}")
            previous = message.queue_offset
            found[number] = message
    return found


def check_acknowledged(found: dict[int, Message], acknowledged: dict[int, Place]) -> None:
    for number, place in acknowledged.items():
        message = found.get(number)
        if message is None:
            raise Lost(f"message {number}, acknowledged as {place}, is not there")
        if (is_at := (message.topic, message.queue_id, message.queue_offset)) != place:
            raise WrongPrefix(f"message {number} was acknowledged as {place}, and is at {is_at}")


def check_lookups(store: MessageStore, found: dict[int, Message], numbers: list[int]) -> None:
    """Key queries, time queries and offsets by time, for some messages, against what reading found."""
    for number in numbers:
        message = found[number]
        hits = store.query(message.topic, key=key_of(number))
        if [hit.body for hit in hits] != [message.body]:
            raise WrongPrefix(f"the key of message {number} finds {len(hits)} messages")
        moment = message.store_timestamp
        if not store.query(message.topic, key=key_of(number), begin=moment, end=moment):
            raise WrongPrefix(f"message {number} is not found by key and time")
        same = [
            other.queue_offset
            for other in found.values()
            if (other.topic, other.queue_id) == (message.topic, message.queue_id) and other.store_timestamp >= moment
        ]
        if store.queue(message.topic, message.queue_id).offset_at(moment) > min(same):
            raise WrongPrefix(f"the first offset at the time of message {number} is too late")


def log_bytes(store: MessageStore) -> bytes:
    """The log from its beginning to its end."""
    first = store.log.first_offset
    return b"".join(file.path.read_bytes() for file in store.log.files)[: store.log.end_offset - first]


def open_small(root: Any, **given: Any) -> MessageStore:
    return stratalog.open(root, **(SMALL | given))
