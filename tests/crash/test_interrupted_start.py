"""A signal handler's exception wherever the package starts a thread: it is raised as it is, and no thread half runs."""

import contextlib
import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from numba.core.compiler_lock import global_compiler_lock

import stratalog
from crash.interrupts import Dropped, Injector, unraisable_dropped
from store.model import QUIET, SMALL
from stratalog import helpers
from stratalog.errors import StoreLocked
from stratalog.helpers import ThreadPool, imported
from stratalog.store import commit_log, next_files, opening, snapshot, worker
from stratalog.store.disk import Disk
from stratalog.store.flush import Periodic
from stratalog.store.message_store import MessageStore

TRACED = (threading.__file__, helpers.__file__, worker.__file__)
MODULE = "first_used"


def nothing(store: MessageStore) -> None:
    pass


def first_use(store: MessageStore) -> None:
    sys.modules.pop(MODULE, None)
    assert imported(MODULE).is_loaded


def put_async(store: MessageStore) -> None:
    future = store._start_futures()
    assert future


def roll(store: MessageStore) -> None:
    for _ in range(30):
        store.put("t", b"x" * 3000)


def pool(store: MessageStore) -> None:
    """Waiting for the threads is not looked at: `Future.result` and `Thread.join` are Python."""
    threads = ThreadPool(2, "stratalog-test")
    try:
        for _ in range(2):
            threads.submit(time.sleep, 0.002)
    finally:
        Injector._disarm()
        threads.shutdown()
        for thread in threading.enumerate():
            if thread.name.startswith("stratalog-test"):
                thread.join(10)
                assert not thread.is_alive()


USES: dict[str, Callable[[MessageStore], None]] = {
    "open": nothing, "first use": first_use, "put_async": put_async, "next file": roll, "pool": pool,
}  # fmt: skip


