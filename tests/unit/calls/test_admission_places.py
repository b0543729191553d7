"""Places in the bulkhead that threads have after the end of their calls."""

from __future__ import annotations

import asyncio

from dispatch._internal import Rejection
from dispatch.calls.attempt import OCCUPIED_AFTER_S, Admission
from dispatch.calls.guards import ToolGuards
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead, Policy
from tests.helpers.clock import advance, virtual_loop


def create_guards(bulkhead: Bulkhead | None) -> ToolGuards:
    policy = Policy(bulkhead=bulkhead, breaker=None)
    clock = virtual_loop().time
    return ToolGuards(policy, repeatable=False, clock=clock, randomness=lambda: 0.5, rates=lambda policy: None)


def admit(guards: ToolGuards) -> tuple[Admission, Rejection | None]:
    admission, now = Admission(guards), virtual_loop().time()
    return admission, admission.try_acquire("", now + 60, now)


async def test_a_thread_that_hangs_makes_others_fail_at_once_after_a_while() -> None:
    guards = create_guards(Bulkhead(max_concurrent_calls=1))
    assert guards.bulkhead is not None
    hanging, _ = admit(guards)
    thread: asyncio.Future[None] = virtual_loop().create_future()
    hanging.keep_place(thread)
    hanging.mark_occupied(thread)
    hanging.finish(Outcome.TIMEOUT, sent=True)

    other, refused = admit(guards)
    assert (refused, other.must_wait) == (None, True), "the thread may be about to end"
    await advance(OCCUPIED_AFTER_S)
    assert guards.bulkhead.guard.occupied == 1
    _, refused = admit(guards)
    assert refused == Rejection("bulkhead", "occupied", None)

    thread.set_result(None)
    await advance(0)
    assert (guards.bulkhead.guard.occupied, guards.bulkhead.guard.in_flight) == (0, 0)
    assert admit(guards)[1] is None


async def test_a_thread_that_ends_soon_is_never_counted() -> None:
    guards = create_guards(Bulkhead(max_concurrent_calls=1))
    assert guards.bulkhead is not None
    late, _ = admit(guards)
    thread: asyncio.Future[None] = virtual_loop().create_future()
    late.keep_place(thread)
    late.mark_occupied(thread)
    late.finish(Outcome.TIMEOUT, sent=True)
    await advance(OCCUPIED_AFTER_S / 2)
    thread.set_result(None)
    await advance(OCCUPIED_AFTER_S)
    assert (guards.bulkhead.guard.occupied, guards.bulkhead.guard.in_flight) == (0, 0)


async def test_without_a_bulkhead_nothing_is_counted() -> None:
    admission, _ = admit(create_guards(None))
    thread: asyncio.Future[None] = virtual_loop().create_future()
    admission.keep_place(thread)
    admission.mark_occupied(thread)
    thread.set_result(None)
