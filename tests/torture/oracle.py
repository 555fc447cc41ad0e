"""Which messages a log holds, read byte by byte with the layouts alone: what a store must serve, whatever else is in
it."""

from pathlib import Path

from store.model import Walk, walk
from stratalog.errors import CorruptData
from stratalog.layout.light import LIGHT_QUEUE_ID, light_places
from stratalog.layout.message import Record
from stratalog.layout.sysflag import enters_queue
from stratalog.store.message_store import MessageStore

Served = dict[tuple[str, int], dict[int, int]]
"""By queue: log offsets of records, and the queue offset that each has there."""


def in_log(root: Path, *, light: bool) -> Served:
    """What the log's whole records call for. Of two with one place in a queue the first counts."""
    return of_records(walk(root), light=light)


def of_records(found: Walk, *, light: bool) -> Served:
    served: Served = {}
    for record in found.records:
        if enters_queue(record.sys_flag):
            for key, queue_offset in _places(record, light=light):
                queue = served.setdefault(key, {})
                if queue_offset > max(queue.values(), default=-1):
                    queue[record.commit_log_offset] = queue_offset
    return served


def _places(record: Record, *, light: bool) -> list[tuple[tuple[str, int], int]]:
    topic = record.topic.decode()
    places = light_places(topic, record.properties, record.commit_log_offset)[0] if light else []
    own = (topic, record.queue_id), record.queue_offset
    return [own, *(((name, LIGHT_QUEUE_ID), queue_offset) for name, queue_offset in places)]


def in_queues(store: MessageStore) -> Served:
    """What can be read. A message that is refused is not there, those after it are."""
    served: Served = {}
    for key in store.queues():
        queue = store.queue(*key)
        first, following = -1, queue.min_offset
        while following > first:
            first, following = following, -1
            try:
                for message in queue.read(first):
                    served.setdefault(key, {}).setdefault(message.commit_log_offset, message.queue_offset)
            except CorruptData as error:
                following = error.next_offset
    return served


def missing(wanted: Served, found: Served) -> list[tuple[str, int, int]]:
    """(topic, queue id, queue offset) of messages that are wanted and not found at their place."""
    return [
        (*key, queue_offset)
        for key, queue in wanted.items()
        for commit_log_offset, queue_offset in queue.items()
        if found.get(key, {}).get(commit_log_offset) != queue_offset
    ]
