"""The suites and goals of ``python -m benchmarks.peers``."""

from __future__ import annotations

from benchmarks.harness.plan import Contender, Suite
from benchmarks.suites.definitions import BARE, SIZES
from benchmarks.suites.target_ratios import Ratio

DISPATCH = Contender("dispatch", "dispatch, all guards and metrics", "dispatch_client_all_guards", "dispatch_service")
UNGUARDED = Contender("unguarded", "dispatch, no guards", "dispatch_client_unguarded", "dispatch_service")
TRUSTGRAPH = (
    Contender("trustgraph", "TrustGraph's client and service", "trustgraph_client", "trustgraph_service"),
    Contender("trustgraph-client", "TrustGraph's client, dispatch's service", "trustgraph_client", "dispatch_service"),
    Contender(
        "trustgraph-service",
        "dispatch's client, TrustGraph's service",
        "dispatch_client_all_guards",
        "trustgraph_service",
    ),
)


def _peer(name: str, label: str, system: str) -> Contender:
    return Contender(name, label, "peer_client", "peer_service", system=system)


PEERS = (
    _peer("nats", "NATS, nats-py", "nats_micro"),
    _peer("grpc", "gRPC, grpc.aio", "grpc_aio"),
    _peer("fastmcp", "FastMCP over HTTP", "fastmcp_http"),
    _peer("mcp", "MCP SDK over HTTP", "mcp_sdk"),
    _peer("taskiq", "taskiq on Redis", "taskiq_redis"),
)
GUARDS = "circuit breaker, bulkhead, rate limits, retries, hedging, outlier ejection"
DELIVERY = "no message lost, no tool run twice, at overload and loss too"
OFFERS = {
    "dispatch": f"{GUARDS}; {DELIVERY}; typed outcomes; metrics on",
    "session": "no message lost, none delivered twice; no dispatcher and no tool service",
    "silent": f"{GUARDS}; {DELIVERY}; typed outcomes",
    "unguarded": f"{DELIVERY}; typed outcomes; metrics on",
    "bare": "correlation of replies, a timeout",
    "trustgraph": "correlation, a timeout; the launcher restarts the service; one call at a time",
    "trustgraph-client": "as TrustGraph's client; one message of Pulsar per request and reply",
    "trustgraph-service": f"{GUARDS} in the client; one message of Pulsar per request and reply; one call at a time",
    "nats": "queue groups, no-responders error, statistics of the service; at most once",
    "grpc": "deadline sent along, status codes, round robin; at most once",
    "fastmcp": "MCP: schemas checked, sessions; at most once",
    "mcp": "MCP: sessions; at most once",
    "taskiq": "tasks in a stream until acknowledged: at least once; results kept for a minute, polled every 5 ms",
}
"""What each contender does beside the exchange of a request and a reply."""
BY_SIZE = tuple(
    Suite(
        f"peers-{name}",
        f"Client and service together, replies of {text}",
        (DISPATCH, UNGUARDED, BARE, *TRUSTGRAPH, *PEERS),
        answer=size,
    )
    for name, text, size in SIZES[:3]
)
ALONE = Suite(
    "alone",
    "One call at a time, layer by layer, replies of 120 B",
    (
        BARE,
        Contender("session", "the session protocol and its endpoint", "session_client", "session_service"),
        Contender("silent", "dispatch, no metrics", "dispatch_client_silent", "dispatch_service"),
        UNGUARDED,
        DISPATCH,
        PEERS[0],
    ),
    levels=(1,),
)
SUITES = (*BY_SIZE, ALONE)


def _rate(name: str, under: str, level: int, limit: float, text: str) -> Ratio:
    return Ratio(text, f"peers-{name}", "dispatch", under, "calls_per_second", level, limit, "at least")


TARGETS = (
    *(
        _rate("120", "nats", level, limit, f"120 B, {level} in flight: calls/s, of nats-py")
        for level, limit in ((16, 1.0), (64, 1.15), (256, 1.15))
    ),
    Ratio("120 B, 1 in flight: p50, of the bare pair", "peers-120", "dispatch", "bare", "p50_ms", 1, 1.1),
    _rate("10k", "bare", 64, 1.5, "10 kB, 64 in flight: calls/s, of the bare pair"),
    _rate("100k", "bare", 64, 1.7, "100 kB, 64 in flight: calls/s, of the bare pair"),
    Ratio("120 B, 64 in flight: client CPU, µs a call", "peers-120", "dispatch", None, "cpu_us_per_call", 64, 25),
    _rate("120", "unguarded", 64, 0.9, "120 B, 64 in flight: calls/s with all guards, of the same without"),
)
