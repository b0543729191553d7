"""The state of dispatchers and instances at rest: queues, tables and timers are empty, and memory ages."""

from __future__ import annotations

import asyncio

from dispatch import Dispatcher, ToolServer
from dispatch.messaging.plain import MAX_TOMBSTONES
from dispatch.protocol.table import SessionTable
from dispatch.serving import replies
from dispatch.serving.replies import IdempotencyKeys
from tests.helpers.internals import correlator_of, count_retained, keys_of, sessions_of, tables_of


def assert_dispatcher_rests(dispatcher: Dispatcher) -> None:
    """No caller waits, nothing is queued, no timer of a request is set."""
    correlator = correlator_of(dispatcher)
    assert correlator.pending == 0
    assert correlator._deadlines._timer is None
    assert correlator.tombstones <= MAX_TOMBSTONES
    assert sessions_of(dispatcher).pending == 0
    channels = dispatcher._running.channels
    assert not [*channels._opening, *channels._closing, *channels.discovery._handshakes]
    for channel in channels._open.values():
        for instance in channel.instances:
            assert instance.in_flight == 0, f"{instance.name} still counts requests that have ended"
    for table in tables_of(dispatcher):
        assert_table_rests(table)


def assert_server_rests(server: ToolServer) -> None:
    """Nothing runs, nothing is queued, and idempotency keys retain what their sizes say."""
    assert (server.running, server.queued) == (0, 0)
    assert server._sessions._requests == {}
    assert_table_rests(server._sessions.table)
    keys = keys_of(server)
    assert all(keyed.ended.is_set() for keyed in keys._keys.values())
    assert keys.size == sum(len(text) + len(more) for keyed in keys._keys.values() for _, text, more in keyed.messages)
    assert len(keys) <= replies.MAX_KEYS + server.concurrency  # a running execution is never removed


def assert_table_rests(table: SessionTable) -> None:
    """Sessions retain nothing for requests that have ended: only the latest packet numbers of each path."""
    assert table.outbox == []
    assert table._half_open == {}
    for session in table.sessions.values():
        assert session.is_open
        assert session.is_at_rest, f"the session with {session.peer_name} still has something to do"
        assert session.in_flight_bytes == session.queued_bytes == 0
        ranges = session.settings.max_ack_ranges * session.settings.max_paths
        assert count_retained(session) <= ranges, (
            f"the session with {session.peer_name} retains {count_retained(session)} objects"
        )


def assert_aged(server: ToolServer) -> None:
    """Long after the last request no idempotency key is retained for another reason than that no request came since."""
    keys: IdempotencyKeys = keys_of(server)
    keys._evict(asyncio.get_running_loop().time())
    assert (len(keys), keys.size) == (0, 0)
