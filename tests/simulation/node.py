"""One process of a story: a session table, its inboxes on the network, and one timer for all sessions."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from dispatch.protocol.events import Event
from dispatch.protocol.session import Session
from dispatch.protocol.table import SessionTable
from tests.simulation.network import may_reply_to

if TYPE_CHECKING:
    from tests.simulation.world import World

TIMER_GRANULARITY_S = 1e-6
MAX_TIMERS_PER_MS = 100
"""More timers in a millisecond of virtual time are a busy loop: ``next_timer`` stays in the past."""


class Node:
    """Does what the asyncio endpoint does, in virtual time. Its clock differs from the clocks of other processes."""

    def __init__(self, world: World, name: str, inboxes: list[str], secret: str = "") -> None:
        self.world = world
        self.name = name
        self.inboxes = inboxes
        self.secret = secret
        """Of a caller: shows that its inboxes are its own."""
        self.is_alive = self.is_connected = False
        self.packet_delay = 0.0
        """Delay of the packet that is being received."""
        self._lives = 0
        self._timer = 0
        self._timers_since = (-math.inf, 0)
        self._is_flush_due = False
        self._clock_offset = world.random.uniform(0.0, 1e6)

    @property
    def now(self) -> float:
        return self.world.scheduler.now + self._clock_offset

    @property
    def life(self) -> int:
        """Number of the current incarnation: an action of a former one must not run."""
        return self._lives

    def start(self) -> None:
        self.is_alive = self.is_connected = True
        self._lives += 1
        self._is_flush_due = False
        self._timers_since = (-math.inf, 0)
        seed = self.world.random.getrandbits(64)
        self.table = SessionTable(
            self.name,
            f"{self.name}-{seed:016x}",
            list(self.inboxes),
            random_bytes=random.Random(seed).randbytes,
            secret=self.secret,
            may_reply_to=may_reply_to,
            settings=self.world.settings,
        )
        for inbox in self.inboxes:
            self.world.network.subscribe(inbox, self)

    def stop(self) -> None:
        """End the process at once, as SIGKILL does."""
        self.is_alive = False
        for inbox in self.inboxes:
            self.world.network.unsubscribe(inbox, self)

    def disconnect(self) -> None:
        if self.is_alive:
            self.is_connected = False
            for session in self.table.sessions.values():
                session.suspend()

    def reconnect(self) -> None:
        if self.is_alive:
            self.is_connected = True
            for session in self.table.sessions.values():
                session.resume(self.now)
            self.wake()

    def schedule(self, delay: float, action: object, *arguments: object) -> None:
        """Schedule an action of this incarnation."""
        self.world.scheduler.schedule(delay, self._run_if_alive, self._lives, action, arguments)

    def _run_if_alive(self, life: int, action: object, arguments: tuple[object, ...]) -> None:
        if self.is_alive and life == self._lives:
            action(*arguments)  # type: ignore[operator]  # any callable

    def receive(self, packet: bytes, *, delay: float, is_forged: bool) -> None:
        if not (self.is_alive and self.is_connected):
            return
        self.packet_delay = delay
        before = (self._rejected, set(self.table.sessions))
        received = list(self.table.receive_packet(packet, self.now))
        if is_forged:
            assert not any(events for _, events in received), f"a forged packet causes {received}"
            assert set(self.table.sessions) == before[1], "a forged packet changes the sessions"
            assert self._rejected == before[0] + 1, "a forged packet is not counted"
            self.world.counts["forged"] += 1
        for session, events in received:
            self._handle_events(session, events)
            if session.is_urgent and not session.is_closed:
                self._send_packets(session)
        self.packet_delay = 0.0
        self.wake()

    def wake(self) -> None:
        """Send everything due at the end of this turn."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self.schedule(self.world.conditions.coalesce_s, self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if not self.is_connected:
            self._set_timer()
            return
        for session in list(self.table.sessions.values()):
            self._send_packets(session)
        for inbox, packet in self.table.outbox:
            self.world.network.publish(inbox, packet)
        self.table.outbox.clear()
        self._set_timer()

    def _send_packets(self, session: Session) -> None:
        for path, packet in session.packets_to_send(self.now):
            if self.is_connected:
                self.world.network.publish(session.peer_inboxes[path], packet)

    def _set_timer(self) -> None:
        due = min((session.next_timer() for session in self.table.sessions.values()), default=math.inf)
        self._timer += 1
        if due < math.inf:
            self.schedule(max(0.0, due - self.now) + TIMER_GRANULARITY_S, self._on_timer, self._timer)

    def _on_timer(self, timer: int) -> None:
        if timer != self._timer:
            return
        since, count = self._timers_since
        self._timers_since = (since, count + 1) if self.now - since < 0.001 else (self.now, 1)
        assert count < MAX_TIMERS_PER_MS, f"{self.name}: next_timer stays in the past"
        for session in list(self.table.sessions.values()):
            events = session.handle_timer(self.now)
            if session.is_closed:
                self.table.forget(session)
            self._handle_events(session, events)
        self.wake()

    def _handle_events(self, session: Session, events: list[Event]) -> None:
        for event in events:
            self.handle_event(session, event)

    def handle_event(self, session: Session, event: Event) -> None:
        raise NotImplementedError

    @property
    def _rejected(self) -> int:
        return self.table.malformed + self.table.unknown + self.table.refused_hellos
