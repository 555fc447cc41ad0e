"""Reading a store that another process writes: what is seen is one state of it, whatever changes meanwhile."""

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stratalog
from store.kinds import KINDS, SIZES, Content, Kind
from store.model import QUIET, SMALL, Clock, crash_copy
from stratalog.config.settings import StoreSettings
from stratalog.errors import OffsetOutOfRange, StoreClosed, StoreReadOnly
from stratalog.layout import names
from stratalog.store import log_scan
from stratalog.store.commit_log import CommitLog
from stratalog.store.disk import Disk, PrivateDisk
from stratalog.store.extension import ExtensionFiles
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore
from stratalog.tools import dump_files, survey
from stratalog.tools import map as store_map
from stratalog.tools.dump_files import dump_commit_log
from stratalog.tools.map import map_store
from stratalog.tools.verify import verify
from stratalog.tools.verify_queues import QueueCheck, _QueueFiles
from stratalog.tools.verify_special import SpecialQueues

BODY_SIZE = 900
COUNTED = frozenset({"files", "directories", "map", "open", "read", "exists", "stamp"})


class InterruptedDisk(PrivateDisk):
    """A reader's disk: just before its `number`-th look at the files something happens to them."""

    def __init__(self, number: int, event: Callable[[], None]) -> None:
        super().__init__()
        self.looks = 0
        self._number, self._event = number, event

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in COUNTED:
            self.looks += 1
            if self.looks == self._number:
                self._event()
        return found


def put_some(store: MessageStore, count: int) -> None:
    """The n-th message of all says so, and which queue it is in."""
    for _ in range(count):
        queue = store.queue("t", 0)
        queue.put(b"%d" % queue.next_offset + bytes(BODY_SIZE), keys=["k"])


def seen(store: MessageStore) -> range:
    """Offsets of the messages of queue t/0, each checked to be the one that was put there."""
    queue = store.queue("t", 0)
    messages = list(queue.read())
    assert [message.body for message in messages] == [b"%d" % m.queue_offset + bytes(BODY_SIZE) for m in messages]
    offsets = [message.queue_offset for message in messages]
    found = range(queue.min_offset, queue.max_offset)
    assert offsets == list(found)
    return found


class Writer:
    """The other process, as far as the files can tell."""

    def __init__(self, root: Path, *, count: int = 150) -> None:
        self.root = root
        self.store = self.open()
        put_some(self.store, count)  # 64 KiB hold some 60
        self.store._flush_all()

    def open(self) -> MessageStore:
        return stratalog.open(self.root, **(SMALL | QUIET))

    def roll(self) -> None:
        put_some(self.store, 200)
        self.store._flush_all()

    def put(self) -> None:
        put_some(self.store, 1)

    def begin_a_queue(self) -> None:
        self.store.put("new", b"x", keys=["k"])
        self.roll()

    def close(self) -> None:
        self.roll()
        self.store.close()

    def open_again(self) -> None:
        self.store = self.open()
        self.roll()

    def retain(self) -> None:
        """What a broker does with its oldest files."""
        self.roll()
        for path in sorted((self.root / names.COMMIT_LOG).iterdir())[:3]:
            path.unlink()
        for path in sorted((self.root / names.CONSUME_QUEUE / "t" / "0").iterdir())[:2]:
            path.unlink()


EVENTS = ["put", "roll", "begin_a_queue", "close", "open_again", "retain"]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("event", EVENTS)
def test_whatever_happens_between_two_looks_at_the_files_one_state_is_seen(event: str, tmp_path: Path) -> None:
    for number in itertools.count(1):
        root = tmp_path / str(number)
        writer = Writer(root)
        if event == "open_again":
            writer.store.close()
        disk = InterruptedDisk(number, getattr(writer, event))
        with stratalog.open(root, mode="r", disk=disk, **(SMALL | QUIET)) as reader:
            assert not reader.recovery.quarantined
            found = seen(reader)
            assert found.start == 0 or event == "retain"
            assert found.stop >= 150
        writer.store.close()
        shutil.rmtree(root)
        if disk.looks < number:
            break


