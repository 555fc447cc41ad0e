"""One file of a store, record by record: a reader for each type of file that RocketMQ's local store writes.

Every reader yields what it finds with its position, steps over what cannot be read and says so, and holds one record at
a time. The files are only read.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from stratalog.errors import CorruptData, counted
from stratalog.kernels.scan import ANY_OFFSET, VERIFY, ScanStatus, scan
from stratalog.layout import checkpoint, index, timer
from stratalog.layout.document import dump as dump_fields
from stratalog.layout.loosejson import decode_loose_json
from stratalog.layout.message import (
    BLANK,
    HEAD,
    HEADS,
    MAGIC_BLANK,
    MAGIC_V2,
    PROPERTIES_LENGTH,
    TOPIC_LENGTH_V1,
    TOPIC_LENGTH_V2,
)
from stratalog.layout.names import LOCK, is_index_name, offset_of
from stratalog.layout.queue import (
    BATCH_UNIT,
    EXTENSION_END,
    EXTENSION_UNIT,
    LOST_TAGS_CODE,
    UNIT,
    extension_position,
    is_extension_address,
    is_filler,
)
from stratalog.layout.record import Layout
from stratalog.layout.sysflag import HOSTS_MASK
from stratalog.store.disk import Disk, MappedFile, PrivateDisk, lock_owner
from stratalog.store.index_file import index_sizes
from stratalog.store.log_scan import closes_file, next_record
from stratalog.store.message import Message, message_at
from stratalog.tools.survey import last_written

_SCAN_COUNT = 4096
_SHOWN_SIZE_MAX = 64
"""Bytes of a damaged range that are shown."""
_PAUSE_S, _WAITS_MAX = 0.01, 100
"""How long a live writer may take for a record before it counts as torn."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing found in a file: `kind` says what, `values` what it holds; `message` is set for a message."""

    kind: str
    path: Path
    position: int
    size: int
    values: dict[str, Any] = field(default_factory=dict)
    message: Message | None = None
    data: bytes = field(default=b"", repr=False)
    layout: Layout | None = None

    def rows(self) -> Iterator[tuple[int, str, str, Any]]:
        """The fields one by one: position in the file, bytes in hexadecimal, name, value."""
        if self.message is not None:
            yield from _message_rows(self.data, self.position)
        elif self.layout is not None:
            for at, hexadecimal, name, value in dump_fields(self.layout, self.data):
                yield self.position + at, hexadecimal, name, value
        elif self.data:
            yield self.position, self.data[:_SHOWN_SIZE_MAX].hex(), self.kind, ""


def _mapped(path: Path, disk: PrivateDisk) -> MappedFile:
    file = disk.map(path)
    file.populate(0, file.data_end)
    return file


def dump_commit_log(path: Path) -> Iterator[Item]:
    """Messages, blanks and damaged ranges. A file under another name than its own works: records tell the offset."""
    file = _mapped(path, PrivateDisk())
    start = offset_of(path.name)
    base = ANY_OFFSET if start is None else start
    positions, sizes = np.empty(_SCAN_COUNT, np.int64), np.empty(_SCAN_COUNT, np.int32)
    position, seen, waits = 0, -1, 0
    while True:
        count, position, status = scan(file.address, position, file.size, base, VERIFY, positions, sizes)
        for at, size in zip(positions[:count].tolist(), sizes[:count].tolist(), strict=True):
            yield _message_item(path, file, at, size)
        if status == ScanStatus.FULL:
            continue
        if closes_file(file, position, base):
            if file.size - position >= BLANK.size:
                data = bytes(file.map[position : position + BLANK.size])
                yield Item("blank", path, position, file.size - position, {}, data=data, layout=BLANK)
            return
        following = next_record(file, position + 1, base)
        end = following if following >= 0 else last_written(file, position)
        if end > position != seen:
            seen, waits = position, 0  # scanned again: a writer may have put it since
            continue
        if end > position and following < 0 and waits < _WAITS_MAX and lock_owner(path.absolute().parent.parent / LOCK):
            waits += 1  # or is putting it
            time.sleep(_PAUSE_S)
            continue
        if end > position:
            yield _damage(path, file, position, end, ScanStatus(status).name)
        if following < 0:
            if end < file.size:
                yield Item("unwritten", path, end, file.size - end)
            return
        position = following


def _message_item(path: Path, file: MappedFile, position: int, size: int) -> Item:
    message = message_at(file.map, position)
    return Item("message", path, position, size, {}, message, file.map[position : position + size])


def _damage(path: Path, file: MappedFile, begin: int, end: int, reason: str) -> Item:
    data = bytes(file.map[begin : min(end, begin + _SHOWN_SIZE_MAX)])
    return Item("damage", path, begin, end - begin, {"reason": reason}, data=data)


