"""A directory of a store that is a symbolic link to a file system that is not mounted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import KINDS, Kind
from store.test_recreated_topics import made, settings_of
from stratalog.errors import NotAStore
from stratalog.layout.names import BATCH_CONSUME_QUEUE, COMMIT_LOG, CONFIG, CONSUME_QUEUE, CONSUME_QUEUE_EXT, INDEX
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

CALLS: dict[str, Callable[[Kind, Path], object]] = {
    "open": lambda kind, root: kind.open(root),
    "read": lambda kind, root: kind.open(root, mode="r"),
    "verify": lambda kind, root: verify(root, settings=settings_of(kind)),
    "repair": lambda kind, root: plan_repair(root, settings=settings_of(kind)),
    "rebuild": lambda kind, root: rebuild(root, settings=settings_of(kind)),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", [COMMIT_LOG, CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT, INDEX, CONFIG])
def test_it_is_named_and_nothing_is_changed(name: str, kind: Kind, tmp_path: Path) -> None:
    root, away = tmp_path / "store", tmp_path / "disk" / name
    made(kind, root, 8)
    if not (root / name).is_dir():
        pytest.skip("the store has no such directory")
    away.parent.mkdir()
    (root / name).rename(away)
    (root / name).symlink_to(away)
    away.parent.rename(tmp_path / "unmounted")
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    for call in CALLS.values():
        with pytest.raises(NotAStore, match=rf"{name} is a symbolic link to {away}, which is not there: mount"):
            call(kind, root)
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before
    (tmp_path / "unmounted").rename(away.parent)
    with kind.open(root, mode="r") as store:
        assert store.recovery.clean
