"""What a genuine broker refuses becomes a typed error that names the fix, at once."""

from __future__ import annotations

import asyncio

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch import Security
from dispatch.devtools.localbroker import find_free_ports
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.echo_service import Echo
from tests.helpers.secured_broker import SUPER_USER, SecuredBroker

pytestmark = pytest.mark.pulsar


def catalog_at(request_queue: str, response_queue: str) -> dispatch.Catalog:
    return dispatch.Catalog.of(
        services=[{"id": "echo-service", "request-queue": request_queue, "response-queue": response_queue}],
        tools=[{"type": "tool-service", "name": "echo", "description": "Echoes.", "service": "echo-service"}],
    )


@pytest.mark.parametrize(
    ("request_queue", "response_queue", "missing"),
    [
        ("non-persistent://nobody/request/echo", "non-persistent://tg/response/echo", "nobody/request"),
        ("non-persistent://tg/nowhere/echo", "non-persistent://tg/response/echo", "tg/nowhere"),
        ("non-persistent://tg/request/echo", "persistent://tg/nowhere/echo", "tg/nowhere"),
    ],
)
async def test_a_missing_tenant_or_namespace_is_named_with_the_command_that_makes_it(
    pulsar_endpoint: Endpoint, request_queue: str, response_queue: str, missing: str
) -> None:
    async with dispatch.connect(pulsar_endpoint.service_url, catalog_at(request_queue, response_queue)) as dispatcher:
        result = await dispatcher.execute("echo", timeout=20)
        error = result.error
        assert isinstance(error, dispatch.TransportError)
        assert (error.type, error.may_have_run) == ("no-such-namespace", False)
        assert f"pulsar-admin namespaces create {missing}" in error.message
        assert result.attempts == 0
        # A service says the same at its start.
        with pytest.raises(dispatch.TransportError, match=f"namespaces create {missing}"):
            await dispatch.serve(
                Echo(), pulsar_endpoint.service_url, request_queue=request_queue, response_queue=response_queue
            )


async def test_the_namespace_can_be_made_later(pulsar_endpoint: Endpoint) -> None:
    name = unique_topic("ns")
    queues = (f"non-persistent://tg/{name}/request", f"non-persistent://tg/{name}/response")
    async with dispatch.connect(pulsar_endpoint.service_url, catalog_at(*queues)) as dispatcher:
        assert not (await dispatcher.execute("echo", timeout=20)).ok
        await asyncio.to_thread(pulsar_endpoint.admin().ensure_namespace, f"tg/{name}")
        async with dispatch.ToolServer(
            Echo(), pulsar_endpoint.service_url, request_queue=queues[0], response_queue=queues[1]
        ):
            assert await dispatcher.call("echo", {"text": "now"}, timeout=20) == "now"


async def test_no_broker_is_an_error_at_connect(pulsar_endpoint: Endpoint) -> None:
    (port,) = find_free_ports(1)
    url = f"pulsar://127.0.0.1:{port}"
    with pytest.raises(dispatch.TransportError, match="dispatch broker start") as caught:
        async with dispatch.connect(url):
            raise AssertionError("it must not get here")
    assert (caught.value.type, caught.value.may_have_run) == ("unreachable", False)
    assert url in caught.value.message


async def test_token_and_tls(secured_broker: SecuredBroker) -> None:
    broker = secured_broker
    right = broker.token(SUPER_USER)
    topic = unique_topic()
    trusted = {"trust_certs": broker.ca_file}
    good = Security(token=lambda: right, **trusted)
    async with dispatch.ToolServer(Echo(), broker.service_url_tls, service=topic, security=good):
        async with dispatch.connect(broker.service_url_tls, catalog_of(topic), security=good) as dispatcher:
            assert await dispatcher.call("echo", {"text": "over TLS"}, timeout=20) == "over TLS"
        stranger = broker.token("stranger")
        refused = (
            ("unauthorized", broker.service_url, Security(token="not-a-token")),
            ("unauthorized", broker.service_url, Security()),
            ("unauthorized", broker.service_url_tls, Security(token=stranger, **trusted)),
            ("untrusted", broker.service_url_tls, Security(token=right)),
            # The wrong port: plain to where TLS is spoken, and the other way round.
            ("wrong-protocol", broker.service_url_tls.replace("+ssl", ""), Security(token=right)),
            ("wrong-protocol", broker.service_url.replace("://", "+ssl://"), Security(token=right, **trusted)),
        )
        for type, url, security in refused:
            with pytest.raises(dispatch.TransportError) as caught:
                async with dispatch.connect(url, catalog_of(topic), security=security) as dispatcher:
                    await dispatcher.call("echo", timeout=20)
            error = caught.value
            assert (error.type, error.may_have_run) == (type, False), (url, error.message)
            fix = {"unauthorized": "DISPATCH_TOKEN", "untrusted": "--trust-certs", "wrong-protocol": "TLS"}[type]
            assert fix in error.message
            assert "not-a-token" not in repr(security) + error.message
