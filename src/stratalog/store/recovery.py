"""What a store does when it is opened: find the log's end, then bring the derived files into line with it.

The scan (`log_scan`) meets one of these situations; each has one decision.

    found                                        verdict     decision
    -----------------------------------------    --------    ---------------------------------------------------------
    magic, sizes, log offset and CRC hold        WHOLE       keep, derive queue unit and index items
    the blank record, or too little room for     BLANK       go on in the next file
      one more record
    none of these, no whole record after it      TORN        the log ends here; the bytes after it are zeroed, later
                                                             files removed (stale records must not be resurrected)
    none of these, a whole record after it,      CORRUPT     not a tail: the range is quarantined (left as it is and
      or below what was durable once                         reported), messages after it are served

A blank record with a whole record after it is CORRUPT, too.

The files as a whole are in one of these states; what is refused is refused before a byte is changed.

    found                                        decision
    -----------------------------------------    -------------------------------------------------------------------
    a log file of zeros at the end               it was not begun: it goes
    a log file missing in the middle, or of      refused: the file is named, and what to restore (`commit_log`)
      another size
    a log file in which no queue finds its       refused: two stores are mixed, nobody can tell which is right
      messages
    after the end more than one torn record:     refused (a reader has a damaged range there): a file was replaced by
      whole records of other places, or a later    another, or damaged, and cutting it off would lose it
      file written to its end
    no log, but queues with messages             refused
    no log, but its files in another directory,  refused: directories were exchanged (`opening`)
      or queues in its place
    the log ends before what was durable once    refused: a part of it was taken away
    queue files that were exchanged or renamed,  refused: put back they tell it (`queue_begin`)
      where the log does not tell where the
      queues begin
    a queue that does not find its newest        all queues and the index are built again
      messages; fewer units or index items
      than the seal says; a queue file missing
      in the middle
    newest units, two or more, that lead to      the files are a copy of another queue's: they tell nothing of where
      whole records of another queue               this one ends
    a queue of a light queue's name with an id   no light queue: it has the records whose own queue it is, no others,
      other than 0                                 and no end is kept of it
    log files before those of the clean stop     they were put back: all queues and the index are built again
    newest units that point to after the log's   RocketMQ closed the store with these messages: a damaged range,
      end, two or more                             the queues keep their offsets
    a queue ahead of the log otherwise           cut to the log's end
    a queue file missing or empty at the end     created after the last checkpoint: derived again
    a queue of expired messages alone, which     its files were replaced: it is built again from the log
      had one of the log at the clean stop
    a queue that begins after messages of the    the files in front of it were lost: it is built again
      log, where no seal vouches
    a queue that begins at a message after       the topic was deleted and created again: older messages of it
      others of no smaller queue offset            are not added
    a queue with zeros, or with units that are   it ends there: what follows is built again; where that has no
      not in the log's order                       message in the log, its units tell where the queue ends
    a newest unit that says something else than  it was written in part: it is built again
      its record
    a unit that leads to a whole record, which   it stays, unless another record has its place: the record
      names another place                          was damaged; reading names it, `repair` restores it
    a snapshot that is stale in any way          not trusted: the queues themselves are looked at (`snapshot`)
    an index header that its items deny, a       that file and later ones are built again
      wild count, or, in a file that somebody
      else may have written, items that do not
      lead to those before them
    an index file that was not full at a crash   items below its header are kept, the slots made again from them
    no seal (RocketMQ wrote the store, or the    the whole log is read: units that are there stay, those that are
      checkpoint is lost)                          missing are added (`evidence`)

Every step can be interrupted and run again: nothing but bytes after the log's end is changed in the log, everything
else is derived, and what is derived is vouched for on the way (`rederive`); before all of it is built again the
checkpoint is made to vouch for the log alone, and before units go that alone tell where a queue begins or ends, that is
noted.
The scan begins at the newest record below the seal that a queue knows; without a seal that holds, at the log's
beginning. After a crash damage is looked for in the last three log files too, where RocketMQ may end the log.

Much of the log that nothing vouches for (no seal after a crash, or queues that contradict it) is read once: queues
and index are built of each piece as it is verified. For that the last piece is walked first: whatever is refused is
seen there, and it tells the end that index files and queues are held against. What is after the end goes when all is
built.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np

from stratalog.errors import CorruptData, command
from stratalog.kernels.scan import TRUST, ScanStatus, scan
from stratalog.layout.light import has_other_id
from stratalog.layout.message import queue_offset_limit
from stratalog.layout.names import COMMIT_LOG
from stratalog.layout.queue import is_filler
from stratalog.layout.record import OFFSETS_END
from stratalog.store.batch_queue import BatchQueue
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.commit_log import CommitLog
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.dispatch import (
    CHUNK_RECORDS,
    Dispatcher,
    LeftOut,
    may_be_lost,
)
from stratalog.store.evidence import (
    DELETED_AGAIN,
    RESTORE_LOG,
    UNCOUNTED,
    are_of_another,
    begins_of,
    check_belonging,
    checkpointed,
    drop_torn,
    indexed_end,
    is_in_queue,
    is_taken,
    lacks_newest_file,
    leads_to_record,
    queues_are_intact,
    sealed_start,
)
from stratalog.store.index_file import Index
from stratalog.store.log_scan import Damage as Damage
from stratalog.store.log_scan import LogScan, Span, after_record, is_record
from stratalog.store.queue_begin import QueueBegin, QueueKey, has_place
from stratalog.store.queue_set import UnitQueue
from stratalog.store.rederive import Meter, Rebuild, is_long
from stratalog.store.snapshot import QueueEnd

_PAGE_SIZE = 4096
_CHECKED_FILES = 3
"""`DefaultMessageStore` recovers from so many of the last files on."""
_MISSING_FILES_MAX = 1000
"""Where more would be missing at the log's end, a unit is wrong."""


