"""Functions served as a tool service, over the embedded broker: descriptors, outcomes, reload."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import decimal
import enum
import math
import signal
import threading
import types
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pydantic
import pytest
from opentelemetry.sdk.trace import TracerProvider

import dispatch
from dispatch.functions import MODULE_PROVIDERS
from dispatch.functions.served import Descriptors
from tests.helpers.clock import idle


class Shop:
    """A provided value."""

    def __init__(self, name: str = "shop") -> None:
        self.name = name


@pytest.fixture(autouse=True)
def restored_providers() -> Any:
    saved = MODULE_PROVIDERS.copy()
    yield
    MODULE_PROVIDERS.restore(saved)


@contextlib.asynccontextmanager
async def serving(*functions: object, **options: Any) -> AsyncIterator[tuple[dispatch.ToolServer, dispatch.Dispatcher]]:
    broker = f"memory://served-{uuid.uuid4().hex}"
    server = dispatch.ToolServer(functions=functions, broker=broker, service="shop", **options)
    catalog = dispatch.Catalog.of([server.descriptors.service], server.descriptors.tools)
    async with server, dispatch.connect(broker, catalog) as dispatcher:
        yield server, dispatcher


@pytest.mark.parametrize(
    ("raised", "type", "message"),
    [
        (dispatch.ToolError("unknown-product", "There is none."), "unknown-product", "There is none."),
        (dispatch.ToolError("There is none."), "tool-error", "There is none."),
        (dispatch.ToolError(message="There is none."), "tool-error", "There is none."),
        (dispatch.ToolError("There is none.", retry_after=3), "tool-error", "There is none."),
        (dispatch.ToolError, "tool-error", "The tool was executed and failed without a message. Report the failure, "),
    ],
)
@pytest.mark.parametrize("where", ["service", "process"])
async def test_a_tool_error_needs_no_type(raised: Any, type: str, message: str, where: str) -> None:
    def price() -> str:
        """Price."""
        raise raised

    async with contextlib.AsyncExitStack() as stack:
        if where == "service":
            _, dispatcher = await stack.enter_async_context(serving(price))
        else:
            catalog = [dispatch.Functions(price)]
            dispatcher = await stack.enter_async_context(dispatch.connect("memory://one-process", catalog))
        error = (await dispatcher.execute("price")).error
        assert error.type == type
        assert error.message.startswith(message)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({}, "the request has no config value 'tool', which names one of its functions"),
        ({"tool": "prices"}, "its source has no function 'prices'"),
    ],
)
async def test_a_request_that_names_no_function(config: dict[str, Any], problem: str) -> None:
    async with serving(price) as (server, dispatcher):
        client = dispatch.ToolServiceClient(dispatcher, service=server.descriptors.service["id"])
        assert await client.call({"tool": "price"}, {"product": "lamp"}) == "9.5"
        with pytest.raises(dispatch.RejectedError, match=f"was not executed: {problem}"):
            await client.call(config, {"product": "lamp"})


# -- descriptors ------------------------------------------------------------------------------------------------


@dispatch.tool(read_only=True, tags=["prices"], version="1.2.0", policy={"timeout": 3})
def price(product: str, currency: Literal["EUR", "USD"] = "EUR", day: datetime.date | None = None) -> float:
    """Price of a product.

    Args:
        product: Its name.
    """
    return 9.5


def test_descriptors_are_generated() -> None:
    server = dispatch.ToolServer(functions=[price], broker="memory://", service="shop")
    service, (tool,) = server.descriptors
    assert service == {
        "id": "shop",
        "request-queue": "non-persistent://tg/request/shop",
        "response-queue": "non-persistent://tg/response/shop",
        "config-params": [{"name": "tool", "required": True}],
    }
    schema = tool.pop("input-schema")
    assert schema["required"] == ["product"]
    assert tool == {
        "type": "tool-service",
        "name": "price",
        "description": "Price of a product.",
        "service": "shop",
        "tool": "price",
        "arguments": [
            {"name": "product", "type": "string", "description": "Its name.", "required": True},
            {"name": "currency", "type": "string", "description": "", "required": False},
            {"name": "day", "type": "string", "description": "", "required": False},
        ],
        "read-only": True,
        "tags": ["prices"],
        "version": "1.2.0",
        "policy": {"timeout": 3},
    }


def describe(*functions: object, service: str | None = "shop") -> Descriptors:
    return dispatch.ToolServer(functions=functions, broker="memory://", service=service).descriptors


def test_a_function_without_a_docstring_is_refused_by_name() -> None:
    def bare(a: int) -> int:
        return a

    problem = r"bare: the function has no docstring.*Fix: write in it when to use"
    with pytest.raises(dispatch.CatalogError, match=problem):
        describe(price, bare)


def test_every_mistake_is_reported_at_once() -> None:
    def first(*names: str) -> None:
        """First."""

    def second(shop: Shop) -> None:
        """Second."""

    with pytest.raises(dispatch.CatalogError) as caught:
        describe(first, second)
    assert [each.key for each in caught.value.problems] == ["*names", "shop"]
    assert "dispatch.provide(Shop, …)" in caught.value.problems[1].fix


def test_types_of_arguments_for_agents_that_read_no_schema() -> None:
    class Colour(enum.Enum):
        RED = "red"

    class Point(msgspec.Struct):
        x: int

    def draw(
        a: int, b: float, c: bool, d: list[int], e: Colour, f: Point, g: int | str, h: Annotated[Any, "Anything."]
    ) -> None:
        """Draw."""

    draw.__annotations__ |= {"e": Colour, "f": Point}
    (tool,) = describe(draw).tools
    kinds = {each["name"]: each["type"] for each in tool["arguments"]}
    assert kinds == {
        "a": "integer",
        "b": "number",
        "c": "boolean",
        "d": "array",
        "e": "string",
        "f": "object",
        "g": "integer",
        "h": "string",
    }


def test_modules_and_sources() -> None:
    module = types.ModuleType("some.store")
    exec('def help():\n    """Help."""\ndef _hidden(): ...', vars(module))
    assert [each["name"] for each in describe(module, service=None).tools] == ["help"]
    exec('import dispatch\n@dispatch.tool\ndef sell():\n    """Sell."""', vars(module))
    declared = describe(module, service=None)
    assert [each["name"] for each in declared.tools] == ["sell"]
    assert declared.service["id"] == "store"
    both = describe(dispatch.Functions(vars(module)["help"], namespace="crm"), price)
    assert [(each["name"], each["tool"]) for each in both.tools] == [("crm-help", "crm-help"), ("price", "price")]
    with pytest.raises(dispatch.CatalogError, match="there are no functions to serve"):
        describe(types.ModuleType("empty"), service=None)


def test_versions_of_one_name() -> None:
    newer = dispatch.tool(name="price", version="2.0.0")(lambda: None)
    newer.__doc__ = "Price."
    tools = describe(price, newer).tools
    assert [(each["name"], each["version"], each["tool"]) for each in tools] == [
        ("price", "1.2.0", "price@1.2.0"),
        ("price", "2.0.0", "price@2.0.0"),
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "a tool service is missing"),
        ({"functions": [price], "implementation": object()}, "are two services"),
        ({"functions": [price]}, "no topics"),
        ({"functions": [3], "service": "shop"}, "an int has no functions to serve"),
        ({"functions": [Shop], "service": "shop"}, "the class Shop has no functions to serve"),
    ],
)
def test_what_cannot_be_served(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        dispatch.ToolServer(broker="memory://", **arguments)


# -- results: the same in this process, served, and from a hand-written service ----------------------------------


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Line:
    start: Point
    day: datetime.date


@dataclass
class Counter:
    count: int = 1


@dataclass
class Named:
    names: dict[Any, int]


class Struct(msgspec.Struct):
    a: int


class Model(pydantic.BaseModel):
    when: datetime.date
    price: decimal.Decimal


DAY = datetime.date(2026, 11, 26)
VALUES: dict[str, tuple[Any, str | None]] = {
    "text": ("grüße", "grüße"),
    "none": (None, "null"),
    "number": (9.5, "9.5"),
    "date": (DAY, '"2026-11-26"'),
    "datetime": (datetime.datetime(2026, 11, 26, 12, tzinfo=datetime.UTC), '"2026-11-26T12:00:00Z"'),
    "duration": (datetime.timedelta(minutes=1.5), '"PT90S"'),
    "dataclass": (Line(Point(1, 2), DAY), '{"start": [1, 2], "day": "2026-11-26"}'),
    "dataclass-with-the-default-of-its-class": (msgspec.convert({}, Counter), '{"count": 1}'),
    "struct": (Struct(1), '{"a": 1}'),
    "model": (Model(when=DAY, price=decimal.Decimal("1.10")), '{"when": "2026-11-26", "price": "1.10"}'),
    "enum": (Colour.RED, '"red"'),
    "int-enum": ([Level.HIGH], "[3]"),
    "decimal": (decimal.Decimal("9.50"), '"9.50"'),
    "path": ({"file": Path("a/ö")}, '{"file": "a/ö"}'),
    "path-that-is-not-utf-8": (Path("\udce9"), None),
    "uuid": (uuid.UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
    "bytes": ({"data": b"\xff\x00"}, '{"data": "/wA="}'),
    "tuple": ((1, Point(1, 2)), "[1, [1, 2]]"),
    "set": ({1}, "[1]"),
    "keys": ({1: "a", DAY: "b"}, '{"1": "a", "2026-11-26": "b"}'),
    "constants-as-keys": ({None: 1, True: 2, "a": 3}, '{"null": 1, "true": 2, "a": 3}'),
    "nested": ({"größe": [Line(Point(1, 2), DAY)]}, '{"größe": [{"start": [1, 2], "day": "2026-11-26"}]}'),
    "nested-model": ([Model(when=DAY, price=decimal.Decimal(1))], '[{"when": "2026-11-26", "price": "1"}]'),
    "decimal-nan": (decimal.Decimal("NaN"), '"NaN"'),
    "words-of-numbers": ({"a": "NaN", "Infinity": 1}, '{"a": "NaN", "Infinity": 1}'),
    "nan": (math.nan, None),
    "inner-infinity": ({"a": [-math.inf]}, None),
    "surrogate": ("a\ud800", None),
    "inner-surrogate": (["\udce9"], None),
    "surrogate-key": ({"\ud83d": 1}, None),
    "object": (object(), None),
    "equal-keys": ({1: "a", "1": "b"}, None),
    "equal-inner-keys": ([{"days": {DAY: 1, "2026-11-26": 2}}], None),
    "equal-field-keys": (Named({1: 1, "1": 2}), None),
}
"""Results, each with its text; None: it is none."""


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("equal-keys", "1 and '1' of the whole object"),
        ("equal-inner-keys", "datetime.date(2026, 11, 26) and '2026-11-26' of /0/days"),
        ("equal-field-keys", "1 and '1' of /names"),
    ],
)
async def test_two_keys_of_a_result_that_are_one_in_json_are_named(kind: str, keys: str) -> None:
    async with dispatch.connect("memory://", [dispatch.Functions(give)]) as dispatcher:
        error = (await dispatcher.execute("give", {"kind": kind})).error
    assert f"written as JSON (the keys {keys} are one key in JSON; keep one of them)" in error.message


async def give(kind: str) -> Any:
    """Give a value."""
    return VALUES[kind][0]


async def give_chunks(kind: str) -> AsyncIterator[Any]:
    """Give a value, as a stream."""
    yield VALUES[kind][0]


class HandWritten(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        return await give(**arguments)


class HandWrittenStream(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[Any]:
        yield VALUES[arguments["kind"]][0]


async def call_all(kind: str, *, stream: bool) -> list[dispatch.CallResult]:
    function = give_chunks if stream else give
    name = function.__name__
    results = []
    async with dispatch.connect("memory://", [dispatch.Functions(function)]) as local:
        results.append(await local.execute(name, {"kind": kind}))
    async with serving(function) as (server, served):
        results.append(await served.execute(name, {"kind": kind}))
        service, (tool,) = server.descriptors
    broker = f"memory://hand-{uuid.uuid4().hex}"
    own = dispatch.ToolServer(HandWrittenStream() if stream else HandWritten(), broker, service="shop")
    async with own, dispatch.connect(broker, dispatch.Catalog.of([service], [tool])) as dispatcher:
        results.append(await dispatcher.execute(name, {"kind": kind}))
    return results


@pytest.mark.costly
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", VALUES)
async def test_results_are_the_same_everywhere(kind: str, stream: bool) -> None:
    local, served, own = await call_all(kind, stream=stream)
    results = (local, served, own)
    found = [(each.outcome, each.text, each.error and (each.error.type, each.error.message)) for each in results]
    assert found[0] == found[1] == found[2]
    if (text := VALUES[kind][1]) is not None:
        assert local.text == text
    else:
        assert local.error.type == "invalid-result"


# -- outcomes ----------------------------------------------------------------------------------------------------


@dispatch.tool(policy={"check-arguments": "never"})
async def add(a: int, b: Annotated[int, msgspec.Meta(ge=0)] = 0) -> int:
    """Add two numbers."""
    return a + b


@pytest.mark.parametrize("arguments", [{"a": "x"}, {}, {"a": 1, "c": 2}, {"a": 1, "b": -1}, {"a": "x", "b": -1}])
async def test_a_mistake_has_the_same_words_wherever_it_is_noticed(arguments: dict[str, Any]) -> None:
    @dispatch.tool
    async def checked(a: int, b: Annotated[int, msgspec.Meta(ge=0)] = 0) -> int:
        """Add two numbers."""
        return a + b

    messages = set()
    for check in ("always", "never"):  # by the dispatcher, by the service
        policy = {"check-arguments": check}
        async with dispatch.connect("memory://", [dispatch.Functions(checked)], policy=policy) as local:
            messages.add((await local.execute("checked", arguments)).error.message)  # type: ignore[union-attr]
    async with serving(checked) as (_, served):
        messages.add((await served.execute("checked", arguments)).error.message)  # type: ignore[union-attr]
    assert len(messages) == 1, messages


async def fail() -> None:
    """Fail."""
    raise dispatch.ToolError("no-funds", "There are no funds.")


async def crash() -> None:
    """Crash."""
    raise KeyError("cup")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("add", {"a": 1, "b": 2}), ("add", {"a": 1.0}), ("add", {"a": "1"}), ("fail", {}), ("crash", {})],
)
async def test_outcomes_are_those_of_functions_in_the_process(name: str, arguments: dict[str, Any]) -> None:
    functions = (add, fail, crash)
    async with dispatch.connect("memory://", [dispatch.Functions(*functions)]) as local:
        expected = await local.execute(name, arguments)
    async with serving(*functions) as (_, dispatcher):
        found = await dispatcher.execute(name, arguments)
    assert (found.outcome, found.text, str(found.error)) == (expected.outcome, expected.text, str(expected.error))
    assert type(found.error) is type(expected.error)


async def test_an_unknown_function_is_refused() -> None:
    async with serving(add, fail) as (server, dispatcher):
        server.replace_functions([fail])
        result = await dispatcher.execute("add", {"a": 1})
        assert (result.outcome, result.error and result.error.type) == ("rejected", "unknown-tool")
        assert server.refused["unknown-tool"] >= 1


async def test_a_refused_request_leaves_its_idempotency_key() -> None:
    async with serving(add) as (_, dispatcher):
        refused = await dispatcher.execute("add", {"a": "1"}, idempotency_key="k")
        assert refused.outcome == "invalid_arguments"
        assert await dispatcher.call("add", {"a": 1}, idempotency_key="k") == "1"


async def test_context_and_provided_values() -> None:
    async def show(shop: Shop, context: dispatch.CallContext, optional: Shop | None = None) -> list[Any]:
        """Show."""
        return [shop.name, context.tool, context.user, context.attempt, 0 < context.remaining <= 30, context.call_id]

    dispatch.provide(Shop, Shop)
    show.__annotations__ |= {"shop": Shop, "optional": Shop | None}
    async with serving(show) as (server, dispatcher):
        assert server.descriptors.tools[0]["input-schema"]["properties"] == {}
        result = await dispatcher.execute("show", user="alice")
        assert msgspec.json.decode(result.text) == ["shop", "show", "alice", 1, True, result.request_id]


async def test_provided_values_reach_functions_of_dispatchers() -> None:
    def name(shop: Shop) -> str:
        """Name the shop."""
        return shop.name

    name.__annotations__["shop"] = Shop
    dispatch.provide(Shop, Shop("module"))
    dispatcher = dispatch.connect("memory://", [dispatch.Functions(name)])
    async with dispatcher:
        assert await dispatcher.call("name") == "module"
        dispatcher.provide(Shop, Shop("own"))
        assert await dispatcher.call("name") == "own"


@pytest.mark.wall_clock
@pytest.mark.costly
async def test_a_thread_that_outlives_its_request_keeps_its_place() -> None:
    proceed = threading.Event()

    @dispatch.tool(policy={"timeout": 1, "retry": 1})
    def hang() -> str:
        """Hang."""
        proceed.wait(10)
        return "done"

    async with serving(hang, concurrency=1) as (server, dispatcher):
        assert (await dispatcher.execute("hang")).outcome == "timeout"
        async with asyncio.timeout(10):
            while server.abandoned_threads != 1:  # noqa: ASYNC110 - of threads
                await asyncio.sleep(0.01)
        assert (await dispatcher.execute("hang")).outcome == "throttled"
        proceed.set()
        while server.abandoned_threads:  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.1)  # the pause that the refusal asked for
        assert await dispatcher.call("hang") == "done"


async def test_a_server_shares_the_connection_of_another_one() -> None:
    async with (
        dispatch.ToolServer(functions=[add], broker="memory://shared", service="add") as first,
        dispatch.ToolServer(functions=[fail], broker=first, service="fail") as second,
    ):
        described = [first.descriptors, second.descriptors]
        tools = [tool for each in described for tool in each.tools]
        catalog = dispatch.Catalog.of([each.service for each in described], tools)
        async with dispatch.connect("memory://shared", catalog) as dispatcher:
            assert await dispatcher.call("add", {"a": 1}) == "1"
            await second.close()
            assert await dispatcher.call("add", {"a": 2}) == "2"


@pytest.mark.costly
async def test_several_servers_are_served_until_a_signal() -> None:
    first = dispatch.ToolServer(functions=[add], broker="memory://several", service="add")
    second = dispatch.ToolServer(functions=[fail], broker=first, service="fail")
    catalog = dispatch.Catalog.of([first.descriptors.service], first.descriptors.tools)
    serving = asyncio.create_task(dispatch.serve([first, second]))
    await idle()
    async with dispatch.connect("memory://several", catalog) as dispatcher:
        assert await dispatcher.call("add", {"a": 1}) == "1"
        signal.raise_signal(signal.SIGTERM)
        await serving
        result = await dispatcher.execute("add", {"a": 1}, timeout=0.5)
        assert result.outcome in ("rejected", "timeout")


async def test_a_function_of_this_process_knows_its_trace_also_with_the_admin_endpoint() -> None:
    async def trace(context: dispatch.CallContext) -> str:
        """Show the trace."""
        return context.trace_id

    telemetry = dispatch.Telemetry(tracer_provider=TracerProvider())
    async with dispatch.connect(
        "memory://trace", dispatch.Functions(trace), telemetry=telemetry, admin="127.0.0.1:0"
    ) as dispatcher:
        with TracerProvider().get_tracer("test").start_as_current_span("agent") as span:
            assert await dispatcher.call("trace") == f"{span.get_span_context().trace_id:032x}"


@pytest.mark.parametrize("telemetry", [{"tracer_provider": TracerProvider()}, {"traces": "off"}], ids=["native", "off"])
async def test_the_trace_of_a_request_continues(telemetry: dict[str, Any]) -> None:
    async def trace(context: dispatch.CallContext) -> list[str]:
        """Show the trace."""
        return [context.trace_id, context.traceparent]

    async with serving(trace, telemetry=dispatch.Telemetry(**telemetry)) as (_, dispatcher):
        with TracerProvider().get_tracer("test").start_as_current_span("agent") as span:
            trace_id, traceparent = msgspec.json.decode(await dispatcher.call("trace"))
    assert trace_id == f"{span.get_span_context().trace_id:032x}"
    assert traceparent.split("-")[1] == trace_id


# -- replacing functions -----------------------------------------------------------------------------------------


async def test_calls_in_flight_outlive_a_replacement() -> None:
    proceed = asyncio.Event()

    def make(answer: str, description: str) -> Callable[[], Any]:
        async def wait() -> str:
            await proceed.wait()
            return answer

        wait.__doc__ = description
        return wait

    changes: list[Descriptors] = []
    async with serving(make("former", "Wait.")) as (server, dispatcher):
        remove = server.on_descriptors_changed(changes.append)
        first = asyncio.create_task(dispatcher.call("wait"))
        await idle()
        server.replace_functions([make("same", "Wait.")])
        assert changes == []
        server.replace_functions([make("new", "Wait a little.")])
        assert [each.tools[0]["description"] for each in changes] == ["Wait a little."]
        second = asyncio.create_task(dispatcher.call("wait"))
        await idle()
        proceed.set()
        assert (await first, await second) == ("former", "new")
        remove()
        server.replace_functions([make("last", "Wait.")])
        assert len(changes) == 1


async def test_invalid_functions_leave_the_former_ones() -> None:
    async with serving(add) as (server, dispatcher):
        before = server.descriptors
        with pytest.raises(dispatch.CatalogError):
            server.replace_functions([add, lambda: 1])
        assert server.descriptors == before
        assert await dispatcher.call("add", {"a": 1}) == "1"


async def test_a_hand_written_service_has_no_functions() -> None:
    server = dispatch.ToolServer(HandWritten(), "memory://", service="shop")
    assert server.descriptors.tools == []
    with pytest.raises(TypeError, match="serves no functions"):
        server.replace_functions([add])
