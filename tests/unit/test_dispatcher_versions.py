"""Versions of one tool side by side, over the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from dispatch import Catalog, Dispatcher, RejectedError
from dispatch._internal import RETENTION_S
from dispatch.errors import InvalidArgumentsError, Outcome
from dispatch.resilience.breaker import State
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import BROKER, serving
from tests.helpers.run_profile import by_profile
from tests.helpers.telemetry_capture import Board, telling

ONE, TWO = "1.4.0", "2.0.0"
CALLS = by_profile(short=10_000, long=100_000)
CALLERS = 64
FRAGILE = {"breaker": {"consecutive-failures": 2, "open-duration": 30}, "retry": 1}


def topics(name: str) -> dict[str, str]:
    return {
        "request-queue": f"non-persistent://tg/request/{name}",
        "response-queue": f"non-persistent://tg/response/{name}",
    }


def versions(share: float | None = None, *names: str, **keys: Any) -> Catalog:
    """Two versions of the tool ``work``, each with a version of the service ``lab``."""
    rollout = {} if share is None else {"rollout": {TWO: share}}
    described = {"type": "tool-service", "name": "work", "description": "Works.", "service": "lab", **keys}
    return Catalog.of(
        [{"id": "lab", "version": version, **topics(version)} for version in names or (ONE, TWO)],
        [
            {**described, "version": version, "requires": version, **(rollout if version == ONE else {})}
            for version in names or (ONE, TWO)
        ],
    )


class Services:
    """A service for each version, which replies with its version; ``silent`` ones do not."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.silent: set[str] = set()

    def work(self, version: str) -> Callable[[dict[str, Any]], Any]:
        async def invoke(_: dict[str, Any]) -> str:
            self.calls[version] += 1
            if version in self.silent:
                await asyncio.sleep(3600)
            return version

        return invoke


@contextlib.asynccontextmanager
async def services(*names: str) -> AsyncIterator[Services]:
    made = Services()
    async with contextlib.AsyncExitStack() as stack:
        for name in names or (ONE, TWO):
            at = {key.replace("-", "_"): topic for key, topic in topics(name).items()}
            await stack.enter_async_context(serving(made.work(name), instance=f"i-{name}", **at))
        yield made


def dispatcher_of(catalog: Catalog, seed: int = 5) -> Dispatcher:
    return Dispatcher(MemoryTransport(BROKER), catalog, randomness=random.Random(seed).random)


# -- selection ------------------------------------------------------------------------------------------------------


async def test_a_call_selects_a_version() -> None:
    async with services(), dispatcher_of(versions(0)) as dispatcher:
        assert await dispatcher.call("work") == ONE
        assert await dispatcher.call("work", version="^2") == TWO
        assert (await dispatcher.execute("work", version=">=1 <2")).text == ONE
        assert [chunk async for chunk in dispatcher.stream("work", version="2")] == [TWO]
        handle = dispatcher.tool("work", version="^2")
        assert (handle.version, await handle.invoke()) == ("^2", TWO)
        assert [chunk async for chunk in handle.stream()] == [TWO]
        assert await dispatcher.tool("work").invoke() == ONE
        assert {view.id for view in dispatcher.instances("lab")} == {f"i-{ONE}", f"i-{TWO}"}


async def test_a_version_that_does_not_exist_is_named_with_those_that_do() -> None:
    board = Board()
    async with services(), telling(board.telemetry(), versions(0)) as dispatcher:
        with pytest.raises(RejectedError, match=r"'\^3', there are 2\.0\.0, 1\.4\.0") as caught:
            await dispatcher.call("work", version="^3")
        assert caught.value.type == "version-mismatch"
        assert (await dispatcher.execute("work", version="^3")).outcome is Outcome.REJECTED
        with pytest.raises(InvalidArgumentsError, match="Correct 'version'"):
            await dispatcher.call("work", version="newest")
        unknown = await dispatcher.execute("wrok", version=1.4)  # type: ignore[arg-type] # a mistake of the caller
        assert unknown.outcome is Outcome.INVALID_ARGUMENTS
        with pytest.raises(RejectedError, match=r"'\^3'"):
            dispatcher.tool("work", version="^3")
        assert (board["calls_total work rejected"], board["calls_total work invalid_arguments"]) == (2, 1)
        assert board["inflight_calls work"] == 0


async def test_a_range_that_a_user_may_not_see_the_tool_of_names_no_version() -> None:
    async with services(), dispatcher_of(versions(0, permissions=["tools:work"])) as dispatcher:
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("work", version="^2")
        assert caught.value.type == "not-permitted"


