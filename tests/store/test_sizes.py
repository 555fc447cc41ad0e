"""A store is opened without naming its sizes, whatever is left of its files; what is guessed is said."""

import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.kinds import KINDS, SIZES, Kind, read_on
from store.model import QUIET, scratch_folder
from store.test_recreated_topics import killed, unseal
from stratalog.config.settings import StoreSettings
from stratalog.errors import ConfigurationError, CorruptData
from stratalog.layout import names
from stratalog.layout.index import file_size
from stratalog.store.disk import PrivateDisk
from stratalog.store.message_store import MessageStore
from stratalog.store.sizes import SMALL_FILES, sized
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_actions import described
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

EXTENDED: dict[str, Any] = {"enable_consume_queue_ext": True}
TINY: dict[str, Any] = {
    "mapped_file_size_commit_log": 50_000,
    "mapped_file_size_consume_queue": 20 * 37,
    "mapper_file_size_batch_consume_queue": 46 * 7,
    "mapped_file_size_consume_queue_ext": 999,
    "max_hash_slot_num": 61,
    "max_index_num": 203,
}
TREES = (names.COMMIT_LOG, names.CONSUME_QUEUE, names.BATCH_CONSUME_QUEUE, names.CONSUME_QUEUE_EXT, names.INDEX)
SHOWN_BY = dict(zip(TINY, (*TREES, names.INDEX), strict=True))


