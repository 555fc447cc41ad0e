"""What a run of the demo did, kept in its folder so that a second run goes on where the first one ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec

from stratalog.cli.output import seconds_text, size_text
from stratalog.errors import ConfigurationError, counted

FILE_NAME = "demo.json"


class Step(msgspec.Struct):
    """A line of the final table: messages that were gone through, and their bytes."""

    TITLES: ClassVar[Sequence[str]] = ("step", "messages", "bytes", "seconds", "rate")
    RIGHT: ClassVar[Sequence[int]] = (1, 2, 3, 4)

    name: str
    messages: int
    size: int
    seconds: float
    reads: int = 0
    """Ranged reads of a look-up; 0 for a step that goes through everything."""

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds else 0.0

    @property
    def is_bulk(self) -> bool:
        """Whether its rate means anything."""
        return bool(self.messages) and not self.reads

    def row(self) -> list[str]:
        """Cells under `TITLES`."""
        rate = f"{self.rate:,.0f} messages/s" if self.is_bulk else counted(self.reads, "read") if self.reads else "–"
        return [
            self.name,
            f"{self.messages:,}" if self.messages else "–",
            f"{self.size:,}",
            f"{self.seconds:.3f}",
            rate,
        ]


class Lookup(msgspec.Struct):
    """One question to the tier: what was asked, what came back, latency, ranged reads and the bytes they read."""

    TITLES: ClassVar[Sequence[str]] = ("question", "answer", "latency", "reads", "read")
    RIGHT: ClassVar[Sequence[int]] = (2, 3, 4)

    question: str
    answer: str
    messages: int
    size: int
    seconds: float
    reads: int

    def as_step(self) -> Step:
        return Step(self.question, self.messages, self.size, self.seconds, self.reads)

    def row(self) -> list[str]:
        """Cells under `TITLES`."""
        return [self.question, self.answer, seconds_text(self.seconds), f"{self.reads:,}", size_text(self.size)]


class Journal(msgspec.Struct):
    """The steps that are done, and what later steps need to know of earlier ones."""

    message_count: int = 0
    bulk_timestamp_ms: int = 0
    """Store time of the first message that came by Arrow."""
    bulk_first_offset: int = 0
    """Its queue offset in the queue that the demo asks for that time."""
    airlines: dict[str, str] = {}
    written: bool = False
    verified: bool = False
    offloaded: bool = False
    dropped: bool = False
    finished_at: str = ""
    steps: list[Step] = []

    def store(self, folder: Path) -> None:
        """Write the file as a whole: a stopped run leaves the old one."""
        temporary = folder / f"{FILE_NAME}.tmp"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))
        temporary.replace(folder / FILE_NAME)


def open_journal(folder: Path) -> Journal:
    """The journal of a folder, a new one in a new folder. Raises `ConfigurationError` if something else is there."""
    path = folder / FILE_NAME
    if path.exists():
        try:
            return msgspec.json.decode(path.read_bytes(), type=Journal)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{path} cannot be read ({error}); remove the folder {folder} to begin again"
            ) from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} holds something else; name a new or empty folder with --dir")
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal()
    journal.store(folder)
    return journal
