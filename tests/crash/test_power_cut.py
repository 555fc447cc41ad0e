"""After a power cut: what was acknowledged under sync flush is there, whatever pages made it to the disk."""

import contextlib
import random
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.faults import PAGE, SYNCS, Cut, install
from store.model import QUIET, Clock, bodies, check
from stratalog.layout.index import HEADER, ITEM, items_position
from stratalog.layout.queue import UNIT
from stratalog.store import open_files

TINY: dict[str, Any] = QUIET | {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 300 * UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 60,
}
SEED = 20240607


def body_of(number: int) -> bytes:
    return b"%04d" % number + bytes([number % 251 + 1]) * (number * 37 % 900)


def run_and_cut(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, flush: str, count: int = 120, every: int = 3
) -> list[tuple[Cut, int, int, int]]:
    """Cuts at system calls of a run: (cut, acknowledged, begun, messages that a flush had made durable)."""
    calls = install(monkeypatch, root)
    cuts: list[tuple[Cut, int, int, int]] = []
    moments = [(0, 0)]
    durable = 0

    def watch() -> None:
        if len(calls.calls) % every == 0:
            cuts.append((calls.cut(), *moments[-1], durable))

    calls.watch = watch
    with stratalog.open(root, flush=flush, clock_ns=Clock(), **TINY) as store:
        for begin in range(0, count, 25):
            part: list[tuple[int, int]] = moments
            for number in range(begin, min(count, begin + 25)):
                part[-1] = (number, number + 1)
                store.put("t", body_of(number), queue_id=number % 2, keys=[f"k{number}"], tags="a")
                part[-1] = (number + 1, number + 1)
                if number % 7 == 6:
                    assert store.queue("t", 0).max_offset
            store._flush_all()
            durable = moments[-1][0]
    cuts.append((calls.cut(), count, count, count))
    monkeypatch.undo()
    return cuts


