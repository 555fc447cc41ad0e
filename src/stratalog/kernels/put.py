"""Putting one message without Python in between: `put` and `put_raw` as builtins, bound to one queue.

Such a call runs from its first to its last step under the GIL, so that it needs no lock: it looks whether somebody
holds the log's (then memory is about to change), writes the record behind the log's end, and moves the end. Whatever
is not plain goes to the Python function that does the same, unchanged: another type, a text that cannot be stored, a
record that does not fit. A put that has to wait calls, when its record is there, what waits.

What it works on is in `put_words`.
"""

from stratalog.kernels import put_words as at
from stratalog.kernels.cpython import (
    WORD,
    byte_array_address,
    bytes_address,
    bytes_size,
    call,
    call_with,
    dict_item,
    error_set,
    forget_error,
    integer_of,
    keep,
    let_go,
    new_integer,
    stack,
    tuple_item,
    tuple_size,
    type_of,
)
from stratalog.kernels.crc32 import body_crc
from stratalog.kernels.encode import (
    BODY_POSITION,
    PROPERTIES_LENGTH_SIZE,
    TOPIC_LENGTH_SIZE,
    write_head,
)
from stratalog.kernels.jit import Native, part
from stratalog.kernels.memory import copy, load_i64, load_le_i64, set_word, store_i16, store_u8, word
from stratalog.kernels.put_properties import (
    GIVEN_BORN,
    GIVEN_KEYS,
    GIVEN_PROPERTIES,
    GIVEN_QUEUE_ID,
    GIVEN_TAGS,
    GIVEN_UNIQUE_KEY,
    GIVEN_WAIT,
    RECEIPT_WORDS,
    take_properties,
    text_steers,
    write_properties,
)
from stratalog.layout.message import FIXED_SIZE_V1, PROPERTIES_SIZE_MAX

RAISED, NOT_PLAIN = -(1 << 62), -(1 << 62) + 1
_CLOCK_TRIES = 4


@part
def now_ms(queue: int, log: int) -> int:
    """The clock's time, of a moment in which the log's end stood where it stands now: a clock in Python lets other
    threads run. Or RAISED, or NOT_PLAIN."""
    for _ in range(_CLOCK_TRIES):
        end = word(log, at.LOG_END)
        moment = call(word(queue, at.CLOCK))
        if moment == 0:
            return RAISED
        is_int = type_of(moment) == word(queue, at.INT)
        now_ns = integer_of(moment) if is_int else 0
        let_go(moment)
        if not is_int:
            return NOT_PLAIN
        if now_ns == -1 and error_set():
            forget_error()
            return NOT_PLAIN
        if word(log, at.LOG_END) == end:
            return now_ns // 1_000_000
    return NOT_PLAIN


@part
def is_locked(queue: int) -> bool:
    """Whether somebody appends under the log's lock, without the GIL or between two steps in Python."""
    answer = call(word(queue, at.LOCKED))
    if answer == 0:
        forget_error()
    else:
        let_go(answer)
    return answer != word(queue, at.FALSE)


@part
def _take_keywords(queue: int, frame: int, args: int, names: int, known: int, may_be_none: int) -> bool:
    """Put the keyword args into the frame, 0 for those that are absent or None; False for an unknown name.

    The first `known` keywords may be given, the first `may_be_none` of them as None.
    """
    for number in range(at.KEYWORD_COUNT):
        set_word(frame, number, 0)
    if names == 0:
        return True
    for position in range(tuple_size(names)):
        name, number = tuple_item(names, position), 0
        while number < known and word(queue, at.KEYWORDS + number) != name:
            number += 1
        if number == known:
            return False
        value = word(args, position)
        if value != word(queue, at.NONE):
            set_word(frame, number, value)
        elif number >= may_be_none:
            return False
    return True


@part
def _born_timestamp(queue: int, frame: int) -> int:
    """What was given, 0 when nothing was, NOT_PLAIN for what is no time."""
    given = word(frame, GIVEN_BORN)
    if given == 0:
        return 0
    if type_of(given) != word(queue, at.INT):
        return NOT_PLAIN
    born = integer_of(given)
    if born == -1 and error_set():
        forget_error()
        return NOT_PLAIN
    return born


@part
def _is_flag(queue: int, wait: int) -> bool:
    """Whether the keyword `wait` is absent, True or False."""
    return wait == 0 or wait == word(queue, at.TRUE) or wait == word(queue, at.FALSE)


