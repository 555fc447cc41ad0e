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
from stratalog.errors import StoreClosed
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


def forked(root: Path) -> None:
    """The parent waits until the child has ended."""
    before = contents(root)
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        assert contents(root) == before
    else:
        signal.alarm(CHILD_S)


@pytest.mark.one_in(PARTS)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_goes_on_in_the_parent_only(tool: str, part: int, tmp_path: Path) -> None:
    plan_of, call = TOOLS[tool]
    made(tmp_path / "made", tool)

    def run(injector: Handler) -> None:
        root, parent = tmp_path / "store", os.getpid()
        for path in tmp_path.iterdir():
            if path.name != "made":
                shutil.rmtree(path)
        shutil.copytree(tmp_path / "made", root)
        plan = plan_of(root)
        injector._calls = lambda: forked(root)
        try:
            with injector:
                call(root, plan)
        except StoreClosed:
            if os.getpid() == parent:
                raise
        if os.getpid() != parent:
            os._exit(0)
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
