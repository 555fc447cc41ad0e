"""The rows of the table, in order."""

from torture.again import again
from torture.calls import ended, errors, traced
from torture.exchanged import exchanged
from torture.flips import with_record_crc, without_record_crc
from torture.forks import forks
from torture.full_disk import real, shortages
from torture.fuzz import decoders, extremes, stores
from torture.gaps import gaps
from torture.interrupt import handlers, points, signals
from torture.kills import kills
from torture.kinds import kinds
from torture.mutations import mutations
from torture.orders import orders
from torture.power import disks, pages
from torture.repairs import repairs
from torture.report import RowFunction
from torture.steps import steps

ROWS: dict[str, tuple[str, RowFunction]] = {
    "kills": ("kill -9 while putting and opening", kills),
    "fork": ("a child forked at any moment uses what it inherited", forks),
    "ended": ("the process ends at the n-th system call", ended),
    "traced": ("kill -9 at the n-th real call (strace)", traced),
    "interrupt": ("an exception from a signal handler at the n-th line or call", points),
    "handlers": ("a signal handler that calls the store, at the n-th line or call", handlers),
    "signals": ("a real signal at a random moment, beside threads that put", signals),
    "errors": ("EIO and ENOSPC at the n-th system call", errors),
    "pages": ("power cut, page by page", pages),
    "ext4": ("power cut on ext4 (shutdown ioctl)", disks("ext4")),
    "xfs": ("power cut on XFS (shutdown ioctl)", disks("xfs")),
    "shortages": ("disk full at the n-th allocation", shortages),
    "full-disks": ("disk full on tmpfs and ext4", real),
    "flips": ("every bit flipped, with record CRC", with_record_crc),
    "plain-flips": ("a bit of each byte flipped, no record CRC", without_record_crc),
    "exchanged": ("files missing, cut, or replaced by another", exchanged),
    "steps": ("what opening refuses is mended by the command that verify names", steps),
    "gaps": ("queues that lack units, × checkpoints", gaps),
    "repair": ("damaged and repaired", repairs),
    "orders": ("one damage, also where topics were deleted and created again; then commands in any order", orders),
    "again": ("a repair or rebuild stopped, or failed by the system, and run again", again),
    "fuzz": ("decoders fuzzed", decoders),
    "fuzz-stores": ("whole stores fuzzed", stores),
    "extremes": ("an integer of a record set to an extreme value", extremes),
    "kinds": ("units, files and records of every kind of queue damaged", kinds),
    "mutations": ("planted faults", mutations),
}
