"""One message with every field of its record open to the caller: what the fast path of `Queue` hands over.

Here a put is checked for everything that RocketMQ takes and then loses or chokes on, before a byte is written.
"""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

import msgspec

from stratalog.config.shown import shown
from stratalog.errors import IllegalMessage
from stratalog.kernels.queue_table import QueueKind
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
from stratalog.layout.properties import DELAY, find_property
from stratalog.layout.recordcrc import reserve_record_crc, seal_record_crc, without_record_crc
from stratalog.layout.sysflag import enters_queue
from stratalog.store.arguments import TIME_MAX, exact_bytes, exact_int, exact_list, truth
from stratalog.store.flush import asks_to_wait
from stratalog.store.locks import free
from stratalog.store.special_put import Special, special_of

if TYPE_CHECKING:
    from stratalog.store.commit_log import CommitLog
    from stratalog.store.queue import Queue


_FIELD_BITS = {
    "flag": 32, "sys_flag": 32, "born_timestamp": 64, "reconsume_times": 32, "prepared_transaction_offset": 64
}  # fmt: skip
_FIELDS = (*_FIELD_BITS, "born_host", "store_host")
_ADDRESS_SIZES = (4, 16)
_LEVEL = re.compile(r"([+-]?)0*([0-9]{1,10})\Z")


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where a message was put. `store_timestamp` is milliseconds since the epoch, sizes and offsets are bytes."""

    queue_offset: int
    commit_log_offset: int
    store_size: int
    store_timestamp: int
    store_host: Host

    @property
    def end_offset(self) -> int:
        """Log offset after the record: durable once the log's `durable_offset` reaches it."""
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
    body, properties, wait = exact_bytes("body", body), exact_bytes("properties", properties), truth("wait", wait)
    record = checked_record(queue, body, properties, fields)
    special = special_of(queue, record)
    with free(*queue.store.log.locks.append), queue.store.log.busy:
        receipt = append_record(queue, record, special)
    if wait and queue.store.settings.flush == "sync" and asks_to_wait(properties):
        queue.store.commit.wait(receipt.end_offset)
    return receipt


def append_record(queue: "Queue", record: Record, special: Special | None, now_ms: int | None = None) -> Receipt:
    """Append a checked record, with the log's lock held; `now_ms` is its store time if that is known."""
    log = queue.store.log
    queued = enters_queue(record.sys_flag)
    queue_offset = queue.next_offset if queued else 0
    record = replace(record, queue_offset=queue_offset)
    if special:
        record = special.complete(record)
    total = record.total_size
    position = make_room(log, total)
    start = log.end_offset
    now = queue.store.clock_ns() // 1_000_000 if now_ms is None else now_ms
    placed = replace(record, commit_log_offset=start, born_timestamp=record.born_timestamp or now, store_timestamp=now)
    data = placed.encode()
    if queue.store.settings.enabled_append_prop_crc:
        data = seal_record_crc(data)
    moved = special.advanced() if queued and special else [queue.advanced(queued)]
    log.commit(start + total, (log.map, slice(position, position + total), data), *moved)
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
    if queue.kind == QueueKind.SCHEDULE:
        check_level(find_property(properties, DELAY.encode()))
    fields = _exact_fields(fields)
    record = Record(
        topic=name,
        body=body,
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


def _exact_fields(fields: RecordFields) -> RecordFields:
    """The fields, each of which fits the record. Raises `IllegalMessage`, `TypeError` for an unknown name."""
    exact: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _FIELD_BITS:
            exact[name] = _fitting(name, value, _FIELD_BITS[name])
        elif name in ("born_host", "store_host"):
            exact[name] = check_host(name, value)
        else:
            raise TypeError(f"unexpected keyword argument {name!r}; a record's fields are {', '.join(_FIELDS)}")
    return cast(RecordFields, exact)


def check_host(name: str, host: Any) -> Host | None:
    """Raise `IllegalMessage` for a host that is neither None nor fits the record."""
    if host is None:
        return None
    if type(host) is not Host:
        raise IllegalMessage(f"{name} {shown(host)}: give a Host, for example Host.parse('10.0.0.1:10911')")
    address, port = exact_bytes(f"{name}.address", host.address), exact_int(f"{name}.port", host.port)
    if len(address) not in _ADDRESS_SIZES or not 0 <= port <= PORT_MAX:
        raise IllegalMessage(
            f"host {address.hex()} port {port}: give 4 (IPv4) or 16 (IPv6) bytes, a port up to {PORT_MAX}"
        )
    return Host(address, port)


def check_flags(flags: Any) -> list[int] | None:
    """The flags of a list of messages. Raises `IllegalMessage` unless each is a number of 32 bits."""
    return flags if flags is None else [_fitting("flags: one", flag, 32) for flag in exact_list("flags", flags)]


def _fitting(name: str, value: Any, bits: int) -> int:
    number = exact_int(name, value)
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise IllegalMessage(f"{name} {number}: it must fit {bits} bits; nothing was written")
    return number


def check_stored(properties: bytes) -> None:
    """Raise `IllegalMessage` for encoded properties whose last byte is 0: a crash leaves such records, torn."""
    if properties.endswith(b"\0"):
        raise IllegalMessage("the properties end with a zero byte: each ends with 0x02; nothing was written")


def check_level(level: str | None) -> None:
    """Raise `IllegalMessage` for the level of a delayed message that is no number: RocketMQ ends its log there. A
    message need not have one."""
    if not level:
        return
    number = _LEVEL.match(level)
    if not number or not -(1 << 31) <= int(number[1] + number[2]) < 1 << 31:
        raise IllegalMessage(f"property {DELAY} is {level[:80]!r}: give a level's number; nothing was written")


def check_born_timestamp(born_timestamp: Any) -> int:
    """The time in milliseconds. Raises `IllegalMessage` unless it is a whole number that fits its field."""
    if type(born_timestamp) is int and 0 <= born_timestamp <= TIME_MAX:
        return born_timestamp
    return _fitting("born_timestamp", born_timestamp, 64)


def check_queue_id(queue_id: Any) -> int:
    """The number of a queue. Raises `IllegalMessage`."""
    number = exact_int("queue id", queue_id)
    if not 0 <= number < 1 << 31:
        raise IllegalMessage(f"queue id {number}: give a whole number from 0")
    return number
