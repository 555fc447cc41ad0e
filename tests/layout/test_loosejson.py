"""RocketMQ's JSON with integer keys."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import CorruptData
from stratalog.layout.loosejson import DEPTH_MAX, decode_loose_json, encode_loose_json

text = st.text(max_size=6)
i64 = st.integers(-(2**63), 2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | i64 | text,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(text, inner.filter(lambda value: value is not None), max_size=4)
        | st.dictionaries(i64, inner.filter(lambda value: value is not None), max_size=4)
    ),
    max_leaves=20,
)


@given(value=values, release=st.sampled_from(["5.3", "5.5"]))
def test_values_come_back_from_both_layouts(value, release) -> None:
    encoded = encode_loose_json(value, release=release)
    assert decode_loose_json(encoded) == decode_loose_json(encoded.encode()) == value
    assert decode_loose_json(f" \r\n{encoded}\t ") == value


@given(value=st.recursive(st.booleans() | i64 | text, lambda inner: st.dictionaries(text, inner) | st.lists(inner)))
def test_without_integer_keys_it_is_plain_json(value) -> None:
    assert json.loads(encode_loose_json(value)) == value
    assert decode_loose_json(json.dumps(value)) == value


def test_each_release_breaks_lines_in_its_own_way() -> None:
    value = {
        "offsetTable": {"t@g": {0: 10, 1: 12}},
        "groups": {"g": ["a", "b"]},
        "bits": [8, 1],
        "empty": {},
        "none": [],
    }
    assert encode_loose_json(value, release="5.3") == (
        '{\n\t"offsetTable":{\n\t\t"t@g":{0:10,1:12\n\t\t}\n\t},\n\t"groups":{\n\t\t"g":["a","b"]\n\t},'
        '\n\t"bits":[8,1],\n\t"empty":{},\n\t"none":[]\n}'
    )
    assert encode_loose_json(value) == (
        '{\n\t"offsetTable":{\n\t\t"t@g":{\n\t\t\t0:10,\n\t\t\t1:12\n\t\t}\n\t},\n\t"groups":{\n\t\t"g":[\n\t\t\t"a",\n\t\t\t"b"'
        '\n\t\t]\n\t},\n\t"bits":[8,1],\n\t"empty":{},\n\t"none":[]\n}'
    )


def test_quoted_keys_stay_text_and_the_last_of_equal_keys_wins() -> None:
    assert decode_loose_json('{"1":1,2:2,-3:3}') == {"1": 1, 2: 2, -3: 3}
    assert decode_loose_json('{"a":1,"a":2}') == {"a": 2}


def test_escapes_are_read_and_written() -> None:
    assert decode_loose_json(r'"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"') == '"\\/\b\f\n\r\té\U0001f600'
    assert encode_loose_json('"\\\b\f\n\r\t\x01é') == r'"\"\\\b\f\n\r\t\u0001é"'


def test_members_without_a_value_are_left_out() -> None:
    assert encode_loose_json({"a": None, "b": [None]}) == '{\n\t"b":[\n\t\tnull\n\t]\n}'


def test_real_numbers_that_somebody_wrote_by_hand_are_kept() -> None:
    assert decode_loose_json(encode_loose_json({"a": [1.5, -2e300, 0.1]})) == {"a": [1.5, -2e300, 0.1]}
    with pytest.raises(CorruptData, match="double"):
        decode_loose_json("1e400")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), b"x", {None: 1}, {True: 1}, {1.5: 1}, {"a": {1}}, ("a",)]
)
def test_a_value_that_no_config_file_holds_is_refused(value) -> None:
    with pytest.raises(TypeError):
        encode_loose_json(value)


MALFORMED = [
    "", " ", "{", "}", "[", "]", "{]", "[}", "{,}", "[,]", "{1}", "{1:}", "{1:2,}", "[1,]", "[1 2]", "{1:2 3:4}",
    "{1:2}}", "{a:1}", "{'a':1}", '{"a" 1}', "{1.5:1}", "{true:1}", "{null:1}", "{[]:1}", "nul", "True", "NaN",
    "Infinity", "-", "+1", "01", "-01", "00.5", ".5", "1.", "1e", "0x1", "1_000", '"', '"\n"', '"\\x"', '"\\u12"',
    '"\\ud83d"', '"\\ude00\\ud83d"', "\ufeff1", "9223372036854775808", "-9223372036854775809", "9" * 5000, "/*c*/1",
    "1//c", "[" * 10_000, '{"a":' * 10_000, "{0:" * 500, "\x00", "1\x00", "\u00a01", "\u0661",
]  # fmt: skip


@pytest.mark.parametrize("malformed", MALFORMED, ids=lambda malformed: repr(malformed[:12]))
def test_what_is_not_this_json_is_corrupt_data(malformed: str) -> None:
    with pytest.raises(CorruptData):
        decode_loose_json(malformed)


HOSTILE = [
    "[" + "1," * 400_000, '{"":' * 60 + '{"":1,' * 200_000, "1" * 1_000_000, "[" + "1 " * 500_000, "-" * 1_000_000,
    '"' + '\\"' * 500_000, '"\\ud800' * 200_000, "{" + "1:2," * 250_000, '"' * 1_000_001, "[" + "[]," * 300_000,
]  # fmt: skip


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: repr(hostile[:12]))
def test_a_hostile_text_of_a_megabyte_is_corrupt_data(hostile: str) -> None:
    """It takes 1 s; with a step quadratic in the size the test would not end."""
    with pytest.raises(CorruptData):
        decode_loose_json(hostile)


def test_the_limits_themselves_are_inside() -> None:
    assert decode_loose_json("[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX)
    assert decode_loose_json("[9223372036854775807,-9223372036854775808,-0,1.5,1e3]") == [
        2**63 - 1,
        -(2**63),
        0,
        1.5,
        1e3,
    ]


@given(data=st.binary(max_size=30))
def test_bytes_that_are_no_text_are_corrupt_data(data: bytes) -> None:
    try:
        decode_loose_json(b'"' + data + b'"')
    except CorruptData:
        return
    assert data.decode() is not None


@settings(max_examples=500)
@given(malformed=st.text(st.sampled_from('{}[]:,"\\u0d8319-.eE \ttrufalsn'), max_size=20))
def test_random_marks_are_read_or_corrupt(malformed: str) -> None:
    try:
        value = decode_loose_json(malformed)
    except CorruptData:
        return
    assert isinstance(value, (dict, list, str, int, float, bool, type(None)))


@given(value=values, data=st.data())
def test_one_character_changed_is_read_or_corrupt(value, data: st.DataObject) -> None:
    encoded = encode_loose_json(value)
    position = data.draw(st.integers(0, len(encoded)))
    other = data.draw(st.text(max_size=1))
    changed = encoded[:position] + other + encoded[position + 1 :]
    try:
        decoded = decode_loose_json(changed)
    except CorruptData:
        return
    assert decode_loose_json(changed.encode()) == decoded
