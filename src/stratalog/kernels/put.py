"""Putting one message without Python in between: `put` and `put_raw` as builtins, bound to one queue.

Such a call runs from its first to its last step under the GIL, so that it needs no lock: it looks whether somebody
holds the log's (then memory is about to change), writes the record behind the log's end, and moves the end. Whatever
is not plain goes to the Python function that does the same, unchanged: another type, a text that cannot be stored, a
record that does not fit, a put that has to wait.

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
    dict_next,
    dict_size,
    error_set,
    forget_error,
    integer_of,
    let_go,
    list_item,
    list_size,
    new_integer,
    stack,
    text_address,
    tuple_item,
    tuple_size,
    type_of,
)
from stratalog.kernels.crc32 import body_crc
from stratalog.kernels.encode import (
    BODY_POSITION,
    PROPERTIES_LENGTH_SIZE,
    TOPIC_LENGTH_SIZE,
    holds_separator,
    write_head,
)
from stratalog.kernels.hashing import NO_PREFIX, java_hash
from stratalog.kernels.jit import Native, part
from stratalog.kernels.memory import copy, load_i64, load_le_i64, load_u8, store_i16, store_le_i64, store_u8
from stratalog.kernels.queue_table import same_bytes
from stratalog.kernels.record import find_byte
from stratalog.layout.javahash import PROPERTY_MAP_CAPACITY
from stratalog.layout.message import FIXED_SIZE_V1, PROPERTIES_SIZE_MAX
from stratalog.layout.properties import KEY_SEPARATOR, NAME_END_BYTE, VALUE_END_BYTE

# A call's frame on the stack: the keyword args, a few words for CPython to write to, properties, joined keys.
_GIVEN = 0
_TAGS, _KEYS, _UNIQUE_KEY, _PROPERTIES, _BORN, _WAIT = range(at.KEYWORD_COUNT)
_SIZE, _STATE, _NAME, _VALUE, _COUNT, _TEXT_SIZE = range(6 * WORD, 12 * WORD, WORD)
_RECEIPT = 12 * WORD
_ROWS, _ROW, _ROWS_MAX = 20 * WORD, 5 * WORD, 16
_ROW_NAME, _ROW_NAME_SIZE, _ROW_VALUE, _ROW_VALUE_SIZE, _ROW_BUCKET = range(0, _ROW, WORD)
_JOINED = _ROWS + _ROWS_MAX * _ROW
_JOINED_MAX = 1024

_BUCKET_MASK = PROPERTY_MAP_CAPACITY - 1
assert 4 * _ROWS_MAX <= 3 * PROPERTY_MAP_CAPACITY, "the map keeps its capacity"
_OWN_NAMES = 3
_INNER_SIZE = len(at.INNER_PREFIX)
_BLANK = ord(KEY_SEPARATOR)

_RAISED, _NOT_PLAIN = -(1 << 62), -(1 << 62) + 1
_CLOCK_TRIES = 4


@part
def _word(block: int, number: int) -> int:
    return load_le_i64(block + WORD * number)


@part
def _set_word(block: int, number: int, value: int) -> None:
    store_le_i64(block + WORD * number, value)


@part
def _now_ms(queue: int, log: int) -> int:
    """The clock's time, of a moment in which the log's end stood where it stands now: a clock in Python lets other
    threads run. Or _RAISED, or _NOT_PLAIN."""
    for _ in range(_CLOCK_TRIES):
        end = _word(log, at.LOG_END)
        moment = call(_word(queue, at.CLOCK))
        if moment == 0:
            return _RAISED
        is_int = type_of(moment) == _word(queue, at.INT)
        now_ns = integer_of(moment) if is_int else 0
        let_go(moment)
        if not is_int:
            return _NOT_PLAIN
        if now_ns == -1 and error_set():
            forget_error()
            return _NOT_PLAIN
        if _word(log, at.LOG_END) == end:
            return now_ns // 1_000_000
    return _NOT_PLAIN


@part
def _is_locked(queue: int) -> bool:
    """Whether somebody appends under the log's lock, without the GIL or between two steps in Python."""
    answer = call(_word(queue, at.LOCKED))
    if answer == 0:
        forget_error()
    else:
        let_go(answer)
    return answer != _word(queue, at.FALSE)


