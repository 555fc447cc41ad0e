"""Restoring a record from what is left of it and from what a queue unit says of it: lengths, place and queue.

A restored record is accepted only if its lengths fill its place and its body has the CRC in its head, or its record CRC
holds. Fields that nothing else names (times, hosts, user flag) are taken as they are.

A record that was written to the wrong place is whole but for its commit log offset and its place in a queue. Without a
record CRC that would fit the restored record, at most one of the fields that place a record may therefore be wrong.
"""

import contextlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.batch import INNER_BASE, INNER_FLAGS, INNER_NUM, batch_size_of, inner_count
from stratalog.layout.light import MULTI_DISPATCH, MULTI_QUEUE_OFFSET, SEPARATOR, light_places
from stratalog.layout.message import (
    HEAD,
    HEADS,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    PROPERTIES_SIZE_MAX,
    TOPIC_CHARS_MAX_V1,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
    Host,
    Record,
    crc_of,
    decode_record,
    queue_offset_limit,
)
from stratalog.layout.properties import NAME_END, VALUE_END, find_property
from stratalog.layout.record import Layout
from stratalog.layout.recordcrc import CRC_LEAD, has_record_crc, record_crc_holds, with_crc_name
from stratalog.layout.sysflag import HOSTS_MASK, KNOWN_MASK, SysFlag, Transaction, enters_queue
from stratalog.tools.batches import contradiction_of
from stratalog.tools.evidence import Claim, read_record

_PLACING = frozenset({"queue_id", "queue_offset", "commit_log_offset", "topic"})
"""Fields that say where a record belongs. One can be damaged; two that differ are those of another record."""
_PREPARED_BIT = int(Transaction.PREPARED)
"""Set in both kinds of record that enter no queue, and in none that does."""


def restored(data: bytes, offset: int, claim: Claim | None) -> bytes | None:
    """The record that was put at a log offset and of which `data`, all its bytes, is left; None when that is not sure.

    Without a claim no more than one field may be wrong, and of its log offset one bit: more is another record's.
    """
    if len(data) < HEAD.size:
        return None
    for shape in _shapes(data, claim):
        record = _record(data, offset, claim, *shape)
        found = with_crc_name(record.encode()) if record else None
        if found and len(found) == len(data) and _is_sure(data, found, shape, claim) and _takes_as_many(found, claim):
            return found
    return None


def claim_of(record: Record) -> Claim:
    """What a record says of itself."""
    count = 0
    if record.sys_flag & SysFlag.INNER_BATCH:
        with contextlib.suppress(IllegalMessage):
            count = inner_count(record.properties)
    topic = record.topic.decode("utf-8", "surrogateescape")
    return Claim(topic, record.queue_id, record.queue_offset, record.total_size, count)


def identified(data: bytes, offset: int) -> Record | None:
    """The record that stands at a log offset if its head and lengths are whole, though its body is not."""
    try:
        record = decode_record(data, verify=False)
    except CorruptData:
        return None
    is_place = record.commit_log_offset == offset and record.queue_id >= 0 and record.queue_offset >= 0
    return record if is_place and enters_queue(record.sys_flag) else None


def with_light_places(data: bytes, numbers: Mapping[str, int]) -> bytes | None:
    """A record with these offsets in light queues; None where it is not whole, or where more than the digits of offsets
    or one byte of what names queues and offsets would change, or it is not known which byte."""
    record = read_record(data)
    if record is None or CRC_LEAD in record.properties:
        return None
    found = {
        properties for properties in _with_light_places(record.properties, numbers)
        if dict(light_places(record.topic, properties, record.commit_log_offset)[0]).items() >= numbers.items()
    }  # fmt: skip
    return data[: len(data) - len(record.properties)] + found.pop() if len(found) == 1 else None


