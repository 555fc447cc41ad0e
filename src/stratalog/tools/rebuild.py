"""Building queues, index and checkpoint again from the log, beside the old ones, and swapping them in.

A store that has this log and nothing else is opened in a directory inside the old one, closed, and what it then holds
takes the old files' places: the bytes are those that dispatch writes, because dispatch writes them. The log is mapped
privately, so no byte of it changes. Each directory is exchanged in one step; a kill leaves the old or the new one, and
what was built beside is removed by the next call.
"""

import contextlib
import ctypes
import errno
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, CorruptData, StoreUnavailable, command
from stratalog.layout import names
from stratalog.layout.javahash import string_hash
from stratalog.layout.light import LIGHT_QUEUE_ID, has_other_id, holds_nearly, is_light, is_sent_to
from stratalog.layout.message import FIXED_SIZE_V1, Record, queue_offset_limit
from stratalog.layout.names import SCHEDULE_TOPIC, is_index_name, offset_of
from stratalog.layout.properties import TAGS, find_property
from stratalog.layout.queue import (
    BATCH_UNIT,
    EXTENSION_ADDRESS_BASE,
    LOST_TAGS_CODE,
    UNIT,
    fillers,
    is_extension_address,
)
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.disk import UNFINISHED, ClockNs, Disk, MappedFile, PrivateDisk, queue_directories
from stratalog.store.dispatch import LeftOut
from stratalog.store.evidence import DELETED_AGAIN
from stratalog.store.extension import count_bitmaps
from stratalog.store.index_file import usual_sizes
from stratalog.store.opening import check_whole, open_store
from stratalog.store.os_errors import refusing
from stratalog.store.queue_begin import (
    QUEUE_LAYOUTS,
    QueueBegin,
    QueueKey,
    first_units,
    has_place,
    layout_of,
    says_twice,
    written_units,
)
from stratalog.store.queue_set import has_light_queues
from stratalog.store.recovery import Damage
from stratalog.store.rederive import Progress
from stratalog.store.sizes import check_given_sizes, note_sizes, remove_index_step, sized, unconfirmed
from stratalog.store.snapshot import (
    QueueEnd,
    forget_ends,
    is_ours,
    make_ours,
    note_damages,
    note_ends,
    noted_ends,
    sealed_ends,
    told_longer,
)
from stratalog.store.topics import Topics
from stratalog.tools.batches import of_wrong_type
from stratalog.tools.copying import copy_file
from stratalog.tools.evidence import Evidence, are_appended, queue_begins
from stratalog.tools.opened import counted_queues
from stratalog.tools.own_files import free_name, refuse_if_locked, refuse_links, refuse_misplaced, refuse_without_log
from stratalog.tools.survey import MISSING_MAX, survey_log
from stratalog.tools.unqueued import LogRange, differ, forgotten, kinds_in_log, known_end, unqueued, written_end
from stratalog.tools.verify_files import (
    QUEUE_TREES,
    UNDER_REPAIR,
    is_of_other_type,
    may_be_torn,
    queue_file_size,
    record_at,
    was_closed,
)

Part = Literal["queues", "index", "checkpoint"]
PARTS: tuple[Part, ...] = ("queues", "index", "checkpoint")
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_UNITS_ASKED = 64
_GONE_PER_LIVE = 4
"""With fewer expired units for each one that leads into the log, a queue may be a copy of another."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild made, and the ranges of the log that it stepped over."""

    parts: tuple[Part, ...]
    record_count: int
    log_end: int
    queue_count: int
    unit_count: int
    index_item_count: int
    damages: tuple[Damage, ...]
    left_out: tuple[LeftOut, ...] = ()
    unqueued: str = ""
    """Which messages of the log are in no queue, though the old queues led to them or are lost."""
    notes: tuple[str, ...] = ()
    """What else was found in the log, such as records that are left out and queue offsets that no record has."""
    moved: tuple[str, ...] = ()
    """Messages that are in another queue than before: the newest unit of the old one led there, the record names the
    new one."""
    new_queue_count: int = 0
    """Queues without a directory before: their files were lost, or their topics deleted."""
    ahead_count: int = 0
    """Queues of a crashed store that knew messages after the log's end: these are lost, and their offsets may be given
    again."""
    gone_count: int = 0
    """Messages before the log's first file that the old queues named: removed by retention, or lost with a file."""
    longer: str = ""
    """Which queues end later than at the last clean stop, as messages of others stand in them; in words."""
    bitmap_count: int = 0
    """Filter bitmaps of queue extensions that were lost: they come from a broker's subscriptions, not from the log."""

    @property
    def lost(self) -> str:
        """What `ahead_count` says, in words; empty where it is 0."""
        if not self.ahead_count:
            return ""
        return (
            f"queues that knew messages after the log's end, as after a crash: {self.ahead_count:,}; the messages "
            f"are lost, and their offsets may be given again. {DELETED_AGAIN}"
        )


class _BesideDisk(Disk):
    """A disk that writes for real, but for one directory, the log, whose changes stay in memory."""

    is_draft = True

    def __init__(self, log: Path, real: Disk) -> None:
        self._log = log.absolute()  # as a store has it, whatever it was given
        self._private, self._real = PrivateDisk(), real
        self._process = real._process  # a child forked since `real` was made writes nothing

    def _of(self, directory: Path) -> Disk:
        return self._private if directory.absolute() == self._log else self._real

    def map(self, path: Path) -> MappedFile:
        return self._of(path.parent).map(path)

    def files(self, directory: Path) -> dict[str, int]:
        return self._of(directory).files(directory)

    def remove(self, path: Path) -> None:
        self._of(path.parent).remove(path)

    def exists(self, path: Path) -> bool:
        return self._of(path.parent).exists(path)

    def clear_unfinished(self, directory: Path) -> None:
        self._of(directory).clear_unfinished(directory)


