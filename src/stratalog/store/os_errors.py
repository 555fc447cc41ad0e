"""What the operating system refuses, as an error of ours: which class, and what to do."""

import contextlib
import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from stratalog.errors import DiskFull, NotAStore, StoreFailed, StoreUnavailable, StratalogError

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
TOO_MANY_OPEN = frozenset({errno.EMFILE, errno.ENFILE})
SHORTAGES = TOO_MANY_OPEN | {errno.ENOMEM}
"""Nothing was written, and the same call works once there is more."""
_WRONG_PATH = frozenset({errno.ENOENT, errno.ELOOP, errno.ENAMETOOLONG})


def is_of_system(error: OSError) -> bool:
    """Whether a call to the system failed. A signal handler may raise an `OSError`, too: a `TimeoutError` has no
    number."""
    return error.errno is not None


def open_files_max() -> int:
    """How many files this process may have open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit if limit != resource.RLIM_INFINITY else 1 << 30


def next_step(error: OSError | MemoryError) -> str:
    """What helps."""
    number = error.errno if isinstance(error, OSError) else errno.ENOMEM
    if number == errno.EMFILE:
        limit = open_files_max()
        return f"close some files, or allow the process more than {limit:,} (ulimit -n); a store takes up to 200"
    if number in _WRONG_PATH:
        return "check the path"
    if isinstance(error, OSError) and number == errno.ENOTDIR:
        file = in_the_way(Path(file_of(error)))
        return f"{file} is where a directory belongs: move it out of the store, or check the path"
    return {
        errno.ENFILE: "too many files are open on this machine: end some processes, or raise fs.file-max",
        errno.ENOMEM: "free memory, or raise the limits (ulimit -v, vm.max_map_count)",
        errno.EACCES: "give this user access, or run as the user who owns the files",
        errno.EPERM: "give this user access, or run as the user who owns the files",
        errno.EROFS: "mount the file system for writing",
        errno.ENOSPC: "free space there",
        errno.EFBIG: "allow the process larger files (ulimit -f)",
        errno.EDQUOT: "free space there",
        errno.EISDIR: "a directory is where a file belongs: move it out of the store, or check the path",
        errno.EIO: "look into the kernel's log (dmesg). To save what can be read, copy the files to another disk "
        "(ddrescue) and run `stratalog repair COPY`",
    }.get(number or 0, "remove the cause")


def reason(error: OSError | MemoryError) -> str:
    """What the system says, and of which file."""
    if isinstance(error, MemoryError):
        return "memory is short"
    place = file_of(error)
    return f"{error.strerror or error}{place and ': '}{place}"


def file_of(error: OSError) -> str:
    """The file that the system speaks of, as far as it says; of a rename the new name."""
    return str(error.filename2 or error.filename or "")


def in_the_way(path: Path) -> Path:
    """The file where this path goes on as if there were a directory."""
    return next(above for above in (path, *path.parents) if above.exists())


def refusal(what: str, error: OSError | MemoryError, effect: str = "Nothing was changed") -> StratalogError:
    """The error for a store that could not be opened or read, and nothing was changed. Raises what a signal handler
    raised."""
    if isinstance(error, OSError) and not is_of_system(error):
        raise error
    number = error.errno if isinstance(error, OSError) else errno.ENOMEM
    if number in FULL:
        return DiskFull(f"{what}: {reason(error)}; {next_step(error)}. Reading needs none")
    if number in _WRONG_PATH:
        return NotAStore(f"{what}: {reason(error)}; {next_step(error)}")
    return StoreUnavailable(f"{what}: {reason(error)}; {next_step(error)}. {effect}")


def kernels_refusal(error: BaseException) -> StratalogError | None:
    """The error for compiled kernels that cannot be read or written, None for what has nothing to do with them."""
    jit = sys.modules.get("stratalog.kernels.jit")  # whoever has no kernel yet does not wait for numba here
    if not (isinstance(error, OSError) and jit and jit.CACHE_DIRECTORY):
        return None
    if not file_of(error).startswith(jit.CACHE_DIRECTORY):
        return None
    what = "the compiled kernels cannot be read or written"
    if error.errno in SHORTAGES:
        return refusal(what, error)
    return StoreUnavailable(
        f"{what}: {reason(error)}. Free space there, give this user access to their directory, remove it, or set "
        "NUMBA_CACHE_DIR to another one"
    )


def cause_of(error: BaseException) -> OSError | MemoryError | None:
    """What the system said, of an error that was raised from it; not what the caller was just handling."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError | MemoryError):
        cause = cause.__cause__
    return cause


@contextlib.contextmanager
def refusing(what: str, effect: str = "Nothing was changed") -> Iterator[None]:
    """Turn what the system refuses into an error of ours that says `what` was not done, why, and what is so now.

    That a store says so which a tool has open in a directory of its own is as if the system had said it."""
    try:
        yield
    except KeyboardInterrupt as error:
        error.__notes__ = [effect]  # the outermost knows best
        raise
    except (OSError, MemoryError, DiskFull, StoreFailed, StoreUnavailable) as error:
        cause = cause_of(error)
        if cause is None or (isinstance(cause, OSError) and not is_of_system(cause)):
            raise
        number = cause.errno if isinstance(cause, OSError) else errno.ENOMEM
        if number in FULL:
            raise DiskFull(f"{what}: {reason(cause)}; {next_step(cause)}. {effect}") from error
        raise StoreUnavailable(f"{what}: {reason(cause)}; {next_step(cause)}. {effect}") from error
    except RuntimeError as error:
        if is_no_thread(error):
            raise thread_refusal(what) from error
        raise


def loads(what: str) -> Callable[[Callable[_Given, _Result]], Callable[_Given, _Result]]:
    """For a function whose first call loads modules or compiled kernels: where the process has no descriptor or memory
    left for that, or cannot read them, it raises `StoreUnavailable`, which says `what` was not done. Nothing was
    written then."""

    def decorated(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
        @wraps(function)
        def called(*args: _Given.args, **named: _Given.kwargs) -> _Result:
            try:
                return function(*args, **named)
            except (ImportError, OSError) as error:
                if told := kernels_refusal(error):
                    raise told from error
                if shortage := shortage_of(error):
                    raise refusal(what, shortage, "Nothing was written") from error
                raise
            except RuntimeError as error:
                if is_no_thread(error):
                    raise thread_refusal(what) from error
                raise

        return called

    return decorated


def shortage_of(error: ImportError | OSError) -> OSError | None:
    """What the process has too little of, when a module or a compiled kernel could not be loaded for that."""
    if isinstance(error, ImportError):  # of a shared library
        return OSError(errno.EMFILE, str(error)) if os.strerror(errno.EMFILE) in str(error) else None
    return error if error.errno in SHORTAGES else None


def is_no_thread(error: BaseException) -> bool:
    """Whether it says that the system gives this process no further thread; Python has no class of its own for it."""
    return isinstance(error, RuntimeError) and "start new thread" in str(error)


def thread_refusal(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{what}: no thread can be started; free memory, or raise the limits (ulimit -v, ulimit -u). Nothing was lost"
    )
