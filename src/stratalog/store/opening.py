"""Opening a store: what `stratalog.open` does before a `MessageStore` exists."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, DiskFull, NotAStore
from stratalog.layout import names
from stratalog.store.commit_log import log_file_size
from stratalog.store.disk import ClockNs, Disk, PrivateDisk
from stratalog.store.index_file import index_sizes
from stratalog.store.message_store import MessageStore
from stratalog.store.rederive import Progress


def open_store(
    path: str | os.PathLike[str],
    *,
    mode: Literal["r", "w"] = "w",
    clock_ns: ClockNs = time.time_ns,
    disk: Disk | None = None,
    settings: StoreSettings | None = None,
    progress: Callable[[Progress], None] | None = None,
    **given: Any,
) -> MessageStore:
    """Open the message store in a directory.

    `mode="w"` creates it where there is none and holds its lock; `mode="r"` never touches a byte, may stand beside a
    running broker and sees the store as it is now. `progress` is called while much of the log has to be read, some
    thirty times a gigabyte, with the step, rate and time left. Settings are those of `StoreSettings`, as keywords.
    Raises `NotAStore`, `StoreLocked`, `ConfigurationError`, `CorruptData`, `DiskFull`.
    """
    root = Path(path)
    if mode not in ("r", "w"):
        raise ConfigurationError(f"mode={mode!r}: give 'r' or 'w'")
    disk = disk or (PrivateDisk() if mode == "r" else Disk())
    settings = settings or StoreSettings.make(given)
    try:
        _check_directory(root, disk)
        settings = settings.with_sizes(
            commit_log=log_file_size(disk, root / names.COMMIT_LOG),
            consume_queue=_queue_file_size(disk, root / names.CONSUME_QUEUE),
            batch_consume_queue=_queue_file_size(disk, root / names.BATCH_CONSUME_QUEUE),
            consume_queue_ext=_queue_file_size(disk, root / names.CONSUME_QUEUE_EXT),
            index_sizes=index_sizes(disk, root / names.INDEX),
        )
        store = MessageStore(root, settings, disk, clock_ns)
        store.open(progress)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(f"{root} cannot be opened: no room; free space there, or open with mode='r'") from error
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise NotAStore(
                f"{root} cannot be opened: too many files are open. Close some, or allow the process more (ulimit -n); "
                "a store takes up to 200, nothing was changed"
            ) from error
        raise NotAStore(f"{root} cannot be opened: {error}; check the path and its permissions") from error
    return store


def _check_directory(root: Path, disk: Disk) -> None:
    if root.exists() and not root.is_dir():
        raise NotAStore(f"{root} is a file: give the directory that holds (or shall hold) commitlog/")
    if (root / names.COMMIT_LOG).is_dir() or (root / names.CONSUME_QUEUE).is_dir():
        return
    content = disk.files(root).keys() | set(disk.directories(root))
    if disk.read_only:
        raise NotAStore(f"{root} holds no message store (no {names.COMMIT_LOG}/ in it); check the path")
    if content - {names.LOCK, names.ABORT, "abort.tmp", names.CHECKPOINT, names.CONFIG, names.SNAPSHOT}:
        raise NotAStore(f"{root} holds other files and no {names.COMMIT_LOG}/; give an empty or new directory")


def _queue_file_size(disk: Disk, directory: Path) -> int | None:
    for topic in disk.directories(directory):
        for queue_id in disk.directories(directory / topic):
            for name, size in disk.files(directory / topic / queue_id).items():
                if names.offset_of(name) is not None and size:
                    return size
    return None
