"""One forged announcement with a later incarnation silenced a tool, and so did the restart of a named instance on a clock
that was behind. Now incarnations are random, and the one that answers a challenge last is the current one."""

from __future__ import annotations

import asyncio
import time

import pytest

from dispatch.transports import Mode
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, Peer, dispatching, serving


async def test_a_forged_later_incarnation_silences_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(lambda _: "genuine", instance="one"), dispatching() as dispatcher, Peer.as_caller() as forger:
        assert await dispatcher.call("work") == "genuine"
        said = {"here": REQUESTS, "instance": "one", "incarnation": "f" * 32, "features": "session"}
        for name in ("hello", "announce"):
            control = "non-persistent://tg/response/dispatch-control-lab-one"
            await forger.send(f"non-persistent://tg/response/dispatch-{name}-lab", b"", said | {"control": control})
        await advance(0.1)
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert [result.text for result in results] == ["genuine"] * 50
    assert "another instance of" in caplog.text


async def test_an_instance_that_restarts_on_a_clock_that_is_behind_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dispatching() as dispatcher:
        life = serving(lambda _: "former", instance="one")
        former = await life.__aenter__()
        assert await dispatcher.call("work") == "former"
        await former._transport.close()  # killed: it says no goodbye
        now = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
        async with serving(lambda _: "new", instance="one"):
            await advance(1)
            results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
            assert [result.text for result in results] == ["new"] * 50
        await former.close()


async def test_two_instances_of_one_name_are_told_of_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(lambda _: "a", instance="one"),
        dispatching() as dispatcher,
        serving(lambda _: "b", instance="one"),
    ):
        for _ in range(5):
            await advance(11)  # it asks who is there
            assert (await dispatcher.call("work")) in ("a", "b")
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("two instances" in text and "named one" in text for text in texts), "the dispatcher"
    assert any("another instance" in text and "named one" in text for text in texts), "the instance"


async def test_what_a_drained_instance_has_is_finished_while_its_successor_of_the_same_name_runs() -> None:
    """Neither of the two speaks for the other one."""
    go = asyncio.Event()

    async def work(_: object) -> str:
        await go.wait()
        return "former"

    async with dispatching() as dispatcher, serving(work, instance="one") as former:
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        draining = asyncio.create_task(former.drain())
        async with serving(lambda _: "new", instance="one"):
            await advance(1)
            assert await dispatcher.call("work") == "new"
            await advance(3)
            go.set()
            assert (await call).text == "former"
            await draining


async def test_a_third_party_that_listens_to_announcements_sees_no_secret() -> None:
    async with Peer.as_caller(RESPONSES) as agent:
        seen: list[dict[str, str]] = []
        for name in ("dispatch-announce-lab", "dispatch-hello-lab"):
            await agent.transport.subscribe(
                f"non-persistent://tg/response/{name}",
                lambda message: seen.append(dict(message.properties())),
                mode=Mode.FANOUT,
                name="agent",
            )
        async with serving(lambda _: "done"), dispatching() as dispatcher:
            assert await dispatcher.call("work") == "done"
        assert len(seen) >= 1
        assert all("session" not in each for each in seen)