def check_store(root: Path, settings: StoreSettings) -> None:
    """Raise `NotAStore` where there is no log, `StoreLocked` while the store is open for writing, `ConfigurationError`
    where its files have other sizes than given."""
    with refusing(f"{root} cannot be rebuilt"):
        refuse_if_locked(root, "rebuild")
        check_whole(root)
        refuse_without_log(root)
        check_given_sizes(settings, root, PrivateDisk())


def rebuild(
    root: str | os.PathLike[str],
    *,
    settings: StoreSettings | None = None,
    parts: Collection[Part] = PARTS,
    clock_ns: ClockNs = time.time_ns,
    progress: Callable[[Progress], None] | None = None,
) -> Rebuilt:
    """Build the derived files of a closed store again. Damaged ranges of the log are stepped over.

    `progress` is called as by `stratalog.open`.

    A queue whose messages have all gone by retention keeps its old files: they alone know its next offset. Raises
    `StoreLocked` while a broker has the store open, `CorruptData` where the log has to be repaired first (the new
    queues would lead to fewer messages than the old ones, or files are missing at the log's end), `DiskFull` or
    `StoreUnavailable` (each directory is the old one or the new one then: call it again), `NotAStore`.
    """
    root, disk, settings = Path(root), Disk(), settings or StoreSettings()
    check_store(root, settings)
    with refusing(f"{root} cannot be rebuilt", "Run the same command again"):
        release = disk.lock(root / names.LOCK)
        try:
            return rebuild_locked(root, disk, settings, clock_ns, parts, progress)
        finally:
            release()


