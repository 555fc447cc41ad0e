"""The last records of a store that was closed properly were overwritten: they are lost, and no queue offset is given
again, whoever closed it."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.kinds import BATCH, EXTENDED, LIGHT_EXTENDED, LIGHT_KIND, PLAIN, Content, Kind, read_on
from store.test_recreated_topics import STATES, settings_of
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

FILLS: dict[str, Callable[[int], bytes]] = {
    "zeros": bytes,
    "garbage": random.Random(7).randbytes,
    "text": lambda size: (b"2026-11-27 out of memory\n" * size)[:size],
}


@pytest.mark.one_in(54)
@pytest.mark.parametrize("first", ["opening", "repair"])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ"])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("lost_count", [1, 2, 3, 10])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND, LIGHT_EXTENDED], ids=str)
def test_it_is_damage_and_the_offsets_are_kept(
    kind: Kind, lost_count: int, fill: str, state: str, first: str, tmp_path: Path
) -> None:
    content = kind.made(tmp_path, count=40)
    ends = {key: len(queue) for key, queue in content.queues.items()}
    STATES[state](tmp_path)
    begin = sorted({one.commit_log_offset for queue in content.queues.values() for one in queue.values()})[-lost_count]
    file = next(path for path in sorted((tmp_path / "commitlog").iterdir(), reverse=True) if int(path.name) <= begin)
    with file.open("r+b") as log:
        log.seek(begin - int(file.name))
        log.write(FILLS[fill](min(4096, int(file.name) + file.stat().st_size - begin)))
    kept = {
        key: {number: known for number, known in queue.items() if known.commit_log_offset < begin}
        for key, queue in content.queues.items()
    }
    assert not verify(tmp_path, settings=settings_of(kind)).ok
    is_alone = lost_count == 1 and state != "closed"  # one unit of one record may be damaged: its offset is kept
    if first == "opening":
        with kind.open(tmp_path, mode="r") as store:
            assert [one.begin for one in store.recovery.quarantined] == ([] if is_alone else [begin])
        for _ in range(2):
            with kind.open(tmp_path) as store:
                assert ("repair" in store.recovery.warning) != is_alone
                for key, end in ends.items():
                    assert store.queue(*key).max_offset == end
                    assert read_on(store.queue(*key))[0] == kept[key]
    plan = plan_repair(tmp_path, settings=settings_of(kind))
    lost = {(*key, number) for key in ends for number in content.queues[key].keys() - kept[key].keys()}
    named = {(*key, number) for *key, first, end in plan.missing for number in range(first, end)}
    message_count = len(lost) if kind is BATCH else lost_count  # a light message is in several queues
    assert plan.lost_count == message_count if not named else not plan.lost_count and lost <= named
    assert repair(plan).ok
    with kind.open(tmp_path) as store:
        assert not store.recovery.warning
        for key, end in ends.items():
            assert store.queue(*key).max_offset == end
            assert read_on(store.queue(*key))[0] == kept[key]
        kind.put(store, 100, Content())
    assert not plan_repair(tmp_path, settings=settings_of(kind)).actions


def zeroed(root: Path, begin: int, end: int) -> None:
    """Zeros over [begin, end) of the log."""
    for path in (root / "commitlog").iterdir():
        base, size = int(path.name), path.stat().st_size
        if max(begin, base) < min(end, base + size):
            with path.open("r+b") as log:
                log.seek(max(begin, base) - base)
                log.write(bytes(min(end, base + size) - max(begin, base)))


@pytest.mark.parametrize("is_queue_gone", [False, True])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_a_closed_log_is_damaged_from_a_files_first_record_on(
    kind: Kind, is_queue_gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kind.settings, "mapped_file_size_commit_log", 2048)
    content = kind.made(tmp_path, count=60)
    ends = {key: len(queue) for key, queue in content.queues.items()}
    STATES["closed by RocketMQ"](tmp_path)
    places = sorted({one.commit_log_offset for queue in content.queues.values() for one in queue.values()})
    begin = places[-1] // 2048 * 2048
    zeroed(tmp_path, begin, begin + 2048)
    other = kind.queues[1]
    if is_queue_gone:
        shutil.rmtree(kind.directory(tmp_path, other))
    with kind.open(tmp_path) as store:
        assert [one.begin for one in store.recovery.quarantined] == [begin]
        for key, end in ends.items():
            if key != other or not is_queue_gone:
                assert store.queue(*key).max_offset == end


@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_a_bit_of_the_newest_unit_damages_no_log(kind: Kind, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    kind.made(whole, count=10)
    with kind.open(whole, mode="r") as store:
        log_end = store.log.end_offset
    STATES["closed by RocketMQ"](whole)
    root, unit_size = tmp_path / "store", kind.layout.size
    written = len(kind.files(whole, kind.queues[0])[0].read_bytes().rstrip(b"\0"))
    newest = (written - 1) // unit_size * unit_size
    for bit in range(12 * 8):  # of its log offset and size
        shutil.copytree(whole, root)
        path = kind.files(root, kind.queues[0])[0]
        data = bytearray(path.read_bytes())
        data[newest + bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with kind.open(root) as store:
            assert (store.recovery.quarantined, store.log.end_offset) == ([], log_end), bit
        shutil.rmtree(root)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("with_crc", [False, True])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ"])
@pytest.mark.parametrize("kind", [PLAIN, LIGHT_KIND], ids=str)
def test_a_record_cut_in_its_properties_is_kept_by_repair_after_an_opening_too(
    kind: Kind, state: str, with_crc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kind.settings, "enabled_append_prop_crc", with_crc)
    whole, root = tmp_path / "whole", tmp_path / "store"
    content = kind.made(whole, count=12)
    STATES[state](whole)
    places = sorted({one.commit_log_offset for queue in content.queues.values() for one in queue.values()})
    for back in range(1, 30, 3):
        shutil.copytree(whole, root)
        zeroed(root, places[-3] - back, places[-1] + 2000)
        damaged = plan_repair(root, settings=settings_of(kind)).damaged_properties
        kind.open(root).close()
        assert plan_repair(root, settings=settings_of(kind)).damaged_properties == damaged, back
        shutil.rmtree(root)


@pytest.mark.parametrize(("count", "lost_count"), [(3, 2), (4, 2), (4, 3), (5, 3), (6, 4)])
@pytest.mark.parametrize("kind", [PLAIN, EXTENDED, BATCH, LIGHT_KIND], ids=str)
def test_a_few_messages_are_enough(kind: Kind, count: int, lost_count: int, tmp_path: Path) -> None:
    """Queues may have no message left."""
    content = kind.made(tmp_path, count=count)
    STATES["closed by RocketMQ"](tmp_path)
    places = sorted({one.commit_log_offset for queue in content.queues.values() for one in queue.values()})
    zeroed(tmp_path, places[-lost_count], places[-1] + 2000)
    for _ in range(2):
        with kind.open(tmp_path) as store:
            assert "repair" in store.recovery.warning
            assert {key: store.queue(*key).max_offset for key in content.queues} == {
                key: len(queue) for key, queue in content.queues.items()
            }