@part
def _when_durable(queue: int, frame: int, receipt: int, end_offset: int) -> int:
    """The receipt of a record that ends there, after the flush if the put waits for one; or RAISED."""
    if receipt == 0 or word(queue, at.WAITS) == 0 or word(frame, GIVEN_WAIT) == word(queue, at.FALSE):
        return receipt
    args = frame + WORD * RECEIPT_WORDS
    set_word(args, 0, new_integer(end_offset))
    done = call_with(word(queue, at.SYNC), args, 1, 0) if word(args, 0) else 0
    let_go(word(args, 0))
    let_go(done)
    if done == 0:
        let_go(receipt)
        return RAISED
    return receipt


@part
def _has_room(queue: int, log: int, body_size: int, properties_size: int) -> bool:
    total = FIXED_SIZE_V1 + body_size + word(queue, at.TOPIC_SIZE) + properties_size
    return (
        body_size <= word(queue, at.BODY_SIZE_MAX)
        and properties_size <= PROPERTIES_SIZE_MAX
        and word(log, at.LOG_END) - word(log, at.LOG_BASE) + total <= word(log, at.LOG_LIMIT)
    )


@part
def write_front(
    queue: int, record: int, start: int, queue_offset: int, body: int, body_size: int, properties_size: int,
    born_timestamp: int, now: int,
) -> int:  # fmt: skip
    """Everything in front of the properties, at address `record`, log offset `start`; returns where they go."""
    topic_size = word(queue, at.TOPIC_SIZE)
    total = FIXED_SIZE_V1 + body_size + topic_size + properties_size
    host = load_i64(queue + WORD * at.HOST)
    write_head(
        record, total, body_crc(body, body_size), word(queue, at.QUEUE_ID), 0, queue_offset, start,
        born_timestamp if born_timestamp else now, host, now, host, body_size,
    )  # fmt: skip
    copy(record + BODY_POSITION, body, body_size)
    topic = record + BODY_POSITION + body_size
    store_u8(topic, topic_size)
    copy(topic + TOPIC_LENGTH_SIZE, word(queue, at.TOPIC), topic_size)
    properties = topic + TOPIC_LENGTH_SIZE + topic_size
    store_i16(properties, properties_size)
    return properties + PROPERTIES_LENGTH_SIZE


@part
def _place(queue: int, log: int, body: int, body_size: int, properties_size: int, born_timestamp: int, now: int) -> int:
    """`write_front` behind the log's end."""
    start = word(log, at.LOG_END)
    return write_front(
        queue, word(log, at.LOG_ADDRESS) + start - word(log, at.LOG_BASE), start, word(queue, at.NEXT_OFFSET),
        body, body_size, properties_size, born_timestamp, now,
    )  # fmt: skip


@part
def _commit(queue: int, log: int, frame: int, end: int, now: int) -> int:
    """Move the log's end behind the record, which ends at address `end`; returns a new receipt, when the record is as
    durable as it has to be, or RAISED."""
    start, queue_offset = word(log, at.LOG_END), word(queue, at.NEXT_OFFSET)
    total = end - (word(log, at.LOG_ADDRESS) + start - word(log, at.LOG_BASE))
    set_word(queue, at.NEXT_OFFSET, queue_offset + 1)
    set_word(log, at.LOG_END, start + total)
    args = frame + WORD * RECEIPT_WORDS
    set_word(args, 0, new_integer(queue_offset))
    set_word(args, 1, new_integer(start))
    set_word(args, 2, new_integer(total))
    set_word(args, 3, new_integer(now))
    set_word(args, 4, word(queue, at.HOST_OBJECT))
    receipt = 0
    if word(args, 0) and word(args, 1) and word(args, 2) and word(args, 3):
        receipt = call_with(word(queue, at.RECEIPT), args, 5, 0)
    for number in range(4):
        let_go(word(args, number))
    return _when_durable(queue, frame, receipt, start + total)


