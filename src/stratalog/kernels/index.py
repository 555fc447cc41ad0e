"""Filling and asking a local IndexFile (IndexFile, IndexService)."""

from stratalog.kernels.hashing import NO_PREFIX, java_hash
from stratalog.kernels.jit import kernel, part
from stratalog.kernels.memory import load_i32, load_i64, store_i32, store_i64
from stratalog.kernels.queue_table import Int64Array
from stratalog.kernels.record import (
    PREFETCH_RECORDS,
    SYS_FLAG,
    find_byte,
    named_values,
    prefetch_around,
    properties_of,
    store_timestamp_of,
    topic_of,
)
from stratalog.layout.index import HEADER, ITEM, KEY_SEPARATOR, SLOT, TAG_KEY_PREFIX, slots_position
from stratalog.layout.javahash import INT_MIN, string_hash
from stratalog.layout.properties import KEY_SEPARATOR as KEYS_SEPARATOR
from stratalog.layout.sysflag import TRANSACTION_MASK, Transaction

HEADER_BEGIN_TIMESTAMP, HEADER_END_TIMESTAMP = 0, 1
HEADER_BEGIN_OFFSET, HEADER_END_OFFSET = 2, 3
HEADER_USED_SLOTS, HEADER_NEXT_ITEM = 4, 5
HEADER_FIELDS = 6
"""The header in memory is int64[6], in the order of its layout."""
assert [field.name for field in HEADER.fields] == [
    "begin_timestamp",
    "end_timestamp",
    "begin_commit_log_offset",
    "end_commit_log_offset",
    "used_slot_count",
    "next_item",
]

_SLOTS, _SLOT_SIZE, ITEM_SIZE = slots_position(), SLOT.size, ITEM.size
_KEY_HASH, _COMMIT_LOG_OFFSET = ITEM.position("key_hash"), ITEM.position("commit_log_offset")
_SECONDS, _PREVIOUS = ITEM.position("seconds"), ITEM.position("previous_item")
_SECONDS_MAX = 2**31 - 1
_MS = 1000

_SEPARATOR = ord(KEY_SEPARATOR)
_SPACE = ord(KEYS_SEPARATOR)
_BASE = 31
_TAG_PREFIX_FACTOR = _BASE ** len(TAG_KEY_PREFIX)
_TAG_PREFIX_HASH = string_hash(TAG_KEY_PREFIX)
_ROLLBACK = int(Transaction.ROLLBACK)
_INT_MIN = INT_MIN


@part
def key_hash_of(hash_code: int) -> int:
    """Non-negative key hash of a signed hash; 0 for the smallest int (IndexFile.indexKeyHashMethod)."""
    return 0 if hash_code == _INT_MIN else abs(hash_code)


@part
def key_prefix(topic: int, size: int) -> int:
    """Hash of what stands before a key in the hashed text: the topic's UTF-8 and the separator."""
    return _BASE * java_hash(NO_PREFIX, topic, size) + _SEPARATOR


@part
def items_of(index_address: int, slot_count: int) -> int:
    """Where item 0 would stand."""
    return index_address + _SLOTS + _SLOT_SIZE * slot_count


@part
def slot_of(index_address: int, slot_count: int, key_hash: int) -> int:
    """Where a hash's slot is."""
    return index_address + _SLOTS + _SLOT_SIZE * (key_hash % slot_count)


@part
def newest_item(index_address: int, slot_count: int, key_hash: int) -> int:
    """Number of the newest item in a hash's slot; 0 (or nonsense, after a crash) when there is none."""
    return load_i32(slot_of(index_address, slot_count, key_hash))


CLOCK_STEP_MS_MAX = 86_400_000
"""A clock may have been set back by this much between two messages, and queries bounded by time still find both."""


