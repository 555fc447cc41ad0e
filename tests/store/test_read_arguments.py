"""Every call that reads, and opening, times an odd value for every parameter: a result, or an error of ours."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.model import SMALL
from store.odd_values import ODD_VALUES, RAISES
from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, StratalogError
from stratalog.store.message_store import MessageStore

Call = Callable[[MessageStore, Any], Any]
CALLS: dict[str, Call] = {
    "read first": lambda store, odd: list(islice(store.queue("t").read(odd), 9)),
    "read count": lambda store, odd: list(islice(store.queue("t").read(0, count=odd), 9)),
    "batch read": lambda store, odd: list(islice(store.queue("b").read(odd, count=3), 9)),
    "queue.read_arrow first": lambda store, odd: store.queue("t").read_arrow(odd),
    "queue.read_arrow count": lambda store, odd: store.queue("t").read_arrow(0, count=odd),
    "queue.read_arrow columns": lambda store, odd: store.queue("t").read_arrow(columns=odd),
    "batch read_arrow columns": lambda store, odd: store.queue("b").read_arrow(columns=odd),
    "store.read_arrow queue": lambda store, odd: store.read_arrow(odd),
    "store.read_arrow first": lambda store, odd: store.read_arrow(store.queue("t"), odd),
    "store.read_arrow count": lambda store, odd: store.read_arrow(store.queue("t"), count=odd),
    "batch store.read_arrow count": lambda store, odd: store.read_arrow(store.queue("b"), count=odd),
    "store.read_arrow columns": lambda store, odd: store.read_arrow(store.queue("t"), columns=odd),
    "offset_at": lambda store, odd: store.queue("t").offset_at(odd),
    "offset_at bound": lambda store, odd: store.queue("t").offset_at(0, bound=odd),
    "offset_at_ms": lambda store, odd: store.queue("t").offset_at_ms(odd),
    "offset_at_ms bound": lambda store, odd: store.queue("t").offset_at_ms(0, odd),
    "estimate_count begin": lambda store, odd: store.queue("t").estimate_count(begin=odd),
    "estimate_count end": lambda store, odd: store.queue("t").estimate_count(end=odd),
    "estimate_count tags": lambda store, odd: store.queue("t").estimate_count(tags=odd),
    "units first": lambda store, odd: store.queue("t").units(odd, 3),
    "units count": lambda store, odd: store.queue("t").units(0, odd),
    "extension": lambda store, odd: store.queue("t").extension(odd),
    "query topic": lambda store, odd: store.query(odd, key="k1"),
    "query key": lambda store, odd: store.query("t", key=odd),
    "query begin": lambda store, odd: store.query("t", key="k1", begin=odd),
    "query limit": lambda store, odd: store.query("t", key="k1", limit=odd),
    "query_many keys": lambda store, odd: store.query_many("t", odd),
    "query_many limit": lambda store, odd: store.query_many("t", ["k1"], limit=odd),
    "candidates key": lambda store, odd: list(store.candidates("t", key=odd)),
    "message": lambda store, odd: store.message(odd),
    "queue topic": lambda store, odd: store.queue(odd),
    "queue id": lambda store, odd: store.queue("t", odd),
    "create_topic name": lambda store, odd: store.create_topic(odd),
    "create_topic queues": lambda store, odd: store.create_topic("new", queues=odd),
    "create_topic type": lambda store, odd: store.create_topic("new", queue_type=odd),
    "append": lambda store, odd: store.append(odd),
    "open path": lambda store, odd: stratalog.open(odd, mode="r").close(),
    "open mode": lambda store, odd: stratalog.open(store.root, mode=odd).close(),
    "open settings": lambda store, odd: stratalog.open(store.root, mode="r", settings=odd).close(),
    "open small": lambda store, odd: stratalog.open(store.root, mode="r", small=odd).close(),
    "open disk": lambda store, odd: stratalog.open(store.root, mode="r", disk=odd).close(),
}
SETTINGS = [field.name for field in fields(StoreSettings)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    with stratalog.open(tmp_path_factory.mktemp("store") / "s", **SMALL) as opened:
        opened.create_topic("b", queue_type="BatchCQ")
        for number in range(20):
            opened.put("t", b"%d" % number, tags="x", keys=f"k{number}")
        opened.queue("b").put_batch([b"1", b"2"], unique_key="u")
        yield opened


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_an_odd_value_or_refuses_it_with_an_error_of_ours(name: str, store: MessageStore) -> None:
    wrong = []
    for odd_name, odd in ODD_VALUES.items():
        try:
            CALLS[name](store, odd.make())
        except StratalogError:
            pass
        except ZeroDivisionError as error:  # the value's own code
            if RAISES not in odd.meanings.values():
                wrong.append(f"{name} = {odd_name}: {error!r}")
        except Exception as error:  # noqa: BLE001 - whatever else is a finding
            wrong.append(f"{name} = {odd_name}: {error!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_takes_an_odd_value_and_works_or_is_a_configuration_error(name: str, tmp_path: Path) -> None:
    for odd_name, odd in ODD_VALUES.items():
        given = SMALL | {name: odd.make()}
        try:
            StoreSettings.make(given)
        except ConfigurationError:
            continue
        if odd_name in ("None", "True", "False"):
            with stratalog.open(tmp_path / odd_name, **given) as store:
                store.put("t", b"x")


@pytest.mark.parametrize("path", [None, b"bytes", "a\0b", "", 5], ids=repr)
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(ConfigurationError, match="path"):
        stratalog.open(path)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.query("t", key="k1", begin=1_700_000_000_001, end=1_700_000_000_000),
        lambda store: store.query_many("t", ["k1"], begin=1_700_000_000_001, end=1_700_000_000_000),
        lambda store: store.candidates("t", key="k1", begin=1_700_000_000_001, end=1_700_000_000_000),
        lambda store: store.queue("t").estimate_count(begin=1_700_000_000_001, end=1_700_000_000_000),
    ],
    ids=["query", "query_many", "candidates", "estimate_count"],
)
def test_a_reversed_time_range_is_refused(call: Callable[[MessageStore], Any], store: MessageStore) -> None:
    with pytest.raises(ConfigurationError, match="the time range is reversed"):
        call(store)
