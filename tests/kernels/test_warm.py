"""Compiling everything at once, and where it is kept."""

import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher

import stratalog.kernels
from stratalog.kernels.jit import CACHE_DIRECTORY, Native
from stratalog.kernels.warm import compile_all


def kernels() -> dict[str, Dispatcher]:
    """Every function that can be called from Python, `part`s left out."""
    found = {}
    for info in pkgutil.iter_modules(stratalog.kernels.__path__):
        module = importlib.import_module(f"stratalog.kernels.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, Dispatcher) and not value.targetoptions.get("no_cpython_wrapper"):
                found[f"{value.__module__}.{name}"] = value
    return found


CALLED_BY_KERNELS_ONLY = {"crc32_by_table", "queue_hash", "java_hash", "hash_column"}
"""Compiled into others; the tests call them by themselves."""


def test_every_kernel_that_the_library_calls_is_compiled_by_the_call() -> None:
    compile_all()
    missing = {name.rpartition(".")[2] for name, function in kernels().items() if not function.signatures}
    assert missing <= CALLED_BY_KERNELS_ONLY
    assert len(kernels()) > 10


def test_every_native_function_is_compiled_by_the_call() -> None:
    compile_all()
    natives = [
        value
        for info in pkgutil.iter_modules(stratalog.kernels.__path__)
        for value in vars(importlib.import_module(f"stratalog.kernels.{info.name}")).values()
        if isinstance(value, Native)
    ]
    assert all(native.is_compiled for native in natives)
    assert len(natives) >= 2


def test_compiled_code_is_kept_under_a_digest_of_all_sources() -> None:
    """Else a kernel that inlines a changed function or layout constant would stay as it was."""
    assert Path(CACHE_DIRECTORY).name.startswith("kernels-")
    assert list(Path(CACHE_DIRECTORY).rglob("*.nbi"))


def test_the_digest_follows_helpers_and_layouts(tmp_path: Path) -> None:
    package = Path(stratalog.kernels.__file__).parents[1]
    copy = tmp_path / "stratalog"
    for folder in ("", "layout", "kernels"):
        (copy / folder).mkdir()
        for source in (package / folder).glob("*.py"):
            (copy / folder / source.name).write_bytes(source.read_bytes())

    def directory() -> str:
        code = "from stratalog.kernels.jit import CACHE_DIRECTORY; print(CACHE_DIRECTORY)"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.check_output([sys.executable, "-c", code], env=environment, text=True, cwd=tmp_path).strip()

    before = directory()
    assert before.startswith(str(copy / "kernels" / "__pycache__"))
    for changed in (copy / "kernels" / "record.py", copy / "layout" / "message.py"):
        changed.write_text(changed.read_text() + "\n# changed\n")
        assert directory() != before
        before = directory()


def test_importing_the_package_compiles_and_imports_nothing() -> None:
    code = "import sys, stratalog.kernels; print('numba' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
