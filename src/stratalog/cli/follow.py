"""Following a topic in a store that another process writes."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stratalog.cli.place import open_local
from stratalog.layout.message import decode_record
from stratalog.layout.names import COMMIT_LOG, CONSUME_QUEUE, offset_name
from stratalog.layout.queue import UNIT, is_filler
from stratalog.store.message import Message, message_at

PAUSE_S = 0.1


def follow(
    root: Path, topic: str, queue_id: int | None, *, last: int, given: Sequence[str] | None = None
) -> Iterator[Message]:
    """The last messages of a topic's queues, then new ones, without end. Queues that come later are taken in.

    Reads units and records as they are on disk, which the writer extends: nothing is mapped, nothing is locked.
    """
    queues: dict[int, _Follower] = {}
    with open_local(root, given=given) as store:
        sizes = store.log.file_size, store.settings.consume_queue_file_size
        for name, number in store.queues():
            if name == topic and queue_id in (None, number):
                queue = store.queue(topic, number)
                queues[number] = _Follower(root, topic, number, queue.max_offset, *sizes)
                yield from queue.read(max(queue.min_offset, queue.max_offset - last))
    while True:
        for number in _queue_ids(root, topic):
            if queue_id in (None, number):
                if number not in queues:
                    queues[number] = _Follower(root, topic, number, 0, *sizes)
                yield from queues[number].new_messages()
        time.sleep(PAUSE_S)


def _queue_ids(root: Path, topic: str) -> list[int]:
    directory = root / CONSUME_QUEUE / topic
    return sorted(int(path.name) for path in directory.glob("*") if path.name.isdigit())


class _Follower:
    """One queue: the offset that comes next, and the files it will be found in."""

    def __init__(
        self, root: Path, topic: str, queue_id: int, next_offset: int, log_file_size: int, queue_file_size: int
    ) -> None:
        self._log = root / COMMIT_LOG
        self._units = root / CONSUME_QUEUE / topic / str(queue_id)
        self._next = next_offset
        self._log_file_size = log_file_size
        self._queue_file_size = queue_file_size

    def new_messages(self) -> Iterator[Message]:
        """What was put since the last call."""
        while (unit := self._unit()) is not None:
            commit_log_offset, size, tags_code = unit
            self._next += 1
            if not is_filler(size, tags_code):
                position = commit_log_offset % self._log_file_size
                data = _read(self._log / offset_name(commit_log_offset - position), position, size)
                decode_record(data)  # raises CorruptData for what is no whole record
                yield message_at(data, 0)

    def _unit(self) -> tuple[int, int, int] | None:
        position = self._next * UNIT.size % self._queue_file_size
        data = _read(self._units / offset_name(self._next * UNIT.size - position), position, UNIT.size)
        if len(data) < UNIT.size:
            return None
        unit: tuple[int, int, int] = UNIT.unpack(data)
        return unit if unit[1] > 0 else None


def _read(path: Path, position: int, size: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as stream:
            stream.seek(position)
            return stream.read(size) or b""
    except FileNotFoundError:
        return b""
