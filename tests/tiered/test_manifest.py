"""The manifest: one order of entries for all writers, and every damage to it noticed."""

import os
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog import tiered
from stratalog.errors import CorruptData, TierConflict
from stratalog.tiered import Manifest, PosixBackend, TierState
from stratalog.tiered.manifest import CHECKPOINT_INTERVAL
from stratalog.tiered.state import (
    IndexRun,
    IndexSegment,
    ManifestEntry,
    QueueCommit,
    QueueName,
    Segment,
)

RECORD = 100


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is not in question here, and hundreds of commits would wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def commit_of(state: TierState, topic: str = "orders", queue_id: int = 0, *, count: int = 1) -> QueueCommit:
    """The next `count` messages of a queue, in one segment of each kind."""
    queue = state.queues.get(QueueName(topic, queue_id))
    first = queue.end_queue_offset if queue else 0
    last = first + count
    return QueueCommit(
        topic,
        queue_id,
        state.topic_ids([topic])[topic],
        first,
        last,
        first * RECORD,
        last * RECORD,
        1000 + first,
        1000 + last,
        (Segment(0, last * RECORD, 1000, 1000 + last),),
        (Segment(0, last * 20, 1000, 1000 + last),),
    )


def entry_of(state: TierState, *names: tuple[str, int], count: int = 1) -> ManifestEntry:
    commits = tuple(commit_of(state, *name, count=count) for name in names or (("orders", 0),))
    return ManifestEntry(queues=commits, source_to=state.next_sequence)


def filled(manifest: Manifest, count: int) -> TierState:
    state = manifest.load()
    for _ in range(count):
        state = manifest.commit(entry_of(state), state)
    return state


def test_an_empty_tier_has_an_empty_state(manifest: Manifest) -> None:
    assert not manifest.exists()
    assert manifest.load() == TierState(manifest.cluster, manifest.broker)


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 199, 200, 201, 450])
def test_what_was_committed_is_loaded_again(manifest: Manifest, count: int) -> None:
    state = filled(manifest, count)
    assert manifest.load() == state
    assert state.next_sequence == count
    assert state.queues[QueueName("orders", 0)].end_queue_offset == count
    assert state.source_end == count - 1


def test_loading_reads_the_entries_behind_the_newest_checkpoint_only(manifest: Manifest, backend: PosixBackend) -> None:
    filled(manifest, 7 * CHECKPOINT_INTERVAL + 5)
    before = backend.reads
    manifest.load()
    assert backend.reads - before == 1 + 5
    for sequence in range(7 * CHECKPOINT_INTERVAL):
        (backend.root / manifest.entry_path(sequence)).unlink()
    assert manifest.load().next_sequence == 7 * CHECKPOINT_INTERVAL + 5


def test_a_refresh_reads_what_is_new(manifest: Manifest, backend: PosixBackend) -> None:
    state = filled(manifest, 5)
    newer = manifest.commit(entry_of(state), state)
    before = backend.reads
    assert manifest.refresh(state) == newer
    assert backend.reads - before == 1


def test_of_two_writers_that_continue_a_queue_one_is_told_to_redo(manifest: Manifest) -> None:
    state = filled(manifest, 3)
    ours, theirs = entry_of(state, count=4), entry_of(state, count=2)
    after = manifest.commit(theirs, state)
    with pytest.raises(TierConflict, match="redo"):
        manifest.commit(ours, state)
    assert manifest.load() == after


def test_two_writers_of_different_queues_both_get_in(manifest: Manifest) -> None:
    state = filled(manifest, 1)
    first = manifest.commit(entry_of(state, ("orders", 1)), state)
    second = manifest.commit(entry_of(state, ("orders", 2)), state)
    assert first.queues.keys() < second.queues.keys()
    assert manifest.load() == second


def test_two_new_topics_cannot_get_one_id(manifest: Manifest) -> None:
    state = manifest.load()
    ours = entry_of(state, ("a", 0))
    manifest.commit(entry_of(state, ("b", 0)), state)
    with pytest.raises(TierConflict, match="topic id 0 belongs to b"):
        manifest.commit(ours, state)


