"""Copying a local store into a tier in one process: what the pipeline does with Spark, for tests."""

from collections.abc import Iterable

from stratalog.layout.names import is_tiered
from stratalog.store.message_store import MessageStore
from stratalog.tiered import Manifest, SegmentBackend, TierState
from stratalog.tiered.state import ManifestEntry, QueueName
from stratalog.tiered.writer import TierWriter, WriterSettings


def entry_for(
    store: MessageStore,
    backend: SegmentBackend,
    state: TierState,
    *,
    settings: WriterSettings | None = None,
    queues: Iterable[tuple[str, int]] | None = None,
    first: int | None = None,
    count: int = 1 << 30,
) -> ManifestEntry:
    """Write up to `count` more messages of each queue; nothing is committed."""
    names = [name for name in (store.queues() if queues is None else queues) if is_tiered(name[0])]
    ids = state.topic_ids(topic for topic, _ in names)
    writer = TierWriter(backend, state, settings=settings)
    for topic, queue_id in names:
        queue = store.queue(topic, queue_id)
        known = state.queues.get(QueueName(topic, queue_id))
        start = known.end_queue_offset if known else queue.min_offset if first is None else first
        units = queue.units(start, min(count, queue.max_offset - start))
        writer.append(topic, queue_id, units, window=store.log.window(), first_queue_offset=start, topic_id=ids[topic])
    batch = writer.finish()
    return ManifestEntry(queues=batch.queues, index_runs=batch.index_runs, source_to=store.log.end_offset)


def offload(
    store: MessageStore,
    backend: SegmentBackend,
    manifest: Manifest,
    *,
    settings: WriterSettings | None = None,
    count: int = 1 << 30,
) -> TierState:
    """Copy everything, in batches of `count` messages a queue, one manifest entry each."""
    state = manifest.load()
    while True:
        entry = entry_for(store, backend, state, settings=settings, count=count)
        if not entry.queues:
            return state
        state = manifest.commit(entry, state)
