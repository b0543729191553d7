"""After 4,096 dispatchers within ten minutes a service refused every new one as `overloaded`, however idle it was. The
session that was idle longest is evicted instead, a closing dispatcher ends its sessions, and nothing that ran for them runs
again.
10,000 requests with different reply topics stopped a service for 25 s: each was opened at once, and each one that was
closed for another copied the table of all. Openings are bounded, per second and in all, and cost the same however many there
are; what is beyond the bound is answered on the response topic, and nobody waits for it.
Mistakes of a new user ended in an AttributeError of the inside, or in a text that named no fix. Each says now what is
wrong and what to write instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import dispatch
from dispatch import Dispatcher, ToolServer
from dispatch.catalog import check_items
from dispatch.catalog.items import Item
from dispatch.errors import TransportError
from dispatch.messaging.wire import Refusal, derive_key, instance_topic, reply_topic
from dispatch.serving import plain
from dispatch.serving.plain import MAX_REPLY_TOPICS, OPENINGS_AT_ONCE, OPENINGS_PER_S, TOPICS_OF_ONE
from dispatch.testing import EmbeddedBroker
from dispatch.toolkit import McpConfig, McpService, McpTransportConfig, McpTransportType, Toolkit
from dispatch.toolkit.graph import ToolGroupType
from dispatch.transports import Message, Publisher
from dispatch.transports.memory import MemoryTransport
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE
from tests.helpers.clock import START, advance, idle
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, UNGUARDED, Peer, catalog, dispatching, serving
from tests.helpers.reply_broker import ANSWER, OWN, Broker, asked, router
from tests.unit.cli.conftest import Run, as_if_alone, run, write_catalog

TOOLS = catalog(work={"policy": UNGUARDED})


ROOM = 3


@contextlib.asynccontextmanager
async def small(work: Any) -> AsyncIterator[ToolServer]:
    """A service with few sessions."""
    async with serving(work) as server:
        assert server._sessions is not None
        table = server._sessions.table
        table._settings = msgspec.structs.replace(table._settings, max_sessions=ROOM)
        yield server


class Counting:
    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.runs += 1
        number = self.runs
        await asyncio.sleep(arguments.get("seconds", 0))
        return f"run {number}"


@contextlib.asynccontextmanager
async def overhearing(server: ToolServer) -> AsyncIterator[tuple[Peer, list[Message]]]:
    """What comes to the instance's inbox."""
    async with Peer.as_caller(inbox_of(server)) as peer:
        packets: list[Message] = []

        async def listen() -> None:
            while True:
                packets.append(await peer.arrived.get())

        task = asyncio.create_task(listen())
        yield peer, packets
        task.cancel()


def inbox_of(server: ToolServer) -> str:
    return instance_topic(server.request_queue, server.instance)


async def again(peer: Peer, server: ToolServer, packets: list[Message]) -> None:
    """Send late copies of all ``packets``."""
    for packet in packets:
        await peer.send(inbox_of(server), packet.data(), {})
    await idle()


async def test_more_dispatchers_than_are_remembered_are_all_served() -> None:
    work = Counting()
    async with small(work) as server, contextlib.AsyncExitStack() as stack:
        dispatchers: list[Dispatcher] = []
        for number in range(1, 3 * ROOM + 1):
            dispatchers.append(await stack.enter_async_context(dispatching(TOOLS)))
            assert await dispatchers[-1].call("work") == f"run {number}"
        for number, dispatcher in enumerate(dispatchers, 3 * ROOM + 1):
            assert await dispatcher.call("work") == f"run {number}", "one that was evicted goes on as before"
        assert server.refused[Refusal.OVERLOADED] == server.refused[Refusal.REPLY_EVICTED] == 0


async def test_dispatchers_whose_calls_run_are_not_evicted_and_no_new_one_is_refused() -> None:
    work = Counting()
    async with small(work) as server, contextlib.AsyncExitStack() as stack:
        dispatchers = [await stack.enter_async_context(dispatching(TOOLS)) for _ in range(3 * ROOM)]
        calls = [asyncio.create_task(each.call("work", {"seconds": 20})) for each in dispatchers]
        assert len(set(await asyncio.gather(*calls))) == work.runs == 3 * ROOM
        assert server.refused[Refusal.OVERLOADED] == 0


