"""A flat file: ordered segments of one kind read as one run of bytes (FlatAppendFile)."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stratalog.errors import CorruptData
from stratalog.tiered.segment import SegmentBackend
from stratalog.tiered.state import Segments


class Piece(NamedTuple):
    """A part of a range within one segment."""

    path: str
    position: int
    size: int


class FlatFile:
    """Bytes of a flat file by their offset in it. Immutable view of a committed state; any thread may use it.

    One ranged read a segment that a range touches, any number of segments; bytes after a segment's committed size are
    never read.
    """

    def __init__(self, backend: SegmentBackend, segments: Segments, path_of: Callable[[int], str]) -> None:
        self._backend = backend
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._path_of = path_of

    @property
    def min_offset(self) -> int:
        return self._bases[0] if self._bases else 0

    @property
    def end_offset(self) -> int:
        return self._segments[-1].end_offset if self._segments else 0

    def contiguous_from(self, offset: int) -> tuple[int, int]:
        """The range of bytes that are there, at or after `offset`, without a gap: (begin, end); equal when none."""
        number = max(0, bisect_right(self._bases, offset) - 1)
        while number < len(self._segments) and self._segments[number].end_offset <= offset:
            number += 1
        if number == len(self._segments):
            return offset, offset
        begin = max(offset, self._bases[number])
        end = self._segments[number].end_offset
        while number + 1 < len(self._segments) and self._bases[number + 1] == end:
            number += 1
            end = self._segments[number].end_offset
        return begin, end

    def holds(self, offset: int, size: int) -> bool:
        """Whether all of [offset, offset + size) is there."""
        begin, end = self.contiguous_from(offset)
        return begin == offset and offset + size <= end

    def read(self, offset: int, size: int) -> bytes:
        """The bytes [offset, offset + size). Raises `CorruptData` where some of them are not there."""
        parts = [self._backend.read(*piece) for piece in self.pieces(offset, size)]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(self, offset: int, size: int) -> Iterator[Piece]:
        """The range, cut at segment borders."""
        number = bisect_right(self._bases, offset) - 1
        end = offset + size
        while offset < end:
            if not 0 <= number < len(self._segments) or not self._contains(number, offset):
                raise CorruptData(
                    f"no segment holds byte {offset} of this flat file, which spans [{self.min_offset}, "
                    f"{self.end_offset}); restore the missing segment, or expire the queue up to it",
                    path=self.place(offset)[0],
                )
            segment = self._segments[number]
            stop = min(end, segment.end_offset)
            yield Piece(self._path_of(segment.base_offset), offset - segment.base_offset, stop - offset)
            offset = stop
            number += 1

    def place(self, offset: int) -> tuple[str, int]:
        """Path and position of a byte, for messages about it: the segment that should hold it."""
        if not self._bases:
            return "", -1
        base = self._bases[max(0, bisect_right(self._bases, offset) - 1)]
        return self._path_of(base), offset - base

    def _contains(self, number: int, offset: int) -> bool:
        segment = self._segments[number]
        return segment.base_offset <= offset < segment.end_offset
