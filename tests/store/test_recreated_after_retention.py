"""Topics that were deleted and created again, of whose deleted messages the first ones have expired: none is left that
tells where the deleted topic began."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import KINDS, Kind, read_on
from store.model import Clock
from store.test_recreated_topics import PATHS, STATES, lose_directories, lose_files, made, settings_of, unseal
from stratalog.errors import CorruptData
from stratalog.layout.names import COMMIT_LOG
from stratalog.tools.verify import verify


def nothing(kind: Kind, root: Path) -> None:
    pass


def first_unit_zeroed(kind: Kind, root: Path) -> None:
    for key in kind.queues:
        with next(iter(kind.files(root, key))).open("r+b") as file:
            file.write(bytes(kind.layout.size))


def files_zeroed(kind: Kind, root: Path) -> None:
    for key in kind.queues:
        for path in kind.files(root, key):
            path.write_bytes(bytes(path.stat().st_size))


DAMAGES: list[Callable[[Kind, Path], None]] = [
    nothing, first_unit_zeroed, files_zeroed, lose_files, lose_directories,
]  # fmt: skip


@pytest.mark.one_in(30)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("count", [2, 3, 12])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_is_not_served_right_is_a_problem(
    kind: Kind, count: int, state: str, damage: Callable[[Kind, Path], None], path: str, tmp_path: Path
) -> None:
    content = made(kind, tmp_path, count, old=110)
    (tmp_path / COMMIT_LOG / f"{0:020d}").unlink()
    unseal(tmp_path)
    kind.open(tmp_path, clock_ns=Clock()).close()
    STATES[state](tmp_path)
    damage(kind, tmp_path)
    with contextlib.suppress(*() if damage is nothing else (CorruptData, AssertionError)):
        PATHS[path](kind, tmp_path)
    report = verify(tmp_path, settings=settings_of(kind))
    with contextlib.suppress(*() if report.ok else (CorruptData,)), kind.open(tmp_path, mode="r") as store:
        found = {key: read_on(store.queue(*key))[0] for key in kind.queues}
        is_right = found == {key: content.queues.get(key, {}) for key in kind.queues}
        assert is_right or not report.ok or store.recovery.warning, (found.keys(), report.notes)
    if damage is nothing:
        assert report.ok
        assert is_right