async def test_late_copies_of_an_evicted_dispatchers_packets_run_nothing() -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, packets), dispatching(TOOLS) as dispatcher:
        await dispatcher.execute("work")
        theirs = packets.copy()
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2 * ROOM):
                other = await stack.enter_async_context(dispatching(TOOLS))
                await other.call("work")
            runs, unknown = work.runs, server.malformed
            await again(peer, server, theirs)
            assert work.runs == runs
            assert server.malformed > unknown
            assert (await dispatcher.execute("work")).ok, "its new requests run"


async def test_a_closing_dispatcher_ends_its_session_and_nothing_of_it_runs_again() -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, packets):
        assert server._sessions is not None
        for _ in range(2 * ROOM):
            async with dispatching(TOOLS) as other:
                await other.call("work")
            await idle()
            assert server._sessions.table.sessions == {}
        runs = work.runs
        await again(peer, server, packets.copy())
        assert work.runs == runs


FLOOD = 2_000


def topic_of(number: int) -> str:
    """The reply topic of a dispatcher of that number."""
    return reply_topic(RESPONSES, f"{derive_key(str(number))}-flood")


def asked_by(number: int) -> dict[str, str]:
    """The properties of a request of that dispatcher."""
    return asked(topic_of(number), session=str(number))


async def test_a_flood_opens_no_more_topics_than_the_bound_and_loses_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker()
    made = await router(broker)
    for number in range(FLOOD):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    assert len(broker.opened) - 1 == OPENINGS_AT_ONCE
    assert sum(len(broker.sent(topic)) for topic in broker.opened) == FLOOD
    assert (made.unopened, made.lost) == (FLOOD - OPENINGS_AT_ONCE, 0)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1

    await advance(1)
    for number in range(FLOOD, 2 * FLOOD):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    passed = asyncio.get_running_loop().time() - START  # the response topic takes its time for so many
    assert passed < 2
    assert len(broker.opened) - 1 <= OPENINGS_AT_ONCE + OPENINGS_PER_S * passed
    await made.close()


async def test_topics_are_bounded_in_all_and_what_was_kept_for_a_closed_one_is_gone() -> None:
    broker = Broker()
    made = await router(broker)
    most = 0
    for number in range(2 * MAX_REPLY_TOPICS):
        made.send(asked_by(number), b"x", ANSWER)
        most = max(most, len(made._topics))
        if number % OPENINGS_PER_S == 0:
            await advance(1)
    await made.flush()
    await idle()
    still_open = [publisher for publisher in broker.opened.values() if not publisher.closed]
    assert (most, len(still_open)) == (MAX_REPLY_TOPICS, MAX_REPLY_TOPICS)
    assert made.unopened == 0
    assert len(made._owned) == MAX_REPLY_TOPICS - 1  # the response topic belongs to the service
    await made.close()


async def test_a_topic_that_cannot_be_closed_is_kept_and_the_rest_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "MAX_REPLY_TOPICS", 3)
    broker = Broker()
    made = await router(broker)
    broker.gate.clear()
    for number in range(5):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    assert broker.sent(RESPONSES) == [b"2", b"3", b"4"], "two topics are being opened"
    broker.gate.set()
    await made.flush()
    assert [broker.sent(topic_of(number)) for number in range(2)] == [[b"0"], [b"1"]]
    made.send(asked_by(5), b"5", ANSWER)
    await made.flush()
    assert broker.sent(topic_of(5)) == [b"5"], "there is room again"
    await made.close()