@pytest.fixture(scope="module", params=["tiny", "small", "tiny, one of each"])
def pristine(request: pytest.FixtureRequest) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A store with files of every kind, and its sizes. Many files of each kind, or one."""
    sizes: dict[str, Any] = SMALL_FILES if request.param == "small" else TINY
    count = 5 if "one" in request.param else 120
    with scratch_folder() as folder:
        with stratalog.open(folder / "store", **sizes, **EXTENDED, **QUIET) as store:
            store.create_topic("b", queue_type="BatchCQ")
            for number in range(count):
                store.put("t", b"%d" % number * 300, queue_id=number % 2, tags="x", keys=[f"k{number}", "all"])
                store.queue("b").put_batch([b"%d" % number, b"member"], unique_key=f"u{number}")
        yield folder / "store", sizes


def content(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    return {key: [message.body for message in store.queue(*key).read()] for key in store.queues()}


def sizes_of(settings: StoreSettings) -> dict[str, int]:
    return {name: getattr(settings, name) for name in TINY}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
def test_whatever_kinds_of_files_are_left_a_store_opens_with_its_sizes(
    is_noted: bool, pristine: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    source, sizes = pristine
    with stratalog.open(source, mode="r") as store:
        expected = content(store)
        assert sizes_of(store.settings) == sizes
        assert not store.recovery.notes
    for left in itertools.chain.from_iterable(itertools.combinations(TREES, count) for count in range(1, 6)):
        shutil.rmtree(tmp_path / "s", ignore_errors=True)
        shutil.copytree(source, tmp_path / "s")
        for name in set(TREES) - set(left):
            shutil.rmtree(tmp_path / "s" / name)
        if not is_noted:
            (tmp_path / "s" / names.SIZES).unlink()
        shown = {name: size for name, size in sizes.items() if is_noted or SHOWN_BY[name] in left}
        found = sizes_of(sized(StoreSettings(), tmp_path / "s", PrivateDisk()))
        assert found == dict.fromkeys(sizes) | shown, left
        if names.COMMIT_LOG not in left:
            continue
        try:
            opened = stratalog.open(tmp_path / "s", mode="w" if is_noted else "r", **EXTENDED, **QUIET)
        except CorruptData:
            assert not is_noted
            raise
        with opened as store:
            assert content(store) == expected, left
            guessed, *_ = [note for note in store.recovery.notes if "without a directory" not in note] or [""]
            assert ("mapped_file_size_consume_queue=6000000" in guessed) == (
                "mapped_file_size_consume_queue" not in shown
            )
            assert ("max_index_num=20000000" in guessed) == ("max_index_num" not in shown)
            assert len(store.query("t", key="k3")) == 1


def test_small_files_need_one_word_and_little_room_and_are_remembered(tmp_path: Path) -> None:
    with stratalog.open(tmp_path / "s", small=True) as store:
        assert sizes_of(store.settings) == SMALL_FILES
    with stratalog.open(tmp_path / "s") as store:
        assert sizes_of(store.settings) == SMALL_FILES, "nothing but the note shows them"
        store.put("t", b"one", keys=["k"])
    on_disk = sum(path.stat().st_blocks * 512 for path in (tmp_path / "s").rglob("*"))
    assert on_disk < 6_500_000
    with stratalog.open(tmp_path / "s") as store:
        assert len(store.query("t", key="k")) == 1
        largest = store.put("t", bytes(store.settings.max_message_size))
        assert next(store.queue("t").read(largest.queue_offset)).body == bytes(4 << 20)


def test_small_gives_way_to_settings_and_files(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        store.put("t", b"one", keys=["k"])
    with stratalog.open(tmp_path, small=True) as store:
        assert store.settings.mapped_file_size_commit_log == TINY["mapped_file_size_commit_log"]
    with stratalog.open(tmp_path / "other", small=True, max_index_num=500, max_hash_slot_num=99) as store:
        assert store.settings.max_index_num == 500
        assert store.settings.mapped_file_size_commit_log == SMALL_FILES["mapped_file_size_commit_log"]


@pytest.mark.parametrize(
    "stored", [b"", b"{", b"[]", b'{"max_index_num": "x"}', b'{"max_index_num": -5}', b"\xff" * 99, b'{"a\xff": 1}']
)
def test_a_note_that_cannot_be_read_is_passed_over(stored: bytes, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        store.put("t", b"one", keys=["k"])
    note = tmp_path / names.SIZES
    assert json.loads(note.read_bytes()) == TINY
    note.write_bytes(stored)
    with stratalog.open(tmp_path) as store:
        assert len(store.query("t", key="k")) == 1
        notes = store.recovery.notes
    assert "max_index_num=203" in notes[0], "no other file confirms it"
    assert json.loads(note.read_bytes())["guessed max_index_num"] == 203
    with stratalog.open(tmp_path, **TINY):
        pass
    assert json.loads(note.read_bytes()) == TINY


def test_files_that_were_cut_do_not_hide_the_size_of_the_others(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY, **QUIET) as store:
        for number in range(300):
            store.put("t", b"%d" % number * 200)
    (tmp_path / names.SIZES).unlink()
    for tree, name in ((tmp_path / names.COMMIT_LOG, "commit_log"), (tmp_path / "consumequeue/t/0", "consume_queue")):
        files = sorted(tree.iterdir())
        os.truncate(files[0], 120)
        assert (
            sizes_of(sized(StoreSettings(), tmp_path, PrivateDisk()))[f"mapped_file_size_{name}"]
            == (TINY[f"mapped_file_size_{name}"])
        )
        for other in files[2:]:
            other.unlink()
        files[0].unlink()
        os.truncate(files[1], 120)  # its name tells
        assert (
            sizes_of(sized(StoreSettings(), tmp_path, PrivateDisk()))[f"mapped_file_size_{name}"]
            == (TINY[f"mapped_file_size_{name}"])
        )


def test_an_index_file_that_shows_no_split_is_opened_with_a_likely_one_and_that_is_said(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY, **QUIET) as store:
        store.put("t", b"one", keys=["k"])
    (tmp_path / names.SIZES).unlink()
    [index] = (tmp_path / names.INDEX).iterdir()
    index.write_bytes(bytes(file_size(61, 244)))
    with stratalog.open(tmp_path, **QUIET) as store:
        assert (store.settings.index_slot_count, store.settings.index_item_capacity) == (61, 244)
        assert f"max_hash_slot_num={store.settings.max_hash_slot_num}" in store.recovery.notes[0]
        assert len(store.query("t", key="k")) == 1
    with pytest.raises(ConfigurationError, match="max_hash_slot_num"):
        stratalog.open(tmp_path, max_hash_slot_num=5, max_index_num=7)


@pytest.mark.one_in(576)
@pytest.mark.parametrize("more", [more for more in range(-100, 101) if more])
@pytest.mark.parametrize("split", [(50, 200), (100, 400), (97, 388), (50, 131)], ids=str)
@pytest.mark.parametrize("count", [0, 30])
def test_an_index_file_of_a_wrong_length_tells_a_writer_no_wrong_slots(
    split: tuple[int, int], count: int, more: int, tmp_path: Path
) -> None:
    right = {"max_hash_slot_num": split[0], "max_index_num": split[1]}
    with stratalog.open(tmp_path, **TINY | right, **QUIET) as store:
        for number in range(count):
            store.put("t", b"one", keys=[f"k{number}"])
        store.put("t", b"one", keys=["k"])
    note = {name: size for name, size in TINY.items() if name not in right}
    (tmp_path / names.SIZES).write_text(json.dumps(note))
    (path,) = (tmp_path / names.INDEX).iterdir()
    os.truncate(path, path.stat().st_size + more)
    report = verify(tmp_path)
    shown = sized(StoreSettings(), tmp_path, PrivateDisk())
    if shown.max_hash_slot_num:  # whole items less or more: the file may be one of another capacity
        assert (shown.max_hash_slot_num, shown.max_index_num) == (split[0], split[1] + more // 20)
        assert not more % 20
        assert report.ok
        return
    assert "give max_hash_slot_num and max_index_num" in report.problems[0].next_step
    with stratalog.open(tmp_path, mode="r", **QUIET) as store:
        assert len(store.query("t", key="k")) == 1
    with pytest.raises(ConfigurationError, match="Give max_hash_slot_num and max_index_num"):
        stratalog.open(tmp_path, **QUIET)
    with pytest.raises(CorruptData, match="give max_hash_slot_num and max_index_num"):
        plan_repair(tmp_path)
    assert json.loads((tmp_path / names.SIZES).read_bytes()) == note
    assert repair(plan_repair(tmp_path, settings=StoreSettings.make(TINY | right))).ok
    with stratalog.open(tmp_path, **QUIET) as store:
        assert (store.settings.max_hash_slot_num, store.settings.max_index_num) == split
        assert len(store.query("t", key="k")) == 1


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
def test_the_split_of_an_index_file_is_found_whatever_its_few_items_are(is_noted: bool, tmp_path: Path) -> None:
    """All items of a record have its log offset, the first record's is 0: one item fits several splits by chance."""
    given = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 50, "max_index_num": 100}
    for count in range(1, 60):
        root = tmp_path / str(count)
        with stratalog.open(root, **given, **QUIET) as store:
            for number in range(count):
                store.put("orders", b"", tags="a", keys=[f"k{number}"], unique_key=f"u{count}-{number}")
        if not is_noted:
            (root / names.SIZES).unlink()
        with stratalog.open(root, mode="r") as store:
            assert (store.settings.max_hash_slot_num, store.settings.max_index_num) == (50, 100), count
            assert all(store.query("orders", key=f"k{number}") for number in range(count))
        shutil.rmtree(root)


