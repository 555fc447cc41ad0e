"""`rebuild`: what dispatch would have written, byte for byte; old files until the new ones are whole."""

import shutil
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.kinds import BATCH, KINDS, LIGHT_EXTENDED, LIGHT_KIND, Content, Kind, trees
from store.kinds import SIZES as KIND_SIZES
from store.model import crash_copy, log_files
from stratalog.config.settings import StoreSettings
from stratalog.errors import CorruptData, NotAStore, StoreLocked
from stratalog.layout.light import MULTI_DISPATCH, is_light
from stratalog.layout.message import HEAD
from stratalog.layout.names import (
    CHECKPOINT,
    COMMIT_LOG,
    CONSUME_QUEUE,
    INDEX,
    SNAPSHOT,
    STAGING,
    is_index_name,
    offset_of,
)
from stratalog.layout.queue import UNIT
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore
from stratalog.store.record_put import Receipt
from stratalog.store.snapshot import noted_log
from stratalog.tools import rebuild as module
from stratalog.tools.map import map_store
from stratalog.tools.own_files import QUARANTINE
from stratalog.tools.rebuild import PARTS, rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from stratalog.tools.verify_files import QUEUE_TREES

SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 20 * UNIT.size,
    "max_hash_slot_num": 50,
    "max_index_num": 200,
}
GIVEN = StoreSettings(**SETTINGS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with stratalog.open(tmp_path / "store", **SETTINGS) as store:
        for number in range(200):
            store.put("orders", b"%d" % number * 20, queue_id=number % 3, tags="ab"[number % 2], keys=[f"k{number}"])
    return tmp_path / "store"


def derived(root: Path) -> dict[str, bytes]:
    """Content of every derived file; index files by their order, because they are named by the clock."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in (root / "consumequeue").rglob("0*")
             if path.is_file()}  # fmt: skip
    for number, path in enumerate(sorted((root / "index").iterdir())):
        found[f"index {number}"] = path.read_bytes()
    return found | {"checkpoint": (root / "checkpoint").read_bytes()}


def log(root: Path) -> dict[str, tuple[int, bytes]]:
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (root / "commitlog").iterdir()}


@pytest.mark.parametrize("lost", [(), ("consumequeue",), ("index",), ("consumequeue", "index", "checkpoint")])
def test_what_is_rebuilt_is_what_dispatch_wrote(root: Path, lost: tuple[str, ...]) -> None:
    before, before_log = derived(root), log(root)
    for name in lost:
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
    rebuilt = rebuild(root, settings=GIVEN)
    assert (rebuilt.record_count, rebuilt.queue_count, rebuilt.unit_count) == (200, 3, 200)
    assert derived(root) == before
    assert log(root) == before_log
    assert verify(root, settings=GIVEN).ok
    assert not (root / STAGING).exists()
    assert not (root / "abort").exists()


def test_only_what_is_named_is_rebuilt(root: Path) -> None:
    (root / "index" / "20000101000000000").write_bytes(b"x")
    before = (root / "index" / "20000101000000000").stat().st_ino
    rebuild(root, settings=GIVEN, parts=["queues"])
    assert (root / "index" / "20000101000000000").stat().st_ino == before
    rebuild(root, settings=GIVEN, parts=["index"])
    assert not (root / "index" / "20000101000000000").exists()


def test_a_kill_leaves_old_or_new_and_the_next_call_finishes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = derived(root)
    real = module.exchange

    class Killed(BaseException):
        pass

    for survived in range(4):
        left = iter(range(survived))

        def exchange(*paths: Any, left: Any = left) -> None:
            if next(left, None) is None:
                raise Killed
            real(*paths)

        monkeypatch.setattr(module, "exchange", exchange)
        with pytest.raises(Killed) if survived < 3 else pytest.MonkeyPatch.context():
            rebuild(root, settings=GIVEN)
        assert derived(root) == before
    assert not list(root.glob("*.tmp"))


def test_a_queue_whose_messages_have_all_gone_keeps_its_next_offset(root: Path) -> None:
    with stratalog.open(root, **SETTINGS) as store:
        for _ in range(30):
            store.put("old", b"x" * 400)
        for _ in range(100):
            store.put("orders", b"x" * 400)
    oldest = sorted((root / "commitlog").iterdir())
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        end = store.log.message(0).commit_log_offset + 16 * 1024 * (len(oldest) - 1)
    for path in oldest[:-1]:
        path.unlink()
    assert end
    rebuild(root, settings=GIVEN)
    with stratalog.open(root, **SETTINGS) as store:
        assert store.recovery.clean
        assert not store.recovery.rebuilt
        assert store.queue("old").put(b"next").queue_offset == 30


def test_a_store_that_is_open_is_not_rebuilt(root: Path, tmp_path: Path) -> None:
    release = Disk().lock(root / "lock")
    try:
        with pytest.raises(StoreLocked):
            rebuild(root, settings=GIVEN)
    finally:
        release()
    with pytest.raises(NotAStore):
        rebuild(tmp_path / "nowhere")


def test_damage_of_the_log_is_reported_by_the_rebuild_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = min((root / "commitlog").iterdir())
    first.write_bytes(first.read_bytes()[:300] + b"\xff" * 20 + first.read_bytes()[320:])
    assert len(rebuild(root, settings=GIVEN).damages) == 1
    assert not caplog.records


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["exchanged", "noise", "zeros"])
def test_a_log_without_one_whole_record_empties_no_queue(tmp_path: Path, how: str, *, clean: bool) -> None:
    root, sizes = tmp_path / "store", SETTINGS | {"mapped_file_size_commit_log": 4096}
    given = StoreSettings(**sizes)
    with stratalog.open(root, **sizes) as store:
        for number in range(50):
            store.put("orders", b"%d" % number * 30, queue_id=number % 3)
    if not clean:
        (root / "abort").touch()
        (root / "checkpoint").unlink()
    files = sorted((root / "commitlog").iterdir())
    contents = [file.read_bytes() for file in files]
    for file, other in zip(files, contents[::-1], strict=True):
        file.write_bytes({"exchanged": other, "noise": b"\x5a" * 4096, "zeros": bytes(4096)}[how])
    assert len(files) > 1
    before = {path: path.read_bytes() for path in root.rglob("0*") if path.is_file()}
    assert not verify(root, settings=given).ok
    with pytest.raises(CorruptData, match=r"restore|misnamed"):
        rebuild(root, settings=given)
    assert {path: path.read_bytes() for path in root.rglob("0*") if path.is_file()} == before


@pytest.mark.parametrize("written", [0, 10, 19, 20, 21, 24])
def test_a_record_that_jumps_ahead_is_for_repair_and_rebuild_leaves_no_message_out(
    tmp_path: Path, written: int
) -> None:
    """A crash before the queue was written; what follows the record with the wrong offset seems to be older."""
    root = tmp_path / "store"
    with stratalog.open(root, **SETTINGS) as store:
        places = [store.put("orders", b"%d" % number * 30).commit_log_offset for number in range(24)]
    queue = sorted((root / "consumequeue/orders/0").iterdir())
    for number, file in enumerate(queue):
        kept = max(0, min(file.stat().st_size, written * UNIT.size - number * file.stat().st_size))
        file.write_bytes(file.read_bytes()[:kept].ljust(file.stat().st_size, b"\0"))
    (root / "abort").touch()
    (root / "checkpoint").unlink()
    (root / "queues.snapshot").unlink()
    (log_file,) = (root / "commitlog").iterdir()
    data = bytearray(log_file.read_bytes())
    at = places[20] + HEAD.position("queue_offset")
    data[at : at + 8] = (120).to_bytes(8)
    log_file.write_bytes(data)
    report = verify(root, settings=GIVEN)
    assert [problem for problem in report.problems if "stratalog repair" in problem.next_step]
    with pytest.raises(CorruptData, match="stratalog repair"):
        rebuild(root, settings=GIVEN)
    assert repair(plan_repair(root, settings=GIVEN)).ok
    with stratalog.open(root, mode="r", **SETTINGS) as store:
        assert [message.body for message in store.queue("orders").read()] == [b"%d" % n * 30 for n in range(24)]


def test_a_queue_that_the_log_knows_nothing_of_is_not_kept(root: Path) -> None:
    shutil.copytree(root / "consumequeue/orders/0", root / "consumequeue/ghost/0")
    shutil.copytree(root / "consumequeue/orders/0", root / "consumequeue/%LMQ%a/9")
    assert not verify(root, settings=GIVEN).ok
    rebuilt = rebuild(root, settings=GIVEN)
    assert (rebuilt.queue_count, rebuilt.unit_count) == (3, 200)
    assert verify(root, settings=GIVEN).ok
    assert not (root / "consumequeue/ghost").exists()
    assert not (root / "consumequeue/%LMQ%a/9").exists()


def test_a_queue_whose_messages_are_damaged_keeps_its_next_offset(root: Path) -> None:
    with stratalog.open(root, **SETTINGS) as store:
        first = store.put("late", b"x" * 50)
        last = store.put("late", b"y" * 50)
        store.put("orders", b"after")
    for receipt in (first, last):
        path, position = log_place(root, receipt.commit_log_offset)
        with path.open("r+b") as file:
            file.seek(position)
            file.write(bytes(receipt.store_size))
    assert rebuild(root, settings=GIVEN).damages
    with stratalog.open(root, **SETTINGS) as store:
        assert store.put("late", b"next").queue_offset == 2


def _put_rare(store: MessageStore, kind: Kind) -> Receipt:
    """A message, or a batch of three, in a queue of that kind which has few."""
    if kind is BATCH:
        return store.queue("rare").put_batch([b"one" * 30, b"two", b"three"], unique_key="u")
    light = {MULTI_DISPATCH: "%LMQ%rare"} if kind in (LIGHT_KIND, LIGHT_EXTENDED) else None
    return store.put("parent" if light else "rare", b"rare" * 30, properties=light)


def _ends(root: Path, kind: Kind, **given: Any) -> dict[tuple[str, int], int]:
    with kind.open(root, **given) as store:
        return {key: store.queue(*key).max_offset for key in store.queues()}


def _flipped(position: int) -> Callable[[bytes], bytes]:
    return lambda stored: stored[:position] + bytes([stored[position] ^ 1]) + stored[position + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "magic": _flipped(HEAD.position("magic")),
    "body": _flipped(HEAD.size + 50),
    "zeros": lambda stored: bytes(len(stored)),
}
TOOLS: dict[str, Callable[[Path, Kind, StoreSettings], object]] = {
    "open": lambda root, kind, settings: kind.open(root).close(),
    "rebuild": lambda root, kind, settings: rebuild(root, settings=settings),
    "repair": lambda root, kind, settings: repair(plan_repair(root, settings=settings)),
}


@pytest.mark.one_in(144)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize(("count", "damaged"), [(1, 1), (2, 2), (9, 2)])
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_no_tool_gives_the_offset_of_a_damaged_message_again(
    kind: Kind, is_closed: bool, count: int, damaged: int, how: str, tmp_path: Path
) -> None:
    made, root, settings = tmp_path / "made", tmp_path / "store", StoreSettings().override(KIND_SIZES | kind.settings)
    content = Content()
    with kind.open(made) as store:
        if kind is BATCH:
            store.create_topic("rare", queue_type="BatchCQ")
        kind.fill(store, content, count=5)
        rare = [_put_rare(store, kind) for _ in range(count)]
        kind.fill(store, content, begin=5, count=5)
        store.dispatch()
        if not is_closed:
            made = crash_copy(store, tmp_path / "crashed")
    shutil.copytree(made, root)
    ends = _ends(root, kind)
    for receipt in rare[-damaged:]:
        path, position = log_place(made, receipt.commit_log_offset)
        stored = bytearray(path.read_bytes())
        end = position + receipt.store_size
        stored[position:end] = DAMAGES[how](bytes(stored[position:end]))
        path.write_bytes(stored)
    for tools in product(TOOLS, repeat=2):
        shutil.rmtree(root)
        shutil.copytree(made, root)
        for number, tool in enumerate(tools):
            TOOLS[tool](root, kind, settings)
            found = _ends(root, kind, mode="r")
            assert not {key: found.get(key) for key in ends if found.get(key, 0) < ends[key]}, tools[: number + 1]


EVIDENCE = "consumequeue", "index", "checkpoint", "queues.snapshot"
"""What tells how far the log reached, once its newest files are lost."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("left", [left for count in (1, 2, 3, 4) for left in combinations(EVIDENCE, count)])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_whose_last_files_are_missing_is_refused_whatever_else_is_lost(
    tmp_path: Path, is_clean: bool, left: tuple[str, ...]
) -> None:
    root = put_and_lose(tmp_path, left, is_clean=is_clean)
    before = contents(root)
    is_known = is_clean or "checkpoint" in left or "queues.snapshot" in left  # the others may be ahead after a crash
    for parts in (PARTS, ("queues",), ("index",), ("checkpoint",)) if is_known else ():
        if parts in (PARTS, ("queues",)) or left != ("consumequeue",):
            with pytest.raises(CorruptData, match=r"the log ends at offset 32,768, .*run `stratalog repair"):
                rebuild(root, settings=GIVEN, parts=parts)
            assert contents(root) == before
    plan = plan_repair(root, settings=GIVEN)
    assert (plan.known_end > 32768) == (is_known and left != ("consumequeue",))
    assert plan.lost_count == (300 - plan.whole_count if "consumequeue" in left else 0)
    assert repair(plan).ok
    rebuild(root, settings=GIVEN)
    is_kept = "consumequeue" in left or (is_clean and "queues.snapshot" in left)
    with stratalog.open(root, **SETTINGS) as store:
        assert store.put("late", b"next").queue_offset == (300 if is_kept else plan.whole_count)


