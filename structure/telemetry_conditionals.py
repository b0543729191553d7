"""Conditionals on telemetry in the call path: an observer that is a null object by default needs none."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from structure.naming import Place

CALL_PATH = (
    "dispatch/dispatcher.py",
    "dispatch/calls/",
    "dispatch/routing/",
    "dispatch/serving/",
    "dispatch/resilience/",
    "dispatch/trustgraph/",
)
"""Files and folders that a call goes through, apart from the messaging."""
TELEMETRY_NAME = re.compile(
    r"_*(?:\w+_)?(?:observer|meter|meters|metrics|tracer|tracing|trace|span|exemplar|watch|counters|instruments|telemetry)"
)
"""Last part of the name of an object of telemetry: ``guards.meter``, ``call.trace``, ``self._watch``."""


def find_telemetry_conditionals(trees: Mapping[str, ast.Module]) -> list[Place]:
    """Tests of ``is None`` or ``is not None``, and plain truth tests, on objects of telemetry in :data:`CALL_PATH`."""
    found = [
        Place(name, path, line)
        for path, tree in trees.items()
        if path.startswith(CALL_PATH)
        for node in ast.walk(tree)
        for name, line in _tested(node)
        if TELEMETRY_NAME.fullmatch(name.rpartition(".")[2])
    ]
    return sorted(found, key=lambda place: (place.path, place.line))


def _tested(node: ast.AST) -> list[tuple[str, int]]:
    """Names that ``node`` tests, with their lines."""
    tested: list[ast.expr] = []
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
        right = node.comparators[0]
        tested = [node.left] if isinstance(right, ast.Constant) and right.value is None else []
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        tested = [_without_not(node.test)]
    elif isinstance(node, ast.BoolOp):
        tested = [_without_not(value) for value in node.values]
    return [(_dotted(each), each.lineno) for each in tested]


def _without_not(node: ast.expr) -> ast.expr:
    return node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else node


def _dotted(node: ast.expr) -> str:
    """``a.b.c``, or empty for anything but a name with attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = _dotted(node.value)
        return f"{above}.{node.attr}" if above else ""
    if isinstance(node, ast.NamedExpr):
        return _dotted(node.target)
    return ""
