"""A signal handler forks in the middle of a call, which goes on in the child, too: there it changes nothing."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.interrupts import Injector
from store.model import scratch_folder
from stratalog.errors import StoreClosed
from stratalog.store import commit_log, next_files
from stratalog.store.disk import Disk
from stratalog.store.message_store import MessageStore
from torture.interrupt import OTHERS, PUTS, SETTINGS, Diary, Operation, Scene

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
CHILD_S = 20
PARTS = 20


class Handler(Injector):
    """Calls at the points only where CPython runs signal handlers: as a function begins, and after a call in C."""

    def _reach(self, frame: Any, event: str) -> None:
        if event == "call" or event.startswith("c_return"):
            super()._reach(frame, event)


class Fork:
    """What the handler does. Of two processes one waits in it: the parent until the child has ended, or the child
    until the parent has closed its store."""

    def __init__(self, root: Path, *, child_waits: bool) -> None:
        self._root, self._child_waits = root, child_waits
        self._said, self._says = os.pipe()
        self._waits, self._goes_on = os.pipe()
        self.child: int | None = None

    def __call__(self) -> None:
        before = {} if self._child_waits else contents(self._root)
        self.child = os.fork()
        if not self.child:
            signal.alarm(CHILD_S)
            os.close(self._goes_on)
            if self._child_waits:
                os.read(self._waits, 1)
        elif not self._child_waits:
            self._wait()
            assert contents(self._root) == before

    def end_child(self, outcome: BaseException | None, store: MessageStore | None) -> None:
        """The call that was interrupted has ended in the child; no other works there."""
        said = repr(outcome) if outcome else ""
        if outcome is None or isinstance(outcome, StoreClosed):
            said = ""
            for use in (lambda: store.put("t", b"late"), lambda: store.flush(), lambda: store.close()):
                with contextlib.suppress(StoreClosed):
                    if store:
                        use()
                        said = "an inherited store is used"
        os.write(self._says, said.encode()[:4000])
        os._exit(0)

    def finish(self) -> None:
        """The store is closed in the parent."""
        if self.child and self._child_waits:
            before = contents(self._root)
            os.close(self._goes_on)
            self._wait()
            assert contents(self._root) == before
        unused = [] if self.child else [self._says]
        for fd in (self._said, self._waits, *unused, *([] if self.child and self._child_waits else [self._goes_on])):
            os.close(fd)

    def _wait(self) -> None:
        status = os.waitpid(self.child or 0, 0)[1]
        os.close(self._says)
        assert (status, os.read(self._said, 4000).decode()) == (0, "")


def contents(root: Path) -> dict[str, tuple[int, int, bytes]]:
    found = {}
    for path in sorted(root.parent.rglob("*")):
        status = path.stat()
        found[str(path)] = (status.st_ino, status.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
    return found


def nothing(store: MessageStore, diary: Diary) -> None:
    pass


def close(store: MessageStore, diary: Diary) -> None:
    PUTS["put"](store, diary)
    store.close()


CALLS: dict[str, Operation] = {
    "open": nothing, "open after a crash": nothing, "close": close, "roll into a file made ahead": PUTS["put and roll"],
    **{name: PUTS[name] for name in ("put", "put and roll", "put_many by kernel", "put_many one by one", "append")},
    **OTHERS,
}  # fmt: skip

CASES = [(name, waits) for name in CALLS for waits in ("parent", "child") if waits == "child" or "ahead" not in name]
"""A parent that waits still makes the next file ahead."""


def course(scene: Scene, injector: Handler, fork: Callable[[], Fork], name: str) -> None:
    diary = scene.begin()
    store = None if name.startswith("open") else scene.open()
    forking = injector._calls = fork()
    outcome, disk = None, Disk()
    try:
        with injector:
            if store:
                CALLS[name](store, diary)
            else:
                store = stratalog.open(scene.root, **SETTINGS, flush="sync", disk=disk)
    except BaseException as error:  # noqa: BLE001 - judged below
        outcome = error
    if forking.child == 0:
        forking.end_child(outcome, store)
    try:
        if outcome:
            raise outcome
        assert store
        if name != "close":
            PUTS["put"](store, diary)
        store.close()
    finally:
        forking.finish()
    scene.check_closed(diary)


@pytest.mark.one_in(540)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("name", "waits"), CASES)
def test_a_call_in_which_a_handler_forks_goes_on_in_the_parent_only(
    name: str, waits: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "ahead" in name:
        for module in (next_files, commit_log):
            monkeypatch.setattr(module, "AHEAD_SIZE_MIN", 0)
    with scratch_folder() as folder:
        scene = Scene(folder, flush="sync", crashed="crash" in name)
        fork = lambda: Fork(scene.root, child_waits=waits == "child")  # noqa: E731
        for _ in range(2):
            counted = Handler(0, returns=not name.startswith("open"))
            course(scene, counted, fork, name)
        assert len(counted.points) > PARTS
        for number in counted.points[part::PARTS]:
            injector = Handler(number, returns=not name.startswith("open"))
            try:
                course(scene, injector, fork, name)
            except BaseException as error:
                error.add_note(f"{injector.point}")
                raise
