"""How each side sees a store: every message of every queue, keys and times. Equal stores give equal views."""

import base64
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import stratalog
from interop.drafts import KEY_COUNT, TAGS, Draft, Ledger, Reading
from interop.rocketmq import RocketMQ, camel_case
from stratalog.layout.index import HEADER
from stratalog.layout.javahash import string_hash
from stratalog.layout.names import INDEX
from stratalog.layout.properties import KEYS, UNIQUE_KEY
from stratalog.layout.properties import TAGS as TAGS_PROPERTY
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import Transaction, transaction_of
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore

Sizes = dict[str, Any]
Question = dict[str, Any]
Seen = dict[str, Any]
TIME_MAX = 2**63 - 1
HITS_MAX = 64
"""What RocketMQ answers at most unless it is configured."""
TAG_PREFIX = "T#"
FIELDS = (
    "topic", "queue_id", "queue_offset", "commit_log_offset", "store_size", "flag", "sys_flag", "born_timestamp",
    "store_timestamp", "reconsume_times", "prepared_transaction_offset", "body_crc", "message_id", "properties",
)  # fmt: skip


def random_sizes(chance: random.Random | str) -> Sizes:
    """Small files of odd sizes, so that every kind of file rolls; a record of these tests fits into each."""
    chance = random.Random(chance) if isinstance(chance, str) else chance
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
    return [
        as_seen(message) | {"tags_code": tags_code, "unit_offset": offset, "batch_count": 1}
        for offset, (message, tags_code) in enumerate(zip(queue.read(), tags_codes, strict=True), queue.min_offset)
    ]


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
        count = sum(message["batch_count"] for message in queue["messages"])
        assert count == queue["max_offset"] - queue["min_offset"], queue
    return {(queue["topic"], queue["queue_id"]): queue["messages"] for queue in queues if queue["max_offset"]}


def assert_same(ours: Reading, theirs: Reading) -> None:
    assert ours.keys() == theirs.keys()
    for key in ours:
        assert len(ours[key]) == len(theirs[key]), key
        for mine, other in zip(ours[key], theirs[key], strict=True):
            assert mine == other


# -- keys and times --------------------------------------------------------------------------------------------------


def questions_about(reading: Reading, *, with_tags: bool, seed: int, limit: int = HITS_MAX) -> list[Question]:
    """Every key in every topic, unique keys and tags, in all or some of the time; times at and around messages."""
    chance = random.Random(seed)
    questions: list[Question] = []
    times = sorted({message["store_timestamp"] for messages in reading.values() for message in messages})
    for topic in sorted({topic for topic, _ in reading}):
        for number in range(KEY_COUNT + 1):  # one that nobody has
            window = chance.choice(((0, TIME_MAX), tuple(sorted(chance.choices(times, k=2)))))
            questions.append({"topic": topic, "key": f"key-{number}", **_window(*window, limit)})
        if with_tags:
            tags = [tag for tag in TAGS if tag]
            questions += [{"topic": topic, "key": tag, "kind": "T", **_window(0, TIME_MAX, limit)} for tag in tags]
    for (topic, queue_id), messages in sorted(reading.items()):
        for message in chance.sample(messages, min(3, len(messages))):
            key = message["properties"].get(UNIQUE_KEY, "nobody")
            questions.append({"topic": topic, "key": key, **_window(0, TIME_MAX, limit)})
            for near in (-1, 0, 1):
                questions.append({"topic": topic, "queue_id": queue_id, "time": message["store_timestamp"] + near})
    return questions


def _window(begin: int, end: int, limit: int) -> Question:
    return {"begin": begin, "end": end, "limit": limit}


def our_answers(store: MessageStore, questions: list[Question]) -> list[list[int]]:
    return [_our_answer(store, question) for question in questions]


def _our_answer(store: MessageStore, question: Question) -> list[int]:
    topic = question["topic"]
    if "time" in question:
        queue = store.queue(topic, question["queue_id"])
        return [queue.offset_at(question["time"], bound="lower"), queue.offset_at(question["time"], bound="upper")]
    window = {"begin": question["begin"], "end": question["end"]}
    if "kind" not in question:
        found = store.query(topic, key=question["key"], limit=question["limit"], **window)
        return [message.commit_log_offset for message in found]
    return sorted(islice(store.candidates(topic, key=TAG_PREFIX + question["key"], **window), question["limit"]))


JAVA_SLACK_MS = 1000
"""RocketMQ goes by the index's times, which are whole seconds after a file's first message. We look at the message."""


def assert_same_answers(questions: list[Question], ours: list[list[int]], theirs: list[list[int]]) -> None:
    """Both sides' answers are equal; where a part of the time was asked, `check_answers` judges each."""
    for question, mine, other in zip(questions, ours, theirs, strict=True):
        if "time" in question or (question["begin"], question["end"]) == (0, TIME_MAX):
            assert mine == other, question


