"""Messages to put, from a seed; how each side puts them, and what must be found afterwards."""

import asyncio
import base64
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from stratalog.layout.message import Host
from stratalog.layout.names import SCHEDULE_TOPIC
from stratalog.layout.properties import DELAY, encode_properties
from stratalog.layout.sysflag import enters_queue
from stratalog.store.message_store import MessageStore

LONG_TOPIC = "%RETRY%" + "long-group_" * 12
"""More than 127 characters: records of the second version."""
TOPICS = ("Orders", "Payments", "%RETRY%billing", LONG_TOPIC)
QUEUE_COUNT = 3
TAGS = (None, "TagA", "TagB", "标签", "Aa", "BB")  # the last two have one Java hash
KEY_COUNT = 25
HOSTS = ("10.0.0.1:50000", "[fe80::1:2]:40000", "192.168.255.254:65535")
SYS_FLAGS = (0x4, 0x8, 0xC)
"""Prepared, commit and rollback of a transaction: only the second enters a queue."""
QueueKey = tuple[str, int]
Place = tuple[int, int]
"""Queue offset and log offset of what was put; -1 where the way of putting does not tell the log offset."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A message as a producer gives it. Flag and hosts reach the record only where a put takes them."""

    topic: str
    queue_id: int
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    unique_key: str | None
    extra: dict[str, str]
    flag: int
    born_timestamp: int
    born_host: str
    store_host: str
    sys_flag: int = 0
    prepared_transaction_offset: int = 0

    @property
    def enters_queue(self) -> bool:
        return enters_queue(self.sys_flag)

    @property
    def is_plain(self) -> bool:
        """Whether every way of putting can put it."""
        return not self.sys_flag and DELAY not in self.extra

    @property
    def queue(self) -> QueueKey:
        return self.topic, self.queue_id

    @property
    def properties(self) -> dict[str, str]:
        named = {"TAGS": self.tags, "KEYS": " ".join(self.keys), "UNIQ_KEY": self.unique_key, **self.extra}
        return {name: value for name, value in named.items() if value}

    def as_json(self) -> dict[str, Any]:
        """For the request `put`."""
        return {
            "topic": self.topic,
            "queue_id": self.queue_id,
            "body": base64.b64encode(self.body).decode(),
            "flag": self.flag,
            "sys_flag": self.sys_flag,
            "prepared_transaction_offset": self.prepared_transaction_offset,
            "born_timestamp": self.born_timestamp,
            "born_host": self.born_host,
            "store_host": self.store_host,
            "properties": self.properties,
        }


def drafts(seed: int, count: int, *, body_size_max: int = 1500, odd: float = 0) -> list[Draft]:
    """The same seed gives the same messages. `odd`: share of delayed and transactional ones among them."""
    chance = random.Random(seed)
    made = [_draft(chance, f"{seed:08X}{number:024X}", body_size_max) for number in range(count)]
    return [_odd(chance, draft) if chance.random() < odd else draft for draft in made]


def _odd(chance: random.Random, draft: Draft) -> Draft:
    """As a broker stores a delayed message, or a step of a transaction in the flags of old."""
    if chance.random() < 0.5:
        level = chance.choice((1, 2, 18, 19, 40))  # there are 18: more counts as the highest
        return replace(draft, topic=SCHEDULE_TOPIC, queue_id=level - 1, extra={**draft.extra, DELAY: str(level)})
    return replace(draft, sys_flag=chance.choice(SYS_FLAGS), prepared_transaction_offset=chance.randrange(10**6))


def _draft(chance: random.Random, unique_key: str, body_size_max: int) -> Draft:
    keys = chance.sample(range(KEY_COUNT), chance.choice((0, 1, 1, 3)))
    extra = {"note-ü": f"你好 😀 {chance.random()}"} if chance.random() < 0.3 else {}
    return Draft(
        topic=chance.choice(TOPICS),
        queue_id=chance.randrange(QUEUE_COUNT),
        body=chance.randbytes(chance.choice((0, 1, chance.randrange(body_size_max)))),
        tags=chance.choice(TAGS),
        keys=tuple(f"key-{number}" for number in keys),
        unique_key=unique_key if chance.random() < 0.8 else None,
        extra=extra,
        flag=chance.choice((0, 7, -1, 2**31 - 1)),
        born_timestamp=1_700_000_000_000 + chance.randrange(10**9),
        born_host=chance.choice(HOSTS),
        store_host=chance.choice(HOSTS),
    )


# -- putting into our store ------------------------------------------------------------------------------------------


def fill(store: MessageStore, messages: Sequence[Draft], seed: int) -> Iterator[tuple[Draft, Place]]:
    """Put all messages, changing the way every few; yields each with its place once it is acknowledged."""
    chance = random.Random(seed)
    ways = (_by_put, _by_put_record, _by_put_many, _by_arrow, _by_put_async)
    first = 0
    while first < len(messages):
        some = messages[first : first + chance.randrange(1, 40)]
        way, plain = chance.choice(ways), [draft for draft in some if draft.is_plain]
        yield from way(store, plain) if plain else ()
        yield from _by_put_record(store, [draft for draft in some if not draft.is_plain])
        first += len(some)


