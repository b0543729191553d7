"""The service of a compared system, with a tool that answers at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.peers.system import Place, load
from benchmarks.workers.channel import Report, Spec, run_service


def place_of(spec: Spec) -> Place:
    """Where the client and service of a spec meet."""
    return Place(spec.url, spec.topic, (spec.port,), spec.timeout)


@asynccontextmanager
async def serve(spec: Spec) -> AsyncIterator[Report | None]:
    """Start the service."""
    text = spec.text

    async def answer(arguments: dict[str, Any]) -> str:
        return text

    async with load(spec.system).serve(place_of(spec), 0, answer):
        yield None


if __name__ == "__main__":
    run_service(serve)
