"""Reading queues whose units do not stand for one record of their own each: batch topics and light queues."""

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from stratalog.errors import CorruptData, IllegalMessage, counted
from stratalog.layout.batch import INNER_FLAGS, INNER_NUM, BatchEntry, batch_size_of, decode_batch_body
from stratalog.layout.light import LIGHT_QUEUE_ID, holds_nearly, light_offset
from stratalog.layout.message import LOST_FLAG, Record, crc_of
from stratalog.layout.properties import find_property
from stratalog.layout.queue import FILLER_SIZE, UNIT
from stratalog.layout.recordcrc import has_record_crc
from stratalog.layout.sysflag import COMPRESSION_MASK, SysFlag
from stratalog.store.batch_queue import BatchQueue, BatchSpan
from stratalog.store.message import Message, decompress, is_placeholder

if TYPE_CHECKING:
    from stratalog.store.queue import Queue

_FOLLOW_PAUSE_S = 0.005
_BODY_SIZE_MAX = 1 << 26
_WRAPPING_FLAGS = int(SysFlag.COMPRESSED) | COMPRESSION_MASK | INNER_FLAGS


def entries_of(sys_flag: int, properties: bytes, queue_offset: int, body: bytes) -> list[BatchEntry] | None:
    """The messages in a record of a batch topic; None where it is one message. Raises `CorruptData` where flags,
    INNER_NUM, INNER_BASE and body do not agree."""
    size, problem = batch_size_of(sys_flag, properties, queue_offset)
    if problem:
        raise CorruptData(problem)
    if sys_flag & INNER_FLAGS != INNER_FLAGS:
        return None
    try:
        plain = decompress(body, sys_flag, size_max=_BODY_SIZE_MAX) if sys_flag & SysFlag.COMPRESSED else body
    except IllegalMessage as error:
        raise CorruptData(f"its batch cannot be decompressed: {error}") from None
    entries = decode_batch_body(plain)
    if len(entries) != size:
        raise CorruptData(f"{INNER_NUM} is {size:,}, its body holds {counted(len(entries), 'message')}")
    return entries


def messages_in(record: Record) -> int:
    """Messages in the body of an inner batch, whatever its properties say; 0 for another record."""
    if not record.sys_flag & SysFlag.INNER_BATCH and find_property(record.properties, INNER_NUM.encode()) is None:
        return 0
    try:
        is_compressed = record.sys_flag & SysFlag.COMPRESSED
        body = decompress(record.body, record.sys_flag, size_max=_BODY_SIZE_MAX) if is_compressed else record.body
        return len(decode_batch_body(body))
    except (CorruptData, IllegalMessage):
        return 0


def unwrapped(message: Message) -> list[Message]:
    """The messages in a record of a batch topic, as a client sees them; none where it stands for lost ones. Raises
    `CorruptData` for a batch that contradicts itself.

    Each has its own queue offset, body, properties and flag; place in the log, hosts and times are the record's. The
    flags that tell of the wrapping are gone: bodies are decompressed.
    """
    if message.flag == LOST_FLAG and message.sys_flag & INNER_FLAGS == INNER_FLAGS:
        return []
    entries = entries_of(message.sys_flag, message.raw_properties, message.queue_offset, message.body)
    if entries is None:
        return [message]
    return [
        msgspec.structs.replace(
            message, queue_offset=message.queue_offset + number, body=entry.body, body_crc=crc_of(entry.body),
            raw_properties=entry.properties, flag=entry.flag, sys_flag=message.sys_flag & ~_WRAPPING_FLAGS,
        )
        for number, entry in enumerate(entries)
    ]  # fmt: skip


