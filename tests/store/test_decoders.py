"""Every function that decodes bytes of somebody else raises our errors and no other, whatever the bytes."""

import ast
import contextlib
import json
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratalog
from stratalog import tiered
from stratalog.config.settings import StoreSettings
from stratalog.errors import StratalogError
from stratalog.kernels.columns import decode_arrow
from stratalog.layout import checkpoint
from stratalog.layout.batch import decode_batch_body
from stratalog.layout.loosejson import decode_loose_json
from stratalog.layout.message import Host, Record, decode_record
from stratalog.layout.messageid import UniqueKey, decode_offset_message_id
from stratalog.layout.properties import decode_properties
from stratalog.layout.queue import UNIT
from stratalog.layout.sysflag import COMPRESSION_MASK, SysFlag
from stratalog.store import config_files
from stratalog.store.checkpoint import Checkpoint, Seal
from stratalog.store.disk import Disk
from stratalog.store.message import decompress, message_at
from stratalog.store.topics import Topics
from stratalog.tiered import Manifest, PosixBackend
from stratalog.tiered.metadata import decode_metadata
from stratalog.tools.dump import READERS, dump

SOURCES = Path(stratalog.__file__).parent


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes, Path], Any]:
    """A reader of a file of that name, below a directory of its own."""

    def call(data: bytes, root: Path) -> Any:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(path)

    return call


def _manifest(data: bytes, root: Path) -> None:
    """As an entry and as a checkpoint, bare and in an envelope with a CRC that holds."""
    manifest = Manifest(PosixBackend(root / "tier"), "c", "b")
    for place in (manifest.entry_path(0), manifest.checkpoint_path(100)):
        for text in (data, b'{"crc32":%d,"content":%s}' % (zlib.crc32(data), data)):
            _file(f"tier/{place}", lambda _: None)(text, root)
            with contextlib.suppress(StratalogError):
                manifest.load()
        (root / "tier" / place).unlink()


def _compressed(data: bytes, _: Path) -> None:
    for kind in range(0, COMPRESSION_MASK + 1, 1 << 8):
        with contextlib.suppress(StratalogError):
            decompress(data, int(SysFlag.COMPRESSED) | kind, size_max=1 << 16)


