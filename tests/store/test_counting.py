"""How many messages lie between two times, and how many of them have a tag."""

import pyarrow as pa
import pytest

from store.conftest import OpenStore
from store.model import Clock, flip, log_files
from stratalog.errors import CorruptData
from stratalog.store import counting
from stratalog.store.queue import Queue

T0 = 1_700_000_000_000
COUNT = 9_000


def filled(open_store: OpenStore) -> Queue:
    """A message a millisecond, tags in turn; the first third has no TagC."""
    clock = Clock()
    queue = open_store(clock_ns=clock, mapped_file_size_commit_log=1 << 20).queue("t")
    for number in range(0, COUNT, 10):
        clock.now_ms = T0 + number
        tags = ["TagA", "TagB"] * 5 if number < COUNT // 3 else ["TagA", "TagC"] * 5
        queue.append(pa.record_batch({"body": [b""] * 10, "tags": tags}))
    return queue


def test_messages_between_two_times_are_counted(open_store: OpenStore) -> None:
    queue = filled(open_store)
    assert queue.estimate_count() == COUNT
    assert queue.estimate_count(begin=T0 + 10, end=T0 + 20) == 20
    assert queue.estimate_count(begin=T0 + 11, end=T0 + 19) == 0
    assert queue.estimate_count(end=T0 - 1) == queue.estimate_count(begin=T0 + COUNT) == 0


def test_tags_are_counted_exactly_in_few_messages(open_store: OpenStore) -> None:
    queue = filled(open_store)
    assert queue.estimate_count(tags="TagA") == COUNT // 2
    assert queue.estimate_count(tags="TagB") == COUNT // 6
    assert queue.estimate_count(tags="TagB||TagC") == queue.estimate_count(tags=" TagC || TagB ") == COUNT // 2
    assert queue.estimate_count(tags="none") == 0
    assert queue.estimate_count(begin=T0 + 100, end=T0 + 199, tags="TagB") == 50
    assert queue.estimate_count(begin=T0 + COUNT, tags="TagA") == 0


def test_many_messages_are_estimated_from_runs_over_the_whole_range(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = filled(open_store)
    monkeypatch.setattr(counting, "EXACT_UNITS_MAX", 900)
    monkeypatch.setattr(counting, "_RUN_UNITS", 10)
    asked = []
    units = queue.units
    monkeypatch.setattr(queue, "units", lambda first, count: asked.append(count) or units(first, count))
    assert queue.estimate_count(tags="TagA") == COUNT // 2
    assert queue.estimate_count(tags="TagB") == COUNT // 6, "not from the begin alone, where there is more of it"
    assert sum(asked) == 2 * 900


def test_one_damaged_message_does_not_keep_the_others_from_being_found_by_time(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock, checked=False)
    for number in range(3):
        clock.now_ms = T0 + number
        store.put("t", b"body %d" % number)
    store.flush()
    queue, path = store.queue("t"), log_files(store.root)[0]
    flip(path, path.read_bytes().index(b"body 1"))
    with pytest.raises(CorruptData):
        list(queue.read())
    assert [queue.offset_at(T0 + time) for time in (-1, 0, 1, 2, 3)] == [0, 0, 1, 1, 3], "as if it were the next one"
    assert queue.estimate_count(end=T0 + 2) == 3
