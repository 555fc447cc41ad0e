"""Putting a list of messages without Python in between, bound to one queue; see `put`."""

from stratalog.kernels import put_words as at
from stratalog.kernels.cpython import (
    WORD,
    byte_array_address,
    bytes_address,
    bytes_size,
    call_with,
    forget_error,
    let_go,
    list_item,
    list_size,
    new_bytes,
    new_integer,
    stack,
    tuple_item,
    type_of,
)
from stratalog.kernels.jit import Native, part
from stratalog.kernels.memory import copy, load_le_i64, set_word, store_le_i32, word
from stratalog.kernels.put import NOT_PLAIN, RAISED, is_locked, now_ms, write_front
from stratalog.kernels.put_properties import text_steers
from stratalog.kernels.record import named_values
from stratalog.layout.message import FIXED_SIZE_V1, PROPERTIES_SIZE_MAX

_SIZE_MAX = 4 << 20
"""A list of more bytes goes to the kernel that lets go of the interpreter's lock meanwhile."""
_COUNT_MAX = 1 << 16
_END_SIZE = 4


@part
def _text_of(texts: int, is_list: bool, number: int) -> int:
    return list_item(texts, number) if is_list else texts


@part
def _is_delayed(text: int, size: int) -> bool:
    """Whether a text for all has a delay: RocketMQ has no such lists."""
    return named_values(text, text + size)[7] > 0


@part
def _list_size(queue: int, bodies: int, texts: int, is_list: bool) -> int:
    """Bytes of all records, -1 when Python must look at the list."""
    fixed_size = FIXED_SIZE_V1 + word(queue, at.TOPIC_SIZE)
    total = text_size = 0
    for number in range(list_size(bodies)):
        body_size = bytes_size(list_item(bodies, number))
        if is_list or number == 0:
            text = _text_of(texts, is_list, number)
            text_size = bytes_size(text) if body_size >= 0 else -1
            if text_size > 0 and text_steers(queue, bytes_address(text), text_size):
                return -1
        if body_size < 0 or text_size < 0:
            forget_error()
            return -1
        if body_size > word(queue, at.BODY_SIZE_MAX) or text_size > PROPERTIES_SIZE_MAX:
            return -1
        total += fixed_size + body_size + text_size
    return total


@part
def _write_list(queue: int, log: int, bodies: int, texts: int, is_list: bool, now: int, ends: int) -> int:
    """Write all records behind the log's end; returns their size. `ends` gets that after each."""
    start, queue_offset = word(log, at.LOG_END), word(queue, at.NEXT_OFFSET)
    first = word(log, at.LOG_ADDRESS) + start - word(log, at.LOG_BASE)
    record = first
    for number in range(list_size(bodies)):
        body, text = list_item(bodies, number), _text_of(texts, is_list, number)
        text_size = bytes_size(text)
        dst = write_front(
            queue, record, start + record - first, queue_offset + number, bytes_address(body), bytes_size(body),
            text_size, 0, now,
        )  # fmt: skip
        copy(dst, bytes_address(text), text_size)
        record = dst + text_size
        store_le_i32(ends + _END_SIZE * number, record - first)
    return record - first


@part
def _receipts(queue: int, frame: int, queue_offset: int, start: int, now: int, ends: int) -> int:
    set_word(frame, 0, word(queue, at.QUEUE_OBJECT))
    set_word(frame, 1, new_integer(queue_offset))
    set_word(frame, 2, new_integer(start))
    set_word(frame, 3, new_integer(now))
    set_word(frame, 4, ends)
    receipts = 0
    if word(frame, 1) and word(frame, 2) and word(frame, 3):
        receipts = call_with(word(queue, at.RECEIPTS), frame, 5, 0)
    for number in range(1, 5):
        let_go(word(frame, number))
    return receipts


@part
def _put_many(queue: int, frame: int, bodies: int, texts: int) -> int:
    """Receipts, RAISED or NOT_PLAIN; nothing was written then."""
    log = word(queue, at.LOG)
    now = now_ms(queue, log)
    if now in (RAISED, NOT_PLAIN):
        return now
    # From here to the end no Python code runs: no other thread, no change of what was given.
    count, is_list = list_size(bodies), type_of(texts) == word(queue, at.LIST)
    if is_locked(queue) or (is_list and list_size(texts) != count):
        return NOT_PLAIN
    total = _list_size(queue, bodies, texts, is_list)
    end = word(log, at.LOG_END) - word(log, at.LOG_BASE) + total
    if total < 0 or total > _SIZE_MAX or end > word(log, at.LOG_LIMIT):
        return NOT_PLAIN
    if not is_list and _is_delayed(bytes_address(texts), bytes_size(texts)):
        return NOT_PLAIN
    ends = new_bytes(0, _END_SIZE * count)
    if ends == 0:
        return RAISED
    start, queue_offset = word(log, at.LOG_END), word(queue, at.NEXT_OFFSET)
    written = _write_list(queue, log, bodies, texts, is_list, now, bytes_address(ends))
    set_word(queue, at.NEXT_OFFSET, queue_offset + count)
    set_word(log, at.LOG_END, start + written)
    return _receipts(queue, frame, queue_offset, start, now, ends)


def _put_many_entry(self: int, args: int, count: int, names: int) -> int:
    """As `Queue.put_many`."""
    queue = byte_array_address(tuple_item(self, 0))
    bodies = load_le_i64(args) if count else 0
    texts = load_le_i64(args + WORD) if count == 2 else word(queue, at.EMPTY)
    is_plain = (
        1 <= count <= 2
        and names == 0
        and word(queue, at.WAITS) == 0
        and type_of(bodies) == word(queue, at.LIST)
        and 0 < list_size(bodies) <= _COUNT_MAX
    )
    receipts = _put_many(queue, stack(), bodies, texts) if is_plain else NOT_PLAIN
    if receipts == NOT_PLAIN:
        return call_with(word(queue, at.PUT_MANY), args, count, names)
    return 0 if receipts == RAISED else receipts


put_many = Native(_put_many_entry)
