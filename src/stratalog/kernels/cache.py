"""Where compiled code may be kept.

numba's cache holds pickles and machine code: who can write there runs code in our process. So a directory counts only
if nobody but this user and root can change it, its files or the directories above it.
"""

import os
import stat
from pathlib import Path

DIRECTORY_MODE = 0o700
_OTHERS, _OTHERS_MAY_WRITE = 0o077, 0o022
"""In a directory that is closed to others, what the umask left of its files' modes does not matter."""


def distrust(directory: Path) -> str:
    """Create the directory, for this user alone. Returns why it must not be used, empty when it may."""
    try:
        _create(directory)
        for above in directory.parents:
            if reason := _distrust_above(above):
                return reason
        is_closed = not directory.lstat().st_mode & _OTHERS
        for folder, names, files in os.walk(directory, onerror=_fail):
            for path in (folder, *(os.path.join(folder, name) for name in (*names, *files))):
                status = os.lstat(path)
                if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
                    return f"{path} is a link or no file"
                if status.st_uid not in (0, os.getuid()):
                    return f"{path} belongs to another user"
                if status.st_mode & _OTHERS_MAY_WRITE and not is_closed:
                    return f"{path} can be written by others"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""


def _create(directory: Path) -> None:
    if not directory.is_dir():
        if not directory.parent.is_dir():
            _create(directory.parent)
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)


def _distrust_above(directory: Path) -> str:
    """Who may write to a directory above may put another one in our place; not so where the sticky bit is set, or to
    the group that is this user's own."""
    status = directory.stat()
    if status.st_uid not in (0, os.getuid()):
        return f"{directory} belongs to another user"
    shared = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != os.getgid())
    return f"{directory} can be written by others" if shared and not status.st_mode & stat.S_ISVTX else ""


def _fail(error: OSError) -> None:
    raise error
