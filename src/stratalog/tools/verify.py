"""Checking a whole store: every record of the log, every queue unit, every index item, each file against the others.

The log is the truth; units and items are built again from it in memory and compared with what stands in the files.
Nothing is recovered first and files are mapped privately: damage is seen as it is on disk, a store that cannot be
opened can be checked, and no byte is changed.

After an unclean stop (or beside a running broker) queues and index may trail the log: what is missing at their end is
then counted as `units_behind` and `index_items_behind`, not as a problem, because the next opening writes it. What is
known to them, to the checkpoint or the snapshot, and not in the log, is a problem.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, CorruptData, StratalogError, counted
from stratalog.helpers import ThreadPool
from stratalog.layout.message import LOST_FLAG, Record, decode_record
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONSUME_QUEUE,
    LOCK,
    SCHEDULE_TOPIC,
    SIZES,
    offset_of,
)
from stratalog.layout.properties import may_be_overwritten
from stratalog.layout.queue import BATCH_UNIT, LOST_TAGS_CODE, UNIT
from stratalog.layout.sysflag import enters_queue
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import PrivateDisk, lock_owner, queue_directories
from stratalog.store.evidence import UNCOUNTED, indexed_end, lacks_newest_file
from stratalog.store.log_scan import misnamed_files
from stratalog.store.opening import PUT_BACK, check_whole, misplaced_tree, stamps
from stratalog.store.os_errors import refusing
from stratalog.store.queue_begin import written_units
from stratalog.store.recovery import Damage
from stratalog.store.sizes import check_given_sizes, completed, contradicted_notes, guess_text
from stratalog.tools.opened import end_when_closed, is_rebuilt_by_opening
from stratalog.tools.own_files import refuse_without_log
from stratalog.tools.survey import CUT, MISSING, UNREADABLE, WILD, DamageJoin, FileSurvey, survey_log
from stratalog.tools.unqueued import lost_ends
from stratalog.tools.verify_files import (
    check_checkpoint,
    check_files,
    check_snapshot,
    log_files_size,
    may_be_torn,
    no_record_step,
    record_at,
    was_closed,
)
from stratalog.tools.verify_index import IndexCheck
from stratalog.tools.verify_queues import QueueCheck
from stratalog.tools.verify_report import (
    CHUNK_RECORDS,
    PARTS,
    REPAIR,
    Chunk,
    Problem,
    ReportingDisk,
    Unreadable,
    VerifyReport,
)

if TYPE_CHECKING:
    from stratalog.store.message_store import MessageStore

MEANING = {
    "END": "bytes that are no record",
    "BLANK": "the mark of a file's end, but not at its end",
    "BAD_MAGIC": "no record's magic number",
    "BAD_SIZE": "a size that is smaller than a record or runs past the file",
    "BAD_BODY_SIZE": "a body size that does not fit into the record",
    "BAD_LENGTHS": "lengths that do not add up to the record's size",
    "BAD_OFFSET": "a record that belongs to another place of the log",
    "BAD_CRC": "a body that does not have the CRC in its head",
    "BAD_RECORD_CRC": "a record that does not have the CRC at the end of its properties",
    WILD: "a record with a queue offset that is too large for this log",
    MISSING: "no file",
    CUT: "the file's end, though its records go on",
    UNREADABLE: "a file that cannot be read",
}

"""What stands at a damage's beginning, by its reason."""

_LOOKS = 3
"""How often a store is looked at that a writer opened or closed meanwhile, before it counts as open for writing; or
whose oldest log files a writer removed."""
Progress = Callable[[int, int, int], None]
"""Called with (bytes done, bytes in all, records done), one call at a time, from any thread."""


