"""A store from somebody else may be hostile: what it costs to open stays in proportion to what it is."""

import contextlib
import errno
import os
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.kinds import BATCH
from store.model import QUIET
from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, CorruptData, StratalogError
from stratalog.layout.batch import INNER_FLAGS, BatchEntry, decode_batch_body, encode_batch_body
from stratalog.layout.index import HEADER
from stratalog.layout.message import Record
from stratalog.layout.queue import BATCH_SIZE_MAX, BATCH_UNIT, UNIT
from stratalog.layout.sysflag import Compression, SysFlag
from stratalog.store import dispatch
from stratalog.store.disk import SMALL_FILE_SIZE_MAX, PrivateDisk
from stratalog.tools.rebuild import rebuild
from stratalog.tools.verify import verify

FILE_SIZE = 1 << 16
SETTINGS: dict[str, Any] = QUIET | {
    "mapped_file_size_commit_log": FILE_SIZE,
    "max_hash_slot_num": 8,
    "max_index_num": 64,
}


def write_log(root: Path, records: Iterable[Record]) -> int:
    """A store of nothing but a log of one file; returns the bytes of its records."""
    log = b""
    for record in records:
        log += replace(record, commit_log_offset=len(log)).encode()
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / ("0" * 20)).write_bytes(log.ljust(FILE_SIZE, b"\0"))
    return len(log)


def on_disk(root: Path) -> tuple[int, int]:
    """Bytes and files."""
    paths = [path for path in root.rglob("*") if path.is_file()]
    return sum(512 * path.stat().st_blocks for path in paths), len(paths)


def test_units_of_lost_messages_stay_in_proportion_to_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """28 kB of log made 0.8 GB of filler units and 194,356 files."""
    monkeypatch.setattr(dispatch, "_FILL_SIZE_MIN", 8 << 20)  # a run of the real limit writes 256 MB
    first = [Record(topic=b"t%d" % n, body=b"", queue_offset=299_999) for n in range(150)]  # each begins its queue late
    size = write_log(tmp_path / "wide", first)
    with stratalog.open(tmp_path / "wide", **SETTINGS) as store:
        assert store.recovery.record_count == len(first)
        assert any("too far after" in note for note in store.recovery.notes)
        assert list(store.queue("t0").read())
    assert on_disk(tmp_path / "wide")[0] < (16 << 20) + 128 * size
    gaps = [Record(topic=b"t", body=b"", queue_offset=60_000 * n) for n in range(150)]
    size = write_log(tmp_path / "deep", gaps)
    small = SETTINGS | {"mapped_file_size_consume_queue": UNIT.size}
    with stratalog.open(tmp_path / "deep", **small) as store:
        assert store.recovery.record_count == len(gaps)
    assert on_disk(tmp_path / "deep")[1] < ((8 << 20) + 64 * size) // 65536 + 20


@pytest.mark.parametrize("topic", [b"t", b"no/name", b"\xff"])
@pytest.mark.parametrize("queue_offset", [2**63 - 1, 2**62, 2**62 // 20, -1, -(2**63), 2**40])
def test_a_queue_offset_that_cannot_be_harms_nothing_else(tmp_path: Path, topic: bytes, queue_offset: int) -> None:
    odd = Record(topic=topic, body=b"odd", queue_offset=queue_offset)
    whole = [Record(topic=b"ok", body=b"%d" % n, queue_offset=n) for n in range(3)]
    write_log(tmp_path / "s", [whole[0], odd, whole[1], odd, replace(odd, queue_offset=3), whole[2]])
    verify(tmp_path / "s")
    for _ in range(2):
        with stratalog.open(tmp_path / "s", **SETTINGS) as store:
            assert [message.body for message in store.queue("ok").read()] == [b"0", b"1", b"2"]
        (tmp_path / "s" / "abort").touch()
    assert on_disk(tmp_path / "s")[0] < 32 << 20


def bomb(tmp_path: Path) -> Path:
    """55 kB of log, whose one record says that it holds 727,000 messages of nothing."""
    body = zlib.compress(encode_batch_body([BatchEntry(b"")]) * 700_000, 9)
    flags = INNER_FLAGS | int(SysFlag.COMPRESSED) | int(Compression.ZLIB)
    with stratalog.open(tmp_path / "s", **SETTINGS | {"mapped_file_size_commit_log": 1 << 20}) as store:
        store.create_topic("batch", queues=1, queue_type="BatchCQ")
    with (tmp_path / "s" / "commitlog" / ("0" * 20)).open("wb") as log:
        record = Record(
            topic=b"batch", body=body, sys_flag=flags, properties=b"INNER_NUM\x0132767\x02INNER_BASE\x010\x02"
        )
        assert log.write(record.encode()) < 60_000
        log.truncate(1 << 20)
    for path in ("checkpoint", "queues.snapshot"):
        (tmp_path / "s" / path).unlink(missing_ok=True)
    (tmp_path / "s" / "abort").touch()
    return tmp_path / "s"


def test_a_batch_cannot_unfold_into_more_messages_than_a_unit_covers(tmp_path: Path) -> None:
    """55 kB took 900 MB."""
    root = bomb(tmp_path)
    with stratalog.open(root, **SETTINGS | {"mapped_file_size_commit_log": 1 << 20}) as store:
        tracemalloc.start()
        with pytest.raises(CorruptData, match="more than"):
            list(store.queue("batch").read(count=20))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 100 << 20
    whole = encode_batch_body([BatchEntry(b"")] * BATCH_SIZE_MAX)
    assert len(decode_batch_body(whole)) == BATCH_SIZE_MAX
    with pytest.raises(CorruptData, match="more than"):
        decode_batch_body(whole + encode_batch_body([BatchEntry(b"")]))


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), SMALL_FILE_SIZE_MAX)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), 1 << 40)


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def nested(path: Path) -> None:
    path.write_bytes(b"[" * (8 << 20))


