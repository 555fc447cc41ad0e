"""The checkpoint: from where an unclean start has to look. Written only from what is flushed."""

from dataclasses import astuple, dataclass
from pathlib import Path

from stratalog.layout.checkpoint import CHECKPOINT, FILE_SIZE, SIZE_5_3
from stratalog.layout.names import CHECKPOINT as FILE_NAME
from stratalog.store.disk import Disk


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Values of the checkpoint file; all 0 when it says nothing. Derived data: losing it costs a full scan."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    logics_commit_log_offset: int = 0

    @classmethod
    def load(cls, root: Path, disk: Disk) -> "Checkpoint":
        """Read the file; a missing or short one says nothing."""
        stored = disk.read(root / FILE_NAME)
        if stored is None or len(stored) < CHECKPOINT.size:
            return cls()
        return cls(*CHECKPOINT.unpack(stored))

    def encode(self, *, compatibility: str = "5.5") -> bytes:
        """The file's bytes; 5.3 leaves what 5.5 added zero."""
        packed = CHECKPOINT.pack(*astuple(self))
        return (packed if compatibility != "5.3" else packed[:SIZE_5_3]).ljust(FILE_SIZE, b"\0")

    def store(self, root: Path, disk: Disk, *, compatibility: str = "5.5") -> None:
        disk.replace(root / FILE_NAME, self.encode(compatibility=compatibility))
