"""The transport of a client or service of dispatch, with the loss of messages that the spec asks for."""

from __future__ import annotations

from benchmarks.workers.channel import Spec
from dispatch.testing import Faults, FaultyTransport
from dispatch.transports import Security, Transport, open_transport


def open_lossy_transport(spec: Spec) -> Transport:
    """Return a transport, not yet started, that loses the share ``spec.drop`` of the messages that arrive.

    With one on either side, that share is lost each way.
    """
    transport = open_transport(spec.url, security=Security(token=spec.token))
    if not spec.drop:
        return transport
    # The seed depends on the topic: client and service, and the services of one suite, lose other messages.
    return FaultyTransport(transport, Faults(drop=spec.drop, direction="in", seed=sum(spec.request.encode())))
