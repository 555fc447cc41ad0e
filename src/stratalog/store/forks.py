"""What a forked child gets of its parent's stores: nothing that works.

After `os.fork()` two processes would share the log's mapping and descriptors while each has its own idea of where the
log ends, and locks that other threads held at that moment stay held in the child. So in the child:

- every attribute of an inherited store (but `root`), of its queues, its log and what else it is made of raises
  `StoreClosed`. Their class changes; that costs nothing before the fork, and takes no lock. Compiled puts ask for no
  attribute: they find that the log takes no more records, and call the method in Python, which raises.
- Descriptors are closed; mappings become memory of the child's own. A call that a signal handler forked in goes on in
  the child, and raises `StoreClosed` at the latest where it would change a file (`stratalog.store.disk`).
  The store's lock stays with the parent, and ends when the parent releases it.

Nothing is written. A child opens the store again once the parent has closed it, or with `mode="r"` at any time.
"""

import os
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from stratalog.errors import StoreClosed


class Inheritable(Protocol):
    """What a forked child must not use."""

    def abandon(self) -> Iterable[object]:
        """Called in the child, once: close descriptors and mappings, wait for no lock, raise nothing. Returns the
        objects it is made of, which are invalidated with it."""


_watched: "weakref.WeakKeyDictionary[Inheritable, str]" = weakref.WeakKeyDictionary()
_REASON = "_stratalog_reason"


def watch(thing: Inheritable, place: object) -> None:
    """Invalidate it in every child that is forked from now on; messages name the place."""
    _watched[thing] = str(place)


def unwatch(thing: Inheritable) -> None:
    """It is closed, and says so in children, too."""
    _watched.pop(thing, None)


def _getattribute(self: object, name: str) -> Any:
    if name.startswith("__") or name == "root":  # what to open again
        return object.__getattribute__(self, name)
    raise StoreClosed(vars(self)[_REASON])


def _repr(self: object) -> str:
    return f"<inherited: {vars(self)[_REASON]}>"


_METHODS = {"__slots__": (), "__getattribute__": _getattribute, "__repr__": _repr}
"""Of the class that an inherited object gets, below its own."""


def _after_fork_in_child() -> None:
    classes: dict[type, type] = {}
    inherited = list(_watched.items())
    _watched.clear()
    for thing, place in inherited:
        reason = (
            f"{place} was opened by process {os.getppid()} before os.fork(): this process ({os.getpid()}) cannot use "
            "that object. Open it again here (for writing, once the other process has closed it)"
        )
        parts: list[object] = [thing]
        try:
            parts += thing.abandon()
        finally:
            for part in parts:
                vars(part)[_REASON] = reason
                kind = type(part)
                if kind not in classes:  # a class for each of thousands of queues would take a second
                    classes[kind] = type(kind.__name__, (kind,), _METHODS)
                part.__class__ = classes[kind]


os.register_at_fork(after_in_child=_after_fork_in_child)
