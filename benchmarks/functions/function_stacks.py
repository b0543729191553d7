"""Contenders: a Python function called alone, as a tool with all guards, and in a tool service on the embedded transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import dispatch
from benchmarks.micro.guard_stacks import RATE, Call, Stack

POLICY: Final[dict[str, Any]] = {
    "timeout": 30,
    "attempt-timeout": 10,
    "rate-limit": f"{RATE}/s",
    "user-rate-limit": f"{RATE}/s",
    "bulkhead": 64,
    "breaker": {"consecutive-failures": 10},
    "retry": 3,
}
"""Every guard, with limits that reject no call. The tools also have a permission, and the default telemetry."""
PERMISSION: Final = "tools:math"
GRANTS: Final = {"users": {"alice": ["tools:*"]}}
ARGUMENTS: Final = {"a": 1, "b": 2}


async def add(a: int, b: int = 0) -> str:
    """Add two whole numbers."""
    return str(a + b)


def add_in_thread(a: int, b: int = 0) -> str:
    """Add two whole numbers in a thread."""
    return str(a + b)


class Adder(dispatch.ToolService):
    """Adds two whole numbers."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        return str(arguments["a"] + arguments["b"])


@asynccontextmanager
async def _open_bare() -> AsyncIterator[Call]:
    async def call() -> str:
        assert await add(**ARGUMENTS) == "3"
        return "done"

    yield call


@asynccontextmanager
async def _open_function(function: Callable[..., Any], checks: str) -> AsyncIterator[Call]:
    policy = {**POLICY, "check-arguments": checks}
    declared = dispatch.tool(name="add", permissions=[PERMISSION], policy=policy)(function)
    grants = dispatch.Grants.of(GRANTS)
    async with dispatch.connect("memory://", catalog=[dispatch.Functions(declared)], grants=grants) as dispatcher:
        yield partial(_call, dispatcher)


@asynccontextmanager
async def _open_service() -> AsyncIterator[Call]:
    service = {"id": "add", "request-queue": "request:tg:add", "response-queue": "response:tg:add"}
    tool = {"type": "tool-service", "name": "add", "description": "Adds.", "service": "add", "policy": POLICY}
    catalog = dispatch.Catalog.of([service], [{**tool, "permissions": [PERMISSION]}])
    broker = "memory://benchmark-functions"
    server = dispatch.ToolServer(Adder(), broker, service="add")
    grants = dispatch.Grants.of(GRANTS)
    async with server, dispatch.connect(broker, catalog=catalog, grants=grants) as dispatcher:
        yield partial(_call, dispatcher)


async def _call(dispatcher: dispatch.Dispatcher) -> str:
    result = await dispatcher.execute("add", ARGUMENTS, user="alice")
    assert result.text == "3", result.error
    return "done"


STACKS: Final = (
    Stack("bare", "the async function alone", _open_bare),
    Stack("function", "async function, all guards", partial(_open_function, add, "model")),
    Stack("unchecked", "… without the check by its schema", partial(_open_function, add, "never")),
    Stack("thread", "plain function in a thread, all guards", partial(_open_function, add_in_thread, "model")),
    Stack("service", "tool service on memory://, all guards", _open_service),
)
