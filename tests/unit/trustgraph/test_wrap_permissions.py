"""Permissions around TrustGraph's own client: a refused call does not reach it and charges no guard."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from dispatch import Grants, RejectedError, Telemetry
from tests.helpers.clock import run
from tests.unit.trustgraph.test_wrap import ARGUMENTS, CONFIG, Published, ha

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
