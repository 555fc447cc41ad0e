"""One damage, then commands in any order, on stores whose topics may have been deleted and created again.

Every message that is live must be served in its place, or be hit by the damage and named. What was deleted must not
come back in place of it, a record that was not damaged must stay as it is, and after a repair there is nothing left to
repair.
"""

import multiprocessing
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from store.kinds import BATCH, EXTENDED, LIGHT_KIND, PLAIN, Content, Key, Known, read_on
from store.model import Clock
from store.test_changed_identity import FIELDS, LIGHT_OFFSET, change, offsets_of
from store.test_recreated_topics import STATES, delete, killed, settings_of, unseal
from stratalog.errors import CorruptData, StratalogError
from stratalog.layout.message import FIXED_SIZE_V1, decode_record
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.store.message_store import MessageStore
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify_report import VerifyReport
from torture.report import Lost, Row, Torture, Undetected, WrongPrefix

CASE_SECONDS = 60.0
KINDS = (PLAIN, EXTENDED, BATCH, LIGHT_KIND)
SECTOR = 512
STOPS: dict[str, Callable[[Path], None]] = {
    "closed": STATES["closed"],
    "closed by RocketMQ": unseal,
    "killed": STATES["killed with a seal"],
    "RocketMQ killed": killed,
}
ORDERS = (
    "repair", "open", "rebuild", "put", "open, repair", "put, repair", "killed put, repair", "rebuild, repair",
    "open, rebuild", "put, rebuild, repair", "repair, killed put, repair", "open, put, open", "repair, put, rebuild",
)  # fmt: skip


