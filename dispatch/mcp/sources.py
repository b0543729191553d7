"""MCP servers as sources of the catalogue, and their sessions as instances."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from mcp import Client, types
from mcp.client.session import ElicitationFnT, ListRootsFnT, SamplingFnT

from dispatch import __version__
from dispatch._internal import excerpt, explain_keywords, yield_to_others
from dispatch.calls.local import LocalCall, LocalInstance, LocalResult, RefusedCallError
from dispatch.catalog.descriptors import CatalogError
from dispatch.catalog.items import Item, OnChange, Source
from dispatch.documents import DocumentError, Problem, load_document
from dispatch.errors import ErrorType, RejectedError
from dispatch.mcp import conversion
from dispatch.mcp.replies import RefusedTool
from dispatch.mcp.sessions import (
    ListedTool,
    McpInstance,
    McpSession,
    SessionTransport,
    ToolList,
    find_waiting_time,
)
from dispatch.mcp.transports import HttpTransport, StdioTransport, check_headers
from dispatch.messaging.wire import local_queue
from dispatch.routing.instance import Instances
from dispatch.trustgraph.config import TrustGraphConfig, normalize_tool

logger = logging.getLogger("dispatch.mcp")


_NO_TASKS = "name the other tools with 'only', or set its execution.taskSupport to 'optional' at the server"


class McpServerError(RuntimeError):
    """An MCP server is out of reach; ``str()`` says why and for how long."""


class McpServerSource:
    """One MCP server: a service, and a tool for each of its tools.

    Args:
        id: of the source and of the service.
        settings: of the server.
        names: of all servers.
        callbacks: answers to requests of the server.
    """

    is_atomic = False

    def __init__(
        self, id: str, settings: conversion.ServerSettings, names: McpServers, callbacks: conversion.Callbacks
    ) -> None:
        self.id = id
        self.settings = settings
        self.on_change: OnChange = settings.on_change
        self.request_queue = local_queue(id, "extension")
        self._names = names
        self._callbacks = callbacks
        self._service = conversion.service_item(id, settings)
        self._reported: set[tuple[str, str]] = set()
        self._items: dict[str, tuple[bytes, Item]] = {}
        self._used_names: Mapping[str, str] | None = None
        self._is_changed = asyncio.Event()
        self._instances: Instances[McpInstance] | None = None

    # -- the source ---------------------------------------------------------------------------------------------

    def announce_change(self) -> None:
        """Have the items read again."""
        self._is_changed.set()

    def _on_session(self) -> None:
        if self._instances is not None:
            self._instances.renew()
        self.announce_change()

    @property
    def instances(self) -> Instances[McpInstance]:
        """The sessions with the server, which are opened now."""
        if self._instances is None:
            self._is_changed = asyncio.Event()  # the former one may belong to another event loop
            callbacks = self._callbacks
            self._instances = Instances(*(McpInstance(each, callbacks) for each in self._create_sessions()))
            for each in self._instances:
                each.session.start()
        return self._instances

    def try_now(self) -> None:
        """Have the sessions over HTTP opened soon, if the last attempts were not just now."""
        for each in self._instances or ():  # none before the start, and after the end
            each.session.try_now()

    async def try_again(self, limit: float) -> bool:
        """Have the sessions over HTTP opened, and wait for that, ``limit`` seconds at most; return whether one is open."""
        sessions = [each.session for each in self._instances or ()]
        await asyncio.gather(*(each.wait_opened(limit) for each in sessions))
        return any(each.client is not None for each in sessions)

    @property
    def retry_after(self) -> float | None:
        """Seconds until the next attempt to connect; None: there is none."""
        return min((each.session.retry_after for each in self._instances or ()), default=None)

    def _create_sessions(self) -> list[McpSession]:
        settings = self.settings
        create = partial(McpSession, callbacks=self._callbacks, on_change=self._on_session)
        if settings.command:
            return [create(settings.name, self._open_stdio, poll=False, is_process=True)]
        return [
            create(name, partial(HttpTransport, url, settings.headers), poll=True)
            for name, url in zip(_instance_names(settings.name, settings.urls), settings.urls, strict=True)
        ]

    def _open_stdio(self) -> SessionTransport:
        settings = self.settings
        return StdioTransport(settings.name, settings.command, settings.args, settings.env, settings.cwd)

    async def changes(self) -> AsyncIterator[None]:
        """Yield after each change of the tools or of the connection."""
        _ = self.instances
        while True:
            await self._is_changed.wait()
            self._is_changed.clear()
            yield

    async def discover(self) -> Sequence[Item]:
        """Return the service and its tools. A tool that did not change is the same object as before.

        Raises:
            McpServerError: the server is out of reach.
        """
        await yield_to_others()
        sessions = [each.session for each in self.instances]
        await _wait_first(sessions)
        connected = [each for each in sessions if each.client is not None]
        if not connected:
            problems = [each.problem if len(sessions) == 1 else f"{each.name}: {each.problem}" for each in sessions]
            raise McpServerError(f"{'; '.join(problems)}; it is tried again")
        found = next((each.tools for each in (*connected, *sessions) if each.tools is not None), ())
        only = self.settings.only
        listed = [tool for tool in found if only is None or tool.name in only]
        # Of several with one name, one that is usable.
        tools = {tool.name: tool for tool in sorted(listed, key=lambda tool: not isinstance(tool, RefusedTool))}
        self._report("'only' names tools that the server does not have", set(only or ()) - tools.keys())
        repeated = {name for name, count in Counter(tool.name for tool in listed).items() if count > 1}
        self._report("the server lists several tools of one name, and the last definition is used", repeated)
        names = self._used_names = self._names.update(self.settings.name, [name for name in tools if name])
        items: dict[str, tuple[bytes, Item]] = {}
        for name, tool in tools.items():
            items[name] = self._find_item(names.get(name, ""), tool)
        self._items = items
        return [self._service, *(item for _, item in items.values())]

    @property
    def is_outdated(self) -> bool:
        """Whether the tools have other names now, because of those of another server."""
        return self._used_names not in (None, self._names.names.get(self.settings.name))

    def _find_item(self, name: str, tool: ListedTool) -> tuple[bytes, Item]:
        if not isinstance(tool, RefusedTool) and tool.execution and tool.execution.task_support == "required":
            tool = RefusedTool(tool.name, "the server executes it as a task only, and dispatch has no tasks", _NO_TASKS)
        if isinstance(tool, RefusedTool):
            key = msgspec.json.encode([name, tool])
            create = partial(conversion.refused_item, name, tool, self.settings)
        else:
            key = msgspec.json.encode([name, tool.model_dump(mode="json", by_alias=True, exclude_none=True)])
            create = partial(conversion.tool_item, self.id, name, tool, self.settings)
        known = self._items.get(tool.name)
        return known if known is not None and known[0] == key else (key, create())

    def _report(self, problem: str, names: Collection[str]) -> None:
        """Tell about each of ``names`` once."""
        new = sorted(name for name in names if name and (problem, name) not in self._reported)
        if new:
            self._reported |= {(problem, name) for name in new}
            logger.warning("%s: %s: %s", self.id, problem, excerpt(", ".join(new), 300))

    async def close(self) -> None:
        """End the sessions and the processes of the server."""
        instances, self._instances = self._instances, None
        await asyncio.gather(*(each.session.close() for each in instances or ()))


async def _wait_first(sessions: Sequence[McpSession]) -> None:
    """Wait until a session is open, or the first attempt of each one has failed."""
    waits = {asyncio.create_task(each.wait_first()) for each in sessions}
    try:
        while waits and all(each.client is None for each in sessions):
            _, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _instance_names(server: str, urls: Sequence[str]) -> list[str]:
    """Return the names of the addresses of a server, which errors and metrics have: user, path and query may be secrets."""
    if len(urls) == 1:
        return [server]
    hosts = list(map(_host_of, urls))
    return [f"{server}:{host}" + f"-{number}" * (hosts.count(host) > 1) for number, host in enumerate(hosts, 1)]


def _host_of(url: str) -> str:
    return re.split(r"[/?#\\]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]


# The MCP servers of a configuration, as sources of the catalogue.


class McpServers:
    """The tools of MCP servers, for ``dispatch.connect(catalog=[McpServers("mcp.json")])``. Each server is a source and a
    service ``mcp-NAME`` of its own. An invalid entry is reported by its name, in the log and in
    ``dispatcher.registry.sources()``, and the others are used.

    Args:
        servers: a file in the common form ``{"mcpServers": {NAME: {…}}}``, or its contents.
        elicitation, sampling, roots: callbacks of the SDK that answer requests of servers. None: they are rejected.
        environment: values of ``${NAME}`` in the configuration. Default: ``os.environ``.

    Attributes:
        sources: one for each server.
        names: of the tools in the catalogue, by server and by their names there.

    Raises:
        CatalogError: the file cannot be read, or has its servers under another key.
    """

    @explain_keywords
    def __init__(
        self,
        servers: str | os.PathLike[str] | Mapping[str, Any],
        *,
        elicitation: ElicitationFnT | None = None,
        sampling: SamplingFnT | None = None,
        roots: ListRootsFnT | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        origin, raw = ("McpServers", servers) if isinstance(servers, Mapping) else (str(servers), _read_file(servers))
        found = conversion.read_configuration(raw, origin, os.environ if environment is None else environment)
        if isinstance(found, list):
            raise CatalogError(found)
        for problem in found.warnings:
            logger.warning("%s", problem)
        callbacks = conversion.Callbacks(elicitation, sampling, roots)
        self._tools: dict[str, conversion.ServerTools] = {
            each.name: conversion.ServerTools(each.name, each.prefix, ()) for each in found.servers
        }
        self.names: Mapping[str, Mapping[str, str]] = {}
        self._reported: set[str] = set()
        ids = conversion.map_names([*(each.name for each in found.servers), *(each.name for each in found.invalid)])
        self._servers = {
            each.name: McpServerSource(f"mcp-{ids[each.name]}", each, self, callbacks) for each in found.servers
        }
        invalid = [InvalidServerSource(f"mcp-{ids[each.name]}", each) for each in found.invalid]
        self.sources: Sequence[Source] = (*self._servers.values(), *invalid)

    def update(self, server: str, tools: Sequence[str]) -> Mapping[str, str]:
        """Set the tools of a server; return their names in the catalogue. Other servers are told where theirs change."""
        known = self._tools[server]
        if known.tools != tuple(tools) or server not in self.names:
            self._tools[server] = known._replace(tools=tuple(tools))
            former = self.names
            self.names, clashes = conversion.choose_names(self._tools.values())
            for name, owners in clashes.items():
                if name not in self._reported:
                    self._reported.add(name)
                    logger.warning("several MCP servers have a tool '%s': %s", name, ", ".join(owners))
            for other, names in self.names.items():
                if other != server and former.get(other, names) != names:
                    self._servers[other].announce_change()
        return self.names[server]


class InvalidServerSource:
    """An entry of the configuration that cannot be used: a source that fails with its mistakes."""

    retry_after = None
    """It is never read again."""

    def __init__(self, id: str, invalid: conversion.InvalidServer) -> None:
        self.id = id
        self.problems = invalid.problems
        self._text = "; ".join(str(each) for each in invalid.problems if each.severity == "error")
        logger.error("MCP server '%s' is not used: %s", invalid.name, self._text)

    async def discover(self) -> Sequence[Item]:
        """Raise the mistakes.

        Raises:
            ValueError: always. A CatalogError would refuse a reload as a whole.
        """
        raise ValueError(self._text)

    async def changes(self) -> AsyncIterator[None]:
        """Yield nothing and never end."""
        await asyncio.get_running_loop().create_future()
        yield


MAX_FILE_BYTES: Final = 1024 * 1024
"""Bytes of the largest configuration."""


def _read_file(path: str | os.PathLike[str]) -> object:
    try:
        return load_document(path, MAX_FILE_BYTES, "keep data out of the configuration", 'write {"mcpServers": {}}')
    except DocumentError as error:
        raise CatalogError([Problem(str(path), *mistake) for mistake in error.mistakes]) from None


# The MCP tools in TrustGraph's configuration: ``tool`` items of the type ``mcp-tool``, and the ``mcp`` items with their
# addresses.


MCP: Final = "mcp"
MCP_TOOL: Final = "mcp-tool"
SERVER_PARAM: Final = "mcp-server"
"""Config param: workspace and key of the ``mcp`` item."""


class Server(NamedTuple):
    """Where an MCP tool is: several tools of one server share its session."""

    url: str
    token: str


class TrustGraphMcpTools(TrustGraphConfig):
    """The MCP tools in TrustGraph's configuration, followed live over the broker. dispatch calls them itself, over one
    session for each server, in place of TrustGraph's ``mcp-tool`` service, which opens a session for every call. Give it
    beside :class:`~dispatch.TrustGraphConfig`, which has the other tools.

    Args: those of :class:`~dispatch.TrustGraphConfig`; ``id`` is the id of their service, too.
    """

    config_types: tuple[str, ...] = ("tool", MCP)

    def __init__(self, workspace: str = "default", *, id: str = "trustgraph-mcp", **options: Any) -> None:
        super().__init__(workspace, id=id, **options)
        self.request_queue = local_queue(id, "extension")
        self._servers: Mapping[str, Server] = {}
        self._remote_names: Mapping[str, str] = {}
        self.instances = Instances(LocalInstance(self._execute))
        self._sessions: dict[Server, McpInstance] = {}
        service = conversion.describe_local_service(
            id, {"name": SERVER_PARAM, "required": True}, {"name": conversion.TOOL_PARAM}
        )
        self._service = Item(f"{id}: (service)", "tool-service", id, service)

    def read_item(self, workspace: str, kind: str, key: str, text: str, namespace: str) -> Item:
        """Return the item in a value of the configuration; a tool as one of this source's service."""
        item = super().read_item(workspace, kind, key, text, namespace)
        raw = item.raw
        if kind != "tool" or not isinstance(raw, dict) or raw.get("type") != MCP_TOOL:
            return item
        own = {"type": "tool-service", "service": self.id, SERVER_PARAM: f"{workspace}/{raw.get(MCP_TOOL)}"}
        others = {name: each for name, each in raw.items() if name != MCP_TOOL}
        return msgspec.structs.replace(item, raw=normalize_tool({**others, **own}, item.origin))

    async def discover(self) -> Sequence[Item]:
        """Return the MCP tools and their service; see :meth:`TrustGraphConfig.discover`."""
        found = await super().discover()
        tools = [item for item in found if _config_of(item, SERVER_PARAM) is not None]
        servers = {_place_of(item): item.raw for item in found if item.kind == MCP and isinstance(item.raw, dict)}
        self._servers = {
            place: Server(raw["url"], str(raw.get("auth-token") or ""))
            for place, raw in servers.items()
            if isinstance(raw.get("url"), str)
        }
        self._remote_names = {place: str(raw.get("remote-name") or "") for place, raw in servers.items()}
        for item in tools:
            if _config_of(item, SERVER_PARAM) not in self._servers:
                logger.warning("%s: there is no item '%s' with a url", item.origin, _config_of(item, SERVER_PARAM))
        places = {_config_of(item, SERVER_PARAM) or "" for item in tools}
        await self._set_servers({server for place, server in self._servers.items() if place in places})
        return [self._service, *tools]

    async def _set_servers(self, servers: set[Server]) -> None:
        gone = [self._sessions.pop(server) for server in list(self._sessions) if server not in servers]
        for server in servers - self._sessions.keys():
            headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
            opener = partial(HttpTransport, server.url, headers)
            name = "mcp" if conversion.find_address_problem(server.url) else _host_of(server.url)  # it may be a secret
            session = McpSession(name, opener, conversion.Callbacks(), lambda: None, poll=False)
            self._sessions[server] = McpInstance(session, conversion.Callbacks())
            session.start()
        await asyncio.gather(*(each.session.close() for each in gone))

    async def close(self) -> None:
        """End the sessions and the subscription."""
        await self._set_servers(set())
        await super().close()

    async def _execute(self, call: LocalCall) -> LocalResult:
        """Call the tool over the session with its server."""
        place = call.config[SERVER_PARAM]
        instance = self._sessions.get(self._servers.get(place, Server("", "")))
        if instance is None:
            raise RefusedCallError(
                RejectedError(
                    ErrorType.UNKNOWN_TOOL,
                    f"Tool '{call.tool}' was not executed: TrustGraph's configuration has no MCP server '{place}'. Use "
                    "another tool, or report the failure.",
                    rejected_by="catalog",
                )
            )
        await instance.session.wait_first(find_waiting_time(call))
        name = self._remote_names.get(place) or place.partition("/")[2]
        return await instance.call(msgspec.structs.replace(call, config={**call.config, conversion.TOOL_PARAM: name}))


