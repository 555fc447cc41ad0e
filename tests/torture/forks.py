"""Processes that fork at any moment, by any thread, while others put; the children try to use what they inherited."""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from store.model import check
from stratalog.errors import StoreClosed
from stratalog.store.message_store import MessageStore
from torture.kills import BUSY
from torture.messages import Place, check_acknowledged, everything, open_small
from torture.report import Row, Torture, WrongPrefix
from torture.writer import Teller, Writer, told, work

STORES: dict[str, dict[str, Any]] = {"sync": BUSY | {"flush": "sync"}, "async": BUSY}
CHILD_S, LIVES_ON_S = 60, 3
CHILDREN = range(3, 9)
QUEUE = ("orders", 0)
BATCH = pa.record_batch({"body": [b"late"]})

USES: tuple[Callable[[MessageStore], object], ...] = (
    lambda store: store.put("orders", b"late"),
    lambda store: store.put("new", b"late", tags="a"),
    lambda store: store.put_many("orders", [b"late"] * 3),
    lambda store: store.append(BATCH, topic="orders"),
    lambda store: asyncio.run(store.put_async("orders", b"late")),
    lambda store: list(store.queue(*QUEUE).read()),
    lambda store: store.query("orders", key="k1"),
    lambda store: store.flush(),
    lambda store: store.dispatch(),
    lambda store: store.close(),
)


def live(root: str, given: dict[str, Any], first: int, seed: str, connection: Connection) -> None:
    """The parent's whole life: put, fork, and be killed or close while children are still there."""
    chance = random.Random(seed)
    teller = Teller(connection.fileno())
    store = open_small(root, **given)
    queue = store.queue(*QUEUE)
    put, reading = queue.put, queue.read(follow=True)
    teller.say("open")
    numbers, lock = itertools.count(first), threading.Lock()

    def put_until_closed(number: int) -> None:
        with contextlib.suppress(StoreClosed):
            work(store, numbers, lock, random.Random(f"{seed}/{number}"), teller)

    for number in range(3):
        threading.Thread(target=put_until_closed, args=(number,), daemon=True).start()
    uses = (*USES, lambda store: put(b"late"), lambda store: list(reading))
    for number in range(chance.choice(CHILDREN)):
        time.sleep(chance.random() * 0.03)
        fork = threading.Thread(target=_fork, args=(store, uses, f"{seed}/{number}", teller))
        if chance.random() < 0.5:
            fork.start()
            fork.join()
        else:
            fork.run()
    if chance.random() < 0.5:
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()
    teller.say("closed")
    os._exit(0)


def _fork(store: MessageStore, uses: Any, seed: str, teller: Teller) -> None:
    child = os.fork()
    if child:
        teller.say(f"child {child}")
        return
    signal.alarm(CHILD_S)
    chance = random.Random(seed)
    for number in chance.sample(range(len(uses)), chance.randrange(1, len(uses))):
        try:
            uses[number](store)
            teller.say(f"error an inherited store took use {number}")
        except StoreClosed as error:
            if "before os.fork()" not in str(error):
                teller.say(f"error {error}")
        except BaseException as error:  # noqa: BLE001 - told, and judged there
            teller.say(f"error use {number}: {type(error).__name__}: {error}")
    try:
        open_small(store.root, mode="r").close()
    except BaseException as error:  # noqa: BLE001 - told, and judged there
        teller.say(f"error opening: {type(error).__name__}: {error}")
    teller.say(f"done {os.getpid()}")
    end = chance.randrange(3)
    if end == 0:
        time.sleep(LIVES_ON_S)
    elif end == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


def forks(torture: Torture, row: Row) -> None:
    """Parents that put, fork and end; their store lives on from one to the next. A case is a child."""
    for kind, given in STORES.items():
        root, next_number = torture.place("forks") / kind, 0
        acknowledged: dict[int, Place] = {}
        for life in range(torture.count(1, 20)):
            name = f"{kind}/{life}"
            with row.case(name):
                next_number, children = _one_life(root, given, next_number, f"{torture.seed}/{name}", acknowledged)
                row.cases += children - 1
            if row.failed:
                return
        row.notes.append(f"{kind}: {len(acknowledged):,} messages acknowledged")


def _one_life(
    root: Path, given: dict[str, Any], first: int, seed: str, acknowledged: dict[int, Place]
) -> tuple[int, int]:
    """Returns the next life's first number, and how many children there were."""
    said = Writer(root, given, first, seed, life=live).said_when_over()
    puts = (f"{line}\n" for line in said if line.split()[0] not in ("child", "done", "closed"))
    found = told("".join(puts).encode())
    if found.errors:
        raise WrongPrefix(found.errors[0])
    acknowledged.update(found.acknowledged)
    with open_small(root, **given) as store:  # beside children that live on
        if store.recovery.clean != ("closed" in said):
            raise WrongPrefix("a close does not count as clean, or a kill does")
        check(store)
        there = everything(store)
        check_acknowledged(there, acknowledged)
    return max([first, *there]) + 300, sum(line.startswith("child ") for line in said)
