"""What tests of the store share: small settings, a clock, and `check`, the slow and obvious truth about a whole store.

`check` reads the log with the layouts alone (no kernel), derives from it what queues and index must hold, and compares.
"""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratalog.errors import CorruptData
from stratalog.layout.index import index_key, tag_key
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.message import BLANK, FIXED_SIZE_V1, MAGIC_BLANK, Record, decode_record
from stratalog.layout.names import SCHEDULE_TOPIC, offset_of
from stratalog.layout.properties import KEYS, TAGS, UNIQUE_KEY, decode_properties, split_keys
from stratalog.layout.queue import FILLER_SIZE, UNIT
from stratalog.layout.sysflag import TRANSACTION_MASK, Transaction, enters_queue
from stratalog.store import commit_log
from stratalog.store.message_store import MessageStore

LOG_FILE_SIZE = 64 * 1024
QUEUE_FILE_UNITS = 50
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": LOG_FILE_SIZE,
    "mapped_file_size_consume_queue": QUEUE_FILE_UNITS * UNIT.size,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
"""Files so small that a few hundred messages fill several of each kind."""

QUIET: dict[str, Any] = {"flush_interval_commit_log": 3_600_000, "flush_interval_consume_queue": 3_600_000}
"""The two background threads sleep: what happens is what the test does."""


class Clock:
    """A clock that stands still until it is told otherwise; milliseconds."""

    def __init__(self, now_ms: int = 1_700_000_000_123) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms * 1_000_000


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of stores are opened, and nothing in them is about the disk. What
    a test puts beside it is its own too."""
    memory = Path("/dev/shm")
    outer = Path(tempfile.mkdtemp(prefix="stratalog-test-", dir=memory if os.access(memory, os.W_OK) else None))
    folder = outer / "folder"
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(outer)


@dataclass(frozen=True)
class Walk:
    """The log as found byte by byte: whole records, damaged ranges between them, and the end."""

    records: list[Record]
    damages: list[tuple[int, int]]
    begin: int
    end: int

    def covers(self, commit_log_offset: int) -> bool:
        return any(begin <= commit_log_offset < end for begin, end in self.damages)


def log_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").glob("*") if offset_of(path.name) is not None)


def queue_files(root: Path, topic: str, queue_id: int = 0) -> list[Path]:
    return sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def walk(root: Path) -> Walk:
    """Every whole record of the log's files, found with the layouts alone."""
    records, damages = [], []
    files = [(int(path.name), path.read_bytes()) for path in log_files(root)]
    begin = end = files[0][0] if files else 0
    damaged_from: int | None = None
    for base, data in files:
        position, written, closed = 0, len(data.rstrip(b"\0")), False
        while position < written and not closed:
            if _closes_file(data, position):
                closed = True
                if damaged_from is None:
                    end = base + len(data)
                continue
            record = _record_at(data, base, position)
            if record is None:
                damaged_from = base + position if damaged_from is None else damaged_from
                position += 1
                continue
            if damaged_from is not None:
                damages.append((damaged_from, base + position))
                damaged_from = None
            records.append(record)
            position += record.total_size
            end = base + position
        if not closed and damaged_from is None:
            damaged_from = base + position
    return Walk(records, damages, begin, end)


def _closes_file(data: bytes, position: int) -> bool:
    left = len(data) - position
    return left < BLANK.size or tuple(BLANK.unpack(data, position)) == (left, MAGIC_BLANK)


def _record_at(data: bytes, base: int, position: int) -> Record | None:
    if len(data) - position < FIXED_SIZE_V1 or not any(data[position : position + BLANK.size]):
        return None
    try:
        record = decode_record(data, position)
    except CorruptData:
        return None
    whole = record.commit_log_offset == base + position and not record.properties.endswith(b"\0")
    return record if whole else None


def keys_of(record: Record, *, with_tags: bool) -> list[str]:
    """The texts that a record is indexed under, in order."""
    if record.sys_flag & TRANSACTION_MASK == Transaction.ROLLBACK:
        return []
    properties, topic = decode_properties(record.properties), record.topic.decode()
    unique = [properties[UNIQUE_KEY]] if UNIQUE_KEY in properties else []
    texts = [index_key(topic, key) for key in unique + split_keys(properties.get(KEYS))]
    if with_tags and TAGS in properties:
        texts.append(tag_key(topic, properties[TAGS]))
    return texts


