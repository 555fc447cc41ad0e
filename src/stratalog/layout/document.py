"""The format document `docs/formats.md`, made from the declarations: it cannot say something that the code does not do.

python -m stratalog.layout.document docs/formats.md
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stratalog.layout import checkpoint, index, message, messageid, properties, queue, tier, timer
from stratalog.layout.javahash import string_hash
from stratalog.layout.record import Layout
from stratalog.layout.sysflag import HOSTS_MASK

_TITLE = """\
# Formats

Every byte that RocketMQ's store and tiered store put on disk, as this library declares it (`stratalog.layout`). This
page is made from those declarations by `python -m stratalog.layout.document docs/formats.md`; a test compares the two.

Integers are big-endian and signed unless the type says otherwise (`u8`, `u16`). Text is UTF-8. Times are milliseconds
since 1970. A *commit log offset* counts bytes from the start of the log over all its files, a *queue offset* counts
messages in one queue, a *position* counts bytes in one file or record.

```
commitlog         = { log-file }                             named by the log offset of its first byte, 20 digits
log-file          = { record } [ blank ] { any byte }        of equal, full size from its creation
record            = head body topic-length topic properties-length properties
properties        = { name 0x01 value 0x02 }
consumequeue      = { queue-file }                           one folder for topic and queue id; named like the log's
queue-file        = { filler } { unit } { 0 }
consumequeue_ext  = { { extension-unit bitmap } end-mark }
batchconsumequeue = { { batch-unit } { 0 } }
index             = { index-header slots items }             named by creation time, yyyyMMddHHmmssSSS
client-batch      = { batch-entry body properties-length properties }
tier              = { segment }                              named by 8 hash digits and the offset of its first byte
segment           = { record [ coda ] } | { unit } | tier-index-header slots items
```
"""

_COSTS = """\
## What these formats cost

- Nothing says how much of a file is written. A reader finds the end by walking records until one does not hold; bytes
  after the end may be left over from earlier use, and can look like a record.
- The body CRC covers the body only. Head, topic and properties are protected by their lengths having to add up, unless
  the record CRC is switched on, and that one does not survive the copy to the tier.
- A record carries its own log offset, so a copy at another offset (the tier) differs in eight bytes a record.
- A queue unit holds a 32-bit hash of the tags: a reader that filters must compare the text as well. The index holds a
  hash of topic and key: equal hashes are found together.
- Neither the file sizes nor the index's slot count are recorded anywhere: a store is read with the settings that wrote
  it. An uploaded index file is the exception; its slot count follows from its size.
- The header of the newest local index file reaches the disk when the file is full or closed in good order.
- Properties are written in the order of a Java hash map. Readers must not rely on it; equal bytes need it.
"""


@dataclass(frozen=True, slots=True)
class _Section:
    title: str
    prose: str
    layouts: tuple[Layout, ...]


def _hex(magic: int) -> str:
    return f"{magic & 0xFFFFFFFF:#010x}"


_SECTIONS = (
    _Section(
        "Message record",
        f"""\
Magic {_hex(message.MAGIC_V1)} is V1, with a topic length of one byte; {_hex(message.MAGIC_V2)} is V2, with two, for
topics over {message.TOPIC_CHARS_MAX_V1} characters. After the head follow the body, the topic with its length and the
properties with theirs. With an IPv6 born or store host (bits of `sys_flag`) the host takes {message.V6_EXTRA} bytes
more and the fields after it move. The smallest record has {message.FIXED_SIZE_V1} bytes. A record is written only
where it leaves {message.BLANK.size} bytes free: a blank always fits.""",
        (
            message.HEAD,
            message.HEADS[HOSTS_MASK],
            message.TOPIC_LENGTH_V1,
            message.TOPIC_LENGTH_V2,
            message.PROPERTIES_LENGTH,
        ),
    ),
    _Section(
        "Blank",
        f"""\
Fills a log file that the next record does not fit into; its magic is {_hex(message.MAGIC_BLANK)}. Reading goes on in
the next file.""",
        (message.BLANK,),
    ),
    _Section(
        "Record CRC",
        f"""\
With `enabledAppendPropCRC` the properties end with these {properties.CRC_PROPERTY_SIZE} bytes:
`{properties.CRC32}`, 0x01, {properties.CRC_DIGITS} decimal digits (least significant first, padded with 0 on the
right), 0x02. The number is the CRC, lower 31 bits, of all bytes of the record before them.""",
        (),
    ),
    _Section(
        "Client batch",
        """\
The body that a client sends for several messages: for each the entry, its body, its properties with their length. A
store unrolls it, or keeps it as the body of one record.""",
        (message.BATCH_ENTRY,),
    ),
    _Section(
        "ConsumeQueue",
        f"""\