SMALL_FILES = (
    "config/topics.json",
    "config/topics.json.bak",
    "checkpoint",
    "queues.snapshot",
    "config/delayOffset.json",
)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", [sparse, huge, fifo, directory, nested])
@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_small_file_may_be_anything(tmp_path: Path, name: str, change: Callable[[Path], None]) -> None:
    """Little memory, little time, our errors; what does not need the file goes on."""
    root = tmp_path / "s"
    with stratalog.open(root, **SETTINGS) as store:
        store.create_topic("t", queues=1)
        store.create_topic("u", queues=1)
        store.put("t", b"body")
    usual, _ = _cost(root)
    change(root / name)
    peak, errors = _cost(root)
    assert peak < usual + (100 << 20)
    assert not errors or name not in ("queues.snapshot", "config/delayOffset.json")


def _cost(root: Path) -> tuple[int, int]:
    """Memory at the peak, and how many calls ended with an error of ours."""
    errors = 0
    tracemalloc.start()
    started = time.process_time()
    for call in (lambda: verify(root), lambda: _read_t(root, "r"), lambda: _read_t(root, "w")):
        try:
            call()
        except StratalogError:
            errors += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - started < 10
    return peak, errors


def _read_t(root: Path, mode: Any) -> None:
    with stratalog.open(root, mode=mode, **SETTINGS) as store:
        assert [message.body for message in store.queue("t").read()] == [b"body"]


@pytest.mark.parametrize("size", [2_000_000_000, 1 << 40])
def test_a_sparse_index_file_is_neither_read_nor_written_whole(tmp_path: Path, size: int) -> None:
    """One byte at its end, and a header that counts a hundred million items."""
    root = tmp_path / "s"
    with stratalog.open(root, **SETTINGS) as store:
        store.put("t", b"body", keys="k")
    (index,) = (root / "index").iterdir()
    with index.open("r+b") as file:
        file.write(HEADER.pack(1, 1, 0, 0, 1, min(size, 2_000_000_000) // 24))
        file.truncate(size)
        file.seek(size - 1)
        file.write(b"\1")
    (root / "abort").touch()
    sizes = QUIET | {"mapped_file_size_commit_log": FILE_SIZE}
    for mode in ("r", "w") if size > 1 << 31 else ("r",):  # a new index file is as large as the old ones were
        started = time.process_time()
        with contextlib.suppress(StratalogError), stratalog.open(root, mode=mode, **sizes) as store:
            assert [message.body for message in store.queue("t").read()] == [b"body"]
        assert time.process_time() - started < 10
    assert on_disk(root)[0] < 64 << 20


def test_rebuild_does_not_walk_around_in_links(tmp_path: Path) -> None:
    """Two links in config/ made it copy 216,569 directories."""
    with stratalog.open(tmp_path / "s", **SETTINGS) as store:
        store.create_topic("t", queues=1)
        store.put("t", b"body")
    for name in ("a", "b"):
        (tmp_path / "s" / "config" / name).symlink_to(tmp_path / "s" / "config")
        (tmp_path / "s" / "consumequeue" / name).symlink_to(tmp_path / "s" / "consumequeue")
    started = time.process_time()
    with pytest.raises(ConfigurationError, match="link"):
        rebuild(tmp_path / "s", settings=StoreSettings.make(SETTINGS))
    assert time.process_time() - started < 10


def test_a_log_cut_by_another_process_is_an_error_or_a_signal_and_never_wrong_data(tmp_path: Path) -> None:
    """A mapping of a file that somebody cuts ends the process with SIGBUS: the threat model says so."""
    with stratalog.open(tmp_path / "s", **SETTINGS) as store:
        for number in range(100):
            store.put("t", b"%d" % number * 300)
    program = (
        "import sys, os, stratalog; store = stratalog.open(sys.argv[1], mode='r')\n"
        "os.truncate(sys.argv[1] + '/commitlog/' + '0' * 20, 0)\n"
        "print([message.body for message in store.queue('t').read()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "s"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode != 0
    assert not done.stdout


def test_a_batch_unit_with_a_wild_offset_beside_damage_makes_no_units(tmp_path: Path) -> None:
    BATCH.made(tmp_path)
    path = tmp_path / "batchconsumequeue" / "batches" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    last = len(bytes(data).rstrip(b"\0")) // BATCH_UNIT.size * BATCH_UNIT.size
    place = last + BATCH_UNIT.position("base_offset")
    data[place : place + 8] = (1 << 60).to_bytes(8, "big")
    path.write_bytes(data)
    (log,) = (tmp_path / "commitlog").iterdir()
    log.write_bytes(log.read_bytes()[:600] + b"?" * 20 + log.read_bytes()[620:])
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").unlink()
    with BATCH.open(tmp_path) as store:
        assert store.queue("batches", 0).max_offset < 1000


def test_bytes_that_cannot_be_read_are_an_error_before_they_are_used(tmp_path: Path) -> None:
    """Behind the end of a file that was cut the kernel answers as for a bad block: a load would end the process."""
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * 4096))
    disk = PrivateDisk()
    file = disk.map(path)
    os.truncate(path, 3 * 4096 + 5)
    file.populate(0, 3 * 4096)
    with pytest.raises(OSError, match=r"bytes at 16,384 cannot be read") as caught:
        file.populate(0, file.size)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(path))
    file.close()
