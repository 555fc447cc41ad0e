"""Which messages stood in damaged ranges of the log: by the queue units that still point there, and by the numbers that
are missing between whole records of a queue."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData
from stratalog.layout.loosejson import decode_loose_json
from stratalog.layout.message import HEAD, MAGIC_V2, TOPIC_LENGTH_V1, decode_record
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONFIG, CONSUME_QUEUE, LMQ_PREFIX, offset_of
from stratalog.layout.queue import LOST_TAGS_CODE, UNIT, fillers
from stratalog.layout.sysflag import HOSTS_MASK, enters_queue
from stratalog.store.disk import Disk
from stratalog.store.recovery import Damage
from stratalog.tools.repair_fill import Cover, LostMessage
from stratalog.tools.survey import FileSurvey
from stratalog.tools.verify_files import queue_directories

_GATHER_COUNT = 1 << 14
_SOMEWHERE = -1
"""Place of a lost message whose unit was made by recovery."""
_NUMBERS_MAX = 1 << 20
"""A jump of queue offsets by more is no damage of ours."""
QueueKey = tuple[str, int]


@dataclass(slots=True)
class _Queue:
    """What whole records say of one queue: its last record so far, and the jumps between them."""

    next_number: int
    end_offset: int
    first_number: int
    first_offset: int
    jumps: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Missing numbers [first, end), and the log offsets between which their records stood."""


