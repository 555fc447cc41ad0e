"""Batch topics, light queues and queue extensions: what is refused, what is found, and what is rebuilt."""

import errno
import shutil
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stratalog
from store.model import QUIET, SMALL, Clock, scratch_folder
from stratalog.errors import ConfigurationError, CorruptData, DiskFull, IllegalMessage
from stratalog.kernels.columns import MS_MAX
from stratalog.layout.batch import INNER_BASE, INNER_FLAGS, INNER_NUM, BatchEntry, encode_batch_body
from stratalog.layout.columns import ARROW_SCHEMA
from stratalog.layout.light import MULTI_DISPATCH, MULTI_QUEUE_OFFSET
from stratalog.layout.message import Host, Record
from stratalog.layout.names import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, CONSUME_QUEUE_EXT, INDEX, SNAPSHOT
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import BATCH_UNIT, EXTENSION_UNIT, UNIT
from stratalog.layout.record import Layout
from stratalog.layout.sysflag import SysFlag, Transaction
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore
from stratalog.tools.verify import verify

KINDS: dict[str, Any] = {
    "enable_lmq": True,
    "enable_multi_dispatch": True,
    "mapper_file_size_batch_consume_queue": 5 * BATCH_UNIT.size,
    "mapped_file_size_consume_queue_ext": 10 * EXTENSION_UNIT.size + 4,
}
TREES = (CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT, INDEX)


def opened(root: Path, **given: Any) -> MessageStore:
    return stratalog.open(root, **{**SMALL, **QUIET, **KINDS, **given})


def multi(*names: str, **more: str) -> bytes:
    return encode_properties({MULTI_DISPATCH: ",".join(names), "TAGS": "t", **more})


def fill(store: MessageStore, rounds: int = 12) -> None:
    """Every kind of queue, several files of each."""
    if "batches" not in store.topic_configs:
        store.create_topic("batches", queues=2, queue_type="BatchCQ")
    for number in range(rounds):
        body = b"%04d" % number * 20
        batch = store.queue("batches", number % 2)
        batch.put_batch([body + b"%d" % member for member in range(1 + number % 4)], unique_key=f"b{number}", tags="t")
        batch.put(body, tags="alone", keys=f"k{number}")
        parent = store.queue("parent", number % 2)
        parent.put_raw(body, multi("%LMQ%a", "%LMQ%$b") if number % 3 else multi("%LMQ%a"))
        parent.put(body, tags="plain")


def bytes_of(root: Path, *trees: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for tree in trees
        for path in sorted((root / tree).rglob("*"))
        if path.is_file()
    }


def queues_of(root: Path) -> dict[str, bytes]:
    """Index files carry the time of their making in their names: compared by content."""
    queues = bytes_of(root, *TREES[:-1])
    return queues | {str(number): data for number, data in enumerate(bytes_of(root, INDEX).values())}


