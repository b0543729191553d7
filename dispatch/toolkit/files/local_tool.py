"""Tools whose implementation is imported at their first call."""

from __future__ import annotations

import importlib
from typing import Any

from dispatch._internal.user_code import read_text, type_name
from dispatch.toolkit.tool import Tool, ToolType


class LocalTool(Tool):
    """A tool of a toolkit file: ``name`` in the module ``module_path``, imported at the first call and not before.

    Args:
        name: a function; or a class without arguments of its constructor, whose attribute ``function`` is called, such as a
            subclass of :class:`dispatch.toolkit.Tool`.
        description: text by which the model chooses the tool.
        module_path: name of the module for ``import``.
    """

    def __init__(self, name: str, description: str, module_path: str, *, id: str) -> None:
        super().__init__(name, description, _ImportedFunction(name, module_path), ToolType.LOCAL_TOOL, id=id)
        self.module_path = module_path


def create_unbound_tool(name: str, description: str, id: str) -> Tool:
    """Return a tool of a dispatcher's catalogue, for a toolkit that follows no dispatcher yet."""

    def refuse(**_arguments: Any) -> Any:
        raise RuntimeError(
            f"The tool {name!r} was not executed: the toolkit does not follow a dispatcher. Call toolkit.follow(dispatcher)."
        )

    return Tool(name, description, refuse, ToolType.DISPATCH_TOOL, id=id)


class _ImportedFunction:
    """Imports at the first call. Returns what the function returns: a coroutine, if it is one."""

    def __init__(self, name: str, module_path: str) -> None:
        self._name = name
        self._module_path = module_path
        self._function: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            self._function = self._import()
        return self._function(*args, **kwargs)

    def _import(self) -> Any:
        where = f"{self._module_path}.{self._name}"
        try:
            found = getattr(importlib.import_module(self._module_path), self._name)
            return found().function if isinstance(found, type) else found
        except Exception as error:
            raise RuntimeError(
                f"The tool {self._name!r} was not executed: {where} cannot be loaded ({type_name(error)}: "
                f"{read_text(error)}). Correct 'module_path' or 'name' in the toolkit file, or the module."
            ) from error
