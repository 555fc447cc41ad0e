"""Messages by key: the index leads to candidates, their records decide."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import ConfigurationError, CorruptData
from stratalog.kernels import lookup as native
from stratalog.kernels.aside import ready_or_started
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import MappedFile
from stratalog.store.index_file import Index, IndexFile
from stratalog.store.message import Message
from stratalog.store.reading import record_at

_INDEX_STEP_MS = 1000
"""The index knows seconds only: a message may be this much younger than its item says."""
_KEYS_AT_ONCE = 512
"""Keys of one native call, 0.5 ms: other threads wait meanwhile."""


@cache
def _native() -> Callable[..., int]:
    return native.find_keys.bind((Message, None, b"replace"))


@dataclass(frozen=True, slots=True)
class _Table:
    """Log and index as the native look-up sees them; `views` keep the memory mapped while somebody has the table."""

    words: NDArray[np.int64]
    address: int
    log_files: tuple[MappedFile, ...]
    index_files: tuple[IndexFile, ...]
    views: tuple[Any, ...]

    def is_of(self, log: list[MappedFile], index: list[IndexFile]) -> bool:
        """Whether no file has come or gone: files are added at the end, and removed from either."""
        known, others = self.log_files, self.index_files
        return (
            len(known) == len(log) and len(others) == len(index)
            and (not known or (known[0] is log[0] and known[-1] is log[-1]))
            and (not others or (others[0] is index[0] and others[-1] is index[-1]))
        )  # fmt: skip


class Hits(list[Message]):
    """The intact messages that a query found, oldest first.

    `more`: there are older ones, which its limit left out. `damaged`: an error for each record that the index has for
    the key and that cannot be read, newest first. Who needs every message checks that it is empty.
    """

    def __init__(
        self, messages: Iterable[Message] = (), *, more: bool = False, damaged: Iterable[CorruptData] = ()
    ) -> None:
        super().__init__(messages)
        self.more = more
        self.damaged = list(damaged)


class HitsByKey(dict[str, list[Message]]):
    """The intact messages that a query found for each key.

    `more`: the keys that have older ones, which its limit left out. `damaged`: of the keys with records that cannot be
    read, the errors of these, see `Hits`.
    """

    def __init__(
        self, hits: Iterable[tuple[str, list[Message]]], *, more: frozenset[str],
        damaged: dict[str, list[CorruptData]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hits)
        self.more = more
        self.damaged = damaged or {}


@dataclass(slots=True)
class Found:
    """What was found for keys, by their numbers: messages of each, and which have more or damaged records."""

    hits: list[list[Message]] = field(default_factory=list)
    cut: set[int] = field(default_factory=set)
    damaged: dict[int, list[CorruptData]] = field(default_factory=dict)

    def put(self, number: int, hits: Hits) -> None:
        """Set the hits of one key."""
        self.hits[number : number + 1] = [hits]
        if hits.more:
            self.cut.add(number)
        if hits.damaged:
            self.damaged[number] = hits.damaged

    def one(self, number: int) -> Hits:
        return Hits(self.hits[number], more=number in self.cut, damaged=self.damaged.get(number, ()))


class Lookup:
    """Finds the messages of a topic by key or unique key. Any thread may ask."""

    def __init__(
        self, log: CommitLog, index: Index | None, name_damage: Callable[[str, str, int], CorruptData]
    ) -> None:
        """`name_damage` makes the error of a record that cannot be read, of its topic, key and log offset."""
        self._log = log
        self._name_damage = name_damage
        self._index = index
        self._known: _Table | None = None

    def close(self) -> None:
        """Let go of the mappings."""
        self._known = None

    def messages(self, topic: str, keys: list[str], *, begin: int, end: int, limit: int) -> Found:
        """For each key the newest `limit` intact messages that carry it and were stored in [begin, end] ms, oldest
        first.

        Raises `ConfigurationError` without an index.
        """
        if self._index is None:
            raise _no_index()
        found = Found()
        hits = found.hits
        by_candidates: set[int] = set()
        while len(hits) < len(keys):
            if ready_or_started():
                self._add_natively(topic, keys, hits, begin, end, limit + 1)
            if (number := len(hits)) < len(keys):  # what the native look-up leaves over
                found.put(number, self._by_candidates(topic, keys[number], begin, end, limit))
                by_candidates.add(number)
        for number, some in enumerate(hits):
            if (len(some) > 1 or not limit) and number not in by_candidates:
                hits[number] = ordered = _in_order(some)
                if len(ordered) > limit:
                    hits[number] = ordered[1:]
                    found.cut.add(number)
                elif len(some) > limit:  # the index had one twice: whether there are more is open
                    found.put(number, self._by_candidates(topic, keys[number], begin, end, limit))
        return found

    def _add_natively(
        self, topic: str, keys: list[str], found: list[list[Message]], begin: int, end: int, limit: int
    ) -> None:
        find, log, first = _native(), self._log, len(found)
        while first < len(keys):
            last = min(first + _KEYS_AT_ONCE, len(keys))
            table = self._table()
            try:
                done = find(topic, keys, first, last, begin, end, limit, log.end_offset, table.address, found)
            except UnicodeEncodeError:  # no topic has such a name
                return
            if done < last:  # or damage, which the other way tells
                return
            first = last

    def _table(self) -> _Table:
        index, log, known = self._index, self._log, self._known
        assert index is not None
        if known is None or not known.is_of(log.files, index.files):
            log_files, index_files = tuple(log.files), tuple(index.files)
            first_offset = int(log_files[0].path.name) if log_files else 0
            words = [
                index.slot_count, index.item_capacity, first_offset, log.file_size, len(log_files), len(index_files),
            ]  # fmt: skip
            views = [file.view for file in (*log_files, *(file.mapped for file in index_files))]
            words += [file.address for file in log_files]
            for file in index_files:
                words += [file.mapped.address, file.header.ctypes.data]
            table = np.array(words, np.int64)
            known = self._known = _Table(table, table.ctypes.data, log_files, index_files, tuple(views))
        return known

    def _by_candidates(self, topic: str, key: str, begin: int, end: int, limit: int) -> Hits:
        """The same for one key in Python."""
        return self.accepted(topic, key, begin=begin, end=end, limit=limit, accept=lambda message: True)

    def accepted(
        self, topic: str, key: str, *, begin: int, end: int, limit: int, accept: Callable[[Message], bool]
    ) -> Hits:
        """The newest `limit` of the messages with a key that are accepted, oldest first. `more` is true, too, where a
        damaged record may be the next one."""
        hits: list[Message] = []
        damaged: list[CorruptData] = []
        more = False
        for offset in self.candidates(topic, key, begin=begin - _INDEX_STEP_MS, end=end):
            if not self._log.first_offset <= offset < self._log.end_offset:
                continue  # the record has gone by retention, its index item not yet
            try:
                message = record_at(self._log, offset)
            except CorruptData:
                more = len(hits) == limit
                if more:
                    break
                damaged.append(self._name_damage(topic, key, offset))
                continue
            carries = message.topic == topic and (key in message.keys or (key and key == message.unique_key))
            if carries and begin <= message.store_timestamp <= end and accept(message):
                more = len(hits) == limit
                if more:
                    break
                hits.append(message)
        return Hits(_in_order(hits), more=more, damaged=damaged)

    def candidates(self, topic: str, key: str, *, begin: int, end: int) -> Iterator[int]:
        """Log offsets that the index has for a key, newest first, each once; hashes may collide."""
        if self._index is None:
            raise _no_index()
        return _each_once(self._index.offsets(topic, key, begin=begin, end=end, loose=True))


def _no_index() -> ConfigurationError:
    return ConfigurationError("this store was opened with message_index_enable=False: it cannot look up keys")


def _in_order(hits: list[Message]) -> list[Message]:
    """Oldest first, each once."""
    by_offset = {message.commit_log_offset: message for message in hits}
    return [by_offset[offset] for offset in sorted(by_offset)]


def _each_once(offsets: Iterable[int]) -> Iterator[int]:
    seen: set[int] = set()
    for offset in offsets:
        if offset not in seen:
            seen.add(offset)
            yield offset
