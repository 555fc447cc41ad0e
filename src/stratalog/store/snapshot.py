"""The queues as the last clean stop left them, in one small file, so that opening looks into none of them.

What stands in it is what `ConsumeQueue.load` would find. It is believed only as long as nothing else can have changed a
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
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stratalog.layout import names
from stratalog.layout.message import crc_of
from stratalog.store.checkpoint import Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.disk import UNFINISHED, Disk, Stamp
from stratalog.store.dispatch import Dispatcher
from stratalog.store.extension import ExtendedQueue

TICK_NS = 20_000_000
"""Longest tick of a file system's clock (a jiffy), and as much again."""
_CRC_SIZE = 9


class _Queue(msgspec.Struct, array_like=True, frozen=True):
    queue_id: int
    first_start: int
    end_offset: int
    newest: tuple[int, int, int]
    directory: Stamp
    files: list[Stamp]


class _Topic(msgspec.Struct, array_like=True, frozen=True):
    name: str
    directory: Stamp
    queues: list[_Queue]


class _Snapshot(msgspec.Struct, frozen=True):
    lock: Stamp
    log_file: Stamp
    log_first_offset: int
    log_end_offset: int
    queue_file_size: int
    directory: Stamp
    topics: list[_Topic]


def store_snapshot(root: Path, disk: Disk, dispatcher: Dispatcher, log: CommitLog, seal: Seal) -> None:
    """Note the queues, which are durable and take no more units. Losing it costs time only: errors are passed over."""
    queues = [queue for queue in dispatcher.queues.values() if isinstance(queue, ConsumeQueue) and queue.end_offset]
    path = root / names.SNAPSHOT
    with contextlib.suppress(OSError):
        if not queues or any(isinstance(queue, ExtendedQueue) for queue in queues):
            disk.remove(path)
            return
        topics: dict[str, list[_Queue]] = {}
        for queue in queues:
            topics.setdefault(queue.topic, []).append(_noted(root, disk, queue))
        above = root / names.CONSUME_QUEUE
        snapshot = _Snapshot(
            disk.touch(root / names.LOCK),
            _newest_file(log, disk),
            log.first_offset,
            seal.log_end_offset,
            queues[0].file_size,
            disk.stamp(str(above)),
            [_Topic(name, disk.stamp(f"{above}/{name}"), noted) for name, noted in topics.items()],
        )
        text = msgspec.json.encode(snapshot)
        disk.replace(path, b"%08x\n" % crc_of(text) + text)


def _noted(root: Path, disk: Disk, queue: ConsumeQueue) -> _Queue:
    directory = _directory(root, queue.topic, queue.queue_id)
    files = [disk.stamp(f"{directory}/{names.offset_name(start)}") for start in queue.starts]
    return _Queue(queue.queue_id, queue.starts[0], queue.end_offset, queue.newest(), disk.stamp(directory), files)


def _directory(root: Path, topic: str, queue_id: int) -> str:
    return f"{root}/{names.CONSUME_QUEUE}/{topic}/{queue_id}"


def load_queues(
    root: Path, disk: Disk, dispatcher: Dispatcher, log: CommitLog, seal: Seal | None, *, lock: Stamp | None
) -> bool:
    """Let the dispatcher know every queue on disk; returns whether the snapshot says that nobody has opened the store
    or written to the log since.

    `lock` is the lock file's stamp from before it was taken, None when the last stop was not clean.
    """
    with _without_collections():
        snapshot = _decoded(disk.read(root / names.SNAPSHOT)) if lock else None
        if snapshot and seal and _holds(snapshot, root, disk, log, seal, lock):
            for topic in snapshot.topics:
                for queue in topic.queues:
                    _restore(snapshot, root, disk, dispatcher, topic.name, queue)
            return True
    above = root / names.CONSUME_QUEUE
    for name in filter(names.is_topic, disk.directories(above)):
        for unfinished in disk.files(above / name):
            if unfinished.endswith(UNFINISHED):
                disk.remove(above / name / unfinished)
        for queue_id in map(names.queue_id_of, disk.directories(above / name)):
            if queue_id is not None:
                dispatcher.queue(name, queue_id)
    return False


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Ten thousand queues at once are no garbage, but each thousand objects would have all of the process looked at."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def is_whole(stored: bytes) -> bool:
    """Whether a snapshot's bytes are those that were written."""
    return stored[:_CRC_SIZE] == b"%08x\n" % crc_of(stored[_CRC_SIZE:])


def _decoded(stored: bytes | None) -> _Snapshot | None:
    if stored is None or not is_whole(stored):
        return None
    try:
        return msgspec.json.decode(stored[_CRC_SIZE:], type=_Snapshot)
    except msgspec.MsgspecError:  # of another release
        return None


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


def _restore(snapshot: _Snapshot, root: Path, disk: Disk, dispatcher: Dispatcher, topic: str, noted: _Queue) -> None:
    directory, size = _directory(root, topic, noted.queue_id), snapshot.queue_file_size
    starts = [noted.first_start + number * size for number in range(len(noted.files))]
    same = _is_same(snapshot, noted.directory, disk, directory) and all(
        _is_same(snapshot, stamp, disk, f"{directory}/{names.offset_name(start)}")
        for start, stamp in zip(starts, noted.files, strict=True)
    )
    if not same:
        dispatcher.queue(topic, noted.queue_id)
        return
    queue = dispatcher.restored(topic, noted.queue_id)
    if isinstance(queue, ConsumeQueue):
        queue.restore(starts, noted.end_offset, noted.newest)
