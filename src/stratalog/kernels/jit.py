"""The decorators of this floor, and where compiled code is kept.

numba caches machine code beside the source and compiles again when *that file* changes. Our kernels inline functions of
other modules and constants of the layouts, so a change there (an upgrade, a checkout) would leave stale machine code in
use. Hence the cache directory carries a digest of every source that a kernel can draw from.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np

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
    """`NUMBA_CACHE_DIR` if set, else beside the source, else (read-only installation) the user's cache directory."""
    if _config.CACHE_DIR:
        base = Path(_config.CACHE_DIR)
    elif os.access(_KERNELS, os.W_OK):
        base = _KERNELS / "__pycache__"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stratalog"
    return str(base / f"kernels-{_sources_digest()}")


# Inside a zip there is no directory to digest; numba then keys its cache by the whole archive.
CACHE_DIRECTORY = _cache_directory() if _KERNELS.is_dir() else ""


ZERO = cast(int, np.int64(0))
"""For an argument that is constant: numba compiles a function once more for each *literal* it is called with."""


def kernel(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function on first call, without the GIL, cached on disk.

    Kernels take int64 addresses and a few arrays: an address costs nothing to pass, an array about 0.2 µs. Division
    by zero is not checked and array indices are not either.
    """
    kept = _config.CACHE_DIR
    _config.CACHE_DIR = CACHE_DIRECTORY or kept  # numba reads it while decorating
    try:
        return cast(Callable[_P, _R], numba.njit(cache=True, **_OPTIONS)(function))
    finally:
        _config.CACHE_DIR = kept


def part(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function that only kernels call: without an entry from Python it takes a third less time to compile.

    It becomes part of each kernel's cached code and is not cached for itself.
    """
    entries: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(Callable[_P, _R], numba.njit(**entries, **_OPTIONS)(function))
