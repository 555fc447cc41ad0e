"""One suite for every kind of queue: whatever works for a plain one works for batch and light queues."""

import asyncio
import contextlib
import gc
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

import stratalog
from store.kinds import (
    BATCH,
    EXTENDED,
    KINDS,
    LIGHT_KIND,
    PLAIN,
    QUEUE_FILE_UNITS,
    SIZES,
    Content,
    Key,
    Kind,
    Known,
    read_on,
    trees,
)
from store.model import QUIET
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, IllegalMessage, StoreLocked
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.names import ABORT, BATCH_CONSUME_QUEUE, COMMIT_LOG, CONSUME_QUEUE
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import UNIT
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def holds(store: MessageStore, content: Content) -> None:
    for key, messages in content.queues.items():
        found, errors, _ = read_on(store.queue(*key))
        assert not errors
        assert found == messages


# -- what is put is read ---------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("how", ["reopened", "after a crash", "without a checkpoint", "read-only", "queues gone"])
def test_every_message_is_there_after_any_stop(kind: Kind, how: str, tmp_path: Path) -> None:
    content = kind.made(tmp_path)
    if how == "after a crash":
        (tmp_path / "abort").write_text("1")
    elif how == "without a checkpoint":
        (tmp_path / "checkpoint").unlink()
    elif how == "queues gone":
        shutil.rmtree(tmp_path / kind.tree)
    with kind.open(tmp_path, mode="r" if how == "read-only" else "w") as store:
        holds(store, content)
        if how != "read-only":
            kind.fill(store, content, begin=100)
            holds(store, content)
    assert verify(tmp_path).ok


