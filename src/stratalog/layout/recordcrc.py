"""The record CRC: the last 20 bytes of the properties, over the whole record before them (`enabledAppendPropCRC`).

    __CRC32# 0x01 <10 decimal digits, least significant first, padded with 0 on the right> 0x02

It covers the record from its first byte to the start of these 20, with its final offsets and store time. In the tier
it no longer holds, because the copy has another commit_log_offset. A record has one when the last 20 bytes of its
properties are a property of that name: a CRC that came along with the properties of another record stands further in
front (a broker orders properties by hash, and the names that it adds itself come behind).
"""

import re

from stratalog.errors import IllegalMessage
from stratalog.layout.message import crc_of
from stratalog.layout.properties import CRC32, CRC_DIGITS, CRC_PROPERTY_SIZE, NAME_END, VALUE_END

CRC_NAME = CRC32.encode()
CRC_LEAD = (CRC32 + NAME_END).encode()
_END = VALUE_END.encode()
_STALE = re.compile(rb"(?:\A|(?<=\x02))" + re.escape(CRC_LEAD) + rb"[^\x02]*(?:\x02|\Z)")


def _digits(crc: int) -> bytes:
    return str(crc)[::-1].ljust(CRC_DIGITS, "0").encode()


CRC_ROOM = CRC_LEAD + _digits(0) + _END
"""What stands where the CRC will: 20 bytes."""


def without_record_crc(properties: bytes) -> bytes:
    """Properties without the CRC of the record that they come from (MessageUtils.deleteProperty). Raises
    `IllegalMessage` for those that would be taken for properties with a CRC all the same."""
    if CRC_NAME not in properties:
        return properties
    properties = _STALE.sub(b"", properties)
    if has_record_crc(properties):
        raise IllegalMessage(f"the properties end like a record CRC ({CRC32}); nothing was written")
    return properties


def reserve_record_crc(properties: bytes) -> bytes:
    """Properties with room for the CRC at their end, still unsigned (MessageExtEncoder)."""
    separator = b"" if not properties or properties.endswith(_END) else _END
    return properties + separator + CRC_ROOM


def seal_record_crc(record: bytes) -> bytes:
    """The record with its CRC filled in. Its properties must end as `reserve_record_crc` left them."""
    covered = record[:-CRC_PROPERTY_SIZE]
    assert record[len(covered) :].startswith(CRC_LEAD), "no room was reserved for the record CRC"
    return covered + CRC_LEAD + _digits(crc_of(covered)) + _END


def record_crc_holds(record: bytes | memoryview) -> bool:
    """Whether a record ends with a CRC that fits it; a record without one does not."""
    covered = memoryview(record)[:-CRC_PROPERTY_SIZE]
    return bytes(record[len(covered) :]) == CRC_LEAD + _digits(crc_of(covered)) + _END


def with_crc_name(record: bytes) -> bytes:
    """The record with the name of its CRC restored, if its last ten digits are its CRC and the name alone is wrong."""
    tail = record[-CRC_PROPERTY_SIZE:]
    restored = record[:-CRC_PROPERTY_SIZE] + CRC_LEAD + tail[len(CRC_LEAD) :]
    return restored if not tail.startswith(CRC_LEAD) and record_crc_holds(restored) else record


def has_record_crc(properties: bytes) -> bool:
    """Whether stored properties end with a record CRC, right or wrong: with its name, as kernels see it (a name's part,
    or a value's, is none)."""
    tail, before = properties[-CRC_PROPERTY_SIZE:], properties[:-CRC_PROPERTY_SIZE]
    if len(tail) < CRC_PROPERTY_SIZE or not tail.startswith(CRC_NAME):
        return False
    if not before or before.endswith(_END):
        return tail.startswith(CRC_LEAD) or NAME_END.encode() not in tail
    return tail.startswith(CRC_LEAD) and NAME_END.encode() in before.rpartition(_END)[2]
