"""What queues prove about the log, and the log about queues: from where on opening has to look.

Units say nothing about what is not in them. That a queue lacks nothing below some log offset is known only

- from the seal, when the queues hold as many sound units below its log offset as it counted there: nobody but us
  writes one, and only after the units were durable;
- from the walk over the log itself.

RocketMQ's checkpoint proves neither. After a crash it says where torn units may begin, and no more. In a store without
a seal that holds, the whole log is read: units that are there stay, missing ones are added. (Beside a process that
writes the store, queues are taken as that process has them.)

Older records of a queue whose offsets its units have are of a topic that was deleted and created again. The newest unit
that is kept, or the first ones (`queue_begin`), say where those end; they are never added.

A unit is sound when it is not zeros and points to a newer record than those before it. A queue's newest sound unit must
agree with its record as well: it may be the torn rest of one.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stratalog.errors import CorruptData, command
from stratalog.layout.batch import batch_size_of
from stratalog.layout.index import HEADER as INDEX_HEADER
from stratalog.layout.index import ITEM, items_position
from stratalog.layout.javahash import string_hash
from stratalog.layout.light import LIGHT_QUEUE_ID, is_light, light_offset
from stratalog.layout.message import FIXED_SIZE_V1, HEAD, LOST_FLAG, MAGIC_V1, MAGIC_V2, Record, decode_record
from stratalog.layout.names import INDEX, SCHEDULE_TOPIC, is_index_name, offset_of
from stratalog.layout.properties import TAGS, find_property
from stratalog.layout.queue import BATCH_UNIT, FILLER_SIZE, UNIT, is_extension_address, is_filler
from stratalog.store.batch_queue import BatchQueue
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.disk import Disk
from stratalog.store.dispatch import Dispatcher
from stratalog.store.extension import lacks_extension
from stratalog.store.log_scan import Damage, is_record, newest_before, next_record
from stratalog.store.queue_begin import (
    LiveUnit,
    QueueBegin,
    QueueKey,
    first_units,
    leads_to_first,
    live_begins,
    may_lead_to_deleted,
    says_twice,
)
from stratalog.store.queue_set import QueueSet, UnitQueue
from stratalog.store.sizes import index_slot_count
from stratalog.store.special_read import messages_in

RESTORE_LOG = (
    "restore commitlog/ from a copy: messages are nowhere else. To begin with an empty store, whose queue offsets "
    "begin at 0 again, below those that consumer groups have committed, remove consumequeue/, batchconsumequeue/, "
    "consumequeue_ext/, index/, checkpoint and queues.snapshot, as far as they are there"
)
UNCOUNTED = (
    "the store was not closed properly, and its log is damaged or was cut short. Lost messages that no queue unit and "
    "no later message refers to are not counted, and their queue offsets may be given again"
)
DELETED_AGAIN = (
    "If a topic was deleted and created again, and all its messages since are lost, those of the deleted topic may be "
    "served"
)
_CLOCK_MARGIN_MS = 3000
"""A 5.3 checkpoint knows times only; upstream goes back this much further."""
_QUEUES_ASKED = 8
_ITEMS_READ = 1 << 12


class Torn(NamedTuple):
    """What a unit was that was dropped: the queue's end with it; the log offset it leads to; the whole record of its
    size there; whether another message has the place that this record names."""

    end: int
    commit_log_offset: int
    record: Record | None
    is_displaced: bool


def can_end_at(log: CommitLog, end: int) -> bool:
    """Whether the log can have ended there. It cannot where the last whole record ends in front of it, and no record,
    damaged since, fits in between."""
    if not log.first_offset < end <= log.end_offset:
        return True
    file, position = log.file_at(end - 1)
    newest = newest_before(file, position + 1, int(file.path.name))
    record_end = newest + HEAD.unpack(file.view.data, newest).total_size if newest >= 0 else 0
    return not 0 < position + 1 - record_end < FIXED_SIZE_V1


def check_belonging(log: CommitLog, dispatcher: Dispatcher) -> None:
    """Raise `CorruptData` when log files and queues are of different stores: which ones are right nobody can tell."""
    if not log.files and any(queue.last_unit() for queue in dispatcher.queues.values()):
        raise CorruptData(
            f"the queues hold messages but the log has no file: {RESTORE_LOG}",
            path=str(log.directory),
        )
    for file in log.files:
        begin = int(file.path.name)
        record = _record_at(log, begin)
        if record is None:
            continue
        own = dispatcher.queues.get((_topic_of(record), record.queue_id))
        asked = ([own] if own else []) + list(dispatcher.queues.values())[:_QUEUES_ASKED]
        answers = [_finds_its_messages(log, queue, begin) for queue in asked]
        if False in answers and True not in answers and not _was_repaired(log, begin):
            raise CorruptData(
                f"the queues' units point to other messages than the file has, which begins with offset "
                f"{record.queue_offset:,} of {_topic_of(record)}/{record.queue_id}: directories of queues were renamed "
                "or exchanged, or the file is of another store. Rename or exchange them back, or put the right file "
                f"back; {command('repair', log.directory.parent)} says whether queues can be built again from the log "
                "instead",
                path=str(file.path),
                position=0,
            )


def _was_repaired(log: CommitLog, begin: int) -> bool:
    """Whether a repair put records into the log file that begins there. It builds the queues again last; one that was
    stopped before leaves units that lead to what stood there before."""
    file, (position, end) = log.file_at(begin)[0], (0, log.file_size)
    while end - position >= HEAD.size:
        head = HEAD.unpack(file.view.data, position)
        if head.magic not in (MAGIC_V1, MAGIC_V2) or head.total_size < HEAD.size:
            return False
        if head.flag == LOST_FLAG:
            return True
        position += head.total_size
    return False


def _finds_its_messages(log: CommitLog, queue: UnitQueue, begin: int) -> bool | None:
    """Whether one of the first two units that lead into the log file from `begin` on finds a message of its queue; None
    when there are not two, or where both messages may be damaged, as no other record is in their place."""
    if not isinstance(queue, ConsumeQueue):
        return None
    number = queue.offset_of(begin)
    units = [(n, *queue.unit(n)) for n in range(number, min(number + 2, queue.end_offset))]
    inside = [unit for unit in units if begin <= unit[1] < begin + log.file_size and 0 < unit[2] != FILLER_SIZE]
    if len(inside) == 2 and any(_is_of_queue(log, queue, *unit[1:3]) for unit in inside):
        return True
    return False if len(inside) == 2 and any(is_taken(log, unit[1]) for unit in inside) else None


def is_taken(log: CommitLog, commit_log_offset: int) -> bool:
    """Whether a whole record covers the byte at a log offset."""
    file, position = log.file_at(commit_log_offset)
    base = commit_log_offset - position
    before = newest_before(file, position, base)
    end = before + HEAD.unpack(file.view.data, before).total_size if before >= 0 else 0
    return 0 <= next_record(file, end, base) <= position


def _is_of_queue(log: CommitLog, queue: ConsumeQueue, commit_log_offset: int, size: int) -> bool:
    """Whether a record of that size stands there and belongs to the queue, be the unit at a wrong place."""
    record = _record_at(log, commit_log_offset)
    if record is None or record.total_size != size:
        return False
    is_named = _may_be_light(queue) and light_offset(record.topic, record.properties, queue.topic) >= 0
    return is_named or is_in_queue(record, queue, record.queue_offset)


def is_in_queue(record: Record, queue: UnitQueue, queue_offset: int) -> bool:
    """Whether a record belongs to a queue, at that offset. Light queues may have come apart from the offsets."""
    is_named = _may_be_light(queue) and light_offset(record.topic, record.properties, queue.topic) >= queue_offset
    own = queue.topic, queue.queue_id, queue_offset
    return is_named or (_topic_of(record), record.queue_id, record.queue_offset) == own


def _may_be_light(queue: UnitQueue) -> bool:
    return is_light(queue.topic) and queue.queue_id == LIGHT_QUEUE_ID


def _record_at(log: CommitLog, commit_log_offset: int) -> Record | None:
    """The whole record that stands there."""
    if not (log.first_offset <= commit_log_offset < log.end_offset and is_record(log, commit_log_offset)):
        return None
    file, position = log.file_at(commit_log_offset)
    return decode_record(file.view.data, position, verify=False)


def _topic_of(record: Record) -> str:
    return record.topic.decode(errors="replace")


def drop_torn(
    log: CommitLog, dispatcher: Dispatcher, damages: Sequence[Damage] = (), *, only_batches: bool
) -> dict[UnitQueue, Torn] | None:
    """Drop the newest unit of each queue where it does not agree with the log: it was written in part, or its record
    was damaged since. It stays in the files until the queue is cut. Returns these queues; None when a queue's newest
    two do not agree: the queues are not of this log.

    A unit that leads into one of the noted `damages` was written in full: its record was damaged later. `only_batches`
    says that the snapshot vouches for all other queues.
    """

    def agrees(queue: UnitQueue, queue_offset: int, unit: tuple[int, ...]) -> bool:
        is_damaged = any(damage.begin <= unit[0] < damage.end for damage in damages)
        return is_damaged or _agrees(log, queue, queue_offset, unit)

    torn: dict[UnitQueue, Torn] = {}
    for queue in dispatcher.queues.values():
        if (only_batches and not isinstance(queue, BatchQueue)) or queue.last_unit() is None:
            continue
        newest, *before = queue.newest_units(2)
        if not agrees(queue, *newest):
            if before and not is_filler(*before[0][1][1:3]) and not agrees(queue, *before[0]):
                dispatcher.notes.append(
                    f"{queue.topic}/{queue.queue_id}: its newest units point to no messages of its own; all queues are "
                    "built again"
                )
                return None
            record = leads_to_record(log, newest[1])
            is_displaced = record is not None and _is_taken_place(log, dispatcher, queue, record)
            end = _end_by_record(queue, record, before[0][1] if before else None)
            torn[queue] = Torn(end or queue.end_offset, newest[1][0], record, is_displaced)
    for queue in torn:  # not before all are looked at: with None every queue keeps its end
        queue.drop_newest()
    return torn


def _end_by_record(queue: UnitQueue, record: Record | None, before: Sequence[int] | None) -> int:
    """Where a batch queue ends by the record of its newest unit, if the record says its offset twice or goes on from
    the unit before: the unit's own offset or size was damaged, or the record's count of messages. 0 for another
    queue."""
    if not isinstance(queue, BatchQueue) or record is None:
        return 0
    last = BATCH_UNIT.record._make(before) if before else None
    goes_on = record.queue_offset == (last.base_offset + last.batch_size if last else 0)
    if not (is_in_queue(record, queue, record.queue_offset) and (says_twice(record) or goes_on)):
        return 0
    count = messages_in(record) or batch_size_of(record.sys_flag, record.properties, record.queue_offset)[0]
    return record.queue_offset + count


def leads_to_record(log: CommitLog, unit: Sequence[int]) -> Record | None:
    """The whole record of a unit's size that begins where it leads to: no crash tore that unit."""
    record = _record_at(log, unit[0])
    return record if record and record.total_size == unit[1] else None


