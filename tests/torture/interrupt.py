"""An exception from a signal handler at every line and call of everything that a store does."""

import asyncio
import contextlib
import gc
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pyarrow as pa

import stratalog
from crash.interrupts import (
    Dropped,
    Injector,
    Interrupted,
    Late,
    check_descriptors,
    interrupted_after,
    open_descriptors,
    unraisable_dropped,
)
from store.model import QUIET
from stratalog.config.settings import StoreSettings
from stratalog.errors import StoreClosed, StoreUnavailable
from stratalog.layout.light import MULTI_DISPATCH
from stratalog.layout.names import LOCK
from stratalog.layout.properties import encode_properties
from stratalog.layout.queue import BATCH_UNIT, UNIT
from stratalog.store.message_store import MessageStore
from stratalog.store.queue import Queue
from stratalog.store.record_put import Receipt
from stratalog.tools.verify import verify
from torture.report import Lost, Row, Torture, WrongPrefix

SETTINGS: dict[str, Any] = QUIET | {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 12 * UNIT.size,
    "mapper_file_size_batch_consume_queue": 5 * BATCH_UNIT.size,
    "max_hash_slot_num": 20,
    "max_index_num": 60,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}
LARGE_FILES = {"mapped_file_size_commit_log": 8 << 20}
"""The next file is made ahead, on a thread."""
BUSY = {"flush_interval_commit_log": 1, "flush_interval_consume_queue": 1, "beside": 3}
HANG_S = 20.0
SAMPLE = 2
LIGHT = ("%LMQ%a", "%LMQ%b")
Key = tuple[str, int]


