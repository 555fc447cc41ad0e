"""The messages that are measured: the same in every run, of a shape that RocketMQ's users know.

A message has five properties (KEYS, UNIQ_KEY, TAGS and two of the user's), so its record takes about 190 bytes more
than the body. Bodies are random bytes: nothing in the way of a message looks at them but the checksum.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from stratalog.layout.message import FIXED_SIZE_V1

SEED = 20240607
TOPIC = "orders"
TAGS = ("created", "paid", "sent", "returned")
REGION, VERSION = "eu-west", "1.4.2"
_POOL = 1024


def key_of(number: int) -> str:
    """The key that only this message has."""
    return f"order-{number:012d}"


@dataclass(frozen=True)
class Messages:
    """`count` messages with bodies of `body_size` bytes, numbered from `first`, in the forms that ways in take."""

    count: int
    body_size: int
    first: int = 0

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)

    @cached_property
    def bodies(self) -> list[bytes]:
        """A pool of bodies, used in turn."""
        data = np.random.default_rng(SEED).bytes(_POOL * self.body_size)
        pool = [data[i * self.body_size : (i + 1) * self.body_size] for i in range(_POOL)]
        return [pool[i % _POOL] for i in range(self.count)]

    @cached_property
    def keys(self) -> list[str]:
        return [key_of(number) for number in self.numbers]

    @cached_property
    def unique_keys(self) -> list[str]:
        return [f"7F0000012A9F18B4AAC2{number:012X}" for number in self.numbers]

    @cached_property
    def tags(self) -> list[str]:
        return [TAGS[number % len(TAGS)] for number in self.numbers]

    @cached_property
    def raw_properties(self) -> list[bytes]:
        """Encoded properties, as a bound queue takes them."""
        return [
            f"KEYS\x01{key}\x02UNIQ_KEY\x01{unique}\x02TAGS\x01{tag}\x02"
            f"region\x01{REGION}\x02version\x01{VERSION}\x02".encode()
            for key, unique, tag in zip(self.keys, self.unique_keys, self.tags, strict=True)
        ]

    @cached_property
    def record_size(self) -> float:
        """Average bytes of a record. Only the tags differ in length, in turn."""
        properties = sum(map(len, Messages(len(TAGS), 0).raw_properties)) / len(TAGS)
        return FIXED_SIZE_V1 + len(TOPIC) + self.body_size + properties

    def batches(self, rows: int, *, queue_count: int = 1) -> Iterator[pa.RecordBatch]:
        """As Arrow batches of so many rows, made one after the other."""
        for first in range(self.first, self.first + self.count, rows):
            count = min(rows, self.first + self.count - first)
            yield Messages(count, self.body_size, first).batch(queue_count=queue_count)

    def batch(self, *, queue_count: int = 1) -> pa.RecordBatch:
        """As one Arrow batch, spread over queues in turn."""
        columns: dict[str, Any] = {
            "body": pa.array(self.bodies, pa.binary()),
            "queueId": pa.array(np.array(self.numbers, np.int32) % queue_count),
            "keys": pa.array(self.keys),
            "uniqueKey": pa.array(self.unique_keys),
            "tags": pa.array(self.tags),
            "region": pa.array([REGION] * self.count),
            "version": pa.array([VERSION] * self.count),
        }
        return pa.RecordBatch.from_pydict(columns)
