"""Reading queues whose units do not stand for one record of their own each: batch topics and light queues."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.batch import INNER_FLAGS, decode_batch_body
from stratalog.layout.light import LIGHT_QUEUE_ID, names_light_queue
from stratalog.layout.message import crc_of
from stratalog.layout.queue import FILLER_SIZE, UNIT, is_filler
from stratalog.layout.sysflag import COMPRESSION_MASK, SysFlag
from stratalog.store.batch_queue import BatchQueue
from stratalog.store.message import Message

if TYPE_CHECKING:
    from stratalog.store.queue import Queue

_CHUNK_UNITS = 1024
_FOLLOW_PAUSE_S = 0.005
_WRAPPING_FLAGS = int(SysFlag.COMPRESSED) | COMPRESSION_MASK | INNER_FLAGS


def unwrapped(message: Message) -> list[Message]:
    """The messages in an inner batch, as a client sees them; a message that is none, or cannot be taken apart, is
    returned as it is.

    Each has its own queue offset, body, properties and flag; place in the log, hosts and times are the record's. The
    flags that tell of the wrapping are gone: bodies are decompressed.
    """
    if message.sys_flag & INNER_FLAGS != INNER_FLAGS:
        return [message]
    try:
        entries = decode_batch_body(message.decompressed())
    except (CorruptData, IllegalMessage):
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
    while left > 0:
        queue.store.catch_up()
        found = units.units_from(start, min(left, _CHUNK_UNITS))
        if not found:
            if not follow:
                return
            time.sleep(_FOLLOW_PAUSE_S)
        for unit in found:
            members = [] if is_filler(unit.size, unit.tags_code) else _members(queue, unit)
            for message in members:
                if left > 0 and message.queue_offset >= start:
                    yield message
                    left -= 1
            start = unit.base_offset + unit.batch_size


def _members(queue: "Queue", unit: Any) -> list[Message]:
    message = _record_of(queue, unit.base_offset, unit.commit_log_offset)
    if message.queue_offset != unit.base_offset:
        raise queue.not_there(unit.base_offset, unit.commit_log_offset)
    return unwrapped(message)[: unit.batch_size]


def light_messages(queue: "Queue", units: bytes, start: int) -> Iterator[list[Message]]:
    """Messages, one a list, of a light queue's units: topic, queue id and offset are those in the light queue.

    What they are in the queue that the message was put to stands in the record: `store.message(commit_log_offset)`.
    The unit's place counts, not the offset that the record was given: RocketMQ lets the two come apart where a message
    names a light queue twice.
    """
    for queue_offset, (commit_log_offset, size, _) in enumerate(UNIT.struct.iter_unpack(units), start):
        if size == FILLER_SIZE:
            continue
        message = _record_of(queue, queue_offset, commit_log_offset)
        own = (message.topic, message.queue_id, message.queue_offset) == (queue.topic, queue.queue_id, queue_offset)
        if not own and not names_light_queue(message.raw_properties, queue.topic):
            raise queue.not_there(queue_offset, commit_log_offset)
        message.topic, message.queue_id, message.queue_offset = queue.topic, LIGHT_QUEUE_ID, queue_offset
        yield [message]


def _record_of(queue: "Queue", queue_offset: int, commit_log_offset: int) -> Message:
    try:
        message = queue.store.log.message(commit_log_offset)
    except (IndexError, CorruptData):
        raise queue.not_there(queue_offset, commit_log_offset) from None
    if message.commit_log_offset != commit_log_offset:
        raise queue.not_there(queue_offset, commit_log_offset)
    return message
