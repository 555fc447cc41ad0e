"""What the native put works on: words (int64) in two byte arrays that Python and compiled code both see.

One belongs to the log: all its queues share it, and everybody who appends. One belongs to a queue; it also holds the
addresses of the objects that a put compares with or calls, which `QueueWords` keeps alive.
"""

import ctypes
from sys import intern
from typing import Any

from stratalog.layout.javahash import PROPERTY_MAP_CAPACITY, bucket
from stratalog.layout.properties import CRC32, KEYS, TAGS, UNIQUE_KEY

LOG_ADDRESS, LOG_BASE, LOG_LIMIT, LOG_END = range(4)
"""Address and log offset of the newest file, the highest position in it that a record may end at now (-1: nothing may
be put), and the log's end."""
LOG_WORDS = 4

NEXT_OFFSET, LOG, QUEUE_ID, TOPIC, TOPIC_SIZE, HOST, BODY_SIZE_MAX, WAITS = range(8)
"""The queue's next offset, where the log's words are, what a record of the queue holds, its limit, and whether a put
waits for a flush unless told not to."""
CLOCK, LOCKED, RECEIPT, HOST_OBJECT, PUT, PUT_RAW = range(8, 14)
"""Objects: the clock, `locked` of the log's lock, what makes a receipt, the store's host, the functions in Python."""
NONE, TRUE, FALSE, INT, STR, LIST, DICT = range(14, 21)
KEYWORDS = 21
_KEYWORD_NAMES = ("tags", "keys", "unique_key", "properties", "born_timestamp", "wait")
KEYWORD_COUNT = len(_KEYWORD_NAMES)
TAGS_TEXT, KEYS_TEXT, UNIQUE_KEY_TEXT, INNER_TEXT, CRC_TEXT = range(27, 32)
"""Addresses of property names. Then size, and place in RocketMQ's order, of those that have a keyword."""
TAGS_SIZE, TAGS_BUCKET = 32, 35
QUEUE_WORDS = 38
INNER_PREFIX = b"INNER_"
"""Starts the names of properties with which RocketMQ steers its own storing."""

_OBJECTS = (None, True, False, int, str, list, dict, *map(intern, _KEYWORD_NAMES))
_OWN_NAMES = (TAGS, KEYS, UNIQUE_KEY)
_TEXTS = (*(name.encode() for name in _OWN_NAMES), INNER_PREFIX, CRC32.encode())


class Words:
    """So many int64 at an `address` that stays; `view` is for Python."""

    def __init__(self, count: int) -> None:
        self.bytes = bytearray(8 * count)
        self.view = memoryview(self.bytes).cast("q")  # while it exists, the array cannot be resized
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))


class QueueWords(Words):
    """The words of one queue. `owner` is what the builtins get as `self`: it keeps everything alive that they touch."""

    def __init__(
        self, log: Words, *, queue_id: int, next_offset: int, topic: bytes, host: bytes, body_size_max: int, waits: bool
    ) -> None:
        super().__init__(QUEUE_WORDS)
        numbers = (next_offset, log.address, queue_id, _address(topic), len(topic))
        for word, number in enumerate(numbers):
            self.view[word] = number
        self.bytes[8 * HOST : 8 * HOST + len(host)] = host
        self.view[BODY_SIZE_MAX], self.view[WAITS] = body_size_max, waits
        for word, given in enumerate(_OBJECTS, NONE):
            self.view[word] = id(given)
        for word, text in enumerate(_TEXTS, TAGS_TEXT):
            self.view[word] = _address(text)
        for number, name in enumerate(_OWN_NAMES):
            self.view[TAGS_SIZE + number] = len(name)
            self.view[TAGS_BUCKET + number] = bucket(name, PROPERTY_MAP_CAPACITY)
        self.owner: tuple[Any, ...] = (self.bytes, log.bytes, topic, self.view, log.view)

    def set_objects(
        self, *, clock: object, locked: object, receipt: object, host: object, put: object, put_raw: object
    ) -> None:
        """The objects that a put calls; `put` and `put_raw` are the functions in Python."""
        objects = (clock, locked, receipt, host, put, put_raw)
        for word, given in enumerate(objects, CLOCK):
            self.view[word] = id(given)
        self.owner += objects


def _address(text: bytes) -> int:
    """Where the bytes of an object are, as long as it lives."""
    address = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value
    assert address is not None
    return address
