"""What is wrong with a store, what a repair would do about it, what would be lost: worked out before a byte changes.

found                                            what is done
---------------------------------------------    ---------------------------------------------------------------
log file shorter than the others                 extended with zeros; what it lost is a damaged range
log file missing in the middle                   made again, empty: all of it is a damaged range
damaged range with whole records behind it       bytes set aside, range covered by records (see repair_fill)
bytes behind the log's end                       set aside and zeroed; messages that a properly closed store
                                                 held there leave placeholders, so that no offset is given twice
configuration unreadable, its backup readable    the backup takes its place
what a killed process left behind                removed
queues, index or checkpoint not as the log       rebuilt
says, or the log was changed
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.message import BLANK, decode_record
from stratalog.layout.names import ABORT, COMMIT_LOG, CONFIG, offset_name, offset_of
from stratalog.layout.recordcrc import has_record_crc
from stratalog.layout.sysflag import enters_queue
from stratalog.store.disk import UNFINISHED, PrivateDisk
from stratalog.store.recovery import Damage
from stratalog.tools.repair_fill import SMALLEST, Cover, LostMessage
from stratalog.tools.repair_lost import LostMessages
from stratalog.tools.survey import CUT, MISSING, DamageJoin, FileSurvey, sized, survey_log
from stratalog.tools.verify import Progress, verify
from stratalog.tools.verify_files import BACKUP, config_fault, config_files
from stratalog.tools.verify_report import VerifyReport

ActionKind = Literal["extend", "create", "cover", "cut", "drop", "config", "remove", "rebuild"]
TAIL = "TAIL"
_FOREVER = 2**62
_DERIVED = ("queue", "index", "checkpoint", "files")


@dataclass(frozen=True, slots=True)
class Action:
    """One step. `path` is relative to the store; `position` and `size` are bytes of that file."""

    kind: ActionKind
    path: str
    position: int = 0
    size: int = 0
    reason: str = ""
    lost: tuple[LostMessage, ...] = ()
    """Messages that get placeholders."""
    cover: Cover | None = None


@dataclass(slots=True)
class RepairPlan:
    """What `repair` will do, in order. Without actions there is nothing to repair."""

    root: Path
    settings: StoreSettings
    report: VerifyReport
    actions: list[Action] = field(default_factory=list)
    whole_count: int = 0
    """Whole records, all of which are kept."""
    lost: list[LostMessage] = field(default_factory=list)
    """Messages that cannot be read and that are known by topic, queue and offset."""
    behind_count: int = 0
    """Whole records behind the first damage, which RocketMQ would drop and which stay."""
    stamps: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Size and modification time of the log's files when this was worked out."""
    unmended: list[str] = field(default_factory=list)
    """What no repair can mend."""


def plan_repair(root: Path, *, settings: StoreSettings | None = None, progress: Progress | None = None) -> RepairPlan:
    """Look at everything and say what to do. Changes nothing; a broker may be running, though the plan is then old.

    Raises `CorruptData` where not one whole record is found: such a log must be restored, not repaired.
    """
    report = verify(root, settings=settings, progress=progress)
    settings = sized(settings or StoreSettings(), root, PrivateDisk())
    plan = RepairPlan(root, settings, report, whole_count=report.record_count, stamps=log_stamps(root))
    disk = PrivateDisk()
    if not report.record_count and (report.torn_size or report.damages):
        raise CorruptData(
            "not one whole record is in the log: restore it from a copy. If its files have another size than "
            f"{settings.commit_log_file_size:,} bytes, give mapped_file_size_commit_log",
            path=str(root / COMMIT_LOG),
        )
    _plan_sizes(plan, disk)
    if report.damages or report.torn_size or _has_units_behind(report):
        _plan_log(plan)
        _keep_what_is_written_to(plan)
    _plan_config(plan, disk)
    _plan_leftovers(plan, disk)
    changes_log = any(action.kind in ("extend", "create", "cover", "cut", "drop") for action in plan.actions)
    if changes_log or any(problem.part in _DERIVED for problem in report.problems):
        plan.actions.append(Action("rebuild", "."))
    return plan


def log_stamps(root: Path) -> dict[str, tuple[int, int]]:
    """Size and modification time of every file of the log."""
    files = (root / COMMIT_LOG).iterdir()
    return {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(files) if path.is_file()}


def _has_units_behind(report: VerifyReport) -> bool:
    """Whether a properly closed store has queue units of messages that are not in the log any more."""
    return report.clean and any(problem.part == "queue" for problem in report.problems)


