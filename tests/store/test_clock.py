"""A clock that was set back: no message is lost, and what is asked by time is answered by the messages' own times."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.conftest import OpenStore
from store.kinds import KINDS, PLAIN, SIZES, Content, Kind, read_on
from store.model import QUIET, SMALL, Clock, check, crash_copy
from store.odd_values import OtherInt
from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError
from stratalog.layout.properties import encode_properties
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.tools.verify import verify

T0 = 1_700_000_000_000
COUNT = 200
STEPS_MS = (0, 0, 1, 500, 3000)
BACK_MS = (10, 5_000, 100_000, 4_000_000)
SMALL_INDEX = {"max_hash_slot_num": 10, "max_index_num": 40}


def filled(store: MessageStore, clock: Clock, chance: random.Random) -> list[Message]:
    """Messages of three keys under a clock that goes on unevenly and is set back now and then."""
    now_ms = T0
    for number in range(COUNT):
        clock.now_ms = now_ms
        store.put("t", b"%d" % number, keys=f"k{number % 3}")
        now_ms += chance.choice(STEPS_MS) if chance.random() < 0.95 else -chance.choice(BACK_MS)
    return list(store.queue("t").read())


@pytest.mark.parametrize("seed", range(6))
def test_a_query_by_key_and_time_finds_what_a_walk_over_all_messages_finds(seed: int, open_store: OpenStore) -> None:
    chance, clock = random.Random(seed), Clock()
    store = open_store(clock_ns=clock, **SMALL_INDEX)
    messages = filled(store, clock, chance)
    assert any(later.store_timestamp < message.store_timestamp for message, later in pairwise(messages))
    for _ in range(100):
        begin = chance.choice(messages).store_timestamp + chance.choice((-1500, -1, 0, 1, 700))
        end, key = begin + chance.choice((0, 1000, 60_000, 10**7)), f"k{chance.randrange(3)}"
        found = store.query("t", key=key, begin=begin, end=end, limit=COUNT)
        assert found == [one for one in messages if key in one.keys and begin <= one.store_timestamp <= end]


@pytest.mark.parametrize("seed", range(6))
def test_an_offset_by_time_lies_between_an_older_message_and_one_that_is_not(seed: int, open_store: OpenStore) -> None:
    chance, clock = random.Random(seed), Clock()
    store = open_store(clock_ns=clock)
    times = [message.store_timestamp for message in filled(store, clock, chance)]
    queue = store.queue("t")
    for time in {*times, min(times) - 1, max(times) + 1}:
        lower, upper = queue.offset_at(time), queue.offset_at(time, bound="upper")
        assert lower == COUNT or times[lower] >= time
        assert lower == 0 or times[lower - 1] < time
        assert upper == COUNT - 1 or times[upper + 1] > time
        assert upper == 0 or times[upper] <= time


def test_messages_with_equal_times_are_found_at_their_first_and_last(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock)
    for number in range(30):
        clock.now_ms = T0 + number // 10
        store.put("t", b"")
    queue = store.queue("t")
    assert [queue.offset_at(T0 + time) for time in (-1, 0, 1, 2, 3)] == [0, 0, 10, 20, 30]
    assert [queue.offset_at(T0 + time, bound="upper") for time in (-1, 0, 1, 2, 3)] == [0, 9, 19, 29, 29]


@pytest.mark.parametrize("compatibility", ["5.3", "5.5"])
def test_no_message_is_lost_by_a_crash_after_the_clock_was_set_back(
    compatibility: str, open_store: OpenStore, tmp_path: Path
) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock, compatibility=compatibility)
    messages = filled(store, clock, random.Random(7))
    store._flush_all()
    bodies = [message.body for message in messages]
    for body in (b"a" * 30_000, b"b" * 30_000, b"c" * 30_000, b"d" * 30_000):  # over files whose first is long ago
        store.put("t", body)
        bodies.append(body)
        clock.now_ms = T0 - 10**8
    store.flush()
    copy = crash_copy(store, tmp_path / "crash")
    with stratalog.open(copy, **(SMALL | QUIET), compatibility=compatibility) as again:  # type: ignore[arg-type]
        assert [message.body for message in again.queue("t").read()] == bodies
        check(again)


LAST = 253_402_300_800 * 10**9 - 1
"""The last moment of the year 9999."""
GOOD = (0, 1, 10**17, LAST, OtherInt(5 * 10**17))
BAD = (OtherInt(-1), -1, LAST + 1, 2**63 * 10**6 - 1, 2**63 * 10**6, 2**90, 1.7e18, None)
NOW = 17 * 10**17
PUTS: dict[str, Callable[[MessageStore], Any]] = {
    "put": lambda store: store.put("t", b"x", keys=["k"], tags="a"),
    "put in Python": lambda store: store.queue("u").put_raw(b"x", encode_properties({"KEYS": "k", "TAGS": "a"})),
    "put_many": lambda store: store.put_many("v", [b"x"] * 3, encode_properties({"KEYS": "k", "TAGS": "a"})),
}


@pytest.mark.one_in(27)
@pytest.mark.parametrize("now_ns", GOOD)
@pytest.mark.parametrize("first_ns", [NOW, *GOOD])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_store_works_at_any_time_that_its_clock_may_tell(
    kind: Kind, first_ns: int, now_ns: int, tmp_path: Path
) -> None:
    """From opening on, and after a jump; through several index files."""
    root, content, times = tmp_path / "store", Content(), [first_ns]
    with kind.open(root, clock_ns=lambda: times[0], max_index_num=20) as store:
        kind.fill(store, content, count=10)
        store.dispatch()
        times[0] = now_ns
        kind.fill(store, content, begin=10, count=20)
        store.dispatch()
        for put in PUTS.values():
            put(store)
    report = verify(root, settings=StoreSettings().override({**SIZES, **kind.settings, "max_index_num": 20}))
    assert report.problems == []
    assert report.index_file_count > 3
    with kind.open(root, clock_ns=lambda: now_ns, max_index_num=20) as store:
        assert not store.recovery.rebuilt
        for key in kind.queues:
            assert read_on(store.queue(*key))[0] == content.queues[key]


@pytest.mark.parametrize("now_ns", BAD, ids=repr)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_clock_that_comes_to_tell_no_time_is_refused_by_every_put(kind: Kind, now_ns: Any, tmp_path: Path) -> None:
    root, content, times = tmp_path / "store", Content(), [NOW]
    with pytest.raises(ConfigurationError, match="clock_ns returns"):
        kind.open(root, clock_ns=lambda: now_ns)
    assert not root.exists()
    with kind.open(root, clock_ns=lambda: times[0], max_index_num=20) as store:
        kind.fill(store, content, count=30)
        for put in PUTS.values():
            put(store)
        end = store.log.end_offset
        times[0] = now_ns
        for put in (*PUTS.values(), lambda store: kind.put(store, 30, Content())):
            with pytest.raises(ConfigurationError, match="clock_ns returns"):
                put(store)
        assert store.log.end_offset == end
        store.flush()  # what is in the log goes into queues and several index files
    report = verify(root, settings=StoreSettings().override({**SIZES, **kind.settings, "max_index_num": 20}))
    assert report.ok
    assert report.clean
    assert report.index_file_count > 3


@pytest.mark.parametrize("name", ["99991231235959999", "20230231000000000"])
def test_an_index_goes_on_after_a_file_whose_name_has_no_next_millisecond(name: str, tmp_path: Path) -> None:
    PLAIN.made(tmp_path / "store", count=20)
    (only,) = (tmp_path / "store" / "index").iterdir()
    only.rename(only.with_name(name))
    with PLAIN.open(tmp_path / "store") as store:
        PLAIN.fill(store, Content(), begin=20, count=150)
    report = verify(tmp_path / "store", settings=StoreSettings().override(SIZES))
    assert report.ok
    assert report.index_file_count > 1
