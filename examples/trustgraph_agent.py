"""Two ways to move an agent from TrustGraph's client to dispatch, one line each.

1. `dispatch.wrap(client, tool=...)` keeps TrustGraph's client and adds dispatch's errors, deadlines and guards.
2. `dispatch.ToolServiceClient` replaces it: the same calls, in TrustGraph's two dialects, through the dispatcher.

It calls any service on the topic "joke": start examples/joke_service.py or examples/trustgraph_service.py.
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
async def open_trustgraph_client(broker: str) -> AsyncIterator[ToolServiceClient]:
    """Create TrustGraph's client as TrustGraph does; inside a TrustGraph flow it already exists."""
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
        print("ToolServiceClient of dispatch:", await client.call(CONFIG, ARGUMENTS, timeout=10))
        print("   with a user, as in the specification:", await client.call("alice", CONFIG, ARGUMENTS, timeout=10))
        try:
            await client.call(CONFIG, {}, timeout=10)
        except RuntimeError as error:  # as with TrustGraph's client, with additional attributes
            print(f"   an error: {error.type}: {error}")

        # Nested: closing a pulsar-client shortly before the process exits can crash the process.
        async with open_trustgraph_client(broker) as trustgraph_client:
            client = dispatch.wrap(trustgraph_client, tool="tell-joke")
            print("wrapped client of TrustGraph:", await client.call(CONFIG, ARGUMENTS, timeout=10))
            try:
                await client.call(CONFIG, {}, timeout=10)
            except RuntimeError as error:
                print(f"   an error: {error.type}: {error}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default="pulsar://localhost:6650", help="URL of the broker (default: %(default)s)")
    try:
        asyncio.run(run(parser.parse_args().broker))
    except KeyboardInterrupt:
        sys.exit(130)
    except dispatch.DispatchError as error:
        sys.exit(f"error: {error}")
