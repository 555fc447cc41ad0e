"""Openings that read and index the log in several threads, interrupted by an exception from a signal handler."""

import gc
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.interrupts import Dropped, Injector, unraisable_dropped
from store.model import QUIET, SMALL
from stratalog.store import log_scan, rederive
from stratalog.store.index_file import Index
from stratalog.store.rederive import _IndexBeside

COUNT = 200


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of which everything is to be read and built; opening it takes many pieces and chunks."""
    with stratalog.open(tmp_path / "killed", **SMALL, **QUIET) as store:
        for number in range(COUNT):
            store.put("t", b"x" * 100, keys=f"k{number}")
    for name in ("consumequeue", "index"):
        shutil.rmtree(store.root / name)
    (store.root / "checkpoint").unlink()
    (store.root / "abort").touch()
    monkeypatch.setattr(log_scan, "_PIECE_SIZE", 2000)
    monkeypatch.setattr(rederive, "_LONG_SIZE", 1000)
    return store.root


def pools() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(("stratalog-scan", "stratalog-index"))]


@pytest.mark.one_in(40)
@pytest.mark.parametrize("part", range(40))
@pytest.mark.parametrize("index_s", [0.0, 0.002])
def test_it_ends_and_leaves_no_thread_behind(
    index_s: float, part: int, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Index.put

    def slowly(*args: Any) -> None:
        time.sleep(index_s)
        put(*args)

    monkeypatch.setattr(Index, "put", slowly)

    def case(injector: Injector) -> None:
        root = tmp_path / "copy"
        shutil.copytree(killed, root)
        try:
            with injector:
                store = stratalog.open(root, **SMALL, **QUIET)
            store.close()
        except Dropped:
            pass
        deadline = time.monotonic() + 10
        while pools():  # one may just be started, or be at work
            assert time.monotonic() < deadline, (pools(), injector.point)
            gc.collect()
        with stratalog.open(root, **SMALL, **QUIET) as store:
            assert store.queue("t").max_offset == COUNT
            assert [hit.queue_offset for hit in store.query("t", key=f"k{COUNT - 1}")] == [COUNT - 1]
        shutil.rmtree(root)

    traced = (log_scan.__file__, rederive.__file__, stratalog.helpers.__file__)
    with unraisable_dropped():
        case(counted := Injector(0, returns=False, traced=traced))
        assert len(counted.points) > 300
        for number in counted.points[part::40]:
            case(Injector(number, returns=False, traced=traced, raises=Dropped))


def test_a_second_exception_while_it_ends_waits_for_the_threads_too(
    killed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they work on is unmapped next."""
    at_work, later, put = list[int](), list[int](), _IndexBeside.put

    def slowly(*args: Any) -> None:
        at_work.append(1)
        time.sleep(0.3)
        at_work.pop()

    def interrupted(*args: Any) -> None:
        put(*args)
        while not at_work:
            time.sleep(0.001)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        raise Dropped

    def again(*given: object) -> None:
        later.append(1)
        if len(later) == 3:
            signal.setitimer(signal.ITIMER_REAL, 0)
        raise Dropped

    monkeypatch.setattr(Index, "put", slowly)
    monkeypatch.setattr(_IndexBeside, "put", interrupted)
    before = signal.signal(signal.SIGALRM, again)
    try:
        with pytest.raises(Dropped):
            stratalog.open(killed, **SMALL, **QUIET)
        assert not at_work
        assert later
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("call", ["open", "verify", "plan_repair", "rebuild"])
def test_a_child_that_a_handler_forks_meanwhile_ends_and_the_parent_goes_on(call: str, killed: Path) -> None:
    """It does not have the threads that are waited for."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(killed), call], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


FORK = """
import faulthandler, os, signal, sys, threading, time
from pathlib import Path
import stratalog
from stratalog.config.settings import StoreSettings
from stratalog.errors import StratalogError
from stratalog.store import log_scan, rederive
from stratalog.tools import survey
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

_, root, call = sys.argv
root = Path(root)
sizes = {given!r}
settings = StoreSettings().override(sizes)
log_scan._PIECE_SIZE, rederive._LONG_SIZE = 2000, 1000
main, children, forking, get = threading.get_ident(), [], [], log_scan.scan

def slowly(*args):
    if threading.get_ident() != main and len(children) < 6:
        time.sleep(0.005)
        signal.pthread_kill(main, signal.SIGUSR1)
        time.sleep(0.005)
    return get(*args)

def fork(*given):
    if len(children) < 6 and not forking:
        forking.append(1)
        child = os.fork()
        forking.clear()
        if child:
            children.append(child)
        else:
            children.extend([0] * 6)
            faulthandler.dump_traceback_later(20, exit=True)

def work():
    if call == "open":
        stratalog.open(root, mode="r", settings=settings).close()
    elif call == "verify":
        verify(root, settings=settings)
    elif call == "plan_repair":
        plan_repair(root, settings=settings)
    else:
        rebuild(root, settings=settings)

log_scan.scan = survey.scan = slowly
signal.signal(signal.SIGUSR1, fork)
parent = os.getpid()
try:
    work()
except StratalogError:
    if os.getpid() == parent:
        raise
if os.getpid() != parent:
    os._exit(0)
assert children
for child in children:
    assert not os.waitpid(child, 0)[1]
""".replace("{given!r}", repr(SMALL))
