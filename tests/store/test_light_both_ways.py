"""A light queue whose messages came in both ways, as RocketMQ allows: sent to it, and with its name in
INNER_MULTI_DISPATCH. RocketMQ counts both from 0; stratalog refuses the first."""

import contextlib
import shutil
from pathlib import Path

import pytest

from store.kinds import LIGHT_KIND
from store.test_recreated_topics import killed, settings_of, unseal
from stratalog.errors import CorruptData
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import decode_record
from stratalog.layout.names import COMMIT_LOG, CONSUME_QUEUE, INDEX
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import UNIT
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

QUEUE, OTHER_NAME = "%LMQ%a", "aLMQaa"


def _put(root: Path, ways: str) -> None:
    """ "s" for sent, "n" for named. What is sent goes to a topic whose name is changed in the files afterwards."""
    placed, named_count = list[tuple[int, int]](), 0
    with LIGHT_KIND.open(root) as store:
        for way in ways:
            if way == "s":
                receipt = store.queue(OTHER_NAME).put_raw(b"sent")
                placed.append((receipt.commit_log_offset, receipt.queue_offset))
            else:
                receipt = store.queue("parent").put_raw(b"named", encode_properties({MULTI_DISPATCH: QUEUE}))
                placed.append((receipt.commit_log_offset, named_count))
                named_count += 1
    unseal(root)
    (log,) = (root / COMMIT_LOG).glob(f"{0:020d}")
    data = log.read_bytes().replace(OTHER_NAME.encode(), QUEUE.encode())
    log.write_bytes(data)
    shutil.rmtree(root / CONSUME_QUEUE / OTHER_NAME)
    shutil.rmtree(root / INDEX)
    (file,) = (root / CONSUME_QUEUE / QUEUE / "0").iterdir()
    units, end = bytearray(file.stat().st_size), 0
    for offset, number in placed:
        if number >= end:
            unit = UNIT.pack(offset, decode_record(data, offset).total_size, 0)
            units[number * UNIT.size : (number + 1) * UNIT.size] = unit
            end = number + 1
    file.write_bytes(units)


@pytest.mark.parametrize("ways", ["snnn", "nsss", "ssnnn", "nnnss", "nsnns", "sn", "ns"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_it_is_no_topic_that_was_created_again(ways: str, is_killed: bool, tmp_path: Path) -> None:
    _put(tmp_path, ways)
    if is_killed:
        killed(tmp_path)
    settings = settings_of(LIGHT_KIND)
    assert verify(tmp_path, settings=settings).ok
    with contextlib.suppress(CorruptData):
        rebuild(tmp_path, settings=settings)
    for _ in range(2):
        report = verify(tmp_path, settings=settings)
        assert report.ok, report.problems[:3]
        assert repair(plan_repair(tmp_path, settings=settings)).ok
        LIGHT_KIND.open(tmp_path).close()
