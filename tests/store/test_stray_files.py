"""Files of others in the directories of a store, such as an operator's copy of a file beside it: no command takes them
for the store's own, `verify` names them and nothing else, and every message and queue end stays."""

import shutil
from pathlib import Path

import pytest

from store.kinds import KINDS, Content, Kind, read_on
from store.model import Clock
from store.test_expired_queues import expired
from store.test_recreated_topics import STATES, settings_of
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

CLOSED = ["closed", "closed by RocketMQ", "killed", "killed with a seal"]
TREES = ["consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "config"]
NAMES = {"bak": "{}.bak", "tilde": "{}~", "number": "{}.1", "in front": "0-{}", "longer": "1{}", "notes": "notes.txt"}
COUNTS = {"all live": None, "all expired": (100, 0), "one file expired": (10, 0), "some live": (100, 5)}


def _stray(root: Path, name: str) -> set[Path]:
    """A copy under such a name beside each file, but for those of the log: a copy of such a one is refused."""
    made = {root / "commitlog" / name.format("0" * 20)}
    (root / "commitlog" / name.format("0" * 20)).write_text("as it was before")
    for path in [path for tree in TREES for path in sorted((root / tree).rglob("*")) if path.is_file()]:
        copy = path.with_name(name.format(path.name))
        if copy not in made:
            shutil.copy(path, copy)
            made.add(copy)
    return made


def _ends(kind: Kind, root: Path, content: Content) -> dict[tuple[str, int], int]:
    with kind.open(root, mode="r", clock_ns=Clock()) as store:
        for key, expected in content.queues.items():
            assert read_on(store.queue(*key))[0] == expected, key
        return {key: store.queue(*key).max_offset for key in content.queues}


@pytest.mark.one_in(60)
@pytest.mark.parametrize("state", CLOSED)
@pytest.mark.parametrize("command", ["open", "repair", "rebuild"])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_files_of_others_change_nothing(
    kind: Kind, name: str, counts: tuple[int, int] | None, command: str, state: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    content = expired(kind, root, gone_count=counts[0], live_count=counts[1]) if counts else kind.made(root)
    ends = _ends(kind, root, content)
    STATES[state](root)
    strays, settings = _stray(root, name), settings_of(kind)
    report = verify(root, settings=settings)
    assert {problem.path for problem in report.problems} <= {str(path) for path in strays}
    if command == "rebuild":
        rebuild(root, settings=settings)
    elif command == "repair":
        repair(plan_repair(root, settings=settings))
    for _ in range(2):
        with kind.open(root, clock_ns=Clock()) as store:
            assert not store.recovery.quarantined
            assert not store.recovery.left_out
        assert _ends(kind, root, content) == ends
