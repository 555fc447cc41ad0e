"""Retention removed the first log files and the expired files of queues, and some of the log files are put back from a
backup: one repair makes the store whole, and serves what was there before."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store.kinds import KINDS, Kind, read_on
from store.test_recreated_topics import STATES, settings_of
from store.test_recreated_topics import made as made_again
from stratalog.layout.names import COMMIT_LOG
from stratalog.store.disk import Disk
from stratalog.store.queue_begin import QueueBegin
from stratalog.store.snapshot import keep_ends
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

SIZE, PUTS = 2048, 60
RETURNED = {"the first of two": (2, [0]), "the second of two": (2, [1]), "the first of three": (3, [0]),
            "the second of three": (3, [1]), "but the second": (3, [0, 2]), "but the third": (3, [0, 1])}  # fmt: skip
"""How many log files were removed, and which of them are put back."""


def expire(kind: Kind, root: Path, log_begin: int) -> None:
    """Remove the files of queues that lead to nothing after the log's begin, but for the last ones."""
    for directory in (root / kind.tree).glob("*/*"):
        for path in sorted(directory.iterdir())[:-1]:
            units = np.frombuffer(path.read_bytes(), kind.layout.dtype)
            if units["commit_log_offset"][-1] >= log_begin:
                break
            path.unlink()


@pytest.mark.one_in(216)
@pytest.mark.parametrize("is_older", [False, True], ids=["whole", "older"])
@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("count", range(PUTS, PUTS + 4))
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_one_repair_makes_the_store_whole(
    kind: Kind, state: str, count: int, returned: str, is_older: bool, tmp_path: Path
) -> None:  # fmt: skip
    kind, root = replace(kind, settings={**kind.settings, "mapped_file_size_commit_log": SIZE}), tmp_path / "store"
    content = kind.made(root, count=count)
    STATES[state](root)
    removed, back = RETURNED[returned]
    paths = sorted((root / COMMIT_LOG).iterdir())[:removed]
    backup = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    expire(kind, root, removed * SIZE)
    for number in back:
        data = backup[number]
        if is_older and number == back[-1]:  # copied while it was written
            first = [one.commit_log_offset for queue in content.queues.values() for one in queue.values()]
            end = sorted({offset for offset in first if offset // SIZE == number})[2] % SIZE
            data = data[:end].ljust(SIZE, b"\0")
        paths[number].write_bytes(data)
    assert repair(plan_repair(root, settings=settings_of(kind))).ok
    assert not plan_repair(root, settings=settings_of(kind)).actions
    report = verify(root, settings=settings_of(kind))
    assert report.ok, report.problems[:3]
    with kind.open(root, mode="r") as store:
        for key, messages in content.queues.items():
            found, errors, _ = read_on(store.queue(*key))
            assert not errors
            assert store.queue(*key).max_offset == len(messages)
            assert found == {number: messages[number] for number in found}
            assert {number for number, one in messages.items() if one.commit_log_offset >= removed * SIZE} <= {*found}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_begin_that_was_noted_for_a_shorter_log_does_not_hide_what_is_put_back(kind: Kind, tmp_path: Path) -> None:
    """A topic was created again; retention took its first messages, too."""
    root, away = tmp_path / "store", tmp_path / "away"
    content = made_again(kind, root, 46, mapped_file_size_commit_log=SIZE)
    key = kind.queues[0]
    number, known = list(content.queues[key].items())[8]
    away.mkdir()
    expired = [path for path in (root / COMMIT_LOG).iterdir() if int(path.name) + SIZE <= known.commit_log_offset]
    for path in expired:
        path.rename(away / path.name)
    expire(kind, root, known.commit_log_offset // SIZE * SIZE)
    kind.open(root, mapped_file_size_commit_log=SIZE).close()
    keep_ends(root, Disk(), {key: QueueBegin(number, known.commit_log_offset)})
    for path in expired:
        (away / path.name).rename(path)
    for mode in ("r", "w"):
        with kind.open(root, mode=mode, mapped_file_size_commit_log=SIZE) as store:
            found = read_on(store.queue(*key))[0]
            assert found.items() <= content.queues[key].items()
            assert found.keys() >= {*range(number, len(content.queues[key]))}
