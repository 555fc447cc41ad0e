"""Putting several messages: what an error says of how many were put is what is in the store.

Every way to put several x every error, injected at each step that can raise it.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from store.model import QUIET, SMALL
from stratalog.errors import DiskFull, IllegalMessage, StoreClosed, StoreFailed, StoreUnavailable, StratalogError
from stratalog.layout.names import COMMIT_LOG
from stratalog.store import arrow, record_put
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import Disk, MappedFile
from stratalog.store.message_store import MessageStore

COUNT = 120
BODY = b"x" * 3000
"""So many of these take some six of the small log files."""
LIGHT = b"INNER_MULTI_DISPATCH\1%LMQ%a\2"
_BATCH = pa.record_batch({"body": pa.array([BODY] * (COUNT // 4), pa.binary())})

WAYS: dict[str, Callable[[MessageStore], Any]] = {
    "list in one file": lambda store: store.put_many("t", [b"x" * 300] * COUNT),
    "list of several files": lambda store: store.put_many("t", [BODY] * COUNT),
    "list with light queues": lambda store: store.put_many("t", [BODY] * COUNT, [b"", LIGHT] * (COUNT // 2)),
    "list to a long topic": lambda store: store.put_many("%RETRY%" + "g" * 200, [BODY] * COUNT),
    "batch": lambda store: store.append(pa.record_batch({"body": pa.array([BODY] * COUNT)}), topic="t", queue_id=0),
    "table": lambda store: store.append(pa.Table.from_batches([_BATCH] * 4), topic="t", queue_id=0),
    "table to a queue": lambda store: store.queue("t").append(pa.Table.from_batches([_BATCH] * 4)),
}


def no_files(_: MessageStore) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def no_room(_: MessageStore) -> None:
    raise DiskFull("no room for a file; free space on that file system and try again")


def input_output(_: MessageStore) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def flush_failed(store: MessageStore) -> None:
    """On another thread."""
    store.log.fail(StoreFailed("flush: Input/output error"))


def closed(store: MessageStore) -> None:
    """By another thread, which gets the lock between two batches."""
    if not store.log.busy.locked():
        store.close()


ERRORS: dict[Callable[[MessageStore], None], type[StratalogError]] = {
    no_files: StoreUnavailable, no_room: DiskFull, input_output: StoreFailed, flush_failed: StoreFailed,
    closed: StoreClosed,
}  # fmt: skip


class Steps(Disk):
    """Lets an error happen at the n-th step: a new log file, a batch, a roll, or a record."""

    def __init__(self) -> None:
        self.left = -1
        self.act: Callable[[], None] = lambda: None
        self.only_disk = False

    def step(self, *, is_disk: bool = False) -> None:
        if self.only_disk and not is_disk:
            return
        self.left -= 1
        if self.left == -1:
            self.act()

    def allocate(self, path: Path, size: int) -> None:
        if path.parent.name == COMMIT_LOG:
            self.step(is_disk=True)
        super().allocate(path, size)


def count_of(store: MessageStore) -> int:
    return sum(len(list(store.queue(*name).read())) for name in store.queues() if not name[0].startswith("%LMQ%"))


def check_said(error: StratalogError, put: int) -> None:
    assert error.put_count == put, error
    told = str(error)
    if put:
        assert f"The first {put:,} of {COUNT:,} " in told
        in_log = "are in the log, and not known to be durable"
        assert told.count(in_log if isinstance(error, StoreFailed) else "were put: go on after them") == 1
        assert "othing was" not in told
    else:
        assert "were put" not in told


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    disk = Steps()

    def stepping(kind: Any, name: str) -> None:
        real = getattr(kind, name)

        def called(*given: Any, **named: Any) -> Any:
            disk.step()
            return real(*given, **named)

        monkeypatch.setattr(kind, name, called)

    stepping(arrow, "_queues_of")
    stepping(CommitLog, "position_for")
    stepping(record_put, "check_stored")
    return disk


@pytest.mark.one_in(54)
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda function: function.__name__)
def test_an_error_says_how_many_were_put(
    error: Callable[[MessageStore], None], way: str, flush: str, steps: Steps, tmp_path: Path
) -> None:
    """Those are durable under sync flush, unless the error says that it is not known."""
    step, was_hit, counts = 0, True, set()
    given: dict[str, Any] = {**SMALL, **QUIET, "flush": flush, "enable_lmq": True, "enable_multi_dispatch": True}
    while was_hit:
        root = tmp_path / str(step)
        store = stratalog.open(root, disk=steps, **given)
        store.put("first", b"")
        steps.only_disk = error in (no_files, no_room, input_output)
        steps.act = lambda store=store: error(store)  # type: ignore[misc]
        steps.left = step
        try:
            WAYS[way](store)
            raised = None
        except ERRORS[error] as found:
            raised = found
        was_hit, steps.left = steps.left < 0, -1
        if not store._closed and not store.log.failure:
            is_durable = store.durable_offset == store.log.end_offset
            assert is_durable or flush == "async" or (raised and not raised.put_count)
            put = count_of(store) - 1
            assert raised or put in (0, COUNT)
        store.close()
        with stratalog.open(root, mode="r") as again:
            put = count_of(again) - 1
        if raised:
            check_said(raised, put)
            counts.add(put)
        step += 1 if step < 20 else 17
    assert counts or steps.only_disk or way == "list in one file"  # which may be put in one step
    if way.startswith("table") and error is not input_output:
        assert len(counts) > 2, "no error came between two batches"


@pytest.mark.parametrize("number", [0, 1, COUNT // 4, COUNT - 1])
def test_an_illegal_message_in_a_list_leaves_nothing_of_it(number: int, tmp_path: Path) -> None:
    """The offsets in light queues are added when the message is put: they may be what makes it too large."""
    lists: list[tuple[list[bytes], list[bytes]]] = []
    for size in range(32767 - 60, 32767 + 1):
        text = LIGHT + b"p\1" + b"x" * (size - len(LIGHT) - 3) + b"\2"
        lists.append(([b"x"] * COUNT, [LIGHT] * number + [text] + [LIGHT] * (COUNT - number - 1)))
    with stratalog.open(tmp_path / "store", enable_lmq=True, enable_multi_dispatch=True, **SMALL, **QUIET) as store:
        file_size = store.log.file_size
        for size in range(file_size - 8 - 92 - len(LIGHT) - 60, file_size - 8 - 92 - len(LIGHT) + 2):
            bodies = [b"x"] * 3 + [b"y" * size]
            lists.append((bodies, [LIGHT] * 4))
        put, accepted, refused, queue = 0, 0, 0, store.queue("t")
        for bodies, texts in lists:
            try:
                put += len(queue.put_many(bodies, texts))
                accepted += 1
            except IllegalMessage as error:
                refused += str(error).endswith("nothing was written")
            assert queue.next_offset == put
            assert store.queue("%LMQ%a").next_offset == put
        assert refused + accepted == len(lists)
        assert min(refused, accepted) > 2


@pytest.mark.parametrize("batch", range(4))
def test_an_illegal_row_in_a_table_says_how_many_rows_were_put(batch: int, tmp_path: Path) -> None:
    wrong = pa.record_batch({"body": pa.array([b"x" * (5 << 20)] * (COUNT // 4), pa.binary())})
    batches = [_BATCH] * batch + [wrong] + [_BATCH] * (3 - batch)
    with stratalog.open(tmp_path / "store", **SMALL, **QUIET) as store:
        with pytest.raises(IllegalMessage) as raised:
            store.append(pa.Table.from_batches(batches), topic="t", queue_id=0)
        check_said(raised.value, batch * (COUNT // 4))
        assert store.queue("t").max_offset == batch * (COUNT // 4)


def test_rows_that_an_error_says_were_put_are_durable_under_sync_flush(tmp_path: Path) -> None:
    good = pa.record_batch({"body": [b"a"] * 1000})
    too_large = pa.record_batch({"body": [b"a" * (5 << 20)]})
    with stratalog.open(tmp_path, flush="sync", small=True) as store:
        with pytest.raises(IllegalMessage, match="The first 1,000 of 1,001 rows were put") as caught:
            store.append(pa.Table.from_batches([good, too_large]), topic="t", queue_id=0)
        assert caught.value.put_count == 1000
        assert store.durable_offset == store.log.end_offset
        assert store.queue("t").max_offset == 1000


@pytest.mark.parametrize("way", ["append", "put_many"])
def test_what_a_failed_flush_leaves_in_the_log_is_not_called_durable(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: MappedFile) -> None:
        raise OSError(errno.EIO, "broken")

    with contextlib.suppress(StoreFailed), stratalog.open(tmp_path, flush="sync", small=True) as store:
        store.queue("t").put_many([b"first"])
        monkeypatch.setattr(MappedFile, "sync", broken)
        put: Callable[[], object] = {
            "append": lambda: store.append(pa.record_batch({"body": [b"a"] * 9}), topic="t", queue_id=0),
            "put_many": lambda: store.queue("t").put_many([b"a"] * 9),
        }[way]
        with pytest.raises(StoreFailed, match=r"The first 9 of 9 .* in the log, and not known to be durable") as caught:
            put()
        assert caught.value.put_count == 9


def test_offsets_of_arrow_data_may_have_bytes_to_spare(tmp_path: Path) -> None:
    offsets = pa.py_buffer(struct.pack("<3i", 0, 1, 3) + b"\0")
    column = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abc")])
    with stratalog.open(tmp_path, small=True) as store:
        store.append(pa.record_batch({"body": column}), topic="t", queue_id=0)
        assert [message.body for message in store.queue("t").read()] == [b"a", b"bc"]