def test_what_is_put_while_the_log_is_walked_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk finds nothing at the end; when it looks for a later record, there is one, and one in front of it."""
    writer = Writer(tmp_path)
    while writer.store.log.end_offset % 4096 > 1000:  # pages that were never written are not looked at
        put_some(writer.store, 1)
    end = writer.store.queue("t", 0).max_offset
    find = log_scan._next_record
    counts = iter([3])

    def find_later(log: CommitLog, offset: int) -> int | None:
        put_some(writer.store, next(counts, 0))
        return find(log, offset)

    monkeypatch.setattr(log_scan, "_next_record", find_later)
    with stratalog.open(tmp_path, mode="r", **(SMALL | QUIET)) as reader:
        assert not reader.recovery.quarantined
        assert seen(reader).stop > end
    assert next(counts, None) is None
    monkeypatch.undo()
    writer.store.close()


# -- following -------------------------------------------------------------------------------------------------------


def taken(messages: Iterator[Message], count: int) -> list[bytes]:
    return [message.body.rstrip(b"\0") for message in itertools.islice(messages, count)]


def numbered(begin: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, stop)]


def test_a_reader_follows_a_writer_that_rolls_closes_opens_crashes_and_deletes(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "store")
    with stratalog.open(writer.root, mode="r", **(SMALL | QUIET)) as reader:
        followed = reader.queue("t", 0).read(follow=True)
        assert taken(followed, 150) == numbered(0, 150)
        writer.put()
        assert taken(followed, 1) == numbered(150, 151)
        writer.roll()
        assert taken(followed, 200) == numbered(151, 351)
        writer.close()
        writer.open_again()
        assert taken(followed, 400) == numbered(351, 751)
        writer.retain()
        assert taken(followed, 200) == numbered(751, 951)
        crash_copy(writer.store, tmp_path / "crashed")
        followed.close()  # type: ignore[attr-defined]
        writer.store.close()
    writer = Writer(tmp_path / "crashed", count=0)
    assert not writer.store.recovery.clean
    with stratalog.open(writer.root, mode="r", **(SMALL | QUIET)) as reader:
        followed = reader.queue("t", 0).read(940, follow=True)
        assert taken(followed, 11) == numbered(940, 951)
        writer.roll()
        assert taken(followed, 200) == numbered(951, 1151)
    with pytest.raises(StoreClosed):
        next(followed)
    writer.store.close()


def test_following_begins_before_the_first_message_and_sees_every_kind_of_queue(tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SMALL) as store:
        store.create_topic("b", queue_type="BatchCQ")
        with stratalog.open(tmp_path, mode="r") as reader:
            followed = {topic: reader.queue(topic, 0).read(follow=True) for topic in "tb"}
            for number in range(3):
                store.put("t", b"%d" % (3 * number))
                store.queue("b", 0).put_batch([b"%d" % (3 * number + n) for n in range(3)], unique_key=f"u{number}")
                assert taken(followed["t"], 1) == [b"%d" % (3 * number)]
                assert taken(followed["b"], 3) == numbered(3 * number, 3 * number + 3)
                store.flush()
            assert list(reader.queue("t", 0).read(count=0, follow=True)) == []


def test_a_follower_is_told_what_was_deleted_before_it_read_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    with stratalog.open(tmp_path, mode="r", **(SMALL | QUIET)) as reader:
        followed = reader.queue("t", 0).read(follow=True)
        assert taken(followed, 150) == numbered(0, 150)
        writer.roll()
        writer.retain()
        with pytest.raises(OffsetOutOfRange, match="from 150 on were deleted") as raised:
            next(followed)
        assert taken(reader.fresh_view().queue("t", 0).read(raised.value.next_offset), 1) == [
            b"%d" % raised.value.next_offset
        ]
    writer.store.close()


def replace(kind: Kind, root: Path, *, kept: int, more: int) -> None:
    """Put a backup of a store in its place, which has its first messages, or a new one, and put there."""
    shutil.rmtree(root)
    if kept:
        kind.made(root, count=kept)
    with kind.open(root, clock_ns=Clock(Clock().now_ms + 100_000)) as store:
        kind.fill(store, Content(), begin=100, count=more)


@pytest.mark.parametrize("more", [1, 24, 70], ids=lambda count: f"{count} more")
@pytest.mark.parametrize("kept", [0, 20], ids=["new", "backup"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_follower_is_told_that_another_store_was_put_in_the_place(
    kind: Kind, kept: int, more: int, tmp_path: Path
) -> None:
    content, key = kind.made(tmp_path, count=44), kind.queues[0]
    with stratalog.open(tmp_path, mode="r", **SIZES, **kind.settings) as reader:
        end = reader.queue(*key).max_offset
        assert end == len(content.queues[key])
        followed = reader.queue(*key).read(follow=True)
        assert [message.queue_offset for message in itertools.islice(followed, end)] == list(range(end))
        replace(kind, tmp_path, kept=kept, more=more)
        with stratalog.open(tmp_path, mode="r", **SIZES, **kind.settings) as store:
            now = store.queue(*key).max_offset
        with pytest.raises(OffsetOutOfRange, match=f"is not the queue that was read up to offset {end}:") as raised:
            next(followed)
        assert raised.value.next_offset == (now if now < end else 0)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_follower_goes_on_in_a_copy_that_has_what_it_read(kind: Kind, tmp_path: Path) -> None:
    root, content, key = tmp_path / "store", Content(), kind.queues[0]
    with kind.open(root) as store:
        kind.fill(store, content)
    with stratalog.open(root, mode="r", **SIZES, **kind.settings) as reader:
        followed, end = reader.queue(*key).read(follow=True), len(content.queues[key])
        assert len(list(itertools.islice(followed, end))) == end
        shutil.copytree(root, tmp_path / "copy")
        shutil.rmtree(root)
        shutil.move(tmp_path / "copy", root)
        with kind.open(root) as store:
            kind.fill(store, content, begin=40, count=9)
        more = [message.queue_offset for message in itertools.islice(followed, len(content.queues[key]) - end)]
        assert more == list(range(end, len(content.queues[key])))


class WatchedDisk(Disk):
    """A writer's disk: `look` is called before each change."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def __getattribute__(self, name: str) -> Any:
        if name in {"replace", "remove", "_create", "create_directory", "sync_directory", "touch"}:
            self._look()
        return super().__getattribute__(name)


