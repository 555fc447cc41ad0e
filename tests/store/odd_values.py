"""Odd values for arguments, and what each means by a plain reading of the rules: written down here, not computed."""

import array
import ctypes
import enum
import mmap
from collections import ChainMap, OrderedDict, UserDict, deque
from collections.abc import Callable
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa


class Liar:
    """Methods that contradict the content of the type they are mixed into."""

    def __len__(self) -> int:
        return 3000

    def __getitem__(self, key: Any) -> Any:
        return "lie"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("lie")

    def __str__(self) -> str:
        return "lie"

    def __repr__(self) -> str:
        raise ZeroDivisionError

    def __format__(self, spec: str) -> str:
        return "lie"

    def __bytes__(self) -> bytes:
        return b"lie"

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(b"lie")

    def __contains__(self, item: object) -> bool:
        return False

    def encode(self, *_: Any) -> bytes:
        return b"lie"

    def copy(self) -> Any:
        return "lie"

    def values(self) -> Any:
        return ["lie"]

    def items(self) -> Any:
        return [("lie", "lie")]


class LyingText(Liar, str):
    def __iter__(self) -> Any:
        return iter(["lie"])


class LyingBytes(Liar, bytes):
    def __iter__(self) -> Any:
        return iter([b"lie"])


class LyingList(Liar, list[Any]):
    pass


class LyingTuple(Liar, tuple[Any, ...]):
    __slots__ = ()


class LyingDict(Liar, dict[Any, Any]):
    pass


class LyingInt(int):
    """Not with another hash or equality: its content would be in doubt where it is a key."""

    def __index__(self) -> int:
        return 77

    def __int__(self) -> int:
        return 77


class OtherInt(int):
    """Calculates otherwise."""

    def _other(self, *given: object) -> "OtherInt":
        return self

    __add__ = __radd__ = __sub__ = __mul__ = __floordiv__ = __mod__ = __pos__ = __neg__ = _other  # type: ignore[assignment]

    def _is_always(self, other: object) -> bool:
        return True

    __lt__ = __le__ = __gt__ = __ge__ = _is_always


