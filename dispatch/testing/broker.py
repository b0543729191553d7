"""An embedded broker for one test: tool services and dispatchers on it, with faults on their connections."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from dispatch.catalog import Catalog, load_directory
from dispatch.dispatcher import Dispatcher
from dispatch.policy import DEFAULT_POLICY, PolicyLike
from dispatch.serving.server import ToolServer
from dispatch.testing.faults import FaultInjector, Faults
from dispatch.testing.faulty_transport import FaultyTransport
from dispatch.transports.memory import MemoryTransport

_numbers = itertools.count(1)


class EmbeddedBroker:
    """A broker in this process, with a name of its own. Ids and random decisions on it are the same in each run.

    Args:
        injector: faults of the dispatchers' connections; they can be changed at any time. None: no faults at first.
    """

    def __init__(self, injector: FaultInjector | None = None) -> None:
        self.url = f"memory://testing-{next(_numbers)}"
        """URL of the broker (for ``dispatch.connect``, ``dispatch.serve``), valid in the same event loop."""
        self.injector = FaultInjector() if injector is None else injector
        self._servers = 0
        self._dispatchers = 0

    def transport(self, *faults: Faults | FaultInjector) -> FaultyTransport:
        """Return a connection to the broker with these faults, not yet started."""
        return FaultyTransport(MemoryTransport(self.url), *faults)

    @contextlib.asynccontextmanager
    async def serve(
        self, implementation: object, service: str, *, faults: Faults | FaultInjector | None = None, **options: Any
    ) -> AsyncIterator[ToolServer]:
        """Serve a tool service: ``async with broker.serve(Joke(), "joke"): …``

        Args:
            implementation: a :class:`dispatch.ToolService`.
            service: name of the service, or a whole request topic (then ``response_queue`` is needed too).
            faults: of this service's connection alone, so that other tools do not fail.
            options: as of :class:`dispatch.ToolServer`.

        Raises:
            TypeError, ValueError: as :class:`dispatch.ToolServer`.
        """
        self._servers += 1
        name = service.rpartition("/")[2]
        named = {"request_queue": service} if "://" in service else {"service": service}
        transport = self.transport(*(() if faults is None else (faults,)))
        server = ToolServer(implementation, transport, **{"instance": f"{name}-{self._servers}", **named, **options})
        await transport.start()
        try:
            async with server:
                yield server
        finally:
            await transport.close()

    @contextlib.asynccontextmanager
    async def connect(
        self,
        catalog: Catalog | str | Path | None = None,
        *,
        services: Mapping[str, object] | None = None,
        policy: PolicyLike = DEFAULT_POLICY,
        client_id: str | None = None,
    ) -> AsyncIterator[Dispatcher]:
        """Connect a dispatcher whose connection has the faults of :attr:`injector`, and serve ``services`` for it.

        Args:
            catalog, policy: as of :func:`dispatch.connect`.
            services: tool services by name, as of :meth:`serve`, served until the dispatcher is closed.
            client_id: of the dispatcher; default ``dispatcher-1`` and so on.

        Raises:
            CatalogError: the descriptors have errors.
        """
        self._dispatchers += 1
        if catalog is None:
            catalog = Catalog.empty()
        elif not isinstance(catalog, Catalog):
            catalog = load_directory(catalog)
        dispatcher = Dispatcher(
            self.transport(self.injector),
            catalog,
            policy=policy,
            client_id=client_id or f"dispatcher-{self._dispatchers}",
            randomness=random.Random(self._dispatchers).random,
        )
        async with contextlib.AsyncExitStack() as stack:
            for service, implementation in (services or {}).items():
                await stack.enter_async_context(self.serve(implementation, service))
            await stack.enter_async_context(dispatcher)
            yield dispatcher
