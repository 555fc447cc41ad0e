"""The rows of the table, in order."""

from torture.calls import ended, errors, traced
from torture.flips import with_record_crc, without_record_crc
from torture.full_disk import real, shortages
from torture.fuzz import decoders, stores
from torture.kills import kills
from torture.mutations import mutations
from torture.power import disks, pages
from torture.report import RowFunction

ROWS: dict[str, tuple[str, RowFunction]] = {
    "kills": ("kill -9 while putting and opening", kills),
    "ended": ("the process ends at the n-th system call", ended),
    "traced": ("kill -9 at the n-th real call (strace)", traced),
    "errors": ("EIO and ENOSPC at the n-th system call", errors),
    "pages": ("power cut, page by page", pages),
    "ext4": ("power cut on ext4 (shutdown ioctl)", disks("ext4")),
    "xfs": ("power cut on XFS (shutdown ioctl)", disks("xfs")),
    "shortages": ("disk full at the n-th allocation", shortages),
    "full-disks": ("disk full on tmpfs and ext4", real),
    "flips": ("every bit flipped, with record CRC", with_record_crc),
    "plain-flips": ("a bit of each byte flipped, no record CRC", without_record_crc),
    "fuzz": ("decoders fuzzed", decoders),
    "fuzz-stores": ("whole stores fuzzed", stores),
    "mutations": ("planted faults", mutations),
}