def test_after_a_crash_alone_nothing_tells_that_the_log_reached_further(tmp_path: Path) -> None:
    root = put_and_lose(tmp_path, EVIDENCE[:2], is_clean=False)
    rebuild(root, settings=GIVEN)
    assert verify(root, settings=GIVEN).ok


@pytest.mark.one_in(27)
@pytest.mark.parametrize("damaged", [False, True], ids=["whole", "damaged"])
@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_rebuild_verify_and_inspect_count_the_same(kind: Kind, lost: int, damaged: bool, tmp_path: Path) -> None:
    content, given = kind.made(tmp_path, count=200), StoreSettings.make(KIND_SIZES | kind.settings)
    for path in sorted((tmp_path / COMMIT_LOG).iterdir())[:-1][:lost]:
        path.unlink()
    begin, before = int(min((tmp_path / COMMIT_LOG).iterdir()).name), verify(tmp_path, settings=given)
    if not any(is_light(topic) for topic, _ in content.queues):
        gone = [known for queue in content.queues.values() for known in queue.values()]
        assert before.gone_count == sum(known.commit_log_offset < begin for known in gone)
    assert before.gone_count == plan_repair(tmp_path, settings=given).gone_count
    assert (before.gone_count > 0) == (begin > 0)
    if damaged:
        with max((tmp_path / COMMIT_LOG).iterdir()).open("r+b") as file:
            file.seek(300)
            file.write(b"damage")
    try:
        rebuilt = rebuild(tmp_path, settings=given)
    except CorruptData:  # for `repair`, which rebuilds and tells the counts of `verify`
        assert damaged
        return
    assert rebuilt.gone_count == before.gone_count
    report, shown = verify(tmp_path, settings=given), map_store(tmp_path, settings=given)
    counts = report.queue_count, report.unit_count, report.record_count
    assert (rebuilt.queue_count, rebuilt.unit_count, rebuilt.record_count) == counts
    held = [queue for queue in shown.queues if queue.max_offset > queue.min_offset]
    assert len(shown.queues) == report.queue_count
    if not damaged and kind.layout is UNIT:
        assert sum(queue.max_offset - queue.min_offset for queue in held) == report.unit_count


