"""A client batch: several messages of one queue in one body (MessageDecoder.encodeMessages, decodeMessages).

A store unrolls it into ordinary records, or keeps it whole as the body of one record: an *inner batch*
(SysFlag.INNER_BATCH).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.message import BATCH_ENTRY, PROPERTIES_LENGTH, PROPERTIES_SIZE_MAX
from stratalog.layout.properties import find_property
from stratalog.layout.queue import BATCH_SIZE_MAX
from stratalog.layout.sysflag import Compression, SysFlag

INNER_NUM = "INNER_NUM"
"""How many messages an inner batch holds."""
INNER_BASE = "INNER_BASE"
"""Queue offset of its first one, which is the record's own; the store adds it."""
INNER_FLAGS = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)
PLACEHOLDER_FLAGS = int(SysFlag.COMPRESSED) | INNER_FLAGS | int(Compression.ZLIB)
"""System flags of the record that a repair writes for a lost message: a compressed batch of no messages."""


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One message of a batch. `properties` are stored bytes; topic, queue, hosts and times belong to the batch."""

    body: bytes
    properties: bytes = b""
    flag: int = 0

    @property
    def total_size(self) -> int:
        return BATCH_ENTRY.size + len(self.body) + PROPERTIES_LENGTH.size + len(self.properties)


def encode_batch_body(entries: Iterable[BatchEntry]) -> bytes:
    """The body of a batch. Raises `IllegalMessage` for properties over 32767 bytes."""
    parts: list[bytes] = []
    for entry in entries:
        if len(entry.properties) > PROPERTIES_SIZE_MAX:
            raise IllegalMessage(f"properties of {len(entry.properties)} bytes, the limit is {PROPERTIES_SIZE_MAX}")
        parts += (
            BATCH_ENTRY.pack(entry.total_size, 0, 0, entry.flag, len(entry.body)),
            entry.body,
            PROPERTIES_LENGTH.pack(len(entry.properties)),
            entry.properties,
        )
    return b"".join(parts)


def decode_batch_body(body: bytes | memoryview) -> list[BatchEntry]:
    """The messages of a batch body that somebody else wrote.

    Raises `CorruptData` unless its lengths fill it, and for more messages than a unit can cover.
    """
    view = memoryview(body)
    entries: list[BatchEntry] = []
    position = 0
    while position < len(view):
        if len(entries) == BATCH_SIZE_MAX:
            raise CorruptData(f"a batch of more than {BATCH_SIZE_MAX:,} messages", position=position)
        head = BATCH_ENTRY.unpack(view, position)
        body_start = position + BATCH_ENTRY.size
        body_end = body_start + head.body_size
        end = position + head.total_size
        if head.body_size < 0 or not body_end + PROPERTIES_LENGTH.size <= end <= len(view):
            raise CorruptData(
                f"batch entry of {head.total_size} bytes, its body {head.body_size}; {len(view) - position} are left",
                position=position,
            )
        properties_start = body_end + PROPERTIES_LENGTH.size
        properties_size = PROPERTIES_LENGTH.unpack(view, body_end).size
        if properties_start + properties_size != end:
            raise CorruptData(
                f"batch entry of {head.total_size} bytes, properties of {properties_size} do not fill it",
                position=position,
            )
        entries.append(BatchEntry(bytes(view[body_start:body_end]), bytes(view[properties_start:end]), head.flag))
        position = end
    return entries


def inner_count(properties: bytes) -> int:
    """How many messages INNER_NUM promises. Raises `IllegalMessage` unless a queue unit can hold that number."""
    text = find_property(properties, INNER_NUM.encode()) or ""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= BATCH_SIZE_MAX):
        raise IllegalMessage(f"{INNER_NUM}={text[:80]!r}: an inner batch holds 1 to {BATCH_SIZE_MAX:,} messages")
    return int(text)


def is_inner_batch(sys_flag: int, properties: bytes) -> bool:
    """Whether a stored record is one that only a topic of type BatchCQ can have."""
    return bool(sys_flag & SysFlag.INNER_BATCH) and find_property(properties, INNER_NUM.encode()) is not None


def batch_size_of(sys_flag: int, properties: bytes, queue_offset: int) -> tuple[int, str]:
    """How many queue offsets a stored record of a batch topic takes, and in words what contradicts itself in it.

    As in RocketMQ INNER_NUM says how many. A record without a count that can be takes one.
    """
    is_batch = INNER_NUM.encode() in properties and find_property(properties, INNER_NUM.encode()) is not None
    if not is_batch and not sys_flag & SysFlag.INNER_BATCH:
        return 1, ""
    try:
        count = inner_count(properties)
    except IllegalMessage as problem:
        return 1, str(problem)
    base = find_property(properties, INNER_BASE.encode())
    if base != str(queue_offset):
        return count, f"{INNER_BASE}={(base or '')[:80]!r} at queue offset {queue_offset:,}"
    if sys_flag & INNER_FLAGS != INNER_FLAGS:
        return count, f"{INNER_NUM}={count} without both flags of an inner batch ({INNER_FLAGS:#x}) in {sys_flag:#x}"
    return count, ""
