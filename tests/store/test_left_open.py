"""A store that nobody has any more and that was not closed, as when a signal handler raises while `open` returns."""

import asyncio
import contextlib
import gc
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.interrupts import Dropped, Injector, check_descriptors, open_descriptors, unraisable_dropped
from store.model import SMALL
from stratalog.store import opening
from stratalog.store.message_store import MessageStore

USES: dict[str, Callable[[MessageStore], Any]] = {
    "not": lambda store: None,
    "put": lambda store: store.put("t", b"body", keys="k"),
    "put_async": lambda store: asyncio.run(store.put_async("t", b"body")),
    "roll": lambda store: [store.put("t", bytes(1000)) for _ in range(2 * store.settings.commit_log_file_size // 1000)],
    "read": lambda store: [store.put("t", b"body"), store.flush(), list(store.queue("t").read())],
}


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("use", USES)
def test_the_garbage_collector_closes_it_and_says_so(use: str, flush: str, tmp_path: Path) -> None:
    given: dict[str, Any] = SMALL | {"flush": flush}
    stratalog.open(tmp_path, **given).close()
    descriptors, threads = open_descriptors(), set(threading.enumerate())
    store: MessageStore | None = stratalog.open(tmp_path, **given)
    assert store
    USES[use](store)
    put = store.log.end_offset
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        store = None
        gc.collect()
    assert f"{tmp_path} was not closed" in {str(one.message)[: len(f"{tmp_path} was not closed")] for one in caught}
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)
        assert not thread.is_alive()
    check_descriptors(descriptors)
    with stratalog.open(tmp_path, **given) as again:
        assert again.log.end_offset == put


def test_one_that_was_closed_or_only_read_is_not_mentioned(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*was not closed", ResourceWarning)
        stratalog.open(tmp_path, **SMALL).close()
        stratalog.open(tmp_path, mode="r", **SMALL)
        gc.collect()


def test_a_queue_keeps_its_store_open(tmp_path: Path) -> None:
    queue = stratalog.open(tmp_path, **SMALL).queue("t")
    gc.collect()
    assert queue.put(b"body").queue_offset == 0
    queue.store.close()


def test_the_lock_is_free_after_a_collection_wherever_a_with_statement_is_interrupted_at_its_begin(
    tmp_path: Path,
) -> None:
    def begin(injector: Injector) -> None:
        with contextlib.suppress(Dropped), injector, stratalog.open(tmp_path, **SMALL):
            pass

    traced = (opening.__file__, __file__)
    with unraisable_dropped():
        begin(counted := Injector(0, traced=traced))
        for number in counted.points[::9] + counted.points[-20:]:
            begin(injector := Injector(number, raises=Dropped, traced=traced))
            gc.collect()
            try:
                stratalog.open(tmp_path, **SMALL).close()
            except stratalog.errors.StoreLocked as error:
                raise AssertionError(injector.point) from error
