"""What is wrong with a store, what a repair would do about it, what would be lost: worked out before a byte changes.

found                                            what is done
---------------------------------------------    ---------------------------------------------------------------
log file shorter than the others                 extended with zeros; what it lost is a damaged range
log file longer than the others                  the bytes over its size are set aside and cut off
log file missing in the middle                   made again, empty: all of it is a damaged range
no file of a log in the log's directory          moved to stratalog-quarantine
record in a damaged range whose unit, neighbours restored: the fields that are known are written
or other fields say what it was, body sound
whole record in the wrong place of a queue, by   the same
its unit and its neighbours
whole record that says it has another one's      the same as a damaged range: nobody knows which of the two
place, and nothing says which of them is right   is wrong, so none is moved
blank record (the mark of a file's end) in front  a damaged range up to the next whole record, or to the
of whole records, or where units lead to a       file's end
message
rest of a damaged range                          bytes set aside, range covered by records (see repair_fill)
bytes after the log's end                        set aside and zeroed; messages that units still lead to leave
                                                 placeholders, so that no offset is given twice
configuration unreadable, its backup readable    the backup takes its place
configuration unreadable, and so is its backup   both are set aside: the broker begins without
topic of type BatchCQ without an entry in        entered, with as many queues as there are
topics.json
what a killed process left                       removed
queues, index or checkpoint not as the log       rebuilt
says or behind it, or the log was changed
"""

import os
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, StoreLocked, StoreUnavailable
from stratalog.kernels.scan import TRUST, ScanStatus, scan
from stratalog.layout.light import LIGHT_QUEUE_ID, Place, is_light, light_places
from stratalog.layout.message import BLANK, HEAD, LOST_FLAG, Record, decode_record
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONFIG,
    CONSUME_QUEUE,
    QUARANTINE,
    is_topic,
    offset_name,
    offset_of,
)
from stratalog.layout.queue import BATCH_UNIT, LOST_TAGS_CODE, UNIT
from stratalog.layout.record import OFFSETS_END
from stratalog.layout.recordcrc import has_record_crc
from stratalog.layout.sysflag import enters_queue
from stratalog.store.config_files import TOPICS
from stratalog.store.disk import PrivateDisk, queue_directories
from stratalog.store.dispatch import LeftOut
from stratalog.store.log_scan import misnamed_files
from stratalog.store.opening import check_path, stamps
from stratalog.store.os_errors import refusing
from stratalog.store.queue_begin import QueueBegin, QueueKey, has_place, written_units
from stratalog.store.recovery import Damage
from stratalog.store.sizes import noted_sizes, sized, unconfirmed
from stratalog.store.topics import Topics
from stratalog.tools.batches import of_unknown_type, of_wrong_type
from stratalog.tools.evidence import Evidence
from stratalog.tools.mending import claim_of
from stratalog.tools.own_files import free_name, refuse_if_locked, refuse_links, refuse_misplaced
from stratalog.tools.rebuild import rebuild_settings
from stratalog.tools.repair_actions import CHANGES_LOG, Action
from stratalog.tools.repair_files import lost_config, plan_files
from stratalog.tools.repair_fill import SMALLEST, Cover, LostMessage, in_log_order
from stratalog.tools.repair_lost import Judge
from stratalog.tools.survey import CHUNK_RECORDS, CUT, WILD, DamageJoin, survey_log
from stratalog.tools.unqueued import LogRange, known_end
from stratalog.tools.verify import Progress, verify
from stratalog.tools.verify_files import is_under_repair, may_be_torn, no_record_step, record_at
from stratalog.tools.verify_report import VerifyReport

TAIL = "TAIL"
_FOREVER = 2**62
_CHUNK_SIZE = 1 << 20