def lose_a_queue(kind: Kind, root: Path) -> None:
    shutil.rmtree(kind.directory(root, kind.queues[0]))


def zero_a_queue(kind: Kind, root: Path) -> None:
    for path in kind.files(root, kind.queues[0])[-2:]:
        path.write_bytes(bytes(path.stat().st_size))


def tear_the_log(_: Kind, root: Path) -> None:
    newest = max((root / names.COMMIT_LOG).iterdir())
    data = newest.read_bytes()
    end = len(data.rstrip(b"\0"))
    newest.write_bytes(data[: end - 30] + bytes(len(data) - end + 30))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "harm", [None, lose_a_queue, zero_a_queue, tear_the_log], ids=["whole", "lost", "zeroed", "torn"]
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_beside_a_writer_that_recovers_no_queue_is_shorter(
    kind: Kind, harm: Callable[[Kind, Path], None] | None, tmp_path: Path
) -> None:
    root, content = tmp_path / "crashed", Content()
    with kind.open(tmp_path / "store") as store:
        kind.fill(store, content)
        store._flush_all()
        kind.fill(store, content, begin=40, count=7)
        crash_copy(store, root)
    if harm:
        harm(kind, root)

    def ends() -> list[int]:
        with stratalog.open(root, mode="r", **SIZES, **kind.settings) as reader:
            return [reader.queue(*key).max_offset for key in kind.queues]

    seen = [ends()]
    with kind.open(root, disk=WatchedDisk(lambda: seen.append(ends()))):
        pass
    assert len(seen) > 5
    assert seen == [ends()] * len(seen)


WRITER = """
import sys, stratalog
with stratalog.open(sys.argv[1], mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=1000,
                    max_hash_slot_num=100, max_index_num=400, flush_interval_consume_queue=20) as store:
    queue = store.queue("t", 0)
    print("ready", flush=True)
    number = 0
    while True:
        queue.put(b"%d" % number + bytes(900), keys=["k"])
        number += 1
"""


