"""A store's locks, and calls in the middle of a call.

A signal handler and a finalizer run in the middle of whatever their thread does. If that holds one of the store's
locks, waiting for this lock, or for a thread that waits for it, would never end. So every lock is an `RLock`, which
knows its owner; there is one order in which a thread takes them; and each is taken by `with free(...)`, which refuses a
thread that holds this one or a later one.
"""

import threading
from typing import TYPE_CHECKING

from stratalog.errors import StoreUnavailable
from stratalog.helpers import helpers, is_helper

if TYPE_CHECKING:
    from threading import RLock


class InsideCall(StoreUnavailable):
    """A signal handler or a finalizer called the store in the middle of another call of the same thread."""


class StoreLocks:
    """The locks of one store in their order. Each attribute is a lock and all later ones, as `free` wants them."""

    def __init__(self) -> None:
        locks = tuple(threading.RLock() for _ in range(9))
        self.checkpoint = locks
        self.queues = locks[1:]
        """The table of queues, and the threads that are started when they are needed."""
        self.dispatch = locks[2:]
        self.flush = locks[3:]
        self.files = locks[4:]
        """The open queue files."""
        self.index_header = locks[5:]
        self.index = locks[6:]
        self.futures = locks[7:]
        self.append = locks[8:]
        """The log's end: the only one that a call of two microseconds takes."""
        self.before_append = locks[:8]


def free(*locks: "RLock", done: str = "") -> "RLock":
    """The first of the locks, for a `with`. Raises `InsideCall` where this thread holds any of them; `done` says what
    was done before."""
    for lock in locks:
        if lock._is_owned():  # type: ignore[attr-defined]
            raise InsideCall(_TEXT + done)
    if helpers and is_helper():
        raise InsideCall(_TEXT + done)
    return locks[0]


def is_owned(lock: "RLock") -> bool:
    """Whether this thread holds the lock."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


_TEXT = (
    "this thread is in the middle of another call of the store: a signal handler or a finalizer cannot use it then. "
    "Let the handler set a flag or raise an exception, and use the store after the call"
)
