"""Arrow batches in and out of a store, through the kernels."""

from collections.abc import Iterable
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stratalog.config.shown import shown
from stratalog.errors import IllegalMessage, StratalogError, partly_put
from stratalog.kernels.columns import decode_arrow
from stratalog.kernels.encode import EncodeStatus, encode_batch, holds_separator
from stratalog.kernels.queue_table import (
    QUEUE_FIELDS,
    QUEUE_ID,
    QUEUE_NEXT_OFFSET,
    QUEUE_TOPIC_ADDRESS,
    QUEUE_TOPIC_SIZE,
    QueueKind,
)
from stratalog.kernels.recordcrc import seal_records
from stratalog.kernels.scan import VERIFY
from stratalog.layout.batch import INNER_NUM
from stratalog.layout.columns import ARROW_SCHEMA
from stratalog.layout.javahash import property_order
from stratalog.layout.light import INNER_LEAD
from stratalog.layout.message import BLANK, PROPERTIES_SIZE_MAX, Host
from stratalog.layout.properties import (
    CRC32,
    CRC_PROPERTY_SIZE,
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    NAME_END,
    TAGS,
    UNIQUE_KEY,
    VALUE_END,
    find_property,
)
from stratalog.layout.recordcrc import CRC_NAME, CRC_ROOM, without_record_crc
from stratalog.layout.sysflag import SysFlag
from stratalog.store.arguments import column_names, exact_count, exact_text
from stratalog.store.batch_queue import BatchQueue
from stratalog.store.locks import free
from stratalog.store.queue import Queue
from stratalog.store.reading import check_complete
from stratalog.store.record_put import check_level, check_queue_id
from stratalog.store.special_arrow import arrow_of
from stratalog.store.special_put import refuse_light

if TYPE_CHECKING:
    from stratalog.store.message_store import MessageStore

CHUNK_ROWS = 1 << 16
_PROPERTY_OF_COLUMN = {"tags": TAGS, "keys": KEYS, "uniqueKey": UNIQUE_KEY}
_RAW_PROPERTIES = "properties"
_PLAIN_TEXT = frozenset({pa.binary(), pa.string()})
_LISTS = pa.ListType | pa.LargeListType | pa.FixedSizeListType
_FIELD_COLUMNS = frozenset(ARROW_SCHEMA.names)
_IGNORED_COLUMNS = _FIELD_COLUMNS - {
    "topic", "queueId", "body", _RAW_PROPERTIES, "flag", "bornTimestamp", *_PROPERTY_OF_COLUMN
}  # fmt: skip
"""What the store gives a message itself; a batch that was read has them."""

Array = NDArray[Any]


