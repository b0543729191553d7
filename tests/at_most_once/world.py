"""A world for scenarios about "at most once": our dispatchers and our service's instances on a network that loses, repeats,
delays and reorders in both directions. It knows what every call asked for, where it went, what ran, and what may come back.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from dispatch import CallResult, Dispatcher, Policy, ToolServer, ToolService
from dispatch.errors import DispatchError
from dispatch.messaging.request import Request
from dispatch.protocol.session import CallerSession
from dispatch.protocol.settings import DEFAULT_SETTINGS
from dispatch.serving.replies import KEY_AGE_S
from tests.at_most_once.network import Network
from tests.at_most_once.quiescence import assert_aged, assert_dispatcher_rests, assert_server_rests
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, UNGUARDED, catalog
from tests.helpers.faults import FaultPlan
from tests.helpers.internals import correlator_of, sessions_of, tables_of, transport_of

PATIENT_S = 600.0
"""So long that a call which has a way gets its answer: what is shown is that it never takes that long for nothing."""
NEVER = 1e-12
"""The chance that is taken for none."""
AGED_S = 650.0
"""After it nothing that is kept for its age is kept (docs/explanation/delivery.md)."""
REST_S = 30.5
"""Longer than every tool."""
KEEPALIVE_STEPS = 10
"""Milliseconds for which a PING that keeps an idle session alive may await its acknowledgement."""
MAY_END_SO = {
    "instance-lost", "instance-restarted", "no-instance", "reply-evicted", "timeout", "expired", "draining", "closed",
    "idle-timeout", "cancelled", "send-timeout", "unreachable", "disconnected",
}  # fmt: skip
"""Errors of a call whose way was cut, or whose time was short."""


def longest_silence(plan: FaultPlan) -> float:
    """Return the seconds for which an instance that is there is never silent: it is probed every half second, and each probe
    and its acknowledgement may be lost at both ends."""
    heard = (1 - plan.drop) ** 4
    return 10 + 4 * plan.max_delay + (math.log(NEVER) / math.log(1 - heard) / 2 if heard < 1 else 0)


@dataclass(eq=False)
class Life:
    """One life of a service instance."""

    server: ToolServer
    network: Network
    sound: bool = True
    """It was not killed, does not leave, and shares its name with nobody: what was sent to it gets an answer."""
    keyed: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    """What ran under an idempotency key: when it began, and the number of the call."""
    busy: set[str | None] = field(default_factory=set)
    """Keys of what runs."""


@dataclass(eq=False)
class Call:
    """What was asked for, and where the request went last."""

    arguments: dict[str, Any]
    dispatcher: Dispatcher
    short: bool
    """Its time may run out."""
    target: Life | None = None
    """The instance it was addressed to; None: whoever took it from the shared topic, unprotected."""

    @property
    def text(self) -> str:
        number, chunks = self.arguments["n"], self.arguments.get("chunks")
        if chunks:
            return "".join(chunk(number, index) for index in range(chunks))
        return f"answer {number} " + padding(self.arguments.get("pad", 0))


@functools.cache
def padding(size: int) -> str:
    """A text of which no two parts are alike."""
    return "".join(f"{number:04d}" for number in range(-(-size // 4)))[:size]


def chunk(number: int, index: int) -> str:
    return f"{number}:{index};"


class Worker(ToolService):
    """Changes the state of the world: counts, by the number of the call, how often it was told to."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.life: Life | None = None

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        world, number, key, life = self.world, arguments["n"], arguments.get("key"), self.life
        world.ran[number] += 1
        assert life is not None
        more = arguments.get("more", "")
        if more != padding(len(more)):
            world.wrong.append(f"call {number} arrived with other arguments than its own")
        if key is not None:
            if key in life.busy:
                world.wrong.append(f"call {number} ran beside another one with its key {key}")
            life.keyed.setdefault(key, []).append((asyncio.get_running_loop().time(), number))
            life.busy.add(key)
        try:
            if "seconds" in arguments:
                await asyncio.sleep(arguments["seconds"])
            if "fails" in arguments:
                raise ValueError(f"no {number}")
            if "chunks" in arguments:
                return self._stream(number, arguments["chunks"])
            return world.calls[number].text
        finally:
            life.busy.discard(key)

    async def _stream(self, number: int, chunks: int) -> AsyncIterator[str]:
        for index in range(chunks):
            if index % 7 == 3:
                await asyncio.sleep(0.01)
            yield chunk(number, index)


