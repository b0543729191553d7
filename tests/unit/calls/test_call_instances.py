"""Calls of a service with several instances: load balancing and outlier detection."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from dispatch import RejectedError
from dispatch.resilience.breaker import State
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import catalog, dispatching, serving
from tests.helpers.guarded_tool import Gate, tools


async def test_instances_with_topics_of_their_own_take_turns() -> None:
    topics = [
        {
            "id": name,
            "request-queue": f"non-persistent://tg/request/lab-{name}",
            "response-queue": f"non-persistent://tg/response/lab-{name}",
        }
        for name in ("x", "y")
    ]
    async with contextlib.AsyncExitStack() as stack:
        for each in topics:
            await stack.enter_async_context(
                serving(
                    lambda _, name=each["id"]: name,
                    request_queue=each["request-queue"],
                    response_queue=each["response-queue"],
                    instance=each["id"],
                )
            )
        dispatcher = await stack.enter_async_context(dispatching(catalog(service={"instances": topics})))
        assert dispatcher.instances("lab") == ()
        answers = Counter([await dispatcher.call("work") for _ in range(10)])
        assert answers == {"x": 5, "y": 5}
        assert {view.id: view.state for view in dispatcher.instances("lab")} == {"x": "warming", "y": "warming"}
        with pytest.raises(RejectedError):
            dispatcher.instances("nothing")


async def test_an_instance_that_fails_is_left_out() -> None:
    async def fine(_: dict[str, Any]) -> str:
        return "fine"

    stuck = Gate()
    tool = tools(idempotent=True, policy={"attempt-timeout": 0.5, "timeout": 5})
    async with serving(stuck, instance="stuck"), serving(fine, instance="fine"), dispatching(tool) as dispatcher:
        await dispatcher.execute("work")
        await advance(0.5)
        results = [await dispatcher.execute("work") for _ in range(40)]
        assert all(result.ok for result in results)
        assert sum(result.attempts for result in results) <= 40 + 8
        assert {view.id: view.state for view in dispatcher.instances("lab")}["stuck"] == "ejected"


@pytest.mark.usefixtures("exact_breakers")
async def test_when_a_tool_is_well_again_its_instances_are() -> None:
    well = False

    async def work(_: dict[str, Any]) -> str:
        if not well:
            await asyncio.sleep(100)
        return "done"

    settings = {"consecutive-failures": 20, "open-duration": 5, "half-open-calls": 2}
    policy = {"timeout": 1, "breaker": settings, "outlier-detection": {"consecutive-failures": 3}}
    async with contextlib.AsyncExitStack() as stack:
        for name in "abcd":
            await stack.enter_async_context(serving(work, instance=name))
        dispatcher = await stack.enter_async_context(dispatching(tools(policy=policy)))
        while dispatcher.breaker("work").state is not State.OPEN:
            await dispatcher.execute("work")
        assert sum(view.state == "ejected" for view in dispatcher.instances("lab")) == 2
        well = True
        await advance(5)
        assert [await dispatcher.call("work") for _ in range(2)] == ["done"] * 2
        assert dispatcher.breaker("work").state is State.CLOSED
        assert [view.state for view in dispatcher.instances("lab") if view.state == "ejected"] == []
