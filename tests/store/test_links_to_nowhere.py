"""A directory or log file of a store that is a symbolic link to a file system that is not mounted."""

from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import KINDS, Kind
from store.test_recreated_topics import made, settings_of
from stratalog.errors import ConfigurationError, NotAStore
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONFIG,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    INDEX,
    LOCK,
)
from stratalog.store.config_files import TOPICS
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


TREES = COMMIT_LOG, CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT, INDEX, CONFIG


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_is_named_and_nothing_is_changed(kind: Kind, tmp_path: Path) -> None:
    root, mounted = tmp_path / "store", tmp_path / "disk"
    made(kind, root, 8)
    (next((root / CONSUME_QUEUE).iterdir()) / "0.tmp").touch()  # what a killed opening left
    everything = [path for tree in TREES for path in (root / tree, *sorted((root / tree).rglob("*"))) if path.exists()]
    log_files, directories = list((root / COMMIT_LOG).iterdir()), [path for path in everything if path.is_dir()]
    assert {len(path.relative_to(root).parts) for path in directories} == {1, 2, 3}
    assert log_files
    for path in (*directories, *log_files, *filter(Path.exists, [root / CONFIG / TOPICS])):
        mounted.mkdir()
        away = path.rename(mounted / path.name)
        path.symlink_to(away)
        mounted.rename(tmp_path / "unmounted")
        before = _times(root)
        for name, call in CALLS.items():
            by_all = (
                path not in directories or path.parent == root or name not in ("repair", "rebuild")
            )  # these refuse links below that anyhow
            there = f" to {away}, which is not there: mount" if by_all else ", and a repair does not write through"
            with pytest.raises(NotAStore if by_all else ConfigurationError, match=f"{path} is a symbolic link{there}"):
                call(kind, root)
        assert _times(root) == before
        (tmp_path / "unmounted").rename(mounted)
        path.unlink()
        away.rename(path)
        mounted.rmdir()
    with kind.open(root, mode="r") as store:
        assert store.recovery.clean


def _times(root: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in root.rglob("*") if path.name != LOCK}
