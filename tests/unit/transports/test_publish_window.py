"""The publish window: never more outstanding than allowed, fair between flows, bounded, and exact in its books."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch.transports.base import PublishWindow, QueueFullError
from tests.helpers.state_machine_settings import machine


def window(size: int = 2, max_queued: int = 10, max_queued_bytes: int = 100) -> PublishWindow[str]:
    return PublishWindow(size, max_queued, max_queued_bytes)


def test_what_fits_goes_at_once_and_the_rest_waits() -> None:
    w = window(size=2)
    assert [w.offer("tool", str(n), 1) for n in range(4)] == [True, True, False, False]
    assert (w.outstanding, w.queued, w.queued_bytes) == (2, 2, 2)
    assert w.pop_queued() is None, "the window is full"
    w.settle()
    assert w.pop_queued() == "2"
    assert (w.outstanding, w.queued) == (2, 1)


def test_nobody_overtakes_those_who_wait() -> None:
    w = window(size=1)
    w.offer("a", "1", 1)
    w.offer("a", "2", 1)
    w.settle()
    assert w.offer("b", "3", 1) is False, "the window has capacity, but other items are queued"
    assert [w.pop_queued(), w.pop_queued()] == ["2", None]


def test_a_busy_flow_does_not_keep_the_others_waiting() -> None:
    w = window(size=1, max_queued=100)
    w.offer("", "out", 1)
    for n in range(20):
        w.offer("busy", f"busy {n}", 1)
    for flow in ("b", "c"):
        for n in range(2):
            w.offer(flow, f"{flow} {n}", 1)
    taken = []
    for _ in range(8):
        w.settle()
        taken.append(w.pop_queued())
    assert taken == ["busy 0", "b 0", "c 0", "busy 1", "b 1", "c 1", "busy 2", "busy 3"]


def test_a_queue_full_of_messages_takes_no_more() -> None:
    w = window(size=1, max_queued=2)
    for n in range(3):
        w.offer("tool", str(n), 1)
    with pytest.raises(QueueFullError):
        w.offer("other", "x", 1)
    assert (w.queued, w.queued_bytes, w.waiting("other")) == (2, 2, False)
    w.settle()
    w.pop_queued()
    assert w.offer("other", "x", 1) is False


def test_a_queue_full_of_bytes_takes_no_more() -> None:
    w = window(size=1, max_queued_bytes=10)
    w.offer("tool", "out", 1_000)  # what goes at once is not in the queue
    w.offer("tool", "a", 6)
    with pytest.raises(QueueFullError):
        w.offer("tool", "b", 5)
    assert w.offer("tool", "c", 4) is False
    assert (w.queued, w.queued_bytes) == (2, 10)


def test_holding_queues_even_if_there_is_room() -> None:
    w = window(size=2)
    w.hold("tool", "a", 3)
    assert (w.outstanding, w.queued, w.queued_bytes) == (0, 1, 3)
    assert w.pop_queued() == "a"
    assert (w.outstanding, w.queued, w.queued_bytes) == (1, 0, 0)


def test_what_waits_can_be_withdrawn_and_what_is_out_cannot() -> None:
    w = window(size=1)
    for item in "abcd":
        w.offer("tool", item, 2)
    assert not w.withdraw("tool", "a"), "it is out"
    assert not w.withdraw("other", "b")
    assert w.withdraw("tool", "c")
    assert not w.withdraw("tool", "c")
    assert (w.outstanding, w.queued, w.queued_bytes) == (1, 2, 4)
    w.settle()
    assert w.pop_queued() == "b"
    assert w.withdraw("tool", "d")
    assert not w.waiting("tool")
    assert (w.queued, w.queued_bytes) == (0, 0)


def test_waiting_tells_of_one_flow_only() -> None:
    w = window(size=1)
    w.offer("a", "1", 1)
    assert not w.waiting("a"), "it is out, it does not wait"
    w.offer("a", "2", 1)
    assert (w.waiting("a"), w.waiting("b")) == (True, False)


def test_draining_empties_the_queue_and_leaves_what_is_out() -> None:
    w = window(size=1)
    for item in "abc":
        w.offer(item, item, 1)
    assert w.drain() == ["b", "c"]
    assert (w.outstanding, w.queued, w.queued_bytes) == (1, 0, 0)
    assert w.drain() == []
    w.settle()
    assert w.offer("a", "d", 1), "the window works on"


def test_more_than_is_out_cannot_be_settled() -> None:
    w = window(size=3)
    w.offer("a", "1", 1)
    w.offer("a", "2", 1)
    with pytest.raises(ValueError, match="3 settled, but only 2 outstanding"):
        w.settle(3)
    w.settle(2)
    assert w.outstanding == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_needs_at_least_one_message(size: int) -> None:
    with pytest.raises(ValueError, match="at least one message"):
        window(size=size)


class WindowMachine(RuleBasedStateMachine):
    """The window against the plainest model of itself: a list of queues."""

    SIZE, QUEUED, BYTES = 3, 6, 20

    def __init__(self) -> None:
        super().__init__()
        self.window: PublishWindow[int] = PublishWindow(self.SIZE, self.QUEUED, self.BYTES)
        self.flows: list[tuple[str, deque[tuple[int, int]]]] = []
        self.out: set[int] = set()
        self.count = 0

    def _queued(self) -> list[tuple[int, int]]:
        return [item for _, waiting in self.flows for item in waiting]

    @rule(flow=st.sampled_from("abc"), size=st.integers(1, 8), hold=st.booleans())
    def offer(self, flow: str, size: int, hold: bool) -> None:
        self.count += 1
        item = self.count
        queued = self._queued()
        goes = not hold and not queued and len(self.out) < self.SIZE
        full = len(queued) >= self.QUEUED or sum(s for _, s in queued) + size > self.BYTES
        try:
            went: bool | None = self.window.hold(flow, item, size) if hold else self.window.offer(flow, item, size)  # type: ignore[func-returns-value]
        except QueueFullError:
            assert full
            assert not goes
            return
        assert bool(went) == goes
        if goes:
            self.out.add(item)
            return
        assert not full
        for name, waiting in self.flows:
            if name == flow:
                waiting.append((item, size))
                return
        self.flows.append((flow, deque([(item, size)])))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def settle(self, data: Any) -> None:
        self.out.remove(data.draw(st.sampled_from(sorted(self.out))))
        self.window.settle()

    @rule()
    def take(self) -> None:
        taken = self.window.pop_queued()
        if not self.flows or len(self.out) >= self.SIZE:
            assert taken is None
            return
        flow, waiting = self.flows.pop(0)
        assert taken == waiting.popleft()[0]
        self.out.add(taken)
        if waiting:
            self.flows.append((flow, waiting))

    @rule(flow=st.sampled_from("abc"), back=st.integers(0, 8))
    def withdraw(self, flow: str, back: int) -> None:
        item = self.count - back
        for name, waiting in self.flows:
            if name == flow and (found := next((w for w in waiting if w[0] == item), None)) is not None:
                assert self.window.withdraw(flow, item)
                waiting.remove(found)
                self.flows = [(n, w) for n, w in self.flows if w]
                return
        assert not self.window.withdraw(flow, item)

    @rule()
    def drain(self) -> None:
        assert sorted(self.window.drain()) == sorted(item for item, _ in self._queued())
        self.flows = []

    @invariant()
    def the_books_are_right(self) -> None:
        queued = self._queued()
        assert self.window.outstanding == len(self.out) <= self.SIZE
        assert self.window.queued == len(queued) <= self.QUEUED
        assert self.window.queued_bytes == sum(size for _, size in queued) <= self.BYTES
        for flow in "abc":
            assert self.window.waiting(flow) == any(name == flow for name, _ in self.flows)


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = machine(60, 40)