def test_a_note_of_another_split_wins_only_where_it_makes_the_size_of_a_file(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        store.put("t", b"one", keys=["k"])
    (tmp_path / names.SIZES).write_text(json.dumps(TINY | {"max_hash_slot_num": 60}))
    with stratalog.open(tmp_path, mode="r") as store:
        assert store.settings.max_hash_slot_num == TINY["max_hash_slot_num"]
    (index,) = (tmp_path / names.INDEX).iterdir()
    os.truncate(index, index.stat().st_size - 1)
    found = sizes_of(sized(StoreSettings(), tmp_path, PrivateDisk()))
    assert found["max_hash_slot_num"] == 60, "a file that was cut shows nothing"


@pytest.mark.parametrize("setting", TINY)
def test_a_refused_size_leaves_the_store_as_it_was(
    setting: str, pristine: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """No abort mark, which would make the next opening a recovery."""
    folder, sizes = pristine
    shutil.copytree(folder, tmp_path / "store")

    def content_of(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    before = content_of(tmp_path / "store")
    wrong = {**sizes, **EXTENDED, setting: 20 * 46 * sizes.get(setting, 10_000)}
    with pytest.raises((ConfigurationError, CorruptData)):
        stratalog.open(tmp_path / "store", **wrong)
    assert content_of(tmp_path / "store") == before


@pytest.mark.parametrize("given", [32_768, 8_192, 1 << 30])
def test_repair_refuses_a_log_file_size_that_the_files_belie(given: int, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, mapped_file_size_commit_log=16_384, small=True) as store:
        for number in range(160):
            store.put("t", b"%d" % number * 40)
    with pytest.raises((ConfigurationError, CorruptData), match="16,384 bytes"):
        plan_repair(tmp_path, settings=StoreSettings(mapped_file_size_commit_log=given))
    assert not plan_repair(tmp_path, settings=StoreSettings(mapped_file_size_commit_log=16_384)).actions


@pytest.mark.parametrize("length", [12_000, 16_385])
def test_a_rebuild_that_is_refused_names_the_file_of_the_store(length: int, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, mapped_file_size_commit_log=16_384, small=True) as store:
        for number in range(160):
            store.put("t", b"%d" % number * 40)
    newest = max((tmp_path / names.COMMIT_LOG).iterdir())
    os.truncate(newest, length)
    with pytest.raises(CorruptData, match="stratalog repair") as caught:
        rebuild(tmp_path)
    assert caught.value.path == str(newest)
    assert names.STAGING not in str(caught.value)


@pytest.mark.parametrize("more", [1, -1, 4096, -4096])
@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "crashed"])
def test_a_noted_size_holds_against_the_only_file(more: int, crashed: bool, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        store.put("t", b"one", keys=["k"])
    if crashed:
        (tmp_path / "abort").touch()
    (path,) = (tmp_path / names.COMMIT_LOG).iterdir()
    note = (tmp_path / names.SIZES).read_bytes()
    os.truncate(path, path.stat().st_size + more)
    assert not verify(tmp_path).ok
    for mode in ("r", "w"):
        with pytest.raises(CorruptData, match="the log's files have"):
            stratalog.open(tmp_path, mode=mode)
    assert (tmp_path / names.SIZES).read_bytes() == note
    assert repair(plan_repair(tmp_path)).ok
    with stratalog.open(tmp_path) as store:
        assert [message.body for message in store.queue("t").read()] == [b"one"]


@pytest.mark.parametrize("more", [100, 20, -20, -1320, -1300, 1])
@pytest.mark.parametrize("crashed", [False, True], ids=["closed", "crashed"])
def test_a_noted_size_holds_against_the_only_index_file(more: int, crashed: bool, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        for number in range(30):
            store.put("t", b"one", keys=[f"k{number}"])
    if crashed:
        (tmp_path / "abort").touch()
    (path,) = (tmp_path / names.INDEX).iterdir()
    note = (tmp_path / names.SIZES).read_bytes()
    os.truncate(path, path.stat().st_size + more)
    assert not verify(tmp_path).ok
    with pytest.raises(ConfigurationError, match="the index files have"):
        stratalog.open(tmp_path)
    assert (tmp_path / names.SIZES).read_bytes() == note
    assert repair(plan_repair(tmp_path)).ok
    with stratalog.open(tmp_path, **TINY) as store:
        assert all(store.query("t", key=f"k{number}") for number in range(30))


def test_verify_takes_the_sizes_that_opening_takes(tmp_path: Path) -> None:
    """RocketMQ makes an index file with its first message, with keys or without: it shows its length alone."""
    with stratalog.open(tmp_path, **TINY, **QUIET) as store:
        store.put("t", b"one")
    (tmp_path / names.SIZES).unlink()
    (path,) = (tmp_path / names.INDEX).iterdir()
    path.write_bytes(bytes(39) + b"\1" + bytes(file_size(50, 200) - 40))
    report = verify(tmp_path)
    assert report.ok
    assert "max_hash_slot_num=50" in report.notes[0]
    assert not plan_repair(tmp_path).actions


@pytest.mark.parametrize("setting", ["max_hash_slot_num", "max_index_num"])
def test_an_index_that_was_built_with_a_given_size_is_opened_with_it(setting: str, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        store.put("t", b"one", keys=["k"])
    settings = StoreSettings(**{setting: 2 * TINY[setting]})
    with pytest.raises(ConfigurationError, match=r"remove the directory .*/index: the next opening"):
        rebuild(tmp_path, settings=settings)
    shutil.rmtree(tmp_path / names.INDEX)
    rebuild(tmp_path, settings=settings)
    assert verify(tmp_path).ok
    with stratalog.open(tmp_path) as store:
        assert getattr(store.settings, setting) == 2 * TINY[setting]
        assert store.query("t", key="k")


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
def test_slots_and_items_that_make_the_same_size_are_told_apart(is_noted: bool, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        for number in range(30):
            store.put("t", b"one", keys=[f"k{number}"])
    if not is_noted:
        (tmp_path / names.SIZES).unlink()
    wrong: dict[str, Any] = {"max_hash_slot_num": 61 + 5, "max_index_num": 203 - 1}
    assert file_size(*wrong.values()) == file_size(61, 203)
    looks: tuple[Callable[[], Any], ...] = (
        lambda: stratalog.open(tmp_path, **wrong),
        lambda: stratalog.open(tmp_path, mode="r", **wrong),
        lambda: verify(tmp_path, settings=StoreSettings(**wrong)),
        lambda: rebuild(tmp_path, settings=StoreSettings(**wrong)),
    )
    for look in looks:
        with pytest.raises(ConfigurationError, match="give max_hash_slot_num=61 and max_index_num=203"):
            look()


def test_files_of_the_default_size_are_not_taken_for_cut_ones(tmp_path: Path) -> None:
    """Nothing else tells: each queue has one file."""
    with stratalog.open(
        tmp_path, mapped_file_size_commit_log=1 << 20, max_hash_slot_num=100, max_index_num=400
    ) as store:
        store.put("t", b"one")
    (tmp_path / names.SIZES).unlink()
    with pytest.raises(ConfigurationError, match="consumequeue have 6,000,000 bytes, not 12,000,000"):
        rebuild(tmp_path, settings=StoreSettings(mapped_file_size_consume_queue=12_000_000))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 150])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_verify_and_repair_refuse_sizes_that_are_not_those_of_the_files(kind: Kind, count: int, tmp_path: Path) -> None:
    """One file of a kind is enough, as the last writer noted its size."""
    root = tmp_path / "store"
    kind.made(root, count=count)
    trees = {
        "mapped_file_size_commit_log": "commitlog",
        "mapped_file_size_consume_queue": "consumequeue",
        "mapper_file_size_batch_consume_queue": "batchconsumequeue",
        "mapped_file_size_consume_queue_ext": "consumequeue_ext",
    }
    for name, tree in trees.items():
        has_files = any(path.is_file() for path in (root / tree).rglob("*"))
        right = SIZES[name]
        for size in (right * 2, right * 3):
            settings = StoreSettings.make({name: size})
            for look in (verify, plan_repair):
                if not has_files:
                    assert verify(root, settings=settings).ok
                    continue
                with pytest.raises(ConfigurationError, match=rf"{tree}.* have {right:,} bytes, not {size:,}.*{name}"):
                    look(root, settings=settings)
        assert verify(root, settings=StoreSettings.make({name: right})).ok
    rounded = {"mapped_file_size_consume_queue": SIZES["mapped_file_size_consume_queue"] - 5}  # up to whole units
    assert verify(root, settings=StoreSettings.make(rounded)).ok


@pytest.mark.one_in(54)
@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("fault", ["renamed", "added", "added far off", *(f"cut to {size}" for size in (1, 46))])
def test_a_size_is_taken_only_if_a_file_has_it_and_the_setting_can(
    fault: str, name: str, is_noted: bool, pristine: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    root, (source, sizes) = tmp_path / "store", pristine
    shutil.copytree(source, root)
    if not is_noted:
        (root / names.SIZES).unlink()
    files = sorted(path for path in (root / SHOWN_BY[name]).rglob("*") if path.is_file())
    if fault == "renamed":
        files[-1].rename(files[-1].with_name(str(int(files[-1].name) + 1).zfill(len(files[-1].name))))
    elif fault.startswith("added"):
        start = "1" if fault == "added" else "99999999"
        files[0].with_name(start.zfill(len(files[0].name))).write_bytes(b"x")
    else:
        for path in files:
            os.truncate(path, int(fault.split()[-1]))
    found = {name: size for name, size in sizes_of(sized(StoreSettings(), root, PrivateDisk())).items() if size}
    StoreSettings.make(found)
    if fault in ("renamed", "added") or (is_noted and "cut" not in fault):
        assert {name: sizes[name] for name in found} == found
    if SHOWN_BY[name] == names.INDEX and "cut" in fault and not is_noted:
        with pytest.raises(CorruptData, match="give max_hash_slot_num and max_index_num"):
            plan_repair(root)
    elif SHOWN_BY[name] != names.COMMIT_LOG:
        assert repair(plan_repair(root)).ok


@pytest.mark.parametrize("more", [4096, TINY["mapped_file_size_commit_log"], 3 * TINY["mapped_file_size_commit_log"]])
@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("tool", ["rebuild", "repair"])
def test_the_only_log_file_is_cut_to_the_noted_size_however_long_it_is(
    tool: str, is_given: bool, more: int, tmp_path: Path
) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        for number in range(20):
            store.put("t", b"%d" % number)
    os.truncate(tmp_path / names.COMMIT_LOG / names.offset_name(0), TINY["mapped_file_size_commit_log"] + more)
    settings = StoreSettings(**TINY) if is_given else StoreSettings()
    if tool == "repair":
        assert repair(plan_repair(tmp_path, settings=settings)).ok
    else:
        with contextlib.suppress(CorruptData):  # it changes no file of the log
            rebuild(tmp_path, settings=settings)
        repair(plan_repair(tmp_path, settings=settings))
    assert verify(tmp_path, settings=StoreSettings(**TINY)).ok
    with pytest.raises(ConfigurationError, match="mapped_file_size_commit_log"):
        verify(tmp_path, settings=StoreSettings(mapped_file_size_commit_log=TINY["mapped_file_size_commit_log"] + more))
    with stratalog.open(tmp_path) as store:
        assert len(list(store.queue("t").read())) == 20


UNITS = dict(zip(TREES, (1, 20, 46, 40, 20), strict=True))
"""Bytes that a file is cut by: then it looks like one of another size."""
RIGHT: dict[str, Any] = TINY | EXTENDED | QUIET


def steps_of(text: str, root: Path) -> dict[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """What a message says to do, by its name: each does it and returns the settings to go on with."""
    steps: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}

    def repaired(arguments: str, given: dict[str, Any]) -> dict[str, Any]:
        taken = given | {name: int(size) for name, size in re.findall(r"--set=(\w+)=(\d+)", arguments)}
        assert repair(plan_repair(root, settings=StoreSettings.make(taken))).ok
        return taken

    for arguments in re.findall("`stratalog repair ([^`]*)`", text):
        steps["repair"] = partial(repaired, arguments)
    if f"remove the directory {root / names.INDEX}" in text:
        steps["remove index"] = lambda given: shutil.rmtree(root / names.INDEX) or given
    if f"{root / names.SIZES}" in text and "wrong, remove it" in text:
        steps["remove note"] = lambda given: (root / names.SIZES).unlink() or given
    if re.search(r"[gG]ive (mapp|max_hash)", text):
        steps["give right"] = lambda given: given | TINY
    elif "give that as" in text or "give max_index_num" in text:
        steps["leave out"] = lambda given: {name: value for name, value in given.items() if name not in TINY}
    return steps


def assert_it_opens(
    root: Path, given: dict[str, Any], expected: Any, *, refused: tuple[str, ...] = (), but: tuple[str, ...] = ()
) -> None:
    """With these settings, or after each single thing that the error says, which may need another one."""
    try:
        with stratalog.open(root, **given) as store:
            assert content(store) == expected, refused
            assert len(store.query("t", key="k3")) == 1, refused
        assert verify(root, settings=StoreSettings.make(given)).ok, refused
    except (ConfigurationError, CorruptData) as error:
        text = str(error)
        assert str(root) in text
        assert len(refused) < 4, (*refused, text)
        but = (*but, *(["give right"] if given.items() >= TINY.items() else []))
        steps = {name: step for name, step in steps_of(text, root).items() if name not in but}
        assert steps, (*refused, text)
        aside = root.with_name(f"aside {len(refused)}")
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(root, aside)
        for name, step in steps.items():
            shutil.rmtree(root)
            shutil.copytree(aside, root)
            assert_it_opens(root, step(given), expected, refused=(*refused, text, name), but=but)


def looked_at(root: Path, how: str, given: dict[str, Any]) -> None:
    """An opening, or a tool, that may be refused."""
    with contextlib.suppress(ConfigurationError, CorruptData):
        if how in ("r", "w"):
            with stratalog.open(root, mode=how, **given) as store:  # type: ignore[arg-type]
                _ = content(store)
        elif how == "verify":
            verify(root, settings=StoreSettings.make(given))
        elif how == "repair":
            repair(plan_repair(root, settings=StoreSettings.make(given)))
        elif how == "rebuild":
            rebuild(root, settings=StoreSettings.make(given))


def cut(files: list[Path], size: int) -> bool:
    """Cut bytes off, if they are zeros: no message is lost."""
    for path in files:
        stored = path.read_bytes()
        if len(stored) <= size or (any(stored[-size:]) and path.parent.name == names.COMMIT_LOG):
            return False
        os.truncate(path, len(stored) - size)
    return True


@pytest.mark.one_in(2160)
@pytest.mark.parametrize("pristine", ["tiny", "tiny, one of each"], indirect=True)
@pytest.mark.parametrize("given", ["none", "right", "wrong"])
@pytest.mark.parametrize("how", ["r", "w", "verify", "repair", "rebuild", "none"])
@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("units", [1, 3, 50, 1_000])
@pytest.mark.parametrize("which", ["newest", "all"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("stop", ["closed", "killed"])
def test_right_sizes_open_a_store_of_which_a_file_was_cut_whatever_an_earlier_opening_took(
    stop: str, tree: str, which: str, units: int, is_noted: bool, how: str, given: str,
    pristine: tuple[Path, dict[str, Any]], tmp_path: Path,
) -> None:  # fmt: skip
    source, _ = pristine
    with stratalog.open(source, mode="r") as store:
        expected = content(store)
    root = tmp_path / "store"
    shutil.copytree(source, root)
    files = sorted(path for path in (root / tree).rglob("*") if path.is_file())
    if not cut(files[-1:] if which == "newest" else files, units * UNITS[tree]):
        return
    if stop == "killed":
        (root / "abort").touch()
    if not is_noted:
        (root / names.SIZES).unlink()
    wrong = {name: size * 46 * 2 for name, size in TINY.items() if SHOWN_BY[name] == tree}
    looked_at(root, how, EXTENDED | QUIET | {"none": {}, "right": TINY, "wrong": TINY | wrong}[given])
    shutil.copytree(root, tmp_path / "also")
    assert_it_opens(root, RIGHT, expected, but=("remove note",))
    shutil.rmtree(root)
    (tmp_path / "also").rename(root)
    assert_it_opens(root, EXTENDED | QUIET, expected, but=("remove note",))


@pytest.mark.one_in(810)
@pytest.mark.parametrize("pristine", ["tiny", "tiny, one of each"], indirect=True)
@pytest.mark.parametrize("given", ["none", "right", "noted"])
@pytest.mark.parametrize("how", ["r", "w", "verify", "repair", "rebuild", "none"])
@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 2, 10])
@pytest.mark.parametrize("setting", TINY)
@pytest.mark.parametrize("stop", ["closed", "killed"])
def test_a_wrong_note_keeps_no_right_size_from_opening_and_errors_name_it(
    stop: str, setting: str, factor: float, how: str, given: str, pristine: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    source, _ = pristine
    with stratalog.open(source, mode="r") as store:
        expected = content(store)
    root, unit = tmp_path / "store", {TREES[1]: 20, TREES[2]: 46}.get(SHOWN_BY[setting], 1)
    shutil.copytree(source, root)
    if stop == "killed":
        (root / "abort").touch()
    wrong = {setting: int(TINY[setting] * factor) // unit * unit}
    note = root / names.SIZES
    note.write_text(json.dumps(TINY | wrong))
    if how == "none":
        with stratalog.open(root, **RIGHT) as store:
            assert content(store) == expected
        assert json.loads(note.read_bytes()) == TINY
        note.write_text(json.dumps(TINY | wrong))
    else:
        looked_at(root, how, EXTENDED | QUIET | {"none": {}, "right": TINY, "noted": TINY | wrong}[given])
    if how in ("r", "verify", "none"):
        report = verify(root)
        assert report.ok or any(problem.path == str(note) for problem in report.problems)
        if not report.ok:
            with pytest.raises((ConfigurationError, CorruptData), match=str(note)):
                stratalog.open(root, **EXTENDED, **QUIET)
        note.write_text(json.dumps(TINY | wrong))
    shutil.copytree(root, tmp_path / "also")
    assert_it_opens(root, RIGHT, expected)
    shutil.rmtree(root)
    (tmp_path / "also").rename(root)
    assert_it_opens(root, EXTENDED | QUIET, expected)


def test_a_size_that_one_index_file_alone_shows_is_said_and_refuses_no_other_one(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        store.put("t", b"one", keys=["k"])
    (tmp_path / names.SIZES).unlink()
    (index,) = (tmp_path / names.INDEX).iterdir()
    os.truncate(index, file_size(61, 150))
    for _ in range(2):
        with stratalog.open(tmp_path) as store:
            assert store.settings.max_index_num == 150
            assert "max_index_num=150" in store.recovery.notes[0]
    rebuild(tmp_path)
    with stratalog.open(tmp_path, **TINY) as store:
        assert len(store.query("t", key="k")) == 1
    assert json.loads((tmp_path / names.SIZES).read_bytes()) == TINY
    (index,) = (tmp_path / names.INDEX).iterdir()
    assert index.stat().st_size == file_size(61, 203)


STOPS: dict[str, Callable[[Path], object]] = {
    "closed": lambda root: None,
    "closed by RocketMQ": unseal,
    "killed": lambda root: (root / names.ABORT).touch(),
    "killed by RocketMQ": killed,
}


@pytest.mark.one_in(144)
@pytest.mark.parametrize("how", ["w", "verify", "repair", "rebuild"])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("lost", [TREES[1:2], TREES[2:3], TREES[3:4], TREES[1:4], TREES[1:]], ids="+".join)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_queue_files_that_were_lost_and_made_with_a_guessed_size_get_the_right_one_by_the_step_that_is_named(
    kind: Kind, lost: tuple[str, ...], stop: str, how: str, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    expected = kind.made(root, count=9).queues
    STOPS[stop](root)
    (root / names.SIZES).unlink()
    for tree in lost:
        shutil.rmtree(root / tree, ignore_errors=True)
    with stratalog.open(root, **kind.settings, **QUIET):
        pass
    given = {**SIZES, **kind.settings}
    for away in range(6):
        try:
            if how != "w":
                {"verify": verify, "repair": plan_repair, "rebuild": rebuild}[how](
                    root, settings=StoreSettings.make(given)
                )
            with kind.open(root) as store:
                assert {key: read_on(store.queue(*key))[0] for key in kind.queues} == expected
            break
        except ConfigurationError as error:
            steps = re.findall(r"(?:move|remove the directory) (\S+?)(?: away)?: [^:]*? builds", str(error))
            shutil.move(steps[0], tmp_path / f"away {away}")
    else:
        pytest.fail("the steps lead nowhere")
    assert verify(root, settings=StoreSettings.make(given)).ok
    assert {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*")} <= {160}


@pytest.mark.parametrize("given", [{}, {"mapped_file_size_commit_log": 500_000}])
def test_log_files_that_follow_one_another_are_not_mended_to_a_wrong_note(
    given: dict[str, int], tmp_path: Path
) -> None:
    """Those that begin elsewhere would be moved out of the log."""
    with stratalog.open(tmp_path, **TINY) as store:
        for number in range(300):
            store.put("t", b"%d" % number * 200)
    (tmp_path / names.SIZES).write_text(json.dumps(TINY | {"mapped_file_size_commit_log": 500_000}))
    if given:
        for look in (verify, plan_repair, rebuild):
            with pytest.raises(ConfigurationError, match="have 50,000 bytes, not 500,000"):
                look(tmp_path, settings=StoreSettings.make(given))
    else:
        assert not plan_repair(tmp_path).actions


def test_repair_cuts_no_messages_off_because_a_note_says_so(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        for number in range(50):
            store.put("t", b"%d" % number * 200, keys=[f"k{number}"])
    note = tmp_path / names.SIZES
    note.write_text(json.dumps(TINY | {"mapped_file_size_commit_log": 10_000}))
    with pytest.raises(CorruptData, match=f"give mapped_file_size_commit_log, or remove {note}"):
        plan_repair(tmp_path)
    note.unlink()
    assert repair(plan_repair(tmp_path)).ok
    with stratalog.open(tmp_path) as store:
        assert len(list(store.queue("t").read())) == 50


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "zeros after it": lambda data: data + bytes(100),
    "zeros over it": lambda data: bytes(len(data)),
    "zeros over its end": lambda data: data[:9] + bytes(len(data) - 9),
    "cut": lambda data: data[:-1],
    "empty": lambda data: b"",
    "spaces": lambda data: b"  ",
    "a list": lambda data: b"[1]",
    "text for a number": lambda data: b'{"mapped_file_size_commit_log":"50000"}',
    "no setting": lambda data: b'{"mapped_file_size_commit_logs":50000}',
    "no size": lambda data: b'{"mapped_file_size_commit_log":-1}',
    "no UTF-8": lambda data: b'{"mapped_file_size_commit_l\xff":50000}',
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("road", ["repair", "open", "rebuild"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_note_of_sizes_is_reported_and_set_aside(damage: str, road: str, tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **TINY) as store:
        store.put("t", b"a", tags="b")
    path = tmp_path / names.SIZES
    damaged = DAMAGES[damage](path.read_bytes())
    path.write_bytes(damaged)
    (problem,) = verify(tmp_path).problems
    assert (problem.part, problem.path) == ("config", str(path))
    assert "set it aside" in problem.next_step
    if road == "open":
        with stratalog.open(tmp_path, **TINY):
            pass
    elif road == "rebuild":
        rebuild(tmp_path, settings=StoreSettings.make(TINY))
    else:
        (action,) = (plan := plan_repair(tmp_path)).actions
        assert described(action).startswith(f"set {names.SIZES} aside")
        assert "lost: the sizes that no file shows" in described(action)
        assert repair(plan).ok
        assert (tmp_path / names.QUARANTINE / names.SIZES).read_bytes() == damaged
    assert verify(tmp_path).ok
    assert not plan_repair(tmp_path).actions
    with stratalog.open(tmp_path, **TINY) as store:
        assert [message.body for message in store.queue("t").read()] == [b"a"]
