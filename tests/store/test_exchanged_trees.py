"""Two of a store's directories exchanged, or one in the place of another: all is served, or the store is refused until
they are put back."""

import shutil
from itertools import combinations
from pathlib import Path

import pytest

import stratalog
from store.kinds import BATCH, KINDS, SIZES, Content, Kind
from store.model import QUIET
from store.test_recreated_topics import FEWER, OLD, STATES, check, fill, settings_of
from store.test_recreated_topics import made as made_again
from stratalog.errors import CorruptData, StratalogError
from stratalog.layout.names import (
    ABORT,
    BATCH_CONSUME_QUEUE,
    COMMIT_LOG,
    CONFIG,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    INDEX,
    offset_name,
)
from stratalog.store.message_store import MessageStore
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify

COUNT = 40
TREES = (COMMIT_LOG, CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_EXT, INDEX, CONFIG)
SIZE_OF = {
    CONSUME_QUEUE: "mapped_file_size_consume_queue",
    BATCH_CONSUME_QUEUE: "mapper_file_size_batch_consume_queue",
    CONSUME_QUEUE_EXT: "mapped_file_size_consume_queue_ext",
}
ROADS = ["read", "opened", "verified", "repaired", "rebuilt"]


def made(kind: Kind, root: Path) -> Content:
    content = Content()
    with kind.open(root) as store:
        fill(kind, store, content, 0, COUNT)
    (root / CONFIG).mkdir(exist_ok=True)
    (root / CONFIG / "consumerOffset.json").write_text('{"offsetTable":{}}')
    return content


def exchange(root: Path, one: str, other: str) -> None:
    """Either may be missing."""
    for source, target in ((one, "aside"), (other, one), ("aside", other)):
        if (root / source).exists():
            (root / source).rename(root / target)


def opened(kind: Kind, root: Path, mode: str) -> MessageStore:
    """With the sizes that the store shows."""
    return stratalog.open(root, mode=mode, **QUIET, **kind.settings)  # type: ignore[arg-type]


def walked(kind: Kind, root: Path, road: str) -> bool:
    """Whether nothing is said against the store."""
    if road == "verified":
        report = verify(root, settings=settings_of(kind).override(dict.fromkeys(SIZES)))
        assert all(problem.next_step for problem in report.problems)
        return report.ok and not any("another one has" in note for note in report.notes)
    if road == "repaired":
        plan = plan_repair(root)
        assert not plan.lost_ranges
        assert repair(plan).ok
    elif road == "rebuilt":
        done = rebuild(root)
        assert not done.unqueued
        return not done.left_out
    else:
        opened(kind, root, "r" if road == "read" else "w").close()
    return True


def content_of(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def check_sizes(root: Path) -> None:
    for tree, name in SIZE_OF.items():
        assert {path.stat().st_size for path in (root / tree).glob("*/*/*")} <= {SIZES[name]}, tree


@pytest.mark.one_in(540)
@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("pair", list(combinations(TREES, 2)), ids="-".join)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_exchanged_directories_are_served_or_refused(
    kind: Kind, pair: tuple[str, str], state: str, road: str, tmp_path: Path
) -> None:
    content = made(kind, tmp_path)
    STATES[state](tmp_path)
    exchange(tmp_path, *pair)
    if not any((tmp_path / name).exists() for name in pair):
        pytest.skip("neither is there")
    before = content_of(tmp_path)
    try:
        is_served = walked(kind, tmp_path, road)
    except StratalogError:
        is_served = False
    if COMMIT_LOG in pair:
        assert not is_served
    if not is_served:
        if COMMIT_LOG in pair and (tmp_path / COMMIT_LOG).exists():
            assert content_of(tmp_path) == before
        exchange(tmp_path, *pair)
    elif road in ("repaired", "rebuilt"):
        check_sizes(tmp_path)
        assert verify(tmp_path).ok
    check(kind, tmp_path, content, COUNT)
    with kind.open(tmp_path) as store:
        fill(kind, store, content, COUNT, COUNT + 6)
    check(kind, tmp_path, content, COUNT + 6)


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("state", ["closed by RocketMQ", "killed"])
@pytest.mark.parametrize("pair", [(COMMIT_LOG, other) for other in TREES[1:]], ids="-".join)
def test_a_log_in_the_place_of_another_directory_is_named(
    pair: tuple[str, str], state: str, road: str, tmp_path: Path
) -> None:
    made(BATCH, tmp_path)
    STATES[state](tmp_path)
    (tmp_path / pair[1]).mkdir(exist_ok=True)
    exchange(tmp_path, *pair)
    for _ in range(2):
        if road == "verified":
            (problem,) = verify(tmp_path).problems
            assert (problem.path, "its name back" in problem.next_step) == (str(tmp_path / pair[1]), True)
        else:
            with pytest.raises(CorruptData, match="its name back") as raised:
                walked(BATCH, tmp_path, road)
            assert raised.value.path == str(tmp_path / pair[1])
        (tmp_path / COMMIT_LOG / offset_name(0)).write_bytes(bytes(4096))  # as an opening of the empty log makes


@pytest.mark.parametrize("road", ROADS)
def test_queues_in_the_place_of_the_log_are_named(road: str, tmp_path: Path) -> None:
    made(BATCH, tmp_path)
    STATES["killed"](tmp_path)
    shutil.rmtree(tmp_path / COMMIT_LOG)
    (tmp_path / CONSUME_QUEUE).rename(tmp_path / COMMIT_LOG)
    shutil.rmtree(tmp_path / BATCH_CONSUME_QUEUE)
    if road == "verified":
        assert "its name back" in verify(tmp_path).problems[0].next_step
    else:
        with pytest.raises(CorruptData, match="its name back"):
            walked(BATCH, tmp_path, road)


@pytest.mark.parametrize("road", ROADS)
def test_a_queue_file_above_its_directory_and_an_empty_one_in_the_log_are_no_obstacle(
    road: str, tmp_path: Path
) -> None:
    content = made(BATCH, tmp_path)
    STATES["killed"](tmp_path)
    shutil.copy(tmp_path / CONSUME_QUEUE / "other" / "0" / offset_name(0), tmp_path / CONSUME_QUEUE)
    (tmp_path / COMMIT_LOG / "lost+found").mkdir()
    assert walked(BATCH, tmp_path, road)
    check(BATCH, tmp_path, content, COUNT)


def test_a_new_store_is_made_in_an_empty_log_directory(tmp_path: Path) -> None:
    (tmp_path / COMMIT_LOG / "lost+found").mkdir(parents=True)
    (tmp_path / ABORT).touch()
    with BATCH.open(tmp_path) as store:
        assert store.put("other", b"").queue_offset == 0


@pytest.mark.one_in(54)
@pytest.mark.parametrize("road", ["verified", "repaired", "rebuilt"])
@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed"])
@pytest.mark.parametrize("other", ["gone", COMMIT_LOG, CONSUME_QUEUE_EXT, INDEX, CONFIG])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_without_its_queues_a_store_with_a_topic_created_again_is_not_called_whole(
    kind: Kind, other: str, state: str, road: str, tmp_path: Path
) -> None:
    """Only they tell which messages are deleted; put back they are all served."""
    root = tmp_path / "store"
    content = made_again(kind, root, FEWER)
    STATES[state](root)
    exchange(root, kind.tree, other)
    try:
        assert not walked(kind, root, road)
    except StratalogError:
        exchange(root, kind.tree, other)
        check(kind, root, content, OLD + FEWER)
