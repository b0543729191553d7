"""The guards around a client of TrustGraph's, which knows nothing of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dispatch
from dispatch import (
    Annotations,
    CallTimeoutError,
    Policy,
    PolicyError,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)
from dispatch.policy import Retry
from dispatch.resilience.breaker import State
from dispatch.resilience.bulkhead import QueueLimits
from tests.helpers.clock import advance, idle

IDEMPOTENT = Annotations(idempotent=True)


def now() -> float:
    return asyncio.get_running_loop().time()


class Client:
    """Does what ``script`` says, call by call; the last thing for ever."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.calls = 0
        self.running = 0

    async def call(self, config: Any, arguments: Any, timeout: float = 600) -> str:
        step = self.script[min(self.calls, len(self.script) - 1)]
        self.calls += 1
        self.running += 1
        try:
            if isinstance(step, float):
                await asyncio.sleep(step)
                return "done"
            if isinstance(step, BaseException):
                raise step
            return str(step)
        finally:
            self.running -= 1

    async def call_streaming(self, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> str:
        self.calls += 1
        for step in self.script:
            if isinstance(step, BaseException):
                raise step
            await callback(step)
        return "".join(self.script)


@pytest.mark.usefixtures("exact_breakers")
async def test_a_client_that_fails_is_left_alone_until_it_is_well() -> None:
    client = Client(100.0, 100.0, 100.0, "well")
    policy = Policy(timeout=1, breaker={"consecutive-failures": 3, "half-open-calls": 1})  # type: ignore[arg-type] # as in a descriptor
    wrapped = dispatch.wrap(client, tool="work", policy=policy)
    for _ in range(3):
        with pytest.raises(CallTimeoutError):
            await wrapped.call({}, {})
    assert wrapped.breaker.state is State.OPEN
    began = now()
    with pytest.raises(RejectedError, match="'work' was not executed: its circuit breaker is open") as caught:
        await wrapped.call({}, {})
    assert (now(), client.calls) == (began, 3)
    assert caught.value.retry_after == pytest.approx(5, abs=0.1)
    await advance(5)
    assert await wrapped.call({}, {}) == "well"
    assert wrapped.breaker.state is State.CLOSED


async def test_what_may_have_run_is_repeated_only_where_that_is_declared_harmless() -> None:
    away = ConnectionError("broker away")
    once = Client(away, "done")
    with pytest.raises(TransportError):
        await dispatch.wrap(once, tool="work").call({}, {})
    assert once.calls == 1
    again = Client(away, "done")
    assert await dispatch.wrap(again, tool="work", annotations=IDEMPOTENT).call({}, {}) == "done"
    assert again.calls == 2


async def test_a_tools_own_error_is_told_at_once() -> None:
    client = Client(RuntimeError("no such topic"), "done")
    with pytest.raises(ToolError, match="no such topic") as caught:
        await dispatch.wrap(client, tool="work", annotations=IDEMPOTENT).call({}, {})
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert client.calls == 1


async def test_each_attempt_has_its_time_and_the_call_has_one() -> None:
    client = Client(100.0, "done")
    wrapped = dispatch.wrap(client, tool="work", policy=Policy(timeout=10, attempt_timeout=2), annotations=IDEMPOTENT)
    began = now()
    assert await wrapped.call({}, {}) == "done"
    assert 2 <= now() - began <= 2.2
    hanging = Client(100.0)
    wrapped = dispatch.wrap(hanging, tool="work", policy=Policy(timeout=5, attempt_timeout=2), annotations=IDEMPOTENT)
    began = now()
    with pytest.raises(CallTimeoutError) as caught:
        await wrapped.call({}, {})
    assert now() - began <= 5.1
    assert caught.value.retryable
    assert hanging.running == 0


async def test_rates_and_places_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=1))
    limited = dispatch.wrap(Client("done"), tool="work", policy=Policy(user_rate_limit={"rate": "1/s", "max-wait": 0}))  # type: ignore[arg-type] # as in a descriptor
    assert await limited.call("ann", {}, {}) == "done"
    with pytest.raises(ThrottledError) as caught:
        await limited.call("ann", {}, {})
    assert (caught.value.type, caught.value.rejected_by) == ("rate-limited", "user-rate-limit")
    assert await limited.call("bob", {}, {}) == "done"
    slow = Client(5.0)
    narrow = dispatch.wrap(slow, tool="work", policy=Policy(bulkhead={"max-concurrent-calls": 1, "max-wait": 9}))  # type: ignore[arg-type] # likewise
    calls = [asyncio.create_task(narrow.call({}, {})) for _ in range(2)]
    await idle()
    with pytest.raises(ThrottledError) as caught:
        await narrow.call({}, {})
    assert caught.value.type == "bulkhead-full"
    assert await asyncio.gather(*calls) == ["done", "done"]


async def test_a_caller_that_leaves_gives_its_place_back_and_counts_as_nothing() -> None:
    slow = Client(5.0)
    policy = Policy(bulkhead={"max-concurrent-calls": 1, "max-wait": 0}, breaker={"consecutive-failures": 1})  # type: ignore[arg-type] # likewise
    wrapped = dispatch.wrap(slow, tool="work", policy=policy)
    for _ in range(3):
        call = asyncio.create_task(wrapped.call({}, {}))
        await idle()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await idle()  # until the client has ended
    assert wrapped.breaker.state is State.CLOSED
    assert await wrapped.call({}, {}) == "done"


async def test_a_slow_call_is_hedged() -> None:
    client = Client(50.0, "fast")
    wrapped = dispatch.wrap(client, tool="work", policy=Policy(hedging=0.5), annotations=IDEMPOTENT)
    began = now()
    assert await wrapped.call({}, {}) == "fast"
    assert now() - began == pytest.approx(0.5, abs=0.01)
    assert client.running == 0


async def test_a_stream_is_not_begun_again_once_a_chunk_was_given() -> None:
    chunks: list[str] = []
    client = Client("Once", ConnectionError("broker away"))
    with pytest.raises(TransportError):
        await dispatch.wrap(client, tool="work", annotations=IDEMPOTENT).call_streaming({}, {}, chunks.append)
    assert (chunks, client.calls) == (["Once"], 1)
    silent = Client(ConnectionError("broker away"))
    with pytest.raises(TransportError):
        await dispatch.wrap(silent, tool="work", annotations=IDEMPOTENT).call_streaming({}, {}, chunks.append)
    assert silent.calls == 3


def test_what_must_not_be_repeated_is_refused_when_it_is_wrapped() -> None:
    with pytest.raises(PolicyError, match="hedging"):
        dispatch.wrap(Client("x"), tool="work", policy=Policy(hedging="p95"))


async def test_who_has_no_breaker_is_told_so() -> None:
    wrapped = dispatch.wrap(Client("x"), tool="work", policy=Policy(breaker=None, bulkhead=None, retry=Retry(1)))
    with pytest.raises(ValueError, match="has no breaker"):
        _ = wrapped.breaker
    assert await wrapped.call({}, {}) == "x"
