"""Results and errors of MCP as those of dispatch. No input or output."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import httpx2
import msgspec
from mcp import ClientSession, MCPError, types
from mcp.client.session import ElicitationFnT, ListRootsFnT, SamplingFnT
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, ErrorData

from dispatch._internal import ErrorBoundary, Rejection, excerpt, first_sentence, is_deeper, type_name, unwrap
from dispatch.calls.error_messages import error_from_rejection
from dispatch.calls.local import FailedCallError, LocalResult, RefusedCallError
from dispatch.catalog.descriptors import PERMISSIONS_KEY, POLICY_KEY
from dispatch.catalog.items import MAX_MODEL_NAME_CHARS, Item, OnChange, Refused, check_policy, read_schema
from dispatch.documents import (
    EMPTY,
    FLAG_KEY,
    WRONG,
    FrozenDict,
    Key,
    Problem,
    Report,
    describe_kind,
    describe_value,
    expand_variables,
    explain_missing,
    freeze_json,
    is_list,
    is_text,
    join_path,
    object_key,
    read_struct,
    refuse,
    rules_of,
    show_key,
    text_key,
    texts_key,
    warn_of_unknown_keys,
)
from dispatch.errors import (
    DispatchError,
    ErrorType,
    InvalidArgumentsError,
    Origin,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)
from dispatch.mcp.replies import (
    INPUT_SCHEMA,
    RefusedTool,
    TransportFailure,
    compact_json,
    describe_invalid,
    find_retry_after,
)
from dispatch.messaging.wire import local_queue, local_reply_queue
from dispatch.results import ResultContent
from dispatch.schemas import MAX_DEPTH, ValidatorCache
from dispatch.telemetry.events import ExceptionLogger

logger = logging.getLogger("dispatch.mcp")

MAX_REASON_CHARS: Final = 300
_LOSSES: Final = ("Connection closed", "SSE stream ")
"""Beginnings of the SDK's texts about the end of a connection. Servers use the same code for errors of their own."""
_NO_SUCH_TOOL: Final = re.compile(
    r"\b(?:unknown|no such) tool\b|\btool (?:\S+ )?(?:is |was )?(?:not found|unknown\b|does not exist)", re.IGNORECASE
)
"""In the text of the error -32602, which is MCP's for an unknown tool as it is for invalid arguments."""
INPUT_REQUIRED: Final = "input-required"
"""Type of the error of a tool that asks for input, where no callback answers."""


def read_result(result: types.CallToolResult, instance: str) -> LocalResult:
    """Return the result of a call.

    Raises:
        ToolError: it is an error of the tool.
    """
    text = text_of(result)
    if result.is_error:
        raise ToolError(ErrorType.TOOL_ERROR, text)
    blocks, structured = result.content, result.structured_content
    if structured is None and len(blocks) == 1 and _is_plain_text(blocks[0]):
        return LocalResult(text, None, instance)
    content = tuple(block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in blocks)
    return LocalResult(text, ResultContent(content, structured), instance)


def _is_plain_text(block: types.ContentBlock) -> bool:
    return isinstance(block, types.TextContent) and block.annotations is None and block.meta is None


def text_of(result: types.CallToolResult) -> str:
    """Return what a model reads: the texts, and a line for each part of another kind; without a text the structured content
    as compact JSON, in which such a line stands for the data of its part."""
    parts = list(map(describe_block, result.content))
    if result.structured_content is not None and not any(map(_has_text, result.content)):
        lines = dict(zip(map(_data_of, result.content), parts, strict=True))
        parts = [*filter(None, parts), compact_json(_replace_data(result.structured_content, lines))]
    return "\n".join(parts)


def _data_of(block: types.ContentBlock) -> str:
    if isinstance(block, types.EmbeddedResource):
        return block.resource.blob if isinstance(block.resource, types.BlobResourceContents) else ""
    return block.data if isinstance(block, (types.ImageContent, types.AudioContent)) else ""


def _replace_data(value: Any, lines: Mapping[str, str]) -> Any:
    """Return a JSON value with a line in place of each text that is data: a server of images repeats them."""
    if isinstance(value, dict):
        return {key: _replace_data(each, lines) for key, each in value.items()}
    if isinstance(value, list):
        return [_replace_data(each, lines) for each in value]
    return lines.get(value, value) if isinstance(value, str) and value else value


