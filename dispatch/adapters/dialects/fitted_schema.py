"""Fit the schema of a tool's arguments to a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from dispatch.adapters.dialects.gemini import fit_gemini
from dispatch.adapters.dialects.object_schema import fit_object
from dispatch.adapters.dialects.openai_strict import build_strict
from dispatch.schemas.references import SCHEMA_KEYWORDS, SCHEMA_LIST_KEYWORDS, SCHEMA_OBJECT_KEYWORDS


class Style(StrEnum):
    """The API for which tools are described."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    MCP = "mcp"


class FittedSchema(NamedTuple):
    """A schema in a dialect.

    Attributes:
        schema: of the arguments, an object.
        is_strict: OpenAI's strict mode: the model's arguments always match.
        widened: ``path: what the dialect cannot express``, for each place where the schema accepts more than the original,
            or offers less.
    """

    schema: dict[str, Any]
    is_strict: bool = False
    widened: tuple[str, ...] = ()


def fit_schema(schema: Mapping[str, Any], style: Style) -> FittedSchema:
    """Return ``schema`` as ``style`` accepts it.

    OpenAI's strict mode is used where it loses nothing: with optional arguments, free-form objects or keywords that it does
    not have, the schema is sent without it.
    """
    widened: list[str] = []
    if style is Style.GEMINI:
        return FittedSchema(fit_gemini(schema, widened), False, tuple(widened))
    fitted = fit_object(schema, widened, may_combine=style is Style.MCP)
    if style in (Style.OPENAI_CHAT, Style.OPENAI_RESPONSES):
        # An object without "properties" has any.
        strict = build_strict(fitted) if "properties" in schema and not widened else None
        if strict is not None:
            return FittedSchema(strict, True)
        fitted = add_items(fitted)
    return FittedSchema(fitted, False, tuple(widened))


def add_items(schema: Any) -> Any:
    """Return a schema whose arrays all have ``items``: OpenAI refuses one without."""
    if not isinstance(schema, Mapping):
        return schema
    added = dict(schema)
    for key, value in schema.items():
        if key in SCHEMA_KEYWORDS:
            added[key] = add_items(value)
        elif key in SCHEMA_LIST_KEYWORDS and isinstance(value, list):
            added[key] = [add_items(each) for each in value]
        elif key in SCHEMA_OBJECT_KEYWORDS and isinstance(value, Mapping):
            added[key] = {name: add_items(each) for name, each in value.items()}
    kinds = schema.get("type")
    if kinds == "array" or (isinstance(kinds, list) and "array" in kinds):
        added.setdefault("items", {})
    return added
