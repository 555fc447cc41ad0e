"""Messages by key, as a builtin: index items to records to messages, for many keys a call.

Each hit is compared with its record (topic, key, time) and its body with the checksum before a message is made of it.
The GIL is held from the first to the last step: the caller bounds the keys of a call, and here a key whose items stand
behind too many others in its slot is left to the slower way, which does not hold it.
"""

from stratalog.kernels.cpython import (
    STACK_WORDS,
    WORD,
    add_to_list,
    forget_error,
    let_go,
    list_item,
    new_integer,
    new_list,
    stack,
    text_address,
)
from stratalog.kernels.hashing import java_hash
from stratalog.kernels.index import (
    HEADER_BEGIN_TIMESTAMP,
    HEADER_NEXT_ITEM,
    ITEM_SIZE,
    item_offset,
    items_of,
    key_hash_of,
    key_prefix,
    newest_item,
    next_match,
    previous_item,
    slot_of,
)
from stratalog.kernels.jit import Native, part
from stratalog.kernels.memory import load_le_i64, prefetch, store_le_i64, word
from stratalog.kernels.messages import SCRATCH, integer_at, is_of, new_message, object_at
from stratalog.kernels.queue_table import same_bytes
from stratalog.kernels.record import find_byte, named_values, properties_of, store_timestamp_of
from stratalog.kernels.scan import VERIFY, WHOLE, check_record
from stratalog.layout.properties import KEY_SEPARATOR

SLOT_COUNT, ITEM_CAPACITY, FIRST_OFFSET, FILE_SIZE, LOG_FILES, INDEX_FILES = range(6)
"""The first words of the table that a call gets. Behind them: the addresses of the log's files, oldest first, then
address and address of the header (int64[6]) of each index file, oldest first."""
TABLE_WORDS = 6

_TOPIC_SIZE, _KEYS = SCRATCH, SCRATCH + WORD
_KEY, _KEY_SIZE, _KEY_HASH, _KEY_FIELDS = range(4)
_BATCH = 32
"""Keys whose slots, items and records are asked for ahead, so that the CPU waits for many of them at once."""
assert SCRATCH + WORD * (1 + _BATCH * _KEY_FIELDS) <= WORD * STACK_WORDS
_RECORD_LINES, _CACHE_LINE = 5, 64
_BLANK = ord(KEY_SEPARATOR)
_INDEX_STEP_MS = 1000
"""The index knows seconds only: a message may be this much younger than its item says."""
_STEPS_MAX = 20_000
"""Items that a key's search may walk here, 2 ms of cache misses."""

_FOUND, _LONG, _FAILED, _DAMAGED = range(4)


@part
def carries(record: int, key: int, size: int) -> bool:
    """Whether a key is the record's unique key or one of its keys."""
    begin, end = properties_of(record)
    _, _, keys, keys_size, unique, unique_size, _, _ = named_values(begin, end)
    if size == 0:
        return False
    if unique_size == size and same_bytes(unique, key, size):
        return True
    position, keys_end = keys, keys + keys_size
    while position < keys_end:
        stop = find_byte(position, keys_end, _BLANK)
        if stop - position == size and same_bytes(position, key, size):
            return True
        position = stop + 1
    return False


@part
def _record_at(table: int, offset: int, end_offset: int) -> tuple[int, int, int]:
    """Address of the file that holds a log offset (0: the log has it no more), the record's position and log offset of
    the file's first byte."""
    distance = offset - word(table, FIRST_OFFSET)
    file_size = word(table, FILE_SIZE)
    number = distance // file_size
    if distance < 0 or offset >= end_offset or number >= word(table, LOG_FILES):
        return 0, 0, 0
    return word(table, TABLE_WORDS + number), distance - number * file_size, offset - (distance - number * file_size)