def _plan_sizes(plan: RepairPlan, disk: PrivateDisk) -> None:
    """Give every file of the log its full size; make those that are missing."""
    full_size, expected = plan.settings.commit_log_file_size, None
    files = {name: size for name, size in disk.files(plan.root / COMMIT_LOG).items() if offset_of(name) is not None}
    for name, size in files.items():
        start = int(name)
        while expected is not None and expected < start:
            plan.actions.append(
                Action("create", f"{COMMIT_LOG}/{offset_name(expected)}", size=full_size, reason=MISSING)
            )
            expected += full_size
        expected = start + full_size
        if size > full_size:
            plan.unmended.append(
                f"{COMMIT_LOG}/{name} has {size:,} bytes, the log's files have {full_size:,}: give "
                "mapped_file_size_commit_log if the store uses another size"
            )
        elif not size and name == max(files):
            plan.actions.append(Action("remove", f"{COMMIT_LOG}/{name}", reason="a file that was never written"))
        elif size < full_size:
            plan.actions.append(Action("extend", f"{COMMIT_LOG}/{name}", size, full_size - size, CUT))


def _keep_what_is_written_to(plan: RepairPlan) -> None:
    """An empty last file goes, unless placeholders of what it held come into it: then it gets its size."""
    needed = {action.path for action in plan.actions if action.kind in ("cover", "cut")}
    full_size = plan.settings.commit_log_file_size
    plan.actions = [
        Action("extend", action.path, 0, full_size, CUT)
        if action.kind == "remove" and action.path in needed
        else action
        for action in plan.actions
    ]


def _plan_log(plan: RepairPlan) -> None:
    """Cover the damaged ranges and clear what is behind the log's end."""
    report, full_size = plan.report, plan.settings.commit_log_file_size
    damages = [damage for damage in report.damages if damage.reason != "TORN"]
    tail = Damage(report.log_end, _FOREVER, TAIL)
    known = [*damages, tail] if report.clean else damages
    lost = LostMessages(plan.root, known, PrivateDisk())
    edges = _Edges(damages, full_size)
    surveys = survey_log(plan.root / COMMIT_LOG, PrivateDisk(), file_size=full_size)
    last: FileSurvey | None = None
    join = DamageJoin()
    for survey in surveys:
        join.take(survey)
        lost.take(survey)
        edges.take(survey)
        if last:
            last.close()
        last = survey
    if last:
        last.close()
    plan.behind_count = lost.behind_count if damages else 0
    by_damage = lost.by_damage()
    plan.lost = sorted(message for messages in by_damage.values() for message in messages)
    for damage in damages:
        _plan_cover(plan, edges, damage, by_damage[damage])
    if join.open_begin is not None:
        _plan_tail(plan, edges, join.open_begin, max(0, join.written_end - join.open_begin), by_damage.get(tail, []))


@dataclass(slots=True)
class _Neighbour:
    """What is to be known of the whole records beside a range."""

    position: int
    size: int
    store_timestamp: int
    with_record_crc: bool
    message: LostMessage | None


class _Edges:
    """The whole records in front of and behind each piece that a damage covers of a file."""

    def __init__(self, damages: Iterable[Damage], file_size: int) -> None:
        self._file_size = file_size
        self._pieces = [piece for damage in damages for piece in split(damage, file_size)]
        self.before: dict[int, _Neighbour] = {}
        """By the log offset where the piece begins; only records of the same file."""
        self.after: dict[int, _Neighbour] = {}
        """By the log offset where the piece ends."""
        self.newest: _Neighbour | None = None

    def take(self, survey: FileSurvey) -> None:
        for begin, end in self._pieces:
            if not survey.base_offset <= begin < survey.base_offset + self._file_size or not len(survey.positions):
                continue
            at = int(np.searchsorted(survey.positions, begin - survey.base_offset))
            if at:
                self.before[begin] = self._neighbour(survey, at - 1)
            if at < len(survey.positions) and survey.positions[at] + survey.base_offset == end:
                self.after[end] = self._neighbour(survey, at)
        if len(survey.positions):
            self.newest = self._neighbour(survey, len(survey.positions) - 1)

    @staticmethod
    def _neighbour(survey: FileSurvey, number: int) -> _Neighbour:
        assert survey.file is not None
        position, size = int(survey.positions[number]), int(survey.sizes[number])
        record = decode_record(survey.file.map[position : position + size], verify=False)
        message = LostMessage(record.topic.decode("utf-8", "replace"), record.queue_id, record.queue_offset)
        return _Neighbour(
            position, size, record.store_timestamp, has_record_crc(record.properties),
            message if enters_queue(record.sys_flag) else None,
        )  # fmt: skip


