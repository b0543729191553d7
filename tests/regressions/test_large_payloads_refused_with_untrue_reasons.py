"""Several large payloads at once exceeded what a session retains of incomplete ones: 3 of 16 replies of 20 MB ended as above
the policy's ``max-response-bytes``, 4 of 8 requests of 30 MB as above what the service accepts.

Senders wait instead. Here everything is a hundredth of its size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dispatch import Dispatcher, Policy
from dispatch.protocol.table import SessionTable
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import dispatching, serving
from tests.helpers.protocol_settings import override_settings

MAX_PARTIAL = 1_340_000


@pytest.fixture(autouse=True)
def small_settings() -> Iterator[None]:
    with override_settings(
        max_payload_bytes=670_000,
        max_partial_bytes=MAX_PARTIAL,
        fragment_bytes=10_000,
        large_bytes=640,
        packet_bytes=2_560,
        data_window=160_000,
    ):
        yield


def _work(arguments: dict[str, Any]) -> str:
    return "x" * arguments["reply"] if "reply" in arguments else str(len(arguments["data"]))


class Tables:
    """The most bytes of incomplete payloads in one table of sessions, over all of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        receive = SessionTable.receive_packet

        def counted(table: SessionTable, data: bytes, now: float) -> Any:
            received = receive(table, data, now)
            retained = sum(session._reassembly.size for session in table.sessions.values())
            self.most = max(self.most, retained)
            return received

        monkeypatch.setattr(SessionTable, "receive_packet", counted)


async def _meet(dispatcher: Dispatcher, instances: int = 1) -> None:
    assert (await dispatcher.call("work", {"reply": 1})) == "x"
    while len(dispatcher.instances("lab")) < instances:
        await advance(1)


@pytest.mark.parametrize("size", [200_000, 670_000])
async def test_all_large_replies_arrive(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    tables = Tables(monkeypatch)
    async with serving(_work), dispatching(policy=Policy(timeout=300, max_response_bytes=670_000)) as dispatcher:
        await _meet(dispatcher)
        results = await asyncio.gather(*(dispatcher.execute("work", {"reply": size}) for _ in range(16)))
    assert [result.error for result in results] == [None] * 16
    assert {len(result.text) for result in results} == {size}
    assert 0 < tables.most <= MAX_PARTIAL // 2


async def test_all_large_arguments_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables(monkeypatch)
    async with serving(_work, max_payload_bytes=670_000), dispatching(policy=Policy(timeout=300)) as dispatcher:
        await _meet(dispatcher)
        calls = (dispatcher.execute("work", {"data": "x" * 300_000}) for _ in range(8))
        results = await asyncio.gather(*calls)
    assert [result.error for result in results] == [None] * 8
    assert {result.text for result in results} == {"300000"}
    assert 0 < tables.most <= MAX_PARTIAL // 2


async def test_many_senders_share_what_a_process_retains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of eight instances may begin three eighths of what it may alone, or one payload."""
    tables = Tables(monkeypatch)
    async with AsyncExitStack() as stack:
        for number in range(8):
            await stack.enter_async_context(serving(_work, instance=f"i{number}"))
        dispatcher = await stack.enter_async_context(dispatching(policy=Policy(timeout=300)))
        await _meet(dispatcher, 8)
        for _ in range(2):  # the first calls go to instances that have not answered yet
            await asyncio.gather(*(dispatcher.execute("work", {"reply": 1}) for _ in range(32)))
        tables.most = 0
        results = await asyncio.gather(*(dispatcher.execute("work", {"reply": 100_000}) for _ in range(64)))
    assert [result.error for result in results] == [None] * 64
    assert len({result.instance for result in results}) == 8
    assert 0 < tables.most <= 3 * MAX_PARTIAL // 2


async def test_a_reply_above_the_readers_own_limit_names_it() -> None:
    async with serving(_work), dispatching(policy=Policy(max_response_bytes=100_000)) as dispatcher:
        await _meet(dispatcher)
        result = await dispatcher.execute("work", {"reply": 100_001})
    assert result.error.type == "response-limit-exceeded"
    assert "max-response-bytes" in result.error.message


async def test_a_reply_that_policy_and_service_allow_arrives_whatever_the_default_is() -> None:
    async with (
        serving(_work, max_payload_bytes=3_000_000),
        dispatching(policy=Policy(timeout=300, max_response_bytes=3_000_000)) as dispatcher,
    ):
        await _meet(dispatcher)
        results = await asyncio.gather(*(dispatcher.execute("work", {"reply": 2_000_000}) for _ in range(3)))
    assert [len(result.text) for result in results] == [2_000_000] * 3