def _has_text(block: types.ContentBlock) -> bool:
    if isinstance(block, types.EmbeddedResource):
        return isinstance(block.resource, types.TextResourceContents) and bool(block.resource.text)
    return isinstance(block, types.TextContent) and bool(block.text)


def describe_block(block: types.ContentBlock) -> str:
    """Return what a model reads of a block."""
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, (types.ImageContent, types.AudioContent)):
        size = len(block.data) * 3 // 4 - block.data[-2:].count("=")
        return f"[{block.type}: {excerpt(block.mime_type)}, {size:,} bytes]"
    if isinstance(block, types.ResourceLink):
        about = f", {excerpt(block.description, 200)}" if block.description else ""
        return f"[link: {excerpt(str(block.uri), 500)}, {excerpt(block.title or block.name)}{about}]"
    resource = block.resource
    if isinstance(resource, types.TextResourceContents):
        return resource.text
    return f"[resource: {excerpt(str(resource.uri), 500)}]"


def error_from_input_required(tool: str, result: types.InputRequiredResult) -> ToolError:
    """Return the error of a tool that asks for input, which is rejected by name."""
    asked = sorted({request.method for request in (result.input_requests or {}).values()})
    return ToolError(
        INPUT_REQUIRED,
        f"Tool '{tool}' asks for input ({', '.join(asked) or 'its state'}), which this program does not give. Use another "
        "tool, or report that McpServers needs a callback for it.",
    )


def error_from_mcp_error(error: MCPError, tool: str, server: str) -> RefusedCallError | FailedCallError:
    """Return what an instance raises for an error of the protocol, of the server or of the transport."""
    reason = excerpt(first_sentence(" ".join(error.message.split())), MAX_REASON_CHARS)
    refusal = _refusal_of(error, reason, tool, f"its MCP server '{excerpt(server)}'")
    if refusal is not None:
        return RefusedCallError(refusal, elsewhere=isinstance(refusal, ThrottledError))
    if error.code == TransportFailure.MALFORMED:
        return error_from_unreadable_result(tool, server, error)
    if error.code == TransportFailure.REPLY_LOST or (
        error.code == CONNECTION_CLOSED and error.message.startswith(_LOSSES)
    ):
        return error_from_loss(tool, server)
    what = (
        reason if error.code == TransportFailure.HTTP_STATUS else f"error {error.code}" + f" ({reason})" * bool(reason)
    )
    return _failed(ErrorType.SERVER_FAILED, f"The MCP server '{excerpt(server)}' answered with {what}", tool)


def _failed(type: ErrorType, what: str, tool: str) -> FailedCallError:
    """Return the error of a call of a tool that may have been executed."""
    text = f"{what}; tool '{tool}' may have been executed. Check its effect before you call it again, or report the failure."
    return FailedCallError(TransportError(type, text, origin=Origin.TOOL))


def _refusal_of(error: MCPError, reason: str, tool: str, server: str) -> DispatchError | None:
    """Return the error of a call that was certainly not executed; None: it may have been."""
    refused = f"Tool '{tool}' was not executed: {server}"
    if error.code == INVALID_PARAMS and not _NO_SUCH_TOOL.search(error.message):
        return InvalidArgumentsError(
            ErrorType.INVALID_ARGUMENTS,
            f"Tool '{tool}' was not executed: its MCP server refused the arguments ({reason}). Correct the arguments.",
        )
    if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
        return RejectedError(
            ErrorType.UNKNOWN_TOOL,
            f"{refused} does not have it ({reason}). Use another tool, or report the failure.",
            rejected_by="service",
        )
    if error.code in (TransportFailure.UNAUTHORIZED, TransportFailure.FORBIDDEN):
        is_unknown = error.code == TransportFailure.UNAUTHORIZED
        what = "does not accept the credentials" if is_unknown else "does not permit it with these credentials"
        return RejectedError(
            ErrorType.UNAUTHORIZED,
            f"{refused} {what} ({reason}). Use another tool, or report that the server's 'headers' have to be corrected.",
            rejected_by="service",
        )
    if error.code == TransportFailure.THROTTLED:
        after = find_retry_after(error)
        when = "later" if after is None else f"in {math.ceil(after)} s or later"
        return ThrottledError(
            ErrorType.OVERLOADED,
            f"{refused} asks for a pause ({reason}). Use another tool, or call it again {when}.",
            retryable=True,
            retry_after=after,
            rejected_by="service",
        )
    return None


