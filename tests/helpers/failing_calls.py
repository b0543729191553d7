"""Calls in trouble of every kind, so that no metric stays at nothing: four services, six tools, and what goes wrong with
them, round after round."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from dispatch import Catalog, Dispatcher, DispatchError, Policy, Telemetry, ToolError, ToolServer, ToolService
from dispatch.catalog import CatalogError
from dispatch.errors import TransportError
from dispatch.messaging.wire import Identity, Property, encode_request, reply_topic
from dispatch.policy import Breaker
from dispatch.testing import Faults, FaultyTransport
from dispatch.transports import Publisher
from dispatch.transports.memory import MemoryTransport
from tests.helpers.troubled_source import CHANGED, INVALID, SOUND, TroubledSource

BROKER = "memory://troubled"
MOST = 300
"""Calls under way at once; those beyond it are not begun."""
SICK = "library-3"
"""The instance that answers late for a while, and is ejected."""
PLAIN = Identity("the secret of a plain client")
"""Of a client without sessions: it sends each request twice, and its replies cannot be sent."""
DEAF = Faults(late_error=1.0, topics=f"*/dispatch-reply-{PLAIN.key}-*", direction="out")
ODD_REPLIES = Faults(late_error=0.02, topics="*/dispatch-reply-*", direction="out", max_delay=0.1, seed=4)
IMPATIENT = Policy(breaker=Breaker(open_duration=1, max_open_duration=2))
"""Circuits close again within a round."""

SERVICES: Mapping[str, Mapping[str, Any]] = {"library": {}, "stories": {}, "weather": {}, "bank": {}}
TOOLS: Mapping[str, Mapping[str, Any]] = {
    "look-up": {
        "service": "library-service",
        "read-only": True,
        "policy": {
            "timeout": 1.5,
            "attempt-timeout": 0.35,
            "hedging": 0.15,
            "outlier-detection": {"consecutive-failures": 3, "base-ejection-time": 4, "slow-start-window": 3},
        },
    },
    "tell-story": {"service": "stories-service", "policy": {"stream-timeout": 5}},
    "forecast": {
        "service": "weather-service",
        "read-only": True,
        "policy": {
            "timeout": 0.8,
            "attempt-timeout": 0.3,
            "retry": {"budget-ratio": 0.01},
            "breaker": {"consecutive-failures": 5, "open-duration": 1, "max-open-duration": 2, "half-open-calls": 1},
        },
    },
    "transfer": {
        "service": "bank-service",
        "policy": {
            "rate-limit": {"rate": "20/s", "burst": 4, "max-wait": 0.3, "scope": "fleet"},
            "quota": "100000/day",
        },
    },
    "statement": {
        "service": "bank-service",
        "policy": {
            "user-rate-limit": {"rate": "5/s", "burst": 3, "max-wait": 0},
            "bulkhead": {"max-concurrent-calls": 2, "max-wait": 0.3},
        },
    },
    "appraise": {
        "version": "1.4.0",
        "rollout": {"2.0.0": 25},  # one of the users
        "service": "bank-service",
        "policy": {"retry": 1},
    },
}


def catalog() -> Catalog:
    """The tools."""
    return Catalog.of(
        [
            {
                "id": f"{id}-service",
                "request-queue": f"non-persistent://tg/request/{id}",
                "response-queue": f"non-persistent://tg/response/{id}",
                **more,
            }
            for id, more in SERVICES.items()
        ],
        [
            {"type": "tool-service", "name": name, "description": f"Does {name}.", **keys}
            for name, keys in (*TOOLS.items(), ("appraise", {**TOOLS["appraise"], "version": "2.0.0", "rollout": {}}))
        ],
    )


class Work(ToolService):
    """Takes about ``median`` seconds, spread as such work is."""

    def __init__(self, median: float, ill: Callable[[], float] = lambda: 0.0, mistakes: float = 0.0) -> None:
        self._median = median
        self._ill = ill
        self._mistakes = mistakes
        self._random = random.Random(7)

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(self._random.lognormvariate(math.log(self._median), 0.4) + self._ill())
        if self._random.random() < self._mistakes:
            raise ToolError("not-found", "There is no such thing.")
        return "done"


class Stories(ToolService):
    """Streams."""

    def __init__(self) -> None:
        self._random = random.Random(8)

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> AsyncIterator[str]:
        await asyncio.sleep(self._random.lognormvariate(math.log(0.12), 0.5))
        for each in range(4):
            yield f"Chapter {each}. "
            await asyncio.sleep(0.03)


class Troubled:
    """Use it with ``async with``: calls are made for as long as it is entered.

    Args:
        telemetry: of the dispatcher.
        round_s: seconds until everything that goes wrong begins anew.
        services: telemetry of the services; default: that of the dispatcher.

    Attributes:
        dispatcher: that makes the calls.
    """

    def __init__(self, telemetry: Telemetry, round_s: float, services: Telemetry | None = None) -> None:
        self._telemetry = services or telemetry
        self._round = round_s
        self._random = random.Random(9)
        self._began = 0.0
        self._strange: Publisher | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        odd = Faults(duplicate=0.02, malformed=0.01, drop=0.02, foreign_id=0.01, direction="in", max_delay=0.3, seed=3)
        self.transport = FaultyTransport(MemoryTransport(BROKER), odd)
        self._source = TroubledSource()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="dispatch-approvals-"))
        self.dispatcher = Dispatcher(
            self.transport,
            [catalog(), self._source],
            policy=IMPATIENT,
            approvals=Path(folder) / "approved.json",
            telemetry=telemetry,
            client_id="troubled",
            fleet="troubled",
        )

    def _within(self, begin: float, end: float) -> bool:
        """Is it that part of the round?"""
        passed = asyncio.get_running_loop().time() - self._began
        return begin <= passed % self._round / self._round < end

    async def __aenter__(self) -> Troubled:
        self._began = asyncio.get_running_loop().time()
        late: Callable[[], float] = lambda: 0.6 if self._within(0.15, 0.45) else 0.0  # noqa: E731 - two of a kind
        hangs: Callable[[], float] = lambda: 1.2 if self._within(0.35, 0.7) else 0.0  # noqa: E731
        services = [
            *(
                ("library", f"library-{n}", Work(0.02, late if f"library-{n}" == SICK else lambda: 0.0))
                for n in (1, 2, 3)
            ),
            ("stories", "stories-1", Stories()),
            ("weather", "weather-1", Work(0.03, hangs)),
            ("bank", "bank-1", Work(0.06, mistakes=0.1)),
        ]
        for id, instance, service in services:
            few = {"concurrency": 4, "max_queue": 2} if id == "bank" else {}
            transport = MemoryTransport(BROKER)
            await transport.start()
            self._stack.push_async_callback(transport.close)
            server = ToolServer(
                service,
                FaultyTransport(transport, DEAF, ODD_REPLIES),
                service=id,
                instance=instance,
                telemetry=self._telemetry,
                descriptor={"id": f"{id}-service"},
                **few,
            )
            await self._stack.enter_async_context(server)
        await self._stack.enter_async_context(self.dispatcher)
        self._strange = await transport.publisher("non-persistent://tg/request/bank")
        rates = {"look-up": 25, "forecast": 15, "transfer": 24, "statement": 14, "appraise": 12, "tell-story": 5}
        self._tasks = [asyncio.ensure_future(self._calls(tool, rate)) for tool, rate in rates.items()]
        self._tasks.append(asyncio.ensure_future(self._incidents()))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for task in (*self._tasks, *self._under_way):
            task.cancel()
        ended = await asyncio.gather(*self._tasks, *self._under_way, return_exceptions=True)
        await self._stack.aclose()
        wrong = [each for each in ended if isinstance(each, Exception)]
        assert not wrong, wrong

    async def _calls(self, tool: str, rate: float) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(rate))
            if len(self._under_way) < MOST:
                task = asyncio.ensure_future(self._call(tool))
                self._under_way.add(task)
                task.add_done_callback(self._under_way.discard)

    async def _call(self, tool: str) -> None:
        user = self._random.choice(("ann", "bo", "hog", "hog", "hog"))
        with contextlib.suppress(DispatchError):
            if tool == "tell-story":
                async for _ in self.dispatcher.stream(tool, {}, user=user):
                    pass
            else:
                await self.dispatcher.call(tool, {}, user=user)

    async def _incidents(self) -> None:
        """What happens once in a round, or now and then."""
        for turn in range(1_000_000):
            await asyncio.sleep(self._round / 8)
            with contextlib.suppress(DispatchError):
                await self.dispatcher.call(f"invented-{turn}")
            with contextlib.suppress(DispatchError):
                await self.dispatcher.call("look-up", {"what": object()})
            with contextlib.suppress(DispatchError):  # waits for receipts, so that a scrape finds it
                await self.dispatcher.call("look-up", {"what": "x" * 24_000_000})
            self._strange.publish(b"{}", {}, flow="stranger", on_failure=_nobody_minds)
            self._send_plainly(self._strange, turn)
            left = asyncio.ensure_future(self._call("tell-story"))
            await asyncio.sleep(0.05)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            if turn % 8 == 0:
                self._source.deliver(SOUND[0], CHANGED, INVALID)
            elif turn % 8 == 1:
                await self.dispatcher.reload([catalog(), self._source])
            elif turn % 8 == 3:
                with contextlib.suppress(CatalogError):
                    await self.dispatcher.reload("no/such/folder")
            elif turn % 8 == 4:
                self._source.fail()
            elif turn % 8 == 5:
                self._source.deliver(*SOUND)
            elif turn % 8 == 6:
                self.transport.disconnect(min(1.2, self._round / 30))
            elif turn % 8 == 7:
                await self._start_and_stop_an_instance()

    @staticmethod
    def _send_plainly(publisher: Publisher, turn: int) -> None:
        reply_to = reply_topic("non-persistent://tg/response/bank", f"{PLAIN.key}-plain")
        properties = {Property.ID: f"{PLAIN.prefix}{turn}", Property.REPLY_TO: reply_to, Property.SECRET: PLAIN.secret}
        for _ in range(2):
            publisher.publish(encode_request("{}", "{}", "ann"), properties, flow="plain", on_failure=_nobody_minds)

    async def _start_and_stop_an_instance(self) -> None:
        options = {"service": "library", "instance": "library-4", "telemetry": self._telemetry}
        options["descriptor"] = {"id": "library-service"}
        async with ToolServer(Work(0.02), BROKER, **options):  # type: ignore[arg-type] # options of ToolServer
            await asyncio.sleep(self._round / 16)


def _nobody_minds(_error: TransportError) -> None:
    """It was rubbish."""