async def test_one_dispatcher_has_so_many_topics_and_costs_others_no_opening() -> None:
    broker = Broker()
    made = await router(broker)
    for number in range(FLOOD):
        made.send(asked(f"{OWN}-{number}"), b"%d" % number, ANSWER)
    for number in range(OPENINGS_AT_ONCE - TOPICS_OF_ONE):
        made.send(asked_by(number), b"%d" % number, ANSWER)
    await made.flush()
    assert sum(topic.startswith(OWN) for topic in broker.opened) == TOPICS_OF_ONE
    assert all(topic_of(number) in broker.opened for number in range(OPENINGS_AT_ONCE - TOPICS_OF_ONE))
    assert made.unopened == FLOOD - TOPICS_OF_ONE
    assert sum(len(broker.sent(topic)) for topic in broker.opened) == FLOOD + OPENINGS_AT_ONCE - TOPICS_OF_ONE
    await made.close()


async def test_what_one_dispatcher_has_is_counted_when_topics_close_or_cannot_be_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "TOPICS_OF_ONE", 1)
    monkeypatch.setattr(plain, "MAX_REPLY_TOPICS", 2)
    broker = Broker()
    made = await router(broker)
    broker.refusals[f"{OWN}-0"] = TransportError("connection-refused", "no", may_have_run=False)
    for number, opens in ((0, False), (1, True), (2, False)):
        made.send(asked(f"{OWN}-{number}"), b"x", ANSWER)
        await made.flush()
        assert (f"{OWN}-{number}" in broker.opened) is opens
    made.send(asked_by(1), b"x", ANSWER)
    await made.flush()
    assert broker.opened[f"{OWN}-1"].closed, "it was the quietest"
    made.send(asked(f"{OWN}-3"), b"x", ANSWER)
    await made.flush()
    assert f"{OWN}-3" in broker.opened
    assert made.unopened == 1
    await made.close()


async def test_what_is_no_answer_is_not_sent_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "OPENINGS_AT_ONCE", 1)
    broker = Broker()
    made = await router(broker)
    for number in range(3):
        made.send(asked_by(number), b"", {"here": REQUESTS})
        await made.writable(asked_by(number))
    assert not broker.sent(RESPONSES)
    assert (made.unopened, made.lost) == (2, 0)
    await made.close()


async def test_ordinary_callers_are_answered_at_once_during_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = catalog(work={"policy": UNGUARDED})
    opened: list[str] = []
    async with serving(lambda _: "done", max_queue=FLOOD) as server, dispatching(tools) as known:
        open_publisher = server._transport.publisher

        async def publisher(topic: str) -> Publisher:
            opened.append(topic)
            return await open_publisher(topic)

        monkeypatch.setattr(server._transport, "publisher", publisher)
        assert await known.call("work") == "done"
        async with Peer.as_caller() as flooding:
            for number in range(FLOOD):
                await flooding.send(REQUESTS, b"{}", asked_by(number) | {"id": f"x{number}"})
            await idle()
            before = asyncio.get_running_loop().time()
            assert await known.call("work") == "done"
            assert asyncio.get_running_loop().time() == before, "its topic is open"
            async with dispatching(tools) as new:
                assert await new.call("work", timeout=1) == "done"
        assert OPENINGS_AT_ONCE <= len(opened) < OPENINGS_AT_ONCE + 10
        assert asyncio.get_running_loop().time() < START + 5


__all__ = ["as_if_alone", "run"]


BROKER = "memory://first-hour"