@pytest.mark.parametrize("left", ["queues", INDEX, CHECKPOINT, SNAPSHOT])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_inspect_notes_that_the_log_once_reached_further(kind: Kind, left: str, tmp_path: Path) -> None:
    kind.made(tmp_path, count=200)
    given = StoreSettings.make(KIND_SIZES | kind.settings)
    for is_lost in (False, True):
        if is_lost:
            max((tmp_path / COMMIT_LOG).iterdir()).unlink()
        for name in {*QUEUE_TREES, INDEX, CHECKPOINT, SNAPSHOT} - {left, *(QUEUE_TREES if left == "queues" else ())}:
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            (tmp_path / name).unlink(missing_ok=True)
        noted = any(f"stratalog verify {tmp_path}" in note for note in map_store(tmp_path, settings=given).notes)
        assert noted == (is_lost and (left != SNAPSHOT or noted_log(tmp_path, Disk()) is not None))


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def put_and_lose(root: Path, left: tuple[str, ...], *, is_clean: bool) -> Path:
    """300 messages, of whose log the first two files are there, and of the rest what is `left`."""
    with stratalog.open(root, **SETTINGS) as store:
        for number in range(300):
            store.put("late", b"%d" % number * 20, keys=f"k{number}")
    for path in sorted((root / "commitlog").iterdir())[2:]:
        path.unlink()
    for name in set(EVIDENCE) - set(left):
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
    if not is_clean:
        (root / "abort").touch()
    return root


