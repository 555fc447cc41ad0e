"""A signal handler that raises `TimeoutError` after any system call: its caller gets it, and the store goes on."""

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stratalog
from crash.faults import install
from crash.interrupts import Injector, Late, unraisable_dropped
from store.kinds import SIZES
from store.model import QUIET
from stratalog.store.message_store import MessageStore
from stratalog.tools.repair_plan import plan_repair
from stratalog.tools.verify import verify
from stratalog.tools.verify_report import VerifyReport


class _Life:
    """Opens, puts, rolls, dispatches, reads and closes; does again what the handler interrupted. Raises all else."""

    def __init__(self, root: Path, flush: str, at: int, patch: pytest.MonkeyPatch) -> None:
        self.calls, self._at, self.interrupted = 0, at, 0
        install(patch, root).watch = self._after_call
        store: MessageStore = self._done(lambda: stratalog.open(root, flush=flush, **{**SIZES, **QUIET}))
        for number in range(11):
            self._done(partial(store.put, "t", b"%d" % number, keys=f"k{number}"))
        self._done(lambda: store.queue("t").put_many([b"x" * 1000] * 40))
        self._done(store.dispatch)
        self._done(store.flush)
        self.bodies = self._done(lambda: [message.body for message in store.queue("t").read()])
        self._done(store.close)

    def _after_call(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self.calls += 1
            if self.calls == self._at:
                raise TimeoutError("too long")

    def _done(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except TimeoutError as error:
            self.interrupted += str(error) == "too long"
            return step()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_the_caller_gets_its_timeout(flush: str, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        calls = _Life(tmp_path / "counted", flush, 0, patch).calls
    assert calls > 40
    interrupted = 0
    for at in range(1, calls + 1):
        with pytest.MonkeyPatch.context() as patch:
            life = _Life(tmp_path / str(at), flush, at, patch)
        bodies = list(dict.fromkeys(life.bodies))  # one that was interrupted is there twice, if it was stored before
        assert bodies == [*(b"%d" % number for number in range(11)), b"x" * 1000]
        interrupted += life.interrupted
    assert interrupted >= calls - 7  # closing passes over what keeps it from noting the queues, which costs time only


@pytest.mark.parametrize("look", [verify, lambda root: plan_repair(root).report], ids=["verify", "plan"])
def test_it_is_no_damage(look: Callable[[Path], VerifyReport], tmp_path: Path) -> None:
    with stratalog.open(tmp_path, **SIZES, **QUIET) as store:
        for number in range(20):
            store.put("t", b"%d" % number, keys=f"k{number}")
    look(tmp_path)
    with Injector(0) as counted:
        look(tmp_path)
    ended = 0
    with unraisable_dropped():
        for number in random.Random(1).sample(counted.points, min(150, len(counted.points))):
            try:
                with Injector(number, raises=Late):
                    report = look(tmp_path)
            except Late:
                ended += 1
            else:
                assert report.ok
    assert ended > 75
