"""Messages that are in the log and not in their queues, as these cannot be written: no reader passes over them
silently. What is in the queues is read, and where it ends an error says so."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stratalog
from store.kinds import BATCH, LIGHT_KIND, PLAIN, Content, Kind
from stratalog.errors import DiskFull, OffsetOutOfRange, StoreFailed, StoreUnavailable, StratalogError
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore

BEFORE, AFTER = 12, 60
KINDS = pytest.mark.parametrize("kind", [PLAIN, BATCH, LIGHT_KIND], ids=str)
ERRORS: dict[int, type[StratalogError]] = {
    errno.ENOSPC: DiskFull,
    errno.EMFILE: StoreUnavailable,
    errno.EIO: StoreFailed,
}
EACH_ERROR = pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.__getitem__)
FILES = {"queue file": "create_sparse", "index file": "allocate"}


class Refusing(Disk):
    """A disk that makes no new queue files, or no new index files, while `refused` names the method and `error`."""

    refused, error = "", 0

    def _make(self, method: str, path: Path, size: int) -> Any:
        if method == self.refused and "commitlog" not in str(path):
            raise OSError(self.error, os.strerror(self.error), str(path))
        return getattr(super(), method)(path, size)

    def create_sparse(self, path: Path, size: int) -> Any:
        return self._make("create_sparse", path, size)

    def allocate(self, path: Path, size: int) -> Any:
        return self._make("allocate", path, size)


def read(messages: Iterator[Any]) -> tuple[list[bytes], StratalogError | None]:
    found: list[bytes] = []
    try:
        found.extend(message.body for message in messages)
    except StratalogError as error:
        return found, error
    return found, None


def bodies(content: Content, key: tuple[str, int]) -> list[bytes]:
    return [known.body for known in content.queues.get(key, {}).values()]


def refused(call: Callable[[], object]) -> StratalogError:
    with pytest.raises(StratalogError) as raised:
        call()
    return raised.value


def made(kind: Kind, root: Path, refused: str, error: int, **given: Any) -> tuple[MessageStore, Refusing, Content]:
    """A store with some messages in their queues, and more in the log alone."""
    disk, content = Refusing(), Content()
    store = kind.open(root, disk=disk, max_index_num=10, **given)
    kind.fill(store, content, count=BEFORE)
    store.dispatch()
    disk.refused, disk.error = refused, error
    kind.fill(store, content, begin=BEFORE, count=AFTER)
    return store, disk, content


@KINDS
@EACH_ERROR
@pytest.mark.parametrize("file", FILES)
def test_no_reader_passes_over_messages_that_are_in_no_queue(kind: Kind, error: int, file: str, tmp_path: Path) -> None:
    store, disk, content = made(kind, tmp_path / "store", FILES[file], error)
    key = kind.queues[0]
    queue, every = store.queue(*key), bodies(content, key)
    found, told = read(queue.read())
    assert found == every[: len(found)]
    assert isinstance(told, ERRORS[error])
    for words in (str(tmp_path / "store"), "log offset", 'mode="r"'):
        assert words in str(told)
    low, known = queue.min_offset, len(found)
    assert known > 0
    assert read(queue.read(low, count=known - 1)) == (found[:-1], None), "reads go on"
    unseen = f"m{BEFORE + AFTER - 1}-0"
    calls: dict[str, Callable[[], object]] = {
        "max_offset": lambda: queue.max_offset,
        "at the end": lambda: next(queue.read(known)),
        "past the end": lambda: next(queue.read(known + 1)),
        "far past the end": lambda: queue.read(len(every) + 10),
        "follow": lambda: list(itertools.islice(queue.read(known, follow=True), 1)),
        "read_arrow": lambda: queue.read_arrow(low),
        "offset_at": lambda: queue.offset_at_ms(1 << 50),
        "estimate_count": queue.estimate_count,
        "query": lambda: store.query(key[0], key=unseen),
        "query_many": lambda: store.query_many(key[0], [unseen]),
        "candidates": lambda: list(store.candidates(key[0], key=unseen)),
        "queues": store.queues,
        "topics": store.topics,
    }
    if kind is PLAIN:
        calls["units"] = lambda: queue.units(low, len(every) + 1)
    for name, call in calls.items():
        assert isinstance(refused(call), ERRORS[error]), name
    rows = queue.read_arrow(low, count=known - 1, columns=["body"])
    assert rows["body"].to_pylist() == found[:-1]
    with kind.open(tmp_path / "store", mode="r", max_index_num=10) as reader:
        assert read(reader.queue(*key).read()) == (every, None), "a reader of its own builds its own queues"
        assert not reader.query(key[0], key="g0").damaged
    if ERRORS[error] is StoreFailed:
        with pytest.raises(StoreFailed):
            kind.put(store, BEFORE + AFTER, Content())
        store.close()
        store = kind.open(tmp_path / "store", max_index_num=10)
    else:
        kind.put(store, BEFORE + AFTER, content)  # the log has room
    disk.refused = ""
    for each in kind.queues:
        assert read(store.queue(*each).read()) == (bodies(content, each), None)
        assert store.queue(*each).max_offset == len(content.queues[each])
    store.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.__getitem__)
def test_a_new_queue_that_cannot_be_made_is_not_taken_for_empty(error: int, tmp_path: Path) -> None:
    store, disk, _ = made(PLAIN, tmp_path / "store", "create_sparse", error)
    queue = store.queue("t2")
    assert read(queue.read())[1] is not None
    assert not isinstance(refused(lambda: queue.read(5)), OffsetOutOfRange)
    disk.refused = ""
    store.close()


def test_what_is_not_durable_yet_is_no_message_that_is_missing(tmp_path: Path) -> None:
    """Under sync flush no reader sees it, whatever fails."""
    store, disk, content = made(PLAIN, tmp_path / "store", "", 0, flush="sync")
    key = PLAIN.queues[0]
    assert read(store.queue(*key).read()) == (bodies(content, key), None)
    disk.refused, disk.error = "create_sparse", errno.EIO
    store.queue(*key).put(b"unseen", wait=False)
    assert read(store.queue(*key).read()) == (bodies(content, key), None)
    disk.refused = ""
    store.close()
    with stratalog.open(tmp_path / "store", mode="r") as reader:
        assert read(reader.queue(*key).read())[0][-1] == b"unseen"
