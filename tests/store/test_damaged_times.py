"""One changed bit in the store time of a record, which nothing covers: it hides no other message from a query."""

from pathlib import Path

import pytest

import stratalog
from store.model import QUIET, SMALL
from stratalog.layout.message import HEAD
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

COUNT = 4


@pytest.mark.one_in(63)
@pytest.mark.parametrize("road", ["read", "opened", "rebuilt", "repaired"])
@pytest.mark.parametrize("bit", range(64))
@pytest.mark.parametrize("which", [0, 1, COUNT - 1])
def test_all_other_keys_are_found(which: int, bit: int, road: str, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL, **QUIET) as store:
        offsets = [store.put("t", b"%d" % n, keys=f"k{n}").commit_log_offset for n in range(COUNT)]
        begin = next(iter(store.queue("t").read())).store_timestamp
    (path,) = (tmp_path / "commitlog").iterdir()
    data = bytearray(path.read_bytes())
    data[offsets[which] + HEAD.position("store_timestamp") + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    if road == "opened":
        stratalog.open(tmp_path, **SMALL, **QUIET).close()
    elif road == "rebuilt":
        rebuild(tmp_path)
    elif road == "repaired":
        assert repair(plan_repair(tmp_path)).ok
        assert verify(tmp_path).ok
    with stratalog.open(tmp_path, mode="r", **SMALL, **QUIET) as store:
        for number in set(range(COUNT)) - {which}:
            assert [message.body for message in store.query("t", key=f"k{number}")] == [b"%d" % number]
            assert store.query("t", key=f"k{number}", begin=begin - 1000)