@dataclass(slots=True)
class RepairPlan:
    """What `repair` will do, in order. Without actions there is nothing to repair."""

    root: Path
    settings: StoreSettings
    report: VerifyReport
    actions: list[Action] = field(default_factory=list)
    guessed_sizes: Collection[str] = ()
    """Settings of sizes that one file alone shows."""
    whole_count: int = 0
    """Records that are kept, restored ones among them; what earlier repairs made is no message, here and below."""
    message_count: int = 0
    """Messages in queues that are kept, those of a batch counted one by one."""
    mended_count: int = 0
    """Records that are restored."""
    lost: list[LostMessage] = field(default_factory=list)
    """Messages that cannot be read and that are known by topic, queue and offset."""
    lost_places: list[Place] = field(default_factory=list)
    """Places in light queues that are lost though the message is not: its record is kept, or `unplaced`."""
    damaged_properties: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Places, like `missing`, of records that are kept though damage begins in their properties."""
    missing: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Topic, queue id and offsets [first, end) that no record has, restored or lost, though no damage explains it."""
    gone_count: int = 0
    """Messages before the log's first file that queues still name: removed by retention, or with a lost file."""
    unplaced: list[LeftOut] = field(default_factory=list)
    """Whole records that are set aside, with the places that they name, as those are not known to be theirs; none of
    `lost` stands for one."""
    behind_count: int = 0
    """Whole records after the first damage, which RocketMQ would drop and which stay."""
    known_end: int = 0
    """Log offset that the log once reached, by checkpoint, snapshot or index, if it ends before it now; else 0."""
    begins: dict[QueueKey, QueueBegin] = field(default_factory=dict)
    """Where the queues begin whose first message stands in a range that is covered: placeholders come there."""
    stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Size and modification time of the log's files when this was worked out."""
    unmended: list[str] = field(default_factory=list)
    """What no repair can mend."""
    scanned_size: int = 0
    """Bytes of damaged ranges that were read, as often as they were."""

    @property
    def lost_count(self) -> int:
        """Messages lost, at least: one may be in `lost` for its own queue and again for each light queue of its."""
        light = Counter(message.topic for message in self.lost if is_light(message.topic))
        light.update(name for message in self.lost for name, _ in message.places)
        known = sum(message.message_count for message in self.lost if not is_light(message.topic))
        return max(known, *light.values(), 0)

    @property
    def lost_ranges(self) -> list[tuple[str, int, int, int]]:
        """Topic, queue id and offsets [first, end) that are lost: those of messages, and places in light queues."""
        return [*(place for message in self.lost for place in message.all_places), *self.lost_light_ranges]

    @property
    def lost_light_ranges(self) -> list[tuple[str, int, int, int]]:
        """The latter alone."""
        return [(name, LIGHT_QUEUE_ID, number, number + 1) for name, number in self.lost_places]

    @property
    def changes_log(self) -> bool:
        """Whether files of the log are changed, made or moved."""
        return any(action.kind in CHANGES_LOG or action.path.startswith(COMMIT_LOG) for action in self.actions)


def plan_repair(
    root: str | os.PathLike[str], *, settings: StoreSettings | None = None, progress: Progress | None = None
) -> RepairPlan:
    """Look at everything and say what to do. Changes nothing.

    Raises `StoreLocked` while the store is open for writing, as unfinished work would look like damage;
    `CorruptData` where not one whole record is found: such a log must be restored, not repaired; and for a log file
    under a wrong name, or of another store;
    `ConfigurationError` for a store with symbolic links in it, or with an index to rebuild whose sizes nothing tells;
    `StoreUnavailable` where a file cannot be read.
    """
    root = Path(root)
    with refusing(f"{root} cannot be looked at"):
        refuse_if_locked(root)
        seen = stamps(root, PrivateDisk())
        plan = _plan(root, settings, progress)
        refuse_if_locked(root)
        if stamps(root, PrivateDisk()) != seen:
            raise StoreLocked(f"{root} was opened while the plan was made: plan again when nobody has it open")
        return plan