class Verdict(Enum):
    """What stands at a position of the log; see the table above."""

    WHOLE = "whole"
    BLANK = "blank"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(slots=True)
class Recovery:
    """What opening a store found and did. Offsets are log offsets in bytes."""

    clean: bool
    untouched: bool = False
    """The log was exactly as the clean stop had left it."""
    scanned_from: int = 0
    end_offset: int = 0
    record_count: int = 0
    torn_size: int = 0
    """Bytes of a torn record after the end (0: the log ended with a whole record)."""
    rebuilt: bool = False
    """Queues or index were not as the clean stop had left them: all were derived again from the whole log."""
    quarantined: list[Damage] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    """Whole records that are not in their queue, as their queue offset cannot be."""
    lost_ends: list[QueueEnd] = field(default_factory=list)
    """Queues that knew messages after the log's end, which are lost."""
    notes: list[str] = field(default_factory=list)
    """What else the user should know: a config file whose copy was read, for example."""
    warning: str = ""
    """Why messages that are put from now on may be lost to RocketMQ, and the command that prevents it."""

    def damage_text(self, root: Path) -> str:
        """How many ranges are damaged, and where the first is."""
        count, first = len(self.quarantined), self.quarantined[0].begin
        return f"{root}: damaged ranges in the log: {count:,}, the first at log offset {first:,}"

    def warn_of_damage(self, root: Path) -> None:
        """Say what damage that opening cannot mend means for messages after it."""
        if self.quarantined:
            self.warning = (
                f"{self.damage_text(root)}. Messages after them are kept and served here, also those that are put "
                "now. RocketMQ may end the log at the first one when it starts, and drop all messages after it. To "
                f"keep them for RocketMQ, close the store and run {command('repair', root)}"
            )
        elif self.left_out:
            first = self.left_out[0]
            self.warning = (
                f"{root}: messages that are in no queue, as their queue offset cannot be: {len(self.left_out):,}, the "
                f"first at log offset {first.commit_log_offset:,}, of {first.topic}/{first.queue_id}. RocketMQ may not "
                "serve messages that are put after them. Restore them before you put more: close the store and run "
                f"{command('repair', root)}"
            )


