"""One forged ``settled`` with the prefix of a dispatcher's ids ended all its calls for ever. Now an instance changes what it
knows of a dispatcher for that dispatcher's session alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, Peer, catalog, dispatching, serving
from tests.helpers.internals import attempts_of

KEPT = RESPONSES.replace("non-persistent", "persistent")


def own_topics(name: str) -> tuple[str, ...]:
    """Where an agent can send something to the instance: the topics of either layout."""
    return (
        REQUESTS,
        f"non-persistent://tg/response/dispatch-control-lab-{name}",
        f"non-persistent://tg/request/dispatch-instance-3-lab-{name}",
    )


@pytest.mark.parametrize("session", [{}, {"session": "an agent's own"}])
async def test_a_forged_settled_ends_no_call(session: dict[str, str]) -> None:
    async with serving(lambda _: "genuine", instance="one"), dispatching() as dispatcher, Peer.as_caller() as agent:
        result = await dispatcher.execute("work")
        prefix = result.request_id.split("-")[0]
        for topic in own_topics("one"):
            forged = {"id": f"{prefix}-{'f' * 14}", "reply-to": "non-persistent://tg/response/lab", "settled": "f" * 14}
            await agent.send(topic, b'{"config":"{}","arguments":"{}"}', forged | session)
        await idle()
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert [result.text for result in results] == ["genuine"] * 50


@pytest.mark.parametrize("session", [{}, {"session": "an agent's own"}])
async def test_a_forged_cancellation_or_copy_ends_no_call(session: dict[str, str]) -> None:
    go = asyncio.Event()

    async def work(arguments: dict[str, Any]) -> str:
        if "forged" in arguments:
            return "forged"
        await go.wait()
        return "genuine"

    ids: list[str] = []
    # Requests of sessions have no ids: those of the plain exchange, which a persistent topic keeps, have.
    async with (
        serving(work, instance="one", response_queue=KEPT),
        dispatching(catalog(service={"response-queue": KEPT})) as dispatcher,
        Peer.as_caller() as agent,
    ):
        new_id = attempts_of(dispatcher)._new_id
        attempts_of(dispatcher)._new_id = lambda: ids.append(new_id()) or ids[-1]  # type: ignore[func-returns-value] # one expression
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(10)]
        await advance(1)
        assert len(ids) == 10
        for topic in own_topics("one"):
            for id in ids:
                for more in ({"cancel": "1"}, {}):
                    await agent.send(
                        topic, b'{"config":"{}","arguments":"{\\"forged\\":1}"}', {"id": id} | more | session
                    )
        await advance(1)
        assert not any(call.done() for call in calls)
        go.set()
        assert [(await call).text for call in calls] == ["genuine"] * 10
