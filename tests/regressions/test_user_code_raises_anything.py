"""A function whose exception had a failing ``__str__``, or that raised GeneratorExit, settled its call never, and after ten
timeouts its circuit was open. A listener that raised SystemExit ended the call that it listened to and leaked its permit;
one that raised CancelledError cancelled the caller.

Whatever user code raises is an error of that code, at every place where user code runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

import dispatch
from dispatch import Outcome, ToolError
from dispatch.calling import FunctionCallStatus, call_function
from dispatch.calls.call import FinishedCall
from dispatch.catalog.activation import SourceFollower
from dispatch.permissions.authorizer import PermissionLookup
from dispatch.search import ToolSearch
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import catalog, dispatching, read, serving, stand
from tests.unit.calling.test_execution import LocalTool, call
from tests.unit.catalog.live.test_follower import Followed
from tests.unit.search.embedders import WordEmbedder
from tests.unit.search.test_tool_search import make_catalog
from tests.unit.trustgraph.test_wrap import ARGUMENTS, CONFIG, Published, ha


class UnreadableError(Exception):
    """As of classes that are created without their attributes."""

    def __str__(self) -> str:
        return f"status {self.response.status}"  # type: ignore[attr-defined]

    __repr__ = __str__


class UnreadableToolError(ToolError):
    """A class of errors whose constructor forgets that of its base."""

    def __init__(self) -> None:
        pass


class HostError(BaseException):
    """A framework's own, as pytest, trio and gevent have them."""


MAKERS: dict[str, Callable[[], BaseException]] = {
    "unreadable": UnreadableError,
    "unreadable-tool-error": UnreadableToolError,
    "generator-exit": GeneratorExit,
    "system-exit": lambda: SystemExit(3),
    "keyboard-interrupt": KeyboardInterrupt,
    "host": HostError,
    "cancelled": asyncio.CancelledError,
    "stop-iteration": lambda: StopIteration(1),
    "stop-async-iteration": StopAsyncIteration,
    "group": lambda: ExceptionGroup("two", [UnreadableError(), ValueError("x")]),
    "base-group": lambda: BaseExceptionGroup("two", [SystemExit(1), KeyboardInterrupt()]),
}
anything = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def raising(make: Callable[[], BaseException]) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise make()

    return fail


class Provided:
    """Is injected."""


def functions_that_raise(make: Callable[[], BaseException]) -> list[Callable[..., Any]]:
    def thread() -> str:
        raise make()

    async def coroutine() -> str:
        raise make()

    async def late() -> str:
        await asyncio.sleep(0.1)
        raise make()

    async def stream() -> AsyncIterator[str]:
        yield "one"
        raise make()

    async def injected(value: Provided) -> str:
        return "never"

    return [thread, coroutine, late, stream, injected]


@anything
@pytest.mark.parametrize("name", ["thread", "coroutine", "late", "stream", "injected"])
async def test_a_function_settles_its_call(make: Callable[[], BaseException], name: str) -> None:
    functions = dispatch.Functions(*functions_that_raise(make))
    dispatcher = dispatch.connect("memory://", catalog=[functions], policy=dispatch.Policy(retry=1))
    dispatcher.provide(Provided, raising(make))
    loop = asyncio.get_running_loop()
    async with dispatcher:
        for _ in range(12):  # more than open a circuit
            began = loop.time()
            result = await dispatcher.execute(name)
            assert (result.outcome, loop.time() - began < 1) == (Outcome.TOOL_ERROR, True)
        assert result.error is not None
        assert result.error.message
        assert dispatcher.breaker(name).state == "closed"
        chunks: list[str] = []
        with pytest.raises(ToolError):
            await read(dispatcher.stream(name), chunks)
        assert chunks == (["one"] if name == "stream" else [])


async def test_the_error_has_class_and_text() -> None:
    async with dispatch.connect(
        "memory://", catalog=[dispatch.Functions(*functions_that_raise(UnreadableError))]
    ) as dispatcher:
        result = await dispatcher.execute("thread")
    assert result.error is not None
    assert (result.error.type, result.error.message) == (
        "UnreadableError",
        "(the text of a UnreadableError cannot be read)",
    )


