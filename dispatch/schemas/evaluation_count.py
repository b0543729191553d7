"""How many subschemas are evaluated at the places of a value: with nested alternatives they multiply."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from dispatch.schemas.mistake import split_pointer

_CAP: Final = 10**9
"""Larger counts are not distinguished."""
_SAME_PLACE: Final = frozenset({"not", "if", "then", "else"})
_SAME_PLACE_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef"})

_Schema = Mapping[str, Any]


class EvaluationCount(NamedTuple):
    """Evaluations of subschemas while one value is validated without an early end.

    Attributes:
        total: over all places of the value, or a number above the given limit.
        most: at one place.
    """

    total: int
    most: int


class EvaluationCounter:
    """Counts evaluations of one schema. The cost of a count grows with the places of the value and the schemas there, and
    not with the result.

    Args:
        schema: JSON values; references that are neither a JSON Pointer nor an anchor count as the whole schema.
    """

    def __init__(self, schema: _Schema | bool) -> None:
        self._root = schema
        self._anchors: dict[str, _Schema] | None = None
        self._nodes: dict[int, _Schema] = {}
        self._applied: dict[int, Counter[int]] = {}

    def count_at_one_place(self) -> int:
        """Return the largest number of evaluations at one place, for any of the schemas in this one."""
        return max((_sum(self._apply(node)) for node in _iterate_objects(self._root) if "$ref" in node), default=1)

    def count(self, value: object, limit: int) -> EvaluationCount:
        """Count the evaluations for ``value``; stop when there are more than ``limit``."""
        total = most = 0
        places: list[tuple[object, Counter[int]]] = [(value, self._enter(self._root, 1))]
        while places and total <= limit:
            here, entered = places.pop()
            applied: Counter[int] = Counter()
            for node, times in entered.items():
                for inner, each in self._apply(self._nodes[node]).items():
                    applied[inner] = min(applied[inner] + times * each, _CAP)
            at_place = _sum(applied)
            total += max(at_place, 1)
            most = max(most, at_place)
            places += islice(self._enter_below(here, applied), limit)
        return EvaluationCount(total, most)

    def _enter(self, schema: object, times: int) -> Counter[int]:
        if not isinstance(schema, Mapping):
            return Counter()
        self._nodes[id(schema)] = schema
        return Counter({id(schema): times})

    def _apply(self, node: _Schema) -> Counter[int]:
        """Return the schemas that are evaluated at the place of ``node``, with their numbers."""
        key = id(node)
        known = self._applied.get(key)
        if known is not None:
            return known
        self._nodes[key] = node
        self._applied[key] = Counter()  # a cycle at one place ends here, as in the engine
        applied = Counter({key: 1})
        for inner in self._same_place(node):
            for each, times in self._apply(inner).items():
                applied[each] = min(applied[each] + times, _CAP)
        self._applied[key] = applied
        return applied

    def _same_place(self, node: _Schema) -> Iterator[_Schema]:
        for keyword, value in node.items():
            inner: tuple[object, ...] = ()
            if keyword in _SAME_PLACE:
                inner = (value,)
            elif keyword in _SAME_PLACE_LISTS and isinstance(value, (list, tuple)):
                inner = tuple(value)
            elif keyword == "dependentSchemas" and isinstance(value, Mapping):
                inner = tuple(value.values())
            elif keyword in _REFERENCES and isinstance(value, str):
                inner = (self._resolve(value),)
            yield from (each for each in inner if isinstance(each, Mapping))

    def _enter_below(self, value: object, applied: Counter[int]) -> Iterator[tuple[object, Counter[int]]]:
        """Yield each child of ``value`` with the schemas that it is validated by, if there are any."""
        if isinstance(value, Mapping):
            for name, child in value.items():
                if (entered := self._enter_child(applied, name)) is not None:
                    yield child, entered
        elif isinstance(value, (list, tuple)):
            prefix = max((len(self._nodes[node].get("prefixItems", ())) for node in applied), default=0)
            for index, child in enumerate(value[:prefix]):
                if (entered := self._enter_child(applied, index)) is not None:
                    yield child, entered
            # All further items have the same schemas.
            if (entered := self._enter_child(applied, prefix)) is not None:
                yield from ((child, entered) for child in value[prefix:])

    def _enter_child(self, applied: Counter[int], key: str | int) -> Counter[int] | None:
        entered: Counter[int] = Counter()
        is_forbidden = False
        for node, times in applied.items():
            for schema in _schemas_of_child(self._nodes[node], key):
                entered.update(self._enter(schema, times))
                is_forbidden = is_forbidden or schema is False  # a mistake of its own
        return entered if entered or is_forbidden else None

    def _resolve(self, reference: str) -> object:
        _, _, fragment = reference.partition("#")
        if not fragment.startswith("/"):
            if self._anchors is None:
                self._anchors = {}
                for node in _iterate_objects(self._root):
                    for keyword in ("$anchor", "$dynamicAnchor"):
                        self._anchors.setdefault(str(node.get(keyword)), node)
            return self._anchors.get(fragment, self._root)
        found: Any = self._root
        for key in split_pointer(fragment):
            try:
                found = found[int(key)] if isinstance(found, (list, tuple)) else found[key]
            except (KeyError, IndexError, ValueError, TypeError):
                return self._root  # relative to another "$id", or percent-encoded
        return found


def _schemas_of_child(node: _Schema, key: str | int) -> Iterator[object]:
    if isinstance(key, int):
        first = node.get("prefixItems")
        if isinstance(first, (list, tuple)) and key < len(first):
            yield first[key]
        else:
            yield node.get("items")
        yield node.get("contains")
        yield node.get("unevaluatedItems")
        return
    properties = node.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        yield properties[key]
    else:
        yield node.get("additionalProperties")
    patterns = node.get("patternProperties")
    if isinstance(patterns, Mapping):
        yield from patterns.values()
    yield node.get("unevaluatedProperties")


def _iterate_objects(value: object) -> Iterator[_Schema]:
    """Yield every object in ``value``, schemas or not."""
    remaining = [value]
    while remaining:
        each = remaining.pop()
        if isinstance(each, Mapping):
            yield each
            remaining += each.values()
        elif isinstance(each, (list, tuple)):
            remaining += each


def _sum(counts: Counter[int]) -> int:
    return min(sum(counts.values()), _CAP)
