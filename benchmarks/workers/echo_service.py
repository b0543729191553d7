"""The bare service, which does the least work: the plain service of the loss probe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from benchmarks.workers.channel import Report, Spec, run_service
from benchmarks.workers.wire import LARGE, large_reply, reply
from dispatch.devtools.lossprobe import PlainService
from dispatch.transports import Security


@asynccontextmanager
async def serve(spec: Spec) -> AsyncIterator[Report | None]:
    """Start the service."""
    payload, large_payload = reply(spec), large_reply(spec)
    (large,) = LARGE

    def choose(properties: Mapping[str, str]) -> bytes:
        return large_payload if large in properties else payload

    service = PlainService(spec.url, Security(token=spec.token), choose)
    try:
        for request, response in ((spec.request, spec.response), *spec.more):
            await service.open(request, response)
        yield None
    finally:
        await service.close()


if __name__ == "__main__":
    run_service(serve)
