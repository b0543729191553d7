"""The systems that the faults are played on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Compared:
    """A system, run as its own documentation says.

    Attributes:
        module: of :mod:`benchmarks.peers.systems`.
        short: header of its column.
        label: name in full.
        offers: what it does about faults.
        share: of the load; below 1 where the system does not sustain the whole without a fault.
    """

    module: str
    short: str
    label: str
    offers: str
    share: float = 1.0


SYSTEMS: Mapping[str, Compared] = {
    "dispatch": Compared(
        "dispatch_pulsar",
        "dispatch",
        "dispatch on Pulsar, default settings and rate limits",
        "retries and hedging of calls declared read-only, circuit breaker, bulkhead, outlier ejection, sessions",
    ),
    "dispatch-mcp": Compared(
        "dispatch_mcp",
        "dispatch's MCP server (50 calls/s)",
        "dispatch's MCP server over HTTP in front of the same services, with FastMCP's client",
        "as dispatch; the client connects again after its session has ended",
        0.25,
    ),
    "trustgraph": Compared(
        "trustgraph_pulsar",
        "TrustGraph (50 calls/s)",
        "TrustGraph's client and service 2.11.1, a quarter of the load: it sustains about 130 calls/s",
        "a timeout; the launcher starts the service again",
        0.25,
    ),
    "nats": Compared(
        "nats_micro",
        "NATS micro",
        "service of nats-py's micro framework, with nats-server 2.15",
        "three attempts by tenacity for repeatable calls, for others after `no responders` only; reconnects",
    ),
    "grpc": Compared(
        "grpc_aio",
        "gRPC",
        "grpc.aio, round robin over both instances",
        "four attempts by its service config for the repeatable method on UNAVAILABLE; keepalive; limit of calls",
    ),
    "fastmcp": Compared(
        "fastmcp_http",
        "FastMCP (50 calls/s)",
        "FastMCP over HTTP, stateless, two Uvicorn workers",
        "a timeout; the client connects again after its session has ended",
        0.25,
    ),
    "mcp": Compared(
        "mcp_sdk",
        "MCP SDK (50 calls/s)",
        "the MCP SDK over HTTP, stateless, two Uvicorn workers",
        "a timeout; the next session follows when one has ended",
        0.25,
    ),
    "fastmcp-proxy": Compared(
        "fastmcp_proxy",
        "FastMCP's proxy (5 calls/s)",
        "FastMCP's proxy over HTTP in front of the same workers as FastMCP's column, with FastMCP's client",
        "a timeout; the client connects again after its session has ended; a session with the workers for each call",
        0.025,
    ),
    "mcp-proxy": Compared(
        "mcp_proxy",
        "mcp-proxy (20 calls/s)",
        "mcp-proxy 0.13 over stdio in front of the same workers, with FastMCP's client",
        "a timeout; the client connects again after its session has ended",
        0.1,
    ),
    "contextforge": Compared(
        "contextforge",
        "ContextForge (5 calls/s)",
        "ContextForge 1.0.7 over HTTP in front of the same workers, with FastMCP's client",
        "a timeout; health checks of the workers",
        0.025,
    ),
    "taskiq": Compared(
        "taskiq_redis",
        "taskiq (50 calls/s)",
        "taskiq with a stream and results in Redis, append-only file on",
        "tasks stay in the stream until acknowledged",
        0.25,
    ),
}
"""Systems by their names on the command line."""