class _Rows:
    """Rows ready for the kernel: buffers kept alive, their addresses, and the limits checked.

    `columns` holds (name address, name size, offsets address, data address) per property in the order of writing; a
    name of size 0 stands for property bytes that are copied as they are.
    """

    def __init__(self, count: int, body_offsets: NDArray[np.int32], bodies: Any) -> None:
        self.count = count
        self.body_offsets = np.ascontiguousarray(body_offsets)
        self._keep: list[Any] = [bodies]
        self.body_address = _address(bodies)
        self.columns = np.zeros((0, 4), np.int64)
        self.flags: NDArray[np.int32] | None = None
        self.born: NDArray[np.int64] | None = None
        self.born_now: NDArray[np.bool_] | None = None
        """Rows that are born when they are put."""
        self.properties_sizes = np.zeros(count, np.int64)

    def add_property(self, name: bytes, offsets: NDArray[np.int32], data: Any) -> None:
        sizes = np.diff(offsets)
        begin, end = int(offsets[0]), int(offsets[-1])
        if name and holds_separator(_address(data) + begin, end - begin):
            raise IllegalMessage(f"column {name.decode()!r} holds a separator (0x01 or 0x02); nothing was written")
        self.properties_sizes += np.where(sizes > 0, sizes + (len(name) + 2 if name else 0), 0)
        offsets = np.ascontiguousarray(offsets)
        text = np.frombuffer(name or b"\0", np.uint8)
        self._keep += [offsets, data, text]
        row = [text.ctypes.data, len(name), offsets.ctypes.data, _address(data)]
        self.columns = np.vstack([self.columns, np.array([row], np.int64)])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of body and properties, by row."""
        return np.diff(self.body_offsets) + self.properties_sizes

    def check(self, first_row: int, body_size_max: int, fixed_size_max: int, file_size: int) -> None:
        """Raise `IllegalMessage` when any row is over a limit; `first_row` is the number of the first one."""
        sizes = np.diff(self.body_offsets)
        for what, values, limit in (
            ("body", sizes, body_size_max),
            ("properties", self.properties_sizes, PROPERTIES_SIZE_MAX),
            ("record", sizes + self.properties_sizes + fixed_size_max + BLANK.size, file_size),
        ):
            if self.count and int(values.max()) > limit:
                row = int(values.argmax())
                raise IllegalMessage(
                    f"row {first_row + row}: {what} of {int(values[row]):,} bytes, the limit is {limit:,}; "
                    "nothing was written"
                )


def _address(data: Any) -> int:
    if isinstance(data, pa.Buffer):
        return int(data.address)
    return int(np.frombuffer(data or b"\0", np.uint8).ctypes.data)


def _write(
    store: "MessageStore", rows: _Rows, rows_queue: NDArray[np.int32], queues: list[Queue], now: int
) -> None:  # fmt: skip
    """Append all rows with the put lock held, rolling between records."""
    names = [np.frombuffer(queue.topic.encode(), np.uint8) for queue in queues]
    table = np.zeros((len(queues), QUEUE_FIELDS), np.int64)
    for row, queue, name in zip(table, queues, names, strict=True):
        row[QUEUE_TOPIC_ADDRESS], row[QUEUE_TOPIC_SIZE], row[QUEUE_ID] = name.ctypes.data, name.size, queue.queue_id
    host = np.frombuffer(Host.parse(store.settings.store_host).packed(), np.uint8)
    log = store.log
    first = 0
    for row, queue in zip(table, queues, strict=True):
        row[QUEUE_NEXT_OFFSET] = queue.next_offset
    if rows.born is not None:
        rows.born[rows.born_now] = now
    log.position_for(min(queue.fixed_size for queue in queues))
    while first < rows.count:
        start = log.end_offset
        file, position = log.files[-1], start - log.base
        log.begin_write()
        done, written, status = encode_batch(
            file.address + position, log.file_size - position, first, rows.count - first,
            rows.body_offsets.ctypes.data, rows.body_address, rows.columns, rows_queue, table,
            rows.flags.ctypes.data if rows.flags is not None else 0,
            rows.born.ctypes.data if rows.born is not None else 0,
            start, now, host.ctypes.data, host.ctypes.data, store.settings.max_message_size,
        )  # fmt: skip
        if store.settings.enabled_append_prop_crc:
            seal_records(file.address + position, file.address + position + written)
        first += done
        nexts = zip(queues, table[:, QUEUE_NEXT_OFFSET].tolist(), strict=True)
        log.commit(start + written, *(queue.advanced(offset - queue.next_offset) for queue, offset in nexts))
        if status == EncodeStatus.ROOM and first < rows.count:
            log.position_for(log.file_size - BLANK.size)
        assert status != EncodeStatus.TOO_LARGE, "checked above"


def append_batch(
    store: "MessageStore", batch: pa.RecordBatch, topic: str | None, queue_id: int | None
) -> dict[tuple[str, int], range]:
    """See `MessageStore.append`."""
    if not isinstance(batch, pa.RecordBatch):
        raise IllegalMessage(f"{shown(batch)}: give a RecordBatch or a Table of pyarrow")
    topic = topic if topic is None else exact_text("topic", topic)
    queue_id = queue_id if queue_id is None else check_queue_id(queue_id)
    _check_columns(batch)
    if batch.num_rows == 0:
        store.log.check_appendable()
        return {}
    queues, rows_queue = _queues_of(store, batch, topic, queue_id)
    for queue in queues:
        refuse_light(queue)
        if not queue.is_batchable:
            raise IllegalMessage(
                f"topic {queue.topic!r}: Arrow batches need topics of at most 127 characters and an IPv4 store host; "
                "use put_record; nothing was written"
            )
    _check_plain(batch, queues)
    _check_levels(batch, np.isin(rows_queue, [at for at, one in enumerate(queues) if one.kind == QueueKind.SCHEDULE]))
    ranges: dict[tuple[str, int], range] = {}
    fixed = max(queue.fixed_size for queue in queues)
    with_crc = store.settings.enabled_append_prop_crc
    pieces = [_rows_of(batch.slice(first, CHUNK_ROWS), with_crc) for first in range(0, batch.num_rows, CHUNK_ROWS)]
    for number, rows in enumerate(pieces):  # all of them before the first is written
        rows.check(number * CHUNK_ROWS, store.settings.max_message_size, fixed, store.log.file_size)
    fixed_sizes = np.array([queue.fixed_size for queue in queues])[rows_queue]
    # Over all pieces: nobody else's messages stand between, or are counted into the ranges.
    with free(*store.log.locks.append), store.log.busy:
        store.log.reserve(np.concatenate([rows.sizes for rows in pieces]) + fixed_sizes)
        starts, now = [queue.next_offset for queue in queues], store.clock_ns() // 1_000_000
        try:
            for number, rows in enumerate(pieces):
                _write(store, rows, np.ascontiguousarray(rows_queue[number * CHUNK_ROWS :][: rows.count]), queues, now)
        except StratalogError as error:  # a flush failed meanwhile
            put_count = sum(queue.next_offset for queue in queues) - sum(starts)
            if not put_count:
                raise
            raise partly_put(error, put_count, batch.num_rows, "rows") from error
        for queue, start in zip(queues, starts, strict=True):
            ranges[queue.topic, queue.queue_id] = range(start, queue.next_offset)
    return {key: found for key, found in ranges.items() if len(found)}


def _check_columns(batch: pa.RecordBatch) -> None:
    """Raise `IllegalMessage` for a batch without bodies, with two columns of a name, or one that is used and no valid
    Arrow data: Arrow does not look into what it reads, and kernels and casts follow its offsets wherever they lead."""
    try:
        names = batch.schema.names
    except UnicodeDecodeError as error:
        raise IllegalMessage(f"the name of a column is no UTF-8 ({error}); nothing was written") from None
    if twice := [name for name in names if names.count(name) > 1]:
        raise IllegalMessage(f"there are two columns {twice[0]!r}: drop one; nothing was written")
    if "body" not in names:
        raise IllegalMessage("the batch has no column 'body'; nothing was written")
    if not batch.num_rows:  # it may have no offsets at all
        return
    try:
        batch.validate()
    except pa.ArrowException as error:
        raise IllegalMessage(f"the batch is no valid Arrow data: {error}; nothing was written") from None
    for name, column in zip(names, batch.columns, strict=True):
        if name in _IGNORED_COLUMNS and name != "sysFlag":
            continue
        if column.type in _PLAIN_TEXT and name != "topic" and not column.null_count:  # a full look costs too much
            _offsets(name, column)
            continue
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise IllegalMessage(
                f"column {name!r} is no valid Arrow data: {str(error).strip()}; nothing was written"
            ) from None
    if "sysFlag" in names:
        flags = _cast("sysFlag", batch.column("sysFlag"), pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        if (flags & SysFlag.COMPRESSED).any():
            raise IllegalMessage(
                "column 'sysFlag': a row's body is compressed, and rows are stored as they are: use put_record with "
                "sys_flag, or give the body of Message.decompressed() and drop the column; nothing was written"
            )


def _check_plain(batch: pa.RecordBatch, queues: list[Queue]) -> None:
    """Raise `IllegalMessage` for properties with which a topic's messages stand in more queues than one, or as one of
    several in theirs: the kernels do not write these."""
    texts: list[bytes] = []
    if _RAW_PROPERTIES in batch.schema.names:
        column = _cast(_RAW_PROPERTIES, batch.column(_RAW_PROPERTIES), pa.binary())
        if _may_hold(column, INNER_LEAD):
            texts = [text for text in column.to_pylist() if text and INNER_LEAD in text]
    names = set(batch.schema.names) - _IGNORED_COLUMNS
    is_special = bool(texts) or any(INNER_LEAD.decode() in name for name in names)
    is_batch = INNER_NUM in names or any(find_property(text, INNER_NUM.encode()) is not None for text in texts)
    for queue in queues:
        if is_special if queue.kind > QueueKind.SCHEDULE else is_batch:
            raise IllegalMessage(
                f"topic {queue.topic!r}: Arrow batches take no properties INNER_…; use put_batch or put_record; "
                "nothing was written"
            )


def _check_levels(batch: pa.RecordBatch, is_delayed: Array) -> None:
    """Raise `IllegalMessage` for rows of the topic of delayed messages whose level is no number."""
    if not is_delayed.any():
        return
    rows = pa.array(is_delayed)
    if _RAW_PROPERTIES in batch.schema.names:
        for text in _cast(_RAW_PROPERTIES, batch.column(_RAW_PROPERTIES), pa.binary()).filter(rows).to_pylist():
            check_level(find_property(text or b"", DELAY.encode()))
    elif DELAY in batch.schema.names:
        for level in pc.unique(_cast(DELAY, batch.column(DELAY), pa.string()).filter(rows)).to_pylist():
            check_level(level)


def _queues_of(
    store: "MessageStore", batch: pa.RecordBatch, topic: str | None, queue_id: int | None
) -> tuple[list[Queue], NDArray[np.int32]]:
    if topic is None and "topic" not in batch.schema.names:
        raise IllegalMessage("the batch has no column 'topic': add one or give topic=")
    if topic is not None and queue_id is not None:
        return [store.queue(topic, queue_id)], np.zeros(batch.num_rows, np.int32)
    queue_ids = np.zeros(batch.num_rows, np.int64)
    if queue_id is not None:
        queue_ids[:] = queue_id
    elif "queueId" in batch.schema.names:
        queue_ids[:] = _without_nulls(batch, "queueId", pa.int64()).to_numpy(zero_copy_only=False)
    if queue_ids.min() < 0 or queue_ids.max() >= 1 << 31:
        raise IllegalMessage("column 'queueId' holds a number outside [0, 2^31)")
    if topic is not None:
        names, codes = [topic], np.zeros(batch.num_rows, np.int64)
    else:
        encoded = _without_nulls(batch, "topic", pa.string()).dictionary_encode()
        names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs = pa.array(codes << 32 | queue_ids).dictionary_encode()
    queues = [store.queue(names[pair >> 32], pair & 0xFFFFFFFF) for pair in pairs.dictionary.to_pylist()]
    return queues, pairs.indices.to_numpy(zero_copy_only=False).astype(np.int32)


def _rows_of(batch: pa.RecordBatch, with_crc: bool) -> _Rows:
    offsets, data = _offsets("body", _without_nulls(batch, "body", pa.binary()))
    rows = _Rows(batch.num_rows, offsets, data)
    columns: dict[str, pa.Array] = {}
    for field, column in zip(batch.schema, batch.columns, strict=True):
        name = _PROPERTY_OF_COLUMN.get(field.name, field.name)
        if field.name in _FIELD_COLUMNS and field.name not in _PROPERTY_OF_COLUMN:
            continue
        if not name or NAME_END in name or VALUE_END in name:
            raise IllegalMessage(f"column {name!r}: an empty name or a separator character (0x01, 0x02) is no property")
        if name in columns:
            raise IllegalMessage(f"property {name} is given by two columns: drop one")
        columns[name] = _joined_keys(column) if name == KEYS and isinstance(field.type, _LISTS) else column
    if _RAW_PROPERTIES in batch.schema.names:
        for name in _PROPERTY_OF_COLUMN.values():
            columns.pop(name, None)  # a batch that was read holds them twice
        if columns:
            raise IllegalMessage(
                f"column 'properties' holds all properties already; drop it or the columns {', '.join(columns)}"
            )
        stored = _cast(_RAW_PROPERTIES, batch.column(_RAW_PROPERTIES), pa.binary())
        if pc.any(pc.ends_with(stored, b"\0")).as_py():
            raise IllegalMessage(
                "column 'properties': properties end with 0x02, not with a zero byte; nothing was written"
            )
        rows.add_property(b"", *_text(_RAW_PROPERTIES, _without_crcs(stored, closed=with_crc), pa.binary()))
    columns.pop(CRC32, None)  # of the records that the rows come from
    for name in property_order(list(columns)):
        rows.add_property(name.encode(), *_text(name, columns[name], pa.string()))
    if with_crc:
        room = np.arange(rows.count + 1, dtype=np.int32) * CRC_PROPERTY_SIZE
        rows.add_property(b"", room, pa.py_buffer(CRC_ROOM * rows.count))
    if "flag" in batch.schema.names:
        rows.flags = _cast("flag", batch.column("flag"), pa.int32()).fill_null(0).to_numpy(zero_copy_only=False)
    if "bornTimestamp" in batch.schema.names:
        column = _milliseconds(batch.column("bornTimestamp"))
        rows.born = np.array(column.fill_null(0), np.int64)
        rows.born_now = np.array(column.is_null())
    return rows


def _without_crcs(column: pa.Array, *, closed: bool) -> pa.Array:
    """Stored properties without the CRCs of the records that they come from, if `closed` with their last separator."""
    if _may_hold(column, CRC_NAME):
        column = pa.array([text and without_record_crc(text) for text in column.to_pylist()], pa.binary())
    end = VALUE_END.encode()
    if closed and not pc.all(pc.or_(pc.ends_with(column, end), pc.equal(pc.binary_length(column), 0))).as_py():
        texts = (text or b"" for text in column.to_pylist())
        column = pa.array([text if not text or text.endswith(end) else text + end for text in texts], pa.binary())
    return column


def _may_hold(column: pa.Array, part: bytes) -> bool:
    """Whether a part is in the data of a binary column: in a text, or across the end of one."""
    offsets, data = _offsets(_RAW_PROPERTIES, column)
    return part in data[int(offsets[0]) : int(offsets[-1])].to_pybytes()  # a fourth of `match_substring`'s time


def _milliseconds(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        wanted = pc.CastOptions(pa.timestamp("ms", column.type.tz), allow_time_truncate=True)
        try:
            column = column.cast(options=wanted).cast(pa.int64())
        except pa.ArrowException as error:
            raise IllegalMessage(
                f"column 'bornTimestamp' holds a time that does not fit 64 bits of milliseconds ({error}); "
                "nothing was written"
            ) from None
    return _cast("bornTimestamp", column, pa.int64())


def _joined_keys(column: pa.Array) -> pa.Array:
    """Lists of keys as the text that is stored: blanks between."""
    keys = _cast("keys", column.flatten(), pa.string())
    wrong = pc.or_(pc.match_substring(keys, KEY_SEPARATOR), pc.equal(pc.binary_length(keys), 0))
    if keys.null_count or pc.any(wrong).as_py():
        raise IllegalMessage("column 'keys': a key in a list is null, empty or holds a blank, which separates keys")
    return pc.binary_join(_cast("keys", column, pa.list_(pa.string())), KEY_SEPARATOR)


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_null(column.type) or kind == pa.binary() or pa.types.is_list(kind):
        fits = True  # or Arrow casts nothing else to it
    else:
        fits = _is_text(column.type) if kind == pa.string() else pa.types.is_integer(column.type)
    if not fits:
        raise IllegalMessage(f"column {name!r} is of type {column.type}: give {kind}; nothing was written")
    try:
        return column.cast(kind)
    except pa.ArrowException as error:
        raise IllegalMessage(f"column {name!r} cannot be taken as {kind}: {error}; nothing was written") from None


def _is_text(kind: pa.DataType) -> bool:
    of = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of))


def _without_nulls(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    column = _cast(name, batch.column(name), kind)
    if column.null_count:
        raise IllegalMessage(f"column {name!r} holds a null: every row needs a value; nothing was written")
    return column


def _text(name: str, column: pa.Array, kind: pa.DataType) -> tuple[NDArray[np.int32], pa.Buffer]:
    """Offsets and data of a string or binary column; null counts as empty."""
    column = _cast(name, column, kind)
    if column.null_count:
        column = column.fill_null(b"" if kind == pa.binary() else "")
    return _offsets(name, column)


def _offsets(name: str, column: pa.Array) -> tuple[NDArray[np.int32], pa.Buffer]:
    """A copy of the offsets of a string or binary column, which nobody changes any more, and its data. Raises
    `IllegalMessage` for offsets that lead out of the data."""
    _, offsets, data = column.buffers()
    data, count = data if data is not None else pa.py_buffer(b""), column.offset + len(column) + 1
    there = min(count, offsets.size // np.dtype(np.int32).itemsize)
    view = np.frombuffer(offsets, np.int32, there)[column.offset :].copy()
    if there < count or view[0] < 0 or view[-1] > data.size or (view[1:] < view[:-1]).any():
        raise IllegalMessage(f"column {name!r} is no valid Arrow data: its offsets are wrong; nothing was written")
    return view, data


def read_arrow(
    store: "MessageStore", queue: Queue, first: int | None, count: int, columns: Iterable[str] | None
) -> pa.RecordBatch:
    """See `Queue.read_arrow`."""
    count, names = exact_count("count", count), column_names(columns, ARROW_SCHEMA.names)
    start = queue.start_of(first)
    units = store.units_of(queue)
    if isinstance(units, BatchQueue) or queue.is_special:
        messages = takewhile(lambda message: message.queue_offset < start + count, queue.read(start, count=count))
        return arrow_of(list(messages), names, store.broker_name)
    if (behind := store.catch_up()) and start + count > units.end_offset:
        raise behind
    window = store.log.window()
    wanted = units.units(start, count)
    batch = decode_arrow(
        wanted,
        (window.addresses, window.first_offset, window.file_size),
        names,
        topic=queue.topic,
        broker_name=store.broker_name,
        checks=VERIFY,
        queue=(queue.queue_id, start),
    )
    check_complete(queue, wanted, start, batch.num_rows)
    return batch
