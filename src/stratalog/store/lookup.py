"""Messages by key: the index leads to candidates, their records decide."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
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
from stratalog.store.os_errors import loads
from stratalog.store.reading import record_at

_INDEX_STEP_MS = 1000
"""The index knows seconds only: a message may be this much younger than its item says."""
_KEYS_AT_ONCE = 512
"""Keys of one native call, 0.5 ms: other threads wait meanwhile."""
_REPLACEMENT = "\ufffd"


@cache
@loads("messages cannot be found")
def _native() -> Callable[..., int]:
    return native.find_keys.bind((Message, None, b"replace"))


@dataclass(frozen=True, slots=True)
class _Table:
    """Log and index as the native look-up sees them; `views` keep the memory mapped while somebody has the table."""

    words: NDArray[np.int64]
    address: int
    log_files: list[MappedFile]
    index_files: list[IndexFile]
    views: tuple[Any, ...]


class Hits(list[Message]):
    """The intact messages that a query found, oldest first."""

    more: bool = False
    """Whether there are older ones, which the query's limit left out."""
    damaged: Sequence[CorruptData] = ()
    """An error for each record that the index has for the key and that cannot be read, newest first; then one for each
    damaged range of the log, which may have held messages with the key. Who needs every message checks that there is
    none."""

    @classmethod
    def of(cls, messages: Iterable[Message], *, more: bool, damaged: Sequence[CorruptData] = ()) -> "Hits":
        hits = cls(messages)
        hits.more, hits.damaged = more, damaged
        return hits


def with_ranges(hits: list[Message], ranges: Sequence[tuple[int, CorruptData]]) -> Hits:
    """The hits, with the errors of damaged ranges, each with its end: of those that older messages alone can have been
    in where a limit left out older ones, none."""
    known = hits if isinstance(hits, Hits) else Hits(hits)
    oldest = min((hit.commit_log_offset for hit in hits), default=0) if known.more else 0
    unseen = [error for end, error in ranges if end > oldest]
    return Hits.of(known, more=known.more, damaged=[*known.damaged, *unseen])


class HitsByKey(dict[str, list[Message]]):
    """The intact messages that a query found for each key, oldest first; a `Hits` where there is more to say."""

    @property
    def more(self) -> frozenset[str]:
        """The keys that have older messages, which the query's limit left out."""
        return frozenset(key for key, hits in self.items() if isinstance(hits, Hits) and hits.more)

    @property
    def damaged(self) -> dict[str, Sequence[CorruptData]]:
        """Of the keys of which messages may be missing the errors, as in `Hits`."""
        return {key: hits.damaged for key, hits in self.items() if isinstance(hits, Hits) and hits.damaged}


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

    def messages(self, topic: str, keys: list[str], *, begin: int, end: int, limit: int) -> list[list[Message]]:
        """For each key the newest `limit` intact messages that carry it and were stored in [begin, end] ms, oldest
        first; `Hits` where there are more, or damaged ones.

        Raises `ConfigurationError` without an index.
        """
        if self._index is None:
            raise _no_index()
        found: list[list[Message]] = []
        while len(found) < len(keys):
            some = keys[len(found) : len(found) + _KEYS_AT_ONCE]
            asked = some
            if _REPLACEMENT in "".join(some):  # compiled code compares stored bytes, of which others are read as it
                asked = list(takewhile(lambda key: _REPLACEMENT not in key, some))
            newest = self._natively(topic, asked, begin, end, limit + 1) if asked and ready_or_started() else []
            for number, hits in enumerate(newest):
                if len(hits) > 1 or not limit:
                    newest[number] = self._limited(hits, topic, some[number], begin, end, limit)
            found += newest
            if len(newest) < len(some):  # what the native look-up leaves over
                found.append(self._by_candidates(topic, keys[len(found)], begin, end, limit))
        return found

    def _limited(self, newest: list[Message], topic: str, key: str, begin: int, end: int, limit: int) -> list[Message]:
        """`limit` of the `limit + 1` newest items' messages."""
        ordered = _in_order(newest)
        if len(ordered) > limit:
            return Hits.of(ordered[1:], more=True)
        if len(newest) > limit:  # the index had one twice: whether there are more is open
            return self._by_candidates(topic, key, begin, end, limit)
        return ordered

    def _natively(self, topic: str, keys: list[str], begin: int, end: int, limit: int) -> list[list[Message]]:
        """The hits of the first keys, newest first: up to one that the other way has to look up, as where a record of
        it is damaged."""
        find, log, table = _native(), self._log, self._table()
        found: list[list[Message]] = []
        try:
            find(topic, keys, 0, len(keys), begin, end, limit, log.end_offset, table.address, found)
        except UnicodeEncodeError:  # no topic has such a name
            return []
        return found

    def _table(self) -> _Table:
        index, log, known = self._index, self._log, self._known
        assert index is not None
        if known is None or known.log_files != log.files or known.index_files != index.files:
            log_files, index_files = [*log.files], [*index.files]
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
        return Hits.of(_in_order(hits), more=more, damaged=damaged)

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
