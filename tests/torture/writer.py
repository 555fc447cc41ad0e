"""The process that is killed: puts in every way there is, from several threads, and tells what was acknowledged.

It is forked from a server process that has everything imported, so that it is at work some milliseconds after it was
asked for. Each line it tells is `number topic queue_id queue_offset`, written after the put returned; a line
`durable <log offset>` follows every few puts, a line `open` the opening.
"""

import asyncio
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stratalog.kernels.warm import compile_all
from stratalog.layout.properties import encode_properties
from stratalog.store.message_store import MessageStore
from torture.messages import Place, body_of, key_of, open_small, queue_of, tags_of

PUT_TIMEOUT_S = 60.0


class Teller:
    """Tells of acknowledged messages, a line at once: lines of several threads do not mix."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def tell(self, numbers: list[int], topic: str, queue_id: int, offsets: Any) -> None:
        lines = (f"{number} {topic} {queue_id} {offset}\n" for number, offset in zip(numbers, offsets, strict=True))
        for line in lines:
            os.write(self._fd, line.encode())

    def say(self, what: str) -> None:
        os.write(self._fd, f"{what}\n".encode())


def _put(store: MessageStore, number: int, teller: Teller) -> None:
    topic, queue_id = queue_of(number)
    receipt = store.put(topic, body_of(number), queue_id=queue_id, tags=tags_of(number), keys=[key_of(number)])
    teller.tell([number], topic, queue_id, [receipt.queue_offset])


def _properties(number: int) -> bytes:
    return encode_properties({"KEYS": key_of(number), "TAGS": tags_of(number)})


def _put_list(store: MessageStore, numbers: list[int], teller: Teller) -> None:
    topic, queue_id = queue_of(numbers[0])
    receipts = store.put_many(topic, [*map(body_of, numbers)], [*map(_properties, numbers)], queue_id=queue_id)
    teller.tell(numbers, topic, queue_id, [receipt.queue_offset for receipt in receipts])


def _put_arrow(store: MessageStore, numbers: list[int], teller: Teller) -> None:
    columns: dict[str, list[Any]] = {
        "body": [*map(body_of, numbers)],
        "tags": [*map(tags_of, numbers)],
        "keys": [*map(key_of, numbers)],
        "topic": [queue_of(number)[0] for number in numbers],
        "queueId": [queue_of(number)[1] for number in numbers],
    }
    ranges = store.append(pa.record_batch(columns))
    for key, offsets in ranges.items():
        teller.tell([number for number in numbers if queue_of(number) == key], *key, offsets)


def _put_together(store: MessageStore, numbers: list[int], teller: Teller) -> None:
    async def one(number: int) -> None:
        topic, queue_id = queue_of(number)
        given = {"queue_id": queue_id, "tags": tags_of(number), "keys": [key_of(number)]}
        receipt = await store.put_async(topic, body_of(number), **given)
        teller.tell([number], topic, queue_id, [receipt.queue_offset])

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, numbers))

    asyncio.run(all_of_them())


def work(store: MessageStore, numbers: Any, lock: threading.Lock, chance: random.Random, teller: Teller) -> None:
    """Put until killed."""
    while True:
        count = chance.choice((1, 1, 3, 10, 30))
        with lock:
            taken = list(itertools.islice(numbers, count))
        way = chance.randrange(4)
        if way == 0:
            for number in taken:
                _put(store, number, teller)
        elif way == 1:
            _put_list(store, [number for number in taken if number % 97] or taken[:1], teller)
        elif way == 2:
            _put_arrow(store, taken, teller)
        else:
            _put_together(store, taken, teller)
        if chance.random() < 0.2:
            queue = store.queue(*queue_of(taken[0]))
            next(queue.read(max(queue.min_offset, queue.max_offset - 1)), None)
        teller.say(f"durable {store.durable_offset}")


def write(root: str, given: dict[str, Any], first: int, seed: str, connection: Connection) -> None:
    """The child's whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    chance = random.Random(seed)
    teller = Teller(connection.fileno())
    store = open_small(Path(root), **given)
    teller.say("open")
    numbers, lock = itertools.count(first), threading.Lock()
    seeds = [chance.random() for _ in range(chance.choice((1, 1, 2, 4)))]
    threads = [
        threading.Thread(target=_work_or_end, args=(store, numbers, lock, random.Random(seed), teller), daemon=True)
        for seed in seeds
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(3)


def _work_or_end(*given: Any) -> None:
    """After an error (the file system was shut down under it) the child tells it and waits for its end."""
    try:
        work(*given)
    except Exception as error:  # noqa: BLE001 - top of the thread
        given[-1].say(f"error {type(error).__name__}: {str(error).splitlines()[0]}")
        time.sleep(PUT_TIMEOUT_S)


class Writer:
    """A writer process under the parent's hand. `stop` ends it with SIGKILL and returns what it told."""

    _context: Any = None

    def __init__(
        self, root: Path, given: dict[str, Any], first: int, seed: str, *, life: Callable[..., None] = write
    ) -> None:
        if Writer._context is None:
            Writer._context = get_context("forkserver")
            Writer._context.set_forkserver_preload(["torture.warm"])
        self._reading, writing = Writer._context.Pipe(duplex=False)
        self._process = Writer._context.Process(target=life, args=(str(root), given, first, seed, writing), daemon=True)
        self._process.start()
        writing.close()
        self._said = b""
        os.set_blocking(self._reading.fileno(), False)

    def listen(self) -> None:
        """Take what was told by now."""
        try:
            while piece := os.read(self._reading.fileno(), 1 << 16):
                self._said += piece
        except BlockingIOError:
            return

    def wait_for(self, lines: int, *, seconds: float = PUT_TIMEOUT_S) -> None:
        """Listen until so many lines were told. Raises `TimeoutError`."""
        deadline = time.monotonic() + seconds
        while self._said.count(b"\n") < lines:
            self.listen()
            if b"error" in self._said or not self._process.is_alive():
                return
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"the writer stands still after {self._said.count(bytes(1))} lines")
            time.sleep(0.0005)

    def said_when_over(self, *, seconds: float = PUT_TIMEOUT_S) -> list[str]:
        """What it and its children said, once it has ended and every `child` said that it is `done`."""
        deadline = time.monotonic() + seconds
        while self._process.is_alive() or self._said.count(b"\nchild ") > self._said.count(b"\ndone "):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._said.count(b'child ')} children, {self._said.count(b'done ')} done")
            time.sleep(0.002)
            self.listen()
        self.listen()
        self._reading.close()
        return self._said.decode().splitlines()

    def told_by_now(self) -> "Told":
        """What was told up to this moment."""
        self.listen()
        return told(self._said)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        os.set_blocking(self._reading.fileno(), True)

    def stop(self) -> "Told":
        self.kill()
        while piece := os.read(self._reading.fileno(), 1 << 16):
            self._said += piece
        self._reading.close()
        return told(self._said)


class Told:
    """What a writer said in its life."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, Place] = {}
        self.durable_offset = 0
        self.opened = False
        self.errors: list[str] = []


def told(said: bytes) -> Told:
    result = Told()
    for line in said.decode().split("\n")[:-1]:
        first, *rest = line.split(" ")
        if first == "open":
            result.opened = True
        elif first == "error":
            result.errors.append(" ".join(rest))
        elif first == "durable":
            result.durable_offset = max(result.durable_offset, int(rest[0]))
        else:
            result.acknowledged[int(first)] = (rest[0], int(rest[1]), int(rest[2]))
    return result


def warm_up() -> None:
    """What the server process does once for all its children. No thread may start here."""
    pa.set_cpu_count(1)
    compile_all()
    np.zeros(1)
