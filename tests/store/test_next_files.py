"""Log files made before they are needed: a roll does not wait, a full disk is told when it matters, nothing is left."""

import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import stratalog
from store.conftest import OpenStore
from store.model import LOG_FILE_SIZE, QUIET, bodies, check, log_files
from stratalog.errors import DiskFull
from stratalog.layout.names import COMMIT_LOG
from stratalog.store import next_files
from stratalog.store.disk import Disk

BODY = b"x" * 10_000
HALF = LOG_FILE_SIZE // 2 // len(BODY) + 1
"""So many messages reach the middle of a file."""


@pytest.fixture(autouse=True)
def small_files_are_made_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_files, "AHEAD_SIZE_MIN", 0)
    monkeypatch.setattr(stratalog.store.commit_log, "AHEAD_SIZE_MIN", 0)


class ShortDisk(Disk):
    """Holds so many log files; tells which thread made each."""

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.made: list[tuple[str, str]] = []
        self.tried = threading.Event()

    def allocate(self, path: Path, size: int) -> None:
        if path.parent.name == COMMIT_LOG:
            self.tried.set()
            if len(log_files(path.parents[1])) >= self.room:
                raise DiskFull(f"{path}: no room for a file of {size:,} bytes; free space on that file system")
            self.made.append((path.name, threading.current_thread().name))
        super().allocate(path, size)

    def check_room(self, path: Path, size: int, count: int) -> None:
        super().check_room(path, size, count)
        if len(log_files(path.parents[1])) + count > self.room:
            raise DiskFull(f"{path}: no room for {count:,} files; free space on that file system")


