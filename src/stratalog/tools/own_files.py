"""Which names of a store's directory are a store's own, and that none of them is a symbolic link."""

import os
from collections.abc import Iterator
from pathlib import Path

from stratalog.errors import ConfigurationError
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
from stratalog.tools.verify_files import QUEUE_TREES

QUARANTINE = "stratalog-quarantine"
"""Directory in the store for what was taken out of RocketMQ's."""
OWN_NAMES = (COMMIT_LOG, *QUEUE_TREES, INDEX, CONFIG, CHECKPOINT, ABORT, LOCK, SNAPSHOT, SIZES, QUARANTINE, STAGING)
"""What of a store's directory repair and rebuild read or write."""


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
