"""Asking an application's callable: shared requests, the time limit, the cache, and failures that refuse calls."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection
from typing import Any

import pytest

from dispatch.permissions import authorizer
from dispatch.permissions.authorizer import CACHE_S, FAILURE_CACHE_S, LOOKUP_TIMEOUT_S, PermissionLookup
from dispatch.permissions.grants import PermissionSet
from dispatch.testing.clock import VirtualClockLoop

JOKES = PermissionSet(["tools:jokes"])


class Directory:
    """An asynchronous callable that counts its requests."""

    def __init__(self, seconds: float = 0.0, error: BaseException | None = None) -> None:
        self.asked: list[str] = []
        self.seconds = seconds
        self.error = error

    async def __call__(self, user: str) -> Collection[str]:
        self.asked.append(user)
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return ["tools:jokes"]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_an_answer_is_cached_for_a_minute_from_its_arrival() -> None:
    directory = Directory(seconds=0.5)
    lookup = PermissionLookup(directory)
    assert lookup.cached("alice", now()) is None
    assert await lookup.fetch("alice", 1.0) == JOKES
    await asyncio.sleep(CACHE_S - 0.001)
    answer = lookup.cached("alice", now())
    assert answer is not None
    assert answer.permissions == JOKES
    assert await lookup.fetch("alice", 1.0) == JOKES
    await asyncio.sleep(0.001)
    assert lookup.cached("alice", now()) is None
    assert directory.asked == ["alice"]
    assert await lookup.fetch("alice", 1.0) == JOKES
    assert directory.asked == ["alice"] * 2


async def test_concurrent_callers_of_one_user_share_one_request() -> None:
    directory = Directory(seconds=0.5)
    lookup = PermissionLookup(directory)
    calls = [asyncio.create_task(lookup.fetch(user, 1.0)) for user in ("alice", "bob") for _ in range(100)]
    await asyncio.sleep(0.1)
    calls[0].cancel()  # the caller that began the request
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [JOKES] * 199
    assert directory.asked == ["alice", "bob"]


async def test_a_slow_answer_fails_after_the_limit_also_for_callers_that_join_late() -> None:
    directory = Directory(seconds=5.0)
    lookup = PermissionLookup(directory)
    first = asyncio.create_task(lookup.fetch("alice", 10.0))
    await asyncio.sleep(0.9)
    second = asyncio.create_task(lookup.fetch("alice", 10.0))
    began = now()
    assert await first is None
    assert await second is None
    assert now() - began == pytest.approx(LOOKUP_TIMEOUT_S - 0.9)


async def test_a_caller_waits_no_longer_than_its_own_deadline() -> None:
    lookup = PermissionLookup(Directory(seconds=0.5))
    began = now()
    assert await lookup.fetch("alice", 0.2) is None
    assert now() - began == pytest.approx(0.2)
    assert await lookup.fetch("alice", 1.0) == JOKES, "the request went on"


async def test_a_failure_is_cached_for_a_second_and_reported_without_user_and_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = Directory(error=RuntimeError("password of alice"))
    lookup = PermissionLookup(directory)
    with caplog.at_level(logging.WARNING, "dispatch.permissions"):
        assert await lookup.fetch("alice", 1.0) is None
        answer = lookup.cached("alice", now())
        assert answer is not None
        assert answer.permissions is None
        assert await lookup.fetch("alice", 1.0) is None
        assert await lookup.fetch("bob", 1.0) is None
    assert directory.asked == ["alice", "bob"]
    (record,) = caplog.records
    assert "RuntimeError" in record.getMessage()
    assert "alice" not in record.getMessage()
    directory.error = None
    await asyncio.sleep(FAILURE_CACHE_S)
    assert await lookup.fetch("alice", 1.0) == JOKES


@pytest.mark.parametrize("answer", [None, "tools:jokes", {"tools:jokes": True}, [1], ["to*ls"], 5])
async def test_an_invalid_answer_is_a_failure(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    lookup = PermissionLookup(lambda _user: answer)
    with caplog.at_level(logging.WARNING, "dispatch.permissions"):
        assert await lookup.fetch("alice", 1.0) is None
    assert "it returned" in caplog.text


async def test_a_synchronous_callable_runs_in_a_thread_and_may_return_a_coroutine() -> None:
    threads: list[threading.Thread] = []
    directory = Directory()

    def ask(user: str) -> Any:
        threads.append(threading.current_thread())
        return ["tools:jokes"] if user == "alice" else directory(user)

    lookup = PermissionLookup(ask)
    assert await lookup.fetch("alice", 1.0) == JOKES
    assert await lookup.fetch("bob", 1.0) == JOKES
    assert all(each is not threading.main_thread() and each.daemon for each in threads)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3)])
async def test_what_a_thread_raises_is_a_failure(error: BaseException) -> None:
    def ask(_user: str) -> Collection[str]:
        raise error

    assert await PermissionLookup(ask).fetch("alice", 1.0) is None


async def test_a_thread_that_hangs_occupies_its_place_and_no_further_ones_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authorizer, "MAX_THREADS", 2)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    loop.threads_may_hang = True
    released = threading.Event()
    asked: list[str] = []

    def ask(user: str) -> Collection[str]:
        asked.append(user)
        released.wait(30)
        return ["tools:jokes"]

    lookup = PermissionLookup(ask)
    began = now()
    users = ["a", "b", "c", "d"]
    assert await asyncio.gather(*(lookup.fetch(user, 9.0) for user in users)) == [None] * 4
    assert now() - began == pytest.approx(LOOKUP_TIMEOUT_S)
    assert len(asked) == 2
    loop.threads_may_hang = False
    released.set()
    await asyncio.sleep(FAILURE_CACHE_S)
    assert await asyncio.gather(*(lookup.fetch(user, 9.0) for user in users)) == [JOKES] * 4
    assert len(asked) == 6


async def test_a_coroutine_that_swallows_its_cancellation_delays_no_caller() -> None:
    released = asyncio.Event()

    async def ask(_user: str) -> Collection[str]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await released.wait()
        return ["tools:jokes"]

    lookup = PermissionLookup(ask)
    began = now()
    assert await lookup.fetch("alice", 9.0) is None
    assert await lookup.fetch("alice", 9.0) is None
    assert now() - began == pytest.approx(LOOKUP_TIMEOUT_S)
    released.set()


async def test_the_number_of_cached_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "MAX_CACHED_USERS", 3)
    directory = Directory()
    lookup = PermissionLookup(directory)
    for user in ("a", "b", "c"):
        await lookup.fetch(user, 1.0)
    assert lookup.cached("a", now()) is not None
    await lookup.fetch("d", 1.0)
    assert [lookup.cached(user, now()) is not None for user in "abcd"] == [True, False, True, True]


@pytest.mark.parametrize("make", [lambda: Directory(seconds=0.5), lambda: lambda _user: threading.Event().wait(0.2)])
async def test_close_ends_requests_and_begins_no_further_ones(make: Callable[[], Any]) -> None:
    lookup = PermissionLookup(make())
    calls = [asyncio.create_task(lookup.fetch(user, 9.0)) for user in ("alice", "bob")]
    await asyncio.sleep(0)
    await lookup.close()
    assert await asyncio.gather(*calls) == [None, None]
    assert await lookup.fetch("carol", 9.0) is None
