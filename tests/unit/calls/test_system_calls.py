"""A warm call asks for nothing that is a system call: the running event loop is one in CPython 3.11 to 3.13. It enters few
functions."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from tests.helpers.dispatcher_and_service import catalog, stand

LIMITS = {"rate-limit": "1000/s", "user-rate-limit": "1000/s"}
OTHER_SIDE = ("/dispatch/serving/", "/dispatch/transports/")


@pytest.mark.parametrize("policy", [{}, LIMITS, {"bulkhead": None, "breaker": None, "retry": 1}])
async def test_a_warm_call_does_not_ask_for_the_running_loop(policy: dict[str, Any]) -> None:
    asked: list[str] = []

    def observe(frame: FrameType, event: str, function: object) -> None:
        file = frame.f_code.co_filename
        is_ours = "/dispatch/" in file and not any(part in file for part in OTHER_SIDE)
        if is_ours and event == "c_call" and function in (asyncio.get_running_loop, asyncio.current_task):
            asked.append(f"{file}:{frame.f_lineno}")

    async with stand(lambda _: "done", catalog(work={"policy": policy})) as (dispatcher, _):
        await dispatcher.call("work", user="alice")
        sys.setprofile(observe)
        try:
            answers = [await dispatcher.call("work", user="alice") for _ in range(2)]
        finally:
            sys.setprofile(None)
    assert answers == ["done", "done"]
    assert asked == []


MOST_ENTERED = {"calls": 90, "serving": 32}
"""Functions of dispatch that one of 64 calls enters, those of a packet divided by the calls in it: a measure of processor
time without noise. A coroutine counts each time it goes on. A shorter path lowers them; a longer one needs a reason."""


async def test_a_warm_call_enters_few_functions() -> None:
    entered: Counter[str] = Counter()

    def observe(frame: FrameType, event: str, _function: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and "/dispatch/" in file and not any(part in file for part in ("/transports/", "/testing/")):
            entered["serving" if "/dispatch/serving/" in file else "calls"] += 1

    async with stand(lambda _: "done") as (dispatcher, _):
        await dispatcher.call("work")
        await asyncio.sleep(1)  # no further instances are expected
        sys.setprofile(observe)
        try:
            await asyncio.gather(*(dispatcher.call("work", user="alice", timeout=5) for _ in range(64)))
        finally:
            sys.setprofile(None)
    found = {side: round(count / 64) for side, count in entered.items()}
    assert found == {side: min(found[side], most) for side, most in MOST_ENTERED.items()}
