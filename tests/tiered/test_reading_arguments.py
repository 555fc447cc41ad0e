"""What reading verbs may be given, on a local store, a tier, and both joined: one rule, and the same answers."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from store.odd_values import ODD_VALUES, RAISES
from stratalog import tiered
from stratalog.errors import ConfigurationError, IllegalMessage, StratalogError
from stratalog.layout.message import HEAD
from stratalog.store import lookup
from stratalog.store.arguments import TIME_MAX
from stratalog.tiered import Manifest, PosixBackend
from tiered.conftest import T0, MakeStore
from tiered.offload import offload

COUNT = 100
WRONG = object()
MESSAGE_TIME = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(milliseconds=300)
"""Of message 30."""
TIMES: dict[str, tuple[Any, Any]] = {
    "aware datetime": (MESSAGE_TIME, T0 + 300),
    "another zone": (MESSAGE_TIME.astimezone(timezone(timedelta(hours=-7))), T0 + 300),
    "microseconds": (MESSAGE_TIME + timedelta(microseconds=999), T0 + 300),
    "just before": (MESSAGE_TIME - timedelta(microseconds=1), T0 + 299),
    "before 1970": (datetime(1969, 12, 31, tzinfo=UTC), -86_400_000),
    "year 1": (datetime(1, 1, 1, tzinfo=UTC), -62_135_596_800_000),
    "year 9999": (datetime(9999, 12, 31, tzinfo=UTC), 253_402_214_400_000),
    "pandas": (pd.Timestamp(MESSAGE_TIME), T0 + 300),
    "milliseconds": (T0 + 300, T0 + 300),
    "numpy milliseconds": (np.int64(T0 + 300), T0 + 300),
    "zero": (0, 0),
    "end of time": (TIME_MAX, TIME_MAX),
    "naive datetime": (datetime(2001, 9, 9), WRONG),  # noqa: DTZ001 - what is refused
    "naive pandas": (pd.Timestamp("2001-09-09"), WRONG),
    "not a time": (pd.NaT, WRONG),
    "date": (date(2001, 9, 9), WRONG),
    "seconds": (T0 // 1000, WRONG),
    "float seconds": (time.time(), WRONG),
    "float milliseconds": (float(T0 + 300), WRONG),
    "microseconds since 1970": (T0 * 1000, WRONG),
    "nanoseconds since 1970": (time.time_ns(), WRONG),
    "one": (1, WRONG),
    "minus one": (-1, WRONG),
    "beyond": (1 << 63, WRONG),
    "ISO text": ("2001-09-09T01:46:40Z", WRONG),
    "numpy time": (np.datetime64(T0 + 300, "ms"), WRONG),
    "timedelta": (timedelta(1), WRONG),
    "True": (True, WRONG),
    "None": (None, WRONG),
}


class Verb(NamedTuple):
    call: Callable[..., Any]
    given: dict[str, Any]
    """Plain values; the kind of value is that of a `text`, `int`, `count`, `time`, ... in `kinds`."""
    kinds: dict[str, str]
    sides: tuple[str, ...] = ("local", "tier", "joined")


def by_key(found: Any) -> Any:
    return {key: offsets(hits) for key, hits in found.items()}, found.more


def offsets(messages: Any) -> list[int]:
    return [message.queue_offset for message in messages]


VERBS = {
    "queue": Verb(
        lambda side, **given: repr(side.queue(**given)), {"topic": "orders", "queue_id": 0},
        {"topic": "text", "queue_id": "int"},
    ),
    "read": Verb(
        lambda side, **given: offsets(side.queue("orders").read(**given)), {"first": 3, "count": 5},
        {"first": "int?", "count": "count?"},
    ),
    "read_arrow": Verb(
        lambda side, **given: side.queue("orders").read_arrow(columns=["queueOffset"], **given).to_pydict(),
        {"first": 3, "count": 5}, {"first": "int?", "count": "count"}, ("local", "tier"),
    ),
    "units": Verb(
        lambda side, **given: side.queue("orders").units(**given), {"first": 3, "count": 5},
        {"first": "count", "count": "count"}, ("local", "tier"),
    ),
    "get": Verb(
        lambda side, offset: side.queue("orders").get(offset), {"offset": 3}, {"offset": "int"}, ("tier", "joined")
    ),
    "message": Verb(
        lambda side, offset: side.message(offset), {"offset": 0}, {"offset": "int"}, ("local",)
    ),
    "offset_at": Verb(
        lambda side, time, **given: side.queue("orders").offset_at(time, **given), {"time": T0 + 300, "bound": "upper"},
        {"time": "time", "bound": "bound"},
    ),
    "estimate_count": Verb(
        lambda side, **given: side.queue("orders").estimate_count(**given), {"begin": 0, "end": T0 + 300},
        {"begin": "time", "end": "time", "tags": "text?"}, ("local",),
    ),
    "query": Verb(
        lambda side, topic, **given: (offsets(found := side.query(topic, **given)), found.more),
        {"topic": "orders", "key": "k3", "begin": 0, "end": TIME_MAX, "limit": 5},
        {"topic": "text", "key": "text", "begin": "time", "end": "time", "limit": "count?"},
    ),
    "query_many": Verb(
        lambda side, topic, keys, **given: by_key(side.query_many(topic, keys, **given)),
        {"topic": "orders", "keys": ["k3", "k4"], "begin": 0, "end": TIME_MAX, "limit": 5},
        {"topic": "text", "keys": "texts", "begin": "time", "end": "time", "limit": "count?"}, ("local",),
    ),
    "candidates": Verb(
        lambda side, topic, **given: list(side.candidates(topic, **given)), {"topic": "orders", "key": "k3"},
        {"topic": "text", "key": "text", "begin": "time", "end": "time"}, ("local",),
    ),
    "index_items": Verb(
        lambda side, topic, **given: len(list(side.index_items(topic, "k3", **given))), {"topic": "orders"},
        {"topic": "text", "begin": "time", "end": "time"}, ("tier",),
    ),
}  # fmt: skip


def values_of(kind: str) -> Iterator[tuple[str, Callable[[], Any], Any]]:
    """Values for a parameter of that kind, and what each means."""
    if kind == "time":
        yield from ((name, lambda value=value: value, meaning) for name, (value, meaning) in TIMES.items())
    for name, odd in ODD_VALUES.items():
        plain_kind = kind.rstrip("?")
        meaning = odd.meanings.get({"count": "int", "time": "int", "texts": "keys"}.get(plain_kind, plain_kind), WRONG)
        if plain_kind == "texts" and isinstance(meaning, str):
            meaning = WRONG
        if isinstance(meaning, int) and (meaning < 0 if plain_kind == "count" else meaning if kind == "time" else 0):
            meaning = WRONG
        yield name, odd.make, None if name == "None" and kind.endswith("?") else meaning


@pytest.fixture
def sides(make_store: MakeStore, backend: PosixBackend, manifest: Manifest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    store = make_store(("orders", 0), count=COUNT)
    offload(store, backend, manifest)
    with tiered.open(tmp_path / "tier") as tier:
        yield {"local": store, "tier": tier, "joined": tiered.attach(store, tier, policy="NOT_IN_DISK")}


def outcome(call: Callable[..., Any], *args: Any, **given: Any) -> Any:
    try:
        return call(*args, **given)
    except (StratalogError, ZeroDivisionError) as error:
        return type(error)


@pytest.mark.parametrize("name", VERBS)
def test_each_odd_value_is_read_as_what_it_means_or_refused(name: str, sides: dict[str, Any]) -> None:
    verb, wrong = VERBS[name], []
    for side in verb.sides:
        for parameter, kind in verb.kinds.items():
            for odd, make, meaning in values_of(kind):
                try:
                    found = outcome(verb.call, sides[side], **verb.given | {parameter: make()})
                except Exception as error:  # noqa: BLE001 - a finding
                    found = error
                if meaning is WRONG:
                    expected: Any = (ConfigurationError, IllegalMessage)
                    is_right = found in expected
                elif kind == "time" and meaning is not RAISES and name == "offset_at":
                    expected = min(max(-(-(meaning - T0) // 10), 0), COUNT)
                    call = {"time": make(), "bound": "lower"}
                    is_right = outcome(verb.call, sides[side], **call) == expected
                else:
                    expected = ZeroDivisionError
                    if meaning is not RAISES:
                        plain = meaning
                        if kind == "time":  # any moment before or after all messages stands for the others
                            plain = 0 if meaning < T0 else min(meaning, 10**13)
                        expected = outcome(verb.call, sides[side], **verb.given | {parameter: plain})
                    is_right = found == expected
                if not is_right:
                    wrong.append(f"{side} {name}({parameter}={odd}): {found!r}, expected {expected}")
    assert not wrong, "\n".join(wrong)


def test_seconds_are_refused_with_what_to_give(sides: dict[str, Any]) -> None:
    for side in sides.values():
        queue = side.queue("orders")
        with pytest.raises(ConfigurationError, match=r"^time \d+\.\d+: give a datetime with a time zone, or millisec"):
            queue.offset_at(time.time())
        with pytest.raises(ConfigurationError, match=r"^begin \d{10}: .* looks like seconds"):
            side.query("orders", key="k", begin=int(time.time()))
        with pytest.raises(ConfigurationError, match=r"^end \d{19}: .* looks like microseconds or nanoseconds"):
            side.query("orders", key="k", end=time.time_ns())
        with pytest.raises(ConfigurationError, match="has no time zone"):
            queue.offset_at(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused
        with pytest.raises(ConfigurationError, match="bound 'lowr': give 'lower' or 'upper'"):
            queue.offset_at(T0, bound="lowr")
        with pytest.raises(ConfigurationError, match="count -1"):
            list(queue.read(count=-1))


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "Python"])
def test_a_query_says_whether_there_are_more(
    is_native: bool, sides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_native:
        monkeypatch.setattr(lookup, "ready_or_started", lambda: False)
    carriers = {"k3": [n for n in range(COUNT) if n % 7 == 3], "U-orders-0-5": [5], "nobody": []}
    for name, side in sides.items():
        for key, there in carriers.items():
            for limit in (0, 1, 2, len(there) - 1, len(there), len(there) + 1, None):
                if limit == -1:
                    continue
                found = side.query("orders", key=key, limit=limit)
                kept = there if limit is None else there[max(0, len(there) - limit) :]
                assert (offsets(found), found.more) == (kept, len(kept) < len(there)), (name, key, limit)
            early = side.query("orders", key=key, limit=2, end=T0 + 10 * 17)
            assert (offsets(early), early.more) == (
                [n for n in there if n <= 17][-2:], len([n for n in there if n <= 17]) > 2
            )  # fmt: skip
    many = sides["local"].query_many("orders", list(carriers), limit=1)
    assert {key: offsets(hits) for key, hits in many.items()} == {key: there[-1:] for key, there in carriers.items()}
    assert many.more == {"k3"}


def test_what_is_in_the_index_twice_is_not_more(make_store: MakeStore) -> None:
    store = make_store(("orders", 0), count=10)
    store.dispatch()
    assert store.index is not None
    places = np.array([message.commit_log_offset for message in store.queue("orders").read()], np.int64)
    store.index.put(store.log.files[0].address, places, len(places), 0)
    for limit in (9, 10, 11):
        found = store.query("orders", key="common", limit=limit)
        assert (offsets(found), found.more) == (list(range(10 - min(limit, 10), 10)), limit < 10)


def test_damage_in_a_message_beyond_the_limit_is_more(make_store: MakeStore) -> None:
    store = make_store(("orders", 0), count=10)
    message = next(store.queue("orders").read(4))
    file, position = store.log.file_at(message.commit_log_offset)
    file.view[position + HEAD.size] ^= 1
    found = store.query("orders", key="common", limit=5)
    assert (offsets(found), found.more) == ([5, 6, 7, 8, 9], True)
    assert not found.damaged
    found = store.query("orders", key="common", limit=6)
    assert (offsets(found), found.more) == ([3, 5, 6, 7, 8, 9], True)
    [error] = found.damaged
    assert "queue orders/0 offset 4, " in str(error)
    assert "checksum" in str(error)
