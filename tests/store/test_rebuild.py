"""`rebuild`: what dispatch would have written, byte for byte; old files until the new ones are whole."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, NotAStore, StoreLocked
from stratalog.layout.message import HEAD
from stratalog.layout.names import STAGING
from stratalog.layout.queue import UNIT
from stratalog.store.disk import Disk
from stratalog.tools import rebuild as module
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
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


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["exchanged", "noise", "zeros"])
def test_a_log_without_one_whole_record_empties_no_queue(tmp_path: Path, how: str, *, clean: bool) -> None:
    root, sizes = tmp_path / "store", SETTINGS | {"mapped_file_size_commit_log": 4096}
    given = StoreSettings(**sizes)
    with stratalog.open(root, **sizes) as store:
        for number in range(50):
            store.put("orders", b"%d" % number * 30, queue_id=number % 3)
    if not clean:
        (root / "abort").touch()
        (root / "checkpoint").unlink()
    files = sorted((root / "commitlog").iterdir())
    contents = [file.read_bytes() for file in files]
    for file, other in zip(files, contents[::-1], strict=True):
        file.write_bytes({"exchanged": other, "noise": b"\x5a" * 4096, "zeros": bytes(4096)}[how])
    assert len(files) > 1
    before = {path: path.read_bytes() for path in root.rglob("0*") if path.is_file()}
    assert not verify(root, settings=given).ok
    with pytest.raises(CorruptData, match=r"restore|right file"):
        rebuild(root, settings=given)
    assert {path: path.read_bytes() for path in root.rglob("0*") if path.is_file()} == before


@pytest.mark.parametrize("written", [0, 10, 19, 20, 21, 24])
def test_a_record_that_jumps_ahead_is_for_repair_and_rebuild_leaves_no_message_out(
    tmp_path: Path, written: int
) -> None:
    """A crash before the queue was written; what follows the record with the wrong offset seems to be older."""
    root = tmp_path / "store"
    with stratalog.open(root, **SETTINGS) as store:
        places = [store.put("orders", b"%d" % number * 30).commit_log_offset for number in range(24)]
    queue = sorted((root / "consumequeue/orders/0").iterdir())
    for number, file in enumerate(queue):
        kept = max(0, min(file.stat().st_size, written * UNIT.size - number * file.stat().st_size))
        file.write_bytes(file.read_bytes()[:kept].ljust(file.stat().st_size, b"\0"))
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    (root / "queues.snapshot").unlink()
    (log_file,) = (root / "commitlog").iterdir()
    data = bytearray(log_file.read_bytes())
    at = places[20] + HEAD.position("queue_offset")
    data[at : at + 8] = (120).to_bytes(8)
    log_file.write_bytes(data)
    report = verify(root, settings=GIVEN)
    assert [problem for problem in report.problems if "stratalog repair" in problem.next_step]
    with pytest.raises(CorruptData, match="stratalog repair"):
        rebuild(root, settings=GIVEN)
    assert repair(plan_repair(root, settings=GIVEN)).ok
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        assert [message.body for message in store.queue("orders").read()] == [b"%d" % n * 30 for n in range(24)]


def test_a_queue_that_the_log_knows_nothing_of_is_not_kept(root: Path) -> None:
    shutil.copytree(root / "consumequeue/orders/0", root / "consumequeue/ghost/0")
    shutil.copytree(root / "consumequeue/orders/0", root / "consumequeue/%LMQ%a/9")
    assert not verify(root, settings=GIVEN).ok
    rebuilt = rebuild(root, settings=GIVEN)
    assert (rebuilt.queue_count, rebuilt.unit_count) == (3, 200)
    assert verify(root, settings=GIVEN).ok
    assert not (root / "consumequeue/ghost").exists()
    assert not (root / "consumequeue/%LMQ%a/9").exists()


def test_a_queue_whose_messages_are_damaged_keeps_its_next_offset(root: Path) -> None:
    with stratalog.open(root, **SETTINGS) as store:
        first = store.put("late", b"x" * 50)
        last = store.put("late", b"y" * 50)
        store.put("orders", b"after")
    for receipt in (first, last):
        path, position = log_place(root, receipt.commit_log_offset)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes(receipt.store_size))
    assert rebuild(root, settings=GIVEN).damages
    with stratalog.open(root, **SETTINGS) as store:
        assert store.put("late", b"next").queue_offset == 2


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_whose_last_files_are_missing_is_refused_if_it_was_closed(root: Path, is_clean: bool) -> None:
    with stratalog.open(root, **SETTINGS) as store:
        for number in range(300):
            store.put("late", b"%d" % number * 20)
    newest = sorted((root / "commitlog").iterdir())
    for path in newest[2:]:
        path.unlink()
    before = derived(root)
    if is_clean:
        with pytest.raises(CorruptData, match=r"the log ends at offset 32,768, .*run `stratalog repair"):
            rebuild(root, settings=GIVEN)
        assert derived(root) == before
        assert repair(plan_repair(root, settings=GIVEN)).ok
        rebuild(root, settings=GIVEN)
        with stratalog.open(root, **SETTINGS) as store:
            assert store.put("late", b"next").queue_offset == 300
    else:
        (root / "abort").touch()
        rebuild(root, settings=GIVEN)
        assert not [problem for problem in verify(root, settings=GIVEN).problems if problem.part == "queue"]


def log_place(root: Path, commit_log_offset: int) -> tuple[Path, int]:
    position = commit_log_offset % SETTINGS["mapped_file_size_commit_log"]
    return root / "commitlog" / f"{commit_log_offset - position:020d}", position
