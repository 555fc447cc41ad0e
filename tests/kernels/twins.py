"""Slow, obvious Python twins of the kernels. They decode with `stratalog.layout` and take lists, not addresses."""

import re
from dataclasses import replace
from typing import Any

from stratalog.kernels.index import CLOCK_STEP_MS_MAX
from stratalog.kernels.scan import ScanStatus
from stratalog.layout import index, tier
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.message import (
    BLANK,
    FIXED_SIZE_V1,
    HEAD,
    HEADS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    Record,
    crc_of,
    decode_record,
)
from stratalog.layout.names import SCHEDULE_TOPIC
from stratalog.layout.properties import (
    CRC_PROPERTY_SIZE,
    DELAY,
    KEYS,
    TAGS,
    UNIQUE_KEY,
    decode_properties,
    split_keys,
)
from stratalog.layout.queue import UNIT
from stratalog.layout.recordcrc import has_record_crc
from stratalog.layout.sysflag import HOSTS_MASK, Transaction, enters_queue, transaction_of

INT_MAX = 2**31 - 1


def check(data: bytes, position: int, base_offset: int, *, verify: bool) -> tuple[ScanStatus | None, int]:
    """(None, size) for a whole record at `position`, else (status, 0)."""
    left = data[position:]
    if len(left) >= BLANK.size and BLANK.unpack(left).magic == MAGIC_BLANK:
        return ScanStatus.BLANK, 0
    if len(left) < FIXED_SIZE_V1:
        return ScanStatus.END, 0
    head = HEAD.unpack(left)
    if head.magic not in (MAGIC_V1, MAGIC_V2):
        return ScanStatus.BAD_MAGIC, 0
    if not FIXED_SIZE_V1 <= head.total_size <= len(left):
        return ScanStatus.BAD_SIZE, 0
    record = left[: head.total_size]
    layout = HEADS[head.sys_flag & HOSTS_MASK]
    topic_length = TOPIC_LENGTH_V2 if head.magic == MAGIC_V2 else TOPIC_LENGTH_V1
    room = len(record) - layout.size - topic_length.size - PROPERTIES_LENGTH.size
    body_size = layout.unpack(record).body_size if room >= 0 else -1
    if not 0 <= body_size <= room:
        return ScanStatus.BAD_BODY_SIZE, 0
    body, rest = record[layout.size : layout.size + body_size], record[layout.size + body_size :]
    topic_size = topic_length.unpack(rest).size
    if not 0 <= topic_size <= room - body_size:
        return ScanStatus.BAD_LENGTHS, 0
    if PROPERTIES_LENGTH.unpack(rest[topic_length.size + topic_size :]).size != room - body_size - topic_size:
        return ScanStatus.BAD_LENGTHS, 0
    if base_offset >= 0 and head.commit_log_offset != base_offset + position:
        return ScanStatus.BAD_OFFSET, 0
    properties = rest[topic_length.size + topic_size + PROPERTIES_LENGTH.size :]
    if verify and len(properties) >= CRC_PROPERTY_SIZE:
        state = record_crc_state(record, properties)
        if state is not None:
            return (None, head.total_size) if state else (ScanStatus.BAD_RECORD_CRC, 0)
    if verify and body and crc_of(body) != head.body_crc & 0xFFFFFFFF:
        return ScanStatus.BAD_CRC, 0
    return None, head.total_size


def record_crc_state(record: bytes, properties: bytes) -> bool | None:
    """Whether the record CRC holds; None without one."""
    covered, tail = record[:-CRC_PROPERTY_SIZE], record[-CRC_PROPERTY_SIZE:]
    shape = re.fullmatch(rb"(.{8})\x01([0-9]{10})\x02", tail, re.DOTALL)
    fits = shape is not None and int(shape[2][::-1]) == crc_of(covered)
    if has_record_crc(properties):
        return fits
    return False if fits else None


def scan(data: bytes, begin: int, end: int, base_offset: int, *, verify: bool, room: int) -> Any:
    """(positions, sizes, position, status)."""
    positions: list[int] = []
    sizes: list[int] = []
    while True:
        status, size = check(data[:end], begin, base_offset, verify=verify)
        if status is None and len(positions) == room:
            status = ScanStatus.FULL
        if status is not None:
            return positions, sizes, begin, status
        positions.append(begin)
        sizes.append(size)
        begin += size


def find_record(data: bytes, begin: int, end: int, base_offset: int) -> int:
    found = (p for p in range(begin, end) if check(data[:end], p, base_offset, verify=True)[0] is None)
    return next(found, -1)


def tags_code(record: Record, delays_ms: list[int]) -> int:
    properties = decode_properties(record.properties)
    if record.topic == SCHEDULE_TOPIC.encode():
        text = properties.get(DELAY, "")
        digits = text[1:] if text[:1] in ("+", "-") else text
        level = int(text) if digits.isascii() and digits.isdigit() and abs(int(text)) <= INT_MAX else 0
        level = min(level, len(delays_ms) - 1)
        if level > 0:
            return wrapped(record.store_timestamp + delays_ms[level])
    return string_hash(properties.get(TAGS, ""))


def wrapped(value: int) -> int:
    """As a 64-bit integer overflows."""
    return (value + 2**63) % 2**64 - 2**63


def units(records: list[Record], delays_ms: list[int]) -> dict[tuple[bytes, int], list[bytes]]:
    """Units by queue, for records whose queue offsets are in order."""
    queues: dict[tuple[bytes, int], list[bytes]] = {}
    for record in records:
        if enters_queue(record.sys_flag):
            unit = UNIT.pack(record.commit_log_offset, record.total_size, tags_code(record, delays_ms))
            queues.setdefault((record.topic, record.queue_id), []).append(unit)
    return queues


