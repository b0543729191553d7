"""An agent that was written for TrustGraph, moved to dispatch: two ways, one line each.

1. `dispatch.wrap(client, tool=...)` keeps TrustGraph's client, and puts dispatch's errors and deadlines around it.
2. `dispatch.ToolServiceClient` takes its place: the same calls, in TrustGraph's two dialects, over dispatch's own path.

It calls the service on the topic "joke", whoever wrote it: start examples/joke_service.py or examples/trustgraph_service.py.
    pip install trustgraph-base==2.11.1
    python examples/trustgraph_agent.py --broker pulsar://localhost:6650
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from trustgraph.base import RequestResponseClient
from trustgraph.base.async_pulsar_backend import AsyncPulsarBackend
from trustgraph.base.request_response_spec import _make_impl_wrapper
from trustgraph.base.tool_service_client import ToolServiceClient
from trustgraph.schema import ToolServiceRequest, ToolServiceResponse

import dispatch

TOOLS = Path(__file__).parent / "tools"
CONFIG, ARGUMENTS = {"style": "pun"}, {"topic": "cats"}


@contextlib.asynccontextmanager
async def trustgraphs_client(broker: str) -> AsyncIterator[ToolServiceClient]:
    """TrustGraph's own client, made as TrustGraph makes it. Inside a flow of TrustGraph you have it already."""
    backend = AsyncPulsarBackend(host=broker)
    try:
        requests = await RequestResponseClient.create(
            backend=backend,
            request_topic="non-persistent://tg/request/joke",
            response_topic="non-persistent://tg/response/joke",
            request_schema=ToolServiceRequest,
            response_schema=ToolServiceResponse,
        )
        client = _make_impl_wrapper(requests, ToolServiceClient)
        try:
            yield client
        finally:
            await client.close()
    finally:
        await backend.close()


async def run(broker: str) -> None:
    async with dispatch.connect(broker, catalog=TOOLS) as dispatcher:
        client = dispatch.ToolServiceClient(dispatcher, service="joke-service")
        print("ours in place of theirs:", await client.call(CONFIG, ARGUMENTS, timeout=10))
        print("   with a user, as the specification has it:", await client.call("alice", CONFIG, ARGUMENTS, timeout=10))
        try:
            await client.call(CONFIG, {}, timeout=10)
        except RuntimeError as error:  # what TrustGraph's client raises; ours knows more
            print(f"   an error: {error.type}: {error}")

        # Inside: a client of pulsar-client that was closed a moment before the process ends can take it down with it.
        async with trustgraphs_client(broker) as theirs:
            client = dispatch.wrap(theirs, tool="tell-joke")
            print("theirs, wrapped:", await client.call(CONFIG, ARGUMENTS, timeout=10))
            try:
                await client.call(CONFIG, {}, timeout=10)
            except RuntimeError as error:
                print(f"   an error: {error.type}: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="pulsar://localhost:6650", help="its address (%(default)s)")
    try:
        asyncio.run(run(parser.parse_args().broker))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")
