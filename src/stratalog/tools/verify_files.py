"""The part of `verify` that looks at files as such: names, sizes and gaps, the configuration, the checkpoint."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, command, counted
from stratalog.layout import names
from stratalog.layout.checkpoint import CHECKPOINT, FILE_SIZE, SEAL, SEAL_POSITION
from stratalog.layout.light import is_light
from stratalog.layout.loosejson import decode_loose_json
from stratalog.layout.message import Record
from stratalog.layout.names import offset_name, offset_of
from stratalog.store import queue_begin
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.config_files import TOPICS, content_fault
from stratalog.store.disk import UNFINISHED, Disk, MappedFile, PrivateDisk, queue_directories
from stratalog.store.evidence import RESTORE_LOG
from stratalog.store.sizes import noted_fault
from stratalog.store.snapshot import has_torn, has_whole_snapshot, is_ours, noted_log
from stratalog.store.topics import Topics
from stratalog.tools.verify_report import REPAIR, Part, Problem, Unreadable, VerifyReport

BACKUP = ".bak"
JSON_SUFFIX = ".json"
QUEUE_TREES = (names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.CONSUME_QUEUE_EXT)
"""Directories that hold one directory for each topic, in that one for each queue, in that data files."""
UNDER_REPAIR = b"stratalog repair of a store that was closed properly"
"""What a repair writes into `abort` while it works on such a store."""
UNDER_REPAIR_UNCLEAN = b"stratalog repair of a store that was not closed properly"
_RESTORE = (
    "restore the files of commitlog/ that are missing or were replaced; without them their messages are lost, and "
    "`stratalog repair STORE` keeps the queue offsets that the queues still show"
)
SINGLE_FILES = (
    names.LOCK, names.ABORT, names.ABORT + UNFINISHED, names.CHECKPOINT, names.SNAPSHOT, names.SIZES
)  # fmt: skip
MISPLACED = "remove it, or move it out of the store; what belongs there is made again when it is needed"
_SET_ASIDE = "restore the file from a copy, or let `stratalog repair STORE` set it aside"
_AWAY = "move the file out of the directory: RocketMQ takes every file there for one of its own and does not start"


def was_closed(root: Path, disk: Disk) -> bool:
    """Whether the last stop was clean, though a repair may have been killed since."""
    if (root / names.ABORT).is_dir():
        return False
    return disk.read(root / names.ABORT, size_max=len(UNDER_REPAIR) + 1, cut=True) in (None, UNDER_REPAIR)


def may_be_torn(root: Path, disk: Disk) -> bool:
    """Whether a crash may have kept a record of the log from being written to its end: the last stop was not clean, or
    noted such a record."""
    return not was_closed(root, disk) or has_torn(root, disk)


def is_under_repair(root: Path, disk: Disk) -> bool:
    """Whether a repair or a rebuild is under way, or did not end."""
    if (root / names.ABORT).is_dir():
        return False
    mark = disk.read(root / names.ABORT, size_max=len(UNDER_REPAIR_UNCLEAN) + 1, cut=True)
    return mark in (UNDER_REPAIR, UNDER_REPAIR_UNCLEAN)


def log_files_size(root: Path, disk: Disk, file_size: int) -> int:
    """Bytes of the log by its files' names: what there is to look through."""
    starts = [start for name in disk.files(root / names.COMMIT_LOG) if (start := offset_of(name)) is not None]
    return starts[-1] - starts[0] + file_size if starts else 0


def queue_file_size(settings: StoreSettings, tree: str) -> int:
    """Bytes of a queue's file below one of `QUEUE_TREES`."""
    return {
        names.CONSUME_QUEUE: settings.consume_queue_file_size,
        names.BATCH_CONSUME_QUEUE: settings.batch_consume_queue_file_size,
        names.CONSUME_QUEUE_EXT: settings.consume_queue_ext_file_size,
    }[tree]


def misplaced(root: Path) -> Iterator[tuple[Path, str, str]]:
    """What is not of the kind that belongs there, of the files and directories that are made when they are needed: its
    path, what belongs there, what is there."""
    for name in SINGLE_FILES:
        if (root / name).exists() and not (root / name).is_file():
            yield root / name, "a file", "a directory" if (root / name).is_dir() else "no regular file"
    if (root / names.QUARANTINE).exists() and not (root / names.QUARANTINE).is_dir():
        yield root / names.QUARANTINE, "a directory", "a file"


def is_of_other_type(topics: Topics, tree: str, topic: str, roots: Sequence[Path], disk: Disk) -> bool:
    """Whether the queues of a topic do not belong below this tree, and there are some where they belong below one of
    these stores. Nobody reads them here, nor a light queue's below batchconsumequeue/."""
    if tree == names.CONSUME_QUEUE_EXT or topics.is_batch(topic) == (tree == names.BATCH_CONSUME_QUEUE):
        return False
    if is_light(topic):
        return True
    right = names.CONSUME_QUEUE if tree == names.BATCH_CONSUME_QUEUE else names.BATCH_CONSUME_QUEUE
    below = (root / right / topic for root in roots)
    return any(disk.files(at / queue_id) for at in below for queue_id in disk.directories(at))


