"""A namespace is deleted under a running dispatcher and its services: its own calls get a typed error at once, others do not
notice; and everything works again by itself when it is made again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.devtools.localbroker import Admin, AdminError
from dispatch.transports import open_transport
from tests.helpers.catalogs import queues_of, unique_topic
from tests.helpers.dispatcher_and_service import UNGUARDED
from tests.helpers.echo_service import Echo
from tests.helpers.internals import transport_of

pytestmark = pytest.mark.pulsar


def delete_namespace(admin: Admin, namespace: str) -> None:
    """Delete a namespace that is in use. Brokers refuse that unless they were told to allow it, so first its topics."""
    admin.request("POST", f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})
    for _ in range(20):
        try:
            for topic in admin.topics(namespace):
                kind, _, name = topic.partition("://")
                with contextlib.suppress(AdminError):  # gone by itself
                    admin.request("DELETE", f"{kind}/{name}?force=true")
            admin.request("DELETE", f"namespaces/{namespace}")
            return
        except AdminError as error:
            if error.status not in (409, 412, 500):  # a topic is just being made or deleted
                raise
    raise AssertionError(f"{namespace} could not be deleted")


@dataclass
class Steady:
    """Somebody who calls the other service all the time."""

    dispatcher: dispatch.Dispatcher
    results: list[dispatch.CallResult] = field(default_factory=list)

    async def _call(self) -> None:
        while True:
            self.results.append(await self.dispatcher.execute("steady", {"text": "x"}, timeout=10))
            await asyncio.sleep(0.005)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._call())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def descriptor(id: str, queues: tuple[str, str]) -> dict[str, str]:
    return {"id": id, "request-queue": queues[0], "response-queue": queues[1]}


@pytest.mark.parametrize("scheme", ["non-persistent", "persistent"])
async def test_only_its_own_calls_notice_and_they_work_again_with_it(pulsar_endpoint: Endpoint, scheme: str) -> None:
    admin, url = pulsar_endpoint.admin(), pulsar_endpoint.service_url
    namespace = f"tg/{unique_topic('lost')}"
    await asyncio.to_thread(admin.ensure_namespace, namespace)
    lost = (f"{scheme}://{namespace}/request", f"{scheme}://{namespace}/response")
    steady = queues_of(unique_topic())
    catalog = dispatch.Catalog.of(
        [descriptor("lost-service", lost), descriptor("steady-service", steady)],
        [
            {"type": "tool-service", "name": name, "description": "Echoes.", "service": f"{name}-service"}
            for name in ("lost", "steady")
        ],
    )
    transport = open_transport(url)  # one connection for both services, as the dispatcher has one
    await transport.start()
    try:
        async with (
            dispatch.ToolServer(Echo(), transport, request_queue=lost[0], response_queue=lost[1]),
            dispatch.ToolServer(Echo(), transport, request_queue=steady[0], response_queue=steady[1]),
            dispatch.connect(url, catalog, policy=dispatch.Policy(**UNGUARDED)) as dispatcher,
        ):
            assert (await dispatcher.execute("lost", {"text": "before"}, timeout=20)).text == "before"
            assert (await dispatcher.execute("steady", {"text": "before"}, timeout=20)).text == "before"
            others = Steady(dispatcher)
            async with others.running():
                await asyncio.to_thread(delete_namespace, admin, namespace)
                async with asyncio.timeout(30):
                    while True:
                        result = await dispatcher.execute("lost", {"text": "gone"}, timeout=1)
                        assert isinstance(
                            result.error, dispatch.TransportError | dispatch.CallTimeoutError | dispatch.RejectedError
                        )
                        if result.error.type == "no-such-namespace":
                            break
                        await asyncio.sleep(0.01)  # what fails at once gives nobody else a turn
                assert isinstance(result.error, dispatch.TransportError)
                assert f"pulsar-admin namespaces create {namespace}" in result.error.message
                assert (result.error.may_have_run, result.attempts) == (False, 0)
                for _ in range(20):
                    result = await dispatcher.execute("lost", {"text": "gone"}, timeout=10)
                    assert result.error is not None
                    assert result.error.type == "no-such-namespace"
                    assert result.duration < 5, "at once, not after its timeout"
                await asyncio.to_thread(admin.ensure_namespace, namespace)
                async with asyncio.timeout(60):
                    while not (await dispatcher.execute("lost", {"text": "again"}, timeout=1)).ok:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                for number in range(20):
                    assert (await dispatcher.execute("lost", {"text": str(number)}, timeout=10)).text == str(number)
            assert dispatcher.pending_requests == 0
            assert [result.error for result in others.results if not result.ok] == []
            assert (transport_of(dispatcher).reconnects, transport.reconnects) == (0, 0), "it stayed up"  # type: ignore[attr-defined]
            assert len(others.results) > 50
    finally:
        # The namespace stays: when lookups race its second creation, the broker keeps the bundles of a namespace without
        # policies, and refuses to list its topics (412) although it serves them.
        await transport.close()
