"""The record CRC: the last 20 bytes of the properties, over the whole record before them (`enabledAppendPropCRC`).

    __CRC32# 0x01 <10 decimal digits, least significant first, padded with 0 on the right> 0x02

It covers the record from its first byte to the start of these 20, with its final offsets and store time. In the tier
it no longer holds, because the copy has another commit_log_offset.
"""

from stratalog.layout.message import crc_of
from stratalog.layout.properties import CRC32, CRC_DIGITS, CRC_PROPERTY_SIZE, NAME_END, VALUE_END

_LEAD = (CRC32 + NAME_END).encode()
_END = VALUE_END.encode()


def _digits(crc: int) -> bytes:
    return str(crc)[::-1].ljust(CRC_DIGITS, "0").encode()


def reserve_record_crc(properties: bytes) -> bytes:
    """Properties with room for the CRC at their end, still unsigned (MessageExtEncoder)."""
    separator = b"" if not properties or properties.endswith(_END) else _END
    return properties + separator + _LEAD + _digits(0) + _END


def seal_record_crc(record: bytes) -> bytes:
    """The record with its CRC filled in. Its properties must end as `reserve_record_crc` left them."""
    covered = record[:-CRC_PROPERTY_SIZE]
    assert record[len(covered) :].startswith(_LEAD), "no room was reserved for the record CRC"
    return covered + _LEAD + _digits(crc_of(covered)) + _END


def record_crc_holds(record: bytes | memoryview) -> bool:
    """Whether a record ends with a CRC that fits it; a record without one does not (forceVerifyPropCRC)."""
    covered = memoryview(record)[:-CRC_PROPERTY_SIZE]
    return bytes(record[len(covered) :]) == _LEAD + _digits(crc_of(covered)) + _END