@every_kind
def test_offsets_times_counts_and_columns_are_those_of_the_messages(kind: Kind, tmp_path: Path) -> None:
    content = kind.made(tmp_path)
    with kind.open(tmp_path, mode="r") as store:
        for key, messages in content.queues.items():
            queue = store.queue(*key)
            assert (queue.min_offset, queue.max_offset) == (0, len(messages))
            times = [known.store_timestamp for known in messages.values()]
            for time in range(min(times) - 1, max(times) + 2):
                lower = next((at for at, known in enumerate(times) if known >= time), len(times))
                upper = next((at for at in reversed(range(len(times))) if times[at] <= time), 0)
                assert (queue.offset_at(time), queue.offset_at(time, bound="upper")) == (lower, upper)
                assert queue.estimate_count(begin=time) == len(times) - lower
            for first in range(0, len(messages), 5):
                rows = queue.read_arrow(first, count=9, columns=["queueOffset", "body", "keys"]).to_pylist()
                known = list(messages.items())[first : first + 9]
                assert [(row["queueOffset"], row["body"], tuple(row["keys"].split())) for row in rows] == [
                    (at, one.body, one.keys) for at, one in known
                ]
            for tags in ("a", "b", "a || b", "c"):
                wanted = [one.tags for one in messages.values() if one.tags in tags.split(" || ")]
                assert queue.estimate_count(tags=tags) == len(wanted)
            half = times[len(times) // 2]
            counted = sum(one.tags == "a" and one.store_timestamp >= half for one in messages.values())
            assert queue.estimate_count(begin=half, tags="a") == counted


@every_kind
def test_a_follower_gets_what_is_put_later(kind: Kind, tmp_path: Path) -> None:
    content = Content()
    with kind.open(tmp_path) as store:
        kind.fill(store, content, count=6)
        followers = {key: store.queue(*key).read(follow=True) for key in kind.queues}
        seen = {key: [next(followers[key]).body for _ in content.queues[key]] for key in kind.queues}
        kind.fill(store, content, begin=6, count=6)
        for key in kind.queues:
            seen[key] += [next(followers[key]).body for _ in range(len(content.queues[key]) - len(seen[key]))]
            assert seen[key] == [known.body for known in content.queues[key].values()]


@every_kind
def test_keys_find_the_messages_that_carry_them(kind: Kind, tmp_path: Path) -> None:
    """Of a batch the members with the key; all of them for the batch's own unique key."""
    content = kind.made(tmp_path)
    topics = {topic for topic, _ in kind.queues}
    with kind.open(tmp_path, mode="r") as store:
        for topic in topics:
            by_key: dict[str, list[tuple[Key, int, Known]]] = {}
            for place, messages in content.queues.items():
                for offset, known in messages.items() if place[0] == topic else ():
                    for text in known.keys:
                        by_key.setdefault(text, []).append((place, offset, known))
            for text, expected in by_key.items():
                assert places(store.query(topic, key=text)) == expected
                assert places(store.query(topic, key=text, limit=1)) == expected[-1:]
                when = expected[0][2].store_timestamp
                stored_then = [place for place in expected if place[2].store_timestamp == when]
                assert places(store.query(topic, key=text, begin=when, end=when)) == stored_then
                assert not store.query(topic, key=text, end=when - 1)
            found = store.query_many(topic, [*by_key, "none"])
            assert {text: places(hits) for text, hits in found.items()} == by_key | {"none": []}
            if kind is BATCH:
                assert places(store.query(topic, key="u7")) == by_key["k7"]
                assert len(by_key["k7"]) == 4
                assert places(store.query(topic, key="u7", limit=3)) == by_key["k7"][-3:]


def places(messages: list[Message]) -> list[tuple[Key, int, Known]]:
    return [((one.topic, one.queue_id), one.queue_offset, Known.of(one)) for one in messages]


@every_kind
def test_a_message_id_leads_to_the_record_and_from_there_to_the_message(kind: Kind, tmp_path: Path) -> None:
    """The record of a batch is the batch, that of a message in a light queue is in the queue it was put to."""
    content = kind.made(tmp_path)
    with kind.open(tmp_path, mode="r") as store:
        for key, messages in content.queues.items():
            for offset, known in messages.items():
                record = store.message(known.commit_log_offset)
                assert record.store_timestamp == known.store_timestamp
                if kind is BATCH:
                    assert (record.topic, record.queue_id) == key
                    (found,) = store.queue(*key).read(offset, count=1)
                    assert record.queue_offset <= found.queue_offset
                    assert found.message_id == record.message_id
                else:
                    assert record.body == known.body


WAYS = ("put", "put_raw", "put_many", "append", "put_async", "put_record")


@pytest.mark.parametrize("way", WAYS)
@every_kind
def test_every_way_to_put_stores_messages_of_every_kind_or_says_why_not(kind: Kind, way: str, tmp_path: Path) -> None:
    given = {MULTI_DISPATCH: "%LMQ%a"} if "light" in kind.name else {}
    with kind.open(tmp_path) as store:
        if kind is BATCH:
            store.create_topic("batches", queue_type="BatchCQ")
        topic = {PLAIN.name: "topic", EXTENDED.name: "topic", BATCH.name: "batches"}.get(kind.name, "parent")
        queue, text = store.queue(topic), encode_properties({"TAGS": "a", **given})
        rows = {"body": [b"x"], "tags": ["a"]} | {name: [value] for name, value in given.items()}
        ways: dict[str, Callable[[], object]] = {
            "put": lambda: store.put(topic, b"x", tags="a", properties=given),
            "put_raw": lambda: queue.put_raw(b"x", text),
            "put_many": lambda: queue.put_many([b"x"], text),
            "append": lambda: queue.append(pa.record_batch(rows)),
            "put_async": lambda: asyncio.run(store.put_async(topic, b"x", tags="a", properties=given)),
            "put_record": lambda: queue.put_record(b"x", text),
        }
        if way == "append" and given:
            with pytest.raises(IllegalMessage, match="use put_batch or put_record"):
                ways[way]()
            return
        ways[way]()
        (message,) = store.queue(kind.queues[0][0]).read()
        assert (message.body, message.tags, message.queue_offset) == (b"x", "a", 0)
    assert verify(tmp_path).ok


# -- damage ----------------------------------------------------------------------------------------------------------


def swapped_units(kind: Kind, root: Path) -> None:
    file = kind.files(root, kind.queues[0])[1]
    size, data = kind.layout.size, bytearray(file.read_bytes())
    data[size : 2 * size], data[3 * size : 4 * size] = data[3 * size : 4 * size], data[size : 2 * size]
    file.write_bytes(data)


def doubled_unit(kind: Kind, root: Path) -> None:
    file = kind.files(root, kind.queues[0])[1]
    size, data = kind.layout.size, bytearray(file.read_bytes())
    data[3 * size : 4 * size] = data[2 * size : 3 * size]
    file.write_bytes(data)


def blank_unit(kind: Kind, root: Path) -> None:
    file = kind.files(root, kind.queues[0])[1]
    size, data = kind.layout.size, bytearray(file.read_bytes())
    data[2 * size : 3 * size] = bytes(size)
    file.write_bytes(data)


def _swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def swapped_files(kind: Kind, root: Path) -> None:
    files = kind.files(root, kind.queues[0])
    _swap(files[0], files[1])


def another_queues_file(kind: Kind, root: Path) -> None:
    kind.files(root, kind.queues[0])[0].write_bytes(kind.files(root, kind.queues[1])[0].read_bytes())


def another_queues_last_file(kind: Kind, root: Path) -> None:
    kind.files(root, kind.queues[0])[-1].write_bytes(kind.files(root, kind.queues[1])[-1].read_bytes())


def swapped_queues(kind: Kind, root: Path) -> None:
    one, other = (kind.directory(root, key) for key in kind.queues)
    one.rename(root / "other")
    other.rename(one)
    (root / "other").rename(other)


def missing_first_file(kind: Kind, root: Path) -> None:
    kind.files(root, kind.queues[0])[0].unlink()


def missing_middle_file(kind: Kind, root: Path) -> None:
    kind.files(root, kind.queues[0])[1].unlink()


def missing_last_file(kind: Kind, root: Path) -> None:
    kind.files(root, kind.queues[0])[-1].unlink()


def short_file(kind: Kind, root: Path) -> None:
    file = kind.files(root, kind.queues[0])[1]
    file.write_bytes(file.read_bytes()[: -kind.layout.size])


DAMAGES = [
    swapped_units, doubled_unit, blank_unit, swapped_files, another_queues_file, another_queues_last_file,
    swapped_queues, missing_first_file, missing_middle_file, missing_last_file, short_file,
]  # fmt: skip


@pytest.mark.one_in(27)
@every_kind
@pytest.mark.parametrize("damage", DAMAGES)
def test_units_and_files_that_are_not_as_written_are_found_by_verify_never_served_wrong_and_rebuilt(
    damage: Callable[[Kind, Path], None], kind: Kind, tmp_path: Path
) -> None:
    content = kind.made(tmp_path)
    before = trees(tmp_path)
    assert verify(tmp_path).ok
    damage(kind, tmp_path)
    report = verify(tmp_path)
    assert report.problems
    assert any(str(kind.directory(tmp_path, kind.queues[0])) in problem.path for problem in report.problems)
    refused = pytest.raises(CorruptData, match=r"stratalog repair|back")
    is_refused = damage is short_file or (damage is swapped_queues and kind in (PLAIN, EXTENDED))
    with refused if is_refused else contextlib.nullcontext(), kind.open(tmp_path, mode="r") as store:
        for key in kind.queues:
            assert_right(store, key, content)
    rebuilt = rebuild(tmp_path)
    assert trees(tmp_path) == before
    assert rebuilt.bitmap_count == 0
    assert verify(tmp_path).ok
    with kind.open(tmp_path, mode="r") as store:
        holds(store, content)


@every_kind
def test_files_exchanged_under_an_open_store_are_named(kind: Kind, tmp_path: Path) -> None:
    """Each file of a queue becomes the one before it, the first one another queue's last."""
    content = kind.made(tmp_path)
    key, other = kind.queues[:2]
    with kind.open(tmp_path, mode="r") as store:
        store.queues()
        data = kind.files(tmp_path, other)[-1].read_bytes()
        for file in kind.files(tmp_path, key):
            whole = file.read_bytes()
            file.write_bytes(data)
            data = whole
        assert_right(store, key, content)


def assert_right(store: MessageStore, key: Key, content: Content) -> None:
    """Nothing wrong is served, and what is not served lies in a range that an error names."""
    found, _, named = read_on(store.queue(*key))
    known = content.queues[key]
    assert found == {at: known[at] for at in found}
    silent = known.keys() - found - named
    assert not silent, f"{sorted(silent)} are missing and nothing says so"


@every_kind
@pytest.mark.parametrize("position", ["body", "magic", "queue_offset"])
def test_a_damaged_record_hides_its_own_messages_only(kind: Kind, position: str, tmp_path: Path) -> None:
    from stratalog.layout.message import HEAD

    content = kind.made(tmp_path)
    at = {"body": HEAD.size + 2}.get(position) or HEAD.position(position)
    with kind.open(tmp_path, mode="r") as store:
        for key, messages in content.queues.items():
            rotten = messages[len(messages) // 2].commit_log_offset
            file, start = store.log.file_at(rotten)
            file.view[start + at] ^= 0x10
            hidden = {number for number, known in messages.items() if known.commit_log_offset == rotten}
            if position == "queue_offset" and "light" in kind.name:
                hidden = set()  # the record's own offset: not the one in the light queue
            found, errors, _ = read_on(store.queue(*key))
            assert found == {number: known for number, known in messages.items() if number not in hidden}
            assert len(errors) == bool(hidden)
            if hidden:
                assert errors[0].next_offset == max(hidden) + 1
            file.view[start + at] ^= 0x10


@every_kind
@pytest.mark.parametrize("bit", [3, 6, 14])
def test_a_turned_bit_in_an_offset_hides_no_other_message(kind: Kind, bit: int, tmp_path: Path) -> None:
    from stratalog.layout.message import HEAD

    queues = kind.made(tmp_path).queues
    victim = queues[key := next(iter(queues))][5].commit_log_offset
    for tree in (CONSUME_QUEUE, BATCH_CONSUME_QUEUE):
        shutil.rmtree(tmp_path / tree / key[0], ignore_errors=True)
    for name in ("queues.snapshot", "checkpoint"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / ABORT).touch()
    number, position = divmod(victim, SIZES["mapped_file_size_commit_log"])
    path = sorted((tmp_path / COMMIT_LOG).iterdir())[number]
    stored = bytearray(path.read_bytes())
    stored[position + HEAD.position("queue_offset") + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(stored)
    for mode in ("r", "w", "w"):
        with kind.open(tmp_path, mode=mode, enable_lmq=True, enable_multi_dispatch=True) as store:
            found, _, _ = read_on(store.queue(*key))
            others = {n: known for n, known in queues[key].items() if known.commit_log_offset != victim}
            assert {n: known for n, known in found.items() if known.commit_log_offset != victim} == others
    assert not verify(tmp_path, settings=StoreSettings(**SIZES, **kind.settings)).ok


@every_kind
def test_damage_that_was_found_once_is_told_at_every_opening(kind: Kind, tmp_path: Path) -> None:
    from stratalog.layout.message import HEAD

    messages = next(iter(kind.made(tmp_path).queues.values()))
    number, position = divmod(messages[len(messages) // 2].commit_log_offset, SIZES["mapped_file_size_commit_log"])
    path = sorted((tmp_path / COMMIT_LOG).iterdir())[number]
    stored = bytearray(path.read_bytes())
    stored[position + HEAD.size + 2] ^= 0x10
    path.write_bytes(stored)
    (tmp_path / ABORT).touch()
    for _ in range(3):
        with kind.open(tmp_path) as store:
            assert len(store.recovery.quarantined) == 1
            assert "damaged ranges in the log: 1" in store.recovery.warning
    rebuild(tmp_path, settings=StoreSettings(**SIZES, **kind.settings))
    for mode in ("r", "w", "w"):
        with kind.open(tmp_path, mode=mode) as store:
            assert len(store.recovery.quarantined) == 1


@every_kind
def test_a_unit_of_which_a_field_is_flipped_is_named_and_hides_its_own_messages_only(
    kind: Kind, tmp_path: Path
) -> None:
    """Every field, low and high bits: as damage that comes while the store is open, and as what an opening finds."""
    content = kind.made(tmp_path)
    key = kind.queues[0]
    messages = content.queues[key]
    for file in kind.files(tmp_path, key)[:2]:
        whole = file.read_bytes()
        for number in (0, 3):
            for field in kind.layout.fields:
                for bit in (0, 8 * field.size - 1, 8 * field.size - 4):
                    place = number * kind.layout.size + kind.layout.position(field.name) + field.size - 1 - bit // 8
                    data = bytearray(whole)
                    data[place] ^= 1 << bit % 8
                    with kind.open(tmp_path, mode="r") as store:
                        offset = kind.layout.unpack(whole, number * kind.layout.size).commit_log_offset
                        hidden = {at for at, known in messages.items() if known.commit_log_offset == offset}
                        file.write_bytes(data)
                        found, _, _ = read_on(store.queue(*key))
                        assert found == {at: messages[at] for at in found}
                        assert messages.keys() - found <= hidden, (field.name, bit)
                        file.write_bytes(whole)
                    file.write_bytes(data)
                    report = verify(tmp_path)
                    assert any(str(file) == problem.path for problem in report.problems), (field.name, bit)
                    with kind.open(tmp_path, mode="r") as store:
                        assert_right(store, key, content)
                    file.write_bytes(whole)


@pytest.mark.one_in(36)
@every_kind
def test_no_call_leaves_a_descriptor_or_mapping_of_the_store_behind(kind: Kind, tmp_path: Path) -> None:
    content = kind.made(tmp_path)
    (log,) = (tmp_path / "commitlog").iterdir()

    def read() -> None:
        with kind.open(tmp_path, mode="r") as store:
            holds(store, content)

    def open_twice() -> None:
        with kind.open(tmp_path) as store, pytest.raises(StoreLocked):
            kind.open(store.root)

    def damaged() -> None:
        log.write_bytes(b"?" * 50 + log.read_bytes()[50:])
        assert not verify(tmp_path).ok
        repair(plan_repair(tmp_path))

    for call in (read, open_twice, lambda: verify(tmp_path), lambda: rebuild(tmp_path), damaged):
        call()
        gc.collect()
        links = [path.readlink() for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        assert not [link for link in links if tmp_path in link.parents]
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()


@pytest.mark.one_in(27)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("number", range(QUEUE_FILE_UNITS + 1))
def test_a_queue_may_begin_anywhere_in_its_file_after_retention_and_a_kill(
    kind: Kind, mode: str, number: int, tmp_path: Path
) -> None:
    """Nothing vouches for the store, and the first live unit is the first of its file in one of the cases."""
    content = Content()
    with kind.open(tmp_path) as store:
        store.put("other", b"x" * (300 * number))
        kind.fill(store, content, count=160)
    log = sorted((tmp_path / "commitlog").iterdir())
    log[0].unlink()
    for key, messages in content.queues.items():
        first = min(offset for offset, known in messages.items() if known.commit_log_offset >= int(log[1].name))
        files = kind.files(tmp_path, key)
        for path, following in pairwise(files):
            if kind.layout is UNIT and int(following.name) <= first * UNIT.size:
                path.unlink()
    for name in ("checkpoint", "queues.snapshot"):
        (tmp_path / name).unlink()
    (tmp_path / "abort").touch()
    for _ in range(2):
        with kind.open(tmp_path, mode=mode) as store:
            for key, messages in content.queues.items():
                live = {at: known for at, known in messages.items() if known.commit_log_offset >= int(log[1].name)}
                assert read_on(store.queue(*key)) == (live, [], set())
                assert store.queue(*key).min_offset == min(live)


def test_lost_directories_of_light_queues_are_built_again_without_their_settings(tmp_path: Path) -> None:
    root = tmp_path / "store"
    content = LIGHT_KIND.made(root)
    for directory in (root / "consumequeue").glob("%LMQ%*"):
        shutil.rmtree(directory)
    stratalog.open(root, **SIZES, **QUIET).close()
    with LIGHT_KIND.open(root) as store:
        assert {key: read_on(store.queue(*key))[0] for key in LIGHT_KIND.queues} == content.queues
