"""Damage to whole stores, and an oracle that knows what was put: what a repair must leave, lose and report.

The oracle decodes the log with the layouts alone. It knows every record as it was put, looks at the damaged files byte
by byte, and says of each message whether it must be served after a repair, may be lost, or cannot be known.
"""

import contextlib
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stratalog
from store.model import QUIET, Clock
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, StratalogError
from stratalog.layout.batch import decode_batch_body, inner_count
from stratalog.layout.light import MULTI_DISPATCH, is_light, light_places
from stratalog.layout.message import BLANK, HEADS, LOST_FLAG, MAGIC_BLANK, Record, decode_record
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, SCHEDULE_TOPIC
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.layout.recordcrc import has_record_crc, record_crc_holds
from stratalog.layout.sysflag import HOSTS_MASK, KNOWN_MASK, SysFlag, enters_queue
from stratalog.tools.repair_plan import RepairPlan

LOG_FILE_SIZE = 8 * 1024
SETTINGS: dict[str, Any] = QUIET | {
    "mapped_file_size_commit_log": LOG_FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * UNIT.size,
    "mapper_file_size_batch_consume_queue": 20 * BATCH_UNIT.size,
    "max_hash_slot_num": 20,
    "max_index_num": 100,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
GIVEN = StoreSettings(**SETTINGS)
KINDS = ("plain", "batch", "light", "delay", "transaction")
RECORDS = 60
EVEN = 2
"""The seed with which bodies have one size, so that whole records fit in each other's places."""
PROPERTIES = re.compile(rb"(__CRC32#|INNER_[A-Z_]*|MULTI_[A-Z_]*)\x01[^\x02]*\x02")
"""Those that the store itself reads."""
READ_ERRORS_MAX = 1_000
"""After so many in a queue a reader gives up: a damaged unit can make it reach very far."""
LIGHT_NAMES = ("%LMQ%a", "%LMQ%b")
GHOST, GHOST_ID = "ghost", 9
"""Topic and queue id of queues into which nothing was put."""
RESTORABLE = frozenset({
    "total_size", "magic", "queue_id", "queue_offset", "commit_log_offset", "body_size", "topic_length", "topic",
    "properties_length", "body_crc",
})  # fmt: skip
"""Fields that something else tells. The others are covered by the record CRC alone, which says that they are wrong and
not what they were."""
PLACING = frozenset({"queue_id", "queue_offset", "commit_log_offset", "topic"})
Key = tuple[str, int, int]
"""Topic, queue id, queue offset of one message."""


@dataclass(frozen=True)
class Put:
    """One record as it was put."""

    record: Record
    data: bytes = field(repr=False)

    @property
    def offset(self) -> int:
        return self.record.commit_log_offset

    @property
    def light_keys(self) -> list[Key]:
        return [
            (name, 0, number)
            for name, number in light_places(self.record.topic, self.record.properties, self.offset)[0]
        ]

    def holds(self, body: bytes) -> bool:
        """Whether a message that was put here has that body: the record's, or that of a message in its batch."""
        is_batch = self.record.sys_flag & SysFlag.INNER_BATCH
        return body in [entry.body for entry in decode_batch_body(self.record.body)] if is_batch else (
            body == self.record.body
        )  # fmt: skip

    @property
    def keys(self) -> list[Key]:
        """The messages in it that enter a queue."""
        record = self.record
        if not enters_queue(record.sys_flag):
            return []
        count = inner_count(record.properties) if record.sys_flag & SysFlag.INNER_BATCH else 1
        return [(record.topic.decode(), record.queue_id, record.queue_offset + number) for number in range(count)]


class Original:
    """A store that nobody changes, and everything that was put into it."""

    def __init__(self, root: Path, kind: str, *, record_crc: bool, seed: int) -> None:
        self.root, self.kind, self.record_crc = root, kind, record_crc
        make(root, kind, record_crc=record_crc, seed=seed)
        self.puts = [Put(record, data) for record, data in records_of(root)[0]]
        self.end = self.puts[-1].offset + len(self.puts[-1].data)
        self.units = unit_bytes(root)

    def copy(self, to: Path) -> Path:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.root, to)
        return to


