"""What the tier needs of gathered records: checking units against their bytes, index items, and order by hash.

`data` is the address of commit log bytes that begin at log offset `data_offset`; `units` that of 20-byte units.
"""

from stratalog.kernels.hashing import NO_PREFIX, java_hash
from stratalog.kernels.index import key_hash_of
from stratalog.kernels.jit import kernel, part
from stratalog.kernels.memory import copy, load_i32, load_i64, load_u8, store_i32, store_i64
from stratalog.kernels.record import MAGIC, find_byte, named_values, properties_of, store_timestamp_of, topic_of
from stratalog.kernels.scan import BODY_ONLY, WHOLE, Int32Array, Int64Array, check_record
from stratalog.layout.index import KEY_SEPARATOR
from stratalog.layout.message import HEAD, MAGIC_BLANK, PROPERTIES_SIZE_MAX
from stratalog.layout.properties import KEY_SEPARATOR as KEYS_SEPARATOR
from stratalog.layout.queue import UNIT
from stratalog.layout.tier import CODA, RUN_ITEM

KEYS_MAX = PROPERTIES_SIZE_MAX // 2
"""More keys than a message can hold: each takes a character and a space."""

_UNIT_SIZE, _OFFSET, _SIZE = UNIT.size, UNIT.position("commit_log_offset"), UNIT.position("size")
_QUEUE_ID, _QUEUE_OFFSET = HEAD.position("queue_id"), HEAD.position("queue_offset")
_TOTAL_SIZE, _CODA_SIZE = HEAD.position("total_size"), CODA.size
_ITEM_SIZE = RUN_ITEM.size
_KEY_HASH, _TOPIC_ID, _ITEM_QUEUE_ID = (RUN_ITEM.position(name) for name in ("key_hash", "topic_id", "queue_id"))
_ITEM_OFFSET, _ITEM_RECORD_SIZE = RUN_ITEM.position("commit_log_offset"), RUN_ITEM.position("size")
_SECONDS, _STORE_TIMESTAMP = RUN_ITEM.position("seconds"), RUN_ITEM.position("store_timestamp")

_BASE = 31
_SEPARATOR, _SPACE = ord(KEY_SEPARATOR), ord(KEYS_SEPARATOR)
_RADIX_BITS = 11
_RADIX = 1 << _RADIX_BITS
_PASSES = 3
assert _RADIX_BITS * _PASSES >= 31
RADIX_SCRATCH = _RADIX + 1
"""Length of the `digits` that `sort_items` needs."""


@part
def _same_bytes(left: int, right: int, size: int) -> bool:
    for i in range(size):  # noqa: SIM110 (numba has no all())
        if load_u8(left + i) != load_u8(right + i):
            return False
    return True


@kernel
def check_units(
    units: int,
    count: int,
    data: int,
    data_size: int,
    data_offset: int,
    topic: int,
    topic_size: int,
    queue_id: int,
    queue_offset: int,
    positions: Int64Array,
) -> int:
    """How many of `count` units, from the first on, point at a whole record of this queue with the next queue offset.

    Lengths, commit log offset, body CRC, topic, queue id and queue offset must hold. A legacy coda before a record is
    stepped over. Positions of the records in `data` go to `positions`. Reads nothing outside `data`.
    """
    for i in range(count):
        unit = units + _UNIT_SIZE * i
        position = load_i64(unit + _OFFSET) - data_offset
        if position < 0 or position > data_size - _CODA_SIZE:
            return i
        offset = data_offset
        if load_i32(data + position + MAGIC) == MAGIC_BLANK:
            position += _CODA_SIZE
            offset = -1
        if check_record(data, position, data_size, offset, BODY_ONLY) != WHOLE:
            return i
        record = data + position
        if load_i32(record + _TOTAL_SIZE) != load_i32(unit + _SIZE) or load_i32(record + _QUEUE_ID) != queue_id:
            return i
        if load_i64(record + _QUEUE_OFFSET) != queue_offset + i:
            return i
        name, name_size = topic_of(record)
        if name_size != topic_size or not _same_bytes(name, topic, topic_size):
            return i
        positions[i] = position
    return count


@kernel
def store_times(units: int, count: int, data: int, data_offset: int, out: Int64Array) -> None:
    """Store times (ms) of the records of `count` checked units."""
    for i in range(count):
        out[i] = store_timestamp_of(data + load_i64(units + _UNIT_SIZE * i + _OFFSET) - data_offset)


