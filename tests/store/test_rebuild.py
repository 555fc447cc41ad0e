"""`rebuild`: what dispatch would have written, byte for byte; old files until the new ones are whole."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.config.settings import StoreSettings
from stratalog.errors import NotAStore, StoreLocked
from stratalog.layout.names import STAGING
from stratalog.layout.queue import UNIT
from stratalog.store.disk import Disk
from stratalog.tools import rebuild as module
from stratalog.tools.rebuild import rebuild
from stratalog.tools.verify import verify

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 20 * UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
GIVEN = StoreSettings(**SETTINGS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with stratalog.open(tmp_path / "store", **SETTINGS) as store:
        for number in range(200):
            store.put("orders", b"%d" % number * 20, queue_id=number % 3, tags="ab"[number % 2], keys=[f"k{number}"])
    return tmp_path / "store"


def derived(root: Path) -> dict[str, bytes]:
    """Content of every derived file; index files by their order, because they are named by the clock."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in (root / "consumequeue").rglob("0*")
             if path.is_file()}  # fmt: skip
    for number, path in enumerate(sorted((root / "index").iterdir())):
        found[f"index {number}"] = path.read_bytes()
    return found | {"checkpoint": (root / "checkpoint").read_bytes()}


def log(root: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (root / "commitlog").iterdir()}


@pytest.mark.parametrize("lost", [(), ("consumequeue",), ("index",), ("consumequeue", "index", "checkpoint")])
def test_what_is_rebuilt_is_what_dispatch_wrote(root: Path, lost: tuple[str, ...]) -> None:
    before, before_log = derived(root), log(root)
    for name in lost:
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
    rebuilt = rebuild(root, settings=GIVEN)
    assert (rebuilt.record_count, rebuilt.queue_count, rebuilt.unit_count) == (200, 3, 200)
    assert derived(root) == before
    assert log(root) == before_log
    assert verify(root, settings=GIVEN).ok
    assert not (root / STAGING).exists()
    assert not (root / "abort").exists()


def test_only_what_is_named_is_rebuilt(root: Path) -> None:
    (root / "index" / "20000101000000000").write_bytes(b"x")
    before = (root / "index" / "20000101000000000").stat().st_ino
    rebuild(root, settings=GIVEN, parts=["queues"])
    assert (root / "index" / "20000101000000000").stat().st_ino == before
    rebuild(root, settings=GIVEN, parts=["index"])
    assert not (root / "index" / "20000101000000000").exists()


def test_a_kill_leaves_old_or_new_and_the_next_call_finishes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = derived(root)
    real = module.exchange

    class Killed(BaseException):
        pass

    for survived in range(4):
        left = iter(range(survived))

        def exchange(one: Path, other: Path, left: Any = left) -> None:
            if next(left, None) is None:
                raise Killed
            real(one, other)

        monkeypatch.setattr(module, "exchange", exchange)
        with pytest.raises(Killed) if survived < 3 else pytest.MonkeyPatch.context():
            rebuild(root, settings=GIVEN)
        assert derived(root) == before
    assert not list(root.glob("*.tmp"))


def test_a_queue_whose_messages_have_all_gone_keeps_its_next_offset(root: Path) -> None:
    with stratalog.open(root, **SETTINGS) as store:
        for _ in range(30):
            store.put("old", b"x" * 400)
        for _ in range(100):
            store.put("orders", b"x" * 400)
    oldest = sorted((root / "commitlog").iterdir())
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        end = store.log.message(0).commit_log_offset + 16 * 1024 * (len(oldest) - 1)
    for path in oldest[:-1]:
        path.unlink()
    assert end
    rebuild(root, settings=GIVEN)
    with stratalog.open(root, **SETTINGS) as store:
        assert store.recovery.clean
        assert not store.recovery.rebuilt
        assert store.queue("old").put(b"next").queue_offset == 30


def test_a_store_that_is_open_is_not_rebuilt(root: Path, tmp_path: Path) -> None:
    release = Disk().lock(root / "lock")
    try:
        with pytest.raises(StoreLocked):
            rebuild(root, settings=GIVEN)
    finally:
        release()
    with pytest.raises(NotAStore):
        rebuild(tmp_path / "nowhere")


def test_damage_of_the_log_is_reported_by_the_rebuild_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = min((root / "commitlog").iterdir())
    first.write_bytes(first.read_bytes()[:300] + b"\xff" * 20 + first.read_bytes()[320:])
    assert len(rebuild(root, settings=GIVEN).damages) == 1
    assert not caplog.records
