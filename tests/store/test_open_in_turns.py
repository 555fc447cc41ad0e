"""What another process wrote just before this one got the lock counts: everything is read with the lock held."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import stratalog
from store.model import QUIET, SMALL
from stratalog.store.disk import Disk


class Late(Disk):
    """Another process opens, writes and closes the store before this one gets the lock."""

    def __init__(self, root: Path, code: str) -> None:
        self._code = f"import stratalog\nwith stratalog.open({str(root)!r}, small=True) as store: {code}"

    def lock(self, path: Path) -> Callable[[], None]:
        code, self._code = self._code, ""
        if code:
            subprocess.run([sys.executable, "-c", code], check=True)
        return super().lock(path)


def test_sizes_are_those_that_the_other_process_chose(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, disk=Late(tmp_path, "store.put('t', b'1')")) as store:
        assert store.put("t", b"2").queue_offset == 1
        assert store.log.file_size == 5 << 20
        assert not store.recovery.notes


def test_topics_that_the_other_process_created_are_there(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL) as store:
        store.put("t", b"0")
    disk = Late(tmp_path, "store.create_topic('b', queue_type='BatchCQ')")
    with stratalog.open(tmp_path, disk=disk, **QUIET) as store:
        assert store.topic_configs["b"].queue_type == "BatchCQ"
        store.queue("b").put_batch([b"1", b"2"], unique_key="u")
        store.create_topic("c")
        assert [message.body for message in store.queue("b").read()] == [b"1", b"2"]
    with stratalog.open(tmp_path) as store:
        assert sorted(store.topic_configs) == ["b", "c"]


def test_queues_that_the_other_process_wrote_go_on(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, small=True, enable_lmq=True, enable_multi_dispatch=True) as store:
        store.put("t", b"0")
    disk = Late(tmp_path, "[store.put('t', b'x', keys='k') for _ in range(50)]")
    with stratalog.open(tmp_path, disk=disk) as store:
        assert store.put("t", b"", keys="k").queue_offset == 51
        assert len(store.query("t", key="k", limit=None)) == 51
