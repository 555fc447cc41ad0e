"""Message ids: the broker's offset id and the client's unique key."""

from dataclasses import dataclass

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.message import Host
from stratalog.layout.record import Field, Layout

_SOURCE = "MessageDecoder.createMessageId"
OFFSET_ID_V4 = Layout(
    "offset message id, IPv4",
    Field("address", "bytes", "store host", bytes_size=4),
    Field("port", "i32", "store port"),
    Field("commit_log_offset", "i64", "record", "bytes"),
    size=16,
    source=_SOURCE,
)
OFFSET_ID_V6 = Layout(
    "offset message id, IPv6",
    Field("address", "bytes", "store host", bytes_size=16),
    Field("port", "i32", "store port"),
    Field("commit_log_offset", "i64", "record", "bytes"),
    size=28,
    source=_SOURCE,
)


def _unique(name: str, address_size: int, size: int) -> Layout:
    return Layout(
        name,
        Field("address", "bytes", "client's address", bytes_size=address_size),
        Field("process_id", "u16", "lower 16 bits"),
        Field("loader_hash", "i32", "hash of the class loader"),
        Field("since_month_start", "i32", "time since the start of the local month", "ms"),
        Field("counter", "u16", "counts up"),
        size=size,
        source="MessageClientIDSetter",
    )


UNIQUE_KEY_V4 = _unique("unique key, IPv4", 4, 16)
UNIQUE_KEY_V6 = _unique("unique key, IPv6", 16, 28)


def offset_message_id(store_host: Host, commit_log_offset: int) -> str:
    """The id a broker answers a put with: store host and log offset in upper-case hex, 32 or 56 characters."""
    layout = OFFSET_ID_V6 if store_host.is_v6 else OFFSET_ID_V4
    return layout.pack(store_host.address, store_host.port, commit_log_offset).hex().upper()


def decode_offset_message_id(message_id: str) -> tuple[Host, int]:
    """Store host and commit log offset of an id. Raises `IllegalMessage`."""
    layouts = {2 * layout.size: layout for layout in (OFFSET_ID_V4, OFFSET_ID_V6)}
    try:
        address, port, offset = layouts[len(message_id)].unpack(bytes.fromhex(message_id))
    except (KeyError, ValueError, CorruptData):
        raise IllegalMessage(f"message id {message_id[:80]!r} is not 32 or 56 hexadecimal digits") from None
    return Host(address, port), offset


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """The parts of a client's UNIQ_KEY."""

    address: bytes
    process_id: int
    loader_hash: int
    since_month_start_ms: int
    counter: int

    def __str__(self) -> str:
        layout = UNIQUE_KEY_V4 if len(self.address) == 4 else UNIQUE_KEY_V6
        packed = layout.pack(self.address, self.process_id, self.loader_hash, self.since_month_start_ms, self.counter)
        return packed.hex().upper()

    @classmethod
    def decode(cls, text: str) -> "UniqueKey":
        """Parts of a key that RocketMQ's clients made. Raises `IllegalMessage`: any text may be a unique key."""
        layouts = {2 * layout.size: layout for layout in (UNIQUE_KEY_V4, UNIQUE_KEY_V6)}
        try:
            return cls(*layouts[len(text)].unpack(bytes.fromhex(text)))
        except (KeyError, ValueError, CorruptData):
            raise IllegalMessage(f"unique key {text[:80]!r} is not one that RocketMQ's clients make") from None
