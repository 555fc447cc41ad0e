"""File systems in a file, for tests that may fill them up or switch them off. Root only; `NotHere` says why not."""

import contextlib
import fcntl
import gc
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from torture.report import NotHere

SHUTDOWN = 0x8004587D
"""FS_IOC_SHUTDOWN, which ext4 took over from XFS."""
NO_LOG_FLUSH = 2
"""Nothing more reaches the disk, not even the journal: what a power cut does."""
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
SIZES = {"ext4": 64 << 20, "xfs": 320 << 20}
"""XFS wants 300 MB; the file is sparse."""
UMOUNT_TRIES = 200


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise NotHere(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


class Mount:
    """A file system of a kind on a loop device, mounted at `place`."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.place = folder / "mount"
        self.place.mkdir()
        image = folder / "image"
        image.touch()
        os.truncate(image, SIZES[kind])
        self._device = _run("losetup", "-f", "--show", str(image))
        self._mounted = False
        try:
            _run(*MAKE[kind], self._device)
            self.mount()
        except BaseException:
            self.remove()
            raise

    def mount(self) -> None:
        _run("mount", self._device, str(self.place))
        self._mounted = True

    def cut_power(self) -> None:
        """What is not durable now never will be."""
        fd = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        except OSError as error:
            raise NotHere(f"the shutdown ioctl is not there: {error}") from error
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Unmount; whoever held a file of it has ended, but the kernel may still be closing them."""
        gc.collect()  # a closed store's mapping lives as long as something borrows it
        for left in reversed(range(UMOUNT_TRIES)):
            done = subprocess.run(["umount", str(self.place)], capture_output=True, check=False, timeout=60)
            if done.returncode == 0:
                break
            if not left:
                raise RuntimeError(f"umount {self.place}: {done.stderr.decode().strip()}")
            time.sleep(0.01)
        self._mounted = False

    def again(self) -> None:
        """Unmount and mount: the journal is replayed, no page of the cache is left."""
        self.unmount()
        self.mount()

    def remove(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.place)], capture_output=True, check=False, timeout=60)
        subprocess.run(["losetup", "-d", self._device], capture_output=True, check=False, timeout=60)


@contextlib.contextmanager
def mounted(kind: str, folder: Path) -> Iterator[Mount]:
    """A fresh file system; gone afterwards. Raises `NotHere`."""
    if os.geteuid():
        raise NotHere("mounting wants root")
    for program in ("losetup", "mount", MAKE[kind][0]):
        if shutil.which(program) is None:
            raise NotHere(f"{program} is not installed")
    mount = Mount(kind, folder)
    try:
        yield mount
    finally:
        mount.remove()
