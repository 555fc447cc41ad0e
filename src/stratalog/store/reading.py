"""From places in the log to messages, each checked before it is handed out.

A record counts when magic, lengths, place and body checksum hold. Where none does, `CorruptData` names the file, the
position and the message that should stand there, and carries the queue offset at which reading can go on: damage hides
no message after it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from stratalog.errors import CorruptData, command
from stratalog.kernels import messages as native
from stratalog.kernels.aside import ready_or_started
from stratalog.kernels.scan import VERIFY, ScanStatus, scan
from stratalog.layout.queue import FILLER_SIZE, UNIT
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.disk import MappedFile
from stratalog.store.message import Message, is_placeholder, message_at
from stratalog.store.os_errors import loads

if TYPE_CHECKING:
    from stratalog.store.commit_log import CommitLog
    from stratalog.store.queue import Queue

_CHUNK_UNITS_FIRST, _CHUNK_UNITS_MAX = 16, 1024
_CHUNK_SIZE = 1 << 20
"""Units and bytes of records that are decoded at once: the interpreter waits meanwhile, 0.4 ms for a thousand."""
_FOLLOW_PAUSE_S = 0.005
_unpack_unit = UNIT.struct.unpack_from


@cache
@loads("messages cannot be read")
def _natives() -> tuple[Callable[..., int], Callable[..., Message | None]]:
    owner = (Message, None, b"replace")
    return native.read_units.bind(owner), native.read_record.bind(owner)


def read_queue(
    queue: "Queue", stored: ConsumeQueue, start: int, left: int, *, follow: bool,
    lists_of: Callable[["Queue", bytes, int], Iterator[list[Message]]],
) -> Iterator[list[Message]]:  # fmt: skip
    """What `Queue.read` yields for a queue with units of 20 bytes, in lists, which `lists_of` makes of some units. What
    an extension holds is not needed: where it is damaged the messages are read all the same."""
    chunk = _CHUNK_UNITS_FIRST
    while left > 0:
        behind = queue.store.catch_up()
        units = stored.units(start, min(left, chunk))
        if not units:
            if behind:
                raise behind
            if not follow:
                return
            time.sleep(_FOLLOW_PAUSE_S)
            continue
        for messages in lists_of(queue, units, start):
            left -= len(messages)
            yield messages
        start += len(units) // UNIT.size
        chunk = min(4 * chunk, _CHUNK_UNITS_MAX)


def plain_messages(queue: "Queue", units: bytes, start: int) -> Iterator[list[Message]]:
    """Lists of messages of units from queue offset `start` on that lead to one record of their queue each."""
    number, count = 0, len(units) // UNIT.size
    while number < count:
        commit_log_offset, size, _ = _unpack_unit(units, number * UNIT.size)
        if size == FILLER_SIZE:
            number += 1
            continue
        messages: list[Message] = []
        done = _read_units(queue, units, number, start, commit_log_offset, messages)
        if done == number:
            message = _read_one(queue, commit_log_offset, size, start + number)
            messages += [] if is_placeholder(message) else [message]
            done += 1
        yield messages
        number = done


def _read_units(
    queue: "Queue", units: bytes, number: int, start: int, commit_log_offset: int, messages: list[Message]
) -> int:
    """Decode units from `number` on as long as they lie in one file; returns the first that was not."""
    if not ready_or_started():
        return number
    try:
        file, position = queue.store.log.file_at(commit_log_offset)
    except IndexError:
        return number
    base = commit_log_offset - position
    view = file.view
    return _natives()[0](
        units, number, len(units), view.ctypes.data, base, base + file.size, queue.topic, queue.queue_id,
        start + number, _CHUNK_SIZE, messages,
    )  # fmt: skip


def _read_one(queue: "Queue", commit_log_offset: int, size: int, queue_offset: int) -> Message:
    own = queue.topic, queue.queue_id, queue_offset, size
    with contextlib.suppress(CorruptData):
        message = record_at(queue.store.log, commit_log_offset)
        if (message.topic, message.queue_id, message.queue_offset, message.store_size) == own:
            return message
    raise not_there(queue, queue_offset, commit_log_offset)


def record_at(log: "CommitLog", commit_log_offset: int, topic: str | None = None) -> Message:
    """The message whose record starts there. Raises `CorruptData` when no whole record does."""
    try:
        file, position = log.file_at(commit_log_offset)
    except IndexError:
        raise CorruptData(
            f"log offset {commit_log_offset:,} is outside [{log.first_offset:,}, {log.end_offset:,})",
            path=str(log.directory),
            position=commit_log_offset,
        ) from None
    message = _checked(file, position, commit_log_offset - position, topic)
    if message is None:
        raise damaged_record(log, commit_log_offset, f"no message with log offset {commit_log_offset:,} is there")
    return message


def damaged_range(log: "CommitLog", begin: int, end: int) -> CorruptData:
    """The error of a damaged range of the log, of which no index may know what was in it."""
    path, position = log.directory, begin
    with contextlib.suppress(IndexError):
        file, position = log.file_at(begin)
        path = file.path
    return CorruptData(
        f"log offsets {begin:,} to {end - 1:,} are damaged, and may have held messages with the key. "
        f"{command('verify', log.directory.parent)} shows more",
        path=str(path), position=position,
    )  # fmt: skip


def damaged_record(log: "CommitLog", commit_log_offset: int, what: str, next_step: str = "") -> CorruptData:
    """The error of a place in the log where no whole record stands, with the reason."""
    file, position = log.file_at(commit_log_offset)
    words = _damage(file, position, commit_log_offset)
    return CorruptData(f"{what}: {words}{next_step}", path=str(file.path), position=position)


def _checked(file: MappedFile, position: int, base_offset: int, topic: str | None) -> Message | None:
    view = file.view
    if ready_or_started():
        return _natives()[1](view.ctypes.data, position, file.size, base_offset, topic)
    return None if _status(file, position, base_offset) is not None else message_at(file.map, position, topic)


def _status(file: MappedFile, position: int, base_offset: int) -> ScanStatus | None:
    """Why no whole record stands there; None when one does."""
    view = file.view
    count, _, status = scan(
        view.ctypes.data, position, file.size, base_offset, VERIFY, np.empty(1, np.int64), np.empty(1, np.int32)
    )
    return None if count else ScanStatus(status)


_WORDS = {
    ScanStatus.END: "too few bytes are left in the file",
    ScanStatus.BLANK: "the file ends before",
    ScanStatus.BAD_MAGIC: "no record's magic number",
    ScanStatus.BAD_SIZE: "the record's size is impossible",
    ScanStatus.BAD_BODY_SIZE: "the body's size is impossible",
    ScanStatus.BAD_LENGTHS: "its lengths do not add up",
    ScanStatus.BAD_OFFSET: "it has another log offset",
    ScanStatus.BAD_CRC: "the body is not the one that was put (its checksum differs)",
    ScanStatus.BAD_RECORD_CRC: "the record is not the one that was put (its checksum differs)",
}


def _damage(file: MappedFile, position: int, commit_log_offset: int) -> str:
    status = _status(file, position, commit_log_offset - position)
    return _WORDS[status] if status is not None else "the record there belongs to another message"


def check_complete(queue: "Queue", units: bytes, start: int, row_count: int) -> None:
    """Raise `CorruptData` when units from queue offset `start` on gave fewer rows than there should be records."""
    if row_count == len(units) // UNIT.size:
        return
    table = np.frombuffer(units, UNIT.dtype)
    is_there = table["commit_log_offset"] >= queue.store.log.first_offset
    expected = np.flatnonzero(is_there & (table["size"] != FILLER_SIZE))
    if row_count >= expected.size:
        return
    for number in expected.tolist():
        if not _probe(queue, units, number, start):
            raise not_there(queue, start + number, int(table["commit_log_offset"][number]))


def _probe(queue: "Queue", units: bytes, number: int, start: int) -> list[Message]:
    """The message of one unit, if there is a whole one."""
    messages: list[Message] = []
    one = units[number * UNIT.size : (number + 1) * UNIT.size]
    _read_units(queue, one, 0, start + number, _unpack_unit(one, 0)[0], messages)
    return messages


def not_there(
    queue: "Queue", queue_offset: int, commit_log_offset: int, next_offset: int = -1, words: str = ""
) -> CorruptData:
    """The error of a unit that leads to no whole record of its queue."""
    log = queue.store.log
    next_offset = max(next_offset, queue_offset + 1)
    what = f"queue {queue.topic}/{queue.queue_id} offset {queue_offset:,}"
    if next_offset > queue_offset + 1:
        what += f" to {next_offset - 1}"
    advice = (
        f"read on from offset {next_offset:,}; {command('verify', queue.store.root)} shows what else is damaged, and "
        "whether the queue should be rebuilt from the log"
    )
    try:
        file, position = log.file_at(commit_log_offset)
    except IndexError:
        return CorruptData(
            f"{what} points to a record that is not there: the log is [{log.first_offset}, {log.end_offset}). {advice}",
            path=str(log.directory), position=commit_log_offset, next_offset=next_offset,
        )  # fmt: skip
    return CorruptData(
        f"{what} points to a record that is not there or damaged: "
        f"{words or _damage(file, position, commit_log_offset)}. "
        f"The message is not served; {advice}",
        path=str(file.path), position=position, next_offset=next_offset,
    )  # fmt: skip
