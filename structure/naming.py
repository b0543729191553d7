"""Names that the style avoids: methods in banned verbs, exceptions that do not end in ``Error``."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

BANNED_VERBS = frozenset(
    {
        *("take", "takes", "taken", "took", "left", "ended", "look", "looks", "looked", "tell", "tells", "told"),
        *("go", "goes", "gone", "went", "made", "kept", "said"),
    }
)
"""Verbs without an object, and participles, which do not describe a method; also with a leading underscore."""


class Place(NamedTuple):
    """A definition, or another finding, with its place."""

    name: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.name}"


def find_banned_verbs(trees: Mapping[str, ast.Module]) -> list[Place]:
    """Functions and methods whose whole name, without leading underscores, is one of :data:`BANNED_VERBS`."""
    return [
        Place(name, path, node.lineno)
        for path, tree in trees.items()
        for name, node in _qualified(tree, "")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_") in BANNED_VERBS
    ]


def find_misnamed_exceptions(trees: Mapping[str, ast.Module]) -> list[Place]:
    """Exceptions that do not end in ``Error`` (a ``Warning`` may), and other classes that do.

    A class is an exception when one of its bases is one, by its name, in any of ``trees``.
    """
    classes = [
        (name, path, node)
        for path, tree in trees.items()
        for name, node in _qualified(tree, "")
        if isinstance(node, ast.ClassDef)
    ]
    known = {
        name for name, each in vars(builtins).items() if isinstance(each, type) and issubclass(each, BaseException)
    }
    grown = True
    while grown:
        more = {node.name for _, _, node in classes if any(_last_part(base) in known for base in node.bases)}
        grown = not more <= known
        known |= more
    return [
        Place(name, path, node.lineno)
        for name, path, node in classes
        if (node.name in known) != node.name.endswith("Error")
        and not (node.name in known and node.name.endswith("Warning"))
    ]


def _qualified(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from _qualified(child, f"{prefix}{child.name}.")
        else:
            yield from _qualified(child, prefix)


def _last_part(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        return _last_part(base.value)
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def parse_files(root: Path, paths: list[Path]) -> dict[str, ast.Module]:
    """The syntax tree of each file, by its path below ``root``."""
    return {str(path.relative_to(root)): ast.parse(path.read_text("utf-8")) for path in paths}
