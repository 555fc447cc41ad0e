"""An opening that is killed and the next one end where one that is not killed ends."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from crash.faults import Stopped, install
from store.kinds import KINDS, Key, Kind
from store.model import flip
from stratalog.layout.names import ABORT
from stratalog.store import disk
from stratalog.store.message_store import MessageStore

LOST_UNITS = 3


def other_queue(root: Path, kind: Kind) -> Path:
    return kind.directory(root, kind.queues[1])


STATES: dict[str, Callable[[Path, Kind], object]] = {
    "all there": lambda root, kind: None,
    "no seal": lambda root, kind: (root / "checkpoint").write_bytes(b""),
    "broken seal": lambda root, kind: flip(root / "checkpoint", 4095 // 64),
    "a queue gone": lambda root, kind: shutil.rmtree(other_queue(root, kind)),
    "no index": lambda root, kind: shutil.rmtree(root / "index"),
    "units gone": lambda root, kind: zero_units(root, kind),
    "log ends before": lambda root, kind: zero_tail(root),
}


def zero_units(root: Path, kind: Kind) -> None:
    """The newest units but one of the queue: that one alone tells its end."""
    units = kind.layout.size
    data = b"".join(path.read_bytes() for path in kind.files(root, kind.queues[0]))
    last = len(data.rstrip(b"\0")) // units  # a unit may end with zeros
    for number in range(last - LOST_UNITS, last):
        path = kind.files(root, kind.queues[0])[number * units // len(kind.files(root, kind.queues[0])[0].read_bytes())]
        size = path.stat().st_size
        content = bytearray(path.read_bytes())
        at = number * units % size
        content[at : at + units] = bytes(units)
        path.write_bytes(content)


def zero_tail(root: Path) -> None:
    newest = max(path for path in (root / "commitlog").iterdir() if any(path.read_bytes()))
    data = newest.read_bytes()
    newest.write_bytes(data[: len(data.rstrip(b"\0")) // 2].ljust(len(data), b"\0"))


def damage_newest(root: Path, offsets: list[int], log_file_size: int) -> None:
    for offset in offsets:
        flip(root / "commitlog" / f"{offset // log_file_size * log_file_size:020d}", offset % log_file_size + 90)


def told(store: MessageStore) -> tuple[dict[Key, int], list[str]]:
    ends = {key: store.queue(*key).max_offset for key in store.queues()}
    return ends, [note for note in store.recovery.notes if "lost" in note]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("is_clean", [True, False])
def test_wherever_an_opening_is_killed_the_next_one_ends_the_same(
    tmp_path: Path, kind: Kind, state: str, is_clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = kind.made(tmp_path / "whole")
    newest = sorted({known.commit_log_offset for known in content.queues[kind.queues[0]].values()})[-2:]
    damage_newest(tmp_path / "whole", newest, 16 * 1024)
    STATES[state](tmp_path / "whole", kind)
    if not is_clean:
        (tmp_path / "whole" / ABORT).touch()
    root = tmp_path / "store"
    shutil.copytree(tmp_path / "whole", root)
    calls = install(monkeypatch, root)
    with kind.open(root) as store:
        straight, count = told(store), len(calls.calls)
    ended = max((n for n, call in enumerate(calls.calls[:count]) if "queues.snapshot" in call[1]), default=count)
    for number in range(len(state + kind.name) % 3, count, 3):
        monkeypatch.setattr(disk, "os", os)
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "whole", root)
        calls = install(monkeypatch, root)
        calls.stop_at = number
        with suppress(Stopped):
            kind.open(root)
        monkeypatch.setattr(disk, "os", os)
        with kind.open(root) as store:
            ends, notes = told(store)
            assert ends == straight[0], (number, calls.calls[-3:])
            assert notes == straight[1] or number >= ended - 3, number  # there the killed one was done
