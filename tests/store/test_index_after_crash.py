"""What a killed writer left in its newest index file, whose header is behind its items."""

import shutil
from pathlib import Path

import pytest

import stratalog
from store.model import QUIET, SMALL
from store.test_recreated_topics import killed
from stratalog.layout.index import ITEM, items_position
from stratalog.layout.names import COMMIT_LOG, CONSUME_QUEUE, INDEX
from stratalog.layout.queue import UNIT
from stratalog.store.disk import Disk
from stratalog.store.evidence import UNCOUNTED, indexed_end
from stratalog.store.sizes import index_slot_count
from stratalog.tools.verify import verify


def _killed_copy(root: Path, live: Path, count: int) -> list[int]:
    """A store killed after that many puts; the log offsets of its messages."""
    with stratalog.open(live, **SMALL, **QUIET) as store:
        offsets = [store.queue("topic").put(b"x", keys=f"k{n}").commit_log_offset for n in range(count)]
        store.dispatch()
        shutil.copytree(live, root)
    killed(root)
    return offsets


def _cut(path: Path, position: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:position] + bytes(len(data) - position))


@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_items_after_the_header_tell_how_far_the_log_went(count: int, tmp_path: Path) -> None:
    offsets = _killed_copy(tmp_path / "store", tmp_path / "live", count)
    assert indexed_end(tmp_path / "store", Disk()) == offsets[-1] + 1


@pytest.mark.parametrize("put_count", [1, 3])
def test_items_of_lost_messages_go_with_the_next_opening(put_count: int, tmp_path: Path) -> None:
    root = tmp_path / "store"
    offsets = _killed_copy(root, tmp_path / "live", 9)
    _cut(root / COMMIT_LOG / f"{0:020d}", offsets[3])
    with stratalog.open(root, **SMALL, **QUIET) as store:
        assert UNCOUNTED in store.recovery.notes
        for number in range(put_count):
            store.queue("topic").put(b"y", keys=f"n{number}")
        end = store.log.end_offset
    killed(root)
    assert indexed_end(root, Disk()) <= end
    with stratalog.open(root, **SMALL, **QUIET) as store:
        assert UNCOUNTED not in store.recovery.notes


def test_items_of_messages_that_a_power_cut_took_are_cleared(tmp_path: Path) -> None:
    """The header was made durable, and the file is kept; log and queue lost what was put since."""
    root, live = tmp_path / "store", tmp_path / "live"
    offsets = []
    for count in (4, 5):
        with stratalog.open(live, **SMALL, **QUIET) as store:
            offsets += [store.queue("topic").put(b"x", keys="k").commit_log_offset for _ in range(count)]
            store.dispatch()
            shutil.copytree(live, root, dirs_exist_ok=True)
    assert indexed_end(root, Disk()) == offsets[-1] + 1
    _cut(root / COMMIT_LOG / f"{0:020d}", offsets[4])
    _cut(root / CONSUME_QUEUE / "topic" / "0" / f"{0:020d}", 4 * UNIT.size)
    before = list((root / INDEX).iterdir())
    stratalog.open(root, mode="r").close()
    assert indexed_end(root, Disk()) == offsets[-1] + 1
    stratalog.open(root, **SMALL, **QUIET).close()
    assert (list((root / INDEX).iterdir()), indexed_end(root, Disk())) == (before, offsets[3] + 1)


@pytest.mark.parametrize("first", [0, 2, 200])
def test_a_page_of_items_that_never_reached_the_disk_hides_no_later_ones(first: int, tmp_path: Path) -> None:
    """What only the index knows is told by opening and `verify`."""
    root = tmp_path / "store"
    offsets = _killed_copy(root, tmp_path / "live", 300)
    (index,) = (root / INDEX).iterdir()
    data, at = index.read_bytes(), items_position(index_slot_count(root, Disk())) + first * ITEM.size
    index.write_bytes(data[:at] + bytes(512) + data[at + 512 :])
    assert indexed_end(root, Disk()) == offsets[-1] + 1
    _cut(root / COMMIT_LOG / f"{0:020d}", offsets[250])
    for file in (root / CONSUME_QUEUE / "topic" / "0").iterdir():
        _cut(file, min(max(0, 250 * UNIT.size - int(file.name)), file.stat().st_size))
    assert any(UNCOUNTED in note for note in verify(root).notes)
    with stratalog.open(root, **SMALL, **QUIET) as store:
        assert UNCOUNTED in store.recovery.notes
