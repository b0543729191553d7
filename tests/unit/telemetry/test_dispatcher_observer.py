"""The observer of a dispatcher reads the sessions that it is given, until they are released or it is closed."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from dispatch import Dispatcher, Telemetry
from dispatch.telemetry.events import Events
from dispatch.telemetry.reporting import TelemetryDispatcherObserver
from dispatch.transports.memory import MemoryTransport
from tests.helpers.delayed_session_pair import DelayedSessionPair
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, catalog, serving

CALLER, CALLEE = {"role": "caller"}, {"role": "callee"}


def sample(registry: CollectorRegistry, name: str, labels: dict[str, str]) -> float | None:
    return registry.get_sample_value(f"dispatch_{name}", labels)


def open_sessions(registry: CollectorRegistry, labels: dict[str, str]) -> float | None:
    return sample(registry, "sessions", labels | {"state": "open"})


@pytest.mark.parametrize("is_closed", [True, False])
def test_the_counts_of_released_sessions_stay(is_closed: bool) -> None:
    registry, pair = CollectorRegistry(), DelayedSessionPair()
    observer = TelemetryDispatcherObserver(Telemetry(registry=registry), Events(), "client", lambda: 0.0)
    observer.observe_sessions(pair.dispatcher)
    assert open_sessions(registry, CALLER) == 1
    sent = sample(registry, "session_packets_sent_total", CALLER)
    assert sent
    if is_closed:
        observer.close()
    else:
        observer.release_sessions(pair.dispatcher)
        observer.release_sessions(pair.dispatcher)
    assert open_sessions(registry, CALLER) == 0
    assert sample(registry, "session_packets_sent_total", CALLER) == sent


async def test_a_call_over_a_session_is_counted_on_both_sides() -> None:
    registry = CollectorRegistry()
    telemetry = Telemetry(registry=registry)
    async with (
        serving(lambda _arguments: "done", telemetry=telemetry),
        Dispatcher(MemoryTransport(BROKER), catalog(work={"policy": UNGUARDED}), telemetry=telemetry) as dispatcher,
    ):
        for _ in range(3):
            await dispatcher.execute("work", {})
        for labels in (CALLER, CALLEE):
            assert open_sessions(registry, labels) == 1
            assert (sample(registry, "session_frames_sent_total", labels) or 0) >= 3
            assert sample(registry, "session_packets_rejected_total", labels | {"reason": "malformed"}) == 0
    for labels in (CALLER, CALLEE):
        assert open_sessions(registry, labels) == 0
        assert (sample(registry, "session_frames_sent_total", labels) or 0) >= 3