def contents(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    return {key: [(m.queue_offset, m.body) for m in store.queue(*key).read()] for key in store.queues()}


# -- what is refused ---------------------------------------------------------------------------------------------------

PAID = (3433164).to_bytes(8)
"""The tags code of `paid`, as Java hashes it."""
TWO = encode_batch_body([BatchEntry(b"one"), BatchEntry(b"two")])


@pytest.mark.parametrize(
    ("topic", "body", "properties", "sys_flag"),
    [
        pytest.param("plain", TWO, {INNER_NUM: "2"}, INNER_FLAGS, id="an inner batch in a topic of the usual type"),
        pytest.param("batches", TWO, {INNER_NUM: "2"}, 0, id="a count without the flags"),
        pytest.param("batches", TWO, {INNER_NUM: "2"}, SysFlag.INNER_BATCH, id="one flag without the other"),
        pytest.param("batches", TWO, {}, INNER_FLAGS, id="the flags without a count"),
        pytest.param("batches", TWO, {INNER_NUM: "3"}, INNER_FLAGS, id="another count than the body's"),
        pytest.param("batches", TWO, {INNER_NUM: "2x"}, INNER_FLAGS, id="a count that is no number"),
        pytest.param("batches", b"", {INNER_NUM: "0"}, INNER_FLAGS, id="a batch of none"),
        pytest.param("batches", b"no batch at all", {INNER_NUM: "1"}, INNER_FLAGS, id="a body that is no batch"),
        pytest.param("batches", TWO, {INNER_NUM: "2"}, INNER_FLAGS | Transaction.PREPARED, id="a prepared batch"),
        pytest.param("batches", b"", {MULTI_DISPATCH: "%LMQ%a"}, 0, id="light queues of a batch topic"),
        pytest.param("plain", b"", {MULTI_DISPATCH: "%LMQ%a,plain"}, 0, id="a name that is no light queue's"),
        pytest.param("plain", b"", {MULTI_DISPATCH: "%LMQ%a,%LMQ%a"}, 0, id="a light queue named twice"),
        pytest.param("plain", b"", {MULTI_DISPATCH: "%LMQ%a,"}, 0, id="an empty name"),
        pytest.param("plain", b"", {MULTI_DISPATCH: "%LMQ%"}, 0, id="a light queue without a name"),
        pytest.param("plain", b"", {MULTI_DISPATCH: "%LMQ%../../x"}, 0, id="a name that is a path"),
        pytest.param("plain", b"", {MULTI_DISPATCH: "%LMQ%" + "x" * 251}, 0, id="a name too long for a directory"),
        pytest.param("%LMQ%a", b"", {}, 0, id="a message put to a light queue itself"),
    ],
)
def test_what_rocketmq_refuses_or_cannot_dispatch_is_refused_before_a_byte_is_written(
    topic: str, body: bytes, properties: dict[str, str], sys_flag: int, tmp_path: Path
) -> None:
    with opened(tmp_path / "store") as store:
        store.create_topic("batches", queue_type="BatchCQ")
        with pytest.raises(IllegalMessage):
            store.queue(topic).put_record(body, encode_properties(properties), sys_flag=sys_flag)
        assert store.log.end_offset == 0
        assert not store.queues()


@pytest.mark.parametrize("way", ["put", "put_raw", "put_many", "append"])
def test_every_way_to_put_refuses_a_name_that_rocketmq_chokes_on(way: str, tmp_path: Path) -> None:
    bad, good = {MULTI_DISPATCH: "plain"}, encode_properties({MULTI_DISPATCH: "%LMQ%a"})
    with opened(tmp_path / "store") as store:
        queue = store.queue("parent")
        ways: dict[str, Callable[[], Any]] = {
            "put": lambda: store.put("parent", b"", properties=bad),
            "put_raw": lambda: queue.put_raw(b"", encode_properties(bad)),
            "put_many": lambda: queue.put_many([b"", b""], [good, encode_properties(bad)]),
            "append": lambda: queue.append(pa.record_batch({"body": [b""], MULTI_DISPATCH: ["plain"]})),
        }
        with pytest.raises(IllegalMessage):
            ways[way]()
        assert store.log.end_offset == 0
        queue.put_many([b"1", b"2"], good)
        assert [message.body for message in store.queue("%LMQ%a").read()] == [b"1", b"2"]


def test_the_two_settings_of_light_queues_go_together(tmp_path: Path) -> None:
    for name in ("enable_lmq", "enable_multi_dispatch"):
        with pytest.raises(ConfigurationError, match="go together"):
            opened(tmp_path / "store", **{name: False})


def test_the_type_of_a_topic_is_chosen_before_a_queue_of_it_is_used(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        assert store.queue("t").max_offset == 0
        with pytest.raises(ConfigurationError, match="before its first queue is used"):
            store.create_topic("t", queue_type="BatchCQ")
    with opened(tmp_path / "store") as store:
        store.create_topic("t", queue_type="BatchCQ")
        store.queue("t").put_batch([b"1", b"2"], unique_key="u")
        assert store.queue("t").max_offset == 2


def test_without_the_settings_the_property_is_a_property_like_others(tmp_path: Path) -> None:
    with opened(tmp_path / "store", enable_lmq=False, enable_multi_dispatch=False) as store:
        store.put("parent", b"", properties={MULTI_DISPATCH: "anything"})
        (message,) = store.queue("parent").read()
        assert message.properties == {MULTI_DISPATCH: "anything"}
        assert store.queues() == [("parent", 0)]


def test_without_the_settings_a_store_with_light_queues_says_what_to_set(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put("parent", b"", properties={MULTI_DISPATCH: "%LMQ%a"})
    with opened(tmp_path / "store", enable_lmq=False, enable_multi_dispatch=False) as store:
        with pytest.raises(IllegalMessage, match="--set enable_lmq=true --set enable_multi_dispatch=true"):
            store.put("parent", b"", properties={MULTI_DISPATCH: "%LMQ%a"})
        store.put("parent", b"")


def test_properties_that_the_offsets_make_too_long_are_refused(tmp_path: Path) -> None:
    names = [f"%LMQ%{number:04d}" for number in range(2900)]
    with opened(tmp_path / "store", mapped_file_size_commit_log=1 << 17) as store:
        with pytest.raises(IllegalMessage, match="limit"):
            store.queue("parent").put_raw(b"", multi(*names))
        assert store.log.end_offset == 0
        assert store.queue("%LMQ%0000").next_offset == 0


# -- what is put and read ----------------------------------------------------------------------------------------------


def test_light_queues_go_on_where_they_were_after_the_store_was_opened_again(tmp_path: Path) -> None:
    for turn in range(3):
        with opened(tmp_path / "store") as store:
            for _ in range(7):
                store.queue("parent", turn).put_raw(b"", multi("%LMQ%a", "%LMQ%b"))
            found = [message.queue_offset for message in store.queue("%LMQ%a").read()]
            assert found == list(range(7 * (turn + 1)))
            newest = store.message(list(store.queue("%LMQ%b").read())[-1].commit_log_offset)
            assert newest.properties[MULTI_QUEUE_OFFSET] == f"{found[-1]},{found[-1]}"


def test_a_message_in_a_light_queue_tells_its_place_there_and_the_record_that_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as store:
        store.put("parent", b"other")
        receipt = store.queue("parent").put_raw(b"mine", multi("%LMQ%$lite$name"))
        (message,) = store.queue("%LMQ%$lite$name").read()
        assert (message.topic, message.queue_id, message.queue_offset) == ("%LMQ%$lite$name", 0, 0)
        record = store.message(message.commit_log_offset)
        assert (record.topic, record.queue_offset, record.body) == ("parent", 1, b"mine")
        assert receipt.queue_offset == 1


def test_a_batch_whose_body_is_compressed_is_read_member_by_member(tmp_path: Path) -> None:
    flags = INNER_FLAGS | SysFlag.COMPRESSED | 0x300
    with opened(tmp_path / "store") as store:
        store.create_topic("batches", queue_type="BatchCQ")
        store.queue("batches").put_record(zlib.compress(TWO), encode_properties({INNER_NUM: "2"}), sys_flag=flags)
        assert [message.decompressed() for message in store.queue("batches").read()] == [b"one", b"two"]


def test_under_sync_flush_readers_see_only_what_is_durable_and_the_lag_is_told(tmp_path: Path) -> None:
    with opened(tmp_path / "store", flush="sync") as store:
        store.queue("parent").put_raw(b"durable", multi("%LMQ%a"))
        assert [message.body for message in store.queue("%LMQ%a").read()] == [b"durable"]
        assert store.dispatch_lag == 0
        receipt = store.queue("parent").put_raw(b"not yet", multi("%LMQ%a"), wait=False)
        for name in ("parent", "%LMQ%a"):
            assert [message.body for message in store.queue(name).read()] == [b"durable"]
        assert store.dispatch_lag == receipt.store_size
        store.flush()
        assert [message.body for message in store.queue("%LMQ%a").read()] == [b"durable", b"not yet"]
        assert store.dispatch_lag == 0


def test_extensions_hold_what_units_would_and_units_are_told_with_it_looked_up(tmp_path: Path) -> None:
    for turn, extends in enumerate((False, True, False)):
        with opened(tmp_path / "store", enable_consume_queue_ext=extends) as store:
            for _ in range(25):
                store.put("t", b"x", tags="paid")
            queue = store.queue("t")
            codes = {queue.units(at, 1) for at in range(25 * turn, 25 * (turn + 1))}
            assert {code[12:] for code in codes} == {PAID}
            for message in queue.read(25 * turn):
                extension = queue.extension(message.queue_offset)
                if not extends:
                    assert extension is None
                    continue
                assert extension
                assert (extension.tags_code, extension.bitmap) == (int.from_bytes(PAID), None)
                assert extension.store_timestamp == message.store_timestamp
    report = verify(tmp_path / "store")
    assert report.ok, report.problems


INT32S, INT64S = (-(2**31), -1, 2**31 - 1), (-(2**63), 1 - 2**63, -1, 0, 2**53, MS_MAX, MS_MAX + 1, 2**63 - 1)
EXTREMES: dict[str, tuple[Any, ...]] = {
    "flag": INT32S,
    "reconsume_times": INT32S,
    "sys_flag": (1, 2, 48, 3 << 8, 2**30, -(2**31)),
    "born_timestamp": INT64S,
    "prepared_transaction_offset": INT64S,
    "born_host": (Host(b"\xff" * 4, 65535), Host(b"\xff" * 16, 0)),
    "store_host": (Host(bytes(4), 0), Host(bytes(16), 65535)),
    "now": (0, 1, 253_402_300_799_999),
    "body": (b"", b"\0", b"\xff" * 1000),
    "properties": (
        b"TAGS\1\2", b"KEYS\1\2UNIQ_KEY\1\2", b"TAGS\1\xff\2KEYS\1\xe4\xb8\2UNIQ_KEY\1\xc3(\2", b"\xff\1\xfe\2",
        b"TAGS\1a", b"TAGS", b"\1\2", b"TAGS\1a\2TAGS\1b\2", b"TAGS\1a\0b\2KEYS\1 a  b \2",
    ),
}  # fmt: skip


def test_extreme_values_give_equal_columns_in_every_kind_of_queue(tmp_path: Path) -> None:
    clock, times = Clock(), []
    light = encode_properties({MULTI_DISPATCH: "%LMQ%light"})
    with opened(tmp_path / "store", clock_ns=clock, message_index_enable=False) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        for name, value in [(name, value) for name, values in EXTREMES.items() for value in values]:
            fields = {"body": b"x", "properties": b""} | ({name: value} if name != "now" else {})
            clock.now_ms = value if name == "now" else 10**12
            for topic, lead in (("plain", b""), ("batches", b""), ("parent", light)):
                store.queue(topic).put_record(**fields | {"properties": lead + fields["properties"]})
            if name in ("born_timestamp", "store_host"):
                times.append(value)
                store.queue("batches", 1).put_batch([b"x"], unique_key="u", **{name: value})
                store.queue("plain", 1).put_record(b"x", **{name: value})
        for one, other, queue_id, differing in (
            ("plain", "batches", 0, {"topic", "commitLogOffset", "storeSize"}), ("parent", "%LMQ%light", 0, {"topic"}),
            ("plain", "batches", 1,
             {"topic", "commitLogOffset", "properties", "uniqueKey", "sysFlag", "storeSize", "bodyCrc"}),
        ):  # fmt: skip
            columns = [name for name in ARROW_SCHEMA.names if name not in differing]
            expected = store.queue(one, queue_id).read_arrow(columns=columns)
            assert expected.num_rows == (len(times) if queue_id else sum(map(len, EXTREMES.values())))
            found = store.queue(other, queue_id).read_arrow(columns=columns)
            assert not [name for name in columns if not found[name].equals(expected[name])], (one, other)


# -- what is stored and cannot be followed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "offsets", "followed"),
    [
        ("%LMQ%a,plain", "0,", ["%LMQ%a"]),
        ("plain,%LMQ%a", ",0", ["%LMQ%a"]),
        ("%LMQ%a,%LMQ%b", "0", []),
        ("%LMQ%a", "0,1", []),
        ("%LMQ%a", "minus one", []),
        ("%LMQ%a", "-1", []),
        ("%LMQ%a", "999999999999999999", []),
        ("%LMQ%a", "9" * 300, []),
        ("%LMQ%../../../escaped", "0", []),
        ("%LMQ%" + "x" * 300, "0", []),
        ("%LMQ%a,%LMQ%a", "0,0", ["%LMQ%a"]),
    ],
)
def test_a_stored_record_that_cannot_be_dispatched_stands_in_its_own_queue_and_stops_nothing(
    names: str, offsets: str, followed: list[str], tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with opened(root, enable_lmq=False, enable_multi_dispatch=False) as store:
        poison = encode_properties({MULTI_DISPATCH: names, MULTI_QUEUE_OFFSET: offsets})
        store.queue("parent").put_raw(b"before")
        store.queue("parent").put_raw(b"poison", poison)
        store.queue("parent").put_raw(b"after", encode_properties({"KEYS": "found"}))
    shutil.rmtree(root / CONSUME_QUEUE)
    with opened(root) as store:
        assert [message.body for message in store.queue("parent").read()] == [b"before", b"poison", b"after"]
        assert [topic for topic in store.topics() if topic != "parent"] == followed
        assert len(list(store.query("parent", key="found"))) == 1
        assert store.recovery.notes
        store.queue("parent").put_raw(b"more", multi("%LMQ%a"))
        assert [message.body for message in store.queue("%LMQ%a").read()][-1] == b"more"
    assert verify(root).ok
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("properties", [{INNER_NUM: "2", INNER_BASE: "7"}, {INNER_NUM: "x", INNER_BASE: "1"}, {}])
def test_a_stored_batch_that_contradicts_itself_is_named_and_not_served(
    properties: dict[str, str], tmp_path: Path
) -> None:

    root = tmp_path / "store"
    with opened(root) as store:
        store.create_topic("batches", queue_type="BatchCQ")
        queue = store.queue("batches")
        queue.put(b"before")
        if properties:
            put_unchecked(store, properties)
        else:
            queue.put(TWO)
        queue.put(b"after")
        if not properties:
            assert [message.queue_offset for message in queue.read()] == [0, 1, 2]
            return
        with pytest.raises(CorruptData, match="INNER_") as caught:
            list(queue.read())
        assert [message.body for message in queue.read(caught.value.next_offset)] == [b"after"]
        assert store.recovery.notes


def put_unchecked(store: MessageStore, properties: dict[str, str]) -> None:
    """As a broker might have stored it: the flags, and properties that do not fit them."""
    queue = store.queue("batches")
    text = encode_properties(properties)
    write(store, Record(b"batches", TWO, text, sys_flag=INNER_FLAGS, queue_offset=queue.next_offset))
    store.log.commit(store.log.end_offset, queue.advanced(2 if properties[INNER_NUM] == "2" else 1))


def write(store: MessageStore, record: Record) -> None:
    """Write a record that no put would write."""
    log = store.log
    with log.locks.append[0], log.busy:
        position = log.position_for(record.total_size)
        placed = replace(record, commit_log_offset=log.end_offset, store_timestamp=1)
        log.map[position : position + record.total_size] = placed.encode()
        log.end_offset += record.total_size


@pytest.mark.parametrize(
    ("topic", "queue_id"),
    [(b"../../escaped", 0), (b"a/b", 0), (b"..", 0), (b"", 0), (b"\xff\xfe", 0), (b"t\0", 0), (b"t", -1)],
)
def test_a_record_whose_queue_can_be_no_directory_is_told_of_and_stops_nothing(
    topic: bytes, queue_id: int, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    for kinds in (KINDS, {"enable_lmq": False, "enable_multi_dispatch": False}):
        with opened(root, **kinds) as store:
            for _ in range(2):
                write(store, Record(topic, b"lost", queue_id=queue_id))
            store.put("t", b"found")
            assert [message.body for message in store.queue("t").read()][-1] == b"found"
            assert store.queues() == [("t", 0)]
            assert any("no such directory can be" in note for note in store.recovery.notes)
    assert {path.name for path in (root / CONSUME_QUEUE).iterdir()} == {"t"}
    assert {path.name for path in tmp_path.iterdir()} == {"store"}
    assert verify(root).ok


# -- what is damaged and comes back ------------------------------------------------------------------------------------


def gone(path: Path) -> None:
    shutil.rmtree(path)


def cut(path: Path) -> None:
    """The second half of the last file that holds something is zeros."""
    file = max(file for file in path.rglob("*") if file.is_file() and any(file.read_bytes()))
    data = file.read_bytes()
    end = len(data.rstrip(b"\0"))
    file.write_bytes(data[: end // 2].ljust(len(data), b"\0"))


def without_first_file(path: Path) -> None:
    min(file for file in path.rglob("*") if file.is_file()).unlink()


def without_last_file(path: Path) -> None:
    max(file for file in path.rglob("*") if file.is_file()).unlink()


PLACES = (
    BATCH_CONSUME_QUEUE,
    f"{BATCH_CONSUME_QUEUE}/batches/0",
    f"{CONSUME_QUEUE}/%LMQ%a",
    f"{CONSUME_QUEUE}/%LMQ%$b/0",
    CONSUME_QUEUE_EXT,
    f"{CONSUME_QUEUE_EXT}/parent/0",
)


@pytest.mark.one_in(27)
@pytest.mark.parametrize("damage", [gone, cut, without_first_file, without_last_file])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("unclean", [False, True], ids=["after a clean stop", "after a crash"])
def test_any_queue_that_is_deleted_or_cut_is_rebuilt_byte_for_byte(
    place: str, damage: Callable[[Path], None], unclean: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with opened(root, enable_consume_queue_ext=True) as store:
        fill(store)
        before = contents(store)
    assert verify(root).ok
    whole = queues_of(root)
    damage(root / place)
    assert not verify(root).ok
    if unclean:
        (root / "abort").write_text("1")
    with opened(root, enable_consume_queue_ext=True) as store:
        assert contents(store) == before
    assert queues_of(root) == whole
    assert verify(root).ok


@pytest.mark.parametrize("queue_count", [3, 70], ids=["few queues", "so many that a snapshot tells of them"])
@pytest.mark.parametrize("place", [CONSUME_QUEUE_EXT, f"{CONSUME_QUEUE_EXT}/t/1"])
def test_units_that_point_to_a_lost_extension_are_built_again_where_the_setting_asks_for_none(
    place: str, queue_count: int, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    with opened(root, enable_consume_queue_ext=True) as store:
        for number in range(2 * queue_count):
            store.put("t", b"", queue_id=number % queue_count, tags="paid")
    shutil.rmtree(root / place)
    with opened(root) as store:
        assert store.recovery.rebuilt
        assert {store.queue(*key).units(0, 1)[12:] for key in store.queues()} == {PAID}
    report = verify(root)
    assert report.ok, report.problems


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
def test_a_log_that_lost_its_end_in_a_crash_takes_the_ends_of_all_queues_with_it(keep: float, tmp_path: Path) -> None:
    """The queues are then those of a store into which only the first part was ever put."""
    root = tmp_path / "store"
    clock = Clock()
    with opened(root, enable_consume_queue_ext=True, clock_ns=clock) as store:
        fill(store)
        end = store.log.end_offset
    (root / "checkpoint").unlink()
    (root / "abort").write_text("1")
    (log,) = (root / "commitlog").iterdir()
    data = log.read_bytes()
    log.write_bytes(data[: int(end * keep)].ljust(len(data), b"\0"))
    with opened(root, enable_consume_queue_ext=True) as store:
        assert store.log.end_offset < end
        found = contents(store)
        fill(store, 3)
        assert all(contents(store)[key][: len(messages)] == messages for key, messages in found.items())
    assert verify(root).ok, verify(root).problems
    whole = queues_of(root)
    for tree in TREES:
        shutil.rmtree(root / tree, ignore_errors=True)
    with opened(root, enable_consume_queue_ext=True):
        pass
    assert queues_of(root) == whole


def test_queues_begin_where_the_log_does_when_its_oldest_files_are_gone(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root, mapped_file_size_commit_log=8192) as store:
        fill(store, 40)
        before = contents(store)
    oldest = sorted((root / "commitlog").iterdir())[:2]
    assert len(list((root / "commitlog").iterdir())) > 3
    for file in oldest:
        file.unlink()
    with opened(root, mapped_file_size_commit_log=8192) as store:
        first = store.log.first_offset
        for key, messages in contents(store).items():
            queue = store.queue(*key)
            assert messages == before[key][-len(messages) :]
            assert messages[0][0] == queue.min_offset
            assert store.units_of(queue).unit(queue.min_offset)[0] >= first
            assert queue.max_offset == before[key][-1][0] + 1
    for tree in TREES:
        shutil.rmtree(root / tree, ignore_errors=True)
    with opened(root, mapped_file_size_commit_log=8192) as store:
        assert {key: messages[-1] for key, messages in contents(store).items()} == {
            key: messages[-1] for key, messages in before.items()
        }
        store.queue("parent").put_raw(b"", multi("%LMQ%a"))
        assert store.queue("%LMQ%a").max_offset == before["%LMQ%a", 0][-1][0] + 2


operations = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(0, 1), st.integers(1, 5)),
        st.tuples(st.just("alone"), st.integers(0, 1), st.just(1)),
        st.tuples(st.just("light"), st.integers(0, 1), st.integers(0, 7)),
        st.tuples(st.just("reopen"), st.booleans(), st.just(0)),
        st.tuples(st.just("rebuild"), st.sampled_from(TREES), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None)
@given(operations, st.booleans())
def test_whatever_is_put_closed_killed_and_rebuilt_every_queue_holds_its_messages_in_order(
    steps: list[tuple[str, Any, int]], extends: bool
) -> None:
    with scratch_folder() as folder:
        root, expected = folder / "store", dict[tuple[str, int], list[bytes]]()
        given: dict[str, Any] = {"enable_consume_queue_ext": extends}
        store = opened(root, **given)
        store.create_topic("batches", queues=2, queue_type="BatchCQ")
        for number, (what, where, count) in enumerate(steps):
            body = b"%d" % number
            if what == "batch":
                bodies = [body + b"-%d" % member for member in range(count)]
                store.queue("batches", where).put_batch(bodies, unique_key=f"u{number}")
                expected.setdefault(("batches", where), []).extend(bodies)
            elif what == "alone":
                store.put("batches", body, queue_id=where)
                expected.setdefault(("batches", where), []).append(body)
            elif what == "light":
                names = [f"%LMQ%{bit}" for bit in range(3) if count & 1 << bit]
                store.queue("parent", where).put_raw(body, multi(*names) if names else b"")
                for key in [("parent", where), *((name, 0) for name in names)]:
                    expected.setdefault(key, []).append(body)
            else:
                store.close()
                if what == "rebuild":
                    shutil.rmtree(root / where, ignore_errors=True)
                elif not where:
                    (root / "abort").write_text("killed")
                store = opened(root, **given)
        assert contents(store) == {key: list(enumerate(bodies)) for key, bodies in expected.items()}
        store.close()
        report = verify(root)
        assert report.ok, report.problems


def test_a_light_queue_is_read_though_its_places_and_the_offsets_in_the_records_came_apart(tmp_path: Path) -> None:
    """As RocketMQ leaves them behind a message that names a light queue twice: the offset grows by two, the queue by
    one unit."""
    root = tmp_path / "store"
    with opened(root, enable_lmq=False, enable_multi_dispatch=False) as store:
        for number, (names, offsets) in enumerate([("%LMQ%a,%LMQ%a", "0,0"), ("%LMQ%a", "2"), ("%LMQ%a", "3")]):
            text = encode_properties({MULTI_DISPATCH: names, MULTI_QUEUE_OFFSET: offsets})
            store.queue("parent").put_raw(b"%d" % number, text)
        units = store.queue("parent").units(0, 3)
        store.put("parent", b"later")
        (root / CONSUME_QUEUE / "%LMQ%a" / "0").mkdir(parents=True)
        size = store.settings.consume_queue_file_size
        (root / CONSUME_QUEUE / "%LMQ%a" / "0" / f"{0:020d}").write_bytes(units.ljust(size, b"\0"))
    (root / "checkpoint").unlink()
    with opened(root, mode="r") as store:
        found = [(message.queue_offset, message.body) for message in store.queue("%LMQ%a").read()]
        assert found == [(0, b"0"), (1, b"1"), (2, b"2")]


@pytest.mark.parametrize("place", PLACES[:4])
def test_a_snapshot_of_the_queues_does_not_hide_that_one_of_another_kind_is_gone(place: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root) as store:
        fill(store, 4)
    with opened(root) as store:
        before = contents(store)
    assert (root / SNAPSHOT).exists()
    whole = queues_of(root)
    shutil.rmtree(root / place)
    with opened(root) as store:
        assert contents(store) == before
    assert queues_of(root) == whole


def test_a_light_queue_may_be_a_topic_too_and_goes_on_in_the_log_s_order(tmp_path: Path) -> None:
    """RocketMQ's store lets messages be put to a light queue itself; units of both ways are then in one chunk."""
    root = tmp_path / "store"
    with opened(root, enable_lmq=False, enable_multi_dispatch=False) as store:
        for offset in range(0, 40, 4):
            light, parent = store.queue("%LMQ%a"), store.queue("parent")
            store.log.commit(store.log.end_offset, light.advanced(offset - light.next_offset))
            light.put_raw(b"%d" % offset)
            light.put_raw(b"%d" % (offset + 1))
            for more in (2, 3):
                place = {MULTI_DISPATCH: "%LMQ%a", MULTI_QUEUE_OFFSET: str(offset + more)}
                parent.put_raw(b"%d" % (offset + more), encode_properties(place))
    shutil.rmtree(root / CONSUME_QUEUE)
    with opened(root) as store:
        assert contents(store)["%LMQ%a", 0] == [(offset, b"%d" % offset) for offset in range(40)]
        assert contents(store)["parent", 0] == [(n, b"%d" % (n // 2 * 4 + 2 + n % 2)) for n in range(20)]
    report = verify(root)
    assert report.ok, report.problems


@pytest.mark.parametrize(
    ("tree", "layout", "field"),
    [(BATCH_CONSUME_QUEUE, BATCH_UNIT, field.name) for field in BATCH_UNIT.fields]
    + [(f"{CONSUME_QUEUE}/%LMQ%a", UNIT, field.name) for field in UNIT.fields]
    + [(CONSUME_QUEUE_EXT, EXTENSION_UNIT, field.name) for field in EXTENSION_UNIT.fields],
)
def test_verify_finds_a_unit_of_which_one_field_is_wrong(tree: str, layout: Layout, field: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with opened(root, enable_consume_queue_ext=True) as store:
        fill(store)
    file = min(path for path in (root / tree).rglob("*") if path.is_file())
    data = bytearray(file.read_bytes())
    data[layout.size + layout.position(field)] ^= 0x10
    file.write_bytes(data)
    (problem, *_) = verify(root).problems
    assert problem.part == "queue"
    assert str(root) in problem.path


def test_what_could_not_be_written_for_want_of_room_is_written_when_there_is_some(tmp_path: Path) -> None:
    disk = FullDisk()
    with opened(tmp_path / "store", disk=disk, enable_consume_queue_ext=True) as store:
        fill(store, 2)
        before = contents(store)
        disk.is_full = True
        fill(store, 6)
        with pytest.raises(DiskFull):
            store.dispatch()
        for key, known in before.items():
            messages = store.queue(*key).read(count=len(known))
            assert [(message.queue_offset, message.body) for message in messages] == known
        disk.is_full = False
        store.dispatch()
        after = contents(store)
        assert sum(map(len, after.values())) > 3 * sum(map(len, before.values()))
    whole = queues_of(tmp_path / "store")
    assert verify(tmp_path / "store").ok
    for tree in TREES:
        shutil.rmtree(tmp_path / "store" / tree)
    with opened(tmp_path / "store", enable_consume_queue_ext=True) as store:
        assert contents(store) == after
    assert queues_of(tmp_path / "store") == whole


class FullDisk(Disk):
    """Makes no queue files while it is full."""

    is_full = False

    def create_sparse(self, path: Path, size: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left", str(path))
        super().create_sparse(path, size)


def test_a_wrong_offset_in_the_newest_unit_of_a_batch_queue_is_noticed_also_where_no_seal_vouches(
    tmp_path: Path,
) -> None:
    """The next message's offset would follow from it."""
    root = tmp_path / "store"
    with opened(root) as store:
        fill(store)
        before = contents(store)
    whole = queues_of(root)
    (root / "checkpoint").unlink()
    file = max(path for path in (root / BATCH_CONSUME_QUEUE / "batches" / "0").iterdir() if any(path.read_bytes()))
    data = bytearray(file.read_bytes())
    newest = (len(data.rstrip(b"\0")) - 1) // BATCH_UNIT.size * BATCH_UNIT.size
    data[newest + BATCH_UNIT.position("base_offset") + 3] ^= 1
    file.write_bytes(data)
    with opened(root) as store:
        assert contents(store) == before
    assert queues_of(root) == whole


def test_every_message_of_many_new_queues_is_in_its_own(tmp_path: Path) -> None:
    """The table of queues grows with any message: here with one of every kind, after any number of others."""
    for count in range(40):
        with opened(tmp_path / str(count), clock_ns=Clock()) as store:
            store.create_topic("batches", queue_type="BatchCQ")
            put = [store.put(f"plain{number}", b"one") for number in range(count)]
            for number in range(3):
                lights = ",".join(f"%LMQ%{number}-{light}" for light in range(2))
                put.append(store.put("parent", b"two", properties={"INNER_MULTI_DISPATCH": lights}))
                store.queue("batches").put_batch([b"three"], unique_key=f"u{number}")
            store.dispatch()
            queues = [*((f"plain{number}", 1) for number in range(count)), ("parent", 3), ("batches", 3)]
            queues += [(f"%LMQ%{number}-{light}", 1) for number in range(3) for light in range(2)]
            for topic, length in queues:
                assert len(list(store.queue(topic).read())) == length, (count, topic)
            assert not store.recovery.notes