def recover(
    log: CommitLog, dispatcher: Dispatcher, index: Index | None, checkpoint: Checkpoint, *, clean: bool,
    may_be_torn: bool, untouched: bool = False, meter: Meter | None = None, keep: Callable[[], None] = lambda: None,
    damages: Sequence[Damage] = (), noted: Sequence[QueueEnd] = (),
    sealed: Mapping[QueueKey, int] = MappingProxyType({}),
    accept: Callable[[Sequence[QueueEnd]], None] = lambda ends: None,
    invalidate: Callable[[], None] = lambda: None, may_presume: bool = True, beside_writer: bool = False,
) -> Recovery:  # fmt: skip
    """Bring log, queues and index to a common state; the log is ready for appending afterwards.

    `may_be_torn` says that a crash, this or an earlier one, may have kept a record from being written to its end.
    `untouched` says that nothing has been written to the log since the clean stop: nothing stands after its end then.
    `damages` are those that were noted there.
    `keep` is called from time to time while queues and index are built: what is built so far may be made durable and
    vouched for. `accept` is called when nothing will be refused any more, before the first change: with what only units
    tell that are about to go, if any; an opening that was killed `noted` it. `invalidate` is called before what is
    there goes, because it is not what it was vouched for as. Raises `CorruptData` when a part of the log is not there.

    Where much is to be read and nothing vouches for what is derived from it, queues and index follow the walk over the
    log closely, up to an end that is presumed first (not without `may_presume`).

    `beside_writer` says that the store is opened for reading while another process writes it. What the writer has
    dispatched is taken from its queues then, and only what it may not have dispatched from the log.
    """
    meter = meter or Meter()
    seal = checkpoint.seal
    if not untouched:
        check_belonging(log, dispatcher)
    may_lack_files = clean and seal is None and log.files and not log.read_only
    past_end = _leads_past_end(log, dispatcher) if may_lack_files else None
    vouched_end = seal.log_end_offset if seal else closed_end(log, dispatcher) if clean else 0
    torn = drop_torn(log, dispatcher, damages, only_batches=untouched)
    intact = torn is not None and queues_are_intact(log, seal, dispatcher)
    start = log.first_offset
    if intact and beside_writer and not clean:
        start = checkpointed(log, checkpoint)
    elif intact and seal:
        start = sealed_start(log, dispatcher, seal)
    limit = log.end_offset
    walk = LogScan(
        log, start, limit, vouched_end=vouched_end, looks_for_torn=may_be_torn, ends_at=vouched_end if untouched else -1
    )
    found, report = walk.found, Recovery(clean, untouched, start)
    spans: Iterable[Span]
    with walk:
        if may_presume and is_long(start, limit) and not (intact and seal):
            spans, end = walk.spans(), walk.presumed_end()
        else:
            meter.begin("checking the log", start, limit)
            spans, end = _reported(walk.spans(), meter), found.end_offset
        if past_end:
            raise CorruptData(
                f"the store was closed properly, and {past_end.topic}/{past_end.queue_id} points to messages after the "
                f"log's last file, which ends at offset {limit:,}: restore the newest files of {COMMIT_LOG}/. To go on "
                f"without those messages, run {command('repair', log.directory.parent)}: it keeps the queue offsets "
                "that the queues still show",
                path=str(log.directory),
            )
        shows_more = torn and (found.torn_size > 0 or len(torn) > 1)  # a single unit may be damaged
        if clean and end == log.first_offset and (shows_more or _leads_in(dispatcher, log)):
            raise CorruptData(
                f"the store was closed properly, and not one whole record is in its log: {RESTORE_LOG}, and the files "
                "of commitlog/",
                path=str(log.directory),
            )
        told = {}  # by units that are about to go
        if not beside_writer and (not intact or found.quarantined):
            told = {queue: queue.given_end(end) for queue in dispatcher.queues.values()}
            of_batches = ((queue, one) for queue, one in (torn or {}).items() if isinstance(queue, BatchQueue))
            told |= {queue: one.end for queue, one in of_batches if one.record}  # it tells, not the unit
        is_sealed = intact and seal is not None
        gone = {} if beside_writer or untouched else _gone_ends(log, dispatcher, end, clean=clean)
        files = dispatcher.queue_set
        reached = indexed_end(files.root, files.disk) if not untouched else 0  # before these files go
        intact = _load_index(index, log, seal, end, clean=clean, intact=intact, beside_writer=beside_writer)
        before = {(one.topic, one.queue_id): one for one in sorted(noted, key=lambda one: one.given_end)}
        begin = start
        if index and not (intact and index.is_complete):
            begin = max(log.first_offset, min(start, index.resume_offset if intact else 0))
        # Where nothing was touched each queue is as it should be, and ten thousand need not be asked.
        is_asked = not (untouched and intact) or begin < start or start == log.first_offset or bool(torn)
        queues = list(dispatcher.queues.values()) if is_asked else []
        begins, doubtful = begins_of(
            log,
            queues,
            files,
            reads_whole_log=start == log.first_offset,
            sealed=sealed if clean else None,
            indexed_end=reached,
        )
        for one in noted:
            key = one.topic, one.queue_id
            if one.begin and begins.get(key) != one.begin:
                doubtful[key] = QueueBegin(*one.begin)
        for key, known in begins.items():  # the unit that tells it goes: its record looks torn
            if any(damage.begin <= known.commit_log_offset < damage.end for damage in found.quarantined):
                doubtful[key] = known
        for key, begin_at in doubtful.items():  # what is put after the end is the queue's in any case
            doubtful[key] = begin_at._replace(commit_log_offset=min(begin_at.commit_log_offset, end))
        begins |= doubtful
        newest = {queue: queue.newest_units(2) for queue in queues}
        ends = {
            queue: _end_of(
                queue,
                end,
                torn[queue].end if torn and queue in torn else 0,
                max(told.get(queue, 0), gone.get(queue, 0)),
                before,
                begins,
            )
            for queue in queues if not has_other_id(queue.topic, queue.queue_id)
        }  # fmt: skip
        absent = [  # the log tells of which type they are
            QueueEnd(*key, one.given_end, one.known_end, begins.get(key))
            for key, one in before.items()
            if is_asked and key not in dispatcher.queues and not has_other_id(*key)
        ]
        is_ahead = any(one.given_end < one.known_end for one in ends.values())
        newer = max(start, log.first_offset + 1)  # rewinding may drop all units of a queue that begins there
        is_after = any(one.commit_log_offset >= newer for one in begins.values())
        is_told = noted or gone or not (is_sealed and intact) or found.quarantined or torn or is_ahead or is_after
        accept([*ends.values(), *absent] if is_told else [])
        if not intact:
            if index:
                index.clear()
            invalidate()
        first = begin if clean or beside_writer else min(begin, _checked_by_rocketmq(log, end))
        if first < start:  # damage there may have been found by an earlier opening, and is passed over again
            with LogScan(log, first, start, looks_for_torn=may_be_torn) as earlier:
                passed = [(max(one, begin), stop) for one, stop in earlier.spans() if stop > begin]
                spans = itertools.chain(passed, spans)
            report.quarantined += earlier.found.quarantined
        _presume_end(log, end, None if clean else vouched_end)
        kept_end = start
        if intact and not any(damage.begin < vouched_end for damage in report.quarantined + found.quarantined):
            kept_end = end if clean else max(start, vouched_end or checkpointed(log, checkpoint))  # the seal stays true
        dispatcher.displaced = {
            one.record.commit_log_offset for one in (torn or {}).values() if one.is_displaced and one.record
        }
        dispatcher.begins |= begins
        dispatcher.doubtful_begins.update(doubtful)
        for queue in queues:
            is_deleted = _begins_with_deleted(log, queue, begins.get((queue.topic, queue.queue_id)))
            if is_deleted and begin > log.first_offset:
                dispatcher.notes.append(
                    f"{queue.topic}/{queue.queue_id}: its first unit points to a message that is not its own: the "
                    "unit is damaged, the file is another queue's, or the topic was deleted. "
                    f"Run {command('repair', log.directory.parent)}"
                )
            if queue.is_replaced:
                dispatcher.notes.append(
                    f"{queue.topic}/{queue.queue_id}: its units point to expired messages alone, though the log has "
                    "its newest one: its files were replaced. It is built again from the log"
                )
                queue.rewind(0)
            queue.rewind(log.first_offset if is_deleted and begin == log.first_offset else min(kept_end, end))
            if torn is not None and not beside_writer and queue in ends:
                queue.is_kept = partial(_leads_to_record, log, end)
            if queue.is_kept and isinstance(queue, ConsumeQueue):
                queue.is_own = partial(_is_own, log, dispatcher, queue)
        Rebuild(dispatcher, index, begin, end, meter, keep).run(spans)
    for one in absent:
        ends[dispatcher.queue(one.topic, one.queue_id)] = one
    lacks_units = beside_writer and start > log.first_offset and dispatcher.gap_count > 0
    for queue in queues if lacks_units else ():  # the writer's queues lack units, and were filled up
        queue.truncate(log.first_offset)
    if found.end_offset != end or lacks_units:  # a body holds what looks like records
        if index:
            index.clear()
        log.end_offset = limit
        return recover(
            log, dispatcher, index, checkpoint, clean=clean, may_be_torn=may_be_torn, untouched=untouched, meter=meter,
            keep=keep, damages=damages, noted=list(ends.values()), accept=accept, invalidate=invalidate,
            may_presume=False,
        )  # fmt: skip
    _end_log(log, end, is_zeroed=untouched and end == vouched_end)
    report.end_offset, report.record_count, report.torn_size = end, found.record_count, found.torn_size
    report.rebuilt = not intact
    report.quarantined += found.quarantined
    is_cut = report.quarantined or reached > end or lacks_newest_file(log.directory, end, dispatcher.queue_set.disk)
    if is_cut and not clean and not beside_writer:
        dispatcher.notes.append(UNCOUNTED)
    report.left_out = list(dispatcher.left_out.values())
    lacking = {(one.topic, one.queue_id) for one in report.left_out}
    for queue, one in ends.items():  # an offset that was given to a message is never given to another
        is_known = report.quarantined or (queue.topic, queue.queue_id) in lacking
        noted_end = before.get((queue.topic, queue.queue_id))
        given = one.given_end if is_known else noted_end.given_end if noted_end else 0
        given = max(given, gone.get(queue, 0))
        dropped, last = (torn or {}).get(queue), newest.get(queue, [])
        if dropped is None:
            is_told = bool(last and leads_to_record(log, last[0][1])) and not are_of_another(log, queue, last)
        else:  # no crash tore that unit
            is_told = clean or dropped.record is not None
        if is_told and queue.end_offset < one.given_end <= queue_offset_limit(end) and not is_known:
            given = max(given, one.given_end)
            has_record = dropped is None or dropped.record is not None
            led_to = "a message that names another place" if has_record else "a place without a whole record"
            dispatcher.notes.append(
                f"{queue.topic}/{queue.queue_id}: its newest unit pointed to {led_to}. The record was damaged since it "
                f"was put, or the files are another queue's. Offset {one.given_end - 1:,} is not given again here"
            )
        if queue.end_offset < given:
            lost_count, lost_size = given - queue.end_offset, end - log.first_offset
            is_gone, in_batches = given == gone.get(queue), isinstance(queue, BatchQueue)
            if not (queue.last_unit() is None or is_gone or may_be_lost(lost_count, lost_size, in_batches=in_batches)):
                dispatcher.notes.append(
                    f"{queue.topic}/{queue.queue_id}: a damaged unit said that offset {given:,} comes next, more than "
                    f"the log has room for; {queue.end_offset:,} does"
                )
            else:
                is_quiet = log.first_offset and not report.quarantined  # its messages expired
                place, first = (log.first_offset - 1, 2) if is_quiet else _unused_place(log), given - 1
                if one.begin and may_be_lost(given - one.begin[0], lost_size, in_batches=in_batches):
                    first = min(first, one.begin[0])
                queue.keep_end(given, place, first)
    for queue in queues:
        queue.cut()
    led = {
        queue: (one[0][0] + 1, one[0][1][0]) for queue, one in newest.items()
        if one and not is_filler(*one[0][1][1:3])
    }  # fmt: skip
    led |= {queue: one[:2] for queue, one in (torn or {}).items()}
    ahead = [
        one for queue, one in ends.items()
        if (
            queue.end_offset < one.known_end
            and (torn is not None or one.given_end < one.known_end or led.get(queue, (0, -1))[1] >= end)
        )
        or _is_lost(log, queue, *led.get(queue, (0, 0)), end)
    ]  # fmt: skip
    if ahead and not beside_writer:
        report.lost_ends = ahead
        dispatcher.notes.append(
            f"queues that knew messages after the log's end at offset {end:,}: {len(ahead):,}, the first "
            f"{ahead[0].topic}/{ahead[0].queue_id} up to offset {ahead[0].known_end - 1:,}. Unless those units "
            f"are damaged, the messages are lost and their offsets may be given again. {DELETED_AGAIN}"
        )
    return report


