"""Opening a tier and reading from it: how it is found, what it costs, and what damage does."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from golden.cases import golden_case
from stratalog import tiered
from stratalog.errors import CorruptData, NotAStore, OffsetOutOfRange, StoreClosed
from stratalog.layout.loosejson import Release, decode_loose_json
from stratalog.layout.message import MAGIC_BLANK
from stratalog.layout.queue import UNIT
from stratalog.layout.tier import CODA, SegmentType, segment_path
from stratalog.tiered import Manifest, PosixBackend
from stratalog.tiered.listing import state_from_listing
from stratalog.tiered.metadata import FILE_NAME, decode_metadata, encode_metadata
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import QueueName, TierState
from stratalog.tiered.writer import WriterSettings
from tiered.conftest import BROKER, CLUSTER, T0, MakeStore
from tiered.offload import offload

REBUILDABLE = ("plain-5.5.0", "segments-5.5.0", "index-closed-5.5.0", "partial-5.5.0", "times-5.5.0", "expired-5.5.0")


@pytest.fixture
def tier_root(make_store: MakeStore, backend: PosixBackend, manifest: Manifest) -> Path:
    """100 messages in queue orders/0, in several segments."""
    small = WriterSettings(commit_log_max_size=3000, consume_queue_max_size=400)
    offload(make_store(("orders", 0)), backend, manifest, settings=small)
    return backend.root


def segment_file(root: Path, state: TierState, kind: SegmentType, number: int) -> Path:
    queue = state.queues[QueueName("orders", 0)]
    segments = queue.commit_log if kind is SegmentType.COMMIT_LOG else queue.consume_queue
    return root / state.path("orders", 0, kind, segments[number].base_offset)


class TestOpening:
    def test_a_directory_that_is_no_tier_is_named_with_the_next_step(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "store" / "commitlog").mkdir(parents=True)
        for name in ("missing", "empty", "store"):
            with pytest.raises(NotAStore, match="tieredStoreFilePath"):
                tiered.open(tmp_path / name)

    def test_one_of_several_brokers_must_be_named(self, tier_root: Path, make_store: MakeStore) -> None:
        other = PosixBackend(tier_root)
        offload(make_store(("payments", 0), count=3), other, Manifest(other, CLUSTER, "broker-b"))
        with pytest.raises(NotAStore, match="broker-a, broker-b"):
            tiered.open(tier_root)
        with pytest.raises(NotAStore, match="broker-c"):
            tiered.open(tier_root, broker="broker-c")
        with tiered.open(f"file://{tier_root}", broker="broker-b") as tier:
            assert tier.queues() == [("payments", 0)]
        with tiered.open(tier_root, cluster=CLUSTER, broker=BROKER) as tier:
            assert tier.topics() == ["orders"]

    def test_a_queue_that_is_not_there_is_named(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier, pytest.raises(NotAStore, match="orders/0"):
            tier.queue("orders", 7)

    def test_a_missing_metadata_file_is_named(self, tier_root: Path) -> None:
        with pytest.raises(NotAStore, match="nowhere"):
            tiered.open(tier_root, metadata=tier_root / "nowhere.json")

    def test_what_is_committed_later_shows_after_a_refresh(
        self, make_store: MakeStore, backend: PosixBackend, manifest: Manifest
    ) -> None:
        store = make_store(("orders", 0), count=5)
        offload(store, backend, manifest)
        with tiered.open(backend.root) as tier:
            store.queue("orders", 0).put(b"late")
            offload(store, backend, manifest)
            assert tier.queue("orders", 0).max_offset == 5
            tier.refresh()
            assert [message.body for message in tier.queue("orders", 0).read(5)] == [b"late"]

    def test_bytes_behind_the_committed_end_are_never_read(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier:
            for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE):
                with segment_file(tier_root, tier.state, kind, -1).open("ab") as file:
                    file.write(b"\xff" * 400)
        with tiered.open(tier_root) as tier:
            assert len(list(tier.queue("orders", 0).read())) == 100


class TestReading:
    def test_a_queue_is_read_with_one_read_a_segment(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier:
            queue = tier.queue("orders", 0)
            files = len(queue.state.commit_log) + len(queue.state.consume_queue)
            before = tier.stats.reads
            assert len(list(queue.read())) == 100
            assert tier.stats.reads - before == files

    def test_one_message_takes_two_reads(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier:
            before = tier.stats.reads
            message = tier.queue("orders", 0).get(50).message
            assert message is not None
            assert message.body == b"body-50"
            assert tier.stats.reads - before == 2

    def test_ranges_are_cut_and_checked(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier:
            queue = tier.queue("orders", 0)
            assert [message.queue_offset for message in queue.read(97, count=9)] == [97, 98, 99]
            assert list(queue.read(100)) == []
            assert list(queue.read(3, count=0)) == []
            for offset, following in ((-1, 0), (101, 100)):
                with pytest.raises(OffsetOutOfRange) as caught:
                    queue.read(offset)
                assert caught.value.next_offset == following
            units = queue.units(95, 50)
            assert len(units) == 5 * UNIT.size

    def test_arrow_columns_are_the_messages(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier:
            queue = tier.queue("orders", 0)
            batch = queue.read_arrow(10, count=25, columns=["queueOffset", "body", "keys", "brokerName"])
            assert isinstance(batch, pa.RecordBatch)
            assert batch.schema.names == ["queueOffset", "body", "keys", "brokerName"]
            messages = list(queue.read(10, count=25))
            assert batch["queueOffset"].to_pylist() == [message.queue_offset for message in messages]
            assert batch["body"].to_pylist() == [message.body for message in messages]
            assert batch["keys"].to_pylist() == [" ".join(message.keys) for message in messages]
            assert set(batch["brokerName"].to_pylist()) == {BROKER}
            assert queue.read_arrow(100).num_rows == 0
            assert queue.read_arrow(0).num_columns == 20

    def test_a_time_search_reads_little(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier:
            queue = tier.queue("orders", 0)
            before = tier.stats.reads
            assert queue.offset_at(T0 + 10 * 77) == 77
            assert tier.stats.reads - before <= 2 + len(queue.state.commit_log) + len(queue.state.consume_queue)

    def test_legacy_codas_between_records_are_stepped_over(self, tmp_path: Path) -> None:
        case = golden_case("tiered/plain-5.5.0")
        root = case.unpack_tier(tmp_path)
        metadata = case.directory / FILE_NAME
        with tiered.open(root, metadata=metadata) as tier:
            queue = tier.queue("topic-00", 0)
            plain = list(queue.read())
            log, units = (
                root / tier.state.path("topic-00", 0, kind, 0)
                for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)
            )
        at = plain[-1].commit_log_offset
        data = log.read_bytes()
        # The unit of the last message points at a coda, as a segment closed by an old release left it.
        log.write_bytes(data[:at] + CODA.pack(CODA.size, MAGIC_BLANK, 1) + data[at:])
        assert UNIT.unpack(units.read_bytes(), (len(plain) - 1) * UNIT.size).commit_log_offset == at
        with tiered.open(root, metadata=metadata) as tier:
            queue = tier.queue("topic-00", 0)
            assert [message.body for message in queue.read()] == [message.body for message in plain]
            assert queue.read_arrow(columns=["body"])["body"].to_pylist() == [message.body for message in plain]
            assert queue.offset_at(plain[-1].store_timestamp) == len(plain) - 1


class TestDamage:
    @pytest.mark.parametrize("kind", [SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE])
    @pytest.mark.parametrize("how", ["missing", "cut"])
    def test_a_missing_or_cut_segment_is_named_after_the_messages_before_it(
        self, tier_root: Path, kind: SegmentType, how: str
    ) -> None:
        with tiered.open(tier_root) as tier:
            path = segment_file(tier_root, tier.state, kind, 2)
        os.unlink(path) if how == "missing" else os.truncate(path, path.stat().st_size - 7)
        with tiered.open(tier_root) as tier:
            found = []
            with pytest.raises(CorruptData) as caught:
                found.extend(message.queue_offset for message in tier.queue("orders", 0).read())
            assert caught.value.path == str(path.relative_to(tier_root))
            last = next(tier.queue("orders", 0).read(99))
            assert last.body == b"body-99"

    def test_any_changed_byte_of_a_record_that_matters_is_noticed_and_placed(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier:
            message = tier.queue("orders", 0).get(30).message
            assert message is not None
            segment = segment_file(tier_root, tier.state, SegmentType.COMMIT_LOG, 1)
            base = tier.state.queues[QueueName("orders", 0)].commit_log[1].base_offset
            start = message.commit_log_offset - base
            body = slice(start + 88, start + 88 + len(message.body))
            good = segment.read_bytes()
            for position in (*range(start, start + 16), *range(start + 20, start + 36), *range(body.start, body.stop)):
                bad = bytearray(good)
                bad[position] ^= 0x10
                segment.write_bytes(bad)
                with pytest.raises(CorruptData, match="queue offset 30") as caught:
                    list(tier.queue("orders", 0).read())
                assert (caught.value.path, caught.value.position) == (str(segment.relative_to(tier_root)), start)
                around = [*tier.queue("orders", 0).read(0, count=30), *tier.queue("orders", 0).read(31)]
                assert [other.queue_offset for other in around] == [*range(30), *range(31, 100)]
            segment.write_bytes(good)
            assert len(list(tier.queue("orders", 0).read())) == 100

    def test_an_index_that_points_to_no_record_is_named(self, tier_root: Path) -> None:
        with tiered.open(tier_root) as tier:
            (run,) = tier.state.index_runs
            path = tier_root / run.path
            data = bytearray(path.read_bytes())
            data[100] ^= 1
            path.write_bytes(data)
            with pytest.raises(CorruptData, match="CRC") as caught:
                tier.query("orders", key="common")
            assert caught.value.path == run.path

    def test_what_upstream_lost_at_a_full_queue_segment_is_said_not_served(self, tmp_path: Path) -> None:
        case = golden_case("tiered/halt-cq-roll-5.5.0")
        with tiered.open(case.unpack_tier(tmp_path), metadata=case.directory / FILE_NAME) as tier:
            lines = {(m["topic"], m["queueId"], m["queueOffset"]): m for m in case.expected("message")}
            damaged = 0
            for topic, queue_id in tier.queues():
                try:
                    for message in tier.queue(topic, queue_id).read():
                        line = lines[topic, queue_id, message.queue_offset]
                        assert line["storeTimestamp"] == message.store_timestamp
                except CorruptData:
                    damaged += 1
            assert damaged == 1

    def test_a_torn_unit_at_the_end_is_not_read(self, tmp_path: Path) -> None:
        case = golden_case("tiered/halt-cq-torn-5.5.0")
        with tiered.open(case.unpack_tier(tmp_path), metadata=case.directory / FILE_NAME) as tier:
            for topic, queue_id in tier.queues():
                queue = tier.queue(topic, queue_id)
                offsets = [message.queue_offset for message in queue.read()]
                assert offsets == list(range(queue.min_offset, queue.max_offset))


class TestState:
    @pytest.mark.parametrize("name", REBUILDABLE)
    def test_the_state_is_rebuilt_from_the_files_alone(self, name: str, tmp_path: Path) -> None:
        case = golden_case(f"tiered/{name}")
        root = case.unpack_tier(tmp_path)
        with tiered.open(root, metadata=case.directory / FILE_NAME) as told, tiered.open(root) as found:
            assert found.state.topics == told.state.topics
            assert found.queues() == told.queues()
            for place in told.queues():
                assert [*found.queue(*place).read()] == [*told.queue(*place).read()]
            mine, theirs = (
                [(segment.base_offset, segment.size, segment.end_timestamp) for segment in tier.state.index_segments]
                for tier in (found, told)
            )
            assert mine == theirs

    def test_a_tail_that_a_crash_left_is_not_taken_in(self, tmp_path: Path) -> None:
        case = golden_case("tiered/halt-cl-half-5.5.0")
        backend = PosixBackend(case.unpack_tier(tmp_path))
        state = state_from_listing(backend, cluster=CLUSTER, broker=BROKER)
        with tiered.open(backend.root) as tier:
            for place, queue in state.queues.items():
                messages = list(tier.queue(*place).read())
                assert messages[-1].commit_log_offset + messages[-1].store_size == queue.commit_log_end

    @pytest.mark.parametrize("release", ["5.3", "5.5"])
    def test_metadata_that_we_write_says_what_rocketmqs_says(self, release: Release, tmp_path: Path) -> None:
        case = golden_case("tiered/segments-5.5.0")
        backend = PosixBackend(case.unpack_tier(tmp_path))
        text = (case.directory / FILE_NAME).read_text()
        state = decode_metadata(text, backend, cluster=CLUSTER, broker=BROKER)
        ours = encode_metadata(state, now_ms=0, release=release)
        assert untimed(decode_loose_json(ours)) == untimed(decode_loose_json(text))
        assert decode_metadata(ours, backend, cluster=CLUSTER, broker=BROKER) == state

    def test_metadata_beside_the_tier_is_found(self, tmp_path: Path) -> None:
        case = golden_case("tiered/partial-5.5.0")
        root = case.unpack_tier(tmp_path)
        (root / FILE_NAME).write_bytes((case.directory / FILE_NAME).read_bytes())
        with tiered.open(root) as tier:
            assert tier.queue("orders", 0).min_offset == 7
            assert tier.state.last_topic_id == 2

    def test_text_that_is_no_metadata_is_refused(self, backend: SegmentBackend) -> None:
        for text in ("", "[]", '{"topicMetadataTable":{"t":5}}', '{"commitLogFileSegmentTable":{"b/t/0":{"x":{}}}}'):
            with pytest.raises(CorruptData):
                decode_metadata(text, backend, cluster=CLUSTER, broker=BROKER)

    def test_our_tier_is_opened_by_the_metadata_we_write_for_a_broker(self, tier_root: Path, tmp_path: Path) -> None:
        path = tmp_path / "config.json"
        with tiered.open(tier_root) as tier:
            path.write_text(encode_metadata(tier.state, now_ms=5))
            messages = list(tier.queue("orders", 0).read())
        with tiered.open(tier_root, metadata=path) as tier:
            assert list(tier.queue("orders", 0).read()) == messages

    def test_a_queue_goes_on_where_rocketmq_stopped(self, tmp_path: Path, make_store: MakeStore) -> None:
        case = golden_case("tiered/partial-5.5.0")
        backend = PosixBackend(case.unpack_tier(tmp_path))
        manifest = Manifest(backend, CLUSTER, BROKER)
        text = (case.directory / FILE_NAME).read_bytes()
        state = manifest.adopt(decode_metadata(text, backend, cluster=CLUSTER, broker=BROKER))
        end = state.queues[QueueName("orders", 0)].end_queue_offset
        with tiered.open(backend.root) as tier:
            before = list(tier.queue("orders", 0).read())
        offload(make_store(("orders", 0), count=end + 5), backend, manifest)
        with tiered.open(backend.root) as tier:
            messages = list(tier.queue("orders", 0).read())
            assert messages[: len(before)] == before
            assert [message.body for message in messages[len(before) :]] == [
                b"body-%d" % i for i in range(end, end + 5)
            ]
            assert tier.query("orders", key=f"U-orders-0-{end}")[0].queue_offset == end
            assert len(np.unique([message.queue_offset for message in messages])) == len(messages)


def untimed(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: 0 if key in ("createTimestamp", "updateTimestamp") else untimed(inner) for key, inner in value.items()
        }
    return value


def test_paths_of_segments_are_rocketmqs() -> None:
    path = segment_path(CLUSTER, BROKER, "topic-tiered", 0, SegmentType.CONSUME_QUEUE, 2000)
    assert path == "212d6b50_DefaultCluster/broker-a/topic-tiered/0/CONSUME_QUEUE/08f90c1a00000000000000002000"


def test_a_forked_child_cannot_use_its_parents_tier(tier_root: Path) -> None:
    with tiered.open(tier_root) as tier:
        queue = tier.queue("orders", 0)
        reading = queue.read()
        first = next(reading).queue_offset
        uses = (tier.queues, lambda: queue.read_arrow(first), lambda: list(queue.read()), tier.close, tier.refresh)
        child = os.fork()
        if child == 0:
            try:
                for use in uses:
                    with pytest.raises(StoreClosed, match="Open it again here"):
                        use()
                with tiered.open(tier_root) as own:
                    assert len(list(own.queue("orders", 0).read())) == 100
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(reading)) == 99