@part
def _is_blank(begin: int, size: int) -> bool:
    """Whether a text is nothing but ASCII white space, as Java counts it (StringUtils.isBlank)."""
    for i in range(size):
        byte = load_u8(begin + i)
        if not (9 <= byte <= 13 or 28 <= byte <= 32):
            return False
    return True


@part
def _add(hashes: Int32Array, count: int, hash_code: int) -> int:
    key_hash = key_hash_of(hash_code)
    for i in range(count):
        if hashes[i] == key_hash:
            return count
    hashes[count] = key_hash
    return count + 1


@part
def _key_hashes(record: int, prefix: int, hashes: Int32Array) -> int:
    """Distinct key hashes of a record: UNIQ_KEY and the words of KEYS, each as `topic#key` (constructIndexFile).

    KEYS is split as Java splits: words between spaces may be empty, but for those at the end.
    """
    begin, end = properties_of(record)
    _, _, keys, keys_size, unique, unique_size, _, _ = named_values(begin, end)
    count = 0
    if not _is_blank(unique, unique_size):
        count = _add(hashes, count, java_hash(prefix, unique, unique_size))
    while keys_size and load_u8(keys + keys_size - 1) == _SPACE:
        keys_size -= 1
    if _is_blank(keys, keys_size):
        return count
    position, keys_end = keys, keys + keys_size
    while position < keys_end:
        stop = find_byte(position, keys_end, _SPACE)
        count = _add(hashes, count, java_hash(prefix, position, stop - position))
        position = stop + 1
    return count


@kernel
def put_items(
    units: int,
    first: int,
    count: int,
    data: int,
    data_offset: int,
    topic_id: int,
    queue_id: int,
    items: int,
    item_count: int,
    item_capacity: int,
    hashes: Int32Array,
) -> tuple[int, int]:
    """Append the index items of checked units `first` to `count - 1` behind `item_count` items at `items`.

    Returns (units done, items now). Stops before a unit whose items do not fit; all items of a message go together.
    `hashes` is scratch for KEYS_MAX + 1 hashes.
    """
    prefix = 0
    if first < count:
        topic, topic_size = topic_of(data + load_i64(units + _UNIT_SIZE * first + _OFFSET) - data_offset)
        prefix = _BASE * java_hash(NO_PREFIX, topic, topic_size) + _SEPARATOR
    for i in range(first, count):
        offset = load_i64(units + _UNIT_SIZE * i + _OFFSET)
        record = data + offset - data_offset
        found = _key_hashes(record, prefix, hashes)
        if item_count + found > item_capacity:
            return i, item_count
        timestamp = store_timestamp_of(record)
        for k in range(found):
            item = items + _ITEM_SIZE * item_count
            store_i32(item + _KEY_HASH, hashes[k])
            store_i32(item + _TOPIC_ID, topic_id)
            store_i32(item + _ITEM_QUEUE_ID, queue_id)
            store_i64(item + _ITEM_OFFSET, offset)
            store_i32(item + _ITEM_RECORD_SIZE, load_i32(units + _UNIT_SIZE * i + _SIZE))
            store_i32(item + _SECONDS, 0)
            store_i64(item + _STORE_TIMESTAMP, timestamp)
            item_count += 1
    return count, item_count


@kernel
def sort_items(items: int, count: int, out: int, order: Int32Array, spare: Int32Array, digits: Int64Array) -> None:
    """Copy run items to `out`, sorted by key hash; equal hashes keep their order (radix sort).

    `order` and `spare` are scratch of `count`, `digits` of RADIX_SCRATCH.
    """
    for i in range(count):
        order[i] = i
    for step in range(_PASSES):
        shift = _RADIX_BITS * step
        digits[:] = 0
        for i in range(count):
            digits[((load_i32(items + _ITEM_SIZE * i + _KEY_HASH) >> shift) & (_RADIX - 1)) + 1] += 1
        for digit in range(_RADIX):
            digits[digit + 1] += digits[digit]
        for i in range(count):
            number = order[i]
            digit = (load_i32(items + _ITEM_SIZE * number + _KEY_HASH) >> shift) & (_RADIX - 1)
            spare[digits[digit]] = number
            digits[digit] += 1
        order, spare = spare, order
    for i in range(count):
        copy(out + _ITEM_SIZE * i, items + _ITEM_SIZE * order[i], _ITEM_SIZE)
