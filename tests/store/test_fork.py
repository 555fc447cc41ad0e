"""A forked child and the stores it inherits: every call fails with one error, and the parent notices nothing."""

import _strptime
import asyncio
import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from numba.core.compiler_lock import global_compiler_lock

import stratalog
from crash.interrupts import Dropped
from store.conftest import OpenStore
from store.model import QUIET, SMALL, check
from stratalog import helpers, tiered
from stratalog.errors import StoreClosed, StoreLocked
from stratalog.kernels import aside
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue
from stratalog.tools.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
CHILD_S = 20
INHERITED = r"was opened by process \d+ before os.fork\(\).*Open it again here"


def in_child(act: Callable[[], object]) -> str:
    """Fork in this thread, let the child act, and return what it came to: `done`, or the error's class and text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        outcome = "done"
        try:
            act()
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            outcome = f"{type(error).__name__}: {error}"
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert wait([pipe], CHILD_S + 5), "the child hangs"
        said = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    return said


def on_thread(act: Callable[[], str]) -> str:
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(act()))
    thread.start()
    thread.join(CHILD_S + 10)
    return said[0]


def is_refused(said: str) -> bool:
    return said.startswith("StoreClosed: ") and "before os.fork()" in said and "Open it again here" in said


def fingerprint(root: Path) -> dict[str, tuple[int, int, int, bytes]]:
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, data)
    return found


BATCH = pa.record_batch({"body": [b"late"], "topic": ["t"], "queueId": [0]})

USES: dict[str, Callable[[MessageStore, Queue, Callable[..., Any]], object]] = {
    "put": lambda store, queue, put: store.put("t", b"late"),
    "put with properties": lambda store, queue, put: store.put("t", b"late", tags="a", keys=["k"]),
    "put to a new queue": lambda store, queue, put: store.put("new", b"late"),
    "put by queue": lambda store, queue, put: queue.put(b"late"),
    "put bound before": lambda store, queue, put: put(b"late"),
    "put_raw": lambda store, queue, put: queue.put_raw(b"late"),
    "put_record": lambda store, queue, put: queue.put_record(b"late", b""),
    "put_many": lambda store, queue, put: store.put_many("t", [b"late"] * 3),
    "put_many by queue": lambda store, queue, put: queue.put_many([b"late"] * 3),
    "put_async": lambda store, queue, put: asyncio.run(store.put_async("t", b"late")),
    "put by the class": lambda store, queue, put: MessageStore.put(store, "t", b"late"),
    "append": lambda store, queue, put: store.append(BATCH),
    "append nothing": lambda store, queue, put: store.append(BATCH[:0]),
    "append by queue": lambda store, queue, put: queue.append(BATCH),
    "read": lambda store, queue, put: list(queue.read()),
    "follow": lambda store, queue, put: list(queue.read(follow=True)),
    "read_arrow": lambda store, queue, put: queue.read_arrow(0),
    "query": lambda store, queue, put: store.query("t", key="k"),
    "message": lambda store, queue, put: store.message(0),
    "flush": lambda store, queue, put: store.flush(),
    "dispatch": lambda store, queue, put: store.dispatch(),
    "create_topic": lambda store, queue, put: store.create_topic("new"),
    "with": lambda store, queue, put: store.__enter__(),
    "close": lambda store, queue, put: store.close(),
}


@contextlib.contextmanager
def busy(store: MessageStore, *, count: int) -> Iterator[list[tuple[int, bytes]]]:
    """While the block runs, threads put: they hold the log's lock, lead flushes, wait for them, and dispatch."""
    acknowledged: list[tuple[int, bytes]] = []
    is_over = threading.Event()

    def work(thread: int) -> None:
        number = 0
        while not is_over.is_set():
            body = b"busy %d/%d" % (thread, number)
            if number % 3:
                acknowledged.append((store.put("t", body).queue_offset, body))
            else:
                bodies = [body] * 3
                receipts = store.put_many("t", bodies)
                acknowledged.extend((receipt.queue_offset, body) for receipt in receipts)
            number += 1
            is_over.wait(0.0005)
            if not number % 10:
                list(store.queue("t").read(store.queue("t").max_offset))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield acknowledged
    finally:
        is_over.set()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)