# -- guards ---------------------------------------------------------------------------------------------------------


async def test_each_version_has_a_breaker_and_the_canarys_share_goes_back() -> None:
    async with services() as made, dispatcher_of(versions(50, policy=FRAGILE)) as dispatcher:
        users = [f"user-{number}" for number in range(40)]
        before = {user: await dispatcher.call("work", user=user) for user in users}
        assert set(before.values()) == {ONE, TWO}
        canary = dispatcher.breaker("work", version="2")
        assert canary is not dispatcher.breaker("work")
        canary.force_open()
        assert {await dispatcher.call("work", user=user) for user in users} == {ONE}
        assert dispatcher.breaker("work").state is State.CLOSED
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("work", version="2")
        assert caught.value.type == "circuit-open"
        canary.reset()
        assert {user: await dispatcher.call("work", user=user) for user in users} == before
        assert made.calls[TWO] == 2 * sum(version == TWO for version in before.values())


async def test_a_failing_canary_opens_its_own_circuit_only() -> None:
    async with services() as made, dispatcher_of(versions(100, policy=FRAGILE)) as dispatcher:
        made.silent.add(TWO)
        results = [await dispatcher.execute("work", user=f"user-{number}", timeout=1) for number in range(20)]
        assert [str(result.outcome) for result in results] == ["timeout"] * 2 + ["success"] * 18
        assert made.calls == {TWO: 2, ONE: 18}
        states = [dispatcher.breaker("work", version=version).state for version in ("1", "2")]
        assert states == [State.CLOSED, State.OPEN]
        made.silent.clear()
        await advance(60)
        assert (await dispatcher.call("work", user="alice"), made.calls[TWO]) == (TWO, 3), "a half-open call"


async def test_a_canary_raises_no_rate_limit() -> None:
    limited = {"rate-limit": {"rate": "5/s", "burst": 5, "max-wait": 0}, "retry": 1}
    async with services(), dispatcher_of(versions(50, policy=limited)) as dispatcher:
        results = [await dispatcher.execute("work", user=f"user-{number}") for number in range(40)]
        assert Counter(result.outcome for result in results) == {Outcome.SUCCESS: 5, Outcome.THROTTLED: 35}


async def test_retries_stay_on_the_version() -> None:
    policy = {"retry": {"max-attempts": 3, "initial-backoff": 0.1}, "attempt-timeout": 1, "breaker": None}
    calls: Counter[str] = Counter()

    def slow_once(version: str) -> Callable[[dict[str, Any]], Any]:
        async def invoke(_: dict[str, Any]) -> str:
            calls[version] += 1
            if calls[version] == 1:
                await asyncio.sleep(60)
            return version

        return invoke

    async with contextlib.AsyncExitStack() as stack:
        for version in (ONE, TWO):
            at = {key.replace("-", "_"): topic for key, topic in topics(version).items()}
            await stack.enter_async_context(serving(slow_once(version), **at))
        dispatcher = await stack.enter_async_context(dispatcher_of(versions(100, policy=policy, idempotent=True)))
        result = await dispatcher.execute("work")
        assert (result.text, result.attempts) == (TWO, 2)
        assert calls == {TWO: 2}


async def test_equal_calls_of_two_versions_share_nothing() -> None:
    gate = asyncio.Event()

    def waiting(version: str) -> Callable[[dict[str, Any]], Any]:
        async def invoke(_: dict[str, Any]) -> str:
            await gate.wait()
            return version

        return invoke

    async with contextlib.AsyncExitStack() as stack:
        for version in (ONE, TWO):
            at = {key.replace("-", "_"): topic for key, topic in topics(version).items()}
            await stack.enter_async_context(serving(waiting(version), **at))
        tools = versions(0, policy={"single-flight": True}, **{"read-only": True})
        dispatcher = await stack.enter_async_context(dispatcher_of(tools))
        calls = [asyncio.create_task(dispatcher.call("work", version=version)) for version in ("1", "2")]
        await advance(1)
        gate.set()
        assert await asyncio.gather(*calls) == [ONE, TWO]


# -- metrics --------------------------------------------------------------------------------------------------------


async def test_calls_are_counted_by_version_until_the_version_is_removed() -> None:
    board = Board()
    async with services(), telling(board.telemetry(), versions(0)) as dispatcher:
        for version in ("1", "2", "2"):
            await dispatcher.call("work", version=version)
        assert (board[f"version_calls_total work {ONE} ok"], board[f"version_calls_total work {TWO} ok"]) == (1, 2)
        assert board["calls_total work success"] == 3
        assert board["circuit_state work closed"] == 2, "a circuit for each version"
        await dispatcher.reload(versions(None, ONE))
        await advance(RETENTION_S + 1)
        assert f"version_calls_total work {TWO} ok" not in board.read()
        assert board[f"version_calls_total work {ONE} ok"] == 1
        await dispatcher.reload(Catalog.empty())
        await advance(RETENTION_S + 1)
        assert not [key for key in board.read() if " work " in f"{key} "]


