"""Mending a store by a plan: in place, or a copy of it.

Every step can be killed and done again. What is overwritten was set aside before, durably, in the store's directory
`stratalog-quarantine`, where RocketMQ does not look. While steps are under way the store counts as not closed properly;
`abort` goes when queues and index were built again. A file with several names (hard links) gets its own copy first.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from stratalog.errors import ConfigurationError, CorruptData, StoreLocked
from stratalog.layout.names import ABORT, LOCK
from stratalog.store.disk import UNFINISHED, ClockNs, Disk
from stratalog.tools.copying import copy_file, copy_tree, unshare
from stratalog.tools.rebuild import QUARANTINE, STAGING, rebuild_locked
from stratalog.tools.repair_plan import Action, RepairPlan, log_stamps
from stratalog.tools.verify import verify
from stratalog.tools.verify_files import BACKUP, UNDER_REPAIR
from stratalog.tools.verify_report import VerifyReport

UNFINISHED_COPY = "stratalog-copy-unfinished"
"""Stands in a copy until it is repaired: a copy that was killed is made anew."""
_CHUNK_SIZE = 1 << 20

Step = Callable[[str], None]
"""Told what is being done, before each step."""


def repair(
    plan: RepairPlan,
    *,
    to: Path | None = None,
    clock_ns: ClockNs = time.time_ns,
    step: Step = lambda _: None,
) -> VerifyReport:
    """Do what the plan says, to a copy in the directory `to` or, without one, in place; returns how the store is then.

    Raises `StoreLocked` while a broker has the store open, `ConfigurationError` when the store is not as it was when it
    was planned, or when `to` holds something else, `DiskFull`.
    """
    refuse_if_locked(plan.root)
    if log_stamps(plan.root) != plan.stamps:
        raise ConfigurationError(f"{plan.root} has changed since the plan was made: plan again")
    root = plan.root if to is None else _copied(plan.root, to, step)
    release = Disk().lock(root / LOCK)
    try:
        if plan.actions:
            _act(root, plan, clock_ns, step)
    finally:
        release()
    (root / UNFINISHED_COPY).unlink(missing_ok=True)
    step("verify")
    return verify(root, settings=plan.settings)


def refuse_if_locked(root: Path) -> None:
    """Raise `StoreLocked` when a process holds the store's lock. Looks without opening the lock file, which is a byte's
    change less and, in the process that holds the lock, would let go of it."""
    with contextlib.suppress(OSError):
        inode = f":{(root / LOCK).stat().st_ino}"
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if len(fields) > 5 and fields[3] == "WRITE" and fields[5].endswith(inode):
                raise StoreLocked(
                    f"{root} is open in process {fields[4]}: stop that broker, or repair a copy of the files"
                )


def _copied(source: Path, target: Path, step: Step) -> Path:
    """A copy of the store. What a rebuild makes anew is copied too: it is what a failed repair leaves."""
    if target.exists() and any(target.iterdir()):
        if not (target / UNFINISHED_COPY).exists():
            raise ConfigurationError(f"{target} is not empty: name a new directory for the repaired copy")
        shutil.rmtree(target)
    if target.absolute().is_relative_to(source.absolute()):
        raise ConfigurationError(f"{target} lies in the store: name a directory outside it")
    step(f"copy to {target}")
    target.mkdir(parents=True, exist_ok=True)
    (target / UNFINISHED_COPY).touch()
    copy_tree(source, target, without=frozenset({LOCK, STAGING, UNFINISHED_COPY}))
    return target


def _act(root: Path, plan: RepairPlan, clock_ns: ClockNs, step: Step) -> None:
    disk = Disk()
    if not disk.exists(root / ABORT):
        disk.replace(root / ABORT, UNDER_REPAIR)
    for action in plan.actions:
        step(told(action))
        path = root / action.path
        if action.kind in ("extend", "create"):
            _give_size(path, action, disk)
        elif action.kind == "cover":
            _set_aside(root, action, disk)
            _cover(path, action)
        elif action.kind == "cut":
            _set_aside(root, action, disk)
            _cut(path, action)
        elif action.kind == "drop":
            _set_aside(root, action, disk)
            disk.remove(path)
        elif action.kind == "config":
            _restore_config(root, path, disk)
        elif action.kind == "remove":
            shutil.rmtree(path) if path.is_dir() else disk.remove(path)
        else:
            rebuild_locked(root, plan.settings, clock_ns)
    if plan.report.clean or any(action.kind == "rebuild" for action in plan.actions):
        disk.remove(root / ABORT)


def told(action: Action) -> str:
    """What a step does, in a few words."""
    place = f"{action.path} at byte {action.position:,}"
    if action.kind == "extend":
        return f"extend {action.path} from {action.position:,} bytes by {action.size:,} zeros"
    if action.kind == "create":
        return f"make {action.path} again, empty ({action.size:,} bytes)"
    if action.kind == "cover":
        return f"set {action.size:,} bytes of {place} aside and put records in their place that nobody reads"
    if action.kind == "cut":
        kept = f"; {len(action.lost):,} placeholders keep the offsets of what is lost" if action.lost else ""
        return f"set {action.size:,} bytes behind the log's end ({place}) aside and zero them{kept}"
    if action.kind == "drop":
        return f"set {action.path} aside: it lies behind the log's end"
    if action.kind == "config":
        return f"restore {action.path} from {Path(action.path).name}{BACKUP}"
    if action.kind == "remove":
        return f"remove {action.path}: {action.reason}"
    return "rebuild queues, index and checkpoint from the log"


def _give_size(path: Path, action: Action, disk: Disk) -> None:
    if path.exists() and path.stat().st_size:
        unshare(path)
        os.truncate(path, action.position + action.size)
    else:
        path.unlink(missing_ok=True)
        disk.create_sparse(path, action.size)
    disk.sync_directory(path.parent)


def _set_aside(root: Path, action: Action, disk: Disk) -> None:
    """Keep the bytes of a range, and what they were. What is there from a repair that was killed is older: it stays."""
    directory = root / QUARANTINE
    disk.make_directory(directory)
    begin = int(Path(action.path).name) + action.position
    target = directory / f"{begin:020d}-{action.size}.bytes"
    if target.exists() or not action.size:
        return
    unfinished = target.with_name(target.name + UNFINISHED)
    with (root / action.path).open("rb") as source, unfinished.open("wb") as copy:
        source.seek(action.position)
        left = action.size
        while left and (data := source.read(min(left, _CHUNK_SIZE))):
            copy.write(data) if any(data) else copy.seek(len(data), os.SEEK_CUR)
            left -= len(data)
        copy.truncate(action.size - left)
        copy.flush()
        os.fsync(copy.fileno())
    about = {
        "file": action.path, "position": action.position, "size": action.size, "commitLogOffset": begin,
        "reason": action.reason,
        "lost": [{"topic": m.topic, "queueId": m.queue_id, "queueOffset": m.queue_offset} for m in action.lost],
    }  # fmt: skip
    disk.replace(target.with_suffix(".json"), json.dumps(about, indent=2).encode())
    unfinished.rename(target)
    disk.sync_directory(directory)


def _cover(path: Path, action: Action) -> None:
    assert action.cover
    unshare(path)
    base = int(path.name)
    with path.open("r+b", buffering=0) as file:
        for offset, data in action.cover.pieces(action.lost):
            os.pwrite(file.fileno(), data, offset - base)
        os.fdatasync(file.fileno())


def _cut(path: Path, action: Action) -> None:
    """Zero what is behind the log's end, then write the placeholders there. The file keeps its size."""
    assert action.cover
    unshare(path)
    with path.open("r+b", buffering=0) as file:
        end = action.position + action.size
        for position in range(action.position, end, _CHUNK_SIZE):
            os.pwrite(file.fileno(), bytes(min(_CHUNK_SIZE, end - position)), position)
        os.fdatasync(file.fileno())
    if action.lost:
        _cover(path, action)


def _restore_config(root: Path, path: Path, disk: Disk) -> None:
    """Let the backup take the file's place; the file that cannot be read is kept."""
    backup = disk.read(path.with_name(path.name + BACKUP))
    if backup is None:
        raise CorruptData("the backup has gone since the plan was made: plan again", path=str(path))
    if path.exists():
        disk.make_directory(root / QUARANTINE)
        copy_file(path, root / QUARANTINE / path.name)
    unfinished = root / f"{path.name}{UNFINISHED}"
    disk.replace(unfinished, backup)
    unfinished.rename(path)
    disk.sync_directory(path.parent)
    disk.sync_directory(root)
