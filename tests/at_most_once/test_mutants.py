"""Mutants of the delivery code: the scenarios of ``make test``, in the same number and with the same seed, find each one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from dispatch.calls.invokers.instance_invoker import InstanceInvoker
from dispatch.messaging.rpc.exchange_outcome import Answer
from dispatch.messaging.rpc.pending import Slot
from dispatch.messaging.wire.properties import Property, whole_number
from dispatch.serving.idempotency_keys import IdempotencyKeys
from tests.at_most_once.shard import examine

EXAMPLES = 600
"""Random scenarios of the first process of the short profile (tests/at_most_once/test_scenarios.py).

The first 350 of seed 1 find 16 of the 17 mutants. The other mutant needs three dispatchers and an eviction in one scenario;
a pinned scenario finds it."""


def another_may_run_what_a_former_life_had(self: InstanceInvoker, attempt: Any, settled: Any) -> bool:
    place = attempt.selected
    return isinstance(settled, Answer) and Property.REFUSED in settled.properties and len(place.route.instances) > 0


def a_key_is_always_new(
    self: IdempotencyKeys, user: str, key: str, now: float, *, claim: Any = IdempotencyKeys.claim
) -> Any:
    return claim(self, user, f"{key} {now} {len(self)}", now)


def a_chunk_is_shown_again(self: Slot, reply: Any, properties: Any, *, offer: Any = Slot.offer) -> Any:
    if whole_number(properties, Property.CHUNK) == self.next_chunk - 1:
        self.accept(reply, properties)
    return offer(self, reply, properties)


def chunks_are_shown_as_they_come(self: Slot, reply: Any, properties: Any, *, offer: Any = Slot.offer) -> Any:
    return offer(self, reply, {key: value for key, value in properties.items() if key != Property.CHUNK})


def who_cancels_stays_in_the_table(self: Slot) -> None:
    return None


def what_may_have_run_is_repeated(outcome: Any, *, sent: bool) -> bool:
    return False


FAULTS: dict[str, Callable[..., Any]] = {
    "dispatch.resilience.retry.loop.may_have_run": what_may_have_run_is_repeated,
    "dispatch.calls.invokers.instance_invoker.InstanceInvoker._is_declined": another_may_run_what_a_former_life_had,
    "dispatch.serving.idempotency_keys.IdempotencyKeys.claim": a_key_is_always_new,
    "dispatch.messaging.rpc.pending.Slot.offer": a_chunk_is_shown_again,
    "dispatch.messaging.rpc.pending.Slot.offer ": chunks_are_shown_as_they_come,
    "dispatch.messaging.rpc.pending.Slot.abandon": who_cancels_stays_in_the_table,
}


@pytest.mark.parametrize("where", FAULTS, ids=[fault.__name__ for fault in FAULTS.values()])
def test_a_fault_is_found(where: str) -> None:
    with mock.patch(where.strip(), FAULTS[where]), pytest.raises(AssertionError) as failure:
        examine(seed=1, examples=EXAMPLES, shrink=False)
    assert "--scenario" in "".join(failure.value.__notes__)