def error_from_invalid_result(tool: str, server: str, error: MCPError) -> ToolError:
    """Return the error of a tool whose result is not valid JSON."""
    return ToolError(
        ErrorType.INVALID_RESULT,
        f"Tool '{tool}' was executed, but the result of the MCP server '{excerpt(server)}' is not valid: {error.message}. "
        "Report the failure, or use another tool.",
    )


def error_from_loss(tool: str, server: str) -> FailedCallError:
    """Return the error of a call in flight whose server has ended."""
    return _failed(ErrorType.INSTANCE_LOST, f"The MCP server '{excerpt(server)}' ended during the call", tool)


def error_from_unreadable_result(tool: str, server: str, problem: Exception) -> FailedCallError:
    """Return the error of a result that does not conform to the protocol, or to the tool's own output schema."""
    reason = excerpt(first_sentence(" ".join(describe_invalid(problem).split())), MAX_REASON_CHARS)
    what = f"The MCP server '{excerpt(server)}' sent no valid result ({reason})"
    return _failed(ErrorType.MALFORMED_REPLY, what, tool)


def error_from_missing_session(tool: str, retry_after: float) -> DispatchError:
    """Return the error of a call while its server is not connected."""
    return error_from_rejection(Rejection("balancer", "no-instance", retry_after), tool)


class OutputSchemas:
    """Checks results against the output schemas of a server's tools, in place of the SDK, whose validator has no limits: a
    schema of twenty lines stops the event loop for hours."""

    def __init__(self) -> None:
        self._tools: Mapping[str, types.Tool] = {}
        self._validators = ValidatorCache(_read_output_schema)

    def set_tools(self, tools: Iterable[types.Tool]) -> None:
        """Take the schemas of ``tools`` from now on."""
        self._tools = {tool.name: tool for tool in tools if tool.output_schema is not None}

    def use_in(self, session: ClientSession) -> None:
        """Check the results of ``session``."""
        session.validate_tool_result = self.check  # type: ignore[method-assign] # no option of the SDK does this

    async def check(self, name: str, result: types.CallToolResult) -> None:
        """Check a result that is no error.

        Raises:
            ValueError: it does not match the output schema of the tool; the text has no value of it.
        """
        tool, content = self._tools.get(name), result.structured_content
        if tool is None or is_deeper(content, MAX_DEPTH):  # nothing that deep can be checked
            return
        if content is None and "structured_content" not in result.model_fields_set:
            raise ValueError("its tool has an output schema, and it has no structured content")
        for mistake in self._validators.get(tool).find_mistakes(content):
            raise ValueError(f"structuredContent{mistake.path} does not match the output schema: {mistake.message}")


def _read_output_schema(tool: types.Tool) -> Mapping[str, Any]:
    report = Report(tool.name)
    return read_schema(freeze_json(tool.output_schema, report), report, "output-schema", is_foreign=True)


# The configuration of MCP servers: the common form of ``mcp.json`` with keys of dispatch. No input or output.


Prefix = Literal["always", "never"]

SERVERS_KEY: Final = "mcpServers"
STDIO_KEYS: Final = ("command", "args", "env", "cwd")
HTTP_KEYS: Final = ("url", "headers")
OWN_KEYS: Final = ("trusted", "only", "prefix", "policy", "permissions", "on-change")
"""Keys of dispatch."""
_SILENT: Final = ("autoApprove", "alwaysAllow", "description", "name", "timeout")
"""Keys of other clients that need no warning."""
_STDIO_TYPES: Final = ("stdio", "local")
_HTTP_TYPES: Final = ("http", "streamable-http", "streamableHttp", "streamable_http", "remote")

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BEFORE_SECRET: Final = re.compile(r".*?(?:[:=]|\b(?:bearer|basic)\b|$)", re.IGNORECASE | re.DOTALL)
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


