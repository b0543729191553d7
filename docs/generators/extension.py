"""Sphinx extension: links to files of the repository, references to undocumented objects.

- A link to a file outside ``docs/`` becomes its address in the repository, so that one link works on both sites. A file
  that is missing is an error.
- A reference to a Python object that exists, and has no entry in the API reference, becomes plain text. A reference to an
  object that does not exist is an error.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import pydoc
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from opentelemetry.trace import TracerProvider
from prometheus_client import CollectorRegistry
from pygments.lexers.special import TextLexer

import dispatch

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = "https://github.com/tool-dispatch/tool-dispatch/blob/main/"
ABSENT = ("dispatch.adapters.google_adk", "dispatch.adapters.crewai")
"""Modules for frameworks that do not go together with the development tools. Other modules refer to nothing in them."""
_LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+|[\w-]+/[^)#:\s]+)(#[^)\s]*)?(\))")


def link_repository(text: str, page: Path) -> str:
    """Return the text of ``page``, in which links that leave ``docs/`` lead to the repository.

    Raises:
        FileNotFoundError: a link leads to a file that does not exist.
    """

    def address(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(page.parent / found[2]))
        if target.is_relative_to(ROOT / "docs"):
            return found[0]
        if not target.exists():
            raise FileNotFoundError(f"{page}: {found[2]}")
        return f"{found[1]}{REPOSITORY}{target.relative_to(ROOT).as_posix()}{found[3] or ''}{found[4]}"

    return _LINK.sub(address, text)


def exists(target: str, module: str | None) -> bool:
    """Return whether ``target`` names a Python object: by its whole name, from ``module``, or anywhere in ``dispatch``."""
    if any(pydoc.locate(name) is not None for name in (target, f"{module}.{target}", f"typing.{target}")):
        return True
    return any(target in vars(each) for name, each in list(sys.modules.items()) if name.startswith("dispatch."))


def read_source(app: Sphinx, name: str, content: list[str]) -> None:
    """Sphinx event ``source-read``."""
    page = Path(app.env.doc2path(name))
    if page.suffix == ".md":
        content[0] = link_repository(content[0], page)


def prepare_docstring(app: Sphinx, kind: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """Sphinx event ``autodoc-process-docstring``, before napoleon reads the docstring.

    An entry ``a, b: text`` of the section "Attributes" becomes two entries. napoleon takes the text before a colon in the
    first line of an attribute's docstring for a type, and an empty comment before it prevents that; in the section "Returns"
    an empty type does, because signatures have the types.
    """
    if kind in ("attribute", "property"):
        lines[:0] = ["..", ""]
    split: list[str] = []
    same: list[str] = []
    before = ""
    for line in lines:
        if before in ("Returns:", "Yields:"):
            line = re.sub(r"^( *)", r"\1: ", line)
        before = line
        if not line.startswith(" " * 8):
            split, same = split + same, []
        entry = re.fullmatch(r" {4}(\w+), ([\w, ]+): (.*)", line)
        if entry:
            same = [f"    {each}: as ``{entry[1]}``." for each in entry[2].split(", ")]
        split.append(f"    {entry[1]}: {entry[3]}" if entry else line)
    lines[:] = split + same


def shorten_signature(
    app: Sphinx, kind: str, name: str, documented: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """Sphinx event ``autodoc-process-signature``: the fields of a struct are listed below it, with their types."""
    is_struct = isinstance(documented, type) and issubclass(documented, msgspec.Struct)
    return ("(…)", None) if is_struct else None


def resolve_reference(app: Sphinx, env: Any, node: Any, text: nodes.TextElement) -> nodes.Node | None:
    """Sphinx event ``missing-reference``: find the public entry of an object, or accept that it has none."""
    if node.get("refdomain") != "py":
        return None
    target: str = node["reftarget"]
    name = target.rpartition(".")[2]
    if name in dispatch.__all__ and target != f"dispatch.{name}":
        domain = env.domains["py"]
        source = node.get("refdoc", env.docname)
        return domain.resolve_xref(env, source, app.builder, "obj", f"dispatch.{name}", node, text) or text
    return text if exists(target, node.get("py:module")) else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the event handlers with Sphinx."""
    for module in pkgutil.walk_packages(dispatch.__path__, "dispatch."):
        if not module.name.endswith("__main__") and module.name not in ABSENT:
            importlib.import_module(module.name)  # :func:`exists` looks there
    settings = importlib.import_module("dispatch.telemetry.observers")
    vars(settings).update(
        CollectorRegistry=CollectorRegistry, TracerProvider=TracerProvider
    )  # there for type checkers only
    python = importlib.import_module("sphinx.domains.python")
    for field in python.PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"  # the word of the docstrings, instead of "Variables"
    app.connect("source-read", read_source)
    app.connect("missing-reference", resolve_reference)
    app.connect("autodoc-process-docstring", prepare_docstring, priority=400)  # napoleon has 500
    app.connect("autodoc-process-signature", shorten_signature)
    app.add_lexer("promql", TextLexer)  # that of Pygments rejects the colons in names of recording rules
    return {"parallel_read_safe": True, "parallel_write_safe": True}