def make(root: Path, kind: str, *, record_crc: bool = False, seed: int = 1, count: int = RECORDS) -> None:
    """A store of ordinary messages with others of the kind among them; closed properly."""
    chance, clock = random.Random(f"{kind} {seed}"), Clock()
    is_even = seed == EVEN
    settings = SETTINGS | {"enabled_append_prop_crc": record_crc}
    with stratalog.open(root, clock_ns=clock, **settings) as store:
        if kind == "batch":
            store.create_topic("batches", queues=2, queue_type="BatchCQ")
        for number in range(count):
            clock.now_ms += chance.randrange(1000)
            body = b"%03d " % number + chance.randbytes(chance.choice((0, chance.randrange(300), 300)))
            if is_even:
                body = body[:12].ljust(12, b".")
            queue_id, named = number % 2, {"tags": chance.choice("ab"), "keys": [f"k{number}"]}
            if chance.random() < 0.2 and not is_even:  # too small for a placeholder
                body, named = b"%d" % number, {}
            if kind == "plain" or chance.random() < 0.3:
                store.put(chance.choice(("orders", "bills")), body, queue_id=queue_id, **named)
            elif kind == "batch" and chance.random() < 0.8:
                bodies = [b"%03d/%d" % (number, member) + body for member in range(chance.randrange(1, 5))]
                store.queue("batches", queue_id).put_batch(bodies, unique_key=f"u{number}", tags="t")
            elif kind == "batch":
                store.put("batches", body, queue_id=queue_id, **named)
            elif kind == "light":
                names = ",".join(chance.sample(LIGHT_NAMES, chance.choice((1, 2))))
                topic = chance.choice(("orders", "z"))
                store.put(topic, body, queue_id=queue_id, properties={MULTI_DISPATCH: names}, **named)
            elif kind == "delay":
                properties = {"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0", "UNIQ_KEY": f"{number:032d}"}
                store.queue(SCHEDULE_TOPIC, 0).put_record(body, encode_properties(properties))
            else:
                sys_flag = chance.choice((0x4, 0x8, 0xC))
                store.queue("orders", queue_id).put_record(body, encode_properties({"UNIQ_KEY": f"{number:032d}"}),
                                                           sys_flag=sys_flag)  # fmt: skip


def log_of(root: Path) -> dict[int, bytes]:
    """The log's files by where they begin."""
    paths = [path for path in (root / "commitlog").iterdir() if len(path.name) == 20 and path.name.isdigit()]
    return {int(path.name): path.read_bytes() for path in sorted(paths) if path.is_file() and not path.is_symlink()}


def log_at(log: dict[int, bytes], offset: int, size: int) -> bytes:
    start = offset - offset % LOG_FILE_SIZE
    return log.get(start, b"")[offset - start : min(offset - start + size, LOG_FILE_SIZE)]


def records_of(root: Path) -> tuple[list[tuple[Record, bytes]], int]:
    """The records as RocketMQ walks them, from the log's begin to the first bytes that are none; and where that is."""
    found, end = [], 0
    log = log_of(root)
    expected = min(log, default=0)
    for base, data in log.items():
        position = 0
        if base != expected:
            return found, end
        expected = base + LOG_FILE_SIZE
        while len(data) - position >= BLANK.size:
            if BLANK.unpack(data, position).magic == MAGIC_BLANK:
                position = len(data)
                break
            try:
                record = decode_record(data, position)
            except CorruptData:
                return found, end
            stored = data[position : position + record.total_size]
            if record.commit_log_offset != base + position or (
                has_record_crc(record.properties) and not record_crc_holds(stored)
            ):
                return found, end
            found.append((record, stored))
            position += record.total_size
            end = base + position
        end = max(end, base + LOG_FILE_SIZE if len(data) - position < BLANK.size else end)
    return found, end


def unit_bytes(root: Path) -> dict[tuple[str, str, int], bytes]:
    """Every written unit by tree, queue and place."""
    found = {}
    for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for path in sorted((root / tree).glob("*/*/*")):
            if path.is_file() and not path.is_symlink() and path.name.isdigit():
                data = path.read_bytes()
                for position in range(0, len(data) - layout.size + 1, layout.size):
                    if any(unit := data[position : position + layout.size]):
                        queue = f"{tree}/{path.parent.parent.name}/{path.parent.name}"
                        found[queue, layout.name, int(path.name) + position] = unit
    return found


# -- damage ----------------------------------------------------------------------------------------------------------


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


