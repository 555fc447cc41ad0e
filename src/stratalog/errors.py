"""Every error this library raises.

    StratalogError
    ├── ConfigurationError    a setting, an option or the environment is wrong: fix it and try again
    │   └── NotInstalled      a Java or a package is missing: install it
    ├── IllegalMessage        the message cannot be stored as it is: change it (it was not written)
    ├── OffsetOutOfRange      the queue holds no such offset: read on from `next_offset`
    ├── StoreUnavailable      the system refuses (permissions, open files, memory): remove the cause and try again
    ├── StoreLocked           another process has the store open for writing: close it there, or open with mode="r"
    ├── StoreClosed           the store object was closed, or opened before a fork by the parent: open the store again
    ├── StoreReadOnly         the store is open for reading only: open it with mode="w"
    ├── StoreFailed           the store stopped accepting messages after a failed write or flush: close and reopen it
    ├── DiskFull              no room for the next file: free space and put again (reads go on)
    ├── NotAStore             the directory is no message store (or no tier): name another one
    ├── CorruptData           bytes on disk contradict their layout: verify, then repair or restore
    └── TierConflict          another writer committed to the tier first: read the tier's state again and redo the batch

A put of several messages that ended half way says how many were put, also in `put_count`; while that is 0 none was.

A new class appears only where a caller would act differently. Messages name the place, what was expected, what was
found and the next step.
"""

import re
import shlex
from copy import copy
from pathlib import PurePath
from typing import Any

NOTHING_DONE = re.compile(
    r"[.;,]? nothing was (written|changed|done|put)\.?$"
    r"|\. The first [\d,]+ of [\d,]+ [a-z ]+ (were put: go on after them|are in the log, .*)$",
    re.IGNORECASE,
)
"""How errors end that are about one message, or about a part of several."""


given_options: list[str] = []
"""What the command line was given as `--set` and `--conf`: the commands that messages print have it too."""
_TAKES_SETTINGS = frozenset({"put", "verify", "repair", "rebuild"})


def command(*words: object) -> str:
    """A command line of ours as messages print it: it works as it is printed."""
    texts = [f"./{word}" if isinstance(word, PurePath) and str(word).startswith("-") else str(word) for word in words]
    return f"`stratalog {shlex.join([*texts, *(given_options if texts[0] in _TAKES_SETTINGS else ())])}`"


def with_store(text: str, root: str) -> str:
    """The text with the store's path, and the options given, in the commands on STORE that it names."""
    return re.sub("`stratalog ([a-z]+) STORE([^`]*)`", lambda it: command(it[1], PurePath(root), *it[2].split()), text)


def counted(count: int, noun: str) -> str:
    """For example `1 file`, `3 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class StratalogError(Exception):
    """Root of the library's errors. They can be pickled and copied, so they cross processes."""

    put_count = 0
    """How many messages of a list or table were put before the error. The message says it too, unless it is 0. After a
    `StoreFailed` they are in the log, and not known to be durable."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, vars(self))


def _restored(kind: type[StratalogError], args: tuple[Any, ...], attributes: dict[str, Any]) -> StratalogError:
    """The error, without its `__init__`, which takes more than `args`."""
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


OF_LIST = "messages of the list"


def partly_put(error: StratalogError, put_count: int, count: int, what: str) -> StratalogError:
    """The error that ended a put of several, saying how many (`what`) were put."""
    raised = copy(error)  # it may be one that the store raises again
    how = "were put: go on after them"
    if isinstance(error, StoreFailed):
        how = "are in the log, and not known to be durable: open the store again and read what is there"
    raised.args = (f"{NOTHING_DONE.sub('', str(error))}. The first {put_count:,} of {count:,} {what} {how}",)
    raised.put_count = put_count
    return raised


class ConfigurationError(StratalogError):
    """A setting or the environment is wrong; nothing was read or written."""


class NotInstalled(ConfigurationError):
    """Software that the work needs is missing; nothing was read or written."""


class IllegalMessage(StratalogError):
    """The message (or topic name, or property) is outside the limits; it was not written."""


class OffsetOutOfRange(StratalogError):
    """A queue offset outside [min, max); reading can go on at `next_offset`."""

    def __init__(self, message: str, *, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class StoreUnavailable(StratalogError):
    """The system refuses a call; nothing was lost, and what was not done yet works once the cause is gone."""


class StoreLocked(StratalogError):
    """The store's lock file is held by another process."""


class StoreClosed(StratalogError):
    """The store object was closed, or was opened before `os.fork()` by the parent process."""


class StoreReadOnly(StratalogError):
    """The store is open with `mode="r"`; nothing was written."""


class StoreFailed(StratalogError):
    """A write or flush failed: messages acknowledged before are safe, later ones are refused. Reads go on."""


class DiskFull(StratalogError):
    """The disk has no room for the next file; put what was not put (see `put_count`) once there is room."""


class NotAStore(StratalogError):
    """The path holds no message store or no tier."""


class CorruptData(StratalogError):
    """Bytes that contradict their layout, with the place where they stand.

    `path` is the file or object (empty for bytes in memory), `position` counts bytes from its start. Where reading a
    queue came upon it, reading can go on at the queue offset `next_offset`; else that is -1.
    """

    def __init__(self, message: str, *, path: str = "", position: int = -1, next_offset: int = -1) -> None:
        byte = f"byte {position:,}" if position >= 0 else ""
        place = f"{path}{' at ' if path and byte else ''}{byte}: " if path or byte else ""
        super().__init__(place + message)
        self.path = path
        self.position = position
        self.next_offset = next_offset


class TierConflict(StratalogError):
    """The tier moved on while a batch was written; the batch was not committed and can be redone."""
