"""A repair or a rebuild that did not end: the same command goes on, and everything else says what is there.

The row `again` of the torture stops and fails both at every call."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from stratalog.config.settings import StoreSettings
from stratalog.errors import DiskFull, NotAStore, StoreUnavailable, StratalogError
from stratalog.layout.message import LOST_FLAG
from stratalog.layout.names import STAGING, UNFINISHED_COPY
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.store.disk import Disk
from stratalog.tools import rebuild as rebuilding
from stratalog.tools import repair as repairing
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 50 * UNIT.size,
    "mapper_file_size_batch_consume_queue": 20 * BATCH_UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 400,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
GIVEN = StoreSettings(**SETTINGS)
KINDS = ("one queue", "many queues", "light", "batch")


class Killed(BaseException):
    pass


def killed(*given: Any, **named: Any) -> Any:
    raise Killed


def make(root: Path, kind: str) -> Path:
    with stratalog.open(root, **SETTINGS) as store:
        store.create_topic("b", queue_type="BatchCQ")
        for number in range(400):
            body = b"%06d" % number * 10
            light = {"INNER_MULTI_DISPATCH": "%LMQ%a"} if kind == "light" and not number % 9 else None
            store.put("t", body, keys=["k"], properties=light)
            if kind == "many queues" and not number % 5:
                store.put(f"n{number // 30}", body)
            if kind == "batch" and not number % 9:
                store.queue("b").put_batch([body, body], unique_key=f"u{number}")
    return root


def logs(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def content(root: Path) -> dict[tuple[str, int, int], bytes | None]:
    """Bodies by place; None for what stands for a lost message."""
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        return {
            (*key, message.queue_offset): None if message.flag == LOST_FLAG else message.body
            for key in store.queues()
            for message in store.queue(*key).read()
        }


@pytest.mark.parametrize("kind", KINDS)
def test_a_repair_that_ended_before_the_queues_were_built_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "store", kind)
    logs(root)[-1].unlink()
    shutil.copytree(root, tmp_path / "other")
    assert repair(plan_repair(tmp_path / "other", settings=GIVEN)).ok
    plan = plan_repair(root, settings=GIVEN)
    with monkeypatch.context() as patch:
        patch.setattr(repairing, "rebuild_locked", killed)
        with pytest.raises(Killed):
            repair(plan)
    assert any("did not end" in note for note in verify(root, settings=GIVEN).notes)
    stratalog.open(root, mode="r", **SETTINGS).close()
    assert repair(plan_repair(root, settings=GIVEN)).ok
    assert content(root) == content(tmp_path / "other")
    assert not (root / "abort").exists()


@pytest.mark.parametrize("command", ["rebuild", "repair", "repair --to"])
def test_what_a_rebuild_left_that_was_killed_is_in_nobodys_way(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "store", "one queue")
    before = content(root)
    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "_build", killed)
        patch.setattr(Disk, "remove_tree", lambda *given: None)
        with pytest.raises(Killed):
            rebuild(root, settings=GIVEN)
    assert (root / STAGING / "commitlog").is_symlink()
    assert any("rebuild that did not end" in note for note in verify(root, settings=GIVEN).notes)
    if command == "rebuild":
        rebuild(root, settings=GIVEN)
    else:
        to = tmp_path / "copy" if command == "repair --to" else None
        plan = plan_repair(root, settings=GIVEN)
        assert [action.reason for action in plan.actions] == ["left over from a rebuild that did not end"]
        assert repair(plan, to=to).ok
        root = to or root
    assert not (root / STAGING).exists()
    assert content(root) == before


def test_a_link_in_place_of_the_staging_directory_is_refused(tmp_path: Path) -> None:
    root = make(tmp_path / "store", "one queue")
    (tmp_path / "elsewhere").mkdir()
    (root / STAGING).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StratalogError, match="symbolic link"):
        rebuild(root, settings=GIVEN)


def test_where_directories_cannot_be_exchanged_in_one_step_the_old_one_comes_back(tmp_path: Path) -> None:
    root = make(tmp_path / "store", "one queue")
    (root / STAGING).mkdir()
    (root / "consumequeue").rename(root / STAGING / "consumequeue.tmp")
    rebuilding.clear_staging(root, Disk())
    assert verify(root, settings=GIVEN).ok
    assert not (root / STAGING).exists()


UNREADABLE = ("commitlog/", "consumequeue/t/0/", "batchconsumequeue/b/0/", "index/", "config/topics.json", "checkpoint",
              "queues.snapshot", "abort")  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("at", [0, -1])
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_a_problem_and_the_rest_is_checked(
    name: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make(tmp_path / "store", "batch")
    (root / "abort").touch()
    path = root / name if not name.endswith("/") else sorted((root / name).iterdir())[at]
    real = os.open

    def fails(what: Any, *given: Any, **named: Any) -> int:
        if str(what) == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(what, *given, **named)

    monkeypatch.setattr(os, "open", fails)
    report = verify(root, settings=GIVEN)
    (told,) = (problem for problem in report.problems if problem.path == str(path))
    assert "Input/output error" in told.found
    assert "dmesg" in told.next_step
    assert report.unreadable == [str(path)]
    assert report.record_count > 200
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        plan_repair(root, settings=GIVEN)
    try:
        raise FileNotFoundError(errno.ENOENT, "an error that the caller handles")
    except FileNotFoundError:
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            plan_repair(root, settings=GIVEN)


def test_a_directory_that_cannot_be_listed_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "store", "one queue")

    def fails(what: Any) -> Any:
        if str(what) == str(root / "index"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(what))
        return scandir(what)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", fails)
    report = verify(root, settings=GIVEN)
    assert report.unreadable == [str(root / "index")]
    assert "Permission denied" in report.problems[0].found


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ENOSPC])
def test_create_topic_raises_our_errors(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stratalog.open(tmp_path / "store", **SETTINGS) as store:
        real = os.open

        def fails(what: Any, *given: Any, **named: Any) -> int:
            if "/config/" in str(what):
                raise OSError(number, os.strerror(number), str(what))
            return real(what, *given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", fails)
            with pytest.raises(StratalogError, match=r"topic 'new' of .* cannot be created|no room"):
                store.create_topic("new")
        store.create_topic("new")


def test_a_copy_can_be_written_by_its_owner(tmp_path: Path) -> None:
    root = make(tmp_path / "store", "one queue")
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    copy = tmp_path / "copy"
    repair(plan_repair(root, settings=GIVEN), to=copy)
    for path in (copy, *copy.rglob("*")):
        assert path.stat().st_mode & 0o600 == 0o600, path
    assert not root.stat().st_mode & 0o222
    for path in (root, *root.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


COMMANDS: dict[str, Callable[[Path], object]] = {
    "verify": verify,
    "put": lambda root: stratalog.open(root, **SETTINGS),
    "get": lambda root: stratalog.open(root, mode="r", **SETTINGS),
    "repair": plan_repair,
    "rebuild": rebuild,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unfinished_copy_is_refused_by_every_command(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, copy = make(tmp_path / "my store", "one queue"), tmp_path / "copy"
    plan, written = plan_repair(root, settings=GIVEN), iter(range(3))

    def full(fd: int) -> None:
        if next(written, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    real = os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskFull, match=f"free space there. Remove {copy}, then run it again") as error:
            repair(plan, to=copy)
    assert str(root) in str(error.value)
    assert (copy / UNFINISHED_COPY).exists()
    with pytest.raises(NotAStore) as refused:
        COMMANDS[command](copy)
    again = f"`stratalog repair '{root}' --to {copy} --yes`"
    assert str(refused.value) == f"{copy} is an unfinished copy: remove it and run {again} again"
    shutil.rmtree(copy)
    assert repair(plan, to=copy).ok
    assert not (copy / UNFINISHED_COPY).exists()


def test_a_full_disk_does_not_speak_of_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "store", "one queue")

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(DiskFull, match=r"cannot be rebuilt: No space left on device: .*; free space there") as error:
        rebuild(root, settings=GIVEN)
    assert "mode=" not in str(error.value)


def test_a_store_that_may_not_be_written_is_named_as_by_a_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make(tmp_path / "store", "one queue")
    real = os.open

    def fails(what: Any, *given: Any, **named: Any) -> int:
        if str(what).endswith("/lock"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(what))
        return real(what, *given, **named)

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(StoreUnavailable, match=r"Permission denied: .*/lock; give this user access"):
        rebuild(root, settings=GIVEN)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_for_a_whole_store_counts_its_messages(kind: str, tmp_path: Path) -> None:
    root = make(tmp_path / "store", kind)
    expected = len([key for key in content(root) if not key[0].startswith("%LMQ%")])
    assert plan_repair(root, settings=GIVEN).message_count == expected
