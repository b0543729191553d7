from __future__ import annotations

import pytest

import dispatch
from tests.examples.conftest import Load, Serving


async def test_it_greets_the_user_and_keeps_to_the_style_of_the_descriptor(load: Load, serving: Serving) -> None:
    async with serving(load("joke_service").Joke(), "joke") as dispatcher:
        text = await dispatcher.call("tell-joke", {"topic": "cats"}, user="alice")
    assert text == "Hello alice! The cat joined the Red Cross: it wanted to be a first-aid kit."


async def test_without_a_user_it_greets_nobody(load: Load, serving: Serving) -> None:
    async with serving(load("joke_service").Joke(), "joke") as dispatcher:
        text = await dispatcher.call("tell-joke", {"topic": " Programming "})
    assert text.startswith("There are 10 kinds of people")


async def test_another_style_is_another_joke(load: Load) -> None:
    joke = load("joke_service").Joke()
    told = {style: await joke.invoke({"style": style}, {"topic": "cheese"}) for style in ("pun", "one-liner")}
    assert told["pun"] != told["one-liner"]
    assert await joke.invoke({}, {"topic": "cheese"}) == told["one-liner"]


async def test_a_topic_that_it_does_not_know(load: Load, serving: Serving) -> None:
    async with serving(load("joke_service").Joke(), "joke") as dispatcher:
        assert "{brokers}" in await dispatcher.call("tell-joke", {"topic": "{brokers}"})


@pytest.mark.parametrize("arguments", [{}, {"topic": ""}, {"topic": "  "}, {"topic": 3}, {"topic": None}])
async def test_a_topic_is_needed(load: Load, serving: Serving, arguments: dict[str, object]) -> None:
    async with serving(load("joke_service").Joke(), "joke") as dispatcher:
        with pytest.raises(dispatch.ToolError, match=r"Pass the topic of the joke") as caught:
            await dispatcher.call("tell-joke", arguments)
    assert caught.value.type == "missing-topic"


async def test_a_style_that_is_none(load: Load) -> None:
    with pytest.raises(dispatch.ToolError, match=r"there are: pun, one-liner") as caught:
        await load("joke_service").Joke().invoke({"style": "epic"}, {"topic": "cats"})
    assert caught.value.type == "unknown-style"
