"""Calls by tool, in bounded memory."""

from __future__ import annotations

from dispatch.search.search import MAX_TOOLS, UseCounter


def test_calls_are_counted_by_tool() -> None:
    uses = UseCounter()
    for tool in "aba":
        uses.record_call(tool)
    assert [uses.count_calls(tool) for tool in "abc"] == [2, 1, 0]


def test_the_least_used_tools_are_dropped() -> None:
    uses = UseCounter()
    for _ in range(2):
        uses.record_call("often")
    for number in range(3 * MAX_TOOLS):
        uses.record_call(f"tool-{number}")
        assert len(uses) <= MAX_TOOLS
    assert uses.count_calls("often") == 2
    assert uses.count_calls(f"tool-{3 * MAX_TOOLS - 1}") == 1