def are_of_another(log: CommitLog, queue: UnitQueue, units: Sequence[tuple[int, Sequence[int]]]) -> bool:
    """Whether a queue's newest units, two or more, all lead to whole records that name another place: the files are
    another queue's."""
    led = [(number, leads_to_record(log, unit)) for number, unit in units]
    return len(led) > 1 and all(record and not is_in_queue(record, queue, number) for number, record in led)


def _is_taken_place(log: CommitLog, dispatcher: Dispatcher, queue: UnitQueue, record: Record) -> bool:
    """Whether another message has the place in another queue that a record names, by its unit and its own fields."""
    other, number = dispatcher.queues.get((_topic_of(record), record.queue_id)), record.queue_offset
    if other is None or other is queue or not other.first_offset <= number < other.end_offset:
        return False
    there = leads_to_record(log, other.unit(number))
    return bool(there and there.commit_log_offset != record.commit_log_offset and is_in_queue(there, other, number))


def _agrees(log: CommitLog, queue: UnitQueue, queue_offset: int, unit: tuple[int, ...]) -> bool:
    """Whether a unit says what its record says. One whose record is damaged, or not in the log, is trusted."""
    commit_log_offset, size, tags_code = unit[:3]
    if not log.first_offset <= commit_log_offset < log.end_offset:
        return True
    record = _record_at(log, commit_log_offset)
    if record is None:
        return _begins(log, commit_log_offset, size)
    if record.total_size != size or not is_in_queue(record, queue, queue_offset):
        return False
    if isinstance(queue, ConsumeQueue) and _names_later(queue, queue_offset, record):
        first = _record_at(log, queue.unit(queue.first_offset)[0])
        is_last = queue.unordered_end == queue_offset + 1  # or the unit after it is wrong
        if is_last or queue.has_later_files or (first and _names_later(queue, queue.first_offset, first)):
            return False  # RocketMQ puts them in front of that only after one that is in its place, and at the end
    if isinstance(queue, BatchQueue):
        covered = batch_size_of(record.sys_flag, record.properties, record.queue_offset)[0]
        if (unit[3], unit[5]) != (record.store_timestamp, covered):
            return False
    tags = string_hash(find_property(record.properties, TAGS.encode()) or "")
    is_other = queue.topic == SCHEDULE_TOPIC or is_extension_address(tags_code)
    return is_other or tags_code == tags


