"""TrustGraph's published agents (2.8 to 2.11.1) over a dispatcher.

They cannot call any tool service: ``trustgraph.agent.react.tools.ToolServiceImpl`` constructs a client class that has no
constructor. :class:`ToolServiceImpl` is called in the same way, and :func:`install` puts it into the agents' modules.
``python -m dispatch.trustgraph agent-manager-react …`` does that and runs the agent, without a change to TrustGraph.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

from dispatch._internal import cancel_and_wait, wait_shared
from dispatch.catalog.merge import CatalogLike
from dispatch.dispatcher import Dispatcher, connect
from dispatch.messaging.wire import TopicName
from dispatch.permissions import Grants, GrantsFunction
from dispatch.policy import PolicyLike
from dispatch.transports import Security
from dispatch.trustgraph.client import DEFAULT_TIMEOUT_S

DEFAULT_POLICY: Final = {"timeout": DEFAULT_TIMEOUT_S}
"""The policy of tools without one: the defaults, with TrustGraph's own timeout of a tool service."""
TOOLS_MODULE: Final = "trustgraph.agent.react.tools"
AGENT_MODULES: Final = ("trustgraph.agent.react.service", "trustgraph.agent.orchestrator.service")
"""Modules whose ``Processor`` handles the requests of an agent."""
NAME: Final = "ToolServiceImpl"

_user: ContextVar[str] = ContextVar("dispatch-trustgraph-user", default="")


class AgentDispatcher:
    """The dispatcher of one event loop, and the tools that the agents of this process have given it.

    Args:
        broker: URL.
        token: of the broker; None: from the environment, as in :func:`dispatch.connect`.
        options: of :func:`install`.
    """

    def __init__(self, broker: str, token: str | None, options: Mapping[str, Any]) -> None:
        security = None if token is None else Security(token=token)
        self._dispatcher = connect(broker, security=security, **{"policy": DEFAULT_POLICY, **options})
        self._starting = asyncio.ensure_future(self._dispatcher.start())
        self._put: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._putting = asyncio.Lock()

    async def find(self, service: Mapping[str, Any], tool: Mapping[str, Any]) -> Dispatcher:
        """Return the started dispatcher, whose catalogue has the tool."""
        await wait_shared(self._starting)
        async with self._putting:
            for kind, name, raw in (("tool-service", "id", service), ("tool", "name", tool)):
                key = kind, raw[name]
                catalog = self._dispatcher.catalog
                known = catalog.services if kind == "tool-service" else catalog.tools
                if (key in self._put or raw[name] not in known) and self._put.get(key) != raw:
                    await self._dispatcher.registry.put(kind, raw)
                    self._put[key] = raw
        return self._dispatcher

    async def close(self) -> None:
        """Close the dispatcher."""
        await cancel_and_wait((self._starting,))
        await self._dispatcher.close()

    stop = close


_options: dict[str, Any] = {}
_dispatchers: WeakKeyDictionary[asyncio.AbstractEventLoop, AgentDispatcher] = WeakKeyDictionary()


