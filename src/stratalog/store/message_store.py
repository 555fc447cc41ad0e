"""The store: what `stratalog.open` returns."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, MethodType, TracebackType
from typing import TYPE_CHECKING, Any, Self, get_args

from stratalog.config.settings import StoreSettings
from stratalog.config.shown import shown
from stratalog.errors import (
    ConfigurationError,
    CorruptData,
    DiskFull,
    IllegalMessage,
    StoreClosed,
    StoreFailed,
    StoreReadOnly,
    StoreUnavailable,
    StratalogError,
    command,
    partly_put,
)
from stratalog.helpers import imported
from stratalog.kernels import put as native_put
from stratalog.kernels.aside import ready_or_started
from stratalog.kernels.put_words import StoreWords
from stratalog.layout import names
from stratalog.layout.light import is_light, is_light_name
from stratalog.layout.message import Host
from stratalog.layout.properties import WAIT
from stratalog.store.arguments import (
    TIME_MAX,
    Moment,
    check_type,
    exact_count,
    exact_int,
    exact_properties,
    exact_text,
    one_of,
    query_range,
    text_list,
)
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.config_files import read_consumer_offsets
from stratalog.store.disk import ClockNs, Disk, Stamp, failed, lock_owner
from stratalog.store.dispatch import Dispatcher, DispatchProgress
from stratalog.store.evidence import can_end_at
from stratalog.store.flush import GroupCommit, LoopCommit, Periodic, TimedFlush, is_wait
from stratalog.store.forks import unwatch, watch
from stratalog.store.index_file import HITS_MAX, Index
from stratalog.store.locks import InsideCall, free, is_owned
from stratalog.store.log_scan import refuse_misnamed
from stratalog.store.lookup import Hits, HitsByKey, Lookup, with_ranges
from stratalog.store.message import Message
from stratalog.store.os_errors import (
    FULL,
    SHORTAGES,
    cause_of,
    file_of,
    is_no_thread,
    kernels_refusal,
    loads,
    refusal,
    refusing,
    shortage_of,
    thread_refusal,
)
from stratalog.store.queue import Queue
from stratalog.store.queue_set import QueueSet, UnitQueue
from stratalog.store.reading import damaged_range, damaged_record
from stratalog.store.record_put import Receipt, check_queue_id
from stratalog.store.recovery import Recovery, recover
from stratalog.store.rederive import Meter, Progress, is_long
from stratalog.store.sizes import note_sizes
from stratalog.store.snapshot import (
    QueueEnd,
    forget_decoded,
    forget_ends,
    is_ours,
    load_queues,
    note_ends,
    noted_left_out,
    noted_log,
    sealed_ends,
    store_snapshot,
    told_longer,
)
from stratalog.store.special_query import light_hits, members_with
from stratalog.store.topics import QueueType, TopicConfig, Topics
from stratalog.store.uncopied import Uncopied

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger("stratalog")
_LAG_FILES_MAX = 5
_PAUSE_S = 0.0005
_KEEPS_PER_INDEX_HEADER = 15
"""The index is made durable with every so manieth checkpoint: its slots are dirty all over after a second."""


def _pieces(batch: Any) -> "list[pa.RecordBatch]":
    pa = imported("pyarrow")
    if issubclass(type(batch), pa.Table):
        return list(batch.to_batches()) or [pa.RecordBatch.from_pylist([], schema=batch.schema)]
    if issubclass(type(batch), pa.RecordBatch):
        return [batch]
    raise IllegalMessage(f"batch {shown(batch)}: give a pyarrow RecordBatch or Table; nothing was written")


@loads("the batch cannot be put")
def _append_batch() -> "Callable[..., dict[tuple[str, int], range]]":
    return loads("the batch cannot be put")(imported("stratalog.store.arrow").append_batch)


class MessageStore(Uncopied):
    """A message store in a directory, in RocketMQ's files. Any thread may use it; one process may write.

    Derived from the log alone: queues, index and checkpoint can be deleted and come back. Use it as a context manager:
    closing makes everything durable and marks the stop as clean.
    """

    def __init__(
        self, root: Path, settings: StoreSettings, disk: Disk, clock_ns: ClockNs, release: Callable[[], None], *,
        guessed_sizes: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.root = root
        self._guessed_sizes = guessed_sizes
        self.settings = settings
        self.clock_ns = clock_ns
        self.broker_name = root.name
        self.shapes: dict[tuple[Any, ...], Any] = {}
        self._disk = disk
        self._closed = False
        self._is_released = False
        self._closing = threading.RLock()
        self._checkpointed = -1
        self._keeps = 0
        self.derived_failure: StoreFailed | None = None
        self._release: Callable[[], None] | None = release
        self._queues: dict[tuple[str, int], Queue] = {}
        self._words: StoreWords | None = None
        self._awaiting: list[Queue] = []
        self._futures: LoopCommit | None = None
        self._threads: list[Periodic | LoopCommit] = []
        self.topic_table = Topics(root, disk)
        self.log = CommitLog(root / names.COMMIT_LOG, disk, file_size=settings.commit_log_file_size)
        self.commit = GroupCommit(self.log)
        self._log_flush, self._keep_flush = (  # one for each of two threads
            TimedFlush(
                self.log, least_pages=settings.flush_commit_log_least_pages,
                thorough_interval_ms=settings.flush_commit_log_thorough_interval, clock_ns=clock_ns,
            ) for _ in range(2)
        )  # fmt: skip
        self.index: Index | None = None
        if settings.message_index_enable:
            self.index = Index(
                root, disk, slot_count=settings.index_slot_count, item_capacity=settings.index_item_capacity,
                with_tags=settings.compatibility != "5.3", clock_ns=clock_ns,
                locks=self.log.locks,
            )  # fmt: skip
        self.queue_set = QueueSet(root, self.log, disk, settings, self.topic_table)
        self._dispatcher = Dispatcher(
            self.log, self.index, self.queue_set, delay_levels=settings.message_delay_level
        )  # fmt: skip
        self._lookup = Lookup(self.log, self.index, self.damaged_hit)
        self.recovery = Recovery(clean=True)
        self._damage_warning = ""
        self._is_invalidated = False
        self.fresh_view: Callable[[], MessageStore] = lambda: self
        """Opens it again, read-only and without its index: what another process wrote can be read there."""

    # -- opening and closing -------------------------------------------------------------------------------------

    def open(self, last_locked: Stamp, progress: Callable[[Progress], None] | None = None) -> None:
        """Recover, and start the threads; called once, by `stratalog.open`, which holds the lock, and calls `release`
        when this raises. `last_locked` is the lock file as it was before."""
        watch(self, self.root)
        try:
            self._load(last_locked, progress)
        finally:
            forget_decoded()
        if not self.log.files and not self._disk.read_only:
            note_sizes(self.settings, self.root, self._disk, guessed=self._guessed_sizes)

    def _load(self, last_locked: Stamp, progress: Callable[[Progress], None] | None) -> None:
        abort = self.root / names.ABORT
        clean, is_accepted = not self._disk.exists(abort), False
        checkpoint = Checkpoint.load(self.root, self._disk)  # first: beside a writer it must not be ahead of the log
        # A reader may see the ends of a writer that closes meanwhile beside files of before.
        is_known = not self._disk.read_only and (self._disk.is_draft or is_ours(self.root, self._disk))
        refuse_misnamed(self.log.directory)
        self.log.load()
        beside_writer = self._disk.read_only and lock_owner(self.root / names.LOCK) is not None
        self.queue_set.beside_writer = beside_writer
        noted_begin, noted_end = (noted_log(self.root, self._disk) or (0, 0))[:2]
        sealed_end = checkpoint.seal.log_end_offset if checkpoint.seal else noted_end
        if sealed_end != noted_end and not can_end_at(self.log, sealed_end):
            checkpoint = replace(checkpoint, seal=None)  # of another store
        if checkpoint.seal and self.log.first_offset < noted_begin and not beside_writer:
            # Older log files were put back: the queues may lack their messages.
            checkpoint = replace(checkpoint, seal=checkpoint.seal.of_the_log_alone())
        self.queue_set.load()
        trusted = last_locked if clean else None
        untouched, damages, noted = load_queues(
            self.root, self._disk, self._dispatcher, self.log, checkpoint.seal, lock=trusted, is_known=is_known
        )
        if any(is_light(one.topic) for one in noted):  # though their directories may be lost
            self.queue_set.has_light_queues = self.queue_set.has_special = True
        sealed = dict[tuple[str, int], int]()
        with contextlib.suppress(OSError):  # reading it is no duty
            sealed = sealed_ends(self.root, self._disk) if clean and is_known and not untouched else sealed
        known = set(self._dispatcher.queues)
        own_mark = b"%s %d" % (names.OWN_MARK, os.getpid())
        left_out = noted_left_out(self.root, self._disk, self.log)
        if not self._disk.read_only:
            mark = None if clean else self._disk.read(abort)
            self._disk.replace(abort, own_mark if is_known else b"%d" % os.getpid())
            if self.log.files and not clean:  # the crash may have been between a file's creation and its name's flush
                self._disk.sync_directory(self.root / names.COMMIT_LOG)

        def accept(ends: Sequence[QueueEnd]) -> None:
            nonlocal is_accepted
            is_accepted = True
            if not self._disk.read_only:
                if not is_known:
                    forget_ends(self.root, self._disk)
                note_ends(self.root, self._disk, ends, self.log.first_offset)
                if not is_known:
                    self._disk.replace(abort, own_mark)
            self.queue_set.files.settle()

        try:
            self.recovery = recover(
                self.log, self._dispatcher, self.index, checkpoint, clean=clean,
                may_be_torn=not clean or any(damage.may_be_torn for damage in damages), untouched=untouched,
                damages=damages,
                meter=Meter(progress, self.clock_ns) if progress else None, keep=lambda: self._keep(recovering=True),
                noted=noted, sealed=sealed, accept=accept, invalidate=lambda: self._invalidate(checkpoint.seal),
                beside_writer=beside_writer,
            )  # fmt: skip
        except (StratalogError, OSError):
            if not self._disk.read_only:
                if clean and not self._is_invalidated:  # nothing was changed yet
                    self._disk.remove(abort)
                elif not is_accepted:
                    self._disk.replace(abort, mark or b"")
            raise
        self.recovery.notes = self._dispatcher.notes
        if self.topic_table.note:
            self.recovery.notes.append(self.topic_table.note)
        ends = {key: queue.end_offset for key, queue in self._dispatcher.queues.items()} if sealed else {}
        if note := told_longer(sealed, ends):
            self.recovery.notes.append(note)
        made = sorted(self._dispatcher.queues.keys() - known)
        if made and clean and not beside_writer and not self._disk.is_draft:
            self.recovery.notes.append(
                f"queues without a directory, built again from the messages in the log: {len(made):,}, the first "
                f"{made[0][0]}/{made[0][1]}. Their files were lost, or their topics deleted"
            )
        found, begin = self.recovery, self.recovery.scanned_from  # some before it may have been found again
        earlier = [damage for damage in damages if damage.begin < begin]
        found.quarantined = list({damage.begin: damage for damage in earlier + found.quarantined}.values())
        passed = [one for one in left_out if untouched or one.commit_log_offset < begin]
        found.left_out = list(dict.fromkeys(passed + found.left_out))
        if self._disk.read_only:
            if found.quarantined and not beside_writer:
                text, step = found.damage_text(self.root), command("verify", self.root)
                _logger.warning("%s. Messages in them are not served; %s names them", text, step)
            self.log.durable_offset = self.log.end_offset
            self.log.fail(StoreReadOnly(f"{self.root} is open for reading only; open it with mode='w' to put"))
            return
        self._disk.make_directory(self.log.directory)
        if not self._disk.is_draft:
            self.recovery.warn_of_damage(self.root)
        if self.recovery.warning:
            _logger.warning("%s", self.recovery.warning)
            self._damage_warning = self.recovery.warning
        if is_long(self.recovery.scanned_from, self.recovery.end_offset) and not self.recovery.rebuilt:
            self._flush_log()  # what was built of it waits for dispatch's first turn: the old checkpoint still holds
        else:
            self._flush_all()
            note_ends(self.root, self._disk, [], self.log.first_offset, self._dispatcher.doubtful_begins)
        dispatching = Periodic(
            "stratalog-dispatch", self.settings.flush_interval_consume_queue, self._keep_when_due,
            woken=self._dispatch_when_woken,
        )  # fmt: skip
        self.log.on_step, self.log.on_roll = dispatching.wake, lambda: self._keep_close(dispatching)
        flushing = Periodic("stratalog-flush-log", self.settings.flush_interval_commit_log, self._flush_when_due)
        self._threads += dispatching, flushing
        for thread in (dispatching, flushing):
            thread.start()

    def close(self) -> None:
        """Make everything durable, store the checkpoint, mark the stop as clean and let go of the lock.

        After a failed flush the stop is not marked as clean, so that the next open checks what is on disk; nor is it
        when a signal handler raises meanwhile. Call it again then: it does what is left. A signal handler may call it,
        but for one that came in the middle of another call of the store: it gets `StoreUnavailable`, as do the store's
        own threads. It does nothing once the interpreter ends: the next open recovers then.
        """
        if sys.is_finalizing():  # other threads have stopped where they were: it is as without `close`
            return
        if is_owned(self._closing):  # a signal handler: the call that it is in goes on
            return
        free(*self.log.locks.checkpoint)
        if any(thread.is_current() for thread in self._threads):
            raise InsideCall(f"{self.root}: one of the store's own threads cannot close it")
        with self._closing:
            with free(*self.log.locks.queues):
                self._closed = True  # no thread is started from now on
            try:
                if not self._is_released:
                    self._stop()
            except OSError as error:
                raise self._reason(error) from cause_of(error)
            finally:
                self.release()

    def _stop(self) -> None:
        self.log.stop(StoreClosed(self._closed_text))
        for thread in self._threads:
            thread.close()
        if not self._disk.read_only and not self.log.failure:
            self._flush_log()
            self.dispatch()
            self._keep(closing=True)
            self._warn_of_puts()
            effect = "Every message is durable, and the next opening looks at the end of the log"
            with refusing(f"{self.root} cannot be marked as closed", effect):
                note_sizes(self.settings, self.root, self._disk, guessed=self._guessed_sizes)
                seal, found = self._dispatcher.snapshot()[1], self.recovery
                store_snapshot(
                    self.root, self._disk, self._dispatcher, self.log, seal, found.quarantined, found.left_out
                )
                self._disk.remove(self.root / names.ABORT)

    def release(self) -> None:
        """End threads, mappings and the lock; the rest of an interrupted call, if called again. Appends are stopped
        first, unless `_stop` did so: nothing is unmapped under one."""
        if not self.log.is_stopped:
            self.log.stop(StoreClosed(self._closed_text))
        self._is_released = True
        for thread in self._threads:
            thread.close()
        self._dispatcher.close()
        try:  # nobody writes any more
            self._lookup.close()
            self.log.close()
            if self.index:
                self.index.close()
        finally:
            if self._release:
                self._release()
                self._release = None
        unwatch(self)

    def abandon(self) -> Iterable[object]:
        """In a forked child, see `stratalog.store.forks`."""
        with contextlib.suppress(OSError):
            self.log.close_files()
            self.queue_set.files.close_unlocked()
            self._lookup.close()
            if self.index:
                self.index.close()
        index = [self.index] if self.index else []
        return [*self._queues.values(), self.log, self.commit, self._dispatcher, self.queue_set.files, *index]

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(self._closed_text)

    @property
    def _closed_text(self) -> str:
        return f"{self.root} is closed; open it again"

    def __enter__(self) -> Self:
        try:
            self._check_open()
            return self
        except StratalogError:
            raise
        except BaseException:  # a signal handler raised: `__exit__` is not called then
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except StoreClosed:  # in a forked child, whose own error or SystemExit goes on
            if error is None:
                raise
        except StratalogError:
            raise
        except BaseException:  # a signal handler raised, and nobody else may call it again
            self.close()
            raise

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, in the loop's thread: when the block is left the lock is released, whatever was cancelled."""
        self.__exit__(kind, error, trace)

    def __repr__(self) -> str:
        return f"<MessageStore {self.root} [{self.log.first_offset}, {self.log.end_offset})>"

    # -- putting -------------------------------------------------------------------------------------------------

    def queue(self, topic: str, queue_id: int = 0) -> Queue:
        """The queue, bound to this store; a new one appears on disk with its first message."""
        if type(topic) is not str or type(queue_id) is not int:
            topic, queue_id = exact_text("topic", topic), check_queue_id(queue_id)
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            check_queue_id(queue_id)
            if (topic, queue_id) not in self._dispatcher.queues and not is_light_name(topic):
                names.check_topic(topic)
                if not self._disk.read_only:
                    self.topic_table.check_known(topic)
            with free(*self.log.locks.queues):
                queue = self._queues.get((topic, queue_id))
                if queue is None:  # nothing was put to it since the store was opened: its units are complete
                    self.catch_up()
                    try:
                        end = self._dispatcher.queue(topic, queue_id).end_offset
                    except OSError as error:
                        raise refusal(f"queue {topic}/{queue_id} cannot be opened", error) from error
                    queue = Queue(self, topic, queue_id, end)
                    awaiting = [*self._awaiting, queue] if queue.is_native else self._awaiting
                    self._queues[topic, queue_id], self._awaiting = queue, awaiting
                    self._bind_natives()
        return queue

    def _bind_natives(self) -> None:
        """Let compiled code stand before `put` of the queues that await it, if it is there; called under their lock."""
        if not self._awaiting or not ready_or_started():
            return
        try:
            self._bind_awaiting()
        except (RuntimeError, ImportError, OSError) as error:  # kernels are loaded on a thread, from files: until
            is_short = is_no_thread(error) if isinstance(error, RuntimeError) else shortage_of(error)
            if not (is_short or kernels_refusal(error)):  # there is room for these, Python puts
                raise

    def _bind_awaiting(self) -> None:
        if self._words is None:
            words = StoreWords(MethodType(MessageStore.put, self))
            first, *others = words.owner
            words.owner = (first, self, *others)  # a store says that it cannot be pickled, before a memoryview does
            put = native_put.put.bind(words.owner)
            vars(self)["put"], self._words = put, words
        while self._awaiting:
            queue = self._awaiting[-1]
            queue.bind_native()
            self._words.add(queue.topic, queue.queue_id, queue.words)
            self._awaiting.pop()

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        unique_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        born_timestamp: int = 0,
        wait: bool = True,
    ) -> Receipt:
        """Append one message, see `Queue.put`."""
        return self.queue(topic, queue_id).put(
            body, tags=tags, keys=keys, unique_key=unique_key, properties=properties, born_timestamp=born_timestamp,
            wait=wait,
        )  # fmt: skip

    def put_many(
        self, topic: str, bodies: Iterable[bytes], properties: bytes | Iterable[bytes] = b"", *, queue_id: int = 0
    ) -> Sequence[Receipt]:
        """Append several messages to one queue with one lock and one flush wait, see `Queue.put_many`."""
        return self.queue(topic, queue_id).put_many(bodies, properties)

    @loads("the list cannot be put")
    def put_list(
        self,
        queue: Queue,
        bodies: list[bytes],
        properties: bytes | list[bytes],
        flags: list[int] | None,
        born_timestamp: int,
        born_host: Host | None,
    ) -> Sequence[Receipt]:
        """What `Queue.put_many` does after its checks, without the flush wait."""
        lists = imported("stratalog.store.lists")
        receipts: Sequence[Receipt] = lists.put_list(self, queue, bodies, properties, flags, born_timestamp, born_host)
        return receipts

    async def put_async(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        unique_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        born_timestamp: int = 0,
    ) -> Receipt:
        """Append one message and wait, without blocking the event loop, until it is as durable as the flush mode says.

        Takes what `put` takes, but `wait`. Thousands may be in flight: they share flushes.
        """
        waiters = None
        if self.settings.flush == "sync":  # before anything is stored
            waiters = (self._futures or self._start_futures()).here()
            if properties is not None:
                properties = {**properties} if type(properties) is dict else exact_properties(properties)
                for name in properties:
                    if type(name) is not str or name == WAIT:
                        properties = exact_properties(properties)
                        waiters = waiters if is_wait(properties.get(WAIT)) else None
                        break
        receipt = self.put(
            topic, body, queue_id=queue_id, tags=tags, keys=keys, unique_key=unique_key, properties=properties,
            born_timestamp=born_timestamp, wait=False,
        )  # fmt: skip
        if waiters:
            await waiters.durable(receipt.end_offset)
        return receipt

    def _start_futures(self) -> LoopCommit:
        with free(*self.log.locks.queues):
            self._check_open()
            if self._futures is None:
                futures = LoopCommit(self.commit)
                self._threads.append(futures)
                try:
                    futures.start()
                except RuntimeError as error:
                    if not is_no_thread(error):
                        raise
                    self._threads.remove(futures)
                    raise thread_refusal("put_async cannot wait for a flush") from error
                self._futures = futures
            return self._futures

    def append(
        self, batch: "pa.RecordBatch | pa.Table", *, topic: str | None = None, queue_id: int | None = None
    ) -> dict[tuple[str, int], range]:
        """Append the rows of an Arrow batch or table; returns the queue offsets given, by (topic, queue id).

        Columns: `body` (binary or string); `topic` and `queueId` unless given; `tags`, `keys` (text with blanks, or a
        list), `uniqueKey`, `flag`, `bornTimestamp` (timestamp or ms; null means now). Any other column that the Spark
        source does not know becomes a property of its name and must hold text.

        The rows of a batch stand one after another. Between two batches of a table messages of other threads may stand,
        and are counted into its ranges: give `table.combine_chunks()` where others put to the same queues.

        Rows are checked, and room is looked for, batch by batch before the first is written. A failed flush can end the
        put within a batch, and so can a shortage where the batch needs more than two new log files. Every error says
        how many rows of the table were put before it (`put_count`).
        """
        append_batch = _append_batch()
        ranges: dict[tuple[str, int], range] = {}
        put_count = 0
        for piece in _pieces(batch):
            try:
                added = append_batch(self, piece, topic, queue_id)
            except StratalogError as error:
                put_count += error.put_count
                if not put_count:
                    raise
                self.make_durable(put_count, batch.num_rows, "rows")
                raise partly_put(error, put_count, batch.num_rows, "rows") from error
            put_count += piece.num_rows
            for key, found in added.items():
                ranges[key] = range(ranges[key].start if key in ranges else found.start, found.stop)
        self.make_durable(put_count, batch.num_rows, "rows")
        return ranges

    def make_durable(self, put_count: int, count: int, what: str, end_offset: int = -1) -> None:
        """Under sync flush, wait until those are durable that were put of several (`what`), up to that log offset."""
        if self.settings.flush == "sync" and put_count:
            try:
                self.commit.wait(self.log.end_offset if end_offset < 0 else end_offset)
            except StratalogError as error:
                raise partly_put(error, put_count, count, what) from error

    # -- durability ----------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Make everything put so far durable; returns the log offset up to which it is.

        Raises `StoreFailed`, `StoreClosed`.
        """
        self._check_open()
        self._warn_of_puts()
        self.commit.wait(self.log.end_offset)
        return self.log.durable_offset

    @property
    def durable_offset(self) -> int:
        """Log offset below which every message survives a power cut. In a store that is open with `mode="r"` it is the
        log's end: what another process has flushed cannot be known."""
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
        if self.derived_failure:
            raise self.derived_failure.with_traceback(None)
        try:
            self._dispatcher.dispatch(self._readable_end)
        except (OSError, StoreFailed) as error:
            raise self._reason(error) from cause_of(error)

    @property
    def _readable_end(self) -> int:
        """Log offset below which readers of this store see messages."""
        return self.log.durable_offset if self.settings.flush == "sync" else self.log.end_offset

    def catch_up(self) -> StratalogError | None:
        """Dispatch for a reader: what is in the queues already can be read though no more can be written. Returns the
        error then, for whoever comes to their end.

        Raises `StoreClosed`.
        """
        self._check_open()
        if self._dispatcher.progress.offset >= self._readable_end:
            return None
        try:
            self.dispatch()
        except InsideCall:
            raise
        except (DiskFull, StoreFailed, StoreUnavailable) as error:
            begin = self._dispatcher.progress.offset
            if begin < self._readable_end:
                behind = copy(error)
                behind.args = (
                    f"{self.root}: messages from log offset {begin:,} on are not in their queues and the index. "
                    f'{error}. To read them now, open the store with mode="r"',
                )
                return behind
        return None

    def complete(self) -> None:
        """Dispatch for a reader who asks what there is. Raises what `catch_up` returns."""
        if behind := self.catch_up():
            raise behind

    def _flush_all(self) -> None:
        """Log, then what is derived from it, then the checkpoint that vouches for both as they were before the sync."""
        self._flush_log()
        self.dispatch()
        self._keep()

    def _flush_when_due(self) -> None:
        if self._log_flush.is_due():
            self._log_flush.restart()
            self._flush_log()

    def _warn_of_puts(self) -> None:
        """Log once that messages were put after damage, within a second of the first or as it is flushed."""
        if self._damage_warning and self.log.end_offset > self.recovery.end_offset:
            warning, self._damage_warning = self._damage_warning, ""
            _logger.warning("messages were put after damage. %s", warning)

    def _keep_when_due(self) -> None:
        """What is derived from the log is made durable with it. Queues whose puts are compiled by now are told."""
        self._warn_of_puts()
        if self._awaiting:
            with free(*self.log.locks.queues):
                self._bind_natives()
        waits = self._checkpointed < self.recovery.end_offset  # since the opening
        if waits or self._keep_flush.is_due():
            self._keep_flush.restart()
            self._flush_all()
        else:
            self.dispatch()

    @property
    def _is_far(self) -> bool:
        """Whether dispatch is so many log files behind that RocketMQ might not make up for it after a crash: it looks
        into the last ten."""
        return self.dispatch_lag > _LAG_FILES_MAX * self.log.file_size

    def _keep_close(self, dispatching: Periodic) -> None:
        """Wait until dispatch is no longer far behind, or cannot come closer. A thread that has a lock which dispatch
        needs does not: a signal handler or finalizer puts."""
        turns_max = dispatching.turns + 2  # the one under way, and one more
        while self._is_far and dispatching.turns < turns_max and not (self.derived_failure or self.log.failure):
            if dispatching.is_current() or any(map(is_owned, self.log.locks.before_append)):
                return
            dispatching.wake()
            time.sleep(_PAUSE_S)

    def _dispatch_when_woken(self) -> None:
        if self.settings.flush == "sync" and self._is_far:  # of puts that did not wait
            self._flush_log()
        self.dispatch()

    def _keep(self, *, closing: bool = False, recovering: bool = False) -> None:
        """Make durable what queues and index hold of the log, and vouch for it."""
        if self._disk.read_only:
            return
        with free(*self.log.locks.checkpoint):
            progress, seal = self._dispatcher.snapshot(recovering=recovering)
            self._flush_log()
            try:
                self._dispatcher.files.sync()
                if closing or progress.offset != self._checkpointed:
                    self._keeps += 1
                    if self.index and (closing or not self._keeps % _KEEPS_PER_INDEX_HEADER):
                        self.index.keep()
                    self._store_checkpoint(progress, seal)
            except (OSError, StoreFailed) as error:
                raise self._reason(error) from cause_of(error)

    def _invalidate(self, seal: Seal | None) -> None:
        """Vouch for nothing that is derived from the log: it is about to be built again, and a power cut meanwhile may
        leave holes in it that no count tells."""
        self._is_invalidated = True
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
        """What to tell when derived files cannot be written. But for a shortage, a full disk or kernels that cannot
        be loaded, it ends the store's writing: what the kernel could not write once must not be flushed again."""
        if told := kernels_refusal(error):
            return told
        safe = "The messages are safe in the log and appear in their queues then"
        if isinstance(error, OSError) and error.errno in SHORTAGES:
            return refusal(f"queues of {self.root} cannot be written", error, safe)
        if isinstance(error, OSError) and error.errno in FULL:
            return DiskFull(f"{file_of(error) or self.root}: no room; free space on that file system. {safe}")
        what = file_of(error) if isinstance(error, OSError) else ""
        self.derived_failure = error if isinstance(error, StoreFailed) else failed(what or str(self.root), error)
        self.log.fail(self.derived_failure)
        return self.derived_failure

    # -- reading -------------------------------------------------------------------------------------------------

    def units_of(self, queue: Queue) -> UnitQueue:
        """The units of a queue."""
        return self._dispatcher.queue(queue.topic, queue.queue_id)

    def queues(self) -> list[tuple[str, int]]:
        """(topic, queue id) of every queue that has or had messages. Raises as `dispatch` does while messages are in
        no queue."""
        self.complete()
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
        the file cannot be read, `StoreReadOnly`, `StoreClosed`, and `DiskFull` or `StoreUnavailable`: the file is as it
        was then, or has the topic already.
        """
        self._check_open()
        if self._disk.read_only:
            raise StoreReadOnly(f"{self.root} is open for reading only; open it with mode='w' to create topics")
        name, queues = exact_text("topic", name), exact_count("queues", queues)
        queue_type = "BatchCQ" if one_of("queue_type=", queue_type, *get_args(QueueType)) == "BatchCQ" else "SimpleCQ"
        effect = "The file is whole; create the topic again then"
        with refusing(f"topic {name!r} of {self.root} cannot be created", effect), free(*self.log.locks.queues):
            self.queue_set.check_type(name, queue_type)
            return self.topic_table.create(
                name, queues=queues, queue_type=queue_type, now_ms=self.clock_ns() // 1_000_000,
                release=self.settings.compatibility,
            )  # fmt: skip

    def enter_batch_topic(self, topic: str, queue_id: int) -> None:
        """Before a put: enter a batch topic that its directory alone tells of into `topics.json`, unless that cannot be
        read. RocketMQ knows the type of a topic from that file only. Raises as `create_topic` does."""
        if self.topic_table.lacks(topic) and not self._disk.read_only:
            numbers = [number for name, number in list(self._dispatcher.queues) if name == topic]
            self.create_topic(topic, queues=1 + max([queue_id, *numbers]), queue_type="BatchCQ")

    def consumer_offsets(self) -> dict[tuple[str, str, int], int]:
        """Next queue offset to consume by (group, topic, queue id), as a broker wrote it last. Raises `CorruptData`."""
        with refusing(f"consumer offsets of {self.root} cannot be read"):
            return read_consumer_offsets(self.root / names.CONFIG, self._disk)

    def query(
        self, topic: str, *, key: str, begin: Moment = 0, end: Moment = TIME_MAX, limit: int | None = HITS_MAX
    ) -> Hits:
        """Messages of a topic that carry a key (or unique key) and were stored in [begin, end].

        The newest `limit` of them (None: all), oldest first; `more` of the result says whether there are older ones.
        A damaged record does not hide the others: `damaged` of the result holds a `CorruptData` for each that the index
        has for the key and that cannot be read, and for each damaged range of the log that opening found.

        Times are aware datetimes or milliseconds since 1970; what looks like seconds raises `ConfigurationError`.

        Every hit was checked against the record: two keys with one hash are told apart. A batch is found by its own
        keys and unique key: its members that carry the key are returned, all of them where none does.

        Raises as `dispatch` does while messages are not in the index.
        """
        topic, key = exact_text("topic", topic), exact_text("key", key)
        begin_ms, end_ms, count = query_range(begin, end, limit)
        self.complete()
        hits = self._find(topic, [key], begin_ms, end_ms, count)[0]
        return hits if isinstance(hits, Hits) else Hits(hits)

    def query_many(
        self, topic: str, keys: Iterable[str], *, begin: Moment = 0, end: Moment = TIME_MAX,
        limit: int | None = HITS_MAX,
    ) -> HitsByKey:  # fmt: skip
        """What `query` returns for each of many keys, thousands at once for little more than a microsecond each. `more`
        of the result holds the keys that have older messages, `damaged` those of which messages may be missing.

        Raises as `query` does: `ConfigurationError` without an index.
        """
        distinct = list(dict.fromkeys(text_list("keys", keys)))
        topic, (begin_ms, end_ms, count) = exact_text("topic", topic), query_range(begin, end, limit)
        self.complete()
        return HitsByKey(zip(distinct, self._find(topic, distinct, begin_ms, end_ms, count), strict=True))

    def _find(self, topic: str, keys: list[str], begin: int, end: int, limit: int) -> list[list[Message]]:
        """What `Lookup.messages` finds, as the readers of batch topics and light queues see it."""
        if self.queue_set.has_special and is_light(topic):
            found: list[list[Message]] = [
                light_hits(self, self._lookup, topic, key, begin=begin, end=end, limit=limit) for key in keys
            ]
        else:
            found = self._lookup.messages(topic, keys, begin=begin, end=end, limit=limit)
            if self.queue_set.has_special and self.queue_set.is_batch(topic):
                found = [members_with(hits, key, limit) for hits, key in zip(found, keys, strict=True)]
        if self.recovery.quarantined and (ranges := self.damaged_ranges()):
            found = [with_ranges(hits, ranges) for hits in found]
        self._check_open()
        return found

    def damaged_ranges(self) -> list[tuple[int, CorruptData]]:
        """End and error of each damaged range of the log that opening found, newest first: what was in it may be in no
        index."""
        return [
            (one.end, damaged_range(self.log, one.begin, one.end))
            for one in reversed(self.recovery.quarantined)
            if one.end > self.log.first_offset
        ]

    def damaged_hit(self, topic: str, key: str, commit_log_offset: int) -> CorruptData:
        """The error of a record that the index has for a key, with its place in a queue where a unit leads to it."""
        place = ""
        for (name, queue_id), units in list(self._dispatcher.queues.items()):
            if name == topic:
                at = units.offset_of(commit_log_offset)
                if at < units.end_offset and units.unit(at)[0] == commit_log_offset:
                    place = f"queue {name}/{queue_id} offset {at:,}, "
        return damaged_record(
            self.log, commit_log_offset,
            f"{place}log offset {commit_log_offset:,}: a message that the index has for key {shown(key)} cannot be "
            "read",
            f". {command('verify', self.root)} shows what else is damaged",
        )  # fmt: skip

    def candidates(self, topic: str, *, key: str, begin: Moment = 0, end: Moment = TIME_MAX) -> Iterator[int]:
        """Log offsets that the index has for a key, newest first, each once; hashes may collide."""
        topic, key = exact_text("topic", topic), exact_text("key", key)
        begin_ms, end_ms, _ = query_range(begin, end, None)
        self.complete()
        return self._lookup.candidates(topic, key, begin=begin_ms, end=end_ms)

    @loads("messages cannot be read")
    def read_arrow(
        self, queue: Queue, first: int | None = None, *, count: int = 1 << 20, columns: Iterable[str] | None = None
    ) -> "pa.RecordBatch":
        """What `Queue.read_arrow` does."""
        check_type("queue", queue, Queue, "give a queue of this store, as store.queue(topic) returns")
        return imported("stratalog.store.arrow").read_arrow(self, queue, first, count, columns)

    def message(self, commit_log_offset: int) -> Message:
        """The message at a log offset, as message ids name it: the record, be it a batch or in light queues as well.
        Raises `CorruptData` when none starts there, or under sync flush when it is not durable yet: no reader sees it
        then."""
        self._check_open()
        log, commit_log_offset = self.log, exact_int("commit_log_offset", commit_log_offset, ConfigurationError)
        end = self._readable_end
        if not log.first_offset <= commit_log_offset < end:
            raise CorruptData(f"log offset {commit_log_offset:,} is outside [{log.first_offset:,}, {end:,})")
        return self.log.message(commit_log_offset)