def _read_texts(values: Any, report: Report, path: str) -> Any:
    if is_list(values) and all(map(is_text, values)):
        return values
    example = {"url": "https://host/mcp"}.get(path, "-y")
    return refuse(report, path, f"'{path}' is not a list of texts", show_key(path, [example]))


def _read_values(values: Mapping[str, Any], report: Report, path: str) -> Any:
    for name, each in values.items():
        if not is_text(each):
            return refuse(report, join_path(path, name), f"{describe_kind(each)}, not a text", "write a text")
    return values


_URL: Final = text_key("https://host/mcp")


def _read_urls(given: Any, report: Report, path: str) -> Any:
    texts = _read_texts(given, report, path) if is_list(given) else _URL(given, report, path)
    if texts is WRONG:
        return WRONG
    urls = [text.strip() for text in (texts if is_list(texts) else (texts,))]
    for url in filter(None, urls):
        if problem := find_address_problem(url):
            return refuse(
                report, path, problem, 'write "url": "https://host/mcp", or correct the variable that it is from'
            )
    return tuple(dict.fromkeys(filter(None, urls)))


def find_address_problem(url: str) -> str:
    """Return why nothing can be sent to ``url``, without its text, which may be a secret from a variable."""
    if not url.lower().startswith(("http://", "https://")):
        return "an address does not begin with http:// or https://"
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        return "an address has no valid host or port (a user or password in it must be percent-encoded)"
    return "" if parsed.host else "an address has no host"


def _read_headers(values: Mapping[str, Any], report: Report, path: str) -> Any:
    # A secret from a file has a line end.
    found = {name: value.strip() if is_text(value) else value for name, value in values.items()}
    for name, value in found.items():
        shown, problem = find_header_problem(name, value if is_text(value) else "")
        if problem:
            report.add_error(join_path(path, shown), problem, "correct it, or the variable that it is from")
    return found if report.has_errors else _read_values(found, report, path)


def _choice(*choices: str) -> Key:
    def read(value: str, report: Report, path: str) -> Any:
        if value in choices:
            return value
        return refuse(report, path, f"{describe_value(value)} is unknown", f"write {' or '.join(map(repr, choices))}")

    return text_key(choices[0], read)


