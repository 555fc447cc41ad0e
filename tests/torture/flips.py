"""Every bit of a small store flipped: found, located, never served as good, and no other message harmed.

A flip is judged three ways: what `verify` says of the directory, what a store that was closed serves of it, and what
one that was killed serves. Bytes that carry nothing (the rest of a page behind the last field, room that nothing was
written into) are flipped too, and counted apart.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import stratalog
from store.model import QUIET, Clock, walk
from stratalog.errors import StratalogError
from stratalog.layout import index as index_layout
from stratalog.layout.checkpoint import CHECKPOINT, SEAL, SEAL_POSITION
from stratalog.layout.message import BLANK, HEAD, PROPERTIES_LENGTH, TOPIC_LENGTH_V1, Record
from stratalog.layout.queue import UNIT
from stratalog.layout.record import Layout
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.tools.verify import verify
from torture.report import Lost, Row, Torture, Undetected

LOG_FILE_SIZE = 2048
SLOTS, ITEMS = 8, 64
SETTINGS: dict[str, Any] = QUIET | {
    "mapped_file_size_commit_log": LOG_FILE_SIZE,
    "mapped_file_size_consume_queue": 20 * UNIT.size,
    "max_hash_slot_num": SLOTS,
    "max_index_num": ITEMS,
}
MESSAGES = 34
CASE_SECONDS = 10.0
PASSED_OVER = frozenset({"lock"})
"""Held, not read."""
ROOM = "room behind the end"
UNCOVERED_WITHOUT_RECORD_CRC = frozenset({
    "flag", "sys_flag", "born_timestamp", "born_address", "born_port", "store_timestamp", "store_address", "store_port",
    "reconsume_times", "prepared_transaction_offset", "topic", "properties", "queue_offset", "queue_id", "body_crc",
})  # fmt: skip
"""Fields of a record that no checksum covers by default, as in RocketMQ. (Some flips in them are seen all the same:
a queue, an index item or the names of the files contradict them.)"""

SHADOWING = frozenset({"queue_offset", "queue_id", "topic"})
"""Without the record CRC these are believed: the record takes another message's place in its queue."""

Key = tuple[str, int, int]


def body_of(number: int) -> bytes:
    return b"%03d" % number * (1 + number * 5 % 40)


def made(root: Path, *, record_crc: bool) -> None:
    """The store whose bits are flipped; closed properly."""
    clock = Clock()
    with stratalog.open(root, clock_ns=clock, enabled_append_prop_crc=record_crc, **SETTINGS) as store:
        for number in range(MESSAGES):
            clock.now_ms += 700
            tags = "ab" if number % 3 else None
            store.put("topic", body_of(number), queue_id=number % 2, keys=[f"k{number}"], tags=tags)
            if number % 12 == 5:
                store.flush()
                store.dispatch()