async def test_a_task_that_is_cancelled_from_outside_settles_its_call() -> None:
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    async with dispatch.connect("memory://", catalog=[dispatch.Functions(wait)]) as dispatcher:
        calling = asyncio.create_task(dispatcher.execute("wait"))
        known = asyncio.all_tasks()
        await asyncio.sleep(0)  # the task of the tool is created, and has not begun
        for task in asyncio.all_tasks() - known:
            task.cancel()
        result = await calling
    assert result.outcome is Outcome.TOOL_ERROR
    assert result.error is not None
    assert result.error.type == "cancelled"


@anything
async def test_a_service_settles_its_request(make: Callable[[], BaseException]) -> None:
    async def work(arguments: dict[str, Any]) -> str:
        if "again" in arguments:
            return "here"
        raise make()

    loop = asyncio.get_running_loop()
    async with stand(work) as (dispatcher, server):
        began = loop.time()
        result = await dispatcher.execute("work")
        assert (result.outcome, loop.time()) == (Outcome.TOOL_ERROR, began)
        assert result.error is not None
        assert "service stopped" not in result.error.message
        assert await dispatcher.call("work", {"again": True}) == "here"
        await idle()
        assert server.running == 0


@anything
async def test_a_listener_affects_nothing(make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture) -> None:
    policy = dispatch.Policy(bulkhead=1, retry=1, breaker={"consecutive-failures": 1})
    heard: list[Any] = []

    async def work(arguments: dict[str, Any]) -> str:
        if "wait" in arguments:
            await asyncio.sleep(arguments["wait"])
        return "done"

    async with serving(work), dispatching(catalog(), policy=policy) as dispatcher:
        for subscribe in (dispatcher.on_event, dispatcher.on_call):
            subscribe(raising(make))
            subscribe(heard.append)
        assert await dispatcher.call("work") == "done"
        late = await dispatcher.execute("work", {"wait": 9}, timeout=1)  # opens the circuit inside the call
        assert late.outcome is Outcome.TIMEOUT
        assert dispatcher.breaker("work").state == "open"
        dispatcher.breaker("work").reset()
        assert await dispatcher.call("work", timeout=5) == "done"  # its permit is free
        chunks = [chunk async for chunk in dispatcher.stream("work", on_result=raising(make))]
        assert chunks == ["done"]
    assert [type(each) for each in heard].count(FinishedCall) == 4
    assert "a listener of events failed" in caplog.text
    assert "a listener of calls failed" in caplog.text


async def test_a_listener_of_a_cancelled_call_keeps_no_permit() -> None:
    policy = dispatch.Policy(bulkhead=1, retry=1)
    async with serving(lambda _: asyncio.sleep(1, "done")), dispatching(catalog(), policy=policy) as dispatcher:
        dispatcher.on_event(raising(asyncio.CancelledError))
        calling = asyncio.create_task(dispatcher.call("work"))
        await asyncio.sleep(0.5)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):  # of the caller itself
            await calling
        assert await dispatcher.call("work", timeout=5) == "done"


@anything
@pytest.mark.parametrize("is_async", [False, True])
async def test_grants_are_not_known(make: Callable[[], BaseException], is_async: bool) -> None:
    async def ask(_user: str) -> Sequence[str]:
        raise make()

    lookup = PermissionLookup(ask if is_async else raising(make))
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await lookup.fetch("alice", 1.0) is None
    assert loop.time() - began < 1
    await lookup.close()


class BrokenEmbedder(WordEmbedder):
    """Raises whatever ``make`` makes, where ``place`` says."""

    def __init__(self, make: Callable[[], BaseException], place: str) -> None:
        self.make, self.place = make, place
        self.encoded = []
        self._id = "broken"

    @property
    def id(self) -> str:  # type: ignore[override]
        if self.place == "id":
            raise self.make()
        return self._id

    def encode(self, texts: Sequence[str]) -> Any:
        if self.place == "encode":
            raise self.make()
        return super().encode(texts)


@pytest.mark.wall_clock  # an embedder runs in a thread
@anything
@pytest.mark.parametrize("place", ["id", "encode", "load"])
async def test_a_search_is_by_words(make: Callable[[], BaseException], place: str) -> None:
    tools = make_catalog(pasta_recipes="How to cook pasta")
    embedder = BrokenEmbedder(make, "")
    search = ToolSearch(lambda: tools, raising(make) if place == "load" else lambda: embedder)
    if place != "load":
        await search.refresh()
    embedder.place = place
    async with asyncio.timeout(10):
        await search.refresh()
        (found,) = await search.rank("cook", tools.tools)
    assert found.descriptor.name == "pasta_recipes"
    await search.close()


