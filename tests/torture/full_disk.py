"""A full disk at every allocation: puts are refused, reads go on, and all goes on by itself when there is room.

In this process every call that takes room fails from the n-th on, until the room is given back. On a real tmpfs and a
real ext4 a ballast leaves some kilobytes free, and is removed in the middle.
"""

import errno
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import stratalog
from crash.faults import Syscalls, install, numbers
from crash.test_disk_full import SETTINGS, Ballast, body_of
from crash.test_disk_full import mounted as small_mount
from store.model import Clock, check
from stratalog.errors import DiskFull
from stratalog.store.message_store import MessageStore
from torture.calls import trace_of
from torture.report import Lost, NotHere, Row, Torture, Undetected, WrongPrefix
from torture.smoke import ROUNDS, WAYS, Diary, compare_reopened
from torture.smoke import SETTINGS as SMOKE

ALLOCATING = frozenset({"posix_fallocate", "pwrite", "mkdir", "rename"})
"""Calls that may need a block: data, or a directory's. `ftruncate` makes holes, which need none."""


class Shortage:
    """Allocating calls fail with ENOSPC from call `first` on, until `give_room`."""

    def __init__(self, calls: Syscalls, first: int) -> None:
        self.is_full = True
        calls.error = errno.ENOSPC
        calls.fail_at = lambda number, name, path: self.is_full and number >= first and name in ALLOCATING

    def give_room(self) -> None:
        self.is_full = False


def shortages(torture: Torture, row: Row) -> None:
    folder = torture.place("shortages")
    trace = trace_of(folder / "trace")
    points = numbers(trace, ALLOCATING)
    for number in points[:: torture.count(7, 1)]:
        if torture.wants(number):
            with row.case(f"{number} ({trace[number][0]} of {Path(trace[number][1]).name})", seconds=30):
                _one_shortage(folder / "store", number)
            shutil.rmtree(folder / "store", ignore_errors=True)
    row.notes.append(f"{len(points)} calls of one life allocate")


def _one_shortage(root: Path, first: int) -> None:
    diary = Diary()
    with pytest.MonkeyPatch.context() as patch:
        calls = install(patch, root)
        shortage = Shortage(calls, first)
        for _ in range(2):
            store = _opened(root, shortage)
            for _ in range(ROUNDS):
                for way in WAYS:
                    _put_through(store, diary, way, shortage)
            _close(store, shortage)
    compare_reopened(root, diary)


def _opened(root: Path, shortage: Shortage) -> MessageStore:
    clock = Clock()
    try:
        return stratalog.open(root, clock_ns=clock, **SMOKE)
    except DiskFull as error:
        _check_told(error, root)
        shortage.give_room()
        return stratalog.open(root, clock_ns=clock, **SMOKE)


def _close(store: MessageStore, shortage: Shortage) -> None:
    """A close that finds no room says so; the next opening finds everything."""
    try:
        store.close()
    except DiskFull as error:
        _check_told(error, store.root)
        shortage.give_room()


def _put_through(
    store: MessageStore, diary: Diary, way: Callable[[MessageStore, Diary], None], shortage: Shortage
) -> None:
    """Put; when there is no room: refused again, reads go on, and with room the same put works."""
    try:
        way(store, diary)
    except DiskFull as error:
        _check_told(error, store.root)
        _forget_refused(store, diary)
        diary.compare(store, behind=True)
        with suppress(DiskFull):
            way(store, diary)
            raise Undetected("refused for want of room, and then accepted without any") from error
        _forget_refused(store, diary)
        shortage.give_room()
        way(store, diary)
        check(store)
        diary.compare(store)


def _forget_refused(store: MessageStore, diary: Diary) -> None:
    """Of an Arrow batch the first rows may be among the messages, as the error says; of any other put nothing is."""
    diary.acknowledged = min(len(diary.begun), max(diary.acknowledged, _written(store)))
    diary.refused()


def _written(store: MessageStore) -> int:
    return sum(store.queue("t", queue_id).next_offset for queue_id in (0, 1))


def _check_told(error: DiskFull, root: Path) -> None:
    if str(root) not in str(error) or ("free space" not in str(error) and "no room" not in str(error)):
        raise Undetected(f"the error does not tell what to do: {error}")


# -- real file systems -----------------------------------------------------------------------------------------------

MESSAGES = 160


@contextmanager
def _mounted(kind: str, folder: Path) -> Iterator[Path]:
    import subprocess

    try:
        place = small_mount(kind, folder)
    except pytest.skip.Exception as reason:
        raise NotHere(str(reason)) from None
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, timeout=30)


def real(torture: Torture, row: Row) -> None:
    """A ballast leaves room for some kilobytes: each time another file finds none."""
    for kind in ("tmpfs", "ext4"):
        with _mounted(kind, torture.place(f"full-{kind}", on_disk=True)) as place:
            for number in range(torture.count(5, 60)):
                left = torture.chance("real", f"{kind}/{number}").randrange(0, 900)
                if torture.wants(f"{kind}/{number}"):
                    with row.case(f"{kind}/{number} ({left} KiB left)"):
                        _one_ballast(place, left * 1024)


def _one_ballast(place: Path, left: int) -> None:
    root, ballast, done = place / "store", Ballast(place), 0
    ballast.fill(left)
    store, is_full, refused = None, True, 0
    try:
        while done < MESSAGES:
            try:
                store = store or stratalog.open(root, flush="sync", **SETTINGS)
                store.put(f"t{done % 4}", body_of(done), keys=f"k{done}")
                done += 1
                if done % 40 == 0:
                    with suppress(DiskFull):
                        store.dispatch()
            except DiskFull as error:
                _check_told(error, place)
                refused += 1
                if refused == 3 and is_full:
                    ballast.remove()
                    is_full = False
                if refused > 4:
                    raise Lost("there is room again, and puts are still refused") from error
        if is_full:
            ballast.remove()
        assert store is not None
        check(store)
        store.close()
        with stratalog.open(root, **SETTINGS) as store:
            check(store)
            for topic in range(4):
                read = [message.body for message in store.queue(f"t{topic}").read()]
                if read != [body_of(number) for number in range(topic, done, 4)]:
                    raise WrongPrefix(f"queue t{topic}/0 holds {len(read)} other messages")
    finally:
        with suppress(Exception):
            if store is not None:
                store.close()
        shutil.rmtree(root, ignore_errors=True)
        ballast.path.unlink(missing_ok=True)