@part
def next_match(
    items_address: int,
    number: int,
    above: int,
    begin_timestamp: int,
    key_hash: int,
    begin: int,
    end: int,
    steps: int,
    loose: bool,
) -> tuple[int, int]:
    """The newest item from `number` on with this hash whose time (ms, cut to seconds) lies in [begin, end]; 0 for none.

    Links are followed downwards from below `above` only, so that a walk ends in a file that a crash left
    (IndexFile.selectPhyOffset); it also ends after so many steps. Returns (item, steps left).

    Times need not ascend: the walk goes on for CLOCK_STEP_MS_MAX below `begin`. Some items say too late a time: those
    of second 0, when their record is older than the file's first, and the file's first, which counts from the end of
    the file before. With `loose` they are taken whatever `end` is: the caller looks at the record.
    """
    while 0 < number < above and steps > 0:
        item = items_address + ITEM_SIZE * number
        seconds = load_i32(item + _SECONDS)
        timestamp = begin_timestamp + seconds * _MS
        if seconds < 0:
            return 0, steps
        in_time = timestamp <= end or (loose and (seconds == 0 or number == 1))
        if load_i32(item + _KEY_HASH) == key_hash and begin <= timestamp and in_time:
            return number, steps
        if timestamp + CLOCK_STEP_MS_MAX < begin:
            return 0, steps
        above, number, steps = number, load_i32(item + _PREVIOUS), steps - 1
    return 0, steps


@part
def item_offset(items_address: int, number: int) -> int:
    """Log offset of an item's record."""
    return load_i64(items_address + ITEM_SIZE * number + _COMMIT_LOG_OFFSET)


@part
def previous_item(items_address: int, number: int) -> int:
    """The item before this one in its slot."""
    return load_i32(items_address + ITEM_SIZE * number + _PREVIOUS)


@part
def _put(
    index_address: int,
    items_address: int,
    slot_count: int,
    header: Int64Array,
    hash_code: int,
    commit_log_offset: int,
    store_timestamp: int,
) -> None:
    """Enter one item; there must be room (IndexFile.putKey). A record whose time was damaged to 0 or less, which no
    store gives, gets the time of the one before: queries pass over a file by the times of its header."""
    key_hash, number = key_hash_of(hash_code), header[HEADER_NEXT_ITEM]
    if store_timestamp <= 0:
        store_timestamp = header[HEADER_END_TIMESTAMP]
    slot = index_address + _SLOTS + _SLOT_SIZE * (key_hash % slot_count)
    previous = load_i32(slot)
    if previous < 0 or previous > number:
        previous = 0
    begin = header[HEADER_BEGIN_TIMESTAMP]
    seconds = (store_timestamp - begin) // _MS if begin > 0 else 0
    item = items_address + ITEM_SIZE * number
    store_i32(item + _KEY_HASH, key_hash)
    store_i64(item + _COMMIT_LOG_OFFSET, commit_log_offset)
    store_i32(item + _SECONDS, min(max(seconds, 0), _SECONDS_MAX))
    store_i32(item + _PREVIOUS, previous)
    store_i32(slot, number)
    if number <= 1:
        header[HEADER_BEGIN_OFFSET] = commit_log_offset
    if number <= 1 or begin <= 0:
        header[HEADER_BEGIN_TIMESTAMP] = store_timestamp
    header[HEADER_USED_SLOTS] += previous == 0
    header[HEADER_NEXT_ITEM] = number + 1
    header[HEADER_END_OFFSET] = commit_log_offset
    header[HEADER_END_TIMESTAMP] = store_timestamp


