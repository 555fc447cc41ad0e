"""Finding the parts of a record, for use inside kernels. The record's lengths must have been checked (`scan`)."""

from stratalog.kernels.jit import part
from stratalog.kernels.memory import (
    BLOCK_SIZE,
    PAGE_SIZE,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    match_block,
    prefetch,
    trailing_zeros,
)
from stratalog.layout.message import (
    HEAD,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    V6_EXTRA,
)
from stratalog.layout.properties import (
    DELAY,
    KEYS,
    NAME_END_BYTE,
    TAGS,
    UNIQUE_KEY,
    VALUE_END_BYTE,
    name_as_number,
)
from stratalog.layout.sysflag import SysFlag

MAGIC = HEAD.position("magic")
SYS_FLAG = HEAD.position("sys_flag")
STORE_TIMESTAMP = HEAD.position("store_timestamp")
BODY_SIZE = HEAD.position("body_size")
BODY_SIZE_SIZE = HEAD.size - BODY_SIZE
TOPIC_LENGTH_SIZE_V1, TOPIC_LENGTH_SIZE_V2 = TOPIC_LENGTH_V1.size, TOPIC_LENGTH_V2.size
PROPERTIES_LENGTH_SIZE = PROPERTIES_LENGTH.size
BORN_HOST_V6, STORE_HOST_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)

assert len(TAGS) == len(KEYS) == 4
assert len(UNIQUE_KEY) == 8
assert len(DELAY) == 5
_TAGS, _KEYS, _UNIQUE_KEY = (name_as_number(name) for name in (TAGS, KEYS, UNIQUE_KEY))
_DELAY, _DELAY_LAST = name_as_number(DELAY[:4]), ord(DELAY[4])
_SHORTEST_NAMED = len(TAGS) + 2


PREFETCH_RECORDS = 8
"""Kernels that look at one record after the other fetch this many ahead: records of 1 KB take a third of the time."""
_LINE_SIZE, _TAIL_LINES, _HEAD_LINES = 64, 4, 2


@part
def prefetch_around(record: int) -> None:
    """Have the head of the record at this address fetched, with topic and properties of the one before it. The body is
    left out. Any address will do."""
    for line in range(-_TAIL_LINES, _HEAD_LINES):
        prefetch(record + _LINE_SIZE * line)


@part
def born_extra(sys_flag: int) -> int:
    """Bytes that the fields behind the born host stand further back than in an IPv4 record."""
    return V6_EXTRA if sys_flag & BORN_HOST_V6 else 0


@part
def hosts_extra(sys_flag: int) -> int:
    """Bytes that the fields behind the store host stand further back than in an IPv4 record."""
    return born_extra(sys_flag) + (V6_EXTRA if sys_flag & STORE_HOST_V6 else 0)


@part
def store_timestamp_of(record: int) -> int:
    """Store time in ms of the record at this address."""
    return load_i64(record + STORE_TIMESTAMP + born_extra(load_i32(record + SYS_FLAG)))


@part
def body_of(record: int) -> tuple[int, int]:
    """Address and size of the body."""
    at = record + BODY_SIZE + hosts_extra(load_i32(record + SYS_FLAG))
    return at + BODY_SIZE_SIZE, load_i32(at)


@part
def topic_of(record: int) -> tuple[int, int]:
    """Address and size of the topic."""
    body, body_size = body_of(record)
    at = body + body_size
    if load_i32(record + MAGIC) == MAGIC_V2:
        return at + TOPIC_LENGTH_SIZE_V2, load_i16(at)
    return at + TOPIC_LENGTH_SIZE_V1, load_u8(at)


@part
def properties_of(record: int) -> tuple[int, int]:
    """Begin and end address of the properties' text."""
    topic, topic_size = topic_of(record)
    return properties_behind(topic + topic_size)


@part
def properties_behind(topic_end: int) -> tuple[int, int]:
    """The same, for who knows the topic's end."""
    begin = topic_end + PROPERTIES_LENGTH_SIZE
    return begin, begin + load_i16(topic_end)


@part
def find_byte(begin: int, end: int, byte: int) -> int:
    """Address of the first `byte` in [begin, end), or `end`."""
    if begin >= end:
        return end
    matches, behind = matches_at(begin, byte)
    while matches == 0:
        if behind >= end:
            return end
        begin = behind
        matches, behind = matches_at(begin, byte)
    return min(begin + trailing_zeros(matches), end)


@part
def matches_at(begin: int, byte: int) -> tuple[int, int]:
    """Which bytes from `begin` on equal `byte` (bit 0: the first), and the address behind those that were looked at.

    These are BLOCK_SIZE, or what is left of the page: the first can be read, one in the next page perhaps not.
    """
    beyond = (begin & (PAGE_SIZE - 1)) - (PAGE_SIZE - BLOCK_SIZE)
    if beyond <= 0:
        return match_block(begin, byte), begin + BLOCK_SIZE
    rest = BLOCK_SIZE - beyond
    return match_block(begin - beyond, byte) >> beyond & ((1 << rest) - 1), begin + rest


@part
def named_values(begin: int, end: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Address and size of TAGS, KEYS, UNIQ_KEY and DELAY in a properties text; size 0 = absent. The last one wins."""
    tags, tags_size, keys, keys_size = end, 0, end, 0
    unique, unique_size, delay, delay_size = end, 0, end, 0
    if begin >= end:
        return tags, tags_size, keys, keys_size, unique, unique_size, delay, delay_size
    block = begin
    value_ends, block_end = matches_at(block, VALUE_END_BYTE)
    while begin < end:
        while value_ends == 0 and block_end < end:
            block = block_end
            value_ends, block_end = matches_at(block, VALUE_END_BYTE)
        stop = min(block + trailing_zeros(value_ends), end) if value_ends else end
        value_ends &= value_ends - 1
        if stop - begin >= _SHORTEST_NAMED:
            name, behind = load_i32(begin), load_u8(begin + 4)
            if behind == NAME_END_BYTE:
                if name == _TAGS:
                    tags, tags_size = begin + 5, stop - begin - 5
                elif name == _KEYS:
                    keys, keys_size = begin + 5, stop - begin - 5
            elif stop - begin > 6 and behind == _DELAY_LAST and name == _DELAY and load_u8(begin + 5) == NAME_END_BYTE:
                delay, delay_size = begin + 6, stop - begin - 6
            elif stop - begin > 9 and load_i64(begin) == _UNIQUE_KEY and load_u8(begin + 8) == NAME_END_BYTE:
                unique, unique_size = begin + 9, stop - begin - 9
        begin = stop + 1
    return tags, tags_size, keys, keys_size, unique, unique_size, delay, delay_size
