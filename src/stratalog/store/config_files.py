"""The broker's JSON files below `config/`: topics, consumer offsets, subscription groups, delay progress and the like.

Each has a copy `<name>.bak`, the state before the last write. RocketMQ writes in place (to 5.3) or renames the file to
its copy and then writes (5.5); both leave moments in which one of the two is missing or cut. So either may be broken:

    main file          copy               what is read
    ---------------    ---------------    --------------------------------------------------
    whole              any                the main file
    missing            missing, empty     nothing: an empty state
    missing, broken    whole              the copy, and a note that says so
    broken             missing, broken    nothing can be: `CorruptData` names both
    missing            broken             the same

(An empty file counts as broken.) We write the copy first and the main file second, each atomically and durably, and
never a broken main file over the copy: at every moment one whole state is on the disk.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stratalog.errors import CorruptData, command
from stratalog.layout.loosejson import TEXT_SIZE_MAX, Release, decode_loose_json, encode_loose_json
from stratalog.store.disk import Disk

TOPICS = "topics.json"
CONSUMER_OFFSETS = "consumerOffset.json"
LMQ_CONSUMER_OFFSETS = "lmqConsumerOffset.json"
"""Instead of `consumerOffset.json` on a broker with light queues."""
DELAY_OFFSETS = "delayOffset.json"
SUBSCRIPTION_GROUPS = "subscriptionGroup.json"
WHAT_IS_LOST = {
    TOPICS: "queue counts, permissions and attributes of topics",
    CONSUMER_OFFSETS: "how far each group has consumed",
    LMQ_CONSUMER_OFFSETS: "how far each group has consumed",
    DELAY_OFFSETS: "how far delayed messages were delivered: those that the log still holds are delivered again",
    SUBSCRIPTION_GROUPS: "settings of consumer groups",
}
"""With a file, where it has no copy: the broker begins without."""
_TABLES = {
    TOPICS: "topicConfigTable",
    CONSUMER_OFFSETS: "offsetTable",
    LMQ_CONSUMER_OFFSETS: "lmqOffsetTable",
    DELAY_OFFSETS: "offsetTable",
    SUBSCRIPTION_GROUPS: "subscriptionGroupTable",
    "consumerFilter.json": "filterDataByTopic",
}
"""The member that a broker writes into each file, and into no other of another purpose."""
COPY = ".bak"
QUEUE_TYPE = "queue.type"
_ATTRIBUTES = "attributes"
_QUEUE_TYPES = ("SimpleCQ", "BatchCQ", "RocksDBCQ")
_EMPTY = "is empty"
_ON_ONE_LINE = frozenset({"timermetrics", "transactionMetrics"})


@dataclass(frozen=True, slots=True)
class Config:
    """What a config file holds: JSON objects as dicts in the file's order, keys that are integers as `int`."""

    value: dict[str | int, Any]
    note: str | None = None
    """Set when the copy was read, and why."""


def read_config(directory: Path, name: str, disk: Disk) -> Config:
    """Read a config file or its copy by the table above. Raises `CorruptData` when neither can be read."""
    main, copy = directory / name, directory / (name + COPY)
    found, error = _read(main, disk)
    if found is not None:
        return Config(found)
    spare, spare_error = _read(copy, disk)
    if spare is not None:
        return Config(spare, f"{main} {error or 'is missing'}: {copy.name} was read, the state before the last change")
    if error is None and spare_error in (None, _EMPTY):
        return Config({})
    and_then = " and add the topics of type BatchCQ" if name == TOPICS else ""
    raise CorruptData(
        f"neither {main} ({error or 'is missing'}) nor {copy} ({spare_error or 'is missing'}) can be read: restore one "
        f"of them from a backup, or let {command('repair', directory.parent)} set them aside{and_then}",
        path=str(main),
    )


def _read(path: Path, disk: Disk) -> tuple[dict[str | int, Any] | None, str | None]:
    """The content, or what is wrong with it (None for a file that is not there)."""
    try:
        data = disk.read(path, size_max=TEXT_SIZE_MAX)
    except CorruptData as error:
        return None, f"cannot be read ({error})"
    if data is None:
        return None, None
    if not data.strip():
        return None, "is blank" if data else _EMPTY
    try:
        value = decode_loose_json(data)
    except CorruptData as error:
        return None, f"cannot be parsed ({error})"
    fault = content_fault(path, value)
    return (None, fault) if fault else (value, None)


def content_fault(path: Path, value: Any) -> str | None:
    """What a file cannot say, though it is JSON: anything but an object; what another file says; and, as batches would
    be taken for messages, a topic's queue type that is none (RocketMQ does not load the store), or the name of that
    member with one bit changed."""
    if not isinstance(value, dict):
        return "holds no JSON object"
    name = path.name.removesuffix(COPY)
    own, others = _TABLES.get(name), value.keys() & _TABLES.values()
    if own and others and own not in value:
        return f"has {min(others)!r} and no {own!r}: it is a copy of another file"
    table = value.get("topicConfigTable") if name == TOPICS else {}
    for topic, entry in table.items() if isinstance(table, dict) else ():
        members = entry if isinstance(entry, dict) else {}
        attributes = members.get(_ATTRIBUTES)
        attributes = attributes if isinstance(attributes, dict) else {}
        kind = attributes.get(QUEUE_TYPE)
        if kind is not None and kind not in _QUEUE_TYPES:
            return f"says that topic {topic} has the queue type {kind!r}, which is none"
        for known, keys in ((_ATTRIBUTES, members), (QUEUE_TYPE, attributes)):
            if changed := next((key for key in keys if _is_one_bit_off(str(key), known)), None):
                return f"has {changed!r} for {known!r} at topic {topic}"
    return None


def _is_one_bit_off(text: str, known: str) -> bool:
    stored, right = text.encode(errors="surrogatepass"), known.encode()
    return len(stored) == len(right) and sum((a ^ b).bit_count() for a, b in zip(stored, right, strict=True)) == 1


def write_config(directory: Path, name: str, value: dict[str | int, Any], disk: Disk, *, release: Release) -> None:
    """Write a config file as a broker of that release does, and keep the state before as its copy.

    Raises `DiskFull` and `OSError`; the state before is whole then.
    """
    disk.make_directory(directory)
    main = directory / name
    before = disk.read(main)
    if before is not None and _read(main, disk)[0] is not None:
        disk.replace(directory / (name + COPY), before)
    disk.replace(main, encode_config(name, value, release=release))


def encode_config(name: str, value: dict[str | int, Any], *, release: Release) -> bytes:
    """The bytes of a config file."""
    return encode_loose_json(value, release=release, lines=name not in _ON_ONE_LINE).encode()


def read_consumer_offsets(directory: Path, disk: Disk) -> dict[tuple[str, str, int], int]:
    """Next queue offset to consume by (group, topic, queue id). Raises `CorruptData`, also for another shape."""
    table = read_config(directory, CONSUMER_OFFSETS, disk).value.get("offsetTable", {})
    offsets = {}
    try:
        for pair, queues in table.items():
            topic, _, group = pair.partition("@")
            offsets.update({(group, topic, int(queue_id)): int(offset) for queue_id, offset in queues.items()})
    except (AttributeError, TypeError, ValueError):
        place = str(directory / CONSUMER_OFFSETS)
        raise CorruptData(
            "offsetTable is not {topic@group: {queue id: offset}}; restore the file", path=place
        ) from None
    return offsets
