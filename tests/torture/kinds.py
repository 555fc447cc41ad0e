"""Damage to the queues of every kind, and to the records that their units point to: never served wrong, never silent.

A case changes one to three things in a store of one kind: bits of units, extensions or records, units and files that
are exchanged, doubled, blanked or gone. The damage comes before the store is opened or while it is open. `hidden` are
the messages whose own unit or record was changed: all others must be read, by going on where errors say. A rebuild
that is told nothing makes the queues as they were.
"""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from store.kinds import KINDS, Key, Kind, Known, pages, read_on, trees
from stratalog.errors import CorruptData, StratalogError
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT
from stratalog.layout.queue import BATCH_UNIT, EXTENSION_UNIT, UNIT
from stratalog.store.lookup import Hits
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.tools.rebuild import rebuild
from stratalog.tools.verify import verify
from torture.report import Lost, Row, Torture, Undetected

CASE_SECONDS = 60.0
LOG = "commitlog"
Files = dict[str, bytes]


class Original:
    """A store of one kind as it was put, with the record CRC, so that every bit of a record is covered."""

    def __init__(self, kind: Kind, root: Path) -> None:
        self.kind, self.root = kind, root
        kind.made(root, enabled_append_prop_crc=True)
        self.queues = trees(root)
        (log,) = (root / LOG).iterdir()
        self.log = f"{LOG}/{log.name}"
        self.files = self.queues | {self.log: log.read_bytes()}
        self.messages: dict[Key, dict[int, Known]] = {}
        self.records: dict[int, int] = {}
        with kind.open(root, mode="r") as store:
            for key in store.queues():
                self.messages[key] = {}
                for message in store.queue(*key).read():
                    self.messages[key][message.queue_offset] = Known.of(message)
                    self.records[message.commit_log_offset] = message.store_size

    def hidden(self, files: Files) -> dict[Key, set[int]]:
        """The messages whose own unit or record is not as it was."""
        changed = {
            offset for offset, size in self.records.items()
            if files[self.log][offset : offset + size] != self.files[self.log][offset : offset + size]
        }  # fmt: skip
        units: dict[Key, set[int]] = {key: set() for key in self.messages}
        for path, whole in self.queues.items():
            tree, topic, queue_id, _ = path.split("/")
            if tree == CONSUME_QUEUE_EXT:
                continue
            size, now = unit_size(path), files.get(path, b"")
            for at in range(0, len(whole.rstrip(b"\0")), size):
                if now[at : at + size] != whole[at : at + size]:
                    offset = (BATCH_UNIT if tree == BATCH_CONSUME_QUEUE else UNIT).unpack(whole, at).commit_log_offset
                    units[topic, int(queue_id)].add(int(offset))
        return {
            key: {at for at, known in messages.items() if known.commit_log_offset in changed | units[key]}
            for key, messages in self.messages.items()
        }


def unit_size(path: str) -> int:
    tree = path.split("/")[0]
    return {BATCH_CONSUME_QUEUE: BATCH_UNIT.size, CONSUME_QUEUE_EXT: EXTENSION_UNIT.size}.get(tree, UNIT.size)


# -- what is changed -------------------------------------------------------------------------------------------------


