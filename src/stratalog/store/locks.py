"""Locks, and calls from within a call.

A signal handler and a finalizer run in the middle of whatever their thread does. If that holds one of the store's
locks, to wait for this lock, or for a thread that waits for it, would take for ever. So every lock is an `RLock`, which
knows its owner, and is taken by `with free(lock)`, which refuses instead.
"""

import threading
from typing import TYPE_CHECKING

from stratalog.errors import StoreUnavailable

if TYPE_CHECKING:
    from threading import RLock

new_lock: "type[RLock]" = threading.RLock


def is_owned(lock: "RLock") -> bool:
    """Whether this thread holds the lock."""
    return bool(lock._is_owned())  # type: ignore[attr-defined]


def free(*locks: "RLock") -> "RLock":
    """The first of the locks, for a `with`; the others are those that its holders wait for.

    Raises `StoreUnavailable` where this thread holds one of them.
    """
    for lock in locks:
        if lock._is_owned():  # type: ignore[attr-defined]
            raise StoreUnavailable(
                "this thread is in the middle of another call of the store: a signal handler or a finalizer cannot use "
                "it then. Let the handler set a flag or raise an exception, and use the store after the call"
            )
    return locks[0]
