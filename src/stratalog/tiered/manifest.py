"""The tier's truth: a log of small JSON files beside the data.

    {cluster}/{broker}/_stratalog/log/{sequence}.json          one entry a micro-batch, created with put-if-absent
    {cluster}/{broker}/_stratalog/checkpoint/{sequence}.json   the state before that entry, at every 100th sequence

Rules that make it safe, and loading cheap:

- Sequences are dense. An entry is valid if it continues its queues exactly where the state before it ends (the fence).
- Whoever commits an entry whose sequence is a multiple of 100 writes that checkpoint first. So checkpoints are dense,
  too, and the newest is found by doubling and halving (2 × log2(commits / 100) looks); then only the entries after it
  are read: opening costs at most 100 small reads, whatever the history. Nothing needs to be listed but those names.
- Entries before a checkpoint may be swept; a swept checkpoint must stay behind as an empty file.
- A file holds `{"crc32": …, "content": …}`; the CRC covers the content's bytes, so any flipped byte is noticed.
"""

import zlib
from typing import TypeVar

import msgspec

from stratalog.errors import CorruptData, TierConflict
from stratalog.layout.loosejson import TEXT_SIZE_MAX
from stratalog.layout.tier import OWN_DIRECTORY, cluster_directory
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import (
    FORMAT_VERSION,
    IndexRun,
    IndexSegment,
    Int32,
    ManifestEntry,
    Offset,
    OffsetOrNone,
    QueueName,
    QueueState,
    TierState,
    TopicState,
)

CHECKPOINT_INTERVAL = 100
"""A power of ten, so that the names of the entries after a checkpoint share a prefix."""
_INTERVAL_DIGITS = 2
assert CHECKPOINT_INTERVAL == 10**_INTERVAL_DIGITS


class _Envelope(msgspec.Struct):
    crc32: int
    content: msgspec.Raw


class _Checkpoint(msgspec.Struct, frozen=True):
    cluster: str
    broker: str
    next_sequence: Offset
    source_end: OffsetOrNone
    last_topic_id: Int32
    topics: dict[str, TopicState]
    queues: tuple[QueueState, ...]
    index_segments: tuple[IndexSegment, ...]
    index_runs: tuple[IndexRun, ...]
    passed_over: dict[str, Offset] = {}
    version: int = FORMAT_VERSION


_Content = TypeVar("_Content", ManifestEntry, _Checkpoint)