def log_place(root: Path, commit_log_offset: int) -> tuple[Path, int]:
    position = commit_log_offset % SETTINGS["mapped_file_size_commit_log"]
    return root / "commitlog" / f"{commit_log_offset - position:020d}", position


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_expired", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_files_that_are_none_of_a_stores_are_kept(kind: Kind, is_expired: bool, tmp_path: Path) -> None:
    """At every depth, in every tree: in queues that are built again, carried over, or left out."""
    root = tmp_path / "store"
    kind.made(root, count=150)
    if is_expired:
        topic, queue_id = kind.queues[0]
        shutil.copytree(kind.directory(root, (topic, queue_id)), kind.directory(root, (topic, 7)))
        for path in sorted(kind.directory(root, (topic, 7)).iterdir())[1:]:
            path.unlink()
        log_files(root)[0].unlink()
    foreign: dict[str, bytes] = {}
    for tree in (*QUEUE_TREES, INDEX):
        (root / tree / "other" / "0" / "deeper").mkdir(parents=True)
        (root / tree / "other" / "no-queue").mkdir()
        (root / tree / ".hidden" / "0").mkdir(parents=True)
        for directory in [root / tree, *(path for path in (root / tree).rglob("*") if path.is_dir())]:
            for name in ("README", "2026"):
                (directory / name).write_text(f"{directory}/{name}")
                foreign[str((directory / name).relative_to(root))] = f"{directory}/{name}".encode()
    for place in (f"{tree}/other/{at}/{0:020d}" for tree in QUEUE_TREES for at in ("no-queue", "0/deeper")):
        (root / place).write_text(place)
        foreign[place] = place.encode()
    rebuild(root, settings=StoreSettings().override({**KIND_SIZES, **kind.settings}))
    kept = root / QUARANTINE
    assert {str(path.relative_to(kept)): path.read_bytes() for path in kept.rglob("*") if path.is_file()} == foreign
    left = [path for tree in (*QUEUE_TREES, INDEX) for path in (root / tree).rglob("*") if path.is_file()]
    assert not [path for path in left if offset_of(path.name) is None and not is_index_name(path.name)]
    assert verify(root, settings=StoreSettings().override({**KIND_SIZES, **kind.settings})).ok
    for place in (f"{tree}/other/0/README" for tree in QUEUE_TREES):  # the name is taken now
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_text("later")
    rebuild(root, settings=StoreSettings().override({**KIND_SIZES, **kind.settings}))
    assert len(list(kept.rglob("README-2"))) == len(QUEUE_TREES)
    assert {path: (kept / path).read_bytes() for path in foreign} == foreign


