"""Reading by offset, time and key gives what a plain list would give."""

import random
import shutil
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stratalog
from store.conftest import OpenStore
from store.model import LOG_FILE_SIZE, QUIET, SMALL, Clock, check, log_files, queue_files, scratch_folder
from stratalog.errors import ConfigurationError, OffsetOutOfRange, StoreClosed
from stratalog.layout.javahash import string_hash
from stratalog.layout.message import Host, Record
from stratalog.layout.queue import UNIT
from stratalog.store.consume_queue import ConsumeQueue
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore
from stratalog.store.open_files import OpenFiles
from stratalog.store.record_put import RecordFields


def fill(store: MessageStore, count: int, topic: str = "t", size: int = 300) -> list[bytes]:
    bodies = [b"%06d" % number * (size // 6) for number in range(count)]
    for body in bodies:
        store.put(topic, body)
    return bodies


# -- by offset -------------------------------------------------------------------------------------------------------


def test_reading_from_any_offset_any_count_gives_that_part_of_the_queue(open_store: OpenStore) -> None:
    store = open_store()
    bodies = fill(store, 230)
    queue = store.queue("t")
    assert queue.max_offset == 230
    assert len(queue_files(store.root, "t")) > 2
    for first in (0, 1, 49, 50, 51, 199, 229, 230):
        for count in (0, 1, 50, 51, 1000, None):
            expected = bodies[first:] if count is None else bodies[first : first + count]
            assert [message.body for message in queue.read(first, count=count)] == expected
            assert queue.read_arrow(first, count=1000 if count is None else count)["body"].to_pylist() == expected
    assert (queue.min_offset, queue.max_offset) == (0, 230)


def test_messages_read_together_have_their_own_fields_whatever_their_neighbours_have(open_store: OpenStore) -> None:
    store = open_store()
    queue = store.queue("t")
    hosts = [Host.parse(text) for text in ("10.0.0.1:1", "10.0.0.1:2", "[2001:db8::1]:1", "10.0.0.2:1")]
    chance = random.Random(7)
    given: list[RecordFields] = [
        {
            "flag": chance.randrange(2),
            "born_timestamp": 10**12 + chance.randrange(2),
            "reconsume_times": chance.randrange(2),
            "born_host": chance.choice(hosts),
            "store_host": chance.choice(hosts),
        }
        for _ in range(120)
    ]
    receipts = [queue.put_record(b"x" * chance.randrange(2), **fields) for fields in given]
    messages = list(queue.read())
    assert messages == [store.log.message(receipt.commit_log_offset) for receipt in receipts]
    for message, fields in zip(messages, given, strict=True):
        assert {name: getattr(message, name) for name in fields} == fields


def test_the_oldest_offset_of_a_queue_follows_its_log_and_its_units(tmp_path: Path) -> None:
    disk = Disk()
    queue = ConsumeQueue(tmp_path, "t", 0, OpenFiles(disk), disk, file_size=100 * UNIT.size)
    queue.append(b"".join(UNIT.pack(300 * number, 300, 0) for number in range(230)))
    for log_offset in (0, 0, 30_000, 30_000, 29_999, 30_001, 0, 69_000, 68_700):
        assert queue.min_offset(log_offset) == -(-log_offset // 300)
    assert queue.min_offset(30_000) == 100
    queue.truncate(15_000)
    assert queue.min_offset(30_000) == queue.end_offset == 50
    queue.append(UNIT.pack(15_000, 300, 0) + UNIT.pack(60_000, 300, 0))
    assert queue.min_offset(30_000) == 51


@pytest.mark.parametrize(("first", "next_offset"), [(-1, 0), (11, 10), (10**12, 10), (-(10**12), 0)])
def test_an_offset_out_of_range_is_refused_and_says_where_to_go_on(
    first: int, next_offset: int, open_store: OpenStore
) -> None:
    store = open_store()
    fill(store, 10)
    for read in (store.queue("t").read, store.queue("t").read_arrow):
        with pytest.raises(OffsetOutOfRange, match=r"t/0 holds offsets \[0, 10\), not ") as refused:
            read(first)
        assert refused.value.next_offset == next_offset


def test_a_queue_without_messages_reads_as_empty(open_store: OpenStore) -> None:
    queue = open_store().queue("t", 5)
    assert (queue.min_offset, queue.max_offset, list(queue.read())) == (0, 0, [])
    assert queue.read_arrow().num_rows == 0
    assert queue.offset_at(10**13) == queue.offset_at(0, bound="upper") == 0


def test_a_follower_gets_each_message_once_and_in_order(open_store: OpenStore) -> None:
    store = open_store()
    bodies = fill(store, 20)
    seen: list[bytes] = []
    started = threading.Event()

    def follow() -> None:
        for message in store.queue("t").read(5, count=295, follow=True):
            seen.append(message.body)
            started.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert started.wait(10)
    for number in range(20, 300):
        bodies.append(b"%d" % number * 100)
        store.put("t", bodies[-1])
    thread.join(20)
    assert not thread.is_alive()
    assert seen == bodies[5:300]


def test_a_follower_of_a_store_that_is_closed_ends_with_the_reason(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 3)
    outcome: list[Any] = []
    started = threading.Event()

    def follow() -> None:
        try:
            for message in store.queue("t").read(follow=True):
                outcome.append(message.queue_offset)
                if len(outcome) == 3:
                    started.set()
        except StoreClosed as error:
            outcome.append(str(error))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    assert started.wait(10)
    store.close()
    thread.join(10)
    assert not thread.is_alive()
    assert outcome[:3] == [0, 1, 2]
    assert "closed; open it again" in outcome[3]


def test_whoever_reads_or_asks_while_the_store_is_closed_gets_the_reason_and_the_process_lives(
    open_store: OpenStore,
) -> None:
    for _ in range(5):
        store = open_store(checked=False)
        fill(store, 300)
        reading, outcomes = threading.Barrier(4), list[str]()

        def use(act: Callable[[], Any], reading: threading.Barrier = reading, outcomes: list[str] = outcomes) -> None:
            reading.wait(10)
            try:
                while True:
                    act()
            except StoreClosed as error:
                outcomes.append(str(error))

        uses = (
            lambda store=store: list(store.queue("t").read(0)),
            lambda store=store: store.queue("t").read_arrow(0),
            lambda store=store: store.query("t", key="k"),
        )
        threads = [threading.Thread(target=use, args=(act,), daemon=True) for act in uses]
        for thread in threads:
            thread.start()
        reading.wait(10)
        store.close()
        for thread in threads:
            thread.join(10)
        assert len(outcomes) == 3
        assert all("closed; open it again" in outcome for outcome in outcomes)
        shutil.rmtree(store.root)
        store.root.mkdir()


COLUMNS = {
    "topic": lambda m: m.topic,
    "flag": lambda m: m.flag,
    "body": lambda m: m.body,
    "queueId": lambda m: m.queue_id,
    "queueOffset": lambda m: m.queue_offset,
    "tags": lambda m: m.tags,
    "keys": lambda m: " ".join(m.keys) or None,
    "uniqueKey": lambda m: m.unique_key,
    "reconsumeTimes": lambda m: m.reconsume_times,
    "sysFlag": lambda m: m.sys_flag,
    "commitLogOffset": lambda m: m.commit_log_offset,
    "storeSize": lambda m: m.store_size,
    "bodyCrc": lambda m: m.body_crc,
    "bornHost": lambda m: str(m.born_host),
    "storeHost": lambda m: str(m.store_host),
}


@settings(max_examples=20, deadline=None)
@given(
    messages=st.lists(
        st.tuples(
            st.binary(max_size=1500), st.none() | st.text("abü", min_size=1, max_size=5),
            st.none() | st.lists(st.text("xyz€", min_size=1, max_size=4), min_size=1, max_size=3),
            st.none() | st.text("U1", min_size=1, max_size=8),
        ),
        max_size=80,
    ),
    first=st.integers(0, 80),
    count=st.integers(0, 90),
)  # fmt: skip
def test_arrow_reads_equal_object_reads(messages: list[tuple[Any, ...]], first: int, count: int) -> None:
    with scratch_folder() as folder, stratalog.open(folder, clock_ns=Clock(), **SMALL, **QUIET) as store:
        for body, tags, keys, unique_key in messages:
            store.put("t", body, tags=tags, keys=keys, unique_key=unique_key)
        queue, first = store.queue("t"), min(first, len(messages))
        found = list(queue.read(first, count=count))
        batch = queue.read_arrow(first, count=count)
        for name, value in COLUMNS.items():
            assert batch[name].to_pylist() == [value(message) for message in found], name
        for name, value in (("bornTimestamp", "born_timestamp"), ("storeTimestamp", "store_timestamp")):
            stamps = batch[name].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
            assert stamps == [getattr(message, value) for message in found]
        narrow = queue.read_arrow(first, count=count, columns=["queueOffset"])
        assert narrow.schema.names == ["queueOffset"]
        check(store)


def test_an_unknown_column_is_refused_with_the_known_ones(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 1)
    with pytest.raises(ConfigurationError, match="nosuch"):
        store.queue("t").read_arrow(columns=["body", "nosuch"])


# -- by time ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(steps=st.lists(st.integers(0, 3), max_size=70), asked=st.lists(st.integers(-2, 90), min_size=1, max_size=20))
def test_offset_at_equals_a_linear_scan_with_ties(steps: list[int], asked: list[int]) -> None:
    clock = Clock()
    start, times = clock.now_ms, []
    with scratch_folder() as folder, stratalog.open(folder, clock_ns=clock, **SMALL, **QUIET) as store:
        for step in steps:
            clock.now_ms += step
            times.append(clock.now_ms)
            store.put("t", b"x")
        queue = store.queue("t")
        for moment in (start + offset for offset in asked):
            assert queue.offset_at(moment) == bisect_left(times, moment)
            assert queue.offset_at(moment, bound="upper") == max(0, bisect_right(times, moment) - 1)


# -- by key ----------------------------------------------------------------------------------------------------------

KEYS = ["Aa", "BB", "AaBB", "BBAa", "AaAa", "k1", "k2"]


def test_the_planted_keys_do_collide() -> None:
    assert string_hash("t#Aa") == string_hash("t#BB")
    assert string_hash("t#AaBB") == string_hash("t#BBAa") == string_hash("t#AaAa")


@settings(max_examples=30, deadline=None)
@given(
    puts=st.lists(
        st.tuples(
            st.sampled_from(["t", "u"]), st.lists(st.sampled_from(KEYS), max_size=3),
            st.none() | st.sampled_from(KEYS), st.integers(0, 900),
        ),
        max_size=250,
    ),
    asked=st.lists(
        st.tuples(st.sampled_from(["t", "u"]), st.sampled_from(KEYS), st.integers(-10, 30_000), st.integers(0, 30_000)),
        min_size=1, max_size=12,
    ),
    limit=st.sampled_from([1, 3, 64, 1000]),
)  # fmt: skip
def test_a_query_equals_a_linear_scan(puts: list[Any], asked: list[Any], limit: int) -> None:
    clock = Clock()
    start = clock.now_ms
    given_all = []
    with (
        scratch_folder() as folder,
        stratalog.open(folder, clock_ns=clock, **(SMALL | {"max_index_num": 60}), **QUIET) as store,
    ):
        for number, (topic, keys, unique_key, step) in enumerate(puts):
            clock.now_ms += step
            store.put(topic, b"%d" % number, keys=keys or None, unique_key=unique_key, tags="Aa")
            given_all.append((topic, {*keys, unique_key}, clock.now_ms, b"%d" % number))
        check(store)
        for topic, key, begin, length in asked:
            low, high = start + begin, start + begin + length
            expected = [
                body
                for owner, owned, stored, body in given_all
                if owner == topic and key in owned and low <= stored <= high
            ]
            found = [message.body for message in store.query(topic, key=key, begin=low, end=high, limit=limit)]
            assert found == expected[-limit:]
            assert len(store.query(topic, key=key, limit=1000)) == sum(
                owner == topic and key in owned for owner, owned, _, _ in given_all
            )


def test_many_newer_collisions_do_not_hide_an_older_hit(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"wanted", keys="Aa")
    for _ in range(200):
        store.put("t", b"other", keys="BB")
    assert [message.body for message in store.query("t", key="Aa")] == [b"wanted"]
    assert len(store.query("t", key="BB", limit=150)) == 150


def test_a_tag_is_no_key(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"x", tags="a")
    assert store.query("t", key="a") == store.query("t", key="T#a") == []


def test_a_clock_that_goes_back_breaks_no_index(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock, max_index_num=50)
    for number in range(200):
        clock.now_ms -= 700
        store.put("t", b"%d" % number, keys=[f"k{number % 10}"])
        store.dispatch()
    check(store)
    store.close()
    again = open_store(clock_ns=clock, max_index_num=50)
    assert again.recovery.clean
    assert not again.recovery.rebuilt
    for number in range(10):
        assert len(again.query("t", key=f"k{number}")) == 20
    again.put("t", b"after", keys="k3")
    assert len(again.query("t", key="k3")) == 21


def test_without_an_index_a_query_is_refused_and_building_it_later_finds_everything(open_store: OpenStore) -> None:
    store = open_store(message_index_enable=False)
    store.put("t", b"one", keys="k")
    with pytest.raises(ConfigurationError, match="message_index_enable"):
        store.query("t", key="k")
    store.close()
    with_index = open_store()
    assert [message.body for message in with_index.query("t", key="k")] == [b"one"]
    with_index.put("t", b"two", keys="k")
    with_index.close()
    without = open_store(message_index_enable=False)
    without.put("t", b"three", keys="k")
    without.close()
    assert [message.body for message in open_store().query("t", key="k")] == [b"one", b"two", b"three"]


# -- after leading files have gone -----------------------------------------------------------------------------------


def test_when_leading_log_files_have_gone_reading_begins_at_the_oldest_message_left(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    for number in range(600):
        store.put("t", b"%04d" % number * 100, queue_id=number % 2, keys=["all", f"k{number}"])
    store.put("gone", b"", keys="x")
    store.close()
    for path in log_files(store.root)[:2]:
        path.unlink()
    for mode in ("r", "w"):
        store = open_store(mode=mode)
        first = store.log.first_offset
        assert first == 2 * LOG_FILE_SIZE
        for queue_id in (0, 1):
            queue = store.queue("t", queue_id)
            messages = list(queue.read())
            assert messages[0].queue_offset == queue.min_offset > 0
            assert messages[0].commit_log_offset >= first
            assert [message.queue_offset for message in messages] == list(range(queue.min_offset, 300))
            with pytest.raises(OffsetOutOfRange) as refused:
                queue.read(0)
            assert refused.value.next_offset == queue.min_offset
            assert queue.offset_at(0) == queue.offset_at(0, bound="upper") == queue.min_offset
        assert store.query("t", key="k0") == []
        assert len(store.query("t", key="all", limit=1000)) == sum(
            store.queue("t", queue_id).max_offset - store.queue("t", queue_id).min_offset for queue_id in (0, 1)
        )
        store.close()


def test_a_queue_that_begins_in_the_middle_is_filled_in_front(open_store: OpenStore) -> None:
    store = open_store()
    for number in range(400):
        store.put("t", b"%04d" % number * 100)
    store.close()
    for path in [*log_files(store.root)[:1], *queue_files(store.root, "t")]:
        path.unlink()
    for _ in range(2):
        store = open_store()
        queue = store.queue("t")
        assert 0 < queue.min_offset < queue.max_offset == 400
        assert [message.body[:4] for message in queue.read()] == [b"%04d" % n for n in range(queue.min_offset, 400)]
        assert queue.read_arrow()["queueOffset"].to_pylist() == list(range(queue.min_offset, 400))
        store.close()


def test_a_queue_whose_messages_have_all_gone_goes_on_at_its_next_offset(open_store: OpenStore) -> None:
    store = open_store()
    for _ in range(70):
        store.put("old", b"x")
    fill(store, 400)
    store.close()
    log_files(store.root)[0].unlink()
    store = open_store()
    assert (store.queue("old").min_offset, store.queue("old").max_offset) == (70, 70)
    assert list(store.queue("old").read()) == []
    assert store.put("old", b"y").queue_offset == 70


def test_gaps_in_a_foreign_log_become_fillers(open_store: OpenStore) -> None:
    """A log whose queue offsets jump, as after messages were lost before it was shipped."""
    store = open_store()
    log = store.log
    for queue_offset in (5, 6, 40, 41, 170):
        record = Record(b"t", b"%d" % queue_offset, queue_offset=queue_offset, commit_log_offset=log.end_offset)
        position = log.position_for(record.total_size)
        log.map[position : position + record.total_size] = record.encode()
        log.end_offset += record.total_size
    queue = store.queue("t")
    assert (queue.min_offset, queue.max_offset) == (5, 171)
    assert [message.queue_offset for message in queue.read()] == [5, 6, 40, 41, 170]
    assert [message.queue_offset for message in queue.read(7)] == [40, 41, 170]
    assert queue.read_arrow()["queueOffset"].to_pylist() == [5, 6, 40, 41, 170]
    assert store.put("t", b"next").queue_offset == 171
    store.close()
    assert [message.queue_offset for message in open_store().queue("t").read()] == [5, 6, 40, 41, 170, 171]
