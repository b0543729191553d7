"""The identity of a session's ends: foreign inboxes, restarted instances, and two instances of one name."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.protocol.events import Failure
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import BROKER, serving
from tests.helpers.session import KEY
from tests.helpers.session_caller import calling
from tests.helpers.waiting_tool import Gate


async def test_an_inbox_of_another_dispatcher_gets_no_session() -> None:
    async with serving(lambda _: "done") as server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), calling(server, secret="not the owner's", key=KEY):
                pass
        assert server._sessions.table.refused_hellos > 0  # type: ignore[union-attr]
        assert server.malformed == server._sessions.table.refused_hellos  # type: ignore[union-attr]


async def test_a_restarted_instance_runs_no_request_of_its_former_session() -> None:
    gate = Gate()
    async with serving(gate, instance="one") as server:
        transport = server._transport
        assert isinstance(transport, MemoryTransport)
        async with calling(server) as caller:
            sent = caller.send({"n": 1})
            await idle()
            transport.cut()
            async with serving(gate, instance="one") as again:
                failure = await sent.failure()
                assert failure.may_have_run
                assert failure.reason in (Failure.RESTARTED, Failure.SILENT)
                assert gate.begun == [1]
                assert again.requests == 0


async def test_a_second_instance_of_the_same_name_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(lambda _: "a", instance="one") as first,
        serving(lambda _: "b", instance="one"),
        calling(first) as caller,
    ):
        for _ in range(12):
            assert await caller.send().text() in ("a", "b")
            await advance(1)
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len([text for text in texts if "another instance of" in text and "is named one" in text]) == 1


async def test_a_caller_that_vanishes_after_its_handshake_is_no_conflict(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(lambda _: "a", instance="one") as server:
        transport = MemoryTransport(BROKER)
        async with calling(server, transport=transport):
            transport.cut()
        await advance(60)
        assert server._sessions.table.sessions == {}  # type: ignore[union-attr]
    assert "another instance" not in caplog.text
