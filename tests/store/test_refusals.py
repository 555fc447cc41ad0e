"""What the operating system refuses is told by class and next step, changes nothing, and passes with its cause."""

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.conftest import OpenStore
from store.model import QUIET, SMALL, bodies, check
from stratalog.errors import DiskFull, NotAStore, StoreFailed, StoreUnavailable, StratalogError
from stratalog.kernels import jit
from stratalog.store.disk import Disk, PrivateDisk

METHODS = frozenset(
    {
        "make_directory", "create_directory", "allocate", "create_sparse", "map", "open", "files", "directories",
        "exists", "read", "replace", "remove", "sync_directory", "lock", "touch",
    }
)  # fmt: skip
OPENS_A_FILE = METHODS - {"create_directory", "exists", "remove", "touch"}
SPACE, PATH, ACCESS = "free space", "check the path", "give this user access"
ERRNOS: dict[int, tuple[type[StratalogError], str]] = {
    errno.EMFILE: (StoreUnavailable, "ulimit -n"),
    errno.ENFILE: (StoreUnavailable, "fs.file-max"),
    errno.ENOMEM: (StoreUnavailable, "free memory"),
    errno.EACCES: (StoreUnavailable, ACCESS),
    errno.EPERM: (StoreUnavailable, ACCESS),
    errno.EIO: (StoreUnavailable, "dmesg"),
    errno.EROFS: (StoreUnavailable, "mount the file system for writing"),
    errno.EBUSY: (StoreUnavailable, "remove the cause"),
    errno.ENOSPC: (DiskFull, SPACE),
    errno.EDQUOT: (DiskFull, SPACE),
    errno.ELOOP: (NotAStore, PATH),
    errno.ENAMETOOLONG: (NotAStore, PATH),
    errno.ENOTDIR: (NotAStore, PATH),
}


def refusing(kind: type[Disk]) -> type[Any]:
    """A disk that refuses the calls for which `refuses(number, name)` says so."""

    class Refusing(kind):  # type: ignore[misc, valid-type]
        def __init__(self, error: int, refuses: Callable[[int, str], bool]) -> None:
            super().__init__()
            self.error, self.refuses, self.calls, self.depth = error, refuses, 0, 0

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name not in METHODS:
                return found

            def call(*given: Any, **named: Any) -> Any:
                if not self.depth:
                    self.calls += 1
                    if self.refuses(self.calls, name):
                        raise OSError(self.error, os.strerror(self.error), str(given[0]))
                self.depth += 1
                try:
                    return found(*given, **named)
                finally:
                    self.depth -= 1

            return call

    return Refusing


def refusal_of(call: Callable[[], object]) -> StratalogError | None:
    try:
        call()
    except StratalogError as error:
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__) is not None:
            assert cause not in causes, "an error is its own cause: whoever follows the causes goes on for ever"
            causes.append(cause)
        return error
    return None


@pytest.fixture
def filled(open_store: OpenStore) -> Path:
    with open_store() as store:
        for number in range(90):
            store.put("t", b"%d" % number * 400, queue_id=number % 3, keys=[f"k{number}"])
    return store.root


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["r", "w"])
@pytest.mark.parametrize("error", ERRNOS, ids=errno.errorcode.__getitem__)
def test_any_call_of_an_opening_may_be_refused(mode: Any, error: int, filled: Path) -> None:
    expected, step = ERRNOS[error]
    with stratalog.open(filled, mode="r") as store:
        before = bodies(store)
    raised = 0
    for number in itertools.count(1):
        disk = refusing(PrivateDisk if mode == "r" else Disk)(error, lambda count, _, number=number: count == number)
        refused = refusal_of(lambda disk=disk: stratalog.open(filled, mode=mode, disk=disk, **QUIET).close())
        if refused:
            raised += 1
            assert isinstance(refused, expected | StoreFailed | StoreUnavailable), refused
            assert str(filled) in str(refused)
            assert step in str(refused), refused
            assert "mend" not in str(refused)
        if disk.calls < number:
            break
    assert raised > 5
    with stratalog.open(filled, **QUIET) as store:
        assert bodies(store) == before


