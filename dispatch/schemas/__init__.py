"""JSON Schema 2020-12: validates values and schemas, and fetches nothing. Needs jsonschema-rs (the extra ``schema``),
which is imported at its first use."""

from dispatch.schemas.mistake import Mistake
from dispatch.schemas.references import find_outside_references
from dispatch.schemas.schema_compiler import InvalidSchemaError
from dispatch.schemas.schema_problems import find_schema_problems
from dispatch.schemas.validator import SchemaValidator

__all__ = ["InvalidSchemaError", "Mistake", "SchemaValidator", "find_outside_references", "find_schema_problems"]
