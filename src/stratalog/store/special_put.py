"""Putting what stands in queues in another way than one message, one queue offset: inner batches and light queues.

`put_record` asks `special_of` for every record. What RocketMQ answers PUT_OK to and cannot dispatch, or finds illegal,
is refused there before a byte is written; what is left to add under the log's lock (offsets are known only then) is
added by `complete`, and `advanced` says where the queues go on.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.kernels.queue_table import QueueKind
from stratalog.layout.batch import (
    INNER_BASE,
    INNER_FLAGS,
    INNER_NUM,
    BatchEntry,
    decode_batch_body,
    encode_batch_body,
    inner_count,
)
from stratalog.layout.light import (
    LIGHT_QUEUE_ID,
    MULTI_DISPATCH,
    MULTI_QUEUE_OFFSET,
    is_light,
    joined_offsets,
    light_names,
)
from stratalog.layout.message import PROPERTIES_SIZE_MAX, Record
from stratalog.layout.properties import decode_properties, encode_properties, find_property
from stratalog.layout.queue import BATCH_SIZE_MAX
from stratalog.layout.recordcrc import reserve_record_crc, without_record_crc
from stratalog.layout.sysflag import SysFlag, enters_queue
from stratalog.store.arguments import exact_int
from stratalog.store.message import decompress

if TYPE_CHECKING:
    from stratalog.store.queue import Queue
    from stratalog.store.record_put import Receipt, RecordFields

_BODY_SIZE_MAX = 1 << 26


class Special(Protocol):
    """What a record needs when its place is known."""

    def complete(self, record: Record, ahead: int = 0) -> Record:
        """The record with what its offsets add to the properties, as if so many messages were put to each queue first.
        Under the log's lock. Raises `IllegalMessage` when they grow too large."""

    def advanced(self) -> list[tuple[Any, Any, Any]]:
        """What `CommitLog.commit` has to store for the queues. Under the log's lock."""


def refuse_light(queue: "Queue") -> None:
    """Raise `IllegalMessage` for a light queue."""
    if is_light(queue.topic) and queue.store.settings.dispatches_light_queues:
        raise IllegalMessage(
            f"{queue.topic!r} is a light queue: put to another topic, with the queue's name in "
            f"{MULTI_DISPATCH}; nothing was written"
        )


def special_of(queue: "Queue", record: Record) -> Special | None:
    """What a record needs beyond the plain way, None for almost all. Raises `IllegalMessage`."""
    kind = queue.store.queue_set.kind_of(queue.topic)
    if kind == QueueKind.BATCH:
        queue.store.enter_batch_topic(queue.topic, queue.queue_id)
    has_num = find_property(record.properties, INNER_NUM.encode()) is not None
    if has_num or record.sys_flag & SysFlag.INNER_BATCH:
        _check_inner_batch(queue, record, kind)
        return _InnerBatch(queue, inner_count(record.properties))
    names = find_property(record.properties, MULTI_DISPATCH.encode()) or ""
    refuse_light(queue)
    if not names.strip() or kind == QueueKind.PLAIN or kind == QueueKind.SCHEDULE:
        return None
    if kind == QueueKind.BATCH:
        raise IllegalMessage(
            f"{queue.topic!r} is a batch topic, whose messages cannot be in light queues: leave out "
            f"{MULTI_DISPATCH}; nothing was written"
        )
    if not queue.store.settings.dispatches_light_queues:
        raise IllegalMessage(
            f"a message with {MULTI_DISPATCH} needs both enable_lmq and enable_multi_dispatch in a store with light "
            "queues: open it with both set to True (--set enable_lmq=true --set enable_multi_dispatch=true); nothing "
            "was written"
        )
    return _LightQueues(queue, [queue.store.queue(name, LIGHT_QUEUE_ID) for name in light_names(names)])


