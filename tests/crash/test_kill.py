"""kill -9 in the middle of puts, on a real disk: what the child said it had been told is durable is there, once.

The child reports each acknowledged message through a pipe after put returned. `CYCLES` may be raised for a long run.
"""

import os
import random
import signal
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.model import check
from stratalog.layout.queue import UNIT

CYCLES = 10
SEED = 4711
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 100 * UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
    "flush_interval_commit_log": 20,
    "flush_interval_consume_queue": 30,
}
CHILD = """
import os, sys, threading
import stratalog
root, flush, first, threads, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), eval(sys.argv[5])
store = stratalog.open(root, flush=flush, **settings)
lock, numbers = threading.Lock(), iter(range(first, first + 10**6))
def work():
    while True:
        with lock:
            number = next(numbers)
        body = b"%08d" % number * (1 + number % 40)
        receipt = store.put("t", body, queue_id=number % 3, keys=[f"k{number}"], tags="a")
        os.write(1, b"%d %d\\n" % (number, receipt.queue_offset))
workers = [threading.Thread(target=work) for _ in range(threads)]
for worker in workers: worker.start()
for worker in workers: worker.join()
"""


def body_of(number: int) -> bytes:
    return b"%08d" % number * (1 + number % 40)


def run_and_kill(root: Path, flush: str, first: int, threads: int, after_messages: int) -> list[tuple[int, int]]:
    """Start a child that puts, kill it after so many acknowledgements, and return (number, queue offset) of each."""
    command = [sys.executable, "-c", CHILD, str(root), flush, str(first), str(threads), repr(SETTINGS)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert child.stdout
    said = b""
    deadline = time.monotonic() + 60
    try:
        while said.count(b"\n") < after_messages:
            ready = wait([child.stdout], max(0.0, deadline - time.monotonic()))
            piece = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
            assert piece, "the child ended by itself or stands still"
            said += piece
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    with child.stdout as rest:
        said += rest.read()
    lines = said.decode().splitlines() if said.endswith(b"\n") else said.decode().splitlines()[:-1]
    return [(int(number), int(offset)) for number, offset in (line.split() for line in lines)]


@pytest.mark.parametrize(("flush", "cycles"), [("sync", CYCLES), ("async", max(2, CYCLES // 3))])
def test_kill_nine_loses_nothing_acknowledged_and_repeats_nothing(flush: str, cycles: int, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    root = tmp_path / "store"
    acknowledged: dict[int, int] = {}
    previous = b""
    first = 0
    for cycle in range(cycles):
        threads = chance.choice((1, 4))
        told = run_and_kill(root, flush, first, threads, chance.randrange(1, 120 if flush == "sync" else 3000))
        assert told
        acknowledged.update(told)
        with stratalog.open(root, **SETTINGS) as store:
            check(store)
            assert not store.recovery.clean
            assert not store.recovery.quarantined
            found = {}
            for queue_id in range(3):
                for message in store.queue("t", queue_id).read():
                    number = int(message.body[:8])
                    assert number not in found, "a message is there twice"
                    assert message.body == body_of(number)
                    found[number] = message.queue_offset
            assert acknowledged.items() <= found.items(), f"cycle {cycle}, seed {SEED}: an acknowledged message is lost"
            for number in chance.sample(sorted(acknowledged), min(20, len(acknowledged))):
                assert [message.body for message in store.query("t", key=f"k{number}")] == [body_of(number)]
            log = b"".join(file.path.read_bytes() for file in store.log.files)[: store.log.end_offset]
        assert log.startswith(previous), "what was there before has changed"
        previous = log
        first = max(found) + 1
