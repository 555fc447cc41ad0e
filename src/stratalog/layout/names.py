"""Names: files and directories of a store, topics, delay levels."""

import re
from datetime import UTC, datetime, tzinfo
from functools import cache

from stratalog.errors import IllegalMessage
from stratalog.layout.message import TOPIC_CHARS_MAX_V1, TOPIC_SIZE_MAX
from stratalog.layout.record import OFFSETS_END

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
CONSUME_QUEUE_EXT = "consumequeue_ext"
BATCH_CONSUME_QUEUE = "batchconsumequeue"
INDEX = "index"
CONFIG = "config"
CHECKPOINT = "checkpoint"
ABORT = "abort"
OWN_MARK = b"stratalog"
"""How our abort file begins, and the lock file after our clean stop. RocketMQ writes over both when it starts."""
LOCK = "lock"
SNAPSHOT = "queues.snapshot"
SIZES = "file-sizes.json"
"""Ours alone: RocketMQ leaves foreign files in the root alone."""
QUARANTINE = "stratalog-quarantine"
"""Directory in the store for what was taken out of RocketMQ's."""
STAGING = "stratalog-rebuild.tmp"
"""Directory in the store in which a rebuild makes the new files."""
UNFINISHED_COPY = "stratalog-copy-unfinished"
"""In a copy until it is repaired: the store that it is a copy of."""

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
LMQ_PREFIX = "%LMQ%"
SYSTEM_PREFIX = "rmq_sys_"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        SCHEDULE_TOPIC,
        "BenchmarkTest",
        HALF_TOPIC,
        "RMQ_SYS_TRACE_TOPIC",
        OP_HALF_TOPIC,
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
UNKNOWN_LEVEL_DELAY_MS = 1000

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_QUEUE_ID = re.compile(r"(0|[1-9][0-9]{0,9})\Z")
_OFFSET_NAME = re.compile(r"[0-9]{20}\Z")
INDEX_NAME_SIZE = 17
_INDEX_NAME = re.compile(r"[0-9]{17}\Z")


@cache
def delay_table_ms(levels: str = DELAY_LEVELS) -> tuple[int, ...]:
    """Delay by level in milliseconds; entry 0 is unused. Raises `IllegalMessage` for a level without a unit."""
    table = [0]
    for level in levels.split():
        if level[-1:] not in _UNIT_MS or not re.fullmatch("[0-9]+", level[:-1]):
            raise IllegalMessage(f"delay level {level[:80]!r} is no number followed by s, m, h or d")
        table.append(int(level[:-1]) * _UNIT_MS[level[-1]])
    return tuple(table)


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_tiered(topic: str, *, excluded: frozenset[str] = frozenset()) -> bool:
    """Whether a topic is copied to the tier; retry and dead-letter topics are (MessageStoreTopicFilter).

    `excluded` holds the names that a broker adds: its own, the cluster's, the reply topic.
    """
    return bool(topic) and not (is_system_topic(topic) or topic.startswith(LMQ_PREFIX) or topic in excluded)


def check_topic(topic: str) -> None:
    """Raise `IllegalMessage` for a topic name that must not become a directory or does not fit a record.

    Ordinary topics have up to 127 characters, retry and dead-letter topics up to 255; letters, digits and `%|_-`.
    """
    if not _TOPIC.match(topic):
        raise IllegalMessage(f"topic {topic[:300]!r}: only letters, digits and % | _ - are allowed, and at least one")
    limit = TOPIC_SIZE_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_CHARS_MAX_V1
    if len(topic) > limit:
        raise IllegalMessage(f"topic of {len(topic)} characters: the limit for {topic[:20]!r}… is {limit}")


def is_topic(name: str) -> bool:
    """Whether a directory may hold a topic's queues. Wider than `check_topic`: RocketMQ's store takes any text."""
    fits = 0 < len(name.encode("utf-8", "surrogatepass")) <= TOPIC_SIZE_MAX
    return fits and name.isprintable() and "/" not in name and not name.startswith(".")


def queue_id_of(name: str) -> int | None:
    """Queue id of a directory, or None when its name is not one of a queue."""
    return int(name) if _QUEUE_ID.match(name) and int(name) < 1 << 31 else None


def offset_name(offset: int) -> str:
    """File name of a data file that starts at this byte offset."""
    return f"{offset:020d}"


def offset_of(name: str) -> int | None:
    """Start offset of a data file, or None when the name is not one of a data file."""
    offset = int(name) if _OFFSET_NAME.match(name) else -1
    return offset if 0 <= offset < OFFSETS_END else None


def index_name(created_ms: int, zone: tzinfo = UTC) -> str:
    """Name of an index file created at that time, in the broker's time zone."""
    moment = datetime.fromtimestamp(created_ms // 1000, zone)
    return moment.strftime("%Y%m%d%H%M%S") + f"{created_ms % 1000:03d}"


def is_index_name(name: str) -> bool:
    return bool(_INDEX_NAME.match(name))