@pytest.fixture
def rolling(tmp_path: Path) -> Iterator[Path]:
    """A store that another process puts to as fast as it can: a log file is full after some 70 messages."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield tmp_path
        process.kill()


def test_a_store_whose_writer_rolls_all_the_time_can_always_be_opened(rolling: Path) -> None:
    stop = 0
    for _ in range(25):
        with stratalog.open(rolling, mode="r", **SMALL) as reader:
            assert not reader.recovery.quarantined
            found = range(reader.queue("t", 0).max_offset)
            assert found.stop >= stop
            newest = list(reader.queue("t", 0).read(max(0, found.stop - 100)))
            assert [message.body for message in newest] == [b"%d" % m.queue_offset + bytes(900) for m in newest]
            stop = found.stop
        if stop > 60_000:  # a gigabyte is in nobody's interest
            break
    assert stop


def test_a_follower_keeps_up_with_another_process(rolling: Path) -> None:
    with stratalog.open(rolling, mode="r", **SMALL) as reader:
        assert taken(reader.queue("t", 0).read(follow=True), 5000) == numbered(0, 5000)


def test_opening_beside_a_process_that_keeps_putting(tmp_path: Path) -> None:
    """What comes after the log's end grows while it is looked at."""
    program = f"""
import os, stratalog, time
with stratalog.open({str(tmp_path / "s")!r}, small=True, enable_consume_queue_ext=True) as store:
    store.put("t", b"first")
    print("begun", flush=True)
    while os.getppid() == {os.getpid()}:
        for _ in range(10):
            store.put("t", b"x" * 200)
        time.sleep(0.02)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        assert writer.stdout.readline() == b"begun\n"
        try:
            for _ in range(25):
                with stratalog.open(tmp_path / "s", mode="r") as reader:
                    assert next(iter(reader.queue("t").read())).body == b"first"
                report = verify(tmp_path / "s")
                assert (report.is_live, report.problems) == (True, [])
        finally:
            writer.kill()


# -- tools beside a writer -------------------------------------------------------------------------------------------


def damages_of(tool: str, root: Path) -> list[Any]:
    """What a tool says is wrong in a log."""
    if tool == "verify":
        return verify(root, settings=StoreSettings(**SMALL), threads=1).problems
    if tool == "map":
        found = map_store(root, settings=StoreSettings(**SMALL)).damage_begin
        return [] if found is None else [found]
    return [item for path in (root / names.COMMIT_LOG).iterdir() for item in dump_commit_log(path) if item.data
            and item.kind == "damage"]  # fmt: skip


@pytest.mark.parametrize("count", [0, 10])
@pytest.mark.parametrize(
    ("tool", "module", "hook"),
    [
        *(("verify", survey, hook) for hook in ("next_record", "closes_file", "last_written")),
        *(("map", store_map, hook) for hook in ("next_record", "closes_file")),
        *(("dump", dump_files, hook) for hook in ("next_record", "closes_file", "last_written")),
    ],
    ids=str,
)
def test_what_a_writer_puts_while_a_tool_looks_at_the_log_s_end_is_no_damage(
    tool: str, module: Any, hook: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, calls = getattr(module, hook), 0
    with stratalog.open(tmp_path / "s", **SMALL | QUIET | {"flush": "sync"}) as store:
        store.log.reserve(np.array([1]))  # there is a file, with and without a record
        put_some(store, count)

        def after_puts(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                put_some(store, 2)
            return look(*given)

        monkeypatch.setattr(module, hook, after_puts)
        assert damages_of(tool, tmp_path / "s") == []
        assert calls


def test_a_file_that_a_writer_goes_on_to_while_verify_looks_at_the_one_before_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SMALL | {"mapped_file_size_commit_log": 8 << 20}
    real, calls = survey.survey_file, 0

    with stratalog.open(tmp_path / "s", **settings | QUIET) as store:

        def fill(count: int) -> None:
            for _ in range(count):
                store.put("t", bytes(1 << 20))

        def before_a_roll(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            found = real(*given, **named)
            if calls == 1:
                fill(4)
            return found

        fill(5)
        while len(list((tmp_path / "s" / names.COMMIT_LOG).iterdir())) < 2:  # made ahead on a thread
            time.sleep(0.001)
        monkeypatch.setattr(survey, "survey_file", before_a_roll)
        report = verify(tmp_path / "s", settings=StoreSettings(**settings), threads=1)
        assert report.problems == []
        assert report.record_count == 9


@pytest.mark.parametrize("is_before", [True, False], ids=["before it is mapped", "after"])
def test_verify_looks_again_where_a_writer_s_oldest_log_files_go_meanwhile(
    is_before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, real, calls = tmp_path / "s", survey.survey_file, 0
    with KINDS[0].open(root) as store:
        for number in range(400):
            KINDS[0].put(store, number, Content())
        store.dispatch()

        def expire(path: Path, *given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 1:
                names_of = sorted((root / names.COMMIT_LOG).iterdir())
                for old in names_of[: 1 + is_before]:
                    old.unlink()
            return real(path, *given, **named)

        monkeypatch.setattr(survey, "survey_file", expire)
        report = verify(root, settings=StoreSettings.make(SIZES), threads=1)
        assert (report.is_live, report.problems) == (True, [])
        assert report.log_begin == SIZES["mapped_file_size_commit_log"] * (1 + is_before)


LATE = tuple(
    (owner, name)
    for owner, names_of in (
        (survey, ("survey_file",)),
        (QueueCheck, ("check", "_register", "_compare", "finish")),
        (_QueueFiles, ("units",)),
        (ExtensionFiles, ("read",)),
        (SpecialQueues, ("_compare", "_stored", "_check_run")),
    )
    for name in names_of
)
"""Where something may happen between two looks of `verify` at the files."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [0, 3, 40])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_verify_beside_a_writer_finds_no_problem_in_any_kind_of_queue(
    kind: Kind, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StoreSettings.make({**SIZES, "enable_consume_queue_ext": kind.settings.get("enable_consume_queue_ext")
                                   or False})  # fmt: skip
    for owner, name in LATE:
        root = tmp_path / name
        with kind.open(root) as store, monkeypatch.context() as patch:
            content, numbers = Content(), itertools.count()

            def put(
                count: int, store: MessageStore = store, content: Content = content, numbers: Any = numbers
            ) -> None:
                for number in itertools.islice(numbers, count):
                    kind.put(store, number, content)

            store.put("other", b"x")
            if count:  # else there is no such queue yet, and no topic
                put(count)
                store.dispatch()
                put(9)  # in the log, and not yet in their queues
            looks, real = itertools.count(), getattr(owner, name)

            def beside(*given: Any, looks: Any = looks, real: Any = real, store: MessageStore = store, put: Any = put,
                       **more: Any) -> Any:  # fmt: skip
                number = next(looks)
                if number % 3 != 2:
                    store.dispatch()
                put(1 + number % 5)
                if number % 2:
                    store.dispatch()
                return real(*given, **more)

            patch.setattr(owner, name, beside)
            report = verify(root, settings=settings, threads=1)
            assert (report.is_live, report.problems) == (True, []), name
        assert verify(root, settings=settings).problems == []


