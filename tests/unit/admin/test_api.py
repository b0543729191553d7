"""``/api/`` of a dispatcher and of a service: what an operator reads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from uuid import uuid4

import httpx2
import pytest

import dispatch
from dispatch import DispatchError, Telemetry, ToolServer
from dispatch.admin.api import describe_event
from tests.helpers.admin_endpoint import observed

pytestmark = pytest.mark.wall_clock


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


async def test_a_call_is_found_by_its_number_its_request_and_shows_its_attempts() -> None:
    async with observed() as it:
        with contextlib.suppress(DispatchError):
            await it.dispatcher.call("price", {"item": "bad"}, user="bob")
        await it.dispatcher.call("price", {"item": "a"}, user="alice")
        latest, failed = await it.get("/api/calls")
        assert (latest["user"], latest["outcome"], latest["ran"], latest["instance"]) == (
            "alice",
            "success",
            "yes",
            "shop-1",
        )
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


async def test_readers_of_the_stream_of_calls_hardly_delay_the_calls() -> None:
    async with observed() as it, contextlib.AsyncExitStack() as stack:

        async def measure() -> float:
            """Return the median of the durations of calls that follow each other."""
            durations = []
            for _ in range(200):
                began = time.perf_counter()
                await it.dispatcher.call("price", {"item": "a"})
                durations.append(time.perf_counter() - began)
            return statistics.median(durations)

        alone = await measure()
        host, _, port = str(it.dispatcher.admin_url).removeprefix("http://").partition(":")
        for _ in range(60):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            writer.write(f"GET /api/calls/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            await reader.readuntil(b": open")
        assert await measure() < 3 * alone


async def _until_data(lines):  # type: ignore[no-untyped-def] # of httpx2
    async for line in lines:
        yield line
        if line.startswith("data: "):
            return


async def test_a_service_shows_its_own_instance_and_the_dispatcher_finds_its_endpoint() -> None:
    async with observed() as it:
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