async def test_a_tool_without_a_version_has_no_series_by_version() -> None:
    board = Board()
    catalog = Catalog.of(
        [{"id": "lab", **topics(ONE)}],
        [{"type": "tool-service", "name": "work", "description": "Works.", "service": "lab"}],
    )
    async with services(ONE), telling(board.telemetry(), catalog) as dispatcher:
        await dispatcher.call("work")
        assert not [key for key in board.read() if key.startswith("version_calls")]


# -- instances ------------------------------------------------------------------------------------------------------


async def test_a_requirement_restricts_the_instances_of_one_service() -> None:
    def lab(*names: str) -> Mapping[str, Any]:
        instances = [{"id": name, "version": name, **topics(name)} for name in names]
        return {"id": "lab", **topics("lab"), "instances": instances}

    tool = {"type": "tool-service", "description": "Works.", "service": "lab"}
    tools = [{**tool, "name": "any"}, {**tool, "name": "second", "requires": "^2"}]
    async with services() as made, dispatcher_of(Catalog.of([lab(ONE, TWO)], tools)) as dispatcher:
        assert Counter([await dispatcher.call("any") for _ in range(6)]) == {ONE: 3, TWO: 3}
        assert {await dispatcher.call("second") for _ in range(6)} == {TWO}
        await dispatcher.reload(Catalog.of([lab(ONE)], tools))
        with pytest.raises(RejectedError, match=r"requires version '\^2' of 'lab', and there are 1\.4\.0") as caught:
            await dispatcher.call("second")
        assert caught.value.type == "version-mismatch"
        assert await dispatcher.call("any") == ONE
        assert made.calls[TWO] == 9


# -- a rollout under load -------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_share_of_calls_without_a_user_and_no_user_on_both_versions() -> None:
    async with services() as made, dispatcher_of(versions(5)) as dispatcher:
        seen: dict[str, set[str]] = {}

        async def call(caller: int) -> None:
            for number in range(CALLS // CALLERS):
                await dispatcher.call("work")
                if number % 4 == 0:
                    user = f"user-{(caller * 7 + number) % 500}"
                    seen.setdefault(user, set()).add(await dispatcher.call("work", user=user))

        async with asyncio.TaskGroup() as callers:
            for caller in range(CALLERS):
                callers.create_task(call(caller))
        users = sum(len(found) for found in seen.values())
        assert users == len(seen) == 500
        assert made.calls[TWO] > 0
    async with services() as made, dispatcher_of(versions(5)) as dispatcher:
        for _ in range(CALLS):
            await dispatcher.call("work")
        share = made.calls[TWO] / CALLS
        assert abs(share - 0.05) < by_profile(short=0.0065, long=0.003)  # three standard deviations, or 4.3


@pytest.mark.long
async def test_a_rollout_from_0_to_100_and_back_under_load_fails_no_call() -> None:
    """64 callers with and without users, while the share is changed and a version is removed and returns."""
    async with services() as made, dispatcher_of(versions(0)) as dispatcher:
        ended, results = asyncio.Event(), Counter[str]()

        async def call(caller: int) -> None:
            number = 0
            while not ended.is_set():
                number += 1
                user = "" if caller % 2 else f"user-{number % 50}"
                result = await dispatcher.execute("work", user=user)
                assert result.error is None, result.error
                results[result.text] += 1
                await asyncio.sleep(0.01)

        async with asyncio.TaskGroup() as callers:
            for caller in range(CALLERS):
                callers.create_task(call(caller))
            for share in (0, 1, 5, 25, 50, 100, 50, 25, 5, 1, 0):
                await dispatcher.reload(versions(share))
                before = made.calls.copy()
                await advance(0.3)
                if share in (0, 100):
                    await advance(0.3)
                    gone = TWO if share == 0 else ONE
                    assert made.calls[gone] - before[gone] <= CALLERS, "calls that had begun"
            await dispatcher.reload(versions(None, ONE))
            await advance(
                by_profile(short=1.0, long=RETENTION_S + 1)
            )  # in the long form the canary's guards are dropped
            await dispatcher.reload(versions(50))
            await advance(1)
            ended.set()
        assert sum(results.values()) == sum(made.calls.values())
        assert min(results[ONE], results[TWO]) > 1_000