def batch_messages(queue: "Queue", units: BatchQueue, start: int, left: int, follow: bool) -> Iterator[Message]:
    """What `Queue.read` yields for a queue of a batch topic: every member of every batch from an offset on."""
    spans: Iterator[BatchSpan | None] = iter(())
    while left > 0:
        if start >= units.end_offset:
            behind = queue.store.catch_up()
            if start < units.end_offset:
                continue
            if behind:
                raise behind
            if not follow:
                return
            time.sleep(_FOLLOW_PAUSE_S)
            continue
        span = next(spans, None)
        if span is None or not span.begin <= start < span.end:
            span = units.covering(start)
            if span is None:
                following, before = units.following(start)
                raise queue.not_there(start, units.place(before), next_offset=following)
            spans = units.spans(span.number + 1)
        try:
            members = unwrapped(span.message) if span.message else []
        except CorruptData as error:
            following = min(span.end, units.following(start)[0])
            raise queue.not_there(start, units.place(span.number), next_offset=following, words=str(error)) from None
        for message in members:
            if left > 0 and message.queue_offset >= start:
                yield message
                left -= 1
        start = span.end


def light_messages(queue: "Queue", units: bytes, start: int) -> Iterator[list[Message]]:
    """Messages, one a list, of a light queue's units: topic, queue id and offset are those in the light queue.

    What they are in the queue that the message was put to is in the record: `store.message(commit_log_offset)`.
    The unit's place counts, not the offset that the record was given: RocketMQ lets the two come apart where a message
    names a light queue twice. From there on records have the larger offset, by as much up to the newest one.
    """
    for queue_offset, (commit_log_offset, size, _) in enumerate(UNIT.struct.iter_unpack(units), start):
        if size == FILLER_SIZE:
            continue
        try:
            message = queue.store.log.message(commit_log_offset)
        except CorruptData:
            raise queue.not_there(queue_offset, commit_log_offset) from None
        if message.store_size != size or not is_at(queue, message, queue_offset):
            raise queue.not_there(queue_offset, commit_log_offset)
        if not is_placeholder(message):
            message.topic, message.queue_id, message.queue_offset = queue.topic, LIGHT_QUEUE_ID, queue_offset
            yield [message]


def is_at(queue: "Queue", message: Message, queue_offset: int) -> bool:
    """Whether a record may be at this offset of a plain or light queue, as it says itself."""
    if not queue.is_light:
        return (message.topic, message.queue_id, message.queue_offset) == (queue.topic, queue.queue_id, queue_offset)
    ahead = offset_in(queue, message) - queue_offset
    return not ahead or 0 < ahead <= _ahead_at_end(queue)


def offset_in(queue: "Queue", message: Message) -> int:
    """The offset that a record was given in a light queue; -1 when it was given none."""
    if (message.topic, message.queue_id) == (queue.topic, LIGHT_QUEUE_ID):
        return message.queue_offset
    return light_offset(message.topic, message.raw_properties, queue.topic)


def place_in(queue: "Queue", message: Message) -> None:
    """Let a record's message be the one in the light queue: at the offset that it was given there, but where the units
    came apart from these at that of its unit."""
    units, place = queue.store.units_of(queue), offset_in(queue, message)
    for at in (place, units.offset_of(message.commit_log_offset)):
        is_there = at < units.end_offset and units.unit(at)[0] == message.commit_log_offset
        if is_there and is_at(queue, message, at):
            place = at
            break
    message.topic, message.queue_id, message.queue_offset = queue.topic, LIGHT_QUEUE_ID, place


def _ahead_at_end(queue: "Queue") -> int:
    """By how much the offset in the newest record of a light queue is larger than its unit's place; 0 where the newest
    unit points to a record that never named the queue: units were exchanged."""
    units = queue.store.units_of(queue)
    for queue_offset in range(units.end_offset - 1, units.first_offset - 1, -1):
        commit_log_offset, size, _ = units.unit(queue_offset)
        with contextlib.suppress(CorruptData):
            message = queue.store.log.message(commit_log_offset)
            if message.store_size != size:
                continue
            if (offset := offset_in(queue, message)) >= 0:
                return max(0, offset - queue_offset)
            if has_record_crc(message.raw_properties) or not holds_nearly(message.raw_properties, queue.topic):
                return 0
    return 0