class Claims:
    """Claims to be of another class."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self.kind


class OtherIteration(list[Any]):
    def __iter__(self) -> Any:
        return iter(["other"])


class Index:
    def __index__(self) -> int:
        return 3


class FailingIndex:
    def __index__(self) -> int:
        raise ZeroDivisionError


class Color(enum.StrEnum):
    RED = "red"


class Mixed(str, enum.Enum):  # noqa: UP042 - the other kind, whose str() is not its value
    RED = "red"


class Level(enum.IntEnum):
    THREE = 3


class Pair(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_int))


def failing(*items: Any) -> Any:
    yield from items
    raise ZeroDivisionError


def mapped() -> mmap.mmap:
    area = mmap.mmap(-1, 4)
    area[:] = b"mmap"
    return area


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


RAISES = object()
"""The meaning of a value whose own code raises `ZeroDivisionError`."""


class OddValue(NamedTuple):
    """`make` makes it anew; what it means as text, keys, bytes, several bodies, number or mapping, if it may be one.

    As keys, a str stands for text with blanks, a list for keys one by one.
    """

    make: Callable[[], Any]
    meanings: dict[str, Any]


def text(make: Callable[[], Any], content: str) -> OddValue:
    return OddValue(make, {"text": content, "keys": content})


def octets(make: Callable[[], Any], content: bytes) -> OddValue:
    return OddValue(make, {"bytes": content})


def number(make: Callable[[], Any], content: int) -> OddValue:
    return OddValue(make, {"int": content})


def keys(make: Callable[[], Any], *content: str) -> OddValue:
    return OddValue(make, {"keys": list(content)})


def bodies(make: Callable[[], Any], *content: bytes) -> OddValue:
    return OddValue(make, {"bodies": list(content)})


def mapping(make: Callable[[], Any], content: dict[str, str]) -> OddValue:
    return OddValue(make, {"mapping": content})


def nothing(make: Callable[[], Any]) -> OddValue:
    return OddValue(make, {})


ODD_VALUES: dict[str, OddValue] = {
    # text
    "str": text(lambda: "plain", "plain"),
    "two words": text(lambda: "a b", "a b"),
    "blanks around": text(lambda: " a  b ", " a  b "),
    "empty str": text(lambda: "", ""),
    "NUL": text(lambda: "a\0b", "a\0b"),
    "NUL at the end": text(lambda: "a\0", "a\0"),
    "separator": text(lambda: "a\x01b", "a\x01b"),
    "other separator": text(lambda: "a\x02", "a\x02"),
    "half of a surrogate pair": text(lambda: "a\ud800", "a\ud800"),
    "four bytes of UTF-8": text(lambda: "\U0001f600", "\U0001f600"),
    "percent": text(lambda: "%s%", "%s%"),
    "numpy str": text(lambda: np.str_("o-17"), "o-17"),
    "StrEnum": text(lambda: Color.RED, "red"),
    "str and Enum": text(lambda: Mixed.RED, "red"),
    "lying str": text(lambda: LyingText("true"), "true"),
    "empty lying str": text(lambda: LyingText(""), ""),
    # bytes
    "bytes": octets(lambda: b"x", b"x"),
    "empty bytes": octets(lambda: b"", b""),
    "numpy bytes": octets(lambda: np.bytes_(b"np"), b"np"),
    "lying bytes": octets(lambda: LyingBytes(b"true"), b"true"),
    "empty lying bytes": octets(lambda: LyingBytes(b""), b""),
    "bytearray": octets(lambda: bytearray(b"array"), b"array"),
    "memoryview": octets(lambda: memoryview(b"view"), b"view"),
    "strided memoryview": octets(lambda: memoryview(b"v.i.e.w.")[::2], b"view"),
    "reversed memoryview": octets(lambda: memoryview(b"weiv")[::-1], b"view"),
    "memoryview of words": octets(lambda: memoryview(b"eight by").cast("i"), b"eight by"),
    "memoryview of two dimensions": octets(lambda: memoryview(b"eight by").cast("B", [2, 4]), b"eight by"),
    "released memoryview": nothing(released),
    "int64 array": octets(lambda: np.arange(3), np.arange(3).tobytes()),
    "strided array": octets(lambda: np.arange(6, dtype=np.int16)[::3], b"\0\0\3\0"),
    "Fortran array": OddValue(
        lambda: np.asfortranarray([[1, 2], [3, 4]]).astype(np.uint8, order="K"),
        {"bytes": b"\1\2\3\4", "bodies": [b"\1\2", b"\3\4"]},
    ),
    "empty array": OddValue(lambda: np.zeros(0), {"bytes": b"", "bodies": [], "keys": []}),
    "structured array": octets(lambda: np.zeros(1, [("O", "u1"), ("w", "u1")]), b"\0\0"),
    "array.array": octets(lambda: array.array("h", [1, 2]), b"\1\0\2\0"),
    "mmap": OddValue(mapped, {"bytes": b"mmap", "bodies": [b"m", b"m", b"a", b"p"]}),
    "ctypes array": OddValue(lambda: (ctypes.c_char * 2)(b"c", b"t"), {"bytes": b"ct", "bodies": [b"c", b"t"]}),
    "Arrow buffer": octets(lambda: pa.py_buffer(b"arrow"), b"arrow"),
    "ctypes structure": nothing(Pair),
    "array without dimensions": OddValue(lambda: np.array(5), {"int": 5}),
    "array of text": OddValue(lambda: np.array(["a", "b"]), {"keys": ["a", "b"]}),
    "array of str objects": OddValue(lambda: np.array(["a", "b"], object), {"keys": ["a", "b"]}),
    "array of bytes objects": bodies(lambda: np.array([b"a", b"bc"], object), b"a", b"bc"),
    "array of two bytes": OddValue(lambda: np.array([b"a", b"bc"]), {"bytes": b"a\0bc", "bodies": [b"a", b"bc"]}),
    "array.array of text": OddValue(lambda: array.array("u", "ab"), {"keys": ["a", "b"]}),
    "series of text": keys(lambda: pd.Series(["a", "b"]), "a", "b"),
    # several
    "list": keys(lambda: ["a", "b"], "a", "b"),
    "empty list": OddValue(list, {"keys": [], "bodies": []}),
    "empty tuple": OddValue(tuple, {"keys": [], "bodies": []}),
    "empty generator": OddValue(lambda: (n for n in ()), {"keys": [], "bodies": []}),
    "tuple": keys(lambda: ("a", "b"), "a", "b"),
    "set": keys(lambda: {"a"}, "a"),
    "generator": keys(lambda: (letter for letter in "ab"), "a", "b"),
    "map": keys(lambda: map(str, [1, 2]), "1", "2"),
    "keys of a dict": keys(lambda: {"a": 1}.keys(), "a"),
    "deque": keys(lambda: deque(["a", "b"]), "a", "b"),
    "list of odd texts": keys(lambda: [np.str_("a"), Color.RED, LyingText("b")], "a", "red", "b"),
    "lying list": keys(lambda: LyingList(["a", "b"]), "a", "b"),
    "lying tuple": keys(lambda: LyingTuple(["a", "b"]), "a", "b"),
    "list with other iteration": keys(lambda: OtherIteration(["a"]), "other"),
    "list with a blank": keys(lambda: ["a b"], "a b"),
    "list with an empty key": keys(lambda: ["a", ""], "a", ""),
    "list of ints": nothing(lambda: [1, 2]),
    "list with None": nothing(lambda: ["a", None]),
    "list of lists": nothing(lambda: [["a"]]),
    "failing generator": OddValue(lambda: failing("a"), {"keys": RAISES, "bodies": RAISES}),
    "list of bytes": bodies(lambda: [b"a", b"bc"], b"a", b"bc"),
    "tuple of bytes": bodies(lambda: (b"a", b"bc"), b"a", b"bc"),
    "generator of bytes": bodies(lambda: (body for body in (b"a", b"bc")), b"a", b"bc"),
    "lying list of bytes": bodies(lambda: LyingList([b"a", b"bc"]), b"a", b"bc"),
    "list of odd bytes": bodies(
        lambda: [np.arange(3), LyingBytes(b"true"), bytearray(b"c"), memoryview(b"v.w.")[::2]],
        np.arange(3).tobytes(),
        b"true",
        b"c",
        b"vw",
    ),
    "bytes and None": nothing(lambda: [b"a", None]),
    "bytes and text": nothing(lambda: [b"a", "b"]),
    "failing generator of bytes": OddValue(lambda: failing(b"a"), {"keys": RAISES, "bodies": RAISES}),
    # numbers
    "int": number(lambda: 3, 3),
    "zero": number(lambda: 0, 0),
    "negative": number(lambda: -1, -1),
    "beyond 31 bits": number(lambda: 1 << 31, 1 << 31),
    "beyond 63 bits": number(lambda: 1 << 63, 1 << 63),
    "far beyond": number(lambda: 1 << 200, 1 << 200),
    "IntEnum": number(lambda: Level.THREE, 3),
    "lying int": number(lambda: LyingInt(3), 3),
    "numpy int": number(lambda: np.int32(3), 3),
    "numpy uint": number(lambda: np.uint64(3), 3),
    "index": number(Index, 3),
    "failing index": OddValue(FailingIndex, {"int": RAISES}),
    "True": nothing(lambda: True),
    "False": nothing(lambda: False),
    "numpy True": nothing(lambda: np.True_),
    "float": nothing(lambda: 3.0),
    "float zero": nothing(lambda: 0.0),
    "half": nothing(lambda: 1.5),
    "NaN": nothing(lambda: float("nan")),
    "infinity": nothing(lambda: float("inf")),
    "numpy float": nothing(lambda: np.float64(3)),
    "numpy time": octets(lambda: np.datetime64(0, "s"), bytes(8)),
    "complex": nothing(lambda: 3j),
    "Decimal": nothing(lambda: Decimal(3)),
    # mappings
    "dict": OddValue(lambda: {"a": "1", "b": "2"}, {"mapping": {"a": "1", "b": "2"}, "keys": ["a", "b"]}),
    "OrderedDict": OddValue(lambda: OrderedDict(a="1"), {"mapping": {"a": "1"}, "keys": ["a"]}),
    "UserDict": OddValue(lambda: UserDict(a="1"), {"mapping": {"a": "1"}, "keys": ["a"]}),
    "ChainMap": OddValue(lambda: ChainMap({"a": "1"}, {"a": "2"}), {"mapping": {"a": "1"}, "keys": ["a"]}),
    "mapping proxy": OddValue(lambda: MappingProxyType({"a": "1"}), {"mapping": {"a": "1"}, "keys": ["a"]}),
    "lying dict": OddValue(lambda: LyingDict(a="1"), {"mapping": {"a": "1"}, "keys": ["a"]}),
    "dict of odd texts": OddValue(
        lambda: {np.str_("a"): Color.RED, Mixed.RED: np.str_("2")},
        {"mapping": {"a": "red", "red": "2"}, "keys": ["a", "red"]},
    ),
    "dict of lying texts": OddValue(lambda: {LyingText("a"): LyingText("1")}, {"mapping": {"a": "1"}, "keys": ["a"]}),
    "empty dict": OddValue(dict, {"mapping": {}, "keys": [], "bodies": []}),
    "dict with an int": OddValue(lambda: {"a": 1}, {"keys": ["a"]}),
    "dict with bytes": OddValue(lambda: {"a": b"1"}, {"keys": ["a"]}),
    "dict with None": OddValue(lambda: {"a": None}, {"keys": ["a"]}),
    "dict with an empty value": OddValue(lambda: {"a": ""}, {"mapping": {"a": ""}, "keys": ["a"]}),
    "dict with a surrogate": OddValue(lambda: {"a": "\ud800"}, {"mapping": {"a": "\ud800"}, "keys": ["a"]}),
    "dict of bytes names": OddValue(lambda: {b"a": "1"}, {"bodies": [b"a"]}),
    "list of pairs": nothing(lambda: [("a", "1")]),
    # other
    "None": nothing(lambda: None),
    "object": nothing(object),
    "class": nothing(lambda: str),
    "Ellipsis": nothing(lambda: ...),
    "claims to be str": nothing(lambda: Claims(str)),
    "claims to be bytes": nothing(lambda: Claims(bytes)),
    "claims to be dict": nothing(lambda: Claims(dict)),
}
