"""The state of a session in one word, for metrics and people."""

from __future__ import annotations

from enum import StrEnum

from dispatch.protocol.callee_session import CalleeSession
from dispatch.protocol.session import Session


class SessionState(StrEnum):
    """One state at a time: the first of these that applies."""

    HALF_OPEN = "half-open"
    """The handshake has not ended."""
    SUSPENDED = "suspended"
    """The connection to the broker is down: nothing is given up meanwhile."""
    SUSPECT = "suspect"
    """The peer has not acknowledged several probes."""
    DRAINING = "draining"
    """The callee accepts no further requests, and finishes the others."""
    OPEN = "open"
    """Requests and replies travel."""


def find_state(session: Session) -> SessionState:
    """Return the state of a session that has not ended."""
    if not session.is_open:
        return SessionState.HALF_OPEN
    if session.is_suspended:
        return SessionState.SUSPENDED
    if session.is_suspect:
        return SessionState.SUSPECT
    if session.is_peer_draining or (isinstance(session, CalleeSession) and session.is_draining):
        return SessionState.DRAINING
    return SessionState.OPEN