class IndexTwin:
    """An IndexFile as lists."""

    def __init__(self, slot_count: int, item_capacity: int, header: list[int] | None = None) -> None:
        self.slots = [0] * slot_count
        self.items: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)] * item_capacity
        self.header = header or [0, 0, 0, 0, 0, 1]

    @property
    def is_full(self) -> bool:
        return self.header[5] >= len(self.items)

    def put(self, key: str, commit_log_offset: int, store_timestamp: int) -> bool:
        begin, _, begin_offset, _, used, number = self.header
        if self.is_full:
            return False
        if store_timestamp <= 0:
            store_timestamp = self.header[1]
        key_hash = index_key_hash(string_hash(key))
        slot = key_hash % len(self.slots)
        previous = self.slots[slot] if 0 < self.slots[slot] <= number else 0
        difference = wrapped(store_timestamp - begin)
        seconds = int(difference / 1000) if abs(difference) < 2**53 else difference // 1000
        seconds = min(max(seconds if begin > 0 else 0, 0), INT_MAX)
        self.items[number] = (key_hash, commit_log_offset, seconds, previous)
        self.slots[slot] = number
        if number <= 1:
            begin_offset = commit_log_offset
        if number <= 1 or begin <= 0:
            begin = store_timestamp
        used += previous == 0
        self.header = [begin, store_timestamp, begin_offset, commit_log_offset, used, number + 1]
        return True

    def put_record(self, record: Record, *, with_tags: bool, start_key: int) -> int | None:
        """None when all keys are in, else how many are."""
        rolled_back = transaction_of(record.sys_flag) == Transaction.ROLLBACK
        if record.commit_log_offset < self.header[3] or rolled_back:
            return None
        properties = decode_properties(record.properties)
        topic = record.topic.decode()
        unique = [properties[UNIQUE_KEY]] if UNIQUE_KEY in properties else []
        keys = [index.index_key(topic, key) for key in unique + split_keys(properties.get(KEYS))]
        if with_tags and TAGS in properties:
            keys.append(index.tag_key(topic, properties[TAGS]))
        for number, key in enumerate(keys):
            if number >= start_key and not self.put(key, record.commit_log_offset, record.store_timestamp):
                return number
        return None

    def find(self, key_hash: int, begin: int, end: int, limit: int) -> list[int]:
        found: list[int] = []
        number = self.slots[key_hash % len(self.slots)]
        if number > self.header[5]:
            return found
        while number > 0 and len(found) < limit:
            item_hash, offset, seconds, previous = self.items[number]
            timestamp = self.header[0] + seconds * 1000
            if item_hash == key_hash and begin <= timestamp <= end:
                found.append(offset)
            if timestamp + CLOCK_STEP_MS_MAX < begin:
                break
            number = previous
        return found

    def encode(self) -> bytes:
        """Slots and items as in the file, behind the header."""
        return b"".join([*(index.SLOT.pack(slot) for slot in self.slots), *(index.ITEM.pack(*i) for i in self.items)])


def gather(records: list[Record], tier_offset: int) -> tuple[bytes, bytes]:
    """Records and units as the tier holds them; tags codes are those of a plain topic."""
    copies, tier_units = [], []
    for record in records:
        copies.append(replace(record, commit_log_offset=tier_offset).encode())
        tier_units.append(UNIT.pack(tier_offset, record.total_size, tags_code(record, [0])))
        tier_offset += record.total_size
    return b"".join(copies), b"".join(tier_units)


def row(stored: bytes, topic: str, broker_name: str) -> dict[str, Any]:
    """One message as the columns show it; times in microseconds."""
    record = decode_record(stored, verify=False)
    properties = decode_properties(record.properties)
    return {
        "topic": topic,
        "flag": record.flag,
        "body": record.body,
        "properties": record.properties.decode("utf-8", "replace"),
        "brokerName": broker_name,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "bornTimestamp": microseconds(record.born_timestamp),
        "storeTimestamp": microseconds(record.store_timestamp),
        "tags": properties.get(TAGS),
        "keys": properties.get(KEYS),
        "uniqueKey": properties.get(UNIQUE_KEY),
        "reconsumeTimes": record.reconsume_times,
        "sysFlag": record.sys_flag,
        "commitLogOffset": record.commit_log_offset,
        "storeSize": len(stored),
        "bodyCrc": record.body_crc,
        "bornHost": str(record.born_host),
        "storeHost": str(record.store_host),
        "preparedTransactionOffset": record.prepared_transaction_offset,
    }


def microseconds(timestamp_ms: int) -> int:
    limit = (2**63 - 1) // 1000
    return min(max(timestamp_ms, -limit), limit) * 1000


def compacted(items: list[bytes], slot_count: int) -> bytes:
    """Slots and items of a compacted tier index file, from 28-byte items in the order they were put."""
    slots: list[list[bytes]] = [[] for _ in range(slot_count)]
    for item in items:
        slots[tier.COMPACTED_ITEM.unpack(item).key_hash % slot_count].insert(0, item)
    position = tier.INDEX_HEADER.size + tier.COMPACTED_SLOT.size * slot_count
    table = []
    for slot in slots:
        table.append(tier.COMPACTED_SLOT.pack(position, sum(map(len, slot))))
        position += sum(map(len, slot))
    return b"".join(table + [item for slot in slots for item in slot])
