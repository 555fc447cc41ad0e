"""One changed bit in the store time of a record, which nothing covers: it hides no other message from a query."""

import itertools
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


@pytest.mark.parametrize("value", [0, -1, 1, -(1 << 63)])
def test_the_time_of_the_first_record_of_a_log_file_is_the_same_for_all_tools(value: int, tmp_path: Path) -> None:
    """Its item is made with the time of the item before, which `verify` met in another file."""
    clock = itertools.count(1_700_000_000_000_000_000, 3_000_000_000)
    sizes = SMALL | {"mapped_file_size_commit_log": 8192}
    with stratalog.open(tmp_path, **sizes, **QUIET, clock_ns=lambda: next(clock)) as store:
        for number in range(60):
            store.put("t", b"x" * 300, keys=f"k{number}")
    _, path, *_ = sorted((tmp_path / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    at = HEAD.position("store_timestamp")
    data[at : at + 8] = value.to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    rebuild(tmp_path)
    assert verify(tmp_path).problems == []
