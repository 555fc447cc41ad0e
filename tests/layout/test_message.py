"""CommitLog records: round trips, RocketMQ's vectors, and bytes that are none."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layout.shapes import any_record, hosts, i64, records
from stratalog.errors import CorruptData, IllegalMessage
from stratalog.layout.document import example_record
from stratalog.layout.message import (
    BLANK,
    FIXED_SIZE_V1,
    HEAD,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Host,
    Record,
    crc_of,
    decode_record,
)
from stratalog.layout.messageid import UniqueKey, decode_offset_message_id, offset_message_id
from stratalog.layout.sysflag import HOSTS_MASK, SysFlag, Transaction, enters_queue, transaction_of

EXAMPLE = (
    bytes.fromhex(
        "000000bbdaa320a769c865ed00000003000000000000000000000007"
        "0000000000001000000000000000018bcfe568007f0000010000c350"
        "0000018bcfe5687bc0a8000a00002a9f000000000000000000000000"
        "0000000e48656c6c6f20526f636b65744d5109546f706963546573740049"
        "4b455953016f726465722d31206f726465722d3202"
        "554e49515f4b4559013746303030303031303030303241313339413535303030303030303041424344025441475301546167410a"
    )[:-1]
    + b"\x02"
)
"""A record as the 5.3.3 classes MessageExtEncoder and MessageDecoder wrote it."""

V6 = Host.parse("[2001:db8::2]:10911")
LONG = Record(
    topic=b"%RETRY%" + b"g" * 125, body=b"x", properties=b"A\x01b\x02", born_host=V6, store_host=V6, magic=MAGIC_V2
)


def test_the_example_of_the_format_document_is_what_rocketmq_writes() -> None:
    assert example_record().encode() == EXAMPLE
    assert len(EXAMPLE) == 187
    assert decode_record(EXAMPLE) == replace(example_record(), body_crc=0x69C865ED)


def test_a_long_topic_and_ipv6_hosts_make_a_larger_record() -> None:
    encoded = LONG.encode()
    assert encoded.hex().startswith("000000fddaa320ab")
    assert len(encoded) == LONG.total_size == 253
    decoded = decode_record(encoded)
    assert decoded == replace(LONG, sys_flag=0x30, body_crc=crc_of(b"x"))
    assert offset_message_id(decoded.store_host, 0) == "20010DB800000000000000000000000200002A9F0000000000000000"


@pytest.mark.parametrize(
    ("body", "crc"),
    [(b"", 0), (b"123456789", 0x4BF43926), (b"Hello RocketMQ", 1774740973), (bytes(4), 558161692)],
)
def test_a_body_crc_has_31_bits(body: bytes, crc: int) -> None:
    assert crc_of(body) == crc


def test_the_smallest_record_has_91_bytes_and_a_blank_8() -> None:
    assert len(Record(topic=b"", body=b"").encode()) == FIXED_SIZE_V1 == 91
    assert BLANK.pack(300, MAGIC_BLANK).hex() == "0000012ccbd43194"


@settings(deadline=None)
@given(record=any_record, lead=st.binary(max_size=5), tail=st.binary(max_size=5))
def test_a_record_comes_back_from_its_bytes(record: Record, lead: bytes, tail: bytes) -> None:
    encoded = record.encode()
    assert len(encoded) == record.total_size
    decoded = decode_record(lead + encoded + tail, len(lead))
    stored_flags = record.sys_flag & ~HOSTS_MASK | record.host_flags
    assert decoded == replace(record, sys_flag=stored_flags, body_crc=crc_of(record.body))
    assert decoded.encode() == encoded
    for name in ("queue_offset", "commit_log_offset", "sys_flag", "born_timestamp"):
        assert getattr(HEAD.unpack(encoded), name) == getattr(decoded, name), "in front of the hosts nothing moves"


def decodes_or_is_corrupt(data: bytes) -> Record | None:
    """Anything but a record or `CorruptData` fails the test that calls this."""
    try:
        return decode_record(data)
    except CorruptData:
        return None


@pytest.mark.parametrize("encoded", [EXAMPLE, LONG.encode()], ids=["V1", "V2"])
def test_no_cut_record_is_taken_for_a_whole_one(encoded: bytes) -> None:
    for size in range(len(encoded)):
        with pytest.raises(CorruptData):
            decode_record(encoded[:size])


@pytest.mark.parametrize("encoded", [EXAMPLE, LONG.encode()], ids=["V1", "V2"])
def test_a_record_with_one_byte_changed_decodes_or_is_corrupt(encoded: bytes) -> None:
    kept = 0
    body = (
        range(encoded.index(b"\x0eHello") + 1, encoded.index(b"\x09Topic")) if encoded is EXAMPLE else range(112, 113)
    )
    for position in range(len(encoded)):
        for value in range(256):
            changed = bytearray(encoded)
            changed[position] = value
            record = decodes_or_is_corrupt(bytes(changed))
            if record is None:
                continue
            kept += value != encoded[position]
            assert record.encode() == changed, "what decodes is what stands there"
            assert position not in body or value == encoded[position], "the CRC tells every change of the body"
    assert kept > 10_000, "most of a head is free to be anything"


@settings(deadline=None, max_examples=300)
@given(data=st.binary(max_size=400))
def test_random_bytes_decode_or_are_corrupt(data: bytes) -> None:
    decodes_or_is_corrupt(data)
    for magic in (MAGIC_V1, MAGIC_V2):
        head = HEAD.pack(len(data) + HEAD.size, magic, *[0] * 7, bytes(4), 0, 0, bytes(4), 0, 0, 0, len(data) // 2)
        decodes_or_is_corrupt(head + data)


@given(record=records(MAGIC_V2), position=st.sampled_from([-1, 1, 10**9]))
def test_a_record_at_another_position_is_corrupt(record: Record, position: int) -> None:
    with pytest.raises(CorruptData):
        decode_record(record.encode(), position)


def test_the_crc_of_a_body_can_be_left_unchecked() -> None:
    wrong = replace(example_record(), body_crc=1).encode()
    with pytest.raises(CorruptData, match="CRC"):
        decode_record(wrong)
    assert decode_record(wrong, verify=False).body_crc == 1
    assert decode_record(replace(LONG, body=b"", body_crc=77).encode()).body_crc == 77, "no body, no check: as RocketMQ"


@given(host=hosts)
def test_a_host_comes_back_from_its_bytes(host: Host) -> None:
    assert Host.unpack(host.packed()) == host


@given(host=hosts.map(lambda host: replace(host, port=host.port % 65536)))
def test_a_host_comes_back_from_its_text(host: Host) -> None:
    assert Host.parse(str(host)) == host


def test_a_host_is_printed_as_java_prints_it() -> None:
    assert str(Host.parse("10.0.0.1:50000")) == "10.0.0.1:50000"
    assert str(Host.parse("[2001:db8::19]:80")) == "[2001:db8:0:0:0:0:0:19]:80"
    for text in ("", "10.0.0.1", "10.0.0:1", "[::1", "localhost:10911", "1.2.3.4:x"):
        with pytest.raises(IllegalMessage, match="is neither"):
            Host.parse(text)


@given(host=hosts, commit_log_offset=i64)
def test_an_offset_id_comes_back_from_its_text(host: Host, commit_log_offset: int) -> None:
    text = offset_message_id(host, commit_log_offset)
    assert len(text) in (32, 56)
    assert text == text.upper()
    assert decode_offset_message_id(text) == (host, commit_log_offset)


def test_offset_ids_are_those_of_rocketmq() -> None:
    assert offset_message_id(Host.parse("192.168.0.10:10911"), 4096) == "C0A8000A00002A9F0000000000001000"


@pytest.mark.parametrize("text", ["", "C0", "Z" * 32, "00 " * 10 + "00", "é" * 32, "C0A8000A00002A9F000000000000100"])
def test_a_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(IllegalMessage):
        decode_offset_message_id(text)
    with pytest.raises(IllegalMessage):
        UniqueKey.decode(text)


def test_a_unique_key_tells_its_parts() -> None:
    key = UniqueKey.decode("7F00000100002A139A5500000000ABCD")
    assert key == UniqueKey(bytes([127, 0, 0, 1]), 0, 0x2A139A55, 0, 0xABCD)
    assert str(key) == "7F00000100002A139A5500000000ABCD"
    assert len(str(replace(key, address=bytes(16)))) == 56


def test_prepared_and_rolled_back_messages_enter_no_queue() -> None:
    assert [enters_queue(kind) for kind in Transaction] == [True, False, True, False]
    assert transaction_of(SysFlag.COMPRESSED | 0x300 | Transaction.COMMIT) is Transaction.COMMIT