def rebuild_locked(
    root: Path, disk: Disk, settings: StoreSettings, clock_ns: ClockNs, parts: Collection[Part] = PARTS,
    progress: Callable[[Progress], None] | None = None, *, may_serve_less: bool = False,
    mended: Collection[int] = (), guessed: Collection[str] = (),
) -> Rebuilt:  # fmt: skip
    """`rebuild` for a caller who holds the store's lock; with `may_serve_less` for one who reports `unqueued`, and has
    mended the records at some log offsets: what else led there was wrong. `guessed` are sizes that it did not give."""
    refuse_links(root, but=(names.COMMIT_LOG,))
    refuse_misplaced(root)
    staging = root / names.STAGING
    given, settings = settings, rebuild_settings(settings, root)
    guessed = guessed or unconfirmed(given, settings, root, disk)
    if "index" not in parts and "checkpoint" not in parts:
        settings = replace(settings, message_index_enable=False)
    clear_staging(root, disk)
    sealed, begins = sealed_ends(root, disk), queue_begins(root, disk)
    try:
        _prepare(root, staging, begins, disk)
        has_light = has_light_queues(staging, disk, settings)  # what is built may have some of them
        rebuilt = _build(staging, disk, settings, clock_ns, progress)
        if not rebuilt.record_count:
            _refuse_to_empty(root, disk)
        log = LogRange(_log_begin(root, disk), rebuilt.log_end, settings.commit_log_file_size, rebuilt.damages)
        end = known_end(root, log, settings, disk)
        if end and not may_serve_less:
            raise CorruptData(
                f"the log ends at offset {log.end:,}, but checkpoint or index show that it reached {end:,}: "
                f"{_restore_step(root)}",
                path=str(root / names.COMMIT_LOG),
            )
        topics, outside, light = Topics(staging, disk), dict[str, int](), ""
        moved = dict[QueueEnd, tuple[int, str]]()
        if "queues" in parts:
            outside, light = kinds_in_log(root, topics, rebuilt.damages, rebuilt.log_end, has_light=has_light)
        ends: list[QueueEnd] = []
        if "queues" in parts:
            ends += _short_ends(root, staging, disk, sealed, log)
            ends += _gone_ends(root, disk, log)
            moved = dict(_moved_ends(root, staging, disk, rebuilt))
            ends += moved
            ends += _lost_ends(root, staging, disk, rebuilt.damages) if not may_serve_less else ()
            for key in _led_to_only(root, staging, disk, mended) if mended else ():
                sealed.pop(key, None)
                ends = [one for one in ends if (one.topic, one.queue_id) != key]
            moved = {one: told for one, told in moved.items() if one in ends}
        if light or ends or any(topic not in topics.configs for topic in outside):  # only the log says so
            clear_staging(root, disk)
            batches = outside.keys() - topics.configs
            _prepare(root, staging, begins, disk, batch_topics=batches, light_queue=light, ends=ends)
            rebuilt = _build(staging, disk, settings, clock_ns, progress)
        missing = (
            unqueued(
                root,
                staging,
                rebuilt.damages,
                log_end=rebuilt.log_end,
                is_repaired=may_serve_less,
                told=[offset for offset, text in moved.values() if may_serve_less and text],
            )
            if "queues" in parts
            else []
        )
        if missing and not may_serve_less:
            raise CorruptData(
                f"{_told_unqueued(missing)}. Nothing was changed; {command('repair', root)} restores such records or "
                "says why not",
                path=str(root / names.COMMIT_LOG),
            )
        if not may_serve_less and (anew := _begun_anew(root, staging, rebuilt.left_out, disk)):
            raise CorruptData(
                f"the messages of {anew.topic}/{anew.queue_id} begin again at queue offset 0 at log offset "
                f"{anew.commit_log_offset:,}, as those of a topic that was deleted and created again, and would be "
                f"missing in their queue. Nothing was changed; {command('repair', root)} says what tells them apart",
                path=str(root / names.COMMIT_LOG),
            )
        if "queues" in parts and not may_serve_less:
            _refuse_to_move_light(root, staging, rebuilt.left_out, disk)
        if "queues" in parts and not may_serve_less and differ(root, staging, log):
            _refuse_foreign(root, settings, disk, outside, has_light=has_light or bool(light))
        for topic in () if may_serve_less else outside.keys() & topics.configs.keys():
            raise of_wrong_type(root, topic, outside[topic])
        bitmap_count = _bitmap_count(root, staging, disk) if "queues" in parts else 0
        built = list(_queues(staging, disk))
        counts = [_message_units(directory, disk) for directory in built]
        new_count = sum(not (root / directory.relative_to(staging)).exists() for directory in built)
        carried, ahead_count = _carry_over(root, staging, disk, settings, log, may_forget=may_serve_less)
        rebuilt = replace(
            rebuilt, parts=tuple(part for part in PARTS if part in parts), bitmap_count=bitmap_count,
            queue_count=len(counts) + len(carried), unit_count=sum(counts), new_queue_count=new_count,
            ahead_count=ahead_count, moved=tuple(text for _, text in moved.values() if text),
        )  # fmt: skip
        gone_count = _gone_count(root, disk, log.begin) if "queues" in parts else 0
        rebuilt = replace(rebuilt, unqueued=_told_unqueued(missing) if missing else "", gone_count=gone_count)
        if "queues" in parts and was_closed(root, disk):
            longer = told_longer(sealed, {key: written_end(staging, key, disk) for key in sealed})
            rebuilt = replace(rebuilt, longer=longer)
        _seal_carried(staging, carried, disk, settings)
        if not is_ours(root, disk):  # our mark would make the old ends count again
            forget_ends(root, disk)
        _swap(root, staging, rebuilt.parts, disk)
        if "index" in parts:
            note_sizes(settings, root, disk, guessed=guessed)  # they may have been given
        if "queues" in parts:
            begins = _begins_to_keep(root, begins, disk)
            sealed = {key: max(end, written_end(root, key, disk)) for key, end in sealed.items()}
            note_damages(
                root, disk, rebuilt.damages, rebuilt.left_out, _log_begin(root, disk), rebuilt.log_end, sealed, begins
            )  # fmt: skip
            if not is_ours(root, disk):
                make_ours(root, disk)
            Topics(root, disk).enter_batch_topics(now_ms=clock_ns() // 1_000_000, release=settings.compatibility)
    finally:
        with contextlib.suppress(OSError):
            disk.remove_tree(staging)
    return rebuilt


def _log_begin(root: Path, disk: Disk) -> int:
    starts = (offset_of(name) for name in disk.files(root / names.COMMIT_LOG))
    return min((start for start in starts if start is not None), default=0)


def _restore_step(root: Path) -> str:
    return (
        f"restore the newest files of {names.COMMIT_LOG}/. To go on without such messages run "
        f"{command('repair', root)}, which keeps the queue offsets that the queues show. Nothing was changed"
    )


def _refuse_to_empty(root: Path, disk: Disk) -> None:
    """Raise `CorruptData` where not one whole record is in the log, though queues lead to some."""
    log_begin = _log_begin(root, disk)
    trees = (names.CONSUME_QUEUE, UNIT), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT)
    if any(
        bool(np.any(units[1] >= log_begin))
        for tree, layout in trees
        for *_, directory in queue_directories(root, tree, disk)
        for units in written_units(directory, layout, disk)
    ):
        raise CorruptData(
            "not one whole record is in the log, and queues point to some: restore it from a copy. Nothing was changed",
            path=str(root / names.COMMIT_LOG),
        )


def _refuse_foreign(
    root: Path, settings: StoreSettings, disk: Disk, batch_topics: Collection[str], *, has_light: bool
) -> None:
    """Raise `CorruptData` for a log file of another store, as a repair does. Of exchanged queues the log tells all that
    a rebuild needs."""
    evidence = Evidence(root, settings, disk, batch_topics=batch_topics, has_light=has_light)
    file_size, is_torn = settings.commit_log_file_size, may_be_torn(root, disk)
    for survey in survey_log(root / names.COMMIT_LOG, PrivateDisk(), file_size=file_size, may_be_torn=is_torn):
        evidence.take(survey)
        survey.close()
    evidence.take_units(_log_begin(root, disk))
    evidence.refuse_foreign(but_exchanged=True)


def clear_staging(root: Path, disk: Disk) -> None:
    """Remove what a rebuild left that did not end. An old directory that it was about to exchange goes back first."""
    staging = root / names.STAGING
    for name in (*QUEUE_TREES, names.INDEX):
        aside = _aside(staging / name)
        if aside.exists() and not (root / name).exists():
            disk.os.rename(aside, root / name)
    if staging.is_dir():
        disk.remove_tree(staging)
    else:
        disk.remove(staging)


