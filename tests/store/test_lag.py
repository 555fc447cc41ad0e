"""Dispatch stays close to the log's end: after a crash RocketMQ looks into the last ten log files, and no further."""

import contextlib
import errno
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from stratalog.errors import DiskFull, StoreFailed
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import MappedFile
from stratalog.store.dispatch import Dispatcher
from stratalog.store.message_store import MessageStore

FILE_SIZE, BODY = 1 << 16, b"x" * 1000
LOOKED_INTO = 10


def puts(store: MessageStore) -> None:
    for number in range(2000):
        store.put("t", BODY, keys=f"k{number}", wait=False)


def lists(store: MessageStore) -> None:
    for _ in range(4):
        store.queue("t").put_many([BODY] * 500, b"")


def tables(store: MessageStore) -> None:
    store.append(pa.table({"body": [BODY] * 2000}), topic="t")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("put", [puts, lists, tables])
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_dispatch_is_never_ten_log_files_behind(
    put: Any, flush: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_behind, roll, chunk = [], CommitLog._roll, Dispatcher._dispatch_chunk

    def rolling(log: CommitLog) -> None:
        roll(log)
        begin = dispatcher.progress.offset // FILE_SIZE * FILE_SIZE
        files_behind.append(sum(int(path.name) >= begin for path in log.directory.iterdir()))

    def slow(dispatcher: Dispatcher, limit: int) -> None:
        time.sleep(0.02)
        chunk(dispatcher, limit)

    with stratalog.open(tmp_path, small=True, mapped_file_size_commit_log=FILE_SIZE, flush=flush) as store:
        dispatcher = store._dispatcher
        monkeypatch.setattr(CommitLog, "_roll", rolling)
        monkeypatch.setattr(Dispatcher, "_dispatch_chunk", slow)
        put(store)
        assert len(files_behind) > 2 * LOOKED_INTO
        assert max(files_behind) < LOOKED_INTO


def test_a_put_does_not_wait_for_a_dispatch_that_cannot_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskFull("no room for queue units")

    with stratalog.open(tmp_path, small=True, mapped_file_size_commit_log=FILE_SIZE) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "_dispatch_chunk", full)
            for _ in range(1000):
                store.put("t", BODY)
        assert store.queue("t").max_offset == 1000


def test_a_put_does_not_wait_for_a_dispatch_that_a_failed_flush_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "no flush")

    store = stratalog.open(tmp_path, small=True, mapped_file_size_commit_log=FILE_SIZE, flush="sync")

    def put() -> None:
        with contextlib.suppress(StoreFailed):
            for _ in range(1000):
                store.put("t", BODY, wait=False)

    monkeypatch.setattr(MappedFile, "sync", fails)
    putting = threading.Thread(target=put, daemon=True)
    putting.start()
    putting.join(20)
    assert not putting.is_alive()
    store.close()
