"""A file of a queue is a copy of another one's, of any queue: a repair puts it right at once, and whatever is done
before, every live message is served at its offset or named."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import stratalog
from store.kinds import BATCH, EXTENDED, LIGHT_KIND, PLAIN, Content, Key, Kind, Known, read_on
from store.test_recreated_topics import settings_of
from stratalog.layout.names import ABORT
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

Served = dict[Key, tuple[dict[int, Known], set[int], int]]
"""By queue: its messages, the offsets that errors name, and its end."""


def made(kind: Kind, root: Path, chance: random.Random, *, has_retention: bool) -> Kind:
    """A store with queues of different lengths; returns its kind, with the sizes of its files."""
    units = chance.choice((4, 8, 40))
    kind = replace(kind, settings=kind.settings | {
        "mapped_file_size_commit_log": chance.choice((2048, 4096)),
        "mapped_file_size_consume_queue": units * UNIT.size,
        "mapper_file_size_batch_consume_queue": units * BATCH_UNIT.size,
    })  # fmt: skip
    number = chance.randrange(4)
    with kind.open(root) as store:
        for _ in range(chance.choice((3, 6, 12, 20))):
            kind.put(store, number, Content())
            number += chance.choice((1, 1, 2, 3, 5))
            if chance.random() < 0.3 + has_retention / 3:
                store.put("other", b"to the next log file" * 20)
    files = sorted((root / "commitlog").iterdir())
    for path in files[: chance.randrange(len(files)) if has_retention else 0]:
        path.unlink()
    return kind


def served(kind: Kind, root: Path) -> Served:
    with kind.open(root, mode="r") as store:
        queues = {key: store.queue(*key) for key in store.queues()}
        return {key: (*read_on(queue)[::2], queue.max_offset) for key, queue in queues.items()}


@pytest.mark.one_in(720)
@pytest.mark.parametrize("number", range(100))
@pytest.mark.parametrize("road", ["repair", "open, repair", "rebuild", "open, rebuild"])
@pytest.mark.parametrize("has_retention", [False, True], ids=["", "retention"])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, EXTENDED, LIGHT_KIND], ids=str)
def test_a_repair_serves_what_is_live(
    kind: Kind, has_retention: bool, road: str, number: int, tmp_path: Path
) -> None:  # fmt: skip
    chance, root = random.Random(f"{kind} {has_retention} {number}"), tmp_path / "store"
    kind = made(kind, root, chance, has_retention=has_retention)
    live = served(kind, root)
    if chance.random() < 0.25:
        (root / ABORT).touch()
    for one, other in pairs(root, chance):
        copy = shutil.copytree(root, tmp_path / f"{one} {other}".replace("/", " "))
        shutil.copyfile(root / one, copy / other)
        if refused(kind, copy, road):
            continue
        now = served(kind, copy)
        for key, (messages, _, end) in live.items():
            found, named, end_now = now.get(key, ({}, set[int](), 0))
            assert found.items() <= messages.items()
            assert messages.keys() - found.keys() <= (named if "repair" not in road else set())
            assert end_now >= end or not messages


def pairs(root: Path, chance: random.Random) -> list[tuple[Path, Path]]:
    """Up to three files of queues, below the root, each with another one that takes its place."""
    paths = sorted(path.relative_to(root) for path in root.glob("*consumequeue/*/*/*") if any(path.read_bytes()))
    found = [(one, other) for one in paths for other in paths if one != other and one.parts[0] == other.parts[0]]
    return chance.sample(found, min(3, len(found)))


def refused(kind: Kind, root: Path, road: str) -> bool:
    """Whether a step is refused, with the next one named; else all of them end well."""
    try:
        go(kind, root, road)
    except stratalog.StratalogError as error:
        return any(word in str(error) for word in ("stratalog repair", "back"))
    return False


def go(kind: Kind, root: Path, road: str) -> None:
    for step in road.split(", "):
        if step == "open":
            kind.open(root).close()
        elif step == "rebuild":
            rebuild(root, settings=settings_of(kind))
        else:
            report = repair(plan_repair(root, settings=settings_of(kind)))
            assert report.ok, report.problems[0]
            assert not plan_repair(root, settings=settings_of(kind)).actions