def _names_later(queue: UnitQueue, queue_offset: int, record: Record) -> bool:
    """Whether the record of a light queue's unit names a later offset there."""
    return _may_be_light(queue) and light_offset(record.topic, record.properties, queue.topic) > queue_offset


def lacks_newest_file(directory: Path, log_end: int, disk: Disk) -> bool:
    """Whether the log ends with a full file: whoever fills one creates the next one first."""
    starts = {offset_of(name): size for name, size in disk.files(directory).items()}
    newest = max((start for start in starts if start is not None), default=0)
    return 0 < starts.get(newest, 0) == log_end - newest


def indexed_end(root: Path, disk: Disk) -> int:
    """Log offset after the start of the newest record in the index, by the headers of its files and by the items that
    stand after those that a header counts: a killed writer leaves it behind."""
    end, slot_count = 0, index_slot_count(root, disk)
    for path in (root / INDEX / name for name in disk.files(root / INDEX) if is_index_name(name)):
        stored = disk.read(path, size_max=INDEX_HEADER.size, cut=True) or b""
        if len(stored) < INDEX_HEADER.size:
            continue
        header = INDEX_HEADER.unpack(stored)
        end = max(end, header.end_commit_log_offset + 1)
        number, data = max(1, header.next_item), b"-"
        while data.rstrip(b"\0"):  # a page that never reached the disk is zeros
            position = items_position(slot_count) + number * ITEM.size
            data = disk.read(path, size_max=_ITEMS_READ * ITEM.size, cut=True, position=position) or b""
            items = np.frombuffer(data, ITEM.dtype, len(data) // ITEM.size)
            is_item = (items["key_hash"] >= 0) & (items["commit_log_offset"] >= end) & (items["previous_item"] >= 0)
            is_item &= items["previous_item"] < number + np.arange(len(items))
            end = max(end, int(items["commit_log_offset"][is_item].max(initial=-1)) + 1)
            number += _ITEMS_READ
    return end


def begins_of(
    log: CommitLog, queues: Iterable[UnitQueue], files: QueueSet, *, reads_whole_log: bool,
    sealed: Mapping[QueueKey, int] | None, indexed_end: int,
) -> tuple[dict[QueueKey, QueueBegin], dict[QueueKey, QueueBegin]]:  # fmt: skip
    """Where the messages of queues begin whose first unit agrees with its record; and of the others, by `live_begins`.
    Queues of which all messages expired are passed over. An opening that `reads_whole_log` doubts more first units."""
    found, doubtful = dict[QueueKey, QueueBegin](), dict[QueueKey, list[LiveUnit]]()
    sound = dict[QueueKey, list[LiveUnit]]()
    for queue in queues:
        newest, number = queue.last_unit(), queue.min_offset(log.first_offset)
        layout = BATCH_UNIT if isinstance(queue, BatchQueue) else UNIT
        if number < queue.end_offset:
            key, first = (queue.topic, queue.queue_id), LiveUnit(number, *queue.unit(number)[:2], number + 1)
            before = queue.unit(number - 1) if queue.first_offset < number else None
            if leads_to_first(first, key, before, (log.first_offset, log.end_offset), partial(_record_at, log)):
                found[key] = QueueBegin(*first[:2])
                if reads_whole_log and not files.beside_writer:
                    sound[key] = first_units(queue.directory, layout, log.first_offset, files.disk)
                continue
        if not files.beside_writer and (newest is None or newest[0] >= log.first_offset):
            doubtful[queue.topic, queue.queue_id] = first_units(queue.directory, layout, log.first_offset, files.disk)
    doubtful |= {key: sound[key] for key in may_lead_to_deleted(sound, log.files, partial(_record_at, log))}
    known = {key: sound.get(key, []) for key in found}
    return found, live_begins(
        doubtful, known, log.files, files.root, files.disk, sealed=sealed, indexed_end=indexed_end
    )


def _begins(log: CommitLog, commit_log_offset: int, size: int) -> bool:
    """Whether a record of that size begins there, damaged or not."""
    file, position = log.file_at(commit_log_offset)
    if file.size - position < HEAD.size:
        return False
    head = HEAD.unpack(file.view.data, position)
    return (head.total_size, head.commit_log_offset) == (size, commit_log_offset) and head.magic in (MAGIC_V1, MAGIC_V2)


def queues_are_intact(log: CommitLog, seal: Seal | None, dispatcher: Dispatcher) -> bool:
    """Whether the queues hold at least what the seal says; a store that RocketMQ closed has no seal to break."""
    for queue in dispatcher.queues.values():
        if queue.is_damaged or queue.is_replaced or lacks_extension(queue, log.first_offset):
            return False
    if seal is None:
        return True
    return unit_counts(dispatcher, seal.log_end_offset) == (seal.queue_count, seal.unit_count)


def unit_counts(dispatcher: Dispatcher, log_end: int) -> tuple[int, int]:
    """Queues with units below a log offset, and those units: what a seal counts."""
    counts = [count for queue in dispatcher.queues.values() if (count := queue.count_below(log_end))]
    return len(counts), sum(counts)


def sealed_start(log: CommitLog, dispatcher: Dispatcher, seal: Seal) -> int:
    """The newest record below the seal that a queue knows: queues that hold what the seal says lack nothing before."""
    newest = max((_newest_below(queue, seal.log_end_offset) for queue in dispatcher.queues.values()), default=-1)
    is_inside = log.first_offset <= newest < log.end_offset
    return newest if is_inside and is_record(log, newest) else log.first_offset


def _newest_below(queue: UnitQueue, commit_log_offset: int) -> int:
    """Log offset of the newest unit below an offset; -1 when there is none, or when it stands for no message."""
    newest = queue.last_unit()
    if newest is None or newest[0] < commit_log_offset:
        return newest[0] if newest else -1
    unit = queue.unit_before(commit_log_offset)
    return unit[0] if unit and not is_filler(*unit[1:]) else -1


def checkpointed(log: CommitLog, checkpoint: Checkpoint) -> int:
    """Log offset up to which RocketMQ says that units were durable before the crash: later ones may be torn."""
    offset = checkpoint.logics_commit_log_offset
    if log.first_offset <= offset < log.end_offset and is_record(log, offset):
        return offset
    known = min(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) - _CLOCK_MARGIN_MS
    if known > 0 and not offset:
        for number in range(len(log.files) - 1, 0, -1):
            first = log.first_offset + number * log.file_size
            if is_record(log, first) and log.message(first).store_timestamp <= known:
                return first
    return log.first_offset