def test_a_batch_that_is_committed_already_is_not_committed_again(manifest: Manifest, backend: PosixBackend) -> None:
    state = manifest.load()
    entry = entry_of(state, ("orders", 0), ("orders", 1), count=10)
    done = manifest.commit(entry, state)
    again = msgspec.structs.replace(entry, nonce="another attempt")
    assert manifest.commit(again, state) == done
    assert manifest.commit(again, manifest.load()) == done
    assert len(backend.list(manifest.directory)) == 1


def test_our_own_lost_answer_is_no_conflict(backend: PosixBackend) -> None:
    class LosesAnswers(PosixBackend):
        def put_if_absent(self, path: str, data: bytes | bytearray | memoryview) -> bool:
            super().put_if_absent(path, data)
            return False

    manifest = Manifest(LosesAnswers(backend.root), "c", "b")
    state = filled(manifest, 3)
    run = ManifestEntry(index_runs=(IndexRun("c/b/run", 1, 2, 3, 4),))
    assert len(manifest.commit(run, state).index_runs) == 1
    assert manifest.load().next_sequence == 4


def test_many_writers_commit_every_batch_once(manifest: Manifest, backend: PosixBackend) -> None:
    def write(queue_id: int) -> None:
        own = Manifest(backend, manifest.cluster, manifest.broker)
        state = own.load()
        for _ in range(20):
            while True:
                try:
                    state = own.commit(entry_of(state, ("orders", queue_id)), state)
                    break
                except TierConflict:
                    state = own.load()

    threads = [threading.Thread(target=write, args=(number // 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = manifest.load()
    ends = [queue.end_queue_offset for queue in state.queues.values()]
    assert sum(ends) == state.next_sequence
    assert min(ends) >= 20, "a writer whose batch was already there was content with it"


@pytest.mark.parametrize("count", [0, 3, 99, 100])
@pytest.mark.parametrize("more", [2, 101])
def test_entries_that_others_commit_during_a_load_are_no_gap(
    manifest: Manifest, backend: PosixBackend, count: int, more: int
) -> None:
    class Meanwhile(PosixBackend):
        due = True

        def list(self, prefix: str) -> list[str]:
            if self.due:
                self.due = False
                filled(manifest, more)
            return super().list(prefix)

    filled(manifest, count)
    loaded = Manifest(Meanwhile(backend.root), manifest.cluster, manifest.broker).load()
    assert loaded == manifest.load()
    assert loaded.next_sequence == count + more


@pytest.mark.parametrize(("count", "missing"), [(10, 9 - 1), (10, 0), (120, 100), (150, 101), (60, 20)])
def test_a_missing_entry_is_noticed_and_named(
    manifest: Manifest, backend: PosixBackend, count: int, missing: int
) -> None:
    filled(manifest, count)
    (backend.root / manifest.entry_path(missing)).unlink()
    with pytest.raises(CorruptData, match="missing") as caught:
        manifest.load()
    assert caught.value.path == manifest.entry_path(missing)


def test_several_missing_entries_are_noticed(manifest: Manifest, backend: PosixBackend) -> None:
    filled(manifest, 60)
    for sequence in range(5, 58):
        (backend.root / manifest.entry_path(sequence)).unlink()
    with pytest.raises(CorruptData, match="missing"):
        manifest.load()


def test_a_tier_with_a_missing_entry_is_not_opened(manifest: Manifest, backend: PosixBackend) -> None:
    filled(manifest, 5)
    (backend.root / manifest.entry_path(2)).unlink()
    with pytest.raises(CorruptData, match=r"restore it\s+from a copy"):
        tiered.open(backend.root)


@pytest.mark.parametrize("sequence", [0, 3])
def test_a_torn_entry_is_noticed(manifest: Manifest, backend: PosixBackend, sequence: int) -> None:
    filled(manifest, 4)
    path = backend.root / manifest.entry_path(sequence)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptData, match="restore it") as caught:
        manifest.load()
    assert caught.value.path == manifest.entry_path(sequence)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_of_an_entry_or_checkpoint_is_noticed(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    backend = PosixBackend(tmp_path_factory.getbasetemp() / "flips")
    manifest = Manifest(backend, "c", "b")
    state = manifest.load() if manifest.exists() else filled(manifest, CHECKPOINT_INTERVAL + 2)
    names = (manifest.entry_path(CHECKPOINT_INTERVAL + 1), manifest.checkpoint_path(CHECKPOINT_INTERVAL))
    path = Path(backend.root / data.draw(st.sampled_from(names)))
    good = path.read_bytes()
    position = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bad)
    try:
        with pytest.raises(CorruptData):
            Manifest(PosixBackend(backend.root), "c", "b").load()
    finally:
        path.write_bytes(good)
    assert manifest.load() == state


def test_an_entry_that_does_not_continue_the_one_before_is_noticed(manifest: Manifest, backend: PosixBackend) -> None:
    filled(manifest, 4)
    entry = backend.root / manifest.entry_path(3)
    entry.write_bytes((backend.root / manifest.entry_path(2)).read_bytes())
    with pytest.raises(CorruptData, match="number 2"):
        manifest.load()


def test_a_newer_format_is_not_guessed_at(manifest: Manifest, backend: PosixBackend) -> None:
    state = filled(manifest, 1)
    newer = msgspec.structs.replace(entry_of(state), version=99)
    manifest.commit(newer, state)
    with pytest.raises(CorruptData, match="upgrade"):
        manifest.load()


def test_a_lost_checkpoint_is_made_up_for_by_the_entries(manifest: Manifest, backend: PosixBackend) -> None:
    state = filled(manifest, 2 * CHECKPOINT_INTERVAL + 3)
    (backend.root / manifest.checkpoint_path(2 * CHECKPOINT_INTERVAL)).unlink()
    assert manifest.load() == state


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"from_queue_offset": 6}, "ends at queue offset 5"),
        ({"from_commit_log_offset": 600}, "its log ends at byte 500"),
        ({"topic_id": 7}, "the tier has 0"),
        ({"commit_log": (Segment(600, 100),)}, "commit log segments do not join"),
        ({"commit_log": (Segment(0, 400), Segment(500, 100))}, "commit log segments do not join"),
        ({"consume_queue": (Segment(0, 100),)}, "consume queue segments do not join"),
    ],
)
def test_an_entry_must_continue_its_queues(manifest: Manifest, change: dict[str, object], reason: str) -> None:
    state = filled(manifest, 5)
    commit = msgspec.structs.replace(commit_of(state), **change)
    with pytest.raises(TierConflict, match=reason):
        manifest.commit(ManifestEntry(queues=(commit,)), state)
    assert manifest.load() == state


def test_index_runs_are_replaced_once(manifest: Manifest) -> None:
    state = manifest.load()
    runs = tuple(IndexRun(f"c/b/run-{number}", 1, 2, 3, 4) for number in range(3))
    state = manifest.commit(ManifestEntry(index_runs=runs), state)
    compaction = ManifestEntry(
        index_segments=(IndexSegment(0, 500, 2, 3, 10, exact=True),), replaced_runs=("c/b/run-0", "c/b/run-1")
    )
    after = manifest.commit(compaction, state)
    assert [run.path for run in after.index_runs] == ["c/b/run-2"]
    assert after.index_end == 500
    again = msgspec.structs.replace(compaction, nonce="other")
    with pytest.raises(TierConflict, match="replaced already"):
        manifest.commit(again, state)


def test_a_tier_without_manifest_is_adopted_once(manifest: Manifest) -> None:
    found = TierState(manifest.cluster, manifest.broker, last_topic_id=4)
    state = manifest.adopt(found)
    assert manifest.load() == state
    state = manifest.commit(entry_of(state), state)
    assert state.topics["orders"].topic_id == 5
    assert manifest.load() == state
    with pytest.raises(TierConflict):
        manifest.adopt(found)