@part
def _take_keywords(queue: int, frame: int, args: int, names: int, may_be_none: int) -> bool:
    """Put the keyword args into the frame, 0 for those that are absent or None; False for an unknown name.

    The first `may_be_none` keywords may be None.
    """
    for number in range(at.KEYWORD_COUNT):
        _set_word(frame, number, 0)
    if names == 0:
        return True
    for position in range(tuple_size(names)):
        name, number = tuple_item(names, position), 0
        while number < at.KEYWORD_COUNT and _word(queue, at.KEYWORDS + number) != name:
            number += 1
        if number == at.KEYWORD_COUNT:
            return False
        value = _word(args, position)
        if value != _word(queue, at.NONE):
            _set_word(frame, number, value)
        elif number >= may_be_none:
            return False
    return True


@part
def _born_timestamp(queue: int, frame: int) -> int:
    """What was given, 0 when nothing was, _NOT_PLAIN for what is no time."""
    given = _word(frame, _BORN)
    if given == 0:
        return 0
    if type_of(given) != _word(queue, at.INT):
        return _NOT_PLAIN
    born = integer_of(given)
    if born == -1 and error_set():
        forget_error()
        return _NOT_PLAIN
    return born


@part
def _may_go(queue: int, frame: int) -> bool:
    """Whether the put need not wait for a flush."""
    wait = _word(frame, _WAIT)
    if wait == 0 or wait == _word(queue, at.TRUE):
        return _word(queue, at.WAITS) == 0
    return wait == _word(queue, at.FALSE)


@part
def _add_row(frame: int, name: int, name_size: int, value: int, value_size: int, bucket: int) -> bool:
    """A property into its place: by bucket, within one by insertion, as a Java map iterates."""
    count = load_le_i64(frame + _COUNT)
    if count == _ROWS_MAX or value_size == 0 or holds_separator(value, value_size):
        return False
    row = frame + _ROWS + _ROW * count
    while row > frame + _ROWS and load_le_i64(row - _ROW + _ROW_BUCKET) > bucket:
        copy(row, row - _ROW, _ROW)
        row -= _ROW
    store_le_i64(row + _ROW_NAME, name)
    store_le_i64(row + _ROW_NAME_SIZE, name_size)
    store_le_i64(row + _ROW_VALUE, value)
    store_le_i64(row + _ROW_VALUE_SIZE, value_size)
    store_le_i64(row + _ROW_BUCKET, bucket)
    store_le_i64(frame + _COUNT, count + 1)
    store_le_i64(frame + _TEXT_SIZE, load_le_i64(frame + _TEXT_SIZE) + name_size + value_size + 2)
    return True


@part
def _text(queue: int, frame: int, text: int) -> int:
    """Address of a str's UTF-8, whose size goes into the frame; 0 for anything else."""
    if type_of(text) != _word(queue, at.STR):
        return 0
    address = text_address(text, frame + _SIZE)
    if address == 0:
        forget_error()
    return address


@part
def _add_text(queue: int, frame: int, text: int, name: int, name_size: int, bucket: int) -> bool:
    """A property whose value is a str, or for the keys a list of them."""
    if name == _word(queue, at.KEYS_TEXT) and type_of(text) == _word(queue, at.LIST):
        address, size = frame + _JOINED, _joined_keys(queue, frame, text)
    else:
        address = _text(queue, frame, text)
        size = load_le_i64(frame + _SIZE)
    return address != 0 and _add_row(frame, name, name_size, address, size, bucket)


@part
def _joined_keys(queue: int, frame: int, keys: int) -> int:
    """Join a list of keys with blanks, in the frame; returns the size, 0 for what cannot be joined there."""
    joined = frame + _JOINED
    end = joined
    for number in range(list_size(keys)):
        address = _text(queue, frame, list_item(keys, number))
        size = load_le_i64(frame + _SIZE)
        if address == 0 or size == 0 or end + size + 1 > joined + _JOINED_MAX:
            return 0
        if number:
            store_u8(end, _BLANK)
            end += 1
        for position in range(size):
            byte = load_u8(address + position)
            if byte == _BLANK:
                return 0
            store_u8(end + position, byte)
        end += size
    return end - joined


@part
def _add_keywords(queue: int, frame: int) -> bool:
    """Tags, keys and unique key, where they were given."""
    for number in range(_OWN_NAMES):
        text = _word(frame, number)
        name, size = _word(queue, at.TAGS_TEXT + number), _word(queue, at.TAGS_SIZE + number)
        if text and not _add_text(queue, frame, text, name, size, _word(queue, at.TAGS_BUCKET + number)):
            return False
    return True


@part
def _steers(queue: int, name: int, size: int) -> bool:
    """Whether a property is one with which RocketMQ steers its storing: `INNER_…`, `__CRC32#`."""
    if size < _INNER_SIZE:
        return False
    own = same_bytes(name, _word(queue, at.INNER_TEXT), _INNER_SIZE)
    return own or same_bytes(name, _word(queue, at.CRC_TEXT), _INNER_SIZE)


