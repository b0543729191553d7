"""Groups of tools: an MCP server, or a Python package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any, Protocol
from uuid import uuid4

from dispatch._internal.clock import yield_to_others
from dispatch._internal.user_code import read_text, type_name
from dispatch.toolkit.tool import Tool


class ToolkitWarning(UserWarning):
    """A part of a toolkit was ignored; the message says which one and why."""


class ToolGroupType(Enum):
    """The kinds of groups."""

    MCP = "MCP"
    PACKAGE = "PACKAGE"


@dataclass
class ToolGroupConfig:
    """Kind and name of a group.

    Attributes:
        name: of a package: its name for ``import``.
    """

    type: ToolGroupType
    name: str


class ToolConnection(Protocol):
    """A connection to the server of a group."""

    async def call(self, tool_name: str, **kwargs: Any) -> Any:
        """Call a tool of the group."""

    async def list_tools(self) -> list[Any]:
        """List the tools: objects with ``name`` and ``description``."""

    async def close(self) -> None:
        """Close the connection."""


class ToolGroup(ABC):
    """Tools that belong together.

    Args:
        tool_group_config: kind and name.
        id: id of its vertex; None: a new one.
    """

    def __init__(self, tool_group_config: ToolGroupConfig, *, id: str | None = None) -> None:
        self._id = str(uuid4()) if id is None else id
        self._tool_group_config = tool_group_config

    @property
    def name(self) -> str:
        """Name of the group."""
        return self._tool_group_config.name

    @property
    def config(self) -> ToolGroupConfig:
        """Kind, name and settings."""
        return self._tool_group_config

    def get_id(self) -> str:
        """Return the id of the vertex."""
        return self._id

    @abstractmethod
    async def list_tools(self) -> list[Tool]:
        """List the tools of the group."""


class ToolPackage(ToolGroup):
    """The public functions of a Python package and its subpackages as tools.

    Args:
        package: name of the package, or a configuration with that name.
        only: names of functions; empty: all public ones.
        id: id of its vertex; None: a new one.
    """

    def __init__(self, package: str | ToolGroupConfig, only: Collection[str] = (), *, id: str | None = None) -> None:
        config = ToolGroupConfig(ToolGroupType.PACKAGE, package) if isinstance(package, str) else package
        super().__init__(config, id=id)
        self._only = frozenset(only)

    async def list_tools(self) -> list[Tool]:
        """Import the package and list its functions: the name of a tool is that of its function, its description the
        docstring. A subpackage or module that cannot be imported is reported with a warning; the others are listed.

        Raises:
            ImportError: the package itself cannot be imported.
            ValueError: two functions have the same name, or one of ``only`` does not exist.
        """
        await yield_to_others()
        found: dict[str, Any] = {}
        for module in self._import_modules():
            for name, function in _list_functions(module):
                if self._only and name not in self._only:
                    continue
                if name in found:
                    places = f"{found[name].__module__} and {module.__name__}"
                    raise ValueError(
                        f"Two functions {name!r} in package {self.name!r}: in {places}. Rename one, or select with 'only'."
                    )
                found[name] = function
        if missing := self._only - found.keys():
            raise ValueError(f"Package {self.name!r} has no public function {sorted(missing)[0]!r}. Correct 'only'.")
        return [
            Tool(name, inspect.getdoc(function) or "", function, id=f"{function.__module__}.{name}")
            for name, function in found.items()
        ]

    def _import_modules(self) -> Iterator[ModuleType]:
        package = importlib.import_module(self.name)
        yield package
        names = [package.__name__]
        while names:
            parent = importlib.import_module(names.pop(0))
            for _finder, name, is_package in pkgutil.iter_modules(
                getattr(parent, "__path__", ()), f"{parent.__name__}."
            ):
                try:
                    yield importlib.import_module(name)
                except Exception as error:
                    reason = f"{type_name(error)}: {read_text(error)}"
                    text = f"Module {name!r} cannot be imported ({reason}); its tools are missing."
                    warnings.warn(text, ToolkitWarning, stacklevel=2)
                    continue
                if is_package:
                    names.append(name)


def _list_functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_"):
            yield name, value
