"""kill -9 in the middle of puts and of openings, over stores that live on from cycle to cycle."""

import time
from pathlib import Path
from typing import Any

from store.model import check
from torture.messages import Place, check_acknowledged, check_lookups, everything, log_bytes, open_small
from torture.report import Row, Torture, WrongPrefix
from torture.writer import Writer

BUSY: dict[str, Any] = {"flush_interval_commit_log": 20, "flush_interval_consume_queue": 30}
STORES: dict[str, dict[str, Any]] = {
    "sync": BUSY | {"flush": "sync"},
    "async": BUSY,
    "sync, 5.3": BUSY | {"flush": "sync", "compatibility": "5.3"},
    "async, slow flush": {"flush_interval_commit_log": 3000, "flush_interval_consume_queue": 70},
}


class Life:
    """One store and what is known about it."""

    def __init__(self, root: Path, given: dict[str, Any]) -> None:
        self.root = root
        self.given = given
        self.acknowledged: dict[int, Place] = {}
        self.log = b""
        self.next_number = 0

    def write_and_kill(self, torture: Torture, name: str) -> None:
        chance = torture.chance("kills", name)
        for opening in range(chance.choice((0, 0, 0, 1, 2))):  # killed while it opens: recovery itself is cut off
            writer = Writer(self.root, self.given, self.next_number, f"{torture.seed}/{name}/{opening}")
            time.sleep(chance.random() * 0.06)
            self._learn(writer)
        writer = Writer(self.root, self.given, self.next_number, f"{torture.seed}/{name}")
        writer.wait_for(1 + chance.choice((0, 1, 5, 40, 150)))
        time.sleep(chance.random() * 0.02)
        self._learn(writer)

    def _learn(self, writer: Writer) -> None:
        told = writer.stop()
        if told.errors:
            raise WrongPrefix(f"the writer met an error: {told.errors[0]}")
        self.acknowledged.update(told.acknowledged)
        self.next_number = max([self.next_number, *(number + 1 for number in told.acknowledged)]) + 200

    def reopen(self, torture: Torture, name: str) -> None:
        """Open, compare with what is known, and close or leave as if killed."""
        with open_small(self.root, **self.given) as store:
            check(store)
            if store.recovery.quarantined:
                raise WrongPrefix(f"a kill left damage in the middle of the log: {store.recovery.quarantined[0]}")
            found = everything(store)
            check_acknowledged(found, self.acknowledged)
            some = sorted(found)[-40:] + torture.chance("lookups", name).sample(sorted(found), min(10, len(found)))
            check_lookups(store, found, some[::5])
            log = log_bytes(store)
        if not log.startswith(self.log):
            raise WrongPrefix("what an earlier opening had kept has changed")
        self.log = log
        self.next_number = max([self.next_number, *(number + 1 for number in found)])


def kills(torture: Torture, row: Row) -> None:
    """Cycles of: write, kill, (open, kill,) open and compare. The stores are never started anew."""
    cycles = torture.count(2, 76)
    for kind, given in STORES.items():
        life = Life(torture.place("kills") / kind.replace(", ", "-").replace(" ", "-"), given)
        for cycle in range(cycles):
            name = f"{kind}/{cycle}"
            with row.case(name):
                life.write_and_kill(torture, name)
                life.reopen(torture, name)
            if row.failed:
                return  # later cycles of a broken store say nothing
        row.notes.append(
            f"{kind}: {len(life.acknowledged):,} messages acknowledged, {len(life.log):,} bytes of log, "
            f"{len([*life.root.glob('commitlog/*')])} log files, {len([*life.root.glob('index/*')])} index files"
        )
