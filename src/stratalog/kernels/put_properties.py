"""Properties of a put, from the objects that were given to stored text, in RocketMQ's order.

Works in a *frame* on the stack: the keyword args, a few words for CPython to write to, the properties found so far
(rows, in the order of writing), and room to join keys. Nothing of it outlives the call, and no Python code runs.
"""

from stratalog.kernels import put_words as at
from stratalog.kernels.cpython import (
    STACK_WORDS,
    WORD,
    dict_next,
    dict_size,
    forget_error,
    list_item,
    list_size,
    text_address,
    type_of,
)
from stratalog.kernels.encode import holds_separator
from stratalog.kernels.hashing import NO_PREFIX, java_hash
from stratalog.kernels.jit import part
from stratalog.kernels.memory import copy, load_le_i64, load_u8, store_le_i64, store_u8, word
from stratalog.kernels.queue_table import same_bytes
from stratalog.kernels.record import find_byte
from stratalog.layout.javahash import PROPERTY_MAP_CAPACITY
from stratalog.layout.properties import CRC_PROPERTY_SIZE, KEY_SEPARATOR, NAME_END_BYTE, VALUE_END_BYTE, WAIT

GIVEN_TAGS, GIVEN_KEYS, GIVEN_UNIQUE_KEY, GIVEN_PROPERTIES, GIVEN_BORN, GIVEN_WAIT, GIVEN_QUEUE_ID = range(
    at.KEYWORD_COUNT
)
"""The frame's first words: addresses of keyword args, 0 where none was given."""
RECEIPT_WORDS = 14
"""Where the args of a receipt go."""
_SIZE, _STATE, _NAME, _VALUE, _COUNT, _TEXT_SIZE = range(8 * WORD, 14 * WORD, WORD)
_ROWS, _ROW, _ROWS_MAX = 20 * WORD, 5 * WORD, 16
_ROW_NAME, _ROW_NAME_SIZE, _ROW_VALUE, _ROW_VALUE_SIZE, _ROW_BUCKET = range(0, _ROW, WORD)
_JOINED = _ROWS + _ROWS_MAX * _ROW
_JOINED_MAX = 1024
_BUCKET_MASK = PROPERTY_MAP_CAPACITY - 1
assert _JOINED + _JOINED_MAX <= WORD * STACK_WORDS
assert 4 * _ROWS_MAX <= 3 * PROPERTY_MAP_CAPACITY, "the map keeps its capacity"
_OWN_NAMES = 3
_INNER_SIZE, _WAIT_SIZE = len(at.INNER_PREFIX), len(WAIT)
_BLANK = ord(KEY_SEPARATOR)


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
    if type_of(text) != word(queue, at.STR):
        return 0
    address = text_address(text, frame + _SIZE)
    if address == 0:
        forget_error()
    return address


@part
def _add_text(queue: int, frame: int, text: int, name: int, name_size: int, bucket: int) -> bool:
    """A property whose value is a str, or for the keys a list of them."""
    if name == word(queue, at.KEYS_TEXT) and type_of(text) == word(queue, at.LIST):
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
        text = word(frame, number)
        name, size = word(queue, at.TAGS_TEXT + number), word(queue, at.TAGS_SIZE + number)
        if text and not _add_text(queue, frame, text, name, size, word(queue, at.TAGS_BUCKET + number)):
            return False
    return True


@part
def _steers(queue: int, name: int, size: int) -> bool:
    """Whether a property is one with which RocketMQ steers its storing: `INNER_…`, `__CRC32#`; and `WAIT`, where puts
    wait."""
    if size >= _WAIT_SIZE and word(queue, at.WAITS) and same_bytes(name, word(queue, at.WAIT_TEXT), _WAIT_SIZE):
        return True
    if size < _INNER_SIZE:
        return False
    own = same_bytes(name, word(queue, at.INNER_TEXT), _INNER_SIZE)
    return own or same_bytes(name, word(queue, at.CRC_TEXT), _INNER_SIZE)


@part
def text_steers(queue: int, text: int, size: int) -> bool:
    """The same for any property of a stored text; and whether it ends with a zero byte, or like a record CRC, as none
    should."""
    begin, end = text, text + size
    if size and load_u8(end - 1) == 0:  # for `check_stored` to refuse
        return True
    while begin < end:
        if _steers(queue, begin, end - begin):
            return True
        begin = find_byte(begin, end, VALUE_END_BYTE) + 1
    tail = end - CRC_PROPERTY_SIZE
    return tail >= text and same_bytes(tail, word(queue, at.CRC_TEXT), _INNER_SIZE)


@part
def _is_own(queue: int, name: int, size: int) -> bool:
    """Whether a property's name is one that the store gives a meaning: those go the long way."""
    for number in range(_OWN_NAMES):
        if size == word(queue, at.TAGS_SIZE + number) and same_bytes(name, word(queue, at.TAGS_TEXT + number), size):
            return True
    return _steers(queue, name, size)


@part
def _add_mapping(queue: int, frame: int, properties: int) -> bool:
    """All properties of a dict."""
    if properties == 0:
        return True
    if type_of(properties) != word(queue, at.DICT) or dict_size(properties) > _ROWS_MAX:
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
def take_properties(queue: int, frame: int) -> int:
    """Collect what was given by keyword into rows; returns the size of their text, -1 where Python must look at it."""
    store_le_i64(frame + _COUNT, 0)
    store_le_i64(frame + _TEXT_SIZE, 0)
    is_plain = _add_keywords(queue, frame) and _add_mapping(queue, frame, word(frame, GIVEN_PROPERTIES))
    return load_le_i64(frame + _TEXT_SIZE) if is_plain else -1


@part
def write_properties(dst: int, frame: int) -> None:
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
