"""`dump` beside a writer that puts and deletes files."""

import threading
import time
from pathlib import Path

import pytest

from store.kinds import BATCH, LIGHT_KIND, PLAIN, Kind
from store.model import log_files
from stratalog.errors import NotAStore
from stratalog.tools.dump import dump, kind_by_path
from stratalog.tools.dump_files import dump_config


@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_files_that_are_deleted_meanwhile_are_left_out(kind: Kind, tmp_path: Path) -> None:
    root = tmp_path / "store"
    kind.made(root, count=200)
    every = sorted(path for path in root.rglob("*") if path.is_file() and kind_by_path(path))
    items = dump(root)
    first = next(items)
    gone = {path for path in every if path != first.path and path.name != max(path.parent.iterdir()).name}
    for path in gone:
        path.unlink()
    shown = [first, *items]
    assert {item.path for item in shown} == set(every) - gone
    assert len(gone) > 3
    assert "damage" not in {item.kind for item in shown}


def test_a_file_that_is_asked_for_and_not_there_is_an_error(tmp_path: Path) -> None:
    PLAIN.made(tmp_path / "store")
    file = log_files(tmp_path / "store")[-1]
    items = dump(file)
    file.unlink()
    with pytest.raises(NotAStore):
        next(items)
    with pytest.raises(FileNotFoundError):
        list(dump_config(tmp_path / "store" / "config" / "topics.json"))


@pytest.mark.parametrize("ends", ["whole", "torn", "torn, nobody writes"])
def test_a_record_that_is_being_put_is_no_damage(ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "store"
    PLAIN.made(root)
    (file,) = [path for path in log_files(root) if any(path.read_bytes())][-1:]
    store = PLAIN.open(root)
    end = store.log.end_offset - int(file.name)
    receipt = store.put("topic", b"x" * 100)
    data = file.read_bytes()
    rest = data[end + 50 : end + receipt.store_size]
    store.log.map[end + 50 : end + receipt.store_size] = bytes(len(rest))

    def finish() -> None:
        time.sleep(0.1)
        store.log.map[end + 50 : end + receipt.store_size] = rest

    thread = threading.Thread(target=finish)
    if ends == "whole":
        thread.start()
    elif ends == "torn":
        monkeypatch.setattr("stratalog.tools.dump_files._WAITS_MAX", 3)
    else:
        monkeypatch.setattr("stratalog.tools.dump_files.lock_owner", lambda path: None)
        monkeypatch.setattr("stratalog.tools.dump_files.time", None)  # it does not wait
    kinds = [item.kind for item in dump(file) if item.position >= end]
    assert kinds == (["message", "unwritten"] if ends == "whole" else ["damage", "unwritten"])
    if ends == "whole":
        thread.join()
    store.log.map[end + 50 : end + receipt.store_size] = rest
    store.close()
