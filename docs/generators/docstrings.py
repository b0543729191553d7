"""Descriptions read from docstrings and from the strings below constants, as Markdown."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType


def attributes(kind: type) -> dict[str, str]:
    """Return the description of each attribute in the ``Attributes:`` section of the docstring of ``kind``."""
    described: dict[str, str] = {}
    name = ""
    for line in (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].splitlines():
        begins = re.fullmatch(r" {4}(\w+(?:, \w+)*): (.*)", line)
        if begins:
            name = begins[1]
            described.update(dict.fromkeys(name.split(", "), begins[2]))
        elif line.startswith(" " * 8):
            for each in name.split(", "):
                described[each] += " " + line.strip()
    return {each: sentence(markdown(text)) for each, text in described.items()}


def constants(module: ModuleType, kind: type) -> Iterator[tuple[str, str]]:
    """Yield the value and the description of each string constant of a class, in the order of the source."""
    for name, text in descriptions_below(module, kind):
        value = getattr(kind, name)
        if isinstance(value, str):
            yield str(value), text


def descriptions_below(module: ModuleType, kind: type) -> Iterator[tuple[str, str]]:
    """Yield the name and the description of each assignment in the body of a class, in the order of the source.

    The description is the string below the assignment; without one it is empty.
    """
    (body,) = (
        node.body
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    for number, node in enumerate(body):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name):
            below = body[number + 1] if number + 1 < len(body) else None
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            yield target.id, sentence(markdown(str(below.value.value))) if is_text else ""  # type: ignore[union-attr] # checked


def first_paragraph(described: object) -> str:
    """Return the first paragraph of a docstring as Markdown."""
    return markdown((inspect.getdoc(described) or "").partition("\n\n")[0])


def sentence(text: str) -> str:
    """Return ``text`` with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def markdown(text: str) -> str:
    """Return the text of a docstring, with its roles and literals as Markdown, in one line."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", " ".join(text.split()))
    return re.sub(r"``(.+?)``", r"`\1`", text)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table. Cells must not contain line ends; bars in them are escaped."""
    titles = list(head)
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