def check_files(
    root: Path, settings: StoreSettings, disk: Disk, report: VerifyReport, *, misnamed: Mapping[str, str]
) -> None:  # fmt: skip
    """Look at every directory of data files, and at the configuration. The log's content is not looked at; `misnamed`
    are its files that have another one's name."""
    log = root / names.COMMIT_LOG
    restore = (
        "restore the file, or let `stratalog repair STORE` mend it: whole records are kept. If the store uses "
        "another size, give mapped_file_size_commit_log"
    )
    _check_directory(log, settings.commit_log_file_size, restore, disk, report, misnamed=misnamed)
    for path, expected, found in misplaced(root):
        _add(report, path, expected, found, MISPLACED)
    if not (root / names.SNAPSHOT).is_dir() and not has_whole_snapshot(root, disk):
        step = "remove it: it is written again when the store is closed"
        _add(report, root / names.SNAPSHOT, "content that has the CRC in it", "other content", step)
    for tree in QUEUE_TREES:
        for _, _, directory in queue_directories(root, tree, disk):
            _check_directory(directory, queue_file_size(settings, tree), REPAIR, disk, report)
    for name in filter(names.is_index_name, disk.directories(root / names.INDEX)):
        _add(report, root / names.INDEX / name, "a file", "a directory", REPAIR)
    for name in disk.files(root / names.INDEX):
        if not names.is_index_name(name):
            _add(report, root / names.INDEX / name, "an index file's name (17 digits)", "another name", _AWAY)
    if is_under_repair(root, disk) and not report.is_live:
        report.notes.append(f"a repair or rebuild of {root} did not end; run it again: {_repair_command(root)}")
    unfinished = [name for name in (*disk.files(root), *disk.directories(root)) if name.endswith(UNFINISHED)]
    for name in unfinished if not report.is_live else ():
        report.notes.append(f"{root / name}: {left_over(name)}; {_repair_command(root)} removes it")
    check_config(root, disk, report)


def _repair_command(root: Path) -> str:
    return command("repair", root, "--in-place", "--yes")


def no_record_step(settings: StoreSettings) -> str:
    """What to do about a log without one whole record."""
    size = settings.commit_log_file_size
    return f"{RESTORE_LOG}. If its files have another size than {size:,} bytes, give mapped_file_size_commit_log"


def left_over(name: str) -> str:
    """What a file or directory with an unfinished name in a store is."""
    return f"left over from a {'rebuild' if name == names.STAGING else 'process'} that did not end"