Unit number n of a queue stands at byte n × {queue.UNIT.size} of its files. A filler (size {queue.FILLER_SIZE:#x})
stands where a queue begins in the middle of a file; a unit with the tags code {queue.LOST_TAGS_CODE:#x} stands for a
lost message and leads to the record of a neighbour; a unit of size 0 is not written yet. A tags code at or below
{queue.EXTENSION_ADDRESS_MAX} is {queue.EXTENSION_ADDRESS_BASE} plus a byte offset in the extension's files. A unit of a
BatchConsumeQueue covers several queue offsets.""",
        (queue.UNIT, queue.EXTENSION_UNIT, queue.EXTENSION_END, queue.BATCH_UNIT),
    ),
    _Section(
        "Index file",
        f"""\
Header, {index.SLOT_COUNT:,} slots and {index.ITEM_CAPACITY:,} items by default; item 0 is never used. The slot of a key
is its hash modulo the number of slots; the hash is that of `topic#key` (`topic#T#tags` for tags, 5.4 and later), made
non-negative.""",
        (index.HEADER, index.SLOT, index.ITEM),
    ),
    _Section(
        "Checkpoint",
        f"""\
A page of {checkpoint.FILE_SIZE} bytes. 5.3 uses the first {checkpoint.SIZE_5_3} bytes,
5.5 all {checkpoint.CHECKPOINT.size} of the table. At byte {checkpoint.SEAL_POSITION} of the page a clean stop of
stratalog leaves its seal.""",
        (checkpoint.CHECKPOINT, checkpoint.SEAL),
    ),
    _Section(
        "Message ids",
        "Written as upper-case hexadecimal digits.",
        (messageid.OFFSET_ID_V4, messageid.OFFSET_ID_V6, messageid.UNIQUE_KEY_V4, messageid.UNIQUE_KEY_V6),
    ),
    _Section(
        "Tier",
        f"""\
A segment of type `COMMIT_LOG` holds the queue's records one after the other, with `commit_log_offset` counted in this
queue's own log; `CONSUME_QUEUE` holds units as above; `INDEX` holds one compacted index file. Up to 5.2 a full segment
ended with a coda. An index file is open ({_hex(tier.MAGIC_OPEN)}, local, items in the order of arrival, item 0 never
used) or finished ({_hex(tier.MAGIC_FINISHED)}, items grouped by slot, newest first).""",
        (
            tier.INDEX_HEADER,
            tier.OPEN_SLOT,
            tier.OPEN_ITEM,
            tier.COMPACTED_SLOT,
            tier.COMPACTED_ITEM,
            tier.CODA,
        ),
    ),
    _Section(
        "Index run",
        f"""\
A file of this library's own, below `{tier.OWN_DIRECTORY}/` beside the topics, where RocketMQ never looks: the keys of
one batch until they are compacted into an index segment. The items follow the header, sorted by hash.""",
        (tier.RUN_HEADER, tier.RUN_ITEM),
    ),
    _Section(
        "Timer",
        "Kept as they are by a store that runs no timer.",
        (timer.WHEEL_SLOT, timer.LOG_UNIT, timer.LOG_BLANK, timer.CHECK),
    ),
)


def formats_document() -> str:
    """The whole document as Markdown."""
    parts = [_TITLE]
    for section in _SECTIONS:
        parts.append(f"## {section.title}\n\n{section.prose}\n")
        parts += [_table(layout) for layout in section.layouts]
    return "\n".join([*parts, _example(), _COSTS])


def _table(layout: Layout) -> str:
    sources = ", ".join(f"`{name.strip()}`" for name in layout.source.split(","))
    size = "1 byte" if layout.size == 1 else f"{layout.size} bytes"
    lines = [
        f"### {layout.name[0].upper()}{layout.name[1:]}: {size} ({sources})\n",
        "| position | type | field | unit | meaning |",
        "|---:|---|---|---|---|",
    ]
    for field in layout.fields:
        kind = f"{field.size} bytes" if field.kind == "bytes" else field.kind
        meaning = field.meaning.replace("|", r"\|")
        lines.append(f"| {layout.position(field.name)} | {kind} | `{field.name}` | {field.unit} | {meaning} |")
    return "\n".join(lines) + "\n"


def dump(layout: Layout, data: bytes | memoryview, position: int = 0) -> Iterator[tuple[int, str, str, int | bytes]]:
    """The fields of one record for reading by people: (position in `data`, hexadecimal bytes, name, value).

    Raises `CorruptData` when the record does not fit.
    """
    values = layout.unpack(memoryview(data), position)
    for field, value in zip(layout.fields, values, strict=True):
        start = position + layout.position(field.name)
        yield start, bytes(data[start : start + field.size]).hex(), field.name, value


def example_record() -> message.Record:
    """The record of the worked example; RocketMQ writes the same bytes for it."""
    return message.Record(
        topic=b"TopicTest",
        body=b"Hello RocketMQ",
        properties=b"KEYS\x01order-1 order-2\x02UNIQ_KEY\x017F00000100002A139A5500000000ABCD\x02TAGS\x01TagA\x02",
        queue_id=3,
        queue_offset=7,
        commit_log_offset=4096,
        born_timestamp=1700000000000,
        born_host=message.Host.parse("127.0.0.1:50000"),
        store_timestamp=1700000000123,
        store_host=message.Host.parse("192.168.0.10:10911"),
    )


def _example() -> str:
    record = example_record()
    data = record.encode()
    rows = [
        (position, found, f"{name} = {value.hex() if isinstance(value, bytes) else value}")
        for position, found, name, value in dump(message.HEAD, data)
    ]
    position = message.HEAD.size
    for name, length, value in (
        ("body", None, record.body),
        ("topic", message.TOPIC_LENGTH_V1, record.topic),
        ("properties", message.PROPERTIES_LENGTH, record.properties),
    ):
        if length is not None:
            rows.append((position, length.pack(len(value)).hex(), f"{name} size = {len(value)}"))
            position += length.size
        shown = value.hex() if len(value) <= 16 else f"{value[:7].hex()}…{value[-7:].hex()}"
        rows.append((position, shown, f"{name} = {value.decode()!r}"))
        position += len(value)
    unit = queue.UNIT.pack(record.commit_log_offset, len(data), string_hash("TagA"))
    message_id = messageid.offset_message_id(record.store_host, record.commit_log_offset)
    return "\n".join(
        [
            f"## A record of {len(data)} bytes, field by field\n\n```",
            *(f"{position:5d}  {found:32}  {meaning}" for position, found, meaning in rows),
            "```\n",
            f"Its queue unit is `{unit.hex()}`: offset, size and the hash of `TagA`.",
            f"The broker's id for it is `{message_id}`: store host and offset.\n",
        ]
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(formats_document(), encoding="utf-8")
