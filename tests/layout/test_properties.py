"""Message properties: text and back, the order of writing, and single ones found without the rest."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import IllegalMessage
from stratalog.layout.javahash import property_order
from stratalog.layout.properties import decode_properties, encode_properties, find_property, split_keys

word = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=8)
rough = st.lists(st.sampled_from([b"\x01", b"\x02", b"A", b"B", b"AB", b"\xe4", b"\xe4\xb8\xad", b"\xff", b" "])).map(
    b"".join
)


@given(properties=st.dictionaries(word, word, max_size=12))
def test_properties_come_back_in_the_order_of_writing(properties: dict[str, str]) -> None:
    stored = encode_properties(properties)
    assert decode_properties(stored) == properties
    assert list(decode_properties(stored)) == property_order(list(properties))
    assert stored.endswith(b"\x02") or not properties


@settings(max_examples=500)
@given(stored=rough | st.binary(max_size=40), name=st.sampled_from([b"A", b"B", b"AB"]))
def test_a_property_found_alone_is_the_one_among_all(stored: bytes, name: bytes) -> None:
    assert find_property(stored, name) == decode_properties(stored).get(name.decode())


@pytest.mark.parametrize(
    ("stored", "found"),
    [
        (b"A\x01\x02B\x01x\x02\x01y\x02CC\x01dd", {"B": "x", "CC": "dd"}),
        (b"", {}),
        (b"nothing here is a property", {}),
        (b"TAGS\x01a\x01b\x02", {"TAGS": "a\x01b"}),
        (b"A\x011\x02A\x012\x02", {"A": "2"}),
        (b"A\x011\x02A\x01\x02", {"A": "1"}),
        (b"\x02\x02A\x011", {"A": "1"}),
    ],
)
def test_odd_texts_are_read_as_rocketmq_reads_them(stored: bytes, found: dict[str, str]) -> None:
    assert decode_properties(stored) == found
    for name in ("A", "B", "CC", "TAGS"):
        assert find_property(stored, name.encode()) == found.get(name)


@pytest.mark.parametrize(
    "properties",
    [{"": "x"}, {"x": ""}, {"a\x01": "x"}, {"a\x02": "x"}, {"a": "\x01"}, {"a": "x\x02"}, {"a": "\ud83d"}],
)
def test_what_a_reader_would_not_find_again_is_refused(properties: dict[str, str]) -> None:
    with pytest.raises(IllegalMessage):
        encode_properties(properties)


def test_keys_are_split_at_blanks_and_empty_ones_dropped() -> None:
    assert split_keys("a b") == ["a", "b"]
    assert split_keys("  a   b ") == ["a", "b"]
    assert split_keys("") == split_keys(None) == []
