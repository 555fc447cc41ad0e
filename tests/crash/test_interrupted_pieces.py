"""Openings that read and index the log in several threads, interrupted by an exception from a signal handler."""

import gc
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.interrupts import Dropped, Injector, unraisable_dropped
from store.model import QUIET, SMALL
from stratalog.store import log_scan, rederive
from stratalog.store.index_file import Index

COUNT = 200


@pytest.fixture
def killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of which everything is to be read and built; opening it takes many pieces and chunks."""
    with stratalog.open(tmp_path / "killed", **SMALL, **QUIET) as store:
        for number in range(COUNT):
            store.put("t", b"x" * 100, keys=f"k{number}")
    for name in ("consumequeue", "index"):
        shutil.rmtree(store.root / name)
    (store.root / "checkpoint").unlink()
    (store.root / "abort").touch()
    monkeypatch.setattr(log_scan, "_PIECE_SIZE", 2000)
    monkeypatch.setattr(rederive, "_LONG_SIZE", 1000)
    return store.root


def pools() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(("stratalog-scan", "stratalog-index"))]


@pytest.mark.one_in(40)
@pytest.mark.parametrize("part", range(40))
@pytest.mark.parametrize("index_s", [0.0, 0.002])
def test_it_ends_and_leaves_no_thread_behind(
    index_s: float, part: int, killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Index.put

    def slowly(*args: Any) -> None:
        time.sleep(index_s)
        put(*args)

    monkeypatch.setattr(Index, "put", slowly)

    def case(injector: Injector) -> None:
        root = tmp_path / "copy"
        shutil.copytree(killed, root)
        try:
            with injector:
                store = stratalog.open(root, **SMALL, **QUIET)
            store.close()
        except Dropped:
            pass
        deadline = time.monotonic() + 10
        while pools():  # one may just be started, or be at work
            assert time.monotonic() < deadline, (pools(), injector.point)
            gc.collect()
        with stratalog.open(root, **SMALL, **QUIET) as store:
            assert store.queue("t").max_offset == COUNT
            assert [hit.queue_offset for hit in store.query("t", key=f"k{COUNT - 1}")] == [COUNT - 1]
        shutil.rmtree(root)

    traced = (log_scan.__file__, rederive.__file__, stratalog.helpers.__file__)
    with unraisable_dropped():
        case(counted := Injector(0, returns=False, traced=traced))
        assert len(counted.points) > 300
        for number in counted.points[part::40]:
            case(Injector(number, returns=False, traced=traced, raises=Dropped))