class Store:
    """A store of one kind, its topic deleted and created again or not."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root, self._chance, self._number = root, chance, 0
        kind = chance.choice(KINDS)
        self.log_file_size = chance.choice((2048, 4096, 16384))
        units = chance.choice((4, 8, 40))
        self.kind = replace(kind, settings=kind.settings | {
            "mapped_file_size_commit_log": self.log_file_size,
            "mapped_file_size_consume_queue": units * UNIT.size,
            "mapper_file_size_batch_consume_queue": units * BATCH_UNIT.size,
            "enabled_append_prop_crc": chance.random() < 0.25,
        })  # fmt: skip
        self.generations = chance.choice((1, 1, 2, 2, 3))
        self.content = self._filled()
        self.stop = chance.choice(sorted(STOPS))
        STOPS[self.stop](root)
        self.first_offset = self._expire() if chance.random() < 0.35 else 0
        self.records = self._records()
        self.hit: set[int] = set()
        """Log offsets of the records that were damaged."""
        self.is_exchanged = self.has_moved = False
        """Whether files of two queues were exchanged, and whether a whole record names another place."""
        self.put_back: Callable[[], object] | None = None
        """Undoes an exchange or a renaming."""

    def _filled(self) -> Content:
        chance, content = self._chance, Content()
        with self.kind.open(self.root, clock_ns=Clock()) as store:
            for generation in range(self.generations):
                if generation:
                    delete(store, self.kind)
                content = Content()
                step = 1 if generation + 1 < self.generations or chance.random() < 0.6 else 2  # one queue, or both
                self._number += self._number % 2
                for _ in range(chance.choice((1, 2, 2, 4, 6, 14, 30))):
                    self.kind.put(store, self._number, content)
                    self._number += step
                    if chance.random() < 0.4:
                        store.put("other", b"other" * chance.choice((1, 10)))
            for _ in range(chance.choice((0, 1, 4))):
                store.put("other", b"behind")
        for key in self.kind.queues:
            if not content.queues.setdefault(key, {}):  # deleted, and not used again
                shutil.rmtree(self.kind.directory(self.root, key), ignore_errors=True)
        return content

    def _expire(self) -> int:
        """Remove the first log files, as retention does."""
        files = sorted((self.root / "commitlog").iterdir())
        gone = self._chance.randrange(len(files))
        for path in files[:gone]:
            path.unlink()
        for queue in self.content.queues.values():
            for number in [n for n, known in queue.items() if known.commit_log_offset < gone * self.log_file_size]:
                del queue[number]
        return gone * self.log_file_size

    def _records(self) -> dict[int, bytes]:
        """Each record of the log, by its log offset."""
        found = {}
        for path in sorted((self.root / "commitlog").iterdir()):
            data, position = path.read_bytes(), 0
            while position + 8 < len(data):
                try:
                    size = decode_record(data, position).total_size
                except CorruptData:  # zeros, or what closes the file
                    break
                found[int(path.name) + position] = data[position : position + size]
                position += size
        return found

    def at(self, commit_log_offset: int, size: int) -> bytes:
        base = commit_log_offset // self.log_file_size * self.log_file_size
        path = self.root / "commitlog" / f"{base:020d}"
        return path.read_bytes()[commit_log_offset - base :][:size] if path.exists() else b""

    def changed(self) -> set[int]:
        """Log offsets of the records that are not as they were."""
        return {offset for offset, data in self.records.items() if self.at(offset, len(data)) != data}

    def unit_files(self) -> list[Path]:
        trees = ("consumequeue", "batchconsumequeue")
        found = [path for tree in trees for path in self.root.glob(f"{tree}/*/*/*") if any(path.read_bytes())]
        mine = sorted(path for path in found if path.parent.parent.name != "other")
        return mine if mine and self._chance.random() < 0.85 else sorted(found)

    # -- damages -----------------------------------------------------------------------------------------------------

    def damage(self) -> str:
        kinds = (self.identity, self.identity, self.record, self.sector, self.unit, self.unit_bit, self.file,
                 self.directory, self.beside)  # fmt: skip
        what = self._chance.choice(kinds)()
        self.hit = self.changed()
        return what

    def identity(self) -> str:
        """One field of a record that tells its place."""
        offset, self.has_moved = self._some_record(), True
        field = self._chance.choice([*FIELDS, *([LIGHT_OFFSET] if self.kind is LIGHT_KIND else [])])
        change(self.root, offset, field, log_file_size=self.log_file_size)
        return f"{field} of the record at {offset}"

    def record(self) -> str:
        offset = self._some_record()
        data = bytearray(self.records[offset])
        what = self._chance.choice(("zeros", "ones", "a bit"))
        if what == "a bit":
            is_light = self.kind.queues is LIGHT_KIND.queues  # no CRC: nothing covers what names its queues
            is_covered = self.kind.settings["enabled_append_prop_crc"] or not is_light
            at = self._chance.randrange(len(data) if is_covered else FIXED_SIZE_V1)
            data[at] ^= 1 << self._chance.randrange(8)
            what = f"a bit of byte {at}"
        else:
            data[:] = (b"\0" if what == "zeros" else b"\xff") * len(data)
        self._write(offset, bytes(data))
        return f"{what} in the record at {offset}"

    def sector(self) -> str:
        offset = self._some_record() // SECTOR * SECTOR
        self._write(offset, self._chance.choice((bytes(SECTOR), b"\xff" * SECTOR, self._chance.randbytes(SECTOR))))
        return f"sector at {offset}"

    def unit(self) -> str:
        def damaged(unit: bytes) -> bytes:
            size = len(unit)
            return self._chance.choice((bytes(size), b"\xff" * size, self._chance.randbytes(size)))

        return self._change_unit(damaged)

    def unit_bit(self) -> str:
        def flipped(unit: bytes) -> bytes:
            data, layout = bytearray(unit), BATCH_UNIT if len(unit) == BATCH_UNIT.size else UNIT
            field = self._chance.choice(layout.dtype.names)
            last = layout.dtype.fields[field][1] + layout.dtype[field].itemsize - 1
            at = self._chance.choice((last, self._chance.randrange(layout.dtype.fields[field][1], last + 1)))
            data[at] ^= 1 << self._chance.randrange(8)
            return bytes(data)

        return self._change_unit(flipped)

    def file(self) -> str:
        """A queue's file is gone, empty, cut, or another one's."""
        path = self._chance.choice(self.unit_files())
        data = path.read_bytes()
        others = [other for other in self.unit_files() if other != path and len(other.parts) == len(path.parts)]
        what = self._chance.choice(("gone", "zeros", "cut", "empty", "exchanged"))
        if what == "gone" or (what == "exchanged" and not others):
            path.unlink()
        elif what == "exchanged":
            other, self.is_exchanged = self._chance.choice(others), True
            _exchange(path, other)
            self.put_back = partial(_exchange, path, other)
        else:
            kept = {"zeros": bytes(len(data)), "empty": b""}.get(what, data[: self._chance.randrange(len(data))])
            path.write_bytes(kept)
        return f"{path.relative_to(self.root)} {what}"

    def directory(self) -> str:
        directories = sorted({path.parent for path in self.unit_files()})
        one = self._chance.choice(directories)
        others = [other for other in directories if other != one and other.parent.parent == one.parent.parent]
        if others and self._chance.random() < 0.4:
            self.is_exchanged = True
            other, self.is_exchanged = self._chance.choice(others), True
            _exchange(one, other)
            self.put_back = partial(_exchange, one, other)
            return f"{one.relative_to(self.root)} exchanged"
        key = one.parent.name, int(one.name)
        led_to = {known.commit_log_offset for known in self.content.queues.get(key, {}).values()}
        if len(led_to) > 1 and self._chance.random() < 0.3:  # else the record may have been changed
            other, self.is_exchanged = one.with_name("7"), True
            one.rename(other)
            self.put_back = partial(other.rename, one)
            return f"{one.relative_to(self.root)} renamed"
        shutil.rmtree(one)
        return f"{one.relative_to(self.root)} gone"

    def beside(self) -> str:
        """Another file, or none: the commands alone do no harm either."""
        there = [path for path in (self.root / "checkpoint", self.root / "queues.snapshot", *self.root.glob("index/*"))
                 if path.exists()]  # fmt: skip
        if not there or self._chance.random() < 0.3:
            return "nothing"
        path = self._chance.choice(sorted(there))
        data = bytearray(path.read_bytes())
        if not data or self._chance.random() < 0.5:
            path.unlink()
            return f"{path.relative_to(self.root)} gone"
        data[self._chance.randrange(min(len(data), 60))] ^= 1 << self._chance.randrange(8)
        path.write_bytes(data)
        return f"a bit of {path.relative_to(self.root)}"

    def _some_record(self) -> int:
        """Rather a live one, and one at either end of its queue."""
        live = sorted(known.commit_log_offset for queue in self.content.queues.values() for known in queue.values())
        if not live or self._chance.random() < 0.2:
            return self._chance.choice(sorted(self.records))
        return self._chance.choice((live[0], live[-1], self._chance.choice(live)))

    def _write(self, offset: int, data: bytes) -> None:
        path = self.root / "commitlog" / f"{offset // self.log_file_size * self.log_file_size:020d}"
        with path.open("r+b") as file:
            file.seek(offset % self.log_file_size)
            file.write(data)

    def _change_unit(self, changed: Callable[[bytes], bytes]) -> str:
        path = self._chance.choice(self.unit_files())
        data = path.read_bytes()
        size = (BATCH_UNIT if path.parts[-4] == "batchconsumequeue" else UNIT).size
        count = min(len(data.rstrip(b"\0")) // size + 1, len(data) // size)
        at = self._chance.choice((0, 0, self._chance.randrange(count))) * size
        path.write_bytes(data[:at] + changed(data[at : at + size]) + data[at + size :])
        return f"unit {at // size} of {path.relative_to(self.root)}"


def _exchange(one: Path, other: Path) -> None:
    between = one.with_name("between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


class Commands:
    """Runs commands on a store, and keeps what they say."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.root, self._kind, self._chance = store.root, store.kind, chance
        gone = (key for key in store.kind.queues if not any(store.kind.directory(store.root, key).glob("*")))
        self._lost = [f"{topic}/{queue_id}" for topic, queue_id in gone]
        self._may_count = not store.has_moved  # the queue may have been renamed
        self.told: list[str] = []
        self.stated: set[tuple[Key, int]] = set()
        """Places that were named as lost or missing."""
        self.moved: set[int] = set()
        """Log offsets of the records that a repair named and set aside."""
        self.put_messages: dict[Key, dict[int, Known]] = {}
        self.is_repaired = False
        self.is_counted = False
        """Whether the first that was done about the damage was a repair: it has to name each message."""

    def run(self, order: str) -> None:
        self.is_counted = self._may_count and "repair" in order and "rebuild" not in order.partition("repair")[0]
        for name in order.split(", "):
            try:
                getattr(self, name.replace(" ", "_"))()
            except StratalogError as error:
                self.told.append(f"{name}: {error}")

    def open(self) -> None:
        with self._kind.open(self.root) as store:
            told = store.recovery
            self.told += [told.warning, *told.notes, *map(str, told.left_out), *map(str, told.quarantined)]

    def put(self) -> None:
        with self._kind.open(self.root) as store:
            self._put(store)

    def _put(self, store: MessageStore) -> None:
        told = store.recovery
        self.told += [told.warning, *told.notes, *map(str, told.left_out), *map(str, told.quarantined)]
        ends = {key: store.queue(*key).max_offset for key in self._kind.queues}
        for number in (101, 102):
            self._kind.put(store, number, Content())
        for key, end in ends.items():
            put = self.put_messages.setdefault(key, {})
            for message in store.queue(*key).read(end):
                put[message.queue_offset] = Known.of(message)

    def killed_put(self) -> None:
        """By a process that ends without closing the store."""
        fork = multiprocessing.get_context("fork")
        here, there = fork.Pipe()
        child = fork.Process(target=self._put_and_end, args=(there, self._chance.random() < 0.5))
        child.start()
        self.told, self.put_messages = here.recv()
        child.join()

    def _put_and_end(self, pipe: Connection, is_dispatched: bool) -> None:
        try:
            store = self._kind.open(self.root)
            self._put(store)
            if is_dispatched:
                store.dispatch()
        except StratalogError as error:
            self.told.append(str(error))
        pipe.send((self.told, self.put_messages))
        os._exit(0)

    def rebuild(self) -> None:
        done = rebuild(self.root, settings=settings_of(self._kind))
        self.told += [
            *map(str, done.damages),
            *map(str, done.left_out),
            *done.moved,
            *done.notes,
            done.lost,
            done.longer,
        ]

    def repair(self) -> None:
        """A second one has nothing to do but where the first gave a queue that has no files to messages of deleted
        topics alone."""
        report = self._repair()
        if report.problems and all(any(one in str(problem) for one in self._lost) for problem in report.problems):
            report = self._repair()
        if not report.ok:
            raise AssertionError(f"repaired, and not ok: {report.problems[0]}")
        again = plan_repair(self.root, settings=settings_of(self._kind))
        if again.actions:
            raise AssertionError(f"repaired, and there is more to repair: {again.actions[0]}")

    def _repair(self) -> VerifyReport:
        plan = plan_repair(self.root, settings=settings_of(self._kind))
        self.stated |= offsets_of(plan.lost_ranges)
        self.stated |= offsets_of(plan.missing)
        self.moved |= {one.commit_log_offset for one in plan.unplaced}
        self.told += [
            *map(str, plan.lost),
            *map(str, plan.lost_places),
            *map(str, plan.missing),
            *map(str, plan.unplaced),
            *plan.unmended,
        ]
        self.told += [f"the log reached {plan.known_end}"] * bool(plan.known_end)
        report = repair(plan)
        self.told += report.notes
        self.is_repaired = True
        return report


