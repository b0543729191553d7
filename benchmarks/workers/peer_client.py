"""The client of a compared system."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.peers.system import load
from benchmarks.workers.channel import ARGUMENTS, Spec, run_client
from benchmarks.workers.load import Load
from benchmarks.workers.peer_service import place_of


@asynccontextmanager
async def connect(spec: Spec) -> AsyncIterator[Load]:
    """Connect the client."""
    async with load(spec.system).connect(place_of(spec)) as call:

        async def call_once() -> str:
            return await call(ARGUMENTS, repeatable=False)

        yield Load(call_once, spec.text, Exception)


if __name__ == "__main__":
    run_client(connect)
