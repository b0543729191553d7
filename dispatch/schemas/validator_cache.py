"""Compiled validators of the schemas in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from dispatch.schemas.validator import SchemaValidator

MAX_VALIDATORS: Final = 1_024
"""Compiled schemas that are retained; one has some ten kilobytes. Beyond it the least recently used one is dropped."""


T = TypeVar("T")


class ValidatorCache(Generic[T]):
    """The compiled validator of the schema of each object: a descriptor, or a schema itself. An object is recognized by its
    identity, and must not be changed: descriptors are immutable. Compiling costs 25 to 80 µs.

    Args:
        schema_of: returns the schema of an object.
        limit: validators that are retained.
    """

    def __init__(self, schema_of: Callable[[T], Mapping[str, Any] | bool], limit: int = MAX_VALIDATORS) -> None:
        self._schema_of = schema_of
        self._limit = limit
        # Each object beside its validator: while it is referenced, its id belongs to no other one.
        self._entries: OrderedDict[int, tuple[T, SchemaValidator]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, owner: T) -> SchemaValidator:
        """Return the validator of the schema of ``owner``.

        Raises:
            ImportError, InvalidSchemaError: as :class:`SchemaValidator`.
        """
        key = id(owner)
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry[1]
        validator = SchemaValidator(self._schema_of(owner))
        self._entries[key] = (owner, validator)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
        return validator