def _keywords(draft: Draft) -> dict[str, Any]:
    return {
        "tags": draft.tags,
        "keys": draft.keys or None,
        "unique_key": draft.unique_key,
        "properties": draft.extra,
        "born_timestamp": draft.born_timestamp,
    }


def _by_put(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, Place]]:
    for draft in messages:
        receipt = store.put(draft.topic, draft.body, queue_id=draft.queue_id, **_keywords(draft))
        yield draft, (receipt.queue_offset, receipt.commit_log_offset)


def _by_put_record(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, Place]]:
    for draft in messages:
        receipt = store.queue(*draft.queue).put_record(
            draft.body,
            encode_properties(draft.properties),
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            prepared_transaction_offset=draft.prepared_transaction_offset,
            born_timestamp=draft.born_timestamp,
            born_host=Host.parse(draft.born_host),
            store_host=Host.parse(draft.store_host),
            reconsume_times=draft.queue_id,
        )
        yield draft, (receipt.queue_offset, receipt.commit_log_offset)


def _by_put_many(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, Place]]:
    ordered = sorted(messages, key=lambda draft: draft.queue)
    for queue, group in groupby(ordered, key=lambda draft: draft.queue):
        some = list(group)[:10]  # a list stands together in one file, and files are small here
        receipts = store.queue(*queue).put_many(
            [draft.body for draft in some],
            [encode_properties(draft.properties) for draft in some],
            flags=[draft.flag for draft in some],
        )
        places = [(receipt.queue_offset, receipt.commit_log_offset) for receipt in receipts]
        yield from zip(some, places, strict=True)


def _by_arrow(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, Place]]:
    plain = [draft for draft in messages if draft.topic != LONG_TOPIC]
    batch = pa.RecordBatch.from_pylist(
        [
            {
                "topic": draft.topic,
                "queueId": draft.queue_id,
                "body": draft.body,
                "tags": draft.tags,
                "keys": list(draft.keys),
                "uniqueKey": draft.unique_key,
                "flag": draft.flag,
                "note-ü": draft.extra.get("note-ü"),
            }
            for draft in plain
        ],
        pa.schema(
            {
                "topic": pa.string(),
                "queueId": pa.int32(),
                "body": pa.binary(),
                "tags": pa.string(),
                "keys": pa.list_(pa.string()),
                "uniqueKey": pa.string(),
                "flag": pa.int32(),
                "note-ü": pa.string(),
            }
        ),
    )
    offsets = {queue: iter(given) for queue, given in store.append(batch).items()}
    for draft in plain:
        yield draft, (next(offsets[draft.queue]), -1)


def _by_put_async(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, Place]]:
    async def all_at_once() -> list[Place]:
        puts = [
            store.put_async(draft.topic, draft.body, queue_id=draft.queue_id, **_keywords(draft)) for draft in messages
        ]
        return [(receipt.queue_offset, receipt.commit_log_offset) for receipt in await asyncio.gather(*puts)]

    yield from zip(messages, asyncio.run(all_at_once()), strict=True)


# -- what must be there ----------------------------------------------------------------------------------------------


Content = tuple[bytes, dict[str, str]]
Reading = dict[QueueKey, list[dict[str, Any]]]
"""Messages of each queue, as the request `read` answers them."""


@dataclass(slots=True)
class Ledger:
    """Every message that either side acknowledged, by queue and queue offset.

    A stop without warning may leave more than was acknowledged, never less; what is found then is taken into the books.
    What no queue shows (half a transaction) is booked by its log offset.
    """

    acknowledged: dict[QueueKey, dict[int, Content]] = field(default_factory=dict)
    hidden: dict[int, Content] = field(default_factory=dict)

    def note(self, draft: Draft, place: Place) -> None:
        queue_offset, commit_log_offset = place
        if not draft.enters_queue:
            assert commit_log_offset not in self.hidden, f"log offset {commit_log_offset} was given twice"
            self.hidden[commit_log_offset] = draft.body, draft.properties
            return
        queue = self.acknowledged.setdefault(draft.queue, {})
        assert queue_offset not in queue, f"{draft.queue}: offset {queue_offset} was given twice"
        queue[queue_offset] = draft.body, draft.properties

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values())) + len(self.hidden)

    def check(self, found: Reading, *, exactly: bool) -> None:
        """Compare with what a side reads from the whole store."""
        for queue, messages in self.acknowledged.items():
            there = {message["queue_offset"]: content_of(message) for message in found.get(queue, [])}
            holes = sorted(set(range(max(there, default=-1) + 1)) - there.keys())
            assert not holes, f"{queue} ends at {max(there) + 1} and has holes: {holes}"
            lost = sorted(messages.keys() - there.keys())
            assert not lost, f"{queue}: {len(lost)} acknowledged messages are gone, the first at {lost[0]}"
            for queue_offset, content in messages.items():
                assert there[queue_offset] == content, f"{queue} at {queue_offset}"
        added = {queue: len(messages) - len(self.acknowledged.get(queue, {})) for queue, messages in found.items()}
        assert not exactly or not any(added.values()), f"more than was put: {added}"
        for queue, read in found.items():
            self.acknowledged[queue] = {message["queue_offset"]: content_of(message) for message in read}


def content_of(message: dict[str, Any]) -> Content:
    return base64.b64decode(message["body"]), message["properties"]
