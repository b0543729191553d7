"""Names of the tools of MCP servers in the catalogue. Pure."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from dispatch.catalog.readers.field_validation import MAX_MODEL_NAME_CHARS
from dispatch.mcp.client.configuration import Prefix

_OTHERS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_CHARS: Final = 6
MAX_PREFIX_CHARS: Final = 24
"""Characters of a server's name in front of the name of a tool: at least 39 remain for the tool."""


class ServerTools(NamedTuple):
    """The names of one server's tools, as the server has them."""

    server: str
    prefix: Prefix | None
    tools: tuple[str, ...]


class ToolNames(NamedTuple):
    """Names for the catalogue.

    Attributes:
        names: by the name of the server, and the name that it has for the tool.
        clashes: names that several servers have, each with these servers.
    """

    names: Mapping[str, Mapping[str, str]]
    clashes: Mapping[str, tuple[str, ...]]


def choose_names(servers: Iterable[ServerTools]) -> ToolNames:
    """Return names that models accept: at most 64 letters, digits, ``_`` and ``-``. They depend only on the tools that there
    are, and not on their order. A name that several servers have gets the prefix of each server, except with ``never``."""
    servers = tuple(servers)
    bare = {each.server: map_names(each.tools) for each in servers}
    owners: dict[str, list[str]] = {}
    for each in servers:
        if each.prefix != "always":
            for name in bare[each.server].values():
                owners.setdefault(name, []).append(each.server)
    clashes = {name: tuple(found) for name, found in owners.items() if len(found) > 1}
    prefixes = map_names([each.server for each in servers], MAX_PREFIX_CHARS)
    names = {server: dict(tools) for server, tools in bare.items()}
    prefixed = []
    for each in servers:
        for tool, name in bare[each.server].items():
            if each.prefix == "always" or (each.prefix is None and name in clashes):
                names[each.server][tool] = _shorten(f"{prefixes[each.server]}-{name}", tool)
                prefixed.append((each.server, tool))
    # The prefix "a" of "b-c" and the prefix "a-b" of "c" are the same text.
    counts = Counter(name for own in names.values() for name in own.values())
    for server, tool in prefixed:
        name = names[server][tool]
        if counts[name] > 1:
            names[server][tool] = _shorten(name, f"{server}\n{tool}", is_ambiguous=True)
    return ToolNames(names, clashes)


def map_names(originals: Iterable[str], limit: int = MAX_MODEL_NAME_CHARS) -> dict[str, str]:
    """Return a readable name of at most ``limit`` characters for each of ``originals``, different ones for different
    originals. A name that is usable as it is stays."""
    originals = tuple(dict.fromkeys(originals))
    plain = {original: _OTHERS.sub("_", original) or "_" for original in originals}
    counts = Counter(plain.values())
    return {
        original: name
        if name == original and len(name) <= limit
        else _shorten(name, original, limit, is_ambiguous=counts[name] > 1)
        for original, name in plain.items()
    }


def _shorten(name: str, original: str, limit: int = MAX_MODEL_NAME_CHARS, *, is_ambiguous: bool = False) -> str:
    if len(name) <= limit and not is_ambiguous:
        return name
    digest = hashlib.sha256(original.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{name[: limit - _HASH_CHARS - 1]}-{digest}"
