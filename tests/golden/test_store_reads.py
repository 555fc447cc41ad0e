"""Our store opens every store that RocketMQ wrote, read-only, and reads and answers what RocketMQ reads and answers.

One test a kind of line in `expected.jsonl`; where we choose to differ, `golden/choices.py` says how and why.
"""

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import stratalog
from golden.cases import GoldenCase, golden_case, golden_names
from golden.choices import CHOICES, Choice, choice_of
from stratalog.errors import CorruptData, OffsetOutOfRange
from stratalog.layout.light import is_light
from stratalog.layout.message import BLANK, MAGIC_BLANK, Record, crc_of, decode_record
from stratalog.layout.queue import UNIT
from stratalog.layout.recordcrc import record_crc_holds
from stratalog.store.message import Message
from stratalog.store.message_store import MessageStore

CASES = golden_names("local")
TAG_KEY = "T#"
HITS_MAX = 64
OF_BATCHES = "BatchCQ"
Line = dict[str, Any]
QueueKey = tuple[str, int]


@dataclass
class Opened:
    """A case, our store over a private copy of its files, and what we choose to do differently."""

    case: GoldenCase
    store: MessageStore
    root: Path

    @property
    def choice(self) -> Choice:
        return choice_of(self.case.name)

    @property
    def kept(self) -> set[int]:
        """Log offsets of records that RocketMQ loses and we serve."""
        return set(self.case.about["lost_from_log"]) - self.choice.damaged if self.choice.keeps_lost else set()


SETTINGS = {
    "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "mapperFileSizeBatchConsumeQueue": "mapper_file_size_batch_consume_queue",
    "mappedFileSizeConsumeQueueExt": "mapped_file_size_consume_queue_ext",
    "enableConsumeQueueExt": "enable_consume_queue_ext",
    "enableLmq": "enable_lmq",
    "enableMultiDispatch": "enable_multi_dispatch",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
}
INDEX_SIZES = ("maxHashSlotNum", "maxIndexNum")


def settings_of(case: GoldenCase, *, index_sizes: bool = True) -> dict[str, Any]:
    """What the case was read with, under our names."""
    conf = case.about["conf"] | case.about["read_conf"]
    given = {SETTINGS[key]: value for key, value in conf.items() if key in SETTINGS}
    left_out = () if index_sizes else [SETTINGS[key] for key in INDEX_SIZES]
    plain = {name: value == "true" if value in ("true", "false") else value for name, value in given.items()}
    release = "5.3" if case.release.startswith("5.3") else "5.5"
    return {name: value for name, value in plain.items() if name not in left_out} | {"compatibility": release}


@contextmanager
def opened_case(name: str, directory: Path, **more: Any) -> Iterator[Opened]:
    """Open a case read-only, and see afterwards that not a byte of it changed."""
    case = golden_case(name)
    root = case.unpack_store(directory)
    before = fingerprint(root)
    with stratalog.open(root, mode="r", **settings_of(case, **more)) as store:
        yield Opened(case, store, root)
    assert fingerprint(root) == before, "a store opened read-only changed on disk"


