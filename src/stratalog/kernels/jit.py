"""The decorators of this floor, and where compiled code is kept.

numba caches machine code beside the source and compiles again when *that file* changes. Our kernels inline functions of
other modules and constants of the layouts, so a change there (an upgrade, a checkout) would leave stale machine code in
use. Hence the cache directory carries a digest of every source that a kernel can draw from.
"""

import ctypes
import hashlib
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
import numpy.ma  # numba would import it with the first array that it is given, outside of `loading`
from numba import types
from numba.core.compiler_lock import global_compiler_lock

from stratalog.helpers import loading, no_fork_within
from stratalog.kernels.cache import distrust
from stratalog.kernels.halfcompiled import PartCompiler

_P = ParamSpec("_P")
_R = TypeVar("_R")

_config: Any = numba.config
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_KERNELS = Path(__file__).parent
_SOURCES = (_KERNELS, _KERNELS.parent / "layout")


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for directory in _SOURCES:
        for path in sorted(directory.glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _cache_directory() -> str:
    """`NUMBA_CACHE_DIR` if set, else beside the source if that is ours, else the user's cache directory.

    One that others may write to is never used (`cache.distrust`): the next is taken, empty means none.
    """
    name = f"kernels-{_sources_digest()}"
    places = [Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "stratalog")]
    if _config.CACHE_DIR:
        places.insert(0, Path(_config.CACHE_DIR))
    elif _KERNELS.stat().st_uid == os.getuid() and os.access(_KERNELS, os.W_OK):
        places.insert(0, _KERNELS / "__pycache__")
    reasons = []
    for place in places:
        directory = Path(os.path.realpath(place)) / name
        reason = distrust(directory)
        if not reason:
            break
        reasons.append(reason)
    if reasons:
        instead = "nowhere: each process compiles" if len(reasons) == len(places) else str(directory)
        warnings.warn(
            f"compiled kernels are not kept in {places[0]} ({'; '.join(reasons)}) but {instead}. Let NUMBA_CACHE_DIR "
            "name a directory that only you can write to",
            RuntimeWarning,
            stacklevel=1,
        )
    return "" if len(reasons) == len(places) else str(directory)


# Inside a zip there is no directory to digest, and nothing is kept.
CACHE_DIRECTORY = _cache_directory() if _KERNELS.is_dir() else ""


ZERO = cast(int, np.int64(0))
"""For an argument that is constant: numba compiles a function once more for each *literal* it is called with."""


def kernel(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function on first call, without the GIL, cached on disk.

    Kernels take int64 addresses and a few arrays: an address costs nothing to pass, an array about 0.2 µs. Division
    by zero is not checked and array indices are not either.
    """
    dispatcher = _cached(lambda cache: numba.njit(cache=cache, **_OPTIONS)(function))
    dispatcher._compile_for_args = loading(dispatcher._compile_for_args)  # asked for what is not compiled yet
    return cast(Callable[_P, _R], dispatcher)


def _cached(decorate: Callable[[bool], Any]) -> Any:
    """What numba makes, kept in our directory; not kept at all where nothing can be written."""
    if not CACHE_DIRECTORY:
        return decorate(False)
    kept = _config.CACHE_DIR
    try:
        _config.CACHE_DIR = CACHE_DIRECTORY  # numba reads it while decorating
        return decorate(True)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return decorate(False)
    finally:
        _config.CACHE_DIR = kept


def part(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function that only kernels call: without entry from Python and machine code, in half the time.

    It becomes part of each kernel's cached code and is not cached for itself. There it stands in place of each call:
    a call hands its result over in memory, and what both sides read is read twice (a fifth of a scan's time).
    """
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    options["pipeline_class"] = PartCompiler
    return cast(Callable[_P, _R], numba.njit(**options, **_OPTIONS)(function))


HOLDS_THE_GIL = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether a `Native` may be bound: it counts on the interpreter's lock for being atomic."""

_METHOD_FAST, _METHOD_KEYWORDS = 0x80, 0x02
no_fork_within(global_compiler_lock._lock)


class _MethodDef(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Native:
    """A compiled function that CPython calls like its own builtins: 0.1 µs a call, and the GIL held throughout.

    The function gets (self, args, number of positional args, names of the keyword args) as CPython's fastcall passes
    them: addresses of objects, borrowed. It returns the address of a new reference, or 0 with an exception set; see
    `stratalog.kernels.cpython` for what it may call. What `bind` gets becomes `self` and lives as long as the builtin.
    Compiled at the first `bind`, cached on disk; `stratalog.kernels.aside` says whether that would take seconds. Any
    thread may bind.
    """

    def __init__(self, function: Callable[[int, int, int, int], int]) -> None:
        self.function = function
        self._definition: _MethodDef | None = None

    @property
    def is_compiled(self) -> bool:
        return self._definition is not None

    def bind(self, owner: object) -> Callable[..., Any]:
        """The function as a builtin whose `self` is `owner`."""
        if not HOLDS_THE_GIL:
            raise NotImplementedError("needs a CPython with a global interpreter lock")
        definition = self._definition or loading(self._compiled)()
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        return cast(Callable[..., Any], make(ctypes.addressof(definition), owner, None))

    def _compiled(self) -> _MethodDef:
        if self._definition:  # by another thread
            return self._definition
        signature = types.int64(*[types.int64] * 4)
        code = _cached(lambda cache: numba.cfunc(signature, cache=cache, error_model="numpy")(self.function))
        name, text = self.function.__name__.strip("_").removesuffix("_entry"), self.function.__doc__ or ""
        definition = _MethodDef(name.encode(), code.address, _METHOD_FAST | _METHOD_KEYWORDS, text.encode())
        for needed in (definition, code):  # a builtin may outlive this module at the interpreter's end
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(needed))
        self._definition = definition
        return definition
