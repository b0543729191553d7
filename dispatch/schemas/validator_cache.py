"""Compiled validators of the schemas in use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

from dispatch.schemas.validator import SchemaValidator

MAX_VALIDATORS: Final = 1_024
"""Compiled schemas that are retained; one has some ten kilobytes. Beyond it the least recently used one is dropped."""


class ValidatorCache:
    """The compiled validator of each schema object. A schema is recognized by its identity, and must not be changed: those
    of descriptors are immutable. Compiling costs 25 to 80 µs."""

    def __init__(self, limit: int = MAX_VALIDATORS) -> None:
        self._limit = limit
        # Each schema beside its validator: while it is referenced, its id belongs to no other object.
        self._entries: OrderedDict[int, tuple[object, SchemaValidator]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, schema: Mapping[str, Any] | bool) -> SchemaValidator:
        """Return the validator of ``schema``.

        Raises:
            ImportError, InvalidSchemaError: as :class:`SchemaValidator`.
        """
        key = id(schema)
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry[1]
        validator = SchemaValidator(schema)
        self._entries[key] = (schema, validator)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
        return validator
