"""Client batch bodies."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.batch import BatchEntry, decode_batch_body, encode_batch_body

BODY = bytes.fromhex(
    "0000002c0000000000000000000000000000000262310014574149540174727565025441475301546167410200000023"
    "00000000000000000000000500000003623232000a57414954017472756502"
)
"""Two messages as MessageDecoder.encodeMessages of 5.3.3 writes them."""
ENTRIES = [
    BatchEntry(b"b1", b"WAIT\x01true\x02TAGS\x01TagA\x02"),
    BatchEntry(b"b22", b"WAIT\x01true\x02", flag=5),
]

entries = st.lists(
    st.builds(BatchEntry, st.binary(max_size=30), st.binary(max_size=30), st.integers(-(2**31), 2**31 - 1)), max_size=5
)


def test_a_batch_is_written_as_rocketmqs_client_writes_it() -> None:
    assert encode_batch_body(ENTRIES) == BODY
    assert decode_batch_body(BODY) == ENTRIES


@given(batch=entries)
def test_a_batch_comes_back_from_its_bytes(batch: list[BatchEntry]) -> None:
    body = encode_batch_body(batch)
    assert len(body) == sum(entry.total_size for entry in batch)
    assert decode_batch_body(memoryview(body)) == batch


def test_a_cut_batch_is_corrupt_or_ends_between_two_messages() -> None:
    for size in range(len(BODY)):
        if size in (0, ENTRIES[0].total_size):
            assert decode_batch_body(BODY[:size]) == ENTRIES[: size // ENTRIES[0].total_size]
        else:
            with pytest.raises(CorruptData):
                decode_batch_body(BODY[:size])


def test_a_batch_with_one_byte_changed_decodes_or_is_corrupt() -> None:
    corrupt = 0
    for position in range(len(BODY)):
        for value in range(256):
            changed = bytearray(BODY)
            changed[position] = value
            try:
                decoded = decode_batch_body(bytes(changed))
            except CorruptData:
                corrupt += 1
            else:
                assert sum(entry.total_size for entry in decoded) == len(BODY)
    assert corrupt > 5000


@settings(max_examples=300)
@given(data=st.binary(max_size=120))
def test_random_bytes_are_a_batch_or_corrupt(data: bytes) -> None:
    try:
        decoded = decode_batch_body(data)
    except CorruptData:
        return
    assert sum(entry.total_size for entry in decoded) == len(data)


def test_properties_that_do_not_fit_their_length_are_refused() -> None:
    assert len(encode_batch_body([BatchEntry(b"", bytes(32767))])) == 22 + 32767
    with pytest.raises(IllegalMessage, match="32767"):
        encode_batch_body([BatchEntry(b"", bytes(32768))])