class Joke(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return f"About {arguments['topic']}."


class Client:
    async def call(self, config: Any, arguments: Any, timeout: float = 600) -> str:
        return "done"


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


any_value: Any = None


"""Of another type than the signature says."""


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (
            lambda: dispatch.connect(any_value),
            "None is not a broker address: is an environment variable unset? Use pulsar:",
        ),
        (lambda: dispatch.connect(Path("x")), "PosixPath is not a broker address. Use pulsar://HOST:6650"),
        (lambda: dispatch.ToolServer(Joke(), any_value, service="joke"), "is an environment variable unset?"),
        (
            lambda: dispatch.connect(BROKER, policy=["timeout"]),
            "policy must be dispatch.Policy(timeout=10) or {'timeout':",
        ),
        (lambda: dispatch.connect(BROKER, policy=dispatch.Policy), "not the class Policy"),
        (lambda: dispatch.connect(BROKER, policy={"timeot": 3}), "did you mean 'timeout'?"),
        (lambda: dispatch.connect(BROKER, policy={"timeout": "soon"}), "give seconds"),
        (lambda: dispatch.connect(BROKER, telemetry=any_value), "telemetry must be a dispatch.Telemetry, such as"),
        (lambda: dispatch.connect(BROKER, telemetry=dispatch.Telemetry), "not the class Telemetry"),
        (lambda: dispatch.connect(BROKER, security="token"), "security must be a dispatch.Security, such as"),
        (lambda: dispatch.connect(BROKER, grants={"users": {}}), "dispatch.Grants.of({…})"),
        (lambda: dispatch.connect(BROKER, grants=dispatch.Grants), "not the class Grants"),
        (
            lambda: dispatch.connect(BROKER, catalog=[add]),
            "function add is no source of a catalogue. Fix: wrap it: dispatch.",
        ),
        (lambda: dispatch.connect(BROKER, catalog=add), "dispatch.Functions(add)"),
        (lambda: dispatch.connect(BROKER, catalog={"tools": []}), "use dispatch.Catalog.of(services=[…], tools=[…])"),
        (lambda: dispatch.connect(BROKER, catalog=[{"mcpServers": {}}]), "use dispatch.McpServers({…})"),
        (
            lambda: dispatch.connect(BROKER, catalog=[dispatch.Folder]),
            "the class Folder is no source of a catalogue. Fix: pa",
        ),
        (
            lambda: dispatch.connect(BROKER, catalog=3),
            "an int is no source of a catalogue. Fix: give a Catalog, the path",
        ),
        (lambda: dispatch.connect(any_value), "None is not a broker address: is an environment variable unset?"),
        (lambda: dispatch.Dispatcher(MemoryTransport), "the class MemoryTransport is not a broker address."),
        (lambda: dispatch.ToolServer(Joke, BROKER, service="joke"), "Joke is a class: pass an instance, Joke()"),
        (lambda: dispatch.ToolServer(add, BROKER, service="joke"), "catalog=dispatch.Functions(add)"),
        (lambda: dispatch.wrap(Client, tool="t"), "Client is a class: pass an instance, Client(…)."),
        (lambda: dispatch.connect(BROKER, admin=9464), "admin must be an address such as '127.0.0.1:9464', or"),
        (lambda: dispatch.connect(BROKER, fleet=7), "fleet must be the name of a fleet, such as 'shop', not an int."),
        (lambda: dispatch.connect(BROKER, approvals=7), "approvals must be the path of a file, such as"),
        (lambda: dispatch.ToolServer(Joke(), BROKER, service="joke", admin=9464), "admin must be an address such as"),
        (lambda: dispatch.ToolServer(Joke(), BROKER, service=any_value or 7), "service must be the id of a service"),
        (
            lambda: dispatch.ToolServer(Joke(), BROKER, service="joke", concurrency="8"),
            "concurrency must be a whole number, not a str.",
        ),
        (
            lambda: dispatch.ToolServer(Joke(), BROKER, service="joke", drain_timeout="30"),
            "drain_timeout must be a number of seconds, not a str.",
        ),
        (
            lambda: dispatch.ToolServer(Joke(), BROKER, service="joke", drain_timeout=-1),
            "drain_timeout must be a number of seconds, at least 0, not -1",
        ),
        (
            lambda: dispatch.ToolServer(BROKER, service="joke"),
            "the service comes before the broker: ToolServer(Joke(), ",
        ),
        (lambda: dispatch.ToolServer(asyncio, BROKER, service="joke"), "ToolServer(functions=asyncio, …)"),
        (
            lambda: dispatch.ToolServer(functions=Joke(), broker=BROKER, service="joke"),
            "a Joke has no functions to serve. Fix: a tool service is given alone: ToolServer(Joke(), …).",
        ),
        (
            lambda: dispatch.ToolServer(Joke(), BROKER, service="tg/joke"),
            "'tg/joke' is no name of a service. Fix: write a name without blanks and '/', for example 'joke'",
        ),
        (lambda: dispatch.ToolServer(Joke(), BROKER, service="my joke"), "'my joke' is no name of a service."),
        (lambda: dispatch.ToolServer(Joke(), BROKER, service="joke", tools=TELL_JOKE), "must be a list of descriptors"),
        (lambda: dispatch.ToolServer(Joke(), BROKER, service="joke", tools=["a"]), "must be a list of descriptors"),
        (
            lambda: dispatch.ToolServer(Joke(), BROKER, service="joke", descriptor=any_value or "1.0"),
            "descriptor must be an object of keys, such as {'version': '1.0.0'}, not a str.",
        ),
        (lambda: dispatch.connect(BROKER, catalog=asyncio), "wrap it: dispatch.ToolPackage('asyncio')."),
        (lambda: dispatch.connect(BROKER, catalog=Joke()), "serve it with dispatch.ToolServer(…), and give the folder"),
        (lambda: dispatch.connect(BROKER, catalog=""), "the path is empty: is a variable unset?"),
        (
            lambda: dispatch.Functions([add]),
            "a list is no function. Fix: write a star before it: Functions(*functions).",
        ),
        (lambda: dispatch.tool("price"), "Fix: write @dispatch.tool(name='price')."),
        (
            lambda: dispatch.ToolServiceClient(BROKER, service="joke"),
            "dispatcher must be what dispatch.connect(…) returns, not a str.",
        ),
    ],
)
def test_a_value_of_another_kind_is_told_with_what_to_give(mistake: Callable[[], object], said: str) -> None:
    with pytest.raises((TypeError, ValueError, dispatch.DispatchError)) as told:
        mistake()
    assert said in str(told.value)