def _read_type(kind: str, report: Report, path: str) -> Any:
    if kind == "sse":
        fix = 'use the server\'s address for "http"'
        return refuse(report, path, "the transport 'sse' was withdrawn from MCP", fix)
    if kind not in (*_STDIO_TYPES, *_HTTP_TYPES):
        fix = 'write "stdio" or "http"'
        return refuse(report, path, f"the transport {describe_value(kind)} is unknown", fix)
    return kind


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
        type: of its transport, as it is written.
        disabled: it is not used.
    """

    name: str
    command: Annotated[str, text_key("npx")] = ""
    args: Annotated[tuple[str, ...], _read_texts] = ()
    env: Annotated[Mapping[str, str], object_key({"NAME": "value"}, _read_values)] = EMPTY
    cwd: Annotated[str | None, text_key("/srv/files", lambda text, _report, _path: text or None)] = None
    urls: Annotated[tuple[str, ...], _read_urls] = msgspec.field(default=(), name="url")
    headers: Annotated[Mapping[str, str], object_key({"NAME": "value"}, _read_headers)] = EMPTY
    is_trusted: Annotated[bool, FLAG_KEY] = msgspec.field(default=False, name="trusted")
    only: Annotated[tuple[str, ...] | None, texts_key("search")] = None
    prefix: Annotated[Prefix | None, _choice("always", "never")] = None
    policy: Annotated[Mapping[str, Any], POLICY_KEY] = EMPTY
    permissions: Annotated[tuple[str, ...], PERMISSIONS_KEY] = ()
    on_change: Annotated[OnChange, _choice("apply", "hold")] = msgspec.field(default="apply", name="on-change")
    type: Annotated[str | None, text_key("stdio", _read_type)] = None
    disabled: Annotated[bool, FLAG_KEY] = False


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
    if servers is raw and isinstance(raw, Mapping):
        others = [key for key, entry in raw.items() if _has_servers(entry)]
        if others:
            rename = f"rename it to '{SERVERS_KEY}'"
            return [Problem(origin, excerpt(str(key)), "an unknown key", rename) for key in others]
        if any(isinstance(raw.get(key), str) for key in ("type", "id")):
            other = "name the folder that has tool/ and tool-service/, not one of its files"
            return [Problem(origin, "", "a descriptor of dispatch, not a configuration of MCP servers", other)]
    fix = f'write {{"{SERVERS_KEY}": {{"files": {{"command": "…"}}}}}}'
    if not isinstance(servers, Mapping):
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
    if not servers:
        warnings.append(Problem(origin, SERVERS_KEY, "there are no servers", fix, "warning"))
    return Configuration(tuple(found), tuple(invalid), tuple(warnings))


def _has_servers(entry: object) -> bool:
    """Return whether an entry is not a server but an object of servers, under a key that dispatch does not know."""
    return isinstance(entry, Mapping) and any(
        isinstance(each, Mapping) and ("command" in each or "url" in each) for each in entry.values()
    )


def _read_server(name: str, raw: object, report: Report, environment: Mapping[str, str]) -> ServerSettings | None:
    """Return the settings; None after an error, or of an entry that is disabled."""
    value = freeze_json(raw, report)
    if not isinstance(value, dict):
        fix = f'write "{excerpt(name)}": {{"command": "…"}} or {{"url": "https://…"}}'
        report.add_error("", f"the entry is {describe_kind(value)}, not an object", fix)
        return None
    if value.get("disabled") is True:
        return None
    if not name.strip() or not name.isprintable():
        report.add_error("", "the name of the server is empty or has a control character", "give it a name")
    for key in (*STDIO_KEYS, *HTTP_KEYS):
        if key in value:
            value = FrozenDict({**value, key: expand_variables(value[key], environment, report, key)})
    settings = read_struct(ServerSettings, value, report, name=name)
    _check_kind(settings, value, report)
    for key in HTTP_KEYS if settings.command else STDIO_KEYS:
        if key in value and bool(settings.command) != bool(settings.urls):
            kind = "command" if settings.command else "url"
            report.add_warning(key, f"a server with '{kind}' has no '{key}'", "remove it")
    check_policy(settings.policy, report)
    warn_of_unknown_keys(value, rules_of(ServerSettings), report, silent=_SILENT)
    return settings


def _check_kind(settings: ServerSettings, raw: Mapping[str, Any], report: Report) -> None:
    if any(each.key.startswith(("command", "url", "type")) for each in report.problems):
        return  # what is given is not known
    kind, command, urls = settings.type, settings.command, settings.urls
    if command and urls:
        report.add_error("url", "both 'command' and 'url' are given", "keep one of them")
    elif not command and not urls:
        known = rules_of(ServerSettings)
        fixes = [explain_missing(raw, "command", "npx", known), explain_missing(raw, "url", "https://host/mcp", known)]
        renamed = [each for each in fixes if each.startswith("rename")]
        fix = renamed[0] if renamed else 'add "command": "npx", or "url": "https://host/mcp"'
        report.add_error("command", "neither 'command' nor 'url' is given", fix)
    elif kind is not None and (kind in _STDIO_TYPES) != bool(command):
        wanted = "command" if kind in _STDIO_TYPES else "url"
        report.add_error("type", f"'{kind}' needs '{wanted}'", f"give '{wanted}', or remove 'type'")


def find_header_problem(name: str, value: str) -> tuple[str, str]:
    """Return the name of a header for messages, and why HTTP cannot send the header; empty: it can. Neither has the value,
    nor a secret that was written into the name: ``"Authorization: Bearer …": ""``."""
    if not _HEADER_NAME.fullmatch(name):
        shown = _BEFORE_SECRET.match(name)
        return excerpt(shown[0] if shown else "", 40), "the name is no name of an HTTP header"
    if not _HEADER_VALUE.fullmatch(value):
        return name, "the value has a line break or another character that HTTP headers do not have"
    return name, ""


# The tools of an MCP server as items of the catalogue. No input or output.


TOOL_PARAM: Final = "mcp-tool-name"
"""Config param of the services: the name that the server has for the tool."""


def service_item(id: str, settings: ServerSettings) -> Item:
    """Return the service of a server."""
    raw = describe_local_service(id, {"name": TOOL_PARAM, "required": True})
    if settings.policy:
        raw["policy"] = settings.policy
    if settings.permissions:
        raw["permissions"] = list(settings.permissions)
    return Item(f"{settings.name}: (server)", "tool-service", id, raw)


def describe_local_service(id: str, *params: dict[str, Any]) -> dict[str, Any]:
    """Return the descriptor of a service that this process executes, with config parameters."""
    queues = {"request-queue": local_queue(id, "extension"), "response-queue": local_reply_queue(id, "extension")}
    return {"id": id, **queues, "config-params": list(params)}


def tool_item(service: str, name: str, tool: types.Tool, settings: ServerSettings) -> Item:
    """Return a tool of a server.

    Args:
        service: id of its service.
        name: in the catalogue.
    """
    origin = f"{settings.name}: {tool.name}"
    schemas: dict[str, Any] = {"input-schema": (tool.meta or {}).get(INPUT_SCHEMA, tool.input_schema)}
    if tool.output_schema is not None:
        schemas["output-schema"] = tool.output_schema
    report = Report(origin)
    raw: dict[str, Any] = {
        "type": "tool-service",
        "name": name,
        "description": tool.description or tool.title or "",
        "service": service,
        TOOL_PARAM: tool.name,
        **freeze_json(schemas, report),  # null in place of what JSON or the catalogue does not have
    }
    for problem in report.problems[:1]:
        logger.warning("%s is used with a part of its schema: %s: %s", origin, problem.key, problem.problem)
    if settings.is_trusted and tool.annotations is not None:
        raw |= _annotations(tool.annotations)
    return Item(origin, "tool", name, raw, is_foreign=True)


def refused_item(name: str, tool: RefusedTool, settings: ServerSettings) -> Item:
    """Return a tool of a server that is not usable, with the reason; ``name``: in the catalogue."""
    origin = f"{settings.name}: {tool.name or '(a tool without a name)'}"
    return Item(origin, "tool", name, Refused((Problem(origin, "", tool.problem, tool.fix),)))


def _annotations(hints: types.ToolAnnotations) -> dict[str, bool]:
    destructive = None if hints.read_only_hint else hints.destructive_hint  # it has no meaning for a read-only tool
    found = {"read-only": hints.read_only_hint, "idempotent": hints.idempotent_hint, "destructive": destructive}
    return {key: hint for key, hint in found.items() if hint is not None}


# Names of the tools of MCP servers in the catalogue. Pure.


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


# Answers of the application to requests of MCP servers.


_failures = ExceptionLogger(logger)


class Callbacks(msgspec.Struct, frozen=True):
    """Callbacks of the SDK, by the kind of the request. None: such requests are rejected by name, and the server is told
    at the handshake that there is no answer to them.

    Attributes:
        elicitation: asks the user.
        sampling: asks a model.
        roots: lists the folders that a server may use.
    """

    elicitation: ElicitationFnT | None = None
    sampling: SamplingFnT | None = None
    roots: ListRootsFnT | None = None

    @property
    def has_any(self) -> bool:
        """Whether a request may be answered."""
        return self != Callbacks()

    def as_options(self) -> dict[str, Any]:
        """Return the arguments for :class:`mcp.Client`."""
        return {
            "elicitation_callback": _hold_errors(self.elicitation, "elicitation"),
            "sampling_callback": _hold_errors(self.sampling, "sampling"),
            "list_roots_callback": _hold_errors(self.roots, "roots"),
        }


def _hold_errors(callback: Callable[..., Awaitable[Any]] | None, kind: str) -> Callable[..., Awaitable[Any]] | None:
    """Return ``callback`` with errors as its answers: what it raises must not end the session, and its text, which may have
    user data, is not sent to the server. An MCPError is an answer of its own."""
    if callback is None:
        return None

    async def answer(*values: Any) -> Any:
        try:
            with ErrorBoundary():
                return await callback(*values)
        except MCPError:
            raise
        except Exception as error:
            _failures.log(f"the callback for {kind} failed", error)
            name = type_name(unwrap(error))
            return ErrorData(code=INTERNAL_ERROR, message=f"The client's callback for {kind} failed ({name}).")

    return answer
