"""Bits of a message's `sysFlag` (MessageSysFlag)."""

from enum import IntEnum, IntFlag


class SysFlag(IntFlag):
    """All bits that upstream defines; the transaction type and the compression type are fields of several bits."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80


TRANSACTION_MASK = 0xC
COMPRESSION_MASK = 0x700
KNOWN_MASK = 0x7FF
"""Every bit that a release of RocketMQ gives a meaning to."""
HOSTS_MASK = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)


class Transaction(IntEnum):
    """Transaction type: bits 2 and 3. Prepared and rolled back messages enter no queue."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Compression(IntEnum):
    """How a compressed body is encoded: bits 8 to 10. The store never (de)compresses; clients do."""

    LEGACY_ZLIB = 0x000
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


def transaction_of(sys_flag: int) -> Transaction:
    return Transaction(sys_flag & TRANSACTION_MASK)


def enters_queue(sys_flag: int) -> bool:
    """Whether a message gets a queue offset and a ConsumeQueue unit (none and commit do)."""
    return sys_flag & TRANSACTION_MASK in (Transaction.NONE, Transaction.COMMIT)