@part
def _text_steers(queue: int, text: int, size: int) -> bool:
    """The same for any property of a stored text."""
    begin, end = text, text + size
    while begin < end:
        if _steers(queue, begin, end - begin):
            return True
        begin = find_byte(begin, end, VALUE_END_BYTE) + 1
    return False


@part
def _is_own(queue: int, name: int, size: int) -> bool:
    """Whether a property's name is one that the store gives a meaning: those go the long way."""
    for number in range(_OWN_NAMES):
        if size == _word(queue, at.TAGS_SIZE + number) and same_bytes(name, _word(queue, at.TAGS_TEXT + number), size):
            return True
    return _steers(queue, name, size)


@part
def _add_mapping(queue: int, frame: int, properties: int) -> bool:
    """All properties of a dict."""
    if properties == 0:
        return True
    if type_of(properties) != _word(queue, at.DICT) or dict_size(properties) > _ROWS_MAX:
        return False
    store_le_i64(frame + _STATE, 0)
    while dict_next(properties, frame + _STATE, frame + _NAME, frame + _VALUE):
        name = _text(queue, frame, load_le_i64(frame + _NAME))
        size = load_le_i64(frame + _SIZE)
        if name == 0 or size == 0 or holds_separator(name, size) or _is_own(queue, name, size):
            return False
        code = java_hash(NO_PREFIX, name, size)
        place = (code ^ ((code & 0xFFFFFFFF) >> 16)) & _BUCKET_MASK
        if not _add_text(queue, frame, load_le_i64(frame + _VALUE), name, size, place):
            return False
    return True


@part
def _write_rows(dst: int, frame: int) -> None:
    """The properties as stored text."""
    for number in range(load_le_i64(frame + _COUNT)):
        row = frame + _ROWS + _ROW * number
        name_size, value_size = load_le_i64(row + _ROW_NAME_SIZE), load_le_i64(row + _ROW_VALUE_SIZE)
        copy(dst, load_le_i64(row + _ROW_NAME), name_size)
        store_u8(dst + name_size, NAME_END_BYTE)
        dst += name_size + 1
        copy(dst, load_le_i64(row + _ROW_VALUE), value_size)
        store_u8(dst + value_size, VALUE_END_BYTE)
        dst += value_size + 1


@part
def _has_room(queue: int, log: int, body_size: int, properties_size: int) -> bool:
    total = FIXED_SIZE_V1 + body_size + _word(queue, at.TOPIC_SIZE) + properties_size
    return (
        body_size <= _word(queue, at.BODY_SIZE_MAX)
        and properties_size <= PROPERTIES_SIZE_MAX
        and _word(log, at.LOG_END) - _word(log, at.LOG_BASE) + total <= _word(log, at.LOG_LIMIT)
    )


@part
def _write_front(
    queue: int, log: int, body: int, body_size: int, properties_size: int, born_timestamp: int, now: int
) -> int:
    """Everything in front of the properties; returns where they go."""
    start = _word(log, at.LOG_END)
    record = _word(log, at.LOG_ADDRESS) + start - _word(log, at.LOG_BASE)
    topic_size = _word(queue, at.TOPIC_SIZE)
    total = FIXED_SIZE_V1 + body_size + topic_size + properties_size
    host = load_i64(queue + WORD * at.HOST)
    write_head(
        record, total, body_crc(body, body_size), _word(queue, at.QUEUE_ID), 0, _word(queue, at.NEXT_OFFSET), start,
        born_timestamp if born_timestamp else now, host, now, host, body_size,
    )  # fmt: skip
    copy(record + BODY_POSITION, body, body_size)
    topic = record + BODY_POSITION + body_size
    store_u8(topic, topic_size)
    copy(topic + TOPIC_LENGTH_SIZE, _word(queue, at.TOPIC), topic_size)
    properties = topic + TOPIC_LENGTH_SIZE + topic_size
    store_i16(properties, properties_size)
    return properties + PROPERTIES_LENGTH_SIZE


