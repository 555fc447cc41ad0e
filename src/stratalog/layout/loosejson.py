"""The JSON of RocketMQ's config files: integer keys stand without quotes, which strict parsers refuse.

Two white-space layouts exist: fastjson 1 (releases to 5.3) puts integer keys and arrays on one line, fastjson2 (5.4 and
later) gives each a line of its own. Readers of either release accept both.
"""

import math
import re
from typing import Any, Literal, NamedTuple

from stratalog.errors import CorruptData

TEXT_SIZE_MAX = 256 * 1024 * 1024
DEPTH_MAX = 64
_INT_DIGITS_MAX = 20
_INT_MAX = 2**63 - 1

_SPACE = r"[ \t\r\n]*+"
_TOKEN = re.compile(
    _SPACE + r"(?:(?P<mark>[{}\[\]:,])"
    r'|"(?P<text>(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+)"'
    r"|(?P<real>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++(?:[eE][+-]?[0-9]++)?|[eE][+-]?[0-9]++))"
    r"|(?P<int>-?(?:0|[1-9][0-9]*+))"
    r"|(?P<word>true|false|null))"
)
_END = re.compile(_SPACE + r"\Z")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_MEANING = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}

Release = Literal["5.3", "5.5"]


class _Token(NamedTuple):
    kind: str
    value: Any
    start: int


class _Reader:
    """Walks the tokens of one text; every method raises only `CorruptData`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._next = self._scan()

    def _scan(self) -> _Token:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            if _END.match(self._text, self._position):
                return _Token("end", "", len(self._text))
            raise self._corrupt("no JSON begins here", self._position)
        self._position = match.end()
        kind = str(match.lastgroup)
        return _Token(kind, self._value(kind, match[kind], match.start(kind)), match.start(kind))

    def _value(self, kind: str, found: str, start: int) -> Any:
        if kind == "text" and "\\" in found:
            return self._unescape(found, start)
        if kind == "int":
            if len(found) > _INT_DIGITS_MAX or not -_INT_MAX - 1 <= int(found) <= _INT_MAX:
                raise self._corrupt("the integer does not fit 64 bits", start)
            return int(found)
        if kind == "real":
            if math.isinf(number := float(found)):
                raise self._corrupt("the number does not fit a double", start)
            return number
        return _WORDS[found] if kind == "word" else found

    def _unescape(self, found: str, start: int) -> str:
        plain = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _MEANING.get(m[2], m[2]), found)
        try:
            return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise self._corrupt("half of a surrogate pair", start) from None

    def _corrupt(self, message: str, start: int) -> CorruptData:
        return CorruptData(f"{message}: {self._text[start : start + 20]!r} at character {start}")

    def take(self) -> _Token:
        token, self._next = self._next, self._scan()
        return token

    def take_mark(self, *wanted: str) -> str:
        token = self.take()
        if token.kind != "mark" or token.value not in wanted:
            raise self._corrupt(f"expected {' or '.join(wanted)}", token.start)
        return str(token.value)

    def at(self, mark: str) -> bool:
        return self._next.kind == "mark" and self._next.value == mark

    def document(self) -> Any:
        value = self.value(0)
        if self._next.kind != "end":
            raise self._corrupt("more text behind the end", self._next.start)
        return value

    def value(self, depth: int) -> Any:
        token = self.take()
        if depth > DEPTH_MAX:
            raise self._corrupt(f"more than {DEPTH_MAX} levels", token.start)
        if token.kind == "mark" and token.value == "{":
            return self._object(depth)
        if token.kind == "mark" and token.value == "[":
            return self._array(depth)
        if token.kind in ("mark", "end"):
            raise self._corrupt("expected a value", token.start)
        return token.value

    def _object(self, depth: int) -> dict[str | int, Any]:
        members: dict[str | int, Any] = {}
        if self.at("}"):
            self.take()
            return members
        while True:
            key = self.take()
            if key.kind not in ("text", "int"):
                raise self._corrupt("expected a key", key.start)
            self.take_mark(":")
            members[key.value] = self.value(depth + 1)
            if self.take_mark(",", "}") == "}":
                return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        if self.at("]"):
            self.take()
            return items
        while True:
            items.append(self.value(depth + 1))
            if self.take_mark(",", "]") == "]":
                return items


def decode_loose_json(text: str | bytes) -> Any:
    """Read JSON that somebody else wrote: strict, but for integer keys without quotes, which become `int`.

    A quoted integer key stays text (`int(key)` takes both). Of equal keys the last wins. Raises only `CorruptData`:
    for what is not JSON, an integer over 64 bits, more than 64 levels, half a surrogate pair, or bytes not in UTF-8.
    """
    if len(text) > TEXT_SIZE_MAX:
        raise CorruptData(f"JSON of {len(text)} characters, the limit is {TEXT_SIZE_MAX}")
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as error:
            raise CorruptData("no UTF-8 text", position=error.start) from None
    return _Reader(text).document()


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
