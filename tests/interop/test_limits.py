"""What else stands on disk: record CRCs, the broker's topics, our snapshot of the queues, records that fill damage."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.drafts import TAGS, drafts, fill
from interop.rocketmq import RocketMQ
from interop.shared import LogPrefix
from interop.turns import Turns
from interop.views import as_seen, assert_same, one_by_one, our_reading
from store.test_refused_properties import TAKEN
from stratalog.config.settings import StoreSettings
from stratalog.errors import IllegalMessage
from stratalog.layout.message import HEAD, decode_record
from stratalog.layout.names import ABORT, COMMIT_LOG
from stratalog.layout.properties import encode_properties
from stratalog.layout.recordcrc import record_crc_holds
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

pytestmark = pytest.mark.one_in(2)

COUNT = 120
BATCHES = "Batches"


def records(directory: Path) -> Iterator[bytes]:
    """Every record of the log as it stands there."""
    prefix = LogPrefix(directory)
    for offset in sorted([*prefix.offsets, *prefix.hidden]):
        data, position = prefix.at(offset)
        yield data[position : position + decode_record(data, position).total_size]


def test_record_crcs_of_either_side_are_checked_and_hold(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """Both recover as after a crash, so that both look at every record."""
    asked = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
    turns = Turns(tmp_path, rocketmq, of_java=asked)
    crc = {"enabled_append_prop_crc": True}
    for seed in range(2):
        with turns.open_ours(**crc) as store:
            ways = fill(store, drafts(seed, COUNT, odd=0.1), seed)
            put = sum(1 for _ in ways)
            read = our_reading(store)
        (tmp_path / ABORT).touch()
        assert_same(read, turns.open_theirs())
        assert all(holds for _, _, holds in rocketmq.ask("log")["records"])
        turns.put_by_java(one_by_one(drafts(100 + seed, COUNT)), halted=False)
        (tmp_path / ABORT).touch()
    with turns.open_ours(**crc) as store:
        assert not store.recovery.quarantined
        assert sum(len(messages) for messages in our_reading(store).values()) > 3 * COUNT
        assert put > COUNT // 2
    stored = list(records(tmp_path))
    assert all(b"__CRC32#" in record and record_crc_holds(record) for record in stored)


def test_topics_that_we_create_are_read_by_a_broker_and_the_other_way_round(rocketmq: RocketMQ, tmp_path: Path) -> None:
    turns = Turns(tmp_path, rocketmq)
    with turns.open_ours() as store:
        store.create_topic("Orders", queues=3)
        store.create_topic(BATCHES, queues=2, queue_type="BatchCQ")
    assert rocketmq.ask("table", directory=str(tmp_path))["topics"] == {
        "Orders": [3, {}],
        BATCHES: [2, {"queue.type": "BatchCQ"}],
    }
    made = [
        {"name": "Theirs", "queues": 5, "attributes": {"queue.type": "BatchCQ", "cleanup.policy": "DELETE"}},
        {"name": "Plain", "queues": 1, "attributes": {}},
    ]
    rocketmq.ask("topics", directory=str(tmp_path), topics=made)
    with turns.open_ours() as store:
        topics = store.topic_configs
        assert {name: (topic.queue_type, topic.read_queue_count) for name, topic in topics.items()} == {
            "Theirs": ("BatchCQ", 5),
            "Plain": ("SimpleCQ", 1),
        }
        assert topics["Theirs"].attributes["cleanup.policy"] == "DELETE"
        store.create_topic("Added", queues=4)
    table = rocketmq.ask("table", directory=str(tmp_path))["topics"]
    assert set(table) == {"Theirs", "Plain", "Added"}


def test_our_snapshot_of_the_queues_does_not_survive_a_broker(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """RocketMQ leaves the file alone and writes to the queues: what the snapshot says is old then, and not believed."""
    turns = Turns(tmp_path, rocketmq)
    with turns.open_ours() as store:
        for draft, place in fill(store, drafts(1, COUNT), 1):
            turns.ledger.note(draft, place)
    snapshots = [path for path in tmp_path.iterdir() if path.suffix == ".snapshot"]
    assert len(snapshots) == 1
    before = snapshots[0].read_bytes()
    turns.open_theirs()
    turns.put_by_java(one_by_one(drafts(2, COUNT)), halted=False)
    assert snapshots[0].read_bytes() == before
    with turns.open_ours() as store:
        read = our_reading(store)
        turns.ledger.check(read, exactly=True)
    snapshots[0].write_bytes(before)  # as a backup would put it back
    with turns.open_ours() as store:
        assert our_reading(store) == read


@pytest.mark.parametrize("field", ["body", "magic"])
def test_a_repaired_store_is_taken_whole_by_rocketmq(rocketmq: RocketMQ, field: str, tmp_path: Path) -> None:
    """Where a record was damaged stand records that RocketMQ passes over: its log goes on to the end."""
    turns = Turns(tmp_path, rocketmq)
    with turns.open_ours() as store:
        for draft in drafts(3, COUNT):
            store.put(draft.topic, b"x" * 40 + draft.body, queue_id=draft.queue_id, tags=draft.tags)
        end_offset = store.log.end_offset
        keys = store.queues()
        victim = next(iter(store.queue("Orders", 1).read(3, count=1)))
        expected = {key: [as_seen(message) for message in store.queue(*key).read()] for key in keys}
    file_size = turns.settings["mapped_file_size_commit_log"]
    path = tmp_path / COMMIT_LOG / f"{victim.commit_log_offset // file_size * file_size:020d}"
    data = bytearray(path.read_bytes())
    data[victim.commit_log_offset % file_size + (HEAD.size + 30 if field == "body" else 5)] ^= 0x10
    path.write_bytes(data)
    (tmp_path / ABORT).touch()
    given = StoreSettings.make(turns.settings | {"compatibility": rocketmq.compatibility})
    report = repair(plan_repair(tmp_path, settings=given))
    assert not report.problems
    theirs = turns.open_theirs()
    assert rocketmq.ask("log")["records"][-1][0] + rocketmq.ask("log")["records"][-1][1] == end_offset
    found = {key: {message["commit_log_offset"]: message for message in theirs[key]} for key in keys}
    for key, messages in expected.items():
        for message in messages:
            if message["commit_log_offset"] != victim.commit_log_offset:
                there = found[key][message["commit_log_offset"]]
                assert message == {name: there[name] for name in message}
    assert all(holds for _, _, holds in rocketmq.ask("log")["records"])
    turns.put_by_java(one_by_one(drafts(4, 20)), halted=False)


def test_rocketmq_takes_a_log_whose_messages_steer_it_as_far_as_they_may(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """What is refused beyond that would end its log (`store/test_refused_properties.py`)."""
    turns = Turns(tmp_path, rocketmq)
    with turns.open_ours() as store:
        for topic, given in TAKEN:
            store.queue(topic).put(b"body", properties=given)
        store.queue("Orders").put(b"last")
        end_offset = store.log.end_offset
    turns.open_theirs()
    newest = rocketmq.ask("log")["records"][-1]
    assert newest[0] + newest[1] == end_offset
    rocketmq.ask("close")


def test_what_rocketmq_takes_and_then_chokes_on_is_refused(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """Each is answered PUT_OK by RocketMQ and then stops its dispatch, or is lost; here nothing of it is written."""
    turns = Turns(tmp_path, rocketmq, enable_lmq=True, enable_multi_dispatch=True)
    with turns.open_ours() as store:
        queue = store.queue("Orders", 0)
        queue.put(b"first", tags=TAGS[1])
        end_offset = store.log.end_offset
        for poison in ("Orders", "%LMQ%a,,%LMQ%b", "%LMQ%a,other", "%LMQ%a,%LMQ%a"):
            with pytest.raises(IllegalMessage, match="nothing was written"):
                queue.put_record(b"", encode_properties({"INNER_MULTI_DISPATCH": poison}))
        with pytest.raises(IllegalMessage):
            queue.put_record(bytes(turns.settings["mapped_file_size_commit_log"]), b"")
        assert store.log.end_offset == end_offset
    theirs = turns.open_theirs()
    assert [len(messages) for messages in theirs.values()] == [1]
    rocketmq.ask("close")
