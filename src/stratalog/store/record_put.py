"""One message with every field of its record open to the caller: what the fast path of `Queue` hands over.

Here a put is checked for everything that RocketMQ takes and then loses or chokes on, before a byte is written.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from stratalog.errors import IllegalMessage
from stratalog.layout.message import (
    MAGIC_V1,
    MAGIC_V2,
    PORT_MAX,
    PROPERTIES_SIZE_MAX,
    RECORD_SIZE_SLACK,
    TOPIC_CHARS_MAX_V1,
    Host,
    Record,
)
from stratalog.layout.messageid import offset_message_id
from stratalog.layout.names import check_topic
from stratalog.layout.recordcrc import reserve_record_crc, seal_record_crc, without_record_crc
from stratalog.layout.sysflag import enters_queue
from stratalog.store.flush import asks_to_wait
from stratalog.store.special_put import special_of

if TYPE_CHECKING:
    from stratalog.store.commit_log import CommitLog
    from stratalog.store.queue import Queue


_FIELD_BITS = {"flag": 32, "sys_flag": 32, "reconsume_times": 32, "prepared_transaction_offset": 64}
_ADDRESS_SIZES = (4, 16)


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was put. `store_timestamp` is milliseconds since the epoch, sizes and offsets are bytes."""

    queue_offset: int
    commit_log_offset: int
    store_size: int
    store_timestamp: int
    store_host: Host

    @property
    def end_offset(self) -> int:
        """Log offset behind the record: durable once the log's `durable_offset` reaches it."""
        return self.commit_log_offset + self.store_size

    @property
    def message_id(self) -> str:
        """The id RocketMQ would have answered."""
        return offset_message_id(self.store_host, self.commit_log_offset)


class RecordFields(TypedDict, total=False):
    """What `put_record` takes besides body and properties. Hosts default to the store's, `born_timestamp` to now."""

    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: Host | None
    store_host: Host | None
    reconsume_times: int
    prepared_transaction_offset: int


def put_record(
    queue: "Queue", body: bytes, properties: bytes, *, wait: bool = True, **fields: Unpack[RecordFields]
) -> Receipt:
    """Append one message to a queue, see `Queue.put_record`.

    V2 is written where the topic needs it, IPv6 where a host is one. Raises what `Queue.put` raises.
    """
    record = checked_record(queue, body, properties, fields)
    special = special_of(queue, record)
    queued = enters_queue(record.sys_flag)
    log, settings = queue.store.log, queue.store.settings
    with log.lock:
        queue_offset = queue.next_offset if queued else 0
        record = replace(record, queue_offset=queue_offset)
        if special:
            record = special.complete(record)
        total = record.total_size
        position = make_room(log, total)
        start = log.end_offset
        now = queue.store.clock_ns() // 1_000_000
        placed = replace(
            record, commit_log_offset=start, born_timestamp=record.born_timestamp or now, store_timestamp=now
        )
        data = placed.encode()
        log.map[position : position + total] = seal_record_crc(data) if settings.enabled_append_prop_crc else data
        if queued and special:
            special.advance()
        else:
            queue.next_offset += queued
        log.end_offset = start + total
    if wait and settings.flush == "sync" and asks_to_wait(properties):
        queue.store.commit.wait(start + total)
    return Receipt(queue_offset, start, total, now, record.store_host)


def checked_record(queue: "Queue", body: bytes, properties: bytes, fields: RecordFields) -> Record:
    """The record to be placed: offsets and store time are still open. Raises `IllegalMessage`."""
    name, settings = queue.topic.encode(), queue.store.settings
    check_stored(properties)
    properties = without_record_crc(properties)
    if settings.enabled_append_prop_crc:
        properties = reserve_record_crc(properties)
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise IllegalMessage(f"properties of {len(properties):,} bytes: the limit is {PROPERTIES_SIZE_MAX:,}")
    _check_fields(fields)
    record = Record(
        topic=name,
        body=bytes(body),
        properties=properties,
        queue_id=queue.queue_id,
        flag=fields.get("flag", 0),
        sys_flag=fields.get("sys_flag", 0),
        born_timestamp=fields.get("born_timestamp", 0),
        born_host=fields.get("born_host") or queue.host,
        store_host=fields.get("store_host") or queue.host,
        reconsume_times=fields.get("reconsume_times", 0),
        prepared_transaction_offset=fields.get("prepared_transaction_offset", 0),
        magic=MAGIC_V2 if len(name) > TOPIC_CHARS_MAX_V1 else MAGIC_V1,
    )
    limit = settings.max_message_size
    if len(body) > limit or record.total_size > limit + RECORD_SIZE_SLACK:
        raise IllegalMessage(
            f"body of {len(body):,} bytes: the limit (max_message_size) is {limit:,}; nothing was written"
        )
    return record


def make_room(log: "CommitLog", total: int) -> int:
    """Position in the log's newest file for a record, under the log's lock; a new file is begun where it must be."""
    if total + 8 > log.file_size:
        raise IllegalMessage(
            f"the record takes {total:,} bytes, a file of this log holds {log.file_size - 8:,}; nothing was written"
        )
    return log.position_for(total)


def _check_fields(fields: RecordFields) -> None:
    """Raise `IllegalMessage` unless each field fits the record."""
    check_born_timestamp(fields.get("born_timestamp", 0))
    numbers: Mapping[str, Any] = fields
    for name, bits in _FIELD_BITS.items():
        value = numbers.get(name, 0)
        if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
            raise IllegalMessage(f"{name} {value}: it must fit {bits} bits; nothing was written")
    for host in (fields.get("born_host"), fields.get("store_host")):
        if host and not (len(host.address) in _ADDRESS_SIZES and 0 <= host.port <= PORT_MAX):
            raise IllegalMessage(
                f"host {host.address.hex()} port {host.port}: give 4 (IPv4) or 16 (IPv6) bytes, a port up to {PORT_MAX}"
            )


def check_stored(properties: bytes) -> None:
    """Raise `IllegalMessage` for encoded properties whose last byte is 0: a crash leaves such records, torn."""
    if properties.endswith(b"\0"):
        raise IllegalMessage("the properties end with a zero byte: each ends with 0x02; nothing was written")


def check_born_timestamp(born_timestamp: int) -> None:
    """Raise `IllegalMessage` unless the time fits its field."""
    if not -(1 << 63) <= born_timestamp < 1 << 63:
        raise IllegalMessage(f"born_timestamp {born_timestamp} ms: it must fit 64 bits; nothing was written")


def check_queue(topic: str, queue_id: int) -> None:
    """Raise `IllegalMessage` unless topic and queue id may be written."""
    check_topic(topic)
    if isinstance(queue_id, bool) or not hasattr(queue_id, "__index__") or not 0 <= queue_id < 1 << 31:
        raise IllegalMessage(f"queue id {queue_id!r}: give a whole number from 0")
