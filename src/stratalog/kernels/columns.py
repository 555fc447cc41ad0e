"""Units of a queue to Arrow columns: one pass finds every value, a second one copies the variable-sized ones."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa

from stratalog.errors import ConfigurationError
from stratalog.kernels.jit import ZERO, kernel, part
from stratalog.kernels.log import place_of, prefetch_ahead
from stratalog.kernels.memory import copy_few, load_i32, load_i64, load_le_i32, load_le_i64, store_le_i32, store_le_i64
from stratalog.kernels.queue_table import Int64Array, same_bytes
from stratalog.kernels.record import SYS_FLAG, body_of, born_extra, hosts_extra, named_values, properties_of, topic_of
from stratalog.kernels.scan import ANY_OFFSET, TRUST, WHOLE, check_record
from stratalog.layout.columns import ARROW_SCHEMA, COLUMNS
from stratalog.layout.message import HEAD, HEADS, HOST_V4, Host
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import SysFlag

pa.scalar(0)  # the first one imports pandas, where there is one: here within `loading`

_UNIT_SIZE, _UNIT_OFFSET, _UNIT_RECORD_SIZE = UNIT.size, UNIT.position("commit_log_offset"), UNIT.position("size")
_TOTAL_SIZE = HEAD.position("total_size")
_BORN_HOST, _STORE_HOST = HEAD.position("born_address"), HEAD.position("store_address")
_HOST_SIZE = HOST_V4.size

_QUEUE_ID, _QUEUE_OFFSET = HEAD.position("queue_id"), HEAD.position("queue_offset")
_OWNER_TOPIC, _OWNER_TOPIC_SIZE, _OWNER_QUEUE, _OWNER_OFFSET = range(4)
_ANY_QUEUE = np.empty(0, np.int64)

_FIXED_POSITION, _FIXED_BORN, _FIXED_STORE, _FIXED_KIND, _FIXED_OUT = range(5)
_KIND_I32, _KIND_I64, _KIND_TIME = range(3)
_VALUE_KIND, _VALUE_SOURCES, _VALUE_ENDS, _VALUE_DATA, _VALUE_EMPTY = range(5)
_VALUE_KINDS = ("body", "properties", "tags", "keys", "uniqueKey", "bornHost", "storeHost")
_NAMED = frozenset({"tags", "keys", "uniqueKey"})
_HOSTS = frozenset({"bornHost", "storeHost"})

US_PER_MS = 1000
MS_MAX = (2**63 - 1) // US_PER_MS
"""The latest time that a column holds, its negative the earliest: what is beyond becomes that."""
_ARROW_SIZE_MAX = 2**31 - 1


@part
def _decode_fixed(record: int, born: int, store: int, row: int, fixed: Int64Array) -> None:
    for field in range(fixed.shape[0]):
        at = record + fixed[field, _FIXED_POSITION]
        at += born * fixed[field, _FIXED_BORN] + store * fixed[field, _FIXED_STORE]
        kind, out = fixed[field, _FIXED_KIND], fixed[field, _FIXED_OUT]
        if kind == _KIND_I32:
            store_le_i32(out + 4 * row, load_i32(at))
        elif kind == _KIND_I64:
            store_le_i64(out + 8 * row, load_i64(at))
        else:
            store_le_i64(out + 8 * row, min(max(load_i64(at), -MS_MAX), MS_MAX) * US_PER_MS)


@part
def _decode_values(record: int, born: int, store: int, row: int, values: Int64Array, named: bool) -> bool:
    """Address and end of each wanted value; false when a column would outgrow Arrow's 32-bit offsets."""
    body, body_size = body_of(record)
    begin, end = properties_of(record)
    tags, tags_size, keys, keys_size, unique, unique_size = begin, 0, begin, 0, begin, 0
    if named:
        tags, tags_size, keys, keys_size, unique, unique_size, _, _ = named_values(begin, end)
    # In the order of _VALUE_KINDS.
    sources = (body, begin, tags, keys, unique, record + _BORN_HOST, record + _STORE_HOST + born)
    sizes = (body_size, end - begin, tags_size, keys_size, unique_size, _HOST_SIZE + born, _HOST_SIZE + store)
    for value in range(values.shape[0]):
        kind, ends = values[value, _VALUE_KIND], values[value, _VALUE_ENDS] + 4 * row
        value_end = load_le_i32(ends) + sizes[kind]
        if value_end > _ARROW_SIZE_MAX:
            return False
        store_le_i64(values[value, _VALUE_SOURCES] + 8 * row, sources[kind])
        store_le_i32(ends + 4, value_end)
    return True


