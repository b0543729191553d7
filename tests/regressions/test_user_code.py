"""A function whose exception had a failing ``__str__``, or that raised GeneratorExit, settled its call never, and after ten
timeouts its circuit was open. A listener that raised SystemExit ended the call that it listened to and leaked its permit;
one that raised CancelledError cancelled the caller.

Whatever user code raises is an error of that code, at every place where user code runs.
`sys.exit` in a tool, or any other BaseException, ended the whole instance, and its callers' retries the next one.

It is a tool error, whose type is the name of the class, and the instance serves on.
At DEBUG a service logged the text of a tool's exception, which often holds arguments; and a call of an unknown tool had
no line in ``dispatch.calls``. Texts are logged only where content is recorded, and each call has its line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

import dispatch
from dispatch import Outcome, Telemetry, ToolError, ToolService
from dispatch._internal import type_name
from dispatch.calling import FunctionCallStatus, call_function
from dispatch.calls.call import FinishedCall
from dispatch.catalog.activation import SourceFollower
from dispatch.messaging.wire import decode_reply
from dispatch.permissions import PermissionLookup
from dispatch.search import ToolSearch
from dispatch.serving.plain import PlainReplies
from dispatch.serving.replies import InboundRequest
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import Peer, Service, catalog, dispatching, read, serving, stand
from tests.helpers.telemetry_capture import Board, telling
from tests.unit.calling.test_calls import LocalTool, call
from tests.unit.catalog.test_registry import Followed
from tests.unit.search.embedders import WordEmbedder
from tests.unit.search.test_search import make_catalog
from tests.unit.trustgraph.test_client import ARGUMENTS, CONFIG, Published, ha


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


def refuse(*_: Any, **__: Any) -> Any:
    raise LookupError("not even that")


class RefusingMeta(type):
    """A metaclass that answers nothing."""

    __instancecheck__ = refuse
    __name__ = property(refuse)


class OpaqueError(Exception, metaclass=RefusingMeta):
    """An error with nothing that can be read, as of a proxy for an object of another process that is gone."""

    __class__ = args = __traceback__ = __cause__ = __context__ = property(refuse)
    __suppress_context__ = exceptions = add_note = property(refuse)
    __str__ = __repr__ = __bool__ = __len__ = __eq__ = __hash__ = __reduce__ = refuse
    __getattribute__ = __setattr__ = refuse


class OpaqueToolError(OpaqueError, ToolError):
    """The same as a tool's own error."""


class OpaqueHostError(HostError, metaclass=RefusingMeta):
    """The same as a BaseException."""

    __class__ = args = __traceback__ = property(refuse)


class LyingError(Exception):
    """An error that is taken for a cancellation."""

    __class__ = asyncio.CancelledError