def _config_of(item: Item, name: str) -> str | None:
    value = item.raw.get(name) if isinstance(item.raw, Mapping) else None
    return value if item.kind == "tool" and isinstance(value, str) else None


def _place_of(item: Item) -> str:
    """Return workspace and key of an item, from its origin ``SOURCE:WORKSPACE/TYPE/KEY``."""
    workspace, _, key = item.origin.partition(":")[2].split("/", 2)
    return f"{workspace}/{key}"


# A session with one server for one use, as :class:`dispatch.toolkit.McpService` opens them.


class McpConnection:
    """A session with one server. The task that opens it must close it.

    Args:
        client: of the session.
        stack: closes the session.
    """

    def __init__(self, client: Client, stack: AsyncExitStack) -> None:
        self._client = client
        self._stack = stack

    async def call(self, tool_name: str, /, **arguments: Any) -> str:
        """Call a tool and return its result as text.

        Raises:
            ToolError: the tool's own error.
        """
        result = await self._client.call_tool(tool_name, arguments)
        if isinstance(result, types.InputRequiredResult):
            raise conversion.error_from_input_required(tool_name, result)
        return conversion.read_result(result, "").text

    async def list_tools(self) -> list[Any]:
        """List the tools of the server, from all pages."""
        return [tool for tool in await ToolList(poll=False).read(self._client) if isinstance(tool, types.Tool)]

    async def close(self) -> None:
        """End the session, and the process of the server."""
        await self._stack.aclose()


