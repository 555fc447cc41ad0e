"""One side fills a store and stops cleanly; the other opens it, finds everything, changes nothing, and goes on."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

import stratalog
from interop.drafts import LONG_TOPIC, QUEUE_COUNT, TOPICS, Ledger, drafts, fill
from interop.rocketmq import RocketMQ
from interop.views import (
    JAVA_SLACK_MS,
    assert_same,
    assert_same_answers,
    check_answers,
    hit_count,
    java_reading,
    java_settings,
    one_by_one,
    open_ours,
    our_answers,
    our_reading,
    put_by_java,
    questions_about,
    random_sizes,
    took_the_clean_road,
)
from stratalog.layout.message import MAGIC_V2
from stratalog.layout.names import ABORT, COMMIT_LOG, CONSUME_QUEUE, INDEX

pytestmark = pytest.mark.one_in(2)

COUNT = 900
FLUSH_DISK_TYPE = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}


def content(directory: Path) -> dict[str, str]:
    """Digest of every file that holds messages, or leads to them."""
    files = [path for part in (COMMIT_LOG, CONSUME_QUEUE, INDEX) for path in (directory / part).rglob("*")]
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(files)
        if path.is_file()
    }


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_rocketmq_wrote_is_read_and_found(rocketmq: RocketMQ, flush: str, tmp_path: Path) -> None:
    seed = f"{rocketmq.release} {flush} theirs"
    sizes, ledger = random_sizes(seed), Ledger()
    settings = java_settings(sizes, flushDiskType=FLUSH_DISK_TYPE[flush])
    rocketmq.ask("open", directory=str(tmp_path), settings=settings)
    put_by_java(rocketmq, one_by_one(drafts(1, COUNT if flush == "async" else COUNT // 6)), ledger)
    theirs = java_reading(rocketmq)
    questions = questions_about(theirs, with_tags=rocketmq.has_tag_index, seed=1)
    answers = rocketmq.ask("ask", questions=questions)["answers"]
    with stratalog.open(tmp_path, mode="r", compatibility=rocketmq.compatibility, **sizes) as beside:
        assert_same(our_reading(beside), theirs)
        assert_same_answers(questions, our_answers(beside, questions), answers)
    rocketmq.ask("close")
    before = content(tmp_path)
    with open_ours(tmp_path, sizes, rocketmq) as store:
        assert store.recovery.clean
        assert not store.recovery.torn_size
        reading = our_reading(store)
        assert_same(reading, theirs)
        ledger.check(reading, exactly=True)
        our_own = our_answers(store, questions)
    assert_same_answers(questions, our_own, answers)
    check_answers(theirs, questions, our_own)
    check_answers(theirs, questions, answers, slack_ms=JAVA_SLACK_MS)
    assert hit_count(questions, answers) > 100, "hardly anything was found"
    after = content(tmp_path)
    assert {path: after.get(path, "removed by us") for path in before} == before


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_we_wrote_is_loaded_whole_read_and_found(rocketmq: RocketMQ, flush: Any, tmp_path: Path) -> None:
    seed = f"{rocketmq.release} {flush} ours"
    sizes, ledger = random_sizes(seed), Ledger()
    with open_ours(tmp_path, sizes, rocketmq, flush=flush) as store:
        for draft, place in fill(store, drafts(2, COUNT), 2):
            ledger.note(draft, place)
        ours, end_offset = our_reading(store), store.log.end_offset
        questions = questions_about(ours, with_tags=rocketmq.has_tag_index, seed=2)
        answers = our_answers(store, questions)
    check_the_fill(tmp_path, ours)
    before = content(tmp_path)
    settings = java_settings(sizes, flushDiskType=FLUSH_DISK_TYPE[flush])
    rocketmq.logged()
    opened = rocketmq.ask("open", directory=str(tmp_path), settings=settings)
    assert opened == {"loaded": True, "first_offset": 0, "end_offset": end_offset}
    assert took_the_clean_road(rocketmq.logged())
    theirs = java_reading(rocketmq)
    ledger.check(theirs, exactly=True)
    assert_same(ours, theirs)
    check_answers(theirs, questions, answers)
    assert hit_count(questions, answers) > 100, "hardly anything was found"
    their_own = rocketmq.ask("ask", questions=questions)["answers"]
    assert_same_answers(questions, answers, their_own)
    check_answers(theirs, questions, their_own, slack_ms=JAVA_SLACK_MS)
    assert {path: digest for path, digest in content(tmp_path).items() if path in before} == before
    put_by_java(rocketmq, one_by_one(drafts(3, COUNT // 10)), ledger)
    rocketmq.ask("close")
    with open_ours(tmp_path, sizes, rocketmq, flush=flush) as store:
        assert store.recovery.clean
        ledger.check(our_reading(store), exactly=True)


def check_the_fill(directory: Path, reading: Any) -> None:
    """What the other side is to be tried with is really there."""
    assert reading.keys() == {(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUE_COUNT)}
    for part in (COMMIT_LOG, f"{CONSUME_QUEUE}/Orders/0", INDEX):
        assert len(list((directory / part).iterdir())) > 1, f"{part} never rolled"
    messages = [message for queue in reading.values() for message in queue]
    assert {message["sys_flag"] for message in messages} == {0x00, 0x10, 0x20, 0x30}, "hosts of both kinds"
    assert not (directory / ABORT).exists()
    first_files = b"".join(path.read_bytes() for path in (directory / COMMIT_LOG).iterdir())
    assert MAGIC_V2.to_bytes(4, signed=True) in first_files
    assert LONG_TOPIC.encode() in first_files
