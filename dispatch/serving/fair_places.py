"""Max-min fair sharing of an instance's places among tools, and of a tool's among its callers; with the queue. Pure.

A running request cannot be preempted: a tool that hangs keeps its places until its callers' deadlines. So a place that a
tool takes beyond its fair share must be one that the others do not need.

The share is the *level* of progressive filling (max-min fairness: D. Bertsekas, R. Gallager, "Data Networks", 2nd ed. 1992,
section 6.5.2): every tool gets what it demands, up to a level at which all places are assigned. A tool demands the places of
its running and waiting requests, and at least :data:`HEADROOM` times what it has used lately. Waiting requests are served
round-robin, by tool and then by caller (J. Nagle, "On Packet Switches with Infinite Storage", RFC 970); a full queue drops
from the longest flow (B. Suter et al., "Buffer Management Schemes for Supporting TCP in Gigabit Routers with Per-Flow
Queueing", 1999).

Invariants:

- No request starts while ``places`` run, not counting streams that wait for readers that have paused, half of the places at
  most; they count again once they go on. At most ``max_waiting`` wait; requests of one tool and caller start in their order.
- While a place is free, no request waits of a tool with none running, nor of one below its level whose caller has none
  running, or is below its own, but for the last point.
- A tool or caller above its level, and above its small share, takes a place only if enough stay free: for what the others
  demand and do not use, and the spare places.
- The only known tool may take all places; of several, one may take all but the spare places and what the others demand. In
  the first :data:`COLD_S` seconds one that has ended no request takes half of them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Generic, TypeVar

HEADROOM = 2.0
"""Demand of a tool, as a multiple of the mean of its running requests: Poisson arrivals that need 12 places on average need
24 at times."""
MEMORY_S = 1.0
"""Time constant of that mean, in seconds. Longer: after a burst of one tool its places stay reserved for longer. Shorter:
the mean follows the fluctuations that the headroom is for."""
NEGLIGIBLE = 0.005
"""Mean below which a tool counts as unused."""
SPARE_SHARE = 16
"""One place in so many, and at least one, is spared where several tools, or callers, are known: 4 of 64. It is for those
that are called seldom, or for the first time. Of fewer than 16 places it is spared only from the one that has all others."""
SMALL_SHARE = 32
"""One place in so many a tool or caller may always take: a second place where each of many tools uses one, of 64."""
MIN_PLACES = 4
"""Of fewer places none is spared."""
COLD_S = 0.1
"""Seconds after the first request of an instance in which a tool that has ended none takes half of the places at most: it
may hang, and the others have not been called yet. Longer: a first burst of a slow tool takes as much longer."""
MIN_AGE_S = 0.05
"""Seconds of the shortest time over which a mean is taken."""
KNOWN_S = 600.0
"""Seconds after its last request for which a tool or a caller is known."""
REFRESH_S = 0.005
"""Seconds for which levels are used while few requests start; computing them reads all tools."""
IDLE_REFRESH_S = 0.5
"""The same while no tool is near its level, for the means."""
MAX_FLOWS = 256
"""Tools known at once, and callers of each; further ones share one flow."""
OVERFLOW = "…"
"""Their name."""

T = TypeVar("T")
F = TypeVar("F", bound="_Flow")


class _Flow:
    """A tool, or a caller of one.

    Attributes:
        running, waiting: its requests.
        claim: places that it demands and may have, at the last refresh.
        mean: of its running requests lately.
        area, at: integral of its running requests over time, since the last refresh and up to ``at``.
    """

    __slots__ = ("area", "at", "claim", "mean", "name", "running", "waiting")

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.running = self.waiting = 0
        self.mean = self.claim = self.area = 0.0
        self.at = now


class _Caller(_Flow, Generic[T]):
    """A caller of one tool, with its waiting requests, in order. Its numbers are kept once the tool has had another."""

    __slots__ = ("queue",)

    def __init__(self, name: str, now: float) -> None:
        super().__init__(name, now)
        self.queue: OrderedDict[T, None] = OrderedDict()


class _Tool(_Flow, Generic[T]):
    """A tool.

    Attributes:
        callers: of its requests.
        is_shared: it has had several.
        turns: callers with waiting requests, the next first.
        stuck: running requests whose thread nothing waits for.
        duration_s: moving average; None: unknown.
    """

    __slots__ = ("callers", "duration_s", "is_shared", "stuck", "turns")

    def __init__(self, name: str, now: float) -> None:
        super().__init__(name, now)
        self.callers: _Flows[_Caller[T]] = _Flows(_Caller, now)
        self.is_shared = False
        self.turns: OrderedDict[str, _Caller[T]] = OrderedDict()
        self.stuck = 0
        self.duration_s: float | None = None

    def find_caller(self, name: str, now: float) -> _Caller[T]:
        """Return the caller of that name."""
        callers = self.callers
        if callers.flows and not self.is_shared and name not in callers.flows:
            self.is_shared = True
            (only,) = callers.flows.values()
            callers.add(only, self.running, self.waiting, now)
        return callers.find(name, now)


class _Flows(Generic[F]):
    """All tools, or all callers of a tool: their means, demands and level."""

    def __init__(self, kind: Callable[[str, float], F], now: float) -> None:
        self._kind = kind
        self.flows: dict[str, F] = {}
        self.level = math.inf
        self.claimed = self.reserve = 0.0
        """Places that all of them claim; and those of them that they do not use."""
        self.began = self._refreshed = self._forgotten = now
        self._changes = 0

    def find(self, name: str, now: float) -> F:
        """Return the flow of that name, or the one that those beyond :data:`MAX_FLOWS` share."""
        flow = self.flows.get(name)
        if flow is None:
            if len(self.flows) >= MAX_FLOWS:
                self._forget(now, 0.0)
                if len(self.flows) >= MAX_FLOWS:
                    name = OVERFLOW
            flow = self.flows.get(name)
            if flow is None:
                if not self.flows:
                    self.began = self._refreshed = now
                flow = self.flows[name] = self._kind(name, now)
                self._changes = MAX_FLOWS  # compute the levels anew
        return flow

    def add(self, flow: F, running: int, waiting: int, now: float) -> None:
        """Change the number of the requests of ``flow``."""
        before, claim = flow.running, flow.claim
        flow.area += before * (now - flow.at)
        flow.at = now
        flow.running = after = before + running
        flow.waiting += waiting
        if claim > before:
            self.reserve -= claim - before
        if claim > after:
            self.reserve += claim - after
        self._changes += 1

    def refresh(self, capacity: float, now: float, after: float) -> None:
        """Compute the means, the claims and the level for ``capacity`` places, if ``after`` seconds have passed since, or
        many requests have come or gone."""
        passed = now - self._refreshed
        if passed < after and self._changes * 8 < capacity:
            return
        if now - self._forgotten > KNOWN_S / 4:
            self._forget(now, KNOWN_S)
        self._changes = 0
        self._refreshed = now
        flows = self.flows.values()
        if passed > 0:
            weight = 1.0 - math.exp(-passed / MEMORY_S)
            for flow in flows:
                area = flow.area + flow.running * (now - flow.at)
                flow.at = now
                flow.area = 0.0
                mean = flow.mean + weight * (area / passed - flow.mean)
                flow.mean = mean if mean >= NEGLIGIBLE else 0.0
        # In the first second the mean would be that of the time before, too.
        headroom = HEADROOM / (1.0 - math.exp(-max(now - self.began, MIN_AGE_S) / MEMORY_S))
        demands = sorted(max(flow.running + flow.waiting, headroom * flow.mean) for flow in flows)
        left, count = capacity, len(demands)
        level = capacity
        for number, demand in enumerate(demands):
            level = left / (count - number)
            if demand > level:
                break
            left -= demand
        else:  # all demands are met: the greatest may grow by the rest
            level = left + (demands[-1] if demands else 0.0)
        self.level = level
        self.claimed = self.reserve = 0.0
        for flow in flows:
            claim = flow.claim = min(level, max(flow.running + flow.waiting, headroom * flow.mean))
            self.claimed += claim
            self.reserve += max(0.0, claim - flow.running)

    def _forget(self, now: float, after: float) -> None:
        """Remove the flows that have been idle for ``after`` seconds."""
        self._forgotten = now
        for flow in [
            flow for flow in self.flows.values() if not (flow.running or flow.waiting) and now - flow.at >= after
        ]:
            del self.flows[flow.name]
        self._changes = MAX_FLOWS

    def forget(self, name: str) -> None:
        """Forget a flow; if it has requests, let it claim no more places than these."""
        flow = self.flows.get(name)
        if flow is not None:
            flow.mean = flow.area = 0.0
            if not (flow.running or flow.waiting):
                del self.flows[name]
            self._changes = MAX_FLOWS

    def spared(self, flow: F, places: float, now: float, occupied: int) -> float:
        """Return how many of ``places``, of which so many are ``occupied``, must stay free when ``flow`` takes one."""
        running, count = flow.running + 1, len(self.flows)
        if running == 1 or count == 1:
            return 0.0
        spare = 0.0 if places < MIN_PLACES else max(1.0, places // SPARE_SHARE)
        capacity = places - spare
        if running * count <= capacity or running * SMALL_SHARE <= places:  # no level is below an equal share
            self.refresh(capacity, now, IDLE_REFRESH_S)
            return 0.0
        self.refresh(capacity, now, REFRESH_S)
        if running <= self.level:
            return 0.0
        if places < SPARE_SHARE and occupied >= running:  # another one has a place, which comes free
            spare = 0.0
        return max(spare, self.reserve - max(0.0, flow.claim - flow.running))


class FairPlaces(Generic[T]):
    """Places and wait queue of an instance.

    Args:
        places: requests that run at once.
        max_waiting: requests that wait.

    Attributes:
        running: occupied places; those of paused streams are not.
        occupants: running requests, paused ones as well.
        waiting: waiting requests.
    """

    def __init__(self, places: int, max_waiting: int) -> None:
        self.places = places
        self.max_waiting = max_waiting
        self.running = 0
        self._tools: _Flows[_Tool[T]] = _Flows(_Tool, 0.0)
        self._turns: OrderedDict[str, _Tool[T]] = OrderedDict()
        self._waiting: dict[T, tuple[_Tool[T], _Caller[T]]] = {}
        self.waiting: Collection[T] = self._waiting.keys()
        self._occupants: dict[T, tuple[_Tool[T], _Caller[T], float]] = {}
        self.occupants: Collection[T] = self._occupants.keys()
        self._paused: set[T] = set()

    @property
    def is_blocked(self) -> bool:
        """Requests wait although places are free, which are reserved for others: ask again after a while."""
        return bool(self._waiting) and self.running < self.places

    def _flow(self, tool: str, caller: str, now: float) -> tuple[_Tool[T], _Caller[T]]:
        flow = self._tools.find(tool, now)
        return flow, flow.callers.flows.get(caller) or flow.find_caller(caller, now)

    def _may_start(self, tool: _Tool[T], caller: _Caller[T], now: float) -> bool:
        free = self.places - self.running
        if free < 1:
            return False
        tools, callers = self._tools, tool.callers
        if tool.duration_s is None and now - tools.began < COLD_S and self._is_half(tool):
            return False
        needed = tools.spared(tool, self.places, now, self.running)
        if tool.is_shared:
            # What the tool can have when the others have all that they claim.
            share = self.places - (tools.claimed - tool.claim)
            needed = max(needed, callers.spared(caller, max(share, 1.0), now, tool.running))
        return free - 1 >= needed

    def _is_half(self, tool: _Tool[T]) -> bool:
        """Whether ``tool`` has half of the places, and its further requests can wait."""
        places = self.places
        return 2 * tool.running >= places and places >= MIN_PLACES and self.max_waiting >= places

    def start(self, item: T, tool: str, caller: str, now: float) -> bool:
        """Give ``item`` a place, or return False: it must wait, or be refused."""
        flow, of = self._flow(tool, caller, now)
        if of.queue or not self._may_start(flow, of, now):
            return False
        self._occupants[item] = (flow, of, now)
        self._count(flow, of, 1, 0, now)
        return True

    def _count(self, tool: _Tool[T], caller: _Caller[T], running: int, waiting: int, now: float) -> None:
        """Change the numbers of running and waiting requests."""
        self.running += running
        self._tools.add(tool, running, waiting, now)
        if tool.is_shared:
            tool.callers.add(caller, running, waiting, now)

    def pause(self, item: T, now: float) -> bool:
        """Let another request have the place of ``item``, a stream whose reader has paused. Return False if half of the
        places are given away already: an instance with one place never runs two requests at once."""
        if 2 * (len(self._paused) + 1) > self.places:
            return False
        tool, caller, _ = self._occupants[item]
        self._paused.add(item)
        self._count(tool, caller, -1, 0, now)
        return True

    def resume(self, item: T, now: float) -> None:
        """Count ``item`` again, perhaps beyond the number of places: its reader reads. No effect if it was not paused."""
        if item in self._paused:
            tool, caller, _ = self._occupants[item]
            self._paused.discard(item)
            self._count(tool, caller, 1, 0, now)

    def release(self, item: T, now: float) -> None:
        """Free the place of ``item``, if it has one."""
        occupant = self._occupants.pop(item, None)
        if occupant is None:
            return
        tool, caller, since = occupant
        if item in self._paused:
            self._paused.discard(item)
            return  # how long its reader let it wait is no duration of the tool
        self._count(tool, caller, -1, 0, now)
        mean, took = tool.duration_s, now - since
        tool.duration_s = took if mean is None else mean + 0.1 * (took - mean)

    def wait(self, item: T, tool: str, caller: str, now: float) -> T | None:
        """Let ``item`` wait. Return the request that does not, if the queue is full: the newest one of the tool and caller
        with the most; it may be ``item``."""
        flow, of = self._flow(tool, caller, now)
        if len(self._waiting) < self.max_waiting:
            self._add(item, flow, of, now)
            return None
        longest = max(self._turns.values(), key=attrgetter("waiting"), default=flow)
        if flow.waiting + 1 >= longest.waiting:
            longest = flow
        most = max(longest.turns.values(), key=lambda each: len(each.queue), default=of)
        if longest is flow and len(of.queue) + 1 >= len(most.queue):
            return item
        loser = next(reversed(most.queue))
        self.leave(loser, now)
        self._add(item, flow, of, now)
        return loser

    def _add(self, item: T, tool: _Tool[T], caller: _Caller[T], now: float) -> None:
        caller.queue[item] = None
        tool.turns.setdefault(caller.name, caller)
        self._turns.setdefault(tool.name, tool)
        self._waiting[item] = (tool, caller)
        self._count(tool, caller, 0, 1, now)

    def leave(self, item: T, now: float) -> bool:
        """Remove ``item`` from the queue. Return False if it does not wait."""
        flows = self._waiting.pop(item, None)
        if flows is None:
            return False
        tool, caller = flows
        del caller.queue[item]
        self._count(tool, caller, 0, -1, now)
        if not caller.queue:
            del tool.turns[caller.name]
            if not tool.turns:
                del self._turns[tool.name]
        return True

    def start_next(self, now: float) -> T | None:
        """Give the next waiting request a place and return it; None: no place is free for any."""
        if not self._waiting or self.running >= self.places:
            return None
        for tool in self._turns.values():
            for caller in tool.turns.values():
                if self._may_start(tool, caller, now):
                    item = next(iter(caller.queue))
                    # To the end: the others are next. Those before are blocked, and keep their turns.
                    tool.turns.move_to_end(caller.name)
                    self._turns.move_to_end(tool.name)
                    self.leave(item, now)
                    self._occupants[item] = (tool, caller, now)
                    self._count(tool, caller, 1, 0, now)
                    return item
        return None

    def forget_caller(self, name: str) -> None:
        """Reserve no places for a caller that has gone."""
        for tool in self._tools.flows.values():
            if tool.is_shared or not (tool.running or tool.waiting):  # else the caller's own numbers are not kept
                tool.callers.forget(name)

    def mark_stuck(self, item: T, change: int) -> None:
        """Count the place of ``item`` as one that a thread has which nothing waits for (1), or no longer (-1)."""
        occupant = self._occupants.get(item)
        if occupant is not None:
            occupant[0].stuck += change

    def is_stuck(self, tool: str, now: float) -> bool:
        """Whether such threads have all places of ``tool``, and it gets no other."""
        flow = self._tools.flows.get(tool)
        if flow is None or not flow.stuck or flow.stuck < flow.running:
            return False
        free = self.places - self.running
        return free < 1 or free - 1 < self._tools.spared(flow, self.places, now, self.running)

    def running_of(self, tool: str) -> int:
        """Return the running requests of ``tool``."""
        flow = self._tools.flows.get(tool)
        return 0 if flow is None else flow.running

    def retry_after(self, tool: str) -> float | None:
        """Estimate the seconds until the waiting requests of ``tool`` have been served; None: unknown."""
        flow = self._tools.flows.get(tool)
        if flow is None or flow.duration_s is None:
            return None
        return (flow.waiting + 1) * flow.duration_s / max(1, flow.running)
