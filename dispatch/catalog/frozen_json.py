"""JSON values as immutable Python values, and their descriptions in messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.errors import Report

V = TypeVar("V")

MAX_DEPTH: Final = 32
"""Depth of nested objects and lists. Real descriptors with output schemas have less than ten levels."""

MAX_VALUES: Final = 20_000
"""Values in one descriptor. A YAML alias counts each time it is used, as it would be written out."""

_PLAIN_KEY: Final = re.compile(r"[\w$-]{1,60}")


def _reject_change(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise TypeError("values of a catalogue are immutable: load a new catalogue instead")


class FrozenDict(dict[str, V]):
    """An immutable ``dict``; a subclass of ``dict``, so that every JSON encoder accepts it. Two of them are equal if they
    are the same JSON: 1, 1.0 and ``true`` differ, as they do for a tool that receives them."""

    __slots__ = ()

    __setitem__ = _reject_change
    __delitem__ = _reject_change
    __ior__ = _reject_change
    clear = _reject_change
    pop = _reject_change
    popitem = _reject_change
    setdefault = _reject_change
    update = _reject_change

    def __eq__(self, other: object) -> bool:
        is_equal = dict.__eq__(self, other)
        return _is_same_json(self, other) if is_equal is True and isinstance(other, FrozenDict) else is_equal

    def __ne__(self, other: object) -> bool:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is NotImplemented else not is_equal

    def __hash__(self) -> int:  # type: ignore[override]  # None in dict, which is mutable
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenDict[V]:
        return self

    def __deepcopy__(self, _memo: object) -> FrozenDict[V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


def _is_same_json(one: Any, other: Any) -> bool:
    """Return whether equal values have equal types, at every depth."""
    if one is other:
        return True
    if isinstance(one, dict):
        return isinstance(other, dict) and all(_is_same_json(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return isinstance(other, tuple) and all(map(_is_same_json, one, other))
    return type(one) is type(other)


def freeze_json(value: object, report: Report) -> Any:
    """Return ``value`` as immutable JSON: objects as :class:`FrozenDict`, lists as tuples.

    A value that JSON cannot express (another type, a key that is not a text, a number that is not finite or has more than 64
    bits, half of a surrogate pair, more than :data:`MAX_DEPTH` or :data:`MAX_VALUES`) is reported and read as ``None``.
    """
    return _Freezer(report).freeze(value, "", 0)


class _Freezer:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._remaining = MAX_VALUES

    def freeze(self, value: object, path: str, depth: int) -> Any:
        self._remaining -= 1
        if self._remaining < 0:  # reported once: the loops over lists and objects stop
            self._report.add_error(
                path, f"more than {MAX_VALUES:,} values in one descriptor", "keep data out of the descriptor"
            )
            return None
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, int):
            if -(2**63) <= value < 2**64:
                return int(value)
            return self._report_error(path, "the number has more than 64 bits", "write it as a text")
        if isinstance(value, float):
            if math.isfinite(value):
                return float(value)
            return self._report_error(path, f"{value} is not a JSON number", "write a finite number, or remove the key")
        if isinstance(value, (Mapping, list, tuple)):
            if depth >= MAX_DEPTH:
                return self._report_error(
                    path, f"more than {MAX_DEPTH} nested objects or lists", "make the value flatter"
                )
            return self._mapping(value, path, depth) if isinstance(value, Mapping) else self._list(value, path, depth)
        return self._report_error(
            path, f"a {type(value).__name__} is not a JSON value", "write it as a text, in quotes"
        )

    def _list(self, values: Iterable[object], path: str, depth: int) -> tuple[Any, ...]:
        result = []
        for index, value in enumerate(values):
            result.append(self.freeze(value, f"{path}[{index}]", depth + 1))
            if self._remaining < 0:
                break
        return tuple(result)

    def _mapping(self, value: Mapping[Any, object], path: str, depth: int) -> FrozenDict[Any]:
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                self._report_error(
                    path, f"the key {excerpt(repr(key))} is {describe_kind(key)}, not a text", "put the key in quotes"
                )
            elif (text := self._text(key, path)) is not None:
                result[text] = self.freeze(inner, join_path(path, text), depth + 1)
            if self._remaining < 0:
                break
        return FrozenDict(result)

    def _text(self, value: str, path: str) -> str | None:
        try:
            value.encode()
        except UnicodeEncodeError:
            self._report_error(path, "half of a surrogate pair in a text", "write both halves, or the character")
            return None
        return str(value)

    def _report_error(self, path: str, problem: str, fix: str) -> None:
        self._report.add_error(path, problem, fix)


def thaw(value: Any) -> Any:
    """Return a mutable copy of a frozen value: plain ``dict`` and ``list``."""
    if isinstance(value, dict):
        return {key: thaw(inner) for key, inner in value.items()}
    return [thaw(inner) for inner in value] if isinstance(value, tuple) else value


def join_path(path: str, key: str) -> str:
    """Return the path of ``key`` in the object at ``path``: ``policy.retry``; an unusual key is in brackets."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{excerpt(repr(key), 62)}]"
    return f"{path}.{key}" if path else key


def describe_kind(value: object) -> str:
    """Return the kind of a JSON value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"


def describe_value(value: object) -> str:
    """Return a short value itself (``'str'``, ``7``), or the kind of a long one."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return excerpt(repr(value), 62)
    return describe_kind(value)
