"""How a service's ``invoke`` is read: every way it may be written, and a clear error for every other, at construction."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import ToolService
from dispatch.messaging.wire import Request
from dispatch.serving.tool_service import read_invoke

REQUEST = Request({"style": "pun"}, {"topic": "cats"}, "alice")
FULL = ("alice", {"style": "pun"}, {"topic": "cats"})


async def call(service: object) -> Any:
    return await read_invoke(service)(REQUEST)


class Ours(ToolService):
    async def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        return user, config, arguments


class Specification(ToolService):
    async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
        return user, config, arguments


class Published(ToolService):
    async def invoke(self, config: Any, arguments: Any) -> Any:
        return "alice", config, arguments


class ArgumentsOnly(ToolService):
    async def invoke(self, arguments: Any) -> Any:
        return *FULL[:2], arguments


class OtherOrder(ToolService):
    async def invoke(self, arguments: Any, config: Any, user: str) -> Any:
        return user, config, arguments


class KeywordOnly(ToolService):
    async def invoke(self, *, arguments: Any, user: str, config: Any) -> Any:
        return user, config, arguments


class AnyKeyword(ToolService):
    async def invoke(self, **given: Any) -> Any:
        return given["user"], given["config"], given["arguments"]


class RestByKeyword(ToolService):
    async def invoke(self, config: Any, **rest: Any) -> Any:
        return rest["user"], config, rest["arguments"]


class PositionalOnly(ToolService):
    async def invoke(self, user: str, config: Any, arguments: Any, /) -> Any:
        return user, config, arguments


class PositionalInOtherOrder(ToolService):
    async def invoke(self, arguments: Any, user: str, /, config: Any) -> Any:
        return user, config, arguments


class PositionalThenKeyword(ToolService):
    async def invoke(self, arguments: Any, /, *, config: Any, user: str = "") -> Any:
        return user, config, arguments


class PositionalThenAnything(ToolService):
    async def invoke(self, config: Any, /, **rest: Any) -> Any:
        return rest["user"], config, rest["arguments"]


class OwnNamesOfTwo(ToolService):
    async def invoke(self, cfg: Any, args: Any) -> Any:
        return "alice", cfg, args


class OwnNamesOfThree(ToolService):
    async def invoke(self, who: str, cfg: Any, args: Any) -> Any:
        return who, cfg, args


class SomeOwnNames(ToolService):
    async def invoke(self, user: str, settings: Any, arguments: Any) -> Any:
        return user, settings, arguments


class FurtherDefault(ToolService):
    async def invoke(self, user: str, config: Any, arguments: Any, verbose: bool = False) -> Any:
        assert verbose is False
        return user, config, arguments


class Static(ToolService):
    @staticmethod
    async def invoke(config: Any, arguments: Any, user: str = "") -> Any:  # type: ignore[override]
        return user, config, arguments


class WithoutSuper(ToolService):
    def __init__(self, style: str, *, loud: bool) -> None:
        self.style = style  # and no super().__init__(), as everybody forgets

    async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
        return user, {"style": self.style}, arguments


class Inherited(Specification):
    pass


class Plain:
    """No subclass of ours: TrustGraph's, or anybody's."""

    async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
        return user, config, arguments


class Threaded(ToolService):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return user, config, arguments


class ThreadThenAwait(ToolService):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        async def work() -> Any:
            assert threading.current_thread() is threading.main_thread()
            return user, config, arguments

        return work()


def _decorated(function: Any) -> Any:
    @functools.wraps(function)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return inner


class Decorated(ToolService):
    @_decorated
    async def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        return user, config, arguments


ALL_WAYS = [
    Ours, Specification, Published, ArgumentsOnly, OtherOrder, KeywordOnly, AnyKeyword, RestByKeyword, PositionalOnly,
    PositionalInOtherOrder, PositionalThenKeyword, PositionalThenAnything, OwnNamesOfTwo, OwnNamesOfThree, SomeOwnNames,
    FurtherDefault, Static, Inherited, Plain, Threaded, ThreadThenAwait, Decorated,
]  # fmt: skip


@pytest.mark.parametrize("cls", ALL_WAYS, ids=lambda cls: cls.__name__)
async def test_every_way_gets_its_values(cls: type[Any]) -> None:
    assert await call(cls()) == FULL


async def test_a_subclass_need_not_call_our_init() -> None:
    assert await call(WithoutSuper("pun", loud=True)) == FULL


async def test_an_async_generator_is_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio, "to_thread")  # it needs none

    class Story(ToolService):
        async def invoke(self, config: Any, arguments: Any, user: str = "") -> AsyncIterator[str]:
            yield user
            yield arguments["topic"]

    result = await call(Story())
    assert isinstance(result, AsyncIterator)
    assert [item async for item in result] == ["alice", "cats"]


async def test_a_thread_that_raises_stop_iteration_does_not_hang_its_caller() -> None:
    class First(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
            return next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(5):
            await call(First())


async def test_a_thread_raises_its_own_exception() -> None:
    class Odd(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
            raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError, match="by zero"):
        await call(Odd())


# -- what cannot be understood --------------------------------------------------------------------------------------


class NoInvoke(ToolService):
    pass


class NotAMethod(ToolService):
    invoke = "a text"  # type: ignore[assignment]


class NoArguments(ToolService):
    async def invoke(self, config: Any, user: str = "") -> Any: ...


class Nothing(ToolService):
    async def invoke(self) -> Any: ...  # type: ignore[override]


class ByPositionOnly(ToolService):
    async def invoke(self, *values: Any) -> Any: ...  # type: ignore[override]


class TooMany(ToolService):
    async def invoke(self, user: str, config: Any, arguments: Any, request_id: str) -> Any: ...


class OneOwnName(ToolService):
    async def invoke(self, query: str) -> Any: ...  # type: ignore[override]


class KnownInTheWrongPlace(ToolService):
    async def invoke(self, arguments: Any, cfg: Any) -> Any: ...  # type: ignore[override]


class ThreeWithTheUserLast(ToolService):
    async def invoke(self, cfg: Any, args: Any, user: str) -> Any: ...  # type: ignore[override]


class OwnNameByKeyword(ToolService):
    async def invoke(self, config: Any, arguments: Any, *, query: str) -> Any: ...  # type: ignore[override]


class PlainGenerator(ToolService):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        yield "a chunk"


WRONG = {
    NoInvoke: "has no invoke method",
    NotAMethod: "has no invoke method",
    NoArguments: "takes no 'arguments'",
    Nothing: "takes no 'arguments'",
    ByPositionOnly: "takes no 'arguments'",
    TooMany: "'request_id'",
    OneOwnName: "'query'",
    KnownInTheWrongPlace: "'cfg'",
    ThreeWithTheUserLast: "'cfg'",
    OwnNameByKeyword: "'query'",
    PlainGenerator: "plain generator; make it a stream with 'async def",
}


@pytest.mark.parametrize(("cls", "problem"), WRONG.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_every_other_way_is_a_clear_error_when_the_service_is_made(cls: type[Any], problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        cls()
    text = str(caught.value)
    assert text.startswith((f"{cls.__name__} ", f"{cls.__name__}.invoke"))
    assert problem in text
    assert "async def invoke" in text, "the message shows how to write it"


def test_anything_without_an_invoke_is_a_clear_error() -> None:
    for service in (object(), Ours):  # the class instead of an instance is the commonest slip
        with pytest.raises(TypeError, match="async def invoke"):
            read_invoke(service)
