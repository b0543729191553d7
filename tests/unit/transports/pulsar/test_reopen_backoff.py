"""What was set aside is tried again, ever less often."""

from __future__ import annotations

from dispatch.errors import TransportError
from dispatch.transports.base import RECONNECT_WAIT_S
from dispatch.transports.errors import unreachable
from dispatch.transports.pulsar.supervisor import FIRST_RETRY_S, LAST_RETRY_S, ReopenBackoff

ERROR = TransportError("no-such-namespace", "None.", may_have_run=False)


def test_it_is_tried_again_ever_less_often() -> None:
    aside: ReopenBackoff[str] = ReopenBackoff()
    now, tries = 0.0, []
    assert aside.record_failure("topic", ERROR, now)
    while now < 200:
        now += 0.25
        if aside.due(now) == ["topic"]:
            tries.append(now)
            assert not aside.record_failure("topic", ERROR, now)
    gaps = [later - sooner for sooner, later in zip([0.0, *tries], tries, strict=False)]
    assert gaps[:4] == [FIRST_RETRY_S, 1.0, 2.0, 4.0]
    assert gaps[-1] == LAST_RETRY_S


def test_what_is_open_again_begins_anew() -> None:
    aside: ReopenBackoff[str] = ReopenBackoff()
    assert not aside.forget("topic")
    for _ in range(5):
        aside.record_failure("topic", ERROR, 0.0)
    assert aside.error("topic", 0.0) is ERROR
    assert "topic" in aside
    assert aside.forget("topic")
    assert (len(aside), aside.error("topic", 0.0)) == (0, None)
    assert aside.record_failure("topic", ERROR, 10.0)
    assert aside.due(10.0 + FIRST_RETRY_S) == ["topic"]


def test_a_broker_that_gives_no_answer_is_asked_again_soon_however_often() -> None:
    aside: ReopenBackoff[str] = ReopenBackoff()
    for now in range(0, 100, 5):  # a try takes pulsar-client's 5 s
        aside.record_failure("topic", unreachable("pulsar://broker"), float(now))
        assert aside.due(now + FIRST_RETRY_S) == ["topic"]


def test_a_failed_broker_has_time_to_be_taken_over() -> None:
    error = TransportError("unauthorized", "The broker refused.", may_have_run=False)
    aside: ReopenBackoff[str] = ReopenBackoff(transient=("unauthorized",))
    aside.record_failure("topic", error, 0.0)
    aside.record_failure("topic", error, 1.0)
    assert aside.due(1.0 + FIRST_RETRY_S) == ["topic"]
    assert aside.error("topic", RECONNECT_WAIT_S - 1) is None
    assert aside.error("topic", RECONNECT_WAIT_S) is error
