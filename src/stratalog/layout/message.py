"""The CommitLog record: declaration, encoding and decoding of single records (MessageExtEncoder, MessageDecoder).

A record is head (four shapes, by the two IPv6 bits), body, topic with its length (one byte in V1, two in V2) and
properties with their length. Bulk work uses the same positions in `stratalog.kernels`.
"""

import zlib
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.record import Field, Layout
from stratalog.layout.sysflag import HOSTS_MASK, SysFlag

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)

LOST_FLAG = 0x4C4F5354
"""`flag` in the head of every record by which a repair stands for lost bytes: "LOST" in ASCII."""
BODY_SIZE_MAX = 4 * 1024 * 1024
"""`maxMessageSize`: largest body by default."""
PROPERTIES_SIZE_MAX = 32767
TOPIC_CHARS_MAX_V1 = 127
TOPIC_SIZE_MAX = 255
"""A topic is a directory name, which file systems limit to 255 bytes."""
PORT_MAX = 65_535
RECORD_SIZE_SLACK = 64 * 1024
"""A record may be this much larger than the largest body."""

_SOURCE = "MessageExtEncoder, MessageDecoder"

HOST_V4 = Layout(
    "IPv4 host",
    Field("address", "bytes", "raw address", bytes_size=4),
    Field("port", "i32", "port"),
    size=8,
    source=_SOURCE,
)
HOST_V6 = Layout(
    "IPv6 host",
    Field("address", "bytes", "raw address", bytes_size=16),
    Field("port", "i32", "port"),
    size=20,
    source=_SOURCE,
)
_FRONT = Layout(
    "record front",
    Field("total_size", "i32", "whole record, this field included", "bytes"),
    Field("magic", "i32", "V1 or V2"),
    Field("body_crc", "i32", "CRC-32 of the stored body, lower 31 bits; 0 for an empty body"),
    Field("queue_id", "i32", "queue of the topic"),
    Field("flag", "i32", "the user's, opaque to the store"),
    Field("queue_offset", "i64", "message number in the queue"),
    Field("commit_log_offset", "i64", "position of this record in the log", "bytes"),
    Field("sys_flag", "i32", "see SysFlag"),
    Field("born_timestamp", "i64", "when the client made it", "ms"),
    size=48,
    source=_SOURCE,
)
_STORED = Layout(
    "store time",
    Field("store_timestamp", "i64", "when it was appended (taken under the put lock)", "ms"),
    size=8,
    source=_SOURCE,
)
_TAIL = Layout(
    "record head's tail",
    Field("reconsume_times", "i32", "redeliveries so far"),
    Field("prepared_transaction_offset", "i64", "log offset of the half message", "bytes"),
    Field("body_size", "i32", "length of the body that follows", "bytes"),
    size=16,
    source=_SOURCE,
)

V6_EXTRA = HOST_V6.size - HOST_V4.size


def _head(born: Layout, store: Layout) -> Layout:
    size = _FRONT.size + born.size + _STORED.size + store.size + _TAIL.size
    name = f"message head, {born.name[:4]} born and {store.name[:4]} store host"
    return _FRONT.extended(name, ("born_", born), _STORED, ("store_", store), _TAIL, size=size)


HEAD = _head(HOST_V4, HOST_V4)
"""The head of a record with two IPv4 hosts: 88 bytes. Positions up to `born_timestamp` hold for every shape."""

HEADS: dict[int, Layout] = {
    0: HEAD,
    int(SysFlag.BORN_HOST_V6): _head(HOST_V6, HOST_V4),
    int(SysFlag.STORE_HOST_V6): _head(HOST_V4, HOST_V6),
    HOSTS_MASK: _head(HOST_V6, HOST_V6),
}
"""Head layout by `sys_flag & HOSTS_MASK`."""

BLANK = Layout(
    "blank record",
    Field("size", "i32", "bytes left in the file, this field included", "bytes"),
    Field("magic", "i32", "MAGIC_BLANK"),
    size=8,
    source="CommitLog.DefaultAppendMessageCallback",
)

BATCH_ENTRY = Layout(
    "client batch entry",
    Field("total_size", "i32", "this entry", "bytes"),
    Field("magic", "i32", "unused, 0"),
    Field("body_crc", "i32", "unused, 0"),
    Field("flag", "i32", "the user's"),
    Field("body_size", "i32", "length of the body that follows", "bytes"),
    size=20,
    source="MessageDecoder.encodeMessages",
)

TOPIC_LENGTH_V1 = Layout("V1 topic length", Field("size", "u8", "topic", "bytes"), size=1, source=_SOURCE)
TOPIC_LENGTH_V2 = Layout("V2 topic length", Field("size", "i16", "topic", "bytes"), size=2, source=_SOURCE)
PROPERTIES_LENGTH = Layout("properties length", Field("size", "i16", "properties", "bytes"), size=2, source=_SOURCE)

