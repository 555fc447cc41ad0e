"""An opening that is killed and the next one end where one that is not killed ends."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from crash.faults import Stopped, Syscalls, install, set_os
from store.kinds import KINDS, SIZES, Key, Kind, trees
from store.model import flip
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.message import HEAD
from stratalog.layout.names import ABORT, OWN_MARK
from stratalog.store import disk
from stratalog.store.message_store import MessageStore
from stratalog.store.snapshot import QueueEnd, note_ends
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

LOST_UNITS = 3
LOG_FILE_SIZE = SIZES["mapped_file_size_commit_log"]


def other_queue(root: Path, kind: Kind) -> Path:
    return kind.directory(root, kind.queues[1])


STATES: dict[str, Callable[[Path, Kind], object]] = {
    "all there": lambda root, kind: None,
    "no seal": lambda root, kind: (root / "checkpoint").write_bytes(b""),
    "broken seal": lambda root, kind: flip(root / "checkpoint", 4095 // 64),
    "a queue gone": lambda root, kind: shutil.rmtree(other_queue(root, kind)),
    "no index": lambda root, kind: shutil.rmtree(root / "index"),
    "units gone": lambda root, kind: zero_units(root, kind),
    "log ends before": lambda root, kind: zero_tail(root),
}


def zero_units(root: Path, kind: Kind) -> None:
    """Zero the newest units of a queue."""
    files, size = kind.files(root, kind.queues[0]), kind.layout.size
    units = [(path, at) for path in files for at in range(0, path.stat().st_size, size)]
    written = [(path, at) for path, at in units if any(path.read_bytes()[at : at + size])]
    for path, at in written[-LOST_UNITS:]:
        data = path.read_bytes()
        path.write_bytes(data[:at] + bytes(size) + data[at + size :])


def zero_tail(root: Path) -> None:
    newest = max(path for path in (root / "commitlog").iterdir() if any(path.read_bytes()))
    data = newest.read_bytes()
    newest.write_bytes(data[: len(data.rstrip(b"\0")) // 2].ljust(len(data), b"\0"))


def damage_newest(root: Path, offsets: list[int], log_file_size: int) -> None:
    for offset in offsets:
        flip(root / "commitlog" / f"{offset // log_file_size * log_file_size:020d}", offset % log_file_size + 90)


def told(store: MessageStore) -> tuple[dict[Key, int], list[str]]:
    ends = {key: store.queue(*key).max_offset for key in store.queues()}
    return ends, [note for note in store.recovery.notes if "lost" in note and "without a directory" not in note]


def make(root: Path, kind: Kind, state: str, *, is_clean: bool, mark: bytes = OWN_MARK) -> None:
    content = kind.made(root)
    newest = sorted({known.commit_log_offset for known in content.queues[kind.queues[0]].values()})[-2:]
    damage_newest(root, newest, LOG_FILE_SIZE)
    STATES[state](root, kind)
    if not is_clean:
        (root / ABORT).write_bytes(mark)


def kill_opening(monkeypatch: pytest.MonkeyPatch, kind: Kind, whole: Path, root: Path, number: int) -> Syscalls:
    """Make `root` a copy of `whole` whose opening was killed before the file change of this number; -1 for never
    opened."""
    shutil.rmtree(root)
    shutil.copytree(whole, root)
    calls = install(monkeypatch, root)
    calls.stop_at = number
    with suppress(Stopped):
        if number >= 0:
            kind.open(root).close()
    set_os(monkeypatch, os)
    return calls


@pytest.mark.one_in(234)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("stop", ["clean", "killed", "RocketMQ killed"])
def test_wherever_an_opening_is_killed_the_next_one_ends_the_same(
    tmp_path: Path, kind: Kind, state: str, stop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "whole", kind, state, is_clean=stop == "clean", mark=OWN_MARK if stop == "killed" else b"4711")
    root = tmp_path / "store"
    shutil.copytree(tmp_path / "whole", root)
    calls = install(monkeypatch, root)
    with kind.open(root) as store:
        straight, count = told(store), len(calls.calls)
    ended = max((n for n, call in enumerate(calls.calls[:count]) if "queues.snapshot" in call[1]), default=count)
    for number in range(len(state + kind.name) % 3, count, 3):
        calls = kill_opening(monkeypatch, kind, tmp_path / "whole", root, number)
        with kind.open(root) as store:
            ends, notes = told(store)
            assert ends == straight[0], (number, calls.calls[-3:])
            assert notes == straight[1] or number >= ended - 3, number  # there the killed one was done


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_a_killed_opening_noted_is_void_once_another_has_had_the_store(tmp_path: Path, kind: Kind) -> None:
    kind.made(tmp_path)
    with kind.open(tmp_path) as store:
        ends = told(store)[0]
    note_ends(tmp_path, disk.Disk(), [QueueEnd(*queue, end + 5, end + 5) for queue, end in ends.items()], 0)
    with kind.open(tmp_path) as store:
        assert told(store)[0] == ends
    for mark in (b"", b"4711", OWN_MARK):  # RocketMQ was killed, or we
        (tmp_path / ABORT).write_bytes(mark)
        note_ends(tmp_path, disk.Disk(), [QueueEnd(*queue, end + 5, end + 5) for queue, end in ends.items()], 0)
        if mark != OWN_MARK:
            with kind.open(tmp_path) as store:
                assert told(store)[0] == ends
    with kind.open(tmp_path) as store:
        assert told(store)[0] == {queue: end + 5 for queue, end in ends.items()}


@pytest.mark.one_in(108)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("state", ["no seal", "a queue gone", "units gone"])
@pytest.mark.parametrize("verb", ["rebuild", "repair"])
def test_after_a_killed_opening_the_tools_give_no_offset_again_either(
    tmp_path: Path, kind: Kind, state: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "whole", kind, state, is_clean=False)
    root, settings = tmp_path / "store", StoreSettings().override({**SIZES, **kind.settings})
    shutil.copytree(tmp_path / "whole", root)
    calls = install(monkeypatch, root)
    with kind.open(root) as store:
        straight, count = told(store)[0], len(calls.calls)
    done = 0
    for number in (-1, 0, *range(count // 4, count, count // 8), count):
        calls = kill_opening(monkeypatch, kind, tmp_path / "whole", root, number)
        with suppress(CorruptData):  # it says that the log was longer
            rebuild(root, settings=settings) if verb == "rebuild" else repair(plan_repair(root, settings=settings))
            with kind.open(root) as store:
                ends = told(store)[0]
            done += 1
            assert all(ends[queue] >= end for queue, end in straight.items()), number
    assert done or verb == "rebuild"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "extended" not in kind.name], ids=str)
@pytest.mark.parametrize("checkpoint", ["none", "another store's"])
def test_no_unit_goes_before_another_is_in_its_place(
    tmp_path: Path, kind: Kind, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ looks into the last ten log files after a crash: what no unit leads to before them is lost to it."""
    whole, root = tmp_path / "whole", tmp_path / "store"
    kind.made(whole, count=150)
    (whole / ABORT).touch()
    (whole / "checkpoint").unlink()
    if checkpoint != "none":
        kind.made(tmp_path / "other", count=70)
        shutil.copyfile(tmp_path / "other" / "checkpoint", whole / "checkpoint")
    units = trees(whole)
    shutil.copytree(whole, root)
    calls = install(monkeypatch, root)
    with kind.open(root):
        count = len(calls.calls)
    for number in range(0, count, 2):
        calls = kill_opening(monkeypatch, kind, whole, root, number)
        assert trees(root) == units, (number, calls.calls[-3:])


