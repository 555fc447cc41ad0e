"""A query in a store whose log has damaged ranges names those that it could not look into: what was in them may be in
no index."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from store.kinds import BATCH, LIGHT_KIND, PLAIN, Kind
from store.model import log_files
from stratalog.cli.main import app
from stratalog.layout.names import INDEX

KINDS = pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
LOST, COUNT = 33, 120


def damaged(kind: Kind, root: Path) -> int:
    """A store with a damaged range, whose index was lost, too; returns the log offset of the range."""
    content = kind.made(root, count=COUNT)
    offset = next(
        known.commit_log_offset for queue in content.queues.values() for known in queue.values()
        if f"k{LOST}" in known.keys
    )  # fmt: skip
    files = log_files(root)
    (file,) = [path for path in files if int(path.name) <= offset < int(path.name) + path.stat().st_size]
    data = bytearray(file.read_bytes())
    begin = offset - int(file.name)
    data[begin : begin + 40] = bytes(40)
    file.write_bytes(data)
    shutil.rmtree(root / INDEX)
    (root / "checkpoint").unlink()
    (root / "abort").touch()
    return offset


@KINDS
@pytest.mark.parametrize("mode", ["w", "r"])
def test_a_query_names_the_damaged_ranges_that_it_could_not_look_into(kind: Kind, mode: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    offset = damaged(kind, root)
    topic = kind.queues[LOST % 2][0] if kind is not LIGHT_KIND else kind.queues[0][0]
    for opening in range(2):  # the second finds it in what the first noted
        with kind.open(root, mode=mode) as store:
            hits = store.query(topic, key=f"k{LOST}")
            assert not hits
            (error,) = hits.damaged
            (range_,) = store.recovery.quarantined
            assert range_.begin == offset
            for words in (f"{offset:,}", f"{range_.end - 1:,}", f"`stratalog verify {root}`"):
                assert words in str(error)
            assert error.position == offset - int(Path(error.path).name)
            many = store.query_many(topic, [f"k{LOST}", f"k{LOST + 6}"])
            assert {key: list(map(str, errors)) for key, errors in many.damaged.items()} == {
                key: [str(error)] for key in (f"k{LOST}", f"k{LOST + 6}")
            }
            assert many[f"k{LOST + 6}"], opening
            newest = store.query(topic, key="g1", limit=1)
            assert (len(newest), newest.more, list(newest.damaged)) == (1, True, []), "the range is older than the hit"


def test_a_range_that_retention_took_is_not_named(tmp_path: Path) -> None:
    damaged(PLAIN, tmp_path / "store")
    with PLAIN.open(tmp_path / "store") as store:
        files = log_files(store.root)
        (range_,) = store.recovery.quarantined
    for file in files:
        if int(file.name) < range_.end:
            file.unlink()
    with PLAIN.open(tmp_path / "store") as store:
        assert not store.query("topic", key=f"k{LOST}").damaged


def test_a_whole_store_names_none(tmp_path: Path) -> None:
    PLAIN.made(tmp_path / "store")
    (tmp_path / "store" / "abort").touch()
    with PLAIN.open(tmp_path / "store") as store:
        assert not store.query("topic", key="none").damaged
        assert not store.query_many("topic", ["none", "k1"]).damaged


def test_the_command_line_names_them_and_says_by_its_exit_code_that_messages_may_be_missing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    offset = damaged(PLAIN, root)
    done = CliRunner().invoke(app, ["query", str(root), "topic", f"k{LOST}"])
    assert done.exit_code == 1
    assert f"{offset:,}" in done.output
    assert "may have held" in done.output