class ToolServiceImpl:
    """A tool of a tool service, as TrustGraph's agent creates it for each call; its calls go through the one dispatcher of
    the process.

    A tool that the dispatcher's catalogue has keeps its descriptor: policy, permissions, schema. Any other is called as the
    agent's configuration describes it.

    Args:
        context: of the agent's flow; not used.
        request_queue, response_queue: topics of the service.
        config_values: of the tool.
        arguments: of the tool; each has ``name``, ``type`` and ``description``.
        processor: the agent, whose ``pubsub`` has the broker's address; None: the environment's ``DISPATCH_BROKER``.
    """

    def __init__(
        self,
        context: object,
        request_queue: str,
        response_queue: str,
        config_values: Mapping[str, Any] | None = None,
        arguments: Sequence[Any] | None = None,
        processor: Any = None,
    ) -> None:
        self.context = context
        self.request_queue = request_queue
        self.response_queue = response_queue
        self.config_values = config_values or {}
        self.arguments = arguments or []
        self.processor = processor
        self._given = config_values

    def get_arguments(self) -> Sequence[Any]:
        """Return the arguments of the tool."""
        return self.arguments

    async def invoke(self, /, **arguments: Any) -> str:
        """Call the tool and return its result.

        Raises:
            DispatchError: the call failed; the agent shows the model its text, which says what to do next.
        """
        service = {
            "id": self._service_id,
            "request-queue": self.request_queue,
            "response-queue": self.response_queue,
            "config-params": [{"name": name} for name in self.config_values],
        }
        tool = {
            "type": "tool-service",
            "name": self._tool_name,
            "description": "A tool of TrustGraph's configuration.",
            "service": service["id"],
            "arguments": [
                {"name": each.name, "type": each.type or "string", "description": each.description or ""}
                for each in self.arguments
            ],
            **self.config_values,
        }
        dispatcher = await self._connect().find(service, tool)
        return await dispatcher.call(tool["name"], arguments, user=_user.get())

    @property
    def _service_id(self) -> str:
        return TopicName.parse(self.request_queue).name

    @property
    def _tool_name(self) -> str:
        """The name in the agent's configuration; without one, that of the service."""
        for manager in getattr(self.processor, "agents", {}).values():
            for name, tool in manager.tools.items():
                given = getattr(tool.implementation, "keywords", {})
                if given.get("request_queue") == self.request_queue and given.get("config_values") is self._given:
                    return str(name)
        return self._service_id

    def _connect(self) -> AgentDispatcher:
        loop = asyncio.get_running_loop()
        found = _dispatchers.get(loop)
        if found is None:
            backend = getattr(self.processor, "pubsub", None)
            host = getattr(backend, "host", None) or os.environ.get("DISPATCH_BROKER")
            if not host:
                raise RuntimeError(
                    "The tool was not executed: the agent names no Pulsar broker. Set DISPATCH_BROKER=pulsar://HOST:6650."
                )
            found = _dispatchers[loop] = AgentDispatcher(host, getattr(backend, "api_key", None) or None, _options)
            clients = getattr(self.processor, "tool_service_clients", None)
            if clients is not None:
                clients["dispatch"] = found  # closed with the agent's own clients
        return found


def install(
    *,
    catalog: CatalogLike | None = None,
    policy: PolicyLike | None = None,
    grants: Grants | GrantsFunction | None = None,
    **options: Any,
) -> None:
    """Let the published agents of this process call tool services through a dispatcher: rebind ``ToolServiceImpl`` in
    TrustGraph's modules, also in those that have imported it already.

    The user of an agent's request, where it has one (``user``), is the user of the calls: for permissions and limits.

    Args:
        catalog, policy, grants: of the dispatcher, see :func:`dispatch.connect`. Default policy: TrustGraph's timeout.
        options: further ones of :func:`dispatch.connect`.

    Raises:
        ImportError: TrustGraph's agents (package ``trustgraph-flow``) are not installed.
    """
    import importlib

    given = {"catalog": catalog, "policy": policy, "grants": grants}
    _options.clear()
    _options.update({name: value for name, value in given.items() if value is not None}, **options)
    tools = importlib.import_module(TOOLS_MODULE)
    former = getattr(tools, NAME)
    for module in AGENT_MODULES:
        try:
            processor = importlib.import_module(module).Processor
        except ImportError:  # an older release has no orchestrator
            continue
        if not hasattr(processor.agent_request, "__wrapped__"):
            processor.agent_request = _with_user(processor.agent_request)
    for loaded in tuple(sys.modules.values()):
        if getattr(loaded, "__name__", "").startswith("trustgraph.") and vars(loaded).get(NAME) is former:
            setattr(loaded, NAME, ToolServiceImpl)


def _with_user(handle: Callable[..., Any]) -> Callable[..., Any]:
    """Return an agent's handler of requests that sets the user for the calls in it."""

    @functools.wraps(handle)
    async def agent_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        user = getattr(request, "user", "")
        reset = _user.set(user if isinstance(user, str) else "")
        try:
            return await handle(self, request, *args, **kwargs)
        finally:
            _user.reset(reset)

    return agent_request
