"""A call with an unknown ``priority`` was queued before all batch calls: it is an error, and nothing is sent. ``null`` for
``retry``, ``health``, ``balancing`` and ``single-flight`` was refused: it switches each off, as for the other parts.
A tool of an MCP server whose schema is in draft-04, -06 or -07, or has a pattern of JavaScript, was refused.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from typing import Any

import pytest

import dispatch
from dispatch import Catalog, InvalidArgumentsError, Outcome, Policy, ToolError
from dispatch.cli.check import plan_of
from dispatch.policy import Balancing, OutlierDetection, PolicyError, Retry, parse_policy
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import Peer, Service, catalog, dispatching, serving, stand

OFF = {"retry": None, "outlier-detection": None, "balancing": None, "single-flight": None}


def tools(policy: dict[str, Any], **keys: Any) -> Catalog:
    return catalog(work={"policy": policy, **keys})


# -- priority -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("priority", ["urgent", "Batch", "", 5, ["batch"]])
async def test_an_unknown_priority_is_an_error_and_nothing_is_sent(priority: Any) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        result = await dispatcher.execute("work", priority=priority)
        assert (result.outcome, result.attempts) == (Outcome.INVALID_ARGUMENTS, 0)
        assert isinstance(result.error, InvalidArgumentsError)
        assert result.error.type == "unknown-priority"
        assert "interactive, batch" in result.error.message
        with pytest.raises(InvalidArgumentsError, match="was not executed"):
            await anext(dispatcher.stream("work", priority=priority))
        assert peer.arrived.empty()


async def test_known_priorities_are_those_of_the_policy() -> None:
    policy = {"bulkhead": {"priorities": ["chat", "night"]}}
    async with stand(lambda _: "done", tools(policy)) as (dispatcher, _):
        assert await dispatcher.call("work", priority="night") == "done"
        with pytest.raises(InvalidArgumentsError, match="chat, night"):
            await dispatcher.call("work", priority="batch")


async def test_without_a_bulkhead_there_is_no_queue_and_a_priority_has_no_effect() -> None:
    async with stand(lambda _: "done", tools({"bulkhead": None})) as (dispatcher, _):
        assert await dispatcher.call("work", priority="batch") == "done"


async def test_a_priority_that_a_reload_removes_does_not_jump_the_queue() -> None:
    order: list[str] = []

    async def work(arguments: dict[str, Any]) -> str:
        order.append(arguments["who"])
        await asyncio.sleep(0.1)
        return "done"

    before = tools({"bulkhead": {"max-concurrent-calls": 1, "priorities": ["interactive", "batch"]}})
    after = tools({"bulkhead": {"max-concurrent-calls": 1, "priorities": ["interactive", "night"]}})
    async with stand(work, before) as (dispatcher, _):
        calls = [asyncio.create_task(dispatcher.call("work", {"who": "first"}))]
        await idle()
        calls.append(asyncio.create_task(dispatcher.call("work", {"who": "batch"}, priority="batch")))
        await idle()
        await dispatcher.reload(after)
        calls.append(asyncio.create_task(dispatcher.call("work", {"who": "chat"})))
        await asyncio.gather(*calls)
    assert order == ["first", "chat", "batch"]


# -- null -----------------------------------------------------------------------------------------------------------
def test_null_is_accepted_and_a_part_switched_on_again_begins_with_the_defaults() -> None:
    base = parse_policy(
        {
            "retry": {"max-backoff": 1},
            "outlier-detection": {"panic-threshold": 0.2},
            "balancing": "least-request",
            "single-flight": True,
        }
    )
    off = base.merged(OFF)
    assert (off.retry, off.outlier_detection, off.balancing, off.single_flight) == (None, None, Balancing(), False)
    assert Policy(retry=None, outlier_detection=None, balancing=None, single_flight=None) == off  # type: ignore[arg-type]  # as in JSON
    again = off.merged(
        {
            "retry": {"initial-backoff": 0.1},
            "outlier-detection": {"max-ejection-ratio": 0.9},
            "balancing": {"choice-count": 3},
        }
    )
    assert (again.retry, again.outlier_detection) == (
        Retry(initial_backoff=0.1),
        OutlierDetection(max_ejection_ratio=0.9),
    )
    assert again.balancing == Balancing(choice_count=3)


@pytest.mark.parametrize("key", ["timeout", "known-instances-only", "max-response-bytes"])
def test_what_is_no_part_cannot_be_null(key: str) -> None:
    with pytest.raises(PolicyError, match=f"'{key}'"):
        parse_policy({key: None})


async def test_retry_null_repeats_nothing() -> None:
    runs: list[int] = []

    def fail(_: dict[str, Any]) -> str:
        runs.append(1)
        raise ToolError("busy", "come back")

    on = {"retry": {"retryable-errors": ["busy"]}}
    async with stand(fail, tools(on, idempotent=True)) as (dispatcher, _):
        assert (await dispatcher.execute("work")).attempts == 3
    async with stand(fail, tools(on | {"retry": None}, idempotent=True)) as (dispatcher, _):
        assert (await dispatcher.execute("work")).attempts == 1
    assert len(runs) == 4


async def test_retry_null_keeps_hedges() -> None:
    async def work(_: dict[str, Any]) -> str:
        await asyncio.sleep(1)
        return "done"

    policy = {"retry": None, "hedging": 0.1}
    async with (
        serving(work, instance="one"),
        serving(work, instance="two"),
        dispatching(tools(policy, idempotent=True)) as dispatcher,
    ):
        await advance(2)
        assert (await dispatcher.execute("work")).attempts == 2


@pytest.mark.parametrize(("health", "share"), [({}, (5, 5)), (None, (50, 50))])
async def test_health_null_ejects_no_instance(health: dict[str, Any] | None, share: tuple[int, int]) -> None:
    runs: Counter[str] = Counter()

    async def hang(_: dict[str, Any]) -> str:
        runs["ill"] += 1
        await asyncio.sleep(3600)
        return "never"

    def answer(_: dict[str, Any]) -> str:
        runs["well"] += 1
        return "done"

    policy = {"timeout": 0.2, "outlier-detection": health, "breaker": None, "retry": None}
    async with (
        serving(Service(hang), instance="ill"),
        serving(Service(answer), instance="well"),
        dispatching(catalog(service={"policy": policy})) as dispatcher,
    ):
        await advance(60)  # an instance that joined is beyond its slow start
        for _ in range(100):
            await dispatcher.execute("work")
        ejected = [view.id for view in dispatcher.instances("lab") if view.ejections]
        assert share[0] <= runs["ill"] <= share[1], runs
        assert bool(ejected) == (health is not None)


async def test_health_switched_off_by_a_reload_returns_the_ejected_instance() -> None:
    failing = True

    async def work(_: dict[str, Any]) -> str:
        if failing:
            await asyncio.sleep(3600)
        return "done"

    policy: dict[str, Any] = {
        "timeout": 0.2,
        "outlier-detection": {"base-ejection-time": 300},
        "breaker": None,
        "retry": None,
    }
    async with (
        serving(Service(work), instance="one"),
        serving(Service(work), instance="two"),
        serving(Service(work), instance="three"),
        dispatching(catalog(service={"policy": policy})) as dispatcher,
    ):
        for _ in range(30):
            await dispatcher.execute("work")
        assert any(view.state == "ejected" for view in dispatcher.instances("lab"))
        failing = False
        await dispatcher.reload(catalog(service={"policy": policy | {"outlier-detection": None}}))
        assert await dispatcher.call("work") == "done"
        assert {view.state for view in dispatcher.instances("lab")} == {"up"}


async def test_balancing_null_is_round_robin_whatever_the_service_says() -> None:
    runs: Counter[str] = Counter()

    def counted(name: str) -> Service:
        def work(_: dict[str, Any]) -> str:
            runs[name] += 1
            return "done"

        return Service(work)

    both = catalog(service={"policy": {"balancing": "peak-ewma"}}, work={"policy": {"balancing": None}})
    async with (
        serving(counted("one"), instance="one"),
        serving(counted("two"), instance="two"),
        dispatching(both) as dispatcher,
    ):
        await advance(60)
        for _ in range(40):
            await dispatcher.call("work")
    assert runs == {"one": 20, "two": 20}


async def test_single_flight_null_shares_no_exchange() -> None:
    service = Service(lambda _: "done")
    both = catalog(
        service={"policy": {"single-flight": True}}, work={"policy": {"single-flight": None}, "read-only": True}
    )
    async with stand(service, both) as (dispatcher, _):
        await asyncio.gather(*(dispatcher.call("work", {"same": 1}) for _ in range(5)))
    assert len(service.requests) == 5


def test_the_plan_says_what_null_switched_off() -> None:
    plan = plan_of(tools({**OFF, "hedging": None}, idempotent=True), "work")
    assert not {"retry", "outlier-detection", "single-flight"} & set(plan.guards)
    assert plan.retries == "none"
    rows = {row.key: (row.value, row.source) for row in plan.rows}
    assert (rows["retry"], rows["outlier-detection"]) == ((None, "tool"), (None, "tool"))
    assert rows["balancing.strategy"] == ("round-robin", "tool")
    assert rows["single-flight"] == (False, "tool")


SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        info = {"name": "server", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        result = {"tools": json.loads(sys.argv[1])}
    else:
        result = {"content": [{"type": "text", "text": "done"}]}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


D4, D6, D7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (4, 6, 7))


TUPLE: dict[str, Any] = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False}


PATTERN = {"oneOf": [{"type": "string", "pattern": "^[^]+$"}, {"type": "integer"}]}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[Any], list[Any]]] = {
    # schema of the argument, further keywords of the root, arguments that are right, arguments that are wrong
    "tuple": (TUPLE, {}, [["x", 1], ["x"]], [[1, "x"], ["x", 1, 2]]),
    "tuple-of-draft-07": (TUPLE, {"$schema": D7}, [["x", 1]], [["x", 1, 2]]),
    "flag": ({"minimum": 3, "exclusiveMinimum": True}, {}, [4], [3]),
    "flag-of-draft-04": ({"maximum": 3, "exclusiveMaximum": False}, {"$schema": D4}, [3], [4]),
    "place": ({"$ref": "#P"}, {"definitions": {"p": {"$id": "#P", "type": "null"}}}, [None], [1]),
    "place-of-draft-04": (
        {"$ref": "#P"},
        {"$schema": D4, "definitions": {"p": {"id": "#P", "type": "null"}}},
        [None],
        [1],
    ),
    "beside-a-reference": (
        {"$ref": "#/definitions/p", "minLength": 5},
        {"$schema": D6, "definitions": {"p": {"type": "string"}}},
        ["x"],
        [1],
    ),
    "javascript": (PATTERN, {}, ["x", 1], [None]),
    "backreference": ({"type": "string", "pattern": r"^(?<a>\w)\k<a>$"}, {"$schema": D7}, ["aa"], [1]),
    "python": ({"type": "string", "pattern": r"(?P<a>x)\Z"}, {}, ["x"], [1]),
}


@pytest.mark.wall_clock
async def test_the_tools_are_used_and_their_arguments_are_checked() -> None:
    tools = [
        {"name": name, "inputSchema": {"type": "object", "properties": {"a": schema}, **keywords}}
        for name, (schema, keywords, _, _) in CASES.items()
    ]
    servers = {"s": {"command": sys.executable, "args": ["-c", SERVER, json.dumps(tools)]}}
    async with dispatch.connect("memory://", dispatch.McpServers({"mcpServers": servers})) as dispatcher:
        (source,) = dispatcher.registry.sources()
        assert (source.tools, source.refused) == (len(CASES), 0)
        for name, (_, _, right, wrong) in CASES.items():
            for value in right:
                result = await dispatcher.execute(name, {"a": value}, by_model=True)
                assert (result.error, result.text) == (None, "done"), (name, value)
            for value in wrong:
                error = (await dispatcher.execute(name, {"a": value}, by_model=True)).error
                assert error is not None, (name, value)
                assert error.type == "invalid-arguments"
