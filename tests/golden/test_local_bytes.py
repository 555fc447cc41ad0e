"""Every byte of the local stores: decoding and encoding again gives it back, and says what RocketMQ says."""

import base64
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from golden.cases import GOLDEN, GoldenCase, golden_case, golden_names
from stratalog.errors import CorruptData
from stratalog.layout import checkpoint, index, names, queue, timer
from stratalog.layout.batch import decode_batch_body, encode_batch_body
from stratalog.layout.javahash import index_key_hash, string_hash
from stratalog.layout.loosejson import decode_loose_json, encode_loose_json
from stratalog.layout.message import (
    BLANK,
    FIXED_SIZE_V1,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    Record,
    crc_of,
    decode_record,
)
from stratalog.layout.messageid import offset_message_id
from stratalog.layout.properties import (
    CRC_PROPERTY_SIZE,
    DELAY,
    KEYS,
    TAGS,
    UNIQUE_KEY,
    decode_properties,
    find_property,
    split_keys,
)
from stratalog.layout.recordcrc import record_crc_holds, reserve_record_crc, seal_record_crc
from stratalog.layout.sysflag import SysFlag, Transaction, enters_queue, transaction_of

STORES = [*golden_names("local"), "broker"]
UNDAMAGED = [name for name in STORES if not golden_case(name).about.get("damage")]

Log = dict[int, bytes]


@functools.lru_cache(maxsize=4)
def files_of(name: str, folder: str) -> dict[str, bytes]:
    """Files of one folder of a case's store, by their path below that folder."""
    lead = f"{folder}/"
    return {path[len(lead) :]: data for path, data in golden_case(name).store_files() if path.startswith(lead)}


def log_of(name: str) -> Log:
    """Content of the CommitLog files by the log offset that each begins at."""
    offsets = {names.offset_of(path): data for path, data in files_of(name, names.COMMIT_LOG).items()}
    return {offset: data for offset, data in sorted(offsets.items()) if offset is not None}


def bytes_at(log: Log, commit_log_offset: int) -> memoryview | None:
    """The rest of the log file from this offset, None when the file is gone."""
    for base, data in log.items():
        if base <= commit_log_offset < base + len(data):
            return memoryview(data)[commit_log_offset - base :]
    return None


def walk(log: Log) -> Iterator[tuple[int, Record | int]]:
    """(offset, record) for each record and (offset, size) for each blank, up to the first bytes that are neither."""
    for base, data in log.items():
        position = 0
        while position + BLANK.size <= len(data):
            blank = BLANK.unpack(data, position)
            if blank.magic == MAGIC_BLANK:
                yield base + position, blank.size
                break
            try:
                record = decode_record(data, position, verify=False)
            except CorruptData:
                break
            yield base + position, record
            position += record.total_size


def decoded(name: str) -> tuple[dict[int, Record], dict[int, int]]:
    """Records and blanks of a case's log by offset."""
    found = list(walk(log_of(name)))
    return (
        {offset: item for offset, item in found if isinstance(item, Record)},
        {offset: item for offset, item in found if isinstance(item, int)},
    )


@pytest.mark.parametrize("name", STORES)
def test_records_and_blanks_encode_to_the_bytes_they_were_read_from(name: str) -> None:
    log = log_of(name)
    records, blanks = decoded(name)
    for offset, record in records.items():
        stored = bytes_at(log, offset)
        assert stored is not None
        assert record.encode() == stored[: record.total_size], f"record at {offset}"
    for offset, size in blanks.items():
        stored = bytes_at(log, offset)
        assert stored is not None
        assert BLANK.pack(size, MAGIC_BLANK) == stored[: BLANK.size]
        assert len(stored) == size, "a blank reaches to the end of its file"
    expected = golden_case(name).expected("record", "message")
    assert {line["commitLogOffset"] for line in expected} <= records.keys()


@pytest.mark.parametrize("name", [name for name in UNDAMAGED if name not in ("broker", "local/lmq-poison")])
def test_a_walk_finds_exactly_the_records_and_blanks_that_RocketMQ_finds(name: str) -> None:
    records, blanks = decoded(name)
    case = golden_case(name)
    assert list(records) == [line["commitLogOffset"] for line in case.expected("record")]
    assert blanks == {line["commitLogOffset"]: line["size"] for line in case.expected("blank")}
    assert len(records) >= 5