def fingerprint(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


READABLE = [name for name in CASES if not choice_of(name).is_refused]


@pytest.fixture(params=READABLE)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    with opened_case(request.param, tmp_path) as found:
        yield found


def test_what_we_choose_to_read_otherwise_is_named_case_by_case() -> None:
    assert {f"local/{name}" for name in CHOICES} <= set(CASES)
    assert all(choice.why for choice in CHOICES.values())
    assert (len(CASES), len(READABLE), len(CHOICES)) == (57, 56, 15)


# -- store -----------------------------------------------------------------------------------------------------------


def test_the_log_begins_and_ends_where_rocketmq_says(opened: Opened) -> None:
    """`writeable` is not compared (we open for reading); the checkpoint in memory is a matter of RocketMQ's clock."""
    (line,) = opened.case.expected("store")
    log = opened.store.log
    if opened.case.name == "local/lmq-poison":
        assert (line["loaded"], log.first_offset, log.end_offset) == (False, 0, opened.choice.end_offset)
        return
    assert line["loaded"]
    assert line["dispatched"]
    assert log.first_offset == line["minPhyOffset"]
    end_offset = line["maxPhyOffset"] if opened.choice.end_offset is None else opened.choice.end_offset
    assert log.end_offset == end_offset
    assert line["maxPhyOffset"] == line["confirmOffset"]
    assert opened.store.recovery.clean != line["before"]["abort"]
    checkpoint = opened.root / "checkpoint"
    assert (checkpoint.stat().st_size if checkpoint.exists() else -1) == line["before"]["checkpointLength"]
    reported = {damage.begin for damage in opened.store.recovery.quarantined}
    assert reported == opened.choice.damaged


def test_queues_without_a_log_are_refused_with_the_next_step(tmp_path: Path) -> None:
    case = golden_case("local/no-log")
    with pytest.raises(CorruptData, match="restore commitlog/ from a copy"):
        stratalog.open(case.unpack_store(tmp_path), mode="r", **settings_of(case))


# -- queue, message, gap ---------------------------------------------------------------------------------------------


def test_queues_reach_from_and_to_the_same_offsets(opened: Opened) -> None:
    lines = {(line["topic"], line["queueId"]): line for line in opened.case.expected("queue")}
    expected = {key: [line["minOffset"], line["maxOffset"]] for key, line in lines.items() if line["maxOffset"]}
    for topic, queue_id, queue_offset in more_messages(opened):
        span = expected.setdefault((topic, queue_id), [0, 0])
        span[1] = max(span[1], queue_offset + 1)
    queues = {key: opened.store.queue(*key) for key in keys_of(opened)}
    assert {key: [queue.min_offset, queue.max_offset] for key, queue in queues.items()} == expected
    for key, line in lines.items():
        if key not in queues or opened.kept or opened.case.name in OTHER_END or line["type"] == OF_BATCHES:
            continue
        commit_log_offset, size, _ = _units(opened.store, *key)[-1]
        assert line["maxPhysicOffset"] == commit_log_offset + size
        assert line["nextOffsetForPut"] == queues[key].max_offset


def keys_of(opened: Opened) -> list[QueueKey]:
    """The queues to compare. Light queues of the store that RocketMQ does not load: see `test_queue_kinds`."""
    keys = opened.store.queues()
    return [key for key in keys if not is_light(key[0])] if opened.case.name == "local/lmq-poison" else keys


OTHER_END = ("local/queues-cut-clean",)


def _units(store: MessageStore, topic: str, queue_id: int) -> list[tuple[int, int, int]]:
    queue = store.queue(topic, queue_id)
    data = queue.units(queue.min_offset, queue.max_offset - queue.min_offset)
    return [tuple(UNIT.unpack(data[at : at + UNIT.size])) for at in range(0, len(data), UNIT.size)]  # type: ignore[misc]


def more_messages(opened: Opened) -> dict[tuple[str, int, int], Line]:
    """Messages that we serve and RocketMQ does not, from what was put: by topic, queue and queue offset."""
    plan, kept = opened.case.plan(), opened.kept
    if opened.case.name == "local/queues-cut-clean":
        lines = opened.case.expected("record")
        shown = {line["commitLogOffset"] for line in in_place(opened)}
        read = [line for line in lines if line["commitLogOffset"] >= opened.store.recovery.scanned_from]
        return {
            (line["topic"], line["queueId"], line["queueOffset"]): {"commitLogOffset": line["commitLogOffset"]}
            for line in read
            if line["commitLogOffset"] not in shown
        }
    found = {}
    for put in opened.case.puts():
        operation = plan[put["op"]]
        if put.get("commitLogOffset") in kept and operation["op"] == "put":
            found[operation["topic"], operation["queueId"], put["queueOffset"]] = {
                "commitLogOffset": put["commitLogOffset"],
                "storeTimestamp": put["storeTimestamp"],
                "bornTimestamp": operation["born"],
                "storeSize": put["size"],
                "bodySha256": hashlib.sha256(base64.b64decode(operation["body"])).hexdigest(),
            }
    assert len(found) == len(kept)
    return found


def in_place(opened: Opened) -> list[Line]:
    """Messages that RocketMQ serves at the offset that they were given: after damage it moves some."""
    lines = opened.case.expected("message")
    if opened.case.name != "local/queues-cut-clean":
        return lines
    return [line for line in lines if line["queueOffset"] == line["recordQueueOffset"]]


def test_every_queue_gives_the_same_messages(opened: Opened) -> None:
    expected = {(line["topic"], line["queueId"], line["queueOffset"]): line for line in in_place(opened)}
    expected |= more_messages(opened)
    expected = {key: line for key, line in expected.items() if line["commitLogOffset"] not in opened.choice.damaged}
    assert not opened.case.expected("gap"), "RocketMQ shows a gap in none of these stores"
    found = {}
    for key in keys_of(opened):
        found |= places_of(opened, key)
    assert found.keys() == expected.keys()
    for place, said in found.items():
        line = expected[place]
        message = opened.store.message(line["commitLogOffset"])
        seen = as_expected(message) | said
        assert line == line | {name: value for name, value in seen.items() if name in line}
        if "properties" in line:
            stored = [tuple(pair) for pair in line["properties"]]
            assert message.properties == {name: value for name, value in stored if name and value}


def places_of(opened: Opened, key: QueueKey) -> dict[tuple[str, int, int], Line]:
    """By place, what a queue says of each record that it serves: its unit's fields, and the messages read from it."""
    queue = opened.store.queue(*key)
    records: dict[int, list[int]] = {}
    for message in read_past_damage(queue):
        assert (message.topic, message.queue_id) == key
        records.setdefault(message.commit_log_offset, []).append(message.queue_offset)
    types = {(line["topic"], line["queueId"]): line["type"] for line in opened.case.expected("queue")}
    if types.get(key) == OF_BATCHES:
        return {
            (*key, offsets[0]): {"commitLogOffset": at, "batchNum": len(offsets)} for at, offsets in records.items()
        }
    tags_codes = {offset: unit[2] for offset, unit in enumerate(_units(opened.store, *key), queue.min_offset)}
    return {
        (*key, offset): {"commitLogOffset": at, "batchNum": 1, "tagsCode": tags_codes[offset]}
        | ({"ext": extension_of(queue, offset)} if queue.extension(offset) else {})
        for at, (offset,) in records.items()
    }


def read_past_damage(queue: stratalog.Queue) -> Iterator[Message]:
    """A message that is damaged is not served; the error says where reading goes on."""
    at = queue.min_offset
    while at < queue.max_offset:
        try:
            for message in queue.read(at):
                yield message
                at = message.queue_offset + 1
            return
        except CorruptData as error:
            if f"read on from offset {at + 1}" not in str(error):
                raise
            at += 1


def extension_of(queue: stratalog.Queue, queue_offset: int) -> Line:
    found = queue.extension(queue_offset)
    assert found
    entry = {"tagsCode": found.tags_code, "storeTimestamp": found.store_timestamp}
    return {"size": 20 + len(found.bitmap or b""), **entry, "bitmap": found.bitmap.hex() if found.bitmap else None}


def as_expected(message: Message) -> Line:
    return {
        "recordTopic": message.topic,
        "recordQueueId": message.queue_id,
        "recordQueueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "storeSize": message.store_size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": str(message.born_host),
        "storeHost": str(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "msgId": message.message_id,
        "bodyLength": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "propertiesBytes": len(message.raw_properties),
    }


# -- record, blank, noise --------------------------------------------------------------------------------------------


def test_the_log_holds_the_same_records_and_blanks_also_those_that_no_queue_shows(opened: Opened) -> None:
    assert not opened.case.expected("noise")
    end_offset = opened.store.log.end_offset
    lines = [line for line in opened.case.expected("record", "blank") if line["commitLogOffset"] < end_offset]
    expected = [{name: value for name, value in line.items() if name != "kind"} for line in lines]
    expected = [line for line in expected if line["commitLogOffset"] not in opened.choice.damaged]
    found = list(walked(opened))
    more = [line for line in found if line not in expected]
    assert [line for line in found if line in expected] == expected
    assert {line["commitLogOffset"] for line in more if "topic" in line} == opened.kept
    for commit_log_offset in opened.choice.damaged:
        with pytest.raises(CorruptData, match="no message with log offset"):
            opened.store.message(commit_log_offset)
    for line in found:
        if "topic" in line:
            message = opened.store.message(line["commitLogOffset"])
            assert (message.topic, message.store_size) == (line["topic"], line["size"])


def walked(opened: Opened) -> Iterator[Line]:
    """The log that our store has mapped, record by record; damaged ones, which it knows of, are stepped over."""
    log = opened.store.log
    ends = {damage.begin: damage.end for damage in opened.store.recovery.quarantined}
    verifies = "forceVerifyPropCRC" in opened.case.about["read_conf"]
    for file, position, end, base in log.extents(log.first_offset, log.end_offset):
        data = bytes(file.view[:end])
        while position + BLANK.size <= end:
            if base + position in ends:
                position = ends[base + position] - base
                continue
            blank = BLANK.unpack(data, position)
            if blank.magic == MAGIC_BLANK:
                yield {"commitLogOffset": base + position, "size": blank.size}
                break
            record = decode_record(data, position, verify=False)
            yield as_record_line(record, verifies=verifies)
            position += record.total_size


def as_record_line(record: Record, *, verifies: bool) -> Line:
    return {
        "commitLogOffset": record.commit_log_offset,
        "size": record.total_size,
        "magic": f"{record.magic & 0xFFFFFFFF:08x}",
        "topic": record.topic.decode(),
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "sysFlag": record.sys_flag,
        "storeTimestamp": record.store_timestamp,
        "bodyCRC": record.body_crc,
        "crcOk": record_crc_holds(record.encode()) if verifies else crc_of(record.body) == record.body_crc,
    }


# -- index-file ------------------------------------------------------------------------------------------------------


def test_index_files_cover_the_same_records(opened: Opened) -> None:
    assert opened.store.index
    lines = opened.case.expected("index-file")
    found = [
        [at.begin_timestamp, at.end_timestamp, at.begin_commit_log_offset, at.end_commit_log_offset, at.next_item]
        for at in opened.store.index.files
    ]
    names = ("beginTimestamp", "endTimestamp", "beginPhyOffset", "endPhyOffset", "indexCount")
    expected = [[line[name] for name in names] for line in lines]
    assert (found == expected) != opened.choice.index_differs


EMPTY_INDEX = ("halt", "boundary-5.3.3", "no-index", "no-queues", "prefill", "checkpoint-behind")
"""Without an item, a file's size alone does not tell slots from items."""


@pytest.mark.parametrize("name", [name for name in READABLE if not any(part in name for part in EMPTY_INDEX)])
def test_the_sizes_of_index_files_are_found_from_what_they_hold(name: str, tmp_path: Path) -> None:
    with opened_case(name, tmp_path, index_sizes=False) as opened:
        conf = opened.case.about["conf"]
        assert opened.store.settings.index_slot_count == conf["maxHashSlotNum"]
        assert opened.store.settings.index_item_capacity == conf["maxIndexNum"]


# -- answer ----------------------------------------------------------------------------------------------------------

ASKED = [name for name in READABLE if golden_case(name).expected("answer") and name != "local/inner-batch"]
"""Of batch topics we answer offsets of messages, RocketMQ those of records: `test_queue_kinds` compares them."""


@pytest.mark.parametrize("name", ASKED)
def test_times_keys_and_pulls_are_answered_as_rocketmq_does(name: str, tmp_path: Path) -> None:
    asked = {"time": check_time, "key": check_key, "get": check_get}
    with opened_case(name, tmp_path) as opened:
        for line in opened.case.expected("answer"):
            if line["question"]["ask"] != "key" or not opened.choice.keys_differ:
                asked[line["question"]["ask"]](line, opened.store)


def test_a_missing_index_is_built_again_and_answers(tmp_path: Path) -> None:
    with opened_case("local/no-index-clean", tmp_path) as opened:
        questions = [line["question"] for line in opened.case.expected("answer")]
        hits = [list(opened.store.query(asked["topic"], key=asked["key"], limit=HITS_MAX)) for asked in questions]
        assert sum(map(len, hits)) > 3
        for question, messages in zip(questions, hits, strict=True):
            assert all(question["key"] in [*message.keys, message.unique_key] for message in messages)


def check_time(line: Line, store: MessageStore) -> None:
    question = line["question"]
    queue = store.queue(question["topic"], question["queueId"])
    assert queue.offset_at_ms(question["time"]) == line["lower"] == line["default"], line
    assert queue.offset_at_ms(question["time"], "upper") == line["upper"], line


def check_key(line: Line, store: MessageStore) -> None:
    """The index names what RocketMQ answers, a doubled key twice; our candidates are each once, an exact query sorts
    out what the hash alone brought together."""
    question = line["question"]
    topic, is_tag = question["topic"], question.get("indexType") == "T"
    key, begin, end = (TAG_KEY if is_tag else "") + question["key"], question["begin"], question["end"]
    assert store.index
    newest = islice(store.index.offsets(topic, key, begin=begin, end=end), min(question["max"], HITS_MAX))
    found = sorted(offset for offset in newest if offset >= store.log.first_offset)
    assert found == line["commitLogOffsets"], line
    candidates = list(store.candidates(topic, key=key, begin=begin, end=end))
    assert len(candidates) == len(set(candidates))
    assert set(found) <= set(candidates)
    if question["max"] >= HITS_MAX and not is_tag:
        check_exact(question, store)


def check_exact(question: Line, store: MessageStore) -> None:
    """What the index says of times is true to the second only: an exact query goes by the messages themselves."""
    topic, key, begin, end = (question[name] for name in ("topic", "key", "begin", "end"))
    there = [offset for offset in store.candidates(topic, key=key) if offset >= store.log.first_offset]
    expected = {
        message.commit_log_offset
        for message in map(store.message, there)
        if message.topic == topic
        and key in (*message.keys, message.unique_key)
        and begin <= message.store_timestamp <= end
    }
    found = [message.commit_log_offset for message in store.query(topic, key=key, begin=begin, end=end, limit=HITS_MAX)]
    assert len(found) == len(set(found))
    assert set(found) == expected


def check_get(line: Line, store: MessageStore) -> None:
    """Offsets outside the queue are refused, and reading goes on where RocketMQ says."""
    question = line["question"]
    queue = store.queue(question["topic"], question["queueId"])
    if line["status"] in ("OFFSET_TOO_SMALL", "OFFSET_OVERFLOW_BADLY"):
        with pytest.raises(OffsetOutOfRange) as refused:
            queue.read(question["offset"])
        assert refused.value.next_offset == line["nextBeginOffset"]
    elif line["status"] == "NO_MESSAGE_IN_QUEUE":
        assert queue.max_offset == 0
    else:
        assert line["status"] in ("FOUND", "OFFSET_OVERFLOW_ONE", "OFFSET_FOUND_NULL")
        found = [message.queue_offset for message in queue.read(question["offset"], count=len(line["queueOffsets"]))]
        assert found == line["queueOffsets"]


# -- the store of a whole broker -------------------------------------------------------------------------------------

UNWRAPPED = "T_BCQ"
"""The client took the batches of this topic apart: their records are in `test_local_bytes`."""
COMPACTED = "T_CMP"
"""What RocketMQ serves of this topic is in its compaction log, which we leave alone."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    root = golden_case("broker").unpack_store(tmp_path_factory.mktemp("broker"))
    before = fingerprint(root)
    with stratalog.open(root, mode="r") as store:
        yield store
    assert fingerprint(root) == before


def test_queues_of_a_whole_broker_reach_as_far(broker: MessageStore) -> None:
    lines = {(line["topic"], line["queueId"]): line for line in golden_case("broker").expected() if line.get("queue")}
    log_end = golden_case("broker").about["commitlog_end"]
    pulled = [line for line in golden_case("broker").expected() if not line.get("queue")]
    later = {(line["topic"], line["queueId"]) for line in pulled if line["commitLogOffset"] >= log_end}
    compared = 0
    for (topic, queue_id), line in lines.items():
        if topic in (UNWRAPPED, COMPACTED) or (topic, queue_id) in later:
            continue
        queue = broker.queue(topic, queue_id)
        assert (queue.min_offset, queue.max_offset) == (line["minOffset"], line["lastOffset"] + 1), (topic, queue_id)
        compared += 1
    assert compared >= 80


def test_a_whole_broker_serves_the_same_messages(broker: MessageStore) -> None:
    case = golden_case("broker")
    compared = 0
    for line in case.expected():
        if line.get("queue") or line["topic"] in (UNWRAPPED, COMPACTED):
            continue
        if line["commitLogOffset"] >= case.about["commitlog_end"]:
            continue
        (message,) = broker.queue(line["topic"], line["queueId"]).read(line["queueOffset"], count=1)
        said = as_expected(message) | {
            "bornHost": f"/{message.born_host}",
            "storeHost": f"/{message.store_host}",
            "offsetMsgId": message.message_id,
            "queueOffset": message.queue_offset,
            "properties": message.properties,
        }
        assert line == line | {name: value for name, value in said.items() if name in line}
        compared += 1
    assert compared > 900