@pytest.mark.one_in(54)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("verb", ["open", "rebuild", "repair"])
def test_a_queue_that_lost_every_message_keeps_its_end(tmp_path: Path, kind: Kind, verb: str) -> None:
    """Be it at the end of a queue file or not."""
    settings = StoreSettings().override({**SIZES, **kind.settings})
    for count in range(26, 44, 2):
        root = tmp_path / str(count)
        content, key = kind.made(root, count=count), kind.queues[0]
        with kind.open(root) as store:
            end = store.queue(*key).max_offset
            places = {known.commit_log_offset for known in content.queues[key].values()}
            sizes = {offset: store.message(offset).store_size for offset in places}
        for offset, size in sizes.items():
            with (root / "commitlog" / f"{offset // LOG_FILE_SIZE * LOG_FILE_SIZE:020d}").open("r+b") as file:
                file.seek(offset % LOG_FILE_SIZE)
                file.write(bytes(size))
        (root / ABORT).touch()
        for _ in range(2):
            with kind.open(root) as store:
                assert store.queue(*key).max_offset == end, count
        if verb == "rebuild":
            with suppress(CorruptData):  # it says that the log was longer
                rebuild(root, settings=settings)
        elif verb == "repair":
            repair(plan_repair(root, settings=settings))
        for _ in range(2):
            with kind.open(root) as store:
                assert not store.recovery.rebuilt
                assert store.queue(*key).max_offset == end, count


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
@pytest.mark.parametrize("bit", [0, 1, 2, 22, 40, 46, 63])
@pytest.mark.parametrize("is_clean", [True, False])
def test_the_newest_message_s_wrong_queue_offset_is_not_given_again(
    tmp_path: Path, kind: Kind, bit: int, is_clean: bool
) -> None:
    """Its unit says where it belongs, and repair still restores it."""
    content = kind.made(tmp_path)
    for key in kind.queues:
        place = max(known.commit_log_offset for known in content.queues[key].values())
        path = tmp_path / "commitlog" / f"{place // LOG_FILE_SIZE * LOG_FILE_SIZE:020d}"
        data = bytearray(path.read_bytes())
        data[place % LOG_FILE_SIZE + HEAD.position("queue_offset") + 7 - bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
    if not is_clean:
        (tmp_path / ABORT).touch()
    for _ in range(2):
        with kind.open(tmp_path) as store:
            ends = {key: store.queue(*key).max_offset for key in kind.queues}
        assert all(end >= len(content.queues[key]) for key, end in ends.items())
