"""Opening a store: what `stratalog.open` does before a `MessageStore` exists.

A read-only store is opened without a lock, so a writer may roll, close, recover or delete files meanwhile. What a later
step reads must not be ahead of what an earlier one read: checkpoint and abort file are read before the log is listed.
Where that is not enough, opening fails or trusts a clean-shutdown marker that is gone. Then it starts again, as long
as the files changed or a writer holds the lock.
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from stratalog.config.settings import StoreSettings
from stratalog.config.shown import shown
from stratalog.errors import (
    ConfigurationError,
    CorruptData,
    DiskFull,
    NotAStore,
    StoreClosed,
    StoreFailed,
    StoreUnavailable,
    StratalogError,
    command,
)
from stratalog.layout import names
from stratalog.layout.message import HEAD, MAGIC_V1, MAGIC_V2
from stratalog.store.arguments import absolute_path, check_type, checked_clock, one_of
from stratalog.store.config_files import TOPICS
from stratalog.store.disk import ClockNs, Disk, PrivateDisk, Stamp, check_link, lock_owner
from stratalog.store.message_store import MessageStore
from stratalog.store.os_errors import (
    cause_of,
    in_the_way,
    is_no_thread,
    is_of_system,
    kernels_refusal,
    refusal,
    thread_refusal,
)
from stratalog.store.rederive import Progress
from stratalog.store.sizes import check_given_sizes, check_index_files, completed, guess_text

_PAUSES_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Before each new attempt to read a store that changes. File times tick every 4 ms."""
_LIVE = (
    names.ABORT, names.CHECKPOINT, names.LOCK, names.COMMIT_LOG, names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE,
    names.INDEX,
)  # fmt: skip
_QUEUE_TREES = names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.CONSUME_QUEUE_EXT
PUT_BACK = (
    "directories of the store were exchanged or renamed: give each one its name back. Move copies of log files out of "
    "the store"
)
"""What to do about a `misplaced_tree`."""


def open_store(
    path: str | os.PathLike[str],
    *,
    mode: Literal["r", "w"] = "w",
    clock_ns: ClockNs = time.time_ns,
    disk: Disk | None = None,
    settings: StoreSettings | None = None,
    small: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **given: Any,
) -> MessageStore:
    """Open the message store in a directory; a relative path is resolved once, here.

    `mode="w"` creates it where there is none and holds its lock; `mode="r"` never touches a byte, may stand beside a
    running broker and sees the store as it is now, with what the writer has not flushed yet. `progress` is called while
    much of the log has to be read, some thirty times a gigabyte, with the step, rate and time left. `small` makes files
    of a few MB where neither settings nor files say otherwise: a new store has 6 MB on disk, not 1.5 GB (a broker needs
    the same sizes, see docs/small-stores.md). Settings are keywords named as in `StoreSettings`; each overrides that of
    `settings`.
    Raises `NotAStore`, `StoreLocked`, `StoreUnavailable`, `ConfigurationError`, `CorruptData`, `DiskFull`.
    """
    root, mode = absolute_path("path", path), "r" if one_of("mode=", mode, "r", "w") == "r" else "w"
    if disk is None:
        disk = PrivateDisk() if mode == "r" else Disk()
    if settings is not None:
        check_type("settings", settings, StoreSettings, "give StoreSettings, or single settings as keywords")
    check_type("disk", disk, Disk, "give a Disk")
    check_type("small", small, bool, "give True or False")
    functions: dict[str, Any] = {"clock_ns": clock_ns, "progress": progress if progress is not None else time.time_ns}
    for name, function in functions.items():
        if not callable(function):
            raise ConfigurationError(f"{name} {shown(function)}: give a function")
    clock_ns = checked_clock(clock_ns)
    clock_ns()
    settings = (settings or StoreSettings()).override(given)
    pauses_s = iter(_PAUSES_S if disk.read_only else ())
    while True:
        seen = stamps(root, disk)
        made: list[MessageStore] = []
        try:
            _check_directory(root, disk)
            last_locked = disk.stamp(str(root / names.LOCK))
            guessed = _make(made, root, settings, disk, clock_ns, _locked(root, disk), small=small)
            (store,) = made
            store.open(last_locked, progress)
            store.recovery.notes += guessed
            pause_s = next(pauses_s, None)
            if pause_s is None or not store.recovery.clean or stamps(root, disk) == seen:
                without_index = replace(settings, message_index_enable=False)
                store.fresh_view = partial(open_store, root, mode="r", clock_ns=clock_ns, settings=without_index)
                return store
            store.close()
        except BaseException as error:
            for store in made:
                try:
                    store.release()
                except StoreClosed:
                    pass  # it is the parent's: this is a forked child
                except BaseException:  # a signal handler raised again: nobody else can release what the store holds
                    store.release()
                    raise
            if is_no_thread(error):
                raise thread_refusal(f"{root} cannot be opened") from error
            if not isinstance(error, StratalogError | OSError | MemoryError):
                raise
            pause_s = next(pauses_s, None)
            if pause_s is None or not (lock_owner(root / names.LOCK) or stamps(root, disk) != seen):
                told = _error_of(root, error)
                if told is error:
                    raise
                raise told from error
        time.sleep(pause_s)
        disk.forget()


def _locked(root: Path, disk: Disk) -> Callable[[], None]:
    """Take the lock before anything is read: else what was read may be of before another process wrote."""
    if not disk.read_only:
        disk.make_directory(root)
    return disk.lock(root / names.LOCK)


