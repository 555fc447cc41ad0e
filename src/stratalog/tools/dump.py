"""Showing any file of a store, or all of them: which reader a file needs, and which items somebody asked for."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stratalog.errors import ConfigurationError, NotAStore
from stratalog.layout import checkpoint, names, timer
from stratalog.layout.batch import batch_size_of
from stratalog.layout.light import LIGHT_QUEUE_ID, is_light, light_offset
from stratalog.layout.message import FIXED_SIZE_V1, HEAD, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from stratalog.layout.names import is_index_name, offset_of
from stratalog.layout.queue import FILLER_SIZE, UNIT
from stratalog.store.message import Message
from stratalog.store.os_errors import refusing
from stratalog.tools.dump_files import (
    Item,
    dump_batch_queue,
    dump_checkpoint,
    dump_commit_log,
    dump_config,
    dump_extension,
    dump_index,
    dump_queue,
    dump_text,
    dump_timer_check,
    dump_timer_log,
    dump_timer_wheel,
)
from stratalog.tools.verify_files import BACKUP, JSON_SUFFIX

READERS: dict[str, Callable[[Path], Iterator[Item]]] = {
    names.COMMIT_LOG: dump_commit_log,
    names.CONSUME_QUEUE: dump_queue,
    names.BATCH_CONSUME_QUEUE: dump_batch_queue,
    names.CONSUME_QUEUE_EXT: dump_extension,
    names.INDEX: dump_index,
    names.CHECKPOINT: dump_checkpoint,
    "timerlog": dump_timer_log,
    "timerwheel": dump_timer_wheel,
    "timercheck": dump_timer_check,
    names.CONFIG: dump_config,
    "text": dump_text,
}
"""Reader by type of file; a type is named like the directory or file it is in."""
_METRICS = ("timermetrics", "transactionMetrics", "position-checkpoint")
_NUMBERED = (names.COMMIT_LOG, names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.CONSUME_QUEUE_EXT, "timerlog")
_RECORD_SIZE_MAX = 1 << 30
_ORDER = {name: number for number, name in enumerate(READERS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which items are wanted. A limit leaves out what does not have the property: an index item has no topic."""

    topic: str | None = None
    queue_id: int | None = None
    first_offset: int | None = None
    end_offset: int | None = None
    """Queue offsets [first_offset, end_offset)."""
    key: str | None = None
    """Index key or unique key."""
    tags: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    """Store times [begin_ms, end_ms]."""

    @property
    def is_anything(self) -> bool:
        return self == Asked()

    def wants(self, item: Item, place: tuple[str, int] | None) -> bool:
        """Whether an item is asked for; `place` is the queue that its file belongs to, if it does to one."""
        if self.is_anything:
            return True
        message = item.message
        if message is not None:
            keys = message.keys if self.key else []
            return (
                self.key in (None, message.unique_key, *keys)
                and self.tags in (None, message.tags)
                and self._wants_record(message)
                and _within(message.store_timestamp, self.begin_ms, None if self.end_ms is None else self.end_ms + 1)
            )
        if self.key is not None or self.tags is not None:
            return False
        number = item.values.get("queue_offset", item.values.get("base_offset"))
        moment = item.values.get("store_timestamp")
        return (
            ((self.topic is None and self.queue_id is None) or (place is not None and self._wants_place(*place)))
            and _within(number, self.first_offset, self.end_offset, item.values.get("batch_size", 1))
            and _within(moment, self.begin_ms, None if self.end_ms is None else self.end_ms + 1)
        )

    def _wants_record(self, message: Message) -> bool:
        """By its own queue, or by the light queue that is asked for; a batch by any of its messages."""
        topic, queue_id, number = message.topic, message.queue_id, message.queue_offset
        count, _ = batch_size_of(message.sys_flag, message.raw_properties, number)
        if self.topic is not None and topic != self.topic and is_light(self.topic):
            number = light_offset(topic, message.raw_properties, self.topic)
            topic, queue_id, count = (self.topic, LIGHT_QUEUE_ID, 1) if number >= 0 else (topic, queue_id, count)
        return self._wants_place(topic, queue_id) and _within(number, self.first_offset, self.end_offset, count)

    def _wants_place(self, topic: str, queue_id: int) -> bool:
        return self.topic in (None, topic) and self.queue_id in (None, queue_id)

    def wants_file(self, place: tuple[str, int] | None) -> bool:
        """Whether a file may hold anything that is asked for; spares reading the queues of other topics."""
        return place is None or self._wants_place(*place)


def _within(value: int | None, first: int | None, end: int | None, count: int = 1) -> bool:
    """Whether any of [value, value + count) is in [first, end)."""
    if first is None and end is None:
        return True
    return value is not None and (first is None or value + count > first) and (end is None or value < end)