class Manifest:
    """The manifest of one broker in a tier. Holds no state: any number of processes may load and commit."""

    def __init__(self, backend: SegmentBackend, cluster: str, broker: str) -> None:
        self._backend = backend
        self.cluster = cluster
        self.broker = broker
        self.directory = f"{cluster_directory(cluster)}/{broker}/{OWN_DIRECTORY}"

    def exists(self) -> bool:
        """Whether anything was ever committed or adopted here."""
        paths = (self.entry_path(0), self.checkpoint_path(0), self.checkpoint_path(CHECKPOINT_INTERVAL))
        return any(self._backend.size(path) is not None for path in paths)

    def load(self) -> TierState:
        """The committed state: newest checkpoint, then every entry after it.

        Raises `CorruptData` for an entry that is missing, unreadable, or does not continue the state.
        """
        start = self._newest_checkpoint()
        state = TierState(self.cluster, self.broker) if start is None else self._read_checkpoint(start)
        state = self.refresh(state)
        while self._is_followed(state.next_sequence):
            begin = state.next_sequence
            state = self.refresh(state)  # others may have committed meanwhile
            if state.next_sequence == begin:
                raise CorruptData(
                    "this manifest entry is missing, later ones exist; restore it from a copy, or set the _stratalog "
                    "directory aside and open the tier again: its state is then rebuilt from the segments",
                    path=self.entry_path(begin),
                )
        return state

    def refresh(self, state: TierState) -> TierState:
        """The state with all entries committed since, at one look a new entry and one more."""
        while (entry := self._read_entry(state.next_sequence)) is not None:
            state = self._follow(state, entry)
        return state

    def commit(self, entry: ManifestEntry, state: TierState) -> TierState:
        """Append an entry to the log; returns the state that holds it.

        The entry's messages become readable with this call, all at once. Another writer's entries that do not touch the
        same queues are taken in on the way. When the messages are there already (a batch is done again), nothing is
        written. Raises `TierConflict` when another writer continued one of the queues, `CorruptData` as `load`.
        """
        while True:
            if state.covers(entry):
                return state
            reason = state.fence(entry)
            if reason:
                raise TierConflict(f"{reason}; load the tier's state again and redo the batch from there")
            if state.next_sequence % CHECKPOINT_INTERVAL == 0 and state.next_sequence:
                self._write_checkpoint(state)
            entry = msgspec.structs.replace(entry, sequence=state.next_sequence)
            if self._backend.put_if_absent(self.entry_path(entry.sequence), _encode(entry)):
                return state.after(entry)
            other = self._read_entry(entry.sequence)
            if other is None:
                raise CorruptData("the entry is there and is not: the storage contradicts itself", path=self.directory)
            state = self._follow(state, other)
            if other.nonce == entry.nonce:
                return state

    def adopt(self, state: TierState) -> TierState:
        """Begin the manifest of a tier that was written without one. Raises `TierConflict` when there is one."""
        state = msgspec.structs.replace(state, next_sequence=0)
        if self.exists() or not self._write_checkpoint(state):
            raise TierConflict(f"{self.directory} exists already; load the tier's state from it")
        return state

    def entry_path(self, sequence: int) -> str:
        return f"{self.directory}/log/{sequence:020d}.json"

    def checkpoint_path(self, sequence: int) -> str:
        return f"{self.directory}/checkpoint/{sequence:020d}.json"

    def _newest_checkpoint(self) -> int | None:
        def there(number: int) -> bool:
            return self._backend.size(self.checkpoint_path(number * CHECKPOINT_INTERVAL)) is not None

        if not there(1):
            return 0 if there(0) else None
        low, high = 1, 2
        while there(high):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if there(middle) else (low, middle)
        return low * CHECKPOINT_INTERVAL

    def _is_followed(self, missing: int) -> bool:
        """Whether later entries exist than one that was not there."""
        following = (missing // CHECKPOINT_INTERVAL + 1) * CHECKPOINT_INTERVAL
        path = self.entry_path(missing)
        cut = len(path) - len(".json") - _INTERVAL_DIGITS
        later = any(name > path for name in self._backend.list(path[:cut]))
        return later or self._backend.size(self.entry_path(following)) is not None

    def _follow(self, state: TierState, entry: ManifestEntry) -> TierState:
        path = self.entry_path(state.next_sequence)
        if entry.sequence != state.next_sequence:
            raise CorruptData(f"the entry says it is number {entry.sequence}; restore it from a copy", path=path)
        reason = state.fence(entry)
        if reason:
            raise CorruptData(
                f"the entry does not continue the one before: {reason}; restore it from a copy", path=path
            )
        return state.after(entry)

    def _read_entry(self, sequence: int) -> ManifestEntry | None:
        return self._read(self.entry_path(sequence), ManifestEntry)

    def _read_checkpoint(self, sequence: int) -> TierState:
        path = self.checkpoint_path(sequence)
        found = self._read(path, _Checkpoint)
        if found is None:
            raise CorruptData("the checkpoint vanished while it was read; open the tier again", path=path)
        if found.next_sequence != sequence:
            raise CorruptData(f"the checkpoint is of entry {found.next_sequence}; restore it from a copy", path=path)
        members = {name: getattr(found, name) for name in _Checkpoint.__struct_fields__ if name != "version"}
        members["queues"] = {QueueName(queue.topic, queue.queue_id): queue for queue in found.queues}
        state = TierState(**members)
        if (state.cluster, state.broker) != (self.cluster, self.broker):
            reason = f"it is of {state.cluster[:80]!r}/{state.broker[:80]!r}"
        else:
            reason = state.contradiction()
        if reason:
            raise CorruptData(f"the checkpoint cannot be: {reason}; restore it from a copy", path=path)
        return state

    def _write_checkpoint(self, state: TierState) -> bool:
        members = {name: getattr(state, name) for name in TierState.__struct_fields__}
        members["queues"] = tuple(queue for _, queue in sorted(state.queues.items()))
        return self._backend.put_if_absent(self.checkpoint_path(state.next_sequence), _encode(_Checkpoint(**members)))

    def _read(self, path: str, kind: type[_Content]) -> _Content | None:
        size = self._backend.size(path)
        if size is None:
            return None
        if size > TEXT_SIZE_MAX:
            raise CorruptData(f"a manifest file of {size:,} bytes; the limit is {TEXT_SIZE_MAX:,}", path=path)
        data = self._backend.read(path, 0, size)
        try:
            envelope = msgspec.json.decode(data, type=_Envelope)
            if zlib.crc32(envelope.content) != envelope.crc32:
                raise CorruptData("the content's CRC does not match; restore the file from a copy", path=path)
            found = msgspec.json.decode(envelope.content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptData(f"no manifest file ({error}); restore it from a copy", path=path) from None
        if found.version > FORMAT_VERSION:
            raise CorruptData(f"written by a newer release (format {found.version}); upgrade this one", path=path)
        return found


def _encode(content: ManifestEntry | _Checkpoint) -> bytes:
    text = msgspec.json.encode(content)
    return msgspec.json.encode(_Envelope(zlib.crc32(text), msgspec.Raw(text)))
