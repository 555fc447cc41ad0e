"""Opening, beside RocketMQ: after a clean stop, after a kill with everything read, and with queues and index lost."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import stratalog
from bench.data import TOPIC, Messages
from bench.harness import Bench, Case, Line, Sample, Target, touch_memory
from bench.rival import NAME, Rival, rival_of
from bench.sparse import LOG_SIZE, QUEUE_COUNT, make_sparse_store

_GIB = 1 << 30
_FILE_SIZE = 256 << 20
_CONF = {"mappedFileSizeCommitLog": _FILE_SIZE}


@contextmanager
def floor(bench: Bench) -> Iterator[Sequence[Case]]:
    with rival_of(bench) as rival, ExitStack() as opened:
        found: list[Case] = []
        for body_size, name, log_size, kill_aim in ((1024, "1 KB", _GIB, 4), (100, "100 B", _GIB // 2, 8)):
            ours = opened.enter_context(bench.folder(f"open-{body_size}-ours"))
            theirs = opened.enter_context(bench.folder(f"open-{body_size}-java"))
            size = Messages(1, body_size).record_size
            count = bench.count(int(log_size // size))
            _fill(ours / "store", body_size, count)
            shutil.copytree(ours / "store", theirs / "store")
            found.append(_reopen_case(rival, ours / "store", theirs / "store", name, count, size, kill_aim))
        sparse = opened.enter_context(bench.folder("sparse")) / "store"
        make_sparse_store(sparse)
        found.append(_sparse_case(sparse))
        yield found


def _fill(folder: Path, body_size: int, count: int) -> None:
    with stratalog.open(folder, mapped_file_size_commit_log=_FILE_SIZE) as store:
        for batch in Messages(count, body_size).batches(100_000):
            store.append(batch, topic=TOPIC)


def _as_killed(folder: Path) -> None:
    """As a kill leaves it when nothing vouches for any part: everything has to be read."""
    (folder / "abort").touch()
    (folder / "checkpoint").unlink(missing_ok=True)


def _without_derived(folder: Path) -> None:
    """Only the log."""
    for name in ("consumequeue", "index"):
        shutil.rmtree(folder / name)
    (folder / "checkpoint").unlink(missing_ok=True)


def _reopen_case(
    rival: Rival, ours: Path, theirs: Path, name: str, count: int, record_size: float, kill_aim: float
) -> Case:
    """Both stores are put into the same state, opened, and closed again. RocketMQ counts from load() until its
    dispatch knows everything; we count until the newest message can be read."""
    size = count * record_size

    def run() -> list[Sample]:
        clean = _ours(ours, count), _theirs(rival, theirs, count)
        for folder in (ours, theirs):
            _as_killed(folder)
        killed = _ours(ours, count), _theirs(rival, theirs, count)
        for folder in (ours, theirs):
            _without_derived(folder)
        rebuilt = _ours(ours, count), _theirs(rival, theirs, count)
        return [
            Sample(clean[0], clean[1]),
            Sample(size / killed[0], size / killed[1]),
            Sample(count / rebuilt[0], count / rebuilt[1]),
        ]

    gib = f"{size / _GIB:.2g} GiB"
    lines = [
        Line(f"open after a clean stop, {gib} of {name}", "s", limit=NAME, target=Target(0.3, at_most=True)),
        Line(f"open after a kill, everything read, {name}", "B/s", limit=NAME, target=Target(kill_aim, "ratio")),
        Line(f"open without queues and index, {name}", limit=NAME, target=Target(8, "ratio"), message_size=record_size),
    ]
    return Case(lines, run)


def _ours(folder: Path, count: int) -> float:
    touch_memory()
    begin = time.perf_counter()
    with stratalog.open(folder) as store:
        known = store.queue(TOPIC).max_offset
        took = time.perf_counter() - begin
    if known != count:
        raise RuntimeError(f"opened with {known} of {count} messages")
    return took


def _theirs(rival: Rival, folder: Path, count: int) -> float:
    touch_memory()
    with rival.store(folder, **_CONF) as opened:
        if opened["messages"] != count:
            raise RuntimeError(f"RocketMQ opened with {opened['messages']} of {count} messages")
    return float(opened["settled"]) / 1e9


# -- a large store ---------------------------------------------------------------------------------------------------

_PROBE = """
import sys, time, os
import stratalog
for path in sys.argv[1:]:
    begin = time.perf_counter()
    with stratalog.open(path) as store:
        known = len(store.queues())
        took = time.perf_counter() - begin
        resident = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS"))
        print(known, took, resident * 1024, len(os.listdir("/proc/self/fd")))
"""


def _sparse_case(folder: Path) -> Case:
    """In a process of its own: what it keeps resident and open, and how long opening took, after the opening of a small
    store, whose time is that of loading numpy and the kernels."""

    def run() -> list[Sample]:
        small = folder.with_name("small")
        with stratalog.open(small) as store:
            store.put(TOPIC, b"only")
        paths = str(small), str(folder)
        touch_memory()
        done = subprocess.run([sys.executable, "-c", _PROBE, *paths], check=True, capture_output=True, text=True)
        first, second = ([float(word) for word in line.split()] for line in done.stdout.splitlines())
        known, took, resident, descriptors = second
        if known != QUEUE_COUNT:
            raise RuntimeError(f"opened with {known:.0f} of {QUEUE_COUNT} queues")
        return [Sample(took), Sample(resident / 1e6), Sample(descriptors), Sample(first[1])]

    what = f"{LOG_SIZE // 10**9} GB, {QUEUE_COUNT:,} queues"
    lines = [
        Line(f"open after a clean stop, {what}", "s", target=Target(0.3, at_most=True)),
        Line("same, resident MB", "count", target=Target(300, at_most=True)),
        Line("same, open descriptors", "count", target=Target(200, at_most=True)),
        Line("a small store, the first in a new process", "s"),
    ]
    return Case(lines, run)
