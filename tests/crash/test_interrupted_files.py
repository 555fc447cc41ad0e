"""A signal handler's exception while a file is opened, used or closed leaves no descriptor."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from crash.interrupts import Dropped, Injector, check_descriptors, open_descriptors, unraisable_dropped
from stratalog.store import disk as disks
from stratalog.store.disk import Disk, PrivateDisk, lock_owner

USES: dict[str, Callable[[Disk, Path], object]] = {
    "read": lambda disk, path: disk.read(path),
    "open": lambda disk, path: disk.open(path).close(),
    "map": lambda disk, path: disk.map(path).close(),
    "map, release, sync": lambda disk, path: [(file := disk.map(path)).release(), file.sync(), file.close()],
    "allocate": lambda disk, path: disk.allocate(path.with_name("new"), 4096),
    "create sparse": lambda disk, path: disk.create_sparse(path.with_name("new"), 4096),
    "check room": lambda disk, path: disk.check_room(path.with_name("new"), 4096, 1),
    "replace": lambda disk, path: disk.replace(path, b"other"),
    "mark": lambda disk, path: disk.mark(path, b"mark"),
    "sync directory": lambda disk, path: disk.sync_directory(path.parent),
    "list": lambda disk, path: (disk.files(path.parent), disk.directories(path.parent)),
    "lock": lambda disk, path: disk.lock(path.with_name("lock"))(),
    "lock owner": lambda disk, path: lock_owner(path),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("disk", [Disk, PrivateDisk])
@pytest.mark.parametrize("use", USES)
def test_no_descriptor_is_left_wherever_a_call_is_interrupted(use: str, disk: type[Disk], tmp_path: Path) -> None:
    path = tmp_path / "directory" / "file"
    path.parent.mkdir()

    def case(injector: Injector) -> None:
        path.write_bytes(bytes(8192))
        before = open_descriptors()
        with contextlib.suppress(Dropped), injector:
            USES[use](disk(), path)
        try:
            check_descriptors(before)
        except AssertionError as error:
            error.add_note(f"{injector.point}")
            raise

    traced = (disks.__file__, __file__)
    with unraisable_dropped():
        case(counted := Injector(0, traced=traced))
        for number in counted.points:
            case(Injector(number, raises=Dropped, traced=traced))
