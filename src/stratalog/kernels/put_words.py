"""What the native put works on: words (int64) in two byte arrays that Python and compiled code both see.

One belongs to the log: all its queues share it, and everybody who appends. One belongs to a queue, and one, of the same
shape, to the store; these also hold the addresses of the objects that a put compares with or calls.
"""

import ctypes
from sys import intern
from typing import Any

from stratalog.layout.javahash import PROPERTY_MAP_CAPACITY, bucket
from stratalog.layout.properties import CRC32, KEYS, TAGS, UNIQUE_KEY, WAIT

LOG_ADDRESS, LOG_BASE, LOG_LIMIT, LOG_END = range(4)
"""Address and log offset of the newest file, the highest position in it that a record may end at now (-1: nothing may
be put), and the log's end."""
LOG_WORDS = 4

NEXT_OFFSET, LOG, QUEUE_ID, TOPIC, TOPIC_SIZE, HOST, BODY_SIZE_MAX, WAITS = range(8)
"""The queue's next offset, where the log's words are, what a record of the queue holds, its limit, and whether a put
waits for a flush unless told not to."""
CLOCK, LOCKED, RECEIPT, HOST_OBJECT, PUT, PUT_RAW, PUT_MANY, RECEIPTS, QUEUE_OBJECT, SYNC = range(8, 18)
"""Objects: the clock, `locked` of the log's lock, what makes a receipt, the store's host, the functions in Python, the
queue, and what waits until the log is durable up to an offset."""
NONE, TRUE, FALSE, INT, STR, LIST, DICT, EMPTY = range(18, 26)
KEYWORDS = 26
_KEYWORD_NAMES = ("tags", "keys", "unique_key", "properties", "born_timestamp", "wait", "queue_id")
KEYWORD_COUNT = len(_KEYWORD_NAMES)
TAGS_TEXT, KEYS_TEXT, UNIQUE_KEY_TEXT, INNER_TEXT, CRC_TEXT, WAIT_TEXT = range(33, 39)
"""Addresses of property names. Then size, and place in RocketMQ's order, of those that have a keyword."""
TAGS_SIZE, TAGS_BUCKET = 39, 42
QUEUES, ZERO = 45, 46
"""Of a store: the dict of topics that holds dicts of queue ids that hold a queue's `owner`; and the queue id 0."""
WORD_COUNT = 47
INNER_PREFIX = b"INNER_"
"""Starts the names of properties with which RocketMQ steers its own storing."""

_OBJECTS = (None, True, False, int, str, list, dict, b"", *map(intern, _KEYWORD_NAMES))
_OWN_NAMES = (TAGS, KEYS, UNIQUE_KEY)
_TEXTS = (*(name.encode() for name in _OWN_NAMES), INNER_PREFIX, CRC32.encode(), WAIT.encode())


class Words:
    """So many int64 at an `address` that stays; `view` is for Python."""

    def __init__(self, count: int) -> None:
        self.bytes = bytearray(8 * count)
        self.view = memoryview(self.bytes).cast("q")  # while it exists, the array cannot be resized
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))


class PutWords(Words):
    """The words of a queue or a store. `owner` becomes the builtins' `self`: it keeps alive what they touch."""

    def __init__(self) -> None:
        super().__init__(WORD_COUNT)
        self.owner: tuple[Any, ...] = (self.bytes, self.view)
        self.set_objects(NONE, *_OBJECTS)
        for word, text in enumerate(_TEXTS, TAGS_TEXT):
            self.view[word] = _address(text)
        for number, name in enumerate(_OWN_NAMES):
            self.view[TAGS_SIZE + number] = len(name)
            self.view[TAGS_BUCKET + number] = bucket(name, PROPERTY_MAP_CAPACITY)

    def set_objects(self, first_word: int, *objects: object) -> None:
        """Let consecutive words stand for objects."""
        for word, given in enumerate(objects, first_word):
            self.view[word] = id(given)
        self.owner += objects


class QueueWords(PutWords):
    """The words of one queue."""

    def __init__(
        self, log: Words, *, queue_id: int, next_offset: int, topic: bytes, host: bytes, body_size_max: int, waits: bool
    ) -> None:
        super().__init__()
        numbers = (next_offset, log.address, queue_id, _address(topic), len(topic))
        for word, number in enumerate(numbers, NEXT_OFFSET):
            self.view[word] = number
        self.bytes[8 * HOST : 8 * HOST + len(host)] = host
        self.view[BODY_SIZE_MAX], self.view[WAITS] = body_size_max, waits
        self.owner += (log.bytes, log.view, topic)


class StoreWords(PutWords):
    """The words of a store: which queues it can put to, and `put`, the function in Python."""

    def __init__(self, put: object) -> None:
        super().__init__()
        self.queues: dict[str, dict[int, tuple[Any, ...]]] = {}
        self.set_objects(PUT, put)
        self.set_objects(QUEUES, self.queues, 0)

    def add(self, topic: str, queue_id: int, words: QueueWords) -> None:
        self.queues.setdefault(topic, {})[queue_id] = words.owner


def _address(text: bytes) -> int:
    """Where the bytes of an object are, as long as it lives."""
    address = ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value
    assert address is not None
    return address
