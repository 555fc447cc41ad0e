"""Putting: what goes in comes out, with the offsets and ids that the receipts promised."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stratalog
from store.conftest import OpenStore
from store.model import LOG_FILE_SIZE, QUIET, SMALL, Clock, bodies, check, crash_copy, log_files, scratch_folder
from stratalog.errors import IllegalMessage, OffsetOutOfRange, StoreClosed
from stratalog.layout.message import FIXED_SIZE_V1, Host
from stratalog.layout.messageid import decode_offset_message_id
from stratalog.layout.properties import encode_properties
from stratalog.layout.sysflag import Transaction
from stratalog.store.commit_log import STEP_SIZE
from stratalog.store.message_store import MessageStore


def test_a_message_comes_back_with_every_field_that_was_given(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock, store_host="10.1.2.3:10911")
    receipt = store.put(
        "orders", b"body", queue_id=3, tags="paid", keys=["o-1", "o-2"], unique_key="U1",
        properties={"region": "eu", "größe": "ü%s"}, born_timestamp=1_600_000_000_000,
    )  # fmt: skip
    (message,) = store.queue("orders", 3).read()
    assert (message.topic, message.queue_id, message.queue_offset, message.body) == ("orders", 3, 0, b"body")
    assert (message.tags, message.keys, message.unique_key) == ("paid", ["o-1", "o-2"], "U1")
    assert message.properties["region"] == "eu"
    assert message.properties["größe"] == "ü%s"
    assert (message.born_timestamp, message.store_timestamp) == (1_600_000_000_000, clock.now_ms)
    assert str(message.store_host) == "10.1.2.3:10911"
    assert (receipt.queue_offset, receipt.commit_log_offset) == (0, 0)
    assert receipt.store_size == message.store_size == receipt.end_offset == store.log.end_offset
    assert receipt.message_id == message.message_id


def test_the_message_id_names_store_host_and_log_offset(open_store: OpenStore) -> None:
    store = open_store(store_host="10.1.2.3:10911")
    store.put("orders", b"first")
    receipt = store.put("orders", b"second")
    host, offset = decode_offset_message_id(receipt.message_id)
    assert (str(host), offset) == ("10.1.2.3:10911", receipt.commit_log_offset)
    assert store.message(offset).body == b"second"


def test_queue_offsets_count_each_queue_of_each_topic_by_itself(open_store: OpenStore) -> None:
    store = open_store()
    given = [(topic, queue_id) for _ in range(5) for topic in ("a", "b") for queue_id in (0, 1, 7)]
    receipts = [(key, store.put(key[0], b"%d" % n, queue_id=key[1])) for n, key in enumerate(given)]
    for key in set(given):
        assert [receipt.queue_offset for owner, receipt in receipts if owner == key] == list(range(5))
        assert [message.body for message in store.queue(*key).read()] == [
            b"%d" % n for n, owner in enumerate(given) if owner == key
        ]
    assert store.queues() == sorted(set(given))
    assert store.topics() == ["a", "b"]


def test_a_record_that_does_not_fit_goes_to_the_next_file_and_nothing_is_lost(open_store: OpenStore) -> None:
    store = open_store()
    sizes = [1, 30_000, 30_000, 30_000, LOG_FILE_SIZE - 200, 5, 0]
    receipts = [store.put("t", b"x" * size) for size in sizes]
    assert [len(message.body) for message in store.queue("t").read()] == sizes
    assert {receipt.commit_log_offset // LOG_FILE_SIZE for receipt in receipts} == {0, 1, 2, 3}


def test_the_largest_record_fills_a_file_exactly(open_store: OpenStore) -> None:
    store = open_store()
    largest = LOG_FILE_SIZE - 8 - FIXED_SIZE_V1 - len("t")
    for _ in range(3):
        store.put("t", b"x" * largest)
    store.put_many("t", [b"y" * largest])
    assert store.queue("t").max_offset == 4
    assert len(store.log.files) == 4
    with pytest.raises(IllegalMessage, match="a file of this log holds"):
        store.put("t", b"x" * (largest + 1))


def test_a_record_may_set_every_field_and_prepared_ones_enter_no_queue(open_store: OpenStore) -> None:
    store = open_store()
    queue = store.queue("t")
    born = Host.parse("[2001:db8::1]:9")
    queue.put_record(b"one", b"", flag=7, born_host=born, reconsume_times=2, prepared_transaction_offset=5)
    half = queue.put_record(b"half", b"", sys_flag=Transaction.PREPARED)
    queue.put_record(b"two", b"", sys_flag=Transaction.COMMIT)
    queue.put_record(b"gone", encode_properties({"KEYS": "k"}), sys_flag=Transaction.ROLLBACK)
    first, second = queue.read()
    assert (first.flag, first.reconsume_times, first.prepared_transaction_offset) == (7, 2, 5)
    assert first.born_host == born
    assert (first.body, second.body, second.queue_offset) == (b"one", b"two", 1)
    assert half.queue_offset == 0
    assert store.message(half.commit_log_offset).body == b"half"
    assert store.query("t", key="k") == []


def test_a_store_host_of_ipv6_is_written_and_read(open_store: OpenStore) -> None:
    store = open_store(store_host="[2001:db8::5]:10911")
    receipt = store.put("t", b"one", tags="a")
    store.put_many("t", [b"two", b"three"])
    assert [message.body for message in store.queue("t").read()] == [b"one", b"two", b"three"]
    (host, _) = decode_offset_message_id(receipt.message_id)
    assert str(host) == "[2001:db8:0:0:0:0:0:5]:10911"


def test_a_retry_topic_may_be_longer_than_127_characters(open_store: OpenStore) -> None:
    store = open_store()
    topic = "%RETRY%" + "g" * 200
    store.put(topic, b"one", keys="k")
    store.put_many(topic, [b"two"])
    assert [message.body for message in store.queue(topic).read()] == [b"one", b"two"]
    assert [message.body for message in store.query(topic, key="k")] == [b"one"]


# -- lists -----------------------------------------------------------------------------------------------------------


def test_a_list_shares_one_store_time_and_its_receipts_are_right(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"before")
    texts = [encode_properties({"KEYS": f"k{n}"}) for n in range(20)]
    receipts = store.put_many("t", [b"m%d" % n for n in range(20)], texts)
    messages = list(store.queue("t").read(1))
    assert len({message.store_timestamp for message in messages}) == 1
    for receipt, message in zip(receipts, messages, strict=True):
        assert receipt.queue_offset == message.queue_offset
        assert receipt.commit_log_offset == message.commit_log_offset
        assert receipt.store_size == message.store_size
        assert receipt.message_id == message.message_id
    assert [message.body for message in store.query("t", key="k7")] == [b"m7"]


def test_a_list_stays_together_in_one_file(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"x" * 40_000)
    receipts = store.put_many("t", [b"y" * 10_000] * 4)
    assert {receipt.commit_log_offset // LOG_FILE_SIZE for receipt in receipts} == {1}


def test_an_empty_list_writes_nothing(open_store: OpenStore) -> None:
    store = open_store()
    assert list(store.put_many("t", [])) == []
    assert store.log.end_offset == 0


def test_a_list_with_one_message_over_the_limit_writes_none(open_store: OpenStore) -> None:
    store = open_store(max_message_size=1000)
    for topic in ("t", "%RETRY%" + "g" * 200):
        with pytest.raises(IllegalMessage):
            store.put_many(topic, [b"fine", b"x" * 1001, b"fine"])
        assert store.queue(topic).max_offset == 0
    assert store.log.end_offset == 0
    store.put("t", b"after")


def test_as_many_properties_as_bodies_are_asked_for(open_store: OpenStore) -> None:
    with pytest.raises(IllegalMessage, match="3 bodies need as many properties"):
        open_store().put_many("t", [b""] * 3, [b"", b""])


# -- Arrow -----------------------------------------------------------------------------------------------------------


def test_an_arrow_batch_fills_several_topics_and_queues_in_row_order(open_store: OpenStore) -> None:
    store = open_store()
    count = 1000
    batch = pa.record_batch(
        {
            "topic": pa.array([f"t{n % 3}" for n in range(count)]),
            "queueId": pa.array([n % 2 for n in range(count)], pa.int32()),
            "body": pa.array([b"%d" % n for n in range(count)], pa.binary()),
            "tags": pa.array([None if n % 5 == 0 else f"tag{n % 5}" for n in range(count)]),
            "keys": pa.array([[f"k{n}", "all"] if n % 4 else None for n in range(count)], pa.list_(pa.string())),
            "uniqueKey": pa.array([f"U{n}" for n in range(count)]),
            "flag": pa.array(range(count), pa.int32()),
            "bornTimestamp": pa.array(range(10**12, 10**12 + count), pa.timestamp("ms")),
            "region": pa.array([None if n % 7 else "eu" for n in range(count)]),
        }
    )
    ranges = store.append(batch)
    assert len(store.log.files) > 1, "the batch must roll in the middle"
    for n in range(count):
        key = f"t{n % 3}", n % 2
        message = next(store.queue(*key).read(ranges[key].start + n // 6, count=1))
        assert message.body == b"%d" % n
        assert message.tags == (None if n % 5 == 0 else f"tag{n % 5}")
        assert message.keys == ([f"k{n}", "all"] if n % 4 else [])
        assert (message.unique_key, message.flag, message.born_timestamp) == (f"U{n}", n, 10**12 + n)
        assert message.properties.get("region") == (None if n % 7 else "eu")
    assert {key: len(found) for key, found in ranges.items()} == {
        (f"t{topic}", queue): len([n for n in range(count) if (n % 3, n % 2) == (topic, queue)])
        for topic in range(3)
        for queue in range(2)
    }


def test_a_batch_of_several_chunks_with_one_row_over_the_limit_writes_no_row(open_store: OpenStore) -> None:
    store = open_store(max_message_size=100)
    rows = [b""] * (1 << 16) + [b"x" * 101]
    with pytest.raises(IllegalMessage, match="row 65536: body of 101 bytes"):
        store.append(pa.record_batch({"body": rows}), topic="t")
    assert store.log.end_offset == 0


def test_a_sliced_table_of_several_chunks_is_appended_as_it_reads(open_store: OpenStore) -> None:
    store = open_store()
    table = pa.concat_tables(
        [pa.table({"body": [f"{part}-{n}" for n in range(50)], "keys": [f"k {n}" for n in range(50)]}) for part in "ab"]
    ).slice(13, 70)
    offsets = store.queue("t").append(table)
    assert offsets == range(70)
    assert [message.body.decode() for message in store.queue("t").read()] == table["body"].to_pylist()
    assert [message.keys for message in store.queue("t").read()] == [key.split() for key in table["keys"].to_pylist()]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": [b"a"]}, "no column 'topic'"),
        ({"topic": ["t"]}, "no column 'body'"),
        ({"topic": ["t"], "body": [b"x" * 5000]}, "body of 5,000 bytes"),
        ({"topic": ["t"], "body": [b""], "tags": ["a\x01b"]}, "separator"),
        ({"topic": ["t"], "body": [b""], "p": ["a" * 40_000]}, "properties of"),
        ({"topic": ["t/../u"], "body": [b""]}, "topic 't/../u'"),
        ({"topic": ["t"], "body": [b""], "queueId": [-1]}, "queueId"),
        ({"topic": [None], "body": [b""]}, "topic"),
        ({"topic": ["t"], "body": [b""], "queueId": pa.array([None], pa.int32())}, "queueId"),
        ({"topic": ["t"], "body": [b""], "": ["x"]}, "an empty name"),
        ({"topic": ["t"], "body": [b""], "a\x02": ["x"]}, "separator"),
        ({"topic": ["t"], "body": [1.5]}, "column 'body'"),
        ({"topic": ["t"], "body": [b""], "keys": [["two words"]]}, "blank"),
        ({"topic": ["t"], "body": [b""], "KEYS": ["x"], "keys": ["y"]}, "KEYS"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else None,
)
def test_an_arrow_batch_outside_the_limits_is_refused_before_anything_is_written(
    open_store: OpenStore, columns: dict[str, object], message: str
) -> None:
    store = open_store(max_message_size=4096)
    whole = {"topic": ["t"], "body": [b"fine"]}
    store.append(pa.record_batch(whole))
    end = store.log.end_offset
    with pytest.raises(IllegalMessage, match=message):
        store.append(pa.record_batch(columns))
    assert store.log.end_offset == end
    store.append(pa.record_batch(whole))


TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x01\x02"), min_size=1, max_size=20)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.binary(max_size=2000), st.sampled_from(["a", "b"]), st.integers(0, 2), st.none() | TEXT,
            st.none() | st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3), st.none() | TEXT,
        ),
        max_size=60,
    ),
    how=st.sampled_from(["put", "arrow", "list"]),
)  # fmt: skip
def test_every_way_in_writes_the_same_records(rows: list[tuple[Any, ...]], how: str) -> None:
    """put, put_many and append differ in speed only: same bytes in log, queues and index."""
    logs = []
    for way in ("put", how):
        with scratch_folder() as folder, stratalog.open(folder, clock_ns=Clock(), **SMALL, **QUIET) as store:
            if way == "arrow" and rows:
                names = ["body", "topic", "queueId", "tags", "keys", "extra"]
                columns = dict(zip(names, zip(*rows, strict=True), strict=True))
                columns["keys"] = pa.array(columns["keys"], pa.list_(pa.string()))
                columns["body"] = pa.array(columns["body"], pa.binary())
                columns["tags"], columns["extra"] = (pa.array(columns[name], pa.string()) for name in ("tags", "extra"))
                store.append(pa.record_batch(columns))
            else:
                for body, topic, queue_id, tags, keys, extra in rows:
                    if way == "put":
                        given_properties = {"extra": extra} if extra else None
                        store.put(topic, body, queue_id=queue_id, tags=tags, keys=keys, properties=given_properties)
                    else:
                        texts = {"TAGS": tags, "KEYS": " ".join(keys or []), "extra": extra}
                        encoded = encode_properties({name: text for name, text in texts.items() if text})
                        store.put_many(topic, [body], encoded, queue_id=queue_id)
            check(store)
            logs.append([path.read_bytes() for path in log_files(folder)])
    assert logs[0] == logs[1]


# -- durability ------------------------------------------------------------------------------------------------------


def test_under_sync_flush_a_put_is_durable_when_it_returns(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    assert store.put("t", b"one").end_offset == store.durable_offset
    assert store.put_many("t", [b"two", b"three"])[-1].end_offset == store.durable_offset
    store.append(pa.record_batch({"body": [b"four"]}), topic="t")
    assert store.durable_offset == store.log.end_offset


def test_under_sync_flush_readers_see_only_durable_messages(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(flush="sync")
    queue = store.queue("t")
    queue.put(b"durable")
    late = queue.put(b"not yet", keys="k", wait=False)
    assert store.durable_offset < late.end_offset
    assert queue.max_offset == 1
    assert [message.body for message in queue.read()] == [b"durable"]
    assert store.query("t", key="k") == []
    assert queue.read_arrow(0, columns=["body"])["body"].to_pylist() == [b"durable"]
    with pytest.raises(OffsetOutOfRange):
        queue.read(2)
    assert store.flush() == late.end_offset
    assert queue.max_offset == 2
    assert [message.body for message in store.query("t", key="k")] == [b"not yet"]


def test_under_async_flush_readers_see_a_message_at_once_and_flush_makes_it_durable(open_store: OpenStore) -> None:
    store = open_store()
    receipt = store.put("t", b"one")
    assert store.durable_offset == 0
    assert [message.body for message in store.queue("t").read()] == [b"one"]
    assert store.flush() == receipt.end_offset == store.durable_offset


def test_a_flush_reaches_the_end_of_the_file_before_a_roll(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    for _ in range(10):
        store.put("t", b"x" * 20_000)
    assert store.durable_offset == store.log.end_offset


def test_thousands_of_async_puts_in_flight_share_flushes_and_keep_their_order(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    syncs = 0
    sync = store.log.sync

    def counted() -> int:
        nonlocal syncs
        syncs += 1
        return sync()

    store.log.sync = counted  # type: ignore[method-assign]

    async def put_all() -> list[int]:
        receipts = await asyncio.gather(*(store.put_async("t", b"%d" % n, queue_id=n % 2) for n in range(2000)))
        assert store.durable_offset >= max(receipt.end_offset for receipt in receipts)
        return [receipt.queue_offset for receipt in receipts]

    assert asyncio.run(put_all()) == [n // 2 for n in range(2000)]
    assert syncs < 200
    assert [message.body for message in store.queue("t", 1).read()] == [b"%d" % n for n in range(1, 2000, 2)]
    asyncio.run(put_all())


def test_nobody_waits_for_ever_when_the_store_is_closed_with_puts_in_flight(open_store: OpenStore) -> None:
    for _ in range(5):
        store = open_store(flush="sync")
        sync = store.log.sync
        flushing = threading.Event()

        def slow(sync: Callable[[], int] = sync, flushing: threading.Event = flushing) -> int:
            flushing.set()
            return sync()

        store.log.sync = slow  # type: ignore[method-assign]

        async def put_all(store: MessageStore = store, flushing: threading.Event = flushing) -> list[Any]:
            waiting = [asyncio.ensure_future(store.put_async("t", b"%d" % n)) for n in range(500)]
            while not flushing.is_set():
                await asyncio.sleep(0)
            waiting += [asyncio.ensure_future(store.put_async("t", b"%d" % n)) for n in range(500)]
            closing = asyncio.get_running_loop().run_in_executor(None, store.close)
            outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
            await closing
            return outcomes

        outcomes = asyncio.run(put_all())
        acknowledged = [outcome.queue_offset for outcome in outcomes if not isinstance(outcome, StoreClosed)]
        with stratalog.open(store.root, mode="r", **SMALL) as reader:
            assert set(acknowledged) <= {message.queue_offset for message in reader.queue("t").read()}


def test_an_async_put_under_async_flush_does_not_wait(open_store: OpenStore) -> None:
    store = open_store()
    receipt = asyncio.run(store.put_async("t", b"one", tags="a"))
    assert receipt.end_offset == store.log.end_offset
    assert store.durable_offset == 0


def test_many_threads_put_and_nothing_is_lost_or_twice(open_store: OpenStore) -> None:
    store = open_store(flush="sync")
    acknowledged: list[tuple[int, bytes]] = []

    def work(thread: int) -> None:
        for n in range(100):
            body = b"%d-%d" % (thread, n)
            acknowledged.append((store.put("t", body * 20).queue_offset, body * 20))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(acknowledged) == [(message.queue_offset, message.body) for message in store.queue("t").read()]
    assert len(acknowledged) == 800


# -- after closing ---------------------------------------------------------------------------------------------------


def test_a_closed_store_takes_and_gives_nothing_and_says_so(open_store: OpenStore) -> None:
    store = open_store()
    queue = store.queue("t")
    queue.put(b"one")
    store.close()
    store.close()
    for use in (
        lambda: store.put("t", b"two"),
        lambda: store.put_many("t", [b"two"]),
        lambda: store.append(pa.record_batch({"body": [b"two"]}), topic="t"),
        lambda: asyncio.run(store.put_async("t", b"two")),
        lambda: store.flush(),
        lambda: list(queue.read()),
        lambda: store.message(0),
        lambda: store.create_topic("other"),
    ):
        with pytest.raises(StoreClosed, match="closed; open it again"):
            use()


def test_the_ranges_of_batches_from_many_threads_name_their_own_messages(open_store: OpenStore) -> None:
    store = open_store()
    given: dict[tuple[str, int, int], bytes] = {}

    def append_all(number: int) -> None:
        for n in range(60):
            rows = [b"%d-%d-%d" % (number, n, row) for row in range(1 + n % 4)]
            ((queue_key, offsets),) = store.append(pa.record_batch({"body": rows}), topic="t", queue_id=0).items()
            given.update({(*queue_key, offset): body for offset, body in zip(offsets, rows, strict=True)})

    threads = [threading.Thread(target=append_all, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [given["t", 0, offset] for offset in range(len(given))] == bodies(store)["t", 0]


def test_puts_go_on_at_the_right_offsets_after_reopening(open_store: OpenStore, tmp_path: Path) -> None:
    written: dict[tuple[str, int], list[bytes]] = {}
    for round_number in range(4):
        store = open_store()
        for n in range(80):
            key, body = ("t", n % 3), b"%d-%d" % (round_number, n) * 30
            receipt = store.put(*key[:1], body, queue_id=key[1], keys=["k"])
            assert receipt.queue_offset == len(written.setdefault(key, []))
            written[key].append(body)
        assert bodies(store) == written
        copy = crash_copy(store, tmp_path / f"copy{round_number}")
        store.close()
        again = open_store(copy)
        assert not again.recovery.clean
        assert bodies(again) == written


def test_much_that_is_put_at_once_reaches_the_queues_meanwhile(open_store: OpenStore) -> None:
    """Every few MiB the thread that dispatches is woken: it need not catch up with all at its next turn."""
    store = open_store(mapped_file_size_commit_log=16 << 20)
    for _ in range(6):
        store.put("t", b"x" * (2 << 20))
    begin = time.monotonic()
    while store.dispatch_lag > STEP_SIZE + (2 << 20) and time.monotonic() - begin < 20:
        time.sleep(0.001)
    assert store.dispatch_lag <= STEP_SIZE + (2 << 20)
    assert store.log.end_offset > 3 * STEP_SIZE
