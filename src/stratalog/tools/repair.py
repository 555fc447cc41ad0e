"""Mending a store by a plan: in place, or a copy of it.

Every step can be killed and done again. What is overwritten was set aside before, durably, in the store's directory
`stratalog-quarantine`, where RocketMQ does not look. While steps are under way the store counts as not closed properly;
`abort` goes when queues and index were built again. A file with several names (hard links) gets its own copy first.
"""

import filecmp
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from stratalog.errors import ConfigurationError, CorruptData, command
from stratalog.layout.light import is_light
from stratalog.layout.names import ABORT, COMMIT_LOG, LOCK, OWN_MARK, QUARANTINE, STAGING, UNFINISHED_COPY
from stratalog.store.disk import UNFINISHED, ClockNs, Disk, PrivateDisk
from stratalog.store.os_errors import refusing
from stratalog.store.snapshot import is_ours, keep_ends, make_ours
from stratalog.store.topics import Topics
from stratalog.tools.copying import copy_file, copy_tree, unshare
from stratalog.tools.own_files import free_name, refuse_if_locked, refuse_links
from stratalog.tools.rebuild import Rebuilt, clear_staging, rebuild_locked
from stratalog.tools.repair_actions import Action, described, lost_json
from stratalog.tools.repair_plan import RepairPlan, log_stamps, set_aside_name
from stratalog.tools.verify import verify
from stratalog.tools.verify_files import BACKUP, UNDER_REPAIR, UNDER_REPAIR_UNCLEAN
from stratalog.tools.verify_report import Problem, VerifyReport

_CHUNK_SIZE = 1 << 20
_UNQUEUED_STEP = "read them by their log offsets (`stratalog dump STORE` lists them); no queue offset is known for them"

Step = Callable[[str], None]
"""Told what is being done, before each step."""


def repair(
    plan: RepairPlan,
    *,
    to: str | os.PathLike[str] | None = None,
    clock_ns: ClockNs = time.time_ns,
    step: Step = lambda _: None,
) -> VerifyReport:
    """Do what the plan says, to a copy in the directory `to` or, without one, in place; returns how the store is then.

    Raises `StoreLocked` while a broker has the store open, `ConfigurationError` when the store is not as it was when it
    was planned, or when `to` holds something else, `DiskFull` and `StoreUnavailable` (call it again then).
    """
    to = None if to is None else Path(to)
    what, disk = f"{plan.root} cannot be repaired{'' if to is None else f' in {to}'}", Disk()
    with refusing(what):
        refuse_if_locked(plan.root)
        if log_stamps(plan.root) != plan.stamps:
            raise ConfigurationError(f"{plan.root} has changed since the plan was made: plan again")
        refuse_links(plan.root, but=() if to is not None or plan.changes_log else (COMMIT_LOG,))
        if to is not None:
            check_target(plan.root, to)
            disk.create_directory(to)
    inside = "Run the same command again: it goes on" if to is None else f"Remove {to}, then run it again"
    root = to or plan.root
    with refusing(what, inside):
        rebuilt = _mend(plan, to, clock_ns, step, disk)
    with refusing(f"{root} cannot be verified", f"The repair is done: {command('verify', root)} checks it"):
        step("verify")
        report = verify(root, settings=plan.settings)
    if rebuilt and rebuilt.unqueued:
        left_out = rebuilt.unqueued
        report.add(Problem("queue", str(root / COMMIT_LOG), 0, "every message in a queue", left_out, _UNQUEUED_STEP))
    if rebuilt:
        report.notes += [*rebuilt.moved, *filter(None, [rebuilt.lost, rebuilt.longer])]
        report.notes += [
            f"log offset {one.commit_log_offset:,}: offset {one.queue_offset:,} in {one.topic}/{one.queue_id} is "
            "another message's; the message is only in its own queue"
            for one in rebuilt.left_out if is_light(one.topic)
        ]  # fmt: skip
    return report