def _with_light_places(properties: bytes, numbers: Mapping[str, int]) -> Iterator[bytes]:
    """Properties that may name these places, of those with the stored length."""
    names = (find_property(properties, MULTI_DISPATCH.encode()) or "").split(SEPARATOR)
    stored = find_property(properties, MULTI_QUEUE_OFFSET.encode()) or ""
    offsets = stored.split(SEPARATOR)
    if not numbers.keys() <= set(names):
        for order in _spellings(properties, {*names, *numbers}):
            yield _with_property(properties, MULTI_DISPATCH, SEPARATOR.join(order))
        return
    if len(names) == len(offsets):
        for name, number in numbers.items():
            at = names.index(name)
            offsets[at] = str(number).zfill(len(offsets[at]))
        lead, value = (MULTI_QUEUE_OFFSET + NAME_END).encode(), SEPARATOR.join(offsets)
        if len(value) == len(stored):
            yield properties.replace(lead + stored.encode(), lead + value.encode())
    elif numbers.keys() >= set(names):
        offsets = [str(numbers[name]) for name in names]
    yield _with_property(properties, MULTI_QUEUE_OFFSET, SEPARATOR.join(offsets))


def _with_property(properties: bytes, name: str, value: str) -> bytes:
    """Properties with one of that name and value, where all but one byte of it stands, or of the separators around."""
    wanted = VALUE_END + name + NAME_END + value + VALUE_END
    return _with_one_byte_off(_enclosed(properties), wanted.encode())[1:-1]


def _spellings(properties: bytes, names: Set[str]) -> Iterator[list[str]]:
    """Which of these names, in which order, INNER_MULTI_DISPATCH may list if one byte of it is wrong."""
    text, lead = _enclosed(properties), (VALUE_END + MULTI_DISPATCH + NAME_END).encode()
    wrong = _wrong_counts(text, lead)
    for at in np.flatnonzero(wrong <= 1).tolist():
        yield from _listed(text[at + len(lead) :], names, 1 - int(wrong[at]))


def _listed(text: bytes, names: Set[str], wrong_max: int) -> Iterator[list[str]]:
    """The same for a text that begins with a name."""
    for name, end in product(names, (SEPARATOR, VALUE_END)):
        wanted = (name + end).encode()
        wrong = sum(one != other for one, other in zip(text, wanted, strict=False))
        if wrong > wrong_max or len(wanted) > len(text):
            continue
        following = _listed(text[len(wanted) :], names - {name}, wrong_max - wrong) if end == SEPARATOR else [[]]
        yield from ([name, *others] for others in following)


def _enclosed(properties: bytes) -> bytes:
    """Properties with a separator before each and after each."""
    return VALUE_END.encode() + properties + VALUE_END.encode()


_Shape = tuple[int, int, int]
"""Magic, flags of the hosts, size of the body."""


def _shapes(data: bytes, claim: Claim | None) -> Iterator[_Shape]:
    """Every way to read the record, as stored first."""
    head = HEAD.unpack(data)
    stored_flags = head.sys_flag & HOSTS_MASK
    for magic in sorted((MAGIC_V1, MAGIC_V2), key=lambda magic: magic != head.magic):
        for flags in sorted(HEADS, key=lambda flags: flags != stored_flags):
            layout = HEADS[flags]
            if len(data) < layout.size:
                continue
            body_size = layout.unpack(data).body_size
            yield magic, flags, body_size
            if claim:
                topic = claim.topic.encode("utf-8", "surrogateescape")
                lead = _topic_length(magic).pack(len(topic)) + topic if len(topic) <= TOPIC_CHARS_MAX_V1 else topic
                at = data.rfind(lead, layout.size)
                if at >= 0 and at - layout.size != body_size:
                    yield magic, flags, at - layout.size


def _topic_length(magic: int) -> Layout:
    return TOPIC_LENGTH_V2 if magic == MAGIC_V2 else TOPIC_LENGTH_V1


def _lengths(
    data: bytes, layout: Layout, magic: int, body_size: int, topic: bytes | None
) -> tuple[int, int, int] | None:
    """Where the topic begins, its size, and where the properties begin."""
    length = _topic_length(magic)
    at = layout.size + body_size
    if body_size < 0 or at + length.size + PROPERTIES_LENGTH.size > len(data):
        return None
    topic_size = len(topic) if topic is not None else _topic_size(data, at + length.size, length.unpack(data, at).size)
    properties_at = at + length.size + topic_size + PROPERTIES_LENGTH.size
    if topic_size < 0 or not 0 <= len(data) - properties_at <= PROPERTIES_SIZE_MAX:
        return None
    return at + length.size, topic_size, properties_at