class Inflict:
    """One kind of damage a method; each draws where."""

    def __init__(self, original: Original, root: Path, chance: random.Random, other: Original) -> None:
        self.original, self.root, self.chance, self.other = original, root, chance, other

    def _log_paths(self) -> list[Path]:
        return [self.root / "commitlog" / f"{base:020d}" for base in log_of(self.root)]

    def _change_log(self, offset: int, data: bytes) -> None:
        base = offset - offset % LOG_FILE_SIZE
        path = self.root / "commitlog" / f"{base:020d}"
        if path.is_file() and path.stat().st_size >= offset - base:
            change(path, offset - base, data[: LOG_FILE_SIZE - (offset - base)])

    def field(self) -> str:
        """A bit, or all, of one field of a record."""
        put = self.chance.choice(self.original.puts)
        layout = HEADS[put.record.sys_flag & HOSTS_MASK]
        body_end = layout.size + len(put.record.body)
        places = [(f.name, layout.position(f.name), f.size) for f in layout.fields]
        places += [("topic_length", body_end, 1), ("topic", body_end + 1, len(put.record.topic))]
        places += [("properties_length", body_end + 1 + len(put.record.topic), 2)]
        places += [("body", layout.size, len(put.record.body))] * bool(put.record.body)
        name, at, size = self.chance.choice(places)
        stored = bytearray(put.data[at : at + size])
        if self.chance.random() < 0.7:
            stored[self.chance.randrange(size)] ^= 1 << self.chance.randrange(8)
        else:
            stored[:] = bytes(size) if self.chance.random() < 0.5 else self.chance.randbytes(size)
        self._change_log(put.offset + at, bytes(stored))
        return f"{name} of the record at {put.offset}"

    def zeros(self) -> str:
        at, size = self.chance.randrange(self.original.end), self.chance.choice((20, 64, 512, 1024))
        self._change_log(at - at % 512 if size >= 512 else at, bytes(size))
        return f"{size} zeros at {at}"

    def doubled(self) -> str:
        one, two = (self.chance.randrange(self.original.end) for _ in range(2))
        size = self.chance.choice((512, 4096))
        log = log_of(self.root)
        self._change_log(two - two % size, log_at(log, one - one % size, size))
        return f"the block at {one} over that at {two}"

    def swapped(self) -> str:
        size = self.chance.choice((512, 4096))
        one, two = (self.chance.randrange(self.original.end) // size * size for _ in range(2))
        log = log_of(self.root)
        self._change_log(two, log_at(log, one, size))
        self._change_log(one, log_at(log, two, size))
        return f"the {size} bytes at {one} and {two} swapped"

    def moved(self) -> str:
        """A record over another one, of the same size where there is one; or both exchanged."""
        one = self.chance.choice(self.original.puts)
        alike = [put for put in self.original.puts if len(put.data) == len(one.data) and put != one]
        other = self.chance.choice(alike or self.original.puts)
        is_swapped = self.chance.random() < 0.5
        self._change_log(other.offset, one.data)
        if is_swapped:
            self._change_log(one.offset, other.data)
        return f"the record at {one.offset} over that at {other.offset}{', and it over that' if is_swapped else ''}"

    def blank(self) -> str:
        """The mark of a file's end over a record's first bytes, or over bytes within it; most fit up to the end."""
        put = self.chance.choice(self.original.puts)
        at = put.offset + self.chance.choice((0, 0, 0, self.chance.randrange(len(put.data))))
        size = LOG_FILE_SIZE - at % LOG_FILE_SIZE - self.chance.choice((0, 0, 0, 1))
        self._change_log(at, BLANK.pack(size, MAGIC_BLANK))
        return f"a blank mark of {size} bytes at {at}"

    def old_block(self) -> str:
        """A block of the log as it was before the last messages were put."""
        size, end = self.chance.choice((512, 4096)), self.chance.choice(self.original.puts).offset
        at = self.chance.randrange(self.original.end) // size * size
        self._change_log(at, log_at(log_of(self.root), at, size)[: max(0, end - at)].ljust(size, b"\0"))
        return f"the {size} bytes at {at} as they were when the log ended at {end}"

    def place(self) -> str:
        """A field that places a record gets the value that it has in another one, or the next one up or down, or one
        far ahead."""
        put, other = self.chance.choice(self.original.puts), self.chance.choice(self.original.puts)
        layout = HEADS[put.record.sys_flag & HOSTS_MASK]
        name = self.chance.choice(("queue_id", "queue_offset", "queue_offset", "commit_log_offset"))
        field = next(field for field in layout.fields if field.name == name)
        at, size = layout.position(name), field.size
        value = int.from_bytes(put.data[at : at + size]) + self.chance.choice((-1, 1, 2, 70_000, 1 << 20))
        stored = other.data[at : at + size] if self.chance.random() < 0.5 else (value % 256**size).to_bytes(size)
        self._change_log(put.offset + at, stored)
        return f"{name} of the record at {put.offset} := {int.from_bytes(stored)}"

    def record_end(self) -> str:
        """The last bytes of a record are zeros, or noise."""
        put = self.chance.choice(self.original.puts)
        count = self.chance.choice((1, 1, 2, 5, 12, 20, 25))
        data = bytes(count) if self.chance.random() < 0.7 else self.chance.randbytes(count)
        self._change_log(put.offset + len(put.data) - count, data)
        return f"the last {count} bytes of the record at {put.offset}"

    def flag(self) -> str:
        """One of the two flags of a batch, in a record of any kind."""
        put = self.chance.choice(self.original.puts)
        bit = self.chance.choice((SysFlag.NEED_UNWRAP, SysFlag.INNER_BATCH))
        at = HEADS[0].position("sys_flag") + 3
        self._change_log(put.offset + at, bytes([put.data[at] ^ bit]))
        return f"{bit!r} of the record at {put.offset}"

    def property(self) -> str:
        """A bit of a property that the store itself reads: its name, a separator, or its value."""
        for put in self.chance.sample(self.original.puts, len(self.original.puts)):
            begin = len(put.data) - len(put.record.properties)
            found = [match.span() for match in PROPERTIES.finditer(put.data, begin)]
            if found:
                at = self.chance.randrange(*self.chance.choice(found))
                self._change_log(put.offset + at, bytes([put.data[at] ^ 1 << self.chance.randrange(8)]))
                return f"byte {at - begin} of the properties of the record at {put.offset}"
        return "no such property"

    def unit(self) -> str:
        """One field, or all, of a unit that was written."""
        path = self._queue_path()
        if path is None:
            return "no queue"
        layout = BATCH_UNIT if BATCH_CONSUME_QUEUE in path.parts else UNIT
        whole = path.read_bytes()
        count = max(1, len(whole.rstrip(b"\0")) // layout.size + 1)
        at = min(self.chance.randrange(count) * layout.size, max(0, len(whole) - layout.size))
        field = self.chance.choice(layout.fields)
        begin, size = self.chance.choice(((at + layout.position(field.name), field.size), (at, layout.size)))
        stored = self.chance.choice((bytes(size), b"\x7f".ljust(size, b"\xff"), self.chance.randbytes(size)))
        change(path, begin, stored)
        return f"{size} bytes at {begin} of {path.relative_to(self.root)}"

    def crash(self) -> str:
        """Not closed properly, and the queues were never written, or are from before the last messages."""
        for tree in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE):
            for path in sorted((self.root / tree).glob("*/*/*")) if self.chance.random() < 0.5 else ():
                size = BATCH_UNIT.size if tree == BATCH_CONSUME_QUEUE else UNIT.size
                if path.is_file():
                    stored = path.read_bytes()
                    at = self.chance.randrange(len(stored.rstrip(b"\0")) // size + 1) * size
                    path.write_bytes(stored[:at].ljust(len(stored), b"\0"))
            if self.chance.random() < 0.7:
                shutil.rmtree(self.root / tree, ignore_errors=True)
        for name in ("queues.snapshot", "checkpoint"):
            (self.root / name).unlink(missing_ok=True)
        (self.root / "abort").touch()
        return "crashed, units lost"

    def torn(self) -> str:
        at = self.chance.randrange(self.original.end * 3 // 4, self.original.end)
        for position in range(at, self.original.end + LOG_FILE_SIZE, 512):
            self._change_log(position, bytes(512))
        (self.root / "abort").touch()
        return f"torn at {at}"

    def cut(self) -> str:
        path = self.chance.choice(self._log_paths())
        os.truncate(path, self.chance.randrange(LOG_FILE_SIZE))
        return f"{path.name} cut"

    def longer(self) -> str:
        path = self.chance.choice(self._log_paths())
        if path.stat().st_size == LOG_FILE_SIZE:
            path.write_bytes(path.read_bytes() + self.chance.randbytes(self.chance.choice((1, 100))))
        return f"{path.name} longer"

    def removed(self) -> str:
        path = self.chance.choice(self._log_paths())
        path.unlink()
        return f"{path.name} removed"

    def empty(self) -> str:
        path = self.chance.choice(self._log_paths())
        path.write_bytes(b"")
        return f"{path.name} empty"

    def foreign(self) -> str:
        path = self.chance.choice(self._log_paths())
        other = self.other.root / "commitlog" / path.name
        if other.exists():
            shutil.copyfile(other, path)
        return f"{path.name} of another store"

    def odd(self) -> str:
        """What is no file of the log in its directory."""
        path = self.chance.choice(self._log_paths())
        kind = self.chance.choice(("directory", "pipe", "name", "misplaced"))
        if kind in ("directory", "pipe"):
            path.unlink()
            path.mkdir() if kind == "directory" else os.mkfifo(path)
        else:
            name = "notes.txt" if kind == "name" else f"{LOG_FILE_SIZE // 2:020d}"
            path.with_name(name).write_bytes(b"x" * LOG_FILE_SIZE)
        return f"a {kind} at {path.name}"

    def _queue_path(self) -> Path | None:
        trees = (CONSUME_QUEUE, BATCH_CONSUME_QUEUE)
        paths = [path for tree in trees for path in sorted((self.root / tree).glob("*/*/*")) if path.is_file()]
        return self.chance.choice(paths) if paths else None

    def queue(self) -> str:
        """Something in or with one queue file."""
        path = self._queue_path()
        kind = self.chance.choice(("bit", "bit", "zeros", "cut", "removed", "other", "empty"))
        if path is None:
            return "no queue"
        size = path.stat().st_size
        if kind == "bit" and size:
            at = self.chance.randrange(min(size, 120))
            change(path, at, bytes([path.read_bytes()[at] ^ 1 << self.chance.randrange(8)]))
        elif kind == "zeros":
            change(path, self.chance.randrange(max(size, 1)) // 20 * 20, bytes(40))
        elif kind == "cut":
            os.truncate(path, self.chance.randrange(size + 1))
        elif kind == "other" and (other := self._queue_path()) is not None and other != path:
            shutil.copyfile(other, path)
        elif kind == "empty":
            path.write_bytes(b"")
        else:
            path.unlink()
        return f"{kind} in {path.relative_to(self.root)}"

    def ghost(self) -> str:
        """A queue that the log knows nothing of: a copy of another one under a new name or queue id."""
        path = self._queue_path()
        if path is None:
            return "no queue"
        topic, queue_id = path.parent.parent, path.parent.name
        to = self.chance.choice((topic.with_name(GHOST) / queue_id, topic / str(GHOST_ID)))
        if to != path.parent:
            shutil.copytree(path.parent, to, dirs_exist_ok=True)
        return f"{path.parent.relative_to(self.root)} copied to {to.relative_to(self.root)}"

    def queues(self) -> str:
        tree = self.chance.choice((CONSUME_QUEUE, BATCH_CONSUME_QUEUE))
        shutil.rmtree(self.root / tree, ignore_errors=True)
        return f"{tree} removed"

    def index(self) -> str:
        for path in sorted((self.root / "index").glob("*")):
            if self.chance.random() < 0.5:
                path.unlink()
            else:
                change(path, self.chance.randrange(200), self.chance.randbytes(4))
        return "index"

    def checkpoint(self) -> str:
        (self.root / "checkpoint").unlink(missing_ok=True)
        return "checkpoint"

    def abort(self) -> str:
        (self.root / "abort").touch()
        return "abort"


def inflict(original: Original, root: Path, chance: random.Random, other: Original) -> list[str]:
    """One to three kinds of damage, most of them to the log; what was done, in words."""
    damage = Inflict(original, root, chance, other)
    of_log: list[Callable[[], str]] = [
        damage.field, damage.field, damage.field, damage.field, damage.zeros, damage.doubled, damage.swapped,
        damage.torn, damage.cut, damage.longer, damage.removed, damage.empty, damage.foreign, damage.odd,
        damage.moved, damage.moved, damage.blank, damage.old_block, damage.place, damage.place,
        damage.property, damage.property, damage.flag, damage.record_end,
    ]  # fmt: skip
    others: list[Callable[[], str]] = [
        damage.queue,
        damage.queue,
        damage.unit,
        damage.unit,
        damage.crash,
        damage.queues,
        damage.ghost,
        damage.index,
        damage.checkpoint,
        damage.abort,
    ]
    kinds = [chance.choice(of_log) for _ in range(chance.choice((0, 1, 1, 1, 2, 3)))]
    kinds += [chance.choice(others) for _ in range(chance.choice((0, 0, 1, 2)))]
    return [kind() for kind in kinds if len(log_of(root)) > 1]


# -- the oracle ------------------------------------------------------------------------------------------------------


class Oracle:
    """What a damaged store still holds; ask before the repair, check after it."""

    def __init__(self, original: Original, root: Path) -> None:
        self.original, self.is_repaired = original, False
        log, units = log_of(root), unit_bytes(root)
        self.log_begin = min((base for base in log if not base % LOG_FILE_SIZE), default=0)
        self.size_before = {base: len(data) for base, data in log.items()}
        self.intact = {put.offset for put in original.puts if log_at(log, put.offset, len(put.data)) == put.data}
        lead = {self._place(unit, key) for key, unit in units.items() if original.units.get(key) == unit}
        self.led = {offset for offset, _ in lead}
        """Log offsets of the records that a unit as it was still leads to."""
        places = Counter(offset for offset, _ in {(self._place(unit, key)[0], key[0]) for key, unit in units.items()})
        self.ambiguous = {offset for offset, count in places.items() if count > 1}
        """Log offsets to which units of two queues lead: of a lost message nobody knows which one it was."""
        self.changed = {
            put.offset: {
                name for name, at, size in _fields(put)
                if log_at(log, put.offset + at, size) != put.data[at : at + size]
            }
            for put in original.puts if put.offset not in self.intact
        }  # fmt: skip
        self.readable = {
            put.offset for put in original.puts
            if put.offset in self.led and self._is_readable(put, log_at(log, put.offset, len(put.data)))
            and not (original.record_crc and self.changed.get(put.offset, set()) - RESTORABLE)
            and not self._is_elsewhere(self.changed.get(put.offset, set()))
        }  # fmt: skip

        self.unnamed = {
            put.offset for put in original.puts
            if original.record_crc and not has_record_crc(log_at(log, put.offset, len(put.data)))
        }  # fmt: skip
        """Records whose record CRC lost its name: nothing tells that they had one."""
        self.before = self._right_before(root)
        """Places from which the message that was put there is read as it was."""
        self.contested = {
            put.offset for put in original.puts
            if put.offset in self.intact - self.led and not self.before & set(put.keys) and self._has_rival(put, log)
        }  # fmt: skip
        """Intact records whose place another one says to have, with no unit to tell which is right."""

    @staticmethod
    def _is_elsewhere(changed: set[str]) -> bool:
        """Whether more than one of the fields that place a record is not as it was: then they may be another's."""
        return len(changed & PLACING) > 1 or {"properties", "queue_offset"} <= changed

    def _has_rival(self, put: Put, log: dict[int, bytes]) -> bool:
        for offset in self.changed:
            with contextlib.suppress(CorruptData):
                found = decode_record(log_at(log, offset, LOG_FILE_SIZE), verify=False)
                if [(found.topic.decode("utf-8", "replace"), found.queue_id, found.queue_offset)] == put.keys[:1]:
                    return True
        return False

    def _right_before(self, root: Path) -> set[Key]:
        right, puts = set(), self._places()
        with contextlib.suppress(StratalogError), stratalog.open(root, mode="r", **SETTINGS) as store:
            for topic, queue_id in store.queues():
                for message in self._read(store.queue(topic, queue_id)):
                    key = topic, queue_id, message.queue_offset
                    put = puts.get(key)
                    if put and put.offset == message.commit_log_offset and put.holds(message.body):
                        right.add(key)
        return right

    def _places(self) -> dict[Key, Put]:
        """Every place of every message, those in light queues among them."""
        return {key: put for put in self.original.puts for key in (*put.keys, *put.light_keys)}

    @staticmethod
    def _place(unit: bytes, key: tuple[str, str, int]) -> tuple[int, int]:
        layout = BATCH_UNIT if len(unit) == BATCH_UNIT.size else UNIT
        fields = layout.unpack(unit)
        is_main = "%LMQ%" not in key[0]
        return (fields.commit_log_offset if is_main else -1), fields.size

    @staticmethod
    def _is_readable(put: Put, data: bytes) -> bool:
        """Whether a consumer of RocketMQ gets the message by its unit: it decodes head and lengths, and checks the
        body."""
        try:
            found = decode_record(data)
        except CorruptData:
            return False
        if found.properties and not data[-1]:
            return False  # torn: properties end with a separator
        if found.sys_flag & ~KNOWN_MASK:
            return False  # garbage, by which a consumer takes the body for a compressed one, or a batch
        return found.body == put.record.body and found.topic == put.record.topic and len(data) == found.total_size

    def check(self, root: Path, plan: RepairPlan) -> str | None:
        """Raise `AssertionError` unless the repaired store is as it must be; returns what could not be known."""
        with stratalog.open(root, mode="r", **SETTINGS) as store:
            assert not store.recovery.quarantined
        self.is_repaired = True
        records, end = records_of(root)
        at = {record.commit_log_offset: (record, data) for record, data in records}
        self._check_log(root, at, end)
        served = self.check_served(root, self.intact | self.readable)
        return self._check_report(plan, served)

    def check_served(self, root: Path, offsets: set[int]) -> dict[Key, int]:
        """Raise `AssertionError` unless the records at these log offsets are served; returns all that is."""
        served = self._served(root)
        for put in self.original.puts:
            if put.offset >= self.log_begin and put.offset in offsets and put.keys:
                is_batch = put.record.sys_flag & SysFlag.INNER_BATCH
                if "properties" in self.changed.get(put.offset, ()) and is_batch:
                    continue  # nothing else says how many messages the batch holds: then it is reported as lost
                if put.offset in self.contested:
                    continue
                assert all(served.get(key) == put.offset for key in put.keys), (
                    f"the message {put.keys[0]} at {put.offset} was "
                    f"{'intact' if put.offset in self.intact else 'readable by its unit'}: "
                    f"{[served.get(key) for key in put.keys]}"
                )
        return served

    def _check_log(self, root: Path, at: dict[int, tuple[Record, bytes]], end: int) -> None:
        """Records that were intact are where they were; others are placeholders, fillers, or as they were put but for
        fields without a checksum."""
        puts = {put.offset: put for put in self.original.puts}
        for offset in self.intact - self.contested:
            if offset >= self.log_begin:
                assert at.get(offset, (None, b""))[1] == puts[offset].data, f"the intact record at {offset} has changed"
        for offset, (record, data) in at.items():
            put = puts.get(offset)
            if record.flag == LOST_FLAG:
                continue
            assert put is not None, f"a record at {offset} that was never put, and is not marked: {data[:120]!r}"
            assert record.body == put.record.body, f"the body of the record at {offset} has changed"
        log = log_of(root)
        assert all(len(data) == LOG_FILE_SIZE for data in log.values())
        for base, data in log.items():
            if base >= end:
                assert not any(data), f"bytes after the log's end, in {base}"

    def _served(self, root: Path) -> dict[Key, int]:
        """Log offset by message of all that a reader gets, placeholders left out; all must have been put so."""
        puts = {key: put for put in self.original.puts for key in put.keys}
        places = {key: put.offset for put in self.original.puts for key in put.light_keys}
        self.light_served = set[Key]()
        served: dict[Key, int] = {}
        with stratalog.open(root, mode="r", **SETTINGS) as store:
            for topic, queue_id in store.queues():
                for message in self._read(store.queue(topic, queue_id)):
                    if message.flag == LOST_FLAG:
                        continue
                    if topic.startswith("%LMQ%"):
                        key, offset = (topic, 0, message.queue_offset), message.commit_log_offset
                        is_changed = "properties" in self.changed.get(offset, ())
                        assert is_changed or places.get(key) == offset, f"{key} at {offset} was never put there"
                        self.light_served.add(key)
                        continue
                    key = topic, queue_id, message.queue_offset
                    if key not in puts or puts[key].offset != message.commit_log_offset:
                        self._excuse(key, message.commit_log_offset)
                        continue
                    assert key not in served, f"{key} is served twice"
                    stored = puts[key].record.properties
                    is_right = message.raw_properties == stored or not self.original.record_crc
                    is_right |= message.commit_log_offset in self.unnamed
                    assert is_right or topic == "batches", f"{key} has other properties than it was put with"
                    served[key] = message.commit_log_offset
        return served

    def _read(self, queue: Any) -> Iterator[Any]:
        """Every message that can be read; a repaired store has no other."""
        start = queue.min_offset
        for _ in range(READ_ERRORS_MAX):
            try:
                for message in queue.read(start):
                    yield message
                    start = message.queue_offset + 1
                return
            except CorruptData as error:
                if self.is_repaired or error.next_offset <= start:
                    raise
                start = error.next_offset

    def _excuse(self, key: Key, offset: int) -> None:
        """A message in the wrong place: only where a changed field without a checksum says so, and no unit is left that
        says otherwise."""
        blame = self.changed.get(offset, set()) & {"queue_offset", "queue_id", "topic", "sys_flag", "properties"}
        excused = blame and offset not in self.led and not self.original.record_crc
        assert excused, f"{key} at {offset} was never put there ({self.changed.get(offset)})"
        self.misplaced = {*getattr(self, "misplaced", set()), offset}

    def _check_report(self, plan: RepairPlan, served: dict[Key, int]) -> str | None:
        put = {key: each.offset for each in self.original.puts for key in each.keys}
        lost = [
            (m.topic, m.queue_id, m.queue_offset + number)
            for m in plan.lost if not is_light(m.topic)
            for number in range(m.message_count)
        ]  # fmt: skip
        assert len(lost) == len(set(lost)), "a lost message is reported twice"
        assert not set(lost) & served.keys(), f"served, and reported as lost: {sorted(set(lost) & served.keys())[:3]}"
        light = [(m.topic, 0, m.queue_offset) for m in plan.lost if is_light(m.topic)]
        light += [(name, 0, number) for m in plan.lost for name, number in m.places]
        assert plan.lost_count == max(len(lost), *Counter(name for name, *_ in light).values(), 0), "one counts once"
        light += [(name, 0, number) for name, number in plan.lost_places]
        assert len(light) == len(set(light)), "a lost place in a light queue is reported twice"
        assert not set(light) & self.light_served, f"served, and lost: {sorted(set(light) & self.light_served)[:3]}"
        less = self.before - served.keys() - self.light_served - set(lost) - set(light)
        assert not less, f"served right before the repair, not served after it, and not reported: {sorted(less)[:3]}"
        misplaced = getattr(self, "misplaced", set())
        # Of a queue and its copy nobody knows which is right where the log has no message of either.
        copied = {key for key in lost if key not in put and (key[0] == GHOST or key[1] == GHOST_ID)}
        # Where a head is all that is left of a record, its damaged place is reported: it stands for the right one.
        if any(changed & PLACING for offset, changed in self.changed.items() if offset not in self.led):
            copied = {key for key in lost if key not in put}
        invented = {key for key in lost if key not in put} - copied
        assert not invented or misplaced, f"reported as lost, never put: {sorted(invented)[:3]}"
        missing = put.keys() - served.keys() - set(lost)
        gone = {key for key in missing if put[key] < self.log_begin}
        named = len({key for key in gone if put[key] in self.led})
        assert named <= plan.gone_count, f"{named} messages gone with the first files, {plan.gone_count} reported"
        unknown = {key for key in missing - gone if not self._is_known(key, put, served)}
        contested = {key for key in missing - gone - unknown if put[key] in self.contested}
        # The one that is served in the place of another leaves its own place empty: reported, it stands for the other.
        told = len(plan.unplaced) + sum(put.get(key) in misplaced for key in lost)
        assert len(contested) <= told, f"of {sorted(contested)} {told} are reported"
        silent = {key for key in missing - gone - unknown - contested if put[key] not in misplaced}
        known = {key for key in silent if put[key] not in self.ambiguous}
        assert len(known) <= len(copied), f"lost and not reported: {sorted(silent)[:3]} of {len(silent)}"
        if not misplaced:
            kept = len(served) if plan.message_count is None else plan.message_count
            assert kept == len(served), f"{kept} reported as kept, {len(served)} served"
            told = kept + len(lost) - len(copied)
            assert told + len(silent) + len(gone) + len(unknown) + len(contested) == len(put)
        return f"{len(unknown)} unknown, {len(misplaced)} misplaced" if unknown or misplaced else None

    def _is_known(self, key: Key, put: dict[Key, int], served: dict[Key, int]) -> bool:
        """Whether anything is left that names a lost message: its unit, or a later message of its queue (with an
        earlier one, or with the log's begin)."""
        offset = put[key]
        if offset in self.led:
            return True
        later = any(other[:2] == key[:2] and other[2] > key[2] for other in served)
        earlier = self.log_begin == 0 or any(other[:2] == key[:2] and other[2] < key[2] for other in served)
        return later and earlier


def _fields(put: Put) -> list[tuple[str, int, int]]:
    layout = HEADS[put.record.sys_flag & HOSTS_MASK]
    body_end = layout.size + len(put.record.body)
    topic_end = body_end + 1 + len(put.record.topic)
    return [
        *((f.name, layout.position(f.name), f.size) for f in layout.fields),
        ("body", layout.size, len(put.record.body)), ("topic_length", body_end, 1),
        ("topic", body_end + 1, len(put.record.topic)), ("properties_length", topic_end, 2),
        ("properties", topic_end + 2, len(put.data) - topic_end - 2),
    ]  # fmt: skip
