"""The store: what `stratalog.open` returns."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, DiskFull, IllegalMessage, StoreFailed, StratalogError
from stratalog.kernels import put as native_put
from stratalog.kernels.aside import ready_or_started
from stratalog.kernels.put_words import StoreWords
from stratalog.layout import names
from stratalog.layout.light import is_light_name
from stratalog.layout.message import Host
from stratalog.layout.properties import WAIT
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.config_files import read_consumer_offsets
from stratalog.store.disk import ClockNs, Disk, Stamp, failed
from stratalog.store.dispatch import Dispatcher, DispatchProgress
from stratalog.store.flush import GroupCommit, LoopCommit, Periodic, TimedFlush, is_wait
from stratalog.store.index_file import HITS_MAX, Index
from stratalog.store.lookup import TIME_MAX, Lookup
from stratalog.store.message import Message
from stratalog.store.queue import Queue
from stratalog.store.queue_set import QueueSet, UnitQueue
from stratalog.store.record_put import Receipt, check_queue
from stratalog.store.recovery import Recovery, recover
from stratalog.store.rederive import Meter, Progress, is_long
from stratalog.store.snapshot import load_queues, store_snapshot
from stratalog.store.topics import QueueType, TopicConfig, Topics

if TYPE_CHECKING:
    import pyarrow as pa

_KEEPS_PER_INDEX_HEADER = 15
"""The index is made durable with every so manieth checkpoint: its slots are dirty all over after a second."""


class MessageStore:
    """A message store in a directory, in RocketMQ's files. Any thread may use it; one process may write.

    Derived from the log alone: queues, index and checkpoint can be deleted and come back. Use it as a context manager:
    closing makes everything durable and marks the stop as clean.
    """

    def __init__(self, root: Path, settings: StoreSettings, disk: Disk, clock_ns: ClockNs) -> None:
        self.root = root
        self.settings = settings
        self.clock_ns = clock_ns
        self.broker_name = root.name
        self.shapes: dict[tuple[Any, ...], Any] = {}
        self._disk = disk
        self._closed = False
        self._checkpointed = -1
        self._keeps = 0
        self.derived_failure: StoreFailed | None = None
        self._release: Callable[[], None] | None = None
        self._queues: dict[tuple[str, int], Queue] = {}
        self._words: StoreWords | None = None
        self._awaiting: list[Queue] = []
        self._queues_lock = threading.Lock()
        self._futures: LoopCommit | None = None
        self._threads: list[Periodic] = []
        self.topic_table = Topics(root, disk)
        self.log = CommitLog(root / names.COMMIT_LOG, disk, file_size=settings.commit_log_file_size)
        self.commit = GroupCommit(self.log)
        self._timed_flush = TimedFlush(
            self.log, least_pages=settings.flush_commit_log_least_pages,
            thorough_interval_ms=settings.flush_commit_log_thorough_interval, clock_ns=clock_ns,
        )  # fmt: skip
        self.index: Index | None = None
        if settings.message_index_enable:
            self.index = Index(
                root, disk, slot_count=settings.index_slot_count, item_capacity=settings.index_item_capacity,
                with_tags=settings.compatibility != "5.3", clock_ns=clock_ns,
            )  # fmt: skip
        self.queue_set = QueueSet(root, self.log, disk, settings, self.topic_table.configs)
        self._dispatcher = Dispatcher(
            self.log, self.index, self.queue_set, delay_levels=settings.message_delay_level
        )  # fmt: skip
        self._lookup = Lookup(self.log, self.index)
        self.recovery = Recovery(clean=True)

    # -- opening and closing -------------------------------------------------------------------------------------

    def open(self, progress: Callable[[Progress], None] | None = None) -> None:
        """Take the lock, recover, and start the threads; called once, by `stratalog.open`."""
        last_locked = self._disk.stamp(str(self.root / names.LOCK))
        if not self._disk.read_only:
            self._disk.make_directory(self.root / names.COMMIT_LOG)
            self._release = self._disk.lock(self.root / names.LOCK)
        try:
            self._load(last_locked, progress)
        except BaseException:
            self._let_go()
            raise

    def _load(self, last_locked: Stamp, progress: Callable[[Progress], None] | None) -> None:
        clean = not self._disk.exists(self.root / names.ABORT)
        self.log.load()
        self.queue_set.load()
        checkpoint = Checkpoint.load(self.root, self._disk)
        believed = last_locked if clean else None
        untouched = load_queues(self.root, self._disk, self._dispatcher, self.log, checkpoint.seal, lock=believed)
        if not self._disk.read_only:
            self._disk.replace(self.root / names.ABORT, str(os.getpid()).encode())
            if not clean:  # the crash may have been between a file's creation and the flush of its name
                self._disk.sync_directory(self.root / names.COMMIT_LOG)
        self.recovery = recover(
            self.log, self._dispatcher, self.index, checkpoint, clean=clean, untouched=untouched,
            meter=Meter(progress, self.clock_ns) if progress else None, keep=self._keep,
            disown=lambda: self._disown(checkpoint.seal),
        )  # fmt: skip
        self.recovery.notes = self._dispatcher.notes
        if self.topic_table.note:
            self.recovery.notes.append(self.topic_table.note)
        if self._disk.read_only:
            self.log.durable_offset = self.log.end_offset
            self.log.fail(StoreFailed(f"{self.root} is open for reading only; open it with mode='w' to put"))
            return
        if is_long(self.recovery.scanned_from, self.recovery.end_offset) and not self.recovery.rebuilt:
            self._flush_log()  # what was built of it waits for dispatch's first turn: the old checkpoint still holds
        else:
            self._flush_all()
        dispatching = Periodic(
            "stratalog-dispatch", self.settings.flush_interval_consume_queue, self._keep_when_due, woken=self.dispatch
        )  # fmt: skip
        self.log.on_step = dispatching.wake
        self._threads = [
            dispatching, Periodic("stratalog-flush-log", self.settings.flush_interval_commit_log, self._flush_when_due)
        ]  # fmt: skip

    def close(self) -> None:
        """Make everything durable, store the checkpoint, mark the stop as clean and let go of the lock.

        After a failed flush the stop is not marked as clean, so that the next open checks what is on disk.
        """
        if self._closed:
            return
        self._closed = True
        self.log.stop(StoreFailed(f"{self.root} is closed; open it again"))
        for thread in self._threads:
            thread.close()
        if self._futures:
            self._futures.close()
        try:
            if not self._disk.read_only and not self.log.failure:
                self._flush_log()
                self.dispatch()
                self._keep(closing=True)
                store_snapshot(self.root, self._disk, self._dispatcher, self.log, self._dispatcher.snapshot()[1])
                self._disk.remove(self.root / names.ABORT)
        except OSError as error:
            raise self._reason(error) from error
        finally:
            self._let_go()

    def _let_go(self) -> None:
        try:
            self._dispatcher.close()
            self._lookup.close()
            self.log.close()
            if self.index:
                self.index.unmap()
        finally:
            if self._release:
                self._release()
                self._release = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<MessageStore {self.root} [{self.log.first_offset}, {self.log.end_offset})>"

    # -- putting -------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int = 0) -> Queue:
        """The queue, bound to this store; a new one appears on disk with its first message."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if (topic, queue_id) not in self._dispatcher.queues and not is_light_name(topic):
                check_queue(topic, queue_id)
                if not self._disk.read_only:
                    self.topic_table.check_known(topic)
            topic, queue_id = "".join(topic), int(queue_id)  # an enum's member is a name, not a str
            with self._queues_lock:
                queue = self._queues.get((topic, queue_id))
                if queue is None:  # nothing was put to it since the store was opened: its units are complete
                    self.catch_up()
                    end = self._dispatcher.queue(topic, queue_id).end_offset
                    queue = self._queues[topic, queue_id] = Queue(self, topic, queue_id, end)
                    if queue.is_native:
                        self._awaiting.append(queue)
                        self._bind_natives()
        return queue

    def _bind_natives(self) -> None:
        """Let compiled code stand before `put` of the queues that await it, if it is there; called under their lock."""
        if not self._awaiting or not ready_or_started():
            return
        if self._words is None:
            self._words = StoreWords(self.put)
            vars(self)["put"] = native_put.put.bind(self._words.owner)
        while self._awaiting:
            queue = self._awaiting.pop()
            queue.bind_native()
            self._words.add(queue.topic, queue.queue_id, queue.words)

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        unique_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        born_timestamp: int = 0,
        wait: bool = True,
    ) -> Receipt:
        """Append one message, see `Queue.put`."""
        queue = self._queues.get((topic, queue_id)) or self.queue(topic, queue_id)
        return queue.put(
            body, tags=tags, keys=keys, unique_key=unique_key, properties=properties, born_timestamp=born_timestamp,
            wait=wait,
        )  # fmt: skip

    def put_many(
        self, topic: str, bodies: Sequence[bytes], properties: bytes | Sequence[bytes] = b"", *, queue_id: int = 0
    ) -> Sequence[Receipt]:
        """Append several messages to one queue with one lock and one flush wait, see `Queue.put_many`."""
        return self.queue(topic, queue_id).put_many(bodies, properties)

    def put_list(
        self,
        queue: Queue,
        bodies: Sequence[bytes],
        properties: bytes | Sequence[bytes],
        flags: Sequence[int] | None,
        born_timestamp: int,
        born_host: Host | None,
    ) -> Sequence[Receipt]:
        """What `Queue.put_many` does, without the flush wait."""
        from stratalog.store.lists import put_list

        return put_list(self, queue, bodies, properties, flags, born_timestamp, born_host)

    async def put_async(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Sequence[str] | None = None,
        unique_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        born_timestamp: int = 0,
    ) -> Receipt:
        """Append one message and wait, without blocking the event loop, until it is as durable as the flush mode says.

        Takes what `put` takes, but `wait`. Thousands may be in flight: they share flushes.
        """
        receipt = self.put(
            topic, body, queue_id=queue_id, tags=tags, keys=keys, unique_key=unique_key, properties=properties,
            born_timestamp=born_timestamp, wait=False,
        )  # fmt: skip
        if self.settings.flush != "sync" or (properties and WAIT in properties and not is_wait(properties[WAIT])):
            return receipt
        await (self._futures or self._start_futures()).durable(receipt.end_offset)
        return receipt

    def _start_futures(self) -> LoopCommit:
        with self._queues_lock:
            if self._futures is None:
                self._futures = LoopCommit(self.commit)
            return self._futures

    def append(
        self, batch: "pa.RecordBatch | pa.Table", *, topic: str | None = None, queue_id: int | None = None
    ) -> dict[tuple[str, int], range]:
        """Append the rows of an Arrow batch or table; returns the queue offsets given, by (topic, queue id).

        Columns: `body` (binary or string); `topic` and `queueId` unless given; `tags`, `keys` (text with blanks, or a
        list), `uniqueKey`, `flag`, `bornTimestamp` (timestamp or ms). Any other column that the Spark source does not
        know becomes a property of its name.

        A batch is written whole or not at all; of a table `DiskFull` and `IllegalMessage` say how many rows, in whole
        batches, were put before.
        """
        from stratalog.store.arrow import append_batch

        ranges: dict[tuple[str, int], range] = {}
        put_count = 0
        for piece in batch.to_batches() if hasattr(batch, "to_batches") else [batch]:
            try:
                added = append_batch(self, piece, topic, queue_id)
            except (DiskFull, IllegalMessage) as error:
                if not put_count:
                    raise
                told = f"{error} of this batch; the first {put_count:,} rows of the table were put"
                raise type(error)(told) from error
            put_count += piece.num_rows
            for key, found in added.items():
                ranges[key] = range(ranges[key].start if key in ranges else found.start, found.stop)
        if self.settings.flush == "sync":
            self.commit.wait(self.log.end_offset)
        return ranges

    # -- durability ----------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Make everything put so far durable; returns the log offset up to which it is. Raises `StoreFailed`."""
        self.commit.wait(self.log.end_offset)
        return self.log.durable_offset

    @property
    def durable_offset(self) -> int:
        """Log offset below which every message survives a power cut."""
        return self.log.durable_offset

    @property
    def dispatch_lag(self) -> int:
        """Bytes of the log that stand in no queue and no index yet. Every second, after every 4 MiB, and by each read,
        dispatch brings it down (under sync flush: to what is not durable)."""
        return max(0, self.log.end_offset - self._dispatcher.progress.offset)

    @property
    def oldest_unflushed_ms(self) -> int:
        """Age in milliseconds of the oldest message that a power cut would take; 0 when all are durable."""
        stored_ms = self.log.oldest_unflushed_timestamp
        return max(0, self.clock_ns() // 1_000_000 - stored_ms) if stored_ms is not None else 0

    def _flush_log(self) -> None:
        if self.log.durable_offset < self.log.end_offset:
            self.commit.wait(self.log.end_offset)

    def dispatch(self) -> None:
        """Bring queues and index up to date: under sync flush with what is durable, else with what is put.

        Raises `DiskFull`, `StoreFailed`; what could not be written is done again at the next call.
        """
        log = self.log
        if self.derived_failure:
            raise self.derived_failure
        try:
            self._dispatcher.dispatch(log.durable_offset if self.settings.flush == "sync" else log.end_offset)
        except (OSError, StoreFailed) as error:
            raise self._reason(error) from error

    def catch_up(self) -> None:
        """Dispatch for a reader: what is in the queues already can be read though no more can be written.

        Raises `StoreFailed` when the store is closed.
        """
        if self._closed:
            raise StoreFailed(f"{self.root} is closed; open it again")
        with contextlib.suppress(DiskFull, StoreFailed):
            self.dispatch()

    def _flush_all(self) -> None:
        """Log, then what is derived from it, then the checkpoint that vouches for both as they were before the sync."""
        self._flush_log()
        self.dispatch()
        self._keep()

    def _flush_when_due(self) -> None:
        if self._timed_flush.is_due():
            self._flush_log()

    def _keep_when_due(self) -> None:
        """What is derived from the log is made durable with it. Queues whose puts are compiled by now are told."""
        if self._awaiting:
            with self._queues_lock:
                self._bind_natives()
        waits = self._checkpointed < self.recovery.end_offset  # since the opening
        self._flush_all() if waits or self._timed_flush.is_due() else self.dispatch()

    def _keep(self, *, closing: bool = False) -> None:
        """Make durable what queues and index hold of the log, and vouch for it."""
        if self._disk.read_only:
            return
        progress, seal = self._dispatcher.snapshot()
        self._flush_log()
        try:
            self._dispatcher.files.sync()
            if closing or progress.offset != self._checkpointed:
                self._keeps += 1
                if self.index and (closing or not self._keeps % _KEEPS_PER_INDEX_HEADER):
                    self.index.keep()
                self._store_checkpoint(progress, seal)
        except (OSError, StoreFailed) as error:
            raise self._reason(error) from error

    def _disown(self, seal: Seal | None) -> None:
        """Vouch for nothing that is derived from the log: it is about to be built again, and a power cut meanwhile may
        leave holes in it that no count tells."""
        if not self._disk.read_only:
            checkpoint = Checkpoint(seal=seal.of_the_log_alone() if seal else None)
            checkpoint.store(self.root, self._disk, compatibility=self.settings.compatibility)

    def _store_checkpoint(self, progress: DispatchProgress, seal: Seal) -> None:
        Checkpoint(
            physic_msg_timestamp=progress.last_store_timestamp,
            logics_msg_timestamp=progress.last_store_timestamp,
            index_msg_timestamp=self.index.flushed_timestamp if self.index else 0,
            confirm_offset=progress.last_record_offset,
            logics_commit_log_offset=progress.last_record_offset,
            seal=seal,
        ).store(self.root, self._disk, compatibility=self.settings.compatibility)
        self._checkpointed = progress.offset

    def _reason(self, error: OSError | StoreFailed) -> StratalogError:
        """What to tell when derived files cannot be written. But for a full disk, it ends the store's writing: what the
        kernel could not write once must not be flushed again."""
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(
                f"{self.root}: no room for queue units; free space on that disk. The messages are safe in the log and "
                "appear in their queues then"
            )
        self.derived_failure = error if isinstance(error, StoreFailed) else failed(f"queues of {self.root}", error)
        self.log.fail(self.derived_failure)
        return self.derived_failure

    # -- reading -------------------------------------------------------------------------------------------------

    def units_of(self, queue: Queue) -> UnitQueue:
        """The units behind a queue."""
        return self._dispatcher.queue(queue.topic, queue.queue_id)

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue that has or had messages."""
        self.catch_up()
        return sorted(key for key, queue in list(self._dispatcher.queues.items()) if queue.end_offset)

    def topics(self) -> list[str]:
        """Topics that have or had messages, whether `config/topics.json` names them or not."""
        return sorted({topic for topic, _ in self.queues()})

    @property
    def topic_configs(self) -> Mapping[str, TopicConfig]:
        """What `config/topics.json` says of each topic it names. A topic needs no entry there to be put to or read."""
        return MappingProxyType(self.topic_table.configs)

    def create_topic(self, name: str, *, queues: int = 4, queue_type: QueueType = "SimpleCQ") -> TopicConfig:
        """Write a topic into `config/topics.json`, so that a broker knows it too, or give one that is there that many
        queues. Needed before the first put only for type BatchCQ.

        Raises `IllegalMessage` for its name, `ConfigurationError` when the topic has another type, `CorruptData` while
        the file cannot be read, `StoreFailed`, `DiskFull`.
        """
        if self._disk.read_only or self._closed:
            raise StoreFailed(f"{self.root} is not open for writing; open it with mode='w' to create topics")
        with self._queues_lock:
            self.queue_set.check_type(name, queue_type)
            return self.topic_table.create(
                name, queues=queues, queue_type=queue_type, now_ms=self.clock_ns() // 1_000_000,
                release=self.settings.compatibility,
            )  # fmt: skip

    def consumer_offsets(self) -> dict[tuple[str, str, int], int]:
        """Next queue offset to consume by (group, topic, queue id), as a broker wrote it last. Raises `CorruptData`."""
        return read_consumer_offsets(self.root / names.CONFIG, self._disk)

    def query(
        self, topic: str, *, key: str, begin: int = 0, end: int = TIME_MAX, limit: int = HITS_MAX
    ) -> list[Message]:
        """Messages of a topic that carry a key (or unique key) and were stored in [begin, end] ms.

        The newest `limit` of them, oldest first.

        Every hit was checked against the record: two keys with one hash are told apart.
        """
        self.catch_up()
        return self._lookup.messages(topic, [key], begin=begin, end=end, limit=limit)[0]

    def query_many(
        self, topic: str, keys: Iterable[str], *, begin: int = 0, end: int = TIME_MAX, limit: int = HITS_MAX
    ) -> dict[str, list[Message]]:
        """What `query` returns for each of many keys, thousands at once for little more than a microsecond each.

        Raises as `query` does: `ConfigurationError` without an index, `CorruptData` where a record that carries one of
        the keys is damaged; `candidates` and `message` get at the others then.
        """
        self.catch_up()
        distinct = list(dict.fromkeys(keys))
        found = self._lookup.messages(topic, distinct, begin=begin, end=end, limit=limit)
        return dict(zip(distinct, found, strict=True))

    def candidates(self, topic: str, *, key: str, begin: int = 0, end: int = TIME_MAX) -> Iterator[int]:
        """Log offsets that the index has for a key, newest first, each once; hashes may collide."""
        self.catch_up()
        return self._lookup.candidates(topic, key, begin=begin, end=end)

    def read_arrow(
        self, queue: Queue, first: int | None = None, *, count: int = 1 << 20, columns: Iterable[str] | None = None
    ) -> "pa.RecordBatch":
        """What `Queue.read_arrow` does."""
        from stratalog.store.arrow import read_arrow

        return read_arrow(self, queue, first, count, columns)

    def message(self, commit_log_offset: int) -> Message:
        """The message at a log offset, as message ids name it. Raises `CorruptData` when none starts there."""
        log = self.log
        if not log.first_offset <= commit_log_offset < log.end_offset:
            raise CorruptData(f"log offset {commit_log_offset} is outside [{log.first_offset}, {log.end_offset})")
        return self.log.message(commit_log_offset)
