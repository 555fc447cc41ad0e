"""Putting lists: one join, one kernel call, one lock for many messages of one queue.

A list of a hundred costs little more than a few single puts, so what is done once per list counts: offsets are made by
`accumulate` into plain arrays, the kernel's tables are kept per queue, receipts are made when they are asked for.
"""

import contextlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from stratalog.errors import OF_LIST, IllegalMessage, StratalogError, partly_put
from stratalog.kernels.encode import (
    COLUMN_DATA,
    COLUMN_OFFSETS,
    EncodeStatus,
    encode_batch,
)
from stratalog.kernels.queue_table import (
    QUEUE_FIELDS,
    QUEUE_ID,
    QUEUE_NEXT_OFFSET,
    QUEUE_TOPIC_ADDRESS,
    QUEUE_TOPIC_SIZE,
)
from stratalog.kernels.recordcrc import seal_records
from stratalog.layout.message import BLANK, PROPERTIES_SIZE_MAX, Host, Record
from stratalog.layout.names import SCHEDULE_TOPIC
from stratalog.layout.properties import DELAY, find_property
from stratalog.layout.recordcrc import CRC_NAME, reserve_record_crc, without_record_crc
from stratalog.store.locks import free
from stratalog.store.queue import Queue
from stratalog.store.receipts import Receipts
from stratalog.store.record_put import Receipt, RecordFields, append_record, check_stored, checked_record
from stratalog.store.special_put import Special, special_of

if TYPE_CHECKING:
    from stratalog.store.message_store import MessageStore

_COLUMN_FIELDS = COLUMN_DATA + 1


