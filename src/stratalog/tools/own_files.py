"""Which names of a store's directory are a store's own, and that none of them is a symbolic link."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from stratalog.errors import ConfigurationError, NotAStore
from stratalog.layout.names import (
    ABORT,
    CHECKPOINT,
    COMMIT_LOG,
    CONFIG,
    INDEX,
    LOCK,
    SIZES,
    SNAPSHOT,
    STAGING,
)
from stratalog.store.evidence import RESTORE_LOG
from stratalog.tools.verify_files import QUEUE_TREES, SINGLE_FILES

QUARANTINE = "stratalog-quarantine"
"""Directory in the store for what was taken out of RocketMQ's."""
OWN_NAMES = (COMMIT_LOG, *QUEUE_TREES, INDEX, CONFIG, CHECKPOINT, ABORT, LOCK, SNAPSHOT, SIZES, QUARANTINE, STAGING)
"""What of a store's directory repair and rebuild read or write."""


def refuse_without_log(root: Path) -> None:
    """Raise `NotAStore` where there is no log."""
    if (root / COMMIT_LOG).is_dir():
        return
    left = [f"{name}/" for name in (*QUEUE_TREES, INDEX) if (root / name).is_dir()]
    left += [name for name in (CHECKPOINT, SNAPSHOT) if (root / name).is_file()]
    if left:
        raise NotAStore(f"{root} holds {', '.join(left)}, and {COMMIT_LOG}/ is missing: {RESTORE_LOG}")
    raise NotAStore(f"{root} holds no message store (no {COMMIT_LOG}/ in it); check the path")


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
                "itself in its place (a copy with `cp -L`), or repair there"
            )


def refuse_misplaced(root: Path) -> None:
    """Raise `ConfigurationError` for what repair and rebuild would stumble over halfway: a directory in the place of a
    file that they write, a file in the place of a directory."""
    for name in SINGLE_FILES:
        if (root / name).exists() and not (root / name).is_file():
            what = "a directory" if (root / name).is_dir() else "no regular file"
            raise ConfigurationError(
                f"{root / name} is {what}, and a file belongs there: remove it, or move it out of {root}; the file is "
                "made again when it is needed"
            )
    for name in (QUARANTINE, STAGING):
        if (root / name).exists() and not (root / name).is_dir():
            raise ConfigurationError(f"{root / name} is no directory: move it out of {root}")


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
