"""Power cuts: page by page in this process, and with the shutdown ioctl on real file systems."""

import contextlib
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.faults import Cut, Stopped, install
from crash.test_power_cut import TINY, check_image, run_and_cut
from store.model import Clock, check
from torture.kills import BUSY, Life
from torture.messages import check_acknowledged, check_lookups, everything, log_bytes, open_small
from torture.mounts import Mount, mounted
from torture.report import Lost, Row, Torture, WrongPrefix
from torture.writer import Writer

RUN_MESSAGES = 120
NESTED_SHARE = 0.3
"""So many of the images are cut once more while they are opened."""


def pages(torture: Torture, row: Row) -> None:
    """Images of cuts at many system calls of several runs; some are cut again during recovery."""
    folder = torture.place("pages")
    for run in range(torture.count(2, 40)):
        chance = torture.chance("pages", run)
        flush = ("sync", "async")[run % 2]
        every = chance.randrange(16, 30) if not torture.full else chance.randrange(3, 9)
        with pytest.MonkeyPatch.context() as patch:
            cuts = run_and_cut(folder / "store", patch, flush=flush, count=RUN_MESSAGES, every=every)
        for number, (cut, acknowledged, begun, flushed) in enumerate(cuts):
            name = f"{run}/{number}"
            if torture.wants(name):
                with row.case(name):
                    _one_image(cut, folder / "image", torture.chance("pages", name))
                    _compare(folder / "image", acknowledged if flush == "sync" else flushed, begun)
                shutil.rmtree(folder / "image", ignore_errors=True)
        shutil.rmtree(folder / "store")


def _one_image(cut: Cut, target: Path, chance: random.Random) -> None:
    """What is found after the cut; with a second cut in the middle of opening that."""
    cut.image(target, chance)
    if chance.random() >= NESTED_SHARE:
        return
    with pytest.MonkeyPatch.context() as patch:
        calls = install(patch, target)
        calls.all_synced()
        calls.stop_at = chance.randrange(40)
        with contextlib.suppress(Stopped), stratalog.open(target, clock_ns=Clock(), **TINY):
            pass
        again = calls.cut()
    second = target.with_name("image-again")
    again.image(second, chance)
    shutil.rmtree(target)
    second.rename(target)


def _compare(target: Path, at_least: int, begun: int) -> None:
    try:
        check_image(target, at_least, begun)
    except AssertionError as error:
        kind = Lost if "is lost" in str(error) else WrongPrefix
        raise kind(str(error)).with_traceback(error.__traceback__) from error


# -- real file systems -----------------------------------------------------------------------------------------------

DISK_STORES: dict[str, dict[str, Any]] = {"sync": BUSY | {"flush": "sync"}, "async": BUSY}


class PoweredLife(Life):
    """A store on a file system that is switched off again and again."""

    lost_in_the_cut = 0
    """Told while the shutdown ioctl ran, and gone: ext4 may let an fdatasync succeed then."""

    def write_and_cut(self, mount: Mount, torture: Torture, name: str) -> None:
        chance = torture.chance("disks", name)
        writer = Writer(self.root, self.given, self.next_number, f"{torture.seed}/{name}")
        try:
            writer.wait_for(1 + chance.choice((0, 3, 20, 80)))
            time.sleep(chance.random() * 0.03)
            known = writer.told_by_now()  # what is told while the ioctl runs was told by a machine without power
            mount.cut_power()
        finally:
            told = writer.stop()
        mount.again()
        self.next_number = max([self.next_number, *(number + 1 for number in told.acknowledged)]) + 200
        if self.given.get("flush") == "sync":
            self.acknowledged.update(known.acknowledged)
        with open_small(self.root, **self.given) as store:
            check(store)
            found = everything(store)
            check_acknowledged(found, self.acknowledged)
            if store.log.end_offset < known.durable_offset:
                raise Lost(f"durable up to {known.durable_offset}, found up to {store.log.end_offset}")
            check_lookups(store, found, sorted(found)[-5:])
            log = log_bytes(store)
        if self.given.get("flush") == "sync":
            self.lost_in_the_cut += len(told.acknowledged.keys() - found.keys())
        if not log.startswith(self.log):
            raise WrongPrefix("what an earlier opening had kept has changed")
        self.log = log
        self.acknowledged.update((n, (m.topic, m.queue_id, m.queue_offset)) for n, m in found.items())
        self.next_number = max([self.next_number, *(number + 1 for number in found)])


def disks(kind: str) -> Any:
    """The row of one kind of file system."""

    def cut_disks(torture: Torture, row: Row) -> None:
        cycles = torture.count(1, 60)
        with mounted(kind, torture.place(kind, on_disk=True)) as mount:
            for mode, given in DISK_STORES.items():
                life = PoweredLife(mount.place / mode, given)
                for cycle in range(cycles):
                    with row.case(f"{mode}/{cycle}"):
                        life.write_and_cut(mount, torture, f"{kind}/{mode}/{cycle}")
                    if row.failed:
                        return
                row.notes.append(
                    f"{mode}: {len(life.acknowledged):,} messages kept, {len(life.log):,} bytes of log"
                    + (f", {life.lost_in_the_cut} told during a cut and gone" if life.lost_in_the_cut else "")
                )

    return cut_disks
