"""What the machine refuses: descriptors at the first call of each kind, threads, an event loop, the time."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratalog
from store.conftest import OpenStore
from stratalog.errors import ConfigurationError, StoreUnavailable
from stratalog.store import commit_log, next_files
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

CALLS = {
    "queue": "store.queue('t')",
    "put": "store.put('t', b'x', keys='k')",
    "put_many": "store.put_many('t', [b'x'])",
    "put_many with flags": "store.queue('t').put_many([b'x', b'y'], flags=[1, 2])",
    "put_record": "store.queue('t').put_record(b'x')",
    "read": "list(store.queue('t').read())",
    "offset_at": "store.queue('t').offset_at(1_700_000_000_000)",
    "max_offset": "store.queue('t').max_offset",
    "message": "store.message(0)",
    "read_arrow": "store.queue('t').read_arrow()",
    "query": "store.query('t', key='k')",
    "query_many": "store.query_many('t', ['k'])",
    "estimate_count": "store.queue('t').estimate_count(tags='a')",
    "append": "store.append(batch, topic='t')",
    "flush": "store.flush()",
    "create_topic": "store.create_topic('n')",
}
SCRIPT = """
import os, resource, shutil, sys, traceback
{imports}
import stratalog

def put(path):
    store = stratalog.open(path, small=True)
    store.put('t', b'first', keys='k')
    return store

def forked(work, *args):
    if not os.fork():
        try:
            work(*args)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.wait()[1]

def use(path, free):
    if {is_warm}:
        store = put(path)
    else:
        store = stratalog.open(path, small=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    taken = []
    try:
        while True:
            taken.append(os.open('/dev/null', os.O_RDONLY))
    except OSError:
        pass
    for fd in taken[:free]:
        os.close(fd)
    failure = None
    try:
        {call}
    except stratalog.StratalogError as error:
        failure = error
    for fd in taken[free:]:
        os.close(fd)
    if failure:
        print(free, type(failure).__name__, failure)
        assert isinstance(failure, stratalog.StoreUnavailable), failure
        {call}
    store.close()

wrong = []
for free in {numbers}:
    path = sys.argv[1] + str(free)
    if not {is_warm}:
        shutil.copytree(sys.argv[2], path)
    if forked(use, path, free):
        wrong.append(free)
assert not wrong, f"with {{wrong}} free descriptors"
"""


@pytest.mark.one_in(72)
@pytest.mark.parametrize(
    ("call", "is_warm", "numbers"),
    [*((call, True, (0, 1, 2)) for call in CALLS), *((call, False, (0, 1)) for call in ("queue", "put", "read"))],
)
def test_the_first_call_with_few_descriptors_works_or_is_refused(
    call: str, is_warm: bool, numbers: tuple[int, ...], tmp_path: Path
) -> None:
    """Of a process that put already, or of one that opened what another one left."""
    with stratalog.open(tmp_path / "left", small=True) as store:
        store.put("t", b"first", keys="k")
    imports = "import pyarrow as pa; batch = pa.record_batch({'body': [b'x']})" if call == "append" else ""
    script = SCRIPT.format(call=CALLS[call], imports=imports, is_warm=is_warm, numbers=numbers)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store"), str(tmp_path / "left")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_without_a_thread_the_next_file_is_made_when_it_is_needed(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (next_files, commit_log):
        monkeypatch.setattr(module, "AHEAD_SIZE_MIN", 0)
    store = open_store()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        for _ in range(100):
            store.put("t", b"x" * 3000)
    assert "no thread can be started" in caplog.text
    for _ in range(100):
        store.put("t", b"x" * 3000)
    assert store.queue("t").max_offset == 200
    store.close()


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_put_async_stores_nothing_where_it_cannot_wait(flush: str, open_store: OpenStore) -> None:
    store = open_store(flush=flush)
    waiting = store.put_async("t", b"x")
    if flush == "sync":
        with pytest.raises(ConfigurationError, match=r"none is running here: use put"):
            waiting.send(None)
        assert store.log.end_offset == 0
    else:
        with pytest.raises(StopIteration):
            waiting.send(None)
        assert store.queue("t").max_offset == 1


@pytest.mark.parametrize("value", [1.7e18, None, "1", -5, 2**90, np.int64(17 * 10**17)], ids=repr)
def test_a_clock_that_gives_no_time_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="clock_ns returns"):
        stratalog.open(tmp_path / "store", clock_ns=lambda: value)
    assert not (tmp_path / "store").exists()


def test_without_a_thread_to_flush_put_async_stores_nothing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(flush="sync")
    store.put("t", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(StoreUnavailable, match="no thread can be started"):
            asyncio.run(store.put_async("t", b"two"))
    assert asyncio.run(store.put_async("t", b"two")).queue_offset == 1


@pytest.mark.parametrize("tool", [verify, plan_repair, rebuild], ids=lambda tool: tool.__name__)
def test_a_tool_without_a_thread_says_so(
    tool: Callable[..., object], open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store() as store:
        store.put("t", b"one")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _no_thread)
        with pytest.raises(StoreUnavailable, match="no thread can be started"):
            tool(store.root)
    tool(store.root)
