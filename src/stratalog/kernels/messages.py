"""Records to Python objects, as builtins: the units of a queue to a list of messages, one place of the log to one.

What stands in a record is checked before it is taken (magic, lengths, place, body CRC), so nothing damaged is served:
both stop at it and leave it to Python to say what is wrong. Units are left to Python, too, where a repair's record
stands for a lost message. The GIL is held from the first to the last step, so nobody
can unmap what is read; the caller bounds how long that takes.

`bind` gets (class of the messages, None, b"replace"). The class is called with the fields in `_new_message`'s order.
"""

from stratalog.kernels.cpython import (
    WORD,
    add_to_list,
    bytes_address,
    bytes_size,
    call_with,
    integer_of,
    keep,
    let_go,
    new_bytes,
    new_integer,
    new_text,
    stack,
    text_address,
    tuple_item,
)
from stratalog.kernels.jit import Native, part
from stratalog.kernels.log import prefetch_ahead
from stratalog.kernels.memory import load_i32, load_i64, load_le_i64, load_u32, set_word, word
from stratalog.kernels.queue_table import same_bytes
from stratalog.kernels.record import (
    SYS_FLAG,
    body_of,
    born_extra,
    hosts_extra,
    properties_of,
    store_timestamp_of,
    topic_of,
)
from stratalog.kernels.scan import VERIFY, WHOLE, check_record
from stratalog.layout.message import HEAD, HOST_V4, LOST_FLAG
from stratalog.layout.queue import UNIT

_UNIT_SIZE, _UNIT_OFFSET, _UNIT_RECORD_SIZE = UNIT.size, UNIT.position("commit_log_offset"), UNIT.position("size")
_TOTAL_SIZE, _BODY_CRC = HEAD.position("total_size"), HEAD.position("body_crc")
_QUEUE_ID, _FLAG = HEAD.position("queue_id"), HEAD.position("flag")
_QUEUE_OFFSET, _COMMIT_LOG_OFFSET = HEAD.position("queue_offset"), HEAD.position("commit_log_offset")
_BORN_TIMESTAMP, _BORN_HOST = HEAD.position("born_timestamp"), HEAD.position("born_address")
_STORE_HOST, _REST_SIZE = HEAD.position("store_address"), HEAD.position("body_size") - HEAD.position("store_address")
_HOST_SIZE = HOST_V4.size

_FIELDS = 14
(_M_TOPIC, _M_QUEUE_ID, _M_QUEUE_OFFSET, _M_COMMIT_LOG_OFFSET, _M_STORE_SIZE, _M_BODY, _M_PROPERTIES, _M_BORN_TIMESTAMP,
 _M_STORE_TIMESTAMP, _M_FLAG, _M_SYS_FLAG, _M_BODY_CRC, _M_BORN_HOST, _M_REST) = range(_FIELDS)  # fmt: skip
_CLASS, _NONE, _REPLACE = range(3)
_NUMBERS = _FIELDS
SCRATCH = 2 * _FIELDS * WORD
"""A frame's first free byte behind the fields of a message and the numbers that they stand for."""


@part
def _set_object(frame: int, field: int, new: int) -> None:
    let_go(word(frame, field))
    set_word(frame, field, new)


@part
def _set_integer(frame: int, field: int, value: int) -> None:
    if word(frame, field) == 0 or word(frame, _NUMBERS + field) != value:
        _set_object(frame, field, new_integer(value))
        set_word(frame, _NUMBERS + field, value)


@part
def _set_bytes(frame: int, field: int, address: int, size: int) -> None:
    known = word(frame, field)
    if known == 0 or bytes_size(known) != size or not same_bytes(bytes_address(known), address, size):
        _set_object(frame, field, new_bytes(address, size))


@part
def _clear_fields(frame: int) -> None:
    for field in range(_FIELDS):
        set_word(frame, field, 0)


@part
def _let_go_fields(frame: int) -> None:
    for field in range(_FIELDS):
        let_go(word(frame, field))


