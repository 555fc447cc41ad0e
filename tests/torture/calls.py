"""Every system call of a short life, one after the other: the process ends there, or the call fails.

In this process the calls under the store's disk are replaced (the default, works everywhere); where `strace` is
installed, the kernel itself ends a real process at its n-th call.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from crash.faults import SYNCS, Stopped, Syscalls, install
from stratalog.errors import DiskFull, StoreFailed, StratalogError
from stratalog.layout.names import SNAPSHOT
from stratalog.store.message_store import MessageStore
from torture.report import Lost, NotHere, Row, Torture, Undetected, environment
from torture.smoke import Diary, body_of, compare_reopened, live

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


def trace_of(root: Path, *, in_one_thread: bool = False) -> list[tuple[str, str]]:
    """The calls of a life in which nothing fails: the same in every life."""
    with pytest.MonkeyPatch.context() as patch:
        calls = install(patch, root)
        live(root, Diary(), in_one_thread=in_one_thread)
    shutil.rmtree(root)
    return calls.calls


def points(torture: Torture, count: int) -> range:
    """Every call in the full form, every so many in the short one."""
    stride = torture.count(23, 1)
    return range(torture.chance("calls").randrange(stride), count, stride)


def ended(torture: Torture, row: Row) -> None:
    """The process ends at the n-th call: as with kill -9, nothing tidies up."""
    folder = torture.place("ended")
    trace = trace_of(folder / "trace", in_one_thread=True)  # the end must reach whoever put, not a thread
    for number in points(torture, len(trace)):
        if not torture.wants(number):
            continue
        with row.case(number):
            root, diary = folder / "store", Diary()
            with pytest.MonkeyPatch.context() as patch:
                calls = install(patch, root)
                calls.stop_at = number
                with contextlib.suppress(Stopped):
                    live(root, diary, in_one_thread=True)
            assert calls.stopped
            compare_reopened(root, diary)
        shutil.rmtree(folder / "store", ignore_errors=True)
    row.notes.append(f"{len(trace)} calls: {_counted(trace)}")


def _counted(trace: list[tuple[str, str]]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(name for name, _ in trace).most_common())


def errors(torture: Torture, row: Row) -> None:
    """The n-th call fails, once with EIO and once with ENOSPC."""
    folder = torture.place("errors")
    trace = trace_of(folder / "trace")
    for number in points(torture, len(trace)):
        for name, code in ERRORS.items():
            if torture.wants(f"{number}/{name}"):
                with row.case(f"{number}/{name} ({trace[number][0]} of {Path(trace[number][1]).name})"):
                    _one_error(folder / "store", number, code)
                shutil.rmtree(folder / "store", ignore_errors=True)


def _one_error(root: Path, number: int, code: int) -> None:
    diary, opened = Diary(), list[MessageStore]()
    with pytest.MonkeyPatch.context() as patch:
        calls = install(patch, root)
        calls.error = code
        calls.fail_at = lambda at, name, path: at == number
        error = None
        try:
            live(root, diary, lambda store, put: _watched(store, put, diary, opened))
        except StratalogError as raised:
            error = raised
    name, path = calls.calls[number]
    assert calls.failures == 1
    if code == errno.EIO and error is None and not _may_be_silent(calls.calls, number):
        raise Undetected(f"{name} of {path} failed and nobody was told")
    if error is not None and str(root) not in str(error):
        raise Undetected(f"the error does not name the place: {error}")
    if error is not None and code == errno.EIO and os.strerror(code) not in str(error):
        raise Undetected(f"the error does not say why: {error}")
    if name in SYNCS and code == errno.EIO:
        _check_not_retried(calls, number)
    compare_reopened(root, diary)


def _may_be_silent(calls: list[tuple[str, str]], number: int) -> bool:
    """The snapshot of the queues only saves time at the next opening: that it could not be written concerns nobody."""
    around = calls[number], calls[number - 1]
    return any(Path(path).name == f"{SNAPSHOT}.tmp" for _, path in around)


def _watched(store: MessageStore, put: object, diary: Diary, opened: list[MessageStore]) -> None:
    """A put, and after one that failed: the store refuses the next or lets it through, and reads go on."""
    try:
        put()  # type: ignore[operator]
    except DiskFull:
        diary.refused()
        diary.compare(store, behind=True)
        raise
    except StoreFailed as error:
        with pytest.raises(StoreFailed, match=os.strerror(errno.EIO) + "|" + os.strerror(errno.ENOSPC)):
            store.put("t", b"later")
        diary.compare(store, behind=True)
        raise error


def _check_not_retried(calls: Syscalls, number: int) -> None:
    path = calls.calls[number][1].removesuffix(".tmp")
    again = [call for call in calls.calls[number + 1 :] if call[0] in SYNCS and call[1] == path]
    if any(Path(file).is_file() for _, file in again):
        raise Undetected(f"the flush of {path} failed and was tried again")


# -- the kernel's own faults -----------------------------------------------------------------------------------------

REAL_CALLS = ("fdatasync", "fsync", "rename", "ftruncate", "fallocate", "pwrite64", "unlink", "mkdir")


def traced(torture: Torture, row: Row) -> None:
    """SIGKILL at the n-th real call, by strace."""
    strace = shutil.which("strace")
    if strace is None:
        raise NotHere("strace is not installed; the calls in this process were all tried")
    folder = torture.place("traced", on_disk=True)
    counts, whole = _real_counts(strace, folder)
    wanted = torture.count(1, 8)
    for call in REAL_CALLS if torture.full else torture.chance("traced").sample(REAL_CALLS, 2):
        for number in sorted({1 + at * (counts[call] - 1) // max(1, wanted - 1) for at in range(wanted)}):
            if counts[call] and torture.wants(f"{call}/{number}"):
                with row.case(f"{call}/{number}"):
                    inject = f"inject={call}:signal=SIGKILL:when={number}"
                    said = _run_traced(folder / "store", [strace, "-f", "-qq", "-o", "/dev/null", "-e", inject])
                    _compare_told(folder / "store", said, whole)
                shutil.rmtree(folder / "store", ignore_errors=True)
    row.notes.append("real calls of that life: " + ", ".join(f"{counts[call]} {call}" for call in REAL_CALLS))


def _run_traced(root: Path, prefix: list[str]) -> list[str]:
    command = [*prefix, sys.executable, "-m", "torture.smoke_process", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment())
    return done.stdout.split("\n")[:-1]


def _real_counts(strace: str, folder: Path) -> tuple[Counter[str], list[str]]:
    """How often the whole life makes each call, and what it tells."""
    output = folder / "trace"
    calls = f"trace={','.join(REAL_CALLS)}"
    said = _run_traced(folder / "store", [strace, "-f", "-qq", "-o", str(output), "-e", calls])
    if not said:
        raise NotHere("strace may not trace here")
    shutil.rmtree(folder / "store")
    words = (line.split(None, 1)[1] for line in output.read_text().splitlines() if " " in line)
    return Counter(word.split("(")[0] for word in words if "(" in word), said


def _compare_told(root: Path, said: list[str], whole: list[str]) -> None:
    """The process told (begun, acknowledged) after each put; killed in one, it began what the whole life tells next."""
    diary = Diary()
    if not root.exists():
        if said:
            raise Lost("the store is not there")
        return
    for line in whole:
        kind, queue_id, number = line.split()
        if kind == "begun":
            diary.begun.append((int(queue_id), int(number)))
    for line in said:
        if line.startswith("acknowledged"):
            diary.acknowledged = int(line.split()[2])
    assert all(body_of(number) for _, number in diary.begun)
    compare_reopened(root, diary)
