"""Stores that are not ours to touch: one that RocketMQ has open, and what either side leaves when it dies."""

import hashlib
import shutil
from pathlib import Path

import pytest

from interop.drafts import drafts
from interop.rocketmq import RocketMQ
from interop.shared import Share
from interop.views import (
    assert_same,
    assert_same_answers,
    java_reading,
    one_by_one,
    our_answers,
    our_reading,
    put_by_java,
)
from stratalog.errors import StratalogError
from stratalog.layout.names import COMMIT_LOG, INDEX, offset_of

pytestmark = pytest.mark.one_in(2)


def footprint(directory: Path) -> dict[str, tuple[int, int, str]]:
    """Size, time of change and content of every file, and the time of change of every directory."""
    found = {}
    for path in sorted(directory.rglob("*")):
        stat = path.stat()
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(directory))] = (stat.st_size, stat.st_mtime_ns, digest)
    return found


def test_a_store_that_rocketmq_has_open_is_read_without_a_touch(rocketmq: RocketMQ, share: Share) -> None:
    shared = share(f"{rocketmq.release} beside")
    rocketmq.ask("open", directory=str(shared.directory), settings=shared.java_settings())
    put_by_java(rocketmq, one_by_one(drafts(1, 400)), shared.ledger)
    shared.reading, shared.tagged = java_reading(rocketmq), rocketmq.has_tag_index
    questions = shared.questions(1)
    answers = rocketmq.ask("ask", questions=questions)["answers"]
    rocketmq.pause()  # from here on, whatever changes is our doing
    try:
        before = footprint(shared.directory)
        with shared.open_ours(rocketmq.compatibility, mode="r") as beside:
            assert_same(our_reading(beside), shared.reading)
            assert_same_answers(questions, our_answers(beside, questions), answers)
            assert len(beside.queue("Orders", 0).read_arrow()) == len(shared.reading["Orders", 0])
        assert footprint(shared.directory) == before
    finally:
        rocketmq.resume()
    put_by_java(rocketmq, one_by_one(drafts(2, 50)), shared.ledger)
    rocketmq.ask("close")
    shared.ours(rocketmq.compatibility, 3, 20)


def test_the_file_that_rocketmq_made_ahead_is_no_end_of_the_log(rocketmq: RocketMQ, share: Share) -> None:
    """It makes the next CommitLog file early; a halt leaves it there, empty."""
    shared = share(f"{rocketmq.release} ahead")
    shared.theirs(rocketmq, 1, 100, stop="halted")
    files = sorted((shared.directory / COMMIT_LOG).iterdir())
    assert len(files) > 1
    assert not any(files[-1].read_bytes()), "RocketMQ has made no file ahead"
    shared.ours(rocketmq.compatibility, 2, 150)
    shared.theirs(rocketmq, 3, 100, stop="halted")
    shared.ours(rocketmq.compatibility, 4, 20)


def test_the_file_that_we_made_ahead_is_no_end_of_the_log(rocketmq: RocketMQ, share: Share) -> None:
    """Our next CommitLog file is there before it is wanted, too: RocketMQ goes on in front of it, and through it."""
    shared = share(f"{rocketmq.release} ours ahead")
    shared.crashed = True
    shared.put_until_killed(rocketmq.compatibility, 1, 150)
    add_a_file_ahead(shared.directory / COMMIT_LOG, shared.sizes["mapped_file_size_commit_log"])
    shared.theirs(rocketmq, 2, 300, stop="killed")
    add_a_file_ahead(shared.directory / COMMIT_LOG, shared.sizes["mapped_file_size_commit_log"])
    shared.ours(rocketmq.compatibility, 3, 200)
    shared.theirs(rocketmq, 4, 20)


def add_a_file_ahead(directory: Path, size: int) -> None:
    """What a kill leaves at an unlucky moment, whether or not it was one: a blank file behind the log's end."""
    newest = max(directory.iterdir())
    if any(newest.read_bytes()):
        start = offset_of(newest.name)
        assert start is not None
        (directory / f"{start + size:020d}").write_bytes(bytes(size))


def test_both_sides_refuse_a_store_that_the_other_one_writes(rocketmq: RocketMQ, share: Share, tmp_path: Path) -> None:
    """Both lock the same byte. RocketMQ looks at the lock after it has loaded: its index is written to by then, so a
    broker must not be started on a store in use. Messages are safe even so, and the index is built again."""
    shared = share(f"{rocketmq.release} lock")
    rocketmq.ask("open", directory=str(shared.directory), settings=shared.java_settings())
    put_by_java(rocketmq, one_by_one(drafts(1, 20)), shared.ledger)
    before = {path: content for path, (_, _, content) in footprint(shared.directory).items()}
    with pytest.raises(StratalogError, match=r"lock|another process"):
        shared.open_ours(rocketmq.compatibility)
    assert {path: content for path, (_, _, content) in footprint(shared.directory).items()} == before
    rocketmq.ask("close")
    with shared.open_ours(rocketmq.compatibility) as store:
        shutil.copytree(shared.directory, tmp_path / "copy")  # reads the lock file, too: the lock holds
        with pytest.raises(AssertionError, match=r"[Ll]ock"):
            rocketmq.ask("open", directory=str(shared.directory), settings=shared.java_settings())
        rocketmq.stop()
        shared.ledger.check(our_reading(store), exactly=True)
    for path in (shared.directory / INDEX).iterdir():
        path.unlink()
    shared.ours(rocketmq.compatibility, 2, 20)
    shared.theirs(rocketmq, 3, 20)
