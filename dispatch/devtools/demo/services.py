"""The demo's tool services, written as a user would write them; sleeps stand for real work."""

from __future__ import annotations

import ast
import asyncio
import operator
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from dispatch.errors import ToolError
from dispatch.messaging.wire.codec import decode_request
from dispatch.messaging.wire.properties import Property
from dispatch.serving.tool_service import ToolService
from dispatch.transports import Message, Mode, Publisher, Subscription, Transport

JOKES: Final = {
    "cats": "Why do cats never play poker in the jungle? Too many cheetahs.",
    "cheese": "What do you call cheese that is not yours? Nacho cheese.",
    "programming": "There are 10 kinds of people: those who count in binary, and those who do not.",
}
SHELVES: Final = {
    "products": {"kettle": "The K-2 boils a litre in 2 min 40 s.", "lamp": "The lamp takes an E14 bulb of up to 40 W."},
    "customers": {
        "complaint": "Most complaints of last month were about late parcels.",
        "returns": "One order in nineteen comes back.",
    },
}


class Joke(ToolService):
    """Tells a joke in 5 to 40 ms, like a nearby HTTP service."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(self._chance.uniform(0.005, 0.04))
        topic = str(arguments.get("topic", ""))
        known = f"I know no {config.get('style', 'joke')} about {topic}, and that is no joke."
        return JOKES.get(topic, known)


_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}


class Calculator(ToolService):
    """Evaluates an expression. Its errors reach the caller as tool errors with their type."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> float:
        return _value(ast.parse(str(arguments["expression"])[:200], mode="eval").body)


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Div) and right == 0:
            raise ToolError("division-by-zero", "The expression divides by zero: change the divisor.")
        return float(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return float(_OPERATORS[type(node.op)](_value(node.operand)))
    raise ToolError("unknown-syntax", "The expression may contain numbers, + - * / and parentheses.")


class CustomRag(ToolService):
    """Answers questions from a collection: one service behind two tools, distinguished by their config."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> dict[str, str]:
        await asyncio.sleep(self._chance.uniform(0.03, 0.12))
        shelf = SHELVES[config["collection"]]
        question = str(arguments.get("question", "")).lower()
        answer = next((text for word, text in shelf.items() if word in question), "Nothing about that.")
        return {"collection": config["collection"], "answer": answer}


class Story(ToolService):
    """Tells a story word by word: an async generator makes the reply a stream."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> AsyncIterator[str]:
        story = f"Once {arguments.get('subject', 'a keeper')} kept a light burning for ships that never came, until one did."
        for word in story.split():
            yield f"{word} "
            await asyncio.sleep(0.02)


class Archive(ToolService):
    """Searches slowly: 10 ms per year before 2025."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        year = int(arguments["year"])
        await asyncio.sleep(min(5.0, max(0, 2025 - year) * 0.01))
        return f"{(year * 7) % 90 + 10} papers of {year}"


class Printer(ToolService):
    """Prints one label at a time: served with concurrency 1 and no queue."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(0.4)
        return f"printed: {arguments.get('text', '')}"


class BrokenService:
    """Replies with an HTML page, like a misconfigured proxy: a malformed reply. It never replies to requests for Atlantis.

    Args:
        transport: a started transport.
        request_queue: its request topic.
    """

    def __init__(self, transport: Transport, request_queue: str) -> None:
        self._transport = transport
        self._request_queue = request_queue
        self._subscription: Subscription | None = None
        self._publishers: dict[str, Publisher] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> BrokenService:
        self._subscription = await self._transport.subscribe(
            self._request_queue, self._on_message, mode=Mode.SHARED, name="weather-request"
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._subscription is not None:
            await self._subscription.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for publisher in self._publishers.values():
            await publisher.close()

    def _on_message(self, message: Message) -> None:
        if "Atlantis" in decode_request(message.data()).arguments.values():
            return
        task = asyncio.get_running_loop().create_task(self._answer(message.properties()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, properties: dict[str, str]) -> None:
        topic = properties[Property.REPLY_TO]
        publisher = self._publishers.get(topic)
        if publisher is None:
            publisher = self._publishers[topic] = await self._transport.publisher(topic)
        publisher.publish(
            b"<html>502 Bad Gateway</html>",
            {Property.ID: properties[Property.ID]},
            flow="weather",
            on_failure=lambda _error: None,  # the caller then ends at its deadline
        )