class World:
    """A faulty network with instances and dispatchers on it. :meth:`calm` and :meth:`storm` switch the faults.

    Args:
        plan: what the network does in a storm.
        seed: of its dice.
        refusals: types of errors that every call may end with, because bounds are small.
        server, policy: further options of the instances, and the dispatchers' policy.
    """

    def __init__(
        self,
        plan: FaultPlan,
        seed: int,
        *,
        refusals: frozenset[str] = frozenset(),
        server: dict[str, Any] | None = None,
        policy: dict[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self.rng = random.Random(seed)
        self.refusals = refusals
        self.ran: Counter[int] = Counter()
        self.calls: dict[int, Call] = {}
        self.seen: Counter[str] = Counter()
        """Faults of the network, and how calls ended."""
        self.wrong: list[str] = []
        self.harmless: dict[int, DispatchError] = {}
        """What told a call that it did not run."""
        self.networks: list[Network] = []
        self.lives: list[Life] = []
        self.former: list[Life] = []
        self.dispatchers: list[Dispatcher] = []
        self.stormy = False
        self.keys_kept = True
        self.on_dispatcher: Callable[[Dispatcher], object] = lambda dispatcher: None
        """What is done to each one before it gets anything to do."""
        self._server = server or {}
        self._policy = policy or {}
        self._names = 0

    # -- who is there -------------------------------------------------------------------------------------------

    @property
    def servers(self) -> list[ToolServer]:
        return [life.server for life in self.lives]

    def network(self) -> Network:
        network = Network(self.network, self.rng.randrange(2**32), self.seen)
        self.networks.append(network)
        if self.stormy:
            network.storm(self.plan)
        return network

    def _gone(self, network: Network) -> None:
        for each in (network, *network.further):
            self.networks.remove(each)

    def storm(self) -> None:
        self.stormy = True
        for network in self.networks:
            network.storm(self.plan)

    def calm(self) -> None:
        self.stormy = False
        for network in self.networks:
            network.heal()

    def _name(self, kind: str) -> str:
        self._names += 1  # not random: where a key goes depends on the names
        return f"{kind}{self._names}"

    async def instance(self, name: str | None = None, **options: Any) -> ToolServer:
        network = self.network()
        await network.start()
        worker = Worker(self)
        server = ToolServer(
            worker,
            network,
            request_queue=REQUESTS,
            response_queue=RESPONSES,
            instance=name or self._name("instance"),
            **self._server,
            **options,
        )
        worker.life = Life(server, network)
        for life in self.lives:
            if life.server.instance == server.instance:
                life.sound = worker.life.sound = False
        await server.start()
        self.lives.append(worker.life)
        return server

    def _leaves(self, server: ToolServer) -> Life:
        life = next(life for life in self.lives if life.server is server)
        life.sound = False
        self.lives.remove(life)
        self.former.append(life)
        return life

    async def kill(self, server: ToolServer) -> None:
        """It ends in the middle of things: nothing that it says from now on gets anywhere."""
        network = self._leaves(server).network
        network.die()
        self._gone(network)
        await server.close()
        await network.close()

    async def leave(self, server: ToolServer) -> None:
        """It ends in good order."""
        await self.leaving(server)

    def leaving(self, server: ToolServer) -> Coroutine[Any, Any, None]:
        """As :meth:`leave`; from now on, whenever it is awaited."""
        return self._leave(self._leaves(server))

    async def _leave(self, life: Life) -> None:
        server = life.server
        await server.drain()
        await server.close()
        self._gone(life.network)
        await life.network.close()

    async def dispatcher(self, name: str | None = None) -> Dispatcher:
        """A dispatcher whose calls have the time that they need."""
        policy = Policy(
            timeout=PATIENT_S, stream_timeout=PATIENT_S, stream_idle_timeout=PATIENT_S, **{**UNGUARDED, **self._policy}
        )
        dispatcher = Dispatcher(self.network(), catalog(), policy=policy, client_id=name or self._name("dispatcher"))
        await dispatcher.start()
        self._watch(dispatcher)
        self.on_dispatcher(dispatcher)
        self.dispatchers.append(dispatcher)
        return dispatcher

    def _watch(self, dispatcher: Dispatcher) -> None:
        """Note which instance each request is addressed to."""
        sessions = sessions_of(dispatcher)
        send = sessions.send

        def noted(request: Request, session: CallerSession, executor: Any) -> bool:
            call, incarnation = _CALL.get(), session.peer_incarnation
            if call is not None:
                lives = (*self.lives, *self.former)
                call.target = next((life for life in lives if life.server.incarnation == incarnation), None)
            return send(request, session, executor)

        sessions.send = noted  # type: ignore[method-assign]
        exchange = correlator_of(dispatcher)
        send_plainly = exchange.send

        def unprotected(*args: Any) -> None:
            call = _CALL.get()
            if call is not None:
                call.target = None
            send_plainly(*args)

        exchange.send = unprotected  # type: ignore[method-assign]

    async def crash(self, dispatcher: Dispatcher) -> None:
        """The dispatcher's process dies; its callers with it."""
        self.dispatchers.remove(dispatcher)
        transport = transport_of(dispatcher)
        assert isinstance(transport, Network)
        transport.die()
        self._gone(transport)
        await dispatcher.close()

    async def close(self, dispatcher: Dispatcher) -> None:
        """The dispatcher ends in good order; its callers get an error."""
        self.dispatchers.remove(dispatcher)
        await dispatcher.close()
        transport = transport_of(dispatcher)
        assert isinstance(transport, Network)
        self._gone(transport)

    # -- calls --------------------------------------------------------------------------------------------------

    def _new(self, dispatcher: Dispatcher, arguments: dict[str, Any], timeout: float | None) -> tuple[int, Call]:
        number = len(self.calls) + 1
        call = self.calls[number] = Call({"n": number, **arguments}, dispatcher, short=timeout is not None)
        _CALL.set(call)
        return number, call

    async def call(self, dispatcher: Dispatcher, *, timeout: float | None = None, **arguments: Any) -> CallResult:
        """Ask for the whole answer at once, and see that it may be what it is."""
        number, call = self._new(dispatcher, arguments, timeout)
        key = arguments.get("key")
        result = await dispatcher.execute("work", call.arguments, timeout=timeout, idempotency_key=key)
        if result.error is not None:
            self._failed(number, call, result.error)
        elif key is None:
            self.seen["answered"] += 1
            assert result.text == call.text, f"call {number} got another answer than its own"
            assert self.ran[number] == 1, f"call {number} was answered, and ran {self.ran[number]} times"
            assert "fails" not in arguments, f"call {number} should have failed"
        else:
            self.seen["answered by key"] += self.ran[number] == 0
            done = [n for life in (*self.lives, *self.former) for _, n in life.keyed.get(key, ())]
            assert result.text in [self.calls[n].text for n in done], "an answer of nobody's with this key"
        return result

    async def read(
        self, dispatcher: Dispatcher, *, pause: float = 0.0, leave_after: int | None = None, **arguments: Any
    ) -> None:
        """Read an answer chunk by chunk, ``pause`` seconds between them, and perhaps leave early."""
        number, call = self._new(dispatcher, arguments, None)
        seen = 0
        chunks = dispatcher.stream("work", call.arguments)
        try:
            async for text in chunks:
                assert text == chunk(number, seen), f"chunk {seen} of {number} is {text}"
                seen += 1
                if seen == leave_after:
                    self.seen["left"] += 1
                    return
                if pause:
                    await asyncio.sleep(pause)
        except DispatchError as error:
            self._failed(number, call, error)
        else:
            self.seen["read"] += 1
            assert seen == arguments["chunks"], f"stream {number} ended with chunk {seen}"
            assert self.ran[number] == 1, f"stream {number} ran {self.ran[number]} times"
        finally:
            await chunks.aclose()

    def _failed(self, number: int, call: Call, error: DispatchError) -> None:
        """May ``call`` end with ``error``?"""
        self.seen[error.type] += 1
        if error.retryable:
            self.harmless[number] = error
        if call.arguments.get("fails") and error.type == "ValueError":
            assert "key" in call.arguments or error.message == f"no {number}"
            return
        if error.type in self.refusals:
            return
        keyed = "key" in call.arguments  # what became of the first with its key, is what becomes of it
        cut = call.target is None or not call.target.sound or call.dispatcher not in self.dispatchers
        assert keyed or call.short or cut, f"call {number} had a way, and ended with {error!r}"
        assert error.type in MAY_END_SO or (keyed and error.type == "ValueError"), repr(error)

    # -- the end ------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Everything comes to rest: nothing waits, nothing is retained, nothing ran twice."""
        for dispatcher in self.dispatchers:
            assert dispatcher.pending_requests == 0, "all callers have gone, and yet somebody is waited for"
        self.calm()
        # Tools whose callers have gone run to their end, the last packets are acknowledged, and peers that have gone without
        # a word are given up.
        await advance(REST_S + DEFAULT_SETTINGS.give_up)
        await self._rests()
        if self.lives:
            await self._still_work()
        for dispatcher in self.dispatchers:
            await dispatcher.close()
        await advance(AGED_S)
        for life in self.lives:
            assert_aged(life.server)
            await life.server.close()
        for network in self.networks:
            await network.close()
        self._nothing_twice()

    async def _still_work(self) -> None:
        """Calls are answered, also after a long rest, and what is old is forgotten."""
        for dispatcher in self.dispatchers:
            for _ in range(4 * (len(self.lives) + 1)):  # beyond the smallest window of every instance
                await self.call(dispatcher, pad=1_500, more=padding(1_500))
        await advance(AGED_S)
        for dispatcher in self.dispatchers:
            for _ in range(3):
                result = await self.call(dispatcher)
                assert result.ok or result.error.type in self.refusals, f"after a long rest: {result.error!r}"
        await advance(2)
        await self._rests()
        now = asyncio.get_running_loop().time()
        for dispatcher in self.dispatchers:
            most = 3 * dispatcher._live.policy.retry.max_attempts
            # Older ones are removed with the next request of the plain exchange.
            recent = [at for at, _ in correlator_of(dispatcher)._tombstone_queue if at > now]
            assert len(recent) <= most, "what ended long ago is forgotten"

    async def _rests(self) -> None:
        tables = [table for each in self.dispatchers for table in tables_of(each)]
        tables += [each._sessions.table for each in self.servers if each._sessions is not None]
        for _ in range(KEEPALIVE_STEPS):
            if all(session.is_at_rest for table in tables for session in table.sessions.values()):
                break
            await advance(0.001)  # a PING of an idle session awaits its acknowledgement
        for dispatcher in self.dispatchers:
            assert_dispatcher_rests(dispatcher)
        for server in self.servers:
            assert_server_rests(server)

    def _nothing_twice(self) -> None:
        assert not self.wrong, self.wrong
        # What a key stands for runs again when so many others came since that it is forgotten, and is asked for again.
        forgotten = set() if self.keys_kept else {n for n, call in self.calls.items() if "key" in call.arguments}
        assert not [n for n, times in self.ran.items() if times > 1 and n not in forgotten], "a tool ran twice"
        for number, error in self.harmless.items():
            assert not self.ran[number], f"call {number} ran, and was told otherwise: {error!r}"
        for life in (*self.lives, *self.former):
            for key, runs in life.keyed.items():
                times = [began for began, _ in runs]
                again = [b - a for a, b in pairwise(times)]
                assert not self.keys_kept or all(gap >= KEY_AGE_S for gap in again), f"key {key} ran twice: {runs}"


_CALL: ContextVar[Call | None] = ContextVar("call", default=None)
"""The call in whose context a request is made."""
