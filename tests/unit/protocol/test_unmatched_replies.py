"""Replies to requests that have ended: late, or repeated."""

from __future__ import annotations

import pytest

from dispatch.protocol.frames import Chunk, End, Refused, Reply
from dispatch.protocol.session import MAX_GIVEN_UP, UnmatchedReplies


def reply(stream: int) -> Reply:
    return Reply(stream, 0, b"")


@pytest.mark.parametrize("last", [reply(7), End(7, 1, 0, b""), Refused(7, "stopped", -1)])
def test_a_reply_to_a_request_that_was_given_up_is_late_once(last: Reply | End | Refused) -> None:
    unmatched = UnmatchedReplies()
    unmatched.record_given_up(7)
    unmatched.record_frame(Chunk(7, 0, b""))
    unmatched.record_frame(last)
    assert (unmatched.late, unmatched.repeated, len(unmatched)) == (2, 0, 0)
    unmatched.record_frame(last)
    assert (unmatched.late, unmatched.repeated) == (2, 1)


def test_a_reply_to_any_other_request_is_repeated() -> None:
    unmatched = UnmatchedReplies()
    unmatched.record_frame(Chunk(7, 0, b""))
    unmatched.record_given_up(8)
    unmatched.clear()
    unmatched.record_frame(reply(8))
    assert (unmatched.late, unmatched.repeated, len(unmatched)) == (0, 2, 0)


def test_the_oldest_of_too_many_is_forgotten() -> None:
    unmatched = UnmatchedReplies()
    for stream in range(MAX_GIVEN_UP + 1):
        unmatched.record_given_up(stream)
    assert len(unmatched) == MAX_GIVEN_UP
    for stream in (0, 1, MAX_GIVEN_UP):
        unmatched.record_frame(reply(stream))
    assert (unmatched.late, unmatched.repeated) == (2, 1)