@kernel
def put_keys(
    address: int,
    positions: Int64Array,
    first: int,
    count: int,
    base_offset: int,
    index_address: int,
    items_address: int,
    slot_count: int,
    item_capacity: int,
    header: Int64Array,
    with_tags: bool,
    start_key: int,
) -> tuple[int, int]:
    """Index the scanned records `first` to `count - 1` until the file is full.

    Slots are found from `index_address`, where the file begins; item 0 would stand at `items_address`, so that items
    may be gathered elsewhere before they are written. A record's keys are UNIQ_KEY, the non-empty ones of KEYS and
    (`with_tags`, since 5.4) its tags, each as `topic#key`; rolled back records have none, and records before the file's
    last one are passed over. `start_key` keys of record
    `first` stand in an older file already. Returns (record, key): `count` and 0 when all are in, else the record and
    the number of its keys that are, for going on in a new file. The header is changed in memory only.
    """
    for i in range(first, count):
        if i + PREFETCH_RECORDS < count:
            prefetch_around(address + positions[i + PREFETCH_RECORDS])
        record, offset = address + positions[i], base_offset + positions[i]
        skipped, start_key = start_key, 0
        if offset < header[HEADER_END_OFFSET] or load_i32(record + SYS_FLAG) & TRANSACTION_MASK == _ROLLBACK:
            continue
        begin, end = properties_of(record)
        tags, tags_size, keys, keys_size, unique, unique_size, _, _ = named_values(begin, end)
        topic, topic_size = topic_of(record)
        prefix = key_prefix(topic, topic_size)
        timestamp, key = store_timestamp_of(record), 0
        if unique_size:
            if key >= skipped:
                if header[HEADER_NEXT_ITEM] >= item_capacity:
                    return i, key
                hash_code = java_hash(prefix, unique, unique_size)
                _put(index_address, items_address, slot_count, header, hash_code, offset, timestamp)
            key += 1
        position = keys
        while position < keys + keys_size:
            stop = find_byte(position, keys + keys_size, _SPACE)
            if stop > position:
                if key >= skipped:
                    if header[HEADER_NEXT_ITEM] >= item_capacity:
                        return i, key
                    hash_code = java_hash(prefix, position, stop - position)
                    _put(index_address, items_address, slot_count, header, hash_code, offset, timestamp)
                key += 1
            position = stop + 1
        if with_tags and tags_size and key >= skipped:
            if header[HEADER_NEXT_ITEM] >= item_capacity:
                return i, key
            hash_code = java_hash(_TAG_PREFIX_FACTOR * prefix + _TAG_PREFIX_HASH, tags, tags_size)
            _put(index_address, items_address, slot_count, header, hash_code, offset, timestamp)
    return count, 0


@kernel
def rebuild_slots(items_address: int, slot_count: int, next_item: int, end_offset: int, slots_address: int) -> int:
    """Enter the items 1 to `next_item - 1` into empty slots, as `put_keys` did; returns how many slots are used.

    -1 when an item is not what it can have been: the log offsets ascend and stay below `end_offset`, and each item
    leads to the one that its slot led to before. Reads the items only, writes the slots only.
    """
    used, newest = 0, 0
    for number in range(1, next_item):
        item = items_address + ITEM_SIZE * number
        key_hash, offset = load_i32(item + _KEY_HASH), load_i64(item + _COMMIT_LOG_OFFSET)
        if key_hash < 0 or offset < newest or offset >= end_offset:
            return -1
        newest = offset
        slot = slots_address + _SLOT_SIZE * (key_hash % slot_count)
        previous = load_i32(slot)
        if previous != load_i32(item + _PREVIOUS):
            return -1
        used += previous == 0
        store_i32(slot, number)
    return used


@kernel
def find_items(
    index_address: int,
    slot_count: int,
    item_capacity: int,
    begin_timestamp: int,
    next_item: int,
    key_hash: int,
    begin: int,
    end: int,
    loose: bool,
    out: Int64Array,
) -> int:
    """Log offsets of the items with this hash whose time (ms, cut to seconds) lies in [begin, end]; newest first.

    `begin_timestamp` and `next_item` are the header's, `loose` is explained in `next_match`. Returns how many were
    found, at most `out.size`.
    """
    items = items_of(index_address, slot_count)
    above = item_capacity if next_item > 1 else 0  # items may be entered meanwhile, and lead to the older ones
    number = newest_item(index_address, slot_count, key_hash)
    found = 0
    while found < out.size:
        number, _ = next_match(items, number, above, begin_timestamp, key_hash, begin, end, item_capacity, loose)
        if number == 0:
            break
        out[found] = item_offset(items, number)
        found += 1
        above, number = number, previous_item(items, number)
    return found
