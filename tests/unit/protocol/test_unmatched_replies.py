"""Replies to requests that have ended: late, or repeated."""

from __future__ import annotations

from dispatch.protocol.unmatched_replies import MAX_GIVEN_UP, UnmatchedReplies


def test_a_reply_to_a_request_that_was_given_up_is_late_once() -> None:
    unmatched = UnmatchedReplies()
    unmatched.record_given_up(7)
    unmatched.record_frame(7, is_last=False)
    unmatched.record_frame(7, is_last=True)
    assert (unmatched.late, unmatched.repeated, len(unmatched)) == (2, 0, 0)
    unmatched.record_frame(7, is_last=True)
    assert (unmatched.late, unmatched.repeated) == (2, 1)


def test_a_reply_to_any_other_request_is_repeated() -> None:
    unmatched = UnmatchedReplies()
    unmatched.record_frame(7, is_last=False)
    unmatched.record_given_up(8)
    unmatched.clear()
    unmatched.record_frame(8, is_last=True)
    assert (unmatched.late, unmatched.repeated, len(unmatched)) == (0, 2, 0)


def test_the_oldest_of_too_many_is_forgotten() -> None:
    unmatched = UnmatchedReplies()
    for stream in range(MAX_GIVEN_UP + 1):
        unmatched.record_given_up(stream)
    assert len(unmatched) == MAX_GIVEN_UP
    unmatched.record_frame(0, is_last=True)
    unmatched.record_frame(1, is_last=True)
    unmatched.record_frame(MAX_GIVEN_UP, is_last=True)
    assert (unmatched.late, unmatched.repeated) == (2, 1)
