"""The time of birth in Arrow columns."""

import pyarrow as pa
import pytest

from store.conftest import OpenStore
from stratalog.errors import IllegalMessage
from stratalog.store.message_store import MessageStore

NOW = 1_700_000_000_123
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@pytest.fixture
def store(open_store: OpenStore) -> MessageStore:
    return open_store(clock_ns=lambda: NOW * 1_000_000)


def _append(store: MessageStore, times: pa.Array) -> list[int]:
    store.append(pa.record_batch({"body": [b"x"] * len(times), "bornTimestamp": times}), topic="t", queue_id=0)
    return [message.born_timestamp for message in store.queue("t").read()]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.uint64(), *map(pa.timestamp, UNITS)], ids=str)
def test_a_null_means_now(kind: pa.DataType, store: MessageStore) -> None:
    step = UNITS.get(getattr(kind, "unit", "ms"), 1_000)
    assert _append(store, pa.array([None, 5 * step, 0, None], kind)) == [NOW, 5_000, 0, NOW]
    assert _append(store, pa.nulls(2, kind))[-2:] == [NOW, NOW]


def test_what_is_finer_than_a_millisecond_is_dropped(store: MessageStore) -> None:
    assert _append(store, pa.array([1_999, 2_000_001], pa.timestamp("us", "UTC"))) == [1, 2_000]


@pytest.mark.parametrize("times", [[2**62], [None, -(2**62)], [0, 2**63 - 1]])
def test_a_time_that_does_not_fit_is_refused(times: list[int | None], store: MessageStore) -> None:
    with pytest.raises(IllegalMessage, match=r"bornTimestamp.* does not fit 64 bits of milliseconds"):
        _append(store, pa.array(times, pa.timestamp("s")))
    with pytest.raises(IllegalMessage, match="bornTimestamp"):
        _append(store, pa.array([2**63], pa.uint64()))
