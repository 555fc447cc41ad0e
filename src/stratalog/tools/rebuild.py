"""Building queues, index and checkpoint again from the log, beside the old ones, and swapping them in.

A store that has this log and nothing else is opened in a directory inside the old one, closed, and what it then holds
takes the old files' places: the bytes are those that dispatch writes, because dispatch writes them. The log is mapped
privately, so no byte of it changes. Each directory is exchanged in one step; a kill leaves the old or the new one, and
what was built beside is removed by the next call.
"""

import ctypes
import errno
import os
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, NotAStore
from stratalog.layout import names
from stratalog.layout.index import ITEM_CAPACITY, SLOT_COUNT, file_size
from stratalog.layout.names import is_index_name, offset_of
from stratalog.layout.queue import UNIT
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.disk import UNFINISHED, ClockNs, Disk, MappedFile, PrivateDisk
from stratalog.store.opening import open_store
from stratalog.store.recovery import Damage
from stratalog.store.rederive import Progress
from stratalog.tools.survey import sized
from stratalog.tools.verify_files import QUEUE_TREES, UNDER_REPAIR, queue_directories

Part = Literal["queues", "index", "checkpoint"]
PARTS: tuple[Part, ...] = ("queues", "index", "checkpoint")
STAGING = f"stratalog-rebuild{UNFINISHED}"
"""Directory in the store, where the new files are built; RocketMQ passes it over."""
QUARANTINE = "stratalog-quarantine"
"""Directory in the store for what was taken out of RocketMQ's."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild made, and the ranges of the log that it stepped over."""

    parts: tuple[Part, ...]
    record_count: int
    log_end: int
    queue_count: int
    unit_count: int
    index_item_count: int
    damages: tuple[Damage, ...]


class _BesideDisk(Disk):
    """A disk that writes for real, but for one directory, the log, whose changes stay in memory."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._private, self._real = PrivateDisk(), Disk()

    def _of(self, directory: Path) -> Disk:
        return self._private if directory == self._log else self._real

    def map(self, path: Path) -> MappedFile:
        return self._of(path.parent).map(path)

    def files(self, directory: Path) -> dict[str, int]:
        return self._of(directory).files(directory)

    def remove(self, path: Path) -> None:
        self._of(path.parent).remove(path)

    def exists(self, path: Path) -> bool:
        return self._of(path.parent).exists(path)

    def clear_unfinished(self, directory: Path) -> None:
        self._of(directory).clear_unfinished(directory)


def rebuild(
    root: Path,
    *,
    settings: StoreSettings | None = None,
    parts: Collection[Part] = PARTS,
    clock_ns: ClockNs = time.time_ns,
    progress: Callable[[Progress], None] | None = None,
) -> Rebuilt:
    """Build the derived files of a closed store again. Damaged ranges of the log are stepped over.

    `progress` is called as by `stratalog.open`.

    A queue whose messages have all gone by retention keeps its old files: they alone know its next offset. Raises
    `StoreLocked` while a broker has the store open, `CorruptData` where the log has to be repaired first, `DiskFull`
    (the old files are still there then), `NotAStore`.
    """
    if not (root / names.COMMIT_LOG).is_dir():
        raise NotAStore(f"{root} holds no message store (no {names.COMMIT_LOG}/ in it); check the path")
    release = Disk().lock(root / names.LOCK)
    try:
        return rebuild_locked(root, settings or StoreSettings(), clock_ns, parts, progress)
    finally:
        release()


def rebuild_locked(
    root: Path, settings: StoreSettings, clock_ns: ClockNs, parts: Collection[Part] = PARTS,
    progress: Callable[[Progress], None] | None = None,
) -> Rebuilt:  # fmt: skip
    """`rebuild` for a caller who holds the store's lock."""
    disk, staging = Disk(), root / STAGING
    settings = _settings(settings, root)
    if "index" not in parts and "checkpoint" not in parts:
        settings = replace(settings, message_index_enable=False)
    shutil.rmtree(staging, ignore_errors=True)
    try:
        _prepare(root, staging)
        rebuilt = _build(staging, settings, clock_ns, progress)
        carried = _carry_over(root, staging, disk)
        rebuilt = replace(rebuilt, parts=tuple(part for part in PARTS if part in parts))
        _seal_carried(staging, carried, disk, settings)
        _swap(root, staging, rebuilt.parts, disk)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return rebuilt


def _settings(settings: StoreSettings, root: Path) -> StoreSettings:
    """Settings with the sizes that the old files had; of a damaged index, with RocketMQ's ratio of slots to items."""
    disk = PrivateDisk()
    found = sized(settings, root, disk)
    if found.max_hash_slot_num is None or found.max_index_num is None:
        ratio = ITEM_CAPACITY // SLOT_COUNT
        for name, size in disk.files(root / names.INDEX).items():
            slots = (size - file_size(0, 0)) // (file_size(1, ratio) - file_size(0, 0))
            if is_index_name(name) and slots > 0 and file_size(slots, ratio * slots) == size:
                return replace(found, max_hash_slot_num=slots, max_index_num=ratio * slots)
            if is_index_name(name) and size:
                raise ConfigurationError(
                    f"{root / names.INDEX / name}: its {size:,} bytes do not tell how many slots and items it has; "
                    "give max_hash_slot_num and max_index_num as the broker has them"
                )
    return found