async def test_a_name_of_another_kind_is_told_with_what_to_give() -> None:
    told = r"tool must be the name of a tool, such as 'tell-joke', not None\."
    async with dispatch.connect("memory://names", dispatch.Functions(add)) as dispatcher:
        for call in (
            lambda: dispatcher.call(any_value, {}),
            lambda: dispatcher.execute(any_value, {}),
            lambda: dispatcher.call(any_value, {}, version="^1"),
            lambda: anext(dispatcher.stream(any_value, {})),
        ):
            with pytest.raises(TypeError, match=told):
                await call()
        for read in (dispatcher.tool, dispatcher.breaker):
            with pytest.raises(TypeError, match=told):
                read(any_value)
        with pytest.raises(TypeError, match="service must be the id of a service"):
            dispatcher.instances(any_value)
        with pytest.raises(TypeError, match=r"result must be what .* returns, not a str"):
            dispatcher.format_result("done")


@pytest.mark.parametrize(
    ("mistake", "key", "near"),
    [
        (lambda: dispatch.Policy(timeot=3), "timeot", "timeout"),
        (lambda: dispatch.Policy(**{"attempt-timeout": 3}), "attempt-timeout", "attempt_timeout"),
        (lambda: dispatch.Retry(max_attemps=3), "max_attemps", "max_attempts"),
        (lambda: dispatch.tool(readonly=True), "readonly", "read_only"),
        (lambda: dispatch.connect(BROKER, catalogue="tools/"), "catalogue", "catalog"),
        (lambda: dispatch.ToolServer(Joke(), BROKER, services="joke"), "services", "service"),
        (lambda: dispatch.Telemetry(contents=True), "contents", "content"),
        (lambda: dispatch.Security(tokn="x"), "tokn", "token"),
        (lambda: dispatch.Folder("tools", watched=True), "watched", "watch"),
        (lambda: dispatch.Functions(add, name_space="x"), "name_space", "namespace"),
        (lambda: dispatch.wrap(Client(), tool="t", annotation=None), "annotation", "annotations"),
        (lambda: dispatch.Catalog.of(service=[]), "service", "services"),
    ],
)
def test_a_misspelt_keyword_is_told_with_the_one_that_is_near(
    mistake: Callable[[], object], key: str, near: str
) -> None:
    with pytest.raises(TypeError) as told:
        mistake()
    assert str(told.value) == f"Unexpected keyword argument '{key}': did you mean '{near}'?"


