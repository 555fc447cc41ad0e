"""A tier in a shared bucket may be hostile: whatever its files say, it is our error, in little time and memory."""

import contextlib
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.memory import Fence, address_of
from stratalog import tiered
from stratalog.errors import CorruptData, StratalogError
from stratalog.kernels.tierkeys import check_units
from stratalog.layout.loosejson import encode_loose_json
from stratalog.layout.message import Record
from stratalog.layout.queue import UNIT
from stratalog.layout.tier import SegmentType, cluster_directory, segment_path
from stratalog.store.disk import SMALL_FILE_SIZE_MAX
from stratalog.tiered import Manifest, PosixBackend
from stratalog.tiered.chunk import _fitting
from stratalog.tiered.metadata import encode_metadata
from tiered.conftest import BROKER, CLUSTER, MakeStore
from tiered.offload import offload

EXTREMES = sorted(
    {sign * (1 << bits) + near for bits in (0, 7, 31, 62, 63) for sign in (1, -1) for near in (-10, -1, 0, 1, 10)}
)
I32 = [value for value in EXTREMES if -(1 << 31) <= value < 1 << 31]
I64 = [value for value in EXTREMES if -(1 << 63) <= value < 1 << 63]


@pytest.mark.parametrize("offset", I64)
def test_units_of_any_offset_and_size_lead_to_no_byte_outside_the_data(offset: int) -> None:
    """The reader took 2^63 - 10 plus 16 for a small number, and the interpreter died."""
    record = Record(topic=b"t", body=b"b").encode()
    fence, topic = Fence(record), np.frombuffer(b"t", np.uint8)
    positions = np.zeros(2, np.int64)
    for size in I32:
        for data_offset in (0, 1, (1 << 62) - 1):
            units = np.frombuffer(UNIT.pack(offset, size, 0) + UNIT.pack(offset, len(record), 0), np.uint8)
            place = fence.address, fence.size, data_offset, address_of(topic), 1, 0
            assert check_units(address_of(units), 2, *place, 0, positions) in (0, 1)
        assert _fitting(units.view(UNIT.dtype), 1 << 20) in (1, 2)


@dataclass
class Tier:
    backend: PosixBackend
    manifest: Manifest
    root: Path

    def read_all(self) -> None:
        """Open and read in every way. Any other error than ours, or a hang, is the finding."""
        with tiered.open(self.root) as tier:
            for name in tier.queues():
                queue = tier.queue(*name)
                assert sum(1 for _ in queue.read()) <= 100
                queue.read_arrow()
                queue.offset_at(1_700_000_000_000)
                queue.get(queue.max_offset - 1)
            tier.query("a", key="common")

    def reject(self) -> CorruptData:
        started = time.process_time()
        with pytest.raises(CorruptData) as caught:
            self.read_all()
        assert time.process_time() - started < 5
        return caught.value


@pytest.fixture
def tier(make_store: MakeStore, backend: PosixBackend, manifest: Manifest) -> Tier:
    offload(make_store(("a", 0), ("b", 1), count=50), backend, manifest)
    return Tier(backend, manifest, backend.root)


