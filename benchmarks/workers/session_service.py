"""The session protocol and its endpoint alone, without the tool server: answers each request at once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.workers.channel import Report, Spec, run_service
from benchmarks.workers.execution_counter import ExecutionCounter
from benchmarks.workers.lossy_transport import open_lossy_transport
from dispatch.messaging.endpoint import Endpoint, ReplyPermission
from dispatch.messaging.wire import instance_topic
from dispatch.protocol import CalleeSession, Session, SessionTable
from dispatch.protocol.events import Event, RequestReceived
from dispatch.transports import Mode

INSTANCE = "bench"
LARGE = b"large"
"""Payload of a request for the large answer."""


def report(table: SessionTable, counter: ExecutionCounter | None) -> dict[str, int]:
    """Return the service's counters. A probe is a copy of a packet that may have been lost."""
    statistics = [session.statistics for session in table.sessions.values()]
    return {
        **({} if counter is None else {"repeated": counter.repeated}),
        "packets": sum(each.packets_sent for each in statistics),
        "retransmissions": sum(each.retransmissions + each.probes for each in statistics),
    }


@asynccontextmanager
async def serve(spec: Spec) -> AsyncIterator[Report]:
    """Start the service."""
    answer, large_answer = spec.text.encode(), spec.large_text.encode()
    counter = ExecutionCounter()

    def on_events(session: Session, events: list[Event]) -> None:
        assert isinstance(session, CalleeSession)
        for event in events:
            if isinstance(event, RequestReceived):
                session.consume(len(event.payload))
                if spec.is_counting:
                    counter.record(int(event.payload))
                session.send_reply(event.number, large_answer if event.payload == LARGE else answer)
        endpoint.wake(session)

    inbox = instance_topic(spec.request, INSTANCE)
    table = SessionTable(
        INSTANCE,
        os.urandom(8).hex(),
        [inbox],
        random_bytes=os.urandom,
        may_reply_to=ReplyPermission(spec.response),
    )
    transport = open_lossy_transport(spec)
    await transport.start()
    endpoint = Endpoint(transport, table, on_events)
    subscription = await transport.subscribe(
        inbox, lambda message: endpoint.receive_packet(message.data()), mode=Mode.FANOUT, name="dispatch-bench"
    )
    try:
        yield lambda: report(table, counter if spec.is_counting else None)
    finally:
        await endpoint.close()
        await subscription.close()
        await transport.close()


if __name__ == "__main__":
    run_service(serve)