def _plan(root: Path, settings: StoreSettings | None, progress: Progress | None) -> RepairPlan:
    check_path(root)
    refuse_links(root, but=(COMMIT_LOG,))
    refuse_misplaced(root)
    _refuse_wrong_names(root)
    report = verify(root, settings=settings, progress=progress)
    if report.unreadable:
        first = next(problem for problem in report.problems if problem.path in report.unreadable)
        raise StoreUnavailable(f"{first.path} {first.found}; {first.next_step}. Nothing was changed")
    disk = PrivateDisk()
    given = settings.mapped_file_size_commit_log if settings else None
    asked = settings or StoreSettings()
    settings = sized(asked, root, disk)
    plan = RepairPlan(root, settings, report, whole_count=report.record_count, stamps=log_stamps(root))
    plan.guessed_sizes = unconfirmed(asked, settings, root, disk)
    if report.is_log_lost:
        raise CorruptData(
            f"not one whole record is in the log: {no_record_step(settings)}", path=str(root / COMMIT_LOG)
        )
    size = settings.commit_log_file_size
    is_noted = size == noted_sizes(root, disk).get("mapped_file_size_commit_log")
    actions, plan.unmended = plan_files(root, size, disk, is_given=size == given, is_noted=is_noted)
    if report.damages or report.torn_size or report.missing or not report.clean or not report.ok:
        _LogPlan(plan).make()
    else:
        repaired = _made_by_repairs(root, disk)
        plan.whole_count -= len(repaired)
        plan.message_count, plan.gone_count = _queued(root, report.log_begin, repaired, disk), report.gone_count
    gone = {message.all_places[0][:3] for message in plan.lost}
    gone |= {(one.topic, one.queue_id, one.queue_offset) for one in plan.unplaced}
    plan.damaged_properties = [place for place in report.damaged_properties if place[:3] not in gone]
    of_log = [action for action in actions if action.kind in CHANGES_LOG or action.path.startswith(COMMIT_LOG)]
    plan.actions = [
        *_keep_what_is_written_to(of_log, plan), *(action for action in actions if action not in of_log)
    ]  # fmt: skip
    if plan.changes_log:
        refuse_links(root)
    changes_log = any(action.kind in CHANGES_LOG for action in plan.actions)
    is_stale = any(problem.part != "config" for problem in report.problems)
    is_stale |= report.units_behind + report.index_items_behind > 0  # RocketMQ may not look where they are missing
    if changes_log or is_stale or is_under_repair(root, disk):
        plan.actions.append(Action("rebuild", "."))
        sizes = rebuild_settings(settings, root)  # raises: nothing was changed yet
        log = LogRange(report.log_begin, report.log_end, settings.commit_log_file_size, report.damages)
        plan.known_end = known_end(root, log, sizes, disk)
    topics, entered = Topics(root, PrivateDisk()), report.batch_topics  # the log was unmapped
    begins_anew = any(action.kind == "aside" and action.path.startswith(f"{CONFIG}/{TOPICS}") for action in actions)
    if begins_anew:
        entered = entered | topics.unlisted_batch_topics().keys()
    if entered and (begins_anew or topics.can_change):
        plan.actions.append(
            Action("enter", f"{CONFIG}/{TOPICS}", reason=", ".join(sorted(entered)) + lost_config(root))
        )
    return plan


def _refuse_wrong_names(root: Path) -> None:
    """Raise `CorruptData` for a log file under another one's name: its messages are whole, and would be set aside."""
    for name, step in misnamed_files(root / COMMIT_LOG, PrivateDisk()).items():
        raise CorruptData(step, path=str(root / COMMIT_LOG / name))


def _queued(root: Path, log_begin: int, repaired: NDArray[np.int64], disk: PrivateDisk) -> int:
    """Messages that the queues of a whole store lead to; `repaired` are the log offsets of records by repairs."""
    kept = []
    for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for topic, _, directory in queue_directories(root, tree, disk):
            for _, offsets, _, counts, tags_codes in written_units(directory, layout, disk):
                is_kept = (tags_codes != LOST_TAGS_CODE) & ~np.isin(offsets, repaired) & (offsets >= log_begin)
                kept.append((topic, offsets[is_kept], np.maximum(counts, 1)[is_kept]))
    return _message_count(kept)


