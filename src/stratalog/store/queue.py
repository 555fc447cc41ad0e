"""One queue as its users see it: put and read."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal, Unpack

from fastcrc import crc32 as _crc32

from stratalog.errors import OF_LIST, ConfigurationError, CorruptData, OffsetOutOfRange, StratalogError
from stratalog.helpers import helpers, imported
from stratalog.kernels import put as native_put
from stratalog.kernels.jit import HOLDS_THE_GIL
from stratalog.kernels.put_many import put_many
from stratalog.kernels.put_words import CLOCK, LOG_END, NEXT_OFFSET, QueueWords
from stratalog.kernels.queue_table import QueueKind
from stratalog.layout.batch import INNER_NUM
from stratalog.layout.light import INNER_LEAD, LIGHT_QUEUE_ID, is_light
from stratalog.layout.message import (
    FIXED_SIZE_V1,
    HEAD_REST,
    MAGIC_V1,
    PROPERTIES_LENGTH,
    PROPERTIES_SIZE_MAX,
    PUT_HEAD,
    QUEUE_AND_FLAG,
    TOPIC_CHARS_MAX_V1,
    TOPIC_LENGTH_V1,
    Host,
)
from stratalog.layout.properties import KEYS, NAME_END, TAGS, UNIQUE_KEY, VALUE_END
from stratalog.layout.queue import FILLER_SIZE
from stratalog.layout.recordcrc import CRC_NAME, reserve_record_crc, seal_record_crc
from stratalog.store.arguments import (
    TIME_MAX,
    Moment,
    bytes_list,
    bytes_or_list,
    check_bound,
    exact_bytes,
    exact_count,
    exact_int,
    exact_labels,
    exact_properties,
    exact_text,
    milliseconds,
    time_range,
    truth,
)
from stratalog.store.batch_queue import BatchQueue
from stratalog.store.extension import ExtendedQueue, Extension
from stratalog.store.flush import asks_to_wait
from stratalog.store.following import follow_writer
from stratalog.store.locks import free
from stratalog.store.message import Message
from stratalog.store.os_errors import loads
from stratalog.store.property_text import Shape, bad_value, shape_of
from stratalog.store.reading import not_there, plain_messages, read_queue
from stratalog.store.receipts import Receipts
from stratalog.store.record_put import (
    Receipt,
    RecordFields,
    check_born_timestamp,
    check_flags,
    check_host,
    make_room,
    put_record,
)
from stratalog.store.special_put import put_batch
from stratalog.store.special_read import batch_messages, is_at, light_messages
from stratalog.store.uncopied import Uncopied

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.store.message_store import MessageStore

_crc = _crc32.iso_hdlc
_pack_head = PUT_HEAD.struct.pack
_pack_size = PROPERTIES_LENGTH.struct.pack
_SHAPES_MAX = 1024
_SEPARATORS = (NAME_END + VALUE_END).encode()


@loads("messages cannot be counted")
def _estimate_count() -> "Callable[[Queue, int, int, str], int]":
    function: Callable[[Queue, int, int, str], int] = imported("stratalog.store.counting").estimate_count
    return function


class Queue(Uncopied):
    """One queue of one topic, bound to an open store: the fast way in a loop. Any thread may use it.

    Offsets are queue offsets (message numbers): `min_offset ≤ offset < max_offset` can be read.
    """

    def __init__(self, store: "MessageStore", topic: str, queue_id: int, next_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.store = store
        self._log = store.log
        self._lock = store.log.locks.append[0]
        self._sync = store.commit.wait if store.settings.flush == "sync" else None
        self._clock_ns = store.clock_ns
        self._size_max = store.settings.max_message_size
        self.host = Host.parse(store.settings.store_host)
        name = topic.encode()
        self._ids = QUEUE_AND_FLAG.pack(queue_id, 0)
        self._born = b"" if self.host.is_v6 else self.host.packed()
        self._rest = b"" if self.host.is_v6 else HEAD_REST.pack(self.host.address, self.host.port, 0, 0)
        self._name = TOPIC_LENGTH_V1.pack(len(name)) + name if len(name) <= TOPIC_CHARS_MAX_V1 else b""
        self.list_writer: Any = None
        self.is_batchable = bool(self._name) and not self.host.is_v6
        """Whether the kernels write its records: V1, IPv4."""
        self._seals = store.settings.enabled_append_prop_crc
        is_plain = self.is_batchable
        self.kind = store.queue_set.kind_of(topic)
        self.is_light = is_light(topic) and queue_id == LIGHT_QUEUE_ID
        self.is_special = self.kind == QueueKind.BATCH or self.is_light
        """Whether its units do not stand for one record of its own each: kernels cannot read it."""
        if is_light(topic) and store.settings.dispatches_light_queues:
            self.is_batchable = is_plain = False  # refused by `put_record`
        marker = INNER_LEAD if self.kind > QueueKind.SCHEDULE else INNER_NUM.encode()
        self._marker = marker if is_plain and self.kind != QueueKind.SCHEDULE else b""
        """Messages without properties of such a name are plain: neither refused nor in several queues."""
        self.fixed_size = FIXED_SIZE_V1 + len(name)
        self._shapes: dict[tuple[Any, ...], Shape] = store.shapes
        self.words = QueueWords(
            self._log.words, queue_id=queue_id, next_offset=next_offset, topic=name, host=self._born,
            body_size_max=self._size_max, waits=self._sync is not None,
        )  # fmt: skip
        self.is_native = bool(self._marker) and HOLDS_THE_GIL and not self._log.failure and not self._seals
        """Whether its messages are put by compiled code as long as they are plain, once that is compiled."""

    def __repr__(self) -> str:
        return f"<Queue {self.topic}/{self.queue_id}>"

    # -- putting -------------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Queue offset of the next message put."""
        return self.words.view[NEXT_OFFSET]

    def advanced(self, count: int) -> tuple[Any, Any, Any]:
        """What `CommitLog.commit` has to store so that the queue goes on so many offsets later."""
        return self.words.view, NEXT_OFFSET, self.next_offset + count

    def bind_native(self) -> None:
        """Let compiled code stand before the three ways to put: it does what is plain, and calls them for the rest.

        May be called again; other threads may be putting.
        """
        self.words.set_objects(
            CLOCK,
            self._clock_ns,
            self._log.busy.locked,
            Receipt,
            self.host,
            MethodType(Queue.put, self),
            MethodType(Queue.put_raw, self),
            MethodType(Queue.put_many, self),
            Receipts,
            self,
            self._sync,
        )
        words, *others = self.words.owner
        self.words.owner = (words, self, *others)  # a queue says that it cannot be pickled, before a memoryview does
        vars(self)["put_raw"] = native_put.put_raw.bind(self.words.owner)
        vars(self)["put_many"] = put_many.bind(self.words.owner)
        vars(self)["put"] = native_put.put.bind(self.words.owner)

    def put(
        self,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        unique_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        born_timestamp: int = 0,
        wait: bool = True,
    ) -> Receipt:
        """Append one message. Under sync flush it is durable when this returns, unless `wait` (or its WAIT) says no.

        `body` is bytes or another bytes-like object. `keys` are index keys: one `str` with blanks between them, or an
        iterable of `str`. `born_timestamp` is milliseconds, 0 means now. Raises `IllegalMessage` for anything else,
        before a byte is written; `DiskFull`, `StoreFailed`, `StoreReadOnly`, `StoreClosed`.
        """
        tags, keys, unique_key = exact_labels(tags, keys, unique_key)
        shape_key: tuple[Any, ...]
        values: tuple[Any, ...]
        named: dict[str, str] = {}
        if properties is not None and (named := exact_properties(properties)):
            shape_key = (tags is None, keys is None, unique_key is None, *named)
            values = (tags, keys, unique_key, *named.values())
        else:
            shape_key = (tags is None, keys is None, unique_key is None)
            values = (tags, keys, unique_key)
            if all(shape_key):
                return self._append(body, b"", born_timestamp, wait)
        shape = self._shapes.get(shape_key)
        if shape is None:
            if len(self._shapes) >= _SHAPES_MAX:  # names that are made up as they come would fill the memory
                self._shapes.clear()
            shape = self._shapes[shape_key] = shape_of(shape_key[:3], shape_key[3:])
        template, order, count = shape
        try:
            text = (template % order(values)).encode()
        except UnicodeEncodeError:
            raise bad_value((TAGS, KEYS, UNIQUE_KEY, *named), values) from None
        if len(text) - len(text.translate(None, _SEPARATORS)) != 2 * count or "" in values:
            raise bad_value((TAGS, KEYS, UNIQUE_KEY, *named), values)
        return self._append(body, text, born_timestamp, wait)

    def put_raw(self, body: bytes, properties: bytes = b"", *, born_timestamp: int = 0, wait: bool = True) -> Receipt:
        """Append one message whose properties are already encoded (`name 0x01 value 0x02` repeated)."""
        properties = exact_bytes("properties", properties)
        if CRC_NAME in properties or properties.endswith(b"\0"):
            return self.put_record(body, properties, born_timestamp=born_timestamp, wait=wait)
        return self._append(body, properties, born_timestamp, wait)

    def _append(self, body: bytes, properties: bytes, born_timestamp: int, wait: bool) -> Receipt:
        """The same in Python, for what the native put hands over: one lock, one pack, one join, one store."""
        body = exact_bytes("body", body)
        wait, born_timestamp = wait is True or truth("wait", wait), check_born_timestamp(born_timestamp)
        if self._seals:
            properties = reserve_record_crc(properties)
        size = len(body)
        properties_size = len(properties)
        total = self.fixed_size + size + properties_size
        is_plain = self._marker and self._marker not in properties
        if size > self._size_max or properties_size > PROPERTIES_SIZE_MAX or not is_plain:
            return self.put_record(body, properties, born_timestamp=born_timestamp, wait=wait)
        crc = _crc(body) & 0x7FFFFFFF
        log, lock = self._log, self._lock
        if lock._is_owned() or helpers:  # type: ignore[attr-defined]
            free(lock)
        with lock, log.busy:
            start = log.end_offset
            position = start - log.base
            end = position + total
            if end > log.limit:
                position = make_room(log, total)
                start = log.end_offset
                end = position + total
            queue_offset = self.next_offset
            now = self._clock_ns() // 1_000_000
            record = b"".join(
                (
                    _pack_head(
                        total, MAGIC_V1, crc, self._ids, queue_offset, start, 0, born_timestamp or now, self._born, now,
                        self._rest, size,
                    ),
                    body,
                    self._name,
                    _pack_size(properties_size),
                    properties,
                )
            )  # fmt: skip
            if self._seals:
                record = seal_record_crc(record)
            words, ends = self.words.view, log.words.view  # one statement without a call, see `CommitLog`
            log.map[position:end], words[NEXT_OFFSET], ends[LOG_END] = record, queue_offset + 1, start + total
        if self._sync and wait and asks_to_wait(properties):
            self._sync(start + total)
        return Receipt(queue_offset, start, total, now, self.host)

    def put_record(
        self, body: bytes, properties: bytes = b"", *, wait: bool = True, **fields: Unpack[RecordFields]
    ) -> Receipt:
        """Append one message with every field of the record open to the caller (slower than `put_raw`).

        A prepared or rolled back message gets queue offset 0 and enters no queue, as in RocketMQ.
        """
        return put_record(self, body, properties, wait=wait, **fields)

    def put_many(
        self,
        bodies: Iterable[bytes],
        properties: bytes | Iterable[bytes] = b"",
        *,
        flags: Iterable[int] | None = None,
        born_timestamp: int = 0,
        born_host: Host | None = None,
    ) -> Sequence[Receipt]:
        """Append several messages with one lock and one flush wait; `properties` are encoded, one for all or one each.

        Like a client batch they share one store time and stand together in one file, if they fit there. Then all are
        put or none. A failed flush may end a larger list within, and so may a shortage where the list needs more than
        two new log files; the error says how many were put (`put_count`).
        """
        texts, stored = bytes_or_list("properties", properties), bytes_list("bodies", bodies)
        waits = self._sync and stored and asks_to_wait(texts if isinstance(texts, bytes) else b"".join(texts[:1]))
        try:
            receipts = self.store.put_list(
                self, stored, texts, check_flags(flags), check_born_timestamp(born_timestamp),
                check_host("born_host", born_host),
            )  # fmt: skip
        except StratalogError as error:
            if waits:
                self.store.make_durable(error.put_count, len(stored), OF_LIST)
            raise
        if waits:
            self.store.make_durable(len(receipts), len(receipts), OF_LIST, receipts[-1].end_offset)
        return receipts

    def put_batch(
        self,
        bodies: Iterable[bytes],
        properties: bytes | Iterable[bytes] = b"",
        *,
        unique_key: str,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        flags: Iterable[int] | None = None,
        wait: bool = True,
        **fields: Unpack[RecordFields],
    ) -> Receipt:
        """Append several messages as one record (an inner batch); the topic must be of type BatchCQ.

        `properties` are the members' own, encoded, one for all or one each; `unique_key`, `tags` and `keys` are the
        batch's, which is what the index and its queue unit know: `MessageStore.query` finds a member by its own key if
        `keys` names that too. Members take consecutive offsets from the receipt's.
        """
        tags, keys, shared_key = exact_labels(tags, keys, exact_text("unique_key", unique_key))
        shared = {UNIQUE_KEY: shared_key, TAGS: tags, KEYS: keys}
        given = {name: value for name, value in shared.items() if value is not None}
        texts = bytes_or_list("properties", properties)
        return put_batch(self, bytes_list("bodies", bodies), texts, check_flags(flags), given, wait=wait, **fields)

    def needs_more(self, properties: bytes) -> bool:
        """Whether among these properties, of any number of messages, may be one that kernels must not write here."""
        return not self._marker or self._marker in properties

    def append(self, batch: "pa.RecordBatch | pa.Table") -> range:
        """Append the rows of an Arrow batch to this queue and return their queue offsets. See `MessageStore.append`."""
        offsets = self.store.append(batch, topic=self.topic, queue_id=self.queue_id)
        end = self.next_offset
        return offsets.get((self.topic, self.queue_id), range(end, end))

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def max_offset(self) -> int:
        """Queue offset after the newest readable message. Raises `DiskFull`, `StoreUnavailable` or `StoreFailed` while
        messages are in no queue, as these cannot be written."""
        self.store.complete()
        return self.store.units_of(self).end_offset

    @property
    def min_offset(self) -> int:
        """Queue offset of the oldest message still there."""
        self.store.catch_up()
        return self.store.units_of(self).min_offset(self._log.first_offset)

    def units(self, first: int, count: int) -> bytes:
        """20-byte ConsumeQueue units [first, first + count), cut at `max_offset`; tags codes are looked up where a unit
        points to its extension. Raises `ConfigurationError` for a batch topic, which has no such units, and
        `CorruptData` where an extension is damaged; the messages can be read all the same. Raises as `max_offset` does
        for offsets after the queue's end.
        """
        first, count = exact_count("first", first), exact_count("count", count)
        behind = self.store.catch_up()
        units = self.store.units_of(self)
        if isinstance(units, BatchQueue):
            raise ConfigurationError(f"{self.topic} is a batch topic: its queues have no such units; use read")
        if behind and first + count > units.end_offset:
            raise behind
        return units.resolved(first, count) if isinstance(units, ExtendedQueue) else units.units(first, count)

    def extension(self, queue_offset: int) -> Extension | None:
        """What the message's unit points to (ConsumeQueueExt), None for a unit that holds its tags code itself.

        Raises `CorruptData` when there is nothing where it points.
        """
        queue_offset = exact_int("queue_offset", queue_offset, ConfigurationError)
        self.store.catch_up()
        units = self.store.units_of(self)
        return units.extension(units.unit(queue_offset)[2]) if isinstance(units, ExtendedQueue) else None

    def read(self, first: int | None = None, *, count: int | None = None, follow: bool = False) -> Iterator[Message]:
        """Messages from queue offset `first` (default: the oldest) on, at most `count`.

        With `follow` the iterator waits for new messages instead of ending; in a read-only store for those of another
        process, which come within some 50 ms. Raises `OffsetOutOfRange` outside [min_offset, max_offset], also where
        messages were deleted, or another store was put in the place, while it followed; messages that recovery or a
        repair could not save are passed over. At the end of the queue, raises as `max_offset` does.
        """
        left = 1 << 62 if count is None else exact_count("count", count)
        if follow and self._log.read_only:
            return follow_writer(self, self.start_of(first), left)
        return self._messages(self.start_of(first), left, follow)

    def start_of(self, first: int | None) -> int:
        """Where reading from `first` begins: the oldest message for None. Raises `OffsetOutOfRange`."""
        behind, units = self.store.catch_up(), self.store.units_of(self)
        low, high = units.min_offset(self._log.first_offset), units.end_offset
        start = low if first is None else exact_int("first", first, ConfigurationError)
        if behind and start > high:
            raise behind
        if not low <= start <= high:
            raise OffsetOutOfRange(
                f"{self.topic}/{self.queue_id} holds offsets [{low}, {high}), not {start}",
                next_offset=low if start < low else high,
            )
        return start

    def _messages(self, start: int, left: int, follow: bool) -> Iterator[Message]:
        known = self.store.units_of(self)
        if isinstance(known, BatchQueue):
            return batch_messages(self, known, start, left, follow)
        lists_of = light_messages if self.is_light else plain_messages
        return chain.from_iterable(read_queue(self, known, start, left, follow=follow, lists_of=lists_of))

    def not_there(
        self, queue_offset: int, commit_log_offset: int, *, next_offset: int = -1, words: str = ""
    ) -> CorruptData:
        """The error of a unit that leads to no record of its queue; reading goes on at `next_offset`, by default the
        one after. `words` say what is wrong with a record that is whole."""
        return not_there(self, queue_offset, commit_log_offset, next_offset, words)

    def read_arrow(
        self, first: int | None = None, *, count: int = 1 << 20, columns: Iterable[str] | None = None
    ) -> "pa.RecordBatch":
        """The messages at `count` queue offsets as an Arrow batch in the columns of the Spark source (or those asked
        for). There are fewer rows where recovery could not save messages. What a repair put in the place of a lost
        message is a row with `flag` 0x4C4F5354 and an empty body. Raises as `max_offset` does where fewer would come.
        """
        return self.store.read_arrow(self, first, count=count, columns=columns)

    def offset_at(self, time: Moment, *, bound: Literal["lower", "upper"] = "lower") -> int:
        """Queue offset by store time: of an aware datetime, or of milliseconds since 1970.

        `lower`: the first message stored at or after the time (max_offset when there is none); `upper`: the last one
        stored at or before it (min_offset when there is none). Raises `ConfigurationError` for what looks like seconds.
        """
        return self.offset_at_ms(milliseconds("time", time), bound)

    def offset_at_ms(self, timestamp_ms: int, bound: Literal["lower", "upper"] = "lower") -> int:
        """The same of any number of milliseconds."""
        timestamp_ms, bound = exact_int("timestamp_ms", timestamp_ms, ConfigurationError), check_bound(bound)
        low, high = self.min_offset, self.max_offset
        first = low
        while low < high:
            middle = (low + high) // 2
            stored = self._store_timestamp(middle)
            if stored < timestamp_ms or (bound == "upper" and stored == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return low if bound == "lower" else max(first, low - 1)

    def estimate_count(self, *, begin: Moment = 0, end: Moment = TIME_MAX, tags: str | None = None) -> int:
        """How many messages were stored in [begin, end], and have the tags (`"TagA || TagB"`); times as `offset_at`.

        Without tags the number of their offsets. With tags exact up to a million messages, but for tags of equal hash;
        beyond, an estimate from a million of them. In a batch topic a message has its batch's tags, as in RocketMQ.
        """
        estimate_count = _estimate_count()
        begin_ms, end_ms = time_range(begin, end)
        first = self.offset_at_ms(begin_ms) if begin_ms else self.min_offset
        stop = max(first, self.offset_at_ms(end_ms + 1) if end_ms < TIME_MAX else self.max_offset)
        return stop - first if tags is None else estimate_count(self, first, stop, exact_text("tags", tags))

    def _store_timestamp(self, queue_offset: int) -> int:
        """Store time of the first message at or after the offset that is whole: in place of a lost one stands a filler
        unit, and one damaged message or unit does not hide the others."""
        units = self.store.units_of(self)
        if isinstance(units, BatchQueue):
            return units.store_timestamp(queue_offset)
        while queue_offset < units.end_offset:
            commit_log_offset, size, _ = units.unit(queue_offset)
            if size != FILLER_SIZE:
                with contextlib.suppress(CorruptData):
                    message = self._log.message(commit_log_offset)
                    if is_at(self, message, queue_offset):
                        return message.store_timestamp
            queue_offset += 1
        return 1 << 63
