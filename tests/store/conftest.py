"""Every store that a test in this folder opens with `open_store` is checked as a whole when the test ends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.model import QUIET, SMALL, check, scratch_folder
from stratalog.store.message_store import MessageStore

OpenStore = Callable[..., MessageStore]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """`stratalog.open` with small files and sleeping background threads; the path defaults to `tmp_path / "store"`.

    Stores still open at the end are checked and closed; then every store is opened read-only and checked again. A test
    that damages a store beyond that says so with `checked=False`.
    """
    opened: list[tuple[MessageStore, bool, dict[str, Any]]] = []

    def open_one(path: Path | None = None, *, checked: bool = True, **given: Any) -> MessageStore:
        settings = SMALL | QUIET | given
        store = stratalog.open(path or tmp_path / "store", **settings)
        opened.append((store, checked, settings))
        return store

    yield open_one
    for store, checked, _ in opened:
        if checked and not store._closed:
            check(store)
        store.close()
    for store, checked, settings in opened:
        if checked:
            kept = {name: value for name, value in settings.items() if name not in ("mode", "disk")}
            with stratalog.open(store.root, mode="r", **kept) as again:
                check(again)