def _topic_size(data: bytes, topic_at: int, stored: int) -> int:
    """The stored size of the topic, unless with another one alone the length of the properties fills the record."""
    ends = range(topic_at + 1, min(topic_at + TOPIC_CHARS_MAX_V1, len(data) - PROPERTIES_LENGTH.size) + 1)
    fitting = [
        end - topic_at for end in ends
        if end + PROPERTIES_LENGTH.size + PROPERTIES_LENGTH.unpack(data, end).size == len(data)
    ]  # fmt: skip
    return fitting[0] if len(fitting) == 1 else stored


def _record(
    data: bytes, offset: int, claim: Claim | None, magic: int, flags: int, body_size: int
) -> Record | None:  # fmt: skip
    layout = HEADS[flags]
    known = claim.topic.encode("utf-8", "surrogateescape") if claim else None
    lengths = _lengths(data, layout, magic, body_size, known)
    if lengths is None:
        return None
    topic_at, topic_size, properties_at = lengths
    head, properties = layout.unpack(data), data[properties_at:]
    topic = data[topic_at : topic_at + topic_size] if known is None else known
    body = data[layout.size : layout.size + body_size]
    sys_flag, queue_offset = head.sys_flag & ~HOSTS_MASK | flags, head.queue_offset
    if not enters_queue(sys_flag) and not 0 <= queue_offset <= queue_offset_limit(offset):
        queue_offset = 0  # as RocketMQ stores it
    if claim:
        sys_flag = sys_flag if enters_queue(sys_flag) else sys_flag & ~_PREPARED_BIT
        properties = _with_batch(properties, claim)
        if claim.batch_size and find_property(properties, INNER_NUM.encode()) == str(claim.batch_size):
            sys_flag |= INNER_FLAGS
    record = Record(
        topic=topic, body=body, properties=properties, queue_id=claim.queue_id if claim else head.queue_id,
        flag=head.flag, queue_offset=claim.queue_offset if claim else queue_offset, commit_log_offset=offset,
        sys_flag=sys_flag, born_timestamp=head.born_timestamp, born_host=Host(head.born_address, head.born_port),
        store_timestamp=head.store_timestamp, store_host=Host(head.store_address, head.store_port),
        reconsume_times=head.reconsume_times, prepared_transaction_offset=head.prepared_transaction_offset, magic=magic,
        body_crc=head.body_crc,
    )  # fmt: skip
    wrong_bits = (crc_of(body) ^ head.body_crc) & 0xFFFFFFFF
    # No turned bit of a body leaves its CRC wrong in one bit: then that bit is the CRC's own.
    return replace(record, body_crc=None) if body and wrong_bits.bit_count() == 1 else record


def _with_batch(properties: bytes, claim: Claim) -> bytes:
    """Properties in which a batch has that queue offset and size, where they are as long as those in them; one byte of
    a name or a separator may be damaged."""
    if not claim.batch_size:
        return properties
    for name, value in ((INNER_BASE, claim.queue_offset), (INNER_NUM, claim.batch_size)):
        lead, stored = (name + NAME_END).encode(), find_property(properties, name.encode()) or ""
        if len(stored) == len(str(value)) and lead + stored.encode() in properties:
            properties = properties.replace(lead + stored.encode(), lead + str(value).encode())
        else:
            properties = _with_one_byte_off(properties, lead + str(value).encode() + VALUE_END.encode())
    return properties


def _with_one_byte_off(properties: bytes, wanted: bytes) -> bytes:
    """Properties with what is `wanted` in the only place where all but one byte of it stands."""
    places = np.flatnonzero(_wrong_counts(properties, wanted) == 1).tolist()
    if len(places) != 1:
        return properties
    return properties[: places[0]] + wanted + properties[places[0] + len(wanted) :]


