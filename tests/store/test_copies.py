"""What of a store can be pickled and copied, and what refuses it."""

import copy
import pickle  # noqa: TID251 - what other processes do with objects
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import BuiltinMethodType
from typing import Any

import pytest

from store.conftest import OpenStore
from stratalog import tiered
from stratalog.kernels import jit
from stratalog.tiered import Manifest, PosixBackend

COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),  # noqa: S301
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("how", COPIES)
def test_receipts_messages_and_settings_are_values(how: str, open_store: OpenStore) -> None:
    store = open_store()
    receipts = store.put_many("t", [b"one", b"two"])
    store.put("t", b"three", keys="k")
    assert list(COPIES[how](receipts)) == list(receipts)
    for value in (receipts[0], store.message(0), list(store.query("t", key="k")), store.settings):
        assert COPIES[how](value) == value


@pytest.mark.parametrize("how", COPIES)
def test_open_stores_and_queues_say_that_they_cannot_be_copied(how: str, open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put("t", b"one")
    backend = PosixBackend(tmp_path / "tier")
    manifest = Manifest(backend, "c", "b")
    manifest.adopt(tiered.TierState("c", "b"))
    with tiered.open(tmp_path / "tier", cluster="c", broker="b") as tier:
        for value in (store, store.queue("t"), tier):
            with pytest.raises(TypeError, match="cannot be pickled or copied: pass its path and open it there"):
                COPIES[how](value)
    backend.close()
    assert isinstance(store.put, BuiltinMethodType) == jit.HOLDS_THE_GIL
    queue = store.queue("t")
    for method in (store.put, store.put_many, store.query, queue.put, queue.put_raw, queue.put_many, queue.read):
        for value in (method, partial(method, b"two")):
            with pytest.raises(TypeError, match="cannot be pickled or copied: pass its path and open it there"):
                pickle.dumps(value)
    assert store.put("t", b"two").queue_offset == 1