def _check_directory(
    directory: Path, file_size: int, next_step: str, disk: Disk, report: VerifyReport, *,
    misnamed: Mapping[str, str] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Files of one size, each named by where it begins, none missing between the first and the last."""
    files = disk.files(directory)
    starts: list[int] = []
    for name in disk.directories(directory):
        if offset_of(name) is not None:
            _add(report, directory / name, "a file", "a directory", next_step)
    for name, size in files.items():
        start = offset_of(name)
        if start is None:
            step = misnamed.get(name, _AWAY)
            _add(report, directory / name, "a data file's name (20 digits)", "another name", step)
            continue
        if name in misnamed:
            what = "records of this place of the log", "those of another place"
            _add(report, directory / name, *what, misnamed[name])
        starts.append(start)
        if start % file_size if file_size else 0:
            _add(report, directory / name, f"a file that begins at a multiple of {file_size:,}", "another", next_step)
        if size != file_size and (size or name != max(files)):  # a last file of no size is one that was just created
            _add(
                report,
                directory / name,
                f"a file of {file_size:,} bytes",
                counted(size, "byte"),
                next_step,
                position=size,
            )
    for low, high in pairwise(starts):
        if high - low > file_size:
            path = directory / offset_name(low + file_size)
            _add(report, path, f"a file for bytes {low + file_size:,} to {high - 1:,}", "no file", next_step)


def config_files(root: Path, disk: Disk) -> Iterator[Path]:
    """The JSON files of the configuration, named by the file or by its backup."""
    found = disk.files(root / names.CONFIG)
    primary = {name.removesuffix(BACKUP) for name in found}
    for name in sorted(name for name in primary if name.endswith(JSON_SUFFIX)):
        if not (root / names.CONFIG / name).is_dir():
            yield root / names.CONFIG / name


def config_directories(root: Path, disk: Disk) -> list[Path]:
    """Directories in the place of a JSON file of the configuration, or of its backup."""
    found = disk.directories(root / names.CONFIG)
    return [root / names.CONFIG / name for name in found if name.removesuffix(BACKUP).endswith(JSON_SUFFIX)]


def config_fault(path: Path, disk: Disk) -> str | None:
    """Why a configuration file cannot be read, None when it can."""
    try:
        content = disk.read(path)
        if not content:
            return "no file" if content is None else "an empty file"
        return content_fault(path, decode_loose_json(content))
    except CorruptData as error:
        return str(error)


def check_config(root: Path, disk: Disk, report: VerifyReport) -> None:
    """Every JSON file must be readable, or its backup: RocketMQ takes that then."""
    for path in config_directories(root, disk):
        step = "move it out of the store, and restore the file from a copy if there is one"
        _add(report, path, "a file", "a directory", step, part="config")
    for path in config_files(root, disk):
        fault = config_fault(path, disk)
        if fault is None:
            continue
        backup = path.with_name(path.name + BACKUP)
        if config_fault(backup, disk) is None:
            what, step = f"{fault}; {backup.name} is whole, the broker takes that", "`stratalog repair STORE` takes it"
        else:
            step = _SET_ASIDE
            if path.name == TOPICS and Topics(root, disk).batch_topics:
                step += " and add the topics of type BatchCQ"
            what = f"{fault}, and no backup that can be read: the broker begins with an empty one or does not start"
        _add(report, path, "configuration that can be read", what, step, part="config")
    if fault := noted_fault(root, disk):
        what = f"{fault}: the sizes of files that are lost are not known"
        _add(report, root / names.SIZES, "configuration that can be read", what, _SET_ASIDE, part="config")


def check_checkpoint(root: Path, disk: Disk, report: VerifyReport) -> None:
    """The checkpoint must name a record of the log; it may trail, but not be ahead. Call it when the log is known."""
    path = root / names.CHECKPOINT
    if path.is_dir():  # `check_files` says so
        return
    stored = disk.read(path, size_max=FILE_SIZE + 1, cut=True)
    if stored is None:
        return
    if len(stored) != FILE_SIZE:
        _add(report, path, f"{FILE_SIZE:,} bytes", counted(path.stat().st_size, "byte"), REPAIR, part="checkpoint")
        return
    checkpoint = Checkpoint.load(root, disk)
    if checkpoint.seal is None and SEAL.unpack(stored, SEAL_POSITION).log_end_offset:  # 0: of an empty store
        _add(report, path, "counts that fit their CRC", "others", REPAIR, position=SEAL_POSITION, part="checkpoint")
    _check_seal(path, checkpoint, report)
    offset = checkpoint.logics_commit_log_offset
    if offset and not report.in_damage(offset) and offset >= report.log_begin and record_at(root, offset, disk) is None:
        _add(
            report, path, "the log offset of a record", f"{offset:,}, where none begins (the log ends at "
            f"{report.log_end:,}): after a crash RocketMQ would not look at what is before it", REPAIR,
            position=CHECKPOINT.position("logics_commit_log_offset"), part="checkpoint",
        )  # fmt: skip


def _check_seal(path: Path, checkpoint: Checkpoint, report: VerifyReport) -> None:
    if checkpoint.seal and not report.is_live and _is_shorter(report, checkpoint.seal.log_end_offset):
        what = f"a log that reaches offset {checkpoint.seal.log_end_offset:,}, as it did when this was written"
        found = f"its end at {report.log_end:,}"
        _add(report, path, what, found, _RESTORE, position=SEAL_POSITION, part="log")


def _is_shorter(report: VerifyReport, log_end_offset: int) -> bool:
    """Whether the log once reached that offset, and no damage that is reported explains that it does not now."""
    return log_end_offset > report.log_end and not report.in_damage(log_end_offset - 1)


def check_snapshot(root: Path, disk: Disk, report: VerifyReport) -> None:
    """The log must hold what it held at the last clean stop; if nobody opened the store since, from its beginning."""
    path, noted = root / names.SNAPSHOT, noted_log(root, disk)
    if noted is None or report.is_live:
        return
    first_offset, end_offset, is_untouched = noted
    if _is_shorter(report, end_offset):
        what = f"a log that reaches offset {end_offset:,}, as it did at the last clean stop"
        _add(report, path, what, f"its end at {report.log_end:,}", _RESTORE, part="log")
    is_copy = end_offset == report.log_end and is_ours(root, disk) and not disk.exists(root / names.ABORT)
    if (is_untouched or is_copy) and first_offset < report.log_begin:
        what = f"a log that begins at offset {first_offset:,}, as it did at the last clean stop"
        _add(report, path, what, f"its begin at {report.log_begin:,}", _RESTORE, part="log")


def record_at(root: Path, commit_log_offset: int, disk: Disk) -> Record | None:
    """The whole record that begins at a log offset, None when none does, or where it cannot be read."""
    with contextlib.suppress(Unreadable):  # the report has it
        return queue_begin.record_at(root, commit_log_offset, disk)
    return None


@contextlib.contextmanager
def log_files(root: Path, disk: Disk) -> Iterator[list[MappedFile]]:
    """The log's files that can be read, mapped."""
    found = list[MappedFile]()
    try:
        for name, size in disk.files(root / names.COMMIT_LOG).items():
            if offset_of(name) is not None and size:
                with contextlib.suppress(OSError):
                    found.append(PrivateDisk().map(root / names.COMMIT_LOG / name))
                    found[-1].release()
        yield found
    finally:
        for file in found:
            file.close()


def _add(
    report: VerifyReport, path: Path, expected: str, found: str, next_step: str, *, position: int = 0,
    part: Part = "files",
) -> None:  # fmt: skip
    report.add(Problem(part, str(path), position, expected, found, next_step))
