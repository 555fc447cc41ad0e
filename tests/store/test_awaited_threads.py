"""Threads that a call waits for, where an exception from a signal handler comes between."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store.conftest import OpenStore
from stratalog.errors import StoreClosed
from stratalog.helpers import ThreadPool
from stratalog.store import log_scan
from stratalog.store.disk import PrivateDisk
from stratalog.store.log_scan import LogScan
from stratalog.store.rederive import _IndexBeside


def test_a_result_is_awaited_without_a_lock_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the main thread holds as it is interrupted would stay held, and the worker wait for it for good."""
    taken, enter = list[int](), threading.Condition.__enter__

    def noted(condition: threading.Condition) -> Any:
        taken.append(threading.get_ident())
        return enter(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", noted)
    with ThreadPool(1, "worker") as pool:
        awaited = [pool.submit(lambda: time.sleep(0.05) or 5), pool.submit(lambda: 1 // 0)]
        assert [awaited[0].result(), awaited[0].result()] == [5, 5]
        with pytest.raises(ZeroDivisionError):
            awaited[1].result()
    assert threading.get_ident() not in taken


@pytest.mark.parametrize("ahead_count", [0, 1, 2])
def test_a_walk_that_is_interrupted_as_it_begins_leaves_no_thread_in_the_log(
    ahead_count: int, open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_scan, "_PIECE_SIZE", 512)
    store = open_store()
    for _ in range(40):
        store.put("topic", b"body" * 10)
    walk, submitted = LogScan(store.log, 0, store.log.end_offset), list[Any]()
    begin = walk._pool.submit

    def interrupted(*args: Any) -> Any:
        if len(submitted) == ahead_count:
            raise KeyboardInterrupt
        submitted.append(begin(*args))
        return submitted[-1]

    monkeypatch.setattr(walk._pool, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        walk.__enter__()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stratalog-scan")]


def test_a_worker_keeps_mapped_what_it_walks(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store() as store:
        store.put("topic", b"body")
        end, path = store.log.end_offset, store.log.files[0].path
        walk, scan, file = LogScan(store.log, 0, end), log_scan.scan, PrivateDisk().map(path)

        def closing(*args: Any) -> Any:
            file.close()
            return scan(*args)

        monkeypatch.setattr(log_scan, "scan", closing)
        with pytest.raises(StoreClosed):  # and not the end of the process
            walk._walk(log_scan._Piece(file, 0, 0, end))


def test_an_import_lock_that_importlib_left_held_stops_no_first_use(tmp_path: Path) -> None:
    """As an exception from a signal handler leaves it between two lines of importlib's own code."""
    program = (
        "import _imp, sys, stratalog\n"
        "_imp.acquire_lock()\n"
        "with stratalog.open(sys.argv[1], small=True) as store:\n"
        "    store.put('t', b'x', keys='k')\n"
        "    print(len(list(store.queue('t').read())), len(store.query('t', key='k')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "1 1\n"), done.stderr


def test_what_was_done_keeps_nothing_that_it_was_given() -> None:
    """A long rebuild waits for the newest pieces only, and must not hold the positions of all records."""

    class Given:
        pass

    given, kept = [Given() for _ in range(3)], list[Any]()
    gone = [weakref.ref(one) for one in given]
    with ThreadPool(1, "worker") as pool:
        kept += [pool.submit(isinstance, given.pop(), Given) for _ in range(3)]
        assert [outcome.result() for outcome in kept] == [True] * 3
        pool.submit(gc.collect).result()
        assert [one() for one in gone] == [None] * 3


def test_nothing_is_indexed_after_what_failed(open_store: OpenStore) -> None:
    entered = list[int]()

    def put(address: int, positions: Any, count: int, base_offset: int) -> None:
        entered.append(base_offset)
        if base_offset == 1:
            raise ZeroDivisionError

    store = open_store()
    with ThreadPool(1, "worker") as pool:
        beside = _IndexBeside(store.index, pool)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store.index, "put", put)
            for number in range(4):
                beside.put(0, np.zeros(1, np.int64), 1, number)
            with pytest.raises(ZeroDivisionError):
                beside.finish()
    assert entered == [0, 1]
