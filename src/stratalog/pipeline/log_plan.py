"""How an offload goes through the log: made once on the driver from the open store, carried to Spark as JSON.

Light on purpose: the process in which Spark plans batches is started for every query, and imports only this.
"""

import json
from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass

from stratalog.layout.names import offset_name

Piece = tuple[str, int, int, int]
"""File, log offset of its first byte, and the log offsets [begin, end) of records in it."""


@dataclass(frozen=True)
class LogPlan:
    """The log from where the tier ends to where the log ended at planning. Offsets are log offsets in bytes.

    `borders` are record starts, ascending, from the first byte there is to the end of the log; every file's start is
    among them. `begin` is where the tier ends, which lies before the first border when local retention was faster.
    `topic_ids` are the tier's numbers of the topics that are copied; records of others are passed over.
    """

    directory: str
    first_offset: int
    file_size: int
    begin: int
    borders: tuple[int, ...]
    topic_ids: dict[str, int]

    @property
    def end(self) -> int:
        return self.borders[-1]

    def batch_end(self, begin: int, size_max: int) -> int:
        """End of a batch that begins there, of at most `size_max` bytes or one stretch; `begin` when none is left."""
        start = max(begin, self.borders[0])
        last = bisect_right(self.borders, start + size_max) - 1
        if self.borders[last] <= start:
            last += 1
        return self.borders[last] if last < len(self.borders) else begin

    def pieces(self, begin: int, end: int, size_max: int) -> list[Piece]:
        """[begin, end) in pieces of about `size_max` bytes, each within one file."""
        start = max(begin, self.borders[0])
        inner = self.borders[bisect_right(self.borders, start) : bisect_left(self.borders, end)]
        found: list[Piece] = []
        for first, last in zip((start, *inner), (*inner, end), strict=True):
            number = (first - self.first_offset) // self.file_size
            base = self.first_offset + number * self.file_size
            if found and found[-1][1] == base and last - found[-1][2] <= size_max:
                first = found.pop()[2]
            if first < last:
                found.append((f"{self.directory}/{offset_name(base)}", base, first, last))
        return found

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "LogPlan":
        fields = json.loads(text)
        return cls(**{**fields, "borders": tuple(fields["borders"])})