@part
def _commit(queue: int, log: int, frame: int, end: int, now: int) -> int:
    """Move the log's end behind the record, which ends at address `end`; returns a new receipt."""
    start, queue_offset = _word(log, at.LOG_END), _word(queue, at.NEXT_OFFSET)
    total = end - (_word(log, at.LOG_ADDRESS) + start - _word(log, at.LOG_BASE))
    _set_word(queue, at.NEXT_OFFSET, queue_offset + 1)
    _set_word(log, at.LOG_END, start + total)
    args = frame + _RECEIPT
    _set_word(args, 0, new_integer(queue_offset))
    _set_word(args, 1, new_integer(start))
    _set_word(args, 2, new_integer(total))
    _set_word(args, 3, new_integer(now))
    _set_word(args, 4, _word(queue, at.HOST_OBJECT))
    receipt = 0
    if _word(args, 0) and _word(args, 1) and _word(args, 2) and _word(args, 3):
        receipt = call_with(_word(queue, at.RECEIPT), args, 5, 0)
    for number in range(4):
        let_go(_word(args, number))
    return receipt


@part
def _put(queue: int, frame: int, args: int, names: int) -> int:
    """A receipt, _RAISED or _NOT_PLAIN; nothing was written then."""
    body = load_le_i64(args)
    if not _take_keywords(queue, frame, args + WORD, names, _BORN) or not _may_go(queue, frame):
        return _NOT_PLAIN
    log = _word(queue, at.LOG)
    now = _now_ms(queue, log)
    if now in (_RAISED, _NOT_PLAIN):
        return now
    # From here to the end no Python code runs: no other thread, no change of what was given.
    born_timestamp = _born_timestamp(queue, frame)
    if born_timestamp == _NOT_PLAIN or _is_locked(queue):
        return _NOT_PLAIN
    body_at = bytes_address(body)
    if body_at == 0:
        forget_error()
        return _NOT_PLAIN
    store_le_i64(frame + _COUNT, 0)
    store_le_i64(frame + _TEXT_SIZE, 0)
    if not _add_keywords(queue, frame) or not _add_mapping(queue, frame, _word(frame, _PROPERTIES)):
        return _NOT_PLAIN
    body_size, size = bytes_size(body), load_le_i64(frame + _TEXT_SIZE)
    if not _has_room(queue, log, body_size, size):
        return _NOT_PLAIN
    dst = _write_front(queue, log, body_at, body_size, size, born_timestamp, now)
    _write_rows(dst, frame)
    return _commit(queue, log, frame, dst + size, now)


@part
def _put_raw(queue: int, frame: int, args: int, count: int, names: int) -> int:
    """As `_put`."""
    body = load_le_i64(args)
    if not _take_keywords(queue, frame, args + WORD * count, names, 0) or not _may_go(queue, frame):
        return _NOT_PLAIN
    properties = load_le_i64(args + WORD) if count > 1 else _word(frame, _PROPERTIES)
    if _word(frame, _TAGS) or _word(frame, _KEYS) or _word(frame, _UNIQUE_KEY):
        return _NOT_PLAIN
    if count > 1 and _word(frame, _PROPERTIES):
        return _NOT_PLAIN
    log = _word(queue, at.LOG)
    now = _now_ms(queue, log)
    if now in (_RAISED, _NOT_PLAIN):
        return now
    born_timestamp = _born_timestamp(queue, frame)
    if born_timestamp == _NOT_PLAIN or _is_locked(queue):
        return _NOT_PLAIN
    body_at = bytes_address(body)
    text_at = bytes_address(properties) if body_at and properties else 0
    if body_at == 0 or (properties and text_at == 0):
        forget_error()
        return _NOT_PLAIN
    body_size, size = bytes_size(body), bytes_size(properties) if properties else 0
    if not _has_room(queue, log, body_size, size) or _text_steers(queue, text_at, size):
        return _NOT_PLAIN
    dst = _write_front(queue, log, body_at, body_size, size, born_timestamp, now)
    copy(dst, text_at, size)
    return _commit(queue, log, frame, dst + size, now)


def _put_entry(self: int, args: int, count: int, names: int) -> int:
    queue = byte_array_address(tuple_item(self, 0))
    receipt = _put(queue, stack(), args, names) if count == 1 else _NOT_PLAIN
    if receipt == _NOT_PLAIN:
        return call_with(_word(queue, at.PUT), args, count, names)
    return 0 if receipt == _RAISED else receipt


def _put_raw_entry(self: int, args: int, count: int, names: int) -> int:
    queue = byte_array_address(tuple_item(self, 0))
    receipt = _put_raw(queue, stack(), args, count, names) if 1 <= count <= 2 else _NOT_PLAIN
    if receipt == _NOT_PLAIN:
        return call_with(_word(queue, at.PUT_RAW), args, count, names)
    return 0 if receipt == _RAISED else receipt


put, put_raw = Native(_put_entry), Native(_put_raw_entry)
