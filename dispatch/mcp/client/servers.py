"""The MCP servers of a configuration, as sources of the catalogue."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mcp.client.session import ElicitationFnT, ListRootsFnT, SamplingFnT

from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.readers.item import Item
from dispatch.catalog.readers.parsing import DocumentError, parse_json
from dispatch.catalog.sources.base import Source
from dispatch.mcp.client.callbacks import Callbacks
from dispatch.mcp.client.configuration import InvalidServer, read_configuration
from dispatch.mcp.client.server_source import McpServerSource
from dispatch.mcp.client.tool_names import ServerTools, choose_names, map_names

logger = logging.getLogger("dispatch.mcp")


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

    Raises:
        CatalogError: the file cannot be read, or has no servers in it.
    """

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
        found = read_configuration(raw, origin, os.environ if environment is None else environment)
        if isinstance(found, list):
            raise CatalogError(found)
        for problem in found.warnings:
            logger.warning("%s", problem)
        callbacks = Callbacks(elicitation, sampling, roots)
        self._tools: dict[str, ServerTools] = {
            each.name: ServerTools(each.name, each.prefix, ()) for each in found.servers
        }
        self._names: Mapping[str, Mapping[str, str]] = {}
        self._reported: set[str] = set()
        ids = map_names([*(each.name for each in found.servers), *(each.name for each in found.invalid)])
        self._servers = {
            each.name: McpServerSource(f"mcp-{ids[each.name]}", each, self, callbacks) for each in found.servers
        }
        invalid = [InvalidServerSource(f"mcp-{ids[each.name]}", each) for each in found.invalid]
        self.sources: Sequence[Source] = (*self._servers.values(), *invalid)

    def update(self, server: str, tools: Sequence[str]) -> Mapping[str, str]:
        """Set the tools of a server; return their names in the catalogue. Other servers are told where theirs change."""
        known = self._tools[server]
        if known.tools != tuple(tools) or server not in self._names:
            self._tools[server] = known._replace(tools=tuple(tools))
            former = self._names
            self._names, clashes = choose_names(self._tools.values())
            for name, owners in clashes.items():
                if name not in self._reported:
                    self._reported.add(name)
                    logger.warning("several MCP servers have a tool '%s': %s", name, ", ".join(owners))
            for other, names in self._names.items():
                if other != server and former.get(other, names) != names:
                    self._servers[other].announce_change()
        return self._names[server]


class InvalidServerSource:
    """An entry of the configuration that cannot be used: a source that fails with its mistakes."""

    def __init__(self, id: str, invalid: InvalidServer) -> None:
        self.id = id
        self._problems = "; ".join(str(each) for each in invalid.problems if each.severity == "error")
        logger.error("MCP server '%s' is not used: %s", invalid.name, self._problems)

    async def discover(self) -> Sequence[Item]:
        """Raise the mistakes.

        Raises:
            ValueError: always. A CatalogError would refuse a reload as a whole.
        """
        raise ValueError(self._problems)

    async def changes(self) -> AsyncIterator[None]:
        """Yield nothing and never end."""
        await asyncio.get_running_loop().create_future()
        yield


def _read_file(path: str | os.PathLike[str]) -> object:
    try:
        return parse_json(Path(path).read_text("utf-8-sig"))  # some editors begin a UTF-8 file with a byte order mark
    except DocumentError as error:
        raise CatalogError([Problem(str(path), *mistake) for mistake in error.mistakes]) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CatalogError(
            [Problem(str(path), "", f"it cannot be read: {reason}", "give the path of the file")]
        ) from None