@pytest.mark.one_in(36)
@pytest.mark.parametrize("by", ["main thread", "another thread"])
@pytest.mark.parametrize("kind", ["sync", "async", "read-only", "busy"])
def test_every_call_on_an_inherited_store_fails_with_one_error_and_touches_nothing(
    kind: str, by: str, open_store: OpenStore
) -> None:
    store = open_store(flush="async" if kind == "async" else "sync", checked=kind != "busy")
    queue = store.queue("t")
    bodies = [b"%d" % number for number in range(150)]
    for body in bodies:
        queue.put(body, keys=["k"])
    if kind == "read-only":
        store.close()
        store = open_store(mode="r")
        queue = store.queue("t")
    before = None if kind == "busy" else fingerprint(store.root)
    with busy(store, count=3 if kind == "busy" else 0) as acknowledged:
        for name, use in USES.items():
            put = queue.put
            run = lambda use=use, put=put: in_child(lambda: use(store, queue, put))  # noqa: E731
            said = run() if by == "main thread" else on_thread(run)
            assert is_refused(said), (name, said)
            assert before is None or fingerprint(store.root) == before, name
    there = {message.queue_offset: message.body for message in queue.read()}
    assert dict(acknowledged).items() <= there.items()
    assert [there[offset] for offset in range(150)] == bodies
    assert len(there) == 150 + len(acknowledged)
    if kind != "read-only":
        assert queue.put(b"after").queue_offset == len(there)
        store.close()
        assert verify(store.root).problems == []