@part
def _add_hits(
    owner: int, frame: int, table: int, topic: int, name: int, place: int, begin: int, end: int, end_offset: int,
    limit: int, hits: int,
) -> tuple[int, int]:  # fmt: skip
    """Add the messages of the key at a place of the frame to a list, newest first. Returns (_FOUND, number), or why not
    and the log offset of what is damaged. `topic` is the str, `name` where its UTF-8 is."""
    key, key_size, key_hash = word(place, _KEY), word(place, _KEY_SIZE), word(place, _KEY_HASH)
    name_size = load_le_i64(frame + _TOPIC_SIZE)
    slot_count, capacity, file_size = word(table, SLOT_COUNT), word(table, ITEM_CAPACITY), word(table, FILE_SIZE)
    files = table + WORD * (TABLE_WORDS + word(table, LOG_FILES))
    steps, found, last_offset = _STEPS_MAX, 0, -1
    for file in range(word(table, INDEX_FILES) - 1, -1, -1):
        address, header = word(files, 2 * file), word(files, 2 * file + 1)
        begin_timestamp, next_item = word(header, HEADER_BEGIN_TIMESTAMP), word(header, HEADER_NEXT_ITEM)
        items = items_of(address, slot_count)
        above = capacity if next_item > 1 else 0  # items may be entered meanwhile, and lead to the older ones
        number = newest_item(address, slot_count, key_hash)
        while found < limit:
            number, steps = next_match(
                items, number, above, begin_timestamp, key_hash, begin - _INDEX_STEP_MS, end, steps, True
            )
            if steps <= 0:
                return _LONG, 0
            if number == 0:
                break
            offset = item_offset(items, number)
            above, number, steps = number, previous_item(items, number), steps - 1
            at, position, base = _record_at(table, offset, end_offset)
            if at == 0 or offset == last_offset:  # gone by retention, its item not yet; or a key that is there twice
                continue
            if check_record(at, position, file_size, base, VERIFY) != WHOLE:  # first: its keys may be what is damaged
                return _DAMAGED, offset
            record = at + position
            if not is_of(record, name, name_size) or not carries(record, key, key_size):
                continue
            if not begin <= store_timestamp_of(record) <= end:
                continue
            message = new_message(owner, frame, record, topic)
            failed = message == 0 or add_to_list(hits, message) < 0
            let_go(message)
            if failed:
                return _FAILED, 0
            found, last_offset = found + 1, offset
    return _FOUND, found


@part
def _take_keys(
    frame: int, keys: int, first: int, begin: int, end: int, prefix: int, table: int, end_offset: int
) -> int:  # fmt: skip
    """Text and hash of the keys `begin` to `end - 1` into the frame; returns the first that has no text. What their
    look-ups will touch is asked for."""
    slot_count, capacity = word(table, SLOT_COUNT), word(table, ITEM_CAPACITY)
    files, file_count = table + WORD * (TABLE_WORDS + word(table, LOG_FILES)), word(table, INDEX_FILES)
    for number in range(begin, end):
        place = frame + _KEYS + WORD * _KEY_FIELDS * ((number - first) % _BATCH)
        key = text_address(list_item(keys, number), place + WORD * _KEY_SIZE)
        if key == 0:
            forget_error()
            return number
        key_hash = key_hash_of(java_hash(prefix, key, word(place, _KEY_SIZE)))
        store_le_i64(place + WORD * _KEY, key)
        store_le_i64(place + WORD * _KEY_HASH, key_hash)
        for file in range(file_count):
            prefetch(slot_of(word(files, 2 * file), slot_count, key_hash))
    if end - begin == 1:
        return end
    for step in range(2):
        for number in range(begin, end):
            place = frame + _KEYS + WORD * _KEY_FIELDS * ((number - first) % _BATCH)
            for file in range(file_count):
                address = word(files, 2 * file)
                item, items = newest_item(address, slot_count, word(place, _KEY_HASH)), items_of(address, slot_count)
                if not 0 < item < capacity:
                    continue
                if step == 0:
                    prefetch(items + ITEM_SIZE * item)
                    continue
                at, position, _ = _record_at(table, item_offset(items, item), end_offset)
                for line in range(_RECORD_LINES if at else 0):
                    prefetch(at + position + _CACHE_LINE * line)
    return end


def _find_keys(self: int, args: int, count: int, names: int) -> int:
    """`find_keys(topic, keys, first, last, begin, end, limit, end_offset, table, out)`.

    Adds to the list `out` one list for each of the keys `first` to `last - 1`: its messages stored in [begin, end] ms,
    the newest `limit`, newest first. `table` is the address of the words above. Returns the number of the key where it
    stopped: `last`, or one that has to be looked up in another way; -1 - the log offset where the index leads to a
    record of the key that is not whole.
    """
    frame = stack()
    topic, keys, out = object_at(args, 0), object_at(args, 1), object_at(args, 9)
    first, last, begin, end = integer_at(args, 2), integer_at(args, 3), integer_at(args, 4), integer_at(args, 5)
    limit, end_offset, table = integer_at(args, 6), integer_at(args, 7), integer_at(args, 8)
    name = text_address(topic, frame + _TOPIC_SIZE)
    if name == 0:
        return 0
    prefix = key_prefix(name, load_le_i64(frame + _TOPIC_SIZE))
    number, known = first, first
    while number < last:
        if number == known:
            known = _take_keys(frame, keys, first, number, min(last, number + _BATCH), prefix, table, end_offset)
            if number == known:
                break
        place = frame + _KEYS + WORD * _KEY_FIELDS * ((number - first) % _BATCH)
        hits = new_list(0)
        if hits == 0:
            return 0
        status, offset = _add_hits(self, frame, table, topic, name, place, begin, end, end_offset, limit, hits)
        added = add_to_list(out, hits) if status == _FOUND else 0
        let_go(hits)
        if status == _FAILED or added < 0:
            return 0
        if status == _DAMAGED:
            return new_integer(-1 - offset)
        if status == _LONG:
            break
        number += 1
    return new_integer(number)


find_keys = Native(_find_keys)
