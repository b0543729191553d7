"""The local broker imports nothing of dispatch, so that it repeats two of its defaults; here they are compared."""

from __future__ import annotations

from dispatch.devtools.localbroker.admin import DEFAULT_NAMESPACES
from dispatch.devtools.localbroker.detached_broker import DEFAULT_PORT
from dispatch.messaging.wire.topics import REQUEST_NAMESPACE, RESPONSE_NAMESPACE
from dispatch.transports.pulsar.service_url import DEFAULT_PORTS


def test_the_local_broker_has_what_dispatch_looks_for() -> None:
    assert DEFAULT_PORTS["pulsar"] == DEFAULT_PORT
    assert {REQUEST_NAMESPACE, RESPONSE_NAMESPACE} <= set(DEFAULT_NAMESPACES)