MAKERS: dict[str, Callable[[], BaseException]] = {
    "opaque": lambda: OpaqueError.__new__(OpaqueError),
    "opaque-tool-error": lambda: OpaqueToolError.__new__(OpaqueToolError),
    "opaque-host": lambda: OpaqueHostError.__new__(OpaqueHostError),
    "lying": LyingError,
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


@pytest.mark.costly
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
        assert result.error.message
        assert dispatcher.breaker(name).state == "closed"
        chunks: list[str] = []
        with pytest.raises(ToolError):
            await read(dispatcher.stream(name), chunks)
        assert chunks == (["one"] if name == "stream" else [])


async def test_the_error_has_class_and_text() -> None:
    functions = dispatch.Functions(*functions_that_raise(UnreadableError))
    async with dispatch.connect("memory://", catalog=[functions]) as dispatcher:
        result = await dispatcher.execute("thread")
    assert result.error.type == "UnreadableError"
    assert result.error.message == "(the text of a UnreadableError cannot be read)"


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
        assert "service stopped" not in result.error.message
        assert await dispatcher.call("work", {"again": True}) == "here"
        await idle()
        assert server.running == 0


async def test_a_tool_of_a_service_that_cancels_its_own_task_is_not_a_service_that_stopped() -> None:
    async def work(_arguments: dict[str, Any]) -> str:
        task = asyncio.current_task()
        task.cancel()
        await asyncio.sleep(1)
        return "never"

    async with stand(work) as (dispatcher, server):
        result = await dispatcher.execute("work")
        assert (result.outcome, result.error.type) == (Outcome.TOOL_ERROR, "cancelled")
        assert "service stopped" not in result.error.message
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


class UnprintableError(BaseException):
    def __str__(self) -> str:
        sys.exit("not even that")


def told(error: BaseException) -> str:
    return type(error).__name__


BASE_EXCEPTIONS = (SystemExit("it is over"), KeyboardInterrupt(), GeneratorExit(), HostError("it broke"))


GROUP = BaseExceptionGroup("two", [SystemExit(1), KeyboardInterrupt()])


every_base_exception = pytest.mark.parametrize("error", [*BASE_EXCEPTIONS, GROUP, UnprintableError()], ids=told)


class Failing(ToolService):
    """Fails in one of the ways in which a tool can be written; ``again`` is a call that is right."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def work(self, arguments: dict[str, Any]) -> str:
        if "again" not in arguments:
            raise self.error
        return "here"


class Coroutine(Failing):
    async def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
        await asyncio.sleep(0.1)
        return self.work(arguments)


class Thread(Failing):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
        return self.work(arguments)


class AwaitableOfThread(Failing):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        async def work() -> str:
            return self.work(arguments)

        return work()


class Stream(Failing):
    async def invoke(self, config: Any, arguments: Any, user: str = "") -> AsyncIterator[str]:
        yield self.work(arguments)


WAYS = (Coroutine, Thread, AwaitableOfThread, Stream)


async def assert_fails_and_serves_on(way: type[Failing], error: BaseException) -> None:
    async with stand(way(error)) as (dispatcher, server):
        for _ in range(2):
            with pytest.raises(ToolError) as caught:
                await dispatcher.call("work", timeout=5)
            assert caught.value.type == type_name(error)
            assert await dispatcher.call("work", {"again": True}, timeout=5) == "here"
        await idle()
        assert server.running == 0


@every_base_exception
@pytest.mark.parametrize("way", WAYS)
async def test_a_base_exception_is_a_tool_error_and_the_instance_serves_on(
    way: type[Failing], error: BaseException
) -> None:
    await assert_fails_and_serves_on(way, error)


@pytest.mark.parametrize("way", WAYS)
async def test_an_error_with_nothing_to_read_is_a_tool_error_of_a_service(way: type[Failing]) -> None:
    for name in ("opaque", "opaque-tool-error", "opaque-host", "lying"):  # pytest cannot have them as parameters
        error = MAKERS[name]()
        await assert_fails_and_serves_on(way, error)


@every_base_exception
async def test_a_stream_that_ends_with_a_base_exception_gives_its_chunks_and_the_error(error: BaseException) -> None:
    async def stream() -> AsyncIterator[str]:
        yield "one"
        raise error

    chunks: list[str] = []
    async with stand(lambda _: stream()) as (dispatcher, server):
        with pytest.raises(ToolError) as caught:
            await read(dispatcher.stream("work", timeout=5), chunks)
        assert (chunks, caught.value.type) == (["one"], type_name(error))
        await idle()
        assert server.running == 0


async def test_one_call_of_a_read_only_tool_leaves_all_three_instances_serving() -> None:
    services = [Service(lambda arguments: sys.exit(3) if "exit" in arguments else "here") for _ in range(3)]
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(service)) for service in services]
        dispatcher = await stack.enter_async_context(dispatching(catalog(work={"read-only": True})))
        with pytest.raises(ToolError) as caught:
            await dispatcher.call("work", {"exit": True}, timeout=5)
        assert (caught.value.type, caught.value.message) == ("SystemExit", "SystemExit: 3")
        assert sum(len(service.requests) for service in services) == 1
        for _ in range(9):
            assert await dispatcher.call("work", timeout=5) == "here"
        assert all(server.requests >= 3 for server in servers)


@pytest.mark.parametrize("error", BASE_EXCEPTIONS, ids=told)
async def test_what_a_tool_raises_when_it_is_stopped_is_no_end_of_the_instance(error: BaseException) -> None:
    async def work(arguments: dict[str, Any]) -> str:
        try:
            await asyncio.sleep(arguments.get("seconds", 0))
        except asyncio.CancelledError:
            raise error from None
        return "here"

    async with serving(work) as server, Peer.as_caller() as caller:
        await caller.ask(b'{"arguments": "{\\"seconds\\": 60}"}', id="1", remaining_ms="1000")
        reply = decode_reply((await caller.arrived.get()).data())
        assert reply.error.type == type(error).__name__
        await caller.ask(b"{}", id="2")
        assert decode_reply((await caller.arrived.get()).data()).response == "here"
        await idle()
        assert server.running == 0


async def test_a_request_that_the_server_cancels_ends_as_cancelled() -> None:
    ends: list[type[BaseException]] = []

    async def work(_: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            ends.append(type(error))
            raise

    async with Peer.as_caller() as caller:
        async with serving(work) as server:
            await caller.ask(b"{}", id="1")
            await idle()
            [request] = server._queue._places.occupants
        assert ends == [asyncio.CancelledError]
        assert request.task.cancelled()
        reply = decode_reply((await caller.arrived.get()).data())
        assert reply.error.type == "cancelled"


async def test_a_coroutine_that_is_closed_from_outside_answers_nobody() -> None:
    """A task that is collected together with its loop is closed with a GeneratorExit, which is none of the tool's."""
    async with serving(lambda _: asyncio.Event().wait()) as server, Peer.as_caller() as caller:
        assert server._queue is not None
        replies = PlainReplies(server._plain._channel, {"id": "1"})
        coroutine = server._queue._run(InboundRequest(replies, {}, b"{}", math.inf))
        coroutine.send(None)
        coroutine.close()
        await idle()
        assert caller.arrived.empty()


SECRET = "4711-0815"


def work(arguments: dict[str, Any]) -> str:
    raise ValueError(f"no account has the number {arguments['number']}")


async def lines(caplog: pytest.LogCaptureFixture, **settings: Any) -> str:
    telemetry = Telemetry(registry=Board().registry, **settings)
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "dispatch"):
        async with serving(work, telemetry=telemetry), telling(telemetry) as dispatcher:
            result = await dispatcher.execute("work", {"number": SECRET})
            await dispatcher.execute("find\nnothing", {"number": SECRET})
    assert SECRET in result.error.message, "the caller is told"
    return "\n".join(map(caplog.handler.format, caplog.records))


async def test_an_exceptions_text_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    text = await lines(caplog)
    assert SECRET not in text
    assert SECRET not in repr([vars(record) for record in caplog.records])
    assert "lab failed: ValueError" in text
    assert "raise ValueError(f" in text, "where it was raised"


async def test_an_exceptions_text_is_logged_where_content_is_recorded(caplog: pytest.LogCaptureFixture) -> None:
    assert f"ValueError: no account has the number {SECRET}" in await lines(caplog, content=True)


async def test_a_call_of_an_unknown_tool_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    await lines(caplog)
    (line,) = [record for record in caplog.records if getattr(record, "dispatch_error_type", "") == "unknown-tool"]
    assert line.name == "dispatch.calls"
    assert line.getMessage() == r"'find\nnothing': rejected after 0.000 s", "one line, whatever a model invents"
    assert vars(line)["dispatch_tool"] == r"find\nnothing"
