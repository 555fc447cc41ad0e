"""Settings of a local store. Each field maps to one key of RocketMQ's `broker.conf` (camelCase there)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

from stratalog.config.shown import shown
from stratalog.errors import ConfigurationError, IllegalMessage
from stratalog.layout import index, message, names, queue

FlushMode = Literal["async", "sync"]
Release = Literal["5.5", "5.3"]

_INT_MAX = 2**31 - 1
_TEXT_SIZE_MAX = 1 << 20
_NONE_TAKES_WHAT_IS_THERE = frozenset(
    {
        "mapped_file_size_commit_log", "mapped_file_size_consume_queue", "mapper_file_size_batch_consume_queue",
        "mapped_file_size_consume_queue_ext", "max_hash_slot_num", "max_index_num",
    }
)  # fmt: skip
_FLUSH_DISK_TYPES: dict[str, FlushMode] = {"ASYNC_FLUSH": "async", "SYNC_FLUSH": "sync"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What a store may be told. The defaults are RocketMQ's; sizes are bytes, times milliseconds.

    A file size of None takes what the files there have, else RocketMQ's default (`stratalog.store.sizes`).
    """

    flush: FlushMode = "async"
    """`sync`: put returns when the message is durable. `async`: a power cut takes what was not flushed yet."""
    compatibility: Release = "5.5"
    """Which release's bytes are written where releases differ; both are always read."""
    mapped_file_size_commit_log: int | None = None
    mapped_file_size_consume_queue: int | None = None
    mapper_file_size_batch_consume_queue: int | None = None
    """Queue files of batch topics; RocketMQ spells it so. Whole units of 46 bytes."""
    mapped_file_size_consume_queue_ext: int | None = None
    enable_consume_queue_ext: bool = False
    """Units of new messages point to an extension that holds tags code and store time."""
    enable_lmq: bool = False
    """With `enable_multi_dispatch`: messages that name `%LMQ%` queues in INNER_MULTI_DISPATCH stand in these, too."""
    enable_multi_dispatch: bool = False
    max_hash_slot_num: int | None = None
    """Slots and items of an index file: None takes what the files there show."""
    max_index_num: int | None = None
    message_index_enable: bool = True
    enabled_append_prop_crc: bool = False
    """Every record ends with a CRC over all of it, not only over its body: 20 bytes more. One that is there is always
    checked."""
    max_message_size: int = message.BODY_SIZE_MAX
    message_delay_level: str = names.DELAY_LEVELS
    flush_interval_commit_log: int = 500
    """Pause between two async flushes, ms: with `flush_commit_log_least_pages` 0 the bound of what a power cut can take
    under async flush."""
    flush_commit_log_least_pages: int = 0
    """An async flush waits until so many pages of 4 KiB are dirty, or `flush_commit_log_thorough_interval` ms have
    passed. RocketMQ's default is 4: a trickle of messages may then be lost for 10 s; 0 flushes whatever there is."""
    flush_commit_log_thorough_interval: int = 10_000
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

    @property
    def batch_consume_queue_file_size(self) -> int:
        return self.mapper_file_size_batch_consume_queue or queue.BATCH_FILE_UNITS * queue.BATCH_UNIT.size

    @property
    def consume_queue_ext_file_size(self) -> int:
        return self.mapped_file_size_consume_queue_ext or queue.EXTENSION_FILE_SIZE

    @property
    def dispatches_light_queues(self) -> bool:
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def index_slot_count(self) -> int:
        return self.max_hash_slot_num or index.SLOT_COUNT

    @property
    def index_item_capacity(self) -> int:
        return self.max_index_num or index.ITEM_CAPACITY

    @classmethod
    def make(cls, given: Mapping[str, Any]) -> Self:
        """Settings from keywords. Raises `ConfigurationError` for an unknown name or a value out of range."""
        return cls(**cls._known(given))

    def override(self, given: Mapping[str, Any]) -> Self:
        """These settings with others in place of those that are given. Raises as `make` does."""
        return replace(self, **self._known(given))

    @classmethod
    def _known(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {field.name for field in fields(cls)}
        for name in given:
            if name not in known:
                raise ConfigurationError(f"unknown setting {shown(name)}; known are {', '.join(sorted(known))}")
        return given

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for a value out of range."""
        for name, choices in (("flush", ("async", "sync")), ("compatibility", ("5.5", "5.3"))):
            value = getattr(self, name)
            if type(value) is not str or value not in choices:
                raise ConfigurationError(f"{name}={shown(value)}: give {' or '.join(map(repr, choices))}")
        smallest = message.FIXED_SIZE_V1 + message.BLANK.size
        for name, least in (
            ("mapped_file_size_commit_log", smallest),
            ("mapped_file_size_consume_queue", 1),
            ("mapper_file_size_batch_consume_queue", queue.BATCH_UNIT.size),
            ("mapped_file_size_consume_queue_ext", queue.EXTENSION_UNIT.size + queue.EXTENSION_END_SPACE),
            ("max_hash_slot_num", 1),
            ("max_index_num", 2),
            ("max_message_size", 1),
            ("flush_interval_commit_log", 1),
            ("flush_commit_log_least_pages", 0),
            ("flush_commit_log_thorough_interval", 0),
            ("flush_interval_consume_queue", 1),
        ):
            value = getattr(self, name)
            if value is None and name in _NONE_TAKES_WHAT_IS_THERE:
                continue
            if type(value) is not int or not least <= value <= _INT_MAX:
                raise ConfigurationError(
                    f"{name}={shown(value)}: give a whole number of at least {least}, at most 2^31 - 1"
                )
        for field in fields(self):
            if field.type is bool and type(getattr(self, field.name)) is not bool:
                raise ConfigurationError(f"{field.name}={shown(getattr(self, field.name))}: give True or False")
        if self.batch_consume_queue_file_size % queue.BATCH_UNIT.size:
            raise ConfigurationError(
                f"mapper_file_size_batch_consume_queue={self.mapper_file_size_batch_consume_queue}: "
                f"give a multiple of {queue.BATCH_UNIT.size}, or RocketMQ stands still at the end of such a file"
            )
        if self.enable_lmq != self.enable_multi_dispatch:
            raise ConfigurationError(
                "enable_lmq and enable_multi_dispatch go together, set both or neither: the first gives messages their "
                "offsets in light queues, the second writes the queues"
            )
        for name, check in (("message_delay_level", names.delay_table_ms), ("store_host", message.Host.parse)):
            value = getattr(self, name)
            try:
                check(value if type(value) is str else "?")
            except IllegalMessage as error:
                raise ConfigurationError(f"{name}={shown(value)}: {error}") from None

    @classmethod
    def from_broker_conf(cls, path: Path) -> Self:
        """Settings from a `broker.conf`: RocketMQ's key names, keys that concern other parts are passed over."""
        given: dict[str, Any] = {}
        kinds = {_camel(field.name): field for field in fields(cls)}
        for number, line in enumerate(_text_of(path).splitlines(), 1):
            text, place = line.strip(), f"{path} line {number}"
            if not text or text.startswith(("#", "!")):
                continue
            key, separator, value = text.partition("=")
            if not separator:
                raise ConfigurationError(f"{place}: {text[:80]!r} is no key=value")
            key, value = key.strip(), value.strip()
            if key == "flushDiskType":
                if value not in _FLUSH_DISK_TYPES:
                    raise ConfigurationError(f"{place}: {key}={value:.80}: give {' or '.join(_FLUSH_DISK_TYPES)}")
                given["flush"] = _FLUSH_DISK_TYPES[value]
            elif key in kinds:
                given[kinds[key].name] = setting_value(value, place)
        try:
            return cls.make(given)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {error}") from None


def _text_of(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_TEXT_SIZE_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is no UTF-8 text (byte {error.start})") from None
    if len(text) > _TEXT_SIZE_MAX:
        raise ConfigurationError(f"{path} has more than {_TEXT_SIZE_MAX:,} characters: that is no broker.conf")
    return text


def _camel(name: str) -> str:
    return re.sub(r"_(crc\b|[a-z])", lambda match: match[1].upper(), name)


def setting_value(text: str, place: str) -> int | bool | str:
    """A value as it stands in a `broker.conf` or on a command line."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"-?\d{1,19}", text):
        return int(text)
    if not text.isprintable():
        raise ConfigurationError(f"{place}: value holds control characters")
    return text
