"""The JSON of RocketMQ's config files: integer keys stand without quotes, which strict parsers refuse.

Two white-space layouts exist: fastjson 1 (releases to 5.3) puts integer keys and arrays on one line, fastjson2 (5.4 and
later) gives each a line of its own. Readers of either release accept both.
"""

import json
import math
import re
from typing import Any, Literal

from stratalog.errors import CorruptData

TEXT_SIZE_MAX = 256 * 1024 * 1024
DEPTH_MAX = 64
_INT_DIGITS_MAX = 20
_INT_MAX = 2**63 - 1

_PIECE = re.compile(
    r'"(?:[^"\\]|\\.)*+"?'  # a text; one without an end takes the rest, so that it is looked through once
    r"|[{}\[\]]"
    r"|(?<![0-9.eE+-])(?P<key>-?(?:0|[1-9][0-9]*+))(?=[ \t\r\n]*+:)",
    re.DOTALL,
)
_HIGH_OR_LOW = re.compile(r"\\u[dD][89a-fA-F]")
_MARK = "\ud800"
"""Before an integer key while it is quoted: half a surrogate pair, which no text may hold."""

Release = Literal["5.3", "5.5"]


class _Strict:
    """Makes strict JSON of a text: integer keys are marked and quoted. Counts levels on the way."""

    def __init__(self, text: str) -> None:
        self._depth = 0
        self.text = _PIECE.sub(self._piece, text)

    def _piece(self, match: re.Match[str]) -> str:
        found = match[0]
        if found in "{[":
            self._depth += 1
            if self._depth > DEPTH_MAX + 1:
                raise _corrupt(f"more than {DEPTH_MAX} levels", found, match.start())
        elif found in "}]":
            self._depth -= 1
        elif match["key"]:
            _integer(found)
            return f'"{_MARK}{found}"'
        elif "\\" in found and _HIGH_OR_LOW.search(found):
            self._check_pairs(found, match.start())
        return found

    def _check_pairs(self, found: str, start: int) -> None:
        try:
            json.loads(found).encode()
        except UnicodeEncodeError:
            raise _corrupt("half of a surrogate pair", found, start) from None
        except json.JSONDecodeError:
            return  # the parser says what is wrong


def _corrupt(message: str, found: str, start: int = -1) -> CorruptData:
    return CorruptData(f"{message}: {found[:20]!r}" + (f" at character {start}" if start >= 0 else ""))


def _integer(found: str) -> int:
    if len(found) > _INT_DIGITS_MAX or not -_INT_MAX - 1 <= int(found) <= _INT_MAX:
        raise _corrupt("the integer does not fit 64 bits", found)
    return int(found)


def _real(found: str) -> float:
    if math.isinf(number := float(found)):
        raise _corrupt("the number does not fit a double", found)
    return number


def _no_number(found: str) -> Any:
    raise _corrupt("not valid JSON", found)


def _object(members: list[tuple[str, Any]]) -> dict[str | int, Any]:
    return {int(key[1:]) if key.startswith(_MARK) else key: value for key, value in members}


def decode_loose_json(text: str | bytes) -> Any:
    """Read JSON that somebody else wrote: strict, but for integer keys without quotes, which become `int`.

    A quoted integer key stays text (`int(key)` takes both). Of equal keys the last wins. Takes time linear in the size,
    0.1 s a megabyte at most. Raises only `CorruptData`: for what is not JSON, an integer over 64 bits, more than 64
    levels, half a surrogate pair, or bytes not in UTF-8.
    """
    if len(text) > TEXT_SIZE_MAX:
        raise CorruptData(f"JSON of {len(text)} characters, the limit is {TEXT_SIZE_MAX}")
    try:
        text = text.decode() if isinstance(text, bytes) else text.encode().decode()
    except UnicodeError as error:
        raise CorruptData("no UTF-8 text", position=getattr(error, "start", -1)) from None
    strict = _Strict(text).text
    try:
        return json.loads(
            strict, object_pairs_hook=_object, parse_int=_integer, parse_float=_real, parse_constant=_no_number
        )
    except json.JSONDecodeError as error:
        start = error.pos - (len(_MARK) + 2) * strict.count(_MARK, 0, error.pos)
        raise _corrupt(f"not valid JSON ({error.msg})", text[start : start + 20], start) from None


def encode_loose_json(value: Any, *, release: Release = "5.5", lines: bool = True) -> str:
    """Write JSON as a broker of that release does, byte for byte: tabs, no space after colons, no final line end.

    `value` is made of dict (in the order to write; `int` keys go without quotes; members that are None are left out),
    list, str, int, float, bool and None; anything else raises `TypeError`. 5.3 writes an array on one line, 5.5 an item
    a line unless all are integers. Without `lines` everything is on one, as in `timermetrics`.
    """
    parts: list[str] = []
    _write(parts, value, "\n" if lines else "", release)
    return "".join(parts)


def _write(parts: list[str], value: Any, line: str, release: Release) -> None:
    """Append `value`; `line` is the line end with the indent of the line that `value` begins on, or empty."""
    deeper = line and line + "\t"
    if isinstance(value, str):
        parts.append(_quoted(value))
    elif value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        parts.append(str(value))
    elif isinstance(value, list):
        flat = release == "5.3" or all(isinstance(item, int) for item in value)
        _write_all(parts, "[]", [("", item) for item in value], line, release, opened="" if flat else deeper, flat=flat)
    elif isinstance(value, dict):
        members = [(_key(key), item) for key, item in value.items() if item is not None]
        # fastjson 1 breaks no line between integer keys, only before the closing brace.
        tight = release == "5.3" and any(isinstance(key, int) for key in value)
        _write_all(parts, "{}", members, line, release, opened="" if tight else deeper, flat=False)
    else:
        raise TypeError(f"a config file holds no {type(value).__name__}")


def _write_all(
    parts: list[str],
    marks: str,
    members: list[tuple[str, Any]],
    line: str,
    release: Release,
    *,
    opened: str,
    flat: bool,
) -> None:
    """Append an object or array; `opened` comes before each member, `flat` means the closing mark stays on the line."""
    parts.append(marks[0])
    for number, (key, item) in enumerate(members):
        parts += ("," if number else "", opened, key)
        _write(parts, item, line if flat else line and line + "\t", release)
    parts.append(marks[1] if flat or not members else line + marks[1])


def _key(key: str | int) -> str:
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"a key is text or an integer, not {type(key).__name__}")
    return f"{_quoted(key) if isinstance(key, str) else key}:"


_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNSAFE = re.compile(r'["\\\x00-\x1f]')


def _quoted(text: str) -> str:
    return '"' + _UNSAFE.sub(lambda m: _SHORT.get(m[0]) or f"\\u{ord(m[0]):04X}", text) + '"'
