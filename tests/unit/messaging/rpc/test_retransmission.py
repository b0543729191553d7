"""When to ask again, and when to give up."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.messaging.rpc.retransmission import MAX_INTERVAL_S, MIN_PATIENCE_S, MIN_UNANSWERED, Patience, Repair


def test_patience_follows_how_long_the_tool_takes() -> None:
    patience = Patience(0.25)
    assert patience.seconds == 0.25
    for _ in range(100):
        patience.learn(0.1)
    assert patience.seconds < 0.11
    for _ in range(100):
        patience.learn(0.001)
    assert patience.seconds == MIN_PATIENCE_S
    for _ in range(100):
        patience.learn(30.0)
    assert patience.seconds == 0.25, "never longer than it was told at first"


@given(st.lists(st.floats(0, 1e6)), st.floats(0.01, 60))
def test_patience_keeps_its_bounds(samples: list[float], first: float) -> None:
    patience = Patience(first)
    for sample in samples:
        patience.learn(sample)
    assert min(first, MIN_PATIENCE_S) <= patience.seconds <= first or not samples


def test_questions_that_nobody_answers_become_rarer_and_end() -> None:
    repair = Repair(100.0, 0.2, give_up=10.0)
    asked = []
    now = repair.next_at
    while repair.ask(now):
        asked.append(round(now - 100, 6))
        now = repair.next_at
    assert asked[:6] == [0.2, 0.25, 0.35, 0.55, 0.95, 1.75]
    assert 10 <= now - 100 < 11.1
    assert len(asked) == repair.transmissions - 1 == repair.unanswered > MIN_UNANSWERED


def test_an_instance_that_is_heard_of_elsewhere_is_not_given_up() -> None:
    repair = Repair(0.0, 0.2, give_up=1.0)
    now = 0.0
    for _ in range(50):
        now = repair.next_at
        assert repair.ask(now, alive_at=now - 0.5)
    assert not repair.ask(now + 2, alive_at=now)


def test_somebody_at_work_is_asked_ever_less_often() -> None:
    repair = Repair(0.0, 0.2, give_up=10.0)
    asked = []
    while (now := repair.next_at) < 60:
        assert repair.ask(now)
        asked.append(now)
        repair.heard(now)
    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert [round(gap, 6) for gap in gaps[:5]] == [0.4, 0.8, 1.6, 3.2, MAX_INTERVAL_S]
    assert max(gaps) == pytest.approx(MAX_INTERVAL_S)
    assert len(asked) < 20


def test_one_lost_question_is_no_reason_to_wait_for_long() -> None:
    repair = Repair(0.0, 0.2, give_up=10.0)
    repair.heard(5.0)
    assert repair.ask(repair.next_at)
    assert repair.next_at - (5.0 + 0.4) < 0.06


def test_a_missing_chunk_is_asked_for_soon_and_not_twice_at_once() -> None:
    repair = Repair(0.0, 0.25, give_up=10.0)
    repair.chunk(1.0)
    assert repair.next_at == 1.25
    assert repair.hurry(1.0)
    assert repair.next_at < 1.05
    assert not repair.hurry(1.02), "sooner than planned it is not"


def test_while_the_connection_is_down_time_says_nothing() -> None:
    repair = Repair(0.0, 0.2, give_up=1.0)
    for _ in range(100):
        repair.postpone(repair.next_at)
    assert repair.unanswered == 0
    now = repair.next_at
    assert repair.ask(now)
    assert repair.transmissions == 2
    assert repair.heard_at >= now - 0.1


@given(st.lists(st.sampled_from(["ask", "heard", "chunk", "hurry", "postpone"]), max_size=60), st.floats(0.05, 5))
def test_the_next_question_is_always_ahead_and_never_far(steps: list[str], patience: float) -> None:
    repair = Repair(0.0, patience, give_up=10.0)
    now = 0.0
    for step in steps:
        # A question that is due is asked; what else there is happens before.
        now = max(now, repair.next_at) if step in ("ask", "postpone") else min(now + 0.01, max(now, repair.next_at))
        match step:
            case "ask":
                if not repair.ask(now):
                    assert now - repair.heard_at >= 10
                    return
            case "heard":
                repair.heard(now)
            case "chunk":
                repair.chunk(now)
            case "hurry":
                repair.hurry(now)
            case _:
                repair.postpone(now)
        assert repair.next_at <= now + max(MAX_INTERVAL_S, patience)
        assert repair.next_at > now - 0.02