def verify(
    store: "MessageStore | str | os.PathLike[str]",
    *,
    settings: StoreSettings | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check everything in a store: in a directory, or one that was opened with mode="r". A broker may be running.

    Damage is data in the report, never an exception, and so is a file that cannot be read. Files are looked at in
    `threads` at once (as many as there are processors), queues and index beside each other. Raises `NotAStore`, and
    `ConfigurationError` for a store that is open for writing, whose files are not what they will be when it is closed,
    and for sizes that are not those of its files.
    """
    if isinstance(store, str | os.PathLike):
        root, settings = Path(store), settings or StoreSettings()
    else:
        root, settings = store.root, settings or store.settings
        if store.log.failure is None:
            raise ConfigurationError(f"{root} is open for writing: verify opens a store with mode='r'")
    with refusing(f"{root} cannot be checked"):
        for _ in range(_LOOKS):
            seen, is_live = stamps(root, PrivateDisk()), lock_owner(root / LOCK) is not None
            oldest = _oldest_file(root)
            try:
                report = _verify(root, settings, threads, progress, is_live=is_live)
            except FileNotFoundError:
                if _oldest_file(root) == oldest:
                    raise
                continue  # the writer removes what expired
            is_changed = lock_owner(root / LOCK) is not None or stamps(root, PrivateDisk()) != seen
            if report.ok or (is_live and _oldest_file(root) == oldest) or not is_changed:
                return report
        return _verify(root, settings, threads, progress, is_live=True)


def _verify(
    root: Path, settings: StoreSettings, threads: int | None, progress: Progress | None, *, is_live: bool
) -> VerifyReport:  # fmt: skip
    check_whole(root)
    refuse_without_log(root)
    report = VerifyReport(str(root), clean=True, is_live=is_live)
    disk = ReportingDisk(report)
    if found := misplaced_tree(root, disk):  # there is nothing to compare the other files with
        report.add(Problem("files", str(found[0]), 0, *found[1:], PUT_BACK))
        return report
    check_given_sizes(settings, root, disk)
    report.clean = was_closed(root, disk) and not is_live  # its writer may be about to mark it, or have done so
    given, (settings, guessed) = settings, _sized(settings, root, disk)
    report.notes += [guess_text(guessed)] if guessed else []
    misnamed = misnamed_files(root / COMMIT_LOG, disk)
    check_files(root, settings, disk, report, misnamed=misnamed)
    contradicted = list[tuple[str, int]]()
    with contextlib.suppress(OSError):  # the report has it
        contradicted += contradicted_notes(given, root, PrivateDisk())
    if contradicted:
        named = ", ".join(f"{name}={size}" for name, size in contradicted)
        step = f"if it is right, {REPAIR}; if it is wrong, remove it"
        report.add(
            Problem("files", str(root / SIZES), 0, "sizes of the files", f"{named}: no file has that size", step)
        )
    if report.is_unreadable(root / COMMIT_LOG):  # there is nothing to compare the other files with
        return report
    count = _Count(log_files_size(root, disk, settings.commit_log_file_size), progress)
    queues = QueueCheck(root, settings, disk, report)
    index = IndexCheck(root, settings, disk, report) if settings.message_index_enable else None
    checks: list[QueueCheck | IndexCheck] = [queues, index] if index else [queues]
    surveys = survey_log(
        root / COMMIT_LOG,
        ReportingDisk(report),
        file_size=settings.commit_log_file_size,
        may_be_torn=may_be_torn(root, disk),
        threads=threads,
        advance=count.add,
        misnamed=misnamed,
    )
    cut, known_end = dict[int, _Cut](), partial(_known_end, root, settings, disk, is_closed=report.clean)
    with closing(queues):
        with ThreadPool(len(checks), "stratalog-verify") as pool:
            for chunk in _chunks(surveys, report, known_end, misnamed, cut):
                report.record_count += len(chunk.positions)
                for done in [pool.submit(check.check, chunk) for check in checks]:
                    done.result()
        for check in checks:
            check.finish()
    report.damaged_properties = sorted(_damaged_properties(root, cut, queues.retagged, disk, is_live=is_live))
    report.lost_before = sorted(_lost_before(root, report.missing))
    if report.deleted_count:
        report.notes.append(
            f"{root}: messages of topics that were deleted and created again: {report.deleted_count:,}; their queues "
            "begin after them"
        )
    is_killed = not (report.clean or report.is_live)
    is_cut = (
        report.damages
        or _indexed_end(root) > report.log_end
        or lacks_newest_file(root / COMMIT_LOG, report.log_end, disk)
    )
    if is_killed and is_cut:
        report.notes.append(f"{root}: {UNCOUNTED}")
    check_checkpoint(root, disk, report)
    check_snapshot(root, disk, report)
    _check_lost_ends(root, disk, report)
    _check_quiet_queues(root, disk, report)
    if report.ok and report.clean and not report.is_live and is_rebuilt_by_opening(root, settings, report.log_end):
        report.notes.append(
            f"{root}: queues or index are not as the last clean stop counted them; the next opening builds them again "
            "from the log"
        )
    if report.gone_count and not any(PrivateDisk().files(root / COMMIT_LOG).values()):  # retention leaves a file
        report.add(
            Problem("log", str(root / COMMIT_LOG), 0, "a file that is not empty", "none", no_record_step(settings))
        )
    if report.is_log_lost:  # whatever else is wrong follows from that
        report.problems = [problem for problem in report.problems if problem.part == "config"]
        report.problem_count = len(report.problems)
        name, step = next(iter(misnamed.items()), ("", no_record_step(settings)))
        report.add(Problem("log", str(root / COMMIT_LOG / name), 0, "records", "not one whole record", step))
    report.problems.sort(key=lambda problem: PARTS.index(problem.part))
    return report


def _known_end(root: Path, settings: StoreSettings, disk: ReportingDisk, *, is_closed: bool) -> int:
    """Log offset that the log had reached at the last stop, as far as opening knows it; else 0."""
    with contextlib.suppress(StratalogError, OSError):  # the report has it, or will
        seal = Checkpoint.load(root, disk).seal
        return seal.log_end_offset if seal else end_when_closed(root, settings) if is_closed else 0
    return 0


def _indexed_end(root: Path) -> int:
    """Where the log ended at least, by an index that can be read; else the report has it."""
    with contextlib.suppress(OSError, CorruptData):
        return indexed_end(root, PrivateDisk())
    return 0


def _oldest_file(root: Path) -> str:
    with contextlib.suppress(OSError):  # a directory that cannot be listed is reported by the check itself
        return min(PrivateDisk().files(root / COMMIT_LOG), default="")
    return ""


def _check_lost_ends(root: Path, disk: ReportingDisk, report: VerifyReport) -> None:
    """The queues that the snapshot knows must be there, also those without a message in the log. (After a crash the
    next opening sees to it.)"""
    lost = dict[tuple[str, int], int]()
    with contextlib.suppress(Unreadable):  # the report has it
        lost = lost_ends(root, disk) if report.clean and not report.is_live else lost
    for (topic, queue_id), end in lost.items():
        tree = BATCH_CONSUME_QUEUE if (root / BATCH_CONSUME_QUEUE / topic).is_dir() else CONSUME_QUEUE
        path = str(root / tree / topic / str(queue_id))
        if not any(problem.path.startswith(path) for problem in report.problems):
            what = f"units of queue {topic}/{queue_id} up to offset {end:,}, as at the last clean stop"
            report.add(Problem("queue", path, 0, what, "fewer", REPAIR))


def _check_quiet_queues(root: Path, disk: ReportingDisk, report: VerifyReport) -> None:
    """The units of a queue without a message in the log tell its next offset: a damaged one is named, though it leads
    nowhere. (Elsewhere each unit was compared with its record.)"""
    for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)) if not report.is_live else ():
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            damaged, is_quiet = list[int](), True
            with contextlib.suppress(Unreadable):  # the report has it
                for numbers, offsets, sizes, _, tags_codes in written_units(directory, layout, disk, damaged=True):
                    is_damaged = sizes <= 0
                    damaged += numbers[is_damaged].tolist()
                    is_quiet &= not (~is_damaged & (offsets >= report.log_begin) & (tags_codes != LOST_TAGS_CODE)).any()
            if damaged and is_quiet:
                what = f"{len(damaged):,} that point nowhere, the first of offset {damaged[0]:,}"
                report.add(Problem("queue", str(directory), 0, f"units of queue {topic}/{queue_id}", what, REPAIR))


def _sized(settings: StoreSettings, root: Path, disk: ReportingDisk) -> tuple[StoreSettings, dict[str, int]]:
    """Settings as opening takes them, by the files that can be read; and the sizes among them that are guessed."""
    try:
        return completed(settings, root, disk, small=False)
    except Unreadable as error:
        with disk.without(error.filename):
            return _sized(settings, root, disk)


class _Count:
    """Adds up what the threads did, for the progress line."""

    def __init__(self, size_total: int, progress: Progress | None) -> None:
        self._total = size_total
        self._progress = progress
        self._size = self._records = 0
        self._lock = threading.Lock()

    def add(self, size: int, record_count: int) -> None:
        with self._lock:
            self._size += size
            self._records += record_count
            if self._progress:
                self._progress(self._size, max(self._size, self._total), self._records)


def _lost_before(root: Path, missing: list[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int, int]]:
    """The parts of what is missing whose units say that the messages were lost."""
    disk = PrivateDisk()
    for (topic, queue_id), ranges in groupby(sorted(missing), lambda one: one[:2]):
        firsts, stops = np.array([one[2:] for one in ranges], np.int64).T
        for tree, layout in ((CONSUME_QUEUE, UNIT), (BATCH_CONSUME_QUEUE, BATCH_UNIT)):
            with contextlib.suppress(OSError):  # the report has it
                for columns in written_units(root / tree / topic / str(queue_id), layout, disk):
                    numbers, _, _, counts, _ = (column[columns[-1] == LOST_TAGS_CODE] for column in columns)
                    at = np.minimum(np.searchsorted(stops, numbers, "right"), len(stops) - 1)
                    begins = np.maximum(numbers, firsts[at])
                    ends = np.minimum(numbers + np.maximum(counts, 1), stops[at])
                    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                        if begin < end:
                            yield topic, queue_id, begin, end


class _Cut(NamedTuple):
    """A whole record that damage may have begun in: a damaged range follows, or the log ends and zeros end it, too."""

    place: tuple[str, int, int, int]
    is_overwritten: bool


def _cut_records(survey: FileSurvey) -> Iterator[tuple[int, _Cut]]:
    """Log offset and place of each such record of a file that is in a queue."""
    edges = [damage.begin - survey.base_offset for damage in survey.damages]
    edges += [] if survey.is_closed else [survey.end]
    for position in survey.positions[np.isin(survey.positions + survey.sizes, edges)].tolist():
        assert survey.file is not None
        record = decode_record(survey.file.view.data, position, verify=False)
        is_newest = position + record.total_size == survey.end and not survey.tail_size
        may_be_cut = not is_newest or record.properties.endswith(b"\0")
        if may_be_cut and record.flag != LOST_FLAG and enters_queue(record.sys_flag):
            yield survey.base_offset + position, _Cut(_place_of(record), may_be_overwritten(record.properties))


def _damaged_properties(
    root: Path, cut: Mapping[int, _Cut], retagged: Mapping[int, bool], disk: PrivateDisk, *, is_live: bool
) -> Iterator[tuple[str, int, int, int]]:
    """Places of the records that damage begins in, and of those of which the queue unit has the hash of other tags."""
    begun = {offset for offset, one in cut.items() if one.is_overwritten or offset in retagged}
    yield from (cut[offset].place for offset in begun)
    for offset in [] if is_live else [at for at, is_of_record in retagged.items() if is_of_record and at not in begun]:
        record = record_at(root, offset, disk)
        if record and record.flag != LOST_FLAG and record.topic.decode(errors="replace") != SCHEDULE_TOPIC:
            yield _place_of(record)


def _place_of(record: Record) -> tuple[str, int, int, int]:
    topic, number = record.topic.decode("utf-8", "surrogateescape"), record.queue_offset
    return topic, record.queue_id, number, number + 1


def _chunks(
    surveys: Iterator[FileSurvey], report: VerifyReport, known_end: Callable[[], int], misnamed: Mapping[str, str],
    cut: dict[int, _Cut],
) -> Iterator[Chunk]:  # fmt: skip
    """Every whole record from the log's beginning to its end. Damage between them goes into the report before the
    records after it are handed out, and the records in front of it into `cut`; it is no problem of its own where a file
    has another one's name."""
    foreign = [start for start in map(offset_of, misnamed) if start is not None]
    join = DamageJoin()
    last: FileSurvey | None = None
    for survey in surveys:
        if last is None:
            report.log_begin = report.log_end = survey.base_offset
        report.log_file_count += survey.file is not None
        for damage in join.take(survey):
            report.damages.append(damage)
            if not any(damage.begin <= start < damage.end for start in foreign):
                _report_damage(report, damage, survey)
        if not report.is_live:
            cut.update(_cut_records(survey))
        for first in range(0, len(survey.positions), CHUNK_RECORDS):
            part = slice(first, first + CHUNK_RECORDS)
            assert survey.file is not None
            yield Chunk(survey.file, survey.base_offset, survey.positions[part], survey.sizes[part])
        if len(survey.positions):
            report.log_end = survey.base_offset + (survey.full_size if survey.is_closed else survey.end)
        if last:
            last.close()
        last = survey
    if last:
        if last.reason == UNREADABLE:
            report.damages.append(Damage(report.log_end, last.base_offset + last.full_size, UNREADABLE))
        elif join.open_begin is not None:
            _end_of_log(report, last, join, known_end, is_misnamed=max(foreign, default=-1) >= join.open_begin)
        last.close()


def _report_damage(report: VerifyReport, damage: Damage, survey: FileSurvey) -> None:
    position = damage.begin % survey.full_size
    path = survey.path.with_name(f"{damage.begin - position:020d}")
    report.add(
        Problem(
            "log", str(path), position, "a whole record", f"{MEANING[damage.reason]}; "
            f"{counted(damage.end - damage.begin, 'byte')} up to the next whole record at log offset {damage.end:,} "
            "cannot be read", "restore the file from a copy, or let `stratalog repair STORE` set the range aside; as "
            "it is, stratalog skips the range and serves what is after it, RocketMQ drops everything after it",
        )
    )  # fmt: skip


def _end_of_log(
    report: VerifyReport, last: FileSurvey, join: DamageJoin, known_end: Callable[[], int], *, is_misnamed: bool
) -> None:  # fmt: skip
    """No record follows: the log ends here. Something written after the end is a record that was never finished, if
    the log is not known to have reached further."""
    assert join.open_begin is not None
    position = join.open_begin % last.full_size
    path = last.path.with_name(f"{join.open_begin - position:020d}")
    report.torn_size = max(0, join.written_end - join.open_begin)
    kept_end = known_end() if report.torn_size else 0
    is_cut_off = join.is_unfinished and join.open_begin >= kept_end
    if report.torn_size and (report.clean or not join.is_unfinished):
        if not is_misnamed:
            report.add(
                Problem(
                    "log", str(path), position, "the end of the log (zeros), because the store was closed properly"
                    if report.clean else "the end of the log, or unfinished records",
                    f"{counted(report.torn_size, 'byte')} of a damaged record" if join.is_unfinished else
                    f"{counted(report.torn_size, 'byte')} in a file that begins with a record of another place in "
                    "the log",
                    "restore the file from a copy, or let `stratalog repair STORE` set the bytes aside"
                    + (", before the store is opened for writing, which cuts them off" if is_cut_off else ""),
                )
            )  # fmt: skip
        report.damages.append(Damage(report.log_end, last.base_offset + last.full_size, "TORN"))
    elif report.torn_size and not report.is_live:
        report.notes.append(
            f"{path} at byte {position:,}: {counted(report.torn_size, 'byte')} of an unfinished record; the next "
            "opening for "
            + ("writing cuts them off" if is_cut_off else f"writing goes on after them, at log offset {kept_end:,}")
        )
