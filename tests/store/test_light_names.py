"""What a message names as its light queues, and topics that are called as light queues are: stored text is read as it
was checked."""

from pathlib import Path

import pytest

import stratalog
from store.model import QUIET, SMALL
from stratalog.errors import IllegalMessage
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.tools.verify import verify

NAMES = ["%LMQ%a", "%LMQ%a,%LMQ%b"]
AROUND = ["{} ", " {}", "\t{}", "{}\n", "{},", ",{}", "\u00a0{}", "{}\u2028", "{}\x0b", "{}, %LMQ%c", "{} ,%LMQ%c"]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("names", NAMES)
def test_a_name_with_a_blank_beside_it_is_refused(names: str, around: str, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL, **QUIET, enable_lmq=True, enable_multi_dispatch=True) as store:
        for number, text in enumerate((names, around.format(names), names)):
            if number == 1:
                with pytest.raises(IllegalMessage, match="nothing was written"):
                    store.put("parent", b"1", properties={MULTI_DISPATCH: text})
            else:
                store.put("parent", b"%d" % number, properties={MULTI_DISPATCH: text})
        assert [message.body for message in store.queue("%LMQ%a").read()] == [b"0", b"2"]
        assert sorted(store.topics()) == sorted(["parent", *names.split(",")])
    assert verify(tmp_path).ok


@pytest.mark.parametrize("queue_id", [0, 1, 7])
def test_a_topic_called_as_a_light_queue_is_read_where_there_are_none(queue_id: int, tmp_path: Path) -> None:
    bodies = [b"%d" % number for number in range(5)]
    with stratalog.open(tmp_path, **SMALL, **QUIET) as store:
        queue = store.queue("%LMQ%a", queue_id)
        receipts = [queue.put(body, keys="k") for body in bodies[:3]]
        queue.put_many(bodies[3:], b"KEYS\x01k\x02")
        for mode in ("beside", "itself"):
            one = store if mode == "itself" else stratalog.open(tmp_path, mode="r", **SMALL, **QUIET)
            found = one.queue("%LMQ%a", queue_id)
            assert [(message.queue_id, message.body) for message in found.read()] == [(queue_id, one) for one in bodies]
            assert found.read_arrow()["body"].to_pylist() == bodies
            assert sorted(message.body for message in one.query("%LMQ%a", key="k")) == bodies
            assert found.offset_at(receipts[0].store_timestamp) == 0
            if one is not store:
                one.close()
    assert verify(tmp_path).ok
