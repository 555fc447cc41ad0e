"""Compiling beside the work: who starts it, and what happens where it cannot run."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numba
import pytest

from crash.interrupts import Injector, Interrupted
from stratalog.kernels import aside, jit

pytestmark = pytest.mark.skipif(not jit.HOLDS_THE_GIL, reason="natives need the interpreter's lock")


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is compiled, and a process that has started no other yet."""
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", str(tmp_path / "kernels"))
    monkeypatch.setattr("atexit.register", lambda *_: None)
    return tmp_path / "kernels"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    commands: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    return commands


def test_the_first_that_misses_natives_starts_one_process(cold: Path, started: list[Any]) -> None:
    assert [aside.ready_or_started() for _ in range(3)] == [False] * 3
    assert len(started) == 1


def test_natives_are_ready_as_soon_as_another_process_has_compiled_them(cold: Path, started: list[Any]) -> None:
    assert not aside.ready_or_started()
    code = "from stratalog.kernels import aside, jit; jit.CACHE_DIRECTORY = {!r}; aside.set_complete()"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code.format(str(cold))]) == 0
    assert aside.ready_or_started()
    assert aside.ready()


def test_one_process_compiles_on_a_machine(cold: Path, started: list[Any]) -> None:
    held = aside.lock()
    assert held is not None
    assert aside.lock() is None
    assert not aside.ready_or_started()
    assert not started


@pytest.mark.parametrize("failure", [OSError, PermissionError, BlockingIOError])
def test_a_process_that_cannot_be_started_fails_nothing(
    cold: Path, monkeypatch: pytest.MonkeyPatch, failure: type[OSError]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert not aside.ready_or_started()
    assert not aside.ready_or_started()


def test_a_cache_that_cannot_be_written_fails_nothing(
    tmp_path: Path, cold: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", str(tmp_path / "file" / "kernels"))
    assert not aside.ready_or_started()
    assert not started
    aside.set_complete()  # `compile_all` in this process
    assert aside.ready()


def test_a_zip_file_keeps_nothing_and_starts_nothing(cold: Path, started: list[Any], monkeypatch: Any) -> None:
    monkeypatch.setattr(jit, "CACHE_DIRECTORY", "")
    monkeypatch.setattr(aside, "_state", {})
    assert not aside.ready_or_started()
    assert not started


def test_kernels_are_compiled_without_a_cache_where_there_is_no_place_for_one() -> None:
    def decorate(cache: bool) -> str:
        if cache:
            raise RuntimeError("cannot cache function 'f': no locator available for file 'f.py'")
        return "compiled"

    assert jit._cached(decorate) == "compiled"


def test_the_process_ends_with_the_one_that_started_it() -> None:
    code = (
        "import time; from stratalog.kernels import aside; aside.end_with_parent(); print(flush=True); time.sleep(99)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        assert child.stdout
        child.stdout.readline()
        child.stdin.close()
        assert child.wait(timeout=60) == 1


def test_a_start_that_a_signal_handler_interrupts_leaves_no_lock_and_is_made_up_for(
    cold: Path, started: list[Any]
) -> None:
    for number in range(1, 1000):
        aside._started.clear()
        started.clear()
        injector = Injector(number)
        with contextlib.suppress(Interrupted), injector:
            aside.ready_or_started()
        held = aside.lock()
        assert held is not None, injector.point
        held.close()
        assert not aside._starting._is_owned(), injector.point  # type: ignore[attr-defined]
        aside.ready_or_started()
        assert started, injector.point
        if injector.point is None:
            break
    assert number > 20


def test_no_signal_handler_runs_in_the_compiler() -> None:
    """It runs in the main thread, and the compiler does not."""

    def twice(value: int) -> int:
        return 2 * value

    files = set()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        files.add(frame.f_code.co_filename)

    compiled = jit.kernel(twice)
    sys.setprofile(note)
    try:
        assert compiled(21) == 42
    finally:
        sys.setprofile(None)
    assert not [file for file in files if file.endswith(("compiler_lock.py", "ffi.py"))]
    with pytest.raises(numba.TypingError):
        compiled(object())  # type: ignore[arg-type]
