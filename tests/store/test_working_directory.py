"""A relative path means the directory in which the store was opened, wherever the process goes later."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import stratalog
from store.model import QUIET, SMALL, log_files
from stratalog.errors import ConfigurationError
from stratalog.store.message_store import MessageStore

BODY = b"x" * 5000
FILES_OF_SMALL = 60
"""So many bodies fill several of the small log files."""

CALLS: dict[str, Callable[[MessageStore], object]] = {
    "put": lambda store: [store.put("t", BODY, keys="k") for _ in range(FILES_OF_SMALL)],
    "put_many": lambda store: store.put_many("t", [BODY] * FILES_OF_SMALL),
    "append": lambda store: store.append(pa.record_batch({"body": [BODY] * FILES_OF_SMALL}), topic="t", queue_id=0),
    "create_topic": lambda store: (store.create_topic("b", queue_type="BatchCQ"), store.put("t", BODY)),
    "flush": lambda store: (store.put("t", BODY), store.flush()),
    "read": lambda store: (store.put("t", BODY), list(store.queue("t").read())),
    "query": lambda store: (store.put("t", BODY, keys="k"), store.query("t", key="k")),
    "other queue": lambda store: (store.put("other", BODY), list(store.queue("other").read())),
}


@pytest.fixture
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """The process works in `tmp_path`; the call takes it to an empty directory, where nothing may be made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def go() -> Path:
        monkeypatch.chdir(tmp_path / "elsewhere")
        return tmp_path / "store"

    yield go
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("path", ["store", "./elsewhere/../store", Path("store")], ids=repr)
@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("call", CALLS)
def test_a_store_stays_where_it_was_opened(
    call: str, flush: str, path: str | Path, away: Callable[[], Path], tmp_path: Path
) -> None:
    store = stratalog.open(path, flush=flush, **SMALL, **QUIET)
    store.put("t", b"before", keys="k")
    root = away()
    CALLS[call](store)
    ends = {name: store.queue(*name).max_offset for name in store.queues()}
    store.close()
    assert len(log_files(root)) > (call in ("put", "put_many", "append"))
    with stratalog.open(root, mode="r") as again:
        assert again.recovery.clean
        assert {name: len(list(again.queue(*name).read())) for name in again.queues()} == ends


def test_a_reader_stays_where_it_was_opened(away: Callable[[], Path], tmp_path: Path) -> None:
    with stratalog.open("store", **SMALL, **QUIET) as writer:
        writer.put("t", b"0", keys="k")
        reader = stratalog.open("store", mode="r")
        away()
        followed = reader.queue("t").read(follow=True)
        assert next(followed).body == b"0"
        for number in range(1, FILES_OF_SMALL):
            writer.put("t", b"%d" % number + BODY)
            assert next(followed).queue_offset == number
        assert len(reader.query("t", key="k")) == 1
        reader.close()


def test_errors_name_the_whole_path(away: Callable[[], Path], tmp_path: Path) -> None:
    store = stratalog.open("store", **SMALL)
    root = away()
    store.close()
    with pytest.raises(stratalog.StoreClosed, match=str(root)):
        store.put("t", b"")


def test_a_store_in_the_current_directory_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path / "store")
    with stratalog.open(".", **SMALL) as store:
        assert store.broker_name == "store"


def test_a_relative_path_in_a_directory_that_was_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ConfigurationError, match="current directory of this process was removed"):
        stratalog.open("store")
    with stratalog.open(tmp_path / "store", **SMALL):
        pass
