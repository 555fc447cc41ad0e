"""Settings of a local store. Each field maps to one key of RocketMQ's `broker.conf` (camelCase there)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from stratalog.errors import ConfigurationError
from stratalog.layout import index, message, names, queue

FlushMode = Literal["async", "sync"]
Release = Literal["5.5", "5.3"]

_FLUSH_DISK_TYPES: dict[str, FlushMode] = {"ASYNC_FLUSH": "async", "SYNC_FLUSH": "sync"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What a store may be told. The defaults are RocketMQ's; sizes are bytes, times milliseconds.

    File sizes are not recorded on disk: None takes what the files there have, else RocketMQ's default.
    """

    flush: FlushMode = "async"
    """`sync`: put returns when the message is durable. `async`: a power cut takes what was not flushed yet."""
    compatibility: Release = "5.5"
    """Which release's bytes are written where releases differ; both are always read."""
    mapped_file_size_commit_log: int | None = None
    mapped_file_size_consume_queue: int | None = None
    max_hash_slot_num: int = index.SLOT_COUNT
    """Slots of an index file: not recorded in it, so it must stay what it was."""
    max_index_num: int = index.ITEM_CAPACITY
    message_index_enable: bool = True
    max_message_size: int = message.BODY_SIZE_MAX
    message_delay_level: str = names.DELAY_LEVELS
    flush_interval_commit_log: int = 500
    """Pause between two async flushes, ms: the bound of what a power cut can take under async flush."""
    flush_interval_consume_queue: int = 1000
    store_host: str = str(message.LOCALHOST)
    """Host and port written into each record, and so into message ids."""

    @property
    def commit_log_file_size(self) -> int:
        return self.mapped_file_size_commit_log or 1 << 30

    @property
    def consume_queue_file_size(self) -> int:
        """Rounded up to whole units, as upstream does."""
        asked = self.mapped_file_size_consume_queue or queue.QUEUE_FILE_UNITS * queue.UNIT.size
        return -(-asked // queue.UNIT.size) * queue.UNIT.size

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Self:
        """Settings from keywords. Raises `ConfigurationError` for an unknown name or a value out of range."""
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigurationError(f"unknown setting {name!r}; known are {', '.join(sorted(known))}")
        settings = cls(**given)
        settings._check()
        return settings

    def _check(self) -> None:
        if self.flush not in ("async", "sync"):
            raise ConfigurationError(f"flush={self.flush!r}: give 'async' or 'sync'")
        if self.compatibility not in ("5.5", "5.3"):
            raise ConfigurationError(f"compatibility={self.compatibility!r}: give '5.5' or '5.3'")
        smallest = message.FIXED_SIZE_V1 + message.BLANK.size
        for name, least in (
            ("mapped_file_size_commit_log", smallest),
            ("mapped_file_size_consume_queue", 1),
            ("max_hash_slot_num", 1),
            ("max_index_num", 2),
            ("max_message_size", 1),
            ("flush_interval_commit_log", 1),
            ("flush_interval_consume_queue", 1),
        ):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ConfigurationError(f"{name}={value!r}: give a whole number of at least {least}")
        names.delay_table_ms(self.message_delay_level)
        message.Host.parse(self.store_host)

    @classmethod
    def from_broker_conf(cls, path: Path) -> Self:
        """Settings from a `broker.conf`: RocketMQ's key names, keys that concern other parts are passed over."""
        given: dict[str, Any] = {}
        kinds = {_camel(field.name): field for field in fields(cls)}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            text = line.strip()
            if not text or text.startswith(("#", "!")):
                continue
            key, separator, value = text.partition("=")
            if not separator:
                raise ConfigurationError(f"{path} line {number}: {text!r} is no key=value")
            key, value = key.strip(), value.strip()
            if key == "flushDiskType":
                given["flush"] = _FLUSH_DISK_TYPES.get(value, value)
            elif key in kinds:
                given[kinds[key].name] = _value(value, f"{path} line {number}")
        return cls.make(given)

    def with_file_sizes(self, *, commit_log: int | None, consume_queue: int | None) -> Self:
        """These settings with the file sizes found on disk filled in where none was asked for."""
        return replace(
            self,
            mapped_file_size_commit_log=self.mapped_file_size_commit_log or commit_log,
            mapped_file_size_consume_queue=self.mapped_file_size_consume_queue or consume_queue,
        )


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def _value(text: str, place: str) -> int | bool | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"-?\d{1,19}", text):
        return int(text)
    if not text.isprintable():
        raise ConfigurationError(f"{place}: value holds control characters")
    return text
