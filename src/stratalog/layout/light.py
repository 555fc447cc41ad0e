"""Light queues: one record that stands in several `%LMQ%` queues beside its own (LmqDispatch, MultiDispatchUtils).

A producer names them in INNER_MULTI_DISPATCH, with commas between; the store adds INNER_MULTI_QUEUE_OFFSET, the
record's offset in each. RocketMQ takes names there that it cannot dispatch: at such a record its queues stand still for
ever, or lose their place. Here they are refused when put (`light_names`), and what another broker stored is read as
far as it makes sense (`light_places`).
"""

import re

from stratalog.errors import IllegalMessage
from stratalog.layout.message import TOPIC_SIZE_MAX, queue_offset_limit
from stratalog.layout.names import LMQ_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX, is_topic
from stratalog.layout.properties import find_property, is_overwritten

MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
INNER_LEAD = b"INNER_"
"""How the names of all properties begin that give a message another place in its queues than the usual one."""
LIGHT_QUEUE_ID = 0
"""A light queue is a topic with this one queue."""
SEPARATOR = ","
_NAME = re.compile(re.escape(LMQ_PREFIX) + r"[%|$a-zA-Z0-9_-]+\Z")
_OFFSET = re.compile(r"[0-9]{1,18}\Z")
_NAMES, _OFFSETS = MULTI_DISPATCH.encode(), MULTI_QUEUE_OFFSET.encode()

Place = tuple[str, int]
"""A light queue and a queue offset in it."""


def is_light(topic: str) -> bool:
    return topic.startswith(LMQ_PREFIX)


def has_other_id(topic: str, queue_id: int) -> bool:
    """Whether a queue has a light queue's name and is none. Only records whose own queue it is stand in it."""
    return is_light(topic) and queue_id != LIGHT_QUEUE_ID


def allows_light(topic: str | bytes) -> bool:
    """Whether records of a topic may stand in light queues (MixAll.topicAllowsLMQ). A message that was sent back for
    another try has the properties of the first one, and stands in none."""
    topic = topic if isinstance(topic, str) else topic.decode("utf-8", "surrogateescape")
    return not topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) and topic != SCHEDULE_TOPIC


def is_light_name(topic: str) -> bool:
    """Whether a light queue may be given this name; wider than topics, as RocketMQ's lite topics have `$` in it."""
    return bool(_NAME.match(topic)) and len(topic) <= TOPIC_SIZE_MAX


def light_names(text: str) -> list[str]:
    """The queues that an INNER_MULTI_DISPATCH names. Raises `IllegalMessage` for what RocketMQ stores and then cannot
    dispatch: a name that is no light queue's, one given twice, an empty one."""
    names = text.split(SEPARATOR)
    for name in names:
        if not is_light_name(name):
            raise IllegalMessage(
                f"{MULTI_DISPATCH} names {name[:300]!r}: give {LMQ_PREFIX} and up to 250 letters, digits or % | $ _ -, "
                "with commas between; nothing was written"
            )
    if len(set(names)) != len(names):
        raise IllegalMessage(f"{MULTI_DISPATCH} names a queue twice: {text[:300]!r}; nothing was written")
    return names


def joined_offsets(offsets: list[int]) -> str:
    """The value of INNER_MULTI_QUEUE_OFFSET."""
    return SEPARATOR.join(map(str, offsets))


def light_places(
    topic: str | bytes, properties: bytes, commit_log_offset: int
) -> tuple[list[Place], list[str]]:  # fmt: skip
    """Where a stored record of a topic stands in light queues, and in words what of its two properties cannot be
    followed.

    A record that some broker stored without offsets stands nowhere, and so does one with more or fewer offsets than
    names; a name that is no light queue's has an empty one. An offset is trusted up to `queue_offset_limit`.
    """
    if not allows_light(topic):
        return [], []
    names, offsets = _pairs(properties)
    if len(names) != len(offsets):
        return [], [f"{len(names)} names, {len(offsets)} offsets"] if names and offsets else []
    places: list[Place] = []
    poison: list[str] = []
    for name, text in zip(names, offsets, strict=True):
        if not (is_light(name) and is_topic(name)):
            poison.append(f"{name[:80]!r} is no light queue")
        elif not _OFFSET.match(text) or int(text) > queue_offset_limit(commit_log_offset):
            poison.append(f"{text[:80]!r} is no queue offset of {name[:80]!r}")
        elif name in dict(places):
            poison.append(f"{name[:80]!r} is named twice")
        else:
            places.append((name, int(text)))
    return places, poison


def light_offset(topic: str | bytes, properties: bytes, light_queue: str) -> int:
    """The queue offset that a stored record of a topic was given in a light queue; -1 when it names none there.
    RocketMQ may have put it at a smaller one."""
    names, offsets = _pairs(properties) if allows_light(topic) else ([], [])
    text = offsets[names.index(light_queue)] if light_queue in names and len(names) == len(offsets) else ""
    return int(text) if _OFFSET.match(text) else -1


def _pairs(properties: bytes) -> tuple[list[str], list[str]]:
    """Names and offsets. As in Java, separators at the end separate nothing, but for the empty offset of a name."""
    stored_names = (find_property(properties, _NAMES) or "").rstrip(SEPARATOR)
    stored_offsets = find_property(properties, _OFFSETS) or ""
    names, offsets = stored_names.split(SEPARATOR) if stored_names else [], stored_offsets.split(SEPARATOR)
    while len(offsets) > len(names) and not offsets[-1]:
        offsets.pop()
    return names, offsets


def holds_nearly(properties: bytes, name: str) -> bool:
    """Whether a light queue's name stands anywhere in properties, but for one byte, or may have stood where they are
    overwritten."""
    wanted = name.encode("utf-8", "surrogateescape")
    return is_overwritten(properties) or any(
        sum(one != other for one, other in zip(wanted, properties[at : at + len(wanted)], strict=True)) <= 1
        for at in range(len(properties) - len(wanted) + 1)
    )


def is_sent_to(light_queue: str, topic: bytes) -> bool:
    """Whether a message in a light queue, of a record's topic, was sent to the queue itself. Others name it; RocketMQ
    counts the queue offsets of both from 0."""
    return topic == light_queue.encode("utf-8", "surrogateescape")
