"""The configuration of MCP servers: the common form of ``mcp.json`` with keys of dispatch. No input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from dispatch._internal.suggestions import excerpt
from dispatch.catalog.descriptors import EMPTY
from dispatch.catalog.errors import Problem, Report
from dispatch.catalog.frozen_json import describe_kind, describe_value, freeze_json, join_path
from dispatch.catalog.readers.field_validation import ObjectReader
from dispatch.catalog.readers.policy_check import check_policy
from dispatch.catalog.sources.base import OnChange

Prefix = Literal["always", "never"]

SERVERS_KEY: Final = "mcpServers"
STDIO_KEYS: Final = ("command", "args", "env", "cwd")
HTTP_KEYS: Final = ("url", "headers")
OWN_KEYS: Final = ("trusted", "only", "prefix", "policy", "permissions", "on-change")
"""Keys of dispatch."""
_KNOWN: Final = (*STDIO_KEYS, *HTTP_KEYS, *OWN_KEYS, "type", "disabled")
_SILENT: Final = ("autoApprove", "alwaysAllow", "description", "name", "timeout")
"""Keys of other clients that need no warning."""
_STDIO_TYPES: Final = ("stdio", "local")
_HTTP_TYPES: Final = ("http", "streamable-http", "streamableHttp", "streamable_http", "remote")

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{)[^}])*))?\}")
_UNKNOWN_FORM: Final = re.compile(r"\$\{(?=.)\w*\W?")
"""The begin of a form of other programs, such as ``${env:NAME}``: what follows may be a secret."""
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


class ServerSettings(msgspec.Struct, frozen=True):
    """One MCP server.

    Attributes:
        name: its key in the configuration.
        command, args, env, cwd: of a server that dispatch starts; ``env`` is added to the few variables that it inherits.
        urls: of a server that runs elsewhere; calls are balanced between several. Empty: a command.
        headers: of each HTTP request.
        is_trusted: its hints (read-only, idempotent, destructive) are believed.
        only: names of the tools that are used, as the server has them; None: all.
        prefix: of the names of its tools: ``always``, ``never``; None: only of a name that two servers have.
        policy, permissions: of its service.
        on_change: ``hold``: a changed definition waits for its approval.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = EMPTY
    cwd: str | None = None
    urls: tuple[str, ...] = ()
    headers: Mapping[str, str] = EMPTY
    is_trusted: bool = False
    only: tuple[str, ...] | None = None
    prefix: Prefix | None = None
    policy: Mapping[str, Any] = EMPTY
    permissions: tuple[str, ...] = ()
    on_change: OnChange = "apply"


class InvalidServer(msgspec.Struct, frozen=True):
    """An entry of the configuration that cannot be used, with its mistakes."""

    name: str
    problems: tuple[Problem, ...]


class Configuration(msgspec.Struct, frozen=True):
    """All entries of a configuration.

    Attributes:
        servers: that can be used; those with ``"disabled": true`` are left out.
        invalid: that cannot be used.
        warnings: probable mistakes in the others.
    """

    servers: tuple[ServerSettings, ...]
    invalid: tuple[InvalidServer, ...]
    warnings: tuple[Problem, ...]


def read_configuration(raw: object, origin: str, environment: Mapping[str, str]) -> Configuration | list[Problem]:
    """Read a configuration: ``{"mcpServers": {NAME: {…}}}``, or the inner object alone.

    Args:
        raw: JSON values.
        origin: file, for messages.
        environment: values of ``${NAME}``; ``${NAME:-DEFAULT}`` has a default. Other forms are mistakes.

    Returns:
        Problems: none of it can be used.
    """
    servers = raw.get(SERVERS_KEY, raw) if isinstance(raw, Mapping) else raw
    if not isinstance(servers, Mapping):
        fix = f'write {{"{SERVERS_KEY}": {{"files": {{"command": "…"}}}}}}'
        return [Problem(origin, SERVERS_KEY, f"the servers are {describe_kind(servers)}, not an object", fix)]
    found, invalid, warnings = [], [], []
    for name, entry in servers.items():
        report = Report(f"{origin}: {excerpt(str(name))}")
        settings = _read_server(str(name), entry, report, environment)
        if report.has_errors:
            invalid.append(InvalidServer(str(name), tuple(report.problems)))
        elif settings is not None:
            found.append(settings)
            warnings += report.problems
    return Configuration(tuple(found), tuple(invalid), tuple(warnings))


def _read_server(name: str, raw: object, report: Report, environment: Mapping[str, str]) -> ServerSettings | None:
    """Return the settings; None after an error, or of an entry that is disabled."""
    value = freeze_json(raw, report)
    if not isinstance(value, dict):
        fix = f'write "{excerpt(name)}": {{"command": "…"}} or {{"url": "https://…"}}'
        report.add_error("", f"the entry is {describe_kind(value)}, not an object", fix)
        return None
    reader = ObjectReader(value, report, _KNOWN)
    if reader.read_flag("disabled"):
        return None
    if not name.strip() or not name.isprintable():
        reader.add_error("", "the name of the server is empty or has a control character", "give it a name")
    strings = _Strings(reader, environment)
    command, urls = strings.read("command", "npx"), _read_urls(reader, strings)
    _check_kind(reader, command, urls)
    for key in HTTP_KEYS if command else STDIO_KEYS:
        if key in value and bool(command) != bool(urls):
            reader.report.add_warning(
                reader.path_of(key), f"a server with '{'command' if command else 'url'}' has no '{key}'", "remove it"
            )
    only = reader.read_texts("only", "search")
    settings = ServerSettings(
        name=name,
        command=command,
        args=strings.read_list("args", "-y"),
        env=strings.read_object("env"),
        cwd=strings.read("cwd", "/srv/files") or None,
        urls=urls,
        headers=_read_headers(reader, strings),
        is_trusted=bool(reader.read_flag("trusted")),
        only=only if value.get("only") is not None else None,
        prefix=_read_choice(reader, "prefix", ("always", "never")),
        policy=check_policy(reader.read_object("policy", {"timeout": 10}), report),
        permissions=reader.read_permissions(),
        on_change=_read_choice(reader, "on-change", ("apply", "hold")) or "apply",
    )
    reader.warn_of_unknown_keys(_SILENT)
    return settings