def test_the_golden_logs_hold_every_shape_of_record() -> None:
    everything = [record for name in STORES for record in decoded(name)[0].values()]
    assert len(everything) == 6735
    assert sum(len(decoded(name)[1]) for name in STORES) == 61
    assert {(record.magic, record.host_flags) for record in everything} == {
        (MAGIC_V1, 0x00),
        (MAGIC_V1, 0x10),
        (MAGIC_V1, 0x20),
        (MAGIC_V1, 0x30),
        (MAGIC_V2, 0x00),
    }
    assert {transaction_of(record.sys_flag) for record in everything} == set(Transaction)
    assert min(record.total_size for record in everything) < FIXED_SIZE_V1 + 10


def says_the_same(record: Record, line: dict[str, object]) -> None:
    """Compare a record with a `message` line of RocketMQ's dump."""
    assert line == line | {
        "storeSize": record.total_size,
        "magic": f"{record.magic & 0xFFFFFFFF:08x}",
        "recordTopic": record.topic.decode(),
        "recordQueueId": record.queue_id,
        "recordQueueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": str(record.born_host),
        "storeHost": str(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "msgId": offset_message_id(record.store_host, record.commit_log_offset),
        "propertiesBytes": len(record.properties),
        "bodyLength": len(record.body),
        "bodySha256": hashlib.sha256(record.body).hexdigest(),
        "recordSha256": hashlib.sha256(record.encode()).hexdigest(),
    }


@pytest.mark.parametrize("name", golden_names("local"))
def test_a_decoded_record_says_what_RocketMQ_says(name: str) -> None:
    records, _ = decoded(name)
    case = golden_case(name)
    for line in case.expected("message"):
        record = records[line["commitLogOffset"]]
        says_the_same(record, line)
        assert split_pairs(record.properties) == line["properties"]
        for key, value in decode_properties(record.properties).items():
            assert find_property(record.properties, key.encode()) == value
    for line in case.expected("record"):
        record = records[line["commitLogOffset"]]
        crc_holds = crc_of(record.body) == record.body_crc
        if "forceVerifyPropCRC" in {**case.about["conf"], **case.about["read_conf"]}:
            crc_holds = record_crc_holds(record.encode())
        assert crc_holds == line["crcOk"]


def split_pairs(properties: bytes) -> list[list[str]]:
    """Pairs in stored order, as the dump splits them."""
    segments = (segment.partition("\x01") for segment in properties.decode().split("\x02"))
    return [[name, value] for name, separator, value in segments if separator and name]


def test_the_dumps_hold_as_many_messages_as_counted_once() -> None:
    assert sum(len(golden_case(name).expected("message")) for name in golden_names("local")) == 5619


def test_a_flipped_bit_in_a_body_is_told_only_when_the_crc_is_asked() -> None:
    damaged = 0
    for name in (name for name in golden_names("local") if "flip-body" in name):
        log = log_of(name)
        for offset, record in decoded(name)[0].items():
            if crc_of(record.body) == record.body_crc:
                continue
            damaged += 1
            stored = bytes_at(log, offset)
            assert stored is not None
            with pytest.raises(CorruptData, match="CRC"):
                decode_record(stored)
    assert damaged == 5


def expected_tags_code(record: Record) -> int:
    properties = decode_properties(record.properties)
    if record.topic.decode() == names.SCHEDULE_TOPIC and DELAY in properties:
        delays = names.delay_table_ms()
        level = min(int(properties[DELAY]), len(delays) - 1)
        if level > 0:
            return record.store_timestamp + delays[level]
    return string_hash(properties.get(TAGS, ""))


def units_of(data: bytes) -> Any:
    """Units of a ConsumeQueue file up to the first that is not written."""
    units = np.frombuffer(data, queue.UNIT.dtype)
    stop = np.flatnonzero(units["size"] <= 0)
    used = units[: stop[0]] if len(stop) else units
    assert used.tobytes() == data[: used.nbytes]
    assert all(queue.UNIT.pack(*unit) == raw.tobytes() for unit, raw in zip(used.tolist(), used, strict=True))
    return used.tolist()


@pytest.mark.parametrize("name", STORES)
def test_units_of_the_queues_point_to_their_records(name: str) -> None:
    records, _ = decoded(name)
    extensions = extension_units(name)
    found = dangling = 0
    for path, data in files_of(name, names.CONSUME_QUEUE).items():
        topic, queue_id, file_name = path.split("/")
        first = names.offset_of(file_name)
        assert first is not None
        for number, (commit_log_offset, size, tags_code) in enumerate(units_of(data), first // queue.UNIT.size):
            if size == queue.FILLER_SIZE:
                assert queue.UNIT.pack(commit_log_offset, size, tags_code) == queue.FILLER
                continue
            if commit_log_offset not in records:
                dangling += 1
                continue
            record = records[commit_log_offset]
            found += 1
            assert size == record.total_size
            assert enters_queue(record.sys_flag)
            if not topic.startswith(names.LMQ_PREFIX):
                assert (record.topic.decode(), record.queue_id, record.queue_offset) == (topic, int(queue_id), number)
            if queue.is_extension_address(tags_code):
                unit = extensions[f"{topic}/{queue_id}"][queue.extension_position(tags_code)]
                assert unit.store_timestamp == record.store_timestamp
                tags_code = unit.tags_code
            assert tags_code == expected_tags_code(record)
    if name in UNDAMAGED and "min-offset" not in name:
        assert dangling == 0
    case = golden_case(name)
    if name in UNDAMAGED and case.about.get("end") == "shutdown" and case.expected("queue"):
        batch_queues = sum(line["topic"] == "BatchTopic" for line in case.expected("message"))
        assert found == len(case.expected("message")) - batch_queues
    assert (found == 0) == (name in NO_UNITS), found


NO_UNITS = {
    "local/no-log",
    "local/no-queues-abort",
    "local/no-queues-abort-5.3.3",
    "local/no-queues-clean",
    "local/no-queues-clean-5.3.3",
    "local/prefill",
}


def extension_units(name: str) -> dict[str, dict[int, Any]]:
    """Units of ConsumeQueueExt by queue and byte offset; each encodes to the bytes it was read from."""
    found: dict[str, dict[int, Any]] = {}
    for path, data in files_of(name, names.CONSUME_QUEUE_EXT).items():
        queue_path, _, file_name = path.rpartition("/")
        position = 0
        while position + queue.EXTENSION_UNIT.size <= len(data):
            unit = queue.EXTENSION_UNIT.unpack(data, position)
            if unit.size <= 0:
                mark = queue.EXTENSION_END.unpack(data, position).mark
                assert mark in (0, -1)
                break
            assert unit.size == queue.EXTENSION_UNIT.size + unit.bitmap_size
            assert queue.EXTENSION_UNIT.pack(*unit) == data[position : position + queue.EXTENSION_UNIT.size]
            found.setdefault(queue_path, {})[(names.offset_of(file_name) or 0) + position] = unit
            position += unit.size
    return found


def test_extension_units_say_what_RocketMQ_says() -> None:
    units = extension_units("local/queue-ext")
    messages = golden_case("local/queue-ext").expected("message")
    assert len(messages) == sum(len(of_queue) for of_queue in units.values()) == 120
    for line in messages:
        ext = line["ext"]
        matching = [
            unit
            for unit in units[f"{line['topic']}/{line['queueId']}"].values()
            if (unit.size, unit.tags_code, unit.store_timestamp)
            == (ext["size"], ext["tagsCode"], ext["storeTimestamp"])
        ]
        assert matching
        assert line["tagsCode"] == ext["tagsCode"]


def test_units_of_a_batch_queue_cover_the_queue_without_a_gap() -> None:
    found = 0
    for name in ("local/inner-batch", "broker"):
        records, _ = decoded(name)
        for data in files_of(name, names.BATCH_CONSUME_QUEUE).values():
            units = np.frombuffer(data, queue.BATCH_UNIT.dtype)
            used = units[units["size"] > 0]
            found += len(used)
            assert used.tobytes() == data[: used.nbytes]
            assert np.all(used["base_offset"][1:] == (used["base_offset"] + used["batch_size"])[:-1])
            for raw in used:
                unit = queue.BATCH_UNIT.unpack(raw.tobytes())
                assert queue.BATCH_UNIT.pack(*unit) == raw.tobytes()
                record = records[unit.commit_log_offset]
                assert (unit.size, unit.base_offset) == (record.total_size, record.queue_offset)
                assert (unit.tags_code, unit.store_timestamp) == (expected_tags_code(record), record.store_timestamp)
                assert (unit.compacted_offset, unit.reserved) == (-1, 0)
                inner = record.sys_flag & SysFlag.INNER_BATCH
                assert unit.batch_size == (len(decode_batch_body(record.body)) if inner else 1)
    assert found == 40


def test_bodies_of_inner_batches_encode_to_the_bytes_they_were_read_from() -> None:
    case = golden_case("local/inner-batch")
    records = decoded(case.name)[0]
    put = {line["op"]: line["commitLogOffset"] for line in case.puts() if line.get("status") == "PUT_OK"}
    checked = 0
    for number, operation in enumerate(case.plan()):
        if operation["op"] != "inner-batch":
            continue
        body = records[put[number]].body
        entries = decode_batch_body(body)
        assert encode_batch_body(entries) == body
        assert [entry.body for entry in entries] == [
            base64.b64decode(message["body"]) for message in operation["messages"]
        ]
        checked += 1
    assert checked >= 20


@pytest.mark.parametrize("release", ["5.5.0", "5.3.3"])
def test_the_record_crc_is_written_as_RocketMQ_writes_it(release: str) -> None:
    records, _ = decoded(f"local/prop-crc-{release}")
    assert len(records) >= 80
    for record in records.values():
        stored = record.encode()
        assert record_crc_holds(stored)
        unsigned = reserve_record_crc(record.properties[:-CRC_PROPERTY_SIZE])
        assert seal_record_crc(replace(record, properties=unsigned).encode()) == stored


def index_files(name: str) -> dict[str, bytes]:
    return files_of(name, names.INDEX)


def sizes_of_index(case: GoldenCase) -> tuple[int, int]:
    """Slots and item capacity that the case was written with."""
    if case.name == "broker":
        return 500, 400
    return int(case.about["conf"]["maxHashSlotNum"]), int(case.about["conf"]["maxIndexNum"])


@pytest.mark.parametrize("name", STORES)
def test_index_files_hold_the_keys_of_their_records(name: str) -> None:
    case = golden_case(name)
    slot_count, capacity = sizes_of_index(case)
    records, _ = decoded(name)
    seen = 0
    for file_name, data in index_files(name).items():
        assert names.is_index_name(file_name)
        assert len(data) == index.file_size(slot_count, capacity)
        header = index.HEADER.unpack(data)
        assert index.HEADER.pack(*header) == data[: index.HEADER.size]
        slots = np.frombuffer(data, index.SLOT.dtype, slot_count, index.slots_position())["newest_item"]
        items = np.frombuffer(data, index.ITEM.dtype, capacity, index.items_position(slot_count))
        assert items.tobytes() == data[index.items_position(slot_count) :]
        for number in range(1, header.next_item):
            item = items[number]
            record = records.get(int(item["commit_log_offset"]))
            if record is None:
                continue
            seen += 1
            assert int(item["key_hash"]) in key_hashes(record)
            assert int(item["previous_item"]) < number
            if number > 1:  # the first item of a rolled file counts from the file before
                assert int(item["seconds"]) == max(0, (record.store_timestamp - header.begin_timestamp) // 1000)
        used = slots[slots > 0]
        if header.next_item > 1:
            assert len(used) == header.used_slot_count
            assert used.max() == header.next_item - 1
            for slot, newest in enumerate(slots.tolist()):
                assert newest == 0 or int(items[newest]["key_hash"]) % slot_count == slot
    assert (seen == 0) == (name in NO_ITEMS), seen


NO_ITEMS = {
    "local/boundary-5.3.3",  # tags only, which 5.3 does not index
    "local/checkpoint-behind-abort",
    "local/no-index-clean",
    *NO_UNITS,
}


def key_hashes(record: Record) -> set[int]:
    """Hashes of every key under which any release indexes the record."""
    topic = record.topic.decode()
    properties = decode_properties(record.properties)
    texts = [index.index_key(topic, key) for key in split_keys(properties.get(KEYS))]
    if UNIQUE_KEY in properties:
        texts.append(index.index_key(topic, properties[UNIQUE_KEY]))
    if TAGS in properties:
        texts.append(index.tag_key(topic, properties[TAGS]))
    return {index_key_hash(string_hash(text)) for text in texts}


@pytest.mark.parametrize("name", ["local/plain-5.5.0", "local/plain-5.3.3", "local/index-5.5.0", "local/index-5.3.3"])
def test_index_headers_say_what_RocketMQ_says(name: str) -> None:
    headers = {file: index.HEADER.unpack(data) for file, data in index_files(name).items()}
    lines = golden_case(name).expected("index-file")
    assert len(lines) >= 1
    assert sorted(headers) == [line["name"] for line in lines]
    for line in lines:
        assert list(headers[line["name"]]) == [
            line["beginTimestamp"],
            line["endTimestamp"],
            line["beginPhyOffset"],
            line["endPhyOffset"],
            line["hashSlotCount"],
            line["indexCount"],
        ]


def test_checkpoints_encode_to_the_bytes_they_were_read_from() -> None:
    found = 0
    for name in STORES:
        data = next((data for path, data in golden_case(name).store_files() if path == names.CHECKPOINT), None)
        if data is None:
            continue
        found += 1
        assert len(data) == checkpoint.FILE_SIZE
        values = checkpoint.CHECKPOINT.unpack(data)
        assert checkpoint.CHECKPOINT.pack(*values) == data[: checkpoint.CHECKPOINT.size]
        assert not any(data[checkpoint.CHECKPOINT.size :])
        if name.endswith("5.3.3"):
            assert not any(data[checkpoint.SIZE_5_3 :])
    assert found == len(STORES) - 1, "only checkpoint-missing-abort has none"


def test_the_timer_log_is_a_chain_of_units_through_the_wheel() -> None:
    log = {names.offset_of(path) or 0: data for path, data in files_of("broker", "timerlog").items()}
    records, _ = decoded("broker")
    positions = {}
    blanks = 0
    for base, data in log.items():
        position = 0
        while position + timer.LOG_BLANK.size <= len(data):
            blank = timer.LOG_BLANK.unpack(data, position)
            if blank.magic == MAGIC_BLANK:
                assert timer.LOG_BLANK.pack(*blank) == data[position : position + timer.LOG_BLANK.size]
                blanks += 1
                break
            if blank.size != timer.LOG_UNIT.size:
                break
            unit = timer.LOG_UNIT.unpack(data, position)
            assert timer.LOG_UNIT.pack(*unit) == data[position : position + timer.LOG_UNIT.size]
            assert records[unit.commit_log_offset].total_size == unit.record_size
            assert unit.previous_position == -1 or unit.previous_position in positions
            positions[base + position] = unit
            position += timer.LOG_UNIT.size
    assert len(positions) == 267
    assert blanks >= 1
    wheel = np.frombuffer(dict(golden_case("broker").store_files())["timerwheel"], timer.WHEEL_SLOT.dtype)
    assert len(wheel) == timer.WHEEL_SLOT_COUNT
    used = wheel[wheel["count"] > 0]
    assert len(used) >= 1
    for slot in used:
        unit = positions[int(slot["last_position"])]
        deliver_time = unit.write_time + unit.delay_ms
        assert int(slot["time"]) == deliver_time // timer.PRECISION_MS
        assert wheel[timer.wheel_slot(deliver_time)] == slot


@pytest.mark.parametrize("release", ["5.3.3", "5.5.0"])
def test_config_files_encode_to_the_bytes_that_each_release_writes(release: str) -> None:
    files = sorted((GOLDEN / "local" / "config-json" / release).glob("*.json"))
    assert len(files) == 4
    for file in files:
        value = decode_loose_json(file.read_bytes())
        assert encode_loose_json(value, release="5.3" if release == "5.3.3" else "5.5").encode() == file.read_bytes()


def test_config_files_of_a_whole_broker_encode_to_the_same_bytes() -> None:
    files = {path: data for path, data in files_of("broker", names.CONFIG).items() if ".json" in path}
    assert len(files) >= 13
    for path, data in files.items():
        assert encode_loose_json(decode_loose_json(data)).encode() == data, path
