"""Mutants of the delivery code: random scenarios find each one, most of them within the number of ``make test``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from dispatch.messaging.request import Lost
from dispatch.protocol.delivery import Path, Reassembly, SeenNumbers
from dispatch.protocol.events import Failure
from dispatch.protocol.session import CalleeSession, CallerSession, Session
from dispatch.routing.instance import SessionInstance
from dispatch.serving.replies import IdempotencyKeys
from tests.at_most_once.scenario import FOCUSES, Scenario, run_scenario
from tests.at_most_once.shard import examine

EXAMPLES = 3_000
"""Random scenarios at most; most faults are found by fewer than 100. Which ones are drawn depends on the modules that are
imported: Hypothesis draws constants from them, and 600 did not always find the rarest fault."""


def every_request_counts_as_new(self: SeenNumbers, number: int, *, add: Any = SeenNumbers.add) -> bool:
    add(self, number)
    return True


def a_lost_packet_is_not_sent_again(
    self: Path, ack: Any, now: float, lost: Any, *, record: Any = Path.record_ack
) -> bool:
    return bool(record(self, ack, now, deque()))


def silence_is_death_at_once(self: Session, now: float, *, handle: Any = Session.handle_timer) -> Any:
    events = handle(self, now)
    if self.is_suspect and self.is_open and not self.is_closed:
        events += self._finish(Failure.SILENT)
    return events


def no_request_may_have_run(self: CallerSession, request: Any) -> bool:
    return False


def a_sent_request_goes_to_another_instance(_attempt: Any, _pool: Any, selected: Any, settled: Any) -> bool:
    return type(settled) is Lost and len(selected.channel.instances) > 0


def what_may_have_run_is_repeated(outcome: Any, *, sent: bool) -> bool:
    return False


def fragments_are_joined_as_they_arrive(self: Reassembly, frame: Any, *, add: Any = Reassembly.add) -> Any:
    partial = self._partials.get(frame.message)
    if partial is not None:
        frame.offset = partial.size
    return add(self, frame)


def released_requests_free_no_window(self: CalleeSession, size: int) -> None:
    return None


def chunks_are_shown_as_they_arrive(
    self: CallerSession, frame: Any, events: Any, packet: Any, now: float, *, on_chunk: Any = CallerSession._on_chunk
) -> None:
    request = self.waiting.get(frame.number)
    if request is not None:
        request.chunks = frame.index
    on_chunk(self, frame, events, packet, now)


def a_stream_ends_before_its_last_chunk(
    self: CallerSession, frame: Any, events: Any, packet: Any, now: float, *, on_end: Any = CallerSession._on_end
) -> None:
    frame.chunks = 0
    on_end(self, frame, events, packet, now)


def a_request_that_ended_still_counts(
    self: SessionInstance, request: Any, *, on_settled: Any = SessionInstance.on_settled
) -> None:
    self._exchange.pending += 1
    on_settled(self, request)


def a_key_is_always_new(
    self: IdempotencyKeys, user: str, key: str, now: float, *, claim: Any = IdempotencyKeys.claim
) -> Any:
    return claim(self, user, f"{key} {now} {len(self)}", now)


FAULTS: dict[str, Callable[..., Any]] = {
    "dispatch.protocol.session.SeenNumbers.add": every_request_counts_as_new,
    "dispatch.protocol.delivery.Path.record_ack": a_lost_packet_is_not_sent_again,
    "dispatch.protocol.session.Session.handle_timer": silence_is_death_at_once,
    "dispatch.protocol.session.CallerSession._may_have_run": no_request_may_have_run,
    "dispatch.calls.attempt._is_declined": a_sent_request_goes_to_another_instance,
    "dispatch.resilience.aio.may_have_run": what_may_have_run_is_repeated,
    "dispatch.protocol.delivery.Reassembly.add": fragments_are_joined_as_they_arrive,
    "dispatch.protocol.session.CalleeSession.consume": released_requests_free_no_window,
    "dispatch.protocol.session.CallerSession._on_chunk": chunks_are_shown_as_they_arrive,
    "dispatch.protocol.session.CallerSession._on_end": a_stream_ends_before_its_last_chunk,
    "dispatch.routing.instance.SessionInstance.on_settled": a_request_that_ended_still_counts,
    "dispatch.serving.replies.IdempotencyKeys.claim": a_key_is_always_new,
}
RARE = {
    a_lost_packet_is_not_sent_again: "0.5.0.0",
    a_sent_request_goes_to_another_instance: "0.0.0.97.64.390",
    what_may_have_run_is_repeated: "1.0.0.97.448",
    fragments_are_joined_as_they_arrive: "5.1.32.2",
}
"""Faults that take 500 random scenarios or more, 7 to 43 s of processor time: random ones look for them in the long form
only. The code is of the shortest scenario that finds the fault."""
PLACES = {fault: where for where, fault in FAULTS.items()}


@pytest.mark.costly
@pytest.mark.parametrize(
    "where",
    [
        pytest.param(where, id=fault.__name__, marks=[pytest.mark.soak] if fault in RARE else [])
        for where, fault in FAULTS.items()
    ],
)
def test_a_fault_is_found(where: str) -> None:
    with mock.patch(where, FAULTS[where]), pytest.raises(AssertionError) as failure:
        examine(seed=1, examples=EXAMPLES * (len(FOCUSES) if FAULTS[where] in RARE else 1), shrink=False)
    assert "--scenario" in "".join(failure.value.__notes__)


@pytest.mark.costly
@pytest.mark.parametrize("fault", RARE, ids=lambda fault: fault.__name__)
def test_the_shortest_scenario_finds_a_rare_fault(fault: Callable[..., Any]) -> None:
    scenario = Scenario.of(RARE[fault])
    with mock.patch(PLACES[fault], fault), pytest.raises(AssertionError):
        run_scenario(scenario)
    run_scenario(scenario)
