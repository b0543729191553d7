"""Counters of sessions that have ended are added up, once each."""

from __future__ import annotations

from dispatch.protocol.events import Failure
from tests.helpers.delayed_session_pair import DelayedSessionPair


def test_ended_sessions_are_counted_once_with_their_reasons() -> None:
    pair = DelayedSessionPair()
    pair.ask()
    first = pair.caller
    sent = first.statistics.packets_sent
    pair.dispatcher.end(first, pair.now)
    pair.dispatcher.forget(first)  # again
    pair.exchange()
    ended = pair.dispatcher.ended
    assert ended.statistics.packets_sent == sent + 1  # the last packet
    assert ended.reasons == pair.instance.ended.reasons == {Failure.CLOSED: 1}
    assert first.end_reason is Failure.CLOSED
    second = pair.connect()
    pair.dispatcher.end(second, pair.now, Failure.EVICTED)
    assert ended.reasons == {Failure.CLOSED: 1, Failure.EVICTED: 1}
    assert ended.statistics.frames_sent == 3, "PING of each, and REQUEST"
    assert ended.handshakes == 0


def test_a_session_that_was_never_open_counts_as_a_handshake() -> None:
    pair = DelayedSessionPair()
    pair.down = {"dispatcher"}
    half_open = pair.connect()
    pair.dispatcher.end(half_open, pair.now)
    assert pair.dispatcher.ended.handshakes == 1
    assert pair.dispatcher.ended.reasons == {}
