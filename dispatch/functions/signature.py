"""The parameters of a function: annotations, defaults, and which of them are injected."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from dispatch._internal.suggestions import excerpt
from dispatch._internal.user_code import read_text, type_name
from dispatch.catalog.errors import Report

REQUIRED: Final = inspect.Parameter.empty
"""The default of a parameter that has none."""

_VARIADIC: Final = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a function.

    Attributes:
        name: of the parameter.
        annotation: its type, with all names resolved; ``Any`` if it has none.
        default: :data:`REQUIRED`: none.
        by_position: it is passed by position only.
    """

    name: str
    annotation: Any
    default: Any = REQUIRED
    by_position: bool = False


def unwrap(function: Any) -> Any:
    """Return the function below partial objects and methods, and the ``__call__`` of an object."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif inspect.isroutine(function) or not callable(function):
            return function
        else:
            function = type(function).__call__  # always a function here: of a class, not of an object


def read_parameters(function: Callable[..., Any], report: Report) -> tuple[Parameter, ...]:
    """Return the parameters of ``function``, and report those that a tool cannot have."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        report.add_error("", "its parameters cannot be read", "write a function with annotations that calls it")
        return ()
    found = []
    below = inspect.unwrap(unwrap(function))
    for parameter in signature.parameters.values():
        name = parameter.name
        if parameter.kind in _VARIADIC:
            stars = _VARIADIC[parameter.kind]
            report.add_error(
                f"{stars}{name}",
                f"a model cannot know the arguments of '{stars}{name}'",
                "name each parameter, or use one parameter that is a list or a dict",
            )
            continue
        if name in ("self", "cls") and parameter.annotation is REQUIRED:
            report.add_error(name, "the function is a method without its object", "give the method of an object")
            continue
        annotation = parameter.annotation
        resolved = Any if annotation is REQUIRED else _resolve(annotation, below, name, report)
        by_position = parameter.kind is inspect.Parameter.POSITIONAL_ONLY
        found.append(Parameter(name, resolved, parameter.default, by_position))
    return tuple(found)


def _resolve(annotation: Any, function: Any, name: str, report: Report) -> Any:
    holder = types.SimpleNamespace(__annotations__={name: annotation})
    names = getattr(function, "__globals__", {})
    try:
        closure = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
        return typing.get_type_hints(holder, names, dict(closure), include_extras=True)[name]
    except Exception as error:  # the text of an annotation is any expression
        shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        report.add_error(
            name,
            f"the type '{excerpt(shown)}' cannot be resolved ({type_name(error)}: {excerpt(read_text(error))})",
            "import or define its names at the top of the module, outside of 'if TYPE_CHECKING'",
        )
        return Any


def find_injected_type(annotation: Any, is_provided: Callable[[Any], bool]) -> Any:
    """Return the provided type in an annotation; None: it has none. Of a union it is the first provided member."""
    return next((each for each in iterate_members(annotation) if is_provided(each)), None)


def iterate_members(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, or the annotation itself, without ``Annotated`` and without None."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from iterate_members(annotation.__origin__)
    elif origin in (typing.Union, types.UnionType):
        for member in typing.get_args(annotation):
            yield from iterate_members(member)
    elif annotation is not types.NoneType:
        yield annotation