def dump(path: str | os.PathLike[str], *, kind: str | None = None, asked: Asked | None = None) -> Iterator[Item]:
    """What is in a file, or in every file below a directory, that is asked for.

    `kind` (of `READERS`) is the type of the file; in a directory it chooses files. Damage is an item, never an
    exception. Raises `NotAStore` when there is nothing, `ConfigurationError` for a file whose type cannot be told.
    """
    asked = asked or Asked()
    if kind is not None and kind not in READERS:
        raise ConfigurationError(f"there is no type {kind!r}; there are {', '.join(READERS)}")
    with refusing(f"{path} cannot be dumped"):
        yield from _items(Path(path), kind, asked)


def _items(path: Path, kind: str | None, asked: Asked) -> Iterator[Item]:
    if path.is_dir():
        next(path.iterdir(), None)  # raises where `walk` would pass over what it may not read
        every = [Path(folder, name) for folder, _, names_there in os.walk(path) for name in names_there]
        files = [(found, file) for file in every if (found := kind_by_path(file)) and file.is_file()]
        files = [(found, file) for found, file in files if kind in (None, found)]
        files.sort(key=lambda entry: (_ORDER[entry[0]], entry[1].parts))
    elif path.exists():
        files = [(kind or kind_of(path), path)]
    else:
        raise NotAStore(f"{path} is not there; check the path")
    if not files:
        raise NotAStore(f"{path} holds no file of a message store{f' of type {kind}' if kind else ''}; check the path")
    for found, file in files:
        place = queue_of(file)
        if asked.wants_file(place):
            try:
                yield from (item for item in _read(found, file) if asked.wants(item, place))
            except FileNotFoundError:  # a writer deletes old files
                if file == path or file.exists():
                    raise


def _read(kind: str, path: Path) -> Iterator[Item]:
    if not path.stat().st_size:
        yield Item("empty", path, 0, 0)
        return
    yield from READERS[kind](path)


def queue_of(path: Path) -> tuple[str, int] | None:
    """Topic and queue id that a queue's file lies under."""
    parts = path.absolute().parts
    for tree in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.CONSUME_QUEUE_EXT):
        if len(parts) > 3 and parts[-4] == tree and (queue_id := names.queue_id_of(parts[-2])) is not None:
            return parts[-3], queue_id
    return None


def kind_by_path(path: Path) -> str | None:
    """Type of a file by its name and the directories above it; None for one that is no store's."""
    name, above = path.name, path.absolute().parts[:-1]
    if offset_of(name) is not None:
        return next((tree for tree in reversed(above[-3:]) if tree in _NUMBERED), None)
    if is_index_name(name):
        return names.INDEX
    if name in (names.CHECKPOINT, "timercheck"):
        return name
    if name.startswith("timerwheel"):
        return "timerwheel"
    if name.removesuffix(BACKUP).endswith(JSON_SUFFIX) or name.removesuffix(BACKUP) in _METRICS:
        return names.CONFIG
    if name in (names.ABORT, names.LOCK, f"{names.ABORT}{BACKUP}"):
        return "text"
    return None


def kind_of(path: Path) -> str:
    """Type of a file by its path, else by its content. Raises `ConfigurationError` when neither tells it, or when they
    contradict each other."""
    by_path, by_content = kind_by_path(path), _kind_by_content(path)
    if by_path is None and by_content is None:
        raise ConfigurationError(f"{path}: neither path nor content tells what it is; give --type {'|'.join(READERS)}")
    if by_path and by_content and by_path != by_content and by_content == names.COMMIT_LOG:
        raise ConfigurationError(
            f"{path} lies where a file of type {by_path} should be but begins with a message record: give --type "
            "to say which it is"
        )
    return by_path or by_content or "text"


def _kind_by_content(path: Path) -> str | None:
    """What a file's first bytes and its size say."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        head = stream.read(max(HEAD.size, 4096))
    if len(head) >= HEAD.size and HEAD.unpack(head).magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return names.COMMIT_LOG
    if head[:1].strip() in (b"{", b"["):
        return names.CONFIG
    if size >= timer.LOG_UNIT.size and timer.LOG_UNIT.unpack(head).size == timer.LOG_UNIT.size:
        return "timerlog"
    if size == checkpoint.FILE_SIZE:
        return names.CHECKPOINT
    if size == timer.WHEEL_SLOT_COUNT * timer.WHEEL_SLOT.size:
        return "timerwheel"
    if size >= UNIT.size and size % UNIT.size == 0:
        unit = UNIT.unpack(head)
        if unit.commit_log_offset >= 0 and (FIXED_SIZE_V1 <= unit.size <= _RECORD_SIZE_MAX or unit.size == FILLER_SIZE):
            return names.CONSUME_QUEUE
    return None