def _check_kind(reader: ObjectReader, command: str, urls: tuple[str, ...]) -> None:
    kind = reader.read_text("type", "stdio")
    if kind == "sse":
        reader.add_error("type", "the transport 'sse' was withdrawn from MCP", 'use the server\'s address for "http"')
    elif kind is not None and kind not in (*_STDIO_TYPES, *_HTTP_TYPES):
        reader.add_error("type", f"the transport {describe_value(kind)} is unknown", 'write "stdio" or "http"')
    if reader.report.has_errors:
        return
    if command and urls:
        reader.add_error("url", "both 'command' and 'url' are given", "keep one of them")
    elif not command and not urls:
        reader.add_error(
            "command", "neither 'command' nor 'url' is given", 'add "command": "npx", or "url": "https://host/mcp"'
        )
    elif kind is not None and (kind in _STDIO_TYPES) != bool(command):
        wanted = "command" if kind in _STDIO_TYPES else "url"
        reader.add_error("type", f"'{kind}' needs '{wanted}'", f"give '{wanted}', or remove 'type'")


def _read_urls(reader: ObjectReader, strings: _Strings) -> tuple[str, ...]:
    given = reader.raw.get("url")
    texts = (
        strings.read_list("url", "https://host/mcp")
        if isinstance(given, tuple)
        else (strings.read("url", "https://host/mcp"),)
    )
    urls = [text.strip() for text in texts]
    for url in urls:
        if url and not url.startswith(("http://", "https://")):
            reader.add_error("url", f"{describe_value(url)} is no HTTP address", 'write "url": "https://host/mcp"')
    return tuple(dict.fromkeys(filter(None, urls)))


def _read_headers(reader: ObjectReader, strings: _Strings) -> Mapping[str, str]:
    headers = strings.read_object("headers")
    found = {name: value.strip() for name, value in headers.items()}  # a secret from a file has a line end
    for name, value in found.items():
        problem = find_header_problem(name, value)
        if problem:  # the report has no value: it may be a secret
            reader.report.add_error(join_path("headers", name), problem, "correct it, or the variable that it is from")
    return found


def find_header_problem(name: str, value: str) -> str:
    """Return why HTTP cannot send a header, without its value; empty: it can."""
    if not _HEADER_NAME.fullmatch(name):
        return "the name is no name of an HTTP header"
    if not _HEADER_VALUE.fullmatch(value):
        return "the value has a line break or another character that HTTP headers do not have"
    return ""


def _read_choice(reader: ObjectReader, key: str, choices: tuple[Any, ...]) -> Any:
    value = reader.read_text(key, choices[0])
    if value is not None and value not in choices:
        reader.add_error(key, f"{describe_value(value)} is unknown", f"write {' or '.join(map(repr, choices))}")
        return None
    return value


class _Strings:
    """Reads texts of one entry with variables of the environment in them."""

    def __init__(self, reader: ObjectReader, environment: Mapping[str, str]) -> None:
        self._reader = reader
        self._environment = environment

    def read(self, key: str, example: str) -> str:
        return self._expand(key, self._reader.read_text(key, example) or "")

    def read_list(self, key: str, example: str) -> tuple[str, ...]:
        values = self._reader.raw.get(key)
        if values is None:
            return ()
        if not isinstance(values, tuple) or not all(isinstance(each, str) for each in values):
            self._reader.add_error(key, f"'{key}' is not a list of texts", f'write "{key}": ["{example}"]')
            return ()
        return tuple(self._expand(f"{key}[{index}]", each) for index, each in enumerate(values))

    def read_object(self, key: str) -> Mapping[str, str]:
        values = self._reader.read_object(key, {"NAME": "value"})
        for name, each in (values or EMPTY).items():
            if not isinstance(each, str):
                self._reader.report.add_error(
                    join_path(key, name), f"{describe_kind(each)}, not a text", "write a text"
                )
                return EMPTY
        return {name: self._expand(join_path(key, name), each) for name, each in (values or EMPTY).items()}

    def _expand(self, key: str, text: str) -> str:
        unknown = _UNKNOWN_FORM.search(_VARIABLE.sub("", text))
        if unknown is not None:
            fix = "write ${NAME} or ${NAME:-default}, with the name of an environment variable"
            self._reader.report.add_error(key, f"'{excerpt(unknown[0])}…' is no form of a variable", fix)
            return ""

        def value_of(match: re.Match[str]) -> str:
            name, default = match.groups()
            value = self._environment.get(name) or default
            if value is None:
                fix = f"set it, or write a default: ${{{name}:-…}}"
                self._reader.report.add_error(key, f"the environment variable '{name}' is not set", fix)
            return value or ""

        return _VARIABLE.sub(value_of, text)
