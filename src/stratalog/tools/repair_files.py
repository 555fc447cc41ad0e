"""The part of a repair's plan that looks at files as such: links, names, sizes, gaps, the configuration, leftovers."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from stratalog.errors import CorruptData, counted
from stratalog.layout.names import (
    ABORT,
    COMMIT_LOG,
    CONFIG,
    SIZES,
    offset_name,
    offset_of,
)
from stratalog.store.config_files import TOPICS, WHAT_IS_LOST
from stratalog.store.disk import UNFINISHED, PrivateDisk
from stratalog.store.log_scan import cut_text, ends_after, runs_past_end
from stratalog.store.sizes import noted_fault
from stratalog.tools.repair_actions import Action
from stratalog.tools.survey import CUT, MISSING, survey_file
from stratalog.tools.verify_files import BACKUP, config_directories, config_fault, config_files, left_over


def plan_files(
    root: Path, file_size: int, disk: PrivateDisk, *, is_given: bool, is_noted: bool
) -> tuple[list[Action], list[str]]:  # fmt: skip
    """Give every file of the log its full size, make those that are missing, move away what is no file of a log.

    Returns the actions, and what cannot be mended. Raises `CorruptData` where no size fits the names.
    """
    actions = list(_strays(root, file_size))
    files = {
        name: size
        for name, size in disk.files(root / COMMIT_LOG).items()
        if (start := offset_of(name)) is not None and not start % file_size
    }
    if len(files) == 1 and not (is_given or is_noted):
        _refuse_cut(root / COMMIT_LOG / next(iter(files)), disk)
    starts = [int(name) for name in files]
    is_shown = file_size in files.values() or any(start + file_size in starts for start in starts)
    is_known = is_shown or is_noted or is_given
    expected: int | None = None
    for name, size in files.items():
        start, path = int(name), f"{COMMIT_LOG}/{name}"
        while expected is not None and expected < start:
            actions.append(Action("create", f"{COMMIT_LOG}/{offset_name(expected)}", size=file_size, reason=MISSING))
            expected += file_size
        expected = start + file_size
        if size > file_size and (not is_known or (not is_shown and ends_after(disk.map(root / path), file_size))):
            step = f"give mapped_file_size_commit_log{f', or remove {root / SIZES} if it is wrong' if is_noted else ''}"
            raise CorruptData(f"the file has {counted(size, 'byte')}, not {file_size:,}: {step}", path=str(root / path))
        if size > file_size:
            actions.append(Action("trim", path, file_size, size - file_size, "bytes over the size of the log's files"))
        elif not size and name == max(files):
            actions.append(Action("remove", path, reason="a file that was never written"))
        elif size < file_size:
            actions.append(Action("extend", path, size, file_size - size, CUT))
    config_actions, unmended = _plan_config(root, disk)
    return [*actions, *config_actions, *_leftovers(root, disk)], unmended


def _refuse_cut(path: Path, disk: PrivateDisk) -> None:
    """Raise `CorruptData` for the only file of a log if its size is not the one that it was written with."""
    found = survey_file(path, int(path.name), disk, file_size=path.stat().st_size, may_be_torn=False)
    if found.file and runs_past_end(found.file, found.end):
        raise CorruptData(cut_text(found.file), path=str(path), position=found.end)


def _strays(root: Path, file_size: int) -> Iterator[Action]:
    """What RocketMQ would take for a file of the log and is none."""
    with os.scandir(root / COMMIT_LOG) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            start = offset_of(entry.name)
            is_file = stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
            if is_file and (start is None or start % file_size):
                yield Action("away", f"{COMMIT_LOG}/{entry.name}", reason="its name is none of a file of this log")
            elif not is_file and (start is not None or not entry.is_dir()):
                yield Action("away", f"{COMMIT_LOG}/{entry.name}", reason="it is no regular file")


def _plan_config(root: Path, disk: PrivateDisk) -> tuple[list[Action], list[str]]:
    actions = []
    unmended = [
        f"{path} is a directory: move it out of the store, and restore the file from a copy if there is one"
        for path in config_directories(root, disk)
    ]
    for path in config_files(root, disk):
        copy = path.with_name(path.name + BACKUP)
        fault, copy_fault = config_fault(path, disk), config_fault(copy, disk)
        if fault is None:
            continue
        no_files = [one for one in (path, copy) if one.exists() and not one.is_file()]
        if no_files:
            unmended += [f"{CONFIG}/{one.name} is no file: move it away" for one in no_files if not one.is_dir()]
        elif copy_fault is None:
            actions.append(Action("config", f"{CONFIG}/{path.name}", reason=fault))
        else:
            actions += _set_aside(path, fault, copy, copy_fault)
    if fault := noted_fault(root, disk):
        actions.append(Action("aside", SIZES, reason=f"{fault}; lost: the sizes that no file shows"))
    return actions, unmended


def _set_aside(path: Path, fault: str, copy: Path, copy_fault: str) -> Iterator[Action]:
    """Neither a file nor its copy can be read: the broker begins without one, what is there is kept."""
    lost = f"; lost: {WHAT_IS_LOST.get(path.name, 'what only it held')}"
    for one, why in ((path, fault), (copy, copy_fault)):
        if one.exists():
            yield Action("aside", f"{CONFIG}/{one.name}", reason=f"{why}{lost}")
            lost = ""


def lost_config(root: Path) -> str:
    """What is lost with config/topics.json, or with all of config/, in words; empty where the file or its copy is."""
    if any((root / CONFIG / name).exists() for name in (TOPICS, TOPICS + BACKUP)):
        return ""
    if (root / CONFIG).is_dir():
        return f". The file is missing; lost with it: {WHAT_IS_LOST[TOPICS]}"
    lost = "; ".join(dict.fromkeys(WHAT_IS_LOST.values()))
    return f". {CONFIG}/ is missing; lost with it, if a broker wrote them: {lost}"


def _leftovers(root: Path, disk: PrivateDisk) -> Iterator[Action]:
    names = [*disk.files(root), *disk.directories(root)]
    for name in sorted(name for name in names if name.endswith(UNFINISHED) and name != ABORT + UNFINISHED):
        if not (root / name).is_symlink():
            yield Action("remove", name, reason=left_over(name))
