"""For tests of agents and tool services: injected faults on any transport, a virtual clock, an embedded broker. Guide:
docs/how-to/test-an-agent.md.

No other package of dispatch imports this one. pytest finds the fixtures ``dispatch_broker``, ``make_dispatcher`` and
``fault_injector`` by itself; the package also works without pytest.
"""

from dispatch.testing.clock import DeadlockError, VirtualClockLoop, advance, idle, run, virtual_time
from dispatch.testing.faults import EmbeddedBroker, FaultInjector, Faults, FaultyTransport

__all__ = [
    "DeadlockError",
    "EmbeddedBroker",
    "FaultInjector",
    "Faults",
    "FaultyTransport",
    "VirtualClockLoop",
    "advance",
    "idle",
    "run",
    "virtual_time",
]