class BrokenSource:
    """Raises where ``place`` says."""

    id = "desk"

    def __init__(self, make: Callable[[], BaseException], place: str) -> None:
        self.make, self.place = make, place
        self.discoveries = 0

    async def discover(self) -> Sequence[Any]:
        self.discoveries += 1
        if self.place == "discover" and self.discoveries < 3:
            raise self.make()
        return []

    def changes(self) -> AsyncIterator[None]:
        if self.place == "iterate":
            raise self.make()
        return self._changes()

    async def _changes(self) -> AsyncIterator[None]:
        if self.place == "changes":
            raise self.make()
        await asyncio.Event().wait()
        yield

    async def close(self) -> None:
        if self.place == "close":
            raise self.make()


@anything
@pytest.mark.parametrize("place", ["discover", "changes", "iterate", "close"])
async def test_a_source_is_followed_on(make: Callable[[], BaseException], place: str) -> None:
    source = BrokenSource(make, place)
    async with Followed(source) as followed:
        follower: SourceFollower = followed.follower
        async with asyncio.timeout(60):
            await follower.is_ready.wait()
        await asyncio.sleep(60)
        assert source.discoveries >= {"discover": 3, "changes": 2, "iterate": 0, "close": 1}[place]
        if place in ("discover", "close"):
            assert follower.state == "ok"
        else:
            assert follower.problem


@anything
async def test_a_function_call_of_a_model_has_a_result(make: Callable[[], BaseException]) -> None:
    async def coroutine() -> str:
        raise make()

    class Unwritable:
        __str__ = __repr__ = raising(make)

    tools = [
        LocalTool("sync", raising(make), read_only=True),
        LocalTool("coroutine", coroutine, read_only=True),
        LocalTool("result", Unwritable, read_only=True),
        LocalTool("good", lambda: "here", read_only=True),
    ]
    results = await call_function(tools, "".join(map(call, ("sync", "coroutine", "result", "good")))) or []
    assert [each.status for each in results] == [*[FunctionCallStatus.FAILED] * 3, FunctionCallStatus.SUCCEEDED]
    assert all(each.output for each in results)


@anything
async def test_a_wrapped_client_fails_and_frees_its_place(make: Callable[[], BaseException]) -> None:
    async def work() -> str:
        raise make()

    client = Published(work)
    wrapped = dispatch.wrap(client, tool="joke", policy=dispatch.Policy(bulkhead=1, retry=1, breaker=None))
    for _ in range(2):
        with pytest.raises(dispatch.DispatchError):
            await wrapped.call(CONFIG, ARGUMENTS)
    client.work = ha
    assert await wrapped.call(CONFIG, ARGUMENTS, timeout=1) == "ha"


@anything
async def test_a_callback_s_exception_is_the_caller_s_and_frees_the_place(make: Callable[[], BaseException]) -> None:
    wrapped = dispatch.wrap(Published(ha), tool="joke", policy=dispatch.Policy(bulkhead=1, retry=1, breaker=None))

    async def callback(_chunk: str) -> None:
        raise make()

    with contextlib.suppress(BaseException):
        await wrapped.call_streaming(CONFIG, ARGUMENTS, callback)
        pytest.fail("the callback's exception is lost")
    assert await wrapped.call(CONFIG, ARGUMENTS, timeout=1) == "ha"


async def test_real_cancellation_passes_everywhere() -> None:
    started = asyncio.Event()

    async def hang() -> Any:
        started.set()
        await asyncio.Event().wait()

    functions = dispatch.Functions(hang)
    async with dispatch.connect("memory://", catalog=[functions]) as dispatcher:
        for start in (
            lambda: dispatcher.call("hang"),
            lambda: call_function([LocalTool("hang", hang)], call("hang")),
            lambda: dispatch.wrap(Published(hang), tool="joke").call(CONFIG, ARGUMENTS),
        ):
            started.clear()
            task: asyncio.Task[Any] = asyncio.create_task(start())
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


async def test_a_redaction_hook_affects_nothing(caplog: pytest.LogCaptureFixture) -> None:
    from dispatch.telemetry.tracing import CallTracing

    for make in (*MAKERS.values(), None):
        redact = (lambda *_: 5) if make is None else raising(make)
        settings = dispatch.Telemetry(content=True, redact=redact)  # type: ignore[arg-type]
        assert CallTracing(settings, "client", 0.0).redact_content("arguments", "work", "text") is None
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == len(MAKERS) + 1
