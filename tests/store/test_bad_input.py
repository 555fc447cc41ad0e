"""Bad input: one clear error that names the place and the next step, and no acknowledged message is lost."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import stratalog
from store.conftest import OpenStore
from store.model import LOG_FILE_SIZE, QUIET, SMALL, bodies, check, index_files, log_files, queue_files
from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, CorruptData, IllegalMessage, NotAStore, StratalogError
from stratalog.layout.message import PROPERTIES_SIZE_MAX, Host
from stratalog.layout.properties import encode_properties
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair

COUNT = 300


def filled(open_store: OpenStore, **given: Any) -> Path:
    """A closed store with several files of each kind."""
    store = open_store(**given)
    for number in range(COUNT):
        store.put("t", b"%06d" % number * 100, queue_id=number % 2, keys=[f"k{number}"], tags="a")
    store.close()
    return store.root


def expected() -> dict[tuple[str, int], list[bytes]]:
    return {("t", n): [b"%06d" % number * 100 for number in range(n, COUNT, 2)] for n in (0, 1)}


def fingerprint(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def refused(root: Path, kind: type[StratalogError], *words: str, **given: Any) -> None:
    """Opening says no, in both modes, in one sentence with the place and these words, and changes no data."""
    before = fingerprint(root) if root.is_dir() else {}
    for mode in ("r", "w"):
        with pytest.raises(kind) as error:
            stratalog.open(root, mode=mode, **(SMALL | QUIET | given))  # type: ignore[arg-type]
        text = str(error.value)
        assert str(root) in text
        for word in words:
            assert word in text, text
    after = fingerprint(root) if root.is_dir() else {}
    marks = {"lock", "abort"}
    assert {name: data for name, data in after.items() if name not in marks} == {
        name: data for name, data in before.items() if name not in marks
    }


# -- directories -----------------------------------------------------------------------------------------------------


def test_an_empty_directory_becomes_a_store(open_store: OpenStore, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAStore, match="holds no message store"):
        stratalog.open(tmp_path / "empty", mode="r")
    open_store(tmp_path / "empty").put("t", b"x")


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    for name in ("photo.jpg", "src"):
        foreign = tmp_path / name.replace(".", "-")
        foreign.mkdir()
        (foreign / name).mkdir() if name == "src" else (foreign / name).write_bytes(b"x")
        refused(foreign, NotAStore)
        with pytest.raises(NotAStore, match="holds other files and no commitlog/; give an empty or new directory"):
            stratalog.open(foreign)


def test_a_file_as_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    refused(tmp_path / "file", NotAStore, "is a file: give the store's directory")
    with pytest.raises(NotAStore, match="file"):
        stratalog.open(tmp_path / "file" / "below")


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index"])
def test_a_file_in_the_place_of_a_directory_is_named(name: str, open_store: OpenStore) -> None:
    root = filled(open_store, checked=False)
    shutil.rmtree(root / name)
    (root / name).write_bytes(b"x")
    for mode in ("r", "w"):
        with pytest.raises(StratalogError) as error:
            stratalog.open(root, mode=mode, **SMALL)  # type: ignore[arg-type]
        assert str(root) in str(error.value)
        assert name in str(error.value)


def test_a_directory_that_cannot_be_written_is_refused_with_its_name() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="stratalog-test-"))
    folder.chmod(0o755)
    with stratalog.open(folder / "store", **SMALL, **QUIET) as store:
        store.put("t", b"one")
    (folder / "store" / "abort").touch()
    with stratalog.open(folder / "store", **SMALL) as store:
        bodies(store)  # the kernels are loaded while they can be
    (folder / "store" / "lock").chmod(0o600)
    try:
        os.seteuid(65534)
        for path in (folder / "store", folder / "new"):
            with pytest.raises(StratalogError, match="Permission denied") as error:
                stratalog.open(path, **SMALL)
            assert str(path) in str(error.value)
            assert "give this user access" in str(error.value)
        with stratalog.open(folder / "store", mode="r", **SMALL) as store:
            assert bodies(store) == {("t", 0): [b"one"]}
    finally:
        os.seteuid(0)
        shutil.rmtree(folder)


GARBAGE: dict[str, Callable[[Path], Any]] = {
    "hidden file in the log": lambda root: (root / "commitlog" / ".DS_Store").write_bytes(b"x"),
    "directory named like a log file": lambda root: (root / "commitlog" / ("9" * 20)).mkdir(),
    "other file in the index": lambda root: (root / "index" / "readme.txt").write_bytes(b"x"),
    "file among the topics": lambda root: (root / "consumequeue" / "note").write_bytes(b"x"),
    "topic that is none": lambda root: (root / "consumequeue" / "a b" / "0").mkdir(parents=True),
    "topic of raw bytes": lambda root: os.makedirs(os.fsencode(root) + b"/consumequeue/\xff\xfe/0"),
    "queue that is no number": lambda root: (root / "consumequeue" / "t" / "x").mkdir(),
    "queue of a digit that is none": lambda root: (root / "consumequeue" / "t" / "²").mkdir(),
    "queue beyond all numbers": lambda root: (root / "consumequeue" / "t" / "99999999999999999999").mkdir(),
    "queue with zeros in front": lambda root: shutil.copytree(
        root / "consumequeue" / "t" / "0", root / "consumequeue" / "t" / "00"
    ),
    "file among a queue's files": lambda root: (root / "consumequeue" / "t" / "0" / "x.bak").write_bytes(b"x"),
    "unfinished files": lambda root: [
        (root / part / "00000000000000000000.tmp").write_bytes(b"x")
        for part in ("commitlog", "index", "consumequeue/t/0")
    ],
    "config of a broker": lambda root: (root / "config").mkdir(),
    "empty file that was to be the next log file": lambda root: (
        root / "commitlog" / f"{len(log_files(root)) * LOG_FILE_SIZE:020d}"
    ).write_bytes(b""),
}


@pytest.mark.parametrize("plant", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_beside_the_stores_files_costs_nothing(plant: Callable[[Path], Any], open_store: OpenStore) -> None:
    root = filled(open_store)
    plant(root)
    for mode in ("r", "w"):
        store = open_store(mode=mode)
        assert bodies(store) == expected()
        check(store)
        store.close()
    store = open_store()
    assert store.put("t", b"after").queue_offset == COUNT // 2


# -- files -----------------------------------------------------------------------------------------------------------


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("size", [1, 50, 1000, 30_000])
@pytest.mark.parametrize("number", [0, 1, -1], ids=["first", "middle", "last"])
def test_a_truncated_log_file_is_refused_with_how_to_mend_it(number: int, size: int, open_store: OpenStore) -> None:
    root = filled(open_store, checked=False)
    path = log_files(root)[number]
    whole = path.read_bytes()
    cut(path, size)
    refused(root, CorruptData, "stratalog repair")
    if number == -1:  # extended with zeros, as by repair: whole records are kept
        copy = root.with_name("copy")
        shutil.copytree(root, copy)
        log_files(copy)[-1].write_bytes(whole[:size].ljust(LOG_FILE_SIZE, b"\0"))
        store = open_store(copy)
        for queue, found in bodies(store).items():
            assert found == expected()[queue][: len(found)]
            assert store.queue(*queue).max_offset == COUNT // 2, "an offset would be given again"
    path.write_bytes(whole)
    assert bodies(open_store()) == expected()


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_the_only_log_file_truncated_at_any_place_is_refused(clean: bool, open_store: OpenStore) -> None:
    store = open_store(checked=False)
    ends = [store.put("t", b"%04d" % number * 20, keys="k").end_offset for number in range(30)]
    store._flush_all()
    store.close()
    if not clean:
        (store.root / "abort").write_text("1")
    path = log_files(store.root)[0]
    whole = path.read_bytes()
    for size in (1, 90, 99, ends[0], ends[0] + 1, ends[10], ends[10] + 4, ends[10] + 95, ends[28], ends[29] - 1):
        cut(path, size)
        with pytest.raises(CorruptData) as error:
            stratalog.open(store.root, max_hash_slot_num=100, max_index_num=400)
        assert str(store.root / "commitlog") in str(error.value)
        assert "stratalog repair" in str(error.value)
        path.write_bytes(whole)
    again = open_store()
    assert len(bodies(again)["t", 0]) == 30


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_a_missing_log_file_is_refused(clean: bool, open_store: OpenStore) -> None:
    root = filled(open_store, checked=False)
    if not clean:
        (root / "abort").write_text("1")
    for number, words in ((1, "missing in the middle"), (-1, "once held messages up to")):
        path = log_files(root)[number]
        path.rename(root.parent / "aside")
        refused(root, CorruptData, words, "estore")
        (root.parent / "aside").rename(path)
    assert bodies(open_store()) == expected()


def test_all_log_files_missing_is_refused(open_store: OpenStore) -> None:
    root = filled(open_store, checked=False)
    (root / "commitlog").rename(root.parent / "aside")
    for _ in range(2):
        refused(root, CorruptData, "restore commitlog/")
        (root / "commitlog").mkdir(exist_ok=True)
    (root / "commitlog").rmdir()
    (root.parent / "aside").rename(root / "commitlog")
    assert bodies(open_store()) == expected()


def test_a_log_file_of_another_size_than_the_setting_names_the_setting(open_store: OpenStore) -> None:
    root = filled(open_store)
    refused(root, ConfigurationError, "65,536 bytes", "mapped_file_size_commit_log", mapped_file_size_commit_log=32768)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("size", [0, 19, 500, 999, 1001, 2000])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_queue_file_of_another_size_is_refused_or_built_again(number: int, size: int, open_store: OpenStore) -> None:
    root = filled(open_store)
    path = queue_files(root, "t", 1)[number]
    data = path.read_bytes()
    path.write_bytes(data[:size].ljust(size, b"\0"))
    if size:
        with pytest.raises(
            CorruptData, match=r"mapped_file_size_consume_queue.*`stratalog repair .*` shows what can be mended"
        ):
            stratalog.open(root, **SMALL)
        repair(plan_repair(root, settings=StoreSettings(**SMALL)))
    assert bodies(open_store()) == expected()


@pytest.mark.parametrize("size", [0, 39, 8420, 8441, 100_000])
def test_index_files_of_another_size_are_named_or_built_again(size: int, open_store: OpenStore) -> None:
    root = filled(open_store)
    for path in index_files(root):
        path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    if size > 8440:  # a shorter one may have been cut
        with pytest.raises(ConfigurationError, match="Give max_hash_slot_num and max_index_num") as error:
            open_store()
        assert str(root / "index") in str(error.value)
        shutil.rmtree(root / "index")
    store = open_store()
    check(store)
    assert bodies(store) == expected()
    assert [message.body[:6] for message in store.query("t", key="k77")] == [b"000077"]


# -- messages --------------------------------------------------------------------------------------------------------

TOPICS = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc",
    "a\0b",
    "tö",
    "名",
    "a b",
    "a\n",
    "x" * 128,
    "%RETRY%" + "x" * 249,
    "a.b",
]


@pytest.mark.parametrize("topic", TOPICS, ids=ascii)
def test_an_illegal_topic_is_refused_and_makes_no_directory(topic: str, open_store: OpenStore) -> None:
    store = open_store()
    before = sorted(store.root.rglob("*"))
    for put in (lambda: store.put(topic, b"x"), lambda: store.put_many(topic, [b"x"]), lambda: store.queue(topic)):
        with pytest.raises(IllegalMessage, match="topic"):
            put()
    assert sorted(store.root.rglob("*")) == before
    store.put("x" * 127, b"x")
    store.put("%RETRY%" + "x" * 248, b"x")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "body over the limit": ({"body": b"x" * 1001}, r"body of 1,001 bytes: the limit \(max_message_size\) is 1,000"),
    "properties over the limit": (
        {"properties": {"p": "x" * 32_766}},
        "properties of 32,769 bytes: the limit is 32,767",
    ),
    "separator in a value": ({"properties": {"p": "a\x01b"}}, "property 'p' holds a separator"),
    "separator in a name": ({"properties": {"p\x02": "a"}}, "separator"),
    "separator in tags": ({"tags": "a\x02"}, "property 'TAGS' holds a separator"),
    "separator in a key": ({"keys": ["a\x01"]}, "property 'KEYS' holds a separator"),
    "empty name": ({"properties": {"": "a"}}, "property name ''"),
    "empty value": ({"properties": {"p": ""}}, "property 'p' is empty"),
    "empty tags": ({"tags": ""}, "property 'TAGS' is empty"),
    "empty unique key": ({"unique_key": ""}, "property 'UNIQ_KEY' is empty"),
    "tags twice": ({"tags": "a", "properties": {"TAGS": "b"}}, "TAGS"),
    "blank in a key of a list": ({"keys": ["a b"]}, "key 'a b' holds a blank"),
    "empty key in a list": ({"keys": ["a", ""]}, "key ''"),
    "no whole number as queue": ({"queue_id": "0"}, "queue id '0'"),
    "truth as queue": ({"queue_id": True}, "queue id True"),
    "half a surrogate pair": ({"properties": {"p": "\ud800"}}, "surrogate"),
    "half a surrogate pair in a key": ({"keys": ["\udfff"]}, "surrogate"),
    "half a surrogate pair in a name": ({"properties": {"\ud800": "p"}}, "surrogate"),
    "nothing as a value": ({"properties": {"p": None}}, "property 'p'"),
    "negative queue": ({"queue_id": -1}, "queue id -1"),
    "queue beyond all numbers": ({"queue_id": 1 << 31}, "queue id 2147483648"),
    "born before all numbers": ({"born_timestamp": -(1 << 63) - 1}, "born_timestamp"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD.keys())
def test_a_message_outside_the_limits_is_refused_and_nothing_is_written(
    given: dict[str, Any], message: str, open_store: OpenStore
) -> None:
    store = open_store(max_message_size=1000)
    store.put("t", b"before", keys="k")
    end = store.log.end_offset
    with pytest.raises(IllegalMessage, match=message):
        store.put("t", **({"body": b""} | given))
    assert store.log.end_offset == end
    assert store.put("t", b"after", keys="k").queue_offset == 1
    assert store.put("t", b"x" * 1000).queue_offset == 2
    assert [message.body for message in store.query("t", key="k")] == [b"before", b"after"]


def test_an_empty_list_of_keys_is_no_key(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"x", keys=[])
    (message,) = store.queue("t").read()
    assert message.keys == []
    assert message.raw_properties == b""


def test_raw_properties_over_the_limit_are_refused(open_store: OpenStore) -> None:
    queue = open_store().queue("t")
    queue.put_raw(b"", b"x" * PROPERTIES_SIZE_MAX)
    for put in (
        lambda text: queue.put_raw(b"", text),
        lambda text: queue.put_record(b"", text),
        lambda text: queue.put_many([b""], text),
    ):
        with pytest.raises(IllegalMessage, match="properties of 32,768"):
            put(b"x" * (PROPERTIES_SIZE_MAX + 1))
    assert queue.max_offset == 1


FIELDS: dict[str, dict[str, Any]] = {
    "flag": {"flag": 1 << 31},
    "sys_flag": {"sys_flag": 1 << 31},
    "reconsume_times": {"reconsume_times": -(1 << 31) - 1},
    "prepared_transaction_offset": {"prepared_transaction_offset": 1 << 63},
    "born_timestamp": {"born_timestamp": 1 << 63},
    "host 31": {"born_host": Host(b"123", 1)},
    "port 65536": {"store_host": Host(b"1234", 65_536)},
    "port -1": {"store_host": Host(b"1" * 16, -1)},
}


@pytest.mark.parametrize(("message", "fields"), FIELDS.items(), ids=FIELDS.keys())
def test_a_field_that_does_not_fit_the_record_is_refused(message: str, fields: Any, open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(IllegalMessage, match=message):
        store.queue("t").put_record(b"x", **fields)
    assert store.log.end_offset == 0


def test_flags_and_times_of_a_list_that_do_not_fit_are_refused(open_store: OpenStore) -> None:
    queue = open_store().queue("t")
    for given in ({"flags": [0, 1 << 31]}, {"born_timestamp": 1 << 63}):
        with pytest.raises(IllegalMessage, match="must fit"):
            queue.put_many([b"a", b"b"], **given)
    assert queue.max_offset == 0


def test_properties_that_end_as_a_torn_record_does_are_refused(open_store: OpenStore) -> None:
    store = open_store()
    queue, text = store.queue("t"), b"a\x01b\x02\0"
    rows = pa.record_batch({"body": [b"", b""], "properties": pa.array([b"", text])})
    for put in (
        lambda: queue.put_raw(b"", text),
        lambda: queue.put_record(b"", text),
        lambda: queue.put_many([b"", b""], [b"", text]),
        lambda: queue.append(rows),
    ):
        with pytest.raises(IllegalMessage, match="zero byte"):
            put()
    assert store.log.end_offset == 0
    store.put("t", b"", properties={"a": "\0"})


def test_a_text_of_keys_is_split_at_blanks_and_a_list_is_joined(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"text", keys="a  b")
    store.put("t", b"list", keys=["b", "c"])
    assert [message.keys for message in store.queue("t").read()] == [["a", "b"], ["b", "c"]]
    assert [message.body for message in store.query("t", key="b")] == [b"text", b"list"]
    with pytest.raises(IllegalMessage, match=r"column 'keys'.* empty"):
        store.queue("t").append(pa.record_batch({"body": [b""], "keys": [["a", ""]]}))


def test_a_key_of_ten_thousand_characters_is_stored_and_found(open_store: OpenStore) -> None:
    store, key = open_store(), "k" * 10_240
    store.put("t", b"x", keys=[key, "other"])
    assert [message.keys for message in store.query("t", key=key)] == [[key, "other"]]
    with pytest.raises(IllegalMessage, match="properties of 32,773 bytes: the limit is 32,767"):
        store.put("t", b"", keys="k" * 32_767)


def test_a_list_with_a_delay_for_all_is_refused_as_a_batch_of_rocketmq(open_store: OpenStore) -> None:
    store = open_store()
    with pytest.raises(IllegalMessage, match="DELAY is 3"):
        store.put_many("t", [b"a", b"b"], encode_properties({"DELAY": "3"}))
    assert store.log.end_offset == 0
    for level in ("0", "-1"):
        store.put_many("t", [b"a"], encode_properties({"DELAY": level}))
    store.put_many("SCHEDULE_TOPIC_XXXX", [b"a"], encode_properties({"DELAY": "3"}), queue_id=2)


def test_a_record_larger_than_a_log_file_is_refused(open_store: OpenStore) -> None:
    store = open_store()
    queue = store.queue("t")
    for put in (
        lambda: queue.put(b"x" * LOG_FILE_SIZE),
        lambda: queue.put_record(b"x" * LOG_FILE_SIZE),
        lambda: queue.put_many([b"x" * LOG_FILE_SIZE]),
        lambda: queue.put(b"x" * (LOG_FILE_SIZE - 200), properties={"p": "x" * 200}),
    ):
        with pytest.raises(IllegalMessage, match=r"65,5(28|36)"):
            put()
    assert store.log.end_offset == 0
    assert store.put("t", b"after").queue_offset == 0


@pytest.mark.parametrize("body", ["text", None, 5, [b"x"]])
def test_a_body_that_is_no_bytes_is_refused_and_harms_nothing(body: Any, open_store: OpenStore) -> None:
    store = open_store()
    for put in (lambda: store.put("t", body), lambda: store.put_many("t", [b"fine", body])):
        with pytest.raises(IllegalMessage, match="give bytes or another bytes-like object"):
            put()
    assert store.log.end_offset == 0
    assert store.put("t", bytearray(b"after")).queue_offset == 0
    assert store.put("t", memoryview(b"more")).queue_offset == 1
    assert bodies(store) == {("t", 0): [b"after", b"more"]}
    assert encode_properties({}) == b""
