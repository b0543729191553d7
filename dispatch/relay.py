"""A relay between unmodified agents and unmodified tool services: it consumes the public topics of services, and forwards
each request to their instances with every guard of a dispatcher.

Inbound requests are those of a :class:`~dispatch.ToolServer`, outbound ones calls of one :class:`~dispatch.Dispatcher`, over
the same connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from dispatch._internal import cancel_and_wait, excerpt, explain_keywords, find_near_names, join_names, loop_clock
from dispatch.admin import Admin
from dispatch.calls.attempt import CallOptions
from dispatch.calls.fleet import fleet_topic
from dispatch.calls.resolution import ResolvedTool
from dispatch.catalog import Catalog, Folder, Problem, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.items import Item, Source
from dispatch.catalog.merge import CatalogLike, Merger
from dispatch.dispatcher import Dispatcher
from dispatch.documents import (
    WRONG,
    DocumentError,
    Key,
    Report,
    is_number,
    is_whole,
    list_mistakes,
    load_document,
    object_key,
    object_of,
    refuse,
    show_key,
    text_key,
    texts_key,
)
from dispatch.errors import ErrorType, ToolError, TransportError
from dispatch.messaging.wire import (
    MAX_PAYLOAD_BYTES,
    MCP_TOOL,
    JsonText,
    MalformedMessageError,
    Property,
    Request,
    TopicError,
    TopicName,
    is_local_queue,
    is_oversized,
)
from dispatch.permissions import Grants, GrantsError
from dispatch.policy import PolicyError, load_policy_keys
from dispatch.results import CallResult
from dispatch.server import DEFAULT_DRAIN_S, ToolServer
from dispatch.serving.replies import InboundRequest
from dispatch.serving.tool_service import RequestHandler
from dispatch.telemetry.events import CatalogChanged, Event, Listeners
from dispatch.transports import Security, default_broker
from dispatch.trustgraph.config import ConfigServiceError, TrustGraphConfig

logger = logging.getLogger("dispatch.relay")

MAX_FILE_BYTES: Final = 1024 * 1024
DEFAULT_CONCURRENCY: Final = 1_024
"""Requests of a service in flight at once: the limits of tools are those of their policies."""
DEFAULT_QUEUE: Final = 4_096
DEFAULT_USER: Final = "default-user"


class RelayError(ValueError):
    """A relay cannot start, or another configuration cannot be put in force. ``str()`` lists all mistakes, which are the
    ``problems`` of severity ``error``."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        errors = [each for each in self.problems if each.severity == "error"]
        super().__init__(list_mistakes("The relay cannot be configured", errors))


# The configuration.


_COUNT_KEY: Final = Key(lambda value: is_whole(value) and value > 0, "a whole number above 0", 1_024)
_SECONDS_KEY: Final = Key(
    lambda value: is_number(value) and 0 <= value < math.inf, "a number of seconds, 0 or more", DEFAULT_DRAIN_S
)
_ID_KEY: Final = text_key("mcp-tool", may_be_empty=False)


def _read_fleet(name: str, report: Report, path: str) -> Any:
    try:
        fleet_topic(name)
    except ValueError as error:
        return refuse(report, path, str(error).partition(";")[0], show_key(path, "relays"))
    return name