def _prepare(root: Path, staging: Path) -> None:
    """A store with the same log, configuration and kinds of queues."""
    foreign = [name for name in Disk().files(root / names.CONSUME_QUEUE) if name == "CURRENT"]
    if foreign:
        raise ConfigurationError(f"{root / names.CONSUME_QUEUE} is a RocksDB: those queues are not built by stratalog")
    staging.mkdir()
    (staging / names.COMMIT_LOG).symlink_to((root / names.COMMIT_LOG).absolute(), target_is_directory=True)
    if (root / names.CONFIG).is_dir():
        shutil.copytree(root / names.CONFIG, staging / names.CONFIG)
    for tree in (names.BATCH_CONSUME_QUEUE, names.CONSUME_QUEUE_EXT):
        for topic in Disk().directories(root / tree):
            (staging / tree / topic).mkdir(parents=True)


def _build(
    staging: Path, settings: StoreSettings, clock_ns: ClockNs, progress: Callable[[Progress], None] | None
) -> Rebuilt:  # fmt: skip
    disk = _BesideDisk(staging / names.COMMIT_LOG)
    with open_store(staging, settings=settings, disk=disk, clock_ns=clock_ns, progress=progress) as store:
        recovery, log_end = store.recovery, store.log.end_offset
    seal = Checkpoint.load(staging, disk).seal or Seal(log_end, 0, 0, 0)
    return Rebuilt(
        (), recovery.record_count, log_end, seal.queue_count, seal.unit_count, seal.index_item_count,
        tuple(recovery.quarantined),
    )  # fmt: skip


def _carry_over(root: Path, staging: Path, disk: Disk) -> list[Path]:
    """Link the files of queues that the log has no message of; returns the simple queues among them."""
    carried = []
    for tree in QUEUE_TREES:
        for topic, queue_id, old in queue_directories(root, tree, disk):
            new = staging / tree / topic / str(queue_id)
            built = staging / names.CONSUME_QUEUE / topic / str(queue_id)
            if new.exists() or (tree == names.CONSUME_QUEUE_EXT and built.exists()):
                continue
            new.mkdir(parents=True)
            for name in disk.files(old):
                os.link(old / name, new / name)
            if tree == names.CONSUME_QUEUE:
                carried.append(new)
    return carried


def _seal_carried(staging: Path, carried: list[Path], disk: Disk, settings: StoreSettings) -> None:
    """Count the carried queues into the seal, which otherwise would not fit."""
    counts = [count for directory in carried if (count := _unit_count(directory, disk))]
    checkpoint = Checkpoint.load(staging, disk)
    if counts and checkpoint.seal:
        seal = checkpoint.seal
        seal = replace(seal, queue_count=seal.queue_count + len(counts), unit_count=seal.unit_count + sum(counts))
        replace(checkpoint, seal=seal).store(staging, disk, compatibility=settings.compatibility)


def _unit_count(directory: Path, disk: Disk) -> int:
    first, end = queue_span(directory, disk)
    return end - first


def queue_span(directory: Path, disk: Disk) -> tuple[int, int]:
    """Queue offsets of the first unit in a queue's files and behind the last one written, without loading the queue."""
    files = [
        (start, name, size) for name, size in disk.files(directory).items() if (start := offset_of(name)) is not None
    ]
    for start, name, size in reversed(files):
        file = disk.open(directory / name)
        try:
            low, high = 0, size // UNIT.size
            while low < high:
                middle = (low + high) // 2
                if UNIT.unpack(file.read(middle * UNIT.size, UNIT.size)).size > 0:
                    low = middle + 1
                else:
                    high = middle
        finally:
            file.close()
        if low or start == files[0][0]:
            return files[0][0] // UNIT.size, start // UNIT.size + low
    return 0, 0


def _swap(root: Path, staging: Path, parts: Collection[Part], disk: Disk) -> None:
    """Exchange old and new. While this goes on the store counts as not closed properly: whoever opens it after a kill
    looks at everything."""
    was_clean = not (root / names.ABORT).exists()
    if was_clean:
        disk.replace(root / names.ABORT, UNDER_REPAIR)
    trees = (QUEUE_TREES if "queues" in parts else ()) + ((names.INDEX,) if "index" in parts else ())
    for name in (*trees, *((names.CHECKPOINT,) if "checkpoint" in parts else ())):
        old, new = root / name, staging / name
        if old.exists() and new.exists():
            exchange(old, new)
        elif new.exists():
            new.rename(old)
        elif old.exists():
            old.rename(new)
        disk.sync_directory(root)
        if new.is_dir():
            _keep_foreign(root, new, disk)
    if was_clean:
        disk.remove(root / names.ABORT)


def _keep_foreign(root: Path, old: Path, disk: Disk) -> None:
    """Keep files of the old directory that are none of a store's: they are not ours to remove."""
    foreign = [name for name in disk.files(old) if offset_of(name) is None and not is_index_name(name)]
    for name in foreign:
        disk.make_directory(root / QUARANTINE)
        (old / name).rename(root / QUARANTINE / name)


def exchange(one: Path, other: Path) -> None:
    """Let two files or directories of one file system change places, in one step where the file system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        if libc.renameat2(*arguments) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(code, os.strerror(code), str(one))
    aside = other.with_name(other.name + UNFINISHED)
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
