"""What is fuzzed: for each decoder some well-formed inputs, and a call that may only succeed or raise our error.

`run` in `fuzz_process` damages the inputs. A target returns nothing; it asserts where what it decoded can be checked
(encoded again, it is the same).
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import stratalog
from kernels.memory import Fence
from store.model import QUIET, Clock
from stratalog.errors import CorruptData, StratalogError
from stratalog.kernels.scan import find_record, scan
from stratalog.layout import checkpoint
from stratalog.layout.batch import BatchEntry, decode_batch_body, encode_batch_body
from stratalog.layout.loosejson import decode_loose_json, encode_loose_json
from stratalog.layout.message import Host, Record, decode_record
from stratalog.layout.messageid import UniqueKey, decode_offset_message_id, offset_message_id
from stratalog.layout.properties import decode_properties, encode_properties, find_property, split_keys
from stratalog.layout.queue import UNIT
from stratalog.layout.recordcrc import reserve_record_crc, seal_record_crc
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.message import message_at
from stratalog.tools.verify import verify

BODY = b"a body of some bytes"


@dataclass(frozen=True)
class Target:
    """`inputs` are well formed; `call` gets them damaged. `short` and `full` are executions."""

    inputs: list[bytes]
    call: Callable[[bytes], None]
    short: int
    full: int


def _records() -> list[bytes]:
    properties = encode_properties(
        {"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "AC11000100002A9F0000000000000001", "x": "y"}
    )
    v6 = Host.parse("[2001:db8::1]:10911")
    plain = Record(topic=b"topic", body=BODY, properties=properties, queue_offset=5)
    records = [
        plain,
        Record(topic=b"t", body=b""),
        Record(topic=b"topic", body=BODY, properties=properties, born_host=v6, store_host=v6),
        Record(topic=b"t" * 200, body=BODY, properties=properties),
    ]
    sealed = Record(topic=b"topic", body=BODY, properties=reserve_record_crc(properties))
    return [*(record.encode() for record in records), seal_record_crc(sealed.encode())]


def _record(data: bytes) -> None:
    record = decode_record(data)
    assert record.encode() == data[: record.total_size], "another record was encoded than decoded"


def _message(data: bytes) -> None:
    with suppress(CorruptData):
        message = message_at(data, 0)
        for name in ("tags", "keys", "unique_key", "properties", "message_id"):
            getattr(message, name)
        message.decompressed(size_max=1 << 16)


def _properties(data: bytes) -> None:
    found = decode_properties(data)
    find_property(data, b"KEYS")
    split_keys(found.get("KEYS"))


def _seal(data: bytes) -> None:
    page = data[: checkpoint.FILE_SIZE].ljust(checkpoint.FILE_SIZE, b"\0")
    Seal.decode(page)
    checkpoint.CHECKPOINT.unpack(page)


def _json(data: bytes) -> None:
    value = decode_loose_json(data)
    with suppress(TypeError):  # a value that no config file holds (a float) is read, and not written
        assert decode_loose_json(encode_loose_json(value)) == value


def _batch(data: bytes) -> None:
    entries = decode_batch_body(data)
    assert len(encode_batch_body(entries)) == len(data)


def _ids(data: bytes) -> None:
    text = data.decode("latin-1")
    for decode in (decode_offset_message_id, UniqueKey.decode):
        with suppress(StratalogError):
            decode(text)


def _scan(data: bytes) -> None:
    """Kernels over bytes that end where readable memory ends."""
    fence = Fence(data)
    positions, sizes = np.zeros(64, np.int64), np.zeros(64, np.int32)
    count, _, _ = scan(fence.address, 0, fence.size, -1, False, positions, sizes)
    assert all(0 <= positions[n] <= fence.size - sizes[n] for n in range(count))
    find_record(fence.address, 0, fence.size, -1)


JSON = [
    b'{"dataVersion":{"counter":{"value":3},"timestamp":1700000000000},"topicConfigTable":{"t":{"readQueueNums":8}}}',
    b'{"offsetTable":{"t@g":{0:12,1:7},},}',
    b'{"a":[1,2.5,-3e4,true,false,null,"\\u0041\\n"],\'b\':{}}',
]
_ID = offset_message_id(Host.parse("127.0.0.1:10911"), 123456).encode()


def _batch_body() -> bytes:
    return encode_batch_body([BatchEntry(BODY, b"TAGS\x01a\x02", 0), BatchEntry(b"", b"", 7)])


TARGETS: dict[str, Target] = {
    "record": Target(_records(), _record, 3_000, 700_000),
    "message": Target(_records(), _message, 3_000, 400_000),
    "properties": Target([_records()[0][-80:], encode_properties({"KEYS": "a b"})], _properties, 3_000, 600_000),
    "checkpoint": Target([Checkpoint(1, 2, 3, seal=Seal(9, 1, 2, 3)).encode()], _seal, 1_000, 200_000),
    "json": Target(JSON, _json, 3_000, 300_000),
    "batch": Target([_batch_body()], _batch, 3_000, 500_000),
    "ids": Target([_ID, b"AC11000100002A9F0000000000000001", b"0" * 56], _ids, 3_000, 400_000),
    "scan": Target([b"".join(_records()), *_records(), UNIT.pack(1, 2, 3)], _scan, 2_000, 150_000),
}


# -- whole stores ----------------------------------------------------------------------------------------------------

STORE: dict[str, Any] = QUIET | {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * UNIT.size,
    "max_hash_slot_num": 8,
    "max_index_num": 64,
}


def make_store(root: Path) -> dict[str, bytes]:
    """A small store with every kind of file; its files by name."""
    with stratalog.open(root, clock_ns=Clock(), **STORE) as store:
        for number in range(50):
            given = {"queue_id": number % 2, "keys": [f"k{number % 7}"], "tags": "a"}
            store.put("topic", b"%03d" % number * (1 + number % 30), **given)
    for path in (Path("config/topics.json"), Path("config/delayOffset.json")):
        if not (root / path).exists():
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_bytes(JSON[0])
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def use_store(root: Path) -> None:
    """Open, read in every way, look up, verify. Only our errors may come out, each at its own call."""
    with suppress(StratalogError):
        verify(root)
    with suppress(StratalogError), stratalog.open(root, mode="r", **STORE) as store:
        for topic, queue_id in store.queues()[:8]:
            queue = store.queue(topic, queue_id)
            with suppress(StratalogError):
                for message in queue.read(count=200):
                    assert message.body is not None
                    _ = message.properties
            with suppress(StratalogError):
                queue.read_arrow(count=200)
            with suppress(StratalogError):
                queue.offset_at(1_700_000_000_500)
        for number in range(3):
            with suppress(StratalogError):
                store.query("topic", key=f"k{number}")