def check(store: MessageStore) -> Walk:
    """Assert that log, queues and index of an open store agree. Returns the log as it was walked."""
    if store.log.failure is None:
        store.flush()
        store.dispatch()
    found = walk(store.root)
    assert found.begin == store.log.first_offset
    assert found.end <= store.log.end_offset, "the store ends before its last whole record"
    found.damages.append((found.end, store.log.end_offset))
    _check_queues(store, found)
    if store.index:
        _check_index(store, found)
    if not store._disk.read_only:
        _check_tail(store)
    return found


def _check_tail(store: MessageStore) -> None:
    if store.log.files:
        last = store.log.files[-1]
        tail = last.path.read_bytes()[store.log.end_offset - int(last.path.name) :]
        assert not any(tail), "old bytes stand behind the log's end"
        behind = [path for path in log_files(store.root) if path > last.path]
        may_be_ahead = store.log.file_size >= commit_log.AHEAD_SIZE_MIN
        assert not behind or may_be_ahead, "a file is left behind the log's end"
        assert not any(any(path.read_bytes()) for path in behind), "a file made ahead holds something"


def _check_queues(store: MessageStore, found: Walk) -> None:
    expected: dict[tuple[str, int], dict[int, Record]] = {}
    for record in found.records:
        if enters_queue(record.sys_flag):
            queue = expected.setdefault((record.topic.decode(), record.queue_id), {})
            assert record.queue_offset not in queue, f"two records are offset {record.queue_offset} of a queue"
            assert record.queue_offset > max(queue, default=-1), "queue offsets go backwards in the log"
            queue[record.queue_offset] = record
    assert expected.keys() <= set(store.queues())
    for key in store.queues():
        units = store.units_of(store.queue(*key))
        records = expected.get(key, {})
        assert units.end_offset >= max(records, default=-1) + 1
        for number, (offset, size, tags_code) in enumerate(
            UNIT.struct.iter_unpack(units.units(units.first_offset, 1 << 30)), units.first_offset
        ):
            stored = records.pop(number, None)
            place = f"unit {number} of {key}"
            if stored is None:
                assert size == FILLER_SIZE or offset < found.begin or found.covers(offset), f"{place} has no record"
                continue
            assert (offset, size) == (stored.commit_log_offset, stored.total_size), place
            if key[0] != SCHEDULE_TOPIC:
                tags = decode_properties(stored.properties).get(TAGS)
                assert tags_code == (string_hash(tags) if tags else 0), place
        assert not records, f"{key}: records without a unit: {sorted(records)}"


def _check_index(store: MessageStore, found: Walk) -> None:
    assert store.index
    with_tags = store.settings.compatibility != "5.3"
    expected = [
        (index_key_hash(string_hash(text)), record.commit_log_offset)
        for record in found.records
        for text in keys_of(record, with_tags=with_tags)
    ]
    stored = []
    for file in store.index.files:
        items = store.index.items(file)
        stored += [(int(item["key_hash"]), int(item["commit_log_offset"])) for item in items]
        assert sorted(_reached(store, file)) == list(range(1, len(items) + 1)), "an item is in no chain, or in two"
    stored = [item for item in stored if item[1] >= found.begin and not found.covers(item[1])]
    assert stored == expected, (Counter(stored) - Counter(expected), Counter(expected) - Counter(stored))


def _reached(store: MessageStore, file: Any) -> Iterator[int]:
    """Numbers of the items that the slots lead to."""
    assert store.index
    items, slots = store.index.items(file), store.index.slots(file)
    for slot, newest in enumerate(slots.tolist()):
        number = newest
        while number:
            yield number
            assert int(items[number - 1]["key_hash"]) % len(slots) == slot
            older = int(items[number - 1]["previous_item"])
            assert older < number
            number = older


def crash_copy(store: MessageStore, target: Path) -> Path:
    """What a killed process would leave: the directory as it is now, without closing."""
    shutil.copytree(store.root, target, ignore=shutil.ignore_patterns("lock"))
    return target


def bodies(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    """Everything that can be read, by queue."""
    return {key: [message.body for message in store.queue(*key).read()] for key in store.queues()}


def flip(path: Path, position: int, mask: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)