def check_answers(
    reading: Reading,
    questions: list[Question],
    answers: list[list[int]],
    *,
    hidden: Iterable[Seen] = (),
    lost: Sequence[range] = (),
    slack_ms: int = 0,
) -> None:
    """Compare key answers with the messages themselves: both sides might agree on nonsense.

    `hidden`: messages that no queue shows. The index holds half ones all the same, but none that was rolled back.
    `slack_ms`: how far from the ends of the asked time a hit may be, or be missing.

    `lost`: log offsets of messages that stood in the newest index file when a crash came, see `at_risk`. RocketMQ
    misses keys of these, and names records twice from then on. Keys in full files, and of later messages, it must find.
    """
    messages = chain(*reading.values(), (message for message in hidden if is_indexed(message["sys_flag"])))
    stored = {message["commit_log_offset"]: message["store_timestamp"] for message in messages}
    places = _places(chain(*reading.values(), (message for message in hidden if is_indexed(message["sys_flag"]))))
    for question, answer in zip(questions, answers, strict=True):
        if "time" in question:
            continue
        begin, end, limit = question["begin"], question["end"], question["limit"]
        named = places.get(_place_of(question), [])
        slack = 0 if (begin, end) == (0, TIME_MAX) else slack_ms
        least = [at for at in named if begin + slack <= stored[at] <= end - slack]
        most = [at for at in named if begin - slack <= stored[at] <= end + slack]
        assert set(answer) <= set(most), (question, set(answer) - set(most))
        if lost:
            assert len(answer) < limit
            missing = set(least) - set(answer)
            assert all(any(at in some for some in lost) for at in missing), (question, missing)
        elif len(least) == len(most):
            assert answer == least[-limit:], (question, answer, least[-limit:])
        else:
            assert len(answer) == limit or set(least) <= set(answer), question


def at_risk(directory: Path, sizes: Sizes, log_end: int) -> range:
    """Log offsets whose keys RocketMQ may lose when it opens this store after a crash, whoever crashed.

    It removes index files that end behind the checkpoint's index time, and takes what is left as it is: the slots of
    the newest file lead to items that its header does not count, and so to none of the older ones. Then it indexes
    again from a CommitLog file that begins before that time, which may be later than what was lost.
    """
    vouched_ms = Checkpoint.load(directory, Disk()).index_msg_timestamp
    headers = [HEADER.unpack(path.read_bytes()) for path in sorted((directory / INDEX).glob("*"))]
    full = [each for each in headers if each.next_item >= sizes["max_index_num"] and each.end_timestamp <= vouched_ms]
    return range(max((each.end_commit_log_offset for each in full), default=0), log_end)


def named_once(answers: list[list[int]], hidden: Iterable[Seen]) -> list[list[int]]:
    """RocketMQ's answers without this: when it opens a store whose log ends with a message that no queue shows, it
    takes that one for not yet dispatched, and indexes it again."""
    again = {message["commit_log_offset"] for message in hidden}
    return [[at for n, at in enumerate(answer) if at not in again or at not in answer[:n]] for answer in answers]


def hit_count(questions: list[Question], answers: list[list[int]]) -> int:
    return sum(len(answer) for question, answer in zip(questions, answers, strict=True) if "key" in question)


def is_indexed(sys_flag: int) -> bool:
    return transaction_of(sys_flag) is not Transaction.ROLLBACK


def _places(messages: Iterable[Seen]) -> dict[tuple[str, Any], list[int]]:
    """The slow, obvious index: log offsets in order by topic and key, and by topic and hash of the tag."""
    places: dict[tuple[str, Any], list[int]] = {}
    for message in sorted(messages, key=itemgetter("commit_log_offset")):
        properties = message["properties"]
        names: set[Any] = {*properties.get(KEYS, "").split(), properties.get(UNIQUE_KEY)}
        if TAGS_PROPERTY in properties:
            names.add(string_hash(properties[TAGS_PROPERTY]))
        for name in names:
            places.setdefault((message["topic"], name), []).append(message["commit_log_offset"])
    return places


def _place_of(question: Question) -> tuple[str, Any]:
    """Tags are found by their hash alone."""
    return question["topic"], string_hash(question["key"]) if "kind" in question else question["key"]


# -- whole stores ----------------------------------------------------------------------------------------------------


def open_ours(directory: Path, sizes: Sizes, rocketmq: RocketMQ, **more: Any) -> MessageStore:
    return stratalog.open(directory, compatibility=rocketmq.compatibility, **sizes, **more)


Sending = tuple[dict[str, Any], list[Draft]]
"""A request of RocketMQ to put something, and the messages in it."""


def one_by_one(messages: list[Draft]) -> list[Sending]:
    return [(draft.as_json(), [draft]) for draft in messages]


def some_in_batches(messages: list[Draft], seed: int) -> list[Sending]:
    """Plain messages of one queue as a client's batch now and then; everything else by itself."""
    chance = random.Random(seed)
    sendings: list[Sending] = []
    ordered = sorted(messages, key=lambda draft: (draft.queue, draft.is_plain))
    for _, group in groupby(ordered, key=lambda draft: (draft.queue, draft.is_plain)):
        left = list(group)
        while left:
            size = chance.choice((1, 1, chance.randrange(2, 12))) if left[0].is_plain else 1
            some, left = left[:size], left[size:]
            members = {"batch": [draft.as_json() for draft in some], "properties": {}}
            sendings.append((some[0].as_json() | (members if size > 1 else {}), some))
    chance.shuffle(sendings)
    return sendings


def put_by_java(
    rocketmq: RocketMQ, sendings: list[Sending], ledger: Ledger, *, kill_after: int | None = None, **more: Any
) -> None:
    """Let RocketMQ put messages into the store it has open, and book what it acknowledges; or kill it in the midst."""
    requests = [request for request, _ in sendings]
    answers = rocketmq.stream("put", messages=requests, line_count=len(requests) + 1, **more)
    for number, ((_, messages), answer) in enumerate(zip(sendings, answers, strict=False), 1):
        assert answer["count"] == len(messages)
        for place, draft in enumerate(messages, answer["queue_offset"]):
            ledger.note(draft, (place, answer["commit_log_offset"]))
        if number == kill_after:
            rocketmq.stop()
            rocketmq.start()
            return
    for answer in answers:
        assert "end_offset" in answer


def took_the_clean_road(log: str) -> bool:
    """Whether RocketMQ took the stop before for a clean one, by its own words."""
    clean, unclean = "last shutdown normally" in log, "last shutdown abnormally" in log
    assert clean != unclean, log
    return clean