def _edit_entry(tier: Tier, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the first manifest entry says, CRC and all."""
    path = tier.root / tier.manifest.entry_path(0)
    content = json.loads(path.read_bytes())["content"]
    change(content)
    text = json.dumps(content)
    path.write_text(f'{{"crc32":{zlib.crc32(text.encode())},"content":{text}}}')


def _integers(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        return [found for key, member in members for found in _integers(member, (*place, key))]
    return [place] if type(value) is int else []


def _set(value: Any, place: tuple[Any, ...], new: int) -> None:
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = new


def test_every_number_of_a_manifest_entry_may_be_anything(tier: Tier) -> None:
    tier.read_all()
    path = tier.root / tier.manifest.entry_path(0)
    whole = path.read_bytes()
    places = _integers(json.loads(whole)["content"])
    assert len(places) > 30
    refused = 0
    for place in places:
        for number in (-1, -(1 << 31), (1 << 31) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 64):
            _edit_entry(tier, lambda content, place=place, number=number: _set(content, place, number))
            started = time.process_time()
            try:
                tier.read_all()
            except StratalogError:
                refused += 1
            assert time.process_time() - started < 5, (place, number)
            path.write_bytes(whole)
    assert refused > 4 * len(places)
    tier.read_all()


def test_every_number_of_the_metadata_may_be_anything(tier: Tier) -> None:
    """A negative size of a segment was read around for ever."""
    state = tier.manifest.load()
    (tier.root / tier.manifest.directory).rename(tier.root / "gone")
    value = json.loads(encode_metadata(state, now_ms=0).replace("\t", "").replace("\n", "").replace("{0:", '{"0":')
                       .replace("{1:", '{"1":'))  # fmt: skip
    path = tier.root / "tieredStoreMetadata.json"
    path.write_text(encode_loose_json(value))
    tier.read_all()
    places = [place for place in _integers(value) if place[-1] not in ("createTimestamp", "sealTimestamp", "status")]
    assert len(places) > 20
    for place in places:
        for number in (-1, -20, (1 << 31) - 1, 1 << 62, (1 << 63) - 1, -(1 << 63)):
            copy = json.loads(json.dumps(value))
            _set(copy, place, number)
            path.write_text(encode_loose_json(copy))
            started = time.process_time()
            with contextlib.suppress(StratalogError):
                tier.read_all()
            assert time.process_time() - started < 5, (place, number)


def test_sparse_files_are_not_taken_into_memory(tier: Tier) -> None:
    """Files of GBs that are holes on disk, under every name that is read whole."""
    run = tier.root / tier.manifest.load().index_runs[0].path
    kept = run.read_bytes()
    os.truncate(run, 1 << 40)
    _edit_entry(tier, lambda content: _set(content, ("index_runs", 0, "item_count"), (1 << 31) - 1))
    assert "sparse" in str(tier.reject())
    run.write_bytes(kept)
    for path in (tier.root / tier.manifest.entry_path(0), tier.root / "tieredStoreMetadata.json"):
        for size, reason in ((SMALL_FILE_SIZE_MAX - 1, "sparse"), (1 << 40, "limit")):
            with path.open("wb") as file:
                os.ftruncate(file.fileno(), size)
            assert reason in str(tier.reject())
        if path.parent != tier.root:
            (tier.root / tier.manifest.directory).rename(tier.root / "gone")


def test_a_unit_cannot_ask_for_more_than_its_segment_has_on_disk(tier: Tier) -> None:
    """A segment that says 2 GB, a unit of that size, and 4 kB on disk."""
    log = segment_path(CLUSTER, BROKER, "a", 0, SegmentType.COMMIT_LOG, 0)
    units = segment_path(CLUSTER, BROKER, "a", 0, SegmentType.CONSUME_QUEUE, 0)
    size = (1 << 31) - 1

    def grow(content: dict[str, Any]) -> None:
        commit = next(commit for commit in content["queues"] if commit["topic"] == "a")
        commit["to_commit_log_offset"] = commit["commit_log"][0]["size"] = size

    _edit_entry(tier, grow)
    os.truncate(tier.root / log, size)
    with (tier.root / units).open("r+b") as file:
        file.write(UNIT.pack(0, size, 0))
    assert "sparse" in str(tier.reject())


def test_deep_and_odd_directories_are_passed_over_by_a_listing(tier: Tier) -> None:
    (tier.root / tier.manifest.directory).rename(tier.root / "gone")
    broker = tier.root / cluster_directory(CLUSTER) / BROKER
    for name in ("a/٣/COMMIT_LOG", "a/99999999999999999999/COMMIT_LOG", "a b/0/COMMIT_LOG"):
        (broker / name).mkdir(parents=True)
        (broker / name / segment_path(CLUSTER, BROKER, "a", 0, SegmentType.COMMIT_LOG, 0).rpartition("/")[2]).touch()
    os.makedirs(os.path.join(os.fsencode(broker), b"\xff\xfe", b"0", b"COMMIT_LOG"))
    deep = os.open(broker, os.O_RDONLY)
    for _ in range(1500):  # below each other, longer than any path may be
        os.mkdir("d", dir_fd=deep)
        lower = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = lower
    os.close(deep)
    try:
        tier.read_all()
    finally:
        subprocess.run(["rm", "-rf", broker / "d"], check=True)  # too deep for pytest


def test_reading_a_hostile_tier_neither_crashes_nor_hangs(tier: Tier) -> None:
    """The unit that killed the interpreter, in a process of its own."""
    units = tier.root / segment_path(CLUSTER, BROKER, "a", 0, SegmentType.CONSUME_QUEUE, 0)
    with units.open("r+b") as file:
        file.write(
            b"".join(UNIT.pack(offset, size, 0) for offset in (2**63 - 10, -10, 2**62) for size in (7, 2**31 - 1))
        )
    program = "import sys; from stratalog import tiered; list(tiered.open(sys.argv[1]).queue('a', 0).read())"
    done = subprocess.run(
        [sys.executable, "-c", program, tier.root], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "CorruptData" in done.stderr