async def connect_server(
    name: str,
    *,
    transport_type: str,
    url: str,
    command: str,
    args: Sequence[str] | None,
    env: Mapping[str, str],
    headers: Mapping[str, Any],
    timeout: float,
    sse_read_timeout: float,
) -> McpConnection:
    """Open a session with an MCP server.

    Args:
        name: of the server, for messages.
        transport_type: ``STDIO``, ``SSE`` or ``STREAMABLE_HTTP``.
        url, headers: of the server; not for STDIO.
        command, args, env: of the process to start; for STDIO.
        timeout: seconds for the connection; for SSE.
        sse_read_timeout: seconds for an event; for SSE.

    Raises:
        Exception: of the SDK: the server cannot be reached.
    """
    texts = {key: str(value) for key, value in headers.items()}
    transport: Any
    if transport_type == "STDIO":
        transport = StdioTransport(name, command, args or (), env, None)
    elif transport_type == "SSE":
        from mcp.client.sse import sse_client

        transport = sse_client(url, check_headers(texts), timeout=timeout, sse_read_timeout=sse_read_timeout)
    else:
        transport = HttpTransport(url, texts)
    async with AsyncExitStack() as stack:
        implementation = types.Implementation(name="dispatch", version=__version__)
        client = Client(transport, mode="auto", client_info=implementation)
        await stack.enter_async_context(client)
        conversion.OutputSchemas().use_in(client.session)  # results are texts here
        return McpConnection(client, stack.pop_all())
