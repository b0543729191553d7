"""What may be repeated. Nobody else refuses this when the configuration loads: a retried or hedged tool that changes the
world changes it twice, and nobody knows until it has."""

from __future__ import annotations

from itertools import product

import pytest

from dispatch.catalog import ToolDescriptor
from dispatch.policy import UNDECLARED, Annotations, Declared, Policy, PolicyError, Retry, check_repeats, repeatable

ALL = [Annotations(*each) for each in product((False, True), (False, True), (None, False, True))]
ONCE, THRICE, HEDGED = Policy(retry=Retry(max_attempts=1)), Policy(retry=Retry(max_attempts=3)), Policy(hedging="p95")


def refused(tool: Declared, policy: Policy, *own: str) -> PolicyError | None:
    try:
        check_repeats(tool, policy, own)
    except PolicyError as error:
        return error
    return None


@pytest.mark.parametrize("tool", ALL)
def test_only_what_is_read_only_or_idempotent_may_run_twice_and_nothing_destructive(tool: Annotations) -> None:
    expected = tool in (
        Annotations(True, False, None),
        Annotations(True, False, False),
        Annotations(False, True, None),
        Annotations(False, True, False),
        Annotations(True, True, None),
        Annotations(True, True, False),
    )
    assert repeatable(tool) is expected


def test_of_what_declares_nothing_the_worse_is_assumed() -> None:
    assert Annotations(read_only=False, idempotent=False, destructive=None) == UNDECLARED
    assert not repeatable(UNDECLARED)


@pytest.mark.parametrize("tool", ALL)
def test_what_everybody_has_is_refused_to_nobody(tool: Annotations) -> None:
    assert refused(tool, Policy(retry=Retry(max_attempts=3), hedging="p95", single_flight=True)) is None


@pytest.mark.parametrize("tool", ALL)
def test_retries_that_a_destructive_tool_asks_for_are_refused(tool: Annotations) -> None:
    error = refused(tool, Policy(retry=Retry(max_attempts=2)), "retry")
    if not tool.destructive:
        assert error is None
        return
    assert error is not None
    assert error.key == "retry"
    assert error.problem == "the tool is declared 'destructive', and a retry may run it twice"
    assert error.fix == "leave 'retry' out: a request that was not executed is retried all the same"


@pytest.mark.parametrize("tool", ALL)
def test_who_asks_for_no_retries_is_not_refused(tool: Annotations) -> None:
    assert refused(tool, ONCE, "retry", "hedging", "single-flight") is None


@pytest.mark.parametrize("tool", ALL)
def test_a_hedge_of_its_own_is_for_what_may_run_twice(tool: Annotations) -> None:
    error = refused(tool, HEDGED, "hedging")
    if repeatable(tool):
        assert error is None
    elif tool.destructive:
        assert error is not None
        assert error.problem == "the tool is declared 'destructive', and a hedge runs it twice"
        assert error.fix == "write null for this tool"
    else:
        assert error is not None
        assert error.problem == "the tool is neither 'read-only' nor 'idempotent', and a hedge runs it twice"
        assert error.fix == "declare the tool so if it is so, or write null for this tool"
    assert error is None or error.key == "hedging"


@pytest.mark.parametrize("tool", ALL)
def test_an_answer_is_shared_only_by_calls_that_change_nothing(tool: Annotations) -> None:
    error = refused(tool, Policy(single_flight=True), "single-flight")
    assert (error is None) == tool.read_only
    assert error is None or error.key == "single-flight"


def test_a_tools_descriptor_is_asked_as_it_is() -> None:
    tool = ToolDescriptor(name="look-up", description="", service="s", read_only=True)
    assert repeatable(tool)
    check_repeats(tool, Policy(hedging="p95", retry=THRICE.retry), ("hedging", "retry"))