def orders(torture: Torture, row: Row) -> None:
    for number in range(torture.count(40, 4000)):
        if torture.wants(number):
            with row.case(number, seconds=CASE_SECONDS):
                _run(torture.chance("orders", number), torture.place("orders") / "store")


def _run(chance: random.Random, root: Path) -> None:
    shutil.rmtree(root.parent)
    root.parent.mkdir()
    store = Store(root, chance)
    damage, order = store.damage(), chance.choice(ORDERS)
    what = f"{store.kind}, {store.generations} generations, {store.stop}, {damage}; {order}"
    commands = Commands(store, chance)
    try:
        commands.run(order)
        _check(store, commands)
    except AssertionError as error:
        raise type(error)(f"{what}: {error}") from None


def _check(store: Store, commands: Commands) -> None:
    told = [text for text in commands.told if text]
    try:
        _compare(store, commands, told)
    except StratalogError:  # refused
        if store.put_back is None or any(commands.put_messages.values()):
            return
        store.put_back()
        with store.kind.open(store.root, mode="r") as opened:
            for key, live in store.content.queues.items():
                if live and read_on(opened.queue(*key))[0] != live:
                    raise Lost(f"{key} is not served, with its files back where they were") from None


def _compare(store: Store, commands: Commands, told: list[str]) -> None:
    with store.kind.open(store.root, mode="r") as opened:
        told += [opened.recovery.warning] if opened.recovery.warning else []
        told += list(map(str, opened.recovery.left_out))
        for key in store.kind.queues:
            found, errors, _ = read_on(opened.queue(*key))
            told += list(map(str, errors))
            put, served = commands.put_messages.get(key, {}), {known.commit_log_offset for known in found.values()}
            for number, known in put.items():
                named = f"log offset {known.commit_log_offset:,}: offset {number:,} in {key[0]}/"  # its light place
                if found.get(number) != known and not any(named in text for text in told):
                    raise Lost(f"{key} lacks {number}, which was put after the damage")
            for number, known in store.content.queues[key].items():
                is_hit, other = known.commit_log_offset in store.hit, found.get(number)
                if other == known or (is_hit and known.commit_log_offset in served):
                    continue  # nothing covers a record's properties; a queue offset may go on from a deleted one
                if not is_hit and store.generations == 1 and (commands.is_repaired or not told):
                    raise Lost(f"{key} lacks {number}, whose record is as it was put")
                if not told:
                    raise Undetected(f"{key} lacks {number}, and nothing says so")
                is_torn = store.stop in ("killed", "RocketMQ killed") or any("given again" in text for text in told)
                is_left_out = any(f"commit_log_offset={known.commit_log_offset}," in text for text in told)
                is_stated = (key, number) in commands.stated or is_torn or is_left_out
                if number in put and not is_stated:
                    raise Lost(f"{key}: {number} was given again")
                is_newest = known.commit_log_offset == max(store.records)  # damaged, it looks torn
                is_known = is_hit or store.generations == 1  # else served is what had the place before
                if commands.is_counted and commands.is_repaired and is_known and not is_stated and not is_newest:
                    raise Undetected(f"{key} lacks {number}, and repair did not count it")
            live = store.content.queues[key]
            is_counted = commands.is_counted and not store.is_exchanged  # else ends may be kept out of caution
            for number in [number for one, number in commands.stated if one == key and is_counted]:
                if number in live and found.get(number) == live[number]:
                    raise WrongPrefix(f"{key} serves {number}, and repair counted it as lost")
                if store.generations == 1 and number not in live.keys() | put.keys():
                    raise WrongPrefix(f"{key}: repair counted {number} as lost, which was not put")
            if store.hit.issuperset(known.commit_log_offset for known in live.values()) and served & store.hit:
                continue  # it says that it goes on from the deleted ones
            for number in found.keys() - live.keys() - put.keys():  # a queue that has no unit is filled from the log
                if live and not told:
                    raise WrongPrefix(f"{key} serves another message at {number}, and nothing says so")
    led_to = [{known.commit_log_offset for known in queue.values()} for queue in store.content.queues.values()]
    if store.is_exchanged and (store.kind.queues is LIGHT_KIND.queues or min(map(len, led_to)) < 2):
        return  # two light queues share messages: files may fit both; and one unit may be as right as its record
    for offset in store.changed() - store.hit - commands.moved:
        record = decode_record(store.records[offset], verify=False)
        place = (record.topic.decode(errors="replace"), record.queue_id), record.queue_offset
        if place not in commands.stated and store.content.queues.get(place[0]) != {}:  # else it was deleted
            raise WrongPrefix(f"the record of {place} at {offset} was changed, and it was intact")