def _leads_past_end(log: CommitLog, dispatcher: Dispatcher) -> UnitQueue | None:
    """A queue whose newest units lead to after the log's last file, if that is missing a few: RocketMQ closed the store
    properly, so that these were there. A single unit, or one that leads far away, may be damaged."""
    newest = [(queue, unit) for queue in dispatcher.queues.values() for _, unit in queue.newest_units(2)]
    near = range(log.end_offset, log.end_offset + _MISSING_FILES_MAX * log.file_size)
    past_end = [queue for queue, unit in newest if unit[0] in near and not is_filler(*unit[1:3])]
    return past_end[0] if len(past_end) > 1 else None


def closed_end(log: CommitLog, dispatcher: Dispatcher) -> int:
    """Where the log ended when RocketMQ closed the store properly, if its end was overwritten since: the newest units
    point to after it, two or more, of queues that find their messages before it or begin there. Unless the index leads
    there, too, one queue must find its messages. 0 if not: a unit alone may be damaged."""
    near = range(log.first_offset, log.end_offset)
    newest = [
        (queue, (unit[0], unit[0] + unit[1])) for queue in dispatcher.queues.values()
        for _, unit in queue.newest_units(2) if not is_filler(*unit[1:3]) and unit[0] in near
    ]  # fmt: skip
    if not newest or is_record(log, max(begin for _, (begin, _) in newest)):
        return 0
    end = LogScan(log, log.first_offset, log.end_offset, looks_for_torn=False).run().end_offset
    finds = {queue: _finds_message_before(log, queue, end) for queue, (begin, _) in newest if begin >= end}
    files = dispatcher.queue_set
    if not any(finds.values()) and (end == log.first_offset or indexed_end(files.root, files.disk) <= end):
        return 0
    lost = {unit for queue, unit in newest if finds.get(queue) is not False and end <= unit[0] < unit[1] <= near.stop}
    return max(stop for _, stop in lost) if len(lost) > 1 else 0


