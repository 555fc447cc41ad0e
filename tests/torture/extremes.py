"""Every integer of every record layout on disk, set to the values at which arithmetic breaks.

A store and a tier with every kind of file are made; in each execution one field of one record says 0, ±1, a boundary of
its own or a smaller width, or a size near the file's end. Then everything that reads or mends is called. Only our
errors may come out, in time, and what a call writes stays in proportion to what was there.
"""

import mmap
import random
import shutil
import signal
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

import stratalog
from store.model import Clock
from stratalog import tiered
from stratalog.errors import StratalogError
from stratalog.layout import index as index_layout
from stratalog.layout import tier as tier_layout
from stratalog.layout import timer
from stratalog.layout.checkpoint import SEAL, SEAL_POSITION
from stratalog.layout.index import SLOT
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.message import HEAD, PROPERTIES_LENGTH, TOPIC_LENGTH_V1, crc_of, decode_record
from stratalog.layout.queue import UNIT
from stratalog.layout.record import Layout
from stratalog.tiered import Manifest, PosixBackend
from stratalog.tiered.compaction import compact
from stratalog.tools.dump import dump
from stratalog.tools.map import map_store
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from tiered.offload import offload
from torture.fuzz_targets import STORE

KINDS = STORE | {
    "mapped_file_size_consume_queue_ext": 4096,
    "mapper_file_size_batch_consume_queue": 20 * 46,
    "enable_consume_queue_ext": True,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
NEAR = (-10, -2, -1, 0, 1, 10)
RECORDS_A_KIND = 3
"""First, middle and last of a layout in a kind of file."""
GROWTH_MAX = 8 << 20
"""Bytes on disk that an execution may add to a store of some 150 kB (a new log, queue and index file among them)."""
EXECUTION_SECONDS = 10.0


@dataclass(frozen=True)
class Case:
    path: str
    position: int
    layout: Layout
    field: str
    value: int

    def __str__(self) -> str:
        return f"{self.path} at {self.position}: {self.layout.name}.{self.field} = {self.value}"


def values_of(kind: str, file_size: int, position: int) -> list[int]:
    bits, low = 8 * int(kind[1:]) // 8, 0 if kind[0] == "u" else -(1 << (int(kind[1:]) - 1))
    high = (1 << bits) - 1 if kind[0] == "u" else (1 << (bits - 1)) - 1
    centres = [
        0,
        file_size,
        file_size - position,
        *(sign << power for power in (7, 15, 31, 62, 63) for sign in (1, -1)),
    ]
    return sorted({value for centre in centres for near in NEAR if low <= (value := centre + near) <= high})


def make(root: Path) -> None:
    """`root/store` and `root/tier`."""
    store = root / "store"
    with stratalog.open(store, clock_ns=Clock(), **KINDS) as opened:
        opened.create_topic("batch", queues=1, queue_type="BatchCQ")
        for number in range(24):
            keys, body = [f"k{number % 7}", "all"], b"%03d" % number * (1 + number % 30)
            opened.put("topic", body, queue_id=number % 2, keys=keys, tags="a", unique_key=f"u{number}")
            if number % 6 == 0:
                opened.queue("batch", 0).put_batch([b"one", b"two"], unique_key=f"b{number}")
                opened.put("topic", b"light", properties={MULTI_DISPATCH: "%LMQ%a"})
    plain = root / "plain"
    with stratalog.open(plain, clock_ns=Clock(), **STORE) as opened:
        for number in range(30):
            opened.put("topic", b"%03d" % number * 9, queue_id=number % 2, keys=[f"k{number % 7}", "all"], tags="a")
        backend = PosixBackend(root / "tier")
        manifest = Manifest(backend, "c", "b")
        state = offload(opened, backend, manifest, count=8)
        state = compact(backend, manifest, state, slot_count=8)
        opened.put("topic", b"late", keys=["k1"])
        offload(opened, backend, manifest)
        backend.close()
    shutil.rmtree(plain)
    timers = root / "store" / "timerlog"
    timers.mkdir()
    (timers / ("0" * 20)).write_bytes(timer.LOG_UNIT.pack(52, -1, 1, 0, 1000, 0, 100, 0, 0) * 3 + bytes(100))


def places(root: Path) -> Iterator[tuple[str, int, Layout]]:
    found: dict[tuple[str, Layout], list[tuple[str, int, Layout]]] = defaultdict(list)
    for path in sorted((root / "store").rglob("*")):
        name = str(path.relative_to(root))
        if path.is_file() and path.stat().st_size and path.name not in ("lock", "queues.snapshot"):
            with suppress(StratalogError):
                for item in dump(path):
                    for position, layout in parts(path, item.position, item.layout):
                        found[name.split("/")[1], layout].append((name, position, layout))
    for path in sorted((root / "tier").rglob("*")):
        name, kind = str(path.relative_to(root)), path.parent.name
        layouts: list[tuple[int, Layout]] = []
        if kind == "COMMIT_LOG":
            layouts = [(0, HEAD)]
        elif kind == "CONSUME_QUEUE":
            layouts = [(UNIT.size * number, UNIT) for number in range(path.stat().st_size // UNIT.size)]
        elif kind == "INDEX":
            slots = tier_layout.INDEX_HEADER.size
            layouts = [(0, tier_layout.INDEX_HEADER)]
            layouts += [(slots + 8 * number, tier_layout.COMPACTED_SLOT) for number in range(8)]
            layouts += [(tier_layout.compacted_index_size(8, n), tier_layout.COMPACTED_ITEM) for n in range(9)]
        elif path.suffix == ".run":
            header, item = tier_layout.RUN_HEADER, tier_layout.RUN_ITEM
            layouts = [(0, header), (header.size, item)]
        for position, layout in layouts:
            found[kind, layout].append((name, position, layout))
    index = next((root / "store" / "index").iterdir())
    name, slots = str(index.relative_to(root)), index_layout.slots_position()
    used = [slots + SLOT.size * n for n in range(8) if any(index.read_bytes()[slots + SLOT.size * n :][: SLOT.size])]
    found["index", SLOT] = [(name, position, SLOT) for position in used]
    for several in found.values():
        chosen = {0, len(several) // 2, len(several) - 1}
        yield from (several[number] for number in sorted(chosen)[:RECORDS_A_KIND])


def parts(path: Path, position: int, layout: Layout | None) -> list[tuple[int, Layout]]:
    """The layouts of what `dump` found at a position."""
    if layout:
        return [(position, layout)]
    with suppress(StratalogError):
        if path.parent.name == "commitlog":
            record = decode_record(path.read_bytes(), position)
            properties = position + record.total_size - len(record.properties) - PROPERTIES_LENGTH.size
            topic = properties - len(record.topic) - TOPIC_LENGTH_V1.size
            return [(position, HEAD), (topic, TOPIC_LENGTH_V1), (properties, PROPERTIES_LENGTH)]
    return []


def cases(root: Path) -> list[Case]:
    return [
        Case(path, position, layout, field.name, value)
        for path, position, layout in places(root)
        for field in layout.fields
        if field.kind != "bytes"
        for value in values_of(field.kind, (root / path).stat().st_size, position)
    ]


def apply(root: Path, case: Case) -> None:
    path = root / case.path
    data = bytearray(path.read_bytes())
    fields = case.layout.unpack(data, case.position)._asdict() | {case.field: case.value}
    data[case.position : case.position + case.layout.size] = case.layout.pack(*fields.values())
    if case.layout is SEAL and case.field != "crc":
        crc = SEAL_POSITION + SEAL.position("crc")
        data[crc : crc + 4] = crc_of(data[SEAL_POSITION:crc]).to_bytes(4, "big")
    path.write_bytes(data)
    if path.suffix == ".run":
        for entry in (root / "tier").rglob("log/*.json"):
            _believe(entry, path.name, zlib.crc32(data))


def _believe(entry: Path, run: str, crc: int) -> None:
    """Let the manifest vouch for a changed run."""
    content = msgspec.json.decode(msgspec.json.decode(entry.read_bytes(), type=dict[str, msgspec.Raw])["content"])
    for known in content["index_runs"]:
        if known["path"].endswith(run):
            known["crc32"] = crc
    text = msgspec.json.encode(content)
    entry.write_bytes(msgspec.json.encode({"crc32": zlib.crc32(text), "content": msgspec.Raw(text)}))


def use_store(root: Path, changed: Path) -> Iterator[Callable[[], object]]:
    """Calls, each of which may end with our error."""
    yield lambda: list(dump(changed))
    yield lambda: verify(root)
    yield lambda: map_store(root)
    yield lambda: plan_repair(root)
    yield lambda: _read(root, "r")
    yield lambda: _read(root, "w")
    (root / "abort").touch()
    yield lambda: _read(root, "w")
    yield lambda: repair(plan_repair(root), clock_ns=Clock())
    yield lambda: rebuild(root, clock_ns=Clock())
    yield lambda: _read(root, "r")


def _read(root: Path, mode: str) -> None:
    with stratalog.open(root, mode=mode, **KINDS) as store:
        for topic, queue_id in store.queues()[:8]:
            queue = store.queue(topic, queue_id)
            for call in (
                lambda queue=queue: [message.properties for message in queue.read(count=200)],
                lambda queue=queue: queue.read_arrow(count=200),
                lambda queue=queue: queue.offset_at(1_700_000_000_500),
            ):
                with suppress(StratalogError):
                    call()
        for key in ("k1", "all", "u3"):
            with suppress(StratalogError):
                store.query("topic", key=key)
        if mode == "w":
            store.put("topic", b"more", keys="k1")


def use_tier(root: Path) -> Iterator[Callable[[], object]]:
    def read() -> None:
        with tiered.open(root) as tier:
            for queue in [tier.queue(*name) for name in tier.queues()]:
                for call in (
                    lambda queue=queue: list(queue.read()),
                    lambda queue=queue: queue.read_arrow(),
                    lambda queue=queue: queue.offset_at(1_700_000_000_500),
                    lambda queue=queue: [queue.get(offset) for offset in (0, 5, 14, 15)],
                ):
                    with suppress(StratalogError):
                        call()
            for key in ("k1", "all"):
                with suppress(StratalogError):
                    tier.query("topic", key=key)

    def compacted() -> None:
        backend = PosixBackend(root)
        manifest = Manifest(backend, "c", "b")
        compact(backend, manifest, manifest.load(), slot_count=8)

    yield read
    yield compacted
    yield read
    for own in root.rglob("_stratalog"):
        shutil.rmtree(own)
    yield read


def on_disk(root: Path) -> int:
    return sum(512 * path.lstat().st_blocks for path in root.rglob("*"))


def fuzz_extremes(seed: str, numbers: range, note: mmap.mmap, folder: Path) -> str | None:
    base, work = folder / "base", folder / "work"
    make(base)
    known = cases(base)
    random.Random(seed).shuffle(known)
    before = on_disk(base)
    for number in numbers:
        note[:8] = number.to_bytes(8, "little")
        case = known[number % len(known)]
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        apply(work, case)
        in_tier = case.path.startswith("tier")
        uses = use_tier(work / "tier") if in_tier else use_store(work / "store", work / case.path)
        for step, call in enumerate(uses):
            signal.setitimer(signal.ITIMER_REAL, EXECUTION_SECONDS)
            try:
                with suppress(StratalogError):
                    call()
            except Exception as error:
                error.add_note(f"execution {number}, step {step}, {case}")
                raise
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        if on_disk(work) > before + GROWTH_MAX:
            return f"execution {number}: {on_disk(work):,} bytes on disk of {before:,}, {case}"
    return None
