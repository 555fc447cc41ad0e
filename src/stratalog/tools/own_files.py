"""Which names of a store's directory are a store's own, and that none of them is a symbolic link."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from stratalog.errors import ConfigurationError, NotAStore, StoreLocked
from stratalog.layout.names import (
    ABORT,
    CHECKPOINT,
    COMMIT_LOG,
    CONFIG,
    INDEX,
    LOCK,
    QUARANTINE,
    SIZES,
    SNAPSHOT,
    STAGING,
)
from stratalog.store.disk import PrivateDisk, lock_owner
from stratalog.store.evidence import RESTORE_LOG
from stratalog.store.opening import check_path, check_trees
from stratalog.tools.verify_files import MISPLACED, QUEUE_TREES, misplaced

OWN_NAMES = (COMMIT_LOG, *QUEUE_TREES, INDEX, CONFIG, CHECKPOINT, ABORT, LOCK, SNAPSHOT, SIZES, QUARANTINE, STAGING)
"""What of a store's directory repair and rebuild read or write."""


def refuse_without_log(root: Path) -> None:
    """Raise `NotAStore` where there is no log, `NotADirectoryError` where it is a file."""
    if (root / COMMIT_LOG).is_dir():
        return
    check_path(root)
    if (root / COMMIT_LOG).exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root / COMMIT_LOG))
    left = [f"{name}/" for name in (*QUEUE_TREES, INDEX) if (root / name).is_dir()]
    left += [name for name in (CHECKPOINT, SNAPSHOT) if (root / name).is_file()]
    if left:
        raise NotAStore(f"{root} holds {', '.join(left)}, and {COMMIT_LOG}/ is missing: {RESTORE_LOG}")
    raise NotAStore(f"{root} holds no message store (no {COMMIT_LOG}/ in it); check the path")


def refuse_if_locked(root: Path, what: str = "repair") -> None:
    """Raise `StoreLocked` while a store that is to be repaired or rebuilt is open for writing, in this process or
    another."""
    owner = lock_owner(root / LOCK)
    if owner is not None:
        raise StoreLocked(f"{root} is open in process {owner}: stop it first, or copy the files and {what} the copy")


def free_name(target: Path, is_same: Callable[[Path], bool] = lambda _: False) -> Path:
    """This path or, while something else is there, one with a number: what an earlier repair kept stays."""
    found, number = target, 1
    while os.path.lexists(found) and not is_same(found):
        number += 1
        found = target.with_name(f"{target.stem}-{number}{target.suffix}")
    return found


def refuse_links(root: Path, *, but: tuple[str, ...] = ()) -> None:
    """Raise `ConfigurationError` for a symbolic link among a store's own files: a repair would write elsewhere. Those
    below `STAGING` are of a rebuild that did not end: they are removed, never followed."""
    for name in OWN_NAMES:
        if name in but:
            continue
        links = _links(root / name) if name != STAGING else iter([root / name] if (root / name).is_symlink() else [])
        link = next(links, None)
        if link is not None:
            raise ConfigurationError(
                f"{link} is a symbolic link, and a repair does not write through links: put the file or directory "
                "itself in its place (a copy with `cp -rL`)"
            )


def refuse_misplaced(root: Path) -> None:
    """Raise `ConfigurationError` for what repair and rebuild would stumble over halfway: a directory in the place of a
    file that they write, a file in the place of a directory. `CorruptData` for the log in the place of another one."""
    for path, expected, found in misplaced(root):
        raise ConfigurationError(f"{path} is {found}, and {expected} belongs there: {MISPLACED}")
    check_trees(root, PrivateDisk())


def _links(path: Path) -> Iterator[Path]:
    if path.is_symlink():
        yield path
    elif path.is_dir():
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield Path(entry.path)
                elif entry.is_dir():
                    yield from _links(Path(entry.path))
