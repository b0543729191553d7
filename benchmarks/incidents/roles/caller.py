"""An agent: a dispatcher with one tool, called at a fixed rate."""

from __future__ import annotations

import asyncio
from typing import Any

import dispatch
from benchmarks.incidents.figures import RIGHT
from benchmarks.incidents.roles.load import Load
from benchmarks.workers.channel import Channel

TOOL = "digest"


def catalog_of(spec: dict[str, Any], tools: int = 1) -> dispatch.Catalog:
    """One service and its tools, named ``digest``, ``digest-1`` …; they have the policy of the spec, else the default."""
    return dispatch.Catalog.of(
        services=[{"id": "digest-service", "request-queue": spec["request"], "response-queue": spec["response"]}],
        tools=[
            {
                "type": "tool-service",
                "name": f"{TOOL}-{number}" if number else TOOL,
                "description": "Returns a digest.",
                "service": "digest-service",
                "read-only": spec.get("read_only", False),
                "policy": spec.get("policy", {}),
            }
            for number in range(tools)
        ],
    )


def dispatcher_of(spec: dict[str, Any], tools: int = 1) -> dispatch.Dispatcher:
    """A dispatcher that is not yet connected."""
    return dispatch.connect(
        spec["url"],
        catalog_of(spec, tools),
        security=dispatch.Security(token=spec.get("token")),
        client_id=spec.get("name"),
    )


async def main() -> None:
    """Connect, then execute the driver's commands."""
    channel = Channel()
    spec = channel.first()
    timeout = spec["timeout"]
    async with dispatcher_of(spec) as dispatcher:
        load = Load(lambda secret: dispatcher.execute(TOOL, {"secret": secret}, timeout=timeout), spec.get("mark", ""))
        channel.ready()
        async for command in channel.commands():
            match command["do"]:
                case "reach":
                    channel.say(await reach(load, command["seconds"]))
                case "begin":
                    load.begin(command["rate"])
                    channel.say({})
                case "take":
                    channel.say({"calls": load.take(), "breaker": str(dispatcher.breaker(TOOL).state)})
                case "end":
                    await load.end()
                    channel.say({"calls": load.take(), "breaker": str(dispatcher.breaker(TOOL).state)})


async def reach(load: Load, seconds: float) -> dict[str, Any]:
    """Call until a call succeeds, for ``seconds`` at most."""
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while (kind := await load.call()) != RIGHT and clock() < end:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.1)
    return {"kind": kind}


if __name__ == "__main__":
    asyncio.run(main())
