"""A tool that fails for want of a required argument: the error names it instead of quoting it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

import dispatch
from dispatch import ToolError
from tests.helpers.dispatcher_and_service import catalog, read, stand

SCHEMA = {"type": "object", "properties": {"product": {"type": "string"}, "note": {"type": "string"}}}
DECLARED: dict[str, dict[str, Any]] = {
    "schema": {"input-schema": {**SCHEMA, "required": ["product"]}},
    "arguments": {
        "arguments": [
            {"name": "product", "type": "string", "description": "What.", "required": True},
            {"name": "note", "type": "string", "description": "A note.", "required": False},
        ]
    },
    "trustgraph": {"arguments": [{"name": "product", "type": "string", "description": "What."}]},
}
MISSING = "The argument 'product' is missing. "


def key_error(arguments: dict[str, Any]) -> str:
    return f"{arguments['product']}"


def third_party(arguments: dict[str, Any]) -> str:
    """As services that send the text of the exception alone."""
    raise ToolError("tool-error", "'product'")


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("work", [key_error, third_party])
async def test_it_is_named(work: Any, declared: str) -> None:
    async with stand(work, catalog(work=DECLARED[declared])) as (dispatcher, _):
        result = await dispatcher.execute("work", {"note": "x"})
    assert isinstance(result.error, ToolError)
    assert result.error.type == ("KeyError" if work is key_error else "tool-error")
    assert result.error.message.startswith(MISSING)


async def test_it_is_named_in_a_stream_and_for_functions() -> None:
    async def stream(arguments: dict[str, Any]) -> AsyncIterator[str]:
        yield "one"
        yield arguments["product"]

    chunks: list[str] = []
    async with stand(lambda arguments: stream(arguments), catalog(work=DECLARED["schema"])) as (dispatcher, _):
        with pytest.raises(ToolError, match=MISSING):
            await read(dispatcher.stream("work"), chunks)
    assert chunks == ["one"]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [({"product": "tea"}, "product"), ({}, "note"), ({}, "another"), ({}, "pro duct")],
)
async def test_any_other_key_is_quoted_with_the_class(arguments: dict[str, Any], key: str) -> None:
    def work(_: dict[str, Any]) -> str:
        raise KeyError(key)

    async with stand(work, catalog(work=DECLARED["schema"])) as (dispatcher, _):
        result = await dispatcher.execute("work", arguments)
    assert result.error is not None
    assert result.error.message == f"KeyError: '{key}'"


async def test_a_key_error_with_a_text_of_its_own_is_unchanged() -> None:
    class NoStockError(KeyError):
        def __str__(self) -> str:
            return "there is no tea"

    def raise_own() -> None:
        raise NoStockError

    def raise_key(shelf: int) -> None:
        raise KeyError("tea")

    async with dispatch.connect("memory://", catalog=[dispatch.Functions(raise_own, raise_key)]) as dispatcher:
        own, key = await dispatcher.execute("raise_own"), await dispatcher.execute("raise_key", {"shelf": 1})
    assert own.error is not None
    assert key.error is not None
    assert (own.error.message, key.error.message) == ("there is no tea", "KeyError: 'tea'")