@pytest.mark.parametrize("mode", ["w", "r"])
def test_no_public_name_of_an_inherited_store_or_queue_works(mode: str, open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")
    if mode == "r":
        store.close()
        store = open_store(mode="r")
    queue = store.queue("t")

    def ask() -> None:
        for thing in (store, queue):
            assert "before os.fork()" in repr(thing)
            for name in dir(type(thing)):
                if not name.startswith("_") and name != "root":
                    with pytest.raises(StoreClosed, match=INHERITED):
                        getattr(thing, name)

    assert in_child(ask) == "done"


@pytest.mark.parametrize("name", ["read", "follow", "joined"])
def test_an_iterator_that_was_begun_before_the_fork_ends_with_the_error(name: str, open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    for number in range(3000):
        store.put("t", b"%d" % number, keys=["k"], wait=number == 2999)
    tier = tiered.TieredStore(tiered.PosixBackend(store.root.parent / "tier"), tiered.TierState("c", "b"))
    iterators: dict[str, Callable[[], Iterator[Any]]] = {
        "read": lambda: store.queue("t").read(),
        "follow": lambda: store.queue("t").read(follow=True),
        "joined": lambda: tiered.attach(store, tier).queue("t").read(),
    }
    begun = iterators[name]()
    next(begun)
    said = in_child(lambda: list(begun))
    assert is_refused(said), said
    assert sum(1 for _ in islice(begun, 2999)) == 2999


def test_a_fork_in_the_middle_of_a_put_writes_in_the_parent_only(open_store: OpenStore) -> None:
    """By a signal handler, a finalizer, or here by the clock, which is asked with the log's lock held."""
    children: list[tuple[int, int]] = []
    forks = False

    def clock() -> int:
        nonlocal forks
        if forks:
            forks = False
            reading, writing = os.pipe()
            children.append((os.fork(), reading))
            if children[-1][0] == 0:
                signal.alarm(CHILD_S)
                children[:] = [(0, writing)]
        return time.time_ns()

    for act in (
        lambda store: store.put("t", b"x" * 100),
        lambda store: store.put("t", memoryview(b"x" * 100)),
        lambda store: store.put_many("t", [b"x" * 100]),
        lambda store: store.append(BATCH),
        lambda store: store.queue("t").put_record(b"x" * 100, b"", flag=1),
    ):
        children.clear()
        store = open_store(flush="sync", clock_ns=clock)
        store.put("t", b"first")
        before, forks = store.queue("t").max_offset, True
        outcome = "done"
        try:
            act(store)
        except BaseException as error:  # noqa: BLE001 - sent to the parent
            outcome = f"{type(error).__name__}: {error}"
        child, pipe = children[0]
        if child == 0:
            os.write(pipe, outcome.encode())
            os._exit(0)
        os.waitpid(child, 0)
        assert outcome == "done"
        assert is_refused(os.read(pipe, 1000).decode())
        os.close(pipe)
        assert store.queue("t").max_offset == before + 1
        check(store)
        store.close()


def test_the_parents_lock_ends_with_its_close_and_not_with_a_child(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # lives on beside the parent
        signal.alarm(CHILD_S)
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        assert in_child(lambda: stratalog.open(store.root, **SMALL)).startswith("StoreLocked: ")
        with pytest.raises(StoreLocked, match="in this process"):
            stratalog.open(store.root, **SMALL)
        store.close()
        open_store(store.root).close()
        assert in_child(lambda: stratalog.open(store.root, **SMALL).close()) == "done"
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_the_lock_of_a_killed_parent_does_not_live_on_in_its_child(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time, stratalog
store = stratalog.open(sys.argv[1], mapped_file_size_commit_log=65536, message_index_enable=False)
store.put("t", b"one")
store.flush()
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(60)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", program, tmp_path / "s"], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        try:
            parent.wait(20)
            with stratalog.open(tmp_path / "s", **QUIET, message_index_enable=False) as store:
                assert [message.body for message in store.queue("t").read()] == [b"one"]
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_started_program_does_not_inherit_the_stores_descriptors(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")
    code = (
        "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in map(int, os.listdir('/proc/self/fd')) if n > 2])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, close_fds=False, check=False)
    assert str(store.root) not in said.stdout + said.stderr


def test_a_child_that_closed_the_inherited_descriptors_keeps_no_file_of_the_store_open(open_store: OpenStore) -> None:
    store = open_store()
    for number in range(500):
        store.put("t", b"%d" % number * 50, queue_id=number % 7, keys=["k"])
    list(store.queue("t").read())

    def look() -> None:
        gc.collect()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the listing's own
                assert str(store.root) not in os.readlink(f"/proc/self/fd/{name}")
        assert str(store.root) not in Path("/proc/self/maps").read_text()

    assert in_child(look) == "done"
    assert len(list(store.queue("t", 1).read())) == 72


ENDS = {
    "os._exit": "os._exit(0)",
    "sys.exit in the block": "sys.exit(0)",
    "the block's end": "pass",
    "collected": "store = queue = None; gc.collect()",
    "an exception": "raise KeyError('the child')",
    "a put": "store.put('t', b'late')",
}


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_however_a_child_ends_the_parent_goes_on(flush: str, tmp_path: Path) -> None:
    program = """
import gc, os, sys, stratalog
given = {"mapped_file_size_commit_log": 65536, "message_index_enable": False}
with stratalog.open(sys.argv[1], flush=sys.argv[2], **given) as store:
    queue = store.queue("t")
    for end in sys.argv[3:]:
        store.put("t", b"one")
        sys.stderr.write("|")
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            exec(end)
            break
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=" ")
    else:
        print(queue.put(b"two").queue_offset, len(list(queue.read())))
"""
    command = [sys.executable, "-c", program, str(tmp_path / "s"), flush, *ENDS.values()]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert said.stdout.split() == ["0", "0", "1", "1", "1", "1", "6", "7"], said
    _, by_exit, by_sys_exit, by_end, collected, by_error, by_put = said.stderr.split("|")
    assert by_exit == by_sys_exit == ""
    assert "StoreClosed" in by_end
    assert "StoreClosed" in collected
    assert "KeyError: 'the child'" in by_error
    assert "StoreClosed" not in by_error
    assert "StoreClosed" in by_put
    assert verify(tmp_path / "s").problems == []


def put_in_a_process(root: Path, body: bytes) -> None:
    with stratalog.open(root, **SMALL, **QUIET) as store:
        store.put("t", body)


def put_to(store: MessageStore) -> None:
    store.put("t", b"late")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_process_of_multiprocessing_opens_the_store_afresh(method: str, open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")
    context = multiprocessing.get_context(method)
    if method == "fork":
        process = context.Process(target=put_to, args=(store,))
        process.start()
        process.join(60)
        assert process.exitcode == 1
    store.put("t", b"two")
    store.close()
    process = context.Process(target=put_in_a_process, args=(store.root, b"three"))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    with open_store(store.root) as again:
        assert [message.body for message in again.queue("t").read()] == [b"one", b"two", b"three"]


def test_a_store_that_a_child_opened_works_there_and_is_invalid_in_its_own_child(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")
    store.close()

    def open_again() -> None:
        with pytest.raises(StoreClosed, match="is closed; open it again"):
            store.put("t", b"late")
        with stratalog.open(store.root, **SMALL, **QUIET) as own:
            own.put("t", b"two")
            assert is_refused(in_child(lambda: own.put("t", b"late")))
            own.put("t", b"three")

    assert in_child(open_again) == "done"
    with open_store(store.root) as again:
        assert [message.body for message in again.queue("t").read()] == [b"one", b"two", b"three"]


def test_a_reader_opened_in_a_child_sees_what_the_parent_put(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")

    def look() -> None:
        with stratalog.open(store.root, mode="r", **SMALL) as reader:
            assert [message.body for message in reader.queue("t").read()] == [b"one"]

    assert in_child(look) == "done"


def test_the_process_that_compiles_is_ended_by_its_parent_only() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        assert in_child(lambda: aside._end(other)) == "done"
        time.sleep(0.05)
        assert other.poll() is None
        aside._end(other)


def test_a_copy_of_the_directory_does_not_release_the_lock(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put("t", b"one")
    shutil.copytree(store.root, tmp_path / "copy")
    (store.root / "lock").read_bytes()
    with pytest.raises(StoreLocked):
        stratalog.open(store.root, **SMALL)
    assert in_child(lambda: stratalog.open(store.root, **SMALL)).startswith("StoreLocked: ")
    store.put("t", b"two")


@pytest.mark.parametrize("kills", [0, 100])
@pytest.mark.parametrize(("locks", "own"), [("L", ""), ("C", ""), ("LC", ""), ("C", "L"), ("", "LC")])
def test_a_fork_waits_for_a_compilation_under_way(locks: str, own: str, kills: int) -> None:
    """A compiler's lock that another thread held would never be released in the child. Signal handlers may raise
    meanwhile; and who forks may hold a lock."""
    is_compiling, main, forking = threading.Event(), threading.get_ident(), list[int]()

    def late(*given: object) -> None:
        if forking:
            raise Dropped

    @contextlib.contextmanager
    def held(locks: str) -> Iterator[None]:
        none = contextlib.nullcontext()
        with helpers.load_lock if "L" in locks else none, global_compiler_lock if "C" in locks else none:
            yield

    def compile_slowly() -> None:
        with held(locks):
            is_compiling.set()
            for _ in range(kills if locks else 0):
                time.sleep(0.001)
                signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(0.1)

    def fork(real: Callable[[], int] = os.fork) -> int:
        while True:
            try:
                forking.append(1)
                return real()
            except Dropped:
                pass
            finally:
                forking.clear()

    def bind() -> None:
        with held("LC"):
            pass

    before = signal.signal(signal.SIGUSR1, late)
    thread = threading.Thread(target=compile_slowly)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fork", fork)
            thread.start()
            assert is_compiling.wait(10)
            with held(own):
                assert in_child(bind) == "done"
                thread.join()
        for _ in range(2):
            assert in_child(bind) == "done"
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert on_thread(lambda: str(bind())) == "None"


def test_opening_in_a_child_takes_no_lock_of_the_standard_library(open_store: OpenStore) -> None:
    """`datetime.strptime` has one, which another thread may hold at the fork."""
    store = open_store()
    for number in range(500):
        store.put("t", b"%d" % number, keys=[f"k{number}"])
    store.close()
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with _strptime._cache_lock:
            is_held.set()
            is_over.wait(CHILD_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)

    def work() -> None:
        with stratalog.open(store.root, **SMALL, **QUIET) as own:
            for number in range(500):
                own.put("t", b"%d" % number, keys=[f"k{number}"])
            own.dispatch()

    said = in_child(work)
    is_over.set()
    thread.join()
    assert said == "done"


def test_a_child_knows_no_helpers_of_its_parent() -> None:
    """A thread of the child may get the identifier of one, and is no helper then."""

    def look() -> None:
        assert not helpers.helpers

    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    assert thread.ident
    helpers.helpers.add(thread.ident)
    said = in_child(look)
    helpers.helpers.discard(thread.ident)
    ended.set()
    thread.join()
    assert said == "done"


FORK_IN_AN_IMPORT = """
import os, signal, sys, threading, time
import stratalog
_, root, slow, kills = sys.argv
begun, forking, main = threading.Event(), [], threading.get_ident()

class Late(Exception):
    pass

def late(*given):
    if forking:
        raise Late

class Slowly:
    def find_spec(self, name, path=None, target=None):
        if name == slow:
            begun.set()
            for _ in range(int(kills)):
                time.sleep(0.002)
                signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(0.2)

def fork():
    while True:
        try:
            forking.append(1)
            return os.fork()
        except Late:
            pass
        finally:
            forking.clear()

def use():
    with stratalog.open(root, mode="r") as store:
        queue = store.queue("t")
        assert len(list(queue.read())) == queue.read_arrow().num_rows == queue.estimate_count(tags="a") == 3
        assert len(store.query("t", key="k")) == 3
    with stratalog.open(f"{root}-{os.getpid()}", small=True) as own:
        own.put_many("t", [b"body"] * 3)
        own.append(own.queue("t").read_arrow().select(["body"]), topic="t")
        assert own.queue("t").max_offset == 6

signal.signal(signal.SIGUSR1, late)
sys.meta_path.insert(0, Slowly())
thread = threading.Thread(target=use)
thread.start()
assert begun.wait(60), f"nobody imports {slow}"
if not fork():
    signal.alarm(60)
    use()
    if not os.fork():
        use()
        os._exit(0)
    os._exit(os.wait()[1] != 0)
assert not os.wait()[1]
thread.join()
if not os.fork():
    os._exit(0)
assert not os.wait()[1]
"""


@pytest.mark.one_in(72)
@pytest.mark.parametrize(
    "slow",
    [
        "stratalog.store.opening", "numpy", "numba", "numpy.ma", "stratalog.kernels.jit",
        "stratalog.store.counting", "stratalog.store.lists", "stratalog.store.arrow", "pyarrow", "pandas",
        "stratalog.store.special_arrow",
    ],
)  # fmt: skip
@pytest.mark.parametrize("kills", ["0", "100"])
def test_a_fork_waits_for_an_import_under_way(slow: str, kills: str, tmp_path: Path) -> None:
    """A module's lock that another thread held would never be released in the child. Signal handlers may raise
    meanwhile."""
    with stratalog.open(tmp_path / "s", small=True) as store:
        for _ in range(3):
            store.put("t", b"body", tags="a", keys="k")
    command = [sys.executable, "-c", FORK_IN_AN_IMPORT, str(tmp_path / "s"), slow, kills]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_child_forked_while_another_thread_closes_the_store_closes_it_too(mode: str, open_store: OpenStore) -> None:
    open_store().close()
    store = open_store(mode=mode)
    is_closing, goes_on, close = threading.Event(), threading.Event(), store.log.close

    def slow_close() -> None:
        is_closing.set()
        goes_on.wait()
        close()

    store.log.close = slow_close  # type: ignore[method-assign]
    thread = threading.Thread(target=store.close)
    thread.start()
    is_closing.wait()
    try:
        said = in_child(store.close)
    finally:
        goes_on.set()
        thread.join()
    assert said == "done" or is_refused(said), said
