"""Compiling beside the work: nobody waits for a `Native`.

As long as the natives are not compiled on this machine, the functions in Python that stand behind them serve. The first
one that misses them starts a process of lowest priority that compiles everything into the cache on disk; it says
nothing, ends with the process that started it (the next goes on where it was), and one at a time runs on a machine.
When it is done, `ready` says so, here and in every later process.
"""

import atexit
import contextlib
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import llvmlite.binding
import numba

from stratalog.helpers import start
from stratalog.kernels import jit
from stratalog.kernels.cache import DIRECTORY_MODE

_COMPLETE, _BUSY = "complete", "compiling"
_CPU = llvmlite.binding.get_host_cpu_name()
"""Asked for at import: llvmlite takes a lock in Python, which an exception from a signal handler leaves held."""
_PROGRAM = "import sys; sys.path[:] = {path!r}; from stratalog.kernels.warm import compile_aside; compile_aside()"
_state: dict[str, bool] = {}
_starting = threading.RLock()
_started: set[str] = set()
"""Cache directories for which nothing more is to be started."""


def ready() -> bool:
    """Whether natives can be bound without waiting for a compiler. As long as they cannot, a file is looked for."""
    if not jit.HOLDS_THE_GIL:
        return False
    if not _state.get(jit.CACHE_DIRECTORY):
        _state[jit.CACHE_DIRECTORY] = is_complete()
    return _state[jit.CACHE_DIRECTORY]


def ready_or_started() -> bool:
    """`ready`; where they are not, a process has been started that compiles them, if one can be."""
    if ready():
        return True
    if jit.HOLDS_THE_GIL:
        _start()
    return False


def is_complete() -> bool:
    """Whether everything has been compiled on this machine, for this interpreter."""
    return bool(jit.CACHE_DIRECTORY) and os.path.exists(_file(_COMPLETE))


def set_complete() -> None:
    """Everything is compiled: in this process, and on disk if there is a place for it."""
    _state[jit.CACHE_DIRECTORY] = True
    with contextlib.suppress(OSError):
        if jit.CACHE_DIRECTORY:
            _file(_COMPLETE).touch(0o600)


def lock() -> io.FileIO | None:
    """Become the machine's one process that compiles aside, as long as the result is kept; None when another one is."""
    import fcntl

    Path(jit.CACHE_DIRECTORY).mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    file = io.FileIO(str(_file(_BUSY)), "r+", opener=_open_busy)  # closed with its last reference, come what may
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _open_busy(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _file(what: str) -> Path:
    """numba's cache, too, is one for each of these."""
    own = (sys.implementation.cache_tag, numba.__version__, _CPU)
    return Path(jit.CACHE_DIRECTORY) / "-".join((what, *map(str, own)))


def _start() -> None:
    """Start the process, once, unless there is one.

    Whatever prevents that, the work goes on without natives until `warm.compile_all`.
    """
    with _starting:
        if jit.CACHE_DIRECTORY in _started:
            return
        if jit.CACHE_DIRECTORY and sys.executable and not getattr(sys, "frozen", False):
            with contextlib.suppress(OSError, ImportError):
                held = lock()
                if held is None:
                    return  # look again: the other's parent may end before it is done
                held.close()  # the child takes it
                command = [sys.executable, "-c", _PROGRAM.format(path=sys.path)]
                null = subprocess.DEVNULL
                atexit.register(_end, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null))
        _started.add(jit.CACHE_DIRECTORY)


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.wait()


def end_with_parent() -> None:
    """Let this process end as soon as nobody holds the other end of its standard input."""

    def follow() -> None:
        sys.stdin.buffer.read()
        os._exit(1)

    start(threading.Thread(target=follow, daemon=True))