def test_memory_that_is_short_is_told_so(filled: Path) -> None:
    class Short(Disk):
        def map(self, path: Path) -> Any:
            raise MemoryError

    with pytest.raises(StoreUnavailable, match=r"memory is short; free memory.*ulimit -v"):
        stratalog.open(filled, disk=Short())
    stratalog.open(filled).close()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE, errno.ENOMEM], ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_shortage_later_refuses_the_call_and_loses_nothing(
    error: int, flush: str, open_store: OpenStore, tmp_path: Path
) -> None:
    short = False
    methods = OPENS_A_FILE - ({"sync_directory"} if error == errno.ENOMEM else set())  # which may be of the flush
    disk = refusing(Disk)(error, lambda _, name: short and name in methods)
    store = open_store(disk=disk, flush=flush)
    expected: list[bytes] = []
    refused: list[StratalogError] = []

    def put(body: bytes, queue_id: int, count: int) -> None:
        queue = store.queue("t", queue_id)
        if count == 1:
            queue.put(body)
        else:
            queue.put_many([body] * count)
        expected.extend([body] * count)

    for number in range(250):
        body = b"%d" % number + bytes(900)
        calls: list[Callable[[], object]] = [lambda: put(body, number // 7, 1)]  # noqa: B023
        calls += [lambda: put(body, number // 7, 50)] if number % 40 == 1 else []  # noqa: B023
        calls += [store.dispatch, store._flush_all, lambda: list(store.queue("t", number // 9).read())]  # noqa: B023
        for call in calls:
            short = True
            told = refusal_of(call)
            if told:
                assert isinstance(told, StoreUnavailable)
                refused.append(told)
                short = False
                call()
            short = False
    assert len(refused) > 300
    assert not store.log.failure
    store.close()
    with stratalog.open(store.root, mode="r") as again:
        found = [body for each in bodies(again).values() for body in each]
        assert sorted(found) == sorted(expected)


AT_A_LIMIT = """
import os, resource, sys
import stratalog
from stratalog.errors import StoreUnavailable, StoreClosed
from stratalog.kernels.warm import compile_all
compile_all()
root, left = sys.argv[1], int(sys.argv[2])
sizes = dict(mapped_file_size_commit_log=1 << 16, mapped_file_size_consume_queue=1000,
             max_hash_slot_num=100, max_index_num=400)
for mode in "wr":
    with stratalog.open(root + "-other", mode=mode, **sizes) as store:
        if mode == "w":
            store.put("t", b"x", keys=["k"])
        list(store.queue("t").read())
used = os.open("/dev/null", os.O_RDONLY)
os.close(used)
resource.setrlimit(resource.RLIMIT_NOFILE, (used + left, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
put = refused = 0
try:
    with stratalog.open(root, **sizes) as store:
        for number in range(300):
            try:
                store.put("t", b"%d" % put + bytes(900), queue_id=number % 50, keys=[f"k{number}"])
                put += 1
            except StoreUnavailable as told:
                assert "ulimit -n" in str(told), told
                refused += 1
        try:
            read = sum(len(list(store.queue("t", number).read())) for number in range(50))
        except StoreUnavailable as told:
            assert "ulimit -n" in str(told), told
            refused += 1
except StoreUnavailable as told:
    assert "ulimit -n" in str(told), told
    refused += 1
print(put, refused)
"""


def test_a_process_that_may_open_few_files_is_told_its_limit_and_loses_nothing(tmp_path: Path) -> None:
    outcomes = []
    for left in (0, 6, 24):
        root = tmp_path / str(left)
        done = subprocess.run(
            [sys.executable, "-c", AT_A_LIMIT, str(root), str(left)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        put, refused = map(int, done.stdout.split())
        outcomes.append((put, refused))
        if put:
            with stratalog.open(root, **(SMALL | QUIET)) as store:
                assert sum(map(len, bodies(store).values())) == put
                check(store)
    assert outcomes[0][0] == 0
    assert outcomes[0][1]
    assert outcomes[-1] == (300, 0)


def test_kernels_that_cannot_be_read_are_no_fault_of_the_store(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    class Unreadable(Disk):
        def map(self, path: Path) -> Any:
            raise PermissionError(errno.EACCES, "Permission denied", f"{jit.CACHE_DIRECTORY}/scan.nbi")

    with pytest.raises(stratalog.errors.StoreUnavailable, match=r"compiled kernels.*scan.nbi.*NUMBA_CACHE_DIR"):
        stratalog.open(filled, disk=Unreadable())