def _message_count(queued: Iterable[tuple[str, NDArray[np.int64], NDArray[np.int64]]]) -> int:
    """Messages in queues, of which each has a topic, log offsets and the counts of messages there. A light queue's
    count where no other queue leads to them: such a message was put to the light queue itself."""
    count, plain, light = 0, [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for topic, offsets, counts in queued:
        (light if is_light(topic) else plain).append(offsets)
        count += 0 if is_light(topic) else int(counts.sum())
    return count + len(np.setdiff1d(np.concatenate(light), np.concatenate(plain)))


def _made_by_repairs(root: Path, disk: PrivateDisk) -> NDArray[np.int64]:
    """Log offsets of the records of a whole log that repairs made."""
    positions, sizes = np.empty(CHUNK_RECORDS, np.int64), np.empty(CHUNK_RECORDS, np.int32)
    found = [np.empty(0, np.int64)]
    for name, size in disk.files(root / COMMIT_LOG).items():
        base = offset_of(name)
        if base is None or not size:
            continue
        file, position, status = disk.map(root / COMMIT_LOG / name), 0, int(ScanStatus.FULL)
        while status == ScanStatus.FULL:
            count, position, status = scan(file.address, position, size, base, TRUST, positions, sizes)
            flags = file.view[positions[:count, None] + np.arange(HEAD.size)].view(HEAD.dtype)["flag"][:, 0]
            found.append(base + positions[:count][flags == LOST_FLAG])
        file.close()
    return np.concatenate(found)


def log_stamps(root: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every file of the log."""
    files = (root / COMMIT_LOG).iterdir()
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(files) if path.is_file()}


def _keep_what_is_written_to(file_actions: list[Action], plan: RepairPlan) -> list[Action]:
    """Files that are missing first, then content; a file that was cut gets its size after that: zeros that followed a
    record of which a part was lost could make it look whole, if the repair does not come to its end. An empty last file
    goes, unless placeholders come into it: then it gets its size; and so does one that is not there yet."""
    needed = {action.path for action in plan.actions if action.kind in ("cover", "cut", "mend")}
    dropped = {action.path for action in plan.actions if action.kind == "drop"}
    full_size = plan.settings.commit_log_file_size
    actions = [
        Action("extend", action.path, 0, full_size, CUT)
        if action.kind == "remove" and action.path in needed
        else action
        for action in file_actions if action.kind != "extend" or action.path not in dropped
    ]  # fmt: skip
    made = {action.path for action in actions if action.kind in ("create", "extend")}
    there = {f"{COMMIT_LOG}/{name}" for name, (size, _) in plan.stamps.items() if size}
    actions += [Action("create", path, size=full_size, reason=TAIL) for path in sorted(needed - made - there)]
    cut = [action for action in actions if action.kind == "extend" and action.position]
    return [*(action for action in actions if action not in cut), *plan.actions, *cut]


@dataclass(slots=True)
class _File:
    """The whole records of one file, restored ones included."""

    positions: NDArray[np.int64]
    sizes: NDArray[np.int32]


class _LogPlan:
    """Restores records, covers what is left of damaged ranges and clears what is after the log's end."""

    def __init__(self, plan: RepairPlan) -> None:
        self._plan = plan
        self._file_size = plan.settings.commit_log_file_size
        self._disk = PrivateDisk()
        self._files: dict[int, _File] = {}
        self._restored: dict[int, bytes] = {}
        self._newest = (-1, 0)
        self._kept_ends: dict[tuple[str, int], int] = {}
        """Queue offset after the last placeholder, by queue."""
        self._blanks: list[Damage] = []
        """What the blank records cover that close files, where it has room for a record."""

    def make(self) -> None:
        plan = self._plan
        evidence = Evidence(
            plan.root, plan.settings, self._disk, batch_topics=plan.report.batch_topics,
            has_light=bool(plan.report.light_queue),
        )  # fmt: skip
        damages, tail, written_end, log_begin = self._look(evidence)
        evidence.take_units(log_begin)
        damages = sorted([*damages, *self._false_blanks(evidence)], key=lambda damage: damage.begin)
        evidence.refuse_foreign()
        for topic, offsets in evidence.outside.items():
            alone = [offset for offset in offsets if not evidence.claims.get(offset)]  # no unit says that it was moved
            if is_topic(topic) and alone:
                raise of_wrong_type(plan.root, topic, alone[0])
        guessed = plan.report.batch_topics - Topics(plan.root, self._disk).batch_topics
        for (topic, _), queue in evidence.queues.items():
            if topic in guessed and (places := queue.outvoted()):
                raise of_unknown_type(plan.root, topic, int(queue.offsets[places[0]]))
        pieces = [(*piece, piece[1] - piece[0]) for damage in damages for piece in split(damage, self._file_size)]
        for begin, end in split(Damage(tail.begin, max(tail.begin, written_end), TAIL), self._file_size):
            if end > begin:  # a record's last bytes may be zeros
                pieces.append((begin, begin - begin % self._file_size + self._file_size, end - begin))
        found = Judge(evidence, [*damages, tail], pieces, self._read, log_begin=log_begin).decide()
        evidence.refuse_both_ways(changes_log=bool(damages or found.mends))  # not for a torn end
        plan.scanned_size = found.scanned_size
        whole = [mend for mend in found.mends if not mend.is_damaged]
        stored = [self._record_at(mend.offset, len(mend.data)) for mend in whole]
        left_by = {claim_of(record).key for record in stored}
        left_by |= {
            (name, LIGHT_QUEUE_ID) for one in stored for name, _ in light_places(one.topic, one.properties, _FOREVER)[0]
        }
        for mend in found.mends:
            self._plan_mend(mend.offset, mend.data, is_damaged=mend.is_damaged)
        plan.whole_count += sum(mend.is_damaged for mend in found.mends) - found.outcast_count
        again = [mend for mend in found.mends if HEAD.unpack(mend.data).flag == LOST_FLAG]
        evidence.add_repaired([(mend.offset, mend.offset + len(mend.data)) for mend in again])
        plan.whole_count -= evidence.repaired_count
        plan.mended_count = len(found.mends) - len(again)
        plan.gone_count = evidence.gone_count
        plan.message_count = _message_count(
            (key[0], queue.offsets[kept], (queue.ends - queue.numbers)[kept])
            for key, queue in evidence.queues.items() for kept in [~evidence.is_repaired(queue.offsets)]
        )  # fmt: skip
        displaced = [LostMessage(name, LIGHT_QUEUE_ID, number) for name, number in found.displaced]
        left: list[LostMessage] = []
        for damage in found.damages:
            lost = in_log_order(found.lost[damage])
            if damage.reason == WILD and all(is_light(message.topic) for message in lost):
                claim = claim_of(self._record_at(damage.begin, damage.end - damage.begin))
                plan.unplaced.append(LeftOut(damage.begin, *claim.key, claim.queue_offset))
                plan.lost_places += [(message.topic, message.queue_offset) for message in lost]
            else:
                plan.lost += lost
            if damage.end == tail.end:
                self._plan_tail(
                    damage.begin,
                    written_end,
                    in_log_order([*lost, *self._newest_of([*left, *displaced], evidence)]),
                )
            else:
                left += self._plan_cover(damage, lost)
        plan.lost.sort()
        plan.lost_places = sorted([*plan.lost_places, *found.displaced])
        plan.missing = list(self._missing(evidence, left_by))
        plan.actions.sort(key=lambda action: action.kind == "cover")  # until then the ranges say what was lost
        plan.begins = self._covered_begins(evidence.begins)

    def _covered_begins(self, begins: Mapping[QueueKey, QueueBegin]) -> dict[QueueKey, QueueBegin]:
        """The begins in ranges that are covered, or after the one at the log's end, moved to where those begin: nothing
        is told apart in them any more. And those at records that name another place: damage after them may have
        confirmed these begins."""
        covers = sorted(
            (
                int(Path(action.path).name) + action.position,
                OFFSETS_END if action.kind == "cut" else max(action.size, action.cover.size),
            )
            for action in self._plan.actions if action.cover
        )  # fmt: skip
        merged: list[tuple[int, int]] = []
        for begin, size in covers:
            first = merged.pop()[0] if merged and merged[-1][1] >= begin else begin
            merged.append((first, begin + size))
        found = {}
        for key, (queue_offset, offset) in begins.items():
            at = bisect_right(merged, offset, key=lambda cover: cover[0]) - 1
            if at >= 0 and offset <= merged[at][1]:
                found[key] = QueueBegin(queue_offset, merged[at][0])
                continue
            record = record_at(self._plan.root, offset, self._disk) if merged else None
            if record and not has_place(record, *key, queue_offset):
                found[key] = QueueBegin(queue_offset, offset)
        return found

    def _missing(self, evidence: Evidence, left_by: Collection[tuple[str, int]]) -> Iterator[tuple[str, int, int, int]]:
        """What `verify` found missing, but for the places of records that are restored and of those that are lost, and
        for what seemed to be missing before or after a record that belongs elsewhere: queues `left_by` those end before
        it or, after retention, begin after it."""
        known: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for topic, queue_id, first, end in self._plan.lost_ranges:
            known[topic, queue_id].append((first, end))
        for topic, queue_id, first, end in self._plan.report.missing:
            queue = evidence.queue(topic, queue_id)
            if (topic, queue_id) in left_by:
                end = min(end, int(queue.ends.max(initial=0)))
                first = (
                    max(first, int(queue.numbers[0])) if self._plan.report.log_begin and len(queue.numbers) else first
                )
            low, high = np.searchsorted(queue.ends, first, "right"), np.searchsorted(queue.numbers, end)
            there = zip(queue.numbers[low:high].tolist(), queue.ends[low:high].tolist(), strict=True)
            for begin, stop in sorted([*known[topic, queue_id], *there]):
                if first < min(begin, end):
                    yield topic, queue_id, first, min(begin, end)
                first = max(first, stop)
            if first < end:
                yield topic, queue_id, first, end

    def _look(self, evidence: Evidence) -> tuple[list[Damage], Damage, int, int]:
        """Take all files; returns the damages in order, the tail, where its bytes end, and the log's begin."""
        plan, join, damages, last = self._plan, DamageJoin(), list[Damage](), None
        log_begin = -1
        surveys = survey_log(
            plan.root / COMMIT_LOG, PrivateDisk(), file_size=self._file_size,
            may_be_torn=may_be_torn(plan.root, PrivateDisk()),
        )  # fmt: skip
        for survey in surveys:
            log_begin = survey.base_offset if log_begin < 0 else log_begin
            damages += join.take(survey)
            evidence.take(survey)
            self._files[survey.base_offset] = _File(survey.positions, survey.sizes)
            if survey.is_closed and survey.full_size - survey.end >= SMALLEST:
                begin = survey.base_offset + survey.end
                self._blanks.append(Damage(begin, survey.base_offset + survey.full_size, ScanStatus.BLANK.name))
            if damages:
                plan.behind_count += int(np.count_nonzero(survey.positions + survey.base_offset > damages[0].begin))
            if len(survey.positions):
                self._newest = survey.base_offset + int(survey.positions[-1]), int(survey.sizes[-1])
            if last:
                last.close()
            last = survey
        begin = 0
        if last:
            last.close()
            begin = last.base_offset + self._file_size if join.open_begin is None else join.open_begin
        return damages, Damage(begin, _FOREVER, TAIL), join.written_end, max(0, log_begin)

    def _false_blanks(self, evidence: Evidence) -> list[Damage]:
        """Blank records over messages that units still lead to."""
        claimed = sorted(evidence.claims)
        return [
            blank for blank in self._blanks
            if any(
                evidence.queue(*claim.key).takes(offset, claim) and offset + claim.size <= blank.end
                for offset in claimed[bisect_left(claimed, blank.begin) : bisect_left(claimed, blank.end)]
                for claim in evidence.claims[offset]
            )
        ]  # fmt: skip

    def _read(self, offset: int, size: int) -> bytes:
        start = offset - offset % self._file_size
        path = self._plan.root / COMMIT_LOG / offset_name(start)
        if not path.is_file():
            return b""
        file = self._disk.open(path)
        try:
            size = min(size, start + self._file_size - offset)
            return file.read(offset - start, size).ljust(size, b"\0")  # as if zeros followed a shorter file
        finally:
            file.close()

    def _plan_mend(self, offset: int, data: bytes, *, is_damaged: bool) -> None:
        position = offset % self._file_size
        reason = "its head was damaged" if is_damaged else "its unit or its neighbours place it elsewhere in its queue"
        path = f"{COMMIT_LOG}/{offset_name(offset - position)}"
        self._plan.actions.append(Action("mend", path, position, len(data), reason, data=data))
        self._restored[offset] = data
        self._newest = max(self._newest, (offset, len(data)))

    # -- covering ----------------------------------------------------------------------------------------------------

    def _record_at(self, offset: int, size: int) -> Record:
        return decode_record(self._restored.get(offset) or self._read(offset, size), verify=False)

    def _beside(self, begin: int, end: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Log offset and size of the whole records directly before and after a range of one file."""
        start = begin - begin % self._file_size
        file = self._files.get(start)
        if file is None or not len(file.positions):
            return None, None
        at = int(np.searchsorted(file.positions, begin - start))
        before = (start + int(file.positions[at - 1]), int(file.sizes[at - 1])) if at else None
        at = int(np.searchsorted(file.positions, end - start))
        is_next = at < len(file.positions) and start + int(file.positions[at]) == end
        return before, (end, int(file.sizes[at])) if is_next else None

    def _plan_cover(self, damage: Damage, lost: list[LostMessage]) -> list[LostMessage]:
        """An action for each file, with as many placeholders as there is room for, each queue's in order; returns the
        messages that get none."""
        for begin, end in split(damage, self._file_size):
            closes_file = end % self._file_size == 0
            before, after = self._beside(begin, end)
            if end - begin < (BLANK.size if closes_file else SMALLEST):  # too small for a record
                taken = before if before and sum(before) == begin else after
                if taken is None:
                    self._plan.unmended.append(f"{end - begin} bytes at log offset {begin:,} are too few to be covered")
                    continue
                lost = in_log_order([*lost, *self._give_up(*taken)])
                begin, end = min(begin, taken[0]), max(end, sum(taken))
            action = self._covering(begin, end, closes_file, before or after, damage.reason)
            assert action.cover
            if end < damage.end:  # what follows the first that does not fit stays behind it
                kept = action.cover.first_fitting(lost)
                lost = lost[len(kept) :]
            else:
                kept = action.cover.fitting(lost)
                covered = set(kept)
                lost = [message for message in lost if message not in covered]
            for message in kept:
                for topic, queue_id, _, stop in message.all_places:
                    self._kept_ends[topic, queue_id] = max(self._kept_ends.get((topic, queue_id), 0), stop)
            self._plan.actions.append(replace(action, lost=tuple([*kept, *lost] if end >= damage.end else kept)))
        return lost

    def _newest_of(self, lost: list[LostMessage], evidence: Evidence) -> list[LostMessage]:
        """Those of the lost messages after which their queue, or a light one, has nothing: without a placeholder at the
        log's end their offsets would be given again."""
        found, ends = [], dict(self._kept_ends)
        for key in {(topic, queue_id) for message in lost for topic, queue_id, *_ in message.all_places}:
            ends[key] = max(ends.get(key, 0), int(evidence.queue(*key).ends.max(initial=0)))
        for message in lost:
            newest = [place for place in message.all_places if place[2] >= ends[place[:2]]]
            if message.all_places[0] in newest:
                places = tuple((topic, first) for topic, _, first, _ in newest[1:])
                found.append(replace(message, places=places))
            else:  # its own queue goes on: a record of the light queue alone
                found += [LostMessage(*place[:3]) for place in newest]
        return found

    def _give_up(self, offset: int, size: int) -> list[LostMessage]:
        """The record beside a range that is too small to be covered alone: it is covered, too."""
        record = self._record_at(offset, size)
        is_repaired = record.flag == LOST_FLAG  # its message was lost before
        self._plan.whole_count -= not is_repaired
        if not enters_queue(record.sys_flag):
            return []
        claim = claim_of(record)
        message = LostMessage(claim.topic, claim.queue_id, claim.queue_offset, claim.batch_size)
        if not is_repaired:
            self._plan.lost.append(message)
            self._plan.message_count = self._plan.message_count - message.message_count
        return [message]

    def _covering(
        self, begin: int, end: int, closes_file: bool, neighbour: tuple[int, int] | None, reason: str
    ) -> Action:
        start, size = begin - begin % self._file_size, end - begin
        neighbour = neighbour or (self._newest if self._newest[0] >= 0 else None)
        record = self._record_at(*neighbour) if neighbour else None
        path = f"{COMMIT_LOG}/{offset_name(start)}"
        name = set_aside_name(self._plan.root, path, begin - start, size)
        cover = Cover(
            begin, size, name, record.store_timestamp if record else 0, closes_file,
            bool(record and has_record_crc(record.properties)),
        )  # fmt: skip
        return Action("cover", path, begin - start, size, reason, cover=cover)

    def _plan_tail(self, begin: int, written_end: int, lost: list[LostMessage]) -> None:
        """Cut what is after the log's end, and let placeholders follow, in further files where they need them."""
        full_size, end = self._file_size, begin
        while lost or written_end > begin:
            start = begin - begin % full_size
            torn_size = max(0, min(written_end, start + full_size) - begin)
            action = self._covering(begin, begin + torn_size, False, None, TAIL)
            assert action.cover
            room = replace(action.cover, size=start + full_size - begin - BLANK.size)
            kept = room.fitting_named(lost)
            closes_file = len(kept) < len(lost)
            if closes_file and not kept and begin == start:
                break  # files too small for one placeholder
            size = start + full_size - begin if closes_file else room.least_size(kept)
            cover = replace(action.cover, size=size, closes_file=closes_file)
            self._plan.actions.append(replace(action, kind="cut", lost=tuple(kept), cover=cover))
            lost, begin, end = lost[len(kept) :], start + full_size, start + full_size
            if not lost:
                break
        for name, (size, _) in sorted(self._plan.stamps.items()):
            if size and (offset_of(name) or 0) >= end > 0 and written_end > end:
                self._plan.actions.append(Action("drop", f"{COMMIT_LOG}/{name}", 0, full_size, TAIL))


def split(damage: Damage, file_size: int) -> list[tuple[int, int]]:
    """The pieces [begin, end) of a damage, file by file."""
    edges = [
        damage.begin,
        *range(damage.begin - damage.begin % file_size + file_size, damage.end, file_size),
        damage.end,
    ]
    return list(pairwise(edges))


def set_aside_name(root: Path, path: str, position: int, size: int, *, is_over: bool = False) -> str:
    """Name in quarantine, without suffix, of the bytes of a range: where it begins in the log, and how long it is; of
    those over a file's size, which are no part of the log: where the file begins. A number follows where an earlier
    repair kept other bytes under that name."""
    start = int(Path(path).name)
    name = f"{start:020d}-over-{size}.bytes" if is_over else f"{start + position:020d}-{size}.bytes"
    return free_name(root / QUARANTINE / name, lambda kept: _is_kept(kept, root / path, position, size)).stem


def _is_kept(kept: Path, path: Path, position: int, size: int) -> bool:
    """Whether a file holds the bytes of a range of another. What is not there yet reads as zeros."""
    if not kept.is_file():
        return False
    with kept.open("rb") as copy, (path if path.is_file() else Path(os.devnull)).open("rb") as file:
        file.seek(position)
        for left in range(size, 0, -_CHUNK_SIZE):
            count = min(left, _CHUNK_SIZE)
            if copy.read(count).ljust(count, b"\0") != file.read(count).ljust(count, b"\0"):
                return False
    return True
