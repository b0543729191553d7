"""The texts of a tool that a search compares with a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dispatch.search.tokenizer import split_terms, strip_plural

if TYPE_CHECKING:
    from dispatch.catalog import ToolDescriptor

NAME_WEIGHT: Final = 3.0
"""Weight of a term of the name beside one of the description. On MetaTool's queries 2 to 4 are alike, and better than 1."""

ARGUMENT_WEIGHT: Final = 0.5
"""Weight of a term of an argument: arguments say how a tool is called, rarely what it is for."""

CONTEXT_WEIGHT: Final = 0.3
"""Weight of the context of a query beside the query: it decides between tools that fit the query alike. Not measured: no
public data has queries with a context."""

MAX_CHARS: Final = 4_000
"""Characters of each text that are indexed, which bounds the cost of one tool."""


def weigh_terms(tool: ToolDescriptor) -> dict[str, float]:
    """Return the weighted terms of a tool: of its name, description, tags, category and arguments."""
    arguments = " ".join(f"{argument.name} {argument.description}" for argument in tool.described_arguments)
    weights: dict[str, float] = {}
    for text, weight in (
        (tool.name, NAME_WEIGHT),
        (tool.description, 1.0),
        (" ".join((*tool.tags, tool.category or "")), 1.0),
        (arguments, ARGUMENT_WEIGHT),
    ):
        for term in list_terms(text):
            weights[term] = weights.get(term, 0.0) + weight
    return weights


def list_terms(text: str) -> list[str]:
    """Return the terms of a text as they are in the index."""
    return [strip_plural(term) for term in split_terms(text[:MAX_CHARS])]


def weigh_query(query: str, context: str = "") -> dict[str, float]:
    """Return the weights of the terms of a query: 1, and :data:`CONTEXT_WEIGHT` for those of its context alone."""
    return {**dict.fromkeys(list_terms(context), CONTEXT_WEIGHT), **dict.fromkeys(list_terms(query), 1.0)}


def describe_tool(tool: ToolDescriptor) -> str:
    """Return the text of a tool for an embedder: the words of its name, its description, its tags."""
    return " ".join((*split_terms(tool.name), tool.description[:MAX_CHARS], *tool.tags))


def describe_context(context: object) -> str:
    """Return the text of a context: a text, or the name and description of an action."""
    if isinstance(context, str):
        return context
    fields: Mapping[str, object] = context if isinstance(context, Mapping) else {}
    texts = [fields.get(key) or getattr(context, key, None) for key in ("name", "description")]
    return " ".join(text for text in texts if isinstance(text, str))