def _mend(plan: RepairPlan, to: Path | None, clock_ns: ClockNs, step: Step, disk: Disk) -> Rebuilt | None:
    """Returns what was built again, if anything was."""
    root = plan.root if to is None else _copied(plan.root, to, step, disk)
    rebuilt, release = None, disk.lock(root / LOCK)
    try:
        if plan.actions:
            rebuilt = _act(root, plan, clock_ns, step, disk)
    finally:
        release()
    if to is not None:
        disk.remove(root / UNFINISHED_COPY)
    return rebuilt


def check_target(source: Path, target: Path) -> None:
    """Raise `ConfigurationError` for a directory that a repaired copy cannot go to."""
    inner, outer = target.resolve(), source.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        relation = "is" if inner == outer else "is in" if inner.is_relative_to(outer) else "contains"
        raise ConfigurationError(f"{target} {relation} the store {source}: name another directory for the copy")
    if target.exists() and any(target.iterdir()):
        unfinished = (target / UNFINISHED_COPY).exists()
        what = "holds the unfinished copy of an earlier repair: remove it" if unfinished else "is not empty: keep it"
        raise ConfigurationError(f"{target} {what}, or name a new directory for the repaired copy")


def _copied(source: Path, target: Path, step: Step, disk: Disk) -> Path:
    """A copy of the store in an empty directory. What a rebuild replaces is copied too: it is what a failed repair
    leaves."""
    step(f"copy to {target}")
    with closing(disk.create(target / UNFINISHED_COPY)) as mark:  # there before anything else is
        mark.write(0, os.fsencode(source.absolute()))
        mark.sync()
    disk.sync_directory(target)
    copy_tree(source, target, disk, without=frozenset({LOCK, STAGING, UNFINISHED_COPY}))
    if is_ours(source, PrivateDisk()):
        disk.replace(target / LOCK, OWN_MARK)
    return target