@part
def _is_own(record: int, owner: Int64Array, number: int) -> bool:
    """Whether a record is the one of its queue that a unit should lead to."""
    if load_i64(record + _QUEUE_OFFSET) != owner[_OWNER_OFFSET] + number:
        return False
    topic, size = topic_of(record)
    is_topic = size == owner[_OWNER_TOPIC_SIZE] and same_bytes(topic, owner[_OWNER_TOPIC], size)
    return is_topic and load_i32(record + _QUEUE_ID) == owner[_OWNER_QUEUE]


@kernel
def locate(
    units_address: int,
    count: int,
    addresses: Int64Array,
    first_offset: int,
    file_size: int,
    fixed: Int64Array,
    values: Int64Array,
    named: bool,
    checks: int,
    owner: Int64Array,
) -> tuple[int, int]:
    """First pass: decode fixed-size fields and find the variable-sized values of the records of `count` units.

    Filler units and units whose record is not there (or not whole) give no row. `fixed` has a row per wanted field:
    position in a head, whether the born and the store host move it, kind, address of the values. `values` has a row per
    wanted value: kind, address of the source addresses (int64), address of the Arrow offsets.
    `named` says that properties have to be looked into, `checks` which CRCs must hold. Where `owner` (address
    and size of a topic, queue id, queue offset of the first unit) is not empty, a record must be that queue's. Returns
    (rows, units done).
    """
    for value in range(values.shape[0]):
        store_le_i32(values[value, _VALUE_ENDS], 0)
    row = ZERO
    for i in range(count):
        unit = units_address + _UNIT_SIZE * i
        size = load_i32(unit + _UNIT_RECORD_SIZE)
        offset = load_i64(unit + _UNIT_OFFSET)
        file, position = place_of(addresses, first_offset, file_size, offset, size)
        if file == 0:
            continue
        prefetch_ahead(unit, count - i, file + position)
        if check_record(file, position, position + size, ANY_OFFSET, checks) != WHOLE:
            continue
        record = file + position
        if load_i32(record + _TOTAL_SIZE) != size:
            continue
        if owner.size and not _is_own(record, owner, i):
            continue
        sys_flag = load_i32(record + SYS_FLAG)
        born = born_extra(sys_flag)
        store = hosts_extra(sys_flag) - born
        if not _decode_values(record, born, store, row, values, named):
            return row, i
        _decode_fixed(record, born, store, row, fixed)
        row += 1
    return row, count


@kernel
def copy_values(values: Int64Array, count: int) -> None:
    """Second pass: bring the values of each column together, at the address that its row of `values` holds by now, and
    count the empty ones there."""
    for row in range(count):
        for value in range(values.shape[0]):
            ends = values[value, _VALUE_ENDS] + 4 * row
            begin = load_le_i32(ends)
            size = load_le_i32(ends + 4) - begin
            copy_few(values[value, _VALUE_DATA] + begin, load_le_i64(values[value, _VALUE_SOURCES] + 8 * row), size)
            values[value, _VALUE_EMPTY] += size == 0


