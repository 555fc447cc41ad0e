"""The broker's JSON files: which of the two copies is read, what is said, and that a write never loses both."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stratalog
from crash.faults import Stopped, install
from golden.cases import GOLDEN, golden_case
from store.conftest import OpenStore
from store.model import scratch_folder
from stratalog.errors import ConfigurationError, CorruptData, IllegalMessage, StoreReadOnly
from stratalog.layout.loosejson import decode_loose_json
from stratalog.store.config_files import (
    CONSUMER_OFFSETS,
    TOPICS,
    encode_config,
    read_config,
    write_config,
)
from stratalog.store.disk import Disk
from stratalog.store.topics import Topics

WHOLE, OLDER = b'{\n\t"a":1\n}', b'{\n\t"a":0\n}'
CUT = WHOLE[: len(WHOLE) // 2]
BINARY = "timercheck"
NOW_MS = 1_700_000_000_000


def broker_files() -> dict[str, bytes]:
    """The config files of a broker's store, by name."""
    with tarfile.open(GOLDEN / "broker" / "store.tar.gz") as archive:
        members = [member for member in archive.getmembers() if "/config/" in member.name and member.isfile()]
        return {Path(member.name).name: archive.extractfile(member).read() for member in members}


def golden_files() -> list[tuple[str, str, bytes]]:
    """(release, name, content) of every text config file that RocketMQ wrote."""
    folders = sorted((GOLDEN / "local" / "config-json").glob("*/*"))
    alone = [(path.parent.name[:3], path.name, path.read_bytes()) for path in folders]
    return alone + [("5.5", name, data) for name, data in broker_files().items() if name != BINARY]


@pytest.mark.parametrize(("release", "name", "data"), golden_files(), ids=lambda value: str(value)[:24])
def test_every_config_file_of_rocketmq_is_written_again_byte_for_byte(release, name: str, data: bytes) -> None:
    assert encode_config(name.removesuffix(".bak"), decode_loose_json(data), release=release) == data


def test_the_golden_config_files_are_all_there() -> None:
    assert len(golden_files()) == 8 + 17


@pytest.mark.parametrize(
    ("main", "copy", "value", "note"),
    [
        (WHOLE, None, {"a": 1}, None),
        (WHOLE, CUT, {"a": 1}, None),
        (None, None, {}, None),
        (None, b"", {}, None),
        (None, OLDER, {"a": 0}, "missing"),
        (b"", OLDER, {"a": 0}, "empty"),
        (b"\0" * 40, OLDER, {"a": 0}, "not valid JSON"),
        (CUT, OLDER, {"a": 0}, "not valid JSON"),
        (b"[1]", OLDER, {"a": 0}, "no JSON object"),
        (WHOLE + b"}", OLDER, {"a": 0}, "not valid JSON"),
        (CUT, CUT, None, None),
        (CUT, None, None, None),
        (b"", b"", None, None),
        (None, CUT, None, None),
    ],
)  # fmt: skip
def test_each_state_of_file_and_copy_is_read_as_the_table_says(tmp_path: Path, main, copy, value, note) -> None:
    for path, data in ((tmp_path / TOPICS, main), (tmp_path / f"{TOPICS}.bak", copy)):
        if data is not None:
            path.write_bytes(data)
    if value is None:
        with pytest.raises(CorruptData, match=r"topics\.json .*topics\.json\.bak .*restore"):
            read_config(tmp_path, TOPICS, Disk())
        return
    config = read_config(tmp_path, TOPICS, Disk())
    assert config.value == value
    assert (config.note is None) == (note is None)
    assert (note or "") in (config.note or "")
    assert note is None or "topics.json.bak was read" in config.note


def test_a_crash_at_each_step_of_a_write_leaves_the_old_or_the_new_state(tmp_path: Path, monkeypatch) -> None:
    versions = [{"v": number} for number in range(4)]
    stop, ends = 0, []
    while not ends or ends[-1] != "done":
        root = tmp_path / str(stop)
        for value in versions[:2]:
            write_config(root, TOPICS, value, Disk(), release="5.5")
        with monkeypatch.context() as patch:
            syscalls = install(patch, root)
            syscalls.stop_at = stop
            try:
                write_config(root, TOPICS, versions[2], Disk(), release="5.5")
                ends.append("done")
            except Stopped:
                ends.append("stopped")
        found = read_config(root, TOPICS, Disk())
        assert found.note is None, "the main file is whole at every moment"
        assert found.value in versions[1:3]
        spare = decode_loose_json((root / f"{TOPICS}.bak").read_bytes())
        assert spare in versions[:2]
        write_config(root, TOPICS, versions[3], Disk(), release="5.5")
        assert read_config(root, TOPICS, Disk()).value == versions[3]
        stop += 1
    assert ends.count("stopped") >= 8, "every system call of both replacements"


