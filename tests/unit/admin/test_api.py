"""``/api/`` of a dispatcher and of a service: what an operator reads.
docs/reference/admin-api.md has exactly the fields that the endpoint answers.
Actions of operators: their effect, their trace, and their end.
Pages of the console as HTML, without a browser.
What the admin endpoint refuses: hosts, pages of other sites, tokens, bodies, addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import logging
import re
import socket
import subprocess
import sys
import time
import tracemalloc
import urllib.parse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from starlette.requests import Request

import dispatch
from dispatch import Admin, DispatchError, RejectedError, Telemetry, ToolServer
from dispatch.admin import console
from dispatch.admin.api import describe_event
from dispatch.admin.app import MAX_SESSIONS, READER_S, SESSION_S, Caller, Callers, ServiceAdmin
from dispatch.admin.console import Pages, find_tone, tell_event, write_duration
from dispatch.cli.screen import TABLES
from dispatch.errors import Outcome
from dispatch.resilience.breaker import State
from dispatch.telemetry.events import BrokerChanged, ChangeHeld, Event, ItemRefused, ItemShadowed
from dispatch.telemetry.gauges import INSTANCE_STATES
from dispatch.transports.memory import MemoryTransport
from tests.docs.pages import ROOT, blocks
from tests.helpers.admin_endpoint import Observed, eventually, observed, order, price

pytestmark = pytest.mark.wall_clock


@contextlib.asynccontextmanager
async def administered(
    broker: str, catalog: Any = (), *, headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[tuple[dispatch.Dispatcher, httpx2.AsyncClient]]:
    """A dispatcher with an admin endpoint, and a client of the endpoint."""
    async with (
        dispatch.connect(broker, catalog, admin="127.0.0.1:0", **options) as dispatcher,
        httpx2.AsyncClient(base_url=dispatcher.admin_url or "", trust_env=False, headers=headers) as client,
    ):
        yield dispatcher, client


async def test_a_tool_has_its_counts_its_history_and_its_circuit() -> None:
    async with observed() as it:
        for item in ("a", "b", "bad"):
            with contextlib.suppress(DispatchError):
                await it.dispatcher.call("price", {"item": item}, user="alice")
        rows = {each["name"]: each for each in await it.get("/api/tools")}
        assert (rows["price"]["calls"], rows["price"]["failed"], rows["price"]["in_flight"]) == (3, 1, 0)
        assert rows["price"]["circuit"] == "closed"
        assert (rows["order"]["calls"], rows["order"]["circuit"]) == (0, None)
        tool = await it.get("/api/tools/price")
        assert sum(tool["history"]["calls"]) == 3
        assert sum(tool["history"]["failed"]) == 1
        assert [each["id"] for each in tool["instance_list"]] == ["shop-1"]
        process = await it.get("/api/process")
        assert (process["kind"], process["calls"], process["failed"], process["ready"]) == ("dispatcher", 3, 1, True)


async def test_a_record_keeps_neither_arguments_nor_results_nor_users_of_any_size() -> None:
    size = 500_000
    async with observed() as it:
        await it.dispatcher.call("price", {"item": "a"})
        tracemalloc.start()
        try:
            for number in range(20):
                with contextlib.suppress(DispatchError):
                    await it.dispatcher.call("price", {"item": chr(97 + number) * size}, user="alice")
                await it.dispatcher.call("price", {"item": "a"}, user=f"bob{number}" * (size // 4))
                unusable: Any = ["b" * size]
                with contextlib.suppress(DispatchError):
                    await it.dispatcher.call("price", {"item": "a"}, user=unusable)
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 5 * size
        users = {each["user"][:3]: each["calls"] for each in await it.get("/api/users")}
        assert users == {"ali": 20, "": 21, "bob": 1}


async def test_rates_and_durations_are_there_from_the_first_call_on() -> None:
    async with observed() as it:
        for _ in range(10):
            await it.dispatcher.call("price", {"item": "a"}, user="alice")
        (user,) = await it.get("/api/users")
        assert user["rate"] > 2 * 10 / 60
        (instance,) = await it.get("/api/instances")
        assert 0 < instance["latency"] < 5
        assert (await it.get("/api/tools/price"))["instance_list"][0]["latency"] == instance["latency"]


async def test_each_value_of_a_policy_has_its_source() -> None:
    async with observed(policy={"timeout": 7}) as it:
        policy = {each["key"]: each for each in (await it.get("/api/tools/price"))["policy"]}
        assert policy["timeout"] == {"key": "timeout", "value": 7.0, "source": "dispatcher"}
        assert policy["retry.max-attempts"]["source"] == "default"


async def test_a_call_that_its_service_refused_did_not_run() -> None:
    async with observed() as it:
        await it.dispatcher.execute("price", {"itm": "a"})
        (call,) = await it.get("/api/calls")
        assert (call["outcome"], call["attempts"], call["ran"]) == ("invalid_arguments", 1, "no")


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (
            "circuits/price",
            {"action": "open", "duration": 3},
            "unknown field `duration`. Its fields are reason, user, acti",
        ),
        ("circuits/none", {"action": "open"}, "there is no tool 'none'."),
        (
            "tools/price/approve",
            {},
            "Give the 'fingerprint' of the definition: 'new' among those 'held' in /api/sources.",
        ),
    ],
)
async def test_an_action_with_a_mistake_is_refused_with_the_fix(path: str, body: dict[str, Any], told: str) -> None:
    async with observed() as it:
        answer = await it.client.post(f"/api/{path}", json={"user": "alice", "reason": "x", **body})
        assert answer.status_code in (400, 404)
        assert told in answer.json()["error"]
        assert "No tool was executed" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("outcome=time-out", "'outcome' is one of success, tool_error, "),
        ("failed=no", "'failed' is one of 1, 0."),
        ("limit=many", "'limit' is no number from 0 to 1000."),
    ],
)
@pytest.mark.parametrize("path", ["/api/calls", "/api/calls/stream"])
@pytest.mark.costly
async def test_a_filter_of_calls_that_selects_nothing_by_mistake_is_refused(path: str, query: str, told: str) -> None:
    async with observed() as it:
        answer = await it.client.get(f"{path}?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(told)


async def test_a_call_is_found_by_its_number_its_request_and_shows_its_attempts() -> None:
    async with observed() as it:
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "bad"}, user="bob")
        await it.dispatcher.call("price", {"item": "a"}, user="alice")
        latest, failed = await it.get("/api/calls")
        shown = [latest[key] for key in ("user", "outcome", "ran", "instance")]
        assert shown == ["alice", "success", "yes", "shop-1"]
        assert await it.get("/api/calls?failed=1") == await it.get("/api/calls?user=bob")
        await it.dispatcher.execute("price", {"item": "a"}, user="caf\udce9")  # refused: no text of Unicode
        assert "caf?" in {each["user"] for each in await it.get("/api/users")}
        refused = await it.dispatcher.execute("price", {"item": "a"}, user=None)  # type: ignore[arg-type] # a mistake
        assert refused.outcome == "invalid_arguments"
        await it.dispatcher.execute("price", {"item": 5}, user="alice")
        metrics = (await it.client.get("/metrics")).text
        assert 'dispatch_refused_calls_total{reason="invalid-arguments"' in metrics
        call = await it.get(f"/api/calls/{failed['id']}")
        (attempt,) = call["trail"]
        assert (attempt["instance"], attempt["reason"], attempt["sent"]) == ("shop-1", "first", True)
        assert 0 <= attempt["start"] <= attempt["start"] + attempt["duration"] <= call["duration"]
        assert await it.get(f"/api/calls/{attempt['request_id']}") == call


@pytest.mark.parametrize("content", [False, True])
async def test_arguments_and_a_tools_own_words_are_shown_only_where_content_is_on(content: bool) -> None:
    async with observed(telemetry=Telemetry(content=content)) as it:
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "bad"})
        call = await it.get("/api/calls/1")
        assert call["arguments"] == ('{"item": "bad"}' if content else None)
        assert call["message"] == ("no such item: bad" if content else None)


async def test_a_stream_has_each_call_as_it_ends() -> None:
    async with observed() as it:
        async with it.client.stream("GET", "/api/calls/stream?tool=price") as response:
            lines = response.aiter_lines()
            assert await anext(lines) == ": open"
            await it.dispatcher.call("order", {"item": "a"})
            await it.dispatcher.call("price", {"item": "a"}, user="alice")
            async with asyncio.timeout(5):
                event = [line async for line in _until_data(lines)]
        assert event[-2] == "event: call"
        assert json.loads(event[-1].removeprefix("data: "))["user"] == "alice"


@pytest.mark.costly
async def test_readers_of_the_stream_of_calls_hardly_delay_the_calls() -> None:
    """Each reader pauses, and gets what was published meanwhile together: the calls pay for few of its turns."""
    calls, readers = 50, 60
    async with observed() as it, contextlib.AsyncExitStack() as stack, asyncio.timeout(60):
        host, _, port = str(it.dispatcher.admin_url).removeprefix("http://").partition(":")
        streams = []
        for _ in range(readers):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(f"GET /api/calls/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            await reader.readuntil(b": open\n\n\r\n")
            streams.append(reader)
        begin = time.monotonic()
        for _ in range(calls):
            await it.dispatcher.call("price", {"item": "a"})
        read = [b"".join([await stream.readuntil(b"event: call") for _ in range(calls)]) for stream in streams]
        chunks = sum(len(re.findall(rb"^[0-9a-f]+\r$", each, re.MULTILINE)) for each in read)
        pause = READER_S * readers / 2
        assert chunks <= readers * (1 + 1.5 * (time.monotonic() - begin) / pause)


async def _until_data(lines):  # type: ignore[no-untyped-def] # of httpx2
    async for line in lines:
        yield line
        if line.startswith("data: "):
            return


async def test_a_service_shows_its_own_instance_and_the_dispatcher_finds_its_endpoint() -> None:
    async with observed() as it:
        await eventually(lambda: it.get("/api/peers"))
        (peer,) = await it.get("/api/peers")
        assert peer == {"url": it.server.admin_url, "name": "shop-1", "source": "announcement"}
        await it.dispatcher.call("price", {"item": "a"})
        async with httpx2.AsyncClient(base_url=peer["url"], trust_env=False) as client:
            (instance,) = (await client.get("/api/instances")).json()
            assert (instance["id"], instance["kind"], instance["requests"]) == ("shop-1", "own", 1)
            assert (await client.get("/readyz")).status_code == 200
            await it.server.drain()
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["reasons"]) == (503, ["draining"])


class Shop:
    """A tool service."""

    async def invoke(self, config: object, arguments: object) -> str:
        """Return a price."""
        return "3"


@pytest.mark.costly
async def test_a_service_has_one_name_in_all_processes_the_id_of_its_descriptor() -> None:
    broker = f"memory://{uuid4().hex}"
    keys, tools = {"id": "shop-of-today"}, [{"name": "price", "description": "Price of an item"}]
    async with (
        ToolServer(Shop(), broker, service="shop", descriptor=keys, tools=tools, admin="127.0.0.1:0") as server,
        dispatch.connect(broker, dispatch.Announced(), admin="127.0.0.1:0") as dispatcher,
        httpx2.AsyncClient(trust_env=False) as client,
    ):
        await dispatcher.call("price", {})
        for path in ("tools", "instances", "sessions"):
            for url in (dispatcher.admin_url, server.admin_url):
                rows = (await client.get(f"{url}/api/{path}")).json()
                assert [each["service"] for each in rows] == ["shop-of-today"], (url, path)


@pytest.mark.parametrize(
    ("old", "new", "problem", "words"),
    [
        ("failed", "ok", "", "source announced: ok"),
        ("", "failed", "not read yet", "source announced: new → failed not read yet"),
        ("ok", "stale", "no reply", "source announced: ok → stale no reply"),
        ("stale", "ok", "", "source announced: stale → ok"),
    ],
)
def test_a_source_that_is_read_for_the_first_time_had_not_failed(old: str, new: str, problem: str, words: str) -> None:
    event = {"event": "source", "at": 1.0, "source": "announced", "old": old, "new": new, "problem": problem}
    assert describe_event(event) == words


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            ItemRefused(0.0, "tools", "tool/x.json", "name", "it is empty", "give it one"),
            "tool/x.json name of source tools is refused: it is empty",
        ),
        (
            ItemShadowed(0.0, "price", "announced", "shop-1", "tools", "tool/price.json"),
            "price of source announced is not in force: it is that of tools",
        ),
        (ChangeHeld(0.0, "shop", "price", "1", "2"), "a definition of price of source shop waits for approval"),
    ],
)
def test_an_event_of_an_item_is_a_sentence(event: Event, words: str) -> None:
    assert describe_event(event.as_dict()) == words


PAGE = ROOT / "docs" / "reference" / "admin-api.md"


async def test_every_field_is_documented_and_every_documented_field_is_there() -> None:
    async with observed() as it:
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "bad"}, user="alice")
        await eventually(lambda: it.get("/api/peers"))  # its announcement takes up to 0.2 s
        tool, call = await it.get("/api/tools/price"), await it.get("/api/calls/1")
        (tools, calls) = await it.get("/api/tools"), await it.get("/api/calls")
        answers: dict[str, Any] = {
            "uptime": await it.get("/api/process"),
            "circuit": tools[0],
            "history": tool,
            "concurrency": (await it.get("/api/instances"))[0],
            "until": (await it.get("/api/circuits"))[0],
            "rtt": (await it.get("/api/sessions"))[0],
            "last": (await it.get("/api/users"))[0],
            "outcome": calls[0],
            "trail": call,
            "since": (await it.get("/api/sources"))[0],
            "url": (await it.get("/api/peers"))[0],
        }
        base = {"history": set(tools[0]), "trail": set(calls[0])}
        for block in blocks(PAGE):
            if block.language != "json":
                continue
            documented = json.loads(block.code)
            if "event" in documented:  # tests/unit/telemetry/test_events.py
                continue
            name = next(name for name in ("trail", "history", *answers) if name in documented)
            assert set(answers[name]) - base.get(name, set()) == set(documented), name


async def act(it: Observed, path: str, status: int = 200, **body: Any) -> Any:
    response = await it.client.post(path, json={"user": "alice", "reason": "wrong prices", **body})
    assert response.status_code == status, response.text
    return response.json()


async def test_a_circuit_is_forced_open_and_closed_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    async with observed() as it:
        event = await act(it, "/api/circuits/price", action="open")
        shown = [event[key] for key in ("action", "target", "user", "until")]
        assert shown == ["open", "circuit price", "alice", None]
        with pytest.raises(RejectedError, match="circuit breaker"):
            await it.dispatcher.call("price", {"item": "a"})
        (circuit,) = await it.get("/api/circuits")
        assert circuit["state"] == "forced-open"
        await act(it, "/api/circuits/price", action="close")
        assert await it.dispatcher.call("price", {"item": "a"}) == "3"
    assert "action: open circuit price by 'alice' (wrong prices)" in caplog.text


@pytest.mark.costly
async def test_an_action_with_a_duration_is_undone() -> None:
    async with observed() as it:
        event = await act(it, "/api/circuits/price", action="open", **{"for": 0.2})
        (circuit,) = await it.get("/api/circuits")
        assert circuit["until"] == pytest.approx(event["until"], abs=0.1)

        async def is_closed() -> bool:
            return bool((await it.get("/api/circuits"))[0]["state"] == "closed")

        await eventually(is_closed)
        undone = next(each for each in await it.get("/api/events") if each["event"] == "action")
        assert (undone["action"], undone["reason"]) == ("reset", "0.2 s are over")


async def test_an_instance_is_ejected_until_it_is_admitted() -> None:
    async with observed() as it:
        await it.dispatcher.call("price", {"item": "a"})
        await act(it, "/api/instances/shop-1", action="eject")
        (instance,) = await it.get("/api/instances")
        assert (instance["state"], instance["is_held"], instance["seconds_left"]) == ("ejected", True, None)
        assert await it.dispatcher.call("price", {"item": "a"}) == "3"  # it is the only one: panic mode
        assert (await it.get("/api/instances"))[0]["state"] == "ejected"
        await act(it, "/api/instances/shop-1", action="admit")
        assert (await it.get("/api/instances"))[0]["state"] in ("up", "warming")


async def test_a_service_is_drained_at_its_own_endpoint() -> None:
    async with observed() as it:
        await act(it, f"{it.server.admin_url}/api/instances/shop-1", action="drain")
        assert (await it.client.get(f"{it.server.admin_url}/readyz")).status_code == 503
        for path in ("circuits/price", "sources/announced/refresh", "tools/price/approve"):
            await act(it, f"{it.server.admin_url}/api/{path}", 404)


async def test_the_topic_of_a_service_whose_only_instance_was_drained_is_unanswered() -> None:
    broker = f"memory://{uuid4().hex}"
    server = ToolServer(functions=[price], service="shop", instance="shop-1", broker=broker, announce=None)
    service, tools = server.descriptors
    async with server, administered(broker, dispatch.Catalog.of([service], tools)) as (dispatcher, client):
        it = Observed(dispatcher, server, client)
        await dispatcher.call("price", {"item": "a"})
        assert [each.id for each in dispatcher.instances("shop")] == ["shop-1"]
        await server.drain()
        await eventually(lambda: [each.id for each in dispatcher.instances("shop")] == ["(shared)"])
        assert [each.state for each in dispatcher.instances("shop")] == ["up"]
        assert [(each["id"], each["state"]) for each in await it.get("/api/instances")] == [("(shared)", "unanswered")]
        assert [each["instances_up"] for each in await it.get("/api/tools")] == [0]


async def test_the_level_of_a_logger_is_set_for_a_while() -> None:
    logger = logging.getLogger("dispatch.calls")
    before = logger.level
    async with observed() as it:
        await act(it, "/api/log-level", level="DEBUG", logger="dispatch.calls", **{"for": 0.1})
        assert logger.level == logging.DEBUG
        await eventually(lambda: logger.level == before)
        await act(it, "/api/log-level", level="DEBUG", logger="dispatch.calls", **{"for": 60})
    assert logger.level == before  # the endpoint has ended, and with it what would undo the action later


@pytest.mark.costly
async def test_of_two_services_of_a_process_the_one_that_is_named_is_drained() -> None:
    broker = f"memory://{uuid4().hex}"
    functions = {"shop": price, "depot": order}
    servers = [ToolServer(functions=[of], service=id, instance="i-1", broker=broker) for id, of in functions.items()]
    admin = ServiceAdmin(Admin(), servers, Telemetry(), MemoryTransport("memory://none"))
    async with (
        servers[0],
        servers[1],
        dispatch.connect(broker, dispatch.Announced(until="order"), admin="127.0.0.1:0") as dispatcher,
        httpx2.AsyncClient(base_url=admin.url, trust_env=False) as client,
    ):
        it = Observed(dispatcher, servers[0], client)
        assert (await it.get("/api/process"))["name"] == "i-1"
        await eventually(lambda: {"price", "order"} <= set(dispatcher.catalog.tools))
        for tool in ("price", "order"):
            await dispatcher.call(tool, {"item": "a"})
        sessions = (await client.get(f"{dispatcher.admin_url}/api/sessions")).json()
        assert {each["service"] for each in sessions} == {"shop", "depot"}
        refused = await act(it, "/api/instances/i-1", 400, action="drain")
        assert "Name the service in 'service': shop, depot." in str(refused)
        page = (await client.get("/instances/i-1?service=depot", headers=HTML)).text
        assert 'data-service="depot"' in page[page.index('data-action="drain"') :].partition("</button>")[0]
        await act(it, "/api/instances/i-1", action="drain", service="depot")
        states = {each["service"]: each["state"] for each in await it.get("/api/instances")}
        assert states == {"shop": "up", "depot": "draining"}
    await admin.close()


@pytest.mark.costly
async def test_the_latest_action_on_a_target_replaces_the_earlier_ones_and_their_end() -> None:
    clock = logging.getLogger("dispatch.clock")
    logger = logging.getLogger("dispatch.calls")
    before, clock_before = logger.level, clock.level
    async with observed() as it:
        await it.dispatcher.call("price", {"item": "a"})
        await act(it, "/api/instances/shop-1", action="eject", **{"for": 0.2})
        await act(it, "/api/circuits/price", action="open", **{"for": 0.2})
        await act(it, "/api/log-level", level="DEBUG", logger="dispatch.calls", **{"for": 60})
        await act(it, "/api/instances/shop-1", action="eject", **{"for": 60})
        await act(it, "/api/circuits/price", action="disable")
        await act(it, "/api/log-level", level="ERROR", logger="dispatch.calls", **{"for": 0.2})
        await act(it, "/api/log-level", level="DEBUG", logger="dispatch.clock", **{"for": 0.3})
        await eventually(lambda: clock.level == clock_before)
        assert logger.level == before
        (instance,) = await it.get("/api/instances")
        assert instance["is_held"]
        assert 50 < instance["seconds_left"] <= 60
        assert (await it.get("/api/circuits"))[0]["state"] == "disabled"
        await act(it, "/api/instances/shop-1", action="eject", service="shop", **{"for": 0.1})
        await act(it, "/api/instances/shop-1", action="eject")
        assert (await it.get("/api/instances"))[0]["seconds_left"] is None
        await asyncio.sleep(0.3)
        assert (await it.get("/api/instances"))[0]["is_held"]


async def test_versions_are_targets_and_the_default_one_has_two_names() -> None:
    service = {"id": "lab", "request-queue": "request:tg:lab", "response-queue": "response:tg:lab"}
    tools = [
        {"type": "tool-service", "name": "work", "description": "Works", "service": "lab", "version": version}
        for version in ("1.0.0", "2.0.0")
    ]
    async with administered("memory://versions", dispatch.Catalog.of([service], tools)) as (dispatcher, client):
        it = Observed(dispatcher, None, client)  # type: ignore[arg-type] # no service
        default = (await it.get("/api/tools/work"))["version"]
        other = {"1.0.0": "2.0.0", "2.0.0": "1.0.0"}[default]
        await act(it, "/api/circuits/work", action="open", **{"for": 0.1})
        event = await act(it, "/api/circuits/work", action="open", version=default)
        assert (event["target"], event["until"]) == (f"circuit work {default}", None)
        await act(it, "/api/circuits/work", action="open", version=other, **{"for": 0.2})

        async def states() -> dict[str, str]:
            return {each["version"]: each["state"] for each in await it.get("/api/circuits")}

        async def is_closed() -> bool:
            return (await states())[other] == "closed"

        await eventually(is_closed)
        assert (await states())[default] == "forced-open"


async def test_a_service_that_is_called_without_a_tool_is_listed_and_has_a_circuit() -> None:
    service = {"id": "lab", "request-queue": "request:tg:lab", "response-queue": "response:tg:lab"}
    async with administered("memory://lab", dispatch.Catalog.of([service], [])) as (dispatcher, client):
        it = Observed(dispatcher, None, client)  # type: ignore[arg-type] # no service
        (row,) = await it.get("/api/tools")
        assert (row["name"], row["service"], row["circuit"]) == ("service:lab", "lab", None)
        await act(it, "/api/circuits/service:lab", action="open")
        tool = await it.get("/api/tools/service:lab")
        assert (tool["circuit"], tool["circuits"][0]["state"]) == ("forced-open", "forced-open")
        assert [each["target"] for each in tool["events"] if each["event"] == "action"] == ["circuit service:lab"]
        page = await client.get("/tools/service%3Alab", headers={"Accept": "text/html"})
        assert page.status_code == 200
        await act(it, "/api/circuits/service:nothing", 404, action="open")


@pytest.mark.costly
async def test_a_source_is_read_again_and_a_held_definition_is_approved(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    (folder / "tool-service").mkdir(parents=True)
    (folder / "tool").mkdir()
    (folder / "tool-service" / "lab.json").write_text(
        '{"id": "lab", "request-queue": "request:tg:lab", "response-queue": "response:tg:lab"}'
    )
    tool = folder / "tool" / "work.json"

    def write(description: str) -> None:
        tool.write_text(f'{{"type": "tool-service", "name": "work", "description": "{description}", "service": "lab"}}')

    write("Works")
    source = dispatch.Folder(folder, on_change="hold", watch=False)
    async with administered("memory://held", source, approvals=tmp_path / "approved.json") as (dispatcher, client):
        it = Observed(dispatcher, None, client)  # type: ignore[arg-type] # no service
        write("Works harder \u202enow")
        (before,) = await it.get("/api/sources")
        await act(it, f"/api/sources/{before['id']}/refresh")
        (held,) = (await it.get("/api/sources"))[0]["held"]
        page = (await client.get("/catalogue", headers=HTML)).text
        assert "<del>- &#34;description&#34;: &#34;Works&#34;,</del>" in page
        assert "<ins>+ &#34;description&#34;: &#34;Works harder \\u202enow&#34;,</ins>" in page
        assert (held["name"], dispatcher.catalog.tools["work"].description) == ("work", "Works")
        approve = f"/api/tools/{held['name']}/approve"
        await act(it, approve, 404, fingerprint="0" * 64)
        await act(it, approve, fingerprint=held["new"])
        await eventually(lambda: dispatcher.catalog.tools["work"].description != "Works")
        service = folder / "tool-service" / "lab.json"
        service.write_text(service.read_text().replace("request:tg:lab", "request:tg:lab2"))
        await act(it, f"/api/sources/{before['id']}/refresh")
        held = next(each for each in (await it.get("/api/sources"))[0]["held"] if each["key"] == "tool-service/lab")
        await act(it, "/api/tools/lab/approve", fingerprint=held["new"])
        await eventually(lambda: dispatcher.catalog.service("lab").request_queue.endswith("/lab2"))


async def test_a_mistake_changes_nothing_and_says_what_to_do() -> None:
    cases: list[tuple[str, dict[str, Any], int, str]] = [
        ("/api/circuits/price", {"action": "melt"}, 400, "one of open, close, reset, disable"),
        ("/api/circuits/price", {"action": "open", "reason": " "}, 400, "Give a 'reason'"),
        ("/api/circuits/price", {"action": "open", "user": ""}, 400, "Name who acts"),
        ("/api/circuits/price", {"action": "open", "for": -1}, 400, "'for'"),
        ("/api/circuits/price", {"action": "open", "until": 1}, 400, "unknown field"),
        ("/api/circuits/pric", {"action": "open"}, 404, "price"),
        ("/api/instances/shop-1", {"action": "drain"}, 400, "the service's own process"),
        ("/api/instances/shop-9", {"action": "eject"}, 404, "shop-9"),
        ("/api/sources/nothing/refresh", {}, 404, "announced"),
        ("/api/log-level", {"level": "DEBUG", "logger": "root"}, 400, "'logger'"),
        ("/api/log-level", {"level": "ERROR", "logger": "dispatch.audit"}, 400, "each action"),
        ("/api/log-level", {"level": "LOUD"}, 400, "'level'"),
        ("/api/nothing", {}, 404, "no such page"),
        ("/api/tools", {}, 405, "GET"),
    ]
    async with observed() as it:
        for path, body, status, text in cases:
            assert text in (await act(it, path, status, **body))["error"], (path, body)
        assert not [each for each in await it.get("/api/events") if each["event"] == "action"]


PAGES = ("/", "/tools", "/tools/price", "/instances", "/instances/shop-1", "/calls", "/catalogue", "/users")
HTML = {"Accept": "text/html"}


@pytest.mark.costly
async def test_every_page_is_there_for_a_dispatcher_and_for_a_service() -> None:
    async with observed(Admin("127.0.0.1:0", peers=("http://127.0.0.1:9",))) as it:
        await it.dispatcher.call("price", {"item": "a"})
        for base in (it.dispatcher.admin_url, it.server.admin_url):
            for path in PAGES:
                page = await it.client.get(f"{base}{path}", headers=HTML)
                assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8"), path
        overview = (await it.client.get("/")).text
        assert "out of reach" in overview
        assert f'href="{it.server.admin_url}"' in overview


async def test_what_users_and_models_write_is_text() -> None:
    async with observed() as it:
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "bad"}, user="<script>alert(1)</script>")
        await it.dispatcher.call("price", {"item": "a"}, user="\u202eecila")
        for path in ("/", "/users", "/calls", "/calls/1", "/tools/%3Cscript%3E", "/calls?tool=%22%3E%3Cscript%3E"):
            assert "<script>" not in (await it.client.get(path, headers=HTML)).text, path
        for path in ("/users", "/calls", "/calls/2"):
            assert "\\u202eecila" in (await it.client.get(path, headers=HTML)).text  # it would read as 'alice'
        found = (await it.client.get("/calls?user=%E2%80%AEecila", headers=HTML)).text
        assert 'name="user" value="\u202eecila"' in found  # the form is sent again
        assert "/calls/2" in found


async def test_a_call_of_a_tool_that_does_not_exist_is_there_with_its_name_and_its_user() -> None:
    async with observed() as it:
        for name in ("prices", "p" * 1_000):
            with pytest.raises(DispatchError):
                await it.dispatcher.call(name, {}, user="alice")
        long, call = await it.get("/api/calls?failed=1")
        assert (call["tool"], call["user"], call["error"], call["ran"]) == ("prices", "alice", "unknown-tool", "no")
        assert (len(long["tool"]), long["service"]) == (200, None)
        (user,) = await it.get("/api/users")
        assert (user["calls"], user["failed"], user["refused"]) == (2, 0, 2)
        assert [each["name"] for each in await it.get("/api/tools")] == ["price", "order"]
        for path in ("/", "/calls", "/calls/1"):
            assert "unknown-tool" in (await it.client.get(path, headers=HTML)).text


async def test_a_peer_is_a_link_only_if_it_is_http() -> None:
    script = "javascript:alert(1)"
    async with observed(Admin(peers=(script,))) as it:
        overview = (await it.client.get("/", headers=HTML)).text
        assert f"{script}: no admin endpoint" in overview
        assert 'href="javascript' not in overview


@pytest.mark.costly
async def test_pages_have_what_concerns_them_and_links_that_lead_there() -> None:
    broker = f"memory://{uuid4().hex}"
    async with (
        ToolServer(functions=[price], service="shop", instance="..", broker=broker),
        ToolServer(functions=[price], service="shop", instance="i-1", broker=broker),
        ToolServer(functions=[price], service="shop", instance="i-10", broker=broker),
        administered(broker, dispatch.Announced(), headers=HTML) as (dispatcher, client),
    ):
        await dispatcher.call("price", {"item": "a"}, user="alice")
        await eventually(lambda: len(dispatcher.instances("shop")) == 3)
        body = {"action": "eject", "reason": "new disk", "user": "alice"}
        for path in ("i-10", "%252E%252E"):
            assert (await client.post(f"/api/instances/{path}", json=body)).status_code == 200
        assert 'href="/instances/%252E%252E?service=shop"' in (await client.get("/instances")).text
        dots, one, ten = [(await client.get(f"/instances/{path}")).text for path in ("%252E%252E", "i-1", "i-10")]
        assert "alice: eject instance .. (new disk)" in dots
        assert "alice: eject instance i-10 (new disk)" in ten
        assert "new disk" not in one
        await dispatcher.call("price", {"item": "a"})
        assert 'href="/calls?user=%28no%20user%29"' in (await client.get("/users")).text
        calls = (await client.get("/calls?user=%28no%20user%29")).text
        assert "alice" not in calls
        assert 'href="/calls/2"' in calls


async def test_the_shared_topics_of_two_services_are_two_instances() -> None:
    services: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for each in ("one", "two"):
        services.append({"id": each, "request-queue": f"request:tg:{each}", "response-queue": f"response:tg:{each}"})
        tools.append({"type": "tool-service", "name": f"use-{each}", "description": "Works", "service": each})
    catalog = dispatch.Catalog.of(services, tools)
    async with administered("memory://shared", catalog, headers=HTML) as (dispatcher, client):
        for each in ("one", "two"):
            await dispatcher.execute(f"use-{each}", {}, timeout=0.1)
        body = {"action": "eject", "reason": "INC-7", "user": "alice", "for": 60}
        path = "/api/instances/%28shared%29"
        assert len((await client.get("/api/instances")).json()) == 2
        assert "'service'" in (await client.post(path, json=body)).json()["error"]
        assert (await client.post(path, json={**body, "service": "three"})).status_code == 404
        assert (await client.post(path, json={**body, "service": "two"})).status_code == 200
        assert [each["state"] for each in (await client.get("/api/instances")).json()] == ["unanswered", "ejected"]
        assert [each["instances_up"] for each in (await client.get("/api/tools")).json()] == [0, 0]
        states = {each["service"]: each["is_held"] for each in (await client.get("/api/instances")).json()}
        assert states == {"one": False, "two": True}
        listed = (await client.get("/instances")).text
        for each, is_held in states.items():
            link = f"/instances/%28shared%29?service={each}"
            assert f'href="{link}"' in listed
            page = (await client.get(link)).text
            assert f'data-service="{each}"' in page
            assert ("ejected by operator" in page, "INC-7" in page) == (is_held, is_held)


async def test_a_version_has_a_page_and_actions_of_its_own_and_a_service_has_no_circuits() -> None:
    service = {"id": "lab", "request-queue": "request:tg:lab", "response-queue": "response:tg:lab"}
    tools = [
        {"type": "tool-service", "name": "work", "description": "Works", "service": "lab", "version": version}
        for version in ("1.0.0", "2.0.0")
    ]
    versions = dispatch.Catalog.of([service], tools)
    async with administered("memory://versions", versions, headers=HTML) as (_, client):
        catalogue = (await client.get("/catalogue")).text
        for version in ("1.0.0", "2.0.0"):
            assert f'href="/tools/work?version={version}"' in catalogue
            page = (await client.get(f"/tools/work?version={version}")).text
            assert page.count(f'data-version="{version}"') == 3
    async with observed() as it:
        page = (await it.client.get(f"{it.server.admin_url}/tools/price", headers=HTML)).text
        assert "data-path" not in page
        assert "the dispatchers that call it" in page


def test_the_console_and_the_terminal_show_a_state_equally_severe() -> None:
    colours = {"ok": "green", "warn": "yellow", "bad": "red"}
    column = next(each for each in TABLES["calls"] if each.key == "outcome")
    expected = {"success": "ok", "tool_error": "warn", "timeout": "bad", "transport": "bad", "rejected": "bad"}
    expected |= {"closed": "ok", "half-open": "warn", "disabled": "warn", "metrics-only": "warn", "forced-open": "bad"}
    expected |= {"up": "ok", "warming": "ok", "paused": "warn", "draining": "warn", "ejected": "bad", "open": "bad"}
    expected |= {"ok": "ok", "stale": "warn", "failed": "bad", "not ready": "warn", "unreachable": "bad"}
    for state in {*expected, *Outcome, *State, *INSTANCE_STATES, "of a later version"}:
        tone = find_tone(state)
        assert tone == expected.get(state, "warn"), state
        assert column.style({"outcome": state}) == colours[tone], state


def test_a_page_reads_the_items_of_values_and_not_the_methods_of_their_dict() -> None:
    shown = Pages().from_string("{{ each.items }} {{ each.name }} {{ each.latest.at }}")
    assert shown.render(each={"items": 5, "name": "price", "latest": {"at": 7}}) == "5 price 7"


def test_the_broker_is_named_when_it_is_lost_and_back() -> None:
    lost = BrokerChanged(0.0, "pulsar://host:6650", False).as_dict()
    back = BrokerChanged(0.0, "pulsar://host:6650", True, 12.0).as_dict()
    assert tell_event(lost) == "broker pulsar://host:6650: lost"
    assert tell_event(back) == "broker pulsar://host:6650: back after 12.0 s"


async def test_a_peer_that_answers_otherwise_does_not_hurt_the_overview() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop())
        writer.close()

    http = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
    process = {"kind": "service", "name": "x", "ready": 1, "reasons": 5, "host": {}, "tools": "many", "uptime": None}
    answers = [b"SSH-2.0-OpenSSH_9.2\r\n", http + b"\xff", http + json.dumps(process).encode()]
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with observed(Admin(peers=tuple(f"http://127.0.0.1:{port}/{each}" for each in range(3)))) as it:
            overview = await it.client.get("/", headers=HTML)
            assert overview.text.count("no admin endpoint") == 6
            assert not answers


@pytest.mark.costly
async def test_a_peer_that_wants_a_sign_in_is_no_trouble() -> None:
    async with (
        observed(Admin(read={"bob": "read-token-0123456789"})) as peer,
        observed(Admin(peers=(str(peer.dispatcher.admin_url),))) as it,
    ):
        overview = (await it.client.get("/", headers=HTML)).text
        assert '<span class="state warn">sign-in needed</span>' in overview
        assert '<span class="state bad">' not in overview


@pytest.mark.costly
async def test_silent_peers_delay_neither_the_overview_nor_the_threads_of_the_program() -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(40)]
        urls = tuple(f"http://127.0.0.1:{each.getsockname()[1]}" for each in silent)

        async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while not ended.is_set():
                    writer.write(b"H")
                    await writer.drain()
                    await asyncio.sleep(0.1)
            closed.set()

        ended, closed = asyncio.Event(), asyncio.Event()
        async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
            slow = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with observed(Admin(peers=(*urls, slow))) as it:
                began = time.monotonic()
                pages = [asyncio.create_task(it.client.get("/", headers=HTML, timeout=30)) for _ in range(3)]
                await asyncio.sleep(0.2)
                asked = time.monotonic()
                await asyncio.to_thread(lambda: None)
                assert time.monotonic() - asked < 0.7
                for page in pages:
                    assert (await page).text.count("out of reach") >= 40
                assert time.monotonic() - began < 8
                await asyncio.wait_for(closed.wait(), 10)  # its thread has ended, too
            ended.set()


@pytest.mark.costly
async def test_a_peer_is_named_as_the_commands_name_it() -> None:
    async with observed() as peer:
        url = str(peer.dispatcher.admin_url)
        async with observed(Admin(peers=(url.removeprefix("http://"),))) as it:
            overview = (await it.client.get("/", headers=HTML)).text
            assert f'<a href="{url}">{(await peer.get("/api/process"))["name"]}</a>' in overview


async def test_every_response_has_the_headers_that_protect_a_browser() -> None:
    async with observed() as it:
        for path in ("/", "/tools/none", "/static/console.css", "/api/process", "/metrics", "/healthz"):
            headers = (await it.client.get(path, headers=HTML)).headers
            policy = headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'"), path
            assert "frame-ancestors 'none'; base-uri 'none'" in policy
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["X-Frame-Options"] == "DENY"
            assert headers["Referrer-Policy"] == "no-referrer"


async def test_what_does_not_exist_is_a_page_that_leads_back() -> None:
    paths = ("/nope", "/tools/none", "/instances/none", "/calls/99", "/static/../app.py", "/static/%00")
    async with observed() as it:
        for path in (*paths, "/static/%2e%2e%2fapp.py", f"/static/{'a' * 300}.css"):
            page = await it.client.get(path, headers=HTML)
            assert page.status_code == 404, path
            assert "To the overview" in page.text


async def test_the_page_of_an_instance_that_has_left_says_when() -> None:
    async with observed() as it:
        await it.dispatcher.call("price", {"item": "a"})
        await it.server.drain()
        path = "/instances/shop-1?service=shop"

        async def has_left() -> bool:
            return (await it.client.get(path, headers=HTML)).status_code == 404

        await eventually(has_left)
        page = (await it.client.get(path, headers=HTML)).text
        assert re.search(r"it has left, or was not called yet\. At \d\d:\d\d:\d\d: instance shop-1 of shop left", page)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        *((0.0005, "500 µs"), (0.05, "50.0 ms"), (0.9996, "1.00 s"), (90, "90.0 s")),
        *((600, "10 min"), (10_800, "3 h"), (259_200, "3 d")),
    ],
)
def test_a_duration_has_the_unit_that_fits(seconds: float, shown: str) -> None:
    assert write_duration(seconds) == shown


READ, ACT = "read-token-0123456789", "act-token-0123456789"
TOKENS = Admin("127.0.0.1:0", read={"bob": READ}, act={"alice": ACT})
BODY: dict[str, Any] = {"action": "open", "reason": "wrong prices", "user": "eve"}


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:9464", "example.org:9464"])
def test_an_address_that_others_reach_requires_tokens(address: str) -> None:
    with pytest.raises(ValueError, match="there are no tokens"):
        dispatch.connect("memory://", admin=address)


@pytest.mark.parametrize("address", ["9464", "127.0.0.1:99999", "::1:9464", ""])
def test_an_address_has_a_host_and_a_port(address: str) -> None:
    with pytest.raises(ValueError, match=r"such as |ambiguous: write "):
        dispatch.connect("memory://", admin=address)


@pytest.mark.parametrize(
    ("address", "fix"),
    [
        ("http://127.0.0.1:9464", "127.0.0.1:9464"),
        ("https://localhost:9464/metrics", "localhost:9464"),
        ("http://[::1]:9464/", "[::1]:9464"),
        ("http://", "127.0.0.1:9464"),
    ],
)
def test_an_address_that_is_a_url_is_told_what_to_write(address: str, fix: str) -> None:
    with pytest.raises(ValueError, match=rf"'{re.escape(address)}' is a URL: write {re.escape(fix)}$"):
        dispatch.connect("memory://", admin=address)


@pytest.mark.parametrize("missing", ["jinja2", "starlette"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(missing: str) -> None:
    code = f"import sys; sys.modules['{missing}'] = None; import dispatch.admin.app"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = ended.stderr.splitlines()[-1]
    assert f"ImportError: The admin endpoint needs {missing}. Install what it needs: pip install" in said
    assert "[http]" in said


@pytest.mark.parametrize("keys", [{"peers": "http://10.0.0.7:9464"}, {"hosts": "proxy.example"}])
def test_one_text_is_no_list(keys: dict[str, Any]) -> None:
    (name, value), *_ = keys.items()
    with pytest.raises(ValueError, match=re.escape(f"Fix: Admin({name}=('{value}',))")):
        Admin(**keys)


@pytest.mark.parametrize("tokens", [{"alice": "short"}, {"alice": ACT, "bob": ACT}, {"alice": "with blanks 0123456"}])
def test_a_weak_or_shared_token_is_refused(tokens: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="token"):
        Admin(act=tokens)


async def test_a_token_is_required() -> None:
    cases = [
        ("/api/tools", None, 401),
        ("/metrics", None, 401),
        ("/", None, 401),
        ("/api/tools", "unknown-token-0123456789", 401),
        ("/api/tools", READ, 200),
        ("/metrics", ACT, 200),
        ("/healthz", None, 200),
        ("/readyz", None, 200),
    ]
    async with observed(TOKENS) as it:
        for path, token, status in cases:
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            assert (await it.client.get(path, headers=headers)).status_code == status, (path, token)


async def test_a_role_limits_what_a_token_does_and_names_the_user() -> None:
    async with observed(TOKENS) as it:

        async def act(token: str) -> Any:
            headers = {"Authorization": f"Bearer {token}"}
            return await it.client.post("/api/circuits/price", json=BODY, headers=headers)

        assert (await act(READ)).status_code == 403
        assert (await act(ACT)).json()["user"] == "alice"


async def test_another_host_is_refused_against_dns_rebinding() -> None:
    cases = [
        ("evil.example", 421),
        ("evil.example:9464", 421),
        ("localhost", 200),
        ("[::1]:9464", 200),
        ("proxy.example", 200),
        ("192.0.2.7:9464", 200),  # an address is no name that could be bound to another one
        ("[2001:db8::1]", 200),
        ("192.0.2.7.evil.example", 421),
    ]
    async with observed(Admin("127.0.0.1:0", hosts=("proxy.example",))) as it:
        for host, status in cases:
            assert (await it.client.get("/api/process", headers={"Host": host})).status_code == status, host


async def test_with_tokens_any_name_leads_to_the_endpoint_and_no_cookie_of_another_name() -> None:
    async with observed(TOKENS) as it:  # as behind an ingress, or under the name of a service of compose
        for headers, status in (({}, 401), ({"Authorization": f"Bearer {READ}"}, 200)):
            answer = await it.client.get("/api/process", headers={"Host": "calculator:9464", **headers})
            assert answer.status_code == status


async def test_a_page_of_another_site_cannot_act() -> None:
    cases = [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ]
    async with observed() as it:
        for headers, status in [*cases, ({"Origin": str(it.dispatcher.admin_url)}, 200)]:
            answer = await it.client.post("/api/circuits/price", json=BODY, headers=headers)
            assert answer.status_code == status, headers
            assert ("pass the header Host on" in answer.text) == (status == 403)


async def test_a_body_has_a_limit() -> None:
    async with observed() as it:
        headers = {"Content-Type": "application/json"}
        for size, status in ((64 * 1024 + 1, 413), (60 * 1024, 400)):
            body = b'"' + b"x" * (size - 2) + b'"'
            answer = await it.client.post("/api/circuits/price", content=body, headers=headers)
            assert answer.status_code == status, size


@pytest.mark.parametrize(("size", "status"), [(10**12, 413), (100, 408)])
@pytest.mark.costly
async def test_a_body_that_does_not_arrive_holds_nothing(
    size: int, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.admin.app.BODY_S", 0.3)
    async with observed() as it:
        port = int(str(it.dispatcher.admin_url).rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /api/circuits/price HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {size}\r\n\r\n{{".encode())
        async with asyncio.timeout(10):
            assert (await reader.readline()).split()[1] == str(status).encode()
        writer.close()
        await writer.wait_closed()


async def test_other_methods_are_refused() -> None:
    async with observed() as it:
        for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
            assert (await it.client.request(method, "/api/tools")).status_code == 405
        assert (await it.client.post("/metrics", json={})).status_code == 405


async def test_a_browser_without_a_session_signs_in_and_returns_and_its_token_is_in_no_address() -> None:
    async with observed(TOKENS) as it:
        for path in ("/tools/price", "/calls?user=a%26b&failed=1", "/tools/a%2Fb%3Fc", "/instances/%252E%252E"):
            location = (await it.client.get(path, headers=HTML)).headers["Location"]
            page, _, query = location.partition("?")
            assert page == "/sign-in"
            (to,) = urllib.parse.parse_qs(query)["to"]
            assert urllib.parse.unquote(to) == urllib.parse.unquote(path)
        form = (await it.client.get("/sign-in")).text.partition("<form")[2].partition(">")[0]
        assert 'method="post"' in form


async def test_the_console_of_a_service_claims_nothing_about_calls_and_an_empty_one_says_what_is_missing() -> None:
    async with observed() as it:
        overview = (await it.client.get(f"{it.server.admin_url}/", headers=HTML)).text
        assert "has failed" not in overview
        assert "Circuits not closed" not in overview
        assert "The service accepts requests." in overview
        await it.server.drain()
        overview = (await it.client.get(f"{it.server.admin_url}/", headers=HTML)).text
        assert "this process: draining" in overview
        assert "The service accepts requests." not in overview
        calls = (await it.client.get(f"{it.server.admin_url}/calls", headers=HTML)).text
        assert "The dispatchers that call this process know its calls." in calls
        assert "No call has ended yet." in (await it.client.get("/calls", headers=HTML)).text
        assert "No call matches." in (await it.client.get("/calls?user=eve", headers=HTML)).text
    async with administered(f"memory://{uuid4().hex}") as (_, client):
        assert "no tool is loaded" in (await client.get("/", headers=HTML)).text


async def test_a_browser_gets_a_session_of_its_own_and_never_its_token() -> None:
    async with observed(TOKENS) as it:
        path, origin = "/api/tools", str(it.dispatcher.admin_url)
        cookie = (await it.client.post("/sign-in", json={"token": READ})).headers["Set-Cookie"]
        name, _, rest = cookie.partition("=")
        assert name == f"dispatch-session-{origin.rpartition(':')[2]}"
        assert READ not in cookie
        assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(rest.split("; "))
        assert (await it.client.get(path)).status_code == 200  # the client has the cookie
        assert (await it.client.post("/api/circuits/price", json=BODY)).status_code == 403
        it.client.cookies.set(name, READ)
        for headers in ({}, {"Cookie": f"{name}=unknown"}, {"Cookie": f"{name}={READ}"}):
            it.client.cookies.clear()
            assert (await it.client.get(path, headers=headers)).status_code == 401


async def test_a_sign_out_ends_the_session_of_one_browser() -> None:
    async with observed(TOKENS) as it:
        path, json = "/api/tools", {"Content-Type": "application/json"}
        cookies = []
        for token in (READ, ACT):
            answer = await it.client.post("/sign-in", json={"token": token})
            cookies.append(answer.headers["Set-Cookie"].partition(";")[0])
            it.client.cookies.clear()
        left, stays = ({"Cookie": cookie} for cookie in cookies)
        foreign = {**left, "Origin": "http://evil.example"}
        assert (await it.client.post("/sign-out", json={}, headers=foreign)).status_code == 403
        assert (await it.client.get(path, headers=left)).status_code == 200
        for _ in range(2):
            answer = await it.client.post("/sign-out", json={}, headers=left)
            assert answer.status_code == 200
            name, _, rest = answer.headers["Set-Cookie"].partition("=")
            assert name == cookies[0].partition("=")[0]
            assert {"Max-Age=0", "Path=/", "HttpOnly", "SameSite=strict"} <= set(rest.split("; "))
            assert (await it.client.get(path, headers=left)).status_code == 401
        assert (await it.client.get(path, headers=stays)).status_code == 200
        assert (await it.client.post("/sign-out", content=b"", headers=json)).status_code == 200  # without a session
        assert (await it.client.get(path, headers={"Authorization": f"Bearer {READ}"})).status_code == 200


async def test_over_tls_the_cookie_is_of_this_host_alone() -> None:
    async with observed(TOKENS) as it:
        secure = {"X-Forwarded-Proto": "https"}
        cookie = (await it.client.post("/sign-in", json={"token": READ}, headers=secure)).headers["Set-Cookie"]
        assert cookie.startswith("__Host-dispatch-session-")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
        pair = {"Cookie": cookie.partition(";")[0]}
        it.client.cookies.clear()
        assert (await it.client.get("/api/tools", headers={**secure, **pair})).status_code == 200
        assert (await it.client.get("/api/tools", headers=pair)).status_code == 401
        ended = (await it.client.post("/sign-out", json={}, headers={**secure, **pair})).headers["Set-Cookie"]
        assert ended.startswith("__Host-")
        assert "Secure" in ended.split("; ")
        assert (await it.client.get("/api/tools", headers={**secure, **pair})).status_code == 401


def test_a_session_ends_after_half_a_day_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(id: str | None) -> Caller | None:
        cookie = f"dispatch-session-9464={id}".encode()
        return callers.find(Request({"type": "http", "headers": [(b"host", b"localhost:9464"), (b"cookie", cookie)]}))

    callers = Callers(TOKENS)
    ids = [callers.sign_in(ACT) for _ in range(MAX_SESSIONS + 1)]
    assert (find(ids[0]), find(ids[1]), find(ids[-1])) == (None, Caller("alice", True), Caller("alice", True))
    now = time.monotonic() + SESSION_S
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert find(ids[-1]) is None


async def test_an_odd_body_of_a_sign_in_is_refused() -> None:
    bodies = [b"", b"[]", b"null", b"{}", b"\xff", b'"\xff"', b'{"a":' + b"[" * 60_000]
    bodies += [b'{"token": %b}' % token for token in (b"5", b"null", b'"\\ud800"')]
    async with observed(TOKENS) as it:
        for body in bodies:
            answer = await it.client.post("/sign-in", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == 400, body


@pytest.mark.costly
async def test_the_catalogue_shows_what_is_shadowed() -> None:
    broker = f"memory://{uuid4().hex}"
    sources = [dispatch.Functions(price), dispatch.Announced()]
    async with (
        ToolServer(functions=[price], service="shop", broker=broker),
        administered(broker, sources) as (_, client),
    ):

        async def list_shadowed() -> list[dict[str, Any]]:
            sources = (await client.get("/api/sources")).json()
            return [each for source in sources for each in source["shadowed"] if each["name"] == "price"]

        await eventually(list_shadowed)
        (shadowed,) = await list_shadowed()
        answer = await client.get("/catalogue")
        assert answer.status_code == 200
        assert f"price of {shadowed['active_source']}" in answer.text


async def test_a_name_that_no_tool_has_leads_to_its_calls() -> None:
    async with observed() as it:
        with pytest.raises(RejectedError):
            await it.dispatcher.call("no such/tool", {})
        await it.dispatcher.call("price", {"item": "tea"})
        for path in ("/", "/calls", "/calls/1"):
            page = (await it.client.get(path)).text
            assert 'href="/calls?tool=no%20such/tool"' in page, path
            assert "/tools/no" not in page
        page = (await it.client.get("/calls?tool=no%20such/tool")).text
        assert ("no such/tool" in page, "/tools/price" in page) == (True, False)
        assert "/tools/price" in (await it.client.get("/calls")).text


class LosableTransport(MemoryTransport):
    """Its listeners are told what a test says."""

    listener: Any

    def on_connection_change(self, listener: Any) -> None:
        self.listener = listener


async def test_a_service_has_the_loss_of_its_broker_among_its_events() -> None:
    transport = LosableTransport(f"memory://{uuid4().hex}")
    await transport.start()
    async with (
        ToolServer(functions=[price], service="shop", broker=transport, admin="127.0.0.1:0") as server,
        httpx2.AsyncClient(base_url=server.admin_url or "", trust_env=False) as client,
    ):
        transport.listener(False, 0.0)
        transport.listener(True, 12.0)
        found = (await client.get("/api/events")).json()
        shown = [(each["event"], each["connected"], each["seconds"]) for each in found]
        assert shown == [("broker", True, 12.0), ("broker", False, 0.0)]
        page = (await client.get("/")).text
        assert f"broker {transport.url}: back after 12.0 s" in page
    await transport.close()


async def test_viewers_of_a_page_share_its_rendering_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "VIEWER_S", 60.0)
    monkeypatch.setattr(console, "MAX_SHARED_S", 120.0)
    async with observed(TOKENS) as it, contextlib.AsyncExitStack() as viewers:
        alice, bob = ({"Authorization": f"Bearer {each}"} for each in (ACT, READ))

        async def read(path: str, headers: dict[str, str]) -> str:
            return (await it.client.get(path, headers=headers)).text

        async def open_page() -> None:
            stream = await viewers.enter_async_context(it.client.stream("GET", "/api/events/stream", headers=alice))
            events = await viewers.enter_async_context(contextlib.aclosing(stream.aiter_raw()))
            assert await anext(events) == b": open\n\n"

        await open_page()
        first = await read("/users", alice)
        await it.dispatcher.call("price", {"item": "tea"}, user="carol")
        assert "carol" in await read("/users", alice), "one viewer has a page of this moment"
        await open_page()
        await it.dispatcher.call("price", {"item": "tea"}, user="dave")
        assert "dave" not in await read("/users", alice)
        assert "dave" in await read("/users?more", alice)
        assert "dave" in await read("/users", bob), "what a page shows depends on its caller"
        body = {"action": "open", "reason": "test"}
        assert (await it.client.post("/api/circuits/price", json=body, headers=alice)).status_code == 200
        assert "dave" in await read("/users", alice)
        assert "carol" not in first


async def test_head_of_a_stream_leaves_the_connection_usable() -> None:
    async with observed() as it, asyncio.timeout(10):
        host, _, port = str(it.dispatcher.admin_url).removeprefix("http://").partition(":")
        for path in ("/api/events/stream", "/api/calls/stream"):
            reader, writer = await asyncio.open_connection(host, int(port))
            for method in ("HEAD", "GET"):
                writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert b"x-accel-buffering: no\r\n" in head.lower()  # a proxy sends each event at once
            assert b": open" in await reader.readuntil(b": open")
            writer.close()


async def test_a_format_that_no_one_knows_is_answered_in_the_usual_one() -> None:
    async with observed() as it:
        for accept in ("application/openmetrics-text; version=abc", "text/plain; version=1.a"):
            assert (await it.client.get("/metrics", headers={"Accept": accept})).status_code == 200


async def test_metrics_are_compressed_where_the_client_accepts_it() -> None:
    async with observed() as it:
        headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
        async with it.client.stream("GET", "/metrics", headers=headers) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            text = gzip.decompress(b"".join([part async for part in response.aiter_raw()])).decode()
        assert text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "accepted", ["", "identity", "gzip;q=0", "br, GZIP ; q=0.000", "*;q=0", "*, gzip;q=0", "deflate"]
)
@pytest.mark.costly
async def test_metrics_are_not_compressed_where_the_client_refuses_it(accepted: str) -> None:
    async with observed() as it:
        response = await it.client.get("/metrics", headers={"Accept-Encoding": accepted})
        assert "Content-Encoding" not in response.headers


@pytest.mark.parametrize("accepted", ["gzip;q=0.001", "x, GZip; q=1.0", "*", "*;q=0, gzip"])
@pytest.mark.costly
async def test_metrics_are_compressed_where_gzip_has_a_weight(accepted: str) -> None:
    async with observed() as it:
        response = await it.client.get("/metrics", headers={"Accept-Encoding": accepted})
        assert response.headers["Content-Encoding"] == "gzip"


async def test_a_port_that_is_taken_is_told_without_a_word_about_tools() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dispatcher = dispatch.connect("memory://", admin=f"127.0.0.1:{taken.getsockname()[1]}")
        fix = r"^The admin endpoint cannot be served on .*Use another port"
        with pytest.raises(dispatch.TransportError, match=fix) as refused:
            await dispatcher.start()
        assert (refused.value.type, refused.value.may_have_run) == ("port-taken", False)
        await dispatcher.close()
    elsewhere = dispatch.connect("memory://", admin=Admin("192.0.2.1:9464", act={"alice": ACT}))
    with pytest.raises(dispatch.TransportError, match="Use an address of this machine"):
        await elsewhere.start()
    await elsewhere.close()


@pytest.mark.costly
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel of Linux closes such connections")
async def test_a_reader_that_takes_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.admin.http.UNREAD_S", 1)
    async with observed() as it, asyncio.timeout(20):
        host, _, port = str(it.dispatcher.admin_url).removeprefix("http://").partition(":")
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # soon full
            reader.connect((host, int(port)))
            reader.sendall(f"GET /api/calls/stream HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
            await asyncio.to_thread(reader.recv, 10)
            assert is_open(int(port), reader.getsockname()[1])
            while is_open(int(port), reader.getsockname()[1]):
                await asyncio.gather(*(it.dispatcher.execute("price", {"item": "a"}) for _ in range(100)))


def is_open(port: int, peer: int) -> bool:
    """Whether this machine has the connection of the server's ``port`` to the port ``peer``."""
    _, *rows = Path("/proc/net/tcp").read_text().splitlines()
    found = [row.split() for row in rows]
    return any(row[1].endswith(f":{port:04X}") and row[2].endswith(f":{peer:04X}") and row[3] == "01" for row in found)
