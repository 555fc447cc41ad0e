"""The two rules of Java that decide bytes: `String.hashCode` and the iteration order of a `HashMap`."""

from collections.abc import Iterable, Sequence

PROPERTY_MAP_CAPACITY = 128
"""First capacity of the map that a broker passes properties through (MessageDecoder.string2messageProperties)."""

KEY_SET_CAPACITY = 16
"""Buckets of the `HashSet` of a message's index keys in the tier (up to 12 keys)."""

INT_MIN = -(2**31)


def string_hash(text: str, seed: int = 0) -> int:
    """Java's `String.hashCode`: signed 32 bit, over UTF-16 code units. `seed` continues the hash of a prefix."""
    h = seed & 0xFFFFFFFF
    if text.isascii():
        for unit in text.encode():
            h = (31 * h + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-le", "surrogatepass")
        for low, high in zip(units[::2], units[1::2], strict=True):
            h = (31 * h + (low | high << 8)) & 0xFFFFFFFF
    return h - (1 << 32) if h >> 31 else h


def index_key_hash(hash_code: int) -> int:
    """Non-negative key hash of the local index: `abs`, and 0 for the smallest int (IndexFile.indexKeyHashMethod)."""
    return 0 if hash_code == INT_MIN else abs(hash_code)


def bucket(text: str, capacity: int) -> int:
    """Bucket of a key in a Java `HashMap` of that capacity (a power of two)."""
    h = string_hash(text) & 0xFFFFFFFF
    return (h ^ h >> 16) & (capacity - 1)


def hash_map_order(names: Iterable[str], capacity: int) -> list[str]:
    """The names in the order in which a Java `HashMap` iterates: by bucket, within one by insertion.

    `capacity` is the first one; the map doubles when it holds more than three quarters of it. Holds while no bucket
    turns into a tree (fewer than eight names in one).
    """
    distinct = dict.fromkeys(names)
    while 4 * len(distinct) > 3 * capacity:
        capacity *= 2
    return sorted(distinct, key=lambda name: bucket(name, capacity))


def property_order(names: Sequence[str]) -> list[str]:
    """Order in which RocketMQ writes these property names."""
    return hash_map_order(names, PROPERTY_MAP_CAPACITY)
