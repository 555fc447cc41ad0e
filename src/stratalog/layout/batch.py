"""A client batch: several messages of one queue in one body (MessageDecoder.encodeMessages, decodeMessages).

A store unrolls it into ordinary records, or keeps it whole as the body of one record: an *inner batch*
(SysFlag.INNER_BATCH).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.message import BATCH_ENTRY, PROPERTIES_LENGTH, PROPERTIES_SIZE_MAX


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
    """The messages of a batch body that somebody else wrote. Raises `CorruptData` unless its lengths fill it."""
    view = memoryview(body)
    entries = []
    position = 0
    while position < len(view):
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
