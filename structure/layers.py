"""The layers of ``dispatch`` (docs/architecture.md) and the imports between its modules.

The table is used twice: ``tests/test_imports.py`` enforces it, and ``python -m structure`` reports on it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
"""The checkout."""
DISPATCH = ROOT / "dispatch"

LAYERS: dict[int, tuple[str, ...]] = {
    1: (
        "errors",
        "result",
        "_internal",
        "policy",
        "messaging.wire",
        "permissions.permission_set",
        "schemas",
        "telemetry",
    ),
    2: ("transports", "protocol", "resilience", "balancing", "catalog", "permissions"),
    3: ("messaging",),
    4: ("routing", "serving"),
    5: ("calls",),
    6: (
        *("dispatcher", "functions", "toolkit", "trustgraph", "calling", "results", "search"),
        *("telemetry.dispatcher_observer", "telemetry.catalog_telemetry", "telemetry.server_observer"),
        *("telemetry.metrics", "telemetry.tracing", "telemetry.alerting"),
    ),
    7: ("adapters", "mcp", "cli", "devtools", "testing", "__main__", ""),
}
"""A package of one line may import those of lower layers, and within layers 1, 6 and 7 each other."""
MAY_MEET = (1, 6, 7)
LAYER_OF = {package: layer for layer, packages in LAYERS.items() for package in packages}

FACTORIES = {"telemetry.settings": "telemetry", "dispatcher.dispatcher": "mcp", "toolkit.mcp_service": "mcp"}
"""Modules that import an implementation, from the package beside them, when it is asked for:
``Telemetry.observe_dispatcher`` and ``observe_server``, ``Dispatcher.mcp_server``, ``McpService.create_connection``."""


class Import(NamedTuple):
    """``module`` imports ``target``, both named below ``dispatch`` (the package itself is ``""``)."""

    module: str
    target: str
    is_type: bool
    """For type checkers alone (``if TYPE_CHECKING:``), wherever the module imports it."""

    @property
    def is_factory(self) -> bool:
        """An implementation that one of :data:`FACTORIES` imports when it is asked for it."""
        package = package_of(self.target)
        return package.split(".")[0] == FACTORIES.get(self.module) and package != package_of(self.module)


class ImportedName(NamedTuple):
    """One name of one import statement: ``from base import name``, or ``import base`` (``name`` is empty)."""

    base: str
    name: str
    is_type: bool

    @property
    def whole(self) -> str:
        """The name with its package: it may be a module or something in one."""
        return f"{self.base}.{self.name}" if self.name else self.base


def find_modules(root: Path = DISPATCH) -> dict[str, Path]:
    """Every module, by its name below ``root``; the package itself is ``""``."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def read_names(source: str, module: str, *, is_package: bool = False) -> Iterator[ImportedName]:
    """Every name that ``source`` imports, anywhere in it; relative imports are resolved."""
    here = ["dispatch", *(part for part in module.split(".") if part)]
    tree = ast.parse(source)
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        is_type = id(node) in guarded
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield ImportedName(alias.name, "", is_type)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + is_package] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield ImportedName(base, alias.name, is_type)


def read_imports(source: str, module: str, *, is_package: bool = False) -> set[str]:
    """Whole names of everything that ``source`` imports, with the modules that they are imported from."""
    names = list(read_names(source, module, is_package=is_package))
    return {name.base for name in names} | {name.whole for name in names}


def find_imports(modules: Mapping[str, Path]) -> list[Import]:
    """Imports between ``modules``. ``from dispatch.package import module`` imports the module, and not the package."""
    found = []
    for module, path in modules.items():
        types: dict[str, bool] = {}
        for name in read_names(path.read_text("utf-8"), module, is_package=path.name == "__init__.py"):
            if name.base.split(".")[0] != "dispatch":
                continue
            below = [whole.removeprefix("dispatch").removeprefix(".") for whole in (name.whole, name.base)]
            target = next((each for each in below if each in modules), module)
            if target != module:
                types[target] = types.get(target, True) and name.is_type
        found += [Import(module, target, is_type) for target, is_type in types.items()]
    return found


def package_of(module: str) -> str:
    """The entry of :data:`LAYERS` that a module belongs to."""
    parts = module.split(".")
    return next((name for name in (".".join(parts[:2]), parts[0]) if name in LAYER_OF), f"no layer has {module!r}")


def layers_used(modules: Iterable[str]) -> dict[int, list[str]]:
    """Each layer that has modules, with its packages."""
    used: dict[int, list[str]] = {}
    for package in sorted({package_of(module) for module in modules}):
        used.setdefault(LAYER_OF[package], []).append(package or "dispatch")
    return dict(sorted(used.items()))


def find_cycles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan's algorithm), each sorted."""
    graph: dict[str, list[str]] = {}
    for start, end in edges:
        graph.setdefault(start, []).append(end)
        graph.setdefault(end, [])
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for target in graph[node]:
            if target not in order:
                visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in stack:
                lowest[node] = min(lowest[node], order[target])
        if lowest[node] == order[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in order:
            visit(node)
    return sorted(found)


def find_module_cycles(imports: Iterable[Import]) -> list[list[str]]:
    """Cycles between modules."""
    return find_cycles((each.module or "dispatch", each.target or "dispatch") for each in imports)


def find_package_cycles(imports: Iterable[Import]) -> list[list[str]]:
    """Cycles between the entries of :data:`LAYERS`, and below each of them between the modules and sub-packages of any one
    package, a sub-package with all its modules as one node. An import of a package that contains the importer is left out.
    """
    levels: dict[str, set[tuple[str, str]]] = {}
    for each in imports:
        importer, imported = each.module.split("."), each.target.split(".")
        ends = (package_of(each.module), package_of(each.target))
        depth = 0
        while depth < min(len(importer), len(imported)) and importer[depth] == imported[depth]:
            depth += 1
        if ends[0] != ends[1]:
            levels.setdefault("", set()).add((ends[0] or "dispatch", ends[1] or "dispatch"))
        elif depth < min(len(importer), len(imported)):
            above = ".".join(importer[:depth])
            levels.setdefault(above, set()).add((".".join(importer[: depth + 1]), ".".join(imported[: depth + 1])))
    return sorted(cycle for edges in levels.values() for cycle in find_cycles(edges))
