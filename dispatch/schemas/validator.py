"""Validates values against one JSON Schema, and names all mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from dispatch.schemas.engine import load_engine
from dispatch.schemas.evaluation_count import EvaluationCounter
from dispatch.schemas.mistake import Mistake
from dispatch.schemas.mistake_reader import MistakeReader
from dispatch.schemas.references import find_outside_references
from dispatch.schemas.schema_compiler import InvalidSchemaError, compile_schema
from dispatch.schemas.value_size import MAX_DEPTH, count_values

MAX_MISTAKES: Final = 100
"""Mistakes of one value that are described."""

MAX_EVALUATIONS: Final = 10_000
"""Evaluations of subschemas for which all mistakes of a value are described; beyond it one of them is. The engine describes
every alternative before it returns the first mistake (10 µs for each evaluation), and this runs on the event loop."""

MAX_EVALUATIONS_AT_ONE_PLACE: Final = 2_000
"""Evaluations at one place for which a mistake is described at all. A recursive schema with three alternatives evaluates
3**n subschemas at a depth of n: 2 s at a depth of 8."""

MAX_EXPANSION: Final = 10_000
"""Subschemas that references may combine at one place of a value. Twenty definitions, each with two references to the next
one, are a million; real schemas have some ten."""


class SchemaValidator:
    """A compiled JSON Schema 2020-12. ``format`` is an annotation, as the standard has it by default; nothing is fetched.

    Args:
        schema: of JSON values, mutable or not.

    Raises:
        ImportError: jsonschema-rs is not installed; the message names the extra ``schema``.
        InvalidSchemaError: no JSON Schema 2020-12, or a reference to an address outside of it.
    """

    __slots__ = ("_counter", "_reader", "_validator")

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        load_engine()
        if count_values(schema) is None:
            raise InvalidSchemaError((Mistake("", f"must have at most {MAX_DEPTH} nested objects and lists"),))
        if outside := find_outside_references(schema):
            raise InvalidSchemaError(outside)
        self._reader = MistakeReader(schema)
        self._counter = EvaluationCounter(schema)
        if self._counter.count_at_one_place() > MAX_EXPANSION:
            raise InvalidSchemaError((Mistake("", f"must combine at most {MAX_EXPANSION:,} subschemas by references"),))
        self._validator = compile_schema(schema)

    def find_mistakes(self, value: object) -> tuple[Mistake, ...]:
        """Return the mistakes of ``value``, at most :data:`MAX_MISTAKES`; empty when it is valid. Of a value that needs more
        than :data:`MAX_EVALUATIONS` only one mistake is returned."""
        if count_values(value) is None:
            return (Mistake("", f"must have at most {MAX_DEPTH} nested objects and lists"),)
        try:
            if self._validator.is_valid(value):
                return ()
            count = self._counter.count(value, MAX_EVALUATIONS)
            if count.most > MAX_EVALUATIONS_AT_ONE_PLACE:
                return (
                    Mistake("", "matches none of the nested alternatives of the schema; they are too many to describe"),
                )
            if count.total > MAX_EVALUATIONS:
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
