"""Requests to a fast service wait for its replies."""

from __future__ import annotations

import pytest

from dispatch.messaging.flow import LATE_S, NOTED_BYTES, Pace, PacedPublisher, ReplyWindow
from dispatch.transports import Ticket
from tests.helpers.clock import advance, virtual_loop
from tests.helpers.fakes import FakePublisher

REPLY = 40_000
"""Bytes of a reply, of which two may be outstanding."""


class Requests:
    """Requests to a service that has replied to some at once."""

    def __init__(self, *, waits_in_client: bool = False) -> None:
        self.inner = FakePublisher(queueing=waits_in_client)
        self.replies = ReplyWindow()
        for number in range(100):
            self.replies.send(str(number), virtual_loop().time())
            self.reply(str(number))
        self.publisher = PacedPublisher(self.inner, Pace(rate=1e12), self.replies)

    def send(self, *names: str, size: int = 100) -> list[Ticket]:
        payload = b"x" * size
        return [
            self.publisher.publish(payload, {"id": name}, flow=name, on_failure=lambda _error: None) for name in names
        ]

    def reply(self, name: str) -> None:
        self.replies.receive(name, REPLY, virtual_loop().time())

    @property
    def out(self) -> str:
        return "".join(ticket.properties["id"] for ticket in self.inner.sent)


@pytest.mark.parametrize("size", [100, 2 * NOTED_BYTES])
async def test_a_request_waits_for_a_reply_or_until_an_unanswered_one_counts_no_more(size: int) -> None:
    requests = Requests()
    requests.send(*"abcdef", size=size)
    assert requests.out == "ab"
    requests.reply("a")
    assert requests.out == "abc"
    await advance(LATE_S / 2)
    assert requests.out == "abc"
    await advance(LATE_S / 2)
    assert requests.out == "abcde"
    await requests.publisher.close()


async def test_publishers_of_one_response_topic_share_its_window() -> None:
    requests = Requests()
    other = FakePublisher()
    requests.send("a", "b")
    PacedPublisher(other, Pace(rate=1e12), requests.replies).publish(
        b"", {"id": "c"}, flow="c", on_failure=lambda _error: None
    )
    assert other.sent == []
    requests.reply("b")
    assert [ticket.properties["id"] for ticket in other.sent] == ["c"]


async def test_a_withdrawn_request_makes_way_for_the_next() -> None:
    requests = Requests(waits_in_client=True)
    first, *_ = requests.send("a", "b", "c")
    assert first.cancel()
    assert requests.out == "abc"


async def test_a_request_that_waits_and_is_withdrawn_did_not_count() -> None:
    requests = Requests()
    *_, third = requests.send("a", "b", "c")
    assert third.cancel()
    requests.reply("a")
    requests.send("d", "e")
    assert requests.out == "abd"
    await requests.publisher.close()


async def test_nothing_is_left_behind_after_the_end() -> None:
    requests = Requests()
    requests.send("a", "b", "c")
    await requests.publisher.close()
    requests.reply("a")
    assert requests.out == "ab"
    assert requests.replies.waiting == set()