def _check_inner_batch(queue: "Queue", record: Record, kind: QueueKind) -> None:
    """Flags, INNER_NUM, body and topic type must agree: a queue loses its count else."""
    if kind != QueueKind.BATCH:
        raise IllegalMessage(
            f"topic {queue.topic!r} is not of type BatchCQ and keeps no inner batches: use put_many, or create the "
            "topic with queue_type='BatchCQ'; nothing was written"
        )
    if record.sys_flag & INNER_FLAGS != INNER_FLAGS:
        raise IllegalMessage(f"{INNER_NUM} needs both flags of an inner batch ({INNER_FLAGS:#x}); nothing was written")
    if not enters_queue(record.sys_flag):
        raise IllegalMessage("an inner batch cannot be prepared or rolled back; nothing was written")
    body = record.body
    if record.sys_flag & SysFlag.COMPRESSED:
        body = decompress(body, record.sys_flag, size_max=_BODY_SIZE_MAX)
    try:
        entries = decode_batch_body(body)
    except CorruptData as error:
        raise IllegalMessage(f"the body is no batch: {error}; nothing was written") from None
    if len(entries) != inner_count(record.properties):
        raise IllegalMessage(
            f"{INNER_NUM} is {inner_count(record.properties)}, the body holds {len(entries)} messages; "
            "nothing was written"
        )


@dataclass(frozen=True, slots=True)
class _InnerBatch:
    queue: "Queue"
    count: int

    def complete(self, record: Record, ahead: int = 0) -> Record:
        return _with_property(record, INNER_BASE, str(record.queue_offset + ahead))

    def advanced(self) -> list[tuple[Any, Any, Any]]:
        return [self.queue.advanced(self.count)]


@dataclass(frozen=True, slots=True)
class _LightQueues:
    queue: "Queue"
    light: "list[Queue]"

    def complete(self, record: Record, ahead: int = 0) -> Record:
        offsets = joined_offsets([queue.next_offset + ahead for queue in self.light])
        return _with_property(record, MULTI_QUEUE_OFFSET, offsets)

    def advanced(self) -> list[tuple[Any, Any, Any]]:
        return [queue.advanced(1) for queue in (self.queue, *self.light)]


def _with_property(record: Record, name: str, value: str) -> Record:
    """The record with one more property; the text is made anew, in RocketMQ's order. Raises `IllegalMessage`."""
    plain = without_record_crc(record.properties)
    properties = encode_properties({**decode_properties(plain), name: value})
    if plain != record.properties:
        properties = reserve_record_crc(properties)
    if len(properties) > PROPERTIES_SIZE_MAX:
        raise IllegalMessage(
            f"properties of {len(properties):,} bytes with {name}: the limit is {PROPERTIES_SIZE_MAX:,}; "
            "nothing was written"
        )
    return replace(record, properties=properties)


def put_batch(
    queue: "Queue",
    bodies: list[bytes],
    properties: bytes | list[bytes],
    flags: list[int] | None,
    shared: dict[str, str],
    *,
    wait: bool,
    **fields: Unpack["RecordFields"],
) -> "Receipt":
    """See `Queue.put_batch`; takes what its checks return."""
    count = len(bodies)
    texts = [properties] * count if isinstance(properties, bytes) else properties
    if len(texts) != count or (flags is not None and len(flags) != count):
        raise IllegalMessage(f"{count} bodies need as many properties (or one text for all) and flags")
    if not 1 <= count <= BATCH_SIZE_MAX:
        raise IllegalMessage(f"a batch of {count:,} messages: give 1 to {BATCH_SIZE_MAX:,}; nothing was written")
    entries = map(BatchEntry, bodies, texts, flags or [0] * count)
    text = encode_properties({**shared, INNER_NUM: str(count)})
    fields["sys_flag"] = exact_int("sys_flag", fields.get("sys_flag", 0)) | INNER_FLAGS
    return queue.put_record(encode_batch_body(entries), text, wait=wait, **fields)
