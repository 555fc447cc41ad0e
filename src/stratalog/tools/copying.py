"""Copies of files that share their blocks with the original where the file system can, and keep holes as holes."""

import fcntl
import os
from pathlib import Path

from stratalog.store.disk import FILE_MODE, UNFINISHED

_FICLONE = 0x40049409
"""ioctl of Linux: let the file have the other file's blocks (Btrfs, XFS)."""
_CHUNK_SIZE = 8 << 20


def copy_file(source: Path, target: Path) -> None:
    """Copy a file durably, with its times."""
    original = os.open(source, os.O_RDONLY)
    try:
        copy = os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            try:
                fcntl.ioctl(copy, _FICLONE, original)
            except OSError:
                _copy_data(original, copy)
            stat = os.fstat(original)
            os.utime(copy, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            os.fsync(copy)
        finally:
            os.close(copy)
    finally:
        os.close(original)


def copy_tree(source: Path, target: Path, *, without: frozenset[str] = frozenset()) -> None:
    """Copy a directory with all below it, but for the entries of it named in `without`."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        if entry.name in without:
            continue
        if entry.is_dir():
            copy_tree(source / entry.name, target / entry.name)
        elif entry.is_file():
            copy_file(source / entry.name, target / entry.name)


def unshare(path: Path) -> None:
    """Give a file that has several names (hard links) a copy of its own under this one, before it is changed."""
    if path.stat().st_nlink > 1:  # the copy is made beside the directory: RocketMQ refuses files of other names in it
        unfinished = path.parent.with_name(f"{path.parent.name}.{path.name}{UNFINISHED}")
        copy_file(path, unfinished)
        unfinished.rename(path)


def _copy_data(source: int, target: int) -> None:
    """Copy what is no hole."""
    size = os.fstat(source).st_size
    os.ftruncate(target, size)
    position = 0
    while position < size:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
            end = os.lseek(source, position, os.SEEK_HOLE)
        except OSError:  # nothing but a hole is left
            return
        while position < end:
            copied = os.copy_file_range(source, target, min(_CHUNK_SIZE, end - position), position, position)
            if not copied:
                return
            position += copied