def test_a_keyword_that_is_near_to_none_is_told_with_all() -> None:
    with pytest.raises(TypeError, match=r"Unexpected keyword argument 'xyzzy': the keywords are rate, burst, .*\."):
        dispatch.RateLimit(xyzzy=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing"):  # Python's own texts stay
        dispatch.ToolServer()  # type: ignore[call-arg]


async def test_a_policy_may_be_an_object_as_in_a_descriptor() -> None:
    tools = dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE])
    async with dispatch.connect(BROKER, tools, policy={"timeout": 3, "retry": {"max-attempts": 2}}) as dispatcher:
        policy = dispatcher._live.resolver.policy
        assert policy == dispatch.Policy(timeout=3, retry=2)
        await dispatcher.reload(policy={"timeout": 4})
        assert dispatcher._live.resolver.policy == dispatch.Policy(timeout=4)
    assert dispatch.wrap(Client(), tool="t", policy={"retry": 1}).policy.timeout == 600  # over TrustGraph's own


async def test_without_a_catalogue_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "dispatch.calls"):
        async with dispatch.connect(BROKER) as dispatcher:
            for _ in range(2):
                result = await dispatcher.execute("tell-joke", {})
                assert result.error is not None
                assert result.error.message.endswith("Report that no tools are loaded.")
    (record,) = caplog.records
    assert "connect(catalog=…) has none" in record.getMessage()
    caplog.clear()
    async with dispatch.connect(BROKER, dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE])) as dispatcher:
        await dispatcher.execute("unknown", {})
    assert caplog.records == []