@pytest.mark.one_in(3)
@pytest.mark.parametrize("state", ["whole", "body bit", "queues gone"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_messages_put_to_a_light_queue_itself_are_in_a_queue(kind: Kind, state: str, tmp_path: Path) -> None:
    given = StoreSettings.make(KIND_SIZES | kind.settings)
    kind.made(tmp_path / "s", count=7)
    before = plan_repair(tmp_path / "s", settings=given).message_count
    with stratalog.open(tmp_path / "s", **KIND_SIZES) as store:
        put = [store.put(topic, b"body") for topic in ("%LMQ%x", "%LMQ%a") * 3]
    (path,) = (tmp_path / "s" / COMMIT_LOG).iterdir()
    if state == "body bit":
        data = bytearray(path.read_bytes())
        data[put[2].commit_log_offset + 88] ^= 1
        path.write_bytes(data)
    elif state == "queues gone":
        shutil.rmtree(tmp_path / "s" / CONSUME_QUEUE)
    shutil.copytree(tmp_path / "s", tmp_path / "rebuilt")
    rebuild(tmp_path / "rebuilt", settings=given)
    assert verify(tmp_path / "rebuilt", settings=given).ok == (state != "body bit")
    plan = plan_repair(tmp_path / "s", settings=given)
    is_lost = state == "body bit"
    assert (plan.message_count, len(plan.lost)) == (before + 6 - is_lost, is_lost)
    assert repair(plan).ok
    assert verify(tmp_path / "s", settings=given).ok
    again = plan_repair(tmp_path / "s", settings=given)
    assert (again.message_count, again.actions) == (before + 6 - is_lost, [])


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_newest_unit_does_not_tell_whether_queues_have_extensions(
    kind: Kind, number: int, tmp_path: Path
) -> None:
    kind.made(tmp_path / "whole")
    queues = trees(tmp_path / "whole")
    for byte in (7, 11, 12, 19):
        root = tmp_path / "store"
        shutil.copytree(tmp_path / "whole", root)
        path = kind.files(root, kind.queues[number])[-1]
        stored = bytearray(path.read_bytes())
        stored[len(stored.rstrip(b"\0")) // kind.layout.size * kind.layout.size - kind.layout.size + byte] ^= 0x80
        path.write_bytes(stored)
        rebuild(root)
        assert trees(root) == queues, byte
        shutil.rmtree(root)
