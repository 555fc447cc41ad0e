"""What callers may pass, one rule for each kind of argument.

A rule returns an exact `bytes`, `str`, `int`, `list` or `dict` that nobody else holds, before a byte is written: no
method of a subclass and no other thread changes a value between its check and its use.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import index
from pathlib import Path
from typing import Any, Literal

from stratalog.config.shown import shown
from stratalog.errors import ConfigurationError, IllegalMessage, StratalogError
from stratalog.layout.properties import KEY_SEPARATOR
from stratalog.store.disk import ClockNs

TIME_MAX = 2**63 - 1
_CLOCK_NS_END = 253_402_300_800 * 10**9
"""The year 10000: names of index files have room for four digits."""
Moment = int | datetime
"""An aware datetime, or milliseconds since 1970."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MILLISECONDS_MIN, _MILLISECONDS_END = 10**11, 10**14
"""The years 1973 to 5138. Seconds have fewer digits, microseconds and nanoseconds more."""
_FIELD_NAME = re.compile(":[^:]*:")
_NO_BYTES = re.compile("[Ouw]")
"""In the format of a buffer: pointers to objects, or text."""
_ONE = (str, bytes, bytearray, memoryview)
_ALL = 1 << 62


def exact_bytes(name: str, value: Any) -> bytes:
    """The bytes of a bytes-like object, copied in C order. Raises `IllegalMessage` for a number, text or objects."""
    kind = type(value)
    if kind is bytes:
        exact: bytes = value
        return exact
    if issubclass(kind, bytes):
        return bytes.__getitem__(value, slice(None))  # its own content, whatever its methods say
    try:
        with memoryview(value) as view:
            if view.ndim and not _NO_BYTES.search(_FIELD_NAME.sub("", view.format)) and not issubclass(kind, str):
                return view.tobytes()
    except (TypeError, ValueError, BufferError):
        pass
    raise IllegalMessage(f"{name} is {shown(value)}: give bytes or another bytes-like object; nothing was written")


def exact_list(name: str, values: Any) -> list[Any]:
    """A list of what an iterable yields; it is iterated once, and never asked for its length."""
    kind = type(values)
    if kind is list or kind is tuple:
        return [*values]
    if issubclass(kind, _ONE):
        raise IllegalMessage(f"{name} is {shown(values)}: give an iterable of several")
    try:
        iterator = iter(values)
    except TypeError:
        raise IllegalMessage(f"{name} is {shown(values)}: give an iterable") from None
    return list(iterator)


def bytes_list(name: str, values: Any) -> list[bytes]:
    """A list of the bytes of each item of an iterable."""
    items = exact_list(name, values)
    for item in items:
        if type(item) is not bytes:
            return [exact_bytes(f"{name}[{number}]", item) for number, item in enumerate(items)]
    return items


def bytes_or_list(name: str, value: Any) -> bytes | list[bytes]:
    """One `bytes`, `bytearray` or `memoryview` for all messages, or an iterable of one each."""
    return exact_bytes(name, value) if issubclass(type(value), _ONE) else bytes_list(name, value)


def exact_text(name: str, value: Any) -> str:
    """The content of a `str`; of a subclass, not what its `__str__` returns."""
    if type(value) is str:
        return value
    if not issubclass(type(value), str):
        raise IllegalMessage(f"{name} is {shown(value)}: give a str")
    return str.__str__(value)


def text_list(name: str, values: Any) -> list[str]:
    """A list of the texts of an iterable."""
    items = exact_list(name, values)
    if set(map(type, items)) <= {str}:
        return items
    return [exact_text(f"{name}[{number}]", item) for number, item in enumerate(items)]


def exact_labels(tags: Any, keys: Any, unique_key: Any) -> tuple[str | None, str | None, str | None]:
    """Tags, keys and unique key of a message. Keys are one `str` with blanks between them, or an iterable of `str`."""
    if tags is not None:
        tags = exact_text("tags", tags)
    if unique_key is not None:
        unique_key = exact_text("unique_key", unique_key)
    if keys is not None:
        keys = exact_text("keys", keys) if issubclass(type(keys), str) else _joined(keys)
    return tags, keys, unique_key


def _joined(keys: Any) -> str | None:
    items = exact_list("keys", keys)
    if not items:
        return None
    try:
        joined = KEY_SEPARATOR.join(items)  # of a subclass the content
    except TypeError:
        joined = KEY_SEPARATOR.join(text_list("keys", items))
    parts = joined.split(KEY_SEPARATOR)
    if "" in parts or len(parts) != len(items):
        for key in text_list("keys", items):
            if KEY_SEPARATOR in key:
                raise IllegalMessage(f"key {key!r} holds a blank, which separates keys")
        raise IllegalMessage("key '' in a list: leave it out")
    return joined


def exact_properties(given: Any) -> dict[str, str]:
    """A copy of a mapping of `str` to `str`; empty for None."""
    if given is None:
        return {}
    if not issubclass(type(given), Mapping):
        raise IllegalMessage(f"properties is {shown(given)}: give a mapping of str to str; nothing was written")
    properties: dict[str, str] = dict(given)
    for name, value in properties.items():
        if type(name) is not str or type(value) is not str:
            break
    else:
        return properties
    exact = {
        exact_text("the name of a property", name): exact_text(f"property {shown(name)}", value)
        for name, value in properties.items()
    }
    if len(exact) != len(properties):
        raise IllegalMessage("properties name one property twice; nothing was written")
    return exact


def truth(name: str, value: Any) -> bool:
    """Whether the value is true. Raises `IllegalMessage` where that is ambiguous, as of an array."""
    try:
        return bool(value)
    except (TypeError, ValueError):
        raise IllegalMessage(f"{name} is {shown(value)}: give True or False; nothing was written") from None