def _begun_anew(root: Path, staging: Path, left_out: Collection[LeftOut], disk: Disk) -> LeftOut | None:
    """A message that is left out of its queue, as another has offset 0: in a light queue one that came there in the
    same way, in others one that later messages follow."""
    begun = defaultdict[str, set[bool]](set)
    later = {(one.topic, one.queue_id): one.commit_log_offset for one in sorted(left_out) if one.queue_offset}
    for one in left_out:
        if one.queue_offset:
            continue
        if not is_light(one.topic):
            if later.get((one.topic, one.queue_id), -1) > one.commit_log_offset:
                return one
            continue
        directory = staging / names.CONSUME_QUEUE / one.topic / str(one.queue_id)
        first = [unit.commit_log_offset for unit in first_units(directory, UNIT, 0, disk)[:1]]
        records = (record_at(root, offset, disk) for offset in (*first, one.commit_log_offset))
        *ways, way = (is_sent_to(one.topic, record.topic) for record in records if record)
        if way in begun[one.topic].union(ways):
            return one
        begun[one.topic] |= {way, *ways}
    return None


def _refuse_to_move_light(root: Path, staging: Path, left_out: Collection[LeftOut], disk: Disk) -> None:
    if moved := list(_moved_light(root, staging, left_out, disk)):
        topic, number, offset = moved[0]
        raise CorruptData(
            f"messages of light queues that would be missing in them or stand elsewhere: {len(moved):,}, the first at "
            f"offset {number:,} of {topic}/{LIGHT_QUEUE_ID} and log offset {offset:,}: it or messages before it name "
            f"later offsets. Nothing was changed; {command('repair', root)} lets each stand where its unit is",
            path=str(root / names.COMMIT_LOG),
        )


def _moved_light(
    root: Path, staging: Path, left_out: Collection[LeftOut], disk: Disk
) -> Iterator[tuple[str, int, int]]:  # fmt: skip
    """Light queue, queue offset and log offset of the units that lead to a message that is left out, though it names
    that offset, or to one that RocketMQ put in front of the offset it names."""
    for topic, queue_id, directory in queue_directories(root, names.CONSUME_QUEUE, disk):
        if is_light(topic) and queue_id == LIGHT_QUEUE_ID:
            numbers, offsets = _units_of(directory, disk)
            named, records = _units_of(staging / directory.relative_to(root), disk)
            out = {(one.queue_offset, one.commit_log_offset) for one in left_out if one.topic == topic}
            is_moved = are_appended(records, named, numbers, offsets)
            if out:
                is_moved |= [unit in out for unit in zip(numbers.tolist(), offsets.tolist(), strict=True)]
            for number, offset in zip(numbers[is_moved].tolist(), offsets[is_moved].tolist(), strict=True):
                yield topic, number, offset


