"""The store against a dictionary of lists: random puts, reads, restarts and crashes must never tell them apart."""

import shutil
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import stratalog
from store.model import QUIET, SMALL, Clock, check, crash_copy, scratch_folder
from stratalog.layout.queue import UNIT
from stratalog.store.message_store import MessageStore

TINY = SMALL | QUIET | {
    "mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 7 * UNIT.size, "max_index_num": 20,
}  # fmt: skip
QUEUES = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1))
BODY = st.binary(max_size=600)
KEY = st.none() | st.sampled_from(["Aa", "BB", "k"])


class StoreModel(RuleBasedStateMachine):
    """`written` holds, per queue, (body, key, store time) of every message that was put."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = scratch_folder()
        self.folder = self.scratch.__enter__()
        self.clock = Clock()
        self.written: dict[tuple[str, int], list[tuple[bytes, str | None, int]]] = {}
        self.number = 0
        self.settings: dict[str, Any] = TINY

    @initialize(flush=st.sampled_from(["sync", "async"]))
    def open(self, flush: str) -> None:
        self.settings = TINY | {"flush": flush}
        self.store: MessageStore = self.opened(self.folder / "store0")

    def opened(self, root: Any) -> MessageStore:
        return stratalog.open(root, clock_ns=self.clock, **self.settings)

    def note(self, queue: tuple[str, int], body: bytes, key: str | None) -> None:
        self.written.setdefault(queue, []).append((body, key, self.clock.now_ms))

    @rule(queue=QUEUES, body=BODY, key=KEY, step=st.integers(0, 1500))
    def put(self, queue: tuple[str, int], body: bytes, key: str | None, step: int) -> None:
        self.clock.now_ms += step
        receipt = self.store.put(queue[0], body, queue_id=queue[1], keys=key)
        assert receipt.queue_offset == len(self.written.get(queue, []))
        self.note(queue, body, key)

    @rule(queue=QUEUES, bodies=st.lists(BODY, max_size=5))
    def put_many(self, queue: tuple[str, int], bodies: list[bytes]) -> None:
        receipts = self.store.put_many(queue[0], bodies, queue_id=queue[1])
        start = len(self.written.get(queue, []))
        assert [receipt.queue_offset for receipt in receipts] == list(range(start, start + len(bodies)))
        for body in bodies:
            self.note(queue, body, None)

    @rule(rows=st.lists(st.tuples(QUEUES, BODY, KEY), min_size=1, max_size=12))
    def append(self, rows: list[tuple[tuple[str, int], bytes, str | None]]) -> None:
        columns = {
            "topic": [queue[0] for queue, _, _ in rows],
            "queueId": [queue[1] for queue, _, _ in rows],
            "body": pa.array([body for _, body, _ in rows], pa.binary()),
            "keys": pa.array([key for _, _, key in rows], pa.string()),
        }
        ranges = self.store.append(pa.record_batch(columns))
        before = {queue: len(self.written.get(queue, [])) for queue, _, _ in rows}
        for queue, body, key in rows:
            self.note(queue, body, key)
        assert ranges == {queue: range(start, len(self.written[queue])) for queue, start in before.items()}

    @rule()
    def flush(self) -> None:
        assert self.store.flush() == self.store.log.end_offset

    @rule()
    def flush_all(self) -> None:
        self.store._flush_all()

    @rule()
    def restart(self) -> None:
        root = self.store.root
        self.store.close()
        self.store = self.opened(root)
        assert self.store.recovery.clean
        assert not self.store.recovery.rebuilt

    @rule()
    def crash(self) -> None:
        """The process is killed: the files stay as they are."""
        self.number += 1
        copy = crash_copy(self.store, self.folder / f"store{self.number}")
        self.store.close()
        shutil.rmtree(self.store.root)
        self.store = self.opened(copy)
        assert not self.store.recovery.clean
        assert not self.store.recovery.quarantined

    @rule(what=st.sampled_from(["consumequeue", "index"]))
    def lose_derived_files(self, what: str) -> None:
        root = self.store.root
        self.store.close()
        shutil.rmtree(root / what, ignore_errors=True)
        self.store = self.opened(root)

    @precondition(lambda self: self.written)
    @rule(data=st.data(), count=st.integers(0, 20))
    def read(self, data: st.DataObject, count: int) -> None:
        queue = data.draw(st.sampled_from(sorted(self.written)))
        first = data.draw(st.integers(0, len(self.written[queue])))
        expected = [body for body, _, _ in self.written[queue][first : first + count]]
        assert [message.body for message in self.store.queue(*queue).read(first, count=count)] == expected
        assert self.store.queue(*queue).read_arrow(first, count=count)["body"].to_pylist() == expected

    @rule(topic=st.sampled_from(["a", "b"]), key=st.sampled_from(["Aa", "BB", "k"]))
    def query(self, topic: str, key: str) -> None:
        expected = sorted(
            body
            for queue, messages in self.written.items()
            for body, owned, _ in messages
            if queue[0] == topic and owned == key
        )
        assert sorted(message.body for message in self.store.query(topic, key=key, limit=10_000)) == expected

    @invariant()
    def ends_agree(self) -> None:
        if self.written:
            assert set(self.store.queues()) == set(self.written)
            for queue, messages in self.written.items():
                assert self.store.queue(*queue).max_offset == len(messages)

    def teardown(self) -> None:
        check(self.store)
        self.store.close()
        self.scratch.__exit__(None, None, None)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