def _arrow(data: bytes, _: Path) -> None:
    log = np.frombuffer(data.ljust(64, b"\0"), np.uint8)
    place = np.array([log.ctypes.data], np.int64), 0, log.size
    decode_arrow(data[: len(data) // UNIT.size * UNIT.size], place, ["body", "keys"], topic="t", broker_name="b")


def _text(call: Callable[[str], Any]) -> Callable[[bytes, Path], Any]:
    return lambda data, _: call(data.decode("utf-8", "surrogateescape"))


def _bytes(call: Callable[[bytes], Any]) -> Callable[[bytes, Path], Any]:
    return lambda data, _: call(data)


DECODERS: dict[str, Callable[[bytes, Path], Any]] = {
    "layout.message.decode_record": _bytes(decode_record),
    "layout.batch.decode_batch_body": _bytes(decode_batch_body),
    "layout.properties.decode_properties": _bytes(decode_properties),
    "layout.loosejson.decode_loose_json": _bytes(decode_loose_json),
    "layout.messageid.decode_offset_message_id": _text(decode_offset_message_id),
    "layout.messageid.UniqueKey.decode": _text(UniqueKey.decode),
    "store.checkpoint.Seal.decode": _bytes(lambda data: Seal.decode(data.ljust(checkpoint.FILE_SIZE, b"\0"))),
    "tiered.metadata.decode_metadata": lambda data, root: decode_metadata(
        data, PosixBackend(root / "tier"), cluster="c", broker="b"
    ),
    "kernels.columns.decode_arrow": _arrow,
    "tiered.queue.TieredQueue.decode_arrow": _arrow,
    "message_at": _bytes(lambda data: message_at(data, 0)),
    "decompress": _compressed,
    "Host.unpack": _bytes(Host.unpack),
    "Host.parse": _text(Host.parse),
    "manifest": _manifest,
    "tier": _file("tier/tieredStoreMetadata.json", lambda path: tiered.open(path.parent, cluster="c", broker="b")),
    "checkpoint": _file("checkpoint", lambda path: Checkpoint.load(path.parent, Disk())),
    "topics.json": _file("config/topics.json", lambda path: Topics(path.parents[1], Disk())),
    "consumerOffset.json": _file(
        "config/consumerOffset.json", lambda path: config_files.read_consumer_offsets(path.parent, Disk())
    ),
    "broker.conf": _file("broker.conf", StoreSettings.from_broker_conf),
    **{f"dump {kind}": _file("0" * 20, lambda path, kind=kind: list(dump(path, kind=kind))) for kind in READERS},
}

REFUSES_NOTHING = {
    "layout.properties.decode_properties", "store.checkpoint.Seal.decode", "kernels.columns.decode_arrow",
    "tiered.queue.TieredQueue.decode_arrow", "manifest", "decompress", "checkpoint", "topics.json",
    *(name for name in DECODERS if name.startswith("dump ")),
}  # fmt: skip
"""What cannot be decoded is left out, noted, or caught above."""


def inputs() -> list[bytes]:
    chance = random.Random(20261122)
    record = Record(topic=b"t", body=b"body", properties=b"KEYS\x01a\x02").encode()
    found = [b"", b"\0", b"\xff", bytes(4096), b"\xff" * 4096, b"\x7f" + b"\xff" * 4095, b"\x80" + bytes(4095), record]
    found += [struct.pack(">q", value) * 64 for value in (2**63 - 1, -(2**63), 2**62, 2**31, -1, 1, 20, 46, 52, 91)]
    found += [struct.pack(">i", value) * 64 for value in (2**31 - 1, -(2**31), -1, 1)]
    found += [chance.randbytes(chance.randrange(1, 300)) for _ in range(20)]
    found += [record[:n] for n in range(0, len(record), 7)]
    for position in range(0, len(record) - 4, 3):
        for value in (2**31 - 1, -(2**31), -1):
            found.append(record[:position] + struct.pack(">i", value) + record[position + 4 :])
    numbers = (-1, 2**31, 2**62, 2**63 - 1, -(2**63), 2**64, 10**400, 1.5, 1e308, None, True, "x", "\ud800", [], {})
    shapes: list[Callable[[Any], Any]] = [
        lambda v: v, lambda v: [v], lambda v: {"a": v}, lambda v: {"topicConfigTable": v},
        lambda v: {"topicConfigTable": {"t": v}}, lambda v: {"topicConfigTable": {"t": {"readQueueNums": v}}},
        lambda v: {"topicConfigTable": {"t": {"attributes": v}}, "dataVersion": v}, lambda v: {"offsetTable": v},
        lambda v: {"offsetTable": {"t@g": v}}, lambda v: {"offsetTable": {"t@g": {"0": v}}},
        lambda v: {"topicMetadataTable": {"t": {"topicId": v, "topic": v}}, "queueMetadataTable": {"t": {"0": v}}},
        lambda v: {"queueMetadataTable": {"t": {"0": 1}}, "topicMetadataTable": {"t": {"topicId": 0, "topic": "t"}},
                   "commitLogFileSegmentTable": {"b/t/0": {"0": {"path": "b/t/0", "type": 0, "baseOffset": v, "size": 1,
                                                                 "beginTimestamp": v, "endTimestamp": v}}}},
        lambda v: {"queueMetadataTable": {str(v): {str(v): 1}}, "topicMetadataTable": v, "topicSerialNumber": v},
        lambda v: {"topicMetadataTable": {"../x": {"topicId": 0, "topic": "../x"}},
                   "queueMetadataTable": {"../x": {"0": v}}},
        lambda v: {"sequence": v, "queues": [v]}, lambda v: {"index_runs": [{"path": v}], "source_to": v},
    ]  # fmt: skip
    found += [json.dumps(shape(number)).encode() for shape in shapes for number in numbers]
    sizes = (b"-1", b"9" * 5000, b"1e9", b"\xff", b"x" * 2_000_000)
    found += [b"a=b\nc", *(b"mappedFileSizeCommitLog=%s\n" % size for size in sizes)]
    found += [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 100_000, b'"' * 1001, b"{0:" * 70, b"\xef\xbb\xbf{}"]
    return found


INPUTS = inputs()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_raises_our_errors_only(name: str, tmp_path: Path) -> None:
    said = []
    for data in INPUTS:
        try:
            DECODERS[name](data, tmp_path)
        except StratalogError as error:
            said.append(str(error))
    assert said or name in REFUSES_NOTHING
    assert max(map(len, said), default=0) < 2000, "an error quotes a few bytes, not all"


def test_every_function_that_is_called_a_decoder_is_among_them() -> None:
    found = set()
    for path in sorted(SOURCES.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            inside = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
            owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            found |= {f"{module}.{owner}{member.name}" for member in inside
                      if isinstance(member, ast.FunctionDef) and member.name.startswith("decode")}  # fmt: skip
    assert found - DECODERS.keys() - {"store.message.Message.decompressed"} == set()
