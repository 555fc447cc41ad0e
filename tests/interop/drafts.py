"""Messages to put, from a seed; how each side puts them, and what must be found afterwards."""

import asyncio
import base64
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from stratalog.layout.message import Host
from stratalog.layout.properties import encode_properties
from stratalog.store.message_store import MessageStore

LONG_TOPIC = "%RETRY%" + "long-group_" * 12
"""More than 127 characters: records of the second version."""
TOPICS = ("Orders", "Payments", "%RETRY%billing", LONG_TOPIC)
QUEUE_COUNT = 3
TAGS = (None, "TagA", "TagB", "标签", "Aa", "BB")  # the last two have one Java hash
KEY_COUNT = 25
HOSTS = ("10.0.0.1:50000", "[fe80::1:2]:40000", "192.168.255.254:65535")
QueueKey = tuple[str, int]


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
            "born_timestamp": self.born_timestamp,
            "born_host": self.born_host,
            "store_host": self.store_host,
            "properties": self.properties,
        }


def drafts(seed: int, count: int, *, body_size_max: int = 1500) -> list[Draft]:
    """The same seed gives the same messages."""
    chance = random.Random(seed)
    return [_draft(chance, f"{seed:08X}{number:024X}", body_size_max) for number in range(count)]


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


def fill(store: MessageStore, messages: Sequence[Draft], seed: int) -> Iterator[tuple[Draft, int]]:
    """Put all messages, changing the way every few; yields each with its queue offset once it is acknowledged."""
    chance = random.Random(seed)
    ways = (_by_put, _by_put_record, _by_put_many, _by_arrow, _by_put_async)
    first = 0
    while first < len(messages):
        some = messages[first : first + chance.randrange(1, 40)]
        yield from chance.choice(ways)(store, some)
        first += len(some)


def _keywords(draft: Draft) -> dict[str, Any]:
    return {
        "tags": draft.tags,
        "keys": draft.keys or None,
        "unique_key": draft.unique_key,
        "properties": draft.extra,
        "born_timestamp": draft.born_timestamp,
    }


def _by_put(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, int]]:
    for draft in messages:
        receipt = store.put(draft.topic, draft.body, queue_id=draft.queue_id, **_keywords(draft))
        yield draft, receipt.queue_offset


def _by_put_record(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, int]]:
    for draft in messages:
        receipt = store.queue(*draft.queue).put_record(
            draft.body,
            encode_properties(draft.properties),
            flag=draft.flag,
            born_timestamp=draft.born_timestamp,
            born_host=Host.parse(draft.born_host),
            store_host=Host.parse(draft.store_host),
            reconsume_times=draft.queue_id,
        )
        yield draft, receipt.queue_offset


def _by_put_many(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, int]]:
    ordered = sorted(messages, key=lambda draft: draft.queue)
    for queue, group in groupby(ordered, key=lambda draft: draft.queue):
        some = list(group)[:10]  # a list stands together in one file, and files are small here
        receipts = store.queue(*queue).put_many(
            [draft.body for draft in some],
            [encode_properties(draft.properties) for draft in some],
            flags=[draft.flag for draft in some],
        )
        yield from ((draft, receipt.queue_offset) for draft, receipt in zip(some, receipts, strict=True))


def _by_arrow(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, int]]:
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
        yield draft, next(offsets[draft.queue])


def _by_put_async(store: MessageStore, messages: Sequence[Draft]) -> Iterator[tuple[Draft, int]]:
    async def all_at_once() -> list[int]:
        puts = [
            store.put_async(draft.topic, draft.body, queue_id=draft.queue_id, **_keywords(draft)) for draft in messages
        ]
        return [receipt.queue_offset for receipt in await asyncio.gather(*puts)]

    yield from zip(messages, asyncio.run(all_at_once()), strict=True)


# -- what must be there ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Ledger:
    """Every message that either side acknowledged, by queue and queue offset.

    A stop without warning may leave more than was acknowledged, never less; what is found then is taken into the books.
    """

    acknowledged: dict[QueueKey, dict[int, tuple[bytes, dict[str, str]]]] = field(default_factory=dict)

    def note(self, draft: Draft, queue_offset: int) -> None:
        queue = self.acknowledged.setdefault(draft.queue, {})
        assert queue_offset not in queue, f"{draft.queue}: offset {queue_offset} was given twice"
        queue[queue_offset] = draft.body, draft.properties

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    def check(self, found: "Reading", *, exactly: bool) -> None:
        """Compare with what a side reads from the whole store."""
        for queue, messages in self.acknowledged.items():
            there = {message["queue_offset"]: _content(message) for message in found.get(queue, [])}
            assert sorted(there) == list(range(len(there))), f"{queue} has holes"
            lost = sorted(messages.keys() - there.keys())
            assert not lost, f"{queue}: {len(lost)} acknowledged messages are gone, the first at {lost[0]}"
            for queue_offset, content in messages.items():
                assert there[queue_offset] == content, f"{queue} at {queue_offset}"
        added = {queue: len(messages) - len(self.acknowledged.get(queue, {})) for queue, messages in found.items()}
        assert not exactly or not any(added.values()), f"more than was put: {added}"
        for queue, read in found.items():
            self.acknowledged[queue] = {message["queue_offset"]: _content(message) for message in read}


Reading = dict[QueueKey, list[dict[str, Any]]]
"""Messages of each queue, as the request `read` answers them."""


def _content(message: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
    return base64.b64decode(message["body"]), message["properties"]