def _make(
    made: list[MessageStore], root: Path, settings: StoreSettings, disk: Disk, clock_ns: ClockNs,
    release: Callable[[], None], *, small: bool,
) -> list[str]:  # fmt: skip
    """Add the store to what is `made`, not opened yet; returns notes on what is guessed of it. What a signal handler
    raises as this returns would lose a store that is returned, and with it the lock."""
    try:
        check_given_sizes(settings, root, disk)
        given, (settings, guessed) = settings, completed(settings, root, disk, small=small)
        check_index_files(given, settings, root, disk)
        made.append(MessageStore(root, settings, disk, clock_ns, release, guessed_sizes=guessed))
        return [guess_text(guessed)] if guessed else []
    except BaseException:
        if not made:
            release()
        raise


def stamps(root: Path, disk: Disk) -> list[Stamp]:
    """What changes when a writer opens or closes the store, writes a checkpoint, or adds or removes a file."""
    try:
        return [disk.stamp(str(root / name)) for name in _LIVE]
    except OSError as error:
        if not is_of_system(error):
            raise
        return []


def _error_of(root: Path, error: StratalogError | OSError | MemoryError) -> StratalogError:
    if isinstance(error, StratalogError):
        cause = cause_of(error) if isinstance(error, DiskFull | StoreFailed | StoreUnavailable) else None
        if cause is None:
            return error
        error = cause
    return kernels_refusal(error) or refusal(f"{root} cannot be opened", error, "No message was changed")


def check_whole(root: Path) -> None:
    """Raise `NotAStore` for a store with a symbolic link to what is not there, and as `check_finished`. Directories of
    queues are met when these are enumerated."""
    log, config = root / names.COMMIT_LOG, root / names.CONFIG
    for path in (log, *(root / tree for tree in _QUEUE_TREES), root / names.INDEX, config, config / TOPICS):
        check_link(path)
    with contextlib.suppress(OSError):  # who reads its files says so
        for name in os.listdir(log):
            if names.offset_of(name) is not None:
                check_link(log / name)
    check_finished(root)


def check_finished(root: Path) -> None:
    """Raise `NotAStore` for a copy of a store that `repair --to` did not come to the end of."""
    try:
        noted = (root / names.UNFINISHED_COPY).read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return
    source = noted if noted and noted.isprintable() else "SOURCE"
    again = command("repair", source, "--to", root.absolute(), "--yes")
    raise NotAStore(f"{root} is an unfinished copy: remove it and run {again} again")


def check_path(root: Path) -> None:
    """Raise `NotAStore` for a path that can be no store's, and as `check_whole` does."""
    if not (there := in_the_way(root)).is_dir():
        where = "is a file" if there == root else f"lies below the file {there}"
        raise NotAStore(f"{root} {where}: give the store's directory")
    check_whole(root)


def misplaced_tree(root: Path, disk: Disk) -> tuple[Path, str, str] | None:
    """A directory of the store that holds what belongs into another one, log or queues: its path, what belongs there,
    what is there. Without its log the store would be opened as an empty one, and without its queues deleted messages
    would be served. A file of the log begins with a record; where `commitlog/` has no file, the name tells."""
    log = root / names.COMMIT_LOG
    is_empty = not _data_files(log, disk)
    for tree in (*_QUEUE_TREES, names.INDEX, names.CONFIG):
        if any(is_empty or _begins_with_record(file, disk) for file in _data_files(root / tree, disk)):
            return root / tree, f"what belongs into {tree}/", f"files of {names.COMMIT_LOG}/"
    for tree in (*([names.COMMIT_LOG] if is_empty else []), names.INDEX, names.CONFIG):
        with contextlib.suppress(OSError):  # who reads its files says so
            for topic in disk.directories(root / tree):
                queues = (root / tree / topic / one for one in disk.directories(root / tree / topic))
                if any(names.queue_id_of(queue.name) is not None and _data_files(queue, disk) for queue in queues):
                    return root / tree, f"what belongs into {tree}/", "directories of queues"
    return None


def check_trees(root: Path, disk: Disk) -> None:
    """Raise `CorruptData` where there is a `misplaced_tree`."""
    if found := misplaced_tree(root, disk):
        path, expected, there = found
        raise CorruptData(f"expected {expected}, found {there}: {PUT_BACK}. Nothing was changed", path=str(path))


def _data_files(directory: Path, disk: Disk) -> list[Path]:
    with contextlib.suppress(OSError):  # who reads its files says so
        return [directory / name for name in disk.files(directory) if names.offset_of(name) is not None]
    return []


def _begins_with_record(path: Path, disk: Disk) -> bool:
    with contextlib.suppress(OSError, CorruptData):
        return HEAD.unpack(disk.read(path, size_max=HEAD.size, cut=True) or b"").magic in (MAGIC_V1, MAGIC_V2)
    return False


def _check_directory(root: Path, disk: Disk) -> None:
    check_path(root)
    check_trees(root, disk)
    if (root / names.COMMIT_LOG).is_dir() or (root / names.CONSUME_QUEUE).is_dir():
        return
    content = disk.files(root).keys() | set(disk.directories(root))
    if disk.read_only:
        raise NotAStore(f"{root} holds no message store (no {names.COMMIT_LOG}/ in it); check the path")
    if content - {names.LOCK, names.ABORT, "abort.tmp", names.CHECKPOINT, names.CONFIG, names.SNAPSHOT, names.SIZES}:
        raise NotAStore(f"{root} holds other files and no {names.COMMIT_LOG}/; give an empty or new directory")