def _finds_message_before(log: CommitLog, queue: UnitQueue, commit_log_offset: int) -> bool | None:
    """Whether the queue's newest message before a log offset is where its unit says, or has expired; None without
    one."""
    unit = queue.unit_before(commit_log_offset)
    if unit is None:
        return None
    if is_filler(*unit[1:3]) or unit[0] < log.first_offset:
        return True
    record = leads_to_record(log, unit)
    if record is None:
        return False
    is_batch, number = isinstance(queue, BatchQueue), queue.offset_of(commit_log_offset) - 1
    return is_in_queue(record, queue, record.queue_offset if is_batch else number)


def _begins_with_deleted(log: CommitLog, queue: UnitQueue, begin: QueueBegin | None) -> bool:
    """Whether the first unit of a queue that leads into the log leads to a message of a topic that was deleted."""
    number = queue.min_offset(log.first_offset) if begin else queue.end_offset
    if begin is None or number >= queue.end_offset:
        return False
    unit = queue.unit(number)
    return not is_filler(*unit[1:3]) and begin.is_after(number, unit[0])


def _is_lost(log: CommitLog, queue: UnitQueue, end: int, commit_log_offset: int, log_end: int) -> bool:
    """Whether a queue's newest unit, with which it ended there, led to after the log's end, and nothing but the queue's
    end is kept of it, or a message from before has that offset now: its topic was deleted and created again. Where one
    bit differs that bit was flipped."""
    if commit_log_offset < log_end or not queue.first_offset < end <= queue.end_offset:
        return False
    unit = queue.unit(end - 1)
    return is_filler(unit[1], unit[2]) or (
        leads_to_record(log, unit) is not None and (unit[0] ^ commit_log_offset).bit_count() > 1
    )


