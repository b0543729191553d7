"""A broker of other limits than usual: a smaller ``maxMessageSize``, namespaces that make no topics, and ones that go."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import dispatch
from dispatch.devtools.localbroker import Admin, Configuration, LocalBroker, create_namespaces
from dispatch.messaging.wire import MAX_MESSAGE_BYTES, PROPERTIES_BYTES
from dispatch.routing.discovery import SPREAD_S
from tests.helpers.catalogs import catalog_of, queues_of, unique_topic
from tests.helpers.dispatcher_and_service import UNGUARDED
from tests.helpers.echo_service import Echo
from tests.helpers.internals import tables_of, transport_of

pytestmark = pytest.mark.pulsar

MESSAGE_BYTES = 1024 * 1024
AT_ONCE_S = 5.0
"""Longer than a machine that is busy takes to say no, and a fraction of the timeout."""


@pytest.fixture(scope="module")
def small() -> Iterator[LocalBroker]:
    """A broker that takes messages of 1 MiB, and lets namespaces be deleted with what is in them."""
    settings = Configuration.settings
    with pytest.MonkeyPatch.context() as patch:
        more = {"maxMessageSize": str(MESSAGE_BYTES), "forceDeleteNamespaceAllowed": "true"}
        patch.setattr(Configuration, "settings", lambda self: settings(self) | more)
        broker = LocalBroker.start()
    with broker:
        create_namespaces(Admin(broker.web_url))
        yield broker


def ask_admin(broker: LocalBroker, method: str, path: str, body: Any = None) -> None:
    """What our own admin client has no need of."""
    request = urllib.request.Request(
        f"{broker.web_url}/admin/v2/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


def catalog_at(namespace: str) -> tuple[dispatch.Catalog, dict[str, str]]:
    queues = {
        "request_queue": f"non-persistent://{namespace}/request",
        "response_queue": f"non-persistent://{namespace}/response",
    }
    catalog = dispatch.Catalog.of(
        services=[{"id": "echo", **{key.replace("_", "-"): topic for key, topic in queues.items()}}],
        tools=[{"type": "tool-service", "name": "echo", "description": "Echoes.", "service": "echo"}],
    )
    return catalog, queues


class Answering(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        await asyncio.sleep(arguments.get("seconds", 0))
        return "x" * arguments.get("size", len(arguments.get("fill", "")))


async def at_once(dispatcher: dispatch.Dispatcher, **arguments: Any) -> dispatch.DispatchError:
    result = await dispatcher.execute("echo", arguments, timeout=20)
    assert result.error is not None
    assert result.duration < AT_ONCE_S, result.error
    return result.error


async def test_the_brokers_own_limit_is_kept_before_anything_is_sent(small: LocalBroker) -> None:
    topic, limit = unique_topic(), MESSAGE_BYTES - PROPERTIES_BYTES
    policy = dispatch.Policy(max_request_bytes=limit, max_response_bytes=limit)
    async with (
        dispatch.ToolServer(Answering(), small.service_url, service=topic),
        dispatch.connect(small.service_url, catalog_of(topic), policy=policy) as dispatcher,
    ):
        assert transport_of(dispatcher).max_message_bytes == limit
        assert len(await dispatcher.call("echo", {"size": limit - 1_000}, timeout=20)) == limit - 1_000
        assert await dispatcher.call("echo", {"fill": "y" * (limit - 1_000)}, timeout=20)
        error = await at_once(dispatcher, fill="y" * limit)
        assert (type(error), error.type) == (dispatch.InvalidArgumentsError, "request-too-large")
        assert f"the limit is {limit:,}" in error.message
        assert len(await dispatcher.call("echo", {"size": limit}, timeout=20)) == limit, (
            "without JSON around it, it fits"
        )
        error = await at_once(dispatcher, size=limit + 1)
        assert (type(error), error.type) == (dispatch.TransportError, "response-limit-exceeded")
        assert (error.may_have_run, error.retryable) == (True, False)
        assert "'max-response-bytes'" in error.message


async def test_in_parts_the_brokers_own_limit_is_none(small: LocalBroker) -> None:
    topic, size = unique_topic(), 4 * MESSAGE_BYTES
    async with (
        dispatch.ToolServer(Answering(), small.service_url, service=topic),
        dispatch.connect(small.service_url, catalog_of(topic)) as dispatcher,
    ):
        for letter in ("y", "\x01"):  # the second is six bytes on the wire
            assert await dispatcher.call("echo", {"fill": letter * size}, timeout=20) == "x" * size


async def test_what_the_broker_refuses_for_its_size_is_an_error_at_once(small: LocalBroker) -> None:
    topic = unique_topic()
    request_queue, response_queue = queues_of(topic, "persistent")  # a session sends it in fragments
    async with (
        dispatch.ToolServer(Answering(), small.service_url, request_queue=request_queue, response_queue=response_queue),
        dispatch.connect(small.service_url, catalog_of(topic, scheme="persistent")) as dispatcher,
    ):
        await dispatcher.call("echo", timeout=20)
        # As if the broker had said nothing of its limit, or another one took over.
        transport_of(dispatcher).max_message_bytes = MAX_MESSAGE_BYTES  # type: ignore[misc]
        error = await at_once(dispatcher, fill="y" * 2 * MESSAGE_BYTES)
        assert isinstance(error, dispatch.TransportError)
        assert (error.type, error.may_have_run, error.retryable) == ("request-too-large", False, False)
        assert "was not executed" in error.message
        assert await dispatcher.call("echo", {"size": 3}, timeout=20) == "xxx", "the others do not notice"


async def test_a_namespace_that_makes_no_topics_is_named_with_the_command_that_lets_it(small: LocalBroker) -> None:
    namespace = f"tg/{unique_topic('still')}"
    await asyncio.to_thread(Admin(small.web_url).ensure_namespace, namespace)
    await asyncio.to_thread(
        ask_admin, small, "POST", f"namespaces/{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False}
    )
    catalog, queues = catalog_at(namespace)
    async with dispatch.connect(small.service_url, catalog) as dispatcher:
        error = await at_once(dispatcher)
        assert isinstance(error, dispatch.TransportError)
        assert error.may_have_run is False
        assert f"set-auto-topic-creation -e -t non-partitioned {namespace}" in error.message
    with pytest.raises(dispatch.TransportError, match="set-auto-topic-creation"):
        await dispatch.serve(Echo(), small.service_url, **queues)


async def test_a_session_whose_packet_exceeds_the_limit_ends_and_the_next_one_keeps_it(small: LocalBroker) -> None:
    topic, limit = unique_topic(), MESSAGE_BYTES - PROPERTIES_BYTES
    async with (
        dispatch.ToolServer(Answering(), small.service_url, service=topic),
        dispatch.connect(small.service_url, catalog_of(topic), policy=dispatch.Policy(**UNGUARDED)) as dispatcher,
    ):
        # As if the broker had been started again with a lower limit while the session was open.
        transport_of(dispatcher).max_message_bytes = MAX_MESSAGE_BYTES  # type: ignore[misc]
        async with asyncio.timeout(20):
            while not any(session.is_open for table in tables_of(dispatcher) for session in table.sessions.values()):
                await dispatcher.call("echo", timeout=20)
        await asyncio.sleep(SPREAD_S)  # until then a few calls at once: further instances may announce themselves
        fills = ["y" * 60_000] * 4 + ["y" * 2 * MESSAGE_BYTES]  # small ones and a fragment share a packet
        results = await asyncio.gather(*(dispatcher.execute("echo", {"fill": fill}, timeout=20) for fill in fills))
        assert all(result.duration < AT_ONCE_S for result in results)
        assert {result.error.type for result in results if result.error is not None} == {"instance-lost"}
        assert transport_of(dispatcher).max_message_bytes == limit
        results = await asyncio.gather(*(dispatcher.execute("echo", {"fill": fill}, timeout=20) for fill in fills))
        assert [result.text for result in results] == ["x" * len(fill) for fill in fills]


async def test_calls_after_the_namespace_was_deleted_fail_at_once(small: LocalBroker) -> None:
    namespace = f"tg/{unique_topic('gone')}"
    await asyncio.to_thread(Admin(small.web_url).ensure_namespace, namespace)
    catalog, queues = catalog_at(namespace)
    other = unique_topic()
    async with (
        dispatch.ToolServer(Answering(), small.service_url, **queues) as server,
        dispatch.connect(small.service_url, catalog, policy=dispatch.Policy(**UNGUARDED)) as dispatcher,
        dispatch.ToolServer(Echo(), small.service_url, service=other),
        dispatch.connect(small.service_url, catalog_of(other)) as elsewhere,
    ):
        await dispatcher.call("echo", {"text": "there"}, timeout=20)
        await elsewhere.call("echo", {"text": "there"}, timeout=20)
        waiting = asyncio.create_task(dispatcher.execute("echo", {"seconds": 60}, timeout=40))
        while not server.running:  # noqa: ASYNC110 # the server has no event for it
            await asyncio.sleep(0.01)
        await asyncio.to_thread(ask_admin, small, "DELETE", f"namespaces/{namespace}?force=true")
        deleted_at = asyncio.get_running_loop().time()
        # pulsar-client is given a moment to reconnect. What is called meanwhile left, and its instance does not answer.
        result = await dispatcher.execute("echo", {"text": "gone"}, timeout=20)
        assert isinstance(result.error, dispatch.TransportError)
        assert (result.error.type, result.error.may_have_run) in (("instance-lost", True), ("no-such-namespace", False))
        assert result.duration < 6, "neither the timeout nor the time after which sessions are given up otherwise"
        result = await waiting
        assert isinstance(result.error, dispatch.TransportError)
        assert (result.error.type, result.error.may_have_run) == ("instance-lost", True)
        assert asyncio.get_running_loop().time() - deleted_at < 8, "likewise"
        for _ in range(3):
            error = await at_once(dispatcher, text="gone")
            assert isinstance(error, dispatch.TransportError)
            assert (error.type, error.may_have_run) == ("no-such-namespace", False)
        assert f"namespaces create {namespace}" in error.message
        assert await elsewhere.call("echo", {"text": "still there"}, timeout=20) == "still there"


async def test_that_nobody_listens_is_nothing_a_broker_says(small: LocalBroker) -> None:
    """What docs/explanation/delivery.md says of it: its receipt is as good as any, so that only the timeout tells."""
    topic = unique_topic()
    async with dispatch.connect(small.service_url, catalog_of(topic)) as dispatcher:
        async with asyncio.timeout(20):
            while (error := (await dispatcher.execute("echo", timeout=3)).error) and error.type == "unreachable":
                pass  # a broker that has just started takes longer than that to open its first topics
        assert isinstance(error, dispatch.CallTimeoutError), "the day a broker says it, this can be an error at once"
    ours = dispatch.Policy(known_instances_only=True)
    async with dispatch.connect(small.service_url, catalog_of(topic), policy=ours) as dispatcher:
        error = (await dispatcher.execute("echo", timeout=1)).error
        assert isinstance(error, dispatch.RejectedError)
        assert error.type == "no-instance"
        async with dispatch.ToolServer(Echo(), small.service_url, service=topic) as server:
            assert await dispatcher.call("echo", {"text": "there"}, timeout=20) == "there"
            await server.drain()
            async with asyncio.timeout(20):
                while (error := (await dispatcher.execute("echo", timeout=1)).error) and error.type == "draining":
                    pass  # its farewell is on its way still
            assert error is not None
            assert error.type == "no-instance"