class McpToolConfig(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """How a relay stands in for TrustGraph's ``mcp-tool`` processor.

    Attributes:
        processor: its id: the flows of ``processor:ID`` in TrustGraph's configuration are served.
        workspace: of the flows; ``*``: all.
    """

    processor: Annotated[str, _ID_KEY] = "mcp-tool"
    workspace: Annotated[str, text_key("default", may_be_empty=False)] = "*"


class RelayConfig(msgspec.Struct, frozen=True, rename="kebab"):
    """The configuration of a relay. Paths are relative to the folder of its file.

    Attributes:
        broker: URL; None: that of ``DISPATCH_BROKER``, else ``pulsar://localhost:6650``.
        catalog: folders of descriptors, which are followed.
        workspace: in TrustGraph's configuration, whose tools and services follow those of ``catalog``; None: none.
        mcp_servers: file of MCP servers, whose tools follow; None: none.
        policy: file of the policy under those of services and tools; None: the defaults.
        grants: file of the users' permissions; None: none.
        fleet: name of the dispatchers that share limits, as of :class:`~dispatch.Dispatcher`; None: limits are the relay's.
        services: ids of the relayed services; empty: all that have ``instances``.
        mcp_tool: in place of TrustGraph's ``mcp-tool`` processor; None: no.
        default_user: user of a request that names none.
        concurrency: requests of a service in flight at once.
        max_queue: further ones that wait.
        max_payload_bytes: largest request and reply of dispatch's own callers.
        drain_timeout: seconds for calls in flight to finish when the relay stops.
    """

    broker: Annotated[str | None, text_key("pulsar://localhost:6650", may_be_empty=False)] = None
    catalog: Annotated[tuple[str, ...], texts_key("tools")] = ()
    workspace: Annotated[str | None, text_key("default", may_be_empty=False)] = None
    mcp_servers: Annotated[str | None, text_key("mcp.json", may_be_empty=False)] = None
    policy: Annotated[str | None, text_key("policy.json", may_be_empty=False)] = None
    grants: Annotated[str | None, text_key("grants.json", may_be_empty=False)] = None
    fleet: Annotated[str | None, text_key("relays", _read_fleet)] = None
    services: Annotated[tuple[str, ...], texts_key("joke-service")] = ()
    mcp_tool: Annotated[McpToolConfig | None, object_key({}, object_of(McpToolConfig, {}))] = None
    default_user: Annotated[str, text_key(DEFAULT_USER)] = DEFAULT_USER
    concurrency: Annotated[int, _COUNT_KEY] = DEFAULT_CONCURRENCY
    max_queue: Annotated[int, _COUNT_KEY] = DEFAULT_QUEUE
    max_payload_bytes: Annotated[int, _COUNT_KEY] = MAX_PAYLOAD_BYTES
    drain_timeout: Annotated[float, _SECONDS_KEY] = DEFAULT_DRAIN_S

    @classmethod
    @explain_keywords
    def load(cls, path: str | os.PathLike[str]) -> RelayConfig:
        """Read a file in JSON or YAML.

        Raises:
            RelayError: it has mistakes, all of which are listed; also those of the folders and files that it names.
        """
        name = os.fspath(path)
        report = Report(name)
        try:
            raw = load_document(path, MAX_FILE_BYTES, "keep data out of it", 'write {"catalog": ["tools"]}')
        except DocumentError as error:
            raise RelayError([Problem(name, *mistake) for mistake in error.mistakes]) from None
        read = object_key({"catalog": ["tools"]}, object_of(cls, {}))
        config = read(raw, report, "")
        wrong: Set[str] = frozenset()
        if config is WRONG and isinstance(raw, dict):
            # What the other keys name is read nevertheless, so that every mistake is listed.
            right = {key: value for key, value in raw.items() if read({key: value}, Report(name), "") is not WRONG}
            wrong = raw.keys() - right.keys()
            config = read(right, Report(name), "")
        if config is WRONG:
            raise RelayError(report.problems)
        folder = Path(name).parent
        paths = {
            key: str(folder / value) for key in ("mcp_servers", "policy", "grants") if (value := getattr(config, key))
        }
        found: RelayConfig = msgspec.structs.replace(
            config, catalog=tuple(str(folder / each) for each in config.catalog), **paths
        )
        meant = {near for key in wrong for near in find_near_names(key, cls.__struct_encode_fields__, 1)}
        is_partial = not meant.isdisjoint(("catalog", "workspace", "mcp-servers"))
        if not (found.catalog or found.workspace or found.mcp_servers or is_partial):
            report.add_error("catalog", "there are no tools", 'write "catalog": ["tools"], or "workspace": "default"')
        problems = [*report.problems]
        for file, load in ((found.policy, load_policy_keys), (found.grants, Grants.load)):
            try:
                if file is not None:
                    load(file)
            except (PolicyError, GrantsError) as error:
                problems += [msgspec.structs.replace(each, file=each.file or str(file)) for each in error.problems]
        catalog, mistakes = _check_folders(found.catalog)
        problems += mistakes
        if not (mistakes or is_partial) and found.workspace is None:  # otherwise services may come from there
            problems += plan_services(catalog, found.services)[1]
        if any(each.severity == "error" for each in problems):
            raise RelayError(problems)
        return found

    def list_sources(self) -> list[Source]:
        """Return the sources of the catalogue, the highest precedence first.

        Raises:
            CatalogError: the file of MCP servers is invalid.
        """
        sources: list[Source] = [Folder(path, watch=True) for path in self.catalog]
        if self.workspace is not None:
            sources.append(TrustGraphConfig(self.workspace))
        if self.mcp_servers is not None:
            from dispatch.mcp.sources import McpServers  # an extra

            sources += McpServers(self.mcp_servers).sources
        return sources


def _check_folders(paths: Iterable[str]) -> tuple[Catalog, list[Problem]]:
    """Return the catalogue of several folders, and their errors. Nothing is logged: the relay reads the folders again, and
    logs their warnings then."""
    merger = Merger()
    problems: list[Problem] = []
    items: dict[str, Sequence[Item]] = {}
    for folder in map(Folder, paths):
        merger.add_source(folder.id, is_atomic=folder.is_atomic)
        reading = folder.read()
        problems += reading.problems
        items[folder.id] = reading.items
    refused = merger.set_all_items(items).values()
    problems += chain.from_iterable(refused)
    return merger.merge().catalog, [each for each in problems if each.severity == "error"]


# The plan: which topics are consumed, and which tool a request means. Pure.


class RelayedService(msgspec.Struct, frozen=True):
    """A service as a relay serves it.

    Attributes:
        id: of the service.
        request_queue, response_queue: its public topics.
        instances: request topics of its instances, by their names.
        tools: names of its tools by their config values, as canonical JSON; a config that several tools have is left out.
    """

    id: str
    request_queue: str
    response_queue: str
    instances: Mapping[str, str]
    tools: Mapping[bytes, str]


_canonical: Final = partial(msgspec.json.encode, order="sorted")


def plan_services(catalog: Catalog, wanted: Sequence[str] = ()) -> tuple[list[RelayedService], list[Problem]]:
    """Return the services that a relay can serve, and what is wrong with the others.

    Args:
        catalog: their descriptors.
        wanted: ids; empty: all services that have instances with topics of their own.
    """
    problems = []
    for id in wanted:
        if id not in catalog.services:
            near = find_near_names(id, catalog.services, 1)
            fix = f"write '{near[0]}', add its descriptor, or remove it" if near else "add its descriptor, or remove it"
            problems.append(Problem("services", id, "there is no such service", fix))
    refused = find_conflicts(catalog, wanted)
    problems += dict.fromkeys(refused.values())
    planned = []
    for service in _choose_services(catalog, wanted):
        if service.id in refused:
            continue
        for each in service.instances:
            if each.response_queue == service.response_queue:
                problem = f"the instance '{each.id}' replies on the public topic, beside the relay"
                fix = "write the response-queue on which its process replies"
                problems.append(Problem(f"tool-service/{service.id}", "instances", problem, fix, "warning"))
        tools: dict[bytes, str | None] = {}
        for tool in catalog.list(service=service.id):
            key = _canonical(tool.config)
            tools[key] = None if key in tools else tool.name
        named = {key: name for key, name in tools.items() if name is not None}
        outbound = _list_outbound(service)
        planned.append(RelayedService(service.id, service.request_queue, service.response_queue, outbound, named))
    return planned, problems


def find_conflicts(catalog: Catalog, wanted: Sequence[str] = ()) -> dict[str, Problem]:
    """Return why services cannot be relayed, by their ids. Two services that are in each other's way have the same reason.

    Args:
        catalog, wanted: as of :func:`plan_services`.
    """
    refused: dict[str, Problem] = {}
    listening: dict[str, str] = {}
    chosen = _choose_services(catalog, wanted)
    for service in chosen:
        if is_local_queue(service.request_queue):
            problem, fix = "is executed by this process and has no public topic", "serve it with 'dispatch mcp'"
            refused[service.id] = Problem("services", service.id, problem, fix)
        elif (other := listening.setdefault(service.request_queue, service.id)) != service.id:
            both = f"'{excerpt(other)}' and '{excerpt(service.id)}'"
            problem = f"the services {both} have the same public topic {excerpt(service.request_queue, 200)}, "
            problem += "so that each request would be executed by both"
            fix = "give each of them a request-queue of its own, or relay one of them only"
            found = Problem(f"tool-service/{service.id}", "request-queue", problem, fix)
            refused[service.id] = found
            refused.setdefault(other, found)
    for service in chosen:
        looping = next((topic for topic in _list_outbound(service).values() if topic in listening), None)
        if looping is not None:
            other = listening[looping]
            whose, whom, name = "its requests", "", "it"
            if other != service.id:
                name, whom = f"'{excerpt(service.id)}'", f" for the service '{excerpt(other)}'"
                whose = f"requests of the service {name}"
            problem = f"{whose} would go to {excerpt(looping, 200)}, on which the relay listens{whom}"
            fix = f"give {name} 'instances' with request topics of their own, on which its processes listen"
            found = Problem(f"tool-service/{service.id}", "instances", problem, fix)
            refused.setdefault(service.id, found)
            refused.setdefault(other, found)
    return refused


def _choose_services(catalog: Catalog, wanted: Sequence[str]) -> list[ServiceDescriptor]:
    services = catalog.services
    return [services[id] for id in wanted or services if id in services and (wanted or services[id].instances)]


def _list_outbound(service: ServiceDescriptor) -> dict[str, str]:
    """Return the topics to which the requests of a service go, by the instance."""
    return {each.id: each.request_queue for each in service.instances} or {"": service.request_queue}


# Requests: from a public topic to the instances.


class _Handler(RequestHandler):
    """Forwards the requests of one public topic.

    Args:
        relay: has the dispatcher.
        topic: the public request topic.
    """

    def __init__(self, relay: Relay, topic: str) -> None:
        self.relay = relay
        self.topic = topic

    def read_options(self, request: Request, work: InboundRequest) -> CallOptions:
        """Return user, deadline and properties of the outbound call.

        Raises:
            ToolError: ``relay-loop``: the request has passed this topic before.
        """
        headers = work.headers
        via = headers.get(Property.VIA, "")
        if via and (self.topic in via.split(" ") or is_oversized(f"{via} {self.topic}")):
            raise ToolError(
                ErrorType.RELAY_LOOP,
                f"The tool was not executed: its request comes back to {self.topic}, where a relay has forwarded it before. "
                "Report that two relays forward to each other, and use another tool.",
            )
        return CallOptions(
            request.user or headers.get(Property.USER) or self.relay.config.default_user,
            None if work.deadline == math.inf else max(work.deadline - loop_clock()(), 0.001),
            idempotency_key=work.idempotency_key,
            properties={Property.VIA: f"{via} {self.topic}" if via else self.topic},
        )


class _ServiceHandler(_Handler):
    """Forwards the requests of one service; ``service`` is replaced when the catalogue changes."""

    def __init__(self, relay: Relay, service: RelayedService) -> None:
        super().__init__(relay, service.request_queue)
        self.service = service

    async def invoke_request(self, request: Request, work: InboundRequest) -> str | AsyncGenerator[str, None]:
        """Call the tool with the config values of ``request``; the service, if none or several have them."""
        options = self.read_options(request, work)
        name = self.service.tools.get(_canonical(request.config))
        if name is not None:
            tool = await self.relay.resolve_tool(name, options)
        else:
            tool = self.relay.dispatcher._resolve_service(self.service.id)
            options = msgspec.structs.replace(options, config=msgspec.json.encode(request.config).decode())
        return await self.relay.forward(tool, request.arguments, options)

    def is_repeatable(self, work: InboundRequest) -> bool:
        """See :class:`RequestHandler`: the catalogue decides."""
        try:
            config = self.dialect.decode_request(work.payload).config
        except MalformedMessageError:
            return True  # it is only answered
        name = self.service.tools.get(_canonical(config))
        return name is not None and self.relay.is_repeatable(name)


class Flow(NamedTuple):
    """A flow of TrustGraph's ``mcp-tool`` processor: ``workspace/name``, and its topics."""

    id: str
    request_queue: str
    response_queue: str


class _McpToolHandler(_Handler):
    """Answers the requests of one flow of the ``mcp-tool`` processor: ``{"name", "parameters"}``."""

    dialect = MCP_TOOL

    def __init__(self, relay: Relay, flow: Flow, processor: str) -> None:
        super().__init__(relay, flow.request_queue)
        # As the processor's own: both share the requests while one takes the place of the other.
        self.subscription = f"{processor}--{flow.id.replace('/', '--')}--request"

    async def invoke_request(self, request: Request, work: InboundRequest) -> str:
        """See :class:`RequestHandler`."""
        options = self.read_options(request, work)
        tool = await self.relay.resolve_tool(request.config["name"], options)
        result = await self.relay.call(tool, request.arguments, options)
        if result.structured_content is not None:
            return JsonText(msgspec.json.encode(result.structured_content).decode())
        return result.text

    def is_repeatable(self, work: InboundRequest) -> bool:
        """See :class:`RequestHandler`."""
        try:
            return self.relay.is_repeatable(self.dialect.decode_request(work.payload).config["name"])
        except MalformedMessageError:
            return True


def describe_mcp_tool(tool: ToolDescriptor) -> dict[str, Any]:
    """Return the item of TrustGraph's configuration by which its agents call a tool of the catalogue through the
    ``mcp-tool`` processor, whose place a relay takes."""
    raw: dict[str, Any] = {
        "type": "mcp-tool",
        "name": tool.name,
        "description": tool.description,
        "mcp-tool": tool.name,
    }
    raw["arguments"] = [
        {"name": each.name, "type": "string" if each.type == "any" else each.type, "description": each.description}
        for each in tool.described_arguments
    ]
    offered: dict[str, Any] = {"group": [*tool.groups], "applicable-states": [*tool.applicable_states]}
    return raw | offered | ({} if tool.state is None else {"state": tool.state})


class _Flows(TrustGraphConfig):
    """The flows of a processor, followed as a source of the catalogue is."""

    def __init__(self, config: McpToolConfig) -> None:
        super().__init__(config.workspace, id=f"processor:{config.processor}")
        self.config_types = (f"processor:{config.processor}",)

    def read_item(self, workspace: str, kind: str, key: str, text: str, namespace: str) -> Item:
        """Return a flow as an item, named ``WORKSPACE/FLOW``."""
        name = f"{workspace}/{key}"
        item = super().read_item(workspace, kind, key, text, namespace)
        return msgspec.structs.replace(item, origin=f"{self.id}:{name}", key=name)

    def read_flows(self, items: Iterable[Item]) -> list[Flow]:
        """Return the flows that have both topics."""
        flows = []
        for item in items:
            topics = item.raw.get("topics") if isinstance(item.raw, Mapping) else None
            try:
                queues = [str(TopicName.parse(topics[name])) for name in ("request", "response")]  # type: ignore[index] # caught
            except TopicError as error:
                logger.warning("%s is not served: %s", item.origin, error)
            except (TypeError, KeyError, AttributeError):
                logger.warning("%s is not served: its 'topics' have no 'request' and 'response'", item.origin)
            else:
                flows.append(Flow(item.key, *queues))
        return flows


# The relay.


FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 30.0


class Relay:
    """A relay, from :meth:`start` to :meth:`close`; also ``async with``.

    Args:
        config: see :class:`RelayConfig`.
        catalog: in place of the sources that the configuration names.
        security: token and TLS settings; None: from the environment.
        on_change: called after each change of what is served, with a line for people.
        admin: endpoint of the relay, see :func:`dispatch.connect`; None: there is none.

    Attributes:
        config: in force.
        dispatcher: makes the outbound calls.

    Raises:
        CatalogError, PolicyError, GrantsError: a file that the configuration names has mistakes.
    """

    def __init__(
        self,
        config: RelayConfig,
        catalog: CatalogLike | None = None,
        *,
        security: Security | None = None,
        on_change: Callable[[str], object] = logger.info,
        admin: Admin | str | None = None,
    ) -> None:
        self.config = config
        changes: Listeners[str] = Listeners("on_change")
        changes.subscribe(on_change)
        self._on_change = changes.publish
        self.dispatcher = Dispatcher(
            config.broker or default_broker(),
            config.list_sources() if catalog is None else catalog,
            policy=_load_policy(config),
            grants=None if config.grants is None else Grants.load(config.grants),
            fleet=config.fleet,
            security=security,
            admin=admin,
        )
        self._services: dict[str, tuple[_ServiceHandler, ToolServer]] = {}
        self._flows: dict[str, tuple[Flow, ToolServer]] = {}
        self._changed = asyncio.Event()
        self._following: list[asyncio.Task[None]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._serving = asyncio.Lock()
        self._reported: Sequence[Problem] = ()
        self._former_requests = 0

    @property
    def servers(self) -> list[ToolServer]:
        """The servers of the public topics."""
        return [server for _, server in (*self._services.values(), *self._flows.values())]

    @property
    def requests(self) -> int:
        """Requests received since the start."""
        return self._former_requests + sum(server.requests for server in self.servers)

    @property
    def services(self) -> list[RelayedService]:
        """The services that are relayed now."""
        return [handler.service for handler, _ in self._services.values()]

    async def start(self) -> None:
        """Connect, and consume the public topics.

        A service whose topics the broker refuses is tried again while the others are served.

        Raises:
            RelayError: a service cannot be relayed; every mistake is listed.
            TransportError: the broker is out of reach, or refuses the topics of all services.
        """
        await self.dispatcher.start()
        try:
            planned = self._plan(is_start=True)
            await self.dispatcher.registry.refuse_conflicts(
                lambda catalog: find_conflicts(catalog, self.config.services)
            )
            await self._serve_planned(planned, is_start=True)
            self.dispatcher.on_event(self._on_event)
            self._following.append(asyncio.create_task(self._follow_catalog(), name="dispatch-relay"))
            if self.config.mcp_tool is not None:
                flows = _Flows(self.config.mcp_tool)
                self._following.append(asyncio.create_task(self._follow_flows(flows), name="dispatch-relay-flows"))
        except BaseException:
            await self.close()
            raise

    async def drain(self) -> None:
        """Stop consuming, finish the calls in flight, for at most ``drain-timeout`` seconds, and send their replies."""
        await cancel_and_wait(self._following)
        await asyncio.gather(*(_stop_server(each, each.drain) for each in self.servers), *self._closing)

    async def close(self) -> None:
        """Stop at once; after :meth:`drain` nothing is lost."""
        await cancel_and_wait([*self._following, *self._closing])
        for server in self.servers:
            await _stop_server(server, server.close)
        await self.dispatcher.close()

    async def __aenter__(self) -> Relay:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    # -- changes ------------------------------------------------------------------------------------------------

    async def reload(self, config: RelayConfig) -> None:
        """Put another configuration in force. Calls in flight go on. A service that cannot be opened is tried again.

        Raises:
            RelayError, CatalogError, PolicyError: it is invalid, or needs a restart; the former one stays in force.
        """
        former = self.config
        fixed = [
            key for key in ("broker", "grants", "fleet", "mcp_tool") if getattr(former, key) != getattr(config, key)
        ]
        if fixed:
            raise RelayError(
                Problem("", key.replace("_", "-"), "cannot change while the relay runs", "restart the relay")
                for key in fixed
            )
        self.config = config
        try:
            await self.dispatcher.reload(config.list_sources(), policy=_load_policy(config))
        except BaseException:
            self.config = former
            raise
        async with self._serving:
            await self._serve_planned(self._plan())
        if self._flows:
            try:
                await self._serve_flows([flow for flow, _ in self._flows.values()])
            except TransportError as error:
                logger.warning("a flow keeps its former options until the next reload: %s", error)

    def _plan(self, *, is_start: bool = False) -> list[RelayedService]:
        """Return the services to serve. Mistakes are logged once; at the start those of folders are raised.

        Raises:
            RelayError: there are mistakes, at the start.
        """
        planned, problems = plan_services(self.dispatcher.catalog, self.config.services)
        # TrustGraph's configuration may be out of reach at the start, and is followed.
        if is_start and self.config.workspace is None and any(each.severity == "error" for each in problems):
            raise RelayError(problems)
        for problem in problems:
            if problem not in self._reported:
                logger.log(logging.ERROR if problem.severity == "error" else logging.WARNING, "%s", problem)
        self._reported = problems
        return planned

    def _on_event(self, event: Event) -> None:
        if isinstance(event, CatalogChanged):
            self._changed.set()

    async def _follow_catalog(self) -> None:
        """Serve what the catalogue has after each change of it."""
        wait = FIRST_RETRY_S
        while True:
            await self._changed.wait()
            self._changed.clear()
            async with self._serving:
                await self._serve_planned(self._plan())
            if self._changed.is_set():  # for one that cannot be opened
                await asyncio.sleep(wait)
                wait = min(2 * wait, MAX_RETRY_S)
            else:
                wait = FIRST_RETRY_S

    async def _serve_planned(self, planned: Sequence[RelayedService], *, is_start: bool = False) -> None:
        """Serve these services: a new server is started before the one that it replaces drains. One that cannot be opened
        is logged and tried again; its former server stays.

        Raises:
            TransportError: none can be opened, at the start.
        """
        wanted = {service.id: service for service in planned}
        owners = {service.request_queue: service.id for service in planned}
        for id, (handler, server) in self._services.items():
            if owners.get(handler.topic, id) != id:  # both would execute each request
                await _stop_server(server, server.stop_consuming)
        for id in self._services.keys() - wanted.keys():
            self._retire(self._services.pop(id)[1])
            self._on_change(f"{id}: no longer relayed.")
        failures = await asyncio.gather(*map(self._serve, wanted.values()))
        errors = [error for error in failures if error is not None]
        if errors and is_start and not self._services:
            raise errors[0]
        for service, error in zip(wanted.values(), failures, strict=True):
            if error is not None:
                logger.warning("%s is not served as configured, and is tried again: %s", service.id, error)
                self._changed.set()

    async def _serve(self, service: RelayedService) -> Exception | None:
        """Serve a service, unless it is served already. Return why that is not possible at present."""
        id = service.id
        plan = f"{id}: {service.request_queue} is forwarded to {join_names([*service.instances], 5)}."
        known = self._services.get(id)
        if known is not None:
            former = known[0].service
            is_same = (former.request_queue, former.response_queue) == (service.request_queue, service.response_queue)
            if is_same and self._has_options(known[1]):
                known[0].service = service
                if former.instances != service.instances:
                    self._on_change(plan)
                return None
        handler = _ServiceHandler(self, service)
        try:
            server = await self._start_server(handler, id, service.response_queue)
        except Exception as error:  # of any kind: the others are served
            return error
        self._services[id] = handler, server
        if known is not None:
            self._retire(known[1])
        self._on_change(plan)
        return None

    def _has_options(self, server: ToolServer) -> bool:
        """Return whether a server has the options of the configuration in force."""
        return all(
            getattr(server, name) == getattr(self.config, name)
            for name in ("concurrency", "max_queue", "max_payload_bytes", "drain_timeout")
        )

    async def _follow_flows(self, flows: _Flows) -> None:
        """Serve the flows of the ``mcp-tool`` processor, and follow their changes."""
        assert self.dispatcher._broker is not None  # it is started
        flows.connect(self.dispatcher._broker)
        wait = FIRST_RETRY_S
        while True:
            try:
                await self._serve_flows(flows.read_flows(await flows.discover()))
                wait = FIRST_RETRY_S
                async for _ in flows.changes():
                    await self._serve_flows(flows.read_flows(await flows.discover()))
            except (ConfigServiceError, TransportError) as error:
                logger.warning("flows of %s are not served, and are tried again in %g s: %s", flows.id, wait, error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, MAX_RETRY_S)

    async def _serve_flows(self, flows: Sequence[Flow]) -> None:
        """Serve these flows.

        Raises:
            TransportError: one of them cannot be opened; the others are served.
        """
        assert self.config.mcp_tool is not None
        processor = self.config.mcp_tool.processor
        wanted = {flow.id: flow for flow in flows}
        failure: TransportError | None = None
        async with self._serving:
            owners = {service.request_queue: f"the service '{excerpt(service.id)}'" for service in self.services}
            for flow in flows:
                name = f"the flow {excerpt(flow.id)}"
                owner = owners.setdefault(flow.request_queue, name)
                if owner != name:  # both would execute each request
                    text = "%s is not served: it has the same request topic as %s, %s. Fix: give it one of its own."
                    logger.error(text, name, owner, excerpt(flow.request_queue, 200))
                    del wanted[flow.id]
            for id in [id for id, (flow, _) in self._flows.items() if wanted.get(id) != flow]:
                self._retire(self._flows.pop(id)[1])
                self._on_change(f"{processor}: the flow {id} is no longer served.")
            for id, flow in wanted.items():
                known = self._flows.get(id)
                if known is not None and self._has_options(known[1]):
                    continue
                handler = _McpToolHandler(self, flow, processor)
                try:
                    server = await self._start_server(handler, processor, flow.response_queue)
                except TransportError as error:
                    failure = error
                    continue
                self._flows[id] = flow, server
                if known is not None:
                    self._retire(known[1])
                else:
                    self._on_change(f"{processor}: serves the flow {id} on {flow.request_queue}.")
        if failure is not None:
            raise failure

    async def _start_server(self, handler: _Handler, id: str, response_queue: str) -> ToolServer:
        config = self.config
        server = ToolServer(
            handler,
            self.dispatcher._transport,
            service=id,
            request_queue=handler.topic,
            response_queue=response_queue,
            concurrency=config.concurrency,
            max_queue=config.max_queue,
            drain_timeout=config.drain_timeout,
            max_payload_bytes=config.max_payload_bytes,
            announce=None,
        )
        try:
            await server.start()
        except BaseException:
            await _stop_server(server, server.close)
            raise
        return server

    def _retire(self, server: ToolServer) -> None:
        async def drain_and_close() -> None:
            try:
                await _stop_server(server, server.drain)
            finally:  # the relay closes: calls in flight are answered
                self._former_requests += server.requests
                await _stop_server(server, server.close)

        task = asyncio.create_task(drain_and_close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # -- calls --------------------------------------------------------------------------------------------------

    async def resolve_tool(self, name: str, options: CallOptions) -> ResolvedTool:
        """Return a tool of the catalogue.

        Raises:
            DispatchError: there is none of that name.
        """
        found = self.dispatcher._live.resolver.fixed.get(name)  # perf: no coroutine for a tool with one version
        if found is not None:
            return found
        return await self.dispatcher._resolve(name, None, options.user, options.idempotency_key)

    def is_repeatable(self, tool: str) -> bool:
        """Return whether the catalogue declares the tool read-only or idempotent."""
        found = self.dispatcher.catalog.tools.get(tool)
        return found is not None and found.repeatable

    async def call(self, tool: ResolvedTool, arguments: Mapping[str, Any], options: CallOptions) -> CallResult:
        """Make a call and return its result.

        Raises:
            DispatchError: it failed.
        """
        result = await self.dispatcher._running_calls.perform(tool, arguments, options)
        if result.error is not None:
            raise result.error
        return result

    async def forward(
        self, tool: ResolvedTool, arguments: Mapping[str, Any], options: CallOptions
    ) -> str | AsyncGenerator[str, None]:
        """Make a call and return the whole reply, or its chunks as they arrive if it is a stream. Calls that are hedged, or
        share an exchange, have whole replies.

        Raises:
            DispatchError: it failed before its first chunk.
        """
        streams: list[AsyncGenerator[str, None]] = []
        on_stream = None if tool.is_single_flight or tool.policy.hedging is not None else streams.append
        result = await self.dispatcher._running_calls.perform(tool, arguments, options, on_stream=on_stream)
        if streams:
            return streams[0]
        if result.error is not None:
            raise result.error
        return result.text


async def _stop_server(server: ToolServer, stop: Callable[[], Awaitable[None]]) -> None:
    try:
        await stop()
    except TransportError as error:
        logger.warning("%s: not stopped in order: %s", server.instance, error)


def _load_policy(config: RelayConfig) -> Mapping[str, Any]:
    return {} if config.policy is None else load_policy_keys(config.policy)
