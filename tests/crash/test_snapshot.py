"""The snapshot of the queues is believed while nothing has changed, and never after anything has."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.test_power_cut import TINY
from crash.test_recovery import expected, filled, open_tiny
from store.model import bodies, check, flip, log_files, queue_files
from stratalog.layout.names import SNAPSHOT
from stratalog.layout.queue import UNIT
from stratalog.store import snapshot
from stratalog.store.consume_queue import ConsumeQueue


@pytest.fixture(autouse=True)
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Snapshots of young queues count; the list names the queues whose files were looked into."""
    monkeypatch.setattr(snapshot, "TICK_NS", -1)
    monkeypatch.setitem(TINY, "mapped_file_size_consume_queue", 12 * UNIT.size)
    looked: list[str] = []
    load = ConsumeQueue.load

    def loud(queue: ConsumeQueue, **given: bool) -> None:
        looked.append(f"{queue.topic}/{queue.queue_id}")
        load(queue, **given)

    monkeypatch.setattr(ConsumeQueue, "load", loud)
    return looked


def closed(root: Path, looked_at: list[str]) -> Path:
    """A store after a clean stop, and after the tick of the clock in which it was."""
    filled(root, clean=True)
    looked_at.clear()
    probe = root.with_name("probe")
    while True:
        probe.touch()
        if probe.stat().st_ctime_ns > (root / "lock").stat().st_ctime_ns + 1:
            return root


@pytest.mark.parametrize("mode", ["r", "w"])
def test_after_a_clean_stop_no_queue_is_looked_at(mode: str, folder: Path, looked_at: list[str]) -> None:
    root = closed(folder / "store", looked_at)
    for _ in range(3):
        with open_tiny(root, mode=mode) as store:
            assert looked_at == []
            assert store.recovery.untouched
            assert bodies(store) == expected(range(60))
            check(store)


def test_a_store_goes_on_from_the_snapshot(folder: Path, looked_at: list[str]) -> None:
    root = closed(folder / "store", looked_at)
    with open_tiny(root) as store:
        assert store.put("t", b"after", queue_id=1).queue_offset == 30
        assert store.put("new", b"first").queue_offset == 0
    looked_at.clear()
    with open_tiny(root) as store:
        assert looked_at == []
        check(store)
        assert bodies(store)["t", 1] == [*expected(range(60))["t", 1], b"after"]
        assert bodies(store)["new", 0] == [b"first"]


def test_a_reader_beside_a_writer_does_not_believe_it(folder: Path, looked_at: list[str]) -> None:
    root = closed(folder / "store", looked_at)
    with open_tiny(root) as writer:
        writer.put("t", b"more", queue_id=0)
        writer.dispatch()
        with open_tiny(root, mode="r") as store:
            assert looked_at
            assert bodies(store)["t", 0][-1] == b"more"


def test_what_changed_in_the_same_tick_of_the_clock_is_looked_at(
    folder: Path, looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "TICK_NS", 3_600_000_000_000)
    root = closed(folder / "store", looked_at)
    with open_tiny(root) as store:
        assert looked_at == ["t/0", "t/1"]
        assert bodies(store) == expected(range(60))


# -- whatever else changes -------------------------------------------------------------------------------------------


def times_kept(path: Path, change: Callable[[Path], object]) -> None:
    """A change that puts the modification time back, as a copy tool does."""
    before = path.stat()
    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def zeroed(path: Path, first: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: first * UNIT.size].ljust(len(data), b"\0"))


def replaced_by_a_copy(path: Path) -> None:
    copied = path.with_name(path.name + "-copy")
    (shutil.copytree if path.is_dir() else shutil.copy2)(path, copied)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    copied.rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "units zeroed at the end": lambda root: zeroed(queue_files(root, "t", 0)[-1], 3),
    "units zeroed, times put back": lambda root: times_kept(
        queue_files(root, "t", 0)[-1], lambda path: zeroed(path, 3)
    ),
    "units zeroed in a middle file": lambda root: zeroed(queue_files(root, "t", 1)[1], 0),
    "a middle file touched": lambda root: queue_files(root, "t", 1)[1].touch(),
    "last file removed": lambda root: queue_files(root, "t", 0)[-1].unlink(),
    "middle file removed": lambda root: queue_files(root, "t", 0)[1].unlink(),
    "first file removed": lambda root: queue_files(root, "t", 0)[0].unlink(),
    "a file replaced by its copy": lambda root: replaced_by_a_copy(queue_files(root, "t", 0)[-1]),
    "a queue removed": lambda root: shutil.rmtree(root / "consumequeue" / "t" / "0"),
    "a queue replaced by its copy": lambda root: replaced_by_a_copy(root / "consumequeue" / "t" / "0"),
    "a topic removed": lambda root: shutil.rmtree(root / "consumequeue" / "t"),
    "all queues removed": lambda root: shutil.rmtree(root / "consumequeue"),
    "all queues replaced by their copy": lambda root: replaced_by_a_copy(root / "consumequeue"),
    "a queue added": lambda root: (root / "consumequeue" / "t" / "7").mkdir(),
    "a topic added": lambda root: (root / "consumequeue" / "other").mkdir(),
    "the lock written, as RocketMQ does": lambda root: (root / "lock").write_bytes(b"lock"),
    "the lock removed": lambda root: (root / "lock").unlink(),
    "a stop that was not clean": lambda root: (root / "abort").touch(),
    "the checkpoint removed": lambda root: (root / "checkpoint").unlink(),
    "the log's newest file touched": lambda root: log_files(root)[-1].touch(),
    "the snapshot cut": lambda root: os.truncate(root / SNAPSHOT, 200),
    "the snapshot empty": lambda root: os.truncate(root / SNAPSHOT, 0),
    "the snapshot damaged": lambda root: flip(root / SNAPSHOT, 150, 1),
    "the snapshot removed": lambda root: (root / SNAPSHOT).unlink(),
    "the store copied with its times": replaced_by_a_copy,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_after_any_change_the_queues_are_looked_at(
    change: Callable[[Path], object], folder: Path, looked_at: list[str]
) -> None:
    root = closed(folder / "store", looked_at)
    change(root)
    with open_tiny(root, mode="r") as store:
        assert looked_at
        whole = change is not CHANGES["units zeroed in a middle file"]  # which is for `verify` to find
        if whole:
            check(store)
            assert bodies(store) == expected(range(60))
    with open_tiny(root) as store:
        if whole:
            check(store)
            assert store.put("t", b"after", queue_id=1).queue_offset == 30


def test_queues_put_back_from_an_older_backup_are_looked_at(folder: Path, looked_at: list[str]) -> None:
    root = closed(folder / "store", looked_at)
    shutil.copytree(root, folder / "backup")
    with open_tiny(root) as store:
        for number in range(60, 80):
            store.put("t", b"%d" % number, queue_id=number % 2)
    shutil.rmtree(root / "consumequeue")
    shutil.move(folder / "backup" / "consumequeue", root)
    with open_tiny(root) as store:
        check(store)
        assert [len(found) for found in bodies(store).values()] == [40, 40]


def test_a_full_disk_at_the_close_costs_only_the_snapshot(
    folder: Path, looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_tiny(folder / "store")
    store.put("t", b"one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store._disk, "mark", full)
    store.close()
    assert not (folder / "store" / "abort").exists()
    with open_tiny(folder / "store") as store:
        assert bodies(store) == {("t", 0): [b"one"]}