@part
def _next_message(owner: int, frame: int, record: int, topic: int) -> int:
    """`new_message`, behind another one: of its fields, which are in the frame, those that are equal are used again.

    The fields stay in the frame. Neighbours were often stored in the same millisecond, and come from one client.
    """
    sys_flag = load_i32(record + SYS_FLAG)
    born, hosts = born_extra(sys_flag), hosts_extra(sys_flag)
    body, body_size = body_of(record)
    begin, end = properties_of(record)
    if topic:
        keep(topic)
    else:
        name, name_size = topic_of(record)
        topic = new_text(name, name_size, bytes_address(tuple_item(owner, _REPLACE)))
    _set_object(frame, _M_TOPIC, topic)
    _set_integer(frame, _M_QUEUE_ID, load_i32(record + _QUEUE_ID))
    _set_object(frame, _M_QUEUE_OFFSET, new_integer(load_i64(record + _QUEUE_OFFSET)))
    _set_object(frame, _M_COMMIT_LOG_OFFSET, new_integer(load_i64(record + _COMMIT_LOG_OFFSET)))
    _set_integer(frame, _M_STORE_SIZE, load_i32(record + _TOTAL_SIZE))
    _set_object(frame, _M_BODY, new_bytes(body, body_size))
    _set_object(frame, _M_PROPERTIES, new_bytes(begin, end - begin))
    _set_integer(frame, _M_BORN_TIMESTAMP, load_i64(record + _BORN_TIMESTAMP))
    _set_integer(frame, _M_STORE_TIMESTAMP, store_timestamp_of(record))
    _set_integer(frame, _M_FLAG, load_i32(record + _FLAG))
    _set_integer(frame, _M_SYS_FLAG, sys_flag)
    _set_object(frame, _M_BODY_CRC, new_integer(load_u32(record + _BODY_CRC)))
    _set_bytes(frame, _M_BORN_HOST, record + _BORN_HOST, _HOST_SIZE + born)
    _set_bytes(frame, _M_REST, record + _STORE_HOST + born, _REST_SIZE + hosts - born)
    for field in range(_FIELDS):
        if word(frame, field) == 0:
            return 0
    return call_with(tuple_item(owner, _CLASS), frame, _FIELDS, 0)


@part
def new_message(owner: int, frame: int, record: int, topic: int) -> int:
    """A new message of a whole record, 0 when there is no memory; `topic` is its topic's str, borrowed, or 0 to make
    one. The first SCRATCH bytes of the frame are used."""
    _clear_fields(frame)
    message = _next_message(owner, frame, record, topic)
    _let_go_fields(frame)
    return message


@part
def is_of(record: int, topic: int, topic_size: int) -> bool:
    """Whether the record has this topic."""
    name, name_size = topic_of(record)
    return name_size == topic_size and same_bytes(name, topic, topic_size)


object_at = word
"""`object_at(args, number)`: a positional arg."""


@part
def integer_at(args: int, number: int) -> int:
    """A positional arg that is an int of 64 bits."""
    return integer_of(object_at(args, number))


def _read_units(self: int, args: int, count: int, names: int) -> int:
    """`read_units(units, first, last, address, low, high, topic, queue_id, queue_offset, size_max, out)`.

    Adds the messages of the units `first` to `last - 1` to the list `out`, as long as they lie in the file that is
    mapped at `address` and holds log offsets [low, high), and take no more than about `size_max` bytes. Returns the
    number of the first unit that was not done. `queue_offset` is that of the first.
    """
    frame = stack()
    units, topic, out = object_at(args, 0), object_at(args, 6), object_at(args, 10)
    first, last, address = integer_at(args, 1), integer_at(args, 2), integer_at(args, 3)
    low, high, queue_id = integer_at(args, 4), integer_at(args, 5), integer_at(args, 7)
    queue_offset, room = integer_at(args, 8), integer_at(args, 9)
    last = min(last, bytes_size(units) // _UNIT_SIZE)
    name = text_address(topic, frame)
    name_size = load_le_i64(frame)
    units = bytes_address(units)
    if units == 0 or name == 0:
        return 0
    _clear_fields(frame)
    number = first
    failed = False
    while number < last and room > 0 and not failed:
        unit = units + _UNIT_SIZE * number
        offset, size = load_i64(unit + _UNIT_OFFSET), load_i32(unit + _UNIT_RECORD_SIZE)
        if offset < low or size <= 0 or offset > high - size:
            break
        position = offset - low
        prefetch_ahead(unit, last - number, address + position)
        if check_record(address, position, position + size, low, VERIFY) != WHOLE:
            break
        record = address + position
        if load_i32(record + _TOTAL_SIZE) != size or load_i64(record + _QUEUE_OFFSET) != queue_offset + number - first:
            break
        if load_i32(record + _QUEUE_ID) != queue_id or not is_of(record, name, name_size):
            break
        if load_i32(record + _FLAG) == LOST_FLAG:
            break
        message = _next_message(self, frame, record, topic)
        failed = message == 0 or add_to_list(out, message) < 0
        let_go(message)
        room -= size
        number += 1
    _let_go_fields(frame)
    return 0 if failed else new_integer(number)


def _read_record(self: int, args: int, count: int, names: int) -> int:
    """`read_record(address, position, end, base_offset, topic)`: the message whose record stands at a position of a
    file that is mapped at `address` and begins at log offset `base_offset` (-1: any); None where no whole one stands.
    `topic` is its topic if the caller knows it, else None."""
    frame = stack()
    address, position, end, base_offset = (
        integer_at(args, 0),
        integer_at(args, 1),
        integer_at(args, 2),
        integer_at(args, 3),
    )
    topic, none = object_at(args, 4), tuple_item(self, _NONE)
    if check_record(address, position, end, base_offset, VERIFY) != WHOLE:
        keep(none)
        return none
    return new_message(self, frame, address + position, 0 if topic == none else topic)


read_units, read_record = Native(_read_units), Native(_read_record)