class _Plan:
    """What is the same for every batch of these columns. Raises `ConfigurationError` for an unknown one."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        unknown = [name for name in columns if name not in ARROW_SCHEMA.names]
        if unknown:
            raise ConfigurationError(
                f"no column {', '.join(map(repr, unknown))}; there are {', '.join(ARROW_SCHEMA.names)}"
            )
        self.columns = columns
        self.schema = pa.schema([ARROW_SCHEMA.field(name) for name in columns])
        self.fixed = [column.name for column in COLUMNS if column.head_field and column.name in columns]
        self.widths = [ARROW_SCHEMA.field(name).type.bit_width // 8 for name in self.fixed]
        self.values = [name for name in _VALUE_KINDS if name in columns]
        self.is_named = not _NAMED.isdisjoint(columns)
        self.fixed_table = _table([[*_fixed_row(name), 0] for name in self.fixed], _FIXED_OUT + 1)
        self.values_table = _table([[_VALUE_KINDS.index(name), 0, 0, 0, 0] for name in self.values], _VALUE_EMPTY + 1)


_plan_of = lru_cache(maxsize=64)(_Plan)


def _fixed_row(name: str) -> list[int]:
    field = next(column.head_field for column in COLUMNS if column.name == name)
    kind = {pa.int32(): _KIND_I32, pa.int64(): _KIND_I64}.get(ARROW_SCHEMA.field(name).type, _KIND_TIME)
    return [
        HEAD.position(field), _moves_with(field, SysFlag.BORN_HOST_V6), _moves_with(field, SysFlag.STORE_HOST_V6), kind
    ]  # fmt: skip


def _moves_with(field: str, flag: SysFlag) -> bool:
    return HEADS[int(flag)].position(field) != HEAD.position(field)


def _table(rows: list[list[int]], width: int) -> Int64Array:
    return np.array(rows, np.int64).reshape(len(rows), width)


class _Decoder:
    """Buffers of the wanted columns, filled by the two passes. Buffers come from Arrow's pool, which reuses pages."""

    def __init__(self, plan: _Plan, count: int) -> None:
        self.fixed = {
            name: pa.allocate_buffer(max(1, count * width)) for name, width in zip(plan.fixed, plan.widths, strict=True)
        }
        self.ends = {name: pa.allocate_buffer(4 * (count + 1)) for name in plan.values}
        self.data: dict[str, pa.Buffer] = {}
        self.empty: dict[str, int] = {}
        self.sources = np.empty((len(plan.values), count), np.int64)
        self.fixed_table, self.values_table = plan.fixed_table.copy(), plan.values_table.copy()
        self.fixed_table[:, _FIXED_OUT] = [buffer.address for buffer in self.fixed.values()]
        self.values_table[:, _VALUE_ENDS] = [buffer.address for buffer in self.ends.values()]
        self.values_table[:, _VALUE_SOURCES] = self.sources.ctypes.data + 8 * count * np.arange(len(plan.values))

    def copy(self, rows: int) -> None:
        """The second pass."""
        for number, (name, ends) in enumerate(self.ends.items()):
            data = self.data[name] = pa.allocate_buffer(int(np.frombuffer(ends, np.int32)[rows]))
            self.values_table[number, _VALUE_DATA] = data.address
        copy_values(self.values_table, rows)
        self.empty = dict(zip(self.ends, self.values_table[:, _VALUE_EMPTY].tolist(), strict=True))

    def array(self, name: str, rows: int, topic: str, broker_name: str) -> pa.Array:
        kind = ARROW_SCHEMA.field(name).type
        if name in self.fixed:
            return pa.Array.from_buffers(kind, rows, [None, self.fixed[name]])
        if name in self.ends:
            return self._variable(name, rows, kind)
        return pa.repeat(pa.scalar({"topic": topic, "brokerName": broker_name}[name], kind), rows)

    def _variable(self, name: str, rows: int, kind: pa.DataType) -> pa.Array:
        data, validity, null_count = self.data[name], None, 0
        if name in _NAMED and (null_count := self.empty[name]):
            ends = np.frombuffer(self.ends[name], np.int32)[: rows + 1]
            validity = pa.py_buffer(np.packbits(ends[1:] != ends[:-1], bitorder="little"))
        is_text = kind != pa.binary() and name not in _HOSTS and _is_ascii(data)
        buffers = [validity, self.ends[name], data]
        values = pa.Array.from_buffers(kind if is_text else pa.binary(), rows, buffers, null_count)
        if name in _HOSTS:
            return _host_texts(values)
        return values if values.type == kind else _texts(values)


def _is_ascii(data: pa.Buffer) -> bool:
    return int(np.frombuffer(data, np.uint8).max(initial=0)) < 0x80


def _texts(values: pa.Array) -> pa.Array:
    """As strings; malformed UTF-8, which upstream stores as it comes, is replaced."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


def _host_texts(packed: pa.Array) -> pa.Array:
    """A batch holds few different hosts: each is formatted once."""
    encoded = packed.dictionary_encode()
    texts = pa.array([str(Host.unpack(host)) for host in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def decode_arrow(
    units: bytes | memoryview,
    log: tuple[Int64Array, int, int],
    columns: Sequence[str],
    *,
    topic: str,
    broker_name: str,
    checks: int = TRUST,
    queue: tuple[int, int] | None = None,
) -> pa.RecordBatch:
    """The messages that ConsumeQueue units point at, as a batch of the asked columns (names of `ARROW_SCHEMA`).

    `log` is (addresses of the files, log offset of the first, file size). Units without a record whose CRCs hold
    (`checks`, see `scan`), or with one of another queue than `queue` (queue id, offset of the first unit) of the topic
    give no row, so the batch may be shorter than the units: the caller says what that means. The
    batch owns its memory. Raises `ConfigurationError` for an unknown column and `ValueError` when a column would hold
    2 GiB: decode fewer units at a time.
    """
    plan = _plan_of(tuple(columns))
    source = np.frombuffer(units, np.uint8)
    count = source.size // _UNIT_SIZE
    decoder = _Decoder(plan, count)
    name = np.frombuffer(topic.encode(), np.uint8)
    owner = np.array([name.ctypes.data, name.size, *queue], np.int64) if queue else _ANY_QUEUE
    rows, done = locate(
        source.ctypes.data, count, *log, decoder.fixed_table, decoder.values_table, plan.is_named, checks, owner
    )  # fmt: skip
    if done < count:
        raise ValueError(f"{count} units hold more than 2 GiB in one column: decode at most {done} at a time")
    decoder.copy(rows)
    arrays = [decoder.array(name, rows, topic, broker_name) for name in plan.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=plan.schema)