@dataclass
class Diary:
    """What was put, by queue; what was acknowledged, by queue and offset."""

    begun: set[bytes] = field(default_factory=set)
    acknowledged: dict[Key, dict[int, bytes]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def bodies(self, number: int, size: int = 20) -> list[bytes]:
        """New ones, each unlike all others."""
        bodies = [b"%08d" % next(self.numbers) * (size // 8) for _ in range(number)]
        self.begun.update(bodies)
        return bodies

    def put(self, topic: str, receipts: Iterable[Receipt], bodies: Iterable[bytes], queue_id: int = 0) -> None:
        for receipt, body in zip(receipts, bodies, strict=True):
            self.take(topic, queue_id, receipt.queue_offset, body)

    def take(self, topic: str, queue_id: int, queue_offset: int, body: bytes) -> None:
        known = self.acknowledged.setdefault((topic, queue_id), {})
        if queue_offset in known:
            raise WrongPrefix(f"offset {queue_offset} of {topic}/{queue_id} was given twice")
        known[queue_offset] = body

    def compare(self, store: MessageStore) -> None:
        """All that was acknowledged can be read where it was, nothing was invented, and no offset is missing."""
        for topic, queue_id in store.queues():
            read = list(store.queue(topic, queue_id).read())
            offsets = [message.queue_offset for message in read]
            if offsets != list(range(offsets[0], offsets[0] + len(offsets)) if offsets else []):
                raise WrongPrefix(f"the offsets of {topic}/{queue_id} have a gap: {offsets}")
            if any(message.body not in self.begun for message in read):
                raise WrongPrefix(f"{topic}/{queue_id} holds a message that was never put")
        for (topic, queue_id), known in self.acknowledged.items():
            there = {message.queue_offset: message.body for message in store.queue(topic, queue_id).read()}
            for queue_offset, body in known.items():
                if there.get(queue_offset) != body:
                    raise Lost(f"{topic}/{queue_id} offset {queue_offset} was acknowledged and is not there")


Operation = Callable[[MessageStore, Diary], None]


def _put(store: MessageStore, diary: Diary) -> None:
    (body,) = diary.bodies(1)
    diary.put("t", [store.put("t", body, tags="a", keys=["k", "m"])], [body])


def _put_in_python(store: MessageStore, diary: Diary) -> None:
    (body,) = diary.bodies(1)
    diary.put("t", [store.put("t", bytearray(body), keys="k", properties={"a": "b"})], [body])  # type: ignore[arg-type]


def _put_first(store: MessageStore, diary: Diary) -> None:
    (body,) = diary.bodies(1)
    diary.put("new", [store.put("new", body, queue_id=3)], [body], 3)


def _put_raw(store: MessageStore, diary: Diary) -> None:
    (body,) = diary.bodies(1)
    diary.put("t", [store.queue("t", 1).put_raw(body, b"KEYS\x01k\x02")], [body], 1)


def _put_and_roll(store: MessageStore, diary: Diary) -> None:
    for body in diary.bodies(4, size=store.settings.commit_log_file_size * 2 // 5):
        diary.put("t", [store.put("t", body, keys="k")], [body])


def _put_many(store: MessageStore, diary: Diary) -> None:
    bodies = diary.bodies(5)
    diary.put("t", store.queue("t", 1).put_many(bodies), bodies, 1)


def _put_list(store: MessageStore, diary: Diary) -> None:
    """By the kernel that Python calls, over the end of a file."""
    for _ in range(2):
        bodies = diary.bodies(4, size=2000)
        diary.put("t", store.queue("t", 1).put_many(bodies, flags=[1, 2, 3, 4]), bodies, 1)


def _put_list_one_by_one(store: MessageStore, diary: Diary) -> None:
    bodies = diary.bodies(3, size=store.settings.commit_log_file_size * 3 // 5)
    diary.put("t", store.queue("t", 1).put_many(bodies), bodies, 1)


def _put_batch(store: MessageStore, diary: Diary) -> None:
    bodies = diary.bodies(3)
    receipt = store.queue("b", 0).put_batch(bodies, unique_key="u", tags="a")
    for number, body in enumerate(bodies):
        diary.take("b", 0, receipt.queue_offset + number, body)


def _put_record(store: MessageStore, diary: Diary) -> None:
    (body,) = diary.bodies(1)
    diary.put("t", [store.queue("t", 0).put_record(body, b"KEYS\x01k\x02", flag=7)], [body])


def _put_light(store: MessageStore, diary: Diary) -> None:
    (body,) = diary.bodies(1)
    text = encode_properties({MULTI_DISPATCH: ",".join(LIGHT)})
    diary.put("p", [store.queue("p", 0).put_raw(body, text)], [body])


def _put_async(store: MessageStore, diary: Diary) -> None:
    """One of them is cancelled while it waits."""

    async def main() -> list[Receipt]:
        *tasks, cancelled = (asyncio.create_task(store.put_async("t", body)) for body in (*bodies, *diary.bodies(1)))
        await asyncio.sleep(0)
        cancelled.cancel()
        return await asyncio.gather(*tasks)

    bodies = diary.bodies(2)
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda loop, context: None)  # it would print what was interrupted
        diary.put("t", runner.run(main()), bodies)


async def _put_tasks(queue: Queue, bodies: list[bytes]) -> list[Receipt]:
    store = queue.store
    receipts = [await store.put_async(queue.topic, body, queue_id=queue.queue_id) for body in bodies]
    store.flush()
    return receipts


def _append(store: MessageStore, diary: Diary) -> None:
    """Two queues, over the end of a file."""
    bodies = diary.bodies(12, size=1600)
    columns = {"body": bodies, "queueId": [0, 1] * 6, "keys": ["k"] * 12}
    ranges = store.append(pa.record_batch(columns), topic="t")
    for queue_id in (0, 1):
        for queue_offset, body in zip(ranges["t", queue_id], bodies[queue_id::2], strict=True):
            diary.take("t", queue_id, queue_offset, body)


def _flush(store: MessageStore, diary: Diary) -> None:
    for body in diary.bodies(2):
        diary.put("t", [store.put("t", body, wait=False)], [body])
    store.flush()


def _keep(store: MessageStore, diary: Diary) -> None:
    _put(store, diary)
    store._keep_when_due()


def _read(store: MessageStore, diary: Diary) -> None:
    for topic, queue_id in store.queues():
        list(store.queue(topic, queue_id).read())
    store.queue("t", 0).read_arrow()
    next(store.queue("t", 0).read(follow=True))
    store.query("t", key="k")
    store.query_many("t", ["k", "m"])
    list(store.candidates("t", key="k"))
    store.queue("t", 0).offset_at(1_700_000_000_000)


def _verify(store: MessageStore, diary: Diary) -> None:
    """Of a store that is open, and of what it would be after a kill."""
    verify(store.root, settings=store.settings)
    copy = store.root.with_name(f"{store.root.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store.root, copy, ignore=shutil.ignore_patterns("*.tmp"))  # the checkpoint is written meanwhile
    assert verify(copy, settings=store.settings).ok


def _create_topic(store: MessageStore, diary: Diary) -> None:
    store.create_topic("made", queues=2)


PUTS: dict[str, Operation] = {
    "put": _put, "put in Python": _put_in_python, "put to a new queue": _put_first, "put_raw": _put_raw,
    "put and roll": _put_and_roll, "put_many": _put_many, "put_many by kernel": _put_list,
    "put_many one by one": _put_list_one_by_one, "put_batch": _put_batch, "put_record": _put_record,
    "put to light queues": _put_light, "put_async": _put_async, "append": _append,
}  # fmt: skip
WAYS: tuple[Callable[[Queue, list[bytes]], Sequence[Receipt]], ...] = (
    lambda queue, bodies: [queue.put(body, keys="k") for body in bodies],
    lambda queue, bodies: queue.put_many(bodies),
    lambda queue, bodies: queue.put_many(bodies, flags=[1, 2, 3, 4]),
    lambda queue, bodies: [queue.put_record(body, flag=7) for body in bodies],
    lambda queue, bodies: asyncio.run(_put_tasks(queue, bodies)),
)
OTHERS: dict[str, Operation] = {
    "flush": _flush, "checkpoint": _keep, "read": _read, "verify": _verify,
    "create_topic": _create_topic,
}  # fmt: skip


class Scene:
    """A store as it is before the interrupt, copied for each case."""

    def __init__(self, folder: Path, *, crashed: bool = False, beside: int = 0, **given: Any) -> None:
        self._folder = folder
        self._beside = beside
        self._given = SETTINGS | given
        self._template = folder / "template"
        self._known = Diary()
        self._numbers = count(1)
        self.now: tuple[MessageStore, Diary] | None = None
        """The store that is open, and its diary."""
        self.root = folder / "first"
        with self.open() as store:
            store.create_topic("b", queues=1, queue_type="BatchCQ")
            for operation in (_put, _put_raw, _put_batch, _put_light, _put_many, _put):
                operation(store, self._known)
            if crashed:
                shutil.copytree(store.root, self._template, ignore=shutil.ignore_patterns(LOCK, "*.tmp"))
        if not crashed:
            shutil.copytree(self.root, self._template)

    def begin(self) -> Diary:
        """A store of its own for the next case: what an earlier one left locked is not in its way."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root = self._folder / str(next(self._numbers))
        shutil.copytree(self._template, self.root)
        self._before = set(threading.enumerate())
        self._descriptors = open_descriptors()
        known = {key: dict(messages) for key, messages in self._known.acknowledged.items()}
        return Diary(set(self._known.begun), known, count(1000))

    def open(self) -> MessageStore:
        return stratalog.open(self.root, **self._given)

    @contextlib.contextmanager
    def others_put(self, store: MessageStore, diary: Diary) -> Iterator[None]:
        """Meanwhile so many other threads put in every way, to queues of their own, until the store is closed."""
        stopped = threading.Event()

        def put(queue_id: int) -> None:
            with contextlib.suppress(StoreClosed):
                for way in cycle(WAYS):
                    if stopped.wait(0.001):
                        break
                    bodies = diary.bodies(4)
                    diary.put("t", way(store.queue("t", queue_id), bodies), bodies, queue_id)
                    _put_batch(store, diary)

        threads = [_Thread(lambda number=number: put(5 + number)) for number in range(self._beside)]
        try:
            yield
        finally:
            stopped.set()
            for thread in threads:
                thread.finish()

    def check_closed(self, diary: Diary) -> None:
        """No thread and no descriptor is left, the collector is on, the files are whole, and the store opens (lock
        free) and goes on."""
        left = [thread.name for thread in set(threading.enumerate()) - self._before if thread.is_alive()]
        if left:
            raise AssertionError(f"threads are left: {left}")
        if not gc.isenabled():
            gc.enable()
            raise AssertionError("the garbage collector is off")
        check_descriptors(self._descriptors)
        self._verify()
        with self.open() as store:
            if store.recovery.quarantined:
                raise WrongPrefix(f"damage in the middle of the log: {store.recovery.quarantined[0]}")
            diary.compare(store)
            _put(store, diary)
            diary.compare(store)
        self._verify()

    def _verify(self) -> None:
        report = verify(self.root, settings=StoreSettings.make(self._given))
        if not report.ok:
            raise WrongPrefix(f"verify: {report.problems[0]}")


def _follows(store: MessageStore, diary: Diary) -> None:
    """A put of each kind goes well, from another thread first, and the store is as it should be."""
    _Thread(lambda: [operation(store, diary) for operation in (_put, _put_batch, _put_light)]).finish()
    for operation in (_put, _put_in_python, _put_list, _append):
        operation(store, diary)
    store.flush()
    diary.compare(store)


class _Thread:
    """Does something beside the main thread; `finish` raises what it raised, or that it hangs."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._errors.append(error)

    def finish(self) -> None:
        self._thread.join(HANG_S / 2)
        if self._thread.is_alive():
            raise TimeoutError("a put from another thread hangs")
        if self._errors:
            raise self._errors[0]


@contextlib.contextmanager
def _ends_by_interrupt() -> Iterator[None]:
    """The interrupt, or what `threading` made of it: its `Condition.wait` may release a lock twice."""
    try:
        yield
    except (Interrupted, Dropped, Late, StoreClosed):  # the last one after a handler that closes the store
        pass
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, Interrupted | Dropped | Late):
            cause = cause.__context__
        if not cause:
            raise


Interrupting = Callable[[], "contextlib.AbstractContextManager[Any]"]
Course = Callable[[Scene, Interrupting, bool], None]


def _course_of(operation: Operation) -> Course:
    def course(scene: Scene, interrupting: Interrupting, goes_on: bool) -> None:
        """Open, interrupt the operation, put and read on (or not), close."""
        diary = scene.begin()
        store = scene.open()
        scene.now = store, diary
        with scene.others_put(store, diary), _ends_by_interrupt(), interrupting():
            operation(store, diary)
        if goes_on:
            _follows(store, diary)
        store.close()
        scene.check_closed(diary)

    return course


def closing(scene: Scene, interrupting: Interrupting, goes_on: bool) -> None:
    diary = scene.begin()
    store = scene.open()
    scene.now = store, diary
    for operation in (_put, _put_batch, _put_light):
        operation(store, diary)
    with scene.others_put(store, diary):
        with _ends_by_interrupt(), interrupting():
            store.close()
        store.close()
    scene.check_closed(diary)


def _dispatching(scene: Scene, interrupting: Interrupting, goes_on: bool) -> None:
    """Units of every kind of queue, and index items, into new files."""
    diary = scene.begin()
    store = scene.open()
    scene.now = store, diary
    for _ in range(14):
        for operation in (_put, _put_batch, _put_light):
            operation(store, diary)
    with _ends_by_interrupt(), interrupting():
        store.dispatch()
    if goes_on:
        _follows(store, diary)
    store.close()
    scene.check_closed(diary)


def _opening(scene: Scene, interrupting: Interrupting, goes_on: bool) -> None:
    diary = scene.begin()
    store = None
    with _ends_by_interrupt(), interrupting():
        store = scene.open()
    if store:
        store.close()
    scene.check_closed(diary)


def _every_case() -> Iterator[tuple[str, dict[str, Any], Course]]:
    """Name, settings and course of each."""
    for name, operation in PUTS.items():
        for flush in ("sync", "async"):
            yield f"{name}, {flush}", {"flush": flush}, _course_of(operation)
    for name, operation in OTHERS.items():
        yield name, {"flush": "sync"}, _course_of(operation)
    yield "roll into a file made ahead", LARGE_FILES, _course_of(_put_and_roll)
    yield "dispatch", {}, _dispatching
    yield "close, sync", {"flush": "sync", "beside": 3}, closing
    yield "close, async", {"beside": 3}, closing
    yield "open", {}, _opening
    yield "open after a kill", {"crashed": True}, _opening


def _cases(torture: Torture, row: str) -> list[tuple[str, dict[str, Any], Course]]:
    """All of them, or half."""
    found = list(_every_case())
    return torture.chance(row).sample(found, torture.count(len(found) // 2, len(found)))


@unraisable_dropped()
def points(torture: Torture, row: Row) -> None:
    """Every case at every place that it reaches, at its first times; or at some."""
    total = 0
    for name, given, course in _cases(torture, "interrupt"):
        scene = Scene(torture.place("interrupt") / name.replace(" ", "-"), **given)
        returns = "open" not in name
        for _ in range(2):  # what is done once is done
            counted = Injector(0, returns=returns)
            course(scene, lambda counted=counted: counted, False)
        total += len(counted.points)
        count = len(counted.points) if torture.full else min(SAMPLE, len(counted.points))
        for number in sorted(torture.chance("interrupt", name).sample(counted.points, count)):
            case = f"{name}/{number}"
            if torture.wants(case):
                raises = (Interrupted, Late, Dropped)[number // 2 % (3 if "put_async" in name else 2)]
                injector = Injector(number, returns=returns, raises=raises)
                with row.case(case, seconds=HANG_S), _named(injector):
                    course(scene, lambda injector=injector: injector, bool(number % 2))
    row.notes.append(f"{total:,} points")


def _close(store: MessageStore, diary: Diary) -> None:
    store.close()


CALLS: dict[str, Operation] = {
    "put": _put, "put_record": _put_record, "put_many": _put_list, "flush": _flush, "read": _read, "close": _close,
}  # fmt: skip
"""What a signal handler may call: it is done, or refused."""


@unraisable_dropped()
def handlers(torture: Torture, row: Row) -> None:
    """The same points; the handler calls the store, and what it interrupted goes on."""
    refused: Counter[str] = Counter()
    for name, given, course in _cases(torture, "handlers"):
        if course is _opening:
            continue
        scene = Scene(torture.place("handlers") / name.replace(" ", "-"), **given)
        for _ in range(2):
            counted = Injector(0)
            course(scene, lambda counted=counted: counted, False)
        for call in CALLS if torture.full else torture.chance("handlers", name).sample(list(CALLS), 1):
            operation = CALLS[call]
            count = min(torture.count(1, 40), len(counted.points))
            for number in sorted(torture.chance("handlers", f"{call} in {name}").sample(counted.points, count)):
                case = f"{call} in {name}/{number}"
                if torture.wants(case):
                    handler = _Handler(scene, operation)
                    injector = Injector(number, calls=handler)
                    with row.case(case, seconds=HANG_S), _named(injector):
                        course(scene, lambda injector=injector: injector, call != "close" and bool(number % 2))
                    refused[call] += handler.is_refused
    row.notes.append(", ".join(f"{call} refused {count:,} times" for call, count in refused.items()))


class _Handler:
    """Calls the store that is open."""

    def __init__(self, scene: Scene, operation: Operation) -> None:
        self._scene, self._operation = scene, operation
        self.is_refused = False

    def __call__(self) -> None:
        assert self._scene.now
        try:
            self._operation(*self._scene.now)
        except StoreUnavailable as error:
            if "in the middle of another call" not in str(error):
                raise
            self.is_refused = True
        except StoreClosed:
            pass


@unraisable_dropped()
def signals(torture: Torture, row: Row) -> None:
    """Real signals at random moments, with the store's own threads at work and other threads that put."""
    for name, given, course in _cases(torture, "signals"):
        scene = Scene(torture.place("signals") / name.replace(" ", "-"), **given | BUSY)
        moments = _Moments()
        course(scene, lambda moments=moments: moments, False)
        chance = torture.chance("signals", name)
        for number in range(torture.count(1, 60)):
            seconds = chance.random() * 1.2 * moments.seconds
            with row.case(f"{name}/{number}", seconds=HANG_S):
                course(scene, lambda seconds=seconds: interrupted_after(seconds), bool(number % 2))


class _Moments:
    """How long the operation takes."""

    seconds = 0.0

    def __enter__(self) -> None:
        self.seconds -= time.perf_counter()

    def __exit__(self, *given: object) -> None:
        self.seconds += time.perf_counter()


@contextlib.contextmanager
def _named(injector: Injector) -> Iterator[Injector]:
    try:
        yield injector
    except Exception as error:
        error.args = (f"{error} [{injector.point}]",)
        raise
