"""Opening and closing: lock, abort mark, checkpoint, settings, releases."""

import asyncio
import contextlib
import errno
import gc
import os
import shutil
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratalog
from store.conftest import OpenStore
from store.kinds import KINDS, Content, Kind
from store.model import QUIET, SMALL, Clock, bodies, check, index_files, log_files
from stratalog.config.settings import StoreSettings
from stratalog.errors import (
    ConfigurationError,
    NotAStore,
    StoreClosed,
    StoreLocked,
    StoreReadOnly,
    StoreUnavailable,
    StratalogError,
)
from stratalog.layout.checkpoint import CHECKPOINT, FILE_SIZE, SEAL_POSITION, SIZE_5_3
from stratalog.layout.names import offset_name
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk
from stratalog.tools.map import map_store
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

OTHER_PROCESS = """
import sys, stratalog
from stratalog.errors import StratalogError
try:
    with stratalog.open(sys.argv[1], mode=sys.argv[2]) as store:
        print([message.body.decode() for message in store.queue("t").read()])
except StratalogError as error:
    print(type(error).__name__, error)
"""


def in_another_process(root: Path, mode: str) -> str:
    command = [sys.executable, "-c", OTHER_PROCESS, str(root), mode]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def fingerprint(root: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


# -- lock ------------------------------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_a_reader_is_not(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")
    refused = in_another_process(store.root, "w")
    assert refused.startswith("StoreLocked")
    assert "another process" in refused
    assert str(store.root / "lock") in refused
    assert "can be read meanwhile" in refused
    assert in_another_process(store.root, "r") == "['one']\n"
    store.put("t", b"two")
    assert in_another_process(store.root, "w").startswith("StoreLocked"), "a reader's coming and going freed the lock"
    store.close()
    assert in_another_process(store.root, "w") == "['one', 'two']\n"


def test_the_same_process_cannot_open_a_store_twice_for_writing(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    (tmp_path / "link").symlink_to(store.root)
    for path in (store.root, tmp_path / "link", tmp_path / "x" / ".." / "store"):
        with pytest.raises(StoreLocked, match=r"already open for writing in this process: .* close it \(again"):
            stratalog.open(path, **SMALL)
        gc.collect()  # of the refused one nothing is left that could change what the next is told
    store.close()
    open_store().put("t", b"after")


def test_the_lock_is_free_after_opening_has_failed(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")
    store.close()
    with pytest.raises(stratalog.errors.StratalogError):
        open_store(checked=False, mapped_file_size_commit_log=128 * 1024)
    assert bodies(open_store()) == {("t", 0): [b"one"]}


# -- abort mark, checkpoint ------------------------------------------------------------------------------------------


def test_the_lock_is_free_after_a_log_file_could_not_be_removed(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is closed before that, and once more with the store."""
    with open_store() as store:
        store.put("t", b"", keys="k")
    (file,) = log_files(store.root)
    file.with_name(offset_name(file.stat().st_size)).write_bytes(bytes(file.stat().st_size))

    def refused(disk: Disk, path: Path) -> None:
        raise OSError(errno.EIO, f"{path.name} stays")

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "remove", refused)
        with pytest.raises(StoreUnavailable, match="stays"):
            open_store()
    with open_store() as store:
        assert [message.keys for message in store.query("t", key="k")] == [["k"]]


def test_the_abort_mark_stands_while_the_store_is_open_and_names_the_process(open_store: OpenStore) -> None:
    store = open_store()
    assert (store.root / "abort").read_text() == f"stratalog {os.getpid()}"
    assert store.recovery.clean
    store.close()
    assert not (store.root / "abort").exists()
    (store.root / "abort").write_text("1")
    assert not open_store().recovery.clean


def test_the_abort_mark_and_the_checkpoint_are_written_when_an_exception_ends_the_block(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one")
    with pytest.raises(ZeroDivisionError), store:
        raise ZeroDivisionError
    assert not (store.root / "abort").exists()
    assert open_store().recovery.clean


def test_a_5_3_checkpoint_vouches_for_no_millisecond_that_is_not_over(open_store: OpenStore) -> None:
    """RocketMQ 5.5, for which it names no log offset, begins with the newest log file whose first record has its time
    or an earlier one."""
    clock = Clock()
    store = open_store(clock_ns=clock, compatibility="5.3")
    store.put("t", b"one")
    store._flush_all()
    checkpoint = Checkpoint.load(store.root, Disk())
    assert checkpoint.logics_commit_log_offset == 0
    assert checkpoint.logics_msg_timestamp < clock.now_ms == checkpoint.physic_msg_timestamp


def test_the_checkpoint_names_the_last_record_that_is_flushed_and_dispatched(open_store: OpenStore) -> None:
    clock = Clock()
    store = open_store(clock_ns=clock)
    store.put("t", b"one", keys="k")
    clock.now_ms += 5
    last = store.put("t", b"two")
    store._flush_all()
    page = (store.root / "checkpoint").read_bytes()
    assert len(page) == FILE_SIZE
    checkpoint = Checkpoint.load(store.root, Disk())
    assert checkpoint.logics_commit_log_offset == checkpoint.confirm_offset == last.commit_log_offset
    assert checkpoint.physic_msg_timestamp == checkpoint.logics_msg_timestamp == clock.now_ms
    assert checkpoint.index_msg_timestamp == 0, "no index file is full yet"
    assert checkpoint.seal
    assert checkpoint.seal.log_end_offset == last.end_offset
    store.put("t", b"three")
    assert (store.root / "checkpoint").read_bytes() == page, "a put alone writes no checkpoint"


def test_the_background_threads_flush_dispatch_and_write_the_checkpoint(open_store: OpenStore) -> None:
    store = open_store(flush_interval_commit_log=5, flush_interval_consume_queue=5)
    last = store.put("t", b"one")
    for _ in range(1000):
        seal = Checkpoint.load(store.root, Disk()).seal
        if store.durable_offset == last.end_offset and seal and seal.log_end_offset == last.end_offset:
            break
        time.sleep(0.01)
    else:
        pytest.fail("ten seconds and no checkpoint")


# -- releases --------------------------------------------------------------------------------------------------------


def test_compatibility_5_3_indexes_no_tags_and_leaves_the_checkpoint_at_40_bytes(
    open_store: OpenStore, tmp_path: Path
) -> None:
    counts = {}
    for release in ("5.3", "5.5"):
        store = open_store(tmp_path / release, compatibility=release)
        for number in range(20):
            store.put("t", b"x", tags="a", keys=f"k{number}")
        store.close()
        again = open_store(store.root, compatibility=release, mode="r")
        assert again.index
        counts[release] = again.index.item_count
        page = (store.root / "checkpoint").read_bytes()
        assert any(page[SIZE_5_3 : CHECKPOINT.size]) == (release == "5.5")
        assert not any(page[CHECKPOINT.size : SEAL_POSITION])
        assert len(again.query("t", key="k3")) == 1
    assert counts == {"5.3": 20, "5.5": 40}


def test_a_store_of_5_3_is_recovered_after_a_crash(open_store: OpenStore) -> None:
    store = open_store(compatibility="5.3")
    expected = [b"%d" % number * 100 for number in range(500)]
    for number, body in enumerate(expected):
        store.put("t", body, keys=f"k{number}", tags="a")
        if number == 300:
            store._flush_all()
    store.close()
    (store.root / "abort").write_text("1")
    again = open_store(compatibility="5.3")
    check(again)
    assert bodies(again) == {("t", 0): expected}


# -- read-only -------------------------------------------------------------------------------------------------------


def test_reading_touches_no_byte_even_where_recovery_has_much_to_do(open_store: OpenStore) -> None:
    store = open_store()
    for number in range(400):
        store.put("t", b"%d" % number * 60, keys=[f"k{number}"], tags="a")
    store.close()
    (store.root / "abort").write_text("1")
    (store.root / "checkpoint").unlink()
    for path in index_files(store.root):
        path.unlink()
    before = fingerprint(store.root)
    with stratalog.open(store.root, mode="r", **SMALL) as reader:
        assert len(list(reader.queue("t").read())) == 400
        assert len(reader.query("t", key="k77")) == 1
        check(reader)
        with pytest.raises(StoreReadOnly, match="reading only; open it with mode='w'"):
            reader.put("t", b"x")
        with pytest.raises(StoreReadOnly, match="reading only"):
            reader.put_many("t", [b"x"])
    with pytest.raises(StoreClosed, match="is closed; open it again"):
        reader.put("t", b"x")
    assert fingerprint(store.root) == before


def test_a_new_store_can_be_read_before_its_first_message(open_store: OpenStore) -> None:
    store = open_store()
    with stratalog.open(store.root, mode="r", **SMALL) as reader:
        assert reader.queues() == []


# -- settings --------------------------------------------------------------------------------------------------------


def test_file_sizes_are_taken_from_the_files_that_are_there(open_store: OpenStore) -> None:
    store = open_store()
    store.put("t", b"one", keys="k")
    store.close()
    again = stratalog.open(store.root, max_hash_slot_num=100, max_index_num=400, **QUIET)
    assert again.settings.commit_log_file_size == SMALL["mapped_file_size_commit_log"]
    assert again.settings.consume_queue_file_size == SMALL["mapped_file_size_consume_queue"]
    again.put("t", b"two")
    again.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fluch": "sync"}, "unknown setting 'fluch'; known are .*flush"),
        ({"flush": "SYNC"}, "flush='SYNC': give 'async' or 'sync'"),
        ({"compatibility": "4.9"}, "compatibility='4.9'"),
        ({"mapped_file_size_commit_log": 10}, "mapped_file_size_commit_log=10: give a whole number of at least 99"),
        ({"mapped_file_size_commit_log": "1g"}, "mapped_file_size_commit_log='1g'"),
        ({"mapped_file_size_commit_log": 1 << 40}, "mapped_file_size_commit_log=1099511627776"),
        ({"max_index_num": 1}, "max_index_num=1"),
        ({"max_index_num": 1 << 31}, "max_index_num=2147483648"),
        ({"max_message_size": True}, "max_message_size=True"),
        ({"message_index_enable": "yes"}, "message_index_enable='yes'"),
        ({"store_host": "localhost"}, "store_host='localhost'"),
        ({"store_host": "1.2.3.4:99999999999"}, "store_host"),
        ({"store_host": 5}, "store_host=5"),
        ({"message_delay_level": "1s 5"}, "message_delay_level='1s 5'"),
        ({"message_delay_level": None}, "message_delay_level=None"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named_and_nothing_is_made(given: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stratalog.open(tmp_path / "store", **given)
    assert not (tmp_path / "store").exists()


def test_a_wrong_mode_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mode='a': give 'r' or 'w'"):
        stratalog.open(tmp_path / "store", mode="a")  # type: ignore[arg-type]


def test_a_broker_conf_is_read_with_its_own_key_names(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "# a comment\n! another\n\nbrokerName = b-1\nflushDiskType=SYNC_FLUSH\nmappedFileSizeCommitLog = 65536\n"
        "maxMessageSize=1000\nmessageIndexEnable=false\nmessageDelayLevel=1s 5s\nlistenPort=10911\nnamesrvAddr=a=b\n"
    )
    settings = StoreSettings.from_broker_conf(conf)
    assert settings == StoreSettings(
        flush="sync", mapped_file_size_commit_log=65536, max_message_size=1000, message_index_enable=False,
        message_delay_level="1s 5s",
    )  # fmt: skip
    with stratalog.open(tmp_path / "store", settings=settings) as store:
        assert store.put("t", b"x").end_offset == store.durable_offset


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"flushDiskType=NEVER\n", "broker.conf line 1: flushDiskType=NEVER: give ASYNC_FLUSH or SYNC_FLUSH"),
        (b"\nmaxMessageSize\n", "broker.conf line 2: 'maxMessageSize' is no key=value"),
        (b"maxMessageSize=much\n", "broker.conf.*max_message_size='much'"),
        (b"messageDelayLevel=1s\x0012\n", "broker.conf line 1: value holds control characters"),
        (b"\xff\xfe\n", "broker.conf is no UTF-8 text"),
        (None, "broker.conf cannot be read"),
    ],
)
def test_a_broker_conf_that_is_wrong_is_named_with_the_line(text: bytes | None, message: str, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    if text is not None:
        conf.write_bytes(text)
    with pytest.raises(ConfigurationError, match=message) as refused:
        StoreSettings.from_broker_conf(conf)
    assert str(conf) in str(refused.value)


def test_a_missing_path_is_created_for_writing_and_refused_for_reading(open_store: OpenStore, tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="holds no message store"):
        stratalog.open(tmp_path / "deep" / "er" / "store", mode="r")
    assert not (tmp_path / "deep").exists()
    open_store(tmp_path / "deep" / "er" / "store").put("t", b"x")


def test_a_released_file_keeps_its_bytes_and_has_no_descriptor(tmp_path: Path) -> None:
    path, disk = tmp_path / "file", Disk()
    disk.allocate(path, 8192)
    before = len(os.listdir("/proc/self/fd"))
    file = disk.map(path)
    file.map[:4] = b"here"
    assert len(os.listdir("/proc/self/fd")) == before + 1
    file.sync()
    file.release()
    file.release()
    assert len(os.listdir("/proc/self/fd")) == before
    file.map[4:8] = b"also"
    assert path.read_bytes()[:8] == b"herealso"
    file.sync()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before


# -- async with ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", ["well", "by an error", "by cancelling"])
def test_async_with_releases_the_lock_however_the_block_ends(ends: str, tmp_path: Path) -> None:
    receipts: list[int] = []

    async def use() -> None:
        async with stratalog.open(tmp_path / "s", flush="sync", **SMALL) as store:
            puts = [asyncio.ensure_future(store.put_async("t", b"%d" % number)) for number in range(50)]
            await asyncio.gather(*puts)
            receipts.extend(put.result().queue_offset for put in puts)
            if ends == "by an error":
                raise KeyError("ours")
            if ends != "well":
                await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.ensure_future(use())
        if ends == "by cancelling":
            while not receipts:
                await asyncio.sleep(0)
            task.cancel()
        await task

    expected = {"by an error": KeyError, "by cancelling": asyncio.CancelledError}
    with contextlib.suppress(*([expected[ends]] if ends in expected else [])):
        asyncio.run(main())
        assert ends == "well"
    with stratalog.open(tmp_path / "s", **SMALL) as store:
        assert store.recovery.clean
        assert [message.queue_offset for message in store.queue("t").read()] == receipts == list(range(50))


def test_async_with_finishes_puts_that_are_under_way(tmp_path: Path) -> None:
    async def main() -> list[object]:
        async with stratalog.open(tmp_path / "s", flush="sync", **SMALL) as store:
            puts = [asyncio.ensure_future(store.put_async("t", b"%d" % number)) for number in range(50)]
            await asyncio.sleep(0)
        return await asyncio.wait_for(asyncio.gather(*puts), 20)

    assert len(asyncio.run(main())) == 50


def test_a_closed_store_cannot_be_entered_again(open_store: OpenStore) -> None:
    store = open_store()
    store.close()
    with pytest.raises(StoreClosed, match="open it again"), store:
        pass


def test_keywords_override_the_settings_they_are_given_with(tmp_path: Path) -> None:
    settings = StoreSettings(max_message_size=1000, mapped_file_size_commit_log=1 << 16)
    with stratalog.open(tmp_path / "store", settings=settings, flush="sync", max_message_size=2000) as store:
        assert (store.settings.flush, store.settings.max_message_size) == ("sync", 2000)
        assert store.settings.mapped_file_size_commit_log == 1 << 16
        assert store.put("t", b"x").end_offset == store.durable_offset
    for wrong in ({"flush": "SYNC"}, {"flushes": "sync"}, {"enable_lmq": True}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            stratalog.open(tmp_path / "store", settings=settings, **wrong)
    for no_settings in ({"flush": "sync"}, "sync", 1):
        with pytest.raises(ConfigurationError, match="give StoreSettings"):
            stratalog.open(tmp_path / "store", settings=no_settings)


WRONG_SETTINGS: dict[type, list[Any]] = {
    bool: [0, 1, None, "true", "", np.True_, [True]],
    int: [0, -1, 1 << 31, 1 << 200, True, 1.0, "1000", np.int64(1000), [1000], float("nan")],
    str: [None, b"sync", 5, True, "", "SYNC", "5.4", ["sync"], ("async", "sync"), np.arange(2)],
}


@pytest.mark.parametrize("field", fields(StoreSettings), ids=lambda field: field.name)
def test_no_setting_takes_a_value_of_another_type_or_out_of_range_however_it_is_given(
    field: Any, tmp_path: Path
) -> None:
    kind = type(field.default) if field.default is not None else int
    for value in WRONG_SETTINGS[kind]:
        given = {field.name: value}
        if kind is int and value == 0 and field.name.startswith("flush_commit_log"):
            continue  # 0 is legal there
        if field.name == "message_delay_level" and isinstance(value, str) and not value:
            continue  # no levels
        for make in (
            lambda given=given: StoreSettings(**given),
            lambda given=given: StoreSettings.make(given),
            lambda given=given: replace(StoreSettings(), **given),
            lambda given=given: stratalog.open(tmp_path / "store", **given),
            lambda given=given: stratalog.open(tmp_path / "store", settings=StoreSettings(), **given),
        ):
            with pytest.raises(ConfigurationError, match=field.name):
                make()
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_lost_commitlog_is_named_and_the_advice_for_an_empty_store_leads_to_one(kind: Kind, tmp_path: Path) -> None:
    kind.made(tmp_path)
    for is_there in (False, True):
        shutil.rmtree(tmp_path / "commitlog")
        for call in (verify, plan_repair, rebuild, map_store):
            with pytest.raises(NotAStore, match="commitlog/ is missing: restore commitlog/ from a copy"):
                call(tmp_path)
        with pytest.raises(StratalogError):
            kind.open(tmp_path)
        assert not (tmp_path / "commitlog").exists()
        if is_there:
            (tmp_path / "commitlog").mkdir()
            advice = next(step for problem in verify(tmp_path).problems if "remove" in (step := problem.next_step))
        else:
            with pytest.raises(NotAStore) as refused:
                verify(tmp_path)
            advice = str(refused.value)
        named = advice.partition("remove ")[2].partition(", as far")[0].replace(" and ", ", ")
        for name in named.split(", "):
            if name.endswith("/"):
                shutil.rmtree(tmp_path / name, ignore_errors=True)
            else:
                (tmp_path / name).unlink(missing_ok=True)
        with kind.open(tmp_path) as store:
            kind.fill(store, Content())
        assert verify(tmp_path).ok