FIXED_SIZE_V1 = HEAD.size + TOPIC_LENGTH_V1.size + PROPERTIES_LENGTH.size
"""Smallest record: V1, IPv4 hosts, nothing in it but lengths."""
assert FIXED_SIZE_V1 == 91
MESSAGE_SIZE_MIN = BATCH_ENTRY.size + PROPERTIES_LENGTH.size
"""Each message takes this much of the log at least, be it in a batch."""
_Offsets = TypeVar("_Offsets", int, NDArray[np.int64])
_OFFSETS_AHEAD_MAX = 1 << 27
"""Queues may be ahead of that: their log was lost once, or they are parts of a static topic."""


def _merged_head(name: str, *fields: Field) -> Layout:
    """The IPv4 head with runs of it merged into bytes, so that one call of few arguments packs or unpacks it."""
    layout = Layout(name, *fields, size=HEAD.size, source=_SOURCE)
    for field in fields:
        assert field.kind == "bytes" or layout.position(field.name) == HEAD.position(field.name), field.name
    return layout


_MERGED_TAIL = (
    Field("sys_flag", "i32", "see SysFlag"),
    Field("born_timestamp", "i64", "", "ms"),
    Field("born_host", "bytes", "IPv4 host", bytes_size=HOST_V4.size),
    Field("store_timestamp", "i64", "", "ms"),
    Field("rest", "bytes", "see HEAD_REST", bytes_size=20),
    Field("body_size", "i32", "", "bytes"),
)
PUT_HEAD = _merged_head(
    "message head as the put path packs it",
    Field("total_size", "i32", "whole record", "bytes"),
    Field("magic", "i32", "V1 or V2"),
    Field("body_crc", "i32", "lower 31 bits"),
    Field("queue_and_flag", "bytes", "queue_id, flag", bytes_size=8),
    Field("queue_offset", "i64", "message number in the queue"),
    Field("commit_log_offset", "i64", "position in the log", "bytes"),
    *_MERGED_TAIL,
)
QUEUE_AND_FLAG = Layout("queue id and flag", *_FRONT.fields[3:5], size=8, source=_SOURCE)
assert [field.name for field in QUEUE_AND_FLAG.fields] == ["queue_id", "flag"]
READ_HEAD = _merged_head("message head as the read path unpacks it", *_FRONT.fields[:-2], *_MERGED_TAIL)
HEAD_REST = Layout(
    "the end of a message head that is seldom asked for",
    *(replace(field, name="store_" + field.name) for field in HOST_V4.fields),
    *_TAIL.fields[:-1],
    size=20,
    source=_SOURCE,
)
HEAD_REST_V6 = Layout(
    "the same with an IPv6 store host",
    *(replace(field, name="store_" + field.name) for field in HOST_V6.fields),
    *_TAIL.fields[:-1],
    size=32,
    source=_SOURCE,
)


def crc_of(body: bytes | memoryview) -> int:
    """The body CRC as stored: CRC-32 without its top bit (UtilAll.crc32)."""
    return zlib.crc32(body) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Host:
    """An address and a port as stored: 4 or 16 raw bytes."""

    address: bytes
    port: int

    @property
    def is_v6(self) -> bool:
        return len(self.address) != 4

    def packed(self) -> bytes:
        return (HOST_V6 if self.is_v6 else HOST_V4).pack(self.address, self.port)

    @classmethod
    def unpack(cls, packed: bytes) -> "Host":
        layout = HOST_V6 if len(packed) == HOST_V6.size else HOST_V4
        address, port = layout.unpack(packed)
        return cls(address, port)

    @classmethod
    def parse(cls, text: str) -> "Host":
        """`10.0.0.1:10911` or `[2001:db8::1]:10911`. Raises `IllegalMessage`."""
        import socket

        name, _, digits = text.rpartition(":")
        try:
            port = int(digits)
            if not 0 <= port <= PORT_MAX:
                raise ValueError(digits)
            if name.startswith("["):
                return cls(socket.inet_pton(socket.AF_INET6, name[1:-1]), port)
            return cls(socket.inet_pton(socket.AF_INET, name), port)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and "inet_pton" not in str(error):  # of a signal handler
                raise
            raise IllegalMessage(f"host {text[:80]!r} is neither 1.2.3.4:port nor [v6]:port") from None

    def __str__(self) -> str:
        """As Java prints a socket address: IPv6 groups are not compressed."""
        if not self.is_v6:
            return ".".join(map(str, self.address)) + f":{self.port}"
        groups = [self.address[i : i + 2].hex().lstrip("0") or "0" for i in range(0, 16, 2)]
        return f"[{':'.join(groups)}]:{self.port}"


LOCALHOST = Host(bytes([127, 0, 0, 1]), 10911)


