"""Local store and tier as one: every offset once, from the side the policy names."""

from pathlib import Path

import pytest

from stratalog import tiered
from stratalog.errors import ConfigurationError, NotAStore, OffsetOutOfRange
from stratalog.store.message_store import MessageStore
from stratalog.store.opening import open_store
from stratalog.tiered import GetStatus, JoinedStore, Manifest, PosixBackend, ReadPolicy
from stratalog.tiered.state import ManifestEntry, TierState
from tiered.conftest import T0, MakeStore
from tiered.offload import entry_for

COUNT, BODY = 3000, b"body-%d " + b"x" * 700


@pytest.fixture
def sides(make_store: MakeStore, backend: PosixBackend, manifest: Manifest) -> tuple[Path, Path]:
    """A local store that lost its oldest log files, and a tier that lacks the newest messages: they overlap."""
    store = make_store(("orders", 0), count=COUNT, body=BODY)
    state = commit_part(store, backend, manifest, COUNT - 300)
    assert state.next_sequence == 1
    root = store.root
    store.close()
    files = sorted((root / "commitlog").iterdir())
    assert len(files) >= 3
    files[0].unlink()
    return root, backend.root


def commit_part(store: MessageStore, backend: PosixBackend, manifest: Manifest, count: int) -> TierState:
    state = manifest.load()
    entry: ManifestEntry = entry_for(store, backend, state, count=count)
    return manifest.commit(entry, state)


def joined(sides: tuple[Path, Path], policy: ReadPolicy | str) -> JoinedStore:
    store = open_store(sides[0], mode="r", max_hash_slot_num=100, max_index_num=10_000)
    return tiered.attach(store, tiered.open(sides[1]), policy=policy)


def test_the_sides_overlap_in_the_middle(sides: tuple[Path, Path]) -> None:
    both = joined(sides, "NOT_IN_DISK")
    local, tier = both.store.queue("orders", 0), both.tier.queue("orders", 0)
    assert 0 == tier.min_offset < local.min_offset < tier.max_offset < local.max_offset == COUNT


@pytest.mark.parametrize("policy", ["NOT_IN_DISK", "NOT_IN_MEM"])
def test_reading_across_the_border_gives_every_offset_once(sides: tuple[Path, Path], policy: str) -> None:
    both = joined(sides, policy)
    queue = both.queue("orders", 0)
    messages = list(queue.read())
    assert [message.queue_offset for message in messages] == list(range(COUNT))
    assert [message.body for message in messages] == [BODY % i for i in range(COUNT)]
    border = both.store.queue("orders", 0).min_offset
    near = [message.queue_offset for message in queue.read(border - 3, count=6)]
    assert near == list(range(border - 3, border + 3))


def test_either_side_gives_the_same_message(sides: tuple[Path, Path]) -> None:
    both = joined(sides, "NOT_IN_DISK")
    local, tier = both.store.queue("orders", 0), both.tier.queue("orders", 0)
    first, count = local.min_offset, tier.max_offset - local.min_offset
    pairs = zip(local.read(first, count=count), tier.read(first, count=count), strict=True)
    for ours, theirs in pairs:
        theirs.commit_log_offset = ours.commit_log_offset
        assert ours == theirs


@pytest.mark.parametrize(
    ("policy", "old", "both", "new"),
    [
        (ReadPolicy.DISABLE, False, False, False),
        (ReadPolicy.NOT_IN_DISK, True, False, False),
        (ReadPolicy.FORCE, True, True, True),
    ],
)
def test_the_policy_picks_the_side(
    sides: tuple[Path, Path], policy: ReadPolicy, old: bool, both: bool, new: bool
) -> None:
    store = joined(sides, policy)
    queue, middle = store.queue("orders", 0), COUNT - 500
    before = store.tier.stats.reads
    answers = [queue.get(offset) for offset in (0, middle, COUNT - 1)]
    assert queue.reads_tier(middle) is both
    assert (store.tier.stats.reads > before) is old
    found = [answer.status is GetStatus.FOUND for answer in answers]
    assert found == [policy is not ReadPolicy.DISABLE, True, not new]