async def test_retry_after_is_in_milliseconds() -> None:
    policy = {"policy": {"user-rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}}
    tools = dispatch.Catalog.of([JOKE_SERVICE], [TELL_JOKE | policy])
    async with EmbeddedBroker().connect(tools, services={"joke": Joke()}) as dispatcher:
        await dispatcher.execute("tell-joke", {"topic": "cats"})
        error = (await dispatcher.execute("tell-joke", {"topic": "cats"})).error
        assert error is not None
        assert error.retry_after is not None
        assert 0.9 < error.retry_after <= 1
        assert len(str(error.as_dict()["retry_after"])) <= 5
    for seconds, shown in ((1 / 3, 0.334), (1.1, 1.1), (2.96601, 2.967), (0.1, 0.1), (12, 12)):
        assert dispatch.ThrottledError("t", "m", retry_after=seconds).retry_after == shown


def test_a_fix_is_not_escaped() -> None:
    service = JOKE_SERVICE | {"config-params": [{"name": "style", "required": True}]}
    tool = {key: value for key, value in TELL_JOKE.items() if key != "style"} | {"service": "  scherz‑dienst "}
    items = [Item("s", "tool-service", "joke-service", service), Item("t", "tool", "tell-joke", tool)]
    fixes = [problem.fix for problem in check_items(items)[1]]
    items[1] = Item("t", "tool", "tell-joke", tool | {"service": "joke-service"})
    fixes += [problem.fix for problem in check_items(items)[1]]
    assert 'write "service": "scherz‑dienst"' in fixes
    assert 'add "style": "…"' in fixes
    assert not [fix for fix in fixes if "\\u" in fix]


def test_a_toolkit_file_that_is_missing(run: Run, tmp_path: Path) -> None:
    with pytest.raises(
        dispatch.CatalogError, match=r"gone\.yml: there is no such file\. Fix: create it, or correct the path"
    ):
        Toolkit.load(tmp_path / "gone.yml")
    with pytest.raises(dispatch.CatalogError, match="cannot be read: Is a directory"):
        Toolkit.load(tmp_path)
    end = run("toolkit", "show", str(tmp_path / "gone.yml"))
    assert (end.code, "there is no such file" in end.err, "Errno" in end.err) == (2, True, False)


def test_an_error_of_the_system_is_told_without_its_number(run: Run, tmp_path: Path) -> None:
    (tmp_path / "toolkit.yml").write_text("actions: []\n")
    end = run("toolkit", "draw", str(tmp_path / "toolkit.yml"), "--output", f"{tmp_path}/gone/x.mmd")
    assert end.err.startswith(f"Error: No such file or directory: '{tmp_path}/gone/x.mmd'.")


@pytest.mark.parametrize("command", [("serve", "first_jokes.py:Joke", "--service", "joke"), ("demo", "--seconds", "5")])
def test_a_command_that_calls_no_tool_does_not_say_that_none_was_executed(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "first_jokes.py").write_text(
        "import dispatch\nclass Joke(dispatch.ToolService):\n    async def invoke(self, config, arguments): ...\n"
    )
    arguments = [str(tmp_path / each) if each.startswith("first_jokes") else each for each in command]
    end = run(*arguments, "--broker", "pulsar://127.0.0.1:1")
    assert "no Pulsar broker replies at pulsar://127.0.0.1:1" in end.out + end.err
    assert "executed" not in end.out + end.err


async def test_a_connection_to_an_mcp_server_has_chat2graphs_parameter() -> None:
    class Connection:
        async def close(self) -> None: ...

    async def connect(_: McpConfig) -> Any:
        return Connection()

    transport = McpTransportConfig(McpTransportType.STDIO, command="x")
    service = McpService(McpConfig(ToolGroupType.MCP, "server", transport), connect)
    assert type(await service.create_connection(tool_call_ctx=None)) is Connection
    assert type(await service.create_connection(object())) is Connection


@dispatch.tool
def undescribed(a: int) -> int:
    return a


async def test_a_function_without_a_docstring_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    source = dispatch.Functions(add, undescribed)
    with caplog.at_level(logging.WARNING, "dispatch.catalog"):
        async with dispatch.connect(BROKER, source) as dispatcher:
            await dispatcher.registry.refresh(source.id)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{__name__}.undescribed has no docstring, by which models choose tools.")


def test_metrics_without_circuits_are_told(run: Run, tmp_path: Path) -> None:
    from prometheus_client import CollectorRegistry

    from tests.helpers.metrics_port import expose_metrics

    write_catalog(tmp_path / "tools")
    with expose_metrics(dispatch.Telemetry(registry=CollectorRegistry())) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        end = run("tools", "--catalog", str(tmp_path / "tools"), "--metrics", url)
    assert (end.code, "tell-joke" in end.out) == (0, True)
    assert f"Warning: The metrics at {url} have no circuits" in end.err


@pytest.mark.parametrize("line_break", ["\n", "\\n"])
def test_an_excerpt_of_a_call_is_escaped_once(line_break: str) -> None:
    from dispatch.calling import parse

    (call,) = parse(f'<function_call>{{"name": "a", "args": {{"x": "one{line_break}two" oops}}}}</function_call>')
    assert call.error is not None
    assert "one\\ntwo" in call.error
    assert "\\\\n" not in call.error


async def test_a_server_is_started_once() -> None:
    server = dispatch.ToolServer(Joke(), "memory://once", service="joke")
    await server.start()
    with pytest.raises(RuntimeError, match="this server is started already"):
        await server.start()
    await server.close()
    with pytest.raises(RuntimeError, match="this server was closed; create a new one"):
        await server.start()


async def test_functions_are_no_tool_service() -> None:
    with pytest.raises(TypeError, match=r"functions are given as ToolServer\(functions="):
        await dispatch.serve([add], "memory://list", service="joke")


class Blocking:
    def call(self, config: Any, arguments: Any, timeout: float = 600) -> str:
        return "done"


async def test_a_wrapped_client_that_is_not_asynchronous() -> None:
    wrapped = dispatch.wrap(Blocking(), tool="t")
    with pytest.raises(TransportError, match="it returned a str at once: write 'async def' before its method"):
        await wrapped.call({}, {})
    with pytest.raises(TypeError, match="a Blocking has no method 'call_streaming'"):
        await wrapped.call_streaming({}, {}, print)
    with pytest.raises(TypeError, match="tool must be the name of a tool, such as 'tell-joke', not None"):
        dispatch.wrap(Blocking(), tool=any_value)