def _wrong_counts(text: bytes, wanted: bytes) -> NDArray[np.int64]:
    """How many bytes of what is `wanted` differ at each place of a text."""
    if len(text) < len(wanted):
        return np.empty(0, np.int64)
    found: NDArray[np.int64] = (
        sliding_window_view(np.frombuffer(text, np.uint8), len(wanted)) != np.frombuffer(wanted, np.uint8)
    ).sum(axis=1)
    return found


def _is_sure(data: bytes, found: bytes, shape: _Shape, claim: Claim | None) -> bool:
    """Whether enough of the record is as it was stored."""
    magic, flags, body_size = shape
    layout = HEADS[flags]
    changed = {
        field.name
        for field in layout.fields
        if data[(at := layout.position(field.name)) : at + field.size] != found[at : at + field.size]
    }
    body_end = layout.size + body_size
    crc = crc_of(found[layout.size : body_end]) if body_size else 0
    if crc != layout.unpack(found).body_crc & 0x7FFFFFFF:
        return False
    topic_at = body_end + _topic_length(magic).size
    properties_at = _properties_at(found, layout, magic, body_size)
    lengths_at = properties_at - PROPERTIES_LENGTH.size
    behind = {
        name
        for name, begin, end in (
            ("topic_length", body_end, topic_at),
            ("topic", topic_at, lengths_at),
            ("properties_length", lengths_at, properties_at),
            ("properties", properties_at, len(found)),
        )
        if data[begin:end] != found[begin:end]
    }
    properties = found[properties_at:]
    if has_record_crc(properties):
        return record_crc_holds(found)
    if CRC_LEAD in properties or _is_elsewhere(changed | behind):
        return False
    is_transactional = not enters_queue(layout.unpack(data).sys_flag)
    if is_transactional and (changed | behind) & {"queue_id", "queue_offset", "topic"}:
        return False  # it is prepared or rolled back, and the unit is another one's
    if layout.unpack(found).sys_flag & ~KNOWN_MASK:
        return False  # garbage: nobody knows which of the other bits are right
    if not claim and "commit_log_offset" in changed and not _is_one_bit_off(data, found):
        return False  # no unit says that a record stood here
    is_cut = "properties_length" in behind and properties and not properties.endswith(VALUE_END.encode())
    if is_cut or not _is_text(properties):
        return False
    if len(behind) > 1 or (changed & {"body_crc"} and (len(changed) > 1 or behind)):
        return False
    return len(changed) + len(behind) <= 1 or bool(claim and body_size)


def _is_one_bit_off(data: bytes, found: bytes) -> bool:
    """Whether the log offsets in two heads differ in one bit."""
    one, other = (int(HEAD.unpack(head).commit_log_offset) for head in (data, found))
    return ((one ^ other) & (1 << 64) - 1).bit_count() == 1


def _takes_as_many(found: bytes, claim: Claim | None) -> bool:
    """Whether a restored batch agrees with itself and takes as many queue offsets as the claim says."""
    record = decode_record(found, verify=False)
    if claim is None or not claim.batch_size:
        return not record.sys_flag & SysFlag.INNER_BATCH or not contradiction_of(record)
    size, _ = batch_size_of(record.sys_flag, record.properties, record.queue_offset)
    return size == claim.batch_size and not contradiction_of(record)


def _is_elsewhere(wrong: set[str]) -> bool:
    """Whether the fields that differ are those of a record of another place. INNER_BASE says where a batch belongs,
    too."""
    return len(wrong & _PLACING) + ("properties" in wrong and "queue_offset" in wrong) > 1


def _is_text(properties: bytes) -> bool:
    """Whether properties were written to their end, which is a separator, and are text."""
    try:
        properties.decode()
    except UnicodeDecodeError:
        return False
    return not properties.endswith(b"\0")


def _properties_at(data: bytes, layout: Layout, magic: int, body_size: int) -> int:
    length = _topic_length(magic)
    at = layout.size + body_size
    return at + length.size + int(length.unpack(data, at).size) + PROPERTIES_LENGTH.size
