"""The queues as the last clean stop left them, in one small file, so that opening looks into none of them.

What stands in it is what `ConsumeQueue.load` would find. It is trusted only as long as nothing else can have changed a
queue since:

- nobody has taken the store's lock since (taking it writes the lock file; RocketMQ does that too);
- `consumequeue/`, every topic's and every queue's directory, and every file in them have the inode, size and change
  time they had. Unlike the modification time, no program can set the change time back, and a copy has its own;
- the log begins, and the checkpoint's seal ends, where they did, and the log's newest file is as it was.

A queue for which that does not hold is looked at; when a directory above it changed, all are. The clock of a file
system ticks every few milliseconds: what changed shortly before the snapshot may have changed again in the same tick,
and is looked at too.
"""

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from stratalog.errors import CorruptData, command
from stratalog.layout import names
from stratalog.layout.light import light_offset
from stratalog.layout.message import BLANK, crc_of
from stratalog.layout.queue import UNIT
from stratalog.layout.record import OFFSETS_END
from stratalog.store.batch_queue import BatchQueue
from stratalog.store.checkpoint import Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.disk import UNFINISHED, Disk, Stamp, queue_directories
from stratalog.store.dispatch import Dispatcher, LeftOut
from stratalog.store.extension import ExtendedQueue
from stratalog.store.log_scan import Damage, is_finished, is_record
from stratalog.store.queue_begin import QueueBegin, QueueKey
from stratalog.store.queue_set import UnitQueue

TICK_NS = 20_000_000
"""Longest tick of a file system's clock (a jiffy), and as much again."""
_CRC_SIZE = 9
_NO_STAMP: Stamp = (0, 0, 0)
_Done = TypeVar("_Done")