def _written(chance: random.Random, files: Files, path: str) -> int:
    """Position of a unit in a file that holds some."""
    size = unit_size(path)
    return chance.randrange(max(1, len(files[path].rstrip(b"\0")) // size)) * size


def _queue_file(chance: random.Random, files: Files) -> str:
    return chance.choice(sorted(path for path in files if not path.startswith(LOG)))


def _with(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def flip_unit(chance: random.Random, original: Original, files: Files) -> None:
    path = _queue_file(chance, files)
    at = _written(chance, files, path) + chance.randrange(unit_size(path))
    files[path] = _with(files[path], at, bytes([files[path][at] ^ 1 << chance.randrange(8)]))


def wild_unit(chance: random.Random, original: Original, files: Files) -> None:
    path = _queue_file(chance, files)
    files[path] = _with(files[path], _written(chance, files, path), chance.randbytes(unit_size(path)))


def blank_unit(chance: random.Random, original: Original, files: Files) -> None:
    path = _queue_file(chance, files)
    files[path] = _with(files[path], _written(chance, files, path), bytes(unit_size(path)))


def copy_unit(chance: random.Random, original: Original, files: Files) -> None:
    """A unit takes another one's place; of another queue now and then."""
    path = _queue_file(chance, files)
    others = sorted(other for other in files if other.split("/")[0] == path.split("/")[0])
    source, size = chance.choice(others), unit_size(path)
    begin = _written(chance, files, source)
    files[path] = _with(files[path], _written(chance, files, path), files[source][begin : begin + size])


def swap_units(chance: random.Random, original: Original, files: Files) -> None:
    path = _queue_file(chance, files)
    size = unit_size(path)
    one, other = _written(chance, files, path), _written(chance, files, path)
    first, second = files[path][one : one + size], files[path][other : other + size]
    files[path] = _with(_with(files[path], one, second), other, first)


def swap_files(chance: random.Random, original: Original, files: Files) -> None:
    path = _queue_file(chance, files)
    other = chance.choice(sorted(one for one in files if one.split("/")[0] == path.split("/")[0]))
    files[path], files[other] = files[other], files[path]


def remove_file(chance: random.Random, original: Original, files: Files) -> None:
    files.pop(_queue_file(chance, files))


def flip_record(chance: random.Random, original: Original, files: Files) -> None:
    offset = chance.choice(sorted(original.records))
    at = offset + chance.randrange(original.records[offset])
    data = files[original.log]
    files[original.log] = _with(data, at, bytes([data[at] ^ 1 << chance.randrange(8)]))


Change = Callable[[random.Random, Original, Files], None]
CHANGES: tuple[Change, ...] = (
    flip_unit, flip_unit, wild_unit, blank_unit, copy_unit, swap_units, swap_files, remove_file, flip_record,
)  # fmt: skip


# -- judging ---------------------------------------------------------------------------------------------------------


def write(root: Path, files: Files, instead_of: Files) -> None:
    for path in instead_of.keys() - files.keys():
        (root / path).unlink()
    for path, data in files.items():
        if instead_of.get(path) != data:
            (root / path).write_bytes(data)


class Judge:
    def __init__(self, original: Original, root: Path) -> None:
        self.original, self.root = original, root
        self.found: Counter[str] = Counter()

    def case(self, chance: random.Random) -> None:
        files = dict(self.original.files)
        changes = [chance.choice(CHANGES) for _ in range(chance.choice((1, 1, 2, 3)))]
        for change in changes:
            change(chance, self.original, files)
        comes_later = remove_file not in changes and chance.random() < 0.5
        told = ", ".join(change.__name__ for change in changes)
        self.judge(files, told, chance, comes_later=comes_later)

    def judge(self, files: Files, told: str, chance: random.Random, *, comes_later: bool) -> None:
        """Open, verify and rebuild a store with these files; `comes_later`: they change while it is open."""
        original, kind = self.original, self.original.kind
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(original.root, self.root)
        hidden = original.hidden(files)
        if comes_later:
            with kind.open(self.root, mode="r") as store:
                store.queues()
                write(self.root, files, original.files)
                self._serve(store, hidden, chance)
        else:
            write(self.root, files, original.files)
            with contextlib.suppress(_Refused), self._opened() as store:
                self._serve(store, hidden, chance)
        report = verify(self.root)
        if files != original.files and report.ok:
            raise Undetected(f"verify sees nothing: {told}")
        self._rebuild(hidden, is_log_whole=files[original.log] == original.files[original.log])

    @contextlib.contextmanager
    def _opened(self) -> Iterator[MessageStore]:
        """Queues that no longer fit the log may be refused, if the error says what to do."""
        try:
            store = self.original.kind.open(self.root, mode="r")
        except CorruptData as error:
            if not any(word in str(error) for word in ("move", "stratalog repair", "it was cut")):
                raise
            self.found["not opened, and told why"] += 1
            raise _Refused from None
        with store:
            yield store

    def _serve(self, store: MessageStore, hidden: dict[Key, set[int]], chance: random.Random) -> None:
        if store.queues() != sorted(self.original.messages):
            raise Lost(f"queues {store.queues()} are there, not {sorted(self.original.messages)}")
        for key, known in self.original.messages.items():
            queue = store.queue(*key)
            found, errors, named = read_on(queue)
            self._is_right(found, key)
            lost = known.keys() - found
            if not lost <= hidden[key]:
                raise Lost(f"{key} {sorted(lost - hidden[key])} are whole and not served")
            if not lost <= named and not store.recovery.quarantined:
                raise Undetected(f"{key} {sorted(lost - named)} are not served, and no error says so")
            self.found["messages read"] += len(found)
            self.found["errors met"] += len(errors)
            self._pages(store, key)
            for bound in ("lower", "upper"):
                at = queue.offset_at(chance.choice(list(known.values())).store_timestamp, bound=bound)
                if not queue.min_offset <= at <= queue.max_offset:
                    raise Undetected(f"{key}: offset_at says {at}")
            for text in chance.choice(list(known.values())).keys:
                hits = store.query(key[0], key=text, limit=None)
                self._hits(hits, text)
                self._is_complete(store, key[0], text, hits, hidden)

    def _is_right(self, found: dict[int, Known], key: Key) -> None:
        for at, message in found.items():
            if self.original.messages[key].get(at) != message:
                raise Undetected(f"{key} {at} is served changed")

    def _pages(self, store: MessageStore, key: Key) -> None:
        queue, start = store.queue(*key), store.queue(*key).min_offset
        while start < queue.max_offset:
            try:
                for offset in pages(queue, start):
                    start = offset + 1
                return
            except CorruptData as error:
                following = error.next_offset
            if not start < following <= queue.max_offset:
                raise Undetected(f"{key}: read_arrow from {start} on says to go on at {following}")
            start = following

    def _hits(self, hits: list[Message], text: str) -> None:
        for hit in hits:
            known = self.original.messages[hit.topic, hit.queue_id].get(hit.queue_offset)
            if known != Known.of(hit) or text not in known.keys:
                raise Undetected(f"query of {text} gives {hit.topic}/{hit.queue_id} {hit.queue_offset} changed")

    def _is_complete(self, store: MessageStore, topic: str, text: str, hits: Hits, hidden: dict[Key, set[int]]) -> None:
        """Every intact message with the key is found, and what is not found is named."""
        there = {(hit.queue_id, hit.queue_offset) for hit in hits}
        missing = {
            key: offsets
            for key, messages in self.original.messages.items()
            if key[0] == topic
            and (
                offsets := {at for at, known in messages.items() if text in known.keys}
                - {at for q, at in there if q == key[1]}
            )
        }
        for key, offsets in missing.items():
            if not offsets <= hidden[key]:
                raise Lost(f"query of {text} leaves out {key} {sorted(offsets - hidden[key])}, which are whole")
        if missing and not hits.damaged:
            raise Undetected(f"query of {text} leaves out {missing}, and says nothing of it")
        many = store.query_many(topic, [text], limit=None)
        if many[text] != hits or bool(many.damaged) != bool(hits.damaged):
            raise Undetected(f"query_many of {text} is not what query gives")
        self.found["queries"] += 1
        self.found["damaged records named by queries"] += len(hits.damaged)

    def _rebuild(self, hidden: dict[Key, set[int]], *, is_log_whole: bool) -> None:
        try:
            rebuild(self.root)
        except CorruptData as error:
            if is_log_whole or not any(word in str(error) for word in ("repair", "it was cut")):
                raise
            self.found["not rebuilt, and told why"] += 1
            return
        if is_log_whole:
            if trees(self.root) != self.original.queues:
                raise Undetected("the queues that were built are not those that were put")
            if not verify(self.root).ok:
                raise Undetected(f"after a rebuild verify finds {verify(self.root).problems[0]}")
        with self.original.kind.open(self.root, mode="r") as store:
            for key, known in self.original.messages.items():
                found, _, _ = read_on(store.queue(*key))
                self._is_right(found, key)
                lost = known.keys() - found
                if not lost <= (set() if is_log_whole else hidden[key]):
                    raise Lost(f"{key} {sorted(lost)} are not served after a rebuild")


class _Refused(StratalogError):
    """The store was not opened, with a reason."""


def kinds(torture: Torture, row: Row) -> None:
    """Every kind of queue, as many cases each."""
    for kind in KINDS:
        place = torture.place(f"kinds-{kind.name.replace(' ', '-')}")
        judge = Judge(Original(kind, place / "original"), place / "store")
        for number in range(torture.count(8, 500)):
            name = f"{kind.name} {number}"
            if torture.wants(name):
                with row.case(name, seconds=CASE_SECONDS):
                    judge.case(torture.chance("kinds", name))
        told = ", ".join(f"{count:,} {what}" for what, count in sorted(judge.found.items()))
        row.notes.append(f"{kind.name}: {told}")
        shutil.rmtree(place)
