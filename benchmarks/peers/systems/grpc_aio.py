"""gRPC: ``grpc.aio`` on both sides, round robin over the instances, keepalive, and retries by its service config."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import grpc
import grpc.aio

from benchmarks.peers.system import Call, Failure, Place, Tool

LABEL: Final = "gRPC, grpc.aio, retries and keepalive by its options"
OFFERS: Final = "deadline sent along, status codes, round robin, retries of declared methods; no guards"
SERVER: Final[Literal[""]] = ""
NAME: Final = "benchmarks.Tools"
RETRY: Final = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "maxBackoff": "1s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
CONFIG: Final = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [{"name": [{"service": NAME, "method": "Read"}], "retryPolicy": RETRY}],
}
KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 8_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
PERMIT: Final = (("grpc.http2.min_ping_interval_without_data_ms", 5_000), ("grpc.http2.max_ping_strikes", 0))
GRACE_S: Final = 5.0


@asynccontextmanager
async def serve(place: Place, instance: int, tool: Tool) -> AsyncIterator[None]:
    """Serve one instance; repeatable calls are those of the method ``Read``."""

    async def handle(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return (await tool(json.loads(request))).encode()

    server = grpc.aio.server(options=(*KEEPALIVE, *PERMIT), maximum_concurrent_rpcs=place.concurrency)
    handler = grpc.unary_unary_rpc_method_handler(handle)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(NAME, {"Read": handler, "Write": handler})])
    server.add_insecure_port(f"127.0.0.1:{place.ports[instance]}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(GRACE_S)


@asynccontextmanager
async def connect(place: Place) -> AsyncIterator[Call]:
    """Connect a client to all instances."""
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in place.ports)
    options = (*KEEPALIVE, ("grpc.service_config", json.dumps(CONFIG)), ("grpc.enable_http_proxy", 0))
    async with grpc.aio.insecure_channel(target, options=options) as channel:
        methods = {name: channel.unary_unary(f"/{NAME}/{name}") for name in ("Read", "Write")}

        async def call(arguments: dict[str, Any], *, repeatable: bool) -> str:
            method = methods["Read" if repeatable else "Write"]
            reply: bytes = await method(json.dumps(arguments).encode(), timeout=place.timeout)
            return reply.decode()

        yield call


def read_failure(error: Exception) -> Failure:
    """The status code; none excludes that the tool was executed."""
    return Failure(error.code().name if isinstance(error, grpc.aio.AioRpcError) else type(error).__name__)