@dataclass(frozen=True, slots=True)
class Record:
    """One CommitLog record, every field of it. `topic` and `properties` are the stored bytes."""

    topic: bytes
    body: bytes
    properties: bytes = b""
    queue_id: int = 0
    flag: int = 0
    queue_offset: int = 0
    commit_log_offset: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = dataclass_field(default=LOCALHOST)
    store_timestamp: int = 0
    store_host: Host = dataclass_field(default=LOCALHOST)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = MAGIC_V1
    body_crc: int | None = None
    """None: computed from the body when encoding."""

    @property
    def total_size(self) -> int:
        lengths = (TOPIC_LENGTH_V2 if self.magic == MAGIC_V2 else TOPIC_LENGTH_V1).size + PROPERTIES_LENGTH.size
        return self._head_layout.size + len(self.body) + len(self.topic) + len(self.properties) + lengths

    @property
    def _head_layout(self) -> Layout:
        return HEADS[self.host_flags]

    @property
    def host_flags(self) -> int:
        """The IPv6 bits that the two hosts ask for."""
        born = SysFlag.BORN_HOST_V6 if self.born_host.is_v6 else 0
        return int(born) | int(SysFlag.STORE_HOST_V6 if self.store_host.is_v6 else 0)

    def encode(self) -> bytes:
        """The record's bytes. The IPv6 bits of `sys_flag` follow the hosts."""
        head = self._head_layout.pack(
            self.total_size,
            self.magic,
            crc_of(self.body) if self.body_crc is None else self.body_crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.commit_log_offset,
            self.sys_flag & ~HOSTS_MASK | self.host_flags,
            self.born_timestamp,
            self.born_host.address,
            self.born_host.port,
            self.store_timestamp,
            self.store_host.address,
            self.store_host.port,
            self.reconsume_times,
            self.prepared_transaction_offset,
            len(self.body),
        )
        topic_length = TOPIC_LENGTH_V2 if self.magic == MAGIC_V2 else TOPIC_LENGTH_V1
        return b"".join(
            (
                head,
                self.body,
                topic_length.pack(len(self.topic)),
                self.topic,
                PROPERTIES_LENGTH.pack(len(self.properties)),
                self.properties,
            )
        )


def queue_offset_limit(commit_log_offset: _Offsets) -> _Offsets:
    """The largest queue offset that a record at a log offset can have."""
    return commit_log_offset // MESSAGE_SIZE_MIN + _OFFSETS_AHEAD_MAX


def decode_record(buffer: bytes | memoryview, position: int = 0, *, verify: bool = True) -> Record:
    """Decode the record at `position` of bytes that we may not have written.

    Checks magic, that the lengths add up to the total size, and (with `verify`) the body CRC. Raises `CorruptData`.
    """
    view = memoryview(buffer)
    front = _FRONT.unpack(view, position)
    if front.magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptData(f"magic {front.magic & 0xFFFFFFFF:#010x} is no message record's", position=position)
    if not FIXED_SIZE_V1 <= front.total_size <= len(view) - position:
        raise CorruptData(f"record size {front.total_size}, {len(view) - position} bytes left", position=position)
    view = view[position : position + front.total_size]
    layout = HEADS[front.sys_flag & HOSTS_MASK]
    head = layout.unpack(view)
    body_end = layout.size + head.body_size
    if head.body_size < 0 or body_end >= len(view):
        raise CorruptData(f"body of {head.body_size} bytes in a record of {len(view)}", position=position)
    body = bytes(view[layout.size : body_end])
    topic_length = TOPIC_LENGTH_V2 if head.magic == MAGIC_V2 else TOPIC_LENGTH_V1
    topic_start = body_end + topic_length.size
    topic_end = topic_start + topic_length.unpack(view, body_end).size
    properties_start = topic_end + PROPERTIES_LENGTH.size
    if topic_end < topic_start or properties_start > len(view):
        raise CorruptData("the topic runs past the record's end", position=position)
    properties_size = PROPERTIES_LENGTH.unpack(view, topic_end).size
    if properties_size < 0 or properties_start + properties_size != len(view):
        raise CorruptData(
            f"lengths add up to {properties_start + properties_size}, the record says {len(view)}", position=position
        )
    if verify and body and crc_of(body) != head.body_crc:
        raise CorruptData(f"body CRC {crc_of(body):#x}, the record says {head.body_crc:#x}", position=position)
    return Record(
        topic=bytes(view[topic_start:topic_end]),
        body=body,
        properties=bytes(view[properties_start:]),
        queue_id=head.queue_id,
        flag=head.flag,
        queue_offset=head.queue_offset,
        commit_log_offset=head.commit_log_offset,
        sys_flag=head.sys_flag,
        born_timestamp=head.born_timestamp,
        born_host=Host(head.born_address, head.born_port),
        store_timestamp=head.store_timestamp,
        store_host=Host(head.store_address, head.store_port),
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
        magic=head.magic,
        body_crc=head.body_crc,
    )
