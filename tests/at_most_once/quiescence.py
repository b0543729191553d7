"""What must be so when nothing happens any more: queues, tables and timers are empty, credit has come back, memory ages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import product

from dispatch import Dispatcher, ToolServer
from dispatch.messaging.flow import ack_sender as acknowledger
from dispatch.messaging.flow.credit import Credit
from dispatch.messaging.flow.paced_publisher import PacedPublisher
from dispatch.messaging.flow.publisher import Gate
from dispatch.messaging.rpc.correlation import MAX_TOMBSTONES
from dispatch.messaging.rpc.deadline_heap import SLACK
from dispatch.routing.channel_registry import Channels
from dispatch.serving.idempotency_keys import IdempotencyKeys
from tests.helpers.internals import correlator_of


def routes_of(dispatcher: Dispatcher) -> Channels:
    return dispatcher._running.routes


def keys_of(server: ToolServer) -> IdempotencyKeys:
    assert server._queue is not None
    return server._queue.keys


def gates_of_dispatcher(dispatcher: Dispatcher) -> Iterable[Gate | PacedPublisher]:
    """Those to the shared topic and to everyone who is known, or was."""
    routes = routes_of(dispatcher)
    for route in routes._open.values():
        known = [each.publisher for each in route.instances]
        for publisher in (route.publisher, *known, *(each.publisher for each in routes.discovery.retired)):
            if isinstance(publisher, PacedPublisher):
                yield publisher
                publisher = publisher.publisher
            if isinstance(publisher, Gate):
                yield publisher


def gates_of_server(server: ToolServer) -> Iterable[Gate | PacedPublisher]:
    """Those to reply topics."""
    assert server._router is not None
    for topic in server._router._topics.values():
        assert topic.publisher is not None, f"{server.instance} still opens a topic"
        if isinstance(topic.publisher, PacedPublisher):
            yield topic.publisher


def dispatcher_rests(dispatcher: Dispatcher) -> None:
    """Nobody waits, nothing is queued, no timer is set."""
    exchange, routes = correlator_of(dispatcher), routes_of(dispatcher)
    assert exchange.pending == 0
    assert exchange._timer is None
    assert exchange._deadlines.next() is None
    assert len(exchange._deadlines) <= SLACK
    assert exchange.tombstones <= MAX_TOMBSTONES
    assert not [*routes._opening, *routes.discovery.verifying, *routes._closing]
    for route in routes._open.values():
        for instance in (*route.instances, *routes.discovery.retired):
            assert instance.in_flight == 0, f"{instance.name} still counts requests that have ended"
    for lanes in routes._lanes.values():
        assert [lane.waiting for lane in lanes._lanes] == [0] * len(lanes)
    for gate in gates_of_dispatcher(dispatcher):
        _gate_rests(gate)
    acknowledger = routes._acknowledger
    assert not acknowledger._scheduled
    assert not acknowledger._closing
    assert not any(each.due or each.opening for each in acknowledger._instances.values())


def server_rests(server: ToolServer) -> None:
    """Nothing runs, nothing is queued, and what is remembered is what its sizes say."""
    assert (server.running, server.queued) == (0, 0)
    router, sessions, keys = server._router, server._sessions, keys_of(server)
    assert router is not None
    assert router._waiting == 0
    assert not router._closing
    for gate in gates_of_server(server):
        _gate_rests(gate)
    if sessions is not None:
        assert not sessions._requests
        assert all(session.is_at_rest for session in sessions.table.sessions.values())
    assert all(keyed.ended.is_set() for keyed in keys._keys.values())
    assert keys.size == sum(keyed.size for keyed in keys._keys.values())
    assert len(keys) <= keys._max_keys + server.concurrency  # what runs is never forgotten


def _gate_rests(gate: Gate | PacedPublisher) -> None:
    assert gate.queued == 0, f"{gate.queued} messages wait for {gate.topic}"
    assert gate._timer is None


class CreditIsBack:
    """Between those that know each other a next message may go. Made before messages go each way, and called after that: a
    gate that nothing comes to need not look whether it could open.
    """

    def __init__(self, dispatchers: Iterable[Dispatcher], servers: Iterable[ToolServer]) -> None:
        self._dispatchers = list(dispatchers)
        self._servers = list(servers)
        self._before = {id(credit): credit._sequence for _, credit, _ in self._credits(self._dispatchers)}

    def _credits(self, dispatchers: Iterable[Dispatcher]) -> Iterable[tuple[Gate, Credit, bool]]:
        """Of the gates between a dispatcher and an instance that it knows, both ways; and whether it is time that gives it
        back: one that hears from more instances than it keeps control topics for forgets what it was to acknowledge.
        """
        crowded = len(self._servers) > acknowledger.MAX_INSTANCES
        for dispatcher, server in product(dispatchers, self._servers):
            routes = routes_of(dispatcher)
            topics = {lane.topic for lanes in routes._lanes.values() for lane in lanes._lanes}
            for route in routes._open.values():
                instance = route.instances.get(server.instance)
                if instance is None or instance.incarnation != server.incarnation:
                    continue
                for gate in (instance.publisher, *gates_of_server(server)):
                    if isinstance(gate, Gate) and gate._credit is not None and gate.topic in {instance.topic, *topics}:
                        yield gate, gate._credit, crowded and gate is not instance.publisher

    def __call__(self, refused: Iterable[Dispatcher]) -> None:
        """``refused``: those whose messages were not all answered, so that nobody was asked to acknowledge much."""
        for gate, credit, by_time in self._credits(set(self._dispatchers) - set(refused)):
            assert credit.unacknowledged == sum(size for _, size in credit._sent)
            if not by_time and credit._sequence > self._before.get(id(credit), 0):
                assert credit.open, f"{credit.unacknowledged} of {credit.limit} bytes to {gate.topic} never came back"


def forgets_with_age(server: ToolServer) -> None:
    """Long after the last request nothing is remembered for another reason than that nobody has looked yet."""
    now = asyncio.get_running_loop().time()
    keys = keys_of(server)
    keys._evict(now)
    assert (len(keys), keys.size) == (0, 0)
