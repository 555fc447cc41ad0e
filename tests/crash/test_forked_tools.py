"""A signal handler forks while a tool changes a store, and returns in the child, too: there nothing is changed."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.test_forked_call import CHILD_S, Handler, contents
from store.model import SMALL, flip, log_files
from stratalog.config.settings import StoreSettings
from stratalog.errors import StratalogError
from stratalog.layout.names import STAGING
from stratalog.tools.rebuild import rebuild
from stratalog.tools.repair import repair
from stratalog.tools.repair_plan import RepairPlan, plan_repair
from stratalog.tools.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
PARTS = 100
SETTINGS = StoreSettings().override(SMALL)


class Within(Handler):
    """Leaves out what comes before a tool has its disk: a child that begins there uses a tool of its own."""

    def _reach(self, frame: Any, event: str) -> None:
        name, above = frame.f_code.co_name, frame.f_back
        is_begin = event == "call" and (name in ("__new__", "__init__") or not self._is_traced(above))
        if not is_begin:
            super()._reach(frame, event)


def planned(root: Path) -> RepairPlan | None:
    return plan_repair(root, settings=SETTINGS)


TOOLS: dict[str, tuple[Callable[[Path], RepairPlan | None], Callable[..., object]]] = {
    "rebuild": (lambda root: None, lambda root, plan: rebuild(root, settings=SETTINGS)),
    "repair": (planned, lambda root, plan: repair(plan)),
    "repair in a copy": (planned, lambda root, plan: repair(plan, to=root.with_name("copy"))),
}


def made(root: Path, tool: str) -> None:
    """A store with a damaged message, and one that a tool has not ended to rebuild."""
    with stratalog.open(root, **SMALL) as store:
        for number in range(20):
            store.put("t", b"body %d" % number, keys=["k"])
            store.put("u", b"x" * 300)
    (root / STAGING).mkdir()
    if tool != "rebuild":
        path = log_files(root)[0]
        flip(path, path.read_bytes().index(b"body 2"))


class Fork:
    """What the handler does. The parent waits until the child has ended, or the child until the tool has in the
    parent."""

    def __init__(self, root: Path, *, child_waits: bool) -> None:
        self._root, self._child_waits = root, child_waits
        self._waits, self._goes_on = os.pipe()
        self._child = 0

    def __call__(self) -> None:
        before = {} if self._child_waits else contents(self._root)
        if child := os.fork():
            self._child = child
            if not self._child_waits:
                self._wait(before)
        else:
            signal.alarm(CHILD_S)
            os.close(self._goes_on)
            if self._child_waits:
                os.read(self._waits, 1)

    def finish(self) -> None:
        """The tool has ended in the parent."""
        before = contents(self._root)
        os.close(self._waits)
        os.close(self._goes_on)
        if self._child:
            self._wait(before)

    def _wait(self, before: object) -> None:
        assert os.waitpid(self._child, 0)[1] == 0
        self._child = 0
        assert contents(self._root) == before


@pytest.mark.one_in(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("waits", ["parent", "child"])
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_goes_on_in_the_parent_only(tool: str, waits: str, part: int, tmp_path: Path) -> None:
    plan_of, call = TOOLS[tool]
    made(tmp_path / "made", tool)

    def run(injector: Handler) -> None:
        root, parent = tmp_path / "store", os.getpid()
        for path in tmp_path.iterdir():
            if path.name != "made":
                shutil.rmtree(path)
        shutil.copytree(tmp_path / "made", root)
        plan = plan_of(root)
        injector._calls = fork = Fork(root, child_waits=waits == "child")
        try:
            with injector:
                call(root, plan)
        except StratalogError:
            if os.getpid() == parent:
                raise
        if os.getpid() != parent:
            os._exit(0)
        fork.finish()
        for path in tmp_path.iterdir():
            if path.name == "copy" or (path.name == "store" and "copy" not in tool):
                assert verify(path, settings=SETTINGS).ok
                assert not list(path.rglob("*.tmp"))

    for _ in range(2):
        counted = Within(0)
        run(counted)
    assert len(counted.points) > PARTS
    for number in counted.points[part::PARTS]:
        injector = Within(number)
        try:
            run(injector)
        except BaseException as error:
            error.add_note(f"{injector.point}")
            raise
