"""Every byte of the golden tiers: decoding and encoding again gives it back, and says what RocketMQ says."""

import functools
import hashlib
from dataclasses import dataclass, field

import numpy as np
import pytest

from golden.cases import GoldenCase, golden_case, golden_names
from stratalog.errors import CorruptData
from stratalog.layout import tier
from stratalog.layout.index import index_key
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.loosejson import decode_loose_json, encode_loose_json
from stratalog.layout.message import Record, decode_record
from stratalog.layout.messageid import offset_message_id
from stratalog.layout.properties import KEYS, TAGS, UNIQUE_KEY, decode_properties
from stratalog.layout.queue import UNIT

TIERS = golden_names("tiered")
CRASHED = [name for name in TIERS if "/halt-" in name]
EMPTIED = ["tiered/expired-all-5.5.0"]

Queue = tuple[str, int]


@dataclass
class Tier:
    """The files of a tier, decoded: records by their offset in the queue's log, units by queue offset."""

    records: dict[Queue, dict[int, Record]] = field(default_factory=dict)
    units: dict[Queue, dict[int, tuple[int, int, int]]] = field(default_factory=dict)
    indexes: dict[int, bytes] = field(default_factory=dict)
    leftover_size: int = 0
    """Bytes behind the last whole record or unit of a segment."""


@functools.lru_cache(maxsize=2)
def tier_of(name: str) -> Tier:
    """Decode a tier, proving on the way that names are what they should be and that bytes come back the same."""
    case = golden_case(name)
    found = Tier()
    cluster = case.about["identity"]["cluster"]
    for path, data in case.tier_files():
        directory, broker, topic, queue_id, kind, file_name = path.split("/")
        assert directory == tier.cluster_directory(cluster)
        base = tier.segment_base(file_name)
        assert base is not None
        assert path == tier.segment_path(cluster, broker, topic, int(queue_id), tier.SegmentType[kind], base)
        if kind == "COMMIT_LOG":
            read_records(data, base, found, (topic, int(queue_id)))
        elif kind == "CONSUME_QUEUE":
            read_units(data, base, found, (topic, int(queue_id)))
        else:
            assert topic == tier.INDEX_TOPIC
            found.indexes[base] = data
    return found


def read_records(data: bytes, base: int, found: Tier, queue: Queue) -> None:
    position = 0
    records = found.records.setdefault(queue, {})
    while position < len(data):
        try:
            record = decode_record(data, position)
        except CorruptData:
            break
        assert record.encode() == data[position : position + record.total_size]
        assert record.commit_log_offset == base + position, "counted in the queue's own log"
        records[base + position] = record
        position += record.total_size
    found.leftover_size += len(data) - position


