"""Access to private parts of a dispatcher, for tests that have no public way.

They check that nothing is retained after a call, replace a limit, or play a peer that needs the session's secret.
"""

from __future__ import annotations

from dispatch import Dispatcher, ToolServer
from dispatch.calls.attempt import Attempts
from dispatch.messaging.plain import Correlator
from dispatch.messaging.sessions import SessionExchange
from dispatch.protocol import CalleeSession, CallerSession, Session
from dispatch.protocol.table import SessionTable
from dispatch.serving.replies import IdempotencyKeys
from dispatch.transports import Transport


def attempts_of(dispatcher: Dispatcher) -> Attempts:
    """Return what makes the attempts of a started dispatcher."""
    return dispatcher._running.attempts


def correlator_of(dispatcher: Dispatcher) -> Correlator:
    """Return the table of pending requests of a started dispatcher."""
    return dispatcher._running.exchange


def transport_of(dispatcher: Dispatcher) -> Transport:
    """Return the connection of a dispatcher."""
    return dispatcher._transport


def sessions_of(dispatcher: Dispatcher) -> SessionExchange:
    """Return the requests in sessions of a started dispatcher."""
    return dispatcher._running.channels._sessions


def tables_of(dispatcher: Dispatcher) -> list[SessionTable]:
    """Return the tables of sessions of a started dispatcher, one for each of its inboxes."""
    return [endpoint.table for endpoint in dispatcher._running.channels._endpoints.values()]


def keys_of(server: ToolServer) -> IdempotencyKeys:
    """Return the idempotency keys of a started server."""
    return server._queue.keys


def count_retained(session: Session) -> int:
    """Return the number of objects that a session retains for requests and packets."""
    sender = session._sender
    paths = sum(path.unacknowledged + len(path.received.ranges) for path in sender.paths)
    retained = len(sender.queue) + len(sender.lost) + len(session._reassembly) + paths
    if isinstance(session, CallerSession):
        return retained + len(session.waiting) + len(session.unmatched.given_up)
    assert isinstance(session, CalleeSession)
    return retained + len(session.running) + len(session._seen.above)
