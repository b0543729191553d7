"""Banned verbs, exceptions and telemetry conditionals, found in syntax trees."""

from __future__ import annotations

import ast
import textwrap

import pytest

from structure.naming import find_banned_verbs, find_misnamed_exceptions
from structure.telemetry_conditionals import find_telemetry_conditionals


def trees(source: str, path: str = "dispatch/calls/call.py") -> dict[str, ast.Module]:
    return {path: ast.parse(textwrap.dedent(source))}


def test_banned_verbs_are_whole_names() -> None:
    source = """
        class Queue:
            def take(self): ...
            async def _left(self): ...
            def take_permit(self): ...
            taken = True

        def told(): ...
        def fold(): ...
    """
    assert [str(each) for each in find_banned_verbs(trees(source))] == [
        "dispatch/calls/call.py:3 Queue.take",
        "dispatch/calls/call.py:4 Queue._left",
        "dispatch/calls/call.py:8 told",
    ]


def test_exceptions_end_in_error_and_nothing_else_does() -> None:
    source = """
        class Failure(ConnectionError): ...
        class ShutdownError(Failure): ...
        class Refused(dispatch.ShutdownError): ...
        class LateWarning(UserWarning): ...
        class NoError: ...
        class Value: ...
    """
    found = find_misnamed_exceptions(trees(source))
    assert [each.name for each in found] == ["Failure", "Refused", "NoError"]


@pytest.mark.parametrize(
    "statement",
    [
        "if meter is None: pass",
        "x = 1 if self._watch is not None else 2",
        "if call.trace: pass",
        "if not tracing: pass",
        "return trace is None or ready",
        "if ready and guards.meter: pass",
        "if (span := start()) is not None: pass",
    ],
)
def test_conditionals_on_telemetry_are_found(statement: str) -> None:
    found = find_telemetry_conditionals(trees(f"def f():\n    {statement}"))
    assert [each.line for each in found] == [2]


@pytest.mark.parametrize(
    "statement",
    ["if instance is None: pass", "if meter == 3: pass", "meter.record()", "if traces(): pass", "if parameter: pass"],
)
def test_other_conditionals_are_not(statement: str) -> None:
    assert find_telemetry_conditionals(trees(f"def f():\n    {statement}")) == []


def test_conditionals_count_in_the_call_path_only() -> None:
    source = "if meter is None: pass"
    assert find_telemetry_conditionals(trees(source, "dispatch/cli/app.py")) == []
    assert len(find_telemetry_conditionals(trees(source, "dispatch/dispatcher.py"))) == 1