def _message_rows(data: bytes, position: int) -> Iterator[tuple[int, str, str, Any]]:
    layout = HEADS[HEAD.unpack(data).sys_flag & HOSTS_MASK]
    for at, hexadecimal, name, value in dump_fields(layout, data):
        yield position + at, hexadecimal, name, value
    head = layout.unpack(data)
    topic_length = TOPIC_LENGTH_V2 if head.magic == MAGIC_V2 else TOPIC_LENGTH_V1
    at = layout.size
    for name, length, size in (
        ("body", None, head.body_size), ("topic", topic_length, -1), ("properties", PROPERTIES_LENGTH, -1)
    ):  # fmt: skip
        if length is not None:
            size = length.unpack(data, at).size
            yield position + at, data[at : at + length.size].hex(), f"{name}_size", size
            at += length.size
        yield position + at, data[at : at + size].hex(), name, data[at : at + size]
        at += size


def dump_queue(path: Path) -> Iterator[Item]:
    """Units of a ConsumeQueue; those that are not written, fillers, and those of lost messages run by run."""
    first = (offset_of(path.name) or 0) // UNIT.size
    yield from _units(path, UNIT, lambda number, unit: _unit(first + number, unit))


def _unit(queue_offset: int, unit: Any) -> tuple[str, dict[str, Any]]:
    if not unit.size:
        return "unwritten", {}
    if is_filler(unit.size, unit.tags_code):
        return "lost" if unit.tags_code == LOST_TAGS_CODE else "filler", {"queue_offset": queue_offset}
    values = {"queue_offset": queue_offset} | unit._asdict()
    if is_extension_address(unit.tags_code):
        values["extension_position"] = extension_position(unit.tags_code)
    is_sane = unit.commit_log_offset >= 0 and unit.size > 0
    return ("unit" if is_sane else "damage"), values if is_sane else values | {"reason": "no log offset, no size"}


def dump_batch_queue(path: Path) -> Iterator[Item]:
    """Units of a BatchConsumeQueue; a unit of lost messages says which they are."""

    def unit_of(_: int, unit: Any) -> tuple[str, dict[str, Any]]:
        if not unit.size:
            return "unwritten", {}
        if is_filler(unit.size, unit.tags_code):
            return "lost-batch", {"base_offset": unit.base_offset, "batch_size": unit.batch_size}
        is_sane = unit.commit_log_offset >= 0 and unit.size > 0 and unit.base_offset >= 0 and unit.batch_size > 0
        return (
            ("batch-unit", unit._asdict()) if is_sane else ("damage", unit._asdict() | {"reason": "impossible values"})
        )

    yield from _units(path, BATCH_UNIT, unit_of)


def dump_timer_wheel(path: Path) -> Iterator[Item]:
    """Slots of the timer wheel that are in use."""

    def slot_of(number: int, slot: Any) -> tuple[str, dict[str, Any]]:
        return ("timer-slot", {"slot": number} | slot._asdict()) if any(slot) else ("unwritten", {})

    yield from _units(path, timer.WHEEL_SLOT, slot_of)


