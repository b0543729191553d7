"""One story: dispatchers call instances on a faulty network, and every guarantee of the protocol is checked.

A story is the same each time for its seed: ``python -m tests.simulation --seed 17``.
"""

from __future__ import annotations

from collections import Counter

from dispatch.protocol import Session
from tests.helpers.internals import count_retained
from tests.simulation.call import Call
from tests.simulation.dispatcher_node import DispatcherNode
from tests.simulation.instance_node import InstanceNode
from tests.simulation.network import response_inbox
from tests.simulation.node import Node
from tests.simulation.world import World

STORY_S = 200.0
"""Virtual seconds in which most stories end."""
MAX_STORY_S = 5_000.0
REST_S = 20.0
"""Virtual seconds on a perfect network after which every session must be at rest."""
PING_S = 0.02
"""Virtual seconds in which a PING is acknowledged; sessions send them at any time."""
MAX_PINGS = 20
MAX_IDLE_PACKETS = 40
"""Packets of one session at rest in ``REST_S``: keepalives and their acknowledgements, far from a storm."""


class Story:
    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        r = world.random
        self.instances = [InstanceNode(world, name, [world.inbox_of(name)]) for name in world.instance_names]
        self.dispatchers = [_dispatcher(world, number) for number in range(r.choice((1, 1, 2, 6)))]
        self.span = r.choice((0.0, 0.05, 2.0))

    @property
    def nodes(self) -> list[Node]:
        return [*self.instances, *self.dispatchers]

    def run(self) -> Counter[str]:
        """Run the story.

        Returns:
            How often each event occurred.

        Raises:
            AssertionError: a guarantee of the protocol does not hold.
        """
        world = self.world
        for node in self.nodes:
            node.start()
        self._plan_calls()
        self._plan_faults()
        started_at = world.scheduler.now
        world.scheduler.run_until(started_at + STORY_S)
        while world.ledger.pending and world.scheduler.now < started_at + MAX_STORY_S:
            world.scheduler.run_until(world.scheduler.now + 100.0)
        assert not world.ledger.pending, f"calls without a final event: {world.ledger.pending}"
        if not world.conditions.may_fail:
            failed = {token: each for token, each in world.ledger.outcomes.items() if each.startswith("failed")}
            assert failed.keys() <= self._expected_failures(), f"failures while both processes live: {failed}"
        self._check_rest()
        world.counts.update(stories=1, calls=len(world.ledger.calls))
        return world.counts

    def _expected_failures(self) -> set[str]:
        world, ledger = self.world, self.world.ledger
        expected = {token for token, call in ledger.calls.items() if call.is_too_large}
        if world.conditions.disconnection_s >= world.settings.idle:
            # The caller ends a session that its peer has forgotten by now, unless a request that may have run waits there.
            expected |= {
                token
                for token, outcome in ledger.outcomes.items()
                if outcome == "failed: restarted" and ledger.has_not_run(token)
            }
        return expected

    def _plan_calls(self) -> None:
        world = self.world
        r = world.random
        for number in range(r.choice((1, 5, 30, 150))):
            call = Call.draw(r, number, r.choice(world.instance_names), r.random() * self.span, world.conditions)
            world.ledger.calls[call.token] = call
            world.scheduler.schedule(call.at, r.choice(self.dispatchers).call, call)

    def _plan_faults(self) -> None:
        world, conditions = self.world, self.world.conditions
        r, schedule = world.random, world.scheduler.schedule
        for _ in range(conditions.restarts):
            self._plan_restart(r.choice(self.nodes))
        if conditions.has_twin:
            twin = InstanceNode(world, self.instances[0].name, list(self.instances[0].inboxes))
            self.instances.append(twin)
            schedule(r.random() * self.span, twin.start)
        for _ in range(conditions.drains):
            schedule(r.random() * self.span, r.choice(self.instances).drain)
        for _ in range(conditions.closes):
            schedule(r.random() * self.span, r.choice(self.dispatchers).close_session, r.choice(world.instance_names))
        if conditions.outage_s:
            at = r.random() * self.span
            schedule(at, setattr, world.network, "is_silent", True)
            schedule(at + conditions.outage_s, setattr, world.network, "is_silent", False)
        if conditions.disconnection_s:
            at = r.random() * self.span
            for node in self.nodes:
                schedule(at + r.choice((0.0, 0.3)), node.disconnect)
                schedule(at + 0.3 + conditions.disconnection_s + r.choice((0.0, 0.5)), node.reconnect)
        if world.adversary is not None:
            for _ in range(r.choice((5, 50))):
                inbox = world.inbox_of(r.choice(world.instance_names))
                schedule(r.random() * (self.span + 3.0), world.adversary.attack, inbox)

    def _plan_restart(self, node: Node) -> None:
        r, schedule = self.world.random, self.world.scheduler.schedule
        at = r.random() * (self.span + 1.0)
        schedule(at, node.stop)
        schedule(at + r.choice((0.001, 0.5, 15.0)), _start_again, node)

    def _sessions(self) -> list[tuple[Node, Session]]:
        return [(node, session) for node in self.nodes if node.is_alive for session in node.table.sessions.values()]

    def _check_rest(self) -> None:
        world = self.world
        world.network.become_perfect()
        world.scheduler.run_until(world.scheduler.now + REST_S)
        for _ in range(MAX_PINGS):
            if all(session.is_at_rest for _, session in self._sessions()):
                break
            world.scheduler.run_until(world.scheduler.now + PING_S)
        ranges = world.settings.max_ack_ranges * world.settings.max_paths
        for node, session in self._sessions():
            assert session.is_at_rest, f"{node.name}: a session of {session.peer_name} is not at rest"
            assert count_retained(session) <= ranges, f"{node.name}: {count_retained(session)} objects at rest"
        packets = world.counts["packets"]
        world.scheduler.run_until(world.scheduler.now + REST_S)
        most = MAX_IDLE_PACKETS * len(self._sessions())
        assert world.counts["packets"] - packets <= most, "idle sessions send without end"


def _dispatcher(world: World, number: int) -> DispatcherNode:
    secret = f"{world.random.getrandbits(128):032x}"
    inbox = response_inbox(secret, f"d{number}")
    paths = world.random.choice((1, 1, 4))
    return DispatcherNode(world, f"d{number}", [inbox, *(f"{inbox}-{path}" for path in range(1, paths))], secret)


def _start_again(node: Node) -> None:
    if not node.is_alive:
        node.start()


def run_story(seed: int) -> Counter[str]:
    """Run the story of a seed; a failure names the seed."""
    try:
        return Story(seed).run()
    except Exception as error:
        error.add_note(f"To run this story alone: python -m tests.simulation --seed {seed}")
        raise
