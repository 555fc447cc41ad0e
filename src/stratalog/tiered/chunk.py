"""Reading a queue's records in bulk: one read of units, one of records, every record checked against its unit."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stratalog.errors import CorruptData
from stratalog.kernels.tierkeys import check_units
from stratalog.layout.queue import UNIT
from stratalog.layout.record import OFFSETS_END
from stratalog.layout.tier import CODA
from stratalog.tiered.flat_file import FlatFile

CHUNK_SIZE_MAX = 16 * 1024 * 1024
"""Commit log bytes fetched at once (upstream's `readAheadMessageSizeThreshold`); one record may exceed it."""
FIRST_CHUNK_SIZE = 256 * 1024
"""A reader may stop after a few messages, so the first chunk is small and each following one four times larger."""
_GROWTH = 4
_UNITS_MIN = 32


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive messages of one queue, checked: lengths, CRC, topic, queue id, queue and log offset all hold.

    `data` holds log bytes [data_offset, …); record i begins at `positions[i]` in it; `units` is 20 bytes a message.
    """

    first_queue_offset: int
    units: bytes
    data: bytes
    data_offset: int
    positions: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.positions)

    @property
    def end_queue_offset(self) -> int:
        return self.first_queue_offset + self.count

    @property
    def address(self) -> int:
        """Address of `data`'s first byte; valid as long as the chunk."""
        return address_of(self.data)

    def exact_units(self) -> bytes:
        """The units, each pointing exactly at its record (a legacy coda may stand between)."""
        units = np.frombuffer(self.units, UNIT.dtype).copy()
        units["commit_log_offset"] = self.positions + self.data_offset
        return units.tobytes()


def address_of(data: bytes) -> int:
    """Address of the bytes, for a kernel; the caller keeps them alive."""
    return int(np.frombuffer(data, np.uint8).ctypes.data) if data else 0


class ChunkReader:
    """Fetches and checks the records of one queue. Immutable view of a committed state; any thread may use it."""

    def __init__(self, topic: str, queue_id: int, units: FlatFile, log: FlatFile, *, record_size: int) -> None:
        self._topic = topic.encode()
        self._queue_id = queue_id
        self._units = units
        self._log = log
        self._record_size = record_size

    def chunks(self, first: int, end: int, *, size_first: int = CHUNK_SIZE_MAX) -> Iterator[Chunk]:
        """Chunks with the queue offsets [first, end), gaps left out. Raises `CorruptData` at the first message that is
        damaged or missing, after those before it were given out."""
        size_max = size_first
        while first < end:
            begin, stop = self._units.contiguous_from(first * UNIT.size)
            if begin == stop:
                return
            first = begin // UNIT.size
            count = min(end, stop // UNIT.size) - first
            if count <= 0:
                return
            chunk = self.fetch(first, count, size_max=size_max)
            yield chunk
            first = chunk.end_queue_offset
            size_max = min(CHUNK_SIZE_MAX, size_max * _GROWTH)

    def fetch(self, first: int, count: int, *, size_max: int = CHUNK_SIZE_MAX) -> Chunk:
        """As many of `count` messages from `first` on as `size_max` bytes hold, at least one. The units are there."""
        wanted = min(count, max(_UNITS_MIN, size_max // self._record_size))
        units = self._units.read(first * UNIT.size, wanted * UNIT.size)
        count = _fitting(np.frombuffer(units, UNIT.dtype), size_max)
        while True:
            try:
                chunk = self._check(first, units[: count * UNIT.size])
            except CorruptData:
                if count == 1:
                    raise
                count //= 2  # give out what stands before the damage
                continue
            if chunk.count:
                return chunk
            raise self._damaged(first, units)

    def _check(self, first: int, units: bytes) -> Chunk:
        """The good messages at the beginning of these units; maybe none."""
        rows = np.frombuffer(units, UNIT.dtype)
        begin = int(rows[0]["commit_log_offset"])
        end = int(rows[-1]["commit_log_offset"]) + int(rows[-1]["size"])
        # A coda in front of a record shifts it; upstream reads too little then.
        end = min(max(end, begin) + CODA.size, self._log.contiguous_from(begin)[1])
        data = self._log.read(begin, end - begin) if end > begin else b""
        positions = np.empty(len(rows), np.int64)
        good = check_units(
            address_of(units), len(rows), address_of(data), len(data), begin, address_of(self._topic), len(self._topic),
            self._queue_id, first, positions,
        )  # fmt: skip
        return Chunk(first, units[: good * UNIT.size], data, begin, positions[:good])

    def _damaged(self, first: int, units: bytes) -> CorruptData:
        unit = UNIT.unpack(units)
        path, position = self._log.place(unit.commit_log_offset)
        unit_path, unit_position = self._units.place(first * UNIT.size)
        return CorruptData(
            f"{self._topic.decode()}/{self._queue_id} queue offset {first}: no record with that offset and a valid CRC "
            f"stands here (its unit, at byte {unit_position} of {unit_path}, says log offset {unit.commit_log_offset} "
            f"and {unit.size} bytes). Read on from queue offset {first + 1}, or restore the segment",
            path=path,
            position=position,
        )


def _fitting(rows: NDArray[np.void], size_max: int) -> int:
    """How many units from the first on lie in order within `size_max` bytes; at least one."""
    begins, sizes = rows["commit_log_offset"].astype(np.int64), rows["size"].astype(np.int64)
    begins[(begins < 0) | (begins >= OFFSETS_END) | (sizes <= 0)] = OFFSETS_END  # so that no sum overflows
    ends = begins + sizes
    fits = ends - begins[0] <= size_max
    fits[1:] &= begins[1:] >= ends[:-1]
    return max(1, int(np.argmin(fits)) if not fits.all() else len(rows))
