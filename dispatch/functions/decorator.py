"""The decorator ``@dispatch.tool``: what a function declares as a tool."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, overload

import msgspec

from dispatch._internal.arguments import NamedFields

F = TypeVar("F", bound=Callable[..., Any])

_ATTRIBUTE: Final = "__dispatch_tool__"


class Declaration(msgspec.Struct, metaclass=NamedFields, frozen=True):
    """What a function declares as a tool; see :func:`tool`. The values are checked when a source delivers the tool."""

    name: str | None = None
    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None
    permissions: str | tuple[str, ...] = ()
    tags: str | tuple[str, ...] = ()
    category: str | None = None
    version: str | None = None
    policy: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the declared keys of the tool's descriptor, besides its name."""
        keys = {
            "read-only": self.read_only or None,
            "idempotent": self.idempotent or None,
            "destructive": self.destructive,
            "permissions": self.permissions or None,
            "tags": self.tags or None,
            "category": self.category,
            "version": self.version,
            "policy": self.policy,
        }
        return {key: value for key, value in keys.items() if value is not None}


NO_DECLARATION: Final = Declaration()


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    name: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool | None = None,
    permissions: Iterable[str] = (),
    tags: Iterable[str] = (),
    category: str | None = None,
    version: str | None = None,
    policy: Mapping[str, Any] | None = None,
) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **declared: Any) -> Any:
    """Declare a function as a tool: ``@dispatch.tool(read_only=True)``. The function itself is returned unchanged.

    Its docstring is the description for models, its signature the schema of the arguments. A function without the decorator
    is a tool as well, with the defaults.

    Args:
        function: the function, of ``@dispatch.tool`` without parentheses.
        name: name for models; None: the name of the function.
        read_only, idempotent, destructive, permissions, tags, category, version: as in a tool's descriptor
            (:class:`dispatch.catalog.ToolDescriptor`).
        policy: policy keys as in a descriptor, for example ``{"timeout": 5, "bulkhead": 4}``.

    Raises:
        TypeError: an unknown keyword, or an object that cannot be declared.
    """
    for key in ("permissions", "tags"):
        texts = declared.get(key, ())
        # A single text stays as it is: the reader of descriptors reports it, instead of its letters.
        declared[key] = texts if isinstance(texts, str) else tuple(texts)
    declaration = Declaration(**declared)
    if function is None:
        return lambda decorated: _declare(decorated, declaration)
    return _declare(function, declaration)


def _declare(function: Any, declaration: Declaration) -> Any:
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"{function!r:.80} cannot be a tool. Fix: decorate a function, or an object with __call__.")
    try:
        setattr(function, _ATTRIBUTE, declaration)
    except AttributeError:
        raise TypeError(
            f"{function!r:.80} cannot be declared as a tool. Fix: decorate the function itself, inside its class if it is a "
            "method; or write a function that calls it."
        ) from None
    return function


def find_declaration(function: object) -> Declaration | None:
    """Return what ``function`` declares; None: it is not decorated."""
    declaration = getattr(function, _ATTRIBUTE, None)
    return declaration if isinstance(declaration, Declaration) else None


def is_declared(value: object) -> bool:
    """Return whether ``value`` is decorated, without computing any attribute of it."""
    return not issubclass(type(value), type) and isinstance(
        inspect.getattr_static(value, _ATTRIBUTE, None), Declaration
    )
