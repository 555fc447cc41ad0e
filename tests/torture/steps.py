"""Whatever makes opening refuse a store: `verify` reports it, and the first command that it names mends it.

Each file of every kind of store is missing, empty, one byte long, a byte shorter or longer, or a directory; the store
was closed or crashed; sizes are given or found.
"""

import itertools
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import stratalog
from store.kinds import KINDS, SIZES
from store.model import QUIET
from stratalog.config.settings import StoreSettings
from stratalog.errors import StratalogError
from stratalog.layout.light import is_light
from stratalog.layout.names import ABORT, COMMIT_LOG, SNAPSHOT
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from torture.exchanged import bases
from torture.report import Row, Torture, Undetected

CASE_SECONDS = 30.0
COMMAND = re.compile(r"stratalog rebuild(?: --checkpoint)?|stratalog repair|^remove it|^restore commitlog/")
"""What a next step names. The last one is for a store whose messages are gone, which no command brings back."""
PUTS = 130


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def one_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1])


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


Change = Callable[[Path], None]
CHANGES: tuple[Change, ...] = (missing, empty, one_byte, shorter, longer, directory)


def steps(torture: Torture, row: Row) -> None:
    folder, counts = torture.place("steps"), Counter[str]()
    every = [
        (name, root, settings, path, change, is_crashed)
        for name, root, settings in _stores(folder)
        for path in sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
        for change, is_crashed in itertools.product(CHANGES, (False, True))
    ]
    for number in torture.chance("steps").sample(range(len(every)), torture.count(25, len(every))):
        if torture.wants(number):
            name, root, settings, path, change, is_crashed = every[number]
            with row.case(number, seconds=CASE_SECONDS):
                case = folder / "case"
                shutil.rmtree(case, ignore_errors=True)
                shutil.copytree(root, case)
                if is_crashed:
                    (case / ABORT).touch()
                    (case / SNAPSHOT).unlink(missing_ok=True)
                if (case / path).exists():
                    change(case / path)
                try:
                    counts[judge(case, StoreSettings.make(QUIET | settings), folder / "opened")] += 1
                except Undetected as error:
                    crashed = ", crashed" if is_crashed else ""
                    raise Undetected(f"{name}: {path} {change.__name__}{crashed}: {error}") from error
    row.notes.append(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    shutil.rmtree(folder)


def _stores(folder: Path) -> Iterator[tuple[str, Path, dict[str, Any]]]:
    for kind in KINDS:
        root = folder / f"kind-{kind.name}"
        kind.made(root, count=PUTS)
        yield f"{kind}, sizes found", root, kind.settings
        yield f"{kind}, sizes given", root, SIZES | kind.settings
    for base in bases(folder):
        yield base.name, base.root, base.settings


def judge(root: Path, settings: StoreSettings, copy: Path) -> str:
    """What became of the store. Raises `Undetected`."""
    refusal = refused(root, settings, copy)
    if not refusal:
        return "opened"
    try:
        report = verify(root, settings=settings)
    except StratalogError as error:
        raise Undetected(f"opening: {refusal}; verify: {error}") from error
    named = [(match[0], Path(one.path)) for one in report.problems for match in COMMAND.finditer(one.next_step)]
    if not named:
        raise Undetected(f"opening: {refusal}; verify: {report.problems[:1]}")
    command, place = named[0]
    if command.startswith("restore"):
        if any(path.is_file() and path.stat().st_size > 1 for path in (root / COMMIT_LOG).iterdir()):
            raise Undetected(f"the log is there; verify: {report.problems[0]}")
        return "lost their log"
    try:
        run(command, settings, root, place)
    except (StratalogError, OSError) as error:
        raise Undetected(f"opening: {refusal}; {command}: {error!r}") from error
    left = refused(root, settings, copy)
    if left:
        raise Undetected(f"after {command}: {left}")
    return f"mended by {command!r}"


def refused(root: Path, settings: StoreSettings, copy: Path) -> str:
    """Why opening and putting are refused; empty when they are not."""
    for mode in ("r", "w"):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(root, copy)
        try:
            with stratalog.open(copy, mode=mode, settings=settings) as store:
                keys = store.queues()
                for key in keys:
                    store.queue(*key)
                for key in [key for key in keys if mode == "w" and not is_light(key[0])]:
                    store.queue(*key).put(b"one")
        except (StratalogError, OSError) as error:
            return f"{mode}: {error}"
    return ""


def run(command: str, settings: StoreSettings, root: Path, place: Path) -> None:
    if command == "remove it":
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    elif command == "stratalog repair":
        repair(plan_repair(root, settings=settings))
    elif command == "stratalog rebuild":
        rebuild(root, settings=settings)
    else:
        rebuild(root, settings=settings, parts=("checkpoint",))
