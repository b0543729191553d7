"""The tools of the scenarios: functions, and a tool service on the embedded broker. Needs neither a framework nor a plugin
of pytest, because each framework is tested in an environment of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import dispatch

BROKER = "memory://adapters"
LARGE = "".join(f"{number}: \U0001f680 größer 你好\n" for number in range(20_000))
marks: dict[str, asyncio.Event] = {}
"""``started``: a tool runs that replies late; ``stopped``: it was cancelled."""


@dispatch.tool()
async def count(to: int) -> AsyncIterator[str]:
    """Count in chunks."""
    for number in range(to):
        yield f"{number} "


@dispatch.tool(read_only=True)
async def repeat(text: str, context: dispatch.CallContext) -> str:
    """Repeat a text."""
    return f"{context.user}: {text}"


@dispatch.tool()
async def refuse() -> str:
    """Fail."""
    raise dispatch.ToolError("no-such-file", "There is no file 'a'.")


@dispatch.tool(policy={"rate-limit": {"rate": "1/m", "burst": 1, "max-wait": 0}, "retry": 1})
async def limited() -> str:
    """Work once a minute."""
    return "done"


@dispatch.tool(tags=["x"])
async def broken() -> str:
    """Work, but for its circuit."""
    return "done"


@dispatch.tool(policy={"timeout": 0.4, "retry": 1})
async def hang() -> str:
    """Never reply."""
    return str(await asyncio.Event().wait())


@dispatch.tool(policy={"timeout": 20, "retry": 1})
async def sleep() -> str:
    """Reply after a minute."""
    marks["started"].set()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        marks["stopped"].set()
        raise
    return "slept"


@dispatch.tool(permissions=["tools:secret"])
async def secret() -> str:
    """Require a permission."""
    return "secret"


@dispatch.tool(tags=["x"])
async def report() -> str:
    """Write a long report."""
    return LARGE


FUNCTIONS: tuple[Callable[..., Any], ...] = (count, repeat, refuse, limited, broken, hang, sleep, secret, report)


class Joke(dispatch.ToolService):
    """A tool service."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"{user}: why did the {arguments['topic']} cross the road?"


SERVICE = {
    "id": "joke",
    "request-queue": "non-persistent://dispatch/request/joke",
    "response-queue": "non-persistent://dispatch/response/joke",
}
JOKE = {
    "type": "tool-service",
    "name": "tell-joke",
    "description": "Tell a joke.",
    "service": "joke",
    "arguments": [{"name": "topic", "type": "string", "description": "About what"}],
}


@contextlib.asynccontextmanager
async def connect() -> AsyncIterator[dispatch.Dispatcher]:
    """A dispatcher with all tools; ``bob`` may call the secret one."""
    marks.update(started=asyncio.Event(), stopped=asyncio.Event())
    grants = dispatch.Grants.of({"users": {"bob": ["tools:*"]}})
    sources: list[Any] = [dispatch.Functions(*FUNCTIONS), dispatch.Catalog.of([SERVICE], [JOKE])]
    async with (
        dispatch.ToolServer(
            Joke(), BROKER, request_queue=SERVICE["request-queue"], response_queue=SERVICE["response-queue"]
        ),
        dispatch.connect(BROKER, catalog=sources, grants=grants) as dispatcher,
    ):
        yield dispatcher


class Answer(NamedTuple):
    """What the model got after its call."""

    text: str
    is_error: bool


CallTool = Callable[[dispatch.Dispatcher, str, dict[str, Any], str], Awaitable[Answer]]
"""Lets a scripted model call one tool on behalf of a user, by way of the framework, and returns what it got."""