def split(damage: Damage, file_size: int) -> list[tuple[int, int]]:
    """The pieces [begin, end) of a damage, file by file."""
    edges = [
        damage.begin,
        *range(damage.begin - damage.begin % file_size + file_size, damage.end, file_size),
        damage.end,
    ]
    return list(pairwise(edges))


def _plan_cover(plan: RepairPlan, edges: _Edges, damage: Damage, lost: list[LostMessage]) -> None:
    """An action for each file. All placeholders go where there is most room."""
    full_size = plan.settings.commit_log_file_size
    pieces = split(damage, full_size)
    widest = max(pieces, key=lambda piece: piece[1] - piece[0])
    for piece in pieces:
        begin, end = piece
        start, closes_file = begin - begin % full_size, end % full_size == 0
        before, after = edges.before.get(begin), edges.after.get(end)
        mine = list(lost) if piece == widest else []
        if end - begin < (
            BLANK.size if closes_file else SMALLEST
        ):  # too small for a record: its neighbour goes with it
            taken = before or after
            if taken is None:
                plan.unmended.append(f"{end - begin} bytes at log offset {begin:,} are too few to be covered")
                continue
            begin, end = (start + before.position, end) if before else (begin, end + taken.size)
            mine += [taken.message] if taken.message else []
            plan.lost += [taken.message] if taken.message else []
            plan.whole_count -= 1
        plan.actions.append(
            _covering(edges, begin, end, start, closes_file, before or after, tuple(mine), damage.reason)
        )


def _covering(
    edges: _Edges, begin: int, end: int, start: int, closes_file: bool, neighbour: _Neighbour | None,
    lost: tuple[LostMessage, ...], reason: str,
) -> Action:  # fmt: skip
    size, neighbour = end - begin, neighbour or edges.newest
    timestamp = neighbour.store_timestamp if neighbour else 0
    with_crc = bool(neighbour and neighbour.with_record_crc)
    cover = Cover(begin, size, set_aside_name(begin, size), timestamp, closes_file, with_crc)
    return Action("cover", f"{COMMIT_LOG}/{offset_name(start)}", begin - start, size, reason, lost, cover)


def set_aside_name(begin: int, size: int) -> str:
    """Name of the file with the bytes of a range: where it began, and how long it was."""
    return f"{begin:020d}-{size}"


def _plan_tail(plan: RepairPlan, edges: _Edges, begin: int, written: int, lost: list[LostMessage]) -> None:
    """Cut what stands behind the log's end; files behind it go when something was written into them."""
    full_size = plan.settings.commit_log_file_size
    if not written and not lost:
        return
    start = begin - begin % full_size
    torn_size = min(written, start + full_size - begin)
    action = _covering(edges, begin, begin + torn_size, start, False, edges.newest, (), TAIL)
    assert action.cover
    while lost and begin - start + action.cover.least_size(lost) + BLANK.size > full_size:
        lost = lost[:-1]
    cover = replace(action.cover, size=action.cover.least_size(lost))
    plan.actions.append(replace(action, kind="cut", lost=tuple(lost), cover=cover))
    for name in sorted(plan.stamps):
        if (offset_of(name) or 0) > begin and written > torn_size:
            plan.actions.append(Action("drop", f"{COMMIT_LOG}/{name}", 0, full_size, TAIL))


def _plan_config(plan: RepairPlan, disk: PrivateDisk) -> None:
    for path in config_files(plan.root, disk):
        fault = config_fault(path, disk)
        if fault is None:
            continue
        backup = path.with_name(path.name + BACKUP)
        if config_fault(backup, disk) is None:
            plan.actions.append(Action("config", f"{CONFIG}/{path.name}", reason=fault))
        else:
            plan.unmended.append(f"{CONFIG}/{path.name} ({fault}) has no backup that can be read: restore it")


def _plan_leftovers(plan: RepairPlan, disk: PrivateDisk) -> None:
    names = [*disk.files(plan.root), *disk.directories(plan.root)]
    for name in sorted(name for name in names if name.endswith(UNFINISHED) and name != ABORT + UNFINISHED):
        plan.actions.append(Action("remove", name, reason="left over from a process that was killed"))
