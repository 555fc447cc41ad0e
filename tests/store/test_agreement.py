"""What `verify` says of a store that was closed properly is what opening it does: one that it calls whole is not built
again, and is the same afterwards; where it announces that opening builds queues and index again, opening does."""

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store.kinds import EXTENDED, KINDS, LIGHT_KIND, PLAIN, SIZES, Content, Kind
from store.model import Clock, log_files
from store.test_recreated_topics import STATES as STOPS
from stratalog.config.settings import StoreSettings
from stratalog.errors import NotAStore, StratalogError
from stratalog.layout.index import HEADER, ITEM, items_position
from stratalog.layout.names import (
    BATCH_CONSUME_QUEUE,
    CHECKPOINT,
    CONFIG,
    CONSUME_QUEUE,
    CONSUME_QUEUE_EXT,
    INDEX,
    LOCK,
    SNAPSHOT,
    offset_name,
)
from stratalog.layout.names import SIZES as SIZES_FILE
from stratalog.layout.queue import FILLER
from stratalog.store.checkpoint import Checkpoint
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from stratalog.tools.verify_files import QUEUE_TREES

GIVEN: dict[str, Any] = {"max_index_num": 60}
PUTS = 150
OLD = "old"
"""Directory beside the store: what it had at an earlier clean stop, with messages that have since expired."""
REBUILDS = "the next opening builds them again"


def settings_of(kind: Kind) -> StoreSettings:
    return StoreSettings().override({**SIZES, **kind.settings, **GIVEN})


def opened(kind: Kind, root: Path, **given: Any) -> MessageStore:
    return kind.open(root, **GIVEN, **given)


State = Callable[[Kind, Path], None]


# -- states ------------------------------------------------------------------------------------------------------------