_QueueId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Offset = Annotated[int, msgspec.Meta(ge=0, lt=OFFSETS_END)]
_UnitOffset = Annotated[int, msgspec.Meta(ge=0, lt=OFFSETS_END // UNIT.size)]


class _Queue(msgspec.Struct, array_like=True, frozen=True):
    queue_id: _QueueId
    first_start: _Offset
    end_offset: _Offset
    newest: tuple[int, int, int]
    directory: Stamp
    files: list[Stamp]


class _Topic(msgspec.Struct, array_like=True, frozen=True):
    name: str
    directory: Stamp
    queues: list[_Queue]


class QueueEnd(msgspec.Struct, array_like=True, frozen=True):
    """What an opening that was killed knew of a queue whose units it was about to cut."""

    topic: str
    queue_id: _QueueId
    given_end: _UnitOffset
    """The queue offset after the newest that was given to a message of the log."""
    known_end: _UnitOffset
    """The same of a message that the queue knew, though the log ends before it."""
    begin: tuple[_UnitOffset, _Offset] | None = None
    """Queue offset and log offset of its first message, if its first unit agreed with it."""


class _OtherFile(msgspec.Struct, array_like=True, frozen=True):
    topic: str
    queue_id: _QueueId
    is_batch: bool
    start: _Offset
    stamp: Stamp


class _Snapshot(msgspec.Struct, frozen=True):
    lock: Stamp
    log_file: Stamp
    log_first_offset: _Offset
    log_end_offset: _Offset
    queue_file_size: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    directory: Stamp
    topics: list[_Topic]
    damages: list[tuple[_Offset, _Offset, str]] = []
    ends: list[QueueEnd] = []
    left_out: list[LeftOut] = []
    others: list[tuple[str, _QueueId, _UnitOffset]] = []
    """Topic, queue id and end of the queues that are in no `_Topic`."""
    newest: list[tuple[str, _QueueId, _Offset]] = []
    """Topic, queue id and log offset of the newest unit of those queues."""
    begins: list[tuple[str, _QueueId, _UnitOffset, _Offset]] = []
    """Topic, queue id, and queue offset and log offset of the begin of the queues whose units do not tell it."""
    files: list[_OtherFile] = []
    """Of the queues that are in no `_Topic`."""


def store_snapshot(
    root: Path, disk: Disk, dispatcher: Dispatcher, log: CommitLog, seal: Seal, damages: Iterable[Damage],
    left_out: Sequence[LeftOut],
) -> None:  # fmt: skip
    """Note the queues, which are durable and take no more units. Losing it costs time only: errors are passed over."""
    everything = [queue for queue in dispatcher.queues.values() if queue.end_offset]
    queues = [queue for queue in everything if isinstance(queue, ConsumeQueue)]
    if any(isinstance(queue, ExtendedQueue) or not queue.unit_count for queue in queues):
        queues = []
    ends = {(queue.topic, queue.queue_id): queue.end_offset for queue in everything}
    newest = {(queue.topic, queue.queue_id): unit[0] for queue in everything if (unit := queue.last_unit())}
    begins = dispatcher.doubtful_begins
    with contextlib.suppress(OSError):
        lock = disk.mark(root / names.LOCK, names.OWN_MARK)
        others = [queue for queue in everything if not (queues and isinstance(queue, ConsumeQueue))]
        files = [file for queue in others for file in _other_files(queue, disk)]
        if not queues:
            log_range = log.first_offset, seal.log_end_offset
            note_damages(root, disk, damages, left_out, *log_range, ends, begins, lock=lock, newest=newest, files=files)
            return
        for key in [(queue.topic, queue.queue_id) for queue in queues]:
            del ends[key]
            newest.pop(key, None)
        topics: dict[str, list[_Queue]] = {}
        for queue in queues:
            topics.setdefault(queue.topic, []).append(_noted(root, disk, queue))
        above = root / names.CONSUME_QUEUE
        snapshot = _Snapshot(
            lock,
            _newest_file(log, disk),
            log.first_offset,
            seal.log_end_offset,
            queues[0].file_size,
            disk.stamp(str(above)),
            [_Topic(name, disk.stamp(f"{above}/{name}"), noted) for name, noted in topics.items()],
            [(damage.begin, damage.end, damage.reason) for damage in damages],
            left_out=list(left_out),
            others=[(*key, end) for key, end in ends.items()],
            newest=[(*key, offset) for key, offset in newest.items()],
            begins=[(*key, *begin) for key, begin in begins.items()],
            files=files,
        )
        _store(snapshot, root, disk)


def note_damages(
    root: Path, disk: Disk, damages: Iterable[Damage], left_out: Sequence[LeftOut], log_begin: int, log_end: int,
    ends: Mapping[QueueKey, int], begins: Mapping[QueueKey, QueueBegin], *, lock: Stamp = _NO_STAMP,
    newest: Mapping[QueueKey, int] = {}, files: Sequence[_OtherFile] = (),
) -> None:  # fmt: skip
    """A snapshot of nothing but the log's damage, and the ends and begins of queues; without any there is none."""
    noted = [(damage.begin, damage.end, damage.reason) for damage in damages]
    others = [(*key, end) for key, end in ends.items()]
    kept = [(*key, *begin) for key, begin in begins.items()]
    if noted or left_out or others or kept:
        snapshot = _Snapshot(
            lock, _NO_STAMP, log_begin, log_end, 1, _NO_STAMP, [], damages=noted, left_out=list(left_out),
            others=others, begins=kept, newest=[(*key, offset) for key, offset in newest.items()],
            files=[*files],
        )  # fmt: skip
        _store(snapshot, root, disk)
    else:
        disk.remove(root / names.SNAPSHOT)


def note_ends(
    root: Path, disk: Disk, ends: Iterable[QueueEnd], log_begin: int, begins: Mapping[QueueKey, QueueBegin] = {}
) -> None:  # fmt: skip
    """Note where queues begin and end beside what the snapshot says, before units that alone tell it are removed: an
    opening that is killed after that is not the last to know. `begins` are those that units do not tell afterwards."""
    snapshot = _read(root, disk) or _Snapshot(_NO_STAMP, _NO_STAMP, log_begin, log_begin, 1, _NO_STAMP, [])
    kept = [(*key, *begin) for key, begin in begins.items()]
    if (noted := list(ends)) != snapshot.ends or (kept and kept != snapshot.begins):
        begin = snapshot.log_first_offset if noted else min(log_begin, snapshot.log_first_offset)  # none: it is opened
        kept = kept or snapshot.begins
        _store(msgspec.structs.replace(snapshot, ends=noted, begins=kept, log_first_offset=begin), root, disk)


def keep_ends(root: Path, disk: Disk, begins: Mapping[QueueKey, QueueBegin]) -> None:
    """Remove the snapshot, of a store that is about to be repaired, but for the ends and begins of queues in it;
    `begins` are those that the repair moves."""
    snapshot, ends, sealed = _read(root, disk), noted_ends(root, disk), sealed_ends(root, disk)
    kept = {**sealed_begins(root, disk), **begins}
    log = (snapshot.log_first_offset, snapshot.log_end_offset) if snapshot else (0, 0)
    note_damages(root, disk, (), (), *log, sealed, kept)
    if ends:
        moved = [msgspec.structs.replace(one, begin=begins.get((one.topic, one.queue_id), one.begin)) for one in ends]
        note_ends(root, disk, moved, log[0])


def forget_ends(root: Path, disk: Disk) -> None:
    """Take from the snapshot what RocketMQ may have changed since."""
    snapshot = _read(root, disk)
    if snapshot and (snapshot.ends or snapshot.topics or snapshot.others or snapshot.begins):
        kept = msgspec.structs.replace(snapshot, lock=_NO_STAMP, topics=[], ends=[], others=[], newest=[], begins=[])
        _store(kept, root, disk)


def noted_ends(root: Path, disk: Disk) -> list[QueueEnd]:
    """What an opening noted that was killed."""
    snapshot = _read(root, disk)
    return snapshot.ends if snapshot and is_marked(root, disk) else []


def noted_begins(root: Path, disk: Disk) -> dict[QueueKey, QueueBegin]:
    """Where queues begin by what an opening noted that was killed, and by the snapshot, if the store `is_ours`."""
    noted = {(one.topic, one.queue_id): QueueBegin(*one.begin) for one in noted_ends(root, disk) if one.begin}
    return sealed_begins(root, disk) | noted


def sealed_begins(root: Path, disk: Disk) -> dict[QueueKey, QueueBegin]:
    """What `sealed_ends` is for ends: where the queues began whose units do not tell it."""
    snapshot = _read(root, disk)
    return _begins(snapshot, root, disk) if snapshot else {}


def _begins(snapshot: _Snapshot, root: Path, disk: Disk) -> dict[QueueKey, QueueBegin]:
    """Not those for a log without its first files that were restored since: queues may begin earlier now."""
    is_valid = snapshot.begins and is_ours(root, disk) and _is_of_log(snapshot, root, disk)
    starts = (names.offset_of(name) for name in disk.files(root / names.COMMIT_LOG)) if is_valid else ()
    is_longer = any(start is not None and start < snapshot.log_first_offset for start in starts)
    return {
        (topic, queue_id): QueueBegin(*begin)
        for topic, queue_id, *begin in snapshot.begins if is_valid and not (begin[0] and is_longer)
    }  # fmt: skip


def is_marked(root: Path, disk: Disk) -> bool:
    """Whether we were the last to open the store, and did not close it. RocketMQ writes the abort file anew."""
    return _has_mark(root / names.ABORT, disk)


def is_ours(root: Path, disk: Disk) -> bool:
    """Whether only we can have put messages or deleted queues since our last clean stop."""
    return is_marked(root, disk) or (not disk.exists(root / names.ABORT) and _has_mark(root / names.LOCK, disk))


def make_ours(root: Path, disk: Disk) -> None:
    """Let what is in the snapshot count, until RocketMQ has the store."""
    disk.mark(root / names.LOCK, names.OWN_MARK)
    if disk.exists(root / names.ABORT):
        disk.replace(root / names.ABORT, names.OWN_MARK)


def _has_mark(path: Path, disk: Disk) -> bool:
    return not path.is_dir() and disk.read(path, size_max=len(names.OWN_MARK), cut=True) == names.OWN_MARK


def sealed_ends(root: Path, disk: Disk) -> dict[tuple[str, int], int]:
    """Where queues ended at our last clean stop, if the store `is_ours`. Where a queue's files were lost, and its
    messages are gone from the log, nothing else tells which offsets it gave."""
    snapshot = _read(root, disk)
    return _ends(snapshot) if snapshot and is_ours(root, disk) and _is_of_log(snapshot, root, disk) else {}


def told_longer(sealed: Mapping[QueueKey, int], ends: Mapping[QueueKey, int]) -> str:
    """What to say of queues that end later than at our last clean stop, after which nothing was put; else empty."""
    longer = {key: end for key, end in ends.items() if end > sealed.get(key, end)}
    if not longer:
        return ""
    (topic, queue_id), end = next(iter(longer.items()))
    return (
        f"queues that end later than at the last clean stop: {len(longer):,}, the first {topic}/{queue_id} at offset "
        f"{end:,} instead of {sealed[topic, queue_id]:,}. Units of theirs were damaged; or messages of "
        "their own were, and they serve those of a deleted topic or of another queue"
    )


def _is_of_log(snapshot: _Snapshot, root: Path, disk: Disk) -> bool:
    """Whether the log ends where it did at that clean stop or before, or we put more."""
    if is_marked(root, disk):
        return True
    directory, end = root / names.COMMIT_LOG, snapshot.log_end_offset
    starts = (names.offset_of(name) for name in disk.files(directory))
    start = max((start for start in starts if start is not None and start <= end), default=end + 1)
    if start > end:
        return True
    file = disk.open(directory / names.offset_name(start))
    try:
        return not any(file.read(end - start, BLANK.size))
    finally:
        file.close()


def _ends(snapshot: _Snapshot) -> dict[tuple[str, int], int]:
    ends = {(topic, queue_id): end for topic, queue_id, end in snapshot.others}
    return ends | {
        (topic.name, queue.queue_id): queue.end_offset for topic in snapshot.topics for queue in topic.queues
    }


def _lost_ends(snapshot: _Snapshot, dispatcher: Dispatcher) -> list[QueueEnd]:
    return [
        QueueEnd(*key, end, end) for key, end in _ends(snapshot).items()
        if (queue := dispatcher.queues.get(key)) is None or queue.end_offset < end
    ]  # fmt: skip


def _noted_begins(snapshot: _Snapshot, root: Path, disk: Disk) -> list[QueueEnd]:
    return [QueueEnd(*key, 0, 0, begin) for key, begin in _begins(snapshot, root, disk).items()]


def _store(snapshot: _Snapshot, root: Path, disk: Disk) -> None:
    text = msgspec.json.encode(snapshot)
    disk.replace(root / names.SNAPSHOT, b"%08x\n" % crc_of(text) + text)


def _noted(root: Path, disk: Disk, queue: ConsumeQueue) -> _Queue:
    directory = _directory(root, queue.topic, queue.queue_id)
    files = [disk.stamp(f"{directory}/{names.offset_name(start)}") for start in queue.starts]
    return _Queue(queue.queue_id, queue.starts[0], queue.end_offset, queue.newest(), disk.stamp(directory), files)


def _other_files(queue: UnitQueue, disk: Disk) -> Iterator[_OtherFile]:
    is_batch = isinstance(queue, BatchQueue)
    for name in disk.files(queue.directory):
        if (start := names.offset_of(name)) is not None:
            stamp = disk.stamp(f"{queue.directory}/{name}")
            yield _OtherFile(queue.topic, queue.queue_id, is_batch, start, stamp)


def _directory(root: Path, topic: str, queue_id: int, tree: str = names.CONSUME_QUEUE) -> str:
    return f"{root}/{tree}/{topic}/{queue_id}"


def load_queues(
    root: Path, disk: Disk, dispatcher: Dispatcher, log: CommitLog, seal: Seal | None, *, lock: Stamp | None,
    is_known: bool = False,
) -> tuple[bool, list[Damage], list[QueueEnd]]:  # fmt: skip
    """Let the dispatcher know every queue on disk; returns whether the snapshot says that nobody has opened the store,
    or written to the log or a queue, since; what was damaged in the log then, and still is; and what an opening noted
    that was killed, and the ends at the clean stop: those that queues do not reach now, or all.

    `lock` is the lock file's stamp from before it was taken, None when the last stop was not clean. `is_known` says
    that the store `is_ours`.
    """
    snapshot = _read(root, disk)
    damages = _left(snapshot, log)
    begins = _noted_begins(snapshot, root, disk) if snapshot else []
    if lock and snapshot and seal and _holds(snapshot, root, disk, log, seal, lock):
        is_same = _without_collections(partial(_restore_all, snapshot, root, disk, dispatcher))
        if is_same:  # each queue of these is what the snapshot says
            snapshot = msgspec.structs.replace(snapshot, topics=[])
        _note_changed(snapshot, root, disk, dispatcher)
        _mark_replaced(snapshot, dispatcher, log)
        return is_same, damages, begins + (_lost_ends(snapshot, dispatcher) if is_known else [])
    if lock and snapshot and snapshot.lock == lock:
        _note_changed(snapshot, root, disk, dispatcher)
    knows_ends = snapshot and is_known and _is_of_log(snapshot, root, disk)  # before queue files take descriptors
    above = root / names.CONSUME_QUEUE
    there = list(queue_directories(root, names.CONSUME_QUEUE, disk))  # refused before anything is removed
    for name in filter(names.is_topic, disk.directories(above)):
        for unfinished in disk.files(above / name):
            if unfinished.endswith(UNFINISHED):
                disk.remove(above / name / unfinished)
    for topic, queue_id, _ in there:
        dispatcher.queue(topic, queue_id)
    if lock and snapshot and seal and snapshot.log_end_offset == seal.log_end_offset:
        _mark_replaced(snapshot, dispatcher, log)
    ends = []
    if snapshot and knows_ends:  # of all queues: units that are there may be cut
        ends = [QueueEnd(*key, end, end) for key, end in _ends(snapshot).items()]
    noted = snapshot.ends if snapshot and (disk.is_draft or is_marked(root, disk)) else []
    return False, damages, begins + ends + noted


def _left(snapshot: _Snapshot | None, log: CommitLog) -> list[Damage]:
    """What was damaged in the log at the last clean stop, and is no whole record now."""
    damages = [Damage(*noted) for noted in snapshot.damages] if snapshot else []
    inside = [damage for damage in damages if log.first_offset <= damage.begin < log.end_offset]
    return [damage for damage in inside if not is_finished(log, damage.begin)]


def noted_left_out(root: Path, disk: Disk, log: CommitLog) -> list[LeftOut]:
    """The records that were in no queue at the last clean stop, and are as they were."""
    snapshot = _read(root, disk)
    return [one for one in snapshot.left_out if _is_same_record(log, one)] if snapshot else []


def _is_same_record(log: CommitLog, one: LeftOut) -> bool:
    offset = one.commit_log_offset
    if not (log.first_offset <= offset < log.end_offset and is_record(log, offset)):
        return False
    message = log.message(offset)
    own = message.topic, message.queue_id, message.queue_offset
    return one[1:] == own or light_offset(message.topic, message.raw_properties, one.topic) == one.queue_offset


def has_torn(root: Path, disk: Disk) -> bool:
    """Whether damaged ranges of the log were noted at the last clean stop that a crash may have left."""
    snapshot = _read(root, disk)
    return snapshot is not None and any(Damage(*damage).may_be_torn for damage in snapshot.damages)


def noted_log(root: Path, disk: Disk) -> tuple[int, int, bool] | None:
    """Where the log began and ended at the last clean stop, and whether nobody has opened the store since."""
    snapshot = _read(root, disk)
    if snapshot is None:
        return None
    is_untouched = snapshot.lock == disk.stamp(str(root / names.LOCK))
    return snapshot.log_first_offset, snapshot.log_end_offset, is_untouched


def _without_collections(work: Callable[[], _Done]) -> _Done:
    """Ten thousand queues at once are no garbage, but each thousand objects would have all of the process looked at.
    What a signal handler raises leaves the collector on wherever it strikes: in the `finally`, too."""
    was_on = gc.isenabled()
    try:
        try:
            gc.disable()
            return work()
        finally:
            if was_on:
                gc.enable()
    except BaseException:
        if was_on:
            gc.enable()
        raise


def has_whole_snapshot(root: Path, disk: Disk) -> bool:
    """Whether the snapshot's bytes are those that were written, if there is one."""
    try:
        stored = disk.read(root / names.SNAPSHOT)
    except CorruptData:
        return False
    return stored is None or _is_whole(stored)


def _is_whole(stored: bytes) -> bool:
    return stored[:_CRC_SIZE] == b"%08x\n" % crc_of(stored[_CRC_SIZE:])


def _read(root: Path, disk: Disk) -> _Snapshot | None:
    try:
        stored = disk.read(root / names.SNAPSHOT)
    except CorruptData:
        return None
    return None if stored is None else _without_collections(partial(_decoded, stored))


@lru_cache(maxsize=1)
def _decoded(stored: bytes) -> _Snapshot | None:
    """Kept until `forget_decoded`, because an opening asks for it several times."""
    if not _is_whole(stored):
        return None
    try:
        snapshot = msgspec.json.decode(stored[_CRC_SIZE:], type=_Snapshot)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # of another release
        return None
    others = [one.topic for one in snapshot.ends] + [one[0] for one in snapshot.others]
    others += [one.topic for one in snapshot.files]
    others += [one[0] for one in snapshot.begins] + [one[0] for one in snapshot.newest]
    return snapshot if all(map(_is_possible, snapshot.topics)) and all(map(names.is_topic, others)) else None


forget_decoded = _decoded.cache_clear


def _is_possible(topic: _Topic) -> bool:
    return names.is_topic(topic.name) and all(
        queue.first_start <= UNIT.size * queue.end_offset < OFFSETS_END for queue in topic.queues
    )


def _holds(snapshot: _Snapshot, root: Path, disk: Disk, log: CommitLog, seal: Seal, lock: Stamp | None) -> bool:
    """Whether directories and log are as they were, so that there are these queues and no others."""
    above = root / names.CONSUME_QUEUE
    return (
        snapshot.lock == lock
        and snapshot.log_file == _newest_file(log, disk)
        and (snapshot.log_first_offset, snapshot.log_end_offset) == (log.first_offset, seal.log_end_offset)
        and _is_same(snapshot, snapshot.directory, disk, str(above))
        and all(_is_same(snapshot, topic.directory, disk, f"{above}/{topic.name}") for topic in snapshot.topics)
    )


def _newest_file(log: CommitLog, disk: Disk) -> Stamp:
    return disk.stamp(str(log.files[-1].path)) if log.files else (0, 0, 0)


def _is_same(snapshot: _Snapshot, noted: Stamp, disk: Disk, path: str) -> bool:
    return noted[2] < snapshot.lock[2] - TICK_NS and disk.stamp(path) == noted


def _mark_replaced(snapshot: _Snapshot, dispatcher: Dispatcher, log: CommitLog) -> None:
    """Mark the queues whose units lead to expired messages alone, though the newest one that they had at the clean stop
    is in the log: their files were replaced."""
    newest = {(topic, queue_id): offset for topic, queue_id, offset in snapshot.newest}
    newest |= {(topic.name, queue.queue_id): queue.newest[0] for topic in snapshot.topics for queue in topic.queues}
    for key in [key for key, offset in newest.items() if offset >= log.first_offset]:
        if queue := dispatcher.queues.get(key):
            unit = queue.last_unit()
            queue.is_replaced = unit is not None and unit[0] < log.first_offset


def _restore_all(snapshot: _Snapshot, root: Path, disk: Disk, dispatcher: Dispatcher) -> bool:
    """Let the dispatcher know every queue; returns whether all are as they were."""
    found = [
        _restore(snapshot, root, disk, dispatcher, topic.name, queue)
        for topic in snapshot.topics
        for queue in topic.queues
    ]
    return all(found)


def _note_changed(snapshot: _Snapshot, root: Path, disk: Disk, dispatcher: Dispatcher) -> None:
    """Note the files of queues that are there, and not as they were."""
    noted = {
        f"{_directory(root, topic.name, queue.queue_id)}/{names.offset_name(start)}": stamp
        for topic in snapshot.topics
        for queue in topic.queues
        for start, stamp in zip(_starts(snapshot, queue), queue.files, strict=True)
    }
    for one in snapshot.files:
        tree = names.BATCH_CONSUME_QUEUE if one.is_batch else names.CONSUME_QUEUE
        directory = _directory(root, one.topic, one.queue_id, tree)
        noted[f"{directory}/{names.offset_name(one.start)}"] = one.stamp
    changed = [path for path, stamp in noted.items() if disk.stamp(path) not in (stamp, _NO_STAMP)]
    if changed:
        dispatcher.notes.append(
            f"queue files that were changed since the store was closed: {len(changed):,}, the first {changed[0]}. "
            f"{command('verify', root)} compares them with the log"
        )


def _starts(snapshot: _Snapshot, noted: _Queue) -> list[int]:
    size = snapshot.queue_file_size
    return [noted.first_start + number * size for number in range(len(noted.files))]


def _restore(snapshot: _Snapshot, root: Path, disk: Disk, dispatcher: Dispatcher, topic: str, noted: _Queue) -> bool:
    """Let the dispatcher know a queue; returns whether it is as it was."""
    directory, starts = _directory(root, topic, noted.queue_id), _starts(snapshot, noted)
    same = _is_same(snapshot, noted.directory, disk, directory) and all(
        _is_same(snapshot, stamp, disk, f"{directory}/{names.offset_name(start)}")
        for start, stamp in zip(starts, noted.files, strict=True)
    )
    queue = dispatcher.restored(topic, noted.queue_id) if same else dispatcher.queue(topic, noted.queue_id)
    if same and isinstance(queue, ConsumeQueue):
        queue.restore(starts, noted.end_offset, noted.newest)
    return same
