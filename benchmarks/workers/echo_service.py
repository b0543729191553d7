"""The service that all clients of the first suite call: the plain service of the loss probe, which does the least work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.workers.channel import Spec, run_service
from benchmarks.workers.wire import reply
from dispatch.devtools.lossprobe.plain_client import PlainService
from dispatch.transports import Security


@asynccontextmanager
async def serve(spec: Spec) -> AsyncIterator[None]:
    """Start the service."""
    payload = reply(spec)
    service = PlainService(spec.url, Security(token=spec.token), lambda _properties: payload)
    try:
        for request, response in ((spec.request, spec.response), *spec.more):
            await service.open(request, response)
        yield
    finally:
        await service.close()


if __name__ == "__main__":
    run_service(serve)