def read_units(data: bytes, base: int, found: Tier, queue: Queue) -> None:
    count = len(data) // UNIT.size
    units = np.frombuffer(data, UNIT.dtype, count)
    assert units.tobytes() == data[: count * UNIT.size]
    for queue_offset, unit in enumerate(units.tolist(), base // UNIT.size):
        assert UNIT.pack(*unit) == units[queue_offset - base // UNIT.size].tobytes()
        found.units.setdefault(queue, {})[queue_offset] = unit
    found.leftover_size += len(data) - count * UNIT.size


@pytest.mark.parametrize("name", TIERS)
def test_units_point_to_their_records(name: str) -> None:
    found = tier_of(name)
    assert (found.leftover_size == 0) == (name not in ("tiered/halt-cl-half-5.5.0", "tiered/halt-cq-torn-5.5.0"))
    pointing = dangling = 0
    for queue, units in found.units.items():
        for queue_offset, (commit_log_offset, size, tags_code) in units.items():
            record = found.records.get(queue, {}).get(commit_log_offset)
            if record is None:
                dangling += 1
                continue
            pointing += 1
            assert (record.topic.decode(), record.queue_id, record.queue_offset) == (*queue, queue_offset)
            assert size == record.total_size
            assert tags_code == string_hash(decode_properties(record.properties).get(TAGS, ""))
    assert (pointing == 0) == (name in EMPTIED)
    assert dangling == 0 or name in CRASHED or "expired" in name
    if name not in CRASHED and "expired" not in name:
        assert pointing == sum(map(len, found.records.values()))


@pytest.mark.parametrize("name", TIERS)
def test_a_decoded_record_says_what_RocketMQ_says(name: str) -> None:
    found = tier_of(name)
    lines = golden_case(name).expected("message")
    assert (len(lines) == 0) == (name in EMPTIED)
    for line in lines:
        record = found.records[line["topic"], line["queueId"]][line["physicalOffset"]]
        properties = decode_properties(record.properties)
        said = {
            "topic": record.topic.decode(),
            "queueId": record.queue_id,
            "queueOffset": record.queue_offset,
            "storeSize": record.total_size,
            "bodyCRC": record.body_crc,
            "flag": record.flag,
            "sysFlag": record.sys_flag,
            "bornTimestamp": record.born_timestamp,
            "bornHost": str(record.born_host).replace("[", "").replace("]", ""),
            "storeTimestamp": record.store_timestamp,
            "storeHost": str(record.store_host),
            "reconsumeTimes": record.reconsume_times,
            "preparedTransactionOffset": record.prepared_transaction_offset,
            "tags": properties.get(TAGS),
            "keys": properties.get(KEYS),
            "properties": properties,
            "msgId": offset_message_id(record.store_host, record.commit_log_offset),
            "bodyLength": len(record.body),
            "bodySha256": hashlib.sha256(record.body).hexdigest(),
            "recordSha256": hashlib.sha256(record.encode()).hexdigest(),
        }
        assert line == line | {key: value for key, value in said.items() if key in line}
        assert line.keys() & said.keys() >= {"topic", "queueOffset", "storeSize", "storeTimestamp", "recordSha256"}


@pytest.mark.parametrize("name", TIERS)
def test_metadata_encodes_to_the_bytes_that_its_release_writes(name: str) -> None:
    case = golden_case(name)
    files = sorted(case.directory.glob("tieredStoreMetadata*.json"))
    assert files
    for file in files:
        value = decode_loose_json(file.read_bytes())
        assert (
            encode_loose_json(value, release="5.3" if case.release == "5.3.3" else "5.5").encode() == file.read_bytes()
        )
        for path, segments in value["commitLogFileSegmentTable"].items():
            assert all(segment["baseOffset"] == base and segment["path"] == path for base, segment in segments.items())


def topic_ids(case: GoldenCase) -> dict[int, str]:
    metadata = decode_loose_json((case.directory / "tieredStoreMetadata.json").read_bytes())
    return {topic["topicId"]: name for name, topic in metadata["topicMetadataTable"].items()}


def check_item(case_topics: dict[int, str], records: dict[Queue, dict[int, Record]], item: np.void) -> bool:
    """Whether the item's record is there; then its size and one of its keys must agree."""
    topic = case_topics.get(int(item["topic_id"]), "")
    record = records.get((topic, int(item["queue_id"])), {}).get(int(item["commit_log_offset"]))
    if record is None:
        return False
    properties = decode_properties(record.properties)
    keys = [properties.get(UNIQUE_KEY, ""), *properties.get(KEYS, "").split(" ")]  # the tier indexes empty keys, too
    hashes = {index_key_hash(string_hash(index_key(topic, key))) for key in keys}
    # RocketMQ's tier negates a negative hash, which leaves the smallest int as it is.
    assert int(item["key_hash"]) in hashes | {string_hash(index_key(topic, key)) for key in keys}
    assert int(item["size"]) == record.total_size
    return True


@pytest.mark.parametrize("name", TIERS)
def test_uploaded_index_files_encode_to_the_bytes_they_were_read_from(name: str) -> None:
    case = golden_case(name)
    found = tier_of(name)
    slot_count = case.about["config"]["tieredStoreIndexFileMaxHashSlotNum"]
    topics = topic_ids(case)
    pointing = 0
    for data in found.indexes.values():
        if not data:
            assert name in ("tiered/index-empty-5.3.3", "tiered/halt-index-5.5.0")
            continue
        header = tier.INDEX_HEADER.unpack(data)
        assert header.magic == tier.MAGIC_FINISHED
        assert tier.compacted_slot_count(len(data), header.item_count) == slot_count
        assert len(data) == tier.compacted_index_size(slot_count, header.item_count)
        slots_end = tier.INDEX_HEADER.size + tier.COMPACTED_SLOT.size * slot_count
        slots = np.frombuffer(data, tier.COMPACTED_SLOT.dtype, slot_count, tier.INDEX_HEADER.size)
        items = np.frombuffer(data, tier.COMPACTED_ITEM.dtype, header.item_count, slots_end)
        assert tier.INDEX_HEADER.pack(*header) + slots.tobytes() + items.tobytes() == data
        assert all(tier.COMPACTED_ITEM.pack(*item.tolist()) == item.tobytes() for item in items)
        assert all(tier.COMPACTED_SLOT.pack(*slot.tolist()) == slot.tobytes() for slot in slots)
        assert np.count_nonzero(slots["size"]) == header.used_slot_count
        assert np.all(np.cumsum(slots["size"])[:-1] + slots_end == slots["position"][1:])
        assert slots["position"][0] == slots_end
        numbers = np.repeat(np.arange(slot_count), slots["size"] // tier.COMPACTED_ITEM.size)
        for number, item in zip(numbers, items, strict=True):
            assert int(item["key_hash"]) % slot_count == number
            pointing += check_item(topics, found.records, item)
    if found.indexes and "index-empty" not in name:
        assert pointing > 50


def test_every_tier_case_was_read_and_most_have_an_uploaded_index() -> None:
    assert len(TIERS) == 24
    with_index = [name for name in TIERS if tier_of(name).indexes]
    assert len(with_index) == 16
    records = sum(len(records) for name in TIERS for records in tier_of(name).records.values())
    units = sum(len(units) for name in TIERS for units in tier_of(name).units.values())
    assert (records, units) == (5883, 5870)


@pytest.mark.parametrize("name", ["tiered/index-5.5.0", "tiered/index-5.3.3", "tiered/index-edge-5.5.0"])
def test_open_index_files_are_chains_of_items_from_their_slots(name: str) -> None:
    case = golden_case(name)
    slot_count = case.about["config"]["tieredStoreIndexFileMaxHashSlotNum"]
    capacity = case.about["config"]["tieredStoreIndexFileMaxIndexNum"]
    topics, records = topic_ids(case), tier_of(name).records
    seen = 0
    for path, data in case.store_files():
        if not path.startswith("tiered_index_file/"):
            continue
        assert len(data) == tier.open_index_size(slot_count, capacity)
        header = tier.INDEX_HEADER.unpack(data)
        assert header.magic in (tier.MAGIC_OPEN, tier.MAGIC_FINISHED)
        slots_end = tier.INDEX_HEADER.size + tier.OPEN_SLOT.size * slot_count
        slots = np.frombuffer(data, tier.OPEN_SLOT.dtype, slot_count, tier.INDEX_HEADER.size)
        items = np.frombuffer(data, tier.OPEN_ITEM.dtype, capacity, slots_end)
        assert tier.INDEX_HEADER.pack(*header) + slots.tobytes() + items.tobytes() == data
        assert np.count_nonzero(slots["newest_item"]) == header.used_slot_count
        in_chains = 0
        for slot, newest in enumerate(slots["newest_item"].tolist()):
            number = newest
            while number > 0:
                item = items[number]
                assert tier.OPEN_ITEM.pack(*item.tolist()) == item.tobytes()
                assert int(item["key_hash"]) % slot_count == slot
                assert check_item(topics, records, item)
                assert int(item["previous_item"]) < number
                number = int(item["previous_item"])
                in_chains += 1
        assert in_chains == header.item_count
        seen += in_chains
    assert seen > 100


@pytest.mark.parametrize("name", ["tiered/plain-5.5.0", "tiered/segments-5.5.0", "tiered/index-closed-5.5.0"])
def test_answers_of_the_index_are_items_of_the_uploaded_files(name: str) -> None:
    slot_count = golden_case(name).about["config"]["tieredStoreIndexFileMaxHashSlotNum"]
    stored = set()
    for data in tier_of(name).indexes.values():
        header = tier.INDEX_HEADER.unpack(data)
        start = tier.INDEX_HEADER.size + tier.COMPACTED_SLOT.size * slot_count
        stored |= set(np.frombuffer(data, tier.COMPACTED_ITEM.dtype, header.item_count, start).tolist())
    answers = 0
    for line in golden_case(name).expected("query"):
        for item in line["items"]:
            answers += 1
            assert (
                tuple(item[key] for key in ("hashCode", "topicId", "queueId", "offset", "size", "timeDiff")) in stored
            )
            assert item["hashCode"] == index_key_hash(string_hash(index_key(line["topic"], line["key"])))
    assert answers > 50
