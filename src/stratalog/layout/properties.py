"""Message properties: `name 0x01 value 0x02` repeated (MessageDecoder), and the names that the store itself reads."""

import re
from collections.abc import Mapping

from stratalog.errors import IllegalMessage
from stratalog.layout.javahash import property_order

NAME_END = "\x01"
VALUE_END = "\x02"
NAME_END_BYTE = 1
VALUE_END_BYTE = 2

KEYS = "KEYS"
TAGS = "TAGS"
UNIQUE_KEY = "UNIQ_KEY"
DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
WAIT = "WAIT"
PREPARED = "TRAN_MSG"
"""What a client marks the prepared message of a transaction with."""
CRC32 = "__CRC32#"
KEY_SEPARATOR = " "

_NO_TEXT = re.compile(rb"\0|[\x03-\x08\x0b\x0c\x0e-\x1f]{3}")
_CONTROL = re.compile(rb"[\x03-\x08\x0b\x0c\x0e-\x1f\x7f]")

CRC_DIGITS = 10
CRC_PROPERTY_SIZE = len(CRC32) + 1 + CRC_DIGITS + 1
"""Bytes that the record CRC takes at the end of the properties (`enabledAppendPropCRC`)."""


def name_as_number(name: str) -> int:
    """A name of 4 or 8 characters as one big-endian integer, for kernels that compare it in one step."""
    return int.from_bytes(name.encode(), "big", signed=True)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The stored text of properties, in the order in which RocketMQ writes them.

    Raises `IllegalMessage` for an empty name or value (a reader would drop it) and for one that holds a separator.
    """
    for name, value in properties.items():
        if not name or not value:
            raise IllegalMessage(f"property {name!r} = {value!r}: an empty name or value cannot be stored")
        if NAME_END in name or VALUE_END in name or NAME_END in value or VALUE_END in value:
            raise IllegalMessage(f"property {name!r} holds a separator character (0x01 or 0x02)")
    parts = [f"{name}{NAME_END}{properties[name]}{VALUE_END}" for name in property_order(list(properties))]
    try:
        return "".join(parts).encode()
    except UnicodeEncodeError:
        raise IllegalMessage("a property holds half of a surrogate pair, which is no text") from None


def decode_properties(stored: bytes) -> dict[str, str]:
    """Properties from stored text: segments without a name or value vanish, later duplicates win, as upstream reads."""
    properties = {}
    for segment in stored.decode("utf-8", "replace").split(VALUE_END):
        name, separator, value = segment.partition(NAME_END)
        if name and separator and value:
            properties[name] = value
    return properties


def find_property(stored: bytes, name: bytes) -> str | None:
    """One property without parsing the others; the last of duplicates that has a value. `name` is ASCII."""
    text = VALUE_END.encode() + stored
    lead = VALUE_END.encode() + name + NAME_END.encode()
    at = text.rfind(lead)
    while at >= 0:
        start = at + len(lead)
        end = text.find(VALUE_END_BYTE, start)
        value = text[start : end if end >= 0 else len(text)]
        if value:
            return value.decode("utf-8", "replace")
        at = text.rfind(lead, 0, at)
    return None


def is_overwritten(properties: bytes) -> bool:
    """Whether a stretch of properties is no text: zeros, or bytes of something else."""
    return bool(_NO_TEXT.search(properties)) or len(properties.decode(errors="ignore").encode()) < len(properties) - 1


def may_be_overwritten(properties: bytes) -> bool:
    """Whether a single byte is none that clients write: what counts where damage begins right after the properties."""
    segments = properties.removesuffix(VALUE_END.encode()).split(VALUE_END.encode()) if properties else []
    return (
        is_overwritten(properties)
        or bool(_CONTROL.search(properties))
        or len(properties.decode(errors="ignore").encode()) < len(properties)
        or any(NAME_END_BYTE not in segment[1:] for segment in segments)
    )


def split_keys(keys: str | None) -> list[str]:
    """The non-empty index keys of a KEYS value."""
    return [key for key in (keys or "").split(KEY_SEPARATOR) if key]
