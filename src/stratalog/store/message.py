"""A message as it is read: fixed fields decoded at once, properties on demand."""

from typing import Any

import msgspec

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.batch import PLACEHOLDER_FLAGS
from stratalog.layout.message import (
    HEAD,
    HEAD_REST,
    HEAD_REST_V6,
    HEADS,
    LOST_FLAG,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    READ_HEAD,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    Host,
)
from stratalog.layout.messageid import offset_message_id
from stratalog.layout.names import SCHEDULE_TOPIC
from stratalog.layout.properties import KEYS, TAGS, UNIQUE_KEY, decode_properties, find_property, split_keys
from stratalog.layout.record import UnpackError
from stratalog.layout.sysflag import COMPRESSION_MASK, HOSTS_MASK, Compression, SysFlag

_V1_LENGTH = TOPIC_LENGTH_V1.size
_V2_LENGTH = TOPIC_LENGTH_V2.size
_unpack_head = READ_HEAD.struct.unpack_from
_unpack_topic_v2 = TOPIC_LENGTH_V2.struct.unpack_from
_HEAD_SIZE = HEAD.size


class Message(msgspec.Struct, gc=False):
    """One stored message. All bytes are copies: a message stays valid when its file goes.

    Times are milliseconds since the epoch; `body` is as stored, see `decompressed`.
    """

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    store_size: int
    body: bytes
    raw_properties: bytes
    born_timestamp: int
    store_timestamp: int
    flag: int
    sys_flag: int
    body_crc: int
    raw_born_host: bytes
    raw_rest: bytes

    @property
    def tags(self) -> str | None:
        return find_property(self.raw_properties, TAGS.encode())

    @property
    def keys(self) -> list[str]:
        return split_keys(find_property(self.raw_properties, KEYS.encode()))

    @property
    def unique_key(self) -> str | None:
        return find_property(self.raw_properties, UNIQUE_KEY.encode())

    @property
    def properties(self) -> dict[str, str]:
        """All properties, parsed at each call; `tags`, `keys` and `unique_key` are found without that."""
        return decode_properties(self.raw_properties)

    @property
    def born_host(self) -> Host:
        return Host.unpack(self.raw_born_host)

    @property
    def store_host(self) -> Host:
        rest = _rest(self.raw_rest)
        return Host(rest.store_address, rest.store_port)

    @property
    def reconsume_times(self) -> int:
        """How often the message was redelivered."""
        return int(_rest(self.raw_rest).reconsume_times)

    @property
    def prepared_transaction_offset(self) -> int:
        """Log offset of the half message that this one commits or rolls back."""
        return int(_rest(self.raw_rest).prepared_transaction_offset)

    @property
    def message_id(self) -> str:
        """The broker's id: store host and log offset in hexadecimal."""
        return offset_message_id(self.store_host, self.commit_log_offset)

    def decompressed(self, *, size_max: int = 16 * 1024 * 1024) -> bytes:
        """The body as the producer gave it. Raises `IllegalMessage` when it exceeds `size_max` bytes or is damaged."""
        if not self.sys_flag & SysFlag.COMPRESSED:
            return self.body
        return decompress(self.body, self.sys_flag, size_max=size_max)


def decompress(body: bytes, sys_flag: int, *, size_max: int) -> bytes:
    """Decompress a body by the kind that `sys_flag` names, never producing more than `size_max` bytes."""
    kind = sys_flag & COMPRESSION_MASK
    try:
        if kind == Compression.LZ4:
            import lz4.frame

            plain: bytes = lz4.frame.LZ4FrameDecompressor().decompress(body, max_length=size_max + 1)
        elif kind == Compression.ZSTD:
            import zstandard

            with zstandard.ZstdDecompressor().stream_reader(body) as reader:
                plain = reader.read(size_max + 1)
        elif kind in (Compression.ZLIB, Compression.LEGACY_ZLIB):
            import zlib

            plain = zlib.decompressobj().decompress(body, size_max + 1)
        else:
            raise IllegalMessage(f"compression type {kind:#x} of the message is unknown")
    except IllegalMessage:
        raise
    except Exception as error:  # noqa: BLE001 - three libraries, three roots
        raise IllegalMessage(f"the compressed body cannot be read: {error}") from None
    if len(plain) > size_max:
        raise IllegalMessage(f"the body decompresses to more than {size_max:,} bytes; raise size_max if that is meant")
    return plain


def is_placeholder(message: Message) -> bool:
    """Whether a repair wrote this record in the place of a lost message."""
    is_of_repair = message.sys_flag == PLACEHOLDER_FLAGS or message.topic == SCHEDULE_TOPIC
    return message.flag == LOST_FLAG and is_of_repair


def message_at(buffer: Any, position: int, topic: str | None = None) -> Message:
    """The message whose record starts at `position` of a buffer (an mmap or bytes; slices must be bytes).

    Trusts that the record was verified; raises `CorruptData` where lengths do not fit the buffer. `topic` saves
    decoding the name when the caller knows it.
    """
    try:
        (
            total_size, magic, body_crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born_timestamp,
            born_host, store_timestamp, rest, body_size,
        ) = _unpack_head(buffer, position)  # fmt: skip
        head_size = _HEAD_SIZE
        if sys_flag & HOSTS_MASK:
            layout = HEADS[sys_flag & HOSTS_MASK]
            head = layout.unpack(memoryview(buffer), position)
            born_host, store_timestamp, body_size = Host(*head[9:11]).packed(), head.store_timestamp, head.body_size
            head_size = layout.size
            rest_start = position + layout.position("store_address")
            rest = buffer[rest_start : position + layout.position("body_size")]
        body_start = position + head_size
        body_end = body_start + body_size
        if magic == MAGIC_V2:
            topic_start = body_end + _V2_LENGTH
            topic_end = topic_start + _unpack_topic_v2(buffer, body_end)[0]
        else:
            topic_start = body_end + _V1_LENGTH
            topic_end = topic_start + buffer[body_end]
        if topic is None:
            topic = buffer[topic_start:topic_end].decode("utf-8", "replace")
        properties_start = topic_end + PROPERTIES_LENGTH.size
    except (UnpackError, IndexError):
        raise CorruptData("a message record does not fit its file", position=position) from None
    return Message(
        topic, queue_id, queue_offset, commit_log_offset, total_size, buffer[body_start:body_end],
        buffer[properties_start : position + total_size], born_timestamp, store_timestamp, flag, sys_flag, body_crc,
        born_host, rest,
    )  # fmt: skip


def _rest(raw: bytes) -> Any:
    return (HEAD_REST if len(raw) == HEAD_REST.size else HEAD_REST_V6).unpack(raw)
