"""JSON values as immutable Python values, and words for them in messages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.errors import Report

V = TypeVar("V")

MAX_DEPTH: Final = 32
"""Objects and lists inside one another. Real descriptors, output schemas included, stay below ten."""

MAX_VALUES: Final = 20_000
"""Values in one descriptor, counted as they would be written out: a YAML alias counts each time it is used."""

_PLAIN_KEY: Final = re.compile(r"[\w-]{1,60}")


def _refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise TypeError("a catalogue's values cannot be changed: load a new catalogue instead")


class FrozenDict(dict[str, V]):
    """A ``dict`` that cannot be changed. A real ``dict`` all the same, so that every JSON encoder takes it."""

    __slots__ = ()

    __setitem__ = _refuse
    __delitem__ = _refuse
    __ior__ = _refuse
    clear = _refuse
    pop = _refuse
    popitem = _refuse
    setdefault = _refuse
    update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]  # dict says None here: it can change, and this cannot
        return hash(frozenset(self.items()))

    def __copy__(self) -> FrozenDict[V]:
        return self

    def __deepcopy__(self, _memo: object) -> FrozenDict[V]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)


def frozen(value: object, report: Report) -> Any:
    """``value`` as immutable JSON: objects as :class:`FrozenDict`, lists as tuples.

    Whatever JSON cannot say (another type, a key that is no text, a number that is not finite or beyond 64 bits, half
    of a surrogate pair, more than :data:`MAX_DEPTH` or :data:`MAX_VALUES`) is reported and read as ``None``.
    """
    return _Freezer(report).freeze(value, "", 0)


class _Freezer:
    def __init__(self, report: Report) -> None:
        self._report = report
        self._left = MAX_VALUES

    def freeze(self, value: object, path: str, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:  # reached once: whoever is reading a list or an object stops there
            self._report.error(
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
            return self._refuse(path, "the number has more than 64 bits", "write it as a text")
        if isinstance(value, float):
            if math.isfinite(value):
                return float(value)
            return self._refuse(path, f"{value} is no JSON number", "write a finite number, or leave the key out")
        if isinstance(value, (Mapping, list, tuple)):
            if depth >= MAX_DEPTH:
                return self._refuse(
                    path, f"more than {MAX_DEPTH} objects or lists inside one another", "make the value flatter"
                )
            return self._mapping(value, path, depth) if isinstance(value, Mapping) else self._list(value, path, depth)
        return self._refuse(path, f"a {type(value).__name__} is no JSON value", "write it as a text, in quotes")

    def _list(self, values: Iterable[object], path: str, depth: int) -> tuple[Any, ...]:
        result = []
        for index, value in enumerate(values):
            result.append(self.freeze(value, f"{path}[{index}]", depth + 1))
            if self._left < 0:
                break
        return tuple(result)

    def _mapping(self, value: Mapping[Any, object], path: str, depth: int) -> FrozenDict[Any]:
        result: dict[str, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str):
                self._refuse(path, f"the key {excerpt(repr(key))} is {kind(key)}, not a text", "put the key in quotes")
            elif (text := self._text(key, path)) is not None:
                result[text] = self.freeze(inner, join(path, text), depth + 1)
            if self._left < 0:
                break
        return FrozenDict(result)

    def _text(self, value: str, path: str) -> str | None:
        try:
            value.encode()
        except UnicodeEncodeError:
            self._refuse(path, "half of a surrogate pair in a text", "write both halves, or the character")
            return None
        return str(value)

    def _refuse(self, path: str, problem: str, fix: str) -> None:
        self._report.error(path, problem, fix)


def thawed(value: Any) -> Any:
    """A changeable copy of a frozen value: plain ``dict`` and ``list``."""
    if isinstance(value, dict):
        return {key: thawed(inner) for key, inner in value.items()}
    return [thawed(inner) for inner in value] if isinstance(value, tuple) else value


def join(path: str, key: str) -> str:
    """The path of ``key`` inside the object at ``path``: ``policy.retry``; an odd key stands in brackets."""
    if not _PLAIN_KEY.fullmatch(key):
        return f"{path}[{excerpt(repr(key), 62)}]"
    return f"{path}.{key}" if path else key


def kind(value: object) -> str:
    """What kind of JSON value it is, with its article."""
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


def shown(value: object) -> str:
    """A short value itself (``'str'``, ``7``), a long one by its kind."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return excerpt(repr(value), 62)
    return kind(value)
