"""``dispatch.ToolPackage``: the functions of a package as a source of the catalogue."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from dispatch._internal.arguments import explain_keywords
from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch._internal.user_code import read_text, type_name
from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.sources.background import run_in_thread
from dispatch.catalog.sources.base import OnChange
from dispatch.functions.decorator import find_declaration, is_declared
from dispatch.functions.function_source import FunctionSource


class ToolPackage(FunctionSource):
    """The public functions of a package and its subpackages as tools: ``dispatch.ToolPackage("shop.tools")``.

    Public are the functions that a module defines, without those whose names begin with ``_``; with ``__all__`` those in it;
    in any case those decorated with :func:`dispatch.tool`. ``dispatcher.registry.refresh(id)`` finds new modules and
    functions; a module that is imported already is not imported again.

    Args:
        package: name of the package, or of a module.
        only: names of functions or of their tools; empty: all public ones.
        id: unique among the sources of a dispatcher; default: ``package:PACKAGE``.
        namespace: prefix of the names of the tools: ``crm`` makes ``find`` into ``crm-find``.
        on_change: ``apply``, or ``hold``: a changed definition waits for its approval.

    A module that cannot be imported, and a function that cannot be a tool, are refused by name (``dispatcher.registry``, the
    event ``ItemRefused`` and the log); the others are tools.

    Raises:
        CatalogError: there is no such package.
    """

    @explain_keywords
    def __init__(
        self,
        package: str,
        *,
        only: Collection[str] = (),
        id: str | None = None,
        namespace: str = "",
        on_change: OnChange = "apply",
    ) -> None:
        super().__init__(f"package:{package}" if id is None else id, namespace, on_change)
        self.package = package
        self.only = frozenset({only} if isinstance(only, str) else only)
        top = package.split(".")[0]
        if not top or (top not in sys.modules and importlib.util.find_spec(top) is None):
            raise CatalogError([_no_package(package, f"there is no module '{excerpt(top)}'")])

    async def _find_functions(self) -> tuple[Iterable[Callable[..., Any]], Iterable[Problem]]:
        # In a thread: the imports of a large package take seconds.
        return await run_in_thread(self._scan)

    def _scan(self) -> tuple[list[Callable[..., Any]], list[Problem]]:
        problems: list[Problem] = []
        functions: dict[int, tuple[frozenset[str], Callable[..., Any]]] = {}
        for module in self._import_modules(problems):
            for name, function in list_functions(module):
                declaration = find_declaration(function)
                names = {name} if declaration is None or declaration.name is None else {name, declaration.name}
                functions.setdefault(id(function), (frozenset(names), function))
        known = frozenset[str]().union(*(names for names, _ in functions.values()))
        for name in sorted(self.only - known):
            near = find_near_names(name, sorted(known), 1)
            fix = f"write '{near[0]}'" if near else "correct 'only', or define the function"
            problems.append(Problem(self.package, "only", f"the package has no public function '{excerpt(name)}'", fix))
        selected = [each for names, each in functions.values() if not self.only or names & self.only]
        return selected, problems

    def _import_modules(self, problems: list[Problem]) -> Iterator[ModuleType]:
        """Yield the package and all modules in it; report those that cannot be imported.

        Raises:
            CatalogError: the package itself cannot be imported.
        """
        importlib.invalidate_caches()  # modules that were added since the last scan
        try:
            package = importlib.import_module(self.package)
        except BaseException as error:
            raise CatalogError([_no_package(self.package, describe_import_error(error))]) from error
        waiting = [package]
        while waiting:
            module = waiting.pop(0)
            yield module
            for found in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{module.__name__}."):
                if found.name.rpartition(".")[2].startswith("_"):
                    continue
                try:
                    waiting.append(importlib.import_module(found.name))
                except BaseException as error:
                    problem = f"the module cannot be imported ({describe_import_error(error)})"
                    fix = "correct the module, or install what it needs, and refresh the source"
                    problems.append(Problem(found.name, "", problem, fix))


def list_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions of a module with their names; see :class:`ToolPackage`."""
    exported = getattr(module, "__all__", None)
    for name, value in tuple(vars(module).items()):
        # No attribute of a value is computed: a proxy in a module may raise any exception.
        is_function = issubclass(type(value), FunctionType)
        has_declaration = is_declared(value)
        if not is_function and not has_declaration:
            continue
        is_own = not is_function or value.__module__ == module.__name__
        is_public = not name.startswith("_") if exported is None else name in exported
        if (is_own and (has_declaration or is_public)) or (exported is not None and is_public):
            yield name, value


def describe_import_error(error: BaseException) -> str:
    """Return an error of an import in one line."""
    return excerpt(f"{type_name(error)}: {' '.join(read_text(error).split())}", 200)


def _no_package(package: str, reason: str) -> Problem:
    return Problem(
        excerpt(package) or "package",
        "",
        f"the package cannot be imported ({reason})",
        "correct its name, or put its folder on sys.path",
    )