def _units(path: Path, layout: Layout, told: Callable[[int, Any], tuple[str, dict[str, Any]]]) -> Iterator[Item]:
    """Records of one size. Runs of those that say nothing by themselves become one item; holes are not read."""

    def all_units() -> Iterator[tuple[int, str, dict[str, Any], bytes]]:
        with path.open("rb") as stream:
            number = 0
            while data := stream.read(layout.size * _SCAN_COUNT):
                whole = len(data) - len(data) % layout.size
                if not any(data):
                    yield number, "unwritten", {"count": whole // layout.size}, data[:0]
                else:
                    for at in range(0, whole, layout.size):
                        kind, values = told(number + at // layout.size, layout.unpack(data, at))
                        yield number + at // layout.size, kind, values, data[at : at + layout.size]
                number += whole // layout.size

    for kind, run in groupby(all_units(), key=lambda unit: unit[1]):
        if kind in ("unwritten", "filler", "lost"):
            number, _, values, _ = next(run)
            count = values.get("count", 1) + sum(more.get("count", 1) for _, _, more, _ in run)
            yield Item(kind, path, number * layout.size, count * layout.size, values | {"count": count})
        else:
            for number, _, values, data in run:
                yield Item(kind, path, number * layout.size, layout.size, values, data=data, layout=layout)


def dump_extension(path: Path) -> Iterator[Item]:
    """Units of a ConsumeQueueExt file with their bitmaps."""
    data, position = memoryview(path.read_bytes()), 0
    while position + EXTENSION_END.size <= len(data):
        size = EXTENSION_END.unpack(data, position).mark
        if size < EXTENSION_UNIT.size or position + size > len(data):
            kind = (
                "end" if size == -1 else "damage" if any(data[position : position + _SHOWN_SIZE_MAX]) else "unwritten"
            )
            yield Item(kind, path, position, len(data) - position, {"reason": "no size"} if kind == "damage" else {})
            return
        unit = EXTENSION_UNIT.unpack(data, position)
        raw = bytes(data[position : position + size])
        values = unit._asdict() | {"bitmap": raw[EXTENSION_UNIT.size :].hex()}
        yield Item("extension", path, position, size, values, data=raw, layout=EXTENSION_UNIT)
        position += size


def dump_index(path: Path) -> Iterator[Item]:
    """Header and items of an index file, oldest item first. A header of zeros (after a crash) is not trusted."""
    disk = PrivateDisk()
    file = _mapped(path, disk)
    data = file.view.data
    header = index.HEADER.unpack(data)
    raw = bytes(data[: index.HEADER.size])
    yield Item("index-header", path, 0, index.HEADER.size, header._asdict(), data=raw, layout=index.HEADER)
    slot_count = _slot_count(path, file.size, disk)
    items_at = index.items_position(slot_count)
    room = (file.size - items_at) // index.ITEM.size
    told = header.next_item if 1 < header.next_item <= room else room
    if header.next_item > room:
        yield Item(
            "damage",
            path,
            index.HEADER.position("next_item"),
            4,
            {"reason": f"room for {counted(room - 1, 'item')} only"},
        )
    for number in range(1, told):
        at = items_at + number * index.ITEM.size
        item = index.ITEM.unpack(data, at)
        if header.next_item <= 1 and not any(item):
            break
        values = {"item": number, "slot": item.key_hash % slot_count} | item._asdict()
        if header.begin_timestamp:
            values["store_timestamp"] = header.begin_timestamp + 1000 * item.seconds
        raw = bytes(data[at : at + index.ITEM.size])
        yield Item("index-item", path, at, index.ITEM.size, values, data=raw, layout=index.ITEM)


def _slot_count(path: Path, size: int, disk: PrivateDisk) -> int:
    sizes = index_sizes(disk, path.parent) if is_index_name(path.name) else None
    ratio = index.ITEM_CAPACITY // index.SLOT_COUNT
    usual = (size - index.items_position(0)) // (index.SLOT.size + ratio * index.ITEM.size)
    if sizes and index.file_size(*sizes) == size:
        return sizes[0]
    if usual < 1 or index.file_size(usual, ratio * usual) != size:
        raise CorruptData(
            f"{size:,} bytes do not tell how many slots there are: keep the file under its name", path=str(path)
        )
    return usual


def _begin_of(path: Path, size: int) -> bytes:
    if (content := Disk().read(path, size_max=size, cut=True)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return content


def dump_checkpoint(path: Path) -> Iterator[Item]:
    """The checkpoint, and stratalog's seal in it."""
    data = _begin_of(path, checkpoint.FILE_SIZE)
    values = checkpoint.CHECKPOINT.unpack(data)._asdict()
    yield Item("checkpoint", path, 0, checkpoint.CHECKPOINT.size, values, data=data, layout=checkpoint.CHECKPOINT)
    at = checkpoint.SEAL_POSITION
    if any(data[at : at + checkpoint.SEAL.size]):
        values = checkpoint.SEAL.unpack(data, at)._asdict()
        yield Item("seal", path, at, checkpoint.SEAL.size, values, data=data[at:], layout=checkpoint.SEAL)


def dump_timer_check(path: Path) -> Iterator[Item]:
    """Progress of the timer."""
    data = _begin_of(path, timer.CHECK.size)
    yield Item(
        "timer-check", path, 0, timer.CHECK.size, timer.CHECK.unpack(data)._asdict(), data=data, layout=timer.CHECK
    )


def dump_timer_log(path: Path) -> Iterator[Item]:
    """Units of the timer log."""
    unit_size = timer.LOG_UNIT.size
    with path.open("rb") as stream:
        position = 0
        while len(data := stream.read(unit_size)) >= timer.LOG_BLANK.size:
            if timer.LOG_BLANK.unpack(data).magic == MAGIC_BLANK:
                yield Item("timer-blank", path, position, timer.LOG_BLANK.size, {}, data=data, layout=timer.LOG_BLANK)
                return
            if not any(data) or len(data) < unit_size:
                yield Item("unwritten", path, position, path.stat().st_size - position)
                return
            unit = timer.LOG_UNIT.unpack(data)
            kind = "timer-unit" if unit.size == unit_size else "damage"
            values = unit._asdict() | ({} if kind == "timer-unit" else {"reason": "no size"})
            yield Item(kind, path, position, unit_size, values, data=data, layout=timer.LOG_UNIT)
            position += unit_size


def dump_config(path: Path) -> Iterator[Item]:
    """A JSON file of the broker, as strict JSON."""
    if (content := Disk().read(path)) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        yield Item("config", path, 0, len(content), {"content": decode_loose_json(content)}, data=content)
    except CorruptData as error:
        yield Item("damage", path, 0, len(content), {"reason": str(error) if content else "empty"}, data=content)


def dump_text(path: Path) -> Iterator[Item]:
    """`abort`, `lock` and the like."""
    content = _begin_of(path, 4096)
    yield Item("text", path, 0, len(content), {"content": content.decode("utf-8", "backslashreplace")}, data=content)
