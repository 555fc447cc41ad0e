"""Messages by key where a record is not one message of its topic: batch topics and light queues.

The index knows a record's own topic, keys and unique key, as RocketMQ's does. A batch is found by its own keys, not by
those of its members; a message in a light queue is indexed under the topic that it was put to.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stratalog.errors import CorruptData
from stratalog.layout.light import LIGHT_QUEUE_ID, allows_light, has_other_id, is_light
from stratalog.layout.sysflag import enters_queue
from stratalog.store.lookup import Hits, Lookup
from stratalog.store.message import Message
from stratalog.store.special_read import offset_in, place_in, unwrapped

if TYPE_CHECKING:
    from stratalog.store.message_store import MessageStore


def members_with(records: list[Message], key: str, limit: int) -> Hits:
    """The newest `limit` messages of records that a key led to: of a batch the members that carry the key themselves;
    where none does the key is the batch's as a whole, and all its members are meant."""
    found: list[Message] = []
    hits = records if isinstance(records, Hits) else Hits()
    damaged = [*hits.damaged]
    for record in records:
        try:
            members = unwrapped(record)
        except CorruptData as error:
            damaged.append(error)
            continue
        found += [member for member in members if key in member.keys or key == member.unique_key] or members
    return _newest(found, limit, more=hits.more, damaged=damaged)


def light_hits(
    store: "MessageStore", lookup: Lookup, topic: str, key: str, *, begin: int, end: int, limit: int
) -> Hits:
    """The newest `limit` messages of a light queue that carry a key, oldest first. Every topic is asked: any may have
    messages in the queue."""
    queue = store.queue(topic, LIGHT_QUEUE_ID)
    parents = [name for name in store.topics() if name == topic or (allows_light(name) and not is_light(name))]
    found: list[Message] = []
    damaged: list[CorruptData] = []
    more = False
    for parent in parents:
        hits = lookup.accepted(
            parent, key, begin=begin, end=end, limit=limit,
            accept=lambda message: message.topic == topic or (
                enters_queue(message.sys_flag) and offset_in(queue, message) >= 0
            ),
        )  # fmt: skip
        found, more, damaged = found + hits, more or hits.more, [*damaged, *hits.damaged]
    found.sort(key=lambda message: message.commit_log_offset)
    for message in found:
        if not has_other_id(message.topic, message.queue_id):
            place_in(queue, message)
    return _newest(found, limit, more=more, damaged=damaged)


def _newest(messages: list[Message], limit: int, *, more: bool, damaged: Sequence[CorruptData]) -> Hits:
    return Hits.of(messages[max(0, len(messages) - limit) :], more=more or len(messages) > limit, damaged=damaged)
