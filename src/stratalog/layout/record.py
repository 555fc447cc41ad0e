"""How a record is declared: once, as a list of fields; everything else derives from the list.

From one `Layout` come the `struct.Struct` for single records, the numpy dtype for bulk work, the byte positions that
the kernels use, the rows of the format document and of the hex dump, and the strategies of the property tests.
All integers are big-endian; text and addresses are plain bytes.
"""

import struct
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stratalog.errors import CorruptData

_STRUCT_CODES = {"i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q"}
_DTYPES = {"i8": "i1", "u8": "u1", "i16": ">i2", "u16": ">u2", "i32": ">i4", "u32": ">u4", "i64": ">i8", "u64": ">u8"}

OFFSETS_END = 1 << 62
"""No offset, position or size on disk reaches this: the sum of two that are smaller fits an int64."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record: `kind` is `i8 … u64`, or `bytes` with an explicit size."""

    name: str
    kind: str
    meaning: str
    unit: str = ""
    bytes_size: int = 0

    @property
    def size(self) -> int:
        return self.bytes_size if self.kind == "bytes" else int(self.kind[1:]) // 8

    @property
    def struct_code(self) -> str:
        return f"{self.bytes_size}s" if self.kind == "bytes" else _STRUCT_CODES[self.kind]

    @property
    def dtype(self) -> str:
        return f"V{self.bytes_size}" if self.kind == "bytes" else _DTYPES[self.kind]


class Layout:
    """A fixed-size record. `size` is asserted at import, so a slip in a field list fails at once.

    `source` names the upstream class the layout was taken from.
    """

    def __init__(self, name: str, *fields: Field, size: int, source: str) -> None:
        self.name = name
        self.fields = fields
        self.source = source
        self.struct = struct.Struct(">" + "".join(field.struct_code for field in fields))
        self.size = self.struct.size
        assert self.size == size, f"{name}: the fields add up to {self.size} bytes, declared are {size}"
        self._positions = dict(self._walk())
        self._dtype: np.dtype[Any] | None = None
        self.record: Any = namedtuple("Record", [field.name for field in fields])  # type: ignore[misc]
        self.record.__doc__ = f"The fields of one {name}."

    def _walk(self) -> Iterator[tuple[str, int]]:
        position = 0
        for field in self.fields:
            yield field.name, position
            position += field.size

    def position(self, name: str) -> int:
        """Byte position of a field from the record's start."""
        return self._positions[name]

    @property
    def dtype(self) -> np.dtype[Any]:
        """numpy dtype of an array of such records, without padding."""
        if self._dtype is None:
            self._dtype = np.dtype([(field.name, field.dtype) for field in self.fields])
        return self._dtype

    def pack(self, *values: int | bytes) -> bytes:
        """Encode one record; values in field order."""
        return self.struct.pack(*values)

    def unpack(self, buffer: bytes | bytearray | memoryview, position: int = 0) -> Any:
        """Decode one record into a named tuple of its fields. Raises `CorruptData` when the buffer is too short."""
        if position < 0 or len(buffer) - position < self.size:
            raise CorruptData(
                f"a {self.name} takes {self.size} bytes, {max(0, len(buffer) - position)} are left", position=position
            )
        return self.record._make(self.struct.unpack_from(buffer, position))

    def extended(self, name: str, *more: "Layout | tuple[str, Layout]", size: int) -> "Layout":
        """This layout followed by others; a `(prefix, layout)` pair renames the other's fields."""
        fields = list(self.fields)
        for part in more:
            prefix, layout = part if isinstance(part, tuple) else ("", part)
            fields += [replace(field, name=prefix + field.name) for field in layout.fields]
        return Layout(name, *fields, size=size, source=self.source)


UnpackError = struct.error
"""What a bare `layout.struct.unpack_from` raises; for hot paths that map it to `CorruptData` themselves."""
