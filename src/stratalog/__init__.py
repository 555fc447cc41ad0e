"""RocketMQ's message store and tiered store in Python: a durable log on the same bytes.

    import stratalog

    with stratalog.open("data/store", flush="sync") as store:
        store.put("orders", b"...", tags="paid", keys=["o-1"])
        for message in store.queue("orders").read():
            print(message.body)

Names are imported when they are first used, so that importing the package stays instant. Errors are in
`stratalog.errors`, and here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stratalog.errors import (
    ConfigurationError,
    CorruptData,
    DiskFull,
    IllegalMessage,
    NotAStore,
    NotInstalled,
    OffsetOutOfRange,
    StoreClosed,
    StoreFailed,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
    StratalogError,
    TierConflict,
)

if TYPE_CHECKING:
    from stratalog.config.settings import StoreSettings
    from stratalog.store.message import Message
    from stratalog.store.message_store import MessageStore
    from stratalog.store.opening import open_store as open  # noqa: A004 - the verb a Python person guesses
    from stratalog.store.queue import Queue
    from stratalog.store.record_put import Receipt

__version__ = "0.1.0"
__all__ = [
    "ConfigurationError",
    "CorruptData",
    "DiskFull",
    "IllegalMessage",
    "Message",
    "MessageStore",
    "NotAStore",
    "NotInstalled",
    "OffsetOutOfRange",
    "Queue",
    "Receipt",
    "StoreClosed",
    "StoreFailed",
    "StoreLocked",
    "StoreReadOnly",
    "StoreSettings",
    "StoreUnavailable",
    "StratalogError",
    "TierConflict",
    "open",
]

_HOMES = {
    "Message": ("stratalog.store.message", "Message"),
    "MessageStore": ("stratalog.store.message_store", "MessageStore"),
    "Queue": ("stratalog.store.queue", "Queue"),
    "Receipt": ("stratalog.store.record_put", "Receipt"),
    "StoreSettings": ("stratalog.config.settings", "StoreSettings"),
    "open": ("stratalog.store.opening", "open_store"),
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "tiered", "pipeline"):
        module, attribute = f"stratalog.{name}", ""
    elif name in _HOMES:
        module, attribute = _HOMES[name]
    else:
        raise AttributeError(f"module 'stratalog' has no attribute {name!r}")
    from stratalog.helpers import load_lock

    with load_lock:  # a fork waits
        loaded = import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