@pytest.mark.one_in(108)
@pytest.mark.parametrize("part", range(120))
def test_an_opening_that_is_interrupted_again_while_it_releases_the_store_leaves_nothing_behind(
    part: int, tmp_path: Path
) -> None:
    given: dict[str, Any] = {**SMALL, **QUIET}
    with stratalog.open(tmp_path, **given) as store:
        store.put("t", b"first")
    before = set(threading.enumerate())

    def case(injector: Injector, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first exception comes as the second thread is started, the other one at a point of what follows."""
        started, start = list[Periodic](), Periodic.start

        def interrupted(thread: Periodic) -> None:
            start(thread)
            started.append(thread)
            if len(started) == 2:
                injector.__enter__()
                raise Dropped

        monkeypatch.setattr(Periodic, "start", interrupted)
        try:
            with pytest.raises(Dropped):
                stratalog.open(tmp_path, **given)
        finally:
            injector._disarm()
            monkeypatch.undo()
        for thread in set(threading.enumerate()) - before:
            thread.join(0.5)
            assert not thread.is_alive(), (thread, injector.point)
        stratalog.open(tmp_path, **given).close()

    with unraisable_dropped():
        for _ in range(2):
            case(counted := Injector(0, raises=Dropped), pytest.MonkeyPatch())
        assert len(counted.points) > 120
        for number in counted.points[part::120]:
            case(Injector(number, raises=Dropped), pytest.MonkeyPatch())


def late() -> None:
    time.sleep(0.01)  # the new thread runs
    raise Dropped


@pytest.mark.one_in(300)
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("name", USES)
def test_the_exception_is_raised_as_it_is_and_the_store_goes_on(
    name: str, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (next_files, commit_log):
        monkeypatch.setattr(module, "AHEAD_SIZE_MIN", 0)
    given: dict[str, Any] = {**SMALL, **QUIET, "flush": "sync"}
    (tmp_path / f"{MODULE}.py").write_text("is_loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with stratalog.open(tmp_path / "left", **given) as store:
        store.put("t", b"first")

    def case(injector: Injector, root: Path) -> None:
        shutil.copytree(tmp_path / "left", root)
        before = set(threading.enumerate())
        store = None if name == "open" else stratalog.open(root, **given)
        try:
            with injector:
                if store:
                    USES[name](store)
                else:
                    store = stratalog.open(root, **given)
        except Dropped:
            pass
        if store:
            USES[name](store)
            store.put("t", b"second")
            store.close()
        with stratalog.open(root, **given) as again:
            assert again.put("t", b"third").queue_offset == again.queue("t").max_offset - 1
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
            assert not thread.is_alive(), thread
        shutil.rmtree(root)

    with unraisable_dropped():
        counted = Injector(0, returns=name != "open", traced=TRACED)
        case(counted, tmp_path / "counted")
        assert len(counted.points) > 20
        for number in counted.points[part::8]:
            raising: dict[str, Any] = {"calls": late} if number % 2 else {"raises": Dropped}
            injector = Injector(number, returns=name != "open", traced=TRACED, **raising)
            try:
                case(injector, tmp_path / str(number))
            except BaseException as error:
                error.add_note(f"{injector.point}")
                raise


def test_loading_goes_on_when_a_handler_raises_as_a_process_forks() -> None:
    """The exception itself is lost: CPython raises none that comes in a fork's callbacks."""

    def fork(injector: Injector) -> None:
        with unraisable_dropped(), injector:
            child = os.fork()
            if not child:
                os._exit(helpers.is_loading())
        assert os.waitpid(child, 0)[1] == 0, injector.point
        assert not helpers.is_loading(), injector.point

    counted = Injector(0, traced=(helpers.__file__,))
    fork(counted)
    assert len(counted.points) > 5
    for number in counted.points:
        fork(Injector(number, traced=(helpers.__file__,)))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(global_compiler_lock._lock.acquire, timeout=10).result(), f"{number}"
            pool.submit(global_compiler_lock._lock.release).result()


def test_a_lock_that_is_interrupted_as_it_is_taken_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", lambda given: lost.append(given.exc_type))

    def take(injector: Injector) -> None:
        with contextlib.suppress(Dropped), injector:
            Disk().lock(tmp_path / "lock")()
        Disk().lock(tmp_path / "lock")()

    take(counted := Injector(0))
    assert len(counted.points) > 20
    for number in counted.points:
        take(Injector(number, raises=Dropped))
    assert not {*lost} - {Dropped}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("part", range(4))
def test_the_garbage_collector_is_on_wherever_opening_is_interrupted(part: int, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL, **QUIET) as store:
        store.put("t", b"first")

    def opened(injector: Injector) -> BaseException | None:
        try:
            with injector:
                stratalog.open(tmp_path, **SMALL, **QUIET).close()
        except Dropped as error:
            return error
        return None

    traced = (snapshot.__file__, contextlib.__file__)
    with unraisable_dropped():
        opened(counted := Injector(0, traced=traced))
        assert len(counted.points) > 100
        for number in counted.points[part::4]:
            raised = opened(injector := Injector(number, raises=Dropped, traced=traced))
            assert gc.isenabled(), injector.point
            del raised  # with its frames, and what they hold


def test_no_lock_is_left_wherever_opening_is_interrupted(tmp_path: Path) -> None:
    """Not even until the next garbage collection; but for the store that `open` returns, which nobody has then."""
    given: dict[str, Any] = {**SMALL, **QUIET}
    with stratalog.open(tmp_path, **given) as store:
        store.put("t", b"first")

    def opened(injector: Injector) -> None:
        with contextlib.suppress(Dropped), injector:
            stratalog.open(tmp_path, **given).close()

    traced = (opening.__file__,)
    with unraisable_dropped():
        opened(counted := Injector(0, returns=False, traced=traced))
        assert len(counted.points) > 50
        gc.freeze()  # what other tests left is not looked at each time
        for number in counted.points:
            gc.collect()
            gc.disable()
            try:
                opened(injector := Injector(number, returns=False, raises=Dropped, traced=traced))
                try:
                    stratalog.open(tmp_path, **given).close()
                except StoreLocked as error:
                    raise AssertionError(injector.point) from error
            finally:
                gc.enable()