@part
def _put(queue: int, frame: int, body: int) -> int:
    """Put with the keywords in the frame; returns a receipt, RAISED or, when nothing was written, NOT_PLAIN."""
    if not _is_flag(queue, word(frame, GIVEN_WAIT)):
        return NOT_PLAIN
    log = word(queue, at.LOG)
    now = now_ms(queue, log)
    if now in (RAISED, NOT_PLAIN):
        return now
    # From here to the end no Python code runs: no other thread, no change of what was given.
    born_timestamp = _born_timestamp(queue, frame)
    if born_timestamp == NOT_PLAIN or is_locked(queue):
        return NOT_PLAIN
    body_at = bytes_address(body)
    if body_at == 0:
        forget_error()
        return NOT_PLAIN
    body_size, size = bytes_size(body), take_properties(queue, frame)
    if size < 0 or not _has_room(queue, log, body_size, size):
        return NOT_PLAIN
    dst = _place(queue, log, body_at, body_size, size, born_timestamp, now)
    write_properties(dst, frame)
    return _commit(queue, log, frame, dst + size, now)


@part
def _put_raw(queue: int, frame: int, args: int, count: int, names: int) -> int:
    """As `_put`."""
    body = load_le_i64(args)
    if not _take_keywords(queue, frame, args + WORD * count, names, GIVEN_QUEUE_ID, 0):
        return NOT_PLAIN
    if not _is_flag(queue, word(frame, GIVEN_WAIT)):
        return NOT_PLAIN
    properties = load_le_i64(args + WORD) if count > 1 else word(frame, GIVEN_PROPERTIES)
    if word(frame, GIVEN_TAGS) or word(frame, GIVEN_KEYS) or word(frame, GIVEN_UNIQUE_KEY):
        return NOT_PLAIN
    if count > 1 and word(frame, GIVEN_PROPERTIES):
        return NOT_PLAIN
    log = word(queue, at.LOG)
    now = now_ms(queue, log)
    if now in (RAISED, NOT_PLAIN):
        return now
    born_timestamp = _born_timestamp(queue, frame)
    if born_timestamp == NOT_PLAIN or is_locked(queue):
        return NOT_PLAIN
    body_at = bytes_address(body)
    text_at = bytes_address(properties) if body_at and properties else 0
    if body_at == 0 or (properties and text_at == 0):
        forget_error()
        return NOT_PLAIN
    body_size, size = bytes_size(body), bytes_size(properties) if properties else 0
    if not _has_room(queue, log, body_size, size) or text_steers(queue, text_at, size):
        return NOT_PLAIN
    dst = _place(queue, log, body_at, body_size, size, born_timestamp, now)
    copy(dst, text_at, size)
    return _commit(queue, log, frame, dst + size, now)


@part
def _queue_of(store: int, frame: int, topic: int) -> int:
    """The owner of a queue's words, borrowed, or 0."""
    queue_id = word(frame, GIVEN_QUEUE_ID)
    if queue_id == 0:
        queue_id = word(store, at.ZERO)
    if type_of(topic) != word(store, at.STR) or type_of(queue_id) != word(store, at.INT):
        return 0
    ids = dict_item(word(store, at.QUEUES), topic)
    owner = dict_item(ids, queue_id) if ids else 0
    if owner == 0 and error_set():
        forget_error()
    return owner


def _put_entry(self: int, args: int, count: int, names: int) -> int:
    """As `Queue.put`, or with a topic in front and `queue_id` as `MessageStore.put`."""
    words = byte_array_address(tuple_item(self, 0))
    frame = stack()
    is_store = word(words, at.QUEUES) != 0
    expected, known = (2, at.KEYWORD_COUNT) if is_store else (1, GIVEN_QUEUE_ID)
    receipt = NOT_PLAIN
    if count == expected and _take_keywords(words, frame, args + WORD * count, names, known, GIVEN_BORN):
        owner = _queue_of(words, frame, load_le_i64(args)) if is_store else self
        if owner:
            keep(owner)
            queue = byte_array_address(tuple_item(owner, 0))
            receipt = _put(queue, frame, word(args, count - 1))
            let_go(owner)
    if receipt == NOT_PLAIN:
        return call_with(word(words, at.PUT), args, count, names)
    return 0 if receipt == RAISED else receipt


def _put_raw_entry(self: int, args: int, count: int, names: int) -> int:
    """As `Queue.put_raw`."""
    queue = byte_array_address(tuple_item(self, 0))
    receipt = _put_raw(queue, stack(), args, count, names) if 1 <= count <= 2 else NOT_PLAIN
    if receipt == NOT_PLAIN:
        return call_with(word(queue, at.PUT_RAW), args, count, names)
    return 0 if receipt == RAISED else receipt


put, put_raw = Native(_put_entry), Native(_put_raw_entry)