def test_a_broken_file_is_not_written_over_its_copy(tmp_path: Path) -> None:
    (tmp_path / TOPICS).write_bytes(CUT)
    (tmp_path / f"{TOPICS}.bak").write_bytes(OLDER)
    write_config(tmp_path, TOPICS, {"a": 2}, Disk(), release="5.5")
    assert (tmp_path / f"{TOPICS}.bak").read_bytes() == OLDER
    assert read_config(tmp_path, TOPICS, Disk()).value == {"a": 2}


# -- topics --------------------------------------------------------------------------------------------------------


NAMES = st.sampled_from(
    [
        "topicConfigTable",
        "dataVersion",
        "attributes",
        "queue.type",
        "counter",
        "timestamp",
        "readQueueNums",
        "perm",
        "new",
    ]
)


def config_path(root: Path) -> Path:
    return root / "config" / TOPICS


def with_topics(root: Path, change: Callable[[bytes], bytes] = bytes, *, copy: bool = True) -> Path:
    """A store's directory with the golden `topics.json`, changed, and a whole copy beside it."""
    data = (GOLDEN / "local" / "config-json" / "5.5.0" / TOPICS).read_bytes()
    path = config_path(root)
    path.parent.mkdir(parents=True)
    path.write_bytes(change(data))
    if copy:
        path.with_name(f"{TOPICS}.bak").write_bytes(data)
    return root


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def test_a_store_tells_the_topics_that_a_broker_wrote(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(with_topics(tmp_path / "store"))
    batch, plain = store.topic_configs["中文-Batch"], store.topic_configs["TopicA"]
    assert (batch.queue_type, batch.read_queue_count, batch.write_queue_count) == ("BatchCQ", 1, 2)
    assert (batch.perm, batch.is_ordered, batch.attributes["message.type"]) == (4, True, "NORMAL")
    assert (plain.queue_type, plain.read_queue_count, plain.perm) == ("SimpleCQ", 4, 6)
    assert store.recovery.notes == []


def test_a_topics_file_cut_in_half_is_read_from_its_copy_and_the_store_says_so(open_store, tmp_path: Path) -> None:
    store = open_store(with_topics(tmp_path / "store", half))
    assert store.topic_configs["中文-Batch"].queue_type == "BatchCQ"
    assert "topics.json.bak was read" in store.recovery.notes[0]
    store.create_topic("new")
    assert {"new", "TopicA"} <= set(decode_loose_json(config_path(store.root).read_bytes())["topicConfigTable"])


def test_with_both_topics_files_cut_messages_are_put_and_read_but_no_topic_is_created(open_store, tmp_path) -> None:
    root = tmp_path / "store"
    store = open_store(root)
    store.put("orders", b"before")
    store.close()
    with_topics(root, half, copy=False)
    store = open_store(root)
    assert "topics.json.bak" in store.recovery.notes[0]
    store.put("orders", b"after")
    assert [message.body for message in store.queue("orders").read()] == [b"before", b"after"]
    with pytest.raises(CorruptData, match="restore one of them"):
        store.put("never_seen", b"of which type?")
    with pytest.raises(CorruptData, match="restore one of them"):
        store.create_topic("new")


BATCH_ATTRIBUTES = """{
				"queue.type":"BatchCQ"
			}"""


def entry(name: str, queues: int, attributes: str) -> str:
    return f"""{{
			"attributes":{attributes},
			"order":false,
			"perm":6,
			"readQueueNums":{queues},
			"topicFilterType":"SINGLE_TAG",
			"topicName":"{name}",
			"topicSysFlag":0,
			"writeQueueNums":{queues}
		}}"""


@pytest.mark.parametrize("release", ["5.3", "5.5"])
def test_a_created_topic_stands_in_the_file_as_a_broker_would_write_it(open_store, release: str) -> None:
    store = open_store(compatibility=release, clock_ns=lambda: NOW_MS * 1_000_000)
    store.create_topic("A", queues=2)
    config = store.create_topic("B", queues=3, queue_type="BatchCQ")
    assert (config.queue_type, config.write_queue_count) == ("BatchCQ", 3)
    expected = f"""{{
	"dataVersion":{{
		"counter":2,
		"stateVersion":0,
		"timestamp":{NOW_MS}
	}},
	"topicConfigTable":{{
		"A":{entry("A", 2, "{}")},
		"B":{entry("B", 3, BATCH_ATTRIBUTES)}
	}}
}}"""
    assert config_path(store.root).read_text() == expected
    store.close()
    assert open_store().topic_configs["B"] == config


def test_a_topic_that_is_there_gets_more_queues_and_keeps_the_rest(open_store, tmp_path: Path) -> None:
    store = open_store(with_topics(tmp_path / "store"))
    config = store.create_topic("TopicA", queues=8)
    assert (config.read_queue_count, config.write_queue_count) == (8, 8)
    before = config_path(store.root).read_bytes()
    assert store.create_topic("TopicA", queues=8) == config
    assert config_path(store.root).read_bytes() == before, "nothing to change, nothing written"
    stored = decode_loose_json(before)
    assert stored["dataVersion"]["counter"] == 1
    assert stored["topicConfigTable"]["中文-Batch"]["perm"] == 4, "what somebody else wrote stays"


def test_topics_that_cannot_be_are_refused_and_nothing_is_written(open_store) -> None:
    store = open_store()
    store.put("orders", b"")
    store.dispatch()
    for error, name, keywords in (
        (IllegalMessage, "a b", {}),
        (IllegalMessage, "x" * 128, {}),
        (ConfigurationError, "t", {"queues": 0}),
        (ConfigurationError, "t", {"queues": True}),
        (ConfigurationError, "t", {"queue_type": "Rocks"}),
        (ConfigurationError, "orders", {"queue_type": "BatchCQ"}),
    ):
        with pytest.raises(error):
            store.create_topic(name, **keywords)
    assert not config_path(store.root).exists()
    store.close()
    with pytest.raises(StoreReadOnly), stratalog.open(store.root, mode="r") as reading:
        reading.create_topic("t")


def test_wrong_shapes_in_topics_json_are_read_as_defaults(open_store, tmp_path: Path) -> None:
    path = config_path(tmp_path / "store")
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"topicConfigTable":{"a":{"attributes":7,"readQueueNums":"x","perm":true},"b":1},"dataVersion":[]}'
    )
    store = open_store()
    assert store.topic_configs.keys() == {"a"}
    assert store.topic_configs["a"].queue_type == "SimpleCQ"
    store.create_topic("c")
    assert decode_loose_json(path.read_bytes())["topicConfigTable"].keys() == {"a", "b", "c"}


