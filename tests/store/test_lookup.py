"""Many keys at once give what each gives alone."""

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stratalog
from store.conftest import OpenStore
from store.model import QUIET, SMALL, Clock, scratch_folder
from store.test_read import KEYS
from stratalog.errors import ConfigurationError, IllegalMessage
from stratalog.kernels import lookup as kernel
from stratalog.store import lookup
from stratalog.store.message_store import MessageStore


def fill(store: MessageStore, count: int) -> None:
    for number in range(count):
        store.put("t", b"%d" % number, keys=[f"k{number}", f"group{number % 7}"], unique_key=f"u{number}")


def test_thousands_of_keys_are_grouped_by_key_with_those_that_nothing_carries(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 1500)
    keys = [f"k{number}" for number in range(3000)] + ["group3", "u5", "u5", ""]
    found = store.query_many("t", keys, limit=5)
    assert list(found) == list(dict.fromkeys(keys))
    for number in range(1500):
        assert [message.body for message in found[f"k{number}"]] == [b"%d" % number]
    assert not any(found[f"k{number}"] for number in range(1500, 3000))
    assert [message.body for message in found["group3"]] == [b"%d" % n for n in range(1500) if n % 7 == 3][-5:]
    assert [message.body for message in found["u5"]] == [b"5"]
    assert found[""] == []
    assert store.query_many("t", []) == {}
    assert store.query_many("unknown", ["k1"]) == {"k1": []}


@settings(max_examples=25, deadline=None)
@given(
    puts=st.lists(
        st.tuples(
            st.sampled_from(["t", "u"]), st.lists(st.sampled_from([*KEYS, "键", "é1"]), max_size=3), st.integers(0, 900)
        ),
        max_size=150,
    ),
    asked=st.lists(st.sampled_from([*KEYS, "键", "é1", "nobody", "Aa BB", "\ud800"]), max_size=40),
    window=st.tuples(st.integers(-10, 30_000), st.integers(0, 30_000)),
    limit=st.sampled_from([0, 1, 3, 64]),
)
def test_many_keys_natively_one_by_one_and_in_python_agree(
    puts: list[Any], asked: list[str], window: tuple[int, int], limit: int
) -> None:
    clock = Clock()
    begin, end = clock.now_ms + window[0], clock.now_ms + sum(window)
    with (
        scratch_folder() as folder,
        stratalog.open(folder, clock_ns=clock, **(SMALL | {"max_index_num": 60}), **QUIET) as store,
    ):
        for number, (topic, keys, step) in enumerate(puts):
            clock.now_ms += step
            store.put(topic, b"%d" % number, keys=keys or None)
        for topic in ("t", "u"):
            many = store.query_many(topic, asked, begin=begin, end=end, limit=limit)
            assert many == {key: store.query(topic, key=key, begin=begin, end=end, limit=limit) for key in asked}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(lookup, "ready_or_started", lambda: False)
                assert many == store.query_many(topic, asked, begin=begin, end=end, limit=limit)


def test_files_that_come_while_the_store_is_asked_are_searched_too(open_store: OpenStore) -> None:
    store = open_store(max_index_num=50)
    for number in range(300):
        store.put("t", b"x" * 600, keys=f"k{number}")
        assert [hit.queue_offset for hit in store.query("t", key=f"k{number}")] == [number]
    assert all(len(hits) == 1 for hits in store.query_many("t", [f"k{number}" for number in range(300)]).values())


def test_a_key_behind_very_many_others_is_found_the_slow_way(open_store: OpenStore) -> None:
    """One slot for all: the native look-up gives up, so that other threads need not wait for it."""
    store = open_store(
        max_hash_slot_num=1, max_index_num=100_000, mapped_file_size_commit_log=1 << 23,
        mapped_file_size_consume_queue=20 * 50_000, checked=False,  # 25,000 keys would be looked up the slow way
    )  # fmt: skip
    store.put("t", b"wanted", keys="first")
    assert kernel._STEPS_MAX < 25_000
    store.queue("t").put_many([b"x"] * 25_000, [b"KEYS\x01k%d\x02" % number for number in range(25_000)])
    found = store.query_many("t", ["first", "k24999", "k3", "nobody"])
    assert {key: len(hits) for key, hits in found.items()} == {"first": 1, "k24999": 1, "k3": 1, "nobody": 0}


def test_a_key_is_found_while_others_are_indexed(open_store: OpenStore) -> None:
    """One slot for all: its newest item is always one that came a moment ago."""
    store = open_store(max_hash_slot_num=1, max_index_num=100_000, mapped_file_size_consume_queue=20 * 50_000)
    store.put("t", b"wanted", keys="first")
    store.dispatch()
    lists, missed = [[b"KEYS\x01k%d\x02" % (50 * n + i) for i in range(50)] for n in range(200)], []

    def index() -> None:
        for properties in lists:
            store.queue("t").put_many([b"x"] * 50, properties)
            store.dispatch()

    thread = threading.Thread(target=index)
    thread.start()
    while thread.is_alive():
        ways = (
            [hit.body for hit in store._lookup.messages("t", ["first"], begin=0, end=2**63 - 1, limit=1)[0]],
            list(store._lookup.candidates("t", "first", begin=0, end=2**63 - 1))[-1:],
        )
        missed += [ways] if ways != ([b"wanted"], [0]) else []
    thread.join()
    assert not missed


def test_what_is_no_key_is_named(open_store: OpenStore) -> None:
    store = open_store()
    fill(store, 3)
    keys: Any = ["k1", b"k2"]
    with pytest.raises(IllegalMessage, match=r"keys\[1\] is b'k2': give a str"):
        store.query_many("t", keys)


def test_without_an_index_many_keys_are_refused_as_one_is(open_store: OpenStore) -> None:
    store = open_store(message_index_enable=False, checked=False)
    with pytest.raises(ConfigurationError, match="message_index_enable"):
        store.query_many("t", ["k"])