@pytest.mark.parametrize("count", [1, 3])
def test_a_full_disk_is_reported_with_the_files_that_have_no_room_and_their_sizes(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, begin: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    (tmp_path / COMMIT_LOG).mkdir()
    file = tmp_path / COMMIT_LOG / f"{0:020d}"
    what = f"{file}: no room for a file of 4,096 bytes"
    if count > 1:
        what = f"{file.parent}: no room for 3 files of 4,096 bytes, 12,288 in all"
    with pytest.raises(DiskFull, match=f"^{re.escape(what)}; free space on that file system$"):
        Disk().check_room(file, 4096, count)


def settle(store: stratalog.MessageStore) -> None:
    """Wait for the file that is being made."""
    with store.log.locks.append[0], store.log.busy:
        store.log._next_files._end()


def test_the_next_file_is_made_on_a_thread_when_the_newest_is_half_full(open_store: OpenStore) -> None:
    disk = ShortDisk()
    store = open_store(disk=disk)
    for number in range(40):
        store.put("t", BODY)
        if number == HALF - 2:
            assert len(log_files(store.root)) == 1
        if number % 4 == 3:
            settle(store)
    assert {thread for _, thread in disk.made[1:]} == {"stratalog-allocate"}
    assert len(disk.made) == len({name for name, _ in disk.made}), "none is made twice"
    assert [message.body for message in store.queue("t").read()] == [BODY] * 40


def test_a_clean_close_removes_what_nothing_was_put_into(open_store: OpenStore) -> None:
    store = open_store()
    for _ in range(HALF):
        store.put("t", BODY)
    settle(store)
    assert len(log_files(store.root)) == 2
    store.close()
    assert len(log_files(store.root)) == 1
    again = open_store()
    assert bodies(again) == {("t", 0): [BODY] * HALF}
    again.put("t", BODY)


def test_a_full_disk_while_allocating_ahead_is_no_error_before_the_file_is_needed(open_store: OpenStore) -> None:
    disk = ShortDisk(room=1)
    store = open_store(disk=disk)
    put = 0
    for _ in range(HALF):
        store.put("t", BODY)
        put += 1
    settle(store)
    for _ in range(LOG_FILE_SIZE // (len(BODY) + 92) - HALF):
        store.put("t", BODY)
        put += 1
    with pytest.raises(DiskFull, match="free space"):
        store.put("t", BODY)
    assert put > HALF
    disk.room = 1000
    store.put("t", b"later")
    assert [message.body for message in store.queue("t").read()] == [BODY] * put + [b"later"]


def test_after_a_crash_a_file_made_ahead_is_harmless(tmp_path: Path) -> None:
    script = (
        "import os, stratalog\n"
        "from stratalog.store import commit_log\n"
        "commit_log.AHEAD_SIZE_MIN = 0\n"
        f"path = {str(tmp_path / 'store')!r}\n"
        f"store = stratalog.open(path, mapped_file_size_commit_log={LOG_FILE_SIZE}, flush='sync')\n"
        f"for _ in range({HALF}): store.put('t', b'x' * 10_000)\n"
        "store.log._next_files._end()\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, env=dict(os.environ)).returncode == 9
    root = tmp_path / "store"
    assert len(log_files(root)) == 2
    assert not any(log_files(root)[1].read_bytes())
    with stratalog.open(root, mode="r", **QUIET) as reader:
        assert bodies(reader) == {("t", 0): [BODY] * HALF}
        check(reader)
    with stratalog.open(root, **QUIET) as store:
        assert store.put("t", BODY).queue_offset == HALF
        check(store)


def test_an_append_that_spans_files_is_written_whole_or_not_at_all(open_store: OpenStore) -> None:
    disk = ShortDisk(room=3)
    store = open_store(disk=disk)
    store.put("t", b"first")
    rows = pa.record_batch({"body": pa.array([BODY] * 40, pa.binary())})
    files, end = len(log_files(store.root)), store.log.end_offset
    for append in (
        lambda: store.append(rows, topic="t"),
        lambda: store.put_many("t", [BODY] * 40),
        lambda: store.put_many("%RETRY%" + "g" * 200, [BODY] * 40),
    ):
        with pytest.raises(DiskFull):
            append()
        assert (store.log.end_offset, len(log_files(store.root))) == (end, files), "room was kept"
    disk.room = 1000
    assert store.append(rows, topic="t") == {("t", 0): range(1, 41)}
    assert len(store.put_many("t", [BODY] * 40)) == 40
    assert bodies(store)["t", 0] == [b"first"] + [BODY] * 80


def test_an_error_in_a_table_says_how_many_of_its_rows_were_put(open_store: OpenStore) -> None:
    disk = ShortDisk(room=2)
    store = open_store(disk=disk)
    table = pa.Table.from_batches([pa.record_batch({"body": pa.array([BODY] * 4, pa.binary())})] * 4)
    with pytest.raises(DiskFull, match="The first 12 of 16 rows were put"):
        store.append(table, topic="t")
    assert bodies(store) == {("t", 0): [BODY] * 12}


@pytest.mark.parametrize("size", [0, 1, 5_000, 30_000, LOG_FILE_SIZE - 100])
def test_as_many_files_are_reserved_as_an_append_takes(size: int, open_store: OpenStore) -> None:
    disk = ShortDisk()
    store = open_store(disk=disk)
    for count in (1, 7, 50):
        store.append(pa.record_batch({"body": pa.array([b"y" * size] * count, pa.binary())}), topic="t")
        with store.log.locks.append[0], store.log.busy:
            store.log._next_files._end()
            assert len(log_files(store.root)) - len(store.log.files) <= 1, "more than the one made ahead"
    check(store)


def test_property_names_that_never_come_again_do_not_fill_the_memory(open_store: OpenStore) -> None:
    store = open_store(checked=False, enabled_append_prop_crc=True)
    for number in range(3000):
        store.put("t", b"", properties={f"name-{number}": "v"})
    assert len(store.shapes) <= 1024
    store.put("t", b"", properties={"name-1": "again"})
    assert next(store.queue("t").read(3000)).properties["name-1"] == "again"


class Removals(Disk):
    """Tells which log files were removed, in order; is full after so many were made."""

    def __init__(self, made_max: int = 100) -> None:
        self.removed: list[str] = []
        self.left = made_max

    def remove(self, path: Path) -> None:
        if path.parent.name == COMMIT_LOG:
            self.removed.append(path.name)
        super().remove(path)

    def allocate(self, path: Path, size: int) -> None:
        if path.parent.name == COMMIT_LOG:
            if not self.left:
                raise DiskFull(f"{path}: no room")
            self.left -= 1
        super().allocate(path, size)


@pytest.mark.parametrize("road", ["closed", "full disk", "opened"])
def test_empty_files_go_newest_first_so_that_a_kill_leaves_no_gap(open_store: OpenStore, road: str) -> None:
    disk = Removals(made_max=3 if road == "full disk" else 100)
    store = open_store(disk=disk)
    store.put("t", BODY)
    if road == "opened":
        store.close()
        for number in (1, 2, 3):
            path = store.root / COMMIT_LOG / f"{number * LOG_FILE_SIZE:020d}"
            path.write_bytes(bytes(LOG_FILE_SIZE if number < 3 else 0))
        open_store(disk=disk)
    else:
        files = store.log._next_files
        with contextlib.suppress(DiskFull):
            files.reserve(LOG_FILE_SIZE, 4, 0)
        store.close()
    assert len(disk.removed) >= 2
    assert disk.removed == sorted(disk.removed, reverse=True)
