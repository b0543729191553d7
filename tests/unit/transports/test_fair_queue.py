"""The fair queue by itself; under a window: transports/test_publish_window.py; against a model: model/test_fair_queue.py."""

from __future__ import annotations

import pytest

from dispatch.transports.base import FairQueue, QueueFullError


def queue(*items: str, max_items: int = 10, max_bytes: int = 100) -> FairQueue[str]:
    """A queue of items like ``a1``: flow ``a``, one byte each."""
    made: FairQueue[str] = FairQueue(max_items, max_bytes)
    for item in items:
        made.put(item[0], item, 1)
    return made


def test_flows_take_turns_and_each_keeps_its_order() -> None:
    made = queue("a1", "a2", "a3", "b1", "c1", "b2")
    assert [made.pop() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]
    assert (len(made), made.bytes) == (0, 0)


def test_a_flow_that_comes_back_goes_to_the_end() -> None:
    made = queue("a1", "b1")
    made.pop()
    made.put("a", "a2", 1)
    assert [made.pop(), made.pop()] == ["b1", "a2"]


def test_bounds_are_exact_in_items_and_in_bytes() -> None:
    made = queue("a1", "a2", max_items=2)
    with pytest.raises(QueueFullError):
        made.put("b", "b1", 1)
    made = queue("a1", max_bytes=3)
    with pytest.raises(QueueFullError):
        made.put("b", "b1", 3)
    made.put("b", "b1", 2)
    assert (len(made), made.bytes) == (2, 3)


def test_what_is_withdrawn_is_gone_and_leaves_no_empty_flow() -> None:
    made = queue("a1", "b1", "b2")
    assert made.remove("a", "a1")
    assert not made.remove("a", "a1")
    assert not made.remove("b", "a1")
    assert not made.has_flow("a")
    assert made.remove("b", "b1")
    assert made.has_flow("b")
    assert (len(made), made.bytes) == (1, 1)
    assert [made.pop(), made.pop()] == ["b2", None]


def test_clearing_gives_everything_back() -> None:
    made = queue("a1", "b1", "a2")
    assert sorted(made.clear()) == ["a1", "a2", "b1"]
    assert (len(made), made.bytes, made.pop(), made.has_flow("a")) == (0, 0, None, False)
