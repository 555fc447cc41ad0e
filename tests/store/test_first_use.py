"""A machine on which nothing is compiled: what is in Python serves until it is."""

import subprocess
import sys
from pathlib import Path
from types import BuiltinMethodType, MethodType

import pytest

import stratalog
from store.conftest import OpenStore
from stratalog.kernels import aside
from stratalog.store import lookup, message_store, reading

pytestmark = pytest.mark.skipif(not stratalog.kernels.jit.HOLDS_THE_GIL, reason="natives need the interpreter's lock")


class Machine:
    """Says when the natives are compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_ready = False
        for module in (message_store, reading, lookup):
            monkeypatch.setattr(module, "ready_or_started", lambda: self.is_ready)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_python_puts_until_natives_are_compiled_and_then_they_do(open_store: OpenStore, machine: Machine) -> None:
    store = open_store()
    first, second = store.queue("topic", 0), store.queue("topic", 1)
    kept = first.put
    receipts = [put(b"body", keys="k") for put in (first.put, second.put, kept)]
    receipts.append(store.put("topic", b"body"))
    store._keep_when_due()
    assert {type(put) for put in (store.put, first.put, first.put_raw, second.put_many)} == {MethodType}

    machine.is_ready = True
    store._keep_when_due()
    assert {type(put) for put in (store.put, first.put, first.put_raw, second.put_many)} == {BuiltinMethodType}
    third = store.queue("other")
    assert isinstance(third.put, BuiltinMethodType)
    receipts += [put(b"body", keys="k") for put in (first.put, second.put, kept, third.put)]
    receipts.append(store.put("topic", b"body"))

    assert [receipt.queue_offset for receipt in receipts] == [0, 0, 1, 2, 3, 1, 4, 0, 5]
    assert [message.body for message in first.read(0)] == [b"body"] * 6
    assert len(store.query("topic", key="k")) == 6


def test_a_queue_opened_between_compiling_and_the_next_look_takes_all_along(
    open_store: OpenStore, machine: Machine
) -> None:
    store = open_store()
    first = store.queue("topic", 0)
    machine.is_ready = True
    store.queue("topic", 1)
    assert isinstance(first.put, BuiltinMethodType)
    assert isinstance(store.put, BuiltinMethodType)


def test_reading_and_looking_up_bind_nothing_that_is_not_compiled(
    open_store: OpenStore, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(*_: object) -> None:
        raise AssertionError("waited for the compiler")

    store = open_store()
    monkeypatch.setattr(reading, "_natives", compiling)
    monkeypatch.setattr(lookup, "_native", compiling)
    monkeypatch.setattr(stratalog.kernels.jit.Native, "bind", compiling)
    receipt = store.put("topic", b"body", keys="k")
    (message,) = store.queue("topic").read(0)
    assert message == store.message(receipt.commit_log_offset) == store.query("topic", key="k")[0]


def test_the_tests_run_on_compiled_natives() -> None:
    assert aside.ready()


IMPORTS = """
import asyncio, sys, threading, traceback, stratalog
from llvmlite.binding.ffi import register_lock_callback
from stratalog import helpers
open_store, found = stratalog.open, []

def note(name):
    if threading.current_thread() is threading.main_thread() or not helpers.is_loading():
        found.append((name, threading.current_thread().name, traceback.format_stack(limit=12)[:-2]))

class Finder:
    def find_spec(self, name, path=None, target=None):
        note(name)

register_lock_callback(lambda: note("llvmlite's lock"), lambda: None)
sys.meta_path.insert(0, Finder())
with open_store(sys.argv[1], small=True, enable_lmq=True, enable_multi_dispatch=True) as store:
    store.create_topic("batches", queue_type="BatchCQ")
    queue = store.queue("t")
    queue.put(b"body", keys="k", tags="a")
    queue.put_raw(b"body", b"")
    queue.put_many([b"body"])
    store.put("t", b"body", properties={"INNER_MULTI_DISPATCH": "%LMQ%x"})
    store.queue("batches").put_batch([b"body", b"body"], unique_key="u")
    batch = queue.read_arrow().select(["body"])
    store.append(batch, topic="t")
    with asyncio.Runner() as runner:
        runner.run(store.put_async("t", b"body"))
    store.flush()
    for topic in ("t", "batches", "%LMQ%x"):
        queue = store.queue(topic)
        messages, table, count = list(queue.read(0)), queue.read_arrow(), queue.estimate_count(tags="a")
    hits = store.query("t", key="k"), store.query_many("t", ["k"])
with open_store(sys.argv[1], mode="r") as store:
    list(store.queue("t").read(0))
del sys.meta_path[0]
for name, thread, stack in found:
    print(name, thread, *stack)
assert not found
"""


def test_no_call_of_a_store_imports_where_a_signal_handler_or_a_fork_may_come_between(tmp_path: Path) -> None:
    """The import lock would stay held, and so would the one that llvmlite takes in Python."""
    command = [sys.executable, "-c", IMPORTS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