def test_disable_shows_only_what_is_local_and_force_only_what_is_in_the_tier(sides: tuple[Path, Path]) -> None:
    disabled, forced = joined(sides, "DISABLE").queue("orders", 0), joined(sides, "FORCE").queue("orders", 0)
    local = joined(sides, "DISABLE").store.queue("orders", 0)
    assert (disabled.min_offset, disabled.max_offset) == (local.min_offset, COUNT)
    assert (forced.min_offset, forced.max_offset) == (0, COUNT - 300)
    assert [message.queue_offset for message in forced.read()] == list(range(COUNT - 300))
    with pytest.raises(OffsetOutOfRange) as caught:
        disabled.read(0)
    assert caught.value.next_offset == local.min_offset


def test_what_is_in_the_page_cache_is_read_locally_under_not_in_mem(sides: tuple[Path, Path]) -> None:
    both = joined(sides, "NOT_IN_MEM")
    queue, local = both.queue("orders", 0), both.store.queue("orders", 0)
    assert len(list(local.read())) == COUNT - local.min_offset, "read once, so it is in the cache"
    assert not queue.reads_tier(local.min_offset + 1)
    assert queue.reads_tier(local.min_offset - 1)


def test_times_are_found_on_the_side_that_has_them(sides: tuple[Path, Path]) -> None:
    queue = joined(sides, "NOT_IN_DISK").queue("orders", 0)
    for offset in (0, 1, 1000, COUNT - 301, COUNT - 300, COUNT - 1):
        assert queue.offset_at(T0 + 10 * offset) == offset
        assert queue.offset_at(T0 + 10 * offset - 5) == offset
    assert queue.offset_at(10**13) == COUNT


def test_a_query_finds_each_message_once(sides: tuple[Path, Path]) -> None:
    both = joined(sides, "NOT_IN_DISK")
    hits = both.query("orders", key="k3", limit=10_000)
    assert [hit.queue_offset for hit in hits] == [i for i in range(COUNT) if i % 7 == 3]
    newest = both.query("orders", key="k3", limit=5)
    assert newest == hits[-5:]
    some = both.query("orders", key="k3", begin=T0 + 10 * 100, end=T0 + 10 * 120, limit=100)
    assert [hit.queue_offset for hit in some] == [i for i in range(100, 121) if i % 7 == 3]


def test_requests_outside_the_range_say_where_to_go_on(sides: tuple[Path, Path]) -> None:
    queue = joined(sides, "NOT_IN_DISK").queue("orders", 0)
    assert (queue.get(COUNT).status, queue.get(COUNT).next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, COUNT)
    assert (queue.get(COUNT + 9).status, queue.get(COUNT + 9).next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, COUNT)
    assert (queue.get(-1).status, queue.get(-1).next_offset) == (GetStatus.OFFSET_TOO_SMALL, 0)


def test_a_hole_between_tier_and_local_log_is_stepped_over(
    make_store: MakeStore, backend: PosixBackend, manifest: Manifest
) -> None:
    store = make_store(("orders", 0), count=COUNT, body=BODY)
    commit_part(store, backend, manifest, 100)
    root = store.root
    store.close()
    (root / "commitlog" / "00000000000000000000").unlink()
    both = joined((root, backend.root), "NOT_IN_DISK")
    local = both.store.queue("orders", 0).min_offset
    queue = both.queue("orders", 0)
    assert local > 200
    assert [message.queue_offset for message in queue.read()] == [*range(100), *range(local, COUNT)]
    assert queue.get(150).next_offset == local


def test_a_policy_or_queue_that_does_not_exist_is_named(sides: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigurationError, match="NOT_IN_DISK"):
        joined(sides, "SOMETIMES")
    with pytest.raises(NotAStore, match="payments/0"):
        joined(sides, "FORCE").queue("payments", 0)


def test_a_damaged_message_hides_no_other_from_a_query_of_either_side(sides: tuple[Path, Path]) -> None:
    for root in (sides[0] / "commitlog", sides[1]):
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            data = path.read_bytes()
            for number in (1500, COUNT - 1):  # in both, and in the store alone
                data = data.replace(BODY % number, b"B" + (BODY % number)[1:])
            path.write_bytes(data)
    both = joined(sides, "NOT_IN_DISK")
    for keyed in (both, both.tier, both.store):
        found = keyed.query("orders", key="common", limit=None)
        there = {hit.queue_offset for hit in found}
        assert there, keyed
        assert not there & {1500, COUNT - 1}
        low, end = min(there), max(there) + 1
        missing = set(range(low, end)) - there
        assert missing <= {1500}
        assert len(found.damaged) >= len(missing)
    assert len(both.query("orders", key="common", limit=None)) == COUNT - 2
