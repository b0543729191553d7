"""Explanations of wrong arguments of the public interface: a misspelt keyword, a class in place of an instance, a value of
another type."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, ParamSpec, TypeVar

import msgspec

from dispatch._internal.suggestions import find_near_names, quote_excerpt

P = ParamSpec("P")
T = TypeVar("T")


class NamedFields(msgspec.StructMeta):
    """Metaclass of structs whose constructor explains an unknown keyword argument."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for key in kwargs:
            if key not in self.__struct_fields__:
                _reject_keyword(key, self.__struct_fields__)
        return super().__call__(*args, **kwargs)


def explain_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function, or the ``__init__`` of a class, so that it explains an unknown keyword argument.

    perf: it costs a call, so that it is for what is called once, not for each call of a tool.
    """
    parameters = inspect.signature(function).parameters.values()
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    known = [each.name for each in parameters if each.kind in kinds and each.name not in ("self", "cls")]

    @functools.wraps(function)
    def explained(*args: P.args, **kwargs: P.kwargs) -> T:
        for key in kwargs:
            if key not in known:
                _reject_keyword(key, known)
        return function(*args, **kwargs)

    return explained


def _reject_keyword(key: str, known: Iterable[str]) -> NoReturn:
    near = find_near_names(key, known, 1)
    fix = f"did you mean {quote_excerpt(near[0])}?" if near else f"the keywords are {', '.join(known)}."
    raise TypeError(f"Unexpected keyword argument {quote_excerpt(key)}: {fix}")


def check_instance(name: str, value: object, kind: type, fix: str) -> None:
    """Check that the argument ``name`` is a ``kind``.

    Args:
        fix: what to give, with an example.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {fix}, not {describe_type(value)}.")


def describe_type(value: object) -> str:
    """Return what a value is, for a message: ``None``, ``the class Joke``, ``the function tell`` or ``a dict``."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"
