"""Columns of every Arrow type in every place, for every kind of topic: taken, or refused before a byte is written."""

import decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from store.conftest import OpenStore
from stratalog.errors import IllegalMessage
from stratalog.layout.names import SCHEDULE_TOPIC

TEXTS = ["a", None, "b" * 30, "", "c", "d"]
ROWS = len(TEXTS)
TEXT_KINDS = pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()
NUMBER_KINDS = pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float64()
TYPES: dict[str, pa.Array] = {
    **{str(kind): pa.array(TEXTS, kind) for kind in TEXT_KINDS},
    **{
        str(kind): pa.array([1] * ROWS, kind) for kind in (pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float64())
    },
    **{str(kind): pa.array([1] * ROWS, kind) for kind in (pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.date32())},
    **{str(kind): pa.array([["k", "l"]] * ROWS, kind) for kind in (pa.list_(pa.string()), pa.large_list(pa.string()))},
    "fixed size list": pa.array([["k", "l"]] * ROWS, pa.list_(pa.string(), 2)),
    "list view": pa.array([["k"]] * ROWS, pa.list_view(pa.string())),
    "lists with nulls": pa.array([["k"], None, [], [None], [""], ["l m"]]),
    "null": pa.nulls(ROWS),
    "bool": pa.array([True] * ROWS),
    "decimal": pa.array([decimal.Decimal(1)] * ROWS),
    "duration": pa.array([1] * ROWS, pa.duration("ms")),
    "fixed size binary": pa.array([b"abcd"] * ROWS, pa.binary(4)),
    "dictionary": pa.array(TEXTS).dictionary_encode(),
    "dictionary of numbers": pa.array([1, 2, 1, 2, 1, 2]).dictionary_encode(),
    "dictionary with a null": pa.DictionaryArray.from_arrays(pa.array([0, 1] * 3), pa.array(["a", None])),
    "run-end encoded": pc.run_end_encode(pa.array(["a", "a", "b", "b", "b", "c"])),
    "struct": pa.array([{"a": 1}] * ROWS),
    "map": pa.array([[("a", "b")]] * ROWS, pa.map_(pa.string(), pa.string())),
}
COLUMNS = (
    "body", "tags", "keys", "uniqueKey", "properties", "topic", "queueId", "flag", "bornTimestamp", "sysFlag",
    "storeTimestamp", "DELAY", "KEYS", "TAGS", "INNER_NUM", "region",
)  # fmt: skip
STEERS = {"DELAY", "INNER_NUM"}
"""Taken or refused by what they are to a topic of that kind."""


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_any_type_is_taken_or_refused_whatever_the_topic(name: str, open_store: OpenStore) -> None:
    store = open_store(checked=False)  # `check` knows no batch topics
    store.create_topic("batches", queue_type="BatchCQ")
    for column in COLUMNS:
        taken = {}
        for topic in ("plain", "batches", SCHEDULE_TOPIC):
            end, bodies = store.log.end_offset, pa.array([b"body"] * ROWS)
            columns = {"body": bodies, "topic": pa.array(["plain", topic] * (ROWS // 2)), column: TYPES[name]}
            try:
                taken[topic] = sum(map(len, store.append(pa.record_batch(columns)).values())) == ROWS
            except IllegalMessage:
                taken[topic] = False
                assert store.log.end_offset == end
        assert column in STEERS or len(set(taken.values())) == 1, (column, taken)


def test_rows_to_a_light_queue_are_refused_like_messages(open_store: OpenStore) -> None:
    store = open_store(enable_lmq=True, enable_multi_dispatch=True)
    for given in ({"topic": "%LMQ%x"}, {"topic": "%LMQ%x", "queue_id": 1}):
        with pytest.raises(IllegalMessage, match=r"is a light queue: put to another topic, .*nothing was written"):
            store.append(pa.record_batch({"body": [b"x"]}), **given)
    assert store.log.end_offset == 0
