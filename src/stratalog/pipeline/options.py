"""What `spark.read.format("stratalog")` may be told, parsed once into plain values.

The names and the JSON of offsets are those of Spark's Kafka source, so that a reader of one needs no manual for the
other. An option nobody knows is an error: a misspelt filter would otherwise read everything.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from stratalog.errors import ConfigurationError

EARLIEST, LATEST = -2, -1
"""Offsets that stand for "the first there is" and "after the last there is", as in Kafka's JSON."""

TABLES = ("messages", "queues", "segments", "files")
Table = Literal["messages", "queues", "segments", "files"]

QueueKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where reading starts or ends: one rule for all queues, and exceptions by (topic, queue id)."""

    default: int
    exceptions: Mapping[QueueKey, int]

    def of(self, topic: str, queue_id: int) -> int:
        """A queue offset, EARLIEST or LATEST."""
        return self.exceptions.get((topic, queue_id), self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of one `load`. Each field's name in snake case is the option's in camel case.

    `path` is a local store, `tier` the URL of a tier (`cluster` and `broker` only where it holds several); both are
    read as one history. One of `subscribe`, `subscribe_pattern`, `assign` may be given; none reads every queue.
    Timestamps are store times in ms; starting and ending one cut what the offsets left to [start, end).
    """

    path: str = ""
    tier: str = ""
    cluster: str = ""
    broker: str = ""
    table: Table = "messages"
    subscribe: frozenset[str] = frozenset()
    subscribe_pattern: re.Pattern[str] | None = None
    assign: frozenset[QueueKey] = frozenset()
    starting_offsets: Offsets = Offsets(EARLIEST, {})
    ending_offsets: Offsets = Offsets(LATEST, {})
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    fail_on_data_loss: bool = True
    min_partitions: int = 1

    def selects(self, topic: str, queue_id: int) -> bool:
        """Whether the options ask for this queue."""
        if self.assign:
            return (topic, queue_id) in self.assign
        if self.subscribe:
            return topic in self.subscribe
        return self.subscribe_pattern is None or bool(self.subscribe_pattern.fullmatch(topic))


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Options as Spark hands them over (any case, all values text). Raises `ConfigurationError` naming the option."""
    parsed: dict[str, Any] = {}
    for name, text in given.items():
        if name.lower() not in _PARSERS:
            raise ConfigurationError(f"unknown option {name!r}; known are {', '.join(_NAMES.values())}")
        field, parse = _PARSERS[name.lower()]
        try:
            parsed[field] = parse(text)
        except (ValueError, TypeError, AttributeError, KeyError, re.error) as error:
            raise ConfigurationError(f"option {_NAMES[field]}={text!r}: {error}") from None
    options = ReadOptions(**parsed)
    if not options.path and not options.tier:
        raise ConfigurationError(
            'say what to read: .load("/path/of/a/store") for a local store, .option("tier", url) for a tier'
        )
    chosen = [name for name in ("subscribe", "subscribe_pattern", "assign") if parsed.get(name)]
    if len(chosen) > 1:
        raise ConfigurationError(f"{' and '.join(_NAMES[name] for name in chosen)} exclude each other; give one")
    return options


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def _topics(text: str) -> frozenset[str]:
    return frozenset(topic.strip() for topic in _text(text).split(","))


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(_text(text))


def _table(text: str) -> str:
    if text not in TABLES:
        raise ValueError(f"give one of {', '.join(TABLES)}")
    return text


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("give true or false")
    return text.lower() == "true"


def _whole_number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text.strip()):
        raise ValueError("give a whole number from 0")
    return int(text)


def _partition_count(text: str) -> int:
    return max(1, _whole_number(text))


def _json(text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(f"not valid JSON; write it like {example}") from None
    if not isinstance(found, dict):
        raise TypeError(f"write it like {example}")
    return found


def _assignment(text: str) -> frozenset[QueueKey]:
    example = '{"orders": [0, 1]}'
    found = _json(text, example)
    if not all(isinstance(ids, list) and all(type(i) is int for i in ids) for ids in found.values()):
        raise TypeError(f"write it like {example}")
    return frozenset((topic, queue_id) for topic, ids in found.items() for queue_id in ids)


def _offsets(*, default: int) -> Callable[[str], Offsets]:
    example = '"earliest", "latest" or {"orders": {"0": 23, "1": -1}} (-2 is earliest, -1 latest)'

    def parse(text: str) -> Offsets:
        word = text.strip().lower()
        if word in ("earliest", "latest"):
            return Offsets(EARLIEST if word == "earliest" else LATEST, {})
        found: dict[QueueKey, int] = {}
        for topic, queues in _json(text, example).items():
            if not isinstance(queues, dict):
                raise TypeError(f"write it like {example}")
            for queue_id, offset in queues.items():
                if type(offset) is not int or offset < EARLIEST or not queue_id.isdigit():
                    raise ValueError(f"queue {queue_id!r} of {topic!r}: {offset!r} is no offset; give {example}")
                found[topic, int(queue_id)] = offset
        return Offsets(default, found)

    return parse


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


_NAMES = {field.name: _camel(field.name) for field in fields(ReadOptions)}
_BY_FIELD: dict[str, Callable[[str], Any]] = {
    "path": _text,
    "tier": _text,
    "cluster": _text,
    "broker": _text,
    "table": _table,
    "subscribe": _topics,
    "subscribe_pattern": _pattern,
    "assign": _assignment,
    "starting_offsets": _offsets(default=EARLIEST),
    "ending_offsets": _offsets(default=LATEST),
    "starting_timestamp": _whole_number,
    "ending_timestamp": _whole_number,
    "fail_on_data_loss": _boolean,
    "min_partitions": _partition_count,
}
_PARSERS = {_NAMES[field].lower(): (field, parse) for field, parse in _BY_FIELD.items()}
assert set(_BY_FIELD) == set(_NAMES)
