"""An opening that is refused changes nothing: what it leaves is what `repair` works from."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import KINDS, PLAIN, SIZES, Kind
from store.test_kinds import holds
from store.test_recreated_topics import unseal
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.message import HEAD
from stratalog.layout.names import ABORT, LOCK
from stratalog.layout.queue import UNIT
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from stratalog.tools.verify_files import UNDER_REPAIR


def log_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").iterdir() if any(path.read_bytes()))


def queue_file(root: Path, number: int) -> Path:
    """One of the files of the queue whose files are most."""
    queues = [path for tree in ("consumequeue", "batchconsumequeue") for path in (root / tree).glob("*/*")]
    return max((sorted(queue.iterdir()) for queue in queues), key=len)[number]


def extension_files(root: Path) -> list[Path]:
    return sorted((root / "consumequeue_ext").glob("*/*/*"))


def remove_queue(root: Path) -> None:
    """That of the first extension, if there is one."""
    names = [path.relative_to(root / "consumequeue_ext").parent for path in extension_files(root)[:1]]
    shutil.rmtree(root / "consumequeue" / names[0] if names else queue_file(root, 0).parent)


def zero_newest_unit(root: Path) -> None:
    data = queue_file(root, -1).read_bytes()
    end = len(data.rstrip(b"\0"))
    queue_file(root, -1).write_bytes(data[: max(0, end - 30)].ljust(len(data), b"\0"))


def add_empty(directory: Path) -> None:
    newest = max(directory.iterdir())
    (directory / f"{int(newest.name) + newest.stat().st_size:020d}").touch()


REFUSED: dict[str, Callable[[Path], object]] = {
    "newest log file missing": lambda root: log_files(root)[-1].unlink(),
    "log file missing": lambda root: log_files(root)[1].unlink(),
    "no log file": lambda root: [path.unlink() for path in (root / "commitlog").iterdir()],
    "newest log file exchanged": lambda root: shutil.copyfile(log_files(root)[0], log_files(root)[-1]),
    "newest log file renamed": lambda root: log_files(root)[-1].rename(root / "commitlog" / "newest"),
    "log file cut": lambda root: os.truncate(log_files(root)[1], 4000),
    "queue file cut": lambda root: os.truncate(queue_file(root, 0), 20),
    "extension file cut": lambda root: [os.truncate(path, 20) for path in extension_files(root)[:1]],
}
BESIDE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda root: None,
    "unit": zero_newest_unit,
    "queue file missing": lambda root: queue_file(root, 1).unlink(),
    "queue file empty": lambda root: os.truncate(queue_file(root, -1), 0),
    "empty log file": lambda root: add_empty(root / "commitlog"),
    "checkpoint": lambda root: (root / "checkpoint").write_bytes(b""),
    "queue missing": remove_queue,
    "snapshot": lambda root: (root / "queues.snapshot").unlink(missing_ok=True),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_refused_opening_changes_no_file(tmp_path: Path, kind: Kind, is_clean: bool) -> None:
    kind.made(tmp_path / "whole", count=300)
    refused = 0
    for why, spoil in REFUSED.items():
        for what, also in BESIDE.items():
            root = tmp_path / "store"
            shutil.copytree(tmp_path / "whole", root)
            also(root)
            spoil(root)
            if not is_clean:
                (root / ABORT).write_bytes(UNDER_REPAIR)
            before = contents(root)
            try:
                kind.open(root).close()
            except CorruptData:
                refused += 1
                assert contents(root) == before, (why, what)
            shutil.rmtree(root)
    assert refused > len(REFUSED) * len(BESIDE) // 2


def contents(root: Path) -> dict[str, bytes]:
    """All files by name, but for the lock."""
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("name", ["{}.bak", "{}x", "old", "{:.3}"])
@pytest.mark.parametrize("which", [0, 1, -1, None], ids=["first", "second", "newest", "only"])
def test_a_log_file_whose_name_is_none_is_named_by_all_and_the_printed_step_puts_it_right(
    which: int | None, name: str, *, is_clean: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = PLAIN.made(root, count=10 if which is None else 300)
    if not is_clean:
        (root / ABORT).touch()
        (root / "checkpoint").unlink()
        (root / "queues.snapshot").unlink()
    for path in (root / "commitlog").iterdir():  # what was made ahead
        if not any(path.read_bytes()):
            path.unlink()
    file = log_files(root)[which or 0]
    file.rename(file.with_name(name.format(file.name)))
    errors = []
    for call in (
        lambda: PLAIN.open(root, mode="r"),
        lambda: PLAIN.open(root),
        lambda: rebuild(root, settings=StoreSettings.make(SIZES)),
        lambda: plan_repair(root, settings=StoreSettings.make(SIZES)),
    ):
        with pytest.raises(CorruptData) as refused:
            call()
        errors.append(str(refused.value))
    errors += [problem.next_step for problem in verify(root, settings=StoreSettings.make(SIZES)).problems[:1]]
    steps = {found.group() for text in errors for found in [re.search("mv -n [^`]*", text)] if found}
    assert len(steps) == 1, errors
    subprocess.run(steps.pop(), shell=True, check=True)
    assert verify(root, settings=StoreSettings.make(SIZES)).ok
    with PLAIN.open(root) as store:
        holds(store, content)


@pytest.mark.parametrize("field", ["body_crc", "sys_flag", "total_size", "magic"])
def test_a_log_of_one_damaged_message_that_rocketmq_closed_is_not_removed(field: str, tmp_path: Path) -> None:
    """Retention left one log file, with one message."""
    size = SIZES["mapped_file_size_commit_log"]
    with PLAIN.open(tmp_path) as store:
        while store.put("other", b"to the next log file" * 20).commit_log_offset < size:
            pass
        end = store.queue("other").max_offset
    unseal(tmp_path)
    log_files(tmp_path)[0].unlink()
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[HEAD.position(field) + 3] ^= 0x10
    path.write_bytes(data)
    before = contents(tmp_path)
    for _ in range(2):
        with contextlib.suppress(CorruptData), PLAIN.open(tmp_path) as store:
            assert store.queue("other").max_offset == end
            assert store.recovery.warning or store.recovery.notes
    assert {name: content for name, content in contents(tmp_path).items() if "commitlog" in name} == {
        name: content for name, content in before.items() if "commitlog" in name
    }


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_torn_record_that_no_unit_knows_keeps_no_store_from_opening(is_clean: bool, tmp_path: Path) -> None:
    """RocketMQ was killed in its first put, and leaves the bytes when it is started and stopped."""
    with PLAIN.open(tmp_path) as store:
        store.put("other", b"x" * 900)
    unseal(tmp_path)
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / name)
    (path,) = log_files(tmp_path)
    data = bytearray(path.read_bytes())
    data[512:1024] = bytes(512)
    path.write_bytes(data)
    if not is_clean:
        (tmp_path / ABORT).write_bytes(b"4711")
        assert not plan_repair(tmp_path, settings=StoreSettings.make(SIZES)).lost
    with PLAIN.open(tmp_path) as store:
        assert store.put("other", b"new").queue_offset == 0


@pytest.mark.one_in(27)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("bit", range(32))
def test_a_changed_size_behind_the_newest_unit_invents_no_message(bit: int, count: int, tmp_path: Path) -> None:
    with PLAIN.open(tmp_path) as store:
        for _ in range(count):
            store.queue(*PLAIN.queues[0]).put(b"body")
    path = queue_file(tmp_path, 0)
    data = bytearray(path.read_bytes())
    data[count * UNIT.size + UNIT.position("size") + 3 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    assert repair(plan_repair(tmp_path, settings=StoreSettings.make(SIZES))).ok
    assert not verify(tmp_path).missing
    with PLAIN.open(tmp_path) as store:
        assert store.queue(*PLAIN.queues[0]).put(b"new").queue_offset == count