def _leads_to_record(log: CommitLog, log_end: int, unit: Sequence[int]) -> bool:
    return unit[0] < log_end and not is_filler(unit[1], unit[2]) and leads_to_record(log, unit) is not None


def _is_own(
    log: CommitLog, dispatcher: Dispatcher, queue: ConsumeQueue, queue_offset: int, unit: Sequence[int], claimed: int
) -> bool:
    """Whether a unit leads to a record that says the same, and was not deleted; the one at log offset `claimed` is left
    out then."""
    record = None if is_filler(unit[1], unit[2]) else leads_to_record(log, unit)
    if record is None or not has_place(record, queue.topic, queue.queue_id, queue_offset):
        return False
    begin = dispatcher.begins.get((queue.topic, queue.queue_id))
    if begin and begin.is_after(queue_offset, unit[0]):
        return False
    dispatcher.displace(LeftOut(claimed, queue.topic, queue.queue_id, queue_offset), unit[0])
    return True


def _gone_ends(log: CommitLog, dispatcher: Dispatcher, log_end: int, *, clean: bool) -> dict[UnitQueue, int]:
    """Where the queues without a message in the log ended by all their units: those after a damaged one, too, and after
    a clean stop those that lead to no place of the log. Nothing is built again there."""
    ends = {}
    for queue in dispatcher.queues.values() if log.first_offset else ():
        newest = queue.last_unit()
        if newest is None or not log.first_offset <= newest[0] < log_end:
            end = queue.given_end(OFFSETS_END if clean else log.first_offset)
            if queue.offset_of(log_end) < end <= queue_offset_limit(log.first_offset):
                ends[queue] = end
            elif newest is None and queue.end_offset:  # its last unit stands for no message, and leads anywhere
                ends[queue] = queue.end_offset
    return ends


