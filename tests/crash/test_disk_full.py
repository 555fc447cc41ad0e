"""A full disk, for real: a small tmpfs, and an ext4 in a file, filled up wherever the store takes room."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from store.model import QUIET, Clock, bodies, check
from stratalog.errors import DiskFull
from stratalog.layout.queue import UNIT

SIZE = 8 << 20
SETTINGS: dict[str, Any] = QUIET | {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 4000 * UNIT.size,
    "max_hash_slot_num": 1000,
    "max_index_num": 4000,
    "clock_ns": Clock(),
}


def mounted(kind: str, folder: Path) -> Path:
    """A mounted file system of `SIZE` bytes; skips, with the reason, where mounting is not permitted."""
    place = folder / "mount"
    place.mkdir()
    if kind == "tmpfs":
        commands = [["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]]
    else:
        image = folder / "image"
        image.write_bytes(b"")
        os.truncate(image, SIZE)
        commands = [
            ["mkfs.ext4", "-q", "-F", "-b", "1024", str(image)],
            ["mount", "-o", "loop", str(image), str(place)],
        ]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        except FileNotFoundError:
            pytest.skip(f"NOT TESTED ON A FULL DISK: {command[0]} is not there")
        if done.returncode:
            pytest.skip(f"NOT TESTED ON A FULL DISK: {' '.join(command)}: {done.stderr.strip()}")
    return place


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    place = mounted(request.param, tmp_path)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


class Ballast:
    """A file that takes all the room there is, but for `left` bytes."""

    def __init__(self, place: Path) -> None:
        self.path = place / "ballast"

    def fill(self, left: int = 0) -> None:
        with self.path.open("wb") as file:
            for size in (1 << 16, 1 << 12, 1 << 10):
                try:
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
                except OSError:
                    continue
            file.truncate(max(0, file.seek(0, os.SEEK_END) - left))

    def remove(self) -> None:
        self.path.unlink()


def body_of(number: int) -> bytes:
    return b"%06d" % number * 150


def test_when_the_log_finds_no_room_put_says_so_reads_go_on_and_put_goes_on_later(small_disk: Path) -> None:
    ballast = Ballast(small_disk)
    store = stratalog.open(small_disk / "store", flush="sync", **SETTINGS)
    number = 0
    while number < 150:
        store.put("t", body_of(number), keys=f"k{number}")
        number += 1
    assert store.queue("t").max_offset == number
    ballast.fill()
    full = ""
    while not full:
        try:
            store.put("t", body_of(number), keys=f"k{number}")
            number += 1
        except DiskFull as error:
            full = str(error)
    assert "262144: no room for a file of 262,144 bytes; free space" in full
    assert str(small_disk) in full
    for put in (
        lambda: store.put("t", body_of(0)),
        lambda: store.put_many("t", [body_of(0)] * 3),
        lambda: store.append(pa.record_batch({"body": [body_of(0)] * 3}), topic="t"),
        lambda: store.queue("t").put_record(body_of(0)),
    ):
        with pytest.raises(DiskFull, match="free space"):
            put()
    readable: list[bytes] = []
    with contextlib.suppress(DiskFull):  # units behind it may find no room in the sparse queue file
        readable.extend(message.body for message in store.queue("t").read())
    assert len(readable) >= 150
    assert readable == [body_of(n) for n in range(len(readable))]
    with stratalog.open(small_disk / "store", mode="r", **SETTINGS) as reader:
        assert bodies(reader) == {("t", 0): [body_of(n) for n in range(number)]}
    ballast.remove()
    assert store.put("t", body_of(number), keys=f"k{number}").queue_offset == number
    assert [message.body for message in store.query("t", key="k7")] == [body_of(7)]
    check(store)
    store.close()
    with stratalog.open(small_disk / "store", **SETTINGS) as store:
        check(store)
        assert bodies(store) == {("t", 0): [body_of(n) for n in range(number + 1)]}


def test_when_queues_and_index_find_no_room_puts_go_on_and_nothing_is_missing_later(small_disk: Path) -> None:
    """The log has room in its file; the first unit of a new queue and the index file have not."""
    ballast = Ballast(small_disk)
    store = stratalog.open(small_disk / "store", **SETTINGS)
    store.put("old", body_of(0))
    assert store.queue("old").max_offset == 1
    ballast.fill()
    for number in range(100):
        store.put(f"new{number % 3}", body_of(number), queue_id=number % 2, keys=[f"k{number}"], tags="a")
        store.put("old", body_of(number + 1), keys="k")
        if number % 10 == 0:
            assert next(store.queue("old").read(0)).body == body_of(0)
    with pytest.raises(DiskFull, match="free space"):
        store.dispatch()
    ballast.remove()
    check(store)
    for number in range(100):
        queue = store.queue(f"new{number % 3}", number % 2)
        assert body_of(number) in [message.body for message in queue.read()]
    assert [message.body for message in store.queue("old").read(0, count=101)] == [body_of(n) for n in range(101)]
    store.close()


def test_closing_on_a_full_disk_says_so_and_the_next_opening_finds_everything(small_disk: Path) -> None:
    ballast = Ballast(small_disk)
    store = stratalog.open(small_disk / "store", **SETTINGS)
    for number in range(100):
        store.put(f"t{number % 4}", body_of(number), keys=f"k{number}")
    ballast.fill()
    with pytest.raises(DiskFull, match="free space"):
        store.close()
    with pytest.raises(DiskFull, match="free space"):
        stratalog.open(small_disk / "store", **SETTINGS)
    with stratalog.open(small_disk / "store", mode="r", **SETTINGS) as reader:
        assert sum(map(len, bodies(reader).values())) == 100
    ballast.remove()
    with stratalog.open(small_disk / "store", **SETTINGS) as store:
        check(store)
        assert sum(map(len, bodies(store).values())) == 100


def test_a_new_store_on_a_full_disk_is_refused_and_can_be_made_later(small_disk: Path) -> None:
    ballast = Ballast(small_disk)
    ballast.fill()
    with pytest.raises(DiskFull, match="free space"), stratalog.open(small_disk / "store", **SETTINGS) as store:
        store.put("t", b"x")
    ballast.remove()
    with stratalog.open(small_disk / "store", **SETTINGS) as store:
        store.put("t", b"x")
        check(store)


def test_whatever_room_is_left_no_acknowledged_message_is_lost(small_disk: Path) -> None:
    """The disk fills up at other places each time: log, queue, index, checkpoint, names."""
    ballast = Ballast(small_disk)
    for left in (0, 1, 3, 8, 20, 90, 120, 280, 300, 360, 400, 560):
        root = small_disk / f"store{left}"
        acknowledged, store, full = [], None, ""
        ballast.fill(left * 1024)
        try:
            store = stratalog.open(root, flush="sync", **SETTINGS)
            for number in range(400):
                store.put(f"t{number // 100}", body_of(number), keys=f"k{number}")
                acknowledged.append(number)
                if number % 50 == 49:
                    store._flush_all()
        except DiskFull as error:
            full = str(error)
        assert not full or str(root) in full
        ballast.remove()
        if store is not None:
            check(store)
            store.put("t9", b"after")
            store.close()
        with stratalog.open(root, **SETTINGS) as store:
            check(store)
            found = bodies(store)
            for topic in range(4):
                expected = [body_of(number) for number in acknowledged if number // 100 == topic]
                assert found.get((f"t{topic}", 0), [])[: len(expected)] == expected
        subprocess.run(["rm", "-r", str(root)], check=True)


@pytest.fixture
def full_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A store on a tmpfs without a free page, whose files have no page for what was never written, as RocketMQ leaves
    them: a load from there would end the process."""
    place = mounted("tmpfs", tmp_path)
    settings = QUIET | {"max_hash_slot_num": 5000, "max_index_num": 20000}
    with stratalog.open(place / "store", mapped_file_size_commit_log=1 << 20, **settings) as store:
        for number in range(3000):
            store.put("t", body_of(number)[: 200 + number % 50], keys=f"k{number % 7}")
        end = store.log.end_offset % (1 << 20)
        store.put("t", bytes(-(end + 91 + 2) % 4096))
    for path in (place / "store").rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 12:
            data = path.read_bytes()
            path.unlink()
            with path.open("wb") as file:
                os.truncate(file.fileno(), len(data))
                for begin in range(0, len(data), 4096):
                    if any(page := data[begin : begin + 4096]):
                        os.pwrite(file.fileno(), page, begin)
    Ballast(place).fill()
    yield place / "store"
    subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


READING = ["verify", "repair", "inspect", "dump", "get t -n 3", "query t k3"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("command", READING)
def test_a_sparse_store_on_a_full_tmpfs_is_read(full_tmpfs: Path, command: str) -> None:
    name, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "stratalog", name, str(full_tmpfs), *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-500:])