class LostMessages:
    """Takes the log in order and says, for each damage, which messages were in it.

    Only ordinary queues are numbered record by record: of batch topics and light queues nothing is said.
    """

    def __init__(self, root: Path, damages: Sequence[Damage], disk: Disk) -> None:
        self._damages = damages
        self._begins = np.array([damage.begin for damage in damages], np.int64)
        self._ends = np.array([damage.end for damage in damages], np.int64)
        self._unnumbered = batch_topics(root, disk)
        self._units = dict(self._units_into_damage(root, disk)) if damages else {}
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self.behind_count = 0
        """Whole records behind the first damage."""

    def take(self, survey: FileSurvey) -> None:
        """The whole records of the next file."""
        if not len(survey.positions) or not self._damages:
            return
        self.behind_count += int(np.count_nonzero(survey.positions + survey.base_offset > self._begins[0]))
        assert survey.file is not None
        data = survey.file.map
        for begin in range(0, len(survey.positions), _GATHER_COUNT):
            positions = survey.positions[begin : begin + _GATHER_COUNT]
            heads = survey.file.view[positions[:, None] + np.arange(HEAD.size)].view(HEAD.dtype)[:, 0]
            self._take_heads(data, positions, heads, survey.base_offset)

    def _take_heads(self, data: Any, positions: NDArray[np.int64], heads: NDArray[np.void], base: int) -> None:
        columns = (
            heads[name].tolist()
            for name in ("queue_id", "queue_offset", "sys_flag", "magic", "body_size", "total_size")
        )
        for position, queue_id, number, sys_flag, magic, body_size, size in zip(
            positions.tolist(), *columns, strict=True
        ):
            if sys_flag & HOSTS_MASK or magic == MAGIC_V2:
                topic = decode_record(data[position : position + size], verify=False).topic
            else:
                at = position + HEAD.size + body_size
                topic = data[at + TOPIC_LENGTH_V1.size : at + TOPIC_LENGTH_V1.size + data[at]]
            if enters_queue(sys_flag):
                self._take_record(topic, queue_id, number, base + position, size)

    def _take_record(self, topic: bytes, queue_id: int, number: int, offset: int, size: int) -> None:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            self._queues[topic, queue_id] = _Queue(number + 1, offset + size, number, offset)
            return
        if queue.next_number < number <= queue.next_number + _NUMBERS_MAX:
            queue.jumps.append((queue.next_number, number, queue.end_offset, offset))
        queue.next_number = max(queue.next_number, number + 1)
        queue.end_offset = offset + size

    def _units_into_damage(self, root: Path, disk: Disk) -> Iterator[tuple[QueueKey, dict[int, int]]]:
        """For each queue: log offsets, by queue offset, of the units that point into a damage or stand for a lost
        message."""
        for topic, queue_id, directory in queue_directories(root, CONSUME_QUEUE, disk):
            if topic in self._unnumbered or topic.startswith(LMQ_PREFIX):
                continue
            found: dict[int, int] = {}
            for name, size in disk.files(directory).items():
                start = offset_of(name)
                if start is not None and size >= UNIT.size:
                    self._add_units(directory / name, start // UNIT.size, found)
            if found:
                yield (topic, queue_id), found

    def _add_units(self, path: Path, first: int, found: dict[int, int]) -> None:
        units = np.fromfile(path, UNIT.dtype)
        offsets, sizes = units["commit_log_offset"].astype(np.int64), units["size"].astype(np.int64)
        number = np.searchsorted(self._begins, offsets, side="right") - 1
        inside = (number >= 0) & (sizes > 0) & ~fillers(units) & (offsets < self._ends[np.maximum(number, 0)])
        for unit in np.flatnonzero(inside).tolist():
            found[first + unit] = int(offsets[unit])
        for unit in np.flatnonzero(units["tags_code"] == LOST_TAGS_CODE).tolist():
            found[first + unit] = _SOMEWHERE

    def by_damage(self) -> dict[Damage, list[LostMessage]]:
        """What was in each damage, in the order of queues and their offsets. Call it when the whole log was taken."""
        lost: dict[Damage, list[LostMessage]] = {damage: [] for damage in self._damages}
        room = {damage: damage.end - damage.begin for damage in self._damages}
        names = {(topic.decode("utf-8", "replace"), queue_id): (topic, queue_id) for topic, queue_id in self._queues}
        for key in sorted(set(names) | set(self._units)):
            if key[0] in self._unnumbered:
                continue
            queue, units = self._queues.get(names.get(key, (b"", -1))), self._units.get(key, {})
            for number, damages in self._of_queue(queue, units):
                message = LostMessage(*key, number)
                at = units.get(number, _SOMEWHERE)  # without a place: where there is room, in order
                choice = [d for d in damages if (at < d.end if at >= 0 else room[d] >= Cover.room_for(message))]
                chosen = (choice or damages[-1:])[0]
                lost[chosen].append(message)
                room[chosen] -= Cover.room_for(message)
        return lost

    def _of_queue(self, queue: _Queue | None, units: dict[int, int]) -> Iterator[tuple[int, list[Damage]]]:
        """Numbers that are missing, and the damages that each may have been in."""
        spans = list(queue.jumps) if queue else []
        in_front = [n for n, at in units.items() if at >= 0 and (queue is None or n < queue.first_number)]
        behind = [number for number in units if queue and number >= queue.next_number]
        if in_front:
            first, end = min(in_front), queue.first_number if queue else max(in_front) + 1
            spans.append((first, end, 0, queue.first_offset if queue else int(self._ends[-1])))
        if behind and queue:
            spans.append((queue.next_number, max(behind) + 1, queue.end_offset, int(self._ends[-1])))
        for first, end, begin_offset, end_offset in sorted(spans):
            damages = [d for d in self._damages if begin_offset <= d.begin and d.end <= end_offset]
            for number in range(first, end) if damages and end - first <= _NUMBERS_MAX else ():
                yield number, damages


def batch_topics(root: Path, disk: Disk) -> set[str]:
    """Topics whose queues are BatchConsumeQueues, by their directories and by the configuration."""
    topics = set(disk.directories(root / BATCH_CONSUME_QUEUE))
    content = disk.read(root / CONFIG / "topics.json")
    try:
        table = decode_loose_json(content)["topicConfigTable"] if content else {}
        topics |= {
            str(name) for name, config in table.items() if config.get("attributes", {}).get("queue.type") == "BatchCQ"
        }
    except (CorruptData, KeyError, TypeError, AttributeError):
        pass
    return topics
