"""The topics of a store: `config/topics.json`, which says how many queues a topic has and of which type.

Opening asks `Topics.is_batch` for the type of a topic, and nothing else:

    topic in topics.json    queues below                             type
    --------------------    -------------------------------------    ------------------------
    yes                     any                                      what topics.json says
    no                      batchconsumequeue/, be there others      that of the units that lead to messages of their
                            below consumequeue/ or not               queue, without these that of the units with the
                                                                     higher queue offsets of expired ones; BatchCQ if
                                                                     they are equal. `verify` reports
    no                      consumequeue/                            SimpleCQ
    no                      none                                     that of its first record in the log: BatchCQ for
                                                                     a batch, and opening says so

Of which type the units in a directory are, their bytes tell, not the tree: directories may have been moved.

A directory of a topic without directories of queues counts below batchconsumequeue/ if there is none below
consumequeue/. A record of one message looks the same in both types; a batch is only put to a topic of type BatchCQ. So
`verify`, rebuild and repair hold the answer against the log: batches of a topic that topics.json calls SimpleCQ are
reported and nothing is built of them; a topic with batches that is not in topics.json is built as of type BatchCQ.

RocketMQ asks topics.json alone and does not load a store with queues in the tree of another type. So a topic of type
BatchCQ without an entry gets one: from the next put to it, from rebuild and from repair.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from stratalog.errors import ConfigurationError, CorruptData
from stratalog.layout import names
from stratalog.layout.light import is_light
from stratalog.layout.loosejson import Release
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.layout.record import OFFSETS_END, Layout
from stratalog.store.config_files import COPY, QUEUE_TYPE, TOPICS, read_config, write_config
from stratalog.store.disk import Disk
from stratalog.store.queue_begin import QUEUE_LAYOUTS, has_place, layout_of, record_at, written_units

QueueType = Literal["SimpleCQ", "BatchCQ"]
"""SimpleCQ: a unit a message (ConsumeQueue). BatchCQ: a unit a batch, which is one record (BatchConsumeQueue)."""

_QUEUE_TYPES = ("SimpleCQ", "BatchCQ")
_READ_WRITE = 6
_QUEUE_COUNT_DEFAULT = 16
_QUEUE_COUNT_MAX = 1 << 31
_COUNTER_MAX = 2**63 - 1
_UNITS_ASKED = 8


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic (upstream: TopicConfig). `perm`: 1 inherit, 2 write, 4 read, 8 priority."""

    name: str
    queue_type: QueueType = "SimpleCQ"
    read_queue_count: int = _QUEUE_COUNT_DEFAULT
    write_queue_count: int = _QUEUE_COUNT_DEFAULT
    perm: int = _READ_WRITE
    is_ordered: bool = False
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    """1: unit, 2: unit subscription."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """`queue.type`, `cleanup.policy`, `message.type`, `reserve.time`; what is absent has its default."""


class Topics:
    """`topics.json` as it was when the store was opened, and as `create` changed it. One thread at a time may create.

    When neither the file nor its copy can be read, `damage` says so and `configs` is empty: everything can be read then
    and put to queues that are there, whose type their directory tells. `create` is refused, because it would write over
    what may still be saved.
    """

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self._value: dict[str | int, Any] = {}
        self.note: str | None = None
        self.damage: CorruptData | None = None
        self.configs: dict[str, TopicConfig] = {}
        self._batch_by_tree: set[str] = set()
        try:
            config = read_config(root / names.CONFIG, TOPICS, disk)
        except CorruptData as error:
            self.note, self.damage = str(error), error
        else:
            self.note, self._value = config.note, config.value
            self.configs = _configs_of(config.value)
        self.look_at_trees()

    def look_at_trees(self) -> None:
        """Look again which topics without an entry have queues of batches below batchconsumequeue/."""
        self._batch_by_tree = {
            topic for topic in filter(names.is_topic, self._disk.directories(self._root / names.BATCH_CONSUME_QUEUE))
            if topic not in self.configs
            and (self._queue_ids(names.BATCH_CONSUME_QUEUE, topic) or not self._queue_ids(names.CONSUME_QUEUE, topic))
            and self._evidence(topic, BATCH_UNIT) >= self._evidence(topic, UNIT)
        }  # fmt: skip

    def _evidence(self, topic: str, layout: Layout) -> int:
        """By the units of a layout in either tree: `OFFSETS_END` if one of the first live units in a file of a topic's
        queues leads to a message of its queue. Else the queue offset after the expired messages that units lead to, in
        directories that are no copies: no live unit leads to a message of another place."""
        ends = [0]
        starts = map(names.offset_of, self._disk.files(self._root / names.COMMIT_LOG))
        log_begin = min((start for start in starts if start is not None), default=0)
        places = ((tree, queue_id) for tree in QUEUE_LAYOUTS for queue_id in self._queue_ids(tree, topic))
        for tree, queue_id in places:
            directory, end, is_copy = self._root / tree / topic / str(queue_id), 0, False
            with contextlib.suppress(OSError):
                if layout_of(directory, self._disk) is not layout:
                    continue
                for numbers, offsets, sizes, counts, _ in written_units(directory, layout, self._disk, damaged=True):
                    is_sound, is_live = sizes > 0, offsets >= log_begin
                    live = (column[is_sound & is_live][:_UNITS_ASKED].tolist() for column in (offsets, sizes, numbers))
                    for offset, size, number in zip(*live, strict=True):
                        record = record_at(self._root, offset, self._disk)
                        if record and record.total_size == size:
                            if has_place(record, topic, queue_id, number):
                                return OFFSETS_END
                            is_copy = True
                    end = max(end, int((numbers + np.maximum(counts, 1))[is_sound & ~is_live].max(initial=0)))
            ends.append(0 if is_copy else end)
        return max(ends)

    def is_batch(self, topic: str) -> bool:
        """Whether a topic's batches are kept as one record each (BatchCQ). Queues of light and delayed messages have
        plain units."""
        if is_light(topic) or topic == names.SCHEDULE_TOPIC:
            return False
        config = self.configs.get(topic)
        return config.queue_type == "BatchCQ" if config else topic in self._batch_by_tree

    def take_for_batch(self, topic: str) -> bool:
        """Let a topic be of type BatchCQ, unless it is, has an entry or queues, or can have no batches."""
        is_known = self.is_batch(topic) or topic in self.configs or is_light(topic) or topic == names.SCHEDULE_TOPIC
        if is_known or any(self._queue_ids(tree, topic) for tree in QUEUE_LAYOUTS):
            return False
        self._batch_by_tree.add(topic)
        return True

    @property
    def batch_topics(self) -> set[str]:
        """Every topic for which `is_batch` holds."""
        return set(filter(self.is_batch, {*self._batch_by_tree, *self.configs}))

    def is_moved(self, topic: str, queue_id: int) -> bool:
        """Whether a queue of plain units lies below batchconsumequeue/ alone: its directory was moved there."""
        right, there = (self._root / tree / topic / str(queue_id) for tree in QUEUE_LAYOUTS)
        return not self.is_batch(topic) and not self._disk.files(right) and layout_of(there, self._disk) is UNIT

    def lacks(self, topic: str) -> bool:
        """Whether `topics.json` has no entry for a topic. False while it cannot be read."""
        return topic not in self.configs and not self.damage

    def check_known(self, topic: str) -> None:
        """Raise `CorruptData` for a topic that has no queue yet while `topics.json` cannot be read: its type would be a
        guess."""
        trees = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
        if self.damage and not any(self._queue_count(tree, topic) for tree in trees):
            raise self.damage

    def _queue_count(self, tree: str, topic: str) -> int:
        """The highest queue id in a tree plus one; 0 without queues."""
        return max((queue_id + 1 for queue_id in self._queue_ids(tree, topic)), default=0)

    def _queue_ids(self, tree: str, topic: str) -> list[int]:
        found = map(names.queue_id_of, self._disk.directories(self._root / tree / topic))
        return [queue_id for queue_id in found if queue_id is not None]

    @property
    def can_change(self) -> bool:
        """Whether the file can be written: it can be read, and no directory is in its place or its copy's."""
        return not self.damage and {TOPICS, TOPICS + COPY}.isdisjoint(
            self._disk.directories(self._root / names.CONFIG)
        )  # fmt: skip

    def unlisted_batch_topics(self) -> dict[str, int]:
        """Queue counts of the topics with queues below batchconsumequeue/ for which there is no entry: of all of them,
        if the file cannot be read."""
        counts = {
            topic: self._queue_count(names.BATCH_CONSUME_QUEUE, topic)
            for topic in sorted(self.batch_topics - self.configs.keys())
        }
        return {topic: count for topic, count in counts.items() if count}

    def enter_batch_topics(self, *, now_ms: int, release: Release) -> None:
        """Enter the topics with queues below batchconsumequeue/ that `topics.json` lacks, if it can be written."""
        entries = {
            topic: _entry_of(topic, "BatchCQ", min(count, _QUEUE_COUNT_MAX - 1))
            for topic, count in self.unlisted_batch_topics().items()
        }
        if entries and self.can_change:
            self._enter(entries, now_ms, release)

    def create(self, name: str, *, queues: int, queue_type: QueueType, now_ms: int, release: Release) -> TopicConfig:
        """See `MessageStore.create_topic`."""
        names.check_topic(name)
        if type(queues) is not int or not 1 <= queues < _QUEUE_COUNT_MAX:
            raise ConfigurationError(f"queues={queues!r}: give a whole number from 1")
        if queue_type not in _QUEUE_TYPES:
            raise ConfigurationError(f"queue_type={queue_type!r}: give 'SimpleCQ' or 'BatchCQ'")
        if self.damage:
            raise self.damage
        self._check_type(name, queue_type)
        known = self.configs.get(name)
        if known and known.read_queue_count == known.write_queue_count == queues:
            return known
        there = self._table().get(name)
        entry = there if isinstance(there, dict) else _entry_of(name, queue_type, queues)
        self._enter({name: {**entry, "readQueueNums": queues, "writeQueueNums": queues}}, now_ms, release)
        return self.configs[name]

    def _enter(self, entries: dict[str, dict[str, Any]], now_ms: int, release: Release) -> None:
        value = {
            **self._value,
            "dataVersion": _next_version(self._value.get("dataVersion"), now_ms),
            "topicConfigTable": {**self._table(), **entries},
        }
        write_config(self._root / names.CONFIG, TOPICS, value, self._disk, release=release)
        self._value = value
        self.configs |= {name: _config_of(name, entry) for name, entry in entries.items()}

    def _check_type(self, name: str, queue_type: QueueType) -> None:
        there = "BatchCQ" if self.is_batch(name) else "SimpleCQ"
        trees = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE)
        is_known = name in self.configs or any(self._queue_count(tree, name) for tree in trees)
        if is_known and there != queue_type:
            raise ConfigurationError(f"topic {name!r} is of type {there}, which cannot change to {queue_type}")

    def _table(self) -> dict[str, Any]:
        table = self._value.get("topicConfigTable")
        return table if isinstance(table, dict) else {}


