"""The checkpoint: from where an unclean start has to look. Written only from what is flushed.

After RocketMQ's fields a clean stop leaves a seal: how many queues and units there are. A queue that was deleted or
cut while the store was closed is noticed by it.
"""

from dataclasses import astuple, dataclass, replace
from pathlib import Path

from stratalog.layout.checkpoint import CHECKPOINT, FILE_SIZE, SEAL, SEAL_POSITION, SIZE_5_3
from stratalog.layout.message import crc_of
from stratalog.layout.names import CHECKPOINT as FILE_NAME
from stratalog.store.disk import Disk


@dataclass(frozen=True, slots=True)
class Seal:
    """What the derived files held when the store was closed. Good for the log that ends at `log_end_offset` only."""

    log_end_offset: int
    queue_count: int
    unit_count: int
    index_item_count: int

    def encode(self) -> bytes:
        fields = SEAL.pack(*astuple(self), 0)[: SEAL.position("crc")]
        return SEAL.pack(*astuple(self), crc_of(fields))

    def of_the_log_alone(self) -> "Seal":
        """The same of the log; of what is derived from it nothing fits, so that all of it is built again."""
        return Seal(self.log_end_offset, -1, -1, -1)

    @classmethod
    def decode(cls, page: bytes) -> "Seal | None":
        """The seal of a checkpoint page, None when there is none."""
        fields = SEAL.unpack(page, SEAL_POSITION)
        seal = cls(fields.log_end_offset, fields.queue_count, fields.unit_count, fields.index_item_count)
        return seal if seal.log_end_offset and page[SEAL_POSITION:].startswith(seal.encode()) else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Values of the checkpoint file; all 0 when it says nothing. Derived data: losing it costs a full scan."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    logics_commit_log_offset: int = 0
    seal: Seal | None = None

    @classmethod
    def load(cls, root: Path, disk: Disk) -> "Checkpoint":
        """Read the file; a missing or short one says nothing."""
        stored = disk.read(root / FILE_NAME, size_max=FILE_SIZE, cut=True)
        if stored is None or len(stored) < FILE_SIZE:
            return cls()
        return cls(**CHECKPOINT.unpack(stored)._asdict(), seal=Seal.decode(stored))

    def encode(self, *, compatibility: str = "5.5") -> bytes:
        """The file's bytes. 5.3 leaves what 5.5 added zero. 5.5 then goes by `logics_msg_timestamp`, and begins with a
        log file whose first record has that time, though records of it stand before: one millisecond less is true."""
        fields = self
        if compatibility == "5.3":
            fields = replace(self, logics_msg_timestamp=max(0, self.logics_msg_timestamp - 1))
        packed = CHECKPOINT.pack(*(getattr(fields, field.name) for field in CHECKPOINT.fields))
        packed = packed if compatibility != "5.3" else packed[:SIZE_5_3]
        seal = self.seal.encode() if self.seal else b""
        return (packed.ljust(SEAL_POSITION, b"\0") + seal).ljust(FILE_SIZE, b"\0")

    def store(self, root: Path, disk: Disk, *, compatibility: str = "5.5") -> None:
        disk.replace(root / FILE_NAME, self.encode(compatibility=compatibility))