def _end_of(
    queue: UnitQueue, log_end: int, torn_end: int, told_end: int, noted: Mapping[QueueKey, QueueEnd],
    begins: Mapping[tuple[str, int], QueueBegin],
) -> QueueEnd:  # fmt: skip
    """Where a queue begins and ends by all that is known of it: its units, one that was dropped, and an earlier
    opening."""
    before = noted.get((queue.topic, queue.queue_id)) or QueueEnd(queue.topic, queue.queue_id, 0, 0)
    given_end = max(queue.offset_of(log_end), torn_end, told_end, before.given_end)
    known_end = max(queue.end_offset, torn_end, before.known_end)
    return QueueEnd(queue.topic, queue.queue_id, given_end, known_end, begins.get((queue.topic, queue.queue_id)))


def _checked_by_rocketmq(log: CommitLog, end_offset: int) -> int:
    """Where the last log files begin, in which RocketMQ ends the log at damage when it starts."""
    newest = (end_offset - 1 - log.first_offset) // log.file_size
    return log.first_offset + max(0, newest + 1 - _CHECKED_FILES) * log.file_size


def _reported(spans: Iterable[Span], meter: Meter) -> Iterable[Span]:
    """All of them, after a walk whose progress was reported."""
    walked = []
    for begin, stop in spans:
        walked.append((begin, stop))
        meter.at(stop)
    return walked


def _load_index(
    index: Index | None, log: CommitLog, seal: Seal | None, end_offset: int, *, clean: bool, intact: bool,
    beside_writer: bool,
) -> bool:  # fmt: skip
    """Load the index files; returns whether they and all else are intact."""
    if index:
        vouched_end = seal.log_end_offset if seal else 0
        is_vouched = beside_writer or (clean and vouched_end == end_offset)
        index.load(end_offset, clean=clean, checked_from=end_offset if is_vouched else vouched_end)
        is_open = beside_writer and seal is None  # its writer builds what is missing
        is_intact = is_open or _index_is_intact(seal, index, log, end_offset, clean=clean)
        intact = intact and is_intact and _is_of_log(log, index)
    return intact


