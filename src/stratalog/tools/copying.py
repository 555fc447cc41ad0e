"""Copies of files that share their blocks with the original where the file system can, and keep holes as holes."""

import errno
import os
import stat
from pathlib import Path

from stratalog.store.disk import FILE_MODE, UNFINISHED, Disk
from stratalog.store.os_errors import FULL, is_of_system

_FICLONE = 0x40049409
"""ioctl of Linux: let the file have the other file's blocks (Btrfs, XFS)."""
_CHUNK_SIZE = 8 << 20
_NO_COPY_RANGE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""`copy_file_range` says so between file systems, on some of them, and on old kernels."""


def copy_file(source: Path, target: Path, disk: Disk) -> None:
    """Copy a regular file durably, with its times and mode. Neither name may be a symbolic link."""
    original = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        copy = disk.os.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
        try:
            try:
                disk.fcntl.ioctl(copy, _FICLONE, original)
            except OSError as error:
                if not is_of_system(error):
                    raise
                _copy_data(original, copy, disk)
            status = os.fstat(original)
            mode = _mode(status)
            disk.os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
            disk.os.fchmod(copy, mode)
            os.fsync(copy)
        except OSError as error:
            if error.errno in FULL:  # said of a descriptor
                error.filename = str(target)
            raise
        finally:
            os.close(copy)
    finally:
        os.close(original)


def copy_tree(source: Path, target: Path, disk: Disk, *, without: frozenset[str] = frozenset()) -> None:
    """Copy a directory with all below it, but for the entries of it named in `without`.

    A symbolic link is copied as one, never followed; what is no file, directory or link is left out.
    """
    disk.create_directory(target)
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        if entry.name in without:
            continue
        if entry.is_symlink():
            disk.os.symlink(os.readlink(entry.path), target / entry.name)
        elif entry.is_dir():
            copy_tree(source / entry.name, target / entry.name, disk)
        elif entry.is_file():
            copy_file(source / entry.name, target / entry.name, disk)
    mode = _mode(source.stat())
    disk.os.chmod(target, mode)


def _mode(status: os.stat_result) -> int:
    """The mode of a copy: the original's, but others may not write to it, and its owner may: it is repaired next."""
    own = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR | stat.S_IWUSR
    return stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH) | own


def unshare(path: Path, disk: Disk) -> None:
    """Give a file that has several names (hard links) a copy of its own under this one, before it is changed."""
    if path.stat().st_nlink > 1:  # the copy is made beside the directory: RocketMQ refuses files of other names in it
        unfinished = path.parent.with_name(f"{path.parent.name}.{path.name}{UNFINISHED}")
        copy_file(path, unfinished, disk)
        disk.os.rename(unfinished, path)


def _copy_data(source: int, target: int, disk: Disk) -> None:
    """Copy what is no hole."""
    size = os.fstat(source).st_size
    disk.os.ftruncate(target, size)
    position = 0
    while position < size:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
            end = os.lseek(source, position, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # nothing but a hole is left
        while position < end:
            copied = _copy_range(source, target, min(_CHUNK_SIZE, end - position), position, disk)
            if not copied:
                return
            position += copied


def _copy_range(source: int, target: int, size: int, position: int, disk: Disk) -> int:
    try:
        copied = disk.os.copy_file_range(source, target, size, position, position)
    except OSError as error:
        if error.errno not in _NO_COPY_RANGE:
            raise
        copied = disk.os.pwrite(target, os.pread(source, size, position), position)
    return int(copied)
