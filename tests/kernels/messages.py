"""Random records of the kind that stores hold, odd ones included, and logs made of them."""

from dataclasses import replace

from hypothesis import strategies as st

from stratalog.layout.message import MAGIC_V1, MAGIC_V2, Host, Record
from stratalog.layout.properties import DELAY, KEYS, TAGS, UNIQUE_KEY
from stratalog.layout.recordcrc import CRC_ROOM, reserve_record_crc, seal_record_crc
from stratalog.layout.sysflag import Transaction

_NAMES = [TAGS, KEYS, UNIQUE_KEY, DELAY, "TAG", "TAGSX", "KEYS1", "UNIQ_KEYS", "DELAX", "", "a", "region"]
_KEY = st.sampled_from(["order-1", "Aa", "BB", "polygenelubricants", "键值-1", "é", "😀", "", " ", "x" * 70])
_VALUES = st.one_of(
    st.sampled_from(["", "TagA", "tag-中文", "a\x01b", "0", "3", "-1", "+2", "99", "2147483648", "1 "]),
    st.lists(_KEY, max_size=4).map(" ".join),
    st.text("ab é中😀", max_size=40),
)
_SEGMENTS = st.tuples(st.sampled_from(_NAMES), st.sampled_from(["\x01", "\x01", "\x01", ""]), _VALUES).map("".join)

properties_texts = st.one_of(
    st.just(b""),
    st.builds(
        lambda segments, end: ("\x02".join(segments) + end).encode(),
        st.lists(_SEGMENTS, max_size=6),
        st.sampled_from(["\x02", "\x02", ""]),
    ),
    st.binary(max_size=60),
    st.sampled_from([b"", b"TAGS\x01t\x02", b"no end"]).map(reserve_record_crc),
    st.sampled_from([b"__CRC32#\x010360426102\x02", b"ABCDEFGH\x010360426102\x02", b"__CRC32#\x01036042610\x02"]),
)
_HOSTS = st.builds(Host, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65535))
_SYS_FLAGS = st.sampled_from([0, 0, 0, 1, 0x100, *map(int, Transaction)])
_TIMES = st.one_of(st.integers(1_700_000_000_000, 1_700_000_100_000), st.sampled_from([0, -1, 2**63 - 1, -(2**63)]))

records = st.builds(
    Record,
    topic=st.sampled_from(
        [b"TopicTest", b"T", b"orders", "主题".encode(), b"SCHEDULE_TOPIC_XXXX", b"%RETRY%" + b"g" * 125]
    ),
    body=st.one_of(st.just(b""), st.binary(max_size=40), st.binary(min_size=200, max_size=300)),
    properties=properties_texts,
    queue_id=st.integers(0, 2),
    flag=st.integers(-(2**31), 2**31 - 1),
    sys_flag=_SYS_FLAGS,
    born_timestamp=_TIMES,
    born_host=_HOSTS,
    store_timestamp=_TIMES,
    store_host=_HOSTS,
    reconsume_times=st.integers(0, 3),
    prepared_transaction_offset=st.integers(0, 2**40),
    magic=st.sampled_from([MAGIC_V1, MAGIC_V1, MAGIC_V2]),
)
record_lists = st.lists(records, max_size=12)


def placed(records: list[Record], base_offset: int = 0) -> list[Record]:
    """The records with the commit log offsets that they have when they stand one behind the other; where room for a
    record CRC was reserved, it is filled in."""
    result = []
    for record in records:
        result.append(sealed(replace(record, commit_log_offset=base_offset)))
        base_offset += record.total_size
    return result


def sealed(record: Record) -> Record:
    if not record.properties.endswith(CRC_ROOM):
        return record
    return replace(record, properties=seal_record_crc(record.encode())[-len(record.properties) :])


def log_bytes(records: list[Record]) -> bytes:
    return b"".join(record.encode() for record in records)
