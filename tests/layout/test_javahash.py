"""Java's string hash and map order against vectors from Java and a slow twin."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stratalog.layout.index import index_key
from stratalog.layout.javahash import bucket, hash_map_order, index_key_hash, property_order, string_hash

INT_MIN = -(2**31)


@pytest.mark.parametrize(
    ("text", "hash_code", "key_hash"),
    [
        ("", 0, 0),
        ("TagA", 2598919, 2598919),
        ("TagB", 2598920, 2598920),
        ("*", 42, 42),
        ("Aa", 2112, 2112),
        ("BB", 2112, 2112),
        ("TopicTest", -1902610879, 1902610879),
        ("TopicTest#order-1", -1829193424, 1829193424),
        ("polygenelubricants", INT_MIN, 0),
        ("T#jllgvmc", INT_MIN, 0),
        ("tag-中文", -880646131, 880646131),
        ("é", 233, 233),
        ("中", 20013, 20013),
        ("\U0001f600", 1772899, 1772899),
        ("TopicTest#MessageKey", 638347386, 638347386),
        ("topic-tiered#k100", -592293046, 592293046),
    ],
)
def test_hashes_are_those_of_java(text: str, hash_code: int, key_hash: int) -> None:
    assert string_hash(text) == hash_code
    assert index_key_hash(hash_code) == key_hash


@given(text=st.text(st.characters(exclude_categories=[])))
def test_the_hash_is_the_sum_over_utf16_units(text: str) -> None:
    expected = 0
    for character in text.encode("utf-16-be", "surrogatepass").hex(" ", 2).split():
        expected = (expected * 31 + int(character, 16)) % 2**32
    assert string_hash(text) % 2**32 == expected
    assert INT_MIN <= string_hash(text) < 2**31


@given(topic=st.text(max_size=8), key=st.text(max_size=8))
def test_a_hash_goes_on_from_that_of_a_prefix(topic: str, key: str) -> None:
    assert string_hash(key, string_hash(topic + "#")) == string_hash(index_key(topic, key))


def test_properties_are_written_in_the_order_of_a_brokers_map() -> None:
    names = ["KEYS", "UNIQ_KEY", "WAIT", "TAGS", "MSG_REGION", "TRACE_ON", "CLUSTER"]
    assert property_order(names) == ["MSG_REGION", "UNIQ_KEY", "CLUSTER", "TAGS", "KEYS", "WAIT", "TRACE_ON"]
    assert hash_map_order(["WAIT", "TAGS", "UNIQ_KEY", "KEYS"], 16) == ["KEYS", "UNIQ_KEY", "WAIT", "TAGS"]
    assert hash_map_order(["BB", "Aa"], 16) == ["BB", "Aa"], "equal hashes stay in the order of insertion"


class JavaMap:
    """A `java.util.HashMap` as far as its order goes: chains, and a split of every chain when it grows."""

    def __init__(self, capacity: int) -> None:
        self.chains: list[list[str]] = [[] for _ in range(capacity)]
        self.count = 0

    def put(self, name: str) -> None:
        chain = self.chains[self._index(name)]
        if name in chain:
            return
        chain.append(name)
        self.count += 1
        if self.count > len(self.chains) * 3 // 4:
            old = self.chains
            self.chains = [[] for _ in range(2 * len(old))]
            for name_ in (name_ for chain in old for name_ in chain):
                self.chains[self._index(name_)].append(name_)

    def _index(self, name: str) -> int:
        h = string_hash(name) % 2**32
        return (h ^ h >> 16) % len(self.chains)

    def __iter__(self):
        return (name for chain in self.chains for name in chain)


@given(names=st.lists(st.text(max_size=3), max_size=40), capacity=st.sampled_from([2, 16, 128]))
def test_the_order_is_that_of_a_map_that_grows(names: list[str], capacity: int) -> None:
    java = JavaMap(capacity)
    for name in names:
        java.put(name)
    assume(max(map(len, java.chains)) < 8)
    assert hash_map_order(names, capacity) == list(java)
    assert all(0 <= bucket(name, capacity) < capacity for name in names)