def closed(kind: Kind, root: Path) -> None:
    kind.made(root, count=PUTS // 3, **GIVEN)
    shutil.copytree(root, root.with_name(OLD))
    clock = Clock(1_700_000_100_000)
    with opened(kind, root, clock_ns=clock) as store:
        kind.fill(store, Content(), begin=PUTS // 3, count=PUTS - PUTS // 3)


def expired(kind: Kind, root: Path) -> None:
    """The log's first file has gone, and the store was opened since."""
    closed(kind, root)
    log_files(root)[0].unlink()
    opened(kind, root).close()


def rebuilt(kind: Kind, root: Path) -> None:
    closed(kind, root)
    rebuild(root, settings=settings_of(kind))


def rebuilt_expired(kind: Kind, root: Path) -> None:
    expired(kind, root)
    rebuild(root, settings=settings_of(kind))


def damage(root: Path) -> None:
    path = log_files(root)[1]
    data = bytearray(path.read_bytes())
    data[3000:3200] = b"\x55" * 200
    path.write_bytes(data)


def damaged(kind: Kind, root: Path) -> None:
    closed(kind, root)
    damage(root)
    opened(kind, root).close()


def repaired(kind: Kind, root: Path) -> None:
    closed(kind, root)
    damage(root)
    repair(plan_repair(root, settings=settings_of(kind)))


def repaired_copy(kind: Kind, root: Path) -> None:
    closed(kind, root)
    damage(root)
    other = root.with_name("other")
    root.rename(other)
    repair(plan_repair(other, settings=settings_of(kind)), to=root)
    shutil.rmtree(other)


class _Killed(Exception):
    pass


class _KilledDisk(Disk):
    def replace(self, path: Path, content: bytes) -> None:
        if path.name == CHECKPOINT:
            raise _Killed
        super().replace(path, content)


def killed(kind: Kind, root: Path) -> None:
    """An opening that built everything again was killed, and another one went on."""
    closed(kind, root)
    (root / CHECKPOINT).unlink()
    for path in sorted((root / INDEX).iterdir())[1:]:
        path.unlink()
    with pytest.raises(_Killed):
        opened(kind, root, disk=_KilledDisk())
    opened(kind, root).close()


STATES: tuple[State, ...] = (closed, expired, rebuilt, rebuilt_expired, damaged, repaired, repaired_copy, killed)


# -- changes -----------------------------------------------------------------------------------------------------------

Change = Callable[[Path, Kind], None]
CHANGES: dict[str, Change] = {}


def change(name: str, *arguments: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        CHANGES[name] = lambda root, kind: function(root, kind, *arguments)
        return function

    return decorate


@change("nothing")
def _nothing(root: Path, kind: Kind) -> None:
    pass


def index_files(root: Path) -> list[Path]:
    return sorted((root / INDEX).iterdir())


for _from in (0, 1, -1):

    @change(f"index file {_from} copied after the last", _from, "20990101000000000")
    @change(f"index file {_from} copied before the first", _from, "20000101000000000")
    def _copy_index(root: Path, kind: Kind, number: int, name: str) -> None:
        shutil.copy(index_files(root)[number], root / INDEX / name)

    @change(f"index file {_from} copied after itself", _from)
    def _copy_index_beside(root: Path, kind: Kind, number: int) -> None:
        path = index_files(root)[number]
        shutil.copy(path, path.with_name(str(int(path.name) + 1)))

    @change(f"index file {_from} removed", _from)
    def _remove_index(root: Path, kind: Kind, number: int) -> None:
        index_files(root)[number].unlink()

    @change(f"index file {_from} renamed to the last", _from)
    def _rename_index(root: Path, kind: Kind, number: int) -> None:
        index_files(root)[number].rename(root / INDEX / "20990101000000000")

    @change(f"index file {_from} of the earlier stop", _from)
    def _old_index(root: Path, kind: Kind, number: int) -> None:
        path = index_files(root.with_name(OLD))[number]
        shutil.copy(path, root / INDEX / path.name)


@change("empty index file", 0, "20990101000000000")
@change("empty index file first", 0, "20000101000000000")
@change("index file of zeros", None, "20990101000000000")
@change("index file of zeros first", None, "20000101000000000")
@change("short index file", 100, "20990101000000000")
@change("foreign file in index", 100, "README")
def _blank_index(root: Path, kind: Kind, size: int | None, name: str) -> None:
    size = index_files(root)[0].stat().st_size if size is None else size
    (root / INDEX / name).write_bytes(bytes(size))


@change("index file without items")
def _index_without_items(root: Path, kind: Kind) -> None:
    data = bytearray(index_files(root)[0].stat().st_size)
    data[39] = 1  # the next item
    (root / INDEX / "20990101000000000").write_bytes(data)


@change("foreign directory in index", f"{INDEX}/copy")
@change("topic without queues", f"{CONSUME_QUEUE}/foreign")
@change("queue without files", f"{CONSUME_QUEUE}/foreign/0")
@change("batch topic without queues", f"{BATCH_CONSUME_QUEUE}/foreign")
@change("batch queue without files", f"{BATCH_CONSUME_QUEUE}/foreign/0")
@change("extension without files", f"{CONSUME_QUEUE_EXT}/foreign/0")
@change("light topic without queues", f"{CONSUME_QUEUE}/%LMQ%foreign")
@change("light queue without files", f"{CONSUME_QUEUE}/%LMQ%foreign/0")
@change("no queue id", f"{CONSUME_QUEUE}/foreign/first")
@change("directory as unit file", f"{CONSUME_QUEUE}/foreign/0/{offset_name(0)}")
@change("lost+found", "lost+found")
def _directory(root: Path, kind: Kind, place: str) -> None:
    (root / place).mkdir(parents=True)


def _file_size(root: Path, tree: str) -> int:
    return {CONSUME_QUEUE: SIZES["mapped_file_size_consume_queue"],
            BATCH_CONSUME_QUEUE: SIZES["mapper_file_size_batch_consume_queue"],
            CONSUME_QUEUE_EXT: SIZES["mapped_file_size_consume_queue_ext"]}[tree]  # fmt: skip


for _tree in QUEUE_TREES:
    for _topic in ("foreign", "%LMQ%foreign"):

        @change(f"empty file in {_tree} of {_topic}", _tree, _topic, 0)
        @change(f"blank file in {_tree} of {_topic}", _tree, _topic, None)
        def _blank_file(root: Path, kind: Kind, tree: str, topic: str, size: int | None) -> None:
            place = root / tree / topic / "0"
            place.mkdir(parents=True)
            (place / offset_name(0)).write_bytes(bytes(_file_size(root, tree) if size is None else size))

    for _place in (".", "foreign", "foreign/0"):

        @change(f"foreign file in {_tree}/{_place}", _tree, _place)
        def _foreign_file(root: Path, kind: Kind, tree: str, place: str) -> None:
            (root / tree / place).mkdir(parents=True, exist_ok=True)
            (root / tree / place / "README").write_bytes(b"text")


for _queue in (0, 1):

    @change(f"empty file after queue {_queue}", _queue, 0, 1)
    @change(f"blank file after queue {_queue}", _queue, None, 1)
    @change(f"blank file far after queue {_queue}", _queue, None, 3)
    def _append_file(root: Path, kind: Kind, number: int, size: int | None, after: int) -> None:
        files = kind.files(root, kind.queues[number])
        whole = files[-1].stat().st_size
        path = files[-1].with_name(offset_name(int(files[-1].name) + after * whole))
        path.write_bytes(bytes(whole if size is None else size))

    @change(f"blank file before queue {_queue}", _queue)
    def _file_before(root: Path, kind: Kind, number: int) -> None:
        files = kind.files(root, kind.queues[number])
        whole = files[0].stat().st_size
        files[0].with_name(offset_name(max(0, int(files[0].name) - whole))).write_bytes(bytes(whole))

    for _file in (0, 1, -1):

        @change(f"file {_file} of queue {_queue} removed", _queue, _file)
        def _remove_file(root: Path, kind: Kind, number: int, file: int) -> None:
            kind.files(root, kind.queues[number])[file].unlink()

        @change(f"file {_file} of queue {_queue} of the earlier stop", _queue, _file)
        def _old_file(root: Path, kind: Kind, number: int, file: int) -> None:
            path = kind.files(root.with_name(OLD), kind.queues[number])[file]
            shutil.copy(path, kind.directory(root, kind.queues[number]) / path.name)

    @change(f"queue {_queue} removed", _queue)
    def _remove_queue(root: Path, kind: Kind, number: int) -> None:
        shutil.rmtree(kind.directory(root, kind.queues[number]))

    @change(f"queue {_queue} copied to another id", _queue, None, 7)
    @change(f"queue {_queue} copied to another topic", _queue, "foreign", 0)
    @change(f"queue {_queue} copied to a light topic", _queue, "%LMQ%foreign", 0)
    @change(f"queue {_queue} copied to another id of a light topic", _queue, "%LMQ%foreign", 3)
    def _copy_queue(root: Path, kind: Kind, number: int, topic: str | None, queue_id: int) -> None:
        key = kind.queues[number]
        shutil.copytree(kind.directory(root, key), kind.directory(root, (topic or key[0], queue_id)))

    @change(f"old queue {_queue} copied to another id", _queue, None, 7)
    @change(f"old queue {_queue} copied to another topic", _queue, "foreign", 0)
    @change(f"old queue {_queue} copied to another topic, its first file", _queue, "foreign", 0, 1)
    @change(f"old queue {_queue} copied to another light topic", _queue, "%LMQ%foreign", 0)
    @change(f"old queue {_queue} copied to another light topic, its first file", _queue, "%LMQ%foreign", 0, 1)
    @change(f"old queue {_queue} copied to another id of a light topic", _queue, "%LMQ%foreign", 3, 1)
    def _copy_old(root: Path, kind: Kind, number: int, topic: str | None, queue_id: int, files: int = 100) -> None:
        key = kind.queues[number]
        target = kind.directory(root, (topic or key[0], queue_id))
        target.mkdir(parents=True)
        for path in kind.files(root.with_name(OLD), key)[:files]:
            shutil.copy(path, target / path.name)

    for _tree in QUEUE_TREES:

        @change(f"queue {_queue} copied to {_tree}", _queue, _tree)
        def _copy_to_tree(root: Path, kind: Kind, number: int, tree: str) -> None:
            topic, queue_id = kind.queues[number]
            if tree != kind.tree:
                shutil.copytree(
                    kind.directory(root, kind.queues[number]), root / tree / topic / str(queue_id), dirs_exist_ok=True
                )


@change("extension removed")
def _remove_extension(root: Path, kind: Kind) -> None:
    shutil.rmtree(root / CONSUME_QUEUE_EXT, ignore_errors=True)


@change("last file of each extension removed")
def _cut_extension(root: Path, kind: Kind) -> None:
    for directory in sorted((root / CONSUME_QUEUE_EXT).glob("*/*")):
        sorted(directory.iterdir())[-1].unlink()


@change("queue of fillers", FILLER)
def _fillers(root: Path, kind: Kind, unit: bytes) -> None:
    place = root / CONSUME_QUEUE / "foreign" / "0"
    place.mkdir(parents=True)
    size = _file_size(root, CONSUME_QUEUE)
    (place / offset_name(0)).write_bytes((unit * 3).ljust(size, b"\0"))


for _name in (CHECKPOINT, SNAPSHOT, SIZES_FILE, LOCK):

    @change(f"{_name} removed", _name)
    def _remove(root: Path, kind: Kind, name: str) -> None:
        (root / name).unlink(missing_ok=True)

    @change(f"{_name} of the earlier stop", _name)
    def _old(root: Path, kind: Kind, name: str) -> None:
        if (root.with_name(OLD) / name).exists():
            shutil.copy(root.with_name(OLD) / name, root / name)

    @change(f"{_name} emptied", _name, None, None)
    @change(f"{_name} cut", _name, 100, None)
    @change(f"{_name} garbled at its begin", _name, None, 3)
    @change(f"{_name} garbled", _name, None, 70)
    @change(f"{_name} of zeros", _name, -1, None)
    def _garble(root: Path, kind: Kind, name: str, size: int | None, at: int | None) -> None:
        path = root / name
        data = bytearray(path.read_bytes()) if path.exists() else bytearray()
        if at is not None and at < len(data):
            data[at] ^= 1
        elif size == -1:
            data = bytearray(len(data))
        elif at is None:
            data = data[: size or 0]
        path.write_bytes(data)


@change("seal removed")
def _unseal(root: Path, kind: Kind) -> None:
    data = (root / CHECKPOINT).read_bytes()
    (root / CHECKPOINT).write_bytes(data[:48].ljust(len(data), b"\0"))


for _field in ("log_end_offset", "queue_count", "unit_count", "index_item_count"):
    for _by in (-1, 1):

        @change(f"seal's {_field} {_by:+}", _field, _by)
        def _other_seal(root: Path, kind: Kind, field: str, by: int) -> None:
            checkpoint = Checkpoint.load(root, Disk())
            if checkpoint.seal:
                seal = replace(checkpoint.seal, **{field: getattr(checkpoint.seal, field) + by})
                replace(checkpoint, seal=seal).store(root, Disk())


@change("config removed")
def _remove_config(root: Path, kind: Kind) -> None:
    shutil.rmtree(root / CONFIG, ignore_errors=True)


@change("touched")
def _touch(root: Path, kind: Kind) -> None:
    for path in root.rglob("*"):
        os.utime(path, ns=(1, 1))


@change("empty file after the log", 0)
@change("blank file after the log", SIZES["mapped_file_size_commit_log"])
def _log_file(root: Path, kind: Kind, size: int) -> None:
    last = log_files(root)[-1]
    last.with_name(offset_name(int(last.name) + SIZES["mapped_file_size_commit_log"])).write_bytes(bytes(size))


@change("first log file removed", 0)
@change("last log file removed", -1)
def _remove_log(root: Path, kind: Kind, number: int) -> None:
    log_files(root)[number].unlink()


# -- the check ---------------------------------------------------------------------------------------------------------


def disagreement(kind: Kind, root: Path) -> str:
    """What opening does otherwise than verify says; changes the store."""
    settings = settings_of(kind)
    report = verify(root, settings=settings)
    if not report.clean:
        return ""
    announced = any(REBUILDS in note for note in report.notes)
    if not report.ok and not announced:
        return ""
    try:
        with opened(kind, root) as store:
            does = store.recovery.rebuilt
    except StratalogError as error:
        return f"opening raised {error}"
    if does != announced:
        return f"opening rebuilt: {does}, verify announced it: {announced}; ok {report.ok} {report.notes}"
    if announced:
        return ""
    again = verify(root, settings=settings)
    for name in ("ok", "unit_count", "queue_count", "index_item_count", "record_count", "log_end", "notes",
                 "gone_count", "damages", "index_file_count"):  # fmt: skip
        if getattr(again, name) != getattr(report, name):
            return f"{name} was {getattr(report, name)!r}, is {getattr(again, name)!r} {again.problems[:1]}"
    return ""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Kind, State], Path]:
    """A store of a kind in a state, and beside it what it was at an earlier stop."""
    stores: dict[Any, Path] = {}

    def make(kind: Kind, state: State) -> Path:
        if (kind.name, state) not in stores:
            folder = tmp_path_factory.mktemp("state")
            state(kind, folder / "store")
            stores[kind.name, state] = folder
        return stores[kind.name, state]

    return make


def disagreement_after(kind: Kind, root: Path, mend: Callable[[Path, StoreSettings], Any]) -> str:
    """What is left to do by an opening of a store that was rebuilt or repaired."""
    settings = settings_of(kind)
    try:
        mend(root, settings)
    except StratalogError:
        return ""
    report = verify(root, settings=settings)
    if not report.clean or not report.ok:
        return "" if report.clean else "not clean"
    if any(REBUILDS in note for note in report.notes):
        return f"announced {report.notes}"
    return disagreement(kind, root)


def rebuild_with(root: Path, settings: StoreSettings) -> None:
    rebuild(root, settings=settings)


def in_place(root: Path, settings: StoreSettings) -> None:
    plan = plan_repair(root, settings=settings)
    if plan.unmended or not plan.actions:
        raise NotAStore("nothing to do")
    repair(plan)


CASES = [(kind, state) for kind in KINDS for state in STATES]


@pytest.fixture
def changed(made: Callable[[Kind, State], Path], tmp_path: Path) -> Callable[[Kind, State, str], Path]:
    """A store of a kind in a state, changed; one at a time."""

    def make(kind: Kind, state: State, name: str) -> Path:
        shutil.rmtree(tmp_path / "here", ignore_errors=True)
        shutil.copytree(made(kind, state), tmp_path / "here")
        CHANGES[name](tmp_path / "here" / "store", kind)
        return tmp_path / "here" / "store"

    return make


@pytest.mark.one_in(108)
@pytest.mark.parametrize(("number", "name"), list(enumerate(CHANGES)), ids=list(CHANGES))
def test_what_verify_says_opening_does(number: int, name: str, changed: Callable[[Kind, State, str], Path]) -> None:
    """Each change to a few of the kinds and states, all of which have their turn."""
    for kind, state in (CASES[(7 * number + turn) % len(CASES)] for turn in (0, 9)):
        assert not disagreement(kind, changed(kind, state, name)), (kind, state.__name__)


@pytest.mark.parametrize("state", ["closed", "closed by RocketMQ", "killed", "killed with a seal"])
@pytest.mark.parametrize("kept_size", [500, 2000, -20, -1])
def test_a_tail_of_zeros_is_cut_off_where_verify_says_so(kept_size: int, state: str, tmp_path: Path) -> None:
    PLAIN.made(tmp_path)
    STOPS[state](tmp_path)
    path = max((tmp_path / "commitlog").iterdir())
    data = path.read_bytes()
    kept = data.rstrip(b"\0")[:kept_size]
    path.write_bytes(kept.ljust(len(data), b"\0"))
    report = verify(tmp_path, settings=StoreSettings.make({**SIZES}))
    texts = [*report.notes, *map(str, report.problems)]
    with PLAIN.open(tmp_path) as store:
        is_cut_off = store.recovery.torn_size > 0
    assert any("cuts them off" in text for text in texts) == is_cut_off


@pytest.mark.one_in(36)
@pytest.mark.parametrize("name", ["nothing", "seal's unit_count +1"])
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_store_agrees(
    kind: Kind, state: State, name: str, changed: Callable[[Kind, State, str], Path]
) -> None:
    assert not disagreement(kind, changed(kind, state, name))


MENDED = [
    name for name in CHANGES if any(word in name for word in ("copied", "blank", "without", "fillers", "extension"))
]


@pytest.mark.one_in(72)
@pytest.mark.parametrize("mend", [rebuild_with, in_place])
@pytest.mark.parametrize(("number", "name"), list(enumerate(MENDED)), ids=MENDED)
def test_after_rebuild_and_repair_opening_builds_nothing_again(
    number: int, name: str, mend: Callable[[Path, StoreSettings], Any], changed: Callable[[Kind, State, str], Path]
) -> None:
    kind, state = KINDS[number % len(KINDS)], (closed, expired, damaged)[number // 2 % 3]
    assert not disagreement_after(kind, changed(kind, state, name), mend), (kind, state.__name__)


def test_a_queue_of_expired_messages_without_its_extension_is_not_built_again_for_ever(
    changed: Callable[[Kind, State, str], Path],
) -> None:
    name = "old queue 0 copied to another topic, its first file"
    assert not disagreement_after(EXTENDED, changed(EXTENDED, expired, name), rebuild_with)


def test_a_light_queue_below_the_batch_queues_is_none_of_them(changed: Callable[[Kind, State, str], Path]) -> None:
    root = changed(LIGHT_KIND, closed, "queue 0 copied to batchconsumequeue")
    assert not verify(root, settings=settings_of(LIGHT_KIND)).ok
    assert not disagreement_after(LIGHT_KIND, root, rebuild_with)
    assert not (root / BATCH_CONSUME_QUEUE / LIGHT_KIND.queues[0][0]).exists()


@pytest.mark.parametrize("name", ["index file 0 copied after the last", "index file 0 renamed to the last"])
def test_index_items_that_stand_twice_or_out_of_order_are_a_problem(
    name: str, changed: Callable[[Kind, State, str], Path]
) -> None:
    report = verify(changed(PLAIN, closed, name), settings=settings_of(PLAIN))
    assert [problem.part for problem in report.problems] == ["index"]


def _change_index(path: Path, what: str) -> None:
    data, slots = bytearray(path.read_bytes()), SIZES["max_hash_slot_num"]
    at, form = {
        "used slots": (HEADER.position("used_slot_count"), ">i"),
        "a slot": (next(p for p in range(HEADER.size, HEADER.size + 4 * slots, 4) if any(data[p : p + 4])), ">i"),
        "an item": (items_position(slots) + 9 * ITEM.size + ITEM.position("previous_item"), ">i"),
    }[what]
    value = struct.unpack_from(form, data, at)[0]
    struct.pack_into(form, data, at, 1 + value if what == "used slots" else 3 if value != 3 else 4)
    path.write_bytes(data)


@pytest.mark.parametrize("what", ["used slots", "a slot", "an item"])
@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_index_chains_that_opening_makes_again_are_no_problem(
    what: str, number: int, is_sealed: bool, changed: Callable[[Kind, State, str], Path]
) -> None:
    """RocketMQ, which leaves no seal, goes on with a file after its header's items, whatever its slots lead to."""
    root = changed(PLAIN, closed, "nothing" if is_sealed else "seal removed")
    items = b"".join(path.read_bytes()[HEADER.size :] for path in index_files(root))
    _change_index(index_files(root)[number], what)
    settings = settings_of(PLAIN)
    report = verify(root, settings=settings)
    assert report.ok == (not is_sealed)
    if is_sealed:
        return
    assert [("builds them again from the items" in note) for note in report.notes] == [True]
    opened(PLAIN, root).close()
    report = verify(root, settings=settings)
    assert report.ok
    assert not report.notes
    assert b"".join(path.read_bytes()[HEADER.size :] for path in index_files(root)) == items
