"""Whether a value is a schema of JSON Schema 2020-12 that refers to nothing outside of itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from dispatch.schemas.mistake import Mistake
from dispatch.schemas.references import DIALECT, find_outside_references
from dispatch.schemas.schema_compiler import InvalidSchemaError
from dispatch.schemas.validator import SchemaValidator
from dispatch.schemas.value_size import count_values

_COMPILED: Final = re.compile(rb'"\$|attern')
"""References and patterns: only a compilation finds faults in them. perf: it costs half of the check of a descriptor."""


def find_schema_problems(schema: Mapping[str, Any] | bool) -> tuple[Mistake, ...]:
    """Return the mistakes of ``schema``, by their place in it: keywords that the metaschema refuses, patterns that are no
    regular expression, and references to addresses or to places that do not exist. Nothing is fetched.

    Raises:
        ImportError: jsonschema-rs is not installed; the message names the extra ``schema``.
    """
    mistakes = _metaschema().find_mistakes(schema)
    if count_values(schema) is not None:
        mistakes += find_outside_references(schema)
    if mistakes or not _COMPILED.search(msgspec.json.encode(schema)):
        return mistakes
    try:
        SchemaValidator(schema)
    except InvalidSchemaError as error:
        return error.mistakes
    return ()


@cache
def _metaschema() -> SchemaValidator:
    return SchemaValidator({"$ref": DIALECT})
