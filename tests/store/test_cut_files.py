"""`repair` of log files that lost their last bytes: they are extended with zeros, and each record that this makes whole
is kept."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.kinds import BATCH, KINDS, LIGHT_KIND, PLAIN, SIZES, Content, Kind, read_on
from store.model import QUIET, Clock
from store.test_recreated_topics import STATES, settings_of, unseal
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData
from stratalog.layout.batch import batch_size_of
from stratalog.layout.message import HEAD, MAGIC_V1, MAGIC_V2, decode_record
from stratalog.layout.names import ABORT
from stratalog.store.message_store import MessageStore
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

FILE_SIZE, PUTS = 4096, 60


def _put_bare(store: MessageStore, number: int, content: Content) -> None:
    store.put("topic", b"%03d" % number * 20, queue_id=number % 2)


def _put_bare_in_batches(store: MessageStore, number: int, content: Content) -> None:
    if "batches" not in store.topic_configs:
        store.create_topic("batches", queues=2, queue_type="BatchCQ")
    store.queue("batches", number % 2).put_raw(b"%03d" % number * 20, b"")


BARE = Kind("bare", PLAIN.queues, PLAIN.tree, PLAIN.layout, _put_bare)
BARE_BATCH = Kind("bare in a batch topic", BATCH.queues, BATCH.tree, BATCH.layout, _put_bare_in_batches)


def made(kind: Kind, root: Path, *, with_crc: bool) -> dict[str, Any]:
    """The settings of a store of several files."""
    given = SIZES | kind.settings | {"mapped_file_size_commit_log": FILE_SIZE}
    with stratalog.open(root, **given, **QUIET, clock_ns=Clock(), enabled_append_prop_crc=with_crc) as store:
        for number in range(PUTS):
            kind.put(store, number, Content())
    return given


def records(path: Path) -> list[tuple[int, int, int]]:
    """Begin and end of each record in a log file, and how many messages it has."""
    data, found, position = path.read_bytes(), list[tuple[int, int, int]](), 0
    while position + HEAD.size < len(data) and HEAD.unpack(data, position).magic in (MAGIC_V1, MAGIC_V2):
        record = decode_record(data, position)
        count, _ = batch_size_of(record.sys_flag, record.properties, record.queue_offset)
        found.append((position, position + record.total_size, count))
        position = found[-1][1]
    return found


def queued(root: Path, given: dict[str, Any]) -> set[tuple[str, int, int, bytes]]:
    """Every message of the store that has not gone into a light queue only."""
    with stratalog.open(root, mode="r", **given, **QUIET) as store:
        return {
            (topic, queue_id, message.queue_offset, message.body)
            for topic, queue_id in sorted(store.queues())
            for message in store.queue(topic, queue_id).read()
        }


def check_repair(root: Path, given: dict[str, Any], before: set[tuple[str, int, int, bytes]], lost_count: int) -> bool:
    """A repair keeps all but so many messages, and says how many; or it restores their record, which is returned."""
    settings = StoreSettings(**given)
    plan = plan_repair(root, settings=settings)
    lost_count = 0 if plan.mended_count else lost_count
    assert (plan.lost_count, plan.missing) == (lost_count, []), plan
    assert repair(plan).ok
    assert verify(root, settings=settings).ok
    after = queued(root, given)
    assert after <= before
    places = {key for topic, *key in before - after if not topic.startswith("%LMQ%") for key in [(topic, *key)]}
    assert len(places) == lost_count
    return bool(plan.mended_count)


@pytest.mark.one_in(1152)
@pytest.mark.parametrize("size", range(1, 101))
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "abort"])
@pytest.mark.parametrize("place", ["last", "middle"])
@pytest.mark.parametrize("with_crc", [False, True], ids=["", "crc"])
@pytest.mark.parametrize("kind", [BARE, BARE_BATCH, PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_a_record_is_kept_if_its_file_lost_zeros_only(
    tmp_path: Path, kind: Kind, with_crc: bool, place: str, is_clean: bool, size: int
) -> None:
    given = made(kind, tmp_path, with_crc=with_crc)
    before = queued(tmp_path, given)
    path = sorted((tmp_path / "commitlog").iterdir())[-1 if place == "last" else 1]
    data, begin_end_count = path.read_bytes(), records(path)
    keep = begin_end_count[-1][1] - size
    os.truncate(path, keep)
    if not is_clean:
        (tmp_path / ABORT).touch()
    lost = [(begin, end, count) for begin, end, count in begin_end_count if end > keep and any(data[keep:end])]
    is_restored = check_repair(tmp_path, given, before, sum(count for *_, count in lost))
    kept = min([begin for begin, *_ in ([] if is_restored else lost)], default=begin_end_count[-1][1])
    assert path.read_bytes()[:kept] == data[:kept]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "abort"])
@pytest.mark.parametrize("with_crc", [False, True], ids=["", "crc"])
@pytest.mark.parametrize("kind", [BARE, BARE_BATCH, PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_files_without_their_trailing_zeros_lose_nothing(
    tmp_path: Path, kind: Kind, with_crc: bool, is_clean: bool
) -> None:  # fmt: skip
    given = made(kind, tmp_path, with_crc=with_crc)
    before = queued(tmp_path, given)
    log = {path: path.read_bytes() for path in sorted((tmp_path / "commitlog").iterdir())}
    for path, data in log.items():
        os.truncate(path, len(data.rstrip(b"\0")))
    if not is_clean:
        (tmp_path / ABORT).touch()
    assert not check_repair(tmp_path, given, before, 0)
    assert {path: path.read_bytes() for path in log} == log


@pytest.mark.one_in(216)
@pytest.mark.parametrize("kept", range(300, 390))
@pytest.mark.parametrize("file", [0, 1, -1])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_a_repair_of_a_cut_file_that_was_stopped_goes_on_with_the_same_losses(
    kind: Kind, file: int, kept: int, tmp_path: Path
) -> None:
    """Wherever it stops, zeros make no record look whole of which a part was lost."""
    root, settings = tmp_path / "store", settings_of(kind)
    content = kind.made(root, count=150)
    os.truncate(sorted((root / "commitlog").iterdir())[file], kept)
    steps: list[str] = []
    repair(plan_repair(root, settings=settings), to=tmp_path / "whole", step=steps.append)
    with kind.open(tmp_path / "whole", mode="r") as store:
        served = {key: read_on(store.queue(*key))[0] for key in kind.queues}
    assert all(served[key].items() <= content.queues[key].items() for key in kind.queues)
    for stop in range(1, len(steps) - 1):
        copy, left = tmp_path / f"stopped {stop}", iter(range(stop))
        shutil.copytree(root, copy)
        with pytest.raises(StopIteration):
            repair(plan_repair(copy, settings=settings), step=lambda _, left=left: next(left))  # type: ignore[misc]
        assert repair(plan_repair(copy, settings=settings)).ok
        with kind.open(copy, mode="r") as store:
            for key in kind.queues:
                assert read_on(store.queue(*key))[0] == served[key]
        shutil.rmtree(copy)


@pytest.mark.one_in(72)
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("what", ["itself", "the next file", "zeros", "bytes"])
@pytest.mark.parametrize(("count", "at"), [(150, 0), (150, 1), (150, -1), (4, 0)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_follows_a_log_file_of_full_size_is_trimmed(
    kind: Kind, count: int, at: int, what: str, state: str, tmp_path: Path
) -> None:
    """Also where these are whole records."""
    root = tmp_path / "store"
    content = kind.made(root, count=count)
    STATES[state](root)
    files = sorted((root / "commitlog").iterdir())
    data = files[at].read_bytes()
    following = files[(at + 1) % len(files)].read_bytes()
    more = {"itself": data, "the next file": following, "zeros": bytes(len(data)), "bytes": b"x" * 100}[what]
    files[at].write_bytes(data + more)
    plan = plan_repair(root, settings=settings_of(kind))
    assert not plan.lost_count
    assert repair(plan).ok
    assert files[at].read_bytes() == data
    with kind.open(root, mode="r") as store:
        for key in kind.queues:
            assert read_on(store.queue(*key)) == (content.queues[key], [], set())


@pytest.mark.one_in(54)
@pytest.mark.parametrize("taken", [1, 20, 40, 100, 101, 102, 103, 104, 105, 106, 1000])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_the_only_log_file_is_not_taken_for_one_of_another_size_if_a_record_runs_past_its_end(
    kind: Kind, taken: int, tmp_path: Path
) -> None:
    """So many bytes of the records were cut off, and nothing else tells the size."""
    content = kind.made(tmp_path, count=20)
    unseal(tmp_path)
    (tmp_path / "file-sizes.json").unlink()
    path = tmp_path / "commitlog" / f"{0:020d}"
    os.truncate(path, len(path.read_bytes().rstrip(b"\0")) - taken)
    given = settings_of(kind)
    for open_store in (
        lambda: plan_repair(tmp_path, settings=replace(given, mapped_file_size_commit_log=None)),
        lambda: kind.open(tmp_path, mapped_file_size_commit_log=None),
    ):
        with pytest.raises(CorruptData, match=r"the file was cut.*give mapped_file_size_commit_log"):
            open_store()
    assert repair(plan_repair(tmp_path, settings=given)).ok
    assert path.stat().st_size == SIZES["mapped_file_size_commit_log"]
    with kind.open(tmp_path, mode="r") as store:
        for key in kind.queues:
            assert read_on(store.queue(*key))[0].items() <= content.queues[key].items()


@pytest.mark.parametrize("more", [1, 100])
@pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
def test_the_only_log_file_is_trimmed_to_the_size_that_is_given(kind: Kind, more: int, tmp_path: Path) -> None:
    content = kind.made(tmp_path, count=20)
    unseal(tmp_path)
    (tmp_path / "file-sizes.json").unlink()
    path = tmp_path / "commitlog" / f"{0:020d}"
    os.truncate(path, path.stat().st_size + more)
    with pytest.raises(CorruptData, match="--set=mapped_file_size_commit_log=16384` shows what can be mended"):
        kind.open(tmp_path)
    assert repair(plan_repair(tmp_path, settings=settings_of(kind))).ok
    with kind.open(tmp_path) as store:
        for key in kind.queues:
            assert read_on(store.queue(*key)) == (content.queues[key], [], set())
