"""The queues of a store, of all kinds: which kind a queue is, and its files."""

from pathlib import Path

from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, CorruptData, command
from stratalog.kernels.queue_table import QueueKind
from stratalog.layout.light import allows_light, is_light
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    SCHEDULE_TOPIC,
    is_topic,
)
from stratalog.layout.queue import UNIT
from stratalog.store.batch_queue import BatchQueue
from stratalog.store.commit_log import CommitLog
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.disk import Disk, queue_directories
from stratalog.store.extension import ExtendedQueue
from stratalog.store.open_files import OpenFiles
from stratalog.store.queue_begin import written_units
from stratalog.store.topics import QueueType, Topics

UnitQueue = ConsumeQueue | BatchQueue


def has_light_queues(root: Path, disk: Disk, settings: StoreSettings) -> bool:
    """Whether a store has light queues: its settings ask for them, or some are there already, which are kept up.

    Opening asks nothing else, as RocketMQ. `verify`, rebuild and repair also ask the log (`tools.light`).
    """
    return settings.dispatches_light_queues or any(map(is_light, disk.directories(root / CONSUME_QUEUE)))


class QueueSet:
    """All queues by (topic, queue id), each made when it is first asked for.

    `Topics` says which of them are of type BatchCQ, `has_light_queues` whether there are light queues.
    """

    def __init__(self, root: Path, log: CommitLog, disk: Disk, settings: StoreSettings, topics: Topics) -> None:
        self.root = root
        self._log = log
        self.disk = disk
        self._settings = settings
        self._topics = topics
        self.is_batch = topics.is_batch
        self._extended: set[tuple[str, int]] = set()
        self.files = OpenFiles(disk, on_failure=log.fail, locks=log.locks)
        self.by_name: dict[tuple[str, int], UnitQueue] = {}
        self.has_light_queues = settings.dispatches_light_queues
        self.has_special = self.has_light_queues
        """Whether there may be batch topics or light queues."""
        self.beside_writer = False
        """Another process writes the store: of each queue only the newest file is looked at."""

    def load(self) -> None:
        """Look which kinds of queues there are, and load those of batch topics and those with an extension, which may
        be all that is left of them. The log must have been loaded."""
        self.files.hold()
        self._extended = {
            (topic, queue_id) for topic, queue_id, _ in queue_directories(self.root, CONSUME_QUEUE_EXT, self.disk)
        }
        self._topics.look_at_trees()
        self.has_light_queues |= has_light_queues(self.root, self.disk, self._settings)
        self.has_special |= self.has_light_queues or bool(self._topics.batch_topics)
        for topic, queue_id, directory in queue_directories(self.root, BATCH_CONSUME_QUEUE, self.disk):
            if self.is_batch(topic):
                self.get(topic, queue_id)
            elif self._topics.is_moved(topic, queue_id):
                self._refuse_expired(directory)
        for topic, queue_id in self._extended:
            self.get(topic, queue_id)

    def _refuse_expired(self, moved: Path) -> None:
        """Raise `CorruptData` for a moved queue of which all messages expired: its offsets would be given again."""
        units = written_units(moved, UNIT, self.disk)
        newest = max((int(offsets.max(initial=-1)) for _, offsets, *_ in units), default=-1)
        if 0 <= newest < self._log.first_offset:
            raise CorruptData(
                f"it holds units of a ConsumeQueue, which belong below {CONSUME_QUEUE}/, and no message of the log "
                f"shows the queue's next offset: {command('repair', self.root)} moves it there",
                path=str(moved),
            )

    def check_type(self, topic: str, queue_type: QueueType) -> None:
        """Raise `ConfigurationError` when queues of the topic are in use as of another type."""
        self.has_special |= queue_type == "BatchCQ"
        in_use = [queue for (name, _), queue in list(self.by_name.items()) if name == topic]
        if any(isinstance(queue, BatchQueue) != (queue_type == "BatchCQ") for queue in in_use):
            raise ConfigurationError(
                f"queues of topic {topic!r} are in use as of another type than {queue_type}: create the topic before "
                "its first queue is used; if it holds no messages, open the store again"
            )

    def take_for_batch(self, topic: str) -> bool:
        """Make a topic BatchCQ because its first record in the log is a batch."""
        is_taken = is_topic(topic) and self._topics.take_for_batch(topic)
        self.has_special |= is_taken
        return is_taken

    def kind_of(self, topic: str) -> QueueKind:
        """What the records of a topic need on their way to units."""
        if topic == SCHEDULE_TOPIC:
            return QueueKind.SCHEDULE
        if self.is_batch(topic):
            return QueueKind.BATCH
        return QueueKind.LIGHT if self.has_light_queues and allows_light(topic) else QueueKind.PLAIN

    def get(self, topic: str, queue_id: int) -> UnitQueue:
        """The queue's units; an empty queue has no files yet."""
        queue = self.by_name.get((topic, queue_id))
        if queue is None:
            queue = self._new(topic, queue_id)
            queue.load(only_newest_file=self.beside_writer)
            if self.beside_writer:  # it may have come, or grown, since the log was looked at
                queue.truncate(self._log.end_offset)
            self.by_name[topic, queue_id] = queue
        return queue

    def restored(self, topic: str, queue_id: int) -> UnitQueue:
        """A queue whose files are known: the caller gives it its state instead of `load`."""
        queue = self.by_name[topic, queue_id] = self._new(topic, queue_id)
        return queue

    def _new(self, topic: str, queue_id: int) -> UnitQueue:
        place = self.root, topic, queue_id, self.files, self.disk
        settings = self._settings
        extends = settings.enable_consume_queue_ext and not is_light(topic)  # as RocketMQ
        if self.is_batch(topic):
            return BatchQueue(*place, self._log, file_size=settings.batch_consume_queue_file_size)
        if extends or (topic, queue_id) in self._extended:
            return ExtendedQueue(
                *place, self._log, file_size=settings.consume_queue_file_size,
                extension_file_size=settings.consume_queue_ext_file_size, extends=extends,
            )  # fmt: skip
        return ConsumeQueue(*place, file_size=settings.consume_queue_file_size)
