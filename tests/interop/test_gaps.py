"""A crashed RocketMQ store whose queue lacks units below the checkpoint: after our opening both serve everything."""

from pathlib import Path

import pytest

import stratalog
from golden.cases import golden_case
from golden.test_store_reads import settings_of
from interop.rocketmq import RocketMQ
from interop.views import java_settings
from store.model import walk
from stratalog.layout.checkpoint import CHECKPOINT, FILE_SIZE
from stratalog.layout.names import CHECKPOINT as CHECKPOINT_NAME
from stratalog.layout.names import CONSUME_QUEUE
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import enters_queue
from stratalog.tools.verify import verify

pytestmark = pytest.mark.one_in(2)

SIZES = (
    "mapped_file_size_commit_log", "mapped_file_size_consume_queue", "max_hash_slot_num", "max_index_num"
)  # fmt: skip


@pytest.mark.parametrize("mode", ["end", "block", "gone"])
def test_units_that_are_gone_below_the_checkpoint_are_there_again(
    rocketmq: RocketMQ, mode: str, tmp_path: Path
) -> None:
    case = golden_case(f"local/halt-{rocketmq.release}")
    root = case.unpack_store(tmp_path)
    settings = settings_of(case)
    records = [record for record in walk(root).records if enters_queue(record.sys_flag)]
    (queue,) = (root / CONSUME_QUEUE / "TopicA" / "0").iterdir()
    units = bytearray(queue.read_bytes())
    begin, end = {"end": (5, len(units) // UNIT.size), "block": (5, 9), "gone": (0, 0)}[mode]
    units[begin * UNIT.size : end * UNIT.size] = bytes((end - begin) * UNIT.size)
    queue.write_bytes(units) if mode != "gone" else queue.unlink()
    last = records[-1]
    fields = CHECKPOINT.pack(*[last.store_timestamp] * 3, 0, last.commit_log_offset, last.commit_log_offset)
    (root / CHECKPOINT_NAME).write_bytes(fields.ljust(FILE_SIZE, b"\0"))
    report = verify(root, settings=stratalog.StoreSettings.make(settings))
    assert report.units_behind or not report.ok
    with stratalog.open(root, **settings) as store:
        assert sum(len(list(store.queue(*key).read())) for key in store.queues()) == len(records)
    sizes = {name: value for name, value in settings.items() if name in SIZES}
    assert rocketmq.ask("open", directory=str(root), settings=java_settings(sizes))["loaded"]
    pulled = {
        (queue["topic"], queue["queue_id"]): [message["commit_log_offset"] for message in queue["messages"]]
        for queue in rocketmq.ask("read")["queues"]
    }
    rocketmq.ask("close")
    assert sorted(offset for queue in pulled.values() for offset in queue) == [r.commit_log_offset for r in records]