def _units_of(directory: Path, disk: Disk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Queue offsets and log offsets of the units of a queue that lead to messages."""
    pieces = [(np.empty(0, np.int64),) * 2]
    for numbers, offsets, *_, tags_codes in written_units(directory, UNIT, disk):
        is_message = tags_codes != LOST_TAGS_CODE
        pieces.append((numbers[is_message], offsets[is_message]))
    numbers, offsets = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return numbers, offsets


def _told_unqueued(records: list[Record]) -> str:
    first = records[0]
    return (
        f"messages of the log that would be missing in their queues: {len(records):,}, the first at log offset "
        f"{first.commit_log_offset:,}: it says that it has offset {first.queue_offset:,} in "
        f"{first.topic.decode(errors='replace')}/{first.queue_id}, and other records say otherwise"
    )


def rebuild_settings(settings: StoreSettings, root: Path) -> StoreSettings:
    """Settings with the sizes that the old files had; of a damaged index, with RocketMQ's ratio of slots to items.
    Queues have extensions if the broker gave the newest message one. Raises `CorruptData` for an index whose slots
    and items cannot be told."""
    disk = PrivateDisk()
    found = sized(settings, root, disk)
    found = replace(found, enable_consume_queue_ext=settings.enable_consume_queue_ext or _extends(root, disk))
    if found.max_hash_slot_num is None or found.max_index_num is None:
        if split := usual_sizes(disk, root / names.INDEX):
            return replace(found, max_hash_slot_num=split[0], max_index_num=split[1])
        for name, size in disk.files(root / names.INDEX).items():
            if is_index_name(name) and size:
                raise CorruptData(
                    f"its {size:,} bytes do not tell how many slots and items it has; give max_hash_slot_num and "
                    f"max_index_num as the broker has them, or {remove_index_step(root / names.INDEX, found)}",
                    path=str(root / names.INDEX / name),
                )
    return found


def _extends(root: Path, disk: Disk) -> bool:
    """Whether the newest unit that agrees with its record points to an extension; without any unit, whether there are
    extensions."""
    if not any(disk.files(directory) for *_, directory in queue_directories(root, names.CONSUME_QUEUE_EXT, disk)):
        return False
    newest = -1, EXTENSION_ADDRESS_BASE
    for topic, queue_id, directory in queue_directories(root, names.CONSUME_QUEUE, disk):
        units = [] if is_light(topic) else islice(_newest_units(directory, disk), _UNITS_ASKED)  # light: never
        for place, (commit_log_offset, _, tags_code) in units:
            record = record_at(root, commit_log_offset, disk)
            own = (topic.encode(), queue_id, place)
            if record is None or (record.topic, record.queue_id, record.queue_offset) != own:
                continue  # another queue's, by damage
            tags = find_property(record.properties, TAGS.encode()) or ""
            if topic == SCHEDULE_TOPIC or is_extension_address(tags_code) or tags_code == string_hash(tags):
                newest = max(newest, (commit_log_offset, tags_code))
                break
    return is_extension_address(newest[1])


def _newest_units(directory: Path, disk: Disk) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Queue offset and fields of the units in a queue's files that stand for a message, newest first."""
    for name in reversed(disk.files(directory)):
        start = offset_of(name)
        if start is None:
            continue
        stored = (directory / name).read_bytes()
        units = np.frombuffer(stored, UNIT.dtype, len(stored) // UNIT.size)
        for number in np.flatnonzero((units["size"] > 0) & ~fillers(units))[::-1].tolist():
            yield start // UNIT.size + number, units[number].item()


def _bitmap_count(root: Path, staging: Path, disk: Disk) -> int:
    """Filter bitmaps in the extensions of the queues that were built again."""
    return sum(
        count_bitmaps((directory / name).read_bytes())
        for topic, queue_id, directory in queue_directories(root, names.CONSUME_QUEUE_EXT, disk)
        if (staging / names.CONSUME_QUEUE / topic / str(queue_id)).exists()
        for name in disk.files(directory)
    )


def _lost_ends(root: Path, staging: Path, disk: Disk, damages: Collection[Damage]) -> Iterator[QueueEnd]:
    """Ends of the queues that ended with lost messages: their units say so, or lead to damaged records."""
    for tree, layout in ((names.CONSUME_QUEUE, UNIT), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for topic, queue_id, old in queue_directories(root, tree, disk):
            lost, built = 0, 0
            for numbers, offsets, _, counts, tags_codes in written_units(old, layout, disk):
                is_lost = tags_codes == LOST_TAGS_CODE
                for damage in damages:
                    is_lost |= (offsets >= damage.begin) & (offsets < damage.end)
                lost = max(lost, int((numbers + np.maximum(counts, 1))[is_lost].max(initial=0)))
            for numbers, _, _, counts, _ in written_units(staging / tree / topic / str(queue_id), layout, disk):
                built = max(built, int((numbers + np.maximum(counts, 1)).max(initial=0)))
            if 0 < built < lost:
                yield QueueEnd(topic, queue_id, lost, 0)


def _short_ends(
    root: Path, staging: Path, disk: Disk, sealed: Mapping[tuple[str, int], int], log: LogRange
) -> Iterator[QueueEnd]:
    """Ends at the last clean stop that the queues built do not reach, nor those that are carried over: their files were
    lost or damaged, or damage lets the log tell another queue of their messages."""
    for (topic, queue_id), end in sealed.items():
        if written_end(staging, (topic, queue_id), disk) >= end:
            continue
        is_carried = any(
            not (new := staging / tree / topic / str(queue_id)).exists()
            and forgotten(root / tree / topic / str(queue_id), new, layout, log)[0]
            for tree, layout in ((names.CONSUME_QUEUE, UNIT), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT))
        )
        if not is_carried or written_end(root, (topic, queue_id), disk) < end:
            yield QueueEnd(topic, queue_id, end, end)


def _gone_ends(root: Path, disk: Disk, log: LogRange) -> Iterator[QueueEnd]:
    """Ends of the queues of which nearly all messages went by retention, and a unit is damaged: it leads into the log,
    where no message of the queue may be, or nowhere, or is zeros."""
    log_limit = log.end + MISSING_MAX * log.file_size
    for tree, layout in ((names.CONSUME_QUEUE, UNIT), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            end = gone_count = live_count = damaged_count = 0
            for numbers, offsets, sizes, counts, tags_codes in written_units(directory, layout, disk, damaged=True):
                is_sound = (sizes > 0) & (offsets < log_limit)
                begins, ends = numbers[is_sound], (numbers + np.maximum(counts, 1))[is_sound]
                is_after_hole = begins != np.append(end or begins[:1], ends[:-1])
                damaged_count += int(np.count_nonzero(~is_sound)) + int(np.count_nonzero(is_after_hole))
                is_live = is_sound & (offsets >= log.begin) & (tags_codes != LOST_TAGS_CODE)
                live_count += int(np.count_nonzero(is_live))
                gone_count += int(np.count_nonzero(is_sound & (offsets < log.begin)))
                end = max(end, int(ends.max(initial=0)))
                for number, count in zip(numbers[~is_sound].tolist(), counts[~is_sound].tolist(), strict=True):
                    if layout is UNIT or number == end:  # one of a batch queue may say anything
                        end = max(end, number + max(count, 1))
            is_doubtful = damaged_count + live_count and _GONE_PER_LIVE * live_count < gone_count
            if is_doubtful and end <= queue_offset_limit(log.begin):
                yield QueueEnd(topic, queue_id, end, 0)


def _gone_count(root: Path, disk: Disk, log_begin: int) -> int:
    """Messages before the log that queues name. What is in a light queue is in another one, too."""
    return sum(
        int(np.maximum(counts, 1)[(offsets < log_begin) & (tags_codes != LOST_TAGS_CODE)].sum())
        for tree, layout in ((names.CONSUME_QUEUE, UNIT), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT))
        for topic, _, directory in queue_directories(root, tree, disk) if not is_light(topic)
        for _, offsets, _, counts, tags_codes in written_units(directory, layout, disk)
    )  # fmt: skip


def _led_to_only(root: Path, staging: Path, disk: Disk, mended: Collection[int]) -> Iterator[tuple[str, int]]:
    """Queues that led to nothing but mended records, and have none now: the records named them by damage."""
    log_begin = _log_begin(root, disk)
    for tree, layout in ((names.CONSUME_QUEUE, UNIT), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            if written_end(staging, (topic, queue_id), disk):
                continue
            led = other = 0
            for _, offsets, *_, tags_codes in written_units(directory, layout, disk):
                inside = offsets[(offsets >= log_begin) & (tags_codes != LOST_TAGS_CODE)]
                led += len(inside)
                other += int(np.count_nonzero(~np.isin(inside, list(mended))))
            if led and not other:
                yield topic, queue_id


def _moved_ends(root: Path, staging: Path, disk: Disk, rebuilt: Rebuilt) -> Iterator[tuple[QueueEnd, tuple[int, str]]]:
    """Ends of the queues built whose newest message, by the old units, is a record that names another place now: its
    offset was given; the record's log offset, and what to tell of it, unless it is told as damage."""
    for end, number, record in _led_elsewhere(root, disk, staging):
        is_served = _has_queue(record) and record.commit_log_offset < rebuilt.log_end
        is_served &= not any(one.begin <= record.commit_log_offset < one.end for one in rebuilt.damages)
        text = f"{_led_text(end, number, record)}, and is served there"
        text = f"{text}. If the queue was not renamed, the record is damaged" if is_served else ""
        yield end, (record.commit_log_offset, text)


def may_move(root: Path) -> list[str]:
    """Messages that a rebuild may put into another queue. Which of them it does only the log tells, read whole."""
    with refusing(f"{root} cannot be rebuilt"):
        return [_led_text(*one) for one in _led_elsewhere(root, PrivateDisk()) if _has_queue(one[2])]


def _led_elsewhere(
    root: Path, disk: Disk, staging: Path | None = None
) -> Iterator[tuple[QueueEnd, int, Record]]:  # fmt: skip
    """Ends of the queues whose newest message, by their units, is a record that names another place; its offset there,
    and the record. Where another of the newest units leads to another queue's record too, the files are that queue's.
    Where the only unit leads to a foreign record, the end is 0. Left out are queues that reach as far below
    `staging`."""
    log_begin = _log_begin(root, disk)
    for tree, layout in ((names.CONSUME_QUEUE, UNIT), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT)):
        for topic, queue_id, directory in queue_directories(root, tree, disk):
            newest, ends = list[tuple[int, int, int, int]](), [0, 0]
            for numbers, offsets, sizes, counts, tags_codes in written_units(directory, layout, disk):
                is_live = (offsets >= log_begin) & (tags_codes != LOST_TAGS_CODE) & (sizes >= FIXED_SIZE_V1)
                is_live &= numbers <= queue_offset_limit(offsets)
                led = np.flatnonzero(is_live)[-_UNITS_ASKED:]
                columns = (
                    column[led].tolist() for column in (numbers, offsets, numbers + np.maximum(counts, 1), sizes)
                )
                newest = [*newest, *zip(*columns, strict=True)][-_UNITS_ASKED:]
                ends = [*ends, *(numbers + np.maximum(counts, 1))[-2:].tolist()][-2:]
            if has_other_id(topic, queue_id) or not newest:
                continue
            if staging and written_end(staging, (topic, queue_id), disk) >= newest[-1][2]:
                continue
            records = ((record_at(root, offset, disk), number) for number, offset, *_ in reversed(newest))
            record, number = next(records)
            if (
                record
                and record.total_size == newest[-1][3]
                and newest[-1][1] not in {offset for _, offset, *_ in newest[:-1]}  # it stands in a queue once
                and not has_place(record, topic, queue_id, number)
                and not (layout is BATCH_UNIT and _is_right(record, topic, queue_id, ends[0]))
                and all(one and has_place(one, topic, queue_id, place) for one, place in records)
            ):
                is_other = not ends[0] and _is_foreign(record, topic, queue_id)
                yield QueueEnd(topic, queue_id, 0 if is_other else newest[-1][2], 0), number, record


def _is_foreign(record: Record, topic: str, queue_id: int) -> bool:
    """Whether no single wrong bit lets a record name another queue than this one."""
    if is_light(topic) and queue_id == LIGHT_QUEUE_ID and holds_nearly(record.properties, topic):
        return False
    own, name = record.topic, topic.encode("utf-8", "surrogateescape")
    wrong_bits = (record.queue_id ^ queue_id).bit_count()
    wrong_bits += sum((one ^ other).bit_count() for one, other in zip(own, name, strict=False))
    return len(own) != len(name) or wrong_bits > 1


def _is_right(record: Record, topic: str, queue_id: int, before: int) -> bool:
    """Whether a record of a batch queue says its offset twice or goes on from the unit before: its own is wrong."""
    is_own = (record.topic.decode(errors="replace"), record.queue_id) == (topic, queue_id)
    return is_own and (says_twice(record) or record.queue_offset == before > 0)


def _has_queue(record: Record) -> bool:
    return names.is_topic(record.topic.decode(errors="replace")) and record.queue_id >= 0


def _led_text(end: QueueEnd, number: int, record: Record) -> str:
    return (
        f"offset {number:,} of {end.topic}/{end.queue_id} pointed to the record at log offset "
        f"{record.commit_log_offset:,}, which says that it has offset {record.queue_offset:,} in "
        f"{record.topic.decode(errors='replace')}/{record.queue_id}"
    )


def _begins_to_keep(root: Path, begins: Mapping[QueueKey, QueueBegin], disk: Disk) -> dict[QueueKey, QueueBegin]:
    """Where the queues begin whose new units do not tell it: their first messages are damaged."""
    log_begin = _log_begin(root, disk)
    told = {
        ((topic, queue_id), unit[:2])
        for tree, layout in ((names.CONSUME_QUEUE, UNIT), (names.BATCH_CONSUME_QUEUE, BATCH_UNIT))
        for topic, queue_id, directory in queue_directories(root, tree, disk)
        for unit in first_units(directory, layout, log_begin, disk)[:1]
    }
    return {key: begin for key, begin in begins.items() if (key, begin) not in told}


def _prepare(
    root: Path, staging: Path, begins: Mapping[QueueKey, QueueBegin], disk: Disk, *, batch_topics: Collection[str] = (),
    light_queue: str = "", ends: Collection[QueueEnd] = (),
) -> None:  # fmt: skip
    """A store with the same log, configuration and kinds of queues, and further ones; none ends before its `ends`."""
    foreign = [name for name in disk.files(root / names.CONSUME_QUEUE) if name == "CURRENT"]
    if foreign:
        raise ConfigurationError(f"{root / names.CONSUME_QUEUE} is a RocksDB: those queues are not built by stratalog")
    disk.create_directory(staging)
    if may_be_torn(root, disk):  # then opening looks for torn records, as it would in the store itself
        disk.replace(staging / names.ABORT, b"")
    disk.os.symlink((root / names.COMMIT_LOG).absolute(), staging / names.COMMIT_LOG)
    for name in disk.files(root / names.CONFIG):
        disk.create_directory(staging / names.CONFIG)
        copy_file(root / names.CONFIG / name, staging / names.CONFIG / name, disk)
    there = Topics(root, disk).batch_topics & set(disk.directories(root / names.BATCH_CONSUME_QUEUE))
    for topic in {*there, *batch_topics}:
        disk.create_directory(staging / names.BATCH_CONSUME_QUEUE / topic)  # so `Topics` takes it for one there, too
    if noted := [
        *(QueueEnd(*key, 0, 0, begin) for key, begin in begins.items()),
        *noted_ends(root, disk),
        *ends,
    ]:  # of two for a queue the later one tells its end
        note_ends(staging, disk, noted, 0)
    for topic in filter(is_light, [*disk.directories(root / names.CONSUME_QUEUE), light_queue]):
        disk.create_directory(staging / names.CONSUME_QUEUE / topic)  # see `has_light_queues`


def _build(
    staging: Path, real: Disk, settings: StoreSettings, clock_ns: ClockNs,
    progress: Callable[[Progress], None] | None,
) -> Rebuilt:  # fmt: skip
    staging = staging.absolute()
    disk, draft, root = _BesideDisk(staging / names.COMMIT_LOG, real), str(staging), str(staging.parent)
    try:
        with open_store(staging, settings=settings, disk=disk, clock_ns=clock_ns, progress=progress) as store:
            recovery, log_end = store.recovery, store.log.end_offset
    except CorruptData as error:  # of the log, which is the store's own
        message = f"{error}. Nothing was changed"
        error.args, error.path = (message.replace(draft, root),), error.path.replace(draft, root)
        raise
    except (OSError, StoreUnavailable) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and cause.filename:
            cause.filename = str(cause.filename).replace(f"{staging}/{names.COMMIT_LOG}", f"{root}/{names.COMMIT_LOG}")
        raise
    seal = Checkpoint.load(staging, disk).seal or Seal(log_end, 0, 0, 0)
    return Rebuilt(
        (),
        recovery.record_count,
        log_end,
        0,
        0,
        seal.index_item_count,
        tuple(recovery.quarantined),
        left_out=tuple(recovery.left_out),
        notes=tuple(note.replace(draft, root) for note in recovery.notes),
    )


def _carry_over(
    root: Path, staging: Path, disk: Disk, settings: StoreSettings, log: LogRange, *, may_forget: bool
) -> tuple[list[Path], int]:
    """Link the files of queues whose messages have all gone by retention or stood in damaged ranges: they alone know
    the next offset. Returns the directories of their units, and how many queues lead to messages after the log's end,
    as a crash leaves them. Raises `CorruptData` for such a queue of a store that was closed, whose offsets would be
    given again (not with `may_forget`).

    Left out are the queues of a topic that lie in the tree of another type, if there are some in the right one, and
    those with the units of another type. A plain queue that was moved to the tree of batch queues goes back."""
    topics, there, is_cut = Topics(staging, disk), Topics(root, disk), was_closed(root, disk)
    carried, ahead_count = list[Path](), 0
    for tree in QUEUE_TREES:
        for topic, queue_id, old in queue_directories(root, tree, disk):
            is_moved = tree == names.BATCH_CONSUME_QUEUE and there.is_moved(topic, queue_id)
            is_moved &= not topics.is_batch(topic)
            if not is_moved and tree in QUEUE_LAYOUTS and layout_of(old, disk) is not QUEUE_LAYOUTS[tree]:
                continue
            right = names.CONSUME_QUEUE if is_moved else tree
            new = staging / right / topic / str(queue_id)
            if has_other_id(topic, queue_id) or is_of_other_type(topics, right, topic, (root, staging), disk):
                continue
            if tree == names.CONSUME_QUEUE_EXT:
                is_kept = staging / names.CONSUME_QUEUE / topic / str(queue_id) in carried
            else:
                is_kept, lost_end = forgotten(old, new, QUEUE_LAYOUTS[right], log)
                if lost_end and is_cut and not may_forget:
                    raise CorruptData(
                        f"the log ends at offset {log.end:,}, and queue {topic}/{queue_id} points to a message up to "
                        f"{lost_end:,}: {_restore_step(root)}",
                        path=str(old),
                    )
                ahead_count += bool(lost_end)
            if is_kept and not new.exists():
                disk.create_directory(new)
                _link_files(old, new, queue_file_size(settings, right), disk)
                carried += [new] if tree != names.CONSUME_QUEUE_EXT else []
    return carried, ahead_count


def _link_files(old: Path, new: Path, file_size: int, disk: Disk) -> None:
    """Link a queue's files. One that was cut, or is too long, is copied and gets its size: opening refuses others. So
    does an empty one with others after it."""
    files = disk.files(old)
    is_batch = new.parents[1].name == names.BATCH_CONSUME_QUEUE
    kept = _files_that_join(old, file_size, disk) if is_batch else files
    for name, size in files.items():
        if offset_of(name) is None or name not in kept:
            continue
        if size == file_size or (not size and name == max(files)):
            disk.os.link(old / name, new / name)
        else:
            copy_file(old / name, new / name, disk)
            disk.os.truncate(new / name, file_size)


def _files_that_join(directory: Path, file_size: int, disk: Disk) -> list[str]:
    """Files of a batch queue after the newest one whose units are not whole, or do not lead up to those after it."""
    joined, begin = list[str](), None
    for name in reversed([name for name in disk.files(directory) if offset_of(name) is not None]):
        stored = (directory / name).read_bytes()
        units = np.frombuffer(stored, BATCH_UNIT.dtype, len(stored) // BATCH_UNIT.size)
        begins = units["base_offset"].astype(np.int64)
        ends = begins + units["batch_size"]
        is_whole = len(units) == file_size // BATCH_UNIT.size and bool(np.all(units["size"] > 0))
        if begin is not None and not (is_whole and np.array_equal(ends, np.append(begins[1:], begin))):
            break
        joined.append(name)
        written = np.flatnonzero(units["size"])
        begin = begins[written[0]] if written.size else begin
    return joined


def _queues(root: Path, disk: Disk) -> Iterator[Path]:
    for tree in (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE):
        yield from (directory for *_, directory in queue_directories(root, tree, disk))


def _message_units(directory: Path, disk: Disk) -> int:
    """Units in a queue's files that lead to a message. The clean-shutdown marker counts those in front of the first
    message, too."""
    layout = UNIT if directory.parents[1].name == names.CONSUME_QUEUE else BATCH_UNIT
    return sum(
        int(np.count_nonzero(tags_codes != LOST_TAGS_CODE)) for *_, tags_codes in written_units(directory, layout, disk)
    )


def _seal_carried(staging: Path, carried: list[Path], disk: Disk, settings: StoreSettings) -> None:
    """Count the carried queues into the seal, which otherwise would not fit."""
    checkpoint = Checkpoint.load(staging, disk)
    if carried and checkpoint.seal:
        queue_count, unit_count = counted_queues(staging, settings, checkpoint.seal.log_end_offset)
        seal = replace(checkpoint.seal, queue_count=queue_count, unit_count=unit_count)
        replace(checkpoint, seal=seal).store(staging, disk, compatibility=settings.compatibility)


def _swap(root: Path, staging: Path, parts: Collection[Part], disk: Disk) -> None:
    """Exchange old and new. While this goes on the store counts as not closed properly: whoever opens it after a kill
    looks at everything."""
    is_marked, was_clean = (root / names.ABORT).exists(), was_closed(root, disk)
    if was_clean:
        disk.replace(root / names.ABORT, UNDER_REPAIR)
    trees = (QUEUE_TREES if "queues" in parts else ()) + ((names.INDEX,) if "index" in parts else ())
    for name in (*trees, *((names.CHECKPOINT,) if "checkpoint" in parts else ())):
        old, new = root / name, staging / name
        if old.is_dir():
            _keep_foreign(root, old, disk)
        if old.exists() and new.exists():
            exchange(old, new, disk)
        elif new.exists():
            disk.os.rename(new, old)
        elif old.exists():
            disk.os.rename(old, new)
        disk.sync_directory(root)
    if was_clean and (not is_marked or set(parts) == set(PARTS)):
        disk.remove(root / names.ABORT)


def _keep_foreign(root: Path, old: Path, disk: Disk) -> None:
    """Keep files below the old directory that are none of a store's: they are not ours to remove."""
    for above, _, found in os.walk(old):
        for path in (Path(above, name) for name in found):
            if not _is_own(path.relative_to(root)):
                target = free_name(root / names.QUARANTINE / path.relative_to(root))
                disk.make_directory(target.parent)
                disk.os.rename(path, target)
                disk.sync_directory(target.parent)


def _is_own(path: Path) -> bool:
    """Whether a store names a file so, below `index` or below the directory of a queue."""
    match path.parts:
        case (names.INDEX, name):
            return is_index_name(name) or name.endswith(UNFINISHED)
        case (_, topic, queue_id, name) if names.is_topic(topic) and names.queue_id_of(queue_id) is not None:
            return offset_of(name) is not None or name.endswith(UNFINISHED)
    return False


def exchange(one: Path, other: Path, disk: Disk) -> None:
    """Let two files or directories of one file system change places, in one step where the file system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
        if disk.os and libc.renameat2(*arguments) == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise OSError(code, os.strerror(code), str(one))
    disk.os.rename(one, _aside(other))
    disk.os.rename(other, one)
    disk.os.rename(_aside(other), other)


def _aside(path: Path) -> Path:
    """Where the old directory is for a moment, on a file system that cannot exchange two in one step."""
    return path.with_name(path.name + UNFINISHED)
