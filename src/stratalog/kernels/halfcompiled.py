"""Parts of kernels stay what numba makes of them before LLVM: nobody runs a part by itself.

numba optimises every function that it compiles, twice, and makes machine code of it. Of a part, both are thrown
away: its code is linked into each kernel that calls it, and optimised there once more. So its library leaves them out.
"""

from typing import Any

from numba.core import codegen, compiler

_JITCodeLibrary: Any = codegen.JITCodeLibrary  # published without types
_Compiler: Any = compiler.Compiler


class _NoEngine:
    """The code generator, for a library that puts nothing into its engine."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, env_name: str, env: Any) -> None:
        """A part's environment is what errors with texts are made of: no part raises one."""


class PartLibrary(_JITCodeLibrary):  # type: ignore[misc]
    """Code that others link."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        return _NoEngine(self._codegen)


class PartCompiler(_Compiler):  # type: ignore[misc]
    """numba's compiler with such a library."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *given: Any) -> None:
        super().__init__(typingctx, targetctx, library, *given)
        if library is None:
            self.state.library = PartLibrary(targetctx.codegen(), "part")
