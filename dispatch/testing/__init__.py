"""For the tests of whoever writes agents and tool services: faults on any transport, time that costs nothing, a broker in
process. Guide: docs/how-to/test-an-agent.md.

Nothing of dispatch imports this. With pytest the fixtures ``dispatch_broker``, ``make_dispatcher`` and ``fault_injector``
are there by themselves; without it, everything here works as well.
"""

from dispatch.testing.broker import EmbeddedBroker
from dispatch.testing.clock import DeadlockError, VirtualClockLoop, advance, idle, run, virtual_time
from dispatch.testing.faults import FaultInjector, Faults
from dispatch.testing.faulty_transport import FaultyTransport

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
