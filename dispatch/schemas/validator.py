"""Validates values against one JSON Schema, and names all mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from dispatch.schemas.engine import load_engine
from dispatch.schemas.mistake import Mistake
from dispatch.schemas.mistake_reader import MistakeReader
from dispatch.schemas.references import find_outside_references
from dispatch.schemas.schema_compiler import InvalidSchemaError, compile_schema
from dispatch.schemas.value_size import MAX_DEPTH, count_values

MAX_MISTAKES: Final = 100
"""Mistakes of one value that are described."""

MAX_VALUES_FOR_ALL: Final = 10_000
"""A value with more values in it has its first mistake described only: the engine describes all mistakes before it returns
the first (10 µs each, 1 s for 100,000 wrong items), and this runs on the event loop."""


class SchemaValidator:
    """A compiled JSON Schema 2020-12. ``format`` is an annotation, as the standard has it by default; nothing is fetched.

    Args:
        schema: of JSON values, mutable or not.

    Raises:
        ImportError: jsonschema-rs is not installed; the message names the extra ``schema``.
        InvalidSchemaError: no JSON Schema 2020-12, or a reference to an address outside of it.
    """

    __slots__ = ("_reader", "_validator")

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        load_engine()
        if count_values(schema) is None:
            raise InvalidSchemaError((Mistake("", f"must have at most {MAX_DEPTH} nested objects and lists"),))
        if outside := find_outside_references(schema):
            raise InvalidSchemaError(outside)
        self._reader = MistakeReader(schema)
        self._validator = compile_schema(schema)

    def find_mistakes(self, value: object) -> tuple[Mistake, ...]:
        """Return the mistakes of ``value``, at most :data:`MAX_MISTAKES`; empty when it is valid. Of a value with more than
        :data:`MAX_VALUES_FOR_ALL` values only the first mistake is returned."""
        size = count_values(value)
        if size is None:
            return (Mistake("", f"must have at most {MAX_DEPTH} nested objects and lists"),)
        try:
            if self._validator.is_valid(value):
                return ()
            if size > MAX_VALUES_FOR_ALL:
                return self._find_first_mistake(value)
            found = (
                mistake for error in self._validator.iter_errors(value) for mistake in self._reader.read(error, value)
            )
            return tuple(islice(dict.fromkeys(found), MAX_MISTAKES))
        except (ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
            return (Mistake("", f"must be a JSON value ({error})"),)

    def _find_first_mistake(self, value: object) -> tuple[Mistake, ...]:
        try:
            self._validator.validate(value)
        except load_engine().ValidationError as error:
            return tuple(self._reader.read(error, value))[:1]
        return ()