def _act(root: Path, plan: RepairPlan, clock_ns: ClockNs, step: Step, disk: Disk) -> Rebuilt | None:
    """Do the steps; returns what was built again, if anything was."""
    rebuilt = None
    rebuilds = any(action.kind == "rebuild" for action in plan.actions)
    keep_ends(root, disk, plan.begins)
    if plan.report.clean or rebuilds:
        disk.replace(root / ABORT, UNDER_REPAIR if plan.report.clean else UNDER_REPAIR_UNCLEAN)
    for action in plan.actions:
        step(described(action))
        path = root / action.path
        if action.kind in ("extend", "create"):
            _give_size(path, action, disk)
        elif action.kind == "trim":
            _set_aside(root, action, disk)
            unshare(path, disk)
            disk.os.truncate(path, action.position)
        elif action.kind in ("away", "aside"):
            _move_away(root, path, disk)
        elif action.kind == "mend":
            _set_aside(root, action, disk)
            _write(path, [(action.position, action.data)], disk)
        elif action.kind == "cover":
            _set_aside(root, action, disk)
            _cover(path, action, disk)
        elif action.kind == "cut":
            _set_aside(root, action, disk)
            _cut(path, action, disk)
        elif action.kind == "drop":
            _set_aside(root, action, disk)
            disk.remove(path)
        elif action.kind == "config":
            _restore_config(root, path, disk)
        elif action.kind == "remove":
            _remove(root, path, disk)
        elif action.kind == "enter":
            release = plan.settings.compatibility
            Topics(root, disk).enter_batch_topics(now_ms=clock_ns() // 1_000_000, release=release)
        else:
            mended = {int(Path(one.path).name) + one.position for one in plan.actions if one.kind == "mend"}
            rebuilt = rebuild_locked(
                root, disk, plan.settings, clock_ns, may_serve_less=True, mended=mended, guessed=plan.guessed_sizes
            )
    if plan.report.clean or rebuilds:
        disk.remove(root / ABORT)
    if rebuilt and not is_ours(root, disk):
        make_ours(root, disk)
    return rebuilt


def _remove(root: Path, path: Path, disk: Disk) -> None:
    if path == root / STAGING:
        clear_staging(root, disk)
    elif path.is_dir():
        disk.remove_tree(path)
    else:
        disk.remove(path)


def _give_size(path: Path, action: Action, disk: Disk) -> None:
    if path.exists():  # it stays there, even if it is empty: the first file says where the log begins
        unshare(path, disk)
        disk.os.truncate(path, action.position + action.size)
    else:
        disk.create_sparse(path, action.size)
    disk.sync_directory(path.parent)


def _set_aside(root: Path, action: Action, disk: Disk) -> None:
    """Keep the bytes of a range, and what they were. A repair that was killed may have kept the same bytes already."""
    directory = root / QUARANTINE
    disk.make_directory(directory)
    begin = int(Path(action.path).name) + action.position
    is_over = action.kind == "trim"
    name = set_aside_name(root, action.path, action.position, action.size, is_over=is_over)
    if action.cover and action.cover.name != name:  # the placeholders name it
        raise ConfigurationError(f"{directory} has changed since the plan was made: plan again")
    target = directory / f"{name}.bytes"
    if target.exists() or not action.size:
        return
    unfinished = target.with_name(target.name + UNFINISHED)
    with (root / action.path).open("rb") as source, closing(disk.create(unfinished)) as copy:
        source.seek(action.position)
        size = 0
        while data := source.read(min(action.size - size, _CHUNK_SIZE)):
            if any(data):
                copy.write(size, data)
            size += len(data)
        disk.os.ftruncate(copy.fd, size)
        copy.sync()
    about = {
        "file": action.path, "position": action.position, "size": action.size, "commitLogOffset": begin,
        "reason": action.reason,
        "lost": [lost_json(message) for message in action.lost],
    }  # fmt: skip
    disk.replace(target.with_suffix(".json"), json.dumps(about, indent=2).encode())
    disk.os.rename(unfinished, target)
    disk.sync_directory(directory)


def _move_away(root: Path, path: Path, disk: Disk) -> None:
    if not os.path.lexists(path):  # a copy has files, directories and links only
        return
    target = free_name(root / QUARANTINE / path.name)
    disk.make_directory(target.parent)
    disk.os.rename(path, target)
    disk.sync_directory(path.parent)
    disk.sync_directory(target.parent)


def _cover(path: Path, action: Action, disk: Disk) -> None:
    assert action.cover
    _write(path, [(offset - int(path.name), data) for offset, data in action.cover.pieces(action.lost)], disk)


def _write(path: Path, pieces: Iterable[tuple[int, bytes]], disk: Disk) -> None:
    unshare(path, disk)
    with closing(disk.open(path)) as file:
        for position, data in pieces:
            file.write(position, data)
        file.sync()


def _cut(path: Path, action: Action, disk: Disk) -> None:
    """Zero what is after the log's end, then write the placeholders there. The file keeps its size."""
    assert action.cover
    unshare(path, disk)
    with closing(disk.open(path)) as file:
        end = action.position + action.size
        for position in range(action.position, end, _CHUNK_SIZE):
            file.write(position, bytes(min(_CHUNK_SIZE, end - position)))
        file.sync()
    if action.lost or action.cover.closes_file:
        _cover(path, action, disk)


def _restore_config(root: Path, path: Path, disk: Disk) -> None:
    """Let the backup take the file's place; the file that cannot be read is kept."""
    backup = disk.read(path.with_name(path.name + BACKUP))
    if backup is None:
        raise CorruptData("the backup has gone since the plan was made: plan again", path=str(path))
    if path.exists():
        disk.make_directory(root / QUARANTINE)
        target = free_name(root / QUARANTINE / path.name, lambda kept: filecmp.cmp(kept, path, shallow=False))
        copy_file(path, target, disk)
    unfinished = root / f"{path.name}{UNFINISHED}"
    disk.replace(unfinished, backup)
    disk.os.rename(unfinished, path)
    disk.sync_directory(path.parent)
    disk.sync_directory(root)