@pytest.mark.parametrize("is_hole", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_unit_that_is_being_written_is_no_problem_and_a_wrong_one_is(
    kind: Kind, is_hole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = StoreSettings.make(SIZES)
    is_special = kind.name not in ("plain", "extended")
    owner, name = (SpecialQueues, "_stored") if is_special else (_QueueFiles, "units")
    with kind.open(tmp_path) as store:
        kind.fill(store, Content(), count=40)
        store.dispatch()
        real, looked = getattr(owner, name), set()

        def half_written(given: Any, *more: Any) -> Any:
            found = real(given, *more)
            units = (found[0] if is_special else found).copy()
            place = more or given
            written = np.flatnonzero(units["size"])
            if place not in looked and written.size > 3:
                looked.add(place)
                units[written[-3 if is_hole else -1]]["tags_code"] = 0
                if is_hole:
                    units[written[-3]] = 0
            return (units, found[1]) if is_special else units

        monkeypatch.setattr(owner, name, half_written)
        assert verify(tmp_path, settings=settings, threads=1).problems == []
        assert looked
        monkeypatch.undo()
        path = kind.files(tmp_path, kind.queues[0])[0]
        position = 3 * kind.layout.size + kind.layout.position("size")
        data = bytearray(path.read_bytes())
        data[position : position + 4] = bytes(4) if is_hole else b"\0\0\1\1"
        path.write_bytes(data)
        report = verify(tmp_path, settings=settings, threads=1)
        assert report.is_live
        assert [problem.path for problem in report.problems] == [str(path)] * len(report.problems) != []
        store.log.fail(StoreReadOnly("the test has damaged the store"))


@pytest.mark.one_in(72)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("meanwhile", ["opens", "opens and closes", "closes", "is opened again and again"])
def test_verify_finds_no_damage_where_a_writer_comes_or_goes_meanwhile(
    kind: Kind, meanwhile: str, tmp_path: Path
) -> None:
    content, begun = kind.made(tmp_path), 60
    stores = [kind.open(tmp_path)] if meanwhile == "closes" else []

    def act(*_: object) -> None:
        nonlocal begun
        if meanwhile == "closes":
            while stores:
                kind.fill(stores[-1], content, begin=begun, count=60)
                stores.pop().close()
        elif not stores or meanwhile.endswith("again"):
            stores.append(kind.open(tmp_path))
            kind.fill(stores[-1], content, begin=begun, count=60)
            begun += 60
            if meanwhile != "opens":
                stores[-1].close()

    report = verify(tmp_path, settings=StoreSettings().override({**SIZES, **kind.settings}), progress=act)
    assert (report.ok, report.problems[:2]) == (True, [])
    for store in stores:
        store.close()
