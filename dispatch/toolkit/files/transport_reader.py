"""Reads ``mcp_transport_config`` of a toolkit file."""

from __future__ import annotations

from typing import Any, Final

from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import describe_kind, describe_value
from dispatch.toolkit.mcp_service import McpTransportConfig, McpTransportType

_KINDS: Final[dict[str, tuple[type, str]]] = {
    "url": (str, "a text"),
    "command": (str, "a text"),
    "args": (list, "a list"),
    "env": (dict, "an object"),
    "headers": (dict, "an object"),
}


def read_transport(raw: dict[str, Any], key: str, report: Report) -> McpTransportConfig:
    """Return the transport of an MCP server. Mistakes are reported, with ``key`` as the path of ``raw``."""
    at = f"{key}.mcp_transport_config"
    config = raw.get("mcp_transport_config", {})
    if not isinstance(config, dict):
        report.add_error(at, f"{describe_kind(config)} instead of an object", "write transport_type: STDIO and command")
        return McpTransportConfig(McpTransportType.STDIO)
    kind = config.get("transport_type", "STDIO")
    if kind == "WEBSOCKET":
        problem = "WEBSOCKET is not supported: MCP has no such transport"
        report.add_error(
            f"{at}.transport_type", problem, "write STREAMABLE_HTTP, with the server's http:// address as url"
        )
    elif kind not in McpTransportType.__members__:
        names = ", ".join(McpTransportType.__members__)
        report.add_error(f"{at}.transport_type", f"{describe_value(kind)} is not a transport", f"write one of {names}")
    for name, (type_, article) in _KINDS.items():
        value = config.get(name)
        if value is not None and not isinstance(value, type_):
            report.add_error(f"{at}.{name}", f"{describe_kind(value)} instead of {article}", "remove it")
    for name in ("timeout", "sse_read_timeout"):
        value = config.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            report.add_error(f"{at}.{name}", f"{describe_value(value)} is not a number of seconds", f"write {name}: 5")
    if report.has_errors:
        return McpTransportConfig(McpTransportType.STDIO)
    return McpTransportConfig.from_dict(config)
