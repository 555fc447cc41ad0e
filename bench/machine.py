"""Facts about the machine, without which no figure means anything."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_LIBRARIES = ("stratalog", "numpy", "numba", "pyarrow", "fastcrc", "pyspark", "lmdb", "litequeue", "persist-queue")


def facts(directory: Path) -> dict[str, str]:
    """CPU, cores, memory, kernel, the file system that holds `directory`, and versions."""
    return {
        "cpu": _cpu(),
        "cores": f"{len(os.sched_getaffinity(0))} usable, load {os.getloadavg()[0]:.1f} at the start",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(directory),
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "libraries": ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES),
    }


def text(given: dict[str, str]) -> str:
    width = max(map(len, given))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in given.items())


def _cpu() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return f"{value.strip()} ({platform.machine()})"
    return platform.processor() or platform.machine()


def _file_system(directory: Path) -> str:
    """Type and device of the mount point that a path lies under: the longest that is a prefix of it."""
    place = os.path.realpath(directory)
    found = ("", "unknown")
    for line in _lines(Path("/proc/mounts")):
        device, mount, kind = line.split()[:3]
        inside = place == mount or place.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(found[0]):
            found = (mount, f"{kind} on {device}")
    return found[1]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
