"""The house rules that a program can check, over the syntax trees of everything under `src`.

Each rule is a function from modules to findings. Each has a snippet that breaks it and must be found, because a rule
that finds nothing may simply be blind.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

LAYERS = (
    {"errors"},
    {"helpers"},
    {"layout"},
    {"config", "kernels"},
    {"store"},
    {"tiered", "tools"},
    {"pipeline"},
    {"stratalog"},  # the package's own __init__: lazy re-exports
    {"cli", "pyspark_stratalog"},
    {"__main__"},
)
"""From low to high. A module may import from its own package and from lower rows, not from its neighbours in a row."""

ENVIRONMENT_READERS = {
    "stratalog.kernels.jit": "where compiled code may be kept",
    "stratalog.pipeline.java": "JAVA_HOME and PATH are where a Java is named",
    "stratalog.pipeline.session": "Spark takes its Java and Python from the environment",
}

CODE_POSITION_MAX = 8
"""Integers up to 8 are sizes of machine words and may stand in an address; positions in a record come from layout."""


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name (a package's `__init__` has the package's) and its text."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def layer(self) -> str:
        parts = self.name.split(".")
        return parts[1] if parts[0] == "stratalog" and len(parts) > 1 else parts[0]

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', '?')}"


@dataclass(frozen=True)
class Import:
    """`target` is the dotted module that is imported; `typing_only` stands under `if TYPE_CHECKING`."""

    target: str
    node: ast.stmt
    in_function: bool
    typing_only: bool


Modules = dict[str, Module]
Rule = Callable[[Modules], Iterator[str]]


def modules_under(source: Path) -> Modules:
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, path.read_text(), is_package)
    return modules


def snippets(**texts: str) -> Modules:
    """Modules from texts; `__` in a name stands for a dot, and `stratalog` alone is the package."""
    named = {name.replace("__", "."): text for name, text in texts.items()}
    return {name: Module(name, text, is_package=name == "stratalog") for name, text in named.items()}


def imports(module: Module, modules: Modules) -> Iterator[Import]:
    def walk(node: ast.AST, *, in_function: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import | ast.ImportFrom):
                for target in targets(child):
                    yield Import(target, child, in_function, typing_only)
            elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                for statement in child.body:
                    block = ast.Module([statement], [])
                    yield from walk(block, in_function=in_function, typing_only=True)
                yield from walk(ast.Module(child.orelse, []), in_function=in_function, typing_only=typing_only)
            else:
                inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, in_function=inside, typing_only=typing_only)

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        if node.level:
            package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
            stem = package[: len(package) - node.level + 1]
            base = ".".join([*stem, base] if base else stem)
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            # `from stratalog import store` names a layer even if that file is not there (yet).
            is_module = submodule in modules or (base == "stratalog" and _rank(Module(submodule, "")) is not None)
            yield submodule if is_module else base

    yield from walk(module.tree, in_function=False, typing_only=False)


def _rank(module: Module) -> int | None:
    return next((rank for rank, names in enumerate(LAYERS) if module.layer in names), None)


def _ours(name: str) -> bool:
    return name.split(".")[0] in {"stratalog", "pyspark_stratalog"}


def every_module_has_a_layer(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if _rank(module) is None:
            yield f"{module.name}: '{module.layer}' stands in no row of LAYERS"


def imports_point_down(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        for found in imports(module, modules):
            target = Module(found.target, "")
            if not _ours(found.target) or target.layer == module.layer:
                continue
            own, other = _rank(module), _rank(target)
            if module.name == "stratalog":
                if not (found.in_function or found.typing_only or target.layer == "errors"):
                    yield f"{module.at(found.node)} imports {found.target} at once; re-export it lazily"
            elif own is not None and (other is None or other >= own):
                yield f"{module.at(found.node)} imports {found.target}, which is not below '{module.layer}'"


def no_module_imports_itself_in_a_circle(modules: Modules) -> Iterator[str]:
    edges = {
        name: {
            found.target
            for found in imports(module, modules)
            # The package's lazy re-exports are resolved when somebody asks, never while a module loads.
            if found.target in modules and not found.typing_only and not (name == "stratalog" and found.in_function)
        }
        for name, module in modules.items()
    }
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> Iterator[str]:
        if name in path:
            yield "cycle: " + " → ".join([*path[path.index(name) :], name])
        elif name not in done:
            for target in sorted(edges[name]):
                yield from visit(target, [*path, name])
            done.add(name)

    for name in sorted(edges):
        yield from visit(name, [])


STRUCT_FORMAT = re.compile(r"[<>!=@](\d*[xcbB?hHiIlLqQnNefdspP])+")
BIG_ENDIAN_DTYPE = re.compile(r">[iuf]\d")


def bytes_are_declared_in_layout_only(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if module.layer == "layout":
            continue
        for found in imports(module, modules):
            if found.target == "struct":
                yield f"{module.at(found.node)} imports struct"
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in {"from_bytes", "to_bytes"}:
                yield f"{module.at(node)} uses {node.attr}"
            text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
            if STRUCT_FORMAT.fullmatch(text) or BIG_ENDIAN_DTYPE.fullmatch(text):
                yield f"{module.at(node)} spells a record's bytes: {text!r}"


def kernel_addresses_name_their_positions(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if module.layer != "kernels":
            continue
        for call in (node for node in ast.walk(module.tree) if isinstance(node, ast.Call)):
            name = _called(call).split(".")[-1]
            addresses = call.args[: 2 if name == "copy" else 1 if name.startswith(("load_", "store_")) else 0]
            for node in (node for address in addresses for node in ast.walk(address)):
                if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value > CODE_POSITION_MAX:
                    yield f"{module.at(node)} has the position {node.value} in {ast.unparse(call)}"


def only_the_command_line_prints(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if module.layer not in {"cli", "__main__"}:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and _called(node) == "print":
                    yield f"{module.at(node)} prints"


def only_the_edge_reads_the_environment(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        if module.layer in {"cli", "__main__"} or module.name in ENVIRONMENT_READERS:
            continue
        for node in ast.walk(module.tree):
            spelled = {ast.unparse(node)} if isinstance(node, ast.Attribute) else set()
            if isinstance(node, ast.ImportFrom) and node.module == "os":
                spelled = {f"os.{alias.name}" for alias in node.names}
            if spelled & {"os.environ", "os.environb", "os.getenv"}:
                yield f"{module.at(node)} reads the environment"


def stores_are_given_their_clock(modules: Modules) -> Iterator[str]:
    wall = {"time.time", "time.time_ns"}
    for module in modules.values():
        if module.layer not in {"store", "tiered"}:
            continue
        local = {
            alias.asname or alias.name: f"time.{alias.name}"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ImportFrom) and node.module == "time"
            for alias in node.names
        }
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                name = local.get(_called(node), _called(node))
                if name in wall or re.search(r"\b(datetime|date)\.(now|utcnow|today)$", name):
                    yield f"{module.at(node)} reads the wall clock ({name})"


def nothing_is_unpickled(modules: Modules) -> Iterator[str]:
    for module in modules.values():
        for found in imports(module, modules):
            if found.target.split(".")[0] in {"pickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}:
                yield f"{module.at(found.node)} imports {found.target}"


def nothing_takes_a_lock_of_its_class(modules: Modules) -> Iterator[str]:
    """In Python 3.11 `cached_property` has one for all objects, which a forked child inherits as it was: held."""
    for module in modules.values():
        for node in ast.walk(module.tree):
            names = [node.attr] if isinstance(node, ast.Attribute) else []
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else names
            if "cached_property" in names:
                yield f"{module.at(node)} uses cached_property"


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""


RULES: tuple[Rule, ...] = (
    every_module_has_a_layer,
    imports_point_down,
    no_module_imports_itself_in_a_circle,
    bytes_are_declared_in_layout_only,
    kernel_addresses_name_their_positions,
    only_the_command_line_prints,
    only_the_edge_reads_the_environment,
    stores_are_given_their_clock,
    nothing_is_unpickled,
    nothing_takes_a_lock_of_its_class,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_source_keeps(rule: Rule) -> None:
    modules = modules_under(SOURCE)
    assert "stratalog.errors" in modules, "the source is not where the rules look for it"
    findings = list(rule(modules))
    assert not findings, "\n".join(findings)


BROKEN: list[tuple[Rule, Modules]] = [
    (every_module_has_a_layer, snippets(stratalog__wherever="")),
    (imports_point_down, snippets(stratalog__store__log="from stratalog.tiered.queue import Queue")),
    (imports_point_down, snippets(stratalog__store__log="def f():\n    import stratalog.cli.main")),
    (imports_point_down, snippets(stratalog__store__log="from ..tiered import queue")),
    (imports_point_down, snippets(stratalog__store__log="from stratalog import pipeline")),
    (imports_point_down, snippets(stratalog__store__log="import stratalog")),
    (imports_point_down, snippets(stratalog__store__log="if TYPE_CHECKING:\n    from stratalog.tiered import Tier")),
    (imports_point_down, snippets(stratalog__kernels__scan="from stratalog.config.settings import Settings")),
    (imports_point_down, snippets(stratalog__config__settings="from stratalog.kernels import scan")),
    (imports_point_down, snippets(stratalog__errors="from stratalog.layout import record")),
    (imports_point_down, snippets(stratalog="from stratalog.store import MessageStore")),
    (
        no_module_imports_itself_in_a_circle,
        snippets(
            stratalog__store__a="from stratalog.store import b",
            stratalog__store__b="def f():\n    from stratalog.store.c import g",
            stratalog__store__c="import stratalog.store.a",
        ),
    ),
    (bytes_are_declared_in_layout_only, snippets(stratalog__store__log="import struct")),
    (bytes_are_declared_in_layout_only, snippets(stratalog__store__log="from struct import Struct")),
    (bytes_are_declared_in_layout_only, snippets(stratalog__store__log="size = int.from_bytes(data, 'big')")),
    (bytes_are_declared_in_layout_only, snippets(stratalog__store__log="data = size.to_bytes(4)")),
    (bytes_are_declared_in_layout_only, snippets(stratalog__store__log="unit = Struct('>qiq')")),
    (bytes_are_declared_in_layout_only, snippets(stratalog__store__log="kind = np.dtype('>i4')")),
    (kernel_addresses_name_their_positions, snippets(stratalog__kernels__scan="load_i32(base + 20)")),
    (kernel_addresses_name_their_positions, snippets(stratalog__kernels__scan="memory.store_i64(i * 28 + base, v)")),
    (kernel_addresses_name_their_positions, snippets(stratalog__kernels__scan="copy(target, source + 88, size)")),
    (only_the_command_line_prints, snippets(stratalog__store__log="print('flushed')")),
    (only_the_edge_reads_the_environment, snippets(stratalog__store__log="os.environ['HOME']")),
    (only_the_edge_reads_the_environment, snippets(stratalog__store__log="os.getenv('HOME')")),
    (only_the_edge_reads_the_environment, snippets(stratalog__store__log="from os import environ")),
    (stores_are_given_their_clock, snippets(stratalog__store__log="now = time.time()")),
    (stores_are_given_their_clock, snippets(stratalog__tiered__queue="from time import time_ns as now\nnow()")),
    (stores_are_given_their_clock, snippets(stratalog__tiered__queue="datetime.datetime.now(UTC)")),
    (nothing_is_unpickled, snippets(stratalog__store__log="def f():\n    import pickle")),
    (nothing_is_unpickled, snippets(stratalog__pipeline__source="from cloudpickle import loads")),
    (nothing_takes_a_lock_of_its_class, snippets(stratalog__store__log="from functools import cached_property")),
    (
        nothing_takes_a_lock_of_its_class,
        snippets(stratalog__store__log="import functools\nf = functools.cached_property(g)"),
    ),
]


@pytest.mark.parametrize(
    ("rule", "modules"), BROKEN, ids=[f"{i}-{rule.__name__}" for i, (rule, _) in enumerate(BROKEN)]
)
def test_what_breaks_a_rule_is_found(rule: Rule, modules: Modules) -> None:
    assert list(rule(modules))


def test_every_rule_is_seen_to_find_something() -> None:
    assert {rule for rule, _ in BROKEN} == set(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_what_is_allowed_is_not_found(rule: Rule) -> None:
    allowed = snippets(
        stratalog="from stratalog.errors import E\ndef __getattr__(name):\n    from stratalog.store import log",
        stratalog__layout__record="import struct\nUNIT = struct.Struct('>qiq')",
        stratalog__kernels__scan="from stratalog.layout import record\nload_i32(base + SIZE + 4)\ncopy(a, b, 64)",
        stratalog__store__log=(
            "import time\nfrom stratalog.kernels import scan\nfrom . import disk\n"
            "def f(clock=time.time_ns):\n    return time.monotonic() >= 0, 'a > b', '>='"
        ),
        stratalog__store__disk="if TYPE_CHECKING:\n    from stratalog.store.log import f",
        stratalog__cli__main="import os\nimport stratalog\nprint(os.environ['HOME'])",
        stratalog__pipeline__java="import os\nos.environ.get('JAVA_HOME')",
    )
    assert not list(rule(allowed))