def content_of(message: Message) -> tuple[Any, ...]:
    """All that a reader can see of a message."""
    return (
        message.topic, message.queue_id, message.queue_offset, message.commit_log_offset, message.body,
        tuple(message.properties.items()), message.born_timestamp, message.store_timestamp, message.flag,
        message.sys_flag, str(message.born_host), str(message.store_host), message.reconsume_times,
        message.prepared_transaction_offset,
    )  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A byte of the store: its file, and what stands there."""

    path: str
    position: int
    part: str
    """log, queue, index, checkpoint or other."""
    field: str
    begin: int
    end: int
    """The record, unit, item or field that it belongs to, as positions in the file."""
    message: Key | None = None
    """The message whose record or unit it is."""


class Original:
    """The store as it was, and the meaning of each of its bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and path.name not in PASSED_OVER
        }
        self.records = walk(root).records
        with stratalog.open(root, mode="r", **SETTINGS) as store:
            self.messages = {
                (message.topic, message.queue_id, message.queue_offset): content_of(message)
                for key in store.queues()
                for message in store.queue(*key).read()
            }
        assert len(self.messages) == MESSAGES

    @cached_property
    def places(self) -> list[Place]:
        """Every byte. One that lies in no record, unit or field is room."""
        found = []
        for path, data in self.files.items():
            units = {at: unit for unit in self._units(path, data) for at in range(unit.begin, unit.end)}
            for position in range(len(data)):
                known = units.get(position) or Place(path, position, path.split("/")[0], ROOM, 0, len(data))
                found.append(Place(path, position, known.part, known.field, known.begin, known.end, known.message))
        return found

    def _units(self, path: str, data: bytes) -> Iterator[Place]:
        kind = path.split("/")[0]
        if kind == "commitlog":
            yield from self._of_log(path, data)
        elif kind == "consumequeue":
            _, topic, queue_id, name = path.split("/")
            for position in range(0, len(data.rstrip(b"\0")), UNIT.size):
                key = (topic, int(queue_id), (int(name) + position) // UNIT.size)
                yield from _fields(path, "queue", UNIT, position, key)
        elif kind == "index":
            yield from _fields(path, "index", index_layout.HEADER, 0)
            for number in range(SLOTS):
                yield from _fields(path, "index", index_layout.SLOT, index_layout.slots_position() + number * 4)
            items = index_layout.HEADER.unpack(data).next_item
            for number in range(1, items):
                at = index_layout.items_position(SLOTS) + number * index_layout.ITEM.size
                yield from _fields(path, "index", index_layout.ITEM, at)
        elif kind == "checkpoint":
            yield from _fields(path, "checkpoint", CHECKPOINT, 0)
            yield from _fields(path, "checkpoint", SEAL, SEAL_POSITION)
        else:
            yield Place(path, 0, "other", path, 0, len(data))

    def _of_log(self, path: str, data: bytes) -> Iterator[Place]:
        base = int(Path(path).name)
        end = 0
        for record in self.records:
            at = record.commit_log_offset - base
            if 0 <= at < len(data):
                end = at + record.total_size
                for name, begin, stop in _record_fields(record):
                    key = (record.topic.decode(), record.queue_id, record.queue_offset)
                    yield _Part(path, at + begin, at + stop, name, at, end, key).place
        if len(data) - end >= BLANK.size and any(data[end : end + BLANK.size]):
            yield Place(path, end, "log", "blank record", end, end + BLANK.size)


@dataclass(frozen=True)
class _Part:
    path: str
    begin: int
    end: int
    field: str
    record_begin: int
    record_end: int
    key: Key

    @property
    def place(self) -> Place:
        return Place(self.path, self.begin, "log", self.field, self.begin, self.end, self.key)


def _fields(path: str, part: str, layout: Layout, at: int, key: Key | None = None) -> Iterator[Place]:
    for field in layout.fields:
        begin = at + layout.position(field.name)
        yield Place(path, begin, part, field.name, begin, begin + field.size, key)


def _record_fields(record: Record) -> Iterator[tuple[str, int, int]]:
    for field in HEAD.fields:
        yield field.name, HEAD.position(field.name), HEAD.position(field.name) + field.size
    at = HEAD.size
    for name, size in (
        ("body", len(record.body)),
        ("topic_length", TOPIC_LENGTH_V1.size),
        ("topic", len(record.topic)),
        ("properties_length", PROPERTIES_LENGTH.size),
        ("properties", len(record.properties)),
    ):
        yield name, at, at + size
        at += size


# -- judging ---------------------------------------------------------------------------------------------------------


class Judge:
    """Flips bits of one store and judges what comes of it."""

    def __init__(self, original: Original, *, record_crc: bool) -> None:
        self.original = original
        self.record_crc = record_crc
        self.unseen: Counter[str] = Counter()
        self.shadowed: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        self.unlocated: Counter[str] = Counter()
        self.flips = 0

    def flip(self, place: Place, bit: int, *, unclean: bool) -> None:
        """Flip, judge, and put the byte back. Raises `Undetected` or `Lost`."""
        path = self.original.root / place.path
        data = bytearray(self.original.files[place.path])
        data[place.position] ^= 1 << bit
        path.write_bytes(data)
        self.flips += 1
        try:
            self._verify(place)
            self._serve(place, in_every_way=unclean)
            if unclean:  # and nothing is known of an earlier opening: everything is derived from the log again
                (self.original.root / "abort").write_text("1")
                shutil.rmtree(self.original.root / "consumequeue")
                (self.original.root / "checkpoint").unlink()
                self._serve(place, in_every_way=True)
        finally:
            if unclean:
                (self.original.root / "abort").unlink(missing_ok=True)
                for name, content in self.original.files.items():
                    if name.startswith(("consumequeue", "checkpoint")):
                        (self.original.root / name).parent.mkdir(parents=True, exist_ok=True)
                        (self.original.root / name).write_bytes(content)
            path.write_bytes(self.original.files[place.path])

    def _is_covered(self, place: Place) -> bool:
        return self.record_crc or place.part != "log" or place.field not in UNCOVERED_WITHOUT_RECORD_CRC

    def _verify(self, place: Place) -> None:
        try:
            report = verify(self.original.root, threads=1)
            named = [(problem.path, problem.position) for problem in report.problems]
            seen = not report.ok
        except StratalogError as error:
            named, seen = [(str(getattr(error, "path", "")), int(getattr(error, "position", -1)))], True
        name = f"{place.part}: {place.field}"
        if not seen:
            self.unseen[name] += 1
            if place.part == "log" and place.field != ROOM and self._is_covered(place):
                raise Undetected(f"verify does not see it ({name})")
            return
        path = str(self.original.root / place.path)
        low = min([place.begin, *self._record_begins(place)])
        if not any(at == path and low <= position < max(place.end, low + 1) for at, position in named):
            self.unlocated[name] += 1

    def _record_begins(self, place: Place) -> list[int]:
        """Where the record of a byte of the log begins, the unit of a byte of a queue."""
        if place.part == "queue":
            return [place.begin - place.begin % UNIT.size]
        if place.part != "log":
            return []
        base = int(Path(place.path).name)
        starts = [record.commit_log_offset - base for record in self.original.records]
        return [start for start in starts if 0 <= start <= place.begin][-1:]

    def _serve(self, place: Place, *, in_every_way: bool) -> None:
        try:
            store = stratalog.open(self.original.root, mode="r", **SETTINGS)
        except StratalogError as error:
            raise Lost(f"the store does not open: {error}") from error
        with store:
            wrong, there = self._read(store)
            if in_every_way or place.part == "index":
                wrong += self._read_arrow(store) + self._query(store, place)
        name = f"{place.part}: {place.field}"
        if wrong:
            self.served[name] += 1
            if self._is_covered(place):
                raise Undetected(f"served as good: {wrong[0]} ({name})")
        for key in self.original.messages:
            if key in there or key == place.message:
                continue
            if place.field in SHADOWING and not self._is_covered(place):
                self.shadowed[name] += 1
            else:
                raise Lost(f"message {key} is not served any more ({name})")

    def _read(self, store: MessageStore) -> tuple[list[str], set[Key]]:
        wrong, there = [], set[Key]()
        for topic, queue_id in store.queues():
            queue = store.queue(topic, queue_id)
            offset, end = queue.min_offset, queue.max_offset
            while offset < end:
                try:
                    for message in queue.read(offset):
                        key = (topic, queue_id, message.queue_offset)
                        offset = message.queue_offset + 1
                        if content_of(message) == self.original.messages.get(key):
                            there.add(key)
                        else:
                            wrong.append(f"read of {key}")
                    break
                except StratalogError:
                    offset += 1  # what is damaged is not served: read on behind it
        return wrong, there

    def _read_arrow(self, store: MessageStore) -> list[str]:
        wrong = []
        for topic, queue_id in store.queues():
            try:
                batch = store.queue(topic, queue_id).read_arrow(columns=["queueOffset", "body", "properties"])
            except StratalogError:
                continue
            for row in batch.to_pylist():
                known = self.original.messages.get((topic, queue_id, row["queueOffset"]))
                if known is None or row["body"] != known[4]:
                    wrong.append(f"read_arrow of {topic}/{queue_id} {row['queueOffset']}")
        return wrong

    def _query(self, store: MessageStore, place: Place) -> list[str]:
        wrong = []
        number = place.position % MESSAGES
        asked = {number, place.message[2] * 2 + place.message[1] if place.message else 0}
        for number in asked:
            try:
                hits = store.query("topic", key=f"k{number}")
            except StratalogError:
                continue
            known = self.original.messages[("topic", number % 2, number // 2)]
            wrong += [f"query of k{number}" for hit in hits if content_of(hit) != known]
        return wrong


def _swept(torture: Torture, row: Row, *, record_crc: bool) -> None:
    kind = "crc" if record_crc else "plain"
    root = torture.place(f"flips-{kind}") / "store"
    made(root, record_crc=record_crc)
    original = Original(root)
    judge = Judge(original, record_crc=record_crc)
    chance = torture.chance("flips", kind)
    places = [place for place in original.places if place.field != ROOM]
    chance.shuffle(places)  # a run that is stopped early has looked everywhere
    if not torture.full:
        del places[150:]
    for place in places:
        deep = chance.randrange(8)
        for bit in range(8) if torture.full and record_crc else (deep,):
            name = f"{place.path}:{place.position}.{bit}"
            if torture.wants(name):
                with row.case(name, seconds=CASE_SECONDS):
                    judge.flip(place, bit, unclean=bit == deep)
    rooms = [place for place in original.places if place.field == ROOM]
    for place in chance.sample(rooms, torture.count(12, 400)):
        with row.case(f"{place.path}:{place.position}", seconds=CASE_SECONDS):
            judge.flip(place, chance.randrange(8), unclean=True)
    size = sum(len(data) for data in original.files.values())
    row.notes.append(f"a store of {size:,} bytes, {len(original.places) - len(rooms):,} of them with a meaning")
    for what, counter in (
        ("not seen by verify", judge.unseen), ("served though changed", judge.served),
        ("seen, but named elsewhere", judge.unlocated), ("other messages not served", judge.shadowed),
    ):  # fmt: skip
        listed = ", ".join(f"{name} {count:,}" for name, count in counter.most_common())
        row.notes.append(f"{what}: {counter.total():,} of {judge.flips:,} flips{f' ({listed})' if listed else ''}")
    shutil.rmtree(root)


def with_record_crc(torture: Torture, row: Row) -> None:
    """Every bit, records with the CRC over the whole record: nothing may go unseen."""
    _swept(torture, row, record_crc=True)


def without_record_crc(torture: Torture, row: Row) -> None:
    """A bit of every byte, records as RocketMQ writes them by default: what no checksum covers is listed."""
    _swept(torture, row, record_crc=False)