def _entry_of(name: str, queue_type: QueueType, queues: int) -> dict[str, Any]:
    """A new topic as RocketMQ writes it: members sorted by name."""
    return {
        "attributes": {QUEUE_TYPE: queue_type} if queue_type != "SimpleCQ" else {},
        "order": False,
        "perm": _READ_WRITE,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def _next_version(version: Any, now_ms: int) -> dict[str, int]:
    """One change later (DataVersion.nextVersion)."""
    known = version if isinstance(version, dict) else {}
    return {
        "counter": min(_integer(known.get("counter"), 0), _COUNTER_MAX - 1) + 1,
        "stateVersion": _integer(known.get("stateVersion"), 0),
        "timestamp": now_ms,
    }


def _configs_of(value: dict[str | int, Any]) -> dict[str, TopicConfig]:
    table = value.get("topicConfigTable")
    entries = table.items() if isinstance(table, dict) else ()
    return {str(name): _config_of(str(name), entry) for name, entry in entries if isinstance(entry, dict)}


def _config_of(name: str, entry: dict[str, Any]) -> TopicConfig:
    """A topic as somebody wrote it: what is absent or of another kind has its default, as fastjson leaves it."""
    given = entry.get("attributes")
    attributes = {str(key): str(value) for key, value in (given.items() if isinstance(given, dict) else ())}
    kind = attributes.get(QUEUE_TYPE)
    return TopicConfig(
        name=name,
        queue_type=cast(QueueType, kind) if kind in _QUEUE_TYPES else "SimpleCQ",
        read_queue_count=_integer(entry.get("readQueueNums"), _QUEUE_COUNT_DEFAULT),
        write_queue_count=_integer(entry.get("writeQueueNums"), _QUEUE_COUNT_DEFAULT),
        perm=_integer(entry.get("perm"), _READ_WRITE),
        is_ordered=entry.get("order") is True,
        filter_type=str(entry.get("topicFilterType", "SINGLE_TAG")),
        sys_flag=_integer(entry.get("topicSysFlag"), 0),
        attributes=attributes,
    )


def _integer(value: Any, default: int) -> int:
    return value if type(value) is int else default