class ListWriter:
    """What one queue needs to put lists; used with the put lock held."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._topic = np.frombuffer(queue.topic.encode(), np.uint8)
        self._host = pa.py_buffer(queue.host.packed())
        self._table = np.zeros((1, QUEUE_FIELDS), np.int64)
        row = self._table[0]
        row[QUEUE_TOPIC_ADDRESS], row[QUEUE_TOPIC_SIZE] = self._topic.ctypes.data, self._topic.size
        row[QUEUE_ID] = queue.queue_id
        self._columns = np.zeros((1, _COLUMN_FIELDS), np.int64)
        self._rows_queue = np.zeros(1024, np.int32)

    def write(
        self,
        store: "MessageStore",
        bodies: pa.Buffer,
        body_offsets: "array[int]",
        properties: pa.Buffer,
        properties_offsets: "array[int]",
        *,
        flags: "array[int] | None",
        born: "array[int] | None",
        born_host: Host | None,
    ) -> Receipts:
        """Append the list, whose sizes were checked, in one piece. Raises what `CommitLog.position_for` raises."""
        queue, log, count = self._queue, store.log, len(body_offsets) - 1
        if count > self._rows_queue.size:
            self._rows_queue = np.zeros(2 * count, np.int32)
        self._columns[0, COLUMN_OFFSETS] = properties_offsets.buffer_info()[0]
        self._columns[0, COLUMN_DATA] = properties.address
        self._table[0, QUEUE_NEXT_OFFSET] = queue_offset = queue.next_offset
        host = pa.py_buffer(born_host.packed()) if born_host else self._host
        total = queue.fixed_size * count + body_offsets[count] + properties_offsets[count]
        position = log.position_for(total)
        start, now = log.end_offset, store.clock_ns() // 1_000_000
        log.begin_write()
        _, written, status = encode_batch(
            log.files[-1].address + position, log.file_size - position, 0, count, body_offsets.buffer_info()[0],
            bodies.address, self._columns, self._rows_queue, self._table, flags.buffer_info()[0] if flags else 0,
            born.buffer_info()[0] if born else 0, start, now, host.address, self._host.address,
            store.settings.max_message_size,
        )  # fmt: skip
        assert status == EncodeStatus.DONE, "checked before"
        if store.settings.enabled_append_prop_crc:
            seal_records(log.files[-1].address + position, log.files[-1].address + position + written)
        log.commit(start + written, queue.advanced(count))
        sizes = np.frombuffer(body_offsets, np.int32) + np.frombuffer(properties_offsets, np.int32)
        ends = sizes[1:] + np.arange(1, count + 1, dtype=np.int32) * queue.fixed_size
        return Receipts(queue, queue_offset, start, now, ends.astype(np.int32).tobytes())


def put_list(
    store: "MessageStore",
    queue: Queue,
    bodies: list[bytes],
    properties: bytes | list[bytes],
    flags: list[int] | None,
    born_timestamp: int,
    born_host: Host | None,
) -> Sequence[Receipt]:
    """See `Queue.put_many`; takes what its checks return."""
    count = len(bodies)
    texts = [properties] * count if isinstance(properties, bytes) else properties
    if len(texts) != count or (flags is not None and len(flags) != count):
        raise IllegalMessage(f"{count} bodies need as many properties (or one text for all) and flags")
    if not count:
        store.log.check_appendable()
        return []
    if isinstance(properties, bytes):
        _check_not_delayed(queue.topic, properties)
    for text in texts if b"\0" in (stored := b"".join(texts)) else ():
        check_stored(text)
    if store.settings.enabled_append_prop_crc:
        texts = [reserve_record_crc(without_record_crc(text)) for text in texts]
        stored = b"".join(texts)
    elif CRC_NAME in stored:
        texts = [without_record_crc(text) for text in texts]
        stored = b"".join(texts)
    try:
        body_offsets = array("i", accumulate(map(len, bodies), initial=0))
        properties_offsets = array("i", accumulate(map(len, texts), initial=0))
    except OverflowError:
        raise IllegalMessage("a list of more than 2 GiB: put it in pieces; nothing was written") from None
    total = queue.fixed_size * count + body_offsets[count] + properties_offsets[count]
    one_piece = total + BLANK.size <= store.log.file_size
    if not queue.is_batchable or (born_host and born_host.is_v6) or not one_piece or queue.needs_more(stored):
        return _put_one_by_one(store, queue, bodies, texts, flags, born_timestamp, born_host)
    size_max = store.settings.max_message_size
    if body_offsets[count] > size_max or properties_offsets[count] > PROPERTIES_SIZE_MAX:  # else each is small enough
        _check_sizes(bodies, texts, size_max)
    joined = pa.py_buffer(b"".join(bodies))
    with free(*store.log.locks.append), store.log.busy:
        writer = queue.list_writer = queue.list_writer or ListWriter(queue)
        return writer.write(
            store, joined, body_offsets, pa.py_buffer(stored), properties_offsets,
            flags=array("i", flags) if flags is not None else None,
            born=array("q", [born_timestamp]) * count if born_timestamp else None,
            born_host=born_host,
        )  # fmt: skip


def _check_sizes(bodies: list[bytes], texts: list[bytes], body_size_max: int) -> None:
    """Raise `IllegalMessage` where a message is too large, before a file is begun for the list."""
    if max(map(len, bodies)) <= body_size_max and max(map(len, texts)) <= PROPERTIES_SIZE_MAX:
        return
    for number, (body, text) in enumerate(zip(bodies, texts, strict=True)):
        if len(body) > body_size_max or len(text) > PROPERTIES_SIZE_MAX:
            raise IllegalMessage(
                f"message {number} of the list: a body of {len(body):,} or properties of {len(text):,} bytes "
                f"exceed {body_size_max:,} or {PROPERTIES_SIZE_MAX:,}; nothing was written"
            )


def _put_one_by_one(
    store: "MessageStore",
    queue: Queue,
    bodies: list[bytes],
    texts: list[bytes],
    flags: list[int] | None,
    born_timestamp: int,
    born_host: Host | None,
) -> list[Receipt]:
    """A list that no kernel writes, or that one file does not hold: checked as a whole, and room made for, before."""
    count = len(bodies)
    planned: list[tuple[Record, Special | None]] = []
    for number, (body, text, flag) in enumerate(zip(bodies, texts, flags or [0] * count, strict=True)):
        fields: RecordFields = {"flag": flag, "born_timestamp": born_timestamp, "born_host": born_host}
        with _naming(number):
            record = checked_record(queue, body, text, fields)
            planned.append((record, special_of(queue, record)))
    receipts: list[Receipt] = []
    # Over the whole list: nothing that ends a put can come between two of its messages.
    with free(*store.log.locks.append), store.log.busy:
        sizes = []
        for number, (record, special) in enumerate(planned):
            with _naming(number):
                sizes.append(_size_max(store, record, special, ahead=count))
        now = store.clock_ns() // 1_000_000
        store.log.reserve(np.array(sizes, np.int64))
        try:
            for record, special in planned:
                receipts.append(append_record(queue, record, special, now))
        except StratalogError as error:  # a flush failed meanwhile, or there was no further log file to be had
            if not receipts:
                raise
            raise partly_put(error, len(receipts), count, OF_LIST) from error
    return receipts


def _size_max(store: "MessageStore", record: Record, special: Special | None, *, ahead: int) -> int:
    """The largest size that the record may have, after so many others of its list. Raises `IllegalMessage`."""
    size = (special.complete(record, ahead) if special else record).total_size
    if size + BLANK.size > store.log.file_size:
        raise IllegalMessage(
            f"the record takes {size:,} bytes, a file of this log holds {store.log.file_size - BLANK.size:,}; "
            "nothing was written"
        )
    return size


@contextlib.contextmanager
def _naming(number: int) -> Iterator[None]:
    """Errors say which message of the list is meant."""
    try:
        yield
    except IllegalMessage as error:
        raise IllegalMessage(f"message {number} of the list: {error}") from None


def _check_not_delayed(topic: str, properties: bytes) -> None:
    """A list with one text for all is RocketMQ's batch: it would be stored, and never delayed."""
    level = find_property(properties, DELAY.encode())
    if level and topic != SCHEDULE_TOPIC and level.strip("0") and not level.startswith("-"):
        raise IllegalMessage(f"a list cannot be delayed (property DELAY is {level}): put the messages one by one")
