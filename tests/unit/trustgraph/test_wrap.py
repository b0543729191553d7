"""Our path around TrustGraph's own client: one deadline and typed errors, whatever the client itself does.
The guards around a client of TrustGraph's, which knows nothing of them.
Permissions around TrustGraph's own client: a refused call does not reach it and charges no guard.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from dispatch import (
    Annotations,
    CallTimeoutError,
    Grants,
    Policy,
    PolicyError,
    RejectedError,
    Telemetry,
    ThrottledError,
    ToolError,
    TransportError,
)
from dispatch.errors import InvalidArgumentsError
from dispatch.policy import Retry
from dispatch.resilience.breaker import State
from dispatch.resilience.bulkhead import QueueLimits
from dispatch.trustgraph.client import CLEANUP_S
from tests.helpers.clock import START, advance, idle, run

CONFIG, ARGUMENTS = {"style": "pun"}, {"topic": "cats"}


class Published:
    """As in the published package 2.11.1. ``work`` decides what happens."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.calls: list[tuple[Any, ...]] = []

    async def call(self, config: Any, arguments: Any, timeout: float = 600) -> Any:
        self.calls.append((config, arguments, timeout))
        return await self.work()

    async def call_streaming(self, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> Any:
        self.calls.append((config, arguments, timeout))
        for chunk in ("Once", " upon"):
            await callback(chunk)
        return await self.work()


class Specified:
    """As in the specification."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.inner = Published(work)
        self.users: list[str] = []

    async def call(self, user: str, config: Any, arguments: Any, timeout: float = 600) -> Any:
        self.users.append(user)
        return await self.inner.call(config, arguments, timeout)

    async def call_streaming(self, user: str, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> Any:
        self.users.append(user)
        return await self.inner.call_streaming(config, arguments, callback, timeout)


async def ha() -> str:
    return "ha"


def failing(error: BaseException) -> Callable[[], Any]:
    async def work() -> None:
        raise error

    return work


WAYS_TO_CALL: list[tuple[tuple[Any, ...], dict[str, Any], str, float]] = [
    ((CONFIG, ARGUMENTS), {}, "", 600),
    ((CONFIG, ARGUMENTS), {"timeout": 5}, "", 5),
    (("alice", CONFIG, ARGUMENTS), {}, "alice", 600),
    ((), {"user": "alice", "config": CONFIG, "arguments": ARGUMENTS, "timeout": 5}, "alice", 5),
]


@pytest.mark.parametrize(("values", "named", "user", "timeout"), WAYS_TO_CALL)
async def test_either_client_is_called_in_its_own_dialect_whichever_we_are_called_in(
    values: tuple[Any, ...], named: dict[str, Any], user: str, timeout: float
) -> None:
    published, specified = Published(ha), Specified(ha)
    assert await dispatch.wrap(published, tool="work").call(*values, **named) == "ha"
    assert await dispatch.wrap(specified, tool="work").call(*values, **named) == "ha"
    assert published.calls == specified.inner.calls == [(CONFIG, ARGUMENTS, timeout)]
    assert specified.users == [user]


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("cls", [Published, Specified])
async def test_chunks_reach_either_kind_of_callback(cls: type[Any], awaited: bool) -> None:
    got: list[str] = []

    async def later(chunk: str) -> None:
        await asyncio.sleep(0)
        got.append(chunk)

    client = dispatch.wrap(cls(ha), tool="work")
    assert await client.call_streaming("alice", CONFIG, ARGUMENTS, later if awaited else got.append) == "ha"
    assert got == ["Once", " upon"]


async def test_one_limit_covers_whatever_the_client_does() -> None:
    client = dispatch.wrap(Published(lambda: asyncio.sleep(1_000)), tool="work")
    for clock, call in (
        ("call", client.call(CONFIG, ARGUMENTS, timeout=5)),
        ("stream", client.call_streaming(CONFIG, ARGUMENTS, lambda _: None, timeout=5)),
    ):
        with pytest.raises(CallTimeoutError, match=r"within 5 s.*; tool 'work' may have been executed") as caught:
            await call
        assert (caught.value.limit_name, caught.value.retryable) == (clock, False)
    assert asyncio.get_running_loop().time() == pytest.approx(START + 10 + 2 * CLEANUP_S, abs=0.01)


@pytest.mark.parametrize(
    ("raised", "cls", "type", "message"),
    [
        (RuntimeError("no such city"), ToolError, "tool-error", "no such city"),
        (TimeoutError(), CallTimeoutError, "timeout", "may have been executed"),
        (ConnectionError("gone"), TransportError, "client-failed", "ConnectionError: gone"),
        (KeyError("x"), TransportError, "client-failed", "KeyError: 'x'"),
    ],
)
async def test_what_the_client_raises_becomes_typed_and_keeps_its_cause(
    raised: Exception, cls: type[Exception], type: str, message: str
) -> None:
    with pytest.raises(cls, match=message) as caught:
        await dispatch.wrap(Published(failing(raised)), tool="work").call(CONFIG, ARGUMENTS)
    assert getattr(caught.value, "type", None) == type
    if cls is not CallTimeoutError:
        assert caught.value.__cause__ is raised


async def test_the_client_may_end_by_its_own_limit_first() -> None:
    async def work() -> str:
        await asyncio.sleep(5)
        raise TimeoutError

    client = dispatch.wrap(Published(work), tool="work")
    with pytest.raises(CallTimeoutError, match="within 5 s"):
        await client.call(CONFIG, ARGUMENTS, timeout=5)
    assert asyncio.get_running_loop().time() == pytest.approx(START + 5, abs=0.01)


class Deaf(Published):
    """Swallows the cancellation by which a limit is kept, as asyncio.wait_for can."""

    async def call_streaming(self, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> Any:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1)
            await callback("chunk")


async def test_a_client_that_swallows_cancellation_is_stopped_all_the_same() -> None:
    got: list[str] = []
    with pytest.raises(CallTimeoutError):
        await dispatch.wrap(Deaf(ha), tool="work").call_streaming(CONFIG, ARGUMENTS, got.append, timeout=5)
    assert got == ["chunk"] * 5


@pytest.mark.parametrize("error", [ZeroDivisionError("mine"), RuntimeError("mine"), TimeoutError("mine")])
async def test_what_the_callback_raises_is_the_callers_own(error: Exception) -> None:
    async def callback(_: str) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await dispatch.wrap(Published(ha), tool="work").call_streaming(CONFIG, ARGUMENTS, callback)
    assert caught.value is error


async def test_a_typed_error_stays_as_it_is() -> None:
    given = ThrottledError("quota", "Not before noon.", retry_after=5)
    with pytest.raises(ThrottledError) as caught:
        await dispatch.wrap(Published(failing(given)), tool="work").call(CONFIG, ARGUMENTS)
    assert caught.value is given


async def test_cancellation_stays_cancellation_and_reaches_the_client() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            ended.append("ended")

    call = asyncio.create_task(dispatch.wrap(Published(work), tool="work").call(CONFIG, ARGUMENTS))
    await idle()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == ["ended"]


@pytest.mark.parametrize("timeout", [0, -1, "5", float("nan")])
async def test_a_timeout_that_cannot_be_never_reaches_the_client(timeout: Any) -> None:
    client = Published(ha)
    with pytest.raises(InvalidArgumentsError, match="'work' was not executed"):
        await dispatch.wrap(client, tool="work").call(CONFIG, ARGUMENTS, timeout=timeout)
    assert not client.calls


@pytest.mark.parametrize("arguments", [["cats"], "cats", {"a": object()}])
async def test_arguments_that_are_no_object_never_reach_the_client(arguments: Any) -> None:
    client = Published(ha)
    with pytest.raises(InvalidArgumentsError, match=r"'work' was not executed: arguments "):
        await dispatch.wrap(client, tool="work").call(CONFIG, arguments)
    assert not client.calls


async def test_a_call_in_neither_dialect_is_a_clear_type_error() -> None:
    with pytest.raises(TypeError, match="'arguments' is missing"):
        await dispatch.wrap(Published(ha), tool="work").call(CONFIG)


def test_what_has_no_call_cannot_be_wrapped() -> None:
    for client in (object(), None, type("Odd", (), {"call": "a text"})()):
        with pytest.raises(TypeError, match="has no method 'call'"):
            dispatch.wrap(client, tool="work")


def test_a_wrapped_client_says_its_tool() -> None:
    assert dispatch.wrap(Published(ha), tool="work").tool == "work"


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
    assert 2 <= now() - began <= 2 + CLEANUP_S + 0.05
    hanging = Client(100.0)
    wrapped = dispatch.wrap(hanging, tool="work", policy=Policy(timeout=5, attempt_timeout=2), annotations=IDEMPOTENT)
    began = now()
    with pytest.raises(CallTimeoutError) as caught:
        await wrapped.call({}, {})
    assert now() - began <= 5 + CLEANUP_S + 0.05
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


GRANTS = Grants.of({"users": {"alice": ["tools:*"]}})


def wrapped(client: Any, **options: Any) -> dispatch.WrappedClient:
    return dispatch.wrap(client, tool="work", **{"permissions": ["tools:jokes"], "grants": GRANTS, **options})


async def ignore(_chunk: str) -> None:
    pass


async def test_only_a_permitted_user_reaches_the_client() -> None:
    registry, client = CollectorRegistry(), Published(ha)
    guarded = wrapped(client, telemetry=Telemetry(registry=registry))
    assert await guarded.call("alice", CONFIG, ARGUMENTS) == "ha"
    assert await guarded.call(CONFIG, ARGUMENTS, user="alice") == "ha"
    assert await guarded.call_streaming("alice", CONFIG, ARGUMENTS, ignore) == "ha"
    granted = guarded._guards().bulkhead.guard.granted  # type: ignore[union-attr] # the default policy has a bulkhead
    for _ in range(20):
        with pytest.raises(RejectedError) as caught:
            await guarded.call("bob", CONFIG, ARGUMENTS)
        assert (caught.value.type, caught.value.rejected_by) == ("not-permitted", "permissions")
        with pytest.raises(RejectedError, match="a call without a user"):
            await guarded.call_streaming(CONFIG, ARGUMENTS, ignore)
    assert len(client.calls) == 3
    assert guarded._guards().bulkhead.guard.granted == granted  # type: ignore[union-attr] # likewise
    assert str(guarded.breaker.state) == "closed"
    read = registry.get_sample_value
    assert read("dispatch_rejections_total", {"tool": "work", "service": "work", "by": "permissions"}) == 40
    assert read("dispatch_calls_total", {"tool": "work", "service": "work", "outcome": "rejected"}) == 0
    assert read("dispatch_calls_total", {"tool": "work", "service": "work", "outcome": "refused"}) == 40
    assert read("dispatch_inflight_calls", {"tool": "work", "service": "work"}) == 0


async def test_without_grants_a_tool_with_permissions_is_refused_and_one_without_is_not() -> None:
    with pytest.raises(RejectedError, match="no grants"):
        await wrapped(Published(ha), grants=None).call("alice", CONFIG, ARGUMENTS)
    assert await wrapped(Published(ha), grants=None, permissions=()).call(CONFIG, ARGUMENTS) == "ha"


async def test_a_slow_callable_is_limited_by_the_timeout_of_the_call() -> None:
    async def ask(_user: str) -> list[str]:
        await asyncio.sleep(5)
        return ["*"]

    client = Published(ha)
    began = asyncio.get_running_loop().time()
    with pytest.raises(RejectedError) as caught:
        await wrapped(client, grants=ask).call("alice", CONFIG, ARGUMENTS, timeout=0.25)
    assert caught.value.type == "permissions-unavailable"
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.25)
    await asyncio.sleep(1)  # the request ends at its own limit
    assert not client.calls


def test_a_client_may_move_to_another_event_loop() -> None:
    asked: list[str] = []

    async def ask(user: str) -> list[str]:
        asked.append(user)
        return ["*"]

    guarded = wrapped(Published(ha), grants=ask)
    for _ in range(2):
        run(lambda: guarded.call("alice", CONFIG, ARGUMENTS))
    assert asked == ["alice"] * 2


def test_the_watch_of_a_file_ends_with_the_client(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps({"users": {"alice": ["*"]}}))
    former = set(threading.enumerate())

    def call() -> threading.Thread:
        guarded = wrapped(Published(ha), grants=Grants.load(file))
        assert set(threading.enumerate()) == former, "begins with the first call"
        run(lambda: guarded.call("alice", CONFIG, ARGUMENTS))
        (watch,) = (each for each in threading.enumerate() if each not in former and each.name == "dispatch-grants")
        assert watch.is_alive()
        return watch

    watch = call()
    gc.collect()
    watch.join(10)
    assert not watch.is_alive()


async def test_a_decision_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    await wrapped(Published(ha)).call("alice", CONFIG, ARGUMENTS)
    assert caplog.messages == ["allowed: 'work' for user 'alice' (granted)"]


@pytest.mark.parametrize("permissions", ["tools:jokes", ["tools:*"], [""], ["a b"]])
def test_invalid_permissions_are_refused(permissions: Any) -> None:
    with pytest.raises(ValueError, match="permission"):
        wrapped(Published(ha), permissions=permissions)
