"""Records of batch topics that contradict themselves: their flags, INNER_NUM, INNER_BASE and body do not agree.

The body has a checksum; of the rest one bit can be wrong without any other sign.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData
from stratalog.layout.batch import INNER_BASE, INNER_FLAGS, decode_batch_body, is_inner_batch
from stratalog.layout.message import HEAD, LOST_FLAG, Record, decode_record
from stratalog.layout.names import CONFIG, is_topic
from stratalog.layout.properties import find_property
from stratalog.layout.sysflag import HOSTS_MASK, TRANSACTION_MASK, SysFlag
from stratalog.store.config_files import TOPICS
from stratalog.store.disk import MappedFile
from stratalog.store.special_read import entries_of
from stratalog.store.topics import Topics

SET_TYPE = (
    "Restore config/topics.json from a copy, or edit it (no broker may be running): the entry of the topic in "
    'topicConfigTable needs "attributes": {"queue.type": "BatchCQ"}'
)
_FLAG_BITS = 11
_FIXED = HOSTS_MASK | TRANSACTION_MASK
_FLAGS_END = HEAD.position("sys_flag") + 4


def contradiction_of(record: Record) -> str:
    """What contradicts itself in a record of a batch topic, in words; empty where nothing does."""
    if record.flag == LOST_FLAG:
        return ""
    try:
        entries_of(record.sys_flag, record.properties, record.queue_offset, record.body)
    except CorruptData as error:
        return str(error)
    return ""


def batches_outside(file: MappedFile, positions: NDArray[np.int64], topics: Topics) -> Iterator[tuple[str, int]]:
    """Topic and position of the records of a log file that are batches though their topic is not of type BatchCQ. No
    broker puts them to such a topic."""
    last_bytes = file.view[positions + (_FLAGS_END - 1)]
    for position in positions[last_bytes & int(SysFlag.INNER_BATCH) != 0].tolist():
        record = decode_record(file.view.data, position, verify=False)
        topic = record.topic.decode("utf-8", "surrogateescape")
        if is_inner_batch(record.sys_flag, record.properties) and is_topic(topic) and not topics.is_batch(topic):
            yield topic, position


def of_wrong_type(root: Path, topic: str, commit_log_offset: int) -> CorruptData:
    """The error of a topic that is of type SimpleCQ in topics.json, and whose record at a log offset is a batch."""
    return CorruptData(
        f"topic {topic!r} is of type SimpleCQ, and the log holds batches of it, the first at log offset "
        f"{commit_log_offset:,}: each would be served as one message. {SET_TYPE}. Then run the same command again. "
        "Nothing was changed",
        path=str(root / CONFIG / TOPICS),
    )


def of_unknown_type(root: Path, topic: str, commit_log_offset: int) -> CorruptData:
    """The error of a topic without an entry in topics.json, of which the log holds batches and a message that was put
    as to a topic of type SimpleCQ."""
    return CorruptData(
        f"topic {topic!r} has no entry, and the log holds batches of it. The message at log offset "
        f"{commit_log_offset:,} has a queue offset of theirs, as after a put without the entry: both cannot be served. "
        f"{SET_TYPE}. Then run the same command again, which moves one of them, or sets it aside. Nothing was changed",
        path=str(root / CONFIG / TOPICS),
    )


def with_right_flags(data: bytes) -> bytes | None:
    """The record with the only bit of its flags turned that lets it agree with itself; None without such a bit."""
    found = [other for other in _one_flag_off(data) if _is_right(decode_record(other, verify=False))]
    return found[0] if len(found) == 1 else None


def _is_right(record: Record) -> bool:
    """Whether a record is a batch in all that tells, or one message in all that tells."""
    if contradiction_of(record):
        return False
    if record.sys_flag & INNER_FLAGS == INNER_FLAGS:
        return True
    if record.sys_flag & INNER_FLAGS or find_property(record.properties, INNER_BASE.encode()) is not None:
        return False
    try:
        return not decode_batch_body(record.body)
    except CorruptData:
        return True


def _one_flag_off(data: bytes) -> Iterator[bytes]:
    for bit in range(_FLAG_BITS):
        if not _FIXED >> bit & 1:
            at = _FLAGS_END - 1 - bit // 8
            yield data[:at] + bytes([data[at] ^ 1 << bit % 8]) + data[at + 1 :]