def exact_int(name: str, value: Any, error: type[StratalogError] = IllegalMessage) -> int:
    """A whole number: an `int` or what has `__index__`, but no `bool`."""
    kind = type(value)
    if kind is int:
        exact: int = value
        return exact
    if kind is not bool:
        try:
            return index(value)
        except TypeError:
            pass
    raise error(f"{name} {shown(value)}: give a whole number")


def path_text(name: str, value: Any) -> str:
    """A path as text. Raises `ConfigurationError` for what is no path, or holds a zero byte."""
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not issubclass(type(text), str):
        raise ConfigurationError(f"{name} {shown(value)}: give a str or a path object")
    text = str.__str__(text)
    try:
        is_name = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        is_name = False
    if not is_name or not text:
        raise ConfigurationError(f"{name} {shown(text)}: give a path that is not empty, without a zero byte")
    return text


def absolute_path(name: str, value: Any) -> Path:
    """A path as it is now, whatever directory the process changes to later. Raises `ConfigurationError`."""
    path = Path(path_text(name, value))
    try:
        return path.absolute()
    except FileNotFoundError:
        raise ConfigurationError(
            f"{name} {str(path)!r}: the current directory of this process was removed; give an absolute path"
        ) from None


def one_of(name: str, value: Any, *choices: str) -> str:
    """One of some words; the error begins with `name`. Raises `ConfigurationError`."""
    text = str.__str__(value) if issubclass(type(value), str) else None
    if text not in choices:
        raise ConfigurationError(f"{name}{shown(value)}: give {' or '.join(map(repr, choices))}")
    return text


def check_type(name: str, value: Any, kind: type, wanted: str) -> None:
    """Raise `ConfigurationError` for what is of another type."""
    if not issubclass(type(value), kind):
        raise ConfigurationError(f"{name} {shown(value)}: {wanted}")


def column_names(columns: Any, known: Sequence[str]) -> list[str]:
    """Names of columns, all of them for None. Raises `ConfigurationError` for others."""
    if columns is None:
        return list(known)
    try:
        names = text_list("columns", columns)
    except IllegalMessage as error:
        raise ConfigurationError(str(error)) from None
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigurationError(f"no column {', '.join(map(shown, unknown))}; there are {', '.join(known)}")
    return names


def check_bound(bound: Any) -> Literal["lower", "upper"]:
    """Raise `ConfigurationError` for a bound that is neither."""
    return "upper" if one_of("bound ", bound, "lower", "upper") == "upper" else "lower"


def exact_count(name: str, value: Any) -> int:
    """A number of messages. Raises `ConfigurationError` for what is no whole number or is negative."""
    count = exact_int(name, value, ConfigurationError)
    if count < 0:
        raise ConfigurationError(f"{name} {count}: give a number from 0")
    return count


def milliseconds(name: str, value: Any) -> int:
    """Milliseconds since 1970 of a moment; a datetime counts as the millisecond it is in.

    0 and `TIME_MAX` stand for the ends of time. Raises `ConfigurationError` for a datetime without a zone and for
    numbers that are rather seconds, microseconds or nanoseconds.
    """
    if issubclass(type(value), datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise ConfigurationError(f"{name} {value}: the datetime has no time zone; give it one, for example UTC")
        return exact_int(name, (value - _EPOCH) // _MILLISECOND, ConfigurationError)
    wanted = "give a datetime with a time zone, or milliseconds since 1970 as a whole number"
    try:
        number = exact_int(name, value, ConfigurationError)
    except ConfigurationError:
        raise ConfigurationError(f"{name} {shown(value)}: {wanted}") from None
    if _MILLISECONDS_MIN <= number < _MILLISECONDS_END or number in (0, TIME_MAX):
        return number
    unit = "seconds" if number < _MILLISECONDS_MIN else "microseconds or nanoseconds"
    raise ConfigurationError(f"{name} {number}: milliseconds have 12 to 14 digits, this looks like {unit}; {wanted}")


def time_range(begin: Any, end: Any) -> tuple[int, int]:
    """Milliseconds of begin and end, which must not come before it; a begin of 0 is that of time."""
    begin_ms, end_ms = milliseconds("begin", begin), milliseconds("end", end)
    if 0 < begin_ms > end_ms:
        raise ConfigurationError(
            f"the time range is reversed: begin {_time_text(begin)} is after end {_time_text(end)}"
        )
    return begin_ms, end_ms


def _time_text(value: Any) -> str:
    return datetime.isoformat(value, " ") if type(value) is datetime else shown(value)


def query_range(begin: Any, end: Any, limit: Any) -> tuple[int, int, int]:
    """Milliseconds of begin and end, and how many hits are wanted at most; None stands for all."""
    if type(begin) is type(end) is type(limit) is int and begin == 0 and end == TIME_MAX and 0 <= limit <= _ALL:
        return begin, end, limit  # all of time, what a query asks for by default: checking more is a tenth of it
    wanted = _ALL if limit is None else min(exact_count("limit", limit), _ALL)
    return *time_range(begin, end), wanted


def checked_clock(clock_ns: ClockNs) -> ClockNs:
    """A clock that raises `ConfigurationError` where another one tells no time."""
    if clock_ns is time.time_ns:
        return clock_ns

    def checked() -> int:
        now_ns: object = clock_ns()
        if type(now_ns) is not int and isinstance(now_ns, int):
            now_ns = index(now_ns)  # a subclass may calculate otherwise
        if not isinstance(now_ns, int) or not 0 <= now_ns < _CLOCK_NS_END:
            raise ConfigurationError(
                f"clock_ns returns {shown(now_ns)}: give a function that returns ns since 1970, an int before the year "
                "10000"
            )
        return now_ns

    return checked
