from __future__ import annotations

import asyncio

import pytest

import dispatch
from tests.examples.conftest import Load, Serving


@pytest.mark.costly
async def test_it_comes_word_by_word(load: Load, serving: Serving) -> None:
    loop = asyncio.get_running_loop()
    async with serving(load("story_service").Story(pause=1.0), "story") as dispatcher:
        start, pieces, times = loop.time(), [], []
        async for piece in dispatcher.stream("tell-story", {"subject": "a goat", "words": 10}):
            pieces.append(piece)
            times.append(round(loop.time() - start))
    assert "".join(pieces) == "Once upon a time there was a goat. Every evening"
    assert len(pieces) == 10
    assert times == list(range(10))  # virtual seconds: each word is there before the next is told


async def test_it_can_be_had_whole(load: Load, serving: Serving) -> None:
    async with serving(load("story_service").Story(), "story") as dispatcher:
        assert len((await dispatcher.call("tell-story", {"subject": "a lighthouse keeper"})).split()) == 40


async def test_one_may_stop_listening(load: Load, serving: Serving) -> None:
    async with serving(load("story_service").Story(), "story") as dispatcher:
        stream = dispatcher.stream("tell-story", {"subject": "a goat", "words": 500})
        assert await anext(stream) == "Once"
        await stream.aclose()
        assert dispatcher.pending_requests == 0


@pytest.mark.parametrize(
    ("arguments", "type"),
    [
        ({}, "missing-subject"),
        ({"subject": ""}, "missing-subject"),
        ({"subject": "a goat", "words": 0}, "invalid-words"),
        ({"subject": "a goat", "words": 501}, "invalid-words"),
        ({"subject": "a goat", "words": "ten"}, "invalid-words"),
        ({"subject": "a goat", "words": True}, "invalid-words"),
    ],
)
async def test_a_mistake_has_its_type(load: Load, serving: Serving, arguments: dict[str, object], type: str) -> None:
    async with serving(load("story_service").Story(), "story") as dispatcher:
        with pytest.raises(dispatch.ToolError) as caught:
            await anext(dispatcher.stream("tell-story", arguments))
    assert caught.value.type == type
