"""The part of `verify` for queues whose units do not stand for one record of their own each: batch and light queues.

What the log calls for is collected while it is walked, and compared with the files at the end.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from stratalog.errors import counted
from stratalog.layout.batch import batch_size_of
from stratalog.layout.javahash import string_hash
from stratalog.layout.light import LIGHT_QUEUE_ID, is_light, is_sent_to, light_places
from stratalog.layout.message import Record
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, offset_name, offset_of
from stratalog.layout.properties import TAGS, find_property
from stratalog.layout.queue import (
    BATCH_COMPACTED_OFFSET,
    BATCH_UNIT,
    LOST_TAGS_CODE,
    UNIT,
    fillers,
    is_extension_address,
)
from stratalog.layout.record import Layout
from stratalog.store.disk import PrivateDisk
from stratalog.store.dispatch import may_be_lost
from stratalog.store.queue_begin import QueueBegin, QueueKey
from stratalog.tools.batches import contradiction_of
from stratalog.tools.verify_report import REPAIR, Problem, Unreadable, VerifyReport

Units = np.ndarray[tuple[int], np.dtype[np.void]]


class _Expected:
    """The units that the log calls for in one queue, and where they stand.

    `numbers` are their places in the queue: the queue offset for a light queue. A batch queue's units stand one after
    the other, wherever the first file begins: they are found by their log offset.
    """

    def __init__(self, directory: Path, layout: Layout) -> None:
        self.directory = directory
        self.layout = layout
        self.numbers: list[int] = []
        self.units = bytearray()
        self.begin: QueueBegin | None = None
        self.end = self.newest = 0
        """The queue offset after the last unit's, and that unit's log offset."""
        self.ends = {True: 0, False: 0}
        """Of a light queue: the highest end of messages that were sent to it, and of those that name it."""
        self.left_out: list[int] = []
        """Log offsets of the records whose place another one has."""


def retagged(expected: Units, stored: Units) -> dict[int, bool]:
    """Log offsets that units lead to as they should, with another tags code; and whether the record was changed: then
    the unit is not one bit off, nor has it zeros instead."""
    is_told = ~fillers(stored)
    for name in ("commit_log_offset", "size"):
        is_told &= stored[name] == expected[name]
    told = np.flatnonzero(is_told & (stored["tags_code"] != expected["tags_code"])).tolist()
    pairs = ((int(stored["tags_code"][at]), int(expected["tags_code"][at])) for at in told)
    return dict(zip(stored["commit_log_offset"][told].tolist(), map(_is_of_record, pairs), strict=True))


def _is_of_record(tags_codes: tuple[int, int]) -> bool:
    stored, expected = (code & (1 << 64) - 1 for code in tags_codes)
    parts = {expected & mask for bits in range(0, 64, 8) for mask in ((1 << bits) - 1, -1 << bits)}
    is_of_unit = (stored ^ expected).bit_count() == 1 or stored in parts or is_extension_address(tags_codes[0])
    return not is_of_unit


def passed_over_step(queue_offset: int) -> str:
    """What to do about a record that its queue does not lead to, as it has other messages there."""
    step = "let `stratalog repair STORE` restore the record that is wrong, or set it aside"
    if not queue_offset:
        step += (
            "; if the topic was deleted and created again, restore the files of the queue from a copy: they alone tell "
            "its messages from the deleted ones"
        )
    return step


class SpecialQueues:
    """Batch queues and light queues: takes the records that need more than a kernel does, in the log's order."""

    def __init__(
        self, root: Path, disk: PrivateDisk, report: VerifyReport, begins: Mapping[QueueKey, QueueBegin]
    ) -> None:  # fmt: skip
        self._root, self._disk, self._report, self._begins = root, disk, report, begins
        self._queues: dict[tuple[str, int], _Expected] = {}
        self.retagged: dict[int, bool] = {}

    def expect(self, topic: str, queue_id: int) -> None:
        """Look at this queue's files though the log may call for nothing in it."""
        self._queue(topic, queue_id, UNIT if is_light(topic) else BATCH_UNIT)

    def take_batch(
        self, topic: str, record: Record, path: str, position: int, next_offset: Callable[[], int | None]
    ) -> None:
        """A record of a batch topic, in a file of the log at a position; `next_offset` tells the offset of the
        next one in its queue. The dispatcher leaves out what is left out here."""
        queue = self._queue(topic, record.queue_id, BATCH_UNIT)
        if self._is_deleted(queue, record.queue_offset, record):
            return
        size, _ = batch_size_of(record.sys_flag, record.properties, record.queue_offset)
        if contradiction := contradiction_of(record):
            self._report.add(
                Problem(
                    "log", path, position, f"a message or a batch of {topic}/{record.queue_id}",
                    f"a record that contradicts itself: {contradiction}", "let `stratalog repair STORE` restore the "
                    "record or set it aside; as it is, its messages are not served",
                )
            )  # fmt: skip
        ahead, lost_size = record.queue_offset - queue.end, record.commit_log_offset - queue.newest
        following = next_offset() if ahead > 0 else None
        is_contradicted = following is not None and queue.end <= following < record.queue_offset + size
        is_near = not queue.numbers or may_be_lost(ahead, lost_size, in_batches=True)
        if ahead < 0 or is_contradicted or not is_near:
            self._report.add(
                Problem(
                    "log", path, position, f"an offset near {queue.end:,} in queue {topic}/{record.queue_id}",
                    f"{record.queue_offset:,}; its messages are not in their queue",
                    passed_over_step(record.queue_offset),
                )
            )  # fmt: skip
            return
        self._take_gap((topic, record.queue_id), queue, record.queue_offset, record.queue_offset + size, record)
        queue.numbers.append(len(queue.numbers))
        queue.units += BATCH_UNIT.pack(
            record.commit_log_offset, record.total_size, _tags_code(record), record.store_timestamp,
            record.queue_offset, size, BATCH_COMPACTED_OFFSET, 0,
        )  # fmt: skip

    def take_light(self, record: Record, path: str, position: int) -> None:
        """A record that may be in light queues, in a file of the log at a position."""
        places, problems = light_places(record.topic, record.properties, record.commit_log_offset)
        self._report.notes += [f"log offset {record.commit_log_offset:,}: {problem}" for problem in problems]
        for topic, queue_offset in places:
            self.take_own(topic, queue_offset, record, path, position)

    def take_own(self, topic: str, queue_offset: int, record: Record, path: str, position: int) -> None:
        """A record stands in a light queue at an offset."""
        queue, is_own = self._queue(topic, LIGHT_QUEUE_ID, UNIT), is_sent_to(topic, record.topic)
        if self._is_deleted(queue, queue_offset, record):
            return
        if not queue.numbers or queue_offset > queue.numbers[-1]:
            self._take_gap((topic, LIGHT_QUEUE_ID), queue, queue_offset, queue_offset + 1, record)
            queue.numbers.append(queue_offset)
            queue.units += UNIT.pack(record.commit_log_offset, record.total_size, _tags_code(record))
        else:
            queue.left_out.append(record.commit_log_offset)
            if queue_offset < queue.ends[is_own]:
                self._report.add(
                    Problem(
                        "log", path, position, f"offset {queue.end:,} or a later one in queue {topic}/{LIGHT_QUEUE_ID}",
                        f"{queue_offset:,}, though a record before it has that or a later one; the message is not in "
                        "that queue", passed_over_step(queue_offset),
                    )
                )  # fmt: skip
        queue.ends[is_own] = max(queue.ends[is_own], queue_offset + 1)

    def _take_gap(self, key: tuple[str, int], queue: _Expected, first: int, end: int, record: Record) -> None:
        """The next record of a queue has the offsets [first, end)."""
        if queue.numbers:
            self._report.add_missing(key, queue.end, first, queue.newest, record.commit_log_offset)
        else:
            self._report.add_missing_in_front(key, first, record.commit_log_offset)
        queue.end, queue.newest = end, record.commit_log_offset

    def _is_deleted(self, queue: _Expected, queue_offset: int, record: Record) -> bool:
        """Whether a record is of an earlier topic of the queue's name."""
        begin = queue.begin
        is_deleted = begin and begin.is_after(queue_offset, record.commit_log_offset)
        self._report.deleted_count += bool(is_deleted)
        return bool(is_deleted)

    def _queue(self, topic: str, queue_id: int, layout: Layout) -> _Expected:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            tree = BATCH_CONSUME_QUEUE if layout is BATCH_UNIT else CONSUME_QUEUE
            queue = self._queues[topic, queue_id] = _Expected(self._root / tree / topic / str(queue_id), layout)
            queue.begin = self._begins.get((topic, queue_id))
        return queue

    def finish(self) -> None:
        """Compare what was collected with what stands in the files."""
        report = self._report
        for (topic, queue_id), queue in sorted(self._queues.items()):
            if queue.left_out:
                report.notes.append(
                    f"messages whose offset in {topic}/{queue_id} another one has: {len(queue.left_out):,}, the first "
                    f"at log offset {queue.left_out[0]:,}; they are only in their own queues"
                )
            counts = report.queue_count, report.unit_count, report.units_behind, report.gone_count
            found = self._compare((topic, queue_id), queue)
            if found and report.is_live:  # a writer may have been writing there: what is wrong is so twice
                report.queue_count, report.unit_count, report.units_behind, report.gone_count = counts
                places = {(problem.path, problem.position) for problem in found}
                again = self._compare((topic, queue_id), queue)
                found = [problem for problem in again if (problem.path, problem.position) in places]
            for problem in found:
                report.add(problem)

    def _compare(self, key: tuple[str, int], queue: _Expected) -> list[Problem]:
        """A unit is found by what it says, so of a queue with a file that cannot be read nothing can be told."""
        report, layout, name = self._report, queue.layout, f"{key[0]}/{key[1]}"
        self._found: list[Problem] = []
        stored, places = self._stored(queue)
        if report.is_unreadable_in(queue.directory):
            return []
        report.queue_count += 1
        real = (stored["size"] != 0) & ~fillers(stored)
        if layout is BATCH_UNIT:  # what stands in a light queue stands in another one, too
            gone = stored[real & (stored["commit_log_offset"] < report.log_begin)]
            report.gone_count += int(np.maximum(gone["batch_size"], 1).sum())
        real &= stored["commit_log_offset"] >= report.log_begin
        if not report.clean:
            offsets = stored["commit_log_offset"]
            lost = np.flatnonzero(real & (offsets >= report.log_end) & ~report.are_in_damage(offsets))
            if lost.size:
                offset = int(stored["commit_log_offset"][lost[0]])
                what = f"{counted(lost.size, 'unit')} of queue {name} for log offset {offset:,} and later"
                report.add_lost("queue", *self._place(queue, int(places[lost[0]])), what)
            real[lost] = False
        known: dict[int, list[int]] = {}
        for at in np.flatnonzero(real).tolist():
            known.setdefault(int(stored["commit_log_offset"][at]), []).append(at)
        expected: Units = np.frombuffer(queue.units, layout.dtype)
        newest, before = max(known, default=-1), -1
        firsts, counts = _numbers(layout, stored, places)
        end = int((firsts + counts)[stored["size"] != 0].max(initial=0))
        needed, _ = _numbers(layout, expected, np.array(queue.numbers, np.int64) * layout.size)
        for number, first, unit in zip(queue.numbers, needed.tolist(), expected, strict=True):
            found = known.get(int(unit["commit_log_offset"]), [])
            report.unit_count += 1
            if not found and not report.clean and unit["commit_log_offset"] > newest and first >= end:
                report.units_behind += 1
            elif not found:
                following = places[before + 1] if before + 1 < len(places) else 0
                place = number * layout.size if layout is UNIT else following
                self._add(queue, place, f"a unit of queue {name} for log offset {unit['commit_log_offset']:,}", "none")
            else:
                at = found.pop(0)
                misplaced = at < before if layout is BATCH_UNIT else places[at] != number * layout.size
                if stored[at] != unit:
                    self.retagged |= retagged(unit.reshape(1), stored[at : at + 1])
                if stored[at] != unit or misplaced:
                    where = "another place for " if stored[at] == unit else ""
                    self._add(queue, places[at], f"{where}{unit} in queue {name}", str(stored[at]))
                before = max(before, at)
        for offset, others in known.items():
            for at in [] if report.in_damage(offset) else others:
                what = f"nothing in queue {name}: the log has no such message, or its unit is there already"
                self._add(queue, places[at], what, str(stored[at]))
        if layout is BATCH_UNIT:
            self._check_run(name, queue, stored, places)
        if not report.is_live:
            self._report_lost(key, queue, stored, places)
        return self._found

    def _report_lost(self, key: tuple[str, int], queue: _Expected, stored: Units, places: Any) -> None:
        """Units of lost messages after a queue's newest message. (Elsewhere the next record tells.)"""
        firsts, counts = _numbers(queue.layout, stored, places)
        newest, end = stored["commit_log_offset"], queue.end
        lost = (stored["tags_code"] == LOST_TAGS_CODE) & (newest >= self._report.log_begin) & (firsts >= end)
        if lost.any():
            self._report.add_missing(
                key, int(firsts[lost].min()), int((firsts + counts)[lost].max()), int(newest[lost].min())
            )

    def _check_run(self, name: str, queue: _Expected, stored: Units, places: Any) -> None:
        """A batch queue's units follow each other without a hole, in the file and in the queue, and lost messages are
        those between their neighbours: nothing else says where they are."""
        written = np.flatnonzero(stored["size"])
        for at in np.flatnonzero(stored["size"][: written[-1] if written.size else 0] == 0).tolist():
            self._add(queue, places[at], f"a unit of queue {name}, as further units follow", "zeros")
        begins = stored["base_offset"][written].astype(np.int64)
        ends = begins + stored["batch_size"][written]
        low, high = np.append(0, ends[:-1]), np.append(begins[1:], 2**63 - 1)
        wrong = fillers(stored[written]) & ((begins < low) | (begins >= ends) | (ends > high))
        for at in written[wrong].tolist():
            self._add(
                queue, places[at], f"offsets of lost messages in queue {name} between its neighbours'", str(stored[at])
            )
        for at in np.flatnonzero(begins[1:] != ends[:-1]).tolist():
            what = f"a unit of queue {name} for offset {ends[at]:,}, after which the one before it ends"
            self._add(queue, places[written[at + 1]], what, f"that of offset {begins[at + 1]:,}")

    def _stored(self, queue: _Expected) -> tuple[Units, Any]:
        """All units in the files, and where each stands in the queue (bytes)."""
        pieces, places = [np.zeros(0, queue.layout.dtype)], [np.zeros(0, np.int64)]
        for name, size in self._disk.files(queue.directory).items():
            start = offset_of(name)
            if start is None or not size:
                continue
            try:
                with closing(self._disk.open(queue.directory / name)) as file:  # not mapped: read anew each time
                    data = file.read(0, size)
            except Unreadable:
                continue
            units: Units = np.frombuffer(data, queue.layout.dtype, len(data) // queue.layout.size)
            pieces.append(units)
            places.append(start + np.arange(len(units)) * queue.layout.size)
        return np.concatenate(pieces), np.concatenate(places)

    def _place(self, queue: _Expected, place: int) -> tuple[str, int]:
        sizes = [size for size in self._disk.files(queue.directory).values() if size]
        start = place - place % sizes[0] if sizes else 0
        return str(queue.directory / offset_name(start)), int(place - start)

    def _add(self, queue: _Expected, place: int, expected: str, found: str) -> None:
        self._found.append(Problem("queue", *self._place(queue, place), expected, found, REPAIR))


def _numbers(layout: Layout, stored: Units, places: Any) -> tuple[Any, Any]:
    """The queue offsets of units, and how many messages each has."""
    if layout is BATCH_UNIT:
        return stored["base_offset"].astype(np.int64), stored["batch_size"].astype(np.int64)
    return places // layout.size, np.ones(len(stored), np.int64)


def _tags_code(record: Record) -> int:
    return string_hash(find_property(record.properties, TAGS.encode()) or "")
