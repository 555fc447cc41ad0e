"""A store's queues and index as opening finds them, before it changes anything."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stratalog.config.settings import StoreSettings
from stratalog.layout.names import COMMIT_LOG
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import PrivateDisk
from stratalog.store.dispatch import Dispatcher
from stratalog.store.evidence import drop_torn, unit_counts
from stratalog.store.index_file import Index
from stratalog.store.queue_set import QueueSet
from stratalog.store.recovery import Damage, closed_end, is_intact
from stratalog.store.snapshot import load_queues
from stratalog.store.topics import Topics


@contextmanager
def _loaded(
    root: Path, settings: StoreSettings, disk: PrivateDisk
) -> Iterator[tuple[CommitLog, Dispatcher, list[Damage]]]:
    log = CommitLog(root / COMMIT_LOG, disk, file_size=settings.commit_log_file_size)
    queues = QueueSet(root, log, disk, settings, Topics(root, disk))
    dispatcher = Dispatcher(log, None, queues, delay_levels=settings.message_delay_level)
    try:
        log.load()
        queues.load()
        _, damages, _ = load_queues(root, disk, dispatcher, log, None, lock=None)
        yield log, dispatcher, damages
    finally:
        dispatcher.close()
        log.close()


def counted_queues(root: Path, settings: StoreSettings, log_end: int) -> tuple[int, int]:
    """Queues with units below a log offset, and those units, as a clean-shutdown marker counts them."""
    with _loaded(root, settings, PrivateDisk()) as (log, dispatcher, damages):
        drop_torn(log, dispatcher, damages, only_batches=False)
        return unit_counts(dispatcher, log_end)


def end_when_closed(root: Path, settings: StoreSettings) -> int:
    """Where the log ended when RocketMQ closed the store, if its end was overwritten since; else 0."""
    with _loaded(root, settings, PrivateDisk()) as (log, dispatcher, _):
        return closed_end(log, dispatcher)


def is_rebuilt_by_opening(root: Path, settings: StoreSettings, log_end: int) -> bool:
    """Whether opening a store that was closed properly, with a log that ends there, builds queues and index again."""
    disk, index = PrivateDisk(), None
    if settings.message_index_enable:
        index = Index(
            root, disk, slot_count=settings.index_slot_count, item_capacity=settings.index_item_capacity,
            with_tags=settings.compatibility != "5.3", clock_ns=time.time_ns,
        )  # fmt: skip
    with _loaded(root, settings, disk) as (log, dispatcher, damages):
        try:
            return not is_intact(log, dispatcher, index, Checkpoint.load(root, disk).seal, damages, log_end)
        finally:
            if index:
                index.close()
