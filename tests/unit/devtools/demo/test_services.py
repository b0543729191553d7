"""The demonstration's services, as their callers see them."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dispatch.devtools.demo.world import Calculator, CustomRag, Joke, TimeScale, demo_catalog
from dispatch.errors import ToolError


@pytest.mark.parametrize(
    ("expression", "value"), [("(17.5 + 3) * 12 / 4", 61.5), ("2 * 21", 42.0), ("-(1 - 3)", 2.0), ("7", 7)]
)
async def test_the_calculator_is_right(expression: str, value: float) -> None:
    assert await Calculator().invoke({}, {"expression": expression}) == value


@pytest.mark.parametrize(
    ("expression", "type"),
    [
        ("1 / 0", "division-by-zero"),
        ("1 / (2 - 2)", "division-by-zero"),
        ("a", "unknown-syntax"),
        ("2 ** 9", "unknown-syntax"),
    ],
)
async def test_and_tells_what_it_cannot(expression: str, type: str) -> None:
    with pytest.raises(ToolError) as told:
        await Calculator().invoke({}, {"expression": expression})
    assert told.value.type == type


async def test_one_service_answers_from_the_collection_that_the_tools_config_names() -> None:
    rag = CustomRag(random.Random(1))
    answers: dict[str, Any] = {}
    for collection in ("products", "customers"):
        answers[collection] = await rag.invoke(
            {"collection": collection}, {"question": "Any complaint about a kettle?"}
        )
    assert "boils" in answers["products"]["answer"]
    assert "parcels" in answers["customers"]["answer"]


async def test_a_joke_that_is_not_known_says_so_in_style() -> None:
    text = await Joke(random.Random(1)).invoke({"style": "pun"}, {"topic": "taxes"})
    assert text == "I know no pun about taxes, and that is no joke."


def test_runs_never_meet_on_a_broker() -> None:
    one, other = demo_catalog("demo-1", TimeScale(20)), demo_catalog("demo-2", TimeScale(20))
    topics = [{service.request_queue for service in catalog.services.values()} for catalog in (one, other)]
    assert topics[0].isdisjoint(topics[1])
