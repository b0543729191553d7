"""``dispatch.ToolPackage``: the functions of a package as a source of the catalogue."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator
from types import ModuleType
from typing import Any

from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.sources.base import OnChange
from dispatch.catalog.sources.folder_watch import run_in_thread
from dispatch.functions.decorator import find_declaration
from dispatch.functions.function_source import FunctionSource


class ToolPackage(FunctionSource):
    """The public functions of a package and its subpackages as tools: ``dispatch.ToolPackage("shop.tools")``.

    Public are the functions that a module defines, without those whose names begin with ``_``; with ``__all__`` those in it;
    in any case those decorated with :func:`dispatch.tool`. ``dispatcher.registry.refresh(id)`` finds new modules and
    functions; a module that is imported already is not imported again.

    Args:
        package: name of the package, or of a module.
        only: names of functions; empty: all public ones.
        id: unique among the sources of a dispatcher; default: ``package:PACKAGE``.
        namespace: prefix of the names of the tools: ``crm`` makes ``find`` into ``crm-find``.
        on_change: ``apply``, or ``hold``: a changed definition waits for its approval.

    A module that cannot be imported, and a function that cannot be a tool, are refused by name (``dispatcher.registry``, the
    event ``ItemRefused`` and the log); the others are tools.

    Raises:
        CatalogError: there is no such package.
    """

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
        if not top or importlib.util.find_spec(top) is None:
            raise CatalogError([_no_package(package, f"there is no module '{excerpt(top)}'")])

    async def _find_functions(self) -> tuple[Iterable[Callable[..., Any]], Iterable[Problem]]:
        # In a thread: the imports of a large package take seconds.
        return await run_in_thread(self._scan)

    def _scan(self) -> tuple[list[Callable[..., Any]], list[Problem]]:
        problems: list[Problem] = []
        functions: dict[int, tuple[str, Callable[..., Any]]] = {}
        for module in self._import_modules(problems):
            for name, function in list_functions(module):
                functions.setdefault(id(function), (name, function))
        names = {name for name, _ in functions.values()}
        for name in sorted(self.only - names):
            near = find_near_names(name, tuple(names), 1)
            fix = f"write '{near[0]}'" if near else "correct 'only', or define the function"
            problems.append(Problem(self.package, "only", f"the package has no public function '{excerpt(name)}'", fix))
        return [each for name, each in functions.values() if not self.only or name in self.only], problems

    def _import_modules(self, problems: list[Problem]) -> Iterator[ModuleType]:
        """Yield the package and all modules in it; report those that cannot be imported.

        Raises:
            CatalogError: the package itself cannot be imported.
        """
        importlib.invalidate_caches()  # modules that were added since the last scan
        try:
            package = importlib.import_module(self.package)
        except (Exception, SystemExit) as error:
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
                except (Exception, SystemExit) as error:
                    problem = f"the module cannot be imported ({describe_import_error(error)})"
                    fix = "correct the module, or install what it needs, and refresh the source"
                    problems.append(Problem(found.name, "", problem, fix))


def list_functions(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions of a module with their names; see :class:`ToolPackage`."""
    exported = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        if isinstance(value, type) or not callable(value):
            continue
        is_own = getattr(value, "__module__", None) == module.__name__
        if find_declaration(value) is not None:
            is_public = is_own or (exported is not None and name in exported)
        elif exported is not None:
            is_public = name in exported and inspect.isfunction(value)
        else:
            is_public = is_own and inspect.isfunction(value) and not name.startswith("_")
        if is_public:
            yield name, value


def describe_import_error(error: BaseException) -> str:
    """Return an error of an import in one line."""
    return excerpt(f"{type(error).__name__}: {' '.join(str(error).split())}", 200)


def _no_package(package: str, reason: str) -> Problem:
    return Problem(
        excerpt(package) or "package",
        "",
        f"the package cannot be imported ({reason})",
        "correct its name, or put its folder on sys.path",
    )
