"""A writer killed between any two steps leaves the old state readable; the batch done again gives the same bytes."""

import itertools
import os
import stat
from pathlib import Path

import pytest

from stratalog import tiered
from stratalog.store.message_store import MessageStore
from stratalog.tiered import Manifest, PosixBackend
from stratalog.tiered.compaction import compact
from stratalog.tiered.segment import Data
from stratalog.tiered.writer import WriterSettings
from tiered.conftest import BROKER, CLUSTER, MakeStore
from tiered.offload import entry_for, offload

SMALL = WriterSettings(commit_log_max_size=2000, consume_queue_max_size=200, buffer_size=700)
FIRST, REST = 20, 25


class Killed(BaseException):
    """Nothing catches it, as nothing catches a SIGKILL."""


class StopsAt(PosixBackend):
    """Dies in the n-th operation that changes the disk: before it, or (`torn`) after half of its bytes."""

    def __init__(self, root: Path, *, operation: int, torn: bool) -> None:
        super().__init__(root)
        self.left = operation
        self.torn = torn

    def write(self, path: str, position: int, data: Data) -> None:
        if self._dies() and self.torn:
            super().write(path, position, memoryview(data)[: len(data) // 2])
        self._step()
        super().write(path, position, data)

    def sync(self, paths: list[str]) -> None:
        self._step()
        super().sync(paths)

    def put_if_absent(self, path: str, data: Data) -> bool:
        if self._dies() and self.torn:  # the answer never arrives
            super().put_if_absent(path, data)
        self._step()
        return super().put_if_absent(path, data)

    def _dies(self) -> bool:
        return self.left == 0

    def _step(self) -> None:
        if self._dies():
            raise Killed
        self.left -= 1


def bodies(root: Path) -> dict[tuple[str, int], list[bytes]]:
    with tiered.open(root) as tier:
        return {name: [message.body for message in tier.queue(*name).read()] for name in tier.queues()}


def segments(root: Path) -> dict[str, bytes]:
    backend = PosixBackend(root)
    return {path: (root / path).read_bytes() for path in backend.list("") if "/_stratalog/" not in path}


def written_by(backend: PosixBackend, store: MessageStore) -> None:
    """The batch whose crash is looked at: the rest of all queues, committed, and the index compacted."""
    manifest = Manifest(backend, CLUSTER, BROKER)
    state = manifest.load()
    entry = entry_for(store, backend, state, settings=SMALL)
    state = manifest.commit(entry, state)
    compact(backend, manifest, state, slot_count=5, item_capacity=60)


class Power:
    """What a power cut leaves: of a directory the names it had when it was last synced, of a file the bytes."""

    def __init__(self) -> None:
        self.names: dict[int, set[str]] = {}
        self.data: dict[int, bytes] = {}

    def sync(self, fd: int) -> None:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            self.names[status.st_ino] = set(os.listdir(fd))
        else:
            self.data[status.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def cut(self, folder: Path, target: Path) -> Path:
        target.mkdir()
        for entry in folder.iterdir():
            if entry.name in self.names.get(folder.stat().st_ino, ()):
                if entry.is_dir():
                    self.cut(entry, target / entry.name)
                else:
                    (target / entry.name).write_bytes(self.data.get(entry.stat().st_ino, b""))
        return target


@pytest.mark.parametrize("torn", [False, True], ids=["between two steps", "in the middle of a step"])
def test_a_killed_batch_loses_nothing_and_is_done_again_to_the_same_bytes(
    make_store: MakeStore, tmp_path: Path, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    power = Power()
    monkeypatch.setattr("os.fsync", power.sync)
    monkeypatch.setattr("os.fdatasync", power.sync)
    queues = [("orders", 0), ("orders", 1), ("payments", 0)]
    store = make_store(*queues, count=FIRST + REST)
    old = {name: [b"body-%d" % i for i in range(FIRST)] for name in queues}
    new = {name: [b"body-%d" % i for i in range(FIRST + REST)] for name in queues}

    def begun(name: str) -> Path:
        backend = PosixBackend(tmp_path / name)
        manifest = Manifest(backend, CLUSTER, BROKER)
        manifest.commit(entry_for(store, backend, manifest.load(), settings=SMALL, count=FIRST), manifest.load())
        return backend.root

    clean = begun("clean")
    written_by(PosixBackend(clean), store)
    assert bodies(clean) == new
    seen = set()
    for operation in itertools.count():
        root = begun(f"crash-{operation}")
        try:
            written_by(StopsAt(root, operation=operation, torn=torn), store)
        except Killed:
            found = bodies(root)
            assert found in (old, new)
            seen.add(found == new)
            assert bodies(power.cut(root, tmp_path / f"cut-{operation}")) in (old, found)
            written_by(PosixBackend(root), store)
            assert bodies(root) == new
            assert bodies(power.cut(root, tmp_path / f"cut-again-{operation}")) == new
            assert segments(root) == segments(clean)
            with tiered.open(root) as tier:
                hits = tier.query("orders", key="common", limit=1000)
                assert len(hits) == 2 * (FIRST + REST)
        else:
            break
    assert operation > 40
    assert seen == {False, True}


def test_two_jobs_that_copy_the_same_messages_at_once_copy_them_once(make_store: MakeStore, tmp_path: Path) -> None:
    store = make_store(("orders", 0), ("orders", 1), count=60)
    ours, theirs = (Manifest(PosixBackend(tmp_path / "tier"), CLUSTER, BROKER) for _ in range(2))
    backends = [PosixBackend(tmp_path / "tier") for _ in range(2)]
    state = ours.load()
    entries = [entry_for(store, backend, state, settings=SMALL, count=40) for backend in backends]
    first = ours.commit(entries[0], state)
    assert theirs.commit(entries[1], state) == first
    offload(store, backends[1], theirs, settings=SMALL)
    assert bodies(tmp_path / "tier") == {("orders", q): [b"body-%d" % i for i in range(60)] for q in (0, 1)}
    with tiered.open(tmp_path / "tier") as tier:
        assert len(tier.query("orders", key="common", limit=1000)) == 120
        assert len(list(tier.index_items("orders", "common"))) == 120