CONTENT = st.recursive(
    st.none() | st.booleans() | st.sampled_from([-1, 7, 2**63 - 1]) | st.just(1.5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(main=CONTENT | st.binary(max_size=40), copy=st.none() | CONTENT | st.binary(max_size=9))
@example(main={"topicConfigTable": {"new": None}}, copy=None)
def test_whatever_stands_in_the_topics_file_is_read_or_told_and_never_lost(main, copy) -> None:
    with scratch_folder() as folder:
        path = config_path(folder)
        path.parent.mkdir()
        for name, content in ((path, main), (path.with_name(f"{TOPICS}.bak"), copy)):
            if content is not None or name is path:
                name.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        topics = Topics(folder, Disk())
        assert all(config.queue_type in ("SimpleCQ", "BatchCQ") for config in topics.configs.values())
        if topics.damage:
            before = path.read_bytes()
            with pytest.raises(CorruptData):
                topics.create("new", queues=1, queue_type="SimpleCQ", now_ms=NOW_MS, release="5.5")
            assert path.read_bytes() == before
            return
        topics.create("new", queues=1, queue_type="SimpleCQ", now_ms=NOW_MS, release="5.5")
        again = Topics(folder, Disk())
        assert again.note is None
        assert again.configs == topics.configs


# -- consumer offsets ----------------------------------------------------------------------------------------------


def test_consumer_offsets_of_a_broker_are_told_by_group_topic_and_queue(tmp_path: Path) -> None:
    root = golden_case("broker").unpack_store(tmp_path)
    with stratalog.open(root, mode="r") as store:
        offsets = store.consumer_offsets()
    assert offsets
    assert all(isinstance(number, int) and offset >= 0 for (_, _, number), offset in offsets.items())
    table = decode_loose_json((root / "config" / CONSUMER_OFFSETS).read_bytes())["offsetTable"]
    assert sum(map(len, table.values())) == len(offsets)


def test_a_store_without_consumers_has_no_consumer_offsets_and_a_wrong_shape_is_told(open_store) -> None:
    store = open_store()
    assert store.consumer_offsets() == {}
    (store.root / "config").mkdir()
    for text in (
        '{"offsetTable":7}',
        '{"offsetTable":{"t@g":[1]}}',
        '{"offsetTable":{"t@g":{"x":1}}}',
        '{"offsetTable":{3:{}}}',
    ):
        (store.root / "config" / CONSUMER_OFFSETS).write_text(text)
        with pytest.raises(CorruptData, match="offsetTable"):
            store.consumer_offsets()
