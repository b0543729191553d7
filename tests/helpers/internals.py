"""Access to private parts of a dispatcher, for tests that have no public way.

They check that nothing is retained after a call, replace a limit, or play a peer that needs the session's secret.
"""

from __future__ import annotations

from dispatch import Dispatcher
from dispatch.messaging.rpc.correlation import Correlator
from dispatch.transports import Transport


def correlator_of(dispatcher: Dispatcher) -> Correlator:
    """Return the table of pending requests of a started dispatcher."""
    return dispatcher._running.exchange


def transport_of(dispatcher: Dispatcher) -> Transport:
    """Return the connection of a dispatcher."""
    return dispatcher._transport