def is_intact(
    log: CommitLog, dispatcher: Dispatcher, index: Index | None, seal: Seal | None, damages: Sequence[Damage],
    end_offset: int,
) -> bool:  # fmt: skip
    """Whether `recover` would leave queues and index of a store that was closed properly as they are. What was loaded
    is good for nothing else afterwards."""
    torn = drop_torn(log, dispatcher, damages, only_batches=False)
    intact = torn is not None and queues_are_intact(log, seal, dispatcher)
    return _load_index(index, log, seal, end_offset, clean=True, intact=intact, beside_writer=False)


def _unused_place(log: CommitLog) -> tuple[int, int]:
    """A place without a message for the units of a queue that lost all it had: over the end of a log file, before all
    that will be put. RocketMQ passes over it, and over what else lies in that file. It reaches further than that of
    expired messages."""
    return max(0, (int(log.files[-1].path.name) if log.files else 0) - 1), 3


def _presume_end(log: CommitLog, end_offset: int, vouched_end: int | None) -> None:
    """What is made durable while queues and index are built ends there. After a crash nothing after `vouched_end` is
    known to be on the disk."""
    log.end_offset = end_offset
    if vouched_end is not None:
        log.durable_offset = min(max(log.first_offset, vouched_end), end_offset)
        if vouched_end and not log.read_only:
            _write_again(log, log.durable_offset, end_offset)


def _end_log(log: CommitLog, end_offset: int, *, is_zeroed: bool) -> None:
    """Let the log end where its records do."""
    durable_offset = min(log.durable_offset, end_offset)
    log.end_at(end_offset, is_zeroed=is_zeroed)
    log.durable_offset = durable_offset


def _write_again(log: CommitLog, begin: int, end: int) -> None:
    """Let the system write these pages once more at the next flush: where a flush failed it takes them for written,
    though the disk may have something else. (Without a checkpoint this would be the whole log: it is left out.)"""
    for file, first, stop, _ in log.extents(begin, end):
        pages = file.view[first:stop:_PAGE_SIZE]
        pages[:] = pages.copy()


def _index_is_intact(seal: Seal | None, index: Index, log: CommitLog, end_offset: int, *, clean: bool) -> bool:
    """The same for the index. After a crash some items are missing at its end; in the middle none may."""
    if clean and seal and seal.log_end_offset == end_offset:
        return index.item_count == seal.index_item_count
    begin, with_tags = log.first_offset, index.with_tags and seal is not None  # RocketMQ 5.3 leaves them out
    for file in index.files:
        if _holds_keys(log, index, begin, file.begin_commit_log_offset, with_tags=with_tags):
            return False
        if log.first_offset <= file.end_commit_log_offset < log.end_offset:
            begin = after_record(log, file.end_commit_log_offset)
    return True


def _leads_in(dispatcher: Dispatcher, log: CommitLog) -> bool:
    """Whether the newest unit of a queue leads into the log."""
    newest = (queue.last_unit() for queue in dispatcher.queues.values())
    return any(unit and unit[0] >= log.first_offset for unit in newest)


def _is_of_log(log: CommitLog, index: Index) -> bool:
    """Whether the first and last items of the index files lead to records, damaged or not, and the files' headers have
    the times of these: a query passes over files of other times. No record has a time of 0 or less but by damage."""
    return not any(
        0 < log.message(offset).store_timestamp != timestamp if is_record(log, offset) else is_taken(log, offset)
        for file in index.files if file.next_item > 1
        for offset, timestamp in (
            (file.begin_commit_log_offset, file.begin_timestamp), (file.end_commit_log_offset, file.end_timestamp),
        )
        if log.first_offset <= offset < log.end_offset
    )  # fmt: skip


def _holds_keys(log: CommitLog, index: Index, begin: int, end: int, *, with_tags: bool) -> bool:
    """Whether any record of [begin, end) should be in the index."""
    positions, sizes = np.empty(CHUNK_RECORDS, np.int64), np.empty(CHUNK_RECORDS, np.int32)
    for file, position, stop, base in log.extents(begin, min(end, log.end_offset)):
        status = int(ScanStatus.FULL)
        while status == ScanStatus.FULL:
            count, position, status = scan(file.address, position, stop, base, TRUST, positions, sizes)
            if count and index.has_keys(file.address, positions, count, base, with_tags=with_tags):
                return True
    return False