def check_image(target: Path, at_least: int, begun: int) -> None:
    with stratalog.open(target, **TINY) as store:
        check(store)
        found = bodies(store)
        for queue_id in (0, 1):
            given = [body_of(number) for number in range(queue_id, begun, 2)]
            read = found.get(("t", queue_id), [])
            needed = len(range(queue_id, at_least, 2))
            assert read[:needed] == given[:needed], "an acknowledged message is lost or changed"
            rest = iter(given[needed:])
            assert all(body in rest for body in read[needed:]), "invented, mixed, repeated or out of order"
        for number in range(max(0, at_least - 20), at_least):
            assert [message.body for message in store.query("t", key=f"k{number}")] == [body_of(number)]
        store.put("t", b"after", queue_id=0)
    with stratalog.open(target, **TINY) as store:
        check(store)
        assert bodies(store)["t", 0][-1] == b"after"


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_no_acknowledged_message_is_lost_in_any_power_cut(
    flush: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(SEED)
    cuts = run_and_cut(folder / "store", monkeypatch, flush=flush, every=4 if flush == "sync" else 2)
    assert len(cuts) > 30
    for number, (cut, acknowledged, begun, flushed) in enumerate(cuts):
        target = folder / f"image{number}"
        cut.image(target, chance)
        check_image(target, acknowledged if flush == "sync" else flushed, begun)


def test_the_checkpoint_vouches_only_for_units_that_were_synced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's dispatch between the sync of the queues and the checkpoint must not be vouched for."""
    calls = install(monkeypatch, folder / "store")
    with stratalog.open(folder / "store", clock_ns=Clock(), **TINY) as store:
        store.put("t", body_of(0), keys="k0")
        store._flush_all()
        store.put("t", body_of(1), keys="k1")
        late = threading.Event()

        def put_and_read() -> None:
            name, path = calls.calls[-1]
            if name == "fdatasync" and "consumequeue" in path and not late.is_set():
                late.set()
                for number in range(2, 10):
                    store.put("t", body_of(number), keys=f"k{number}")
                store.flush()
                assert store._dispatcher.dispatch(store.log.end_offset) is None

        monkeypatch.setattr(open_files, "free", lambda *locks: contextlib.nullcontext())
        calls.watch = put_and_read
        store._flush_all()
        assert late.is_set()
        cut = calls.cut()
        calls.watch = lambda: None
    monkeypatch.undo()
    chance = random.Random(SEED)
    for number in range(6):
        cut.image(folder / f"image{number}", chance)
        with stratalog.open(folder / f"image{number}", **TINY) as store:
            check(store)
            assert [message.body for message in store.queue("t").read()] == [body_of(n) for n in range(10)]


def test_new_files_and_names_are_durable_before_a_put_is_acknowledged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = install(monkeypatch, folder / "store")
    with stratalog.open(folder / "store", flush="sync", **TINY) as store:
        for number in range(40):
            store.put("t", body_of(number))
        names = [path.name for path in (folder / "store" / "commitlog").iterdir()]
        assert len(names) > 1
        cut = calls.cut()
        cut.image(folder / "image", random.Random(0))
        assert sorted(path.name for path in (folder / "image" / "commitlog").iterdir()) == sorted(names)


def test_a_stop_counts_as_clean_only_when_everything_is_durable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(monkeypatch, folder / "store")
    store = stratalog.open(folder / "store", clock_ns=Clock(), **TINY)
    for number in range(40):
        store.put("t", body_of(number), keys=f"k{number}")
    cuts: list[Cut] = []
    calls.watch = lambda: cuts.append(calls.cut())
    store.close()
    monkeypatch.undo()
    chance, clean_count = random.Random(SEED), 0
    for number, cut in enumerate(cuts):
        for again in range(4):
            target = folder / f"image{number}-{again}"
            cut.image(target, chance)
            if not (target / "abort").exists() and (target / "commitlog").exists():
                clean_count += 1
                with stratalog.open(target, mode="r", **TINY) as reader:
                    assert bodies(reader) == {("t", 0): [body_of(n) for n in range(40)]}
    assert clean_count


def test_items_of_the_index_are_durable_before_a_header_counts_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages reach the disk in any order: a header that was written with its items could be there alone."""
    calls = install(monkeypatch, folder / "store")
    states: dict[str, list[bytes]] = {}

    def look() -> None:
        name, path = calls.calls[-1]
        if name in SYNCS and Path(path).parent.name == "index" and Path(path).is_file():
            states.setdefault(path, []).append(Path(path).read_bytes())

    calls.watch = look
    with stratalog.open(folder / "store", clock_ns=Clock(), **TINY) as store:
        for number in range(70):
            store.put("t", body_of(number), keys=f"k{number}")
    assert len(states) > 1
    for durable in states.values():
        for before, after in pairwise([bytes(len(durable[0])), *durable]):
            for number in range(max(1, HEADER.unpack(before).next_item), HEADER.unpack(after).next_item):
                at = items_position(TINY["max_hash_slot_num"]) + number * ITEM.size
                assert before[at : at + ITEM.size] == after[at : at + ITEM.size], f"item {number} came with its header"


def test_what_was_being_built_again_is_not_believed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal of the last stop counts units: those of files that were lost since, and are back, fit it. What they
    point to in the extension may not be on the disk yet."""
    root, count = folder / "store", 600  # three pages of extension: the first and the last unit are looked at anyway
    extended = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 16 * 1024}
    given = TINY | extended | {"message_index_enable": False, "mapped_file_size_consume_queue": count * UNIT.size}
    with stratalog.open(root, clock_ns=Clock(), **given) as store:
        for number in range(count):
            store.put("t", b"%d" % number, queue_id=0, tags="a")
    for path in [path for path in root.glob("consumequeue*/t/0/*") if path.is_file()]:
        path.unlink()
    calls = install(monkeypatch, root)
    calls.all_synced()
    cuts: list[Cut] = []
    calls.watch = lambda: cuts.append(calls.cut()) if "consumequeue" in calls.calls[-1][1] else None
    stratalog.open(root, **given).close()
    monkeypatch.undo()
    assert len(cuts) > 10
    place = "consumequeue_ext/t/0/00000000000000000000"
    for number, cut in enumerate(cuts):
        target = folder / f"image{number}"
        cut.image_but(target, root / place, slice(PAGE, 2 * PAGE))
        with stratalog.open(target, mode="r", **given) as reader:
            assert reader.queue("t").estimate_count(tags="a") == count
