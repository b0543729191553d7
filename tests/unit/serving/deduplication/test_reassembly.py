"""Requests in parts, at the service: whole and once, and nothing is kept of what never becomes whole."""

from __future__ import annotations

import pytest

from dispatch.messaging.wire.fragments import JOIN_IDLE_S, part_at, write_parts
from dispatch.messaging.wire.properties import Property
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import Peer, Service, serving
from tests.helpers.session import REPLY_TOPIC, from_peer, request_id


def told(arguments: dict[str, object]) -> str:
    return str(arguments)


@pytest.mark.parametrize(
    "odd",
    [
        {"parts": "x"},
        {"parts": "0/0"},
        {"parts": "2/10", "part": "x"},
        {"parts": "2/10", "part": "2"},
        {"parts": "2/10", "part": "0"},
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_kept(odd: dict[str, str]) -> None:
    topic = REPLY_TOPIC
    service = Service(told)
    async with serving(service) as server, Peer.as_caller(topic) as peer:
        assert server._replies is not None
        assert server._recall is not None
        await peer.send(server._replies.control, b"1234", from_peer(1, **odd))
        assert (await peer.arrived.get()).properties()[Property.REFUSED] == "invalid-request"
        assert (len(server._recall.gathering), service.requests) == (0, [])


async def test_what_was_not_heard_of_for_a_while_may_begin_again() -> None:
    topic = REPLY_TOPIC
    service = Service(told)
    payload = b'{"arguments":"{}"}'
    async with serving(service) as server, Peer.as_caller(topic) as peer:
        assert server._replies is not None
        properties = from_peer(1, parts=write_parts(2, len(payload)), ack="1")

        async def part(index: int) -> None:
            start, end = part_at(index, 2, len(payload))
            await peer.send(server._replies.control, payload[start:end], properties | {"part": str(index)})  # type: ignore[union-attr]

        await part(0)
        await advance(JOIN_IDLE_S + 1)
        await part(1)
        await idle()
        assert service.requests == []
        await peer.send(server._replies.control, b"", properties | {"transmission": "2"})
        await idle()
        said = [peer.arrived.get_nowait().properties() for _ in range(3)]
        assert [(each.get("part"), each.get("missing")) for each in said] == [("0", None), ("1", None), (None, "0")]
        await part(0)
        await part(0)
        await part(1)
        await idle()
        assert len(service.requests) == 1


async def test_only_an_acknowledgement_that_is_asked_for_is_sent() -> None:
    topic = REPLY_TOPIC
    async with serving(Service(told)) as server, Peer.as_caller(topic) as peer:
        assert server._replies is not None
        properties = from_peer(1, parts="3/9")
        await peer.send(server._replies.control, b"123", properties | {"part": "0"})
        await peer.send(server._replies.control, b"456", properties | {"part": "1", "ack": "1"})
        await idle()
        assert peer.arrived.get_nowait().properties() == {"id": request_id(1), "taken": "1", "part": "1"}
        assert peer.arrived.empty()


async def test_a_late_copy_of_a_part_runs_nothing_and_gets_its_acknowledgement() -> None:
    topic = REPLY_TOPIC
    service = Service(lambda _: "done")
    payload = b'{"arguments":"{}"}'
    async with serving(service) as server, Peer.as_caller(topic) as peer:
        assert server._replies is not None
        properties = from_peer(1, parts=write_parts(2, len(payload)), ack="1")
        for index in (0, 1, 0, 1):
            start, end = part_at(index, 2, len(payload))
            await peer.send(server._replies.control, payload[start:end], properties | {"part": str(index)})
            await idle()
        assert len(service.requests) == 1
        said = [peer.arrived.get_nowait().properties() for _ in range(5)]
        assert [(each.get("taken"), each.get("part")) for each in said] == [
            ("1", "0"),
            ("1", None),  # complete
            (None, None),  # the answer
            ("1", "0"),
            ("1", "1"),
        ]


async def test_a_caller_that_has_no_topic_of_its_own_is_told_nothing_that_would_confuse_others() -> None:
    """Nobody of ours does that; and the response topic is everybody's."""
    async with serving(Service(told)) as server, Peer.as_caller() as peer:
        assert server._replies is not None
        properties = from_peer(1, "non-persistent://else/where/mine", parts="3/9", ack="1")
        await peer.send(server._replies.control, b"123", properties | {"part": "0"})
        await idle()
        assert peer.arrived.empty()
