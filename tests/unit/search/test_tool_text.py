"""The texts of tools that searches compare with queries."""

from __future__ import annotations

import pytest

from dispatch.catalog import ToolDescriptor
from dispatch.catalog.descriptors import Argument
from dispatch.search.index import (
    ARGUMENT_WEIGHT,
    CONTEXT_WEIGHT,
    MAX_CHARS,
    NAME_WEIGHT,
    describe_context,
    describe_tool,
    list_terms,
    strip_plural,
    weigh_query,
    weigh_terms,
)

TOOL = ToolDescriptor(
    "getWeather",
    "Forecasts for cities.",
    "service",
    arguments=(Argument("city", "string", "Name of the city"),),
    category="Travel",
    tags=("climate", "rain"),
)


def test_every_field_has_its_weight() -> None:
    assert weigh_terms(TOOL) == {
        **dict.fromkeys(("get", "weather", "getweather"), NAME_WEIGHT),
        **dict.fromkeys(("forecast", "for", "climate", "rain", "travel"), 1.0),
        "city": 1.0 + 2 * ARGUMENT_WEIGHT,
        **dict.fromkeys(("name", "of", "the"), ARGUMENT_WEIGHT),
    }


def test_arguments_of_an_input_schema_are_indexed() -> None:
    schema = {"type": "object", "properties": {"postcode": {"type": "string", "description": "where"}}}
    assert {"postcode", "where"} <= weigh_terms(ToolDescriptor("a", "b", "service", input_schema=schema)).keys()


def test_the_text_for_embedders() -> None:
    assert describe_tool(TOOL) == "get weather getweather Forecasts for cities. climate rain"


def test_texts_are_bounded() -> None:
    tool = ToolDescriptor("a", "b " * MAX_CHARS, "service")
    assert weigh_terms(tool)["b"] == MAX_CHARS / 2
    assert len(describe_tool(tool)) <= MAX_CHARS + 2
    assert len(list_terms("c " * MAX_CHARS)) == MAX_CHARS / 2


@pytest.mark.parametrize(
    ("term", "singular"),
    [
        *(("papers", "paper"), ("cities", "city"), ("gas", "gas"), ("class", "class"), ("status", "status")),
        *(("analysis", "analysis"), ("ties", "tie"), ("naïves", "naïves"), ("s", "s"), ("", "")),
    ],
)
def test_plurals(term: str, singular: str) -> None:
    assert strip_plural(term) == singular


def test_a_context_weighs_less_than_the_query() -> None:
    assert weigh_query("Book a trip", "trips to cities") == {
        **dict.fromkeys(("book", "a", "trip"), 1.0),
        **dict.fromkeys(("to", "city"), CONTEXT_WEIGHT),
    }


class Action:
    name = "book"
    description = "Book a journey."


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ("plan a trip", "plan a trip"),
        (Action(), "book Book a journey."),
        ({"name": "book", "description": None}, "book"),
        (None, ""),
        (7, ""),
    ],
)
def test_contexts(context: object, text: str) -> None:
    assert describe_context(context) == text
