"""Compiles schemas with jsonschema-rs, which is never allowed to fetch anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatch.schemas.engine import load_engine
from dispatch.schemas.mistake import Mistake, join_mistakes
from dispatch.schemas.mistake_reader import MistakeReader

if TYPE_CHECKING:
    from jsonschema_rs import Validator

BACKTRACK_LIMIT: Final = 100_000
"""Steps of a pattern with look-around or back-references (a few milliseconds); other patterns run in linear time."""


class InvalidSchemaError(ValueError):
    """No schema of JSON Schema 2020-12, or one that refers to an address.

    Attributes:
        mistakes: all faults of the schema; their paths are places in the schema.
    """

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__(f"The schema is not valid: {join_mistakes(mistakes)}. Correct the schema.")
        self.mistakes = mistakes

    def __reduce__(self) -> tuple[type[InvalidSchemaError], tuple[tuple[Mistake, ...]]]:
        return type(self), (self.mistakes,)


def compile_schema(schema: Mapping[str, Any] | bool) -> Validator:
    """Return the compiled validator of ``schema``, which may consist of immutable JSON values.

    Raises:
        ImportError: jsonschema-rs is not installed; the message names the extra ``schema``.
        InvalidSchemaError: no schema of JSON Schema 2020-12, or a reference to a place that is not in it.
    """
    engine = load_engine()
    # The schema is passed as text: the engine does not know the immutable values of a catalogue. Without `offline` it
    # requests addresses; `jsonschema_rs.meta` has no such switch, and requests the address in "$schema" (0.60.3).
    try:
        validator: Validator = engine.Draft202012Validator(
            msgspec.json.encode(schema).decode(),
            offline=True,
            pattern_options=engine.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT),
        )
    except engine.ValidationError as error:
        raise InvalidSchemaError(tuple(MistakeReader({}).read(error, schema))) from None
    return validator
